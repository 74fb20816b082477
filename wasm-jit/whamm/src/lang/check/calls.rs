//! Checks calls: to functions of the script, of libraries, and of strings.
//!
//! A library function is called where the call is; with `@static`, when a place is matched (in a
//! predicate perhaps several times); and with `@init`, as a statement, once when a place is
//! matched. In the statements of the script, the three are the same. WebAssembly values have no
//! signs, so `u32` and `bool` are passed as well as `i32`; a result of type i32 is an `i32`.

use wasm_encoder::ValType;

use super::super::ast::{Expr, Ident, Item, Script};
use super::super::bound::Bound;
use super::super::diagnostics::ProblemKind;
use super::super::emit::any;
use super::super::ir::{Const, Function, Import, Kind, Statement, TextOp, Typed};
use super::super::split;
use super::super::types::Type;
use super::{Checker, Context};

impl Checker<'_> {
    pub(super) fn use_library(&mut self, name: &Ident) {
        if self.used.contains(&name.name) {
            self.problem(ProblemKind::Name, &name.span, format!("`{}` is used twice", name.name));
        } else if !self.libraries.contains(&name.name) {
            self.help(
                ProblemKind::Name,
                &name.span,
                format!("there is no library `{0}`", name.name),
                format!(
                    "a library is a module: `{0}.wasm` in the directory of the script, or `SCRIPT.mm+DIRECTORY/{0}.wasm`",
                    name.name
                ),
            );
        }
        self.used.push(name.name.clone());
    }

    pub(super) fn any_call(
        &mut self,
        annotation: Option<&Ident>,
        object: Option<&Ident>,
        name: &Ident,
        arguments: &[Expr],
    ) -> Option<Typed> {
        let library = object.filter(|object| self.used.contains(&object.name));
        if let Some(annotation) = annotation {
            let message = match (annotation.name.as_str(), library) {
                ("static", Some(library)) => return self.static_call(library, name, arguments),
                ("static" | "init", None) => {
                    "only calls of libraries are made when a rule is matched".to_owned()
                }
                ("init", Some(_)) => {
                    "a call with `@init` is a statement: its result is not known later".to_owned()
                }
                (other, _) => format!("there is no annotation `@{other}`; there are `@static` and `@init`"),
            };
            self.problem(ProblemKind::Syntax, &annotation.span, message);
            return None;
        }
        match (library, object) {
            (Some(library), _) => self.library_call(library, name, arguments),
            (None, Some(object)) => self.method(object, name, arguments),
            (None, None) => self.call(name, arguments),
        }
    }

    /// Checks a call with `@init`.
    pub(super) fn init_call(
        &mut self,
        call: &Expr,
        library: &Ident,
        name: &Ident,
        arguments: &[Expr],
    ) -> Vec<Statement> {
        let in_init = std::mem::replace(&mut self.in_init, true);
        let checked = self.library_call(library, name, arguments);
        self.in_init = in_init;
        let Some(checked) = checked else { return Vec::new() };
        match &self.context {
            Context::Rule { event, .. } if event.has_site() => {
                if self.is_static(&checked, call) {
                    self.has_site = true;
                    self.init.statements.push(Statement::Call(checked));
                }
                Vec::new()
            }
            _ => vec![Statement::Call(checked)],
        }
    }

    /// Whether the arguments of a call are known when the rule is matched; reports a problem if
    /// not.
    fn is_static(&mut self, call: &Typed, place: &Expr) -> bool {
        let is_static = call.children().into_iter().all(split::is_static);
        if !is_static {
            let message = "an argument depends on the program's execution, and the call is made before";
            self.problem(ProblemKind::Type, &place.span, message);
        }
        is_static
    }

    fn static_call(&mut self, library: &Ident, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        let call = self.library_call(library, name, arguments)?;
        if call.ty == Type::UNIT {
            self.problem(
                ProblemKind::Type,
                &name.span,
                "a call with `@static` is a value, and this has none",
            );
            return None;
        }
        match &self.context {
            Context::Rule { event, .. } if event.has_site() => {}
            // Here, match time and run time are the same.
            _ => return Some(call),
        }
        for (value, argument) in call.children().into_iter().zip(arguments) {
            if !split::is_static(value) {
                let message = "the value depends on the program's execution, and the call is made before";
                self.problem(ProblemKind::Type, &argument.span, message);
                return None;
            }
        }
        Some(Typed::new(call.ty.clone(), Kind::AtMatch(Box::new(call))))
    }

    fn library_call(&mut self, library: &Ident, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        if !self.libraries.contains(&library.name) {
            // Reported where the library is named.
            return None;
        }
        if let Some(removal) = self.removal(library, name, arguments) {
            return Some(removal);
        }
        let Some(signature) = self.libraries.function(&library.name, &name.name).cloned() else {
            let known = self.libraries.names(&library.name).join(", ");
            self.help(
                ProblemKind::Name,
                &name.span,
                format!("the library `{}` has no function `{}`", library.name, name.name),
                format!("it has: {known}"),
            );
            return None;
        };
        let (parameters, results) = signature;
        let types: Option<Vec<Type>> = parameters.iter().map(|ty| number(*ty)).collect();
        let (Some(types), Some(result)) = (types, result(&results)) else {
            self.problem(
                ProblemKind::Unsupported,
                &name.span,
                "functions of libraries have numbers as parameters, and one or no number as a result",
            );
            return None;
        };
        self.check_count(name, types.len(), arguments.len())?;
        let mut checked = Vec::new();
        for (argument, ty) in arguments.iter().zip(&types) {
            let value = self.expr(argument, Some(ty))?;
            // Only operations distinguish signed from unsigned.
            if value.ty.scalar() != ty.scalar() && !self.same_type(&value, ty, &argument.span) {
                return None;
            }
            checked.push(value);
        }
        let import = Import { library: library.name.clone(), name: name.name.clone(), parameters, results };
        Some(Typed::new(result, Kind::Library(self.program.import(import), checked)))
    }

    pub(super) fn check_count(&mut self, name: &Ident, parameters: usize, arguments: usize) -> Option<()> {
        if parameters == arguments {
            return Some(());
        }
        let plural = if parameters == 1 { "" } else { "s" };
        let message =
            format!("`{}` has {parameters} parameter{plural}, and is called with {arguments}", name.name);
        self.problem(ProblemKind::Type, &name.span, message);
        None
    }

    fn call(&mut self, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        let Some(signature) = self.functions.get(&name.name).cloned() else {
            match name.name.as_str() {
                "log2" => return self.log2(name, arguments),
                "resolve_funcref" => return self.resolve_reference(name, arguments),
                _ => {}
            }
            if let Some(checked) = self.memory_call(name, arguments) {
                return checked;
            }
            if self.is_alternative(name) {
                let message = format!("`{}` is a statement: it has no value", name.name);
                self.problem(ProblemKind::Type, &name.span, message);
                return None;
            }
            let message = format!("there is no function `{}`", name.name);
            self.problem(ProblemKind::Name, &name.span, message);
            return None;
        };
        self.check_count(name, signature.parameters.len(), arguments.len())?;
        let mut checked = Vec::new();
        for (argument, ty) in arguments.iter().zip(&signature.parameters) {
            let value = self.expr(argument, Some(ty))?;
            if !self.same_type(&value, ty, &argument.span) {
                return None;
            }
            checked.push(value);
        }
        Some(Typed::new(signature.result, Kind::Call(signature.index, checked)))
    }

    /// Refuses recursive functions: nothing limits the stack that they need.
    pub(super) fn refuse_recursion(&mut self, script: &Script) {
        let functions = &self.program.functions;
        let calls = |function: &Function| {
            let mut called = Vec::new();
            any(&function.body.statements, &mut |value| {
                called_by(value, &mut called);
                false
            });
            called
        };
        let graph: Vec<Vec<usize>> = functions.iter().map(calls).collect();
        // A function is done if all of its callees are; a round that finds none leaves the cycles.
        let mut is_done = vec![false; graph.len()];
        while let Some(next) = (0..graph.len())
            .find(|number| !is_done[*number] && graph[*number].iter().all(|callee| is_done[*callee]))
        {
            is_done[next] = true;
        }
        for item in &script.items {
            let Item::Function(function) = item else { continue };
            let signature = self.functions.get(&function.name.name);
            if signature.is_some_and(|signature| !is_done[signature.index]) {
                let message = format!("`{}` calls itself, or functions that do", function.name.name);
                self.help(
                    ProblemKind::Unsupported,
                    &function.name.span,
                    message,
                    "in scripts for native programs, functions do not call themselves",
                );
            }
        }
    }

    /// `log2(n)`, for histograms.
    fn log2(&mut self, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        self.check_count(name, 1, arguments.len())?;
        let number = self.expr(&arguments[0], None)?;
        if number.ty.is_integer() && !number.ty.is_signed() {
            return Some(Typed::log2(number));
        }
        if let Kind::Const(Const::Int(0..)) = number.kind {
            return Some(Typed::log2(number));
        }
        let message = format!("an unsigned integer is expected, this is a `{}`", number.ty);
        self.problem(ProblemKind::Type, &arguments[0].span, message);
        None
    }

    /// Checks a call to a function of a string.
    fn method(&mut self, object: &Ident, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        let is_bound = match &self.context {
            Context::Rule { event, bounds, .. } => {
                !matches!(event.bound(&object.name, bounds), Bound::Unknown)
            }
            _ => false,
        };
        if self.find(&object.name).is_none() && !is_bound {
            let message = format!("there is no variable or library `{}`", object.name);
            let help = format!("a library is named at the beginning: `use {};`", object.name);
            self.help(ProblemKind::Name, &object.span, message, help);
            return None;
        }
        let text = self.name(&object.name, &object.span)?;
        if text.ty != Type::Str {
            let message = format!("a `{}` has no functions", text.ty);
            self.problem(ProblemKind::Type, &object.span, message);
            return None;
        }
        let op = match name.name.as_str() {
            "len" => {
                self.check_count(name, 0, arguments.len())?;
                return Some(Typed::length(text));
            }
            "addr" if matches!(text.kind, Kind::Variable(..)) => {
                self.check_count(name, 0, arguments.len())?;
                return Some(Typed::new(Type::U32, Kind::Address(Box::new(text))));
            }
            "starts_with" => TextOp::StartsWith,
            "ends_with" => TextOp::EndsWith,
            "contains" => TextOp::Contains,
            "matches" => TextOp::Matches,
            other => {
                let message = format!("a `str` has no function `{other}`");
                let known = "there are `len`, `addr` of a variable, `starts_with`, `ends_with`, `contains` and `matches`";
                self.help(ProblemKind::Name, &name.span, message, known);
                return None;
            }
        };
        self.check_count(name, 1, arguments.len())?;
        let pattern = self.expr(&arguments[0], Some(&Type::Str))?;
        self.same_type(&pattern, &Type::Str, &arguments[0].span).then(|| Typed::text(op, text, pattern))
    }
}

/// Adds the functions that an expression calls.
fn called_by(value: &Typed, all: &mut Vec<usize>) {
    if let Kind::Call(function, _) = value.kind {
        all.push(function);
    }
    value.children().into_iter().for_each(|child| called_by(child, all));
}

/// The type of a value of WebAssembly.
fn number(ty: ValType) -> Option<Type> {
    Some(match ty {
        ValType::I32 => Type::I32,
        ValType::I64 => Type::I64,
        ValType::F32 => Type::F32,
        ValType::F64 => Type::F64,
        _ => return None,
    })
}

fn result(results: &[ValType]) -> Option<Type> {
    match results {
        [] => Some(Type::UNIT),
        [one] => number(*one),
        _ => None,
    }
}
