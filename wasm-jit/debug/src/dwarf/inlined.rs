//! Calls that compilers have inlined: a function has the code of others in ranges of its own.

use std::ops::Range;

use gimli::AttributeValue;

use super::Dwarf;
use super::entries::{Entry, Key};
use super::lines::path_of;

/// A call of the source that has no call in the code.
#[derive(Debug)]
pub(crate) struct InlinedCall {
    /// The full name of the function that is called.
    pub name: String,
    pub function: Key,
    /// The file and line of the call.
    pub line: Option<(String, u32)>,
    /// The call into whose code it is inlined, by its index; `None` if that is the function's own.
    outer: Option<usize>,
    /// Offsets in the module.
    ranges: Vec<Range<u64>>,
}

/// The calls that are inlined in a function, each after the one into which it is inlined.
#[derive(Debug, Default)]
pub(crate) struct InlinedCalls(Vec<InlinedCall>);

impl InlinedCalls {
    /// The calls whose code an instruction belongs to, by their indices, the outermost first.
    pub(crate) fn at(&self, offset: u64) -> Vec<usize> {
        let mut around = Vec::new();
        for (index, call) in self.0.iter().enumerate() {
            if call.outer == around.last().copied() && call.contains(offset) {
                around.push(index);
            }
        }
        around
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, index: usize) -> &InlinedCall {
        &self.0[index]
    }
}

impl InlinedCall {
    pub(crate) fn contains(&self, offset: u64) -> bool {
        self.ranges.iter().any(|range| range.contains(&offset))
    }
}

impl Dwarf {
    /// The calls that are inlined in the function that contains an offset in the module.
    pub(crate) fn inlined_calls(&self, offset: u64) -> InlinedCalls {
        let mut calls = InlinedCalls::default();
        let Some((unit, address)) = self.unit_at(offset) else { return calls };
        let mut entries = self.parsed.0[unit].entries();
        // The depth of the function's entry, once it is found, and those of the calls around.
        let mut function = None;
        let mut open: Vec<(isize, usize)> = Vec::new();
        while let Ok(Some(entry)) = entries.next_dfs() {
            let depth = entry.depth();
            while open.pop_if(|(outer, _)| *outer >= depth).is_some() {}
            match (entry.tag(), function) {
                (_, Some(outer)) if depth <= outer => break,
                (gimli::DW_TAG_subprogram, None) if self.contains(unit, entry, address) => {
                    function = Some(depth);
                }
                (gimli::DW_TAG_inlined_subroutine, Some(_)) => {
                    let ranges = self.ranges(unit, entry);
                    let key = self.key(unit, entry);
                    let name = self.index().path(key).map(str::to_owned).or_else(|| self.name(unit, entry));
                    let outer = open.last().map(|(_, outer)| *outer);
                    let line = self.call_line(unit, entry);
                    open.push((depth, calls.0.len()));
                    let name = name.unwrap_or_default();
                    calls.0.push(InlinedCall { name, function: key, line, outer, ranges });
                }
                _ => {}
            }
        }
        calls
    }

    /// The code of an entry, as offsets in the module.
    fn ranges(&self, unit: usize, entry: &Entry) -> Vec<Range<u64>> {
        let Ok(mut ranges) = self.units.die_ranges(&self.parsed.0[unit], entry) else { return Vec::new() };
        let ranges = std::iter::from_fn(|| ranges.next().ok().flatten());
        ranges.map(|range| self.code_start + range.begin..self.code_start + range.end).collect()
    }

    /// The file and line of an inlined call.
    fn call_line(&self, unit: usize, entry: &Entry) -> Option<(String, u32)> {
        let line = entry.attr_value(gimli::DW_AT_call_line)?.udata_value().filter(|line| *line > 0)?;
        let file = match entry.attr_value(gimli::DW_AT_call_file)? {
            AttributeValue::FileIndex(file) => file,
            file => file.udata_value()?,
        };
        Some((path_of(&self.units, &self.parsed.0[unit], file)?, u32::try_from(line).ok()?))
    }
}
