//! Fuel: what instructions cost, and where a program without fuel traps. For random programs, and
//! beside probes: `tests/probes/fuel.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasm_jit::{Caller, Config, Engine, Error, Func, Instance, Module, Store, Trap};

fn engine() -> Engine {
    Engine::new(Config::new().consume_fuel(true)).unwrap()
}

fn instance(engine: &Engine, text: &str) -> (Store<()>, Instance) {
    let module = Module::new(engine, text).unwrap();
    let mut store = Store::new(engine, ());
    store.set_fuel(1 << 40).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (store, instance)
}

/// Calls the export `run` with `argument`: what it returns, and what it consumes.
fn run(store: &mut Store<()>, instance: Instance, argument: i32) -> (Result<i32, Error>, u64) {
    let before = store.get_fuel().unwrap();
    let function = instance.get_typed_func::<i32, i32>(&mut *store, "run").unwrap();
    let result = function.call(&mut *store, argument);
    (result, before - store.get_fuel().unwrap())
}

/// What a body with an `i32` as parameter and result consumes for an argument.
#[track_caller]
fn costs(body: &str, argument: i32, expected: u64) {
    let text = format!(
        "(module (memory 1) (global $g (mut i32) (i32.const 0)) (type $ii (func (param i32) (result i32)))
           (table 4 funcref) (elem (i32.const 0) $callee)
           (func $callee (type $ii) (i32.add (local.get 0) (i32.const 1)))
           (func (export \"run\") (param $x i32) (result i32) (local $y i32) {body}))"
    );
    let (mut store, instance) = instance(&engine(), &text);
    let (result, consumed) = run(&mut store, instance, argument);
    let result = result.unwrap_or_else(|error| panic!("{body}: {error}"));
    assert_eq!(consumed, expected, "{body}");
    // That much suffices, and less does not.
    store.set_fuel(expected).unwrap();
    assert_eq!(run(&mut store, instance, argument).0.unwrap(), result, "{body}");
    assert_eq!(store.get_fuel().unwrap(), 0);
    for less in 0..expected {
        store.set_fuel(less).unwrap();
        let error = run(&mut store, instance, argument).0.expect_err(body);
        assert_eq!(error.trap(), Some(Trap::OutOfFuel), "{body}, {less} of {expected}: {error}");
        let Error::Trap { backtrace, .. } = &error else { panic!("{error}") };
        // Also if an entry cannot be paid for.
        assert!(backtrace.frames()[0].module_offset() > Some(0), "{body}, {less} of {expected}: {error}");
        assert_eq!(store.get_fuel().unwrap(), 0);
    }
}

#[test]
fn an_entry_and_each_instruction_cost_one() {
    costs("(local.get $x)", 5, 2);
    costs("(i32.add (local.get $x) (i32.const 1))", 5, 4);
    costs("(i32.store (i32.const 8) (local.get $x)) (i32.load (i32.const 8))", 5, 6);
    costs("(call $callee (local.get $x))", 5, 1 + 2 + 4);
    costs("(call_indirect (type $ii) (local.get $x) (i32.const 0))", 5, 1 + 3 + 4);
    costs("(return_call $callee (local.get $x))", 5, 1 + 2 + 4);
    costs("(memory.fill (i32.const 0) (i32.const 7) (i32.const 60000)) (i32.const 0)", 5, 6);
}

#[test]
fn structure_is_free() {
    costs("(nop) (block (block (nop))) (drop (i32.const 1)) (return (local.get $x))", 5, 3);
    costs("(block $b (br $b)) (loop) (local.get $x)", 5, 3);
    costs("(block (result i32) (block (block)) (local.get $x))", 5, 2);
}

#[test]
fn only_what_is_executed_is_paid_for() {
    let either = "(if (result i32) (local.get $x) (then (i32.const 1)) (else (nop) (i32.clz (i32.const 2))))";
    costs(either, 1, 1 + 2 + 1);
    costs(either, 0, 1 + 2 + 2);
    // One iteration: get, const, sub, tee, br_if.
    let count = "(loop $l (br_if $l (local.tee $x (i32.sub (local.get $x) (i32.const 1))))) (local.get $x)";
    costs(count, 1, 1 + 5 + 1);
    costs(count, 7, 1 + 7 * 5 + 1);
    let switch = "(block $a (block $b (block $c (br_table $a $b $c (local.get $x)))
                    (return (i32.popcnt (i32.const 4)))) (return (i32.const 3))) (i32.const 9)";
    costs(switch, 0, 1 + 2 + 1);
    costs(switch, 1, 1 + 2 + 1);
    costs(switch, 2, 1 + 2 + 2);
}

/// A comparison whose result is used only after a branch on something else.
#[test]
fn conditions_survive_the_subtraction() {
    let body = "(i32.lt_u (local.get $x) (i32.const 10)) (block $b (br_if $b (i32.eqz (local.get $y))) (nop))
                (i32.const 3) (i32.add)";
    costs(body, 5, 1 + 3 + 3 + 2);
    costs(body, 15, 1 + 3 + 3 + 2);
    let body = "(i32.lt_u (local.get $x) (i32.const 10)) (call $callee (i32.const 1)) (drop) (if (result i32)
                (then (i32.const 1)) (else (i32.const 2)))";
    costs(body, 5, 1 + 3 + 2 + 4 + 1 + 1);
}

#[test]
fn recursion_and_empty_loops_end() {
    let text = r#"(module (func $deep (call $deep) (call $deep)) (func (export "spin") (loop $l (br $l)))
                     (func $f (export "recurse") (param i32) (if (local.get 0) (then (return_call $f (local.get 0))))))"#;
    let (mut store, instance) = instance(&engine(), text);
    store.set_fuel(1_000_000).unwrap();
    let spin = instance.get_typed_func::<(), ()>(&mut store, "spin").unwrap();
    assert_eq!(spin.call(&mut store, ()).unwrap_err().trap(), Some(Trap::OutOfFuel));
    store.set_fuel(1_000_000).unwrap();
    let recurse = instance.get_typed_func::<i32, ()>(&mut store, "recurse").unwrap();
    assert_eq!(recurse.call(&mut store, 1).unwrap_err().trap(), Some(Trap::OutOfFuel));
    // The store can still be used.
    store.set_fuel(10).unwrap();
    recurse.call(&mut store, 0).unwrap();
    assert_eq!(store.get_fuel().unwrap(), 10 - 3);
}

/// The whole sequence up to the next branch is paid for, although a trap ends it.
#[test]
fn a_trap_does_not_give_fuel_back() {
    let text = r#"(module (func (export "run") (param i32) (result i32)
                     (i32.div_u (i32.const 1) (local.get 0)) (i32.add (i32.const 1))))"#;
    let (mut store, instance) = instance(&engine(), text);
    for divisor in [1, 0] {
        let (result, consumed) = run(&mut store, instance, divisor);
        assert_eq!((result.is_ok(), consumed), (divisor == 1, 1 + 5));
    }
}

#[test]
fn a_host_function_reads_and_charges() {
    let engine = engine();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "f" (func $f))
             (func (export "run") (param i32) (result i32) (call $f) (i32.const 1) (drop) (local.get 0)))"#,
    );
    let module = module.unwrap();
    let mut store = Store::new(&engine, ());
    let seen = Arc::new(AtomicU64::new(0));
    let note = Arc::clone(&seen);
    let f = Func::wrap(&mut store, move |mut caller: Caller<'_, ()>| {
        let left = caller.get_fuel().unwrap();
        note.store(left, Ordering::Relaxed);
        caller.set_fuel(left - 90).unwrap();
    });
    let instance = Instance::new(&mut store, &module, &[f.unwrap().into()]).unwrap();
    store.set_fuel(100).unwrap();
    let (result, consumed) = run(&mut store, instance, 3);
    assert_eq!((result.unwrap(), consumed), (3, 90 + 1 + 1 + 2));
    assert_eq!(seen.load(Ordering::Relaxed), 98, "the entry and the call are paid for");
}

#[test]
fn more_than_a_signed_number_can_be_given() {
    let text = r#"(module (func (export "run") (param i32) (result i32) (local.get 0)))"#;
    let (mut store, instance) = instance(&engine(), text);
    store.set_fuel(u64::MAX).unwrap();
    let (result, consumed) = run(&mut store, instance, 3);
    assert_eq!((result.unwrap(), consumed), (3, 2));
    assert_eq!(store.get_fuel().unwrap(), u64::MAX - 2);
}

#[test]
fn other_engines_have_none() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    assert!(matches!(store.set_fuel(1), Err(Error::NoFuel)));
    assert!(matches!(store.get_fuel(), Err(Error::NoFuel)));
}
