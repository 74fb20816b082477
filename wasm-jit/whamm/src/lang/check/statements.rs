//! Checks statements.

use std::collections::HashMap;

use super::super::ast::{self, BinaryOp, Expr, ExprKind, StatementKind};
use super::super::diagnostics::ProblemKind;
use super::super::ir::{Body, Kind, Place, Statement, Typed};
use super::super::split::is_static;
use super::super::types::Type;
use super::{Checker, Context, Variable, one};

/// The target of an assignment.
enum Target {
    Variable { place: Place, component: u32, ty: Type },
    Map { map: Place, key: Typed, ty: Type },
}

impl Checker<'_> {
    pub(super) fn block(&mut self, statements: &[ast::Statement]) -> Vec<Statement> {
        self.scopes.push(HashMap::new());
        let checked = statements.iter().flat_map(|statement| self.statement(statement)).collect();
        self.scopes.pop();
        checked
    }

    pub(super) fn statement(&mut self, statement: &ast::Statement) -> Vec<Statement> {
        match &statement.kind {
            StatementKind::Declare(declaration) => self.declaration(declaration),
            StatementKind::Assign { target, value } => self.assignment(target, value).into_iter().collect(),
            StatementKind::Step { target, up } => self.step(target, *up).into_iter().collect(),
            StatementKind::Call(call) => match &call.kind {
                ExprKind::Call { annotation: Some(annotation), object: Some(library), name, arguments }
                    if annotation.name == "init" && self.used.contains(&library.name) =>
                {
                    self.init_call(call, library, name, arguments)
                }
                ExprKind::Call { annotation: None, object: None, name, arguments }
                    if self.is_alternative(name) =>
                {
                    self.call_alternative(name, arguments).into_iter().collect()
                }
                ExprKind::Call { annotation: None, object: None, name, arguments }
                    if self.is_dropping(name) =>
                {
                    self.drop_arguments(name, arguments);
                    Vec::new()
                }
                _ => self.call_statement(call).into_iter().collect(),
            },
            StatementKind::Return(value) => vec![self.return_statement(value.as_ref(), statement)],
            StatementKind::If { arms, otherwise } => {
                let mut no = self.block(otherwise);
                // Conditions are checked in reverse; problems are sorted later.
                for (condition, block) in arms.iter().rev() {
                    let condition = self.condition(condition);
                    let yes = self.block(block);
                    no = match condition.as_ref().and_then(Typed::as_bool) {
                        Some(true) => yes,
                        Some(false) => no,
                        None => condition
                            .map(|condition| Statement::If { condition, yes, no })
                            .into_iter()
                            .collect(),
                    };
                }
                no
            }
            StatementKind::While { condition, body } => {
                let condition = self.condition(condition);
                self.loops += 1;
                let body = self.block(body);
                self.loops -= 1;
                condition.map(|condition| Statement::While { condition, body }).into_iter().collect()
            }
            StatementKind::Break | StatementKind::Continue if self.loops == 0 => {
                self.problem(ProblemKind::Syntax, &statement.span, "not inside of a loop");
                Vec::new()
            }
            StatementKind::Break => vec![Statement::Break],
            StatementKind::Continue => vec![Statement::Continue],
        }
    }

    fn declaration(&mut self, declaration: &ast::Declaration) -> Vec<Statement> {
        let Some(variable) = self.allocate(declaration) else {
            // Uses of the variable should not be reported as further problems.
            let place = Place::Absolute(0);
            let ty = declaration.ty.clone();
            self.declare(&declaration.name, Variable { ty, place });
            return Vec::new();
        };
        let Variable { ty, place } = variable.clone();
        if ty.has_map() && declaration.init.is_some() {
            self.problem(
                ProblemKind::Type,
                &declaration.name.span,
                "a map starts empty, and cannot be assigned",
            );
            return Vec::new();
        }
        let is_persistent = match place {
            Place::Absolute(_) | Place::Replacement(_) => matches!(self.context, Context::Rule { .. }),
            Place::Site(_) | Place::Frame(_) | Place::Thread(_) => true,
            Place::Local(_) => false,
        };
        let value = match &declaration.init {
            Some(init) if is_persistent => {
                let body = std::mem::replace(&mut self.in_init, true);
                let value = self.expr(init, Some(&ty)).filter(|value| self.same_type(value, &ty, &init.span));
                self.in_init = body;
                // A site is initialized when it is matched, once, and calls of libraries with it.
                let value = value.map(|value| match place {
                    Place::Site(_) if !is_static(&value) && is_known_at_match(&value) => {
                        Typed::new(value.ty.clone(), Kind::AtMatch(Box::new(value)))
                    }
                    _ => value,
                });
                value.filter(|value| {
                    let is_static = is_static(value);
                    if !is_static {
                        self.help(
                            ProblemKind::Type,
                            &init.span,
                            "the initial value depends on the program's execution",
                            "it is computed when a site is matched, once; assign the value in a statement of its own",
                        );
                    }
                    is_static
                })
            }
            Some(init) => self.expr(init, Some(&ty)).filter(|value| self.same_type(value, &ty, &init.span)),
            // A block may be executed several times.
            None if matches!(place, Place::Local(_)) => Some(zero(&ty)),
            None => None,
        };
        self.declare(&declaration.name, variable);
        let Some(value) = value else { return Vec::new() };
        if let Place::Thread(offset) = place {
            // The block of a thread is addressed as a site's block while it is created.
            let set = Statement::Set { place: Place::Site(offset), component: 0, value };
            if !self.program.thread_init.statements.contains(&set) {
                self.shared_value(declaration, &set);
                self.program.thread_init.statements.push(set);
            }
            return Vec::new();
        }
        let set = Statement::Set { place, component: 0, value };
        if !is_persistent {
            return vec![set];
        }
        if let Place::Site(_) = place {
            self.init.statements.push(set);
        } else if let Place::Frame(_) = place {
            if !self.program.frame_init.statements.contains(&set) {
                self.shared_value(declaration, &set);
                self.program.frame_init.statements.push(set);
            }
        } else if !self.begin.statements.contains(&set) {
            // The events of a rule share the variable.
            self.shared_value(declaration, &set);
            self.begin.statements.push(set);
        }
        Vec::new()
    }

    /// Refuses an initial value that differs from place to place for a variable that exists once.
    fn shared_value(&mut self, declaration: &ast::Declaration, set: &Statement) {
        if let (Statement::Set { value, .. }, Some(init)) = (set, &declaration.init)
            && super::super::split::has_request(value)
        {
            let message = "the variable belongs to no place, so its initial value is not that of a place";
            self.problem(ProblemKind::Type, &init.span, message);
        }
    }

    fn target(&mut self, target: &Expr) -> Option<Target> {
        match &target.kind {
            ExprKind::Name(name) => {
                let Some(variable) = self.find(name).cloned() else {
                    // An unknown name, or the name of a bound variable.
                    if self.expr(target, None).is_some() {
                        self.problem(
                            ProblemKind::Name,
                            &target.span,
                            format!("`{name}` is bound by the event, and cannot be changed"),
                        );
                    }
                    return None;
                };
                if !self.is_in_frame(variable.place, name, &target.span) {
                    return None;
                }
                if variable.ty.has_map() {
                    self.problem(ProblemKind::Type, &target.span, "a map cannot be assigned");
                    return None;
                }
                Some(Target::Variable { place: variable.place, component: 0, ty: variable.ty })
            }
            ExprKind::Field(..) => match self.expr(target, None)? {
                Typed { ty, kind: Kind::Variable(place, component) } => {
                    Some(Target::Variable { place, component, ty })
                }
                _ => None,
            },
            ExprKind::Index(name, key) => {
                let (map, key, ty) = self.map_access(name, key)?;
                Some(Target::Map { map, key, ty })
            }
            _ => {
                self.problem(ProblemKind::Syntax, &target.span, "this cannot be assigned");
                None
            }
        }
    }

    fn assignment(&mut self, target: &Expr, value: &Expr) -> Option<Statement> {
        match self.target(target)? {
            Target::Variable { place, component, ty } => {
                let checked = self.expr(value, Some(&ty))?;
                self.same_type(&checked, &ty, &value.span).then_some(Statement::Set {
                    place,
                    component,
                    value: checked,
                })
            }
            Target::Map { map, key, ty } => {
                let checked = self.expr(value, Some(&ty))?;
                self.same_type(&checked, &ty, &value.span).then_some(Statement::SetMap {
                    map,
                    key,
                    value: checked,
                })
            }
        }
    }

    fn step(&mut self, target: &Expr, up: bool) -> Option<Statement> {
        let checked = self.target(target)?;
        let (Target::Variable { ty, .. } | Target::Map { ty, .. }) = &checked;
        if !ty.is_integer() && !ty.is_float() {
            self.problem(ProblemKind::Type, &target.span, format!("a number is expected, this is a `{ty}`"));
            return None;
        }
        let amount = one(ty);
        let operator = if up { BinaryOp::Add } else { BinaryOp::Sub };
        Some(match checked {
            Target::Variable { place, component, ty } => {
                let old = Typed::new(ty, Kind::Variable(place, component));
                Statement::Set { place, component, value: Typed::binary(operator, old, amount) }
            }
            Target::Map { map, key, .. } if up => Statement::AddMap { map, key, amount },
            Target::Map { map, key, .. } => {
                let amount = Typed::unary(ast::UnaryOp::Negate, amount);
                Statement::AddMap { map, key, amount }
            }
        })
    }

    fn call_statement(&mut self, call: &Expr) -> Option<Statement> {
        Some(Statement::Call(self.expr(call, None)?))
    }

    /// Makes a statement even if there is a problem: control does not continue.
    fn return_statement(&mut self, value: Option<&Expr>, statement: &ast::Statement) -> Statement {
        let expected = match &self.context {
            Context::Function { result } => result.clone(),
            Context::Rule { .. } => Type::UNIT,
            Context::Script => {
                self.problem(ProblemKind::Syntax, &statement.span, "not inside of a function or rule");
                return Statement::Return(None);
            }
        };
        let Some(value) = value else {
            if expected != Type::UNIT {
                self.problem(ProblemKind::Type, &statement.span, format!("a `{expected}` is returned here"));
            }
            return Statement::Return(None);
        };
        let checked = self.expr(value, Some(&expected));
        Statement::Return(checked.filter(|checked| self.same_type(checked, &expected, &value.span)))
    }

    /// An expression of type `bool`.
    pub(super) fn condition(&mut self, condition: &Expr) -> Option<Typed> {
        let checked = self.expr(condition, Some(&Type::Bool))?;
        if checked.ty == Type::Bool {
            return Some(checked);
        }
        let message = format!("a condition is a `bool`, this is a `{}`", checked.ty);
        self.help(ProblemKind::Type, &condition.span, message, "compare it, for instance with `!= 0`");
        None
    }
}

/// The value of variables without an initial value.
pub(super) fn zero(ty: &Type) -> Typed {
    match ty {
        Type::Bool => Typed::bool(false),
        Type::Str => Typed::string(""),
        Type::Tuple(fields) => Typed::new(ty.clone(), Kind::Tuple(fields.iter().map(zero).collect())),
        Type::F32 | Type::F64 => Typed::new(ty.clone(), Kind::Const(super::super::ir::Const::Float(0.0))),
        Type::FuncRef => Typed::int(Type::FuncRef, -1),
        integer => Typed::int(integer.clone(), 0),
    }
}

impl Body {
    pub(in super::super) fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }
}

/// Whether a value is known when a site is matched: functions of libraries are called then, and
/// variables of the site have their initial values.
fn is_known_at_match(value: &Typed) -> bool {
    match &value.kind {
        Kind::Variable(Place::Site(_), _) => true,
        Kind::Library(_, arguments) => arguments.iter().all(is_known_at_match),
        Kind::Unary(_, value) | Kind::Cast(value) | Kind::Length(value) => is_known_at_match(value),
        Kind::Binary(_, left, right) | Kind::Text(_, left, right) => {
            is_known_at_match(left) && is_known_at_match(right)
        }
        _ => is_static(value),
    }
}
