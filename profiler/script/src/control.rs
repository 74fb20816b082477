//! Scripts of clients: the socket, and a thread for each connection.
//!
//! [`profiler::script::attach`] describes the protocol. The threads block all signals, as the
//! [`worker`](crate::worker) does; a client that goes away while something is sent to it therefore
//! does not end the process by SIGPIPE. They sleep until a client comes or goes.
//!
//! The sockets are also in [`Observer::sockets`](crate::observer::Observer), so that a forked child
//! can close its copies of them, without which clients would not notice the end of the parent. They
//! are added and removed while the observer is locked, as it is during a fork.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use profiler::script::ScriptFormat;
use profiler::script::attach::{self, Answer, Request};
use profiler::session;
use wasm_jit_whamm::lang::Script;
use wasm_jit_whamm::native::NativeMonitor;

use crate::observer;
use crate::socket::Socket;

/// The maximum time for a client to send its request, or to read a part of its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum number of simultaneous connections.
const MAX_CLIENTS: u32 = 64;

/// The time before the next attempt if a connection cannot be accepted because there are no
/// descriptors left.
const RETRY: Duration = Duration::from_millis(100);

/// The interval, in milliseconds, of checks whether the program has closed the socket.
const LOOK_EVERY: u16 = 1000;

/// The number of connections.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

/// Whether this process listens.
static LISTENS: AtomicBool = AtomicBool::new(false);

/// The number of threads of this module. Each counts itself while it runs, so that the number is
/// never too large.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The number of threads of this module that are running.
pub(crate) fn threads() -> usize {
    THREADS.load(Ordering::Relaxed)
}

/// Counts the thread that has it.
struct Counted;

impl Counted {
    fn new() -> Self {
        THREADS.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Listens for clients.
///
/// # Errors
/// A line for the user, if the socket cannot be created.
pub(crate) fn start() -> Result<(), String> {
    let listener = bind()?;
    LISTENS.store(true, Ordering::Relaxed);
    spawn("fastinst-listen", move || listen(listener)).inspect_err(|_| end())
}

fn bind() -> Result<Arc<Socket>, String> {
    let mut observer = observer::lock();
    let listener = attach::listen().map_err(|error| error.to_string())?;
    // `accept` must not wait if the client has gone before it is called.
    let _ = listener.set_nonblocking(true);
    let listener =
        Arc::new(Socket::new(listener).ok_or("no scripts can be attached: the socket was closed")?);
    if let Some(observer) = observer.as_mut() {
        observer.sockets.push(Arc::clone(&listener));
    }
    Ok(listener)
}

/// Removes the socket, before the process ends.
pub(crate) fn end() {
    if LISTENS.swap(false, Ordering::Relaxed) {
        attach::remove();
    }
}

/// In a forked child, whose copies of the sockets are closed: listens, if the parent did.
pub(crate) fn restart_in_child() {
    CLIENTS.store(0, Ordering::Relaxed);
    THREADS.store(0, Ordering::Relaxed);
    if LISTENS.swap(false, Ordering::Relaxed)
        && let Err(error) = start()
    {
        session::say(&error);
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let run = || {
        let _counted = Counted::new();
        run();
    };
    let spawned =
        wordpatch::internal::with_signals_blocked(|| thread::Builder::new().name(name.to_owned()).spawn(run));
    spawned.map(drop).map_err(|error| format!("no scripts can be attached: {error}; the program runs on"))
}

fn listen(mut listener: Arc<Socket>) {
    while LISTENS.load(Ordering::Relaxed) {
        match listener.listener() {
            Some(open) => {
                // An error is an interruption: `accept` shows whether a client is there.
                let _ = poll(&mut [PollFd::new(open.as_fd(), PollFlags::POLLIN)], LOOK_EVERY);
            }
            // The program has closed it.
            None => match bind() {
                Ok(again) => listener = again,
                Err(_) => thread::sleep(RETRY),
            },
        }
        if let Some(client) = accept(&listener) {
            // If there is no memory for a thread, the connection is closed, which the client
            // reports.
            let _ = spawn("fastinst-client", move || client.serve());
        }
    }
}

/// Accepts a client, if there is one.
fn accept(listener: &Socket) -> Option<Connection> {
    let mut observer = observer::lock();
    let (stream, _) = match listener.listener()?.accept() {
        Ok(accepted) => accepted,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
        Err(_) => {
            drop(observer);
            thread::sleep(RETRY);
            return None;
        }
    };
    let socket = Arc::new(Socket::new(stream)?);
    observer.as_mut()?.sockets.push(Arc::clone(&socket));
    let clients = CLIENTS.fetch_add(1, Ordering::Relaxed);
    drop(observer);
    let client = Connection { socket };
    if clients >= MAX_CLIENTS {
        client.refuse(format!("{MAX_CLIENTS} scripts are attached already"));
        return None;
    }
    Some(client)
}

/// A connection, which ends when it is dropped.
struct Connection {
    socket: Arc<Socket>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        end_connection(&self.socket);
        CLIENTS.fetch_sub(1, Ordering::Relaxed);
        if let Some(observer) = observer::lock().as_mut() {
            observer.sockets.retain(|socket| !Arc::ptr_eq(socket, &self.socket));
        }
    }
}

/// Tells the client that the answer is complete.
pub(crate) fn end_connection(socket: &Socket) {
    if let Some(stream) = socket.stream() {
        // An error means that the client is gone.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Sends an answer. Blocks while the client does not read, up to its time limit.
pub(crate) fn answer(socket: &Socket, answer: &Answer) {
    if let Some(stream) = socket.stream() {
        // An error means that the client is gone.
        let _ = attach::send(&stream, answer);
    }
}

impl Connection {
    fn refuse(&self, reason: String) {
        answer(&self.socket, &Answer::Refused { reason });
    }

    fn serve(self) {
        let Some(stream) = self.socket.stream() else { return };
        let prepared =
            stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        if prepared.is_err() {
            return;
        }
        if !attach::is_permitted(&stream) {
            return self.refuse("the process belongs to another user".to_owned());
        }
        let request = match attach::receive_request(&stream) {
            Ok(request) => request,
            Err(error) => return self.refuse(format!("not a request: {error}")),
        };
        let number = match self.attach(request) {
            Ok((number, matched, functions)) => {
                answer(&self.socket, &Answer::Attached { matched, functions });
                number
            }
            Err(reason) => return self.refuse(reason),
        };
        self.await_end();
        let early = observer::early_calls();
        let concluded = observer::lock().as_mut().and_then(|observer| {
            observer.add_early_calls(&early);
            observer.detach(number)
        });
        if let Some(concluded) = concluded {
            concluded.send();
        }
    }

    /// Attaches the script; returns its number, the number of functions that its rules match, and
    /// the number of all functions.
    fn attach(&self, request: Request) -> Result<(u64, usize, usize), String> {
        let Request { version, name, source, format } = request;
        if version != attach::VERSION {
            return Err(format!(
                "the library in the process speaks version {} of the protocol, not {version}; use the fastinst of the \
                 same release",
                attach::VERSION
            ));
        }
        let format = ScriptFormat::named(&format).map_err(|error| error.to_string())?;
        // Rules are matched on this thread.
        NativeMonitor::prepare_thread();
        let script = Script::native(&name, source.as_bytes())
            .map_err(|error| format!("{name} is not a valid script:\n{error}"))?;
        let monitor = NativeMonitor::new(script).map_err(|error| error.to_string())?;
        let early = observer::early_calls();
        let mut observer = observer::lock();
        let observer = observer.as_mut().ok_or("the process is not observed")?;
        observer.add_early_calls(&early);
        observer.attach(name, monitor, format, Arc::clone(&self.socket))
    }

    /// Waits until the client has closed its half of the connection or is gone, or the report has
    /// been sent to it.
    fn await_end(&self) {
        // The client sends nothing more.
        while let Some(mut stream) = self.socket.stream()
            && stream.set_read_timeout(None).is_ok()
            && stream.read(&mut [0; 64]).is_ok_and(|length| length > 0)
        {}
    }
}
