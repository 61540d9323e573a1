//! The choice between several addresses, and how long it takes if some of them do not answer, on a simulated clock.

use std::sync::Mutex;
use std::time::Duration;

use signalbox_client::Address;
use signalbox_client::race::{First, Limit, Reason, first_answer};
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(5);

/// How an address behaves. It accepts after a number of milliseconds, and answers after further ones; `None` means never.
#[derive(Clone, Copy)]
struct Behaviour {
    accepts: Option<u64>,
    answers: Option<u64>,
    /// How many attempts it refuses.
    refuses: usize,
    /// The milliseconds that a handshake takes.
    handshake: u64,
    /// Whether it does not accept the client.
    distrusts: bool,
    /// The milliseconds until its name is resolved; set for the first address of a name.
    resolves: Option<u64>,
}

const SERVES: Behaviour = Behaviour {
    accepts: Some(1),
    answers: Some(1),
    refuses: 0,
    handshake: 0,
    distrusts: false,
    resolves: Some(0),
};
const DISTRUSTS: Behaviour = Behaviour { distrusts: true, ..SERVES };
const VANISHED: Behaviour = Behaviour { accepts: None, ..SERVES };
const FROZEN: Behaviour = Behaviour { answers: None, ..SERVES };
const REFUSES: Behaviour = refuses(usize::MAX);

/// A relay that waits for a leader for some time.
const fn waits(ms: u64) -> Behaviour {
    Behaviour { answers: Some(ms), ..SERVES }
}

/// Like [`waits`], but during the handshake of TLS.
const fn waits_in_handshake(ms: u64) -> Behaviour {
    Behaviour { handshake: ms, ..SERVES }
}

/// A node that leads after a while.
const fn refuses(attempts: usize) -> Behaviour {
    Behaviour { refuses: attempts, ..SERVES }
}

async fn after(ms: Option<u64>) {
    match ms {
        Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        None => std::future::pending().await,
    }
}

/// The address that has failed, and the reason.
#[derive(Debug, PartialEq)]
struct Failure(String);

impl Reason for Failure {
    fn is_of_server(&self) -> bool {
        self.0.contains("distrusts")
    }
}

fn failure<T>(text: &str) -> Result<T, Failure> {
    Err(Failure(text.to_owned()))
}

/// Returns the number of the address that has answered, or the failure; the milliseconds that this took; and the number of
/// attempts. Each name has addresses with these behaviours, which are numbered from 0 over all names.
async fn race_of_names(
    limit: impl FnOnce(Instant) -> Limit,
    names: &[&[Behaviour]],
) -> (Result<usize, Failure>, u128, usize) {
    let behaviours = names.concat();
    let number_of = |address: &Address| usize::from(address.resolved().unwrap().port());
    let mut resolved: Vec<Vec<Address>> = Vec::new();
    let mut port = 0..;
    for (number, addresses) in names.iter().enumerate() {
        let name = format!("{number}:1").parse::<Address>().unwrap();
        let addresses = addresses.iter().zip(&mut port);
        resolved.push(
            addresses.map(|(_, port)| name.clone().resolved_to(([127, 0, 0, 1], port).into())).collect(),
        );
    }
    let names: Vec<Address> = (0..names.len()).map(|number| format!("{number}:1").parse().unwrap()).collect();
    let tried = Mutex::new(vec![0; behaviours.len()]);
    let began = Instant::now();
    let outcome = first_answer(
        &names,
        limit(began),
        |address| match address.resolved() {
            Some(_) => Failure(format!("{} is late", number_of(address))),
            None => Failure(format!("the name {} is late", address.host())),
        },
        |name| {
            let addresses = resolved[name.host().parse::<usize>().unwrap()].clone();
            let delay = behaviours[number_of(&addresses[0])].resolves;
            Box::pin(async move {
                after(delay).await;
                Ok(addresses)
            })
        },
        |address, accepted| {
            let number = number_of(address);
            let behaviour = behaviours[number];
            let mut tried = tried.lock().unwrap();
            tried[number] += 1;
            let refuses = tried[number] <= behaviour.refuses;
            Box::pin(async move {
                after(behaviour.accepts).await;
                if refuses {
                    return failure(&format!("{number} refuses"));
                }
                if behaviour.handshake > 0 {
                    accepted.note();
                    after(Some(behaviour.handshake)).await;
                }
                if behaviour.distrusts {
                    return failure(&format!("{number} distrusts"));
                }
                accepted.note();
                after(behaviour.answers).await;
                Ok(())
            })
        },
    )
    .await;
    let all = behaviours.len();
    let outcome = outcome.map(|First { address, others, .. }| {
        // A name that was not resolved counts for all its addresses.
        let others = others.iter().map(|other| match other.resolved() {
            Some(_) => 1,
            None => resolved[other.host().parse::<usize>().unwrap()].len(),
        });
        assert_eq!(others.sum::<usize>(), all - 1, "no other address is forgotten");
        number_of(&address)
    });
    let tried = tried.lock().unwrap().iter().sum();
    (outcome, began.elapsed().as_millis(), tried)
}

/// Like [`race_of_names`], but each address has a name of its own.
async fn race_within(
    limit: impl FnOnce(Instant) -> Limit,
    behaviours: &[Behaviour],
) -> (Result<usize, Failure>, u128, usize) {
    let names: Vec<_> = behaviours.iter().map(std::slice::from_ref).collect();
    race_of_names(limit, &names).await
}

async fn race(behaviours: &[Behaviour]) -> (Result<usize, Failure>, u128, usize) {
    race_within(|_| Limit::Each(LIMIT), behaviours).await
}

#[tokio::test(start_paused = true)]
async fn the_first_address_that_answers_is_used_and_no_other_one_tried() {
    assert_eq!(race(&[SERVES, SERVES]).await, (Ok(0), 2, 1));
    assert_eq!(race(&[REFUSES, SERVES, SERVES]).await, (Ok(1), 3, 2));
}

#[tokio::test(start_paused = true)]
async fn addresses_that_do_not_answer_cost_little() {
    assert_eq!(race(&[VANISHED, SERVES]).await, (Ok(1), 502, 2));
    assert_eq!(race(&[VANISHED, VANISHED, SERVES]).await, (Ok(2), 1002, 3));
    assert_eq!(race(&[FROZEN, SERVES]).await, (Ok(1), 2003, 2));
    assert_eq!(race(&[VANISHED, REFUSES, SERVES]).await, (Ok(2), 503, 3));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_goes_on_while_others_are_tried() {
    assert_eq!(race(&[waits(2600), FROZEN]).await, (Ok(0), 2601, 2));
    assert_eq!(race(&[waits(1900), SERVES]).await, (Ok(0), 1901, 1), "it is not disturbed");
    assert_eq!(race(&[waits_in_handshake(1900), SERVES]).await, (Ok(0), 1902, 1), "nor over TLS");
    assert_eq!(race(&[waits_in_handshake(2600), SERVES]).await, (Ok(1), 2003, 2));
}

#[tokio::test(start_paused = true)]
async fn only_the_address_that_was_tried_last_delays_the_next_one() {
    let accepts_late = Behaviour { accepts: Some(600), ..FROZEN };
    assert_eq!(race(&[accepts_late, VANISHED, SERVES]).await, (Ok(2), 1002, 3));
}

/// An example is the next leader of a cluster whose nodes do not relay, while the previous leader is silent.
#[tokio::test(start_paused = true)]
async fn what_has_failed_is_tried_again_while_another_address_is_silent() {
    assert_eq!(race(&[FROZEN, refuses(2), REFUSES]).await, (Ok(1), 3507, 6));
    assert_eq!(race(&[VANISHED, refuses(1)]).await, (Ok(1), 1003, 3));
    assert_eq!(race(&[refuses(1), FROZEN]).await, (Ok(0), 2004, 3));
}

#[tokio::test(start_paused = true)]
async fn a_limit_for_all_addresses_is_kept_and_is_divided() {
    let within = |limit: u64| move |began| Limit::Until(began + Duration::from_millis(limit));
    assert_eq!(race_within(within(9000), &[FROZEN; 3]).await, (failure("2 is late"), 9000, 3));
    assert_eq!(race_within(within(1000), &[VANISHED; 4]).await, (failure("3 is late"), 1000, 4));
    assert_eq!(race_within(within(1500), &[FROZEN, FROZEN, SERVES]).await, (Ok(2), 1004, 3));
    assert_eq!(race_within(within(600), &[VANISHED, VANISHED, SERVES]).await, (Ok(2), 402, 3));
}

#[tokio::test(start_paused = true)]
async fn the_last_failure_is_reported_when_all_have_failed() {
    assert_eq!(race(&[REFUSES, REFUSES]).await, (failure("1 refuses"), 2, 2));
    assert_eq!(race(&[REFUSES, FROZEN]).await, (failure("1 is late"), 5001, 8));
    assert_eq!(race(&[VANISHED]).await, (failure("0 is late"), 5000, 1));
    assert_eq!(race(&[FROZEN, REFUSES]).await, (failure("0 is late"), 5000, 7));
}

#[tokio::test(start_paused = true)]
async fn the_addresses_of_a_name_are_raced_as_those_that_were_configured() {
    let each = |_| Limit::Each(LIMIT);
    for addresses in [[VANISHED, SERVES], [FROZEN, SERVES], [REFUSES, SERVES], [SERVES, SERVES]] {
        let configured = race(&addresses).await;
        assert_eq!(race_of_names(each, &[&addresses]).await, configured);
    }
    assert_eq!(race_of_names(each, &[&[REFUSES, FROZEN], &[VANISHED, SERVES]]).await, (Ok(3), 2504, 4));
    let within = |began| Limit::Until(began + Duration::from_millis(1000));
    assert_eq!(race_of_names(within, &[&[VANISHED; 3]]).await, (failure("2 is late"), 1000, 3));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_not_resolved_costs_little() {
    let each = |_| Limit::Each(LIMIT);
    let unresolved = Behaviour { resolves: None, ..SERVES };
    assert_eq!(race_of_names(each, &[&[unresolved], &[SERVES]]).await, (Ok(1), 502, 1));
    let late = Behaviour { resolves: Some(700), ..SERVES };
    assert_eq!(race_of_names(each, &[&[late], &[VANISHED]]).await, (Ok(0), 702, 2));
    let failed = race_of_names(each, &[&[unresolved]]).await;
    assert_eq!(failed, (failure("the name 0 is late"), 5000, 0));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_accept_the_client_says_more_than_one_that_is_not_there() {
    for addresses in [[DISTRUSTS, REFUSES], [REFUSES, DISTRUSTS]] {
        let (outcome, ..) = race(&addresses).await;
        assert!(outcome.as_ref().unwrap_err().is_of_server(), "{outcome:?}");
    }
}
