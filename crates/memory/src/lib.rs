//! Counts the bytes that the system's allocator has in use, for the memory budget of the server
//! (`docs/decisions/0024`). It is a package of its own, because the other packages of the server forbid unsafe code.
//!
//! A program that does not install [`CountingAllocator`] counts nothing: [`bytes_in_use`] stays 0.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Forwards to the system's allocator, and counts the bytes in use. It is installed with `#[global_allocator]`.
#[derive(Debug)]
pub struct CountingAllocator;

/// The bytes that are allocated at present, including an estimate of what the allocator adds to each allocation.
pub fn bytes_in_use() -> usize {
    // Different threads may count an allocation and its release, so the sum can be slightly out of date.
    IN_USE.load(Ordering::Relaxed)
}

/// The alignment of each allocation in glibc's malloc, the size of the header before it, and its minimum size, all in
/// bytes.
const ALIGNMENT: usize = 16;
const HEADER: usize = 8;
const FOOTPRINT_MIN: usize = 32;

/// The bytes that an allocation takes.
fn footprint(layout: Layout) -> usize {
    // A greater alignment may cost more than this.
    let padding = if layout.align() > ALIGNMENT { layout.align() } else { 0 };
    layout.size().saturating_add(HEADER + padding).next_multiple_of(ALIGNMENT).max(FOOTPRINT_MIN)
}

fn count(pointer: *mut u8, layout: Layout) -> *mut u8 {
    if !pointer.is_null() {
        IN_USE.fetch_add(footprint(layout), Ordering::Relaxed);
    }
    pointer
}

// SAFETY: every call is passed to the system's allocator, which fulfils the contract; counting allocates nothing and
// does not panic.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller fulfils the same contract.
        count(unsafe { System.alloc(layout) }, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        count(unsafe { System.alloc_zeroed(layout) }, layout)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) };
        IN_USE.fetch_sub(footprint(layout), Ordering::Relaxed);
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        if !moved.is_null() {
            // SAFETY: the caller promises that the new size, rounded up to the alignment, does not overflow.
            let after = footprint(unsafe { Layout::from_size_align_unchecked(size, layout.align()) });
            IN_USE.fetch_add(after, Ordering::Relaxed);
            IN_USE.fetch_sub(footprint(layout), Ordering::Relaxed);
        }
        moved
    }
}
