//! Forks at random moments of other threads' patches. The child executes the sites that it shares
//! with its parent, then gets its own copy of the text and patches that, while the parent
//! continues.

use std::thread;

use wordpatch::text::unshare;
use wordpatch::{finish_patch, patch, patch_all, start_patch};

use crate::defect;
use crate::executor;
use crate::run::{Kind, Run, Worker};
use crate::sites::{self, Change, Value, bytes_at, execute, holds};
use crate::unload::{data_over_patched_text, is_untouched};

const SITES: usize = 20;

/// The number of executions of each site by a child before it has its own text.
const TIMES: usize = 50;

/// Seconds after which the kernel kills a child.
const LIMIT: libc::c_uint = 25;

/// The exit code of a child that found no defect.
const FINE: i32 = 0;
const ENDS: [(i32, Kind, &str); 5] = [
    (11, Kind::Torn, "executed a mixture"),
    (12, Kind::Lost, "could not get its own text"),
    (13, Kind::Lost, "found a half patched site in its own text"),
    (14, Kind::Lost, "could not patch its own text"),
    (15, Kind::Lost, "found its data overwritten by unmapped text"),
];

pub(crate) fn run(run: &Run) {
    let sites = sites::make(2 * SITES);
    thread::scope(|scope| {
        let (batched, outstanding) = sites.split_at(SITES);
        scope.spawn(|| patch_round(run, batched, false));
        scope.spawn(|| patch_round(run, outstanding, true));
        scope.spawn(|| executor::run_all(run, "fork's executor".to_owned(), &sites));
        scope.spawn(|| fork_round(run, &sites));
        scope.spawn(|| defect::inject(run, &sites));
    });
}

/// Patches in batches, or one by one with all of them outstanding.
fn patch_round(run: &Run, sites: &[usize], one_by_one: bool) {
    let name = if one_by_one { "parent's outstanding patcher" } else { "parent's patcher" };
    let mut worker = run.worker(name);
    let mut values = vec![Value::FIRST; sites.len()];
    while worker.continues() {
        let next: Vec<Value> = values.iter().map(|value| value.other(&mut worker.random)).collect();
        let changes: Vec<Change> = sites
            .iter()
            .zip(values.iter().zip(&next))
            .map(|(site, (old, new))| Change::new(*site, *old, *new))
            .collect();
        let patches: Vec<_> = changes.iter().map(Change::patch).collect();
        let results = if one_by_one {
            // SAFETY: each site is one instruction that may hold any value, and no thread here
            // blocks SIGTRAP.
            let begin = |one: &wordpatch::Patch<'_>| unsafe {
                start_patch(one.address, one.expected, one.replacement)
            };
            let begun: Vec<_> = patches.iter().map(begin).collect();
            begun.into_iter().map(|one| one?.finish()).collect()
        } else {
            // SAFETY: as above.
            unsafe { patch_all(&patches) }
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

fn fork_round(run: &Run, sites: &[usize]) {
    let mut worker = run.worker("the thread that forks");
    let data = data_over_patched_text(&mut worker);
    while worker.continues() {
        // SAFETY: the child calls only what this crate permits after a fork, and ends with `_exit`.
        match unsafe { libc::fork() } {
            -1 => worker.found(Kind::Other, std::io::Error::last_os_error()),
            0 => {
                let end = live(sites, data);
                // SAFETY: ends the child.
                unsafe { libc::_exit(end) }
            }
            child => wait_for(&worker, child, sites.len()),
        }
    }
}

fn wait_for(worker: &Worker<'_>, child: libc::pid_t, sites: usize) {
    let mut status = 0;
    // SAFETY: writes the status.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return worker.found(Kind::Other, std::io::Error::last_os_error());
        }
    }
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let kind = if signal == libc::SIGALRM { Kind::Hung } else { Kind::Torn };
        return worker.found(kind, format_args!("a child was ended by signal {signal}"));
    }
    let code = libc::WEXITSTATUS(status);
    match ENDS.iter().find(|(end, ..)| *end == code) {
        _ if code == FINE => {
            worker.executed((sites * (TIMES + 3)) as u64);
            worker.toggled(sites as u64);
        }
        Some((_, kind, what)) => worker.found(*kind, format_args!("a child {what}")),
        None => worker.found(Kind::Other, format_args!("a child has ended with {code}")),
    }
}

/// The child; returns its exit code.
fn live(sites: &[usize], data: usize) -> i32 {
    let [(torn, ..), (shared, ..), (half, ..), (unpatched, ..), (overwritten, ..)] = ENDS;
    // SAFETY: sets a timer.
    unsafe { libc::alarm(LIMIT) };
    for _ in 0..TIMES {
        if sites.iter().any(|site| execute(*site).is_none()) {
            return torn;
        }
    }
    // SAFETY: the child has this one thread.
    if unsafe { unshare() }.is_err() {
        return shared;
    }
    if !is_untouched(data) {
        return overwritten;
    }
    for site in sites {
        let Some(value) = execute(*site) else { return torn };
        if !holds(*site, value) {
            return half;
        }
        // A patch that the parent had started is reported once, and is not the child's.
        let _ = finish_patch(*site);
        let next = value.next();
        // SAFETY: the site is one instruction that may hold any value; the child's thread does not
        // block SIGTRAP.
        let patched = unsafe { patch(*site, &value.form(), &next.form()) };
        if patched.is_err() || !holds(*site, next) || execute(*site) != Some(next) {
            return unpatched;
        }
        if execute(*site).is_none() {
            return torn;
        }
    }
    FINE
}
