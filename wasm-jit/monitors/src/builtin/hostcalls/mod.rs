//! `hostcalls`: the host functions that the program calls.
//!
//! Each call has two probes: one at the call, and one at the instruction after it, where the
//! results are the top operands of the stack. Each thread keeps a stack of the calls that have
//! begun; when a frame is left, its call is removed. The probes of a function are made when it is
//! first called. With the option `trace`, generic probes at the same locations read the data in the
//! program's memory to which the arguments of WASI functions point.

mod wasi;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use wasm_jit::probes::{
    Bound, Callback, Called, Frame, GenericFn, Kind, Location, Place, ProbeSpec, UnwoundWatch, Values,
};
use wasm_jit::wasmparser::{Operator, ValType};
use wasm_jit::{FunctionInfo, ValType as Type};
use wasm_jit_hooks::Period;

use super::clock::Clock;
use super::contexts::host_in_tables;
use super::operands::{OperandTypes, bounds, listed};
use super::other_functions::{self, Callee};
use super::trace_stream::{Files, Lines};
use crate::lock::lock;
use crate::names::Names;
use crate::{
    Cell, Description, Error, LazyProbes, Monitor, OptionInfo, Program, Report, Setup, Stream, Table,
};

pub(super) const DESCRIPTION: Description = Description {
    name: "hostcalls",
    summary: "Calls of the host's functions: counts, times, errors; with the option trace, each call",
    details: "As strace does for system calls: how often the program has called each imported function, and those of \
              other modules that it has called by a table or a reference (MODULE::NAME), how long \
              the calls took (wall-clock time, including what the host calls in the program meanwhile), and how \
              many returned an error of WASI. Calls that did not return have ended the program, or have left the \
              calling function by a trap or an exception, or have returned when the monitor had been switched off; \
              they have no time. The column symbol has the name of the function in the other monitors' reports. Calls by tables and references are included, except those that trap because there is no function or one of another type; of a tail call of the host, the return is not seen. With the option trace, a line is written \
              for each call when it has returned, with arguments and results; those of WASI preview 1 by names, \
              with texts and the beginnings of buffers (except in tail calls by tables or references). Lines go to the file hostcalls.log of --monitor-out, or \
              else to standard error.",
    options: &[
        OptionInfo::flag("trace", "writes a line for each call"),
        OptionInfo::flag(
            "json",
            "writes the trace as lines of JSON, to the file hostcalls.jsonl; arguments and results are texts",
        ),
        OptionInfo::flag("csv", "writes the trace as CSV, to the file hostcalls.trace.csv"),
    ],
    example: "hostcalls{trace} app.wasm",
    start,
};

const FILES: Files = Files { text: "hostcalls.log", json: "hostcalls.jsonl", csv: "hostcalls.trace.csv" };

struct Hostcalls {
    shared: Arc<Shared>,
    probes: LazyProbes,
    _watch: UnwoundWatch,
}

struct Shared {
    /// Identifies the monitor in the threads.
    number: u64,
    period: Period,
    clock: Clock,
    /// Imported functions.
    functions: Vec<Arc<Function>>,
    /// Functions that are not imported, by their [numbers](other_functions).
    others: Mutex<BTreeMap<u32, Arc<Function>>>,
    /// The number of calls, by imported function and error.
    errors: Mutex<BTreeMap<(u32, u64), u64>>,
    /// For lines, if any are written.
    stream: Option<Mutex<Stream>>,
    lines: Lines,
    threads: AtomicU64,
}

/// A host function, or one of another module.
struct Function {
    /// The index of an imported function, or the number of another one.
    number: u32,
    name: Arc<str>,
    wasi: Option<wasi::Function>,
    returns_errors: bool,
    params: Vec<Option<ValType>>,
    results: Vec<Option<ValType>>,
    calls: AtomicU64,
    returned: AtomicU64,
    errors: AtomicU64,
    ticks: AtomicU64,
    longest: AtomicU64,
}

/// A call that has not returned.
struct Begun {
    frame: u64,
    site: u64,
    function: Arc<Function>,
    at: u64,
    arguments: Arguments,
}

enum Arguments {
    None,
    /// As text.
    Shown(String),
    Wasi(wasi::Begun),
}

struct Local {
    shared: Weak<Shared>,
    of: u64,
    thread: u64,
    /// The [`Period`] in which the calls have begun.
    period: u64,
    begun: Vec<Begun>,
    /// The arguments that the generic probe at a call has read, and the call's site.
    read: Option<(u64, Arguments)>,
    /// The line that the generic probe after the call is to write: the call, its time, its results.
    returned: Option<(Begun, u64, Vec<u64>)>,
}

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

fn type_of(ty: Type) -> Option<ValType> {
    Some(match ty {
        Type::I32 => ValType::I32,
        Type::I64 => ValType::I64,
        Type::F32 => ValType::F32,
        Type::F64 => ValType::F64,
        Type::V128 => ValType::V128,
        Type::Ref(_) => ValType::FUNCREF,
    })
}

impl Function {
    fn new(
        number: u32,
        name: Arc<str>,
        wasi: Option<wasi::Function>,
        params: Vec<Option<ValType>>,
        results: Vec<Option<ValType>>,
    ) -> Self {
        let zero = AtomicU64::default;
        Self {
            number,
            name,
            wasi,
            returns_errors: wasi.is_some() && results.len() == 1,
            params,
            results,
            calls: zero(),
            returned: zero(),
            errors: zero(),
            ticks: zero(),
            longest: zero(),
        }
    }
}

impl Shared {
    fn with(self: &Arc<Self>, function: impl FnOnce(&mut Local)) {
        // Programs that run while their thread is ending are not observed.
        let _ = LOCALS.try_with(|locals| {
            let Ok(mut locals) = locals.try_borrow_mut() else { return };
            let known = locals.iter().position(|local| local.of == self.number);
            let at = known.unwrap_or_else(|| {
                locals.retain(|local| local.shared.strong_count() > 0);
                let thread = self.threads.fetch_add(1, Ordering::Relaxed) + 1;
                let (shared, of, period) = (Arc::downgrade(self), self.number, self.period.current());
                let begun = Vec::new();
                locals.push(Local { shared, of, thread, period, begun, read: None, returned: None });
                locals.len() - 1
            });
            let local = &mut locals[at];
            if self.period.has_changed(&mut local.period) {
                // They may have returned while the monitor was off.
                self.abandon(local, |_| true);
            }
            function(local);
        });
    }

    /// The function that an indirect call is about to call, unless it is one of the module itself,
    /// or the call traps.
    fn function(&self, called: &Called<'_>) -> Option<Arc<Function>> {
        let number = match Callee::of(called) {
            Callee::None => return None,
            Callee::Of(index) => return self.functions.get(index as usize).cloned(),
            Callee::Other(number) => number,
        };
        let mut others = lock(&self.others);
        let new = || {
            let name = other_functions::name(number).unwrap_or_default();
            Arc::new(Function::new(number, name, None, Vec::new(), Vec::new()))
        };
        Some(others.entry(number).or_insert_with(new).clone())
    }

    /// A call begins; `values` are its arguments.
    fn begin(
        self: &Arc<Self>,
        site: u64,
        frame: u64,
        function: Arc<Function>,
        values: &[u64],
        is_tail: bool,
    ) {
        self.with(|local| {
            // Calls of frames that have ended, or that have caught an exception of the host.
            self.abandon(local, |begun| begun.frame <= frame);
            function.calls.fetch_add(1, Ordering::Relaxed);
            // Arguments of another site belong to an indirect call that did not lead to the host.
            let read = local.read.take().filter(|(of, _)| *of == site);
            let arguments = match (&self.stream, read) {
                (None, _) => Arguments::None,
                (Some(_), Some((_, read))) => read,
                (Some(_), None) => Arguments::Shown(listed(&function.params, values)),
            };
            let begun = Begun { frame, site, function, at: self.clock.now(), arguments };
            match is_tail {
                true => self.write(local, &begun, "?", None),
                false => local.begun.push(begun),
            }
        });
    }

    /// Control reaches the instruction after a call, perhaps by returning from it. A generic probe
    /// after it may write the line.
    fn end(self: &Arc<Self>, site: u64, frame: u64, results: &[u64], is_written_later: bool) {
        let now = self.clock.now();
        self.with(|local| {
            self.abandon(local, |begun| begun.frame < frame);
            let Some(begun) = local.begun.pop_if(|begun| (begun.frame, begun.site) == (frame, site)) else {
                return;
            };
            let elapsed = now.saturating_sub(begun.at);
            let function = &begun.function;
            function.returned.fetch_add(1, Ordering::Relaxed);
            function.ticks.fetch_add(elapsed, Ordering::Relaxed);
            function.longest.fetch_max(elapsed, Ordering::Relaxed);
            if let ([code, ..], true) = (results, function.returns_errors)
                && *code != 0
            {
                function.errors.fetch_add(1, Ordering::Relaxed);
                let mut errors = lock(&self.errors);
                *errors.entry((function.number, *code)).or_default() += 1;
            }
            match begun.arguments {
                Arguments::Wasi(_) if is_written_later => {
                    local.returned = Some((begun, elapsed, results.to_vec()));
                }
                Arguments::Wasi(_) | Arguments::Shown(_) => {
                    self.write(local, &begun, &listed(&begun.function.results, results), Some(elapsed))
                }
                Arguments::None => {}
            }
        });
    }

    /// Ends calls that have not returned.
    fn abandon(&self, local: &mut Local, is_over: impl Fn(&Begun) -> bool) {
        while let Some(begun) = local.begun.pop_if(|begun| is_over(begun)) {
            self.write(local, &begun, "?", None);
        }
    }

    /// Writes a line of a call, whose arguments are complete.
    fn write(&self, local: &Local, begun: &Begun, results: &str, ticks: Option<u64>) {
        let Some(stream) = &self.stream else { return };
        let arguments = match &begun.arguments {
            Arguments::None => String::new(),
            Arguments::Shown(arguments) => arguments.clone(),
            Arguments::Wasi(read) => read.end(false, &mut |_, _| false),
        };
        self.write_line(stream, local, &begun.function, &arguments, results, ticks);
    }

    fn write_line(
        &self,
        stream: &Mutex<Stream>,
        local: &Local,
        function: &Function,
        arguments: &str,
        results: &str,
        ticks: Option<u64>,
    ) {
        let (name, seconds) = (self.lines.quoted(&function.name), ticks.map(|ticks| self.seconds(ticks)));
        let line = match self.lines {
            Lines::Json => {
                let line = serde_json::json!({
                    "thread": local.thread,
                    "function": &*function.name,
                    "arguments": arguments,
                    "results": results,
                    "seconds": seconds,
                });
                format!("{line}\n")
            }
            Lines::Csv => {
                let [arguments, results] = [arguments, results].map(|text| self.lines.quoted(text));
                let seconds = seconds.map_or(String::new(), |seconds| format!("{seconds:.9}"));
                format!("{},{name},{arguments},{results},{seconds}\n", local.thread)
            }
            Lines::Text => {
                let thread = if local.thread > 1 { format!("[{}] ", local.thread) } else { String::new() };
                let results = if results.is_empty() { String::new() } else { format!(" = {results}") };
                let time = seconds.map_or(String::new(), |seconds| format!(" <{seconds:.6}>"));
                format!("{thread}{name}({arguments}){results}{time}\n")
            }
        };
        // The program continues, even if the lines cannot be written.
        let _ = lock(stream).write_all(line.as_bytes());
    }

    fn seconds(&self, ticks: u64) -> f64 {
        ticks as f64 * self.clock.nanoseconds_per_tick() / 1e9
    }

    /// Reads the arguments of a call to a function of WASI, and the data to which they point. They
    /// are `above` operands below the top.
    fn read(&self, frame: &mut Frame<'_>, function: &Function, above: u32) -> Option<Arguments> {
        let wasi = function.wasi?;
        let count = function.params.len() as u32;
        let values = (above..above + count).rev().map(|depth| match frame.operand(depth) {
            Ok(wasm_jit::Val::I32(value)) => value.into(),
            Ok(wasm_jit::Val::I64(value)) => value,
            _ => 0,
        });
        let values: Vec<i64> = values.collect();
        let begun = wasi.begin(&values, &mut |address, buffer| frame.read_memory(0, address, buffer).is_ok());
        Some(Arguments::Wasi(begun))
    }

    /// Reads the arguments of a call that is about to begin.
    fn read_before(self: &Arc<Self>, frame: &mut Frame<'_>, site: u64, function: usize) {
        let read = self.read(frame, &self.functions[function], 0);
        self.with(|local| local.read = read.map(|read| (site, read)));
    }

    /// Reads the arguments of the call that has just begun by a table or a reference, if it is one
    /// of WASI. These do not call the program: no other one can have begun at this site.
    fn read_begun(self: &Arc<Self>, frame: &mut Frame<'_>, site: u64) {
        let mut function = None;
        self.with(|local| {
            let begun = local.begun.last().filter(|begun| begun.site == site);
            function = begun.map(|begun| begun.function.clone());
        });
        // The index or the reference is on top of the arguments.
        let Some(read) = function.and_then(|function| self.read(frame, &function, 1)) else { return };
        self.with(|local| {
            if let Some(begun) = local.begun.last_mut() {
                begun.arguments = read;
            }
        });
    }

    /// Writes the line of the WASI call that has just returned.
    fn write_returned(self: &Arc<Self>, frame: &mut Frame<'_>) {
        let Some(stream) = &self.stream else { return };
        self.with(|local| {
            let Some((begun, ticks, results)) = local.returned.take() else { return };
            let Arguments::Wasi(read) = &begun.arguments else { return };
            let code = results.first().copied();
            let mut read_memory = |address, buffer: &mut [u8]| frame.read_memory(0, address, buffer).is_ok();
            let arguments = read.end(code == Some(0), &mut read_memory);
            let results = match code {
                Some(0) => "0".to_owned(),
                Some(code) => format!("{code} {}", wasi::error(code)),
                None => String::new(),
            };
            self.write_line(stream, local, &begun.function, &arguments, &results, Some(ticks));
        });
    }
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let imported: Vec<(FunctionInfo<'_>, Option<wasi::Function>)> =
        setup.module.functions().filter(|function| function.body().is_none()).map(with_wasi).collect();
    let names = Names::of(setup.module);
    let name = |(function, wasi): &(FunctionInfo<'_>, Option<wasi::Function>)| {
        // As in strace, without the name of the interface.
        let of_wasi = wasi.and_then(|_| Some(function.import()?.name().to_owned()));
        of_wasi.unwrap_or_else(|| names.get(function))
    };
    let unique = Names::among(imported.iter().map(|of| (of.0.index(), name(of))));
    let functions: Vec<Arc<Function>> = imported
        .iter()
        .map(|of| {
            let (function, wasi) = of;
            let ty = function.ty();
            let name = unique.complete(function.index(), name(of)).into();
            let (params, results) = (ty.params().map(type_of), ty.results().map(type_of));
            Arc::new(Function::new(function.index(), name, *wasi, params.collect(), results.collect()))
        })
        .collect();
    let imports = functions.len();
    let lines = Lines::of(setup)?;
    let stream = lines.trace(setup, FILES, "thread,function,arguments,results,seconds")?.map(Mutex::new);
    let shared = Arc::new(Shared {
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        period: Period::default(),
        clock: Clock::get(),
        functions,
        others: Mutex::default(),
        errors: Mutex::default(),
        stream,
        lines,
        threads: AtomicU64::new(0),
    });
    let calls = Calls::of(setup, &shared, imports);
    let probes = LazyProbes::new(setup, move |function| calls.specs(function));
    let watched = shared.clone();
    let watch = setup.module.watch_unwound(move |left| {
        watched.with(|local| watched.abandon(local, |begun| begun.frame <= left.frame));
    });
    Ok(Box::new(Hostcalls { shared, probes, _watch: watch }))
}

/// An imported function, and which one of WASI it is.
fn with_wasi(function: FunctionInfo<'_>) -> (FunctionInfo<'_>, Option<wasi::Function>) {
    let import = function.import();
    let params = function.ty().params().len();
    let wasi = import.and_then(|import| wasi::Function::named(import.module(), import.name(), params));
    (function, wasi)
}

/// The last call, for the probes after it.
struct Last {
    site: u64,
    results: Types,
    /// Whether a generic probe writes the call's line.
    is_written_later: bool,
}

type Types = Vec<Option<ValType>>;

/// What the probes at calls, and after them, do.
struct Calls {
    shared: Arc<Shared>,
    types: OperandTypes,
    /// The number of imported functions.
    imports: usize,
    /// Whether functions of the host may be in tables.
    host_in_tables: bool,
    begins: Callback,
    begins_tail: Callback,
    begins_indirect: Callback,
    begins_indirect_tail: Callback,
    ends: Callback,
    /// For calls whose lines `writes` writes.
    ends_unwritten: Callback,
    writes: GenericFn,
    /// The number of sites so far.
    sites: AtomicU64,
}

impl Calls {
    fn of(setup: &Setup<'_>, shared: &Arc<Shared>, imports: usize) -> Self {
        let direct = |is_tail: bool| {
            let shared = shared.clone();
            Callback::new(move |values| {
                let function = shared.functions[values[2] as usize].clone();
                shared.begin(values[0], values[1], function, &values[3..], is_tail)
            })
        };
        let indirect = |is_tail: bool| {
            let shared = shared.clone();
            Callback::with_callee(move |values, called| {
                if let Some(function) = shared.function(called) {
                    shared.begin(values[0], values[1], function, &values[2..], is_tail);
                }
            })
        };
        let ends = |is_written_later: bool| {
            let shared = shared.clone();
            Callback::new(move |values| shared.end(values[0], values[1], &values[2..], is_written_later))
        };
        let of_writes = shared.clone();
        let writes = GenericFn::new(move |frame| {
            of_writes.write_returned(frame);
            Ok(())
        });
        Self {
            shared: shared.clone(),
            types: OperandTypes::of(setup.module),
            imports,
            host_in_tables: host_in_tables(setup.module, imports as u32),
            begins: direct(false),
            begins_tail: direct(true),
            begins_indirect: indirect(false),
            begins_indirect_tail: indirect(true),
            ends: ends(false),
            ends_unwritten: ends(true),
            writes,
            sites: AtomicU64::new(0),
        }
    }

    /// The probes of a function: those before a call come after those behind earlier calls.
    fn specs(&self, function: &FunctionInfo<'_>) -> Vec<ProbeSpec> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        // The call of the last instruction.
        let mut last: Option<Last> = None;
        self.types.visit(function, |offset, operator, operands, results| {
            let location = Location { function: function.index(), place: Place::Instruction { offset } };
            if let Some(last) = last.take() {
                self.after(location, &last, &mut after);
            }
            last = self.before(location, operator, &operands, results, &mut before);
        });
        after.extend(before);
        after
    }

    /// Adds the probes at the instruction after a call.
    fn after(&self, location: Location, last: &Last, specs: &mut Vec<ProbeSpec>) {
        let callback = if last.is_written_later { &self.ends_unwritten } else { &self.ends };
        let values = vec![Bound::Const(last.site), Bound::Frame];
        specs.push(call_back(location, callback, values, &last.results, 0));
        if last.is_written_later {
            specs.push(ProbeSpec { location, kind: Kind::Generic(self.writes.clone()) });
        }
    }

    /// Adds the probes at an instruction, if it may call the host; returns the call, if control
    /// returns from it.
    fn before(
        &self,
        location: Location,
        operator: &Operator<'_>,
        operands: &[Option<ValType>],
        results: Types,
        specs: &mut Vec<ProbeSpec>,
    ) -> Option<Last> {
        let is_host = |function: &u32| (*function as usize) < self.imports;
        let (callback, callee, above, is_tail) = match operator {
            Operator::Call { function_index } if is_host(function_index) => {
                (&self.begins, Some(*function_index), 0, false)
            }
            Operator::ReturnCall { function_index } if is_host(function_index) => {
                (&self.begins_tail, Some(*function_index), 0, true)
            }
            // The index or the reference is on top of the arguments.
            Operator::CallIndirect { .. } if self.host_in_tables => (&self.begins_indirect, None, 1, false),
            Operator::ReturnCallIndirect { .. } if self.host_in_tables => {
                (&self.begins_indirect_tail, None, 1, true)
            }
            // The source of a reference is not known.
            Operator::CallRef { .. } => (&self.begins_indirect, None, 1, false),
            Operator::ReturnCallRef { .. } => (&self.begins_indirect_tail, None, 1, true),
            _ => return None,
        };
        let site = self.sites.fetch_add(1, Ordering::Relaxed);
        let arguments = &operands[..operands.len().saturating_sub(above as usize)];
        let is_direct = above == 0;
        let with_values = self.shared.stream.is_some();
        // Whether the callee is, or may be, a function of WASI.
        let is_wasi = with_values
            && self.shared.functions.iter().any(|function| {
                let fits = match callee {
                    Some(callee) => callee == function.number,
                    None => !is_tail && function.params == arguments && function.results == results,
                };
                fits && function.wasi.is_some()
            });
        let generic = |read: GenericFn| ProbeSpec { location, kind: Kind::Generic(read) };
        if let (Some(function), true) = (callee, is_wasi) {
            let shared = self.shared.clone();
            specs.push(generic(GenericFn::new(move |frame| {
                shared.read_before(frame, site, function as usize);
                Ok(())
            })));
        }
        let shown = if with_values { arguments } else { &[] };
        let callee = callee.map(|callee| Bound::Const(callee.into()));
        let values = [Bound::Const(site), Bound::Frame].into_iter().chain(callee).collect();
        specs.push(call_back(location, callback, values, shown, above));
        if is_wasi && !is_direct {
            let shared = self.shared.clone();
            specs.push(generic(GenericFn::new(move |frame| {
                shared.read_begun(frame, site);
                Ok(())
            })));
        }
        (!is_tail).then_some(Last { site, results, is_written_later: is_wasi })
    }
}

/// A probe that passes values, and the operands that are `above` operands below the top.
fn call_back(
    location: Location,
    callback: &Callback,
    mut values: Vec<Bound>,
    operands: &[Option<ValType>],
    above: u32,
) -> ProbeSpec {
    values.extend(bounds(operands, above));
    let kind = Kind::Callback { function: callback.clone(), values: Values::from(&values[..]) };
    ProbeSpec { location, kind }
}

impl Monitor for Hostcalls {
    fn activate(&self) -> Result<(), Error> {
        self.shared.period.begin();
        self.probes.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.shared.period.end();
        let switched = self.probes.switch(false);
        self.flush();
        switched
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        self.flush();
        let mut has_probes = false;
        self.probes.for_each(|_| has_probes = true);
        if !has_probes {
            report.text("  The functions that were called do not call the host.\n");
        }
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let shared = &self.shared;
        let rate = shared.clock.nanoseconds_per_tick();
        let nanoseconds = |ticks: u64| (ticks as f64 * rate) as u64;
        let others = lock(&shared.others).clone();
        let functions = shared.functions.iter().chain(others.values());
        let mut called: Vec<(&Arc<Function>, u64)> =
            functions.map(|function| (function, nanoseconds(get(&function.ticks)))).collect();
        called.retain(|(function, _)| get(&function.calls) > 0);
        called.sort_by_key(|(function, time)| (Reverse(*time), Reverse(get(&function.calls))));
        let total = called.iter().map(|(_, time)| time).sum();
        report.value("calls", called.iter().map(|(function, _)| get(&function.calls)).sum::<u64>());
        report.value("errors", called.iter().map(|(function, _)| get(&function.errors)).sum::<u64>());
        report.value("nanoseconds", total);
        let columns = [
            "share",
            "total ns",
            "mean ns",
            "longest ns",
            "calls",
            "errors",
            "not returned",
            "function",
            "symbol",
        ];
        let mut table = Table::new("functions", columns);
        for (function, time) in called {
            // The later count is read first: no more calls have returned than have begun.
            let returned = get(&function.returned);
            let calls = get(&function.calls);
            let other = other_functions::name(function.number);
            table.row([
                Cell::share(time, total),
                time.into(),
                time.checked_div(returned).into(),
                nanoseconds(get(&function.longest)).into(),
                calls.into(),
                if function.returns_errors { get(&function.errors).into() } else { Cell::None },
                calls.saturating_sub(returned).into(),
                // Of other functions of one name, some may have been unknown at first.
                Cell::Text(other.clone().unwrap_or_else(|| function.name.clone())),
                other.map_or_else(|| program.name(function.number), Cell::Text),
            ]);
        }
        report.table(table);
        let errors = lock(&shared.errors).clone();
        if !errors.is_empty() {
            let mut errors: Vec<_> = errors.into_iter().collect();
            errors.sort_by_key(|((function, code), calls)| (Reverse(*calls), *function, *code));
            let mut table = Table::new("by_error", ["calls", "code", "error", "function"]);
            for ((function, code), calls) in errors {
                let name = shared.functions[function as usize].name.clone();
                table.row([calls.into(), code.into(), wasi::error(code).into(), Cell::Text(name)]);
            }
            report.table(table);
        }
        self.probes.report_refused(report);
    }
}

impl Hostcalls {
    fn flush(&self) {
        if let Some(stream) = &self.shared.stream {
            // Nothing can be done about lines that cannot be written.
            let _ = lock(stream).flush();
        }
    }
}
