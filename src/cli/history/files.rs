//! Reads the history files of one or several servers, in the order of time. One line of each server is in memory at a time.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _};
use std::iter::{self, Peekable};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use thiserror::Error;

use signalbox_model::history::HistoryLine;

/// The maximum length of a line that is read. The server writes shorter ones.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// A file that cannot be read.
#[derive(Debug, Error)]
#[error("{}: the history cannot be read: {source}; read it as root or as the user of the server", path.display())]
pub(super) struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

/// The next line, or a message about a part of a file that cannot be used.
pub(super) type Read = Result<Box<HistoryLine<'static>>, String>;

/// The lines of all servers; each element yields those of the files of one server, the oldest file first.
pub(super) struct Files(Vec<Peekable<Box<dyn Iterator<Item = Read>>>>);

impl Files {
    /// Opens the files and those that logrotate has made of them.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, Unreadable> {
        let server = |path: &PathBuf| {
            let reads = with_rotated(path)?.into_iter().flat_map(|(path, file)| reads(path, file));
            let reads: Box<dyn Iterator<Item = Read>> = Box::new(reads);
            Ok(reads.peekable())
        };
        paths.iter().map(server).collect::<Result<_, _>>().map(Self)
    }
}

/// Yields the lines of all servers, in the order of time.
impl Iterator for Files {
    type Item = Read;

    fn next(&mut self) -> Option<Read> {
        let first = self.0.iter_mut().filter_map(|server| {
            let time = match server.peek()? {
                Ok(line) => Some(line.time),
                // `None` sorts before every time, so problems are reported at once.
                Err(_) => None,
            };
            Some((time, server))
        });
        first.min_by_key(|(time, _)| *time)?.1.next()
    }
}

fn reads(path: PathBuf, file: File) -> Box<dyn Iterator<Item = Read>> {
    match OpenFile::of(path, file) {
        Ok(open) => Box::new(open),
        Err(problem) => Box::new(iter::once(Err(problem))),
    }
}

/// A file that is being read.
struct OpenFile {
    path: PathBuf,
    /// `None` once it was read to its end.
    text: Option<Box<dyn BufRead>>,
    /// The process that decompresses the file.
    gzip: Option<Child>,
    /// The number of complete lines that are not lines of a history.
    unusable: u64,
}

/// Opens a file and those that logrotate has made of it, the oldest first. All are opened at once, so that none is
/// missed if logrotate runs meanwhile.
fn with_rotated(path: &Path) -> Result<VecDeque<(PathBuf, File)>, Unreadable> {
    let open = |path: &Path| {
        let failed = |source| Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        Ok(((path.to_owned(), file), (found.dev(), found.ino())))
    };
    let (own, id) = open(path)?;
    let (mut files, mut known) = (VecDeque::from([own]), BTreeSet::from([id]));
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let listed =
        fs::read_dir(directory).map_err(|source| Unreadable { path: directory.to_owned(), source })?;
    let paths = listed.filter_map(|entry| Some(entry.ok()?.path()));
    let mut rotated: Vec<_> =
        paths.filter_map(|rotated| Some((number_of(&rotated, path)?, rotated))).collect();
    rotated.sort_unstable();
    for (_, path) in rotated {
        let (file, id) = open(&path)?;
        if known.insert(id) {
            files.push_front(file);
        }
    }
    Ok(files)
}

/// Returns the number that logrotate has given a file: `FILE.2` or `FILE.2.gz` has 2.
fn number_of(rotated: &Path, path: &Path) -> Option<u32> {
    let (name, of) = (rotated.file_name()?.to_str()?, path.file_name()?.to_str()?);
    let number = name.strip_prefix(of)?.strip_prefix('.')?;
    number.strip_suffix(".gz").unwrap_or(number).parse().ok()
}

impl Iterator for OpenFile {
    type Item = Read;

    fn next(&mut self) -> Option<Read> {
        match self.line() {
            Ok(Some(line)) => Some(Ok(line)),
            ended => {
                self.text.take()?;
                self.problem(ended.err()).map(Err)
            }
        }
    }
}

impl OpenFile {
    fn of(path: PathBuf, file: File) -> Result<Self, String> {
        if path.extension().is_none_or(|ending| ending != "gz") {
            return Ok(Self { path, text: Some(Box::new(BufReader::new(file))), gzip: None, unusable: 0 });
        }
        let gzip = Command::new("gzip").arg("-dc").stdin(file).stdout(Stdio::piped()).spawn();
        let mut gzip = gzip.map_err(|error| {
            format!("{}: gzip cannot be executed: {error}; the file is left out", path.display())
        })?;
        let text = gzip.stdout.take().ok_or_else(|| format!("{}: the file is left out", path.display()))?;
        Ok(Self { path, text: Some(Box::new(BufReader::new(text))), gzip: Some(gzip), unusable: 0 })
    }

    /// Reads the next valid line; `None` at the end of the file. An incomplete last line is not counted as unusable,
    /// because the server may still be writing it.
    fn line(&mut self) -> io::Result<Option<Box<HistoryLine<'static>>>> {
        let Some(file) = &mut self.text else { return Ok(None) };
        let mut text = Vec::new();
        loop {
            text.clear();
            file.take(LINE_BYTES_MAX).read_until(b'\n', &mut text)?;
            if text.is_empty() {
                return Ok(None);
            }
            if text == b"\n" {
                continue;
            }
            match serde_json::from_slice(&text) {
                Ok(line) => return Ok(Some(Box::new(line))),
                Err(_) => self.unusable += u64::from(text.ends_with(b"\n")),
            }
        }
    }

    /// Returns a message if a part of the file cannot be used. `error` is that of the last read; `None` at the end of the
    /// file.
    fn problem(&mut self, error: Option<io::Error>) -> Option<String> {
        let path = self.path.display();
        let is_broken =
            self.gzip.as_mut().is_some_and(|gzip| !gzip.wait().is_ok_and(|ended| ended.success()));
        if let Some(error) = error {
            return Some(format!("{path}: the rest cannot be read: {error}"));
        }
        if is_broken {
            return Some(format!("{path}: gzip cannot decompress it; a part is left out"));
        }
        (self.unusable > 0)
            .then(|| format!("{path}: lines that are not of a history are left out: {}", self.unusable))
    }
}
