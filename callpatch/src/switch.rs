//! The part of a call site that is needed to toggle it, for tables with very many sites: 40 bytes
//! instead of three cache lines.

use wordpatch::Bytes;
use wordpatch::text::{Form, TogglePair};

use crate::error::Error;

/// The state of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The call is made.
    Active,
    /// The call is skipped.
    Inactive,
}

/// The effect of a toggle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toggle {
    /// The code has been changed.
    Changed,
    /// The site was already in the requested state.
    Unchanged,
}

/// The forms of a site.
pub(crate) const ACTIVE: Form = Form::First;
pub(crate) const INACTIVE: Form = Form::Second;

const _: () = assert!(size_of::<Switch>() <= 40, "tables of probes contain one per probe");

/// The two forms of a decoded site. It can be toggled, but not retargeted.
#[derive(Clone, Copy, Debug)]
pub struct Switch(TogglePair);

impl Switch {
    /// The switch of a decoded site, whose first form is the active one.
    #[inline]
    pub(crate) fn new(forms: TogglePair) -> Self {
        Self(forms)
    }

    /// As [`crate::CallSite::staying_mapped`].
    ///
    /// # Safety
    /// As [`crate::CallSite::staying_mapped`].
    pub(crate) unsafe fn staying_mapped(self) -> Self {
        // SAFETY: the caller's obligation.
        Self(unsafe { self.0.staying_mapped() })
    }

    /// As [`CallSite::activate`](crate::CallSite::activate).
    ///
    /// # Errors
    /// As [`CallSite::activate`](crate::CallSite::activate).
    #[inline]
    pub fn activate(&self) -> Result<Toggle, Error> {
        self.toggle(ACTIVE)
    }

    /// As [`CallSite::deactivate`](crate::CallSite::deactivate).
    ///
    /// # Errors
    /// As [`CallSite::activate`](crate::CallSite::activate).
    #[inline]
    pub fn deactivate(&self) -> Result<Toggle, Error> {
        self.toggle(INACTIVE)
    }

    #[inline]
    fn toggle(&self, to: Form) -> Result<Toggle, Error> {
        // SAFETY: the site was decoded under the contract of `CallSite::decode`, so its bytes are
        // those of an alias, which stays mapped, or of text that the caller keeps mapped; an edit
        // stays inside the window, and both of its forms are valid for every thread that executes
        // them.
        match unsafe { self.0.exchange(to) } {
            Ok(true) => Ok(Toggle::Changed),
            Ok(false) => Ok(Toggle::Unchanged),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the call is active; `None` if the site has neither form.
    pub fn state(&self) -> Option<State> {
        self.found().ok()
    }

    /// Whether the call is active; the bytes of the site if it has neither form.
    pub(crate) fn found(&self) -> Result<State, Bytes> {
        // SAFETY: the site was decoded under the contract of `CallSite::decode`, so the bytes are
        // mapped, as in `toggle`.
        Ok(match unsafe { self.0.form() }? {
            ACTIVE => State::Active,
            INACTIVE => State::Inactive,
        })
    }

    /// As [`CallSite::settle`](crate::CallSite::settle).
    ///
    /// # Errors
    /// As [`CallSite::settle`](crate::CallSite::settle).
    ///
    /// # Safety
    /// As [`CallSite::settle`](crate::CallSite::settle).
    pub unsafe fn settle(&self) -> Result<(), Error> {
        // SAFETY: the caller's obligation.
        unsafe { self.0.settle() }.map_err(Error::from)
    }

    /// Whether this switch, in text that was unmapped, is equivalent to `now`, in the text that was
    /// mapped in its place: it stores the same bytes at the same address.
    pub fn is_equivalent(&self, now: &Self) -> bool {
        self.0.is_equivalent(&now.0)
    }

    /// Whether both switches belong to the same mapping, made at the same time.
    pub fn shares_text_with(&self, other: &Self) -> bool {
        self.0.shares_text_with(&other.0)
    }

    /// Makes this switch and all others of its text, which was unmapped and
    /// [released](wordpatch::text::release), valid for the text that was mapped in its place: see
    /// [`wordpatch::internal::revive`].
    ///
    /// # Safety
    /// As [`wordpatch::internal::revive`]. Each switch of the old text that may still be used must
    /// be [equivalent](Switch::is_equivalent) to one of the new text.
    pub unsafe fn revive(&self) -> bool {
        // SAFETY: the caller's obligations.
        unsafe { self.0.revive() }
    }

    /// As [`CallSite::is_stale`](crate::CallSite::is_stale), for the `length` bytes at `address`,
    /// which are those of this site's instruction.
    ///
    /// # Safety
    /// The bytes must be mapped and readable.
    pub unsafe fn is_stale(&self, address: usize, length: usize) -> bool {
        // SAFETY: the caller's obligation.
        unsafe { self.0.is_stale_at(address, length) }
    }
}
