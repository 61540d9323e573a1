//! The settings, from the environment and from a file: which server, which keys, which limits.
//!
//! A mistake in them must not make a program lock only on its own host while it believes that it locks on all hosts. So
//! the settings are absent, complete or wrong; if they are wrong, every call fails.

use std::ffi::OsString;
use std::sync::OnceLock;
use std::time::Duration;
use std::{fs, io};

use signalbox_model::kubernetes::{SERVICE_ADVICE, is_of_service};
use signalbox_model::sysv::Keys;
use signalbox_model::{Milliseconds, span};
use signalbox_protocol::LABEL_BYTES_MAX;
use thiserror::Error;

use crate::message;
use crate::servers::Servers;
use crate::token::{Token, TokenSource};

/// The prefix of the library's own environment variables. Those of the token have another one.
const PREFIX: &str = "SIGNALBOX_SYSV_";

/// The variable in which a program hands its process over to the next one, without the prefix.
const HANDOVER: &str = "PROCESS";

/// The variable with which `signalbox sysv run` makes the library end a program if the settings are wrong, without the
/// prefix.
const CHECK: &str = "CHECK";

/// How long a call tries to reach the server, unless the settings say otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How the library handles calls.
#[derive(Debug)]
pub enum Mode {
    /// There are no settings: every call goes to the kernel.
    Off,
    /// Calls for the keys of the settings go to the server.
    On(Settings),
    /// The settings are wrong: every call fails.
    Wrong(SettingsError),
}

/// Complete settings.
#[derive(Debug)]
pub struct Settings {
    pub servers: Servers,
    /// The keys that go to the server.
    pub keys: Keys,
    /// How long a call tries to reach the server.
    pub timeout: Duration,
    /// How long the server keeps adjustments after connections were lost; `None`: the server's default.
    pub ttl: Option<Milliseconds>,
    /// The label of the process in listings; `None`: its name and host.
    pub label: Option<String>,
    /// The token that the library shows to the server, if there is one.
    pub token: Option<Token>,
}

/// An error in the settings. Calls fail with another error number if the token is the cause.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// A setting is wrong or missing.
    #[error("{0}")]
    Setting(String),
    /// The token cannot be used.
    #[error("{0}")]
    Token(String),
}

/// Settings of which some may be missing.
#[derive(Debug, Default)]
struct Draft {
    servers: Option<Servers>,
    keys: Option<Keys>,
    timeout: Option<Duration>,
    ttl: Option<Milliseconds>,
    label: Option<String>,
}

/// The settings of this program, read at the first use, which is when the library is loaded.
pub fn mode() -> &'static Mode {
    static MODE: OnceLock<Mode> = OnceLock::new();
    MODE.get_or_init(|| {
        let mut ignored = Vec::new();
        // SAFETY: the call has no pointers.
        let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        let read = read(is_secure, std::env::vars_os(), |path| fs::read_to_string(path), &mut ignored);
        if !ignored.is_empty() {
            // It cannot be set already, because this runs once.
            let _ = IGNORED.set(format!("{}: {SERVICE_ADVICE}", ignored.join(", ")));
        }
        match read {
            Ok(None) => Mode::Off,
            Ok(Some(settings)) => Mode::On(settings),
            Err(error) => Mode::Wrong(error),
        }
    })
}

/// Returns whether the program was started only to check the settings, and should end if they are wrong.
pub fn is_check() -> bool {
    std::env::var_os(format!("{PREFIX}{CHECK}")).is_some()
}

/// A warning about variables that are ignored.
static IGNORED: OnceLock<String> = OnceLock::new();

/// Reports variables that are ignored, once.
pub fn report_ignored() {
    if let Some(warning) = IGNORED.get() {
        message::IGNORED.report(warning);
    }
}

/// Reads the settings; `None` if there are none. Appends to `ignored` the names of variables that Kubernetes has made.
///
/// A program that has more rights than its caller (`AT_SECURE`) has no settings: the caller must not choose its server.
fn read(
    is_secure: bool,
    variables: impl Iterator<Item = (OsString, OsString)>,
    open: impl Fn(&str) -> io::Result<String>,
    ignored: &mut Vec<String>,
) -> Result<Option<Settings>, SettingsError> {
    if is_secure {
        return Ok(None);
    }
    let (mut from_variables, mut from_file) = (Draft::default(), Draft::default());
    let mut token = TokenSource::default();
    let mut any = false;
    for (variable, value) in variables {
        token.note(&variable, &value);
        let Some(name) = variable.to_str().and_then(|variable| variable.strip_prefix(PREFIX)) else {
            continue;
        };
        if [HANDOVER, CHECK].contains(&name) {
            continue;
        }
        let variable = format!("{PREFIX}{name}");
        if is_of_service(&variable, &value.to_string_lossy()) {
            ignored.push(variable);
            continue;
        }
        any = true;
        let wrong = |error: String| SettingsError::Setting(format!("{PREFIX}{name}: {error}"));
        let value = value.to_str().ok_or_else(|| wrong("the value is not UTF-8".to_owned()))?;
        if name == "CONFIG" {
            let file_error =
                |error: io::Error| wrong(format!("the file \"{value}\" cannot be read: {error}"));
            from_file.read_file(value, &open(value).map_err(file_error)?)?;
        } else {
            from_variables.set(&name.to_lowercase(), value).map_err(wrong)?;
        }
    }
    if !any {
        return Ok(None);
    }
    let missing = |what: &str, how: &str| {
        SettingsError::Setting(format!("{what}; set {PREFIX}{how} in the file {PREFIX}CONFIG"))
    };
    let keys = from_variables.keys.or(from_file.keys).filter(|keys| !keys.is_empty());
    Ok(Some(Settings {
        servers: from_variables
            .servers
            .or(from_file.servers)
            .ok_or_else(|| missing("no server is set", "SERVER=host:port, or \"server\""))?,
        keys: keys.ok_or_else(|| missing("no keys are set", "KEYS=all or to a list, or \"keys\""))?,
        timeout: from_variables.timeout.or(from_file.timeout).unwrap_or(TIMEOUT),
        ttl: from_variables.ttl.or(from_file.ttl),
        label: from_variables.label.or(from_file.label),
        token: token.read(open).map_err(SettingsError::Token)?,
    }))
}

impl Draft {
    /// Reads lines of the form `name = value`. `keys` may occur several times.
    fn read_file(&mut self, path: &str, text: &str) -> Result<(), SettingsError> {
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let set = match line.split_once('=') {
                Some((name, value)) => self.set(name.trim(), unquoted(value.trim())),
                None => Err(format!("\"{line}\" is not of the form \"name = value\"")),
            };
            let wrong = |error| SettingsError::Setting(format!("{path}, line {}: {error}", number + 1));
            set.map_err(wrong)?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "server" => once(&mut self.servers, name, value.parse()?),
            "keys" => self.keys.get_or_insert_default().extend(value),
            "timeout" => once(&mut self.timeout, name, time(value)?.into()),
            "ttl" => once(&mut self.ttl, name, time(value)?),
            "label" if value.len() > LABEL_BYTES_MAX => {
                Err(format!("a label has at most {LABEL_BYTES_MAX} bytes"))
            }
            "label" => once(&mut self.label, name, value.to_owned()),
            _ => Err(format!(
                "there is no setting \"{name}\"; the settings are server, keys, timeout, ttl and label"
            )),
        }
    }
}

fn once<T>(setting: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match setting.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("\"{name}\" was set before")),
    }
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

fn time(text: &str) -> Result<Milliseconds, String> {
    let time = span(text).and_then(|time| u32::try_from(time.as_millis()).ok());
    time.filter(|ms| *ms > 0)
        .map(Milliseconds)
        .ok_or_else(|| format!("\"{text}\" is not a time; write 500ms, 10s or 2m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(variables: &[(&str, &str)], file: &str) -> Result<Option<Settings>, SettingsError> {
        read_ignoring(variables, file, &mut Vec::new())
    }

    fn read_ignoring(
        variables: &[(&str, &str)],
        file: &str,
        ignored: &mut Vec<String>,
    ) -> Result<Option<Settings>, SettingsError> {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let open = |path: &str| match path {
            "/etc/sysv" => Ok(file.to_owned()),
            "/etc/token" => Ok(" sbx_file\n".to_owned()),
            "/etc/blank" => Ok("\n".to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        read(false, variables, open, ignored)
    }

    #[track_caller]
    fn refused(variables: &[(&str, &str)], file: &str, message: &str) {
        let error = read_with(variables, file).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    const SERVER: (&str, &str) = ("SIGNALBOX_SYSV_SERVER", "box:11216");
    const KEYS: (&str, &str) = ("SIGNALBOX_SYSV_KEYS", "all");
    const CONFIG: (&str, &str) = ("SIGNALBOX_SYSV_CONFIG", "/etc/sysv");

    #[test]
    fn without_any_setting_the_library_does_nothing() {
        assert!(read_with(&[("PATH", "/bin"), ("SIGNALBOX_COUNTER", "x:1")], "").unwrap().is_none());
        assert!(read_with(&[("SIGNALBOX_SYSV_PROCESS", "1:2:3")], "").unwrap().is_none());
    }

    #[test]
    fn variables_that_kubernetes_makes_for_a_service_are_ignored() {
        let of_service =
            [("SIGNALBOX_SYSV_PORT", "tcp://10.0.0.1:80"), ("SIGNALBOX_SYSV_SERVICE_HOST", "10.0.0.1")];
        let mut ignored = Vec::new();
        assert!(read_ignoring(&of_service, "", &mut ignored).unwrap().is_none());
        assert_eq!(ignored, of_service.map(|(name, _)| name));
        let with_settings = [&of_service[..], &[SERVER, KEYS]].concat();
        assert!(read_with(&with_settings, "").unwrap().is_some());
    }

    #[test]
    fn a_program_with_more_rights_than_its_caller_has_no_settings() {
        let variables = || [SERVER, KEYS].map(|(name, value)| (name.into(), value.into())).into_iter();
        let open = |_: &str| Err(io::ErrorKind::NotFound.into());
        assert!(read(true, variables(), open, &mut Vec::new()).unwrap().is_none());
        assert!(read(false, variables(), open, &mut Vec::new()).unwrap().is_some());
    }

    #[test]
    fn server_and_keys_are_enough() {
        let settings = read_with(&[SERVER, KEYS], "").unwrap().unwrap();
        assert_eq!(settings.servers.to_string(), "box:11216");
        assert_eq!(settings.keys, "all".parse().unwrap());
        assert_eq!((settings.timeout, settings.ttl, settings.label), (TIMEOUT, None, None));
    }

    #[test]
    fn a_file_has_the_same_settings_and_variables_override_it() {
        let file =
            "# locks\nserver = \"[::1]:11216, box:1\"\nkeys = 1-5\n\n keys=7\ntimeout = 500ms\nttl = 2m\n";
        let settings = read_with(&[CONFIG, ("SIGNALBOX_SYSV_TIMEOUT", "3s")], file).unwrap().unwrap();
        assert_eq!(settings.servers.to_string(), "[::1]:11216,box:1");
        assert_eq!(settings.keys, "1-5,7".parse().unwrap());
        assert_eq!(settings.timeout, Duration::from_secs(3));
        assert_eq!(settings.ttl, Some(Milliseconds(120_000)));
        let overridden = read_with(&[CONFIG, ("SIGNALBOX_SYSV_KEYS", "9")], file).unwrap().unwrap();
        assert_eq!(overridden.keys, "9".parse().unwrap());
    }

    #[test]
    fn a_token_is_in_a_file_or_else_in_a_variable() {
        let token = |variables: &[(&str, &str)]| {
            let settings = read_with(&[&[SERVER, KEYS], variables].concat(), "").unwrap().unwrap();
            settings.token.map(|token| (String::from_utf8(token.last().to_vec()).unwrap(), token.source()))
        };
        let found = |text: &str, source: &str| Some((text.to_owned(), source.to_owned()));
        let (file, variable) = (("SIGNALBOX_TOKEN_FILE", "/etc/token"), ("SIGNALBOX_TOKEN", " sbx_1 "));
        assert_eq!(token(&[]), None);
        assert_eq!(token(&[("SIGNALBOX_TOKEN", " ")]), None);
        assert_eq!(token(&[variable]), found("sbx_1", "SIGNALBOX_TOKEN"));
        assert_eq!(token(&[("SIGNALBOX_TOKEN_FILE", "")]), None);
        assert_eq!(token(&[variable, ("SIGNALBOX_TOKEN_FILE", "")]), found("sbx_1", "SIGNALBOX_TOKEN"));
        assert_eq!(token(&[variable, file]), found("sbx_file", "SIGNALBOX_TOKEN_FILE (\"/etc/token\")"));
        // Only a program that uses the library needs one.
        assert!(read_with(&[("SIGNALBOX_TOKEN_FILE", "/missing")], "").unwrap().is_none());
        for (wrong, message) in [
            ("/missing", "SIGNALBOX_TOKEN_FILE: the file \"/missing\" cannot be read"),
            ("/etc/blank", "no token"),
        ] {
            refused(&[SERVER, KEYS, ("SIGNALBOX_TOKEN_FILE", wrong)], "", message);
        }
        refused(&[SERVER, KEYS, ("SIGNALBOX_TOKEN", &"x".repeat(65536))], "", "SIGNALBOX_TOKEN: a token has");
    }

    #[test]
    fn a_token_is_sent_in_clear_to_another_machine_only_if_that_is_set() {
        const TOKEN: (&str, &str) = ("SIGNALBOX_TOKEN", "sbx_1");
        let may_be_sent = |over_plain: Option<&str>, server: &str| {
            let over_plain = over_plain.map(|value| ("SIGNALBOX_TOKEN_OVER_PLAIN", value));
            let variables: Vec<_> = [SERVER, KEYS, TOKEN].into_iter().chain(over_plain).collect();
            let token = read_with(&variables, "").unwrap().unwrap().token.unwrap();
            token.may_be_sent_to(server.parse().unwrap())
        };
        for own in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(may_be_sent(None, own), "{own}");
        }
        for other in ["192.0.2.7", "10.0.0.1", "2001:db8::1", "::ffff:192.0.2.7"] {
            assert!(!may_be_sent(None, other) && !may_be_sent(Some("0"), other), "{other}");
            for yes in ["1", "true", "on", "YES", "t", "y"] {
                assert!(may_be_sent(Some(yes), other), "{other} {yes}");
            }
        }
        let wrong = ("SIGNALBOX_TOKEN_OVER_PLAIN", "maybe");
        refused(
            &[SERVER, KEYS, TOKEN, wrong],
            "",
            "SIGNALBOX_TOKEN_OVER_PLAIN: \"maybe\" is neither 1 nor 0",
        );
        // Only a program that uses the library needs it.
        assert!(read_with(&[wrong], "").unwrap().is_none());
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        refused(&[SERVER], "", "no keys are set");
        refused(&[SERVER, ("SIGNALBOX_SYSV_KEYS", "")], "", "no keys are set");
        refused(&[KEYS], "", "no server is set");
        refused(&[SERVER, KEYS, ("SIGNALBOX_SYSV_SERVR", "x")], "", "there is no setting \"servr\"");
        refused(&[("SIGNALBOX_SYSV_SERVER", "box")], "", "SIGNALBOX_SYSV_SERVER: \"box\" is not of the form");
        refused(&[("SIGNALBOX_SYSV_SERVER", "box:0")], "", "host:port");
        refused(
            &[("SIGNALBOX_SYSV_SERVER", "a:1,,b:1")],
            "",
            "SIGNALBOX_SYSV_SERVER: \"a:1,,b:1\" is not of",
        );
        refused(&[SERVER, ("SIGNALBOX_SYSV_KEYS", "al")], "", "SIGNALBOX_SYSV_KEYS: \"al\" is not \"all\"");
        refused(&[("SIGNALBOX_SYSV_TIMEOUT", "10d")], "", "\"10d\" is not a time");
        refused(&[("SIGNALBOX_SYSV_TTL", "0s")], "", "\"0s\" is not a time");
        refused(&[("SIGNALBOX_SYSV_TTL", "0.4ms")], "", "\"0.4ms\" is not a time");
        let label = "x".repeat(256);
        refused(&[("SIGNALBOX_SYSV_LABEL", &label)], "", "at most 255 bytes");
        let longest = read_with(&[SERVER, KEYS, ("SIGNALBOX_SYSV_LABEL", &label[1..])], "").unwrap().unwrap();
        assert_eq!(longest.label.as_deref(), Some(&label[1..]));
        refused(&[CONFIG], "server = a:1\nkey = 3", "/etc/sysv, line 2: there is no setting \"key\"");
        refused(&[CONFIG], "server a:1", "/etc/sysv, line 1: \"server a:1\" is not of the form");
        refused(&[CONFIG], "server = a:1\nserver = b:1", "line 2: \"server\" was set before");
        refused(&[("SIGNALBOX_SYSV_CONFIG", "/missing")], "", "the file \"/missing\" cannot be read");
    }
}
