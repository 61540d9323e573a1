//! The leased client: its acquires wait in a fair queue, and its permits survive short disconnects and report their
//! loss in time.
//!
//! An acquire passes through these files in this order:
//!
//! 1. `acquire` collects the options into the `AcquireSpec` of `claim`, and repeats the acquire if its session is lost.
//! 2. The `client` chooses a session, or opens one: a handle, and a `driver` that runs in the `executor`.
//! 3. `acquire` sends a command to the driver and waits for the outcome (`requests`).
//! 4. The `driver` adds the request to the table of `requests`, which gives it an id, and sends it over the `link`.
//!    `reconnect` decides when and where to connect.
//! 5. The answer adds the grant to the table of `grants`, with its validity; `acquire` makes it a `permit`.
//!
//! `builder` configures a client: its `settings`, `clock` and `transport`.

mod acquire;
mod builder;
mod claim;
mod client;
mod clock;
mod driver;
mod executor;
mod grants;
mod link;
mod permit;
mod reconnect;
mod requests;
mod settings;
mod transport;

pub use acquire::{Acquire, AcquireAll, Admission, Counter, Flight, Semaphore};
pub use builder::Builder;
pub use claim::Claim;
pub use client::Client;
pub use clock::{BootClock, Clock, Moment, Sleep};
pub use permit::{HandedOver, Permit};
pub use transport::{Tcp, Transport};
