//! A scan of a function before it is compiled: where its loops are, and which locals they use.
//!
//! The scan is one pass over the operators, and takes a small part of the compile time. The
//! compiler itself remains single-pass: it uses the scan only to choose register-cached locals when
//! it reaches a loop.
//!
//! Accesses to locals are a list in code order, so that those of a loop are a contiguous range.
//!
//! Code is *unlikely* if a branch hint says so: the part of an `if` that is not expected, and the
//! code after a `br_if` that is most likely taken, up to the end of its block.

use std::mem::ManuallyDrop;

use wasmparser::{BinaryReaderError, FunctionBody, Operator, ValType, VisitOperator, VisitSimdOperator};

use super::abi::Ty;
use super::cached_locals::Float;
use super::decode::Operators;
use crate::module::{FunctionHints, ModuleInfo};

/// An access to a local, or a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// The local's index, whether it is written, the loop depth, and whether it is unlikely.
    what: u32,
    position: u32,
}

const WRITE: u32 = 1 << 31;
const UNLIKELY: u32 = 1 << 30;
/// Marks a call, in place of a local's index: a function has at most 50,000 locals.
pub(super) const CALL: u32 = 0xffff;

impl Access {
    pub(super) fn new(what: u32, write: bool, depth: u32, is_unlikely: bool, position: u32) -> Self {
        let flags = if write { WRITE } else { 0 } | if is_unlikely { UNLIKELY } else { 0 };
        Self { what: what | depth.min(255) << 16 | flags, position }
    }

    pub(super) fn is_call(self) -> bool {
        self.what & 0xffff == CALL
    }

    pub(super) fn local(self) -> u32 {
        self.what & 0xffff
    }

    /// The position of the operator.
    pub(super) fn position(self) -> u32 {
        self.position
    }

    pub(super) fn writes(self) -> bool {
        self.what & WRITE != 0
    }

    pub(super) fn is_unlikely(self) -> bool {
        self.what & UNLIKELY != 0
    }

    /// Number of enclosing loops, at most 255.
    pub(super) fn depth(self) -> u32 {
        self.what >> 16 & 0xff
    }
}

/// A loop of the function, in code order.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopFacts {
    /// The loop's accesses.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Number of enclosing loops.
    pub(super) depth: u32,
    /// The number of blocks that begin in the loop, including the loop.
    pub(super) blocks: u32,
    /// The loop's float constants.
    pub(super) first_float: u32,
    pub(super) end_float: u32,
    /// Whether the loop contains no other loop.
    pub(super) innermost: bool,
}

/// The result of the scan. Reused from function to function for its allocations.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) accesses: Vec<Access>,
    pub(super) loops: Vec<LoopFacts>,
    /// The number of blocks.
    pub(super) blocks: u32,
    /// The float constants in loops, except for 0, in code order.
    pub(super) floats: Vec<Float>,
    /// Whether there is an access to each parameter, and to each other local up to the last one
    /// that is used.
    pub(super) accessed: Vec<bool>,
    /// Whether the function has a `try` or `try_table`.
    pub(super) has_try: bool,
    /// Whether an operand may be a vector.
    pub(super) has_vectors: bool,
    /// The blocks that are open during the scan.
    open_blocks: Vec<Block>,
    /// The loops among them, by their indices.
    open_loops: Vec<u32>,
}

impl Scan {
    /// Scans a valid function.
    pub(super) fn function<'a>(
        &mut self,
        body: &FunctionBody<'a>,
        record: &mut Operators<'a>,
        params: usize,
        hints: FunctionHints<'_>,
        module: &ModuleInfo,
        vector_types: &[bool],
    ) -> Result<(), BinaryReaderError> {
        let mut scanner = self.begin(record, params, hints, module, vector_types);
        let mut reader = body.get_operators_reader()?;
        while !reader.eof() {
            scanner.position = reader.original_position() as u32;
            reader.visit_operator(&mut scanner)?;
        }
        Ok(())
    }

    /// Begins the scan of a function, whose operators the scanner then visits.
    pub(super) fn begin<'s, 'a>(
        &'s mut self,
        record: &'s mut Operators<'a>,
        params: usize,
        hints: FunctionHints<'s>,
        module: &'s ModuleInfo,
        vector_types: &'s [bool],
    ) -> Scanner<'s, 'a> {
        self.accesses.clear();
        self.loops.clear();
        self.floats.clear();
        self.accessed.clear();
        self.accessed.resize(params, false);
        self.has_try = false;
        self.has_vectors = false;
        self.blocks = 0;
        self.open_blocks.clear();
        self.open_loops.clear();
        Scanner { scan: self, record, module, hints, vector_types, depth: 0, position: 0, is_unlikely: false }
    }
}

/// An open block.
#[derive(Debug)]
struct Block {
    is_loop: bool,
    /// Whether the code around it is unlikely.
    outer_is_unlikely: bool,
    /// For an `if`, whether its condition most likely holds.
    hint: Option<bool>,
}

/// Visits the operators of a function.
pub(super) struct Scanner<'s, 'a> {
    scan: &'s mut Scan,
    record: &'s mut Operators<'a>,
    module: &'s ModuleInfo,
    hints: FunctionHints<'s>,
    /// For each type, whether it has vectors; empty if none has.
    vector_types: &'s [bool],
    depth: u32,
    /// The position of the operator.
    pub(super) position: u32,
    is_unlikely: bool,
}

impl Scanner<'_, '_> {
    fn access(&mut self, local: u32, write: bool) {
        self.scan.accesses.push(Access::new(local, write, self.depth, self.is_unlikely, self.position));
        match self.scan.accessed.get_mut(local as usize) {
            Some(accessed) => *accessed = true,
            None => self.first_access(local),
        }
    }

    #[cold]
    fn first_access(&mut self, local: u32) {
        self.scan.accessed.resize(local as usize, false);
        self.scan.accessed.push(true);
    }

    fn call(&mut self) {
        self.scan.accesses.push(Access::new(CALL, false, self.depth, self.is_unlikely, self.position));
    }

    fn float(&mut self, ty: Ty, bits: u64) {
        if bits != 0 && self.depth > 0 {
            self.scan.floats.push(Float { ty, bits });
        }
    }

    /// Notes whether the results of a call, or a field or element, may be vectors.
    fn note_type(&mut self, type_index: u32) {
        self.scan.has_vectors |= self.vector_types.get(type_index as usize).is_some_and(|it| *it);
    }

    fn open_loop(&mut self) {
        if let Some(outer) = self.scan.open_loops.last() {
            self.scan.loops[*outer as usize].innermost = false;
        }
        let first = self.scan.accesses.len() as u32;
        // Until its end, the number of blocks before it.
        let blocks = self.scan.blocks;
        self.open(true, None);
        self.scan.open_loops.push(self.scan.loops.len() as u32);
        let first_float = self.scan.floats.len() as u32;
        self.scan.loops.push(LoopFacts {
            first,
            end: first,
            depth: self.depth,
            blocks,
            first_float,
            end_float: first_float,
            innermost: true,
        });
        self.depth += 1;
    }

    fn open(&mut self, is_loop: bool, hint: Option<bool>) {
        self.scan.blocks += 1;
        self.scan.open_blocks.push(Block { is_loop, outer_is_unlikely: self.is_unlikely, hint });
    }

    fn open_if(&mut self) {
        let hint = self.hints.is_likely(self.position);
        self.open(false, hint);
        self.is_unlikely |= hint == Some(false);
    }

    fn otherwise(&mut self) {
        if let Some(block) = self.scan.open_blocks.last() {
            self.is_unlikely = block.outer_is_unlikely || block.hint == Some(true);
        }
    }

    fn close(&mut self) {
        let Some(block) = self.scan.open_blocks.pop() else { return };
        self.is_unlikely = block.outer_is_unlikely;
        if block.is_loop
            && let Some(closed) = self.scan.open_loops.pop()
        {
            let closed = &mut self.scan.loops[closed as usize];
            closed.end = self.scan.accesses.len() as u32;
            closed.blocks = self.scan.blocks - closed.blocks;
            closed.end_float = self.scan.floats.len() as u32;
            self.depth -= 1;
        }
    }

    /// The operator is a constant at each call site: only one arm remains after inlining, and no
    /// operator is constructed.
    #[inline(always)]
    fn operator(&mut self, operator: &Operator<'_>) {
        match operator {
            Operator::LocalGet { local_index } => self.access(*local_index, false),
            Operator::LocalSet { local_index } | Operator::LocalTee { local_index } => {
                self.access(*local_index, true);
            }
            Operator::F32Const { value } => self.float(Ty::F32, value.bits().into()),
            Operator::F64Const { value } => self.float(Ty::F64, value.bits()),
            Operator::Loop { .. } => self.open_loop(),
            Operator::Block { .. } => self.open(false, None),
            Operator::If { .. } => self.open_if(),
            Operator::Else => self.otherwise(),
            Operator::BrIf { .. } => {
                self.is_unlikely |= self.hints.is_likely(self.position) == Some(true);
            }
            Operator::Try { .. } | Operator::TryTable { .. } => {
                self.scan.has_try = true;
                self.scan.has_vectors |= !self.vector_types.is_empty();
                self.open(false, None);
            }
            Operator::End | Operator::Delegate { .. } => self.close(),
            Operator::Call { function_index } => {
                self.call();
                self.note_type(self.module.functions[*function_index as usize]);
            }
            Operator::CallIndirect { type_index, .. } | Operator::CallRef { type_index } => {
                self.call();
                self.note_type(*type_index);
            }
            Operator::GlobalGet { global_index } => {
                let ty = self.module.globals[*global_index as usize].content_type;
                self.scan.has_vectors |= ty == ValType::V128;
            }
            _ if calls_runtime(operator) => self.call(),
            Operator::StructGet { struct_type_index: index, .. }
            | Operator::ArrayGet { array_type_index: index } => self.note_type(*index),
            _ => {}
        }
    }
}

/// Whether an operator always calls a routine of the runtime, except for `data.drop` and
/// `elem.drop`, which programs rarely execute.
#[inline(always)]
pub(super) fn calls_runtime(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::MemoryGrow { .. }
            | Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryInit { .. }
            | Operator::TableGrow { .. }
            | Operator::TableFill { .. }
            | Operator::TableCopy { .. }
            | Operator::TableInit { .. }
            | Operator::MemoryAtomicNotify { .. }
            | Operator::MemoryAtomicWait32 { .. }
            | Operator::MemoryAtomicWait64 { .. }
            | Operator::ArrayNew { .. }
            | Operator::ArrayNewDefault { .. }
            | Operator::ArrayNewData { .. }
            | Operator::ArrayNewElem { .. }
            | Operator::ArrayFill { .. }
            | Operator::ArrayCopy { .. }
            | Operator::ArrayInitData { .. }
            | Operator::ArrayInitElem { .. }
    )
}

macro_rules! visit_all {
    ($(@$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($other:tt)*))*) => {
        $(
            #[inline]
            fn $visit(&mut self $($(, $arg: $ty)*)?) {
                // Without a destructor, which is a call even where it has nothing to do.
                let operator = ManuallyDrop::new(Operator::$op $({ $($arg),* })?);
                self.operator(&operator);
                self.record.push(ManuallyDrop::into_inner(operator), self.position);
            }
        )*
    };
}

impl<'a> VisitOperator<'a> for Scanner<'_, 'a> {
    type Output = ();

    fn simd_visitor(&mut self) -> Option<&mut dyn VisitSimdOperator<'a, Output = ()>> {
        Some(self)
    }

    wasmparser::for_each_visit_operator!(visit_all);
}

macro_rules! visit_vectors {
    ($(@$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($other:tt)*))*) => {
        $(
            #[inline]
            fn $visit(&mut self $($(, $arg: $ty)*)?) {
                self.scan.has_vectors = true;
                self.record.push(Operator::$op $({ $($arg),* })?, self.position);
            }
        )*
    };
}

impl<'a> VisitSimdOperator<'a> for Scanner<'_, 'a> {
    wasmparser::for_each_visit_simd_operator!(visit_vectors);
}
