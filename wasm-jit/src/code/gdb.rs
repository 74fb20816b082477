//! Names of generated code for gdb, through its JIT interface (the gdb manual, "JIT Compilation
//! Interface").
//!
//! gdb reads a list of object files from a variable of the process whenever the process calls an
//! empty function; it finds both by their names. Each image gets an object file in memory, with a
//! symbol for each function and trampoline, but without code: gdb reads that from the process. Each
//! version of a probed function, and each function that is compiled when it is first called, gets
//! one, too, as soon as it is made.
//!
//! After their prologue, functions and stubs have unwind information: the caller's frame is found
//! by `rbp`. (gdb would analyze the prologue, but a stub has none, and that of an original whose
//! calls go to another version begins with a JMP.) In the prologue gdb must find PUSH at the
//! address of a symbol, so the prefixes before it get a separate symbol, `FUNCTION@entry`.
//!
//! Code is shared memory that is not writable where it is executed, so gdb cannot insert software
//! breakpoints: `hbreak`, which uses hardware breakpoints, works.
//!
//! Both symbols are hidden: they are for the linker and for gdb, and are not exported by libraries
//! that contain this one.

use std::arch::global_asm;
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use object::Endianness;
use object::elf;
use object::write::elf::{FileHeader, SectionHeader, Sym, Writer};

use wasm_jit_codegen::ENTRY_PREFIX;

use super::CodeImage;
use super::forks::{self, Locked};
use super::symbols::{Names, Symbol, VersionCode};

global_asm!(
    ".pushsection .data.__jit_debug_descriptor, \"aw\", @progbits",
    ".globl __jit_debug_descriptor",
    ".hidden __jit_debug_descriptor",
    ".type __jit_debug_descriptor, @object",
    ".size __jit_debug_descriptor, 24",
    ".balign 8",
    "__jit_debug_descriptor:",
    ".long 1", // version
    ".long 0", // action
    ".quad 0", // the entry that it concerns
    ".quad 0", // the first entry
    ".popsection",
    ".pushsection .text.__jit_debug_register_code, \"ax\", @progbits",
    ".globl __jit_debug_register_code",
    ".hidden __jit_debug_register_code",
    ".type __jit_debug_register_code, @function",
    "__jit_debug_register_code:",
    "ret",
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "__jit_debug_descriptor"]
    static mut DESCRIPTOR: Descriptor;
    #[link_name = "__jit_debug_register_code"]
    fn register_code();
}

const REGISTER: u32 = 1;
const UNREGISTER: u32 = 2;

#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

#[repr(C)]
struct Entry {
    next: *mut Entry,
    previous: *mut Entry,
    file: *const u8,
    length: u64,
}

/// Held while the list is changed.
static LIST: Mutex<()> = Mutex::new(());

/// Registers a module's functions with gdb, until it is dropped.
#[derive(Debug)]
#[must_use = "gdb forgets the module when it is dropped"]
pub struct GdbRegistration {
    _file: File,
    image: Arc<CodeImage>,
}

/// Registers the functions of an image with gdb, including versions of them that are made later.
/// Allocates an object file with about 90 bytes for each function.
pub(crate) fn register(image: Arc<CodeImage>) -> GdbRegistration {
    let names = Names::of(&image);
    let file = File::register(object_file(&symbols(&image, &names), image.memory().pages()));
    image.shown.begin(names, || image.versions());
    GdbRegistration { _file: file, image }
}

impl Drop for GdbRegistration {
    fn drop(&mut self) {
        self.image.shown.end();
    }
}

/// The code made after the image that gdb knows: versions of its functions, and functions that were
/// compiled when they were first called.
#[derive(Debug, Default)]
pub(crate) struct Shown(Mutex<ShownVersions>);

#[derive(Debug, Default)]
struct ShownVersions {
    /// The names of functions, while there are registrations.
    names: Option<Names>,
    registrations: usize,
    /// The object files, by the addresses of stubs.
    files: HashMap<usize, File>,
}

impl ShownVersions {
    fn add(&mut self, version: &VersionCode) {
        let Some(names) = &self.names else { return };
        self.files.entry(version.stubs.start).or_insert_with(|| {
            let function = names.version(version).into_iter().flat_map(split_entry);
            let symbols: Vec<Symbol> = function.chain(names.stubs(version)).collect();
            File::register(object_file(&symbols, symbols[0].range.start..version.stubs.end))
        });
    }
}

impl Shown {
    fn lock(&self) -> Locked<'_, ShownVersions> {
        forks::lock(&self.0)
    }

    fn begin<I: Iterator<Item = VersionCode>>(&self, names: Names, versions: impl FnOnce() -> I) {
        let mut shown = self.lock();
        shown.registrations += 1;
        shown.names = Some(names);
        // Under the lock: if a version is made at the same time, the thread that takes the lock
        // second registers it.
        versions().for_each(|version| shown.add(&version));
    }

    fn end(&self) {
        let mut shown = self.lock();
        shown.registrations -= 1;
        if shown.registrations == 0 {
            *shown = ShownVersions::default();
        }
    }

    /// A version was made, and can be found.
    pub(super) fn version_made(&self, version: &VersionCode) {
        self.lock().add(version);
    }

    /// The version with stubs at this address was freed.
    pub(super) fn version_freed(&self, stubs: usize) {
        self.lock().files.remove(&stubs);
    }
}

/// An object file in gdb's list.
#[derive(Debug)]
struct File {
    entry: NonNull<Entry>,
    /// The object file that gdb reads.
    _contents: Vec<u8>,
}

// SAFETY: the entry is reached through the list only, under its lock.
unsafe impl Send for File {}
// SAFETY: as above.
unsafe impl Sync for File {}

impl File {
    fn register(contents: Vec<u8>) -> Self {
        let entry = Entry {
            next: std::ptr::null_mut(),
            previous: std::ptr::null_mut(),
            file: contents.as_ptr(),
            length: contents.len() as u64,
        };
        let entry = NonNull::from(Box::leak(Box::new(entry)));
        let _list = forks::lock(&LIST);
        // SAFETY: list and entries are accessed under the lock only; gdb reads them while the
        // process is stopped.
        unsafe {
            let first = DESCRIPTOR.first;
            (*entry.as_ptr()).next = first;
            if !first.is_null() {
                (*first).previous = entry.as_ptr();
            }
            DESCRIPTOR.first = entry.as_ptr();
            DESCRIPTOR.relevant = entry.as_ptr();
            DESCRIPTOR.action = REGISTER;
            register_code();
        }
        Self { entry, _contents: contents }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _list = forks::lock(&LIST);
        // SAFETY: as in `register`; the entry is in the list, and nothing else refers to it after
        // it is removed.
        unsafe {
            let Entry { next, previous, .. } = *self.entry.as_ptr();
            match previous.as_mut() {
                Some(previous) => previous.next = next,
                None => DESCRIPTOR.first = next,
            }
            if let Some(next) = next.as_mut() {
                next.previous = previous;
            }
            DESCRIPTOR.relevant = self.entry.as_ptr();
            DESCRIPTOR.action = UNREGISTER;
            register_code();
            drop(Box::from_raw(self.entry.as_ptr()));
        }
    }
}

/// The symbols of an image: originals that were compiled with it, entries of the other functions,
/// and trampolines.
fn symbols(image: &CodeImage, names: &Names) -> Vec<Symbol> {
    let functions = names.originals(image).flat_map(split_entry);
    // By their symbols, gdb unwinds from here to the host's frames.
    let trampolines = image.trampolines().into_iter().map(|(what, place)| {
        let range = image.at(place.start) as usize..image.at(place.end) as usize;
        Symbol { name: names.of_code(format_args!("trampoline[{what}]")), range, frame: None }
    });
    let entries = image.lazy().map(|_| Symbol {
        name: names.of_code("entries"),
        range: image.at(0) as usize..image.at(image.functions_end) as usize,
        frame: None,
    });
    functions.chain(entries).chain(trampolines).collect()
}

/// The function, starting at its PUSH, preceded by the prefixes of that instruction.
fn split_entry(function: Symbol) -> impl Iterator<Item = Symbol> {
    let start: *const u8 = std::ptr::with_exposed_provenance(function.range.start);
    let is_prefix = |at: &usize| {
        // SAFETY: inside the function, whose code stays mapped with its image.
        unsafe { start.add(*at).read_volatile() == ENTRY_PREFIX }
    };
    let prefixes = (0..function.range.len()).take_while(is_prefix).count();
    let push = function.range.start + prefixes;
    let name = format!("{}@entry", function.name);
    let entry = (prefixes > 0).then_some(Symbol { name, range: function.range.start..push, frame: None });
    entry.into_iter().chain([Symbol { range: push..function.range.end, ..function }])
}

/// Unwind information in `.debug_frame` form (DWARF 5, section 6.4.1): from `frame` of each symbol
/// to its end, the caller's frame is found by `rbp`.
fn unwind_information(symbols: &[Symbol]) -> Vec<u8> {
    const RBP: u8 = 6;
    const RETURN_ADDRESS: u8 = 16;
    const DEFINE_CFA: u8 = 12;
    const OFFSET: u8 = 1 << 7;
    /// -8, as a signed LEB128.
    const DATA_ALIGNMENT: u8 = 0x78;
    let mut out = Vec::new();
    let mut entry = |id: u32, contents: &[u8]| {
        // Padding is DW_CFA_nop, which is zero.
        let length = contents.len().next_multiple_of(8) + 4;
        out.extend((length as u32).to_le_bytes());
        out.extend(id.to_le_bytes());
        out.extend(contents);
        out.resize(out.len() + length - 4 - contents.len(), 0);
    };
    // Common: version 1, no augmentation; the caller's `rbp` and `rip` are below the CFA.
    let cfa = [DEFINE_CFA, RBP, 16, OFFSET | RBP, 2, OFFSET | RETURN_ADDRESS, 1];
    entry(u32::MAX, &[&[1, 0, 1, DATA_ALIGNMENT, RETURN_ADDRESS], &cfa[..]].concat());
    for symbol in symbols {
        let Some(frame) = symbol.frame else { continue };
        let range = [frame, symbol.range.end - frame].map(|word| (word as u64).to_le_bytes());
        entry(0, &range.concat());
    }
    out
}

/// An ELF file with these addresses as a section without contents, these symbols, and unwind
/// information.
fn object_file(symbols: &[Symbol], code: Range<usize>) -> Vec<u8> {
    let places: Vec<_> =
        symbols.iter().map(|symbol| (symbol.name.replace('\0', " ").into_bytes(), &symbol.range)).collect();
    let unwind = unwind_information(symbols);
    let mut file = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut file);

    // All parts are reserved first, then written in the same order.
    writer.reserve_null_section_index();
    let text_name = writer.add_section_name(b".text");
    let text = writer.reserve_section_index();
    let unwind_name = writer.add_section_name(b".debug_frame");
    writer.reserve_section_index();
    writer.reserve_symtab_section_index();
    writer.reserve_strtab_section_index();
    writer.reserve_shstrtab_section_index();
    writer.reserve_null_symbol_index();
    let mut indices = Vec::with_capacity(places.len());
    for (name, _) in &places {
        indices.push(writer.add_string(name));
        writer.reserve_symbol_index(Some(text));
    }
    writer.reserve_file_header();
    let unwind_offset = writer.reserve(unwind.len() as u64, 8);
    writer.reserve_symtab();
    writer.reserve_strtab().expect("the names were given above");
    writer.reserve_shstrtab().expect("the names were given above");
    writer.reserve_section_headers();

    let header = FileHeader {
        os_abi: elf::ELFOSABI_NONE,
        abi_version: 0,
        e_type: elf::ET_EXEC,
        e_machine: elf::EM_X86_64,
        e_entry: 0,
        e_flags: elf::FileFlags(0),
    };
    writer.write_file_header(&header).expect("an ordinary header");
    writer.write_align(8);
    writer.write(&unwind);
    writer.write_null_symbol();
    for ((_, place), name) in places.iter().zip(&indices) {
        writer.write_symbol(&Sym {
            section: Some(text.0),
            st_name: writer.string_offset(Some(*name)),
            st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
            st_other: elf::SymbolOther(0),
            st_shndx: elf::SHN_UNDEF,
            st_value: place.start as u64,
            st_size: place.len() as u64,
        });
    }
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    let section = SectionHeader {
        sh_name: writer.section_name_offset(Some(text_name)),
        sh_type: elf::SHT_NOBITS,
        sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
        sh_addr: code.start as u64,
        sh_offset: 0,
        sh_size: code.len() as u64,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 16,
        sh_entsize: 0,
    };
    writer.write_section_header(&section);
    writer.write_section_header(&SectionHeader {
        sh_name: writer.section_name_offset(Some(unwind_name)),
        sh_type: elf::SHT_PROGBITS,
        sh_flags: elf::SectionFlags(0),
        sh_addr: 0,
        sh_offset: unwind_offset,
        sh_size: unwind.len() as u64,
        sh_addralign: 8,
        ..section
    });
    writer.write_symtab_section_header(1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    file
}

#[cfg(test)]
mod tests {
    use object::{Object, ObjectSymbol};

    use super::super::probed::enter::{Enters, new_number};
    use super::super::tests::{NoProbes, call_at, compile, count_at, image, lazy_image};
    use super::*;

    #[test]
    fn the_object_file_has_the_functions_of_the_image() {
        let image = image(&[10, 5000, 70]);
        let registration = register(image.clone());
        let file = object::File::parse(&*registration._file._contents).unwrap();
        let found: Vec<_> = file
            .symbols()
            .map(|symbol| (symbol.name().unwrap().to_owned(), symbol.address(), symbol.size()))
            .collect();
        let expected: Vec<_> = (2..)
            .zip([10, 5000, 70])
            .map(|(index, length)| (format!("wasm!function[{index}]"), image.entry(index) as u64, length))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn trampolines_have_symbols() {
        let text = "(module $m (func) (func) (func (param i32)))";
        let image = compile(wat::parse_str(text).unwrap(), 1).unwrap();
        let file = object_file(&symbols(&image, &Names::of(&image)), image.memory().pages());
        let file = object::File::parse(&*file).unwrap();
        let names: Vec<_> = file.symbols().skip(6).map(|symbol| symbol.name().unwrap().to_owned()).collect();
        let of_functions: Vec<_> = file.symbols().take(2).map(|symbol| symbol.name().unwrap()).collect();
        assert_eq!(of_functions, ["m!function[0]@entry", "m!function[0]"]);
        assert_eq!(names, ["enter", "leave", "enter", "leave"].map(|what| format!("m!trampoline[{what}]")));
        let ends: Vec<_> = file.symbols().map(|symbol| symbol.address() + symbol.size()).collect();
        assert!(ends.is_sorted() && ends.last() == Some(&(image.memory().pages().end as u64)), "{ends:x?}");
    }

    /// The symbols of all files in the list whose names begin with `module`.
    fn listed(module: &str) -> Vec<(String, u64, u64)> {
        let _list = LIST.lock().unwrap();
        let mut found = Vec::new();
        // SAFETY: entries and their files are valid under the lock.
        unsafe {
            let mut next = DESCRIPTOR.first;
            while let Some(entry) = next.as_ref() {
                let file = std::slice::from_raw_parts(entry.file, entry.length as usize);
                let file = object::File::parse(file).unwrap();
                let symbols = file
                    .symbols()
                    .map(|symbol| (symbol.name().unwrap().to_owned(), symbol.address(), symbol.size()));
                found.extend(symbols.filter(|(name, ..)| name.starts_with(module)));
                next = entry.next;
            }
        }
        found
    }

    #[test]
    fn functions_that_are_compiled_when_they_are_called_have_symbols_from_then_on() {
        let image = lazy_image("(module $lazy (func $a) (func $b) (func $c))");
        image.ensure_compiled(1).unwrap();
        let registration = register(image.clone());
        let names = || {
            let mut found: Vec<_> = listed("lazy!").into_iter().map(|(name, ..)| name).collect();
            found.retain(|name| !name.contains("trampoline") && !name.contains("@entry"));
            found.sort();
            found
        };
        assert_eq!(names(), ["lazy!b", "lazy!entries"]);
        image.ensure_compiled(0).unwrap();
        assert_eq!(names(), ["lazy!a", "lazy!b", "lazy!entries"]);
        for (name, index) in [("lazy!a", 0), ("lazy!b", 1)] {
            let (_, address, size) = listed(name).pop().unwrap();
            assert_eq!(address + size, image.at(image.function(index).end) as u64);
            assert_eq!(image.function_at(address as usize), Some(index));
        }
        drop(registration);
        assert!(names().is_empty());
    }

    #[test]
    fn versions_of_probed_functions_have_symbols_while_the_module_is_shown() {
        let text = "(module $versions (func $f (param i32) (result i32) (local.get 0)) (func))";
        let image = compile(wat::parse_str(text).unwrap(), 1).unwrap();
        let start = |function| image.function(function).wasm_start;
        let marked = || {
            let mut found = listed("versions!");
            found.retain(|(name, ..)| name.ends_with("[probed]") || name.ends_with("[stub]"));
            found.sort();
            found
        };
        let names = || marked().into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
        // One version is older than the registration.
        image.make_probes(0, &[count_at(start(0))]).unwrap();
        assert!(marked().is_empty());
        let first = register(image.clone());
        let of_f = ["versions!f [probed]", "versions!f [stub]"];
        assert_eq!(names(), of_f);
        image.make_probes(1, &[count_at(start(1))]).unwrap();
        let of_both = [of_f, ["versions!function[1] [probed]", "versions!function[1] [stub]"]].concat();
        assert_eq!(names(), of_both);
        let second = register(image.clone());
        assert_eq!(names(), of_both);
        for (name, address, size) in marked() {
            let version = image.version_at(address as usize).unwrap().1;
            assert_eq!(image.version_at((address + size) as usize - 1).unwrap().1.base(), version.base());
            assert_eq!(image.stub_at(address as usize).is_some(), name.ends_with("[stub]"), "{name}");
        }
        // The stub of a list has a symbol from its first use.
        let probe = image.make_probes(1, &[call_at(start(1))]).unwrap()[0].unwrap();
        assert_eq!(names(), of_both);
        image.activate_probe(probe).unwrap();
        let with_list = [&of_both[..], &["versions!function[1] [stub]"]].concat();
        assert_eq!(names(), with_list);
        image.deactivate_probe(probe, false).unwrap();
        image.activate_probe(probe).unwrap();
        assert_eq!(names(), with_list);
        drop(first);
        assert_eq!(names(), with_list);
        drop(second);
        assert!(marked().is_empty());
        image.make_probes(1, &[count_at(start(1) + 1)]).unwrap();
        assert!(marked().is_empty());
        // A stub that is older than the registration.
        let _third = register(image.clone());
        let added = ["versions!function[1] [probed]", "versions!function[1] [stub]"];
        let stub = "versions!function[1] [stub]";
        let mut expected = [&with_list[..], &added, &[stub]].concat();
        expected.sort_unstable();
        assert_eq!(names(), expected);
        // The stubs of entries have one for all, from their first use.
        let watcher: Arc<dyn Enters> = Arc::new(NoProbes);
        image.wait_for_entries(new_number(), Arc::downgrade(&watcher), |_| false).unwrap();
        expected.insert(0, "versions!entries [stub]");
        assert_eq!(names(), expected);
        let _fourth = register(image.clone());
        assert_eq!(names(), expected);
    }

    #[test]
    fn the_caller_is_found_by_rbp_in_functions_and_stubs() {
        use gimli::UnwindSection;
        let text = "(module (func (param i32)) (func))";
        let image = compile(wat::parse_str(text).unwrap(), 1).unwrap();
        image.make_probes(1, &[count_at(image.function(1).wasm_start)]).unwrap();
        let watcher: Arc<dyn Enters> = Arc::new(NoProbes);
        image.wait_for_entries(new_number(), Arc::downgrade(&watcher), |_| false).unwrap();
        let names = Names::of(&image);
        let [version, entries] = &image.versions().collect::<Vec<_>>()[..] else { panic!("two") };
        let of_version = [names.version(version).unwrap(), names.stubs(version).unwrap()];
        let entries = names.stubs(entries).unwrap();
        let frame = entries.frame.unwrap();
        // push rbp; mov rbp, rsp.
        // SAFETY: in the stubs, which stay with their image.
        let before: [u8; 4] = unsafe { std::ptr::with_exposed_provenance::<[u8; 4]>(frame - 4).read() };
        assert_eq!(before, [0x55, 0x48, 0x8b, 0xec]);
        for symbols in [&symbols(&image, &names)[..], &of_version[..], &[entries][..]] {
            let file = object_file(symbols, image.memory().pages());
            let file = object::File::parse(&*file).unwrap();
            let section =
                object::ObjectSection::data(&file.section_by_name(".debug_frame").unwrap()).unwrap();
            let mut frames = gimli::DebugFrame::new(section, gimli::LittleEndian);
            frames.set_address_size(8);
            let framed = symbols.iter().filter(|symbol| symbol.frame.is_some());
            assert_eq!(framed.clone().count(), symbols.len().min(2));
            for Symbol { name, range, frame } in framed {
                for at in [frame.unwrap(), range.end - 1] {
                    let bases = gimli::BaseAddresses::default();
                    let mut context = gimli::UnwindContext::new();
                    let row = frames.unwind_info_for_address(
                        &bases,
                        &mut context,
                        at as u64,
                        gimli::DebugFrame::cie_from_offset,
                    );
                    let row = row.unwrap_or_else(|error| panic!("{name}: {error}"));
                    let rbp = gimli::X86_64::RBP;
                    let cfa = gimli::CfaRule::RegisterAndOffset { register: rbp, offset: 16 };
                    assert_eq!(*row.cfa(), cfa);
                    assert_eq!(row.register(rbp), Some(gimli::RegisterRule::Offset(-16)));
                    assert_eq!(row.register(gimli::X86_64::RA), Some(gimli::RegisterRule::Offset(-8)));
                }
            }
        }
    }

    #[test]
    fn the_list_holds_what_is_registered() {
        /// The addresses of the files in the list, each with that of its predecessor.
        fn list() -> Vec<(*const u8, Option<*const u8>)> {
            let _list = LIST.lock().unwrap();
            let mut found = Vec::new();
            // SAFETY: under the lock.
            unsafe {
                let mut next = DESCRIPTOR.first;
                while let Some(entry) = next.as_ref() {
                    found.push((entry.file, entry.previous.as_ref().map(|entry| entry.file)));
                    next = entry.next;
                }
            }
            found
        }
        let registrations: Vec<_> = (10..14).map(|length| register(image(&[length]))).collect();
        let mut files: Vec<_> = registrations.iter().map(|one| one._file._contents.as_ptr()).collect();
        let check = |files: &[*const u8]| {
            let list = list();
            let known: Vec<_> =
                list.iter().map(|(file, _)| *file).filter(|file| files.contains(file)).collect();
            assert_eq!(known, files.iter().rev().copied().collect::<Vec<_>>());
            for (number, (_, previous)) in list.iter().enumerate() {
                assert_eq!(*previous, number.checked_sub(1).map(|before| list[before].0));
            }
        };
        check(&files);
        for (number, registration) in registrations.into_iter().enumerate() {
            drop(registration);
            files.remove(0);
            check(&files);
            assert_eq!(files.len(), 3 - number);
        }
    }
}
