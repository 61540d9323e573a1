//! System V semaphore sets: listings, and the calls of a process (`docs/protocol.md`, "System V semaphores").
//!
//! Programs that call `semop` use these sets without changes, through `libsignalbox_sysv.so`. This module is for
//! programs that show, repair or remove sets, and for those that share a set with programs that call `semop`. For
//! anything else, permits are better: they are fair, and survive disconnects.
//!
//! ```no_run
//! # async fn example(client: signalbox_client::Client) -> Result<(), signalbox_client::Error> {
//! use signalbox_client::sysv::{Caller, Identity};
//!
//! let direct = client.direct().await?;
//! let me = Identity { pid: std::process::id(), caller: Caller { uid: 0, gid: 0 }, groups: &[], label: b"repair" };
//! let process = direct.open_process(&me).await?;
//! let (set, _) = process.find(0x2a).await?;
//! process.set_value(set, 0, 1).await?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::error::requesting;
use super::{Direct, Error, ErrorKind, Series};
use signalbox_model::Milliseconds;
use signalbox_model::sysv::{IPC_CREAT, IPC_EXCL, IPC_PRIVATE, SetCommand};
use signalbox_protocol::{
    BodyError, Extended, GROUPS_MAX, LABEL_BYTES_MAX, Opaque, Operations, ResponseFrame, SysvRequest,
    WAIT_FOREVER_MS, WaitingRequest,
};

pub use signalbox_model::UnixSeconds;
pub use signalbox_model::sysv::{
    Caller, Errno, IPC_NOWAIT, ListedSet, ListedUser, Operation, Order, Ownership, ProcessId, SEM_UNDO,
    SetId, SetStat, UserRole,
};

/// The number of semaphores whose state is read concurrently.
const READ_AT_ONCE: usize = 64;

/// The identity of a process, as the process states it. The server does not verify it.
///
/// ```
/// use signalbox_client::sysv::{Caller, Identity};
///
/// let root = Identity { pid: std::process::id(), caller: Caller { uid: 0, gid: 0 }, groups: &[], label: b"backup" };
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The process id on its machine, which [`Semaphore::pid`] reports.
    pub pid: u32,
    /// The user and the group that calls are checked against.
    pub caller: Caller,
    /// Supplementary groups; those beyond 1024 are left out.
    pub groups: &'a [u32],
    /// The label of the process in listings. It is truncated to 255 bytes.
    pub label: &'a [u8],
}

/// The state of one semaphore of a set.
///
/// ```no_run
/// # async fn example(process: signalbox_client::sysv::Process, set: signalbox_client::sysv::SetId) -> Result<(), signalbox_client::Error> {
/// for semaphore in process.semaphores(set).await? {
///     println!("{} ({} calls wait)", semaphore.value, semaphore.waiting_for_growth);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Semaphore {
    /// The value (GETVAL).
    pub value: u16,
    /// The process that changed the semaphore last (GETPID); 0: none.
    pub pid: u32,
    /// The number of calls that wait until the value grows (GETNCNT).
    pub waiting_for_growth: u32,
    /// The number of calls that wait until the value is 0 (GETZCNT).
    pub waiting_for_zero: u32,
}

/// A process on the server, which makes calls on semaphore sets. [`Direct::open_process`] opens one.
///
/// Its operations with [`SEM_UNDO`] are undone when it ends. It ends when its connection is closed: when all clones of
/// this value and of its [`Direct`] and all of their series are dropped, or when the program ends. If the connection is
/// lost instead, for example with the network, the process ends after the server's `session.default_ttl`.
///
/// Sets are identified by their ids. If a call fails, [`Error::errno`] returns the reason; other errors are those of
/// [`Direct`].
///
#[doc = example!("process: sysv::Process", "let (set, semaphores) = process.find(0x2a).await?;")]
#[derive(Clone, Debug)]
pub struct Process {
    direct: Direct,
    caller: Caller,
}

impl Direct {
    /// Lists the semaphore sets, in the order of their ids (`docs/protocol.md`, "ListSets").
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// let mut sets = direct.sets().await?;
    /// while let Some(set) = sets.next().await {
    ///     let set = set?;
    ///     println!("{:#x}: {} calls wait", set.stat.key, set.waiting);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn sets(&self) -> Result<Series<ListedSet>, Error> {
        let requested = "list semaphore sets".to_owned();
        Series::ask(self.connection(), SysvRequest::ListSets, ResponseFrame::listed_set, Some(requested))
            .await
    }

    /// Lists the processes with adjustments of a set, then the calls that wait for it, in their order
    /// (`docs/protocol.md`, "ListUsers"). Fails with [`Status::NotFound`](super::Status::NotFound) if there is no such
    /// set.
    ///
    #[doc = example!("direct: Direct, set: sysv::SetId", "let mut users = direct.set_users(set).await?;")]
    pub async fn set_users(&self, set: SetId) -> Result<Series<ListedUser>, Error> {
        let requested = about_set("list the users of", set);
        let request = SysvRequest::ListUsers { set };
        Series::ask(self.connection(), request, ResponseFrame::listed_user, Some(requested)).await
    }

    /// Opens a process, which makes calls over this connection (`docs/protocol.md`, "OpenProcess"). A connection has
    /// one process, the one that was opened last.
    ///
    /// ```no_run
    /// # async fn example(direct: signalbox_client::Direct) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::sysv::{Caller, Identity};
    ///
    /// let me = Identity { pid: 4711, caller: Caller { uid: 1000, gid: 1000 }, groups: &[], label: b"report" };
    /// let process = direct.open_process(&me).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open_process(&self, identity: &Identity<'_>) -> Result<Process, Error> {
        let Identity { pid, caller, groups, label } = *identity;
        let groups = groups[..groups.len().min(GROUPS_MAX)].to_vec();
        let label = &label[..label.len().min(LABEL_BYTES_MAX)];
        let request = SysvRequest::OpenProcess { ttl: None, pid, caller, groups, label };
        self.connection().ask_for_success(request).await?.opened_process()?;
        Ok(Process { direct: self.clone(), caller })
    }
}

impl Process {
    /// Finds the set with a key: `semget` without flags. Returns its id and its number of semaphores. Fails with
    /// [`Errno::NoEnt`] if there is no such set.
    ///
    #[doc = example!("process: sysv::Process", "let (set, semaphores) = process.find(0x2a).await?;")]
    pub async fn find(&self, key: i32) -> Result<(SetId, u32), Error> {
        self.get("find", key, 0, 0).await
    }

    /// Creates a set whose values are all 0, and returns its id: `semget` with IPC_CREAT and IPC_EXCL. The key 0
    /// creates a set without a key. Fails with [`Errno::Exist`] if a set has the key.
    ///
    #[doc = example!("process: sysv::Process", "let set = process.create(0x2a, 3, 0o600).await?;")]
    pub async fn create(&self, key: i32, semaphores: u32, mode: u32) -> Result<SetId, Error> {
        let flags = IPC_CREAT | IPC_EXCL | (mode & 0o777);
        Ok(self.get("create", key, semaphores, flags).await?.0)
    }

    async fn get(
        &self,
        operation: &'static str,
        key: i32,
        count: u32,
        flags: u32,
    ) -> Result<(SetId, u32), Error> {
        let requested = || match key {
            IPC_PRIVATE => format!("{operation} a semaphore set without a key"),
            _ => format!("{operation} the semaphore set with the key {key:#010x}"),
        };
        requesting(requested, async {
            let request =
                SysvRequest::SemGet { ids: self.direct.next_ids(), caller: self.caller, key, count, flags };
            call_result(self.connection().ask_for_success(request).await?.call_set())
        })
        .await
    }

    /// Performs operations in their order, all or none: `semtimedop`. Waits until they can be performed, at most for
    /// `timeout`; `None`: without a limit. Fails with [`Errno::Again`] after that time, or at once because of
    /// [`IPC_NOWAIT`].
    ///
    /// Dropping the future cancels the call, unless it was already performed.
    ///
    /// ```no_run
    /// # async fn example(process: signalbox_client::sysv::Process) -> Result<(), signalbox_client::Error> {
    /// use signalbox_client::sysv::{Operation, SEM_UNDO};
    ///
    /// let (set, _) = process.find(0x2a).await?;
    /// process.operate(set, &[Operation { number: 0, change: -1, flags: SEM_UNDO }], None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn operate(
        &self,
        set: SetId,
        operations: &[Operation],
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        requesting(|| about_set("operate on", set), async {
            let wait_ms = timeout.map_or(WAIT_FOREVER_MS, |timeout| {
                Milliseconds::saturating_from(timeout).0.min(WAIT_FOREVER_MS - 1)
            });
            let mut bytes = Vec::new();
            let operations = Operations::encode(operations, &mut bytes).ok_or(Errno::TooBig)?;
            let (ids, caller) = (self.direct.next_ids(), self.caller);
            let request = SysvRequest::SemOp { ids, caller, set, wait_ms, operations };
            let (opaque, answer) = self.connection().ask(request).await?;
            let mut waiting = WaitingCall { connection: self.connection(), opaque: Some(opaque) };
            let answer = self.connection().success(answer).await;
            waiting.opaque = None;
            call_result(answer?.call_done())
        })
        .await
    }

    /// Returns the owner, the mode and the times of a set: IPC_STAT.
    ///
    #[doc = example!(
        "process: sysv::Process, set: sysv::SetId",
        r#"println!("{:#o}", process.stat(set).await?.ownership.mode);"#,
    )]
    pub async fn stat(&self, set: SetId) -> Result<SetStat, Error> {
        self.control("read", set, SetCommand::Stat, ResponseFrame::call_stat).await
    }

    /// Returns the values of all semaphores of a set at one moment: GETALL.
    ///
    #[doc = example!("process: sysv::Process, set: sysv::SetId", r#"println!("{:?}", process.values(set).await?);"#)]
    pub async fn values(&self, set: SetId) -> Result<Vec<u16>, Error> {
        self.control("read", set, SetCommand::GetAll, ResponseFrame::call_values).await
    }

    /// Returns the states of all semaphores of a set. The values are those of one moment; the rest is read after them,
    /// one semaphore after another.
    ///
    #[doc = example!(
        "process: sysv::Process, set: sysv::SetId",
        r#"println!("changed by process {}", process.semaphores(set).await?[0].pid);"#,
    )]
    pub async fn semaphores(&self, set: SetId) -> Result<Vec<Semaphore>, Error> {
        let values = self.values(set).await?;
        requesting(|| about_set("read", set), async {
            let mut semaphores = Vec::with_capacity(values.len());
            for values in values.chunks(READ_AT_ONCE) {
                self.read_remaining_state(set, values, &mut semaphores).await?;
            }
            Ok(semaphores)
        })
        .await
    }

    /// Reads the remaining state of semaphores with these values, and adds them to `semaphores`.
    async fn read_remaining_state(
        &self,
        set: SetId,
        values: &[u16],
        semaphores: &mut Vec<Semaphore>,
    ) -> Result<(), Error> {
        let first = semaphores.len() as u32;
        let mut answers = Vec::with_capacity(3 * values.len());
        for number in (first..).take(values.len()) {
            let commands = [SetCommand::GetPid, SetCommand::GetNCount, SetCommand::GetZCount];
            for command in commands.map(|command| command(number)) {
                answers.push(self.connection().ask(self.command(set, command)).await?.1);
            }
        }
        let mut answers = answers.into_iter();
        for value in values {
            let mut numbers = [0; 3];
            for (number, answer) in numbers.iter_mut().zip(&mut answers) {
                *number = call_result(self.connection().success(answer).await?.call_number())?;
            }
            let [pid, waiting_for_growth, waiting_for_zero] = numbers;
            semaphores.push(Semaphore { value: *value, pid, waiting_for_growth, waiting_for_zero });
        }
        Ok(())
    }

    /// Sets the value of a semaphore: SETVAL. Clears the adjustments that processes have for it.
    ///
    #[doc = example!("process: sysv::Process, set: sysv::SetId", "process.set_value(set, 0, 1).await?;")]
    pub async fn set_value(&self, set: SetId, number: u32, value: u16) -> Result<(), Error> {
        let command = SetCommand::SetValue(number, value.into());
        self.control("change", set, command, ResponseFrame::call_done).await
    }

    /// Sets the values of all semaphores: SETALL. Clears the adjustments that processes have for them.
    ///
    #[doc = example!("process: sysv::Process, set: sysv::SetId", "process.set_values(set, &[1, 0, 0]).await?;")]
    pub async fn set_values(&self, set: SetId, values: &[u16]) -> Result<(), Error> {
        // More values do not fit on the wire, and no set has more.
        if values.len() > u16::MAX.into() {
            return Err(Error::from(Errno::Inval).with_request(about_set("change", set)));
        }
        self.control("change", set, SetCommand::SetAll(values.into()), ResponseFrame::call_done).await
    }

    /// Sets the owner and the mode of a set: IPC_SET.
    ///
    #[doc = example!(
        "process: sysv::Process, set: sysv::SetId",
        "use signalbox_client::sysv::Ownership;",
        "process.set_ownership(set, Ownership { uid: 33, gid: 33, mode: 0o600 }).await?;",
    )]
    pub async fn set_ownership(&self, set: SetId, ownership: Ownership) -> Result<(), Error> {
        self.control("change", set, SetCommand::SetOwnership(ownership), ResponseFrame::call_done).await
    }

    /// Removes a set: IPC_RMID. Calls that wait for it fail with [`Errno::IdRm`].
    ///
    #[doc = example!(
        "process: sysv::Process",
        "let (set, _) = process.find(0x2a).await?;",
        "process.remove(set).await?;",
    )]
    pub async fn remove(&self, set: SetId) -> Result<(), Error> {
        self.control("remove", set, SetCommand::Remove, ResponseFrame::call_done).await
    }

    async fn control<T>(
        &self,
        operation: &'static str,
        set: SetId,
        command: SetCommand,
        read: impl FnOnce(&ResponseFrame) -> Result<Result<T, Errno>, BodyError>,
    ) -> Result<T, Error> {
        requesting(|| about_set(operation, set), async {
            call_result(read(&self.connection().ask_for_success(self.command(set, command)).await?))
        })
        .await
    }

    fn command(&self, set: SetId, command: SetCommand) -> SysvRequest<'static> {
        SysvRequest::SemCtl { ids: self.direct.next_ids(), caller: self.caller, set, command }
    }

    fn connection(&self) -> &Arc<Connection> {
        self.direct.connection()
    }
}

/// A call that may wait on the server. It is canceled if the caller drops its future.
struct WaitingCall<'a> {
    connection: &'a Connection,
    /// `None`: it was answered, or the connection has ended.
    opaque: Option<Opaque>,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        if let Some(opaque) = self.opaque.take() {
            // If this fails, the connection has ended, and there is nothing to cancel. The answer is not needed.
            drop(self.connection.ask_now(Extended::Cancel(WaitingRequest::Opaque(opaque))));
        }
    }
}

/// Reads the result of a call from a response.
fn call_result<T>(result: Result<Result<T, Errno>, BodyError>) -> Result<T, Error> {
    Ok(result?.map_err(ErrorKind::Errno)?)
}

/// Describes a request about one set, for an error.
fn about_set(operation: &str, set: SetId) -> String {
    format!("{operation} semaphore set {set}")
}
