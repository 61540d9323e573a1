//! The leased client for programs without an async runtime: [`Client::wait`] blocks until a future is done.
//!
//! The client's own thread renews the leases, so a program that computes for minutes keeps its permits.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use signalbox_client::blocking::Client;
//!
//! let client = Client::connect(&"lock.example.org".parse()?)?;
//! let permit = client.wait(client.semaphore("deploys").capacity(3).acquire())?;
//! println!("{} more are available", client.wait(client.semaphore("deploys").available())?);
//! // The work goes here, and checks `permit.is_held()` from time to time.
//! client.wait(permit.release())?;
//! client.close();
//! # Ok(())
//! # }
//! ```

use std::ops::Deref;

use super::{Address, Builder, Error};

/// A [`Client`](super::Client) with a runtime of its own. [`Client::wait`] runs the futures that its methods return.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use signalbox_client::blocking::Client;
///
/// let client = Client::connect(&"lock.example.org".parse()?)?;
/// let permit = client.wait(client.counter("tenant/7").maximum(8).try_acquire())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client(super::Client);

impl Client {
    /// Connects to a server, like [`Client::connect`](super::Client::connect).
    ///
    #[doc = example!(
        "",
        "use signalbox_client::blocking::Client;",
        r#"let client = Client::connect(&"lock.example.org".parse()?)?;"#,
    )]
    ///
    /// # Panics
    /// In an async runtime; see [`Self::wait`].
    pub fn connect(address: &Address) -> Result<Self, Error> {
        Self::connect_with(super::Client::builder(address.clone()))
    }

    /// Connects with the configuration of a builder, like [`Builder::connect`].
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use signalbox_client::blocking::Client;
    ///
    /// let builder = signalbox_client::Client::builder("lock.example.org".parse()?).label("nightly report");
    /// let client = Client::connect_with(builder)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// In an async runtime; see [`Self::wait`].
    pub fn connect_with(builder: Builder) -> Result<Self, Error> {
        let client = Self(builder.build()?);
        client.wait(client.0.await_open())?;
        Ok(client)
    }

    /// Blocks until the future is done, and returns its output.
    ///
    #[doc = example!(
        "client: blocking::Client",
        r#"let permit = client.wait(client.counter("tenant/7").maximum(8).acquire())?;"#,
    )]
    ///
    /// # Panics
    /// In an async runtime, where blocking would delay its tasks. Await the future there.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.block_on(future)
    }

    /// Closes the sessions of the client, like [`Client::close`](super::Client::close).
    ///
    #[doc = example!("client: blocking::Client", "client.close();")]
    ///
    /// # Panics
    /// In an async runtime; see [`Self::wait`].
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
