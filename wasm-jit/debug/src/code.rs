//! [`Code`]: the module's functions, instructions, names and lines.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use wasm_jit::probes::{Location, Place};
use wasm_jit::wasmparser::{KnownCustom, Name, Parser, Payload};
use wasm_jit::{ExternType, Module};
use wasm_jit_hooks::{CallForm, Flow};

use crate::Error;
use crate::dwarf::Dwarf;
use crate::dwarf::inlined::InlinedCalls;

/// The code and the names of a module that is debugged.
#[derive(Debug)]
pub struct Code {
    module: Module,
    imported: u32,
    /// Indexed by function; read when first requested.
    bodies: Mutex<HashMap<u32, Arc<Body>>>,
    pub(crate) inlined: Mutex<HashMap<u32, Arc<InlinedCalls>>>,
    names: OnceLock<Names>,
    listing: OnceLock<HashMap<u64, String>>,
    dwarf: OnceLock<Option<Dwarf>>,
}

/// The instructions of a function.
#[derive(Debug)]
pub(crate) struct Body {
    /// The instructions' offsets from the start of the body, in ascending order.
    pub offsets: Vec<u32>,
    /// The successors of each instruction, as indices; the exit is the number of instructions.
    pub successors: Vec<Vec<usize>>,
    /// The instructions at which exceptions are caught, as indices.
    pub handlers: Vec<usize>,
    /// The callees of the instructions that call.
    pub calls: HashMap<usize, CallForm>,
    /// Whether a branch may lead back to the first instruction.
    pub starts_with_loop: bool,
    pub loops: Vec<usize>,
}

/// The names of locals and globals in the name section.
#[derive(Debug, Default)]
struct Names {
    locals: HashMap<u32, HashMap<u32, String>>,
    globals: HashMap<u32, String>,
}

impl Code {
    pub(crate) fn of(module: &Module) -> Self {
        let imported = module.functions().filter(|function| function.body().is_none()).count() as u32;
        Self {
            module: module.clone(),
            imported,
            bodies: Mutex::default(),
            inlined: Mutex::default(),
            names: OnceLock::new(),
            listing: OnceLock::new(),
            dwarf: OnceLock::new(),
        }
    }

    /// The module that is debugged.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Whether the module defines the function, as opposed to importing it.
    pub(crate) fn has_body(&self, function: u32) -> bool {
        function >= self.imported && self.module.function(function).is_some()
    }

    /// The functions that the module defines.
    pub(crate) fn own_functions(&self) -> std::ops::Range<u32> {
        self.imported..self.module.functions().len() as u32
    }

    /// # Errors
    /// The module does not define the function.
    pub(crate) fn body(&self, function: u32) -> Result<Arc<Body>, Error> {
        let unknown = || Error::Unknown { what: "function with code", name: function.to_string() };
        let body = self.module.function(function).and_then(|found| found.body()).ok_or_else(unknown)?;
        let mut bodies = self.bodies.lock().unwrap_or_else(|e| e.into_inner());
        Ok(bodies.entry(function).or_insert_with(|| Arc::new(Body::of(&Flow::of(body)))).clone())
    }

    /// The offset of a function's body in the module.
    pub(crate) fn start(&self, function: u32) -> u64 {
        let body = self.module.function(function).and_then(|function| function.body());
        body.map_or(0, |body| body.range().start as u64)
    }

    /// The offset of an instruction in the module, as in backtraces. A function's entry has the
    /// offset of its first instruction.
    pub fn module_offset(&self, location: Location) -> u64 {
        let Ok(body) = self.body(location.function) else { return 0 };
        let offset = match location.place {
            Place::Instruction { offset } => offset,
            Place::Entry => body.offsets.first().copied().unwrap_or(0),
            _ => body.offsets.last().copied().unwrap_or(0),
        };
        self.start(location.function) + u64::from(offset)
    }

    /// The instruction at this offset in the module.
    ///
    /// # Errors
    /// [`Error::NoInstruction`].
    pub fn at(&self, offset: u64) -> Result<Location, Error> {
        let none = Error::NoInstruction { offset };
        let Some(function) = self.containing(offset) else { return Err(none) };
        let offset = (offset - self.start(function)) as u32;
        match self.body(function)?.offsets.binary_search(&offset) {
            Ok(_) => Ok(Location { function, place: Place::Instruction { offset } }),
            Err(_) => Err(none),
        }
    }

    /// The location at which calls to a function stop: after its prologue, if DWARF has the end of
    /// the prologue; otherwise at its first instruction.
    ///
    /// # Errors
    /// The module does not define the function.
    pub fn first(&self, function: u32) -> Result<Location, Error> {
        let body = self.body(function)?;
        let start = self.start(function);
        let after = self.dwarf().and_then(|dwarf| dwarf.after_prologue(&self.module, function));
        let after = after.map(|offset| (offset - start) as u32);
        if let Some(offset) = after.filter(|offset| body.offsets.binary_search(offset).is_ok()) {
            return Ok(Location { function, place: Place::Instruction { offset } });
        }
        let place = match body.offsets.first() {
            Some(offset) if !body.starts_with_loop => Place::Instruction { offset: *offset },
            _ => Place::Entry,
        };
        Ok(Location { function, place })
    }

    /// The text of an instruction.
    pub fn text(&self, location: Location) -> &str {
        let offset = self.module_offset(location);
        self.listing().get(&offset).map_or("", String::as_str)
    }

    /// The text of a function's instructions, with their offsets in the module.
    ///
    /// # Errors
    /// The module does not define the function.
    pub fn instructions(&self, function: u32) -> Result<Vec<(u64, &str)>, Error> {
        let (body, start) = (self.body(function)?, self.start(function));
        let text = |offset: u64| self.listing().get(&offset).map_or("", String::as_str);
        Ok(body.offsets.iter().map(|offset| start + u64::from(*offset)).map(|at| (at, text(at))).collect())
    }

    fn listing(&self) -> &HashMap<u64, String> {
        self.listing.get_or_init(|| {
            let mut text = String::new();
            let config = wasmprinter::Config::new();
            let lines = config.offsets_and_lines(self.module.bytes(), &mut text);
            let lines = lines.into_iter().flatten();
            // The last `end` of a function closes its parenthesis.
            let text =
                |line: &str| if line.trim() == ")" { "end".to_owned() } else { line.trim().to_owned() };
            lines.filter_map(|(offset, line)| Some((offset?, text(line)))).collect()
        })
    }

    pub(crate) fn dwarf(&self) -> Option<&Dwarf> {
        self.dwarf.get_or_init(|| Dwarf::of(self.module.bytes())).as_ref()
    }

    fn names(&self) -> &Names {
        self.names.get_or_init(|| Names::of(self.module.bytes()))
    }

    /// The name of a parameter or local in the name section.
    pub fn local_name(&self, function: u32, local: u32) -> Option<&str> {
        self.names().locals.get(&function)?.get(&local).map(String::as_str)
    }

    /// The name of a global in the name section.
    pub fn global_name(&self, global: u32) -> Option<&str> {
        self.names().globals.get(&global).map(String::as_str)
    }

    /// The names of all globals in the name section.
    pub(crate) fn global_names(&self) -> impl Iterator<Item = &str> {
        self.names().globals.values().map(String::as_str)
    }

    pub(crate) fn local_of_name(&self, function: u32, name: &str) -> Option<u32> {
        let locals = self.names().locals.get(&function)?;
        locals.iter().filter(|(_, of)| *of == name).map(|(index, _)| *index).min()
    }

    pub(crate) fn global_of_name(&self, name: &str) -> Option<u32> {
        self.names().globals.iter().filter(|(_, of)| *of == name).map(|(index, _)| *index).min()
    }

    /// The number of parameters and locals of a function.
    pub fn locals(&self, function: u32) -> u32 {
        let function = self.module.function(function);
        function.map_or(0, |function| {
            function.ty().params().len() + function.body().map_or(0, |body| body.locals().count())
        }) as u32
    }

    /// Whether a function has a parameter or local with this index: the one of the location, or
    /// without one, any.
    pub(crate) fn has_local(&self, index: u32, location: Option<Location>) -> bool {
        match location {
            Some(location) => index < self.locals(location.function),
            None => self.own_functions().any(|function| index < self.locals(function)),
        }
    }

    /// The file and line of an instruction in the source; `None` without DWARF.
    pub fn line(&self, location: Location) -> Option<(String, u32)> {
        self.dwarf()?.line(self.module_offset(location))
    }

    /// The size of a pointer in bytes: as in DWARF, or without it, that of an address in memory 0.
    pub(crate) fn address_size(&self) -> u64 {
        let is_64 = || self.module().memories().next().is_some_and(|memory| memory.is_64());
        let of_source = self.dwarf().and_then(Dwarf::address_size);
        of_source.unwrap_or_else(|| if is_64() { 8 } else { 4 })
    }

    /// Whether a memory is shared by the threads of the program.
    pub(crate) fn has_shared_memory(&self, memory: u32) -> bool {
        self.module().memories().nth(memory as usize).is_some_and(|ty| ty.is_shared())
    }

    /// The initial size of a memory in bytes; `None` if it is imported.
    pub(crate) fn memory_at_start(&self, memory: u32) -> Option<u64> {
        let imported = self.module().imports();
        let imported = imported.filter(|import| matches!(import.ty(), ExternType::Memory(_))).count();
        let own = (memory as usize).checked_sub(imported)?;
        let memory = |payload| match payload {
            Payload::MemorySection(memories) => memories.into_iter().nth(own)?.ok(),
            _ => None,
        };
        let found = Parser::new(0).parse_all(self.module().bytes()).flatten().find_map(memory);
        Some(found.map_or(0, |memory| {
            memory.initial.checked_shl(memory.page_size_log2.unwrap_or(16)).unwrap_or(u64::MAX)
        }))
    }
}

/// Parses a number in decimal, or in hexadecimal after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Body {
    fn of(flow: &Flow<'_>) -> Self {
        use wasm_jit::wasmparser::Operator;
        let instructions = || flow.instructions.iter().map(|(_, operator)| operator).enumerate();
        let calls = instructions().filter_map(|(at, operator)| Some((at, CallForm::of(operator)?)));
        let loops = instructions().filter(|(_, operator)| matches!(operator, Operator::Loop { .. }));
        let loops: Vec<usize> = loops.map(|(at, _)| at).collect();
        Self {
            offsets: flow.instructions.iter().map(|(offset, _)| *offset).collect(),
            successors: flow.successors.clone(),
            handlers: flow.handlers.iter().copied().collect(),
            calls: calls.collect(),
            starts_with_loop: loops.first() == Some(&0),
            loops,
        }
    }

    /// The index of the instruction at a place.
    pub(crate) fn index(&self, place: Place) -> usize {
        match place {
            Place::Instruction { offset } => self.offsets.partition_point(|of| *of < offset),
            Place::Entry => 0,
            _ => self.offsets.len(),
        }
    }

    /// The place of an instruction. The exit has none, because no frame is seen there.
    pub(crate) fn place(&self, index: usize) -> Option<Place> {
        self.offsets.get(index).map(|offset| Place::Instruction { offset: *offset })
    }
}

impl Names {
    fn of(module: &[u8]) -> Self {
        let mut names = Self::default();
        for payload in Parser::new(0).parse_all(module).flatten() {
            let Payload::CustomSection(section) = payload else { continue };
            let KnownCustom::Name(section) = section.as_known() else { continue };
            for name in section.into_iter().flatten() {
                match name {
                    Name::Local(functions) => {
                        for function in functions.into_iter().flatten() {
                            let of = function.names.flatten();
                            let of = of.map(|local| (local.index, local.name.to_owned())).collect();
                            names.locals.insert(function.index, of);
                        }
                    }
                    Name::Global(globals) => {
                        let globals = globals.into_iter().flatten();
                        names.globals.extend(globals.map(|global| (global.index, global.name.to_owned())));
                    }
                    _ => {}
                }
            }
        }
        names
    }
}
