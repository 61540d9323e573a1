//! Frames: how long parsing requests and composing answers takes, by themselves.

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use signalbox_protocol::{Opaque, Request, RequestCodec, Response, ResponseCodec};

const NAME: &[u8] = b"bench-0000000042";

/// Frames that are read at once: one, and as many as a busy connection has in flight.
const RUNS: [u32; 3] = [1, 16, 64];

fn requests(frames: u32) -> BytesMut {
    let mut bytes = Vec::new();
    for frame in 0..frames {
        let opaque = Opaque(frame.to_be_bytes());
        Request::Acquire { name: NAME, resources: 1, maximum: 10 }.compose(opaque, &mut bytes);
    }
    BytesMut::from(&bytes[..])
}

fn responses(frames: u32) -> BytesMut {
    let mut bytes = Vec::new();
    for frame in 0..frames {
        Response::Resources(1).compose(2, Opaque(frame.to_be_bytes()), &mut bytes);
    }
    BytesMut::from(&bytes[..])
}

fn decode_requests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec/decode and parse acquires");
    for frames in RUNS {
        group.throughput(Throughput::Elements(frames.into()));
        group.bench_function(frames.to_string(), |bencher| {
            let bytes = requests(frames);
            // Each iteration has a buffer of its own, which is filled outside the measured time.
            bencher.iter_batched_ref(
                || bytes.clone(),
                |buffer| {
                    let frames = RequestCodec::default().decode(buffer).expect("the frames are valid");
                    let mut frames = frames.expect("the frames are complete");
                    while let Some(frame) = frames.next() {
                        black_box(frame.parse().expect("the request is valid"));
                    }
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn compose_responses(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec/compose answers to acquires");
    for frames in RUNS {
        group.throughput(Throughput::Elements(frames.into()));
        group.bench_function(frames.to_string(), |bencher| {
            let mut out = Vec::with_capacity(16 * 1024);
            bencher.iter(|| {
                out.clear();
                for frame in 0..frames {
                    black_box(Response::Resources(1)).compose(2, Opaque(frame.to_be_bytes()), &mut out);
                }
                black_box(&out);
            });
        });
    }
    group.finish();
}

fn decode_responses(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec/decode answers as a client");
    for frames in RUNS {
        group.throughput(Throughput::Elements(frames.into()));
        group.bench_function(frames.to_string(), |bencher| {
            let bytes = responses(frames);
            bencher.iter_batched_ref(
                || bytes.clone(),
                |buffer| {
                    while let Some(frame) = ResponseCodec.decode(buffer).expect("the frames are valid") {
                        black_box(frame.resources().expect("the answer has an amount"));
                    }
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(codec, decode_requests, compose_responses, decode_responses);
criterion_main!(codec);
