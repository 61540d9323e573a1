//! A disk in memory that records its operations, and fails on demand.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;
use signalbox_storage::{FileStorage, Medium, StorageError};

/// An operation that changed the disk.
#[derive(Clone, Debug)]
pub enum Operation {
    Write { offset: usize, data: Vec<u8> },
    SetLen(usize),
    Sync,
}

/// A call to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Read,
    Write,
    SetLen,
    Sync,
}

/// The calls that fail.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The first failing call, counted from 1 since the fault was set.
    pub nth: u64,
    /// The number of failing calls.
    pub calls: u64,
    /// Whether a failing call completes its work before it fails; else it completes half of it.
    pub is_done: bool,
}

/// A disk; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    operations: Option<Vec<Operation>>,
    calls: u64,
    fault: Option<Fault>,
    failed: Vec<Call>,
}

impl Disk {
    pub fn with(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State { bytes, ..State::default() })))
    }

    /// A disk with an empty store.
    pub fn laid_out() -> Self {
        let disk = Self::default();
        FileStorage::create_on(Path::new("a disk"), Box::new(disk.clone())).unwrap();
        disk
    }

    pub fn open(&self) -> Result<FileStorage, StorageError> {
        let disk = self.clone();
        let medium: Medium = Box::new(move || Ok(Box::new(disk.clone())));
        FileStorage::open_on(Path::new("a disk"), medium)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    pub fn record(&self) {
        self.state().operations = Some(Vec::new());
    }

    pub fn operations(&self) -> Vec<Operation> {
        self.state().operations.clone().unwrap_or_default()
    }

    pub fn operation_count(&self) -> usize {
        self.state().operations.as_ref().map_or(0, Vec::len)
    }

    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut state = self.state();
        state.calls = 0;
        state.fault = fault;
        state.failed.clear();
    }

    /// The calls that failed since the fault was set.
    pub fn failed(&self) -> Vec<Call> {
        self.state().failed.clone()
    }

    /// The number of calls since the fault was set.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    /// Fails if the fault says so, after `still_done` has done all or half of the work.
    fn call(&mut self, call: Call, still_done: impl FnOnce(&mut Self, bool)) -> io::Result<()> {
        self.calls += 1;
        if let Some(fault) = self.fault
            && (fault.nth..fault.nth.saturating_add(fault.calls)).contains(&self.calls)
        {
            self.failed.push(call);
            still_done(self, fault.is_done);
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn note(&mut self, operation: Operation) {
        operation.apply(&mut self.bytes);
        if let Some(operations) = &mut self.operations {
            operations.push(operation);
        }
    }
}

impl Operation {
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => {
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[*offset..offset + data.len()].copy_from_slice(data);
            }
            Self::SetLen(len) => bytes.resize(*len, 0),
            Self::Sync => {}
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        state.call(Call::Read, |_, _| {})?;
        let offset = offset as usize;
        let found = state.bytes.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        let operation = Operation::SetLen(len as usize);
        state.call(Call::SetLen, |state, is_done| {
            if is_done {
                state.note(operation.clone());
            }
        })?;
        state.note(operation);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.call(Call::Sync, |_, _| {})?;
        state.note(Operation::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let offset = offset as usize;
        state.call(Call::Write, |state, is_done| {
            let done = if is_done { data } else { &data[..data.len() / 2] };
            state.note(Operation::Write { offset, data: done.to_vec() });
        })?;
        state.note(Operation::Write { offset, data: data.to_vec() });
        Ok(())
    }
}
