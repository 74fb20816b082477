//! A custom monitor: counts how often each function that returns an i32 has returned a value other
//! than 0, which in C is often an error.
//!
//! Run it with `cargo run --release -p own-monitor`.
//!
//! Prints:
//!
//! ```text
//! results
//!   failures  3
//!
//! functions
//!   returned  failed  function
//!         10       3  check
//! ```

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasm_jit::probes::{Bound, Callback, Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::{Engine, Instance, Module, Store, ValType};
use wasm_jit_monitors::{Description, Error, Format, Monitor, Output, Program, Report, Session, Table};
use wasm_jit_monitors::{Setup, make, switch};

const RESULTS: Description = Description {
    name: "results",
    summary: "How often functions return something other than 0",
    details: "Calls that end in a trap, an exception or a tail call do not return.",
    options: &[],
    example: "results app.wasm",
    start: |setup| Ok(Box::new(Results::start(setup)?)),
};

/// The results of a function.
#[derive(Default)]
struct Counts {
    returned: AtomicU64,
    failed: AtomicU64,
}

struct Results {
    functions: Vec<(u32, Arc<Counts>)>,
    probes: Vec<Probe>,
}

impl Results {
    fn start(setup: &Setup<'_>) -> Result<Self, Error> {
        let (mut functions, mut specs) = (Vec::new(), Vec::new());
        for function in setup.functions().filter(|function| function.ty().results().eq([ValType::I32])) {
            let counts = Arc::new(Counts::default());
            functions.push((function.index(), counts.clone()));
            // Called on the threads that run the program, with the function's result.
            let at_exit = Callback::new(move |values| {
                counts.returned.fetch_add(1, Ordering::Relaxed);
                counts.failed.fetch_add(u64::from(values[0] != 0), Ordering::Relaxed);
            });
            specs.push(ProbeSpec {
                location: Location { function: function.index(), place: Place::Exit },
                kind: Kind::Callback { function: at_exit, values: [Bound::Result(0)].into() },
            });
        }
        Ok(Self { functions, probes: make(setup.module, &specs)? })
    }
}

impl Monitor for Results {
    fn activate(&self) -> Result<(), Error> {
        switch(&self.probes, true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        switch(&self.probes, false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let mut table = Table::new("functions", ["returned", "failed", "function"]);
        let mut failures = 0;
        for (function, counts) in &self.functions {
            let returned = counts.returned.load(Ordering::Relaxed);
            let failed = counts.failed.load(Ordering::Relaxed);
            failures += failed;
            if returned > 0 {
                table.row([returned.into(), failed.into(), program.name(*function)]);
            }
        }
        report.value("failures", failures);
        report.table(table);
    }
}

fn main() -> Result<(), Box<dyn StdError>> {
    // `check` fails for 0, 4 and 8.
    let module = Module::new(
        &Engine::default(),
        r#"(module
            (func $check (param i32) (result i32)
                (i32.eqz (i32.and (local.get 0) (i32.const 3))))
            (func (export "run") (param i32)
                (loop
                    (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
                    (drop (call $check (local.get 0)))
                    (br_if 0 (local.get 0)))))"#,
    )?;
    let session = Session::new(&module, Output::none()).with(RESULTS);
    session.enable("results".parse()?)?;

    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[])?;
    instance.get_typed_func::<i32, ()>(&mut store, "run")?.call(&mut store, 10)?;
    print!("{}", Format::Text.print(&session.reports()));
    Ok(())
}
