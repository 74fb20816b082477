//! Reports of small programs, and relations between those of different monitors.

use wasm_jit::{Engine, Instance, Module, Store};
use wasm_jit_monitors::{Cell, Format, Output, Report, Request, Session};

mod alloc;
mod branching;
mod calltree;
mod control;
mod counting;
mod coverage;
mod data;
mod empty;
mod hostcalls;
mod keys;
#[cfg(feature = "latency")]
mod latency;
mod names;
mod other_functions;
mod profile;
#[path = "../../../tests/frame_maps/programs.rs"]
mod programs;
mod rewritten;
mod sampled;
mod sessions;
mod switched_counts;
mod switching;
mod trace;

/// A module, and the monitors that observe it.
struct Observed {
    module: Module,
    session: Session,
}

impl Observed {
    /// Starts these monitors.
    fn by(text: &str, monitors: &str) -> Self {
        let module = Module::new(&Engine::default(), text).unwrap();
        let session = Session::new(&module, Output::none());
        for request in Request::list(monitors).unwrap() {
            session.enable(request).unwrap();
        }
        Self { module, session }
    }

    /// Calls an export with a number and without results, in a new instance. It may trap.
    fn call(&self, name: &str, argument: i32) -> Result<(), wasm_jit::Error> {
        let mut store = Store::new(self.module.engine(), ());
        let instance = Instance::new(&mut store, &self.module, &[])?;
        instance.get_typed_func::<i32, ()>(&mut store, name)?.call(&mut store, argument)
    }

    /// A report, whose figures and tables have names that differ: they are the keys of an object in
    /// the JSON format.
    fn report(&self, monitor: &str) -> Report {
        let report = self.session.report(monitor).unwrap();
        for (name, _) in report.values() {
            assert!(report.get_table(name).is_none(), "{monitor}: {name}");
        }
        report
    }
}

/// A report as text, or a figure of one whose times depend on the calibration of the clock, which
/// continues.
fn counts(session: &Session, monitor: &str) -> String {
    let report = session.report(monitor).unwrap();
    match monitor {
        "calltree" | "profile" | "hostcalls" => report.get("calls").unwrap().to_string(),
        "latency" => report.get("timed").unwrap().to_string(),
        _ => Format::Json.print(&[report]),
    }
}

/// The integers of a table's column.
fn integers(report: &Report, table: &str, column: &str) -> Vec<u64> {
    let cells = report.get_table(table).unwrap().column(column);
    cells.map(|cell| if let Cell::Int(value) = cell { *value as u64 } else { panic!("{cell:?}") }).collect()
}

/// The texts of a table's column.
fn texts(report: &Report, table: &str, column: &str) -> Vec<String> {
    let cells = report.get_table(table).unwrap().column(column);
    cells
        .map(|cell| if let Cell::Text(text) = cell { text.to_string() } else { panic!("{cell:?}") })
        .collect()
}

/// A function that calls another one in a loop, the given number of times.
const LOOP: &str = "(module
    (func $leaf (param i32) (result i32)
        (i32.mul (local.get 0) (i32.const 3)))
    (func $unused (drop (i32.const 1)))
    (func (export \"run\") (param i32)
        (loop
            (drop (call $leaf (local.get 0)))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";
