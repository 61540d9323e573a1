//! The layers of `docs/design.md`, checked against the `use` lines and paths of the code.

use std::fs;
use std::path::{Path, PathBuf};

/// A module, the crates and modules that it may use, and its files that may use more.
struct Layer {
    module: &'static str,
    may_use: &'static [&'static str],
    exceptions: &'static [(&'static str, &'static str)],
}

/// All names that the check knows: `std`, the crates, and the modules.
const CRATES: [&str; 39] = [
    "ahash",
    "axum",
    "bytes",
    "clap",
    "clap_complete",
    "clap_mangen",
    "dashmap",
    "fastrand",
    "getrandom",
    "hdrhistogram",
    "hyper",
    "hyper_util",
    "listenfd",
    "mio",
    "nix",
    "prometheus_client",
    "prost",
    "ratatui",
    "redb",
    "ring",
    "rustls",
    "rustls_native_certs",
    "rustls_webpki",
    "sd_notify",
    "serde",
    "serde_json",
    "signalbox_memory",
    "siphasher",
    "socket2",
    "terminal_size",
    "thiserror",
    "tokio",
    "tokio_rustls",
    "tokio_util",
    "toml",
    "tonic",
    "tonic_prost",
    "tracing",
    "tracing_subscriber",
];
const MODULES: [&str; 10] =
    ["protocol", "core", "config", "server", "storage", "cluster", "client", "cli", "tls", "access"];

const LAYERS: [Layer; 9] = [
    Layer {
        module: "protocol",
        may_use: &["protocol", "bytes", "thiserror"],
        exceptions: &[("codec.rs", "tokio_util")],
    },
    Layer {
        module: "core",
        may_use: &["core", "bytes", "thiserror"],
        exceptions: &[
            ("registry.rs", "dashmap"),
            ("registry.rs", "ahash"),
            ("mod.rs", "ahash"),
            ("ledger/places.rs", "siphasher"),
            ("share.rs", "siphasher"),
        ],
    },
    Layer {
        module: "storage",
        may_use: &["storage", "core", "thiserror", "serde"],
        // The engine stays behind the interface, and JSON in the parts for users.
        exceptions: &[
            ("engine.rs", "redb"),
            ("migration.rs", "redb"),
            ("reader.rs", "redb"),
            // The layers between the engine and its file.
            ("backend.rs", "redb"),
            ("flush_mark.rs", "redb"),
            ("staged.rs", "redb"),
            ("export/mod.rs", "serde_json"),
        ],
    },
    Layer {
        module: "cluster",
        may_use: &["cluster", "core", "storage", "serde", "thiserror", "tracing"],
        exceptions: &[
            // The client of etcd.
            ("etcd/failure.rs", "tonic"),
            ("etcd/settings.rs", "tonic"),
            ("etcd/client.rs", "prost"),
            ("etcd/client.rs", "tonic"),
            ("etcd/link.rs", "prost"),
            ("etcd/link.rs", "tokio"),
            ("etcd/link.rs", "tonic"),
            ("etcd/link.rs", "tonic_prost"),
            ("etcd/generated.rs", "prost"),
            // Tasks await changes of the leader.
            ("reach.rs", "tokio"),
            ("relays.rs", "tokio"),
            ("relays.rs", "tokio_util"),
            // The clock that also runs while the machine sleeps.
            ("clock.rs", "nix"),
            // The settings, and the name of the machine.
            ("configured.rs", "config"),
            ("configured.rs", "nix"),
            // Random incarnations, and values that etcdctl shows as text.
            ("keys.rs", "getrandom"),
            ("keys.rs", "serde_json"),
        ],
    },
    Layer {
        module: "access",
        may_use: &["access", "ring", "thiserror"],
        exceptions: &[("text.rs", "toml"), ("text.rs", "serde")],
    },
    // The provider of rustls is a module called ring.
    Layer { module: "tls", may_use: &["rustls", "thiserror"], exceptions: &[("mod.rs", "ring")] },
    Layer { module: "config", may_use: &["config", "access", "serde", "toml", "thiserror"], exceptions: &[] },
    Layer {
        module: "client",
        may_use: &[
            "client",
            "protocol",
            "tokio",
            "bytes",
            "thiserror",
            "tracing",
            "socket2",
            "fastrand",
            "getrandom",
        ],
        exceptions: &[
            ("clock.rs", "nix"),
            ("client/tls.rs", "tls"),
            ("client/tls.rs", "rustls"),
            ("client/tls.rs", "rustls_native_certs"),
            ("client/tls.rs", "tokio_rustls"),
        ],
    },
    Layer {
        module: "cli",
        may_use: &[
            "cli",
            "client",
            "config",
            "bytes",
            "clap",
            "clap_complete",
            "clap_mangen",
            "nix",
            "serde",
            "serde_json",
            "tokio",
        ],
        exceptions: &[
            ("serve.rs", "server"),
            ("token.rs", "access"),
            ("token.rs", "getrandom"),
            ("data.rs", "storage"),
            ("data.rs", "cluster"),
            ("cluster/mod.rs", "cluster"),
            ("cluster/drain.rs", "cluster"),
            ("cluster/finalize.rs", "cluster"),
            ("cluster/forget.rs", "cluster"),
            ("cluster/release.rs", "cluster"),
            ("cluster/status.rs", "cluster"),
            // The widths of the terminal.
            ("output.rs", "terminal_size"),
            // The screen of `top`.
            ("top/view.rs", "ratatui"),
            ("top/screen.rs", "ratatui"),
            // The load of `bench`.
            ("dialect.rs", "protocol"),
            ("dialect.rs", "tokio_util"),
            ("generator.rs", "mio"),
            ("channel.rs", "mio"),
            ("socket.rs", "mio"),
            ("socket.rs", "rustls"),
            ("record.rs", "hdrhistogram"),
            ("report.rs", "hdrhistogram"),
            ("error.rs", "thiserror"),
            ("process.rs", "thiserror"),
        ],
    },
];

/// Clocks, I/O and randomness belong to the server: protocol and core receive such values as arguments. Addresses are
/// values; sockets are not.
const NEVER_SANS_IO: [&str; 11] = [
    "Instant",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "ToSocketAddrs",
    "UdpSocket",
    "std::fs",
    "std::thread",
    "tokio::",
    "tracing::",
    "RandomState::new",
];

fn files_of(module: &str) -> Vec<PathBuf> {
    fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("tests.rs")
            {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(module), &mut files);
    assert!(!files.is_empty(), "{module} has files");
    files
}

/// The lines of code, without comments and tests.
fn code_of(file: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap().to_owned();
    let lines = code.lines().enumerate().map(|(number, line)| (number + 1, line.to_owned()));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//")).collect()
}

/// Whether the line names `what` as the start of a path.
fn names(line: &str, what: &str) -> bool {
    line.match_indices(what).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let starts = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':');
        starts && line[at + what.len()..].starts_with("::")
    })
}

#[test]
fn no_layer_uses_a_forbidden_module() {
    let mut breaches = Vec::new();
    for layer in &LAYERS {
        for file in files_of(layer.module) {
            let allowed = |what: &str| {
                layer.may_use.contains(&what)
                    || layer.exceptions.iter().any(|(end, extra)| file.ends_with(end) && *extra == what)
            };
            for (number, line) in code_of(&file) {
                let breach =
                    CRATES.iter().find(|name| !allowed(name) && names(&line, name)).copied().or_else(|| {
                        let module = |name: &&&str| !allowed(name) && names(&line, &format!("crate::{name}"));
                        let by_use =
                            |name: &&&str| !allowed(name) && line.contains(&format!("crate::{name}::"));
                        MODULES.iter().find(|name| module(name) || by_use(name)).copied()
                    });
                if let Some(what) = breach {
                    breaches.push(format!("{}:{number} names {what}: {}", file.display(), line.trim()));
                }
            }
        }
    }
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
}

#[test]
fn protocol_and_core_read_no_clock_and_do_no_io() {
    for module in ["protocol", "core"] {
        for file in files_of(module) {
            // The messages of an aborting process are the one exception.
            for (number, line) in code_of(&file) {
                let breach = NEVER_SANS_IO.iter().find(|what| line.contains(**what));
                assert_eq!(breach, None, "{}:{number}: {}", file.display(), line.trim());
            }
        }
    }
}

#[test]
fn only_dispatch_uses_both_protocol_and_core() {
    for file in files_of("server") {
        let code = code_of(&file);
        let uses = |module: &str| code.iter().any(|(_, line)| line.contains(&format!("crate::{module}::")));
        let frames_only = ["statistics.rs", "metrics.rs"];
        let file_name = file.file_name().unwrap().to_str().unwrap();
        let folder = file.parent().unwrap();
        // Frames of relays name a namespace, and nothing else of the core.
        let is_dispatch = folder.ends_with("server/dispatch") || folder.ends_with("server/relay");
        if uses("protocol") && uses("core") && !frames_only.contains(&file_name) {
            assert!(is_dispatch, "{} uses protocol and core", file.display());
        }
    }
}

#[test]
fn every_dependency_is_listed_with_its_layers() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let section = manifest.split("[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let mut found: Vec<String> = section
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.replace('-', "_"))
        .collect();
    found.sort();
    assert_eq!(found, CRATES, "add a new crate to the table of layers");
    for line in section.lines().filter(|line| line.contains(" = ")) {
        assert!(line.contains(" # "), "each dependency needs a reason in its line: {line}");
    }
}
