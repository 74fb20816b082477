//! A call site: decoded and verified once, toggled for ever.

use wordpatch::text::{Form, TogglePair};
use wordpatch::{Bytes, FetchModel, FetchWindow, TextRef};

use crate::encoding::{self, Shape};
use crate::error::Error;
use crate::island;
use crate::strategy::{Clobbers, Edit, Strategy};
use crate::switch::Switch;

/// Whether a site makes its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The call is made.
    Active,
    /// The call is skipped.
    Inactive,
}

/// What a toggle did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toggle {
    /// The code was changed.
    Changed,
    /// The site was in the wanted state already.
    Unchanged,
}

/// A site's forms.
pub(crate) const ACTIVE: Form = Form::First;
pub(crate) const INACTIVE: Form = Form::Second;

const _: () = assert!(size_of::<Switch>() <= 64, "a toggle looks at one cache line");

/// A call that can be switched on and off. Copies are handles of the same site.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct CallSite {
    /// All that a toggle looks at, in one cache line.
    switch: Switch,
    pub(crate) text: TextRef,
    pub(crate) window: FetchWindow,
    pub(crate) shape: Shape,
    pub(crate) clobbers: Clobbers,
    pub(crate) strategy: Strategy,
    /// The instruction when active.
    pub(crate) instruction: Bytes,
    pub(crate) edit: Edit,
}

impl CallSite {
    /// The active call at `address`, after its bytes were found to be one. Nothing is written to
    /// it. Takes locks, may allocate.
    ///
    /// # Errors
    /// [`Error::NotACall`], or the text cannot be made writable.
    ///
    /// # Safety
    /// 1. `address` must be the start of an instruction in text that stays mapped during the call,
    ///    which only this workspace's crates write from now on.
    /// 2. When the site is inactive, the program must be right without the call, and with the
    ///    registers that `clobbers` names changed.
    /// 3. No other code branches into the middle of the instruction.
    /// 4. A toggle waits for nobody. So [`wordpatch::serialize_all_cores`] must come between the
    ///    last toggle and a [`wordpatch::patch`] of the same instruction.
    pub unsafe fn decode(address: usize, clobbers: Clobbers) -> Result<Self, Error> {
        // SAFETY: obligation 1. One byte is enough to find the mapping; `read_code` looks no
        // further than its page or the instruction's end.
        let first = unsafe { TextRef::resolve(address, 1)? };
        // SAFETY: obligation 1.
        let code = unsafe { read_code(&first)? };
        let shape = encoding::decode(&code).ok_or(Error::NotACall { address, found: code })?;
        let instruction = encoding::bytes(&code[..shape.len()]);
        // SAFETY: as above.
        unsafe { Self::new(first, shape, instruction, clobbers) }
    }

    /// The inactive call to `target` at `address`, where a five-byte NOP stands. Nothing is written
    /// to it.
    ///
    /// # Errors
    /// [`Error::NotACall`] without a NOP, [`Error::StraddlingNop`], [`Error::OutOfReach`].
    ///
    /// # Safety
    /// As [`CallSite::decode`]; and the program must be right with the call.
    pub unsafe fn at_nop(address: usize, target: usize) -> Result<Self, Error> {
        // SAFETY: obligation 1 of `decode`, twice.
        let first = unsafe { TextRef::resolve(address, 1)? };
        // SAFETY: as above.
        let code = unsafe { read_code(&first)? };
        if !encoding::is_nop5(&code) {
            return Err(Error::NotACall { address, found: code });
        }
        let displacement = encoding::displacement(Shape::Call, address, target)
            .ok_or(Error::OutOfReach { address, target })?;
        let call = encoding::active(Shape::Call, displacement);
        // SAFETY: as above.
        let site = unsafe { Self::new(first, Shape::Call, call, Clobbers::Nothing)? };
        if site.strategy == Strategy::Nop { Ok(site) } else { Err(Error::StraddlingNop { address }) }
    }

    /// A site whose instruction is known.
    ///
    /// # Safety
    /// Obligation 1 of [`CallSite::decode`].
    pub(crate) unsafe fn new(
        text: TextRef,
        shape: Shape,
        instruction: Bytes,
        clobbers: Clobbers,
    ) -> Result<Self, Error> {
        let window = FetchModel::in_force().window;
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

    /// The same site, with the caller's promise that its text stays mapped. Where a debugger has
    /// copied the text's page to set a breakpoint, toggles then show at once, for the price of a
    /// load; without the promise, after [`CallSite::settle`].
    ///
    /// # Safety
    /// The text must stay mapped, and nothing else be mapped there, for as long as the result and
    /// its copies are used.
    #[must_use]
    pub unsafe fn staying_mapped(self) -> Self {
        // SAFETY: the caller's obligation, twice.
        unsafe { Self { switch: self.switch.staying_mapped(), text: self.text.staying_mapped(), ..self } }
    }

    /// Makes earlier toggles show where a debugger has copied the text's page
    /// ([`wordpatch::text::copied_pages`]).
    ///
    /// # Errors
    /// [`Error::Foreign`] where a breakpoint stands in the bytes that toggles change, or the page
    /// cannot be written.
    ///
    /// # Safety
    /// The text must be mapped, and not have been replaced.
    pub unsafe fn settle(&self) -> Result<(), Error> {
        // SAFETY: the caller's obligation.
        unsafe { self.switch.settle() }
    }

    /// What is needed to toggle this site.
    pub fn switch(&self) -> Switch {
        self.switch
    }

    /// Where the instruction starts.
    pub fn address(&self) -> usize {
        self.text.address()
    }

    /// What the instruction is.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How it is made inactive.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The operand of the active call: the displacement from the end of the instruction.
    pub fn displacement(&self) -> i32 {
        let operand = &self.instruction[self.shape.operand_offset()..];
        i32::from_le_bytes(operand.try_into().expect("four bytes"))
    }

    /// What the operand leads to: the callee of a direct call, the pointer of an indirect one.
    pub fn target(&self) -> usize {
        (self.address() + self.shape.len()).wrapping_add_signed(self.displacement() as isize)
    }

    /// Makes the call be made from now on. One atomic store: does not block, allocate or enter the
    /// kernel (unless text access is by mprotect); right from any thread, a signal handler, or the
    /// probe function of this very site.
    ///
    /// # Errors
    /// [`Error::Foreign`] when the site holds neither form.
    #[inline]
    pub fn activate(&self) -> Result<Toggle, Error> {
        self.switch.activate()
    }

    /// Makes the call be skipped from now on. As [`CallSite::activate`].
    ///
    /// # Errors
    /// [`Error::Foreign`] when the site holds neither form.
    #[inline]
    pub fn deactivate(&self) -> Result<Toggle, Error> {
        self.switch.deactivate()
    }

    /// Whether something else was mapped over the site since it was decoded: its library was
    /// unloaded, and perhaps loaded again.
    ///
    /// # Safety
    /// The address must be mapped readable.
    pub unsafe fn is_stale(&self) -> bool {
        // SAFETY: the caller's obligation.
        unsafe { self.text.is_stale(self.shape.len()) }
    }

    /// Whether the call is made now.
    ///
    /// # Errors
    /// [`Error::Foreign`] when the site holds neither form.
    pub fn state(&self) -> Result<State, Error> {
        self.switch.found().map_err(|found| {
            let Edit { offset, active, .. } = self.edit;
            Error::Foreign { address: self.address() + offset, expected: active, found }
        })
    }
}

/// Up to six bytes at the place: as far as its page goes, or further if they are text too.
///
/// # Safety
/// Obligation 1 of [`CallSite::decode`].
unsafe fn read_code(first: &TextRef) -> Result<Bytes, Error> {
    let address = first.address();
    let wanted = Shape::IndirectCall.len();
    let in_page = (4096 - (address & 4095)).min(wanted);
    // SAFETY: the caller's obligation.
    let readable = if in_page == wanted || unsafe { TextRef::resolve(address, wanted) }.is_ok() {
        wanted
    } else {
        in_page
    };
    // SAFETY: the page of `first`, or the mapping that `resolve` has just found.
    Ok(unsafe { first.read(0, readable) })
}
