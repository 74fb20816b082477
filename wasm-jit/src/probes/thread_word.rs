//! Thread-local quadwords that the stubs of probes access without a call.
//!
//! They are a thread-local variable in the form that the ABI calls initial-exec (ELF Handling For
//! Thread-Local Storage, section 4.4.6 for x86-64): at the same offset from the thread pointer in
//! all threads, which code can contain as a constant. Rust has no such variables, hence the
//! assembly.

use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of thread words. A library that is loaded later shares about 1.5 KiB with all others.
const WORDS: u32 = 16;

/// A bit set of the thread words in use.
static USED: AtomicU32 = AtomicU32::new(0);

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".globl wasm_jit_thread_words",
    ".hidden wasm_jit_thread_words",
    ".type wasm_jit_thread_words, @object",
    ".size wasm_jit_thread_words, 128",
    "wasm_jit_thread_words: .zero 128",
    ".popsection",
);

const _: () = assert!(8 * WORDS == 128);

/// A thread-local quadword, with which [`Step::SetOfThread`](super::Step::SetOfThread) finds the
/// state of the running thread.
///
/// It is 0 in a thread that has not set it. Dropping it does not clear it: a word that is made
/// later may have the earlier values in threads that have not cleared them.
#[derive(Debug)]
pub struct ThreadWord(u32);

impl ThreadWord {
    /// Allocates a word that is not in use; `None` if the process uses all 16.
    pub fn new() -> Option<Self> {
        let free = |used: u32| (!used).trailing_zeros();
        let next = |used: u32| (free(used) < WORDS).then(|| used | 1 << free(used));
        let before = USED.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        Some(Self(free(before)))
    }

    /// The offset of the word from the thread pointer, in bytes.
    pub fn offset(&self) -> i32 {
        let offset: i64;
        // SAFETY: reads the offset of the variable above.
        unsafe {
            asm!(
                "mov {offset}, qword ptr [rip + wasm_jit_thread_words@GOTTPOFF]",
                offset = out(reg) offset,
                options(nostack, pure, readonly, preserves_flags),
            );
        }
        // The thread-local variables of all libraries that are loaded with the program lie within
        // 2 GiB of the thread pointer, as the code of programs relies on.
        offset as i32 + 8 * self.0 as i32
    }

    /// The value in the calling thread.
    pub fn get(&self) -> u64 {
        let value: u64;
        // SAFETY: reads a word of the variable above.
        unsafe {
            asm!(
                "mov {value}, qword ptr fs:[{offset}]",
                value = out(reg) value,
                offset = in(reg) i64::from(self.offset()),
                options(nostack, readonly, preserves_flags),
            );
        }
        value
    }

    /// Changes the value in the calling thread.
    pub fn set(&self, value: u64) {
        // SAFETY: writes a word of the variable above, which only this reads and writes, and stubs
        // read.
        unsafe {
            asm!(
                "mov qword ptr fs:[{offset}], {value}",
                value = in(reg) value,
                offset = in(reg) i64::from(self.offset()),
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for ThreadWord {
    fn drop(&mut self) {
        USED.fetch_and(!(1 << self.0), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Held by a test, since one of them takes all words.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn each_thread_has_its_own_and_each_word_is_another() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let [first, second] = [(); 2].map(|()| ThreadWord::new().unwrap());
        first.set(7);
        second.set(u64::MAX);
        let of_other = std::thread::scope(|scope| {
            let of_other = scope.spawn(|| {
                let before = first.get();
                first.set(8);
                [before, first.get()]
            });
            of_other.join().unwrap()
        });
        assert_eq!((of_other, first.get(), second.get()), ([0, 8], 7, u64::MAX));
        assert_ne!(first.offset(), second.offset());
    }

    #[test]
    fn a_word_that_was_dropped_is_used_again() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<ThreadWord> = std::iter::from_fn(ThreadWord::new).collect();
        assert_eq!(all.len(), WORDS as usize);
        all.pop();
        let offset = ThreadWord::new().expect("one is free").offset();
        assert!(all.iter().all(|word| word.offset() != offset));
    }
}
