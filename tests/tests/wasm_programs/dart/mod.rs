//! Dart's formatter, compiled to WebAssembly with garbage collection, formats a file.
//!
//! It is written for a host with JavaScript: its strings are values of the host, of which it
//! imports some three thousand as globals. `functions.rs` has the functions that it calls for this
//! workload; a call of another import is an error.

mod functions;
mod host;

use std::fs;

use tests::repo_root;
use wasm_jit::{Engine, ExternType, Func, Global, Instance, Linker, Module, Store, Val};

use super::programs;
use host::{Host, Js};

/// Converts between the two representations of a reference, which the host does for JavaScript.
const CONVERSIONS: &str = r#"(module
    (func (export "internalize") (param externref) (result anyref) (any.convert_extern (local.get 0)))
    (func (export "externalize") (param anyref) (result externref) (extern.convert_any (local.get 0))))"#;

struct Formatter {
    store: Store<Host>,
    instance: Instance,
}

impl Formatter {
    fn new() -> Self {
        let path = programs(&["dartfmt"]).join("dart-fmt.wasm");
        let engine = Engine::default();
        let module = Module::from_file(&engine, &path).expect("the module is accepted");
        let conversions = Module::new(&engine, CONVERSIONS).expect("the module is accepted");
        let mut store = Store::new(&engine, Host::default());
        let conversions = Instance::new(&mut store, &conversions, &[]).expect("nothing is imported");
        let conversion = |store: &Store<Host>, name| conversions.get_func(store, name).expect("an export");
        let (internalize, externalize) =
            (conversion(&store, "internalize"), conversion(&store, "externalize"));
        store.data_mut().conversions = Some((internalize, externalize));

        let mut linker = Linker::new(&engine);
        for import in module.imports() {
            let (from, name) = (import.module(), import.name());
            match import.ty() {
                ExternType::Global(ty) if from == "S" => {
                    let global = Global::new(&mut store, *ty, Js::text(name).into()).expect("a string");
                    linker.define(&store, from, name, global).expect("no name is imported twice");
                }
                ExternType::Func(ty) => {
                    if let Some(function) = functions::function(from, name) {
                        linker.func_new(from, name, ty.clone(), function).expect("no name is imported twice");
                    }
                }
                _ => panic!("{from} {name} is neither a string nor a function"),
            }
        }
        linker.define_unknown_functions_as_errors(&module);
        let instance = linker.instantiate(&mut store, &module).expect("it starts");
        let mut formatter = Self { store, instance };
        let main = formatter.func("$invokeMain");
        main.call(&mut formatter.store, &[Js::array([]).into()], &mut []).expect("main returns");
        formatter
    }

    fn func(&self, name: &str) -> Func {
        self.instance.get_func(&self.store, name).unwrap_or_else(|| panic!("{name} is exported"))
    }

    /// The text formatted, or the message why it cannot be.
    fn format(&mut self, text: &str, name: &str, options: &str) -> Result<String, String> {
        let closure = self.store.data().formatter.clone().expect("main has left its function");
        let (internalize, _) = self.store.data().conversions.expect("set above");
        let mut function = [Val::I32(0)];
        internalize.call(&mut self.store, &[closure], &mut function).expect("a reference is converted");
        let [function] = function;
        let mut result = [Val::ExternRef(None)];
        let arguments =
            [function, Val::I32(3), Js::text(text).into(), Js::text(name).into(), Js::text(options).into()];
        // The module exports, under the name of the import that wraps a closure, what calls it.
        self.func("_186").call(&mut self.store, &arguments, &mut result).expect("it returns");
        let Some(Js::Object(object)) = Js::of(&result[0]) else { panic!("{result:?} is no object") };
        let field = |name| object.lock().expect("no thread panicked").get(name).cloned();
        match field("success").as_ref().and_then(Js::of) {
            Some(Js::Bool(true)) => Ok(host::string(&field("code").expect("the text"))),
            _ => Err(host::string(&field("error").expect("a message"))),
        }
    }
}

#[test]
fn dart_formats_a_file() {
    let mut formatter = Formatter::new();
    let messy =
        fs::read_to_string(repo_root().join("tests/programs/wasm/messy.dart")).expect("a file of ours");
    let expected =
        fs::read_to_string(repo_root().join("tests/fixtures/wasm/dart_fmt.txt")).expect("a file of ours");
    let mut left = String::new();
    for options in [r#"{"lineEnding":"\n"}"#, r#"{"lineEnding":"\n","pageWidth":40}"#] {
        left += &format!("# messy.dart {options}\n");
        left += &formatter.format(&messy, "messy.dart", options).expect("it has no errors");
    }
    let error = formatter.format("class {", "wrong.dart", r#"{"lineEnding":"\n"}"#).expect_err("no class");
    left += &format!("# wrong.dart\n{error}\n");
    assert_eq!(left, expected);
    // What is formatted stays as it is, however much garbage there is.
    let options = r#"{"lineEnding":"\n"}"#;
    let once = formatter.format(&messy, "messy.dart", options).expect("it has no errors");
    for _ in 0..100 {
        assert_eq!(formatter.format(&once, "messy.dart", options).as_ref(), Ok(&once));
    }
}
