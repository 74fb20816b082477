//! Signals at random moments, whose handler executes the patched sites on an alternate stack: on
//! executing threads and on the patching threads themselves, in the middle of a patch.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use wordpatch::{Error, Patch, patch, patch_all, start_patch};

use crate::defect;
use crate::executor::run_once;
use crate::run::{Kind, Run, Worker};
use crate::sites::{self, Change, Value, bytes_at, execute, holds};

const PATCHERS: usize = 2;
const EACH: usize = 10;
const EXECUTORS: usize = 2;
const THREADS: usize = PATCHERS + EXECUTORS;

/// Read by the handler: every site.
static SITES: AtomicPtr<usize> = AtomicPtr::new(std::ptr::null_mut());
static SITE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Counted by the handler.
static HANDLED: AtomicU64 = AtomicU64::new(0);
static OFF_THE_STACK: AtomicU64 = AtomicU64::new(0);
static TORN: AtomicU64 = AtomicU64::new(0);

/// Kernel thread ids of the threads that get signals; 0 before and after.
static TARGETS: [AtomicI32; THREADS] = [const { AtomicI32::new(0) }; THREADS];

thread_local! {
    /// Start and end of the thread's alternate stack.
    static STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Signal handler: executes every site, and updates atomics only.
extern "C" fn handle(_: libc::c_int) {
    let on_stack = STACK.with(|stack| {
        let (start, end) = stack.get();
        let local = 0_u8;
        let at = std::hint::black_box(&raw const local) as usize;
        start <= at && at < end
    });
    if !on_stack {
        OFF_THE_STACK.fetch_add(1, Ordering::Relaxed);
    }
    let count = SITE_COUNT.load(Ordering::Acquire);
    let sites = SITES.load(Ordering::Acquire);
    for number in 0..count {
        // SAFETY: `run` has stored a slice of this length, which is never freed.
        if execute(unsafe { *sites.add(number) }).is_none() {
            TORN.fetch_add(1, Ordering::Relaxed);
        }
    }
    HANDLED.fetch_add(1, Ordering::Release);
}

fn install(handler: usize) {
    // SAFETY: all zero is a valid action; the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0, "sigaction");
    }
}

pub(crate) fn run(run: &Run) {
    // Leaked: a thread with a pending signal may end later than this function.
    let sites = sites::make(PATCHERS * EACH).leak();
    SITES.store(sites.as_mut_ptr(), Ordering::Release);
    SITE_COUNT.store(sites.len(), Ordering::Release);
    install(handle as *const () as usize);
    thread::scope(|scope| {
        for (number, mine) in sites.chunks(EACH).enumerate() {
            scope.spawn(move || {
                let mut worker = run.worker(format!("signalled patcher {number}"));
                with_alternate_stack(number, || patch_round(&mut worker, mine));
            });
        }
        for number in PATCHERS..THREADS {
            let sites = &*sites;
            scope.spawn(move || {
                let worker = run.worker(format!("signalled executor {number}"));
                with_alternate_stack(number, || {
                    while worker.continues() {
                        (0..64).for_each(|_| run_once(&worker, sites));
                    }
                });
            });
        }
        scope.spawn(|| send(run, sites.len() as u64));
        scope.spawn(|| defect::inject(run, sites));
    });
    install(libc::SIG_IGN);
    SITE_COUNT.store(0, Ordering::Release);
    for (count, kind, what) in [
        (&TORN, Kind::Torn, "mixtures were executed in a signal handler"),
        (&OFF_THE_STACK, Kind::Other, "handlers have not run on the alternate stack"),
    ] {
        let count = count.load(Ordering::Relaxed);
        run.check(count == 0, kind, || format!("{count} {what}"));
    }
}

/// Runs `act` on a thread with an alternate signal stack.
fn with_alternate_stack(number: usize, act: impl FnOnce()) {
    const SIZE: usize = 64 << 10;
    let mut stack = vec![0_u8; SIZE];
    let set = |stack: libc::stack_t| {
        let mut before = MaybeUninit::<libc::stack_t>::zeroed();
        // SAFETY: the stack is the vector's, which lives until it is no longer in use, or the
        // previous one.
        assert_eq!(unsafe { libc::sigaltstack(&stack, before.as_mut_ptr()) }, 0, "sigaltstack");
        // SAFETY: written by the kernel.
        unsafe { before.assume_init() }
    };
    let start = stack.as_mut_ptr();
    let before = set(libc::stack_t { ss_sp: start.cast(), ss_flags: 0, ss_size: SIZE });
    STACK.with(|stack| stack.set((start as usize, start as usize + SIZE)));
    // SAFETY: returns a number.
    TARGETS[number].store(unsafe { libc::gettid() }, Ordering::Release);
    act();
    TARGETS[number].store(0, Ordering::Release);
    // A pending signal may still arrive: on the stack that std provides for every thread.
    STACK.with(|stack| stack.set((0, usize::MAX)));
    set(before);
}

/// Gives the sites new values, each time by another interface.
fn patch_round(worker: &mut Worker<'_>, sites: &[usize]) {
    let mut values = vec![Value::FIRST; sites.len()];
    while worker.continues() {
        let next: Vec<Value> = values.iter().map(|value| value.other(&mut worker.random)).collect();
        let changes: Vec<Change> = sites
            .iter()
            .zip(values.iter().zip(&next))
            .map(|(site, (old, new))| Change::new(*site, *old, *new))
            .collect();
        let patches: Vec<_> = changes.iter().map(Change::patch).collect();
        let one_by_one =
            |act: &dyn Fn(&Patch<'_>) -> Result<(), Error>| patches.iter().map(act).collect::<Vec<_>>();
        let begin_and_finish = |one: &Patch<'_>| {
            // SAFETY: each site is one instruction that may hold any value, and no thread here
            // blocks SIGTRAP.
            unsafe { start_patch(one.address, one.expected, one.replacement) }?.finish()
        };
        let results = match worker.random.below(3) {
            // SAFETY: as above.
            0 => one_by_one(&|one| unsafe { patch(one.address, one.expected, one.replacement) }),
            1 => one_by_one(&begin_and_finish),
            // SAFETY: as above.
            _ => unsafe { patch_all(&patches) },
        };
        for ((site, result), value) in sites.iter().zip(&results).zip(&next) {
            worker.check(result.is_ok() && holds(*site, *value), Kind::Lost, || {
                format!("{result:?} at {site:#x}, {value:?} wanted, {:02x?} found", bytes_at(*site))
            });
        }
        worker.toggled(sites.len() as u64);
        values = next;
    }
}

/// Sends signals to random threads, the next one when the last was handled.
fn send(run: &Run, sites: u64) {
    let mut worker = run.worker("the sender of signals");
    while worker.continues() {
        let thread = TARGETS[worker.random.below(THREADS)].load(Ordering::Acquire);
        if thread == 0 {
            thread::yield_now();
            continue;
        }
        let before = HANDLED.load(Ordering::Acquire);
        // SAFETY: has no effect on memory except for the handler's. A thread that has ended in the
        // meantime gets none.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
        while sent == 0 && HANDLED.load(Ordering::Acquire) == before && !run.is_over() {
            thread::yield_now();
        }
        worker.executed((HANDLED.load(Ordering::Acquire) - before) * sites);
    }
}
