//! What of a call site is needed to toggle it, for tables of very many sites: 40 bytes instead of
//! three cache lines.

use wordpatch::Bytes;
use wordpatch::text::{Form, TogglePair};

use crate::error::Error;
use crate::site::{ACTIVE, INACTIVE, State, Toggle};

const _: () = assert!(size_of::<Switch>() <= 40, "a table of probes has one for each");

/// The two forms of a decoded site. It can be toggled, and no longer be given another target.
#[derive(Clone, Copy, Debug)]
pub struct Switch(TogglePair);

impl Switch {
    /// Of a decoded site: the first form is the active one.
    pub(crate) fn new(forms: TogglePair) -> Self {
        Self(forms)
    }

    /// As [`CallSite::staying_mapped`].
    ///
    /// # Safety
    /// As [`CallSite::staying_mapped`].
    pub(crate) unsafe fn staying_mapped(self) -> Self {
        // SAFETY: the caller's obligation.
        Self(unsafe { self.0.staying_mapped() })
    }

    /// As [`CallSite::activate`].
    ///
    /// # Errors
    /// [`Error::Text`] when the site holds neither form.
    #[inline]
    pub fn activate(&self) -> Result<Toggle, Error> {
        self.toggle(ACTIVE)
    }

    /// As [`CallSite::deactivate`].
    ///
    /// # Errors
    /// [`Error::Text`] when the site holds neither form.
    #[inline]
    pub fn deactivate(&self) -> Result<Toggle, Error> {
        self.toggle(INACTIVE)
    }

    #[inline]
    fn toggle(&self, to: Form) -> Result<Toggle, Error> {
        // SAFETY: the site was decoded under the contract of `CallSite::decode`; an edit keeps
        // inside the window, and both its forms are valid for every executing thread.
        match unsafe { self.0.exchange(to) } {
            Ok(true) => Ok(Toggle::Changed),
            Ok(false) => Ok(Toggle::Unchanged),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the call is made now; nothing when the site holds neither form.
    pub fn state(&self) -> Option<State> {
        self.found().ok()
    }

    /// Whether the call is made now; what stands there when it is neither form.
    pub(crate) fn found(&self) -> Result<State, Bytes> {
        // SAFETY: the site was decoded under the contract of `CallSite::decode`.
        Ok(match unsafe { self.0.form() }? {
            ACTIVE => State::Active,
            INACTIVE => State::Inactive,
        })
    }

    /// As [`CallSite::settle`].
    ///
    /// # Errors
    /// As [`CallSite::settle`].
    ///
    /// # Safety
    /// As [`CallSite::settle`].
    pub unsafe fn settle(&self) -> Result<(), Error> {
        // SAFETY: the caller's obligation.
        unsafe { self.0.settle() }.map_err(Error::from)
    }

    /// Whether this switch, of text that was unmapped, is what `now` is in the text that was mapped
    /// in its place: it stores the same bytes at the same address.
    pub fn is_again(&self, now: &Self) -> bool {
        self.0.is_again(&now.0)
    }

    /// Whether both are of one mapping, of one time.
    pub fn is_of_one_text_with(&self, other: &Self) -> bool {
        self.0.is_of_one_text_with(&other.0)
    }

    /// Makes this switch, of text that was unmapped and [released](wordpatch::text::release), good
    /// for the text that was mapped in its place, with all others of that text: see
    /// [`wordpatch::text::revive`].
    ///
    /// # Safety
    /// As [`wordpatch::text::revive`]. Each switch of the old text that may still be used [is
    /// again](Switch::is_again) one of the new text.
    pub unsafe fn revive(&self) -> bool {
        // SAFETY: the caller's obligations.
        unsafe { self.0.revive() }
    }

    /// As [`CallSite::is_stale`], of the `length` bytes at `address`: those of this site's
    /// instruction.
    ///
    /// # Safety
    /// The bytes must be mapped readable.
    pub unsafe fn is_stale(&self, address: usize, length: usize) -> bool {
        // SAFETY: the caller's obligation.
        unsafe { self.0.is_stale_at(address, length) }
    }
}
