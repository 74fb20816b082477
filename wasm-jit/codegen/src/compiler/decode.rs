//! The operators of a function, for the pass that compiles them.
//!
//! The scan decodes the operators and records them, since reading a recorded operator takes much
//! less time than decoding it again. Recorded, an operator has the size of its largest immediates,
//! many times that of its encoding; those of a long function are therefore not recorded, but
//! decoded a second time.
//!
//! An operator that is written field by field and then copied as a whole is read before the
//! processor has finished writing it, which takes longer than decoding it. Each operator is
//! therefore written where it stays.

use std::mem::{self, ManuallyDrop};

use wasmparser::{BinaryReaderError, Operator, OperatorsReader, VisitOperator, VisitSimdOperator};

use super::instruction::Next;

/// Length of the longest function whose operators are recorded, in bytes. It has at most as many
/// operators.
pub(super) const MAX_RECORDED: u64 = 32 << 10;

/// An operator that was decoded.
#[derive(Debug)]
pub(super) struct Recorded<'a> {
    pub(super) operator: Operator<'a>,
    /// The operator's offset in the module.
    pub(super) position: u32,
    /// What the operator is for the one before it.
    pub(super) kind: Next,
}

/// The record of a function's operators.
#[derive(Debug, Default)]
pub(super) struct Operators<'a> {
    operators: Vec<ManuallyDrop<Recorded<'a>>>,
    /// Whether the operators are recorded.
    is_on: bool,
    /// Whether an operator has an allocation. Few have one, and the others need not be dropped.
    has_allocations: bool,
}

impl<'a> Operators<'a> {
    /// An empty record for a function of this length, in the allocation of another one.
    pub(super) fn begin(spare: &mut Operators<'static>, length: u64) -> Self {
        let mut operators = mem::take(&mut spare.operators);
        let is_on = length <= MAX_RECORDED;
        if is_on {
            // An operator has at least one byte.
            operators.reserve(length as usize);
        }
        Self { operators, is_on, has_allocations: false }
    }

    /// Keeps the allocation for the next record.
    pub(super) fn end(mut self, spare: &mut Operators<'static>) {
        self.clear();
        // Converts the elements, of which there are none, in place.
        let operators = mem::take(&mut self.operators).into_iter();
        spare.operators = operators.map(|_| unreachable!("it is empty")).collect();
    }

    fn clear(&mut self) {
        if self.has_allocations {
            self.operators.drain(..).map(ManuallyDrop::into_inner).for_each(drop);
        }
        self.operators.clear();
    }

    /// The operators, if they were recorded.
    pub(super) fn operators(&self) -> Option<&[ManuallyDrop<Recorded<'a>>]> {
        self.is_on.then_some(&self.operators)
    }

    /// Inlined where the operator's variant is known. Never allocates: the operator would have to
    /// be dropped if that panicked, and would therefore be written twice.
    #[inline(always)]
    pub(super) fn push(&mut self, operator: Operator<'a>, position: u32) {
        self.is_on &= self.operators.len() < self.operators.capacity();
        if self.is_on {
            let kind = Next::of(&operator);
            self.has_allocations |= has_allocation(&operator);
            self.operators.push(ManuallyDrop::new(Recorded { operator, position, kind }));
        }
    }
}

impl Drop for Operators<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Whether the operator may have an allocation.
#[inline(always)]
fn has_allocation(operator: &Operator<'_>) -> bool {
    use Operator as O;
    matches!(
        operator,
        O::TypedSelectMulti { .. }
            | O::TryTable { .. }
            | O::Resume { .. }
            | O::ResumeThrow { .. }
            | O::ResumeThrowRef { .. }
    )
}

/// Reads the next operator into `place`, and returns what it is for the operator before it.
#[inline]
pub(super) fn decode<'a>(
    reader: &mut OperatorsReader<'a>,
    place: &mut Operator<'a>,
) -> Result<Next, BinaryReaderError> {
    reader.visit_operator(&mut Write(place))
}

/// Writes the operator that it visits.
struct Write<'p, 'a>(&'p mut Operator<'a>);

macro_rules! write_all {
    ($(@$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($other:tt)*))*) => {
        $(
            #[inline]
            fn $visit(&mut self $($(, $arg: $ty)*)?) -> Next {
                let operator = Operator::$op $({ $($arg),* })?;
                // A constant for most operators.
                let kind = Next::of(&operator);
                *self.0 = operator;
                kind
            }
        )*
    };
}

impl<'a> VisitOperator<'a> for Write<'_, 'a> {
    type Output = Next;

    fn simd_visitor(&mut self) -> Option<&mut dyn VisitSimdOperator<'a, Output = Next>> {
        Some(self)
    }

    wasmparser::for_each_visit_operator!(write_all);
}

impl<'a> VisitSimdOperator<'a> for Write<'_, 'a> {
    wasmparser::for_each_visit_simd_operator!(write_all);
}

#[cfg(test)]
mod tests {
    use wasmparser::{FuncType, FunctionBody, Parser, Payload, ValType};

    use super::MAX_RECORDED;
    use crate::module::ModuleInfo;
    use crate::objects::ModuleType;
    use crate::{Chunk, Compiler};

    /// The code of a function with this body, and this many operators before it that have no code.
    fn code(body: &str, nops: usize) -> (Vec<u8>, u64) {
        let nops = "nop ".repeat(nops);
        let text = format!("(module (func (param i32) (result i32) (local v128 i64) {nops} {body}))");
        let binary = wat::parse_str(text).unwrap();
        let bodies = Parser::new(0).parse_all(&binary).filter_map(|payload| match payload.unwrap() {
            Payload::CodeSectionEntry(body) => Some(body),
            _ => None,
        });
        let bodies: Vec<FunctionBody<'_>> = bodies.collect();
        let ty = ModuleType::of_function(FuncType::new([ValType::I32], [ValType::I32]));
        let module = ModuleInfo { types: vec![ty], functions: vec![0], ..Default::default() };
        let mut chunk = Chunk::default();
        Compiler::new(&module).compile(0, &bodies[0], &mut chunk).unwrap();
        let function = &chunk.functions[0];
        let length = super::super::function::length(&bodies[0]);
        (chunk.code[function.entry as usize..function.end as usize].to_vec(), length)
    }

    #[test]
    fn operators_that_are_not_recorded_have_the_same_code() {
        // Fused with what follows: a comparison, an addition, constants, vectors; a jump table; an
        // operator with an allocation.
        let body = "(block (loop (br_if 1 (i32.lt_s (local.get 0) (i32.const 7)))
                (local.set 0 (i32.add (local.get 0) (i32.shl (local.get 0) (i32.const 3))))
                (local.set 1 (v128.xor (local.get 1) (i8x16.splat (local.get 0))))
                (br_table 0 1 (i32.eqz (local.get 0)))))
            (local.set 2 (select (result i64) (local.get 2) (i64.const 5) (local.get 0)))
            (i32.add (i32.wrap_i64 (local.get 2)) (i8x16.extract_lane_s 3 (local.get 1)))";
        let (recorded, length) = code(body, 0);
        let nops = MAX_RECORDED - length;
        for (nops, is_recorded) in [(nops, true), (nops + 1, false)] {
            let (code, length) = code(body, nops as usize);
            assert_eq!(length <= MAX_RECORDED, is_recorded);
            assert_eq!(code, recorded, "{nops}");
        }
    }
}
