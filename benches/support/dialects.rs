//! The same load in the protocols of others. Each acquire takes one of many, and each release gives it back.

use bytes::{Buf, BytesMut};
use signalbox_bench::{Answer, Dialect, LoadError, Sequence, Yrmcds};
use signalbox_model::Status;
use signalbox_protocol::Request;

/// One of the protocols that are compared.
#[derive(Clone, Debug)]
pub enum AnyDialect {
    Yrmcds(Yrmcds),
    RedisCounter,
    RedisScript(Scripts),
    PoolCounter,
}

/// The hashes by which Redis knows the scripts.
#[derive(Clone, Debug)]
pub struct Scripts {
    pub acquire: String,
    pub release: String,
}

/// A semaphore as it is usually written in Redis' Lua: it takes one if one is free. Returns 1, or 0 if it refuses.
pub const ACQUIRE_SCRIPT: &str = "local held = tonumber(redis.call('GET', KEYS[1]) or '0') \
    if held >= tonumber(ARGV[1]) then return 0 end redis.call('INCR', KEYS[1]) return 1";

/// Its release.
pub const RELEASE_SCRIPT: &str = "local held = tonumber(redis.call('GET', KEYS[1]) or '0') \
    if held <= 0 then return 0 end redis.call('DECR', KEYS[1]) return 1";

impl Dialect for AnyDialect {
    fn compose(&self, sequence: Sequence, request: Request<'_>, out: &mut Vec<u8>) {
        match (self, request) {
            (Self::Yrmcds(dialect), request) => dialect.compose(sequence, request, out),
            (Self::RedisCounter, Request::Acquire { name, .. }) => resp(&[b"INCR", name], out),
            (Self::RedisCounter, Request::Release { name, .. }) => resp(&[b"DECR", name], out),
            (Self::RedisScript(scripts), Request::Acquire { name, maximum, .. }) => {
                let maximum = maximum.to_string();
                resp(&[b"EVALSHA", scripts.acquire.as_bytes(), b"1", name, maximum.as_bytes()], out);
            }
            (Self::RedisScript(scripts), Request::Release { name, .. }) => {
                resp(&[b"EVALSHA", scripts.release.as_bytes(), b"1", name], out);
            }
            (Self::PoolCounter, Request::Acquire { name, .. }) => {
                // So many workers that no client waits.
                line(&[b"ACQ4ME ", name, b" 100000 100000 10\n"], out);
            }
            (Self::PoolCounter, Request::Release { name, .. }) => line(&[b"RELEASE ", name, b"\n"], out),
            (_, _) => unreachable!("only pairs are compared"),
        }
    }

    fn parse(&self, received: &mut BytesMut) -> Result<Option<Answer>, LoadError> {
        if let Self::Yrmcds(dialect) = self {
            return dialect.parse(received);
        }
        let Some(end) = received.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = received[..end].trim_ascii_end();
        let status = match (self, line) {
            (Self::RedisScript(_), b":0") => Status::ResourceNotAvailable,
            (Self::RedisCounter | Self::RedisScript(_), [b':', ..]) => Status::NoError,
            (Self::PoolCounter, b"LOCKED" | b"RELEASED") => Status::NoError,
            (Self::PoolCounter, b"QUEUE_FULL" | b"TIMEOUT") => Status::ResourceNotAvailable,
            (Self::PoolCounter, b"NOT_LOCKED") => Status::NotAcquired,
            _ => return Err(LoadError::NotUnderstood { found: line.escape_ascii().to_string() }),
        };
        received.advance(end + 1);
        Ok(Some(Answer { sequence: None, status: status.code() }))
    }
}

/// A command of Redis: an array of strings.
pub fn resp(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        line(&[word, b"\r\n"], out);
    }
}

fn line(pieces: &[&[u8]], out: &mut Vec<u8>) {
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
}
