//! Recorded runs: reverse execution in sessions, by packets of the GDB protocol, and by LLDB.

use std::net::TcpStream;
use std::process::Command;

use super::gdb::{Client, little_endian, lldb};
use super::{Place, server};

/// Asks the host for random numbers until one is odd or four are read, and traps.
const RANDOM: &str = r#"(module
    (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 64) "\50\00\00\00\06\00\00\00")
    (data (i32.const 80) "hello\n")
    (func $next (param $at i32) (result i32)
        (drop (call $random (local.get $at) (i32.const 4)))
        (i32.and (i32.load (local.get $at)) (i32.const 0xffff)))
    (func $fail (param $sum i32) (unreachable))
    (func $start (export "_start") (local $sum i32)
        (drop (call $write (i32.const 1) (i32.const 64) (i32.const 1) (i32.const 72)))
        (local.set $sum (call $next (i32.const 0)))
        (local.set $sum (i32.add (local.get $sum) (call $next (i32.const 4))))
        (i32.store (i32.const 32) (local.get $sum))
        (call $fail (local.get $sum))))"#;

impl Place {
    /// Records a run, which must end with this code.
    fn record(&self, arguments: &[&str], code: i32) {
        let all = [&["record", "-o", "app.trace"], arguments].concat();
        let output = self.command(&all).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Executes commands on the recorded run.
    fn again(&self, commands: &[&str], program: &str) -> String {
        self.session(commands, &["--replay", "app.trace", program])
    }
}

/// What follows each command, without the commands.
fn answers(text: &str) -> Vec<&str> {
    text.split("(wasm-jit) ")
        .skip(1)
        .map(|part| part.split_once('\n').map_or("", |(_, answer)| answer))
        .collect()
}

#[test]
fn a_trap_is_followed_back_to_its_cause() {
    let place = Place::new();
    std::fs::write(place.path("app.wat"), RANDOM).unwrap();
    place.record(&["app.wat"], 134);
    let commands = [
        "run",
        "backtrace 1",
        "reverse-stepi",
        "print $sum",
        "watch i32[32]",
        "reverse-continue",
        "print $sum",
        "delete",
        "break next",
        "reverse-continue",
        "print $at",
        "rc",
        "print $at",
        "rc",
        "rc",
        "continue 2",
        "print $at",
        "set $at = 5",
    ];
    let text = place.again(&commands, "app.wat");
    let answers = answers(&text);
    assert!(answers[0].starts_with("The program has trapped, and ends when it continues: "), "{text}");
    assert!(!text.contains("hello"), "the host's output is not repeated: {text}");
    assert!(answers[2].contains("fail\n") && answers[2].contains("unreachable"), "{text}");
    let sum = answers[3].trim();
    assert!(answers[1].starts_with("#0") && answers[1].contains(&format!("($sum={sum})")), "{text}");
    let expected = format!("Watchpoint 1: i32[32]\n  old: {sum}\n  new: 0\n");
    assert!(answers[5].starts_with(&expected) && answers[5].contains("i32.store"), "{text}");
    assert_eq!(answers[6].trim(), sum, "{text}");
    assert!(answers[9].starts_with("Breakpoint 2, "), "{text}");
    assert_eq!((answers[10], answers[12]), ("4\n", "0\n"), "{text}");
    for beginning in [answers[13], answers[14]] {
        assert!(beginning.starts_with("No more reverse-execution history\n"), "{text}");
        assert!(beginning.contains("$start") || beginning.contains("start\n"), "{text}");
    }
    assert!(answers[15].starts_with("Breakpoint 2, "), "{text}");
    assert_eq!(answers[16], "0\n", "{text}");
    assert!(text.contains("a recorded run cannot be changed"), "{text}");
}

#[test]
fn a_recorded_run_goes_back_from_its_trap_and_reaches_it_again() {
    let place = Place::new();
    std::fs::write(place.path("app.wat"), RANDOM).unwrap();
    place.record(&["app.wat"], 134);
    let commands = [
        "run",
        "reverse-stepi",
        "stepi",
        "reverse-finish",
        "continue",
        "break next",
        "reverse-continue",
        "continue",
        "watch i32[32]",
        "reverse-continue",
        "continue",
        "continue",
        "kill",
        "delete",
        "run",
        "continue",
        "reverse-stepi",
        "catch off",
        "continue",
    ];
    let text = place.again(&commands, "app.wat");
    let answers = answers(&text);
    let trapped = "The program has trapped, and ends when it continues: wasm trap: wasm `unreachable`";
    for at in [0, 2, 4, 7, 11, 14] {
        assert!(answers[at].starts_with(trapped) && answers[at].contains(" fail\n"), "{at}: {text}");
    }
    assert!(answers[1].contains("unreachable") && !answers[1].contains("trapped"), "{text}");
    assert!(answers[3].contains("call $fail"), "{text}");
    assert!(answers[6].starts_with("Breakpoint 1, "), "{text}");
    for at in [9, 10] {
        assert!(answers[at].starts_with("Watchpoint 2: "), "{at}: {text}");
    }
    assert!(answers[12].contains("The program has ended: killed"), "{text}");
    for at in [15, 18] {
        assert!(answers[at].contains("The program has failed: wasm trap"), "{at}: {text}");
    }
    assert!(answers[16].contains("unreachable"), "{text}");
    assert!(!answers[18].contains("when it continues"), "{text}");
}

#[test]
fn a_c_program_goes_back_by_lines() {
    let place = Place::new();
    place.points();
    place.record(&["--invoke", "main", "points.wasm", "2"], 0);
    let commands = [
        "break points.c:20",
        "run",
        "print first",
        "print second",
        // Over the calls, line by line.
        "reverse-next",
        "reverse-next",
        "reverse-next",
        "next",
        "next",
        // Into the first call, and out of it.
        "reverse-step",
        "reverse-step",
        "print n",
        "reverse-finish",
        "backtrace",
    ];
    let text = place.again(&commands, "points.wasm");
    let answers = answers(&text);
    assert_eq!((answers[2], answers[3]), ("6\n", "14\n"), "{text}");
    let lines = |range: std::ops::Range<usize>| -> Vec<&str> {
        answers[range]
            .iter()
            .map(|answer| answer.trim().lines().last().unwrap_or("").split('\t').next().unwrap())
            .collect()
    };
    assert_eq!(lines(4..7), ["19", "18", "17"], "{text}");
    assert_eq!(lines(7..9), ["18", "19"], "{text}");
    assert_eq!(lines(9..11), ["11", "7"], "{text}");
    assert_eq!(answers[11], "2\n", "{text}");
    assert!(answers[12].contains("run at points.c:18"), "{text}");
    assert!(answers[13].starts_with("#0") && !answers[13].contains("#1"), "{text}");
}

/// Calls that take 18 million instructions, so that there is a snapshot before each, and keep
/// something in memory.
const CALLS: &str = r#"(module (memory (export "memory") 1)
    (func $work (param $n i32) (result i32) (local $sum i32)
        (loop $again
            BODY
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum))
    (func $act (export "act") (param $n i32) (result i32)
        (i32.store (i32.const 68) (i32.add (i32.load (i32.const 68)) (call $work (local.get $n))))
        (i32.store (i32.const 64) (local.get $n))
        (i32.load (i32.const 68))))"#;

#[test]
fn calls_of_a_host_are_gone_back_through_from_the_last_to_the_first() {
    let place = Place::new();
    let add = "(local.set $sum (i32.add (local.get $sum) (local.get $n)))";
    let text = CALLS.replace("BODY", &add.repeat(50));
    std::fs::write(place.path("app.wat"), &text).unwrap();
    let engine = wasm_jit::Engine::default();
    let module = wasm_jit::Module::new(&engine, &text).unwrap();
    let file = std::fs::File::create(place.path("app.trace")).unwrap();
    let recorder = wasm_jit_replay::Recorder::new(&module, file).unwrap();
    let mut store = wasm_jit::Store::new(&engine, ());
    let instance = recorder.instantiate(&mut store, &wasm_jit::Linker::new(&engine)).unwrap();
    let act = instance.get_typed_func::<i32, i32>(&mut store, "act").unwrap();
    let arguments: Vec<i32> = (0..6).map(|call| 90_000 + 1000 * call).collect();
    let sums: Vec<i32> = arguments.iter().map(|n| act.call(&mut store, *n).unwrap()).collect();
    drop((recorder, store));
    let mut commands = vec!["run", "reverse-stepi", "print i32[68]", "break act"];
    for _ in &arguments {
        commands.extend(["reverse-continue", "print $n", "print i32[64]", "print i32[68]"]);
    }
    commands.extend(["reverse-continue", "continue", "print i32[68]", "reverse-finish"]);
    let text = place.again(&commands, "app.wat");
    let answers = answers(&text);
    assert!(answers[0].contains("The program has ended"), "{text}");
    assert_eq!(answers[2].trim(), sums[5].to_string(), "{text}");
    for (number, call) in (0..6).rev().enumerate() {
        let found = &answers[4 + 4 * number..][..4];
        assert!(found[0].starts_with("Breakpoint 1, "), "{text}");
        let before = |values: &[i32]| values[..call].last().copied().unwrap_or(0).to_string();
        let expected = [arguments[call].to_string(), before(&arguments), before(&sums)];
        assert_eq!(found[1..].iter().map(|answer| answer.trim()).collect::<Vec<_>>(), expected, "{text}");
    }
    let [beginning, second, sum, finish] = answers[28..] else { panic!("{text}") };
    assert!(beginning.starts_with("No more reverse-execution history"), "{text}");
    assert!(second.starts_with("Breakpoint 1, "), "{text}");
    assert_eq!(sum.trim(), sums[0].to_string(), "{text}");
    assert!(finish.contains("the frame is the outermost one"), "{text}");
}

#[test]
fn mistakes_with_recordings_say_what_is_wrong() {
    let place = Place::new();
    std::fs::write(place.path("app.wat"), RANDOM).unwrap();
    place.record(&["app.wat"], 134);
    let text = place.session(&["start", "reverse-step"], &["app.wat"]);
    assert!(text.contains("the program does not go back: only a recorded run can"), "{text}");
    let text = place.again(&["reverse-step"], "app.wat");
    assert!(text.contains("the program is not stopped"), "{text}");
    let text = place.again(&["run", "reverse-step x"], "app.wat");
    assert!(text.contains("`x` is no count"), "{text}");
    let text = place.again(&["start", "reverse-finish"], "app.wat");
    assert!(text.contains("the frame is the outermost one"), "{text}");
    let text = place.again(&["run"], "loops.wat");
    assert!(text.contains("app.trace: the trace was recorded with another module"), "{text}");
    let with_monitor = ["debug", "--replay", "app.trace", "--monitors=icount", "app.wat"];
    let with_argument = ["debug", "--replay", "app.trace", "app.wat", "argument"];
    for arguments in [&with_monitor, &with_argument] {
        let output = place.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn packets_go_back_and_forward() {
    let place = Place::new();
    std::fs::write(place.path("app.wat"), RANDOM).unwrap();
    place.record(&["app.wat"], 134);
    let (mut child, port) = server(&place, &["--replay", "app.trace", "app.wat"]);
    let mut client = Client(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let supported = client.send("qSupported:swbreak+");
    assert!(supported.contains("ReverseStep+") && supported.contains("ReverseContinue+"), "{supported}");
    assert!(client.send("?").starts_with("T05"));
    let first = client.send("p0");
    // To the trap, SIGILL, and to the end, which is the same instruction.
    let trapped = client.send("vCont;c");
    assert!(trapped.starts_with("T04"), "{trapped}");
    let trap = client.send("p0");
    let end = client.send("vCont;c");
    assert!(end.contains("replaylog:end"), "{end}");
    assert!(end.contains(&format!("00:{trap}")), "{end}");
    let sum = client.send("qWasmLocal:0;0");
    assert_eq!(client.send("qWasmCallStack:1").len(), 32, "two frames");
    assert!(client.send("vCont;c").starts_with("T04"));
    assert_eq!(client.send("qWasmCallStack:1").len(), 32, "two frames");
    assert_eq!(client.send("qWasmLocal:0;0"), sum);
    // Back to where the sum was written.
    assert_eq!(client.send("Z2,20,4"), "OK");
    let watched = client.send("bc");
    assert!(watched.contains("watch:20"), "{watched}");
    assert_eq!(client.send("m20,4"), "00000000");
    let store = client.send("p0");
    assert_eq!(client.send("z2,20,4"), "OK");
    // A step forward, and one back.
    client.send("vCont;s");
    assert_eq!(client.send("m20,4"), sum);
    let back = client.send("bs");
    assert!(back.starts_with("T05") && back.contains(&format!("00:{store}")), "{back}");
    assert_eq!(client.send("m20,4"), "00000000");
    // Changes are refused.
    assert!(client.send("M20,4:01000000").starts_with('E'));
    // To the start, with nothing in between, and a step more.
    let start = client.send("bc");
    assert!(start.contains("replaylog:begin") && start.contains(&format!("00:{first}")), "{start}");
    let start = client.send("bs");
    assert!(start.contains("replaylog:begin"), "{start}");
    // A breakpoint in between, from both sides.
    let bytes: Vec<u8> = (0..8).map(|at| u8::from_str_radix(&store[2 * at..][..2], 16).unwrap()).collect();
    let address = u64::from_le_bytes(bytes.try_into().unwrap());
    assert_eq!(client.send(&format!("Z0,{address:x},1")), "OK");
    let forward = client.send("vCont;c");
    assert!(forward.contains("swbreak") && forward.contains(&little_endian(address)), "{forward}");
    assert!(client.send("vCont;c").starts_with("T04"));
    let back = client.send("bc");
    assert!(back.contains("swbreak") && back.contains(&little_endian(address)), "{back}");
    // The program goes on without the client, to its end.
    assert_eq!(client.send("D"), "OK");
    drop(client);
    assert_eq!(child.wait().unwrap().code(), Some(134));
}

#[test]
fn lldb_goes_back() {
    let Some(lldb) = lldb() else {
        eprintln!("there is no LLDB (see scripts/lldb.sh): not tested");
        return;
    };
    let place = Place::new();
    place.points();
    place.record(&["--invoke", "main", "points.wasm", "3"], 0);
    let (mut child, port) = server(&place, &["--replay", "app.trace", "points.wasm"]);
    let connect = format!("process connect --plugin wasm connect://127.0.0.1:{port}");
    let commands = [
        connect.as_str(),
        "breakpoint set --file points.c --line 20",
        "continue",
        "frame variable first second",
        "breakpoint set --name add",
        "process continue --reverse",
        "frame variable n p->x",
        "process continue --reverse",
        "frame variable n p->x",
        "process kill",
    ];
    let mut debugger = Command::new(lldb);
    debugger.args(["--no-lldbinit", "--batch"]).current_dir(place.dir.path());
    commands.iter().for_each(|command| _ = debugger.args(["-o", command]));
    let output = debugger.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let mut rest = &*text;
    for part in ["(int) first = 9", "(int) second = 21", "(int) p->x = 3", "(int) p->x = 1"] {
        let at = rest.find(part).unwrap_or_else(|| panic!("`{part}` is not in its place in:\n{text}"));
        rest = &rest[at..];
    }
    child.wait().unwrap();
}

/// Into a function that another module calls through a reference, and back.
#[test]
fn functions_that_others_call_are_debugged() {
    let place = Place::new();
    let library = r#"(module (table (export "table") 1 funcref)
        (func (export "run") (param $n i32) (result i32)
            (call_indirect (param i32) (result i32) (local.get $n) (i32.const 0))))"#;
    let program = r#"(module
        (import "lib" "table" (table 1 funcref))
        (import "lib" "run" (func $run (param i32) (result i32)))
        (memory (export "memory") 1)
        (func $twice (param $n i32) (result i32) (i32.mul (local.get $n) (i32.const 2)))
        (elem (i32.const 0) func $twice)
        (func (export "_start") (drop (call $run (call $run (i32.const 21))))))"#;
    std::fs::write(place.path("lib.wat"), library).unwrap();
    std::fs::write(place.path("main.wat"), program).unwrap();
    let recorded = ["record", "--each", "-o", "traces", "--preload", "lib=lib.wat", "main.wat"];
    assert!(place.command(&recorded).output().unwrap().status.success());
    let commands = ["break twice", "run", "continue", "print $n", "rc", "print $n", "rc"];
    let text = place.session(&commands, &["--replay", "traces/program.trace", "main.wat"]);
    let answers = answers(&text);
    assert_eq!([answers[3].trim(), answers[5].trim()], ["42", "21"], "{text}");
    assert!(answers[6].contains("No more reverse-execution history"), "{text}");
    // The other one: there, it is a function of the host.
    let commands = ["break run", "run", "continue", "print $n", "rc", "print $n", "rc"];
    let text = place.session(&commands, &["--replay", "traces/lib.trace", "lib.wat"]);
    let answers = self::answers(&text);
    assert_eq!([answers[3].trim(), answers[5].trim()], ["42", "21"], "{text}");
}
