//! Decoding of operators without moving them.
//!
//! An operator has the size of its largest immediates. Written field by field and then copied as a
//! whole, it is read before the processor has finished writing it, which takes longer than decoding
//! it. Each operator is therefore written where it stays.

use wasmparser::{BinaryReaderError, Operator, OperatorsReader, VisitOperator, VisitSimdOperator};

use super::instruction::Next;

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
