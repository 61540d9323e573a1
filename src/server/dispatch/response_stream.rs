//! Responses of many frames, which are composed chunk by chunk as fast as the peer takes them.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::Sleep;

use super::super::export::{Export, Next};
use super::super::state::Server;
use super::super::{statistics, steps};
use signalbox_core::{
    ClaimListing, DeclaredListing, Dump, Listing, ListingKind, PlainListing, SessionListing, SetListing,
    UserListing,
};
use signalbox_model::{Namespace, Refusal, SessionId, Status, UnixSeconds};
use signalbox_protocol::{
    DumpEntry, ExtendedOpcode, ExtendedResponse, Opaque, Opcode, Response, SysvOpcode, compose_listed_set,
    compose_listed_user,
};

/// A response of many frames. The connection sends all of it before it executes the next request.
pub(in crate::server) struct ResponseStream {
    source: Source,
    opaque: Opaque,
    chunks: u32,
    /// Runs while no further chunk may be composed.
    pause: Option<Pin<Box<Sleep>>>,
}

enum Source {
    /// The statistics of a port, in one chunk.
    Statistics(Namespace),
    Export(Export),
    /// The entries of a list, which ends with an empty response with this opcode.
    Entries(u8, Compose),
}

/// Appends the next entry.
type Compose = Box<dyn FnMut(&Server, UnixSeconds, &mut Vec<u8>) -> Composed + Send>;

enum Composed {
    Entry,
    /// The step has found nothing. Other connections take their turns before the next step.
    Nothing,
    /// There are no more entries.
    End,
}

impl ResponseStream {
    fn new(source: Source, opaque: Opaque) -> Self {
        Self { source, opaque, chunks: 0, pause: None }
    }

    /// Returns a response with the entries of a list. The core lists them in steps: `step` runs one, and returns
    /// `None` at the end.
    fn entries<E: Send + 'static>(
        opcode: u8,
        opaque: Opaque,
        mut step: impl FnMut(&Server) -> Option<Vec<E>> + Send + 'static,
        compose: impl Fn(&Server, E, &mut Vec<u8>) + Send + 'static,
    ) -> Self {
        let mut entries = Vec::new().into_iter();
        let next = move |server: &Server, _: UnixSeconds, out: &mut Vec<u8>| {
            if entries.len() == 0 {
                let Some(found) = step(server) else { return Composed::End };
                entries = found.into_iter();
            }
            let Some(entry) = entries.next() else { return Composed::Nothing };
            compose(server, entry, out);
            Composed::Entry
        };
        Self::new(Source::Entries(opcode, Box::new(next)), opaque)
    }

    pub(super) fn statistics(port: Namespace, opaque: Opaque) -> Self {
        Self::new(Source::Statistics(port), opaque)
    }

    pub(super) fn export(export: Export, opaque: Opaque) -> Self {
        Self::new(Source::Export(export), opaque)
    }

    pub(super) fn dump(mut names: Dump, opaque: Opaque) -> Self {
        let opcode = Opcode::Dump.code();
        let next = move |server: &Server, now: UnixSeconds, out: &mut Vec<u8>| {
            let shown = names.next(&server.core, now, |name, item| {
                let entry = DumpEntry { consumption: item.consumption, peak: item.peak, name };
                Response::Entry(entry).compose(opcode, opaque, out);
            });
            shown.map_or(Composed::End, |_| Composed::Entry)
        };
        Self::new(Source::Entries(opcode, Box::new(next)), opaque)
    }

    pub(super) fn listing(mut listing: Listing, opaque: Opaque) -> Self {
        let opcode = match listing.kind() {
            ListingKind::Holders => ExtendedOpcode::Holders.code(),
            ListingKind::Waiters => ExtendedOpcode::Waiters.code(),
        };
        let step = move |server: &Server| unless_empty(server.core.list(&mut listing));
        Self::entries(opcode, opaque, step, move |server, (mut entry, connection), out| {
            entry.address = server.address_text(connection);
            ExtendedResponse::Entry(entry.borrowed()).compose(opcode, opaque, out);
        })
    }

    pub(super) fn declared(mut listing: DeclaredListing, opaque: Opaque) -> Self {
        let opcode = ExtendedOpcode::List.code();
        let step = move |server: &Server| unless_empty(server.core.list_declared(&mut listing));
        Self::entries(opcode, opaque, step, move |_, declared, out| {
            ExtendedResponse::DeclaredEntry(declared.entry()).compose(opcode, opaque, out);
        })
    }

    pub(super) fn sessions(mut listing: SessionListing, opaque: Opaque) -> Self {
        let opcode = ExtendedOpcode::Sessions.code();
        let step = move |server: &Server| {
            let connected = |after| server.peers.connected_after(after, steps::LISTED_CONNECTIONS);
            unless_empty(server.core.list_sessions(&mut listing, connected, server.moment()))
        };
        Self::entries(opcode, opaque, step, move |_, listed, out| {
            ExtendedResponse::SessionEntry(listed.borrowed()).compose(opcode, opaque, out);
        })
    }

    /// Returns a response with what sessions have: grants and waiting requests, then plain holdings. Fails if none of
    /// the sessions exists.
    pub(super) fn held(server: &Server, sessions: &[SessionId], opaque: Opaque) -> Result<Self, Refusal> {
        let connected = sessions.iter().filter_map(|session| server.peers.find_session(*session));
        let connections: HashSet<_> = connected.map(|peer| peer.connection).collect();
        if connections.is_empty() && !sessions.iter().any(|session| server.core.has_session(*session)) {
            return Err(Refusal::NoSuchSession);
        }
        let mut claims = ClaimListing::of(sessions.iter().rev().copied().collect());
        let mut plain = PlainListing::of(connections);
        let step = move |server: &Server| {
            let found = unless_empty(server.core.list_claims(&mut claims));
            found.or_else(|| server.core.list_plain(&mut plain, steps::CHECK_NAMES))
        };
        let opcode = ExtendedOpcode::Held.code();
        Ok(Self::entries(opcode, opaque, step, move |server, claimed, out| {
            let held = server.held_entry(claimed);
            ExtendedResponse::HeldEntry(held.borrowed()).compose(opcode, opaque, out);
        }))
    }

    pub(super) fn sets(mut listing: SetListing, opaque: Opaque) -> Self {
        let step = move |server: &Server| unless_empty(server.core.list_sets(&mut listing));
        Self::entries(SysvOpcode::ListSets.code(), opaque, step, move |_, listed, out| {
            compose_listed_set(&listed, opaque, out);
        })
    }

    pub(super) fn users(mut listing: UserListing, opaque: Opaque) -> Self {
        let step = move |server: &Server| unless_empty(server.core.list_set_users(&mut listing));
        Self::entries(SysvOpcode::ListUsers.code(), opaque, step, move |_, listed, out| {
            compose_listed_user(&listed, opaque, out);
        })
    }

    /// Ready when the next chunk can be composed. A long response pauses between bursts of chunks, because a thread that
    /// never sleeps uses up its share of the cores; an export waits for the thread that reads it.
    pub(in crate::server) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        match &mut self.source {
            Source::Export(export) => export.poll_next(context),
            _ => Poll::Ready(()),
        }
    }

    /// Appends entries to `out` until it has `bytes` or more. Returns whether more chunks follow; the last one ends with
    /// the empty response that ends the listing.
    pub(in crate::server) fn fill_chunk(
        &mut self,
        server: &Server,
        now: UnixSeconds,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        while out.len() < bytes {
            match &mut self.source {
                Source::Statistics(port) => {
                    let items = statistics::items(server, server.port(*port));
                    Response::Statistics(&items).compose(Opcode::Stats.code(), self.opaque, out);
                    return false;
                }
                Source::Export(export) => {
                    if !compose_next(export, self.opaque, out) {
                        return false;
                    }
                    break;
                }
                Source::Entries(opcode, compose) => match compose(server, now, out) {
                    Composed::Entry => {}
                    Composed::Nothing => break,
                    Composed::End => {
                        Response::Done.compose(*opcode, self.opaque, out);
                        return false;
                    }
                },
            }
        }
        self.chunks += 1;
        if self.chunks.is_multiple_of(steps::DUMP_CHUNKS) {
            self.pause = Some(Box::pin(tokio::time::sleep(steps::PAUSE)));
        }
        true
    }
}

/// Composes the next part of an export, or its end. Returns whether more follows.
fn compose_next(export: &mut Export, opaque: Opaque, out: &mut Vec<u8>) -> bool {
    let opcode = ExtendedOpcode::Export.code();
    let last = match export.take_next() {
        Some(Next::Text(text)) => {
            ExtendedResponse::ExportPart(&text).compose(opcode, opaque, out);
            return true;
        }
        Some(Next::End) => Response::Done,
        Some(Next::Failed) => Response::Failed(Status::ExportFailed),
        // A server that is being stopped does not wait for the next part.
        None => Response::Failed(Status::ShuttingDown),
    };
    last.compose(opcode, opaque, out);
    false
}

/// Returns the entries of a step; `None` if there are no entries, because only the last step finds none.
fn unless_empty<E>(entries: Vec<E>) -> Option<Vec<E>> {
    (!entries.is_empty()).then_some(entries)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::*;
    use crate::config::Config;
    use crate::server::clock::Clock;
    use signalbox_core::{Claim, NameHasher};

    #[tokio::test(start_paused = true)]
    async fn a_long_dump_pauses_between_bursts_and_a_short_one_does_not() {
        let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
        let mut session = server.core.open_session();
        let (claim, now) = (Claim::new(1, 1).unwrap(), server.clock.now());
        let mut names = 0..;
        // Two names fill a chunk: four chunks, and then forty.
        let name_bytes = steps::DUMP_CHUNK_BYTES / 2;
        for (more, pauses) in [(8, 0), (72, 2)] {
            for number in names.by_ref().take(more) {
                let name = format!("{number:0name_bytes$}");
                server.core.acquire(Namespace::Counters, name.as_bytes(), claim, &mut session, now).unwrap();
            }
            let begun = Instant::now();
            let mut response = ResponseStream::dump(server.core.dump(Namespace::Counters), Opaque([0; 4]));
            let (mut is_more, mut bytes) = (true, 0);
            while is_more {
                poll_fn(|context| response.poll_chunk(context)).await;
                let mut out = Vec::new();
                is_more = response.fill_chunk(&server, now, steps::DUMP_CHUNK_BYTES, &mut out);
                bytes += out.len();
            }
            let listed = server.core.stats(Namespace::Counters).objects as usize;
            assert!(bytes > listed * name_bytes, "the dump is complete");
            assert_eq!(begun.elapsed().as_millis() / steps::PAUSE.as_millis(), pauses, "{listed} names");
        }
    }
}
