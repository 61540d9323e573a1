//! The migration of a data file from an older format, when a server opens it for writing.
//!
//! It is part of the transaction that stores the server's epoch: a file has all of the new format or all of the old one. A
//! check or an export of an older file decodes its records in their own format, and does not change them.

use redb::{ReadableTable, Table};

use super::engine::{FORMAT_KEY, METADATA, format_of};
use super::record::{FORMAT, OLDEST_FORMAT, decode_from, encode_value};

/// Rewrites the records of an older format in the present one; changes nothing if they have it already. Fails if a record
/// cannot be decoded, or the format is unknown.
pub(super) fn migrate(table: &mut Table<'_, &'static [u8], &'static [u8]>) -> Result<(), redb::Error> {
    let format = match format_of(table)? {
        Some(FORMAT) => return Ok(()),
        Some(format @ OLDEST_FORMAT..FORMAT) => format,
        Some(_) | None => return Err(redb::Error::Corrupted("it has no valid format number".to_owned())),
    };
    let mut rewritten = Vec::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        let (key, value) = (key.value(), value.value());
        if key.first() == Some(&METADATA) {
            continue;
        }
        let record =
            decode_from(format, key, value).map_err(|error| redb::Error::Corrupted(error.to_string()))?;
        let after = encode_value(&record);
        if after != value {
            rewritten.push((key.to_vec(), after));
        }
    }
    for (key, value) in rewritten {
        table.insert(key.as_slice(), value.as_slice())?;
    }
    table.insert(FORMAT_KEY, FORMAT.to_be_bytes().as_slice())?;
    Ok(())
}
