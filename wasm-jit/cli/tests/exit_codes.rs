//! Exit codes and the first lines of diagnostics, as the help describes them.

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

const PROGRAM: &str = r#"(module (memory (export "memory") 1)
    (func (export "_start"))
    (func (export "trap") unreachable)
    (func (export "of_one") (param i32)))"#;

/// A directory with a program, a script that is valid and one that is not.
fn place() -> TempDir {
    let place = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(place.path().join(name), text).unwrap();
    write("app.wat", PROGRAM);
    write("invalid.wat", "(module (func i32.add))");
    write("count.mm", "report var n: u64;\nwasm:opcode:call:before { n++; }\n");
    write("bad.mm", "wasm:opcode:call:before { n++; }\n");
    place
}

/// Runs the command; returns its exit code, its standard output and its diagnostics.
fn run(place: &TempDir, arguments: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
    let output = command.args(arguments.split(' ')).current_dir(place.path()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn mistakes_of_the_user_are_2_and_other_failures_1() {
    let place = place();
    let check = |arguments: &str, code: i32, says: &str| {
        let (ended, _, said) = run(&place, arguments);
        assert_eq!(ended, Some(code), "{arguments}: {said}");
        assert!(said.contains(says), "{arguments}: {said}");
    };
    check("run app.wat", 0, "");
    check("run --monitors=count.mm app.wat", 0, "");
    check("run --invoke trap app.wat", 134, "unreachable");
    // The command line.
    check("run --monitors=nothing app.wat", 2, "nothing");
    check("run --monitors=hotness{rows=x} app.wat", 2, "rows");
    check("run --monitors=hotness{colour=red} app.wat", 2, "colour");
    check("run --monitors=latency{budget=abc} app.wat", 2, "a percentage");
    check("run --monitors=trace{opcode=nosuch} app.wat", 2, "`nosuch` is not the opcode of an instruction");
    check("run --monitors=memory{json} app.wat", 2, "it needs the option `trace`");
    check("run --monitors=alloc{alloc=of_one} app.wat", 2, "with an integer as its first parameter");
    check("run --monitor-format=xml app.wat", 2, "text, json or csv");
    let nothing_to_write = "arguments were not provided:\n  <--monitors <NAME[{OPTIONS}],...>|--control>";
    check("run --monitor-out out app.wat", 2, nothing_to_write);
    check("run --monitor-format=json app.wat", 2, nothing_to_write);
    check("run --timeout 0 app.wat", 2, "expected a duration above 0");
    check("run --count trap:x app.wat", 2, "expected an offset such as 0x2c1");
    check("monitors nothing", 2, "there is no monitor `nothing`");
    check("whamm info wasm:nothing", 2, "");
    check("attach abc list", 2, "expected the id of a process, such as 4242");
    check("attach 0 list", 2, "expected the id of a process");
    for option in ["--count trap", "--debug-port 0", "--gdb", "--perf-map"] {
        let name = option.split(' ').next().unwrap();
        check(&format!("debug {option} --batch app.wat"), 2, &format!("{name} is an option of run"));
    }
    // Scripts, wherever they run.
    check("run --monitors=bad.mm app.wat", 2, "bad.mm: 1 problem");
    check("run --control --monitors=bad.mm app.wat", 2, "bad.mm: 1 problem");
    check("whamm compile bad.mm -o out.wasm", 2, "bad.mm: 1 problem");
    check("whamm instrument bad.mm app.wat -o out.wasm", 2, "bad.mm: 1 problem");
    // Everything else.
    check("run missing.wat", 1, "missing.wat");
    check("debug --batch --command run --replay missing.trace app.wat", 1, "missing.trace: No such file");
    check("debug --batch --command run --replay app.wat app.wat", 1, "this is not a trace");
    check("run invalid.wat", 1, "invalid.wat");
    check("run --invoke none app.wat", 1, "no function is exported as `none`");
    check("run --invoke of_one app.wat", 1, "the function takes 1 argument, 0 are given");
    check("run --count none app.wat", 1, "no function `none`");
    check("run --dir missing app.wat", 1, "missing");
    check("run --monitors=missing.mm app.wat", 1, "missing.mm");
    check("whamm compile missing.mm -o out.wasm", 1, "missing.mm");
    check("compile invalid.wat", 1, "invalid.wat");
    check("objdump --function none app.wat", 1, "none");
}

#[test]
fn a_process_that_does_not_exist_is_not_one_that_does_not_listen() {
    let place = place();
    // Above the maximum of Linux.
    let (code, _, said) = run(&place, "attach 4194305 list");
    assert_eq!((code, said.as_str()), (Some(1), "wasm-jit: there is no process 4194305\n"));
    let this = std::process::id();
    let (code, _, said) = run(&place, &format!("attach {this} list"));
    let expected = format!("wasm-jit: process {this} does not listen at ");
    assert!(said.starts_with(&expected) && said.ends_with(": start it with run --control\n"), "{said}");
    assert_eq!(code, Some(1));
}

/// It does not listen yet.
#[test]
fn a_program_that_was_started_just_now_is_attached_to() {
    let place = place();
    fs::write(place.path().join("endless.wat"), "(module (func (export \"_start\") (loop (br 0))))").unwrap();
    let mut started = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
    started.args(["run", "--control", "endless.wat"]).current_dir(place.path()).stderr(Stdio::null());
    let mut child = started.spawn().unwrap();
    let (code, _, said) = run(&place, &format!("attach {} list", child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(code, Some(0), "{said}");
}

/// The reports next to it are JSON, too.
#[test]
fn a_trace_is_json_where_reports_are() {
    let place = place();
    let (code, _, said) = run(&place, "run --monitors=trace --monitor-format json --invoke of_one app.wat 7");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.lines().count() >= 2, "{said}");
    for line in said.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
}

/// So are the tables.
#[test]
fn a_trace_is_a_table_where_reports_are() {
    let place = place();
    let (code, _, said) = run(&place, "run --monitors=trace --monitor-format csv --invoke of_one app.wat 7");
    assert_eq!(code, Some(0), "{said}");
    let (trace, report) = said.split_once("# trace\n").unwrap();
    let mut lines = trace.lines();
    assert_eq!(lines.next(), Some("# trace.lines"));
    assert_eq!(lines.next(), Some("thread,depth,offset,function,instruction,operands"));
    assert!(lines.clone().count() > 0 && lines.all(|line| line.starts_with("1,1,0x")), "{said}");
    assert!(report.starts_with("name,value\ninstructions,"), "{said}");
}

#[test]
fn exceptions_are_limited_as_the_heap_is() {
    let place = place();
    let text = r#"(module
        (tag $link (param exnref))
        (func (export "list") (param $length i32) (result i32) (local $list exnref)
            (loop $more
                (block $caught (result exnref)
                    (try_table (catch_all_ref $caught) (throw $link (local.get $list))) (unreachable))
                (local.set $list)
                (br_if $more (local.tee $length (i32.sub (local.get $length) (i32.const 1)))))
            (i32.const 1)))"#;
    fs::write(place.path().join("list.wat"), text).unwrap();
    // 24 bytes each.
    let list = |length: &str| run(&place, &format!("run --max-heap 16M --invoke list list.wat {length}"));
    assert_eq!(list("600000"), (Some(0), "1\n".into(), String::new()));
    let (code, _, said) = list("800000");
    assert_eq!(code, Some(134));
    assert!(said.contains("limit of exceptions is reached\nwasm backtrace:\n"), "{said}");
}
