//! Starts a patch of two instructions, and lets a finisher complete it.
//!
//! Run by `cargo run --release -p wordpatch --example outstanding`. Prints:
//!
//! ```text
//! begun: FirstWait, the functions return -1 and -1
//! finished: Finished, the functions return 2 and 3
//! ```

use std::arch::global_asm;
use std::time::{Duration, Instant};

use wordpatch::{Error, Finisher, Patch, State};

// Two functions whose instruction crosses a cache line.
global_asm!(
    ".globl width, height",
    ".balign 64",
    ".skip 62, 0xcc",
    "width:",
    "mov eax, -1",
    "ret",
    ".balign 64",
    ".skip 61, 0xcc",
    "height:",
    "mov eax, -1",
    "ret",
);

unsafe extern "C" {
    safe fn width() -> i32;
    safe fn height() -> i32;
}

fn main() -> Result<(), Error> {
    let patch =
        |address, replacement| Patch { address, expected: &[0xb8, 0xff, 0xff, 0xff, 0xff], replacement };
    let patches = [
        patch(width as *const () as usize, &[0xb8, 2, 0, 0, 0]),
        patch(height as *const () as usize, &[0xb8, 3, 0, 0, 0]),
    ];
    let finisher = Finisher::start()?;

    // SAFETY: an instruction starts at both addresses, in the program's own code, which stays
    // mapped; the new ones are correct for every caller; no thread blocks SIGTRAP (the finisher's
    // does not), and no branch goes into an instruction.
    let outstanding = unsafe { wordpatch::start_patch_all(&patches) };
    // Each instruction begins with INT3 now. A thread that executes it continues in a copy of the
    // old one.
    println!("begun: {:?}, the functions return {} and {}", outstanding.state(), width(), height());

    finisher.take_over(&outstanding)?;
    // The program can do other work here, while the finisher waits for the processors and makes the
    // remaining stores.
    let state = outstanding.wait(Instant::now() + Duration::from_secs(60))?;
    assert_eq!(state, State::Finished, "a finisher needs a few microseconds");
    // The result of each patch.
    outstanding.finish_all().into_iter().collect::<Result<(), Error>>()?;
    // Until then, a processor may still execute old code that it has fetched.
    wordpatch::serialize_all_cores()?;
    println!("finished: {state:?}, the functions return {} and {}", width(), height());
    Ok(())
}
