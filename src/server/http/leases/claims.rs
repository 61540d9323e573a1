//! The request for a lease, as the client sends it.

use super::super::super::state::Server;
use super::super::access::{Permissions, Right};
use super::super::answer::ApiError;
use super::super::query::Parameters;
use super::view::place_of;
use signalbox_core::{Queueing, Want};
use signalbox_model::{
    ACQUIRE_ALL_NAMES_MAX, AS_DECLARED, Claim, LABEL_BYTES_MAX, Milliseconds, Place, Target,
};

/// A request for a lease, without its key. A number that is missing is `None`.
#[derive(Debug)]
pub(super) struct Wanted {
    claims: Vec<OneClaim>,
    pub(super) ttl_ms: Option<u32>,
    wait_ms: u32,
    queue_max: Option<u32>,
    /// Whether it is one of a single flight.
    is_shared: bool,
    pub(super) label: Vec<u8>,
    pub(super) place: Option<Place>,
}

#[derive(Debug)]
struct OneClaim {
    name: Vec<u8>,
    resources: u32,
    maximum: Option<u32>,
    slot: Option<u16>,
}

impl Wanted {
    pub(super) fn of(parameters: &mut Parameters) -> Result<Self, ApiError> {
        let number = |parameters: &mut Parameters, key| {
            Ok::<_, ApiError>(parameters.number(key, u32::MAX.into())?.map(|number| number as u32))
        };
        let objects = parameters.objects("claims")?;
        if objects.is_empty() || objects.len() > ACQUIRE_ALL_NAMES_MAX {
            return Err(ApiError::bad_request(format!(
                "\"claims\" must be a list of 1 to {ACQUIRE_ALL_NAMES_MAX} objects, such as [{{\"name\": \"gpu\"}}]"
            )));
        }
        let mut claims = objects.into_iter().map(OneClaim::of).collect::<Result<Vec<_>, _>>()?;
        let is_shared = parameters.flag("share")?;
        if is_shared {
            claims.iter_mut().for_each(|claim| _ = claim.maximum.get_or_insert(1));
        }
        let label = parameters.bytes("label")?.unwrap_or_default();
        if label.len() > LABEL_BYTES_MAX {
            return Err(ApiError::bad_request(format!("\"label\" must be at most {LABEL_BYTES_MAX} bytes")));
        }
        let place = match parameters.text("place")? {
            Some(text) => Some(
                place_of(&text)
                    .ok_or_else(|| ApiError::bad_request("\"place\" must be as the server has sent it"))?,
            ),
            None => None,
        };
        let ttl = parameters.milliseconds("ttl_ms")?;
        if ttl == Some(Milliseconds(0)) {
            return Err(ApiError::bad_request(
                "\"ttl_ms\" must be more than 0; omit it for the server's default",
            ));
        }
        Ok(Self {
            claims,
            ttl_ms: ttl.map(|ttl| ttl.0),
            wait_ms: parameters.milliseconds("wait_ms")?.map_or(0, |wait| wait.0),
            queue_max: number(parameters, "queue_max")?,
            is_shared,
            label,
            place,
        })
    }

    /// Everything that has to be the same in a repeated request, and nothing else; no two requests have the same text.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut put = |number: Option<u64>, bytes: &[u8]| {
            text.extend_from_slice(&number.unwrap_or(u64::MAX).to_be_bytes());
            text.extend_from_slice(bytes);
        };
        put(Some(self.claims.len() as u64), &[]);
        for OneClaim { name, resources, maximum, slot } in &self.claims {
            put(Some(name.len() as u64), name);
            for number in [Some(*resources), *maximum, slot.map(u32::from)] {
                put(number.map(u64::from), &[]);
            }
        }
        for number in [self.ttl_ms, Some(self.wait_ms), self.queue_max] {
            put(number.map(u64::from), &[]);
        }
        put(Some(self.label.len() as u64), &self.label);
        if self.is_shared {
            put(None, &[]);
        }
        text
    }

    /// The names, as the core wants them. No name may be there twice.
    pub(super) fn wants(&self, permissions: &Permissions) -> Result<Vec<Want<'_>>, ApiError> {
        if self.is_shared && !matches!(&self.claims[..], [claim] if claim.claim().can_be_shared()) {
            return Err(ApiError::bad_request(
                "with \"share\", \"claims\" must be one object with a \"maximum\" of 1 and without \"slot\"",
            ));
        }
        let is_shared = self.is_shared;
        let wants = self
            .claims
            .iter()
            .map(|claim| Ok(Want { is_shared, ..claim.want(permissions)? }))
            .collect::<Result<Vec<_>, _>>()?;
        let mut names: Vec<_> = wants.iter().map(|want| want.name).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(ApiError::bad_request(
                "\"claims\" has a name twice; claim the sum of its resources once",
            ));
        }
        Ok(wants)
    }

    pub(super) fn queueing(&self, server: &Server) -> Queueing {
        let wait_ms = self.wait_ms.min(server.session_limits().max_wait_ms);
        Queueing { wait_ms, queue_max: self.queue_max.unwrap_or(u32::MAX) }
    }
}

impl OneClaim {
    fn of(mut parameters: Parameters) -> Result<Self, ApiError> {
        let name = parameters.name()?;
        let mut number = |key, range| parameters.number_in(key, range);
        let claim = Self {
            name,
            resources: number("resources", 1..=u32::MAX.into())?.map_or(1, |resources| resources as u32),
            maximum: number("maximum", 1..=u32::MAX.into())?.map(|maximum| maximum as u32),
            slot: number("slot", 0..=u16::MAX.into())?.map(|slot| slot as u16),
        };
        parameters.end()?;
        Ok(claim)
    }

    /// The name is the declared semaphore, or else the counter if the request has a maximum.
    fn claim(&self) -> Claim<'_> {
        let Self { name, resources, maximum, slot } = self;
        let maximum = maximum.unwrap_or(AS_DECLARED);
        Claim { namespace: None, name, resources: *resources, maximum, slot: *slot }
    }

    fn want(&self, permissions: &Permissions) -> Result<Want<'_>, ApiError> {
        let claim = self.claim();
        let may = |namespace| permissions.may(Right::Acquire, Target::Name(namespace, claim.name));
        let is_possible = claim.slot.is_none() || claim.resources == 1;
        Want::of(claim, may).filter(|_| is_possible).ok_or_else(|| {
            ApiError::bad_request("\"resources\" must be 1 to \"maximum\", and 1 with \"slot\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;
    use serde_json::{Map, Value, json};

    use super::*;

    /// Objects with some of these fields, most of which have values that could be right.
    fn objects(fields: &'static [&'static str], value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
        let fields = proptest::collection::vec((select(fields), value), 0..6);
        fields
            .prop_map(|fields| {
                Value::Object(
                    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>(),
                )
            })
            .boxed()
    }

    fn bodies() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            8 => select(vec![json!("a"), json!("61"), json!(1), json!(2)]),
            2 => select(vec![json!(null), json!("2"), json!(2.0), json!(0), json!(u32::MAX), json!(u64::MAX)]),
            1 => select(vec![json!(-1), json!(1e300), json!(0.5), json!(true), json!([]), json!({}), json!(["a"])]),
            1 => any::<String>().prop_map(Value::String),
        ];
        let claim =
            objects(&["name", "name", "name_hex", "resources", "maximum", "slot"], scalar.clone().boxed());
        let claims = proptest::collection::vec(claim, 1..4).prop_map(Value::Array);
        let others = objects(
            &["ttl_ms", "wait_ms", "queue_max", "label", "label_hex", "place", "keys"],
            scalar.boxed(),
        );
        (claims, others).prop_map(|(claims, mut body)| {
            body["claims"] = claims;
            body
        })
    }

    /// The request, if it can be understood, without its place, and its text.
    fn understood(body: &[u8]) -> Option<(String, Vec<u8>)> {
        let mut parameters = Parameters::of_json(body).ok()?;
        let wanted = Wanted { place: None, ..Wanted::of(&mut parameters).ok()? };
        Some((format!("{wanted:?}"), wanted.text()))
    }

    proptest! {
        /// Whatever is sent is understood or refused, and two requests have the same text if they are the same.
        #[test]
        fn bodies_are_understood_or_refused(
            body in bodies(),
            other in bodies(),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let mut bytes = body.to_string().into_bytes();
            if let (Some((one, text)), Some((two, other_text))) =
                (understood(&bytes), understood(other.to_string().as_bytes()))
            {
                prop_assert_eq!(one == two, text == other_text);
            }
            let at = at.index(bytes.len());
            bytes[at] = byte;
            understood(&bytes);
            understood(&bytes[..at]);
        }
    }
}
