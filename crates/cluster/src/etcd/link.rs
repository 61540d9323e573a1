//! The connection to one member.
//!
//! It has a runtime of its own, so that nothing of it is left when it is dropped: not the task that writes to a member
//! that reads nothing, nor the request of a call that was given up. The runtime runs during calls only, so etcd gets no
//! keepalive pings; a connection that fails during a call is replaced at the next.

use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::failure::Failure;

/// A connection to one member; it is established by the first call.
pub(super) struct Link {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    grpc: Grpc<Channel>,
}

/// Until when a call may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    until: Instant,
    time: Duration,
}

impl Limit {
    pub(super) fn from_now(time: Duration) -> Self {
        Self { until: Instant::now() + time, time }
    }
}

impl Link {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
        let channel = {
            let _within = runtime.enter();
            endpoint.connect_lazy()
        };
        // A range may have any number of keys, and a transaction any size that etcd accepts.
        let grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Self { runtime: Some(runtime), grpc })
    }

    /// Makes a call, once.
    pub(super) fn call<Q, A>(
        &mut self,
        path: &'static str,
        message: Q,
        token: Option<&AsciiMetadataValue>,
        limit: Limit,
    ) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let path = Uri::from_static(path).into_parts().path_and_query.expect("paths of calls are paths");
        let mut request = Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        let grpc = &mut self.grpc;
        let answer = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            grpc.unary(request, path, ProstCodec::<Q, A>::default()).await
        };
        let runtime = self.runtime.as_ref().expect("it has a runtime until it is dropped");
        let until = tokio::time::Instant::from_std(limit.until);
        match runtime.block_on(async { tokio::time::timeout_at(until, answer).await }) {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Failure::Status(Box::new(status))),
            Err(_) => Err(Failure::TimedOut(limit.time)),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait for a thread that resolves a host name.
            runtime.shutdown_background();
        }
    }
}
