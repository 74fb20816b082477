//! The compiler of Whamm scripts to monitor modules.
//!
//! Whamm is the language of "Debugging WebAssembly? Put some Whamm on it!" (OOPSLA 2025), in the
//! form of the crate whamm 2.0.1. A script consists of rules, `provider:package:event:mode
//! /predicate/ { statements }`, and of variables, statements and functions that they share:
//!
//! ```text
//! script     = { "use" NAME ";" | function | rule | statement }
//! function   = "fn" NAME parameters [ "->" type ] block
//! parameters = "(" [ NAME ":" type { "," NAME ":" type } ] ")"
//! rule       = { "@once" | "@sample" "(" NUMBER ( "%" | "us" | "ms" | "s" ) ")" | "@toggle" } part { ":" part } [ "/" expression "/" ] block          two to four parts
//! part       = { letter | digit | "_" | "." | "*" | "?" | "|" | set } [ types ] [ bounds ]
//! types      = "<" NAME ":" class { "," NAME ":" class } ">"
//! class      = "numeric" | "int" | "float"
//! bounds     = "(" [ ( NAME | argument ) ":" bound { "," ( NAME | argument ) ":" bound } ] ")"
//! bound      = type | "ref"
//! argument   = "args" "." NAME
//! block      = "{" { statement } "}"
//! statement  = { "report" | "unshared" | "shared" | "frame" | "thread" } "var" NAME ":" type [ "=" expression ] ";"
//!            | target "=" expression ";" | target ( "++" | "--" ) ";" | call ";"
//!            | "return" [ expression ] ";" | "break" ";" | "continue" ";"
//!            | "if" condition block { "elif" condition block } [ "else" block ]
//!            | "while" condition block
//! expression = operation [ "?" expression ":" expression ]
//! operation  = operand { operator operand }
//! operand    = { "!" | "~" | "-" } ( literal | target | call | "(" [ expression { "," expression } ] ")" )
//!              { "as" type }
//! target     = NAME | NAME "[" expression "]" | NAME { "." NUMBER } | argument
//! type       = "u8" | .. | "i64" | "f32" | "f64" | "bool" | "str" | "funcref" | NAME | "(" [ type { "," type } ] ")" | "map" "<" type "," type ">"
//! ```
//!
//! Operators bind as in C, except that `&&` and `||` bind equally, as do comparisons, from left to
//! right. `while`, `break` and `continue` are extensions. A `call` to a library function may be
//! preceded by `@static` or `@init`.
//!
//! The steps: `lexer` and `parser` make the tree of `ast`. `check` resolves names and types for
//! each event that a rule matches, with the tables of `events` and `opcodes`, and makes the tree of
//! `ir`. `split` splits predicates into static and dynamic parts. `emit` writes the module. As many
//! problems of a script as possible are collected, with their positions in the script. A [`Script`]
//! reads the report from the memory of its module's instance.
//!
//! Scripts for native programs have rules of a separate provider: see `native`.
//!
//! The modes `alt` and `block_alt`, which change the program, are for programs that are
//! [rewritten](crate::rewrite).

mod ast;
mod bound;
mod check;
mod counters;
mod diagnostics;
mod emit;
mod events;
mod histogram;
mod ir;
mod lexer;
mod libraries;
mod native;
mod opcodes;
mod parser;
mod pattern;
mod report;
mod split;
mod sums;
mod toggled;
mod type_parameters;
mod types;
mod vectors;

pub use diagnostics::{Problem, ProblemKind, ScriptError, Span};
pub use histogram::{Bar, histogram};
pub use report::{
    ReportedValue, RuleReport, ScriptReport, SiteReport, ThreadReport, ThreadsReport, Value, VariableReport,
};

use wasm_jit::Module;

use self::events::{Event, Matched};
pub(crate) use self::ir::{
    Alternative, FAILURES, FIRST_ALTERNATIVE, FRAME_BLOCK, OUTSIDE, REPLACEMENT, REPLACEMENT_RESULT,
    THREAD_BLOCK,
};
use self::libraries::Libraries;
use self::native::Provider;

/// The maximum size of a script, in bytes.
const MAX_SIZE: usize = 16 << 20;

/// The text of a script, if it is valid UTF-8.
fn text<'a>(name: &str, source: &'a [u8]) -> Result<&'a str, ScriptError> {
    // A byte-order mark is not part of the script.
    let source = source.strip_prefix("\u{feff}".as_bytes()).unwrap_or(source);
    let error = |problem| ScriptError::new(name, &String::from_utf8_lossy(source), vec![problem]);
    if source.len() > MAX_SIZE {
        let message = format!("the script is larger than {MAX_SIZE} bytes");
        return Err(ScriptError::new(name, "", vec![Problem::new(ProblemKind::Limit, 0..0, message)]));
    }
    std::str::from_utf8(source).map_err(|invalid| {
        let at = invalid.valid_up_to();
        error(Problem::new(ProblemKind::Syntax, at..at + 1, "the script is not valid UTF-8"))
    })
}

/// A script that is compiled to a monitor module, to observe a program in this process.
///
/// The module imports only the library functions that the script calls, and functions that this
/// engine provides to monitors. It does not print the report: [`Script::report`] reads it.
#[derive(Clone, Debug)]
pub struct Script {
    module: Vec<u8>,
    layout: report::Layout,
    narrow: Vec<NarrowRule>,
}

impl Script {
    /// Compiles a script. `name` is the script's name, for messages. `libraries` are modules in the
    /// binary format, with the names by which the script uses them.
    ///
    /// # Errors
    /// [`ScriptError`] with the problems of the script.
    pub fn new(name: &str, source: &[u8], libraries: &[(&str, &[u8])]) -> Result<Self, ScriptError> {
        let Emitted { module, layout, narrow, .. } = emit(name, source, libraries, Target::Here)?;
        Ok(Self { module, layout, narrow })
    }

    /// Compiles a script that observes native programs, for
    /// [`NativeMonitor`](crate::native::NativeMonitor). `name` is the script's name, for messages.
    ///
    /// # Errors
    /// [`ScriptError`] with the problems of the script.
    pub fn native(name: &str, source: &[u8]) -> Result<Self, ScriptError> {
        let help = "`fastinst run` runs scripts without libraries";
        refuse_libraries(name, source, "libraries are not supported in native programs", help)?;
        let Emitted { module, layout, narrow, .. } = emit(name, source, &[], Target::Native)?;
        Ok(Self { module, layout, narrow })
    }

    /// The monitor module in the binary format, for
    /// [`MonitorModule`](crate::monitor_module::MonitorModule).
    pub fn module(&self) -> &[u8] {
        &self.module
    }

    /// The rules, with their lines, that do not observe all memory accesses of a program: they use
    /// addresses or sizes as 32-bit numbers, and the program has a 64-bit memory.
    pub fn narrow_rules(&self, program: &Module) -> &[NarrowRule] {
        if program.memories().any(|memory| memory.is_64()) { &self.narrow } else { &[] }
    }
}

/// Compiles a script to a monitor module that reports by itself.
///
/// The module has the engine interface of the crate whamm 2.0.1. It imports `fd_write` of WASI, by
/// which it prints the report: values separated by commas, with columns for the variable, its type,
/// the event, the function's index, the offset of the instruction, the key of a map's entry, and
/// the value.
///
/// `name` is the script's name, for messages. `libraries` are modules in the binary format, with
/// the names by which the script uses them, and by which the module imports their functions.
///
/// # Errors
/// [`ScriptError`] with the problems of the script.
pub fn compile(name: &str, source: &[u8], libraries: &[(&str, &[u8])]) -> Result<Vec<u8>, ScriptError> {
    emit(name, source, libraries, Target::Anywhere).map(|emitted| emitted.module)
}

/// Compiles a script to a monitor module, as [`compile`] does, that becomes a part of a program.
/// Only there can rules replace the program's instructions. Also returns the alternatives, in the
/// order of their numbers.
pub(crate) fn compile_into_program(
    name: &str,
    source: &[u8],
) -> Result<(Vec<u8>, Vec<Alternative>), ScriptError> {
    emit(name, source, &[], Target::Program).map(|emitted| (emitted.module, emitted.alternatives))
}

/// A rule that uses addresses or sizes of memories as 32-bit numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NarrowRule {
    /// The rule, with its line.
    pub rule: String,
    /// The type bound by which a rule observes 64-bit memories.
    pub bound: WideBound,
}

/// A type bound by which a rule observes 64-bit memories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WideBound {
    /// The bound, such as `arg0: u64`.
    pub bound: String,
    /// Whether a rule with the bound observes 32-bit memories as well.
    pub is_for_both: bool,
}

/// The rules of a script, with their lines, that use addresses or sizes of memories as 32-bit
/// numbers: of a program with a 64-bit memory, they do not observe all accesses.
///
/// # Errors
/// [`ScriptError`] with the problems of the script.
pub fn narrow_rules(
    name: &str,
    source: &[u8],
    libraries: &[(&str, &[u8])],
) -> Result<Vec<NarrowRule>, ScriptError> {
    // Scripts for all other targets are valid for this one.
    check(name, text(name, source)?, libraries, Target::Program).map(|program| narrow(&program))
}

/// The environment in which a compiled script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Programs in this engine.
    Here,
    /// Programs in any engine of the interface; the module prints the report.
    Anywhere,
    /// A program that the module becomes a part of; it prints the report.
    Program,
    /// Native programs.
    Native,
}

impl Target {
    fn provider(self) -> Provider {
        match self {
            Self::Here | Self::Anywhere | Self::Program => Provider::Wasm,
            Self::Native => Provider::Native,
        }
    }

    /// Whether the module prints the report.
    fn prints(self) -> bool {
        matches!(self, Self::Anywhere | Self::Program)
    }
}

/// A compiled script.
struct Emitted {
    module: Vec<u8>,
    layout: report::Layout,
    alternatives: Vec<Alternative>,
    /// The rules that use addresses as 32-bit numbers.
    narrow: Vec<NarrowRule>,
}

fn emit(
    name: &str,
    source: &[u8],
    libraries: &[(&str, &[u8])],
    target: Target,
) -> Result<Emitted, ScriptError> {
    let source = text(name, source)?;
    let mut program = check(name, source, libraries, target)?;
    if target.provider() == Provider::Wasm {
        counters::add(&mut program);
    }
    if target == Target::Here {
        toggled::add(&mut program);
    }
    let error = |problems| ScriptError::new(name, source, problems);
    let (module, layout) = emit::emit(&program, target.prints()).map_err(error)?;
    Ok(Emitted { module, layout, narrow: narrow(&program), alternatives: program.alternatives })
}

fn narrow(program: &ir::Program) -> Vec<NarrowRule> {
    let rule = |(rule, bound): &(usize, WideBound)| {
        Some(NarrowRule { rule: program.rules.get(*rule)?.clone(), bound: bound.clone() })
    };
    program.narrow.iter().filter_map(rule).collect()
}

/// Parses and checks a script.
fn check(
    name: &str,
    source: &str,
    libraries: &[(&str, &[u8])],
    target: Target,
) -> Result<ir::Program, ScriptError> {
    let error = |problems| ScriptError::new(name, source, problems);
    let script = parser::parse(source).map_err(error)?;
    let libraries = Libraries::read(libraries).map_err(|(library, reason)| {
        let message = format!("the library `{library}` is not a module: {reason}");
        error(vec![Problem::new(ProblemKind::Name, 0..0, message)])
    })?;
    let mut program = check::check(&script, &libraries, target).map_err(error)?;
    program.rules = rules(&script, source);
    program.script = name.rsplit('/').next().unwrap_or_default().to_owned();
    Ok(program)
}

/// The rules of a script for messages: what they match, and their lines.
fn rules(script: &ast::Script, source: &str) -> Vec<String> {
    let (mut line, mut at) = (1, 0);
    let mut name = |rule: &ast::Rule| {
        // Rules are in the order of the text.
        let start = rule.span.start.max(at);
        line += source.as_bytes()[at..start].iter().filter(|byte| **byte == b'\n').count();
        at = start;
        format!("{} (line {line})", rule.text())
    };
    let rules = script.items.iter().filter_map(|item| match item {
        ast::Item::Rule(rule) => Some(name(rule)),
        _ => None,
    });
    rules.collect()
}

/// The names of the libraries that a script uses, in order of use.
///
/// # Errors
/// [`ScriptError`] if the text is not a script.
pub fn libraries(name: &str, source: &[u8]) -> Result<Vec<String>, ScriptError> {
    let source = text(name, source)?;
    let script = parser::parse(source).map_err(|problems| ScriptError::new(name, source, problems))?;
    let used = script.items.into_iter().filter_map(|item| match item {
        ast::Item::Use(library) => Some(library.name),
        _ => None,
    });
    Ok(used.collect())
}

/// Refuses a script that uses libraries.
///
/// # Errors
/// The uses of libraries, with this message and help; the text is not a script.
pub(crate) fn refuse_libraries(
    name: &str,
    source: &[u8],
    message: &str,
    help: &str,
) -> Result<(), ScriptError> {
    let source = text(name, source)?;
    let script = parser::parse(source).map_err(|problems| ScriptError::new(name, source, problems))?;
    let problem = |item| match item {
        ast::Item::Use(library) => {
            Some(Problem::new(ProblemKind::Unsupported, library.span, message).help(help))
        }
        _ => None,
    };
    let problems: Vec<Problem> = script.items.into_iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(ScriptError::new(name, source, problems)) }
}

/// An event that a rule matches, and the variables that it binds.
#[derive(Clone, Debug)]
pub struct EventInfo {
    /// The event as in a rule: `wasm:opcode:call:before`.
    pub event: String,
    /// The variables that the event binds.
    pub bound: Vec<BoundInfo>,
}

/// A variable that an event binds.
#[derive(Clone, Debug)]
pub struct BoundInfo {
    /// The name of the variable.
    pub name: String,
    /// The type of the variable, or a note that the rule must state it.
    pub ty: String,
    /// Whether the value is known when the rule is matched.
    pub is_static: bool,
    /// A description of the value.
    pub help: &'static str,
}

/// The events that a match rule such as `wasm:opcode:*load*:before` matches. Rules whose first part
/// is `native` are about native programs.
///
/// # Errors
/// [`ScriptError`] if the rule is malformed or matches nothing.
pub fn info(rule: &str) -> Result<Vec<EventInfo>, ScriptError> {
    let error = |problems| ScriptError::new("rule", rule, problems);
    let mut all = Vec::new();
    let mut span = 0..0;
    for parsed in parser::parse_rule(rule).map_err(error)? {
        span = parsed.span.clone();
        let is_native = parsed.parts.first().is_some_and(|part| part.name == Provider::Native.name());
        let provider = if is_native { Provider::Native } else { Provider::Wasm };
        let bounds: Vec<_> =
            parsed.bounds.iter().map(|bound| (bound.name.name.clone(), bound.ty.clone())).collect();
        let admits = |event: &&Event| bounds.iter().all(|(name, ty)| event.admits(name, ty) == Some(true));
        match events::matching(&parsed.parts, provider) {
            Matched::Events { events, .. } => {
                all.extend(events.iter().filter(admits).map(|event| describe(event, provider, &bounds)));
            }
            Matched::Nothing(help) => {
                let problem = Problem::new(ProblemKind::Rule, span, "this rule matches nothing");
                return Err(error(vec![problem.help(help)]));
            }
        }
    }
    if all.is_empty() {
        let message = "none of the events that the rule matches has values of these types";
        return Err(error(vec![Problem::new(ProblemKind::Rule, span, message)]));
    }
    Ok(all)
}

fn describe(event: &Event, provider: Provider, bounds: &[(String, types::Type)]) -> EventInfo {
    let bound = event.describe(bounds).into_iter().map(|bound| {
        let events::Description { name, ty, is_static, help } = bound;
        BoundInfo { name, ty, is_static, help }
    });
    // Events without a place are the same for all providers.
    let event = event.text();
    let (_, rest) = event.split_once(':').expect("an event has parts");
    EventInfo { event: format!("{}:{rest}", provider.name()), bound: bound.collect() }
}
