//! Scripted cases that random runs rarely reach.

use std::time::Duration;

use signalbox_client::{Claim, Client, Error, ErrorKind, Lost, Permit, Revocation, Status};
use tokio::time::{sleep, timeout};

use super::drops::{DropPoint, run_until_dropped};
use super::testbed::{CAPACITY, NAME, Testbed, run_script};
use signalbox_model::{Milliseconds, Operation, SessionId};

const NEAR: (u64, u64) = (5, 5);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn soon<T>(within: Duration, what: &str, future: impl Future<Output = T>) -> T {
    timeout(within, future).await.unwrap_or_else(|_| panic!("{what}: not within {within:?}"))
}

async fn one(client: &Client) -> Permit {
    soon(ms(1000), "one is free", client.semaphore(NAME).capacity(CAPACITY).acquire()).await.unwrap()
}

async fn all(client: &Client) -> Permit {
    let acquiring = client.semaphore(NAME).capacity(CAPACITY).resources(CAPACITY);
    soon(ms(1000), "everything is free", acquiring.acquire()).await.unwrap()
}

#[test]
fn a_suspended_machine_detects_at_once_that_its_permit_is_lost() {
    run_script(NEAR, 1, |testbed| async move {
        testbed.expectations.expect_losses();
        let (builder, clock) = testbed.builder(10_000, 0);
        let client = builder.connect().await.unwrap();
        let permit = one(&client).await;
        assert!(permit.is_held());
        clock.jump(ms(9_700));
        assert!(!permit.is_held(), "the clock alone reveals the loss");
        let lost = soon(ms(20), "the loss is reported", permit.lost()).await;
        assert_eq!(lost, Lost::Unreachable);
        let again = one(&client).await;
        assert!(again.is_held(), "another session holds it");
    });
}

#[test]
fn a_permit_ends_before_its_lease_at_any_latency_and_clock_rate() {
    for fast_ppm in [-10_000, 0, 10_000] {
        for latency_ms in [1, 150, 300] {
            run_script((latency_ms, latency_ms), 1, |testbed| async move {
                let (builder, _) = testbed.builder(5000, fast_ppm);
                let client = builder.connect().await.unwrap();
                let acquiring = client.semaphore(NAME).capacity(CAPACITY).acquire();
                let permit = soon(ms(2000), "one is free", acquiring).await.unwrap();
                let cell = testbed.expectations.hold(testbed.info(0, 5000), testbed.permit_parts(), permit);
                // Long enough that the client counts the lease from renewals by KeepAlive.
                sleep(ms(4321)).await;
                testbed.partition();
                // The simulation compares the permit with the server after every step.
                sleep(ms(6000)).await;
                let permit = cell.lock().unwrap().take().unwrap();
                assert!(!permit.is_held());
                assert_eq!(permit.lost().await, Lost::Unreachable);
            });
        }
    }
}

#[test]
fn a_client_replaces_a_silent_connection() {
    run_script(NEAR, 1, |testbed| async move {
        let client = testbed.client(12_000).await;
        let permit = all(&client).await;
        let waiting = client.semaphore(NAME).capacity(CAPACITY);
        let mut waiting = Box::pin(waiting.acquire());
        assert!(timeout(ms(100), &mut waiting).await.is_err());
        // The next KeepAlive is lost, and the server never reads what is sent after it.
        sleep(ms(2800)).await;
        testbed.cut(ms(500)).await;
        assert!(timeout(ms(30_000), &mut waiting).await.is_err());
        assert!(permit.is_held(), "the lease is renewed over another connection");
        soon(ms(1000), "the permit is released", permit.release()).await.unwrap();
        let granted = soon(ms(1000), "the waiting request is granted", waiting).await.unwrap();
        assert!(granted.is_held());
    });
}

#[test]
fn a_slow_network_costs_no_permit() {
    for latency_ms in [250, 300, 400, 450] {
        run_script((latency_ms, latency_ms), 1, |testbed| async move {
            let client = testbed.client(2000).await;
            let acquiring = client.semaphore(NAME).capacity(CAPACITY).acquire();
            let permit = soon(ms(9000), "one is free", acquiring).await.unwrap();
            sleep(ms(20_000)).await;
            assert!(permit.is_held());
            soon(ms(5000), "the permit is released", permit.release()).await.unwrap();
        });
    }
}

#[test]
fn a_network_that_is_too_slow_for_a_lease_is_unreachable() {
    run_script((700, 700), 1, |testbed| async move {
        testbed.expectations.expect_losses();
        let client = testbed.client(2000).await;
        let acquiring = client.semaphore(NAME).capacity(CAPACITY).acquire();
        let failure = soon(ms(20_000), "the acquire ends", acquiring).await.unwrap_err();
        assert!(matches!(failure.kind(), ErrorKind::Unreachable { .. }), "{failure}");
    });
}

#[test]
fn a_dead_address_costs_no_permit() {
    for (seed, is_silent) in [(1, false), (2, false), (3, true), (4, true)] {
        run_script(NEAR, 1, |testbed| async move {
            if is_silent {
                turmoil::hold("machine-0", "machine-1");
            }
            let (builder, _) = testbed.builder_on(0, "machine-1", 20_000, 0);
            let builder = builder.seed(seed).address("server".parse().unwrap());
            let client = soon(ms(6000), "the other address answers", builder.connect()).await.unwrap();
            let permit = one(&client).await;
            for _ in 0..3 {
                sleep(ms(15_000)).await;
                testbed.cut(ms(1000)).await;
                sleep(ms(18_000)).await;
                assert!(permit.is_held());
            }
            soon(ms(1000), "the permit is released", permit.release()).await.unwrap();
        });
    }
}

#[test]
fn thousands_of_requests_complete_while_another_waits() {
    run_script((1, 2), 1, |testbed| async move {
        testbed.expectations.expect_losses();
        let client = testbed.client(20_000).await;
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
                let permit = soon(ms(5000), "a free name is granted", permit).await.unwrap().unwrap();
                tokio::task::spawn_local(permit.release());
            }
        }
        soon(ms(1000), "the permit is released", permit.release()).await.unwrap();
        drop(soon(ms(1000), "the waiting request is granted", waiting).await.unwrap());
        testbed.assert_free("after many requests").await;
    });
}

#[test]
fn a_server_restart_keeps_waiters_and_reports_lost_permits() {
    run_script(NEAR, 1, |testbed| async move {
        let client = testbed.client(10_000).await;
        let permit = all(&client).await;
        let acquiring = client.clone();
        let waiting =
            tokio::task::spawn_local(
                async move { acquiring.semaphore(NAME).capacity(CAPACITY).acquire().await },
            );
        sleep(ms(100)).await;
        testbed.restart(ms(700)).await;
        let granted = soon(ms(3000), "the waiting request is granted", waiting).await.unwrap().unwrap();
        assert!(granted.is_held());
        let lost = soon(ms(100), "the loss is reported", permit.lost()).await;
        assert_eq!(lost, Lost::Expired);
        assert!(!permit.is_held());
        assert!(matches!(
            permit.release().await.as_ref().map_err(Error::kind),
            Err(ErrorKind::Lost(Lost::Expired))
        ));
        drop(granted);
        testbed.assert_free("after a restart").await;
    });
}

/// The pauses between attempts grow up to 2 s in an outage, and begin again with the next one.
#[test]
fn a_long_outage_does_not_delay_a_client_in_the_next_one() {
    run_script(NEAR, 1, |testbed| async move {
        testbed.expectations.expect_losses();
        let builder = testbed.builder(10_000, 0).0.unreachable_after(ms(600_000));
        let client = builder.build().unwrap();
        let acquiring = async {
            sleep(ms(100)).await;
            client.semaphore(NAME).capacity(CAPACITY).acquire().await.unwrap()
        };
        let (permit, ()) = tokio::join!(acquiring, testbed.restart(ms(60_000)));
        testbed.restart(ms(20)).await;
        let lost = soon(ms(500), "the next server is asked", permit.lost()).await;
        assert_eq!(lost, Lost::Expired);
    });
}

#[test]
fn a_request_with_a_lost_answer_is_granted_once() {
    for cut_after_ms in 0..=30 {
        run_script(NEAR, 1, |testbed| async move {
            let client = testbed.client(10_000).await;
            let cut = async {
                sleep(ms(cut_after_ms)).await;
                testbed.cut(ms(300)).await;
            };
            let acquiring = client.semaphore(NAME).capacity(CAPACITY).acquire();
            let (permit, ()) = tokio::join!(soon(ms(9000), "it is granted", acquiring), cut);
            let permit = permit.unwrap();
            sleep(ms(100)).await;
            assert_eq!((testbed.in_use(), testbed.ledger().grants), (1, 1), "exactly one is granted");
            assert!(permit.is_held());
            let cut = async {
                sleep(ms(cut_after_ms)).await;
                testbed.cut(ms(300)).await;
            };
            let (released, ()) =
                tokio::join!(soon(ms(9000), "the permit is released", permit.release()), cut);
            released.unwrap();
            testbed.assert_free("after a cut").await;
        });
    }
}

/// The cancellation of the request is lost with the connection.
#[test]
fn a_request_that_was_dropped_while_disconnected_leaves_the_queue() {
    run_script(NEAR, 1, |testbed| async move {
        let client = testbed.client(120_000).await;
        let permit = all(&client).await;
        let mut waiting = Box::pin(client.semaphore(NAME).capacity(CAPACITY).acquire());
        assert!(timeout(ms(100), &mut waiting).await.is_err());
        assert_eq!(testbed.ledger().waiters, 1);
        testbed.partition();
        drop(waiting);
        // The connection is given up when it has been silent for 20 s.
        sleep(ms(40_000)).await;
        testbed.reconnect();
        sleep(ms(20_000)).await;
        assert!(permit.is_held());
        assert_eq!(testbed.ledger().waiters, 0);
    });
}

#[test]
fn an_acquire_in_an_outage_waits_for_a_server_as_long_as_one_before_it() {
    run_script(NEAR, 1, |testbed| async move {
        let builder = testbed.builder(300_000, 0).0.unreachable_after(ms(10_000));
        let client = builder.connect().await.unwrap();
        drop(one(&client).await);
        sleep(ms(100)).await;
        testbed.partition();
        sleep(ms(60_000)).await;
        let asked = tokio::time::Instant::now();
        let refused = client.semaphore(NAME).capacity(CAPACITY).acquire().await.unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Unreachable { .. }), "{refused}");
        assert!(asked.elapsed() >= ms(10_000), "{:?}", asked.elapsed());
    });
}

/// No other timer of the client is due at that time.
#[test]
fn a_release_is_waited_for_5_s() {
    run_script(NEAR, 1, |testbed| async move {
        let client = testbed.client(120_000).await;
        let permit = one(&client).await;
        testbed.partition();
        let released = soon(ms(5_100), "the end of the wait", permit.release()).await;
        assert!(matches!(released.unwrap_err().kind(), ErrorKind::Unanswered { .. }));
    });
}

/// Acquires in one of several ways and drops the future, with or without a disconnect.
async fn acquire_and_drop(testbed: &Testbed, client: &Client, way: u32, drop_point: DropPoint, is_cut: bool) {
    let what = format!("way {way}, {drop_point:?}, cut: {is_cut}");
    let holder = (way % 2 == 1).then(|| client.semaphore(NAME).capacity(CAPACITY).resources(CAPACITY));
    let holder = match holder {
        Some(acquiring) => Some(acquiring.acquire().await.unwrap()),
        None => None,
    };
    let acquiring = async {
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
            testbed.cut(ms(200)).await;
        }
    };
    // Some requests wait for resources that are never released.
    let acquiring = timeout(ms(400), run_until_dropped(drop_point, acquiring));
    let (_, ()) = tokio::join!(acquiring, cut);
    drop(holder);
    if is_cut {
        sleep(ms(1500)).await;
    }
    testbed.assert_free(&what).await;
}

#[test]
fn a_future_dropped_at_any_point_leaves_nothing_behind() {
    for is_cut in [false, true] {
        run_script(NEAR, 1, |testbed| async move {
            let client = testbed.client(2000).await;
            for way in 0..10 {
                for polls in 0..4 {
                    acquire_and_drop(&testbed, &client, way, DropPoint::AfterPolls(polls), is_cut).await;
                }
                for after_ms in (0..45).step_by(5) {
                    acquire_and_drop(&testbed, &client, way, DropPoint::After(ms(after_ms)), is_cut).await;
                }
            }
            assert_eq!(testbed.ledger().sessions, 1, "one session was used throughout");
        });
    }
}

#[test]
fn connect_and_close_can_be_dropped_at_any_point() {
    run_script(NEAR, 1, |testbed| async move {
        testbed.expectations.expect_losses();
        for after_ms in 0..40 {
            let drop_point = DropPoint::After(ms(after_ms));
            let client = run_until_dropped(drop_point, testbed.builder(1000, 0).0.connect()).await;
            if let Some(client) = client {
                let client = client.unwrap();
                let permit = one(&client).await;
                run_until_dropped(drop_point, client.close()).await;
                drop(permit);
            }
            // Requests that were not awaited end with the lease.
            sleep(ms(1500)).await;
            assert_eq!(testbed.ledger().sessions, 0, "no session is left after {after_ms} ms");
        }
    });
}

/// Revokes a grant, or its session, from the other machine.
async fn revoke(testbed: &Testbed, permit: &Permit, is_session: bool, grace: Duration) {
    let grant = permit.id();
    testbed
        .on_other_machine(move |testbed| async move {
            let client = testbed.builder_on(1, "server", 10_000, 0).0.connect().await.unwrap();
            let direct = client.direct().await.unwrap();
            let session = direct.verify(grant).await.unwrap().session;
            let what = if is_session {
                Revocation::Session(SessionId::new(session))
            } else {
                Revocation::Grant(grant)
            };
            let grace = Milliseconds::saturating_from(grace);
            direct.change(&Operation::Revoke { what, grace }).await.unwrap();
        })
        .await;
}

/// Waits until the server has taken a revoked grant away.
async fn assert_lost_before_the_server_releases(testbed: &Testbed, permit: &Permit) {
    let server = testbed.server();
    let id = signalbox_model::GrantId(permit.id().0);
    let moment = signalbox_core::Moment {
        monotonic: signalbox_core::MonotonicMs(0),
        unix: signalbox_model::UnixSeconds(0),
    };
    while server.core().verify(id, moment).is_ok() {
        sleep(ms(1)).await;
    }
    assert!(!permit.is_held(), "the permit ended before the server released it");
    assert_eq!(soon(ms(10), "the loss is reported", permit.lost()).await, Lost::Revoked);
}

#[test]
fn a_revoked_permit_ends_before_its_grace_period() {
    // The client sends KeepAlive after 10 s.
    for (quiet_ms, age_ms) in [(0, 0), (3000, 3000), (9000, 9000), (12_000, 2000), (15_000, 5000)] {
        for (is_session, grace_ms) in
            [(false, 1000), (true, 1000), (false, 4000), (true, 4000), (false, 30_000)]
        {
            for latency_ms in [5, 50] {
                run_script((latency_ms, latency_ms), 1, |testbed| async move {
                    let client = testbed.builder(60_000, -10_000).0.connect().await.unwrap();
                    let permit = one(&client).await;
                    sleep(ms(quiet_ms)).await;
                    revoke(&testbed, &permit, is_session, ms(grace_ms)).await;
                    soon(ms(1000), "the notice comes", permit.revocation()).await;
                    let left = permit.time_left().expect("the grace period has just started");
                    // The clocks differ by 1 %, and the administrator needs time before it revokes.
                    let margin_ms = (age_ms + grace_ms + 20 * latency_ms) / 20 + 5 * latency_ms;
                    let range = ms(grace_ms - margin_ms)..ms(grace_ms);
                    assert!(range.contains(&left), "{left:?} of {grace_ms} ms after {quiet_ms} ms");
                    assert_lost_before_the_server_releases(&testbed, &permit).await;
                });
            }
        }
    }
}

#[test]
fn a_later_revocation_shortens_a_grace_period() {
    run_script(NEAR, 1, |testbed| async move {
        // Each revocation opens a session on the other machine and closes it.
        testbed.expectations.expect_losses();
        let client = testbed.client(20_000).await;
        let (permit, other) = (one(&client).await, one(&client).await);
        revoke(&testbed, &permit, false, ms(10_000)).await;
        soon(ms(500), "the first notice comes", permit.revocation()).await;
        assert!(permit.time_left().unwrap() > ms(9000));
        revoke(&testbed, &permit, true, ms(3000)).await;
        soon(ms(500), "the second notice comes", other.revocation()).await;
        for permit in [&permit, &other] {
            let left = permit.time_left().unwrap();
            assert!(left > ms(2500) && left < ms(3000), "{left:?}");
        }
        drop(other);
        let late = one(&client).await;
        assert!(late.time_left().unwrap() < ms(3000), "the session ends with all that it holds");
        for permit in [permit, late] {
            assert_eq!(soon(ms(3000), "the loss is reported", permit.lost()).await, Lost::Revoked);
        }
    });
}

/// Messages take so long that a grace period counted from the receipt of a notice would end too late.
#[test]
fn a_slow_network_does_not_prolong_a_grace_period() {
    for is_answered in [true, false] {
        run_script((600, 600), 1, |testbed| async move {
            let client = testbed.builder(20_000, 0).0.connect().await.unwrap();
            let acquiring = client.semaphore(NAME).capacity(CAPACITY).acquire();
            let permit = soon(ms(3000), "one is free", acquiring).await.unwrap();
            // The notice arrives together with the answer to the administrator.
            revoke(&testbed, &permit, false, ms(4000)).await;
            sleep(ms(20)).await;
            if !is_answered {
                testbed.partition();
            }
            assert_lost_before_the_server_releases(&testbed, &permit).await;
        });
    }
}

#[test]
fn a_permit_revoked_while_disconnected_is_lost_after_reconnecting() {
    for grace_ms in [0, 1500, 5000] {
        run_script(NEAR, 1, |testbed| async move {
            let client = testbed.client(20_000).await;
            let (revoked, other) = (one(&client).await, one(&client).await);
            testbed.partition();
            sleep(ms(100)).await;
            revoke(&testbed, &revoked, false, ms(grace_ms)).await;
            sleep(ms(2000)).await;
            testbed.reconnect();
            let lost = soon(ms(12_000), "the loss is reported", revoked.lost()).await;
            assert_eq!(lost, Lost::Revoked);
            assert!(!revoked.is_held());
            assert!(other.is_held(), "the other permit is still held");
            drop((revoked, other));
            testbed.assert_free("after a revocation").await;
        });
    }
}

#[test]
fn a_grant_revoked_before_its_answer_arrives_is_not_held() {
    run_script(NEAR, 1, |testbed| async move {
        let client = testbed.client(12_000).await;
        let first = one(&client).await;
        let acquiring = client.clone();
        let acquired =
            tokio::task::spawn_local(
                async move { acquiring.semaphore(NAME).capacity(CAPACITY).acquire().await },
            );
        // The request has arrived, and its answer has not.
        while testbed.ledger().grants < 2 {
            sleep(ms(1)).await;
        }
        testbed.partition();
        let next = first.id().0;
        testbed
            .on_other_machine(move |testbed| async move {
                let client = testbed.builder_on(1, "server", 10_000, 0).0.connect().await.unwrap();
                let direct = client.direct().await.unwrap();
                let mut holders =
                    direct.holders(signalbox_client::Namespace::Semaphores, NAME).await.unwrap();
                while let Some(holder) = holders.next().await {
                    let grant = holder.unwrap().grant.unwrap();
                    if grant.0 != next {
                        let (what, grace) = (Revocation::Grant(grant), Milliseconds(0));
                        direct.change(&Operation::Revoke { what, grace }).await.unwrap();
                    }
                }
            })
            .await;
        testbed.reconnect();
        match soon(ms(15_000), "the request is answered", acquired).await.unwrap() {
            Ok(permit) => {
                sleep(ms(100)).await;
                assert!(!permit.is_held(), "a revoked permit is not held");
                assert_eq!(soon(ms(10), "the loss is reported", permit.lost()).await, Lost::Revoked);
            }
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Status(Status::Revoked)), "{error:?}"),
        }
        assert!(first.is_held());
    });
}

#[test]
fn a_late_attachment_of_an_abandoned_connection_costs_nothing() {
    run_script(NEAR, 1, |testbed| async move {
        let client = testbed.client(60_000).await;
        let permit = all(&client).await;
        let acquiring = client.clone();
        let waiting =
            tokio::task::spawn_local(
                async move { acquiring.semaphore(NAME).capacity(CAPACITY).acquire().await },
            );
        sleep(ms(100)).await;
        assert_eq!(testbed.ledger().waiters, 1);
        testbed.expectations.delay_an_attachment();
        // A request is lost, and its connection with it; the attachment of the next connection is delayed.
        let acquiring = client.clone();
        let lost = tokio::task::spawn_local(async move {
            acquiring.semaphore(NAME).capacity(CAPACITY).try_acquire().await
        });
        testbed.cut(ms(1000)).await;
        sleep(ms(60_000)).await;
        assert!(lost.await.unwrap().is_err());
        assert!(!testbed.expectations.is_next_attachment_delayed(), "one attachment was delayed");
        assert!(permit.is_held(), "the session still exists");
        assert_eq!(testbed.ledger().waiters, 1, "the place in the queue is kept");
        drop(permit);
        drop(soon(ms(1000), "the waiting request is granted", waiting).await.unwrap().unwrap());
        testbed.assert_free("after a late attachment").await;
    });
}
