//! Processors for tests whose threads must run at the same moment.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Two processors that this process may use; `None`, with a message, if there is only one.
pub(crate) fn two() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("the processors of this thread");
    let mut usable = (0..CpuSet::count()).filter(|processor| allowed.is_set(*processor).unwrap_or(false));
    let two = usable.next().zip(usable.next());
    if two.is_none() {
        eprintln!("skipped: the process may use one processor only, so threads cannot run at the same time");
    }
    two.map(|(first, second)| [first, second])
}

/// Pins the calling thread to this processor.
pub(crate) fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor).expect("a processor that exists");
    sched_setaffinity(Pid::from_raw(0), &set).expect("the processor is one that the thread may use");
}
