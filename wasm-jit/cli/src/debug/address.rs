//! The address at which debuggers reach a running program.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs};

use crate::Failure;

/// A port of this host, or a socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Port(u16),
    Path(PathBuf),
}

impl FromStr for Address {
    type Err = Failure;

    /// A number is a port, also after the address of this host, as it is printed.
    fn from_str(text: &str) -> Result<Self, Failure> {
        let after_host = ["127.0.0.1:", "localhost:"].iter().find_map(|host| text.strip_prefix(host));
        let text = after_host.unwrap_or(text);
        if text.is_empty() {
            return Err(Failure { code: 2, message: "expected a port, or the path of a socket".to_owned() });
        }
        let is_number = after_host.is_some() || text.bytes().all(|byte| byte.is_ascii_digit());
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
            Self::Path(path) => Listener::Unix(listen_at(path)?),
        })
    }
}

/// Listens at a path where there is nothing yet, or the socket of a process that has ended. The
/// socket appears there when it accepts connections, so a process that waits for it can connect at
/// once.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let mut other = path.as_os_str().to_owned();
    other.push(format!(".{}", std::process::id()));
    let listener = UnixListener::bind(&other)?;
    // Before anybody can connect: any process that can controls the program.
    let restricted = fs::set_permissions(&other, fs::Permissions::from_mode(0o600));
    let named = restricted.and_then(|()| match fs::hard_link(&other, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_left(path) => {
            fs::rename(&other, path)
        }
        Err(error) => Err(error),
        Ok(()) => fs::remove_file(&other),
    });
    if named.is_err() {
        let _ = fs::remove_file(&other);
    }
    named.map(|()| listener)
}

/// Whether there is a socket at a path at which nobody listens any more.
fn is_left(path: &Path) -> bool {
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(is_refused)
}

#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The address with its port, if it has one: for port 0, the system has chosen one.
    pub(super) fn port(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Some),
            Self::Unix(_) => Ok(None),
        }
    }
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
        check("127.0.0.1:1234", Some(Address::Port(1234)));
        check("localhost:1234", Some(Address::Port(1234)));
        check("./localhost:1234", Some(Address::Path("./localhost:1234".into())));
        check("127.0.0.1:app", None);
        check("65536", None);
        check("", None);
    }

    #[test]
    fn what_is_printed_denotes_the_same_address() {
        for address in [Address::Port(1234), Address::Path("/run/app.sock".into())] {
            assert_eq!(address.to_string().parse::<Address>().ok(), Some(address));
        }
    }

    #[test]
    fn sockets_accept_connections_as_soon_as_they_appear() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..2000 {
            let path = folder.path().join(number.to_string());
            let address = Address::Path(path.clone());
            std::thread::scope(|scope| {
                let client = scope.spawn(|| {
                    while !path.exists() {
                        std::hint::spin_loop();
                    }
                    UnixStream::connect(&path).map(drop)
                });
                let _listener = address.listen().unwrap();
                client.join().unwrap().unwrap();
            });
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2000, "nothing else is left");
    }

    #[test]
    fn what_is_at_the_path_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        let error = Address::Path(path.clone()).listen().map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // A process listens there.
        let path = folder.path().join("socket");
        let address = Address::Path(path.clone());
        let listener = address.listen().unwrap();
        assert_eq!(address.listen().map(drop).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(listener);
        let _listener = address.listen().unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
