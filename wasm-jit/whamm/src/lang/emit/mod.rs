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

mod code;
mod report;
mod runtime;

use std::collections::HashMap;

use wasm_encoder::{
    CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection, FunctionSection,
    GlobalSection, GlobalType, ImportSection, MemorySection, MemoryType, Module, StartSection, TypeSection,
    ValType,
};

use self::code::{Code, Layout};
use self::report::Reporter;
use self::runtime::{END, RUNTIME};
use super::diagnostics::{Problem, ProblemKind};
use super::ir::{Body, Kind, Probe, Program, Statement, Typed};
use super::split::{Part, split};
use super::types::Type;

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
        RUNTIME.count() + self.all.len() as u32 - 1
    }
}

struct Emitter<'a> {
    program: &'a Program,
    strings: Strings,
    functions: Functions,
    layout: Layout,
    /// Addresses of the lists of sites, by rule.
    lists: HashMap<usize, u32>,
    /// Functions by the names of exports, in order.
    exports: Vec<(String, Vec<u32>)>,
    positions: HashMap<String, usize>,
}

/// Emits the module.
pub(super) fn emit(program: &Program) -> Result<Vec<u8>, Vec<Problem>> {
    // Variables come after the strings, whose size is known at the end: a first pass over the
    // program finds it.
    let first = Emitter::new(program, END).run()?;
    let variables = (END + first.strings.bytes.len() as u32).next_multiple_of(8);
    Emitter::new(program, variables).run()?.module(variables)
}

/// Adds the values that an expression requests, in order of first use.
fn requests(expr: &Typed, all: &mut Vec<(String, Type)>) {
    if let Kind::Request(name) = &expr.kind
        && !all.iter().any(|(known, _)| known == name)
    {
        all.push((name.clone(), expr.ty.clone()));
    }
    for child in expr.children() {
        requests(child, all);
    }
}

fn requests_of(statements: &[Statement], all: &mut Vec<(String, Type)>) {
    for statement in statements {
        match statement {
            Statement::Set { value, .. } | Statement::Call(value) => requests(value, all),
            Statement::SetMap { key, value, .. } | Statement::AddMap { key, amount: value, .. } => {
                requests(key, all);
                requests(value, all);
            }
            Statement::Return(value) => value.iter().for_each(|value| requests(value, all)),
            Statement::If { condition, yes, no } => {
                requests(condition, all);
                requests_of(yes, all);
                requests_of(no, all);
            }
            Statement::While { condition, body } => {
                requests(condition, all);
                requests_of(body, all);
            }
            Statement::Break | Statement::Continue => {}
        }
    }
}

fn names(requests: &[(String, Type)]) -> String {
    requests.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}

impl<'a> Emitter<'a> {
    fn new(program: &'a Program, variables: u32) -> Self {
        Self {
            program,
            strings: Strings::default(),
            functions: Functions::default(),
            layout: Layout { variables, functions: RUNTIME.count() },
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

    /// Parameters for requests, after others.
    fn parameters(before: &[ValType], requests: &[(String, Type)]) -> Vec<ValType> {
        let of_requests = requests.iter().map(|(_, ty)| ty.scalar().unwrap_or(ValType::I32));
        before.iter().copied().chain(of_requests).collect()
    }

    /// A function of match time.
    fn at_match(&mut self, requested: &[(String, Type)], emit: impl FnOnce(&mut Code<'_>)) -> String {
        let parameters = Self::parameters(&[], requested);
        let mut code = Code::new(self.layout, &mut self.strings, parameters, vec![ValType::I32]);
        for (index, (name, _)) in (0..).zip(requested) {
            code.request(name, index);
        }
        emit(&mut code);
        let number = self.functions.add(code.finish());
        // A name of its own, as the interface has them.
        let name = format!("${number}");
        self.export(name.clone(), number);
        format!("{name}({})", names(requested))
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

    fn probe(&mut self, probe: &Probe, part: &Part) {
        let mut name = probe.event.clone();
        if let Some(condition) = &part.at_match {
            let mut requested = Vec::new();
            requests(condition, &mut requested);
            let predicate = self.at_match(&requested, |code| code.expr(condition));
            name.push_str(&format!(" / {predicate} /"));
        }
        let mut arguments = Vec::new();
        let mut before = Vec::new();
        if let Some(size) = probe.site {
            let position = [("fid".to_owned(), Type::U32), ("pc".to_owned(), Type::U32)];
            let mut requested = position.to_vec();
            requests_of(&probe.init.statements, &mut requested);
            let list = self.lists[&probe.rule];
            arguments.push(self.at_match(&requested, |code| site(code, probe, size, list)));
            before.push(ValType::I32);
        }
        let mut requested = Vec::new();
        part.at_run.iter().for_each(|condition| requests(condition, &mut requested));
        requests_of(&probe.body.statements, &mut requested);
        // The engine compares these types.
        for (name, ty) in &probe.bounds {
            if !requested.iter().any(|(known, _)| known == name) {
                requested.push((name.clone(), ty.clone()));
            }
        }
        let mut code =
            Code::new(self.layout, &mut self.strings, Self::parameters(&before, &requested), Vec::new());
        for (index, (name, _)) in (before.len() as u32..).zip(&requested) {
            code.request(name, index);
        }
        let guarded = part.at_run.as_ref().map(|condition| {
            let yes = probe.body.statements.clone();
            let statement = Statement::If { condition: condition.clone(), yes, no: Vec::new() };
            Body { locals: probe.body.locals.clone(), statements: vec![statement] }
        });
        code.body(guarded.as_ref().unwrap_or(&probe.body));
        let number = self.functions.add(code.finish());
        arguments.extend(requested.into_iter().map(|(name, _)| name));
        name.push_str(&format!(" ({})", arguments.join(", ")));
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
        if is_reported && program.report.is_empty() {
            let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
            let mut reporter = Reporter { code: &mut code, layout: self.layout };
            reporter.header();
            for (report, event) in &program.reported {
                reporter.once(report, event.as_deref());
            }
            calls.push(self.functions.add(code.finish()));
            // A function for each rule: there may be many.
            for (rule, reports) in &program.reported_sites {
                let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
                let list = self.lists[rule];
                Reporter { code: &mut code, layout: self.layout }.sites(reports, list);
                calls.push(self.functions.add(code.finish()));
            }
            calls.push(RUNTIME.function("flush"));
        }
        if !calls.is_empty() {
            let number = self.functions.add(calling(&calls, &[]));
            self.export("wasm:exit".to_owned(), number);
        }
    }

    fn module(mut self, variables: u32) -> Result<Vec<u8>, Vec<Problem>> {
        let lists = 8 * self.lists.len() as u32;
        let heap = variables + self.program.static_size + lists;
        let begin: Vec<_> = self.program.begin.iter().filter(|body| !body.is_empty()).collect();
        let mut calls = Vec::new();
        for body in begin {
            let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
            code.body(body);
            calls.push(self.functions.add(code.finish()));
        }
        let start = (!calls.is_empty()).then(|| self.functions.add(calling(&calls, &[])));
        if END + self.strings.bytes.len() as u32 > variables {
            // Initial values have strings that nothing else has: once more, with room for them.
            let variables = (END + self.strings.bytes.len() as u32).next_multiple_of(8);
            return Emitter::new(self.program, variables).run()?.module(variables);
        }
        let exports = std::mem::take(&mut self.exports);
        let mut export_section = ExportSection::new();
        export_section.export("memory", ExportKind::Memory, 0);
        for (name, functions) in &exports {
            let number = match functions.as_slice() {
                [one] => *one,
                all => {
                    let parameters = self.functions.all[(all[0] - RUNTIME.count()) as usize].0.clone();
                    self.functions.add(calling(all, &parameters))
                }
            };
            export_section.export(name, ExportKind::Func, number);
        }
        let mut types = TypeSection::new();
        let mut known: HashMap<(Vec<ValType>, Vec<ValType>), u32> = HashMap::new();
        // The runtime's types keep their numbers.
        for ty in &RUNTIME.types {
            known.entry(ty.clone()).or_insert(types.len());
            types.ty().function(ty.0.iter().copied(), ty.1.iter().copied());
        }
        let mut function_section = FunctionSection::new();
        let mut code = CodeSection::new();
        for (ty, body) in RUNTIME.functions.iter().zip(&RUNTIME.code) {
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
        for (module, name, ty) in &RUNTIME.imports {
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
        for number in 0..RUNTIME.globals {
            let value = if number == RUNTIME.heap { heap } else { 0 };
            globals.global(ty, &ConstExpr::i32_const(value.cast_signed()));
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
        Ok(module.finish())
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
