//! Makes the typed tree from the syntax tree: resolves names, types, the storage of variables, and
//! the meaning of each rule for each event that it matches.
//!
//! A rule is checked once for each event: bound variables differ in type and value, and expressions
//! that depend on constants such as `opname` are folded. Variables of a rule have the same storage
//! for all its events.

mod callees;
mod calls;
mod expressions;
mod memories;
mod replacement;
mod selection;
mod statements;
mod storage;

use std::collections::HashMap;

use wasm_encoder::ValType;

use self::replacement::is_result;
use super::Target;
use super::ast::{self, Item};
use super::bound;
use super::diagnostics::{Problem, ProblemKind, Span};
use super::events::{self, Event, Matched};
use super::ir::{
    Body, FAILURES, Failing, Function, Import, Place, Probe, Program, Report, SITE_HEADER, SiteReports,
    Statement, Typed,
};
use super::libraries::Libraries;
use super::native;
use super::split;
use super::types::Type;

/// The maximum number of pairs of rules and events in a script.
const MAX_PROBES: usize = 100_000;

/// The maximum number of pairs of rules and events that are checked: the predicates of most may not
/// hold.
const MAX_CHECKED: usize = 3_000_000;

/// The maximum number of arguments and results of native functions for which one rule may ask.
const MAX_ARGUMENTS: usize = 12;

/// The number of problems after which a script is abandoned.
const MAX_PROBLEMS: usize = 20;

#[derive(Clone, Debug)]
struct Variable {
    ty: Type,
    place: Place,
}

/// The parameters and result of a function.
#[derive(Clone, Debug)]
struct Signature {
    index: usize,
    parameters: Vec<Type>,
    result: Type,
}

/// The context in which code is checked.
#[derive(Clone, Debug)]
enum Context {
    /// Statements outside rules and functions.
    Script,
    Function {
        result: Type,
    },
    Rule {
        index: usize,
        text: String,
        event: Event,
        bounds: Vec<(String, Type)>,
    },
}

struct Checker<'a> {
    program: Program,
    problems: Vec<Problem>,
    functions: HashMap<String, Signature>,
    /// The available libraries, and those that the script uses.
    libraries: &'a Libraries,
    used: Vec<String>,
    /// Variables, inner scopes last.
    scopes: Vec<HashMap<String, Variable>>,
    /// Variables that a rule's events share, by rule and declaration.
    shared: HashMap<(usize, usize), u32>,
    /// Variables of frames, which have one meaning in all rules.
    frame: HashMap<String, Variable>,
    /// Variables of threads, which have one meaning in all rules.
    thread: HashMap<String, Variable>,
    context: Context,
    body: Body,
    /// Initial values of variables of sites.
    init: Body,
    /// Initial values of variables that exist once.
    begin: Body,
    site_size: u32,
    sites: Vec<Report>,
    loops: usize,
    /// Whether an initial value is being checked, which is computed when a site is matched.
    in_init: bool,
    /// Whether the rule stores something for each site, other than variables.
    has_site: bool,
    /// The environment in which the module runs.
    target: Target,
    /// The state of the generator of random numbers, if there is one.
    generator: Option<Place>,
    /// The alternatives that the rule calls, by their numbers.
    alternatives: Vec<u32>,
    /// Rules that are sampled by time, with the location of the time at which each acts again.
    sampled: Vec<(usize, Place)>,
    /// The number of pairs of rules and events so far.
    checked: usize,
}

/// Checks a script, whose module is for this target.
pub(super) fn check(
    script: &ast::Script,
    libraries: &Libraries,
    target: Target,
) -> Result<Program, Vec<Problem>> {
    let mut checker = Checker {
        program: Program::default(),
        problems: Vec::new(),
        functions: HashMap::new(),
        libraries,
        used: Vec::new(),
        scopes: vec![HashMap::new()],
        shared: HashMap::new(),
        frame: HashMap::new(),
        thread: HashMap::new(),
        context: Context::Script,
        body: Body::default(),
        init: Body::default(),
        begin: Body::default(),
        site_size: 0,
        sites: Vec::new(),
        loops: 0,
        in_init: false,
        has_site: false,
        target,
        generator: None,
        alternatives: Vec::new(),
        sampled: Vec::new(),
        checked: 0,
    };
    if target == Target::Native {
        checker.program.failing = Failing::Calls;
        checker.program.has_frame_blocks = true;
        let (library, name) = (FAILURES.0.to_owned(), FAILURES.1.to_owned());
        checker.program.import(Import { library, name, parameters: vec![ValType::I32], results: Vec::new() });
    }
    if target == Target::Here {
        checker.program.failing = Failing::Throws;
        checker.program.import(Import::failed());
    }
    checker.script(script);
    if target == Target::Native {
        checker.refuse_recursion(script);
    }
    if checker.problems.is_empty() { Ok(checker.program) } else { Err(checker.problems) }
}

impl Checker<'_> {
    fn problem(&mut self, kind: ProblemKind, span: &Span, message: impl Into<String>) -> &mut Problem {
        self.problems.push(Problem::new(kind, span.clone(), message));
        self.problems.last_mut().expect("one was pushed")
    }

    fn help(&mut self, kind: ProblemKind, span: &Span, message: impl Into<String>, help: impl Into<String>) {
        self.problem(kind, span, message).help = Some(help.into());
    }

    fn script(&mut self, script: &ast::Script) {
        for item in &script.items {
            match item {
                Item::Use(library) => self.use_library(library),
                Item::Function(function) => self.declare_function(function),
                Item::Rule(_) | Item::Statement(_) => {}
            }
        }
        // Functions may use variables that are declared later.
        let mut statements = Vec::new();
        for item in &script.items {
            if let Item::Statement(statement) = item {
                statements.extend(self.statement(statement));
            }
        }
        let mut body = std::mem::take(&mut self.body);
        body.statements = statements;
        self.program.begin.push(body);
        for item in &script.items {
            if let Item::Function(function) = item {
                self.function(function);
            }
        }
        let rules = script.items.iter().filter_map(|item| match item {
            Item::Rule(rule) => Some(rule),
            _ => None,
        });
        let rules: Vec<_> = rules.enumerate().collect();
        // The choices of types for the type parameters of a rule have the same text.
        for choices in rules.chunk_by(|(_, one), (_, next)| one.span == next.span) {
            if self.problems.len() >= MAX_PROBLEMS {
                break;
            }
            self.choices(choices);
        }
        let begin = std::mem::take(&mut self.begin);
        self.program.begin.insert(0, begin);
    }

    fn declare_function(&mut self, function: &ast::Function) {
        let index = self.program.functions.len();
        let parameters: Vec<_> = function.parameters.iter().map(|parameter| parameter.ty.clone()).collect();
        for parameter in &function.parameters {
            self.check_value_type(&parameter.ty, &parameter.name.span);
        }
        self.check_value_type(&function.result, &function.name.span);
        let signature = Signature { index, parameters: parameters.clone(), result: function.result.clone() };
        if self.functions.insert(function.name.name.clone(), signature).is_some() {
            let message = format!("the function `{}` is defined twice", function.name.name);
            self.problem(ProblemKind::Name, &function.name.span, message);
        }
        let result = function.result.clone();
        self.program.functions.push(Function { parameters, result, body: Body::default() });
    }

    fn function(&mut self, function: &ast::Function) {
        let Some(signature) = self.functions.get(&function.name.name).cloned() else { return };
        self.context = Context::Function { result: signature.result.clone() };
        self.scopes.push(HashMap::new());
        for parameter in &function.parameters {
            let place = self.local(&parameter.ty);
            self.declare(&parameter.name, Variable { ty: parameter.ty.clone(), place });
        }
        let statements = self.block(&function.body);
        if signature.result != Type::UNIT && !always_returns(&statements) {
            let message = format!("`{}` does not return a value on every path", function.name.name);
            self.problem(ProblemKind::Type, &function.name.span, message);
        }
        self.scopes.pop();
        let mut body = std::mem::take(&mut self.body);
        body.statements = statements;
        self.program.functions[signature.index].body = body;
        self.context = Context::Script;
    }

    /// Checks a rule for each choice of types, of which some may match nothing.
    fn choices(&mut self, choices: &[(usize, &ast::Rule)]) {
        if let [(_, rule), ..] = choices
            && self.target == Target::Native
            && !rule.types.is_empty()
        {
            let message = "rules for native functions have no type parameters";
            let help = "write a rule for each type, such as `(arg0: i64)` and `(arg0: f64)`";
            self.help(ProblemKind::Unsupported, &rule.span, message, help);
            return;
        }
        let mut unmatched = Vec::new();
        for (index, rule) in choices {
            let problems = self.problems.len();
            unmatched.extend(self.rule(*index, rule));
            if self.problems.len() > problems {
                let types = if rule.types.is_empty() { String::new() } else { rule.chosen_types() };
                for problem in self.problems[problems..].iter_mut().filter(|_| !types.is_empty()) {
                    problem.message += &format!(", where {types}");
                }
                return;
            }
        }
        if unmatched.len() == choices.len() {
            self.problems.extend(unmatched.pop());
        }
    }

    /// Checks a rule; returns a problem if its type bounds hold for none of the events that it
    /// matches.
    fn rule(&mut self, index: usize, rule: &ast::Rule) -> Option<Problem> {
        let (events, any) = match events::matching(&rule.parts, self.target.provider()) {
            Matched::Events { events, any } => (events, any),
            Matched::Nothing(help) => {
                self.help(ProblemKind::Rule, &rule.span, "this rule matches nothing", help);
                return None;
            }
        };
        if !self.can_replace(rule, &events) {
            return None;
        }
        let mut bounds: Vec<(String, Type)> = Vec::new();
        for bound in &rule.bounds {
            let name = &bound.name.name;
            let is_reference = bound.ty == Type::Ref
                && is_result(name)
                && events.iter().all(|event| event.mode().replaces());
            if bound.ty == Type::Ref && !is_reference {
                let message = "`ref` is the type of results that rules of `alt` and `block_alt` replace";
                self.problem(ProblemKind::Type, &bound.name.span, message);
                return None;
            }
            if !is_reference && !bound.ty.is_converted() {
                self.problem(ProblemKind::Type, &bound.name.span, "a bound is the type of a number");
                return None;
            }
            if bounds.iter().any(|(earlier, _)| earlier == name) {
                self.problem(ProblemKind::Name, &bound.name.span, format!("`{name}` is bound twice"));
                return None;
            }
            bounds.push((name.clone(), bound.ty.clone()));
        }
        if self.target == Target::Native && bounds.len() > MAX_ARGUMENTS {
            let message = format!("a rule asks for at most {MAX_ARGUMENTS} arguments");
            self.problem(ProblemKind::Limit, &rule.span, message);
            return None;
        }
        // One export for all instructions, if the rule does not ask which instruction it is.
        if let Some(event) = any.filter(|_| rule.bounds.is_empty()) {
            let (problems, probes) = (self.problems.len(), self.program.probes.len());
            self.event(index, rule, event, bounds.clone());
            let is_general = self.problems.len() == problems
                && self.program.probes[probes..].iter().all(|probe| probe.site.is_none());
            if is_general {
                return None;
            }
            self.problems.truncate(problems);
            self.program.probes.truncate(probes);
            self.program.reported_sites.retain(|sites| sites.rule != index);
        }
        let mut matched = false;
        let is_single = events.len() == 1;
        // The first event that lacks a value with a bound, and that bound.
        let mut lacking = None;
        let mut has_all = false;
        for event in events {
            let lacks = |(name, ty): &(String, Type)| event.admits(name, ty).is_none();
            if let Some(bound) = bounds.iter().position(lacks) {
                lacking.get_or_insert((event, bound));
                continue;
            }
            has_all = true;
            if !bounds.iter().all(|(name, ty)| event.admits(name, ty) == Some(true)) {
                continue;
            }
            matched = true;
            self.checked += 1;
            if self.program.probes.len() >= MAX_PROBES || self.checked > MAX_CHECKED {
                let is_full = self.program.probes.len() >= MAX_PROBES;
                let limit = if is_full { MAX_PROBES } else { MAX_CHECKED };
                let message = format!("the rules of this script match more than {limit} kinds of events");
                self.problem(ProblemKind::Limit, &rule.span, message);
                return None;
            }
            let problems = self.problems.len();
            for bounds in event.by_address(&bounds) {
                if self.problems.len() == problems {
                    self.event(index, rule, event, bounds);
                }
            }
            if self.problems.len() > problems {
                // Other events would have the same problem.
                for problem in &mut self.problems[problems..] {
                    if !is_single && problem.help.is_none() {
                        problem.help =
                            Some(format!("this is so for `{}`, which the rule matches", event.text()));
                    }
                }
                return None;
            }
        }
        if let (Some((event, bound)), false) = (lacking, has_all) {
            // Bounds are those of the rule, in the same order.
            let bound = &rule.bounds[bound].name;
            let message = format!("`{}` has no `{}` that could have a type", event.text(), bound.name);
            let mut problem = Problem::new(ProblemKind::Rule, bound.span.clone(), message);
            problem.help = (!is_single).then(|| "none of the events that the rule matches has it".to_owned());
            return Some(problem);
        }
        if matched {
            return None;
        }
        let help = if is_single { "the operand has another type" } else { "the operands have other types" };
        let message = "the type bounds of this rule can never hold";
        Some(Problem::new(ProblemKind::Rule, rule.span.clone(), message).help(help))
    }

    /// Checks a rule for one event.
    fn event(&mut self, index: usize, rule: &ast::Rule, event: Event, bounds: Vec<(String, Type)>) {
        if !self.can_select(&rule.selection, event) {
            return;
        }
        let text = format!("{}{}", rule.selection.text, rule.text());
        self.context = Context::Rule { index, text: text.clone(), event, bounds: bounds.clone() };
        self.site_size = 0;
        self.has_site = false;
        self.sites.clear();
        self.scopes.push(HashMap::new());
        let predicate = rule.predicate.as_ref().and_then(|predicate| self.condition(predicate));
        let results = self.declare_results(rule, &event, &bounds);
        self.alternatives.clear();
        let statements = self.block(&rule.body);
        self.scopes.pop();
        let statements = self.selected(index, &rule.selection, statements);
        let mut body = std::mem::take(&mut self.body);
        body.statements = statements;
        let alternatives = std::mem::take(&mut self.alternatives);
        let results = self.replaced_results(rule, &event, results, !alternatives.is_empty());
        if event.mode().replaces() {
            self.mark_replaced(results.as_deref(), &mut body.statements);
        }
        let init = std::mem::take(&mut self.init);
        self.context = Context::Script;
        match event {
            Event::Begin | Event::End | Event::Report => {
                if let Some(condition) = predicate {
                    let yes = std::mem::take(&mut body.statements);
                    body.statements.push(Statement::If { condition, yes, no: Vec::new() });
                }
                body.rule = Some(index);
                match event {
                    Event::Begin => self.program.begin.push(body),
                    Event::End => self.program.end.push(body),
                    _ => self.program.report.push(body),
                }
            }
            _ => {
                let has_site = self.has_site || self.site_size > 0;
                let site = has_site.then_some(SITE_HEADER + self.site_size);
                if !self.sites.is_empty()
                    && self.program.reported_sites.last().is_none_or(|sites| sites.rule != index)
                {
                    let reports = std::mem::take(&mut self.sites);
                    self.program.reported_sites.push(SiteReports { rule: index, text, reports });
                }
                let bounds = match self.target {
                    Target::Native => {
                        let request = |(name, ty): (String, Type)| (native::typed(&name, &ty), ty);
                        bounds.into_iter().map(request).collect()
                    }
                    _ if event.mode().replaces() => {
                        bounds.into_iter().filter(|(name, _)| !is_result(name)).collect()
                    }
                    _ => bounds,
                };
                // These types follow from that of the operand.
                let is_passed = |(name, _): &(String, Type)| !events::ADDRESSES.contains(&name.as_str());
                let bounds = bounds.into_iter().filter(is_passed).collect();
                let (mode, event) = (event.mode(), event.text());
                let is_toggled = rule.selection.toggle.is_some();
                let pauses = self.paused(index);
                let probe = Probe {
                    rule: index,
                    event,
                    mode,
                    bounds,
                    predicate,
                    body,
                    site,
                    init,
                    pauses,
                    is_toggled,
                    results,
                    alternatives,
                };
                self.check_toggle(&rule.selection, &probe);
                // Nothing is left of a probe whose predicate never holds.
                if !probe.predicate.as_ref().is_some_and(split::never_holds) {
                    self.program.probes.push(probe);
                }
            }
        }
    }

    fn declare(&mut self, name: &ast::Ident, variable: Variable) {
        if self.is_bound(&name.name) {
            let message = format!("`{}` is bound by events", name.name);
            self.problem(ProblemKind::Name, &name.span, message);
        }
        let scope = self.scopes.last_mut().expect("there is always a scope");
        if scope.insert(name.name.clone(), variable).is_some() {
            let message = format!("`{}` is declared twice", name.name);
            self.problem(ProblemKind::Name, &name.span, message);
        }
    }

    /// Whether events bind a name for which a variable is declared that rules can use.
    fn is_bound(&self, name: &str) -> bool {
        match &self.context {
            // Only numbered names: scripts may choose any other name for a variable, `taken` for
            // instance.
            Context::Rule { .. } | Context::Script => {
                ["arg", "res", "imm", "local"].iter().any(|prefix| bound::numbered(name, prefix).is_some())
            }
            _ => false,
        }
    }

    fn find(&self, name: &str) -> Option<&Variable> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }
}

/// Whether control cannot reach the end.
fn always_returns(statements: &[Statement]) -> bool {
    statements.iter().any(|statement| match statement {
        Statement::Return(_) => true,
        Statement::If { yes, no, .. } => always_returns(yes) && always_returns(no),
        Statement::While { condition, body } => {
            condition.as_bool() == Some(true) && !body.iter().any(contains_break)
        }
        _ => false,
    })
}

fn contains_break(statement: &Statement) -> bool {
    match statement {
        Statement::Break => true,
        Statement::If { yes, no, .. } => yes.iter().chain(no).any(contains_break),
        // The `break` of an inner loop does not end this one.
        _ => false,
    }
}

/// One of a type.
fn one(ty: &Type) -> Typed {
    match ty.is_float() {
        true => Typed::new(ty.clone(), super::ir::Kind::Const(super::ir::Const::Float(1.0))),
        false => Typed::int(ty.clone(), 1),
    }
}
