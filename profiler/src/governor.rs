//! Keeps what profiling costs inside the budget, by how much is observed.
//!
//! # What is measured
//! 1. Probes: each reads the clock when it begins and when it ends; what lies outside these
//!    readings was measured at the start ([`crate::fire`]).
//! 2. The service thread: its processor time, which includes the toggles that it makes.
//! 3. Toggles: what they cost the threads that run through rewritten code (its cache line comes
//!    from the other processor, the pipeline starts anew) is not measured but assumed,
//!    [`DISTURBANCE`] each; the stated error contains nothing and twice that.
//! 4. The start: processor time until the program's own code runs, and what the service thread
//!    takes later for discovering probes (the time of that, to be exact).
//!
//! # The control
//! Every few milliseconds the cost since the last time is compared with the budget's share of the
//! processor time that the program took itself. What was spent too much or too little in all is to
//! be made up for within [`HORIZON`]; what the start took, within [`HORIZON_OF_START`], so that a
//! short run is not spent on paying for it. The intensity (how many windows, how large an
//! allowance) is multiplied by the ratio of what may be spent to what was spent, within [`STEP`].

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use crate::policy::Intensity;
use crate::thread;

/// Assumed indirect cost of a toggle, in ticks: some line transfers and a pipeline restart.
const DISTURBANCE: f64 = 500.0;

/// Program time within which a surplus or deficit is made up for, in nanoseconds.
const HORIZON: f64 = 0.5e9;

/// The same for what the start took.
const HORIZON_OF_START: f64 = 10e9;

/// By how much the intensity changes at once.
const STEP: RangeInclusive<f64> = 0.5..=1.5;

/// What is spent even while more was spent than the budget allows, as a part of it: the report must
/// say something.
const LEAST: f64 = 0.25;

/// Least processor time of the program between two changes, in nanoseconds.
const PERIOD: f64 = 3e6;

/// The intensity is between these: strata of 10 s and of 2.5 ms.
const SCALE: RangeInclusive<f64> = 0.001..=4.0;

/// Until something is known.
const FIRST_SCALE: f64 = 0.1;

/// At a scale of 1.
const FULL: Intensity = Intensity { calls: 40.0, stratum: 10e6, allowance: 500.0, earned: 0.0 };

/// The part of the budget that a function may cost for the time that its calls take, and what a
/// call costs, in nanoseconds. Calls of several functions are open at the same time, but these are
/// not all at this limit.
const FOR_LONG_CALLS: f64 = 0.05;
const COST_OF_CALL: f64 = 100.0;

/// The part of the budget that may be spent on waking the service thread up.
const FOR_WAKING: f64 = 0.15;

/// Mean time between two ticks of the service thread, in nanoseconds.
const TICKS: RangeInclusive<f64> = 1e6..=200e6;

/// A program that runs less than this part of the time costs more than its budget rather than not
/// being measured.
const MIN_RUNNING: f64 = 0.02;

/// The scale below which the budget has no room for ticks before their time: they cost more than
/// windows.
const ENOUGH_TO_HURRY: f64 = 0.03;

/// While functions use their allowances up, ticks are this part of the usual time apart.
const BUSY: f64 = 0.25;

/// The smallest and the largest allowance.
const ALLOWANCES: RangeInclusive<f64> = 40.0..=2000.0;

/// What the intensity is now, as the bits of f64s. Read by probes.
static STRATUM: AtomicU64 = AtomicU64::new(0);
static ALLOWANCE: AtomicU64 = AtomicU64::new(0);
static EARNED: AtomicU64 = AtomicU64::new(0);
static TICKS_PER_NS: AtomicU64 = AtomicU64::new(0);

/// Whether the daemon was woken for a function since its last tick.
static IS_WOKEN: AtomicBool = AtomicBool::new(false);

/// How much is observed.
pub(crate) fn intensity() -> Intensity {
    let get = |place: &AtomicU64| f64::from_bits(place.load(Relaxed));
    Intensity { calls: FULL.calls, stratum: get(&STRATUM), allowance: get(&ALLOWANCE), earned: get(&EARNED) }
}

fn set(intensity: Intensity) {
    STRATUM.store(intensity.stratum.to_bits(), Relaxed);
    ALLOWANCE.store(intensity.allowance.to_bits(), Relaxed);
    EARNED.store(intensity.earned.to_bits(), Relaxed);
}

/// The TSC's rate that the policy uses: constant, and good to a thousandth.
pub(crate) fn ticks_per_ns() -> f64 {
    f64::from_bits(TICKS_PER_NS.load(Relaxed))
}

/// A span of time.
pub(crate) fn nanoseconds(ticks: u64) -> f64 {
    ticks as f64 / ticks_per_ns()
}

/// Wakes the daemon, unless somebody has since its last tick.
pub(crate) fn wake_daemon() {
    if !IS_WOKEN.swap(true, Relaxed) {
        fastinst::service::notify();
    }
}

/// Of a clock of processor time, in nanoseconds.
pub(crate) fn processor_time(clock: ClockId) -> f64 {
    clock_gettime(clock).map_or(0.0, |time| time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64)
}

/// Processor time of the calling thread, in nanoseconds.
pub(crate) fn of_thread() -> f64 {
    processor_time(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// What profiling has cost so far, in nanoseconds of processor time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// Of the whole process.
    pub(crate) process: f64,
    pub(crate) probes: f64,
    pub(crate) service: f64,
    pub(crate) toggles: f64,
    pub(crate) start: f64,
}

impl Spent {
    fn sum(&self) -> f64 {
        self.probes + self.service + self.toggles + self.start
    }

    /// What the program took itself.
    fn own(&self) -> f64 {
        (self.process - self.probes - self.service - self.start).max(0.0)
    }

    /// Half-width of the interval of the sum, relative to it: the toggles are assumed, the rest is
    /// good to a tenth.
    pub(crate) fn error(&self) -> f64 {
        if self.sum() > 0.0 { (self.toggles + 0.1 * (self.probes + self.start)) / self.sum() } else { 0.0 }
    }
}

/// The control.
#[derive(Debug)]
pub(crate) struct Governor {
    /// As a fraction of the program's processor time; nothing for no limit.
    budget: Option<f64>,
    scale: f64,
    last: Spent,
    /// Processor time of the service thread; it is the one that asks.
    start: f64,
    toggles_before: u64,
    /// Ticks so far, and the processor time that was spent in them: the rest of the service
    /// thread's was spent on waking it up.
    ticks: f64,
    in_ticks: f64,
    discovery_before: Duration,
    /// Processor time that the program takes in a nanosecond of time.
    load: f64,
    last_change: Instant,
}

impl Governor {
    /// `start` is what starting took; `exact` has everything observed.
    pub(crate) fn new(budget: Option<f64>, exact: bool, ticks_per_ns: f64) -> Self {
        TICKS_PER_NS.store(ticks_per_ns.to_bits(), Relaxed);
        let budget = budget.filter(|_| !exact);
        let governor = Self {
            budget,
            scale: if budget.is_some() { FIRST_SCALE } else { *SCALE.end() },
            last: Spent::default(),
            start: 0.0,
            toggles_before: fastinst::toggle_count(),
            ticks: 0.0,
            in_ticks: 0.0,
            discovery_before: fastinst::service::discovery_time(),
            load: 1.0,
            last_change: Instant::now(),
        };
        if exact {
            set(Intensity { allowance: f64::from(u32::MAX), stratum: 1.0, ..FULL });
        } else {
            governor.publish();
        }
        governor
    }

    /// Starting has taken so much processor time.
    pub(crate) fn started(&mut self, nanoseconds: f64) {
        self.start = nanoseconds;
    }

    fn publish(&self) {
        let allowance = (FULL.allowance * self.scale).clamp(*ALLOWANCES.start(), *ALLOWANCES.end());
        let earned = self.budget.unwrap_or(1.0) * FOR_LONG_CALLS / COST_OF_CALL;
        set(Intensity { stratum: FULL.stratum / self.scale, allowance, earned, ..FULL });
    }

    /// What was spent until now. Called by the service thread.
    pub(crate) fn spent(&self) -> Spent {
        let discovery = self.discovery();
        Spent {
            process: processor_time(ClockId::CLOCK_PROCESS_CPUTIME_ID),
            probes: nanoseconds(thread::spent()),
            service: (of_thread() - discovery).max(0.0),
            toggles: (fastinst::toggle_count() - self.toggles_before) as f64 * DISTURBANCE / ticks_per_ns(),
            start: self.start + discovery,
        }
    }

    fn discovery(&self) -> f64 {
        (fastinst::service::discovery_time() - self.discovery_before).as_nanos() as f64
    }

    /// A tick has begun when the service thread had this processor time, and is over. Gives the
    /// time to the next, at least, in nanoseconds. `is_busy` says that functions have used their
    /// allowances up: more will, and one that has is unobserved until the next tick. They need not
    /// wake the service thread then.
    pub(crate) fn ticked(&mut self, begin: f64, is_busy: bool) -> f64 {
        let can_hurry = self.scale > ENOUGH_TO_HURRY;
        IS_WOKEN.store(is_busy || !can_hurry, Relaxed);
        let now = of_thread();
        self.ticks += 1.0;
        self.in_ticks += now - begin;
        let waking = (now - self.in_ticks - self.discovery()).max(0.0) / self.ticks;
        let tick = self.budget.map_or(*TICKS.start(), |budget| waking / (FOR_WAKING * budget * self.load));
        let tick = tick.clamp(*TICKS.start(), *TICKS.end());
        if is_busy && can_hurry { (tick * BUSY).max(*TICKS.start()) } else { tick }
    }

    /// Compares and adapts. Called by the service thread at each tick.
    pub(crate) fn adapt(&mut self) {
        let Some(budget) = self.budget else { return };
        let now = self.spent();
        let own = now.own() - self.last.own();
        if own < PERIOD {
            return;
        }
        let elapsed = self.last_change.elapsed().as_nanos() as f64;
        self.last_change = Instant::now();
        self.load = (own / elapsed.max(1.0)).max(MIN_RUNNING);
        self.scale = adapted(self.scale, budget, own, now.sum() - self.last.sum(), &now);
        self.last = now;
        self.publish();
    }
}

/// The new scale, after the program took `own` and profiling `cost` since the last time.
fn adapted(scale: f64, budget: f64, own: f64, cost: f64, now: &Spent) -> f64 {
    let start = now.start * (now.own() / HORIZON_OF_START).min(1.0);
    let left = (budget * now.own() - (now.sum() - now.start + start)) / HORIZON;
    let wanted = (budget + left).clamp(LEAST * budget, 2.0 * budget);
    let ratio = wanted * own / cost.max(1.0);
    (scale * ratio.clamp(*STEP.start(), *STEP.end())).clamp(*SCALE.start(), *SCALE.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose cost is proportional to the scale: the sum ends up inside the budget.
    #[test]
    fn the_cost_converges_to_the_budget_start_included() {
        for (cost_at_full, start) in [(0.5, 10e6), (0.02, 0.0), (0.001, 5e6)] {
            let (mut scale, mut now) = (FIRST_SCALE, Spent { start, process: start, ..Spent::default() });
            for _ in 0..4000 {
                let cost = 5e6 * cost_at_full * scale;
                now.probes += cost;
                now.process += 5e6 + cost;
                scale = adapted(scale, 0.01, 5e6, cost, &now);
            }
            let share = now.sum() / now.own();
            assert!(share < 0.0105, "{cost_at_full}: {share}");
            assert!(share > 0.009 || scale == *SCALE.end(), "{cost_at_full}: {share}, scale {scale}");
        }
    }
}
