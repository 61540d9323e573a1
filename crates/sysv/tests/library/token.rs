//! A token that is replaced while calls are made.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use signalbox_model::Status;

use crate::stepper::{STEPPER, Stepper, preloaded};
use crate::support::TestServer;

const HELLO: u8 = 0x20;
const SEM_OP: u8 = 0x64;

/// The outcome of a request.
enum Fate {
    /// The server answers it.
    Answered,
    /// The proxy answers it with this status; the server does not get it.
    Gets(Status),
    /// The server performs it, and the connection ends before the response.
    Unanswered,
    /// The connection ends before the server gets it.
    Lost,
}

/// A proxy of the server that decides by the opcode on the outcome of each request. Returns its address.
fn proxy(server: SocketAddr, mut decide: impl FnMut(u8) -> Fate + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        // The program has one connection at a time. Those to the server stay: a regular end would end the process.
        let mut connections = Vec::new();
        for mut near in listener.incoming().map_while(Result::ok) {
            connections.push(TcpStream::connect(server).unwrap());
            let far = connections.last_mut().unwrap();
            while let Some(request) = frame(&mut near) {
                let response = match decide(request[1]) {
                    Fate::Answered => ask(far, &request),
                    Fate::Gets(status) => {
                        [&[0x91, request[1], status.code(), 0, 0, 0, 0, 0], &request[8..12]].concat()
                    }
                    Fate::Unanswered => {
                        ask(far, &request);
                        break;
                    }
                    Fate::Lost => break,
                };
                near.write_all(&response).unwrap();
            }
        }
    });
    address
}

fn ask(server: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    server.write_all(request).unwrap();
    frame(server).unwrap()
}

/// A request or a response; `None`: the connection has ended.
fn frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 12];
    stream.read_exact(&mut frame).ok()?;
    let body = u32::from_be_bytes(frame[4..8].try_into().unwrap());
    frame.resize(12 + body as usize, 0);
    stream.read_exact(&mut frame[12..]).ok()?;
    Some(frame)
}

#[test]
fn a_connection_that_ends_while_another_token_is_shown_has_no_call_made_twice() {
    let server = TestServer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "one").unwrap();
    let (mut calls, mut is_refused, replaced) = (0, false, file.clone());
    let proxy = proxy(server.address, move |opcode| match opcode {
        HELLO if is_refused => {
            is_refused = false;
            Fate::Lost
        }
        HELLO => Fate::Gets(Status::NoError),
        SEM_OP => {
            calls += 1;
            is_refused = calls == 2;
            match calls {
                1 => Fate::Unanswered,
                2 => {
                    fs::write(&replaced, "another").unwrap();
                    Fate::Gets(Status::NotPermitted)
                }
                _ => Fate::Answered,
            }
        }
        _ => Fate::Answered,
    });
    let mut command = preloaded(STEPPER, proxy);
    let mut a = Stepper::spawn(command.env("SIGNALBOX_TOKEN_FILE", &file));
    let set = a.set(7, "0");
    assert_eq!(a.ask(format!("op {set} - 0,1,0")), "= 0");
    assert_eq!(a.values(&set), "= 1");
}
