//! Selection of the trials of a run.
//!
//! 1. **Window.** In each *round*, one trial for each class of boundaries inside a cache line (8,
//!    16 and 32), by one store. All trials of a round have the same kernel, spacing, executors,
//!    placement and so on, drawn at random, so that they differ in the boundary only: a class that
//!    tears is a positive control for those that do not. Every fourth round also has a trial across
//!    the line and one inside an aligned quadword.
//! 2. **Calls.** The paper's own kernel, which crashes, at the same boundaries.
//! 3. **T_max, coarse.** In each round, one trial of the protocol for each wait from 0 to 6,400
//!    ticks, otherwise equal.
//! 4. **T_max, fine.** The same with waits around the smallest clean one, and beyond it up to the
//!    T_max that would be claimed. It is repeated if it finds a tear at a longer wait.
//!
//! Rounds interleave the trials that are compared, so a machine that becomes busy during the run
//! affects all of them alike.

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::boundary::{CACHE_LINE, CLASSES, INSIDE_LINE, PAGE, boundaries, class};
use crate::estimate::SAFETY_FACTOR;
use crate::trial::{Approach, Kernel, LENGTH, Mapping, Method, Placement, Spacing, Spec};

/// The thoroughness of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Less than a minute: the window only.
    Quick,
    /// About five minutes.
    Standard,
    /// The paper's grid: many hours.
    Full,
}

/// Rounds of each part of a run.
struct Rounds {
    window: u64,
    calls: u64,
    coarse: u64,
    fine: u64,
}

impl Depth {
    fn rounds(self) -> Rounds {
        match self {
            // A T_max needs hundreds of trials at each wait, which do not fit into a minute.
            Self::Quick => Rounds { window: 230, calls: 4, coarse: 0, fine: 0 },
            Self::Standard => Rounds { window: 600, calls: 20, coarse: 40, fine: 60 },
            Self::Full => Rounds { window: 5_000, calls: 200, coarse: 0, fine: 1_000 },
        }
    }
}

/// Duration of a trial in milliseconds: short, because trials count rather than their executions,
/// but long enough to include the start of the threads.
const MILLISECONDS: u32 = 50;

/// One in this number of rounds has trials across the line and inside a quadword.
pub(crate) const CONTROL_EVERY: u64 = 4;

/// The paper's grid of waits, in ticks.
const STEP: u32 = 100;
const MAX_WAIT: u32 = 2_400;

/// Waits of part 3, in ticks: dense where most tears are, and beyond the paper's grid for slower
/// machines.
const WAITS: [u32; 14] = [0, 50, 100, 200, 300, 400, 600, 800, 1_200, 1_600, 2_400, 3_200, 4_800, 6_400];

/// Number of waits of part 4 in a round.
const FINE_STEPS: u32 = 12;

/// Maximum number of repetitions of part 4.
pub(crate) const FINE_ROUNDS: usize = 3;

/// Stands for no limit on toggles, in trials that are limited by time.
const NO_LIMIT: u64 = u64::MAX;

/// A trial with all parameters that a plan leaves open drawn at random, the same for the same
/// number.
fn drawn(number: u64) -> Spec {
    let mut random = SmallRng::seed_from_u64(number);
    let kernel = if random.random_ratio(3, 4) { Kernel::Opcode } else { Kernel::Immediate };
    // Listed with their relative frequencies: tight loops, and stores without pauses, tear most
    // often inside a line.
    use {Approach::*, Spacing::*};
    let approaches = [Loop, Loop, Loop, Loop, Loop, Loop, Anew, Cold];
    let spacings = [BackToBack, BackToBack, BackToBack, BackToBack, Spread, Spread, Spread, Pairs];
    let placements = [Placement::Apart, Placement::Apart, Placement::Shared, Placement::Free];
    let methods = [Method::LockedStore, Method::LockedStore, Method::Store];
    fn one<T: Copy>(of: &[T], random: &mut SmallRng) -> T {
        *of.choose(random).expect("not empty")
    }
    Spec {
        kernel,
        boundary: CACHE_LINE,
        front: random.random_range(kernel.first_front()..LENGTH),
        method: one(&methods, &mut random),
        spacing: one(&spacings, &mut random),
        mapping: one(&[Mapping::Alias, Mapping::Direct], &mut random),
        executors: one(&[2, 3, 3, 4], &mut random),
        approach: one(&approaches, &mut random),
        placement: one(&placements, &mut random),
        load: random.random_ratio(1, 12),
        seed: random.random(),
        processors: random.random(),
        toggles: NO_LIMIT,
        milliseconds: MILLISECONDS,
    }
}

/// The trial `number` by one store at a boundary of `class`. Trials of one round are equal except
/// for the boundary.
fn by_one_store(number: u64, of_class: u32) -> Spec {
    let spec = drawn(number);
    let all: Vec<u32> = boundaries().filter(|boundary| class(*boundary) == of_class).collect();
    let mut random = SmallRng::seed_from_u64(spec.seed ^ u64::from(of_class));
    let boundary = *all.choose(&mut random).expect("each class has a boundary");
    // A locked store across two lines is a split lock, which stalls the entire machine.
    let method = if boundary < CACHE_LINE { spec.method } else { Method::Store };
    Spec { boundary, method, seed: random.random(), ..spec }
}

/// The trials of part 1.
pub(crate) fn window(depth: Depth) -> Vec<Spec> {
    by_one_store_rounds(0..depth.rounds().window, &INSIDE_LINE)
}

/// The rounds of part 1 with these numbers, with these classes in every round.
pub(crate) fn by_one_store_rounds(rounds: Range<u64>, classes: &[u32]) -> Vec<Spec> {
    let round = |number: u64| {
        let controls: &[u32] =
            if number.is_multiple_of(CONTROL_EVERY) { &[CLASSES[0], CACHE_LINE] } else { &[] };
        let controls = controls.iter().filter(|class| !classes.contains(class));
        classes.iter().chain(controls).map(move |class| by_one_store(number, *class)).collect::<Vec<_>>()
    };
    rounds.flat_map(round).collect()
}

/// The trials of part 2.
pub(crate) fn calls(depth: Depth) -> Vec<Spec> {
    let call = |number: u64, class| Spec {
        kernel: Kernel::Call,
        // A NOP's front with a CALL's back is another NOP: the other splits reveal less.
        front: [1, 3][number as usize % 2],
        method: Method::Store,
        ..by_one_store(number, class)
    };
    (0..depth.rounds().calls).flat_map(|number| CLASSES.map(|class| call(number, class))).collect()
}

/// The boundaries that need the protocol when the fetch window is `window` bytes.
pub(crate) fn straddled(window: u32) -> impl Iterator<Item = u32> + Clone {
    CLASSES.into_iter().filter(move |class| *class >= window).chain([PAGE])
}

/// The trial `number` by the protocol at some boundary from `window` on. Trials with the same
/// number differ in the wait only.
fn by_protocol(number: u64, window: u32, wait: u32) -> Spec {
    let spec = drawn(number);
    let mut random = SmallRng::seed_from_u64(spec.seed);
    let all: Vec<u32> = straddled(window).collect();
    // Lines and pages are evicted independently: the longest staleness occurs there.
    let boundary = match random.random_range(0..4) {
        0 => *all.choose(&mut random).expect("a page at least"),
        1 => PAGE,
        _ => CACHE_LINE,
    };
    let approach =
        [Approach::Loop, Approach::Anew, Approach::Cold, Approach::Cold][random.random_range(0..4)];
    let spacing = if random.random_ratio(7, 8) { Spacing::Spread } else { spec.spacing };
    let executors = random.random_range(1..=4);
    Spec { boundary, approach, spacing, executors, method: Method::Protocol { wait }, ..spec }
}

/// The rounds of the protocol with these numbers, with each of these waits.
pub(crate) fn by_protocol_rounds(rounds: Range<u64>, window: u32, waits: &[u32]) -> Vec<Spec> {
    let round = |number| waits.iter().map(move |wait| by_protocol(number, window, *wait));
    rounds.flat_map(round).collect()
}

/// The trials through `wordpatch::patch` with these numbers, at every boundary in turn.
pub(crate) fn by_wordpatch(trials: Range<u64>) -> Vec<Spec> {
    let places: Vec<u32> = boundaries().chain([PAGE]).collect();
    let trial = |number: u64| Spec {
        boundary: places[number as usize % places.len()],
        method: Method::Wordpatch,
        ..drawn(number)
    };
    trials.map(trial).collect()
}

/// The paper's stress of the library (section 8.1): each split at the window's own boundary, with 2
/// to 6 executors, `toggles` each.
pub(crate) fn paper_stress(window: u32, toggles: u64) -> Vec<Spec> {
    let executors = |front| (2..=6).map(move |executors| (front, executors));
    let spec = |(front, executors)| Spec {
        boundary: window,
        front,
        executors,
        kernel: Kernel::Opcode,
        method: Method::Wordpatch,
        toggles,
        milliseconds: u32::MAX,
        ..drawn(u64::from(front) << 8 | u64::from(executors))
    };
    (1..LENGTH).flat_map(executors).map(spec).collect()
}

/// The trials of part 3.
pub(crate) fn coarse(depth: Depth, window: u32) -> Vec<Spec> {
    if depth == Depth::Full {
        return paper(window);
    }
    by_protocol_rounds(0..depth.rounds().coarse, window, &WAITS)
}

/// The trials of part 4, if the smallest clean wait so far is `clean`: from half of it to the T_max
/// that would follow from it. `repetition` counts from 0.
pub(crate) fn fine(depth: Depth, window: u32, clean: u32, repetition: usize) -> Vec<Spec> {
    let first = clean / 2;
    let last = (f64::from(clean) * SAFETY_FACTOR) as u32;
    let wait = |step| {
        // Denser where they are small.
        let share = (f64::from(step) / f64::from(FINE_STEPS - 1)).powi(2);
        first + (f64::from(last - first) * share) as u32
    };
    let waits: Vec<u32> = (0..FINE_STEPS).map(wait).collect();
    let rounds = depth.rounds();
    // Draws that differ from those of part 3 and of the previous repetition.
    let first = rounds.coarse + rounds.fine * repetition as u64;
    by_protocol_rounds(first..first + rounds.fine, window, &waits)
}

/// Section 8.1: 4 splits, 2 to 6 executors, 5 runs, 50 million toggles each, at each wait.
fn paper(window: u32) -> Vec<Spec> {
    const RUNS: u64 = 5;
    const TOGGLES: u64 = 50_000_000;
    /// No trial takes this long; it ends trials that get no processor time.
    const LIMIT: u32 = 3_600_000;
    let mut specs = Vec::new();
    for run in 0..RUNS {
        for wait in (0..=MAX_WAIT).step_by(STEP as usize) {
            for front in 1..LENGTH {
                for executors in 2..=6 {
                    specs.push(Spec {
                        kernel: Kernel::Opcode,
                        boundary: window.min(CACHE_LINE),
                        front,
                        executors,
                        method: Method::Protocol { wait },
                        spacing: Spacing::BackToBack,
                        toggles: TOGGLES,
                        milliseconds: LIMIT,
                        ..drawn(run)
                    });
                }
            }
        }
    }
    specs
}

/// Approximate duration of a trial, in milliseconds: its limit, or the time of its toggles if that
/// is less.
pub(crate) fn expected_milliseconds(spec: &Spec, ticks_per_millisecond: f64) -> u64 {
    /// The cost of a toggle without its waits, with an executor running, in ticks.
    const TOGGLE: f64 = 300.0;
    /// The cost of a toggle with its traps and its waits, with several executors, in ticks.
    const PATCH: f64 = 30_000.0;
    /// The cost of the process and its threads, in milliseconds.
    const START: f64 = 6.0;
    let toggle = match spec.method {
        Method::Protocol { wait } => TOGGLE + 2.0 * f64::from(wait),
        Method::Wordpatch => PATCH,
        Method::Store | Method::LockedStore => TOGGLE,
    };
    let by_toggles = spec.toggles as f64 * toggle / ticks_per_millisecond;
    (START + by_toggles.min(f64::from(spec.milliseconds))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS_PER_MILLISECOND: f64 = 2.6e6;

    #[test]
    fn no_locked_store_crosses_a_cache_line() {
        let locked = |spec: &&Spec| spec.method == Method::LockedStore;
        let specs = [window(Depth::Standard), calls(Depth::Standard)].concat();
        assert!(specs.iter().filter(locked).count() > 100);
        assert!(specs.iter().filter(locked).all(|spec| spec.boundary < CACHE_LINE));
    }

    /// The property that makes one class a control for the others.
    #[test]
    fn the_trials_of_a_round_differ_in_their_place_only() {
        let specs = window(Depth::Quick);
        let inside: Vec<&Spec> =
            specs.iter().filter(|spec| INSIDE_LINE.contains(&class(spec.boundary))).collect();
        assert_eq!(inside.len() as u64, 3 * Depth::Quick.rounds().window);
        for round in inside.chunks(3) {
            let classes: Vec<u32> = round.iter().map(|spec| class(spec.boundary)).collect();
            assert_eq!(classes, INSIDE_LINE);
            for spec in round {
                assert_eq!(
                    Spec { boundary: 0, seed: 0, ..**spec },
                    Spec { boundary: 0, seed: 0, ..*round[0] }
                );
            }
            assert!(round[0].seed != round[1].seed && round[1].seed != round[2].seed);
        }
        for wait_round in coarse(Depth::Standard, 32).chunks(WAITS.len()) {
            let method = Method::Store;
            assert!(
                wait_round.iter().all(|spec| Spec { method, ..*spec } == Spec { method, ..wait_round[0] })
            );
        }
    }

    #[test]
    fn every_method_and_approach_is_tried_at_every_class() {
        let specs = window(Depth::Quick);
        for boundary in INSIDE_LINE {
            let of = |test: &dyn Fn(&Spec) -> bool| {
                specs.iter().filter(|spec| class(spec.boundary) == boundary).any(test)
            };
            for mapping in [Mapping::Alias, Mapping::Direct] {
                for kernel in [Kernel::Immediate, Kernel::Opcode] {
                    assert!(of(&|spec| spec.mapping == mapping && spec.kernel == kernel), "{boundary}");
                }
            }
            for placement in [Placement::Apart, Placement::Shared, Placement::Free] {
                for approach in [Approach::Loop, Approach::Anew, Approach::Cold] {
                    assert!(
                        of(&|spec| spec.placement == placement && spec.approach == approach),
                        "{boundary}"
                    );
                }
                for executors in 2..=4 {
                    assert!(of(&|spec| spec.placement == placement && spec.executors == executors));
                }
            }
            assert!(of(&|spec| spec.load) && of(&|spec| spec.method == Method::Store));
            assert!(of(&|spec| spec.method == Method::LockedStore));
        }
        // A single executor rarely observes a tear, and an immediate on one side of the boundary
        // shows no mixture.
        assert!(specs.iter().all(|spec| spec.executors >= 2 && spec.front >= spec.kernel.first_front()));
    }

    #[test]
    fn the_parts_of_a_quick_run_take_less_than_a_minute() {
        let parts = [window(Depth::Quick), calls(Depth::Quick), coarse(Depth::Quick, 8)];
        assert!(parts[2].is_empty(), "fine trials would follow");
        let total: u64 =
            parts.iter().flatten().map(|spec| expected_milliseconds(spec, TICKS_PER_MILLISECOND)).sum();
        assert!(total < 58_000, "{total}");
    }

    #[test]
    fn the_papers_grid_is_the_papers() {
        let specs = coarse(Depth::Full, 32);
        assert_eq!(specs.len(), 4 * 5 * 5 * 25);
        assert!(specs.iter().all(|spec| spec.boundary == 32 && spec.toggles == 50_000_000));
    }

    #[test]
    fn fine_trials_reach_from_below_the_clean_wait_to_the_claimed_one() {
        let waits: Vec<u32> = fine(Depth::Standard, 64, 800, 0)
            .iter()
            .map(|spec| match spec.method {
                Method::Protocol { wait } => wait,
                _ => panic!("{spec:?}"),
            })
            .collect();
        assert_eq!((waits.iter().min(), waits.iter().max()), (Some(&400), Some(&2_400)));
        assert!(waits.iter().any(|wait| (800..1_000).contains(wait)), "{waits:?}");
    }
}
