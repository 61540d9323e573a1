//! What an administrator revokes.

use signalbox_protocol::{self as wire, AddressRange, Extended, GrantId, Milliseconds, RequestIds};

/// What [`Direct::revoke`](super::Direct::revoke) revokes.
///
/// ```no_run
/// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
/// use signalbox_client::Revocation;
/// use std::net::IpAddr;
/// use std::time::Duration;
///
/// let client = IpAddr::from([192, 0, 2, 7]);
/// let sessions = direct.revoke(Revocation::Client(client.into()), Duration::from_secs(10)).await?;
/// println!("{sessions} sessions of {client} end");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// One grant.
    Grant(GrantId),
    /// The session with this number, with all that it holds.
    Session(u64),
    /// The leased sessions that clients with these addresses have or had last.
    Client(AddressRange),
    /// The leased sessions that clients with this identity have or had last, such as `token:web` or `certificate:worker`.
    Identity(String),
}

impl Revocation {
    /// The request for this revocation.
    pub(super) fn request(&self, ids: RequestIds, grace: Milliseconds) -> Extended<'_> {
        let what = match self {
            Self::Grant(grant) => wire::Revocation::Grant(*grant),
            Self::Session(session) => wire::Revocation::Session(*session),
            Self::Client(clients) => return Extended::RevokeClient { clients: *clients, grace },
            Self::Identity(identity) => {
                return Extended::RevokeIdentity { identity: identity.as_bytes(), grace };
            }
        };
        Extended::Revoke { ids, what, grace }
    }
}
