//! Traps and uncaught exceptions stop a program before its frames are left. Functions that run
//! before the one that is called, and memories other than the first one.

use std::io::Read;
use std::net::TcpStream;
use std::process::Output;

use super::gdb::{Client, little_endian};
use super::{Place, attachable, server};

/// Fails in `$divide`, which `main` calls with 6 and 0.
const DIVIDES: &str = r#"(module (memory 1) (tag $tag (param i32))
    (func $divide (param $a i32) (param $b i32) (result i32) (i32.div_s (local.get $a) (local.get $b)))
    (func (export "main") (param $n i32) (result i32) (local $twice i32)
        (local.set $twice (i32.mul (local.get $n) (i32.const 2)))
        (i32.store (i32.const 16) (local.get $twice))
        (i32.add (call $divide (local.get $twice) (i32.const 0)) (local.get $twice)))
    (func $throws (param $a i32) (throw $tag (local.get $a)))
    (func (export "throw") (param $n i32) (call $throws (local.get $n))))"#;

/// Both functions run before `main`.
const STARTS: &str = r#"(module (global $count (mut i32) (i32.const 0))
    (func $begin (global.set $count (i32.const 5)))
    (func $initialize (export "_initialize")
        (global.set $count (i32.add (global.get $count) (i32.const 1))))
    (func $main (export "main") (result i32) (global.get $count))
    (start $begin))"#;

const MEMORIES: &str = r#"(module (memory 1) (memory $second 1)
    (func $main (export "main") (result i32)
        (i32.store (i32.const 16) (i32.const 1))
        (i32.store $second (i32.const 16) (i32.const 305419896))
        (i32.load $second (i32.const 16))))"#;

fn place() -> Place {
    let place = Place::new();
    for (name, text) in [("divides.wat", DIVIDES), ("starts.wat", STARTS), ("memories.wat", MEMORIES)] {
        std::fs::write(place.path(name), text).unwrap();
    }
    place
}

#[track_caller]
fn contains(text: &str, all: &[&str]) {
    for part in all {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn a_trap_stops_the_program_with_its_frames() {
    let place = place();
    let commands =
        ["run", "backtrace", "print $b", "up", "print $twice", "print i32[16]", "continue", "backtrace"];
    let text = place.session(&commands, &["--invoke", "main", "divides.wat", "3"]);
    let expected = [
        "The program has trapped, and ends when it continues: wasm trap: integer divide by zero\n",
        " divide ($a=6, $b=0)\n",
        " main ($n=3)\n",
        "print $b\n0\n",
        "print $twice\n6\n",
        "print i32[16]\n6\n",
        "The program has failed: wasm trap: integer divide by zero",
        "`backtrace`: the program does not run",
    ];
    contains(&text, &expected);
    // Steps end the program, too, and nothing can be changed.
    let text = place.session(&["run", "stepi"], &["--invoke", "main", "divides.wat", "3"]);
    contains(&text, &["The program has failed: wasm trap"]);
    for change in ["set $a = 1", "set i32[16] = 1"] {
        let text = place.session(&["run", change], &["--invoke", "main", "divides.wat", "3"]);
        contains(&text, &["the program is about to end: its values cannot be changed"]);
    }
}

#[test]
fn an_exception_that_is_not_caught_stops_the_program() {
    let place = place();
    let commands = ["run", "backtrace", "continue"];
    let text = place.session(&commands, &["--invoke", "throw", "divides.wat", "9"]);
    let expected = [
        "The program does not catch an exception, and ends when it continues: tag 0 (9)\n",
        " throws ($a=9)\n",
        "The program has failed: ",
    ];
    contains(&text, &expected);
}

#[test]
fn traps_need_not_stop_the_program() {
    let place = place();
    let text =
        place.session(&["catch", "catch off", "catch", "run"], &["--invoke", "main", "divides.wat", "3"]);
    let expected = [
        "traps, other errors and uncaught exceptions stop the program\n",
        "traps, other errors and uncaught exceptions do not stop the program\n",
        "The program has failed: wasm trap: integer divide by zero",
    ];
    contains(&text, &expected);
    assert!(!text.contains("has trapped"), "{text}");
}

#[test]
fn errors_that_are_no_traps_stop_the_program() {
    let place = place();
    std::fs::write(
        place.path("fails.wat"),
        r#"(module (type $bytes (array (mut i8)))
            (import "env" "missing" (func $missing (param i32)))
            (func $allocate (param $size i32) (drop (array.new_default $bytes (local.get $size))))
            (func (export "unknown") (param $n i32) (call $missing (local.get $n)))
            (func (export "large") (param $n i32)
                (call $allocate (i32.mul (local.get $n) (i32.const 1000000)))))"#,
    )
    .unwrap();
    std::fs::write(
        place.path("exits.wat"),
        r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (func (export "_start") (call $exit (i32.const 7))))"#,
    )
    .unwrap();
    let session = |function: &str, commands: &[&str]| {
        let options =
            ["--allow-unknown-functions", "--max-heap", "1M", "--invoke", function, "fails.wat", "9"];
        place.session(commands, &options)
    };
    let text = session("unknown", &["run", "backtrace", "continue"]);
    let failed = "The program has failed, and ends when it continues: ";
    let missing = "wasm trap: the program called `env` `missing`, which it imports and which is not defined";
    let ended = format!("The program has failed: {missing}");
    let stopped = format!("{failed}{missing}\n");
    contains(&text, &[&stopped, " ($n=9)\n", &ended]);
    let text = session("large", &["run", "backtrace", "continue"]);
    let stopped = format!("{failed}the store's limit of ");
    contains(
        &text,
        &[&stopped, " allocate ($size=9000000)\n", "#1", " ($n=9)\n", "The program has failed: "],
    );
    // A program may end itself.
    let text = place.session(&["run"], &["exits.wat"]);
    contains(&text, &["run\nThe program has ended: exit code 7\n"]);
}

#[test]
fn a_program_is_killed_where_it_has_trapped() {
    let place = place();
    let text = place.session(&["run", "kill", "run"], &["--invoke", "main", "divides.wat", "3"]);
    contains(&text, &["kill\nThe program has ended: killed\n"]);
    assert_eq!(text.matches("has trapped").count(), 2, "it is run again: {text}");
    assert!(!text.contains("The program has failed"), "{text}");
}

#[test]
fn clients_see_traps_as_signals() {
    let place = place();
    for (function, signal) in [("main", "T08"), ("throw", "T06")] {
        let (mut child, port) = server(&place, &["--invoke", function, "divides.wat", "3"]);
        let mut client = Client(TcpStream::connect(("127.0.0.1", port)).unwrap());
        assert!(client.send("?").starts_with("T05"));
        let stopped = client.send("vCont;c");
        assert!(stopped.starts_with(signal), "{stopped}");
        // Two frames, with their locals.
        let stack = client.send("qWasmCallStack:1");
        assert_eq!(stack.len(), 32, "{stack}");
        if function == "main" {
            assert_eq!(client.send("qWasmLocal:0;0"), "06000000");
            assert_eq!(client.send("qWasmLocal:1;1"), "06000000");
            assert_eq!(client.send("m10,4"), "06000000");
            assert!(client.send("M10,4:01000000").starts_with('E'));
        }
        assert!(client.send("vCont;c").starts_with("X06"), "it ends");
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        let (code, reason) =
            if function == "main" { (134, "integer divide by zero") } else { (1, "exception") };
        assert!(text.contains(reason), "{text}");
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn functions_that_run_first_have_breakpoints() {
    let place = place();
    let commands = [
        "break begin",
        "break initialize",
        "break main",
        "run",
        "print $count",
        "continue",
        "print $count",
        "stepi",
        "backtrace",
        "continue",
        "print $count",
    ];
    let text = place.session(&commands, &["--invoke", "main", "starts.wat"]);
    let expected = [
        "run\nBreakpoint 1, ",
        "print $count\n0\n",
        "continue\nBreakpoint 2, ",
        "print $count\n5\n",
        " initialize ()\n",
        "continue\nBreakpoint 3, ",
        "print $count\n6\n",
    ];
    contains(&text, &expected);
}

#[test]
fn clients_stop_in_the_function_that_runs_first() {
    let place = place();
    let (mut child, port) = server(&place, &["--invoke", "main", "starts.wat"]);
    let mut client = Client(TcpStream::connect(("127.0.0.1", port)).unwrap());
    assert!(client.send("?").starts_with("T05"));
    assert_eq!(client.send("qWasmGlobal:0;0"), "00000000");
    let pc = client.send("p0");
    let bytes: Vec<u8> = (0..8).map(|at| u8::from_str_radix(&pc[2 * at..][..2], 16).unwrap()).collect();
    let begin = u64::from_le_bytes(bytes.try_into().unwrap());
    assert_eq!(client.send(&format!("m{begin:x},2")), "4105", "i32.const 5");
    // The next body begins after `global.set 0`, `end`, its length, and the number of its locals.
    let initialize = begin + 7;
    assert_eq!(client.send(&format!("m{initialize:x},2")), "2300", "global.get 0");
    assert_eq!(client.send(&format!("Z0,{initialize:x},1")), "OK");
    let stopped = client.send("vCont;c");
    assert!(stopped.contains("swbreak") && stopped.contains(&little_endian(initialize)), "{stopped}");
    assert_eq!(client.send("qWasmGlobal:0;0"), "05000000");
    assert!(client.send("vCont;c").starts_with("W00"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn other_memories_are_read_changed_and_watched() {
    let place = place();
    let commands = [
        "break main",
        "run",
        "watch i32[1:0x10]",
        "continue",
        "print i32[0:16] + i32[1:16]",
        "x/2xw 1:0x10",
        "x/1xw 0x10",
        "set u8[1:0x10] = 1",
        "print /x i32[1:8 + 8]",
        "print i32[2:0]",
    ];
    let text = place.session(&commands, &["--invoke", "main", "memories.wat"]);
    let expected = [
        "Watchpoint 2: i32[1:0x10]\n  old: 0\n  new: 305419896\n",
        "print i32[0:16] + i32[1:16]\n305419897\n",
        "\n1:0x10:\t0x12345678\t0x00000000\n",
        "x/1xw 0x10\n0x10:\t0x00000001\n",
        "print /x i32[1:8 + 8]\n0x12345601\n",
        "`print i32[2:0]`: ",
    ];
    contains(&text, &expected);
    // The address is compared with the size of its memory.
    let text = place.session(&["watch i32[1:0x10000]"], &["--invoke", "main", "memories.wat"]);
    contains(&text, &["is outside of the memory"]);
    // Clients name the memory in the address.
    let (mut child, port) = server(&place, &["--invoke", "main", "memories.wat"]);
    let mut client = Client(TcpStream::connect(("127.0.0.1", port)).unwrap());
    assert!(client.send("?").starts_with("T05"));
    assert_eq!(client.send("Z2,100000010,4"), "OK");
    let watched = client.send("vCont;c");
    assert!(watched.contains("watch:0100000010"), "{watched}");
    assert_eq!(client.send("m100000010,4"), "78563412");
    assert_eq!(client.send("m10,4"), "01000000");
    assert!(client.send("vCont;c").starts_with("W00"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Runs a debugger with these commands, attached to the program at this address.
fn connect(place: &Place, address: &str, commands: &[&str]) -> Output {
    let port = address.rsplit(':').next().unwrap();
    let mut arguments = vec!["debug", "--connect", port, "--batch"];
    commands.iter().for_each(|command| arguments.extend(["--command", command]));
    loop {
        let output = place.command(&arguments).output().unwrap();
        // The program has not seen yet that the last one has gone.
        if !String::from_utf8_lossy(&output.stderr).contains("another debugger is attached") {
            return output;
        }
    }
}

#[test]
fn attached_debuggers_take_commands_from_their_command_line() {
    let place = place();
    let (mut program, _said, address) = attachable(&place, &["--invoke", "main", "loops.wat"]);
    let connect = |commands: &[&str]| connect(&place, &address, commands);
    let text = |output: &[u8]| String::from_utf8_lossy(output).into_owned();
    let output = connect(&["break turn", "continue", "print $count >= 0"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    contains(&text(&output.stdout), &["Paused\n", "(wasm-jit) continue\nBreakpoint 1, ", "\n1\n"]);
    // The first command that fails ends it.
    let output = connect(&["print $nothing", "set $stop = 8"]);
    assert_eq!(output.status.code(), Some(1));
    contains(&text(&output.stderr), &["`print $nothing`: there is no "]);
    let output = connect(&["set $stop = 7", "continue"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    contains(&text(&output.stdout), &["The program has ended"]);
    let mut printed = String::new();
    program.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!((printed.as_str(), program.wait().unwrap().code()), ("7\n", Some(0)));
    // Options of programs do not apply.
    let output = place.command(&["debug", "--connect", "1", "--invoke", "main"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_trap_stops_a_program_to_which_a_debugger_is_attached() {
    let place = place();
    std::fs::write(
        place.path("waits.wat"),
        r#"(module (global $stop (mut i32) (i32.const 0))
            (func $fails (param $a i32) (unreachable))
            (func (export "main")
                (loop $again (br_if $again (i32.eqz (global.get $stop))))
                (call $fails (global.get $stop))))"#,
    )
    .unwrap();
    let (mut program, said, address) = attachable(&place, &["--invoke", "main", "waits.wat"]);
    let output = connect(&place, &address, &["set $stop = 7", "continue", "print $a", "continue"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = [
        "has trapped, and ends when it continues: wasm trap: wasm `unreachable`",
        "print $a\n7\n",
        "The program has failed: wasm trap",
    ];
    contains(&text, &expected);
    let rest: Vec<String> = said.collect();
    assert!(rest.join("\n").contains("wasm `unreachable` instruction executed"), "{rest:?}");
    assert_eq!(program.wait().unwrap().code(), Some(134));
}
