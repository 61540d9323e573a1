//! Administration of declared semaphores. Each method is one atomic request, which is safe while the semaphores are in
//! use.

use std::time::Duration;

use bytes::Bytes;

use super::requested::{about, about_all, named, requesting};
use super::{Direct, Error, Series, checked};
use signalbox_protocol::{
    Declaration, Declarations, DeclaredEntry, DeclaredState, Extended, Generation, Idle, IfExists,
    Milliseconds, Namespace, Pausing, Removal, Resizing, ResponseFrame, SlotChange, Wait,
};

impl Direct {
    /// Declares semaphores, all of them or none; they exist until they are removed (`docs/protocol.md`, "Declare").
    /// Returns the state of each, in the order of `declarations`.
    ///
    /// # Errors
    /// [`ErrorKind::Declarations`](super::ErrorKind::Declarations) if a declaration breaks a rule; [`ErrorKind::Status`](super::ErrorKind::Status) with `NotPermitted` if the server does
    /// not permit it from this address, `AlreadyExists` with [`IfExists::Fail`], or another refusal.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::{Declaration, IfExists};
    ///
    /// let gpus = Declaration { name: b"gpu", capacity: 8, numbered: true, label: b"the machines in room 3" };
    /// let declared = direct.declare(&[gpus], IfExists::Set).await?;
    /// println!("generation {}", declared[0].generation.0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn declare(
        &self,
        declarations: &[Declaration<'_>],
        if_exists: IfExists,
    ) -> Result<Vec<DeclaredState>, Error> {
        let requested = || {
            let name = |of: &Declaration<'_>| named(Namespace::Semaphores, of.name);
            about_all("declare", declarations.iter().map(name))
        };
        requesting(requested, async {
            let declarations = Declarations::new(declarations)?;
            let request = Extended::Declare { ids: self.next_ids(), if_exists, declarations };
            Ok(self.connection().ask_for_success(request).await?.declared()?)
        })
        .await
    }

    /// Changes the capacity of a declared semaphore (`docs/protocol.md`, "Resize"). Holders keep what they hold: while
    /// more is in use than the new capacity, nothing is granted. Returns the new state.
    ///
    /// With `expected`, the request fails with `GenerationDiffers` if the semaphore was changed since that generation
    /// (optimistic locking).
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `NotFound` if the semaphore is not declared, `NotPermitted`, or another refusal.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::Resizing;
    ///
    /// let resized = direct.resize(b"gpu", Resizing::GrowBy(2), None).await?;
    /// println!("{} of {} in use", resized.in_use, resized.capacity);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resize(
        &self,
        name: &[u8],
        how: Resizing,
        expected: Option<Generation>,
    ) -> Result<DeclaredState, Error> {
        let requested = || {
            let resize = about("resize", Namespace::Semaphores, name);
            match how {
                Resizing::To(capacity) => format!("{resize} to {capacity}"),
                Resizing::GrowBy(more) => format!("{resize} by +{more}"),
                Resizing::ShrinkBy(less) => format!("{resize} by -{less}"),
            }
        };
        requesting(requested, async {
            let request = Extended::Resize { ids: self.next_ids(), expected, how, name: checked(name)? };
            Ok(self.connection().ask_for_success(request).await?.resized()?)
        })
        .await
    }

    /// Pauses a declared semaphore, or resumes it (`docs/protocol.md`, "Pause"). While it is paused, it grants nothing:
    /// requests keep their places in the queue, and holders keep their permits. Returns the state of the semaphore;
    /// `expected` is as in [`Self::resize`]. Semaphores of the server's configuration can be paused too.
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `NotFound` if the semaphore is not declared, `UnknownCommand` if the server is too old,
    /// `NotPermitted`, or another refusal.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::Pausing;
    ///
    /// direct.pause(b"deploys", Pausing::Pause, None).await?;
    /// // Nothing is deployed now, except what was started before.
    /// direct.pause(b"deploys", Pausing::Resume, None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause(
        &self,
        name: &[u8],
        how: Pausing,
        expected: Option<Generation>,
    ) -> Result<DeclaredState, Error> {
        let operation = match how {
            Pausing::Pause => "pause",
            Pausing::Resume => "resume",
        };
        requesting(|| about(operation, Namespace::Semaphores, name), async {
            let request = Extended::Pause { ids: self.next_ids(), expected, how, name: checked(name)? };
            Ok(self.connection().ask_for_success(request).await?.resized()?)
        })
        .await
    }

    /// Takes a slot of a declared semaphore out of service, or puts it back (`docs/protocol.md`, "SetSlot"). A slot out
    /// of service is not granted; its holder keeps it, and [`Self::await_idle`] with [`Idle::Slot`] waits for the
    /// holder. Otherwise as [`Self::pause`].
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `NoSuchSlot` if the semaphore has no such slot; else as [`Self::pause`].
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::{Idle, Namespace, SlotChange};
    ///
    /// direct.set_slot(b"gpu", SlotChange::Out(3), None).await?;
    /// direct.await_idle(Namespace::Semaphores, b"gpu", Idle::Slot(3), None).await?;
    /// // Nobody uses slot 3, until it is put back:
    /// direct.set_slot(b"gpu", SlotChange::In(3), None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_slot(
        &self,
        name: &[u8],
        how: SlotChange,
        expected: Option<Generation>,
    ) -> Result<DeclaredState, Error> {
        let requested = || {
            let name = named(Namespace::Semaphores, name);
            match how {
                SlotChange::Out(slot) => format!("take slot {slot} of {name} out of service"),
                SlotChange::In(slot) => format!("put slot {slot} of {name} back into service"),
            }
        };
        requesting(requested, async {
            let request = Extended::SetSlot { ids: self.next_ids(), expected, how, name: checked(name)? };
            Ok(self.connection().ask_for_success(request).await?.resized()?)
        })
        .await
    }

    /// Removes a declared semaphore (`docs/protocol.md`, "Remove"). Requests that wait for it fail with `Removed`;
    /// `how` decides what happens to its holders, and `expected` is as in [`Self::resize`].
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `NotFound` if the semaphore is not declared, `InUse` with [`Removal::IfIdle`],
    /// `NotPermitted`, or another refusal.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::Removal;
    ///
    /// direct.remove(b"gpu", Removal::WithLastHolder, None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove(&self, name: &[u8], how: Removal, expected: Option<Generation>) -> Result<(), Error> {
        requesting(|| about("remove", Namespace::Semaphores, name), async {
            let request = Extended::Remove { ids: self.next_ids(), expected, how, name: checked(name)? };
            self.connection().ask_for_success(request).await.map(drop)
        })
        .await
    }

    /// Waits until at most a number of resources of a name are in use, or until a slot is free (`docs/protocol.md`,
    /// "AwaitIdle"). Returns the number of resources that are in use then.
    ///
    /// Without a timeout, the request waits as long as the server allows. Dropping the future does not cancel the
    /// request: the server keeps it until the timeout.
    ///
    /// # Errors
    /// [`ErrorKind::Status`](super::ErrorKind::Status) with `TimedOut`, `Removed`, or another refusal.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::{Idle, Namespace};
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
        let requested = || {
            let name = named(namespace, name);
            let until = match until {
                Idle::Level(level) => format!("wait for {name} until at most {level} are in use"),
                Idle::Slot(slot) => format!("wait for slot {slot} of {name} until it is free"),
            };
            let within = timeout.map(|limit| format!(" within {} s", limit.as_secs_f64()));
            until + &within.unwrap_or_default()
        };
        requesting(requested, async {
            let request =
                Extended::AwaitIdle { wait: Wait::UpTo(span), until, namespace, name: checked(name)? };
            Ok(self.connection().ask_for_success(request).await?.in_use()?)
        })
        .await
    }

    /// Lists the declared semaphores whose names start with these bytes, in the order of their names; all of them if
    /// `prefix` is empty (`docs/protocol.md`, "List").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// let mut declared = direct.list(b"").await?;
    /// while let Some(semaphore) = declared.next().await {
    ///     let semaphore = semaphore?;
    ///     println!("{:?}: {} of {}", semaphore.name, semaphore.in_use, semaphore.capacity);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(&self, prefix: &[u8]) -> Result<Series<DeclaredEntry<Bytes>>, Error> {
        if !prefix.is_empty() {
            checked(prefix)?;
        }
        Series::ask(self.connection(), Extended::List { prefix }, ResponseFrame::declared_entry, None).await
    }
}
