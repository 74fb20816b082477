//! The service thread's own table of file descriptors.
//!
//! A file that a thread of the library opens gets the lowest free number in the table of the
//! process. A daemon closes its descriptors and expects the numbers 0, 1 and 2 for what it opens
//! next; others close every number that they do not know, and a report would be written to
//! whatever gets the number after that. Closing a file also releases the process's record locks on
//! it (fcntl(2)). Thus the thread leaves the table (close_range(2), `CLOSE_RANGE_UNSHARE`; Linux
//! 5.9) and has an empty one.
//!
//! What the thread writes to the program's standard error is written by another one, which remains
//! in the table of the process ([`LastThread`]). Rejected: a copy of standard error in the own
//! table, which keeps a pipe open after a daemon has closed it, and cannot be had again after the
//! program has redirected standard error for some time.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use super::threads::{only_these_remain, own_threads, thread_id};

/// The numbers of the standard streams.
const STANDARD: usize = 3;

/// The interval of checks whether the service thread has ended, which is about to.
const UNTIL_THE_END: Duration = Duration::from_millis(1);

/// Leaves the table that the calling thread shares with the rest of the process. The thread must
/// not use any descriptor that it had before.
///
/// # Errors
/// The kernel cannot do it, or the program forbids it: the thread shares the table as before.
pub fn leave_table() -> io::Result<()> {
    // SAFETY: the thread gets a table without the descriptors that are closed, and uses none of
    // them.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Messages of the standard library, about a panic for example, must not get into files that are
    // opened later. They fail.
    for _ in 0..STANDARD {
        let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/");
        root.into_iter().for_each(std::mem::forget);
    }
    Ok(())
}

/// Work for the last thread.
enum Order {
    Run(Box<dyn FnOnce() + Send>),
    /// The service thread ends.
    End,
}

/// The thread that shares the table of descriptors with the process, as the service thread that
/// has its own sees it. It ends after the service thread.
pub(super) struct LastThread {
    orders: Sender<Order>,
}

impl LastThread {
    /// The orders of a service thread, and what the last thread does.
    pub(super) fn new() -> (Self, impl FnOnce() + Send) {
        let (orders, carried_out) = mpsc::channel();
        let run = move || {
            loop {
                match carried_out.recv() {
                    Ok(Order::Run(act)) => act(),
                    Ok(Order::End) => break,
                    // The service thread has not left the table.
                    Err(_) => return,
                }
            }
            while !only_these_remain(1) {
                thread::sleep(UNTIL_THE_END);
            }
        };
        (Self { orders }, run)
    }

    /// Has the thread do something, and waits for the result; `None` if it has ended.
    pub(super) fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, result) = mpsc::channel();
        // The receiver waits.
        let act = Box::new(move || _ = sender.send(act()));
        self.orders.send(Order::Run(act)).ok()?;
        result.recv().ok()
    }

    /// Lets the thread wait for the end of the service thread. Called at that end.
    pub(super) fn end(&self) {
        // It may have panicked.
        let _ = self.orders.send(Order::End);
    }
}

/// The thread that shares the table of descriptors with the process, if the service thread has left
/// it. Never freed: a forked child could not lock what the parent's threads had locked.
pub(super) static LAST_THREAD: AtomicPtr<LastThread> = AtomicPtr::new(ptr::null_mut());

/// The last thread, if the calling thread has its own table of descriptors.
fn last_thread() -> Option<&'static LastThread> {
    // SAFETY: null, or a thread that is never freed.
    let thread = || unsafe { LAST_THREAD.load(Ordering::Relaxed).as_ref() };
    (own_threads()[0] == thread_id()).then(thread).flatten()
}

/// Whether the calling thread has its own table of descriptors. Async-signal-safe.
pub fn has_own_descriptors() -> bool {
    last_thread().is_some()
}

/// Does something that uses the descriptors of the process, on another thread if the calling thread
/// [has its own](has_own_descriptors), and waits for the result. `None` if that thread has ended.
pub fn with_descriptors_of_process<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match last_thread() {
        Some(thread) => thread.run(act),
        None => Some(act()),
    }
}
