//! Inspection of modules: functions, names, bodies, instructions.

use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, FuncType, Module, ValType};

const TEXT: &str = r#"(module $shapes
    (import "host" "log" (func $log (param i32)))
    (func $area (export "area") (export "size") (param $width i32) (param $height i32) (result i32)
        (local $product i32) (local f64 f64)
        (local.set $product (i32.mul (local.get $width) (local.get $height)))
        (call $log (local.get $product))
        (local.get $product))
    (func (result f32) (f32.const 1.5)))"#;

fn module() -> Module {
    Module::new(&Engine::default(), TEXT).unwrap()
}

#[test]
fn functions_come_by_index_with_names_and_types() {
    let module = module();
    assert_eq!(module.name(), Some("shapes"));
    let indices: Vec<u32> = module.functions().map(|function| function.index()).collect();
    assert_eq!(indices, [0, 1, 2]);
    let names: Vec<Option<&str>> = module.functions().map(|function| function.name()).collect();
    assert_eq!(names, [Some("log"), Some("area"), None]);
    assert!(module.function(3).is_none());

    let log = module.function(0).unwrap();
    let import = log.import().unwrap();
    assert_eq!((import.module(), import.name()), ("host", "log"));
    assert!(log.body().is_none());

    let area = module.function(1).unwrap();
    assert!(area.import().is_none());
    assert_eq!(area.exports().collect::<Vec<_>>(), ["area", "size"]);
    assert_eq!(area.ty(), FuncType::new([ValType::I32; 2], [ValType::I32]));
    assert_eq!(module.function(2).unwrap().exports().count(), 0);
}

#[test]
fn instructions_fill_the_body_after_its_locals() {
    let module = module();
    let body = module.function(1).unwrap().body().unwrap();
    assert_eq!(body.locals().collect::<Vec<_>>(), [ValType::I32, ValType::F64, ValType::F64]);
    let mut instructions = body.instructions();
    let first = instructions.next().unwrap();
    assert!(matches!(first.operator(), Operator::LocalGet { local_index: 0 }), "{first:?}");
    // Two groups of locals take five bytes.
    assert_eq!(first.offset(), body.range().start + 5);
    let mut end = first.offset() + first.bytes().len();
    let mut last = first;
    for instruction in instructions {
        assert_eq!(instruction.offset(), end, "{instruction:?}");
        assert_eq!(
            instruction.bytes(),
            &body.bytes()[end - body.range().start..][..instruction.bytes().len()]
        );
        end += instruction.bytes().len();
        last = instruction;
    }
    assert_eq!(end, body.range().end);
    assert!(matches!(last.operator(), Operator::End), "{last:?}");
    assert_eq!(body.instructions().count(), 8);
    assert!(body.code_size() > 0);
}

#[test]
fn a_module_without_names_has_none() {
    let bytes = wat::parse_str("(module (func))").unwrap();
    let module = Module::from_binary(&Engine::default(), &bytes).unwrap();
    assert_eq!(module.name(), None);
    assert_eq!(module.function(0).unwrap().name(), None);
}

#[test]
fn a_module_keeps_the_bytes_that_it_owns() {
    let bytes = wat::parse_str("(module (func))").unwrap();
    let at = bytes.as_ptr();
    let module = Module::from_owned_binary(&Engine::default(), bytes).unwrap();
    assert_eq!(module.bytes().as_ptr(), at);
}
