//! The leased client: its acquires wait in a fair queue, and its permits survive short disconnects and report their
//! loss in time.
//!
//! An acquire passes through these files in this order:
//!
//! 1. `acquire` collects the options into the `AcquireSpec` of `claim`, and repeats the acquire if its session is lost.
//! 2. The `session_pool` of the `client` chooses a session, or opens one: a `session_handle` with a `driver` that runs in
//!    the `executor`.
//! 3. `acquire` sends a `command` to the driver and waits for the outcome.
//! 4. `driver` adds the `request` to the `request_table`, and sends it over the `link`. `reconnect` decides when and
//!    where to connect.
//! 5. The answer adds the grant to the `grant_table` with its `validity`; `acquire` makes it a `permit`.
//!
//! `clock`, `transport` and `builder` are what a client is configured with.

mod acquire;
mod builder;
mod claim;
mod client;
mod clock;
mod command;
mod driver;
mod executor;
mod grant_table;
mod guide;
mod link;
mod permit;
mod reconnect;
mod request;
mod request_table;
mod session_handle;
mod session_pool;
mod settings;
mod transport;
mod validity;

pub use acquire::{Acquire, AcquireAll, Admission, Counter, Flight, Semaphore};
pub use builder::Builder;
pub use claim::Claim;
pub use client::Client;
pub use clock::{BootClock, Clock, Moment, Sleep};
pub use permit::{HandedOver, Permit};
pub use transport::{Tcp, Transport};
