//! Entries of DWARF: their attributes and names, and the entries to which they refer.

use gimli::{AttributeValue, DebugInfoOffset, Reader as _, UnitOffset};

use super::{Dwarf, Reader, Units};

pub(super) type Unit = gimli::Unit<Reader>;
pub(super) type Entry = gimli::DebuggingInformationEntry<Reader>;

/// An entry that refers to no other one: its unit and offset.
pub(crate) type Key = (usize, UnitOffset);

/// Maximum number of references to other entries that are followed for one entry.
pub(super) const MAX_LINKS: usize = 64;

/// The parsed units of a module.
#[derive(Debug, Default)]
pub(crate) struct Parsed(pub Vec<Unit>);

impl Parsed {
    pub(crate) fn of(units: &Units) -> Self {
        let mut parsed = Vec::new();
        let mut headers = units.units();
        while let Ok(Some(header)) = headers.next() {
            parsed.extend(units.unit(header));
        }
        Self(parsed)
    }

    /// The unit, and the entry in it, that an offset in the section denotes.
    fn entry_at(&self, offset: DebugInfoOffset) -> Option<Key> {
        // The units are in the order of their offsets.
        let is_before =
            |unit: &Unit| unit.header.debug_info_offset().is_some_and(|start| start.0 <= offset.0);
        let number = self.0.partition_point(is_before).checked_sub(1)?;
        Some((number, offset.to_unit_offset(&self.0[number].header)?))
    }
}

impl Dwarf {
    /// An attribute of an entry, or of the entry that it refers to, with the unit of that entry.
    pub(super) fn attribute(
        &self,
        unit: usize,
        entry: &Entry,
        name: gimli::DwAt,
    ) -> Option<(usize, AttributeValue<Reader>)> {
        let mut entry = entry.clone();
        let mut unit = unit;
        for _ in 0..MAX_LINKS {
            if let Some(value) = entry.attr_value(name) {
                return Some((unit, value));
            }
            let origin = entry
                .attr_value(gimli::DW_AT_abstract_origin)
                .or_else(|| entry.attr_value(gimli::DW_AT_specification))?;
            let to = self.reference(unit, &origin)?;
            entry = self.parsed.0[to.0].entry(to.1).ok()?;
            unit = to.0;
        }
        None
    }

    pub(super) fn reference(
        &self,
        unit: usize,
        value: &AttributeValue<Reader>,
    ) -> Option<(usize, UnitOffset)> {
        match value {
            AttributeValue::UnitRef(offset) => Some((unit, *offset)),
            AttributeValue::DebugInfoRef(offset) => self.parsed.entry_at(*offset),
            _ => None,
        }
    }

    pub(super) fn name(&self, unit: usize, entry: &Entry) -> Option<String> {
        let (unit, value) = self.attribute(unit, entry, gimli::DW_AT_name)?;
        let name = self.units.attr_string(&self.parsed.0[unit], value).ok()?;
        Some(name.to_string_lossy().ok()?.into_owned())
    }

    /// The entry to which an entry refers as its origin or declaration.
    pub(super) fn key(&self, unit: usize, entry: &Entry) -> Key {
        let mut key = (unit, entry.offset());
        let mut entry = entry.clone();
        for _ in 0..MAX_LINKS {
            let origin = entry.attr_value(gimli::DW_AT_abstract_origin);
            let origin = origin.or_else(|| entry.attr_value(gimli::DW_AT_specification));
            let Some(next) = origin.and_then(|origin| self.reference(key.0, &origin)) else { break };
            let Ok(found) = self.parsed.0[next.0].entry(next.1) else { break };
            (key, entry) = (next, found);
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use gimli::{EndianArcSlice, LittleEndian, SectionId};

    use super::*;

    #[test]
    fn offsets_in_the_section_are_those_of_one_unit() {
        // Each unit has a header of 11 bytes, and one entry without attributes.
        let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 4, 1];
        let load = |id| {
            let data = match id {
                SectionId::DebugInfo => unit.repeat(3),
                SectionId::DebugAbbrev => vec![1, 0x11, 0, 0, 0, 0],
                _ => Vec::new(),
            };
            Ok::<_, gimli::Error>(EndianArcSlice::new(data.into(), LittleEndian))
        };
        let parsed = Parsed::of(&Units::load(load).unwrap());
        assert_eq!(parsed.0.len(), 3);
        for number in 0..3 {
            let entry = parsed.entry_at(DebugInfoOffset(12 * number + 11));
            assert_eq!(entry, Some((number, UnitOffset(11))));
            assert_eq!(parsed.entry_at(DebugInfoOffset(12 * number + 5)), None, "in a header");
        }
        for offset in [36, 1000, usize::MAX] {
            assert_eq!(parsed.entry_at(DebugInfoOffset(offset)), None);
        }
        assert_eq!(Parsed::default().entry_at(DebugInfoOffset(0)), None);
    }
}
