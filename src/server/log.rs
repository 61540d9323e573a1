//! The log: one line per event, to standard error or to a file, for people, journald or programs.
//!
//! tracing-subscriber filters the events and changes the threshold while the server runs. The lines are formatted here:
//! the formats of tracing-subscriber have other level names, other JSON keys, no syslog priorities, and leave control
//! characters of clients in the text. Spans are ignored, because the server logs only events with fields.
//!
//! A line is written with one call and without a buffer, so that lines of several threads never mix and the last line
//! before an abort is there. Writing never panics: a line that cannot be written to the file goes to standard error,
//! and a line that cannot be written there is lost.
//!
//! The caller decides under which account the file is created, and when to call [`Log::reopen`] and
//! [`Log::set_threshold`] (SIGHUP).

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

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

use super::lock;
use crate::config::Threshold;

/// Mode of a new log file: its owner writes, its group reads, as is usual for logs on Debian.
const FILE_MODE: u32 = 0o640;

/// The format of a line that the command line asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The last one if standard error goes to journald, otherwise text
    #[default]
    Auto,
    /// Time, level, message and fields, in colour on a terminal
    Text,
    /// One JSON object per line
    Json,
    /// A syslog priority, message and fields; journald adds the time
    Journal,
}

/// The reason why the log could not be started.
#[derive(Debug, Error)]
pub enum LogError {
    /// The file cannot be opened.
    #[error(
        "the log file {} cannot be opened: {source}; make its directory, and let the server's user (\"user\" in the \
         configuration) write there",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The process has a log already.
    #[error("the log was started twice in one process; start it once")]
    AlreadyStarted,
}

/// The log of the process. It can be changed while it is in use.
#[derive(Debug)]
pub struct Log {
    threshold: reload::Handle<LevelFilter, Registry>,
    format: LineFormat,
    output: Arc<Output>,
}

impl Log {
    /// Opens the log and makes it the log of the process. Events that are at least as important as `threshold` are appended to the
    /// file, or without one written to standard error. Fails if the file cannot be opened, or if the process has a log
    /// already.
    pub fn init(threshold: Threshold, file: Option<PathBuf>, format: Format) -> Result<Self, LogError> {
        let (log, subscriber) = Self::open(threshold, file, format)?;
        tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadyStarted)?;
        Ok(log)
    }

    /// Logs events that are at least as important as `threshold` from now on.
    pub fn set_threshold(&self, threshold: Threshold) {
        // Fails only if the subscriber was dropped, and then there is no log.
        let _ = self.threshold.reload(level_filter(threshold));
    }

    /// Logs an event whose fields are known only at run time. [`tracing::info!`] needs them at compile time.
    pub fn info(&self, message: &str, fields: impl IntoIterator<Item = (&'static str, Value)>) {
        if self.threshold.with_current(|threshold| *threshold >= LevelFilter::INFO).unwrap_or(false) {
            let record = Record::with(Level::INFO, message, fields);
            write_line(&self.output, self.format, &record);
        }
    }

    /// Opens the file again, and creates it if logrotate has moved it away. If that fails, the old file stays in use.
    pub fn reopen(&self) -> io::Result<()> {
        self.output.reopen()
    }

    fn open(
        threshold: Threshold,
        file: Option<PathBuf>,
        format: Format,
    ) -> Result<(Self, impl Subscriber + Send + Sync), LogError> {
        let format = LineFormat::choose(format, file.is_some());
        let output = match file {
            None => Output::standard_error(),
            Some(path) => Output::file(path.clone()).map_err(|source| LogError::File { path, source })?,
        };
        let output = Arc::new(output);
        let (filter, threshold) = reload::Layer::new(level_filter(threshold));
        let lines = Lines { format, output: Arc::clone(&output) };
        let subscriber = Registry::default().with(filter).with(lines);
        Ok((Self { threshold, format, output }, subscriber))
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

/// The layer of the subscriber that writes a line for each event.
#[derive(Debug)]
struct Lines {
    format: LineFormat,
    output: Arc<Output>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut record = Record::new(*event.metadata().level());
        event.record(&mut record);
        write_line(&self.output, self.format, &record);
    }
}

fn write_line(output: &Output, format: LineFormat, record: &Record) {
    let mut line = String::with_capacity(128);
    // Writing to a string fails only if the Display of a field fails. The line has what was written until then.
    let _ = format.write(&mut line, record);
    line.push('\n');
    output.write(&line);
}

/// The format of a line, as it was chosen at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineFormat {
    Text { colours: bool },
    Json,
    Journal,
}

impl LineFormat {
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

/// Returns whether standard error is the stream that systemd names by device and inode. A program whose standard error was
/// redirected inherits the variable too, and must not treat its standard error as the journal.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    let stderr = File::from(stderr).metadata();
    stderr.is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}

/// The parts of an event.
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

    fn with(level: Level, message: &str, fields: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { level, message: message.to_owned(), fields }
    }

    fn write_text(&self, line: &mut String, colours: bool) -> fmt::Result {
        line.push_str(&now());
        let (level, _, colour) = self.look();
        if colours {
            write!(line, " \x1b[{colour}m{level:<7}\x1b[0m ")?;
        } else {
            write!(line, " {level:<7} ")?;
        }
        self.write_message(line)
    }

    fn write_journal(&self, line: &mut String) -> fmt::Result {
        let (_, priority, _) = self.look();
        write!(line, "<{priority}>")?;
        self.write_message(line)
    }

    fn write_json(&self, line: &mut String) -> fmt::Result {
        let (level, ..) = self.look();
        let json = JsonLine { time: &now(), level, message: &self.message, fields: &self.fields };
        line.push_str(&serde_json::to_string(&json).map_err(|_| fmt::Error)?);
        Ok(())
    }

    /// Writes the message and ` name=value` for each field. Control characters are escaped, so that a name that a client
    /// chose cannot begin another line.
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

    /// Returns the name of the level, its priority by `sd-daemon(3)`, and its colour by ECMA-48: red, yellow, green or
    /// grey.
    fn look(&self) -> (&'static str, u8, u8) {
        match self.level {
            Level::ERROR => ("error", 3, 31),
            Level::WARN => ("warning", 4, 33),
            Level::INFO => ("info", 6, 32),
            _ => ("debug", 7, 90),
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

/// Returns the time in the format of all logs.
pub(super) fn now() -> String {
    let mut time = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    time
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

/// Returns whether a value needs no quotes after `name=`.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '='))
}

/// The destination of log lines.
#[derive(Debug)]
pub(super) struct Output {
    /// `None` is standard error.
    file: Option<LogFile>,
}

/// A file to which lines are appended.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// Locked for one write, or to replace the file.
    open: Mutex<File>,
}

impl LogFile {
    /// Opens the file, and creates it if it does not exist.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let open = Mutex::new(open_file(&path)?);
        Ok(Self { path, open })
    }

    /// Opens the file again, and creates it if it was moved away. If that fails, the old one stays in use.
    pub(super) fn reopen(&self) -> io::Result<()> {
        let opened = open_file(&self.path)?;
        *lock(&self.open) = opened;
        Ok(())
    }

    /// Appends a text. An error comes with the number of bytes that were written.
    pub(super) fn append(&self, text: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut open = lock(&self.open);
        let mut written = 0;
        while written < text.len() {
            match open.write(&text[written..]) {
                Ok(0) => return Err((written, ErrorKind::WriteZero.into())),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }
}

impl Output {
    fn standard_error() -> Self {
        Self { file: None }
    }

    pub(super) fn file(path: PathBuf) -> io::Result<Self> {
        Ok(Self { file: Some(LogFile::open(path)?) })
    }

    pub(super) fn reopen(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), LogFile::reopen)
    }

    pub(super) fn write(&self, line: &str) {
        if let Some(file) = &self.file
            && file.append(line.as_bytes()).is_ok()
        {
            return;
        }
        // If this fails too, the line is lost.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Opens a file for appending, and creates it if it does not exist.
fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_in(format: Format, events: impl FnOnce()) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (_log, subscriber) = Log::open(Threshold::Info, Some(file.path().to_owned()), format).unwrap();
        tracing::subscriber::with_default(subscriber, events);
        std::fs::read_to_string(file.path()).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn text_has_time_level_message_and_fields() {
        let lines = log_in(Format::Auto, || {
            tracing::warn!(port = 11215, address = "::1", name = "a b\n", "connection {}", "refused");
        });
        let (time, rest) = lines[0].split_once(' ').unwrap();
        assert_eq!(rest, "warning connection refused port=11215 address=::1 name=\"a b\\n\"");
        assert_eq!(lines.len(), 1);
        assert!(time.len() >= 20 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    }

    #[test]
    fn a_line_of_the_journal_has_a_priority_and_no_time() {
        let lines = log_in(Format::Journal, || {
            tracing::error!("one\ntwo");
            tracing::info!(count = 3, "three");
        });
        assert_eq!(lines, ["<3>one\\ntwo", "<6>three count=3"]);
    }

    #[test]
    fn a_full_disk_does_not_panic() {
        let (_log, subscriber) =
            Log::open(Threshold::Info, Some("/dev/full".into()), Format::Journal).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("this line is expected in the output of the tests")
        });
    }
}
