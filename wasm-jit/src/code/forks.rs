//! Forked children execute the code that they inherited, whatever their parent changes.
//!
//! A forked child shares the pages of the code with its parent, but has its own copy of all data:
//! what it finds there must fit the code. Therefore
//! 1. no thread forks while another one changes code ([`CodeImage::changes_code`]): a child never
//!    inherits half a change, or a lock;
//! 2. the first change after a fork gives the image new pages, which takes as long as copying its
//!    code; the children keep the old ones, which no longer change.
//!
//! Forks that run no handlers (a raw `clone`) are not noticed.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use wordpatch::text::{self, NoForks};

use super::CodeImage;

/// The number of forks after which an image got its pages.
#[derive(Debug)]
pub(super) struct Forks(AtomicU32);

impl Default for Forks {
    /// For an image that is being made.
    fn default() -> Self {
        text::follow_forks();
        Self(AtomicU32::new(text::forks()))
    }
}

/// A thread that may change the code of an image.
pub(super) struct ChangesCode {
    _no_forks: NoForks,
    /// Why the image's code is still that of forked children, if it is: it must not be changed.
    pub refused: Option<wordpatch::Error>,
}

impl CodeImage {
    /// Begins a change of the image's code, during which no thread forks. May copy the code. The
    /// thread must not be making another change of code.
    pub(super) fn changes_code(&self) -> ChangesCode {
        let mut refused = None;
        loop {
            let no_forks = text::no_forks();
            if refused.is_some() || self.forks.0.load(Ordering::Relaxed) == text::forks() {
                return ChangesCode { _no_forks: no_forks, refused };
            }
            drop(no_forks);
            // SAFETY: the image exists, and its code is changed by threads that have `NoForks`
            // only.
            match unsafe { text::leave_to_children(&self.all_pages()) } {
                Ok(forks) => self.forks.0.store(forks, Ordering::Relaxed),
                Err(error) => refused = Some(error),
            }
        }
    }

    /// The addresses of the code, and of the versions of functions.
    fn all_pages(&self) -> Vec<Range<usize>> {
        let arenas = self.probed.get().into_iter().flat_map(|probed| probed.arenas());
        [self.pages()].into_iter().chain(arenas).collect()
    }
}
