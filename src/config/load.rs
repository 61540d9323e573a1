//! Reads a configuration file, in either language, and then the variables of the environment.
//!
//! The variable of a key has the prefix `SIGNALBOX_CONFIG_`, and then the name of the key in capitals, with `__` for each
//! dot. Its value is written as in yrmcds.conf. A variable with this prefix that belongs to no key is an error, because a
//! server that ignored it would not run with the intended configuration. Only variables that Kubernetes sets for a service
//! are ignored.
//!
//! A reload reads the file and the variables again, and compares the new configuration with the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::apply::{closest_key, excerpt};
use super::error::{ConfigError, Contradiction, Notice, Severity};
use super::root::{Config, DeclareConfig};
use super::schema::{Key, is_within_declaration};
use super::setting::{Language, Read, Setting, Value, read_yrmcds};
use super::{apply, toml};
use signalbox_model::kubernetes::{SERVICE_ADVICE, is_of_service};

/// The prefix of the names of all variables.
const VARIABLE_PREFIX: &str = "SIGNALBOX_CONFIG_";

/// The advice about proxies on loopback: the server trusts the address in the header of a proxy, and any user of a
/// machine can connect from any address of its loopback.
const LOOPBACK_PROXIES_ADVICE: &str = "this is loopback, so every user of this machine can connect from there and state any \
    client address, even one that has more rights; if you do not trust all of them, give rights by tokens or certificates and \
    not by addresses, or let the proxy run on another machine";

/// A configuration that was read, with the notices about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration, before [`Loaded::validate`].
    pub config: Config,
    /// Notices to log once, at start.
    pub notices: Vec<Notice>,
    /// The file that was read.
    file: Option<PathBuf>,
    /// The keys that were set, by name, and the last place that set each.
    origins: BTreeMap<&'static str, Origin>,
    /// The mistakes in the file and the environment. The configuration does not include those lines and variables.
    mistakes: Vec<String>,
    /// The keys whose values are not known, because they were refused or their names are misspelt. `None` if some lines
    /// could not be read, since they could set any key.
    refused: Option<Vec<&'static str>>,
}

/// The place where a key was set. A later variant replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Line(usize),
    Variable(String),
    Option(&'static str),
}

impl Config {
    /// Reads the file at `path`, in the language that [`Language::of`] recognises.
    ///
    /// Comments in yrmcds.conf may have any encoding, as old files do.
    fn load(path: &Path) -> Result<Loaded, ConfigError> {
        let bytes = fs::read(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        let text = String::from_utf8_lossy(&bytes);
        let Some(language) = Language::of(path, &text) else {
            let path = path.display();
            return Err(ConfigError::of(format!(
                "{path}: the configuration file is recognised as neither TOML nor yrmcds.conf; rename it so that it ends in \
                 .toml or .conf"
            )));
        };
        if language == Language::Toml {
            toml::utf8(&bytes).map_err(|mistake| ConfigError::of(mistake.in_file(path)))?;
        }
        Ok(Self::parse_with_mistakes(&text, path, language))
    }

    /// Reads `text`. Messages name `path` as the file.
    pub fn parse(text: &str, path: &Path, language: Language) -> Result<Loaded, ConfigError> {
        Self::parse_with_mistakes(text, path, language).without_mistakes()
    }

    fn parse_with_mistakes(text: &str, path: &Path, language: Language) -> Loaded {
        let (mut config, Read { settings, mut mistakes }) = match language {
            Language::Toml => (Self::default(), toml::read(text)),
            Language::Yrmcds => (Self::of_yrmcds(), read_yrmcds(text)),
        };
        let applied = apply::apply(&settings, path, language, &mut config);
        let origin = |(key, setting): (_, &Setting<'_>)| (key, Origin::Line(setting.line));
        let origins = applied.set.into_iter().map(origin).collect();
        let (notices, refused) = (applied.notices, mistakes.is_empty().then_some(applied.refused));
        mistakes.extend(applied.mistakes);
        mistakes.sort_by_key(|mistake| mistake.line);
        if language == Language::Yrmcds {
            config.workers = config.workers.of_yrmcds();
        }
        Loaded {
            config,
            notices,
            file: Some(path.to_owned()),
            origins,
            mistakes: mistakes.into_iter().map(|mistake| mistake.in_file(path)).collect(),
            refused,
        }
    }
}

impl Loaded {
    /// Reads a file, or without one the defaults, and then the variables of the environment. Fails if the file cannot be read;
    /// [`Loaded::validate`] reports the mistakes in it.
    pub fn read(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut loaded = match file {
            Some(file) => Config::load(file)?,
            None => Self {
                config: Config::default(),
                notices: Vec::new(),
                file: None,
                origins: BTreeMap::new(),
                mistakes: Vec::new(),
                refused: Some(Vec::new()),
            },
        };
        let mut variables: Vec<_> = environment
            .into_iter()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
            .collect();
        variables.sort();
        let mut ignored = Vec::new();
        for (name, value) in variables {
            let is_of_key = Key::all().iter().any(|key| variable_of(key.name()) == name);
            if !is_of_key && is_of_service(&name, &value.to_string_lossy()) {
                ignored.push(name);
                continue;
            }
            if let Err(mistake) = loaded.set_variable(name, value) {
                loaded.mistakes.push(mistake);
            }
        }
        if !ignored.is_empty() {
            let sentence = format!("{}: {SERVICE_ADVICE}", ignored.join(", "));
            loaded.notices.push(Notice { severity: Severity::Warning, sentence });
        }
        if let Some(proxies) = loaded.config.proxies.iter().find(|proxies| proxies.has_loopback()) {
            let sentence = format!("proxies = {proxies}: {LOOPBACK_PROXIES_ADVICE}");
            loaded.notices.push(Notice { severity: Severity::Warning, sentence });
        }
        Ok(loaded)
    }

    fn set_variable(&mut self, variable: String, value: OsString) -> Result<(), String> {
        let name = variable[VARIABLE_PREFIX.len()..].to_ascii_lowercase().replace("__", ".");
        let found = Key::all().iter().find(|key| variable_of(key.name()) == variable);
        let Some(key) = found else {
            let advice = match closest_key(&name) {
                Some(close) => format!("did you mean {}?", variable_of(close)),
                None => "remove it from the environment".to_owned(),
            };
            return Err(format!(
                "{variable}: this environment variable belongs to no key of signalbox; {advice}"
            ));
        };
        let refused =
            |value: String, allowed: String| Err(format!("{variable} = {value}: must be {allowed}"));
        if key.name() == "semaphore.declare" || is_within_declaration(key.name()) {
            let allowed = "in a table [[semaphore.declare]], which only a file in TOML can have";
            return refused(excerpt(&value.to_string_lossy()), allowed.to_owned());
        }
        let value = match value.into_string() {
            Ok(value) => value,
            Err(value) => return refused(excerpt(&value.to_string_lossy()), "valid UTF-8".to_owned()),
        };
        if let Err(allowed) = key.set(&Value::Word(value.clone()), &mut self.config) {
            self.refused.iter_mut().for_each(|keys| keys.push(key.name()));
            return refused(excerpt(&value), allowed);
        }
        let sentence = match key.no_effect_because() {
            Some(reason) => format!("{variable}: {} has no effect: {reason}", key.name()),
            None => format!("{} is set to \"{}\" by {variable}", key.name(), excerpt(&value)),
        };
        self.notices.push(Notice { severity: Severity::Info, sentence });
        self.origins.insert(key.name(), Origin::Variable(variable));
        Ok(())
    }

    /// Notes that an option of the command line has set a key.
    pub fn note_option(&mut self, key: &'static str, option: &'static str) {
        self.origins.insert(key, Origin::Option(option));
    }

    /// Fails with the mistakes of the file and the environment, and with contradictions ([`Config::validate`]), each
    /// with the place where one of its keys was last set. Contradictions of keys whose values are not known are not
    /// reported.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut mistakes = self.mistakes.clone();
        if let Some(refused) = &self.refused {
            let of_known = |found: &Contradiction| !found.keys.iter().any(|key| refused.contains(key));
            let found = self.config.contradictions().into_iter().filter(of_known);
            mistakes.extend(found.map(|contradiction| self.with_origin(&contradiction)));
        }
        if mistakes.is_empty() { Ok(()) } else { Err(ConfigError(mistakes)) }
    }

    /// Fails with the mistakes of the file and the environment, if there are any.
    fn without_mistakes(self) -> Result<Self, ConfigError> {
        if self.mistakes.is_empty() { Ok(self) } else { Err(ConfigError(self.mistakes)) }
    }

    fn with_origin(&self, error: &Contradiction) -> String {
        // Both ports may be the default: then the keys that enable them are to blame.
        let enables = ["counter.enable", "semaphore.enable"];
        let origin = self.origin_of(&error.keys).or_else(|| self.origin_of(&enables));
        match origin.or_else(|| self.file_name()) {
            Some(origin) => format!("{origin}: {error}"),
            None => error.to_string(),
        }
    }

    /// Returns where the last of the keys was set.
    fn origin_of(&self, keys: &[&str]) -> Option<String> {
        match keys.iter().filter_map(|key| self.origins.get(key)).max()? {
            Origin::Option(option) => Some((*option).to_owned()),
            Origin::Variable(variable) => Some(variable.clone()),
            Origin::Line(line) => self.file_name().map(|file| format!("{file}:{line}")),
        }
    }

    fn file_name(&self) -> Option<String> {
        self.file.as_ref().map(|file| file.display().to_string())
    }
}

/// Returns the name of the variable of a key.
fn variable_of(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

impl Config {
    /// Returns the keys whose values differ in `new`.
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let of_key = |key: &&Key| !key.name().starts_with("semaphore.declare");
        let mut changes: Vec<_> = Key::all()
            .iter()
            .filter(of_key)
            .map(|key| Change {
                key: key.name().to_owned(),
                from: shown(key.value_in(self)),
                to: shown(key.value_in(new)),
                takes_effect: key.changes_while_running(),
            })
            .collect();
        let [old, new] = [self, new].map(|config| {
            let declared = config.semaphore.declare.iter().map(|of| (of.name.as_str(), of));
            declared.collect::<BTreeMap<_, _>>()
        });
        let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        changes.extend(names.into_iter().map(|name| Change {
            key: declaration_key(name),
            from: described(old.get(name).copied()),
            to: described(new.get(name).copied()),
            takes_effect: true,
        }));
        changes.retain(|change| change.from != change.to);
        changes
    }
}

/// Returns the key of a [`Change`] of a declared semaphore.
pub(crate) fn declaration_key(name: &str) -> String {
    format!("semaphore.declare \"{}\"", name.escape_default())
}

/// A key whose value differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key. For a declared semaphore, `semaphore.declare` with its name.
    pub key: String,
    /// The value before.
    pub from: String,
    /// The value after.
    pub to: String,
    /// Whether a running server applies it; else it needs a restart.
    pub takes_effect: bool,
}

fn shown(value: String) -> String {
    if value.is_empty() { "not set".to_owned() } else { value }
}

fn described(declared: Option<&DeclareConfig>) -> String {
    match declared {
        None => "not declared".to_owned(),
        Some(DeclareConfig { name: _, capacity, slots, label }) => {
            format!("capacity {capacity}, slots {slots}, label \"{}\"", label.escape_default())
        }
    }
}
