//! Answers of many frames, which go out piece by piece while their peer takes them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::time::Sleep;

use super::super::{Server, steps};
use super::translation::{declared_on_wire, entry_on_wire};
use crate::core::{Declared, DeclaredListing, Dump, Listed, Listing, UnixSeconds};
use crate::protocol::{DumpEntry, ExtendedOpcode, ExtendedResponse, Opaque, Opcode, Response};

/// What a connection owes its peer before it answers anything else.
#[derive(Debug)]
pub(in crate::server) struct Owed {
    what: What,
    opaque: Opaque,
    pieces: u32,
    /// Until when no further piece is prepared.
    rest: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum What {
    Dump(Dump),
    /// With the entries of the step that is under way.
    Listing(Listing, std::vec::IntoIter<Listed>),
    Declared(DeclaredListing, std::vec::IntoIter<Declared>),
}

impl Owed {
    fn new(what: What, opaque: Opaque) -> Self {
        Self { what, opaque, pieces: 0, rest: None }
    }

    pub(super) fn dump(names: Dump, opaque: Opaque) -> Self {
        Self::new(What::Dump(names), opaque)
    }

    pub(super) fn listing(listing: Listing, opaque: Opaque) -> Self {
        Self::new(What::Listing(listing, Vec::new().into_iter()), opaque)
    }

    pub(super) fn declared(listing: DeclaredListing, opaque: Opaque) -> Self {
        Self::new(What::Declared(listing, Vec::new().into_iter()), opaque)
    }

    /// Ready when the next piece may be prepared: now and then it rests, so that its thread keeps its share of the cores.
    pub(in crate::server) fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(()) };
        ready!(rest.as_mut().poll(context));
        self.rest = None;
        Poll::Ready(())
    }

    /// Appends entries to `out` until it has `bytes` or more. Tells whether there is more to come; the last piece has
    /// the empty response that is the end.
    pub(in crate::server) fn piece(
        &mut self,
        server: &Server,
        now: UnixSeconds,
        bytes: usize,
        out: &mut BytesMut,
    ) -> bool {
        while out.len() < bytes {
            let (opcode, is_more) = match &mut self.what {
                What::Dump(names) => {
                    let opcode = Opcode::Dump.code();
                    let shown = names.next(&server.core, now, |name, item| {
                        let entry = DumpEntry { consumption: item.consumption, peak: item.peak, name };
                        Response::Entry(entry).compose(opcode, self.opaque, out);
                    });
                    (opcode, shown.is_some())
                }
                What::Listing(listing, entries) => {
                    let is_waiters = listing.is_of_waiters();
                    let opcode = if is_waiters { ExtendedOpcode::Waiters } else { ExtendedOpcode::Holders };
                    if entries.len() == 0 {
                        *entries = server.core.list(listing).into_iter();
                    }
                    let next = entries.next();
                    if let Some(listed) = &next {
                        let address = listed.connection.and_then(|connection| server.peers.find(connection));
                        let address = address.map(|peer| peer.address.to_string()).unwrap_or_default();
                        let entry = ExtendedResponse::Entry(entry_on_wire(listed, address.as_bytes()));
                        entry.compose(opcode.code(), self.opaque, out);
                    }
                    (opcode.code(), next.is_some())
                }
                What::Declared(listing, entries) => {
                    let opcode = ExtendedOpcode::List.code();
                    if entries.len() == 0 {
                        *entries = server.core.list_declared(listing).into_iter();
                    }
                    let next = entries.next();
                    if let Some(declared) = &next {
                        let entry = ExtendedResponse::DeclaredEntry(declared_on_wire(declared));
                        entry.compose(opcode, self.opaque, out);
                    }
                    (opcode, next.is_some())
                }
            };
            if !is_more {
                Response::Done.compose(opcode, self.opaque, out);
                return false;
            }
        }
        self.pieces += 1;
        if self.pieces.is_multiple_of(steps::DUMP_PIECES) {
            self.rest = Some(Box::pin(tokio::time::sleep(steps::REST)));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::*;
    use crate::config::Config;
    use crate::core::{Claim, NameHasher, Namespace};
    use crate::server::Clock;

    #[tokio::test(start_paused = true)]
    async fn a_long_dump_rests_between_bursts_and_a_short_one_does_not() {
        let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
        let mut session = server.core.open_session();
        let (claim, now) = (Claim::new(1, 1).unwrap(), server.clock.now());
        let mut names = 0..;
        // Two names fill a piece: four pieces, and then forty.
        let name_bytes = steps::DUMP_PIECE_BYTES / 2;
        for (more, rests) in [(8, 0), (72, 2)] {
            for number in names.by_ref().take(more) {
                let name = format!("{number:0name_bytes$}");
                server.core.acquire(Namespace::Counters, name.as_bytes(), claim, &mut session, now).unwrap();
            }
            let begun = Instant::now();
            let mut owed = Owed::dump(server.core.dump(Namespace::Counters), Opaque([0; 4]));
            let (mut is_more, mut bytes) = (true, 0);
            while is_more {
                poll_fn(|context| owed.poll_rest(context)).await;
                let mut out = BytesMut::new();
                is_more = owed.piece(&server, now, steps::DUMP_PIECE_BYTES, &mut out);
                bytes += out.len();
            }
            let listed = server.core.stats(Namespace::Counters).objects as usize;
            assert!(bytes > listed * name_bytes, "it is whole");
            assert_eq!(begun.elapsed().as_millis() / steps::REST.as_millis(), rests, "{listed} names");
        }
    }
}
