//! Runs a script of the upstream crate with its program in each target, and compares the reports
//! with each other and with what the crate expects.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_wasi::{OutputPipe, WasiCtx, WasiCtxBuilder, add_to_linker};
use wasm_jit_whamm::lang::{self, ReportedValue, Script, ScriptReport, Value};
use wasm_jit_whamm::monitor_module::MonitorModule;
use wasm_jit_whamm::rewrite;

use super::super::engine::{rows, rows_of};

/// The contexts of the program and of the monitor.
struct Contexts {
    program: WasiCtx,
    monitor: WasiCtx,
}

fn store(engine: &Engine) -> (Store<Contexts>, OutputPipe) {
    let printed = OutputPipe::new(1 << 30);
    let program = WasiCtxBuilder::new().build();
    // Its libraries print only if they are told to.
    let monitor = WasiCtxBuilder::new()
        .env("TO_CONSOLE", "true")
        .stdout(printed.clone())
        .stderr(printed.clone())
        .build();
    (Store::new(engine, Contexts { program, monitor }), printed)
}

fn linker(engine: &Engine, of_monitor: bool) -> Linker<Contexts> {
    let mut linker = Linker::new(engine);
    let added = match of_monitor {
        true => add_to_linker(&mut linker, |contexts: &mut Contexts| &mut contexts.monitor),
        false => add_to_linker(&mut linker, |contexts: &mut Contexts| &mut contexts.program),
    };
    added.unwrap();
    linker
}

/// Runs the program under a monitor; returns what was printed, and what `at_end` finds.
fn observe<T>(
    monitor: &[u8],
    libraries: &[(String, Vec<u8>)],
    program: &[u8],
    at_end: impl FnOnce(&mut Store<Contexts>, &wasm_jit::Instance) -> T,
) -> (String, T) {
    let engine = Engine::default();
    let load =
        |(name, bytes): &(String, Vec<u8>)| (name.clone(), Module::from_binary(&engine, bytes).unwrap());
    let libraries = libraries.iter().map(load).collect();
    let monitor = MonitorModule::new(Module::from_binary(&engine, monitor).unwrap(), libraries).unwrap();
    let module = Module::from_binary(&engine, program).unwrap();
    let (mut store, printed) = store(&engine);
    let mut attached = match monitor.attach(&mut store, &mut linker(&engine, true), &module) {
        Ok(attached) => attached,
        Err(error) => panic!("{error}"),
    };
    // A program that traps is observed, too.
    if let Ok(instance) = linker(&engine, false).instantiate(&mut store, &module)
        && let Ok(start) = instance.get_typed_func::<(), ()>(&mut store, "_start")
    {
        let _ = start.call(&mut store, ());
    }
    let ended = attached.finish(&mut store);
    let instance = attached.instance(&mut store);
    let found = at_end(&mut store, instance);
    let mut text = String::from_utf8_lossy(&printed.contents()).into_owned();
    if let Err(error) = ended {
        let _ = write!(text, "{error}");
    }
    (text, found)
}

/// What the program with the rules in it prints, apart from what it prints otherwise.
fn rewritten(source: &[u8], program: &[u8]) -> Result<String, String> {
    let engine = Engine::default();
    let module = Module::from_binary(&engine, program).unwrap();
    let instrumented =
        rewrite::instrument("upstream.mm", source, &module).map_err(|error| error.to_string())?;
    let module = Module::from_binary(&engine, &instrumented).map_err(|error| error.to_string())?;
    let (mut store, printed) = store(&engine);
    // Only the report goes to standard error.
    let mut context = WasiCtxBuilder::new();
    store.data_mut().program = context.stderr(printed.clone()).build();
    let instance =
        linker(&engine, false).instantiate(&mut store, &module).map_err(|error| error.to_string())?;
    for name in ["_start", "whamm:report"] {
        if let Ok(function) = instance.get_typed_func::<(), ()>(&mut store, name) {
            let _ = function.call(&mut store, ());
        }
    }
    Ok(String::from_utf8_lossy(&printed.contents()).into_owned())
}

/// The reported values that are not zero: name, function and value, in order.
fn values(report: &ScriptReport) -> Vec<String> {
    let text = |value: &ReportedValue| match value {
        ReportedValue::Value(value) => text(value),
        ReportedValue::Map(entries) => {
            let mut all: Vec<_> =
                entries.iter().map(|(key, value)| format!("{}->{}", text(key), text(value))).collect();
            all.sort();
            all.join(";")
        }
    };
    let mut all: Vec<_> = report
        .variables
        .iter()
        .map(|variable| (&variable.name, String::new(), text(&variable.value)))
        .collect();
    for rule in &report.rules {
        for site in &rule.sites {
            let values = rule.variables.iter().zip(&site.values);
            all.extend(values.map(|(name, value)| (name, site.function.to_string(), text(value))));
        }
    }
    listed(all)
}

fn text(value: &Value) -> String {
    match value {
        Value::Int(value) => value.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Float(value) => format!("{value:e}"),
        Value::Text(text) => text.trim_end().to_owned(),
        Value::Tuple(fields) => format!("({})", fields.iter().map(text).collect::<Vec<_>>().join(",")),
        other => format!("{other:?}"),
    }
}

/// A row with its floats in one form: with as many digits as all targets print.
fn normal(row: &str) -> String {
    let token = |token: &str| {
        let is_float = token.contains(['.', 'e', 'f', 'N', 'n']);
        match token.parse::<f64>() {
            Ok(number) if is_float && number.is_nan() => "nan".to_owned(),
            // The largest number is rounded up when it is printed.
            Ok(number) if is_float && number.abs() > 1.797e308 => format!("{}inf", number.signum()),
            Ok(number) if is_float && number.fract() == 0.0 && number.abs() < 1e15 => {
                format!("{}", number as i64)
            }
            Ok(number) if is_float => format!("{number:.4e}"),
            _ => token.to_owned(),
        }
    };
    let mut all = String::new();
    for part in row.split_inclusive([' ', ',', '(', ')', ';', '>']) {
        let end = part.strip_suffix([' ', ',', '(', ')', ';', '>']).unwrap_or(part);
        all += &token(end);
        all += &part[end.len()..];
    }
    all
}

/// The rows of a report, in the form in which other targets print them.
fn rows_in_place(report: &ScriptReport) -> Vec<String> {
    fn exact(value: Value) -> Value {
        match value {
            Value::Float(number) => Value::Text(format!("{number:e}")),
            Value::Tuple(fields) => Value::Tuple(fields.into_iter().map(exact).collect()),
            other => other,
        }
    }
    let of = |value: &mut ReportedValue| {
        *value = match value.clone() {
            ReportedValue::Value(value) => ReportedValue::Value(exact(value)),
            ReportedValue::Map(entries) => {
                let pair = |(key, value): (Value, Value)| (exact(key), exact(value));
                ReportedValue::Map(entries.into_iter().map(pair).collect())
            }
        };
    };
    let mut report = report.clone();
    report.variables.iter_mut().for_each(|variable| of(&mut variable.value));
    let sites = report.rules.iter_mut().flat_map(|rule| &mut rule.sites);
    sites.flat_map(|site| &mut site.values).for_each(of);
    rows_of(&report)
}

fn listed<N: AsRef<str>>(values: Vec<(N, String, String)>) -> Vec<String> {
    let is_zero = |value: &str| matches!(value, "0" | "" | "false");
    let mut all: Vec<_> = values
        .into_iter()
        .map(|(name, function, value)| (name, function, normal(&value)))
        .filter(|(.., value)| !is_zero(value))
        .map(|(name, function, value)| format!("{} {function} {value}", name.as_ref()))
        .collect();
    all.sort();
    all
}

/// The values that the crate expects, in the same form; `None` if it expects no report.
fn expected(text: &str) -> Option<Vec<String>> {
    let (_, report) = text.split_once("REPORT CSV FLUSH")?;
    let mut all: Vec<(String, String, String)> = Vec::new();
    for line in report.lines().skip(2) {
        let fields: Vec<_> = line.split(", ").collect();
        let Some(script) = fields.iter().position(|field| field.starts_with("script0")) else { continue };
        let is_number = |text: &str| text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit());
        // Names of functions may contain commas.
        let place = (script + 2..fields.len() - 1)
            .find(|at| is_number(fields[*at]) && is_number(fields[*at + 1]))
            .expect("a function and an offset");
        let ty = fields[3];
        let value = fields[place + 3..].join(", ");
        let value = match ty {
            _ if ty.starts_with("map") && value != "empty map" => {
                let mut entries: Vec<_> = value.split(';').map(|entry| entry.replace(", ", ",")).collect();
                entries.sort();
                entries.join(";")
            }
            _ if value == "empty map" => String::new(),
            _ if value.starts_with('(') => value.replace("; ", ","),
            _ => value,
        };
        all.push((fields[2].to_owned(), fields[place].to_owned(), value));
    }
    Some(listed(all))
}

/// The results of a script's run in its targets.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The targets in which it has run.
    pub(super) targets: Vec<&'static str>,
    /// The reason why the program with the rules in it is refused, if it is.
    pub(super) not_rewritten: String,
    /// Whether the report is compared with that of the other compiler.
    pub(super) is_compared: bool,
    /// Differences between targets.
    pub(super) between_targets: String,
    /// Differences from what the other compiler reports in each of its targets.
    pub(super) from_upstream: String,
}

/// Runs a script that compiles.
pub(super) fn run(tests: &Path, path: &Path, source: &[u8], libraries: &[(String, Vec<u8>)]) -> Outcome {
    let mut outcome = Outcome::default();
    let folder = path.parent().expect("a directory");
    let name = path.file_name().expect("a name").to_string_lossy();
    let Ok(app) = fs::read_to_string(folder.join(format!("app/{name}.app"))) else { return outcome };
    let program = fs::read(tests.parent().expect("a directory").join(app.trim())).expect("a program");
    let borrowed: Vec<_> = libraries.iter().map(|(name, bytes)| (&name[..], &bytes[..])).collect();
    let mut reports: Vec<(&str, Vec<String>)> = Vec::new();
    let mut found = None;
    let mut printed = String::new();
    if let Ok(script) = Script::new("upstream.mm", source, &borrowed) {
        let (output, report) = observe(script.module(), libraries, &program, |store, instance| {
            script.has_report().then(|| script.report(&mut *store, instance).unwrap())
        });
        outcome.targets.push("in place");
        if let Some(report) = &report {
            reports.push(("in place", rows_in_place(report)));
        }
        printed = output;
        found = report;
    }
    if let Ok(module) = lang::compile("upstream.mm", source, &borrowed) {
        let (output, ()) = observe(&module, libraries, &program, |_, _| ());
        outcome.targets.push("monitor module");
        match output.split_once("name,type,event") {
            Some((before, _)) => {
                reports.push(("monitor module", rows(&output[before.len()..])));
                if before != printed {
                    let _ = writeln!(outcome.between_targets, "printed {printed:?} and {before:?}");
                }
            }
            None if output != printed => {
                let _ = writeln!(outcome.between_targets, "printed {printed:?} and {output:?}");
            }
            None => {}
        }
    }
    if libraries.is_empty() {
        match rewritten(source, &program) {
            Ok(output) => {
                outcome.targets.push("rewritten");
                if output.contains("name,type,event") {
                    reports.push(("rewritten", rows(&output)));
                }
            }
            Err(error) => outcome.not_rewritten = error,
        }
    }
    for pair in reports.windows(2) {
        let rows = |index: usize| pair[index].1.iter().map(|row| normal(row)).collect::<Vec<_>>();
        let (first, second) = (rows(0), rows(1));
        if first != second {
            let differ = first.iter().zip(&second).find(|(one, other)| one != other);
            let names = (pair[0].0, pair[1].0, first.len(), second.len());
            let _ = writeln!(outcome.between_targets, "{names:?} {differ:?}");
        }
    }
    let expectation = |target: &str, ending: &str| {
        fs::read_to_string(folder.join(format!("expected/{target}/{name}.{ending}"))).ok()
    };
    // The targets of the other compiler differ as well.
    let mut unequal = Some(String::new());
    for target in ["rewriting", "wei"] {
        let expected_text = expectation(target, "exp").filter(|_| expectation(target, "err").is_none());
        let (Some(text), true) = (expected_text, outcome.targets.contains(&"in place")) else { continue };
        let before = text.split("\n====").next().unwrap_or_default();
        let before = if before.starts_with("====") { "" } else { before.trim() };
        outcome.is_compared = true;
        let values = found.as_ref().map(values).unwrap_or_default();
        let expected = expected(&text).unwrap_or_default();
        if values == expected && printed.trim() == before {
            unequal = None;
        } else if let Some(unequal) = &mut unequal {
            let missing: Vec<_> = expected.iter().filter(|value| !values.contains(value)).take(4).collect();
            let more: Vec<_> = values.iter().filter(|value| !expected.contains(value)).take(4).collect();
            let counts = (values.len(), expected.len());
            let _ =
                writeln!(unequal, "{target}: {counts:?} {missing:?} {more:?}, {printed:?} for {before:?}");
        }
    }
    outcome.from_upstream = unequal.unwrap_or_default();
    outcome
}
