//! The typed tree between checking and emission: names are resolved, bound variables are constants,
//! requests to the engine or what they derive from, and constant parts are folded.

use std::fmt;

use wasm_encoder::ValType;

use super::WideBound;
use super::ast::{BinaryOp, UnaryOp};
use super::events::Mode;
use super::types::{Buckets, Type};
use crate::monitor_module::{CALLEE, FAILED, PROBES, SWITCH};

#[derive(Clone, Debug)]
pub(super) enum Const {
    /// An integer in the range of its type.
    Int(i128),
    Float(f64),
    Bool(bool),
    Str(String),
}

/// Floating-point numbers are equal if their bits are, as the keys of maps are.
impl PartialEq for Const {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(one), Self::Int(two)) => one == two,
            (Self::Float(one), Self::Float(two)) => one.to_bits() == two.to_bits(),
            (Self::Bool(one), Self::Bool(two)) => one == two,
            (Self::Str(one), Self::Str(two)) => one == two,
            _ => false,
        }
    }
}

/// The storage of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The index of its first component among the locals of a body.
    Local(u32),
    /// An address in the monitor's memory.
    Absolute(u32),
    /// An offset in the block of a match site.
    Site(u32),
    /// An offset in the block of a frame.
    Frame(u32),
    /// An offset in the block of a thread.
    Thread(u32),
    /// An offset from [`REPLACEMENT`].
    Replacement(u32),
}

/// The address in the monitor's memory where rules store what replaces an instruction: 0 for the
/// original, 1 for the results that follow, or [`FIRST_ALTERNATIVE`] plus the number of an
/// [`Alternative`]. It is before the output of the [runtime](super::emit).
pub(crate) const REPLACEMENT: u32 = 512;

/// The offset from there of the result on top of the stack. Each result takes eight bytes.
pub(crate) const REPLACEMENT_RESULT: u32 = 8;

/// The maximum number of results that a rule can replace.
pub(crate) const MAX_RESULTS: usize = 32;

/// The value at [`REPLACEMENT`] for the first alternative.
pub(crate) const FIRST_ALTERNATIVE: u32 = 2;

/// A function of the program that rules call in place of instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Alternative {
    /// A function by its name.
    Named(String),
    /// A function by its index in the program.
    Numbered(u32),
}

impl fmt::Display for Alternative {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(out, "{ALT_CALL_BY_NAME}(\"{name}\")"),
            Self::Numbered(number) => write!(out, "{ALT_CALL_BY_ID}({number})"),
        }
    }
}

/// The statements that call functions of the program in place of an instruction.
pub(super) const ALT_CALL_BY_NAME: &str = "alt_call_by_name";
pub(super) const ALT_CALL_BY_ID: &str = "alt_call_by_id";

impl Place {
    pub(super) fn is_of_frame(self) -> bool {
        matches!(self, Self::Frame(_))
    }

    pub(super) fn is_of_thread(self) -> bool {
        matches!(self, Self::Thread(_))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Typed {
    pub(super) ty: Type,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Const(Const),
    /// A variable, or fields of it, starting at this component.
    Variable(Place, u32),
    /// A value that the engine passes.
    Request(String),
    /// The value of a key in a map, or zero.
    MapGet(Place, Box<Typed>),
    /// The address of the [counter](super::counters) of a key, in a map of counters.
    Counter(Place, Box<Typed>),
    /// A call to a function of the script, by its number.
    Call(usize, Vec<Typed>),
    /// A call to a function of a library, by its number among the imported ones.
    Library(usize, Vec<Typed>),
    /// A value that is computed once, when the rule is matched.
    AtMatch(Box<Typed>),
    /// Whether one string contains another.
    Text(TextOp, Box<Typed>, Box<Typed>),
    /// A copy of bytes, which has effects, or reads a string.
    Transfer(Transfer, Vec<Typed>),
    /// The address of a string in the script's memory.
    Address(Box<Typed>),
    /// The length of a string in bytes.
    Length(Box<Typed>),
    /// A target of a `br_table`, by its number; beyond the others, the default. The first value is
    /// the string of all targets.
    Target(Box<Typed>, Box<Typed>),
    /// The position of the highest bit of an unsigned number that is 1, or 0.
    Log2(Box<Typed>),
    /// The bucket of an unsigned 64-bit number.
    Bucket(Buckets, Box<Typed>),
    Unary(UnaryOp, Box<Typed>),
    Binary(BinaryOp, Box<Typed>, Box<Typed>),
    Cast(Box<Typed>),
    Ternary(Box<Typed>, Box<Typed>, Box<Typed>),
    Tuple(Vec<Typed>),
}

/// A copy of bytes between the memories of the script and of libraries, which have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// From an address of a memory, the script's own if there is no number, to an address of a
    /// library's memory; the last operand is the length.
    Copy { from: Option<u32>, to: u32 },
    /// A string from an address of a library's memory, with this length.
    Read(u32),
    /// A string to an address of a library's memory.
    Write(u32),
}

/// Where in a string another one is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextOp {
    StartsWith,
    EndsWith,
    Contains,
    /// Matches a pattern with `*` and `?`.
    Matches,
}

impl Typed {
    pub(super) fn new(ty: Type, kind: Kind) -> Self {
        Self { ty, kind }
    }

    pub(super) fn int(ty: Type, value: i128) -> Self {
        let value = wrap(&ty, value);
        Self::new(ty, Kind::Const(Const::Int(value)))
    }

    pub(super) fn bool(value: bool) -> Self {
        Self::new(Type::Bool, Kind::Const(Const::Bool(value)))
    }

    pub(super) fn string(value: &str) -> Self {
        Self::new(Type::Str, Kind::Const(Const::Str(value.to_owned())))
    }

    pub(super) fn request(ty: Type, name: &str) -> Self {
        Self::new(ty, Kind::Request(name.to_owned()))
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        match self.kind {
            Kind::Const(Const::Bool(value)) => Some(value),
            _ => None,
        }
    }

    fn as_const(&self) -> Option<&Const> {
        match &self.kind {
            Kind::Const(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn children(&self) -> Vec<&Typed> {
        match &self.kind {
            Kind::Const(_) | Kind::Variable(..) | Kind::Request(_) => Vec::new(),
            Kind::MapGet(_, one)
            | Kind::Counter(_, one)
            | Kind::Unary(_, one)
            | Kind::Cast(one)
            | Kind::AtMatch(one)
            | Kind::Address(one)
            | Kind::Length(one)
            | Kind::Log2(one)
            | Kind::Bucket(_, one) => vec![one],
            Kind::Call(_, all) | Kind::Library(_, all) | Kind::Transfer(_, all) | Kind::Tuple(all) => {
                all.iter().collect()
            }
            Kind::Binary(_, left, right) | Kind::Text(_, left, right) | Kind::Target(left, right) => {
                vec![left, right]
            }
            Kind::Ternary(condition, yes, no) => vec![condition, yes, no],
        }
    }

    /// An operation on two values of one type, folded if they are constant.
    pub(super) fn binary(op: BinaryOp, left: Typed, right: Typed) -> Self {
        let ty = match op {
            BinaryOp::And | BinaryOp::Or => Type::Bool,
            op if op.is_comparison() => Type::Bool,
            _ => left.ty.clone(),
        };
        match (op, left.as_bool(), right.as_bool()) {
            (BinaryOp::And, Some(true), _) | (BinaryOp::Or, Some(false), _) => return right,
            (BinaryOp::And, Some(false), _) | (BinaryOp::Or, Some(true), _) => return left,
            (BinaryOp::And, _, Some(true)) | (BinaryOp::Or, _, Some(false)) => return left,
            _ => {}
        }
        let folded = match (left.as_const(), right.as_const()) {
            (Some(Const::Int(a)), Some(Const::Int(b))) => fold_integers(op, &left.ty, *a, *b),
            (Some(Const::Str(a)), Some(Const::Str(b))) => fold_equality(op, a == b),
            (Some(Const::Bool(a)), Some(Const::Bool(b))) => fold_equality(op, a == b),
            _ => None,
        };
        folded.unwrap_or_else(|| Self::new(ty, Kind::Binary(op, Box::new(left), Box::new(right))))
    }

    pub(super) fn unary(op: UnaryOp, operand: Typed) -> Self {
        let ty = operand.ty.clone();
        match (op, operand.as_const()) {
            (UnaryOp::Not, Some(Const::Bool(value))) => Self::bool(!value),
            (UnaryOp::Complement, Some(Const::Int(value))) => Self::int(ty, !value),
            (UnaryOp::Negate, Some(Const::Int(value))) => Self::int(ty, -value),
            (UnaryOp::Negate, Some(Const::Float(value))) => Self::new(ty, Kind::Const(Const::Float(-value))),
            _ => Self::new(ty, Kind::Unary(op, Box::new(operand))),
        }
    }

    pub(super) fn cast(operand: Typed, ty: Type) -> Self {
        if operand.ty == ty {
            return operand;
        }
        match operand.as_const() {
            Some(Const::Int(value)) if ty.is_integer() => Self::int(ty, *value),
            Some(Const::Int(value)) if ty == Type::Bool => Self::bool(*value != 0),
            Some(Const::Bool(value)) if ty.is_integer() => Self::int(ty, i128::from(*value)),
            _ => Self::new(ty, Kind::Cast(Box::new(operand))),
        }
    }

    pub(super) fn text(op: TextOp, text: Typed, pattern: Typed) -> Self {
        let folded = match (text.as_const(), pattern.as_const()) {
            (Some(Const::Str(text)), Some(Const::Str(pattern))) => match op {
                TextOp::StartsWith => Some(text.starts_with(pattern)),
                TextOp::EndsWith => Some(text.ends_with(pattern)),
                TextOp::Contains => Some(text.contains(pattern.as_str())),
                // Done in one place only, by the runtime: `?` is a byte.
                TextOp::Matches => None,
            },
            _ => None,
        };
        match folded {
            Some(found) => Self::bool(found),
            None => Self::new(Type::Bool, Kind::Text(op, Box::new(text), Box::new(pattern))),
        }
    }

    pub(super) fn length(text: Typed) -> Self {
        match text.as_const() {
            Some(Const::Str(text)) => Self::int(Type::U32, text.len() as i128),
            _ => Self::new(Type::U32, Kind::Length(Box::new(text))),
        }
    }

    pub(super) fn log2(number: Typed) -> Self {
        match number.as_const() {
            Some(Const::Int(number)) => Self::int(Type::U32, i128::from((*number).max(1).ilog2())),
            _ => Self::new(Type::U32, Kind::Log2(Box::new(number))),
        }
    }

    /// The bucket of an unsigned number.
    pub(super) fn bucket(buckets: Buckets, number: Typed) -> Self {
        let number = Self::cast(number, Type::U64);
        let ty = Type::Bucket(buckets);
        match (buckets, number.as_const()) {
            (Buckets::Log2, Some(Const::Int(0))) => Self::int(ty, 0),
            (Buckets::Log2, Some(Const::Int(number))) => Self::int(ty, 1 << number.ilog2()),
            (Buckets::Linear(width), Some(Const::Int(number))) => {
                Self::int(ty, number - number % i128::from(width))
            }
            _ => Self::new(ty, Kind::Bucket(buckets, Box::new(number))),
        }
    }

    pub(super) fn ternary(condition: Typed, yes: Typed, no: Typed) -> Self {
        match condition.as_bool() {
            Some(true) => yes,
            Some(false) => no,
            None => {
                let ty = yes.ty.clone();
                Self::new(ty, Kind::Ternary(Box::new(condition), Box::new(yes), Box::new(no)))
            }
        }
    }
}

fn fold_equality(op: BinaryOp, equal: bool) -> Option<Typed> {
    match op {
        BinaryOp::Eq => Some(Typed::bool(equal)),
        BinaryOp::Ne => Some(Typed::bool(!equal)),
        _ => None,
    }
}

/// Computes as the instructions do; operations that trap are not folded.
fn fold_integers(op: BinaryOp, ty: &Type, a: i128, b: i128) -> Option<Typed> {
    let bits = ty.bits()?.max(32);
    let value = match op {
        BinaryOp::Eq => return Some(Typed::bool(a == b)),
        BinaryOp::Ne => return Some(Typed::bool(a != b)),
        BinaryOp::Ge => return Some(Typed::bool(a >= b)),
        BinaryOp::Gt => return Some(Typed::bool(a > b)),
        BinaryOp::Le => return Some(Typed::bool(a <= b)),
        BinaryOp::Lt => return Some(Typed::bool(a < b)),
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        // The product of two 64-bit numbers fits, unless both are unsigned.
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div if b != 0 && b != -1 => a / b,
        BinaryOp::Rem if b != 0 && b != -1 => a % b,
        BinaryOp::BitAnd => a & b,
        BinaryOp::BitOr => a | b,
        BinaryOp::BitXor => a ^ b,
        // The instructions shift by the number modulo their width.
        BinaryOp::Shl => a << b.rem_euclid(i128::from(bits)),
        BinaryOp::Shr => a >> b.rem_euclid(i128::from(bits)),
        BinaryOp::Div | BinaryOp::Rem | BinaryOp::And | BinaryOp::Or => return None,
    };
    Some(Typed::int(ty.clone(), value))
}

/// An integer modulo the range of a type.
pub(super) fn wrap(ty: &Type, value: i128) -> i128 {
    match ty {
        Type::U8 => i128::from(value as u8),
        Type::I8 => i128::from(value as i8),
        Type::U16 => i128::from(value as u16),
        Type::I16 => i128::from(value as i16),
        Type::U32 => i128::from(value as u32),
        Type::I32 => i128::from(value as i32),
        Type::U64 => i128::from(value as u64),
        Type::I64 => i128::from(value as i64),
        _ => value,
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Statement {
    /// Sets a variable, or fields of it, starting at this component.
    Set {
        place: Place,
        component: u32,
        value: Typed,
    },
    SetMap {
        map: Place,
        key: Typed,
        value: Typed,
    },
    /// Adds to a value in a map.
    AddMap {
        map: Place,
        key: Typed,
        amount: Typed,
    },
    /// Adds one to the counter at an address.
    Count(Typed),
    /// A call whose result is not used.
    Call(Typed),
    Return(Option<Typed>),
    If {
        condition: Typed,
        yes: Vec<Statement>,
        no: Vec<Statement>,
    },
    While {
        condition: Typed,
        body: Vec<Statement>,
    },
    Break,
    Continue,
}

impl Statement {
    /// The values that the statement computes itself, in order, without those of the statements
    /// inside of it.
    pub(super) fn values(&self) -> Vec<&Typed> {
        match self {
            Self::Set { value, .. } | Self::Count(value) | Self::Call(value) => vec![value],
            Self::SetMap { key, value, .. } | Self::AddMap { key, amount: value, .. } => vec![key, value],
            Self::Return(value) => value.iter().collect(),
            Self::If { condition, .. } | Self::While { condition, .. } => vec![condition],
            Self::Break | Self::Continue => Vec::new(),
        }
    }
}

/// Visits statements, and those inside of them.
pub(super) fn visit(statements: &[Statement], see: &mut impl FnMut(&Statement)) {
    for statement in statements {
        see(statement);
        match statement {
            Statement::If { yes, no, .. } => {
                visit(yes, see);
                visit(no, see);
            }
            Statement::While { body, .. } => visit(body, see),
            _ => {}
        }
    }
}

/// Statements with the locals that they use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Body {
    pub(super) locals: Vec<ValType>,
    pub(super) statements: Vec<Statement>,
    /// The rule that it belongs to, if it is executed at the beginning or the end.
    pub(super) rule: Option<usize>,
}

/// A function of the script.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) parameters: Vec<Type>,
    pub(super) result: Type,
    /// The body; the function's parameters are the first of its locals.
    pub(super) body: Body,
}

/// A function of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) library: String,
    pub(super) name: String,
    pub(super) parameters: Vec<ValType>,
    pub(super) results: Vec<ValType>,
}

impl Import {
    /// A function that this engine provides to monitors.
    pub(super) fn of_probes(name: &str, parameters: &[ValType], results: &[ValType]) -> Self {
        Self {
            library: PROBES.to_owned(),
            name: name.to_owned(),
            parameters: parameters.to_vec(),
            results: results.to_vec(),
        }
    }

    /// Returns the number of the function that is about to be called.
    pub(super) fn callee() -> Self {
        Self::of_probes(CALLEE, &[], &[ValType::I32])
    }

    /// Ends a rule that has failed, and what the monitor observes.
    pub(super) fn failed() -> Self {
        Self::of_probes(FAILED, &[ValType::I32; 3], &[])
    }

    /// Switches a group of probes.
    pub(super) fn switch() -> Self {
        Self::of_probes(SWITCH, &[ValType::I32; 2], &[])
    }
}

/// A variable whose value is reported.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) name: String,
    pub(super) ty: Type,
    pub(super) place: Place,
}

/// A map to which rules add by counters.
#[derive(Clone, Debug)]
pub(super) struct CountedMap {
    /// The address of the map, among the variables that exist once.
    pub(super) map: u32,
    /// The address of the map of counters.
    pub(super) counters: u32,
    pub(super) key: Type,
    pub(super) value: Type,
}

/// A rule for one event: the meaning of an export of the monitor module.
#[derive(Debug)]
pub(super) struct Probe {
    /// The number of the rule in the script.
    pub(super) rule: usize,
    /// The event as in the interface: `wasm:opcode:call:before`.
    pub(super) event: String,
    /// The mode: when the event happens, in relation to its instruction.
    pub(super) mode: Mode,
    /// The types of operands and locals that the rule demands, as requests.
    pub(super) bounds: Vec<(String, Type)>,
    pub(super) predicate: Option<Typed>,
    pub(super) body: Body,
    /// The size of a site's block; none if the rule stores nothing for sites.
    pub(super) site: Option<u32>,
    /// Sets the initial values of the variables of a site, when it is matched.
    pub(super) init: Body,
    /// The group of probes that the rule pauses, if it is sampled by time.
    pub(super) pauses: Option<u32>,
    /// Whether its probes are on only while its predicate can hold: `@toggle`.
    pub(super) is_toggled: bool,
    /// The types of the results of the replaced instruction, from the top of the stack; `None` if
    /// the rule computes none.
    pub(super) results: Option<Vec<Type>>,
    /// The numbers of the [alternatives](Program::alternatives) that the rule may call.
    pub(super) alternatives: Vec<u32>,
}

/// What a rule does when it fails: because of a division by zero, too many steps, or a lack of
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Failing {
    /// The rule traps. Steps are not counted.
    #[default]
    Traps,
    /// The rule calls [`FAILURES`], which ends it.
    Calls,
    /// The rule throws an exception, which its function catches; the function calls the host
    /// ([`Import::failed`]).
    Throws,
}

/// The module and the name of the host's function that ends a rule.
pub(crate) const FAILURES: (&str, &str) = ("wasm_jit:script", "fail");

/// A checked script.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) functions: Vec<Function>,
    /// What a rule does when it fails.
    pub(super) failing: Failing,
    /// The name of the script's file.
    pub(super) script: String,
    /// The texts of the rules for messages, by their numbers.
    pub(super) rules: Vec<String>,
    /// The numbers of the rules that use addresses or sizes of memories as 32-bit numbers, with
    /// the bounds for 64-bit memories.
    pub(super) narrow: Vec<(usize, WideBound)>,
    /// Functions of libraries that are called.
    pub(super) imports: Vec<Import>,
    /// The libraries whose memories the script reads or writes.
    pub(super) memories: Vec<String>,
    pub(super) probes: Vec<Probe>,
    /// By the number of a group of probes ([`toggled`](super::toggled)): the condition that holds
    /// while they are on.
    pub(super) groups: Vec<Typed>,
    /// When the program starts: initial values of variables, and rules of `wasm:begin`.
    pub(super) begin: Vec<Body>,
    /// Rules of `wasm:end`.
    pub(super) end: Vec<Body>,
    /// Rules of `wasm:report`, in place of the report.
    pub(super) report: Vec<Body>,
    /// Variables that exist once, with the rule that they belong to.
    pub(super) reported: Vec<(Report, Option<String>)>,
    /// The reported variables of sites by rule, in the order of the script.
    pub(super) reported_sites: Vec<SiteReports>,
    /// The maps to which rules add by [counters](super::counters).
    pub(super) counted: Vec<CountedMap>,
    /// The map with the names of the program's functions, by their numbers, if rules ask for names
    /// of callees.
    pub(super) names: Option<Place>,
    /// The functions of the program that rules call in place of instructions.
    pub(super) alternatives: Vec<Alternative>,
    /// The size in bytes of the variables that exist once; their addresses start at zero.
    pub(super) static_size: u32,
    /// The size in bytes of the variables of a frame.
    pub(super) frame_size: u32,
    /// Whether the caller of the module keeps the blocks of frames, which [`FRAME_BLOCK`] makes.
    /// Otherwise the module finds them by the numbers of frames.
    pub(super) has_frame_blocks: bool,
    /// Sets the initial values of the variables of a frame.
    pub(super) frame_init: Body,
    /// The size in bytes of a thread's block, if there are variables of threads.
    pub(super) thread_size: Option<u32>,
    /// Sets the initial values of the variables of a thread, whose places are those of a site.
    pub(super) thread_init: Body,
    /// Reported variables of threads.
    pub(super) reported_threads: Vec<Report>,
}

impl Program {
    /// Visits the statements that are executed between the first event and the end, and when rules
    /// are matched.
    pub(super) fn visit_during_run(&self, see: &mut impl FnMut(&Statement)) {
        let of_probes = self.probes.iter().flat_map(|probe| [&probe.body, &probe.init]);
        let of_functions = self.functions.iter().map(|function| &function.body);
        let others = [&self.frame_init, &self.thread_init];
        for body in of_probes.chain(of_functions).chain(others) {
            visit(&body.statements, see);
        }
    }

    /// The predicates of rules.
    pub(super) fn predicates(&self) -> impl Iterator<Item = &Typed> {
        self.probes.iter().filter_map(|probe| probe.predicate.as_ref())
    }

    /// The number of a function that the module imports.
    pub(super) fn import(&mut self, import: Import) -> usize {
        let imports = &mut self.imports;
        imports.iter().position(|known| *known == import).unwrap_or_else(|| {
            imports.push(import);
            imports.len() - 1
        })
    }
}

/// The name for messages of what is executed at the beginning and belongs to no rule.
pub(crate) const OUTSIDE: &str = "a statement or initial value outside of rules";

/// The name of the export that makes the block of a thread, from the thread's number.
pub(crate) const THREAD_BLOCK: &str = "whamm:thread";

/// The name of the export that makes the block of a frame: from the address of the block of a frame
/// that has ended, or from 0.
pub(crate) const FRAME_BLOCK: &str = "whamm:frame";

/// The reported variables of a rule's sites.
#[derive(Debug)]
pub(super) struct SiteReports {
    /// The number of the rule in the script.
    pub(super) rule: usize,
    /// The rule as in the script.
    pub(super) text: String,
    pub(super) reports: Vec<Report>,
}

/// The size in bytes of the header of a site's block: next site, function, position, event and its
/// length.
pub(super) const SITE_HEADER: u32 = 24;
