//! Pages of lists. The core returns lists in steps, each under a lock for a short time; between bursts of steps there
//! is a pause, as in long responses of the service ports.
//!
//! Invariant: the entries of a page take at most [`BYTES_MAX`] in JSON, or the page has one entry. Names may be 64 KiB long,
//! and entries may have thousands of slots, so the number of entries alone would not bound a page.

use serde::Serialize;

use super::super::steps;
use super::answer::{ApiError, Json};
use super::query::Parameters;

/// The most entries of a page for a request without a limit.
const LIMIT_USUAL: usize = 100;

/// The most entries that a request may ask for.
const LIMIT_MAX: usize = 1000;

/// The most bytes of the entries of a page, in JSON.
const BYTES_MAX: usize = 128 * 1024;

/// The number of steps between two pauses.
const STEPS: u32 = steps::DUMP_CHUNKS;

/// Takes the parameter for the most entries that a page may have.
pub(super) fn limit_of(parameters: &mut Parameters) -> Result<usize, ApiError> {
    Ok(parameters.number("limit", 0..=LIMIT_MAX)?.unwrap_or(LIMIT_USUAL))
}

/// The part of a list that a request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) offset: usize,
    pub(super) limit: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Paged<T> {
    items: Items<T>,
    /// The number of entries of the whole list.
    pub(super) total: usize,
    offset: usize,
    limit: usize,
    /// The offset of the next page; `None`: no page follows.
    next: Option<usize>,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Items<T> {
    items: Vec<T>,
    #[serde(skip)]
    limit: usize,
    #[serde(skip)]
    bytes: usize,
}

impl<T: Serialize> Items<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self { items: Vec::new(), limit, bytes: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= self.limit
    }

    /// Adds an entry if it fits. Returns whether it did.
    pub(super) fn add(&mut self, item: T) -> Result<bool, ApiError> {
        let bytes = self.bytes + Json::of(&item)?.len();
        let fits = !self.is_full() && (bytes <= BYTES_MAX || self.items.is_empty());
        if fits {
            self.bytes = bytes;
            self.items.push(item);
        }
        Ok(fits)
    }

    pub(super) fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K) {
        self.items.sort_by_cached_key(key);
    }
}

impl<T> Paged<T> {
    /// Returns the entries if no page follows. With an offset of 0, the page then has the whole list.
    pub(super) fn into_whole(self) -> Option<Items<T>> {
        self.next.is_none().then_some(self.items)
    }

    pub(super) fn into_items(self) -> Items<T> {
        self.items
    }
}

impl Page {
    pub(super) fn of(parameters: &mut Parameters) -> Result<Self, ApiError> {
        let offset = parameters.number("offset", 0..=u32::MAX)?.unwrap_or(0) as usize;
        Ok(Self { offset, limit: limit_of(parameters)? })
    }

    /// Goes through the whole list, to count its entries, and keeps those of the page. `next` runs a step, and returns no
    /// entries at the end.
    pub(super) async fn take<E, T: Serialize>(
        self,
        next: impl FnMut() -> Vec<E>,
        mut is_wanted: impl FnMut(&E) -> bool,
        mut item: impl FnMut(E) -> T,
    ) -> Result<Paged<T>, ApiError> {
        let Self { offset, limit } = self;
        let (mut items, mut total) = (Items::new(limit), 0);
        // `end` is the offset of the next page.
        let (mut end, mut is_over) = (offset, limit == 0);
        each_step(next, |entries| {
            for entry in entries.into_iter().filter(|entry| is_wanted(entry)) {
                if total >= offset && !is_over {
                    is_over = !items.add(item(entry))?;
                    end += usize::from(!is_over);
                }
                total += 1;
            }
            Ok(())
        })
        .await?;
        let next = (end > offset && end < total).then_some(end);
        Ok(Paged { items, total, offset, limit, next })
    }

    /// Goes through a list, and keeps the first entries in the order of a key; those with the same key stay in the
    /// order of the list. There is no page after this one: `total` says how many entries were compared.
    pub(super) async fn take_first<E, T: Serialize>(
        self,
        next: impl FnMut() -> Vec<E>,
        mut is_wanted: impl FnMut(&E) -> bool,
        key: impl Fn(&E) -> u64,
        item: impl FnMut(E) -> T,
    ) -> Result<Paged<T>, ApiError> {
        let Self { offset, limit } = self;
        let (mut first, mut total) = (Vec::new(), 0);
        each_step(next, |entries| {
            for entry in entries.into_iter().filter(|entry| is_wanted(entry)) {
                total += 1;
                first.push(entry);
            }
            // The list may be long, so only a bounded number of its entries is kept.
            if first.len() > 2 * LIMIT_MAX {
                first.sort_by_key(&key);
                first.truncate(limit);
            }
            Ok(())
        })
        .await?;
        first.sort_by_key(&key);
        let mut items = Items::new(limit);
        for item in first.into_iter().map(item) {
            if !items.add(item)? {
                break;
            }
        }
        Ok(Paged { items, total, offset, limit, next: None })
    }
}

/// Goes through a list, with pauses. `next` runs a step, and returns no entries at the end; `take` receives the
/// entries of a step.
pub(super) async fn each_step<E>(
    mut next: impl FnMut() -> Vec<E>,
    mut take: impl FnMut(Vec<E>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    for step in 1_u32.. {
        let entries = next();
        if entries.is_empty() {
            break;
        }
        take(entries)?;
        if step.is_multiple_of(STEPS) {
            tokio::time::sleep(steps::PAUSE).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the entries of a page of a list of texts, and where the next page begins.
    async fn page(lengths: &[usize], offset: usize, limit: usize) -> (Vec<usize>, Option<usize>) {
        let mut list = Some(lengths.iter().map(|length| "a".repeat(*length)).collect::<Vec<_>>());
        let next = || list.take().unwrap_or_default();
        let paged = Page { offset, limit }.take(next, |_| true, |text| text).await.unwrap();
        assert_eq!(paged.total, lengths.len());
        (paged.items.items.iter().map(String::len).collect(), paged.next)
    }

    #[tokio::test]
    async fn the_first_entries_of_a_list_are_found_however_long_it_is() {
        // Each step has more entries than the previous one, and the lowest keys come anywhere.
        let key = |step: u64| step * 37 % 101;
        let mut steps = (0..100_u64).map(|step| (0..step).map(|index| (key(step), index)).collect());
        let next = || steps.find(|step: &Vec<_>| !step.is_empty()).unwrap_or_default();
        let page = Page { offset: 0, limit: 150 };
        let paged = page.take_first(next, |(_, index)| index % 2 == 0, |(key, _)| *key, |entry| entry).await;
        let Paged { items, total, next, .. } = paged.unwrap();
        let even = |step: u64| (0..step).filter(|index| index % 2 == 0);
        let mut all: Vec<_> =
            (1..100).flat_map(|step| even(step).map(move |index| (key(step), index))).collect();
        all.sort_unstable();
        assert_eq!((items.items, total, next), (all[..150].to_vec(), all.len(), None));
    }

    #[tokio::test]
    async fn a_page_says_where_the_next_one_begins() {
        assert_eq!(page(&[1, 2, 3], 0, 2).await, (vec![1, 2], Some(2)));
        assert_eq!(page(&[1, 2, 3], 1, 2).await, (vec![2, 3], None));
        assert_eq!(page(&[1, 2, 3], 9, 2).await, (vec![], None));
        assert_eq!(page(&[1, 2, 3], 0, 0).await, (vec![], None), "no page follows one without entries");
    }
}
