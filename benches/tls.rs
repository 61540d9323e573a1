//! The cost of TLS: signalbox in relation to a bare responder of rustls, compared with its relation to a bare responder
//! without TLS; and the memory of idle connections with and without TLS.
//!
//! ```sh
//! cargo bench --bench tls
//! ```

mod support;

use std::time::Duration;

use clap::Parser;
use signalbox_bench::{Distribution, Generator, Limit, Pace, Progress, Usage};
use support::arguments::FromCargo;
use support::certificates::for_loopback;
use support::servers::{Kind, Server, start_tls_floor, start_tls_signalbox};
use support::statistics::median;
use support::{Loaded, Outcome, Shape, floor, pairs, tls_floor};

const NAMES: u32 = 10_000;

const SHAPES: [Shape; 2] =
    [Shape { connections: 50, in_flight: 1 }, Shape { connections: 50, in_flight: 16 }];

/// The most that the ratio over TLS may be in relation to the one without.
const BOUND: f64 = 1.2;

/// Connections whose memory is measured.
const IDLE: Shape = Shape { connections: 1000, in_flight: 1 };

/// Compares the cost of requests with and without TLS
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds in which each server runs once
    #[arg(long, default_value = "15")]
    rounds: usize,

    /// Length of a run, in seconds
    #[arg(long, default_value = "0.4")]
    seconds: f64,

    #[command(flatten)]
    from_cargo: FromCargo,
}

/// One run of each server, one after the other.
struct Round {
    floor: Outcome,
    signalbox: Outcome,
    tls_floor: Outcome,
    tls_signalbox: Outcome,
}

impl Round {
    fn plain_ratio(&self) -> f64 {
        self.signalbox.cpu_ns_per_answer / self.floor.cpu_ns_per_answer
    }

    fn tls_ratio(&self) -> f64 {
        self.tls_signalbox.cpu_ns_per_answer / self.tls_floor.cpu_ns_per_answer
    }
}

fn main() {
    floor::become_if_asked();
    tls_floor::become_if_asked();
    let arguments = Arguments::parse();
    let time = Duration::from_secs_f64(arguments.seconds);
    println!(
        "Server CPU of an acquire or a release; medians of {} rounds of {} s",
        arguments.rounds, arguments.seconds
    );
    for shape in SHAPES {
        let (authority, files) = for_loopback();
        let servers = [
            Kind::Floor.start(),
            Kind::Signalbox.start(),
            start_tls_floor(&authority, &files),
            start_tls_signalbox(&authority, &files),
        ];
        let mut servers = servers.map(|server| loaded(server, shape));
        let mut run = |server: usize| {
            servers[server].run(time, Pace::Closed).unwrap_or_else(|error| panic!("{shape}: {error}"))
        };
        // Once unmeasured: the names are made, the caches warm.
        (0..4).for_each(|server| drop(run(server)));
        let rounds: Vec<_> = (0..arguments.rounds.max(1))
            .map(|_| Round { floor: run(0), signalbox: run(1), tls_floor: run(2), tls_signalbox: run(3) })
            .collect();
        print(shape, &rounds);
    }
    print_memory();
}

fn loaded(server: Server, shape: Shape) -> Loaded {
    Loaded::connect(server, pairs(shape, NAMES, Distribution::Uniform))
        .unwrap_or_else(|error| panic!("{shape}: {error}"))
}

fn print(shape: Shape, rounds: &[Round]) {
    let of = |figure: &dyn Fn(&Round) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    let cpu = |outcome: fn(&Round) -> &Outcome| of(&|round| outcome(round).cpu_ns_per_answer);
    let (plain, tls) = (of(&Round::plain_ratio), of(&Round::tls_ratio));
    println!("{shape}");
    println!(
        "  without TLS: floor {:>6.0} ns, signalbox {:>6.0} ns, ratio {plain:.2}",
        cpu(|round| &round.floor),
        cpu(|round| &round.signalbox)
    );
    println!(
        "  with TLS:    floor {:>6.0} ns, signalbox {:>6.0} ns, ratio {tls:.2}",
        cpu(|round| &round.tls_floor),
        cpu(|round| &round.tls_signalbox)
    );
    let relation = tls / plain;
    let verdict = if relation <= BOUND { "reached" } else { "missed" };
    println!("  ratio with TLS / ratio without: {relation:.2}, bound {BOUND:.2}: {verdict}");
}

/// The resident memory of idle connections after each has had some requests.
fn print_memory() {
    println!("resident memory of an idle connection, of {}", IDLE.connections);
    let (authority, files) = for_loopback();
    for (label, server) in
        [("without TLS", Kind::Signalbox.start()), ("with TLS", start_tls_signalbox(&authority, &files))]
    {
        let resident = || Usage::of(server.pid()).unwrap_or_else(|error| panic!("{error}")).resident_bytes;
        let open = |shape| {
            let plan = server.plan(pairs(shape, 1, Distribution::One));
            let mut generator = Generator::connect(server.address, server.dialect.clone(), plan)
                .unwrap_or_else(|error| panic!("{shape}: {error}"));
            let limit = Limit::Requests(20 * shape.connections as u64);
            let record = generator.run(limit, Pace::Closed, &Progress::default());
            record.unwrap_or_else(|error| panic!("{shape}: {error}"));
            generator
        };
        // The name, the workers and their buffers.
        let _first = open(Shape { connections: 4, in_flight: 1 });
        let before = resident();
        let _idle = open(IDLE);
        let bytes = resident().saturating_sub(before) / IDLE.connections as u64;
        println!("  {label:<12} {bytes:>6} bytes");
    }
}
