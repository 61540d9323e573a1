//! Numbered slots as text.

use signalbox_client::Permit;

/// The slots as ranges, for people: `0-3,7`.
pub(super) fn ranges(slots: &[u16]) -> String {
    let ranges = slots.chunk_by(|slot, next| u32::from(*next) == u32::from(*slot) + 1);
    let ranges = ranges.map(|range| match range {
        [first, .., last] => format!("{first}-{last}"),
        _ => list(range),
    });
    ranges.collect::<Vec<_>>().join(",")
}

/// Each slot, for programs: `0,1,2,3,7`.
pub(super) fn list(slots: &[u16]) -> String {
    slots.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

/// The slots of all names of a permit, for environment variables: `0,1:` is two slots of the first name and none of the
/// second. `None` if no name has slots.
pub(super) fn of_all(slots: &[Vec<u16>]) -> Option<String> {
    let is_any = slots.iter().any(|slots| !slots.is_empty());
    is_any.then(|| slots.iter().map(|slots| list(slots)).collect::<Vec<_>>().join(":"))
}

/// The slots of each claim of a permit, in the order of the claims.
pub(super) fn of(permit: &Permit) -> Vec<Vec<u16>> {
    (0..permit.claims().len()).map(|claim| permit.slots_of(claim).to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_a_range() {
        for (slots, expected, listed) in [
            (&[][..], "", ""),
            (&[5], "5", "5"),
            (&[0, 1], "0-1", "0,1"),
            (&[0, 1, 2, 3, 7, 65_534, 65_535], "0-3,7,65534-65535", "0,1,2,3,7,65534,65535"),
        ] {
            assert_eq!((ranges(slots), list(slots)), (expected.to_owned(), listed.to_owned()));
        }
    }
}
