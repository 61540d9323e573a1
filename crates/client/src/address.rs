//! The address of a server: `HOST`, `HOST:PORT`, `[IPV6]:PORT` or a bare IPv6 address.
//!
//! An [`Address`] is well formed. Each time that a client connects, it resolves the host name and tries all its
//! IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;

/// The default port of the counter protocol (`counter.md`, "Configurations").
///
/// ```
/// assert_eq!(signalbox_client::COUNTER_PORT, 11215);
/// ```
pub const COUNTER_PORT: u16 = 11215;

/// The default port of the semaphore protocol in signalbox. yrmcds' documents give both protocols the same default, but
/// a server with both needs two.
///
/// ```
/// assert_eq!(signalbox_client::SEMAPHORE_PORT, 11216);
/// ```
pub const SEMAPHORE_PORT: u16 = 11216;

/// The host of a server, and the port if one was given.
///
/// ```
/// use signalbox_client::Address;
///
/// let address: Address = "[2001:db8::1]:11215".parse()?;
/// assert_eq!((address.host(), address.port()), ("2001:db8::1", Some(11215)));
/// # Ok::<(), signalbox_client::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: Option<u16>,
    /// The only IP address of the host to connect to; `None`: any of them.
    resolved: Option<SocketAddr>,
}

impl Address {
    /// Returns the host's name or IP address, without brackets.
    ///
    /// ```
    /// let address: signalbox_client::Address = "lock.example.org:7".parse()?;
    /// assert_eq!(address.host(), "lock.example.org");
    /// # Ok::<(), signalbox_client::AddressError>(())
    /// ```
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, if the address has one.
    ///
    /// ```
    /// let address: signalbox_client::Address = "lock.example.org".parse()?;
    /// assert_eq!(address.port(), None);
    /// # Ok::<(), signalbox_client::AddressError>(())
    /// ```
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Sets the port, unless the address has one already.
    ///
    /// ```
    /// use signalbox_client::{Address, SEMAPHORE_PORT};
    ///
    /// let address = "lock.example.org".parse::<Address>()?.or_port(SEMAPHORE_PORT);
    /// assert_eq!(address.to_string(), "lock.example.org:11216");
    /// # Ok::<(), signalbox_client::AddressError>(())
    /// ```
    #[must_use]
    pub fn or_port(mut self, port: u16) -> Self {
        self.port.get_or_insert(port);
        self
    }

    /// Limits the address to one IP address of its host, and replaces its port by that of `resolved`.
    /// [`Transport::resolve`] returns such addresses. [`Tcp`] and `Tls` connect only to this IP address; `Tls` still
    /// requires a certificate that names the host.
    ///
    /// [`Tcp`]: super::Tcp
    /// [`Transport::resolve`]: super::Transport::resolve
    ///
    /// ```
    /// use signalbox_client::Address;
    ///
    /// let address = "lock.example.org:7".parse::<Address>()?.resolved_to(([192, 0, 2, 7], 7).into());
    /// assert_eq!(address.to_string(), "lock.example.org:7 (192.0.2.7)");
    /// # Ok::<(), signalbox_client::AddressError>(())
    /// ```
    #[must_use]
    pub fn resolved_to(self, resolved: SocketAddr) -> Self {
        Self { port: Some(resolved.port()), resolved: Some(resolved), ..self }
    }

    /// Returns the IP address that [`Self::resolved_to`] has set, with the port; `None`: any IP address of the host.
    ///
    /// ```
    /// let address: signalbox_client::Address = "lock.example.org:7".parse()?;
    /// assert_eq!(address.resolved(), None);
    /// # Ok::<(), signalbox_client::AddressError>(())
    /// ```
    pub fn resolved(&self) -> Option<SocketAddr> {
        self.resolved
    }

    /// Returns the socket address to connect to if it is known without resolving a name: that of [`Self::resolved_to`],
    /// or, if the host is an IP address, this address with the port, which is [`COUNTER_PORT`] by default.
    pub(super) fn exact(&self) -> Option<SocketAddr> {
        let given =
            || self.host.parse::<IpAddr>().ok().map(|ip| (ip, self.port.unwrap_or(COUNTER_PORT)).into());
        self.resolved.or_else(given)
    }

    /// Removes the IP address that [`Self::resolved_to`] has set, so that any IP address of the host will do again. The
    /// port stays.
    ///
    /// ```
    /// # use signalbox_client::Address;
    /// let address: Address = "lock.example.org:7".parse()?;
    /// assert_eq!(address.clone().resolved_to(([192, 0, 2, 7], 7).into()).unresolved(), address);
    /// # Ok::<(), signalbox_client::AddressError>(())
    /// ```
    #[must_use]
    pub fn unresolved(self) -> Self {
        Self { resolved: None, ..self }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = split(text)?;
        if host.is_empty() {
            return Err(AddressError::HostMissing);
        }
        if host.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(AddressError::HostMalformed);
        }
        Ok(Self { host: host.to_owned(), port: port.map(parse_port).transpose()?, resolved: None })
    }
}

/// Splits an address into host and port. A colon separates them only if the host has no colon or is in brackets.
fn split(text: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(AddressError::HostMalformed)?;
        if !is_ipv6(host) {
            return Err(AddressError::HostMalformed);
        }
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(AddressError::HostMalformed),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => {
            if is_ipv6(text) {
                Ok((text, None))
            } else {
                Err(AddressError::HostMalformed)
            }
        }
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

/// Returns whether the host is an IPv6 address. A link-local one may have a zone (`fe80::1%eth0`), which the resolver
/// supports and `Ipv6Addr` does not.
fn is_ipv6(host: &str) -> bool {
    let address = host.split_once('%').map_or(host, |(address, _zone)| address);
    address.parse::<Ipv6Addr>().is_ok()
}

fn parse_port(text: &str) -> Result<u16, AddressError> {
    match text.parse() {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(AddressError::Port { port: text.to_owned() }),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }?;
        self.resolved.map_or(Ok(()), |resolved| write!(f, " ({})", resolved.ip()))
    }
}

/// Why a text is not an address.
///
/// ```
/// use signalbox_client::{Address, AddressError};
///
/// assert_eq!(":7".parse::<Address>(), Err(AddressError::HostMissing));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The host is missing.
    #[error("the address has no host; use HOST or HOST:PORT")]
    HostMissing,
    /// The host is neither a host name nor an IP address.
    #[error("the host is not a host name or an IP address; use HOST, HOST:PORT or [IPV6]:PORT")]
    HostMalformed,
    /// The port is not a port number.
    #[error("the port {port:?} is not a number from 1 to 65535")]
    Port {
        /// The text of the port.
        port: String,
    },
}
