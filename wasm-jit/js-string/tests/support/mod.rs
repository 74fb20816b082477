//! A program that exports each function of `wasm:js-string`, wrapped in a call.

use wasm_jit::{
    ArrayRef, ArrayType, Engine, Error, FieldType, Instance, Linker, Module, Mutability, StorageType, Store,
    Val,
};
use wasm_jit_js_string::{JsString, add_to_linker};

/// Name, parameters and result of each function, as in the proposal's overview. `$array` is
/// `(array (mut i16))`.
pub(crate) const FUNCTIONS: [(&str, &[&str], &str); 13] = [
    ("cast", &["externref"], "(ref extern)"),
    ("test", &["externref"], "i32"),
    ("fromCharCodeArray", &["(ref null $array)", "i32", "i32"], "(ref extern)"),
    ("intoCharCodeArray", &["externref", "(ref null $array)", "i32"], "i32"),
    ("fromCharCode", &["i32"], "(ref extern)"),
    ("fromCodePoint", &["i32"], "(ref extern)"),
    ("charCodeAt", &["externref", "i32"], "i32"),
    ("codePointAt", &["externref", "i32"], "i32"),
    ("length", &["externref"], "i32"),
    ("concat", &["externref", "externref"], "(ref extern)"),
    ("substring", &["externref", "i32", "i32"], "(ref extern)"),
    ("equals", &["externref", "externref"], "i32"),
    ("compare", &["externref", "externref"], "i32"),
];

/// The program.
fn text() -> String {
    let mut imports = String::new();
    let mut functions = String::new();
    for (name, params, result) in FUNCTIONS {
        let ty = format!("(param {}) (result {result})", params.join(" "));
        let arguments: String = (0..params.len()).map(|index| format!("(local.get {index})")).collect();
        imports += &format!(r#"(import "wasm:js-string" "{name}" (func ${name} {ty}))"#);
        functions += &format!(r#"(func (export "{name}") {ty} (call ${name} {arguments}))"#);
    }
    format!("(module (type $array (array (mut i16))) {imports} {functions})")
}

/// An instance of the program.
pub(crate) struct Program {
    store: Store<()>,
    instance: Instance,
    array: ArrayType,
}

impl Program {
    pub(crate) fn new() -> Self {
        let engine = Engine::default();
        let module = Module::new(&engine, text()).expect("the program is valid");
        let mut linker = Linker::new(&engine);
        add_to_linker(&mut linker).expect("nothing is defined");
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &module).expect("the types are the same");
        let element = FieldType::new(StorageType::I16, Mutability::Var);
        let array = engine.new_array_type(element).expect("it refers to no type");
        Self { store, instance, array }
    }

    /// Calls a function.
    pub(crate) fn call(&mut self, name: &str, arguments: &[Val]) -> Result<Val, Error> {
        let function = self.instance.get_func(&self.store, name).expect("the program exports it");
        let mut results = [Val::I32(0)];
        function.call(&mut self.store, arguments, &mut results)?;
        let [result] = results;
        Ok(result)
    }

    /// An array of code units.
    pub(crate) fn array(&mut self, units: &[u16]) -> ArrayRef {
        let units: Vec<Val> = units.iter().map(|unit| Val::I32((*unit).into())).collect();
        ArrayRef::from_elements(&mut self.store, &self.array, &units).expect("there is room")
    }

    /// The elements of an array.
    pub(crate) fn units(&self, array: &ArrayRef) -> Vec<u16> {
        array.elements(&self.store).expect("code units").to_vec()
    }
}

/// The code units of a result that is a string.
#[track_caller]
pub(crate) fn units_of(value: &Val) -> Vec<u16> {
    let value = value.unwrap_extern_ref().expect("not null");
    JsString::from_extern(value).expect("a string").units().to_vec()
}
