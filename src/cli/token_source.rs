//! Where the token of the client subcommands comes from: a file or the environment. It is not an argument, because every user
//! of a machine can read the arguments of all processes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::Args;
use clap::builder::{BoolishValueParser, OsStringValueParser, TypedValueParser};

use super::exit::Failure;
use signalbox_client::Token;

/// The variable that names the file with the token.
pub(super) const FILE: &str = "SIGNALBOX_TOKEN_FILE";

/// The variable that has the token itself.
const VARIABLE: &str = "SIGNALBOX_TOKEN";

/// The variable of `--token-over-plain`.
pub(super) const OVER_PLAIN: &str = "SIGNALBOX_TOKEN_OVER_PLAIN";

/// The options of the token of all client subcommands.
#[derive(Clone, Debug, Args)]
pub(super) struct TokenSource {
    /// File with the token that proves what this client may do
    ///
    /// Without it, or with an empty FILE, the environment variable SIGNALBOX_TOKEN may have the token itself.
    #[arg(long, value_name = "FILE", env = FILE, value_parser = OsStringValueParser::new().map(PathBuf::from), global = true)]
    token_file: Option<PathBuf>,

    /// Send the token also without TLS to other machines
    ///
    /// Others may read it there; the server accepts it only with access.tokens_over_plain.
    #[arg(long, env = OVER_PLAIN, value_parser = BoolishValueParser::new(), global = true)]
    token_over_plain: bool,

    /// What was read from the file. The client reads it again for each connection.
    #[arg(skip)]
    loaded: Arc<OnceLock<Token>>,
}

impl TokenSource {
    /// The token; `None`: there is none.
    pub(super) fn load(&self) -> Result<Option<Token>, Failure> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(Some(loaded.clone()));
        }
        let token = match self.file() {
            Some(path) => Some(Token::from_file(path).map_err(|error| {
                Failure::usage(format!(
                    "cannot read the token from {}: {error}; check --token-file",
                    path.display()
                ))
            })?),
            None => {
                std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()).map(|text| Token::new(&text))
            }
        };
        let token = if self.token_over_plain { token.map(Token::over_plain) } else { token };
        Ok(token.map(|token| self.loaded.get_or_init(|| token).clone()))
    }

    /// Whether the token may be sent without TLS to other machines.
    pub(super) fn is_over_plain(&self) -> bool {
        self.token_over_plain
    }

    /// The file that has the token; `None`: the environment may have it.
    pub(super) fn file(&self) -> Option<&Path> {
        // An empty variable counts as not set, as with SIGNALBOX_TOKEN.
        self.token_file.as_deref().filter(|path| !path.as_os_str().is_empty())
    }
}
