//! Keeps the cost of profiling within the budget by controlling how much is observed.
//!
//! # What is measured
//! 1. Probes: each reads the clock when it begins and when it ends; the time outside these readings
//!    was calibrated at the start ([`crate::observe::fire`]).
//! 2. The service thread: its processor time, which includes the toggles that it makes.
//! 3. Stack samples ([`crate::stacks`]): unwinding is part of the service thread's processor time;
//!    their cost for the program's threads is their number times what one took at the start, where
//!    it found its code in the processor's caches. The stated error covers zero to twice that.
//! 4. Toggles: their cost for threads that execute the rewritten code (a cache line transfer, a
//!    pipeline flush) is not measured but assumed, [`DISTURBANCE`] each; the stated error covers
//!    zero to twice that.
//! 5. The start: processor time until the program's own code runs, the service thread's processor
//!    time for discovering probes later, and the threads' for
//!    [making](crate::observe::fire::interrupted) probes and for calls
//!    [before](crate::observe::fire::before_probes) they are made.
//!
//! # The control
//! Every few milliseconds the governor decides how much may be spent from now on: the budget's
//! share of the program's processor time, corrected so that a surplus or deficit is compensated
//! within [`HORIZON`]. The cost of the start, and of the first observation of every function
//! ([`LEARNING`]), is compensated by half of the budget, but within [`HORIZON_OF_START`]: short
//! runs are measured too, and the more of the start is paid for in them, the larger the budget is.
//!
//! This amount, minus the cost of idle ticks and of stack samples, is divided by the recent cost of
//! a window ([`Costs`]). The result is the rate of windows, and the *scale* is chosen for that
//! rate. The scale does not follow the cost of the last milliseconds: a window is planned long
//! before it opens, and a phase in which new functions are called is expensive only for a moment.
//! If the scale followed such moments, strata would become so long that few windows represent the
//! rest of the run.
//!
//! Windows are not the only cost: ticks, stack samples, and functions that are on have shares of
//! the budget. On a busy machine, where the caches hold other data after each pause, all of these
//! cost more than was assumed. While too much has been spent, each is limited to the same [`part`]
//! of its share, but for functions with long calls ([`crate::observe::long_calls`]). Functions that
//! stay on because they are called rarely share a reserve ([`crate::observe::rare_calls`]).

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use crate::observe::long_calls::{self, LongCalls};
use crate::observe::policy::{Intensity, RARE};
use crate::observe::rare_calls::RESERVE;
use crate::observe::{counting, thread, waking};
use crate::processor_time;

/// The assumed indirect cost of a toggle, in ticks: some line transfers and a pipeline restart.
const DISTURBANCE: f64 = 500.0;

/// The program time within which a surplus or deficit is compensated, in nanoseconds.
const HORIZON: f64 = 1e9;

/// The maximum of the same for the cost of the start, and the part of the budget that is spent on
/// it if that is sooner.
const HORIZON_OF_START: f64 = 10e9;
const PART_FOR_START: f64 = 0.5;

/// The program time after which most hot functions have used up their first allowances, in
/// nanoseconds.
const LEARNING: f64 = 0.1e9;

/// The factors by which the scale may change at once.
const STEP: RangeInclusive<f64> = 0.5..=1.5;

/// Time constant of the exponential decay of [`Costs`], in nanoseconds of program time.
const MEMORY: f64 = 0.3e9;

/// The assumed cost of a window in nanoseconds, and its weight in windows.
const COST_OF_WINDOW: f64 = 15e3;
const FEW_WINDOWS: f64 = 20.0;

/// What a window may cost at most, for the first strata of functions: while none is open, the cost
/// of everything else counts as that of windows.
const MAX_COST_OF_WINDOW: f64 = 2.0 * COST_OF_WINDOW;

/// The minimum part of the available amount that is spent on windows, however often the service
/// thread is woken.
const FOR_WINDOWS: f64 = 0.25;

/// The minimum that is spent while the budget is exceeded, as a part of the budget: the report must
/// contain something.
const MIN_BUDGET: f64 = 0.25;

/// The minimum processor time of the program between two changes of the scale, in nanoseconds.
const PERIOD: f64 = 3e6;

/// The range of the scale: strata of 1000 s to strata of 2.5 ms.
const SCALE: RangeInclusive<f64> = 0.00001..=4.0;

/// The scale until something is known.
const FIRST_SCALE: f64 = 0.1;

/// The intensity at a scale of 1.
const FULL: Intensity = Intensity { calls: 40.0, stratum: 10e6, allowance: 500.0, earned: 0.0, rare: RARE };

/// The minimum and the maximum cost of a call's probes, in nanoseconds: it depends on the
/// processor's caches.
const COST_OF_CALL: RangeInclusive<f64> = 100.0..=1000.0;

/// The part of the budget that may be spent on idle ticks: on waking the service thread, and on
/// looking for work. Both take longer on a busy machine, where the caches hold other data after
/// each pause.
const FOR_TICKS: f64 = 0.15;

/// The maximum mean time between two ticks, as a part of a stratum: windows open at ticks.
const STRATUM_OF_TICKS: f64 = 0.5;

/// The factor by which the assumed cost of an idle tick rises, if all ticks cost more.
const RISE: f64 = 1.05;

/// The mean time between two ticks of the service thread, in nanoseconds.
const TICKS: RangeInclusive<f64> = 1e6..=200e6;

/// A program that runs for less than this part of the time may cost more than its budget; otherwise
/// it would not be measured.
const MIN_RUNNING: f64 = 0.02;

/// Below this scale, the budget has no room for early ticks: they cost more than windows.
const ENOUGH_TO_HURRY: f64 = 0.03;

/// While functions use up their allowances, ticks are this part of the usual time apart.
const BUSY: f64 = 0.25;

/// The smallest and the largest allowance.
const ALLOWANCES: RangeInclusive<f64> = 40.0..=2000.0;

/// The current intensity, as the bits of f64s. Read by probes. `DENSITY` is the number of windows
/// per nanosecond of program time that the budget permits.
static STRATUM: AtomicU64 = AtomicU64::new(0);
static ALLOWANCE: AtomicU64 = AtomicU64::new(0);
static EARNED: AtomicU64 = AtomicU64::new(0);
static IS_EXACT: AtomicBool = AtomicBool::new(false);
static PART: AtomicU64 = AtomicU64::new(1.0_f64.to_bits());
static DENSITY: AtomicU64 = AtomicU64::new(f64::INFINITY.to_bits());
static LOAD: AtomicU64 = AtomicU64::new(1.0_f64.to_bits());
static TICKS_PER_NS: AtomicU64 = AtomicU64::new(0);

/// Whether the service thread is woken for a function that has used up its allowance: one of the
/// following states.
static WAKING: AtomicU8 = AtomicU8::new(WAKE);

/// It is woken for the next such function.
const WAKE: u8 = 0;
/// It has been woken since its last tick.
const WOKEN: u8 = 1;
/// It is not woken before its next tick.
const WAIT: u8 = 2;

/// The current intensity of observation.
pub(crate) fn intensity() -> Intensity {
    let get = |place: &AtomicU64| f64::from_bits(place.load(Relaxed));
    let (stratum, allowance, earned) = (get(&STRATUM), get(&ALLOWANCE), get(&EARNED));
    let rare = if RESERVE.is_left() { part() * FULL.rare } else { 0.0 };
    Intensity { calls: FULL.calls, stratum, allowance, earned, rare }
}

/// The part of the budget that may be spent at present: less than 1 while too much has been spent.
/// Everything that has a share of the budget is limited to this part of it, except the unwinding of
/// stacks (`stacks/thinning.rs`) and functions with long calls ([`crate::observe::long_calls`]).
pub(crate) fn part() -> f64 {
    f64::from_bits(PART.load(Relaxed))
}

/// The processor time that the program has recently taken per nanosecond of elapsed time, at least
/// [`MIN_RUNNING`].
pub(crate) fn load() -> f64 {
    f64::from_bits(LOAD.load(Relaxed))
}

/// The mean length of a stratum, in nanoseconds, at which sampling functions with this sum of
/// importance costs what the budget permits. The governor chooses longer strata soon after more
/// functions are sampled, but the first strata of functions that begin to be sampled at the same
/// time are planned at once.
pub(crate) fn stratum_for(importance: f64) -> f64 {
    importance / (f64::from_bits(DENSITY.load(Relaxed)) * load())
}

fn set(intensity: Intensity) {
    STRATUM.store(intensity.stratum.to_bits(), Relaxed);
    ALLOWANCE.store(intensity.allowance.to_bits(), Relaxed);
    EARNED.store(intensity.earned.to_bits(), Relaxed);
}

/// The rate of the TSC that the policy uses: constant, and accurate to a thousandth.
pub(crate) fn ticks_per_ns() -> f64 {
    f64::from_bits(TICKS_PER_NS.load(Relaxed))
}

/// Whether every call is to be timed, whatever that costs.
pub(crate) fn is_exact() -> bool {
    IS_EXACT.load(Relaxed)
}

/// Sets whether every call is to be timed.
pub(crate) fn time_every_call(is_exact: bool) {
    IS_EXACT.store(is_exact, Relaxed);
}

/// Converts ticks to nanoseconds.
pub(crate) fn nanoseconds(ticks: u64) -> f64 {
    ticks as f64 / ticks_per_ns()
}

/// Wakes the service thread, unless it was woken since its last tick.
pub(crate) fn wake_service_thread() {
    if WAKING.compare_exchange(WAKE, WOKEN, Relaxed, Relaxed).is_ok() {
        waking::notify();
    }
}

/// Whether the service thread has been woken for a function since its last tick.
pub(crate) fn is_woken() -> bool {
    WAKING.load(Relaxed) == WOKEN
}

/// The processor time of the profiler's threads, in nanoseconds. Called by the service thread.
pub(crate) fn of_own_threads() -> f64 {
    processor_time::of_thread() + fastinst::service::companion_time().as_nanos() as f64
}

/// The cost of profiling so far, in nanoseconds of processor time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// The processor time of the entire process.
    pub(crate) process: f64,
    pub(crate) probes: f64,
    pub(crate) service: f64,
    pub(crate) toggles: f64,
    /// The cost of stack samples for the program's threads.
    pub(crate) stacks: f64,
    pub(crate) start: f64,
}

impl Spent {
    fn sum(&self) -> f64 {
        self.running() + self.start
    }

    /// All costs except the start.
    fn running(&self) -> f64 {
        self.probes + self.service + self.toggles + self.stacks
    }

    /// The processor time of the program itself.
    fn own(&self) -> f64 {
        (self.process - self.probes - self.service - self.stacks - self.start).max(0.0)
    }

    /// Half-width of the interval of the sum, relative to it: toggles and stack samples are
    /// assumed, the rest is accurate to a tenth.
    pub(crate) fn error(&self) -> f64 {
        let assumed = self.toggles + self.stacks;
        if self.sum() > 0.0 { (assumed + 0.1 * (self.probes + self.start)) / self.sum() } else { 0.0 }
    }
}

/// The amount of work for observation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// The number of windows opened so far.
    pub(crate) windows: u64,
    /// The number of calls timed so far.
    pub(crate) timed: u64,
    /// The sum of the importance of all sampled functions.
    pub(crate) importance: f64,
}

/// The amount spent, and the number of windows: in total, between two changes, or recently.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    /// Program time.
    own: f64,
    /// Costs that do not depend on windows: idle ticks, stack samples.
    fixed: f64,
    /// All other costs, except the start.
    rest: f64,
    windows: f64,
}

impl Costs {
    /// The difference from an earlier sum.
    fn since(&self, earlier: &Self) -> Self {
        let added = |now: f64, earlier: f64| (now - earlier).max(0.0);
        Self {
            own: added(self.own, earlier.own),
            fixed: added(self.fixed, earlier.fixed),
            rest: added(self.rest, earlier.rest),
            windows: added(self.windows, earlier.windows),
        }
    }

    /// Adds to a sum that decays with [`MEMORY`].
    fn add(&mut self, since: &Self) {
        let left = (-since.own / MEMORY).exp();
        let sum = |before: f64, since: f64| left * before + since;
        *self = Self {
            own: sum(self.own, since.own),
            fixed: sum(self.fixed, since.fixed),
            rest: sum(self.rest, since.rest),
            windows: sum(self.windows, since.windows),
        };
    }

    /// The cost of a window, with its share of all costs that are not due to windows.
    fn cost_of_window(&self) -> f64 {
        (self.rest + FEW_WINDOWS * COST_OF_WINDOW) / (self.windows + FEW_WINDOWS)
    }

    /// The scale at which `wanted` is spent for each nanosecond of program time; `None` if no
    /// function is sampled.
    fn scale(&self, wanted: f64, importance: f64) -> Option<f64> {
        let for_windows = (wanted - self.fixed / self.own.max(1.0)).max(FOR_WINDOWS * wanted);
        let at_full = importance / FULL.stratum * self.cost_of_window();
        (at_full > 0.0).then(|| for_windows / at_full)
    }
}

/// The cost of idle ticks, in nanoseconds: the lower envelope of the costs of all ticks.
#[derive(Clone, Copy, Debug, Default)]
struct IdleTicks {
    /// The cost of one; `None` before the first.
    one: Option<f64>,
    /// The cost of all ticks, as if all had been idle.
    total: f64,
}

impl IdleTicks {
    /// Adds a tick with this cost. Returns what it would have cost if it had been idle.
    fn add(&mut self, cost: f64) -> f64 {
        let one = self.one.map_or(cost, |one| cost.min(RISE * one)).max(0.0);
        self.one = Some(one);
        self.total += one;
        one
    }
}

/// The control.
#[derive(Debug)]
pub(crate) struct Governor {
    /// As a fraction of the program's processor time; `None` for no limit.
    budget: Option<f64>,
    /// The amount that could be spent until the budget was last changed, and the program time then.
    entitled_before: f64,
    changed_at: f64,
    scale: f64,
    /// The costs at the last change.
    last: Costs,
    recent: Costs,
    /// The amount spent beyond the budget during [`LEARNING`].
    learning: f64,
    /// The processor time of the start.
    start: f64,
    toggles_before: u64,
    /// The processor time of the process, and the time in probes, when this began.
    process_before: f64,
    probes_before: f64,
    making_before: f64,
    /// How often the service thread was woken, and the processor time that it has spent in its
    /// work: the rest of it was spent on waking it up.
    wakes: f64,
    in_ticks: f64,
    idle: IdleTicks,
    /// The cost of stack samples: for the program's threads, and for the service thread in its
    /// ticks; the latter's part in the current tick.
    stacks: f64,
    unwinding: f64,
    unwinding_now: f64,
    /// The service thread's processor time for reports of the running program. The user decides on
    /// them, so they do not change how much is observed.
    reports: f64,
    discovery_before: Duration,
    /// The mean cost of a timed call's probes, in nanoseconds.
    cost_of_call: f64,
    long_calls: LongCalls,
    last_change: Instant,
}

impl Governor {
    /// `start` is the processor time of the start; with `exact`, everything is observed.
    pub(crate) fn new(budget: Option<f64>, exact: bool, ticks_per_ns: f64) -> Self {
        TICKS_PER_NS.store(ticks_per_ns.to_bits(), Relaxed);
        let budget = budget.filter(|_| !exact);
        let governor = Self {
            budget,
            entitled_before: 0.0,
            changed_at: 0.0,
            scale: if budget.is_some() { FIRST_SCALE } else { *SCALE.end() },
            last: Costs::default(),
            recent: Costs::default(),
            learning: 0.0,
            start: 0.0,
            toggles_before: fastinst::toggle_count(),
            process_before: 0.0,
            probes_before: 0.0,
            making_before: 0.0,
            wakes: 0.0,
            in_ticks: 0.0,
            idle: IdleTicks::default(),
            stacks: 0.0,
            unwinding: 0.0,
            unwinding_now: 0.0,
            reports: 0.0,
            discovery_before: fastinst::service::discovery_time(),
            cost_of_call: *COST_OF_CALL.start(),
            long_calls: LongCalls::new(),
            last_change: Instant::now(),
        };
        LOAD.store(1.0_f64.to_bits(), Relaxed);
        governor.publish_for(exact);
        governor
    }

    fn publish_for(&self, exact: bool) {
        PART.store(1.0_f64.to_bits(), Relaxed);
        RESERVE.fill(self.budget, self.cost_of_call);
        time_every_call(exact);
        if exact {
            set(Intensity { allowance: f64::from(u32::MAX), stratum: 1.0, ..FULL });
        } else {
            self.publish();
        }
    }

    /// Changes the parameters of [`Governor::new`]. Called by the service thread.
    pub(crate) fn change(&mut self, budget: Option<f64>, exact: bool, demand: Demand) {
        let now = self.spent();
        self.last = self.total(&now, demand);
        self.last_change = Instant::now();
        self.change_at(&now, budget.filter(|_| !exact));
        self.publish_for(exact);
    }

    /// A surplus from before, perhaps with a much larger budget, is forfeited: otherwise the new
    /// budget would be exceeded for as long.
    fn change_at(&mut self, now: &Spent, budget: Option<f64>) {
        let cost = self.cost(budget.or(self.budget).unwrap_or(1.0), now);
        let entitled = self.budget.map(|before| self.entitled(before, now));
        self.entitled_before = entitled.map_or(cost, |entitled| entitled.min(cost));
        self.changed_at = now.own();
        self.scale = match (self.budget, budget) {
            (_, None) => *SCALE.end(),
            (None, Some(_)) => FIRST_SCALE,
            (Some(_), Some(_)) => self.scale,
        };
        self.budget = budget;
    }

    /// Ignores what the process did before: its processor time up to now, except the given amount.
    pub(crate) fn forget(&mut self, except: f64) {
        self.process_before = processor_time::of_process() - except;
        self.probes_before = counting::spent_in_probes();
        self.making_before = nanoseconds(thread::making());
    }

    /// Records that the process has used this processor time while nothing was to be observed.
    pub(crate) fn was_paused(&mut self, nanoseconds: f64) {
        self.process_before += nanoseconds;
    }

    /// Records the processor time of the start.
    pub(crate) fn started(&mut self, nanoseconds: f64) {
        self.start = nanoseconds;
    }

    fn publish(&self) {
        let allowance = (FULL.allowance * self.scale).clamp(*ALLOWANCES.start(), *ALLOWANCES.end());
        DENSITY.store(self.density().to_bits(), Relaxed);
        let earned = self.long_calls.earned(self.budget.unwrap_or(1.0), self.cost_of_call);
        set(Intensity { stratum: FULL.stratum / self.scale, allowance, earned, ..FULL });
    }

    /// The number of windows per nanosecond of program time that the budget permits.
    fn density(&self) -> f64 {
        let cost = self.recent.cost_of_window().clamp(COST_OF_WINDOW, MAX_COST_OF_WINDOW);
        self.budget.map_or(f64::INFINITY, |budget| budget / cost)
    }

    /// The amounts spent until now. Called by the service thread.
    pub(crate) fn spent(&self) -> Spent {
        let discovery = self.discovery();
        let making = nanoseconds(thread::making()) - self.making_before;
        Spent {
            process: processor_time::of_process() - self.process_before,
            probes: counting::spent_in_probes() - self.probes_before - making,
            service: (of_own_threads() - discovery).max(0.0),
            toggles: (fastinst::toggle_count() - self.toggles_before) as f64 * DISTURBANCE / ticks_per_ns(),
            stacks: self.stacks,
            start: self.start + discovery + making,
        }
    }

    /// Records the cost of stack samples for the program's threads so far. Those of this tick have
    /// been unwound since the service thread had the processor time `begin`.
    pub(crate) fn unwound(&mut self, begin: f64, stacks: f64) {
        self.stacks = stacks;
        self.unwinding_now = processor_time::of_thread() - begin;
        self.unwinding += self.unwinding_now;
    }

    /// Records that the service thread was woken between two ticks, and has worked since it had the
    /// processor time `begin`.
    pub(crate) fn worked_apart(&mut self, begin: f64) {
        self.wakes += 1.0;
        self.in_ticks += processor_time::of_thread() - begin;
        self.unwinding_now = 0.0;
    }

    fn discovery(&self) -> f64 {
        (fastinst::service::discovery_time() - self.discovery_before).as_nanos() as f64
    }

    /// Records the end of a tick that began when the service thread had this processor time.
    /// Returns the mean time to the next one, in nanoseconds. `is_busy` says that functions have
    /// used up their allowances. More functions will then do so, and each is unobserved until the
    /// next tick; they need not wake the service thread.
    pub(crate) fn ticked(&mut self, begin: f64, is_busy: bool) -> f64 {
        let can_hurry = self.scale > ENOUGH_TO_HURRY;
        WAKING.store(if is_busy || !can_hurry { WAIT } else { WAKE }, Relaxed);
        let now = processor_time::of_thread();
        self.wakes += 1.0;
        self.in_ticks += now - begin;
        let idle = self.idle.add(now - begin - std::mem::take(&mut self.unwinding_now));
        let waking = self.waking(now - self.discovery()) / self.wakes;
        let tick = self
            .budget
            .map_or(*TICKS.start(), |budget| (waking + idle) / (part() * FOR_TICKS * budget * load()));
        let longest = (STRATUM_OF_TICKS * FULL.stratum / self.scale).min(*TICKS.end());
        let tick = tick.min(longest).max(*TICKS.start());
        if is_busy && can_hurry { (tick * BUSY).max(*TICKS.start()) } else { tick }
    }

    /// Records that windows were opened after the rest of a tick, since the service thread had this
    /// processor time.
    pub(crate) fn released(&mut self, begin: f64) {
        self.in_ticks += processor_time::of_thread() - begin;
    }

    /// Records that the service thread has spent this processor time on writing reports.
    pub(crate) fn reported(&mut self, took: f64) {
        self.in_ticks += took;
        self.reports += took;
    }

    /// The part of the service thread's processor time, without discovery, that was spent on being
    /// woken.
    fn waking(&self, service: f64) -> f64 {
        (service - self.in_ticks).max(0.0)
    }

    /// Compares the cost with the budget, and adapts. Called by the service thread at each tick.
    pub(crate) fn adapt(&mut self, demand: Demand) {
        let Some(budget) = self.budget else { return };
        let now = self.spent();
        let total = self.total(&now, demand);
        let since = total.since(&self.last);
        let elapsed = self.last_change.elapsed().as_nanos() as f64;
        let load = (since.own / elapsed.max(1.0)).max(MIN_RUNNING);
        if since.own < PERIOD {
            // The load is at most what it would be if the program had taken all of `PERIOD`.
            if PERIOD / elapsed.max(1.0) < self::load() {
                LOAD.store(load.max(PERIOD / elapsed).to_bits(), Relaxed);
            }
            return;
        }
        self.last = total;
        self.last_change = Instant::now();
        LOAD.store(load.to_bits(), Relaxed);
        self.cost_of_call =
            (now.probes / demand.timed.max(1) as f64).clamp(*COST_OF_CALL.start(), *COST_OF_CALL.end());
        self.long_calls.adapt(long_calls::take(), since.own, budget, self.cost_of_call);
        RESERVE.grow(since.own, budget, self.cost_of_call);
        self.adapt_to(budget, &now, &since, demand.importance);
        self.publish();
    }

    fn total(&self, now: &Spent, demand: Demand) -> Costs {
        let fixed = self.waking(now.service) + self.idle.total + self.unwinding + now.stacks;
        let rest = self.controlled(now) - fixed;
        Costs { own: now.own(), fixed, rest, windows: demand.windows as f64 }
    }

    /// All costs that depend on how much is observed.
    fn controlled(&self, now: &Spent) -> f64 {
        now.running() - self.reports
    }

    /// The cost that is compared with this budget: the costs of the start and of learning are
    /// spread over some time.
    fn cost(&self, budget: f64, now: &Spent) -> f64 {
        let start = now.start + self.learning;
        let horizon = (start / (PART_FOR_START * budget)).min(HORIZON_OF_START);
        let paid = if horizon > 0.0 { (now.own() / horizon).min(1.0) } else { 1.0 };
        self.controlled(now) - self.learning + paid * start
    }

    /// The amount that could be spent until now, if this is the budget since it was last changed.
    fn entitled(&self, budget: f64, now: &Spent) -> f64 {
        self.entitled_before + budget * (now.own() - self.changed_at)
    }

    fn adapt_to(&mut self, budget: f64, now: &Spent, since: &Costs, importance: f64) {
        self.recent.add(since);
        if now.own() < LEARNING {
            self.learning = (self.controlled(now) - self.entitled(budget, now)).max(0.0);
        }
        let left = (self.entitled(budget, now) - self.cost(budget, now)) / HORIZON;
        let wanted = (budget + left).clamp(MIN_BUDGET * budget, 2.0 * budget);
        PART.store((wanted / budget).min(1.0).to_bits(), Relaxed);
        let scale = self.recent.scale(wanted, importance).unwrap_or_else(|| {
            // All functions are on.
            self.scale * wanted * since.own / (since.fixed + since.rest).max(1.0)
        });
        self.scale *= (scale / self.scale).clamp(*STEP.start(), *STEP.end());
        self.scale = self.scale.clamp(*SCALE.start(), *SCALE.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose number of windows is proportional to the scale of `LAG` steps ago. Every
    /// `phase` steps new functions are called, which costs as much as `burst` windows.
    struct Program {
        start: f64,
        importance: f64,
        cost_of_window: f64,
        waking: f64,
        phase: usize,
        burst: f64,
    }

    const LAG: usize = 10;
    const STEP_TIME: f64 = 5e6;

    impl Program {
        /// The share of processor time that was spent, and all scales.
        fn run(&self, budget: f64, steps: usize) -> (f64, Vec<f64>) {
            let mut governor = Governor::new(Some(budget), false, 1.0);
            let mut now = Spent { start: self.start, process: self.start, ..Spent::default() };
            let mut scales = vec![FIRST_SCALE; LAG];
            self.run_on(&mut governor, budget, steps, &mut now, &mut scales);
            (now.sum() / now.own(), scales)
        }

        fn run_on(
            &self,
            governor: &mut Governor,
            budget: f64,
            steps: usize,
            now: &mut Spent,
            scales: &mut Vec<f64>,
        ) {
            for step in 0..steps {
                let scale = scales[scales.len() - LAG];
                let windows = scale * self.importance * STEP_TIME / FULL.stratum;
                let burst = if step % self.phase == 0 { self.burst } else { 0.0 };
                let rest = (windows + burst) * self.cost_of_window;
                now.probes += rest;
                now.service += self.waking;
                now.process += STEP_TIME + rest + self.waking;
                let since = Costs { own: STEP_TIME, fixed: self.waking, rest, windows };
                governor.adapt_to(budget, now, &since, self.importance);
                scales.push(governor.scale);
            }
        }
    }

    /// A surplus of a large budget does not add to a small one; a deficit is compensated.
    #[test]
    fn the_cost_converges_to_a_budget_that_was_changed() {
        for (before, after) in [(0.5, 0.01), (0.01, 0.05), (0.05, 0.01)] {
            let program = Program {
                start: 0.0,
                importance: 60.0,
                cost_of_window: 10e3,
                waking: 5e3,
                phase: 100,
                burst: 20.0,
            };
            let mut governor = Governor::new(Some(before), false, 1.0);
            let mut now = Spent::default();
            let mut scales = vec![FIRST_SCALE; LAG];
            program.run_on(&mut governor, before, 2000, &mut now, &mut scales);
            let then = now;
            governor.change_at(&now, Some(after));
            program.run_on(&mut governor, after, 2000, &mut now, &mut scales);
            let share = (now.sum() - then.sum()) / (now.own() - then.own());
            assert!((0.85..1.05).contains(&(share / after)), "{before} to {after}: {share}");
        }
    }

    /// Thousands of functions may begin to be sampled before the governor knows of any.
    #[test]
    fn first_strata_of_many_functions_are_as_long_as_the_budget_requires() {
        let governor = Governor::new(Some(0.01), false, 1.0);
        let stratum = |functions: f64| functions / governor.density();
        assert!(stratum(5000.0) * 0.01 >= 5000.0 * COST_OF_WINDOW, "{governor:?}");
        assert!(stratum(10.0) < FULL.stratum / FIRST_SCALE, "those of a few are not longer");
        assert_eq!(5000.0 / Governor::new(None, false, 1.0).density(), 0.0);
    }

    #[test]
    fn without_a_limit_nothing_is_owed_later() {
        let mut governor = Governor::new(None, false, 1.0);
        let now = Spent { process: 11e9, probes: 10e9, ..Spent::default() };
        governor.change_at(&now, Some(0.01));
        assert_eq!((governor.entitled(0.01, &now), governor.cost(0.01, &now)), (10e9, 10e9));
        governor.change_at(&now, None);
        assert_eq!((governor.budget, governor.scale), (None, *SCALE.end()));
    }

    #[test]
    fn the_cost_converges_to_the_budget_start_included() {
        for (importance, cost_of_window, start, waking) in
            [(500.0, 10e3, 10e6, 5e3), (20.0, 10e3, 0.0, 5e3), (300.0, 50e3, 5e6, 10e3)]
        {
            let program = Program { start, importance, cost_of_window, waking, phase: 100, burst: 20.0 };
            let (share, scales) = program.run(0.01, 4000);
            let scale = scales[scales.len() - 1];
            assert!(share < 0.0105, "{importance} functions: {share}, scale {scale}");
            assert!(share > 0.009 || scale == *SCALE.end(), "{importance} functions: {share}, scale {scale}");
        }
    }

    /// A run of two seconds that has taken 40 ms to start.
    #[test]
    fn a_large_budget_pays_for_the_start_of_a_short_run() {
        let (start, importance, cost_of_window, waking) = (40e6, 500.0, 10e3, 5e3);
        let program = Program { start, importance, cost_of_window, waking, phase: 100, burst: 20.0 };
        let (share, _) = program.run(0.05, 400);
        assert!((0.045..0.06).contains(&share), "{share}");
        let (share, _) = program.run(0.01, 400);
        assert!((0.022..0.035).contains(&share), "{share}: 2 % are the start");
    }

    #[test]
    fn a_tick_in_which_nothing_is_due_costs_what_the_cheapest_do() {
        let mut idle = IdleTicks::default();
        let costs = [90.0, 10.0, 200.0, 11.0, 500.0];
        let ones: Vec<f64> = costs.into_iter().map(|cost| idle.add(cost)).collect();
        assert_eq!(ones, [90.0, 10.0, 10.5, 11.0, 11.55]);
        assert!((idle.total - 133.05).abs() < 1e-9);
        // The machine became busy.
        (0..100).for_each(|_| _ = idle.add(100.0));
        assert_eq!(idle.add(100.0), 100.0);
    }

    /// Strata are planned with the current scale, and last.
    #[test]
    fn the_scale_does_not_follow_every_phase() {
        let program = Program {
            start: 15e6,
            importance: 300.0,
            cost_of_window: 10e3,
            waking: 20e3,
            phase: 60,
            burst: 100.0,
        };
        let (share, scales) = program.run(0.05, 3000);
        assert!((0.045..0.055).contains(&share), "{share}");
        let settled = &scales[300..];
        let [least, most] =
            [settled.iter().copied().fold(f64::MAX, f64::min), settled.iter().copied().fold(0.0, f64::max)];
        assert!(most < 4.0 * least, "{least} to {most}");
    }
}
