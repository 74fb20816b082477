//! Validation of a function together with its scan, so that both decode it only once.

use wasmparser::{
    BinaryReaderError, FrameKind, FrameStack, FuncValidator, FunctionBody, ValidatorResources, VisitOperator,
    VisitSimdOperator,
};

use super::scan::Scanner;

type Result<T> = std::result::Result<T, BinaryReaderError>;

/// Validates a function that has not been read yet, and scans it.
pub(super) fn validate_and_scan<'a>(
    validator: &mut FuncValidator<ValidatorResources>,
    body: &FunctionBody<'a>,
    scanner: &mut Scanner<'_, 'a>,
) -> Result<()> {
    let mut reader = body.get_binary_reader();
    validator.read_locals(&mut reader)?;
    reader.set_features(*validator.features());
    while !reader.eof() {
        let position = reader.original_position();
        scanner.position = position as u32;
        reader.visit_operator(&mut Both { validator: validator.visitor(position), scanner })??;
    }
    reader.finish_expression(&validator.visitor(reader.original_position()))
}

/// Passes each operator to the validator, and to the scanner if it is valid.
struct Both<'b, 's, 'a, V> {
    validator: V,
    scanner: &'b mut Scanner<'s, 'a>,
}

impl<V: FrameStack> FrameStack for Both<'_, '_, '_, V> {
    fn current_frame(&self) -> Option<FrameKind> {
        self.validator.current_frame()
    }
}

macro_rules! visit_both {
    ($(@$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($other:tt)*))*) => {
        $(
            #[inline]
            fn $visit(&mut self $($(, $arg: $ty)*)?) -> Result<()> {
                self.validator.$visit($($($arg.clone()),*)?)?;
                self.scanner.$visit($($($arg),*)?);
                Ok(())
            }
        )*
    };
}

impl<'a, V: VisitOperator<'a, Output = Result<()>>> VisitOperator<'a> for Both<'_, '_, 'a, V> {
    type Output = Result<()>;

    fn simd_visitor(&mut self) -> Option<&mut dyn VisitSimdOperator<'a, Output = Result<()>>> {
        Some(self)
    }

    wasmparser::for_each_visit_operator!(visit_both);
}

macro_rules! visit_both_vectors {
    ($(@$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($other:tt)*))*) => {
        $(
            fn $visit(&mut self $($(, $arg: $ty)*)?) -> Result<()> {
                let validator = self.validator.simd_visitor().expect("the validator knows vectors");
                validator.$visit($($($arg),*)?)?;
                self.scanner.$visit($($($arg),*)?);
                Ok(())
            }
        )*
    };
}

impl<'a, V: VisitOperator<'a, Output = Result<()>>> VisitSimdOperator<'a> for Both<'_, '_, 'a, V> {
    wasmparser::for_each_visit_simd_operator!(visit_both_vectors);
}
