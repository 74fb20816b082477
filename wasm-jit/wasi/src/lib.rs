//! WASI preview 1: the system interface that programs of clang, Rust, Go and TinyGo import.
//!
//! A [`WasiCtx`] is what one program sees of the host: its arguments, its environment, its standard
//! streams, and the directories that were opened for it beforehand. It is made by a
//! [`WasiCtxBuilder`], and [`add_to_linker`] offers the calls to a module, under the names
//! `wasi_snapshot_preview1` and `wasi_unstable` (the older interface, which differs in a few
//! records).
//!
//! # What a call does
//! 1. The module's exported memory becomes a `GuestMemory`: the one place where addresses of the
//!    program are checked. An address outside of it traps.
//! 2. A file descriptor of the program is looked up in the context's table. It is a number of its
//!    own, not the host's.
//! 3. Paths go through cap-std, which resolves them below the descriptor's directory and refuses
//!    whatever leads out of it: `..`, absolute paths, symbolic links. The program gets `EPERM`.
//! 4. File data goes from the kernel straight to the program's memory or back, with no copy in
//!    between.
//! 5. The program gets an `Errno`: 0, or why it failed.
//!
//! To read it: `linker.rs` lists the calls, `memory.rs` checks addresses, `context.rs` has the
//! descriptors; then any call's own file.
//!
//! A context may be cloned: the clones are the same program, as its threads see it. Nothing but the
//! table itself is locked, so that a thread that waits for input holds up no other.
//!
//! Answers follow those of wasmtime where the interface leaves them open. What a program can make
//! the host allocate is bounded: paths by 4 KiB, lists of buffers by 1,024, subscriptions by
//! 16,384. So is the time of a call that does not wait: random bytes by 64 MiB. A call that waits,
//! for a clock, a standard stream of the host, or a FIFO in a directory, ends with an interrupt.

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
pub use errno::Exit;
pub use linker::add_to_linker;
pub use stream::OutputPipe;
