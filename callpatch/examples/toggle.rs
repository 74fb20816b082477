//! Deactivates and activates a call while another thread executes it.
//!
//! Run by `cargo run --release -p callpatch --example toggle`. Prints:
//!
//! ```text
//! on: 1000 of 1000 runs called the hook
//! off: 0 of 1000 runs called the hook
//! on: 1000 of 1000 runs called the hook
//! toggled 100000 times under a running thread
//! ```

use std::arch::global_asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use callpatch::{CallSite, Clobbers, Error};

// A function that calls the hook. The call crosses a cache line; callpatch changes bytes on one
// side of it only.
global_asm!(
    ".globl work, work_call",
    ".balign 64",
    ".skip 58, 0xcc",
    "work:",
    "sub rsp, 8",
    "work_call:",
    "call {hook}",
    "add rsp, 8",
    "ret",
    hook = sym hook,
);

unsafe extern "C" {
    safe fn work();
    static work_call: u8;
}

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn hook() {
    CALLS.set(CALLS.get() + 1);
}

/// The number of calls to the hook in 1000 runs on this thread.
fn calls() -> u32 {
    CALLS.set(0);
    (0..1000).for_each(|_| work());
    CALLS.get()
}

fn main() -> Result<(), Error> {
    // SAFETY: 1. an instruction starts there, in the program's own code, which only callpatch
    // writes; 2. `work` is correct without the call; 3. no code branches into the middle of it.
    let site = unsafe { CallSite::decode(&raw const work_call as usize, Clobbers::Nothing)? };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                work();
            }
        });
        let toggled = toggle(&site);
        is_done.store(true, Ordering::Relaxed);
        toggled
    })
}

fn toggle(site: &CallSite) -> Result<(), Error> {
    println!("on: {} of 1000 runs called the hook", calls());
    site.deactivate()?;
    // Until a processor sees the store, it may still make the call; this ends that time.
    wordpatch::serialize_all_cores()?;
    println!("off: {} of 1000 runs called the hook", calls());
    site.activate()?;
    wordpatch::serialize_all_cores()?;
    println!("on: {} of 1000 runs called the hook", calls());
    // One atomic store each: no wait, no trap, no lock.
    for _ in 0..50_000 {
        site.deactivate()?;
        site.activate()?;
    }
    println!("toggled 100000 times under a running thread");
    Ok(())
}
