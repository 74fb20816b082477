//! The names of exports: parses text to a [`Rule`].

use wasm_jit::ValType;
use wildmatch::WildMatch;

use super::error::NameError;
use super::modes::Mode;
use crate::native::NativeValue;

/// Maximum depth of nested calls in parameters.
const MAX_DEPTH: usize = 32;

/// The event of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// An instruction whose name matches one of these.
    Opcode(Vec<WildMatch>),
    Entry,
    Exit,
    BlockStart,
    BlockEnd,
    /// A function exists, possibly imported: only the predicate is evaluated, once.
    Known,
    Begin,
    End,
    /// The end of the program, after all other rules.
    LastEnd,
    /// A call to a native function begins, or ends.
    NativeEntry,
    NativeExit,
}

/// A value of a call to a native function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfCall {
    Probe,
    Thread,
    Ticks,
    Nanoseconds,
    Depth,
    Duration,
    Stack,
    /// The address of the thread's variables.
    ThreadBlock,
    /// The address of the call's variables.
    FrameBlock,
}

impl OfCall {
    /// Whether it is known only if the beginning and end of each call are observed together.
    pub(crate) fn is_of_pair(self) -> bool {
        matches!(self, Self::Depth | Self::Duration | Self::Stack | Self::FrameBlock)
    }
}

/// A value that is static: known at match time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Static {
    Pc,
    Opidx,
    Probe,
    Function,
    AtFunctionEnd,
    Immediate(u32),
    Offset,
    Align,
    Memory,
    TargetCount,
    /// All targets of a `br_table`, encoded as text.
    Targets,
    DefaultTarget,
    InstructionCount,
    FunctionName,
    OpcodeName,
    TargetName,
    TargetModule,
    TargetType,
    /// The file that contains a native function.
    Object,
    /// Whether control may reach the place where a rule of this mode is called from elsewhere.
    Guard(Mode),
    /// The group that the rule's probes belong to.
    Group(u32),
    /// The rule calls the function that returns the index of the function that is about to be
    /// called.
    Callee,
}

/// The type of a result of a replaced instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    Number(ValType),
    /// A reference that can be null.
    Reference,
}

/// The replacement that a rule makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    /// The types of the results, from the top of the stack. `None`: the rule computes none, but
    /// calls a function of the program or leaves the original.
    pub(crate) results: Option<Vec<Replaced>>,
    /// The functions that the rule may call instead, by their numbers in the script.
    pub(crate) alternatives: Vec<u32>,
}

impl Static {
    pub(crate) fn is_string(self) -> bool {
        use Static::{FunctionName, Object, OpcodeName, TargetModule, TargetName, TargetType, Targets};
        matches!(self, FunctionName | Object | OpcodeName | TargetName | TargetModule | TargetType | Targets)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    Argument(u32),
    /// An operand that is a reference, as a number: 0 if it is null.
    Reference(u32),
    Result(u32),
    Local(u32),
    Frame,
    OfCall(OfCall),
    /// An argument of a native function, or its result.
    NativeValue(NativeValue),
    Static(Static),
    /// The index of the function that is about to be called, in a program that the monitor becomes
    /// a part of.
    Callee,
    /// The results of what the rule replaces.
    Replaced(Option<Vec<Replaced>>),
    /// A function that the rule may call in place of an instruction.
    Alternative(u32),
    Call(Call),
}

impl Parameter {
    /// Whether only monitors that become a part of the program have this value.
    fn is_of_program(&self) -> bool {
        matches!(self, Self::Callee | Self::Replaced(_) | Self::Alternative(_))
    }
}

/// A function that is called at match time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The name, with the `$`.
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
}

/// A rule, as the name of an export describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) event: Event,
    /// The mode of a rule for an instruction.
    pub(crate) mode: Mode,
    pub(crate) predicate: Option<Call>,
    pub(crate) parameters: Vec<Parameter>,
}

impl Rule {
    /// The group that the rule's probes belong to.
    pub(crate) fn group(&self) -> Option<u32> {
        self.parameters.iter().find_map(|parameter| match parameter {
            Parameter::Static(Static::Group(group)) => Some(*group),
            _ => None,
        })
    }

    /// Whether two rules are about the same event and bind the same values, perhaps in other types.
    pub(super) fn is_variant_of(&self, other: &Self) -> bool {
        let bound = |rule: &Self| {
            let is_bound = |value: &&Parameter| !matches!(value, Parameter::Call(_));
            rule.parameters.iter().filter(is_bound).cloned().collect::<Vec<_>>()
        };
        self.event == other.event && self.mode == other.mode && bound(self) == bound(other)
    }

    /// Whether the rule asks for the function that is about to be called.
    pub(super) fn asks_for_callee(&self) -> bool {
        self.parameters.contains(&Parameter::Static(Static::Callee))
    }

    /// The replacement that the rule makes, if it makes one.
    pub(super) fn replacement(&self) -> Option<Replacement> {
        let results = self.parameters.iter().find_map(|parameter| match parameter {
            Parameter::Replaced(results) => Some(results.clone()),
            _ => None,
        })?;
        let alternatives = self.parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Alternative(number) => Some(*number),
            _ => None,
        });
        Some(Replacement { results, alternatives: alternatives.collect() })
    }
}

/// The rule of an export's name; `None` if the name is not a rule. An error has its column, in
/// characters from 1.
pub(super) type Parsed = Result<Option<Rule>, (usize, NameError)>;

/// Reads the name of an export.
pub(super) fn parse(name: &str) -> Parsed {
    parse_of("wasm:", false, name)
}

/// As [`parse`], for rules that may replace instructions.
pub(super) fn parse_replacing(name: &str) -> Parsed {
    parse_of("wasm:", true, name)
}

/// Parses a rule about native programs, as [`parse`] does for those about modules.
pub(crate) fn parse_native(name: &str) -> Parsed {
    parse_of("native:", false, name)
}

fn parse_of(provider: &'static str, may_replace: bool, name: &str) -> Parsed {
    if !name.starts_with(provider) {
        return Ok(None);
    }
    let mut parser = Parser { provider, may_replace, text: name, at: 0 };
    parser.rule().map(Some).map_err(|error| (name[..parser.at].chars().count() + 1, error))
}

struct Parser<'a> {
    provider: &'static str,
    may_replace: bool,
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn is_native(&self) -> bool {
        self.provider == "native:"
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches([' ', '\t']).len();
    }

    /// Consumes this text, after spaces, if it follows.
    fn takes(&mut self, text: &str) -> bool {
        self.skip_spaces();
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn expect(&mut self, text: &'static str) -> Result<(), NameError> {
        if self.takes(text) { Ok(()) } else { Err(NameError::Expected { text }) }
    }

    /// Consumes the longest prefix that consists of these characters.
    fn word(&mut self, belongs: fn(char) -> bool) -> &'a str {
        let word = &self.rest()[..self.rest().find(|c| !belongs(c)).unwrap_or(self.rest().len())];
        self.at += word.len();
        word
    }

    /// Reports an error at the start of the last word.
    fn refuse<T>(&mut self, word: &str, error: NameError) -> Result<T, NameError> {
        self.at -= word.len();
        Err(error)
    }

    fn rule(&mut self) -> Result<Rule, NameError> {
        let (event, mode) = self.event()?;
        let predicate = match self.takes("/") {
            true => {
                self.skip_spaces();
                let call = self.call(0)?;
                self.expect("/")?;
                Some(call)
            }
            false => None,
        };
        let parameters = if self.takes("(") { self.parameters(0)? } else { Vec::new() };
        self.skip_spaces();
        if !self.rest().is_empty() {
            return Err(NameError::Expected { text: "the end of the name" });
        }
        Ok(Rule { event, mode, predicate, parameters })
    }

    fn event(&mut self) -> Result<(Event, Mode), NameError> {
        self.expect(self.provider)?;
        let package = self.word(|c| c.is_ascii_lowercase());
        if self.is_native() {
            self.expect(":")?;
            let name = self.word(|c| c.is_ascii_lowercase());
            return match (package, name) {
                ("func", "entry") => Ok((Event::NativeEntry, Mode::Before)),
                ("func", "exit") => Ok((Event::NativeExit, Mode::Before)),
                _ => self.refuse(name, NameError::Event),
            };
        }
        let simple = match package {
            "begin" => Some(Event::Begin),
            "end" => Some(Event::End),
            "exit" => Some(Event::LastEnd),
            _ => None,
        };
        if let Some(event) = simple {
            if self.rest().starts_with(':') {
                self.at += 1;
            }
            return Ok((event, Mode::Before));
        }
        if !matches!(package, "opcode" | "func" | "block") {
            return self.refuse(package, NameError::Package);
        }
        self.expect(":")?;
        if package == "opcode" {
            return self.opcodes();
        }
        let name = self.word(|c| c.is_ascii_lowercase());
        let event = match (package, name) {
            ("func", "entry") => Event::Entry,
            ("func", "exit") => Event::Exit,
            ("func", "known") => Event::Known,
            ("block", "start") => Event::BlockStart,
            ("block", "end") => Event::BlockEnd,
            _ => return self.refuse(name, NameError::Event),
        };
        Ok((event, Mode::Before))
    }

    fn opcodes(&mut self) -> Result<(Event, Mode), NameError> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '*' | '?');
        let mut patterns = Vec::new();
        loop {
            self.skip_spaces();
            let pattern = self.word(is_part);
            if pattern.is_empty() {
                return Err(NameError::Pattern);
            }
            if !pattern.contains(['*', '?']) && !super::instructions::exists(pattern) {
                return self.refuse(pattern, NameError::Opcode);
            }
            patterns.push(WildMatch::new(pattern));
            if !self.takes("|") {
                break;
            }
        }
        let mut mode = Mode::Before;
        if self.takes(":") {
            let word = self.word(|c| c.is_ascii_lowercase() || c == '_');
            mode = match Mode::named(word) {
                Some(mode) if self.may_replace || !mode.replaces() => mode,
                _ => return self.refuse(word, NameError::Mode),
            };
        }
        Ok((Event::Opcode(patterns), mode))
    }

    /// Parses parameters, after the opening parenthesis.
    fn parameters(&mut self, depth: usize) -> Result<Vec<Parameter>, NameError> {
        let mut parameters = Vec::new();
        // A trailing comma is allowed.
        while !self.takes(")") {
            parameters.push(self.parameter(depth)?);
            if !self.takes(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(parameters)
    }

    fn parameter(&mut self, depth: usize) -> Result<Parameter, NameError> {
        if self.rest().starts_with('$') {
            return Ok(Parameter::Call(self.call(depth)?));
        }
        let word = match self.is_native() {
            true => self.word(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')),
            false => self.word(|c| c.is_ascii_alphanumeric() || c == '_'),
        };
        let value = match self.is_native() {
            true => native_value(word),
            false => value(word).filter(|value| self.may_replace || !value.is_of_program()),
        };
        match value {
            Some(value) => Ok(value),
            None => self.refuse(word, NameError::Value),
        }
    }

    fn call(&mut self, depth: usize) -> Result<Call, NameError> {
        if depth == MAX_DEPTH {
            return Err(NameError::Nested { limit: MAX_DEPTH });
        }
        self.expect("$")?;
        let name = self.word(|c| !c.is_whitespace() && !matches!(c, '(' | ')' | ',' | '/' | '$'));
        if name.is_empty() {
            return Err(NameError::Expected { text: "the name of a function" });
        }
        let parameters = if self.takes("(") { self.parameters(depth + 1)? } else { Vec::new() };
        Ok(Call { name: format!("${name}"), parameters })
    }
}

/// The value for a name in a rule about native programs.
fn native_value(word: &str) -> Option<Parameter> {
    Some(match word {
        "fid" => Parameter::Static(Static::Function),
        "pc" => Parameter::Static(Static::Pc),
        "probe" => Parameter::Static(Static::Probe),
        "fname" => Parameter::Static(Static::FunctionName),
        "object" => Parameter::Static(Static::Object),
        "probe_id" => Parameter::OfCall(OfCall::Probe),
        "tid" => Parameter::OfCall(OfCall::Thread),
        "ticks" => Parameter::OfCall(OfCall::Ticks),
        "ns" => Parameter::OfCall(OfCall::Nanoseconds),
        "depth" => Parameter::OfCall(OfCall::Depth),
        "duration" => Parameter::OfCall(OfCall::Duration),
        "stack" => Parameter::OfCall(OfCall::Stack),
        "thread_block" => Parameter::OfCall(OfCall::ThreadBlock),
        "frame_block" => Parameter::OfCall(OfCall::FrameBlock),
        _ => {
            let group = word.strip_prefix("group").and_then(|number| number.parse().ok());
            return match group {
                Some(group) => Some(Parameter::Static(Static::Group(group))),
                None => NativeValue::parse(word).map(Parameter::NativeValue),
            };
        }
    })
}

/// The results in the name of a value such as `replaced_i32_ref`.
fn replaced(results: &str) -> Option<Parameter> {
    let one = |result| {
        Some(match result {
            "i32" => Replaced::Number(ValType::I32),
            "i64" => Replaced::Number(ValType::I64),
            "f32" => Replaced::Number(ValType::F32),
            "f64" => Replaced::Number(ValType::F64),
            "ref" => Replaced::Reference,
            _ => return None,
        })
    };
    Some(Parameter::Replaced(match results {
        "any" => None,
        "nothing" => Some(Vec::new()),
        _ => Some(results.split('_').map(one).collect::<Option<_>>()?),
    }))
}

/// The value for a name.
fn value(word: &str) -> Option<Parameter> {
    let number = |prefix: &str| {
        let digits = word.strip_prefix(prefix)?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok())?
    };
    if let Some(index) = number("arg") {
        return Some(Parameter::Argument(index));
    }
    if let Some(index) = number("ref") {
        return Some(Parameter::Reference(index));
    }
    if let Some(index) = number("res") {
        return Some(Parameter::Result(index));
    }
    if let Some(mode) = word.strip_prefix("guard_") {
        let mode = Mode::named(mode).filter(|mode| !mode.replaces());
        return mode.map(|mode| Parameter::Static(Static::Guard(mode)));
    }
    if let Some(results) = word.strip_prefix("replaced_") {
        return replaced(results);
    }
    if let Some(function) = number("alternative") {
        return Some(Parameter::Alternative(function));
    }
    if let Some(index) = number("local") {
        return Some(Parameter::Local(index));
    }
    if let Some(index) = number("imm") {
        return Some(Parameter::Static(Static::Immediate(index)));
    }
    if let Some(group) = number("group") {
        return Some(Parameter::Static(Static::Group(group)));
    }
    Some(Parameter::Static(match word {
        "frame" => return Some(Parameter::Frame),
        "callee_fid" => return Some(Parameter::Callee),
        "pc" => Static::Pc,
        "opidx" => Static::Opidx,
        "probe" => Static::Probe,
        "callee" => Static::Callee,
        "fid" => Static::Function,
        "at_func_end" => Static::AtFunctionEnd,
        "offset" => Static::Offset,
        "align" => Static::Align,
        "memory" => Static::Memory,
        "num_targets" => Static::TargetCount,
        "targets" => Static::Targets,
        "default_target" => Static::DefaultTarget,
        "instr_count" => Static::InstructionCount,
        "fname" => Static::FunctionName,
        "opname" => Static::OpcodeName,
        "target_fn_name" => Static::TargetName,
        "target_imp_module" => Static::TargetModule,
        "target_fn_type" => Static::TargetType,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_an_event_a_predicate_and_parameters() {
        let rule = parse("wasm:opcode:call / $38(imm0, fname) / ($18(fname, fid, pc), arg1, frame, )");
        let rule = rule.unwrap().unwrap();
        assert_eq!(rule.event, Event::Opcode(vec![WildMatch::new("call")]));
        let predicate = rule.predicate.unwrap();
        assert_eq!(predicate.name, "$38");
        let imm0 = Parameter::Static(Static::Immediate(0));
        assert_eq!(predicate.parameters, [imm0, Parameter::Static(Static::FunctionName)]);
        let [Parameter::Call(alloc), Parameter::Argument(1), Parameter::Frame] = &rule.parameters[..] else {
            panic!("{:?}", rule.parameters)
        };
        assert_eq!((alloc.name.as_str(), alloc.parameters.len()), ("$18", 3));
    }

    #[test]
    fn parts_may_be_missing() {
        for (name, expected) in [
            ("wasm:func:entry", Event::Entry),
            ("wasm:func:exit  ()", Event::Exit),
            ("wasm:block:start( )", Event::BlockStart),
            ("wasm:block:end / $1 / ()", Event::BlockEnd),
            ("wasm:begin:  ($18(fname, fid, pc), )", Event::Begin),
            ("wasm:end", Event::End),
            ("wasm:exit", Event::LastEnd),
        ] {
            assert_eq!(parse(name).unwrap().unwrap().event, expected, "{name}");
        }
        let both = parse("wasm:opcode:i32.*load | br_if:before").unwrap().unwrap().event;
        assert_eq!(both, Event::Opcode(vec![WildMatch::new("i32.*load"), WildMatch::new("br_if")]));
        assert_eq!(parse("memory"), Ok(None));
        assert_eq!(parse("$18"), Ok(None));
        assert_eq!(parse("whamm_buffer:start"), Ok(None));
    }

    #[test]
    fn mistakes_have_their_column() {
        for (name, column, expected) in [
            ("wasm:", 6, NameError::Package),
            ("wasm:gc:start", 6, NameError::Package),
            ("wasm:func:call", 11, NameError::Event),
            ("wasm:opcode:", 13, NameError::Pattern),
            ("wasm:opcode:i32.ad", 13, NameError::Opcode),
            ("wasm:opcode:call|i32.ad (pc)", 18, NameError::Opcode),
            ("wasm:opcode:call:alt", 18, NameError::Mode),
            ("wasm:opcode:call (guard_alt)", 19, NameError::Value),
            ("wasm:opcode:call (pc", 21, NameError::Expected { text: ")" }),
            ("wasm:opcode:call (pc fid)", 22, NameError::Expected { text: ")" }),
            ("wasm:opcode:call (pd)", 19, NameError::Value),
            ("wasm:opcode:call (arg)", 19, NameError::Value),
            ("wasm:opcode:call (arg99999999999)", 19, NameError::Value),
            ("wasm:opcode:call (é)", 19, NameError::Value),
            ("wasm:opcode:call / pc / ()", 20, NameError::Expected { text: "$" }),
            ("wasm:opcode:call / $1 ()", 25, NameError::Expected { text: "/" }),
            ("wasm:opcode:call / $() / ()", 21, NameError::Expected { text: "the name of a function" }),
            ("wasm:func:entry () x", 20, NameError::Expected { text: "the end of the name" }),
        ] {
            assert_eq!(parse(name), Err((column, expected)), "{name}");
        }
        let deep = "wasm:func:entry (".to_owned() + &"$a(".repeat(100_000);
        assert!(matches!(parse(&deep), Err((_, NameError::Nested { .. }))));
    }
}
