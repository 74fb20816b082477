//! The frame that executes the place of a generic probe.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use wasm_jit_codegen::{At, Condition, Located, SiteFrame, Ty, ValueAt, Width};

use super::accessor::{self, AccessError, FrameAccessor};
use super::{InstanceId, Location};
use crate::code::CodeImage;
use crate::code::probed::{Generic, Plain};
use crate::error::Error;
use crate::runtime::instance::InstanceData;
use crate::runtime::store::{StoreContextMut, StoreInner, StoreOpaque};
use crate::runtime::value::{read_words, write_words};
use crate::runtime::{Instance, Val};
use crate::trap::{Waiting, Walk};
use crate::types::ValType;
use crate::vmctx::SETTLED;

/// The frame that is about to execute the place of a generic probe, while the probe's closure runs.
///
/// Values are read when they are requested. Writes take effect at once: for the program when it
/// continues, and for everything that reads the value from then on.
///
/// Compiled code does not have a separate location for every value: it folds constants, and treats
/// operands as aliases of locals. When such a value is changed, the frame continues, until it
/// returns, in a *plain* version of its function, which has a location for each value and is
/// several times slower. That version is compiled when it is first needed.
///
/// At the [exit](super::Place::Exit) of a function, the operands are its results, the last one on
/// top. The locals have their last values; changing them has no effect on the program.
pub struct Frame<'a> {
    store: *mut StoreOpaque,
    instance: NonNull<InstanceData>,
    generic: &'a Generic,
    site: *mut SiteFrame,
    /// The address in the stub.
    return_address: usize,
    /// At an exit: the results that are in no register.
    results: Vec<u64>,
    /// The return address with which the frame was found to be in optimized code.
    optimized: usize,
    /// Where its values are, once one has been requested that is not simply a number.
    own: Option<Own>,
    /// Whether the frame is about to be left: nothing can be changed.
    is_ending: bool,
    not_send: PhantomData<*mut ()>,
}

/// Where a frame's own values are.
struct Own {
    waiting: Waiting,
    /// The locations, if the frame is in a plain version.
    plain: Option<Arc<Located>>,
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
        let (return_address, mut results) = unsafe {
            (*site).settled = settled_at((*site).context).read();
            let results = &(*(*store).vm()).results;
            ((*site).return_address, results[..generic.results].to_vec())
        };
        // SAFETY: as above.
        unsafe { (*site).results = results.as_mut_ptr() };
        Self {
            store,
            instance,
            generic,
            site,
            return_address,
            results,
            optimized: 0,
            own: None,
            is_ending: false,
            not_send: PhantomData,
        }
    }

    /// The frame of an instruction that has trapped, whose state was saved as a stub would have
    /// saved it.
    ///
    /// # Safety
    /// As [`Frame::new`], but the thread is where the runtime is about to leave the activation.
    pub(super) unsafe fn ending(
        store: *mut StoreOpaque,
        instance: NonNull<InstanceData>,
        generic: &'a Generic,
        site: *mut SiteFrame,
    ) -> Self {
        // SAFETY: the caller's obligation.
        let frame = unsafe { Self::new(store, instance, generic, site) };
        Self { is_ending: true, ..frame }
    }

    /// Whether the frame is about to be left, so that its values cannot be changed.
    pub(super) fn check_change(&self) -> Result<(), AccessError> {
        if self.is_ending { Err(AccessError::Ending) } else { Ok(()) }
    }

    /// Gives the code back what calls may have changed. Returns whether the frame has become plain.
    pub(super) fn finish(&mut self) -> bool {
        // SAFETY: as in `new`.
        unsafe {
            settled_at((*self.site).context).write((*self.site).settled);
            let results = &mut (*(*self.store).vm()).results;
            for (index, result) in results[..self.results.len()].iter_mut().enumerate() {
                *result = (*self.site).results.add(index).read();
            }
            (*self.site).return_address != self.return_address
        }
    }

    /// The location of the probe.
    pub fn location(&self) -> Location {
        let Generic { function, position, .. } = *self.generic;
        Location::at(self.image(), function, position)
    }

    /// The number that [`Bound::Frame`](super::Bound::Frame) gives for this frame.
    pub fn number(&self) -> u64 {
        self.walk().first().fp as u64
    }

    /// The [numbers](Frame::number) of this frame and those around it in its store, from this one
    /// outwards. Frames that exist at the same time have different numbers.
    ///
    /// The iterator is lazy, and each number takes a few nanoseconds: to find out whether the
    /// caller is the same as before, compare the second one, whose cost does not depend on the
    /// depth of the stack.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.walk().map(|waiting| waiting.fp as u64)
    }

    /// The number of frames of WebAssembly functions around this one in its store, not counting
    /// frames of host functions. They are counted at each call, which takes a few nanoseconds for
    /// each frame.
    pub fn depth(&self) -> usize {
        self.walk().count() - 1
    }

    /// The fuel that the store has left. The instructions from the last branch, call or label up to
    /// the next one are already paid for. The amount therefore depends on the instructions that
    /// were executed and on the place, not on which probes exist.
    ///
    /// # Errors
    /// [`Error::NoFuel`] if programs of this engine do not consume fuel.
    pub fn fuel(&self) -> Result<u64, Error> {
        self.opaque().fuel()
    }

    /// The instance that executes the function of this frame.
    pub fn instance(&self) -> Instance {
        self.instance_at(self.instance.as_ptr())
    }

    /// The identity of the instance that executes the function of this frame.
    pub fn instance_id(&self) -> InstanceId {
        self.instance().id_in(self.opaque())
    }

    /// The instance of the store with these data.
    pub(super) fn instance_at(&self, data: *mut InstanceData) -> Instance {
        let data = NonNull::new(data).expect("an instance has data");
        Instance::of(self.opaque(), data)
    }

    /// The store, to use the instance and to call its functions; `None` if the store's data are not
    /// of type `T`.
    pub fn store<T: 'static>(&mut self) -> Option<StoreContextMut<'_, T>> {
        if self.opaque().data_type != std::any::TypeId::of::<T>() {
            return None;
        }
        let store: *mut StoreInner<T> = self.store.cast();
        // SAFETY: the store's data have this type. The store is lent to the closure, which borrows
        // the frame for this time.
        Some(StoreContextMut::new(unsafe { &mut *store }))
    }

    /// The accessor of this frame, which is the same as long as the frame exists.
    ///
    /// # Errors
    /// [`AccessError::Version`].
    pub fn accessor(&mut self) -> Result<FrameAccessor, AccessError> {
        let frame = self.walk().first();
        accessor::of(self, &frame)
    }

    /// The accessor of the frame of the calling function: the next WebAssembly frame outwards in
    /// the store, even if host functions are in between.
    ///
    /// # Errors
    /// [`AccessError::Version`], [`AccessError::InStub`].
    pub fn caller(&mut self) -> Result<Option<FrameAccessor>, AccessError> {
        self.outer(1)
    }

    /// The accessor of the frame that is `level` frames outwards from this one in the store: 0 is
    /// this one, 1 its [caller](Frame::caller).
    ///
    /// # Errors
    /// [`AccessError::Version`], [`AccessError::InStub`].
    pub fn outer(&mut self, level: usize) -> Result<Option<FrameAccessor>, AccessError> {
        let Some(found) = self.walk().nth(level) else { return Ok(None) };
        accessor::of(self, &found).map(Some)
    }

    /// Number of frames that walks of the stack have visited on this thread: for tests of the cost
    /// of accesses to frames.
    #[doc(hidden)]
    pub fn walked(&self) -> u64 {
        crate::trap::walked()
    }

    /// The number of operands that the function has on its stack.
    pub fn operands(&self) -> usize {
        self.generic.located.operands.len()
    }

    /// The value of a parameter or local, by its index. A local of a non-nullable reference type is
    /// null before the program has assigned it.
    ///
    /// # Errors
    /// [`AccessError::NoLocal`].
    #[inline]
    pub fn local(&mut self, index: u32) -> Result<Val, AccessError> {
        match self.local_number(index) {
            Some((ty, raw)) => Ok(number(ty, raw)),
            None => self.any_local(index),
        }
    }

    /// The value of an operand, counted from the top of the stack (0).
    ///
    /// # Errors
    /// [`AccessError::NoOperand`].
    #[inline]
    pub fn operand(&mut self, depth: u32) -> Result<Val, AccessError> {
        match self.operand_number(depth) {
            Some((ty, raw)) => Ok(number(ty, raw)),
            None => self.any_operand(depth),
        }
    }

    /// Whether a value is of a type; for a reference, the result of `ref.test`.
    pub fn is_of_type(&mut self, value: &Val, ty: &ValType) -> bool {
        self.opaque_mut().check_type(*ty, value).is_ok()
    }

    /// Changes a parameter or local.
    ///
    /// # Errors
    /// [`AccessError::NoLocal`], [`AccessError::Value`], [`AccessError::Fixed`],
    /// [`AccessError::Version`], [`AccessError::StackOverflow`], [`AccessError::Ending`]: nothing
    /// has changed.
    pub fn set_local(&mut self, index: u32, value: &Val) -> Result<(), AccessError> {
        self.check_change()?;
        let own = self.find_own();
        self.found(own).values().set_local(self, index, value)
    }

    /// Changes an operand, counted from the top of the stack.
    ///
    /// # Errors
    /// [`AccessError::NoOperand`], [`AccessError::Value`], [`AccessError::Fixed`],
    /// [`AccessError::Version`], [`AccessError::StackOverflow`], [`AccessError::Ending`]: nothing
    /// has changed.
    pub fn set_operand(&mut self, depth: u32, value: &Val) -> Result<(), AccessError> {
        self.check_change()?;
        let own = self.find_own();
        self.found(own).values().set_operand(self, depth, value)
    }

    fn local_number(&mut self, index: u32) -> Option<(NumberType, u64)> {
        let value = self.optimized()?.locals.get(index as usize)?;
        self.number_at(value)
    }

    fn operand_number(&mut self, depth: u32) -> Option<(NumberType, u64)> {
        let operands = &self.optimized()?.operands;
        let value = &operands[operands.len().checked_sub(depth as usize + 1)?];
        self.number_at(value)
    }

    #[cold]
    fn any_local(&mut self, index: u32) -> Result<Val, AccessError> {
        self.read_own(|own, store| own.local(store, index))
    }

    #[cold]
    fn any_operand(&mut self, depth: u32) -> Result<Val, AccessError> {
        self.read_own(|own, store| own.operand(store, depth))
    }

    /// The locations of the frame's values, unless it is in a plain version.
    fn optimized(&mut self) -> Option<&'a Located> {
        // SAFETY: as in `new`.
        let return_address = unsafe { (*self.site).return_address };
        if self.optimized != return_address {
            if !self.is_ending && self.image().is_plain_at(self.generic.function, return_address) {
                return None;
            }
            self.optimized = return_address;
        }
        Some(&self.generic.located)
    }

    /// A number that is in a register, in a slot or constant. It is returned in registers, since
    /// a larger value that is written in parts and copied as a whole takes several times as long to
    /// read as the number itself.
    fn number_at(&self, value: &ValueAt) -> Option<(NumberType, u64)> {
        let ty = match value.ty {
            Ty::I32 => NumberType::I32,
            Ty::I64 => NumberType::I64,
            Ty::F32 => NumberType::F32,
            Ty::F64 => NumberType::F64,
            Ty::V128 | Ty::Ref => return None,
        };
        // SAFETY: the frame waits, with its values in these places.
        let raw = unsafe {
            match value.at {
                At::Constant(bits) => bits,
                At::Register(reg, _) => *(*self.site).register(reg),
                At::Slot(offset) => {
                    let slot = (*self.site).fp.wrapping_add_signed(offset as isize);
                    std::ptr::with_exposed_provenance::<u64>(slot).read()
                }
                _ => return None,
            }
        };
        Some((ty, truncated(value.ty.width(), raw)))
    }

    /// Reads one of the frame's own values, which are located once, and again after the frame has
    /// become plain.
    fn read_own<R>(&mut self, read: impl FnOnce(&Values<'_>, &mut StoreOpaque) -> R) -> R {
        // SAFETY: as in `new`.
        let return_address = unsafe { (*self.site).return_address };
        if self.own.as_ref().is_none_or(|own| own.waiting.return_address != return_address) {
            self.own = Some(self.find_own());
        }
        let (own, store) = (self.own.as_ref().expect("just found"), self.store);
        let Generic { function, position, ref located, .. } = *self.generic;
        let located = own.plain.as_deref().unwrap_or(located);
        let values = Values { waiting: &own.waiting, image: self.image(), function, position, located };
        // SAFETY: the store is lent to the closure, which borrows the frame meanwhile. The values
        // borrow nothing of it: instances are allocated separately.
        read(&values, unsafe { &mut *store })
    }

    fn find_own(&self) -> Own {
        let waiting = self.walk().first();
        let (function, image) = (self.generic.function, self.image());
        let plain = (!self.is_ending && image.is_plain_at(function, waiting.return_address)).then(|| {
            let found = image.site_values(function, waiting.return_address);
            found.expect("the site of a generic probe has its values").1
        });
        Own { waiting, plain }
    }

    /// The same, independent of the frame, which can be changed meanwhile.
    fn found(&self, Own { waiting, plain }: Own) -> Found {
        let Generic { function, position, ref located, .. } = *self.generic;
        let located = plain.unwrap_or_else(|| located.clone());
        Found { waiting, image: self.image().clone(), function, position, located }
    }

    /// The function, and the place in the module.
    pub(super) fn position(&self) -> (u32, u32) {
        (self.generic.function, self.generic.position)
    }

    /// The code of the running instance.
    pub(super) fn image(&self) -> &Arc<CodeImage> {
        self.instance_data().module.code()
    }

    pub(super) fn instance_data(&self) -> &InstanceData {
        // SAFETY: the instance belongs to the store.
        unsafe { self.instance.as_ref() }
    }

    pub(super) fn walk(&self) -> Walk {
        // SAFETY: the thread is in the stub of the place; it runs nothing else during the walk.
        unsafe { Walk::new(self.opaque().execution(), self.site) }
    }

    pub(super) fn opaque(&self) -> &StoreOpaque {
        // SAFETY: the store is lent to the closure, which borrows the frame for this time.
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

/// The types of numbers.
#[derive(Clone, Copy)]
enum NumberType {
    I32,
    I64,
    F32,
    F64,
}

#[inline]
fn number(ty: NumberType, raw: u64) -> Val {
    match ty {
        NumberType::I32 => Val::I32(raw as i32),
        NumberType::I64 => Val::I64(raw as i64),
        NumberType::F32 => Val::F32(raw as u32),
        NumberType::F64 => Val::F64(raw),
    }
}

/// The settled operand of an instance.
fn settled_at(context: usize) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(context.wrapping_add_signed(SETTLED as isize))
}

/// A waiting frame, with what its values are found by.
pub(super) struct Found {
    pub waiting: Waiting,
    pub image: Arc<CodeImage>,
    pub function: u32,
    pub position: u32,
    pub located: Arc<Located>,
}

impl Found {
    pub(super) fn values(&self) -> Values<'_> {
        let Self { waiting, image, function, position, located } = self;
        Values { waiting, image, function: *function, position: *position, located }
    }
}

/// The values of a waiting frame.
pub(super) struct Values<'a> {
    waiting: &'a Waiting,
    pub image: &'a Arc<CodeImage>,
    pub function: u32,
    pub position: u32,
    located: &'a Located,
}

impl Values<'_> {
    pub(super) fn local(&self, store: &mut StoreOpaque, index: u32) -> Result<Val, AccessError> {
        let ty = self.local_type(index)?;
        let raw = match self.located.locals.get(index as usize) {
            Some(value) => self.read(known(*value)?),
            // No instruction uses it.
            None => 0,
        };
        Ok(store.lift(ty, raw))
    }

    pub(super) fn operand(&self, store: &mut StoreOpaque, depth: u32) -> Result<Val, AccessError> {
        let (value, ty) = self.find_operand(depth)?;
        let raw = self.read(known(value)?);
        Ok(store.lift(ty, raw))
    }

    pub(super) fn set_local(
        &self,
        frame: &mut Frame<'_>,
        index: u32,
        value: &Val,
    ) -> Result<(), AccessError> {
        let ty = self.local_type(index)?;
        let raw = frame.opaque_mut().lower(ty, value)?;
        let place = |values: &Values<'_>| values.located.locals.get(index as usize).copied();
        self.write_at(frame, place(self).ok_or(AccessError::Fixed)?, place, raw)
    }

    pub(super) fn set_operand(
        &self,
        frame: &mut Frame<'_>,
        depth: u32,
        value: &Val,
    ) -> Result<(), AccessError> {
        let (place, ty) = self.find_operand(depth)?;
        let raw = frame.opaque_mut().lower(ty, value)?;
        let again = |values: &Values<'_>| Some(values.find_operand(depth).ok()?.0);
        self.write_at(frame, place, again, raw)
    }

    /// Changes a value: in its location in the frame's plain version if it has no other.
    fn write_at(
        &self,
        frame: &mut Frame<'_>,
        place: ValueAt,
        again: impl Fn(&Values<'_>) -> Option<ValueAt>,
        raw: u128,
    ) -> Result<(), AccessError> {
        if place.writable {
            return self.write(place, raw);
        }
        let plain = self.make_plain(frame)?;
        let plain = plain.values();
        let place = again(&plain).filter(|place| place.writable).ok_or(AccessError::Fixed)?;
        plain.write(place, raw)
    }

    /// Makes the frame one of its function's plain version.
    fn make_plain(&self, frame: &mut Frame<'_>) -> Result<Found, AccessError> {
        let Waiting { return_address, fp, site, .. } = *self.waiting;
        let plain = match site {
            Some(_) => self.image.plain_at_site(self.function, return_address),
            None if has_shadow_stack() => return Err(AccessError::ShadowStack),
            None => self.image.plain_at_call(self.function, return_address),
        };
        let Plain { return_address, located, frame_size } =
            plain.map_err(|error| AccessError::Version(Box::new(error.into())))?;
        if !located.fits() {
            return Err(AccessError::Fixed);
        }
        // SAFETY: the thread runs the store.
        let limit = unsafe { (*frame.opaque_mut().vm()).stack_limit };
        if fp - (frame_size as usize) < limit {
            return Err(AccessError::StackOverflow);
        }
        // A slot may have held another value before.
        let values: Vec<u128> = self.located.values().map(|place| self.read(*place)).collect();
        let return_slot: *mut usize = std::ptr::with_exposed_provenance_mut(self.waiting.return_slot);
        let mut waiting = *self.waiting;
        waiting.return_address = return_address;
        let (image, function, position) = (self.image.clone(), self.function, self.position);
        let plain = Found { waiting, image, function, position, located };
        for (place, value) in plain.located.values().zip(values) {
            plain.values().write(*place, value)?;
        }
        // SAFETY: the frame waits, and has the values that the code needs there. In a stub, the
        // slot is the `SiteFrame`'s, where the stub finds the address.
        unsafe { return_slot.write(return_address) };
        Ok(plain)
    }

    fn local_type(&self, index: u32) -> Result<ValType, AccessError> {
        let ty = self.image.local_type(self.function, index).ok_or(AccessError::NoLocal { index })?;
        Ok(ValType::of(ty, &self.image.module))
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

    fn read(&self, value: ValueAt) -> u128 {
        // SAFETY: the frame waits, with its values in these places.
        let raw = unsafe {
            match value.at {
                At::Vector([low, high]) => return u128::from(low) | u128::from(high) << 64,
                At::Constant(bits) => bits,
                At::Register(..) | At::Slot(_) | At::Result(_) if value.ty == Ty::V128 => {
                    return self.words(value.at).map_or(0, |words| read_words(ValType::V128, words));
                }
                At::Register(..) | At::Slot(_) | At::Result(_) => {
                    self.words(value.at).map_or(0, |words| words.read())
                }
                At::Settled | At::Tested => self.waiting.site.map_or(0, |site| (*site).settled),
                At::Shifted(reg, by) => self.register(reg).read() << by,
                At::Flags(_) => self.waiting.site.map_or(0, |site| (*site).condition),
                At::Unknown => unreachable!("`known` has refused it"),
            }
        };
        truncated(value.ty.width(), raw).into()
    }

    /// The address of a value in a register, a slot, or the results.
    ///
    /// # Safety
    /// The frame waits, with its values in these places.
    unsafe fn words(&self, at: At) -> Option<*mut u64> {
        match at {
            At::Register(reg, _) => Some(self.register(reg)),
            At::Slot(slot) => Some(self.slot(slot)),
            // SAFETY: the caller's obligation.
            At::Result(index) => unsafe { self.waiting.site.map(|site| (*site).results.add(index as usize)) },
            _ => None,
        }
    }

    fn write(&self, value: ValueAt, bits: u128) -> Result<(), AccessError> {
        let ValueAt { ty, at, .. } = value;
        if ty == Ty::V128 {
            return self.write_vector(at, bits);
        }
        let (site, raw) = (self.waiting.site, bits as u64);
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
                    if let Some((known, width)) = self.located.zero_flag
                        && known == reg
                        && !top.is_some_and(|top| is_condition(top.at))
                    {
                        self.set_flags(zero(), truncated(width, raw) == 0);
                    }
                }
                At::Slot(slot) => self.slot(slot).write(raw),
                At::Settled | At::Tested if let Some(site) = site => {
                    (*site).settled = raw;
                    if at == At::Tested {
                        self.set_flags(zero(), truncated(ty.width(), raw) == 0);
                    }
                }
                At::Flags(condition) if let Some(site) = site => {
                    (*site).condition = raw;
                    self.set_flags(condition, raw as u32 != 0);
                }
                At::Result(index) if let Some(site) = site => {
                    (*site).results.add(index as usize).write(raw);
                }
                At::Constant(_)
                | At::Vector(_)
                | At::Shifted(..)
                | At::Settled
                | At::Tested
                | At::Flags(_)
                | At::Result(_)
                | At::Unknown => {
                    return Err(AccessError::Fixed);
                }
            }
        }
        Ok(())
    }

    /// Changes a value that is a vector.
    fn write_vector(&self, at: At, bits: u128) -> Result<(), AccessError> {
        // SAFETY: as for other values.
        unsafe {
            let words = self.words(at).ok_or(AccessError::Fixed)?;
            write_words(ValType::V128, bits, words);
            if let At::Register(_, Some(slot)) = at {
                write_words(ValType::V128, bits, self.slot(slot));
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
        // The overflow flag is stored separately.
        // SAFETY: the caller's obligation.
        unsafe { (*site).flags = (flags & 0xff) << 8 | flags >> 11 };
    }
}

/// A value that can be read.
fn known(value: ValueAt) -> Result<ValueAt, AccessError> {
    if value.at == At::Unknown { Err(AccessError::NotKept) } else { Ok(value) }
}

/// Whether the processor has a shadow stack, so that return addresses cannot be replaced.
pub(super) fn has_shadow_stack() -> bool {
    let mut shadow: u64 = 0;
    // SAFETY: without a shadow stack, the instruction is a NOP.
    unsafe { std::arch::asm!("rdsspq {}", inout(reg) shadow, options(nomem, nostack, preserves_flags)) };
    shadow != 0
}

/// The bits of a value of this width.
fn truncated(width: Width, raw: u64) -> u64 {
    match width {
        Width::W32 => u64::from(raw as u32),
        Width::W64 => raw,
    }
}

/// The condition that a value is zero, after a comparison with zero.
fn zero() -> Condition {
    Condition::Code(4)
}
