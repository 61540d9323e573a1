//! An etcd of one member, for clusters: the program of Debian's package etcd-server.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::START_MAX;
use crate::server::{exchange, loopback, within};

/// A running etcd. Dropping it kills the process.
#[derive(Debug)]
pub struct Etcd {
    pub url: String,
    child: Child,
    _directory: TempDir,
}

impl Etcd {
    pub fn start() -> Result<Self, String> {
        // In memory if possible: nothing has to survive.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let directory = directory.map_err(|error| error.to_string())?;
        let [client, peer] = crate::ports::free_ports().map(|port| SocketAddr::from((loopback(), port)));
        let [url, peer] = [client, peer].map(|address| format!("http://{address}"));
        let mut command = Command::new("etcd");
        command.args(["--name", "member", "--initial-cluster", &format!("member={peer}")]);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg("--data-dir").arg(directory.path());
        // etcd requires this variable on machines other than x86-64.
        command.env("ETCD_UNSUPPORTED_ARCH", if cfg!(target_arch = "aarch64") { "arm64" } else { "" });
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn();
        let child =
            started.map_err(|error| format!("cannot start etcd (apt-get install etcd-server): {error}"))?;
        let etcd = Self { url, child, _directory: directory };
        let is_healthy = || {
            let answer = exchange(client, "GET", "/health", "", "");
            Ok(answer.is_ok_and(|(status, _)| status == 200))
        };
        within(START_MAX, "etcd is not ready", is_healthy)?;
        Ok(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
