//! Where keys were set: a line of the file, a variable of the environment, or an option of the command line. A later one
//! of these replaces an earlier one. Errors about several keys together name it.
//!
//! `SIGNALBOX_CONFIG_` and the name of a key in capitals, with `__` for each dot, is the variable of that key. Its value
//! is written as in yrmcds.conf. A variable that begins like this and is of no key is an error, because a server that
//! ignored it would run with another configuration than intended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use super::apply::{closest_key, excerpt};
use super::error::{ConfigError, Notice, Severity};
use super::schema::{Key, is_within_declaration};
use super::setting::Value;
use super::{Config, Loaded};

/// What the names of all variables begin with.
pub const VARIABLE_PREFIX: &str = "SIGNALBOX_CONFIG_";

/// The keys that were set, by name, and the last place that set each.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins(BTreeMap<&'static str, Origin>);

/// Where a key was set; a later variant replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Line(usize),
    Variable(String),
    Option(&'static str),
}

impl Origins {
    pub(super) fn of_lines(lines: impl IntoIterator<Item = (&'static str, usize)>) -> Self {
        Self(lines.into_iter().map(|(key, line)| (key, Origin::Line(line))).collect())
    }
}

/// The variable of a key.
pub(super) fn variable_of(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

impl Loaded {
    /// Reads a file, or without one the defaults, and then the variables of the environment.
    pub fn read(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut loaded = match file {
            Some(file) => Config::load(file)?,
            None => Self {
                config: Config::without_file(),
                notices: Vec::new(),
                file: None,
                origins: Origins::default(),
            },
        };
        let mut variables: Vec<_> = environment
            .into_iter()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
            .collect();
        variables.sort();
        variables.into_iter().try_for_each(|(name, value)| loaded.set_variable(name, value))?;
        Ok(loaded)
    }

    fn set_variable(&mut self, variable: String, value: OsString) -> Result<(), ConfigError> {
        let name = variable[VARIABLE_PREFIX.len()..].to_ascii_lowercase().replace("__", ".");
        let found = Key::all().iter().find(|key| variable_of(key.name()) == variable);
        let Some(key) = found else {
            let advice = match closest_key(&name) {
                Some(close) => format!("did you mean {}?", variable_of(close)),
                None => "remove it from the environment".to_owned(),
            };
            return Err(ConfigError(format!(
                "{variable}: this environment variable is of no key of signalbox; {advice}"
            )));
        };
        let refused = |value: String, allowed: String| {
            Err(ConfigError(format!("{variable} = {value}: must be {allowed}")))
        };
        if key.name() == "semaphore.declare" || is_within_declaration(key.name()) {
            let allowed = "in a table [[semaphore.declare]], which only a file in TOML can have";
            return refused(excerpt(&value.to_string_lossy()), allowed.to_owned());
        }
        let value = match value.into_string() {
            Ok(value) => value,
            Err(value) => return refused(excerpt(&value.to_string_lossy()), "valid UTF-8".to_owned()),
        };
        if let Err(allowed) = key.set(&Value::Word(value.clone()), &mut self.config) {
            return refused(excerpt(&value), allowed);
        }
        let sentence = match key.no_effect_because() {
            Some(reason) => format!("{variable}: {} has no effect: {reason}", key.name()),
            None => format!("{} is set to \"{}\" by {variable}", key.name(), excerpt(&value)),
        };
        self.notices.push(Notice { severity: Severity::Info, sentence });
        self.origins.0.insert(key.name(), Origin::Variable(variable));
        Ok(())
    }

    /// Notes that an option of the command line has set a key.
    pub fn note_option(&mut self, key: &'static str, option: &'static str) {
        self.origins.0.insert(key, Origin::Option(option));
    }

    /// [`Config::validate`], with the place in the error where one of the keys was set last.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.config.validate().map_err(|error| {
            // Both ports may be the default: then the keys that enable them are to blame.
            let enables = ["counter.enable", "semaphore.enable"];
            let place = self.place_of(&error.keys).or_else(|| self.place_of(&enables));
            match place.or_else(|| self.file_name()) {
                Some(place) => ConfigError(format!("{place}: {error}")),
                None => ConfigError(error.to_string()),
            }
        })
    }

    /// Where the last of the keys was set.
    fn place_of(&self, keys: &[&str]) -> Option<String> {
        match keys.iter().filter_map(|key| self.origins.0.get(key)).max()? {
            Origin::Option(option) => Some((*option).to_owned()),
            Origin::Variable(variable) => Some(variable.clone()),
            Origin::Line(line) => self.file_name().map(|file| format!("{file}:{line}")),
        }
    }

    fn file_name(&self) -> Option<String> {
        self.file.as_ref().map(|file| file.display().to_string())
    }
}
