//! What a random search reaches badly, told step by step.

use std::time::Duration;

use signalbox::client::{Claim, Client, Error, Lost, Permit, Revocation, Status};
use tokio::time::{sleep, timeout};

use super::drops::{Patience, for_as_long_as};
use super::stage::{CAPACITY, NAME, Stage, play};

const NEAR: (u64, u64) = (5, 5);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn soon<T>(within: Duration, what: &str, future: impl Future<Output = T>) -> T {
    timeout(within, future).await.unwrap_or_else(|_| panic!("expected that {what} within {within:?}"))
}

async fn one(client: &Client) -> Permit {
    soon(ms(1000), "one is free", client.semaphore(NAME).capacity(CAPACITY).acquire()).await.unwrap()
}

async fn all(client: &Client) -> Permit {
    let asking = client.semaphore(NAME).capacity(CAPACITY).resources(CAPACITY);
    soon(ms(1000), "all is free", asking.acquire()).await.unwrap()
}

#[test]
fn a_suspended_machine_knows_at_once_that_its_permit_is_lost() {
    play(NEAR, 1, |stage| async move {
        stage.beliefs.expect_losses();
        let (builder, clock) = stage.builder(10_000, 0);
        let client = builder.connect().await.unwrap();
        let permit = one(&client).await;
        assert!(permit.is_held());
        clock.jump(ms(9_700));
        assert!(!permit.is_held(), "expected that the clock alone tells");
        let lost = soon(ms(20), "the loss is told", permit.lost()).await;
        assert_eq!(lost, Lost::Unreachable);
        let again = one(&client).await;
        assert!(again.is_held(), "another session has it");
    });
}

#[test]
fn a_permit_ends_before_its_lease_whatever_the_latency_and_the_clock() {
    for fast_ppm in [-10_000, 0, 10_000] {
        for latency_ms in [1, 150, 300] {
            play((latency_ms, latency_ms), 1, |stage| async move {
                let (builder, _) = stage.builder(5000, fast_ppm);
                let client = builder.connect().await.unwrap();
                let asking = client.semaphore(NAME).capacity(CAPACITY).acquire();
                let permit = soon(ms(2000), "one is free", asking).await.unwrap();
                let cell = stage.beliefs.hold(stage.who(0, 5000), stage.belief_parts(), permit);
                // Long enough for renewals by KeepAlive to be what the lease is counted from.
                sleep(ms(4321)).await;
                stage.partition();
                // After every step it is compared with what the server holds.
                sleep(ms(6000)).await;
                let permit = cell.lock().unwrap().take().unwrap();
                assert!(!permit.is_held());
                assert_eq!(permit.lost().await, Lost::Unreachable);
            });
        }
    }
}

#[test]
fn a_server_that_has_gone_silent_is_left_for_another_connection() {
    play(NEAR, 1, |stage| async move {
        let client = stage.client(12_000).await;
        let permit = all(&client).await;
        let waiting = client.semaphore(NAME).capacity(CAPACITY);
        let mut waiting = Box::pin(waiting.acquire());
        assert!(timeout(ms(100), &mut waiting).await.is_err());
        // The next KeepAlive is lost, and nothing that is sent behind it is ever read.
        sleep(ms(2800)).await;
        stage.cut(ms(500)).await;
        assert!(timeout(ms(30_000), &mut waiting).await.is_err());
        assert!(permit.is_held(), "expected that the lease is renewed over another connection");
        soon(ms(1000), "it is given back", permit.release()).await.unwrap();
        let granted = soon(ms(1000), "the one that waits has it", waiting).await.unwrap();
        assert!(granted.is_held());
    });
}

#[test]
fn of_two_addresses_a_dead_one_costs_nothing_that_is_held() {
    for (seed, is_silent) in [(1, false), (2, false), (3, true), (4, true)] {
        play(NEAR, 1, |stage| async move {
            if is_silent {
                turmoil::hold("machine-0", "machine-1");
            }
            let (builder, _) = stage.builder_on(0, "machine-1", 20_000, 0);
            let builder = builder.seed(seed).address("server".parse().unwrap());
            let client = soon(ms(6000), "the other address answers", builder.connect()).await.unwrap();
            let permit = one(&client).await;
            for _ in 0..3 {
                sleep(ms(15_000)).await;
                stage.cut(ms(1000)).await;
                sleep(ms(18_000)).await;
                assert!(permit.is_held());
            }
            soon(ms(1000), "it is given back", permit.release()).await.unwrap();
        });
    }
}

#[test]
fn thousands_of_requests_pass_one_that_waits_long() {
    play((1, 2), 1, |stage| async move {
        stage.beliefs.expect_losses();
        let client = stage.client(20_000).await;
        let permit = all(&client).await;
        let waiting = client.semaphore(NAME).capacity(CAPACITY);
        let mut waiting = Box::pin(waiting.acquire());
        assert!(timeout(ms(50), &mut waiting).await.is_err());
        for round in 0..3u32 {
            let mut permits = Vec::new();
            for number in 0..600u32 {
                let client = client.clone();
                permits.push(tokio::task::spawn_local(async move {
                    client.counter(format!("{round} {number}")).maximum(1).acquire().await
                }));
            }
            for permit in permits {
                let permit = soon(ms(5000), "a free name is had", permit).await.unwrap().unwrap();
                tokio::task::spawn_local(permit.release());
            }
        }
        soon(ms(1000), "it is given back", permit.release()).await.unwrap();
        drop(soon(ms(1000), "the one that waits has it", waiting).await.unwrap());
        stage.assert_free("after many requests").await;
    });
}

#[test]
fn who_waits_when_the_server_is_started_anew_waits_on_and_who_holds_is_told() {
    play(NEAR, 1, |stage| async move {
        let client = stage.client(10_000).await;
        let permit = all(&client).await;
        let asking = client.clone();
        let waiting =
            tokio::task::spawn_local(
                async move { asking.semaphore(NAME).capacity(CAPACITY).acquire().await },
            );
        sleep(ms(100)).await;
        stage.restart(ms(700)).await;
        let granted = soon(ms(3000), "the one that waited has it", waiting).await.unwrap().unwrap();
        assert!(granted.is_held());
        let lost = soon(ms(100), "the loss is told", permit.lost()).await;
        assert_eq!(lost, Lost::Expired);
        assert!(!permit.is_held());
        assert!(matches!(permit.release().await, Err(Error::Lost(Lost::Expired))));
        drop(granted);
        stage.assert_free("after a restart").await;
    });
}

#[test]
fn what_a_lost_answer_told_is_taken_once() {
    for cut_after_ms in 0..=30 {
        play(NEAR, 1, |stage| async move {
            let client = stage.client(10_000).await;
            let cut = async {
                sleep(ms(cut_after_ms)).await;
                stage.cut(ms(300)).await;
            };
            let asking = client.semaphore(NAME).capacity(CAPACITY).acquire();
            let (permit, ()) = tokio::join!(soon(ms(9000), "it is granted", asking), cut);
            let permit = permit.unwrap();
            sleep(ms(100)).await;
            assert_eq!((stage.in_use(), stage.ledger().grants), (1, 1), "expected that one is taken");
            assert!(permit.is_held());
            let cut = async {
                sleep(ms(cut_after_ms)).await;
                stage.cut(ms(300)).await;
            };
            let (released, ()) = tokio::join!(soon(ms(9000), "it is given back", permit.release()), cut);
            released.unwrap();
            stage.assert_free("after a cut").await;
        });
    }
}

/// Asks in some way and drops what asks, with the network in order or cut.
async fn ask_and_drop(stage: &Stage, client: &Client, way: u32, patience: Patience, is_cut: bool) {
    let what = format!("way {way}, {patience:?}, cut: {is_cut}");
    let holder = (way % 2 == 1).then(|| client.semaphore(NAME).capacity(CAPACITY).resources(CAPACITY));
    let holder = match holder {
        Some(asking) => Some(asking.acquire().await.unwrap()),
        None => None,
    };
    let asking = async {
        let single = client.semaphore(NAME).capacity(CAPACITY);
        match way / 2 {
            0 => drop(single.acquire().await),
            1 => drop(single.timeout(ms(50)).acquire().await),
            2 => {
                let names = [Claim::semaphore(NAME, CAPACITY), Claim::counter("another", 1)];
                drop(client.acquire_all(names).acquire().await);
            }
            3 => drop(single.try_acquire().await),
            _ => {
                if let Ok(permit) = single.try_acquire().await {
                    drop(permit.release().await);
                }
            }
        }
    };
    let cut = async {
        if is_cut {
            sleep(ms(12)).await;
            stage.cut(ms(200)).await;
        }
    };
    // Some wait for what nobody gives back.
    let asking = timeout(ms(400), for_as_long_as(patience, asking));
    let (_, ()) = tokio::join!(asking, cut);
    drop(holder);
    if is_cut {
        sleep(ms(1500)).await;
    }
    stage.assert_free(&what).await;
}

#[test]
fn a_future_that_is_dropped_at_any_point_leaves_nothing() {
    for is_cut in [false, true] {
        play(NEAR, 1, |stage| async move {
            let client = stage.client(2000).await;
            for way in 0..10 {
                for polls in 0..4 {
                    ask_and_drop(&stage, &client, way, Patience::Polls(polls), is_cut).await;
                }
                for after_ms in (0..45).step_by(5) {
                    ask_and_drop(&stage, &client, way, Patience::Time(ms(after_ms)), is_cut).await;
                }
            }
            assert_eq!(stage.ledger().sessions, 1, "expected that all of it was one session");
        });
    }
}

#[test]
fn connecting_and_leaving_can_be_dropped_too() {
    play(NEAR, 1, |stage| async move {
        stage.beliefs.expect_losses();
        for after_ms in 0..40 {
            let patience = Patience::Time(ms(after_ms));
            let client = for_as_long_as(patience, stage.builder(1000, 0).0.connect()).await;
            if let Some(client) = client {
                let client = client.unwrap();
                let permit = one(&client).await;
                for_as_long_as(patience, client.close()).await;
                drop(permit);
            }
            // What was not waited for ends with the lease.
            sleep(ms(1500)).await;
            assert_eq!(stage.ledger().sessions, 0, "expected that nothing is left after {after_ms} ms");
        }
    });
}

/// Revokes a grant, or its session, from the other machine.
async fn revoke(stage: &Stage, permit: &Permit, is_session: bool, grace: Duration) {
    let grant = permit.id();
    stage
        .elsewhere(move |stage| async move {
            let client = stage.builder_on(1, "server", 10_000, 0).0.connect().await.unwrap();
            let direct = client.direct().await.unwrap();
            let session = direct.verify(grant).await.unwrap().session;
            let what = if is_session { Revocation::Session(session) } else { Revocation::Grant(grant) };
            direct.revoke(what, grace).await.unwrap();
        })
        .await;
}

#[test]
fn a_revoked_permit_ends_before_its_grace() {
    for is_session in [false, true] {
        for quiet_ms in [0, 1000, 2400] {
            for latency_ms in [5, 200] {
                play((latency_ms, latency_ms), 1, |stage| async move {
                    let client = stage.builder(10_000, -10_000).0.connect().await.unwrap();
                    let permit = one(&client).await;
                    sleep(ms(quiet_ms)).await;
                    revoke(&stage, &permit, is_session, ms(4000)).await;
                    soon(ms(500), "the notice comes", permit.revocation()).await;
                    assert!(
                        permit.is_held() || quiet_ms > 0 || latency_ms > 5,
                        "expected that the grace counts"
                    );
                    let server = stage.server();
                    let id = signalbox::core::GrantId(permit.id().0);
                    let moment = signalbox::core::Moment {
                        monotonic: signalbox::core::MonotonicMs(0),
                        unix: signalbox::core::UnixSeconds(0),
                    };
                    while server.core().verify(id, moment).is_ok() {
                        sleep(ms(1)).await;
                    }
                    assert!(!permit.is_held(), "expected that it was over before");
                    assert_eq!(soon(ms(10), "the loss is told", permit.lost()).await, Lost::Revoked);
                });
            }
        }
    }
}

#[test]
fn what_was_revoked_during_a_cut_is_known_to_be_lost_after_it() {
    for grace_ms in [0, 1500, 5000] {
        play(NEAR, 1, |stage| async move {
            let client = stage.client(20_000).await;
            let (revoked, other) = (one(&client).await, one(&client).await);
            stage.partition();
            sleep(ms(100)).await;
            revoke(&stage, &revoked, false, ms(grace_ms)).await;
            sleep(ms(2000)).await;
            stage.mend();
            let lost = soon(ms(12_000), "the loss is told", revoked.lost()).await;
            assert_eq!(lost, Lost::Revoked);
            assert!(!revoked.is_held());
            assert!(other.is_held(), "expected that the other one is kept");
            drop((revoked, other));
            stage.assert_free("after a revocation").await;
        });
    }
}

#[test]
fn a_grant_that_was_revoked_before_its_answer_came_is_not_held() {
    play(NEAR, 1, |stage| async move {
        let client = stage.client(12_000).await;
        let first = one(&client).await;
        let asking = client.clone();
        let asked =
            tokio::task::spawn_local(
                async move { asking.semaphore(NAME).capacity(CAPACITY).acquire().await },
            );
        // The request has arrived, and its answer has not.
        while stage.ledger().grants < 2 {
            sleep(ms(1)).await;
        }
        stage.partition();
        let next = first.id().0;
        stage
            .elsewhere(move |stage| async move {
                let client = stage.builder_on(1, "server", 10_000, 0).0.connect().await.unwrap();
                let direct = client.direct().await.unwrap();
                let mut holders =
                    direct.holders(signalbox::client::Namespace::Semaphores, NAME).await.unwrap();
                while let Some(holder) = holders.next().await {
                    let grant = holder.unwrap().grant.unwrap();
                    if grant.0 != next {
                        direct.revoke(Revocation::Grant(grant), Duration::ZERO).await.unwrap();
                    }
                }
            })
            .await;
        stage.mend();
        match soon(ms(15_000), "the request is answered", asked).await.unwrap() {
            Ok(permit) => {
                sleep(ms(100)).await;
                assert!(!permit.is_held(), "expected that what was revoked is not held");
                assert_eq!(soon(ms(10), "the loss is told", permit.lost()).await, Lost::Revoked);
            }
            Err(error) => assert!(matches!(error, Error::Status(Status::Revoked)), "{error:?}"),
        }
        assert!(first.is_held());
    });
}

#[test]
fn an_attachment_that_was_given_up_and_arrives_last_costs_nothing() {
    play(NEAR, 1, |stage| async move {
        let client = stage.client(60_000).await;
        let permit = all(&client).await;
        let asking = client.clone();
        let waiting =
            tokio::task::spawn_local(
                async move { asking.semaphore(NAME).capacity(CAPACITY).acquire().await },
            );
        sleep(ms(100)).await;
        assert_eq!(stage.ledger().waiters, 1);
        stage.beliefs.delay_an_attachment();
        // A request is lost, and with it the connection; the attachment of the next one is stuck.
        let asking = client.clone();
        let lost =
            tokio::task::spawn_local(
                async move { asking.semaphore(NAME).capacity(CAPACITY).try_acquire().await },
            );
        stage.cut(ms(1000)).await;
        sleep(ms(60_000)).await;
        assert!(lost.await.unwrap().is_err());
        assert!(!stage.beliefs.is_next_attachment_stuck(), "expected that one was stuck");
        assert!(permit.is_held(), "expected that the session is kept");
        assert_eq!(stage.ledger().waiters, 1, "expected that the place is kept");
        drop(permit);
        drop(soon(ms(1000), "the one that waits has it", waiting).await.unwrap().unwrap());
        stage.assert_free("after a late attachment").await;
    });
}
