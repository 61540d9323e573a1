//! The descriptor of a connection.
//!
//! The program does not know that it has this descriptor, and may close it or put a file of its own in its place. So it
//! has a high number, which few programs touch, and every use first compares the device and inode with those of the
//! socket that was opened. A program that replaces the descriptor in another thread between the comparison and the use
//! is not detected.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::IntoRawFd;
use std::time::Duration;

use bytes::BytesMut;

/// The highest number that is looked at for a descriptor. The kernel's table of descriptors grows with the number.
const DESCRIPTORS_MAX: u64 = 4096;

/// How long a response is waited for before signals are let in. Most responses come earlier, and cost no poll.
const PROMPT_MICROSECONDS: libc::suseconds_t = 1000;

/// The room for a response that is offered to the system.
const READ_BYTES: usize = 4096;

/// A connected socket.
#[derive(Debug)]
pub struct Socket(Identity);

/// A descriptor, and which socket it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub descriptor: c_int,
    pub device: u64,
    pub inode: u64,
}

impl Identity {
    fn of(descriptor: c_int) -> Option<Self> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // The system call itself, as the C library's function looks up an empty path, which takes twice as long.
        // SAFETY: fstat fills the structure if it succeeds, and only then it is read.
        let stat = unsafe {
            if libc::syscall(libc::SYS_fstat, descriptor, stat.as_mut_ptr()) != 0 {
                return None;
            }
            stat.assume_init()
        };
        Some(Self { descriptor, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Whether the descriptor still is this socket.
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
    /// Connects. A peer that vanishes later is noticed within `peer_timeout`.
    pub fn connect(address: SocketAddr, limit: Duration, peer_timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        let descriptor = raised(stream.into_raw_fd());
        let Some(identity) = Identity::of(descriptor) else {
            return Err(io::Error::last_os_error());
        };
        let socket = Self(identity);
        socket.notice_vanished_peers(peer_timeout)?;
        let prompt = libc::timeval { tv_sec: 0, tv_usec: PROMPT_MICROSECONDS };
        socket.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, prompt)?;
        Ok(socket)
    }

    /// Which descriptor the socket has.
    pub fn identity(&self) -> Identity {
        self.0
    }

    /// Has the peer notice a lost connection instead of a regular end.
    pub fn reset_when_closed(&self) {
        if self.0.is_open() {
            // A failure leaves the regular end.
            let _ = self.set(libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
        }
    }

    fn notice_vanished_peers(&self, peer_timeout: Duration) -> io::Result<()> {
        let seconds = c_int::try_from(peer_timeout.as_secs()).unwrap_or(c_int::MAX).max(1);
        let milliseconds = c_int::try_from(peer_timeout.as_millis()).unwrap_or(c_int::MAX).max(1);
        // The first probe after half of the time, three more in the other half.
        self.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1_i32)?;
        self.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, (seconds / 2).clamp(1, 32767))?;
        self.set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, (seconds / 6).clamp(1, 32767))?;
        self.set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3_i32)?;
        self.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, milliseconds)
    }

    fn set<T: Copy>(&self, level: c_int, option: c_int, value: T) -> io::Result<()> {
        let (value, bytes) = (&raw const value, size_of::<T>() as libc::socklen_t);
        // SAFETY: the value has this size; an option that has another one is refused.
        match unsafe { libc::setsockopt(self.0.descriptor, level, option, value.cast(), bytes) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends as many bytes as the system takes at once.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let start = bytes.as_ptr().cast::<c_void>();
        // SAFETY: there are this many bytes from the start on.
        let sent = unsafe { libc::send(self.0.descriptor, start, bytes.len(), flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Appends bytes that have arrived; 0: the peer has closed the connection.
    pub fn receive(&self, into: &mut BytesMut) -> io::Result<usize> {
        self.receive_with(libc::MSG_DONTWAIT, into)
    }

    /// As [`Self::receive`], and waits for a moment if nothing has arrived.
    pub fn receive_promptly(&self, into: &mut BytesMut) -> io::Result<usize> {
        self.receive_with(0, into)
    }

    fn receive_with(&self, flags: c_int, into: &mut BytesMut) -> io::Result<usize> {
        into.reserve(READ_BYTES);
        let room = into.spare_capacity_mut();
        let (start, bytes) = (room.as_mut_ptr().cast::<c_void>(), room.len());
        // SAFETY: there is room for this many bytes from the start on.
        let received = unsafe { libc::recv(self.0.descriptor, start, bytes, flags) };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the system wrote this many bytes into the room after the bytes that were there.
        unsafe { into.set_len(into.len() + received) };
        Ok(received)
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
    // SAFETY: getrlimit fills the structure if it succeeds, and only then it is read. The descriptors are the library's.
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
