//! A server that answers with more than the program has room for.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;

use bytes::BytesMut;
use signalbox_model::sysv::{OpenedProcess, ProcessId, SetAnswer, SetCommand, SetId};
use signalbox_model::{Milliseconds, SessionKey};
use signalbox_protocol::{RequestCodec, SysvOpcode, SysvRequest, compose_call, compose_opened_process};

use crate::stepper::{STEPPER, Stepper, preloaded};

/// The number of semaphores that the server gives to every set, and of values that it returns.
#[derive(Clone, Copy)]
struct Lies {
    semaphores: u32,
    values: usize,
}

fn serve(lies: Lies) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream, lies));
        }
    });
    address
}

fn answer(mut stream: TcpStream, lies: Lies) {
    let (mut codec, mut received, mut bytes) = (RequestCodec::new(false), BytesMut::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        received.extend_from_slice(&bytes[..count]);
        let mut out = Vec::new();
        while let Some(mut frames) = codec.decode(&mut received).unwrap() {
            while let Some(frame) = frames.next() {
                let (answer, opcode) = match frame.parse_sysv().unwrap() {
                    SysvRequest::OpenProcess { .. } => {
                        let key = SessionKey([1; 16]);
                        let opened = OpenedProcess { process: ProcessId(1), key, ttl: Milliseconds(60_000) };
                        compose_opened_process(&opened, frame.opaque(), &mut out);
                        continue;
                    }
                    SysvRequest::SemGet { .. } => {
                        (SetAnswer::Set(SetId::FIRST, lies.semaphores), SysvOpcode::SemGet)
                    }
                    SysvRequest::SemCtl { command: SetCommand::GetAll, .. } => {
                        (SetAnswer::Values(vec![7; lies.values].into()), SysvOpcode::SemCtl)
                    }
                    other => panic!("{other:?}"),
                };
                compose_call(&Ok(answer), opcode, frame.opaque(), &mut out);
            }
        }
        stream.write_all(&out).unwrap();
    }
}

fn program(lies: Lies) -> Stepper {
    let mut command = preloaded(STEPPER, serve(lies));
    Stepper::spawn(command.env("SIGNALBOX_SYSV_KEYS", "all,0").stderr(Stdio::piped()))
}

#[test]
fn values_that_are_not_those_of_the_set_are_not_written_to_the_program() {
    for values in [2, 4, 32_767] {
        let mut a = program(Lies { semaphores: 3, values });
        let set = a.ask("get 7 3 IPC_CREAT|0o600");
        let set = set.strip_prefix("= ").unwrap();
        assert_eq!(a.ask(format!("ctl {set} 0 GETALL")), "! EIDRM", "{values}");
        let said = a.end();
        assert!(said.contains(&format!("answered: {values} values of set {set}, which has 3")), "{said}");
    }
}

#[test]
fn a_set_has_as_many_semaphores_as_the_program_asked_for() {
    for (semaphores, request, expected) in [
        (2, "get 7 3 IPC_CREAT|0o600", "! ENOMEM"),
        (32_000, "get 7 3 IPC_CREAT|IPC_EXCL|0o600", "! ENOMEM"),
        (32_000, "get 0 3 0o600", "! ENOMEM"),
        (5, "get 7 3 0", "= 1073741824"),
    ] {
        let mut a = program(Lies { semaphores, values: 0 });
        assert!(a.ask(request).starts_with(expected), "{request}: {semaphores}");
    }
}
