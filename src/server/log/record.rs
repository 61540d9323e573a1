//! One event: its level, message and fields, and how they are written on a line.

use std::fmt::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::Level;
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// An event that was taken apart.
#[derive(Debug)]
pub(super) struct Record {
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
    pub(super) fn new(level: Level) -> Self {
        Self { level, message: String::new(), fields: Map::new() }
    }

    pub(super) fn with(
        level: Level,
        message: &str,
        fields: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { level, message: message.to_owned(), fields }
    }

    pub(super) fn write_text(&self, line: &mut String, colours: bool) -> fmt::Result {
        line.push_str(&now());
        let level = self.level_name();
        if colours {
            write!(line, " \x1b[{}m{level:<7}\x1b[0m ", self.colour())?;
        } else {
            write!(line, " {level:<7} ")?;
        }
        self.write_message(line)
    }

    pub(super) fn write_journal(&self, line: &mut String) -> fmt::Result {
        write!(line, "<{}>", self.syslog_priority())?;
        self.write_message(line)
    }

    pub(super) fn write_json(&self, line: &mut String) -> fmt::Result {
        let json =
            JsonLine { time: &now(), level: self.level_name(), message: &self.message, fields: &self.fields };
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

    fn level_name(&self) -> &'static str {
        match self.level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            _ => "debug",
        }
    }

    /// The priority by `sd-daemon(3)`.
    fn syslog_priority(&self) -> u8 {
        match self.level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        }
    }

    /// Red, yellow, green or grey, by ECMA-48.
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

/// The time, as the lines of all logs have it.
pub(in crate::server) fn now() -> String {
    let mut time = String::new();
    // A string takes everything.
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

/// Whether a value needs no quotes after `name=`.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '='))
}
