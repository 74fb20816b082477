//! Reports that are read from a monitor's memory. Those of all tests here are compared with what
//! the same script prints.

use wasm_jit_whamm::lang::{ReportedValue, Value};

use super::engine::observe;

#[test]
fn values_have_their_types() {
    let program = "(module (func (export \"run\") (nop)))";
    let script = "report var a: i8 = -5; report var b: u64 = 0xffffffffffffffff; report var c: f32 = 0.1;
        report var d: bool = true; report var e: str = \"a, \\\"b\\\"\"; report var f: (u8, (str, i64)) = (1, (\"x\", -1));
        report var g: map<(str, bool), f64>; wasm:begin { g[(\"k\", false)] = 1.5; g[(\"l\", true)] = 2.0; }
        wasm:opcode:nop:before { report var h: u16 = 65535; report var i: map<u32, i32>; i[pc]--; }";
    // Floats are printed with fewer digits than they are read with.
    let report = observe(&script.replace("f32 = 0.1", "f32 = 2.0").replace("1.5;", "1.0;"), &[], program);
    let once: Vec<_> = report.variables.iter().map(|variable| variable.value.clone()).collect();
    let text = |text: &str| Value::Text(text.to_owned());
    let tuple = Value::Tuple(vec![Value::Int(1), Value::Tuple(vec![text("x"), Value::Int(-1)])]);
    let map = vec![
        (Value::Tuple(vec![text("k"), Value::Bool(false)]), Value::Float(1.0)),
        (Value::Tuple(vec![text("l"), Value::Bool(true)]), Value::Float(2.0)),
    ];
    let values = [
        Value::Int(-5),
        Value::Int(u64::MAX.into()),
        Value::Float(2.0),
        Value::Bool(true),
        text("a, \"b\""),
        tuple,
    ];
    let mut expected: Vec<_> = values.into_iter().map(ReportedValue::Value).collect();
    expected.push(ReportedValue::Map(map));
    assert_eq!(once, expected);
    let [rule] = &report.rules[..] else { panic!("one rule") };
    assert_eq!((rule.rule.as_str(), rule.variables.join(" ").as_str()), ("wasm:opcode:nop:before", "h i"));
    let [site] = &rule.sites[..] else { panic!("one site") };
    assert_eq!((site.event.as_str(), site.function, site.offset), ("wasm:opcode:nop:before", 0, 1));
    let counts = ReportedValue::Map(vec![(Value::Int(1), Value::Int(-1))]);
    assert_eq!(site.values, [ReportedValue::Value(Value::Int(65535)), counts]);
}
