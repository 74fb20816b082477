//! Functions of rules that only add constants: the engine's counts for the monitor are compared
//! with the results of calling the same functions.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::{Config, Engine, Extern, Instance, Linker, Module, ProbeSites, Store, Val};
use wasm_jit_whamm::monitor_module::{Attached, MonitorModule};

/// Each instruction and call has a number, which its rules ask for.
const ALLOC: &str = r#"
    (memory (export "memory") 1)
    (global $next (export "next") (mut i32) (i32.const 8))
    (func (export "$alloc") (param $bytes i32) (result i32)
        (if (i32.gt_u (i32.add (global.get $next) (i32.const 64))
                (i32.mul (memory.size) (i32.const 65536)))
            (then (drop (memory.grow (i32.const 1)))))
        (global.get $next)
        (global.set $next (i32.add (global.get $next) (local.get $bytes))))
    (func (export "$eight") (result i32) (call 0 (i32.const 8)))
    (func (export "$four") (result i32) (call 0 (i32.const 4)))
    (func (export "$many") (result i32) (call 0 (i32.const 600)))"#;

/// Monitors for which the engine counts everything.
const COUNTED: &[&str] = &[
    // By instruction, 32-bit and 64-bit.
    r#"(func (export "wasm:opcode:* ($eight())") (param $at i32)
        (i64.store (local.get $at) (i64.add (i64.load (local.get $at)) (i64.const 1))))"#,
    r#"(func (export "wasm:opcode:* ($four())") (param $at i32)
        (i32.store (local.get $at) (i32.sub (i32.load (local.get $at)) (i32.const 0x70000001))))"#,
    // Functions, blocks, and constants of the place.
    r#"(global $in (export "in") (mut i64) (i64.const 7)) (global $out (export "out") (mut i32) (i32.const 0))
        (global $length (export "length") (mut i64) (i64.const 0))
        (func (export "wasm:func:entry ($eight())") (param $at i32)
            (global.set $in (i64.add (i64.const -1) (global.get $in)))
            (i64.store offset=4 align=1 (i32.sub (local.get $at) (i32.const 4))
                (i64.sub (i64.load (local.get $at)) (i64.const 1))))
        (func (export "wasm:func:exit (fid)") (param i32)
            (global.set $out (i32.add (global.get $out) (i32.mul (local.get 0) (i32.const 3)))))
        (func (export "wasm:block:end (instr_count)") (param i64)
            (global.set $length (i64.add (global.get $length) (local.get 0))))"#,
    // Branches: by an address, by control flow, by selection, and both together.
    r#"(func (export "wasm:opcode:br_if|if|select ($many(), arg0)") (param $at i32) (param i32)
        (local.set $at (i32.add (local.get $at) (i32.shl (i32.eqz (local.get 1)) (i32.const 3))))
        (i64.store (local.get $at) (i64.add (i64.load (local.get $at)) (i64.const 1))))"#,
    r#"(global $yes (export "yes") (mut i32) (i32.const 0)) (global $no (export "no") (mut i64) (i64.const 0))
        (func $count (param i32)
            (global.set $no (i64.add (global.get $no) (i64.extend_i32_u (local.get 0)))))
        (func (export "wasm:opcode:br_if|if|select (arg0)") (param i32)
            (if (i32.gt_u (local.get 0) (i32.const 0))
                (then (global.set $yes (i32.add (global.get $yes) (i32.const 1))))
                (else (call $count (i32.const 3)))))"#,
    r#"(func (export "wasm:opcode:br_if|if ($eight(), arg0)") (param $at i32) (param i32)
        (i32.store (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 1)))
        (block (br_if 0 (i32.ne (local.get 1) (i32.const 0)))
            (i32.store offset=4 (local.get $at) (i32.add (i32.load offset=4 (local.get $at)) (i32.const 1)))))
    (func (export "wasm:opcode:select ($eight(), arg0)") (param $at i32) (param i32)
        (local.set $at (select (local.get $at) (i32.add (local.get $at) (i32.const 4)) (local.get 1)))
        (i32.store (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 1))))"#,
    // Targets of `br_table`.
    r#"(func (export "wasm:opcode:br_table ($many(), arg0, num_targets)") (param $at i32) (param i32 i32)
        (if (i32.ge_u (local.get 1) (local.get 2)) (then (local.set 1 (local.get 2))))
        (local.set $at (i32.add (local.get $at) (i32.mul (local.get 1) (i32.const 4))))
        (i32.store (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 1))))"#,
    // Loops and calls, with constants only; a place counts for several.
    r#"(global $ones (export "ones") (mut i32) (i32.const 0)) (global $step i32 (i32.const 2))
        (func $ones (param $bits i32) (result i32) (local $ones i32)
            (loop $next
                (local.set $ones (i32.add (local.get $ones) (i32.and (local.get $bits) (i32.const 1))))
                (br_if $next (local.tee $bits (i32.shr_u (local.get $bits) (i32.const 1)))))
            (local.get $ones))
        (func $add (param i32)
            (global.set $ones (i32.add (global.get $ones) (i32.mul (global.get $step) (local.get 0)))))
        (func (export "wasm:opcode:local.* (pc)") (param i32) (call $add (call $ones (local.get 0))))
        (func (export "wasm:opcode:*.get|*.set|end") (call $add (i32.const -5)))"#,
];

/// Monitors with functions that are called, so that numbers that these can access are not counted.
const CALLED: &[&str] = &[
    // Stores something that is not a sum, or a sum with another number.
    r#"(func (export "wasm:opcode:local.get ($eight())") (param $at i32)
        (i32.store (local.get $at) (i32.mul (i32.load (local.get $at)) (i32.const 3))))"#,
    r#"(func (export "wasm:opcode:local.get ($eight())") (param $at i32)
        (i32.store offset=4 (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 1))))"#,
    // Depends on the number that it has counted.
    r#"(global $g (export "g") (mut i32) (i32.const 0))
        (func (export "wasm:opcode:local.get")
            (if (i32.lt_u (global.get $g) (i32.const 9))
                (then (global.set $g (i32.add (global.get $g) (i32.const 1))))))"#,
    // A function that is called reads the number, directly or through another function.
    r#"(global $g (export "g") (mut i32) (i32.const 0)) (global $h (export "h") (mut i32) (i32.const 0))
        (func (export "wasm:opcode:local.get") (global.set $g (i32.add (global.get $g) (i32.const 1))))
        (func $read (result i32) (global.get $g))
        (func (export "wasm:opcode:local.set")
            (global.set $h (i32.xor (call $read) (i32.rotl (global.get $h) (i32.const 1)))))"#,
    r#"(func (export "wasm:opcode:local.get ($eight())") (param $at i32)
            (i32.store (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 1))))
        (global $h (export "h") (mut i32) (i32.const 0))
        (func (export "wasm:opcode:local.set (pc)") (param i32)
            (global.set $h (i32.xor (i32.load8_u offset=1 (local.get 0)) (i32.rotl (global.get $h) (i32.const 1)))))"#,
    // Numbers that share bytes, in one function and in two.
    r#"(func (export "wasm:opcode:local.get")
        (i32.store (i32.const 3) (i32.add (i32.load (i32.const 3)) (i32.const 0x1000001)))
        (i32.store (i32.const 5) (i32.add (i32.load (i32.const 5)) (i32.const 0x1000001))))"#,
    r#"(func (export "wasm:opcode:local.get")
            (i64.store (i32.const 0) (i64.add (i64.load (i32.const 0)) (i64.const 0x70000001))))
        (func (export "wasm:opcode:local.set")
            (i32.store (i32.const 0) (i32.sub (i32.load (i32.const 0)) (i32.const 0x70000001))))"#,
    // The operand itself, not whether it is 0; an operand that is not the condition, and one of a
    // type that the place does not have.
    r#"(func (export "wasm:opcode:br_if|if (arg0)") (param i32)
        (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (local.get 0))))"#,
    r#"(global $g (export "g") (mut i32) (i32.const 0))
        (func (export "wasm:opcode:i32.store|select (arg0)") (param i64)
            (global.set $g (i32.add (global.get $g) (i32.const 1))))"#,
];

/// A program with exceptions, tail calls, deep recursion, and calls through a table.
const PROGRAM: &str = r#"(module
    (memory (export "memory") 1) (tag $e (param i32)) (table funcref (elem $odd $throws))
    (func $throws (param i32) (result i32)
        (if (i32.eqz (i32.rem_u (local.get 0) (i32.const 3))) (then (throw $e (local.get 0))))
        (i32.add (local.get 0) (select (i32.const 1) (i32.const 2) (i32.and (local.get 0) (i32.const 4)))))
    (func $odd (param i32) (result i32)
        (if (result i32) (local.get 0)
            (then (return_call $even (i32.sub (local.get 0) (i32.const 1)))) (else (i32.const 0))))
    (func $even (param i32) (result i32)
        (drop (br_if 0 (i32.const 1) (i32.eqz (local.get 0))))
        (return_call $odd (i32.sub (local.get 0) (i32.const 1))))
    (func $deep (param i32) (result i32)
        (if (i32.eqz (local.get 0)) (then (unreachable)))
        (i32.add (i32.const 1) (call $deep (i32.sub (local.get 0) (i32.const 1)))))
    (func $switch (param i32) (result i32)
        (block $c (block $b (block $a (br_table $a $b $a $c (local.get 0)) (unreachable))
            (return (i32.const 1))) (return (i32.const 2)))
        (i32.const 3))
    (func (export "main") (result i64) (local $i i32) (local $sum i32)
        (loop $next
            (block $caught (result i32)
                (try_table (catch $e $caught)
                    (local.set $sum (i32.add (local.get $sum)
                        (call_indirect (param i32) (result i32) (local.get $i)
                            (i32.and (local.get $i) (i32.const 1)))))
                    (i32.store (i32.const 16) (i32.div_s (i32.const 100) (i32.sub (local.get $i) (i32.const 31)))))
                (call $switch (i32.rem_u (local.get $i) (i32.const 7))))
            (local.set $sum (i32.add (local.get $sum)))
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const LAST))))
        (if (i32.eq (local.get $i) (i32.const 30)) (then (drop (call $deep (i32.const 500)))))
        (i64.extend_i32_u (local.get $sum))))"#;

fn engines() -> Vec<Engine> {
    let with = |change: fn(&mut Config)| {
        let mut config = Config::new();
        change(&mut config);
        Engine::new(&config).unwrap()
    };
    vec![
        with(|_| {}),
        with(|config| _ = config.counter_stubs(0)),
        with(|config| _ = config.counter_stubs(u32::MAX)),
        with(|config| _ = config.probe_sites(ProbeSites::All)),
    ]
}

fn monitor(engine: &Engine, text: &str) -> MonitorModule {
    let text = format!("(module {ALLOC} {text})");
    MonitorModule::new(Module::new(engine, text).unwrap(), Vec::new()).unwrap()
}

/// A program with monitors.
struct Run {
    store: Store<()>,
    attached: Vec<Attached>,
    program: Instance,
}

impl Run {
    fn new(module: &Module, monitors: &[MonitorModule]) -> Self {
        let engine = module.engine();
        let mut store = Store::new(engine, ());
        let mut attach =
            |monitor: &MonitorModule| monitor.attach(&mut store, &mut Linker::new(engine), module).unwrap();
        let attached = monitors.iter().map(&mut attach).collect();
        let program = Instance::new(&mut store, module, &[]).unwrap();
        Self { store, attached, program }
    }

    /// The result, or the trap.
    fn call(&mut self) -> Result<i64, String> {
        let main = self.program.get_typed_func::<(), i64>(&mut self.store, "main").unwrap();
        main.call(&mut self.store, ()).map_err(|error| error.to_string())
    }

    /// The contents of the program's memory, and what monitors have counted: their memories and
    /// globals.
    fn contents(&mut self) -> Vec<(String, Vec<u8>)> {
        let Self { store, attached, program } = self;
        let monitors: Vec<Instance> = attached.iter().map(|of| *of.instance(&mut *store)).collect();
        let mut all = Vec::new();
        for instance in monitors.iter().chain([&*program]) {
            let exports: Vec<_> = instance
                .exports(&*store)
                .map(|export| (export.name().to_owned(), export.into_extern()))
                .collect();
            for (name, item) in exports {
                let bytes = match item {
                    Extern::Memory(memory) => memory.data(&*store).to_vec(),
                    Extern::Global(global) => match global.get(&mut *store) {
                        Val::I32(value) => value.to_le_bytes().to_vec(),
                        Val::I64(value) => value.to_le_bytes().to_vec(),
                        other => panic!("{other:?}"),
                    },
                    _ => continue,
                };
                all.push((name, bytes));
            }
        }
        all
    }
}

/// Names the first byte that differs.
#[track_caller]
fn assert_same(of: &str, counted: &[(String, Vec<u8>)], called: &[(String, Vec<u8>)]) {
    for ((name, counted), (_, called)) in counted.iter().zip(called) {
        let at = counted.iter().zip(called).position(|(counted, called)| counted != called);
        assert_eq!((at, counted.len()), (None, called.len()), "{name} after {of}");
    }
    assert_eq!(counted.len(), called.len());
}

/// Rules that depend on whether the reference of a branch is null.
#[test]
fn decisions_by_references_are_counted() {
    let text = include_str!("../../../tests/probes/references.wat")
        .replace("(export \"run\")", "(export \"main\") (result i64)");
    let text = format!("{} (i64.const 1)))", text.trim_end().strip_suffix("))").unwrap());
    let by_way = r#"(func (export "wasm:opcode:br_on_null|br_on_non_null ($eight(), ref0)") (param $at i32) (param i64)
        (local.set $at (select (local.get $at) (i32.add (local.get $at) (i32.const 4)) (i64.eqz (local.get 1))))
        (i32.store (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 1))))"#;
    for engine in engines() {
        let module = Module::new(&engine, &text).unwrap();
        assert!(!check(&text, &module, by_way, true));
        let mut run = Run::new(&module, &[monitor(&engine, by_way)]);
        run.call().unwrap();
        let contents = run.contents();
        let (_, memory) = contents.iter().find(|(name, _)| name == "memory").unwrap();
        let counts: Vec<u8> = memory[8..32].iter().copied().step_by(4).collect();
        // Null, and not null.
        assert_eq!(counts, [3, 6, 3, 6, 1, 1]);
    }
}

/// Runs a program, several times, with a monitor and with the same one that always calls.
#[track_caller]
fn check(program: &str, module: &Module, text: &str, is_counted: bool) -> bool {
    let engine = module.engine();
    // Each has its own module, since the versions of functions differ.
    let other = Module::from_binary(engine, module.bytes()).unwrap();
    let mut counted = Run::new(module, &[monitor(engine, text)]);
    let mut called = Run::new(&other, &[monitor(engine, text).always_call()]);
    let mut has_trapped = false;
    for _ in 0..2 {
        let results = [counted.call(), called.call()];
        assert_eq!(results[0], results[1], "{program}");
        has_trapped |= results[0].is_err();
        assert_same(&format!("{program} with {text}"), &counted.contents(), &called.contents());
    }
    let [counted, called] = [counted, called].map(|mut run| run.attached.remove(0));
    assert_eq!(counted.probes(), called.probes(), "{program} with {text}");
    assert_eq!(called.counters(), 0);
    let expected = if is_counted { counted.probes() } else { 0 };
    // Some monitors with called functions also have functions that are counted.
    assert!(counted.counters() == expected, "{} of {}: {text}", counted.counters(), counted.probes());
    has_trapped
}

#[test]
fn what_is_counted_is_what_calls_would_count() {
    for engine in engines() {
        for last in [20, 30, 40] {
            let text = PROGRAM.replace("LAST", &last.to_string());
            let module = Module::new(&engine, text).unwrap();
            for (texts, is_counted) in [(COUNTED, true), (CALLED, false)] {
                for text in texts {
                    let has_trapped = check(&format!("the program with {last}"), &module, text, is_counted);
                    assert_eq!(has_trapped, last > 20);
                }
            }
        }
    }
}

#[test]
fn random_programs_count_as_calls_would() {
    let engines = engines();
    let mut trapped = 0;
    for seed in 0..60 {
        let engine = &engines[seed % engines.len()];
        let module = Module::new(engine, crate::programs::program(seed as u64)).unwrap();
        for text in COUNTED {
            trapped += u32::from(check(&format!("program {seed}"), &module, text, true));
        }
    }
    println!("{trapped} trapped");
}

/// A probe at each of a module's instructions.
fn everywhere(module: &Module, kind: &Kind) -> Vec<Probe> {
    let bodies = module.functions().filter_map(|function| Some((function.index(), function.body()?)));
    let places = bodies.flat_map(|(function, body)| {
        let start = body.range().start;
        let offsets = body.instructions().map(move |at| (at.offset() - start) as u32);
        offsets.map(move |offset| Location { function, place: Place::Instruction { offset } })
    });
    let specs: Vec<ProbeSpec> = places.map(|location| ProbeSpec { location, kind: kind.clone() }).collect();
    module.probes(&specs).into_iter().flatten().collect()
}

/// Two monitors at the same places, one of which is called, in two stores on two threads, while a
/// third one toggles other probes of these places.
#[test]
fn each_store_counts_its_own_beside_others_and_while_probes_are_switched() {
    let engine = Engine::default();
    let bytes = wat::parse_str(PROGRAM.replace("LAST", "29")).unwrap();
    let alone = |calls: usize| {
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let monitors = [COUNTED[0], COUNTED[5], CALLED[3]].map(|text| monitor(&engine, text).always_call());
        let mut run = Run::new(&module, &monitors);
        (0..calls).for_each(|_| drop(run.call()));
        run.contents()
    };
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let calls = [40, 70];
    let (is_done, begin) = (AtomicBool::new(false), Barrier::new(3));
    std::thread::scope(|scope| {
        let runs = calls.map(|calls| {
            let (engine, module, begin) = (&engine, &module, &begin);
            scope.spawn(move || {
                let monitors = [COUNTED[0], COUNTED[5], CALLED[3]].map(|text| monitor(engine, text));
                let mut run = Run::new(module, &monitors);
                begin.wait();
                for call in 0..calls {
                    run.call().unwrap();
                    if call % 16 == 0 {
                        run.contents();
                    }
                }
                run.contents()
            })
        });
        let (module, is_done, begin) = (&module, &is_done, &begin);
        let toggler = scope.spawn(move || {
            begin.wait();
            let mut random = SmallRng::seed_from_u64(5);
            let probes = everywhere(module, &Kind::Count);
            let empty = everywhere(module, &Kind::Empty);
            while !is_done.load(Ordering::Acquire) {
                for probes in [&probes, &empty] {
                    let probe = &probes[random.random_range(0..probes.len())];
                    if random.random_range(0..2) == 0 {
                        probe.activate().unwrap();
                    } else {
                        probe.deactivate().unwrap();
                    }
                }
            }
        });
        let contents = runs.map(|run| run.join());
        is_done.store(true, Ordering::Release);
        toggler.join().unwrap();
        for (contents, calls) in contents.into_iter().zip(calls) {
            assert_same(&format!("{calls} calls"), &contents.unwrap(), &alone(calls));
        }
    });
}

/// A number beyond the current end of the monitor's memory does not count as a number, nor does one
/// in a memory that the monitor shares with a library.
#[test]
fn numbers_that_are_not_the_monitors_own_are_not_counted() {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM.replace("LAST", "20")).unwrap();
    let library = Module::new(
        &engine,
        r#"(module (memory (export "memory") 1) (global (export "g") (mut i32) (i32.const 0)))"#,
    )
    .unwrap();
    for text in [
        r#"(module (import "library" "memory" (memory 1)) (func (export "wasm:opcode:end")
            (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))))"#,
        r#"(module (import "library" "g" (global $g (mut i32))) (func (export "wasm:opcode:end")
            (global.set $g (i32.add (global.get $g) (i32.const 1)))))"#,
        r#"(module (import "library" "memory" (memory 1)) (func (export "wasm:opcode:end")))"#,
    ] {
        let monitor = Module::new(&engine, text).unwrap();
        let monitor = MonitorModule::new(monitor, vec![("library".to_owned(), library.clone())]).unwrap();
        let mut run = Run::new(&module, &[monitor]);
        run.call().unwrap();
        let is_empty = text.ends_with("end\")))");
        let attached = &run.attached[0];
        assert_eq!(attached.counters(), if is_empty { attached.probes() } else { 0 }, "{text}");
    }
    let beyond = r#"(func (export "wasm:opcode:end")
        (i32.store (i32.const 0xfffd) (i32.add (i32.load (i32.const 0xfffd)) (i32.const 1))))"#;
    let mut run = Run::new(&module, &[monitor(&engine, beyond)]);
    assert!(run.call().is_err_and(|error| error.contains("out of bounds")));
    assert_eq!(run.attached[0].counters(), 0);
}
