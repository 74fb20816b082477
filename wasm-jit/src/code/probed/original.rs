//! The original of a function, with the sites that it was compiled with.
//!
//! Their stubs are made, as a separate block, when the function is first probed. Offsets in an
//! original are from the start of the image; those of its stubs are modulo 2^32, since the block
//! may lie below the image.

use std::sync::Arc;

use wasm_jit_codegen::{CompiledFunction, Position};

use super::blocks::{ALIGNMENT, Block};
use super::version::{CounterStubs, Observations};
use super::{Changes, Function, MakeError, Needs, Version};
use crate::code::CodeImage;

impl CodeImage {
    /// Makes a function's original its first version, with stubs for its sites.
    ///
    /// # Errors
    /// See [`MakeError`]. The function is then unchanged.
    pub(super) fn prepare_original(
        self: &Arc<Self>,
        index: u32,
        function: &Function,
        (compiled, seen): (&CompiledFunction, &Observations),
        changes: &mut Changes,
    ) -> Result<(), MakeError> {
        let mut original = Version::original(self, index, compiled, seen);
        if seen.sites.is_empty() {
            let _ = function.versions[0].set(Box::new(original));
            return Ok(());
        }
        let state = changes.functions.or_default(index);
        let places = seen.sites.iter().map(|(site, _)| (site.wasm, Needs::default())).collect();
        self.add_sites(state, function, (&places, &changes.probes), seen);
        for sharing in seen.sites.chunk_by(|(a, _), (b, _)| a.code == b.code).filter(|all| all.len() > 1) {
            // An earlier attempt may have failed after this.
            let known = state.sites.get(&sharing[0].0.wasm).and_then(|site| site.shared);
            let cell = known.unwrap_or_else(|| self.counters.add(1));
            for (Position { wasm, .. }, _) in sharing {
                state.sites.get_mut(wasm).expect("just added").shared = Some(cell);
            }
        }
        let mut code = Vec::new();
        let moved = original.entry.wrapping_sub(compiled.entry);
        let code_at = |at: u32| {
            // SAFETY: in the image's code, which has not been patched there.
            std::array::from_fn(|byte| unsafe {
                self.at(at.wrapping_add(moved) + byte as u32).read_volatile()
            })
        };
        let of = (index, &original.sites);
        let stubs = CounterStubs::append(self, of, seen, &state.sites, code_at, &mut code);
        let arena = changes.arenas.with_room(self, &self.probed().blocks, code.len())?;
        let start = arena.next_address(ALIGNMENT);
        let offset = start.wrapping_sub(original.at(0)) as u32;
        original.places = stubs.link(moved, offset, &mut code);
        arena.append(&code, ALIGNMENT)?;
        original.stubs_end = offset.wrapping_add(code.len() as u32);
        let place = original.place_of_code(index);
        let _ = function.versions[0].set(Box::new(original));
        let end = start + code.len();
        let (version, stub, uninterrupted) = (0, None, [0; 2]);
        let block = Block { start, end, function: index, version, stub, uninterrupted };
        self.probed().blocks.push(block);
        self.shown.version_made(&place);
        Ok(())
    }
}
