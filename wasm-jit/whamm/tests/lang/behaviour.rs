//! Modules, driven as by an engine: sites are matched, probes are hit, and the report is read.

use wasm_jit::{Caller, Engine, Error, Extern, Func, Instance, Linker, Module, Store, Val};

use super::{compile, exports};

/// A monitor module in a store that collects what it prints.
pub(super) struct Monitor {
    store: Store<Vec<u8>>,
    instance: Instance,
    names: Vec<String>,
}

fn fd_write(
    mut caller: Caller<'_, Vec<u8>>,
    (fd, vectors, count, written): (i32, i32, i32, i32),
) -> Result<i32, Error> {
    assert_eq!((fd, count), (1, 1));
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else { panic!("no memory") };
    let mut word = [0; 4];
    let mut at = |caller: &Caller<'_, Vec<u8>>, address: i32| {
        memory.read(caller, address as usize, &mut word)?;
        Ok::<_, Error>(u32::from_le_bytes(word))
    };
    let (address, length) = (at(&caller, vectors)?, at(&caller, vectors + 4)?);
    // Not all of it at once.
    let length = length.min(1000);
    let mut bytes = vec![0; length as usize];
    memory.read(&caller, address as usize, &mut bytes)?;
    caller.data_mut().extend(bytes);
    memory.write(&mut caller, written as usize, &length.to_le_bytes())?;
    Ok(0)
}

impl Monitor {
    pub(super) fn new(script: &str) -> Self {
        let binary = compile(script);
        let engine = Engine::default();
        let module = Module::from_binary(&engine, &binary).unwrap();
        let mut linker = Linker::new(&engine);
        let write =
            |caller: Caller<'_, Vec<u8>>, a: i32, b: i32, c: i32, d: i32| fd_write(caller, (a, b, c, d));
        linker.func_wrap("wasi_snapshot_preview1", "fd_write", write).unwrap();
        let mut store = Store::new(&engine, Vec::new());
        let instance = linker.instantiate(&mut store, &module).unwrap();
        Self { store, instance, names: exports(&binary) }
    }

    fn function(&mut self, name: &str) -> Func {
        self.instance.get_func(&mut self.store, name).unwrap_or_else(|| panic!("no export {name}"))
    }

    /// Calls a function of match time such as `$40(fid, pc)`.
    fn at_match(&mut self, call: &str, values: &dyn Fn(&str) -> Val) -> i32 {
        let (name, arguments) = call.strip_suffix(')').unwrap().split_once('(').unwrap();
        let arguments: Vec<_> =
            arguments.split(", ").filter(|argument| !argument.is_empty()).map(values).collect();
        let mut results = [Val::I32(0)];
        self.function(name).call(&mut self.store, &arguments, &mut results).unwrap();
        let [Val::I32(result)] = results else { panic!("not an integer") };
        result
    }

    /// Matches every export for an event at a place, and hits each that matches with the values.
    pub(super) fn hit_all(&mut self, event: &str, times: usize, values: &dyn Fn(&str) -> Val) {
        for name in self.names.clone() {
            let Some(rest) = name.strip_prefix(event).and_then(|rest| rest.strip_prefix(' ')) else {
                continue;
            };
            let arguments = match rest.strip_prefix("/ ") {
                Some(rest) => {
                    let (predicate, arguments) = rest.split_once(" / ").unwrap();
                    if self.at_match(predicate, values) == 0 {
                        continue;
                    }
                    arguments
                }
                None => rest,
            };
            let arguments = arguments.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap();
            let (mut bound, mut arguments) = (Vec::new(), arguments);
            while !arguments.is_empty() {
                let is_call = arguments.starts_with('$');
                let end = if is_call { arguments.find(')').map(|end| end + 1) } else { arguments.find(',') };
                let (argument, rest) = arguments.split_at(end.unwrap_or(arguments.len()));
                bound.push(match is_call {
                    true => Val::I32(self.at_match(argument, values)),
                    false => values(argument),
                });
                arguments = rest.trim_start_matches(", ");
            }
            let probe = self.function(&name);
            for _ in 0..times {
                probe.call(&mut self.store, &bound, &mut []).unwrap();
            }
        }
    }

    pub(super) fn report(mut self) -> String {
        if let Some(exit) = self.instance.get_func(&mut self.store, "wasm:exit") {
            exit.call(&mut self.store, &[], &mut []).unwrap();
        }
        String::from_utf8(self.store.data().clone()).unwrap()
    }
}

/// Values by name; everything else is `other`.
pub(super) fn values<'a>(known: &'a [(&'a str, i32)], other: i32) -> impl Fn(&str) -> Val + 'a {
    move |name| Val::I32(known.iter().find(|(each, _)| *each == name).map_or(other, |(_, value)| *value))
}

const HEADER: &str = "name,type,event,fid,pc,key,value\n";

#[track_caller]
fn assert_report(monitor: Monitor, expected: &str) {
    assert_eq!(monitor.report(), format!("{HEADER}{expected}"));
}

#[test]
fn counts_by_site() {
    let mut monitor = Monitor::new(
        "wasm:opcode:call|br_if:before { report unshared var count: u64; report var big: bool;\n\
         count++; if (count > 2) { big = true; } }",
    );
    monitor.hit_all("wasm:opcode:call:before", 3, &values(&[("fid", 1), ("pc", 5)], 0));
    monitor.hit_all("wasm:opcode:br_if:before", 2, &values(&[("fid", 2), ("pc", 9)], 0));
    monitor.hit_all("wasm:opcode:call:before", 0, &values(&[("fid", 1), ("pc", 12)], 0));
    assert_report(
        monitor,
        "count,u64,wasm:opcode:call:before,1,5,,3\nbig,bool,wasm:opcode:call:before,1,5,,true\n\
         count,u64,wasm:opcode:br_if:before,2,9,,2\nbig,bool,wasm:opcode:br_if:before,2,9,,false\n\
         count,u64,wasm:opcode:call:before,1,12,,0\nbig,bool,wasm:opcode:call:before,1,12,,false\n",
    );
}

#[test]
fn shared_and_global_variables() {
    let mut monitor = Monitor::new(
        "report var all: i32 = 40 + 2; var hidden: i32;\n\
         wasm:opcode:call|br:before { report shared var of_rule: u8 = 250; of_rule++; all++; hidden++; }\n\
         wasm:opcode:*:before { all--; }",
    );
    monitor.hit_all("wasm:opcode:call:before", 4, &values(&[], 0));
    monitor.hit_all("wasm:opcode:br:before", 3, &values(&[], 0));
    monitor.hit_all("wasm:opcode:*:before", 1, &values(&[], 0));
    // 250 plus 7 is 1 in eight bits.
    assert_report(monitor, "all,i32,,,,,48\nof_rule,u8,wasm:opcode:call|br:before,,,,1\n");
}

#[test]
fn predicates_at_match_and_run_time() {
    let script = "wasm:opcode:br_if:before / fid == 3 || arg0 == 1 / { report var n: i32; n++; }";
    let mut monitor = Monitor::new(script);
    assert_eq!(monitor.names.len(), 3);
    for (fid, arg) in [(3, 0), (3, 1), (4, 0), (4, 1)] {
        let known = [("fid", fid), ("pc", arg), ("arg0", arg)];
        monitor.hit_all("wasm:opcode:br_if:before", 2, &values(&known, 0));
    }
    // A site belongs to one of the two exports.
    let mut lines: Vec<_> = monitor.report().lines().skip(1).map(str::to_owned).collect();
    lines.sort();
    let line = |fid, pc, n| format!("n,i32,wasm:opcode:br_if:before,{fid},{pc},,{n}");
    assert_eq!(lines, [line(3, 0, 2), line(3, 1, 2), line(4, 0, 0), line(4, 1, 2)]);
}

#[test]
fn expressions() {
    #[track_caller]
    fn check(ty: &str, expression: &str, expected: &str) {
        // As a constant, and with operands that are not.
        let script = format!(
            "report var v: {ty}; var zero: i32; var small: u8 = 200; var t: (i32, bool) = (7, true);\n\
             fn twice(x: i32) -> i32 {{ if (x == 0) {{ return 0; }} else {{ return twice(x - 1) + 2; }} }}\n\
             fn swap(p: (i32, str)) -> (str, i32) {{ return (p.1, p.0); }}\n\
             wasm:opcode:nop:before {{ v = {expression}; }}"
        );
        let mut monitor = Monitor::new(&script);
        monitor.hit_all("wasm:opcode:nop:before", 1, &values(&[], 0));
        let report = monitor.report();
        let value = report.lines().nth(1).unwrap().rsplit_once(",,").unwrap().1;
        assert_eq!(value, expected, "{expression}");
    }
    check("i32", "1 + 2 * 3 - 10 / 5", "5");
    check("i32", "zero + 1 + 2 * 3 - 10 / 5", "5");
    check("i32", "-7 / 2", "-3");
    check("i32", "(zero - 7) % 4", "-3");
    check("u32", "0xffffffff >> 4", "268435455");
    check("i32", "(zero | 0xffff0000) >> 16", "-1");
    check("u64", "0 as u64 - 1", "18446744073709551615");
    check("i64", "-9223372036854775808", "-9223372036854775808");
    check("u8", "small + 100", "44");
    check("u8", "~small", "55");
    check("i8", "small as i8", "-56");
    check("i32", "small as i8 as i32 - 1", "-57");
    check("bool", "zero == 0 && !(small < 100) || small / (zero as u8) == 1", "true");
    check("bool", "zero != 0 && small / (zero as u8) == 1", "false");
    check("i32", "zero == 0 ? t.0 : twice(1)", "7");
    check("i32", "twice(21)", "42");
    check("bool", "t.1", "true");
    check("(str, i32)", "swap((5, \"a, \\\"b\\\"\"))", "\"(a, \"\"b\"\", 5)\"");
    check("str", "zero == 0 ? \"yes\" : \"no\"", "\"yes\"");
    check("bool", "(zero == 0 ? \"yes\" : \"no\") == \"yes\"", "true");
    check("f64", "1.5 + (zero as f64) / 2.0", "1.5");
    check("f64", "1e300 * 10.0", "1e301");
    check("f32", "0.25", "2.5e-1");
    check("f64", "-1.0 / (zero as f64)", "-inf");
    check("i32", "1e10 as i32", "2147483647");
    check("str", "opname", "\"nop\"");
    check("bool", "opname.starts_with(\"no\") && category_name == \"misc\"", "true");
}

#[test]
fn maps() {
    let mut monitor = Monitor::new(
        "report var pairs: map<(u32, bool), i64>; report var missing: i32; var names: map<str, i32>;\n\
         wasm:opcode:call:before { unshared var n: u32; n++;\n\
           pairs[(n % 100, true)]++; pairs[(fid, false)] = pairs[(fid, false)] + 2; missing = names[\"none\"];\n\
           names[\"a\"]--; missing = missing + names[\"a\"]; }",
    );
    monitor.hit_all("wasm:opcode:call:before", 250, &values(&[("fid", 7)], 0));
    let report = monitor.report();
    let rows: Vec<_> = report.lines().collect();
    assert_eq!(rows.len(), 1 + 101 + 1);
    assert_eq!(rows[1], "pairs,\"map<(u32, bool), i64>\",,,,\"(1, true)\",3");
    // Known when the rule is matched.
    assert_eq!(rows[101], "pairs,\"map<(u32, bool), i64>\",,,,\"(7, false)\",500");
    assert!(rows.contains(&"pairs,\"map<(u32, bool), i64>\",,,,\"(99, true)\",2"));
    assert_eq!(rows[102], "missing,i32,,,,,-250");
}

#[test]
fn maps_of_sites_are_apart() {
    let mut monitor =
        Monitor::new("wasm:opcode:br_table:before { report var taken: map<u32, u32>; taken[target]++; }");
    for (pc, arg, times) in [(1, 0, 3), (2, 9, 2)] {
        let known = [("pc", pc), ("arg0", arg), ("num_targets", 4)];
        monitor.hit_all("wasm:opcode:br_table:before", times, &values(&known, 0));
    }
    assert_report(
        monitor,
        "taken,\"map<u32, u32>\",wasm:opcode:br_table:before,0,1,0,3\n\
         taken,\"map<u32, u32>\",wasm:opcode:br_table:before,0,2,4,2\n",
    );
}

#[test]
fn statements() {
    let mut monitor = Monitor::new(
        "report var sum: i32; report var kind: i32;\n\
         wasm:begin { sum = 100; } wasm:begin / sum == 100 / { sum++; }\n\
         wasm:opcode:call(arg0: i32):before { var i: i32; while (true) { i++; if (i == 3) { continue; }\n\
           if (i > 5) { break; } sum = sum + i; }\n\
           if (arg0 == 1) { kind = 10; } elif (arg0 == 2) { kind = 20; return; } else { kind = 30; } kind++; }\n\
         wasm:end { sum = sum * 2; }",
    );
    monitor.hit_all("wasm:opcode:call:before", 2, &values(&[("arg0", 2)], 0));
    assert_report(monitor, "sum,i32,,,,,250\nkind,i32,,,,,20\n");
}

#[test]
fn initial_values_are_computed_at_match_time() {
    let mut monitor = Monitor::new(
        "wasm:opcode:i32.load:before { report unshared var where: u32 = fid * 100 + pc; report var n: i32; n++;\n\
         report var name: str = opname; }",
    );
    monitor.hit_all("wasm:opcode:i32.load:before", 2, &values(&[("fid", 3), ("pc", 4)], 0));
    let event = "wasm:opcode:i32.load:before,3,4,,";
    assert_report(monitor, &format!("where,u32,{event}304\nn,i32,{event}2\nname,str,{event}\"i32.load\"\n"));
}

#[test]
fn rules_of_the_same_event_run_in_order() {
    let mut monitor = Monitor::new(
        "report var order: i32;\n\
         wasm:func:entry { order = order * 10 + 1; } wasm:func:entry { order = order * 10 + 2; }\n\
         wasm:func:entry { order = order * 10 + 3; } wasm:func:exit { order = order * 10 + 4; }",
    );
    assert_eq!(monitor.names, ["wasm:func:entry ()", "wasm:func:exit ()", "wasm:exit"]);
    monitor.hit_all("wasm:func:entry", 1, &values(&[], 0));
    monitor.hit_all("wasm:func:exit", 1, &values(&[], 0));
    assert_report(monitor, "order,i32,,,,,1234\n");
}

#[test]
fn a_report_of_its_own_replaces_the_rows() {
    let monitor = Monitor::new("report var n: i32; wasm:report { n = 1; }");
    assert_eq!(monitor.report(), "");
}

#[test]
fn names_of_exports() {
    #[track_caller]
    fn check(script: &str, expected: &[&str]) {
        let numbers = |name: String| name.replace(|c: char| c.is_ascii_digit(), "").replace("$(", "$N(");
        let found: Vec<_> = exports(&compile(script)).into_iter().map(numbers).collect();
        assert_eq!(found, expected, "{script}");
    }
    check("wasm:opcode:call:before { }", &["wasm:opcode:call:before ()"]);
    check("wasm:opcode:*:before { }", &["wasm:opcode:*:before ()"]);
    check(
        "wasm::*if:before { report var n: bool; n = taken; }",
        &[
            "wasm:opcode:if:before ($N(fid, pc), arg)",
            "wasm:opcode:br_if:before ($N(fid, pc), arg)",
            "wasm:exit",
        ],
    );
    check(
        "var x: u32; wasm:opcode:call:before / fid == 2 && pc != 4 / { x = pc; }",
        &["wasm:opcode:call:before / $N(fid, pc) / (pc)"],
    );
    check("wasm:opcode:call:before / false / { }", &[]);
    // The engine compares the types of bounds with those of the parameters.
    check("wasm:opcode:select(arg1: f64):before { }", &["wasm:opcode:select:before (arg)"]);
}
