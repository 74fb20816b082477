//! Runs a program to its end, and measures its resources.

use std::fs::File;
use std::io::{Error, Read, Seek};
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Resources and results of one run.
#[derive(Debug)]
pub struct Run {
    /// Elapsed time of the process.
    pub elapsed: Duration,
    /// User and system time of all threads.
    pub cpu_seconds: f64,
    /// Peak memory use, in bytes. Never less than that of this process.
    pub peak_rss: u64,
    /// Exit status of the process.
    pub status: ExitStatus,
    /// Standard output of the process.
    pub output: Vec<u8>,
}

/// Runs `command` with empty input; its standard error is that of this process, unless the command
/// redirects it.
///
/// # Panics
/// If the program cannot be started.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
pub fn run(mut command: Command) -> Run {
    let mut output = tempfile::tempfile().expect("a temporary file can be made");
    let stdout: File = output.try_clone().expect("a file can be opened twice");
    let begin = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(stdout).spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: memory of the right types; the child is ours, and nothing else waits for it.
    let ended = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) };
    let elapsed = begin.elapsed();
    assert!(ended > 0, "{command:?} cannot be waited for: {}", Error::last_os_error());
    // SAFETY: the call has initialized it, and all zero is valid too.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let mut bytes = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut bytes)).expect("the output can be read");
    Run {
        elapsed,
        cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        peak_rss: usage.ru_maxrss as u64 * 1024,
        status: ExitStatus::from_raw(status),
        output: bytes,
    }
}
