//! Which trials a run makes, and how its time is shared among them.
//!
//! 1. **Window.** For each multiple of 4 in a cache line and its end: every kernel, split and spacing, by one store. The rest (mapping, kind of
//!    store, executors, pinning, load) is drawn at random, the same in each run.
//! 2. **Calls.** The paper's own kernel, which crashes, at the same boundaries.
//! 3. **Coarse.** The protocol with waits from 0 to 6,400 ticks, for each boundary from the window on, each split, and
//!    several numbers of executors.
//! 4. **Fine.** Longer trials around the smallest clean wait, and above it as far as the T_max that will be claimed. Again, when they
//!    find a larger one.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::estimate::SAFETY_FACTOR;
use crate::trial::{Approach, CACHE_LINE, Kernel, LENGTH, Mapping, Method, PAGE, Spacing, Spec, class};

/// How thorough a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Less than a minute.
    Quick,
    /// A few minutes.
    Standard,
    /// The paper's grid: many hours.
    Full,
}

/// Milliseconds for each part of a run.
struct Budget {
    window: u32,
    calls: u32,
    coarse: u32,
    fine: u32,
}

impl Depth {
    fn budget(self) -> Budget {
        match self {
            Self::Quick => Budget { window: 12_000, calls: 2_000, coarse: 13_000, fine: 9_000 },
            Self::Standard => Budget { window: 60_000, calls: 10_000, coarse: 50_000, fine: 60_000 },
            Self::Full => Budget { window: 1_200_000, calls: 60_000, coarse: 0, fine: 600_000 },
        }
    }
}

/// Every place in a cache line where a site is cut. At an odd multiple of 4 it lies inside an aligned quadword.
pub fn boundaries() -> impl Iterator<Item = u32> {
    (4..=CACHE_LINE).step_by(4)
}

/// What a site can cross, by [`class`]: the candidates for the window, and 4 for the control inside a quadword.
pub const CLASSES: [u32; 5] = [4, 8, 16, 32, 64];

/// The paper's grid of waits, in ticks.
const STEP: u32 = 100;
const LONGEST_WAIT: u32 = 2_400;

/// And between its first two steps, where most tears are, and beyond it, for machines that are slower than the paper's.
const MORE_WAITS: [u32; 4] = [50, 3_200, 4_800, 6_400];

/// How many waits part 4 tries.
const FINE_STEPS: u32 = 12;

/// How often part 4 is made at most.
pub const FINE_ROUNDS: usize = 3;

/// Tells that toggles are not what ends a trial.
const NO_LIMIT: u64 = u64::MAX;

/// Gives each trial the same share of the time.
fn share(mut specs: Vec<Spec>, milliseconds: u32) -> Vec<Spec> {
    let each = (milliseconds / specs.len().max(1) as u32).max(5);
    specs.iter_mut().for_each(|spec| spec.milliseconds = each);
    specs
}

/// A trial with what the grid does not say drawn at random, the same for the same number.
fn drawn(number: usize) -> Spec {
    let mut random = SmallRng::seed_from_u64(number as u64);
    let mut one_of = |choices: usize| random.random_range(0..choices);
    Spec {
        kernel: Kernel::Opcode,
        boundary: CACHE_LINE,
        front: 3,
        method: [Method::Store, Method::Store, Method::LockedStore][one_of(3)],
        spacing: [Spacing::Spread, Spacing::Spread, Spacing::Pairs, Spacing::BackToBack][one_of(4)],
        mapping: [Mapping::Alias, Mapping::Direct][one_of(2)],
        executors: [1, 1, 1, 2, 4][one_of(5)],
        approach: [Approach::Loop, Approach::Anew, Approach::Cold][one_of(3)],
        pinned: one_of(4) > 0,
        load: one_of(6) == 0,
        toggles: NO_LIMIT,
        milliseconds: 0,
    }
}

/// Part 1. Each class has the same time, but for the control inside a quadword.
pub fn window(depth: Depth) -> Vec<Spec> {
    const SHARES: u32 = 9;
    let budget = depth.budget().window;
    CLASSES
        .into_iter()
        .flat_map(|wanted| {
            let shares = if wanted == CLASSES[0] { 1 } else { 2 };
            share(
                by_one_store(boundaries().filter(|boundary| class(*boundary) == wanted)),
                budget * shares / SHARES,
            )
        })
        .collect()
}

fn by_one_store(boundaries: impl Iterator<Item = u32>) -> Vec<Spec> {
    let mut specs = Vec::new();
    for boundary in boundaries {
        for spacing in [Spacing::BackToBack, Spacing::Pairs, Spacing::Spread] {
            for kernel in [Kernel::Immediate, Kernel::Opcode] {
                for front in 1..LENGTH {
                    let drawn = drawn(specs.len());
                    // A locked store across two lines is a split lock, which stops the whole machine.
                    let method = if boundary < CACHE_LINE { drawn.method } else { Method::Store };
                    specs.push(Spec { kernel, boundary, front, spacing, method, ..drawn });
                }
            }
        }
    }
    specs
}

/// Part 2.
pub fn calls(depth: Depth) -> Vec<Spec> {
    let mut specs = Vec::new();
    for boundary in CLASSES {
        // A NOP's front with a CALL's back is another NOP: the other splits show less.
        for front in [1, 3] {
            let drawn = drawn(specs.len());
            let method = Method::Store;
            specs.push(Spec { kernel: Kernel::Call, boundary, front, method, executors: 1, ..drawn });
        }
    }
    share(specs, depth.budget().calls)
}

/// The boundaries that the protocol is for when the fetch window is `window` bytes.
pub(crate) fn straddled(window: u32) -> impl Iterator<Item = u32> + Clone {
    CLASSES.into_iter().filter(move |class| *class >= window).chain([PAGE])
}

/// The protocol at `wait`, for each boundary from `window` on, each split, and these numbers of executors.
fn protocol(specs: &mut Vec<Spec>, window: u32, wait: u32, executors: &[u8]) {
    for boundary in straddled(window) {
        for front in 1..LENGTH {
            for &executors in executors {
                // An immediate's front half is told from the other by its opcode's neighbours: none are there at 1|4.
                let kernel =
                    if front > 1 && specs.len() % 4 == 2 { Kernel::Immediate } else { Kernel::Opcode };
                let method = Method::Protocol { wait };
                let drawn = drawn(specs.len());
                specs.push(Spec { kernel, boundary, front, executors, method, ..drawn });
            }
        }
    }
}

/// Part 3.
pub fn coarse(depth: Depth, window: u32) -> Vec<Spec> {
    if depth == Depth::Full {
        return paper(window);
    }
    let executors: &[u8] = if depth == Depth::Quick { &[1, 3] } else { &[1, 2, 4] };
    let mut specs = Vec::new();
    let waits = (0..=LONGEST_WAIT).step_by(STEP as usize);
    // Beyond the first thousand, every fourth.
    for wait in waits.filter(|wait| *wait <= 1_000 || wait % (4 * STEP) == 0).chain(MORE_WAITS) {
        protocol(&mut specs, window, wait, executors);
    }
    share(specs, depth.budget().coarse)
}

/// Part 4, when the smallest clean wait so far is `clean`: from half of it to the T_max that follows from it.
pub fn fine(depth: Depth, window: u32, clean: u32) -> Vec<Spec> {
    let first = clean / 2;
    let last = (f64::from(clean) * SAFETY_FACTOR) as u32;
    let mut specs = Vec::new();
    for step in 0..FINE_STEPS {
        // Closer together where they are small.
        let share = (f64::from(step) / f64::from(FINE_STEPS - 1)).powi(2);
        let wait = first + (f64::from(last - first) * share) as u32;
        protocol(&mut specs, window, wait, &[1, 2]);
    }
    share(specs, depth.budget().fine)
}

/// Section 8.1: 4 splits, 2 to 6 executors, 5 runs, 50 million toggles each, at each wait.
fn paper(window: u32) -> Vec<Spec> {
    const RUNS: usize = 5;
    const TOGGLES: u64 = 50_000_000;
    /// No trial takes as long; one that is starved of its processors must end.
    const LIMIT: u32 = 3_600_000;
    let mut specs = Vec::new();
    for _ in 0..RUNS {
        for wait in (0..=LONGEST_WAIT).step_by(STEP as usize) {
            for front in 1..LENGTH {
                for executors in 2..=6 {
                    let drawn = drawn(specs.len());
                    specs.push(Spec {
                        boundary: window.min(CACHE_LINE),
                        front,
                        executors,
                        method: Method::Protocol { wait },
                        spacing: Spacing::BackToBack,
                        toggles: TOGGLES,
                        milliseconds: LIMIT,
                        ..drawn
                    });
                }
            }
        }
    }
    specs
}

/// About how long a trial takes, in milliseconds: its limit, or what its toggles take where that is less.
pub fn expected_milliseconds(spec: &Spec, ticks_per_millisecond: f64) -> u64 {
    /// Of a toggle without its waits, under an executor.
    const TOGGLE: f64 = 300.0;
    /// Of one with its traps and its waits, under several.
    const PATCH: f64 = 30_000.0;
    let toggle = match spec.method {
        Method::Protocol { wait } => TOGGLE + 2.0 * f64::from(wait),
        Method::Wordpatch => PATCH,
        Method::Store | Method::LockedStore => TOGGLE,
    };
    let by_toggles = spec.toggles as f64 * toggle / ticks_per_millisecond;
    by_toggles.min(f64::from(spec.milliseconds)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_locked_store_crosses_a_cache_line() {
        let locked = |spec: &&Spec| spec.method == Method::LockedStore;
        let specs = window(Depth::Standard);
        assert!(specs.iter().filter(locked).count() > 10);
        assert!(specs.iter().filter(locked).all(|spec| spec.boundary < CACHE_LINE));
    }

    #[test]
    fn every_way_of_storing_is_tried_at_every_boundary() {
        let specs = window(Depth::Quick);
        for boundary in CLASSES {
            let of = |test: &dyn Fn(&Spec) -> bool| {
                specs.iter().filter(|spec| class(spec.boundary) == boundary).any(test)
            };
            for kernel in [Kernel::Immediate, Kernel::Opcode] {
                for mapping in [Mapping::Alias, Mapping::Direct] {
                    assert!(of(&|spec| spec.mapping == mapping && spec.kernel == kernel), "{boundary}");
                }
            }
            assert!(of(&|spec| spec.load) && of(&|spec| !spec.pinned) && of(&|spec| spec.executors == 4));
            assert!(boundary == CACHE_LINE || of(&|spec| spec.method == Method::LockedStore));
        }
    }

    #[test]
    fn the_parts_of_a_quick_run_take_less_than_a_minute() {
        let parts = [
            window(Depth::Quick),
            calls(Depth::Quick),
            coarse(Depth::Quick, 8),
            fine(Depth::Quick, 8, 1_000),
            fine(Depth::Quick, 8, 2_000),
            fine(Depth::Quick, 8, 3_000),
        ];
        assert_eq!(parts.len(), 3 + FINE_ROUNDS);
        let total: u32 = parts.iter().flatten().map(|spec| spec.milliseconds).sum();
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
        let waits: Vec<u32> = fine(Depth::Standard, 64, 800)
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
