//! What a plain connection holds, given back when it goes out of scope.

use super::{Error, Loss, PlainClient, Resources};

/// Resources that were acquired over a plain connection ([`PlainClient::hold`]). Dropping it gives them back, without
/// waiting for the answer. They last no longer than the connection: [`Self::lost`] tells.
///
/// ```no_run
/// # async fn example(client: signalbox::client::PlainClient) -> Result<(), signalbox::client::Error> {
/// use signalbox::client::{Maximum, Resources};
///
/// let permit = client.hold(b"backup", Resources(1), Maximum(1)).await?;
/// tokio::select! {
///     loss = permit.lost() => eprintln!("{loss}"),
///     () = std::future::ready(()) => println!("the work is done"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back; keep it for as long as the work lasts"]
pub struct PlainPermit {
    client: PlainClient,
    name: Vec<u8>,
    resources: Resources,
    /// Nothing is left to give back.
    released: bool,
}

impl PlainPermit {
    pub(super) fn new(client: PlainClient, name: Vec<u8>, resources: Resources) -> Self {
        Self { client, name, resources, released: false }
    }

    /// How many resources were taken.
    ///
    /// ```no_run
    /// # fn example(permit: signalbox::client::PlainPermit) {
    /// println!("{} held", permit.resources());
    /// # }
    /// ```
    pub fn resources(&self) -> Resources {
        self.resources
    }

    /// Gives the resources back and waits for the answer.
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox::client::PlainPermit) -> Result<(), signalbox::client::Error> {
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<(), Error> {
        self.released = true;
        self.client.release_now(&self.name, self.resources).await
    }

    /// Resolves when the connection is gone, and with it what was held. A server that vanishes without a word is
    /// noticed about 30 seconds later; a lease is known to the millisecond ([`Client`](super::Client)).
    ///
    /// ```no_run
    /// # async fn example(permit: signalbox::client::PlainPermit) {
    /// eprintln!("{}", permit.lost().await);
    /// # }
    /// ```
    pub async fn lost(&self) -> Loss {
        self.client.closed().await
    }
}

impl Drop for PlainPermit {
    fn drop(&mut self) {
        if !self.released {
            // Without its answer: there is nobody to tell.
            drop(self.client.release_now(&self.name, self.resources));
        }
    }
}
