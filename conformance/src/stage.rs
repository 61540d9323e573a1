//! The parts of a scenario: a server, and players, each of which is a driver with a network of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::PATIENCE;
use crate::driver::{Driver, Endpoint, Sent};
use crate::oracle::{BeliefId, Oracle, margin};
use crate::proxy::Network;
use crate::server::{Held, Installation, Server, eventually};

#[derive(Debug)]
pub struct Stage<'a> {
    pub server: Server,
    pub oracle: Oracle,
    command: &'a [String],
    /// The certificate of the authority, if clients connect over TLS.
    authority: Option<&'a Path>,
}

#[derive(Debug)]
pub struct Player<'a> {
    stage: &'a Stage<'a>,
    name: &'static str,
    pub driver: Driver,
    pub network: Network,
}

#[derive(Clone, Debug)]
pub struct Request {
    permit: String,
    /// Names, each with its maximum.
    claims: Vec<(String, u64)>,
    /// Whether the names are declared semaphores, whose capacity the client does not state.
    is_declared: bool,
    /// Whether the request is part of a single flight.
    is_shared: bool,
    /// Whether the command omits the times, so that the client uses its defaults.
    omits_times: bool,
    ttl_ms: u64,
    wait_ms: u64,
}

impl Request {
    /// Returns a request for one resource of a name with this maximum: a lease of 20 s, without waiting.
    pub fn of(permit: &str, name: &str, maximum: u64) -> Self {
        let claims = vec![(name.to_owned(), maximum)];
        Self {
            permit: permit.to_owned(),
            claims,
            is_declared: false,
            is_shared: false,
            omits_times: false,
            ttl_ms: 20_000,
            wait_ms: 0,
        }
    }

    pub fn declared(mut self) -> Self {
        self.is_declared = true;
        self
    }

    pub fn shared(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// Omits the times. `ttl_ms` is the time to live that the client must use by default.
    pub fn default_ttl_ms(mut self, ttl_ms: u64) -> Self {
        self.omits_times = true;
        self.ttl_ms(ttl_ms)
    }

    pub fn and(mut self, name: &str, maximum: u64) -> Self {
        self.claims.push((name.to_owned(), maximum));
        self
    }

    pub fn ttl_ms(mut self, ttl_ms: u64) -> Self {
        self.ttl_ms = ttl_ms;
        self
    }

    pub fn wait_ms(mut self, wait_ms: u64) -> Self {
        self.wait_ms = wait_ms;
        self
    }
}

/// An acquire that was sent.
#[derive(Debug)]
pub struct Acquiring {
    sent: Sent,
    request: Request,
}

/// A permit that a client has reported as held.
#[derive(Debug)]
pub struct Permit {
    pub label: String,
    pub fence: String,
    pub slots: Value,
    ttl: Duration,
    belief: BeliefId,
}

/// The answer to an acquire.
#[derive(Debug)]
pub enum Outcome {
    Held(Permit),
    /// The work of the single flight is done.
    Done,
    Failed(String),
}

impl Outcome {
    pub fn held(self) -> Result<Permit, String> {
        match self {
            Self::Held(permit) => Ok(permit),
            Self::Done => Err("the acquire must be granted, and the driver says \"done\"".to_owned()),
            Self::Failed(failure) => Err(format!("the acquire must succeed, and has failed: {failure}")),
        }
    }

    pub fn done(self) -> Result<(), String> {
        match self {
            Self::Done => Ok(()),
            other => Err(format!("the work is done, and the driver says {other:?}")),
        }
    }

    pub fn failed(self, expected: &str) -> Result<(), String> {
        match self {
            Self::Failed(failure) if failure == expected => Ok(()),
            other => Err(format!("the acquire must fail as \"{expected}\", and the driver says {other:?}")),
        }
    }
}

impl<'a> Stage<'a> {
    /// Starts a server, on which clients without a token have these rights.
    pub fn new(
        installation: &'a Installation,
        command: &'a [String],
        anonymous: &str,
        is_tls: bool,
    ) -> Result<Self, String> {
        let server = Server::start(installation, anonymous)?;
        let authority = is_tls.then_some(installation.certificate.authority.as_path());
        Ok(Self { server, oracle: Oracle::default(), command, authority })
    }

    pub fn player(&'a self, name: &'static str) -> Result<Player<'a>, String> {
        self.player_at(name, None, None)
    }

    /// Starts a player. With `token_file`, the player gets the token in this file. With `first`, it gets the addresses
    /// of that network before those of its own.
    pub fn player_at(
        &'a self,
        name: &'static str,
        first: Option<&Network>,
        token_file: Option<&Path>,
    ) -> Result<Player<'a>, String> {
        let network = Network::to(&self.server.addresses()).map_err(|error| error.to_string())?;
        let addresses = || first.into_iter().chain([&network]).flat_map(|network| &network.addresses);
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        let urls: Vec<_> = addresses().map(|(http, _)| format!("{scheme}://{http}")).collect();
        let servers: Vec<_> = addresses().map(|(_, binary)| binary.to_string()).collect();
        let (urls, server) = (urls.join(","), servers.join(","));
        let endpoint = Endpoint { urls, server, token_file, authority: self.authority };
        let driver = Driver::start(self.command, &endpoint)?;
        Ok(Player { stage: self, name, driver, network })
    }

    /// Waits until nothing of a name is in use and no request waits for it.
    pub fn wait_until_free(&self, name: &str) -> Result<(), String> {
        eventually(&format!("{name:?} is in use"), || Ok(self.server.usage(name)? == (0, 0)))
    }

    /// Waits until `in_use` resources of a name are in use, and `waiting` requests wait for it.
    pub fn wait_for_usage(&self, name: &str, in_use: u64, waiting: u64) -> Result<(), String> {
        let failure = format!("{name:?} does not have {in_use} in use and {waiting} waiting");
        eventually(&failure, || Ok(self.server.usage(name)? == (in_use, waiting)))
    }
}

impl Player<'_> {
    /// Sends an acquire without waiting for its answer.
    pub fn begin(&self, request: Request) -> Result<Acquiring, String> {
        let claim = |(name, maximum): &(String, u64)| {
            if request.is_declared {
                json!({"name": name})
            } else {
                json!({"name": name, "maximum": maximum})
            }
        };
        let claims: Vec<_> = request.claims.iter().map(claim).collect();
        let mut command = json!({"do": "acquire", "permit": request.permit, "claims": claims});
        if !request.omits_times {
            command["ttl_ms"] = json!(request.ttl_ms);
            command["wait_ms"] = json!(request.wait_ms);
        }
        if request.is_shared {
            command["share"] = json!(true);
        }
        let sent = self.driver.send(command)?;
        Ok(Acquiring { sent, request })
    }

    /// Waits for the answer to an acquire.
    pub fn finish(&self, acquiring: Acquiring) -> Result<Outcome, String> {
        let Acquiring { sent, request } = acquiring;
        let limit = PATIENCE + Duration::from_millis(request.wait_ms);
        let answer = self.driver.answer(&sent, limit)?;
        if let Some(failure) = answer["failure"].as_str() {
            return Ok(Outcome::Failed(failure.to_owned()));
        }
        if answer["done"] == true {
            return Ok(Outcome::Done);
        }
        let fence = answer["fence"].as_str().ok_or_else(|| format!("no fence: {answer}"))?.to_owned();
        let belief = self.stage.oracle.begin(format!("{} ({})", self.name, request.permit), request.claims);
        let ttl = Duration::from_millis(request.ttl_ms);
        let permit = Permit { label: request.permit, fence, slots: answer["slots"].clone(), ttl, belief };
        Ok(Outcome::Held(permit))
    }

    pub fn acquire(&self, request: Request) -> Result<Outcome, String> {
        self.finish(self.begin(request)?)
    }

    /// Returns whether the client believes in the permit. Fails if it believes for longer than the server permits.
    pub fn check(&self, permit: &Permit) -> Result<bool, String> {
        self.finish_check(permit, self.begin_check(permit)?)
    }

    /// Sends a check without waiting for its answer.
    pub fn begin_check(&self, permit: &Permit) -> Result<Sent, String> {
        self.driver.send(json!({"do": "check", "permit": permit.label}))
    }

    /// Tells the driver to block its working thread for `ms` milliseconds, and then to check the permit at once.
    pub fn begin_block(&self, permit: &Permit, ms: u64) -> Result<Sent, String> {
        self.driver.send(json!({"do": "check", "permit": permit.label, "block_ms": ms}))
    }

    /// Tells the driver to stop itself, and to check the permit as soon as it is continued.
    pub fn begin_stop(&self, permit: &Permit) -> Result<Sent, String> {
        self.driver.send(json!({"do": "check", "permit": permit.label, "stop": true}))
    }

    /// Returns whether the client believes in the permit. Does not fail if it does: it may not know yet of a revocation
    /// without a grace period.
    pub fn believes(&self, permit: &Permit) -> Result<bool, String> {
        Ok(self.driver.answer(&self.begin_check(permit)?, PATIENCE)?["held"] == true)
    }

    /// Waits for the answer to a check; the result is that of [`Self::check`].
    pub fn finish_check(&self, permit: &Permit, sent: Sent) -> Result<bool, String> {
        let answer = self.driver.answer(&sent, PATIENCE)?;
        if answer["held"] != true {
            return Ok(false);
        }
        if !self.driver.can("clock") {
            return Ok(true);
        }
        self.stage.oracle.affirm(permit.belief, sent.at);
        let (Some(left_ms), Some(grant)) =
            (answer["left_ms"].as_u64(), self.stage.server.grant(&permit.fence))
        else {
            return Ok(true);
        };
        let until = sent.at + Duration::from_millis(left_ms);
        let now = Instant::now();
        // The server answers in whole milliseconds.
        let limit = match grant {
            Held::For(left) => now + left + Duration::from_millis(2) - margin(permit.ttl),
            Held::No => now,
            Held::Otherwise => return Ok(true),
        };
        if until > limit {
            return Err(format!(
                "{} believes in {} for {:?} longer than it may: the server says {grant:?}",
                self.name,
                permit.label,
                until - limit
            ));
        }
        Ok(true)
    }

    /// Returns whether the client wrongly believes in a permit that is over. A client without a clock may do so until
    /// it is told of the loss.
    pub fn wrongly_believes(&self, permit: &Permit, sent: Sent) -> Result<bool, String> {
        Ok(self.finish_check(permit, sent)? && self.driver.can("clock"))
    }

    /// Fails if the client does not believe in the permit.
    pub fn must_hold(&self, permit: &Permit) -> Result<(), String> {
        if self.check(permit)? {
            Ok(())
        } else {
            Err(format!("{} must hold {}, and does not", self.name, permit.label))
        }
    }

    /// Fails if the client believes in the permit, or can report a loss by itself and does not.
    pub fn must_have_lost(&self, permit: &Permit) -> Result<(), String> {
        if self.wrongly_believes(permit, self.begin_check(permit)?)? {
            return Err(format!("{} must not believe in {}, and does", self.name, permit.label));
        }
        self.await_loss(permit)
    }

    /// Waits until the client reports by itself that the permit is lost, if it can.
    pub fn await_loss(&self, permit: &Permit) -> Result<(), String> {
        if self.driver.can("push") {
            self.driver.event("lost", &permit.label, PATIENCE)?;
        }
        Ok(())
    }

    /// Releases a permit. Fails if the client believes in it afterwards.
    pub fn release(&self, permit: &Permit) -> Result<(), String> {
        self.release_by(permit, json!({"do": "release", "permit": permit.label}))
    }

    /// Releases a permit of a single flight, whose work is done.
    pub fn release_done(&self, permit: &Permit) -> Result<(), String> {
        self.release_by(permit, json!({"do": "release", "permit": permit.label, "done": true}))
    }

    fn release_by(&self, permit: &Permit, command: Value) -> Result<(), String> {
        self.driver.call(command)?;
        if self.check(permit)? {
            return Err(format!("{} believes in {} after its release", self.name, permit.label));
        }
        Ok(())
    }
}
