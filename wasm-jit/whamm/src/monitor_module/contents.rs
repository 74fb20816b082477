//! The contents of a monitor that are needed to evaluate its functions.

use std::collections::HashMap;
use std::rc::Rc;

use wasm_jit::wasmparser::{BlockType, ExternalKind, Operator, Parser, Payload, TypeRef, ValType};
use wasm_jit::{AsContextMut, Instance, Instruction, Module, Val};

/// Width of a number that is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Width {
    W32,
    W64,
}

impl Width {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::W32 => 4,
            Self::W64 => 8,
        }
    }

    /// The number modulo two to the power of the width.
    pub(super) fn wrap(self, value: u64) -> u64 {
        match self {
            Self::W32 => value & u64::from(u32::MAX),
            Self::W64 => value,
        }
    }
}

/// The use of a global.
#[derive(Clone, Copy, Debug)]
pub(super) enum GlobalUse {
    /// The global never changes: these bits.
    Constant(u64),
    /// An integer that the monitor does not import, and that changes.
    Own(Width),
    /// A global that others may change, or of another type.
    Other,
}

/// A function's code.
#[derive(Debug)]
pub(super) struct Code<'m> {
    pub(super) instructions: Box<[Instruction<'m>]>,
    /// For each `block`, `loop`, `if` and `else`, by its index: the `else` or `end` that ends the
    /// part, and the `end`.
    pub(super) ends: HashMap<usize, (usize, usize)>,
    pub(super) locals: usize,
    pub(super) results: usize,
}

impl<'m> Code<'m> {
    fn of(module: &'m Module, function: u32) -> Option<Self> {
        let function = module.function(function)?;
        let body = function.body()?;
        let instructions: Box<[Instruction<'m>]> = body.instructions().collect();
        let mut ends = HashMap::new();
        let mut open: Vec<Vec<usize>> = Vec::new();
        for (number, instruction) in instructions.iter().enumerate() {
            match instruction.operator() {
                Operator::Block { .. }
                | Operator::Loop { .. }
                | Operator::If { .. }
                | Operator::TryTable { .. }
                | Operator::Try { .. } => open.push(vec![number]),
                Operator::Else => open.last_mut()?.push(number),
                Operator::End => {
                    let Some(parts) = open.pop() else { continue };
                    for (part, begin) in parts.iter().enumerate() {
                        ends.insert(*begin, (parts.get(part + 1).copied().unwrap_or(number), number));
                    }
                }
                _ => {}
            }
        }
        let (locals, results) = (body.locals().count(), function.ty().results().len());
        Some(Self { instructions, ends, locals, results })
    }
}

/// The number of values at the end of a block; `None` for types with parameters.
pub(super) fn block_results(ty: BlockType) -> Option<usize> {
    match ty {
        BlockType::Empty => Some(0),
        BlockType::Type(_) => Some(1),
        BlockType::FuncType(_) => None,
    }
}

/// A monitor's memories, globals and functions.
#[derive(Debug)]
pub(super) struct Contents<'m> {
    module: &'m Module,
    /// The size in bytes of each memory that is not imported and belongs to one thread.
    memories: Vec<Option<u64>>,
    globals: Vec<GlobalUse>,
    /// The functions by the names of their exports.
    exports: HashMap<&'m str, u32>,
    code: HashMap<u32, Option<Rc<Code<'m>>>>,
}

impl<'m> Contents<'m> {
    /// The contents of a monitor and its instance.
    pub(super) fn of(module: &'m Module, instance: &Instance, mut store: impl AsContextMut) -> Self {
        let (mut memories, mut globals, mut exports) = (Vec::new(), Vec::new(), HashMap::new());
        let mut global = |is_own: bool, ty: wasm_jit::wasmparser::GlobalType| {
            let width = match ty.content_type {
                ValType::I32 => Some(Width::W32),
                ValType::I64 => Some(Width::W64),
                _ => None,
            };
            let index = globals.len() as u32;
            let value = instance.global(&store, index).map(|global| global.get(&mut store));
            globals.push(match (width, value) {
                (Some(_), Some(Val::I32(value))) if !ty.mutable => GlobalUse::Constant(value as u32 as u64),
                (Some(_), Some(Val::I64(value))) if !ty.mutable => GlobalUse::Constant(value as u64),
                (Some(width), _) if ty.mutable && is_own => GlobalUse::Own(width),
                _ => GlobalUse::Other,
            });
        };
        for payload in Parser::new(0).parse_all(module.bytes()) {
            match payload.expect("the module was validated") {
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        match import.expect("the module was validated").ty {
                            TypeRef::Global(ty) => global(false, ty),
                            TypeRef::Memory(_) => memories.push(false),
                            _ => {}
                        }
                    }
                }
                Payload::MemorySection(section) => {
                    memories.extend(section.into_iter().map(|ty| ty.is_ok_and(|ty| !ty.shared)));
                }
                Payload::GlobalSection(section) => {
                    for ty in section {
                        global(true, ty.expect("the module was validated").ty);
                    }
                }
                Payload::ExportSection(section) => {
                    let section = section.into_iter().flatten();
                    let functions = section.filter(|export| export.kind == ExternalKind::Func);
                    exports.extend(functions.map(|export| (export.name, export.index)));
                }
                Payload::CodeSectionStart { .. } => break,
                _ => {}
            }
        }
        let size = |(index, is_own): (usize, bool)| {
            let memory = instance.memory(&store, index as u32).filter(|_| is_own)?;
            Some(memory.data_size(&store) as u64)
        };
        let memories = memories.into_iter().enumerate().map(size).collect();
        Self { module, memories, globals, exports, code: HashMap::new() }
    }

    /// Whether the bytes are in a memory that the monitor does not import. It never shrinks.
    pub(super) fn has(&self, memory: u32, address: u64, bytes: u64) -> bool {
        let size = self.memories.get(memory as usize).copied().flatten();
        size.is_some_and(|size| address.checked_add(bytes).is_some_and(|end| end <= size))
    }

    pub(super) fn global(&self, index: u32) -> GlobalUse {
        self.globals.get(index as usize).copied().unwrap_or(GlobalUse::Other)
    }

    /// The code of a function; `None` if it is imported.
    pub(super) fn code(&mut self, function: u32) -> Option<Rc<Code<'m>>> {
        let module = self.module;
        self.code.entry(function).or_insert_with(|| Code::of(module, function).map(Rc::new)).clone()
    }

    /// The number of parameters of a function.
    pub(super) fn parameters(&self, function: u32) -> Option<usize> {
        Some(self.module.function(function)?.ty().params().len())
    }

    /// The exported function of this name.
    pub(super) fn exported(&self, name: &str) -> Option<u32> {
        self.exports.get(name).copied()
    }
}
