//! Scripts that observe native programs, without a program: functions and calls are simulated.

use wasm_jit_whamm::lang::{self, ReportedValue, Script, Value};
use wasm_jit_whamm::native::{
    NativeCall, NativeFunction, NativeMonitor, NativePlaces, NativeValue, NumberType, PlaceId, ValueName,
};

fn monitor(script: &str) -> NativeMonitor {
    let script = Script::native("test.mm", script.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    NativeMonitor::new(script).expect("it can be instantiated")
}

fn function<'a>(number: u32, name: &'a str, object: &'a str) -> NativeFunction<'a> {
    NativeFunction { number, name, object }
}

fn map(monitor: &NativeMonitor, name: &str) -> Vec<(i128, i128)> {
    let report = monitor.report().expect("there is a report");
    let variable = report.variables.iter().find(|variable| variable.name == name).expect("it is reported");
    let ReportedValue::Map(entries) = &variable.value else { panic!("it is not a map") };
    let number = |value: &Value| match value {
        Value::Int(value) => *value,
        other => panic!("{other:?}"),
    };
    entries.iter().map(|(key, value)| (number(key), number(value))).collect()
}

#[test]
fn static_predicates_choose_events_of_functions() {
    let mut monitor = monitor(
        r#"native:func:entry / fname == "a" / { }
           native:func:exit / object.ends_with("/x") / { }
           native:func:* / fid == 2 && ticks > 5 / { }"#,
    );
    let mut events = |number, name, object| {
        let NativePlaces { entry, exit } =
            monitor.function(function(number, name, object), &mut |_| None).unwrap();
        (entry.len(), exit.len())
    };
    assert_eq!(events(0, "a", "/y"), (1, 0));
    assert_eq!(events(1, "b", "/x"), (0, 1));
    assert_eq!(events(2, "b", "/y"), (1, 1));
    assert_eq!(events(3, "b", "/y"), (0, 0));
    assert_eq!(events(4, "a", "/x"), (1, 1));
}

#[test]
fn ten_thousand_rules_choose_functions() {
    let mut script = String::from("report var calls: map<u32, u64>;\n");
    for number in 0..10_000 {
        let rule = match number % 3 {
            0 => format!("native:func:entry / fname == \"f{number}\" /"),
            1 => format!("native:func:exit / fid == {number} && object.ends_with(\"/x\") /"),
            _ => format!("native:func:* / fid == {number} && object == \"/lib/x\" /"),
        };
        script += &format!("{rule} {{ calls[fid]++; }}\n");
    }
    let mut monitor = monitor(&script);
    for number in 0..1000 {
        let name = format!("f{number}");
        let mut places = |object| monitor.function(function(number, &name, object), &mut |_| None).unwrap();
        let events = |places: &NativePlaces| (places.entry.len(), places.exit.len());
        let expected = [(1, 0), (0, 1), (1, 1)][number as usize % 3];
        assert_eq!(events(&places("/lib/x")), expected, "{number}");
        assert_eq!(events(&places("/lib/y")), if number % 3 == 0 { (1, 0) } else { (0, 0) }, "{number}");
    }
}

/// Native scripts cannot print: a rule for the report changes the variables of the report.
#[test]
fn report_rules_come_before_the_report() {
    let mut monitor = monitor(
        "report var x: u64; native:begin { x = 4; } native:report { x = x * 10; } native:end { x++; }",
    );
    monitor.finish().unwrap();
    let variables = monitor.report().unwrap().variables;
    let values: Vec<_> = variables.iter().map(|variable| (&variable.name[..], &variable.value)).collect();
    assert_eq!(values, [("x", &ReportedValue::Value(Value::Int(50)))]);
}

#[test]
fn rules_get_the_values_of_calls() {
    let script = "report var all: map<u32, (u32, u32, u64, u64, u32, u64)>;
        native:func:exit / depth > 1 / { all[fid] = (probe_id, tid, ticks, ns, depth, duration); }";
    let mut monitor = monitor(script);
    assert!(monitor.pairs_calls() && monitor.measures_time());
    let places = monitor.function(function(7, "f", "/x"), &mut |_| None).unwrap();
    let call = NativeCall {
        probe: u32::MAX,
        thread: 2,
        ticks: u64::MAX,
        nanoseconds: 4,
        depth: 5,
        duration: 1 << 40,
        ..NativeCall::default()
    };
    assert!(monitor.needs_pairs(places.exit[0]));
    monitor.fire(places.exit[0], &NativeCall { depth: 1, ..call }).unwrap();
    monitor.fire(places.exit[0], &call).unwrap();
    let report = monitor.report().unwrap();
    let values = [i128::from(u32::MAX), 2, i128::from(u64::MAX), 4, 5, 1 << 40].map(Value::Int);
    let expected = vec![(Value::Int(7), Value::Tuple(values.to_vec()))];
    assert_eq!(report.variables[0].value, ReportedValue::Map(expected));
}

/// The definition of `matches`.
fn matches(text: &[u8], pattern: &[u8]) -> bool {
    match (text, pattern) {
        (_, [b'*', rest @ ..]) => (0..=text.len()).any(|skipped| matches(&text[skipped..], rest)),
        ([_, text @ ..], [b'?', rest @ ..]) => matches(text, rest),
        ([first, text @ ..], [expected, rest @ ..]) => first == expected && matches(text, rest),
        ([], []) => true,
        _ => false,
    }
}

/// All words over these letters, up to a length.
fn words(letters: &str, length: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..length {
        last = last
            .iter()
            .flat_map(|word| letters.chars().map(move |letter| format!("{word}{letter}")))
            .collect();
        all.extend(last.iter().cloned());
    }
    all
}

#[test]
fn patterns_match_as_they_are_defined() {
    let texts = words("ab", 4);
    for pattern in words("ab*?", 4) {
        let mut monitor = monitor(&format!("native:func:entry / fname.matches(\"{pattern}\") / {{ }}"));
        for text in &texts {
            let found = monitor.function(function(0, text, ""), &mut |_| None).unwrap().entry.len() == 1;
            assert_eq!(found, matches(text.as_bytes(), pattern.as_bytes()), "`{text}` `{pattern}`");
        }
    }
}

#[test]
fn log2_is_the_highest_bit() {
    let mut monitor = monitor(
        "report var found: map<u64, u32>;
         native:func:entry { found[ticks] = log2(ticks); }
         native:func:entry { found[7] = log2(200 as u8) * 100 + log2(1024) + log2(0); }",
    );
    let places = monitor.function(function(0, "f", ""), &mut |_| None).unwrap();
    let powers = (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) - 1, (1 << bit) + 1]);
    let values: Vec<u64> = powers.chain([u64::MAX]).filter(|value| *value != 7).collect();
    for ticks in &values {
        monitor.fire(places.entry[0], &NativeCall { ticks: *ticks, ..NativeCall::default() }).unwrap();
    }
    monitor.fire(places.entry[1], &NativeCall::default()).unwrap();
    let found = map(&monitor, "found");
    for (value, log2) in &found {
        let expected = if *value == 7 { 710 } else { i128::from((*value as u64).max(1).ilog2()) };
        assert_eq!(*log2, expected, "{value}");
    }
    assert!(values.iter().all(|value| found.iter().any(|(key, _)| *key == i128::from(*value))));
}

/// Failures are host errors, which need no signal handler.
#[test]
fn failures_are_no_traps() {
    #[track_caller]
    fn check(statements: &str, ticks: u64, expected: Option<&str>) {
        let mut monitor = monitor(&format!("report var n: u64; native:func:entry {{ {statements} n++; }}"));
        let places = monitor.function(function(0, "f", ""), &mut |_| None).unwrap();
        let fired = monitor.fire(places.entry[0], &NativeCall { ticks, ..NativeCall::default() });
        let error = fired.as_ref().err().map(ToString::to_string);
        assert_eq!(error.is_some(), expected.is_some(), "{statements}: {error:?}");
        if let (Some(error), Some(expected)) = (error, expected) {
            assert!(matches!(fired, Err(wasm_jit::Error::Host(_))), "{statements}: {fired:?}");
            assert!(error.contains(expected), "{statements}: {error}");
        }
    }
    let zero = Some("divided by zero");
    let range = Some("out of range");
    check("var k: u64 = 1 / ticks;", 0, zero);
    check("var k: u64 = 1 / ticks;", 1, None);
    check("var k: u64 = 1 % ticks;", 0, zero);
    check("var k: u8 = 1 / (ticks as u8);", 256, zero);
    check("var k: i32 = 1 % (ticks as i32);", 0, zero);
    check("var k: i64 = (ticks as i64) / -1;", 1 << 63, range);
    check("var k: i64 = (ticks as i64) / -1;", (1 << 63) + 1, None);
    check("var k: i32 = (ticks as i32) / -1;", 1 << 31, range);
    check("var k: i32 = (ticks as i32) / -1;", u64::MAX, None);
    check("var k: f64 = 1.0 / (ticks as f64);", 0, None);
    check("while (n < ticks) { n++; }", (1 << 24) - 1, None);
    check("while (n < ticks) { n++; }", 1 << 24, Some("2^24 steps"));
    check("while (ticks == 1) { continue; }", 1, Some("2^24 steps"));
}

/// Steps are counted for each event separately.
#[test]
fn steps_are_counted_for_each_event() {
    let mut monitor =
        monitor("fn f() { } native:func:entry { var k: u32; while (k < 5000000) { k++; f(); } }");
    let places = monitor.function(function(0, "f", ""), &mut |_| None).unwrap();
    for _ in 0..4 {
        monitor.fire(places.entry[0], &NativeCall::default()).unwrap();
    }
}

#[test]
fn what_is_bound_is_described() {
    let [entry, exit] =
        ["entry", "exit"].map(|event| lang::info(&format!("native:func:{event}")).unwrap().remove(0));
    assert_eq!((entry.event.as_str(), exit.event.as_str()), ("native:func:entry", "native:func:exit"));
    let names = |info: &lang::EventInfo, is_static: bool| {
        let bound = info.bound.iter().filter(|bound| bound.is_static == is_static);
        bound.map(|bound| bound.name.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        (names(&entry, true), names(&exit, true)),
        ("fid fname object".into(), "fid fname object".into())
    );
    assert_eq!(
        names(&entry, false),
        "probe_id tid ticks ns depth stack arg0 arg1 arg2 arg3 arg4 .. args.NAME"
    );
    assert_eq!(
        names(&exit, false),
        "probe_id tid ticks ns depth duration stack arg0 arg1 arg2 arg3 arg4 .. res0 args.NAME"
    );
    assert_eq!(lang::info("native:begin").unwrap()[0].event, "native:begin");
}

#[test]
fn the_beginning_and_the_end_have_rules() {
    let mut monitor = monitor(
        "report var m: map<u32, u64>;
         native:begin { m[1] = 10; } native:end { m[2] = m[1] + m[3]; } native:func:entry { m[3]++; }",
    );
    let places = monitor.function(function(0, "f", ""), &mut |_| None).unwrap();
    monitor.fire(places.entry[0], &NativeCall::default()).unwrap();
    monitor.finish().unwrap();
    assert_eq!(map(&monitor, "m"), [(1, 10), (3, 1), (2, 11)]);
}

#[test]
fn stacks_are_numbers_of_the_observer() {
    let mut monitor = monitor("report var calls: map<stack, u64>; native:func:entry { calls[stack]++; }");
    assert!(monitor.pairs_calls() && monitor.tells_stacks() && !monitor.measures_time());
    let places = monitor.function(function(7, "f", "/x"), &mut |_| None).unwrap();
    assert!(monitor.needs_pairs(places.entry[0]));
    for stack in [5, u32::MAX, 5] {
        monitor.fire(places.entry[0], &NativeCall { stack, ..NativeCall::default() }).unwrap();
    }
    let counts = [(5, 2), (u32::MAX, 1)].map(|(stack, count)| (Value::Stack(stack), Value::Int(count)));
    let report = monitor.report().unwrap();
    assert_eq!(report.variables[0].value, ReportedValue::Map(counts.to_vec()));
}

/// Rules get numbers as the caller passes them, in the argument's type.
#[test]
fn rules_get_arguments_with_the_types_of_their_bounds() {
    let script =
        "report var sums: map<str, i64>; report var large: u64; report var real: f64; report var is: bool;
        native:func:entry(arg0: i8, args.n: u16) { sums[\"a\"] = (arg0 as i64) * 1000 + (args.n as i64); }
        native:func:entry(arg3: u64) / arg3 > 9223372036854775808 / { large = arg3; }
        native:func:exit(args.x: f64) { real = args.x + 0.5; }
        native:func:entry(args.is: bool) { is = args.is; }
        native:func:entry(args.nobody: u64) { large = 1; }";
    let mut monitor = monitor(script);
    assert!(monitor.pairs_calls(), "arguments at the exit are those of the entry");
    let mut asked = Vec::new();
    let places = monitor.function(function(7, "f", "/x"), &mut |wanted| {
        asked.push(wanted.clone());
        (wanted.to_string() != "args.nobody").then(|| asked.len() as u32 - 1)
    });
    let NativePlaces { entry, exit } = places.unwrap();
    let names: Vec<_> = asked.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["arg0", "args.n", "arg3", "args.x", "args.is", "args.nobody"]);
    assert_eq!(asked.iter().position(|asked| !asked.is_used), Some(5));
    assert_eq!(asked[0].ty, NumberType::Integer { bits: 8, is_signed: true });
    assert_eq!(
        asked[2],
        NativeValue {
            name: ValueName::Position(3),
            ty: NumberType::Integer { bits: 64, is_signed: false },
            is_used: true
        }
    );
    assert_eq!((entry.len(), exit.len()), (3, 1));
    let [first, exit_place] = [entry[0], exit[0]];
    assert_eq!(monitor.values(first).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((monitor.needs_pairs(first), monitor.needs_pairs(exit_place)), (false, true));
    let arguments = [-5_i64 as u64, 65535, u64::MAX, 2.25_f64.to_bits(), 1];
    let call = NativeCall { values: &arguments, ..NativeCall::default() };
    entry.iter().chain(&exit).for_each(|place| monitor.fire(*place, &call).unwrap());
    let report = monitor.report().unwrap();
    let values: Vec<_> = report.variables.iter().map(|variable| variable.value.clone()).collect();
    let sum = (Value::Text("a".to_owned()), Value::Int(-5 * 1000 + 65535));
    assert_eq!(values[0], ReportedValue::Map(vec![sum]));
    let rest = [Value::Int(u64::MAX.into()), Value::Float(2.75), Value::Bool(true)].map(ReportedValue::Value);
    assert_eq!(values[1..], rest);
}

/// A value of which a rule states only the type need not be known when the rule is executed.
#[test]
fn values_that_are_not_used_are_not_fetched() {
    let script = "report var n: u64; native:func:exit(arg0: u64, arg1: i32) / arg0 > 1 / { n++; }
        native:func:exit(arg2: u64, res0: i32) { n++; }";
    let mut monitor = monitor(script);
    assert!(monitor.pairs_calls());
    let mut asked = Vec::new();
    let places = monitor.function(function(7, "f", "/x"), &mut |wanted| {
        asked.push((wanted.to_string(), wanted.is_used));
        Some(asked.len() as u32 - 1)
    });
    let exit = places.unwrap().exit;
    let expected = [("arg0", true), ("arg1", false), ("arg2", false), ("res0", false)];
    assert_eq!(asked, expected.map(|(name, is_used)| (name.to_owned(), is_used)));
    let [first, second] = exit[..] else { panic!("both match") };
    assert_eq!(monitor.values(first).collect::<Vec<_>>(), [0]);
    assert_eq!((monitor.values(second).count(), monitor.needs_pairs(second)), (0, false));
    let call = NativeCall { values: &[5], ..NativeCall::default() };
    exit.iter().for_each(|place| monitor.fire(*place, &call).unwrap());
    assert_eq!(monitor.report().unwrap().variables[0].value, ReportedValue::Value(Value::Int(2)));
    // A function without the value does not match.
    let mut lacks = |wanted: &NativeValue| (wanted.to_string() != "arg1").then_some(0);
    assert_eq!(monitor.function(function(8, "g", "/x"), &mut lacks).unwrap().exit.len(), 1);
}

#[test]
fn rules_get_results_with_the_types_of_their_bounds() {
    let script = "report var sum: i64; report var both: (i64, f64); report var arg: u64;
        native:func:exit(res0: i64) { sum = sum + res0; }
        native:func:exit(res0: f64, arg0: i64) { both = (arg0, res0); }
        native:func:exit(args.res0: u64) { arg = args.res0; }";
    let mut monitor = monitor(script);
    assert!(monitor.pairs_calls(), "the arguments are those of the entry");
    let mut asked = Vec::new();
    let places = monitor.function(function(7, "f", "/x"), &mut |wanted| {
        asked.push(wanted.to_string());
        Some(asked.len() as u32 - 1)
    });
    let exit = places.unwrap().exit;
    assert_eq!(asked, ["res0", "arg0", "res0", "args.res0"]);
    assert_eq!(exit.iter().map(|place| monitor.needs_pairs(*place)).collect::<Vec<_>>(), [false, true, true]);
    let values = [-5_i64 as u64, 9, 2.5_f64.to_bits(), 10];
    let call = NativeCall { values: &values, ..NativeCall::default() };
    exit.iter().for_each(|place| monitor.fire(*place, &call).unwrap());
    let report = monitor.report().unwrap();
    let values: Vec<_> = report.variables.iter().map(|variable| variable.value.clone()).collect();
    let both = Value::Tuple(vec![Value::Int(9), Value::Float(2.5)]);
    assert_eq!(values, [Value::Int(-5), both, Value::Int(10)].map(ReportedValue::Value));
    let alone = monitor_of_result();
    assert!(!alone.pairs_calls(), "the result is known without the entry");
}

fn monitor_of_result() -> NativeMonitor {
    monitor("report var n: i64; native:func:exit(res0: i64) { n = n + res0; }")
}

/// The caller reports when calls begin and end; the memory of their variables is reused.
#[test]
fn each_call_has_frame_variables_of_its_own() {
    let mut monitor = monitor(
        "frame var start: u64; frame var kind: str = \"none\"; frame var pair: (u8, f64) = (3, 0.5);
         report var spent: map<u32, u64>; report var wrong: u64; report var kinds: map<str, u64>;
         native:func:entry / ticks > 0 / {
             if (start != 0 || kind != \"none\" || pair.0 != 3 || pair.1 != 0.5) { wrong++; }
             start = ticks; kind = fname; pair = (4, 1.5);
         }
         native:func:exit { kinds[kind]++; if (pair.0 == 4) { spent[tid] = spent[tid] + ticks - start; } }
         native:func:exit { wrong = wrong + 0; }",
    );
    assert!(monitor.pairs_calls());
    let places = monitor.function(function(0, "f", ""), &mut |_| None).unwrap();
    let (entry, exit) = (places.entry[0], places.exit[0]);
    assert!(monitor.uses_frame(entry) && monitor.uses_frame(exit) && !monitor.uses_frame(places.exit[1]));
    assert!(monitor.needs_pairs(entry) && monitor.needs_pairs(exit) && !monitor.needs_pairs(places.exit[1]));
    let fire = |monitor: &mut NativeMonitor, place, frame, thread, ticks| {
        let call = NativeCall { frame: Some(frame), thread, ticks, ..NativeCall::default() };
        monitor.fire(place, &call).unwrap();
    };
    let [outer, other, inner] = [0; 3].map(|_| monitor.new_frame().unwrap());
    fire(&mut monitor, entry, outer, 1, 100);
    fire(&mut monitor, entry, other, 2, 200);
    fire(&mut monitor, entry, inner, 1, 300);
    fire(&mut monitor, exit, inner, 1, 301);
    monitor.end_frame(inner);
    let again = monitor.new_frame().unwrap();
    assert_eq!(again, inner, "its memory is used again");
    fire(&mut monitor, entry, again, 1, 400);
    fire(&mut monitor, exit, again, 1, 410);
    fire(&mut monitor, exit, other, 2, 1200);
    fire(&mut monitor, exit, outer, 1, 1100);
    monitor.end_frame(again);
    let unset = monitor.new_frame().unwrap();
    fire(&mut monitor, exit, unset, 3, 5);
    assert_eq!(map(&monitor, "spent"), [(1, 1 + 10 + 1000), (2, 1000)]);
    let report = monitor.report().unwrap();
    let value = |name: &str| &report.variables.iter().find(|found| found.name == name).unwrap().value;
    assert_eq!(*value("wrong"), ReportedValue::Value(Value::Int(0)));
    let kinds = [("f", 4), ("none", 1)].map(|(kind, n)| (Value::Text(kind.to_owned()), Value::Int(n)));
    assert_eq!(*value("kinds"), ReportedValue::Map(kinds.to_vec()));
}

#[test]
fn arguments_need_a_type() {
    #[track_caller]
    fn refused(script: &str, expected: &str) {
        let error = Script::native("test.mm", script.as_bytes()).expect_err("it is refused").to_string();
        assert!(error.contains(expected), "{script}: {error}");
    }
    refused("native:func:entry { var k: u64 = arg0; }", "native:func:entry(arg0: i32)");
    refused("native:func:entry { var k: u64 = args.size; }", "native:func:entry(args.size: i32)");
    refused("native:func:entry(args.size: str) { }", "a bound is the type of a number");
    refused("native:func:entry(args.size: u64, args.size: u64) { }", "`args.size` is bound twice");
    refused("native:func:entry(size: u64) { }", "no `size` that could have a type");
    refused("native:func:entry(args.: u64) { }", "the name of an argument");
    refused("native:func:entry(args.size: u64) { args.size = 1; }", "args.size");
    refused("native:begin(args.size: u64) { }", "no `args.size`");
    refused("native:func:exit { var k: i32 = res0; }", "native:func:exit(res0: i32)");
    refused("native:func:exit { var k: i32 = retval; }", "the result of a function is `res0`");
    refused("native:func:exit(res1: i32) { }", "no `res1` that could have a type");
    refused("native:func:entry(res0: i32) { }", "no `res0` that could have a type");
    // Among several events, those that have the value.
    Script::native("test.mm", b"native:func:*(res0: i32) { }").expect("exits have a result");
    let many: Vec<_> = (0..13).map(|number| format!("arg{number}: u64")).collect();
    refused(&format!("native:func:entry({}) {{ }}", many.join(", ")), "at most 12 arguments");
    refused("fn f() -> u64 { return args.size; }", "there is no variable `args.size`");
}

#[test]
fn each_thread_has_variables_of_its_own() {
    let mut monitor = monitor(
        "report thread var calls: u64; thread var next: u64 = 7; report thread var kinds: map<bool, u64>;
         report thread var last: (u64, f64); report var all: u64;
         native:func:entry / calls < 3 / { calls++; all++; kinds[fname == \"f\"]++; last = (next, 0.5); next = next + ticks; }
         native:func:entry / fname == \"g\" / { report thread var calls: u64; kinds[true] = kinds[true] + 100; }",
    );
    let places = [(0, "f"), (1, "g")]
        .map(|(number, name)| monitor.function(function(number, name, ""), &mut |_| None).unwrap().entry);
    assert_eq!(places.each_ref().map(Vec::len), [1, 2]);
    let mut fire = |thread, function: usize, ticks| {
        for place in &places[function] {
            monitor.fire(*place, &NativeCall { thread, ticks, ..NativeCall::default() }).unwrap();
        }
    };
    for (thread, function) in [(11, 0), (12, 1), (11, 1), (11, 0), (11, 0), (12, 0)] {
        fire(thread, function, thread.into());
    }
    monitor.thread_ended(11);
    monitor.fire(places[0][0], &NativeCall { thread: 11, ticks: 1, ..NativeCall::default() }).unwrap();
    let report = monitor.report().unwrap();
    assert_eq!(report.threads.variables, ["calls", "kinds", "last"]);
    let int = |value: i128| ReportedValue::Value(Value::Int(value));
    let kinds = |entries: &[(bool, i128)]| {
        ReportedValue::Map(
            entries.iter().map(|(key, value)| (Value::Bool(*key), Value::Int(*value))).collect(),
        )
    };
    let last = |value| ReportedValue::Value(Value::Tuple(vec![Value::Int(value), Value::Float(0.5)]));
    let mut found: Vec<_> =
        report.threads.threads.iter().map(|thread| (thread.thread, thread.values.clone())).collect();
    found.sort_by_key(|(thread, values)| (*thread, std::cmp::Reverse(format!("{values:?}"))));
    let expected = [
        (11, vec![int(3), kinds(&[(true, 102), (false, 1)]), last(7 + 22)]),
        (11, vec![int(1), kinds(&[(true, 1)]), last(7)]),
        (12, vec![int(2), kinds(&[(false, 1), (true, 101)]), last(7 + 12)]),
    ];
    assert_eq!(found, expected);
    let all = report.variables.iter().find(|variable| variable.name == "all").unwrap();
    assert_eq!(all.value, int(6));
}

#[test]
fn variables_of_threads_need_a_thread() {
    #[track_caller]
    fn refused(script: &str, expected: &str) {
        let error = Script::native("test.mm", script.as_bytes()).expect_err("it is refused").to_string();
        assert!(error.contains(expected), "{script}: {error}");
    }
    refused("thread var n: u64; fn f() { n++; } native:func:entry { f(); }", "there is no thread here");
    refused("thread var n: u64; native:end { n = 1; }", "there is no thread here");
    refused("thread var m: map<u32, u32>; native:begin { m[1] = 2; }", "there is no thread here");
    refused(
        "thread var m: map<u32, u32>; report var n: u32; native:end { n = m[1]; }",
        "there is no thread here",
    );
    refused("native:begin { thread var n: u64; }", "belongs to rules of functions");
    refused("thread var n: u64; native:func:entry { thread var n: u32; }", "is a `u64` elsewhere");
    refused("native:func:entry { thread var n: u64 = ticks; }", "depends on the program's execution");
    refused("native:func:entry { thread shared var n: u64; }", "one storage class");
    let script = b"thread var n: u64; wasm:func:entry { n++; }";
    for error in [
        Script::new("test.mm", script, &[]).map(drop).unwrap_err(),
        lang::compile("test.mm", script, &[]).map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("only scripts for native programs"), "{error}");
    }
}

#[test]
fn rules_of_once_finish_their_places() {
    let mut monitor = monitor(
        "report var n: u64; report var all: u64;
         @once native:func:* / ticks > 5 / { n++; } native:func:entry { all++; }
         @once @sample(100%) native:func:entry / fid == 1 / { n = n + 10; }",
    );
    let [first, second] =
        [0, 1].map(|number| monitor.function(function(number, "f", ""), &mut |_| None).unwrap());
    let mut fired = |place, ticks| {
        monitor.fire(place, &NativeCall { ticks, ..NativeCall::default() }).unwrap();
        monitor.take_finished()
    };
    assert_eq!(fired(first.entry[0], 5), []);
    assert_eq!(fired(first.entry[0], 6), [first.entry[0]]);
    assert_eq!(fired(first.entry[0], 7), [], "it is fired all the same, and does nothing");
    assert_eq!(fired(first.entry[1], 7), []);
    assert_eq!(fired(first.exit[0], 7), [first.exit[0]]);
    assert_eq!(fired(second.entry[2], 7), [second.entry[2]]);
    assert_eq!(fired(second.entry[0], 7), [second.entry[0]]);
    let report = monitor.report().unwrap();
    let values: Vec<_> = report.variables.iter().map(|variable| variable.value.clone()).collect();
    assert_eq!(values, [13, 1].map(|value| ReportedValue::Value(Value::Int(value))));
}

/// Sampling uses the times of the events.
#[test]
fn native_rules_are_sampled_by_time() {
    let mut monitor = monitor(
        "report var n: u64; report var last: u64; report var exits: u64;
         @sample(10ms) native:func:entry { n++; last = ns; }
         @sample(1s) native:func:exit { exits++; }",
    );
    assert!(monitor.measures_time());
    let places = monitor.function(function(0, "f", ""), &mut |_| None).unwrap();
    let mut fire = |place: PlaceId, milliseconds: u64| {
        let nanoseconds = milliseconds * 1_000_000;
        monitor.fire(place, &NativeCall { nanoseconds, ..NativeCall::default() }).unwrap();
    };
    // An event that another thread has delayed does not begin a new period.
    for milliseconds in [3, 4, 9, 10, 11, 20, 19, 45, 49, 50] {
        fire(places.entry[0], milliseconds);
    }
    for milliseconds in [998, 999, 1000, 1999] {
        fire(places.exit[0], milliseconds);
    }
    let [entry, exit] = [places.entry[0], places.exit[0]].map(|place| monitor.group(place).unwrap());
    let until = |milliseconds: &u64| (entry, milliseconds * 1_000_000);
    let mut pauses: Vec<_> = [10, 20, 30, 50, 60].iter().map(until).collect();
    pauses.extend([1, 2].map(|seconds| (exit, seconds * 1_000_000_000)));
    assert_eq!(monitor.take_pauses(), pauses);
    assert_eq!(monitor.take_pauses(), []);
    let place = monitor.function(function(1, "g", ""), &mut |_| None).unwrap().entry[0];
    assert_eq!(monitor.group(place), Some(entry), "it is that of the rule");
    let report = monitor.report().unwrap();
    let values: Vec<_> = report.variables.iter().map(|variable| variable.value.clone()).collect();
    assert_eq!(values, [5, 50_000_000, 2].map(|value| ReportedValue::Value(Value::Int(value))));
}
