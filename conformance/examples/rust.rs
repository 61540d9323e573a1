//! The driver of the Rust client, which speaks the binary protocol (conformance/README.md, "The driver").

use std::collections::HashMap;
use std::env;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use serde_json::{Value, json};
use signalbox_client::{Claim, Client, Error, ErrorKind, Flight, Permit, Status, Tls, TlsFiles, Token};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

/// An acquire, and what it has returned.
struct Acquired {
    acquire: JoinHandle<()>,
    command: Value,
    permit: Arc<Mutex<Option<Held>>>,
}

struct Held {
    permit: Arc<Permit>,
    /// Reports that the permit is revoked or lost.
    watch: JoinHandle<()>,
}

fn say(message: &Value) {
    let mut output = io::stdout().lock();
    writeln!(output, "{message}").and_then(|()| output.flush()).expect("the suite reads");
}

fn failure(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Unreachable { .. } | ErrorKind::ConnectionLost(_) => "unreachable",
        ErrorKind::Lost(_) => "lost",
        _ => match error.status() {
            Some(Status::ResourceNotAvailable | Status::LimitReached) => "busy",
            Some(Status::TimedOut) => "timed_out",
            Some(Status::QueueFull) => "queue_full",
            Some(Status::NotPermitted) => "not_permitted",
            Some(Status::Canceled | Status::Revoked | Status::Removed) => "lost",
            _ => "misuse",
        },
    }
}

fn belief(permit: &Permit) -> Value {
    match permit.time_left() {
        Some(left) => json!({"held": true, "left_ms": u64::try_from(left.as_millis()).unwrap_or(u64::MAX)}),
        None => json!({"held": false}),
    }
}

async fn acquire(client: &Client, command: &Value) -> Result<Flight, Error> {
    let number = |value: &Value| value.as_u64().map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let claims = command["claims"].as_array().into_iter().flatten().map(|claim| {
        let wanted = Claim::limit(claim["name"].as_str().unwrap_or_default());
        let wanted = wanted.resources(number(&claim["resources"]).unwrap_or(1));
        number(&claim["maximum"]).into_iter().fold(wanted, Claim::maximum)
    });
    let millis = |field: &str| Duration::from_millis(command[field].as_u64().unwrap_or(0));
    let (ttl, wait) = (millis("ttl_ms"), millis("wait_ms"));
    if command["share"] == true {
        let request = client.limit(command["claims"][0]["name"].as_str().unwrap_or_default()).ttl(ttl);
        return match wait {
            Duration::ZERO => request.try_shared().await,
            wait => request.timeout(wait).shared().await,
        };
    }
    let request = client.acquire_all(claims).ttl(ttl);
    let permit = match wait {
        Duration::ZERO => request.try_acquire().await,
        wait => request.timeout(wait).acquire().await,
    };
    permit.map(Flight::Held)
}

async fn watch(permit: Arc<Permit>, label: Value) {
    tokio::select! {
        biased;
        () = permit.revocation() => {
            let left = permit.time_left().unwrap_or_default().as_millis();
            say(&json!({"event": "revoking", "permit": label, "grace_ms": u64::try_from(left).unwrap_or(0)}));
        }
        _ = permit.lost() => {}
    }
    say(&json!({"event": "lost", "permit": label, "reason": permit.lost().await.to_string()}));
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let servers = env::var("SIGNALBOX_SERVER")?;
    let mut addresses = servers.split(',').map(str::parse);
    let mut builder = Client::builder(addresses.next().ok_or("SIGNALBOX_SERVER is empty")??);
    for address in addresses {
        builder = builder.address(address?);
    }
    if let Ok(file) = env::var("SIGNALBOX_TOKEN_FILE") {
        builder = builder.token(Token::from_file(&file)?);
    }
    if let Ok(file) = env::var("SIGNALBOX_CA") {
        builder = builder.transport(Tls::load(&TlsFiles { ca: Some(file.into()), identity: None })?);
    }
    let client = builder.build()?;
    let (sender, mut commands) = mpsc::unbounded_channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    say(
        &json!({"driver": "rust", "capabilities": ["cancel", "pairs", "push", "renew", "share", "tls", "token"]}),
    );
    let mut all: HashMap<String, Acquired> = HashMap::new();
    let mut kept = Vec::new();
    while let Some(line) = commands.recv().await {
        let command: Value = serde_json::from_str(&line)?;
        let label = command["permit"].as_str().unwrap_or_default();
        match command["do"].as_str().unwrap_or_default() {
            "exit" => break,
            "acquire" => {
                let permit = Arc::new(Mutex::new(None));
                let task = {
                    let (client, command, place) = (client.clone(), command.clone(), Arc::clone(&permit));
                    async move {
                        let mut answer = match acquire(&client, &command).await {
                            Ok(Flight::Done) => json!({"done": true}),
                            Ok(Flight::Held(permit)) => {
                                let permit = Arc::new(permit);
                                let mut answer = belief(&permit);
                                answer["fence"] = json!(permit.id().0.to_string());
                                let slots = (0..permit.claims().len()).map(|claim| permit.slots_of(claim));
                                answer["slots"] = json!(slots.collect::<Vec<_>>());
                                let watch =
                                    tokio::spawn(watch(Arc::clone(&permit), command["permit"].clone()));
                                *place.lock().await = Some(Held { permit, watch });
                                answer
                            }
                            Err(error) => json!({"failure": failure(&error)}),
                        };
                        answer["id"] = command["id"].clone();
                        say(&answer);
                    }
                };
                all.insert(label.to_owned(), Acquired { acquire: tokio::spawn(task), command, permit });
                continue;
            }
            "check" => {
                thread::sleep(Duration::from_millis(command["block_ms"].as_u64().unwrap_or(0)));
                if command["stop"] == true {
                    raise(Signal::SIGSTOP)?;
                }
                let held = all[label].permit.lock().await;
                let mut answer = held.as_ref().map_or(json!({"held": false}), |held| belief(&held.permit));
                answer["id"] = command["id"].clone();
                say(&answer);
                continue;
            }
            "pairs" => {
                let mut times_us = Vec::new();
                for _ in 0..command["count"].as_u64().unwrap_or(0) {
                    let began = Instant::now();
                    match acquire(&client, &command).await? {
                        Flight::Held(permit) if command["keep"] == true => kept.push(permit),
                        Flight::Held(permit) => permit.release().await?,
                        Flight::Done => {}
                    }
                    times_us.push(u64::try_from(began.elapsed().as_micros())?);
                }
                say(&json!({"id": command["id"], "times_us": times_us}));
                continue;
            }
            "cancel" => {
                let Acquired { acquire, command, .. } = all.get_mut(label).ok_or("no such permit")?;
                acquire.abort();
                if acquire.await.is_err() {
                    say(&json!({"id": command["id"], "failure": "canceled"}));
                }
            }
            "release" => {
                if let Some(Held { permit, watch }) = all[label].permit.lock().await.take() {
                    watch.abort();
                    let _ = watch.await;
                    if let Some(permit) = Arc::into_inner(permit) {
                        let _ = if command["done"] == true {
                            permit.release_done().await
                        } else {
                            permit.release().await
                        };
                    }
                }
            }
            other => return Err(format!("there is no command {other}").into()),
        }
        say(&json!({"id": command["id"]}));
    }
    // As a program that returns from its main function with permits.
    std::process::exit(0)
}
