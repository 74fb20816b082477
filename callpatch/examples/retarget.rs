//! Gives two calls another target while a thread executes them: one wait for each step of the
//! batch, and no trap.
//!
//! Run by `cargo run --release -p callpatch --example retarget`. Prints:
//!
//! ```text
//! before: 2000 calls of the first hook, 0 of the second
//! after: 0 calls of the first hook, 2000 of the second
//! ```

use std::arch::global_asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use callpatch::{CallSite, Clobbers, Error, retarget};

// A function with two calls to the first hook; the second call crosses a cache line.
global_asm!(
    ".globl work, first_call, second_call",
    ".balign 64",
    ".skip 53, 0xcc",
    "work:",
    "sub rsp, 8",
    "first_call:",
    "call {hook}",
    "second_call:",
    "call {hook}",
    "add rsp, 8",
    "ret",
    hook = sym first_hook,
);

unsafe extern "C" {
    safe fn work();
    static first_call: u8;
    static second_call: u8;
}

thread_local! {
    static CALLS: Cell<[u32; 2]> = const { Cell::new([0; 2]) };
}

extern "C" fn first_hook() {
    let [first, second] = CALLS.get();
    CALLS.set([first + 1, second]);
}

extern "C" fn second_hook() {
    let [first, second] = CALLS.get();
    CALLS.set([first, second + 1]);
}

/// The number of calls to each hook in 1000 runs on this thread.
fn calls() -> [u32; 2] {
    CALLS.set([0; 2]);
    (0..1000).for_each(|_| work());
    CALLS.get()
}

fn main() -> Result<(), Error> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                work();
            }
        });
        let result = retarget_calls();
        is_done.store(true, Ordering::Relaxed);
        result
    })
}

fn retarget_calls() -> Result<(), Error> {
    let decode = |address: *const u8| {
        // SAFETY: 1. an instruction starts there, in the program's own code, which only callpatch
        // writes; 2. `work` is correct without the call; 3. no code branches into the middle of it.
        unsafe { CallSite::decode(address as usize, Clobbers::Nothing) }
    };
    let sites = [decode(&raw const first_call)?, decode(&raw const second_call)?];
    let [first, second] = calls();
    println!("before: {first} calls of the first hook, {second} of the second");

    let target = second_hook as *const () as usize;
    // SAFETY: both hooks have the same type and live as long as the program.
    for site in unsafe { retarget(&sites.map(|site| (site, target))) } {
        // Retargeted sites are inactive.
        site?.activate()?;
    }
    wordpatch::serialize_all_cores()?;
    let [first, second] = calls();
    println!("after: {first} calls of the first hook, {second} of the second");
    Ok(())
}
