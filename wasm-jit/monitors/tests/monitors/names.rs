//! Functions of one name, in the reports of all monitors.

use super::{Observed, texts};
use wasm_jit_monitors::{ALL, Cell, Output, Report, Session};

/// Two functions `helper`, two constructors whose symbols have one name, and one function that has
/// the name by which reports could distinguish another one.
const TEXT: &str = r#"(module (memory 1)
    (func $leaf (param i32) (result i32) local.get 0)
    (func $h1 (@name "helper") (param i32)
        (loop (i32.store (i32.const 0) (call $leaf (local.get 0)))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
    (func $h2 (@name "helper") (param i32)
        (loop (i32.store (i32.const 4) (call $leaf (local.get 0)))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
    (func $c1 (@name "_ZN3FooC1Ev") (param i32) (drop (call $leaf (local.get 0))))
    (func $c2 (@name "_ZN3FooC2Ev") (param i32) (drop (call $leaf (local.get 0))))
    (func $odd (@name "helper#2") (param i32))
    (func $malloc (param i32) (result i32) (i32.const 16))
    (func $a1 (@name "make;it") (drop (call $malloc (i32.const 3))))
    (func $a2 (@name "make:it") (drop (call $malloc (i32.const 4))))
    (func (export "run") (param i32)
        (call $h1 (i32.const 3)) (call $h2 (i32.const 2))
        (call $c1 (i32.const 3)) (call $c2 (i32.const 2)) (call $odd (i32.const 1))
        (call $a1) (call $a2)))"#;

const SHARED: [&str; 4] = ["helper", "Foo::Foo()", "make;it", "make:it"];

/// All texts of a report, and of its files that are not listings.
fn all_texts(report: &Report) -> Vec<String> {
    let cells = report.tables().flat_map(|table| table.rows()).flatten();
    let mut all: Vec<String> = cells
        .filter_map(|cell| if let Cell::Text(text) = cell { Some(text.to_string()) } else { None })
        .collect();
    for (name, contents) in report.files() {
        if !name.starts_with("listing") {
            all.push(String::from_utf8_lossy(contents).into_owned());
        }
    }
    all
}

#[test]
fn functions_of_one_name_differ_in_all_reports() {
    let mut seen = 0;
    for monitor in ALL {
        let observed = Observed::by(TEXT, monitor.name);
        observed.call("run", 1).unwrap();
        for text in all_texts(&observed.report(monitor.name)) {
            for name in SHARED {
                // Instructions have the names of the text format.
                let shown = text.match_indices(name).filter(|_| !text.starts_with("call "));
                for (at, _) in shown {
                    assert!(text[at + name.len()..].starts_with('#'), "{}: {text}", monitor.name);
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn names_are_completed_by_indices_only_where_several_functions_have_them() {
    let observed = Observed::by(TEXT, "icount");
    observed.call("run", 1).unwrap();
    let mut names = texts(&observed.report("icount"), "functions", "function");
    names.sort();
    let expected = [
        "Foo::Foo()#3",
        "Foo::Foo()#4",
        "helper#1",
        "helper#2",
        "helper#2#5",
        "leaf",
        "make:it#8",
        "make;it#7",
        "malloc",
        "run",
    ];
    assert_eq!(names, expected);
}

#[test]
fn functions_are_chosen_by_the_names_of_reports() {
    for (glob, expected) in [
        ("helper#2", &["helper#2", "helper#2#5"][..]),
        ("helper", &["helper#1", "helper#2"]),
        ("Foo::Foo()#4", &["Foo::Foo()#4"]),
    ] {
        let observed = Observed::by(TEXT, &format!("icount{{function={glob}}}"));
        observed.call("run", 1).unwrap();
        assert_eq!(texts(&observed.report("icount"), "functions", "function"), expected);
    }
}

#[test]
fn each_function_has_its_own_record_of_lcov() {
    let observed = Observed::by(TEXT, "coverage");
    observed.call("run", 1).unwrap();
    let report = observed.report("coverage");
    let (_, lcov) = report.files().iter().find(|(name, _)| name == "lcov.info").unwrap();
    let lcov = String::from_utf8(lcov.clone()).unwrap();
    for kind in ["FN:", "FNDA:"] {
        let records = lcov.lines().filter_map(|line| line.strip_prefix(kind));
        let mut names: Vec<&str> = records.map(|record| record.split_once(',').unwrap().1).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), all), (10, 10), "{lcov}");
    }
}

#[test]
fn lines_of_traces_have_the_names_of_reports() {
    let directory = tempfile::tempdir().unwrap();
    let module = wasm_jit::Module::new(&wasm_jit::Engine::default(), TEXT).unwrap();
    let session = Session::new(&module, Output::directory(directory.path()).unwrap());
    session.enable("trace{function=helper}".parse().unwrap()).unwrap();
    let mut store = wasm_jit::Store::new(module.engine(), ());
    let instance = wasm_jit::Instance::new(&mut store, &module, &[]).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 1).unwrap();
    session.write().unwrap();
    let trace = std::fs::read_to_string(directory.path().join("trace.log")).unwrap();
    assert!(trace.contains(" helper#1: loop") && trace.contains(" helper#2: loop"), "{trace}");
}
