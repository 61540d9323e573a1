//! Connections of clients that one node of a cluster relays to the node that leads.
//!
//! `outgoing` is the part of a node that does not lead: it accepts clients, opens a connection to the leader for each, and
//! has `splice` forward the bytes of both as they are, TLS included. `incoming` is the part of the leader: it finds out for
//! whom a connection is, and has it served like any other. `proof` is how each knows the other (`docs/protocol.md`,
//! "Relayed connections").
//!
//! Invariants (`docs/decisions/0028`):
//! - C5: nothing is forwarded after the term of a relay is over (`cluster::relays`).
//! - C7: a client's connection has one connection to the leader, and neither outlives the other.
//! - The leader sees the orderly end of a connection only if the client has ended its own. A relay that fails, or loses the
//!   client, resets the connection.

mod incoming;
mod outgoing;
mod proof;
mod splice;

pub(super) use incoming::{Incoming, serve_relays};
pub(super) use outgoing::{Outgoing, RelayAuthority, relay_port};
