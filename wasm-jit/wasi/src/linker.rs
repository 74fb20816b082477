//! Defines the WASI functions in a linker.

use wasm_jit::{Caller, Error, Extern, Linker, Trap, WriteAnnouncer};

use rustix::time::ClockId;

use super::clock::now;
use super::context::WasiCtx;
use super::errno::{Errno, Failure, Outcome};
use super::memory::GuestMemory;
use super::types::Abi;

/// Defines the functions of WASI preview 1 in a linker, as `wasi_snapshot_preview1` and
/// `wasi_unstable`. `get` returns the program's context in the store's data; it is called for every
/// WASI call.
///
/// The instance must export its memory as `memory`. If a program exits, the call that runs it fails
/// with [`Error::Host`], which contains an [`Exit`](super::Exit).
///
/// # Errors
/// [`Error::DuplicateDefinition`] if the linker already has one of the functions.
///
/// ```
/// use wasm_jit::{Engine, Linker, Module, Store};
/// use wasm_jit_wasi::{Exit, OutputPipe, WasiCtxBuilder};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
///     (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
///     (memory (export "memory") 1)
///     (data (i32.const 0) "\10\00\00\00\06\00\00\00")
///     (data (i32.const 16) "hello\n")
///     (func (export "_start")
///         (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
///         (call $proc_exit (i32.const 3))))"#)?;
/// let stdout = OutputPipe::new(1 << 20);
/// let mut store = Store::new(&engine, WasiCtxBuilder::new().stdout(stdout.clone()).build());
/// let mut linker = Linker::new(&engine);
/// wasm_jit_wasi::add_to_linker(&mut linker, |wasi| wasi)?;
/// let instance = linker.instantiate(&mut store, &module)?;
/// let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
/// let error = start.call(&mut store, ()).unwrap_err();
/// assert_eq!(error.downcast_ref(), Some(&Exit(3)));
/// assert_eq!(stdout.contents(), b"hello\n");
/// # Ok::<(), wasm_jit::Error>(())
/// ```
pub fn add_to_linker<T: 'static>(
    linker: &mut Linker<T>,
    get: impl Fn(&mut T) -> &mut WasiCtx + Copy + Send + Sync + 'static,
) -> Result<(), Error> {
    add(linker, get, "wasi_snapshot_preview1", Abi::Preview1)?;
    add(linker, get, "wasi_unstable", Abi::Unstable)
}

fn add<T: 'static>(
    linker: &mut Linker<T>,
    get: impl Fn(&mut T) -> &mut WasiCtx + Copy + Send + Sync + 'static,
    module: &str,
    abi: Abi,
) -> Result<(), Error> {
    /// Defines one function: its name, its context (the interface version, the time when the call
    /// began), and its arguments.
    macro_rules! define {
        ($name:ident $(, $abi:ident $(at $began:ident)?)?; $($argument:ident: $type:ty),*) => {
            linker.func_wrap(
                module,
                stringify!($name),
                move |mut caller: Caller<'_, T>, $($argument: $type),*| -> Result<u32, Error> {
                    let memory = memory(&mut caller);
                    $($(let $began = now(ClockId::Monotonic);)?)?
                    loop {
                        let outcome =
                            get(caller.data_mut()).$name(&memory, $(($abi $(, $began)?),)? $($argument),*);
                        if !is_retried(&caller, outcome) {
                            return answer(outcome);
                        }
                    }
                },
            )?;
        };
    }
    define!(args_get; pointers: u32, buffer: u32);
    define!(args_sizes_get; count: u32, bytes: u32);
    define!(environ_get; pointers: u32, buffer: u32);
    define!(environ_sizes_get; count: u32, bytes: u32);
    define!(clock_res_get; clock: u32, result: u32);
    define!(clock_time_get; clock: u32, precision: u64, result: u32);
    define!(fd_advise; fd: u32, offset: u64, length: u64, advice: u32);
    define!(fd_allocate; fd: u32, offset: u64, length: u64);
    define!(fd_close; fd: u32);
    define!(fd_datasync; fd: u32);
    define!(fd_fdstat_get; fd: u32, result: u32);
    define!(fd_fdstat_set_flags; fd: u32, flags: u32);
    define!(fd_fdstat_set_rights; fd: u32, rights: u64, inheriting: u64);
    define!(fd_filestat_get, abi; fd: u32, result: u32);
    define!(fd_filestat_set_size; fd: u32, size: u64);
    define!(fd_filestat_set_times; fd: u32, atim: u64, mtim: u64, flags: u32);
    define!(fd_pread; fd: u32, iovecs: u32, count: u32, offset: u64, result: u32);
    define!(fd_prestat_dir_name; fd: u32, path: u32, length: u32);
    define!(fd_prestat_get; fd: u32, result: u32);
    define!(fd_pwrite; fd: u32, iovecs: u32, count: u32, offset: u64, result: u32);
    define!(fd_read; fd: u32, iovecs: u32, count: u32, result: u32);
    define!(fd_readdir; fd: u32, buffer: u32, length: u32, cookie: u64, result: u32);
    define!(fd_renumber; from: u32, to: u32);
    define!(fd_seek, abi; fd: u32, offset: i64, whence: u32, result: u32);
    define!(fd_sync; fd: u32);
    define!(fd_tell; fd: u32, result: u32);
    define!(fd_write; fd: u32, iovecs: u32, count: u32, result: u32);
    define!(path_create_directory; fd: u32, path: u32, length: u32);
    define!(path_filestat_get, abi; fd: u32, lookup: u32, path: u32, length: u32, result: u32);
    define!(path_filestat_set_times;
        fd: u32, lookup: u32, path: u32, length: u32, atim: u64, mtim: u64, flags: u32);
    define!(path_link;
        fd: u32, lookup: u32, path: u32, length: u32, new_fd: u32, new_path: u32, new_length: u32);
    define!(path_open;
        fd: u32, lookup: u32, path: u32, length: u32, oflags: u32, rights: u64, inheriting: u64, fdflags: u32, result: u32);
    define!(path_readlink; fd: u32, path: u32, length: u32, buffer: u32, buffer_length: u32, result: u32);
    define!(path_remove_directory; fd: u32, path: u32, length: u32);
    define!(path_rename; fd: u32, path: u32, length: u32, new_fd: u32, new_path: u32, new_length: u32);
    define!(path_symlink; contents: u32, contents_length: u32, fd: u32, path: u32, length: u32);
    define!(path_unlink_file; fd: u32, path: u32, length: u32);
    define!(poll_oneoff, abi at began; subscriptions: u32, events: u32, count: u32, result: u32);
    define!(proc_raise; signal: u32);
    define!(random_get; buffer: u32, length: u32);
    define!(sched_yield;);
    define!(sock_accept; fd: u32, flags: u32, result: u32);
    define!(sock_recv; fd: u32, iovecs: u32, count: u32, flags: u32, result: u32, result_flags: u32);
    define!(sock_send; fd: u32, iovecs: u32, count: u32, flags: u32, result: u32);
    define!(sock_shutdown; fd: u32, how: u32);
    // The only function without a result; it never returns.
    linker.func_wrap(
        module,
        "proc_exit",
        move |mut caller: Caller<'_, T>, code: u32| -> Result<(), Error> {
            let memory = memory(&mut caller);
            answer(get(caller.data_mut()).proc_exit(&memory, code)).map(|_| ())
        },
    )?;
    Ok(())
}

/// Whether a call that was interrupted by a signal is retried: the signal was not for this program.
fn is_retried<T>(caller: &Caller<'_, T>, outcome: Outcome) -> bool {
    outcome == Err(Failure::Errno(Errno::Intr)) && !caller.is_interrupted()
}

/// The exported memory of the calling instance, or an empty memory if it has none.
fn memory<'a, T>(caller: &mut Caller<'a, T>) -> GuestMemory<'a> {
    let ((base, announced), length) = match caller.get_export("memory") {
        Some(Extern::Memory(memory)) => (memory.announced(&*caller), memory.data_size(&*caller)),
        Some(Extern::SharedMemory(memory)) => {
            ((memory.data_ptr(), WriteAnnouncer::ignored()), memory.data_size())
        }
        _ => ((std::ptr::dangling_mut(), WriteAnnouncer::ignored()), 0),
    };
    // SAFETY: the memory is mapped as long as the store lives, which is longer than the caller, and
    // never shrinks; during the call, the store is borrowed by the caller, through which its bytes
    // are not accessed.
    unsafe { GuestMemory::new(base, length, announced) }
}

/// The result of the call for the program, or the error that ends it.
fn answer(outcome: Outcome) -> Result<u32, Error> {
    match outcome {
        Ok(()) => Ok(Errno::Success as u32),
        Err(Failure::Errno(errno)) => Ok(errno as u32),
        Err(Failure::OutOfBounds { .. }) => Err(Trap::MemoryOutOfBounds.into()),
        Err(Failure::Exit(exit)) => Err(Error::host(exit)),
    }
}
