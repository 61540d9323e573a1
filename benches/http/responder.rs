//! The floor of leases over HTTP: a bare responder of hyper that parses the JSON of the requests and writes that of the
//! answers. It keeps no leases.

use std::convert::Infallible;
use std::process::exit;
use std::{io, thread};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// The argument that makes a benchmark's own binary this server.
pub const ARGUMENT: &str = "--be-the-responder";

/// Runs the responder if the argument is `--be-the-responder`. It prints its address on standard output and ends when its
/// standard input ends.
pub fn become_if_asked() {
    if std::env::args().nth(1).as_deref() == Some(ARGUMENT) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let local = tokio::task::LocalSet::new();
        let served = runtime.and_then(|runtime| local.block_on(&runtime, serve()));
        served.unwrap_or_else(|error| panic!("the responder: {error}"));
    }
}

async fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        exit(0);
    });
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::task::spawn_local(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            // The benchmark closes its connections.
            let _ = connection.await;
        });
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only parsing them counts")]
enum Body {
    Acquire { key: String, claims: Vec<Claim>, ttl_ms: u32 },
    Release { key: String },
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only parsing them counts")]
struct Claim {
    name: String,
    maximum: u32,
}

#[derive(Serialize)]
struct Held {
    state: &'static str,
    grant: String,
    valid_ms: u32,
    ttl_ms: u32,
    slots: [u16; 0],
}

#[derive(Serialize)]
struct Released {}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.expect("the benchmark sends whole bodies").to_bytes();
    let json = match serde_json::from_slice(&body).expect("the benchmark sends such bodies") {
        Body::Acquire { ttl_ms, .. } => serde_json::to_vec(&Held {
            state: "held",
            grant: 1_000_000.to_string(),
            valid_ms: ttl_ms - ttl_ms / 25,
            ttl_ms,
            slots: [],
        }),
        Body::Release { .. } => serde_json::to_vec(&Released {}),
    };
    let json = json.expect("these can be written");
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Full::new(json.into())).expect("the header is right"))
}
