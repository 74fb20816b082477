//! Signals that arrive while another one is handled, on a thread's signal stack; and the signal
//! that interrupts programs, sent by other parts of the process.
//!
//! The only test of its process: it installs handlers.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wasm_jit::{Config, Engine, Func, Instance, Module, Store, Trap};

/// Bits of the signals that were handled.
static SEEN: AtomicU32 = AtomicU32::new(0);
/// The top of the signal stack.
static TOP: AtomicUsize = AtomicUsize::new(0);
/// Bytes of the signal stack that were used below the top, at most.
static USED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(signal: i32) {
    let here = 0_u8;
    let used = TOP.load(Ordering::SeqCst) - std::hint::black_box(&raw const here).addr();
    USED.fetch_max(used, Ordering::SeqCst);
    SEEN.fetch_or(1 << signal, Ordering::SeqCst);
}

/// The other signals arrive when this one has been handled.
extern "C" fn send_others(signal: i32) {
    [libc::SIGUSR1, libc::SIGUSR2, libc::SIGURG].into_iter().for_each(send);
    assert_eq!(SEEN.load(Ordering::SeqCst), 0, "handlers nest");
    handle(signal);
}

fn install(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: all zero is a valid action; the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Sends this thread a signal, as other parts of the process may do.
fn send(signal: i32) {
    // SAFETY: takes nothing and touches no memory.
    send_to(unsafe { libc::gettid() }, signal);
}

fn send_to(thread: i32, signal: i32) {
    // SAFETY: there is a handler for the signal.
    assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) }, 0);
}

/// Sends several signals at the same time.
fn send_together(signals: &[i32]) {
    // SAFETY: changes this thread's mask, and restores it.
    unsafe {
        let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        libc::sigemptyset(set.as_mut_ptr());
        signals.iter().for_each(|signal| assert_eq!(libc::sigaddset(set.as_mut_ptr(), *signal), 0));
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        signals.iter().for_each(|signal| send(*signal));
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
}

/// Gives this thread a signal stack larger than any that it needs.
fn use_signal_stack() {
    const SIZE: usize = 64 << 10;
    let stack = Vec::leak(vec![0_u128; SIZE / 16]).as_mut_ptr();
    let stack = libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: SIZE };
    // SAFETY: the memory is never freed.
    assert_eq!(unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) }, 0);
    TOP.store(stack.ss_sp.addr() + SIZE, Ordering::SeqCst);
}

/// Causes a trap in an engine whose interrupt signal is this one.
fn trap_in_engine(signal: i32) {
    let engine = Engine::new(Config::new().interrupt_signal(signal)).unwrap();
    let mut store = Store::new(&engine, ());
    let _handle = store.interrupt_handle();
    let module = Module::new(&engine, r#"(module (func (export "trap") unreachable))"#).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let trap = instance.get_typed_func::<(), ()>(&mut store, "trap").unwrap();
    assert!(trap.call(&mut store, ()).unwrap_err().trap().is_some());
}

/// Each signal of another part of the process reaches the handler that it has installed, wherever
/// it arrives, and the program continues. Those of the engine do not.
fn the_interrupt_signal_of_others_is_theirs() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let handle = store.interrupt_handle();
    let text = r#"(module (import "" "f" (func $f)) (func (export "run") (loop (call $f) (br 0))))"#;
    let module = Module::new(&engine, text).unwrap();
    let f = Func::wrap(&mut store, || {}).unwrap();
    let instance = Instance::new(&mut store, &module, &[f.into()]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    SEEN.store(0, Ordering::SeqCst);
    // SAFETY: takes nothing and touches no memory.
    let thread = unsafe { libc::gettid() };
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            for number in 0..300 {
                send_to(thread, libc::SIGURG);
                let since = Instant::now();
                while SEEN.swap(0, Ordering::SeqCst) == 0 {
                    if since.elapsed() > Duration::from_secs(60) {
                        handle.interrupt();
                        panic!("signal {number} was lost");
                    }
                    std::thread::yield_now();
                }
            }
            handle.interrupt();
        });
        assert_eq!(run.call(&mut store, ()).unwrap_err().trap(), Some(Trap::Interrupt));
        sender.join().unwrap();
    });
    assert_eq!(SEEN.load(Ordering::SeqCst), 0, "the engine's own signal");
}

#[test]
fn handlers_of_the_engine_do_not_nest() {
    use_signal_stack();
    for signal in [libc::SIGURG, libc::SIGUSR1, libc::SIGUSR2] {
        install(signal, handle);
    }
    install(libc::SIGFPE, send_others);
    trap_in_engine(libc::SIGURG);
    trap_in_engine(libc::SIGUSR2);

    // One signal frame, and one of each handler.
    send(libc::SIGUSR2);
    assert_eq!(SEEN.swap(0, Ordering::SeqCst), 1 << libc::SIGUSR2);
    let one = USED.swap(0, Ordering::SeqCst);

    // SIGUSR1 is not the engine's: it comes first, and another one nests. The third waits.
    let together = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGURG];
    let all = together.iter().fold(0, |all, signal| all | 1 << signal);
    send_together(&together);
    assert_eq!(SEEN.swap(0, Ordering::SeqCst), all);
    let used = USED.swap(0, Ordering::SeqCst);
    assert!(2 * used < 5 * one, "{used} bytes of the signal stack, {one} for one signal");

    // Signals that arrive while the signal of a trap is handled.
    send(libc::SIGFPE);
    assert_eq!(SEEN.swap(0, Ordering::SeqCst), all | 1 << libc::SIGFPE);
    let used = USED.swap(0, Ordering::SeqCst);
    assert!(2 * used < 5 * one, "{used} bytes of the signal stack, {one} for one signal");

    the_interrupt_signal_of_others_is_theirs();
}
