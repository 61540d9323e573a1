//! The leader's part of forwarded requests: each is answered like a request of the leader's own clients, and counts
//! against the shares of the client that it states.
//!
//! The node that forwards a request has checked its host, origin and content type, and has proven that it is a node.

use std::convert::Infallible;
use std::net::TcpStream as StdTcpStream;
use std::sync::Arc;

use bytes::BytesMut;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::super::client_address::ClientAddress;
use super::super::tls::{Handshake, HandshakeError};
use super::answer::{ApiError, Response};
use super::connections::{Bounded, CONNECTIONS_MAX, Connections, HEAD_BYTES_MAX, OpenConnection, Outcome};
use super::forward::Stated;
use super::routes::answer_in_time;

/// Serves the connection of a node until the connection ends or this server is being stopped.
pub(super) async fn serve(
    connections: Arc<Connections>,
    stream: StdTcpStream,
    node: ClientAddress,
) -> Outcome {
    let stream = TcpStream::from_std(stream)?;
    tokio::select! {
        // First, so that the node gets no answer from a server that is being stopped, and asks the next leader instead.
        biased;
        () = connections.shared.stopping.cancelled() => Ok(()),
        outcome = begin(&connections, stream, node) => outcome,
    }
}

async fn begin(connections: &Arc<Connections>, stream: TcpStream, node: ClientAddress) -> Outcome {
    if !node.is_encrypted_by_relay() {
        return serve_requests(connections, stream, node).await;
    }
    let shared = &connections.shared;
    let tls = shared.rules.tls.get().ok_or(HandshakeError::NotConfigured)?;
    let server = shared.stage().server();
    let (settings, usage) = (tls.handshake_settings_for(node), Arc::default());
    let unfinished = server.as_ref().map(|server| &server.unfinished);
    let handshake = Handshake { settings, client: node, usage, unfinished };
    let (stream, _) = handshake.run(stream, BytesMut::new()).await?;
    serve_requests(connections, stream, node).await
}

async fn serve_requests<S>(connections: &Arc<Connections>, stream: S, node: ClientAddress) -> Outcome
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service_connections = Arc::clone(connections);
    let service = service_fn(move |request| {
        let connections = Arc::clone(&service_connections);
        async move { Ok::<_, Infallible>(answer(&connections, node, request).await) }
    });
    // As many requests as a node with the same configuration can have. Further ones wait at the node.
    let shared = &connections.shared;
    let requests_max = shared.config().http.lease_connections_max as usize + CONNECTIONS_MAX;
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(u32::try_from(requests_max).unwrap_or(u32::MAX))
        // Many clients of a node may give up at once.
        .max_pending_accept_reset_streams(requests_max)
        // The head that a client has sent, and what the node states.
        .max_header_list_size(2 * HEAD_BYTES_MAX as u32);
    http.serve_connection(TokioIo::new(Bounded::new(stream, Arc::clone(shared), None)), service).await?;
    Ok(())
}

async fn answer(connections: &Arc<Connections>, node: ClientAddress, request: Request<Incoming>) -> Response {
    connections.shared.requests.add(1);
    let Some(stated) = Stated::read(request.headers()) else {
        return ApiError::bad_request("a forwarded request must state its client").into();
    };
    let peer = stated.peer(node);
    let (connection, closed) = OpenConnection::of_request(connections, peer.client.address);
    let connection = Arc::new(connection);
    tokio::select! {
        response = answer_in_time(&connection, &peer, Box::new(request)) => response,
        _ = closed => ApiError::busy().into(),
    }
}
