//! `globals`: how often each global was read and written, and which values it had.
//!
//! A counter is at each access; for values, a closure is at each write. The probes of a function
//! are made when it is first called.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use wasm_jit::probes::{Bound, Callback, Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::wasmparser::{ExternalKind, KnownCustom, Name, Operator, Parser, Payload, TypeRef, ValType};
use wasm_jit::{FunctionInfo, Instruction, Module, demangle};

use crate::{Cell, Description, Error, LazyProbes, Monitor, OptionInfo, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "globals",
    summary: "Reads and writes of each global variable",
    details: "Accesses by the module's instructions, in all instances; those of the host and of other modules to \
              exported globals are not among them. With the option values also the last, least and greatest value \
              that was written: integers as signed numbers. NaN is neither the least nor the greatest value, \
              unless nothing else was written.",
    options: &[OptionInfo::flag("values", "observes the values that are written")],
    example: "globals{values} app.wasm",
    start: |setup| Ok(Box::new(Globals::of(setup))),
};

struct Globals {
    /// A counter at each access, which fires before the probe that observes the value.
    probes: LazyProbes,
    /// By global, if values are observed.
    written: Option<Vec<Arc<Written>>>,
}

/// An instruction that uses a global.
struct Access {
    offset: u32,
    global: u32,
    is_write: bool,
}

impl Globals {
    fn of(setup: &Setup<'_>) -> Self {
        let observed: Option<Vec<(Arc<Written>, Callback)>> = setup
            .options
            .flag("values")
            .then(|| types(setup.module).into_iter().map(Written::observed).collect());
        let written =
            observed.as_ref().map(|observed| observed.iter().map(|(written, _)| written.clone()).collect());
        let probes = LazyProbes::new(setup, move |function| {
            let mut specs = Vec::new();
            for Access { offset, global, is_write } in accesses(function) {
                let location = Location { function: function.index(), place: Place::Instruction { offset } };
                specs.push(ProbeSpec { location, kind: Kind::Count });
                if is_write
                    && let Some((written, observe)) = observed.as_ref().map(|all| &all[global as usize])
                    // Probes do not pass vectors.
                    && written.ty != ValType::V128
                {
                    let kind =
                        Kind::Callback { function: observe.clone(), values: [Bound::Operand(0)].into() };
                    specs.push(ProbeSpec { location, kind });
                }
            }
            specs
        });
        Self { probes, written }
    }
}

/// The accesses of a function.
fn accesses(function: &FunctionInfo<'_>) -> Vec<Access> {
    let Some(body) = function.body() else { return Vec::new() };
    let start = body.range().start;
    let access = |instruction: Instruction<'_>| {
        let (global, is_write) = match instruction.operator() {
            Operator::GlobalGet { global_index } => (*global_index, false),
            Operator::GlobalSet { global_index } => (*global_index, true),
            _ => return None,
        };
        Some(Access { offset: (instruction.offset() - start) as u32, global, is_write })
    };
    body.instructions().filter_map(access).collect()
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

/// The values that were written to a global, as numbers in the order of the values.
struct Written {
    ty: ValType,
    least: AtomicI64,
    greatest: AtomicI64,
    last: AtomicI64,
    count: AtomicU64,
}

impl Written {
    /// A record without values, and a closure that gets them.
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
        // The sign of a NaN depends on the machine.
        let is_number = !self.is_float() || !unordered(value).is_nan();
        if is_number && value < self.least.load(Ordering::Relaxed) {
            self.least.fetch_min(value, Ordering::Relaxed);
        }
        if is_number && value > self.greatest.load(Ordering::Relaxed) {
            self.greatest.fetch_max(value, Ordering::Relaxed);
        }
        // A thread that reads the last value then reads bounds that include it.
        self.last.store(value, Ordering::Release);
        self.count.store(1, Ordering::Release);
    }

    fn is_float(&self) -> bool {
        matches!(self.ty, ValType::F32 | ValType::F64)
    }

    /// The last, least and greatest value. The least and the greatest are NaN as long as no number
    /// was written: so are the floats of their initial values.
    fn cells(&self) -> [Cell; 3] {
        if self.count.load(Ordering::Acquire) == 0 || matches!(self.ty, ValType::Ref(_)) {
            return [Cell::None, Cell::None, Cell::None];
        }
        let last = self.last.load(Ordering::Acquire);
        let values = [last, self.least.load(Ordering::Relaxed), self.greatest.load(Ordering::Relaxed)];
        values.map(|value| match self.ty {
            // The shortest form that is parsed as this number again.
            ValType::F32 => (unordered(value) as f32).to_string().into(),
            ValType::F64 => unordered(value).to_string().into(),
            _ => value.into(),
        })
    }
}

/// An integer for a float: integers are in the same order as floats, with -0 before 0 and NaN
/// outside.
fn ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

fn unordered(value: i64) -> f64 {
    f64::from_bits((value ^ (((value >> 63) as u64) >> 1) as i64) as u64)
}

impl Monitor for Globals {
    fn activate(&self) -> Result<(), Error> {
        self.probes.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.probes.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        #[derive(Default)]
        struct Used {
            reads: u64,
            writes: u64,
        }
        let mut used: BTreeMap<u32, Used> = BTreeMap::new();
        for function in self.probes.functions() {
            let Some(info) = program.module.function(function) else { continue };
            for Access { offset, global, is_write } in accesses(&info) {
                let location = Location { function, place: Place::Instruction { offset } };
                let Some(count) = self.probes.get(location, Probe::count) else { continue };
                let Used { reads, writes } = used.entry(global).or_default();
                *(if is_write { writes } else { reads }) += count;
            }
        }
        used.retain(|_, used| used.reads + used.writes > 0);
        report.value("reads", used.values().map(|used| used.reads).sum::<u64>());
        report.value("writes", used.values().map(|used| used.writes).sum::<u64>());
        let names = names(program.module);
        let mut rows: Vec<_> = used.into_iter().collect();
        rows.sort_by_key(|(global, used)| (Reverse(used.reads + used.writes), *global));
        let mut columns = vec!["reads", "writes", "global", "name"];
        if self.written.is_some() {
            columns.extend(["last", "least", "greatest"]);
        }
        let mut table = Table::new("by_global", columns);
        for (global, Used { reads, writes }) in rows {
            let name = names.get(&global).map(String::as_str);
            let mut cells = vec![reads.into(), writes.into(), global.into(), name.into()];
            if let Some(written) = &self.written {
                cells.extend(written[global as usize].cells());
            }
            table.row(cells);
        }
        report.table(table);
        self.probes.report_refused(report);
    }
}

/// The names of globals, by index: those of the name section, demangled, or else of exports.
fn names(module: &Module) -> HashMap<u32, String> {
    let (mut names, mut exported) = (HashMap::new(), HashMap::new());
    for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
        match payload {
            Payload::ExportSection(exports) => {
                let globals = exports.into_iter().flatten();
                let globals = globals.filter(|export| export.kind == ExternalKind::Global);
                exported.extend(globals.map(|export| (export.index, export.name.to_owned())));
            }
            Payload::CustomSection(section) => {
                let KnownCustom::Name(sections) = section.as_known() else { continue };
                for section in sections.into_iter().flatten() {
                    let Name::Global(globals) = section else { continue };
                    let globals = globals.into_iter().flatten();
                    names.extend(globals.map(|global| (global.index, demangle(global.name))));
                }
            }
            _ => {}
        }
    }
    exported.extend(names);
    exported
}
