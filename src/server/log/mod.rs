//! The log: one line per event, to standard error or to a file, for people, journald or programs.
//!
//! tracing-subscriber filters the events and changes the threshold while the server runs. The lines are formatted here:
//! its own formats have other level names, other JSON keys, no syslog priorities, and leave control characters of clients
//! in the text. Spans are ignored, because the server logs only events with fields.
//!
//! The caller decides which account is the `owner` of the file, and when to call [`Log::reopen`] and
//! [`Log::set_threshold`] (SIGHUP).

mod format;
mod output;
mod record;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::{Registry, reload};

use crate::config::Threshold;
pub use format::Format;
use format::LineFormat;
pub(super) use output::{LogFile, Output};
use record::Record;
pub(super) use record::now;

/// The settings of the log.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The least important event that is logged.
    pub threshold: Threshold,
    /// The file to append to; `None` is standard error.
    pub file: Option<PathBuf>,
    /// The format of a line.
    pub format: Format,
}

/// Why the log could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
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
    /// Opens the log and makes it the log of the process. It can be called once.
    pub fn init(settings: Settings) -> Result<Self, LogError> {
        let (log, subscriber) = Self::open(settings)?;
        tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadyStarted)?;
        Ok(log)
    }

    /// Logs events that are at least as important as `threshold` from now on.
    pub fn set_threshold(&self, threshold: Threshold) {
        // Fails only if the subscriber was dropped, and then there is no log.
        let _ = self.threshold.reload(level_filter(threshold));
    }

    /// Logs an event whose fields are not known when the program is built, which [`tracing::info!`] needs.
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

    fn open(settings: Settings) -> Result<(Self, impl Subscriber + Send + Sync), LogError> {
        let format = LineFormat::choose(settings.format, settings.file.is_some());
        let output = match settings.file {
            None => Output::standard_error(),
            Some(path) => Output::file(path.clone()).map_err(|source| LogError::File { path, source })?,
        };
        let output = Arc::new(output);
        let (filter, threshold) = reload::Layer::new(level_filter(settings.threshold));
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
