//! What a node does for its part in the leadership, turn by turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use signalbox_cluster::clock::BootTime;
use signalbox_cluster::coordinator::{CallError, Transaction};
use signalbox_cluster::fence::Fence;
use signalbox_cluster::keys::{Incarnation, Keys, Node};
use signalbox_cluster::leadership::{Machine, Phase, Settings, Step};
use signalbox_cluster::participation::{Command, Event, Participation, Pulse};
use signalbox_cluster::relays::Relays;
use signalbox_cluster::timing::Timing;
use signalbox_storage::FORMAT;

use crate::etcd::FakeEtcd;

const RENEW_DEADLINE: Duration = Duration::from_secs(3);

/// A node on an etcd that answers at once, with a clock that the test moves.
struct Bench {
    etcd: FakeEtcd,
    now_ms: Arc<AtomicU64>,
    fence: Fence,
    pulse: Pulse,
    participation: Participation<Box<dyn FnMut(Event)>>,
    leads: Rc<Cell<bool>>,
    /// Whether trouble was told, and the end of it, in order.
    troubles: Rc<RefCell<Vec<bool>>>,
}

impl Bench {
    /// A node that leads.
    fn leading() -> Self {
        let now_ms = Arc::new(AtomicU64::new(1_000_000));
        let fence = {
            let now_ms = Arc::clone(&now_ms);
            Fence::new(move || BootTime(Duration::from_millis(now_ms.load(Ordering::Relaxed))))
        };
        let machine = Machine::new(Settings {
            keys: Keys::new("test"),
            name: "a".to_owned(),
            node: Node {
                incarnation: Incarnation("1".to_owned()),
                version: "0.1.0".to_owned(),
                is_eligible: true,
                record_format: FORMAT,
                ..Node::default()
            },
            timing: Timing::new(RENEW_DEADLINE).unwrap(),
            oldest_record_format: FORMAT,
        });
        let leads = Rc::new(Cell::new(false));
        let troubles = Rc::new(RefCell::new(Vec::new()));
        let tell = {
            let (leads, troubles) = (Rc::clone(&leads), Rc::clone(&troubles));
            Box::new(move |event| match event {
                Event::Phase(phase) => leads.set(matches!(phase, Phase::Leading(_))),
                Event::Trouble(_) => troubles.borrow_mut().push(true),
                Event::Recovered => troubles.borrow_mut().push(false),
                _ => {}
            })
        };
        let pulse = Pulse::default();
        let participation = Participation::new(
            machine,
            fence.clone(),
            pulse.clone(),
            RENEW_DEADLINE / 2,
            Relays::new(fence.clone()),
            tell as Box<dyn FnMut(Event)>,
        );
        let etcd = FakeEtcd::default();
        let mut bench = Self { etcd, now_ms, fence, pulse, participation, leads, troubles };
        while !bench.leads.get() {
            match bench.next() {
                Step::Send(transaction) => bench.exchange(&transaction),
                Step::WaitUntil(until) => bench.pass(until.since(bench.now())),
                Step::End => panic!("it ends"),
            }
        }
        bench
    }

    fn now(&self) -> BootTime {
        BootTime(Duration::from_millis(self.now_ms.load(Ordering::Relaxed)))
    }

    fn pass(&self, span: Duration) {
        self.now_ms.fetch_add(span.as_millis() as u64, Ordering::Relaxed);
    }

    fn next(&mut self) -> Step {
        self.participation.next(self.now())
    }

    fn exchange(&mut self, transaction: &Transaction) {
        self.participation.sent(self.now());
        self.answer(transaction);
    }

    fn answer(&mut self, transaction: &Transaction) {
        let answer = self.etcd.with_store(|store| store.apply(transaction));
        self.participation.answered(answer, self.now());
    }

    /// The next renewal.
    fn renewal(&mut self) -> Transaction {
        match self.next() {
            Step::Send(transaction) => transaction,
            Step::WaitUntil(until) => {
                self.pass(until.since(self.now()));
                let Step::Send(transaction) = self.next() else { panic!("no renewal at {until:?}") };
                transaction
            }
            Step::End => panic!("it ends"),
        }
    }
}

#[test]
fn a_renewal_that_is_answered_while_the_node_leaves_opens_the_fence_for_nobody() {
    let mut bench = Bench::leading();
    let renewal = bench.renewal();
    bench.participation.sent(bench.now());
    // As the daemon does it, while the thread waits for the answer.
    bench.fence.set(BootTime::default());
    bench.answer(&renewal);
    bench.participation.obey(Command::Release(None), bench.now());
    let Step::Send(release) = bench.next() else { panic!("it does not release") };
    assert!(bench.fence.is_past(), "before another node can lead");
    bench.exchange(&release);
    assert!(bench.fence.is_past());
}

#[test]
fn a_leader_renews_only_while_its_threads_take_turns() {
    let mut bench = Bench::leading();
    let renewal = bench.renewal();
    bench.exchange(&renewal);
    bench.pulse.beat(bench.now());
    bench.pass(RENEW_DEADLINE / 2 + Duration::from_millis(1));
    assert!(matches!(bench.next(), Step::WaitUntil(_)), "the pulse is silent");
    bench.pulse.beat(bench.now());
    assert!(matches!(bench.next(), Step::Send(_)));
}

#[test]
fn trouble_is_told_once_until_etcd_answers_and_the_deadline_ends_all() {
    let mut bench = Bench::leading();
    for told in [&[true, false][..], &[true, false, true, false]] {
        for _ in 0..2 {
            bench.renewal();
            bench.participation.sent(bench.now());
            let lost = CallError::Unanswered("it is lost".to_owned());
            bench.participation.answered(Err(lost), bench.now());
        }
        let renewal = bench.renewal();
        bench.exchange(&renewal);
        assert_eq!(bench.troubles.borrow()[..], *told);
    }
    assert!(!bench.fence.is_past());
    bench.pass(RENEW_DEADLINE);
    assert_eq!(bench.next(), Step::End);
    assert!(bench.fence.is_past());
}
