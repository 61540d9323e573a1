//! The leased client for programs without an executor: what is awaited elsewhere is waited for here.
//!
//! Leases are renewed by the client's own thread, so a program that computes for minutes keeps what it holds.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use signalbox::client::blocking::Client;
//!
//! let client = Client::connect(&"lock.example.org".parse()?)?;
//! let permit = client.wait(client.semaphore("deploys").capacity(3).acquire())?;
//! // The work goes here, looking at `permit.is_held()` now and then.
//! client.wait(permit.release())?;
//! client.close();
//! # Ok(())
//! # }
//! ```

use std::ops::Deref;

use super::{Address, Builder, Error};

/// A [`Client`](super::Client) that can be waited for. Whatever that one gives to await, [`Client::wait`] waits for.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox::client::blocking::Client;
///
/// let client = Client::connect(&"lock.example.org".parse()?)?;
/// let permit = client.wait(client.counter("tenant/7").maximum(8).try_acquire())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client(super::Client);

impl Client {
    /// As [`Client::connect`](super::Client::connect).
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox::client::blocking::Client;
    ///
    /// let client = Client::connect(&"lock.example.org".parse()?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(address: &Address) -> Result<Self, Error> {
        Self::connect_with(super::Client::builder(address.clone()))
    }

    /// With settings of one's own.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox::client::{self, blocking::Client};
    ///
    /// let builder = client::Client::builder("lock.example.org".parse()?).label("nightly report");
    /// let client = Client::connect_with(builder)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Within a runtime, as [`Self::wait`] does.
    pub fn connect_with(builder: Builder) -> Result<Self, Error> {
        let client = Self(builder.build()?);
        client.wait(client.0.ready())?;
        Ok(client)
    }

    /// Waits until the future is done, and gives what came of it.
    ///
    /// ```no_run
    /// # fn example(client: signalbox::client::blocking::Client) -> Result<(), signalbox::client::Error> {
    /// let permit = client.wait(client.counter("tenant/7").maximum(8).acquire())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Within a runtime, where waiting would keep its tasks from running: await there instead.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.block_on(future)
    }

    /// As [`Client::close`](super::Client::close).
    ///
    /// ```no_run
    /// # fn example(client: signalbox::client::blocking::Client) {
    /// client.close();
    /// # }
    /// ```
    pub fn close(self) {
        self.wait(self.0.clone().close());
    }
}

impl Deref for Client {
    type Target = super::Client;

    fn deref(&self) -> &super::Client {
        &self.0
    }
}
