//! Characters that are shown as something else than a visible character of their own.

/// Whether a character does more or less than show itself: a terminal executes control characters, direction marks change
/// the order in which the text around them is shown, and invisible characters and unusual spaces make one name look like
/// another. Letters that look alike, such as those of two scripts, are not among them.
#[doc(hidden)] // For the command line.
pub fn is_unsafe(character: char) -> bool {
    let number = u32::from(character);
    let after = RANGES.partition_point(|(_, last)| *last < number);
    character.is_control() || RANGES.get(after).is_some_and(|(first, _)| *first <= number)
}

/// The characters of Unicode 16 with the property Default_Ignorable_Code_Point or one of the categories Cf (format), Zl,
/// Zp and Zs (separators and spaces) except U+0020, and U+2800, which is blank too. Ascending.
const RANGES: &[(u32, u32)] = &[
    (0x00a0, 0x00a0),
    (0x00ad, 0x00ad),
    (0x034f, 0x034f),
    (0x0600, 0x0605),
    (0x061c, 0x061c),
    (0x06dd, 0x06dd),
    (0x070f, 0x070f),
    (0x0890, 0x0891),
    (0x08e2, 0x08e2),
    (0x115f, 0x1160),
    (0x1680, 0x1680),
    (0x17b4, 0x17b5),
    (0x180b, 0x180f),
    (0x2000, 0x200f),
    (0x2028, 0x202f),
    (0x205f, 0x206f),
    (0x2800, 0x2800),
    (0x3000, 0x3000),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0fff),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_ascend() {
        assert!(RANGES.iter().all(|(first, last)| first <= last));
        assert!(RANGES.is_sorted_by(|(_, last), (first, _)| last < first));
    }

    #[test]
    fn what_shows_itself_is_safe() {
        for unsafe_one in "\u{1b}\u{7f}\u{9b}\u{a0}\u{ad}\u{34f}\u{61c}\u{200b}\u{200d}\u{2028}\u{202e}\u{2060}\u{3000}\u{3164}\
                           \u{fe0f}\u{feff}\u{e0041}"
            .chars()
        {
            assert!(is_unsafe(unsafe_one), "{unsafe_one:?}");
        }
        for safe in " aZ~¡ßשאйа日한０🚚\u{301}".chars() {
            assert!(!is_unsafe(safe), "{safe:?}");
        }
    }
}
