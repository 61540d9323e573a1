//! Answers of many frames, which go out piece by piece while their peer takes them.

use bytes::BytesMut;

use super::super::Server;
use super::translation::{declared_on_wire, entry_on_wire};
use crate::core::{Declared, DeclaredListing, Dump, Listed, Listing, UnixSeconds};
use crate::protocol::{DumpEntry, ExtendedOpcode, ExtendedResponse, Opaque, Opcode, Response};

/// What a connection owes its peer before it answers anything else.
#[derive(Debug)]
pub(in crate::server) struct Owed {
    what: What,
    opaque: Opaque,
}

#[derive(Debug)]
enum What {
    Dump(Dump),
    /// With the entries of the step that is under way.
    Listing(Listing, std::vec::IntoIter<Listed>),
    Declared(DeclaredListing, std::vec::IntoIter<Declared>),
}

impl Owed {
    pub(super) fn dump(names: Dump, opaque: Opaque) -> Self {
        Self { what: What::Dump(names), opaque }
    }

    pub(super) fn listing(listing: Listing, opaque: Opaque) -> Self {
        Self { what: What::Listing(listing, Vec::new().into_iter()), opaque }
    }

    pub(super) fn declared(listing: DeclaredListing, opaque: Opaque) -> Self {
        Self { what: What::Declared(listing, Vec::new().into_iter()), opaque }
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
        true
    }
}
