//! Operands are those that an instruction takes, not the values below them on the stack; all
//! targets agree.

use wasm_jit::{Engine, Module};
use wasm_jit_whamm::rewrite::instrument;

use crate::rewrite::check;

/// Calls and branches with values on the stack that are not their own, in the same block and
/// around it.
const PROGRAM: &str = r#"(module (memory (export "memory") 1)
    (table funcref (elem $none)) (type $none (func))
    (func $none) (func $one (param i32)) (func $same (param i32) (result i32) (local.get 0))
    (func (export "_start")
        i32.const 5
        block
            call $none
            br 0
        end
        i32.const 6
        call $none
        call $one
        (call_indirect (type $none) (i32.const 0))
        (block (result i32) (br 0 (i32.const 7)))
        drop
        block
            (br_if 0 (i32.const 0))
        end
        (drop (call $same (i32.const 8)))
        (if (i32.const 1) (then (nop)))
        drop))"#;

/// The lines of a report, without the columns that are the same for all.
fn report(rule: &str, ty: &str) -> Vec<(String, String)> {
    let script = format!("wasm:opcode:{rule} {{ report var x: {ty}; x = VALUE; }}");
    let value = if rule.contains("res0") { "res0" } else { "arg0" };
    let (_, printed, ..) = check(&script.replace("VALUE", value), PROGRAM, None);
    let columns = |line: &str| {
        let columns: Vec<_> = line.split(',').map(str::to_owned).collect();
        (columns[2].clone(), columns.last().cloned().unwrap_or_default())
    };
    let rows: Vec<_> = printed.lines().skip(1).map(columns).collect();
    rows.into_iter().map(|(event, value)| (event.replace("wasm:opcode:", ""), value)).collect()
}

#[test]
fn operands_belong_to_their_instruction() {
    let values = |rule: &str| report(rule, "i32").into_iter().map(|(_, value)| value).collect::<Vec<_>>();
    // Calls of functions with a parameter.
    assert_eq!(values("call(arg0: i32):before"), ["6", "8"]);
    assert_eq!(values("call_indirect(arg0: i32):before"), ["0"]);
    // The branch that has a value, and the condition.
    assert_eq!(values("br(arg0: i32):before"), ["7"]);
    assert_eq!(values("br_if(arg0: i32):before"), ["0"]);
    // Calls of functions with a result.
    assert_eq!(values("call(res0: i32):after"), ["8"]);
    for none in [
        "br_if(arg0: i32, arg1: i32):before",
        "call(arg0: i32, arg1: i32):before",
        "end(arg0: i32, arg1: i32):before",
    ] {
        assert_eq!(values(none), [""; 0], "{none}");
    }
    let events: Vec<_> = report("*(arg0: i32):before", "i32").into_iter().map(|(event, _)| event).collect();
    for absent in ["block:before", "nop:before", "i32.const:before"] {
        assert!(!events.iter().any(|event| event == absent), "{absent}: {events:?}");
    }
    assert!(events.iter().any(|event| event == "drop:before"), "{events:?}");
}

/// Rules that replace instructions match those with these operands and results only.
#[test]
fn replaced_instructions_have_the_operands_and_results() {
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    let rows = |rule: &str, statement: &str| {
        let script = format!("wasm:opcode:{rule} {{ report var n: i32; {statement} }}");
        let program = instrument("test.mm", script.as_bytes(), &module).unwrap();
        let (_, printed, ..) = crate::rewrite::in_wasmi(&program, true);
        printed.lines().skip(1).count()
    };
    // The rule computes no result, and one of the calls with a parameter has none.
    assert_eq!(rows("call(arg0: i32):alt", "n = arg0;"), 1);
    assert_eq!(rows("call(arg0: i32, res0: i32):alt", "n++; res0 = arg0;"), 1);
    assert_eq!(rows("call(res0: i32, res1: i32):alt", "n++;"), 0);
}
