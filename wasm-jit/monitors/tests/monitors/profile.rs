//! gprof's figures.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_monitors::{CallArcs, Cell, Output, Report, Session};

use super::{Observed, integers, programs, texts};

/// The arcs in alphabetical order: caller and callee, calls, recursive calls.
fn arcs(report: &Report) -> Vec<(String, String, u64, u64)> {
    let names = texts(report, "arcs", "caller").into_iter().zip(texts(report, "arcs", "callee"));
    let counts =
        integers(report, "arcs", "called").into_iter().zip(integers(report, "arcs", "recursive calls"));
    let mut all: Vec<_> =
        names.zip(counts).map(|((caller, callee), (calls, back))| (caller, callee, calls, back)).collect();
    all.sort();
    all
}

fn check(report: &Report, expected: &[(&str, &str, u64, u64)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(caller, callee, calls, back)| ((*caller).to_owned(), (*callee).to_owned(), *calls, *back))
        .collect();
    assert_eq!(arcs(report), expected);
    check_times(report);
}

fn floats(report: &Report, table: &str, column: &str) -> Vec<f64> {
    let cells = report.get_table(table).unwrap().column(column);
    cells.map(|cell| if let Cell::Float(value, _) = cell { *value } else { panic!("{cell:?}") }).collect()
}

/// No time is negative; the self times of the functions add up to the total, and the times of the
/// calls to a function add up to its time.
fn check_times(report: &Report) {
    let (own, all) = (floats(report, "functions", "self ms"), floats(report, "functions", "cumulative ms"));
    assert!(own.iter().zip(&all).all(|(own, all)| *own >= 0.0 && *own <= all + 1e-9), "{own:?} {all:?}");
    let total = report.values().iter().find(|(name, _)| name == "milliseconds").unwrap();
    let Cell::Float(total, _) = total.1 else { panic!("{total:?}") };
    assert!((own.iter().sum::<f64>() - total).abs() < 1e-6, "{own:?} {total}");
    let mut of_calls: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let parts = floats(report, "arcs", "self ms").into_iter().zip(floats(report, "arcs", "children ms"));
    for (callee, (own, children)) in texts(report, "arcs", "callee").into_iter().zip(parts) {
        let sum = of_calls.entry(callee).or_default();
        *sum = (sum.0 + own, sum.1 + own + children);
    }
    for (name, (own, all)) in texts(report, "functions", "function").into_iter().zip(own.into_iter().zip(all))
    {
        let sum = of_calls[&name];
        assert!((sum.0 - own).abs() < 1e-6 && (sum.1 - all).abs() < 1e-6, "{name}: {sum:?} {own} {all}");
    }
}

/// The program of the thesis's Figures 5.3 and 5.4, with its times.
#[test]
fn results_have_the_form_of_the_thesis() {
    let text =
        "(module (func $main (export \"main\") (call $add) (call $double)) (func $double) (func $add))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let session = Session::new(&module, Output::directory(directory.path()).unwrap());
    session.enable("profile".parse().unwrap()).unwrap();
    let arcs = CallArcs::of(&session).unwrap();
    arcs.add_arc_data(0, 1, 1.0, 0.040);
    arcs.set_arc_data(0, 1, 0.0, 0.0);
    arcs.add_arc_data(0, 1, 1.0, 0.042);
    arcs.set_arc_data(1, 3, 1.0, 0.001);
    arcs.add_arc_data(1, 2, 1.0, 0.003);
    arcs.print_results();
    let expected = "\
Call graph:
index   % time         self     children               called  name
                                                              <spontaneous>
[0]     100.00        0.038        0.004                    1  main [0]
                      0.003        0.000                  1/1      double [1]
                      0.001        0.000                  1/1      add [2]
-----------------------------------------------
                      0.003        0.000                  1/1      main [0]
[1]       7.14        0.003        0.000                    1  double [1]
-----------------------------------------------
                      0.001        0.000                  1/1      main [0]
[2]       2.38        0.001        0.000                    1  add [2]
-----------------------------------------------

Flat profile:
     %   cumulative         self         called self ms/call total ms/call  name
 90.48        0.042        0.038              1        0.038         0.042  main
  7.14        0.003        0.003              1        0.003         0.003  double
  2.38        0.001        0.001              1        0.001         0.001  add
";
    assert_eq!(arcs.results(), expected);
    assert_eq!(fs::read_to_string(directory.path().join("profile.printed.txt")).unwrap(), expected);
    check_times(&session.report("profile").unwrap());
    arcs.clear_results();
    assert_eq!(session.report("profile").unwrap().get("functions_called"), Some(0));
}

/// More time was given for a callee than for its caller.
#[test]
fn given_times_do_not_make_others_negative() {
    let observed = Observed::by("(module (func $a (call $b)) (func $b))", "profile");
    let arcs = CallArcs::of(&observed.session).unwrap();
    arcs.add_arc_data(0, 1, 1.0, 1.0);
    arcs.add_arc_data(1, 2, 3.0, 4.0);
    arcs.add_arc_data(1, 2, 1.0, -4.0);
    arcs.add_arc_data(2, 2, 5.0, 1.0);
    let report = observed.report("profile");
    assert!(floats(&report, "functions", "self ms").iter().all(|own| *own >= 0.0));
    assert_eq!(arcs_text(&report), "<spontaneous>-a 1+0, a-b 4+0, b-b 0+5");
}

fn arcs_text(report: &Report) -> String {
    let texts = arcs(report)
        .into_iter()
        .map(|(caller, callee, calls, back)| format!("{caller}-{callee} {calls}+{back}"));
    texts.collect::<Vec<_>>().join(", ")
}

#[test]
fn programs_may_import_the_interface() {
    for count in ["i32", "f64"] {
        let text = format!(
            "(module
            (import \"prof\" \"getTime\" (func $time (result f64)))
            (import \"prof\" \"clearResults\" (func $clear))
            (import \"prof\" \"addArcData\" (func $add (param i32 i32 {count} f64)))
            (import \"prof\" \"setArcData\" (func $set (param i32 i32 {count} f64)))
            (import \"prof\" \"printResults\" (func $print))
            (func $leaf)
            (func (export \"run\") (param i32) (local f64)
                (local.set 1 (call $time))
                (call $leaf) (call $clear) (call $leaf)
                (call $add (i32.const 0) (i32.const 6) ({count}.const 2) (f64.const 1))
                (call $add (i32.const 0) (i32.const 6) ({count}.const 3) (f64.const 1))
                (call $set (i32.const 6) (i32.const 7) ({count}.const 4) (f64.const 0.5))
                (if (f64.lt (call $time) (local.get 1)) (then unreachable))
                (call $print)))"
        );
        let observed = Observed::by(&text, "profile");
        let mut linker = Linker::<()>::new(observed.module.engine());
        CallArcs::of(&observed.session).unwrap().define(&mut linker).unwrap();
        let mut store = Store::new(observed.module.engine(), ());
        let instance = linker.instantiate(&mut store, &observed.module).unwrap();
        instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 0).unwrap();
        let text = arcs_text(&observed.report("profile"));
        // `run` was being executed when the results were cleared.
        for arc in ["<spontaneous>-leaf 5+0", "leaf-run 4+0", "run-leaf 1+0", "run-prof::addArcData 2+0"] {
            let arc = arc.replace("prof::addArcData", "add");
            assert!(text.split(", ").any(|known| known == arc), "{arc}: {text}");
        }
        assert!(!text.contains("<spontaneous>-run 1"), "{text}");
    }
}

#[test]
fn recursion_is_counted_apart() {
    let observed = Observed::by(
        "(module
        (func $even (param i32) (if (local.get 0) (then (call $odd (i32.sub (local.get 0) (i32.const 1))))))
        (func $odd (param i32) (if (local.get 0) (then (call $even (i32.sub (local.get 0) (i32.const 1))))))
        (func $down (param i32)
            (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1))))))
        (func (export \"run\") (param i32) (call $even (local.get 0)) (call $down (local.get 0))))",
        "profile",
    );
    observed.call("run", 100).unwrap();
    let report = observed.report("profile");
    let expected = [
        ("<spontaneous>", "run", 1, 0),
        ("down", "down", 0, 100),
        ("even", "odd", 50, 0),
        ("odd", "even", 0, 50),
        ("run", "down", 1, 0),
        ("run", "even", 1, 0),
    ];
    check(&report, &expected);
    let graph = report.files().iter().find(|(name, _)| name == "graph.txt").unwrap();
    let graph = String::from_utf8(graph.1.clone()).unwrap();
    let has = |parts: &[&str]| graph.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&["100.00", "<spontaneous>"]) || has(&["<spontaneous>"]), "{graph}");
    assert!(has(&[" 1+50  even <cycle 1> ["]), "{graph}");
    assert!(has(&[" 50/50      odd <cycle 1> ["]), "{graph}");
    assert!(has(&[" 50      even <cycle 1> ["]), "{graph}");
    assert!(has(&[" 1+100  down ["]) && !has(&["down <cycle"]), "{graph}");
}

/// The thesis's Figure 6.3: a function that takes longer for one caller than for another.
#[test]
fn times_of_calls_belong_to_their_callers() {
    let module = Module::new(
        &Engine::default(),
        "(module
        (import \"host\" \"wait\" (func $wait (param i32)))
        (func $f (param i32) (call $wait (local.get 0)))
        (func $long (call $f (i32.const 20)))
        (func $short (call $f (i32.const 0)) (call $f (i32.const 0)) (call $f (i32.const 0)))
        (func (export \"run\") (call $long) (call $short)))",
    )
    .unwrap();
    let session = Session::new(&module, Output::none());
    session.enable("profile".parse().unwrap()).unwrap();
    let mut linker = Linker::<()>::new(module.engine());
    let wait = |milliseconds: i32| {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(milliseconds as u64) {}
    };
    linker.func_wrap("host", "wait", wait).unwrap();
    let mut store = Store::new(module.engine(), ());
    let begin = Instant::now();
    let run = linker.instantiate(&mut store, &module).unwrap();
    run.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    let elapsed = begin.elapsed().as_secs_f64() * 1e3;
    let report = session.report("profile").unwrap();
    check_times(&report);
    let pairs = texts(&report, "arcs", "caller").into_iter().zip(texts(&report, "arcs", "callee"));
    let children = floats(&report, "arcs", "children ms");
    let times: BTreeMap<_, _> = pairs.zip(children).collect();
    let of = |caller: &str, callee: &str| times[&(caller.to_owned(), callee.to_owned())];
    assert!(of("long", "f") > 19.9, "{times:?}");
    // Everything that does not belong to the long one.
    assert!(of("short", "f") <= elapsed * 1.001 - of("long", "f"), "{times:?}");
    assert!((of("run", "long") - of("long", "f")) > 0.0);
}

/// The calls of random programs equal those that calltree reports, and those of the program alone.
#[test]
fn arcs_of_random_programs() {
    let engine = Engine::default();
    let run = |module: &Module| {
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        let _ = instance.get_typed_func::<(), i64>(&mut store, "main").unwrap().call(&mut store, ());
    };
    let mut calls = 0;
    for seed in 0..40 {
        let module = Module::new(&engine, programs::program(seed)).unwrap();
        let together = Session::new(&module, Output::none());
        for monitor in ["calltree", "profile", "icount"] {
            together.enable(monitor.parse().unwrap()).unwrap();
        }
        run(&module);
        let (tree, report) = (together.report("calltree").unwrap(), together.report("profile").unwrap());
        check_times(&report);
        assert_eq!(report.get("calls"), tree.get("calls"));
        let mut of_tree: BTreeMap<(String, String), u64> = BTreeMap::new();
        let names = texts(&tree, "contexts", "function");
        let callers: Vec<_> = tree.get_table("contexts").unwrap().column("caller").collect();
        for (row, calls) in integers(&tree, "contexts", "calls").into_iter().enumerate() {
            let caller = match callers[row] {
                Cell::Int(caller) => names[*caller as usize].clone(),
                _ => "<spontaneous>".to_owned(),
            };
            *of_tree.entry((caller, names[row].clone())).or_default() += calls;
        }
        let of_profile: BTreeMap<_, _> =
            arcs(&report).into_iter().map(|(caller, callee, calls, _)| ((caller, callee), calls)).collect();
        assert_eq!(of_profile, of_tree, "{seed}");
        drop(together);
        for monitor in ["profile", "profile{times=sampled}"] {
            let alone = Session::new(&module, Output::none());
            alone.enable(monitor.parse().unwrap()).unwrap();
            run(&module);
            assert_eq!(arcs(&alone.report("profile").unwrap()), arcs(&report), "{seed} {monitor}");
            check_times(&alone.report("profile").unwrap());
        }
        calls += report.get("calls").unwrap();
    }
    assert!(calls > 1000, "{calls}");
}

#[test]
fn results_are_cleared_while_the_program_runs() {
    let observed = Observed::by(super::LOOP, "profile");
    let arcs = CallArcs::of(&observed.session).unwrap();
    thread::scope(|scope| {
        let program = scope.spawn(|| observed.call("run", 1_000_000).unwrap());
        while !program.is_finished() {
            check_times(&observed.report("profile"));
            arcs.clear_results();
        }
    });
    arcs.clear_results();
    observed.call("run", 7).unwrap();
    let expected = [("<spontaneous>", "run", 1, 0), ("run", "leaf", 7, 0)];
    check(&observed.report("profile"), &expected);
}

#[test]
fn contexts_that_are_left_out_are_counted() {
    let chain: String = (0..40).map(|at| format!("(func $f{at} (call $f{}))", at + 1)).collect();
    let text = format!("(module {chain} (func $f40) (func (export \"run\") (param i32) (call $f0)))");
    let left_out = |monitor: &str| {
        let observed = Observed::by(&text, monitor);
        observed.call("run", 0).unwrap();
        let name = monitor.split('{').next().unwrap();
        observed.report(name).get("calls left out")
    };
    assert_eq!(left_out("profile{contexts=8}"), left_out("calltree{contexts=8}"));
    assert_eq!(left_out("profile{contexts=8}"), Some(42 - 6));
    assert_eq!(left_out("profile"), None);
}
