//! Sessions: monitors are activated and deactivated, refused, and write reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use wasm_jit::probes::{Bound, Callback, Kind, Location, Place, ProbeSpec};
use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_monitors::{
    Description, Error, Format, LazyProbes, Monitor, OptionInfo, Output, Program, Report, Request, Session,
    Setup, Stream,
};

use super::{LOOP, Observed, counts, keys};

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
    let started = ["icount", "hotness"].map(|name| (name.to_owned(), true));
    assert_eq!(observed.session.started_monitors(), started);
}

/// A function that is already running is observed, too.
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

/// How often probes were made in each function.
static MADE: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

struct Entries(LazyProbes);

fn entries(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    Ok(Box::new(Entries(LazyProbes::new(setup, |function| {
        let function = function.index();
        *MADE.lock().unwrap().entry(function).or_default() += 1;
        vec![ProbeSpec { location: Location { function, place: Place::Entry }, kind: Kind::Count }]
    }))))
}

impl Monitor for Entries {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, _: &Program<'_>, report: &mut Report) {
        let mut entered = 0;
        self.0.for_each(|probe| entered += probe.count());
        report.value("entered", entered);
    }
}

/// Values of locals that not all functions have.
struct Locals(LazyProbes);

fn locals(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    Ok(Box::new(Locals(LazyProbes::new(setup, |function| {
        let location = Location { function: function.index(), place: Place::Entry };
        let function = Callback::new(|_| {});
        vec![ProbeSpec { location, kind: Kind::Callback { function, values: [Bound::Local(1)].into() } }]
    }))))
}

impl Monitor for Locals {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, _: &Program<'_>, report: &mut Report) {
        report.value("observed", self.0.functions().len());
        self.0.report_refused(report);
    }
}

/// They are reported with the reason, and the program is not disturbed.
#[test]
fn functions_that_cannot_be_observed_are_reported() {
    let text = "(module (func $one (param i32)) (func $two (param i32 i32)) (func $never)
        (func (export \"run\") (param i32) (local i32)
            (call $one (local.get 0)) (call $two (local.get 0) (local.get 1)) (call $one (local.get 0))))";
    let description = Description {
        name: "locals",
        summary: "",
        details: "",
        options: &[],
        example: "locals",
        start: locals,
    };
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Session::new(&module, Output::none()).with(description);
    session.enable("locals".parse().unwrap()).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 0).unwrap();
    let report = session.report("locals").unwrap();
    assert_eq!((report.get("observed"), report.get("functions_not_observed")), (Some(2), Some(1)));
    let text = Format::Text.print(&[report]);
    assert!(text.contains("` was not observed: "), "{text}");
    assert!(!text.contains("function 2"), "{text}");
}

/// The thread that activates a monitor makes probes in functions that others call for the first
/// time in the meantime.
#[test]
fn probes_of_a_function_are_made_once() {
    const FUNCTIONS: usize = 100;
    const ROUNDS: usize = 50;
    let functions: String = (0..FUNCTIONS).map(|at| format!("(func $f{at})")).collect();
    let calls: String = (0..FUNCTIONS).map(|at| format!("(call $f{at})")).collect();
    let text = format!("(module {functions} (func (export \"run\") (param i32) {calls}))");
    let description = Description {
        name: "entries",
        summary: "",
        details: "",
        options: &[],
        example: "entries",
        start: entries,
    };
    for _ in 0..ROUNDS {
        let module = Module::new(&Engine::default(), &text).unwrap();
        let session = Session::new(&module, Output::none()).with(description);
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
        let begin = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                run.call(&mut store, 0).unwrap();
            });
            begin.wait();
            session.enable("entries".parse().unwrap()).unwrap();
        });
        let entered = || session.report("entries").unwrap().get("entered").unwrap();
        let before = entered();
        run.call(&mut store, 0).unwrap();
        assert_eq!(entered() - before, FUNCTIONS as u64 + 1);
    }
    let made = std::mem::take(&mut *MADE.lock().unwrap());
    assert_eq!(made.len(), FUNCTIONS + 1);
    assert!(made.values().all(|times| *times == ROUNDS), "{made:?}");
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
    let twice = Request::list("icount{function=leaf},icount{function=run}").unwrap_err().to_string();
    assert!(
        twice.starts_with("the monitor `icount` is requested twice, as `icount{function=leaf}`"),
        "{twice}"
    );
    session.enable("icount{function=leaf}".parse().unwrap()).unwrap();
    assert_eq!(
        refused("icount{function=run}"),
        "the monitor `icount` is on with other options, {function=leaf}: `disable icount` first; \
         enabling it with other options discards its observations"
    );
    assert_eq!(
        session.disable("hotness").unwrap_err().to_string(),
        "the monitor `hotness` was not started: `enable hotness` starts it"
    );
    assert!(session.report("hotnes").unwrap_err().to_string().starts_with("there is no monitor `hotnes`"));
    assert_eq!(refused("calltree{contexts=7}"), "option `contexts`: `7` is not a number from 8 on");
    assert_eq!(refused("memory{trace,json=1}"), "option `json` takes no value");
    assert_eq!(refused("hotness{rows=1,rows=2}"), "option `rows` is there twice");
    for text in ["a , b", "icount{function=a;b c,d*}", "coverage{merge=a,b}.json}"] {
        let error = Request::list(text).unwrap_err().to_string();
        assert!(error.contains("without spaces") && error.contains("`?` matches any character"), "{error}");
    }
}

/// The streams of the monitor `log`, which it opens when it starts.
static LOGS: Mutex<Vec<Stream>> = Mutex::new(Vec::new());

struct Log;

impl Monitor for Log {
    fn activate(&self) -> Result<(), Error> {
        Ok(())
    }

    fn deactivate(&self) -> Result<(), Error> {
        Ok(())
    }

    fn report(&self, _: &Program<'_>, _: &mut Report) {}
}

/// Until the new monitor has started, its stream has another file; and what the old one writes
/// later is not in the new one.
#[test]
fn a_stream_of_a_restarted_monitor_is_a_new_file() {
    let start = |setup: &Setup<'_>| -> Result<Box<dyn Monitor>, Error> {
        LOGS.lock().unwrap().push(setup.stream("log")?);
        match setup.options.flag("fail") {
            true => Err(Error::Nothing("it fails".to_owned())),
            false => Ok(Box::new(Log)),
        }
    };
    const OPTIONS: &[OptionInfo] = &[OptionInfo::flag("fail", ""), OptionInfo::flag("again", "")];
    let (options, example) = (OPTIONS, "log");
    let description = Description { name: "log", summary: "", details: "", options, example, start };
    let directory = tempfile::tempdir().unwrap();
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Session::new(&module, Output::directory(directory.path()).unwrap()).with(description);
    let enable = |request: &str| session.enable(request.parse().unwrap());
    let write = |stream: usize, text: &str| {
        let stream = &mut LOGS.lock().unwrap()[stream];
        stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).unwrap();
    };
    let written = || fs::read_to_string(directory.path().join("log")).unwrap();
    enable("log").unwrap();
    write(0, "one");
    session.disable("log").unwrap();
    assert!(enable("log{fail}").is_err());
    assert_eq!(written(), "one");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    enable("log{again}").unwrap();
    write(2, "two");
    write(0, " late");
    assert_eq!(written(), "two");
}

#[test]
fn a_monitor_that_is_off_restarts_with_other_options() {
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Session::new(&module, Output::none());
    let enable = |request: &str| session.enable(request.parse().unwrap());
    let run = || {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 10).unwrap();
    };
    let count = || session.report("icount").unwrap().get("instructions").unwrap();
    enable("loops").unwrap();
    enable("icount").unwrap();
    enable("opcodes").unwrap();
    run();
    assert_eq!(count(), 132);
    assert!(matches!(enable("icount{function=leaf}"), Err(Error::OtherOptions { .. })));
    run();
    assert_eq!(count(), 264, "it is unchanged");
    session.disable("icount").unwrap();
    // Options with a mistake change nothing.
    assert!(enable("icount{function=none}").is_err() && enable("icount{rows=x}").is_err());
    assert_eq!(count(), 264);
    enable("icount{function=leaf}").unwrap();
    run();
    assert_eq!(count(), 40);
    // The order of the reports is the same.
    let started = ["loops", "icount", "opcodes"].map(|name| (name.to_owned(), true));
    assert_eq!(session.started_monitors(), started);
    session.disable("icount").unwrap();
    enable("icount{function=leaf}").unwrap();
    run();
    assert_eq!(count(), 80, "with the same options, it continues");
}

#[test]
fn every_monitor_restarts_with_other_options() {
    #[cfg(feature = "latency")]
    let _alone = super::latency::alone();
    let module = Module::new(&Engine::default(), keys::PROGRAM).unwrap();
    let session = Session::new(&module, Output::none());
    for name in session.known().iter().map(|known| known.name) {
        let enable = |request: &str| session.enable(request.parse().unwrap());
        let counts = || counts(&session, name);
        enable(name).unwrap();
        let before = counts();
        keys::run(&module);
        let observed = counts();
        assert_ne!(observed, before, "{name}");
        session.disable(name).unwrap();
        enable(&format!("{name}{{rows=x}}")).unwrap_err();
        assert_eq!(counts(), observed, "{name}");
        enable(&format!("{name}{{rows=3}}")).unwrap();
        assert_eq!(counts(), before, "{name}");
        keys::run(&module);
        assert_eq!(counts(), observed, "{name}");
        session.disable(name).unwrap();
    }
    assert_eq!(session.started_monitors().len(), session.known().len());
}

/// This holds for every monitor.
#[test]
fn functions_that_there_are_not_are_refused() {
    let text = "(module (import \"host\" \"f\" (func $imported)) (func $leaf)
        (func (export \"run\") (call $leaf) (call $imported)))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Session::new(&module, Output::none());
    let enable = |request: &str| session.enable(request.parse().unwrap());
    for monitor in session.known().iter().map(|known| known.name) {
        for (options, value) in [
            ("function=nosuch", "nosuch"),
            ("function=run,function=nosuch*,function=leaf", "nosuch*"),
            ("function=", ""),
            ("function=[", "["),
            ("function=3", "3"),
            ("function=imported", "imported"),
        ] {
            let error = enable(&format!("{monitor}{{{options}}}")).unwrap_err().to_string();
            let expected = format!("option `function`: `{value}` is not the name or index of a function");
            assert!(error.starts_with(&expected), "{monitor}: {error}");
        }
    }
    enable("icount{function=l??f,function=2,function=run}").unwrap();
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
    assert_eq!(csv.lines().next(), Some("executed,share,times,length,from,to,function,begins_with,source"));
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

/// A monitor with two files, the second of which fails.
struct TwoFiles(PathBuf);

impl Monitor for TwoFiles {
    fn activate(&self) -> Result<(), Error> {
        Ok(())
    }

    fn deactivate(&self) -> Result<(), Error> {
        Ok(())
    }

    fn report(&self, _: &Program<'_>, report: &mut Report) {
        report.file("long", |out| {
            (0..1024).try_for_each(|_| out.write_all(&[b'x'; 1024]))?;
            let written = self.0.join("files.long.tmp").metadata()?.len();
            assert!(written > 1 << 19, "{written}");
            Ok(())
        });
        report.file("fails", |out| {
            out.write_all(b"begins")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
    }
}

/// Files of a directory are written while they are made, and are complete or missing.
#[test]
fn files_are_not_kept_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let path = directory.path().to_owned();
    let open = move |name: &str, _: &Setup<'_>| {
        let monitor: Box<dyn Monitor> = Box::new(TwoFiles(path.clone()));
        (name == "./files").then_some(Ok(monitor))
    };
    let session = Session::new(&module, Output::directory(directory.path()).unwrap()).with_others(open);
    session.enable("./files".parse().unwrap()).unwrap();
    let error = session.write().unwrap_err();
    assert!(matches!(&error, Error::Write { path, .. } if path.ends_with("files.fails")), "{error}");
    let names = fs::read_dir(directory.path()).unwrap();
    let names: BTreeSet<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names, ["files.json", "files.long", "files.txt"].map(str::to_owned).into());
    assert_eq!(fs::read(directory.path().join("files.long")).unwrap(), [b'x'; 1 << 20]);
}
