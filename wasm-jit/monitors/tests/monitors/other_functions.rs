//! Functions that are called by a table, and are not those of the observed module.

use wasm_jit::{Engine, Func, Instance, Linker, Module, Store, Val};
use wasm_jit_monitors::{Output, Report, Session};

use super::{integers, texts};

/// Defines the functions in a table, whose last element is left to the host.
const LIBRARY: &str = "(module $lib
    (table (export \"table\") 8 funcref) (elem (i32.const 0) func $double $number $other)
    (func $double (param i32) (result i32) (i32.add (local.get 0) (local.get 0)))
    (func $number (result i64) (i64.const 7))
    (func $other (@name \"double\") (param i32) (result i32) (local.get 0)))";

/// Calls an element of the table, or the function of this index that it has defined itself.
const PROGRAM: &str = "(module
    (type $unary (func (param i32) (result i32)))
    (import \"lib\" \"table\" (table 8 funcref))
    (import \"host\" \"imported\" (func $imported (type $unary)))
    (elem (i32.const 3) func $imported $own)
    (func $own (type $unary) (local.get 0))
    (func $tail_call (type $unary) (return_call_indirect (type $unary) (i32.const 1) (local.get 0)))
    (func (export \"tail\") (param i32) (drop (call $tail_call (local.get 0))))
    (func (export \"run\") (param i32)
        (drop (call_indirect (type $unary) (i32.const 1) (local.get 0)))))";

/// Runs the program with each of these exports and indices, which may trap.
fn run(library: &str, monitors: &[&str], calls: &[(&str, i32)]) -> Vec<Report> {
    let engine = Engine::default();
    let [library, module] = [library, PROGRAM].map(|text| Module::new(&engine, text).unwrap());
    let session = Session::new(&module, Output::none());
    monitors.iter().for_each(|monitor| session.enable(monitor.parse().unwrap()).unwrap());
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "imported", |value: i32| value).unwrap();
    let library = Instance::new(&mut store, &library, &[]).unwrap();
    linker.instance(&mut store, "lib", library).unwrap();
    let table = library.get_table(&mut store, "table").unwrap();
    let of_host = Func::wrap(&mut store, |value: i32| value).unwrap();
    table.set(&mut store, 5, Val::FuncRef(Some(of_host))).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    for (export, index) in calls {
        let export = instance.get_typed_func::<i32, ()>(&mut store, export).unwrap();
        let traps = [1, 6, 7, 8].contains(index);
        assert_eq!(export.call(&mut store, *index).is_err(), traps, "{index}");
    }
    monitors.iter().map(|monitor| session.report(monitor).unwrap()).collect()
}

fn counts(report: &Report, count: &str) -> Vec<(String, u64)> {
    let names = texts(report, "functions", "function");
    let mut counts: Vec<_> = names.into_iter().zip(integers(report, "functions", count)).collect();
    counts.sort();
    counts
}

fn check(found: &[(String, u64)], expected: &[(&str, u64)]) {
    let expected: Vec<_> = expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert_eq!(found, expected);
}

/// All elements of the table, each as often as its index and once more.
fn all(export: &'static str) -> Vec<(&'static str, i32)> {
    (0..9).flat_map(|index| (0..=index).map(move |_| (export, index))).collect()
}

#[test]
fn functions_of_other_modules_have_their_names() {
    let reports = run(LIBRARY, &["hostcalls", "calls", "calltree", "profile"], &all("run"));
    let of_others =
        [("<function of the host>", 6), ("imported", 4), ("lib::double#0", 1), ("lib::double#2", 3)];
    check(&counts(&reports[0], "calls"), &of_others);
    check(
        &counts(&reports[1], "called"),
        &[
            ("<function of the host>", 6),
            ("imported", 4),
            ("lib::double#0", 1),
            ("lib::double#2", 3),
            ("none (trap)", 2 + 7 + 8 + 9),
            ("own", 5),
            ("run", 45),
        ],
    );
    let with_own = [&of_others[..], &[("own", 5), ("run", 45)]].concat();
    check(&counts(&reports[2], "calls"), &with_own);
    check(&counts(&reports[3], "called"), &with_own);
}

/// The frame of a tail call that traps is that of its function.
#[test]
fn tail_calls_of_functions_of_other_modules() {
    let reports = run(LIBRARY, &["hostcalls", "calltree"], &all("tail"));
    let of_others =
        [("<function of the host>", 6), ("imported", 4), ("lib::double#0", 1), ("lib::double#2", 3)];
    check(&counts(&reports[0], "calls"), &of_others);
    let with_own = [&of_others[..], &[("own", 5), ("tail", 45), ("tail_call", 45)]].concat();
    check(&counts(&reports[1], "calls"), &with_own);
}

#[test]
fn modules_without_names() {
    let library =
        LIBRARY.replace("(module $lib", "(module").replace("(func $other (@name \"double\")", "(func");
    let library = library.replace("$number $other", "$number 2");
    let reports = run(&library, &["hostcalls"], &[("run", 0), ("run", 2)]);
    let expected = [("<other module>::double", 1), ("<other module>::function[2]", 1)];
    check(&counts(&reports[0], "calls"), &expected);
}

/// A function of the module itself, in another instance, is one of the module.
#[test]
fn functions_of_other_instances_are_those_of_the_module() {
    let text = "(module
        (table (import \"lib\" \"table\") 8 funcref)
        (func $own)
        (func (export \"set\") (table.set (i32.const 6) (ref.func $own)))
        (elem declare func $own)
        (func (export \"run\") (call_indirect (i32.const 6))))";
    let engine = Engine::default();
    let [library, module] = [LIBRARY, text].map(|text| Module::new(&engine, text).unwrap());
    let session = Session::new(&module, Output::none());
    for monitor in ["hostcalls", "calls", "calltree"] {
        session.enable(monitor.parse().unwrap()).unwrap();
    }
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let library = Instance::new(&mut store, &library, &[]).unwrap();
    linker.instance(&mut store, "lib", library).unwrap();
    let [one, other] = [(); 2].map(|()| linker.instantiate(&mut store, &module).unwrap());
    one.get_typed_func::<(), ()>(&mut store, "set").unwrap().call(&mut store, ()).unwrap();
    other.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    check(&counts(&session.report("hostcalls").unwrap(), "calls"), &[]);
    let expected = [("own", 1), ("run", 1), ("set", 1)];
    check(&counts(&session.report("calls").unwrap(), "called"), &expected);
    check(&counts(&session.report("calltree").unwrap(), "calls"), &expected);
}
