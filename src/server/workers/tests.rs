//! Traces of loads, on the placement and the gauges together; the turns of a worker; and a connection that moves.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::{Clock, Server, serve_port};
use super::balance::offer;
use super::load::{Offer, Room};
use super::placement::{Measured, Placement};
use super::*;
use crate::config::Config;
use crate::core::{NameHasher, Namespace};
use crate::protocol::{Opaque, Request};

#[tokio::test]
async fn turns_are_finished_when_all_deferred_output_was_sent() {
    const CONNECTIONS: usize = 200;
    let workers = Workers::start(NonZeroUsize::MIN).unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let (begin, begun) = oneshot::channel();
    let connections = Arc::clone(&sent);
    workers.0.threads[0].runtime.spawn(async move {
        for _ in 0..CONNECTIONS {
            let sent = Arc::clone(&connections);
            tokio::spawn(async move {
                behind_all().await;
                // Slow, so that a wrong order would show.
                std::thread::sleep(Duration::from_millis(1));
                sent.fetch_add(1, Ordering::Relaxed);
            });
        }
        // Now all of them have deferred their output.
        behind_all().await;
        begin.send(()).unwrap();
        // `finish_turns` is called in this time.
        std::thread::sleep(Duration::from_millis(50));
    });
    begun.await.unwrap();
    assert!(workers.finish_turns(Instant::now() + Duration::from_secs(60)).await);
    assert_eq!(sent.load(Ordering::Relaxed), CONNECTIONS);
}

#[tokio::test]
async fn a_connection_that_moves_between_workers_answers_every_request_in_order() {
    let workers = Workers::start(NonZeroUsize::new(2).unwrap()).unwrap();
    let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_port(server, Namespace::Counters, listener, workers.clone()));
    let mut peer = TcpStream::connect(address).await.unwrap();
    let connections = |worker: usize| workers.0.threads[worker].connections.load(Ordering::Relaxed);

    for round in 0..200_u8 {
        let (from, to) = (usize::from(round % 2), usize::from((round + 1) % 2));
        let mut requests = BytesMut::new();
        for number in 0..3 {
            Request::Noop.compose(Opaque([round, number, 0, 0]), &mut requests);
        }
        // The first turn after the offer finds an incomplete frame or the rest of it, by chance.
        let cut = 12 + usize::from(round % 24);
        peer.write_all(&requests[..cut]).await.unwrap();
        let offer = Offer { to: WorkerIndex::new(to), room: Room::All };
        workers.0.threads[from].gauge.set_offer(Some(offer));
        peer.write_all(&requests[cut..]).await.unwrap();
        let mut answers = [0; 3 * 12];
        peer.read_exact(&mut answers).await.unwrap();
        for (number, answer) in answers.chunks(12).enumerate() {
            assert_eq!(answer[8..], [round, number as u8, 0, 0], "round {round}");
        }
        // If no turn came after the offer, another request makes one.
        while connections(to) == 0 {
            peer.write_all(&requests[..12]).await.unwrap();
            peer.read_exact(&mut answers[..12]).await.unwrap();
        }
        workers.0.threads[from].gauge.set_offer(None);
        // The place on the other worker is taken before this one is given up.
        while connections(from) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(connections(to), 1, "round {round}");
    }
}

/// Connections with a load each, in shares of a core, on workers that serve as much of it as they can.
struct Trace {
    /// The cores that the workers have together.
    cores: f64,
    placement: Placement,
    gauges: Vec<Gauge>,
    connections: Vec<Connection>,
    tick: u32,
}

struct Connection {
    worker: usize,
    /// The share of a core that it wants.
    demand: f64,
    load: ConnectionLoad,
}

impl Trace {
    fn new(workers: usize, demands: impl IntoIterator<Item = f64>) -> Self {
        let connection = |demand| Connection { worker: 0, demand, load: ConnectionLoad::default() };
        Self {
            cores: workers as f64,
            placement: Placement::new(workers),
            gauges: (0..workers).map(|_| Gauge::default()).collect(),
            connections: demands.into_iter().map(connection).collect(),
            tick: 0,
        }
    }

    /// What the connections of each worker want, in cores.
    fn demands(&self) -> Vec<f64> {
        let mut demands = vec![0.0; self.gauges.len()];
        for connection in &self.connections {
            demands[connection.worker] += connection.demand;
        }
        demands
    }

    fn busy(&self) -> Vec<f64> {
        self.demands().iter().map(|demand| demand.min(1.0)).collect()
    }

    /// A tick: each worker serves its connections, and those that fit into an offer move. Returns how many moved.
    fn tick(&mut self) -> usize {
        let demands = self.demands();
        let busy_cores: f64 = demands.iter().map(|demand| demand.min(1.0)).sum();
        // Workers that compete for cores wait for them by turns, and are busy meanwhile.
        let competition = (busy_cores / self.cores).max(1.0);
        let served = |demand: f64| demand.min(1.0) / competition;
        for connection in &mut self.connections {
            let demand = demands[connection.worker];
            let share = if demand > 0.0 { connection.demand / demand } else { 0.0 };
            connection.load.count_requests((served(demand) * share * 1e6) as usize);
        }
        let mut moved = 0;
        for connection in &mut self.connections {
            // A turn, if there was any request.
            if connection.demand > 0.0
                && let Some(to) = self.gauges[connection.worker].count(&mut connection.load)
            {
                assert!(to.get() < self.placement.active(), "only active workers get connections");
                (connection.worker, connection.load) = (to.get(), ConnectionLoad::default());
                moved += 1;
            }
        }
        self.tick += 1;
        let measured = demands.iter().map(|demand| Measured {
            busy: (demand * competition).min(1.0),
            requests_per_s: served(*demand) * 1e6,
        });
        let transfers = self.placement.observe(&measured.collect::<Vec<_>>());
        for ((gauge, demand), transfer) in self.gauges.iter().zip(demands).zip(transfers) {
            gauge.begin_tick(self.tick);
            gauge.set_offer(transfer.map(|transfer| offer(transfer, (served(demand) * 1e6) as u64)));
        }
        moved
    }

    /// Ticks until a condition holds, which has to be so after this many.
    fn ticks_until(&mut self, ticks_max: usize, condition: impl Fn(&Self) -> bool) {
        for _ in 0..ticks_max {
            if condition(self) {
                return;
            }
            self.tick();
        }
        assert!(condition(self), "after {ticks_max} ticks: {:?}, busy {:.2?}", self.placement, self.busy());
    }

    fn is_relieved(&self) -> bool {
        self.busy().iter().all(|busy| *busy < 0.95)
    }
}

#[test]
fn a_load_that_jumps_from_idle_is_spread_over_as_many_workers_as_it_needs() {
    for workers in 1..=64 {
        let cores = 0.75 * workers as f64;
        let mut trace = Trace::new(workers, vec![cores / 1000.0; 1000]);
        // Each step doubles the workers, and takes a trial; some more ticks balance them.
        trace.ticks_until(12 * workers.ilog2() as usize + 40, Trace::is_relieved);
        assert!(trace.placement.active() <= workers);
    }
}

#[test]
fn workers_are_retired_when_the_load_has_decayed() {
    for workers in 2..=64 {
        let mut trace = Trace::new(workers, vec![0.75 * workers as f64 / 1000.0; 1000]);
        trace.ticks_until(120, Trace::is_relieved);
        for connection in &mut trace.connections {
            connection.demand = 0.3 / 1000.0;
        }
        trace.ticks_until(40, |trace| trace.placement.active() == 1);
        // The next turn of each connection.
        trace.tick();
        assert!(trace.connections.iter().all(|connection| connection.worker == 0), "{workers} workers");
    }
}

#[test]
fn a_steady_load_and_a_burst_move_nothing() {
    let mut trace = Trace::new(4, vec![0.009; 100]);
    let moved: usize = (0..1000).map(|_| trace.tick()).sum();
    trace.connections[0].demand = 2.0;
    trace.tick();
    trace.connections[0].demand = 0.009;
    let moved = moved + (0..100).map(|_| trace.tick()).sum::<usize>();
    assert_eq!((moved, trace.placement.active()), (0, 1));
}

#[test]
fn a_busy_connection_among_many_gets_a_worker_for_itself() {
    let mut trace = Trace::new(2, std::iter::once(0.9).chain(vec![0.006; 100]));
    trace.ticks_until(40, Trace::is_relieved);
}

#[test]
fn two_equally_busy_connections_are_separated() {
    for demands in [[0.9, 0.9], [0.8, 0.9], [0.9, 0.8]] {
        let mut trace = Trace::new(2, demands);
        trace.ticks_until(10, Trace::is_relieved);
    }
}

#[test]
fn an_overload_settles() {
    for workers in 1..=64 {
        let mut trace = Trace::new(workers, vec![3.0 * workers as f64 / 1000.0; 1000]);
        trace.ticks_until(100, |trace| trace.placement.active() == workers);
        for _ in 0..100 {
            trace.tick();
        }
        let moved: usize = (0..100).map(|_| trace.tick()).sum();
        assert_eq!(moved, 0, "{workers} workers: all are saturated, so nothing would improve");
    }
}

#[test]
fn another_worker_that_answers_no_more_requests_is_not_kept() {
    // The clients use the other cores.
    let mut trace = Trace::new(2, vec![0.02; 100]);
    trace.cores = 1.0;
    let mut ticks_of_trials = 0;
    for _ in 0..6000 {
        trace.tick();
        ticks_of_trials += usize::from(trace.placement.active() == 2);
    }
    assert!((8..6000 / 40).contains(&ticks_of_trials), "{ticks_of_trials} of ten minutes");
    // A core becomes free.
    trace.cores = 2.0;
    trace.ticks_until(700, |trace| trace.placement.active() == 2);
    for _ in 0..100 {
        trace.tick();
        assert_eq!(trace.placement.active(), 2, "it stays");
    }
}

#[test]
fn a_load_just_above_one_worker_gets_a_second_one() {
    let mut trace = Trace::new(2, vec![0.0103; 100]);
    trace.ticks_until(20, Trace::is_relieved);
    for _ in 0..100 {
        trace.tick();
    }
    assert!(trace.is_relieved(), "{:?}", trace.placement);
}
