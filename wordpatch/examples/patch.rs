//! Patches the operand of an instruction while a thread executes it.
//!
//! Run by `cargo run --release -p wordpatch --example patch`. Prints:
//!
//! ```text
//! the thread saw 1000000, 2000000, 3000000 and nothing else
//! ```

use std::arch::global_asm;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

// A function that returns a constant. The instruction crosses a cache line, and the patches change
// bytes on both sides: the hardest case.
global_asm!(".globl limit", ".balign 64", ".skip 62, 0xcc", "limit:", "mov eax, 1000000", "ret");

unsafe extern "C" {
    safe fn limit() -> u32;
}

const VALUES: [u32; 3] = [1_000_000, 2_000_000, 3_000_000];

/// The bytes of `mov eax, value`.
fn mov_eax(value: u32) -> [u8; 5] {
    let [a, b, c, d] = value.to_le_bytes();
    [0xb8, a, b, c, d]
}

fn main() -> Result<(), wordpatch::Error> {
    let last_seen = AtomicU32::new(0);
    let is_done = AtomicBool::new(false);
    let execute = || {
        while !is_done.load(Ordering::Relaxed) {
            let value = limit();
            assert!(VALUES.contains(&value), "a mixture of two instructions: {value:#x}");
            last_seen.store(value, Ordering::Relaxed);
        }
    };
    let wait_until_seen = |value| {
        while last_seen.load(Ordering::Relaxed) != value {
            thread::yield_now();
        }
    };
    let patch = || {
        wait_until_seen(VALUES[0]);
        // While the instruction is patched, it may be a breakpoint, so every thread must be able to
        // take SIGTRAP.
        wordpatch::check_sigtrap_unblocked()?;
        for (old, new) in [(VALUES[0], VALUES[1]), (VALUES[1], VALUES[2])] {
            // SAFETY: an instruction starts there, in the program's own code, which only wordpatch
            // writes; every caller of `limit` can use the new value; no thread blocks SIGTRAP, and
            // no branch goes into the middle of the instruction.
            unsafe { wordpatch::patch(limit as *const () as usize, &mov_eax(old), &mov_eax(new))? };
            wait_until_seen(new);
        }
        Ok(())
    };
    let patched = thread::scope(|scope| {
        let executor = scope.spawn(execute);
        let patched = patch();
        is_done.store(true, Ordering::Relaxed);
        executor.join().expect("every value was one of the three");
        patched
    });
    if patched.is_ok() {
        println!("the thread saw 1000000, 2000000, 3000000 and nothing else");
    }
    patched
}
