//! Names in messages: a module must not be able to send control characters to the user's terminal.

use wasm_jit::{Engine, Error, Func, Linker, Module, Store};

/// Clears the screen, sets the window title, and reverses the direction of the text.
const HOSTILE: &str = r"\1b[2J\1b]0;owned\07\0d\e2\80\ae\c2\9b";

#[track_caller]
fn check_harmless(message: &str) {
    let acts = |c: char| (c != '\n' && c.is_control()) || c == '\u{202e}';
    assert!(!message.contains(acts), "{message:?}");
}

#[track_caller]
fn check(error: Error) {
    let message = error.to_string();
    check_harmless(&message);
    assert!(message.contains(r"\u{1b}[2J\u{1b}]0;owned\u{7}\r\u{202e}\u{9b}"), "{message}");
}

#[test]
fn names_in_messages_are_escaped() {
    let engine = Engine::default();
    let text = |text: &str| text.replace("NAME", HOSTILE);
    let module = Module::new(&engine, text(r#"(module (import "NAME" "NAME" (func)))"#)).unwrap();
    let import = module.imports().next().unwrap();
    let (first, second) = (import.module(), import.name());
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    check(linker.instantiate(&mut store, &module).unwrap_err());
    linker.func_wrap(first, second, |_: i32| ()).unwrap();
    check(linker.func_wrap(first, second, |_: i32| ()).unwrap_err());
    check(linker.instantiate(&mut store, &module).unwrap_err());
    let func = Func::wrap(&mut store, |_: i32| ()).unwrap();
    check(wasm_jit::Instance::new(&mut store, &module, &[func.into()]).unwrap_err());
    let empty = Module::new(&engine, "(module)").unwrap();
    let empty = linker.instantiate(&mut store, &empty).unwrap();
    check(empty.get_typed_func::<(), ()>(&mut store, first).unwrap_err());
    let duplicate = text(r#"(module (func) (export "NAME" (func 0)) (export "NAME" (func 0)))"#);
    check(Module::from_binary(&engine, &wat::parse_str(duplicate).unwrap()).unwrap_err());
}

#[test]
fn lines_of_a_text_that_are_shown_in_messages_are_escaped() {
    let name = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\u{202e}\u{9b}";
    let error = Module::new(&Engine::default(), format!("(module (func {name} (unknown)))")).unwrap_err();
    let message = error.to_string();
    assert!(message.contains('\n') && message.contains(r"\u{1b}"), "{message}");
    check_harmless(&message);
}
