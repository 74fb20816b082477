//! The functions that indirect calls are about to call.
//!
//! A reference to a function has no number. The program looks up the callee by the index of the
//! table's element, in a memory that is added, with a word for each element: the index of its
//! function, or -1 if it is null. As in place, the function is also known if its type differs from
//! that of the call, which then traps.
//!
//! ```text
//! local.get $element  i32.const LENGTH  i32.lt_u
//! if (result i32)
//!     local.get $element  i32.const 2  i32.shl  i32.load OFFSET
//! else
//!     i32.const -1
//! end
//! ```
//!
//! This is correct only for tables whose elements are known and never change: those that the
//! program neither imports nor exports, and that no instruction changes, with initial elements that
//! are constants. Calls through other tables are refused, as are calls by a reference.

use std::collections::HashMap;

use wasm_encoder::{BlockType, Instruction as I, MemArg, MemArgTarget, ValType};
use wasm_jit::wasmparser::Operator;
use wasmparser::{ConstExpr, ElementItems, ElementKind, ElementSectionReader, TableInit, TableSectionReader};

use super::RewriteError;

/// The maximum number of elements of a table that are looked up.
const MAX_ELEMENTS: usize = 1 << 20;

/// An indirect call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Indirect {
    /// A call through the table with this number.
    ByTable(u32),
    ByReference,
}

impl Indirect {
    pub(super) fn of(operator: &Operator<'_>) -> Option<Self> {
        match *operator {
            Operator::CallIndirect { table_index, .. } | Operator::ReturnCallIndirect { table_index, .. } => {
                Some(Self::ByTable(table_index))
            }
            Operator::CallRef { .. } | Operator::ReturnCallRef { .. } => Some(Self::ByReference),
            _ => None,
        }
    }
}

/// A table.
#[derive(Debug)]
struct Table {
    /// The functions of its elements, without null elements at the end; or why they are not known.
    elements: Result<Vec<Option<u32>>, &'static str>,
    has_wide_indices: bool,
}

/// The tables of a program, and what was created for them.
#[derive(Debug, Default)]
pub(super) struct Callees {
    tables: Vec<Table>,
    /// The first word, and the number of words, by table.
    made: HashMap<u32, (u32, u32)>,
    words: Vec<i32>,
}

impl Callees {
    /// The contents of the memory; `None` if nothing is looked up. They are empty if the tables
    /// are.
    pub(super) fn contents(&self) -> Option<Vec<u8>> {
        let bytes = || self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        (!self.made.is_empty()).then(bytes)
    }

    pub(super) fn add_import(&mut self, ty: &wasmparser::TableType) {
        let elements = Err("is imported");
        self.tables.push(Table { elements, has_wide_indices: ty.table64 });
    }

    pub(super) fn add_tables(&mut self, section: TableSectionReader<'_>) -> Result<(), RewriteError> {
        for table in section {
            let table = table?;
            let elements = match &table.init {
                TableInit::RefNull => Ok(Vec::new()),
                TableInit::Expr(function) => match constant(function)? {
                    Some(None) => Ok(Vec::new()),
                    Some(function) if table.ty.initial <= MAX_ELEMENTS as u64 => {
                        Ok(vec![function; table.ty.initial as usize])
                    }
                    _ => Err("has initial elements that are not known"),
                },
            };
            self.tables.push(Table { elements, has_wide_indices: table.ty.table64 });
        }
        Ok(())
    }

    /// Marks the elements of a table as unknown from now on.
    pub(super) fn forget(&mut self, table: u32, reason: &'static str) {
        if let Some(table) = self.tables.get_mut(table as usize) {
            table.elements = Err(reason);
        }
    }

    /// Marks the table that an instruction changes as unknown.
    pub(super) fn see(&mut self, operator: &wasmparser::Operator<'_>) {
        use wasmparser::Operator::{TableCopy, TableFill, TableGrow, TableInit, TableSet};
        match *operator {
            TableSet { table }
            | TableGrow { table }
            | TableFill { table }
            | TableInit { table, .. }
            | TableCopy { dst_table: table, .. } => self.forget(table, "is changed by the program"),
            _ => {}
        }
    }

    pub(super) fn add_elements(&mut self, section: ElementSectionReader<'_>) -> Result<(), RewriteError> {
        const UNKNOWN: &str = "has initial elements that are not known";
        for segment in section {
            let segment = segment?;
            let ElementKind::Active { table_index, offset_expr } = segment.kind else { continue };
            let table = table_index.unwrap_or(0);
            let Some(start) = integer(&offset_expr)? else {
                self.forget(table, UNKNOWN);
                continue;
            };
            let mut functions = Vec::new();
            match segment.items {
                ElementItems::Functions(items) => {
                    for function in items {
                        functions.push(Some(Some(function?)));
                    }
                }
                ElementItems::Expressions(_, items) => {
                    for item in items {
                        functions.push(constant(&item?)?);
                    }
                }
            }
            let functions: Option<Vec<Option<u32>>> = functions.into_iter().collect();
            let end = start.saturating_add(functions.as_ref().map_or(0, Vec::len));
            let Some(functions) = functions.filter(|_| end <= MAX_ELEMENTS) else {
                self.forget(table, UNKNOWN);
                continue;
            };
            if let Some(Table { elements: Ok(elements), .. }) = self.tables.get_mut(table as usize) {
                elements.resize(elements.len().max(end), None);
                elements[start..end].copy_from_slice(&functions);
            }
        }
        Ok(())
    }

    /// Creates the data in which the callee of a call is looked up.
    pub(super) fn find(&mut self, call: Indirect) -> Result<(), RewriteError> {
        let refused = |what: String| {
            let reason = format!(
                "{what}, so that the functions that are called are known only where it runs: \
                 `wasm-jit run --monitors=SCRIPT.mm`"
            );
            Err(RewriteError::Unsupported { reason })
        };
        let Indirect::ByTable(table) = call else {
            return refused("it calls functions by references".to_owned());
        };
        if self.made.contains_key(&table) {
            return Ok(());
        }
        let elements = match self.tables.get(table as usize).map(|table| &table.elements) {
            Some(Ok(elements)) => elements,
            Some(Err(reason)) => return refused(format!("its table {table} {reason}")),
            None => return refused(format!("it has no table {table}")),
        };
        let word = |element: &Option<u32>| element.map_or(-1, u32::cast_signed);
        let first = self.words.len() as u32;
        self.words.extend(elements.iter().map(word));
        self.made.insert(table, (first, elements.len() as u32));
        Ok(())
    }

    /// The code that pushes the callee of a call, whose last operand is in a local.
    pub(super) fn look_up(&self, call: Indirect, operand: u32, memory: u32) -> Vec<I<'static>> {
        let Indirect::ByTable(table) = call else { unreachable!("`find` has refused it") };
        let (first, length) = self.made[&table];
        let is_wide = self.tables[table as usize].has_wide_indices;
        let mut code = vec![I::LocalGet(operand)];
        match is_wide {
            true => code.extend([I::I64Const(length.into()), I::I64LtU]),
            false => code.extend([I::I32Const(length.cast_signed()), I::I32LtU]),
        }
        code.extend([I::If(BlockType::Result(ValType::I32)), I::LocalGet(operand)]);
        if is_wide {
            code.push(I::I32WrapI64);
        }
        let target = MemArgTarget::Memory(memory);
        let at = MemArg { offset: 4 * u64::from(first), align: 2, target, ordering: None };
        code.extend([I::I32Const(2), I::I32Shl, I::I32Load(at), I::Else, I::I32Const(-1), I::End]);
        code
    }
}

/// The value of a constant expression: a function, or null; `None` if it is something else.
fn constant(expression: &ConstExpr<'_>) -> Result<Option<Option<u32>>, RewriteError> {
    let mut reader = expression.get_operators_reader();
    let value = match reader.read()? {
        wasmparser::Operator::RefFunc { function_index } => Some(Some(function_index)),
        wasmparser::Operator::RefNull { .. } => Some(None),
        _ => None,
    };
    Ok(value.filter(|_| matches!(reader.read(), Ok(wasmparser::Operator::End))))
}

/// The value of a constant expression, if it is a literal.
fn integer(expression: &ConstExpr<'_>) -> Result<Option<usize>, RewriteError> {
    let mut reader = expression.get_operators_reader();
    let value = match reader.read()? {
        wasmparser::Operator::I32Const { value } => Some(value.cast_unsigned() as usize),
        wasmparser::Operator::I64Const { value } => usize::try_from(value.cast_unsigned()).ok(),
        _ => None,
    };
    Ok(value.filter(|_| matches!(reader.read(), Ok(wasmparser::Operator::End))))
}
