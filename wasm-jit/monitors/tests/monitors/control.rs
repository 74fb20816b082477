//! Sessions that other processes control.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wasm_jit::{Engine, Instance, Module, Store};
use wasm_jit_monitors::control::{Control, request};
use wasm_jit_monitors::{Output, Session};

use super::LOOP;

/// A monitor that does not start leaves the trace of the one before, and no file.
#[test]
fn a_trace_begins_anew_when_its_monitor_restarts() {
    const TEXT: &str = r#"(module (memory 1) (func (export "run") (param i32)
        (loop
            (i32.store (local.get 0) (local.get 0))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"#;
    let directory = tempfile::tempdir().unwrap();
    let (path, out) = (directory.path().join("socket"), directory.path().join("out"));
    let module = Module::new(&Engine::default(), TEXT).unwrap();
    let session = Arc::new(Session::new(&module, Output::directory(&out).unwrap()));
    let _control = Control::listen(session, &path).unwrap();
    let ask = |line: &str| request(&path, line).unwrap();
    let run = |count| {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, count).unwrap();
    };
    let trace = || {
        ask("write").unwrap();
        std::fs::read_to_string(out.join("memory.trace")).unwrap()
    };
    let ends = |text: &str, fields: usize| {
        text.lines().all(|line| line.starts_with("store 0x") && line.split(' ').count() == fields)
    };
    ask("enable memory{trace}").unwrap();
    // More than a buffer of the recorder, so that a part is waiting in that of the file.
    run(2000);
    ask("disable memory").unwrap();
    let before = std::fs::read(out.join("memory.trace")).unwrap();
    assert!(ask("enable memory{trace,values,function=none}").is_err());
    std::fs::create_dir(out.join("memory.trace.jsonl")).unwrap();
    let message = ask("enable memory{trace,json}").unwrap_err();
    assert!(message.contains("memory.trace.jsonl"), "{message}");
    assert_eq!(std::fs::read(out.join("memory.trace")).unwrap(), before, "nothing has changed");
    let text = trace();
    assert!(ends(&text, 4) && text.lines().count() == 2000, "{}", text.lines().count());
    ask("enable memory{trace}").unwrap();
    run(1500);
    ask("disable memory").unwrap();
    ask("enable memory{trace,values}").unwrap();
    run(3);
    let text = trace();
    assert!(ends(&text, 5) && text.lines().count() == 3, "{text}");
    let names = std::fs::read_dir(&out).unwrap().flatten().map(|entry| entry.file_name());
    let temporary = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".tmp");
    assert!(!names.into_iter().any(|name| temporary(&name)));
}

#[test]
fn monitors_are_switched_over_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).expect("as if left by another process"));
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Arc::new(Session::new(&module, Output::directory(directory.path().join("out")).unwrap()));
    let control = Control::listen(session, &path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let ask = |line: &str| request(&path, line).unwrap();
    let state = |name: &str| {
        let list = ask("list").unwrap();
        let line = list.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap().to_owned()
    };
    let run = || {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 10).unwrap();
    };

    assert_eq!(state("icount"), "-");
    assert_eq!(ask("enable icount{function=leaf}"), Ok(String::new()));
    assert_eq!(state("icount"), "on");
    run();
    assert_eq!(ask("disable icount"), Ok(String::new()));
    assert_eq!(state("icount"), "off");
    run();
    let json: serde_json::Value = serde_json::from_str(&ask("report json icount").unwrap()).unwrap();
    assert_eq!(json["instructions"], 40);
    assert!(ask("report text").unwrap().starts_with("icount\n"));
    assert_eq!(ask("write"), Ok(String::new()));
    assert!(directory.path().join("out/icount.json").exists());

    assert_eq!(ask("enable icount{function=leaf},loops,opcodes{rows=3}"), Ok(String::new()));
    assert_eq!([state("icount"), state("loops"), state("opcodes")], ["on"; 3]);
    let message = ask("enable icount{rows=3}").unwrap_err();
    let expected = "the monitor `icount` is on with other options, {function=leaf}: `disable icount` first";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(ask("disable icount").and_then(|_| ask("enable icount{rows=3}")), Ok(String::new()));
    // The second is a file, which this session cannot read.
    let message = ask("enable loops,./count.mm").unwrap_err();
    assert!(message.starts_with("there is no monitor `./count.mm`"), "{message}");
    assert!(ask("enable loops,icont").unwrap_err().starts_with("there is no monitor `icont`"));
    assert!(ask("enable icont").unwrap_err().starts_with("there is no monitor `icont`"));
    let message = "the monitor `hotness` was not started: `enable hotness` starts it";
    assert_eq!(ask("disable hotness").unwrap_err(), message);
    assert_eq!(ask("report xml").unwrap_err(), "expected text, json or csv");
    for wrong in ["", "stop", "list all", "enable", "enable a b"] {
        assert!(ask(wrong).is_err(), "{wrong}");
    }
    drop(control);
    assert!(!path.exists());
    assert!(request(&path, "list").is_err());
}

#[test]
fn clients_that_end_early_disturb_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let _control = Control::listen(Arc::new(Session::new(&module, Output::none())), &path).unwrap();
    drop(UnixStream::connect(&path).unwrap());
    let mut without_end = UnixStream::connect(&path).unwrap();
    without_end.write_all(b"list").unwrap();
    without_end.shutdown(Shutdown::Write).unwrap();
    let mut refused = String::new();
    without_end.read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "error: the request does not end with a line break\n");
    let mut endless = UnixStream::connect(&path).unwrap();
    // The server closes the connection after the maximum length of a request.
    let _ = endless.write_all(&vec![b'x'; 1 << 20]);
    let mut answer = Vec::new();
    let _ = endless.read_to_end(&mut answer);
    assert!(!request(&path, "list").unwrap().unwrap().is_empty());
}

/// A panic while a request is answered closes the connection of its client, and of no other one.
#[test]
fn a_panic_closes_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Arc::new(Session::new(&module, Output::none()));
    let _control = Control::listen_with(session, &path, |_, _| panic!("as intended")).unwrap();
    for _ in 0..100 {
        assert!(request(&path, "unknown").is_err());
    }
    assert!(!request(&path, "list").unwrap().unwrap().is_empty());
}

fn ask(client: &mut UnixStream, line: &str) -> String {
    client.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

/// A client that is served before another one has sent its request is not kept waiting until that
/// one has lost its turn.
#[test]
fn clients_that_send_nothing_delay_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let control = Control::listen(Arc::new(Session::new(&module, Output::none())), &path).unwrap();
    let mut idle = UnixStream::connect(&path).unwrap();
    let mut slow = UnixStream::connect(&path).unwrap();
    slow.write_all(b"li").unwrap();
    assert!(request(&path, "list").unwrap().is_ok());
    assert!(ask(&mut slow, "st\n").starts_with("ok\n"));
    assert!(ask(&mut idle, "list\n").starts_with("ok\n"));
    // Nor do they delay the end.
    let mut still_idle = UnixStream::connect(&path).unwrap();
    assert!(request(&path, "list").unwrap().is_ok());
    drop(control);
    let mut nothing = String::new();
    let _ = still_idle.read_to_string(&mut nothing);
    assert!(!nothing.starts_with("ok"), "{nothing}");
}

/// Of many clients without a request, the oldest ones lose their connections.
#[test]
fn the_number_of_clients_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let _control = Control::listen(Arc::new(Session::new(&module, Output::none())), &path).unwrap();
    let mut idle: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert!(request(&path, "list").unwrap().is_ok());
    // Not after a while, but when there were too many.
    idle[0].set_nonblocking(true).unwrap();
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0);
    assert!(ask(&mut idle[99], "list\n").starts_with("ok\n"));
}

#[test]
fn sockets_accept_connections_as_soon_as_they_appear() {
    let directory = tempfile::tempdir().unwrap();
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Arc::new(Session::new(&module, Output::none()));
    for number in 0..2000 {
        let path = directory.path().join(number.to_string());
        let waits = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                while !path.exists() {
                    waits.store(true, Ordering::Relaxed);
                }
                request(&path, "list")
            });
            while !waits.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            let control = Control::listen(session.clone(), &path).unwrap();
            assert!(client.join().unwrap().unwrap().is_ok());
            drop(control);
        });
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn files_are_not_replaced_by_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes");
    std::fs::write(&path, "text").unwrap();
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let error = Control::listen(Arc::new(Session::new(&module, Output::none())), &path).unwrap_err();
    assert!(error.to_string().ends_with("notes: it exists, and is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// They could connect, however: the socket may be accessible to others for a moment.
#[test]
fn clients_of_other_users_get_no_answer() {
    const OTHER: i64 = 65534;
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let _control = Control::listen(Arc::new(Session::new(&module, Output::none())), &path).unwrap();
    let permit = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    permit(directory.path(), 0o755);
    permit(&path, 0o666);
    assert!(request(&path, "list").unwrap().is_ok());
    let answer = std::thread::spawn(move || {
        // SAFETY: the effective user of this thread only, which ends soon.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1_i64, OTHER, -1_i64) }, 0);
        request(&path, "list")
    });
    // The connection is closed before it sends its request, or afterwards.
    let error = answer.join().unwrap().unwrap_err();
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    assert!([BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind()), "{error}");
}

#[test]
fn a_control_ends_although_another_process_has_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Arc::new(Session::new(&module, Output::none()));
    let control = Control::listen(session, &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    let (ends, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(control);
        ends.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(20)).expect("it ends");
    assert!(path.exists(), "the other's");
}
