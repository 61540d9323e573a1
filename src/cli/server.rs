//! The connection options of the client subcommands (server, namespace and timeout), and connections with them.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::{ArgAction, Args};

use super::exit::{Exit, Failure, of_limit};
use super::identity::{TlsOptions, TokenSource};
use super::messages;
use super::values::{Name, looks_like_pattern, time};
use signalbox_client::race::{Accepted, First, Limit, Stage, first_answer};
use signalbox_client::{
    Address, Builder, COUNTER_PORT, Client, ConnectError, Direct, Error, HelloAnswer, Namespace, PlainClient,
    SEMAPHORE_PORT, Series, Status, Tcp, Tls, Transport,
};
use signalbox_model::noun;

/// The pause before all addresses of a cluster are tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The options of all client subcommands.
#[derive(Clone, Debug, Args)]
pub(super) struct Server {
    /// Server to connect to; for a cluster, all nodes
    ///
    /// The default port is 11215, with --semaphore 11216. For a cluster, give all nodes, separated by commas, or a name
    /// that has all their addresses; the one that leads is used.
    #[arg(
        id = "server",
        long = "server",
        value_name = "HOST[:PORT]",
        env = "SIGNALBOX_SERVER",
        default_value = "127.0.0.1",
        value_delimiter = ',',
        action = ArgAction::Set,
        global = true
    )]
    addresses: Vec<Address>,

    /// Use the counter of this name, even if a semaphore of this name is declared
    ///
    /// The maximum of a counter comes with each request.
    #[arg(long, global = true, conflicts_with = "semaphore")]
    counter: bool,

    /// Use the semaphore of this name, even if it is not declared
    #[arg(long, global = true)]
    semaphore: bool,

    /// How long to wait for the connection and each response
    ///
    /// In seconds or with a unit (0.5, 30s, 5m, 1h). With several servers, one of them must answer within this time.
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = time, global = true)]
    pub(super) timeout: Duration,

    #[command(flatten)]
    pub(super) tls: TlsOptions,

    #[command(flatten)]
    pub(super) token: TokenSource,

    /// The address that answered last, if there are several; it is tried first.
    #[arg(skip)]
    answered: Arc<Mutex<Option<Address>>>,
}

impl Server {
    /// Returns the addresses of one server, or of the nodes of one cluster, with the default port where none was given.
    /// There is at least one.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let port = if self.semaphore { SEMAPHORE_PORT } else { COUNTER_PORT };
        self.addresses.iter().map(|address| address.clone().or_port(port)).collect()
    }

    /// Returns the addresses, separated by commas.
    pub(super) fn shown(&self) -> String {
        self.addresses().iter().map(Address::to_string).collect::<Vec<_>>().join(",")
    }

    /// Returns the address that answered last, if it is one of [`Self::addresses`].
    fn answered(&self) -> Option<Address> {
        let answered = self.lock_answered().clone()?;
        let name = answered.clone().unresolved();
        self.addresses().contains(&name).then_some(answered)
    }

    fn lock_answered(&self) -> MutexGuard<'_, Option<Address>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the builder of a leased client for these addresses. Lists of holders show `task` in its label.
    pub(super) fn builder(&self, task: &str) -> Result<Builder, Failure> {
        let mut addresses = self.addresses().into_iter();
        let first = addresses.next().expect("the option has at least one address");
        let builder = addresses.fold(Client::builder(first), Builder::address).label(label(task));
        let builder = builder.open_max(self.timeout);
        let builder = self.answered().into_iter().fold(builder, Builder::begin_with);
        let builder = self.tls.load()?.into_iter().fold(builder, Builder::transport);
        Ok(self.token.load()?.into_iter().fold(builder, Builder::token))
    }

    /// Returns whether a port was given. Otherwise `--semaphore` selects it.
    pub(super) fn has_port(&self) -> bool {
        self.addresses.iter().any(|address| address.port().is_some())
    }

    pub(super) fn with_addresses(&self, addresses: Vec<Address>) -> Self {
        Self { addresses, ..self.clone() }
    }

    pub(super) fn with_kind(&self, namespace: Namespace) -> Self {
        let (counter, semaphore) = (namespace == Namespace::Counters, namespace == Namespace::Semaphores);
        Self { counter, semaphore, ..self.clone() }
    }

    /// Returns the address of the leader: the only address, or the first of several that answers.
    pub(super) async fn leader(&self) -> Result<Address, Failure> {
        match self.only().await? {
            Some(only) => Ok(only),
            None => Ok(self.connect_to_first().await?.0),
        }
    }

    /// Returns the only address; `None` if several were given, or the name has several.
    async fn only(&self) -> Result<Option<Address>, Failure> {
        let addresses = self.addresses();
        let [only] = &addresses[..] else { return Ok(None) };
        let resolved = tokio::time::timeout(self.timeout, Tcp.resolve(only.clone())).await;
        let resolved = resolved.unwrap_or_else(|_| Err(self.timed_out(only)))?;
        Ok((resolved.len() == 1).then(|| only.clone()))
    }

    /// Returns the kind of names that the options select; `None` for a limit, whose kind the server knows.
    pub(super) fn kind(&self) -> Option<Namespace> {
        match (self.counter, self.semaphore) {
            (true, _) => Some(Namespace::Counters),
            (_, true) => Some(Namespace::Semaphores),
            _ => None,
        }
    }

    /// Returns the namespace of plain operations, which do not support limits: counters by default.
    pub(super) fn namespace(&self) -> Namespace {
        self.kind().unwrap_or(Namespace::Counters)
    }

    /// Returns the kind of a name. Fails if the name does not exist, unless the kind was given.
    pub(super) async fn resolve(&self, direct: &Direct, name: &Name) -> Result<Namespace, Failure> {
        if let Some(kind) = self.kind() {
            return Ok(kind);
        }
        match self.answer(direct.inspect(None, name.bytes())).await {
            Err(error) if error.status() == Some(Status::NotFound) => Err(self.not_found(name).await),
            inspected => Ok(inspected?.namespace),
        }
    }

    /// Returns the failure for a name of the requested kind that does not exist.
    pub(super) async fn not_found(&self, name: &Name) -> Failure {
        self.not_found_of(self.kind(), name).await
    }

    /// Returns the failure for a name that does not exist. With a kind, asks the server whether the name exists as the
    /// other kind.
    pub(super) async fn not_found_of(&self, kind: Option<Namespace>, name: &Name) -> Failure {
        let advice = match kind {
            _ if looks_like_pattern(name.bytes()) => {
                "this command takes one whole name; \"signalbox list\" and \"signalbox watch\" take patterns"
            }
            Some(kind) if self.exists_as(other(kind), name).await => match kind {
                Namespace::Counters => "a semaphore of this name exists; \"signalbox status\" shows it",
                Namespace::Semaphores => "a counter of this name exists; \"signalbox status\" shows it",
            },
            _ => {
                "check the name; \"signalbox list\" lists what is declared, and a name that is not declared exists while it is \
                  in use"
            }
        };
        Failure::refused(format!("{} {name} does not exist; {advice}", noun(kind)))
    }

    /// Returns whether a name exists as this kind; `false` if the server does not answer.
    pub(super) async fn exists_as(&self, kind: Namespace, name: &Name) -> bool {
        let Ok(direct) = self.direct().await else { return false };
        self.answer(direct.inspect(kind, name.bytes())).await.is_ok()
    }

    /// Connects for operations that only signalbox's server supports.
    pub(super) async fn direct(&self) -> Result<Direct, Failure> {
        let server = self.with_addresses(vec![self.leader().await?]);
        let client = server.builder("signalbox")?.build()?;
        Ok(server.answer(client.direct()).await?)
    }

    /// Connects for plain operations, which any server of the protocol supports. Their requests do not name a namespace,
    /// so the port must serve the one that was requested.
    pub(super) async fn connect(&self) -> Result<PlainClient, Failure> {
        Ok(self.connect_for("signalbox").await?.0)
    }

    /// Connects to the only address, or to the first of several that answers. While none does, a node of the cluster
    /// may be taking over, so they are tried again until the timeout.
    pub(super) async fn connect_to_first(&self) -> Result<(Address, PlainClient), Failure> {
        let tls = self.tls.load()?;
        if let Some(only) = self.only().await? {
            let client = open(&only, self.timeout, tls.as_ref(), &Accepted::default()).await?;
            return Ok((only, client));
        }
        let deadline = Instant::now() + self.timeout;
        loop {
            let last = match self.first_of(deadline, tls.as_ref()).await {
                Ok((address, client)) => {
                    *self.lock_answered() = Some(address.clone());
                    return Ok((address, client));
                }
                Err(last) => last,
            };
            if Instant::now() + RETRY_PAUSE >= deadline {
                let tried = self.shown();
                let unavailable = || {
                    let within = self.timeout.as_secs_f64();
                    let message = format!(
                        "none of the servers {tried} has answered within {within} s; the last one: {last}"
                    );
                    Failure::new(Exit::Unavailable, message)
                };
                return Err(of_limit(&last).unwrap_or_else(unavailable));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Connects to the first of several addresses that answers: in a cluster, one node does, while others refuse
    /// connections, have vanished, or are frozen. Fails with the error of the address that failed last.
    async fn first_of(&self, deadline: Instant, tls: Option<&Tls>) -> Result<(Address, PlainClient), Error> {
        let limit = deadline.saturating_duration_since(Instant::now());
        let answered = self.answered();
        let mut addresses = self.addresses();
        let name = answered.clone().map(Address::unresolved);
        addresses.sort_by_key(|address| Some(address) != name.as_ref());
        let late = |address: &Address| self.timed_out(address).into();
        let resolve = |address: &Address| -> Stage<Vec<Address>, Error> {
            let (resolving, answered) = (Tcp.resolve(address.clone()), answered.clone());
            Box::pin(async move {
                let mut resolved = resolving.await?;
                resolved.sort_by_key(|address| Some(address) != answered.as_ref());
                Ok(resolved)
            })
        };
        let ask = |address: &Address, accepted: Accepted| -> Stage<_, Error> {
            let (address, tls) = (address.clone(), tls.cloned());
            Box::pin(async move {
                let client = open(&address, limit, tls.as_ref(), &accepted).await?;
                accepted.note();
                client.noop().await?;
                Ok(client)
            })
        };
        let limit = Limit::Until(deadline.into());
        let First { address, answer, .. } = first_answer(&addresses, limit, late, resolve, ask).await?;
        Ok((address, answer))
    }

    /// Returns the error of an address that does not answer in time.
    fn timed_out(&self, address: &Address) -> ConnectError {
        ConnectError::TimedOut { address: address.to_string(), limit: self.timeout }
    }

    /// Connects for plain operations. Lists of holders show `task` in the label of the connection. Returns the id of the
    /// session too; `None` if the server has no sessions, as yrmcdsd does not.
    pub(super) async fn connect_for(&self, task: &str) -> Result<(PlainClient, Option<u64>), Failure> {
        let (_, client) = self.connect_to_first().await?;
        let token = self.token.load()?;
        let server = self.answer(client.introduce(&label(task), token.as_ref())).await?;
        self.check_port(server)?;
        Ok((client, server.map(|server| server.session)))
    }

    /// Fails if the port does not serve the namespace of the request, or if semaphores were requested and the server, such
    /// as yrmcdsd, does not say which it serves.
    fn check_port(&self, server: Option<HelloAnswer>) -> Result<(), Failure> {
        let address = self.shown();
        Err(Failure::usage(match (self.namespace(), server) {
            (requested, Some(HelloAnswer { port, .. })) if requested == port => return Ok(()),
            (Namespace::Counters, Some(_)) => format!(
                "{address} serves semaphores, and counters were requested; give the port of the counters ({COUNTER_PORT} by \
                 default), or, for a semaphore of this name, which is another thing, add --semaphore"
            ),
            (Namespace::Semaphores, Some(_)) => format!(
                "{address} serves counters, and --semaphore requests semaphores; give the port of the semaphores \
                 ({SEMAPHORE_PORT} by default), or, for a counter of this name, which is another thing, omit --semaphore"
            ),
            (Namespace::Counters, None) => return Ok(()),
            (Namespace::Semaphores, None) => format!(
                "{address} does not say whether it serves counters or semaphores, as yrmcdsd does not, so --semaphore \
                 has no effect there; omit --semaphore, because the port alone decides"
            ),
        }))
    }

    /// Waits for a response. Fails with [`ConnectError::TimedOut`] if none comes in time.
    pub(super) async fn answer<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.answer_within(self.timeout, call).await
    }

    /// Like [`Self::answer`], with this time limit.
    pub(super) async fn answer_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let late = || ConnectError::TimedOut { address: self.shown(), limit };
        tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(late().into()))
    }

    /// Returns the next entry of a series. Fails if it does not arrive in the time for a response.
    pub(super) async fn next<T>(&self, series: &mut Series<T>) -> Result<Option<T>, Error> {
        self.answer(async { series.next().await.transpose() }).await
    }

    /// Returns all entries of a series. Fails if one does not arrive in the time for a response.
    pub(super) async fn all<T>(
        &self,
        series: impl Future<Output = Result<Series<T>, Error>>,
    ) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        let mut series = self.answer(series).await?;
        while let Some(entry) = self.next(&mut series).await? {
            all.push(entry);
        }
        Ok(all)
    }
}

/// Opens a connection, over TLS if that is given.
async fn open(
    address: &Address,
    limit: Duration,
    tls: Option<&Tls>,
    accepted: &Accepted,
) -> Result<PlainClient, ConnectError> {
    match tls {
        Some(tls) => {
            let stream = tls.connect_in_steps(address.clone(), limit, || accepted.note()).await?;
            Ok(PlainClient::over(stream))
        }
        None => PlainClient::connect_within(address, limit).await,
    }
}

pub(super) fn other(namespace: Namespace) -> Namespace {
    match namespace {
        Namespace::Counters => Namespace::Semaphores,
        Namespace::Semaphores => Namespace::Counters,
    }
}

/// Returns the label of this process in lists of holders and waiters. It includes the machine, because a session that
/// was handed over is not connected and has no address. It excludes the command's arguments, because all clients can
/// read labels.
pub(super) fn label(task: &str) -> Vec<u8> {
    /// The longest label that the protocol allows.
    const BYTES_MAX: usize = 255;
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut label = format!("{} {task}", machine.trim()).trim_start().as_bytes().to_vec();
    label.truncate(BYTES_MAX);
    label
}

/// The reason for a refused administrative request, and what to do.
pub(super) const PERMISSION_DENIED: &str = "permission denied; use a token with the right to administer (--token-file), or, where the server has no rules of [access] for this client, \
     send the request from the server's machine or from an address in its admin_from";

/// Runs the async part of a subcommand, and shows the warnings of the client. One thread is enough for one connection and one
/// terminal.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    messages::show_warnings();
    block_on_quietly(future)
}

/// Like [`block_on`], without warnings.
pub(super) fn block_on_quietly<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    // The runtime opens five descriptors, and panics if it cannot open some of them. So this first opens and closes six.
    let spare: io::Result<Vec<_>> = (0..3).map(|_| UnixStream::pair()).collect();
    let runtime = spare
        .map(drop)
        .and_then(|()| tokio::runtime::Builder::new_current_thread().enable_all().build())
        .map_err(|error| Failure::system("start the async runtime", &error))?;
    let result = runtime.block_on(future);
    // Does not wait for a thread that still reads a certificate or a token, from a file system that does not answer.
    runtime.shutdown_background();
    result
}
