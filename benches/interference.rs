//! How long a few clients wait for their answers while the server has much other work.
//!
//! `cargo bench --bench interference` puts a fixed load of half of what the server can do on 50 connections, and adds
//! other work in turn: nothing, Dumps of a million names, the end of a connection that holds a million names, a sweep
//! that removes a million names, a thousand connections a second that come and go, 100,000 requests that wait for one
//! name until they time out, and 100,000 sessions with grants that expire together. Each is compared with the same server
//! without that work, and with the floor, which has no such work. Beside the floor, a process burns as much CPU as the other
//! work takes from the server and its clients, because on a machine with few cores most of the wait is for a core.

mod support;

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use signalbox_bench::Histogram;
use signalbox_bench::{Distribution, Pace, Record, Usage};
use signalbox_model::Milliseconds;
use signalbox_protocol::{Request, Wait};
use support::answers::{ask, statistic};
use support::arguments::FromCargo;
use support::asker::{Asker, ids};
use support::holder::{dump, hold};
use support::servers::{Kind, Server, start_signalbox};
use support::statistics::{median, noise};
use support::thread::thread_cpu;
use support::{Loaded, Shape, floor, pairs};

const SHAPE: Shape = Shape { connections: 50, in_flight: 1 };
const NAMES: u32 = 10_000;
const CONNECTIONS_PER_S: u32 = 1000;

/// The highest ratio of a percentile to the one that it is compared with that is permitted.
const BOUND: f64 = 2.0;

/// The time between the ends of two holders of a million names.
const END_PERIOD: Duration = Duration::from_millis(1500);

/// The rate at which any machine can acquire and release names, which gives the time before a sweep; and an interval so long
/// that no sweep comes during a run.
const NAMES_PER_S: u32 = 250_000;
const SWEEP_NEVER_S: u32 = 3600;

/// The interval between checks whether a sweep has begun, and the longest time to wait for one.
const SWEEP_POLL: Duration = Duration::from_millis(10);
const SWEEP_PATIENCE: Duration = Duration::from_secs(60);

/// The period in which a process burns CPU beside the floor if the work is spread over the time.
const SPREAD_PERIOD: Duration = Duration::from_millis(10);

/// Requests that wait, and sessions; how many of them a connection asks for at once; how long they live.
const MANY: u32 = 100_000;
const OF_A_CONNECTION: u32 = 1000;
const TTL_MS: u32 = 1000;

/// The pause after each batch of requests, so that they leave the load its cores.
const BATCH_PAUSE: Duration = Duration::from_millis(8);

/// The argument that makes this binary a process that burns a share of a core: `--burn PERCENT PERIOD_MS`.
const BURN: &str = "--burn";

/// Measures the latency of some clients while the server works for others
#[derive(Debug, Parser)]
struct Arguments {
    /// Work beside which to measure
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Work>,

    /// Names that are dumped, released or swept
    #[arg(long, default_value = "1000000")]
    names: u32,

    /// Runs of each, in turn; medians are shown, of percentiles and of the ratios of a turn
    #[arg(long, default_value = "15")]
    runs: usize,

    /// Length of a run, in seconds
    #[arg(long, default_value = "4")]
    seconds: f64,

    /// A run each of a second, with fewer names: to see that it works
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    from_cargo: FromCargo,
}

/// The other work of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    Nothing,
    Dump,
    Disconnect,
    Sweep,
    Churn,
    Waiters,
    Sessions,
}

impl Work {
    const ALL: [Self; 7] = [
        Self::Nothing,
        Self::Dump,
        Self::Disconnect,
        Self::Sweep,
        Self::Churn,
        Self::Waiters,
        Self::Sessions,
    ];

    /// The period in which the work comes: at once each time that a holder ends, or spread over the time.
    fn period(self) -> Duration {
        match self {
            Self::Disconnect => END_PERIOD,
            _ => SPREAD_PERIOD,
        }
    }

    /// Whether the work's bound is reached: for waiters and sessions that of the p99, else that of the p99.9.
    fn verdict(self, to_usual: f64, to_floor: f64, noise: f64) -> &'static str {
        let ratio = match self {
            Self::Nothing => return "",
            Self::Waiters | Self::Sessions => to_usual,
            _ => to_floor,
        };
        if ratio <= BOUND {
            "reached"
        } else if ratio > BOUND + noise {
            "missed"
        } else {
            "undecided"
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Dump => "dumps",
            Self::Disconnect => "ends of a holder",
            Self::Sweep => "a sweep",
            Self::Churn => "connections",
            Self::Waiters => "waiters",
            Self::Sessions => "sessions",
        }
    }
}

fn main() {
    floor::become_if_asked();
    burn_if_asked();
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.names, arguments.runs, arguments.seconds) = (300_000, 1, 1.0);
    }
    let rate = half_of_the_maximum();
    println!(
        "Latency at {SHAPE} and {rate:.0} requests/s beside work on {} names; medians of {} runs of {} s, in us\n",
        arguments.names, arguments.runs, arguments.seconds
    );
    println!(
        "{:<18}{:<12}{:>10}{:>10}{:>10}{:>12}{:>12}{:>14}{:>16}{:>8}  bound",
        "beside",
        "server",
        "p50",
        "p99",
        "p99.9",
        "own p99.9",
        "CPU beside",
        "p99 to usual",
        "p99.9 to floor",
        "noise",
    );
    for work in Work::ALL {
        if arguments.only.is_empty() || arguments.only.contains(&work) {
            compare(work, rate, &arguments);
        }
    }
}

/// Half of the lower of the maximum rates of signalbox and the floor, as both get the same rate.
fn half_of_the_maximum() -> f64 {
    let maximum = |kind: Kind| {
        let mut loaded = connect(kind.start());
        let mut rates: Vec<_> = (0..3).map(|_| run(&mut loaded, 0.5, Pace::Closed).answers_per_s()).collect();
        rates.sort_by(f64::total_cmp);
        rates[1]
    };
    maximum(Kind::Signalbox).min(maximum(Kind::Floor)) / 2.0
}

fn connect(server: Server) -> Loaded {
    Loaded::connect(server, pairs(SHAPE, NAMES, Distribution::Uniform))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn run(loaded: &mut Loaded, seconds: f64, pace: Pace) -> Record {
    let outcome =
        loaded.run(Duration::from_secs_f64(seconds), pace).unwrap_or_else(|error| panic!("{error}"));
    outcome.record
}

/// Percentiles of a run in microseconds, and the cores that the other work took.
#[derive(Clone, Copy)]
struct Figures {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// The p99.9 of the delay with which the generator itself sent requests.
    own_p999_us: f64,
    cores_beside: f64,
}

impl Figures {
    fn of(record: &Record, cores_beside: f64) -> Self {
        let latency_ns = record.latency_ns();
        let us =
            |times_ns: &Histogram<u64>, percentile| times_ns.value_at_percentile(percentile) as f64 / 1000.0;
        Self {
            p50_us: us(&latency_ns, 50.0),
            p99_us: us(&latency_ns, 99.0),
            p999_us: us(&latency_ns, 99.9),
            own_p999_us: us(&record.own_delay_ns, 99.9),
            cores_beside,
        }
    }

    fn medians(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
        Self {
            p50_us: of(|f| f.p50_us),
            p99_us: of(|f| f.p99_us),
            p999_us: of(|f| f.p999_us),
            own_p999_us: of(|f| f.own_p999_us),
            cores_beside: of(|f| f.cores_beside),
        }
    }
}

/// Runs signalbox and the floor in turn, turn by turn, so that what disturbs the machine for long disturbs all alike. The
/// floor runs twice in each: how it compares with itself is the noise.
fn compare(work: Work, rate: f64, arguments: &Arguments) {
    let pace = Pace::Open { requests_per_s: rate };
    let [mut usual, mut signalbox, mut floor] = [(); 3].map(|()| Vec::new());
    let [mut to_usual, mut to_floor, mut to_itself] = [(); 3].map(|()| Vec::new());
    for _ in 0..arguments.runs {
        // A run without the work: its latency is the usual one, and its CPU is subtracted from that of the run with the work.
        let alone = beside_signalbox(Work::Nothing, pace, 0.0, arguments);
        let figures = beside_signalbox(work, pace, alone.cores_beside, arguments);
        let [first, second] = [(); 2].map(|()| beside_floor(work, pace, figures.cores_beside, arguments));
        to_usual.push(figures.p99_us / alone.p99_us);
        to_floor.push(figures.p999_us / first.p999_us);
        to_itself.push(second.p999_us / first.p999_us);
        usual.push(alone);
        signalbox.push(figures);
        floor.push(first);
    }
    let (to_usual, to_floor, noise) = (median(&to_usual), median(&to_floor), noise(&to_itself));
    let verdict = work.verdict(to_usual, to_floor, noise);
    let compared = format!("{to_usual:>14.2}{to_floor:>16.2}{noise:>8.2}  {verdict}");
    print_line(work.label(), "signalbox", Figures::medians(&signalbox), &compared);
    print_line("", "alone", Figures::medians(&usual), "");
    print_line("", "floor", Figures::medians(&floor), "");
}

fn print_line(beside: &str, server: &str, figures: Figures, compared: &str) {
    let Figures { p50_us, p99_us, p999_us, own_p999_us, cores_beside } = figures;
    println!(
        "{beside:<18}{server:<12}{p50_us:>10.0}{p99_us:>10.0}{p999_us:>10.0}{own_p999_us:>12.0}{cores_beside:>12.2}\
         {compared}"
    );
}

/// A run on a fresh server, on whose semaphores the work is done, by connections of its own. `alone_cores` is the server's CPU
/// without it. The CPU of the work includes that of its clients, which run on the same cores.
fn beside_signalbox(work: Work, pace: Pace, alone_cores: f64, arguments: &Arguments) -> Figures {
    let gc_interval_s =
        if work == Work::Sweep { 2 + arguments.names.div_ceil(NAMES_PER_S) } else { SWEEP_NEVER_S };
    let mut loaded = connect(start_signalbox(gc_interval_s));
    let address = loaded.server.semaphores.expect("signalbox serves semaphores");
    // Before the run, so that creating names, and releasing those that are swept, is not measured.
    let holders = match work {
        Work::Dump => 1,
        Work::Disconnect => (arguments.seconds / END_PERIOD.as_secs_f64()).ceil() as u32,
        Work::Nothing | Work::Sweep | Work::Churn | Work::Waiters | Work::Sessions => 0,
    };
    let names = |holder: u32| holder * arguments.names..(holder + 1) * arguments.names;
    let holders: Vec<_> = (0..holders).map(|holder| hold(address, names(holder))).collect();
    if work == Work::Sweep {
        drop(hold(address, names(0)));
        await_sweep(address, arguments.names);
    }
    run(&mut loaded, 0.3, pace);
    let is_over = AtomicBool::new(false);
    let pid = loaded.server.pid();
    let before = Usage::of(pid).unwrap_or_else(|error| panic!("{error}"));
    let started = Instant::now();
    let (record, cores) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            do_beside(work, address, holders, &is_over);
            thread_cpu()
        });
        let record = run(&mut loaded, arguments.seconds, pace);
        is_over.store(true, Ordering::Relaxed);
        let after = Usage::of(pid).unwrap_or_else(|error| panic!("{error}"));
        let elapsed = started.elapsed();
        let clients = beside.join().expect("the work beside continues to the end");
        (record, (after.cpu - before.cpu + clients).as_secs_f64() / elapsed.as_secs_f64())
    });
    if work == Work::Sweep {
        let swept = statistic(address, "gc_count");
        assert_eq!(swept, 0, "the sweep was over before the run: take more names, or fewer seconds");
    }
    Figures::of(&record, (cores - alone_cores).max(0.0))
}

/// A run on the floor, beside a process that takes as much of the cores as the work took.
fn beside_floor(work: Work, pace: Pace, cores_beside: f64, arguments: &Arguments) -> Figures {
    let mut loaded = connect(Kind::Floor.start());
    let _burner = Burner::start(cores_beside, work.period());
    run(&mut loaded, 0.3, pace);
    Figures::of(&run(&mut loaded, arguments.seconds, pace), cores_beside)
}

/// Waits until the first sweep removes names, all of which are free by then.
fn await_sweep(address: SocketAddr, names: u32) {
    let objects = || statistic(address, "objects");
    let started = Instant::now();
    assert!(objects() >= names.into(), "a sweep came too early: take fewer names");
    while objects() >= names.into() {
        assert!(started.elapsed() < SWEEP_PATIENCE, "a sweep removes names without holders");
        thread::sleep(SWEEP_POLL);
    }
    assert_eq!(statistic(address, "gc_count"), 0, "a sweep came too early: take fewer names");
}

/// Keeps the server at work until the run is over.
fn do_beside(work: Work, address: SocketAddr, holders: Vec<TcpStream>, is_over: &AtomicBool) {
    let is_over = || is_over.load(Ordering::Relaxed);
    match work {
        // A sweep runs by itself.
        Work::Nothing | Work::Sweep => {}
        Work::Dump => {
            while !is_over() {
                dump(address, is_over);
            }
        }
        Work::Disconnect => {
            for holder in holders {
                drop(holder);
                thread::sleep(END_PERIOD);
            }
        }
        Work::Churn => churn(address, is_over),
        Work::Waiters => wait_and_time_out(address, is_over),
        Work::Sessions => open_and_expire(address, is_over),
    }
}

/// Requests that wait for a name until they time out, and then again, a thousand of each connection.
fn wait_and_time_out(address: SocketAddr, is_over: impl Fn() -> bool) {
    let name = b"one name for all";
    let mut holder = Asker::connect(address);
    holder.acquire(ids(1, 1), 1, name, Wait::NotAtAll);
    holder.answers(1);
    let mut askers: Vec<_> = (0..MANY / OF_A_CONNECTION).map(|_| Asker::connect(address)).collect();
    let mut answered = 0;
    while !is_over() {
        for asker in &mut askers {
            for number in answered + 1..=answered + OF_A_CONNECTION {
                asker.acquire(ids(number, answered + 1), number, name, Wait::UpTo(Milliseconds(TTL_MS)));
            }
            asker.answers(0);
            thread::sleep(BATCH_PAUSE);
        }
        askers.iter_mut().for_each(|asker| asker.answers(OF_A_CONNECTION));
        answered += OF_A_CONNECTION;
    }
}

/// Leased sessions with a grant each that no client keeps alive.
fn open_and_expire(address: SocketAddr, is_over: impl Fn() -> bool) {
    let mut asker = Asker::connect(address);
    while !is_over() {
        for number in 1..=MANY {
            asker.open_session(TTL_MS);
            asker.acquire(ids(1, 1), number, format!("leased-{number:09}").as_bytes(), Wait::NotAtAll);
            if number % OF_A_CONNECTION == 0 {
                asker.answers(2 * OF_A_CONNECTION);
                thread::sleep(BATCH_PAUSE);
            }
        }
        thread::sleep(Duration::from_millis(3 * u64::from(TTL_MS) / 2));
    }
}

/// Connections that ask once and go, at fixed times.
fn churn(address: SocketAddr, is_over: impl Fn() -> bool) {
    let started = Instant::now();
    for number in 1.. {
        if is_over() {
            return;
        }
        ask(address, &Request::Noop).skip();
        let due = Duration::from_secs(1) * number / CONNECTIONS_PER_S;
        thread::sleep(due.saturating_sub(started.elapsed()));
    }
}

/// A process that burns CPU.
struct Burner(Option<Child>);

impl Burner {
    fn start(cores: f64, period: Duration) -> Self {
        let percent = (cores * 100.0).round();
        let start = || {
            let binary = std::env::current_exe().expect("a running program has a file");
            let mut command = Command::new(binary);
            command.args([BURN, &percent.to_string(), &period.as_millis().to_string()]).stdin(Stdio::piped());
            command.spawn().expect("the benchmark's own binary starts")
        };
        Self((percent >= 1.0).then(start))
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Burns a share of one core after another, at the start of each period, until standard input ends.
fn burn_if_asked() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(BURN) {
        return;
    }
    let mut percent: f64 = arguments.next().and_then(|percent| percent.parse().ok()).unwrap_or(0.0);
    let period_ms = arguments.next().and_then(|period_ms| period_ms.parse().ok());
    let period = period_ms.map_or(SPREAD_PERIOD, Duration::from_millis);
    while percent >= 1.0 {
        let share = percent.min(100.0) / 100.0;
        thread::spawn(move || burn(share, period));
        percent -= 100.0;
    }
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    std::process::exit(0);
}

fn burn(share: f64, period: Duration) -> ! {
    loop {
        let started = Instant::now();
        while started.elapsed() < period.mul_f64(share) {
            std::hint::spin_loop();
        }
        thread::sleep(period.saturating_sub(started.elapsed()));
    }
}
