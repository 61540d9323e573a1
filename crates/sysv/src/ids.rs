//! Facts about sets: how many semaphores those of the server have, and which ids of the kernel look like the server's.
//!
//! Both are tables of fixed size without locks. The child of a fork inherits them, as it inherits the ids.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use signalbox_model::sysv::SetId;

/// The lowest id of the server's sets.
const SERVER_ID_MIN: c_int = SetId::FIRST.0;

/// The most sets whose number of semaphores is remembered. For others, the server is asked.
const COUNTS: usize = 256;

/// The most ids of the kernel that can be distinguished from the server's.
const KERNEL_IDS: usize = 256;

/// The id of a set in the upper half, its number of semaphores in the lower; 0: none.
static SEMAPHORES: [AtomicU64; COUNTS] = [const { AtomicU64::new(0) }; COUNTS];

/// The kernel's ids in the range of the server's; 0: none. A kernel id has an index in its low 15 bits. At least 64
/// indexes are used in turn, and the bits above count the turns, so the ids reach this range only after 64 * 32768
/// sets.
static KERNEL: [AtomicI32; KERNEL_IDS] = [const { AtomicI32::new(0) }; KERNEL_IDS];

/// Returns whether a set is the server's.
pub fn is_of_server(set: c_int) -> bool {
    set >= SERVER_ID_MIN && !KERNEL.iter().map_while(known).any(|known| known == set)
}

fn known(entry: &AtomicI32) -> Option<c_int> {
    Some(entry.load(Ordering::Relaxed)).filter(|id| *id != 0)
}

/// Notes an id that the kernel returned. Fails if it would be taken for one of the server's.
pub fn note_kernel_id(set: c_int) -> Result<(), ()> {
    if set < SERVER_ID_MIN {
        return Ok(());
    }
    for entry in &KERNEL {
        match entry.compare_exchange(0, set, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(known) if known == set => return Ok(()),
            Err(_) => {}
        }
    }
    Err(())
}

/// Remembers how many semaphores a set has.
pub fn note_count(set: c_int, count: u32) {
    let entry = (u64::from(set.cast_unsigned()) << 32) | u64::from(count);
    SEMAPHORES[index_of(set)].store(entry, Ordering::Relaxed);
}

/// The number of semaphores of a set, if it is remembered.
pub fn count(set: c_int) -> Option<u32> {
    let entry = SEMAPHORES[index_of(set)].load(Ordering::Relaxed);
    (entry >> 32 == u64::from(set.cast_unsigned())).then_some((entry & u64::from(u32::MAX)) as u32)
}

fn index_of(set: c_int) -> usize {
    set.cast_unsigned() as usize % COUNTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_set_alone() {
        note_count(0x4000_0001, 3);
        assert_eq!(count(0x4000_0001), Some(3));
        assert_eq!(count(0x4000_0101), None, "another set with the same index");
        note_count(0x4000_0101, 32000);
        assert_eq!(count(0x4000_0101), Some(32000));
        assert_eq!(count(0x4000_0001), None);
    }

    #[test]
    fn ids_of_the_kernel_are_told_from_those_of_the_server() {
        assert!(!is_of_server(5) && !is_of_server(-1) && !is_of_server(0x3fff_ffff));
        assert!(is_of_server(0x4000_0000) && is_of_server(i32::MAX));
        assert_eq!(note_kernel_id(7), Ok(()));
        for id in 0..256 {
            assert_eq!(note_kernel_id(0x5000_0000 + id), Ok(()));
            assert_eq!(note_kernel_id(0x5000_0000 + id), Ok(()));
            assert!(!is_of_server(0x5000_0000 + id));
        }
        assert_eq!(note_kernel_id(0x5000_0100), Err(()));
        assert!(is_of_server(0x5000_0100) && is_of_server(0x4000_0000));
    }
}
