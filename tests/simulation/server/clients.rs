//! Clients of the plain operations: what they request, in which pieces they send it, how fast they read, and how they
//! leave.

use std::sync::Arc;
use std::time::Duration;

use signalbox_model::Namespace;
use tokio::time::sleep;

use super::accounting::Request;
use super::connection::{Connection, End, Pace};
use crate::random::Random;
use crate::scene::{Phase, Scene};

/// What a client does with its connection. Each seed has its own weights.
#[derive(Clone, Copy)]
enum Action {
    /// A few requests, with their answers.
    Talk,
    /// Many requests, sent without waiting for answers.
    Pipeline,
    /// Acquires many long names.
    Hoard,
    /// A Dump, read slowly.
    SlowDump,
    /// Holds resources and does nothing.
    Idle,
    /// Closes the connection between two frames.
    Close,
    /// Closes within a frame.
    CutInFrame,
    /// Half-closes the connection and reads on.
    HalfClose,
    /// Sends bytes that are not a frame.
    Garbage,
    /// Starts a frame and never completes it.
    Stall,
    /// Sends requests and closes without reading the answers.
    Abandon,
}

const ACTIONS: [(Action, u64); 11] = [
    (Action::Talk, 12),
    (Action::Pipeline, 2),
    (Action::Hoard, 1),
    (Action::SlowDump, 1),
    (Action::Idle, 3),
    (Action::Close, 1),
    (Action::CutInFrame, 1),
    (Action::HalfClose, 1),
    (Action::Garbage, 1),
    (Action::Stall, 1),
    (Action::Abandon, 1),
];

/// How the clients of a seed behave.
#[derive(Clone)]
pub struct Workload {
    actions: Vec<(Action, u64)>,
    /// The number of contended names.
    names: u32,
    capacity_max: u32,
    bytewise_percent: u64,
    shared_percent: u64,
}

impl Workload {
    pub fn of(random: &mut Random) -> Self {
        let actions = ACTIONS.map(|(action, weight)| (action, weight * random.between(0, 3)));
        let mut actions = actions.to_vec();
        actions.push((Action::Talk, 4));
        Self {
            actions,
            names: random.between_u32(1, 4),
            capacity_max: random.between_u32(1, 8),
            bytewise_percent: random.between(0, 40),
            shared_percent: random.between(0, 40),
        }
    }
}

pub struct Client {
    pub scene: Arc<Scene>,
    pub number: usize,
    pub machine: usize,
    pub random: Random,
    pub workload: Workload,
}

impl Client {
    /// Runs until its machine stops.
    pub async fn run(mut self) {
        loop {
            match self.scene.phase() {
                Phase::Work => self.work().await,
                Phase::Ask => self.ask().await,
                Phase::Rest => {}
            }
            let pause_ms = self.random.between(10, 200);
            sleep(Duration::from_millis(pause_ms)).await;
        }
    }

    async fn connect(&self, namespace: Namespace) -> Option<Connection> {
        Connection::open(&self.scene, self.number, self.machine, namespace).await
    }

    async fn work(&mut self) {
        let namespace = *self.pick(&Namespace::ALL);
        let Some(mut connection) = self.connect(namespace).await else { return };
        // Connecting takes time. A client that connects after the work phase requests nothing, because the rest phase
        // may have begun.
        if self.scene.phase() != Phase::Work {
            return connection.conclude(End::Left);
        }
        let scene = Arc::clone(&self.scene);
        let rest = async {
            while scene.phase() == Phase::Work {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let work = async {
            loop {
                let action = self.random.weighted(&self.workload.actions);
                if let Err(end) = self.perform(action, &mut connection).await {
                    break end;
                }
            }
        };
        // Always in this order: a random order would differ between two runs of a seed.
        let end = tokio::select! {
            biased;
            end = work => end,
            () = rest => End::Left,
        };
        connection.conclude(end);
    }

    fn pick<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.random.between(0, things.len() as u64 - 1) as usize]
    }

    async fn perform(&mut self, action: Action, connection: &mut Connection) -> Result<(), End> {
        match action {
            Action::Talk => {
                let requests = self.requests(1, 6);
                let pace = self.pace(requests.len());
                connection.talk(requests, Vec::new(), pace, false).await
            }
            Action::Pipeline => {
                let requests = self.requests(50, 300);
                connection.talk(requests, Vec::new(), Pace::Pieces(2000), false).await
            }
            Action::Hoard => {
                let names = self.random.between(20, 300);
                let hoard = |serial| Request::Acquire {
                    name: format!("{:0>100}", self.number * 1000 + serial as usize).into_bytes(),
                    resources: 1,
                    maximum: 50,
                };
                let requests = (0..names).map(hoard).collect();
                connection.talk(requests, Vec::new(), Pace::Pieces(5000), false).await
            }
            Action::SlowDump => {
                let mut requests = self.requests(0, 2);
                requests.push(Request::Dump);
                requests.extend(self.requests(0, 2));
                let read_bytes = self.random.between(100, 4000) as usize;
                connection.talk(requests, Vec::new(), Pace::SlowReader { read_bytes }, false).await
            }
            Action::Idle => {
                let pause_ms = self.random.between(1, 2000);
                sleep(Duration::from_millis(pause_ms)).await;
                Ok(())
            }
            Action::Close => Err(End::Left),
            Action::CutInFrame => {
                let requests = self.requests(0, 3);
                let rest = self.partial_frame();
                connection.send_only(requests, &rest).await?;
                Err(End::Left)
            }
            Action::Abandon => {
                let requests = self.requests(1, 30);
                connection.send_only(requests, &[]).await?;
                Err(End::Left)
            }
            Action::HalfClose => {
                let requests = self.requests(1, 20);
                let rest = if self.random.percent(50) { self.partial_frame() } else { Vec::new() };
                let pace = self.pace(requests.len());
                connection.talk(requests, rest, pace, true).await?;
                Err(End::Left)
            }
            Action::Garbage => {
                let requests = self.requests(0, 5);
                connection.send_garbage(requests).await?;
                Err(End::Left)
            }
            Action::Stall => {
                let rest = self.partial_frame();
                connection.stall(&rest).await?;
                Err(End::Left)
            }
        }
    }

    fn requests(&mut self, low: u64, high: u64) -> Vec<Request> {
        (0..self.random.between(low, high)).map(|_| self.request()).collect()
    }

    fn request(&mut self) -> Request {
        if self.random.percent(self.workload.shared_percent) {
            return self.shared_request();
        }
        let name = format!("name {}", self.random.between_u32(1, self.workload.names)).into_bytes();
        match self.random.between(0, 99) {
            0..=44 => {
                let huge = self.random.percent(3);
                let amount = |random: &mut Random, high| {
                    if huge { u32::MAX - random.between_u32(0, 2) } else { random.between_u32(1, high) }
                };
                let maximum = amount(&mut self.random, self.workload.capacity_max);
                // Sometimes more than the maximum, or zero.
                let resources = match self.random.between(0, 19) {
                    0 => 0,
                    1 => maximum.saturating_add(1),
                    _ if huge => amount(&mut self.random, maximum),
                    _ => self.random.between_u32(1, maximum.min(3)),
                };
                Request::Acquire { name, resources, maximum }
            }
            45..=74 => Request::Release { name, resources: self.random.between_u32(0, 3) },
            75..=89 => Request::Get { name },
            90..=93 => Request::Noop,
            94 => Request::Stats,
            95..=96 => Request::Dump,
            97 => Request::Unknown,
            _ => Request::Short,
        }
    }

    /// Requests a name that leased clients use too.
    fn shared_request(&mut self) -> Request {
        let shared = self.random.between(0, self.scene.shared.len() as u64 - 1) as usize;
        let (name, maximum) = (self.scene.shared[shared].name.clone(), self.scene.shared[shared].capacity);
        if self.random.percent(40) {
            Request::Acquire { name, resources: self.random.between_u32(1, maximum), maximum }
        } else {
            Request::Release { name, resources: self.random.between_u32(1, maximum) }
        }
    }

    fn partial_frame(&mut self) -> Vec<u8> {
        let bytes = Request::Acquire { name: b"name 1".to_vec(), resources: 1, maximum: 1 }.bytes(*b"part");
        let length = self.random.between(1, bytes.len() as u64 - 1) as usize;
        bytes[..length].to_vec()
    }

    fn pace(&mut self, requests: usize) -> Pace {
        if requests <= 3 && self.random.percent(self.workload.bytewise_percent) {
            Pace::Pieces(1)
        } else if self.random.percent(30) {
            Pace::Pieces(self.random.between(10, 100) as usize)
        } else {
            Pace::Whole
        }
    }

    /// Requests one of a few names until it is granted, and soon releases it.
    async fn ask(&mut self) {
        if self.scene.state().satisfied.contains(&self.number) {
            return;
        }
        let Some(mut connection) = self.connect(Namespace::ALL[self.number % 2]).await else { return };
        let name = format!("asked {}", self.number % 5).into_bytes();
        let acquire = Request::Acquire { name: name.clone(), resources: 1, maximum: 2 };
        loop {
            let got = connection.talk(vec![acquire.clone()], Vec::new(), Pace::Whole, false).await;
            match got {
                Ok(()) if connection.holds(&name) => break,
                Ok(()) => sleep(Duration::from_millis(50)).await,
                Err(end) => return connection.conclude(end),
            }
        }
        sleep(Duration::from_millis(20)).await;
        let release = vec![Request::Release { name, resources: 1 }, Request::Stats];
        match connection.talk(release, Vec::new(), Pace::Whole, false).await {
            Ok(()) => {
                self.scene.state().satisfied.insert(self.number);
                connection.conclude(End::Left);
            }
            Err(end) => connection.conclude(end),
        }
    }
}
