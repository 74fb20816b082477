//! The loaded objects: their addresses, and the contents of their files.
//!
//! The files are mapped, without debugging information, and their mappings are kept as long as the
//! objects are loaded. So nothing is read from memory that the program may unmap meanwhile, and
//! code is seen as it was compiled, whatever is patched.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs::File;
use std::ops::{Deref, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// A part of the contents of an object.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    image: Arc<Image>,
    range: Range<usize>,
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.image.bytes()[self.range.clone()]
    }
}

/// The contents of an object.
#[derive(Debug)]
enum Image {
    File(Mapping),
    /// Of the vDSO, which has no file.
    Memory(Vec<u8>),
}

impl Image {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::File(file) => file.bytes(),
            Self::Memory(bytes) => bytes,
        }
    }
}

/// The start of a file, mapped for reading.
#[derive(Debug)]
struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: the mapping belongs to the process, and is never written.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File, length: usize) -> Option<Self> {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap};
        // Reading beyond the end of the file would be a fault.
        let length = length.min(usize::try_from(file.metadata().ok()?.len()).ok()?);
        let size = std::num::NonZeroUsize::new(length)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(None, size, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, file, 0) }.ok()?;
        Some(Self { start, length })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped readable as long as `self` exists. Nobody can write to a file that is
        // executed; one who truncates a loaded library ends every process that uses it.
        unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping, to which no reference is left. Nothing else can be done about an
        // error.
        let _ = unsafe { nix::sys::mman::munmap(self.start, self.length) };
    }
}

/// A segment of an object that is mapped from its file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// Addresses in memory.
    memory: Range<u64>,
    /// Where it begins in the file.
    offset: u64,
    is_executable: bool,
}

/// A loaded object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    path: Vec<u8>,
    /// The difference between an address in memory and the address in the file.
    pub(super) bias: u64,
    /// Its addresses, from the lowest to the highest.
    pub(super) range: Range<u64>,
    segments: Vec<Segment>,
    /// The address of the index of its unwind table.
    unwind: Option<u64>,
}

/// Its code and unwind tables, each with its addresses in memory.
pub(super) struct Sections {
    pub(super) text: Vec<(Range<u64>, Contents)>,
    pub(super) unwind_index: (Range<u64>, Contents),
    pub(super) unwind_table: (Range<u64>, Contents),
}

/// The loader's name of the code that the kernel maps into every process.
const VDSO: &[u8] = b"linux-vdso.so.1";

/// The encoding of the pointer to the unwind table in its index: relative to itself, of 4 bytes
/// (Linux Standard Base, "Exception Frames").
const RELATIVE: u8 = 0x1b;

impl Object {
    /// The sections, from the object's file. `None` if the file cannot be read, or has no unwind
    /// table in the form that linkers generate.
    pub(super) fn sections(&self) -> Option<Sections> {
        let image = Arc::new(self.image()?);
        let length = image.bytes().len();
        let part = |memory: Range<u64>| {
            let segment = self.segments.iter().find(|segment| segment.memory.contains(&memory.start))?;
            let start = usize::try_from(segment.offset + memory.start - segment.memory.start).ok()?;
            let end = start + usize::try_from(memory.end.min(segment.memory.end) - memory.start).ok()?;
            (end <= length).then(|| Contents { image: image.clone(), range: start..end })
        };
        let to_end = |address: u64| {
            let segment = self.segments.iter().find(|segment| segment.memory.contains(&address))?;
            let range = address..segment.memory.end;
            Some((range.clone(), part(range)?))
        };
        let unwind_index = to_end(self.unwind?)?;
        let (start, bytes) = (unwind_index.0.start + 4, &unwind_index.1);
        let (RELATIVE, Some(pointer)) = (*bytes.get(1)?, bytes.get(4..8)) else { return None };
        let pointer = i32::from_le_bytes(pointer.try_into().ok()?);
        let unwind_table = to_end(start.wrapping_add_signed(pointer.into()))?;
        let text = self.segments.iter().filter(|segment| segment.is_executable);
        let text = text.filter_map(|segment| Some((segment.memory.clone(), part(segment.memory.clone())?)));
        Some(Sections { text: text.collect(), unwind_index, unwind_table })
    }
}

impl Object {
    fn image(&self) -> Option<Image> {
        let path = match self.path.as_slice() {
            b"" => Path::new("/proc/self/exe"),
            VDSO => {
                let start = std::ptr::with_exposed_provenance(self.bias as usize);
                let length = (self.range.end - self.bias) as usize;
                // SAFETY: the kernel maps it readable, from its header at `bias` on, as long as the
                // process exists.
                return Some(Image::Memory(unsafe { std::slice::from_raw_parts(start, length) }.to_vec()));
            }
            path => Path::new(OsStr::from_bytes(path)),
        };
        let needed =
            self.segments.iter().map(|segment| segment.offset + segment.memory.end - segment.memory.start);
        Mapping::of(&File::open(path).ok()?, usize::try_from(needed.max()?).ok()?).map(Image::File)
    }
}

/// The numbers of objects that the loader has loaded and unloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    loaded: u64,
    unloaded: u64,
}

/// How often the loader has changed its list.
pub(super) fn changes() -> Changes {
    let mut changes = Changes::default();
    visit(|info| {
        changes = Changes { loaded: info.dlpi_adds, unloaded: info.dlpi_subs };
        1
    });
    changes
}

/// All loaded objects.
pub(super) fn loaded() -> Vec<Object> {
    let mut objects = Vec::new();
    visit(|info| {
        objects.extend(object(info));
        0
    });
    objects
}

fn object(info: &libc::dl_phdr_info) -> Option<Object> {
    // SAFETY: the loader's name is a C string or null.
    let path = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
    let path = path.to_bytes();
    if !path.is_empty() && !path.contains(&b'/') && path != VDSO {
        return None;
    }
    // SAFETY: the loader's program headers, in the number that it reports.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let at = |header: &libc::Elf64_Phdr| info.dlpi_addr.wrapping_add(header.p_vaddr);
    let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let segments = loads().map(|header| Segment {
        memory: at(header)..at(header).saturating_add(header.p_filesz),
        offset: header.p_offset,
        is_executable: header.p_flags & libc::PF_X != 0,
    });
    let (start, end) =
        (loads().map(at).min()?, loads().map(|header| at(header).saturating_add(header.p_memsz)).max()?);
    let unwind = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME).map(at);
    Some(Object {
        path: path.to_vec(),
        bias: info.dlpi_addr,
        range: start..end,
        segments: segments.collect(),
        unwind,
    })
}

type Visit<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info) -> c_int;

/// Calls `visit` for the loaded objects until it returns something else than 0. The loader holds
/// its lock meanwhile: `visit` must call neither the loader nor code of the program.
fn visit(mut visit: impl FnMut(&libc::dl_phdr_info) -> c_int) {
    unsafe extern "C" fn call(info: *mut libc::dl_phdr_info, _: libc::size_t, visit: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid `info`, and `visit` points to the closure passed below.
        unsafe { (*visit.cast::<Visit<'_>>())(&*info) }
    }
    let mut visit: Visit<'_> = &mut visit;
    // SAFETY: the callback has the right type, and the closure lives during the call. A panic in it
    // does not unwind into the loader, but aborts, since the callback is `extern "C"`.
    unsafe { libc::dl_iterate_phdr(Some(call), std::ptr::from_mut(&mut visit).cast()) };
}
