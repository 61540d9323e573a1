//! The HTTP listener: health, metrics and the JSON API (`docs/http.md`).
//!
//! `listener` accepts connections, `connections` bounds them and what they receive, `stream` has their time limits, `guard` checks each request before its
//! handler sees it (Host, Origin, content type, rights), `routes` lists what there is, and `api`, `health` and `page` answer.
//! On a node that does not lead, `forward` sends requests for leases to the leader, where `forwarded` serves them.
//! `answer` composes answers and errors, `query` reads parameters, `paging` takes lists in steps, and `requester` makes
//! changes.
//!
//! An answer that waits for its client is in memory as a whole. All of them are bounded by the number of connections and by the
//! length of a page and of a scrape.
//!
//! Everything runs on one thread with a runtime of its own, so that no request delays the workers. A node of a cluster has
//! the thread from its start: a standby answers too, and says that it does not serve clients.

mod access;
mod answer;
mod api;
mod connections;
mod forward;
mod forwarded;
mod guard;
mod health;
mod leases;
mod listener;
mod metrics;
mod openapi;
mod page;
mod paging;
mod peer;
mod query;
mod requester;
mod routes;
mod shared;
mod stream;

pub(super) use listener::{Http, addresses};
