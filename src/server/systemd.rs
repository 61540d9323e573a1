//! What systemd hands to a service and wants to hear from it. Without systemd, nothing here does anything.

use std::io;
use std::net::TcpListener;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tracing::debug;

/// Sockets that were bound before the process started (`etc/signalbox.socket`).
pub(super) fn inherited_listeners() -> io::Result<Vec<TcpListener>> {
    let mut inherited = ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..inherited.len() {
        if let Some(listener) = inherited.take_tcp_listener(index)? {
            listener.set_nonblocking(true)?;
            listeners.push(listener);
        }
    }
    Ok(listeners)
}

/// Tells that the sockets are bound.
pub(super) fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

/// Tells that the process is about to end.
pub(super) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!(%error, "systemd could not be told");
    }
}
