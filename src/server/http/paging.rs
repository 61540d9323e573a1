//! Pages of lists. The core gives lists in steps, each under a lock for a short time; between bursts of steps there is a
//! pause, as in long responses of the service ports.

use serde::Serialize;

use super::super::steps;
use super::answer::ApiError;
use super::query::Parameters;

/// Entries of a page if the request does not say.
const LIMIT_USUAL: usize = 100;

/// Most entries of a page.
const LIMIT_MAX: usize = 1000;

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
    pub(super) items: Vec<T>,
    /// Entries of the whole list.
    pub(super) total: usize,
    pub(super) offset: usize,
    pub(super) limit: usize,
}

impl Page {
    pub(super) fn of(parameters: &mut Parameters) -> Result<Self, ApiError> {
        let offset = parameters.number("offset", u32::MAX.into())?.unwrap_or(0) as usize;
        let limit = parameters.number("limit", LIMIT_MAX as u64)?.map_or(LIMIT_USUAL, |limit| limit as usize);
        Ok(Self { offset, limit })
    }

    /// Takes a list to its end, and keeps the entries of the page. `next` takes a step; it returns none at the end.
    pub(super) async fn take<E, T>(
        self,
        mut next: impl FnMut() -> Vec<E>,
        mut is_wanted: impl FnMut(&E) -> bool,
        mut item: impl FnMut(E) -> T,
    ) -> Paged<T> {
        let (mut items, mut total, mut taken) = (Vec::new(), 0, 0_u32);
        loop {
            let entries = next();
            if entries.is_empty() {
                return Paged { items, total, offset: self.offset, limit: self.limit };
            }
            for entry in entries.into_iter().filter(|entry| is_wanted(entry)) {
                if total >= self.offset && items.len() < self.limit {
                    items.push(item(entry));
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
