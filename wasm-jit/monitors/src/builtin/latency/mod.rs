//! `latency`: how long calls to functions take, estimated from samples, within a budget.
//!
//! The crate `profiler` decides when the probes of a function are on, and makes the estimates.
//!
//! The probes of a function are made when it is first called, which takes about as long as
//! compiling it: a program pays for the functions that it calls. All calls on the thread's stack
//! wait for this, and so do first calls of other threads; [`on_delays`] lets the profiler know, for
//! probes of all monitors, so that no call is charged for it ([`embedded::interrupted`]). If there
//! are instances when the monitor is activated, functions may be running: then all probes are made
//! at once. While it is off, first calls are not watched, so that the code is the original code.

mod switches;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use profiler::embedded::{self, CALLS, Empty, EntryProbe, Function, Probes, Profiler};
use profiler::options::{Budget, Counts};
use profiler::report::{self, Caller, Estimate, FunctionReport, Report as Latencies, View, json, text};
use profiler::settings::Settings;
use wasm_jit::probes::{FirstCallWatch, UnwoundWatch, on_delays};
use wasm_jit::{Engine, Instance, Module, Store, TypedFunc, printable};

use self::switches::Switches;
use crate::lock::lock;
use crate::{Cell, Description, Error, Monitor, OptionInfo, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "latency",
    summary: "How long calls of functions take, estimated from samples, within a budget",
    details: "The profiler of fastinst, for functions of WebAssembly: calls, time, time in the function itself, \
              and percentiles of the latency, with 95% intervals. Functions that are called rarely are \
              observed all the time, the others in windows at random instants, within the \
              budget. A call that ends in a tail call is over then; one that a trap, an exception or an \
              exit of the program ends counts until then. Calls by the host, and by functions that are not \
              observed, have the caller [not instrumented]. The file report.json is for `fastinst report`. \
              A process has one such monitor at a time.",
    options: &[
        OptionInfo::with_value(
            "budget",
            "N%",
            "the maximum cost, in percent of the program's processor time, or none [default: 1%]",
        ),
        OptionInfo::with_value(
            "counts",
            "WAY",
            "sampled, or exact: counts every call, whatever it costs [default: sampled]",
        ),
    ],
    example: "latency{budget=2%} app.wasm",
    start: |setup| Ok(Box::new(Latency::start(setup)?)),
};

/// The values of the option `budget`.
const BUDGETS: &str = "a percentage above 0% and up to 100%, such as 1%, or none";

struct Latency {
    /// Declared before the probes, which it toggles, so that it is dropped first.
    profiler: Profiler,
    switches: Arc<Switches>,
    module: Module,
    /// While the monitor is on.
    calls: Mutex<Option<FirstCallWatch>>,
    _unwound: UnwoundWatch,
    rows: Option<usize>,
}

impl Latency {
    fn start(setup: &Setup<'_>) -> Result<Self, Error> {
        let default = Settings::default();
        let budget = setup.options.parse::<Budget>("budget", BUDGETS)?.unwrap_or(default.budget);
        let counts = setup.options.parse::<Counts>("counts", "sampled or exact")?;
        let settings = Settings { budget, counts: counts.unwrap_or(default.counts), ..default };
        let module = setup.module;
        let rows = setup.options.parse("rows", "a number")?;
        let functions: Vec<u32> = setup.functions().map(|function| function.index()).collect();
        let profiler = Profiler::new(functions.len(), settings).map_err(refused)?;
        let switches = Arc::new(Switches::new(module, functions));
        let unwound = module.watch_unwound(|frame| embedded::left(frame.frame));
        on_delays(embedded::interrupted);
        let (module, calls) = (module.clone(), Mutex::default());
        let latency = Self { profiler, switches, module, calls, _unwound: unwound, rows };
        latency.watch()?;
        let mut empty = EmptyFunction::new(latency.module.engine(), latency.profiler.number_of_empty())?;
        let probes: Arc<dyn Probes> = latency.switches.clone();
        latency.profiler.start(&probes, &mut empty).map_err(refused)?;
        Ok(latency)
    }

    /// Begins to make probes, unless it has begun.
    fn watch(&self) -> Result<(), Error> {
        let mut calls = lock(&self.calls);
        if calls.is_some() {
            return Ok(());
        }
        let numbers = 0..self.switches.indices().len();
        let values: Vec<u64> = numbers.clone().map(|number| self.profiler.number(number)).collect();
        let switches = self.switches.clone();
        *calls = Some(self.module.watch_first_calls(move |function| {
            switches.number_of(function).into_iter().for_each(|number| switches.make(number, values[number]));
        })?);
        if self.module.has_instances() {
            numbers.for_each(|number| self.switches.make(number, self.profiler.number(number)));
        }
        Ok(())
    }
}

fn refused(error: profiler::error::Error) -> Error {
    match error {
        profiler::error::Error::IsRunning => {
            Error::Exclusive { name: DESCRIPTION.name, reason: error.to_string() }
        }
        error => Error::Nothing(format!("the monitor `latency`: {error}")),
    }
}

impl Monitor for Latency {
    fn activate(&self) -> Result<(), Error> {
        // The profiler is paused: this is no cost of observation.
        self.watch()?;
        self.profiler.resume();
        Ok(())
    }

    fn deactivate(&self) -> Result<(), Error> {
        // No more probes are made, except by a thread that is about to call a function.
        *lock(&self.calls) = None;
        self.profiler.pause();
        self.switches.deactivate()
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let function_at =
            |address: usize| self.switches.number_of(program.module.function_at(address as u64)?);
        let known: RefCell<HashMap<usize, Function>> = RefCell::default();
        let describe = |number: usize| {
            let describe = || described(program, self.switches.indices()[number]);
            known.borrow_mut().entry(number).or_insert_with(describe).clone()
        };
        let latencies = self.profiler.report(&function_at, &describe);
        report.value("timed", latencies.samples);
        report.value("toggles", latencies.toggles);
        let hint = "the option rows=N, or --monitor-out and fastinst report latency.report.json, show more";
        let limit = self.rows.unwrap_or(text::ROWS_ON_A_TERMINAL);
        report.text(text::render(&latencies, &View { limit: Some(limit), hint, ..View::default() }));
        let refused = self.switches.refused();
        if refused > 0 {
            report
                .text(format!("{refused} functions cannot be compiled with probes, and are not observed\n"));
        }
        report.table(functions(&latencies).hidden());
        report.table(arcs(&latencies).hidden());
        report.file("report.json", |out| out.write_all(json::to_string(&latencies).as_bytes()));
    }
}

/// The entry of a function in the report.
fn described(program: &Program<'_>, function: u32) -> Function {
    let info = program.module.function(function);
    let body = info.and_then(|info| info.body());
    let start = body.map_or(0, |body| body.range().start);
    let first = body.and_then(|body| body.instructions().next());
    let line = first.map(|first| program.line(function, (first.offset() - start) as u32));
    Function {
        name: printable(&program.function_name(function)).into_owned(),
        object: program.module.name().unwrap_or("module").to_owned(),
        address: start as u64,
        location: match line {
            Some(Cell::Text(line)) => Some(line.to_string()),
            _ => None,
        },
    }
}

/// The function with which the profiler measures the cost of probes.
struct EmptyFunction {
    switches: Switches,
    store: Store<()>,
    run: TypedFunc<i32, ()>,
}

impl EmptyFunction {
    fn new(engine: &Engine, number: u64) -> Result<Self, Error> {
        const TEXT: &str = "(module (func) (func (export \"run\") (param i32) (loop
            (call 0) (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";
        let failed = |error: wasm_jit::Error| Error::Nothing(format!("the monitor `latency`: {error}"));
        let module = Module::new(engine, TEXT).map_err(failed)?;
        let switches = Switches::new(&module, vec![0]);
        switches.make(0, number);
        let mut store = Store::new(engine, ());
        let instance = Instance::new(&mut store, &module, &[]).map_err(failed)?;
        let run = instance.get_typed_func(&mut store, "run").map_err(failed)?;
        Ok(Self { switches, store, run })
    }
}

impl Empty for EmptyFunction {
    fn switch(&mut self, entry: EntryProbe) {
        self.switches.switch_exits(0, entry == EntryProbe::Timed);
        self.switches.switch_entry(0, entry);
    }

    fn call(&mut self) {
        // Fails if programs of this engine consume none.
        let _ = self.store.set_fuel(u64::MAX);
        self.run.call(&mut self.store, CALLS as i32).expect("a loop");
    }
}

/// A figure, and the limits of its interval.
fn figure(estimate: Option<Estimate>, places: usize) -> [Cell; 3] {
    let Some(Estimate { value, low, high }) = estimate else { return [const { Cell::None }; 3] };
    [Some(value), Some(low), high].map(|value| match (value, places) {
        (None, _) => Cell::None,
        (Some(value), 0) => Cell::Int(value.round() as i128),
        (Some(value), places) => Cell::Float(value, places),
    })
}

/// The same columns as `fastinst report --format csv`.
fn functions(latencies: &Latencies) -> Table {
    let columns = "name object address location samples calls calls_low calls_high total_ns total_ns_low \
                   total_ns_high self_ns self_ns_low self_ns_high mean_ns mean_ns_low mean_ns_high p50_ns \
                   p50_ns_low p50_ns_high p90_ns p90_ns_low p90_ns_high p99_ns p99_ns_low p99_ns_high min_ns \
                   max_ns below_resolution recursive open_calls off_cpu_samples off_cpu_ns";
    let mut table = Table::new("functions", columns.split_whitespace());
    for function in latencies.ranked() {
        let FunctionReport { latency_ns: latency, off_cpu, .. } = function;
        let mut row = vec![
            function.name.as_str().into(),
            function.object.as_str().into(),
            Cell::Hex(function.address),
            function.location.as_deref().into(),
            function.samples.into(),
        ];
        row.extend(figure(Some(function.calls), 0));
        row.extend(figure(function.total_ns, 0));
        row.extend(figure(function.self_ns, 0));
        let known = |pick: fn(&report::Latency) -> Estimate| {
            figure(latency.and_then(|latency| latency.known(pick(&latency))), 1)
        };
        row.extend(known(|latency| latency.mean));
        row.extend(known(|latency| latency.p50));
        row.extend(known(|latency| latency.p90));
        row.extend(known(|latency| latency.p99));
        let tenths = |value: Option<f64>| value.map_or(Cell::None, |value| Cell::Float(value, 1));
        row.extend([
            tenths(latency.map(|latency| latency.min)),
            tenths(latency.map(|latency| latency.max)),
            latency.map(|latency| latency.below_resolution.to_string()).into(),
            function.recursive.to_string().into(),
            function.open_calls.into(),
            off_cpu.map(|off_cpu| off_cpu.samples).into(),
            off_cpu.map(|off_cpu| off_cpu.ns).into(),
        ]);
        table.row(row);
    }
    table
}

fn arcs(latencies: &Latencies) -> Table {
    let names: HashMap<_, &str> =
        latencies.functions.iter().map(|function| (function.key(), function.name.as_str())).collect();
    let columns = "caller callee calls calls_low calls_high total_ns total_ns_low total_ns_high";
    let mut table = Table::new("arcs", columns.split_whitespace());
    let mut arcs: Vec<_> = latencies.arcs.iter().collect();
    arcs.sort_by(|a, b| {
        b.calls
            .value
            .total_cmp(&a.calls.value)
            .then_with(|| (&a.caller, &a.callee).cmp(&(&b.caller, &b.callee)))
    });
    for arc in arcs {
        let caller = match &arc.caller {
            Caller::Function(function) => names.get(function).copied().unwrap_or_default(),
            Caller::Other(text) => text,
        };
        let mut row = vec![caller.into(), names.get(&arc.callee).copied().unwrap_or_default().into()];
        row.extend(figure(Some(arc.calls), 0));
        row.extend(figure(arc.total_ns, 0));
        table.row(row);
    }
    table
}
