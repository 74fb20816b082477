//! Calls that a replay makes in another order than the recorded run, or not at all.

use std::io::Cursor;

use crate::support::{
    Replayed, Trace, events, replay, replay_in_wasmi, replay_separately, replay_separately_in_wasmi, trace_of,
};
use wasm_jit::{Engine, Linker, Module, Store, Val};
use wasm_jit_replay::{Error, Event, Recorder, Replay, Value, generate, separate};

/// `f(1)` calls `a`, then `b`; `f(0)` calls `b`, then `a`; `f(2)` calls nothing, `f(3)` traps, and
/// `f(4)` calls `a` twice.
const PROGRAM: &str = r#"(module
    (import "h" "a" (func $a (param i32)))
    (import "h" "b" (func $b (param i32)))
    (func (export "f") (param i32) (result i32)
        block $4 block $3 block $2 block $1 block $0
            (br_table $0 $1 $2 $3 $4 (local.get 0))
        end (call $b (i32.const 8)) (call $a (i32.const 7)) (return (i32.const 5))
        end (call $a (i32.const 7)) (call $b (i32.const 8)) (return (i32.const 5))
        end (return (i32.const 5))
        end unreachable
        end (call $a (i32.const 7)) (call $a (i32.const 7)) (i32.const 5)))"#;

/// Records `f(which)`, then `f(1)`.
fn recorded(module: &Module, which: i32) -> Vec<Event> {
    let mut linker = Linker::new(module.engine());
    linker.func_wrap("h", "a", |value: i32| assert_eq!(value, 7)).unwrap();
    linker.func_wrap("h", "b", |value: i32| assert_eq!(value, 8)).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(module, trace.clone()).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let f = instance.get_func(&mut store, "f").unwrap();
    for which in [which, 1] {
        let result = f.call(&mut store, &[Val::I32(which)], &mut [Val::I32(0)]);
        assert_eq!(result.is_ok(), which != 3, "{which}");
        if result.is_err() {
            break;
        }
    }
    events(&trace.bytes())
}

/// The first event that differs is named by the engine and by all generated modules.
#[test]
fn calls_in_another_order_are_named() {
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    for which in 0..5 {
        let all = recorded(&module, which);
        for other in 0..5 {
            let mut changed = all.clone();
            let Event::Enter { arguments, .. } = &mut changed[1] else { panic!("{}", all[1]) };
            arguments[0] = Value::I32(other);
            let trace = trace_of(&changed);
            let again = Replay::new(&module, Cursor::new(trace.clone())).unwrap().run();
            let checked = generate(module.bytes(), &trace[..], true).unwrap();
            let parts = separate(module.bytes(), &trace[..], true).unwrap();
            let found = [
                replay(&checked),
                replay_in_wasmi(&checked),
                replay_separately(&parts),
                replay_separately_in_wasmi(&parts),
            ];
            let expected = match again {
                Ok(_) if which == other => Replayed::Complete { returned: which != 3 },
                Err(Error::Mismatch { number, .. }) => Replayed::Differs(number as i32),
                // The program traps, at the event after the first one.
                Err(Error::Failed { number, .. }) if other == 3 => {
                    assert_eq!(number, 2);
                    Replayed::Stopped(0)
                }
                again => panic!("{which}, {other}: {again:?}"),
            };
            assert_eq!(found, [expected; 4], "{which}, {other}");
        }
    }
}
