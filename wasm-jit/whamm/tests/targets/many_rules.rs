//! Scripts with many rules: predicates that compare the place with constants are evaluated only
//! where they may hold, and those that depend on the function once for each function.

use std::fmt::Write;

use wasm_encoder::Section;
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::wasmparser::{Parser, Payload};
use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_whamm::lang::Script;
use wasm_jit_whamm::monitor_module::MonitorModule;

const FUNCTIONS: u32 = 50;

/// A chain of calls, whose functions have names, constants and memory accesses.
fn program() -> String {
    let mut functions = String::new();
    for number in 0..FUNCTIONS {
        let next = if number + 1 < FUNCTIONS { format!("(call $f{})", number + 1) } else { String::new() };
        let _ = write!(
            functions,
            "(func $f{number} {next}
                (drop (i64.add (i64.const -{number}) (i64.load offset={number} (i32.const {number})))))"
        );
    }
    format!("(module (memory 1) {functions} (export \"run\" (func $f0)))")
}

/// The module without its custom sections.
pub(crate) fn without_sections(module: &[u8]) -> Vec<u8> {
    let mut stripped = module[..8].to_vec();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.unwrap();
        if let (Some((id, range)), false) =
            (payload.as_section(), matches!(payload, Payload::CustomSection(_)))
        {
            wasm_encoder::RawSection { id, data: &module[range.start as usize..range.end as usize] }
                .append_to(&mut stripped);
        }
    }
    stripped
}

/// The functions of a monitor that are called when it is matched: their names begin with `$`.
fn called_at_match(module: &[u8]) -> Vec<u32> {
    let sections = Parser::new(0).parse_all(module).filter_map(|payload| match payload.unwrap() {
        Payload::ExportSection(section) => Some(section.into_iter().map(Result::unwrap)),
        _ => None,
    });
    sections.flatten().filter(|export| export.name.starts_with('$')).map(|export| export.index).collect()
}

/// Attaches a script and runs the program; returns the report and the number of calls to functions
/// of the script when it was matched.
fn observe(script: &str, strips: bool) -> (String, u64) {
    let engine = Engine::default();
    let script = Script::new("many.mm", script.as_bytes(), &[]).unwrap();
    let bytes = if strips { without_sections(script.module()) } else { script.module().to_owned() };
    let monitor = Module::from_binary(&engine, &bytes).unwrap();
    let entry =
        |function: u32| ProbeSpec { location: Location { function, place: Place::Entry }, kind: Kind::Count };
    let specs: Vec<ProbeSpec> = called_at_match(&bytes).into_iter().map(entry).collect();
    let calls: Vec<Probe> = monitor.probes(&specs).into_iter().map(Result::unwrap).collect();
    calls.iter().for_each(|probe| probe.activate().unwrap());
    let program = Module::new(&engine, program()).unwrap();
    let monitor = MonitorModule::new(monitor, Vec::new()).unwrap();
    let mut store = Store::new(&engine, ());
    let mut attached = monitor.attach(&mut store, &mut Linker::new(&engine), &program).unwrap();
    let instance = Instance::new(&mut store, &program, &[]).unwrap();
    instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    attached.finish(&mut store).unwrap();
    let instance = attached.instance(&mut store);
    let report = format!("{:#?}", script.report(&store, instance).unwrap());
    (report, calls.iter().map(Probe::count).sum())
}

/// Predicates of all kinds, each of which holds somewhere if the number is small.
fn rules(numbers: std::ops::Range<u32>) -> String {
    let mut script = "report var all: u64;\n".to_owned();
    for number in numbers {
        let (rule, body) = match number % 9 {
            0 => ("wasm:opcode:*:before / fid == N /", "all++;"),
            1 => ("wasm:func:entry / fname == \"fN\" /", "report var times: u32; times++;"),
            2 => ("wasm:opcode:call:before / target_fn_name == \"fN\" /", "report var times: u32; times++;"),
            3 => (
                "wasm:opcode:i64.const:before / imm0 == 0 - N && pc != 0 /",
                "report shared var s: u32; s++;",
            ),
            4 => (
                "wasm:opcode:*load:before / offset == N && fid == N /",
                "report var bytes: map<u32, u32>; bytes[effective_addr]++;",
            ),
            5 => (
                "wasm:opcode:*.add:after / (fid == N || N + 1 == fid) && pc > 3 /",
                "report var times: u32; times++;",
            ),
            7 => ("wasm:opcode:i64.const:before / fid == N && imm0 == 0 - N /", "all = all + 5;"),
            6 => ("wasm:func:exit / N == fid && fname == \"fN\" /", "all = all + 3;"),
            _ => (
                "wasm:block:start / fid == N && fname == \"fN\" && pc < 100 /",
                "report var times: u32; times++;",
            ),
        };
        let _ = writeln!(
            script,
            "{} {{ {body} }}",
            rule.replace("N + 1", &(number + 1).to_string()).replace('N', &number.to_string())
        );
    }
    script
}

#[test]
fn a_module_with_its_section_matches_the_same_places() {
    let script = rules(0..160);
    let (report, calls) = observe(&script, false);
    let (expected, all_calls) = observe(&script, true);
    assert_eq!(report, expected);
    // Rules 0 to 49 match: each calls its predicate at one place, or at all of a function.
    assert!(calls < all_calls / 10, "{calls} of {all_calls}");
}

#[test]
fn ten_thousand_predicates_are_evaluated_where_they_may_hold() {
    let (of_few, calls_of_few) = observe(&rules(0..160), false);
    let (of_many, calls_of_many) = observe(&rules(0..10_000), false);
    let all = |report: &str| report.split("name: \"all\"").nth(1).unwrap()[..200].to_owned();
    assert_eq!(all(&of_few), all(&of_many));
    assert_eq!(calls_of_many, calls_of_few);
}
