//! Threads that block SIGTRAP: finding them, and starting threads that do not block it.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};

use crate::Error;

/// Runs `act` with all signals except SIGTRAP blocked, in order to start a thread that never runs
/// the program's handlers but can execute a locked site. Affects only the calling thread and the
/// threads that `act` starts.
pub fn with_signals_blocked<R>(act: impl FnOnce() -> R) -> R {
    struct Restore(SigSet);
    impl Drop for Restore {
        fn drop(&mut self) {
            // Cannot fail: the mask was in force before.
            let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.0), None);
        }
    }
    let mut mask = SigSet::all();
    mask.remove(Signal::SIGTRAP);
    let mut before = SigSet::empty();
    let blocked = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), Some(&mut before));
    let _restore = blocked.is_ok().then(|| Restore(before));
    act()
}

/// How long a thread must block the signal before it is reported. The C library blocks all signals
/// while a thread starts and ends, which includes the time that the thread waits for a processor.
const LONG_BLOCKED: Duration = Duration::from_millis(200);

/// Checks that no thread of this process blocks SIGTRAP: the kernel kills the process when such a
/// thread executes a locked site. Threads that have ended, as the main thread can while others run,
/// are not considered. Reads `/proc/self/task`, which takes about ten microseconds per thread, so
/// patches do not call this; it takes 200 ms to report a thread. Threads that block the signal
/// later are not detected.
///
/// # Errors
/// [`Error::SigtrapBlocked`] with a thread that blocks the signal; [`Error::ThreadsUnknown`] if
/// `/proc` cannot be read.
pub fn check_sigtrap_unblocked() -> Result<(), Error> {
    let unreadable = |source| Error::ThreadsUnknown { source };
    for task in std::fs::read_dir("/proc/self/task").map_err(unreadable)? {
        let task = task.map_err(unreadable)?;
        let begin = Instant::now();
        let is_long = || begin.elapsed() >= LONG_BLOCKED;
        if stays_blocked(|| blocks_sigtrap(&task.path()), is_long).map_err(unreadable)? {
            let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
            return Err(Error::SigtrapBlocked { thread: thread.unwrap_or(0) });
        }
    }
    Ok(())
}

/// Whether the signal is blocked at every check until `is_long`.
fn stays_blocked(
    mut is_blocked: impl FnMut() -> io::Result<bool>,
    is_long: impl Fn() -> bool,
) -> io::Result<bool> {
    while is_blocked()? {
        if is_long() {
            return Ok(true);
        }
        std::thread::yield_now();
    }
    Ok(false)
}

/// Whether the thread of this directory blocks the signal; false if the thread has ended.
fn blocks_sigtrap(folder: &Path) -> io::Result<bool> {
    match std::fs::read_to_string(folder.join("status")) {
        Ok(status) => mask_has_sigtrap(&status).ok_or_else(|| ErrorKind::InvalidData.into()),
        Err(ended) if ended.kind() == ErrorKind::NotFound || ended.raw_os_error() == Some(libc::ESRCH) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether SIGTRAP is in the mask of blocked signals of a `status` file (proc(5)), and the thread
/// can still execute code: a main thread that has ended is a zombie as long as others run.
fn mask_has_sigtrap(status: &str) -> Option<bool> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mask = u64::from_str_radix(field("SigBlk:")?, 16).ok()?;
    let has_ended = field("State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    Some(mask & 1 << (libc::SIGTRAP - 1) != 0 && !has_ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_mask_of_a_status_file() {
        let with =
            |mask: &str| mask_has_sigtrap(&format!("Name:\tx\nSigPnd:\t10\nSigBlk:\t{mask}\nSigIgn:\t10\n"));
        assert_eq!(with("0000000000000010"), Some(true));
        assert_eq!(with("fffffffffffbfeff"), Some(true));
        assert_eq!(with("ffffffffffffffef"), Some(false));
        assert_eq!(with("?"), None);
        let of_state = |state: &str| mask_has_sigtrap(&format!("State:\t{state}\nSigBlk:\t{:x}\n", u64::MAX));
        assert_eq!(["S (sleeping)", "Z (zombie)", "X (dead)"].map(of_state), [true, false, false].map(Some));
        assert_eq!(mask_has_sigtrap("SigIgn:\t10\n"), None);
    }

    #[test]
    fn a_thread_that_blocks_the_signal_for_a_moment_is_not_reported() {
        let looks = Cell::new(0);
        let look = |blocked: fn(u32) -> bool| {
            looks.set(looks.get() + 1);
            Ok(blocked(looks.get()))
        };
        let is_long = || looks.get() >= 10;
        assert!(!stays_blocked(|| look(|look| look < 10), is_long).unwrap());
        looks.set(0);
        assert!(stays_blocked(|| look(|_| true), is_long).unwrap());
        assert_eq!(looks.get(), 10);
        assert!(stays_blocked(|| Err(ErrorKind::PermissionDenied.into()), || true).is_err());
    }

    #[test]
    fn every_signal_but_sigtrap_is_blocked_during_the_call() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut before = SigSet::empty();
                before.add(Signal::SIGUSR1);
                before.thread_set_mask().unwrap();
                let signals = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGTRAP];
                let blocked = || {
                    let mask = SigSet::thread_get_mask().unwrap();
                    signals.map(|signal| mask.contains(signal))
                };
                assert_eq!(with_signals_blocked(blocked), [true, true, true, false]);
                assert_eq!(blocked(), [true, false, false, false], "as before");
                let panics = std::panic::catch_unwind(|| {
                    with_signals_blocked(|| std::panic::resume_unwind(Box::new(())))
                });
                assert!(panics.is_err());
                assert_eq!(blocked(), [true, false, false, false], "as before, after a panic");
            });
        });
    }

    #[test]
    fn a_thread_that_has_ended_blocks_nothing() {
        assert!(!blocks_sigtrap(Path::new("/proc/self/task/0")).unwrap());
    }
}
