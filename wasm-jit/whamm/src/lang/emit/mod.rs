//! From a checked script to a monitor module.
//!
//! The module starts with the runtime's functions, then those of the script. Each part of each
//! probe, as [`split`] makes them, becomes functions and an export, whose name says what they are
//! for, in the interface of monitor modules:
//!
//! `wasm:opcode:call:before / $PREDICATE(fid) / ($SITE(fid, pc), arg0)`
//!
//! PREDICATE and SITE are exports with numbers as names. SITE allocates the variables of a match
//! site, and returns their address, which is the first argument of the exported function. Equal
//! functions are emitted once. Parts that would have the same name become one function that calls
//! each of theirs, in the order of the script.
//!
//! Strings that the engine knows, such as `fname`, go through a function of match time, which keeps
//! one copy of each and returns the address of its entry: `$INTERN(fname)`. In this way equal
//! strings have equal addresses. Calls with `@static` are functions of match time as well.
//!
//! # Frames
//! The variables of frames are on a stack of the monitor's, with the number of their frame. Frames
//! that a frame has called have smaller numbers. A function `wasm:func:entry (frame)`, which is the
//! first of all exports, removes what has the number of the new frame or a smaller one: the frames
//! of those entries have ended, in whatever way. An entry is added when a rule first needs it.
//!
//! # After an instruction
//! A rule with such a mode is called where control continues. Where control may also come from
//! elsewhere, the engine passes a number other than zero as `guard_MODE`. For these places, another
//! export notes before the instruction that it begins, in a stack by frames, and the rule's
//! function does nothing unless it finds the note, which it removes.

mod code;
mod report;
mod requests;
mod runtime;

use std::collections::HashMap;

use wasm_encoder::{
    CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection, FunctionSection,
    GlobalSection, GlobalType, ImportSection, MemorySection, MemoryType, Module, StartSection, TypeSection,
    ValType,
};

use self::code::{Code, Layout};
use self::report::Reporter;
use self::requests::{Requested, key, needs_frame, requests, requests_of};
use self::runtime::{END, RUNTIME, Runtime};
use super::ast::BinaryOp;
use super::diagnostics::{Problem, ProblemKind};
use super::events::Mode;
use super::ir::{Body, Place, Probe, Program, Statement, Typed};
use super::report::{Layout as ReportLayout, Once, Sites};
use super::split::{Part, split};
use super::types::Type;

/// Size of the engine's buffer for strings, if there are any: longer ones are cut.
const BUFFER: u32 = 1 << 14;

/// Exports in a module.
const MAX_EXPORTS: usize = 200_000;

/// Strings of the module, each once, from [`END`] on.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    addresses: HashMap<String, u32>,
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

/// Parameters, results and code of a function.
type Function = (Vec<ValType>, Vec<ValType>, Vec<u8>);

/// Functions of the module after the runtime's.
#[derive(Default)]
struct Functions {
    all: Vec<Function>,
    numbers: HashMap<Function, u32>,
    /// Number of the first.
    first: u32,
}

impl Functions {
    /// Adds a function, or finds an equal one; its number.
    fn add(&mut self, function: Function) -> u32 {
        if let Some(number) = self.numbers.get(&function) {
            return *number;
        }
        let number = self.append(function.clone());
        self.numbers.insert(function, number);
        number
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
    /// The function that keeps strings, if there are any.
    intern: Option<u32>,
    /// Addresses of the lists of sites, by rule.
    lists: HashMap<usize, u32>,
    /// Functions by the names of exports, in order.
    exports: Vec<(String, Vec<u32>)>,
    positions: HashMap<String, usize>,
}

/// Emits the module, and says where the reported variables are. If `prints`, the module prints the
/// report itself.
pub(super) fn emit(program: &Program, prints: bool) -> Result<(Vec<u8>, ReportLayout), Vec<Problem>> {
    let with_libraries: Runtime;
    let runtime: &Runtime = if program.imports.is_empty() {
        &RUNTIME
    } else {
        with_libraries = Runtime::with(&program.imports);
        &with_libraries
    };
    // Variables come after the strings, whose size is known at the end: a first pass over the
    // program finds it.
    let first = Emitter::new(program, runtime, END, prints).run()?;
    let variables = (END + first.strings.bytes.len() as u32).next_multiple_of(8);
    Emitter::new(program, runtime, variables, prints).run()?.module(variables)
}

impl<'a> Emitter<'a> {
    fn new(program: &'a Program, runtime: &'a Runtime, variables: u32, prints: bool) -> Self {
        Self {
            program,
            strings: Strings::default(),
            functions: Functions { first: runtime.count(), ..Functions::default() },
            layout: Layout { runtime, variables, functions: runtime.count(), frame: None },
            prints,
            intern: None,
            lists: HashMap::new(),
            exports: Vec::new(),
            positions: HashMap::new(),
        }
    }

    fn run(mut self) -> Result<Self, Vec<Problem>> {
        let program = self.program;
        for function in &program.functions {
            let parameters = function.parameters.iter().flat_map(Type::components).collect();
            let mut code =
                Code::new(self.layout, &mut self.strings, parameters, function.result.components());
            code.parameters_are_locals();
            code.body(&function.body);
            if function.result != Type::UNIT {
                // Every path returns.
                code.raw([wasm_encoder::Instruction::Unreachable]);
            }
            // Their numbers are known to callers.
            self.functions.append(code.finish());
        }
        if program.frame_size > 0 {
            self.frames();
        }
        let mut list = self.layout.variables + program.static_size;
        for probe in program.probes.iter().filter(|probe| probe.site.is_some()) {
            self.lists.entry(probe.rule).or_insert_with(|| {
                list += 8;
                list - 8
            });
        }
        for probe in &program.probes {
            for part in split(probe.predicate.as_ref()) {
                self.probe(probe, &part);
            }
            if self.exports.len() > MAX_EXPORTS {
                let message = format!("the monitor module would have more than {MAX_EXPORTS} exports");
                return Err(vec![Problem::new(ProblemKind::Limit, 0..0, message)]);
            }
        }
        self.exit();
        Ok(self)
    }

    /// The functions that find the block of a frame, and remove those that have ended.
    fn frames(&mut self) {
        use wasm_encoder::Instruction as I;
        let size = 8 + self.program.frame_size;
        let mut code = Code::new(self.layout, &mut self.strings, vec![ValType::I64], vec![ValType::I32]);
        let block = code.local(ValType::I32);
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
        self.layout.frame = Some(self.functions.append(code.finish()));
        let mut code = Code::new(self.layout, &mut self.strings, vec![ValType::I64], Vec::new());
        code.raw([I::LocalGet(0)]);
        code.int(size);
        code.call("enter");
        let number = self.functions.append(code.finish());
        self.export("wasm:func:entry (frame)".to_owned(), number);
    }

    /// How the engine names a value.
    fn argument(&mut self, requested: &Requested) -> String {
        match requested {
            Requested::Value(name, _) => name.clone(),
            Requested::Text(name) => format!("${}({name})", self.intern()),
            Requested::AtMatch(value) => {
                let mut arguments = Vec::new();
                value.children().into_iter().for_each(|value| requests(value, true, &mut arguments));
                self.at_match(&arguments, value.ty.scalar(), |code| code.expr(value))
            }
        }
    }

    fn arguments(&mut self, requested: &[Requested]) -> String {
        let all: Vec<_> = requested.iter().map(|requested| self.argument(requested)).collect();
        all.join(", ")
    }

    /// The function of match time that keeps a string.
    fn intern(&mut self) -> u32 {
        use wasm_encoder::Instruction as I;
        if let Some(number) = self.intern {
            return number;
        }
        let parameters = vec![ValType::I32; 2];
        let mut code = Code::new(self.layout, &mut self.strings, parameters, vec![ValType::I32]);
        code.raw([I::LocalGet(0), I::LocalGet(1)]);
        code.call("intern");
        let number = self.functions.append(code.finish());
        self.export(format!("${number}"), number);
        self.intern = Some(number);
        number
    }

    /// A function of match time.
    fn at_match(
        &mut self,
        requested: &[Requested],
        result: Option<ValType>,
        emit: impl FnOnce(&mut Code<'_>),
    ) -> String {
        let arguments = self.arguments(requested);
        let parameters = requested.iter().map(Requested::parameter).collect();
        let mut code =
            Code::new(self.layout, &mut self.strings, parameters, vec![result.unwrap_or(ValType::I32)]);
        for (index, requested) in (0..).zip(requested) {
            code.request(requested.key(), index);
        }
        emit(&mut code);
        let number = self.functions.add(code.finish());
        // A name of its own, as the interface has them.
        let name = format!("${number}");
        self.export(name.clone(), number);
        format!("{name}({arguments})")
    }

    fn export(&mut self, name: String, function: u32) {
        match self.positions.get(&name) {
            Some(position) => {
                let functions = &mut self.exports[*position].1;
                // A name of a function of match time stands for it alone.
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

    /// The part of a name that is the predicate.
    fn predicate(&mut self, condition: &Typed) -> String {
        let mut requested = Vec::new();
        requests(condition, true, &mut requested);
        let call = self.at_match(&requested, None, |code| code.expr(condition));
        format!(" / {call} /")
    }

    fn probe(&mut self, probe: &Probe, part: &Part) {
        let guard = (probe.mode != Mode::Before).then(|| format!("guard_{}", probe.mode.text()));
        if let Some(guard) = &guard {
            self.begin(probe, part, guard);
        }
        let mut name = probe.event.clone();
        if let Some(condition) = &part.at_match {
            name.push_str(&self.predicate(condition));
        }
        let mut arguments = Vec::new();
        let mut parameters = Vec::new();
        if let Some(size) = probe.site {
            let mut requested: Vec<_> =
                ["fid", "pc"].map(|name| Requested::Value(name.to_owned(), Type::U32)).into();
            requests_of(&probe.init.statements, true, &mut requested);
            let list = self.lists[&probe.rule];
            arguments.push(self.at_match(&requested, None, |code| site(code, probe, size, list)));
            parameters.push(ValType::I32);
        }
        let first = parameters.len() as u32;
        let mut requested = Vec::new();
        part.at_run.iter().for_each(|condition| requests(condition, false, &mut requested));
        requests_of(&probe.body.statements, false, &mut requested);
        let mut add = |name: &str, ty: &Type| {
            let value = Requested::Value(name.to_owned(), ty.clone());
            if !requested.contains(&value) {
                requested.push(value);
            }
        };
        // The engine compares these types.
        for (name, ty) in &probe.bounds {
            add(name, ty);
        }
        let condition = part.at_run.as_ref();
        let in_frame = condition.is_some_and(|condition| needs_frame(condition))
            || requests::any(&probe.body.statements, &mut |value| needs_frame(value))
            || requests::sets_frame(&probe.body.statements);
        if in_frame || guard.is_some() {
            add("frame", &Type::U64);
        }
        if let Some(guard) = &guard {
            add(guard, &Type::U32);
        }
        parameters.extend(requested.iter().map(Requested::parameter));
        let of_engine = self.arguments(&requested);
        let mut code = Code::new(self.layout, &mut self.strings, parameters, Vec::new());
        for (index, requested) in (first..).zip(&requested) {
            code.request(requested.key(), index);
        }
        let position = |name: &str| {
            let index = requested.iter().position(|requested| requested.key() == name);
            first + index.unwrap_or(0) as u32
        };
        if let Some(guard) = &guard {
            code.unless_completed(position("frame"), position(guard), probe.rule as u32);
        }
        if in_frame {
            code.frame(position("frame"));
        }
        let guarded = condition.map(|condition| {
            let yes = probe.body.statements.clone();
            let statement = Statement::If { condition: condition.clone(), yes, no: Vec::new() };
            Body { locals: probe.body.locals.clone(), statements: vec![statement] }
        });
        code.body(guarded.as_ref().unwrap_or(&probe.body));
        let number = self.functions.add(code.finish());
        if !of_engine.is_empty() {
            arguments.push(of_engine);
        }
        name.push_str(&format!(" ({})", arguments.join(", ")));
        self.export(name, number);
    }

    /// What notes that an instruction begins, where its completion has to be told apart.
    fn begin(&mut self, probe: &Probe, part: &Part, guard: &str) {
        use wasm_encoder::Instruction as I;
        let number = Typed::request(Type::U32, guard);
        let mut condition = Typed::binary(BinaryOp::Ne, number, Typed::int(Type::U32, 0));
        if let Some(at_match) = &part.at_match {
            condition = Typed::binary(BinaryOp::And, condition, at_match.clone());
        }
        let before = probe.event.replace(&format!(":{}", probe.mode.text()), ":before");
        let name = format!("{before}{} (frame, {guard})", self.predicate(&condition));
        let parameters = vec![ValType::I64, ValType::I32];
        let mut code = Code::new(self.layout, &mut self.strings, parameters, Vec::new());
        code.raw([I::LocalGet(0), I::LocalGet(1)]);
        code.int(probe.rule as u32);
        code.call("begin");
        let number = self.functions.add(code.finish());
        self.export(name, number);
    }

    /// What runs when the program ends.
    fn exit(&mut self) {
        let program = self.program;
        let mut calls = Vec::new();
        let reports = if program.report.is_empty() { &[][..] } else { &program.report };
        for body in program.end.iter().chain(reports).filter(|body| !body.is_empty()) {
            let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
            code.body(body);
            calls.push(self.functions.add(code.finish()));
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
            // A function for each rule: there may be many.
            for sites in &program.reported_sites {
                let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
                let list = self.lists[&sites.rule];
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

    /// Where the reported variables are; none if the script prints a report of its own.
    fn report(&self) -> ReportLayout {
        let program = self.program;
        if !program.report.is_empty() {
            return ReportLayout::default();
        }
        let once = program.reported.iter().filter_map(|(report, rule)| {
            let Place::Absolute(address) = report.place else { return None };
            let (name, ty) = (report.name.clone(), report.ty.clone());
            Some(Once { name, rule: rule.clone(), ty, address: self.layout.variables + address })
        });
        let rules = program.reported_sites.iter().map(|sites| {
            let variables = sites.reports.iter().filter_map(|report| match report.place {
                Place::Site(offset) => Some((report.name.clone(), report.ty.clone(), offset)),
                _ => None,
            });
            // No list if nothing of the rule is left, because its predicate never holds.
            let list = self.lists.get(&sites.rule).copied().unwrap_or(0);
            Sites { rule: sites.text.clone(), list, variables: variables.collect() }
        });
        ReportLayout { once: once.collect(), rules: rules.collect() }
    }

    fn module(mut self, variables: u32) -> Result<(Vec<u8>, ReportLayout), Vec<Problem>> {
        let runtime = self.layout.runtime;
        let report = self.report();
        let lists = 8 * self.lists.len() as u32;
        let buffer = variables + self.program.static_size + lists;
        let heap = buffer + if self.intern.is_some() { BUFFER } else { 0 };
        let begin: Vec<_> = self.program.begin.iter().filter(|body| !body.is_empty()).collect();
        let mut calls = Vec::new();
        for body in begin {
            let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
            code.body(body);
            calls.push(self.functions.add(code.finish()));
        }
        if self.intern.is_some() {
            // First, but with the strings of the others.
            calls.insert(0, self.keep_strings());
        }
        let start = (!calls.is_empty()).then(|| self.functions.add(calling(&calls, &[])));
        if END + self.strings.bytes.len() as u32 > variables {
            // Initial values have strings that nothing else has: once more, with room for them.
            let variables = (END + self.strings.bytes.len() as u32).next_multiple_of(8);
            return Emitter::new(self.program, runtime, variables, self.prints).run()?.module(variables);
        }
        let exports = std::mem::take(&mut self.exports);
        let mut export_section = ExportSection::new();
        export_section.export("memory", ExportKind::Memory, 0);
        if self.intern.is_some() {
            export_section.export("whamm_buffer", ExportKind::Memory, 0);
            export_section.export("whamm_buffer:start", ExportKind::Global, runtime.globals);
            export_section.export("whamm_buffer:max", ExportKind::Global, runtime.globals + 1);
        }
        for (name, functions) in &exports {
            let number = match functions.as_slice() {
                [one] => *one,
                all => {
                    let parameters = self.functions.all[(all[0] - runtime.count()) as usize].0.clone();
                    self.functions.add(calling(all, &parameters))
                }
            };
            export_section.export(name, ExportKind::Func, number);
        }
        let mut types = TypeSection::new();
        let mut known: HashMap<(Vec<ValType>, Vec<ValType>), u32> = HashMap::new();
        // The runtime's types keep their numbers.
        for ty in &runtime.types {
            known.entry(ty.clone()).or_insert(types.len());
            types.ty().function(ty.0.iter().copied(), ty.1.iter().copied());
        }
        let mut function_section = FunctionSection::new();
        let mut code = CodeSection::new();
        for (ty, body) in runtime.functions.iter().zip(&runtime.code) {
            function_section.function(*ty);
            code.raw(body);
        }
        for (parameters, results, body) in self.functions.all {
            let number = *known.entry((parameters, results)).or_insert_with_key(|(parameters, results)| {
                types.ty().function(parameters.iter().copied(), results.iter().copied());
                types.len() - 1
            });
            function_section.function(number);
            code.raw(&body);
        }
        let mut imports = ImportSection::new();
        for (module, name, ty) in &runtime.imports {
            imports.import(module, name, EntityType::Function(*ty));
        }
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: u64::from(heap.div_ceil(1 << 16)),
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let mut globals = GlobalSection::new();
        let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        for number in 0..runtime.globals {
            let value = if number == runtime.heap { heap } else { 0 };
            globals.global(ty, &ConstExpr::i32_const(value.cast_signed()));
        }
        if self.intern.is_some() {
            let ty = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
            globals.global(ty, &ConstExpr::i32_const(buffer.cast_signed()));
            globals.global(ty, &ConstExpr::i32_const(BUFFER.cast_signed()));
        }
        let mut data = DataSection::new();
        data.active(0, &ConstExpr::i32_const(END.cast_signed()), self.strings.bytes.iter().copied());
        let mut module = Module::new();
        module
            .section(&types)
            .section(&imports)
            .section(&function_section)
            .section(&memories)
            .section(&globals);
        module.section(&export_section);
        if let Some(function_index) = start {
            module.section(&StartSection { function_index });
        }
        module.section(&code).section(&data);
        Ok((module.finish(), report))
    }

    /// The function that makes the script's own strings known, so that equal ones are the same.
    fn keep_strings(&mut self) -> u32 {
        use wasm_encoder::Instruction as I;
        let mut known: Vec<_> =
            self.strings.addresses.iter().map(|(text, address)| (*address, text.len() as u32)).collect();
        known.sort_unstable();
        let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
        for (address, length) in known {
            code.int(address);
            code.int(length);
            code.call("keep_string");
            code.raw([I::Drop]);
        }
        self.functions.append(code.finish())
    }
}

/// The function of match time that allocates a site.
fn site(code: &mut Code<'_>, probe: &Probe, size: u32, list: u32) {
    use wasm_encoder::Instruction as I;
    code.int(list);
    code.int(size);
    code.raw([I::LocalGet(0), I::LocalGet(1)]);
    code.string(&probe.event);
    code.call("site");
    if !probe.init.is_empty() {
        code.initialize(&probe.init);
    }
}

/// A function that calls others with its own arguments.
fn calling(functions: &[u32], parameters: &[ValType]) -> Function {
    use wasm_encoder::Instruction as I;
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
