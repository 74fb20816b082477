//! `profile`: calls between functions with counts and times, in the format of gprof.
//!
//! The format is that of WasmProf (Burgess, "Profiling WebAssembly", chapter 5), whose interface
//! for programs is also available. Unlike there and in gprof, the times of calls are not estimated
//! from the times of functions: they come from the [calling contexts](super::contexts), which time
//! each call separately.

mod arcs;
mod graph;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use wasm_jit::Module;

pub use self::arcs::CallArcs;
use self::graph::Graph;
use super::contexts::{CONTEXTS_OPTION, Contexts, Measure, TIMES_OPTION};
use crate::lock::lock;
use crate::{Cell, Description, Error, Monitor, Program, Report, Stream};

pub(super) const DESCRIPTION: Description = Description {
    name: "profile",
    summary: "Calls between functions, with counts and times: gprof's flat profile and call graph",
    details: "A time is wall-clock time in milliseconds: of the function itself (self), of what it calls \
              (children), and of both (cumulative). An entry of the call graph has a line for the function, above \
              it one for each caller and below it one for each callee, with the part of the time that belongs \
              to this call; these parts are measured, not estimated. A function that the host calls has the \
              caller <spontaneous>. Calls of a function that is already being executed, as in recursion, are \
              counted after a plus sign; their time belongs to the outermost call, and a line with such \
              calls only has a count without a slash, as calls within a cycle of gprof. Functions that \
              call each other are marked <cycle N>. The time of a function of the host that a tail call calls is that of \
              the function to which it returns. The cost of observing a call is measured and subtracted; \
              the rest of it makes functions with many calls look more expensive. With times=sampled, calls are as \
              exact, but times are estimates from the functions that run at random instants, and contain the cost \
              of observing, which is smaller: some nanoseconds for each call. Of a run of a few milliseconds, \
              nothing but bounds is known. Programs may \
              import the functions of WasmProf from the module `prof`: getTime, clearResults, addArcData, \
              setArcData, printResults; the number of a function there is its index plus 1, and 0 is the host. The command \
              defines them if there are monitors, or may be some later (--control); without this one, they do \
              nothing.",
    options: &[TIMES_OPTION, CONTEXTS_OPTION],
    example: "profile{rows=50} app.wasm",
    start: |setup| {
        let rows = setup.options.parse("rows", "a number")?.unwrap_or(ROWS);
        let contexts = Contexts::of(setup, Measure::of(setup)?)?;
        let stream = Mutex::new(setup.stream("profile.printed.txt")?);
        let module = setup.module.clone();
        Ok(Box::new(Profile(Arc::new(State { module, contexts, given: Mutex::default(), stream, rows }))))
    },
};

/// Maximum number of functions that are shown.
const ROWS: usize = 20;

struct Profile(Arc<State>);

struct State {
    module: Module,
    contexts: Contexts,
    /// Arcs that the program or the host has given.
    given: Mutex<BTreeMap<(u32, u32), ArcData>>,
    /// The stream for results that the program requests.
    stream: Mutex<Stream>,
    rows: usize,
}

/// A number of calls, and their time in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct ArcData {
    calls: u64,
    time: f64,
}

impl State {
    fn graph(&self, program: &Program<'_>) -> Graph {
        Graph::new(&self.contexts.merged(), &lock(&self.given), program)
    }
}

impl Monitor for Profile {
    fn activate(&self) -> Result<(), Error> {
        self.0.contexts.activate()
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.contexts.deactivate()
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let graph = self.0.graph(program);
        report.value(
            "calls",
            graph.functions.iter().map(|function| function.calls + function.recursive).sum::<u64>(),
        );
        report.value("milliseconds", Cell::Float(graph.total, 3));
        report.value("functions_called", graph.functions.len());
        report.value("arcs_called", graph.arcs.len());
        if graph.left_out > 0 {
            report.value("calls left out", graph.left_out);
        }
        if let Some(estimate) = &graph.estimate {
            estimate.add_to(report);
        }
        report.text(graph.flat(self.0.rows));
        report.text("\n");
        report.text(graph.call_graph(self.0.rows));
        report.table(graph.function_table());
        report.table(graph.arc_table());
        self.0.contexts.report_refused(report);
        report.file("flat.txt", |out| out.write_all(graph.flat(usize::MAX).as_bytes()));
        report.file("graph.txt", |out| out.write_all(graph.call_graph(usize::MAX).as_bytes()));
    }

    fn interface(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(CallArcs::new(self.0.clone())))
    }
}
