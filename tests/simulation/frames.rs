//! Frames of the protocol in a stream of bytes, without the product's own codec.

const HEADER_BYTES: usize = 12;

pub struct Frame {
    pub opcode: u8,
    pub status: u8,
    pub body: Vec<u8>,
}

/// Splits a stream into frames.
#[derive(Default)]
pub struct Frames(Vec<u8>);

impl Frames {
    /// The frames that these bytes complete.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.0.extend_from_slice(bytes);
        let (mut frames, mut from) = (Vec::new(), 0);
        while let Some(header) = self.0.get(from..from + HEADER_BYTES) {
            let body_bytes = u32::from_be_bytes(header[4..8].try_into().expect("four bytes")) as usize;
            let (opcode, status) = (header[1], header[2]);
            let body_from = from + HEADER_BYTES;
            let Some(body) = self.0.get(body_from..body_from + body_bytes) else { break };
            frames.push(Frame { opcode, status, body: body.to_vec() });
            from = body_from + body_bytes;
        }
        self.0.drain(..from);
        frames
    }
}
