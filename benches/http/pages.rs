//! The cost of pages and scrapes with a million names: how long a scrape and the first status page take, and how long other
//! clients wait while both are requested once a second, compared with how long they wait otherwise.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signalbox_bench::{Distribution, Pace};

use super::support::holder::hold;
use super::support::ports::free_ports;
use super::support::servers::start_signalbox_with;
use super::support::statistics::noise;
use super::support::{Loaded, Shape, pairs};
use super::{Arguments, print_heading, print_line};

/// The clients that wait.
const SHAPE: Shape = Shape { connections: 50, in_flight: 1 };
const NAMES: u32 = 10_000;

const SCRAPE: &str = "/metrics";

/// The requests of a browser that shows the status page for the first time: its files, and then the figures of the overview.
const PAGE: [&str; 14] = [
    "/",
    "/page.css",
    "/icon.svg",
    "/page.js",
    "/views.js",
    "/actions.js",
    "/api.js",
    "/table.js",
    "/text.js",
    "/api/v1/status",
    "/api/v1/names?list=waiting&limit=10",
    "/api/v1/declared?list=above_capacity&limit=10",
    "/api/v1/declared?list=paused&limit=10",
    "/api/v1/declared?list=out_of_service&limit=10",
];

/// How often both are asked for.
const PERIOD: Duration = Duration::from_secs(1);

/// The most that a scrape and the first page may take, in milliseconds, and the p99 during them in relation to the usual one.
const SCRAPE_BOUND_MS: f64 = 20.0;
const PAGE_BOUND_MS: f64 = 50.0;
const P99_BOUND: f64 = 1.3;

/// The figures of a run.
struct Figures {
    /// The first requests to a new server.
    first_scrape_ms: f64,
    first_page_ms: f64,
    /// The slowest scrape and page during the load.
    scrape_ms: f64,
    page_ms: f64,
    /// The p99 with both, in relation to the p99 before and after.
    p99_to_usual: f64,
    /// The p99 after, in relation to the p99 before.
    p99_to_itself: f64,
}

pub fn measure_all(arguments: &Arguments) {
    let (runs, seconds) = (arguments.runs, arguments.seconds);
    println!(
        "{} names; load at {SHAPE} and half of the maximum rate; medians of {runs} runs of {seconds} s\n",
        arguments.names
    );
    let figures: Vec<_> = (0..runs).map(|_| measure(arguments)).collect();
    let of = |figure: fn(&Figures) -> f64| figures.iter().map(figure).collect::<Vec<_>>();
    print_heading();
    print_line("first scrape, ms", &of(|f| f.first_scrape_ms), Some(SCRAPE_BOUND_MS));
    print_line("first status page, ms", &of(|f| f.first_page_ms), Some(PAGE_BOUND_MS));
    print_line("slowest scrape beside the load, ms", &of(|f| f.scrape_ms), None);
    print_line("slowest status page beside the load, ms", &of(|f| f.page_ms), None);
    print_line("p99 with both once a second, to usual", &of(|f| f.p99_to_usual), Some(P99_BOUND));
    println!("{:<44}{:>10.2}", "noise: the usual p99 to itself", noise(&of(|f| f.p99_to_itself)));
}

fn measure(arguments: &Arguments) -> Figures {
    let [port] = free_ports();
    let http = SocketAddr::from(([127, 0, 0, 1], port));
    let server = start_signalbox_with(&format!("http = {{ enable = true, port = {port} }}\n"));
    let semaphores = server.semaphores.expect("signalbox serves semaphores");
    let plan = pairs(SHAPE, NAMES, Distribution::Uniform);
    let mut loaded = Loaded::connect(server, plan).unwrap_or_else(|error| panic!("{error}"));
    let _holder = hold(semaphores, 0..arguments.names);
    let first_scrape_ms = milliseconds(|| get(http, SCRAPE));
    let first_page_ms = milliseconds(|| show_page(http));
    let mut run = |seconds, pace| {
        let time = Duration::from_secs_f64(seconds);
        loaded.run(time, pace).unwrap_or_else(|error| panic!("{error}")).record
    };
    let requests_per_s = run(0.5, Pace::Closed).answers_per_s() / 2.0;
    let mut p99 = || {
        let record = run(arguments.seconds, Pace::Open { requests_per_s });
        record.latency_ns().value_at_percentile(99.0) as f64
    };
    let before = p99();
    let is_over = AtomicBool::new(false);
    let (with_both, (scrape_ms, page_ms)) = thread::scope(|scope| {
        let asker = scope.spawn(|| ask_once_a_second(http, &is_over));
        let p99 = p99();
        is_over.store(true, Ordering::Relaxed);
        (p99, asker.join().expect("the listener continues to answer"))
    });
    let after = p99();
    Figures {
        first_scrape_ms,
        first_page_ms,
        scrape_ms,
        page_ms,
        p99_to_usual: with_both / f64::midpoint(before, after),
        p99_to_itself: after / before,
    }
}

/// Returns how many milliseconds the slowest scrape and the slowest page took.
fn ask_once_a_second(http: SocketAddr, is_over: &AtomicBool) -> (f64, f64) {
    let (mut scrape_ms, mut page_ms) = (0.0_f64, 0.0_f64);
    let started = Instant::now();
    for number in 1.. {
        scrape_ms = scrape_ms.max(milliseconds(|| get(http, SCRAPE)));
        page_ms = page_ms.max(milliseconds(|| show_page(http)));
        while started.elapsed() < PERIOD * number {
            if is_over.load(Ordering::Relaxed) {
                return (scrape_ms, page_ms);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    unreachable!("the run ends sooner")
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64() * 1000.0
}

/// Asks for all that the page needs, one after the other.
fn show_page(http: SocketAddr) {
    PAGE.iter().for_each(|path| get(http, path));
}

/// Asks for a path on a connection of its own.
fn get(http: SocketAddr, path: &str) {
    let mut stream = TcpStream::connect(http).expect("the listener accepts");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the listener reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the listener answers");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{path}: {}", String::from_utf8_lossy(&answer));
}
