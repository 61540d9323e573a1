//! The interface to systemd: passed sockets and notifications. Without systemd, these functions do nothing.

use std::io;
use std::net::TcpListener;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tracing::debug;

/// The sockets that systemd bound before the process started (`etc/signalbox.socket`).
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

/// Notifies systemd that the server is ready.
pub(super) fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

/// Notifies systemd that the server is stopping.
pub(super) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!(%error, "systemd could not be notified");
    }
}
