//! The ids of grants and generations.
//!
//! Invariants: ids grow and are never reused. With a store, no id above the reservation in it is allocated, so
//! that a later run starts above all ids of this one.

use signalbox_model::Refusal;

/// The number of ids that are reserved at a time. The reservation is extended when half of it is left, which is more
/// than can be allocated while a store fails. A server starts above the Unix time in milliseconds times 2^20, so a
/// reservation reaches about a minute ahead of the clock.
const RESERVATION: u64 = 1 << 36;

#[derive(Debug, Default)]
pub(super) struct IdAllocator {
    last: u64,
    reservation: Option<Reservation>,
}

/// The reservation of ids in the store.
#[derive(Debug)]
struct Reservation {
    /// The highest id that may be allocated.
    up_to: u64,
    /// Whether a higher one is being stored.
    is_extending: bool,
}

impl IdAllocator {
    /// Starts above this id, unless the last one is higher already.
    pub(super) fn start_after(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    /// From now on, ids are allocated only from what [`Self::reserve_up_to`] has reserved in a store.
    pub(super) fn require_reservations(&mut self) {
        self.reservation = Some(Reservation { up_to: self.last, is_extending: false });
    }

    /// The last id that was allocated, or may have been in an earlier run.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn next(&mut self) -> Result<u64, Refusal> {
        if self.reservation.as_ref().is_some_and(|reservation| self.last >= reservation.up_to) {
            // The store has failed until the reservation was used up. A later run whose clock was set back could allocate
            // the ids beyond it again.
            return Err(Refusal::NotStored);
        }
        self.last += 1;
        Ok(self.last)
    }

    /// Begins an extension. Returns the highest id of the reservation that must be stored; `None`: enough ids are
    /// reserved, or a reservation is being stored.
    pub(super) fn begin_extension(&mut self) -> Option<u64> {
        let reservation = self.reservation.as_mut()?;
        let is_enough = reservation.up_to.saturating_sub(self.last) >= RESERVATION / 2;
        if reservation.is_extending || is_enough {
            return None;
        }
        reservation.is_extending = true;
        Some(self.last + RESERVATION)
    }

    /// Notes that the store has a reservation up to this id.
    pub(super) fn reserve_up_to(&mut self, up_to: u64) {
        if let Some(reservation) = &mut self.reservation {
            *reservation = Reservation { up_to, is_extending: false };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_above_the_reservation_is_allocated() {
        let mut ids = IdAllocator::default();
        ids.start_after(10);
        ids.require_reservations();
        assert_eq!(ids.next(), Err(Refusal::NotStored), "nothing is reserved");
        ids.reserve_up_to(12);
        assert_eq!([ids.next(), ids.next(), ids.next()], [Ok(11), Ok(12), Err(Refusal::NotStored)]);
        ids.reserve_up_to(13);
        assert_eq!([ids.next(), ids.next()], [Ok(13), Err(Refusal::NotStored)]);
    }

    #[test]
    fn a_reservation_is_extended_once_at_a_time_when_less_than_half_is_left() {
        let mut ids = IdAllocator::default();
        assert_eq!(ids.begin_extension(), None, "there is no store");
        ids.require_reservations();
        assert_eq!(ids.begin_extension(), Some(RESERVATION));
        assert_eq!(ids.begin_extension(), None, "it is being stored");
        ids.reserve_up_to(RESERVATION);
        assert_eq!(ids.begin_extension(), None, "enough is left");
        ids.start_after(RESERVATION / 2);
        assert_eq!(ids.begin_extension(), None, "exactly half is left");
        assert_eq!(ids.next(), Ok(RESERVATION / 2 + 1));
        assert_eq!(ids.begin_extension(), Some(RESERVATION / 2 + 1 + RESERVATION));
    }
}
