//! The scenarios, each about one promise of a client. Each has a server of its own, and they run at the same time.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::bench::Pairs;
use crate::proxy::{Fault, Network};
use crate::server::{Held, eventually};
use crate::stage::{Request, Stage};

/// The time to live of leases that the scenario lets end: the shortest that a server grants.
const SHORT_MS: u64 = 1000;

/// The time to live of leases that must be renewed in time, even on a busy machine.
const RENEWED_MS: u64 = 3000;

/// The default time to live of all clients (docs/clients.md).
const DEFAULT_TTL_MS: u64 = 30_000;

pub struct Scenario {
    pub name: &'static str,
    /// The capabilities that its driver must have.
    pub needs: &'static [&'static str],
    /// The rights of clients without a token.
    pub anonymous: &'static str,
    pub is_tls: bool,
    pub run: fn(&Stage<'_>) -> Result<(), String>,
}

const fn scenario(
    name: &'static str,
    needs: &'static [&'static str],
    run: fn(&Stage<'_>) -> Result<(), String>,
) -> Scenario {
    Scenario { name, needs, anonymous: "read,acquire", is_tls: false, run }
}

pub const SCENARIOS: [Scenario; 22] = [
    scenario("acquire, wait and release", &[], basics),
    scenario("defaults", &["defaults"], defaults),
    scenario("slots and several names", &[], slots),
    scenario("exit while holding", &[], exit),
    scenario("lost requests and answers", &[], lost_answers),
    scenario("requests that arrive twice", &[], duplicates),
    scenario("late answers", &[], late_answers),
    scenario("a stopped client", &["clock"], stopped),
    scenario("a blocked program", &["renew"], blocked),
    scenario("killed clients", &[], killed),
    scenario("a server that is killed", &[], server_killed),
    scenario("a server that hangs", &[], server_hangs),
    scenario("a release without a server", &[], release_without_server),
    scenario("revocation", &[], revoked),
    scenario("a canceled acquire", &["cancel"], canceled),
    scenario("fork", &["fork"], forked),
    Scenario { anonymous: "none", ..scenario("rotation and end of a token", &["token"], token) },
    scenario("pause", &[], paused),
    scenario("an address that does not answer", &[], two_addresses),
    scenario("single flight", &["share"], single_flight),
    scenario("pairs", &["pairs"], pairs),
    Scenario { is_tls: true, ..scenario("a server with a certificate", &["tls"], basics) },
];

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn basics(stage: &Stage<'_>) -> Result<(), String> {
    let (first, second) = (stage.player("first")?, stage.player("second")?);
    let held = first.acquire(Request::of("a", "n", 1))?.held()?;
    first.must_hold(&held)?;
    second.acquire(Request::of("b", "n", 1))?.failed("busy")?;
    second.acquire(Request::of("c", "n", 1).wait_ms(200))?.failed("timed_out")?;
    let waiting = second.begin(Request::of("d", "n", 1).wait_ms(15_000))?;
    stage.wait_for_usage("n", 1, 1)?;
    first.release(&held)?;
    let next = second.finish(waiting)?.held()?;
    let fence = |text: &str| text.parse::<u64>().map_err(|_| format!("a fence must be a number: {text}"));
    if fence(&next.fence)? <= fence(&held.fence)? {
        return Err(format!("the fence {} follows {}", next.fence, held.fence));
    }
    first.release(&held)?;
    second.must_hold(&next)?;
    second.release(&next)?;
    stage.wait_until_free("n")?;
    if let Some(event) = [first.driver.events("a"), second.driver.events("d")].concat().first() {
        return Err(format!("an event about a permit that was released: {event}"));
    }
    Ok(())
}

fn defaults(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    let request = |permit, maximum| Request::of(permit, "n", maximum).default_ttl_ms(DEFAULT_TTL_MS);
    let held = player.acquire(request("a", 2))?.held()?;
    player.must_hold(&held)?;
    // The lease has just been acquired or renewed.
    match stage.server.grant(&held.fence) {
        Some(Held::For(left)) if (millis(DEFAULT_TTL_MS / 2)..=millis(DEFAULT_TTL_MS)).contains(&left) => {}
        other => return Err(format!("a lease must last {DEFAULT_TTL_MS} ms, and the server says {other:?}")),
    }
    stage.wait_for_usage("n", 1, 0)?;
    player.acquire(request("b", 1))?.failed("busy")?;
    player.release(&held)
}

fn slots(stage: &Stage<'_>) -> Result<(), String> {
    stage.server.change("declare", &json!({"name": "seats", "capacity": 2, "slots": true}))?;
    let player = stage.player("first")?;
    let seats = || Request::of("a", "seats", 2).declared();
    let one = player.acquire(seats())?.held()?;
    let two = player.acquire(Request::of("b", "seats", 2).declared())?.held()?;
    let slot = |slots: &serde_json::Value| slots[0][0].as_u64();
    match (slot(&one.slots), slot(&two.slots)) {
        (Some(one), Some(two)) if one != two => {}
        _ => return Err(format!("two holders have the slots {} and {}", one.slots, two.slots)),
    }
    player.acquire(Request::of("c", "n", 1).and("m", 1))?.held()?;
    player.acquire(Request::of("d", "m", 1))?.failed("busy")?;
    player.acquire(Request::of("e", "unknown", 1).declared())?.failed("misuse")
}

/// Tests the command `pairs`, which the benchmark uses.
fn pairs(stage: &Stage<'_>) -> Result<(), String> {
    let driver = stage.player("first")?.driver;
    for (count, is_kept) in [(20, false), (3, true)] {
        let times = Pairs { name: "n", count, is_kept }.measure(&driver)?;
        let kept = if is_kept { count as u64 } else { 0 };
        if times.len() != count || stage.server.usage("n")? != (kept, 0) {
            return Err(format!(
                "{count} pairs have taken {times:?}, and {:?} is in use",
                stage.server.usage("n")?
            ));
        }
    }
    Ok(())
}

fn exit(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    player.acquire(Request::of("a", "n", 1).ttl_ms(SHORT_MS))?.held()?;
    player.network.set(Fault::Freeze);
    player.driver.send(json!({"do": "exit"}))?;
    player.driver.wait_for_end(crate::PATIENCE)?;
    player.network.set(Fault::None);
    stage.wait_until_free("n")
}

fn lost_answers(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    for (number, fault) in [Fault::DropAfter, Fault::DropBefore, Fault::Cut].into_iter().enumerate() {
        let (permit, name) = (format!("p{number}"), format!("n{number}"));
        player.network.set(fault);
        let acquiring = player.begin(Request::of(&permit, &name, 1))?;
        player.network.must_drop()?;
        player.network.set(Fault::None);
        // A client that sends another request instead of repeating the first finds the name busy with its own lease.
        let held = player.finish(acquiring)?.held()?;
        player.must_hold(&held)?;
        stage.wait_for_usage(&name, 1, 0)?;
        player.network.set(fault);
        let releasing = player.driver.send(json!({"do": "release", "permit": permit}))?;
        sleep(millis(300));
        player.network.set(Fault::None);
        player.driver.answer(&releasing, crate::PATIENCE)?;
        stage.wait_until_free(&name)?;
    }
    Ok(())
}

fn duplicates(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    for (number, after_ms) in [0, 5, 50, 200].into_iter().enumerate() {
        player.network.set(Fault::Duplicate { after_ms });
        let permit = player.acquire(Request::of(&format!("p{number}"), "n", 1))?.held()?;
        player.must_hold(&permit)?;
        player.release(&permit)?;
    }
    sleep(millis(300));
    stage.wait_until_free("n")
}

fn late_answers(stage: &Stage<'_>) -> Result<(), String> {
    let (first, second) = (stage.player("first")?, stage.player("second")?);
    for (number, (up_ms, down_ms)) in [(0, 700), (300, 300), (500, 500)].into_iter().enumerate() {
        let name = format!("n{number}");
        first.network.set(Fault::Delay { up_ms, down_ms });
        let permit = first.acquire(Request::of(&name, &name, 1).ttl_ms(4 * SHORT_MS))?.held()?;
        for _ in 0..20 {
            first.check(&permit)?;
            sleep(millis(25));
        }
        first.network.set(Fault::Freeze);
        let next = second.begin(Request::of(&name, &name, 1).ttl_ms(4 * SHORT_MS).wait_ms(15_000))?;
        let deadline = Instant::now() + crate::PATIENCE;
        while first.check(&permit)? {
            if Instant::now() > deadline {
                return Err("the client believes in a lease that was not renewed".to_owned());
            }
            sleep(millis(20));
        }
        let next = second.finish(next)?.held()?;
        second.must_hold(&next)?;
        first.must_have_lost(&permit)?;
        second.release(&next)?;
        first.network.set(Fault::None);
    }
    Ok(())
}

fn stopped(stage: &Stage<'_>) -> Result<(), String> {
    let (first, second) = (stage.player("first")?, stage.player("second")?);
    for round in 0..5 {
        let (one, two) = (format!("a{round}"), format!("b{round}"));
        let permit = first.acquire(Request::of(&one, "n", 1).ttl_ms(SHORT_MS))?.held()?;
        let check = first.begin_stop(&permit)?;
        let next = second.acquire(Request::of(&two, "n", 1).wait_ms(15_000));
        first.driver.signal(Signal::SIGCONT);
        let next = next?.held()?;
        if first.finish_check(&permit, check)? {
            return Err("the client believes in a lease that ended while it was stopped".to_owned());
        }
        first.must_have_lost(&permit)?;
        second.must_hold(&next)?;
        second.release(&next)?;
    }
    Ok(())
}

fn blocked(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    let ttl_ms = RENEWED_MS;
    let permit = player.acquire(Request::of("a", "n", 1).ttl_ms(ttl_ms))?.held()?;
    let check = player.begin_block(&permit, ttl_ms + 600)?;
    if !player.finish_check(&permit, check)? {
        return Err("a lease was not renewed while the program was blocked".to_owned());
    }
    player.network.set(Fault::Freeze);
    let check = player.begin_block(&permit, ttl_ms + 100)?;
    if player.wrongly_believes(&permit, check)? {
        return Err("the client believes in a lease that ended while the program was blocked".to_owned());
    }
    player.await_loss(&permit)
}

fn killed(stage: &Stage<'_>) -> Result<(), String> {
    let (first, second, third) = (stage.player("first")?, stage.player("second")?, stage.player("third")?);
    first.acquire(Request::of("a", "n", 1).ttl_ms(RENEWED_MS))?.held()?;
    second.begin(Request::of("b", "n", 1).ttl_ms(RENEWED_MS).wait_ms(15_000))?;
    stage.wait_for_usage("n", 1, 1)?;
    let waiting = third.begin(Request::of("c", "n", 1).ttl_ms(RENEWED_MS).wait_ms(15_000))?;
    stage.wait_for_usage("n", 1, 2)?;
    first.driver.signal(Signal::SIGKILL);
    second.driver.signal(Signal::SIGKILL);
    let permit = third.finish(waiting)?.held()?;
    third.must_hold(&permit)?;
    third.driver.signal(Signal::SIGKILL);
    stage.wait_until_free("n")
}

fn server_killed(stage: &Stage<'_>) -> Result<(), String> {
    let (first, second) = (stage.player("first")?, stage.player("second")?);
    let permit = first.acquire(Request::of("a", "n", 1))?.held()?;
    let waiting = second.begin(Request::of("b", "n", 1).wait_ms(30_000))?;
    stage.wait_for_usage("n", 1, 1)?;
    stage.server.restart()?;
    first.must_hold(&permit)?;
    stage.wait_for_usage("n", 1, 1)?;
    first.release(&permit)?;
    let next = second.finish(waiting)?.held()?;
    second.release(&next)?;
    stage.wait_until_free("n")
}

fn server_hangs(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    let permit = player.acquire(Request::of("a", "n", 1).ttl_ms(SHORT_MS))?.held()?;
    stage.server.stop()?;
    // The last answer was to a request that was sent before the server stopped, so the lease has ended after this time.
    sleep(millis(SHORT_MS));
    let check = player.begin_check(&permit)?;
    let told = player.await_loss(&permit);
    stage.server.resume();
    if player.wrongly_believes(&permit, check)? {
        return Err("the client believes in a lease that no server can have renewed".to_owned());
    }
    told?;
    let again = player.acquire(Request::of("b", "n", 1).wait_ms(15_000))?.held()?;
    player.release(&again)
}

fn release_without_server(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    let permit = player.acquire(Request::of("a", "n", 1).ttl_ms(RENEWED_MS))?.held()?;
    player.network.set(Fault::Freeze);
    player.release(&permit)?;
    stage.wait_until_free("n")
}

fn revoked(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    for (name, grace_ms) in [("a", 800), ("b", 0)] {
        let permit = player.acquire(Request::of(name, name, 1))?.held()?;
        player.must_hold(&permit)?;
        stage.server.change("revoke", &json!({"grant": permit.fence, "grace_ms": grace_ms}))?;
        if grace_ms > 0 && player.driver.can("push") {
            player.driver.event("revoking", &permit.label, crate::PATIENCE)?;
        }
        // The client must know of the revocation well before the lease would have ended.
        eventually("the client believes in what was revoked", || Ok(!player.believes(&permit)?))?;
        player.await_loss(&permit)?;
        stage.wait_until_free(name)?;
    }
    Ok(())
}

fn canceled(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    let key = stage.server.hold("n", 60_000)?.ok_or("nothing else holds the name")?;
    let waiting = player.begin(Request::of("a", "n", 1).wait_ms(60_000))?;
    stage.wait_for_usage("n", 1, 1)?;
    player.driver.call(json!({"do": "cancel", "permit": "a"}))?;
    player.finish(waiting)?.failed("canceled")?;
    stage.wait_for_usage("n", 1, 0)?;
    stage.server.release(&key)?;
    // The request is granted, but the client does not know it yet.
    player.network.set(Fault::Delay { up_ms: 0, down_ms: 500 });
    let acquiring = player.begin(Request::of("b", "n", 1).wait_ms(60_000))?;
    stage.wait_for_usage("n", 1, 0)?;
    player.driver.call(json!({"do": "cancel", "permit": "b"}))?;
    if let crate::stage::Outcome::Held(permit) = player.finish(acquiring)? {
        player.release(&permit)?;
    }
    player.network.set(Fault::None);
    stage.wait_until_free("n")?;
    // A cancellation after the answer changes nothing.
    let permit = player.acquire(Request::of("c", "m", 1).ttl_ms(RENEWED_MS))?.held()?;
    player.driver.call(json!({"do": "cancel", "permit": "c"}))?;
    sleep(millis(RENEWED_MS + 200));
    player.must_hold(&permit)
}

fn forked(stage: &Stage<'_>) -> Result<(), String> {
    let player = stage.player("first")?;
    let permit = player.acquire(Request::of("a", "n", 1).ttl_ms(RENEWED_MS))?.held()?;
    let (_, answer) = player.driver.call(json!({"do": "fork", "permit": "a"}))?;
    if answer["refused"] != true {
        return Err(format!("a child may use the permit of its parent: {answer}"));
    }
    sleep(millis(RENEWED_MS + 200));
    player.must_hold(&permit)?;
    stage.wait_for_usage("n", 1, 0)
}

fn token(stage: &Stage<'_>) -> Result<(), String> {
    let file = stage.server.token_file();
    let write = |secret: &str| fs::write(&file, secret).map_err(|error| error.to_string());
    let ttl_ms = RENEWED_MS;
    write(&stage.server.token(&["create", "one", "--rights", "read,acquire"])?)?;
    let player = stage.player_at("first", None, Some(&file))?;
    let permit = player.acquire(Request::of("a", "n", 1).ttl_ms(ttl_ms))?.held()?;
    write(&stage.server.token(&["create", "two", "--rights", "read,acquire"])?)?;
    stage.server.token(&["revoke", "one"])?;
    sleep(millis(ttl_ms + 300));
    player.must_hold(&permit)?;
    stage.server.token(&["revoke", "two"])?;
    eventually("the client believes in a lease that it may not renew", || Ok(!player.check(&permit)?))?;
    player.await_loss(&permit)?;
    stage.wait_until_free("n")?;
    player.acquire(Request::of("b", "n", 1))?.failed("not_permitted")?;
    write(&stage.server.token(&["create", "three", "--rights", "read,acquire"])?)?;
    let again = player.acquire(Request::of("c", "n", 1))?.held()?;
    player.release(&again)
}

fn paused(stage: &Stage<'_>) -> Result<(), String> {
    stage.server.change("declare", &json!({"name": "n", "capacity": 1}))?;
    stage.server.change("pause", &json!({"name": "n"}))?;
    let player = stage.player("first")?;
    player.acquire(Request::of("a", "n", 1).declared())?.failed("busy")?;
    let waiting = player.begin(Request::of("b", "n", 1).declared().wait_ms(15_000))?;
    stage.wait_for_usage("n", 0, 1)?;
    stage.server.change("resume", &json!({"name": "n"}))?;
    let permit = player.finish(waiting)?.held()?;
    player.release(&permit)?;
    stage.wait_until_free("n")
}

fn two_addresses(stage: &Stage<'_>) -> Result<(), String> {
    let other = Network::to(&stage.server.addresses()).map_err(|error| error.to_string())?;
    other.set(Fault::HalfOpen);
    let player = stage.player_at("first", Some(&other), None)?;
    // A lease of this length leaves time to ask one server, which takes some seconds, and then the other.
    let ttl_ms = 3 * RENEWED_MS;
    let permit = player.acquire(Request::of("a", "n", 1).ttl_ms(ttl_ms))?.held()?;
    sleep(millis(ttl_ms + 200));
    player.must_hold(&permit)?;
    // Now the first address answers, and the second does not.
    other.set(Fault::None);
    player.network.set(Fault::HalfOpen);
    sleep(millis(ttl_ms + 200));
    player.must_hold(&permit)?;
    player.release(&permit)
}

fn single_flight(stage: &Stage<'_>) -> Result<(), String> {
    let (first, second, third) = (stage.player("first")?, stage.player("second")?, stage.player("third")?);
    let waiting = |permit: &str| Request::of(permit, "n", 1).shared().wait_ms(30_000);
    let worker = first.acquire(Request::of("a", "n", 1).shared())?.held()?;
    second.acquire(Request::of("b", "n", 1).shared())?.failed("busy")?;
    let one = second.begin(waiting("c"))?;
    stage.wait_for_usage("n", 1, 1)?;
    let other = third.begin(waiting("d"))?;
    stage.wait_for_usage("n", 1, 2)?;
    // The answer to one of them is lost.
    third.network.set(Fault::Cut);
    first.release_done(&worker)?;
    second.finish(one)?.done()?;
    third.network.set(Fault::None);
    third.finish(other)?.done()?;
    stage.wait_until_free("n")?;
    // Later requests begin anew. If a worker fails or is killed, the next request gets the work.
    let worker = first.acquire(waiting("e"))?.held()?;
    let next = second.begin(waiting("f").ttl_ms(RENEWED_MS))?;
    stage.wait_for_usage("n", 1, 1)?;
    first.release(&worker)?;
    let worker = second.finish(next)?.held()?;
    second.must_hold(&worker)?;
    let next = third.begin(waiting("g"))?;
    stage.wait_for_usage("n", 1, 1)?;
    second.driver.signal(Signal::SIGKILL);
    let worker = third.finish(next)?.held()?;
    let last = first.begin(waiting("h"))?;
    stage.wait_for_usage("n", 1, 1)?;
    third.release_done(&worker)?;
    first.finish(last)?.done()?;
    stage.wait_until_free("n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::{fs, io};

    use super::{DEFAULT_TTL_MS, SCENARIOS};

    /// The texts between two quotes of this kind.
    fn quoted(text: &str, quote: char) -> impl Iterator<Item = &str> {
        text.split(quote).skip(1).step_by(2)
    }

    /// The texts of the files below a directory with tests.
    fn tests_below(directory: &Path) -> io::Result<String> {
        let mut texts = String::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let is_test = path.to_string_lossy().to_lowercase().contains("test");
            if path.is_dir() && !path.ends_with("node_modules") {
                texts += &tests_below(&path)?;
            } else if is_test {
                texts += &fs::read_to_string(&path).unwrap_or_default();
            }
        }
        Ok(texts)
    }

    /// A row of the tables names in its last cell the scenarios, and perhaps tests of clients, that show what it says.
    #[test]
    fn the_page_about_the_clients_says_what_is_shown() -> io::Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace");
        let page = fs::read_to_string(root.join("docs/clients.md"))?;
        let tests = tests_below(&root.join("clients"))? + &tests_below(&root.join("tests/client"))?;
        let (_, tables) = page.split_once("\n## Behaviour\n").expect("the page has this heading");
        let scenarios: BTreeSet<_> =
            SCENARIOS.iter().map(|scenario| scenario.name).chain(["storm"]).collect();
        let mut named = BTreeSet::new();
        for row in tables.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |")) {
            let shown_by = row.trim_end_matches(" |").rsplit(" | ").next().expect("a row has cells");
            assert!(shown_by.contains(['"', '`']), "nothing shows this: {row}");
            named.extend(quoted(shown_by, '"'));
            let missing: Vec<_> = quoted(shown_by, '`').filter(|test| !tests.contains(test)).collect();
            assert!(missing.is_empty(), "no client has the tests {missing:?}");
        }
        assert_eq!(named, scenarios, "left: what the tables name; right: the scenarios of the suite");
        assert!(page.contains(&format!("| the time to live; default {} s |", DEFAULT_TTL_MS / 1000)));
        Ok(())
    }
}
