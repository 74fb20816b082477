//! Read access to the functions of a module: types, names, bodies, instructions.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use wasm_jit_codegen::is_control;
use wasmparser::{Operator, OperatorsReader};

use super::{Item, Module};
use crate::code::sections::Sections;
use crate::error::Error;
use crate::types::{FuncType, ImportType, ValType};

/// The contents of a module's name section.
#[derive(Debug)]
pub(super) struct Names {
    module: Option<Box<str>>,
    functions: HashMap<u32, Box<str>>,
}

impl Names {
    pub(super) fn of(module: &[u8]) -> Self {
        let Sections { module_name, function_names, .. } = Sections::of(module);
        let functions = function_names.into_iter().map(|(index, name)| (index, name.into()));
        Self { module: module_name.map(Into::into), functions: functions.collect() }
    }
}

impl Module {
    /// The module's name, if its name section has one.
    pub fn name(&self) -> Option<&str> {
        self.names().module.as_deref()
    }

    /// The module's functions in the order of their indices; imported ones come first.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = FunctionInfo<'_>> + '_ {
        (0..self.info().functions.len()).map(|index| FunctionInfo { module: self, index: index as u32 })
    }

    /// The function with this index, or `None` if there is none. Imports are counted.
    pub fn function(&self, index: u32) -> Option<FunctionInfo<'_>> {
        let exists = (index as usize) < self.info().functions.len();
        exists.then_some(FunctionInfo { module: self, index })
    }

    /// The index of the function that makes a call, by the call's return address
    /// ([`Bound::ReturnAddress`](crate::probes::Bound::ReturnAddress)); `None` if that is not in
    /// the code of the module's functions, as for calls from the host.
    pub fn function_at(&self, return_address: u64) -> Option<u32> {
        // The call may be the last instruction.
        self.code().function_at((return_address as usize).checked_sub(1)?)
    }
}

/// A function of a [`Module`], imported or defined.
#[derive(Clone, Copy, Debug)]
pub struct FunctionInfo<'m> {
    module: &'m Module,
    index: u32,
}

impl<'m> FunctionInfo<'m> {
    /// The function's index; imports are counted.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The function's type.
    pub fn ty(&self) -> FuncType {
        self.module.function_type(self.index)
    }

    /// The function's name in the name section, if there is one, unchanged: it may contain any
    /// characters.
    pub fn name(&self) -> Option<&'m str> {
        self.module.names().functions.get(&self.index).map(AsRef::as_ref)
    }

    /// The import that the function comes from, if it is imported.
    pub fn import(&self) -> Option<ImportType<'m>> {
        // At least as many imports come before it as functions.
        let imports = self.module.parsed().imports.get(self.index as usize..)?;
        let import = imports.iter().find(|import| import.item == Item::Func(self.index))?;
        Some(self.module.import_type(import))
    }

    /// The names under which the function is exported.
    pub fn exports(&self) -> impl Iterator<Item = &'m str> + use<'m> {
        let item = Item::Func(self.index);
        let exports = self.module.parsed().exports.iter();
        exports.filter(move |(_, exported)| *exported == item).map(|(name, _)| name.as_ref())
    }

    /// The function's body; `None` if the function is imported.
    pub fn body(&self) -> Option<FunctionBody<'m>> {
        let is_imported = self.index < self.module.info().imported_functions;
        (!is_imported).then_some(FunctionBody { module: self.module, index: self.index })
    }
}

/// The body of a function of a [`Module`].
///
/// ```
/// use wasm_jit::{Engine, Module, wasmparser::Operator};
///
/// let module = Module::new(&Engine::default(), "(module (func $add (param i32 i32) (result i32)
///     (i32.add (local.get 0) (local.get 1))))")?;
/// let add = module.functions().find(|function| function.name() == Some("add")).expect("it is there");
/// let body = add.body().expect("it is not imported");
/// let adds = body.instructions().filter(|instruction| matches!(instruction.operator(), Operator::I32Add));
/// assert_eq!(adds.count(), 1);
/// assert_eq!(body.instructions().count(), 4, "the end of the body is one, too");
/// # Ok::<(), wasm_jit::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FunctionBody<'m> {
    module: &'m Module,
    index: u32,
}

impl<'m> FunctionBody<'m> {
    /// The range of the body in the binary module, in bytes: the declarations of locals, then the
    /// instructions.
    pub fn range(&self) -> Range<usize> {
        let Range { start, end } = self.module.code().body_range(self.index);
        start as usize..end as usize
    }

    /// The body as encoded in the binary module: the bytes of [`range`](Self::range).
    pub fn bytes(&self) -> &'m [u8] {
        &self.module.bytes()[self.range()]
    }

    /// Size of the function's machine code, in bytes; 0 if it has not been compiled.
    pub fn code_size(&self) -> usize {
        let function = self.module.code().compiled(self.index);
        function.map_or(0, |function| (function.end - function.entry) as usize)
    }

    /// Whether the function has been compiled. It has, unless functions are compiled [when they are
    /// first called](crate::Config::lazy_compilation).
    pub fn is_compiled(&self) -> bool {
        self.module.code().compiled(self.index).is_some()
    }

    /// Compiles the function now, unless that has been done. Waits while another thread compiles
    /// it.
    ///
    /// # Errors
    /// As for the [first call](crate::Config::lazy_compilation) of the function.
    pub fn compile(&self) -> Result<(), Error> {
        Ok(self.module.code().ensure_compiled(self.index)?)
    }

    /// The types of the function's locals, without the parameters.
    pub fn locals(&self) -> impl Iterator<Item = ValType> + use<'m> {
        let groups = self.module.code().body(self.index).get_locals_reader().expect(VALIDATED);
        groups.into_iter().flat_map(|group| {
            let (count, ty) = group.expect(VALIDATED);
            std::iter::repeat_n(ValType::of(ty, self.module.info()), count as usize)
        })
    }

    /// The instructions in order, including the final `end`.
    pub fn instructions(&self) -> Instructions<'m> {
        let operators = self.module.code().body(self.index).get_operators_reader().expect(VALIDATED);
        Instructions { module: self.module, operators }
    }
}

const VALIDATED: &str = "the module was validated";

/// Reads the instructions of a body.
#[derive(Clone)]
pub struct Instructions<'m> {
    module: &'m Module,
    operators: OperatorsReader<'m>,
}

impl fmt::Debug for Instructions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instructions").field("offset", &self.operators.original_position()).finish()
    }
}

impl<'m> Iterator for Instructions<'m> {
    type Item = Instruction<'m>;

    fn next(&mut self) -> Option<Instruction<'m>> {
        if self.operators.eof() {
            return None;
        }
        let offset = self.operators.original_position() as usize;
        let operator = self.operators.read().expect(VALIDATED);
        let end = self.operators.original_position() as usize;
        Some(Instruction { offset, operator, bytes: &self.module.bytes()[offset..end] })
    }
}

/// An instruction in the body of a function.
#[derive(Clone, Debug)]
pub struct Instruction<'m> {
    offset: usize,
    operator: Operator<'m>,
    bytes: &'m [u8],
}

impl<'m> Instruction<'m> {
    /// The instruction's offset in the binary module, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The operator, with its immediates.
    pub fn operator(&self) -> &Operator<'m> {
        &self.operator
    }

    /// Whether the instruction begins or ends a block, branches, or calls.
    pub fn is_control(&self) -> bool {
        is_control(&self.operator)
    }

    /// The instruction's encoding in the binary module.
    pub fn bytes(&self) -> &'m [u8] {
        self.bytes
    }
}
