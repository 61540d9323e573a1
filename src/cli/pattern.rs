//! Names by pattern, for `dump`, `list` and `watch`: a name, or a prefix followed by `*`. Other commands refuse
//! such a name, or warn about its `*`, because it looks like a pattern.

use clap::Args;

use super::exit::Failure;
use super::name::Name;
use signalbox_client::Scope;

/// The arguments of a command that lists all names without a pattern.
#[derive(Debug, Args)]
pub(super) struct PatternArguments {
    /// List only this name, or the names with this prefix
    #[arg(value_name = "NAME|PREFIX*", value_parser = Name::parser())]
    pattern: Option<Name>,

    /// Treat a * at the end as a part of the name
    #[arg(long, requires = "pattern")]
    exact: bool,
}

impl PatternArguments {
    /// The only name that is listed, if it is one name.
    pub(super) fn name(&self) -> Option<&Name> {
        self.pattern.as_ref().filter(|pattern| matches!(scope(pattern, self.exact), Scope::Name(_)))
    }

    pub(super) fn scope(&self) -> Scope<&[u8]> {
        self.pattern.as_ref().map_or(Scope::Prefix(b""), |pattern| scope(pattern, self.exact))
    }
}

/// The option of commands that take whole names, which do not have to exist.
#[derive(Debug, Args)]
pub(super) struct WholeNames {
    /// Take names as they are
    ///
    /// Also those that end in *, or look as if an amount followed the name.
    #[arg(long)]
    exact: bool,
}

impl WholeNames {
    /// Whether names that look like something else are meant.
    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Refuses a name that looks like a pattern: it would be a name of its own, which no other client uses.
    pub(super) fn check<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> Result<(), Failure> {
        let pattern = names.into_iter().find(|name| !self.exact && looks_like_pattern(name.bytes()));
        pattern.map_or(Ok(()), |name| {
            Err(Failure::usage(format!(
                "{name} looks like a pattern, but this command takes whole names; if the * is a part of the name, add --exact"
            )))
        })
    }
}

/// Whether `dump`, `list` and `watch` would take the name as a prefix.
pub(super) fn looks_like_pattern(name: &[u8]) -> bool {
    name.ends_with(b"*")
}

/// The names that a pattern stands for.
pub(super) fn scope(pattern: &Name, is_exact: bool) -> Scope<&[u8]> {
    match pattern.bytes().strip_suffix(b"*").filter(|_| !is_exact) {
        Some(prefix) => Scope::Prefix(prefix),
        None => Scope::Name(pattern.bytes()),
    }
}
