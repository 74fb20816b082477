//! Makes stores through the writable alias visible in pages that a debugger has copied.
//!
//! The text is a private mapping of the alias's file. Every store is visible in a page of it until
//! the page is written otherwise: a debugger that sets a breakpoint gives the process a permanent
//! copy of that page. Therefore a store takes three steps:
//!
//! 1. The store through the alias.
//! 2. A load of the same bytes from the text. They equal the new ones, unless the page is a copy or
//!    another thread has stored since.
//! 3. On a copy, the page is made writable temporarily, and the text is updated from the alias
//!    ([`follow`]).
//!
//! A breakpoint on the bytes themselves is foreign: the store through the alias is undone, and an
//! error returned. The debugger will restore the byte that it has found, so the byte must not
//! change before that.
//!
//! Step 2 needs text that is mapped. Text that may be unmapped at any time is read by a system call
//! ([`TextRef::compare_exchange`]), or not at all ([`TogglePair`](super::TogglePair), which makes
//! no system calls): its owner must call [`TogglePair::settle`](super::TogglePair::settle) from
//! time to time. If the text is unmapped between the system call and step 3, whatever is mapped
//! there next may be written: patches of copied pages must not be outstanding when the text is
//! unmapped. All of this applies to [`TextAccess::Private`](super::TextAccess::Private) only.
//!
//! # Copies made during a store
//! A debugger that stops every thread before it writes cannot copy an older page between steps 1
//! and 2. A debugger that writes while threads run can: the store is then not visible until the
//! next store to these bytes.
//!
//! # Fork
//! A child inherits copies as they are, and shares the other pages with its parent. If patches of
//! several steps are in use, it gets its own text immediately (`atfork`), otherwise by
//! [`unshare`](super::unshare).

use super::protect::PageGuard;
use super::reading::read_if_mapped;
use crate::Error;
use crate::protocol::INT3;
use crate::store::Quadword;

/// The eight bytes of a store, in the alias and in the text.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) quadword: Quadword,
    /// The address in the writable alias.
    pub(super) view: *mut u64,
    /// The address at which the bytes are executed.
    pub(super) text: *mut u64,
}

impl Place {
    pub(super) fn new(quadword: Quadword, view: *mut u64, address: usize) -> Self {
        let text = std::ptr::with_exposed_provenance_mut(address - quadword.back());
        Self { quadword, view, text }
    }

    fn address(&self) -> usize {
        self.text.addr() + self.quadword.back()
    }

    /// The bytes in the text.
    ///
    /// # Safety
    /// The text must be mapped.
    #[inline(always)]
    pub(super) unsafe fn text_word(&self) -> u64 {
        // SAFETY: the caller's obligation.
        unsafe { self.quadword.load(self.text) }
    }

    /// The bytes in the text, if it is mapped.
    ///
    /// # Safety
    /// With `stays_mapped`, the text must be mapped.
    pub(super) unsafe fn shown(&self, stays_mapped: bool) -> Option<u64> {
        if stays_mapped {
            // SAFETY: the caller's obligation.
            Some(unsafe { self.text_word() })
        } else {
            self.text_word_if_mapped()
        }
    }

    /// The bytes in the text; none if it is not mapped.
    fn text_word_if_mapped(&self) -> Option<u64> {
        let mut bytes = [0; size_of::<u64>()];
        let is_mapped = read_if_mapped(self.text.addr(), &mut bytes);
        is_mapped.then(|| self.quadword.masked(u64::from_ne_bytes(bytes)))
    }

    /// Makes a store of `new` over `old` through the alias visible in the text.
    ///
    /// # Errors
    /// [`Error::Mismatch`] with the bytes in the text, if there is a breakpoint in them,
    /// [`Error::Contended`], [`Error::ProtectRefused`]. The store is then undone.
    ///
    /// # Safety
    /// The text must be mapped, and the obligations of
    /// [`TextRef::compare_exchange`](super::TextRef::compare_exchange) hold.
    #[cold]
    pub(super) unsafe fn follow_store(&self, old: u64, new: u64) -> Result<(), Error> {
        // SAFETY: the caller's obligations.
        let followed = unsafe { self.follow(old, new) };
        if followed.is_err() {
            // SAFETY: as above. Fails if another thread has stored since; then that thread undoes
            // its store.
            let _ = unsafe { self.quadword.exchange(self.view, new, old) };
        }
        followed
    }

    /// Updates the text with the alias's bytes, which are usually one of the two words.
    ///
    /// # Errors
    /// As [`Place::follow_store`].
    ///
    /// # Safety
    /// As [`Place::follow_store`].
    pub(super) unsafe fn follow(&self, old: u64, new: u64) -> Result<(), Error> {
        // A difference may be due to another thread's store between the two loads. SAFETY: text and
        // alias are mapped by the caller's obligation.
        let differ = |_| unsafe { self.text_word() != self.quadword.load(self.view) };
        if !(0..super::stale::LOOKS).all(differ) {
            return Ok(());
        }
        let _writable = PageGuard::new(self.address())?;
        // Only the holder of the guard stores into copied pages; the alias may change at any time.
        loop {
            // SAFETY: as above.
            let (shown, wanted) = unsafe { (self.text_word(), self.quadword.load(self.view)) };
            if shown == wanted {
                return Ok(());
            }
            if shown != old && shown != new && has_breakpoint(shown, [wanted, old]) {
                let bytes = |word| self.quadword.bytes(word);
                return Err(Error::Mismatch {
                    address: self.address(),
                    expected: bytes(old),
                    found: bytes(shown),
                });
            }
            // SAFETY: as above; the guard makes the page writable. A debugger stops every thread
            // before it stores.
            let _ = unsafe { self.quadword.exchange(self.text, shown, wanted) };
        }
    }
}

/// Whether `shown` has an INT3 at a position where neither of the others has one.
fn has_breakpoint(shown: u64, others: [u64; 2]) -> bool {
    let [one, other] = others.map(u64::to_le_bytes);
    let mut bytes = shown.to_le_bytes().into_iter().zip(one.into_iter().zip(other));
    bytes.any(|(shown, (one, other))| shown == INT3 && one != INT3 && other != INT3)
}
