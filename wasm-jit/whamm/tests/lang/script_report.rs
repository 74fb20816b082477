//! Reports that are read from a monitor's memory. In all tests here, they are compared with what
//! the same script prints.

use wasm_jit_whamm::lang::{ReportedValue, Script, Value};

use super::engine::{observe, run};

#[test]
fn values_have_their_types() {
    let program = "(module (func (export \"run\") (nop)))";
    let script = "report var a: i8 = -5; report var b: u64 = 0xffffffffffffffff; report var c: f32 = 0.1;
        report var d: bool = true; report var e: str = \"a, \\\"b\\\"\"; report var f: (u8, (str, i64)) = (1, (\"x\", -1));
        report var g: map<(str, bool), f64>; wasm:begin { g[(\"k\", false)] = 1.5; g[(\"l\", true)] = 2.0; }
        wasm:opcode:nop:before { report var h: u16 = 65535; report var i: map<u32, i32>; i[pc]--; }";
    // Floats are printed with fewer digits than they have in memory.
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

/// 32-bit floats have the decimal form with which they were written.
#[test]
fn floats_of_32_bits_are_those_of_their_decimal_form() {
    let script = "report var a: f32 = 0.1; report var b: f32 = 16777216.0; report var c: f32 = 3.4e38;
        report var d: f64 = 0.1;";
    let script = Script::new("test.mm", script.as_bytes(), &[]).unwrap();
    let mut found = None;
    run(script.module(), &[], "(module (func (export \"run\")))", &mut String::new(), |store, attached| {
        let instance = attached.instance(&mut *store);
        found = Some(script.report(store, instance).unwrap());
    });
    let values: Vec<_> = found.unwrap().variables.into_iter().map(|variable| variable.value).collect();
    assert_eq!(
        values,
        [0.1, 16_777_216.0, 3.4e38, 0.1].map(|value| ReportedValue::Value(Value::Float(value)))
    );
}

/// Buckets of all one-bit and two-bit numbers at each position, and of the largest ones.
#[test]
fn buckets_are_those_of_their_numbers() {
    let ones = (0..64).map(|bit| 1_u64 << bit);
    let numbers: Vec<u64> =
        ones.clone().chain(ones.map(|one| one - 1)).chain([5, 6, 700, u64::MAX - 1, u64::MAX]).collect();
    let drops: String =
        numbers.iter().map(|number| format!("(drop (i64.const {}))", number.cast_signed())).collect();
    let program = format!("(module (func (export \"run\") {drops}))");
    let script = "report var log: map<log2, u64>; report var lines: map<(bool, linear<100>), u64>;
        report var constant: log2 = 100; report var last: linear<7>;
        wasm:opcode:drop(arg0: i64):before {
            log[arg0 as u64]++;
            lines[(arg0 < 0, arg0 as u64)]++;
            last = arg0 as u64;
        }";
    let report = observe(script, &[], &program);
    let value = |name: &str| {
        let mut all = report.variables.iter();
        all.find(|variable| variable.name == name).map(|variable| variable.value.clone()).unwrap()
    };
    let log = |number: u64| match number {
        0 => Value::Bucket(0, 1),
        _ => Value::Bucket(1 << number.ilog2(), 2 << number.ilog2()),
    };
    let line = |number: u64| {
        let start = number - number % 100;
        let bucket = Value::Bucket(start, (i128::from(start) + 100).min(1 << 64));
        Value::Tuple(vec![Value::Bool(number.cast_signed() < 0), bucket])
    };
    let of_all = |bucket: &dyn Fn(u64) -> Value| {
        let mut counts: Vec<(Value, i128)> = Vec::new();
        for key in numbers.iter().map(|number| bucket(*number)) {
            match counts.iter_mut().find(|(known, _)| *known == key) {
                Some((_, count)) => *count += 1,
                None => counts.push((key, 1)),
            }
        }
        ReportedValue::Map(counts.into_iter().map(|(key, count)| (key, Value::Int(count))).collect())
    };
    assert_eq!(value("log"), of_all(&log));
    assert_eq!(value("lines"), of_all(&line));
    assert_eq!(value("constant"), ReportedValue::Value(Value::Bucket(64, 128)));
    let last = u64::MAX - u64::MAX % 7;
    assert_eq!(value("last"), ReportedValue::Value(Value::Bucket(last, (i128::from(last) + 7).min(1 << 64))));
}
