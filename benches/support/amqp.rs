//! The part of AMQP 0-9-1 that a persistent semaphore of RabbitMQ queues needs: connecting, and declaring, finding and
//! deleting queues, one request at a time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

const METHOD: u8 = 1;
const FRAME_END: u8 = 0xce;

/// Class and number of each method that is sent.
const START_OK: (u16, u16) = (10, 11);
const TUNE_OK: (u16, u16) = (10, 31);
const CONNECTION_OPEN: (u16, u16) = (10, 40);
const CHANNEL_OPEN: (u16, u16) = (20, 10);
const QUEUE_DECLARE: (u16, u16) = (50, 10);
const QUEUE_DELETE: (u16, u16) = (50, 40);

/// Flags of Declare.
const PASSIVE: u8 = 1 << 0;
const DURABLE: u8 = 1 << 1;
const EXCLUSIVE: u8 = 1 << 2;

/// A connection with one channel.
pub struct Amqp(TcpStream);

impl Amqp {
    /// Connects as RabbitMQ's guest.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.write_all(b"AMQP\x00\x00\x09\x01")?;
        let mut connection = Self(stream);
        connection.answer()?;
        let mut start = vec![0, 0, 0, 0];
        short_text(b"PLAIN", &mut start);
        let credentials = b"\0guest\0guest";
        start.extend((credentials.len() as u32).to_be_bytes());
        start.extend(credentials);
        short_text(b"en_US", &mut start);
        connection.send(0, START_OK, &start)?;
        let tune = connection.answer()?;
        // The values that the server proposes, but without heartbeats.
        let mut tune = tune[4..10].to_vec();
        tune.extend([0, 0]);
        connection.send(0, TUNE_OK, &tune)?;
        connection.ask(0, CONNECTION_OPEN, b"\x01/\x00\x00")?;
        connection.ask(1, CHANNEL_OPEN, &[0])?;
        Ok(connection)
    }

    /// Makes a durable queue.
    pub fn make(&mut self, queue: &str) -> io::Result<()> {
        self.declare(queue, DURABLE)
    }

    /// Fails unless the queue exists.
    pub fn find(&mut self, queue: &str) -> io::Result<()> {
        self.declare(queue, PASSIVE)
    }

    /// Makes a queue that no other connection can make, and that ends with this connection.
    pub fn make_own(&mut self, queue: &str) -> io::Result<()> {
        self.declare(queue, EXCLUSIVE)
    }

    pub fn delete(&mut self, queue: &str) -> io::Result<()> {
        let mut arguments = vec![0, 0];
        short_text(queue.as_bytes(), &mut arguments);
        arguments.push(0);
        self.ask(1, QUEUE_DELETE, &arguments)
    }

    fn declare(&mut self, queue: &str, flags: u8) -> io::Result<()> {
        let mut arguments = vec![0, 0];
        short_text(queue.as_bytes(), &mut arguments);
        arguments.push(flags);
        arguments.extend([0; 4]);
        self.ask(1, QUEUE_DECLARE, &arguments)
    }

    /// Sends a method, whose answer has to be the next number of its class.
    fn ask(&mut self, channel: u16, method: (u16, u16), arguments: &[u8]) -> io::Result<()> {
        self.send(channel, method, arguments)?;
        let answer = self.answer()?;
        let class = u16::from_be_bytes([answer[0], answer[1]]);
        let number = u16::from_be_bytes([answer[2], answer[3]]);
        if (class, number) == (method.0, method.1 + 1) {
            return Ok(());
        }
        Err(io::Error::other(format!("{method:?} is answered {class} {number}: {}", answer.escape_ascii())))
    }

    fn send(&mut self, channel: u16, (class, number): (u16, u16), arguments: &[u8]) -> io::Result<()> {
        let mut frame = vec![METHOD];
        frame.extend(channel.to_be_bytes());
        frame.extend((arguments.len() as u32 + 4).to_be_bytes());
        frame.extend(class.to_be_bytes());
        frame.extend(number.to_be_bytes());
        frame.extend(arguments);
        frame.push(FRAME_END);
        self.0.write_all(&frame)
    }

    /// The next method, from its class on.
    fn answer(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let mut head = [0; 7];
            self.0.read_exact(&mut head)?;
            let [kind, _, _, length @ ..] = head;
            let mut body = vec![0; u32::from_be_bytes(length) as usize + 1];
            self.0.read_exact(&mut body)?;
            if kind == METHOD {
                body.pop();
                return Ok(body);
            }
        }
    }
}

fn short_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(u8::try_from(text.len()).expect("names are short"));
    out.extend(text);
}
