//! Random programs: rules after instructions are compared with hooks for the same events, and
//! variables of frames with their expected values.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rand::prelude::*;
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_hooks::after;
use wasm_jit_whamm::lang::{ReportedValue, Script, Value};
use wasm_jit_whamm::monitor_module::MonitorModule;

use super::statements::program;

/// Counts of completions, by function and offset.
type Counts = BTreeMap<(u32, u32), u64>;

/// The first rule is for all instructions that programs have.
const SCRIPT: &str = "wasm:opcode:b*|c*|d*|e*|g*|i32.*|if|l*|n*|r*|t[hr]*|u*:semantic_after { report var after: u32; after++; }
    wasm:opcode:local*|global*|call|nop|drop|i32*:after { report var next: u32; next++; }
    report var wrong: u32; var calls: u32; frame var mine: u32; frame var name: u32 = 9;
    wasm:func:entry { if (mine != 0 || name != 9) { wrong++; } calls++; mine = calls; name = fid + 10; }
    wasm:opcode:*:before { if (mine == 0 || mine > calls || name != fid + 10) { wrong++; } }
    wasm:func:exit { if (mine == 0 || name != fid + 10) { wrong++; } }";

#[test]
fn completions_are_those_of_hooks_and_frames_are_apart() {
    let script = Script::new("test.mm", SCRIPT.as_bytes(), &[]).unwrap();
    let engine = Engine::default();
    let monitor = Module::from_binary(&engine, script.module()).unwrap();
    let mut random = StdRng::seed_from_u64(14);
    let (mut events, mut branches) = (0, 0);
    for _ in 0..150 {
        let text = program(&mut random);
        let module = Module::new(&engine, &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let monitor = MonitorModule::new(monitor.clone(), Vec::new()).unwrap();
        let mut store = Store::new(&engine, ());
        let mut attached = monitor.attach(&mut store, &mut Linker::new(&engine), &module).unwrap();
        let counted: Arc<Mutex<Counts>> = Arc::default();
        let counts = counted.clone();
        // A rule about a block is reported at the block's end, so blocks are not compared.
        let is_block = |operator: &Operator<'_>| {
            matches!(
                operator,
                Operator::Block { .. }
                    | Operator::Loop { .. }
                    | Operator::If { .. }
                    | Operator::TryTable { .. }
            )
        };
        let hook = after(
            &module,
            |site| !is_block(site.operator),
            move |event| *counts.lock().unwrap().entry((event.function, event.offset)).or_default() += 1,
        );
        let hook = hook.unwrap();
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
        // Some of them trap.
        let _ = run.call(&mut store, ());
        drop(hook);
        attached.finish(&mut store).unwrap();
        let instance = attached.instance(&mut store);
        let report = script.report(&store, instance).unwrap();
        assert_eq!(report.variables[0].value, ReportedValue::Value(Value::Int(0)), "wrong frames in {text}");
        let expected = counted.lock().unwrap().clone();
        let of = |rule: usize, with_zeros: bool| {
            let mut found = Counts::new();
            for site in &report.rules[rule].sites {
                let block = ["block", "loop", "if", "try_table"]
                    .map(|name| format!("wasm:opcode:{name}:semantic_after"));
                if let ReportedValue::Value(Value::Int(count)) = site.values[0]
                    && (count > 0 || with_zeros)
                    && !block.contains(&site.event)
                {
                    found.insert((site.function, site.offset), count as u64);
                }
            }
            found
        };
        let found = of(0, false);
        assert_eq!(found, expected, "{text}");
        // Instructions with one successor, by a second rule.
        for (place, count) in of(1, true) {
            assert_eq!(expected.get(&place).copied().unwrap_or(0), count, "{place:?} in {text}");
        }
        events += found.values().sum::<u64>();
        branches += report.rules[0].sites.iter().filter(|site| site.event.contains(":br")).count();
    }
    assert!(events > 100_000 && branches > 1000, "{events} events, {branches} branches");
}

/// The same script in the rewritten program prints the same report, even for programs that trap.
#[test]
fn rewritten_programs_report_what_is_observed_in_place() {
    let script = SCRIPT.replace("report var wrong", "report var operands: map<i32, u64>; report var wrong")
        + "wasm:opcode:i32.add|local.set(arg0: i32):before { operands[arg0]++; }
        wasm:opcode:i32.load|call:after(res0: i32) { operands[res0]++; }
        wasm:func:exit / fid > 1 / { operands[0 - 1]++; }
        @once wasm:block:start { operands[0 - 2]++; } @sample(30%) wasm:block:end { operands[0 - 3]++; }";
    let monitor = wasm_jit_whamm::lang::compile("test.mm", script.as_bytes(), &[]).unwrap();
    let mut random = StdRng::seed_from_u64(15);
    for _ in 0..100 {
        let text = program(&mut random);
        let mut printed = String::new();
        super::engine::run(&monitor, &[], &text, &mut printed, |_, _| {});
        let rewritten = super::engine::rewritten(&script, &text).unwrap();
        assert_eq!(rewritten, printed, "{text}");
        assert!(printed.contains("\nwrong,u32,,,,,0\n"), "{printed}");
    }
}
