//! Trials on this machine.
//!
//! A trial writes an executor's loop around the site (`code`) into pages of its own (`text`), starts the executors, each on the
//! same code, toggles (`patcher`), and adds up what the executors have counted. [`Kernel::Call`] crashes where it tears, so it
//! runs in a child process (`crash`).

mod code;
pub mod crash;
mod patcher;
mod text;

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iced_x86::IcedError;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::Error;
use crate::trial::{Kernel, LENGTH, Machine, Mapping, PAGE, Spec, Trial};
use code::{Executor, Seen, assemble};
use patcher::Patcher;
use text::Text;

/// Boundaries below a page lie behind this offset, a multiple of all of them, with room for the loop's beginning.
const BASE: usize = 512;

/// How much memory the interfering thread works on: more than the caches that a core has for itself.
const LOAD: usize = 16 << 20;

/// This machine.
pub struct ThisMachine {
    direct: Option<Text>,
    alias: Option<Text>,
    processors: Vec<usize>,
    /// This program, for trials that crash; without it they run here.
    program: Option<PathBuf>,
}

impl ThisMachine {
    /// This machine; trials that crash are run by `program`, which must be `tmax-probe`.
    ///
    /// # Errors
    /// The processors that this process may use are not known.
    pub fn new(program: PathBuf) -> Result<Self, Error> {
        Ok(Self { program: Some(program), ..Self::in_this_process()? })
    }

    /// This machine; trials that crash, crash the caller.
    pub(crate) fn in_this_process() -> Result<Self, Error> {
        Ok(Self { direct: None, alias: None, processors: usable_processors()?, program: None })
    }

    fn text(&mut self, mapping: Mapping) -> Result<&mut Text, Error> {
        let place = match mapping {
            Mapping::Direct => &mut self.direct,
            Mapping::Alias => &mut self.alias,
        };
        match place {
            Some(text) => Ok(text),
            None => Ok(place.insert(Text::new(mapping)?)),
        }
    }

    /// Runs a trial in this process. `progress` is told of the toggles now and then.
    pub(crate) fn run_here(&mut self, spec: &Spec, progress: impl FnMut(u64) + Send) -> Result<Trial, Error> {
        let processors = self.processors.clone();
        let site = site_of(spec);
        let text = self.text(spec.mapping)?;
        let target = match spec.kernel {
            Kernel::Call => {
                let end = text.start() + site + usize::from(LENGTH);
                text.write_target(end, &code::empty_function().expect("one instruction"))?
            }
            Kernel::Immediate | Kernel::Opcode => 0,
        };
        let code = assemble(spec, text.start() as u64, site, target as u64);
        let code = code.unwrap_or_else(|error: IcedError| unreachable!("fixed code: {error}"));
        text.write(&code.bytes);
        // The pages held another trial's code.
        wordpatch::serialize_all_cores()?;
        let patcher = Patcher::new(&code, site, usize::from(spec.front), text.view(), text.start());
        // SAFETY: a function of this signature was just written there.
        let executor: Executor = unsafe { std::mem::transmute(text.start()) };
        let seen: Vec<Seen> = (0..spec.executors).map(|_| Seen::default()).collect();
        let over = AtomicBool::new(false);
        let start = Instant::now();
        let toggles = thread::scope(|scope| {
            for (number, seen) in seen.iter().enumerate() {
                let processor = processor_of_executor(&processors, number).filter(|_| spec.pinned);
                scope.spawn(move || {
                    pin(processor);
                    // SAFETY: the code stays mapped until the scope ends, and each of its forms is valid, or crashes on purpose.
                    unsafe { executor(seen) };
                });
            }
            if spec.load {
                scope.spawn(|| interfere(&over));
            }
            let patcher = scope.spawn(move || {
                pin(processors.first().copied().filter(|_| spec.pinned));
                let deadline = start + Duration::from_millis(spec.milliseconds.into());
                // SAFETY: the memory outlives the scope, and the executors use it as code only.
                unsafe { patcher.toggle(spec, deadline, progress) }
            });
            let toggles = patcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            over.store(true, Ordering::Relaxed);
            seen.iter().for_each(|seen| seen.stop.store(1, Ordering::Relaxed));
            toggles
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

impl Machine for ThisMachine {
    fn run(&mut self, spec: &Spec) -> Result<Trial, Error> {
        match (&self.program, spec.kernel) {
            (Some(program), Kernel::Call) => crash::run_in_child(program, spec),
            _ => self.run_here(spec, |_| {}),
        }
    }
}

/// Offset of the site in its code.
fn site_of(spec: &Spec) -> usize {
    let boundary = if spec.boundary == PAGE { PAGE as usize } else { BASE + spec.boundary as usize };
    boundary - usize::from(spec.front)
}

/// The processors that this process may run on.
pub(crate) fn usable_processors() -> Result<Vec<usize>, Error> {
    let failed = |errno: nix::Error| Error::System { what: "sched_getaffinity", source: errno.into() };
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(failed)?;
    Ok((0..CpuSet::count()).filter(|processor| set.is_set(*processor).unwrap_or(false)).collect())
}

/// The first processor is the patcher's, the others are shared by the executors; of one processor there is nothing to share.
fn processor_of_executor(processors: &[usize], number: usize) -> Option<usize> {
    match processors {
        [] => None,
        [only] => Some(*only),
        [_, others @ ..] => Some(others[number % others.len()]),
    }
}

/// Keeps the calling thread on a processor. Where that is refused, it runs where the kernel likes: a trial more of that kind.
pub(crate) fn pin(processor: Option<usize>) {
    let Some(processor) = processor else { return };
    let mut set = CpuSet::new();
    let _ = set.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
}

/// Works through memory, so that cache lines, code among them, are evicted.
fn interfere(over: &AtomicBool) {
    let mut memory = vec![0_u64; LOAD / size_of::<u64>()];
    let mut sum = 0_u64;
    while !over.load(Ordering::Relaxed) {
        // A line at a time, with a stride that prefetchers do not foresee.
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
    use crate::plan;
    use crate::trial::{Approach, CACHE_LINE, Method, Spacing, class};

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
            pinned: false,
            load: false,
            toggles: 100_000,
            milliseconds: 10_000,
        }
    }

    #[test]
    fn the_site_crosses_its_boundary_and_no_larger_one() {
        for boundary in plan::boundaries().chain([PAGE]) {
            for front in 1..LENGTH {
                let site = site_of(&Spec { boundary, front, ..spec(Kernel::Opcode, Method::Store) });
                let (first, last) = (site, site + usize::from(LENGTH) - 1);
                let crosses = |size: usize| first / size != last / size;
                let class = class(boundary) as usize;
                assert!(crosses(class), "{boundary} {front}");
                assert!(class == CACHE_LINE as usize || !crosses(2 * class), "{boundary} {front}");
            }
        }
    }

    /// What must hold on every machine: every toggle arrives, and inside an aligned quadword nothing tears.
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
    fn under_the_protocol_executors_meet_the_lock() {
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
