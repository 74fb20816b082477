//! WASI preview 1: the system interface imported by programs that clang, Rust, Go and TinyGo
//! compile.
//!
//! A [`WasiCtx`] is one program's view of the host: its arguments, its environment, its standard
//! streams, and its preopened directories. It is built by a [`WasiCtxBuilder`], and
//! [`add_to_linker`] defines the functions for a module, under the names `wasi_snapshot_preview1`
//! and `wasi_unstable` (the older interface, which differs in a few records).
//!
//! # Steps of a call
//! 1. The module's exported memory becomes a `GuestMemory`, the only place where addresses of the
//!    program are checked. An address outside the memory traps.
//! 2. A file descriptor of the program is looked up in the context's table. Its number is
//!    independent of the host's.
//! 3. Paths go through cap-std, which resolves them below the descriptor's directory and refuses
//!    paths that lead out of it by `..`, by an absolute path, or by a symbolic link. The program
//!    gets `EPERM`.
//! 4. File data is transferred directly between the kernel and the program's memory, without an
//!    intermediate copy.
//! 5. The program gets an `Errno`: 0, or the reason for the failure.
//!
//! `linker.rs` lists the functions, `memory.rs` checks addresses, `context.rs` has the descriptors;
//! the other files have one group of functions each.
//!
//! Clones of a context belong to the same program, for its threads. Only the table itself is
//! locked, so that a thread that waits for input does not block others.
//!
//! Where the interface leaves a result open, it is the same as in wasmtime. The memory that a
//! program can make the host allocate is bounded: paths have at most 4 KiB, lists of buffers 1,024
//! entries, calls 16,384 subscriptions, and programs 1,000 descriptors
//! ([`WasiCtxBuilder::max_descriptors`]). The time of a call that does not wait is bounded, too: at
//! most 64 MiB of random bytes, or of a file. A file is not limited in size, except by the limit of
//! the process (`RLIMIT_FSIZE`): one that has such a limit must ignore SIGXFSZ, which would end it;
//! the program then gets an error. A call that waits, for a clock, a standard stream of the host,
//! or a FIFO in a directory, ends on an interrupt.

mod args;
mod builder;
mod clock;
mod context;
mod dir;
mod errno;
mod fd;
#[cfg(test)]
mod hostile;
mod io;
mod linker;
mod memory;
mod path;
mod poll;
mod process;
mod random;
mod sock;
mod stat;
mod stream;
#[cfg(test)]
mod testing;
mod types;

pub use builder::WasiCtxBuilder;
pub use context::WasiCtx;
pub use linker::add_to_linker;
pub use stream::OutputPipe;
pub use wasm_jit::Exit;
