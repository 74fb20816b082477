//! [`generate`]: a program and a trace as one module (section 3.4 of the paper).
//!
//! The imported functions come first in the index space of functions. Here as many functions of the
//! same types take their place, so that all indices of the program remain valid and its code is
//! copied byte by byte. What is added comes after the program's own types, functions, globals and
//! data.
//!
//! The function for an import counts its calls. It dispatches to one function for each
//! [`CALLS`] calls, which has a branch for each of them; long lists of effects and the calls of the
//! host are split likewise. All bytes that the host wrote are one passive data segment.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataCountSection, DataSection, Encode, ExportKind, ExportSection,
    Function, FunctionSection, GlobalSection, GlobalType, Ieee32, Ieee64, InstructionSink, RawSection,
    TypeSection, ValType,
};
use wasm_jit::wasmparser as wp;

use super::error::{Error, unsupported};
use super::trace::{Event, Reader, Value};

/// The exported global that contains the number of the first event that differs, after a replay
/// with checks has trapped; 0 (the start) if none does. The number of events of the trace means a
/// call that was not recorded.
pub const DIFFERENCE: &str = "replay.difference";

/// Number of calls that one function replays.
const CALLS: usize = 256;

/// Number of effects in one function.
const EFFECTS: usize = 1024;

/// Generates a module that replays a trace of the binary module `program`: it has no imports, and
/// its `_start` repeats the calls of the host. The program's other exports remain. With `check`,
/// all arguments and results of the program are compared with the recorded ones; the first
/// difference traps, and [`DIFFERENCE`] names its event.
///
/// The replay of a host function that failed traps. Takes memory in proportion to the trace.
///
/// # Errors
/// [`Error::Damaged`], [`Error::OtherModule`], [`Error::Mismatch`], [`Error::Module`],
/// [`Error::Unsupported`] for a program that cannot have been recorded.
pub fn generate(program: &[u8], trace: impl Read, check: bool) -> Result<Vec<u8>, Error> {
    let original = Original::parse(program)?;
    let script = Script::read(program, &original, trace)?;
    Ok(Generator::new(&original, check, script.events as i32).module(&script))
}

/// A section: the number of its items, and their encoding.
#[derive(Clone, Debug, Default)]
struct Items {
    count: u32,
    bytes: Vec<u8>,
}

impl Items {
    fn of(section: &[u8]) -> Result<Self, Error> {
        let mut reader = wp::BinaryReader::new(section, 0);
        let count = reader.read_var_u32()?;
        Ok(Self { count, bytes: section[reader.original_position() as usize..].to_vec() })
    }

    fn encoded(section: &impl Encode) -> Self {
        let mut bytes = Vec::new();
        section.encode(&mut bytes);
        let mut reader = wp::BinaryReader::new(&bytes, 0);
        reader.read_var_u32().expect("a section has a size");
        Self::of(&bytes[reader.original_position() as usize..]).expect("a section has a number of items")
    }

    fn append(mut self, more: &Self) -> Self {
        self.count += more.count;
        self.bytes.extend(&more.bytes);
        self
    }
}

/// What is needed of the program.
#[derive(Debug, Default)]
struct Original {
    sections: HashMap<u8, Items>,
    names: Option<Vec<u8>>,
    types: Vec<wp::FuncType>,
    /// The types of all functions; the imported ones come first.
    functions: Vec<u32>,
    imports: u32,
    exports: Vec<(String, wp::ExternalKind, u32)>,
    memories: u32,
    globals: Vec<wp::GlobalType>,
}

impl Original {
    fn parse(program: &[u8]) -> Result<Self, Error> {
        wp::Validator::new().validate_all(program)?;
        let mut this = Self::default();
        for payload in wp::Parser::new(0).parse_all(program) {
            let payload = payload?;
            if let Some((id, range)) = payload.as_section()
                && id != 0
                && id != 8
            {
                this.sections.insert(id, Items::of(&program[range.start as usize..range.end as usize])?);
            }
            match payload {
                wp::Payload::TypeSection(types) => {
                    for ty in types.into_iter_err_on_gc_types() {
                        this.types.push(ty?);
                    }
                }
                wp::Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let wp::TypeRef::Func(ty) = import?.ty else {
                            return Err(unsupported("an import that is no function"));
                        };
                        this.functions.push(ty);
                        this.imports += 1;
                    }
                }
                wp::Payload::FunctionSection(functions) => {
                    for ty in functions {
                        this.functions.push(ty?);
                    }
                }
                wp::Payload::MemorySection(memories) => this.memories = memories.count(),
                wp::Payload::GlobalSection(globals) => {
                    for global in globals {
                        this.globals.push(global?.ty);
                    }
                }
                wp::Payload::ExportSection(exports) => {
                    for export in exports {
                        let export = export?;
                        this.exports.push((export.name.to_owned(), export.kind, export.index));
                    }
                }
                wp::Payload::StartSection { .. } => return Err(unsupported("a start function")),
                wp::Payload::CustomSection(section) if section.name() == "name" => {
                    this.names = Some(section.data().to_vec());
                }
                _ => {}
            }
        }
        Ok(this)
    }

    fn exported(&self, name: &str) -> Option<u32> {
        let found = self.exports.iter().find(|(export, kind, _)| {
            export == name && matches!(kind, wp::ExternalKind::Func | wp::ExternalKind::FuncExact)
        });
        found.map(|(_, _, index)| *index)
    }

    fn type_of(&self, function: u32) -> &wp::FuncType {
        &self.types[self.functions[function as usize] as usize]
    }
}

/// What the host does at one call.
#[derive(Debug, Default)]
struct Call {
    function: u32,
    /// Number of the event.
    event: u64,
    arguments: Vec<Value>,
    effects: Vec<Effect>,
    /// The results and the number of their event; `None` if it failed.
    results: Option<(u64, Vec<Value>)>,
}

#[derive(Debug)]
enum Effect {
    Grow { memory: u32, pages: u64 },
    Write { memory: u32, address: u64, from: u32, length: u32 },
    SetGlobal { global: u32, value: Value },
}

/// The actions of the host, from the trace.
#[derive(Debug, Default)]
struct Script {
    /// Calls of each import.
    imports: Vec<Vec<Call>>,
    /// Calls of exports.
    host: Vec<Call>,
    bytes: Vec<u8>,
    events: u64,
}

impl Script {
    fn read(program: &[u8], original: &Original, trace: impl Read) -> Result<Self, Error> {
        let mut this = Self::default();
        this.imports.resize_with(original.imports as usize, Vec::new);
        let (mut effects, mut entered, mut called): (Vec<Effect>, Option<Call>, Option<Call>) =
            (Vec::new(), None, None);
        let mut failed = false;
        for event in Reader::new(trace) {
            let (event, number) = (event?, this.events);
            this.events += 1;
            let wrong = |what| Error::Mismatch { number, what };
            if failed && event != Event::Fail {
                return Err(wrong("the run continues after a failure, which cannot be replayed"));
            }
            match event {
                Event::Start { module, length } => {
                    if (module, length) != (crc32fast::hash(program), program.len() as u64) {
                        return Err(Error::OtherModule);
                    }
                }
                Event::Enter { export, arguments } => {
                    let function = original.exported(&export).ok_or(wrong("there is no such export"))?;
                    if entered.is_some() || !fit(&arguments, original.type_of(function).params()) {
                        return Err(wrong("a call of an export that is not possible here"));
                    }
                    let effects = std::mem::take(&mut effects);
                    entered = Some(Call { function, event: number, arguments, effects, results: None });
                }
                Event::Call { import, arguments } => {
                    let fits = import < original.imports
                        && fit(&arguments, original.type_of(import).params())
                        && entered.is_some()
                        && called.is_none();
                    if !fits {
                        return Err(wrong("a call of an import that is not possible here"));
                    }
                    called = Some(Call { function: import, event: number, arguments, ..Call::default() });
                }
                Event::Return { results } => {
                    let call = called.take().ok_or(wrong("no import is running"))?;
                    if !fit(&results, original.type_of(call.function).results()) {
                        return Err(wrong("results of other types"));
                    }
                    this.imported(Call { results: Some((number, results)), ..call }, &mut effects);
                }
                Event::Leave { results } => {
                    let call = entered.take().ok_or(wrong("no export is running"))?;
                    if called.is_some() || !fit(&results, original.type_of(call.function).results()) {
                        return Err(wrong("a return that is not possible here"));
                    }
                    this.host.push(Call { results: Some((number, results)), ..call });
                }
                Event::Fail => {
                    failed = true;
                    match (called.take(), entered.take()) {
                        (Some(call), around) => {
                            this.imported(call, &mut effects);
                            entered = around;
                        }
                        (None, Some(call)) => this.host.push(call),
                        (None, None) => return Err(wrong("nothing is running")),
                    }
                }
                effect => {
                    if entered.is_some() != called.is_some() {
                        return Err(wrong("an effect while the program runs"));
                    }
                    effects.push(this.effect(original, effect).map_err(wrong)?);
                }
            }
        }
        // The trace of a process that was killed: it is replayed as far as it goes.
        if let Some(call) = called {
            this.imported(call, &mut effects);
        }
        this.host.extend(entered);
        Ok(this)
    }

    fn imported(&mut self, mut call: Call, effects: &mut Vec<Effect>) {
        call.effects = std::mem::take(effects);
        self.imports[call.function as usize].push(call);
    }

    fn effect(&mut self, original: &Original, event: Event) -> Result<Effect, &'static str> {
        match event {
            Event::Grow { memory, pages } if memory < original.memories && pages <= 65536 => {
                Ok(Effect::Grow { memory, pages })
            }
            Event::Write { memory, address, bytes }
                if memory < original.memories && address <= u32::MAX.into() =>
            {
                let from = u32::try_from(self.bytes.len()).map_err(|_| "more than 4 GiB were written")?;
                self.bytes.extend(&bytes);
                Ok(Effect::Write { memory, address, from, length: bytes.len() as u32 })
            }
            Event::SetGlobal { global, value } => {
                let ty = original.globals.get(global as usize).ok_or("there is no such global")?;
                match ty.mutable && fit(&[value], &[ty.content_type]) {
                    true => Ok(Effect::SetGlobal { global, value }),
                    false => Err("a global of another type"),
                }
            }
            _ => Err("there is no such memory, or the address is too large"),
        }
    }
}

/// Whether the values have these types.
fn fit(values: &[Value], types: &[wp::ValType]) -> bool {
    values.len() == types.len() && values.iter().zip(types).all(|(value, ty)| parsed_type(*value) == *ty)
}

fn parsed_type(value: Value) -> wp::ValType {
    match value {
        Value::I32(_) => wp::ValType::I32,
        Value::I64(_) => wp::ValType::I64,
        Value::F32(_) => wp::ValType::F32,
        Value::F64(_) => wp::ValType::F64,
    }
}

fn encoded_type(value: Value) -> ValType {
    match value {
        Value::I32(_) => ValType::I32,
        Value::I64(_) => ValType::I64,
        Value::F32(_) => ValType::F32,
        Value::F64(_) => ValType::F64,
    }
}

struct Generator<'a> {
    original: &'a Original,
    check: bool,
    /// Number of the event for calls that were not recorded.
    end: i32,
    /// The type of functions without parameters and results.
    plain: u32,
    segment: u32,
    /// The global [`DIFFERENCE`]; the counters of the imports follow.
    difference: u32,
    /// Functions after those of the program.
    types: FunctionSection,
    bodies: CodeSection,
}

impl<'a> Generator<'a> {
    fn new(original: &'a Original, check: bool, end: i32) -> Self {
        Self {
            original,
            check,
            end,
            plain: original.types.len() as u32,
            segment: original.sections.get(&11).map_or(0, |data| data.count),
            difference: original.globals.len() as u32,
            types: FunctionSection::new(),
            bodies: CodeSection::new(),
        }
    }

    /// Adds a function; returns its index.
    fn add(&mut self, ty: u32, mut body: Function) -> u32 {
        body.instructions().end();
        self.types.function(ty);
        self.bodies.function(&body);
        (self.original.functions.len() + self.types.len() as usize - 1) as u32
    }

    fn module(mut self, script: &Script) -> Vec<u8> {
        let (mut types, mut replaced) = (FunctionSection::new(), CodeSection::new());
        for (import, calls) in script.imports.iter().enumerate() {
            types.function(self.original.functions[import]);
            let body = self.import(import as u32, calls);
            replaced.function(&body);
        }
        let start = self.start(&script.host);
        let mut sections = self.original.sections.clone();
        let mut take = |id: u8| sections.remove(&id).unwrap_or_default();

        let mut plain = TypeSection::new();
        plain.ty().function([], []);
        let mut globals = GlobalSection::new();
        for _ in 0..=self.original.imports {
            let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
            globals.global(ty, &ConstExpr::i32_const(0));
        }
        let mut exports = ExportSection::new();
        for (name, kind, index) in &self.original.exports {
            if name != "_start" && name != DIFFERENCE {
                exports.export(name, export_kind(*kind), *index);
            }
        }
        exports.export("_start", ExportKind::Func, start);
        exports.export(DIFFERENCE, ExportKind::Global, self.difference);
        let mut data = DataSection::new();
        data.passive(script.bytes.iter().copied());
        let data = take(11).append(&Items::encoded(&data));

        let mut out = wasm_encoder::Module::new();
        let mut put = |id: u8, items: &Items| {
            if items.count > 0 {
                let mut bytes = Vec::new();
                items.count.encode(&mut bytes);
                bytes.extend(&items.bytes);
                out.section(&RawSection { id, data: &bytes });
            }
        };
        put(1, &take(1).append(&Items::encoded(&plain)));
        put(3, &Items::encoded(&types).append(&take(3)).append(&Items::encoded(&self.types)));
        put(4, &take(4));
        put(5, &take(5));
        put(13, &take(13));
        put(6, &take(6).append(&Items::encoded(&globals)));
        put(7, &Items::encoded(&exports));
        put(9, &take(9));
        let code = Items::encoded(&replaced).append(&take(10)).append(&Items::encoded(&self.bodies));
        out.section(&DataCountSection { count: data.count });
        let mut put = |id: u8, items: &Items| {
            let mut bytes = Vec::new();
            items.count.encode(&mut bytes);
            bytes.extend(&items.bytes);
            out.section(&RawSection { id, data: &bytes });
        };
        put(10, &code);
        put(11, &data);
        if let Some(names) = &self.original.names {
            let section = wasm_encoder::CustomSection { name: "name".into(), data: Cow::Borrowed(names) };
            out.section(&section);
        }
        out.finish()
    }

    /// The function that takes the place of an import.
    fn import(&mut self, import: u32, calls: &[Call]) -> Function {
        let ty = self.original.functions[import as usize];
        let parameters = self.original.type_of(import).params().len() as u32;
        let counter = self.difference + 1 + import;
        let groups: Vec<u32> = calls
            .chunks(CALLS)
            .map(|group| {
                let body = self.group(counter, group);
                self.add(ty, body)
            })
            .collect();
        let mut body = Function::new([]);
        let mut code = body.instructions();
        open(&mut code, groups.len());
        code.global_get(counter).i32_const(CALLS.trailing_zeros() as i32).i32_shr_u();
        branch(&mut code, groups.len());
        for group in groups {
            code.end();
            for parameter in 0..parameters {
                code.local_get(parameter);
            }
            code.call(group).return_();
        }
        code.end();
        self.differs(&mut code, self.end);
        code.end();
        body
    }

    /// Replays up to [`CALLS`] calls of an import.
    fn group(&mut self, counter: u32, calls: &[Call]) -> Function {
        // Functions for long lists of effects are added first.
        let effects: Vec<Vec<u32>> = calls.iter().map(|call| self.long_effects(&call.effects)).collect();
        let mut body = Function::new([]);
        let mut code = body.instructions();
        open(&mut code, calls.len());
        code.global_get(counter);
        code.global_get(counter).i32_const(1).i32_add().global_set(counter);
        code.i32_const(CALLS as i32 - 1).i32_and();
        branch(&mut code, calls.len());
        for (call, effects) in calls.iter().zip(effects) {
            code.end();
            self.compare(&mut code, 0, &call.arguments, call.event);
            self.effects(&mut code, &call.effects, &effects);
            match &call.results {
                Some((_, results)) => {
                    results.iter().for_each(|result| constant(&mut code, *result));
                    code.return_();
                }
                None => {
                    code.unreachable();
                }
            }
        }
        code.end();
        self.differs(&mut code, self.end);
        body
    }

    /// The function that repeats the calls of the host.
    fn start(&mut self, calls: &[Call]) -> u32 {
        let mut groups = Vec::new();
        for group in calls.chunks(CALLS) {
            let effects: Vec<Vec<u32>> = group.iter().map(|call| self.long_effects(&call.effects)).collect();
            let results =
                group.iter().filter_map(|call| call.results.as_ref()).flat_map(|(_, results)| results);
            let mut body = Function::new_with_locals_types(results.map(|result| encoded_type(*result)));
            let mut code = body.instructions();
            let mut local = 0;
            for (call, effects) in group.iter().zip(effects) {
                self.effects(&mut code, &call.effects, &effects);
                call.arguments.iter().for_each(|argument| constant(&mut code, *argument));
                code.call(call.function);
                let Some((event, results)) = &call.results else {
                    // It failed, and so does the replay before this.
                    code.unreachable();
                    break;
                };
                for place in (0..results.len() as u32).rev() {
                    code.local_set(local + place);
                }
                self.compare(&mut code, local, results, *event);
                local += results.len() as u32;
            }
            groups.push(self.add(self.plain, body));
        }
        let mut body = Function::new([]);
        for group in groups {
            body.instructions().call(group);
        }
        self.add(self.plain, body)
    }

    /// Compares locals with recorded values, bit by bit.
    fn compare(&self, code: &mut InstructionSink<'_>, first: u32, values: &[Value], event: u64) {
        if !self.check {
            return;
        }
        for (local, value) in (first..).zip(values) {
            code.local_get(local);
            match *value {
                Value::I32(value) => code.i32_const(value).i32_ne(),
                Value::I64(value) => code.i64_const(value).i64_ne(),
                Value::F32(bits) => code.i32_reinterpret_f32().i32_const(bits as i32).i32_ne(),
                Value::F64(bits) => code.i64_reinterpret_f64().i64_const(bits as i64).i64_ne(),
            };
            code.if_(BlockType::Empty);
            self.differs(code, event as i32);
            code.end();
        }
    }

    fn differs(&self, code: &mut InstructionSink<'_>, event: i32) {
        code.i32_const(event).global_set(self.difference).unreachable();
    }

    /// Functions for a list of effects that is too long for the function of its call.
    fn long_effects(&mut self, effects: &[Effect]) -> Vec<u32> {
        if effects.len() <= EFFECTS / CALLS {
            return Vec::new();
        }
        let mut functions = Vec::new();
        for part in effects.chunks(EFFECTS) {
            let mut body = Function::new([]);
            self.effects(&mut body.instructions(), part, &[]);
            functions.push(self.add(self.plain, body));
        }
        functions
    }

    /// Effects, by calls of these functions if there are any.
    fn effects(&self, code: &mut InstructionSink<'_>, effects: &[Effect], functions: &[u32]) {
        for function in functions {
            code.call(*function);
        }
        for effect in effects.iter().filter(|_| functions.is_empty()) {
            match *effect {
                Effect::Grow { memory, pages } => {
                    code.i32_const(pages as i32).memory_grow(memory).drop();
                }
                Effect::Write { memory, address, from, length } => {
                    code.i32_const(address as u32 as i32).i32_const(from as i32).i32_const(length as i32);
                    code.memory_init(memory, self.segment);
                }
                Effect::SetGlobal { global, value } => {
                    constant(code, value);
                    code.global_set(global);
                }
            }
        }
    }
}

/// Opens the blocks of a dispatch to this number of branches.
fn open(code: &mut InstructionSink<'_>, branches: usize) {
    for _ in 0..=branches {
        code.block(BlockType::Empty);
    }
}

/// Dispatches on the number on the stack: each `end` that follows starts a branch, the last one
/// that for all other numbers.
fn branch(code: &mut InstructionSink<'_>, branches: usize) {
    code.br_table((0..branches as u32).collect::<Vec<_>>(), branches as u32);
}

fn constant(code: &mut InstructionSink<'_>, value: Value) {
    match value {
        Value::I32(value) => code.i32_const(value),
        Value::I64(value) => code.i64_const(value),
        Value::F32(bits) => code.f32_const(Ieee32::new(bits)),
        Value::F64(bits) => code.f64_const(Ieee64::new(bits)),
    };
}

fn export_kind(kind: wp::ExternalKind) -> ExportKind {
    match kind {
        wp::ExternalKind::Func | wp::ExternalKind::FuncExact => ExportKind::Func,
        wp::ExternalKind::Table => ExportKind::Table,
        wp::ExternalKind::Memory => ExportKind::Memory,
        wp::ExternalKind::Global => ExportKind::Global,
        wp::ExternalKind::Tag => ExportKind::Tag,
    }
}
