//! `trace`: every instruction that is executed, with its operands.
//!
//! Probes at all chosen instructions get the operands, whose number and types the validator of the
//! module knows, and write a line into a buffer of the thread. A probe at the entry of each
//! function keeps track of the frames of the thread, whose number is the depth: frames that are
//! deeper than one that executes an instruction have ended.
//!
//! The probes of a function, and the texts of its instructions, are made when it is first called.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use wasm_jit::probes::{Bound, Callback, Kind, Lane, Location, Place, ProbeSpec, Values};
use wasm_jit::wasmparser::{Operator, ValType};
use wasm_jit::{FunctionInfo, Module};
use wasm_jit_hooks::Period;
use wildmatch::WildMatch;

use super::excerpt::Excerpts;
use super::listing::Listing;
use super::operands::{OperandTypes, bounds, operands};
use super::trace_stream::{Files, Lines};
use crate::lazy::Order;
use crate::lock::lock;
use crate::names::Names;
use crate::{Cell, Description, Error, LazyProbes, Monitor, OptionInfo, Program, Report, Setup, Stream};

pub(super) const DESCRIPTION: Description = Description {
    name: "trace",
    summary: "Every executed instruction, with its operands and the depth of calls",
    details: "A line has the number of the thread, the depth of calls, the instruction's offset in the module, its \
              function, the instruction, and its operands, the last one on top of the stack; `local.get` has the \
              value that it reads. A line is written before the instruction is executed, so the last one of a \
              thread that has trapped is the instruction that did. Lines of a thread are in order; those of \
              different threads come in blocks. They go to the file trace.log of --monitor-out, or else to \
              standard error, through a buffer of each thread, which is written when it is full, with each report, \
              when the monitor is switched off, and when the thread ends. The depth counts calls of functions since \
              the monitor was switched on.",
    options: &[
        OptionInfo::repeated(
            "opcode",
            "GLOB",
            "traces only instructions whose name matches, such as *.load* or call*; may be repeated",
        ),
        OptionInfo::with_value(
            "limit",
            "N",
            "ends after this many instructions, and then costs nothing more [default: no limit]",
        ),
        OptionInfo::flag(
            "json",
            "writes lines of JSON, to the file trace.jsonl; operands are texts; as --monitor-format json does \
             without --monitor-out",
        ),
        OptionInfo::flag(
            "csv",
            "writes rows of CSV, to the file trace.lines.csv; as --monitor-format csv does",
        ),
    ],
    example: "trace{function=main,opcode=call*} app.wasm",
    start,
};

/// The size at which a thread's buffer is written.
const FULL: usize = 64 << 10;

const FILES: Files = Files { text: "trace.log", json: "trace.jsonl", csv: "trace.lines.csv" };

struct Trace {
    shared: Arc<Shared>,
    probes: Arc<LazyProbes>,
}

struct Shared {
    /// Identifies the monitor in the threads.
    number: u64,
    period: Period,
    stream: Mutex<Stream>,
    threads: Mutex<Vec<Arc<Thread>>>,
    threads_so_far: AtomicU64,
    /// The number of lines that may still be traced.
    left: AtomicU64,
    is_limited: bool,
    /// Those of the monitor, which are switched off at the limit.
    probes: OnceLock<Weak<LazyProbes>>,
    lines: AtomicU64,
    has_failed: AtomicBool,
}

/// The lines that a thread has not written yet.
struct Thread {
    number: u64,
    lines: Mutex<String>,
}

struct Local {
    shared: Weak<Shared>,
    of: u64,
    thread: Arc<Thread>,
    /// The [`Period`] of the frames.
    period: u64,
    /// Addresses of frames, in descending order.
    frames: Vec<u64>,
}

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

impl Shared {
    fn with(self: &Arc<Self>, function: impl FnOnce(&mut Local)) {
        // Programs that run while their thread is ending are not traced.
        let _ = LOCALS.try_with(|locals| {
            let Ok(mut locals) = locals.try_borrow_mut() else { return };
            let known = locals.iter().position(|local| local.of == self.number);
            let at = known.unwrap_or_else(|| {
                locals.retain(|local| local.shared.strong_count() > 0);
                let number = self.threads_so_far.fetch_add(1, Ordering::Relaxed) + 1;
                let thread = Arc::new(Thread { number, lines: Mutex::default() });
                lock(&self.threads).push(thread.clone());
                let (shared, period) = (Arc::downgrade(self), self.period.current());
                locals.push(Local { shared, of: self.number, thread, period, frames: Vec::new() });
                locals.len() - 1
            });
            let local = &mut locals[at];
            if self.period.has_changed(&mut local.period) {
                // They may have ended while the monitor was off.
                local.frames.clear();
            }
            function(local);
        });
    }

    /// Writes the lines that threads have buffered.
    fn flush(&self) {
        for thread in lock(&self.threads).iter() {
            self.write(&mut lock(&thread.lines));
        }
        self.note(lock(&self.stream).flush().is_ok());
    }

    fn write(&self, lines: &mut String) {
        self.note(lock(&self.stream).write_all(lines.as_bytes()).is_ok());
        lines.clear();
    }

    fn note(&self, is_written: bool) {
        if !is_written {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the limit is reached.
    fn has_ended(&self) -> bool {
        self.is_limited && self.left.load(Ordering::Relaxed) == 0
    }

    /// Whether one more instruction may be traced, which is then counted.
    fn take(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        !self.is_limited || self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// Called after a line: switches the probes off if it is the last one.
    fn end_at_limit(&self) {
        if self.has_ended()
            && let Some(probes) = self.probes.get().and_then(Weak::upgrade)
        {
            // Those that stay on trace nothing; the monitor's end switches them off, or fails.
            let _ = probes.switch(false);
        }
    }
}

impl Local {
    /// Called when a frame executes an instruction: frames that are deeper have ended. Returns the
    /// depth.
    fn depth(&mut self, frame: u64) -> usize {
        while self.frames.pop_if(|known| *known < frame).is_some() {}
        self.frames.len()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut threads = lock(&shared.threads);
            threads.retain(|thread| !Arc::ptr_eq(thread, &self.thread));
            shared.write(&mut lock(&self.thread.lines));
        }
    }
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let limit = setup.options.parse::<u64>("limit", "a number")?;
    let lines = Lines::of(setup)?;
    let instructions = Instructions {
        chosen: setup.functions().map(|function| function.index()).collect(),
        opcodes: setup.options.globs("opcode"),
        names: Names::of(setup.module),
        excerpts: Excerpts::of(setup.module),
        types: OperandTypes::of(setup.module),
        module: setup.module.clone(),
        lines,
    };
    if !instructions.exist() {
        let opcodes: Vec<&str> = setup.options.all("opcode").collect();
        return Err(match opcodes.is_empty() {
            true => Error::Nothing("the module has no instructions to trace".to_owned()),
            false => Error::Value {
                option: "opcode".to_owned(),
                value: opcodes.join(","),
                expected: "the opcode of an instruction of the functions that are traced".to_owned(),
            },
        });
    }
    let shared = Arc::new(Shared {
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        period: Period::default(),
        stream: Mutex::new(lines.stream(
            setup,
            FILES,
            "thread,depth,offset,function,instruction,operands",
        )?),
        threads: Mutex::default(),
        threads_so_far: AtomicU64::new(0),
        left: AtomicU64::new(limit.unwrap_or(u64::MAX)),
        is_limited: limit.is_some(),
        probes: OnceLock::new(),
        lines: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
    });
    // The depth counts the frames of all functions.
    let bodies = setup.module.functions().filter(|function| function.body().is_some());
    let bodies: Vec<u32> = bodies.map(|function| function.index()).collect();
    let (enter, of_probes) = (enter(&shared), shared.clone());
    let specs = move |function: &FunctionInfo<'_>| {
        let kind = Kind::Callback { function: enter.clone(), values: Values::from([Bound::Frame]) };
        let location = Location { function: function.index(), place: Place::Entry };
        let mut specs = vec![ProbeSpec { location, kind }];
        specs.extend(instructions.of(function).map(|sites| sites.probes(&of_probes)).unwrap_or_default());
        specs
    };
    let probes = Arc::new(LazyProbes::of(setup.module, bodies, Order::Functions, specs));
    shared.probes.get_or_init(|| Arc::downgrade(&probes));
    Ok(Box::new(Trace { shared, probes }))
}

/// The closure at the entry of functions, which keeps track of the frames of each thread.
fn enter(shared: &Arc<Shared>) -> Callback {
    let shared = shared.clone();
    Callback::new(move |values| {
        shared.with(|local| {
            while local.frames.pop_if(|known| *known <= values[0]).is_some() {}
            local.frames.push(values[0]);
        });
    })
}

/// The instructions to trace.
struct Instructions {
    module: Module,
    /// The functions, in ascending order.
    chosen: Vec<u32>,
    opcodes: Option<Vec<WildMatch>>,
    names: Names,
    excerpts: Excerpts,
    types: OperandTypes,
    lines: Lines,
}

impl Instructions {
    /// Whether there are any. Functions are examined until one is found.
    fn exist(&self) -> bool {
        if self.opcodes.is_none() {
            return !self.chosen.is_empty();
        }
        // Instructions with one operator have one name.
        let mut seen = HashSet::new();
        let functions = self.chosen.iter().filter_map(|function| self.module.function(*function));
        functions.into_iter().any(|function| {
            let instructions = function.body().into_iter().flat_map(|body| body.instructions());
            let mut has_new = false;
            instructions
                .for_each(|instruction| has_new |= seen.insert(mem::discriminant(instruction.operator())));
            has_new && self.of(&function).is_some_and(|sites| !sites.all.is_empty())
        })
    }

    /// The traced instructions of a function, if it is chosen.
    fn of(&self, function: &FunctionInfo<'_>) -> Option<Sites> {
        let index = function.index();
        self.chosen.binary_search(&index).ok()?;
        let module = &self.module;
        let listing = Listing::of_function(module, &self.excerpts, index);
        let start = function.body()?.range().start as u64;
        let name = self.lines.quoted(&self.names.get(function)).into_owned();
        let (lines, texts) = (self.lines, String::new());
        let mut sites = Sites { function: index, start, name, texts, lines, all: Vec::new() };
        self.types.visit(function, |offset, operator, operands, _| {
            let text = listing.text(module, index, offset).unwrap_or("?");
            // Without comments.
            let text = text.split(" ;;").next().and_then(|text| text.split(" (;").next()).unwrap_or(text);
            let name = text.split(' ').next().unwrap_or(text);
            let is_chosen = |globs: &Vec<WildMatch>| globs.iter().any(|glob| glob.matches(name));
            if !self.opcodes.as_ref().is_none_or(is_chosen) {
                return;
            }
            let (operands, local) = match operator {
                Operator::LocalGet { local_index } => {
                    (vec![local_type(function, *local_index)], Some(*local_index))
                }
                _ => (operands, None),
            };
            let from = sites.texts.len();
            sites.texts.push_str(&self.lines.quoted(text));
            let (text, operands) = (from..sites.texts.len(), operands.into());
            sites.all.push(Site { offset, text, operands, local });
        });
        Some(sites)
    }
}

/// The traced instructions of a function.
struct Sites {
    function: u32,
    /// The offset of the body in the module.
    start: u64,
    name: String,
    /// The texts of all instructions, concatenated.
    texts: String,
    /// Names and texts are quoted for it.
    lines: Lines,
    all: Vec<Site>,
}

struct Site {
    /// The offset from the start of the body.
    offset: u32,
    text: Range<usize>,
    operands: Box<[Option<ValType>]>,
    /// The local that a `local.get` reads.
    local: Option<u32>,
}

impl Sites {
    /// Probes that write lines.
    fn probes(self, shared: &Arc<Shared>) -> Vec<ProbeSpec> {
        let sites = Arc::new(self);
        let (shared, of_closure) = (shared.clone(), sites.clone());
        let executed = Callback::new(move |values| {
            if !shared.take() {
                return;
            }
            shared.with(|local| {
                let depth = local.depth(values[1]);
                let thread = local.thread.clone();
                let mut lines = lock(&thread.lines);
                of_closure.write(values[0] as usize, thread.number, depth, &values[2..], &mut lines);
                if lines.len() >= FULL {
                    shared.write(&mut lines);
                }
            });
            shared.lines.fetch_add(1, Ordering::Relaxed);
            shared.end_at_limit();
        });
        let spec = |(number, site): (usize, &Site)| {
            let mut values = vec![Bound::Const(number as u64), Bound::Frame];
            match site.local {
                Some(local) if site.operands[0] == Some(ValType::V128) => {
                    values.extend([Lane::Low, Lane::High].map(|lane| Bound::LocalLane(local, lane)));
                }
                Some(local) => values.push(Bound::Local(local)),
                None => values.extend(bounds(&site.operands, 0)),
            }
            let place = Place::Instruction { offset: site.offset };
            let kind = Kind::Callback { function: executed.clone(), values: Values::from(&*values) };
            ProbeSpec { location: Location { function: sites.function, place }, kind }
        };
        sites.all.iter().enumerate().map(spec).collect()
    }

    /// Writes the line of an instruction.
    fn write(&self, site: usize, thread: u64, depth: usize, values: &[u64], lines: &mut String) {
        let Site { offset, text, operands: types, local } = &self.all[site];
        let (offset, text) = (self.start + u64::from(*offset), &self.texts[text.clone()]);
        if self.lines == Lines::Json {
            let _ = write!(
                lines,
                "{{\"thread\":{thread},\"depth\":{depth},\"offset\":{offset},\"function\":{},\"instruction\":{text}",
                self.name
            );
            lines.push_str(",\"operands\":[");
            for (at, operand) in operands(types, values).enumerate() {
                let comma = if at > 0 { "," } else { "" };
                let _ = write!(lines, "{comma}\"{operand}\"");
            }
            lines.push_str("]}\n");
            return;
        }
        if self.lines == Lines::Csv {
            let _ = write!(lines, "{thread},{depth},{offset:#x},{},{text},", self.name);
            for (at, operand) in operands(types, values).enumerate() {
                let space = if at > 0 { " " } else { "" };
                let _ = write!(lines, "{space}{operand}");
            }
            lines.push('\n');
            return;
        }
        let _ = write!(lines, "{thread} {depth:>4} {offset:#08x} {}: {text}", self.name);
        if local.is_some() {
            lines.push_str(" =");
        }
        operands(types, values).for_each(|operand| {
            let _ = write!(lines, " {operand}");
        });
        lines.push('\n');
    }
}

fn local_type(function: &FunctionInfo<'_>, local: u32) -> Option<ValType> {
    let ty = function.ty();
    let params = ty.params();
    let count = params.len();
    let found = match (local as usize).checked_sub(count) {
        None => params.into_iter().nth(local as usize),
        Some(local) => function.body()?.locals().nth(local),
    };
    Some(match found? {
        wasm_jit::ValType::I32 => ValType::I32,
        wasm_jit::ValType::I64 => ValType::I64,
        wasm_jit::ValType::F32 => ValType::F32,
        wasm_jit::ValType::F64 => ValType::F64,
        wasm_jit::ValType::V128 => ValType::V128,
        wasm_jit::ValType::Ref(_) => ValType::FUNCREF,
    })
}

impl Monitor for Trace {
    fn activate(&self) -> Result<(), Error> {
        if self.shared.has_ended() {
            return Ok(());
        }
        self.shared.period.begin();
        self.probes.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.shared.period.end();
        let switched = self.probes.switch(false);
        self.shared.flush();
        switched
    }

    fn report(&self, _: &Program<'_>, report: &mut Report) {
        self.shared.flush();
        report.value("instructions", self.shared.lines.load(Ordering::Relaxed));
        report.value("threads", self.shared.threads_so_far.load(Ordering::Relaxed));
        if self.shared.has_ended() {
            report.value("ended", Cell::from("at the limit; later instructions were not counted"));
        }
        if self.shared.has_failed.load(Ordering::Relaxed) {
            report.value("lost", Cell::from("some lines could not be written"));
        }
        self.probes.report_refused(report);
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.deactivate();
    }
}
