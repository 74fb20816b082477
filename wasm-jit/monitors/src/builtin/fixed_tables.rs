//! Indirect calls through tables that never change: a call is counted by its index in the table.
//!
//! A probe at the call appends the index to a buffer of the running store ([`Recorder`]); the
//! functions are those of the module's element segments. A table never changes if neither code of
//! the module nor other instances can write it: it is neither imported nor exported, and no
//! instruction of the module does so. Calls of functions with another type trap.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use wasm_jit::Module;
use wasm_jit::probes::{Bound, Kind, NO_FUNCTION, Recorder};
use wasm_jit::wasmparser::{
    ConstExpr, ElementItems, ElementKind, ExternalKind, Operator, Parser, Payload, TableInit, TypeRef,
};

use super::signatures::Signatures;
use crate::Error;
use crate::lock::lock;

/// Larger tables are not treated in this way: each call has a count for each of its elements.
const MAX_LENGTH: u64 = 4096;

/// The functions in a table by their indices, [`NO_FUNCTION`] where there is none.
type Table = Arc<[u64]>;

/// The tables of a module; `None` for one that may change.
fn tables(module: &Module) -> Vec<Option<Table>> {
    let mut tables: Vec<Option<Vec<u64>>> = Vec::new();
    let mut imported_functions = 0;
    for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
        match payload {
            Payload::ImportSection(imports) => {
                for import in imports.into_imports().flatten() {
                    match import.ty {
                        TypeRef::Table(_) => tables.push(None),
                        TypeRef::Func(_) | TypeRef::FuncExact(_) => imported_functions += 1,
                        _ => {}
                    }
                }
            }
            Payload::TableSection(section) => {
                for table in section.into_iter().flatten() {
                    let is_fixed = matches!(table.init, TableInit::RefNull) && table.ty.initial <= MAX_LENGTH;
                    tables.push(is_fixed.then(|| vec![NO_FUNCTION; table.ty.initial as usize]));
                }
            }
            Payload::ExportSection(exports) => {
                let exported = exports.into_iter().flatten();
                for export in exported.filter(|export| export.kind == ExternalKind::Table) {
                    tables[export.index as usize] = None;
                }
            }
            Payload::ElementSection(elements) => {
                for element in elements.into_iter().flatten() {
                    let ElementKind::Active { table_index, offset_expr } = &element.kind else { continue };
                    let place = &mut tables[table_index.unwrap_or(0) as usize];
                    let Some(table) = place else { continue };
                    let filled = constant(offset_expr)
                        .zip(functions(element.items))
                        .is_some_and(|(at, functions)| fill(table, at, &functions, imported_functions));
                    if !filled {
                        *place = None;
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                if tables.iter().all(Option::is_none) {
                    break;
                }
                for operator in body.get_operators_reader().into_iter().flatten().flatten() {
                    if let Some(table) = written(&operator) {
                        tables[table as usize] = None;
                    }
                }
            }
            _ => {}
        }
    }
    tables.into_iter().map(|table| table.map(Arc::from)).collect()
}

/// Writes the functions of a segment. `false` if it does not fit, which traps when the module is
/// instantiated, or has an imported function, which may be one of several imports.
fn fill(table: &mut [u64], at: usize, functions: &[u64], imported: u64) -> bool {
    let place = at.checked_add(functions.len()).and_then(|end| table.get_mut(at..end));
    let is_own = |function: &u64| *function >= imported;
    place.filter(|_| functions.iter().all(is_own)).is_some_and(|place| {
        place.copy_from_slice(functions);
        true
    })
}

/// The table that an instruction writes.
fn written(operator: &Operator<'_>) -> Option<u32> {
    match operator {
        Operator::TableSet { table }
        | Operator::TableGrow { table }
        | Operator::TableFill { table }
        | Operator::TableInit { table, .. }
        | Operator::TableCopy { dst_table: table, .. } => Some(*table),
        _ => None,
    }
}

/// The value of an expression that is a constant.
fn constant(expression: &ConstExpr<'_>) -> Option<usize> {
    match expression.get_operators_reader().read().ok()? {
        Operator::I32Const { value } => Some(value as u32 as usize),
        _ => None,
    }
    .filter(|_| length(expression) == 2)
}

/// The functions that a segment names.
fn functions(items: ElementItems<'_>) -> Option<Vec<u64>> {
    match items {
        ElementItems::Functions(indices) => Some(indices.into_iter().flatten().map(u64::from).collect()),
        ElementItems::Expressions(_, items) => {
            let function = |item: ConstExpr<'_>| match item.get_operators_reader().read().ok()? {
                Operator::RefFunc { function_index } if length(&item) == 2 => Some(function_index.into()),
                Operator::RefNull { .. } => Some(NO_FUNCTION),
                _ => None,
            };
            items.into_iter().map(|item| function(item.ok()?)).collect()
        }
    }
}

/// The number of instructions, with the `end`.
fn length(expression: &ConstExpr<'_>) -> usize {
    expression.get_operators_reader().into_iter().count()
}

/// The calls of an instruction.
struct Calls {
    table: Table,
    /// By index in the table; the last one is for all others. Empty before the first call.
    counts: Vec<u64>,
}

/// The tables of a module, and the types of its functions.
struct Tables {
    all: Vec<Option<Table>>,
    signatures: Signatures,
}

impl Tables {
    /// The functions that calls of a type call through a table.
    fn of_type(&self, table: u32, ty: u32) -> Option<Table> {
        let callee = |function: &u64| match *function {
            NO_FUNCTION => Some(NO_FUNCTION),
            function => self
                .signatures
                .is_same(function as u32, ty)
                .map(|is_same| if is_same { function } else { NO_FUNCTION }),
        };
        self.all.get(table as usize)?.as_ref()?.iter().map(callee).collect()
    }
}

/// For a table and the type of a call: the functions that are called. `None` if the types are not
/// known to be the same or different.
type Typed = BTreeMap<(u32, u32), Option<Table>>;

/// The calls of all instructions, by their numbers.
#[derive(Clone)]
pub(super) struct FixedTables {
    module: Module,
    /// Known since the first call: all code is read for them.
    tables: Arc<OnceLock<Tables>>,
    typed: Arc<Mutex<Typed>>,
    calls: Arc<Mutex<Vec<Calls>>>,
    recorder: Recorder,
}

impl FixedTables {
    pub(super) fn of(module: &Module) -> Result<Self, Error> {
        let calls: Arc<Mutex<Vec<Calls>>> = Arc::default();
        let of_records = calls.clone();
        let recorder = Recorder::new(move |_, records: &[[u64; 2]]| {
            let mut calls = lock(&of_records);
            for &[number, index] in records {
                let Calls { table, counts } = &mut calls[number as usize];
                if counts.is_empty() {
                    counts.resize(table.len() + 1, 0);
                }
                let others = counts.len() - 1;
                counts[(index as usize).min(others)] += 1;
            }
        })?;
        let (tables, typed) = (Arc::default(), Arc::default());
        Ok(Self { module: module.clone(), tables, typed, calls, recorder })
    }

    /// The number of a call, and its probe, if its table never changes.
    pub(super) fn call(&self, operator: &Operator<'_>) -> Option<(usize, Kind)> {
        let (Operator::CallIndirect { table_index, type_index }
        | Operator::ReturnCallIndirect { table_index, type_index }) = *operator
        else {
            return None;
        };
        let tables = self
            .tables
            .get_or_init(|| Tables { all: tables(&self.module), signatures: Signatures::of(&self.module) });
        let typed = || tables.of_type(table_index, type_index);
        let table = lock(&self.typed).entry((table_index, type_index)).or_insert_with(typed).clone()?;
        let mut calls = lock(&self.calls);
        let number = calls.len();
        calls.push(Calls { table, counts: Vec::new() });
        let values = [Bound::Const(number as u64), Bound::Operand(0)].into();
        Some((number, Kind::Record { recorder: self.recorder.clone(), values }))
    }

    /// Takes all calls so far into account.
    pub(super) fn flush(&self) {
        self.recorder.flush();
    }

    /// The functions that an instruction has called, and how often.
    pub(super) fn counts(&self, number: usize) -> Vec<(u64, u64)> {
        let Calls { table, counts } = &lock(&self.calls)[number];
        let functions = table.iter().copied().chain([NO_FUNCTION]);
        let mut called: Vec<(u64, u64)> = Vec::new();
        for (function, count) in functions.zip(counts.iter().copied()).filter(|(_, count)| *count > 0) {
            match called.iter_mut().find(|(known, _)| *known == function) {
                Some((_, sum)) => *sum += count,
                None => called.push((function, count)),
            }
        }
        called
    }
}
