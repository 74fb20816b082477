//! A session in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use super::Place;

pub(super) struct Terminal {
    master: File,
    child: Child,
    seen: String,
}

impl Terminal {
    pub(super) fn start(place: &Place, arguments: &[&str]) -> Self {
        let (mut master, mut slave) = (0, 0);
        let size = libc::winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptors are written to these places; no name or settings are asked for.
        let opened =
            unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(opened, 0);
        // SAFETY: both are new, and nothing else owns them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = place.command(arguments);
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm");
        // SAFETY: both calls are async-signal-safe: the terminal becomes that of a new session.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        Self { master, child: command.spawn().unwrap(), seen: String::new() }
    }

    /// Waits until the text is printed, and forgets what was before it.
    #[track_caller]
    pub(super) fn expect(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            // Of a terminal without a process, nothing can be read.
            let read = self.master.read(&mut buffer).unwrap_or(0);
            assert!(read > 0, "`{text}` is not in:\n{}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    }

    pub(super) fn send(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn commands_are_typed_completed_and_interrupted() {
    let place = Place::new();
    let mut terminal = Terminal::start(&place, &["debug", "--invoke", "main", "loops.wat"]);
    terminal.expect("(wasm-jit) ");
    // Completion, of a command and of a function.
    terminal.send("tbr\ttur\t\r");
    terminal.expect("Temporary breakpoint 1: ");
    terminal.expect("(wasm-jit) ");
    terminal.send("run\r");
    terminal.expect("Temporary breakpoint 1, ");
    terminal.expect("local.get $count");
    terminal.expect("(wasm-jit) ");
    terminal.send("print $count\r");
    terminal.expect("\n0\r\n");
    terminal.send("stepi\r");
    terminal.expect("i64.const 1");
    // An empty line repeats it.
    terminal.send("\r");
    terminal.expect("i64.add");
    terminal.send("finish\r");
    terminal.expect("Returned: 1");
    terminal.expect("(wasm-jit) ");
    terminal.send("continue\r");
    // The echo shows that the program runs, or soon will; Ctrl-C stops it.
    terminal.expect("continue");
    terminal.expect("\n");
    terminal.send("\x03");
    terminal.expect("Paused");
    terminal.expect("(wasm-jit) ");
    terminal.send("set $stop = 5\r");
    terminal.expect("(wasm-jit) ");
    terminal.send("continue\r");
    terminal.expect("The program has ended");
    // History: the line before the last one.
    terminal.send("\x1b[A\x1b[A\r");
    terminal.expect("the program is not stopped");
    terminal.send("quit\r");
    assert!(terminal.child.wait().unwrap().success());
    assert!(place.path("wasm-jit/debug_history").exists());
}
