//! Names by pattern, for `dump`, `list` and `watch`: a name, or a prefix with a `*` behind it.

use clap::Args;

use super::name::Name;
use crate::client::Scope;

/// The arguments of a command that lists all names without a pattern.
#[derive(Debug, Args)]
pub(super) struct PatternArguments {
    /// List only this name, or with a * at the end only names with this prefix
    #[arg(value_name = "NAME|PREFIX*", value_parser = Name::parser())]
    pattern: Option<Name>,

    /// Treat a * at the end as a part of the name
    #[arg(long, requires = "pattern")]
    exact: bool,
}

impl PatternArguments {
    pub(super) fn scope(&self) -> Scope<'_> {
        self.pattern.as_ref().map_or(Scope::Prefix(b""), |pattern| scope(pattern, self.exact))
    }
}

/// The names that a pattern stands for.
pub(super) fn scope(pattern: &Name, is_exact: bool) -> Scope<'_> {
    match pattern.bytes().strip_suffix(b"*").filter(|_| !is_exact) {
        Some(prefix) => Scope::Prefix(prefix),
        None => Scope::Name(pattern.bytes()),
    }
}

pub(super) fn contains(scope: Scope<'_>, name: &[u8]) -> bool {
    match scope {
        Scope::Name(only) => name == only,
        Scope::Prefix(prefix) => name.starts_with(prefix),
    }
}
