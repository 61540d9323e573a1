//! Declared semaphores: what `declare`, `resize`, `remove` and `list` have in common.

use std::io::{self, Write};

use serde::Serialize;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::output::{Form, Named, escaped, json};
use crate::client::{DeclaredState, Error, Status};

/// Prints what semaphores came to be, one a line.
pub(super) fn print<'a>(
    form: Form,
    settled: impl Iterator<Item = (&'a Name, &'a DeclaredState)>,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if form == Form::Table {
        writeln!(out, "{:>10}  {:>10}  {:>20}  NAME", "CAPACITY", "IN USE", "GENERATION")?;
    }
    for (name, DeclaredState { generation, capacity, in_use }) in settled {
        let (generation, text) = (generation.0, escaped(name.bytes()));
        match form {
            Form::Table => writeln!(out, "{capacity:>10}  {in_use:>10}  {generation:>20}  {text}")?,
            Form::Tabs => writeln!(out, "{capacity}\t{in_use}\t{generation}\t{text}")?,
            Form::Json => {
                let name = Named::of(name.bytes());
                let (capacity, in_use, generation) = (*capacity, *in_use, generation.to_string());
                writeln!(out, "{}", json(&Line { name, capacity, in_use, generation }))?;
            }
        }
    }
    out.flush()
}

/// What a semaphore came to be, in JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    name: Named<'a>,
    capacity: u32,
    in_use: u32,
    /// As text, since it is larger than what readers that take every number for a double keep whole.
    generation: String,
}

/// That a server has refused to change a semaphore, as a sentence about it.
pub(super) fn refused(error: Error, name: &Name) -> Failure {
    let message = match error {
        Error::Status(Status::NotFound) => {
            format!("no semaphore named {name} is declared; \"signalbox list\" tells which are")
        }
        Error::Status(Status::Removed) => {
            format!("{name} is being removed; wait until its holders are gone, then declare it anew")
        }
        Error::Status(Status::GenerationDiffers) => {
            format!("{name} was changed meanwhile, so it was left as it is; look at it again, then decide")
        }
        Error::Status(Status::NotPermitted) => not_permitted(&format!("{name} is declared by it")),
        error => return error.into(),
    };
    Failure::new(Exit::Failure, message)
}

/// That this client may not do it, or nobody may: `configured` says what its configuration would have to do with it.
pub(super) fn not_permitted(configured: &str) -> String {
    format!(
        "the server does not permit that: ask from an address that may, or change the server's configuration if \
         {configured}"
    )
}
