//! A lease in an answer.

use serde::Serialize;

use super::validity;
use signalbox_core::{KeyedLease, KeyedState};
use signalbox_model::hex;
use signalbox_model::{GrantId, Place, PlaceProof, from_hex};

/// A lease. The keys that do not apply are left out.
#[derive(Debug, Default, Serialize)]
pub(super) struct View {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    pub(super) state: State,
    /// Whether the client must be told at once.
    #[serde(skip)]
    pub(super) is_urgent: bool,
    /// The time for which the client may rely on the lease, in milliseconds after it sent the request.
    valid_ms: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ttl_ms: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grace_ms: Option<u32>,
    /// Ids are strings, as in all answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    grant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<Box<[Box<[u16]>]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    /// The reason why the lease is lost, if its request waited and was refused, or if it was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// The state of a lease in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Held,
    Queued,
    Revoking,
    /// Another client has done the work of the single flight while the request waited.
    Done,
    #[default]
    Lost,
    /// The lease is not renewed, because the client may no longer acquire its names.
    NotPermitted,
}

impl View {
    /// Returns the view of a lease; `None`: there is no such lease.
    pub(super) fn of(lease: Option<KeyedLease>) -> Self {
        let Some(KeyedLease { state, ttl_ms, left_ms, grace_ms }) = lease else {
            return Self { is_urgent: true, ..Self::default() };
        };
        let mut view = Self {
            is_urgent: grace_ms.is_some(),
            valid_ms: validity::valid_ms(left_ms, ttl_ms),
            ttl_ms: Some(ttl_ms),
            grace_ms: grace_ms.map(validity::grace_ms),
            ..Self::default()
        };
        match state {
            KeyedState::Queued { position, place } => {
                view.state = State::Queued;
                view.position = Some(position);
                view.place = place.map(place_text);
            }
            // The client must not rely on a grant that is not stored, so the request is shown as the next one in the queue.
            KeyedState::Storing => {
                view.state = State::Queued;
                view.position = Some(0);
            }
            KeyedState::Held { grant, slots, is_new } => {
                view.state = if grace_ms.is_some() { State::Revoking } else { State::Held };
                view.is_urgent |= is_new;
                view.grant = Some(grant.0.to_string());
                view.slots = Some(slots);
            }
            KeyedState::Done => {
                return Self { state: State::Done, is_urgent: true, ttl_ms: view.ttl_ms, ..Self::default() };
            }
            KeyedState::Over(refusal) => {
                return Self { is_urgent: true, reason: Some(refusal.status().name()), ..Self::default() };
            }
        }
        view
    }

    pub(super) fn with_key(self, key: String) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Returns the same view for a client that may no longer acquire the names, and whose lease was therefore not renewed.
    pub(super) fn not_permitted(self) -> Self {
        Self { state: State::NotPermitted, is_urgent: true, ..self }
    }
}

/// Returns a place as a client keeps it: the id and the proof in hexadecimal digits.
pub(super) fn place_text(Place { id, proof }: Place) -> String {
    hex(&id.0.to_be_bytes()) + &hex(&proof.0)
}

/// Reads a place; `None`: the text is not one.
pub(super) fn place_of(text: &str) -> Option<Place> {
    let bytes = from_hex(text)?;
    let (id, proof) = bytes.split_first_chunk()?;
    Some(Place { id: GrantId(u64::from_be_bytes(*id)), proof: PlaceProof(*proof.as_array()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = Place {
            id: GrantId(7),
            proof: PlaceProof([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]),
        };
        assert_eq!(place_of(&place_text(place)), Some(place));
        for wrong in
            ["", "7", &"0".repeat(47), &"0".repeat(49), &"g".repeat(48), &format!("+{}", "0".repeat(47))]
        {
            assert_eq!(place_of(wrong), None, "{wrong}");
        }
    }
}
