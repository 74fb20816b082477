//! Monitor modules, compared with the monitors of `wasm_jit_monitors`, and their errors.

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_monitors::{Cell, Output, Session};
use wasm_jit_wasi::{OutputPipe, WasiCtx, WasiCtxBuilder, add_to_linker};
use wasm_jit_whamm::monitor_module::{Attached, MonitorError, MonitorModule, NameError, SignatureError};

/// Loops, branches of all kinds, calls, memory, several exits.
const PROGRAM: &str = r#"(module
    (memory 1)
    (type $unary (func (param i32) (result i32)))
    (table funcref (elem $sort $fib))
    (func $fib (param i32) (result i32)
        (if (i32.lt_u (local.get 0) (i32.const 2)) (then (return (local.get 0))))
        (i32.add (call $fib (i32.sub (local.get 0) (i32.const 1)))
            (call $fib (i32.sub (local.get 0) (i32.const 2)))))
    (func $sort (param i32) (result i32) (local i32 i32)
        (loop $fill
            (i32.store offset=64 (i32.shl (local.get 1) (i32.const 2))
                (i32.rem_u (i32.mul (local.get 1) (i32.const 7919)) (i32.const 101)))
            (br_if $fill (i32.lt_u (local.tee 1 (i32.add (local.get 1) (i32.const 1))) (local.get 0))))
        (block $done
            (loop $next
                (br_if $done (i32.eqz (local.get 1)))
                (local.set 1 (i32.sub (local.get 1) (i32.const 1)))
                (block $c (block $b (block $a
                    (br_table $a $b $c (i32.rem_u (local.get 1) (i32.const 4))))
                    (local.set 2 (i32.add (local.get 2) (i32.load offset=64 (i32.shl (local.get 1) (i32.const 2)))))
                    (br $next))
                    (local.set 2 (select (local.get 2) (local.get 1) (i32.and (local.get 1) (i32.const 8)))))
                (if (i32.and (local.get 1) (i32.const 1))
                    (then (local.set 2 (i32.xor (local.get 2) (i32.const 5))))
                    (else (nop)))
                (br $next)))
        (local.get 2))
    (func (export "run") (param i32)
        (drop (call $fib (local.get 0)))
        (drop (call_indirect (type $unary) (i32.add (local.get 0) (i32.const 40)) (i32.const 0)))
        (i64.store (i32.const 8) (i64.const 3))
        (drop (i32.load8_u (i32.const 8)))))"#;

const ARGUMENT: i32 = 13;

fn load(engine: &Engine, text: &str) -> Result<MonitorModule, MonitorError> {
    MonitorModule::new(Module::new(engine, text).unwrap(), Vec::new())
}

/// A run of a program with monitors.
struct Observed {
    store: Store<()>,
    attached: Vec<Attached>,
}

impl Observed {
    /// Attaches the monitors, runs the program, and ends them.
    #[track_caller]
    fn run(program: &str, monitors: &[&str]) -> Self {
        let engine = Engine::default();
        let module = Module::new(&engine, program).unwrap();
        let mut store = Store::new(&engine, ());
        let attach = |text: &&str| {
            load(&engine, text).unwrap().attach(&mut store, &mut Linker::new(&engine), &module).unwrap()
        };
        let mut attached: Vec<Attached> = monitors.iter().map(attach).collect();
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
        run.call(&mut store, ARGUMENT).unwrap();
        for attached in &mut attached {
            attached.finish(&mut store).unwrap();
        }
        Self { store, attached }
    }

    fn global(&mut self, monitor: usize, name: &str) -> u64 {
        let global = self.attached[monitor].instance(&mut self.store).get_global(&self.store, name).unwrap();
        match global.get(&mut self.store) {
            wasm_jit::Val::I32(value) => (value as u32).into(),
            wasm_jit::Val::I64(value) => value as u64,
            other => panic!("{other:?}"),
        }
    }

    /// The words of a monitor's memory from an address on.
    fn words(&mut self, address: usize, count: usize) -> Vec<u32> {
        let memory = self.attached[0].instance(&mut self.store).get_memory(&self.store, "memory").unwrap();
        let words = memory.data(&self.store)[address..].chunks_exact(4).take(count);
        words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

/// The report of a monitor of `wasm_jit_monitors`.
struct Truth(Session);

impl Truth {
    fn by(monitors: &[&str]) -> Self {
        let engine = Engine::default();
        let module = Module::new(&engine, PROGRAM).unwrap();
        let session = Session::new(&module, Output::none());
        for monitor in monitors {
            session.enable(monitor.parse().unwrap()).unwrap();
        }
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
        run.call(&mut store, ARGUMENT).unwrap();
        Self(session)
    }

    fn value(&self, monitor: &str, name: &str) -> u64 {
        self.0.report(monitor).unwrap().get(name).unwrap()
    }

    /// Of the monitor `opcodes`: how often an instruction was executed.
    fn times(&self, opcode: &str) -> u64 {
        let report = self.0.report("opcodes").unwrap();
        let table = report.get_table("by_opcode").unwrap();
        let at = table.column("opcode").position(|cell| *cell == Cell::from(opcode));
        match at.map(|at| table.column("times").nth(at).unwrap()) {
            Some(Cell::Int(times)) => *times as u64,
            None => 0,
            other => panic!("{other:?}"),
        }
    }
}

/// A monitor that counts with one counter for each rule.
fn counting(rules: &[&str]) -> String {
    let counters = rules.iter().enumerate().map(|(number, rule)| {
        format!(
            r#"(global $g{number} (export "g{number}") (mut i64) (i64.const 0))
            (func (export "{rule}")
                (global.set $g{number} (i64.add (global.get $g{number}) (i64.const 1))))"#
        )
    });
    format!("(module {})", counters.collect::<String>())
}

/// A 4-byte counter for each site, created at match time, preceded by the site's function and
/// offset.
const HOTNESS: &str = r#"(module
    (memory (export "memory") 4)
    (global $next (export "next") (mut i32) (i32.const 0))
    (func (export "$alloc") (param $fid i32) (param $pc i32) (result i32)
        (i32.store (global.get $next) (local.get $fid))
        (i32.store offset=4 (global.get $next) (local.get $pc))
        (global.set $next (i32.add (global.get $next) (i32.const 12)))
        (i32.sub (global.get $next) (i32.const 4)))
    (func (export "wasm:opcode:* ($alloc(fid, pc), )") (param $counter i32)
        (i32.store (local.get $counter) (i32.add (i32.load (local.get $counter)) (i32.const 1)))))"#;

#[test]
fn every_instruction_has_a_counter_of_match_time() {
    let mut observed = Observed::run(PROGRAM, &[HOTNESS]);
    let sites = observed.global(0, "next") as usize / 12;
    let words = observed.words(0, 3 * sites);
    let mut counts: Vec<(u64, u64)> =
        words.chunks(3).map(|site| (site[1].into(), site[2].into())).filter(|site| site.1 > 0).collect();
    let truth = Truth::by(&["hotness"]);
    let report = truth.0.report("hotness").unwrap();
    let table = report.get_table("by_instruction").unwrap();
    let number = |cell: &Cell| match cell {
        Cell::Int(value) => *value as u64,
        Cell::Hex(value) => *value,
        other => panic!("{other:?}"),
    };
    let times = table.column("times").map(number);
    let mut expected: Vec<u64> = times.filter(|times| *times > 0).collect();
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), truth.value("hotness", "instructions"));
    expected.sort_unstable();
    counts.sort_unstable_by_key(|(_, count)| *count);
    assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), expected);
}

#[test]
fn branches_are_counted_by_their_operand() {
    let monitor = r#"(module
        (global $taken (export "taken") (mut i64) (i64.const 0))
        (global $all (export "all") (mut i64) (i64.const 0))
        (func (export "wasm:opcode:br_if|if|select (arg0)") (param i32)
            (global.set $all (i64.add (global.get $all) (i64.const 1)))
            (global.set $taken (i64.add (global.get $taken) (i64.extend_i32_u (i32.ne (local.get 0) (i32.const 0))))))
        (global $default (export "default") (mut i64) (i64.const 0))
        (func (export "wasm:opcode:br_table(arg0, num_targets)") (param i32 i64)
            (global.set $all (i64.add (global.get $all) (i64.const 1)))
            (global.set $default (i64.add (global.get $default) (i64.extend_i32_u
                (i64.ge_u (i64.extend_i32_u (local.get 0)) (local.get 1)))))))"#;
    let mut observed = Observed::run(PROGRAM, &[monitor]);
    let truth = Truth::by(&["branches", "opcodes"]);
    assert_eq!(observed.global(0, "all"), truth.value("branches", "branches"));
    let with_condition = truth.times("br_if") + truth.times("if") + truth.times("select");
    assert!((1..with_condition).contains(&observed.global(0, "taken")));
    let tables = truth.times("br_table");
    assert_eq!(observed.global(0, "all"), with_condition + tables);
    // Of 53 iterations with the indices 52 to 0 modulo 4, those with 2 and 3; 0 and 1 have targets.
    assert_eq!((tables, observed.global(0, "default")), (53, 26));
}

#[test]
fn instructions_are_counted_by_name_and_pattern() {
    let rules =
        ["wasm:opcode:*.load*|*.store*:before", "wasm:opcode:i32.*", "wasm:opcode:call", "wasm:opcode:*"];
    let mut observed = Observed::run(PROGRAM, &[&counting(&rules), &counting(&["wasm:opcode:end"])]);
    let truth = Truth::by(&["opcodes"]);
    let memory = ["i32.load", "i32.load8_u", "i32.store", "i64.store"].map(|name| truth.times(name));
    assert_eq!(observed.global(0, "g0"), memory.iter().sum::<u64>());
    assert_eq!(observed.global(0, "g2"), truth.times("call"));
    assert_eq!(observed.global(0, "g3"), truth.value("opcodes", "instructions"));
    // Another monitor counts at the same places.
    assert_eq!(observed.global(1, "g0"), truth.times("end"));
    assert!(observed.global(0, "g1") > observed.global(0, "g0"));
}

#[test]
fn functions_and_blocks_begin_and_end() {
    let rules = ["wasm:func:entry", "wasm:func:exit ()", "wasm:block:start", "wasm:block:end"];
    let sums = r#"(module
        (global $g (export "instructions") (mut i64) (i64.const 0))
        (func (export "wasm:block:end (instr_count)") (param i64)
            (global.set $g (i64.add (global.get $g) (local.get 0)))))"#;
    let mut observed = Observed::run(PROGRAM, &[&counting(&rules), sums]);
    let truth = Truth::by(&["icount", "calls"]);
    let calls = truth.value("calls", "calls") + 1;
    assert_eq!((observed.global(0, "g0"), observed.global(0, "g1")), (calls, calls));
    assert_eq!(observed.global(0, "g2"), observed.global(0, "g3"));
    // No block is left early.
    assert_eq!(observed.global(1, "instructions"), truth.value("icount", "instructions"));
}

#[test]
fn predicates_choose_places_once() {
    let monitor = r#"(module
        (memory (export "whamm_buffer") 1)
        (global (export "whamm_buffer:start") i32 (i32.const 100))
        (global (export "whamm_buffer:max") i32 (i32.const 3))
        (global $asked (export "asked") (mut i32) (i32.const 0))
        (global $length (export "length") (mut i32) (i32.const 0))
        (global $calls (export "calls") (mut i32) (i32.const 0))
        (func (export "$p") (param $name i32) (param $length i32) (result i32)
            (global.set $asked (i32.add (global.get $asked) (i32.const 1)))
            (global.set $length (local.get $length))
            (i32.eq (i32.and (i32.load (local.get $name)) (i32.const 0xffffff)) (i32.const 0x626966)))
        (func (export "wasm:opcode:call / $p(target_fn_name) / ()")
            (global.set $calls (i32.add (global.get $calls) (i32.const 1))))
        (func (export "$no") (param i32) (result i32) (i32.const 0))
        (func (export "wasm:opcode:* / $no(fid) / ($missing())") (param f32) unreachable)
        (func (export "$missing") (result f32) unreachable))"#;
    let mut observed = Observed::run(PROGRAM, &[monitor]);
    assert_eq!(observed.global(0, "asked"), 3, "the calls in the program's text");
    assert_eq!(observed.global(0, "length"), 3);
    assert_eq!(observed.global(0, "calls"), Truth::by(&["opcodes"]).times("call"));
    assert_eq!(observed.attached[0].probes(), 3);
}

#[test]
fn functions_that_are_not_called_have_no_probes() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (func $called (nop)) (func $not_called (nop) (nop)) (func (export "run") (call $called)))"#,
    )
    .unwrap();
    let monitor = r#"(module
        (global $times (export "times") (mut i32) (i32.const 0))
        (func (export "wasm:opcode:nop") (global.set $times (i32.add (global.get $times) (i32.const 1)))))"#;
    let mut store = Store::new(&engine, ());
    let observe = |store: &mut Store<()>| {
        load(&engine, monitor).unwrap().attach(store, &mut Linker::new(&engine), &module).unwrap()
    };
    let before = observe(&mut store);
    assert_eq!(before.probes(), 0);
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap();
    assert_eq!(before.probes(), 1);
    // The functions of an instance may be running.
    let during = observe(&mut store);
    assert_eq!(during.probes(), 3);
    run.call(&mut store, ()).unwrap();
    for (attached, times) in [(before, 2), (during, 1)] {
        let global = attached.instance(&mut store).get_global(&store, "times").unwrap();
        assert_eq!(global.get(&mut store).i32(), Some(times));
    }
}

#[test]
fn accesses_have_their_addresses_and_types_choose() {
    let monitor = r#"(module
        (global $sum (export "sum") (mut i64) (i64.const 0))
        (global $wide (export "wide") (mut i64) (i64.const 0))
        (func (export "wasm:opcode:*.store (arg1, offset, align)") (param i32 i32 i32)
            (global.set $sum (i64.add (global.get $sum)
                (i64.extend_i32_u (i32.add (local.get 0) (local.get 1))))))
        (func (export "wasm:opcode:*.store (arg0)") (param i64)
            (global.set $wide (i64.add (global.get $wide) (local.get 0)))))"#;
    let mut observed = Observed::run(PROGRAM, &[monitor]);
    let words: u64 = (0..53).map(|index| 64 + 4 * index).sum();
    assert_eq!(observed.global(0, "sum"), words + 8);
    assert_eq!(observed.global(0, "wide"), 3, "only one store is of an i64");
}

#[test]
fn locals_and_immediates_are_passed() {
    let monitor = r#"(module
        (global $largest (export "largest") (mut i32) (i32.const 0))
        (global $frames (export "frames") (mut i32) (i32.const 0))
        (global $last (mut i64) (i64.const 0))
        (func (export "wasm:func:entry (local0, frame)") (param i32 i64)
            (if (i32.gt_u (local.get 0) (global.get $largest)) (then (global.set $largest (local.get 0))))
            (if (i64.ne (local.get 1) (global.get $last))
                (then (global.set $frames (i32.add (global.get $frames) (i32.const 1)))))
            (global.set $last (local.get 1)))
        (global $ones (export "ones") (mut i64) (i64.const 0))
        (func (export "wasm:opcode:i32.const (imm0)") (param i64)
            (if (i64.eq (local.get 0) (i64.const 7919))
                (then (global.set $ones (i64.add (global.get $ones) (i64.const 1)))))))"#;
    let mut observed = Observed::run(PROGRAM, &[monitor]);
    assert_eq!(observed.global(0, "largest"), 53);
    assert!(observed.global(0, "frames") > 1);
    assert_eq!(observed.global(0, "ones"), 53);
}

#[test]
fn begin_and_end_are_called_once_in_order() {
    let monitor = r#"(module
        (global $order (export "order") (mut i32) (i32.const 0))
        (func $add (param i32)
            (global.set $order (i32.add (i32.mul (global.get $order) (i32.const 10)) (local.get 0))))
        (func (export "wasm:exit") (call $add (i32.const 4)))
        (func (export "wasm:end: ()") (call $add (i32.const 3)))
        (func (export "wasm:begin: (pc)") (param i32) (call $add (i32.const 1)))
        (func (export "$where") (param i32) (result i32) (local.get 0))
        (func (export "wasm:func:entry / $where(fid) / ()")
            (if (i32.eq (global.get $order) (i32.const 1)) (then (call $add (i32.const 2))))))"#;
    let mut observed = Observed::run(PROGRAM, &[monitor]);
    let Observed { store, attached } = &mut observed;
    attached[0].finish(store).unwrap();
    assert_eq!(observed.global(0, "order"), 1234);
}

#[test]
fn libraries_are_linked_and_print() {
    let engine = Engine::default();
    let library = r#"(module
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\05\00\00\00")
        (data (i32.const 16) "done\n")
        (func (export "print") (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
    let monitor =
        r#"(module (import "printer" "print" (func $print)) (func (export "wasm:exit") (call $print)))"#;
    let [library, monitor] = [library, monitor].map(|text| Module::new(&engine, text).unwrap());
    let monitor = MonitorModule::new(monitor, vec![("printer".to_owned(), library)]).unwrap();
    assert_eq!(monitor.rules().collect::<Vec<_>>(), ["wasm:exit"]);
    let output = OutputPipe::new(64 << 20);
    let mut store = Store::new(&engine, WasiCtxBuilder::new().stdout(output.clone()).build());
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |wasi: &mut WasiCtx| wasi).unwrap();
    let program = Module::new(&engine, PROGRAM).unwrap();
    let mut attached = monitor.attach(&mut store, &mut linker, &program).unwrap();
    attached.finish(&mut store).unwrap();
    assert_eq!(output.contents(), b"done\n");
}

#[test]
fn a_monitor_that_traps_ends_the_call() {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, ());
    let traps = r#"(module (func (export "wasm:opcode:call_indirect") unreachable))"#;
    let attached =
        load(&engine, traps).unwrap().attach(&mut store, &mut Linker::new(&engine), &module).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    let error = run.call(&mut store, ARGUMENT).unwrap_err();
    assert!(error.trap().is_some(), "{error}");
    assert!(error.to_string().contains("unreachable"), "{error}");
    // Without it, the program runs.
    drop(attached);
    run.call(&mut store, ARGUMENT).unwrap();
    // At match time, it is an error of the rule.
    let traps = r#"(module (func (export "$a") (result i32) unreachable)
        (func (export "wasm:func:entry ($a)") (param i32)))"#;
    let error =
        load(&engine, traps).unwrap().attach(&mut store, &mut Linker::new(&engine), &module).unwrap_err();
    assert!(matches!(&error, MonitorError::Call { call, .. } if call == "$a"), "{error}");
    run.call(&mut store, ARGUMENT).unwrap();
}

/// A script that observes accesses to memories of both kinds has two exports for each instruction,
/// and one of them has matches.
#[test]
fn variants_of_a_rule_are_not_unfit() {
    let engine = Engine::default();
    let unfit = |monitor: &MonitorModule, program: &str| {
        let mut store = Store::new(&engine, ());
        let (mut linker, _) = crate::printing::printing(&engine);
        let program = Module::new(&engine, program).unwrap();
        let attached = monitor.attach(&mut store, &mut linker, &program).unwrap();
        attached.unfit().iter().map(|unfit| unfit.export.clone()).collect::<Vec<_>>()
    };
    let script = b"report var m: map<u64, u64>; wasm:opcode:i32.load(effective_addr: u64):before { m[effective_addr]++; }";
    let compiled = wasm_jit_whamm::lang::compile("test.mm", script, &[]).unwrap();
    let monitor = MonitorModule::new(Module::from_binary(&engine, &compiled).unwrap(), Vec::new()).unwrap();
    assert_eq!(monitor.rules().filter(|rule| rule.starts_with("wasm:opcode:i32.load")).count(), 2);
    let program = "(module (memory 1) (func (drop (i32.load (i32.const 0)))))";
    assert_eq!(unfit(&monitor, program), [""; 0]);
    // A rule of its own is.
    let other = r#"(module (func (export "wasm:opcode:i32.load (arg0)") (param i64))
        (func (export "wasm:opcode:i32.load (offset)") (param i32)))"#;
    assert_eq!(unfit(&load(&engine, other).unwrap(), program), ["wasm:opcode:i32.load (arg0)"]);
}

#[test]
fn mistakes_are_errors_with_their_export() {
    let engine = Engine::default();
    let error = load(&engine, r#"(module (func (export "wasm:opcode:call (args)")))"#).unwrap_err();
    let MonitorError::Name { export, column: 19, reason: NameError::Value } = &error else {
        panic!("{error}")
    };
    assert_eq!(export, "wasm:opcode:call (args)");
    assert_eq!(error.to_string(), "the export `wasm:opcode:call (args)`, column 19: no value has this name");
    let error =
        load(&engine, r#"(module (func (export "wasm:func:entry (fid, pc)") (param i32)))"#).unwrap_err();
    let expected = "the export `wasm:func:entry (fid, pc)` has 1 parameters, but its values take 2";
    assert_eq!(error.to_string(), expected);
    #[track_caller]
    fn check(text: &str, expected: SignatureError) {
        match load(&Engine::default(), &format!("(module {text})")) {
            Err(MonitorError::Signature { reason, .. }) => assert_eq!(reason, expected),
            other => panic!("{other:?}"),
        }
    }
    let function = || "$a".to_owned();
    check(r#"(memory (export "wasm:exit") 1)"#, SignatureError::NoFunction);
    check(r#"(func (export "wasm:exit") (result i32) (i32.const 0))"#, SignatureError::Results);
    check(
        r#"(func (export "wasm:func:entry ($a)") (param i32))"#,
        SignatureError::NoCallee { function: function() },
    );
    let rule = r#"(func (export "wasm:func:entry ($a(arg0))") (param i32))"#;
    let a = r#"(func (export "$a") (param i32) (result i32) (i32.const 0))"#;
    check(&format!("{a} {rule}"), SignatureError::NotStatic { function: function() });
    let rule = r#"(func (export "wasm:func:entry ($a(pc, fid))") (param i32))"#;
    check(&format!("{a} {rule}"), SignatureError::Count { function: function(), parameters: 1, values: 2 });
    let rule = r#"(func (export "wasm:func:entry / $a(pc) / ($a(pc))") (param i64))"#;
    let name = "wasm:func:entry / $a(pc) / ($a(pc))".to_owned();
    check(&format!("{a} {rule}"), SignatureError::Type { function: name, number: 0 });
    let long = r#"(func (export "$a") (result i64) (i64.const 0))"#;
    let rule = r#"(func (export "wasm:func:entry / $a / ()"))"#;
    check(&format!("{long} {rule}"), SignatureError::Result { function: function() });
    check(r#"(func (export "wasm:func:entry (fname)") (param i32 i32))"#, SignatureError::String);
    check(r#"(func (export "wasm:func:exit (local0)") (param i32))"#, SignatureError::NoFrame);
    // Other exports are ignored.
    let other =
        r#"(module (func (export "wasm") (result i32) (i32.const 0)) (memory (export "whamm: (") 1))"#;
    assert_eq!(load(&engine, other).unwrap().rules().len(), 0);
    // Strings need a buffer.
    let strings = r#"(module (func (export "$a") (param i32 i32) (result i32) (i32.const 0))
        (func (export "wasm:func:entry / $a(fname) / ()")))"#;
    let mut store = Store::new(&engine, ());
    let program = Module::new(&engine, PROGRAM).unwrap();
    let attached = load(&engine, strings).unwrap().attach(&mut store, &mut Linker::new(&engine), &program);
    assert!(matches!(attached, Err(MonitorError::Buffer)));
}
