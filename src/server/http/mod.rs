//! The HTTP listener: health, metrics and the JSON API (`docs/http.md`).
//!
//! `listener` accepts connections, and `connections` bounds them, what they receive and how long they take. `routes`
//! lists the paths, and checks each request before its handler sees it (Host, Origin, content type, and with `access`
//! the rights of its client); `api`, `leases`, `metrics`, `health` and `page` answer. On a node that does not lead,
//! `forward` sends requests for leases, and requests that only read, to the leader, where `forwarded` serves them.
//! `request` has a checked request and its connection to the core; `query` reads parameters, `answer` composes answers
//! and errors, and `paging` makes pages of lists.
//!
//! An answer that waits for its client is in memory as a whole. The memory of all answers is bounded by the number of
//! connections and by the length of a page and of a scrape.
//!
//! Everything runs on one thread with a runtime of its own, so that no request delays the workers. A node of a cluster has
//! the thread from its start: a standby answers too, and says that it does not serve clients.

mod access;
mod answer;
mod api;
mod connections;
mod forward;
mod forwarded;
mod health;
mod leases;
mod listener;
mod metrics;
mod page;
mod paging;
mod query;
mod request;
mod routes;
mod shared;

pub(super) use listener::{Http, addresses};
