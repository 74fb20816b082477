//! The keys of reports in JSON and CSV: words in lower case, joined by `_`.

use serde_json::Value;
use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_monitors::{ALL, Format, Output, Report, Request, Session};

/// A program in which every monitor has something to observe.
pub(super) const PROGRAM: &str = r#"(module
    (import "env" "host" (func $host))
    (memory (export "memory") 1)
    (global $g (mut i32) (i32.const 0))
    (table funcref (elem $leaf))
    (type $leaf (func (param i32)))
    (func $malloc (export "malloc") (param i32) (result i32) (i32.const 64))
    (func $free (export "free") (param i32))
    (func $leaf (type $leaf)
        (i32.store (i32.const 8) (i32.load (i32.const 4)))
        (global.set $g (local.get 0)))
    (func (export "run") (param i32)
        (loop
            (call $free (call $malloc (i32.const 8)))
            (drop (call $malloc (i32.const 8)))
            (call $host)
            (call_indirect (type $leaf) (local.get 0) (i32.const 0))
            (block (block (br_table 0 1 (local.get 0))))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"#;

/// Runs the program.
pub(super) fn run(module: &Module) {
    let mut linker = Linker::new(module.engine());
    linker.func_wrap("env", "host", || {}).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, module).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 3).unwrap();
}

/// The report of a monitor, or `None` if the options do not fit together.
fn report(request: &str) -> Option<Report> {
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    let session = Session::new(&module, Output::none());
    let name = request.split('{').next().unwrap();
    for request in Request::list(request).ok()? {
        session.enable(request).ok()?;
    }
    run(&module);
    Some(session.report(name).unwrap())
}

fn is_key(key: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    key.starts_with(|first: char| first.is_ascii_lowercase()) && key.split('_').all(is_part)
}

fn wrong_keys(value: &Value, wrong: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            wrong.extend(map.keys().filter(|key| !is_key(key)).cloned());
            map.values().for_each(|value| wrong_keys(value, wrong));
        }
        Value::Array(values) => values.iter().for_each(|value| wrong_keys(value, wrong)),
        _ => {}
    }
}

#[test]
fn keys_of_all_monitors_are_in_snake_case() {
    #[cfg(feature = "latency")]
    let _alone = super::latency::alone();
    let mut wrong = Vec::new();
    for monitor in ALL {
        let flags = monitor.all_options().filter(|option| option.value.is_empty());
        let with_flags = flags.map(|flag| format!("{}{{{}}}", monitor.name, flag.name));
        let plain = report(monitor.name).unwrap_or_else(|| panic!("{} has nothing to observe", monitor.name));
        for report in with_flags.filter_map(|request| report(&request)).chain([plain]) {
            let json = Format::Json.print(std::slice::from_ref(&report));
            wrong_keys(&serde_json::from_str(&json).unwrap(), &mut wrong);
            let csv = Format::Csv.print(std::slice::from_ref(&report));
            let heads = csv.lines().zip(csv.lines().skip(1)).filter(|(title, _)| title.starts_with("# "));
            for (_, header) in heads {
                wrong.extend(header.split(',').filter(|key| !is_key(key)).map(str::to_owned));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert_eq!(wrong, [""; 0]);
}
