//! A file of declarations (`signalbox apply`): a prefix, and tables `[[semaphore.declare]]` as in a configuration in
//! TOML.

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use super::error::{ConfigError, Mistake};
use super::root::{Config, DeclareConfig};
use super::schema::is_within_declaration;
use super::setting::{Language, Read, Value};
use super::{apply, toml};
use crate::declarations::outside;
use signalbox_model::is_unsafe;

/// A file of declarations whose names begin with a prefix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeclarationsFile {
    /// The prefix of all names. If it is empty, the file is about all declared semaphores.
    pub(crate) prefix: String,
    /// In the order of the file; names are unique.
    pub(crate) declare: Vec<DeclareConfig>,
}

impl DeclarationsFile {
    /// Reads a file; `-` is the standard input.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigError> {
        let mut bytes = Vec::new();
        let read = match path == Path::new("-") {
            true => io::stdin().read_to_end(&mut bytes),
            false => fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)),
        };
        read.map_err(|error| ConfigError::unreadable(path, &error))?;
        let text = toml::utf8(&bytes).map_err(|mistake| ConfigError::of(mistake.in_file(path)))?;
        Self::parse(text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let Read { settings, mut mistakes } = toml::read(text);
        let is_of_declarations = |key: &str| key == "semaphore.declare" || is_within_declaration(key);
        let (declarations, others): (Vec<_>, Vec<_>) =
            settings.into_iter().partition(|setting| is_of_declarations(&setting.key));
        let mut prefix = None;
        for setting in others {
            match (setting.key.as_str(), setting.value) {
                ("prefix", Value::Text(text)) => prefix = Some(text),
                ("prefix", _) => mistakes.push(Mistake::new(setting.line, "prefix must be a text in quotes")),
                (key, _) => {
                    let advice = if mistakes.is_empty() { format!("; {FORMAT}") } else { String::new() };
                    let sentence = format!("{key} is not a key of declarations{advice}");
                    mistakes.push(Mistake::new(setting.line, sentence));
                }
            }
        }
        if prefix.is_none() && mistakes.is_empty() {
            let sentence = format!("prefix is not set; {FORMAT}");
            mistakes.push(Mistake::new(1, sentence));
        }
        let prefix = prefix.unwrap_or_default();
        for setting in declarations.iter().filter(|setting| setting.key == "semaphore.declare.name") {
            if let Value::Text(name) = &setting.value
                && let Some(sentence) = outside(name.as_bytes(), prefix.as_bytes())
            {
                mistakes.push(Mistake::new(setting.line, sentence));
            }
        }
        let mut config = Config::default();
        mistakes.extend(apply::apply(&declarations, path, Language::Toml, &mut config).mistakes);
        mistakes.sort_by_key(|mistake| mistake.line);
        match mistakes.is_empty() {
            true => Ok(Self { prefix, declare: config.semaphore.declare }),
            false => Err(ConfigError(mistakes.into_iter().map(|mistake| mistake.in_file(path)).collect())),
        }
    }
}

/// The format of a file of declarations, for messages.
const FORMAT: &str = "such a file begins with prefix = \"TEXT\", which all names begin with, and has tables [[semaphore.declare]]";

/// Writes the file; reading it gives an equal value.
impl fmt::Display for DeclarationsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "prefix = {}", Quoted(&self.prefix))?;
        for DeclareConfig { name, capacity, slots, label } in &self.declare {
            writeln!(f, "\n[[semaphore.declare]]\nname = {}\ncapacity = {capacity}", Quoted(name))?;
            if *slots {
                writeln!(f, "slots = true")?;
            }
            if !label.is_empty() {
                writeln!(f, "label = {}", Quoted(label))?;
            }
        }
        Ok(())
    }
}

/// A text, displayed as a TOML string on one line, with [unsafe](is_unsafe) characters escaped.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                unsafe_one if is_unsafe(unsafe_one) => write!(f, "\\U{:08X}", u32::from(unsafe_one))?,
                other => write!(f, "{other}")?,
            }
        }
        f.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DeclarationsFile, ConfigError> {
        DeclarationsFile::parse(text, Path::new("limits.toml"))
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let declare = |name: &str, capacity, slots, label: &str| DeclareConfig {
            name: name.to_owned(),
            capacity,
            slots,
            label: label.to_owned(),
        };
        let file = DeclarationsFile {
            prefix: "ci/\u{0}".to_owned(),
            declare: vec![
                declare("ci/\u{0}gpu", 8, true, "team \"render\"\n\t\\ größe\u{7f}\u{202e}\u{e0041}"),
                declare("ci/\u{0}", 0, false, ""),
            ],
        };
        assert_eq!(parse(&file.to_string()).unwrap(), file);
        assert!(!file.to_string().contains('\u{202e}'));
        assert_eq!(
            parse("prefix = ''").unwrap(),
            DeclarationsFile { prefix: String::new(), declare: Vec::new() }
        );
    }

    #[test]
    fn each_mistake_is_reported_with_its_line() {
        for (text, lines) in [
            ("", &[1][..]),
            ("[[semaphore.declare]]\nname = 'a'\ncapacity = 1", &[1]),
            ("prefix = 7", &[1]),
            ("prefix = 'a'\nprefix = 'b'", &[2]),
            ("prefix = 'a'\ncounter.port = 1\ndeclare = []", &[2, 3]),
            ("prefix = 'a'\n[[semaphore.declare]]\nname = 'b'\ncapacity = 1", &[3]),
            ("prefix = 'a'\n[[semaphore.declare]]\nname = 'a'\ncapacity = -1\nlable = ''", &[4, 5]),
            ("prefix = 'a'\n[[semaphore.declare]]\nname = 'a'", &[2]),
            (
                "prefix = 'a'\n[[semaphore.declare]]\nname = 'a'\ncapacity = 1\n[[semaphore.declare]]\nname = 'a'\ncapacity = 1",
                &[6],
            ),
            ("prefix = 'a'\n[[semaphore.declare]]\nname = 'a'\ncapacity = 70000\nslots = true", &[4]),
            ("prefix = 'a'\n[semaphore\nx = 1", &[2]),
        ] {
            let error = parse(text).expect_err(text);
            let line = |mistake: &String| mistake.split(':').nth(1).unwrap().parse::<usize>().unwrap();
            assert_eq!(error.mistakes().iter().map(line).collect::<Vec<_>>(), lines, "{text}\n{error:?}");
        }
    }
}
