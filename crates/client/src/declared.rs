//! What administrators do. Each method is one atomic request, which is safe while the names are in use.

use std::time::Duration;

use bytes::Bytes;

use super::requested::requesting;
use super::{Direct, Error, Series, checked};
use signalbox_model::{Changed, DeclaredEntry, Idle, Milliseconds, Namespace, Operation, Target};
use signalbox_protocol::{Extended, ResponseFrame, Wait, check_declarations};

impl Direct {
    /// Makes a change that an administrator may make: declares, resizes, pauses or removes semaphores, deletes counters,
    /// cancels waiting requests, or revokes what clients hold. [`Operation`] lists all changes.
    ///
    /// # Errors
    /// [`ErrorKind::Declarations`](super::ErrorKind::Declarations) or [`ErrorKind::NameLength`](super::ErrorKind::NameLength) if
    /// the operation breaks a rule of the protocol, so that no request was sent; else [`ErrorKind::Status`](super::ErrorKind::Status)
    /// with `NotPermitted`, `NotFound`, or another refusal (`docs/protocol.md`, the section of the operation).
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::{Changed, Declaration, GrantId, IfExists, Milliseconds, Operation, Resizing, Revocation};
    ///
    /// let gpus = Declaration { name: b"gpu", capacity: 8, numbered: true, label: b"the machines in room 3" };
    /// direct.change(&Operation::Declare { if_exists: IfExists::Set, declarations: vec![gpus] }).await?;
    ///
    /// let grow = Operation::Resize { name: b"gpu", how: Resizing::GrowBy(2), expected: None };
    /// if let Changed::Declared(states) = direct.change(&grow).await? {
    ///     println!("{} of {} in use", states[0].in_use, states[0].capacity);
    /// }
    ///
    /// let (what, grace) = (Revocation::Grant(GrantId(4711)), Milliseconds(10_000));
    /// direct.change(&Operation::Revoke { what, grace }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn change(&self, operation: &Operation<'_>) -> Result<Changed, Error> {
        requesting(|| operation.to_string(), async {
            match operation {
                Operation::Declare { declarations, .. } => check_declarations(declarations)?,
                operation => {
                    if let Target::Name(_, name) = operation.target() {
                        checked(name)?;
                    }
                }
            }
            let request = Extended::Change { ids: self.next_ids(), operation: operation.clone() };
            Ok(self.connection().ask_for_success(request).await?.changed(operation)?)
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
            let name = Target::Name(namespace, name);
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
