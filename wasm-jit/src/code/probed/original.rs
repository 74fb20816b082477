//! The original of a function, with the sites that it was compiled with.
//!
//! Their stubs are made when the function is first probed, as a block of their own. Offsets in an
//! original are from the start of the image; those of its stubs are modulo 2^32, since the block
//! may lie below the image.

use std::sync::Arc;

use wasm_jit_codegen::{CompiledFunction, Position, SITE_LENGTH, counter_stub};

use super::blocks::{ALIGNMENT, Block};
use super::version::{Seen, SitePlace, is_settled};
use super::{Changes, Function, MakeError, Version};
use crate::code::CodeImage;

impl CodeImage {
    /// Makes a function's original its first version, with stubs for its sites.
    ///
    /// # Errors
    /// Nothing has changed.
    pub(super) fn prepare_original(
        self: &Arc<Self>,
        index: u32,
        function: &Function,
        (compiled, seen): (&CompiledFunction, &Seen),
        changes: &mut Changes,
    ) -> Result<(), MakeError> {
        let mut original = Version::original(self, index, compiled, seen);
        if seen.sites.is_empty() {
            let _ = function.versions[0].set(original);
            return Ok(());
        }
        let state = changes.functions.or_default(index);
        self.add_counters(state, seen.sites.iter().map(|(site, _)| site.wasm));
        let mut code = Vec::new();
        let mut stubs = Vec::with_capacity(seen.sites.len());
        for (Position { code: at, wasm: position }, at_site) in &seen.sites {
            let stub = counter_stub(8 * state.sites[position].cell as i32, at_site, &mut code);
            stubs.push((*position, at - compiled.entry + original.entry, stub));
        }
        let arena = changes.arenas.with_room(self, &self.probed().blocks, code.len())?;
        let start = arena.next_address(ALIGNMENT);
        let offset = start.wrapping_sub(original.at(0)) as u32;
        let mut places = Vec::with_capacity(stubs.len());
        for (position, site, stub) in stubs {
            let distance = (site + SITE_LENGTH).wrapping_sub(offset.wrapping_add(stub.rel32 + 4));
            code[stub.rel32 as usize..][..4].copy_from_slice(&distance.to_le_bytes());
            let [stub, back] = [stub.start, stub.back].map(|at| offset.wrapping_add(at));
            let settled = is_settled(self, index, &original.sites, position);
            places.push(SitePlace { position, code: site, settled, stub, back });
        }
        arena.append(&code, ALIGNMENT)?;
        original.places = places.into();
        original.stubs_end = offset.wrapping_add(code.len() as u32);
        let place = original.place_of_code(index);
        let _ = function.versions[0].set(original);
        let end = start + code.len();
        self.probed().blocks.push(Block { start, end, function: index, version: 0, stub: None });
        self.shown.version_made(&place);
        Ok(())
    }
}
