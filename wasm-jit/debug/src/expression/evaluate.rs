//! Evaluates expressions.

use std::cell::Cell;

use super::{Binary, Expression, Load, Node, Special, Unary};
use crate::Error;
use crate::dwarf::objects::Object;
use crate::frames::{Scope, converted};
use crate::value::Value;

impl Expression {
    /// Evaluates the expression in a frame.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Value`], [`Error::Access`], [`Error::Engine`].
    pub fn evaluate(&self, scope: &mut Scope<'_, '_>) -> Result<Value, Error> {
        self.node.evaluate(scope)?.value(scope)
    }

    pub(crate) fn member_names(&self, scope: &mut Scope<'_, '_>) -> Result<Vec<String>, Error> {
        Ok(match self.node.evaluate(scope)? {
            Term::Object(object) => object.member_names(scope),
            _ => Vec::new(),
        })
    }

    /// Assigns a value to what the expression denotes: a local, an operand, a global, memory, or a
    /// scalar variable.
    ///
    /// # Errors
    /// As [`Expression::evaluate`]; [`Error::Value`] if it does not denote anything that can be
    /// changed.
    pub fn assign(&self, scope: &mut Scope<'_, '_>, value: &Value) -> Result<(), Error> {
        let wrong = |what: String| Error::Value(format!("{value} is no value for {what}"));
        match &self.node {
            Node::Local(index) => scope.assign_local(*index, value),
            Node::Operand(depth) => {
                let new = converted(value, &scope.operand(*depth)?, &self.text)?;
                scope.set_operand(*depth, &new)
            }
            Node::Global(index) => scope.assign_global(*index, value),
            Node::Load(load, memory, address) => {
                let address = address.evaluate(scope)?.value(scope)?;
                let bytes = load.bytes(value).ok_or_else(|| wrong(self.text.clone()))?;
                scope.write_memory(*memory, self::address(&address)?, &bytes)
            }
            node => match node.evaluate(scope)? {
                Term::Object(object) => object.assign(scope, value),
                Term::Local(index) => scope.assign_local(index, value),
                Term::Global(index) => scope.assign_global(index, value),
                Term::Value(_) => {
                    Err(Error::Value(format!("`{}` is nothing that can be changed", self.text)))
                }
            },
        }
    }
}

impl Expression {
    /// The address of a load outside of its memory, if it is known without a frame, and the size of
    /// the memory. `size` returns the size of a memory in bytes, if it is known.
    pub(crate) fn address_outside(&self, size: impl Fn(u32) -> Option<u64>) -> Option<(u64, u64)> {
        let found = Cell::new(None);
        self.node.any(&|node| {
            let Node::Load(load, memory, at) = node else { return false };
            let Some(size) = size(*memory) else { return false };
            let Some(at) = at.constant().and_then(|at| address(&at).ok()) else { return false };
            let is_outside = at.checked_add(load.size() as u64).is_none_or(|end| end > size);
            if is_outside {
                found.set(Some((at, size)));
            }
            is_outside
        });
        found.get()
    }
}

/// The meaning of a part of an expression.
#[derive(Clone)]
pub(crate) enum Term {
    Value(Value),
    /// A variable of the source, or a part of one.
    Object(Object),
    /// A local, by its name.
    Local(u32),
    Global(u32),
}

impl Term {
    pub(super) fn value(self, scope: &mut Scope<'_, '_>) -> Result<Value, Error> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Object(object) => object.value(scope),
            Self::Local(index) => Ok((&scope.local(index)?).into()),
            Self::Global(index) => Ok((&scope.global(index)?).into()),
        }
    }

    fn object(self) -> Result<Object, Error> {
        match self {
            Self::Object(object) => Ok(object),
            _ => Err(Error::Value("only variables of the source have types".to_owned())),
        }
    }
}

fn address(value: &Value) -> Result<u64, Error> {
    let wrong = || Error::Value(format!("{value} is no address"));
    let integer = value.integer().ok_or_else(wrong)?;
    match value {
        // Addresses are unsigned.
        Value::I32(value) => Ok(u64::from(value.cast_unsigned())),
        _ => u64::try_from(integer).map_err(|_| wrong()),
    }
}

impl Load {
    pub(crate) fn read(self, bytes: &[u8]) -> Value {
        let mut all = [0; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(all);
        match self {
            Self::I32 => Value::I32(bits as i32),
            Self::I64 => Value::I64(bits as i64),
            Self::F32 => Value::F32(bits as u32),
            Self::F64 => Value::F64(bits),
            Self::S8 => Value::I32((bits as i8).into()),
            Self::S16 => Value::I32((bits as i16).into()),
            Self::U8 | Self::U16 | Self::U32 => Value::Unsigned(bits),
        }
    }

    fn bytes(self, value: &Value) -> Option<Vec<u8>> {
        let bits = match self {
            Self::F32 => match value {
                Value::F32(bits) => u64::from(*bits),
                _ => u64::from((value.float()? as f32).to_bits()),
            },
            Self::F64 => value.float()?.to_bits(),
            _ => value.integer().filter(|value| crate::value::fits(*value, 8 * self.size() as u32))? as u64,
        };
        Some(bits.to_le_bytes()[..self.size()].to_vec())
    }
}

impl Node {
    /// The value of an expression that consists of numbers only.
    fn constant(&self) -> Option<Value> {
        match self {
            Self::Integer(value) => integer(*value).ok(),
            Self::Unary(operator @ (Unary::Negate | Unary::Not | Unary::Complement), of) => {
                unary(*operator, &of.constant()?).ok()
            }
            Self::Binary(Binary::Both | Binary::Either, _) => None,
            Self::Binary(operator, of) => binary(*operator, &of[0].constant()?, &of[1].constant()?).ok(),
            _ => None,
        }
    }

    pub(super) fn evaluate(&self, scope: &mut Scope<'_, '_>) -> Result<Term, Error> {
        let value = match self {
            Self::Integer(value) => integer(*value)?,
            Self::Float(value) => Value::F64(value.to_bits()),
            Self::Local(index) => (&scope.local(*index)?).into(),
            Self::Operand(depth) => (&scope.operand(*depth)?).into(),
            Self::Global(index) => (&scope.global(*index)?).into(),
            Self::Special(Special::Pc) => Value::Unsigned(scope.code().module_offset(scope.location())),
            Self::Special(Special::Depth) => Value::Unsigned(scope.depth()? as u64),
            Self::Special(Special::Function) => Value::Unsigned(scope.location().function.into()),
            Self::Vector(bits) => Value::V128(*bits),
            Self::Name(name) => match (scope.named(name), constant(name)) {
                (Err(Error::Unknown { .. }), Some(value)) => value,
                (term, _) => return term,
            },
            Self::Static(variable) => return variable.object(scope).map(Term::Object),
            Self::Load(load, memory, at) => {
                let at = at.evaluate(scope)?.value(scope)?;
                let mut bytes = [0; 8];
                let bytes = &mut bytes[..load.size()];
                scope.read_memory(*memory, address(&at)?, bytes)?;
                load.read(bytes)
            }
            Self::Member(of, name) => {
                return of.evaluate(scope)?.object()?.member(scope, name).map(Term::Object);
            }
            Self::Index(of) => {
                let index = of[1].evaluate(scope)?.value(scope)?;
                let index = index.integer().ok_or_else(|| Error::Value(format!("{index} is no index")))?;
                return of[0].evaluate(scope)?.object()?.element(scope, index).map(Term::Object);
            }
            Self::Unary(Unary::Deref, of) => {
                return of.evaluate(scope)?.object()?.element(scope, 0).map(Term::Object);
            }
            Self::Unary(Unary::Address, of) => {
                return of.evaluate(scope)?.object()?.address().map(Term::Object);
            }
            Self::Cast(ty, of) => {
                let ty = ty.find(scope.code())?;
                let value = match of.evaluate(scope)? {
                    Term::Object(object) => object.decayed(scope)?.value(scope)?,
                    term => term.value(scope)?,
                };
                return Object::cast(&value, ty, scope).map(Term::Object);
            }
            Self::Unary(operator, of) => unary(*operator, &of.evaluate(scope)?.value(scope)?)?,
            Self::Binary(operator @ (Binary::Both | Binary::Either), of) => {
                let is_true = of[0].evaluate(scope)?.value(scope)?.is_true();
                let decides = is_true == (*operator == Binary::Either);
                let result = if decides { is_true } else { of[1].evaluate(scope)?.value(scope)?.is_true() };
                Value::I32(result.into())
            }
            Self::Choice(of) => {
                let [condition, then, otherwise] = &**of;
                let is_true = condition.evaluate(scope)?.value(scope)?.is_true();
                return if is_true { then } else { otherwise }.evaluate(scope);
            }
            Self::SizeOf(of) => Value::Unsigned(of.evaluate(scope)?),
            Self::Binary(operator, of) => {
                let [left, right] = &**of;
                let (left, right) = (left.evaluate(scope)?, right.evaluate(scope)?);
                for side in [&left, &right] {
                    if let Term::Object(object) = side
                        && object.is_structure(scope)?
                    {
                        return Err(Error::Value("a structure is no operand: name its members".to_owned()));
                    }
                }
                if let Some(found) = with_pointers(*operator, &left, &right, scope)? {
                    return Ok(found);
                }
                binary(*operator, &left.value(scope)?, &right.value(scope)?)?
            }
        };
        Ok(Term::Value(value))
    }
}

/// The result of an operator on pointers or arrays of the source, which depends on their types.
fn with_pointers(
    operator: Binary,
    left: &Term,
    right: &Term,
    scope: &mut Scope<'_, '_>,
) -> Result<Option<Term>, Error> {
    let (pointer, other) = match (operator, left, right) {
        (Binary::Subtract, Term::Object(left), Term::Object(right)) => match left.distance(right, scope)? {
            Some(distance) => return integer(distance).map(|value| Some(Term::Value(value))),
            None => (left, Term::Object(right.clone())),
        },
        (Binary::Add, Term::Object(left), Term::Object(right)) if !left.is_pointer(scope) => {
            (right, Term::Object(left.clone()))
        }
        (Binary::Add | Binary::Subtract, Term::Object(left), right) => (left, right.clone()),
        (Binary::Add, left, Term::Object(right)) => (right, left.clone()),
        _ => return Ok(None),
    };
    if !pointer.is_pointer(scope) {
        return Ok(None);
    }
    let other = other.value(scope)?;
    let count = other.integer().ok_or_else(|| no_number(&other))?;
    let count = if operator == Binary::Subtract { -count } else { count };
    Ok(pointer.offset(scope, count)?.map(Term::Object))
}

/// A float by its name, as it is shown; variables may have these names.
pub(super) fn constant(name: &str) -> Option<Value> {
    match name {
        "NaN" | "nan" => Some(Value::F64(f64::NAN.to_bits())),
        "inf" => Some(Value::F64(f64::INFINITY.to_bits())),
        _ => None,
    }
}

/// An integer, in the smallest of the types that are shown.
fn integer(value: i128) -> Result<Value, Error> {
    if let Ok(value) = i32::try_from(value) {
        Ok(Value::I32(value))
    } else if let Ok(value) = i64::try_from(value) {
        Ok(Value::I64(value))
    } else {
        let overflow = |_| Error::Value("the integer has more than 64 bits".to_owned());
        u64::try_from(value).map(Value::Unsigned).map_err(overflow)
    }
}

fn no_number(value: &Value) -> Error {
    Error::Value(format!("{value} is no number"))
}

fn unary(operator: Unary, of: &Value) -> Result<Value, Error> {
    match operator {
        Unary::Not => Ok(Value::I32((!of.is_true()).into())),
        Unary::Negate if of.is_float() => {
            Ok(Value::F64((-of.float().ok_or_else(|| no_number(of))?).to_bits()))
        }
        Unary::Negate => integer(-of.integer().ok_or_else(|| no_number(of))?),
        _ => integer(!of.integer().ok_or_else(|| no_number(of))?),
    }
}

fn binary(operator: Binary, left: &Value, right: &Value) -> Result<Value, Error> {
    use std::cmp::Ordering;
    let truth = |is_true: bool| Ok(Value::I32(is_true.into()));
    let is_float = left.is_float() || right.is_float();
    if let (Value::Text(_), Value::Text(_)) | (Value::V128(_), Value::V128(_)) = (left, right) {
        match operator {
            Binary::Equal => return truth(left == right),
            Binary::NotEqual => return truth(left != right),
            _ => {}
        }
    }
    let floats = || -> Result<[f64; 2], Error> {
        Ok([left.float().ok_or_else(|| no_number(left))?, right.float().ok_or_else(|| no_number(right))?])
    };
    let integers = || -> Result<[i128; 2], Error> {
        Ok([left.integer().ok_or_else(|| no_number(left))?, right.integer().ok_or_else(|| no_number(right))?])
    };
    let order: Option<Ordering> = match operator {
        Binary::Less
        | Binary::LessEqual
        | Binary::Greater
        | Binary::GreaterEqual
        | Binary::Equal
        | Binary::NotEqual => match is_float {
            true => floats().map(|[left, right]| left.partial_cmp(&right))?,
            false => integers().map(|[left, right]| Some(left.cmp(&right)))?,
        },
        _ => None,
    };
    match operator {
        Binary::Less => return truth(order == Some(Ordering::Less)),
        Binary::LessEqual => return truth(order.is_some_and(Ordering::is_le)),
        Binary::Greater => return truth(order == Some(Ordering::Greater)),
        Binary::GreaterEqual => return truth(order.is_some_and(Ordering::is_ge)),
        Binary::Equal => return truth(order == Some(Ordering::Equal)),
        Binary::NotEqual => return truth(order != Some(Ordering::Equal)),
        _ => {}
    }
    if is_float {
        let [left, right] = floats()?;
        let result = match operator {
            Binary::Multiply => left * right,
            Binary::Divide => left / right,
            Binary::Remainder => left % right,
            Binary::Add => left + right,
            Binary::Subtract => left - right,
            _ => return Err(Error::Value("floats have no bits here".to_owned())),
        };
        return Ok(Value::F64(result.to_bits()));
    }
    let [left, right] = integers()?;
    let by = || u32::try_from(right).ok().filter(|by| *by < 64);
    let result = match operator {
        Binary::Multiply => left.checked_mul(right),
        Binary::Divide | Binary::Remainder if right == 0 => {
            return Err(Error::Value("division by zero".to_owned()));
        }
        Binary::Divide => left.checked_div(right),
        Binary::Remainder => left.checked_rem(right),
        Binary::Add => left.checked_add(right),
        Binary::Subtract => left.checked_sub(right),
        Binary::ShiftLeft => by().map(|by| left << by),
        Binary::ShiftRight => by().map(|by| left >> by),
        Binary::And => Some(left & right),
        Binary::Xor => Some(left ^ right),
        _ => Some(left | right),
    };
    integer(result.ok_or_else(|| Error::Value("the result is out of range".to_owned()))?)
}
