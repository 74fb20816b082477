//! From trials to a window and a T_max, with what may be said of both.
//!
//! # The window
//! The smallest class of boundaries at which a tear was seen (16, say, for the places 16 and 48 in a cache line). One that was
//! never torn is taken for whole, and the bound on how often it may tear all the same is stated. Two controls say whether the run could see anything: at the cache line's boundary there must
//! be tears (else it has seen nothing because it was blind); inside an aligned quadword there must be none (vendors promise it;
//! else nothing that is built on it is safe).
//!
//! # T_max
//! The *clean wait* is the smallest wait of the grid with no tear at it and at all larger ones, over all splits, boundaries and
//! executors. T_max is [`SAFETY_FACTOR`] times that, rounded up. Here too there is a control: smaller waits must have
//! torn, else the run has not shown that waits do anything; and the largest must not.
//!
//! # Chances and bounds
//! A *chance* is a toggle with an execution beside it. With k tears in n chances the bound is that of a Poisson count, one-sided;
//! with none in n it is 3.0 / n at 95 %. Chances are taken to be alike and independent, which they are not quite: trials vary all
//! that is known to matter instead.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Gamma};

use crate::plan::{CLASSES, boundaries};
use crate::trial::{CACHE_LINE, Kernel, Method, Trial, class};

/// Level of every bound.
pub const CONFIDENCE: f64 = 0.95;

/// T_max over the smallest clean wait. The paper's was 5 (600 ticks seen, 3,000 used), without trials that make the fetch of the
/// second part slow. A larger factor makes patches of straddlers slower, a smaller one may crash a program.
pub const SAFETY_FACTOR: f64 = 3.0;

/// T_max is rounded up to a multiple of this many ticks.
const ROUND: u32 = 100;

/// What trials of one kind add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// How often sites were toggled.
    pub toggles: u64,
    /// How often they were executed.
    pub executions: u64,
    /// How often a tear could have been seen.
    pub chances: u64,
    /// How often one was.
    pub tears: u64,
}

impl Count {
    /// What these trials add up to.
    pub fn of<'a>(trials: impl IntoIterator<Item = &'a Trial>) -> Self {
        trials.into_iter().fold(Self::default(), |sum, trial| Self {
            toggles: sum.toggles + trial.toggles,
            executions: sum.executions + trial.executions,
            chances: sum.chances + trial.chances(),
            tears: sum.tears + trial.tears,
        })
    }

    /// Tears in a million chances.
    pub fn per_million(&self) -> f64 {
        1e6 * self.tears as f64 / self.chances.max(1) as f64
    }

    /// The upper bound on tears in a million chances.
    pub fn per_million_below(&self) -> f64 {
        /// The quantile of the normal distribution at `CONFIDENCE`.
        const DEVIATIONS: f64 = 1.645;
        let tears = self.tears as f64;
        let bound = if self.tears < 1_000 {
            // The bound on the mean of a Poisson count is a quantile of the gamma distribution.
            Gamma::new(tears + 1.0, 1.0).expect("positive shape and rate").inverse_cdf(CONFIDENCE)
        } else {
            tears + DEVIATIONS * tears.sqrt()
        };
        1e6 * bound / self.chances.max(1) as f64
    }
}

/// What was seen at one boundary, by one store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtBoundary {
    /// Bytes from the start of the cache line.
    pub boundary: u32,
    /// By mixtures that show.
    pub mixtures: Count,
    /// By calls that crash.
    pub calls: Count,
}

/// What was seen at one wait, by the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtWait {
    /// Ticks.
    pub wait: u32,
    /// Over all splits, boundaries and executors.
    pub count: Count,
}

/// What the trials say about the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowVerdict {
    /// It is so many bytes.
    Found(u32),
    /// No tear was seen where there must be some.
    Blind,
    /// A tear was seen where the vendors promise none.
    NothingIsSafe,
}

/// What the trials say about T_max.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TMaxVerdict {
    /// In ticks.
    Found {
        /// The largest wait that tore.
        last_torn: u32,
        /// The smallest clean one.
        clean: u32,
        /// With the safety factor.
        t_max: u32,
    },
    /// Not even without waits was a tear seen.
    Blind,
    /// The longest waits tore too.
    NoBound,
    /// No trial was made.
    NotTried,
}

/// What all trials say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// By boundary, the smallest first.
    pub boundaries: Vec<AtBoundary>,
    /// The window.
    pub window: WindowVerdict,
    /// By wait, the shortest first.
    pub waits: Vec<AtWait>,
    /// T_max.
    pub t_max: TMaxVerdict,
}

/// What the trials so far say.
pub fn findings(trials: &[Trial]) -> Findings {
    let boundaries = at_boundaries(trials);
    let waits = at_waits(trials);
    Findings { window: window(&boundaries), t_max: t_max(&waits), boundaries, waits }
}

fn at_boundaries(trials: &[Trial]) -> Vec<AtBoundary> {
    let by_one_store = |trial: &&Trial| matches!(trial.spec.method, Method::Store | Method::LockedStore);
    let count = |boundary, is_call| {
        let wanted = |trial: &&Trial| {
            trial.spec.boundary == boundary && (trial.spec.kernel == Kernel::Call) == is_call
        };
        Count::of(trials.iter().filter(by_one_store).filter(wanted))
    };
    let all = boundaries().map(|boundary| AtBoundary {
        boundary,
        mixtures: count(boundary, false),
        calls: count(boundary, true),
    });
    all.filter(|at| at.mixtures.toggles + at.calls.toggles > 0).collect()
}

fn window(boundaries: &[AtBoundary]) -> WindowVerdict {
    let torn = boundaries.iter().filter(|at| at.mixtures.tears + at.calls.tears > 0);
    let sees = boundaries.iter().any(|at| at.boundary == CACHE_LINE && at.mixtures.tears > 0);
    match torn.map(|at| class(at.boundary)).min() {
        Some(class) if class == CLASSES[0] => WindowVerdict::NothingIsSafe,
        Some(class) if sees => WindowVerdict::Found(class),
        _ => WindowVerdict::Blind,
    }
}

fn at_waits(trials: &[Trial]) -> Vec<AtWait> {
    let wait_of = |trial: &Trial| match trial.spec.method {
        Method::Protocol { wait } => Some(wait),
        Method::Store | Method::LockedStore | Method::Wordpatch => None,
    };
    let mut waits: Vec<u32> = trials.iter().filter_map(wait_of).collect();
    waits.sort_unstable();
    waits.dedup();
    let at =
        |wait| AtWait { wait, count: Count::of(trials.iter().filter(|trial| wait_of(trial) == Some(wait))) };
    waits.into_iter().map(at).collect()
}

fn t_max(waits: &[AtWait]) -> TMaxVerdict {
    if waits.is_empty() {
        return TMaxVerdict::NotTried;
    }
    let Some(last) = waits.iter().rposition(|at| at.count.tears > 0) else { return TMaxVerdict::Blind };
    let Some(clean) = waits.get(last + 1) else { return TMaxVerdict::NoBound };
    let t_max = (f64::from(clean.wait) * SAFETY_FACTOR).ceil() as u32;
    TMaxVerdict::Found {
        last_torn: waits[last].wait,
        clean: clean.wait,
        t_max: t_max.next_multiple_of(ROUND),
    }
}

impl Findings {
    /// The window in bytes, if it was found.
    pub fn window_bytes(&self) -> Option<u32> {
        match self.window {
            WindowVerdict::Found(bytes) => Some(bytes),
            WindowVerdict::Blind | WindowVerdict::NothingIsSafe => None,
        }
    }

    /// T_max in ticks, if it was found.
    pub fn t_max_ticks(&self) -> Option<u32> {
        match self.t_max {
            TMaxVerdict::Found { t_max, .. } => Some(t_max),
            TMaxVerdict::Blind | TMaxVerdict::NoBound | TMaxVerdict::NotTried => None,
        }
    }

    /// What was seen inside a window of `bytes`.
    pub fn inside(&self, bytes: u32) -> Count {
        let inside = self.boundaries.iter().filter(|at| class(at.boundary) < bytes);
        inside.fold(Count::default(), |sum, at| sum.plus(&at.mixtures))
    }

    /// What was seen at waits of `ticks` and more.
    pub fn from_wait(&self, ticks: u32) -> Count {
        let longer = self.waits.iter().filter(|at| at.wait >= ticks);
        longer.fold(Count::default(), |sum, at| sum.plus(&at.count))
    }
}

impl Count {
    fn plus(&self, other: &Self) -> Self {
        Self {
            toggles: self.toggles + other.toggles,
            executions: self.executions + other.executions,
            chances: self.chances + other.chances,
            tears: self.tears + other.tears,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::plan::{self, Depth};
    use crate::simulated::Simulated;
    use crate::survey::{Observer, survey};
    use crate::trial::{Machine, Spec};

    fn count(chances: u64, tears: u64) -> Count {
        Count { toggles: chances, executions: chances, chances, tears }
    }

    #[test]
    fn bounds_are_those_of_the_tables() {
        // One-sided 95 % bounds of a Poisson mean for 0, 1 and 10 events: 2.996, 4.744, 16.962.
        let check = |tears, expected: f64| {
            let bound = count(1_000_000, tears).per_million_below();
            assert!((bound - expected).abs() < 0.01 * expected, "{tears}: {bound}");
        };
        check(0, 2.996);
        check(1, 4.744);
        check(10, 16.962);
        check(10_000, 10_164.5);
        assert_eq!(count(0, 0).per_million(), 0.0);
        assert!(count(0, 0).per_million_below() > 1e6, "without a chance nothing is known");
    }

    fn at_boundary(boundary: u32, tears: u64) -> AtBoundary {
        AtBoundary { boundary, mixtures: count(1_000, tears), calls: Count::default() }
    }

    #[test]
    fn the_window_is_the_smallest_torn_boundary_if_the_control_tore() {
        let check = |tears: [u64; 5], expected| {
            let all: Vec<_> = CLASSES
                .into_iter()
                .zip(tears)
                .map(|(boundary, tears)| at_boundary(boundary, tears))
                .collect();
            assert_eq!(window(&all), expected, "{tears:?}");
        };
        check([0, 0, 0, 0, 9], WindowVerdict::Found(64));
        check([0, 0, 0, 1, 9], WindowVerdict::Found(32));
        check([0, 1, 0, 1, 9], WindowVerdict::Found(8));
        check([0, 0, 0, 0, 0], WindowVerdict::Blind);
        check([0, 0, 0, 1, 0], WindowVerdict::Blind);
        check([1, 0, 0, 0, 9], WindowVerdict::NothingIsSafe);
        assert_eq!(window(&[]), WindowVerdict::Blind);
    }

    #[test]
    fn a_crash_counts_as_a_tear() {
        let mut all: Vec<_> = CLASSES.map(|boundary| at_boundary(boundary, u64::from(boundary == 64))).into();
        all.push(AtBoundary { calls: count(10, 1), ..at_boundary(48, 0) });
        assert_eq!(window(&all), WindowVerdict::Found(16));
    }

    #[test]
    fn the_clean_wait_has_no_tear_at_it_or_above() {
        let check = |waits: &[(u32, u64)], expected| {
            let waits: Vec<_> =
                waits.iter().map(|&(wait, tears)| AtWait { wait, count: count(1_000, tears) }).collect();
            assert_eq!(t_max(&waits), expected, "{waits:?}");
        };
        let found = |last_torn, clean, t_max| TMaxVerdict::Found { last_torn, clean, t_max };
        check(&[(0, 9), (100, 3), (200, 0), (300, 0)], found(100, 200, 600));
        check(&[(0, 9), (100, 0), (200, 1), (250, 0)], found(200, 250, 800));
        check(&[(0, 0), (100, 0)], TMaxVerdict::Blind);
        check(&[(0, 9), (100, 1)], TMaxVerdict::NoBound);
        check(&[], TMaxVerdict::NotTried);
    }

    struct Nobody;

    impl Observer for Nobody {
        fn part(&mut self, _: &'static str, _: &[Spec]) {}
        fn trial(&mut self, _: &Trial) -> Result<(), Error> {
            Ok(())
        }
    }

    /// The whole course of a run on machines that are known.
    #[test]
    fn window_and_t_max_of_simulated_machines_are_recovered() {
        for (seed, (true_window, true_t_max)) in
            (1..).zip([(8, 300), (16, 900), (32, 800), (64, 250), (64, 2_000)])
        {
            let mut nobody = Nobody;
            let mut simulated = Simulated::new(true_window, true_t_max, 20, seed);
            let trials = survey(&mut simulated, Depth::Standard, &mut nobody).unwrap();
            let seen = findings(&trials);
            assert_eq!(seen.window, WindowVerdict::Found(true_window));
            let TMaxVerdict::Found { clean, t_max, .. } = seen.t_max else { panic!("{:?}", seen.t_max) };
            assert!(clean <= true_t_max + 400, "{clean} for {true_t_max}: far too long");
            assert!(t_max >= true_t_max, "{t_max} is below the true {true_t_max}");
            assert_eq!(seen.from_wait(true_t_max).tears, 0, "the simulation keeps its promise");
        }
    }

    #[test]
    fn a_machine_that_never_tears_gives_no_calibration() {
        let mut machine = Simulated::new(4096, 0, 0, 7);
        let specs = plan::window(Depth::Quick).into_iter().filter(|spec| spec.boundary < CACHE_LINE);
        let trials: Vec<_> = specs.map(|spec| machine.run(&spec).unwrap()).collect();
        assert_eq!(findings(&trials).window, WindowVerdict::Blind);
    }
}
