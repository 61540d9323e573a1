//! The message for a refusal because of a limit of the server.

use signalbox_model::{Limit, ReachedLimit};

/// Which limit is reached, and what to do. `None`: the server did not say which.
pub(super) fn advice(reached: Option<ReachedLimit>) -> String {
    let Some(ReachedLimit { limit, max, is_share }) = reached else {
        return "a limit of sessions, requests or watches is reached; close or finish some first".to_owned();
    };
    let (state, what_to_do) = match limit {
        Limit::Sessions => ("the server has no room for another session", "close a session"),
        Limit::Grants => {
            ("the session has no room for another grant or waiting request", "release a grant of it")
        }
        Limit::Waiters => ("no further request may wait for this name", "try again later"),
        Limit::Watches => ("the server has no room for another watch", "end a watch"),
        Limit::Memory => ("the server has no memory left for further requests", "try again later"),
        Limit::Exports => {
            return format!("{max} exports are read at the moment; try again later");
        }
        // Its client has to be corrected; no key changes it.
        Limit::Requests => {
            return format!(
                "the request is more than {max} above the oldest unanswered request of its session; wait for the \
                responses to earlier requests"
            );
        }
    };
    if is_share {
        return format!(
            "this client has its share of what the server has room for ({key} = {max} for each client); {what_to_do}, or \
             raise client_share or {key} in the server's configuration",
            key = limit.key()
        );
    }
    format!(
        "{state} ({key} = {max}); {what_to_do}, or raise {key} in the server's configuration",
        key = limit.key()
    )
}
