//! The log: one line an event, to standard error or to a file, as people, journald or programs like to read it.
//!
//! A line is written with one call and without a buffer, so that lines of several threads never mix and the last
//! line before an abort is there. Writing never panics: what the file does not take goes to standard error, and what
//! that does not take is lost. Spans are ignored; the server logs events with fields only.
//!
//! Left to others: which account `owner` is, and when to call [`Log::reopen`] and [`Log::set_threshold`] (SIGHUP).

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::unistd::geteuid;
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::{Registry, reload};

use crate::config::Threshold;

/// Mode of a log file that is made here: its account writes, its group reads, as Debian has it for logs.
const FILE_MODE: u32 = 0o640;

/// How the log is to be written.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The least important event that is logged.
    pub threshold: Threshold,
    /// The file to append to; `None` is standard error.
    pub file: Option<PathBuf>,
    /// The form of a line.
    pub format: Format,
    /// User and group that get a file which is made here as root, so that it can be opened again without root.
    pub owner: Option<(u32, u32)>,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// [`Format::Journal`] where standard error is journald's, else [`Format::Text`].
    #[default]
    Auto,
    /// Time, level, message and fields, in colour on a terminal.
    Text,
    /// One JSON object a line.
    Json,
    /// A syslog priority, message and fields; journald adds the time.
    Journal,
}

/// Why there is no log.
#[derive(Debug, Error)]
pub enum LogError {
    /// The file cannot be opened.
    #[error(
        "the log file {} cannot be opened: {source}; make its directory, and let the server's user write there",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The process has a log already.
    #[error("the log was started twice in one process; start it once")]
    AlreadyStarted,
}

/// The process's log, to be changed while it is in use.
#[derive(Debug)]
pub struct Log {
    threshold: reload::Handle<LevelFilter, Registry>,
    output: Arc<Output>,
}

impl Log {
    /// Opens the log and makes it the process's own; once in a process.
    pub fn init(settings: Settings) -> Result<Self, LogError> {
        let (log, subscriber) = Self::open(settings)?;
        tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadyStarted)?;
        Ok(log)
    }

    /// Logs what is at least as important as `threshold` from now on.
    pub fn set_threshold(&self, threshold: Threshold) {
        // Fails only where the subscriber is gone, and then there is nothing to log to.
        let _ = self.threshold.reload(level_filter(threshold));
    }

    /// Opens the file anew, making it where logrotate has moved it away. On failure the old one stays in use.
    pub fn reopen(&self) -> io::Result<()> {
        self.output.reopen()
    }

    fn open(settings: Settings) -> Result<(Self, impl Subscriber + Send + Sync), LogError> {
        let form = Form::choose(settings.format, settings.file.is_some());
        let output = Arc::new(Output::open(settings.file, settings.owner)?);
        let (filter, threshold) = reload::Layer::new(level_filter(settings.threshold));
        let lines = Lines { form, output: Arc::clone(&output) };
        let subscriber = Registry::default().with(filter).with(lines);
        Ok((Self { threshold, output }, subscriber))
    }
}

fn level_filter(threshold: Threshold) -> LevelFilter {
    match threshold {
        Threshold::Error => LevelFilter::ERROR,
        Threshold::Warning => LevelFilter::WARN,
        Threshold::Info => LevelFilter::INFO,
        Threshold::Debug => LevelFilter::DEBUG,
    }
}

/// Where lines go.
#[derive(Debug)]
struct Output {
    /// `None` is standard error.
    file: Option<LogFile>,
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    owner: Option<(u32, u32)>,
    /// Held for one write, or to swap in the file that was opened anew.
    open: Mutex<File>,
}

impl Output {
    fn open(path: Option<PathBuf>, owner: Option<(u32, u32)>) -> Result<Self, LogError> {
        let Some(path) = path else {
            return Ok(Self { file: None });
        };
        match open_file(&path, owner) {
            Ok(file) => Ok(Self { file: Some(LogFile { path, owner, open: Mutex::new(file) }) }),
            Err(source) => Err(LogError::File { path, source }),
        }
    }

    fn reopen(&self) -> io::Result<()> {
        if let Some(file) = &self.file {
            let opened = open_file(&file.path, file.owner)?;
            *file.open.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        }
        Ok(())
    }

    fn write(&self, line: &str) {
        if let Some(file) = &self.file {
            let mut open = file.open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.write_all(line.as_bytes()).is_ok() {
                return;
            }
        }
        // There is nobody left to tell when this fails too.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Opens a file for appending. One that is made here by root gets its owner at once.
fn open_file(path: &Path, owner: Option<(u32, u32)>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(FILE_MODE);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            if let Some((user, group)) = owner
                && geteuid().is_root()
            {
                fchown(&file, Some(user), Some(group))?;
            }
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

/// The form of a line, decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text { colours: bool },
    Json,
    Journal,
}

impl Form {
    fn choose(format: Format, to_file: bool) -> Self {
        let colours = !to_file && io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        match format {
            Format::Json => Self::Json,
            Format::Journal => Self::Journal,
            Format::Auto if !to_file && stderr_is_journal() => Self::Journal,
            Format::Auto | Format::Text => Self::Text { colours },
        }
    }

    fn write(self, line: &mut String, record: &Record) -> fmt::Result {
        match self {
            Self::Text { colours } => record.write_text(line, colours),
            Self::Json => record.write_json(line),
            Self::Journal => record.write_journal(line),
        }
    }
}

/// systemd names device and inode of the stream that it reads, so that a program whose standard error was pointed
/// elsewhere since does not take that for the journal.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    File::from(stderr).metadata().is_ok_and(|stderr| is_stream(&stream, stderr.dev(), stderr.ino()))
}

fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    stream == format!("{device}:{inode}")
}

/// The layer that makes a line of each event.
#[derive(Debug)]
struct Lines {
    form: Form,
    output: Arc<Output>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut record = Record::new(*event.metadata().level());
        event.record(&mut record);
        let mut line = String::with_capacity(128);
        // Writing to a string fails only where the Display of a field fails; what was written until then is kept.
        let _ = self.form.write(&mut line, &record);
        line.push('\n');
        self.output.write(&line);
    }
}

/// An event, taken apart.
#[derive(Debug)]
struct Record {
    level: Level,
    message: String,
    fields: Map<String, Value>,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    time: &'a str,
    level: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: &'a Map<String, Value>,
}

impl Record {
    fn new(level: Level) -> Self {
        Self { level, message: String::new(), fields: Map::new() }
    }

    fn write_text(&self, line: &mut String, colours: bool) -> fmt::Result {
        SystemTime.format_time(&mut Writer::new(line))?;
        let level = self.level_name();
        if colours {
            write!(line, " \x1b[{}m{level:<7}\x1b[0m ", self.colour())?;
        } else {
            write!(line, " {level:<7} ")?;
        }
        self.write_message(line)
    }

    fn write_journal(&self, line: &mut String) -> fmt::Result {
        write!(line, "<{}>", self.syslog_priority())?;
        self.write_message(line)
    }

    fn write_json(&self, line: &mut String) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let json =
            JsonLine { time: &time, level: self.level_name(), message: &self.message, fields: &self.fields };
        line.push_str(&serde_json::to_string(&json).map_err(|_| fmt::Error)?);
        Ok(())
    }

    /// The message and ` name=value` for each field, on one line whatever a client put in a name.
    fn write_message(&self, line: &mut String) -> fmt::Result {
        write_on_one_line(line, &self.message)?;
        for (name, value) in &self.fields {
            write!(line, " {name}=")?;
            match value {
                Value::String(text) if is_plain(text) => line.push_str(text),
                Value::String(text) => write!(line, "{text:?}")?,
                other => write!(line, "{other}")?,
            }
        }
        Ok(())
    }

    fn level_name(&self) -> &'static str {
        match self.level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            _ => "debug",
        }
    }

    /// As `sd-daemon(3)` numbers them.
    fn syslog_priority(&self) -> u8 {
        match self.level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        }
    }

    /// Red, yellow, green, grey: the numbers of ECMA-48.
    fn colour(&self) -> u8 {
        match self.level {
            Level::ERROR => 31,
            Level::WARN => 33,
            Level::INFO => 32,
            _ => 90,
        }
    }

    fn put(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
        } else {
            self.put(field, value.into());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

fn write_on_one_line(line: &mut String, text: &str) -> fmt::Result {
    for character in text.chars() {
        if character.is_control() {
            write!(line, "{}", character.escape_default())?;
        } else {
            line.push(character);
        }
    }
    Ok(())
}

/// Whether a value can stand after `name=` without quotes and still be told from what follows.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '='))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Scratch {
        directory: tempfile::TempDir,
    }

    impl Scratch {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap() }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("signalbox.log")
        }

        fn settings(&self, format: Format) -> Settings {
            Settings { threshold: Threshold::Info, file: Some(self.path()), format, owner: None }
        }

        fn lines(&self) -> Vec<String> {
            fs::read_to_string(self.path()).unwrap().lines().map(str::to_owned).collect()
        }
    }

    fn log_in(format: Format, events: impl FnOnce(&Log)) -> Vec<String> {
        let scratch = Scratch::new();
        let (log, subscriber) = Log::open(scratch.settings(format)).unwrap();
        tracing::subscriber::with_default(subscriber, || events(&log));
        scratch.lines()
    }

    #[test]
    fn text_has_time_level_message_and_fields() {
        let lines = log_in(Format::Auto, |_| {
            tracing::warn!(port = 11215, address = "::1", name = "a b\n", "connection {}", "refused");
        });
        let (time, rest) = lines[0].split_once(' ').unwrap();
        assert_eq!(rest, "warning connection refused port=11215 address=::1 name=\"a b\\n\"");
        assert_eq!(lines.len(), 1);
        assert!(time.len() >= 20 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    }

    #[test]
    fn a_line_of_the_journal_has_a_priority_and_no_time() {
        let lines = log_in(Format::Journal, |_| {
            tracing::error!("one\ntwo");
            tracing::info!(count = 3, "three");
        });
        assert_eq!(lines, ["<3>one\\ntwo", "<6>three count=3"]);
    }

    #[test]
    fn a_line_of_json_is_an_object() {
        let lines = log_in(Format::Json, |_| tracing::info!(ok = true, name = "\u{1}", "hello"));
        let line: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"info".into(), &"hello".into()));
        assert_eq!(line["fields"], serde_json::json!({ "ok": true, "name": "\u{1}" }));
        assert!(line["time"].is_string());
    }

    #[test]
    fn the_threshold_changes_while_running() {
        let lines = log_in(Format::Journal, |log| {
            tracing::debug!("not yet");
            log.set_threshold(Threshold::Debug);
            tracing::debug!("now");
            log.set_threshold(Threshold::Error);
            tracing::warn!("no more");
        });
        assert_eq!(lines, ["<7>now"]);
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let scratch = Scratch::new();
        let (log, subscriber) = Log::open(scratch.settings(Format::Journal)).unwrap();
        let rotated = scratch.directory.path().join("signalbox.log.1");
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("before");
            fs::rename(scratch.path(), &rotated).unwrap();
            tracing::info!("between");
            log.reopen().unwrap();
            tracing::info!("after");
        });
        assert_eq!(fs::read_to_string(rotated).unwrap(), "<6>before\n<6>between\n");
        assert_eq!(scratch.lines(), ["<6>after"]);
        assert_eq!(fs::metadata(scratch.path()).unwrap().mode() & 0o137, 0, "more may read it than should");
    }

    #[test]
    fn a_failed_reopen_keeps_the_file() {
        let scratch = Scratch::new();
        let (log, subscriber) = Log::open(scratch.settings(Format::Journal)).unwrap();
        let moved = scratch.directory.path().join("moved");
        fs::rename(scratch.path(), &moved).unwrap();
        fs::create_dir(scratch.path()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            assert!(log.reopen().is_err());
            tracing::info!("still here");
        });
        assert_eq!(fs::read_to_string(moved).unwrap(), "<6>still here\n");
    }

    #[test]
    fn a_full_disk_is_no_panic() {
        let settings = Settings {
            threshold: Threshold::Info,
            file: Some("/dev/full".into()),
            format: Format::Journal,
            owner: None,
        };
        let (_log, subscriber) = Log::open(settings).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("this line is meant to be seen here")
        });
    }

    #[test]
    fn root_gives_a_new_file_to_its_owner() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let scratch = Scratch::new();
        let settings = Settings { owner: Some((65534, 65534)), ..scratch.settings(Format::Text) };
        let _log = Log::open(settings).map(|(log, _)| log).unwrap();
        let metadata = fs::metadata(scratch.path()).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (65534, 65534));
    }

    #[test]
    fn a_log_without_its_directory_is_refused_by_name() {
        let settings = Settings {
            threshold: Threshold::Info,
            file: Some("/nonexistent/a.log".into()),
            format: Format::Auto,
            owner: None,
        };
        let message = Log::open(settings).map(|(log, _)| log).unwrap_err().to_string();
        assert!(
            message.starts_with("the log file /nonexistent/a.log cannot be opened: No such file"),
            "{message}"
        );
    }

    #[test]
    fn the_journal_is_told_by_device_and_inode() {
        assert!(is_stream("8:1234", 8, 1234));
        assert!(!is_stream("8:1234", 8, 1235));
        assert!(!is_stream("", 8, 1234));
    }
}
