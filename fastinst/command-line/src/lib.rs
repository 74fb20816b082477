//! Output, shell completions and manual pages for the commands `fastinst`, `tmax-probe` and
//! `wasm-jit`. Each command defines its own exit codes and messages.
//!
//! * [`print()`] writes a result to standard output. A closed pipe is not an error, so that a
//!   command can be piped to `head`; a full disk is.
//! * [`say`] writes a diagnostic to standard error.
//! * [`wide_lines`] finds hand-aligned lines of help that are too wide, for a test of each command.
//! * [`Generate`] adds two subcommands: `completions SHELL` prints the completions for a
//!   shell, `man DIRECTORY` writes a manual page for the command and for each of its subcommands.
//!
//! # Example
//! ```
//! use clap::{CommandFactory, Parser, Subcommand};
//! use fastinst_command_line::{Generate, print};
//!
//! #[derive(Parser)]
//! #[command(name = "greet")]
//! struct Arguments {
//!     #[command(subcommand)]
//!     verb: Verb,
//! }
//!
//! #[derive(Subcommand)]
//! enum Verb {
//!     /// Print a greeting
//!     Hello,
//!     #[command(flatten)]
//!     Generate(Generate),
//! }
//!
//! fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
//!     match &arguments.verb {
//!         Verb::Hello => print(|out| writeln!(out, "hello"))?,
//!         Verb::Generate(generate) => generate.run(Arguments::command())?,
//!     }
//!     Ok(())
//! }
//!
//! run(&Arguments::parse_from(["greet", "hello"]))?;
//! run(&Arguments::parse_from(["greet", "completions", "bash"]))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Errors
//! [`print()`] returns the errors of writing; [`GenerateError`] names the file that cannot be
//! written.

mod generate;
mod width;

pub use generate::{Generate, GenerateError};
pub use width::wide_lines;

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, Write};

/// Writes a result to standard output. A closed pipe is not an error: its reader, `head` for
/// example, has read what it wanted.
///
/// # Errors
/// The errors of writing to standard output, and of `write`.
pub fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    print_to(io::stdout().lock(), write)
}

/// Writes a diagnostic, `PROGRAM: MESSAGE`, to standard error. One that cannot be written is lost:
/// the result and the exit code of the command do not depend on it.
pub fn say(program: &str, message: impl Display) {
    let _ = writeln!(io::stderr(), "{program}: {message}");
}

fn print_to(out: impl Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer whose every write fails.
    struct Fails(ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is() {
        let write = |out: &mut dyn Write| out.write_all(b"result");
        assert!(print_to(Fails(ErrorKind::BrokenPipe), write).is_ok());
        let full = print_to(Fails(ErrorKind::StorageFull), write);
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn all_of_it_is_written() {
        let mut text = Vec::new();
        print_to(&mut text, |out| write!(out, "{}", "x".repeat(100_000))).unwrap();
        assert_eq!(text.len(), 100_000);
    }
}
