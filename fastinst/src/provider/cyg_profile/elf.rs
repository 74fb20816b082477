//! What an object's file says: its pointers to the instrumentation functions, where its functions start and end, and their
//! names.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, EhFrame, NativeEndian, UnwindSection};
use object::read::elf::ElfFile64;
use object::{
    Object as _, ObjectSection, ObjectSymbol, ObjectSymbolTable, ReadCache, RelocationTarget, SymbolKind,
};

use super::loaded::LoadedObject;
use crate::error::Error;
use crate::probe::ProbeType;

/// The symbols that gcc and clang call.
const ENTER: &[u8] = b"__cyg_profile_func_enter";
const EXIT: &[u8] = b"__cyg_profile_func_exit";

/// Names of functions by their address in the file.
#[derive(Default)]
pub(super) struct Symbols(BTreeMap<usize, Vec<u8>>);

impl Symbols {
    /// The name of the function that starts at this address of the file.
    pub(super) fn name(&self, address: usize) -> Option<&[u8]> {
        self.0.get(&address).map(Vec::as_slice)
    }
}

/// What an instrumented object's file says. Addresses are in memory.
pub(super) struct ElfView {
    /// Pointers to the instrumentation functions, that calls go through.
    pub(super) pointers: HashMap<usize, ProbeType>,
    /// Where pointers that the loader has filled in may be read as constants.
    pub(super) constants: Vec<Range<usize>>,
    /// Where functions, or parts of them, start and end.
    pub(super) functions: Vec<Range<usize>>,
    pub(super) symbols: Symbols,
}

type Elf<'a> = ElfFile64<'a, object::Endianness, &'a ReadCache<File>>;

/// Reads the file of a loaded object, or nothing if it does not refer to the instrumentation functions.
pub(super) fn read(loaded: &LoadedObject) -> Result<Option<ElfView>, Error> {
    let failed = |reason: String| Error::Object { path: loaded.path.clone(), reason };
    let file = File::open(&loaded.path).map_err(|error| failed(error.to_string()))?;
    let cache = ReadCache::new(file);
    let elf: Elf<'_> = ElfFile64::parse(&cache).map_err(|error| failed(error.to_string()))?;
    let pointers = pointers(&elf, loaded.bias);
    if pointers.is_empty() {
        return Ok(None);
    }
    if !is_file_of(&elf, loaded) {
        return Err(failed("the file on disk is not the one that was loaded".into()));
    }
    let symbols = symbols(&elf);
    let functions =
        functions(&elf, loaded.bias).map_err(|error| failed(format!("bad unwind table: {error}")))?;
    let constants =
        [".got", ".got.plt"].into_iter().filter_map(|name| elf.section_by_name(name)).map(|section| {
            let start = loaded.bias + section.address() as usize;
            start..start + section.size() as usize
        });
    Ok(Some(ElfView { pointers, constants: constants.collect(), functions, symbols }))
}

fn pointers(elf: &Elf<'_>, bias: usize) -> HashMap<usize, ProbeType> {
    let Some(table) = elf.dynamic_symbol_table() else { return HashMap::new() };
    let kind = |name: &[u8]| match name {
        ENTER => Some(ProbeType::Entry),
        EXIT => Some(ProbeType::Exit),
        _ => None,
    };
    let undefined: HashMap<_, _> = table
        .symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| Some((symbol.index(), kind(symbol.name_bytes().ok()?)?)))
        .collect();
    if undefined.is_empty() {
        return HashMap::new();
    }
    elf.dynamic_relocations()
        .into_iter()
        .flatten()
        .filter_map(|(address, relocation)| match relocation.target() {
            RelocationTarget::Symbol(index) => Some((bias + address as usize, *undefined.get(&index)?)),
            _ => None,
        })
        .collect()
}

/// Whether the file's text is what was loaded: a package may have been upgraded under a running program. Compares the
/// first bytes of the section that functions lie in.
fn is_file_of(elf: &Elf<'_>, loaded: &LoadedObject) -> bool {
    let Some(section) = elf.section_by_name(".text") else { return true };
    let Ok(data) = section.data() else { return false };
    let start = loaded.bias + section.address() as usize;
    let Some(mapped) = loaded.text.iter().find(|range| range.contains(&start)) else { return false };
    let length = data.len().min(mapped.end - start).min(1 << 12);
    // SAFETY: the loader keeps the object's text mapped, and text is readable (`-z noexecstack` has no bearing on it).
    let memory =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(start), length) };
    let same = data[..length].iter().zip(memory).filter(|(a, b)| a == b).count();
    // Some of these bytes may have been patched already, when the object is looked at again.
    same * 4 >= length * 3
}

fn symbols(elf: &Elf<'_>) -> Symbols {
    let mut names = BTreeMap::new();
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        if symbol.kind() == SymbolKind::Text
            && symbol.is_definition()
            && let Ok(name) = symbol.name_bytes()
        {
            // Aliases: a global name before a local one, the first otherwise.
            let name = || name.to_vec();
            let entry = names.entry(symbol.address() as usize);
            match entry {
                std::collections::btree_map::Entry::Occupied(mut taken) if symbol.is_global() => {
                    let (_, taken_is_global) = taken.get();
                    if !taken_is_global {
                        taken.insert((name(), true));
                    }
                }
                std::collections::btree_map::Entry::Occupied(_) => {}
                std::collections::btree_map::Entry::Vacant(free) => {
                    _ = free.insert((name(), symbol.is_global()))
                }
            }
        }
    }
    Symbols(names.into_iter().map(|(address, (name, _))| (address, name)).collect())
}

/// Function ranges from the unwind table, and from symbols where code was compiled without one.
fn functions(elf: &Elf<'_>, bias: usize) -> Result<Vec<Range<usize>>, gimli::Error> {
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
                ranges.insert(fde.initial_address() as usize, fde.len() as usize);
            }
        }
    }
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        if symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0 {
            let start = symbol.address() as usize;
            let before = ranges.range(..=start).next_back();
            if before.is_none_or(|(first, length)| first + length <= start) {
                ranges.insert(start, symbol.size() as usize);
            }
        }
    }
    // The linker's own code has an unwind table too; its jumps through the pointers are where calls go, not sites.
    let linkage: Vec<Range<u64>> = elf
        .sections()
        .filter(|section| section.name_bytes().is_ok_and(|name| name.starts_with(b".plt")))
        .map(|section| section.address()..section.address() + section.size())
        .collect();
    let is_function = |(start, length): &(usize, usize)| {
        *length > 0 && !linkage.iter().any(|section| section.contains(&(*start as u64)))
    };
    Ok(ranges.into_iter().filter(is_function).map(|(s, l)| bias + s..bias + s + l).collect())
}
