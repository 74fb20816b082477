//! Backtraces: the frames of a program when an activation was left.
//!
//! Only code addresses are captured, with the functions that they are in, and for an address in a
//! stub of probes, which may be freed, the instruction. Everything else is looked up on demand: the
//! function's name in the name section, the instruction by compiling the function again (the
//! compiler produces the same code every time, and reports the position of each instruction), and
//! the source line in the DWARF sections. None of this costs anything while the program runs, or if
//! it traps often and never shows a backtrace.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use wasm_jit_codegen::Position;

use super::lines::Lines;
use crate::code::probed::counters::InstanceId;
use crate::code::sections::{Sections, printable};
use crate::code::{CodeImage, ObserveError};

/// The WebAssembly frames of a trap or of an exception that was not caught, innermost first,
/// without the frames of host functions.
#[derive(Clone, Default)]
pub struct WasmBacktrace {
    places: Vec<Place>,
    omitted: usize,
    frames: OnceLock<Vec<FrameInfo>>,
}

/// A code address.
#[derive(Clone)]
struct Place {
    image: Arc<CodeImage>,
    function: u32,
    pc: usize,
    /// The instruction's position, if the address is in a stub.
    instruction: Option<u32>,
    instance: InstanceId,
}

/// One frame of a [`WasmBacktrace`].
#[derive(Clone, Debug)]
pub struct FrameInfo {
    instance: InstanceId,
    module_name: Option<String>,
    func_index: u32,
    func_name: Option<String>,
    func_start: usize,
    instruction: Option<usize>,
    /// The reason why the instruction is unknown.
    problem: Option<String>,
    symbols: Vec<FrameSymbol>,
}

/// A source position of a frame, according to DWARF.
#[derive(Clone, Debug)]
pub struct FrameSymbol {
    pub(super) name: Option<String>,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
    pub(super) column: Option<u32>,
}

impl WasmBacktrace {
    /// The frames, innermost first. The first call looks them up, which may take a while for large
    /// modules.
    pub fn frames(&self) -> &[FrameInfo] {
        self.frames.get_or_init(|| resolve(&self.places))
    }

    /// Whether there is no WebAssembly frame.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The number of outer frames that were not kept.
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The instances of the frames, innermost first.
    #[cfg(test)]
    pub(super) fn instances(&self) -> impl Iterator<Item = InstanceId> {
        self.places.iter().map(|place| place.instance)
    }

    /// The functions' indices, each in its own module, without further lookups.
    pub(super) fn functions(&self) -> impl Iterator<Item = u32> {
        self.places.iter().map(|place| place.function)
    }

    /// Adds a code address in a function. A thread is there, or will return there.
    pub(super) fn push(&mut self, image: Arc<CodeImage>, function: u32, pc: usize, instance: InstanceId) {
        let instruction = image.stub_at(pc);
        self.places.push(Place { image, function, pc, instruction, instance });
    }

    pub(super) fn omit(&mut self) {
        self.omitted += 1;
    }
}

impl FrameInfo {
    /// The instance whose function the frame belongs to: see [`Instance::id`](crate::Instance::id).
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// The module's name in its name section.
    pub fn module_name(&self) -> Option<&str> {
        self.module_name.as_deref()
    }

    /// The function's index in its module.
    pub fn func_index(&self) -> u32 {
        self.func_index
    }

    /// The function's name in the name section.
    pub fn func_name(&self) -> Option<&str> {
        self.func_name.as_deref()
    }

    /// The instruction's offset in the binary module, in bytes; if the function was stopped before
    /// its first instruction, the offset of that one. `None` only after a defect of the compiler,
    /// which `Display` reports.
    pub fn module_offset(&self) -> Option<usize> {
        self.instruction
    }

    /// The instruction's offset from the start of the function's body, in bytes.
    pub fn func_offset(&self) -> Option<usize> {
        self.instruction?.checked_sub(self.func_start)
    }

    /// The source positions of the frame, innermost first: more than one if calls were inlined;
    /// empty without DWARF.
    pub fn symbols(&self) -> &[FrameSymbol] {
        &self.symbols
    }
}

impl FrameSymbol {
    /// The name of the source function.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The path of the source file.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The line, from 1.
    pub fn line(&self) -> Option<u32> {
        self.line
    }

    /// The column, from 1.
    pub fn column(&self) -> Option<u32> {
        self.column
    }
}

/// Resolves the addresses, reading each module and each function once.
fn resolve(places: &[Place]) -> Vec<FrameInfo> {
    let mut modules: HashMap<*const CodeImage, Module<'_>> = HashMap::new();
    let mut frames = Vec::with_capacity(places.len());
    for place in places {
        let module = modules.entry(Arc::as_ptr(&place.image));
        frames.push(module.or_insert_with(|| Module::of(&place.image)).frame(place));
    }
    frames
}

/// The module of a frame, and data read from it.
struct Module<'a> {
    image: &'a CodeImage,
    sections: Sections<'a>,
    lines: Option<Lines<'a>>,
    /// The positions of instructions, by function and version.
    positions: HashMap<(u32, usize), Result<Vec<Position>, ObserveError>>,
}

impl<'a> Module<'a> {
    fn of(image: &'a CodeImage) -> Self {
        let sections = Sections::of(&image.bytes);
        let lines = Lines::of(&sections);
        Self { image, sections, lines, positions: HashMap::new() }
    }

    fn frame(&mut self, place: &Place) -> FrameInfo {
        let index = place.function;
        let (instruction, problem) = match place.instruction {
            Some(instruction) => (Some(instruction as usize), None),
            None => self.instruction(index, place.pc),
        };
        let symbols = self.lines.as_ref().zip(instruction).map(|(lines, at)| lines.symbols(at as u64));
        FrameInfo {
            instance: place.instance,
            module_name: self.sections.module_name.map(str::to_owned),
            func_index: index,
            func_name: self.sections.function_name(index),
            func_start: self.image.body_range(index).start as usize,
            instruction,
            problem,
            symbols: symbols.unwrap_or_default(),
        }
    }

    /// The instruction at an address in a function, or why it is unknown.
    fn instruction(&mut self, index: u32, pc: usize) -> (Option<usize>, Option<String>) {
        let version = self.image.version_number(pc);
        let positions = self.positions.entry((index, version));
        match positions.or_insert_with(|| self.image.positions_at(pc, index)) {
            Ok(positions) => {
                let at = self.image.position_among(pc, positions).map(|at| at as usize);
                // In the prologue, the first instruction is about to be executed.
                (at.or_else(|| first_instruction(self.image, index)), None)
            }
            Err(error) => (None, Some(error.to_string())),
        }
    }
}

/// The offset in the module of a function's first instruction.
fn first_instruction(image: &CodeImage, index: u32) -> Option<usize> {
    let operators = image.body(index).get_operators_reader().ok()?;
    Some(operators.original_position() as usize)
}

impl fmt::Display for WasmBacktrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no wasm backtrace");
        }
        write!(f, "wasm backtrace:")?;
        for (number, frame) in self.frames().iter().enumerate() {
            write!(f, "\n{number:>5}: {frame}")?;
        }
        match self.omitted {
            0 => Ok(()),
            omitted => write!(f, "\n       and {omitted} more"),
        }
    }
}

impl fmt::Debug for WasmBacktrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.functions()).finish()
    }
}

/// `0x1a2b - module!function`, and a line for each source position.
impl fmt::Display for FrameInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(offset) = self.instruction {
            write!(f, "{offset:#8x} - ")?;
        }
        write!(f, "{}!", printable(self.module_name().unwrap_or("<unknown>")))?;
        match &self.func_name {
            Some(name) => write!(f, "{}", printable(name))?,
            None => write!(f, "<wasm function {}>", self.func_index)?,
        }
        if let Some(problem) = &self.problem {
            write!(f, " (instruction unknown: {problem})")?;
        }
        let several = self.symbols.len() > 1;
        for symbol in &self.symbols {
            write!(f, "\n                    at {symbol}")?;
            if several && let Some(name) = &symbol.name {
                write!(f, " ({})", printable(name))?;
            }
        }
        Ok(())
    }
}

/// `file:line:column`.
impl fmt::Display for FrameSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(self.file().unwrap_or("<unknown>")))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
            if let Some(column) = self.column.filter(|column| *column != 0) {
                write!(f, ":{column}")?;
            }
        }
        Ok(())
    }
}
