//! Functions that are compiled when they are first called: which ones are, what they do, and what
//! happens when that fails.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

use wasm_jit::probes::{Callback, Kind, Location, Place, ProbeError, ProbeSpec};
use wasm_jit::{
    Cache, Config, Engine, Error, Func, Instance, Linker, Module, Store, Trap, Val, ValType, WasmParams,
    WasmResults,
};

fn lazy() -> Engine {
    Engine::new(Config::new().lazy_compilation(true)).unwrap()
}

fn instance(module: &Module) -> (Store<()>, Instance) {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    (store, instance)
}

fn call<P: WasmParams, R: WasmResults>(
    store: &mut Store<()>,
    instance: Instance,
    name: &str,
    params: P,
) -> Result<R, Error> {
    instance.get_typed_func::<P, R>(&mut *store, name).unwrap().call(store, params)
}

/// The indices of the functions that have been compiled.
fn compiled(module: &Module) -> Vec<u32> {
    let own = module.functions().filter(|function| function.body().is_some_and(|body| body.is_compiled()));
    own.map(|function| function.index()).collect()
}

#[test]
fn only_functions_that_are_called_are_compiled() {
    let module = Module::new(
        &lazy(),
        r#"(module
            (type $unary (func (param i32) (result i32)))
            (table funcref (elem $indirect $never))
            (func $started)
            (start $started)
            (func $even (export "even") (type $unary)
                (if (result i32) (local.get 0)
                    (then (call $odd (i32.sub (local.get 0) (i32.const 1))))
                    (else (i32.const 1))))
            (func $odd (type $unary)
                (if (result i32) (local.get 0)
                    (then (return_call $even (i32.sub (local.get 0) (i32.const 1))))
                    (else (i32.const 0))))
            (func $indirect (type $unary) (i32.add (local.get 0) (i32.const 40)))
            (func $never (export "never") (type $unary) (call $even (local.get 0)))
            (func (export "through the table") (type $unary)
                (call_indirect (type $unary) (local.get 0) (i32.const 0)))
            (func (export "tail through the table") (type $unary)
                (return_call_indirect (type $unary) (local.get 0) (i32.const 0)))
            (func $by_ref (type $unary) (i32.mul (local.get 0) (i32.const 7)))
            (elem declare func $by_ref)
            (func (export "by reference") (type $unary)
                (call_ref $unary (local.get 0) (ref.func $by_ref))))"#,
    );
    let module = module.unwrap();
    assert_eq!((compiled(&module), module.code_size()), (vec![], 0));
    let (mut store, instance) = instance(&module);
    assert_eq!(compiled(&module), [0], "the start function");
    // A reference to a function does not compile it.
    let even = instance.get_typed_func::<i32, i32>(&mut store, "even").unwrap();
    assert_eq!(compiled(&module), [0]);
    assert_eq!(even.call(&mut store, 0).unwrap(), 1);
    assert_eq!(compiled(&module), [0, 1]);
    assert_eq!(even.call(&mut store, 5001).unwrap(), 0);
    assert_eq!(compiled(&module), [0, 1, 2]);
    let mut call = |name, argument| call::<i32, i32>(&mut store, instance, name, argument).unwrap();
    assert_eq!(call("through the table", 2), 42);
    assert_eq!(compiled(&module), [0, 1, 2, 3, 5]);
    assert_eq!(call("tail through the table", 3), 43);
    assert_eq!(call("by reference", 6), 42);
    assert_eq!(compiled(&module), [0, 1, 2, 3, 5, 6, 7, 8]);
    let size = |index: u32| module.function(index).unwrap().body().unwrap().code_size();
    assert_eq!(size(4), 0, "never called");
    assert!(compiled(&module).into_iter().all(|index| size(index) > 0));
    let sum: usize = (0..9).map(size).sum();
    assert!(module.code_size() >= sum && module.code_size() < sum + 9 * 64);
}

/// Everything in which a call passes something is preserved while the callee is compiled.
#[test]
fn arguments_of_a_first_call_arrive() {
    let text = r#"(module
        (type $wide (func
            (param i32 i64 i32 i64 i32 i64 i32 i64)
            (param f64 v128 f32 v128 f64 v128 f32 v128 f64 v128)
            (result f64 i64 v128 i64)))
        (table funcref (elem $callee))
        (func $callee (type $wide)
            (f64.add (f64.add (local.get 8) (f64.promote_f32 (local.get 10)))
                (f64.add (f64.add (local.get 12) (f64.promote_f32 (local.get 14))) (local.get 16)))
            (i64.add (i64.add (i64.extend_i32_u (local.get 0)) (local.get 1))
                (i64.add (i64.extend_i32_u (local.get 2)) (local.get 3)))
            (i32x4.add (i32x4.add (local.get 9) (local.get 11))
                (i32x4.add (local.get 13) (i32x4.add (local.get 15) (local.get 17))))
            (i64.add (i64.add (i64.extend_i32_u (local.get 4)) (local.get 5))
                (i64.add (i64.extend_i32_u (local.get 6)) (local.get 7))))
        (func $check (param f64 i64 v128 i64) (result i32)
            (i32.and
                (i32.and (f64.eq (local.get 0) (f64.const 31)) (i64.eq (local.get 1) (i64.const 1111)))
                (i32.and (i64.eq (local.get 3) (i64.const 11110000))
                    (i32x4.all_true (i32x4.eq (local.get 2) (i32x4.splat (i32.const 31)))))))
        (func (export "run") (result i32)
            (i32.const 1) (i64.const 10) (i32.const 100) (i64.const 1000)
            (i32.const 10000) (i64.const 100000) (i32.const 1000000) (i64.const 10000000)
            (f64.const 1) (i32x4.splat (i32.const 1)) (f32.const 2) (i32x4.splat (i32.const 2))
            (f64.const 4) (i32x4.splat (i32.const 4)) (f32.const 8) (i32x4.splat (i32.const 8))
            (f64.const 16) (i32x4.splat (i32.const 16))
            CALL
            (call $check)))"#;
    for how in ["(call $callee)", "(i32.const 0) (call_indirect (type $wide))"] {
        let module = Module::new(&lazy(), text.replace("CALL", how)).unwrap();
        let (mut store, instance) = instance(&module);
        for run in 0..2 {
            assert_eq!(call::<(), i32>(&mut store, instance, "run", ()).unwrap(), 1, "{how}, run {run}");
        }
    }
}

/// A module that imports a function of another instance, which is compiled when it is called.
#[test]
fn functions_of_other_instances_are_compiled_when_they_are_called() {
    let engine = lazy();
    let exporter = Module::new(
        &engine,
        r#"(module
            (global $calls (mut i32) (i32.const 0))
            (func (export "next") (result i32)
                (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
                (global.get $calls))
            (func (export "other")))"#,
    );
    let importer = Module::new(
        &engine,
        r#"(module
            (import "a" "next" (func $next (result i32)))
            (func (export "run") (result i32) (drop (call $next)) (call $next)))"#,
    );
    let (exporter, importer) = (exporter.unwrap(), importer.unwrap());
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let first = Instance::new(&mut store, &exporter, &[]).unwrap();
    linker.instance(&mut store, "a", first).unwrap();
    let second = linker.instantiate(&mut store, &importer).unwrap();
    assert_eq!(compiled(&exporter), []);
    assert_eq!(call::<(), i32>(&mut store, second, "run", ()).unwrap(), 2);
    assert_eq!((compiled(&exporter), compiled(&importer)), (vec![0], vec![1]));
    // Another instance of the module: nothing is compiled again, and it has its own globals.
    let size = exporter.code_size();
    let again = Instance::new(&mut store, &exporter, &[]).unwrap();
    assert_eq!(call::<(), i32>(&mut store, again, "next", ()).unwrap(), 1);
    assert_eq!(exporter.code_size(), size);
}

/// Traps, exceptions and backtraces, with the calls that lead to them, are as in eager code.
#[test]
fn traps_and_exceptions_are_as_in_eager_code() {
    let text = r#"(module $m
        (tag $tag (param i32))
        (memory 1)
        (func $throw (param i32)
            (if (i32.eqz (local.get 0)) (then (throw $tag (i32.const 42))))
            (call $throw (i32.sub (local.get 0) (i32.const 1))))
        (func $catch (export "catch") (param i32) (result i32)
            (block $caught (result i32)
                (try_table (catch $tag $caught) (call $throw (local.get 0)))
                (i32.const -1)))
        (func $out_of_bounds (export "out of bounds") (param i32) (result i32)
            (i32.load (i32.const -4)))
        (func $divide (export "divide") (param i32) (result i32)
            (i32.div_u (i32.const 1) (local.get 0)))
        (func $deep (export "deep") (param i32) (result i32)
            (if (result i32) (local.get 0)
                (then (i32.add (call $deep (i32.sub (local.get 0) (i32.const 1))) (i32.const 1)))
                (else (call $divide (local.get 0)))))
        (func $unreachable (export "unreachable") (param i32) (result i32) (unreachable))
        (func $endless (export "endless") (param i32) (result i32)
            (i32.add (call $endless (local.get 0)) (i32.const 1)))
        (func $uncaught (export "uncaught") (param i32) (result i32)
            (call $throw (i32.const 3)) (i32.const 0)))"#;
    let (lazy, eager) = (Module::new(&lazy(), text).unwrap(), Module::new(&Engine::default(), text).unwrap());
    for name in ["catch", "out of bounds", "divide", "deep", "unreachable", "endless", "uncaught"] {
        let run = |module: &Module| {
            let (mut store, instance) = instance(module);
            [7, 7].map(|argument| match call::<i32, i32>(&mut store, instance, name, argument) {
                Ok(result) => result.to_string(),
                Err(error) => error.to_string(),
            })
        };
        assert_eq!(run(&lazy), run(&eager), "{name}");
    }
    // The frame of the function that trapped is the innermost.
    let (mut store, instance) = instance(&lazy);
    let error = call::<i32, i32>(&mut store, instance, "deep", 2).unwrap_err();
    let names: Vec<_> = error.backtrace().unwrap().frames().iter().map(|frame| frame.func_name()).collect();
    assert_eq!(error.trap(), Some(Trap::IntegerDivisionByZero));
    assert_eq!(names, [Some("divide"), Some("deep"), Some("deep"), Some("deep")]);
}

/// An error of validation is reported when the module is made, also of a function that nobody
/// calls, and the first one of the module, whichever thread finds it.
#[test]
fn a_module_is_validated_completely() {
    let filling = "(drop (f64.const 1.5))".repeat(60);
    let function = |number: usize| match number {
        700 | 1100 | 1101 => format!("(func {filling} (i32.const {number}))"),
        _ => format!("(func {filling})"),
    };
    let text: String = (0..1500).map(function).collect();
    let bytes = wat::parse_str(format!("(module {text})")).unwrap();
    assert!(bytes.len() > 5 * (128 << 10), "several jobs");
    let offset = |engine: &Engine| match Module::from_binary(engine, &bytes) {
        Err(Error::Invalid { offset, .. }) => offset,
        other => panic!("{other:?}"),
    };
    let expected = offset(&Engine::default());
    for threads in [1, 2, 8] {
        let mut config = Config::new();
        config.lazy_compilation(true).compile_threads(threads.try_into().unwrap());
        for _ in 0..5 {
            assert_eq!(offset(&Engine::new(&config).unwrap()), expected);
        }
    }
}

/// A module with a function whose code would exceed the limit, since it passes a thousand values to
/// each of many calls: that of index 2.
fn too_large() -> String {
    let types = "i32 ".repeat(1000);
    let calls = "call 3 ".repeat(500);
    let (values, sum) = ("(local.get 0)".repeat(1000), "i32.add ".repeat(999));
    let results: String = (0..1000).rev().map(|value| format!("(local.get {value})")).collect();
    format!(
        r#"(module
            (func (export "good") (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
            (func (export "calls") (param i32) (result i32) (call 2 (local.get 0)))
            (func (export "large") (param i32) (result i32)
                {values} {calls} {sum})
            (func (param {types}) (result {types}) {results}))"#
    )
}

#[test]
fn a_function_that_cannot_be_compiled_fails_when_it_is_called() {
    let text = too_large();
    let refused = Module::new(&Engine::default(), &text).unwrap_err();
    assert!(matches!(refused, Error::Limit { function: 2, .. }), "{refused}");
    let module = Module::new(&lazy(), &text).unwrap();
    let (mut store, instance) = instance(&module);
    for name in ["large", "calls", "calls"] {
        let error = call::<i32, i32>(&mut store, instance, name, 1).unwrap_err();
        assert_eq!(error.to_string(), refused.to_string());
        // The store is usable.
        assert_eq!(call::<i32, i32>(&mut store, instance, "good", 41).unwrap(), 42);
    }
    assert_eq!(compiled(&module), [0, 1]);
    let body = module.function(2).unwrap().body().unwrap();
    assert_eq!(body.compile().unwrap_err().to_string(), refused.to_string());
    let entry = Location { function: 2, place: Place::Entry };
    let error = module.probe(ProbeSpec { location: entry, kind: Kind::Count }).unwrap_err();
    assert_eq!(error.to_string(), refused.to_string());
    // Each of several probes has its own reason.
    let spec = |place| ProbeSpec { location: Location { function: 2, place }, kind: Kind::Count };
    let instruction = |offset| spec(Place::Instruction { offset });
    let typed = Callback::with_types([ValType::I32], |_| ());
    let typed = Kind::Callback { function: typed, values: [].into() };
    let specs = [
        spec(Place::Entry),
        instruction(1),
        instruction(2),
        instruction(u32::MAX),
        ProbeSpec { location: entry, kind: typed },
        spec(Place::Exit),
    ];
    let errors: Vec<ProbeError> = module.probes(&specs).into_iter().map(Result::unwrap_err).collect();
    let [entry, first, inside, beyond, untyped, exit] = &errors[..] else { panic!("{errors:?}") };
    for error in [entry, first, exit] {
        assert!(matches!(error, ProbeError::First(_)), "{error}");
        assert_eq!(error.to_string(), refused.to_string());
    }
    assert!(matches!(inside, ProbeError::NoInstruction { function: 2, offset: 2 }), "{inside}");
    assert!(matches!(beyond, ProbeError::NoInstruction { .. }), "{beyond}");
    assert!(matches!(untyped, ProbeError::Parameters { parameters: 1, values: 0 }), "{untyped}");
    // In a program that calls the host, which calls it again.
    let mut store = Store::new(module.engine(), ());
    let inner = Instance::new(&mut store, &module, &[]).unwrap();
    let large = inner.get_func(&mut store, "large").unwrap();
    let outer = Module::new(
        module.engine(),
        r#"(module (import "" "" (func $f)) (func (export "run") (call $f)) (func (export "well") (result i32) (i32.const 3)))"#,
    );
    let host = Func::wrap(&mut store, move |mut caller: wasm_jit::Caller<'_, ()>| -> Result<(), Error> {
        large.call(&mut caller, &[Val::I32(1)], &mut [Val::I32(0)])
    });
    let outer = Instance::new(&mut store, &outer.unwrap(), &[host.unwrap().into()]).unwrap();
    let error = call::<(), ()>(&mut store, outer, "run", ()).unwrap_err();
    assert_eq!(error.to_string(), refused.to_string());
    assert_eq!(call::<(), i32>(&mut store, outer, "well", ()).unwrap(), 3);
}

/// Functions that call each other, directly and through a table. `fN` calls some with smaller
/// numbers.
fn calling(functions: u32) -> String {
    let mut text = format!(
        "(module (type $unary (func (param i64) (result i64)))
         (table funcref (elem {}))",
        (0..functions).map(|number| format!("$f{number} ")).collect::<String>()
    );
    for number in 0..functions {
        let (near, far) = (number.saturating_sub(1), number / 2);
        let body = match number {
            0 => "(i64.add (local.get 0) (i64.const 1))".to_owned(),
            _ => format!(
                "(i64.add (i64.mul (call $f{far} (local.get 0)) (i64.const 3))
                    (call_indirect (type $unary) (i64.xor (local.get 0) (i64.const {number}))
                        (i32.const {})))",
                if number % 16 == 0 { near } else { number / 3 }
            ),
        };
        text += &format!("(func $f{number} (export \"f{number}\") (type $unary) {body})");
    }
    text + ")"
}

/// Threads with their own stores call the same functions of one module at the same time, many of
/// which are compiled at that moment, by whoever comes first: each of them once.
#[test]
fn threads_call_functions_that_are_compiled_meanwhile() {
    const FUNCTIONS: u32 = 400;
    const THREADS: u32 = 4;
    let bytes = wat::parse_str(calling(FUNCTIONS)).unwrap();
    let eager = Module::from_binary(&Engine::default(), &bytes).unwrap();
    let run = |module: &Module, order: &dyn Fn(u32) -> u32| -> Vec<i64> {
        let (mut store, instance) = instance(module);
        let mut results = vec![0; FUNCTIONS as usize];
        for step in 0..FUNCTIONS {
            let function = order(step);
            let result: i64 = call(&mut store, instance, &format!("f{function}"), 5_i64).unwrap();
            results[function as usize] = result;
        }
        results
    };
    let expected = run(&eager, &|step| step);
    let code_size: usize = {
        let module = Module::from_binary(&lazy(), &bytes).unwrap();
        run(&module, &|step| step);
        module.code_size()
    };
    for round in 0..20 {
        let module = Module::from_binary(&lazy(), &bytes).unwrap();
        let barrier = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (module, barrier, run) = (&module, &barrier, &run);
                    scope.spawn(move || {
                        let order = |step: u32| match thread {
                            // The same order in two threads, and two others.
                            0 | 1 => FUNCTIONS - 1 - step,
                            2 => step,
                            _ => (step * 97 + round) % FUNCTIONS,
                        };
                        barrier.wait();
                        run(module, &order)
                    })
                })
                .collect();
            for worker in workers {
                assert_eq!(worker.join().unwrap(), expected, "round {round}");
            }
        });
        assert_eq!(compiled(&module).len() as u32, FUNCTIONS);
        assert_eq!(module.code_size(), code_size, "round {round}: each function was compiled once");
    }
}

#[test]
fn a_probe_compiles_its_function_first() {
    let text = r#"(module
        (func $add (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
        (func $twice (export "twice") (param i32) (result i32) (call $add (local.get 0) (local.get 0)))
        (func (export "unused")))"#;
    let module = Module::new(&lazy(), text).unwrap();
    let spec = |function, place| ProbeSpec { location: Location { function, place }, kind: Kind::Count };
    let entry = module.probe(spec(0, Place::Entry)).unwrap();
    let last = module.probe(spec(0, Place::Instruction { offset: 5 })).unwrap();
    assert_eq!(compiled(&module), [0]);
    entry.activate().unwrap();
    last.activate().unwrap();
    let (mut store, instance) = instance(&module);
    assert_eq!(call::<i32, i32>(&mut store, instance, "twice", 4).unwrap(), 8);
    assert_eq!(call::<(i32, i32), i32>(&mut store, instance, "add", (4, 5)).unwrap(), 9);
    assert_eq!((entry.count(), last.count()), (2, 2));
    entry.deactivate().unwrap();
    drop(last);
    assert_eq!(call::<i32, i32>(&mut store, instance, "twice", 4).unwrap(), 8);
    assert_eq!(entry.count(), 2);
    assert_eq!(compiled(&module), [0, 1]);
}

/// A watch for first calls does not compile anything, and the thread that is the first in a
/// function finds it before it executes anything of it.
#[test]
fn watches_for_first_calls_compile_nothing() {
    let bytes = wat::parse_str(calling(100)).unwrap();
    let module = Module::from_binary(&lazy(), &bytes).unwrap();
    let probes = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (of_watch, watched) = (probes.clone(), module.clone());
    let watch = module.watch_first_calls(move |function| {
        let location = Location { function, place: Place::Entry };
        let probe = watched.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
        probe.activate().unwrap();
        of_watch.lock().unwrap().push((function, probe));
    });
    let watch = watch.unwrap();
    assert_eq!(compiled(&module), []);
    let (mut store, instance) = instance(&module);
    let eager = Module::from_binary(&Engine::default(), &bytes).unwrap();
    let (mut other, reference) = self::instance(&eager);
    let all = |module: &Module, index| {
        let location = Location { function: index, place: Place::Entry };
        let probe = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
        probe.activate().unwrap();
        probe
    };
    let counted: Vec<_> = (0..100).map(|index| all(&eager, index)).collect();
    for name in ["f64", "f99", "f5"] {
        let expected: i64 = call(&mut other, reference, name, 9_i64).unwrap();
        assert_eq!(call::<i64, i64>(&mut store, instance, name, 9).unwrap(), expected, "{name}");
    }
    let probes = probes.lock().unwrap();
    let found: BTreeSet<u32> = probes.iter().map(|(function, _)| *function).collect();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), compiled(&module));
    for (function, probe) in &*probes {
        assert_eq!(probe.count(), counted[*function as usize].count(), "function {function}");
    }
    assert!(probes.len() < 100 && probes.len() > 10, "{}", probes.len());
    drop(watch);
}

/// A stored module is complete, and the same as if it had been compiled at once.
#[test]
fn a_stored_module_is_complete() {
    let bytes = wat::parse_str(calling(50)).unwrap();
    let module = Module::from_binary(&lazy(), &bytes).unwrap();
    let (mut store, instance) = instance(&module);
    let _: i64 = call(&mut store, instance, "f20", 1_i64).unwrap();
    let eager = Module::from_binary(&Engine::default(), &bytes).unwrap();
    assert!(module.serialize().unwrap() == eager.serialize().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path().join("cache"), 1 << 30).unwrap();
    let engine = Engine::new(Config::new().lazy_compilation(true).cache(cache.clone())).unwrap();
    for _ in 0..2 {
        let module = Module::from_binary(&engine, &bytes).unwrap();
        assert_eq!(compiled(&module).len(), 50);
    }
    assert_eq!((cache.statistics().misses, cache.statistics().hits), (1, 1));
}

/// A listing has the code of functions that have been compiled, which is that of eager code but for
/// addresses, and names the others.
#[test]
fn a_listing_shows_what_has_been_compiled() {
    let bytes = wat::parse_str(calling(20)).unwrap();
    let (lazy, eager) = (
        Module::from_binary(&lazy(), &bytes).unwrap(),
        Module::from_binary(&Engine::default(), &bytes).unwrap(),
    );
    let (mut store, instance) = instance(&lazy);
    let _: i64 = call(&mut store, instance, "f17", 1_i64).unwrap();
    // Machine code differs in the operands of calls and in its addresses.
    let listing = |module: &Module| {
        let mut out = Vec::new();
        module.write_objdump(|_, _| true, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let functions = text.split("\n\n").map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(functions.len(), 20, "{text}");
        functions
    };
    let instruction = |line: &str| match line.get(..14).and_then(|start| start.trim().strip_suffix(':')) {
        Some(_) if line.contains("call f") => "call".to_owned(),
        Some(_) => line[14..].split("  ").last().unwrap_or_default().trim().to_owned(),
        None => line.split(" at ").next().unwrap_or_default().to_owned(),
    };
    let pairs = listing(&lazy).into_iter().zip(listing(&eager));
    for (number, (lazy_text, eager_text)) in pairs.enumerate() {
        if !compiled(&lazy).contains(&(number as u32)) {
            assert!(lazy_text.contains("not compiled yet"), "{lazy_text}");
            continue;
        }
        let lines = |text: &str| {
            let code = text.lines().filter(|line| !line.contains("jmp") && !line.contains(" j"));
            code.map(instruction).collect::<Vec<_>>()
        };
        assert_eq!(lines(&lazy_text), lines(&eager_text));
    }
    assert!(compiled(&lazy).len() > 5 && compiled(&lazy).len() < 20);
}

/// What a program costs is the same.
#[test]
fn fuel_is_consumed_as_in_eager_code() {
    let bytes = wat::parse_str(calling(60)).unwrap();
    let left = |lazy: bool| {
        let engine = Engine::new(Config::new().consume_fuel(true).lazy_compilation(lazy)).unwrap();
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let mut left = Vec::new();
        for fuel in [1_000_000, 500] {
            let (mut store, instance) = instance_with_fuel(&module, fuel);
            let result = call::<i64, i64>(&mut store, instance, "f40", 3);
            left.push((result.map_err(|error| error.to_string()), store.get_fuel().unwrap()));
        }
        left
    };
    assert_eq!(left(true), left(false));
}

fn instance_with_fuel(module: &Module, fuel: u64) -> (Store<()>, Instance) {
    let mut store = Store::new(module.engine(), ());
    store.set_fuel(fuel).unwrap();
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    (store, instance)
}
