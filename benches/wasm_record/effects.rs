//! Three methods of finding what the host has changed in a memory:
//!
//! * a log of the ranges to which the host gets access, which the recorder uses (`WriteLog`);
//! * write protection of the memory while the host runs: the first write to each page faults, and a
//!   copy of the page is compared afterwards;
//! * a shadow memory, as in Wasm-R3: each load of the program is compared with what the program
//!   itself has stored there.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use benches::options::Options;
use benches::report::Table;
use nix::sys::mman::{ProtFlags, mprotect};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use wasm_jit::{
    CallObserver, Caller, Engine, Error, Func, Instance, Linker, Memory, Module, Store, StoreContextMut, Val,
    WriteLog,
};
use wasm_jit_hooks::{AccessKind, memory};

const PAGE: usize = 4096;

/// Each function does what its name says, as often as its argument says.
fn program(pages: u64) -> String {
    let host = |name: &str| {
        format!(
            "(func (export \"{name}\") (param $n i32)
                (loop $again (call ${name})
                    (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))"
        )
    };
    format!(
        "(module (import \"h\" \"nothing\" (func $nothing)) (import \"h\" \"writes\" (func $writes))
            (memory (export \"memory\") {pages})
            {nothing} {writes}
            (func (export \"loads\") (param $n i32) (local $sum i64)
                (loop $again
                    (local.set $sum (i64.add (local.get $sum)
                        (i64.load (i32.and (i32.shl (local.get $n) (i32.const 3)) (i32.const 0xfff8)))))
                    (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
                (i64.store (i32.const 8) (local.get $sum))))",
        nothing = host("nothing"),
        writes = host("writes"),
    )
}

struct Running {
    module: Module,
    store: Store<Option<Memory>>,
    instance: Instance,
    memory: Memory,
}

impl Running {
    /// A program whose memory, of this many MiB, is in use.
    fn new(megabytes: u64) -> Self {
        let engine = Engine::default();
        let module = Module::new(&engine, program(16 * megabytes)).expect("a valid module");
        let mut linker: Linker<Option<Memory>> = Linker::new(&engine);
        linker.func_wrap("h", "nothing", || ()).expect("a new name");
        let writes = |mut caller: Caller<'_, Option<Memory>>| -> Result<(), Error> {
            let memory = caller.data().expect("the memory of the program");
            memory.write(&mut caller, 8 * PAGE + 100, &[1; 64])?;
            Ok(())
        };
        linker.func_wrap("h", "writes", writes).expect("a new name");
        let mut store = Store::new(&engine, None);
        let instance = linker.instantiate(&mut store, &module).expect("its imports are defined");
        let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
        memory.data_mut(&mut store).fill(3);
        *store.data_mut() = Some(memory);
        Self { module, store, instance, memory }
    }

    /// Nanoseconds of an iteration: the least of the runs.
    fn time(&mut self, name: &str, runs: u32, iterations: i32) -> f64 {
        let function =
            self.instance.get_typed_func::<i32, ()>(&mut self.store, name).expect("it is exported");
        let run = |_| {
            let start = Instant::now();
            function.call(&mut self.store, iterations).expect("it returns");
            start.elapsed().as_nanos() as f64 / f64::from(iterations)
        };
        (0..runs).map(run).fold(f64::INFINITY, f64::min)
    }
}

/// Performs an action before and after each call to the host.
struct AroundHost<B, A> {
    before: B,
    after: A,
}

type Program<'a> = Caller<'a, Option<Memory>>;

impl<B, A> CallObserver<Option<Memory>> for AroundHost<B, A>
where
    B: Fn(&Program<'_>) + Send + Sync,
    A: Fn(&Program<'_>) + Send + Sync,
{
    fn enter(&self, _: StoreContextMut<'_, Option<Memory>>, _: &Func, _: &[Val]) -> Result<(), Error> {
        Ok(())
    }

    fn leave(
        &self,
        _: StoreContextMut<'_, Option<Memory>>,
        _: &Func,
        _: Result<&[Val], &Error>,
    ) -> Result<(), Error> {
        Ok(())
    }

    fn enter_host(&self, caller: Program<'_>, _: &Func, _: &[Val]) -> Result<(), Error> {
        (self.before)(&caller);
        Ok(())
    }

    fn leave_host(&self, caller: Program<'_>, _: &Func, _: Result<&[Val], &Error>) -> Result<(), Error> {
        (self.after)(&caller);
        Ok(())
    }
}

/// Finds changes by the log.
fn logging(log: WriteLog) -> Arc<dyn CallObserver<Option<Memory>>> {
    let restarted = log.clone();
    Arc::new(AroundHost {
        before: move |caller: &Program<'_>| restarted.restart(caller),
        after: move |caller: &Program<'_>| {
            for before in log.take() {
                let now = &before.memory.data(caller)[before.offset..][..before.bytes.len()];
                black_box(now != before.bytes);
            }
        },
    })
}

/// The memory that is protected: its start and its end.
static PROTECTED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// The pages that the host has written, and copies of them.
static WRITTEN: AtomicUsize = AtomicUsize::new(0);
const MAX_WRITTEN: usize = 64;
static PAGES: [AtomicUsize; MAX_WRITTEN] = [const { AtomicUsize::new(0) }; MAX_WRITTEN];
static COPIES: [AtomicU64; MAX_WRITTEN * PAGE / 8] = [const { AtomicU64::new(0) }; MAX_WRITTEN * PAGE / 8];

/// What handled faults before.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

fn protect(range: Range<usize>, protection: ProtFlags) {
    let start = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(range.start));
    // SAFETY: pages of the memory of a program that waits for its host; with any of these
    // protections, accesses end or come to the handler.
    unsafe { mprotect(start.expect("a memory is not at 0"), range.len(), protection) }
        .expect("the protection of a memory can be changed");
}

/// The words of a page.
fn words(page: usize) -> impl Iterator<Item = u64> {
    let start = std::ptr::with_exposed_provenance::<u64>(page);
    // SAFETY: a page of a memory, which is readable, and which no other thread writes.
    (0..PAGE / 8).map(move |at| unsafe { start.add(at).read_volatile() })
}

/// Copies the page, and lets the host write to it.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid information.
    let address = unsafe { (*info).si_addr() } as usize;
    let [start, end] = [0, 1].map(|at| PROTECTED[at].load(Ordering::Relaxed));
    let number = WRITTEN.load(Ordering::Relaxed);
    if (start..end).contains(&address) && number < MAX_WRITTEN {
        let page = address & !(PAGE - 1);
        for (copy, word) in COPIES[number * PAGE / 8..].iter().zip(words(page)) {
            copy.store(word, Ordering::Relaxed);
        }
        PAGES[number].store(page, Ordering::Relaxed);
        WRITTEN.store(number + 1, Ordering::Relaxed);
        return protect(page..page + PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    }
    type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: the address of the engine's handler, which has this type.
    let before: Handler = unsafe { std::mem::transmute(BEFORE.load(Ordering::Relaxed)) };
    before(signal, info, context);
}

fn install() {
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK;
    let action = SigAction::new(SigHandler::SigAction(on_fault), flags, SigSet::empty());
    // SAFETY: the handler is async-signal-safe: it uses atomics and mprotect.
    let before = unsafe { sigaction(Signal::SIGSEGV, &action) }.expect("a handler can be installed");
    let SigHandler::SigAction(before) = before.handler() else { panic!("the engine handles faults") };
    BEFORE.store(before as usize, Ordering::Relaxed);
}

/// Finds changes by write protection.
fn protecting() -> Arc<dyn CallObserver<Option<Memory>>> {
    Arc::new(AroundHost {
        before: |_: &Program<'_>| {
            WRITTEN.store(0, Ordering::Relaxed);
            protect(range(), ProtFlags::PROT_READ);
        },
        after: |_: &Program<'_>| {
            for number in 0..WRITTEN.load(Ordering::Relaxed) {
                let copy = COPIES[number * PAGE / 8..].iter().map(|word| word.load(Ordering::Relaxed));
                black_box(words(PAGES[number].load(Ordering::Relaxed)).ne(copy.take(PAGE / 8)));
            }
            protect(range(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        },
    })
}

fn range() -> Range<usize> {
    PROTECTED[0].load(Ordering::Relaxed)..PROTECTED[1].load(Ordering::Relaxed)
}

/// What each of the ways costs.
pub(super) fn ways(options: &Options) -> Table {
    let mut table = Table::new(
        "Three ways to find what the host has changed in a memory",
        "Nanoseconds, least of the runs: of a call of the host that writes nothing, of one that writes 64 bytes, and of a load \
         of the program in a loop. `log` is what the recorder does; `protected` makes the memory read-only while the host \
         runs; `shadow` compares each load with a shadow memory.",
        &["way", "memory MiB", "a call", "one that writes", "a load"],
    );
    let (runs, loads) = (options.runs(9), options.either(1_000_000, 1000));
    for megabytes in [1, 64] {
        for way in ["none", "log", "protected", "shadow"] {
            options.progress(format!("{way}, {megabytes} MiB"));
            let mut program = Running::new(megabytes);
            let mut hook = None;
            match way {
                "log" => {
                    let log = WriteLog::start(&mut program.store);
                    program.store.observe_calls(logging(log)).expect("there is memory for trampolines");
                }
                "protected" => {
                    let start = program.memory.data_ptr(&program.store).expose_provenance();
                    PROTECTED[0].store(start, Ordering::Relaxed);
                    PROTECTED[1].store(start + program.memory.data_size(&program.store), Ordering::Relaxed);
                    if BEFORE.load(Ordering::Relaxed) == 0 {
                        install();
                    }
                    program.store.observe_calls(protecting()).expect("there is memory for trampolines");
                }
                "shadow" => {
                    let words = program.memory.data_size(&program.store) / 8;
                    let shadow: Vec<AtomicU64> =
                        (0..words).map(|_| AtomicU64::new(0x0303_0303_0303_0303)).collect();
                    let compare = move |access: &wasm_jit_hooks::Access| {
                        let (word, value) = (&shadow[access.address as usize / 8], access.value.unwrap_or(0));
                        if access.kind == AccessKind::Store || word.load(Ordering::Relaxed) != value {
                            word.store(value, Ordering::Relaxed);
                        }
                    };
                    let made = memory(&program.module, |_| true, compare).expect("probes can be made");
                    made.activate().expect("probes can be switched on");
                    hook = Some(made);
                }
                _ => {}
            }
            // Protecting a large memory takes milliseconds.
            let calls =
                if way == "protected" { options.either(100, 20) } else { options.either(20_000, 200) };
            let [call, writing] = ["nothing", "writes"].map(|name| program.time(name, runs, calls));
            let load = program.time("loads", runs, loads);
            drop(hook);
            table.push(vec![way.into(), megabytes.into(), call.into(), writing.into(), load.into()]);
        }
    }
    table
}
