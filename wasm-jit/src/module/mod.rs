//! Modules: decoding, validation, compilation.
//!
//! 1. The text format is converted to a binary module (the crate wat).
//! 2. `parse.rs` decodes and validates everything but function bodies. The result is a
//!    [`ModuleInfo`], which has all declarations that the compiler needs, and the segments
//!    (`data.rs`), exports and constant expressions (`const_expr.rs`) that instantiation uses.
//! 3. Either [`compile_all`] validates and compiles the bodies, or [`compile_lazily`] validates
//!    them, and each function is compiled when it is first called.
//!
//! A module that was compiled before is loaded instead (`precompiled/`).
//!
//! The binary module is kept: names, lines and positions of instructions are looked up in it on
//! demand.

mod const_expr;
mod data;
mod functions;
mod inspect;
pub(crate) mod parse;
mod precompiled;

use std::borrow::Cow;
use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

pub(crate) use const_expr::{ConstExpr, ConstSource, NewElements};
use functions::Names;
pub use functions::{FunctionBody, FunctionInfo, Instruction, Instructions};
pub(crate) use parse::{Elements, Import, Item, Parsed, SegmentMode};

use bytes::Bytes;
use wasm_jit_codegen::ModuleInfo;
use wordpatch::internal;

use crate::code::{CodeImage, compile_all, compile_lazily};
use crate::engine::{Engine, TypeId};
use crate::error::Error;
use crate::object_type::ObjectType;
use crate::types::{
    ExportType, ExternType, FuncType, GlobalType, ImportType, MemoryType, RefType, TableType, TagType,
};

/// A compiled module. A clone is the same module; threads may share it, and instantiate it in any
/// number of stores.
#[derive(Clone, Debug)]
pub struct Module(Arc<ModuleInner>);

#[derive(Debug)]
struct ModuleInner {
    engine: Engine,
    parsed: Parsed,
    code: Arc<CodeImage>,
    /// Read on demand.
    names: OnceLock<Names>,
}

/// The first bytes of a binary module.
const MAGIC: &[u8] = b"\0asm";

/// Decodes, validates and compiles a binary module, with all of its functions.
fn compile_binary(engine: &Engine, bytes: Bytes) -> Result<(Parsed, Arc<CodeImage>), Error> {
    let (mut parsed, bodies) = parse::parse(engine, &bytes)?;
    let info = Arc::new(std::mem::take(&mut parsed.info));
    let code = compile_all(info, bytes.clone(), &bodies, engine.compile_threads().get())?;
    Ok((parsed, code))
}

/// Decodes and validates a binary module, whose functions are compiled when they are first called.
fn compile_binary_lazily(engine: &Engine, bytes: Bytes) -> Result<(Parsed, Arc<CodeImage>), Error> {
    let (mut parsed, bodies) = parse::parse(engine, &bytes)?;
    parsed.info.settings.patches_calls = true;
    let info = Arc::new(std::mem::take(&mut parsed.info));
    let code = compile_lazily(info, bytes.clone(), &bodies, engine.compile_threads().get())?;
    Ok((parsed, code))
}

impl Module {
    /// Compiles a module in binary or text format.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Unsupported`] and [`Error::Text`] describe a problem of the
    /// module, [`Error::Limit`] and [`Error::TooMuchCode`] the limit of the compiler that it
    /// exceeds; [`Error::Code`] means that the system refused memory.
    pub fn new(engine: &Engine, bytes: impl AsRef<[u8]>) -> Result<Self, Error> {
        let bytes = bytes.as_ref();
        match bytes.starts_with(MAGIC) {
            true => Self::compile(engine, bytes.into()),
            false => Self::from_text(engine, None, bytes),
        }
    }

    /// Compiles a binary module.
    ///
    /// # Errors
    /// As for [`Module::new`].
    pub fn from_binary(engine: &Engine, bytes: &[u8]) -> Result<Self, Error> {
        Self::compile(engine, bytes.into())
    }

    /// Compiles a binary module, which keeps these bytes: they are not copied.
    ///
    /// # Errors
    /// As for [`Module::new`].
    pub fn from_owned_binary(engine: &Engine, bytes: Vec<u8>) -> Result<Self, Error> {
        Self::compile(engine, bytes.into())
    }

    /// Compiles the module in a file, in binary or text format.
    ///
    /// # Errors
    /// As for [`Module::new`], and [`Error::Read`] if the file cannot be read.
    pub fn from_file(engine: &Engine, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        match bytes.starts_with(MAGIC) {
            true => Self::compile(engine, bytes.into()),
            false => Self::from_text(engine, Some(path), &bytes),
        }
    }

    fn from_text(engine: &Engine, path: Option<&Path>, text: &[u8]) -> Result<Self, Error> {
        if Self::is_precompiled(text) {
            let message = "this is a precompiled module: see Module::deserialize".to_owned();
            return Err(Error::Text { message });
        }
        let neither = "neither a binary module nor a text".to_owned();
        let text = str::from_utf8(text).map_err(|_| Error::Text { message: neither })?;
        let bytes = wat::Parser::new().parse_str(path, text);
        Self::compile(engine, bytes.map_err(|error| Error::Text { message: error.to_string() })?.into())
    }

    fn compile(engine: &Engine, bytes: Cow<'_, [u8]>) -> Result<Self, Error> {
        if let Some(cache) = engine.cache() {
            return precompiled::cached::module(engine, cache, bytes);
        }
        let bytes = Bytes::from(bytes.into_owned());
        let (parsed, code) = match engine.compiles_lazily() {
            true => compile_binary_lazily(engine, bytes)?,
            false => compile_binary(engine, bytes)?,
        };
        Ok(Self::of(engine, parsed, code))
    }

    /// The module with this code, none of which has run.
    fn of(engine: &Engine, parsed: Parsed, code: Arc<CodeImage>) -> Self {
        engine.add_image(&code);
        Self(Arc::new(ModuleInner { engine: engine.clone(), parsed, code, names: OnceLock::new() }))
    }

    /// Checks that a binary module is valid and supported, without compiling it.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Unsupported`].
    pub fn validate(engine: &Engine, bytes: &[u8]) -> Result<(), Error> {
        let (_, bodies) = parse::parse(engine, bytes)?;
        let mut allocations = Default::default();
        for (validate, body) in bodies {
            let mut validator = validate.into_validator(allocations);
            validator.validate(&body)?;
            allocations = validator.into_allocations();
        }
        Ok(())
    }

    /// The engine that compiled the module.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The module's imports, in order.
    pub fn imports(&self) -> impl ExactSizeIterator<Item = ImportType<'_>> + '_ {
        self.parsed().imports.iter().map(|import| self.import_type(import))
    }

    fn import_type<'m>(&self, import: &'m Import) -> ImportType<'m> {
        ImportType { module: &import.module, name: &import.name, ty: self.type_of(import.item) }
    }

    /// The module's exports, in order.
    pub fn exports(&self) -> impl ExactSizeIterator<Item = ExportType<'_>> + '_ {
        self.parsed().exports.iter().map(|(name, item)| ExportType { name, ty: self.type_of(*item) })
    }

    /// The type of the export of this name, or `None` if there is none.
    pub fn get_export(&self, name: &str) -> Option<ExternType> {
        self.export(name).map(|item| self.type_of(item))
    }

    /// The types of the module's memories, imported ones first.
    ///
    /// ```
    /// use wasm_jit::{Engine, MemoryType, Module};
    ///
    /// let text = r#"(module (import "m" "m" (memory i64 1)) (memory 2 3))"#;
    /// let module = Module::new(&Engine::default(), text)?;
    /// let expected = [MemoryType::new64(1, None), MemoryType::new(2, Some(3))];
    /// assert!(module.memories().eq(expected));
    /// # Ok::<(), wasm_jit::Error>(())
    /// ```
    pub fn memories(&self) -> impl ExactSizeIterator<Item = MemoryType> + '_ {
        self.info().memories.iter().map(|ty| MemoryType::of(*ty))
    }

    /// The start function, which runs at instantiation, if there is one.
    pub fn start_function(&self) -> Option<FunctionInfo<'_>> {
        self.function(self.parsed().start?)
    }

    pub(crate) fn export(&self, name: &str) -> Option<Item> {
        let index = *self.parsed().export_index.get(name)?;
        Some(self.parsed().exports[index].1)
    }

    /// The type of one of its items.
    pub(crate) fn type_of(&self, item: Item) -> ExternType {
        let info = self.info();
        match item {
            Item::Func(index) => ExternType::Func(self.function_type(index)),
            Item::Table(index) => ExternType::Table(TableType::of(info.tables[index as usize], info)),
            Item::Memory(index) => ExternType::Memory(MemoryType::of(info.memories[index as usize])),
            Item::Global(index) => ExternType::Global(GlobalType::of(info.globals[index as usize], info)),
            Item::Tag(index) => ExternType::Tag(TagType::new(self.tag_type(index))),
        }
    }

    /// Converts a reference type in an instruction of the module; `None` if the module has no such
    /// type. See [`Instruction::operator`].
    pub fn ref_type(&self, ty: wasmparser::RefType) -> Option<RefType> {
        RefType::from_wasm(ty, self.info())
    }

    pub(crate) fn tag_type(&self, tag: u32) -> FuncType {
        self.func_type(self.info().tags[tag as usize])
    }

    pub(crate) fn function_type(&self, function: u32) -> FuncType {
        self.func_type(self.info().functions[function as usize])
    }

    /// Whether both are one module.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The type of this index.
    pub(crate) fn func_type(&self, type_index: u32) -> FuncType {
        self.engine().registered_type(self.type_id(type_index).get())
    }

    /// The engine-wide id of one of its types.
    pub(crate) fn type_id(&self, type_index: u32) -> &TypeId {
        &self.parsed().type_ids[type_index as usize]
    }

    /// One of its types at run time.
    pub(crate) fn object_type(&self, type_index: u32) -> &ObjectType {
        self.type_id(type_index).object_type()
    }

    pub(crate) fn parsed(&self) -> &Parsed {
        &self.0.parsed
    }

    pub(crate) fn code(&self) -> &Arc<CodeImage> {
        &self.0.code
    }

    pub(crate) fn info(&self) -> &ModuleInfo {
        &self.0.code.module
    }

    fn names(&self) -> &Names {
        self.0.names.get().unwrap_or_else(|| {
            // A child must not inherit a half-made value.
            let _no_forks = internal::no_forks();
            self.0.names.get_or_init(|| Names::of(self.bytes()))
        })
    }

    /// The binary module. If the module was in text format, this is the result of its conversion.
    pub fn bytes(&self) -> &[u8] {
        &self.0.code.bytes
    }
}
