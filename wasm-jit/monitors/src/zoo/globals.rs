//! `globals`: how often each global variable was read and written, and which values it had.
//!
//! A counter at each access; for values, a closure at each write.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use wasm_jit::Module;
use wasm_jit::probes::{Bound, Callback, Kind, Location, Probe, ProbeSpec};
use wasm_jit::wasmparser::{ExternalKind, Operator, Parser, Payload, TypeRef, ValType};

use super::counts::instruction;
use super::graph::Graph;
use super::listing::Listing;
use crate::{Cell, Description, Error, Monitor, OptionInfo, Program, Report, Setup, Table, make, switch};

pub(super) const DESCRIPTION: Description = Description {
    name: "globals",
    summary: "Reads and writes of each global variable",
    details: "Accesses by the module's instructions, in all instances; those of the host and of other modules to \
              exported globals are not among them. With the option values also the last, least and greatest value \
              that was written: integers as signed numbers.",
    options: &[OptionInfo { name: "values", value: "", help: "observes the values that are written" }],
    example: "globals{values} app.wasm",
    start,
};

struct Globals {
    /// At accesses.
    counters: Vec<Probe>,
    /// At writes.
    observers: Vec<Probe>,
    /// The global, and whether it is written.
    accesses: HashMap<Location, (u32, bool)>,
    written: BTreeMap<u32, Arc<Written>>,
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let (mut counters, mut observers, mut accesses) = (Vec::new(), Vec::new(), HashMap::new());
    let mut written: BTreeMap<u32, (Arc<Written>, Callback)> = BTreeMap::new();
    let types = types(setup.module);
    for graph in setup.functions().filter_map(|function| Graph::of(&function)) {
        for index in 0..graph.len() {
            let (global, is_write) = match graph.flow.instructions[index].1 {
                Operator::GlobalGet { global_index } => (global_index, false),
                Operator::GlobalSet { global_index } => (global_index, true),
                _ => continue,
            };
            let location = graph.location(index);
            accesses.insert(location, (global, is_write));
            counters.push(ProbeSpec { location, kind: Kind::Count });
            // Probes do not pass vectors.
            let is_passed = types[global as usize] != ValType::V128;
            if is_write && is_passed && setup.options.flag("values") {
                let (_, observe) =
                    written.entry(global).or_insert_with(|| Written::observed(types[global as usize]));
                let kind = Kind::Callback { function: observe.clone(), values: [Bound::Operand(0)].into() };
                observers.push(ProbeSpec { location, kind });
            }
        }
    }
    Ok(Box::new(Globals {
        counters: make(setup.module, &counters)?,
        observers: make(setup.module, &observers)?,
        accesses,
        written: written.into_iter().map(|(global, (written, _))| (global, written)).collect(),
    }))
}

/// The types of a module's globals, in the order of their indices.
fn types(module: &Module) -> Vec<ValType> {
    let mut types = Vec::new();
    for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
        match payload {
            Payload::ImportSection(imports) => {
                let imported = imports.into_imports().flatten().filter_map(|import| match import.ty {
                    TypeRef::Global(global) => Some(global.content_type),
                    _ => None,
                });
                types.extend(imported);
            }
            Payload::GlobalSection(globals) => {
                types.extend(globals.into_iter().flatten().map(|global| global.ty.content_type));
            }
            Payload::CodeSectionStart { .. } => break,
            _ => {}
        }
    }
    types
}

/// The values that were written to a global, as numbers that are in the order of the values.
struct Written {
    ty: ValType,
    least: AtomicI64,
    greatest: AtomicI64,
    last: AtomicI64,
    count: AtomicU64,
}

impl Written {
    /// None so far, and a closure that gets them.
    fn observed(ty: ValType) -> (Arc<Self>, Callback) {
        let written = Arc::new(Self {
            ty,
            least: AtomicI64::new(i64::MAX),
            greatest: AtomicI64::new(i64::MIN),
            last: AtomicI64::new(0),
            count: AtomicU64::new(0),
        });
        let of_closure = written.clone();
        (written, Callback::new(move |values| of_closure.add(values[0])))
    }

    fn add(&self, bits: u64) {
        let value = match self.ty {
            ValType::I32 => i64::from(bits as i32),
            ValType::F32 => ordered(f64::from(f32::from_bits(bits as u32))),
            ValType::F64 => ordered(f64::from_bits(bits)),
            _ => bits as i64,
        };
        if value < self.least.load(Ordering::Relaxed) {
            self.least.fetch_min(value, Ordering::Relaxed);
        }
        if value > self.greatest.load(Ordering::Relaxed) {
            self.greatest.fetch_max(value, Ordering::Relaxed);
        }
        // Whoever reads the last value then reads bounds that include it.
        self.last.store(value, Ordering::Release);
        self.count.store(1, Ordering::Release);
    }

    /// The last, least and greatest value.
    fn cells(&self) -> [Cell; 3] {
        if self.count.load(Ordering::Acquire) == 0 || matches!(self.ty, ValType::Ref(_)) {
            return [Cell::None, Cell::None, Cell::None];
        }
        let last = self.last.load(Ordering::Acquire);
        let values = [last, self.least.load(Ordering::Relaxed), self.greatest.load(Ordering::Relaxed)];
        values.map(|value| match self.ty {
            // The shortest form that is read as this number again.
            ValType::F32 => (unordered(value) as f32).to_string().into(),
            ValType::F64 => unordered(value).to_string().into(),
            _ => value.into(),
        })
    }
}

/// A number for a float: numbers are in the same order as floats, -0 before 0, NaN outside.
fn ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

fn unordered(value: i64) -> f64 {
    f64::from_bits((value ^ (((value >> 63) as u64) >> 1) as i64) as u64)
}

impl Monitor for Globals {
    fn activate(&self) -> Result<(), Error> {
        switch(&self.counters, true)?;
        switch(&self.observers, true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        switch(&self.counters, false)?;
        switch(&self.observers, false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        #[derive(Default)]
        struct Used {
            reads: u64,
            writes: u64,
        }
        // Names of globals are in the text of each instruction that uses them.
        let example: HashMap<u32, (u32, u32)> = self
            .counters
            .iter()
            .filter_map(|probe| {
                let location = probe.spec().location;
                Some((self.accesses[&location].0, instruction(location)?))
            })
            .collect();
        let listing = Listing::of(program.module, example.values().copied());
        let mut used: BTreeMap<u32, Used> = BTreeMap::new();
        for probe in &self.counters {
            let location = probe.spec().location;
            let (global, is_write) = self.accesses[&location];
            let Used { reads, writes } = used.entry(global).or_default();
            *(if is_write { writes } else { reads }) += probe.count();
        }
        used.retain(|_, used| used.reads + used.writes > 0);
        report.value("reads", used.values().map(|used| used.reads).sum::<u64>());
        report.value("writes", used.values().map(|used| used.writes).sum::<u64>());
        let exports = exports(program.module);
        let mut rows: Vec<_> = used.into_iter().collect();
        rows.sort_by_key(|(global, used)| (Reverse(used.reads + used.writes), *global));
        let mut columns = vec!["reads", "writes", "global", "name"];
        if !self.observers.is_empty() {
            columns.extend(["last", "least", "greatest"]);
        }
        let mut table = Table::new("by_global", columns);
        for (global, Used { reads, writes }) in rows {
            let (function, offset) = example[&global];
            let name = listing.text(program.module, function, offset).and_then(name_in);
            let name = name.or_else(|| exports.get(&global).cloned());
            let mut cells = vec![reads.into(), writes.into(), global.into(), name.into()];
            if !self.observers.is_empty() {
                let none = || [Cell::None, Cell::None, Cell::None];
                cells.extend(self.written.get(&global).map_or_else(none, |written| written.cells()));
            }
            table.row(cells);
        }
        report.table(table);
    }
}

/// The name of the global in the text of an instruction, such as `global.get $stack`.
fn name_in(text: &str) -> Option<String> {
    let (_, name) = text.split_once('$')?;
    Some(name.trim_matches('"').to_owned())
}

/// The names of exported globals.
fn exports(module: &Module) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
        if let Payload::ExportSection(exports) = payload {
            let globals = exports.into_iter().flatten().filter(|export| export.kind == ExternalKind::Global);
            names.extend(globals.map(|export| (export.index, export.name.escape_default().to_string())));
        }
    }
    names
}
