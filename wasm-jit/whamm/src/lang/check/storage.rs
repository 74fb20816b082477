//! The storage of declared variables.

use super::super::Target;
use super::super::ast::{self, Storage};
use super::super::diagnostics::{ProblemKind, Span};
use super::super::ir::{Place, Report, SITE_HEADER};
use super::super::types::{MAX_COMPONENTS, Type};
use super::{Checker, Context, Variable};

/// The maximum size in bytes of the variables of a script, of a match site, and of a frame.
const MAX_STORAGE: u32 = 1 << 20;

impl Checker<'_> {
    /// Allocates locals for a value.
    pub(super) fn local(&mut self, ty: &Type) -> Place {
        let locals = if self.in_init { &mut self.init.locals } else { &mut self.body.locals };
        let place = Place::Local(locals.len() as u32);
        locals.extend(ty.components());
        place
    }

    /// Allocates memory for a variable that exists once.
    fn once(&mut self, ty: &Type, span: &Span) -> Place {
        let address = self.program.static_size;
        self.program.static_size += ty.size();
        if self.program.static_size > MAX_STORAGE {
            self.program.static_size = address;
            self.problem(ProblemKind::Limit, span, format!("variables of more than {MAX_STORAGE} bytes"));
        }
        Place::Absolute(address)
    }

    /// Checks a type of values: not a map, and not too many components.
    pub(super) fn check_value_type(&mut self, ty: &Type, span: &Span) -> bool {
        if ty.has_map() {
            self.problem(
                ProblemKind::Unsupported,
                span,
                "maps cannot be passed, returned, or be part of a value",
            );
            return false;
        }
        if ty.components().len() > MAX_COMPONENTS {
            let message = format!("a value of more than {MAX_COMPONENTS} components");
            self.problem(ProblemKind::Limit, span, message);
            return false;
        }
        true
    }

    fn check_variable_type(&mut self, ty: &Type, span: &Span) -> bool {
        match ty {
            Type::Map(key, value) => {
                let fine = self.check_value_type(key, span) && self.check_value_type(value, span);
                if fine && (key.components().is_empty() || value.components().is_empty()) {
                    self.problem(
                        ProblemKind::Type,
                        span,
                        "the keys and values of a map have at least one field",
                    );
                    return false;
                }
                fine
            }
            Type::Tuple(fields) if fields.is_empty() => {
                self.problem(ProblemKind::Type, span, "a variable has a value, and `()` is none");
                false
            }
            value => self.check_value_type(value, span),
        }
    }

    /// Allocates memory, or locals, for a declared variable.
    pub(super) fn allocate(&mut self, declaration: &ast::Declaration) -> Option<Variable> {
        let ast::Declaration { storage, report, name, ty, .. } = declaration;
        if !self.check_variable_type(ty, &name.span) {
            return None;
        }
        let rule = match &self.context {
            Context::Rule { index, text, event, .. } => Some((*index, event.has_site(), text.clone())),
            _ => None,
        };
        let storage = match (storage, report) {
            // In upstream's language, `report` alone also means one for each site.
            (Storage::Plain, true) if rule.as_ref().is_some_and(|(_, has_site, _)| *has_site) => {
                Storage::Unshared
            }
            (Storage::Plain, true) if rule.is_some() => Storage::Shared,
            (storage, _) => *storage,
        };
        let is_local = storage == Storage::Plain && (rule.is_some() || self.scopes.len() > 1);
        if ty.has_reference() && !is_local {
            let message = "a `funcref` does not outlive the event";
            let help = "keep the function's number: `resolve_funcref(target_funcref, table_entry_idx)`";
            self.help(ProblemKind::Type, &name.span, message, help);
            return None;
        }
        let place = match (storage, &rule) {
            (Storage::Plain, Some(_)) => self.plain_local(ty, &name.span)?,
            (Storage::Plain, None) => match self.context {
                Context::Script if self.scopes.len() == 1 => {
                    let place = self.once(ty, &name.span);
                    if *report {
                        let report = Report { name: name.name.clone(), ty: ty.clone(), place };
                        self.program.reported.push((report, None));
                    }
                    place
                }
                _ if *report => {
                    let message = "a function's variables are not reported";
                    self.problem(ProblemKind::Name, &name.span, message);
                    return None;
                }
                _ => self.plain_local(ty, &name.span)?,
            },
            (Storage::Unshared, Some((_, true, _))) => {
                let place = Place::Site(SITE_HEADER + self.site_size);
                self.site_size += ty.size();
                if self.site_size > MAX_STORAGE {
                    self.problem(ProblemKind::Limit, &name.span, "too many variables");
                    return None;
                }
                if *report {
                    self.sites.push(Report { name: name.name.clone(), ty: ty.clone(), place });
                }
                place
            }
            (Storage::Shared, Some((index, _, event))) => {
                let key = (*index, name.span.start);
                match self.shared.get(&key) {
                    Some(address) => Place::Absolute(*address),
                    None => {
                        let place = self.once(ty, &name.span);
                        if let Place::Absolute(address) = place {
                            self.shared.insert(key, address);
                        }
                        if *report {
                            let report = Report { name: name.name.clone(), ty: ty.clone(), place };
                            self.program.reported.push((report, Some(event.clone())));
                        }
                        place
                    }
                }
            }
            (Storage::Frame, _) => return self.frame_variable(declaration),
            (Storage::Thread, _) => return self.thread_variable(declaration),
            (Storage::Unshared | Storage::Shared, _) => {
                self.help(
                    ProblemKind::Name,
                    &name.span,
                    "this storage class belongs to rules that match places of the program's code",
                    "leave it out: variables of the script exist once",
                );
                return None;
            }
        };
        Some(Variable { ty: ty.clone(), place })
    }

    fn plain_local(&mut self, ty: &Type, span: &Span) -> Option<Place> {
        if ty.has_map() {
            self.help(
                ProblemKind::Unsupported,
                span,
                "a map lives longer than a block",
                "declare it as `shared` or `unshared`, or outside of the rule",
            );
            return None;
        }
        Some(self.local(ty))
    }

    /// Whether what is declared here can belong to events of a function.
    fn belongs_to_sites(&self) -> bool {
        match &self.context {
            Context::Rule { event, .. } => event.has_site(),
            Context::Script => true,
            Context::Function { .. } => false,
        }
    }

    /// Declares a variable of frames. All declarations of a name are one variable.
    fn frame_variable(&mut self, declaration: &ast::Declaration) -> Option<Variable> {
        let ast::Declaration { report, name, ty, .. } = declaration;
        let belongs = self.belongs_to_sites();
        if !belongs || *report {
            let message = match belongs {
                false => "a frame variable belongs to rules that match places of the program's code",
                true => "a frame variable is gone when the program ends, and cannot be reported",
            };
            self.problem(ProblemKind::Name, &name.span, message);
            return None;
        }
        if ty.has_map() {
            self.help(
                ProblemKind::Unsupported,
                &name.span,
                "a map cannot be a frame variable",
                "keep a map in a variable of the script, with a number of the frame in its keys",
            );
            return None;
        }
        if let Some(known) = self.frame.get(&name.name) {
            if known.ty == *ty {
                return Some(known.clone());
            }
            let message = format!("the frame variable `{}` is a `{}` elsewhere", name.name, known.ty);
            self.problem(ProblemKind::Type, &name.span, message);
            return None;
        }
        let place = Place::Frame(self.program.frame_size);
        self.program.frame_size += ty.size();
        if self.program.frame_size > MAX_STORAGE {
            self.problem(
                ProblemKind::Limit,
                &name.span,
                format!("variables of more than {MAX_STORAGE} bytes"),
            );
            return None;
        }
        let variable = Variable { ty: ty.clone(), place };
        self.frame.insert(name.name.clone(), variable.clone());
        Some(variable)
    }

    /// Declares a variable of threads. All declarations of a name are one variable.
    fn thread_variable(&mut self, declaration: &ast::Declaration) -> Option<Variable> {
        let ast::Declaration { report, name, ty, .. } = declaration;
        if self.target != Target::Native {
            self.help(
                ProblemKind::Unsupported,
                &name.span,
                "only scripts for native programs have variables of threads",
                "`var` exists once for all threads, `frame var` once for each call of a function",
            );
            return None;
        }
        if !self.belongs_to_sites() {
            let message = "a variable of threads belongs to rules of functions";
            self.problem(ProblemKind::Name, &name.span, message);
            return None;
        }
        if let Some(known) = self.thread.get(&name.name).cloned() {
            if known.ty != *ty {
                let message =
                    format!("the variable of threads `{}` is a `{}` elsewhere", name.name, known.ty);
                self.problem(ProblemKind::Type, &name.span, message);
                return None;
            }
            self.report_of_threads(*report, &name.name, &known);
            return Some(known);
        }
        let size = self.program.thread_size.unwrap_or(SITE_HEADER);
        let variable = Variable { ty: ty.clone(), place: Place::Thread(size) };
        if size + ty.size() > MAX_STORAGE {
            self.problem(
                ProblemKind::Limit,
                &name.span,
                format!("variables of more than {MAX_STORAGE} bytes"),
            );
            return None;
        }
        self.program.thread_size = Some(size + ty.size());
        self.thread.insert(name.name.clone(), variable.clone());
        self.report_of_threads(*report, &name.name, &variable);
        Some(variable)
    }

    /// Puts a variable of threads into the report, once.
    fn report_of_threads(&mut self, is_reported: bool, name: &str, variable: &Variable) {
        let Variable { ty, place } = variable;
        let reported = &mut self.program.reported_threads;
        if is_reported && !reported.iter().any(|report| report.place == *place) {
            reported.push(Report { name: name.to_owned(), ty: ty.clone(), place: *place });
        }
    }

    /// Whether a variable can be used here: variables of frames need a frame, and those of threads
    /// a thread.
    pub(super) fn is_in_frame(&mut self, place: Place, name: &str, span: &Span) -> bool {
        let has_frame = match &self.context {
            Context::Rule { event, .. } => event.has_site(),
            Context::Script | Context::Function { .. } => false,
        };
        let message = match place {
            _ if has_frame => return true,
            Place::Frame(_) => format!("`{name}` is a frame variable, and there is no frame here"),
            Place::Thread(_) => format!("`{name}` is a variable of threads, and there is no thread here"),
            _ => return true,
        };
        self.help(ProblemKind::Name, span, message, "pass its value as an argument");
        false
    }
}
