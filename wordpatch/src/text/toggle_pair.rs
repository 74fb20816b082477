//! Two forms of the same bytes of text, to be exchanged for each other repeatedly: everything that
//! does not change between toggles is computed beforehand. What remains is a load, a comparison and
//! one LOCK CMPXCHG.

use std::ptr::NonNull;

use super::shown::Place;
use super::{TextRef, fork, moves};
use crate::store::Quadword;
use crate::{Bytes, Error, FetchWindow};

/// One of the two forms of a [`TogglePair`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The form that was given first.
    First,
    /// The form that was given second.
    Second,
}

/// A location in text and the two forms that it can have. Cheap to copy.
///
/// # Example
/// ```
/// use wordpatch::code_memory::CodeBuffer;
/// use wordpatch::text::{Form, TogglePair};
/// use wordpatch::{Bytes, FetchModel, TextRef};
///
/// // mov eax, 1; ret
/// let mut buffer = CodeBuffer::new(4096)?;
/// let offset = buffer.append(&[0xb8, 1, 0, 0, 0, 0xc3], 16).expect("there is room");
/// let memory = buffer.seal()?;
/// let address = memory.address() + offset;
/// // SAFETY: a function of this type was written there.
/// let value = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u32>(address) };
///
/// // The operand, after the opcode, is toggled between 1 and 2.
/// let forms = [1_u32, 2].map(|value| Bytes::new(&value.to_le_bytes()).expect("4 bytes"));
/// // SAFETY: our own code, which nothing else writes or unmaps.
/// let text = unsafe { TextRef::resolve(address, 5)? };
/// let pair = TogglePair::new(&text, FetchModel::in_force().window, 1, [&forms[0], &forms[1]]);
/// // SAFETY: 1. the code is mapped; 2. both forms are valid, and are in one fetch window.
/// assert!(unsafe { pair.exchange(Form::Second)? });
/// // Other threads execute the old form for T_max at most, or until this returns.
/// wordpatch::serialize_all_cores()?;
/// assert_eq!(value(), 2);
/// // SAFETY: as above.
/// assert!(!unsafe { pair.exchange(Form::Second)? }, "it has this form");
/// # Ok::<(), wordpatch::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TogglePair {
    /// The eight bytes in the writable alias; none if each store changes the protection.
    base: Option<NonNull<u64>>,
    /// The two forms, at their position in the eight bytes.
    words: [u64; 2],
    quadword: Quadword,
    /// The address at which the forms are executed.
    address: usize,
    window: FetchWindow,
    is_shared: bool,
    is_private: bool,
    stays_mapped: bool,
}

// SAFETY: a `TogglePair` gives access through atomic stores only.
unsafe impl Send for TogglePair {}
// SAFETY: as above.
unsafe impl Sync for TogglePair {}

impl TogglePair {
    /// The pair for the bytes `offset` bytes after `place`, which can have either of `forms`.
    ///
    /// # Panics
    /// If the bytes cross a boundary of `window`, or the two forms differ in length.
    pub fn new(place: &TextRef, window: FetchWindow, offset: usize, forms: [&Bytes; 2]) -> Self {
        assert_eq!(forms[0].len(), forms[1].len());
        Self::of_words(place, window, offset, forms[0].len(), [forms[0].word(), forms[1].word()])
    }

    /// As [`TogglePair::new`], for two forms of this length, each in a word as [`Bytes::word`]
    /// returns it.
    ///
    /// # Panics
    /// As [`TogglePair::new`].
    #[inline]
    pub fn of_words(
        place: &TextRef,
        window: FetchWindow,
        offset: usize,
        length: usize,
        forms: [u64; 2],
    ) -> Self {
        let place = place.at_offset(offset);
        let quadword = Quadword::of(window, place.address, length);
        let base = match place.writable {
            Some(view) => NonNull::new(view.as_ptr().wrapping_sub(quadword.back()).cast()),
            None => None,
        };
        let [first, second] = forms;
        Self {
            base,
            words: [first << quadword.shift(), second << quadword.shift()],
            quadword,
            address: place.address,
            window,
            is_shared: place.is_shared,
            is_private: place.is_private,
            stays_mapped: place.stays_mapped,
        }
    }

    /// The same pair, with the caller's guarantee of [`TextRef::staying_mapped`].
    ///
    /// # Safety
    /// As [`TextRef::staying_mapped`].
    #[must_use]
    pub unsafe fn staying_mapped(self) -> Self {
        Self { stays_mapped: true, ..self }
    }

    /// Replaces the other form by form `to`. Returns `false` if the bytes already have this form.
    /// One atomic store, which may be made by probe functions and signal handlers. Never allocates;
    /// blocks and enters the kernel only in cases 1 and 2 of [`TextRef::compare_exchange`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the bytes have neither form, [`Error::SharedWithParent`],
    /// [`Error::Contended`], [`Error::ProtectRefused`], as for [`TextRef::compare_exchange`].
    ///
    /// # Safety
    /// Obligations 1 and 2 of [`TextRef::compare_exchange`].
    #[inline]
    pub unsafe fn exchange(&self, to: Form) -> Result<bool, Error> {
        // SAFETY: the caller's obligations.
        moves::despite_moves(self.address, || unsafe { self.exchange_once(to) })
    }

    /// [`TogglePair::exchange`], whose store may be lost if the text is moved meanwhile.
    ///
    /// # Safety
    /// As [`TogglePair::exchange`].
    #[inline(always)]
    unsafe fn exchange_once(&self, to: Form) -> Result<bool, Error> {
        let [first, second] = self.words;
        let [new, old] = if to == Form::First { [first, second] } else { [second, first] };
        if let Some(base) = self.base
            && !(self.is_shared && fork::is_unprepared_child())
        {
            // SAFETY: the caller's obligations; `Quadword::of` keeps the eight bytes inside the
            // window, and the alias begins at a page boundary like the text.
            match unsafe { self.quadword.exchange(base.as_ptr(), old, new) } {
                Ok(()) => {
                    if self.is_private && self.stays_mapped {
                        let place = Place::new(self.quadword, base.as_ptr(), self.address);
                        // SAFETY: the text is mapped, by the obligation of `staying_mapped`.
                        if unsafe { place.text_word() } != new {
                            // SAFETY: as above, and the caller's obligations.
                            unsafe { place.follow_store(old, new)? };
                        }
                    }
                    return Ok(true);
                }
                Err(found) if found == new => return Ok(false),
                Err(_) => {}
            }
        }
        // SAFETY: the caller's obligations.
        unsafe { self.exchange_or_explain(old, new) }
    }

    /// The address at which the forms are executed.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The form that the bytes have now.
    ///
    /// # Errors
    /// The bytes, if they have neither form.
    ///
    /// # Safety
    /// The obligations of [`TextRef::read`].
    pub unsafe fn form(&self) -> Result<Form, Bytes> {
        // SAFETY: the caller's obligations.
        let found = unsafe { self.place().read(0, self.quadword.length()) };
        let [first, second] = self.words;
        match self.quadword.word(&found) {
            word if word == first => Ok(Form::First),
            word if word == second => Ok(Form::Second),
            _ => Err(found),
        }
    }

    /// As [`TextRef::is_stale`], for the `length` bytes of the same mapping that start at
    /// `address`.
    ///
    /// # Safety
    /// As [`TextRef::is_stale`].
    pub unsafe fn is_stale_at(&self, address: usize, length: usize) -> bool {
        let place = self.place();
        let view =
            |view: NonNull<u8>| NonNull::new(view.as_ptr().wrapping_add(address.wrapping_sub(self.address)));
        let place = TextRef { address, writable: place.writable.and_then(view), ..place };
        // SAFETY: the caller's obligation.
        unsafe { place.is_stale(length) }
    }

    /// Makes the last store visible in the text, if a debugger has copied its page. For text that
    /// may be unmapped, and was not marked as staying mapped ([`TextRef::staying_mapped`]):
    /// [`TogglePair::exchange`] does not read it.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is a breakpoint in these bytes, [`Error::Contended`],
    /// [`Error::ProtectRefused`].
    ///
    /// # Safety
    /// The text must be mapped, at the same address as when the pair was made.
    pub unsafe fn settle(&self) -> Result<(), Error> {
        match self.base {
            Some(base) if self.is_private && !fork::is_unprepared_child() => {
                let place = Place::new(self.quadword, base.as_ptr(), self.address);
                // SAFETY: the caller's obligation; the forms are valid code.
                unsafe { place.follow(self.words[0], self.words[1]) }
            }
            _ => Ok(()),
        }
    }

    /// Whether this pair, in text that was unmapped, equals `now`, a pair in the text that was
    /// mapped in its place.
    pub fn is_equivalent(&self, now: &Self) -> bool {
        let of = |forms: &Self| (forms.address, forms.window, forms.quadword.length(), forms.words);
        of(self) == of(now)
    }

    /// Whether both pairs were resolved in the same mapping.
    pub fn shares_text_with(&self, other: &Self) -> bool {
        let distance = |forms: &Self| {
            let view = forms.place().writable.map(|view| view.as_ptr().addr());
            view.map(|view| view.wrapping_sub(forms.address))
        };
        distance(self) == distance(other)
    }

    /// [`revive`](crate::internal::revive) for the text of this pair.
    ///
    /// # Safety
    /// As [`revive`](crate::internal::revive).
    pub unsafe fn revive(&self) -> bool {
        // SAFETY: the caller's obligations.
        unsafe { super::gone::revive(&self.place()) }
    }

    fn place(&self) -> TextRef {
        let view =
            |base: NonNull<u64>| NonNull::new(base.as_ptr().cast::<u8>().wrapping_add(self.quadword.back()));
        let Self { address, is_shared, is_private, stays_mapped, .. } = *self;
        TextRef { address, writable: self.base.and_then(view), is_shared, is_private, stays_mapped }
    }

    /// [`TogglePair::exchange`] by [`TextRef::compare_exchange`]: for text without a writable view,
    /// and to report errors.
    ///
    /// # Safety
    /// As [`TogglePair::exchange`].
    #[cold]
    unsafe fn exchange_or_explain(&self, old: u64, new: u64) -> Result<bool, Error> {
        let place = self.place();
        // Text that may be unmapped is not read here either, so that obligation 3 does not apply.
        let place = TextRef { is_private: place.is_private && place.stays_mapped, ..place };
        let (old, new) = (self.quadword.bytes(old), self.quadword.bytes(new));
        // SAFETY: the caller's obligations.
        match unsafe { place.compare_exchange(self.window, 0, &old, &new) } {
            Ok(()) => Ok(true),
            Err(Error::Mismatch { found, .. }) if found == new => Ok(false),
            Err(error) => Err(error),
        }
    }
}
