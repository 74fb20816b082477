//! Scripts as monitors of programs: their counts are the true ones.

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_whamm::lang::{self, ReportedValue, Script, ScriptReport, Value};
use wasm_jit_whamm::monitor_module::{Attached, MonitorModule};
use wasm_jit_whamm::rewrite::{self, RewriteError};

use super::{compile, printing};

/// The greatest common divisor: for 1071 and 462, three iterations; then two calls to it.
const PROGRAM: &str = r#"(module (memory 1)
    (func $gcd (param $a i32) (param $b i32) (result i32) (local $t i32)
        (block $done
            (loop $next
                (br_if $done (i32.eqz (local.get $b)))
                (local.set $t (i32.rem_u (local.get $a) (local.get $b)))
                (local.set $a (local.get $b))
                (local.set $b (local.get $t))
                (br $next)))
        (local.get $a))
    (func (export "run") (local $i i32)
        (i32.store offset=4 (i32.const 8) (call $gcd (i32.const 1071) (i32.const 462)))
        (i32.store8 offset=1 (i32.const 100) (call $gcd (i32.const 7) (i32.const 0)))
        (drop (i32.load (i32.const 12)))))"#;

/// The values that a script has after a run of a program, read from its memory, and compared with
/// those from a separate store, with what the same script prints as a separate module, and with
/// what the rewritten program prints.
#[track_caller]
pub(super) fn observe(script: &str, libraries: &[(&str, &str)], program: &str) -> ScriptReport {
    let binaries: Vec<(&str, Vec<u8>)> =
        libraries.iter().map(|(name, text)| (*name, wat::parse_str(text).unwrap())).collect();
    let binaries: Vec<(&str, &[u8])> = binaries.iter().map(|(name, binary)| (*name, &binary[..])).collect();
    let compiled = match Script::new("test.mm", script.as_bytes(), &binaries) {
        Ok(script) => script,
        Err(error) => panic!("{error}"),
    };
    let (mut found, mut nothing) = (None, String::new());
    run(compiled.module(), libraries, program, &mut nothing, |store, attached| {
        let instance = attached.instance(&mut *store);
        found = Some(compiled.report(store, instance).unwrap());
    });
    assert_eq!(nothing, "", "it prints nothing");
    let found = found.unwrap();
    assert_eq!(shared(&compiled, libraries, program), found, "{script}");
    let mut printed = String::new();
    let module = lang::compile("test.mm", script.as_bytes(), &binaries).unwrap();
    run(&module, libraries, program, &mut printed, |_, _| {});
    assert_eq!(rows_of(&found), rows(&printed), "{script}");
    match rewritten(script, program) {
        Ok(by_itself) => assert_eq!(by_itself, printed, "{script}"),
        Err(RewriteError::Script(_)) => assert!(script.contains("use "), "{script}"),
        Err(RewriteError::Unsupported { .. }) => assert!(program.contains("shared"), "{script}"),
        Err(error) => panic!("{error}"),
    }
    found
}

/// The text that the instrumented program prints.
pub(super) fn rewritten(script: &str, program: &str) -> Result<String, RewriteError> {
    let engine = Engine::default();
    let instrumented =
        rewrite::instrument("test.mm", script.as_bytes(), &Module::new(&engine, program).unwrap())?;
    let features = wasmparser::WasmFeatures::default();
    if let Err(error) = wasmparser::Validator::new_with_features(features).validate_all(&instrumented) {
        panic!("{error}\n{program}\n{script}");
    }
    let (mut linker, output) = printing::printing(&engine);
    let module = Module::from_binary(&engine, &instrumented).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = linker.allow_shadowing(true).instantiate(&mut store, &module).unwrap();
    let mut call =
        |name: &str| instance.get_typed_func::<(), ()>(&mut store, name).unwrap().call(&mut store, ());
    // A program that traps is observed, too.
    let _ = call("run");
    call("whamm:report").unwrap();
    call("whamm:report").unwrap();
    Ok(printing::text(&output))
}

/// Runs the export `run` of a program under a monitor; it may trap.
pub(super) fn run(
    monitor: &[u8],
    libraries: &[(&str, &str)],
    program: &str,
    printed: &mut String,
    at_end: impl FnOnce(&mut Store<()>, &Attached),
) {
    let engine = Engine::default();
    let features = wasmparser::WasmFeatures::default();
    wasmparser::Validator::new_with_features(features).validate_all(monitor).unwrap();
    let libraries =
        libraries.iter().map(|(name, text)| ((*name).to_owned(), Module::new(&engine, text).unwrap()));
    let monitor = Module::from_binary(&engine, monitor).unwrap();
    let monitor = MonitorModule::new(monitor, libraries.collect()).unwrap();
    let (mut linker, output) = printing::printing(&engine);
    let module = Module::new(&engine, program).unwrap();
    let mut store = Store::new(&engine, ());
    let mut attached = monitor.attach(&mut store, &mut linker, &module).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    // A program that traps is observed, too.
    let _ = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ());
    attached.finish(&mut store).unwrap();
    at_end(&mut store, &attached);
    *printed = printing::text(&output);
}

/// The values of the script in a separate store.
fn shared(script: &Script, libraries: &[(&str, &str)], program: &str) -> ScriptReport {
    let engine = Engine::default();
    let libraries =
        libraries.iter().map(|(name, text)| ((*name).to_owned(), Module::new(&engine, text).unwrap()));
    let monitor = Module::from_binary(&engine, script.module()).unwrap();
    let monitor = MonitorModule::new(monitor, libraries.collect()).unwrap();
    let module = Module::new(&engine, program).unwrap();
    let shared = monitor.share(Store::new(&engine, ()), &mut Linker::new(&engine), &module).unwrap();
    shared.activate().unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let _ = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ());
    shared.finish().unwrap();
    shared.read(|store, instance| script.report(&*store, instance)).unwrap()
}

/// Rows of a report: name, event, function, offset, key, value.
pub(super) fn rows_of(report: &ScriptReport) -> Vec<String> {
    let mut rows = Vec::new();
    let mut add = |name: &str, place: &str, value: &ReportedValue| match value {
        ReportedValue::Value(value) => rows.push(format!("{name} {place}  {}", text(value))),
        ReportedValue::Map(entries) => {
            let of = |(key, value): &(Value, Value)| format!("{name} {place} {} {}", text(key), text(value));
            rows.extend(entries.iter().map(of));
        }
    };
    for variable in &report.variables {
        add(&variable.name, &format!("{}  ", variable.rule.as_deref().unwrap_or("")), &variable.value);
    }
    for rule in &report.rules {
        for site in &rule.sites {
            for (name, value) in rule.variables.iter().zip(&site.values) {
                add(name, &format!("{} {} {}", site.event, site.function, site.offset), value);
            }
        }
    }
    rows
}

fn text(value: &Value) -> String {
    match value {
        Value::Int(value) => value.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Text(text) => text.clone(),
        Value::Bucket(start, _) => start.to_string(),
        Value::Tuple(fields) => {
            format!("({})", fields.iter().map(text).collect::<Vec<_>>().join(", "))
        }
        other => format!("{other:?}"),
    }
}

/// The rows that a module prints, in the same form.
pub(super) fn rows(printed: &str) -> Vec<String> {
    let (mut lines, mut is_quoted) = (vec![vec![String::new()]], false);
    let mut characters = printed.chars().peekable();
    while let Some(character) = characters.next() {
        let fields = lines.last_mut().unwrap();
        match character {
            // Two in a quoted field stand for one.
            '"' if is_quoted && characters.next_if_eq(&'"').is_some() => fields.last_mut().unwrap().push('"'),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            '\n' if !is_quoted => lines.push(vec![String::new()]),
            other => fields.last_mut().unwrap().push(other),
        }
    }
    let row = |fields: Vec<String>| {
        let [name, _, event, fid, pc, key, value] = fields.try_into().unwrap();
        format!("{name} {event} {fid} {pc} {key} {value}")
    };
    // After the header, and before the end of the last line.
    lines.pop();
    lines.into_iter().skip(1).map(row).collect()
}

/// Rows without the offset.
#[track_caller]
pub(super) fn check_program(script: &str, program: &str, expected: &[&str]) {
    assert_eq!(rows_without_offset(script, &[], program), expected, "{script}");
}

pub(super) fn rows_without_offset(script: &str, libraries: &[(&str, &str)], program: &str) -> Vec<String> {
    let report = observe(script, libraries, program);
    let without_offset = |row: String| {
        let fields: Vec<_> = row.splitn(5, ' ').collect();
        [&fields[..3], &fields[4..]].concat().join(" ").replace("  ", " ").replace("  ", " ")
    };
    rows_of(&report).into_iter().map(without_offset).collect()
}

/// The text that a script prints about a run of the program.
fn printed(script: &str) -> String {
    let mut printed = String::new();
    run(&compile(script), &[], PROGRAM, &mut printed, |_, _| {});
    printed
}

/// Compares rows without the header and, for sites, the offset in the function.
#[track_caller]
fn check(script: &str, expected: &[&str]) {
    let report = printed(script);
    let rows: Vec<_> = report
        .lines()
        .skip(1)
        .map(|row| {
            let fields: Vec<_> = row.split(',').collect();
            match fields.as_slice() {
                [name, _, event, fid, _, _, value] => format!("{name} {event} {fid} {value}"),
                _ => row.to_owned(),
            }
        })
        .collect();
    assert_eq!(rows, expected, "{script}");
}

#[test]
fn instructions_and_calls() {
    // Three iterations of eleven instructions; three in the last one. Two calls, the second of
    // which has a last iteration only. The remaining instructions surround them.
    check("report var n: u64; wasm:opcode:br:before { n++; }", &["n   3"]);
    check("report var n: u64; wasm:opcode:i32.eqz|i32.rem_u:before { n++; }", &["n   8"]);
    check("report var n: u64; wasm:func:entry { n++; } wasm:func:exit { n = n + 100; }", &["n   303"]);
    check("report var n: u64; wasm:opcode:*:before / fid == 1 / { n++; }", &["n   14"]);
}

#[test]
fn branches_by_site() {
    check(
        "wasm:opcode:*if:before { report var yes: u32; report var total: u32;\n\
         yes = yes + (taken as u32); total++; }",
        &["yes wasm:opcode:br_if:before 0 2", "total wasm:opcode:br_if:before 0 5"],
    );
}

#[test]
fn operands_locals_and_memory() {
    check("report var sum: u32; wasm:opcode:i32.rem_u:before { sum = sum + arg0; }", &["sum   630"]);
    check("report var sum: i32; wasm:func:entry(local1: i32) { sum = sum + local1; }", &["sum   462"]);
    check(
        "report var first: u32; report var bytes: u32;\n\
         wasm:opcode:*load*|*store*:before { if (first == 0) { first = effective_addr; } bytes = bytes + data_size; }",
        &["first   12", "bytes   9"],
    );
    check("report var n: i32; wasm:opcode:i32.rem_u:before / fid == 1 || arg0 == 21 / { n++; }", &["n   1"]);
}

#[test]
fn calls_by_target() {
    let report =
        printed("report var calls: map<(u32, u32), u32>; wasm:opcode:call:before { calls[(fid, imm0)]++; }");
    assert!(report.ends_with("calls,\"map<(u32, u32), u32>\",,,,\"(1, 0)\",2\n"), "{report}");
}

#[test]
fn quotients_out_of_range_fail_and_remainders_do_not() {
    check_program(
        "report var narrow: i32; report var wide: i64; var minus: i32 = -1; var minus_64: i64 = -1;
        wasm:opcode:br:before / -2147483648 % minus == 0 / {
            var least: i32 = -2147483648; var least_64: i64 = -9223372036854775808;
            narrow = narrow + 1 + least % minus;
            wide = wide + 1 + least_64 % minus_64;
        }",
        PROGRAM,
        &["narrow 3", "wide 3"],
    );
    // Modules trap, and so does the program.
    for (ty, least) in [("i8", -128), ("i16", -32768), ("i32", -2_147_483_648)] {
        let script = format!(
            "report var n: u32; var least: {ty} = {least}; var minus: {ty} = -1;
            wasm:opcode:br:before {{ n++; if (n == 2) {{ least = least / minus; }} }}"
        );
        check(&script, &["n   2"]);
        assert_eq!(rows(&rewritten(&script, PROGRAM).unwrap()), ["n     2"], "{ty}");
    }
}
