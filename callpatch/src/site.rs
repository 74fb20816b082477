//! Call sites: decoded and verified once, toggled any number of times.

use wordpatch::text::TogglePair;
use wordpatch::{Bytes, FetchModel, FetchWindow, TextRef};

use crate::encoding::{self, Shape};
use crate::error::Error;
use crate::island;
use crate::strategy::{Clobbers, Edit, Strategy};
use crate::switch::{State, Switch, Toggle};

const _: () = assert!(size_of::<Switch>() <= 64, "a toggle reads one cache line");

/// A call that can be activated and deactivated. Copies are handles to the same site.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct CallSite {
    /// Everything that a toggle reads, in one cache line.
    switch: Switch,
    pub(crate) text: TextRef,
    pub(crate) window: FetchWindow,
    pub(crate) shape: Shape,
    pub(crate) clobbers: Clobbers,
    pub(crate) strategy: Strategy,
    /// The instruction of the active call.
    pub(crate) instruction: Bytes,
    pub(crate) edit: Edit,
}

impl CallSite {
    /// Decodes the active call at `address`. Does not write to the code. Takes locks and may
    /// allocate.
    ///
    /// If other text was mapped there since a site in it was decoded, and neither
    /// [`wordpatch::text::forget`] nor [`wordpatch::text::release`] was called, this is noticed
    /// here if the instruction has changed; otherwise the site [is stale](CallSite::is_stale) after
    /// it was toggled.
    ///
    /// # Errors
    /// [`Error::NotACall`], or [`Error::Text`] if the text cannot be made writable.
    ///
    /// # Safety
    /// 1. `address` must be the start of an instruction in text that stays mapped during the call,
    ///    and that only the crates of this workspace write from now on. Without a writable alias
    ///    (with [`TextAccess::Mprotect`](wordpatch::TextAccess::Mprotect), or in text that is
    ///    mapped writable and executable) it must stay mapped as long as the site or a copy of it
    ///    is used.
    /// 2. While the site is inactive, the program must be correct without the call, and with
    ///    changes of the registers that `clobbers` names.
    /// 3. No other code branches into the middle of the instruction.
    /// 4. Toggles do not wait until other threads see them. Therefore
    ///    [`wordpatch::serialize_all_cores`] must be called between the last toggle and a
    ///    [`wordpatch::patch`] of the same instruction.
    pub unsafe fn decode(address: usize, clobbers: Clobbers) -> Result<Self, Error> {
        // SAFETY: obligation 1.
        let (first, code) = unsafe { current_code(address)? };
        let shape = encoding::decode(&code).ok_or(Error::NotACall { address, found: code })?;
        let instruction = encoding::bytes(&code[..shape.len()]);
        // SAFETY: as above.
        unsafe { Self::new(first, shape, instruction, clobbers, FetchModel::in_force().window) }
    }

    /// Decodes a five-byte NOP (`0f 1f 44 00 00`) at `address` as an inactive call to `target`,
    /// which may be a [stub](crate::stub). Does not write to the code. Takes locks and may
    /// allocate.
    ///
    /// # Errors
    /// [`Error::NotACall`] if there is no such NOP, [`Error::StraddlingNop`],
    /// [`Error::OutOfReach`].
    ///
    /// # Safety
    /// As [`CallSite::decode`]. In addition, the program must be correct with the call: the stack
    /// must be aligned as the callee expects it, and no register that the callee may change may be
    /// in use.
    pub unsafe fn at_nop(address: usize, target: usize) -> Result<Self, Error> {
        // SAFETY: obligation 1 of `decode`.
        let (first, code) = unsafe { current_code(address)? };
        if !encoding::is_nop5(&code) {
            return Err(Error::NotACall { address, found: code });
        }
        let displacement = encoding::displacement(Shape::Call, address, target)
            .ok_or(Error::OutOfReach { address, target })?;
        let call = encoding::active(Shape::Call, displacement);
        // SAFETY: as above.
        let site =
            unsafe { Self::new(first, Shape::Call, call, Clobbers::Nothing, FetchModel::in_force().window)? };
        if site.strategy == Strategy::Nop { Ok(site) } else { Err(Error::StraddlingNop { address }) }
    }

    /// A site whose instruction is already decoded, for this window.
    ///
    /// # Safety
    /// Obligation 1 of [`CallSite::decode`].
    pub(crate) unsafe fn new(
        text: TextRef,
        shape: Shape,
        instruction: Bytes,
        clobbers: Clobbers,
        window: FetchWindow,
    ) -> Result<Self, Error> {
        let strategy = Strategy::choose(shape, window, text.address(), clobbers);
        if strategy == Strategy::Ret {
            island::note_tail_call(text.address());
        }
        let island = match strategy {
            Strategy::RetIsland => {
                // SAFETY: the caller's obligation.
                Some(encoding::active(shape, unsafe { island::displacement(shape, &text)? }))
            }
            _ => None,
        };
        let edit = Edit::new(strategy, shape, &instruction, island.as_ref());
        let forms = TogglePair::new(&text, window, edit.offset, [&edit.active, &edit.inactive]);
        Ok(Self { switch: Switch::new(forms), text, window, shape, clobbers, strategy, instruction, edit })
    }

    /// The same site, with the guarantee that its text stays mapped. If a debugger has copied the
    /// page of the text to set a breakpoint, toggles then take effect immediately, at the cost of
    /// one load; without the guarantee, they take effect after [`CallSite::settle`].
    ///
    /// # Safety
    /// The text must stay mapped, and nothing else may be mapped at its address, for as long as the
    /// result and its copies are used.
    #[must_use]
    pub unsafe fn staying_mapped(self) -> Self {
        // SAFETY: the caller's obligation, twice.
        unsafe { Self { switch: self.switch.staying_mapped(), text: self.text.staying_mapped(), ..self } }
    }

    /// Makes earlier toggles take effect on a page of text that a debugger has copied
    /// ([`wordpatch::text::copied_pages`]). Takes two system calls if a debugger has copied it.
    ///
    /// # Errors
    /// [`Error::Foreign`] if there is a breakpoint in the bytes that toggles change, or an error
    /// because the page cannot be written.
    ///
    /// # Safety
    /// The text must be mapped, and must not have been replaced.
    pub unsafe fn settle(&self) -> Result<(), Error> {
        // SAFETY: the caller's obligation.
        unsafe { self.switch.settle() }
    }

    /// The part of the site that is needed to toggle it.
    pub fn switch(&self) -> Switch {
        self.switch
    }

    /// The address of the site's instruction.
    pub fn address(&self) -> usize {
        self.text.address()
    }

    /// The kind of the site's instruction.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The way in which the site is made inactive.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The operand of the active call: the displacement from the end of the instruction.
    pub fn displacement(&self) -> i32 {
        let operand = &self.instruction[self.shape.operand_offset()..];
        i32::from_le_bytes(operand.try_into().expect("four bytes"))
    }

    /// The target of the operand: the callee of a direct call, or the pointer of an indirect one.
    pub fn target(&self) -> usize {
        (self.address() + self.shape.len()).wrapping_add_signed(self.displacement() as isize)
    }

    /// Activates the call. This is one atomic store, which may be made by any thread, by a signal
    /// handler, or by the probe function of this site. It never allocates; it blocks and enters the
    /// kernel only if text access is by mprotect, if a debugger has copied the page, or while text
    /// is moved after a fork
    /// ([`TextRef::compare_exchange`](wordpatch::TextRef::compare_exchange) has the details).
    ///
    /// # Errors
    /// [`Error::Foreign`] if the site has neither form. [`Error::Text`] with
    /// [`SharedWithParent`](wordpatch::Error::SharedWithParent) in a forked child; with
    /// [`Contended`](wordpatch::Error::Contended) after ten seconds in those cases; with
    /// [`ProtectRefused`](wordpatch::Error::ProtectRefused) in the first two; with
    /// [`NotMapped`](wordpatch::Error::NotMapped) if the text was found unmapped.
    #[inline]
    pub fn activate(&self) -> Result<Toggle, Error> {
        self.switch.activate()
    }

    /// Deactivates the call: it is skipped. Otherwise as [`CallSite::activate`].
    ///
    /// # Errors
    /// As [`CallSite::activate`].
    #[inline]
    pub fn deactivate(&self) -> Result<Toggle, Error> {
        self.switch.deactivate()
    }

    /// Whether other memory has been mapped over the site since it was decoded: its library was
    /// unloaded, and possibly loaded again.
    ///
    /// # Safety
    /// The address must be mapped and readable.
    pub unsafe fn is_stale(&self) -> bool {
        // SAFETY: the caller's obligation.
        unsafe { self.text.is_stale(self.shape.len()) }
    }

    /// Whether the call is active.
    ///
    /// # Errors
    /// [`Error::Foreign`] if the site has neither form.
    pub fn state(&self) -> Result<State, Error> {
        self.switch.found().map_err(|found| {
            let Edit { offset, active, .. } = self.edit;
            Error::Foreign { address: self.address() + offset, expected: active, found }
        })
    }
}

/// The location of the code at `address`, and up to six bytes of it: up to the end of the page, or
/// beyond it if the next page is text as well.
///
/// # Safety
/// Obligation 1 of [`CallSite::decode`].
unsafe fn current_code(address: usize) -> Result<(TextRef, Bytes), Error> {
    let wanted = Shape::IndirectCall.len();
    let in_page = (4096 - (address & 4095)).min(wanted);
    // SAFETY: the caller's obligation: if the first byte is mapped, the others of its page are.
    let first = unsafe { TextRef::resolve_current(address, in_page)? };
    // SAFETY: as above.
    let readable = if in_page == wanted || unsafe { TextRef::resolve(address, wanted) }.is_ok() {
        wanted
    } else {
        in_page
    };
    // SAFETY: the page of `first`, or the mapping that `resolve` has just found.
    Ok((first, unsafe { first.read(0, readable) }))
}
