//! Whether the process has started other processes since its session began.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Set when this process forks.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// The page faults of children that this process had waited for when [`begin`] was called, and
/// whether it had others: a program that calls exec keeps its children.
static FAULTS_BEFORE: AtomicI64 = AtomicI64::new(0);
static HAD_CHILDREN: AtomicBool = AtomicBool::new(false);

/// The page faults of the children that were waited for; every process has some.
fn faults_of_children() -> i64 {
    // SAFETY: all zero is a valid value, and the call writes nothing else.
    unsafe {
        let mut used: libc::rusage = MaybeUninit::zeroed().assume_init();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut used);
        used.ru_minflt + used.ru_majflt
    }
}

/// Whether there are children that have not been waited for.
fn has_children() -> bool {
    // SAFETY: all zero is a valid value, and the call writes nothing else. WNOWAIT does not reap
    // the child.
    unsafe {
        let mut child: libc::siginfo_t = MaybeUninit::zeroed().assume_init();
        libc::waitid(libc::P_ALL, 0, &mut child, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) == 0
    }
}

/// Records the children that already exist.
pub(crate) fn begin() {
    FAULTS_BEFORE.store(faults_of_children(), Ordering::Relaxed);
    HAD_CHILDREN.store(has_children(), Ordering::Relaxed);
}

/// Records a fork.
pub(crate) fn has_forked() {
    HAS_FORKED.store(true, Ordering::Relaxed);
}

/// Whether this program has started other processes, by any means: these may have their own
/// reports.
pub(crate) fn were_made() -> bool {
    HAS_FORKED.load(Ordering::Relaxed)
        || faults_of_children() > FAULTS_BEFORE.load(Ordering::Relaxed)
        || has_children() && !HAD_CHILDREN.load(Ordering::Relaxed)
}
