//! `trace`: every instruction that is executed, with its operands.
//!
//! Probes at all chosen instructions get the operands, whose number and types the validator of the
//! module knows, and write a line into a buffer of the thread. A probe at the entry of each
//! function keeps the frames of the thread, whose number is the depth: those that are deeper than a
//! frame that executes something have ended.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use wasm_jit::Module;
use wasm_jit::probes::{Bound, Callback, Kind, Location, Place, Probe, ProbeSpec, Values};
use wasm_jit::wasmparser::{Operator, ValType};
use wildmatch::WildMatch;

use super::listing::Listing;
use super::operands::{Operand, each_instruction};
use crate::{Cell, Description, Error, Monitor, OptionInfo, Program, Report, Setup, Stream, make, switch};

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
        OptionInfo {
            name: "opcode",
            value: "GLOB",
            help: "traces only instructions whose name matches, such as *.load* or call*; may be repeated",
        },
        OptionInfo {
            name: "limit",
            value: "N",
            help: "ends after this many instructions [default: no limit]",
        },
    ],
    example: "trace{function=main,opcode=call*} app.wasm",
    start,
};

/// When a thread writes what it has.
const FULL: usize = 64 << 10;

struct Trace {
    shared: Arc<Shared>,
    probes: Vec<Probe>,
}

struct Shared {
    /// Identifies it in the threads.
    number: u64,
    stream: Mutex<Stream>,
    threads: Mutex<Vec<Arc<Thread>>>,
    threads_so_far: AtomicU64,
    /// What may still be traced.
    left: AtomicU64,
    is_limited: bool,
    lines: AtomicU64,
    has_failed: AtomicBool,
}

/// What a thread has not written yet.
struct Thread {
    number: u64,
    lines: Mutex<String>,
}

struct Local {
    shared: Weak<Shared>,
    of: u64,
    thread: Arc<Thread>,
    /// Addresses of frames, in descending order.
    frames: Vec<u64>,
}

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn with(self: &Arc<Self>, function: impl FnOnce(&mut Local)) {
        // Programs that run while their thread ends are not traced.
        let _ = LOCALS.try_with(|locals| {
            let Ok(mut locals) = locals.try_borrow_mut() else { return };
            let known = locals.iter().position(|local| local.of == self.number);
            let at = known.unwrap_or_else(|| {
                locals.retain(|local| local.shared.strong_count() > 0);
                let number = self.threads_so_far.fetch_add(1, Ordering::Relaxed) + 1;
                let thread = Arc::new(Thread { number, lines: Mutex::default() });
                lock(&self.threads).push(thread.clone());
                let shared = Arc::downgrade(self);
                locals.push(Local { shared, of: self.number, thread, frames: Vec::new() });
                locals.len() - 1
            });
            function(&mut locals[at]);
        });
    }

    /// Writes what threads have.
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

    /// Whether one more instruction may be traced.
    fn take(&self) -> bool {
        !self.is_limited
            || self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
    }
}

impl Local {
    /// A frame executes something: those that are deeper have ended.
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

/// An instruction, as it is written.
struct Site {
    /// Offset, function, instruction.
    text: String,
    operands: Box<[Option<ValType>]>,
    is_local: bool,
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let opcodes = setup.options.globs("opcode");
    let limit = setup.options.parse::<u64>("limit", "a number")?;
    let shared = Arc::new(Shared {
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        stream: Mutex::new(setup.stream("trace.log")?),
        threads: Mutex::default(),
        threads_so_far: AtomicU64::new(0),
        left: AtomicU64::new(limit.unwrap_or(u64::MAX)),
        is_limited: limit.is_some(),
        lines: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
    });
    let mut specs = entries(setup.module, &shared);
    let before = specs.len();
    specs.extend(instructions(setup, &shared, opcodes.as_deref()));
    if specs.len() == before {
        return Err(Error::Nothing("no instruction matches the options `function` and `opcode`".to_owned()));
    }
    let probes = make(setup.module, &specs)?;
    Ok(Box::new(Trace { shared, probes }))
}

/// Probes that keep the frames of each thread.
fn entries(module: &Module, shared: &Arc<Shared>) -> Vec<ProbeSpec> {
    let shared = shared.clone();
    let enter = Callback::new(move |values| {
        shared.with(|local| {
            while local.frames.pop_if(|known| *known <= values[0]).is_some() {}
            local.frames.push(values[0]);
        });
    });
    let bodies = module.functions().filter(|function| function.body().is_some());
    bodies
        .map(|function| {
            let kind = Kind::Callback { function: enter.clone(), values: Values::from([Bound::Frame]) };
            ProbeSpec { location: Location { function: function.index(), place: Place::Entry }, kind }
        })
        .collect()
}

/// Probes that write lines.
fn instructions(setup: &Setup<'_>, shared: &Arc<Shared>, opcodes: Option<&[WildMatch]>) -> Vec<ProbeSpec> {
    let module = setup.module;
    let bodies = setup.functions().filter_map(|function| Some((function.index(), function.body()?)));
    let listing = Listing::of(
        module,
        bodies.flat_map(|(function, body)| {
            let start = body.range().start;
            body.instructions().map(move |instruction| (function, (instruction.offset() - start) as u32))
        }),
    );
    let symbols = module.symbols();
    let chosen: Vec<u32> = setup.functions().map(|function| function.index()).collect();
    let mut sites: Vec<Site> = Vec::new();
    let mut places: Vec<(Location, Box<[Bound]>)> = Vec::new();
    each_instruction(module, |function, offset, operator, operands, _| {
        if chosen.binary_search(&function).is_err() {
            return;
        }
        let text = listing.text(module, function, offset).unwrap_or("?");
        // Without comments, and the last `end` by its name.
        let text = text.split(" ;;").next().and_then(|text| text.split(" (;").next()).unwrap_or(text);
        let text = if text == ")" { "end" } else { text };
        let name = text.split(' ').next().unwrap_or(text);
        if !opcodes.is_none_or(|globs| globs.iter().any(|glob| glob.matches(name))) {
            return;
        }
        let start = module
            .function(function)
            .and_then(|function| function.body())
            .map_or(0, |body| body.range().start);
        let text =
            format!("{:#08x} {}: {text}", start as u64 + u64::from(offset), symbols.function(function));
        let mut bounds = vec![Bound::Const(sites.len() as u64), Bound::Frame];
        let (operands, is_local) = match operator {
            Operator::LocalGet { local_index } => {
                let ty = local_type(module, function, *local_index);
                bounds.push(unless_vector(ty, Bound::Local(*local_index)));
                (vec![ty], true)
            }
            _ => {
                let depths = (0..operands.len() as u32).rev().map(Bound::Operand);
                bounds.extend(operands.iter().zip(depths).map(|(ty, operand)| unless_vector(*ty, operand)));
                (operands, false)
            }
        };
        places.push((Location { function, place: Place::Instruction { offset } }, bounds.into()));
        sites.push(Site { text, operands: operands.into(), is_local });
    });
    let shared = shared.clone();
    let executed = Callback::new(move |values| {
        if !shared.take() {
            return;
        }
        let site = &sites[values[0] as usize];
        shared.with(|local| {
            let depth = local.depth(values[1]);
            let thread = local.thread.clone();
            let mut lines = lock(&thread.lines);
            let _ = write!(lines, "{} {depth:>4} {}", thread.number, site.text);
            if site.is_local {
                lines.push_str(" =");
            }
            for (value, ty) in values[2..].iter().zip(&site.operands) {
                let _ = write!(lines, " {}", Operand(*value, *ty));
            }
            lines.push('\n');
            if lines.len() >= FULL {
                shared.write(&mut lines);
            }
        });
        shared.lines.fetch_add(1, Ordering::Relaxed);
    });
    let spec = |(location, bounds): (Location, Box<[Bound]>)| {
        let kind = Kind::Callback { function: executed.clone(), values: Values::from(&*bounds) };
        ProbeSpec { location, kind }
    };
    places.into_iter().map(spec).collect()
}

fn local_type(module: &Module, function: u32, local: u32) -> Option<ValType> {
    let function = module.function(function)?;
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

/// The value, unless it is a vector, which probes do not pass: it is shown by its type.
fn unless_vector(ty: Option<ValType>, value: Bound) -> Bound {
    if ty == Some(ValType::V128) { Bound::Const(0) } else { value }
}

impl Monitor for Trace {
    fn activate(&self) -> Result<(), Error> {
        switch(&self.probes, true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        let switched = switch(&self.probes, false);
        self.shared.flush();
        switched
    }

    fn report(&self, _: &Program<'_>, report: &mut Report) {
        self.shared.flush();
        report.value("instructions", self.shared.lines.load(Ordering::Relaxed));
        report.value("threads", self.shared.threads_so_far.load(Ordering::Relaxed));
        if self.shared.is_limited && self.shared.left.load(Ordering::Relaxed) == 0 {
            report.value("ended", Cell::from("at the limit"));
        }
        if self.shared.has_failed.load(Ordering::Relaxed) {
            report.value("lost", Cell::from("some lines could not be written"));
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.deactivate();
    }
}
