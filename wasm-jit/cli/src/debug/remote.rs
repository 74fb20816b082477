//! `wasm-jit debug --connect`: commands for a program that was started by `run --debug-port`.

use std::io::{BufRead, BufReader, Write};
use std::process::ExitCode;

use nix::sys::signal::Signal;

use super::address::Address;
use super::commands::Answer;
use super::port::FAILED;
use super::{converse, say};
use crate::Failure;
use crate::signals::Signals;

pub(super) fn connect(address: &Address, commands: &[String], is_batch: bool) -> Result<ExitCode, Failure> {
    let about = |error| Failure::new(error).about(address);
    let signals = Signals::block([Signal::SIGINT])?;
    let mut stream = BufReader::new(address.connect().map_err(about)?);
    stream.get_mut().write_all(b"session\n").map_err(about)?;
    let other = address.clone();
    signals.obey(move |_| {
        // If nobody listens, the session ends as well.
        let _ = other.connect().and_then(|mut stream| stream.write_all(b"pause\n"));
    });
    let answer = |stream: &mut BufReader<_>| {
        let mut text = Vec::new();
        let read = stream.read_until(0, &mut text).map_err(|error| error.to_string())?;
        // Without the zero, the program and its process have ended.
        if read == 0 {
            return Ok(Answer::Quit);
        }
        let text = String::from_utf8_lossy(text.strip_suffix(b"\0").unwrap_or(&text)).into_owned();
        match text.strip_prefix(FAILED) {
            Some(message) => Err(message.to_owned()),
            None => Ok(Answer::Text(text)),
        }
    };
    match answer(&mut stream).map_err(Failure::new)? {
        Answer::Text(text) => say(&text),
        Answer::Quit => return Ok(ExitCode::SUCCESS),
    }
    converse(commands, is_batch, |line| {
        let sent = stream.get_mut().write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
        sent.map_err(|error| error.to_string())?;
        answer(&mut stream)
    })
}
