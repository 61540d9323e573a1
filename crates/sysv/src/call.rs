//! One call, across lost connections.
//!
//! A call is numbered once. If the connection breaks, the library connects again, attaches to the same process and
//! repeats the request with its numbers: the server executes it once. If the server no longer has the process,
//! the numbers cannot prevent a second execution, and a call whose outcome is unknown fails with EIDRM, or with ENOMEM
//! if it is `semget`.

use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};

use nix::sys::prctl::get_name;
use nix::unistd::{Gid, getgroups, gethostname};
use signalbox_model::sysv::{Errno, OpenedProcess, SetCommand, SetId};
use signalbox_model::{Milliseconds, Status};
use signalbox_protocol::{
    Credentials, EXTENDED_VERSION, Extended, Features, GROUPS_MAX, LABEL_BYTES_MAX, Opaque, ResponseFrame,
    SysvRequest,
};

use crate::connection::{Connection, Lost, Wait};
use crate::errno::Failed;
use crate::message;
use crate::operation::{Call, caller};
use crate::process::{self, Lease, Name, Process};
use crate::servers::Place;
use crate::settings::Settings;
use crate::signals::{Shield, Woken};
use crate::token;

/// The first and the longest pause between attempts to reach the server. Each pause is twice as long as the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Performs a call, and reads its result from the response.
pub fn perform<T, E: Display>(
    call: &Call<'_>,
    settings: &Settings,
    shield: &Shield,
    read: impl FnOnce(&ResponseFrame) -> Result<Result<T, Errno>, E>,
) -> Result<T, Failed> {
    let mut attempts = Attempts::new(call, settings, shield);
    let response = attempts.run()?;
    match read(&response) {
        // The server was restarted while the call waited, and has lost the set.
        Ok(Err(Errno::Inval)) if attempts.is_sent && matches!(call, Call::Operate { .. }) => {
            Err(unreachable(call))
        }
        Ok(result) => Ok(result?),
        Err(malformed) => {
            message::OUTAGE.report(format_args!("the server \"{}\" answered: {malformed}", settings.servers));
            Err(unreachable(call))
        }
    }
}

/// Returns the error of a call that no server answers. No error number has that meaning. EIDRM is the one after which
/// programs assume the least, but `semget` never returns it.
pub fn unreachable(call: &Call<'_>) -> Failed {
    match call {
        Call::Get { .. } => Failed(libc::ENOMEM),
        Call::Operate { .. } | Call::Control { .. } => Failed(libc::EIDRM),
    }
}

struct Attempts<'a> {
    call: &'a Call<'a>,
    settings: &'a Settings,
    shield: &'a Shield,
    /// When the first attempt of the present outage failed.
    since: Option<Instant>,
    pause: Duration,
    /// Whether the server may have executed the request.
    is_sent: bool,
    /// Whether a signal was caught, which ends the wait of `semop`.
    is_caught: bool,
}

/// The reason why an attempt got no response.
enum Obstacle {
    /// Another attempt may succeed.
    Outage(io::Error),
    /// The process has ended on the server, or the server no longer accepts the number of its request.
    Gone,
    /// The call fails.
    Final(Failed),
}

impl<'a> Attempts<'a> {
    fn new(call: &'a Call<'a>, settings: &'a Settings, shield: &'a Shield) -> Self {
        Self { call, settings, shield, since: None, pause: PAUSE_FIRST, is_sent: false, is_caught: false }
    }

    fn run(&mut self) -> Result<ResponseFrame, Failed> {
        loop {
            if !matches!(self.call, Call::Get { .. }) && process::take_lost_adjustments() {
                return Err(unreachable(self.call));
            }
            let (process, mut lease) = match self.process() {
                Ok(found) => found,
                Err(obstacle) => {
                    self.overcome(obstacle)?;
                    continue;
                }
            };
            if self.call.adjusts() {
                process.note_adjustments();
            }
            match self.run_as(process, &mut lease) {
                Ok(response) => return Ok(response),
                Err(Obstacle::Gone) => {
                    // The lease is dropped first, so that `forget` closes its connection with the others.
                    drop(lease);
                    process.forget();
                    if self.is_sent && !self.call.is_repeatable() {
                        // The error of this call also reports the lost adjustments.
                        process::take_lost_adjustments();
                        return Err(unreachable(self.call));
                    }
                }
                Err(obstacle) => self.overcome(obstacle)?,
            }
        }
    }

    /// Repeats the request with the same numbers until there is a response.
    fn run_as(&mut self, process: &Process, lease: &mut Lease) -> Result<ResponseFrame, Obstacle> {
        let ids = process.number(lease);
        let mut is_repeated = false;
        loop {
            if let Err(obstacle) = self.attach(process, lease) {
                self.overcome_keeping_numbers(obstacle)?;
                continue;
            }
            let connection = lease.as_mut().expect("it was attached");
            let (place, began) = (connection.place(), Instant::now());
            let mut wait = Wait {
                shield: self.shield,
                until: self.overdue(),
                limit: self.settings.timeout,
                silence: self.silence(place),
                cancels: matches!(self.call, Call::Operate { .. }),
                is_caught: self.is_caught,
            };
            let compose = |rows: &mut Vec<u8>, opaque, out: &mut Vec<u8>| {
                self.call.compose(ids, rows, opaque, out);
            };
            let outcome = connection.exchange(&mut wait, compose);
            self.is_caught = wait.is_caught;
            match outcome {
                Ok(response) => match self.shows_another_token(connection, &response) {
                    Ok(true) => {}
                    Ok(false) => return self.judged(response, is_repeated),
                    Err(obstacle) => {
                        lease.set(None);
                        self.overcome_keeping_numbers(obstacle)?;
                    }
                },
                Err(Lost::Closed) => lease.set(None),
                Err(Lost::Forked) => return Err(Obstacle::Final(Failed(libc::EINTR))),
                Err(Lost::Broken(error)) => {
                    self.note_end(&error, place, began);
                    (self.is_sent, is_repeated) = (true, true);
                    lease.set(None);
                    self.overcome_keeping_numbers(Obstacle::Outage(error))?;
                }
            }
        }
    }

    /// Notes that a connection to this address was lost after the server had answered on it. If the server was silent,
    /// the next attempt begins after this address.
    fn note_end(&mut self, error: &io::Error, place: Place, began: Instant) {
        if error.kind() == io::ErrorKind::TimedOut {
            self.settings.servers.begin_behind(place);
        }
        let may_wait = matches!(self.call, Call::Operate { .. }) && !self.times_out(Instant::now());
        if may_wait && began.elapsed() >= self.settings.timeout {
            // The call has waited on this connection for so long that an earlier outage is over.
            (self.since, self.pause) = (None, PAUSE_FIRST);
        }
    }

    /// The time from which the response is overdue; `None`: never.
    fn overdue(&self) -> Option<Instant> {
        match self.call {
            Call::Operate { deadline, .. } => deadline.map(|deadline| deadline.max(Instant::now())),
            Call::Get { .. } | Call::Control { .. } => Some(Instant::now()),
        }
        .map(|due| due + self.settings.timeout)
    }

    /// The silence after which a waiting call asks the server for a sign of life. With several addresses, the call
    /// gives up a server that is silent for the time limit, because another one may serve by now; otherwise it keeps
    /// waiting.
    fn silence(&self, place: Place) -> Option<Duration> {
        let waits = matches!(self.call, Call::Operate { .. });
        (waits && self.settings.servers.has_others(place)).then_some(self.settings.timeout / 2)
    }

    /// Returns the process on the server, which is opened if there is none, and a slot for this call.
    fn process(&mut self) -> Result<(&'static Process, Lease), Obstacle> {
        if let Some(process) = Process::current() {
            return Ok((process, process.lease()));
        }
        let (connection, opened) = self.open_process()?;
        let name = Name { process: opened.process, key: opened.key };
        let lease = Lease::of_new_slot(connection);
        let (process, lease) = Process::publish(name, 1, false, Some(lease));
        Ok((process, lease.unwrap_or_else(|| process.lease())))
    }

    /// Connects to a server, shows the token, if there is one, and sends a request. Later attempts begin with the
    /// server if it answered, and after it otherwise.
    fn reach(&mut self, request: &SysvRequest<'_>) -> Result<(Connection, ResponseFrame), Obstacle> {
        let Settings { servers, timeout, .. } = self.settings;
        let mut connection = Connection::open(servers, *timeout).map_err(Obstacle::Outage)?;
        let place = connection.place();
        let limit = servers.share_of(*timeout, place);
        let answer = self.introduce(&mut connection, limit);
        let answer = answer.and_then(|()| self.ask(&mut connection, limit, request));
        match answer {
            Err(Obstacle::Outage(_)) => servers.begin_behind(place),
            Ok(_) | Err(Obstacle::Gone | Obstacle::Final(_)) => servers.begin_with(place),
        }
        Ok((connection, answer?))
    }

    /// Shows the token, which decides what the connection may do from now on. It is not sent where others may read it.
    fn introduce(&mut self, connection: &mut Connection, limit: Duration) -> Result<(), Obstacle> {
        let Settings { token: Some(token), servers, .. } = self.settings else { return Ok(()) };
        let server = connection.peer();
        if !token.may_be_sent_to(server.ip()) {
            message::SETTINGS.report(format_args!(
                "the token of {} is not sent to {server} without TLS, where others may read it; give the library a proxy on \
                 this machine that connects over TLS, or allow it by {}=1; calls fail with EACCES",
                token.source(),
                token::OVER_PLAIN
            ));
            return Err(Obstacle::Final(Failed(libc::EACCES)));
        }
        let (label, shown) = (self.label(), token.latest());
        connection.token = Some(shown);
        let hello = Extended::Hello {
            version: EXTENDED_VERSION,
            label: label.as_bytes(),
            credentials: Credentials(shown),
            features: Features::default(),
        };
        let response = self.exchange(connection, limit, |opaque, out| hello.compose(opaque, out))?;
        if Status::from_code(response.status) == Some(Status::NotPermitted) {
            let source = token.source();
            let why = response.token_refusal().map(|why| format!(": {why}")).unwrap_or_default();
            message::ACCESS.report(format_args!(
                "the server \"{servers}\" does not accept the token of {source}{why}. Create a token with \"signalbox token \
                 create\" and start the program with it; calls fail with EACCES"
            ));
            return Err(Obstacle::Final(Failed(libc::EACCES)));
        }
        self.judged(response, false).map(drop)
    }

    /// Shows the new token if the request was refused for lack of a right and the token was replaced since it was
    /// shown. Returns whether the request is to be repeated: a request that was refused was not executed.
    fn shows_another_token(
        &mut self,
        connection: &mut Connection,
        response: &ResponseFrame,
    ) -> Result<bool, Obstacle> {
        let is_refused = Status::from_code(response.status) == Some(Status::NotPermitted);
        match &self.settings.token {
            Some(token) if is_refused && Some(token.latest()) != connection.token => {
                self.introduce(connection, self.settings.timeout).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// The label of the process in listings.
    fn label(&self) -> String {
        self.settings.label.clone().unwrap_or_else(default_label)
    }

    fn open_process(&mut self) -> Result<(Connection, OpenedProcess), Obstacle> {
        let label = self.label();
        let request = SysvRequest::OpenProcess {
            ttl: self.settings.ttl,
            pid: std::process::id(),
            caller: caller(),
            groups: groups(),
            label: label.as_bytes(),
        };
        let (connection, response) = self.reach(&request)?;
        let opened = response.opened_process();
        let opened = opened.map_err(|malformed| Obstacle::Outage(io::Error::other(malformed)))?;
        Ok((connection, opened))
    }

    /// Opens a connection that acts for the process, if the slot has no connection.
    fn attach(&mut self, process: &Process, lease: &mut Lease) -> Result<(), Obstacle> {
        if process.is_gone() {
            return Err(Obstacle::Gone);
        }
        if lease.is_some() {
            return Ok(());
        }
        let Name { process, key } = process.name();
        let (connection, _) = self.reach(&SysvRequest::AttachProcess { process, key })?;
        lease.set(Some(connection));
        Ok(())
    }

    /// Sends a request that the server answers at once. A signal that is caught meanwhile ends the call that follows.
    fn ask(
        &mut self,
        connection: &mut Connection,
        limit: Duration,
        request: &SysvRequest<'_>,
    ) -> Result<ResponseFrame, Obstacle> {
        let response = self.exchange(connection, limit, |opaque, out| request.compose(opaque, out))?;
        self.judged(response, false)
    }

    /// Sends a request that the server answers at once, and returns its response, whatever its status.
    fn exchange(
        &mut self,
        connection: &mut Connection,
        limit: Duration,
        compose: impl FnOnce(Opaque, &mut Vec<u8>),
    ) -> Result<ResponseFrame, Obstacle> {
        let until = Some(Instant::now() + limit);
        let mut wait =
            Wait { shield: self.shield, until, limit, silence: None, cancels: false, is_caught: false };
        let response = connection.exchange(&mut wait, |_, opaque, out| compose(opaque, out));
        self.is_caught |= wait.is_caught;
        response.map_err(obstacle)
    }

    /// Returns the response if its status is success, and otherwise the obstacle that the status means.
    fn judged(&self, response: ResponseFrame, is_repeated: bool) -> Result<ResponseFrame, Obstacle> {
        match Status::from_code(response.status) {
            Some(Status::NoError) => {
                message::OUTAGE.clear();
                Ok(response)
            }
            Some(Status::NoSuchSession) => Err(Obstacle::Gone),
            Some(Status::ShuttingDown) => Err(Obstacle::Outage(io::Error::other("it is being stopped"))),
            // The server no longer accepts the number of the request (`WINDOW` in `process.rs`), so the outcome is
            // unknown. If the request still waits there, it ends with the process.
            Some(Status::InvalidArguments) if is_repeated => Err(Obstacle::Gone),
            Some(Status::NotPermitted) => {
                self.report_missing_right();
                Err(Obstacle::Final(Failed::by_status(response.status)))
            }
            _ => Err(Obstacle::Final(Failed::by_status(response.status))),
        }
    }

    fn report_missing_right(&self) {
        let Settings { servers, token, .. } = self.settings;
        let create = "\"signalbox token create NAME --rights read,acquire --area sysv\" creates one";
        match token {
            Some(token) => message::ACCESS.report(format_args!(
                "the server \"{servers}\" refuses a semaphore call, because the token of {} lacks a right that the call needs, \
                 was revoked or has expired; start the program with one that has the rights: {create}; calls that lack a right \
                 fail with EACCES",
                token.source()
            )),
            None => message::ACCESS.report(format_args!(
                "the server \"{servers}\" refuses a semaphore call of a program without a token; set {} to a file with one: \
                 {create}; or permit this machine by access.networks of the server; calls that lack a right fail with EACCES",
                token::FILE
            )),
        }
    }

    /// Overcomes an obstacle to a request that has its numbers. They belong to the process, so [`Obstacle::Gone`] is
    /// returned.
    fn overcome_keeping_numbers(&mut self, obstacle: Obstacle) -> Result<(), Obstacle> {
        match obstacle {
            Obstacle::Gone => Err(Obstacle::Gone),
            other => self.overcome(other).map_err(Obstacle::Final),
        }
    }

    /// Pauses before the next attempt. Fails if another attempt is pointless, if the call has tried for as long as it
    /// may, or if a signal ends it.
    fn overcome(&mut self, obstacle: Obstacle) -> Result<(), Failed> {
        let error = match obstacle {
            Obstacle::Outage(error) => error,
            Obstacle::Final(failed) => return Err(failed),
            Obstacle::Gone => io::Error::other("it does not know the process"),
        };
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if !self.is_sent && self.times_out(now) {
            return Err(Failed(libc::EAGAIN));
        }
        if now.duration_since(since) >= self.settings.timeout {
            let servers = &self.settings.servers;
            let Failed(errno) = unreachable(self.call);
            let name = if errno == libc::EIDRM { "EIDRM" } else { "ENOMEM" };
            message::OUTAGE.report(format_args!(
                "the server \"{servers}\" cannot be reached: {error}; calls fail with {name} until it can"
            ));
            return Err(Failed(errno));
        }
        let woken = self.shield.pause(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.is_caught |= woken == Woken::Signal;
        let is_interruptible = matches!(self.call, Call::Operate { .. }) && !self.is_sent;
        if self.is_caught && is_interruptible { Err(Failed(libc::EINTR)) } else { Ok(()) }
    }

    fn times_out(&self, now: Instant) -> bool {
        matches!(self.call, Call::Operate { deadline: Some(deadline), .. } if *deadline <= now)
    }
}

fn obstacle(lost: Lost) -> Obstacle {
    match lost {
        Lost::Closed => Obstacle::Outage(io::ErrorKind::NotConnected.into()),
        Lost::Broken(error) => Obstacle::Outage(error),
        Lost::Forked => Obstacle::Final(Failed(libc::EINTR)),
    }
}

/// Attaches to the process now, not at its next call, because the server keeps it only for a short time.
pub fn attach_at_once(process: &Process, settings: &Settings, shield: &Shield) {
    let mut attempts = Attempts::new(&NO_CALL, settings, shield);
    let mut lease = process.lease();
    while let Err(obstacle) = attempts.attach(process, &mut lease) {
        if matches!(obstacle, Obstacle::Gone) {
            drop(lease);
            return process.forget();
        }
        if attempts.overcome(obstacle).is_err() {
            return;
        }
    }
}

/// Tells the server that the process is about to replace its program, and is to be kept for `grace` without
/// connections. Returns whether the server has confirmed that.
pub fn announce(process: &Process, grace: Milliseconds, settings: &Settings, shield: &Shield) -> bool {
    let mut attempts = Attempts::new(&NO_CALL, settings, shield);
    let mut lease = process.lease();
    if attempts.attach(process, &mut lease).is_err() {
        return false;
    }
    let connection = lease.as_mut().expect("it was attached");
    attempts.ask(connection, settings.timeout, &SysvRequest::KeepProcess { grace }).is_ok()
}

/// Tells the server that the program was not replaced.
pub fn withdraw(process: &Process, settings: &Settings, shield: &Shield) {
    let mut lease = process.lease();
    let Some(connection) = lease.as_mut() else { return };
    let Name { process, key } = process.name();
    let attach = SysvRequest::AttachProcess { process, key };
    if Attempts::new(&NO_CALL, settings, shield).ask(connection, settings.timeout, &attach).is_err() {
        lease.set(None);
    }
}

/// A placeholder for attempts that only attach to the process. It is never sent.
static NO_CALL: Call<'static> = Call::Control { set: SetId(0), command: SetCommand::Stat };

/// The groups of the process when it is opened, up to the most that a request can have.
fn groups() -> Vec<u32> {
    let groups = getgroups().unwrap_or_default();
    groups.into_iter().map(Gid::as_raw).take(GROUPS_MAX).collect()
}

/// The program and the host: `php@web3`.
fn default_label() -> String {
    let (program, host) = (get_name().unwrap_or_default(), gethostname().unwrap_or_default());
    let mut label = format!("{}@{}", program.to_string_lossy(), host.to_string_lossy());
    label.truncate(label.floor_char_boundary(LABEL_BYTES_MAX));
    label
}
