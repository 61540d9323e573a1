//! Turns the settings of a file into a [`Config`]. It finds each key in the table of keys, and handles keys that are
//! unknown, set twice or without effect.
//!
//! A mistake in yrmcds.conf that yrmcds accepts (an unknown key, a key that is set twice) is a warning, so that the
//! server starts on a machine that ran yrmcdsd. In TOML it is an error.
//!
//! A declaration of a semaphore is a table of several keys, which are applied one by one like all others. It is checked
//! as a whole at its end.

use std::collections::HashMap;
use std::path::Path;

use super::error::{Mistake, Notice, Severity};
use super::root::Config;
use super::schema::{Key, is_within_declaration};
use super::setting::{Language, Setting, Value};
use signalbox_core::SLOTS_MAX;

/// The keys of yrmcds' memcache and replication parts, up to yrmcds 1.1.13.
const UNUSED_KEYS: &[&str] = &[
    "buckets",
    "gc_interval",
    "heap_data_limit",
    "initial_repl_sleep_delay_usec",
    "leader_election_method",
    "lock_memory",
    "master_file",
    "master_host",
    "max_connections",
    "max_data_size",
    "memory_limit",
    "port",
    "repl_buffer_size",
    "repl_port",
    "secure_erase",
    "slave_timeout",
    "temp_dir",
];

/// The longest part of a value that a message repeats, in characters.
const SHOWN_CHARS_MAX: usize = 60;

/// Applies `settings`, read from the file at `path`, to `config`.
pub(super) fn apply<'a>(
    settings: &'a [Setting<'a>],
    path: &'a Path,
    language: Language,
    config: &'a mut Config,
) -> Applied<'a> {
    let mut applied = Applied {
        path,
        language,
        config,
        notices: Vec::new(),
        mistakes: Vec::new(),
        refused: Vec::new(),
        set: HashMap::new(),
        declaration: None,
        declared: HashMap::new(),
    };
    let mut unused = Vec::new();
    for setting in settings {
        if !is_within_declaration(&setting.key) {
            applied.end_declaration();
        }
        let outcome = if let Some(key) = Key::find(&setting.key) {
            applied.set(key, setting)
        } else if language == Language::Yrmcds && UNUSED_KEYS.contains(&setting.key.as_str()) {
            unused.push(setting.key.as_str());
            Ok(())
        } else {
            applied.unknown(setting)
        };
        applied.mistakes.extend(outcome.err());
    }
    applied.end_declaration();
    // Mistakes in a declaration are found at its end.
    applied.mistakes.sort_by_key(|mistake| mistake.line);
    if !unused.is_empty() {
        let sentence = format!(
            "{}: not used, as they belong to yrmcds' memcache and replication parts: {}",
            path.display(),
            unused.join(", ")
        );
        applied.notices.push(Notice { severity: Severity::Info, sentence });
    }
    applied
}

/// The result of applying the settings of a file.
pub(super) struct Applied<'a> {
    path: &'a Path,
    language: Language,
    config: &'a mut Config,
    pub(super) notices: Vec<Notice>,
    /// In the order of their lines.
    pub(super) mistakes: Vec<Mistake>,
    /// The keys whose values were refused, or that an unknown key was probably meant to be.
    pub(super) refused: Vec<&'static str>,
    /// The last setting of each key, by the key's name in the table. For keys within declarations, only those of
    /// `declaration`.
    pub(super) set: HashMap<&'static str, &'a Setting<'a>>,
    /// The setting that began the current declaration.
    declaration: Option<&'a Setting<'a>>,
    /// The names of the earlier declarations, with their lines.
    declared: HashMap<String, usize>,
}

impl<'a> Applied<'a> {
    fn set(&mut self, key: &'static Key, setting: &'a Setting<'a>) -> Result<(), Mistake> {
        if self.declaration.is_none() && is_within_declaration(key.name()) {
            let allowed = "in a table [[semaphore.declare]], which only a file in TOML can have";
            return Err(refused(setting, allowed.to_owned()));
        }
        // Computed only if needed: reading a key of declarations copies its values in all declarations.
        let before = self.set.contains_key(key.name()).then(|| key.value_in(self.config));
        if let Err(allowed) = key.set(&setting.value, self.config) {
            self.refused.push(key.name());
            self.set.insert(key.name(), setting);
            return Err(refused(setting, allowed));
        }
        if setting.value == Value::Entry {
            self.declaration = Some(setting);
            return Ok(());
        }
        if let Some(earlier) = self.set.insert(key.name(), setting) {
            let is_same_value = before == Some(key.value_in(self.config));
            self.set_twice(setting, earlier, is_same_value)?;
        } else if let Some(reason) = key.no_effect_because() {
            self.notice(Severity::Info, setting.line, format!("{} has no effect: {reason}", setting.key));
        }
        Ok(())
    }

    /// Checks the declaration that ends here: required keys are set, slots and capacity fit together, and its name is
    /// unique.
    fn end_declaration(&mut self) {
        let Some(table) = self.declaration.take() else { return };
        let declared = self.config.semaphore.declare.last().expect("the table that began it put it there");
        let set: HashMap<_, _> = self.set.extract_if(|key, _| is_within_declaration(key)).collect();
        for key in Key::all().iter().filter(|key| key.is_required() && !set.contains_key(key.name())) {
            let (name, table_name, allowed) = (key.name(), &table.key, key.allowed());
            let sentence = format!("{name} is not set in this [[{table_name}]]; it must be {allowed}");
            self.mistakes.push(Mistake::new(table.line, sentence));
        }
        if declared.slots && declared.capacity > SLOTS_MAX {
            let allowed =
                format!("a whole number from 0 to {SLOTS_MAX} where semaphore.declare.slots is true");
            self.mistakes.push(refused(set["semaphore.declare.capacity"], allowed));
        }
        // A name that was refused is empty.
        let Some(name) = set.get("semaphore.declare.name").filter(|_| !declared.name.is_empty()) else {
            return;
        };
        if let Some(earlier_line) = self.declared.insert(declared.name.clone(), name.line) {
            let (key, value) = (&name.key, excerpt(name.written));
            let sentence =
                format!("{key} = {value}: line {earlier_line} declares this name already; keep one of them");
            self.mistakes.push(Mistake::new(name.line, sentence));
        }
    }

    fn set_twice(
        &mut self,
        setting: &Setting<'_>,
        earlier: &Setting<'_>,
        is_same_value: bool,
    ) -> Result<(), Mistake> {
        let is_same_spelling = setting.key == earlier.key;
        if is_same_spelling && self.language == Language::Yrmcds {
            let sentence = format!("{} is set a second time; line {} is ignored", setting.key, earlier.line);
            self.notice(Severity::Warning, setting.line, sentence);
            return Ok(());
        }
        if !is_same_spelling && is_same_value {
            return Ok(());
        }
        let (key, value) = (&setting.key, excerpt(setting.written));
        let sentence = format!(
            "{key} = {value}: line {} sets {} already, which is the same key; keep one of them",
            earlier.line, earlier.key
        );
        Err(Mistake::new(setting.line, sentence))
    }

    fn unknown(&mut self, setting: &Setting<'_>) -> Result<(), Mistake> {
        if self.language == Language::Toml
            && let Some(example) = first_key_within(&setting.key)
        {
            if setting.value == Value::EmptyTable {
                return Ok(());
            }
            return Err(refused(setting, format!("a table of keys, such as {example}")));
        }
        let close = closest_key(&setting.key);
        let advice = close.map(|key| format!("; did you mean {key}?"));
        let sentence = format!("{} is not a key of signalbox{}", setting.key, advice.unwrap_or_default());
        if self.language == Language::Toml {
            // The value that was meant for this key is not known, so its contradictions with other keys are not reported.
            self.refused.extend(close);
            return Err(Mistake::new(setting.line, sentence));
        }
        self.notice(Severity::Warning, setting.line, format!("ignored: {sentence}"));
        Ok(())
    }

    fn notice(&mut self, severity: Severity, line: usize, text: String) {
        let sentence = format!("{}:{line}: {text}", self.path.display());
        self.notices.push(Notice { severity, sentence });
    }
}

fn refused(setting: &Setting<'_>, mut allowed: String) -> Mistake {
    match &setting.value {
        Value::Word(word) if word.contains('#') => allowed.push_str("; a comment needs a line of its own"),
        Value::Text(_) if allowed.starts_with("a whole number") || allowed.starts_with("true") => {
            allowed.push_str(", without quotes");
        }
        _ => {}
    }
    let sentence = format!("{} = {}: must be {allowed}", setting.key, excerpt(setting.written));
    Mistake::new(setting.line, sentence)
}

/// Returns the start of a value, short enough for a sentence and on one line.
pub(super) fn excerpt(written: &str) -> String {
    let line = written.lines().next().unwrap_or_default();
    let mut shown: String = line.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < written.len() {
        shown.push('…');
    }
    if shown.is_empty() { "(nothing)".to_owned() } else { shown }
}

/// Returns a key of the table `name`, such as `counter`; `None` if there is no such table.
fn first_key_within(name: &str) -> Option<&'static str> {
    let within = |key: &&Key| key.name().strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    Key::all().iter().find(within).map(Key::name)
}

/// Returns the key that was probably meant: a few letters away, or the same word in one of the tables.
pub(super) fn closest_key(name: &str) -> Option<&'static str> {
    let by_word = || {
        let has_word = |key: &&Key| key.name().rsplit('.').next() == Some(name);
        Key::all().iter().find(has_word).map(Key::name)
    };
    closest(name, Key::all().iter().map(Key::name)).or_else(by_word)
}

/// Returns the word that is closest to `name`, if it is only a few letters away.
pub(crate) fn closest<'a>(name: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (letters, letters_max) = (name.chars().count(), 1 + name.len() / 8);
    words
        // Saves comparing a very long name.
        .filter(|word| letters <= word.len() + letters_max)
        .map(|word| (strsim::levenshtein(name, word), word))
        .min_by_key(|(letters, _)| *letters)
        .filter(|(letters, _)| *letters <= letters_max)
        .map(|(_, word)| word)
}
