//! Detects in which of the two languages a configuration file is written.

use std::path::Path;

use toml::de::DeValue;

/// A language in which a configuration can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// TOML, signalbox's own: strict about unknown keys.
    Toml,
    /// The lines of yrmcds.conf, for machines that ran yrmcdsd: unknown keys are a warning.
    Yrmcds,
}

impl Language {
    /// The language of a file; `None` if it is not recognised.
    ///
    /// The file extensions `.toml` and `.conf` decide. Without one of them, the first line that is valid in only one
    /// language decides. A line that starts with `[` is TOML, and so is a value that is an array, an inline table or a string
    /// in single quotes, or that has a comment after it. A bare word or a list without brackets is yrmcds.conf. A file
    /// without such a line could be either, and they differ in what they do not set: the languages have other defaults.
    pub fn of(path: &Path, text: &str) -> Option<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("toml") => Some(Self::Toml),
            Some("conf") => Some(Self::Yrmcds),
            _ => text.lines().find_map(|line| Self::of_line(line.trim())),
        }
    }

    fn of_line(line: &str) -> Option<Self> {
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        if line.starts_with('[') {
            return Some(Self::Toml);
        }
        let value = line.split_once('=')?.1.trim();
        if value.starts_with(['[', '{', '\'']) || value.starts_with("\"\"\"") {
            return Some(Self::Toml);
        }
        if let Some(quoted) = value.strip_prefix('"') {
            let after = quoted.split_once('"')?.1.trim_start();
            return after.starts_with('#').then_some(Self::Toml);
        }
        let is_the_same_in_both = matches!(value, "true" | "false") || value.parse::<u64>().is_ok();
        if is_the_same_in_both {
            return None;
        }
        let without_comment = value.split('#').next().unwrap_or(value).trim_end();
        let is_toml = DeValue::parse(without_comment).is_ok();
        Some(if is_toml { Self::Toml } else { Self::Yrmcds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn language_of(path: &str, text: &str) -> Option<Language> {
        Language::of(Path::new(path), text)
    }

    #[test]
    fn the_ending_says_it() {
        assert_eq!(language_of("/etc/signalbox.toml", "user = yrmcds"), Some(Language::Toml));
        assert_eq!(language_of("/etc/yrmcds.conf", "[counter]"), Some(Language::Yrmcds));
    }

    #[test]
    fn without_an_ending_the_first_telling_line_says_it() {
        let same = "# [no]\n\ncounter.enable = true\ncounter.port = 11215\nlog.file = \"/a\"\n";
        for line in [
            "[counter]",
            "bind_ip = [",
            "a = { b = 1 }",
            "a = 'b'",
            "a = 1 # one",
            "a = 1_000",
            "a = \"b\" # c",
        ] {
            let text = format!("{same}{line}\nuser = x");
            assert_eq!(language_of("config", &text), Some(Language::Toml), "{line}");
        }
        for line in
            ["user = yrmcds", "bind_ip = 127.0.0.1", "bind_ip = ::1 ::2", "memory_limit = 10M", "user ="]
        {
            let text = format!("{same}{line}\n[x]");
            assert_eq!(language_of("config", &text), Some(Language::Yrmcds), "{line}");
        }
        for text in [same, "", "no setting"] {
            assert_eq!(language_of("config", text), None, "{text}");
        }
    }
}
