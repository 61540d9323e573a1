//! The content of a request for a lease.

use super::super::super::state::Server;
use super::super::access::{Permissions, Right};
use super::super::answer::ApiError;
use super::super::query::Parameters;
use super::view::place_of;
use signalbox_core::{Queueing, Want};
use signalbox_model::{ACQUIRE_ALL_NAMES_MAX, AS_DECLARED, Claim, Milliseconds, Place, Target};

/// A request for a lease, without its key. A field is `None` if the request does not set it.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) claims: Vec<OneClaim>,
    pub(super) ttl_ms: Option<u32>,
    pub(super) wait_ms: u32,
    pub(super) queue_max: Option<u32>,
    /// Whether the request belongs to a single flight.
    pub(super) is_shared: bool,
    pub(super) label: Vec<u8>,
    pub(super) place: Option<Place>,
}

#[derive(Clone, Debug)]
pub(super) struct OneClaim {
    pub(super) name: Vec<u8>,
    pub(super) resources: u32,
    pub(super) maximum: Option<u32>,
    pub(super) slot: Option<u16>,
}

impl Wanted {
    pub(super) fn of(parameters: &mut Parameters) -> Result<Self, ApiError> {
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
        let label = parameters.label()?;
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
            queue_max: parameters.number("queue_max", 0..=u32::MAX)?,
            is_shared,
            label,
            place,
        })
    }

    /// Returns a text that is the same for two requests if each may be a repetition of the other, and differs otherwise. It
    /// does not include the place, which a repetition may add.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(128);
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

    /// Converts the claims for the core. Fails if a claim is impossible, if a name is claimed twice, or if the claims of a
    /// shared request cannot be shared.
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
        let wait_ms = server.config().session.wait_ms(Some(Milliseconds(self.wait_ms)));
        Queueing { wait_ms, queue_max: self.queue_max.unwrap_or(u32::MAX) }
    }
}

impl OneClaim {
    fn of(mut parameters: Parameters) -> Result<Self, ApiError> {
        let name = parameters.name()?;
        let claim = Self {
            name,
            resources: parameters.number("resources", 1..=u32::MAX)?.unwrap_or(1),
            maximum: parameters.number("maximum", 1..=u32::MAX)?,
            slot: parameters.number("slot", 0..=u16::MAX)?,
        };
        parameters.end()?;
        Ok(claim)
    }

    /// Returns the claim as in the binary protocol. The name means the declared semaphore, or else the counter if the
    /// request has a maximum.
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
