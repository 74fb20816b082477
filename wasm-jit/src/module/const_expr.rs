//! Constant expressions: the initial values of globals, the offsets of segments, the elements of
//! tables.

use wasmparser::{ConstExpr as WasmExpr, Operator};

use crate::error::Error;

/// A constant expression, decoded. Values are as in compiled code.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConstExpr {
    /// A number, or the null reference.
    Value(u128),
    /// The value of a global.
    Global(u32),
    /// A reference to a function.
    Func(u32),
    /// Integer arithmetic, for a stack of values.
    Arithmetic(Box<[ConstOp]>),
}

/// One instruction of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ConstOp {
    Value(u128),
    Global(u32),
    Func(u32),
    I32Add,
    I32Sub,
    I32Mul,
    I64Add,
    I64Sub,
    I64Mul,
}

/// The values that an expression can read from its instance.
pub(crate) trait ConstSource {
    /// The value of a global that is already initialized.
    fn global(&self, index: u32) -> u128;
    /// The reference to a function.
    fn func(&self, index: u32) -> u64;
}

impl ConstExpr {
    /// Decodes an expression; the validator checks that it is valid.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for operators of garbage collection.
    pub(crate) fn decode(expr: &WasmExpr<'_>) -> Result<Self, Error> {
        let mut ops = Vec::new();
        for operator in expr.get_operators_reader().into_iter_with_offsets() {
            let (operator, offset) = operator?;
            ops.push(match operator {
                Operator::I32Const { value } => ConstOp::Value(u128::from(value as u32)),
                Operator::I64Const { value } => ConstOp::Value(u128::from(value as u64)),
                Operator::F32Const { value } => ConstOp::Value(u128::from(value.bits())),
                Operator::F64Const { value } => ConstOp::Value(u128::from(value.bits())),
                Operator::V128Const { value } => ConstOp::Value(value.i128() as u128),
                Operator::RefNull { .. } => ConstOp::Value(0),
                Operator::RefFunc { function_index } => ConstOp::Func(function_index),
                Operator::GlobalGet { global_index } => ConstOp::Global(global_index),
                Operator::I32Add => ConstOp::I32Add,
                Operator::I32Sub => ConstOp::I32Sub,
                Operator::I32Mul => ConstOp::I32Mul,
                Operator::I64Add => ConstOp::I64Add,
                Operator::I64Sub => ConstOp::I64Sub,
                Operator::I64Mul => ConstOp::I64Mul,
                Operator::End => break,
                _ => {
                    let message = "garbage collection is not supported".to_owned();
                    return Err(Error::Unsupported { message, offset });
                }
            });
        }
        Ok(match ops[..] {
            [ConstOp::Value(value)] => Self::Value(value),
            [ConstOp::Global(index)] => Self::Global(index),
            [ConstOp::Func(index)] => Self::Func(index),
            _ => Self::Arithmetic(ops.into()),
        })
    }

    /// The value of the expression in an instance.
    pub(crate) fn evaluate(&self, source: &impl ConstSource) -> u128 {
        match self {
            Self::Value(value) => *value,
            Self::Global(index) => source.global(*index),
            Self::Func(index) => source.func(*index).into(),
            Self::Arithmetic(ops) => arithmetic(ops, source),
        }
    }
}

fn arithmetic(ops: &[ConstOp], source: &impl ConstSource) -> u128 {
    let mut stack = Vec::new();
    for op in ops {
        let value = match op {
            ConstOp::Value(value) => *value,
            ConstOp::Global(index) => source.global(*index),
            ConstOp::Func(index) => source.func(*index).into(),
            binary => {
                let (right, left) = (stack.pop(), stack.pop());
                let (Some(right), Some(left)) = (right, left) else {
                    unreachable!("validated: both operands are on the stack")
                };
                calculate(*binary, left as u64, right as u64).into()
            }
        };
        stack.push(value);
    }
    stack.pop().expect("validated: one value is left")
}

fn calculate(op: ConstOp, left: u64, right: u64) -> u64 {
    let narrow = |value: u64| u64::from(value as u32);
    match op {
        ConstOp::I32Add => narrow(left.wrapping_add(right)),
        ConstOp::I32Sub => narrow(left.wrapping_sub(right)),
        ConstOp::I32Mul => narrow(left.wrapping_mul(right)),
        ConstOp::I64Add => left.wrapping_add(right),
        ConstOp::I64Sub => left.wrapping_sub(right),
        ConstOp::I64Mul => left.wrapping_mul(right),
        ConstOp::Value(_) | ConstOp::Global(_) | ConstOp::Func(_) => {
            unreachable!("not an arithmetic operator")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers;

    impl ConstSource for Numbers {
        fn global(&self, index: u32) -> u128 {
            u128::from(index) * 100
        }
        fn func(&self, index: u32) -> u64 {
            u64::from(index)
        }
    }

    #[test]
    fn arithmetic_wraps_in_the_width_of_its_type() {
        let value = |ops: &[ConstOp]| ConstExpr::Arithmetic(ops.into()).evaluate(&Numbers);
        use ConstOp::*;
        assert_eq!(value(&[Value(5), Value(7), I32Sub]), u128::from(-2_i32 as u32));
        assert_eq!(value(&[Value(5), Value(7), I64Sub]), u128::from(-2_i64 as u64));
        assert_eq!(value(&[Value(0xffff_ffff), Value(1), I32Add]), 0);
        assert_eq!(value(&[Value(0xffff_ffff), Value(1), I64Add]), 1 << 32);
        assert_eq!(value(&[Global(3), Value(2), Value(4), I32Mul, I32Add]), 308);
        assert_eq!(value(&[Value(1 << 31), Value(2), I32Mul]), 0);
        assert_eq!(value(&[Value(1 << 31), Value(2), I64Mul]), 1 << 32);
    }
}
