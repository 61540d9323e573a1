//! Values that are one of a few words.

/// Reads and shows an enum by the word of each variant.
macro_rules! words {
    ($type:ident, $unknown:ident: $($variant:ident $word:literal),+) => {
        impl std::str::FromStr for $type {
            type Err = $unknown;

            fn from_str(text: &str) -> Result<Self, $unknown> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($unknown),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $word,)+
                })
            }
        }
    };
}
pub(super) use words;
