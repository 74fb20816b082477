//! Scripts that are attached to a process while it runs: what `fastinst attach` and
//! `libfastinst_script.so` say to each other.
//!
//! A process that permits it listens on a socket in `/tmp`, named by its number ([`listen`]). From
//! outside, that is below `/proc/PID/root` ([`connect`]), so that a process in a container, or with
//! a `/tmp` of its own, is found.
//!
//! One connection is one script. Messages are lines of JSON:
//!
//! 1. The client sends a [`Request`] with the text of the script.
//! 2. The process answers [`Answer::Attached`], or [`Answer::Refused`], which is the end.
//! 3. The script observes until the client closes its half of the connection or is gone, the
//!    process ends or calls exec, or the script fails.
//! 4. The process switches the probes off that no other script needs, and sends
//!    [`Answer::Report`].
//!
//! Only the user that the process belongs to, and root, are let in: the socket has mode 0600, and
//! both sides check who the other one is. A script cannot change the program, but it sees the names
//! of its functions and when they are called.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The version of the messages.
pub const VERSION: u32 = 1;

/// The longest request, in bytes.
const MAX_REQUEST: u64 = 16 << 20;

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// The name of the script, for messages and in the report.
    pub name: String,
    /// Its text.
    pub source: String,
    /// The format of the report: `text`, `json` or `csv`.
    pub format: String,
}

/// What a process answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The script observes.
    Attached {
        /// Number of functions that its rules match.
        matched: usize,
        /// Number of instrumented functions.
        functions: usize,
    },
    /// The script has not been attached.
    Refused {
        /// Why; may have several lines.
        reason: String,
    },
    /// The script has been detached.
    Report {
        /// The report.
        text: String,
        /// Why, if it was not for the client.
        reason: Option<String>,
    },
}

/// The socket of a process, in its own file system.
fn name(process: u32) -> String {
    format!("/tmp/.fastinst-{process}")
}

/// Listens for clients of this process. The socket appears when it accepts connections; that of an
/// earlier process with the same number is replaced. [`remove`] it before the process ends.
///
/// # Errors
/// [`Error::Listen`].
pub fn listen() -> Result<UnixListener, Error> {
    let path = PathBuf::from(name(std::process::id()));
    let unfinished = path.with_extension("new");
    let made = || {
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&unfinished)?;
        let named = fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&unfinished, &path));
        if named.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        named.map(|()| listener)
    };
    made().map_err(|source| Error::Listen { path: path.clone(), source })
}

/// Removes the socket of this process.
pub fn remove() {
    // If it is not there, or not ours, nothing is to be done.
    let _ = fs::remove_file(name(std::process::id()));
}

/// Whether a client may attach scripts: it has this process's user, or is root.
#[must_use]
pub fn is_permitted(client: &UnixStream) -> bool {
    getsockopt(client, PeerCredentials).is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

/// Connects to a process.
///
/// # Errors
/// [`Error::NoProcess`], [`Error::NotListening`], or [`Error::Connect`].
pub fn connect(process: u32) -> Result<UnixStream, Error> {
    let failed = |source| Error::Connect { process, source };
    let status = match fs::read_to_string(format!("/proc/{process}/status")) {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::NoProcess { process }),
        Err(error) => return Err(failed(error)),
    };
    // Its number in its own namespace.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok()).unwrap_or(process);
    let stream = match UnixStream::connect(format!("/proc/{process}/root{}", name(own))) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Err(Error::NotListening { process });
        }
        Err(error) => return Err(failed(error)),
    };
    let peer = getsockopt(&stream, PeerCredentials).map_err(|error| failed(error.into()))?;
    // Others can make files in /tmp, too. A number of 0 is that of a process that is not visible
    // from this namespace.
    if peer.pid().cast_unsigned() == process { Ok(stream) } else { Err(Error::NotListening { process }) }
}

/// Sends a message.
///
/// # Errors
/// Those of the connection.
pub fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a client's request. Blocks until it is there, or the stream's timeout is over.
///
/// # Errors
/// Those of the connection, and [`ErrorKind::InvalidData`] if it is none.
pub fn receive_request(stream: &UnixStream) -> io::Result<Request> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_REQUEST)).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Receives an answer; `None` if the process has ended.
///
/// # Errors
/// Those of the connection, and [`ErrorKind::InvalidData`] if it is none.
pub fn receive_answer(stream: &mut impl BufRead) -> io::Result<Option<Answer>> {
    let mut line = Vec::new();
    match stream.read_until(b'\n', &mut line) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => return Err(error),
    }
    if line.last() != Some(&b'\n') {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_socket_accepts_connections_as_soon_as_it_appears() {
        let path = PathBuf::from(name(std::process::id()));
        for _ in 0..2000 {
            let waits = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let client = scope.spawn(|| {
                    while !path.exists() {
                        waits.store(true, Ordering::Relaxed);
                    }
                    UnixStream::connect(&path).map(drop)
                });
                while !waits.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                let listener = listen().unwrap();
                client.join().unwrap().unwrap();
                remove();
                drop(listener);
            });
        }
    }
}
