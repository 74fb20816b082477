//! Where a program that runs can be reached by a debugger.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

use crate::Failure;

/// A port of this host, or a socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Port(u16),
    Path(PathBuf),
}

impl FromStr for Address {
    type Err = Failure;

    /// A number is a port.
    fn from_str(text: &str) -> Result<Self, Failure> {
        if text.is_empty() {
            return Err(Failure { code: 2, message: "expected a port, or the path of a socket".to_owned() });
        }
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let wrong = |_| Failure { code: 2, message: format!("`{text}` is no port") };
        if is_number { text.parse().map(Self::Port).map_err(wrong) } else { Ok(Self::Path(text.into())) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(f, "127.0.0.1:{port}"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// A connection.
pub(super) trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

impl Address {
    pub(super) fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Port(port) => Box::new(TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?),
            Self::Path(path) => Box::new(UnixStream::connect(path)?),
        })
    }

    pub(super) fn listen(&self) -> io::Result<Listener> {
        Ok(match self {
            Self::Port(port) => Listener::Tcp(TcpListener::bind((Ipv4Addr::LOCALHOST, *port))?),
            Self::Path(path) => Listener::Unix(UnixListener::bind(path)?),
        })
    }
}

#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ports() {
        #[track_caller]
        fn check(text: &str, expected: Option<Address>) {
            assert_eq!(text.parse::<Address>().ok(), expected, "{text}");
        }
        check("1234", Some(Address::Port(1234)));
        check("./1234", Some(Address::Path("./1234".into())));
        check("/run/app.sock", Some(Address::Path("/run/app.sock".into())));
        check("65536", None);
        check("", None);
    }
}
