//! The threads of the service and of its tool, as distinct from those of the program.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// See [`own_threads`].
pub(super) static OWN_THREADS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

/// The kernel ids of the service thread, of its [companion](super::spawn_companion), and of the
/// thread that remains in the table of the process when the service thread has [its
/// own](super::Descriptors::Own); 0 for a thread that does not exist.
pub fn own_threads() -> [u32; 3] {
    OWN_THREADS.each_ref().map(|id| id.load(Ordering::Relaxed))
}

/// How many of the [own threads](own_threads) exist.
pub fn own_thread_count() -> usize {
    own_threads().iter().filter(|id| **id != 0).count()
}

pub(super) fn thread_id() -> u32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// The clock of processor time of a thread of this process, by its kernel id: CPUCLOCK_SCHED,
/// CPUCLOCK_PERTHREAD_MASK (Linux, include/linux/posix-timers_types.h). Unlike the clock of the
/// process, it includes the time since the last timer tick for a thread that runs on another
/// processor.
pub fn clock_of(thread: u32) -> libc::clockid_t {
    !(thread as i32) << 3 | 4 | 2
}

/// The number of threads of the process whose `/proc/PID/task` this is: the directory has two
/// links, and one for each directory in it.
pub fn number_of_threads(task: &std::fs::Metadata) -> u64 {
    task.nlink().saturating_sub(2)
}

/// Whether the process has no more than this number of threads, which are those of the tool: `main`
/// has ended by `pthread_exit`, and all other threads have ended. The tool's threads must not keep
/// the process alive; when the last of them returns, the C library ends the process, as it does
/// after any last thread.
///
/// The C library's own counter is read, because `/proc` may be out of reach: the program may have
/// changed its root directory.
#[must_use]
pub fn only_these_remain(number: usize) -> bool {
    match counter_of_threads() {
        Some(counter) => counter.load(Ordering::Relaxed) as usize <= number,
        None => only_these_remain_in_proc(number),
    }
}

/// The number of threads by which the C library decides whether one that ends is the last one:
/// glibc exports it for debuggers (nptl/Versions). `None` in a static program.
fn counter_of_threads() -> Option<&'static AtomicU32> {
    static COUNTER: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    *COUNTER.get_or_init(|| {
        // SAFETY: the name is a C string. The variable is an aligned `unsigned int` in an object
        // that is never unloaded, and glibc accesses it only by atomic instructions.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()).cast::<AtomicU32>().as_ref() }
    })
}

/// As [`only_these_remain`], according to `/proc`; false if that cannot be read.
fn only_these_remain_in_proc(number: usize) -> bool {
    // The main thread remains as a zombie.
    let threads = std::fs::metadata("/proc/self/task").map_or(u64::MAX, |task| number_of_threads(&task));
    threads <= 1 + number as u64
        && std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| {
            stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('Z'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_counts_threads() {
        let counter = counter_of_threads().expect("glibc has a counter");
        assert!(counter.load(Ordering::Relaxed) >= 2, "the main thread, and the one of this test");
        assert!(!only_these_remain(1) && only_these_remain(usize::MAX));
    }
}
