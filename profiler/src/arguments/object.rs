//! The file of an object: its debugging information, code, and unwind table.

use std::path::Path;
use std::sync::Arc;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianArcSlice, LittleEndian, SectionId, UnwindContext,
    UnwindSection,
};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::{Register, Unavailable};
use crate::binary::debug_file::{DebugFile, Loaded, ReadError};

pub(super) type Section = EndianArcSlice<LittleEndian>;
pub(super) type Dwarf = gimli::Dwarf<Section>;

/// The contents of a file. Addresses are relative to the file, not to memory.
pub(super) struct Object {
    pub(super) dwarf: Dwarf,
    /// The lowest load address in the program headers, rounded down because the loader maps whole
    /// pages.
    pub(super) lowest: u64,
    code: Vec<Loaded>,
    /// Sections with constant data that needs no relocation.
    constants: Vec<Loaded>,
    frames: Loaded,
    frames_header: Loaded,
    /// The procedure linkage tables.
    linkage: Vec<Loaded>,
    /// The addresses at which the loader stores the address of [`RESUME`].
    resume: Vec<u64>,
}

/// The function by which code continues with an exception after it has cleaned up.
const RESUME: &[u8] = b"_Unwind_Resume\0";

/// The size of a relocation, and that of a symbol.
const ENTRY: usize = 24;

impl Object {
    /// Reads a file, and the separate one with its debugging information if there is one.
    ///
    /// # Errors
    /// [`Unavailable::NoDebugInformation`]; [`Unavailable::Unreadable`], including sections that
    /// are compressed with anything but zlib, or larger than 512 MiB.
    pub(super) fn read(path: &Path) -> Result<Self, Unavailable> {
        let failed = |error: ReadError| Unavailable::Unreadable(error.to_string());
        let mut file = DebugFile::open(path).map_err(failed)?;
        let is_needed = |id: SectionId| !matches!(id, SectionId::DebugAranges | SectionId::DebugMacro);
        let dwarf = Dwarf::load(|id| {
            let data = if is_needed(id) { file.debug_section(id.name())?.data } else { Arc::default() };
            Ok::<_, ReadError>(Section::new(data, LittleEndian))
        })
        .map_err(failed)?;
        let malformed = |error: gimli::Error| Unavailable::Unreadable(error.to_string());
        if dwarf.units().next().map_err(malformed)?.is_none() {
            return Err(Unavailable::NoDebugInformation);
        }
        let names = file.names();
        let mut load = |prefix: &str| -> Result<Vec<Loaded>, ReadError> {
            names.iter().filter(|name| name.starts_with(prefix)).map(|name| file.section(name)).collect()
        };
        let (code, constants) = (load(".text").map_err(failed)?, load(".rodata").map_err(failed)?);
        let linkage = load(".plt").map_err(failed)?;
        let resume = resume(&mut file).map_err(failed)?;
        let frames = file.section(".eh_frame").map_err(failed)?;
        let frames_header = file.section(".eh_frame_hdr").map_err(failed)?;
        Ok(Self { dwarf, lowest: file.lowest(), code, constants, frames, frames_header, linkage, resume })
    }

    /// The code from `start` on, at most up to `end`.
    pub(super) fn code(&self, start: u64, end: u64) -> Option<&[u8]> {
        from(&self.code, start, end)
    }

    /// Whether an instruction continues with an exception: it calls [`RESUME`], directly or through
    /// the procedure linkage table.
    pub(super) fn resumes(&self, call: &Instruction) -> bool {
        let is_of_loader = |instruction: &Instruction| {
            instruction.is_ip_rel_memory_operand()
                && self.resume.contains(&instruction.ip_rel_memory_address())
        };
        if call.flow_control() == FlowControl::IndirectCall {
            return is_of_loader(call);
        }
        let target = call.near_branch_target();
        let Some(code) = from(&self.linkage, target, target.saturating_add(16)) else { return false };
        let mut code = Decoder::with_ip(64, code, target, DecoderOptions::NONE);
        let jump = code.iter().find(|instruction| instruction.mnemonic() != Mnemonic::Endbr64);
        jump.is_some_and(|jump| jump.flow_control() == FlowControl::IndirectBranch && is_of_loader(&jump))
    }

    /// This number of bytes, up to 8, that the program cannot change.
    pub(super) fn constant(&self, address: u64, bytes: u8) -> Option<u64> {
        let found = from(&self.constants, address, address.checked_add(bytes.into())?)?;
        let mut all = [0; 8];
        all.get_mut(..bytes.into())?.copy_from_slice(found.get(..bytes.into())?);
        Some(u64::from_le_bytes(all))
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

/// The addresses at which the loader stores the address of [`RESUME`].
fn resume(file: &mut DebugFile) -> Result<Vec<u64>, ReadError> {
    let [symbols, names] = [file.section(".dynsym")?, file.section(".dynstr")?];
    let number = |entry: &[u8], at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
    let is_it = |symbol: usize| {
        let symbol = symbols.data.as_chunks::<ENTRY>().0.get(symbol)?;
        names.data.get(number(symbol, 0) as u32 as usize..).map(|name| name.starts_with(RESUME))
    };
    let mut found = Vec::new();
    for section in [".rela.plt", ".rela.dyn"] {
        let relocations = file.section(section)?;
        let all = relocations.data.as_chunks::<ENTRY>().0.iter();
        let of_it = all.filter(|entry| is_it((number(*entry, 8) >> 32) as usize) == Some(true));
        found.extend(of_it.map(|entry| number(entry, 0)));
    }
    Ok(found)
}

/// The contents of the sections from `start` on, at most up to `end`.
fn from(sections: &[Loaded], start: u64, end: u64) -> Option<&[u8]> {
    let holds =
        |section: &&Loaded| start >= section.address && start - section.address < section.data.len() as u64;
    let section = sections.iter().find(holds)?;
    let data = &section.data[(start - section.address) as usize..];
    let length = usize::try_from(end.checked_sub(start)?).ok()?;
    Some(&data[..length.min(data.len())])
}
