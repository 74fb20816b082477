//! Memory for a site: two pages of code, written through one mapping or through a second one.

use std::mem::ManuallyDrop;

use region::{Allocation, Protection};
use wordpatch::TextRef;

use crate::error::Error;
use crate::trial::Mapping;

/// Page size of every x86-64 Linux.
const PAGE: usize = 4096;

/// The code is in the first two pages.
pub(super) const CODE: usize = 2 * PAGE;

/// Distance from the end of a CALL to its target: every byte differs from the NOP's byte at the
/// same offset.
const CALL_DISTANCE: usize = 0x1122_3344;

/// The address space that contains both; all but three of its pages stay inaccessible.
const RESERVED: usize = (CODE + CALL_DISTANCE).next_multiple_of(PAGE) + PAGE;

/// Code memory of one kind. Its owner may write it.
pub(super) struct Text {
    memory: ManuallyDrop<Allocation>,
    view: *mut u8,
}

impl Drop for Text {
    fn drop(&mut self) {
        let code = self.start()..self.start() + CODE;
        // SAFETY: dropped once, here; afterwards the old address is unmapped, and a later mapping
        // there is different text.
        unsafe {
            ManuallyDrop::drop(&mut self.memory);
            wordpatch::text::release(&code);
        }
    }
}

impl Text {
    /// New memory.
    pub(super) fn new(mapping: Mapping) -> Result<Self, Error> {
        let refused = |source| Error::Memory { source };
        let memory = region::alloc(RESERVED, Protection::NONE).map_err(refused)?;
        let start = memory.as_ptr::<u8>();
        let protect = |pages: *const u8, length, protection| {
            // SAFETY: pages of the new allocation, known to nothing else.
            unsafe { region::protect(pages, length, protection) }.map_err(refused)
        };
        match mapping {
            Mapping::Direct => {
                protect(start, CODE, Protection::READ_WRITE_EXECUTE)?;
                Ok(Self { view: start.cast_mut(), memory: ManuallyDrop::new(memory) })
            }
            Mapping::Alias => {
                protect(start, CODE, Protection::READ_EXECUTE)?;
                // SAFETY: mapped for the life of `memory`, and only this module and wordpatch write
                // it.
                let text = unsafe { TextRef::resolve(start as usize, 1)? };
                let view = text.writable_view().expect("text access is by alias in this program");
                Ok(Self { view, memory: ManuallyDrop::new(memory) })
            }
        }
    }

    /// The address at which the code is executed.
    pub(super) fn start(&self) -> usize {
        self.memory.as_ptr::<u8>() as usize
    }

    /// The address at which the code is written.
    pub(super) fn view(&mut self) -> *mut u8 {
        self.view
    }

    /// Writes code at the start. It must not be executed concurrently.
    pub(super) fn write(&mut self, code: &[u8]) {
        assert!(code.len() <= CODE);
        // SAFETY: the view is mapped writable, as long as `CODE`.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), self.view, code.len()) };
    }

    /// Writes a function within reach of a CALL that ends at `end`, and returns its address.
    pub(super) fn write_target(&mut self, end: usize, function: &[u8]) -> Result<usize, Error> {
        let target = end + CALL_DISTANCE;
        assert!((self.start() + CODE..self.start() + RESERVED - function.len()).contains(&target));
        let refused = |source| Error::Memory { source };
        let page = std::ptr::with_exposed_provenance::<u8>(target & !(PAGE - 1));
        // SAFETY: an unused page of our own reservation; `function` fits into it, because it is
        // shorter than the rest.
        unsafe {
            region::protect(page, PAGE, Protection::READ_WRITE).map_err(refused)?;
            let place = std::ptr::with_exposed_provenance_mut::<u8>(target);
            std::ptr::copy_nonoverlapping(function.as_ptr(), place, function.len());
            region::protect(page, PAGE, Protection::READ_EXECUTE).map_err(refused)?;
        }
        Ok(target)
    }
}
