//! Processes of several machines share a semaphore set as a lock, on a simulated network and clock, while they die, fork,
//! replace their program, and lose their machine.
//!
//! A process takes the lock by the operations `(0, 0) (0, +1 SEM_UNDO)`, and releases it by `(0, -1 SEM_UNDO)`. At no time
//! do two processes hold it, and the invariants of the sets hold after every step. When the faults stop, every process
//! gets the lock, and after the last of them the value is 0 and no process is left.
//!
//! `SIGNALBOX_SEEDS=10000 cargo test --release --test simulation processes::` sets the number of seeds, and
//! `SIGNALBOX_SEED=7` sets the first one.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::BytesMut;
use signalbox_model::sysv::{Caller, Errno, IPC_CREAT, OpenedProcess, Operation, SEM_UNDO, SetId};
use signalbox_model::{Milliseconds, Namespace, RequestId, RequestIds, Status};
use signalbox_protocol::{Opaque, Operations, ResponseCodec, ResponseFrame, SysvRequest, WAIT_FOREVER_MS};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use turmoil::net::TcpStream;

use crate::network::{self, SERVER, machine_name, port_of};
use crate::random::Random;
use crate::scene::Scene;
use crate::seeds::{number_in, run_alone};

const KEY: i32 = 0x10c;

/// The time to live of a process, which passes after the server has noticed that its machine is gone.
const TTL: Milliseconds = Milliseconds(2_000);

/// How long a process lives on while it replaces its program.
const GRACE: Milliseconds = Milliseconds(1_500);

/// The longest time until the lock of a vanished machine becomes free: the server probes for 35 s.
const END_MS_MAX: u64 = 60_000;

const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// The state that all processes share with the checks.
#[derive(Default)]
struct Lock {
    /// The processes that hold the lock, as far as they know, with their machines.
    holders: BTreeSet<(usize, u32)>,
    /// The processes that were started.
    started: u32,
    /// The workers whose processes have had the lock since the faults stopped.
    satisfied: BTreeSet<usize>,
    is_ending: bool,
    failure: Option<String>,
}

type Shared = Arc<Mutex<Lock>>;

fn locked(shared: &Shared) -> MutexGuard<'_, Lock> {
    shared.lock().expect("nothing panics while it changes the lock")
}

/// A process: its connection, and what it knows of itself.
struct Process {
    stream: TcpStream,
    received: BytesMut,
    scene: Arc<Scene>,
    machine: usize,
    pid: u32,
    requests: u64,
    opened: Option<OpenedProcess>,
}

impl Process {
    /// Starts on a machine.
    async fn start(scene: &Arc<Scene>, shared: &Shared, machine: usize) -> io::Result<Self> {
        let pid = {
            let mut lock = locked(shared);
            lock.started += 1;
            lock.started
        };
        let stream = Self::connect(scene, machine).await?;
        let received = BytesMut::new();
        let mut process =
            Self { stream, received, scene: Arc::clone(scene), machine, pid, requests: 0, opened: None };
        let (ttl, groups) = (Some(TTL), Vec::new());
        let open = SysvRequest::OpenProcess { ttl, pid, caller: CALLER, groups, label: b"simulated" };
        let answer = process.ask(open).await?;
        process.opened = Some(answer.opened_process().map_err(io::Error::other)?);
        Ok(process)
    }

    async fn connect(scene: &Scene, machine: usize) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((SERVER, port_of(Namespace::Counters))).await?;
        scene.opened(stream.local_addr()?, machine);
        Ok(stream)
    }

    /// Sends a request, and returns its answer, which may come late.
    async fn ask(&mut self, request: SysvRequest<'_>) -> io::Result<ResponseFrame> {
        let mut out = Vec::new();
        request.compose(Opaque([7; 4]), &mut out);
        self.stream.write_all(&out).await?;
        loop {
            if let Some(frame) = ResponseCodec.decode(&mut self.received).map_err(io::Error::other)? {
                return match Status::from_code(frame.status) {
                    Some(Status::NoError) => Ok(frame),
                    status => Err(io::Error::other(format!("{status:?}"))),
                };
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn ids(&mut self) -> RequestIds {
        self.requests += 1;
        let own = RequestId(self.requests);
        RequestIds { own, lowest_unanswered: own }
    }

    async fn set(&mut self) -> io::Result<SetId> {
        let ids = self.ids();
        let get = SysvRequest::SemGet { ids, caller: CALLER, key: KEY, count: 1, flags: IPC_CREAT | 0o600 };
        let answer = self.ask(get).await?.call_set().map_err(io::Error::other)?;
        answer.map(|(set, _)| set).map_err(|errno| io::Error::other(errno.name()))
    }

    async fn operate(&mut self, set: SetId, operations: &[Operation]) -> io::Result<Result<(), Errno>> {
        let mut bytes = Vec::new();
        let operations = Operations::encode(operations, &mut bytes).expect("there are few");
        let (ids, wait_ms) = (self.ids(), WAIT_FOREVER_MS);
        let answer = self.ask(SysvRequest::SemOp { ids, caller: CALLER, set, wait_ms, operations }).await?;
        answer.call_done().map_err(io::Error::other)
    }

    /// Replaces the program: announces it, closes the connection, and attaches to the process by another one.
    async fn exec(&mut self, random: &mut Random) -> io::Result<()> {
        self.ask(SysvRequest::KeepProcess { grace: GRACE }).await?;
        self.close();
        self.stream = Self::connect(&self.scene, self.machine).await?;
        self.received.clear();
        sleep(Duration::from_millis(random.between(0, 500))).await;
        let OpenedProcess { process, key, .. } = self.opened.expect("it was opened");
        self.ask(SysvRequest::AttachProcess { process, key }).await.map(drop)
    }

    /// The connection is closed when the stream is dropped or replaced.
    fn close(&self) {
        if let Ok(local) = self.stream.local_addr() {
            self.scene.closed(local);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.close();
    }
}

/// A worker on a machine: it starts processes, one after the other.
async fn live(scene: Arc<Scene>, shared: Shared, machine: usize, worker: usize, mut random: Random) {
    loop {
        let Ok(mut process) = Process::start(&scene, &shared, machine).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let pid = process.pid;
        let result = use_lock(&mut process, &shared, machine, worker, &mut random).await;
        // It dies, and holds nothing from now on.
        locked(&shared).holders.remove(&(machine, pid));
        drop(process);
        match result {
            Ok(()) => {}
            Err(error) => scene.event(pid, format_args!("ends: {error}")),
        }
        if locked(&shared).satisfied.contains(&worker) {
            return;
        }
        sleep(Duration::from_millis(random.between(0, 300))).await;
    }
}

/// Takes and releases the lock until the process dies.
async fn use_lock(
    process: &mut Process,
    shared: &Shared,
    machine: usize,
    worker: usize,
    random: &mut Random,
) -> io::Result<()> {
    let set = process.set().await?;
    let operation = |change, flags| Operation { number: 0, change, flags };
    for _ in 0..random.between(1, 8) {
        let taken = process.operate(set, &[operation(0, 0), operation(1, SEM_UNDO)]).await?;
        taken.map_err(|errno| io::Error::other(errno.name()))?;
        {
            let mut lock = locked(shared);
            lock.holders.insert((machine, process.pid));
            if lock.holders.len() > 1 {
                let holders = lock.holders.clone();
                lock.failure.get_or_insert(format!("several processes hold the lock: {holders:?}"));
            }
            if lock.is_ending {
                lock.satisfied.insert(worker);
            }
        }
        sleep(Duration::from_millis(random.between(0, 400))).await;
        let is_ending = locked(shared).is_ending;
        match random.weighted(&[("release", 6), ("die", 2), ("exec", 2), ("fork", 1)]) {
            "die" if !is_ending => return Ok(()),
            "exec" => process.exec(random).await?,
            // The child makes a call of its own, and ends. It has none of its parent's adjustments.
            "fork" => {
                let scene = Arc::clone(&process.scene);
                let mut child = Process::start(&scene, shared, machine).await?;
                child.set().await?;
            }
            _ => {}
        }
        locked(shared).holders.remove(&(machine, process.pid));
        let released = process.operate(set, &[operation(-1, SEM_UNDO)]).await?;
        released.map_err(|errno| io::Error::other(errno.name()))?;
        if locked(shared).satisfied.contains(&worker) {
            return Ok(());
        }
    }
    Ok(())
}

/// Runs a seed. Returns a description of the failure, if there is one.
fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::of(seed, 0);
    let machines = random.between(1, 4) as usize;
    let workers = random.between(2, 8) as usize;
    let work_ms = random.between(3_000, 15_000);
    let (scene, shared) = (Scene::new(machines, Vec::new()), Shared::default());
    let mut sim = network::simulation(seed, random.between(2, 60));
    let server_scene = Arc::clone(&scene);
    let write_bytes_max = random.weighted(&[(5, 1), (usize::MAX, 2)]);
    sim.host(SERVER, move || network::serve(Arc::clone(&server_scene), 1, write_bytes_max));
    for machine in 0..machines {
        let (scene, shared) = (Arc::clone(&scene), Arc::clone(&shared));
        sim.host(machine_name(machine), move || {
            for worker in (machine..workers).step_by(machines) {
                let random = Random::of(seed, 2 + worker as u64 + (u64::from(locked(&shared).started) << 16));
                let (scene, shared) = (Arc::clone(&scene), Arc::clone(&shared));
                tokio::task::spawn_local(live(scene, shared, machine, worker, random));
            }
            std::future::pending()
        });
    }
    let mut crashed = None;
    loop {
        sim.step().map_err(|error| error.to_string())?;
        let now_ms = sim.elapsed().as_millis() as u64;
        scene.state().now_ms = now_ms;
        scene.set_clock(now_ms / 1000);
        let server = scene.state().server.clone();
        if let Some(server) = &server {
            server.core().check_sysv()?;
        }
        let failure = scene.state().failure();
        if let Some(failure) = locked(&shared).failure.take().or(failure) {
            return Err(format!("at {now_ms} ms: {failure}"));
        }
        if now_ms < work_ms {
            // A machine fails, and starts again: its processes vanish without notice.
            if crashed.is_none() && random.next().is_multiple_of(600) {
                let machine = random.between(0, machines as u64 - 1) as usize;
                sim.crash(machine_name(machine));
                locked(&shared).holders.retain(|(of, _)| *of != machine);
                crashed = Some((machine, now_ms + random.between(10, 3_000)));
            }
        } else {
            locked(&shared).is_ending = true;
        }
        if let Some((machine, _)) = crashed.take_if(|(_, until_ms)| *until_ms <= now_ms) {
            sim.bounce(machine_name(machine));
        }
        let is_satisfied = locked(&shared).satisfied.len() == workers;
        let stats = server.map(|server| server.core().sysv_stats());
        if is_satisfied && stats.is_some_and(|stats| (stats.processes, stats.waiting) == (0, 0)) {
            return Ok(());
        }
        if now_ms > work_ms + END_MS_MAX * 2 {
            let satisfied = locked(&shared).satisfied.clone();
            return Err(format!(
                "of {workers} workers only {satisfied:?} got the lock after the faults; {stats:?}"
            ));
        }
    }
}

#[test]
fn no_two_processes_hold_a_lock_and_each_gets_it_at_last() {
    let (first, seeds) = (number_in("SIGNALBOX_SEED", 1), number_in("SIGNALBOX_SEEDS", 30));
    for seed in first..first + seeds {
        if let Err(what) = run_alone(seed, run) {
            panic!(
                "seed {seed}, {what}\nreplay: SIGNALBOX_SEED={seed} SIGNALBOX_SEEDS=1 \
                cargo test --test simulation processes::"
            );
        }
    }
}
