//! The JSON API. Its objects have the keys of the objects that the command line prints with `--json` (`docs/cli.md`).

pub(super) mod changes;
pub(super) mod declarations;
pub(super) mod grants;
pub(super) mod lists;
pub(super) mod names;
pub(super) mod status;
