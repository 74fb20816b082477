//! Programs that trap, throw or do not end: the errors of the public API.

use std::time::Duration;

use wasm_jit::{Caller, Config, Engine, Error, Func, Instance, Linker, Module, Store, Trap, WasmBacktrace};

struct Program {
    store: Store<()>,
    instance: Instance,
}

fn program(text: &str) -> Program {
    let engine = Engine::new(&Config::new()).unwrap();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    linker
        .func_wrap("host", "call", |mut caller: Caller<'_, ()>, which: i32| {
            let name = ["a", "b"][which as usize];
            let func = caller.get_export(name).unwrap().into_func().unwrap();
            func.typed::<(), ()>(&caller)?.call(&mut caller, ())
        })
        .unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    Program { store, instance }
}

impl Program {
    fn call(&mut self, name: &str) -> Result<i32, Error> {
        let func = self.instance.get_typed_func::<(), i32>(&mut self.store, name)?;
        func.call(&mut self.store, ())
    }

    fn trap(&mut self, name: &str) -> (Trap, WasmBacktrace) {
        match self.call(name) {
            Err(Error::Trap { trap, backtrace }) => (trap, backtrace),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn every_trap_has_its_own_error() {
    let mut program = program(
        r#"(module
        (memory 1)
        (table 3 funcref)
        (elem (i32.const 1) $void)
        (type $int (func (result i32)))
        (global $zero (mut i32) (i32.const 0))
        (global $minus_one (mut i32) (i32.const -1))
        (global $minus_one_64 (mut i64) (i64.const -1))
        (global $nan (mut f32) (f32.const nan))
        (global $large (mut f64) (f64.const 1e300))
        (func $void)
        (func (export "unreachable") (result i32) unreachable)
        (func (export "load") (result i32) (i32.load (i32.const 65533)))
        (func (export "load far") (result i32) (i32.load offset=4294967295 (global.get $minus_one)))
        (func (export "store") (result i32)
            (i64.store offset=65000 (i32.const 600) (i64.const 1)) (i32.const 0))
        (func (export "fill") (result i32)
            (memory.fill (i32.const 65530) (i32.const 1) (i32.const 10)) (i32.const 0))
        (func (export "zero") (result i32) (i32.div_u (i32.const 1) (global.get $zero)))
        (func (export "zero remainder") (result i32) (i32.rem_s (i32.const 1) (global.get $zero)))
        (func (export "overflow") (result i32)
            (i32.div_s (i32.const 0x80000000) (global.get $minus_one)))
        (func (export "overflow 64") (result i32)
            (i32.wrap_i64 (i64.div_s (i64.const 0x8000000000000000) (global.get $minus_one_64))))
        (func (export "nan") (result i32) (i32.trunc_f32_s (global.get $nan)))
        (func (export "large") (result i32) (i32.trunc_f64_s (global.get $large)))
        (func (export "beyond") (result i32) (call_indirect (type $int) (i32.const 7)))
        (func (export "null") (result i32) (call_indirect (type $int) (global.get $zero)))
        (func (export "type") (result i32) (call_indirect (type $int) (i32.const 1)))
        (func (export "table") (result i32) (ref.is_null (table.get (i32.const 3))))
        (func $deep (export "deep") (result i32) (i32.add (call $deep) (i32.const 1)))
        (func (export "throw null") (result i32) (throw_ref (ref.null exn)))
        (global $no_function (mut (ref null $int)) (ref.null $int))
        (func (export "call null") (result i32) (call_ref $int (global.get $no_function)))
        (func (export "call null in try") (result i32)
            (block $caught (try_table (catch_all $caught)
                (return (call_ref $int (global.get $no_function)))))
            (i32.const 1))
        (func (export "tail call null") (result i32) (return_call_ref $int (global.get $no_function)))
        (func (export "as non-null") (result i32)
            (call_ref $int (ref.as_non_null (global.get $no_function))))
        (func (export "extern as non-null") (result i32)
            (drop (ref.as_non_null (ref.null extern))) (i32.const 1)))"#,
    );
    for (name, expected) in [
        ("unreachable", Trap::UnreachableCodeReached),
        ("load", Trap::MemoryOutOfBounds),
        ("load far", Trap::MemoryOutOfBounds),
        ("store", Trap::MemoryOutOfBounds),
        ("fill", Trap::MemoryOutOfBounds),
        ("zero", Trap::IntegerDivisionByZero),
        ("zero remainder", Trap::IntegerDivisionByZero),
        ("overflow", Trap::IntegerOverflow),
        ("overflow 64", Trap::IntegerOverflow),
        ("nan", Trap::BadConversionToInteger),
        ("large", Trap::IntegerOverflow),
        ("beyond", Trap::UndefinedElement),
        ("null", Trap::IndirectCallToNull),
        ("type", Trap::BadSignature),
        ("table", Trap::TableOutOfBounds),
        ("deep", Trap::StackOverflow),
        ("throw null", Trap::NullReference),
        ("call null", Trap::NullReference),
        ("call null in try", Trap::NullReference),
        ("tail call null", Trap::NullReference),
        ("as non-null", Trap::NullReference),
        ("extern as non-null", Trap::NullReference),
    ] {
        assert_eq!(program.trap(name).0, expected, "{name}");
    }
}

/// Function names, and the text of each frame's current instruction.
fn frames(text: &str, backtrace: &WasmBacktrace) -> Vec<(String, String)> {
    let binary = wat::parse_str(text).unwrap();
    let mut printed = String::new();
    let lines: Vec<(Option<u64>, String)> = wasmprinter::Config::new()
        .offsets_and_lines(&binary, &mut printed)
        .unwrap()
        .map(|(offset, line)| (offset, line.trim().to_owned()))
        .collect();
    let at = |offset: usize| lines.iter().find(|(at, _)| *at == Some(offset as u64)).unwrap().1.clone();
    let frames = backtrace.frames().iter();
    frames.map(|frame| (frame.func_name().unwrap().to_owned(), at(frame.module_offset().unwrap()))).collect()
}

#[test]
fn a_backtrace_has_functions_and_instructions() {
    let text = r#"(module $shop
        (memory 1)
        (func $load (param i32) (result i32)
            (local i64)
            (local.set 1 (i64.const 7))
            (i32.add (i32.load offset=3 (local.get 0)) (i32.const 1)))
        (func $middle (param i32) (result i32)
            (if (result i32) (local.get 0)
                (then (i32.mul (call $load (i32.const 65535)) (i32.const 3)))
                (else (i32.const 2))))
        (func $outer (export "run") (result i32)
            (drop (call $middle (i32.const 0)))
            (call $middle (i32.const 1))))"#;
    let (trap, backtrace) = program(text).trap("run");
    assert_eq!(trap, Trap::MemoryOutOfBounds);
    let expected = [("load", "i32.load offset=3"), ("middle", "call $load"), ("outer", "call $middle")]
        .map(|(name, at)| (name.to_owned(), at.to_owned()));
    assert_eq!(frames(text, &backtrace), expected);
    let [load, middle, _] = backtrace.frames() else { panic!("{backtrace}") };
    assert_eq!((load.func_index(), load.module_name()), (0, Some("shop")));
    let offset = middle.module_offset().unwrap();
    let printed = backtrace.to_string();
    assert!(printed.contains(&format!("\n    1: {offset:#8x} - shop!middle\n")), "{printed}");
}

#[test]
fn a_stack_overflow_keeps_the_inner_frames_only() {
    let text = r#"(module
        (func $even (export "run") (result i32) (call $odd))
        (func $odd (result i32) (i32.add (call $even) (i32.const 1))))"#;
    let (trap, backtrace) = program(text).trap("run");
    assert_eq!(trap, Trap::StackOverflow);
    assert!(backtrace.omitted() > 100, "{}", backtrace.omitted());
    let names: Vec<_> = backtrace.frames().iter().map(|frame| frame.func_name().unwrap()).collect();
    for pair in names.windows(2) {
        assert!(matches!(pair, ["even", "odd"] | ["odd", "even"]), "{pair:?}");
    }
    let instance = backtrace.frames()[1].instance();
    assert!(backtrace.frames().iter().all(|frame| frame.instance() == instance));
    assert!(backtrace.to_string().ends_with(&format!("and {} more", backtrace.omitted())));
}

#[test]
fn frames_on_both_sides_of_a_host_function_are_reported() {
    let text = r#"(module
        (import "host" "call" (func $host (param i32)))
        (func $a (export "a") (call $host (i32.const 1)))
        (func $b (export "b") unreachable)
        (func $run (export "run") (result i32) (call $host (i32.const 0)) (i32.const 0)))"#;
    let (trap, backtrace) = program(text).trap("run");
    assert_eq!(trap, Trap::UnreachableCodeReached);
    let names: Vec<_> = backtrace.frames().iter().map(|frame| frame.func_name().unwrap()).collect();
    assert_eq!(names, ["b", "a", "run"]);
}

#[test]
fn an_endless_loop_ends_in_time() {
    let mut program = program(
        r#"(module
        (func $spin (param i32) (loop $again (br_if $again (i32.eqz (local.get 0)))))
        (func (export "run") (result i32) (call $spin (i32.const 0)) (i32.const 1))
        (func (export "calls") (result i32) (loop $again (call $leaf) (br $again)) (i32.const 1))
        (func $leaf)
        (func (export "ends") (result i32) (i32.const 5)))"#,
    );
    let handle = program.store.interrupt_handle();
    for name in ["run", "calls", "run"] {
        let timeout = handle.interrupt_after(Duration::from_millis(20)).unwrap();
        assert_eq!(program.trap(name).0, Trap::Interrupt);
        assert!(timeout.has_fired());
        drop(timeout);
        assert_eq!(program.call("ends").unwrap(), 5);
    }
}

#[test]
fn exceptions_are_caught_by_tag_through_frames() {
    let mut program = program(
        r#"(module
        (tag $small (param i32))
        (tag $large (param i64 i32))
        (func $throw (param i32)
            (if (i32.eqz (local.get 0)) (then (throw $small (i32.const 11))))
            (if (i32.eq (local.get 0) (i32.const 1)) (then (throw $large (i64.const 5) (i32.const 22)))))
        (func $through (param i32) (call $throw (local.get 0)))
        (func $catch (param i32) (result i32)
            (local i32)
            (local.set 1 (i32.const 1000))
            (block $large_case (result i64 i32)
                (block $small_case (result i32)
                    (try_table (catch $large $large_case) (catch $small $small_case)
                        (call $through (local.get 0)))
                    (return (i32.const 33)))
                (return (i32.add (local.get 1))))
            (local.set 1 (i32.add (local.get 1)))
            (return (i32.add (i32.wrap_i64) (local.get 1))))
        (func (export "small") (result i32) (call $catch (i32.const 0)))
        (func (export "large") (result i32) (call $catch (i32.const 1)))
        (func (export "none") (result i32) (call $catch (i32.const 2)))
        (func (export "again") (result i32)
            (local $count i32)
            (loop $loop
                (block $caught (result i32)
                    (try_table (catch $small $caught) (call $through (i32.const 0)))
                    unreachable)
                drop
                (local.set $count (i32.add (local.get $count) (i32.const 1)))
                (br_if $loop (i32.lt_s (local.get $count) (i32.const 10000))))
            (local.get $count))
        (func (export "escapes") (result i32) (call $through (i32.const 1)) (i32.const 0)))"#,
    );
    assert_eq!(program.call("small").unwrap(), 1011);
    assert_eq!(program.call("none").unwrap(), 33);
    assert_eq!(program.call("again").unwrap(), 10000);
    assert_eq!(program.call("large").unwrap(), 1027);
    let escaped = program.call("escapes");
    assert!(matches!(escaped, Err(Error::Exception { .. })), "{escaped:?}");
}

/// Functions of the host pass exceptions on, which are caught further out or not at all.
#[test]
fn an_uncaught_exception_has_the_frames_that_it_was_thrown_in() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (tag $e)
        (import "host" "call" (func $host (param funcref)))
        (func $thrower (throw $e))
        (func $middle (export "middle") (call $host (ref.func $thrower)))
        (func (export "caught")
            (block $caught (try_table (catch $e $caught) (call $middle))))
        (func $outer (export "escapes") (call $host (ref.func $middle)))
        (func (export "again")
            (throw_ref (block $caught (result exnref)
                (try_table (catch_all_ref $caught) (call $thrower)) unreachable)))
        (elem declare func $thrower $middle))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let host = Func::wrap(&mut store, |mut caller: Caller<'_, ()>, called: Option<Func>| {
        called.expect("a function").call(&mut caller, &[], &mut [])
    })
    .unwrap();
    let instance = Instance::new(&mut store, &module, &[host.into()]).unwrap();
    let mut names = |function: &str| -> Vec<String> {
        let function = instance.get_typed_func::<(), ()>(&mut store, function).unwrap();
        let Err(error) = function.call(&mut store, ()) else { return Vec::new() };
        assert!(matches!(error, Error::Exception { .. }), "{error}");
        assert!(error.to_string().starts_with("uncaught exception\n"), "{error}");
        let frames = error.backtrace().expect("it has frames").frames();
        frames.iter().map(|frame| frame.func_name().unwrap_or("?").to_owned()).collect()
    };
    assert_eq!(names("escapes"), ["thrower", "middle", "outer"]);
    assert!(names("caught").is_empty());
    // Not those of the exception that was passed on before, and caught.
    assert_eq!(names("again").len(), 1);
    assert_eq!(names("middle"), ["thrower", "middle"]);
}
