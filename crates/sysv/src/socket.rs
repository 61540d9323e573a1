//! The descriptor of a connection.
//!
//! The program does not know that it has this descriptor, and may close it or put a file of its own in its place. So it
//! has a high number, which few programs touch, and every use first compares the device and inode with those of the
//! socket that was opened. A program that replaces the descriptor in another thread between the comparison and the use
//! is not detected.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{SockRef, TcpKeepalive};

/// The lowest descriptor that a socket gets is 3/4 of this number, or of the process's limit if that is lower. Higher
/// descriptors would make the kernel's table of descriptors larger.
const DESCRIPTORS_MAX: u64 = 4096;

/// The time for which a call waits for a response with signals blocked (`signals.rs`), before it unblocks them and polls.
/// Most responses arrive within this time.
const PROMPT: Duration = Duration::from_millis(1);

/// The size of a read in bytes.
const READ_BYTES: usize = 4096;

#[derive(Debug)]
pub struct Socket(Identity);

/// A descriptor, and the device and inode of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub descriptor: c_int,
    pub device: u64,
    pub inode: u64,
}

impl Identity {
    fn of(descriptor: c_int) -> Option<Self> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // The system call itself, because the C library's function looks up an empty path, which takes twice as long.
        // SAFETY: fstat fills the structure if it succeeds, and it is read only then.
        let stat = unsafe {
            if libc::syscall(libc::SYS_fstat, descriptor, stat.as_mut_ptr()) != 0 {
                return None;
            }
            stat.assume_init()
        };
        Some(Self { descriptor, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns whether the descriptor still is this socket.
    pub fn is_open(self) -> bool {
        Self::of(self.descriptor) == Some(self)
    }

    /// Closes the descriptor, unless it is another file by now.
    pub fn close(self) {
        if self.is_open() {
            // SAFETY: the descriptor is the library's own socket.
            unsafe { libc::close(self.descriptor) };
        }
    }
}

impl Socket {
    /// Connects within `limit`. A peer that vanishes later is noticed within `peer_timeout`.
    pub fn connect(address: SocketAddr, limit: Duration, peer_timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        let descriptor = raised(stream.into_raw_fd());
        let Some(identity) = Identity::of(descriptor) else {
            return Err(io::Error::last_os_error());
        };
        let socket = Self(identity);
        socket.notice_vanished_peers(peer_timeout)?;
        SockRef::from(&socket).set_read_timeout(Some(PROMPT))?;
        Ok(socket)
    }

    pub fn identity(&self) -> Identity {
        self.0
    }

    /// Makes the socket reset the connection when it is closed, so that the peer treats the connection as lost.
    pub fn reset_when_closed(&self) {
        if self.0.is_open() {
            // If this fails, the connection is closed without a reset.
            let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
        }
    }

    fn notice_vanished_peers(&self, peer_timeout: Duration) -> io::Result<()> {
        let seconds = |part: u64| Duration::from_secs((peer_timeout.as_secs() / part).clamp(1, 32767));
        // The first probe is sent after half of the time. The user timeout ends the connection, and overrides the number of
        // probes.
        let keepalive = TcpKeepalive::new().with_time(seconds(2)).with_interval(seconds(6)).with_retries(3);
        SockRef::from(self).set_tcp_keepalive(&keepalive)?;
        SockRef::from(self).set_tcp_user_timeout(Some(peer_timeout.max(Duration::from_millis(1))))
    }

    /// Sends as many bytes as the system takes at once.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        SockRef::from(self).send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }

    /// Appends the bytes that have arrived, and returns their number; 0 if the peer has closed the connection.
    pub fn receive(&self, into: &mut BytesMut) -> io::Result<usize> {
        self.receive_with(libc::MSG_DONTWAIT, into)
    }

    /// Receives like [`Self::receive`], but waits for [`PROMPT`] if nothing has arrived.
    pub fn receive_promptly(&self, into: &mut BytesMut) -> io::Result<usize> {
        self.receive_with(0, into)
    }

    fn receive_with(&self, flags: c_int, into: &mut BytesMut) -> io::Result<usize> {
        into.reserve(READ_BYTES);
        let received = SockRef::from(self).recv_with_flags(into.spare_capacity_mut(), flags)?;
        // SAFETY: the system wrote this many bytes into the room after the bytes that were there.
        unsafe { into.set_len(into.len() + received) };
        Ok(received)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library closes it when this is dropped. If the program closes it, the system returns an error.
        unsafe { BorrowedFd::borrow_raw(self.0.descriptor) }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Moves a descriptor to a high number. If that is not possible, the descriptor keeps its number.
fn raised(descriptor: c_int) -> c_int {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: getrlimit fills the structure if it succeeds, and it is read only then. The descriptors are the library's.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) != 0 {
            return descriptor;
        }
        let lowest = limit.assume_init().rlim_cur.min(DESCRIPTORS_MAX) / 4 * 3;
        let lowest = c_int::try_from(lowest).unwrap_or(0);
        match libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, lowest) {
            -1 => descriptor,
            raised => {
                libc::close(descriptor);
                raised
            }
        }
    }
}
