//! What an object's file says, but for symbols: its pointers to the instrumentation functions and,
//! where the loaded object has no usual table for unwinding, where its functions start and end.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gimli::{BaseAddresses, CieOrFde, EhFrame, NativeEndian, UnwindSection};
use object::read::elf::ElfFile64;
use object::{
    Object as _, ObjectSection, ObjectSymbol, ObjectSymbolTable, ReadCache, ReadRef, RelocationTarget,
};

use super::loaded::LoadedObject;
use super::names::Names;
use crate::error::Error;
use crate::probe::ProbeKind;

/// The symbols that gcc and clang call.
const ENTER: &[u8] = b"__cyg_profile_func_enter";
const EXIT: &[u8] = b"__cyg_profile_func_exit";

/// Which file it is, and of when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    number: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileId {
    pub(super) fn of(file: &File) -> std::io::Result<Self> {
        let known = file.metadata()?;
        Ok(Self {
            device: known.dev(),
            number: known.ino(),
            size: known.size(),
            modified: (known.mtime(), known.mtime_nsec()),
        })
    }
}

/// What an instrumented object's file says. Addresses are in memory.
pub(super) struct View {
    pub(super) file: FileId,
    /// Pointers to the instrumentation functions, that calls go through. Few, ascending.
    pub(super) pointers: Vec<(usize, ProbeKind)>,
    /// Where pointers that the loader has filled in may be read as constants.
    pub(super) constants: Vec<Range<usize>>,
    /// The linker's own code. It has an unwind table too; its jumps through the pointers are where
    /// calls go, not sites.
    pub(super) linkage: Vec<Range<usize>>,
    /// Where functions, or parts of them, start and end; empty where the table for unwinding tells.
    pub(super) functions: Vec<Range<usize>>,
}

impl View {
    /// What the pointer at this address leads to.
    pub(super) fn pointer(&self, address: usize) -> Option<ProbeKind> {
        let (first, last) = (self.pointers.first()?.0, self.pointers.last()?.0);
        if address < first || last < address {
            return None;
        }
        self.pointers.iter().find(|(pointer, _)| *pointer == address).map(|(_, kind)| *kind)
    }
}

pub(super) type Elf<'a> = ElfFile64<'a, object::Endianness, &'a ReadCache<File>>;

/// Opens the file of an object.
pub(super) fn open(path: &Path) -> Result<(FileId, ReadCache<File>), Error> {
    let failed = |error: std::io::Error| Error::Object { path: path.into(), reason: error.to_string() };
    let file = File::open(path).map_err(failed)?;
    Ok((FileId::of(&file).map_err(failed)?, ReadCache::new(file)))
}

/// Reads the file of a loaded object, or nothing if it does not refer to the instrumentation
/// functions. `has_table` says that the loaded object has a usual table for unwinding.
///
/// # Safety
/// The object must stay loaded meanwhile.
pub(super) unsafe fn read(loaded: &LoadedObject, has_table: bool) -> Result<Option<View>, Error> {
    let failed = |reason: String| Error::Object { path: loaded.path.clone(), reason };
    let (file, cache) = open(&loaded.path)?;
    let elf: Elf<'_> = ElfFile64::parse(&cache).map_err(|error| failed(error.to_string()))?;
    let pointers = pointers(&elf, loaded.bias);
    if pointers.is_empty() {
        return Ok(None);
    }
    // SAFETY: the caller's obligation.
    if !unsafe { is_file_of(&elf, &cache, loaded) } {
        return Err(failed("the file on disk is not the one that was loaded".into()));
    }
    let in_memory = |section: object::read::elf::ElfSection64<'_, '_, object::Endianness, _>| {
        let start = loaded.bias + section.address() as usize;
        start..start + section.size() as usize
    };
    let constants =
        [".got", ".got.plt"].into_iter().filter_map(|name| elf.section_by_name(name)).map(in_memory);
    let is_linkage = |name: &[u8]| name.starts_with(b".plt");
    let linkage =
        elf.sections().filter(|section| section.name_bytes().is_ok_and(is_linkage)).map(in_memory).collect();
    let functions = if has_table {
        Vec::new()
    } else {
        functions(&elf, loaded).map_err(|error| failed(format!("bad unwind table: {error}")))?
    };
    Ok(Some(View { file, pointers, constants: constants.collect(), linkage, functions }))
}

fn pointers(elf: &Elf<'_>, bias: usize) -> Vec<(usize, ProbeKind)> {
    let Some(table) = elf.dynamic_symbol_table() else { return Vec::new() };
    let kind = |name: &[u8]| match name {
        ENTER => Some(ProbeKind::ENTRY),
        EXIT => Some(ProbeKind::EXIT),
        _ => None,
    };
    let undefined: HashMap<_, _> = table
        .symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| Some((symbol.index(), kind(symbol.name_bytes().ok()?)?)))
        .collect();
    if undefined.is_empty() {
        return Vec::new();
    }
    let pointer = |(address, relocation): (u64, object::Relocation)| match relocation.target() {
        RelocationTarget::Symbol(index) => Some((bias + address as usize, *undefined.get(&index)?)),
        _ => None,
    };
    let mut pointers: Vec<_> = elf.dynamic_relocations().into_iter().flatten().filter_map(pointer).collect();
    pointers.sort_unstable_by_key(|(address, _)| *address);
    pointers
}

/// How much of the text is compared with the file.
const COMPARED: u64 = 1 << 12;

/// Whether the file's text is what was loaded: a package may have been upgraded under a running
/// program. Compares the first bytes of the section that functions lie in.
///
/// # Safety
/// The object must stay loaded meanwhile.
unsafe fn is_file_of(elf: &Elf<'_>, cache: &ReadCache<File>, loaded: &LoadedObject) -> bool {
    let Some(section) = elf.section_by_name(".text") else { return true };
    let Some((offset, size)) = section.file_range() else { return false };
    let Ok(data) = cache.read_bytes_at(offset, size.min(COMPARED)) else { return false };
    let start = loaded.bias + section.address() as usize;
    let Some(mapped) = loaded.text.iter().find(|range| range.contains(&start)) else { return false };
    let length = data.len().min(mapped.end - start);
    // SAFETY: the object's text is mapped, by the caller's obligation, and readable.
    let memory =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(start), length) };
    let same = data[..length].iter().zip(memory).filter(|(a, b)| a == b).count();
    // Some of these bytes may have been patched already, when the object is looked at again.
    same * 4 >= length * 3
}

/// Function ranges from the unwind table, and from symbols where code was compiled without one.
fn functions(elf: &Elf<'_>, loaded: &LoadedObject) -> Result<Vec<Range<usize>>, gimli::Error> {
    let mut ranges = BTreeMap::new();
    if let Some(section) = elf.section_by_name(".eh_frame")
        && let Ok(data) = section.data()
    {
        let table = EhFrame::new(data, NativeEndian);
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        let mut entries = table.entries(&bases);
        while let Some(entry) = entries.next()? {
            if let CieOrFde::Fde(partial) = entry {
                let fde = partial.parse(|_, bases, offset| table.cie_from_offset(bases, offset))?;
                let start = loaded.bias.wrapping_add(fde.initial_address() as usize);
                ranges.insert(start, start.saturating_add(fde.len() as usize));
            }
        }
    }
    for function in Names::of(elf, loaded).functions_in(&loaded.range) {
        let before = ranges.range(..=function.start).next_back();
        if before.is_none_or(|(_, end)| *end <= function.start) {
            ranges.insert(function.start, function.end);
        }
    }
    let is_function = |(start, end): &(usize, usize)| start < end;
    Ok(ranges.into_iter().filter(is_function).map(|(start, end)| start..end).collect())
}
