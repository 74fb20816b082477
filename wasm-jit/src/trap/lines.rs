//! Source lines from the DWARF sections of a module.
//!
//! In WebAssembly, DWARF's code addresses are offsets from the start of the code section's contents. Units are read when one of
//! their addresses is asked about, so a large module costs its list of units and one of them.

use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};

use super::FrameSymbol;
use crate::code::sections::{Sections, demangle};

/// The most functions that were inlined into each other at one place.
const MOST_INLINED: usize = 64;

/// A module's DWARF, ready to be asked.
pub(super) struct Lines<'a> {
    context: addr2line::Context<EndianSlice<'a, LittleEndian>>,
    code_start: u64,
}

impl<'a> Lines<'a> {
    /// None where there is no DWARF, or none that can be read.
    pub(super) fn of(sections: &Sections<'a>) -> Option<Self> {
        if !sections.dwarf.contains_key(SectionId::DebugInfo.name()) {
            return None;
        }
        let load = |id: SectionId| {
            let data = sections.dwarf.get(id.name()).copied().unwrap_or_default();
            Ok::<_, addr2line::gimli::Error>(EndianSlice::new(data, LittleEndian))
        };
        let dwarf = Dwarf::load(load).ok()?;
        let context = addr2line::Context::from_dwarf(dwarf).ok()?;
        Some(Self { context, code_start: sections.code_start })
    }

    /// The functions whose source an instruction comes from, innermost first: more than one where calls were inlined.
    pub(super) fn symbols(&self, module_offset: u64) -> Vec<FrameSymbol> {
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
            if symbols.len() == MOST_INLINED {
                break;
            }
        }
        symbols
    }
}
