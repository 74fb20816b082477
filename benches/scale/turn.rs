//! One measurement: threads execute a site while another toggles it.
//!
//! The toggling thread keeps its pace by the time-stamp counter, in a busy wait, and runs the same
//! busy wait if it toggles nothing: so its own cost for the executors is part of everything that is
//! compared.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use benches::clock::{self, thread_time_ns};
use benches::distribution::Distribution;
use benches::pace::{Pace, toggle_for};
use wordpatch::serialize_all_cores;

use crate::method::ToggleMethod;

/// A measured case: a site, the number of threads that execute it, the rate of toggles. Measured
/// once per turn.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) site: String,
    pub(crate) executors: usize,
    pub(crate) pace: Pace,
    pub(crate) turns: Vec<Turn>,
}

impl Measured {
    /// Over the turns.
    pub(crate) fn distribution(&self, of: impl Fn(&Turn) -> f64) -> Distribution {
        Distribution::of(self.turns.iter().map(of).collect())
    }
}

/// The executors' counts in one measurement. A state is 0 for off, and 1 for on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// Number of executions in each state.
    pub(crate) executions: [u64; 2],
    /// Total run time.
    pub(crate) ns: f64,
    /// Processor time.
    pub(crate) processor_ns: f64,
    /// Number of toggles.
    pub(crate) toggles: u64,
    /// Duration of the toggling.
    pub(crate) elapsed_ns: f64,
}

impl Run {
    /// Executions of all executors per second.
    pub(crate) fn throughput(&self, executors: usize) -> f64 {
        self.executions.iter().sum::<u64>() as f64 / (self.ns / executors as f64) * 1e9
    }

    pub(crate) fn toggles_per_second(&self) -> f64 {
        self.toggles as f64 / self.elapsed_ns * 1e9
    }
}

/// A toggled site, and the same site left in each state just before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) untoggled: [Run; 2],
    pub(crate) toggled: Run,
}

impl Turn {
    /// The time that the executions would have taken untoggled, by the time that `of` returns for a
    /// run.
    fn untoggled_time(&self, of: fn(&Run) -> f64) -> [f64; 2] {
        [0, 1].map(|state| {
            let alone = &self.untoggled[state];
            self.toggled.executions[state] as f64 * of(alone) / alone.executions[state] as f64
        })
    }

    /// Throughput relative to that of as many untoggled executions in each state, by elapsed time.
    pub(crate) fn relative(&self) -> f64 {
        self.untoggled_time(|run| run.ns).iter().sum::<f64>() / self.toggled.ns
    }

    /// The same by processor time: excludes other work on the machine.
    pub(crate) fn relative_by_processor_time(&self) -> f64 {
        self.untoggled_time(|run| run.processor_ns).iter().sum::<f64>() / self.toggled.processor_ns
    }

    /// The share of executions in which the site was on.
    pub(crate) fn active_part(&self) -> f64 {
        let [off, on] = self.toggled.executions;
        on as f64 / (on + off) as f64
    }

    /// The share of the executors' time in executions in which the site was on.
    pub(crate) fn active_time(&self) -> f64 {
        let [off, on] = self.untoggled_time(|run| run.processor_ns);
        on / (on + off)
    }
}

/// Stops the executors, even if an assertion fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Executions between two checks whether to stop.
const CHUNK: u64 = 4096;

/// Measures `method` at `pace`, starting in `state`, and restores that state.
pub(crate) fn run(
    method: &mut ToggleMethod,
    executors: usize,
    pace: Pace,
    state: usize,
    ms: u64,
    ticks_per_ns: f64,
) -> Run {
    method.set(state);
    serialize_all_cores().expect("membarrier is allowed");
    let ToggleMethod { execute, toggler, .. } = method;
    let (begin, is_over) = (Barrier::new(executors + 1), AtomicBool::new(false));
    let executor = || {
        begin.wait();
        let (mut executions, mut active) = (0, 0);
        let (since, had) = (clock::now(), thread_time_ns());
        while !is_over.load(Ordering::Relaxed) {
            active += execute(CHUNK);
            executions += CHUNK;
        }
        let ns = clock::now().wrapping_sub(since) as f64 / ticks_per_ns;
        let processor_ns = thread_time_ns() - had;
        Run { executions: [executions - active, active], ns, processor_ns, ..Run::default() }
    };
    let mut total = thread::scope(|scope| {
        let end = End(&is_over);
        let threads: Vec<_> = (0..executors).map(|_| scope.spawn(executor)).collect();
        begin.wait();
        let duration = (ms as f64 * 1e6 * ticks_per_ns) as u64;
        let (toggles, elapsed) = toggle_for(duration, pace.interval(ticks_per_ns), |toggles| {
            let is_settled = toggler.is_settled();
            if is_settled && let Some(number) = toggles {
                toggler.toggle(state ^ (number & 1) as usize);
            }
            is_settled
        });
        drop(end);
        let mut total = Run { toggles, elapsed_ns: elapsed as f64 / ticks_per_ns, ..Run::default() };
        for thread in threads {
            let run = thread.join().expect("an executor has failed");
            total.ns += run.ns;
            total.processor_ns += run.processor_ns;
            total.executions = [0, 1].map(|seen| total.executions[seen] + run.executions[seen]);
        }
        total
    });
    method.set(state);
    if pace == Pace::Never {
        assert_eq!(total.executions[1 - state], 0, "{} is left alone in state {state}", method.name);
        total.toggles = 0;
    }
    total
}
