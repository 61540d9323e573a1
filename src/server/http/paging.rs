//! Pages of lists. The core gives lists in steps, each under a lock for a short time; between bursts of steps there is a
//! pause, as in long responses of the service ports.
//!
//! Invariant: the entries of a page take at most [`BYTES_MAX`] in JSON, or the page has one entry. Names may be 64 KiB long,
//! and entries may have thousands of slots, so the number of entries alone would not bound a page.

use std::sync::Arc;

use serde::Serialize;

use super::super::steps;
use super::answer::{ApiError, json_bytes};
use super::budget::{AnswerMemory, FREE_BYTES, Reservation};
use super::query::Parameters;

/// Entries of a page if the request does not say.
const LIMIT_USUAL: usize = 100;

/// Most entries of a page.
const LIMIT_MAX: usize = 1000;

/// Most bytes of the entries of a page, in JSON.
const BYTES_MAX: usize = 512 * 1024;

/// Entries take at most so many times as much memory as their JSON, until that is written.
const MEMORY_FACTOR: usize = 2;

/// Steps between two pauses.
const STEPS: u32 = steps::DUMP_CHUNKS;

/// Which part of a list is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) offset: usize,
    pub(super) limit: usize,
}

/// A part of a list.
#[derive(Debug, Serialize)]
pub(super) struct Paged<T> {
    items: Items<T>,
    /// Entries of the whole list.
    pub(super) total: usize,
    offset: usize,
    limit: usize,
    /// The offset of the next page; `None`: this is the last one.
    next: Option<usize>,
}

/// The entries of a page, and the memory that they take.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Items<T> {
    items: Vec<T>,
    #[serde(skip)]
    bytes: usize,
    #[serde(skip)]
    memory: Reservation,
}

impl<T: Serialize> Items<T> {
    pub(super) fn new(answer: &Arc<AnswerMemory>) -> Self {
        Self { items: Vec::new(), bytes: 0, memory: Reservation::new(answer) }
    }

    /// Adds an entry if it fits. Returns whether it did. Fails if the answers that are in progress leave no room for it.
    pub(super) fn add(&mut self, item: T) -> Result<bool, ApiError> {
        let bytes = self.bytes + json_bytes(&item)?;
        if bytes > BYTES_MAX && !self.items.is_empty() {
            return Ok(false);
        }
        self.memory.set(if bytes > FREE_BYTES { bytes * MEMORY_FACTOR } else { bytes })?;
        self.bytes = bytes;
        self.items.push(item);
        Ok(true)
    }
}

impl<T> Paged<T> {
    /// The entries of a page that has gone over `passed` entries, with those that do not exist any more.
    pub(super) fn new(page: Page, items: Items<T>, passed: usize, total: usize) -> Self {
        let end = page.offset.saturating_add(passed);
        let next = (passed > 0 && end < total).then_some(end);
        Self { items, total, offset: page.offset, limit: page.limit, next }
    }

    pub(super) fn into_items(self) -> Items<T> {
        self.items
    }
}

impl Page {
    pub(super) fn of(parameters: &mut Parameters) -> Result<Self, ApiError> {
        let offset = parameters.number("offset", u32::MAX.into())?.unwrap_or(0) as usize;
        let limit = parameters.number("limit", LIMIT_MAX as u64)?.map_or(LIMIT_USUAL, |limit| limit as usize);
        Ok(Self { offset, limit })
    }

    /// Takes a list to its end, and keeps the entries of the page. `next` takes a step; it returns none at the end. Fails if
    /// the answers that are in progress leave no room for the page.
    pub(super) async fn take<E, T: Serialize>(
        self,
        answer: &Arc<AnswerMemory>,
        mut next: impl FnMut() -> Vec<E>,
        mut is_wanted: impl FnMut(&E) -> bool,
        mut item: impl FnMut(E) -> T,
    ) -> Result<Paged<T>, ApiError> {
        let (mut items, mut total, mut taken) = (Items::new(answer), 0, 0_u32);
        let (mut passed, mut is_full) = (0, false);
        loop {
            let entries = next();
            if entries.is_empty() {
                return Ok(Paged::new(self, items, passed, total));
            }
            for entry in entries.into_iter().filter(|entry| is_wanted(entry)) {
                if total >= self.offset && passed < self.limit && !is_full {
                    is_full = !items.add(item(entry))?;
                    passed += usize::from(!is_full);
                }
                total += 1;
            }
            taken += 1;
            if taken.is_multiple_of(STEPS) {
                tokio::time::sleep(steps::PAUSE).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::listener::Peer;
    use super::super::shared::Shared;
    use super::*;
    use crate::config::Config;

    /// The lengths of the entries of a page of a list of texts, and where the next page begins.
    async fn page(lengths: &[usize], offset: usize, limit: usize) -> (Vec<usize>, Option<usize>) {
        let shared = Arc::new(Shared::new(&Config::without_file(), None));
        let answer = AnswerMemory::new(&shared, Peer::of_test().client.address);
        let mut list = Some(lengths.iter().map(|length| "a".repeat(*length)).collect::<Vec<_>>());
        let next = || list.take().unwrap_or_default();
        let paged = Page { offset, limit }.take(&answer, next, |_| true, |text| text).await.unwrap();
        assert_eq!(paged.total, lengths.len());
        (paged.items.items.iter().map(String::len).collect(), paged.next)
    }

    #[tokio::test]
    async fn a_page_ends_early_when_its_entries_are_long() {
        let long = BYTES_MAX / 2;
        let lengths = [long, 10, long, long, 3 * BYTES_MAX, 7];
        assert_eq!(page(&lengths, 0, 100).await, (vec![long, 10], Some(2)));
        assert_eq!(page(&lengths, 2, 100).await, (vec![long], Some(3)));
        assert_eq!(page(&lengths, 3, 100).await, (vec![long], Some(4)));
        assert_eq!(page(&lengths, 4, 100).await, (vec![3 * BYTES_MAX], Some(5)));
        assert_eq!(page(&lengths, 5, 100).await, (vec![7], None));
    }

    #[tokio::test]
    async fn a_page_says_where_the_next_one_begins() {
        assert_eq!(page(&[1, 2, 3], 0, 2).await, (vec![1, 2], Some(2)));
        assert_eq!(page(&[1, 2, 3], 1, 2).await, (vec![2, 3], None));
        assert_eq!(page(&[1, 2, 3], 9, 2).await, (vec![], None));
        assert_eq!(page(&[1, 2, 3], 0, 0).await, (vec![], None), "no page follows one without entries");
    }
}
