//! The warnings of the client that a user has to know of: a file that cannot be read again, and why a session does not get
//! another connection. What has already failed is reported by the command itself.

use std::fmt::Debug;

use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::exit::warn;

/// The modules of the client that they come from.
const SOURCES: [&str; 2] = ["signalbox_client::reread", "signalbox_client::lease::reconnect"];

struct Warnings;

impl<S: Subscriber> Layer<S> for Warnings {
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() == Level::WARN && SOURCES.contains(&metadata.target()) {
            event.record(&mut |field: &Field, value: &dyn Debug| {
                if field.name() == "message" {
                    warn(&format!("{value:?}"));
                }
            });
        }
    }
}

/// Prints them from now on.
pub(super) fn show() {
    // Fails if they are printed already.
    let _ = set_global_default(tracing_subscriber::registry().with(Warnings));
}
