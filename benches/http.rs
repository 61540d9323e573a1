//! The cost of the HTTP listener: pages and scrapes with a million names, and leases.
//!
//! ```sh
//! cargo bench --bench http
//! cargo bench --bench http -- --only leases
//! ```

#[path = "http/leases.rs"]
mod leases;
#[path = "http/pages.rs"]
mod pages;
#[path = "http/responder.rs"]
mod responder;
mod support;

use clap::{Parser, ValueEnum};
use support::arguments::FromCargo;
use support::floor;
use support::statistics::median;

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Pages,
    Leases,
}

/// Measures scrapes, the status page and leases
#[derive(Debug, Parser)]
struct Arguments {
    /// One part instead of both
    #[arg(long)]
    only: Option<Part>,

    /// Names that are held
    #[arg(long, default_value = "1000000")]
    names: u32,

    /// Renewals that wait for a change; over TLS, at most 1,000 of them
    #[arg(long, default_value = "10000")]
    parked: usize,

    /// Runs, each with a new server; medians are shown. With 10,000 renewals that wait, a run of the leases takes about a minute
    #[arg(long, default_value = "7")]
    runs: usize,

    /// Length of each part of a run, in seconds
    #[arg(long, default_value = "4")]
    seconds: f64,

    /// A run of a second, with fewer names and renewals: to see that it works
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    from_cargo: FromCargo,
}

fn main() {
    floor::become_if_asked();
    responder::become_if_asked();
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.names, arguments.parked, arguments.runs, arguments.seconds) = (100_000, 1000, 1, 1.0);
    }
    if arguments.only != Some(Part::Leases) {
        pages::measure_all(&arguments);
    }
    if arguments.only != Some(Part::Pages) {
        leases::measure_all(&arguments);
    }
}

fn print_heading() {
    println!("{:<44}{:>10}{:>10}{:>10}  bound", "", "median", "least", "most");
}

fn print_line(label: &str, values: &[f64], bound: Option<f64>) {
    let (least, most) =
        values.iter().fold((f64::MAX, f64::MIN), |(least, most), &v| (least.min(v), most.max(v)));
    let median = median(values);
    let verdict = match bound {
        Some(bound) if median <= bound => format!("{bound}: reached"),
        Some(bound) => format!("{bound}: missed"),
        None => String::new(),
    };
    println!("{label:<44}{median:>10.2}{least:>10.2}{most:>10.2}  {verdict}");
}
