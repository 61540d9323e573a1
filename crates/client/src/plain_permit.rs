//! A permit of a plain connection, which is released when it is dropped.

use super::{Disconnect, Error, PlainClient, Resources};

/// Resources that were acquired over a plain connection ([`PlainClient::hold`]). Dropping the permit releases them
/// without waiting for the answer. The server releases them too when the connection ends: see [`Self::lost`].
///
/// ```no_run
/// # async fn example(client: signalbox_client::PlainClient) -> Result<(), signalbox_client::Error> {
/// use signalbox_client::{Maximum, Resources};
///
/// let permit = client.hold(b"backup", Resources(1), Maximum(1)).await?;
/// tokio::select! {
///     reason = permit.lost() => eprintln!("{reason}"),
///     () = std::future::ready(()) => println!("the work is done"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a permit releases it; keep it for as long as the work lasts"]
pub struct PlainPermit {
    client: PlainClient,
    name: Vec<u8>,
    resources: Resources,
    /// The release was sent.
    released: bool,
}

impl PlainPermit {
    pub(super) fn new(client: PlainClient, name: Vec<u8>, resources: Resources) -> Self {
        Self { client, name, resources, released: false }
    }

    /// The number of resources that were acquired.
    ///
    /// ```no_run
    /// # fn example(permit: signalbox_client::PlainPermit) {
    /// println!("{} held", permit.resources());
    /// # }
    /// ```
    pub fn resources(&self) -> Resources {
        self.resources
    }

    /// Releases the resources and waits for the answer (`counter.md` and `semaphore.md`, "Release").
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`](super::ErrorKind::ConnectionLost) if the connection ended: the resources are released then, too.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox_client::PlainPermit) -> Result<(), signalbox_client::Error> {
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<(), Error> {
        self.released = true;
        self.client.release_now(&self.name, self.resources).await
    }

    /// Resolves when the connection has ended, and the resources with it. The failure of the server's host is detected
    /// within about 30 s; the end of a lease is known to the millisecond ([`Client`](super::Client)).
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox_client::PlainPermit) {
    /// eprintln!("{}", permit.lost().await);
    /// # }
    /// ```
    pub async fn lost(&self) -> Disconnect {
        self.client.closed().await
    }
}

impl Drop for PlainPermit {
    fn drop(&mut self) {
        if !self.released {
            // The answer is not awaited.
            drop(self.client.release_now(&self.name, self.resources));
        }
    }
}
