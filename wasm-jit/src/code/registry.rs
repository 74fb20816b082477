//! Which image an address of code belongs to: a table that is read without locks, also by signal
//! handlers.
//!
//! An entry is one word, the pages of the image, which is zero while the entry is free; and the
//! image's address, which is written before the word. Entries of images that went are used again. A
//! reader asks for an address that a thread is executing, or will return to. Its image is therefore
//! alive, and its entry does not change while it is read; of the other entries, only the word is
//! looked at.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::CodeImage;

/// Entries come in segments, each twice as long as the one before, so that they never move.
const SEGMENTS: usize = 26;
const FIRST_SEGMENT: usize = 64;

const PAGE_BITS: u32 = 12;
/// Bits for the number of pages: 2 GiB and more.
const LENGTH_BITS: u32 = 20;

#[derive(Debug)]
struct Entry {
    /// Number of the first page, and of pages behind it.
    pages: AtomicU64,
    image: AtomicPtr<CodeImage>,
}

static TABLE: [AtomicPtr<Entry>; SEGMENTS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SEGMENTS];
/// How many entries were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The segment of an entry, and its place in there.
fn locate(number: usize) -> (usize, usize) {
    let segment = (number / FIRST_SEGMENT + 1).ilog2() as usize;
    (segment, number - FIRST_SEGMENT * ((1 << segment) - 1))
}

fn entry(number: usize) -> Option<&'static Entry> {
    let (segment, place) = locate(number);
    let start = TABLE.get(segment)?.load(Ordering::Acquire);
    // SAFETY: a segment is null, or has so many entries and is never freed.
    (!start.is_null()).then(|| unsafe { &*start.add(place) })
}

/// The segment is made if it is not there; under the lock of `FREE`.
fn make_entry(number: usize) -> &'static Entry {
    if entry(number).is_none() {
        let (segment, _) = locate(number);
        let new = || Entry { pages: AtomicU64::new(0), image: AtomicPtr::new(std::ptr::null_mut()) };
        let entries: Box<[Entry]> = (0..FIRST_SEGMENT << segment).map(|_| new()).collect();
        TABLE[segment].store(Box::leak(entries).as_mut_ptr(), Ordering::Release);
    }
    entry(number).expect("just made")
}

/// An image's entry, free again when dropped.
#[derive(Debug)]
pub(crate) struct Registered(usize);

impl Drop for Registered {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(entry) = entry(self.0) {
            entry.pages.store(0, Ordering::Release);
        }
        free.push(self.0);
    }
}

/// Makes the image known, whose entry `keep` puts into it.
pub(super) fn register(image: CodeImage, keep: impl FnOnce(&mut CodeImage, Registered)) -> Arc<CodeImage> {
    let mut image = Arc::new(image);
    let (number, place) = free_entry();
    keep(Arc::get_mut(&mut image).expect("not shared yet"), Registered(number));
    place.fill(&image, &image.memory().pages());
    image
}

/// Makes more pages of an image known, which it must keep the result with.
pub(super) fn register_more(image: &Arc<CodeImage>, pages: &Range<usize>) -> Registered {
    let (number, place) = free_entry();
    place.fill(image, pages);
    Registered(number)
}

fn free_entry() -> (usize, &'static Entry) {
    let mut free = FREE.lock().unwrap_or_else(|e| e.into_inner());
    let number = free.pop().unwrap_or_else(|| USED.fetch_add(1, Ordering::Relaxed));
    (number, make_entry(number))
}

impl Entry {
    fn fill(&self, image: &Arc<CodeImage>, pages: &Range<usize>) {
        let (first, count) = (pages.start >> PAGE_BITS, pages.len() >> PAGE_BITS);
        self.image.store(Arc::as_ptr(image).cast_mut(), Ordering::Relaxed);
        self.pages.store((first as u64) << LENGTH_BITS | count as u64, Ordering::Release);
    }
}

/// The image that an address of code is in. Atomics only.
///
/// # Safety
/// If the address is in an image, a thread must be executing it, or have it as a return address,
/// for as long as the reference is used.
pub(crate) unsafe fn image_at<'a>(pc: usize) -> Option<&'a CodeImage> {
    let page = (pc >> PAGE_BITS) as u64;
    for number in 0..USED.load(Ordering::Acquire) {
        let Some(entry) = entry(number) else { continue };
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

/// The same, shared.
///
/// # Safety
/// As [`image_at`], during the call.
pub(crate) unsafe fn share_image_at(pc: usize) -> Option<Arc<CodeImage>> {
    // SAFETY: the caller's obligation.
    let image: *const CodeImage = unsafe { image_at(pc)? };
    // SAFETY: `register` took the pointer from an `Arc`, of which the caller says that it is alive.
    unsafe {
        Arc::increment_strong_count(image);
        Some(Arc::from_raw(image))
    }
}
