//! Ids, secrets and texts in JSON, as exports write them. A number that may need 64 bits is a string, because many JSON
//! readers would round it.

use std::borrow::Cow;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sysv::{ProcessId, SetId};
use crate::{Generation, GrantId, PlaceKey, RequestId, SessionKey, from_hex, hex};

/// A number of 64 bits as a string, for `#[serde(with)]`.
pub mod decimal {
    use super::*;

    #[expect(missing_docs, reason = "part of the interface of serde")]
    pub fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    #[expect(missing_docs, reason = "part of the interface of serde")]
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("\"{text}\" is not an unsigned 64-bit number")))
    }
}

macro_rules! decimals {
    ($($id:ident)*) => {$(
        impl Serialize for $id {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                decimal::serialize(&self.0, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $id {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                decimal::deserialize(deserializer).map(Self)
            }
        }
    )*};
}

decimals! { Generation GrantId ProcessId RequestId }

macro_rules! secrets {
    ($($secret:ident)*) => {$(
        impl Serialize for $secret {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&hex(&self.0))
            }
        }

        impl<'de> Deserialize<'de> for $secret {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let digits = Cow::<str>::deserialize(deserializer)?;
                let secret = from_hex(&digits).and_then(|bytes| bytes.try_into().ok()).map(Self);
                secret.ok_or_else(|| D::Error::custom("a key must have 32 hexadecimal digits"))
            }
        }
    )*};
}

secrets! { PlaceKey SessionKey }

impl TryFrom<i32> for SetId {
    type Error = String;

    fn try_from(number: i32) -> Result<Self, String> {
        let set = Some(Self(number)).filter(|set| *set >= Self::FIRST);
        set.ok_or_else(|| format!("{number} is not the id of a semaphore set of the server"))
    }
}

/// Defines modules for bytes with `#[serde(flatten, with)]`: under one key if they are printable UTF-8, or otherwise as
/// hexadecimal digits under another one.
macro_rules! texts {
    ($($(#[$doc:meta])* $module:ident: $hex:literal of $lengths:expr;)*) => {$(
        $(#[$doc])*
        pub mod $module {
            use super::*;

            #[derive(Serialize, Deserialize)]
            struct Text<'a> {
                #[serde(skip_serializing_if = "Option::is_none")]
                $module: Option<Cow<'a, str>>,
                #[serde(rename = $hex, skip_serializing_if = "Option::is_none")]
                hex: Option<String>,
            }

            #[expect(missing_docs, reason = "part of the interface of serde")]
            pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
                let text = str::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control));
                let hex = text.is_none().then(|| hex(bytes));
                Text { $module: text.map(Cow::Borrowed), hex }.serialize(serializer)
            }

            #[expect(missing_docs, reason = "part of the interface of serde")]
            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<[u8]>, D::Error> {
                const NAME: &str = stringify!($module);
                let bytes = match Text::deserialize(deserializer)? {
                    Text { $module: Some(text), hex: None } => Ok(text.into_owned().into_bytes()),
                    Text { $module: None, hex: Some(digits) } => from_hex(&digits)
                        .ok_or_else(|| format!("{NAME}_hex must consist of two hexadecimal digits per byte")),
                    _ => Err(format!("the line must have either {NAME} or {NAME}_hex")),
                };
                let bytes = bytes.map_err(D::Error::custom)?;
                if ($lengths).contains(&bytes.len()) {
                    Ok(bytes.into())
                } else {
                    Err(D::Error::custom(format!("a {NAME} must have {:?} bytes", $lengths)))
                }
            }
        }
    )*};
}

texts! {
    /// A name: `name` or `name_hex`.
    name: "name_hex" of 1..=65535;
    /// A label: `label` or `label_hex`.
    label: "label_hex" of 0..=65535;
}
