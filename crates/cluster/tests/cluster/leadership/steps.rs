//! Single cases, step by step.

use std::time::Duration;

use signalbox_cluster::admin::{Finalized, finalize};
use signalbox_cluster::coordinator::{
    CallError, Coordinator, Range, RangeAnswer, Revision, Transaction, TransactionAnswer,
};
use signalbox_cluster::error::{AdminError, Ending};
use signalbox_cluster::keys::{
    Drain, Format, Heartbeat, LAYOUT, Leadership, LeadershipState, Marker, Node, Successor, encode,
};
use signalbox_cluster::leadership::{Event, Input, Machine, Phase, Settings, Step, Term};
use signalbox_cluster::timing::BootTime;

use super::store::Store;
use super::{RECORD_FORMAT, keys, machine, node, settings, timing};

/// Nodes on one store, on one clock.
struct Bench {
    store: Store,
    now: BootTime,
}

impl Bench {
    fn new() -> Self {
        Self { store: Store::default(), now: BootTime(Duration::from_secs(1000)) }
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
    }

    /// The transaction that the machine wants to send now.
    fn wanted(&self, machine: &mut Machine) -> Transaction {
        let step = machine.next(self.now);
        assert_eq!(machine.next(self.now), step, "asked twice");
        let Step::Send(transaction) = step else { panic!("{step:?}") };
        machine.sent(self.now);
        transaction
    }

    /// The machine sends a transaction, which is applied and answered at once.
    fn exchange(&mut self, machine: &mut Machine) -> TransactionAnswer {
        let transaction = self.wanted(machine);
        let answer = self.store.transact(&transaction);
        machine.answered(Ok(answer.clone()), self.now);
        answer
    }

    /// The machine sends a transaction that is not answered within the request timeout.
    fn unanswered(&mut self, machine: &mut Machine) -> Transaction {
        let transaction = self.wanted(machine);
        self.pass(timing().request_timeout());
        machine.answered(Err(CallError::Unanswered("timed out".to_owned())), self.now);
        transaction
    }

    /// All exchanges that the machine wants at this time.
    fn settle(&mut self, machine: &mut Machine) -> Phase {
        for _ in 0..10 {
            match machine.next(self.now) {
                Step::Send(_) => drop(self.exchange(machine)),
                Step::WaitUntil(_) | Step::End => return machine.phase(),
            }
        }
        panic!("the machine sends without end: {machine:?}");
    }

    /// Lets time pass in steps of 10 ms, with all exchanges, until a machine leads or ends.
    fn run(&mut self, machine: &mut Machine, limit: Duration) -> Phase {
        let until = self.now.after(limit);
        while self.now <= until {
            match self.settle(machine) {
                phase @ (Phase::Leading(_) | Phase::Over(_)) => return phase,
                _ => self.pass(Duration::from_millis(10)),
            }
        }
        machine.phase()
    }

    fn leader(&mut self, name: &str, run: u32) -> (Machine, Term) {
        let mut machine = machine(name, run);
        let Phase::Leading(term) = self.settle(&mut machine) else { panic!("{machine:?}") };
        (machine, term)
    }

    fn standby(&mut self, name: &str, run: u32) -> Machine {
        let mut machine = machine(name, run);
        let phase = self.settle(&mut machine);
        assert!(matches!(phase, Phase::Standby { leader: Some(_) }), "{machine:?}");
        machine
    }

    fn leadership(&self) -> Leadership {
        self.store.value(&keys().leadership()).unwrap()
    }
}

fn events(machine: &mut Machine) -> Vec<Event> {
    std::iter::from_fn(|| machine.poll_event()).collect()
}

/// The requests to drain that a machine reports, and their revisions.
fn drains(machine: &mut Machine) -> Vec<(Drain, Revision)> {
    let request = |event| match event {
        Event::Drain(request) => Some((request.drain, request.written)),
        _ => None,
    };
    events(machine).into_iter().filter_map(request).collect()
}

fn ending(phase: Phase) -> Ending {
    let Phase::Over(ending) = phase else { panic!("{phase:?}") };
    ending
}

const MS: Duration = Duration::from_millis(1);
/// The reason that is reported for a leader that was not asked for its next step in time.
const SUSPENDED: &str = "the node was suspended or overloaded";

#[test]
fn the_first_node_leads_at_once_and_a_second_one_waits() {
    let mut bench = Bench::new();
    let (first, term) = bench.leader("a", 1);
    let at = bench.store.modified(&keys().leadership());
    assert_eq!(term, Term { epoch: 1, leadership_modified: at, record_format: RECORD_FORMAT });
    assert_eq!(first.deadline(), Some(bench.now.after(timing().renew_deadline())));
    assert_eq!(bench.store.value(&keys().marker()), Some(Marker { epoch: 1, commit: 0 }));
    assert_eq!(bench.store.value::<Node>(&keys().node("a")), Some(node(1)));
    let format = Format { layout: LAYOUT, record_format: RECORD_FORMAT, renew_deadline_ms: 3000 };
    assert_eq!(bench.store.value(&keys().format()), Some(format));
    let second = bench.standby("b", 2);
    assert_eq!(second.phase(), Phase::Standby { leader: Some(("a".to_owned(), 1)) });
    assert_eq!(second.deadline(), None);
}

#[test]
fn a_silent_leader_is_replaced_after_the_lease_duration_and_fenced_before() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let deadline = first.deadline().unwrap();
    let mut second = bench.standby("b", 2);
    let seen = bench.now;
    let Phase::Leading(term) = bench.run(&mut second, Duration::from_secs(10)) else { panic!() };
    assert_eq!(term.epoch, 2);
    let waited = bench.now.since(seen);
    assert!(waited >= timing().lease_duration() && waited <= timing().lease_duration() + 20 * MS);
    assert!(bench.now > deadline);
    assert!(matches!(ending(bench.settle(&mut first)), Ending::DeadlinePassed(_)));
    assert_eq!(first.deadline(), None);
}

#[test]
fn a_renewal_without_an_answer_is_sent_again_at_once_and_adopted_if_it_was_applied() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    bench.pass(500 * MS);
    let sent_at = bench.now;
    let lost = bench.unanswered(&mut first);
    assert_eq!(first.last_failure(), Some("timed out"));
    assert!(bench.store.transact(&lost).held);
    let answer = bench.exchange(&mut first);
    assert!(!answer.held);
    assert_eq!(first.deadline(), Some(sent_at.after(timing().renew_deadline())), "that of the applied one");
    assert_eq!(first.last_failure(), None);
    let renewed_at = bench.now;
    assert!(bench.exchange(&mut first).held);
    assert_eq!(first.deadline(), Some(renewed_at.after(timing().renew_deadline())));
}

#[test]
fn of_several_unanswered_renewals_the_applied_one_counts() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    bench.pass(500 * MS);
    let _never_applied = bench.unanswered(&mut first);
    let sent_at = bench.now;
    let second = bench.unanswered(&mut first);
    let third = bench.unanswered(&mut first);
    assert!(bench.store.transact(&second).held);
    assert!(!bench.store.transact(&third).held);
    bench.exchange(&mut first);
    assert_eq!(first.deadline(), Some(sent_at.after(timing().renew_deadline())));
}

#[test]
fn a_look_from_the_time_as_a_standby_is_no_renewal() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    bench.pass(250 * MS);
    let late = bench.unanswered(&mut second);
    first.release(None);
    assert_eq!(ending(bench.settle(&mut first)), Ending::Released);
    let Phase::Leading(_) = bench.settle(&mut second) else { panic!("{second:?}") };
    let deadline = second.deadline();
    bench.store.transact(&late);
    bench.pass(500 * MS);
    assert!(!bench.exchange(&mut second).held);
    assert_eq!(second.deadline(), deadline);
    assert!(bench.exchange(&mut second).held);
    assert!(second.deadline() > deadline);
}

#[test]
fn a_short_failure_is_followed_by_a_short_pause() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    bench.pass(500 * MS);
    bench.wanted(&mut first);
    first.answered(Err(CallError::Refused("no space".to_owned())), bench.now);
    assert_eq!(first.last_failure(), Some("no space"));
    assert_eq!(first.next(bench.now), Step::WaitUntil(bench.now.after(timing().retry_period() / 4)));
    // The closer the deadline, the shorter the pause.
    bench.pass(2450 * MS);
    bench.wanted(&mut first);
    first.answered(Err(CallError::Unanswered("no leader".to_owned())), bench.now);
    let Step::WaitUntil(next) = first.next(bench.now) else { panic!() };
    assert!(next.since(bench.now) < 20 * MS, "50 ms are left");
    bench.pass(50 * MS);
    let ending = ending(bench.settle(&mut first));
    assert_eq!(ending, Ending::DeadlinePassed("no leader".to_owned()));
}

#[test]
fn a_leader_whose_key_was_taken_over_is_superseded() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let successor = Leadership {
        epoch: 2,
        node: "b".to_owned(),
        incarnation: node(2).incarnation,
        state: LeadershipState::Held,
        successor: None,
    };
    bench.store.set(keys().leadership(), Some(encode(&successor)));
    bench.pass(500 * MS);
    let ending = ending(bench.settle(&mut first));
    assert_eq!(ending, Ending::Superseded { epoch: 1, by: Some(successor) });
    assert_eq!(ending.to_string(), "the leadership of epoch 1 is over: node \"b\" has epoch 2");
}

#[test]
fn an_orderly_stop_hands_over_at_the_next_poll() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    first.release(None);
    assert_eq!(first.deadline(), None);
    assert_eq!(ending(bench.settle(&mut first)), Ending::Released);
    assert_eq!(bench.leadership().state, LeadershipState::Released);
    assert_eq!(bench.store.value::<Node>(&keys().node("a")), None);
    assert_eq!(bench.store.value::<Heartbeat>(&keys().heartbeat("a")), None);
    let released = bench.now;
    let Phase::Leading(term) = bench.run(&mut second, Duration::from_secs(10)) else { panic!() };
    assert_eq!(term.epoch, 2);
    assert!(bench.now.since(released) <= timing().poll_period() + 10 * MS);
    // The node comes back without a wait.
    bench.standby("a", 3);
}

/// A run that is to lead next.
fn successor(name: &str, run: u32) -> Successor {
    Successor { node: name.to_owned(), incarnation: node(run).incarnation }
}

#[test]
fn a_successor_leads_at_once_and_others_leave_it_the_lease_duration() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let [mut second, mut third] = [bench.standby("b", 2), bench.standby("c", 3)];
    first.release(Some(successor("c", 3)));
    assert_eq!(ending(bench.settle(&mut first)), Ending::Released);
    let waited = bench.run(&mut second, timing().lease_duration() - 300 * MS);
    assert!(matches!(waited, Phase::Standby { .. }), "it is not the successor: {waited:?}");
    let Phase::Leading(term) = bench.settle(&mut third) else { panic!("{third:?}") };
    assert_eq!((term.epoch, bench.leadership().successor), (2, None));
}

#[test]
fn a_request_to_drain_is_reported_once_to_the_run_that_it_names() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    let drain = |run| Drain { incarnation: node(run).incarnation, to: None, refused: None };
    bench.store.set(keys().drain("a"), Some(encode(&drain(7))));
    bench.store.set(keys().drain("b"), Some(encode(&drain(2))));
    bench.pass(500 * MS);
    for machine in [&mut first, &mut second] {
        bench.settle(machine);
    }
    assert_eq!(drains(&mut first), [], "it is for another run");
    assert_eq!(drains(&mut second), [(drain(2), bench.store.modified(&keys().drain("b")))]);
    assert_eq!(drains(&mut second), [], "it was reported");
    bench.store.set(keys().drain("a"), Some(encode(&drain(1))));
    bench.pass(500 * MS);
    assert!(matches!(bench.settle(&mut first), Phase::Leading(_)));
    assert_eq!(drains(&mut first), [(drain(1), bench.store.modified(&keys().drain("a")))]);
    let refused = Drain { refused: Some("no".to_owned()), ..drain(1) };
    bench.store.set(keys().drain("a"), Some(encode(&refused)));
    bench.pass(500 * MS);
    assert!(matches!(bench.settle(&mut first), Phase::Leading(_)));
    assert_eq!(drains(&mut first), [], "it was refused");
    second.release(None);
    assert_eq!(ending(bench.settle(&mut second)), Ending::Released);
    assert_eq!(bench.store.modified(&keys().drain("b")), 0, "it is gone with the node");
}

#[test]
fn a_release_without_an_answer_is_repeated() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    first.release(None);
    let lost = bench.unanswered(&mut first);
    assert!(bench.store.transact(&lost).held);
    assert_eq!(ending(bench.settle(&mut first)), Ending::Released);

    let (mut second, _) = bench.leader("b", 2);
    second.release(None);
    bench.unanswered(&mut second);
    bench.unanswered(&mut second);
    let failure = "timed out".to_owned();
    assert_eq!(ending(bench.settle(&mut second)), Ending::NotReleased(failure));
    assert_eq!(bench.leadership().state, LeadershipState::Held);
}

#[test]
fn a_standby_that_stops_leaves_no_keys() {
    let mut bench = Bench::new();
    let (_first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    second.release(None);
    assert_eq!(ending(bench.settle(&mut second)), Ending::Released);
    assert_eq!(bench.store.value::<Node>(&keys().node("b")), None);
    assert_eq!(bench.leadership().node, "a");
    // A node that has not joined has nothing to leave.
    let mut third = machine("c", 3);
    third.release(None);
    assert_eq!(ending(bench.settle(&mut third)), Ending::Released);
}

#[test]
fn a_standby_that_stops_releases_what_a_lost_takeover_took() {
    let mut bench = Bench::new();
    let (_first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    bench.pass(timing().lease_duration());
    let lost = bench.unanswered(&mut second);
    second.release(None);
    assert!(bench.store.transact(&lost).held);
    assert_eq!(bench.leadership().node, "b");
    assert_eq!(ending(bench.settle(&mut second)), Ending::Released);
    assert_eq!(bench.leadership().state, LeadershipState::Released);
    assert_eq!(bench.store.value::<Heartbeat>(&keys().heartbeat("b")), None);
}

/// A node that took over without learning so leaves, cannot release, and starts again. Neither its new run nor the end of
/// that run is a sign of life of the old one: the others wait for the lease duration once.
#[test]
fn a_leader_that_left_without_a_release_and_starts_again_is_waited_for_once() {
    let mut bench = Bench::new();
    let (_first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    let mut third = bench.standby("c", 3);
    bench.pass(timing().lease_duration());
    let lost = bench.unanswered(&mut second);
    assert!(bench.store.transact(&lost).held);
    second.release(None);
    assert!(bench.exchange(&mut second).held, "it left");
    while matches!(second.next(bench.now), Step::Send(_)) {
        bench.unanswered(&mut second);
    }
    assert!(matches!(ending(bench.settle(&mut second)), Ending::NotReleased(_)));
    let seen = bench.now;
    bench.settle(&mut third);
    assert_eq!(third.phase(), Phase::Standby { leader: Some(("b".to_owned(), 2)) });

    bench.pass(2000 * MS);
    bench.settle(&mut third);
    let mut later_run = bench.standby("b", 4);
    bench.pass(500 * MS);
    bench.settle(&mut third);
    later_run.release(None);
    assert!(bench.exchange(&mut later_run).held, "it left as well");
    let Phase::Leading(term) = bench.run(&mut third, Duration::from_secs(10)) else { panic!("{third:?}") };
    assert_eq!(term.epoch, 3);
    let waited = bench.now.since(seen);
    let lease_duration = timing().lease_duration();
    assert!(waited >= lease_duration && waited <= lease_duration + 20 * MS, "{waited:?}");
}

#[test]
fn a_takeover_without_an_answer_is_adopted_by_a_poll_and_counts_from_the_poll() {
    let mut bench = Bench::new();
    let (_first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    bench.pass(timing().lease_duration());
    let lost = bench.unanswered(&mut second);
    let taken = bench.store.transact(&lost);
    let polled_at = bench.now;
    let poll = bench.wanted(&mut second);
    let answer = bench.store.transact(&poll);
    bench.pass(300 * MS);
    second.answered(Ok(answer), bench.now);
    let at = taken.revision;
    let term = Term { epoch: 2, leadership_modified: at, record_format: RECORD_FORMAT };
    assert_eq!(second.phase(), Phase::Leading(term));
    assert_eq!(second.deadline(), Some(polled_at.after(timing().renew_deadline())));
    bench.pass(300 * MS);
    assert!(bench.exchange(&mut second).held, "it renews with the heartbeat of the poll");
}

#[test]
fn an_answer_after_the_deadline_makes_no_leader_before_another_poll() {
    let mut bench = Bench::new();
    let (_first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    bench.pass(timing().lease_duration());
    let takeover = bench.wanted(&mut second);
    let answer = bench.store.transact(&takeover);
    assert!(answer.held);
    bench.pass(timing().renew_deadline());
    second.answered(Ok(answer), bench.now);
    assert_eq!(second.deadline(), None);
    let polled_at = bench.now;
    let Phase::Leading(term) = bench.settle(&mut second) else { panic!("{second:?}") };
    assert_eq!(term.epoch, 2);
    assert_eq!(second.deadline(), Some(polled_at.after(timing().renew_deadline())));
}

/// A late heartbeat of the earlier run is not taken for a living node of the same name.
#[test]
fn a_run_after_a_crash_waits_for_the_lease_duration_once() {
    for is_late in [false, true] {
        let mut bench = Bench::new();
        let (mut crashed, _) = bench.leader("a", 1);
        bench.pass(500 * MS);
        let late = bench.wanted(&mut crashed);
        let mut again = machine("a", 2);
        assert_eq!(bench.settle(&mut again), Phase::Joining);
        if is_late {
            bench.pass(100 * MS);
            assert!(bench.store.transact(&late).held);
        }
        let since = bench.now;
        let Phase::Leading(term) = bench.run(&mut again, Duration::from_secs(10)) else { panic!() };
        assert_eq!(term.epoch, 2);
        let waited = bench.now.since(since);
        let longest = timing().lease_duration() + timing().poll_period() + 20 * MS;
        assert!(waited >= timing().lease_duration() && waited <= longest, "{waited:?}");
    }
}

#[test]
fn a_name_in_use_is_refused_and_its_user_undisturbed() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let mut second = machine("a", 2);
    let ending = loop {
        assert!(matches!(bench.settle(&mut first), Phase::Leading(_)));
        match bench.settle(&mut second) {
            Phase::Over(ending) => break ending,
            _ => bench.pass(10 * MS),
        }
    };
    let incarnation = node(1).incarnation.to_string();
    assert_eq!(ending, Ending::NameInUse { node: "a".to_owned(), incarnation });
    assert!(ending.to_string().contains("give this node another name"), "{ending}");
}

#[test]
fn a_run_whose_name_was_taken_ends() {
    let mut bench = Bench::new();
    let (_leader, _) = bench.leader("z", 9);
    let mut frozen = bench.standby("a", 1);
    let mut second = machine("a", 2);
    while second.phase() == Phase::Joining {
        bench.settle(&mut second);
        bench.pass(10 * MS);
    }
    let taken = Ending::NameTaken("a".to_owned());
    assert_eq!(ending(bench.settle(&mut frozen)), taken);
    // A leader ends for the same reason.
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let other = Heartbeat { incarnation: node(2).incarnation, count: 1, relays_closed_below: 0, relays: 0 };
    bench.store.set(keys().heartbeat("a"), Some(encode(&other)));
    bench.pass(500 * MS);
    assert_eq!(ending(bench.settle(&mut first)), taken);
}

/// The heartbeat arrives between the last look of the later run and its attempt to join.
#[test]
fn a_run_does_not_replace_one_that_has_just_sent_a_heartbeat() {
    let mut bench = Bench::new();
    let (_leader, _) = bench.leader("z", 9);
    let mut first = bench.standby("a", 1);
    let mut second = machine("a", 2);
    bench.settle(&mut second);
    bench.pass(timing().lease_duration());
    let beat = bench.wanted(&mut first);
    let join = bench.wanted(&mut second);
    assert!(bench.store.transact(&beat).held);
    let answer = bench.store.transact(&join);
    assert!(!answer.held);
    second.answered(Ok(answer), bench.now);
    assert_eq!(second.phase(), Phase::Joining);
    assert_eq!(bench.store.value::<Node>(&keys().node("a")), Some(node(1)));
}

/// Such as an attempt to join that arrives late, after a later one was answered.
#[test]
fn a_standby_relays_no_longer_than_its_heartbeats_were_stored_and_tries_again_at_once() {
    let mut bench = Bench::new();
    let (_leader, _) = bench.leader("z", 9);
    let mut second = bench.standby("b", 2);
    let deadline = second.relay_target().deadline;
    bench.store.set(keys().node("b"), Some(encode(&node(2))));
    bench.pass(250 * MS);
    assert!(!bench.exchange(&mut second).held);
    assert_eq!(second.relay_target().deadline, deadline);
    assert!(bench.exchange(&mut second).held);
    assert_eq!(second.relay_target().deadline, bench.now.after(timing().renew_deadline()));
}

/// How long a standby waits after a look of now.
fn pause_after_a_look(bench: &mut Bench, standby: &mut Machine) -> Duration {
    bench.settle(standby);
    let Step::WaitUntil(due) = standby.next(bench.now) else { panic!("{standby:?}") };
    due.since(bench.now)
}

#[test]
fn a_standby_looks_often_while_the_leader_is_silent_and_for_a_time_after_it_was_asked_to() {
    let mut bench = Bench::new();
    let (mut leader, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    let (usual, fast) = (timing().poll_period(), timing().fast_poll_period());
    bench.pass(usual);
    assert_eq!(pause_after_a_look(&mut bench, &mut second), usual);
    second.handle(Input::PollNow, bench.now);
    assert_eq!(pause_after_a_look(&mut bench, &mut second), fast);
    let until = bench.now.after(timing().lease_duration());
    while bench.now < until {
        bench.pass(fast);
        assert!(matches!(bench.settle(&mut leader), Phase::Leading(_)));
        bench.settle(&mut second);
    }
    bench.pass(usual);
    assert_eq!(pause_after_a_look(&mut bench, &mut second), usual, "the leader is well");
    bench.pass(2 * timing().retry_period() + usual);
    assert_eq!(pause_after_a_look(&mut bench, &mut second), fast);
}

#[test]
fn an_attempt_to_join_without_an_answer_is_noticed() {
    let mut bench = Bench::new();
    let (_leader, _) = bench.leader("z", 9);
    let mut joining = machine("a", 1);
    bench.exchange(&mut joining);
    let lost = bench.unanswered(&mut joining);
    assert!(bench.store.transact(&lost).held);
    assert!(matches!(bench.settle(&mut joining), Phase::Standby { .. }));
    // A node that is told to leave in between removes what it may have written.
    let mut joining = machine("b", 2);
    bench.exchange(&mut joining);
    let lost = bench.unanswered(&mut joining);
    joining.release(None);
    assert!(bench.store.transact(&lost).held);
    assert_eq!(ending(bench.settle(&mut joining)), Ending::Released);
    assert_eq!(bench.store.value::<Node>(&keys().node("b")), None);
}

#[test]
fn a_forgotten_node_ends() {
    let mut bench = Bench::new();
    let (_leader, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    bench.store.set(keys().node("b"), None);
    bench.pass(250 * MS);
    assert_eq!(ending(bench.settle(&mut second)), Ending::Forgotten("b".to_owned()));
}

#[test]
fn nodes_that_do_not_fit_together_are_refused() {
    let refusal = |store_has: Format| {
        let mut bench = Bench::new();
        bench.store.set(keys().format(), Some(encode(&store_has)));
        ending(bench.settle(&mut machine("a", 1)))
    };
    let own = Format { layout: LAYOUT, record_format: RECORD_FORMAT, renew_deadline_ms: 3000 };
    let layout = refusal(Format { layout: 7, ..own });
    assert_eq!(layout, Ending::LayoutDiffers { stored: 7, own: LAYOUT });
    let deadline = refusal(Format { renew_deadline_ms: 2000, ..own });
    let message = deadline.to_string();
    assert!(message.contains("2000 ms") && message.contains("3000 ms"), "{message}");
    assert!(message.contains("delete \"/signalbox/test/v\""), "{message}");
    let newer = refusal(Format { record_format: 3, ..own });
    assert_eq!(newer, Ending::RecordFormatNewer { stored: 3, own: RECORD_FORMAT });
    let older = refusal(Format { record_format: 0, ..own });
    assert_eq!(older, Ending::RecordFormatOlder { stored: 0, oldest: 1, newest: RECORD_FORMAT });
    let mut bench = Bench::new();
    bench.store.set(keys().leadership(), Some(b"{}".to_vec()));
    let unreadable = ending(bench.settle(&mut machine("a", 1)));
    assert!(unreadable.to_string().contains("p/0000/o"), "{unreadable}");
}

/// A run of a newer version, which reads and writes one format more.
fn newer(name: &str, run: u32) -> Machine {
    let record_format = RECORD_FORMAT + 1;
    let node = Node { record_format, ..node(run) };
    Machine::new(Settings { node, ..settings(name, run) })
}

impl Bench {
    fn record_format(&self) -> u32 {
        self.store.value::<Format>(&keys().format()).unwrap().record_format
    }

    fn finalize(&mut self) -> Result<Finalized, AdminError> {
        finalize(&mut self.store, &keys(), RECORD_FORMAT + 1)
    }

    /// A newer node, which leads, and an older one, which stands by.
    fn newer_leader(&mut self) -> (Machine, Machine) {
        let (mut first, _) = self.leader("a", 1);
        let old = self.standby("b", 2);
        let mut new = newer("c", 3);
        assert!(matches!(self.settle(&mut new), Phase::Standby { .. }));
        first.release(None);
        assert_eq!(ending(self.settle(&mut first)), Ending::Released);
        self.pass(250 * MS);
        let Phase::Leading(term) = self.settle(&mut new) else { panic!("{new:?}") };
        assert_eq!((term.epoch, term.record_format), (2, RECORD_FORMAT));
        (new, old)
    }
}

#[test]
fn a_newer_leader_writes_what_older_nodes_read_and_they_take_over_again() {
    let mut bench = Bench::new();
    let (mut new, mut old) = bench.newer_leader();
    assert_eq!(bench.record_format(), RECORD_FORMAT, "the takeover has not changed it");
    new.release(None);
    bench.settle(&mut new);
    bench.pass(250 * MS);
    let Phase::Leading(term) = bench.settle(&mut old) else { panic!("{old:?}") };
    assert_eq!((term.epoch, term.record_format), (3, RECORD_FORMAT));
}

#[test]
fn the_format_is_raised_when_every_node_reads_it_and_written_from_the_next_takeover_on() {
    let mut bench = Bench::new();
    let (mut new, _old) = bench.newer_leader();
    let refused = bench.finalize().unwrap_err().to_string();
    assert!(
        refused.contains(r#"node "b" (version 0.1.0) reads formats up to 2"#) && refused.contains("forget"),
        "{refused}"
    );
    assert_eq!(bench.record_format(), RECORD_FORMAT);
    // A node that is silent counts as well.
    bench.pass(timing().lease_duration());
    let refused = bench.finalize().unwrap_err().to_string();
    assert!(refused.contains(r#"node "b" (version 0.1.0) reads formats up to 2"#), "{refused}");
    assert_eq!(ending(bench.settle(&mut new)), Ending::DeadlinePassed(SUSPENDED.to_owned()));

    bench.store.set(keys().node("b"), None);
    bench.store.set(keys().heartbeat("b"), None);
    bench.store.set(keys().node("c"), None);
    bench.store.set(keys().heartbeat("c"), None);
    assert!(matches!(bench.finalize(), Err(AdminError::NoNodes)));
    let mut next = newer("c", 4);
    let Phase::Leading(term) = bench.run(&mut next, Duration::from_secs(10)) else { panic!("{next:?}") };
    assert_eq!(term.record_format, RECORD_FORMAT);
    let raised = Finalized { from: RECORD_FORMAT, to: RECORD_FORMAT + 1 };
    assert_eq!(bench.finalize().unwrap(), raised);
    assert_eq!(bench.finalize().unwrap(), Finalized { from: RECORD_FORMAT + 1, ..raised });
    let too_old = finalize(&mut bench.store, &keys(), RECORD_FORMAT).unwrap_err().to_string();
    assert!(too_old.contains("knows formats up to 2"), "{too_old}");

    next.release(None);
    bench.settle(&mut next);
    let mut last = newer("d", 5);
    let Phase::Leading(term) = bench.settle(&mut last) else { panic!("{last:?}") };
    assert_eq!(term.record_format, RECORD_FORMAT + 1);
    let refused = Ending::RecordFormatNewer { stored: RECORD_FORMAT + 1, own: RECORD_FORMAT };
    let again = bench.settle(&mut machine("b", 6));
    assert_eq!(ending(again), refused);
}

/// A store in which a node joins between the operator's read and the operator's transaction.
struct JoinsBetween<'a> {
    bench: &'a mut Bench,
    joining: &'a mut Machine,
}

impl Coordinator for JoinsBetween<'_> {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.bench.store.range(range)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        assert!(matches!(self.bench.settle(self.joining), Phase::Standby { .. }), "{:?}", self.joining);
        Ok(self.bench.store.transact(transaction))
    }
}

#[test]
fn a_node_that_joins_while_the_format_is_raised_prevents_it_or_is_refused() {
    let mut bench = Bench::new();
    let mut leader = newer("a", 1);
    assert!(matches!(bench.settle(&mut leader), Phase::Leading(_)));
    let format = Format { layout: LAYOUT, record_format: RECORD_FORMAT, renew_deadline_ms: 3000 };
    bench.store.set(keys().format(), Some(encode(&format)));
    let mut old = machine("b", 2);
    let mut between = JoinsBetween { bench: &mut bench, joining: &mut old };
    let changed = finalize(&mut between, &keys(), RECORD_FORMAT + 1);
    assert!(matches!(changed, Err(AdminError::Changed)), "{changed:?}");
    assert_eq!(bench.record_format(), RECORD_FORMAT);
    old.release(None);
    bench.settle(&mut old);

    // The node has read the format, and wants to join.
    let mut late = machine("b", 3);
    bench.exchange(&mut late);
    let join = bench.wanted(&mut late);
    bench.finalize().unwrap();
    let answer = bench.store.transact(&join);
    assert!(!answer.held);
    late.answered(Ok(answer), bench.now);
    let refused = Ending::RecordFormatNewer { stored: RECORD_FORMAT + 1, own: RECORD_FORMAT };
    assert_eq!(ending(bench.settle(&mut late)), refused);
}

#[test]
fn the_last_epoch_has_no_successor() {
    let mut bench = Bench::new();
    let (_first, _) = bench.leader("a", 1);
    let last = Leadership { epoch: u32::MAX, ..bench.leadership() };
    bench.store.set(keys().leadership(), Some(encode(&last)));
    let mut second = bench.standby("b", 2);
    assert_eq!(ending(bench.run(&mut second, Duration::from_secs(10))), Ending::EpochsExhausted);
}

#[test]
fn a_restored_backup_ends_the_leader() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let backup = bench.store.clone();
    bench.pass(500 * MS);
    bench.settle(&mut first);
    bench.store = backup.clone();
    bench.pass(500 * MS);
    assert!(matches!(ending(bench.settle(&mut first.clone())), Ending::WentBack { .. }));
    // Others have written more since than was lost.
    while bench.store.revision() < 100 {
        bench.store.set(keys().node("b"), Some(encode(&node(2))));
    }
    assert!(matches!(ending(bench.settle(&mut first.clone())), Ending::WentBack { .. }));
    // It is from before the node has joined.
    bench.store = Store::default();
    assert!(matches!(ending(bench.settle(&mut first)), Ending::WentBack { .. }));
}

#[test]
fn a_restored_backup_with_a_released_leadership_makes_standbys_wait() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    let mut third = bench.standby("c", 3);
    first.release(None);
    bench.settle(&mut first);
    let backup = bench.store.clone();
    bench.pass(250 * MS);
    assert!(matches!(bench.settle(&mut third), Phase::Leading(Term { epoch: 2, .. })));
    bench.settle(&mut second);
    bench.store = backup;
    let restored = bench.now;
    let Phase::Leading(term) = bench.run(&mut second, Duration::from_secs(10)) else { panic!("{second:?}") };
    let waited = bench.now.since(restored);
    assert!(waited >= timing().lease_duration(), "the leader of epoch 2 may still serve: {waited:?}");
    assert_eq!(term.epoch, 3, "an epoch that was seen is not used again");
}

/// A node that joins later knows the epoch only from the commit marker.
#[test]
fn a_deleted_leadership_key_makes_nodes_wait() {
    for joins_before in [true, false] {
        let mut bench = Bench::new();
        let (_first, _) = bench.leader("a", 1);
        let mut second = if joins_before { bench.standby("b", 2) } else { machine("b", 2) };
        bench.store.set(keys().leadership(), None);
        let deleted = bench.now;
        let phase = bench.run(&mut second, Duration::from_secs(10));
        let Phase::Leading(Term { epoch: 2, .. }) = phase else { panic!("{second:?}") };
        assert!(bench.now.since(deleted) >= timing().lease_duration());
    }
}

#[test]
fn a_node_closes_its_relays_when_the_leadership_is_released() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    let mut relay =
        Machine::new(Settings { node: Node { is_eligible: false, ..node(2) }, ..settings("b", 2) });
    bench.settle(&mut relay);
    let target = relay.relay_target();
    assert_eq!((target.epoch_min, target.leader.map(|(epoch, _)| epoch)), (1, Some(1)));
    first.release(None);
    assert_eq!(ending(bench.settle(&mut first)), Ending::Released);
    bench.pass(timing().poll_period());
    bench.settle(&mut relay);
    let target = relay.relay_target();
    assert_eq!((target.epoch_min, target.leader), (2, None));
}

/// The next run has another secret.
#[test]
fn a_leader_is_reached_by_the_endpoint_of_its_own_run_and_by_nodes_that_relay() {
    let mut bench = Bench::new();
    let (_first, _) = bench.leader("a", 1);
    let [mut relay, mut other] = [true, false].map(|relays| {
        Machine::new(Settings {
            node: Node { relays, ..node(2) },
            ..settings(if relays { "b" } else { "c" }, 2)
        })
    });
    for (machine, relays) in [(&mut relay, true), (&mut other, false)] {
        bench.settle(machine);
        assert_eq!(machine.relay_target().leader.is_some(), relays);
    }
    bench.store.set(keys().node("a"), Some(encode(&node(3))));
    bench.pass(timing().poll_period());
    bench.settle(&mut relay);
    assert_eq!((relay.relay_target().epoch_min, relay.relay_target().leader), (1, None));
}

#[test]
fn a_standby_keeps_trying_while_etcd_refuses() {
    let mut bench = Bench::new();
    let (_first, _) = bench.leader("a", 1);
    let mut second = bench.standby("b", 2);
    for _ in 0..3 {
        bench.pass(timing().retry_period());
        bench.wanted(&mut second);
        second.answered(Err(CallError::Refused("permission denied".to_owned())), bench.now);
        assert_eq!(second.next(bench.now), Step::WaitUntil(bench.now.after(timing().retry_period())));
        assert_eq!(second.last_failure(), Some("permission denied"));
    }
    let Phase::Leading(_) = bench.run(&mut second, Duration::from_secs(10)) else { panic!() };
}

#[test]
fn an_answer_without_the_requested_reads_counts_as_unanswered() {
    let mut bench = Bench::new();
    let (mut first, _) = bench.leader("a", 1);
    bench.pass(500 * MS);
    bench.wanted(&mut first);
    let answer = TransactionAnswer { revision: bench.store.revision(), held: false, read: vec![] };
    first.answered(Ok(answer), bench.now);
    assert!(first.last_failure().is_some());
    assert!(matches!(first.next(bench.now), Step::WaitUntil(_)));
}

#[test]
fn a_renewal_that_is_answered_while_the_node_leaves_extends_no_deadline() {
    let mut bench = Bench::new();
    let (mut leader, _) = bench.leader("a", 1);
    bench.pass(timing().retry_period());
    let renewal = bench.wanted(&mut leader);
    leader.handle(Input::Release(None), bench.now);
    assert_eq!(leader.deadline(), None);
    let answer = bench.store.transact(&renewal);
    leader.answered(Ok(answer), bench.now);
    assert_eq!(leader.deadline(), None, "before another node can lead");
    bench.exchange(&mut leader);
    assert_eq!(bench.leadership().state, LeadershipState::Released);
}

/// The keys that it could not remove delay only its next run.
#[test]
fn a_leader_that_released_has_left_also_if_etcd_answers_nothing_more() {
    let mut bench = Bench::new();
    let (mut leader, _) = bench.leader("a", 1);
    leader.release(None);
    bench.exchange(&mut leader);
    assert_eq!(bench.leadership().state, LeadershipState::Released);
    for _ in 0..10 {
        match leader.next(bench.now) {
            Step::Send(_) => drop(bench.unanswered(&mut leader)),
            Step::WaitUntil(at) => bench.now = at,
            Step::End => break,
        }
    }
    assert_eq!(ending(leader.phase()), Ending::Released);
}

#[test]
fn a_leader_renews_only_while_its_threads_run() {
    let mut bench = Bench::new();
    let (mut leader, _) = bench.leader("a", 1);
    bench.pass(timing().retry_period());
    bench.exchange(&mut leader);
    leader.handle(Input::ThreadsRan(bench.now), bench.now);
    bench.pass(timing().renew_deadline() / 2 + MS);
    assert_eq!(leader.next(bench.now), Step::WaitUntil(leader.deadline().unwrap()), "the threads hang");
    leader.handle(Input::ThreadsRan(bench.now), bench.now);
    assert!(matches!(leader.next(bench.now), Step::Send(_)));
}

#[test]
fn a_failing_etcd_is_reported_once_until_it_answers() {
    let mut bench = Bench::new();
    let (mut leader, _) = bench.leader("a", 1);
    assert!(matches!(events(&mut leader)[..], [Event::Phase(Phase::Leading(_))]));
    bench.pass(timing().retry_period());
    bench.unanswered(&mut leader);
    assert!(matches!(events(&mut leader)[..], [Event::EtcdFailing(_)]));
    bench.unanswered(&mut leader);
    assert!(events(&mut leader).is_empty());
    bench.exchange(&mut leader);
    assert!(matches!(events(&mut leader)[..], [Event::EtcdRecovered]));
}
