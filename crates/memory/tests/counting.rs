//! The bytes that are counted, in a program that installs the allocator.

use signalbox_memory::{CountingAllocator, bytes_in_use};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn what_is_allocated_is_counted_until_it_is_freed() {
    const BYTES: usize = 64 << 20;
    // Other threads of the test program allocate little.
    let is_near = |found: usize, expected: usize| found.abs_diff(expected) < BYTES / 8;
    let before = bytes_in_use();
    let mut bytes = vec![1_u8; BYTES];
    assert!(is_near(bytes_in_use() - before, BYTES));
    bytes.reserve_exact(BYTES);
    assert!(is_near(bytes_in_use() - before, 2 * BYTES));
    drop(bytes);
    assert!(bytes_in_use().saturating_sub(before) < BYTES / 8);
    let small: Vec<Box<u8>> = (0..1 << 20).map(|_| Box::new(0)).collect();
    assert!(is_near(bytes_in_use() - before, (32 + 8) << 20), "each box takes a pointer and 32 bytes");
    drop(small);
    assert!(bytes_in_use().saturating_sub(before) < BYTES / 8);
}
