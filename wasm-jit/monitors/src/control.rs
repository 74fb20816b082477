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
//! Requests are answered one after the other.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use crate::options::Request;
use crate::{Error, Format, Session};

/// Maximum length of a request, in bytes.
const MAX_REQUEST: u64 = 64 << 10;

/// Maximum time in which a client must send its request, or read a part of its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers requests until it is dropped, which also removes the socket.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
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
    /// either. It is called on the thread that answers requests, and dropped with the `Control`.
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
        let listener = bind(&path).map_err(failed)?;
        let ends = Arc::new(AtomicBool::new(false));
        let is_ending = ends.clone();
        let serve = move || {
            for client in listener.incoming() {
                if is_ending.load(Ordering::Relaxed) {
                    break;
                }
                if let Ok(client) = client
                    && is_permitted(&client)
                {
                    // A client that does not read its answer loses it.
                    let _ = serve(&session, &others, client);
                }
            }
        };
        let server = thread::Builder::new().name("control".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Self { path, ends, server: Some(server) })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Binds a socket at a path where there is nothing, or another socket.
fn bind(path: &Path) -> io::Result<UnixListener> {
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
        .and_then(|()| fs::rename(&unfinished, path));
    if let Err(error) = named {
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    Ok(listener)
}

/// Whether a client belongs to this process's user, or to root. Others could connect before the
/// permissions of the socket were set.
fn is_permitted(client: &UnixStream) -> bool {
    getsockopt(client, PeerCredentials).is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Wakes the server.
        let woken = UnixStream::connect(&self.path);
        let _ = fs::remove_file(&self.path);
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

fn serve(session: &Session, others: &Others, client: UnixStream) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&client).take(MAX_REQUEST)).read_line(&mut line)?;
    let answer = match answer(session, others, line.trim()) {
        Ok(text) => format!("ok\n{text}"),
        Err(message) => format!("error: {message}\n"),
    };
    (&client).write_all(answer.as_bytes())
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
                "" => session.visit_reports(false, |report| reports.push(report)),
                name => reports.push(session.report(name).map_err(text)?),
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
