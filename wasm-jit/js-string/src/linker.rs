//! Defines the functions and constants in a linker.

use wasm_jit::{
    AsContextMut, Error, ExternType, FieldType, FuncType, Global, GlobalType, HeapType, Linker, Module,
    Mutability, RefType, StorageType, ValType,
};

use super::builtins;
use super::string::JsString;

/// The first name of imports of the string functions.
pub const MODULE: &str = "wasm:js-string";

/// The type of a non-null string.
const STRING: ValType = ValType::Ref(RefType::new(false, HeapType::Extern));

/// Defines the functions of [`MODULE`] in a linker. A module must import them with the types of the
/// proposal: the array type must be alone in its recursion group.
///
/// # Errors
/// [`Error::DuplicateDefinition`] if the linker already has one of them.
pub fn add_to_linker<T: 'static>(linker: &mut Linker<T>) -> Result<(), Error> {
    let element = FieldType::new(StorageType::I16, Mutability::Var);
    let array = linker.engine().new_array_type(element)?.heap_type();
    let array = ValType::Ref(RefType::new(true, array));
    let from_array = FuncType::new([array, ValType::I32, ValType::I32], [STRING]);
    let into_array = FuncType::new([ValType::EXTERNREF, array, ValType::I32], [ValType::I32]);

    linker
        .func_wrap(MODULE, "cast", builtins::cast)?
        .func_wrap(MODULE, "test", builtins::test)?
        .func_wrap_as(MODULE, "fromCharCodeArray", from_array, builtins::from_char_code_array::<T>)?
        .func_wrap_as(MODULE, "intoCharCodeArray", into_array, builtins::into_char_code_array::<T>)?
        .func_wrap(MODULE, "fromCharCode", builtins::from_char_code::<T>)?
        .func_wrap(MODULE, "fromCodePoint", builtins::from_code_point::<T>)?
        .func_wrap(MODULE, "charCodeAt", builtins::char_code_at)?
        .func_wrap(MODULE, "codePointAt", builtins::code_point_at)?
        .func_wrap(MODULE, "length", builtins::length)?
        .func_wrap(MODULE, "concat", builtins::concat::<T>)?
        .func_wrap(MODULE, "substring", builtins::substring::<T>)?
        .func_wrap(MODULE, "equals", builtins::equals)?
        .func_wrap(MODULE, "compare", builtins::compare)?;
    Ok(())
}

/// Defines the string constants of a module for a store: each global that it imports from
/// `constants` is immutable, and its value is the import's second name as a string. (In JavaScript
/// this is called `importedStringConstants`.) Names that the linker already has are not redefined,
/// so that several modules can share constants.
///
/// # Errors
/// As for [`Global::new`] and [`Linker::define`].
pub fn define_constants<T: 'static>(
    linker: &mut Linker<T>,
    mut store: impl AsContextMut<Data = T>,
    module: &Module,
    constants: &str,
) -> Result<(), Error> {
    let ty = GlobalType::new(STRING, Mutability::Const);
    for import in module.imports() {
        let is_constant = import.module() == constants && matches!(import.ty(), ExternType::Global(_));
        if !is_constant || linker.get(&mut store, constants, import.name())?.is_some() {
            continue;
        }
        let global = Global::new(&mut store, ty, JsString::from(import.name()).into())?;
        linker.define(store.as_context(), constants, import.name(), global)?;
    }
    Ok(())
}
