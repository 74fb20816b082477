//! Decoding of operators without moving them.
//!
//! An operator has the size of its largest immediates. Written field by field and then copied as a
//! whole, it is read before the processor has finished writing it, which takes longer than decoding
//! it. Each operator is therefore written where it stays.

use wasmparser::{BinaryReaderError, Operator, OperatorsReader, VisitOperator, VisitSimdOperator};

/// Reads the next operator into `place`.
#[inline]
pub(super) fn decode<'a>(
    reader: &mut OperatorsReader<'a>,
    place: &mut Operator<'a>,
) -> Result<(), BinaryReaderError> {
    reader.visit_operator(&mut Write(place))
}

/// Writes the operator that it visits.
struct Write<'p, 'a>(&'p mut Operator<'a>);

macro_rules! write_all {
    ($(@$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($other:tt)*))*) => {
        $(
            #[inline]
            fn $visit(&mut self $($(, $arg: $ty)*)?) {
                *self.0 = Operator::$op $({ $($arg),* })?;
            }
        )*
    };
}

impl<'a> VisitOperator<'a> for Write<'_, 'a> {
    type Output = ();

    fn simd_visitor(&mut self) -> Option<&mut dyn VisitSimdOperator<'a, Output = ()>> {
        Some(self)
    }

    wasmparser::for_each_visit_operator!(write_all);
}

impl<'a> VisitSimdOperator<'a> for Write<'_, 'a> {
    wasmparser::for_each_visit_simd_operator!(write_all);
}
