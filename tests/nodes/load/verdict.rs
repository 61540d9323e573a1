//! Checks, after the run, what clients believed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use signalbox_client::GrantId;

/// A permit as its client saw it.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    #[expect(dead_code, reason = "for people who read a failure")]
    pub worker: usize,
    pub id: GrantId,
    pub slot: u16,
    /// When the client asked for it.
    pub asked: Instant,
    /// When the client received it.
    pub granted: Instant,
    /// The last moment at which the client saw that it holds it.
    pub until: Instant,
    /// Whether the client learned that it no longer holds it.
    pub is_lost: bool,
}

/// A holding of a client without a lease, as the client saw its connection.
#[derive(Clone, Copy, Debug)]
pub struct PlainBelief {
    #[expect(dead_code, reason = "for people who read a failure")]
    pub worker: usize,
    /// The machine of the client.
    pub machine: usize,
    /// The node to which the client was connected.
    pub node: usize,
    /// When the client received it.
    pub granted: Instant,
    /// The last moment at which the client saw that the connection was open.
    pub until: Instant,
}

/// A period in which a node tells clients nothing, not even that their connections are closed.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub node: usize,
    /// The machine of the clients; `None` for the clients of all machines.
    pub machine: Option<usize>,
    pub began: Instant,
    /// `None` if it has not ended yet.
    pub ended: Option<Instant>,
}

impl PlainBelief {
    /// The part of the belief for which the node of the client has to vouch: until it was killed or frozen, or what it sends
    /// was lost. What happens to other nodes does not shorten it.
    fn vouched(self, outages: &[Outage]) -> Self {
        let concerns = |outage: &&Outage| {
            outage.node == self.node
                && outage.machine.is_none_or(|machine| machine == self.machine)
                && outage.ended.is_none_or(|ended| self.granted < ended)
        };
        let until = outages.iter().filter(concerns).map(|outage| outage.began.max(self.granted)).min();
        Self { until: until.map_or(self.until, |until| until.min(self.until)), ..self }
    }
}

/// Fails if more clients without a lease believed at a moment than the maximum permits.
pub fn check_plain(beliefs: &[PlainBelief], outages: &[Outage], maximum: u32) -> Result<(), String> {
    let vouched: Vec<_> = beliefs.iter().map(|belief| belief.vouched(outages)).collect();
    check_number(&vouched, |belief| (belief.granted, belief.until), maximum as usize)
}

/// Fails if more believed at a moment than there are slots, if two believed in one slot, or if ids did not grow.
pub fn check(beliefs: &[Belief], slots: u16) -> Result<(), String> {
    check_number(beliefs, |belief| (belief.granted, belief.until), slots.into())?;
    for slot in 0..slots {
        check_slot(beliefs.iter().filter(|belief| belief.slot == slot).copied().collect())?;
    }
    if let Some(belief) = beliefs.iter().find(|belief| belief.slot >= slots) {
        return Err(format!("the slot does not exist: {belief:#?}"));
    }
    check_ids(beliefs)
}

/// Fails if more than a number of these overlap. Each lasts from one moment to another.
fn check_number<B: std::fmt::Debug>(
    beliefs: &[B],
    lasts: impl Fn(&B) -> (Instant, Instant),
    most: usize,
) -> Result<(), String> {
    // One that ends at the moment at which another begins does not overlap with it.
    let mut moments: Vec<_> = beliefs
        .iter()
        .map(lasts)
        .zip(0..)
        .filter(|((from, to), _)| from < to)
        .flat_map(|((from, to), number)| [(from, true, number), (to, false, number)])
        .collect();
    moments.sort();
    let mut believers: BTreeSet<usize> = BTreeSet::new();
    for (moment, begins, number) in moments {
        if begins {
            believers.insert(number);
        } else {
            believers.remove(&number);
        }
        if believers.len() > most {
            let believers: Vec<_> = believers.into_iter().map(|number| &beliefs[number]).collect();
            return Err(format!("too many believe at {moment:?}: {believers:#?}"));
        }
    }
    Ok(())
}

/// Checks the beliefs in one slot.
fn check_slot(mut beliefs: Vec<Belief>) -> Result<(), String> {
    beliefs.sort_by_key(|belief| belief.granted);
    for pair in beliefs.windows(2) {
        let [before, after] = pair else { unreachable!("windows of two") };
        if before.until > after.granted {
            return Err(format!("two believe in one slot: {pair:#?}"));
        }
        if before.id >= after.id {
            return Err(format!("ids of a slot do not grow: {pair:#?}"));
        }
    }
    Ok(())
}

/// A permit that was asked for when another one had been granted has the higher id.
fn check_ids(beliefs: &[Belief]) -> Result<(), String> {
    let (mut by_asked, mut by_granted) = (beliefs.to_vec(), beliefs.to_vec());
    by_asked.sort_by_key(|belief| belief.asked);
    by_granted.sort_by_key(|belief| belief.granted);
    let mut granted = by_granted.into_iter().peekable();
    let mut highest: Option<Belief> = None;
    for belief in by_asked {
        while let Some(earlier) = granted.next_if(|earlier| earlier.granted < belief.asked) {
            highest = Some(highest.filter(|highest| highest.id > earlier.id).unwrap_or(earlier));
        }
        if let Some(earlier) = highest.filter(|earlier| earlier.id >= belief.id) {
            return Err(format!("ids do not grow: {earlier:#?} and later {belief:#?}"));
        }
    }
    Ok(())
}

/// Whether these are accepted: id, slot, and when it was asked for, granted, and over, in milliseconds.
fn is_accepted(beliefs: &[(u64, u16, [u64; 3])]) -> bool {
    let began = Instant::now();
    let at = |ms| began + Duration::from_millis(ms);
    let mut believed = Vec::new();
    for &(id, slot, [asked, granted, until]) in beliefs {
        let (worker, id) = (believed.len(), GrantId(id));
        let [asked, granted, until] = [asked, granted, until].map(at);
        believed.push(Belief { worker, id, slot, asked, granted, until, is_lost: false });
    }
    check(&believed, 2).is_ok()
}

#[test]
fn what_may_happen_is_accepted_and_nothing_else() {
    assert!(is_accepted(&[(1, 0, [0, 1, 5]), (2, 1, [0, 2, 9]), (3, 0, [0, 5, 7])]));
    // The answers to requests of the same time may come in any order.
    assert!(is_accepted(&[(2, 0, [0, 1, 5]), (1, 1, [0, 2, 9])]));
    assert!(!is_accepted(&[(1, 0, [0, 1, 6]), (2, 1, [0, 2, 9]), (3, 0, [0, 5, 7])]), "the same slot");
    assert!(!is_accepted(&[(1, 0, [0, 1, 6]), (2, 1, [0, 2, 9]), (3, 2, [0, 5, 7])]), "three believe");
    assert!(!is_accepted(&[(1, 2, [0, 1, 6])]), "a slot that does not exist");
    assert!(!is_accepted(&[(2, 0, [0, 1, 5]), (1, 1, [2, 3, 9])]), "ids go back");
    assert!(!is_accepted(&[(1, 0, [0, 1, 5]), (1, 1, [2, 3, 9])]), "an id comes again");
    assert!(!is_accepted(&[(2, 0, [0, 1, 5]), (1, 0, [0, 6, 9])]), "ids of a slot go back");
}

#[test]
fn what_its_own_node_hides_from_a_client_is_not_held_against_the_cluster() {
    let began = Instant::now();
    let at = |ms| began + Duration::from_millis(ms);
    let belief = |node, machine, [granted, until]: [u64; 2]| PlainBelief {
        worker: 0,
        machine,
        node,
        granted: at(granted),
        until: at(until),
    };
    let outage = |node, machine, [began, ended]: [u64; 2]| {
        [Outage { node, machine, began: at(began), ended: Some(at(ended)) }]
    };
    let both = [belief(0, 7, [1, 9]), belief(1, 8, [5, 9])];
    assert!(check_plain(&both, &[], 1).is_err());
    assert!(check_plain(&both, &[], 2).is_ok());
    assert!(check_plain(&both, &outage(0, None, [5, 6]), 1).is_ok());
    assert!(check_plain(&both, &outage(0, Some(7), [3, 4]), 1).is_ok());
    assert!(check_plain(&both, &outage(1, None, [4, 6]), 1).is_ok(), "the answer was sent before");
    assert!(check_plain(&both, &[Outage { ended: None, ..outage(0, None, [0, 0])[0] }], 1).is_ok());
    assert!(check_plain(&both, &outage(0, None, [6, 8]), 1).is_err(), "too late");
    assert!(check_plain(&both, &outage(0, None, [0, 1]), 1).is_err(), "it was over");
    assert!(check_plain(&both, &outage(0, Some(8), [3, 4]), 1).is_err(), "clients of another machine");
    assert!(check_plain(&both, &outage(2, None, [3, 4]), 1).is_err(), "another node");
    assert!(
        check_plain(&[belief(0, 7, [1, 5]), belief(1, 8, [5, 9])], &[], 1).is_ok(),
        "one after the other"
    );
}
