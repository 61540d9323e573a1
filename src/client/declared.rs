//! Declared semaphores, as an administrator deals with them: each method is one request, done wholly or not at all, and
//! nobody has to be kept out meanwhile.

use std::time::Duration;

use super::{Declared, Direct, Error, checked};
use crate::protocol::{
    Declaration, Declarations, DeclaredState, Extended, Generation, Idle, IfExists, Milliseconds, Namespace,
    Removal, Resizing, ResponseFrame, Wait,
};

impl Direct {
    /// Declares semaphores, all of them or none ("Declare"): they stay until they are removed, whoever holds them. Gives
    /// what each came to be. Whether this client may do it is decided by its address.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::{Declaration, IfExists};
    ///
    /// let gpus = Declaration { name: b"gpu", capacity: 8, numbered: true, label: b"the machines in room 3" };
    /// let settled = direct.declare(&[gpus], IfExists::Set).await?;
    /// println!("generation {}", settled[0].generation.0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn declare(
        &self,
        declarations: &[Declaration<'_>],
        if_exists: IfExists,
    ) -> Result<Vec<DeclaredState>, Error> {
        let declarations = Declarations::new(declarations)?;
        let request = Extended::Declare { ids: self.next_ids(), if_exists, declarations };
        Ok(self.connection().ask_for_success(request).await?.declared()?)
    }

    /// Changes the capacity of a declared semaphore ("Resize"). Nobody loses what he holds: above the capacity nothing is
    /// granted until enough is given back. With the generation that was read before, it is refused where somebody else
    /// has changed the semaphore since.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::Resizing;
    ///
    /// let settled = direct.resize(b"gpu", Resizing::GrowBy(2), None).await?;
    /// println!("{} of {} in use", settled.in_use, settled.capacity);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resize(
        &self,
        name: &[u8],
        how: Resizing,
        expected: Option<Generation>,
    ) -> Result<DeclaredState, Error> {
        let request = Extended::Resize { ids: self.next_ids(), expected, how, name: checked(name)? };
        Ok(self.connection().ask_for_success(request).await?.resized()?)
    }

    /// Removes a declared semaphore ("Remove"); those who wait for it are told so.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::Removal;
    ///
    /// direct.remove(b"gpu", Removal::WithLastHolder, None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove(&self, name: &[u8], how: Removal, expected: Option<Generation>) -> Result<(), Error> {
        let request = Extended::Remove { ids: self.next_ids(), expected, how, name: checked(name)? };
        self.connection().ask_for_success(request).await.map(drop)
    }

    /// Waits until so little of a name is in use, or nobody has a slot, and tells how much is in use then ("AwaitIdle").
    /// Without a timeout, for as long as the server lets it. Where the future is dropped, the server waits on for
    /// nobody until that is over.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// use signalbox::client::{Idle, Namespace};
    ///
    /// direct.await_idle(Namespace::Semaphores, b"gpu", Idle::Level(0), None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn await_idle(
        &self,
        namespace: Namespace,
        name: &[u8],
        until: Idle,
        timeout: Option<Duration>,
    ) -> Result<u32, Error> {
        let span = timeout.map_or(Milliseconds(u32::MAX), Milliseconds::saturating_from);
        let request = Extended::AwaitIdle { wait: Wait::UpTo(span), until, namespace, name: checked(name)? };
        Ok(self.connection().ask_for_success(request).await?.in_use()?)
    }

    /// The declared semaphores whose names start with these bytes, in the order of their names ("List").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox::client::Direct) -> Result<(), signalbox::client::Error> {
    /// let mut declared = direct.list(b"").await?;
    /// while let Some(semaphore) = declared.next().await {
    ///     let semaphore = semaphore?;
    ///     println!("{:?}: {} of {}", semaphore.name, semaphore.in_use, semaphore.capacity);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(&self, prefix: &[u8]) -> Result<Declared, Error> {
        if !prefix.is_empty() {
            checked(prefix)?;
        }
        Declared::ask(self.connection(), Extended::List { prefix }, ResponseFrame::declared_entry).await
    }
}
