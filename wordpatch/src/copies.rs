//! The pool of out-of-line copies: pages near the text, filled in order of address, and an index of
//! the copies.
//!
//! # Steps
//! A copy is
//! 1. looked up by its site and the complete instruction: a site that is toggled any number of
//!    times needs two copies;
//! 2. encoded for the next free address of a page within reach, or of a new page;
//! 3. written through the page's writable alias, eight bytes at a time, over the INT3s with which
//!    free memory is filled.
//!
//! A copy is never freed: a thread may be executing it at any time.
//!
//! # Why no core has to be serialized
//! There may have been other code at the address before, which other cores may still have fetched.
//! But a thread reaches a copy in one way only: the trap handler reads its address in the site's
//! record, which was stored after the copy, and returns from the signal through the kernel, which
//! resumes the thread with IRET (or ERETU; for SYSRET, RCX would have to be the copy's address).
//! This is the vendors' protocol: read a flag, execute a serializing instruction, execute the new
//! code.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::near::NearBlock;
use crate::protocol::INT3;
use crate::text::TextRef;
use crate::{Bytes, Error, FetchWindow, MAX_PATCH, displaced};

/// The longest x86 instruction, in bytes.
pub(crate) const MAX_INSTRUCTION: usize = 15;

/// Bytes of code in a page of copies: a few thousand copies.
const PAGE_OF_COPIES: usize = 1 << 16;

/// The alignment of copies, in bytes.
const ALIGNMENT: usize = 16;

/// An instruction and its original address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Original {
    pub(crate) address: usize,
    pub(crate) length: usize,
    /// Zero after the length.
    pub(crate) bytes: [u8; MAX_INSTRUCTION],
}

impl Original {
    fn decode(&self) -> Instruction {
        let code = &self.bytes[..self.length];
        Decoder::with_ip(64, code, self.address as u64, DecoderOptions::NONE).decode()
    }
}

/// Pages of copies and their index.
#[derive(Default)]
pub(crate) struct Pool {
    copies: Option<HashMap<Original, usize>>,
    pages: Vec<Page>,
}

struct Page {
    text: TextRef,
    /// Bytes in use.
    used: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { copies: None, pages: Vec::new() });

/// The maximum number of pages: at least four million copies.
const MAX_PAGES: usize = 4096;

/// The addresses of this process's pages; read by the trap handler.
static PAGES: [AtomicUsize; MAX_PAGES] = [const { AtomicUsize::new(0) }; MAX_PAGES];

/// Keeps the pool locked during a fork.
pub(crate) type Hold = MutexGuard<'static, Pool>;

pub(crate) fn hold() -> Hold {
    POOL.lock().unwrap_or_else(|e| e.into_inner())
}

/// The address of a copy of the instruction, which is made if there is none.
///
/// # Errors
/// [`Error::Immovable`], [`Error::OutOfReach`], [`Error::TableFull`], or an error because there is
/// no memory for a page.
pub(crate) fn copy_of(original: &Original) -> Result<usize, Error> {
    #[cfg(model)]
    if let Some(copy) = wordpatch_model::environment::copy_of(&original.bytes[..original.length]) {
        return Ok(copy);
    }
    let mut pool = hold();
    let Pool { copies, pages } = &mut *pool;
    let copies = copies.get_or_insert_default();
    if let Some(copy) = copies.get(original) {
        return Ok(*copy);
    }
    let instruction = &original.decode();
    // The newest page is the most likely to be within reach: sites patched together are close.
    let written = pages.iter_mut().rev().find_map(|page| page.write(instruction).transpose());
    let copy = match written.transpose()? {
        Some(copy) => copy,
        None => {
            // Fails with the reason if the instruction cannot be moved to any address.
            displaced::copy_at(instruction, original.address)?;
            let announced = PAGES.get(pages.len()).ok_or(Error::TableFull)?;
            let mut page = Page::new(original, instruction)?;
            let copy = page.write(instruction)?.ok_or_else(|| out_of_reach(original))?;
            announced.store(page.text.address(), Ordering::Release);
            pages.push(page);
            copy
        }
    };
    copies.insert(*original, copy);
    Ok(copy)
}

fn out_of_reach(original: &Original) -> Error {
    Error::Immovable { address: original.address, reason: "its operand is out of reach of all free memory" }
}

impl Page {
    /// A page for the instruction and others near it. After an error, nothing stays mapped.
    fn new(original: &Original, instruction: &Instruction) -> Result<Self, Error> {
        let near = original.address..original.address + original.length;
        let block = NearBlock::allocate(&near, PAGE_OF_COPIES, 0)?;
        displaced::copy_at(instruction, block.code_address()).map_err(|_| out_of_reach(original))?;
        let sealed = block.seal()?;
        // SAFETY: the block is never unmapped, and only this module writes it.
        match unsafe { TextRef::resolve(sealed.code, PAGE_OF_COPIES) } {
            // SAFETY: as above.
            Ok(text) => Ok(Self { text: unsafe { text.staying_mapped() }, used: 0 }),
            Err(error) => {
                // SAFETY: nobody else knows the block.
                unsafe { sealed.unmap(PAGE_OF_COPIES) };
                Err(error)
            }
        }
    }

    /// Writes a copy at the next free address, if there is one to which the instruction can be
    /// moved.
    fn write(&mut self, instruction: &Instruction) -> Result<Option<usize>, Error> {
        while self.used + displaced::MAX_COPY <= PAGE_OF_COPIES {
            let start = self.used;
            let Ok(copy) = displaced::copy_at(instruction, self.text.address() + start) else { break };
            // In a forked child, the parent may have written a copy there since the fork: then the
            // next address is tried.
            let is_written = self.fill(start, &copy)?;
            self.used += if is_written { copy.len().next_multiple_of(ALIGNMENT) } else { ALIGNMENT };
            if is_written {
                return Ok(Some(self.text.address() + start));
            }
        }
        Ok(None)
    }

    /// Writes the code if the memory is free; returns whether it was.
    fn fill(&self, start: usize, code: &[u8]) -> Result<bool, Error> {
        let free = Bytes::new(&[INT3; MAX_PATCH]).expect("eight bytes");
        for offset in (0..code.len()).step_by(MAX_PATCH) {
            let mut word = [INT3; MAX_PATCH];
            let part = &code[offset..code.len().min(offset + MAX_PATCH)];
            word[..part.len()].copy_from_slice(part);
            let word = Bytes::new(&word).expect("eight bytes");
            // SAFETY: inside the page, whose text stays mapped; no thread executes a copy before
            // its address is published.
            let stored =
                unsafe { self.text.compare_exchange(FetchWindow::Bytes8, start + offset, &free, &word) };
            match stored {
                Ok(()) => {}
                Err(Error::Mismatch { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Whether the page of `copy` is mapped in this process. It is not in a forked child if the parent
/// has mapped the page since the fork. Async-signal-safe.
pub(crate) fn is_here(copy: usize) -> bool {
    let starts = PAGES.iter().map(|page| page.load(Ordering::Acquire));
    starts.take_while(|start| *start != 0).any(|start| (start..start + PAGE_OF_COPIES).contains(&copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original(address: usize, code: &[u8]) -> Original {
        let mut bytes = [0; MAX_INSTRUCTION];
        bytes[..code.len()].copy_from_slice(code);
        Original { address, length: code.len(), bytes }
    }

    fn copy(address: usize, code: &[u8]) -> usize {
        copy_of(&original(address, code)).unwrap()
    }

    /// A forked child and its parent share pages of copies, but each counts the bytes in use
    /// itself.
    #[test]
    fn memory_that_the_other_process_has_used_is_not_written() {
        let site = memory_that_the_other_process_has_used_is_not_written as *const () as usize;
        let (ours, theirs) = (original(site, &[0xb8, 1, 1, 1, 1]), original(site, &[0xb9, 2, 2, 2, 2]));
        let mut page = Page::new(&ours, &ours.decode()).unwrap();
        let mut of_the_other = Page { text: page.text, used: page.used };
        let first = page.write(&ours.decode()).unwrap().unwrap();
        let second = of_the_other.write(&theirs.decode()).unwrap().unwrap();
        assert_ne!(first, second);
        for (copy, original) in [(first, ours), (second, theirs)] {
            // SAFETY: the copies are sealed text.
            let code = unsafe { std::slice::from_raw_parts(copy as *const u8, 5) };
            assert_eq!(code, &original.bytes[..5]);
        }
    }

    #[test]
    fn nothing_is_written_to_a_full_page() {
        let site = nothing_is_written_to_a_full_page as *const () as usize;
        let mov = original(site, &[0xb8, 1, 1, 1, 1]);
        let page = Page::new(&mov, &mov.decode()).unwrap();
        let with_room_for =
            |room: usize| Page { text: page.text, used: PAGE_OF_COPIES - room }.write(&mov.decode()).unwrap();
        assert_eq!(with_room_for(displaced::MAX_COPY - 1), None);
        assert_eq!(
            with_room_for(displaced::MAX_COPY),
            Some(page.text.address() + PAGE_OF_COPIES - displaced::MAX_COPY)
        );
    }

    /// A load from the lower end of its reach: pages are mapped at the upper end of free memory.
    #[test]
    fn nothing_stays_mapped_for_an_instruction_that_no_page_can_reach() {
        let far = original(1 << 45, &[0x8b, 0x05, 0, 0, 0, 0x80]);
        let is_near = |range: &std::ops::Range<usize>| range.start.abs_diff(far.address) < 1 << 32;
        let mapped = || crate::maps::mappings().unwrap().iter().filter(|m| is_near(&m.range)).count();
        assert!(displaced::copy_at(&far.decode(), far.address).is_ok());
        for _ in 0..3 {
            let refused = copy_of(&far);
            assert!(matches!(refused, Err(Error::Immovable { .. })), "{refused:?}");
        }
        assert_eq!(mapped(), 0);
    }

    /// One test, because the process has one pool.
    #[test]
    fn copies_share_pages_and_are_made_once() {
        let site = copies_share_pages_and_are_made_once as fn() as usize;
        let mov = |value: u32| [&[0xb8][..], &value.to_le_bytes()].concat();
        let first = copy(site, &mov(0));
        let second = copy(site + 1, &mov(0));
        assert_eq!(second - first, ALIGNMENT);
        assert!(!is_here(site));
        // SAFETY: the copy is sealed text.
        let code = unsafe { std::slice::from_raw_parts(first as *const u8, 6) };
        assert_eq!(code, [0xb8, 0, 0, 0, 0, 0xe9]);

        let more_than_a_page = (PAGE_OF_COPIES / ALIGNMENT) as u32 + 1;
        let mut copies: Vec<usize> = (0..more_than_a_page).map(|value| copy(site, &mov(value))).collect();
        assert_eq!(copies[0], first, "made once");
        assert!(copies.iter().all(|copy| is_here(*copy)));
        copies.sort_unstable();
        assert!(copies[copies.len() - 1] - copies[0] > PAGE_OF_COPIES, "one page only");
        assert!(copies.windows(2).all(|pair| pair[0] < pair[1]), "an address was allocated twice");
    }
}
