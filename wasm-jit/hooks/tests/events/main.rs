//! Every kind of hook on random programs, and on some written for it: the events are those that a
//! rewritten program logs by itself.

#[path = "../../../tests/frame_maps/programs.rs"]
mod programs;
#[allow(dead_code, reason = "other tests use more of it")]
mod rewrite;

use std::sync::{Arc, Mutex};

use rewrite::{
    AFTER, BLOCK, BRANCH, CALL, CAUGHT, ENTRY, Event, EventKind, LOAD, RETURN, STORE, TAIL_CALL, UNWOUND,
};
use wasm_jit::probes::ProbeError;
use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_hooks::{
    AccessKind, Callee, FunctionEventKind, Hook, Site, after, blocks, branches, calls, functions, memory,
};

type Log = Arc<Mutex<Vec<Event>>>;

const KINDS: [EventKind; 6] = [
    EventKind::Functions,
    EventKind::Memory,
    EventKind::Branches,
    EventKind::Calls,
    EventKind::Blocks,
    EventKind::After,
];

/// Results of a run: of `main`, and the sum of the memory.
type Outcome = (Result<i64, String>, u64);

/// Runs a module whose first import logs.
fn run(module: &Module, log: &Log) -> Outcome {
    let mut linker = Linker::new(module.engine());
    let log = log.clone();
    let import = move |packed: i32, a: i64, b: i64| log.lock().unwrap().push(rewrite::unpacked(packed, a, b));
    linker.func_wrap("log", "log", import).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, module).unwrap();
    let main = instance.get_typed_func::<(), i64>(&mut store, "main").unwrap();
    let result = main.call(&mut store, ()).map_err(|error| error.reason());
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let sum = memory.data(&store).iter().fold(0_u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
    (result, sum)
}

/// A hook that logs all events of a kind, as the rewritten module does.
fn hook(module: &Module, what: EventKind, log: &Log) -> Result<Hook, ProbeError> {
    let log = log.clone();
    let push = move |event: Event| log.lock().unwrap().push(event);
    match what {
        EventKind::Functions => functions(
            module,
            |_| true,
            move |event| {
                let kind = match event.kind {
                    FunctionEventKind::Entry => ENTRY,
                    FunctionEventKind::Return => RETURN,
                    FunctionEventKind::TailCall => TAIL_CALL,
                    FunctionEventKind::Unwound => UNWOUND,
                    other => panic!("{other:?}"),
                };
                push((kind, event.function, 0, 0, 0));
            },
        ),
        EventKind::Memory => memory(
            module,
            |_| true,
            move |access| {
                let kind = match access.kind {
                    AccessKind::Load => LOAD,
                    AccessKind::Store => STORE,
                    other => panic!("{other:?}"),
                };
                push((kind, access.function, access.offset, access.address, access.value.unwrap()));
            },
        ),
        EventKind::Branches => branches(
            module,
            |_| true,
            move |branch| {
                push((BRANCH, branch.function, branch.offset, branch.choice.into(), u64::from(branch.taken)));
            },
        ),
        EventKind::Calls => calls(
            module,
            |_| true,
            move |call| {
                let callee = match call.callee {
                    Callee::Function(index) | Callee::Import(index) => index.into(),
                    Callee::None => u64::MAX,
                    other => panic!("{other:?}"),
                };
                push((CALL, call.function, call.offset, callee, 0));
            },
        ),
        EventKind::Blocks => {
            blocks(module, |_| true, move |block| push((BLOCK, block.function, block.offset, 0, 0)))
        }
        EventKind::After => {
            after(module, |_| true, move |after| push((AFTER, after.function, after.offset, 0, 0)))
        }
        EventKind::Each => panic!("for counters, not for hooks"),
    }
}

/// The events that the hook has to report, from those of the rewritten module.
fn expected(module: &Module, what: EventKind, log: Vec<Event>, table: &[u64]) -> Vec<Event> {
    let operator = |function: u32, offset: u32| {
        let body = module.function(function).unwrap().body().unwrap();
        let at = body.range().start + offset as usize;
        body.instructions().find(|instruction| instruction.offset() == at).unwrap().operator().clone()
    };
    if what == EventKind::Functions {
        return unwound(log);
    }
    let log = log.into_iter().filter(|event| event.0 != CAUGHT);
    match what {
        EventKind::Branches => log
            .map(|(kind, function, offset, value, _)| match operator(function, offset) {
                wasm_jit::wasmparser::Operator::BrTable { targets } => {
                    let count = u64::from(targets.len());
                    (kind, function, offset, value.min(count), u64::from(value < count))
                }
                _ => (kind, function, offset, u64::from(value != 0), u64::from(value != 0)),
            })
            .collect(),
        EventKind::Calls => log
            .map(|(kind, function, offset, value, is_indirect)| match is_indirect {
                0 => (kind, function, offset, value, 0),
                _ => (kind, function, offset, table.get(value as usize).copied().unwrap_or(u64::MAX), 0),
            })
            .collect(),
        _ => log.collect(),
    }
}

/// The entries and exits of a rewritten module, with the frames that were not left: innermost
/// first, before the next event of a frame further out.
fn unwound(log: Vec<Event>) -> Vec<Event> {
    let (mut open, mut events): (Vec<u32>, Vec<Event>) = (Vec::new(), Vec::new());
    for event in log {
        match event.0 {
            ENTRY => open.push(event.1),
            _ => {
                while let Some(function) = open.pop_if(|function| *function != event.1) {
                    events.push((UNWOUND, function, 0, 0, 0));
                }
                if event.0 == CAUGHT {
                    continue;
                }
                open.pop();
            }
        }
        events.push(event);
    }
    events.extend(open.into_iter().rev().map(|function| (UNWOUND, function, 0, 0, 0)));
    events
}

/// Compares all kinds of hooks; returns how many events there were, and whether the program failed.
fn check(text: &str, table: &[u64]) -> (usize, bool) {
    let engine = Engine::default();
    let bytes = wat::parse_str(text).unwrap();
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let log = Log::default();
    let all = || std::mem::take(&mut *log.lock().unwrap());
    let take = || all().into_iter().filter(|event| event.0 != CAUGHT).collect::<Vec<Event>>();
    let outcome = run(&module, &log);
    assert_eq!(take(), []);
    let mut total = 0;
    for what in KINDS {
        let rewritten = Module::from_binary(&engine, &rewrite::rewrite(&bytes, what)).unwrap();
        assert_eq!(run(&rewritten, &log), outcome, "{what:?} {text}");
        let expected = expected(&module, what, all(), table);
        let hook = hook(&module, what, &log).unwrap();
        for _ in 0..2 {
            assert_eq!(run(&module, &log), outcome);
            compare(&take(), &expected, what, text);
        }
        hook.deactivate().unwrap();
        assert_eq!(run(&module, &log), outcome);
        assert_eq!(take(), []);
        hook.activate().unwrap();
        assert_eq!(run(&module, &log), outcome);
        compare(&take(), &expected, what, text);
        drop(hook);
        assert_eq!(run(&module, &log), outcome);
        assert_eq!(take(), []);
        total += expected.len();
    }
    (total, outcome.0.is_err())
}

fn compare(events: &[Event], expected: &[Event], what: EventKind, text: &str) {
    let same = events.iter().zip(expected).take_while(|(event, expected)| event == expected).count();
    let rest = |events: &[Event]| events[same..events.len().min(same + 3)].to_vec();
    assert!(
        events == expected,
        "{what:?} {text}\nafter {same} events: {:?}, expected {:?}",
        rest(events),
        rest(expected)
    );
}

#[test]
fn events_of_random_programs() {
    let (mut events, mut failed) = (0, 0);
    for seed in 0..60 {
        let text = programs::program(seed).replacen("(module ", &format!("(module {}", rewrite::IMPORT), 1);
        let (count, has_failed) = check(&text, &[]);
        events += count;
        failed += u32::from(has_failed);
    }
    println!("{events} events, {failed} programs trapped");
    assert!(events > 100_000, "{events}");
}

/// A branch and the completion of its instruction agree on where control continues.
#[test]
fn branches_continue_where_they_say() {
    let engine = Engine::default();
    let mut count = 0;
    for seed in 0..20 {
        let text = programs::program(seed).replacen("(module ", &format!("(module {}", rewrite::IMPORT), 1);
        let module = Module::new(&engine, text).unwrap();
        let (log, targets) = (Log::default(), Arc::new(Mutex::new(Vec::new())));
        let is_branch = |site: &Site<'_>| {
            use wasm_jit::wasmparser::Operator as O;
            matches!(site.operator, O::BrIf { .. } | O::If { .. } | O::BrTable { .. } | O::Select)
        };
        let completed = Arc::new(Mutex::new(0));
        let (of_branches, of_after, counter) = (targets.clone(), targets.clone(), completed.clone());
        // An instruction completes before the next one decides.
        let completes = after(&module, is_branch, move |after| {
            let last = of_after.lock().unwrap().pop();
            assert_eq!(last, Some((after.function, after.offset, after.next)));
            *counter.lock().unwrap() += 1;
        });
        let decides = branches(&module, is_branch, move |branch| {
            of_branches.lock().unwrap().push((branch.function, branch.offset, branch.target));
        });
        let _hooks = (decides.unwrap(), completes.unwrap());
        let _ = run(&module, &log);
        assert_eq!(*targets.lock().unwrap(), []);
        count += *completed.lock().unwrap();
    }
    assert!(count > 1000, "{count}");
}

/// Ways to call and to leave functions that random programs do not have.
const CALLS: &str = include_str!("calls.wat");

/// The last statement of [`CALLS`] is one of these.
#[test]
fn events_of_tail_calls_exceptions_and_traps() {
    let ends = [
        ("", false),
        ("(drop (call $deep (i32.const 1)))", true),
        ("(drop (call_indirect (type $unary) (i32.const 1) (i32.const 3)))", true),
        ("(drop (call_indirect (type $unary) (i32.const 1) (i32.const 77)))", true),
        ("(drop (call $wide (i32.const -1)))", true),
        ("(drop (i32.div_u (i32.const 1) (i32.wrap_i64 (call $down (i32.const 2)))))", false),
        (
            "(drop (i32.div_u (i32.const 1) (i32.sub (i32.const 5) (i32.wrap_i64 (call $down (i32.const 2))))))",
            true,
        ),
        ("(drop (call_indirect (type $unary) (i32.const 1) (i32.const 2)))", true),
        ("unreachable", true),
    ];
    for (end, fails) in ends {
        let text = format!("(module {} {})", rewrite::IMPORT, CALLS.replace("LAST", end));
        // The functions of the table; the import is function 0.
        let (_, failed) = check(&text, &[1, 2, 3]);
        assert_eq!(failed, fails, "{end}");
    }
}
