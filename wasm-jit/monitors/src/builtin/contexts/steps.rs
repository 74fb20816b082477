//! The steps that the stubs of probes execute by themselves at entries and exits of functions.
//!
//! The steps do the same as [`Local::enter`] and [`Local::leave`] in the common case: the thread
//! has a [`State`] for the monitor in the current period, and no tail call is pending; the caller
//! is the innermost frame, and its node knows the callee ([`Way`]); at an exit, the callee is the
//! innermost frame. In all other cases they change nothing, and the stub calls the function of
//! [`Events`](super::events::Events), after which the steps apply again.
//!
//! An interrupt may come after the clock was read and before the call was counted. The effect is as
//! if the function had been interrupted in its first instruction, without a call.
//!
//! [`Local::enter`]: super::local::Local::enter
//! [`Local::leave`]: super::local::Local::leave

use std::mem::offset_of;

use wasm_jit::probes::{Operand, Quadword, Relation, Shortcut, Step, Temp};

use super::frames::{FRAME, Frame};
use super::state::State;
use super::tree::{Node, WAYS, Way};
use super::{Measure, Shared};

use Operand::{Argument, Const, Memory};
use Relation::{AboveOrEqual, Below, BelowOrEqual, Equal, NotEqual};
use Temp::{A, B, C, D};

/// The shortcuts of probes.
pub(super) struct Shortcuts {
    /// For entries, by the index of the callee among the [`Way`]s.
    enter: [Shortcut; WAYS],
    /// For exits.
    pub(super) leave: Shortcut,
}

impl Shortcuts {
    /// `None` if threads have no word for the address of their state.
    pub(super) fn new(shared: &Shared) -> Option<Self> {
        let offset = shared.word.as_ref()?.offset();
        let new = |steps: Vec<Step>| {
            // SAFETY: 1. the shortcut keeps the number of the period. The word has the address of a
            // state of this monitor, or of a later one, as long as the thread has it: the thread
            // clears it before. Periods are different for all monitors, so the steps continue with
            // a state of this monitor only. The frames and nodes whose addresses it has exist as
            // long as it does. 2. All of this memory belongs to the monitor.
            unsafe { Shortcut::new(steps, shared.period.clone()) }
        };
        let mut enter = Vec::with_capacity(WAYS);
        for way in 0..WAYS {
            enter.push(new(enter_steps(shared, offset, way))?);
        }
        Some(Self { enter: enter.try_into().ok()?, leave: new(leave_steps(shared, offset))? })
    }

    /// The shortcut for the entry of a function.
    pub(super) fn enter(&self, function: u32) -> &Shortcut {
        &self.enter[Node::way_of(function)]
    }
}

/// A field of the state, whose address is in `C`.
macro_rules! state {
    ($field:ident) => {
        Quadword { base: C, offset: offset_of!(State, $field) as i32 }
    };
}

/// A field of the innermost frame, whose address is in `B`, or of a frame that many places after
/// it.
macro_rules! frame {
    ($field:ident, $after:literal) => {
        in_frame($after, offset_of!(Frame, $field))
    };
}

fn in_frame(after: i32, field: usize) -> Quadword {
    Quadword { base: B, offset: after * FRAME + field as i32 }
}

/// Loads the address of the state into `C`, and that of the innermost frame into `B`. Changes `A`.
fn begin(shared: &Shared, offset: i32) -> Vec<Step> {
    vec![
        Step::SetOfThread(C, offset),
        Step::CallIf(Operand::Temp(C), Equal, Const(0)),
        Step::SetConst(A, shared.period.as_ptr().expose_provenance() as u64),
        Step::Set(A, Memory(Quadword { base: A, offset: 0 })),
        Step::CallIf(Operand::Temp(A), NotEqual, Memory(state!(applies))),
        Step::Set(B, Memory(state!(innermost))),
    ]
}

/// The steps that read the clock: the time since the last event belongs to the node that ran, and
/// another node runs from now on, according to the steps `publish`, which may change `A` and `B`.
/// Changes `A`, `B` and `D`.
fn advance(shared: &Shared, publish: impl IntoIterator<Item = Step>) -> Vec<Step> {
    if !shared.clock.is_counter() {
        // There is a state.
        return vec![Step::CallIf(Operand::Temp(C), NotEqual, Const(0))];
    }
    let ticks = Quadword { base: A, offset: offset_of!(Node, ticks) as i32 };
    let mut together = vec![
        Step::Store(state!(last), Const(0)),
        Step::SubtractFrom(ticks, Operand::Temp(B)),
        Step::Set(B, Memory(state!(innermost))),
    ];
    together.extend(publish);
    together.push(Step::Store(state!(last), Operand::Temp(D)));
    vec![
        Step::SetClock(D),
        Step::Set(B, Memory(state!(last))),
        // The counters of different processors may differ by a few ticks.
        Step::CallIf(Operand::Temp(D), Below, Operand::Temp(B)),
        Step::Subtract(B, Operand::Temp(D)),
        Step::Set(A, Memory(state!(top_node))),
        Step::Together(together.into()),
        Step::Set(B, Memory(state!(innermost))),
    ]
}

/// A function is entered: arguments 1 and 2 are the function and its frame.
fn enter_steps(shared: &Shared, offset: i32, way: usize) -> Vec<Step> {
    let way = (offset_of!(Node, ways) + way * size_of::<Way>()) as i32;
    // A field of the way, in the node whose address is in `A`.
    let of_way = |field: usize| Memory(Quadword { base: A, offset: way + field as i32 });
    let [call, target, number] =
        [offset_of!(Way, call), offset_of!(Way, target), offset_of!(Way, target_number)].map(of_way);
    let mut steps = begin(shared, offset);
    steps.extend([
        // Has the innermost frame ended?
        Step::CallIf(Memory(frame!(key, 0)), BelowOrEqual, Argument(2)),
        Step::CallIf(Operand::Temp(B), AboveOrEqual, Memory(state!(last_frame))),
        Step::Set(A, Memory(frame!(node, 0))),
        Step::CallIf(of_way(offset_of!(Way, callee)), NotEqual, Argument(1)),
        Step::Set(D, target),
    ]);
    let is_exact = shared.measure == Measure::ExactTimes;
    if is_exact {
        let publish = [
            Step::Set(A, Memory(frame!(node, 0))),
            Step::Set(B, target),
            Step::Store(state!(top_node), Operand::Temp(B)),
            Step::Set(B, number),
            Step::Store(state!(top), Operand::Temp(B)),
        ];
        let mut other = advance(shared, publish);
        other.push(Step::Set(D, target));
        steps.push(Step::SkipIf(Operand::Temp(D), Equal, Memory(state!(top_node)), other.into()));
    }
    // The memory after the innermost frame is not a frame yet.
    steps.extend([
        Step::Store(frame!(key, 1), Argument(2)),
        Step::Store(frame!(node, 1), Operand::Temp(D)),
        Step::Set(D, number),
        Step::Store(frame!(number, 1), Operand::Temp(D)),
        Step::Set(A, call),
    ]);
    let mut together =
        vec![Step::AddTo(Quadword { base: A, offset: offset_of!(Node, calls) as i32 }, Const(1))];
    if !is_exact {
        together.push(Step::Store(state!(top), Operand::Temp(D)));
    }
    together.push(Step::AddTo(state!(innermost), Const(FRAME)));
    steps.push(Step::Together(together.into()));
    steps
}

/// A function is left: argument 1 is its frame.
fn leave_steps(shared: &Shared, offset: i32) -> Vec<Step> {
    let mut steps = begin(shared, offset);
    steps.push(Step::CallIf(Memory(frame!(key, 0)), NotEqual, Argument(1)));
    let leave = Step::SubtractFrom(state!(innermost), Const(FRAME));
    if shared.measure == Measure::ExactTimes {
        let publish = [
            Step::Set(A, Memory(frame!(node, -1))),
            Step::Store(state!(top_node), Operand::Temp(A)),
            Step::Set(A, Memory(frame!(number, -1))),
            Step::Store(state!(top), Operand::Temp(A)),
        ];
        steps.push(Step::Set(A, Memory(frame!(node, -1))));
        let other = advance(shared, publish);
        steps.push(Step::SkipIf(Operand::Temp(A), Equal, Memory(state!(top_node)), other.into()));
        steps.push(leave);
    } else {
        steps.push(Step::Set(A, Memory(frame!(number, -1))));
        steps.push(Step::Together([Step::Store(state!(top), Operand::Temp(A)), leave].into()));
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::thread;
    use std::time::{Duration, Instant};

    use wasm_jit::{Caller, Engine, Linker, Module, Store, Trap};

    use super::super::local::{self, EVENTS};
    use super::super::{Contexts, Current};
    use super::*;

    const MEASURES: [Measure; 3] = [Measure::ExactTimes, Measure::SampledTimes, Measure::Paths];

    /// One test uses up the words.
    static WORDS: Mutex<()> = Mutex::new(());

    /// Observes all functions of a module.
    fn observed(module: &Module, measure: Measure) -> Contexts {
        let functions: BTreeSet<u32> = module.functions().map(|function| function.index()).collect();
        let contexts = Contexts::new(module, functions, Shared::new(measure, usize::MAX), BTreeMap::new());
        contexts.observe().unwrap();
        contexts
    }

    fn call(module: &Module, name: &str, argument: i32) -> Result<(), wasm_jit::Error> {
        let mut store = Store::new(module.engine(), ());
        let instance = Linker::new(module.engine()).instantiate(&mut store, module)?;
        instance.get_typed_func::<i32, ()>(&mut store, name)?.call(&mut store, argument)
    }

    /// The paths, with calls and recursive calls.
    fn paths(contexts: &Contexts, module: &Module) -> Vec<(String, u64, u64)> {
        let merged = contexts.merged();
        let (recursive, symbols) = (merged.recursive_calls(), module.symbols());
        let mut names: Vec<String> = vec![String::new(); merged.nodes.len()];
        let mut all = Vec::new();
        for (at, node) in merged.nodes.iter().enumerate().skip(2) {
            let caller = &names[node.parent as usize];
            names[at] = format!("{caller}/{}", symbols.function(node.function));
            if node.calls + recursive[at] > 0 {
                all.push((names[at].clone(), node.calls, recursive[at]));
            }
        }
        all.sort();
        all
    }

    #[track_caller]
    fn check(contexts: &Contexts, module: &Module, expected: &[(&str, u64, u64)]) {
        let expected: Vec<_> =
            expected.iter().map(|(path, calls, back)| ((*path).to_owned(), *calls, *back)).collect();
        assert_eq!(paths(contexts, module), expected);
    }

    fn module(text: &str) -> Module {
        Module::new(&Engine::default(), text).unwrap()
    }

    const CALLS: &str = "(module
        (func $leaf)
        (func $down (export \"down\") (param i32)
            (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1))))))
        (func (export \"run\") (param i32)
            (loop
                (call $leaf)
                (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
            (call $down (i32.const 1000))))";

    #[test]
    fn most_events_call_no_function() {
        let _words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
        for measure in MEASURES {
            let module = module(CALLS);
            let contexts = observed(&module, measure);
            EVENTS.set(0);
            call(&module, "run", 1000).unwrap();
            // The first call of each function, the second call of the recursive one, and the calls
            // for which there is memory for more frames.
            assert!((4..12).contains(&EVENTS.get()), "{measure:?}: {}", EVENTS.get());
            check(&contexts, &module, &[("/run", 1, 0), ("/run/down", 1, 1000), ("/run/leaf", 1000, 0)]);
            EVENTS.set(0);
            call(&module, "run", 1000).unwrap();
            assert_eq!(EVENTS.get(), 0, "{measure:?}");
            check(&contexts, &module, &[("/run", 2, 0), ("/run/down", 2, 2000), ("/run/leaf", 2000, 0)]);
        }
    }

    /// A node remembers one callee for each of its [`Way`]s. Other callees that share a way are
    /// counted, too.
    #[test]
    fn callees_of_one_caller_in_turn() {
        let functions: String = (0..2 * WAYS + 1).map(|at| format!("(func $f{at})")).collect();
        let calls: String = (0..2 * WAYS + 1).map(|at| format!("(call $f{at})")).collect();
        let text = format!(
            "(module {functions} (func (export \"run\") (param i32)
                (loop {calls} (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"
        );
        for measure in MEASURES {
            let module = module(&text);
            let contexts = observed(&module, measure);
            call(&module, "run", 10).unwrap();
            let mut expected = vec![("/run".to_owned(), 1, 0)];
            expected.extend((0..2 * WAYS + 1).map(|at| (format!("/run/f{at}"), 10, 0)));
            assert_eq!(paths(&contexts, &module), expected);
        }
    }

    /// A frame that has ended unobserved calls nothing, although its node knows the callee.
    #[test]
    fn frames_below_that_of_the_callee_have_ended() {
        let module = module(
            "(module (func $x (export \"x\") (param i32))
                (func $f (export \"f\") (param i32) (call $x (local.get 0))))",
        );
        for measure in MEASURES {
            let contexts = observed(&module, measure);
            call(&module, "f", 0).unwrap();
            call(&module, "x", 0).unwrap();
            local::with(contexts.shared.number, |local| local.enter(1, 16));
            call(&module, "x", 0).unwrap();
            check(&contexts, &module, &[("/f", 2, 0), ("/f/x", 1, 0), ("/x", 2, 0)]);
        }
    }

    /// Monitors of one thread have their own words, as long as there are enough, and give them
    /// back.
    #[test]
    fn any_number_of_monitors_at_a_time_and_in_turn() {
        let _words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
        let module = module(CALLS);
        let expected = [("/run", 1, 0), ("/run/down", 1, 1000), ("/run/leaf", 20, 0)];
        for _ in 0..2 {
            let all: Vec<Contexts> =
                (0..18).map(|at| observed(&module, MEASURES[at % MEASURES.len()])).collect();
            assert!(all.iter().any(|contexts| contexts.shared.word.is_none()));
            call(&module, "run", 20).unwrap();
            for contexts in &all {
                check(contexts, &module, &expected);
            }
        }
        thread::spawn(move || {
            for at in 0..40 {
                let contexts = observed(&module, MEASURES[at % MEASURES.len()]);
                call(&module, "run", 20).unwrap();
                check(&contexts, &module, &expected);
            }
        })
        .join()
        .unwrap();
    }

    /// One store runs on several threads in turn, and a host function runs another store in
    /// between.
    #[test]
    fn stores_change_their_threads_and_call_each_other() {
        let module = module(
            "(module (import \"host\" \"call\" (func $call))
                (func $leaf)
                (func (export \"inner\") (param i32) (call $leaf))
                (func (export \"run\") (param i32) (call $leaf) (call $call) (call $leaf)))",
        );
        for measure in MEASURES {
            let contexts = observed(&module, measure);
            let mut linker: Linker<bool> = Linker::new(module.engine());
            let of_host = module.clone();
            let call = move |mut caller: Caller<'_, bool>| -> Result<(), wasm_jit::Error> {
                if std::mem::replace(caller.data_mut(), true) {
                    return Ok(());
                }
                // In another store.
                let mut linker = Linker::new(of_host.engine());
                linker.func_wrap("host", "call", || {})?;
                let mut store = Store::new(of_host.engine(), ());
                let instance = linker.instantiate(&mut store, &of_host)?;
                instance.get_typed_func::<i32, ()>(&mut store, "inner")?.call(&mut store, 0)
            };
            linker.func_wrap("host", "call", call).unwrap();
            let mut store = Store::new(module.engine(), false);
            let instance = linker.instantiate(&mut store, &module).unwrap();
            let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
            for _ in 0..3 {
                *store.data_mut() = false;
                run.call(&mut store, 0).unwrap();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        for _ in 0..2 {
                            *store.data_mut() = false;
                            run.call(&mut store, 0).unwrap();
                        }
                    });
                });
            }
            let expected = [
                ("/run", 9, 0),
                ("/run/call", 9, 0),
                ("/run/call/inner", 9, 0),
                ("/run/call/inner/leaf", 9, 0),
                ("/run/leaf", 18, 0),
            ];
            check(&contexts, &module, &expected);
        }
    }

    /// An interrupt leaves the state of the thread complete, at whatever point it comes.
    #[test]
    fn programs_are_interrupted_anywhere() {
        const ROUNDS: u64 = 25;
        let text = "(module
            (func $leaf)
            (func $down (param i32)
                (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1))))))
            (func $other (call $leaf))
            (func (export \"run\") (param i32)
                (loop (call $down (i32.const 5)) (call $leaf) (call $other) (br 0))))";
        for measure in MEASURES {
            let module = module(text);
            let contexts = observed(&module, measure);
            let begun = Instant::now();
            for round in 0..ROUNDS {
                let mut store = Store::new(module.engine(), ());
                let interrupt = store.interrupt_handle();
                let instance = Linker::new(module.engine()).instantiate(&mut store, &module).unwrap();
                let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
                let _timeout = interrupt.interrupt_after(Duration::from_micros(400 + 11 * round));
                let error = run.call(&mut store, 0).unwrap_err();
                assert_eq!(error.trap(), Some(Trap::Interrupt));
                assert!(Current(contexts.shared.clone()).path().is_empty(), "all frames were left");
            }
            let all = paths(&contexts, &module);
            let names: Vec<&str> = all.iter().map(|(path, ..)| path.as_str()).collect();
            assert_eq!(names, ["/run", "/run/down", "/run/leaf", "/run/other", "/run/other/leaf"]);
            assert!(all[0].1 <= ROUNDS);
            // Of each interrupted program, only the last call of each function may be missing.
            let [down, leaf, other, below] = [1, 2, 3, 4].map(|at| all[at].1);
            assert!(down - leaf <= ROUNDS && leaf - other <= ROUNDS && other - below <= ROUNDS, "{all:?}");
            assert!(5 * down - all[1].2 <= 5 * ROUNDS, "{all:?}");
            let total = contexts.merged().times().total[0];
            assert!(u128::from(total) <= begun.elapsed().as_nanos() * 1001 / 1000);
        }
    }

    #[test]
    fn the_function_of_the_last_steps_is_published() {
        let text = "(module
            (func $leaf nop)
            (func $f (call $leaf) nop)
            (func (export \"run\") (param i32) (call $f) nop (call $leaf) nop))";
        for measure in MEASURES {
            let module = module(text);
            let contexts = observed(&module, measure);
            let (log, of_nop) = (Arc::new(Mutex::new(Vec::new())), contexts.shared.clone());
            let of_callback = log.clone();
            let probes = at_nops(&module, move || {
                of_callback.lock().unwrap().push(Current(of_nop.clone()).path());
            });
            let mut all = Vec::new();
            for _ in 0..2 {
                call(&module, "run", 0).unwrap();
                all.push(std::mem::take(&mut *log.lock().unwrap()));
            }
            let expected = [vec![0, 1, 2], vec![1, 2], vec![2], vec![0, 2], vec![2]];
            assert_eq!(all, [expected.clone(), expected], "{measure:?}");
            drop(probes);
        }
    }

    fn at_nops(module: &Module, fire: impl Fn() + Send + Sync + 'static) -> Vec<wasm_jit::probes::Probe> {
        use wasm_jit::probes::{Callback, Kind, Location, Place, ProbeSpec};
        let function = Callback::new(move |_| fire());
        let mut all = Vec::new();
        for info in module.functions() {
            let Some(body) = info.body() else { continue };
            for instruction in body.instructions() {
                if matches!(instruction.operator(), wasm_jit::wasmparser::Operator::Nop) {
                    let offset = (instruction.offset() - body.range().start) as u32;
                    let location = Location { function: info.index(), place: Place::Instruction { offset } };
                    let kind = Kind::Callback { function: function.clone(), values: [].into() };
                    let probe = module.probe(ProbeSpec { location, kind }).unwrap();
                    probe.activate().unwrap();
                    all.push(probe);
                }
            }
        }
        all
    }
}
