//! `semctl`: its commands and their arguments.

use std::ffi::{c_int, c_void};
use std::fmt::Display;

use libc::{semid_ds, time_t};
use signalbox_model::UnixSeconds;
use signalbox_model::sysv::{Errno, Ownership, SetCommand, SetId, SetStat};
use signalbox_protocol::ResponseFrame;

use crate::call::perform;
use crate::errno::Failed;
use crate::ids;
use crate::operation::Call;
use crate::settings::Settings;
use crate::signals::Shield;

/// A command that `libc` does not define.
const SEM_INFO: c_int = 19;

/// Returns whether the command is about the kernel, whichever set it names.
pub fn is_of_kernel(command: c_int) -> bool {
    matches!(command, libc::IPC_INFO | SEM_INFO)
}

/// The fourth argument of `semctl`, `union semun`: an integer or a pointer, depending on the command.
#[derive(Clone, Copy)]
pub struct Argument(pub *mut c_void);

impl Argument {
    fn value(self) -> c_int {
        // The integer is the lower half of the union on both architectures.
        self.0 as usize as c_int
    }

    fn pointer<T>(self) -> Result<*mut T, Failed> {
        if self.0.is_null() { Err(Failed(libc::EFAULT)) } else { Ok(self.0.cast()) }
    }
}

/// `semctl` for a set of the server.
///
/// # Safety
/// The argument is what the command requires.
pub unsafe fn control(
    set: c_int,
    number: c_int,
    command: c_int,
    argument: Argument,
    settings: &Settings,
    shield: &Shield,
) -> Result<c_int, Failed> {
    let on_set = Target { set, settings, shield };
    let semaphore = || u32::try_from(number).map_err(|_| Failed(libc::EINVAL));
    match command {
        libc::IPC_RMID => on_set.change(SetCommand::Remove),
        libc::IPC_SET => {
            let stat = argument.pointer::<semid_ds>()?;
            // SAFETY: the program passes a pointer to the structure.
            let perm = unsafe { &raw const (*stat).sem_perm };
            // SAFETY: as above.
            let (uid, gid, mode) = unsafe { ((*perm).uid, (*perm).gid, (*perm).mode) };
            on_set.change(SetCommand::SetOwnership(Ownership { uid, gid, mode: u32::from(mode) & 0o777 }))
        }
        libc::IPC_STAT => {
            let found = on_set.stat()?;
            let stat = argument.pointer::<semid_ds>()?;
            // SAFETY: the program passes a pointer to the structure.
            unsafe { fill(stat, &found, settings.keys.local(found.key)) };
            Ok(0)
        }
        libc::GETVAL => on_set.number(SetCommand::GetValue(semaphore()?)),
        libc::SETVAL => on_set.change(SetCommand::SetValue(semaphore()?, argument.value())),
        libc::GETPID => on_set.number(SetCommand::GetPid(semaphore()?)),
        libc::GETNCNT => on_set.number(SetCommand::GetNCount(semaphore()?)),
        libc::GETZCNT => on_set.number(SetCommand::GetZCount(semaphore()?)),
        libc::GETALL => {
            let count = on_set.count()?;
            let values = on_set.perform(SetCommand::GetAll, |response| match response.call_values() {
                Ok(Ok(values)) if values.len() != count => Err(format!(
                    "{} values of set {set}, which has {count} semaphores; get the set again with semget",
                    values.len()
                )),
                answer => answer.map_err(|malformed| malformed.to_string()),
            })?;
            let room = argument.pointer::<u16>()?;
            // SAFETY: the program has room for as many values as the set has semaphores.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), room, values.len()) };
            Ok(0)
        }
        libc::SETALL => {
            let count = on_set.count()?;
            let values = argument.pointer::<u16>()?;
            // SAFETY: the program passes as many values as the set has semaphores, and does not change them meanwhile.
            let values = unsafe { std::slice::from_raw_parts(values, count) };
            on_set.change(SetCommand::SetAll(values.into()))
        }
        // SEM_STAT and SEM_STAT_ANY fail too: they expect an index of the kernel's table, which is never as large as an
        // id of the server.
        _ => Err(Failed(libc::EINVAL)),
    }
}

/// The set that a command is for.
struct Target<'a> {
    set: c_int,
    settings: &'a Settings,
    shield: &'a Shield,
}

impl Target<'_> {
    fn perform<T, E: Display>(
        &self,
        command: SetCommand,
        read: impl FnOnce(&ResponseFrame) -> Result<Result<T, Errno>, E>,
    ) -> Result<T, Failed> {
        perform(&Call::Control { set: SetId(self.set), command }, self.settings, self.shield, read)
    }

    fn change(&self, command: SetCommand) -> Result<c_int, Failed> {
        self.perform(command, ResponseFrame::call_done).map(|()| 0)
    }

    fn number(&self, command: SetCommand) -> Result<c_int, Failed> {
        self.perform(command, ResponseFrame::call_number).map(u32::cast_signed)
    }

    /// The number of semaphores of the set, for which the program's memory has room.
    fn count(&self) -> Result<usize, Failed> {
        let count = match ids::count(self.set) {
            Some(count) => count,
            None => self.stat()?.count,
        };
        Ok(count as usize)
    }

    fn stat(&self) -> Result<SetStat, Failed> {
        let stat = self.perform(SetCommand::Stat, ResponseFrame::call_stat)?;
        ids::note_count(self.set, stat.count);
        Ok(stat)
    }
}

/// Fills the whole structure.
///
/// # Safety
/// There is room for the structure.
unsafe fn fill(stat: *mut semid_ds, found: &SetStat, key: i32) {
    let seconds = |at: UnixSeconds| time_t::try_from(at.0).unwrap_or(time_t::MAX);
    let Ownership { uid, gid, mode } = found.ownership;
    // SAFETY: the structure consists of integers, for which zero is a value.
    let mut filled: semid_ds = unsafe { std::mem::zeroed() };
    filled.sem_perm.__key = key;
    filled.sem_perm.uid = uid;
    filled.sem_perm.gid = gid;
    filled.sem_perm.cuid = found.creator_uid;
    filled.sem_perm.cgid = found.creator_gid;
    filled.sem_perm.mode = (mode & 0o777) as _;
    filled.sem_otime = found.operated_at.map_or(0, seconds);
    filled.sem_ctime = seconds(found.changed_at);
    filled.sem_nsems = found.count.into();
    // SAFETY: the caller has room for it.
    unsafe { stat.write(filled) };
}
