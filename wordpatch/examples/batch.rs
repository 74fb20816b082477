//! Patches a hundred instructions of generated code at once: a batch makes two waits, regardless of
//! its size.
//!
//! Run by `cargo run --release -p wordpatch --example batch`. Prints:
//!
//! ```text
//! 99 functions return 2, one was refused
//! refused: other bytes than expected
//! ```

use wordpatch::code_memory::CodeBuffer;
use wordpatch::{Error, Patch};

/// `mov eax, value; ret`
fn function(value: u32) -> [u8; 6] {
    let [a, b, c, d] = value.to_le_bytes();
    [0xb8, a, b, c, d, 0xc3]
}

fn call(address: usize) -> u32 {
    // SAFETY: `main` has put a function of this type there.
    let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(address) };
    function()
}

fn main() -> Result<(), Error> {
    // There are no gaps between the functions, so their instructions cross boundaries at all
    // offsets.
    let mut buffer = CodeBuffer::new(4096)?;
    let offsets: Vec<usize> =
        (0..100).map(|_| buffer.append(&function(1), 1).expect("600 bytes of 4096")).collect();
    let code = buffer.seal()?;
    let addresses: Vec<usize> = offsets.iter().map(|offset| code.address() + offset).collect();

    let (old, wrong, new) = (function(1), function(7), function(2));
    let patches: Vec<Patch<'_>> = addresses
        .iter()
        .enumerate()
        // One patch expects other bytes: it is refused, and the others are made.
        .map(|(number, address)| Patch {
            address: *address,
            expected: if number == 50 { &wrong[..5] } else { &old[..5] },
            replacement: &new[..5],
        })
        .collect();
    // SAFETY: an instruction starts at each address, in code that only this program's calls to
    // wordpatch write; `mov eax, 2` is correct for every caller; this is the only thread, with
    // SIGTRAP unblocked, and no branch goes into an instruction.
    let results = unsafe { wordpatch::patch_all(&patches) };

    let changed = addresses.iter().filter(|address| call(**address) == 2).count();
    println!("{changed} functions return 2, one was refused");
    for error in results.into_iter().filter_map(Result::err) {
        match error {
            Error::Mismatch { .. } => println!("refused: other bytes than expected"),
            other => return Err(other),
        }
    }
    Ok(())
}
