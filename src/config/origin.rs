//! Where keys were set: a line of the file, a variable of the environment, or an option of the command line. A later one
//! of these replaces an earlier one. Errors about several keys together name it.

use std::collections::BTreeMap;

/// The keys that were set, by name, and the last place that set each.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins(pub(super) BTreeMap<&'static str, Origin>);

/// Where a key was set; a later variant replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    Line(usize),
    Variable(String),
    Option(&'static str),
}

impl Origins {
    pub(super) fn of_lines(lines: impl IntoIterator<Item = (&'static str, usize)>) -> Self {
        Self(lines.into_iter().map(|(key, line)| (key, Origin::Line(line))).collect())
    }
}
