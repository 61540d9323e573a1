//! Responses of many frames, which are composed chunk by chunk as fast as the peer takes them.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::vec::IntoIter;

use tokio::time::Sleep;

use super::super::export::{Export, Next};
use super::super::state::Server;
use super::super::{statistics, steps};
use signalbox_core::{
    ClaimListing, Claimed, DeclaredListing, DeclaredSemaphore, Dump, Listed, ListedSession, Listing,
    ListingKind, PlainListing, SessionListing, SetListing, UserListing,
};
use signalbox_model::sysv::{ListedSet, ListedUser};
use signalbox_model::{Namespace, Refusal, SessionId, Status, UnixSeconds};
use signalbox_protocol::{
    DumpEntry, ExtendedOpcode, ExtendedResponse, Opaque, Opcode, Response, SysvOpcode, compose_listed_set,
    compose_listed_user,
};

/// A response of many frames. The connection sends all of it before it executes the next request.
#[derive(Debug)]
pub(in crate::server) struct ResponseStream {
    source: Source,
    opaque: Opaque,
    chunks: u32,
    /// Runs while no further chunk may be composed.
    pause: Option<Pin<Box<Sleep>>>,
}

/// The entries to send. The core lists them in steps; an iterator has those of the current step.
#[derive(Debug)]
enum Source {
    /// Of a port; it has one chunk.
    Statistics(Namespace),
    Dump(Dump),
    Listing(Listing, IntoIter<Listed>),
    Declared(DeclaredListing, IntoIter<DeclaredSemaphore>),
    Sessions(SessionListing, IntoIter<ListedSession>),
    Held(Held, IntoIter<Claimed>),
    Export(Export),
    Sets(SetListing, IntoIter<ListedSet>),
    Users(UserListing, IntoIter<ListedUser>),
}

/// What is left of a Held: grants and waiting requests, then plain holdings.
#[derive(Debug)]
struct Held {
    claims: ClaimListing,
    plain: PlainListing,
}

impl Held {
    /// The next step, which may find nothing; `None`: it was the last one.
    fn step(&mut self, server: &Server) -> Option<Vec<Claimed>> {
        let claims = server.core.list_claims(&mut self.claims);
        if claims.is_empty() {
            server.core.list_plain(&mut self.plain, steps::CHECK_NAMES)
        } else {
            Some(claims)
        }
    }
}

impl ResponseStream {
    fn new(source: Source, opaque: Opaque) -> Self {
        Self { source, opaque, chunks: 0, pause: None }
    }

    pub(super) fn statistics(port: Namespace, opaque: Opaque) -> Self {
        Self::new(Source::Statistics(port), opaque)
    }

    pub(super) fn dump(names: Dump, opaque: Opaque) -> Self {
        Self::new(Source::Dump(names), opaque)
    }

    pub(super) fn listing(listing: Listing, opaque: Opaque) -> Self {
        Self::new(Source::Listing(listing, Vec::new().into_iter()), opaque)
    }

    pub(super) fn declared(listing: DeclaredListing, opaque: Opaque) -> Self {
        Self::new(Source::Declared(listing, Vec::new().into_iter()), opaque)
    }

    pub(super) fn sessions(listing: SessionListing, opaque: Opaque) -> Self {
        Self::new(Source::Sessions(listing, Vec::new().into_iter()), opaque)
    }

    /// Refused if none of the sessions exists.
    pub(super) fn held(server: &Server, sessions: &[SessionId], opaque: Opaque) -> Result<Self, Refusal> {
        let connected = sessions.iter().filter_map(|session| server.peers.find_session(*session));
        let connections: HashSet<_> = connected.map(|peer| peer.connection).collect();
        if connections.is_empty() && !sessions.iter().any(|session| server.core.has_session(*session)) {
            return Err(Refusal::NoSuchSession);
        }
        let claims = ClaimListing::of(sessions.iter().rev().copied().collect());
        let held = Held { claims, plain: PlainListing::of(connections) };
        Ok(Self::new(Source::Held(held, Vec::new().into_iter()), opaque))
    }

    pub(super) fn export(export: Export, opaque: Opaque) -> Self {
        Self::new(Source::Export(export), opaque)
    }

    pub(super) fn sets(listing: SetListing, opaque: Opaque) -> Self {
        Self::new(Source::Sets(listing, Vec::new().into_iter()), opaque)
    }

    pub(super) fn users(listing: UserListing, opaque: Opaque) -> Self {
        Self::new(Source::Users(listing, Vec::new().into_iter()), opaque)
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
            let (opcode, is_more) = match &mut self.source {
                Source::Export(export) => {
                    if !compose_next(export, self.opaque, out) {
                        return false;
                    }
                    break;
                }
                Source::Sessions(listing, entries) => {
                    let connected = |after: Option<SessionId>| {
                        server.peers.connected_after(after, steps::LISTED_CONNECTIONS)
                    };
                    let list = || server.core.list_sessions(listing, connected, server.moment());
                    let next = next_entry(entries, list);
                    if let Some(listed) = &next {
                        let response = ExtendedResponse::SessionEntry(listed.borrowed());
                        response.compose(ExtendedOpcode::Sessions.code(), self.opaque, out);
                    }
                    (ExtendedOpcode::Sessions.code(), next.is_some())
                }
                Source::Held(held, entries) => {
                    if entries.len() == 0
                        && let Some(step) = held.step(server)
                    {
                        *entries = step.into_iter();
                        if entries.len() == 0 {
                            // Other connections take their turn, however many names hold nothing.
                            break;
                        }
                    }
                    let next = entries.next();
                    let is_more = next.is_some();
                    if let Some(claimed) = next {
                        let held = server.held_entry(claimed);
                        let response = ExtendedResponse::HeldEntry(held.borrowed());
                        response.compose(ExtendedOpcode::Held.code(), self.opaque, out);
                    }
                    (ExtendedOpcode::Held.code(), is_more)
                }
                Source::Statistics(port) => {
                    let items = statistics::items(server, server.port(*port));
                    Response::Statistics(&items).compose(Opcode::Stats.code(), self.opaque, out);
                    return false;
                }
                Source::Dump(names) => {
                    let opcode = Opcode::Dump.code();
                    let shown = names.next(&server.core, now, |name, item| {
                        let entry = DumpEntry { consumption: item.consumption, peak: item.peak, name };
                        Response::Entry(entry).compose(opcode, self.opaque, out);
                    });
                    (opcode, shown.is_some())
                }
                Source::Listing(listing, entries) => {
                    let opcode = match listing.kind() {
                        ListingKind::Holders => ExtendedOpcode::Holders,
                        ListingKind::Waiters => ExtendedOpcode::Waiters,
                    };
                    let next = next_entry(entries, || server.core.list(listing));
                    let is_more = next.is_some();
                    if let Some((mut entry, connection)) = next {
                        entry.address = server.peers.address_text(connection);
                        let entry = ExtendedResponse::Entry(entry.borrowed());
                        entry.compose(opcode.code(), self.opaque, out);
                    }
                    (opcode.code(), is_more)
                }
                Source::Declared(listing, entries) => {
                    let opcode = ExtendedOpcode::List.code();
                    let next = next_entry(entries, || server.core.list_declared(listing));
                    if let Some(declared) = &next {
                        let entry = ExtendedResponse::DeclaredEntry(declared.entry());
                        entry.compose(opcode, self.opaque, out);
                    }
                    (opcode, next.is_some())
                }
                Source::Sets(listing, entries) => {
                    let next = next_entry(entries, || server.core.list_sets(listing));
                    if let Some(listed) = &next {
                        compose_listed_set(listed, self.opaque, out);
                    }
                    (SysvOpcode::ListSets.code(), next.is_some())
                }
                Source::Users(listing, entries) => {
                    let next = next_entry(entries, || server.core.list_set_users(listing));
                    if let Some(listed) = &next {
                        compose_listed_user(listed, self.opaque, out);
                    }
                    (SysvOpcode::ListUsers.code(), next.is_some())
                }
            };
            if !is_more {
                Response::Done.compose(opcode, self.opaque, out);
                return false;
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

/// The next entry of the current step of a listing, or of the next step.
fn next_entry<E>(entries: &mut IntoIter<E>, list: impl FnOnce() -> Vec<E>) -> Option<E> {
    if entries.len() == 0 {
        *entries = list().into_iter();
    }
    entries.next()
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
