//! A name as an argument: any bytes, UTF-8 or not.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;

use clap::builder::{OsStringValueParser, TypedValueParser};

use signalbox_client::{Error, checked};
use signalbox_model::Quoted;

/// A name of a valid length.
#[derive(Clone, Debug)]
pub(super) struct Name(Vec<u8>);

impl Name {
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(Self::try_from)
    }

    pub(super) fn new(bytes: Vec<u8>) -> Result<Self, Error> {
        checked(&bytes)?;
        Ok(Self(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<OsString> for Name {
    type Error = Error;

    fn try_from(argument: OsString) -> Result<Self, Error> {
        Self::new(argument.into_vec())
    }
}

/// For messages.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Quoted(&self.0).fmt(f)
    }
}

/// The names in quotes, separated by commas.
pub(super) fn quoted<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    names.into_iter().map(Name::to_string).collect::<Vec<_>>().join(", ")
}
