//! Checks expressions.
//!
//! Types are never converted implicitly. A literal takes the type that its context expects.

use super::super::ast::{BinaryOp, Expr, ExprKind, Ident, UnaryOp};
use super::super::bound::{Bound, TARGETS};
use super::super::diagnostics::{ProblemKind, Span};
use super::super::ir::{Const, Kind, Place, Typed};
use super::super::types::Type;
use super::{Checker, Context};

impl Checker<'_> {
    /// Reports a value whose type is not the expected one.
    pub(super) fn same_type(&mut self, value: &Typed, expected: &Type, span: &Span) -> bool {
        if value.ty == *expected {
            return true;
        }
        let message = format!("expected a `{expected}`, this is a `{}`", value.ty);
        if let Type::Bucket(_) = expected {
            let help = "an unsigned integer is counted in the bucket that it is in: `.. as u64`";
            self.help(ProblemKind::Type, span, message, help);
            return false;
        }
        let is_number = Type::is_converted;
        if is_number(&value.ty) && is_number(expected) {
            self.help(ProblemKind::Type, span, message, format!("convert it: `.. as {expected}`"));
        } else {
            self.problem(ProblemKind::Type, span, message);
        }
        false
    }

    /// Checks an expression; reports its problems. Literals take the expected type. Where a bucket
    /// is expected, an unsigned integer stands for the bucket that contains it.
    pub(super) fn expr(&mut self, expr: &Expr, expected: Option<&Type>) -> Option<Typed> {
        let Some(Type::Bucket(buckets)) = expected else { return self.expr_of(expr, expected) };
        let number = self.expr_of(expr, Some(&Type::U64))?;
        match number.ty.is_integer() && !number.ty.is_signed() {
            true => Some(Typed::bucket(*buckets, number)),
            false => Some(number),
        }
    }

    fn expr_of(&mut self, expr: &Expr, expected: Option<&Type>) -> Option<Typed> {
        match &expr.kind {
            ExprKind::Int(value) => self.integer(i128::from(*value), expected, &expr.span),
            ExprKind::Float(value) => {
                let ty = expected.filter(|ty| ty.is_float()).cloned().unwrap_or(Type::F64);
                Some(Typed::new(ty, Kind::Const(Const::Float(*value))))
            }
            ExprKind::Bool(value) => Some(Typed::bool(*value)),
            ExprKind::Str(value) => Some(Typed::string(value)),
            ExprKind::Name(name) => match self.bits(name) {
                Some(bits) => {
                    let ty = expected.filter(|ty| ty.is_integer()).cloned().unwrap_or(Type::U32);
                    Some(Typed::int(ty, i128::from(bits)))
                }
                None => self.name(name, &expr.span),
            },
            ExprKind::Index(name, index) if self.is_of_targets(name) => {
                let checked = self.expr(index, Some(&Type::U32))?;
                if !self.same_type(&checked, &Type::U32, &index.span) {
                    return None;
                }
                let targets = Box::new(Typed::request(Type::Str, TARGETS));
                Some(Typed::new(Type::U32, Kind::Target(targets, Box::new(checked))))
            }
            ExprKind::Index(name, key) => {
                let (map, key, ty) = self.map_access(name, key)?;
                Some(Typed::new(ty, Kind::MapGet(map, Box::new(key))))
            }
            ExprKind::Field(name, path) => self.field(name, path, &expr.span),
            ExprKind::Tuple(fields) => {
                let types: &[Type] = match expected {
                    Some(Type::Tuple(types)) if types.len() == fields.len() => types,
                    _ => &[],
                };
                let checked: Vec<_> = fields
                    .iter()
                    .enumerate()
                    .map(|(index, field)| self.expr(field, types.get(index)))
                    .collect();
                let fields = checked.into_iter().collect::<Option<Vec<_>>>()?;
                let ty = Type::Tuple(fields.iter().map(|field| field.ty.clone()).collect());
                self.check_value_type(&ty, &expr.span).then(|| Typed::new(ty, Kind::Tuple(fields)))
            }
            ExprKind::Call { annotation, object, name, arguments } => {
                self.any_call(annotation.as_ref(), object.as_ref(), name, arguments)
            }
            ExprKind::Unary(op, operand) => self.unary(*op, operand, expected, &expr.span),
            ExprKind::Binary(op, left, right) => self.binary(*op, left, right, expected),
            ExprKind::Cast(operand, ty) => {
                // A literal takes the type if it can.
                let expected = (self.is_literal(operand) && (ty.is_integer() || ty.is_float())).then_some(ty);
                let operand_checked = self.expr(operand, expected)?;
                if operand_checked.ty.is_converted() && ty.is_converted() {
                    return Some(Typed::cast(operand_checked, ty.clone()));
                }
                let message = format!("a `{}` cannot be converted to `{ty}`", operand_checked.ty);
                self.problem(ProblemKind::Type, &expr.span, message);
                None
            }
            ExprKind::Ternary(condition, yes, no) => {
                let condition = self.condition(condition);
                let (yes, no) = self.pair(yes, no, expected, Self::expr)?;
                Some(Typed::ternary(condition?, yes, no))
            }
        }
    }

    fn integer(&mut self, value: i128, expected: Option<&Type>, span: &Span) -> Option<Typed> {
        let ty = match expected {
            Some(ty) if ty.is_float() => {
                return Some(Typed::new(ty.clone(), Kind::Const(Const::Float(value as f64))));
            }
            Some(ty) if ty.is_integer() => ty.clone(),
            _ => {
                let fitting = [Type::I32, Type::U32, Type::I64, Type::U64];
                let fits = |ty: &Type| super::super::ir::wrap(ty, value) == value;
                fitting.into_iter().find(fits).unwrap_or(Type::I64)
            }
        };
        // The bits of a negative number, such as 0xffff0000, are also accepted.
        let bits = ty.bits().unwrap_or(64);
        if value >= 1 << bits || value < -(1 << (bits - 1)) || (value < 0 && !ty.is_signed()) {
            self.problem(ProblemKind::Type, span, format!("{value} is not in the range of `{ty}`"));
            return None;
        }
        Some(Typed::int(ty, value))
    }

    /// Whether a name is that of the targets of a `br_table`.
    fn is_of_targets(&self, name: &Ident) -> bool {
        let is_bound = matches!(&self.context, Context::Rule { event, .. } if event.has_targets());
        name.name == TARGETS && is_bound && self.find(TARGETS).is_none()
    }

    /// The value of a bound name that is used like a literal.
    fn bits(&self, name: &str) -> Option<u32> {
        match &self.context {
            Context::Rule { event, bounds, .. } if self.find(name).is_none() => {
                match event.bound(name, bounds) {
                    Bound::Bits(bits) => Some(bits),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    pub(super) fn name(&mut self, name: &str, span: &Span) -> Option<Typed> {
        if let Some(variable) = self.find(name) {
            let (ty, place) = (variable.ty.clone(), variable.place);
            if !self.is_in_frame(place, name, span) {
                return None;
            }
            if ty.has_map() {
                let message = format!("`{name}` is a map: its values have keys, as in `{name}[0]`");
                self.problem(ProblemKind::Type, span, message);
                return None;
            }
            return Some(Typed::new(ty, Kind::Variable(place, 0)));
        }
        let bound = match &self.context {
            Context::Rule { event, bounds, index, .. } => {
                let is_known = self.program.narrow.iter().any(|(rule, _)| rule == index);
                if let Some(bound) = event.wide_bound(name, bounds).filter(|_| !is_known) {
                    self.program.narrow.push((*index, bound));
                }
                Some((event.bound(name, bounds), event.text()))
            }
            _ => None,
        };
        match bound {
            Some((Bound::Value(value), _)) => Some(value),
            Some((Bound::Bits(bits), _)) => Some(Typed::int(Type::U32, i128::from(bits))),
            Some((Bound::Callee(callee), _)) => self.callee(callee, name, span),
            Some((Bound::NeedsType, event)) => {
                let provider = self.target.provider();
                let example = match event.strip_prefix("wasm:opcode:").and_then(|of| of.split_once(':')) {
                    Some((_, mode)) => format!("wasm:opcode:NAME({name}: i32):{mode}"),
                    None if event.starts_with("wasm:") => format!("{event}({name}: i32)"),
                    None => provider.with_bound(name),
                };
                self.help(
                    ProblemKind::Type,
                    span,
                    format!("the type of `{name}` differs from place to place"),
                    format!("give the rule a type bound: `{example}`"),
                );
                None
            }
            Some((Bound::Unsupported(why), _)) => {
                self.help(ProblemKind::Unsupported, span, format!("`{name}` is not supported"), why);
                None
            }
            Some((Bound::Unknown, event)) => {
                // Events without a place are the same for all providers.
                let (_, rest) = event.split_once(':').expect("an event has parts");
                let event = format!("{}:{rest}", self.target.provider().name());
                self.help(
                    ProblemKind::Name,
                    span,
                    format!("there is no variable `{name}`"),
                    format!("`wasm-jit whamm info {event}` lists what is bound"),
                );
                None
            }
            None => {
                self.problem(ProblemKind::Name, span, format!("there is no variable `{name}`"));
                None
            }
        }
    }

    fn field(&mut self, name: &Ident, path: &[usize], span: &Span) -> Option<Typed> {
        let Typed { mut ty, kind: Kind::Variable(place, mut component) } =
            self.name(&name.name, &name.span)?
        else {
            self.problem(ProblemKind::Type, span, format!("`{}` is not a tuple", name.name));
            return None;
        };
        for index in path {
            let next = match &ty {
                Type::Tuple(fields) if *index < fields.len() => {
                    let before: usize = fields[..*index].iter().map(|field| field.components().len()).sum();
                    component += before as u32;
                    fields[*index].clone()
                }
                other => {
                    let message = format!("a `{other}` has no field {index}");
                    self.problem(ProblemKind::Type, span, message);
                    return None;
                }
            };
            ty = next;
        }
        Some(Typed::new(ty, Kind::Variable(place, component)))
    }

    /// A map, a key of its type, and the type of its values.
    pub(super) fn map_access(&mut self, name: &Ident, key: &Expr) -> Option<(Place, Typed, Type)> {
        let Some(variable) = self.find(&name.name).cloned() else {
            let message = format!("there is no map `{}`", name.name);
            self.problem(ProblemKind::Name, &name.span, message);
            return None;
        };
        let Type::Map(key_type, value_type) = variable.ty else {
            let message = format!("`{}` is not a map, but a `{}`", name.name, variable.ty);
            self.problem(ProblemKind::Type, &name.span, message);
            return None;
        };
        if !self.is_in_frame(variable.place, &name.name, &name.span) {
            return None;
        }
        let checked = self.expr(key, Some(&key_type))?;
        self.same_type(&checked, &key_type, &key.span).then_some((variable.place, checked, *value_type))
    }

    fn unary(&mut self, op: UnaryOp, operand: &Expr, expected: Option<&Type>, span: &Span) -> Option<Typed> {
        if let (UnaryOp::Negate, ExprKind::Int(value)) = (op, &operand.kind) {
            return self.integer(-i128::from(*value), expected, span);
        }
        if op == UnaryOp::Not {
            return self.condition(operand).map(|operand| Typed::unary(op, operand));
        }
        let checked = match op {
            UnaryOp::Complement => self.operand(operand, expected)?,
            _ => self.expr(operand, expected)?,
        };
        if checked.ty.is_integer() || (op == UnaryOp::Negate && checked.ty.is_float()) {
            return Some(Typed::unary(op, checked));
        }
        let message = format!("a number is expected, this is a `{}`", checked.ty);
        self.problem(ProblemKind::Type, &operand.span, message);
        None
    }

    /// An operand of which only the bits matter: negative numbers also stand for those of unsigned
    /// types, such as `-1` for all bits.
    fn operand(&mut self, operand: &Expr, expected: Option<&Type>) -> Option<Typed> {
        match (&operand.kind, expected.and_then(|ty| Some((ty, ty.bits()?)))) {
            (ExprKind::Unary(UnaryOp::Negate, number), Some((ty, bits))) if !ty.is_signed() => {
                match number.kind {
                    ExprKind::Int(value) if value <= 1 << (bits - 1) => {
                        Some(Typed::int(ty.clone(), -i128::from(value)))
                    }
                    _ => self.expr(operand, expected),
                }
            }
            _ => self.expr(operand, expected),
        }
    }

    /// Two operands of one type, of which the second is read by `read`; a literal takes the type of
    /// the other one.
    fn pair(
        &mut self,
        left: &Expr,
        right: &Expr,
        expected: Option<&Type>,
        read: fn(&mut Self, &Expr, Option<&Type>) -> Option<Typed>,
    ) -> Option<(Typed, Typed)> {
        let is_reversed = self.is_literal(left);
        let (first, second) = if is_reversed { (right, left) } else { (left, right) };
        let one = self.expr(first, expected)?;
        let other = read(self, second, Some(&one.ty))?;
        if one.ty != other.ty {
            let span = left.span.start..right.span.end;
            let (a, b) = if is_reversed { (&other.ty, &one.ty) } else { (&one.ty, &other.ty) };
            let message = format!("the operands are a `{a}` and a `{b}`");
            self.help(ProblemKind::Type, &span, message, "convert one of them with `as`");
            return None;
        }
        Some(if is_reversed { (other, one) } else { (one, other) })
    }

    fn binary(&mut self, op: BinaryOp, left: &Expr, right: &Expr, expected: Option<&Type>) -> Option<Typed> {
        match op {
            BinaryOp::And | BinaryOp::Or => {
                let left = self.condition(left);
                let right = self.condition(right);
                return Some(Typed::binary(op, left?, right?));
            }
            BinaryOp::Shl | BinaryOp::Shr => {
                let value = self.operand(left, expected)?;
                let amount = self.expr(right, Some(&value.ty))?;
                for (operand, span) in [(&value, &left.span), (&amount, &right.span)] {
                    if !operand.ty.is_integer() {
                        let message = format!("an integer is expected, this is a `{}`", operand.ty);
                        self.problem(ProblemKind::Type, span, message);
                        return None;
                    }
                }
                let ty = value.ty.clone();
                return Some(Typed::binary(op, value, Typed::cast(amount, ty)));
            }
            _ => {}
        }
        let is_of_bits = matches!(op, BinaryOp::BitAnd | BinaryOp::BitOr | BinaryOp::BitXor);
        let (a, b) = match expected {
            Some(_) if is_of_bits && self.is_literal(left) && self.is_literal(right) => {
                (self.operand(left, expected)?, self.operand(right, expected)?)
            }
            _ if is_of_bits => self.pair(left, right, expected, Self::operand)?,
            _ => self.pair(left, right, expected.filter(|_| !op.is_comparison()), Self::expr)?,
        };
        let ty = &a.ty;
        let fine = match op {
            BinaryOp::Eq | BinaryOp::Ne => ty.scalar().is_some() || *ty == Type::Str,
            BinaryOp::Ge | BinaryOp::Gt | BinaryOp::Le | BinaryOp::Lt => ty.is_integer() || ty.is_float(),
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem => {
                ty.is_integer() || ty.is_float()
            }
            _ => ty.is_integer(),
        };
        if fine {
            return Some(Typed::binary(op, a, b));
        }
        let message = format!("`{}` has no meaning for a `{ty}`", op.text());
        self.problem(ProblemKind::Type, &(left.span.start..right.span.end), message);
        None
    }

    /// Whether the type of a number is open.
    fn is_literal(&self, expr: &Expr) -> bool {
        match &expr.kind {
            ExprKind::Int(_) | ExprKind::Float(_) => true,
            ExprKind::Name(name) => self.bits(name).is_some(),
            ExprKind::Unary(UnaryOp::Negate | UnaryOp::Complement, operand) => self.is_literal(operand),
            ExprKind::Binary(op, left, right) => {
                !op.is_comparison()
                    && !matches!(op, BinaryOp::And | BinaryOp::Or)
                    && self.is_literal(left)
                    && self.is_literal(right)
            }
            _ => false,
        }
    }
}
