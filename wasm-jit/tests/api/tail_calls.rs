//! Tail calls between instances: they leave nothing on the stack, and what they return to finds its
//! own instance.

use std::fmt::Write as _;
use std::time::Duration;

use wasm_jit::{
    Caller, Config, Engine, Error, ExnRef, Extern, FuncType, Instance, Linker, Module, Store, Tag, TagType,
    Trap, TypedFunc, WasmBacktrace,
};

/// How a module makes its tail call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Of an imported function.
    Direct,
    Table,
    Reference,
}

impl Form {
    /// The instruction, for the function of type `ty` that is element `at` of the shared table, and
    /// imported as `$next`.
    fn call(self, ty: &str, at: u32, arguments: &str) -> String {
        match self {
            Self::Direct => format!("(return_call $next {arguments})"),
            Self::Table => format!("(return_call_indirect (type {ty}) {arguments} (i32.const {at}))"),
            Self::Reference => format!(
                "(return_call_ref {ty} {arguments} (ref.cast (ref {ty}) (table.get (i32.const {at}))))"
            ),
        }
    }
}

/// What the last function of a chain does.
const RETURNS: &str = "(return (local.get 1) (i64.const -1) (i64.const 2) (local.get 0) (f64.const 0.5) \
                       (f64.const 1.5) (f64.const 2.5))";

/// The beginning of a module: types and imports, and what each instance has of its own, a memory
/// and a global with its number. The results do not fit into registers.
fn head(number: u32, import: &str) -> String {
    const RESULTS: &str = "(result i64 i64 i64 i64 f64 f64 f64)";
    format!(
        "(type $few (func (param i64 i64) {RESULTS}))
        (type $many (func (param i64 i64 {many}) {RESULTS}))
        (type $mixed (func (param i64 i64 {floats} v128 i64 i64 i64 i64 i64) {RESULTS}))
        (import \"shared\" \"table\" (table 3 funcref))
        (import \"shared\" \"e\" (tag $e (param i64)))
        {import}
        (memory (export \"memory\") 1)
        (global $number (mut i32) (i32.const {number}))
        (func $count
            (if (i32.ne (global.get $number) (i32.const {number})) (then unreachable))
            (i64.store (i32.const {at}) (i64.add (i64.load (i32.const {at})) (i64.const 1))))",
        many = "i64 ".repeat(20),
        floats = "f64 ".repeat(9),
        at = 8 * number,
    )
}

/// Three instances whose functions call each other in turns, each with other arguments. The first
/// parameter counts down; the second is the sum of its values. The one that gets 0 does what is in
/// `end`. The first one's function is called by functions of its instance.
struct Program {
    store: Store<()>,
    instances: [Instance; 3],
}

impl Program {
    fn new(config: &Config, form: Form, end: &str) -> Self {
        let engine = Engine::new(config).unwrap();
        let mut store = Store::new(&engine, ());
        let mut linker = Linker::new(&engine);
        let shared = "(module (table (export \"table\") 3 funcref) (tag (export \"e\") (param i64)))";
        let shared = linker.instantiate(&mut store, &Module::new(&engine, shared).unwrap()).unwrap();
        linker.instance(&store, "shared", shared).unwrap();
        let ends = format!("(if (i64.eqz (local.get 0)) (then {end} unreachable))");
        let next = "(i64.sub (local.get 0) (i64.const 1)) (i64.add (local.get 1) (local.get 0))";
        // Backwards: the last one calls the first, which cannot be imported yet.
        let back = if form == Form::Direct { Form::Table } else { form };
        let sum = (2..22).fold("(i64.const 0)".to_owned(), |sum, index| {
            format!("(i64.add {sum} (i64.mul (local.get {index}) (i64.const {index})))")
        });
        let third = format!(
            "(module $third {head}
            (elem (i32.const 2) $mixed)
            (func $mixed (export \"f\") (type $mixed)
                (call $count)
                {ends}
                (if (f64.ne (f64.add (local.get 2) (f64.add (local.get 9) (local.get 10))) (f64.const 16))
                    (then unreachable))
                (if (i64.ne (i64x2.extract_lane 1 (local.get 11)) (i64.const 78)) (then unreachable))
                (if (i64.ne (i64.sub (local.get 16) (local.get 12)) (i64.const 400)) (then unreachable))
                {call}))",
            head = head(3, ""),
            call = back.call("$few", 0, next),
        );
        let mixed = "(f64.const 1) (f64.const 2) (f64.const 3) (f64.const 4) (f64.const 4) (f64.const 5) (f64.const 6)
            (f64.const 7) (f64.const 8) (v128.const i64x2 77 78) (i64.const 100) (i64.const 200) (i64.const 300)
            (i64.const 400) (i64.const 500)";
        let second = format!(
            "(module $second {head}
            (elem (i32.const 1) $many)
            (func $many (export \"f\") (type $many)
                (call $count)
                {ends}
                (if (i64.ne {sum} (i64.mul (i64.const 230) (local.get 0))) (then unreachable))
                {call}))",
            head = head(2, "(import \"third\" \"f\" (func $next (type $mixed)))"),
            call = form.call("$mixed", 2, &format!("{next} {mixed}")),
        );
        // The sum of the factors 2 to 21 is 230.
        let many = "(local.get $n) ".repeat(20);
        let first = format!(
            "(module $first {head}
            (elem (i32.const 0) $few)
            (func $few (export \"f\") (type $few) (local $n i64)
                (call $count)
                {ends}
                (local.set $n (i64.sub (local.get 0) (i64.const 1)))
                {call})
            (func $same (param $a i64) (param $b i64) (result i64) (local $i i64)
                (i64.store (i32.const 800) (i64.const 8000))
                (global.set $number (i32.const 1))
                (local.set $i (i64.const 5))
                (call $few (local.get 0) (i64.const 0))
                (if (f64.ne (f64.add (f64.add)) (f64.const 4.5)) (then unreachable))
                (if (i64.ne (i64.add (i64.add)) (i64.const 1)) (then unreachable))
                (i64.add (i64.add (local.get $b) (local.get $i)))
                (i64.add (i64.load (i32.const 800)))
                (i64.add (i64.extend_i32_u (global.get $number))))
            (func $run (export \"run\") (param i64) (result i64) (call $same (local.get 0) (i64.const 70000)))
            (func (export \"run indirect\") (param i64) (result i64)
                (call_indirect (type $few) (local.get 0) (i64.const 0) (i32.const 0))
                (drop) (drop) (drop) (drop) (drop) (drop)
                (i64.add (i64.load (i32.const 8))))
            (func $catch (export \"catch\") (param i64) (result i64) (local $x i64)
                (local.set $x (i64.add (local.get 0) (i64.const 3)))
                (i64.store (i32.const 800) (i64.const 8000))
                (block $caught (result i64)
                    (try_table (catch $e $caught)
                        (call $few (local.get 0) (i64.const 0))
                        unreachable)
                    (i64.const 0))
                (i64.add (i64.add (i64.load (i32.const 800)) (local.get $x)))
                (i64.add (i64.extend_i32_u (global.get $number)))))",
            head = head(1, "(import \"second\" \"f\" (func $next (type $many)))"),
            call = form.call("$many", 1, &format!("{next} {many}")),
        );
        let mut instances = Vec::new();
        for (name, text) in [("third", third), ("second", second), ("first", first)] {
            let module = Module::new(&engine, &text).unwrap();
            let instance = linker.instantiate(&mut store, &module).unwrap();
            linker.instance(&store, name, instance).unwrap();
            instances.push(instance);
        }
        let [third, second, first] = instances[..] else { panic!("three") };
        Self { store, instances: [first, second, third] }
    }

    fn call(&mut self, name: &str, argument: i64) -> Result<i64, Error> {
        let run: TypedFunc<i64, i64> = self.instances[0].get_typed_func(&mut self.store, name).unwrap();
        run.call(&mut self.store, argument)
    }

    /// How often the function of each instance was called.
    fn counts(&mut self) -> [u64; 3] {
        [0, 1, 2].map(|index| {
            let memory = self.instances[index].get_memory(&mut self.store, "memory").unwrap();
            let mut bytes = [0; 8];
            memory.read(&self.store, 8 * (index + 1), &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        })
    }
}

/// The sum of the numbers from 1 to `n`.
fn sum(n: i64) -> i64 {
    n * (n + 1) / 2
}

/// More than the stack has room for.
const LONG: i64 = 10_000_000;

#[test]
fn chains_between_three_instances_have_no_limit() {
    for form in [Form::Direct, Form::Table, Form::Reference] {
        let mut program = Program::new(&Config::new(), form, RETURNS);
        for n in [0, 1, 2, 3, 7, LONG] {
            let before = program.counts();
            // The caller finds its local, its memory and its global.
            assert_eq!(program.call("run", n).unwrap(), sum(n) + 70_000 + 5 + 8000 + 1, "{form:?} {n}");
            let after = program.counts();
            let calls = [0, 1, 2].map(|index| after[index] - before[index]);
            assert_eq!(calls, [3, 2, 1].map(|phase| (n as u64 + phase) / 3), "{form:?} {n}");
            let of_first = program.counts()[0] + (n as u64 + 3) / 3;
            assert_eq!(program.call("run indirect", n).unwrap(), sum(n) + of_first as i64, "{form:?} {n}");
        }
    }
}

#[test]
fn chains_of_functions_that_are_compiled_when_they_are_called() {
    for form in [Form::Direct, Form::Table, Form::Reference] {
        let mut program = Program::new(Config::new().lazy_compilation(true), form, RETURNS);
        for n in [0, 1, 2, 100_000] {
            assert_eq!(program.call("run", n).unwrap(), sum(n) + 70_000 + 5 + 8000 + 1, "{form:?} {n}");
        }
    }
}

#[test]
fn exceptions_after_a_chain_go_to_the_handler_of_its_caller() {
    for form in [Form::Direct, Form::Table, Form::Reference] {
        let mut program = Program::new(&Config::new(), form, "(throw $e (local.get 1))");
        for n in [0, 1, 2, 3, LONG] {
            assert_eq!(program.call("catch", n).unwrap(), sum(n) + 8000 + n + 3 + 1, "{form:?} {n}");
            assert!(matches!(program.call("run", n), Err(Error::Exception { .. })), "{form:?} {n}");
        }
    }
}

fn names(backtrace: &WasmBacktrace) -> Vec<(&str, &str)> {
    assert_eq!(backtrace.omitted(), 0);
    let frames = backtrace.frames().iter();
    frames.map(|frame| (frame.module_name().unwrap(), frame.func_name().unwrap())).collect()
}

#[test]
fn a_trap_after_a_chain_shows_its_last_function_and_its_caller() {
    for form in [Form::Direct, Form::Table, Form::Reference] {
        let mut program = Program::new(&Config::new(), form, "(unreachable)");
        for n in [0, 1, 2, LONG] {
            let error = program.call("catch", n).unwrap_err();
            assert_eq!(error.trap(), Some(Trap::UnreachableCodeReached), "{form:?} {n}");
            let last = [("first", "few"), ("second", "many"), ("third", "mixed")][n as usize % 3];
            let backtrace = error.backtrace().unwrap();
            assert_eq!(names(backtrace), [last, ("first", "catch")], "{form:?} {n}");
        }
    }
}

#[test]
fn an_endless_chain_can_be_interrupted() {
    let mut program = Program::new(&Config::new(), Form::Direct, "");
    let handle = program.store.interrupt_handle();
    let (mut time, mut interrupted) = (Duration::from_millis(1), 0);
    while interrupted < 20 {
        let _timeout = handle.interrupt_after(time).unwrap();
        let error = program.call("run", i64::MAX).unwrap_err();
        assert_eq!(error.trap(), Some(Trap::Interrupt));
        if error.backtrace().unwrap().is_empty() {
            // Before it has begun.
            time *= 2;
            continue;
        }
        interrupted += 1;
        assert_eq!(names(error.backtrace().unwrap()).last(), Some(&("first", "run")));
    }
}

/// Every call that is not a tail call has a return frame of its own, also in deep recursion.
#[test]
fn recursion_through_tail_calls() {
    let engine = Engine::new(Config::new().max_wasm_stack(4 << 20)).unwrap();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let second = "(module
        (type $t (func (param i64) (result i64)))
        (table (export \"table\") 1 funcref)
        (global $calls (mut i64) (i64.const 0))
        (func (export \"hop\") (type $t)
            (global.set $calls (i64.add (global.get $calls) (i64.const 1)))
            (return_call_indirect (type $t) (local.get 0) (i32.const 0)))
        (func (export \"calls\") (result i64) (global.get $calls)))";
    let first = "(module
        (type $t (func (param i64) (result i64)))
        (import \"second\" \"table\" (table 1 funcref))
        (import \"second\" \"hop\" (func $hop (type $t)))
        (elem (i32.const 0) $deep)
        (memory 1)
        (global $one (mut i64) (i64.const 1))
        (func $tail (type $t) (return_call $hop (local.get 0)))
        (func $deep (export \"run\") (type $t) (local $twice i64)
            (if (i64.eqz (local.get 0)) (then (return (i64.const 0))))
            (local.set $twice (i64.mul (local.get 0) (i64.const 2)))
            (i64.store (i32.const 8) (i64.const 1))
            (i64.add (call $tail (i64.sub (local.get 0) (i64.const 1)))
                (i64.sub (i64.sub (local.get $twice) (local.get 0))
                    (i64.sub (i64.load (i32.const 8)) (global.get $one))))))";
    let mut instances = Vec::new();
    for (name, text) in [("second", second), ("first", first)] {
        let module = Module::new(&engine, text).unwrap();
        let instance = linker.instantiate(&mut store, &module).unwrap();
        linker.instance(&store, name, instance).unwrap();
        instances.push(instance);
    }
    let run: TypedFunc<i64, i64> = instances[1].get_typed_func(&mut store, "run").unwrap();
    for n in [1, 2, 3, 10_000] {
        assert_eq!(run.call(&mut store, n).unwrap(), sum(n));
    }
    let calls: TypedFunc<(), i64> = instances[0].get_typed_func(&mut store, "calls").unwrap();
    assert_eq!(calls.call(&mut store, ()).unwrap(), 1 + 2 + 3 + 10_000);
    assert_eq!(run.call(&mut store, i64::MAX).unwrap_err().trap(), Some(Trap::StackOverflow));
}

/// Numbers of parameters, all on the stack but for the first six: none, odd and even numbers of
/// quadwords, more than a frame has.
const PARAMETERS: [usize; 7] = [0, 6, 7, 8, 9, 11, 60];

/// A function with any number of arguments on the stack makes a tail call of one with any other
/// number; its caller has arguments of its own, and locals in all kinds of registers.
#[test]
fn every_number_of_arguments_on_the_stack() {
    let params = |count: usize| format!("(param {})", "i64 ".repeat(count));
    let (mut other, mut own, mut runs) = (String::new(), String::new(), String::new());
    for to in PARAMETERS {
        let sum = (0..to).fold("(i64.const 9)".to_owned(), |sum, index| {
            format!("(i64.add {sum} (i64.mul (local.get {index}) (i64.const {})))", index + 1)
        });
        write!(other, "(func (export \"to {to}\") {} (result i64) {sum})", params(to)).unwrap();
        write!(own, "(import \"other\" \"to {to}\" (func $to{to} {} (result i64)))", params(to)).unwrap();
    }
    for (from, to) in PARAMETERS.iter().flat_map(|from| PARAMETERS.map(|to| (*from, to))) {
        // The argument of index i is that of index i modulo the number of parameters.
        let arguments: String = (0..to)
            .map(|index| match from {
                0 => format!("(i64.const {index})"),
                _ => format!("(local.get {})", index % from),
            })
            .collect();
        write!(
            runs,
            "(func $from{from}to{to} {} (result i64) (return_call $to{to} {arguments}))",
            params(from)
        )
        .unwrap();
        let given: String = (0..from).map(|index| format!("(i64.const {})", 1000 + 7 * index)).collect();
        // Arguments on this function's stack, locals across the call, and operands below it.
        write!(
            runs,
            "(func $run{from}to{to} {} (result i64) (local $a i64) (local $b i64)
                (local.set $a (i64.const 11)) (local.set $b (i64.const 13))
                (loop $again
                    (local.set $a (i64.add (local.get $a) (local.get $b)))
                    (br_if $again (i64.lt_s (local.get $a) (i64.const 20))))
                (i64.add (i64.mul (local.get 7) (i64.const 3))
                    (i64.add (call $from{from}to{to} {given})
                        (i64.add (i64.mul (local.get $a) (local.get $b)) (i64.load (i32.const 16))))))
            (func (export \"run {from} to {to}\") (result i64)
                (i64.store (i32.const 16) (i64.const 5000))
                (call $run{from}to{to} {}))",
            params(9),
            (0..9).map(|index| format!("(i64.const {})", 20 + index)).collect::<String>(),
        )
        .unwrap();
    }
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let other = Module::new(&engine, format!("(module {other})")).unwrap();
    let other = linker.instantiate(&mut store, &other).unwrap();
    linker.instance(&store, "other", other).unwrap();
    let module = Module::new(&engine, format!("(module {own} (memory 1) {runs})")).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    for (from, to) in PARAMETERS.iter().flat_map(|from| PARAMETERS.map(|to| (*from, to))) {
        let argument = |index: usize| if from == 0 { index } else { 1000 + 7 * (index % from) };
        let called: usize = 9 + (0..to).map(|index| (index + 1) * argument(index)).sum::<usize>();
        let expected = 27 * 3 + called + 24 * 13 + 5000;
        let run: TypedFunc<(), i64> =
            instance.get_typed_func(&mut store, &format!("run {from} to {to}")).unwrap();
        assert_eq!(run.call(&mut store, ()).unwrap(), expected as i64, "from {from} to {to}");
    }
}

const HOST: &str = "(module $program
    (import \"host\" \"f\" (func $host (param i32) (result i32 i32 i32)))
    (import \"host\" \"e\" (tag $e))
    (memory (export \"memory\") 1)
    (table funcref (elem $host))
    (global $g (mut i32) (i32.const 5))
    (type $t (func (param i32) (result i32 i32 i32)))
    (func $direct (type $t) (return_call $host (local.get 0)))
    (func $indirect (type $t) (return_call_indirect (type $t) (local.get 0) (i32.const 0)))
    (func $run (export \"run\") (param i32) (result i32) (local $i i32)
        (i32.store (i32.const 4) (i32.const 100))
        (block $caught
            (loop $again
                (try_table (catch $e $caught)
                    (call $direct (local.get 0)) (i32.add (i32.add)) (drop)
                    (call $indirect (local.get 0)) (i32.add (i32.add)) (drop))
                (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (br_if $again (i32.lt_u (local.get $i) (i32.const 1000))))
            (return (i32.add (i32.load (i32.const 4)) (i32.add (local.get $i) (global.get $g)))))
        (i32.sub (i32.load (i32.const 4)) (global.get $g)))
    (func (export \"back\") (result i32) (i32.load (i32.const 4))))";

/// A function of the host as the callee: it returns, calls back, throws and fails.
#[test]
fn the_host_is_the_callee_of_tail_calls() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let tag = Tag::new(&mut store, &TagType::new(FuncType::new([], []))).unwrap();
    linker.define(&store, "host", "e", tag).unwrap();
    let host = move |mut caller: Caller<'_, ()>, which: i32| -> Result<(i32, i32, i32), Error> {
        match which {
            0 => {
                assert_eq!(names(&WasmBacktrace::capture(&caller)), [("program", "run")]);
                let back = caller.get_export("back").and_then(Extern::into_func).unwrap();
                let read = back.typed::<(), i32>(&caller)?.call(&mut caller, ())?;
                assert_eq!(read, 100, "the caller is the function that has made the tail call");
                Ok((1, 2, 3))
            }
            1 => Err(Error::from(ExnRef::new(&mut caller, &tag, &[])?)),
            _ => Err(Error::host("failed")),
        }
    };
    linker.func_wrap("host", "f", host).unwrap();
    let module = Module::new(&engine, HOST).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run: TypedFunc<i32, i32> = instance.get_typed_func(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, 0).unwrap(), 100 + 1000 + 5);
    assert_eq!(run.call(&mut store, 1).unwrap(), 100 - 5);
    assert!(matches!(run.call(&mut store, 2), Err(Error::Host(_))));
}
