//! Reads the server and the keys from the library's own settings: its environment variables and its file.
//!
//! The library itself reads and checks all of its settings. This program needs to know the server, to check that it
//! answers, and whether any keys are selected.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::exit::Failure;
use crate::cli::output::escaped;
use signalbox_client::Address;

/// The environment variable with the addresses of the server.
pub(super) const SERVER: &str = "SIGNALBOX_SYSV_SERVER";

/// The environment variable with the keys.
pub(super) const KEYS: &str = "SIGNALBOX_SYSV_KEYS";

/// The environment variable with the path of the file.
pub(super) const CONFIG: &str = "SIGNALBOX_SYSV_CONFIG";

/// The settings without the options of the command line.
#[derive(Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) servers: Option<Vec<Address>>,
    pub(super) has_keys: bool,
}

/// Reads the variables and the file: `file`, or the one that a variable names.
pub(super) fn read(file: Option<&Path>) -> Result<Settings, Failure> {
    let variable = |name| std::env::var_os(name).map(|value| escaped(value.as_encoded_bytes()));
    let path = file.map(Path::to_owned).or_else(|| std::env::var_os(CONFIG).map(PathBuf::from));
    let text = match &path {
        None => String::new(),
        Some(path) => fs::read_to_string(path).map_err(|error| {
            let path = escaped(path.as_os_str().as_encoded_bytes());
            Failure::usage(format!(
                "the file \"{path}\" of the library cannot be read: {error}; check --config"
            ))
        })?,
    };
    let from_file = lines(&text);
    let (server, source) = match (variable(SERVER), from_file.server) {
        (Some(server), _) => (Some(server), SERVER.to_owned()),
        (None, server) => {
            let path = path.as_deref().unwrap_or(Path::new("")).as_os_str();
            (server.map(str::to_owned), format!("\"server\" in {}", escaped(path.as_encoded_bytes())))
        }
    };
    let has_keys = variable(KEYS).map_or(from_file.has_keys, |keys| !keys.is_empty());
    let servers = server.map(|text| addresses(&text, &source)).transpose()?;
    Ok(Settings { servers, has_keys })
}

struct Lines<'a> {
    server: Option<&'a str>,
    has_keys: bool,
}

/// Reads the lines `server = HOST:PORT` and `keys = …` of a file.
fn lines(text: &str) -> Lines<'_> {
    let pairs = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = pairs.filter_map(|line| line.split_once('='));
    let pairs = pairs.map(|(name, value)| (name.trim(), unquoted(value.trim())));
    let mut found = Lines { server: None, has_keys: false };
    for (name, value) in pairs {
        match name {
            "server" => found.server = Some(value),
            "keys" => found.has_keys |= !value.is_empty(),
            _ => {}
        }
    }
    found
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

/// Parses the addresses of a server, separated by commas and perhaps spaces. Fails if one has no port. `source` is where
/// they come from, for a message.
fn addresses(text: &str, source: &str) -> Result<Vec<Address>, Failure> {
    let addresses: Result<Vec<Address>, _> = text.split(',').map(|item| item.trim().parse()).collect();
    match addresses {
        Ok(addresses) if addresses.iter().all(|address| address.port().is_some()) => Ok(addresses),
        _ => Err(Failure::usage(format!(
            "{source}: \"{text}\" is not of the form HOST:PORT, or HOST:PORT,HOST:PORT for the nodes of a cluster; correct \
                 it, or give --server"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_server_and_keys_between_other_settings() {
        let found = lines("# server = no\n\nttl = 2m\n server = \"[::1]:11216\"\nkeys = 1-5\n");
        assert_eq!((found.server, found.has_keys), (Some("[::1]:11216"), true));
        let found = lines("keys =\nlabel = keys");
        assert_eq!((found.server, found.has_keys), (None, false));
    }

    #[test]
    fn every_address_has_a_port() {
        for right in ["box:11216", "[::1]:7", "a:1,b:2", "a:1, b:2"] {
            let addresses = addresses(right, SERVER).ok().unwrap();
            let shown: Vec<_> = addresses.iter().map(Address::to_string).collect();
            assert_eq!(shown.join(","), right.replace(' ', ""));
        }
        for wrong in ["", "box", "box:0", "a:1,,b:1", "a:1,", "a:1,b", "a:1 b:1"] {
            assert!(addresses(wrong, SERVER).is_err(), "{wrong}");
        }
    }
}
