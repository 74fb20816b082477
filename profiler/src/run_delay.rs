//! For how long a thread was ready to run and had no processor, as the kernel counts it
//! (Documentation/scheduler/sched-stats.rst, `schedstat` of /proc). Without /proc, and in kernels
//! without these statistics, it is not known.

use std::ffi::CStr;
use std::fs;

/// That of a thread of this process, by its kernel id, in nanoseconds. For the service thread.
pub(crate) fn of(thread: u32) -> Option<u64> {
    parse(&fs::read(format!("/proc/self/task/{thread}/schedstat")).ok()?)
}

/// That of the calling thread, in nanoseconds. Some microseconds; allocates nothing, and leaves
/// `errno` alone.
pub(crate) fn of_caller() -> Option<u64> {
    const PATH: &CStr = c"/proc/thread-self/schedstat";
    let mut text = [0_u8; 80];
    // SAFETY: a C string, and a buffer of this length; the descriptor is this function's own.
    // `errno` belongs to this thread.
    let length = unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let file = libc::open(PATH.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let length = if file < 0 { -1 } else { libc::read(file, text.as_mut_ptr().cast(), text.len()) };
        if file >= 0 {
            libc::close(file);
        }
        *errno = before;
        length
    };
    parse(text.get(..usize::try_from(length).ok()?)?)
}

/// The second of three numbers.
fn parse(statistics: &[u8]) -> Option<u64> {
    std::str::from_utf8(statistics).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_its_own() {
        let own = nix::unistd::gettid().as_raw() as u32;
        // It may wait for a processor between two of them.
        let before = of(own).expect("the kernel counts it");
        let between = of_caller().expect("the kernel counts it");
        let after = of(own).expect("the kernel counts it");
        assert!((before..=after).contains(&between), "{before} {between} {after}");
        assert_eq!(of(0), None, "there is no such thread");
        assert_eq!(parse(b"1 2"), Some(2));
        assert_eq!(parse(b"0"), None);
    }
}
