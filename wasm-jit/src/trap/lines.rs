//! Source lines from the DWARF sections of a module.
//!
//! In WebAssembly, DWARF's code addresses are offsets from the start of the code section's
//! contents. Units are read when one of their addresses is looked up, so a lookup in a large module
//! reads each entry of the list of units, and one unit.
//!
//! Modules, and their DWARF, may be untrusted. The cost of reading it is bounded: in time and
//! memory by a budget of bytes read ([`Metered`]), in stack by the depth of inlined functions,
//! which addr2line reads recursively.

use std::cell::Cell;

use addr2line::gimli::{self, AbbreviationsCacheStrategy, Dwarf, SectionId};

use super::FrameSymbol;
use super::metered::{Budget, Metered};
use crate::code::sections::{Sections, demangle};

/// Maximum depth of functions inlined into each other. Each takes a stack frame of less than 1 KiB,
/// and the thread may have no more stack than compiled code leaves to host functions.
const MAX_INLINED: usize = 100;

/// Limits of the bytes of DWARF that are read: a multiple of its size, and a constant.
const MAX_READ: usize = 8;
const MIN_READ: usize = 4 << 20;

/// A module's DWARF, prepared for lookups.
pub(crate) struct Lines<'a> {
    context: addr2line::Context<Metered<'a>>,
    code_start: u64,
}

impl<'a> Lines<'a> {
    /// `None` if there is no DWARF, or none that can be read.
    pub(crate) fn of(sections: &Sections<'a>) -> Option<Self> {
        if !sections.dwarf.contains_key(SectionId::DebugInfo.name()) {
            return None;
        }
        let size: usize = sections.dwarf.values().map(|data| data.len()).sum();
        let budget = Budget::new(Cell::new(MIN_READ.saturating_add(MAX_READ.saturating_mul(size))));
        let load = |id: SectionId| {
            let data = sections.dwarf.get(id.name()).copied().unwrap_or_default();
            Ok::<_, gimli::Error>(Metered::new(data, &budget))
        };
        let mut dwarf = Dwarf::load(load).ok()?;
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
        if !is_shallow(&dwarf).ok()? {
            return None;
        }
        let context = addr2line::Context::from_dwarf(dwarf).ok()?;
        Some(Self { context, code_start: sections.code_start })
    }

    /// The functions whose source an instruction comes from, innermost first: more than one if
    /// calls were inlined.
    pub(crate) fn symbols(&self, module_offset: u64) -> Vec<FrameSymbol> {
        let mut symbols = Vec::new();
        let Some(address) = module_offset.checked_sub(self.code_start) else { return symbols };
        let Ok(mut frames) = self.context.find_frames(address).skip_all_loads() else { return symbols };
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let location = frame.location.as_ref();
            symbols.push(FrameSymbol {
                name: name.map(|name| demangle(&name)),
                file: location.and_then(|location| location.file).map(str::to_owned),
                line: location.and_then(|location| location.line),
                column: location.and_then(|location| location.column),
            });
        }
        symbols
    }
}

/// Whether at most [`MAX_INLINED`] functions are inlined into each other anywhere.
fn is_shallow(dwarf: &Dwarf<Metered<'_>>) -> gimli::Result<bool> {
    let mut units = dwarf.units();
    // Depths of the inlined functions that may contain the next entry.
    let mut around = Vec::new();
    while let Some(unit) = units.next()? {
        let abbreviations = dwarf.abbreviations(&unit)?;
        let mut entries = unit.entries_raw(&abbreviations, None)?;
        around.clear();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while around.pop_if(|outer| *outer >= depth).is_some() {}
            if abbreviation.tag() == gimli::DW_TAG_inlined_subroutine {
                around.push(depth);
                if around.len() > MAX_INLINED {
                    return Ok(false);
                }
            }
            entries.skip_attributes(abbreviation.attributes())?;
        }
    }
    Ok(true)
}
