//! Addresses in versions and their stubs: the version, the instruction and the transfer point that
//! an address belongs to.
//!
//! Functions whose comments say "Atomics only" are called by signal handlers.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use wasm_jit_codegen::{Position, Positions};

use super::blocks::Block;
use super::{Function, PLAIN, Version, is_plain};
use crate::code::{CodeImage, ObserveError};

/// Where a frame continues that moves to another version of its function.
pub(crate) struct Transfer {
    pub address: usize,
    /// Whether the frame's accessor ends: in this version, it would not end when the frame does.
    pub ends_accessor: bool,
    /// Whether `r11` must be the address of the instance's counters.
    pub with_counters: bool,
}

impl CodeImage {
    /// The version with sites that contains the address, or to which its stub belongs; and the
    /// block. Atomics only.
    pub(super) fn sited_at(&self, pc: usize) -> Option<(Block, &Version)> {
        self.probed.get()?.find(self, pc)
    }

    /// The version with sites that the address is in, with its function. Atomics only.
    pub(crate) fn version_at(&self, pc: usize) -> Option<(u32, &Version)> {
        self.sited_at(pc).map(|(block, version)| (block.function, version))
    }

    /// Whether an interrupt has no effect at this address. Atomics only.
    pub(crate) fn is_uninterrupted_at(&self, pc: usize) -> bool {
        self.sited_at(pc).is_some_and(|(block, _)| {
            let [start, end] = block.uninterrupted.map(|offset| block.start + offset as usize);
            (start..end).contains(&pc)
        })
    }

    /// The end of the mapped code that contains the address.
    pub(crate) fn code_end(&self, pc: usize) -> usize {
        let pages = self.pages();
        let probed = || self.probed.get().and_then(|probed| probed.blocks.end(pc));
        if pages.contains(&pc) { pages.end } else { probed().unwrap_or(pc) }
    }

    /// Where a thread continues after a trap at a transfer point; `None` in a forked child, if it
    /// is a trap of the parent. Atomics only.
    pub(crate) fn transfer(&self, pc: usize) -> Option<Transfer> {
        let (function, number, point) = self.transfer_point_at(pc)?;
        let current = function.current.load(Ordering::Acquire);
        if current == number {
            // The trap has been removed since; or a parent has changed the pages of a child.
            let is_ours = !wordpatch::text::is_shared_with_parent();
            return is_ours.then_some(Transfer { address: pc, ends_accessor: false, with_counters: false });
        }
        let version = function.versions[current].get()?;
        let ends_accessor = !version.ends_accessors();
        let with_counters = version.has_counters_at(point);
        Some(Transfer { address: version.point(point), ends_accessor, with_counters })
    }

    /// Where a frame that waits for a call returns to if it must end its accessor: the same point
    /// of a version whose frames do that; `None` if the frame is in such a version, or waits for no
    /// call.
    pub(crate) fn return_with_accessor(&self, index: u32, return_address: usize) -> Option<usize> {
        let function = self.probed.get()?.function(self, index)?;
        let version = function.versions[self.version_number(return_address - 1)].get()?;
        if version.ends_accessors() {
            return None;
        }
        let point = version.call_returning_to(return_address)?;
        let mut versions = function.versions[1..PLAIN].iter().filter_map(OnceLock::get);
        Some(versions.rfind(|version| version.ends_accessors())?.point(point))
    }

    /// The version whose exception handlers apply to a frame of a function that waits in this code;
    /// none for the original. Atomics only.
    pub(in crate::code) fn version_for_handler(&self, index: u32, pc: usize) -> Option<&Version> {
        let function = self.probed.get()?.function(self, index)?;
        let current = function.current.load(Ordering::Acquire);
        let number = if is_plain(self.version_number(pc)) { self.version_number(pc) } else { current };
        function.versions[number].get().map(AsRef::as_ref).filter(|version| version.number != 0)
    }

    /// The byte at the address while no trap is there.
    pub(crate) fn byte_under_trap(&self, pc: usize) -> Option<u8> {
        let (function, number, point) = self.transfer_point_at(pc)?;
        Some(function.versions[number].get()?.first_bytes[point])
    }

    /// The transfer point at the address: the function, the number of its version, and that of the
    /// point. Atomics only.
    fn transfer_point_at(&self, pc: usize) -> Option<(&Function, usize, usize)> {
        let function = self.probed.get()?.function(self, self.function_at(pc)?)?;
        let number = self.version_number(pc);
        let point = function.versions[number].get()?.point_at(pc)?;
        Some((function, number, point))
    }

    /// A number for the version of a function's code that the address is in; 0 is the original.
    pub(crate) fn version_number(&self, pc: usize) -> usize {
        self.sited_at(pc).map_or(0, |(block, _)| block.version)
    }

    /// The position of the instruction whose stub the address is in.
    pub(crate) fn stub_at(&self, pc: usize) -> Option<u32> {
        let position = self.place_of_stub_at(pc)?;
        let (block, _) = self.sited_at(pc)?;
        // The exit belongs to the last `end`, of one byte.
        let is_exit = position == self.body_range(block.function).end;
        Some(position - u32::from(is_exit))
    }

    /// The position of the place whose stub contains the address: that of an exit is the end of the
    /// body.
    pub(crate) fn place_of_stub_at(&self, pc: usize) -> Option<u32> {
        let (block, version) = self.sited_at(pc)?;
        block.stub.or_else(|| version.stub_at(pc))
    }

    /// The addresses of the entry and of the body of the version that contains the address. In a
    /// stub, the frame is complete: it counts as a body.
    pub(crate) fn prologue_at(&self, pc: usize) -> Option<(usize, usize)> {
        if let Some((block, version)) = self.sited_at(pc) {
            // The block of an original has its stubs only.
            if block.stub.is_some() || block.version == 0 {
                return Some((block.start, block.start));
            }
            return Some((version.at(version.entry), version.at(version.body)));
        }
        let function = self.function(self.function_at(pc)?);
        Some((self.at(function.entry) as usize, self.at(function.body) as usize))
    }

    /// The start of the stub that contains the address, if it is that of a list of probes. Atomics
    /// only.
    pub(crate) fn start_of_list_at(&self, pc: usize) -> Option<usize> {
        let (block, _) = self.sited_at(pc)?;
        block.stub.map(|_| block.start)
    }

    /// Whether a function is called at the address: that of its code, of a version of it, or of
    /// what compiles it. Atomics only.
    pub(crate) fn is_entry(&self, address: usize) -> bool {
        let compiles = self.lazy().is_some_and(|all| {
            address.checked_sub(self.at(0).addr()).is_some_and(|offset| offset < all.entries_size())
        });
        compiles || self.prologue_at(address).is_some_and(|(entry, body)| entry == address && entry < body)
    }

    /// As [`CodeImage::positions`], of the version that the address is in.
    ///
    /// # Errors
    /// As [`CodeImage::observe`].
    pub(crate) fn positions_at(&self, pc: usize, function: u32) -> Result<Vec<Position>, ObserveError> {
        let sited = self.sited_at(pc).filter(|(block, _)| block.version != 0);
        let Some((_, version)) = sited else { return self.positions(function) };
        let mut positions = Positions::default();
        if let Some(runs) = &version.runs {
            // The increment at the entry belongs to no instruction.
            let body = self.body_range(function).start;
            let own = runs.positions.iter().filter(|position| position.wasm != body);
            let entry = version.entry;
            return Ok(own.map(|at| Position { code: at.code - entry, ..*at }).collect());
        }
        let (_, again) = self.compile_again(function, version.instrumentation(), &mut positions)?;
        let is_same =
            (again.entry, again.body, again.frame_size) == (version.entry, version.body, version.frame_size);
        if is_same { Ok(positions.in_function(&again)) } else { Err(ObserveError::Differs { function }) }
    }

    /// The position of the instruction that contains an address in a function, among the
    /// [positions](CodeImage::positions_at) of the version that contains the address; `None` if
    /// there is none.
    pub(crate) fn position_among(&self, pc: usize, positions: &[Position]) -> Option<u32> {
        if let Some(instruction) = self.stub_at(pc) {
            return Some(instruction);
        }
        let entry = self.prologue_at(pc).map_or(pc, |(entry, _)| entry);
        let offset = (pc - entry) as u32;
        let after = positions.partition_point(|position| position.code <= offset);
        after.checked_sub(1).map(|at| positions[at].wasm)
    }

    /// The position of the instruction that contains an address in a function; `None` if there is
    /// none.
    ///
    /// # Errors
    /// As [`CodeImage::positions_at`].
    pub(crate) fn position_at(&self, pc: usize, function: u32) -> Result<Option<u32>, ObserveError> {
        if let Some(instruction) = self.stub_at(pc) {
            return Ok(Some(instruction));
        }
        Ok(self.position_among(pc, &self.positions_at(pc, function)?))
    }
}
