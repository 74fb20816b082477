//! The protocol by which scripts are attached to a running process: between `fastinst attach` and
//! `libfastinst_script.so`.
//!
//! A process that permits it listens on a socket in `/tmp`, whose name contains its process id
//! ([`listen`]). From outside, that directory is below `/proc/PID/root` ([`connect`]), so a process
//! in a container, or with a separate `/tmp`, is found.
//!
//! One connection is one script. Messages are lines of JSON:
//!
//! 1. The client sends a [`Request`] with the text of the script.
//! 2. The process answers [`Answer::Attached`], or [`Answer::Refused`], which is the end.
//! 3. The script observes until the client closes its half of the connection or is gone, the
//!    process ends or calls exec, or the script fails.
//! 4. The process deactivates the probes that no other script needs, and sends [`Answer::Report`].
//!
//! Only the user to whom the process belongs, and root, may connect: the socket has mode 0600, and
//! both sides check the identity of the other one. A script cannot change the program, but it sees
//! the names of its functions and when they are called.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// Maximum length of a request, in bytes.
const MAX_REQUEST: u64 = 16 << 20;

/// A client's request to attach a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The client's [`VERSION`].
    pub version: u32,
    /// The name of the script, for messages and in the report.
    pub name: String,
    /// The text of the script.
    pub source: String,
    /// The format of the report: `text`, `json` or `csv`.
    pub format: String,
}

/// A message from the process to the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The script was attached.
    Attached {
        /// The number of functions that its rules match.
        matched: usize,
        /// The number of instrumented functions.
        functions: usize,
    },
    /// The script has not been attached.
    Refused {
        /// The reason, which may have several lines.
        reason: String,
    },
    /// The script has been detached.
    Report {
        /// The report of the script.
        text: String,
        /// The reason, unless the client has ended the attachment.
        reason: Option<String>,
    },
}

/// The name of a process's socket, in the process's own file system.
fn name(process: u32) -> String {
    format!("/tmp/.fastinst-{process}")
}

/// Listens for clients of this process. The socket exists only once connections are accepted; that
/// of an earlier process with the same id is replaced. [`remove`] it before the process ends.
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
    // If it does not exist or is not ours, there is nothing to do.
    let _ = fs::remove_file(name(std::process::id()));
}

/// Whether a client may attach scripts: it belongs to this process's user, or to root.
#[must_use]
pub fn is_permitted(client: &UnixStream) -> bool {
    getsockopt(client, PeerCredentials).is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

/// Connects to the process with this id, which may have been started just now: waits for three
/// seconds until it listens.
///
/// # Errors
/// [`Error::NoProcess`], [`Error::NotListening`], or [`Error::Connect`].
pub fn connect(process: u32) -> Result<UnixStream, Error> {
    retried(|| connect_now(process))
}

/// Maximum time for which a process is expected to start: this many attempts, [`PAUSE`] apart.
const ATTEMPTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(10);

/// Repeats an attempt to connect as long as the process does not listen.
fn retried<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Error::NotListening { .. }) => thread::sleep(PAUSE),
            result => return result,
        }
    }
    attempt()
}

fn connect_now(process: u32) -> Result<UnixStream, Error> {
    let failed = |source| Error::Connect { process, source };
    let status = match fs::read_to_string(format!("/proc/{process}/status")) {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::NoProcess { process }),
        Err(error) => return Err(failed(error)),
    };
    // The process id in its own namespace.
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
    // Others can create files in /tmp, too. Process id 0 stands for a process that is not visible
    // from this namespace.
    if peer.pid().cast_unsigned() == process { Ok(stream) } else { Err(Error::NotListening { process }) }
}

/// Sends a message.
///
/// # Errors
/// The errors of the connection.
pub fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a client's request. Blocks until it has arrived, or the stream's timeout has expired.
///
/// # Errors
/// The errors of the connection, and [`ErrorKind::InvalidData`] if the message is not a request.
pub fn receive_request(stream: &UnixStream) -> io::Result<Request> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_REQUEST)).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Receives an answer; `None` if the process has ended.
///
/// # Errors
/// The errors of the connection, and [`ErrorKind::InvalidData`] if the message is not an answer.
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
    fn a_process_that_does_not_listen_yet_is_waited_for() {
        let attempts = |mut errors: Vec<Error>| {
            let mut attempts = 0;
            let result = retried(|| {
                attempts += 1;
                errors.pop().map_or(Ok(()), Err)
            });
            (attempts, result.is_ok())
        };
        let silent = |times| (0..times).map(|_| Error::NotListening { process: 1 }).collect::<Vec<_>>();
        assert_eq!(attempts(silent(0)), (1, true));
        assert_eq!(attempts(silent(2)), (3, true));
        assert_eq!(attempts(silent(ATTEMPTS as usize)), (ATTEMPTS, false));
        let mut ended = vec![Error::NoProcess { process: 1 }];
        ended.extend(silent(2));
        assert_eq!(attempts(ended), (3, false));
    }

    #[test]
    fn the_socket_accepts_connections_as_soon_as_it_appears() {
        let path = PathBuf::from(name(std::process::id()));
        // Of a process with the same number that was killed.
        remove();
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
