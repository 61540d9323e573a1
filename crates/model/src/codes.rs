//! Enums of codes on the wire: each code is written once.

/// Defines an enum with these codes.
#[macro_export]
#[doc(hidden)]
macro_rules! codes {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident: $code:ident {
            $($(#[$doc:meta])* $variant:ident = $value:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($code)]
        pub enum $name {
            $($(#[$doc])* $variant = $value,)*
        }

        impl $name {
            /// The variant with this code; `None` if the code is unknown.
            #[inline]
            pub fn from_code(code: $code) -> Option<Self> {
                Some(match code {
                    $($value => Self::$variant,)*
                    _ => return None,
                })
            }

            /// The code on the wire.
            #[inline]
            pub fn code(self) -> $code {
                self as $code
            }
        }
    };
}
