//! The frame that executes the place of a generic probe.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use wasm_jit_codegen::{At, Condition, Located, SiteFrame, ValueAt};

use super::Location;
use super::accessor::{self, AccessError, FrameAccessor};
use crate::code::CodeImage;
use crate::code::probed::Generic;
use crate::runtime::instance::InstanceData;
use crate::runtime::store::{Handle, StoreContextMut, StoreInner, StoreOpaque};
use crate::runtime::{Instance, Val};
use crate::trap::{Waiting, Walk};
use crate::types::ValType;
use crate::vmctx::SETTLED;

/// The frame that is about to execute the place of a generic probe, while the probe's closure runs.
///
/// Values are read when they are asked for. Writes take effect at once: for the program when it
/// continues, and for everything that reads the value from then on.
///
/// Compiled code does not have every value in a place of its own. What it has not cannot be changed
/// ([`AccessError::Fixed`]).
pub struct Frame<'a> {
    store: *mut StoreOpaque,
    instance: NonNull<InstanceData>,
    generic: &'a Generic,
    site: *mut SiteFrame,
    not_send: PhantomData<*mut ()>,
}

impl<'a> Frame<'a> {
    /// # Safety
    /// The thread runs the store, which is lent to the closure, and is in the stub of the place for
    /// an instance of it.
    pub(super) unsafe fn new(
        store: *mut StoreOpaque,
        instance: NonNull<InstanceData>,
        generic: &'a Generic,
        site: *mut SiteFrame,
    ) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { (*site).settled = settled_at((*site).context).read() };
        Self { store, instance, generic, site, not_send: PhantomData }
    }

    /// Gives the code its operand back.
    pub(super) fn finish(&mut self) {
        // SAFETY: as in `new`.
        unsafe { settled_at((*self.site).context).write((*self.site).settled) };
    }

    /// The probe's place.
    pub fn location(&self) -> Location {
        let Generic { function, position, .. } = *self.generic;
        Location::at(self.image(), function, position)
    }

    /// How many frames of WebAssembly functions there are around this one in its store. Frames of
    /// host functions between them do not count.
    pub fn depth(&self) -> usize {
        self.walk().count() - 1
    }

    /// The running instance.
    pub fn instance(&self) -> Instance {
        let store = self.opaque();
        let index = store.instances.iter().position(|instance| *instance == self.instance);
        Instance(Handle::at(store, index.expect("instances stay in their store") as u32))
    }

    /// The store, to use the instance and to call its functions; `None` if its data are not of this
    /// type.
    pub fn store<T: 'static>(&mut self) -> Option<StoreContextMut<'_, T>> {
        if self.opaque().data_type != std::any::TypeId::of::<T>() {
            return None;
        }
        let store: *mut StoreInner<T> = self.store.cast();
        // SAFETY: the store's data have this type. It is lent to the closure, which borrows the
        // frame meanwhile.
        Some(StoreContextMut::new(unsafe { &mut *store }))
    }

    /// An accessor of this frame: the same one as long as the frame exists.
    ///
    /// # Errors
    /// [`AccessError::Version`].
    pub fn accessor(&mut self) -> Result<FrameAccessor, AccessError> {
        let frame = self.walk().next().expect("the probe's own");
        accessor::of(self, &frame)
    }

    /// An accessor of the frame of the calling function: the next one outwards in the store,
    /// whether or not host functions are between.
    ///
    /// # Errors
    /// [`AccessError::Version`], [`AccessError::InStub`].
    pub fn caller(&mut self) -> Result<Option<FrameAccessor>, AccessError> {
        let Some(caller) = self.walk().nth(1) else { return Ok(None) };
        accessor::of(self, &caller).map(Some)
    }

    /// How many operands the function has on its stack.
    pub fn operands(&self) -> usize {
        self.generic.located.operands.len()
    }

    /// A parameter or local.
    ///
    /// # Errors
    /// [`AccessError::NoLocal`].
    pub fn local(&mut self, index: u32) -> Result<Val, AccessError> {
        self.own().local(self, index)
    }

    /// An operand, counted from the top of the stack.
    ///
    /// # Errors
    /// [`AccessError::NoOperand`].
    pub fn operand(&mut self, depth: u32) -> Result<Val, AccessError> {
        self.own().operand(self, depth)
    }

    /// Changes a parameter or local.
    ///
    /// # Errors
    /// [`AccessError::NoLocal`], [`AccessError::Value`], [`AccessError::Fixed`]: nothing has
    /// changed.
    pub fn set_local(&mut self, index: u32, value: &Val) -> Result<(), AccessError> {
        self.own().set_local(self, index, value)
    }

    /// Changes an operand, counted from the top of the stack.
    ///
    /// # Errors
    /// [`AccessError::NoOperand`], [`AccessError::Value`], [`AccessError::Fixed`]: nothing has
    /// changed.
    pub fn set_operand(&mut self, depth: u32, value: &Val) -> Result<(), AccessError> {
        self.own().set_operand(self, depth, value)
    }

    /// The frame's own values.
    fn own(&self) -> Values {
        let waiting = self.walk().next().expect("the probe's own");
        let Generic { function, position, ref located, .. } = *self.generic;
        Values { waiting, image: self.image().clone(), function, position, located: located.clone() }
    }

    /// The code of the running instance.
    fn image(&self) -> &Arc<CodeImage> {
        // SAFETY: the instance belongs to the store.
        unsafe { self.instance.as_ref() }.module.code()
    }

    pub(super) fn walk(&self) -> Walk {
        // SAFETY: the thread is in the stub of the place; it runs nothing else during the walk.
        unsafe { Walk::new(self.opaque().execution(), self.site) }
    }

    pub(super) fn opaque(&self) -> &StoreOpaque {
        // SAFETY: the store is lent to the closure, which borrows the frame meanwhile.
        unsafe { &*self.store }
    }

    pub(super) fn opaque_mut(&mut self) -> &mut StoreOpaque {
        // SAFETY: as above.
        unsafe { &mut *self.store }
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("location", &self.location()).finish_non_exhaustive()
    }
}

/// The settled operand of an instance.
fn settled_at(context: usize) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(context.wrapping_add_signed(SETTLED as isize))
}

/// The values of a waiting frame.
pub(super) struct Values {
    pub waiting: Waiting,
    pub image: Arc<CodeImage>,
    pub function: u32,
    pub position: u32,
    pub located: Arc<Located>,
}

impl Values {
    pub(super) fn local(&self, frame: &mut Frame<'_>, index: u32) -> Result<Val, AccessError> {
        let ty =
            accessor::local_type(&self.image, self.function, index).ok_or(AccessError::NoLocal { index })?;
        let raw = match self.located.locals.get(index as usize) {
            Some(value) => self.read(*value),
            // No instruction uses it.
            None => 0,
        };
        Ok(frame.opaque_mut().lift(ty, raw))
    }

    pub(super) fn operand(&self, frame: &mut Frame<'_>, depth: u32) -> Result<Val, AccessError> {
        let (value, ty) = self.find_operand(depth)?;
        let raw = self.read(value);
        Ok(frame.opaque_mut().lift(ty, raw))
    }

    pub(super) fn set_local(
        &self,
        frame: &mut Frame<'_>,
        index: u32,
        value: &Val,
    ) -> Result<(), AccessError> {
        let ty =
            accessor::local_type(&self.image, self.function, index).ok_or(AccessError::NoLocal { index })?;
        let raw = frame.opaque_mut().lower(ty, value)?;
        let place = self.located.locals.get(index as usize).filter(|place| place.writable);
        self.write(*place.ok_or(AccessError::Fixed)?, raw)
    }

    pub(super) fn set_operand(
        &self,
        frame: &mut Frame<'_>,
        depth: u32,
        value: &Val,
    ) -> Result<(), AccessError> {
        let (place, ty) = self.find_operand(depth)?;
        let raw = frame.opaque_mut().lower(ty, value)?;
        if !place.writable {
            return Err(AccessError::Fixed);
        }
        self.write(place, raw)
    }

    fn find_operand(&self, depth: u32) -> Result<(ValueAt, ValType), AccessError> {
        let operands = &self.located.operands;
        let height = operands.len().checked_sub(depth as usize + 1);
        let height = height.ok_or(AccessError::NoOperand { depth })?;
        Ok((operands[height], accessor::operand_type(self, height, operands[height].ty)))
    }

    /// Where a register is saved.
    fn register(&self, reg: wasm_jit_codegen::Reg) -> *mut u64 {
        match self.waiting.site {
            // SAFETY: the stub has not been left.
            Some(site) => unsafe { (*site).register(reg) },
            None => self.waiting.register(reg).expect("values of callers are in callee-saved registers"),
        }
    }

    fn slot(&self, offset: i32) -> *mut u64 {
        std::ptr::with_exposed_provenance_mut(self.waiting.fp.wrapping_add_signed(offset as isize))
    }

    fn read(&self, value: ValueAt) -> u64 {
        // SAFETY: the frame waits, with its values in these places.
        let raw = unsafe {
            match value.at {
                At::Constant(bits) => bits,
                At::Register(reg, _) => self.register(reg).read(),
                At::Slot(slot) => self.slot(slot).read(),
                At::Settled | At::Tested => self.waiting.site.map_or(0, |site| (*site).settled),
                At::Shifted(reg, by) => self.register(reg).read() << by,
                At::Flags(_) => self.waiting.site.map_or(0, |site| (*site).condition),
            }
        };
        if value.ty.wide() { raw } else { u64::from(raw as u32) }
    }

    fn write(&self, value: ValueAt, raw: u64) -> Result<(), AccessError> {
        let ValueAt { ty, at, .. } = value;
        let site = self.waiting.site;
        // SAFETY: the frame waits, with its values in these places; no other value depends on them.
        unsafe {
            match at {
                At::Register(reg, slot) => {
                    self.register(reg).write(raw);
                    if let Some(slot) = slot {
                        self.slot(slot).write(raw);
                    }
                    // What takes a condition on the stack ends what is known of the flags.
                    let is_condition = |at: At| matches!(at, At::Flags(_) | At::Tested);
                    let top = self.located.operands.last();
                    if let Some((known, wide)) = self.located.zero_flag
                        && known == reg
                        && !top.is_some_and(|top| is_condition(top.at))
                    {
                        self.set_flags(zero(), if wide { raw == 0 } else { raw as u32 == 0 });
                    }
                }
                At::Slot(slot) => self.slot(slot).write(raw),
                At::Settled | At::Tested if let Some(site) = site => {
                    (*site).settled = raw;
                    if at == At::Tested {
                        self.set_flags(zero(), if ty.wide() { raw == 0 } else { raw as u32 == 0 });
                    }
                }
                At::Flags(condition) if let Some(site) = site => {
                    (*site).condition = raw;
                    self.set_flags(condition, raw as u32 != 0);
                }
                At::Constant(_) | At::Shifted(..) | At::Settled | At::Tested | At::Flags(_) => {
                    return Err(AccessError::Fixed);
                }
            }
        }
        Ok(())
    }

    /// Changes the flags so that a condition holds, or does not.
    ///
    /// # Safety
    /// The stub has not been left.
    unsafe fn set_flags(&self, condition: Condition, holds: bool) {
        let Some(site) = self.waiting.site else { return };
        // Carry, parity, zero, sign, overflow: their bits in RFLAGS.
        const BITS: [u32; 5] = [0, 2, 6, 7, 11];
        let rflags = |set: u64| (0..5).map(|bit| (set >> bit & 1) << BITS[bit]).sum::<u64>();
        let flags = (0..32).map(rflags).find(|flags| condition.holds(*flags) == holds);
        let flags = flags.expect("every condition holds with some flags, and does not with others");
        // The overflow flag is apart.
        // SAFETY: the caller's obligation.
        unsafe { (*site).flags = (flags & 0xff) << 8 | flags >> 11 };
    }
}

/// The condition that a value is zero, after a comparison with zero.
fn zero() -> Condition {
    Condition::Code(4)
}
