//! Numbered slots as text.

/// The slots with their ranges drawn together, for people: `0-3,7`.
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
