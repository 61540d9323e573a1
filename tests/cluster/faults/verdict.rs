//! What clients believed, checked after the run.

use std::time::{Duration, Instant};

use signalbox::client::GrantId;

/// A permit as its client saw it.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    #[expect(dead_code, reason = "for people who read a failure")]
    pub worker: usize,
    pub id: GrantId,
    pub slot: u16,
    /// When the client asked for it.
    pub asked: Instant,
    /// When the client had it.
    pub granted: Instant,
    /// The last moment at which the client saw that it holds it.
    pub until: Instant,
}

/// Fails if more believed at a moment than there are slots, if two believed in one slot, or if ids did not grow.
pub fn check(beliefs: &[Belief], slots: u16) -> Result<(), String> {
    check_capacity(beliefs, slots)?;
    for slot in 0..slots {
        check_slot(beliefs.iter().filter(|belief| belief.slot == slot).copied().collect())?;
    }
    if let Some(belief) = beliefs.iter().find(|belief| belief.slot >= slots) {
        return Err(format!("the slot does not exist: {belief:#?}"));
    }
    check_ids(beliefs)
}

fn check_capacity(beliefs: &[Belief], slots: u16) -> Result<(), String> {
    // Where one ends in the moment in which another begins, it has ended.
    let mut moments: Vec<_> =
        beliefs.iter().flat_map(|belief| [(belief.granted, 1, belief), (belief.until, 0, belief)]).collect();
    moments.sort_by_key(|(moment, begins, _)| (*moment, *begins));
    let mut believers: Vec<&Belief> = Vec::new();
    for (moment, begins, belief) in moments {
        match begins {
            1 if belief.until > moment => believers.push(belief),
            _ => believers.retain(|other| other.id != belief.id),
        }
        if believers.len() > slots.into() {
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
        believed.push(Belief { worker, id, slot, asked: at(asked), granted: at(granted), until: at(until) });
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
