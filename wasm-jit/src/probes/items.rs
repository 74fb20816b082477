//! What a probe can access through its frame besides the frame's own values: the memories and
//! globals of the running instance, exported or not, the callee of an indirect call, and the frames
//! on the stack.

use std::sync::Arc;

use super::Location;
use super::frame::Frame;
use super::values::indirect_calls;
use crate::code::registry::share_image_at;
use crate::error::Error;
use crate::module::Item;
use crate::runtime::callback::callee;
use crate::runtime::{Extern, Memory, SharedMemory, Val};
use crate::trap::Waiting;
use crate::types::Mutability;
use crate::vmctx::VmContext;

impl Frame<'_> {
    /// The locations of the frames of WebAssembly functions in the store, this one first: each at
    /// its probe or its call. `None` for frames of other modules than this frame's.
    ///
    /// When a call is first encountered, its function is compiled once more to find the call's
    /// location.
    pub fn locations(&self) -> Vec<Option<Location>> {
        let own = Arc::as_ptr(self.image());
        let location = |waiting: Waiting| {
            let pc = waiting.return_address - 1;
            // SAFETY: the frame waits there.
            let image = unsafe { share_image_at(pc) }.filter(|image| Arc::as_ptr(image) == own)?;
            let function = image.function_at(pc)?;
            let position = match image.place_of_stub_at(pc) {
                Some(position) => position,
                None => image.call_values(function, waiting.return_address).ok()?.0,
            };
            Some(Location::at(&image, function, position))
        };
        // That of this frame is known, and an instruction that has trapped is no probe.
        std::iter::once(Some(self.location())).chain(self.walk().skip(1).map(location)).collect()
    }

    /// The function that an indirect call (`call_indirect`, `call_ref`, and their tail calls) is
    /// about to call, as for [`Bound::Callee`](super::Bound::Callee); `None` at any other
    /// instruction.
    pub fn callee(&mut self) -> Option<u64> {
        let (function, position) = self.position();
        let by = *indirect_calls(self.image(), function).get(&position)?;
        let value = match self.operand(0).ok()? {
            Val::I32(index) => u64::from(index as u32),
            Val::I64(index) => index as u64,
            Val::FuncRef(func) => self.opaque().lower_func(func.as_ref()).ok()?,
            _ => return None,
        };
        let context: *mut VmContext = self.instance_data().block.context();
        // SAFETY: the context of the running instance, whose module has the table; the reference is
        // lowered.
        Some(unsafe { callee(context, by, value) })
    }

    /// The size in bytes of a memory of the running instance, by its index in the module, imports
    /// included; `None` if there is no such memory.
    pub fn memory_size(&self, memory: u32) -> Option<u64> {
        Some(match self.memory(memory)? {
            Extern::Memory(memory) => memory.inner(self.opaque()).length(),
            Extern::SharedMemory(memory) => memory.data_size() as u64,
            _ => return None,
        })
    }

    /// Copies bytes from a memory of the running instance, by its index in the module.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; a memory that does not exist has the size 0.
    pub fn read_memory(&self, memory: u32, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.accessible(memory, address, buffer.len())?.read(address as usize, buffer)
    }

    /// Copies bytes into a memory of the running instance, by its index in the module.
    ///
    /// # Errors
    /// As [`Frame::read_memory`]: nothing has changed.
    pub fn write_memory(&mut self, memory: u32, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.accessible(memory, address, bytes.len())?.write(address as usize, bytes)
    }

    /// The value of a global of the running instance, by its index in the module, imports included;
    /// `None` if there is no such global.
    pub fn global(&mut self, global: u32) -> Option<Val> {
        let index = *self.instance_data().globals.get(global as usize)?;
        let store = self.opaque_mut();
        let data = &store.globals[index as usize];
        let (ty, raw) = (data.ty.content(), data.raw());
        Some(store.lift(ty, raw))
    }

    /// Assigns a value to a global of the running instance; `None` if there is no such global.
    ///
    /// # Errors
    /// [`Error::ConstantGlobal`], [`Error::ValueType`], [`Error::WrongStore`].
    pub fn set_global(&mut self, global: u32, value: &Val) -> Option<Result<(), Error>> {
        let index = *self.instance_data().globals.get(global as usize)? as usize;
        let store = self.opaque_mut();
        let ty = store.globals[index].ty;
        if ty.mutability() == Mutability::Const {
            return Some(Err(Error::ConstantGlobal));
        }
        Some(store.lower(ty.content(), value).map(|raw| store.globals[index].set_raw(raw)))
    }

    fn memory(&self, memory: u32) -> Option<Extern> {
        let instance = self.instance_data();
        let exists = (memory as usize) < instance.memories.len();
        exists.then(|| instance.item(self.opaque(), Item::Memory(memory)))
    }

    /// A memory, after a check that a range is in bounds.
    fn accessible(&self, memory: u32, address: u64, length: usize) -> Result<SharedMemory, Error> {
        let size = self.memory_size(memory).unwrap_or(0);
        let end = address.checked_add(length as u64);
        match self.memory(memory).filter(|_| end.is_some_and(|end| end <= size)) {
            Some(Extern::SharedMemory(memory)) => Ok(memory),
            // The program's own thread reads and writes it here, so it may be accessed as if it
            // were shared.
            Some(Extern::Memory(Memory(handle))) => {
                let store = self.opaque();
                Ok(SharedMemory(store.memories[handle.index_in(store)].clone()))
            }
            _ => Err(Error::OutOfBounds { of: "memory", offset: address, length: length as u64, size }),
        }
    }
}
