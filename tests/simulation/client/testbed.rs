//! A server and two machines on a simulated network, for tests with a script.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use signalbox::server::Server;
use signalbox_client::{Builder, Client};
use signalbox_core::LedgerStats;
use signalbox_model::Namespace;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::clock::SkewedClock;
use super::expectations::{ClientInfo, Expectations};
use super::wire::Simulated;
use crate::network::{self, SERVER, machine_name};
use crate::scene::{Scene, Shared, key};

pub const NAME: &[u8] = b"name";
pub const CAPACITY: u32 = 2;

/// The simulated time after which a script fails.
const SCRIPT_MS_MAX: u64 = 1_000_000;

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// The interface of a script, which runs on the first machine.
#[derive(Clone)]
pub struct Testbed {
    pub expectations: Arc<Expectations>,
    /// How long the server will be down from now on, in milliseconds.
    stop: Arc<AtomicU64>,
    jobs: mpsc::UnboundedSender<Job>,
}

/// Runs a script to its end, and checks the expectations every 10 ms.
pub fn run_script<F>(latency_ms: (u64, u64), seed: u64, script: impl FnOnce(Testbed) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let scene = Scene::new(2, vec![Shared { name: NAME.to_vec(), capacity: CAPACITY }]);
    let expectations = Expectations::new(Arc::clone(&scene));
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .epoch(UNIX_EPOCH)
        .simulation_duration(Duration::from_secs(100_000))
        .tick_duration(Duration::from_millis(10))
        .min_message_latency(Duration::from_millis(latency_ms.0))
        .max_message_latency(Duration::from_millis(latency_ms.1))
        .build();
    let server_scene = Arc::clone(&scene);
    sim.host(SERVER, move || network::serve(Arc::clone(&server_scene), 1, usize::MAX));
    let (jobs, received) = mpsc::unbounded_channel::<Job>();
    let received = Arc::new(Mutex::new(Some(received)));
    sim.host(machine_name(1), move || {
        let mut received = received.lock().unwrap().take().expect("this machine starts once");
        async move {
            while let Some(job) = received.recv().await {
                tokio::task::spawn_local(job());
            }
            std::future::pending().await
        }
    });
    let testbed = Testbed { expectations: Arc::clone(&expectations), stop: Arc::default(), jobs };
    let (stop, script) = (Arc::clone(&testbed.stop), script(testbed));
    sim.client(machine_name(0), async move {
        script.await;
        Ok(())
    });
    let mut starts = 0;
    let mut start = |now_ms: u64| {
        starts += 1;
        let unix_s = 1_000_000_000 + starts * 100_000 + now_ms / 1000;
        expectations.server_starts((unix_s * 1000) << 20);
        unix_s - now_ms / 1000
    };
    let mut offset_s = start(0);
    scene.set_clock(offset_s);
    let (mut stopping, mut down_until) = (false, None);
    loop {
        if std::mem::take(&mut stopping) {
            sim.crash(SERVER);
        }
        let now_ms = scene.state().now_ms;
        scene.set_clock(offset_s + now_ms / 1000);
        if down_until.is_some_and(|until| now_ms >= until) {
            down_until = None;
            offset_s = start(now_ms);
            scene.set_clock(offset_s + now_ms / 1000);
            sim.bounce(SERVER);
        }
        match stop.swap(0, Ordering::Relaxed) {
            0 => {}
            down_ms => {
                scene.stop.notify_one();
                scene.server_stopped();
                stopping = true;
                down_until = Some(now_ms + down_ms);
            }
        }
        assert!(now_ms < SCRIPT_MS_MAX, "the script ends in time");
        let is_over = sim.step().unwrap();
        scene.state().now_ms = sim.elapsed().as_millis() as u64;
        expectations.check().unwrap_or_else(|what| panic!("an expectation is wrong: {what}"));
        let failure = scene.state().failure();
        assert_eq!(failure, None);
        if is_over {
            return;
        }
    }
}

impl Testbed {
    pub fn info(&self, machine: usize, ttl_ms: u64) -> ClientInfo {
        ClientInfo { client: machine, machine, ttl_ms }
    }

    /// A client on this machine, with a clock that is fast by `fast_ppm` millionths.
    pub fn builder(&self, ttl_ms: u64, fast_ppm: i64) -> (Builder, SkewedClock) {
        self.builder_on(0, SERVER, ttl_ms, fast_ppm)
    }

    pub fn builder_on(
        &self,
        machine: usize,
        host: &str,
        ttl_ms: u64,
        fast_ppm: i64,
    ) -> (Builder, SkewedClock) {
        let clock = SkewedClock::new(Arc::clone(&self.expectations.scene), fast_ppm);
        let info = self.info(machine, ttl_ms);
        let builder = Client::builder(host.parse().unwrap())
            .ttl(Duration::from_millis(ttl_ms))
            .transport(Simulated { expectations: Arc::clone(&self.expectations), info })
            .clock(clock.clone())
            .seed(1)
            .in_this_runtime();
        (builder, clock)
    }

    pub async fn client(&self, ttl_ms: u64) -> Client {
        self.builder(ttl_ms, 0).0.connect().await.unwrap()
    }

    pub fn server(&self) -> Arc<Server> {
        self.expectations.scene.state().server.clone().expect("the server is up")
    }

    pub fn ledger(&self) -> LedgerStats {
        self.server().core().ledger_stats()
    }

    /// The resources of the name that are held, or reserved for waiters.
    pub fn in_use(&self) -> u32 {
        let left = self.server().core().value(Namespace::Semaphores, NAME);
        left.map_or(0, |left| CAPACITY - left)
    }

    /// Checks that after a short time nothing is held and nothing waits, although the client still exists.
    pub async fn assert_free(&self, what: &str) {
        sleep(Duration::from_millis(300)).await;
        let ledger = self.ledger();
        assert_eq!(
            (ledger.grants, ledger.waiters, self.in_use()),
            (0, 0, 0),
            "nothing is held or waits: {what}"
        );
    }

    pub fn permit_parts(&self) -> Vec<(crate::scene::Key, u64)> {
        vec![(key(Namespace::Semaphores, NAME), 1)]
    }

    /// Runs a job on the other machine.
    pub async fn on_other_machine<F>(&self, job: impl FnOnce(Testbed) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let (done, over) = oneshot::channel();
        let testbed = self.clone();
        let job: Job = Box::new(move || {
            Box::pin(async move {
                job(testbed).await;
                let _ = done.send(());
            })
        });
        assert!(self.jobs.send(job).is_ok());
        over.await.expect("the other machine did not panic");
    }

    pub fn partition(&self) {
        turmoil::partition(machine_name(0), SERVER);
    }

    pub fn reconnect(&self) {
        turmoil::repair(machine_name(0), SERVER);
    }

    /// No message passes for this time; messages in flight are lost.
    pub async fn cut(&self, span: Duration) {
        self.partition();
        sleep(span).await;
        self.reconnect();
    }

    /// The server stops, and another one starts.
    pub async fn restart(&self, down: Duration) {
        self.stop.store(down.as_millis() as u64, Ordering::Relaxed);
        sleep(down + Duration::from_millis(50)).await;
    }
}
