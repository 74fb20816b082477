//! [`Control`]: lets other processes control a session, over a socket in the file system.
//!
//! A request is one line. The answer is either a line `ok` followed by the requested text, or
//! `error: MESSAGE`, where the message may have several lines:
//!
//! | request | answer |
//! | --- | --- |
//! | `list` | a line for each monitor: its name, and `on`, `off` or `-` if it was never started; then for others that were started |
//! | `enable NAME[{OPTIONS}][,NAME[{OPTIONS}]]...` | |
//! | `disable NAME` | |
//! | `report FORMAT [NAME]` | the reports of all started monitors, or of one |
//! | `write` | the reports are written to the session's output |
//!
//! Other requests are passed to the [closure](Control::listen_with) of the listening program.
//!
//! Requests are answered one after the other. A client that has not sent its request yet, or that
//! does not read its answer, delays no other one. If there are too many at a time, the connection
//! of the one that has been waiting longest without a request is closed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{self, getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use crate::lock::lock;
use crate::options::Request;
use crate::report::files::Files;
use crate::{Error, Format, Session};

/// Maximum length of a request, in bytes.
const MAX_REQUEST: usize = 64 << 10;

/// Maximum time in which a client must send its request, or read a part of its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of clients at a time.
const MAX_CLIENTS: usize = 64;

/// The time after which a connection is accepted again if that has failed, as it does if there are
/// no more descriptors.
const AGAIN: Duration = Duration::from_millis(50);

/// Answers requests until it is dropped, which also removes the socket.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    /// The device and the number of the socket's file.
    file: (u64, u64),
    listener: Arc<UnixListener>,
    ends: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens on a socket at this path, for clients of this user and of root. The path exists only
    /// once connections are accepted. An existing socket is replaced.
    ///
    /// # Errors
    /// [`Error::Write`]: also if there is something else at the path.
    pub fn listen(session: Arc<Session>, path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::listen_with(session, path, |_, _| None)
    }

    /// As [`Control::listen`]. A closure answers requests that sessions do not know; it gets the
    /// first word and the rest of the line, and returns `None` if it does not know the request
    /// either. It is called on threads that answer requests, one call at a time, and dropped with
    /// the `Control`.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn listen_with(
        session: Arc<Session>,
        path: impl AsRef<Path>,
        others: impl Fn(&str, &str) -> Option<Result<String, String>> + Send + 'static,
    ) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let failed = |source| Error::Write { path: path.clone(), source };
        let (listener, file) = bind(&path).map_err(failed)?;
        let listener = Arc::new(listener);
        let ends = Arc::new(AtomicBool::new(false));
        let (of_server, is_ending) = (listener.clone(), ends.clone());
        let serve = move || serve(&session, &Mutex::new(others), &of_server, &is_ending);
        let server = thread::Builder::new().name("control".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Self { path, file, listener, ends, server: Some(server) })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Binds a socket at a path where there is nothing, or another socket. Returns the identity of its
/// file, too.
fn bind(path: &Path) -> io::Result<(UnixListener, (u64, u64))> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists, and is not a socket"));
        }
        _ => {}
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let listener = UnixListener::bind(&unfinished)?;
    let named = fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600))
        .and_then(|()| identity(Path::new(&unfinished)))
        .and_then(|file| fs::rename(&unfinished, path).map(|()| file));
    if named.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    Ok((listener, named?))
}

/// The device and the number of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Whether a client belongs to this process's user, or to root. Others could connect before the
/// permissions of the socket were set.
fn is_permitted(client: &UnixStream) -> bool {
    getsockopt(client, PeerCredentials).is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Another process may have its socket there now.
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
        // Wakes the server: connections are no longer accepted.
        let woken = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        if let Some(server) = self.server.take()
            && woken.is_ok()
        {
            let _ = server.join();
        }
    }
}

/// Sends a request to a session of another process. Returns the text of the answer, or the message
/// of its error.
///
/// # Errors
/// The error of the connection: nobody listens there, or the process has ended.
pub fn request(path: impl AsRef<Path>, line: &str) -> io::Result<Result<String, String>> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, text) = answer.split_once('\n').ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(match head.strip_prefix("error: ") {
        Some(message) => Err(format!("{message}\n{text}").trim_end().to_owned()),
        None => Ok(text.to_owned()),
    })
}

/// Answers requests that sessions do not know.
type Others = dyn Fn(&str, &str) -> Option<Result<String, String>>;

/// Serves clients, each on a thread of its own, until it is to end and the listener is shut down.
fn serve(
    session: &Session,
    others: &Mutex<impl Fn(&str, &str) -> Option<Result<String, String>> + Send + 'static>,
    listener: &UnixListener,
    is_ending: &AtomicBool,
) {
    let connected: Mutex<BTreeMap<usize, Connected>> = Mutex::default();
    thread::scope(|scope| {
        for (number, client) in listener.incoming().enumerate() {
            if is_ending.load(Ordering::Relaxed) {
                break;
            }
            let Ok(client) = client else {
                thread::sleep(AGAIN);
                continue;
            };
            if !is_permitted(&client) {
                continue;
            }
            let Ok(stream) = client.try_clone() else { continue };
            if !make_room(&mut lock(&connected)) {
                refuse(&client, "too many clients are connected");
                continue;
            }
            lock(&connected).insert(number, Connected { stream, has_asked: false });
            let connected = &connected;
            let of_client = move || {
                let _leaves = Leaves { connected, number };
                let has_asked = || {
                    let mut connected = lock(connected);
                    connected.get_mut(&number).map(|client| client.has_asked = true)
                };
                // A client that does not read its answer loses it.
                let _ = serve_one(session, others, &client, has_asked);
            };
            let thread = thread::Builder::new().name("client".to_owned()).spawn_scoped(scope, of_client);
            if let Err(error) = thread
                && let Some(client) = lock(connected).remove(&number)
            {
                refuse(&client.stream, &format!("there is no thread for the request: {error}"));
            }
        }
        // Those that have not sent a request will not send one; answers are sent.
        for client in lock(&connected).values() {
            let _ = client.stream.shutdown(Shutdown::Read);
        }
    });
}

/// A client, by the number of its connection.
struct Connected {
    stream: UnixStream,
    /// Whether it has sent its request.
    has_asked: bool,
}

/// Removes a client, also if answering it has panicked: its connection is then closed.
struct Leaves<'a> {
    connected: &'a Mutex<BTreeMap<usize, Connected>>,
    number: usize,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        lock(self.connected).remove(&self.number);
    }
}

/// Makes sure that there is room for another client, if necessary by closing the oldest connection
/// without a request. `false` if all clients wait for answers.
fn make_room(connected: &mut BTreeMap<usize, Connected>) -> bool {
    if connected.len() < MAX_CLIENTS {
        return true;
    }
    let Some(oldest) = connected.iter().find(|(_, client)| !client.has_asked).map(|(number, _)| *number)
    else {
        return false;
    };
    if let Some(client) = connected.remove(&oldest) {
        let _ = client.stream.shutdown(Shutdown::Both);
    }
    true
}

/// Sends an error, which fits into the buffer of the socket.
fn refuse(mut client: &UnixStream, reason: &str) {
    let _ = client.write_all(format!("error: {reason}\n").as_bytes());
}

fn serve_one(
    session: &Session,
    others: &Mutex<impl Fn(&str, &str) -> Option<Result<String, String>> + 'static>,
    mut client: &UnixStream,
    has_asked: impl FnOnce() -> Option<()>,
) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let line = match read_line(client) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            refuse(client, &error.to_string());
            return Ok(());
        }
        line => line?,
    };
    if has_asked().is_none() {
        // Its connection was closed.
        return Ok(());
    }
    let answer = {
        let others = lock(others);
        match answer(session, &*others, line.trim()) {
            Ok(text) => format!("ok\n{text}"),
            Err(message) => format!("error: {message}\n"),
        }
    };
    client.write_all(answer.as_bytes())
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Reads a request up to the end of its line. A part of a request is refused.
fn read_line(mut client: &UnixStream) -> io::Result<String> {
    let begun = Instant::now();
    let (mut line, mut part) = (Vec::new(), [0; 4096]);
    while !line.contains(&b'\n') && line.len() < MAX_REQUEST {
        let left = PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        client.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match client.read(&mut part) {
            Ok(0) => return Err(invalid("the request does not end with a line break")),
            Ok(length) => line.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let Some(end) = line.iter().position(|byte| *byte == b'\n').filter(|end| *end <= MAX_REQUEST) else {
        return Err(invalid("the request is too long"));
    };
    line.truncate(end);
    String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn answer(session: &Session, others: &Others, line: &str) -> Result<String, String> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim();
    let text = |error: Error| error.to_string();
    let done = |()| String::new();
    match verb {
        "list" if rest.is_empty() => Ok(list(session)),
        "enable" => enable(session, rest).map(done).map_err(text),
        "disable" => session.disable(rest).map(done).map_err(text),
        "write" if rest.is_empty() => session.write().map(done).map_err(text),
        "report" => {
            let (format, name) = rest.split_once(' ').unwrap_or((rest, ""));
            let format: Format = format.parse()?;
            let mut reports = Vec::new();
            match name {
                "" => session.visit_reports(Files::default, |report| reports.push(report)),
                name => reports.push(session.report_with(name, Files::Named(Vec::new())).map_err(text)?),
            }
            Ok(format.print(&reports))
        }
        _ => others(verb, rest).unwrap_or_else(|| Err(format!("unknown request `{verb}`"))),
    }
}

/// Starts one monitor, or a list of them up to the first that cannot be started.
fn enable(session: &Session, monitors: &str) -> Result<(), Error> {
    Request::list(monitors)?.into_iter().try_for_each(|request| session.enable(request))
}

fn list(session: &Session) -> String {
    let started = session.started_monitors();
    let state = |name| match started.iter().find(|(known, _)| known == name) {
        Some((_, true)) => "on",
        Some((_, false)) => "off",
        None => "-",
    };
    let known = session.known().iter().map(|known| known.name);
    let is_other = |name: &&str| session.known().iter().all(|known| known.name != *name);
    let others = started.iter().map(|(name, _)| name.as_str()).filter(is_other);
    known.chain(others).map(|name| format!("{name} {}\n", state(name))).collect()
}
