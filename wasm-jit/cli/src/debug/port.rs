//! `wasm-jit run --debug-port`: debuggers attach to the program while it runs.
//!
//! The first byte of a connection determines the protocol: `+`, `$` or Ctrl-C is the GDB remote
//! protocol. Otherwise the first line is `session` or `pause`. After `session`, each line is a
//! command, which is answered by a text and a zero byte; the text of a command that has failed
//! begins with a one byte ([`FAILED`]). `pause` stops the program of a session that waits for it. A
//! client that goes without a word releases the program, even while its command waits; for this, a
//! client goes when it closes its sending side, whether or not it still reads, or when it sends too
//! many lines ahead of the answers. One client is served at a time: others are refused during that
//! time, with a line on stderr. A client that does not begin is closed after some seconds, and
//! before if there are many.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use gdbstub::conn::ConnectionExt;
use wasm_jit::{InterruptHandle, Module};
use wasm_jit_debug::{Debugger, Outcome};

use super::address::{Address, Listener};
use super::commands::{Answer, Session};
use crate::{Failure, execution};

/// Polling interval until the first byte of a new client.
const POLL: Duration = Duration::from_millis(5);

/// Maximum time until the first byte of a new client, and between the bytes of its first line.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of clients that have not begun.
const MAX_NEW: usize = 64;

/// The time after which a connection is accepted again if that has failed, as it does if there are
/// no more descriptors.
const AGAIN: Duration = Duration::from_millis(50);

/// The first character of the answer to a command that has failed.
pub(super) const FAILED: char = '\u{1}';

/// The longest line of a client.
const MAX_LINE: usize = 64 << 10;

/// Maximum number of lines that are read before they are executed. A client that sends more without
/// waiting for answers is gone: while nothing is read, its end would not be noticed.
const MAX_LINES: usize = 100;

/// A connection that one thread reads, and another one writes.
trait Client: ConnectionExt<Error = io::Error> + Send + Sized + 'static {
    fn again(&self) -> io::Result<Self>;
    fn close(&self);

    /// Sets the maximum time of a read.
    fn read_within(&self, time: Option<Duration>) -> io::Result<()>;
}

impl Client for TcpStream {
    fn again(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn close(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }

    fn read_within(&self, time: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(time)
    }
}

impl Client for UnixStream {
    fn again(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn close(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }

    fn read_within(&self, time: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(time)
    }
}

/// Where debuggers attach. The program is unchanged until one does.
#[derive(Debug)]
pub(crate) struct Port {
    debugger: Arc<Debugger>,
    /// Held while a client waits for an answer.
    busy: Arc<Mutex<()>>,
    /// A socket's file, which is removed at the end.
    file: Option<PathBuf>,
}

impl Port {
    /// Waits for debuggers on a separate thread.
    pub(crate) fn open(module: &Module, address: &str) -> Result<Self, Failure> {
        let address: Address = address.parse()?;
        let about = |error| Failure::new(error).about(format_args!("--debug-port {address}"));
        let listener = address.listen().map_err(about)?;
        if let Some(address) = listener.port().map_err(about)? {
            print(format_args!("a debugger can attach at {address}"));
        }
        let file = match &address {
            Address::Path(path) => Some(path.clone()),
            Address::Port(_) => None,
        };
        let debugger = Arc::new(Debugger::new(module));
        debugger.exits_by(execution::is_exit);
        let port = Self { debugger, busy: Arc::default(), file };
        let served = Arc::new(Served {
            debugger: port.debugger.clone(),
            busy: port.busy.clone(),
            client: Mutex::default(),
            is_attached: Mutex::default(),
            new: Mutex::default(),
        });
        let listen = move || match listener {
            Listener::Tcp(listener) => listener.incoming().for_each(|client| served.accept(client)),
            Listener::Unix(listener) => listener.incoming().for_each(|client| served.accept(client)),
        };
        thread::Builder::new().name("debug port".to_owned()).spawn(listen).map_err(about)?;
        Ok(port)
    }

    /// What debuggers use.
    pub(crate) fn debugger(&self) -> Arc<Debugger> {
        self.debugger.clone()
    }

    /// A thread of the program that can be paused.
    pub(crate) fn add_thread(&self, handle: InterruptHandle) {
        self.debugger.add_thread(handle);
    }

    /// Tells the client, who may have attached, that the program has ended.
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.debugger.ended(outcome);
        // Waits until the client has its answer.
        drop(self.busy.lock());
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}

/// What the threads of clients share.
struct Served {
    debugger: Arc<Debugger>,
    busy: Arc<Mutex<()>>,
    /// Held by the client that is served.
    client: Mutex<()>,
    /// Whether there is a session: without one, nothing would resume a program that is paused.
    is_attached: Mutex<bool>,
    new: Mutex<NewClients>,
}

/// The clients that have not begun, with what closes their connections. They are numbered in the
/// order in which they came.
#[derive(Default)]
struct NewClients {
    so_far: u64,
    close: BTreeMap<u64, Box<dyn Fn() + Send>>,
}

/// A session with the program, which is released when it ends.
struct Attached<'s>(&'s Served);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let mut is_attached = self.0.is_attached();
        *is_attached = false;
        self.0.debugger.release();
    }
}

impl Served {
    fn accept(self: &Arc<Self>, client: io::Result<impl Client>) {
        let Ok(client) = client else { return thread::sleep(AGAIN) };
        let served = self.clone();
        // A connection that fails, or for which there is no thread, is closed.
        let serve = move || _ = served.serve(client);
        let _ = thread::Builder::new().name("debugger".to_owned()).spawn(serve);
    }

    fn new_clients(&self) -> MutexGuard<'_, NewClients> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait for the first byte of a client; returns its number. If too many wait, the
    /// connection of the first one is closed.
    fn add_new(&self, client: impl Client) -> u64 {
        let mut new = self.new_clients();
        if new.close.len() >= MAX_NEW
            && let Some((_, close)) = new.close.pop_first()
        {
            close();
        }
        new.so_far += 1;
        let number = new.so_far;
        new.close.insert(number, Box::new(move || client.close()));
        number
    }

    fn serve(&self, mut client: impl Client) -> io::Result<()> {
        let number = self.add_new(client.again()?);
        let first = first_byte(&mut client);
        self.new_clients().close.remove(&number);
        let first = first?;
        if matches!(first, b'+' | b'$' | 3) {
            let Some(turn) = self.turn() else {
                refused();
                return Ok(());
            };
            let busy = self.busy.lock();
            if !self.debugger.is_stopped() {
                self.debugger.pause();
            }
            let connection = client.again()?;
            let served = wasm_jit_debug::serve(&self.debugger, client).map(|_| ());
            drop((busy, turn));
            drop(connection);
            return served;
        }
        client.read_within(Some(PATIENCE))?;
        let line = read_line(&mut client)?;
        client.read_within(None)?;
        match line.as_str() {
            "pause" => {
                let is_attached = self.is_attached();
                if *is_attached {
                    self.debugger.pause();
                }
                Ok(())
            }
            "session" => match self.turn() {
                Some(turn) => self.session(turn, client),
                None => {
                    refused();
                    answer(&mut client, &text(Err("another debugger is attached".to_owned())))
                }
            },
            _ => Ok(()),
        }
    }

    fn is_attached(&self) -> MutexGuard<'_, bool> {
        self.is_attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to be served, unless another client is.
    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.client.try_lock() {
            Ok(turn) => Some(turn),
            // The thread of a client has panicked.
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Serves a client, whose connection is closed when it is another one's turn.
    fn session(&self, turn: MutexGuard<'_, ()>, mut client: impl Client) -> io::Result<()> {
        let (lines, is_gone) = lines(client.again()?)?;
        let mut busy = Some(self.busy.lock());
        *self.is_attached() = true;
        let attached = Attached(self);
        let (mut session, stopped) = Session::attach(self.debugger.clone(), is_gone);
        let served = (|| {
            answer(&mut client, &text(stopped))?;
            while session.is_running() {
                busy = None;
                let Ok(line) = lines.recv() else { return Ok(()) };
                busy = Some(self.busy.lock());
                match session.execute_or_complete(&line) {
                    Ok(Answer::Quit) => return Ok(()),
                    done => answer(&mut client, &text(done))?,
                }
            }
            Ok(())
        })();
        drop(attached);
        drop((busy, turn));
        // The thread that reads it ends as well.
        client.close();
        served
    }
}

/// Prints a line, whose reader may have gone.
fn print(text: fmt::Arguments<'_>) {
    fastinst_command_line::say("wasm-jit", text);
}

fn refused() {
    print(format_args!("--debug-port: another debugger is attached: a connection was refused"));
}

fn text(done: Result<Answer, String>) -> String {
    match done {
        Ok(Answer::Text(text)) => text.replace(FAILED, ""),
        Ok(Answer::Quit) => String::new(),
        Err(message) => format!("{FAILED}{message}"),
    }
}

fn answer(client: &mut impl ConnectionExt<Error = io::Error>, text: &str) -> io::Result<()> {
    client.write_all(text.replace('\0', "").as_bytes())?;
    client.write(0)?;
    client.flush()
}

/// Reads the lines of a client on a separate thread, which also notes that the client is gone.
fn lines(mut client: impl Client) -> io::Result<(Receiver<String>, Arc<AtomicBool>)> {
    let (sender, lines) = sync_channel(MAX_LINES);
    let is_gone = Arc::new(AtomicBool::new(false));
    let gone = is_gone.clone();
    let read = move || {
        while let Ok(line) = read_line(&mut client)
            && sender.try_send(line).is_ok()
        {}
        gone.store(true, Ordering::Release);
    };
    thread::Builder::new().name("commands".to_owned()).spawn(read)?;
    Ok((lines, is_gone))
}

/// Waits for the first byte of a client.
fn first_byte(client: &mut impl Client) -> io::Result<u8> {
    let begun = Instant::now();
    loop {
        match client.peek()? {
            Some(first) => return Ok(first),
            None if begun.elapsed() > PATIENCE => return Err(io::ErrorKind::TimedOut.into()),
            None => thread::sleep(POLL),
        }
    }
}

fn read_line(client: &mut impl ConnectionExt<Error = io::Error>) -> io::Result<String> {
    let mut line = Vec::new();
    loop {
        match ConnectionExt::read(client)? {
            b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
            _ if line.len() == MAX_LINE => return Err(io::ErrorKind::InvalidData.into()),
            byte => line.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use gdbstub::conn::Connection;
    use wasm_jit::{Engine, Linker, Store};

    use super::*;

    /// Runs until a debugger sets `$stop`.
    const LOOP: &str = r#"(module (global $stop (mut i32) (i32.const 0))
        (func (export "main") (loop $again (br_if $again (i32.eqz (global.get $stop))))))"#;

    /// A client to which answers cannot be written: the attempt panics.
    struct Panics(UnixStream);

    impl Connection for Panics {
        type Error = io::Error;

        fn write(&mut self, _: u8) -> io::Result<()> {
            panic!("written to")
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl ConnectionExt for Panics {
        fn read(&mut self) -> io::Result<u8> {
            ConnectionExt::read(&mut self.0)
        }

        fn peek(&mut self) -> io::Result<Option<u8>> {
            ConnectionExt::peek(&mut self.0)
        }
    }

    impl Client for Panics {
        fn again(&self) -> io::Result<Self> {
            self.0.try_clone().map(Self)
        }

        fn close(&self) {
            self.0.close();
        }

        fn read_within(&self, time: Option<Duration>) -> io::Result<()> {
            self.0.set_read_timeout(time)
        }
    }

    fn served(debugger: &Arc<Debugger>) -> Served {
        let (busy, client, is_attached, new) = Default::default();
        Served { debugger: debugger.clone(), busy, client, is_attached, new }
    }

    #[test]
    fn a_pause_without_a_session_has_no_effect() {
        const CALLS: &str = r#"(module (import "host" "go_on" (func $go_on (result i32)))
            (func (export "main") (loop $again (br_if $again (call $go_on)))))"#;
        let module = Module::new(&Engine::default(), CALLS).unwrap();
        let debugger = Arc::new(Debugger::new(&module));
        let served = served(&debugger);
        let (arrives, arrived) = sync_channel(0);
        let program = thread::spawn(move || {
            let mut store = Store::new(module.engine(), ());
            debugger.add_thread(store.interrupt_handle());
            let mut linker = Linker::new(module.engine());
            // Ends when nothing receives any more.
            let go_on = move || i32::from(arrives.send(()).is_ok());
            linker.func_wrap("host", "go_on", go_on).unwrap();
            let instance = linker.instantiate(&mut store, &module).unwrap();
            let main = instance.get_func(&mut store, "main").unwrap();
            main.call(&mut store, &[], &mut []).unwrap();
        });
        let (mut client, other) = UnixStream::pair().unwrap();
        Write::write_all(&mut client, b"pause\n").unwrap();
        served.serve(other).unwrap();
        // It would stop within some milliseconds.
        for _ in 0..20_000 {
            arrived.recv_timeout(Duration::from_secs(20)).expect("the program goes on");
        }
        drop(arrived);
        program.join().unwrap();
    }

    /// Runs a program on a thread of its own.
    fn started(module: Module, debugger: Arc<Debugger>) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            let mut store = Store::new(module.engine(), ());
            debugger.add_thread(store.interrupt_handle());
            let instance = Linker::new(module.engine()).instantiate(&mut store, &module).unwrap();
            let main = instance.get_func(&mut store, "main").unwrap();
            main.call(&mut store, &[], &mut []).unwrap();
            debugger.ended(Outcome::returned(""));
        })
    }

    #[test]
    fn a_client_that_sends_too_much_and_dies_releases_the_program() {
        let module = Module::new(&Engine::default(), LOOP).unwrap();
        let debugger = Arc::new(Debugger::new(&module));
        let served = Arc::new(served(&debugger));
        let (ends, ended) = sync_channel(1);
        let program = started(module, debugger);
        let (mut client, other) = UnixStream::pair().unwrap();
        let of_thread = served.clone();
        thread::spawn(move || {
            _ = of_thread.serve(other);
            ends.send(()).unwrap();
        });
        Write::write_all(&mut client, b"session\n").unwrap();
        let mut byte = [1];
        while byte != [0] {
            Read::read_exact(&mut client, &mut byte).unwrap();
        }
        let lines = format!("continue\n{}", "print 1\n".repeat(MAX_LINES + 10));
        Write::write_all(&mut client, lines.as_bytes()).unwrap();
        drop(client);
        ended.recv_timeout(Duration::from_secs(20)).expect("the client is gone");
        let (mut client, other) = UnixStream::pair().unwrap();
        Write::write_all(&mut client, b"session\nset $stop = 1\ncontinue\n").unwrap();
        let reader = thread::spawn(move || client.read_to_string(&mut String::new()));
        let _ = served.serve(other);
        reader.join().unwrap().unwrap();
        program.join().unwrap();
    }

    #[test]
    fn the_first_of_many_silent_clients_is_closed() {
        let module = Module::new(&Engine::default(), LOOP).unwrap();
        let served = Arc::new(served(&Arc::new(Debugger::new(&module))));
        let mut clients = Vec::new();
        for number in 1..=MAX_NEW + 1 {
            let (client, other) = UnixStream::pair().unwrap();
            client.set_read_timeout(Some(PATIENCE / 2)).unwrap();
            clients.push(client);
            served.accept(Ok(other));
            while served.new_clients().so_far < number as u64 {
                thread::yield_now();
            }
        }
        assert_eq!(Read::read(&mut clients[0], &mut [0]).unwrap(), 0);
        clients[1].set_nonblocking(true).unwrap();
        assert_eq!(Read::read(&mut clients[1], &mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_panic_in_a_session_releases_the_program() {
        let module = Module::new(&Engine::default(), LOOP).unwrap();
        let debugger = Arc::new(Debugger::new(&module));
        let served = served(&debugger);
        let program = started(module, debugger);
        let (mut client, other) = UnixStream::pair().unwrap();
        Write::write_all(&mut client, b"session\n").unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| served.serve(Panics(other)))).is_err());
        assert!(!served.debugger.is_stopped() && !served.debugger.catches_traps());
        // Another client is served.
        let (mut client, other) = UnixStream::pair().unwrap();
        Write::write_all(&mut client, b"session\nset $stop = 1\ncontinue\n").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| served.serve(other).unwrap());
            let mut answers = String::new();
            client.read_to_string(&mut answers).unwrap();
            assert_eq!(answers.matches('\0').count(), 3, "{answers:?}");
        });
        program.join().unwrap();
    }
}
