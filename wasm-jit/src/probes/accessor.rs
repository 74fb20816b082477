//! Accessors: handles of frames that probes can keep.

use std::sync::Arc;

use wasm_jit_codegen::Ty;

use super::frame::{Found, Frame, Values, has_shadow_stack};
use super::{InstanceId, Location, ProbeError};
use crate::code::CodeImage;
use crate::code::registry::share_image_at;
use crate::error::Error;
use crate::runtime::accessors::FrameId;
use crate::runtime::instance::InstanceData;
use crate::runtime::{Instance, Val};
use crate::store_id::StoreId;
use crate::trap::Waiting;
use crate::types::{RefType, ValType};
use crate::vmctx::VmContext;

/// A frame of a WebAssembly function, which probes can keep and compare: accessors are equal if and
/// only if they are of the same frame.
///
/// A frame exists from a call to a function until that call ends: by a return, a tail call, a trap
/// or an exception. An accessor is used with the [`Frame`] of a probe that fires in the same store,
/// and therefore on the same thread.
///
/// While a function calls another one, its operands are those below the arguments of the call.
///
/// The first accessor of a frame of a function may cause a version of the function to be compiled.
/// The function keeps this version, with the places of the probes that were made in it, and with a
/// few more instructions at each return: a loop that had probes at all of its instructions has been
/// seen to take twice as long.
///
/// It does so as long as the module whose closure has asked for the accessor (which may be another
/// one than the function's) has [generic probes](super::Kind::Generic) or [trap
/// watches](super::TrapWatch). When the last of them has been dropped, the function's frames return
/// to the original code at their next loop iteration or when a call returns, which ends their
/// accessors. If the processor has a shadow stack, the function keeps the version until the
/// module's code is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameAccessor {
    store: StoreId,
    frame: FrameId,
}

/// Why a value of a frame cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The function has returned, or was left; or nothing that can use the accessor is left, and
    /// the frame has returned to the original code.
    #[error("the frame has gone")]
    FrameGone,
    /// The accessor belongs to another store than the frame with which it was used.
    #[error("the accessor belongs to another store")]
    OtherStore,
    /// The function has fewer parameters and locals.
    #[error("the function has no local {index}")]
    NoLocal {
        /// The index of the requested local.
        index: u32,
    },
    /// The stack has fewer operands.
    #[error("the stack has no operand {depth}, counted from its top")]
    NoOperand {
        /// The depth of the requested operand; 0 is the top of the stack.
        depth: u32,
    },
    /// The new value has another type, or belongs to another store.
    #[error(transparent)]
    Value(#[from] Error),
    /// The compiled code has no location for another value: the local is after the last one that an
    /// instruction uses, or there are more than 1,024 operands.
    #[error("the compiled code has no place for another value")]
    Fixed,
    /// The stack has no room for the larger frame of the plain version, in which the function would
    /// continue.
    #[error("the stack has no room for a larger frame")]
    StackOverflow,
    /// The frame waits for a call, and the processor has a shadow stack: the call cannot return to
    /// the plain version.
    #[error("the processor does not let a call return to another version of the code")]
    ShadowStack,
    /// The value is not kept where the frame's instruction has trapped.
    #[error("the compiled code does not keep the value at this point")]
    NotKept,
    /// A trap or an exception is about to leave the frame: see
    /// [`Module::watch_traps`](crate::Module::watch_traps).
    #[error("the frame is about to end: its values cannot be changed")]
    Ending,
    /// The frame waits for a probe function, so that it cannot have an accessor yet.
    #[error("the frame waits in the stub of a probe")]
    InStub,
    /// There is no version of the function's code with which frames can have accessors.
    #[error("no version for accessors: {0}")]
    Version(#[source] Box<ProbeError>),
    /// The frame's values are not found, because of a defect of the compiler.
    #[error("the frame's values are not found: {reason}")]
    Compile {
        /// A description of the problem.
        reason: String,
    },
}

/// Lets closures return an access error as their own.
impl From<AccessError> for Error {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Value(error) => error,
            error => Self::Host(Box::new(error)),
        }
    }
}

/// The accessor of a waiting frame.
pub(super) fn of(frame: &mut Frame<'_>, waiting: &Waiting) -> Result<FrameAccessor, AccessError> {
    let (image, function) = code_of(waiting);
    if waiting.site.is_none() && image.stub_at(waiting.return_address - 1).is_some() {
        return Err(AccessError::InStub);
    }
    let is_fixed = has_shadow_stack();
    let users = &frame.image().accessor_users;
    let kept = image.keep_for_accessors(function, users, is_fixed);
    kept.map_err(|error| AccessError::Version(Box::new(error.into())))?;
    if waiting.site.is_none()
        && !is_fixed
        && let Some(address) = image.return_with_accessor(function, waiting.return_address)
    {
        // SAFETY: the frame waits for a call that returns to the address that is stored there. The
        // frames of all versions are alike where calls return.
        unsafe { std::ptr::with_exposed_provenance_mut::<usize>(waiting.return_slot).write(address) };
    }
    let walk = frame.walk();
    let store = frame.opaque_mut();
    let vm = store.vm();
    // SAFETY: the walk is of this store, which the thread runs.
    let id = unsafe { store.accessors.of(vm, walk, waiting.fp) };
    Ok(FrameAccessor { store: store.id, frame: id.expect("the walk comes to the frame") })
}

/// The code of a waiting frame, and its function.
fn code_of(waiting: &Waiting) -> (Arc<CodeImage>, u32) {
    let pc = waiting.return_address - 1;
    // SAFETY: the frame waits there.
    let image = unsafe { share_image_at(pc) }.expect("frames of functions are in images");
    let function = image.function_at(pc).expect("frames of functions are in functions");
    (image, function)
}

impl FrameAccessor {
    /// Whether the frame exists.
    pub fn is_alive(&self, frame: &Frame<'_>) -> bool {
        self.fp(frame).is_ok()
    }

    /// The location at which the frame waits: that of a probe, or of a call.
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`].
    pub fn location(&self, frame: &Frame<'_>) -> Result<Location, AccessError> {
        if self.fp(frame)? as u64 == frame.number() {
            return Ok(frame.location());
        }
        let Found { function, position, image, .. } = self.found(frame)?;
        Ok(Location::at(&image, function, position))
    }

    /// The instance whose function the frame is of.
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`].
    pub fn instance(&self, frame: &Frame<'_>) -> Result<Instance, AccessError> {
        let fp = self.fp(frame)?;
        let context = std::ptr::with_exposed_provenance::<*mut VmContext>(fp - 8);
        // SAFETY: a frame that waits for a call or a probe has its context there, which is that of
        // an instance of the store.
        let owner = unsafe { (*context.read()).owner.cast::<InstanceData>() };
        Ok(frame.instance_at(owner))
    }

    /// The identity of that instance.
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`].
    pub fn instance_id(&self, frame: &Frame<'_>) -> Result<InstanceId, AccessError> {
        Ok(self.instance(frame)?.id_in(frame.opaque()))
    }

    /// The frame's number: see [`Frame::number`].
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`].
    pub fn number(&self, frame: &Frame<'_>) -> Result<u64, AccessError> {
        Ok(self.fp(frame)? as u64)
    }

    /// The number of frames of WebAssembly functions around this one in its store.
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`].
    pub fn depth(&self, frame: &Frame<'_>) -> Result<usize, AccessError> {
        let fp = self.fp(frame)?;
        Ok(frame.walk().skip_while(|waiting| waiting.fp != fp).count() - 1)
    }

    /// An accessor of the frame of the calling function: see [`Frame::caller`].
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`]; otherwise as [`Frame::caller`].
    pub fn caller(&self, frame: &mut Frame<'_>) -> Result<Option<Self>, AccessError> {
        let fp = self.fp(frame)?;
        let caller = frame.walk().skip_while(|waiting| waiting.fp != fp).nth(1);
        caller.map(|caller| of(frame, &caller)).transpose()
    }

    /// The number of operands that the function has on its stack.
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`].
    pub fn operands(&self, frame: &Frame<'_>) -> Result<usize, AccessError> {
        Ok(self.found(frame)?.located.operands.len())
    }

    /// The value of a parameter or local, by its index. A local of a non-nullable reference type is
    /// null before the program has assigned it.
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`], [`AccessError::NoLocal`].
    pub fn local(&self, frame: &mut Frame<'_>, index: u32) -> Result<Val, AccessError> {
        self.found(frame)?.values().local(frame.opaque_mut(), index)
    }

    /// The value of an operand, counted from the top of the stack (0).
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`], [`AccessError::NoOperand`].
    pub fn operand(&self, frame: &mut Frame<'_>, depth: u32) -> Result<Val, AccessError> {
        self.found(frame)?.values().operand(frame.opaque_mut(), depth)
    }

    /// Changes a parameter or local.
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`], [`AccessError::ShadowStack`];
    /// otherwise as [`Frame::set_local`].
    pub fn set_local(&self, frame: &mut Frame<'_>, index: u32, value: &Val) -> Result<(), AccessError> {
        frame.check_change()?;
        self.found(frame)?.values().set_local(frame, index, value)
    }

    /// Changes an operand, counted from the top of the stack.
    ///
    /// # Errors
    /// [`AccessError::FrameGone`], [`AccessError::OtherStore`], [`AccessError::ShadowStack`];
    /// otherwise as [`Frame::set_operand`].
    pub fn set_operand(&self, frame: &mut Frame<'_>, depth: u32, value: &Val) -> Result<(), AccessError> {
        frame.check_change()?;
        self.found(frame)?.values().set_operand(frame, depth, value)
    }

    fn fp(&self, frame: &Frame<'_>) -> Result<usize, AccessError> {
        let store = frame.opaque();
        if store.id != self.store {
            return Err(AccessError::OtherStore);
        }
        store.accessors.frame(self.frame).ok_or(AccessError::FrameGone)
    }

    fn found(&self, frame: &Frame<'_>) -> Result<Found, AccessError> {
        let fp = self.fp(frame)?;
        let waiting = frame.walk().with_registers().find(|waiting| waiting.fp == fp);
        let waiting = waiting.expect("what is alive is found");
        let (image, function) = code_of(&waiting);
        if waiting.site.is_none() && image.stub_at(waiting.return_address - 1).is_some() {
            return Err(AccessError::InStub);
        }
        let (position, located) = match waiting.site {
            Some(_) => image.site_values(function, waiting.return_address),
            None => image.call_values(function, waiting.return_address),
        }
        .map_err(|error| AccessError::Compile { reason: error.to_string() })?;
        Ok(Found { waiting, image, function, position, located })
    }
}

/// The type of an operand, counted from the bottom of the stack.
pub(super) fn operand_type(values: &Values<'_>, height: usize, ty: Ty) -> ValType {
    match ty {
        Ty::I32 => ValType::I32,
        Ty::I64 => ValType::I64,
        Ty::F32 => ValType::F32,
        Ty::F64 => ValType::F64,
        Ty::V128 => ValType::V128,
        Ty::Ref if values.position == values.image.body_range(values.function).end => {
            let results = values.image.module.function_type(values.function).results();
            ValType::of(results[height], &values.image.module)
        }
        Ty::Ref => {
            let found = values.image.operand_type(values.function, values.position, height);
            ValType::Ref(found.unwrap_or(RefType::FUNCREF))
        }
    }
}
