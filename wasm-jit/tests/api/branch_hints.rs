//! The custom section with branch hints: it changes code, and nothing else.

use wasm_jit::wasmparser::{Parser, Payload};
use wasm_jit::{Engine, Instance, Module, Store, TypedFunc};

const PROGRAM: &str = r#"(module
    (func $likely (export "f") (param i32) (result i32)
        (block (result i32)
            (br_if 0 (i32.const 7) (local.get 0))
            (drop) (i32.const 8))))"#;

/// The offset of `br_if` in the body.
const BR_IF: u8 = 7;

/// The program with a section of this content in front of its code.
fn with_section(content: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"metadata.code.branch_hint";
    const CODE: u8 = 10;
    let module = wat::parse_str(PROGRAM).unwrap();
    let mut sections =
        Parser::new(0).parse_all(&module).filter_map(|payload| Payload::as_section(&payload.unwrap()));
    let (_, code) = sections.find(|(id, _)| *id == CODE).unwrap();
    // In front of it are the section's number and a size of one byte.
    let (before, after) = module.split_at(code.start as usize - 2);
    let head = [0, (1 + NAME.len() + content.len()) as u8, NAME.len() as u8];
    [before, &head, NAME, content, after].concat()
}

/// The code as text, without offsets in the module and hints.
fn code(module: &Module) -> String {
    let mut text = Vec::new();
    module.write_objdump(|_, _| true, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let is_code = |line: &&str| !line.contains("bytes of WebAssembly") && !line.contains("(@");
    text.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

/// Compiles a program, and checks its results.
fn compiled(bytes: &[u8]) -> String {
    let module = Module::from_binary(&Engine::default(), bytes).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let f: TypedFunc<i32, i32> = instance.get_typed_func(&mut store, "f").unwrap();
    assert_eq!([0, 1].map(|argument| f.call(&mut store, argument).unwrap()), [8, 7]);
    code(&module)
}

#[test]
fn a_hint_changes_the_code() {
    let [unlikely, likely] = [0, 1].map(|taken| compiled(&with_section(&[1, 0, 1, BR_IF, 1, taken])));
    let without = compiled(&wat::parse_str(PROGRAM).unwrap());
    assert_eq!(unlikely, without, "what is assumed without a hint");
    assert_ne!(likely, without);
}

/// A custom section does not make a module invalid.
#[test]
fn malformed_hints_are_ignored() {
    let without = compiled(&wat::parse_str(PROGRAM).unwrap());
    let malformed: [&[u8]; 9] = [
        &[],
        &[0xff; 12],
        // Incomplete, or followed by something.
        &[1, 0, 1, BR_IF, 1],
        &[1, 0, 1, BR_IF, 1, 1, 0],
        // Of another length or value.
        &[1, 0, 1, BR_IF, 2, 1, 1],
        &[1, 0, 1, BR_IF, 1, 2],
        // Not in ascending order.
        &[1, 0, 2, BR_IF, 1, 1, BR_IF, 1, 1],
        // Of other places.
        &[1, 0, 2, 0, 1, 1, 0x7f, 1, 1],
        &[1, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, BR_IF, 1, 1],
    ];
    for content in malformed {
        assert_eq!(compiled(&with_section(content)), without, "{content:x?}");
    }
}
