//! The GDB remote protocol, by a client that sends packets, and by LLDB where there is one that
//! knows WebAssembly: what the variable `LLDB` names, `lldb-22`, or what `scripts/lldb.sh` has
//! installed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use super::{Place, attachable, server};

/// A client that acknowledges each packet.
pub(super) struct Client(pub(super) TcpStream);

impl Client {
    pub(super) fn send(&mut self, packet: &str) -> String {
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        self.0.write_all(format!("${packet}#{sum:02x}").as_bytes()).unwrap();
        self.receive()
    }

    /// The next packet, after the acknowledgement of the last one.
    fn receive(&mut self) -> String {
        let mut text = String::new();
        let mut byte = [0];
        let mut next = |stream: &mut TcpStream| {
            stream.read_exact(&mut byte).unwrap();
            char::from(byte[0])
        };
        while next(&mut self.0) != '$' {}
        loop {
            match next(&mut self.0) {
                '#' => break,
                // The character before it, this many times more.
                '*' => {
                    let count = next(&mut self.0) as usize - 29;
                    let last = text.chars().last().unwrap();
                    text.extend(std::iter::repeat_n(last, count));
                }
                other => text.push(other),
            }
        }
        next(&mut self.0);
        next(&mut self.0);
        self.0.write_all(b"+").unwrap();
        text
    }
}

pub(super) fn little_endian(address: u64) -> String {
    address.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

const STORES: &str = r#"(module (memory (export "memory") 1) (global $g (mut i64) (i64.const 258))
    (func $store (param $at i32) (param $value i32) (i32.store (local.get $at) (local.get $value)))
    (func $main (export "main") (result i32)
        (call $store (i32.const 16) (i32.const 305419896)) (i32.load (i32.const 16))))"#;

#[test]
fn packets_read_values_and_control_the_program() {
    let place = Place::new();
    std::fs::write(place.path("stores.wat"), STORES).unwrap();
    let (child, port) = server(&place, &["--invoke", "main", "stores.wat"]);
    let mut client = Client(TcpStream::connect(("127.0.0.1", port)).unwrap());
    const CODE: u64 = 1 << 62;
    assert!(client.send("qSupported:swbreak+").contains("qXfer:libraries:read+"));
    assert!(client.send("?").starts_with("T05"));
    assert!(client.send("qRegisterInfo0").contains("generic:pc"));
    assert!(client.send("qHostInfo").contains("endian:little"));
    assert!(client.send("qXfer:libraries:read::0,fff").contains("0x4000000000000000"));
    // The module itself.
    assert_eq!(client.send(&format!("m{CODE:x},4")), "0061736d");
    // In main, whose first instruction is that of the body's second byte.
    let pc = client.send("p0");
    assert_eq!(client.send("qWasmCallStack:1"), pc);
    let bytes: Vec<u8> = (0..8).map(|at| u8::from_str_radix(&pc[2 * at..][..2], 16).unwrap()).collect();
    let main = u64::from_le_bytes(bytes.try_into().unwrap());
    assert_eq!(client.send(&format!("m{main:x},2")), "4110", "i32.const 16");
    assert_eq!(client.send("qWasmGlobal:0;0"), little_endian(258));
    // A step of one instruction.
    let stepped = client.send("vCont;s");
    assert!(stepped.contains(&format!("00:{}", little_endian(main + 2))), "{stepped}");
    assert_eq!(client.send("qWasmStackValue:0;0"), "10000000");
    // A breakpoint in the callee: `local.get 0` comes 9 bytes before the end of its body.
    let store = main - 10;
    assert_eq!(client.send(&format!("m{store:x},2")), "2000", "local.get 0");
    assert_eq!(client.send(&format!("Z0,{store:x},1")), "OK");
    let stopped = client.send("vCont;c");
    assert!(stopped.contains("swbreak") && stopped.contains(&little_endian(store)), "{stopped}");
    assert_eq!(client.send("qWasmLocal:0;1"), "78563412");
    let stack = client.send("qWasmCallStack:1");
    assert_eq!(stack.len(), 32, "{stack}");
    assert!(stack.starts_with(&little_endian(store)));
    assert_eq!(client.send(&format!("z0,{store:x},1")), "OK");
    // Memory, before and after a watched store.
    assert_eq!(client.send("m10,4"), "00000000");
    assert_eq!(client.send("Z2,10,4"), "OK");
    let watched = client.send("vCont;c");
    assert!(watched.contains("watch:10"), "{watched}");
    assert_eq!(client.send("m10,4"), "78563412");
    assert_eq!(client.send("M10,4:01000000"), "OK");
    // Wrong packets have an answer, and change nothing.
    for (packet, acknowledges) in
        [("M0,4:zzzz", true), ("qWasmLocal:99999999999;-1", true), ("M0,4:zzzz", false)]
    {
        if !acknowledges {
            assert_eq!(client.send("QStartNoAckMode"), "OK");
        }
        assert_eq!(client.send(packet), "E01");
        assert_eq!(client.send("m10,4"), "01000000");
    }
    assert_eq!(client.send(&format!("M10,4:{}", "z".repeat(10_000))), "E01");
    assert_eq!(client.send("z2,10,4"), "OK");
    assert!(client.send("vCont;c").starts_with("W00"), "it ends");
    drop(client);
    prints(child, "1\n");
}

#[test]
fn wrong_packets_are_answered_while_the_program_runs() {
    let place = Place::new();
    let (mut child, port) = server(&place, &["--invoke", "main", "loops.wat"]);
    let mut client = Client(TcpStream::connect(("127.0.0.1", port)).unwrap());
    assert!(client.send("?").starts_with("T05"));
    client.0.write_all(b"$vCont;c#a8").unwrap();
    assert_eq!(client.send("M0,4:zzzz"), "E01");
    // The program still runs, until Ctrl-C.
    client.0.write_all(&[3]).unwrap();
    assert!(client.receive().starts_with("T02"));
    client.0.write_all(b"$k#6b").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn one_debugger_at_a_time_is_attached() {
    let place = Place::new();
    let (mut program, mut said, address) = attachable(&place, &["--invoke", "main", "loops.wat"]);
    let mut client = Client(TcpStream::connect(&address).unwrap());
    assert!(client.send("?").starts_with('T'));
    let mut second = TcpStream::connect(&address).unwrap();
    second.write_all(b"$?#3f").unwrap();
    assert_eq!(second.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    assert!(said.next().unwrap().contains("another debugger is attached"));
    let port = address.rsplit(':').next().unwrap();
    let third = place.command(&["debug", "--connect", port]).output().unwrap();
    assert!(String::from_utf8_lossy(&third.stderr).contains("another debugger is attached"));
    assert!(said.next().unwrap().contains("another debugger is attached"));
    // The first one is served.
    assert_eq!(client.send("m0,4"), "00000000");
    program.kill().unwrap();
    program.wait().unwrap();
}

/// A client of a program that has stopped in `main` of [`STORES`].
fn client_of_stores(place: &Place) -> (std::process::Child, Client) {
    std::fs::write(place.path("stores.wat"), STORES).unwrap();
    let (child, port) = server(place, &["--invoke", "main", "stores.wat"]);
    let mut client = Client(TcpStream::connect(("127.0.0.1", port)).unwrap());
    // Acknowledgements and packets do not wait for each other.
    client.0.set_nodelay(true).unwrap();
    assert!(client.send("?").starts_with("T05"));
    (child, client)
}

/// Waits for the end of a program that prints this, and succeeds.
#[track_caller]
fn prints(mut child: std::process::Child, expected: &str) {
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!((printed.as_str(), child.wait().unwrap().code()), (expected, Some(0)));
}

#[test]
fn addresses_of_nothing_are_refused() {
    let place = Place::new();
    let (child, mut client) = client_of_stores(&place);
    let size = wat_size(&place);
    let code = 1_u64 << 62;
    let module = |offset: u64| format!("m{:x},4", code + offset);
    for packet in [
        module(size),
        module(size + 1),
        module(0xffff_ffff),
        // Another module, and memories that there are not.
        module(1 << 32),
        "m100000000,4".to_owned(),
        "m3fffffff00000000,4".to_owned(),
        // After the end of the memory.
        "m10000,4".to_owned(),
        "mffffffff,4".to_owned(),
        "Mfffe,4:00000000".to_owned(),
        "M100000000,4:00000000".to_owned(),
        format!("M{code:x},4:00000000"),
        // No kind of address.
        "m8000000000000000,4".to_owned(),
        "mffffffffffffffff,ffffffffffffffff".to_owned(),
        "Mffffffffffffffff,1:00".to_owned(),
        "m1ffffffffffffffff,4".to_owned(),
        "mxyz,4".to_owned(),
        "m,".to_owned(),
        "Z0,0,1".to_owned(),
        format!("Z0,{:x},1", code + size),
        format!("Z0,{:x},1", code + 0xffff_ffff),
        "Z0,ffffffffffffffff,ffffffffffffffff".to_owned(),
        "Z2,10000,4".to_owned(),
        "Z2,0,ffffffffffffffff".to_owned(),
        "Z2,100000000,4".to_owned(),
        "z0,8000000000000000,1".to_owned(),
        "z2,8000000000000000,1".to_owned(),
        "G00".to_owned(),
        "P0=00".to_owned(),
    ] {
        let answer = client.send(&packet);
        assert!(answer.starts_with('E') && answer.len() == 3, "{packet}: {answer}");
    }
    // Nothing of it, or as much as there is.
    assert_eq!(client.send("mfffe,4"), "0000");
    assert_eq!(client.send(&format!("m{:x},4", code + size - 1)).len(), 2);
    assert_eq!(client.send("m0,ffffffffffffffff"), "00".repeat(2000));
    assert_eq!(client.send("qWasmLocal:18446744073709551615;18446744073709551615"), "");
    assert_eq!(client.send("qWasmCallStack:1").len(), 16);
    client.0.write_all(b"$vCont;c#a8").unwrap();
    assert!(client.receive().starts_with("W00"), "it ends");
    prints(child, "305419896\n");
}

/// The size of the binary module.
fn wat_size(place: &Place) -> u64 {
    wat::parse_file(place.path("stores.wat")).unwrap().len() as u64
}

/// Packets that are wrong in random ways: each has an answer, and the program is still there.
#[test]
fn random_packets_are_answered() {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    let place = Place::new();
    let (child, mut client) = client_of_stores(&place);
    let mut random = SmallRng::seed_from_u64(1);
    let valid = [
        "m4000000000000000,10",
        "m10,4",
        "M10,4:00000000",
        "X10,4:abcd",
        "Z0,4000000000000040,1",
        "z0,4000000000000040,1",
        "Z2,10,4",
        "z2,10,4",
        "p0",
        "P0=0000000000000000",
        "g",
        "G0000000000000000",
        "Hg1",
        "T1",
        "qXfer:libraries:read::0,fff",
        "qWasmCallStack:1",
        "qWasmLocal:0;1",
        "qWasmStackValue:0;0",
        "qWasmGlobal:0;0",
        "qRegisterInfo0",
        "qSupported:swbreak+",
        "qSupported:xmlRegisters=i386;multiprocess+",
    ];
    let rounds = if std::env::var_os("LONG_TESTS").is_some() { 20_000 } else { 2_000 };
    for _ in 0..rounds {
        let mut packet = valid[random.random_range(0..valid.len())].to_owned();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(1..=packet.len());
            match random.random_range(0..4) {
                0 => packet.truncate(at),
                1 => packet
                    .insert_str(at, ["f", "0", ",", ":", ";", "-", "ffffffff"][random.random_range(0..7)]),
                2 => packet.extend(std::iter::repeat_n('f', random.random_range(0..40))),
                _ => packet.insert(at, char::from(random.random_range(b'-'..b'z'))),
            }
        }
        let packet = packet.replace('*', "");
        client.send(&packet);
    }
    assert!(client.send("qWasmGlobal:0;0").len() == 16, "it is still stopped");
    drop(client);
    prints(child, "305419896\n");
}

#[test]
fn a_client_that_is_gone_releases_the_program() {
    // It goes while the program is stopped, and while it is being paused or stepped.
    for last in [&b""[..], b"$vCont;c#a8\x03", b"$vCont;s#b8", b"$m0,4", b"$m0,4#", b"$Z0"] {
        let place = Place::new();
        let (child, mut client) = client_of_stores(&place);
        client.0.write_all(last).unwrap();
        drop(client);
        prints(child, "305419896\n");
    }
}

/// A session that waits for the program notices that its client is gone.
#[test]
fn a_session_that_is_gone_releases_the_program() {
    let place = Place::new();
    let (program, mut said, address) = attachable(&place, &["--invoke", "main", "loops.wat"]);
    let mut client = TcpStream::connect(&address).unwrap();
    client.write_all(b"session\nbreak turn if $count == -1\ncontinue\n").unwrap();
    // The answers to the first two lines.
    let mut zeros = 0;
    while zeros < 2 {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        zeros += usize::from(byte[0] == 0);
    }
    drop(client);
    let port = address.rsplit(':').next().unwrap();
    let commands = ["--command", "info breakpoints", "--command", "set $stop = 7", "--command", "continue"];
    loop {
        let arguments = [&["debug", "--connect", port, "--batch"][..], &commands[..]].concat();
        let output = place.command(&arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if text.contains("another debugger is attached") {
            assert!(said.next().unwrap().contains("another debugger is attached"));
            continue;
        }
        assert!(text.contains("no breakpoints"), "{text}");
        assert!(text.contains("The program has ended"), "{text}");
        break;
    }
    prints(program, "7\n");
}

/// An LLDB that connects to WebAssembly programs. Must be there if `REQUIRE_LLDB` is set.
pub(super) fn lldb() -> Option<String> {
    let named = std::env::var("LLDB").ok();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{root}/target"));
    let is_there = |name: &String| Command::new(name).arg("--version").output().is_ok();
    let found = named.into_iter().chain(["lldb-22".to_owned(), format!("{target}/lldb/lldb")]).find(is_there);
    let is_required = std::env::var_os("REQUIRE_LLDB").is_some();
    assert!(found.is_some() || !is_required, "there is no LLDB (see scripts/lldb.sh)");
    found
}

#[test]
fn lldb_shows_variables_and_steps() {
    let Some(lldb) = lldb() else {
        eprintln!("there is no LLDB (see scripts/lldb.sh): not tested");
        return;
    };
    let place = Place::new();
    place.points();
    let (child, port) = server(&place, &["--invoke", "main", "points.wasm", "3"]);
    let connect = format!("process connect --plugin wasm connect://127.0.0.1:{port}");
    let commands = [
        connect.as_str(),
        "breakpoint set --name add",
        "continue",
        "frame variable",
        "thread step-over",
        "thread step-over",
        "thread step-over",
        "frame variable sum",
        "thread backtrace",
        "breakpoint delete 1",
        "breakpoint set --file points.c --line 20",
        "thread step-out",
        "continue",
        "frame variable first second",
        "process continue",
    ];
    let mut debugger = Command::new(lldb);
    debugger.args(["--no-lldbinit", "--batch"]).current_dir(place.dir.path());
    commands.iter().for_each(|command| _ = debugger.args(["-o", command]));
    let output = debugger.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    for part in [
        "(int) n = 3",
        "points.c:7",
        "points.c:9",
        "(int) sum = 3",
        "frame #1: ",
        "`run(n=3) at points.c:18",
        "(int) first = 9",
        "(int) second = 21",
        "exited with status = 0",
    ] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    prints(child, "30\n");
}
