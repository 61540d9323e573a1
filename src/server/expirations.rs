//! When the certificates and tokens in use expire: the server warns before that, and its metrics have the times.
//!
//! Only the certificates and tokens in use count, so the server does not warn about one that was replaced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustls::pki_types::CertificateDer;

use super::lock;
use super::tls::x509::validity;
use crate::config::ClusterConfig;
use signalbox_access::{Entry, Tokens};
use signalbox_model::UnixSeconds;
use signalbox_tls::certificates;

/// The server warns this many days before the expiry; 0 is the expiry itself. It does not warn before half of the
/// validity is over: for example, it warns about a certificate that is valid for one day only when it has expired.
const WARNING_DAYS: [u64; 4] = [0, 1, 7, 30];

const DAY_S: u64 = 86_400;

/// A certificate or token that expires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A certificate in a file of the configuration.
    Certificate {
        /// The key of the configuration.
        key: &'static str,
        file: PathBuf,
    },
    /// The token of this name.
    Token(String),
}

/// A certificate or token, with the beginning and the end of its validity in seconds of Unix time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Expiration {
    pub(super) subject: Subject,
    begin_s: u64,
    pub(super) end_s: u64,
}

impl Expiration {
    /// Returns the expirations of the certificates of a file. A certificate that cannot be parsed is left out.
    pub(super) fn of_certificates(key: &'static str, file: &Path, found: &[CertificateDer<'_>]) -> Vec<Self> {
        let of = |certificate: &CertificateDer<'_>| {
            let life = validity(certificate)?;
            let subject = Subject::Certificate { key, file: file.to_owned() };
            Some(Self { subject, begin_s: life.start, end_s: life.end })
        };
        found.iter().filter_map(of).collect()
    }

    /// Returns the expirations of the tokens that expire. If a token has two secrets, the later expiry counts.
    pub(super) fn of_tokens(tokens: &Tokens) -> Vec<Self> {
        let mut last: BTreeMap<&str, &Entry> = BTreeMap::new();
        let end = |entry: &Entry| entry.expires_at_s.unwrap_or(u64::MAX);
        for entry in tokens.iter() {
            let known = last.entry(&entry.name).or_insert(entry);
            if end(entry) > end(known) {
                *known = entry;
            }
        }
        let of = |entry: &Entry| {
            let subject = Subject::Token(entry.name.clone());
            Some(Self { subject, begin_s: entry.created_at_s, end_s: entry.expires_at_s? })
        };
        last.into_values().filter_map(of).collect()
    }

    /// Returns the element of [`WARNING_DAYS`] whose warning is due; `None`: no warning is due.
    fn warning_due(&self, now: UnixSeconds) -> Option<u64> {
        let left_s = self.end_s.saturating_sub(now.0);
        let life_s = self.end_s.saturating_sub(self.begin_s);
        WARNING_DAYS.into_iter().find(|days| left_s <= days * DAY_S && 2 * days * DAY_S <= life_s)
    }

    /// Returns the text of the warning that is due; `None`: no warning is due.
    pub(super) fn warning(&self, now: UnixSeconds) -> Option<String> {
        self.warning_due(now)?;
        let when = match self.end_s.checked_sub(now.0) {
            None | Some(0) => "has expired".to_owned(),
            Some(left_s) if left_s < 2 * DAY_S => format!("expires in {} h", left_s / 3600),
            Some(left_s) => format!("expires in {} days", left_s / DAY_S),
        };
        Some(match &self.subject {
            Subject::Certificate { key, file } => {
                let advice = if is_read_at_start(key) { "restart the server" } else { "send SIGHUP" };
                format!("{key} = {}: a certificate {when}; replace it and {advice}", file.display())
            }
            Subject::Token(name) => format!(
                "the token \"{name}\" {when}; give it another secret with \"signalbox token rotate {name}\", send SIGHUP, and \
                 give the secret to its clients"
            ),
        })
    }
}

/// Returns whether the file of a key is read only at the start.
fn is_read_at_start(key: &str) -> bool {
    key.starts_with("cluster.")
}

/// Returns the files with certificates of the section `[cluster]`; none if the cluster is disabled.
pub(super) fn cluster_files(config: &ClusterConfig) -> impl Iterator<Item = (&'static str, &Path)> {
    let files = [
        ("cluster.etcd_ca", &config.etcd_ca),
        ("cluster.etcd_cert", &config.etcd_cert),
        ("cluster.relay_ca", &config.relay_ca),
    ];
    let is_enabled = config.is_enabled();
    files.into_iter().filter_map(move |(key, file)| Some((key, file.as_deref().filter(|_| is_enabled)?)))
}

/// Returns the expirations of the certificates of the section `[cluster]`. Their files were read before; one that can
/// no longer be read is left out.
pub(super) fn of_cluster(config: &ClusterConfig) -> Vec<Expiration> {
    let of = |(key, file)| Expiration::of_certificates(key, file, &certificates(file).unwrap_or_default());
    cluster_files(config).flat_map(of).collect()
}

/// The expirations that were warned about, each with the element of [`WARNING_DAYS`] that its last warning was for.
#[derive(Debug, Default)]
pub(super) struct Warned(Mutex<BTreeMap<Expiration, u64>>);

impl Warned {
    /// Returns the warnings that have become due since the last call.
    pub(super) fn next(&self, expirations: Vec<Expiration>, now: UnixSeconds) -> Vec<String> {
        let mut warned = lock(&self.0);
        let due = expirations.into_iter().filter_map(|of| Some((of.warning_due(now)?, of)));
        let due: BTreeMap<_, _> = due.map(|(days, of)| (of, days)).collect();
        let is_new = |(of, days): &(&Expiration, &u64)| warned.get(*of) != Some(*days);
        let sentences = due.iter().filter(is_new).filter_map(|(of, _)| of.warning(now)).collect();
        *warned = due;
        sentences
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::token_of_test;
    use super::*;
    use signalbox_access::Rights;

    fn token(begin_s: u64, end_s: u64) -> Expiration {
        Expiration { subject: Subject::Token("web".to_owned()), begin_s, end_s }
    }

    #[test]
    fn there_is_one_warning_30_7_and_1_days_before_and_one_at_the_end() {
        let (warned, of, day) = (Warned::default(), token(0, 100 * DAY_S), |day: u64| day * DAY_S);
        let mut found = Vec::new();
        // Every half day.
        for now in (0..day(110)).step_by(DAY_S as usize / 2) {
            let warnings = warned.next(vec![of.clone()], UnixSeconds(now));
            found.extend(warnings.into_iter().map(|warning| (now, warning)));
        }
        let times: Vec<_> = found.iter().map(|(now, _)| now / DAY_S).collect();
        assert_eq!(times, [70, 93, 99, 100]);
        for ((_, warning), part) in
            found.iter().zip(["expires in 30 days", "in 7 days", "expires in 24 h", "has expired"])
        {
            assert!(warning.contains(part), "{warning}");
        }
    }

    #[test]
    fn what_lives_shortly_is_warned_about_in_the_second_half_of_its_life_at_most() {
        for (life_days, expected) in [(1, &[0][..]), (2, &[1, 0]), (14, &[7, 1, 0]), (59, &[7, 1, 0])] {
            let (warned, of) = (Warned::default(), token(0, life_days * DAY_S));
            let mut days = Vec::new();
            for now in (0..=life_days * DAY_S).step_by(3600) {
                if !warned.next(vec![of.clone()], UnixSeconds(now)).is_empty() {
                    days.push(life_days - now / DAY_S);
                }
            }
            assert_eq!(days, expected, "{life_days}");
        }
    }

    #[test]
    fn a_token_ends_with_the_later_one_of_its_secrets() {
        let [first, second] = [1, 2].map(token_of_test);
        // When the first secret ends, when the second one does, and when the token does.
        for (one, other, expected) in [
            (Some(50), Some(300), &[300][..]),
            (Some(300), Some(60), &[100]),
            (None, Some(60), &[100]),
            (Some(300), None, &[]),
        ] {
            let mut tokens = Tokens::default();
            tokens.add(Entry::of(&first, "web".to_owned(), Rights::ALL, 1, one)).unwrap();
            tokens.rotate("web", &second, 10, other, 100).unwrap();
            let ends: Vec<_> = Expiration::of_tokens(&tokens).into_iter().map(|of| of.end_s).collect();
            assert_eq!(ends, expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn the_certificates_of_a_node_are_in_three_files() {
        let file = |name: &str| Some(PathBuf::from(name));
        let mut config = ClusterConfig {
            etcd_ca: file("/a"),
            etcd_cert: file("/b"),
            relay_ca: file("/c"),
            ..ClusterConfig::default()
        };
        assert_eq!(cluster_files(&config).count(), 0, "it is no node");
        config.etcd = vec!["https://etcd:2379".to_owned()];
        let found: Vec<_> = cluster_files(&config).collect();
        let expected = [("cluster.etcd_ca", "/a"), ("cluster.etcd_cert", "/b"), ("cluster.relay_ca", "/c")];
        assert_eq!(found, expected.map(|(key, file)| (key, Path::new(file))));
    }

    #[test]
    fn a_replaced_certificate_is_warned_about_again() {
        let warned = Warned::default();
        let now = UnixSeconds(99 * DAY_S);
        let count = |of: &[Expiration]| warned.next(of.to_vec(), now).len();
        assert_eq!(count(&[token(0, 100 * DAY_S)]), 1);
        assert_eq!(count(&[token(0, 100 * DAY_S)]), 0);
        assert_eq!(count(&[token(0, 200 * DAY_S)]), 0);
        assert_eq!(count(&[token(0, 100 * DAY_S)]), 1);
    }
}
