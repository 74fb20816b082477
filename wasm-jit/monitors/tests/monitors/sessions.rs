//! Sessions: monitors are switched, refused, and write reports.

use std::fs;
use std::sync::Arc;

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_monitors::{Format, Output, Request, Session};

use super::{LOOP, Observed};

#[test]
fn monitors_are_switched_while_the_program_exists() {
    let observed = Observed::by(LOOP, "icount");
    observed.call("run", 10).unwrap();
    observed.session.disable("icount").unwrap();
    observed.call("run", 10).unwrap();
    assert_eq!(observed.report("icount").get("instructions"), Some(132), "while it was off");
    observed.session.enable("hotness".parse().unwrap()).unwrap();
    observed.session.enable("icount".parse().unwrap()).unwrap();
    observed.call("run", 10).unwrap();
    assert_eq!(observed.report("icount").get("instructions"), Some(264));
    assert_eq!(observed.report("hotness").get("instructions"), Some(132));
    assert_eq!(observed.session.started_monitors(), [("icount", true), ("hotness", true)]);
}

/// A function that runs already is observed, too.
#[test]
fn monitors_start_while_the_program_runs() {
    let text = "(module (import \"host\" \"act\" (func $act))
        (func (export \"run\") (param i32) (loop
            (call $act) (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Arc::new(Session::new(&module, Output::none()));
    let of_host = session.clone();
    let mut linker = Linker::new(module.engine());
    let act = move || of_host.enable("icount".parse().unwrap()).unwrap();
    linker.func_wrap("host", "act", act).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 3).unwrap();
    // After the first call of the host: local.get, i32.const, i32.sub, local.tee, br_if; twice the
    // loop with its 7 instructions; two times end.
    assert_eq!(session.report("icount").unwrap().get("instructions"), Some(5 + 2 * 7 + 2));
}

#[test]
fn mistakes_are_named() {
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Session::new(&module, Output::none());
    let refused = |request: &str| {
        let requests = Request::list(request).unwrap();
        requests.into_iter().find_map(|request| session.enable(request).err()).unwrap().to_string()
    };
    assert!(refused("hotnes").starts_with("there is no monitor `hotnes`; there are: "));
    assert!(refused("hotness{fun=x}").starts_with("the monitor `hotness` has no option `fun`"));
    assert_eq!(refused("hotness{rows=x}"), "option `rows`: `x` is not a number");
    assert_eq!(
        refused("icount{function=a},icount{function=b}"),
        "the monitor `icount` has started with other options: {function=a}"
    );
    assert_eq!(session.disable("hotness").unwrap_err().to_string(), "the monitor `hotness` was not started");
}

#[test]
fn directories_get_all_formats() {
    let directory = tempfile::tempdir().unwrap();
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Session::new(&module, Output::directory(directory.path().join("new/reports")).unwrap());
    session.enable("hotness{rows=1}".parse().unwrap()).unwrap();
    session.write().unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 10).unwrap();
    session.write().unwrap();

    let read = |name: &str| fs::read_to_string(directory.path().join("new/reports").join(name)).unwrap();
    let text = read("hotness.txt");
    assert!(text.starts_with("hotness\n  instructions  132\n"), "{text}");
    assert!(!text.contains("more rows"), "complete: {text}");
    let json: serde_json::Value = serde_json::from_str(&read("hotness.json")).unwrap();
    assert_eq!(json["monitor"], "hotness");
    assert_eq!(json["instructions"], 132);
    assert_eq!(json["paths"][0]["executed"], 90);
    let csv = read("hotness.paths.csv");
    assert_eq!(csv.lines().next(), Some("executed,share,times,length,from,to,function,begins with,source"));
    assert_eq!(csv.lines().count(), 4);
    assert!(read("hotness.listing.wat").contains("i32.mul"));
    let names = fs::read_dir(directory.path().join("new/reports")).unwrap();
    assert!(names.flatten().all(|name| !name.file_name().to_string_lossy().ends_with(".tmp")));
}

#[test]
fn formats_have_names() {
    assert_eq!("csv".parse(), Ok(Format::Csv));
    assert_eq!("xml".parse::<Format>(), Err("expected text, json or csv".to_owned()));
}
