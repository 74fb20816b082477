//! Finds the image of a code address: a table that is read without locks, even by signal handlers.
//!
//! An entry consists of one word, the pages of the image, which is zero while the entry is free,
//! and of the image's address, which is written before the word. Entries of freed images are
//! reused. A reader looks up an address that a thread is executing, or will return to. The image of
//! this address is therefore alive, and its entry does not change while it is read; of other
//! entries, only the word is read.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastinst_sigsafe::Segments;

use super::{CodeImage, forks};

const PAGE_BITS: u32 = 12;
/// Bits for the number of pages: 2 GiB and more.
const LENGTH_BITS: u32 = 20;

#[derive(Debug)]
struct Entry {
    /// The number of the first page, and the number of pages.
    pages: AtomicU64,
    image: AtomicPtr<CodeImage>,
}

/// Every entry that was ever used. There is room for 16 million entries, more images than a process
/// has address space for.
static TABLE: Segments<Entry, 256, 65536> = Segments::new();
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// An image's entry, freed when dropped.
#[derive(Debug)]
pub(crate) struct Registered(usize);

impl Drop for Registered {
    fn drop(&mut self) {
        let mut free = forks::lock(&FREE);
        if let Some(entry) = TABLE.get(self.0) {
            entry.pages.store(0, Ordering::Release);
        }
        free.push(self.0);
    }
}

/// Registers the image; `keep` stores the entry in it.
pub(super) fn register(image: CodeImage, keep: impl FnOnce(&mut CodeImage, Registered)) -> Arc<CodeImage> {
    let mut image = Arc::new(image);
    let (number, place) = free_entry();
    keep(Arc::get_mut(&mut image).expect("not shared yet"), Registered(number));
    place.fill(&image, &image.pages());
    image
}

/// Registers more pages of an image, which must keep the result together with them.
pub(super) fn register_more(image: &Arc<CodeImage>, pages: &Range<usize>) -> Registered {
    let (number, place) = free_entry();
    place.fill(image, pages);
    Registered(number)
}

fn free_entry() -> (usize, &'static Entry) {
    let mut free = forks::lock(&FREE);
    let new = |_| Entry { pages: AtomicU64::new(0), image: AtomicPtr::new(std::ptr::null_mut()) };
    let number = free.pop().or_else(|| TABLE.push_with(new)).expect("there is room");
    (number, TABLE.get(number).expect("entries stay"))
}

impl Entry {
    fn fill(&self, image: &Arc<CodeImage>, pages: &Range<usize>) {
        let (first, count) = (pages.start >> PAGE_BITS, pages.len() >> PAGE_BITS);
        self.image.store(Arc::as_ptr(image).cast_mut(), Ordering::Relaxed);
        self.pages.store((first as u64) << LENGTH_BITS | count as u64, Ordering::Release);
    }
}

/// The image that contains a code address. Uses atomics only.
///
/// # Safety
/// If the address is in an image, a thread must be executing it, or have it as a return address,
/// for as long as the reference is used.
pub(crate) unsafe fn image_at<'a>(pc: usize) -> Option<&'a CodeImage> {
    let page = (pc >> PAGE_BITS) as u64;
    for entry in TABLE.iter() {
        let pages = entry.pages.load(Ordering::Acquire);
        let (first, count) = (pages >> LENGTH_BITS, pages & ((1 << LENGTH_BITS) - 1));
        if page.wrapping_sub(first) < count {
            // SAFETY: the entry's image is alive by the caller's obligation, and was written before
            // the pages.
            return Some(unsafe { &*entry.image.load(Ordering::Relaxed) });
        }
    }
    None
}

/// As [`image_at`], but returns an `Arc`.
///
/// # Safety
/// As for [`image_at`], during the call.
pub(crate) unsafe fn share_image_at(pc: usize) -> Option<Arc<CodeImage>> {
    // SAFETY: the caller's obligation.
    let image: *const CodeImage = unsafe { image_at(pc)? };
    // SAFETY: `register` took the pointer from an `Arc`, which is alive by the caller's obligation.
    unsafe {
        Arc::increment_strong_count(image);
        Some(Arc::from_raw(image))
    }
}
