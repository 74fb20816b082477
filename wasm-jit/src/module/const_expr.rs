//! Constant expressions: the initial values of globals, the offsets of segments, the elements of
//! tables.

use wasmparser::{ConstExpr as WasmExpr, Operator};

use crate::error::Error;
use crate::object_type::lower_i31;

/// A constant expression, decoded. Values are as in compiled code.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConstExpr {
    /// A number, or the null reference.
    Value(u128),
    /// The value of a global.
    Global(u32),
    /// A reference to a function.
    Func(u32),
    /// Instructions, for a stack of values.
    Instructions(Box<[ConstOp]>),
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
    /// Pops the values of all fields.
    StructNew(u32),
    StructNewDefault(u32),
    /// Pops a value and the length.
    ArrayNew(u32),
    /// Pops the length.
    ArrayNewDefault(u32),
    /// Pops this many elements.
    ArrayNewFixed(u32, u32),
    RefI31,
}

/// The values that an expression can read from its instance.
pub(crate) trait ConstSource {
    /// The value of a global that is already initialized.
    fn global(&self, index: u32) -> u128;
    /// The reference to a function.
    fn func(&self, index: u32) -> u64;
    /// The number of fields of structures of a type.
    fn fields(&self, ty: u32) -> usize;
    /// A new structure of a type with these fields, or with zeros if there are none. This may
    /// collect. The stack has all values that the expression still needs, the fields among them.
    fn new_struct(&mut self, ty: u32, fields: &[u128], stack: &[u128]) -> Result<u64, Error>;
    /// A new array of a type with these elements, likewise.
    fn new_array(&mut self, ty: u32, elements: NewElements<'_>, stack: &[u128]) -> Result<u64, Error>;
}

/// The elements of a new array.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewElements<'a> {
    /// One value, this many times.
    Same(u128, u32),
    /// These values.
    Values(&'a [u128]),
}

impl ConstExpr {
    /// Decodes an expression; the validator checks that it is valid.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operator of an unsupported feature.
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
                Operator::StructNew { struct_type_index } => ConstOp::StructNew(struct_type_index),
                Operator::StructNewDefault { struct_type_index } => {
                    ConstOp::StructNewDefault(struct_type_index)
                }
                Operator::ArrayNew { array_type_index } => ConstOp::ArrayNew(array_type_index),
                Operator::ArrayNewDefault { array_type_index } => ConstOp::ArrayNewDefault(array_type_index),
                Operator::ArrayNewFixed { array_type_index, array_size } => {
                    ConstOp::ArrayNewFixed(array_type_index, array_size)
                }
                Operator::RefI31 => ConstOp::RefI31,
                // References have one representation on both sides.
                Operator::AnyConvertExtern | Operator::ExternConvertAny => continue,
                Operator::End => break,
                _ => {
                    let message = "the operator is not supported in constant expressions".to_owned();
                    return Err(Error::Unsupported { message, offset });
                }
            });
        }
        Ok(match ops[..] {
            [ConstOp::Value(value)] => Self::Value(value),
            [ConstOp::Global(index)] => Self::Global(index),
            [ConstOp::Func(index)] => Self::Func(index),
            _ => Self::Instructions(ops.into()),
        })
    }

    /// The value of the expression in an instance.
    ///
    /// # Errors
    /// An object cannot be allocated.
    pub(crate) fn evaluate(&self, source: &mut impl ConstSource) -> Result<u128, Error> {
        match self {
            Self::Value(value) => Ok(*value),
            Self::Global(index) => Ok(source.global(*index)),
            Self::Func(index) => Ok(source.func(*index).into()),
            Self::Instructions(ops) => execute(ops, source),
        }
    }
}

/// What is left on the stack after these instructions, which are valid: all operands are there.
fn execute(ops: &[ConstOp], source: &mut impl ConstSource) -> Result<u128, Error> {
    let mut stack = Vec::new();
    for op in ops {
        let value = match *op {
            ConstOp::Value(value) => value,
            ConstOp::Global(index) => source.global(index),
            ConstOp::Func(index) => source.func(index).into(),
            ConstOp::StructNew(ty) => {
                let first = stack.len() - source.fields(ty);
                let object = source.new_struct(ty, &stack[first..], &stack)?;
                stack.truncate(first);
                object.into()
            }
            ConstOp::StructNewDefault(ty) => source.new_struct(ty, &[], &stack)?.into(),
            ConstOp::ArrayNew(ty) => {
                let length = pop(&mut stack) as u32;
                let value = *stack.last().expect(OPERANDS);
                let array = source.new_array(ty, NewElements::Same(value, length), &stack)?;
                stack.pop();
                array.into()
            }
            ConstOp::ArrayNewDefault(ty) => {
                let length = pop(&mut stack) as u32;
                source.new_array(ty, NewElements::Same(0, length), &stack)?.into()
            }
            ConstOp::ArrayNewFixed(ty, length) => {
                let first = stack.len() - length as usize;
                let array = source.new_array(ty, NewElements::Values(&stack[first..]), &stack)?;
                stack.truncate(first);
                array.into()
            }
            ConstOp::RefI31 => lower_i31(pop(&mut stack) as u32).into(),
            binary => {
                let right = pop(&mut stack);
                let left = pop(&mut stack);
                calculate(binary, left as u64, right as u64).into()
            }
        };
        stack.push(value);
    }
    Ok(pop(&mut stack))
}

const OPERANDS: &str = "validated: all operands are on the stack";

fn pop(stack: &mut Vec<u128>) -> u128 {
    stack.pop().expect(OPERANDS)
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
        _ => unreachable!("not an arithmetic operator"),
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
        fn fields(&self, ty: u32) -> usize {
            ty as usize
        }
        fn new_struct(&mut self, ty: u32, fields: &[u128], stack: &[u128]) -> Result<u64, Error> {
            assert!(stack.ends_with(fields));
            Ok(1000 * u64::from(ty) + fields.iter().sum::<u128>() as u64)
        }
        fn new_array(&mut self, ty: u32, elements: NewElements<'_>, stack: &[u128]) -> Result<u64, Error> {
            let sum = match elements {
                NewElements::Same(value, length) => value * u128::from(length),
                NewElements::Values(values) => {
                    assert!(stack.ends_with(values));
                    values.iter().sum()
                }
            };
            Ok(2000 * u64::from(ty) + sum as u64)
        }
    }

    #[test]
    fn arithmetic_wraps_in_the_width_of_its_type() {
        let value = |ops: &[ConstOp]| ConstExpr::Instructions(ops.into()).evaluate(&mut Numbers).unwrap();
        use ConstOp::*;
        assert_eq!(value(&[Value(5), Value(7), I32Sub]), u128::from(-2_i32 as u32));
        assert_eq!(value(&[Value(5), Value(7), I64Sub]), u128::from(-2_i64 as u64));
        assert_eq!(value(&[Value(0xffff_ffff), Value(1), I32Add]), 0);
        assert_eq!(value(&[Value(0xffff_ffff), Value(1), I64Add]), 1 << 32);
        assert_eq!(value(&[Global(3), Value(2), Value(4), I32Mul, I32Add]), 308);
        assert_eq!(value(&[Value(1 << 31), Value(2), I32Mul]), 0);
        assert_eq!(value(&[Value(1 << 31), Value(2), I64Mul]), 1 << 32);
    }

    #[test]
    fn objects_take_as_many_operands_as_they_have_fields() {
        let value = |ops: &[ConstOp]| ConstExpr::Instructions(ops.into()).evaluate(&mut Numbers).unwrap();
        use ConstOp::*;
        assert_eq!(value(&[Value(7), Value(1), Value(2), StructNew(2), I64Add]), 7 + 2003);
        assert_eq!(value(&[StructNewDefault(2)]), 2000);
        assert_eq!(value(&[Value(7), Value(3), ArrayNew(1)]), 2021);
        assert_eq!(value(&[Value(3), ArrayNewDefault(1)]), 2000);
        assert_eq!(value(&[Value(1), Value(2), Value(3), ArrayNewFixed(1, 2), I64Add]), 1 + 2005);
        assert_eq!(value(&[Value(5), RefI31]), 11);
    }
}
