//! Trials on this machine.
//!
//! A trial writes an executor's loop around the site (`code`) into its own pages (`text`), starts
//! the executors, all on the same code, toggles once all of them run (`patcher`), and adds up the
//! counts of the executors. Each trial runs in a separate process (`child`).

pub(crate) mod child;
mod code;
mod patcher;
mod text;

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iced_x86::IcedError;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use wordpatch::FetchModel;
use wordpatch::calibration::Model;

use crate::boundary::{CACHE_LINE, PAGE};
use crate::error::Error;
use crate::trial::{Kernel, LENGTH, Machine, Placement, Spec, Trial};
use code::{Executor, Padding, Seen, assemble};
use patcher::Patcher;
use text::Text;

/// The first cache line that may contain a site's boundary, from the start of the code: leaves
/// space for the start of the loop.
const FIRST_LINE: usize = 512;

/// Number of cache lines that may contain a site's boundary.
const LINES: usize = 32;

/// Maximum padding in a loop, in bytes.
const MAX_PADDING: usize = 24;

/// Size of the memory that the interfering thread works on: more than a core's private caches.
const LOAD: usize = 16 << 20;

/// This machine, as a [`Machine`] that runs trials.
pub struct ThisMachine {
    processors: Vec<usize>,
    /// The path of this program, for running trials in separate processes; without it, trials run
    /// in this process.
    program: Option<PathBuf>,
    /// The model that patches of trials rely on; without it, the one in force.
    model: Option<Model>,
}

impl ThisMachine {
    /// This machine; each trial is run by a process of the program at this path, which must be
    /// `tmax-probe`.
    ///
    /// # Errors
    /// The processors available to this process cannot be determined.
    pub fn new(program: PathBuf) -> Result<Self, Error> {
        Ok(Self { program: Some(program), ..Self::in_this_process()? })
    }

    /// The same machine, with trials through `wordpatch::patch` that rely on `model`, whether or
    /// not it holds.
    #[must_use]
    pub fn assuming(self, model: &FetchModel) -> Self {
        let FetchModel { window, t_max, wait, .. } = *model;
        let t_max_ticks = t_max.map(|t_max| t_max.0);
        Self { model: Some(Model { window_bytes: window.bytes(), t_max_ticks, wait }), ..self }
    }

    /// This machine, with trials in the calling process; trials of [`Kernel::Call`] crash it.
    pub(crate) fn in_this_process() -> Result<Self, Error> {
        Ok(Self { processors: usable_processors()?, program: None, model: None })
    }

    /// Runs a trial in this process. `progress` is called periodically with the number of toggles.
    pub(crate) fn run_here(&self, spec: &Spec, progress: impl FnMut(u64) + Send) -> Result<Trial, Error> {
        let processors = &in_order(&self.processors, spec.processors);
        let (site, padding) = shape_of(spec);
        let mut text = Text::new(spec.mapping)?;
        let target = match spec.kernel {
            Kernel::Call => {
                let end = text.start() + site + usize::from(LENGTH);
                text.write_target(end, &code::empty_function().expect("one instruction"))?
            }
            Kernel::Immediate | Kernel::Opcode => 0,
        };
        let code = assemble(spec, text.start() as u64, site, target as u64, padding);
        let code = code.unwrap_or_else(|error: IcedError| unreachable!("fixed code: {error}"));
        text.write(&code.bytes);
        // The addresses may have held other code before.
        wordpatch::serialize_all_cores()?;
        let patcher = Patcher::new(&code, site, spec, text.view(), text.start());
        // SAFETY: a function of this signature was just written there.
        let executor: Executor = unsafe { std::mem::transmute(text.start()) };
        let seen: Vec<Seen> = (0..spec.executors).map(|_| Seen::default()).collect();
        let running = AtomicUsize::new(0);
        let over = AtomicBool::new(false);
        let start = Instant::now();
        let toggles = thread::scope(|scope| {
            let _end = EndOfTrial { seen: &seen, over: &over };
            let refused = |source| Error::System { what: "a thread of the trial", source };
            for (number, seen) in seen.iter().enumerate() {
                let processor = processor_of_executor(processors, spec.placement, number);
                let running = &running;
                let execute = move || {
                    pin(processor);
                    running.fetch_add(1, Ordering::Release);
                    // SAFETY: the code stays mapped until the scope ends, and each of its forms is
                    // valid, or crashes intentionally.
                    unsafe { executor(seen) };
                };
                thread::Builder::new().spawn_scoped(scope, execute).map_err(refused)?;
            }
            if spec.load {
                thread::Builder::new().spawn_scoped(scope, || interfere(&over)).map_err(refused)?;
            }
            let running = &running;
            let toggle = move || {
                pin(processors.first().copied().filter(|_| spec.placement != Placement::Free));
                while running.load(Ordering::Acquire) < usize::from(spec.executors) {
                    thread::yield_now();
                }
                let deadline = Instant::now() + Duration::from_millis(spec.milliseconds.into());
                // SAFETY: the memory outlives the scope, and the executors use it as code only.
                unsafe { patcher.toggle(spec, deadline, progress) }
            };
            let patcher = thread::Builder::new().spawn_scoped(scope, toggle).map_err(refused)?;
            patcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let sum = |count: fn(&Seen) -> u64| seen.iter().map(count).sum();
        Ok(Trial {
            spec: *spec,
            toggles,
            executions: sum(|seen| seen.executions.load(Ordering::Relaxed)),
            locked: sum(|seen| seen.locked.load(Ordering::Relaxed)),
            tears: sum(|seen| seen.tears.load(Ordering::Relaxed)),
            milliseconds: start.elapsed().as_millis() as u32,
        })
    }
}

/// Ends the other threads of a trial when it is dropped, also after an error or a panic.
struct EndOfTrial<'a> {
    seen: &'a [Seen],
    over: &'a AtomicBool,
}

impl Drop for EndOfTrial<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.seen.iter().for_each(|seen| seen.stop.store(1, Ordering::Relaxed));
    }
}

impl Machine for ThisMachine {
    fn run(&mut self, spec: &Spec) -> Result<Trial, Error> {
        match &self.program {
            Some(program) => child::run_in_child(program, spec, self.model),
            None => self.run_here(spec, |_| {}),
        }
    }
}

/// Offset of the site in its code, and the padding in its loop: the spec's boundary, in a cache
/// line selected by its seed.
fn shape_of(spec: &Spec) -> (usize, Padding) {
    let mut random = SmallRng::seed_from_u64(spec.seed);
    let line = FIRST_LINE + random.random_range(0..LINES) * CACHE_LINE as usize;
    let boundary = if spec.boundary == PAGE { PAGE as usize } else { line + spec.boundary as usize };
    let mut padding = || random.random_range(0..=MAX_PADDING);
    (boundary - usize::from(spec.front), Padding { before: padding(), after: padding() })
}

/// The processors available to this process.
pub(crate) fn usable_processors() -> Result<Vec<usize>, Error> {
    let failed = |errno: nix::Error| Error::System { what: "sched_getaffinity", source: errno.into() };
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(failed)?;
    Ok((0..CpuSet::count()).filter(|processor| set.is_set(*processor).unwrap_or(false)).collect())
}

/// The processors in the order in which a trial uses them, which `draw` selects: half of the orders
/// begin with consecutive numbers, often those of one core or cache; the others are shuffled, so
/// that trials use several sockets and kinds of cores.
fn in_order(processors: &[usize], draw: u32) -> Vec<usize> {
    let mut order = processors.to_vec();
    if draw.is_multiple_of(2) {
        order.rotate_left((draw / 2) as usize % processors.len().max(1));
    } else {
        order.shuffle(&mut SmallRng::seed_from_u64(draw.into()));
    }
    order
}

/// The first processor is the patcher's. The executors share the others, or also use the first
/// ([`Placement`]); a single processor is shared by all.
fn processor_of_executor(processors: &[usize], placement: Placement, number: usize) -> Option<usize> {
    match (placement, processors) {
        (Placement::Free, _) | (_, []) => None,
        (_, [only]) => Some(*only),
        (Placement::Shared, [first, ..]) if number % 2 == 1 => Some(*first),
        (Placement::Shared, [_, others @ ..]) => Some(others[number / 2 % others.len()]),
        (Placement::Apart, [_, others @ ..]) => Some(others[number % others.len()]),
    }
}

/// Pins the calling thread to a processor. If that is refused, the kernel chooses one.
pub(crate) fn pin(processor: Option<usize>) {
    let Some(processor) = processor else { return };
    let mut set = CpuSet::new();
    let _ = set.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

/// Writes to much memory, so that cache lines, including those of code, are evicted.
fn interfere(over: &AtomicBool) {
    let mut memory = vec![0_u64; LOAD / size_of::<u64>()];
    let mut sum = 0_u64;
    while !over.load(Ordering::Relaxed) {
        // One line at a time, with a stride that prefetchers do not predict.
        for step in 0..4096 {
            let place = (step * 8191 + sum as usize) % memory.len();
            memory[place] = memory[place].wrapping_add(sum | 1);
            sum = sum.wrapping_add(memory[place]);
        }
    }
    black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::{boundaries, class};
    use crate::trial::{Approach, Mapping, Method, Spacing};

    fn spec(kernel: Kernel, method: Method) -> Spec {
        Spec {
            kernel,
            boundary: 8,
            front: 2,
            method,
            spacing: Spacing::BackToBack,
            mapping: Mapping::Alias,
            executors: 2,
            approach: Approach::Loop,
            placement: Placement::Free,
            load: false,
            seed: 1,
            processors: 0,
            toggles: 100_000,
            milliseconds: 10_000,
        }
    }

    #[test]
    fn the_site_crosses_its_boundary_and_no_larger_one() {
        for boundary in boundaries().chain([PAGE]) {
            for front in 1..LENGTH {
                for seed in 0..10 {
                    let spec = Spec { boundary, front, seed, ..spec(Kernel::Opcode, Method::Store) };
                    let site = shape_of(&spec).0;
                    let (first, last) = (site, site + usize::from(LENGTH) - 1);
                    let crosses = |size: usize| first / size != last / size;
                    let class = class(boundary) as usize;
                    assert!(crosses(class), "{boundary} {front}");
                    assert!(class == CACHE_LINE as usize || !crosses(2 * class), "{boundary} {front}");
                }
            }
        }
    }

    #[test]
    fn seeds_choose_the_line_and_the_shape_of_the_loop() {
        let shape = |seed| shape_of(&Spec { seed, ..spec(Kernel::Opcode, Method::Store) });
        let shapes: Vec<_> = (0..100).map(shape).collect();
        let lines: std::collections::BTreeSet<_> = shapes.iter().map(|(site, _)| site).collect();
        assert!(lines.len() > LINES / 2, "{lines:?}");
        assert!((0..99).any(|i| shapes[i].1 != shapes[i + 1].1));
        assert_eq!(shape(7), shapes[7]);
    }

    #[test]
    fn of_shared_executors_one_has_the_patchers_processor() {
        let on = |placement, processors: &[usize]| {
            [0, 1, 2, 3].map(|number| processor_of_executor(processors, placement, number))
        };
        let some = |all: [usize; 4]| all.map(Some);
        assert_eq!(on(Placement::Apart, &[3, 5, 7]), some([5, 7, 5, 7]));
        assert_eq!(on(Placement::Shared, &[3, 5, 7]), some([5, 3, 7, 3]));
        assert_eq!(on(Placement::Shared, &[3, 5]), some([5, 3, 5, 3]));
        assert_eq!(on(Placement::Apart, &[3]), some([3; 4]));
        assert_eq!(on(Placement::Free, &[3, 5]), [None; 4]);
    }

    #[test]
    fn every_pair_of_processors_is_used_by_patcher_and_executor() {
        let machine = [2, 3, 8, 9, 64, 65];
        let orders: Vec<Vec<usize>> = (0..1_000).map(|draw| in_order(&machine, draw)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort();
            assert_eq!(sorted, machine);
        }
        let pairs: std::collections::BTreeSet<_> = orders.iter().map(|order| (order[0], order[1])).collect();
        assert_eq!(pairs.len(), machine.len() * (machine.len() - 1));
        let consecutive = orders.iter().filter(|order| order[0] + 1 == order[1]).count();
        assert!(consecutive > 250, "{consecutive}");
        assert_eq!((in_order(&[], 2), in_order(&[], 3)), (vec![], vec![]));
    }

    /// Otherwise the executors would run forever.
    #[test]
    fn a_panic_of_the_patcher_ends_the_trial() {
        let (ended, end) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let machine = ThisMachine::in_this_process().unwrap();
            let spec = spec(Kernel::Opcode, Method::Store);
            let trial = || machine.run_here(&spec, |_| panic!("of the test"));
            ended.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(trial)).is_err())
        });
        assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    /// Properties of every machine: every toggle becomes visible, and inside an aligned quadword
    /// nothing tears.
    #[test]
    fn inside_a_quadword_executors_see_both_forms_and_nothing_else() {
        let mut machine = ThisMachine::in_this_process().unwrap();
        for kernel in [Kernel::Immediate, Kernel::Opcode] {
            for mapping in [Mapping::Direct, Mapping::Alias] {
                for method in [Method::Store, Method::LockedStore] {
                    let spec = Spec { boundary: 4, mapping, ..spec(kernel, method) };
                    let trial = machine.run(&spec).unwrap();
                    assert!(trial.toggles >= 100_000 && trial.executions > 0, "{trial:?}");
                    assert_eq!((trial.tears, trial.locked), (0, 0), "{trial:?}");
                }
            }
        }
    }

    #[test]
    fn executors_observe_the_lock_during_the_protocol() {
        let mut machine = ThisMachine::in_this_process().unwrap();
        let method = Method::Protocol { wait: 20_000 };
        let trial =
            machine.run(&Spec { boundary: 64, toggles: 5_000, ..spec(Kernel::Opcode, method) }).unwrap();
        assert!(trial.locked > 0, "{trial:?}");
        assert_eq!(trial.tears, 0, "{trial:?}");
    }

    #[test]
    fn through_wordpatch_nothing_tears_across_a_line() {
        let mut machine = ThisMachine::in_this_process().unwrap();
        let spec = Spec { boundary: 64, toggles: 2_000, ..spec(Kernel::Opcode, Method::Wordpatch) };
        let trial = machine.run(&spec).unwrap();
        assert!(trial.toggles >= 2_000 && trial.executions > 0, "{trial:?}");
        assert_eq!(trial.tears, 0, "{trial:?}");
    }
}
