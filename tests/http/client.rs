//! A daemon with HTTP, and a client that sends bytes and reads answers.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::support::daemon::{ANY_PORTS, ConfigFile, Daemon, SIGNALBOX, outcome, serve, serve_file};
use crate::support::{PATIENCE, connect_from};

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a header, whose name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The code of an error.
    #[track_caller]
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_owned()
    }
}

/// A daemon that listens for HTTP.
pub struct HttpDaemon {
    pub daemon: Daemon,
    pub address: SocketAddr,
}

impl HttpDaemon {
    pub fn start() -> Self {
        Self::of(Daemon::spawn(serve(ANY_PORTS.into_iter().chain(["--http-port", "0"]))))
    }

    /// Starts a daemon with further lines of a configuration file, which begin with the section `[http]`.
    pub fn with(lines: &str) -> (Self, ConfigFile) {
        Self::configured("", lines)
    }

    /// Like [`Self::with`], with further lines before the first section too.
    pub fn configured(first_lines: &str, http_lines: &str) -> (Self, ConfigFile) {
        let file = ConfigFile::toml(&format!("{first_lines}\n[http]\n{http_lines}"));
        let mut command = serve_file(&file.path());
        command.args(ANY_PORTS).args(["--http-port", "0"]);
        (Self::of(Daemon::spawn(command)), file)
    }

    fn of(mut daemon: Daemon) -> Self {
        let address = daemon.address("http");
        Self { daemon, address }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A connection of the client with this address of the machine, such as 127.0.0.2.
    pub fn connect_from(&self, source: &str) -> TcpStream {
        let stream = connect_from(source, self.address);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes on a connection of their own, and reads the answer.
    #[track_caller]
    pub fn send(&self, request: &[u8]) -> Reply {
        ask(self.connect(), request)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &[("Host", &self.address.to_string())], "")
    }

    #[track_caller]
    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let host = self.address.to_string();
        let own = [("Host", &*host), ("Content-Type", "application/json")];
        self.request("POST", path, &[&own[..], headers].concat(), body)
    }

    #[track_caller]
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length =
            if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        self.send(format!("{method} {path} HTTP/1.1\r\n{headers}{length}\r\n{body}").as_bytes())
    }

    /// Runs the command line against the daemon.
    #[track_caller]
    pub fn command(&mut self, arguments: &[&str]) -> String {
        let mut command = std::process::Command::new(SIGNALBOX);
        command.args(arguments).env("SIGNALBOX_SERVER", self.daemon.address("counter").to_string());
        let output = outcome(command);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Sends these bytes, and reads the answer.
#[track_caller]
pub fn ask(mut stream: TcpStream, request: &[u8]) -> Reply {
    stream.write_all(request).unwrap();
    read_reply(&mut stream)
}

/// Reads one answer, by its length.
#[track_caller]
pub fn read_reply(stream: &mut impl Read) -> Reply {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let mut some = [0; 4096];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&some[..read]);
    };
    let mut body = bytes.split_off(head_end);
    let head = String::from_utf8(bytes).unwrap();
    let mut reply = Reply { status: head[9..12].parse().unwrap(), head, body: Vec::new() };
    let length = reply.header("content-length").map_or(0, |length| length.parse().unwrap());
    let have = body.len();
    body.resize(length, 0);
    if have < length {
        stream.read_exact(&mut body[have..]).unwrap();
    }
    reply.body = body;
    reply
}
