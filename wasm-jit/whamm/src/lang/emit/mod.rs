//! Emits a monitor module from a checked script.
//!
//! The module starts with the runtime's functions, followed by those of the script. Each part of
//! each probe, as [`split`] makes them, becomes functions and an export, whose name describes them
//! in the interface of monitor modules:
//!
//! `wasm:opcode:call:before / $PREDICATE(fid) / ($SITE(fid, pc), arg0)`
//!
//! PREDICATE and SITE are exports with numbers as names. SITE allocates the variables of a match
//! site, and returns their address, which is the first argument of the exported function. Equal
//! functions are emitted once. Parts that would have the same name become one function that calls
//! each of theirs, in the order of the script. Names do not contain types: if the parts want the
//! same values in other types, as `call(arg0: i32)` and `call(arg0: i64)`, those of each type have
//! a separate copy of the predicate, or one that always holds, whose name distinguishes them.
//!
//! Strings that the engine knows, such as `fname`, are passed to a function at match time, which
//! keeps one copy of each and returns the address of its entry: `$INTERN(fname)`. Equal strings
//! therefore have equal addresses. Calls with `@static` are also made at match time.
//!
//! # Frames
//! The variables of frames are on a stack of the monitor, with the number of their frame. The
//! callees of a frame have smaller numbers. A function `wasm:func:entry (frame)`, which is the
//! first of all exports, removes the entries with the number of the new frame or a smaller one:
//! their frames have ended, in whatever way. An entry is added when a rule first needs it.
//!
//! In native programs, the caller of the module knows the frames: it keeps the address of a block
//! for each, which the export [`FRAME_BLOCK`] makes, and passes it to rules.
//!
//! # Names
//! The name section contains the name of the script, and for functions that the engine calls what
//! they execute, with the line: `wasm:opcode:call:before (line 3)`, or `` `@init` of `` and the
//! rule. Backtraces and messages use these names.
//!
//! # After an instruction
//! A rule with such a mode is called where control continues. If control may also come from
//! elsewhere, the engine passes a number other than zero as `guard_MODE`. For these places, another
//! export notes before the instruction that it begins, on a stack by frames, and the rule's
//! function does nothing unless it finds the note, which it removes.

mod code;
mod counters;
mod effort;
mod known;
mod maps;
mod memories;
mod module;
mod operators;
mod probes;
mod report;
mod requests;
mod runtime;

use std::collections::{BTreeMap, HashMap};

use wasm_encoder::{Instruction as I, ValType};

use self::code::{Code, Layout};
use self::effort::Effort;
use self::report::Reporter;
pub(super) use self::requests::any;
use self::requests::key;
use self::runtime::{END, Runtime};
use super::diagnostics::{Problem, ProblemKind};
use super::ir::{FRAME_BLOCK, Import, Probe, Program, THREAD_BLOCK};
use super::report::Layout as ReportLayout;
use super::split::split;
use super::sums::Used;
use super::types::Type;
use crate::conditions::Condition;

/// The maximum number of exports of a module.
const MAX_EXPORTS: usize = 200_000;

/// The strings of the module, each stored once, starting at [`END`].
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    addresses: HashMap<String, u32>,
    /// Whether strings are read from memories of libraries.
    are_read: bool,
}

impl Strings {
    fn address(&mut self, text: &str) -> (u32, u32) {
        let length = text.len() as u32;
        if let Some(address) = self.addresses.get(text) {
            return (*address, length);
        }
        let address = END + self.bytes.len() as u32;
        self.bytes.extend(text.as_bytes());
        self.addresses.insert(text.to_owned(), address);
        (address, length)
    }
}

/// The parameters, results and code of a function.
type Function = (Vec<ValType>, Vec<ValType>, Vec<u8>);

/// The functions of the module after the runtime's.
#[derive(Default)]
struct Functions {
    all: Vec<Function>,
    numbers: HashMap<Function, u32>,
    /// What functions execute, by number.
    names: BTreeMap<u32, Name>,
    /// The number of the first one.
    first: u32,
}

/// What a function executes: equal functions of several rules are emitted once.
struct Name {
    first: String,
    last: String,
    others: u32,
}

impl Functions {
    /// Adds a function, or finds an equal one; returns its number.
    fn add(&mut self, function: Function) -> u32 {
        if let Some(number) = self.numbers.get(&function) {
            return *number;
        }
        let number = self.append(function.clone());
        self.numbers.insert(function, number);
        number
    }

    /// As [`add`](Self::add), for a function with a name.
    fn add_named(&mut self, function: Function, name: &str) -> u32 {
        let number = self.add(function);
        self.name(number, name);
        number
    }

    /// As [`append`](Self::append), for a function with a name.
    fn append_named(&mut self, function: Function, name: &str) -> u32 {
        let number = self.append(function);
        self.name(number, name);
        number
    }

    fn name(&mut self, number: u32, name: &str) {
        let of = |name: &str| Name { first: name.to_owned(), last: name.to_owned(), others: 0 };
        let known = self.names.entry(number).or_insert_with(|| of(name));
        // The events of a rule come one after the other.
        if known.last != name {
            known.last = name.to_owned();
            known.others += 1;
        }
    }

    fn append(&mut self, function: Function) -> u32 {
        self.all.push(function);
        self.first + self.all.len() as u32 - 1
    }
}

struct Emitter<'a> {
    program: &'a Program,
    strings: Strings,
    functions: Functions,
    layout: Layout<'a>,
    /// Whether the module prints the report itself.
    prints: bool,
    /// The rule that is being emitted, for messages.
    rule: String,
    /// The function that stores strings, if there are any.
    intern: Option<u32>,
    /// Whether a rule asks for the targets of a `br_table`, which take more room than names.
    has_targets: bool,
    /// The addresses of the lists of sites, by rule.
    lists: HashMap<usize, u32>,
    /// The address of the list of threads, if there are variables of threads.
    threads: Option<u32>,
    /// The functions by the names of their exports, in order.
    exports: Vec<(String, Vec<u32>)>,
    positions: HashMap<String, usize>,
    /// The names of exports whose own names belong to functions with other parameters, by these and
    /// by their own parameters.
    separate: HashMap<(String, Vec<ValType>), String>,
    /// The static predicates without calls, by the names of their exports, with what each requires.
    predicates: BTreeMap<String, Vec<Condition>>,
    used: Used,
    /// Whether the rules of an export only add to numbers that nothing else uses.
    sums: BTreeMap<String, bool>,
}

/// Emits the module, and returns the locations of the reported variables. If `prints`, the module
/// prints the report itself.
pub(super) fn emit(program: &Program, prints: bool) -> Result<(Vec<u8>, ReportLayout), Vec<Problem>> {
    let runtime: &Runtime = &Runtime::of(&program.imports, prints);
    let efforts = effort::of(&program.functions);
    // Variables come after the strings, whose size is known at the end: a first pass over the
    // program finds it.
    let first = Emitter::new(program, runtime, &efforts, END, prints).run()?;
    let variables = (END + first.strings.bytes.len() as u32).next_multiple_of(8);
    Emitter::new(program, runtime, &efforts, variables, prints).run()?.module(variables)
}

impl<'a> Emitter<'a> {
    fn new(
        program: &'a Program,
        runtime: &'a Runtime,
        efforts: &'a [Effort],
        variables: u32,
        prints: bool,
    ) -> Self {
        let failed = program.imports.iter().position(|import| *import == Import::failed());
        Self {
            program,
            strings: Strings::default(),
            functions: Functions { first: runtime.count(), ..Functions::default() },
            layout: Layout {
                runtime,
                variables,
                functions: runtime.count(),
                frame: None,
                frame_fails: false,
                failing: program.failing,
                failed: failed.map(|number| number as u32),
                efforts,
            },
            rule: String::new(),
            prints,
            intern: None,
            has_targets: false,
            lists: HashMap::new(),
            threads: None,
            exports: Vec::new(),
            positions: HashMap::new(),
            separate: HashMap::new(),
            predicates: BTreeMap::new(),
            used: Used::of(program),
            sums: BTreeMap::new(),
        }
    }

    fn run(mut self) -> Result<Self, Vec<Problem>> {
        let program = self.program;
        for (number, function) in program.functions.iter().enumerate() {
            let parameters = function.parameters.iter().flat_map(Type::components).collect();
            let mut code =
                Code::new(self.layout, &mut self.strings, parameters, function.result.components());
            code.parameters_are_locals();
            code.begin_call(self.layout.efforts[number]);
            code.body(&function.body);
            if function.result == Type::UNIT {
                code.end_call();
            } else {
                // Every path returns.
                code.raw([wasm_encoder::Instruction::Unreachable]);
            }
            // Their numbers are known to callers.
            self.functions.append(code.finish());
        }
        if program.frame_size > 0 {
            if program.has_frame_blocks { self.frame_block() } else { self.frames() }
        }
        let mut list = self.layout.variables + program.static_size;
        if let Some(size) = program.thread_size {
            self.thread_block(size, list);
            list += 8;
        }
        for probe in program.probes.iter().filter(|probe| probe.site.is_some()) {
            self.lists.entry(probe.rule).or_insert_with(|| {
                list += 8;
                list - 8
            });
        }
        if let Some(names) = program.names {
            self.names(names);
        }
        // Most events of a rule have the same predicate, which may be long.
        let are_same =
            |one: &Probe, other: &Probe| (one.rule, &one.predicate) == (other.rule, &other.predicate);
        for probes in program.probes.chunk_by(are_same) {
            let parts = split(probes[0].predicate.as_ref());
            let mut at_match = vec![None; parts.len()];
            for probe in probes {
                self.rule = self.name_of(Some(probe.rule), &probe.event);
                for (part, at_match) in parts.iter().zip(&mut at_match) {
                    self.probe(probe, part, at_match);
                }
                if self.exports.len() > MAX_EXPORTS {
                    let message = format!("the monitor module would have more than {MAX_EXPORTS} exports");
                    return Err(vec![Problem::new(ProblemKind::Limit, 0..0, message)]);
                }
            }
        }
        self.exit();
        Ok(self)
    }

    /// The functions that find the block of a frame, and remove those that have ended.
    fn frames(&mut self) {
        let size = 8 + self.program.frame_size;
        let mut code = Code::new(self.layout, &mut self.strings, vec![ValType::I64], vec![ValType::I32]);
        let block = code.local(ValType::I32);
        code.begin_steps();
        code.raw([I::LocalGet(0)]);
        code.int(size);
        code.call("frame");
        code.raw([I::LocalSet(block)]);
        if !self.program.frame_init.is_empty() {
            code.frame_is(block);
            code.call("frame_is_new");
            code.raw([I::If(wasm_encoder::BlockType::Empty)]);
            code.body(&self.program.frame_init);
            code.raw([I::End]);
        }
        code.raw([I::LocalGet(block)]);
        let fails = code.may_fail;
        self.layout.frame = Some(self.functions.append(code.finish()));
        self.layout.frame_fails = fails;
        let mut code = Code::new(self.layout, &mut self.strings, vec![ValType::I64], Vec::new());
        code.raw([I::LocalGet(0)]);
        code.int(size);
        code.call("enter");
        let number = self.functions.append(code.finish());
        self.export("wasm:func:entry (frame)".to_owned(), number);
    }

    /// The function that makes the block of a frame: at the address of a block that is no longer
    /// used, or at a new address if the argument is 0.
    fn frame_block(&mut self) {
        let size = self.program.frame_size;
        let mut code = Code::new(self.layout, &mut self.strings, vec![ValType::I32], vec![ValType::I32]);
        code.begin_steps();
        code.raw([I::LocalGet(0), I::I32Eqz, I::If(wasm_encoder::BlockType::Empty)]);
        code.int(size);
        code.call("alloc");
        code.raw([I::LocalSet(0), I::End, I::LocalGet(0)]);
        code.int(0);
        code.int(size);
        code.raw([I::MemoryFill(0)]);
        code.frame_is(0);
        code.body(&self.program.frame_init);
        code.raw([I::LocalGet(0)]);
        let number = self.functions.append(code.finish());
        self.export(FRAME_BLOCK.to_owned(), number);
    }

    /// The function that makes the block of a thread, in a list at an address.
    fn thread_block(&mut self, size: u32, list: u32) {
        let mut code = Code::new(self.layout, &mut self.strings, vec![ValType::I32], vec![ValType::I32]);
        code.begin_steps();
        code.int(list);
        code.int(size);
        code.raw([I::LocalGet(0)]);
        code.int(0);
        code.string("thread");
        code.call("site");
        if !self.program.thread_init.is_empty() {
            code.initialize(&self.program.thread_init);
        }
        let number = self.functions.append(code.finish());
        self.export(THREAD_BLOCK.to_owned(), number);
        self.threads = Some(list);
    }

    /// The name of a rule for messages; code outside rules is named after its event.
    fn name_of(&self, rule: Option<usize>, event: &str) -> String {
        let rule = rule.and_then(|rule| self.program.rules.get(rule));
        rule.cloned().unwrap_or_else(|| event.to_owned())
    }

    /// Whether an export has this name, and a function with other parameters than this one.
    fn has_other_types(&self, name: &str, function: u32) -> bool {
        let known = self.positions.get(name).map(|position| self.exports[*position].1[0]);
        known.is_some_and(|known| self.parameters(known) != self.parameters(function))
    }

    fn parameters(&self, function: u32) -> &[ValType] {
        &self.functions.all[(function - self.layout.runtime.count()) as usize].0
    }

    fn export(&mut self, name: String, function: u32) {
        match self.positions.get(&name) {
            Some(position) => {
                let functions = &mut self.exports[*position].1;
                // The name of a function that is called at match time is unique.
                if !name.starts_with('$') {
                    functions.push(function);
                }
            }
            None => {
                self.positions.insert(name.clone(), self.exports.len());
                self.exports.push((name, vec![function]));
            }
        }
    }

    /// Emits the code that runs when the program ends.
    fn exit(&mut self) {
        let program = self.program;
        let mut calls = Vec::new();
        let bodies = program.end.iter().map(|body| (body, "wasm:end"));
        let reports = program.report.iter().map(|body| (body, "wasm:report"));
        let bodies: Vec<_> = bodies.chain(reports).filter(|(body, _)| !body.is_empty()).collect();
        if !program.counted.is_empty() && (self.prints || !bodies.is_empty()) {
            // Before anything reads the maps.
            let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
            program.counted.iter().for_each(|counted| code.add_counts(counted));
            calls.push(self.functions.add(code.finish()));
        }
        for (body, event) in bodies {
            let rule = self.name_of(body.rule, event);
            let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
            code.begin_steps();
            code.body(body);
            calls.push(self.functions.add_named(code.finish_rule(&rule), &rule));
        }
        let is_reported = !program.reported.is_empty() || !program.reported_sites.is_empty();
        if is_reported && program.report.is_empty() && self.prints {
            let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
            let mut reporter = Reporter { code: &mut code, layout: self.layout };
            reporter.header();
            for (report, event) in &program.reported {
                reporter.once(report, event.as_deref());
            }
            calls.push(self.functions.add(code.finish()));
            // A function for each rule, since there may be many rules.
            for sites in &program.reported_sites {
                // There is no list if nothing of the rule is left, because its predicate never
                // holds.
                let Some(list) = self.lists.get(&sites.rule).copied() else { continue };
                let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
                Reporter { code: &mut code, layout: self.layout }.sites(&sites.reports, list);
                calls.push(self.functions.add(code.finish()));
            }
            calls.push(self.layout.runtime.function("flush"));
        }
        if !calls.is_empty() {
            let number = self.functions.add(calling(&calls, &[]));
            self.export("wasm:exit".to_owned(), number);
        }
    }
}

/// A function that calls others with its own arguments.
fn calling(functions: &[u32], parameters: &[ValType]) -> Function {
    let mut function = wasm_encoder::Function::new([]);
    for number in functions {
        for index in 0..parameters.len() as u32 {
            function.instruction(&I::LocalGet(index));
        }
        function.instruction(&I::Call(*number));
    }
    function.instruction(&I::End);
    (parameters.to_vec(), Vec::new(), function.into_raw_body())
}
