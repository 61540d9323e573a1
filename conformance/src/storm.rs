//! Clients that compete for a few names while networks, clients and the server fail at random.
//!
//! The seed determines what each client asks for, and which faults occur after which times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::proxy::Fault;
use crate::stage::{Outcome, Player, Request, Stage};

/// The names, each with its maximum.
const NAMES: [(&str, u64); 2] = [("x", 1), ("y", 2)];

const PLAYERS: [&str; 4] = ["first", "second", "third", "fourth"];

pub fn run(stage: &Stage<'_>, seed: u64, time: Duration) -> Result<(), String> {
    let players = PLAYERS.map(|name| stage.player(name)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let end = Instant::now() + time;
    let has_failed = AtomicBool::new(false);
    let is_over = || Instant::now() > end || has_failed.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let clients: Vec<_> = players
            .iter()
            .zip(1..)
            .map(|(player, number)| {
                let random = Rng::with_seed(seed.wrapping_add(number));
                let has_failed = &has_failed;
                scope.spawn(move || {
                    let outcome = compete(player, random, &is_over);
                    has_failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    outcome
                })
            })
            .collect();
        let disturbed = disturb(stage, &players, Rng::with_seed(seed), &is_over);
        has_failed.fetch_or(disturbed.is_err(), Ordering::Relaxed);
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))?;
        disturbed
    })?;
    stage.oracle.verdict()?;
    // Nothing is held forever, and the clients work as before.
    for (name, capacity) in NAMES {
        stage.wait_until_free(name)?;
        for player in &players {
            let permit =
                player.acquire(Request::of(&format!("last-{name}"), name, capacity).wait_ms(5000))?;
            player.release(&permit.held()?)?;
        }
    }
    Ok(())
}

fn compete(player: &Player<'_>, mut random: Rng, is_over: &dyn Fn() -> bool) -> Result<(), String> {
    for number in 0.. {
        if is_over() {
            break;
        }
        let (name, capacity) = NAMES[random.usize(..NAMES.len())];
        let request = Request::of(&format!("p{number}"), name, capacity)
            .ttl_ms(random.u64(1000..2000))
            .wait_ms(*random.choice(&[0, 500, 1500]).expect("there are three"));
        let checks = random.usize(1..12);
        let Outcome::Held(permit) = player.acquire(request)? else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        for _ in 0..checks {
            if !player.check(&permit)? {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        player.release(&permit)?;
    }
    Ok(())
}

/// Causes faults of networks and processes, one after the other, and ends them all when the time is over.
fn disturb(
    stage: &Stage<'_>,
    players: &[Player<'_>],
    mut random: Rng,
    is_over: &dyn Fn() -> bool,
) -> Result<(), String> {
    while !is_over() {
        let Player { network, driver, .. } = &players[random.usize(..players.len())];
        let duration = Duration::from_millis(random.u64(20..400) * random.u64(1..5));
        let fault = match random.u32(..10) {
            0 => Fault::DropBefore,
            1 => Fault::DropAfter,
            2 => Fault::Duplicate { after_ms: random.u64(..1500) },
            3 => Fault::Cut,
            4 => Fault::HalfOpen,
            5 => Fault::Freeze,
            6 | 7 => Fault::Delay { up_ms: random.u64(..600), down_ms: random.u64(..600) },
            8 if driver.can("clock") => {
                driver.signal(Signal::SIGSTOP);
                thread::sleep(duration);
                driver.signal(Signal::SIGCONT);
                continue;
            }
            _ if stage.server.is_cluster() => {
                stage.server.restart()?;
                continue;
            }
            _ => {
                stage.server.stop()?;
                thread::sleep(duration);
                stage.server.resume();
                continue;
            }
        };
        network.set(fault);
        thread::sleep(duration);
        if random.bool() {
            network.set(Fault::None);
        }
    }
    for player in players {
        player.network.set(Fault::None);
    }
    Ok(())
}
