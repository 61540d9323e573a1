//! A real HAProxy with a configuration from the documentation.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::daemon::{outcome, stderr};
use super::skipped;

const PROGRAM: &str = "/usr/sbin/haproxy";

/// A running HAProxy, which is killed when it is dropped.
pub struct HaProxy(Child);

impl HaProxy {
    /// Whether the program is installed; if not, says that the test is skipped. If `SIGNALBOX_REQUIRE_PEERS` is set, as in CI,
    /// that is a failure.
    pub fn is_installed() -> bool {
        if Path::new(PROGRAM).exists() {
            return true;
        }
        let is_required = std::env::var_os("SIGNALBOX_REQUIRE_PEERS").is_some();
        assert!(!is_required, "{PROGRAM} is missing: apt-get install haproxy");
        skipped(&format!("{PROGRAM} is not installed (apt-get install haproxy)"));
        false
    }

    /// Checks the configuration, which must give no warnings, and starts. `addresses` has pairs of a documented address,
    /// which must occur once, and its replacement.
    pub fn start(config: &str, addresses: &[(String, String)], directory: &Path) -> Self {
        let mut config = config.to_owned() + "\n";
        // In two steps, since new addresses may look like documented ones.
        for (number, (documented, _)) in addresses.iter().enumerate() {
            let pattern = format!(" {documented}");
            let is_whole = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_digit());
            let found = config.split(&pattern).skip(1).filter(|rest| is_whole(rest)).count();
            assert_eq!(found, 1, "{documented}: {config}");
            config = config.replace(&pattern, &format!(" @{number}@"));
        }
        for (number, (_, address)) in addresses.iter().enumerate() {
            config = config.replace(&format!("@{number}@"), address);
        }
        let path = directory.join("haproxy.cfg");
        fs::write(&path, &config).unwrap();
        let mut check = Command::new(PROGRAM);
        check.arg("-c").arg("-f").arg(&path);
        let checked = outcome(check);
        assert!(checked.status.success() && !stderr(&checked).contains("WARNING"), "{}", stderr(&checked));
        let mut start = Command::new(PROGRAM);
        start.arg("-db").arg("-f").arg(&path);
        start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(start.spawn().unwrap())
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
