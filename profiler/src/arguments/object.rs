//! The file of an object: its debugging information, code, and unwind table.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianArcSlice, LittleEndian, SectionId, UnwindContext,
    UnwindSection,
};
use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{CompressionFormat, Object as _, ObjectSection, ObjectSegment};

use super::{Register, Unavailable};

/// Maximum size of what is read of one object, in bytes.
const MAX_BYTES: u64 = 512 << 20;

pub(super) type Section = EndianArcSlice<LittleEndian>;
pub(super) type Dwarf = gimli::Dwarf<Section>;

/// A section in memory.
#[derive(Clone, Debug, Default)]
struct Loaded {
    address: u64,
    data: Arc<[u8]>,
}

/// The contents of a file. Addresses are those of the file.
pub(super) struct Object {
    pub(super) dwarf: Dwarf,
    /// The lowest load address according to the program headers: the loader maps whole pages.
    pub(super) lowest: u64,
    code: Vec<Loaded>,
    frames: Loaded,
    frames_header: Loaded,
}

impl Object {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Unavailable::NoDebugInformation`], [`Unavailable::Unreadable`]: also if the sections are
    /// compressed, or larger than 512 MiB.
    pub(super) fn read(path: &Path) -> Result<Self, Unavailable> {
        let failed = |error: &dyn std::fmt::Display| Unavailable::Unreadable(error.to_string());
        let mut file = File::open(path).map_err(|error| failed(&error))?;
        let cache = ReadCache::new(file.try_clone().map_err(|error| failed(&error))?);
        let elf: ElfFile64<'_, object::LittleEndian, _> =
            ElfFile64::parse(&cache).map_err(|error| failed(&error))?;
        let mut left = MAX_BYTES;
        let mut load = |name: &str| -> Result<Loaded, Unavailable> {
            let Some(section) = elf.section_by_name(name) else { return Ok(Loaded::default()) };
            let range = section.compressed_file_range().map_err(|error| failed(&error))?;
            if range.format != CompressionFormat::None {
                return Err(Unavailable::Unreadable(format!("the section {name} is compressed")));
            }
            let size = range.uncompressed_size;
            left = left.checked_sub(size).ok_or_else(|| {
                Unavailable::Unreadable(format!("it is larger than {} MiB", MAX_BYTES >> 20))
            })?;
            let mut data = Vec::new();
            file.seek(SeekFrom::Start(range.offset)).map_err(|error| failed(&error))?;
            (&mut file).take(size).read_to_end(&mut data).map_err(|error| failed(&error))?;
            if data.len() as u64 != size {
                return Err(Unavailable::Unreadable(format!("the section {name} is truncated")));
            }
            Ok(Loaded { address: section.address(), data: data.into() })
        };
        let is_needed = |id: SectionId| !matches!(id, SectionId::DebugAranges | SectionId::DebugMacro);
        let dwarf = Dwarf::load(|id| {
            let data = if is_needed(id) { load(id.name())?.data } else { Arc::default() };
            Ok(Section::new(data, LittleEndian))
        })?;
        let has_units = dwarf.units().next().map_err(|error| failed(&error))?.is_some();
        if !has_units {
            return Err(Unavailable::NoDebugInformation);
        }
        let is_code = |name: &&str| name.starts_with(".text");
        let sections: Vec<_> =
            elf.sections().filter_map(|section| Some(section.name().ok()?.to_owned())).collect();
        let code =
            sections.iter().map(String::as_str).filter(is_code).map(&mut load).collect::<Result<_, _>>()?;
        let lowest = elf.segments().map(|segment| segment.address()).min().unwrap_or(0) & !0xfff;
        let (frames, frames_header) = (load(".eh_frame")?, load(".eh_frame_hdr")?);
        Ok(Self { dwarf, lowest, code, frames, frames_header })
    }

    /// The code from `start` on, at most up to `end`.
    pub(super) fn code(&self, start: u64, end: u64) -> Option<&[u8]> {
        let holds = |code: &&Loaded| start >= code.address && start - code.address < code.data.len() as u64;
        let section = self.code.iter().find(holds)?;
        let data = &section.data[(start - section.address) as usize..];
        let length = usize::try_from(end.checked_sub(start)?).ok()?;
        Some(&data[..length.min(data.len())])
    }

    /// The canonical frame address at an instruction, as a register and an offset.
    pub(super) fn frame_address(&self, address: u64) -> Option<(Register, i64)> {
        let frames = EhFrame::new(&self.frames.data, LittleEndian);
        let bases = BaseAddresses::default()
            .set_eh_frame(self.frames.address)
            .set_eh_frame_hdr(self.frames_header.address);
        let mut context = UnwindContext::new();
        let header = EhFrameHdr::new(&self.frames_header.data, LittleEndian).parse(&bases, 8).ok();
        let table = header.as_ref().and_then(|header| header.table());
        let row = match table {
            Some(table) => table.unwind_info_for_address(
                &frames,
                &bases,
                &mut context,
                address,
                EhFrame::cie_from_offset,
            ),
            None => frames.unwind_info_for_address(&bases, &mut context, address, EhFrame::cie_from_offset),
        };
        match row.ok()?.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Some((Register(register.0), *offset)),
            CfaRule::Expression(_) => None,
        }
    }
}
