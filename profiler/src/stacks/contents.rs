//! The contents of loaded objects, from their files.
//!
//! The files are mapped, without debugging information, and stay mapped as long as the objects are
//! loaded. Thus no memory is read that the program may unmap at the same time, and code is seen as
//! it was compiled, whatever has been patched.

use std::ffi::c_void;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use fastinst::internal::loaded::{LoadedObject, ObjectKind, Segment};
use fastinst::internal::mapped;

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
    /// The contents of the vDSO, which has no file.
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
        // being executed; truncating a loaded library ends every process that uses it anyway.
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

/// The segments of an object and its unwind table, each with its addresses in memory.
pub(super) struct Sections {
    pub(super) segments: Vec<(Range<u64>, Contents)>,
    pub(super) unwind_index: (Range<u64>, Contents),
    pub(super) unwind_table: (Range<u64>, Contents),
}

/// The encoding of the pointer to the unwind table in its index: relative to itself, of 4 bytes
/// (Linux Standard Base, "Exception Frames").
const RELATIVE: u8 = 0x1b;

impl Sections {
    /// The sections of this object. `None` if its file cannot be read, or has no unwind table in
    /// the form that linkers generate.
    pub(super) fn of(object: &LoadedObject) -> Option<Self> {
        let image = Arc::new(Image::of(object)?);
        let length = image.bytes().len();
        let contents = |segment: &Segment| {
            let start = usize::try_from(segment.offset).ok()?;
            let range = start..start.checked_add(segment.memory.len())?;
            let memory = segment.memory.start as u64..segment.memory.end as u64;
            (range.end <= length).then(|| (memory, Contents { image: image.clone(), range }))
        };
        let segments: Vec<_> = object.segments.iter().filter_map(contents).collect();
        let to_end = |address: u64| {
            let (memory, contents) = segments.iter().find(|(memory, _)| memory.contains(&address))?;
            let start = contents.range.start + usize::try_from(address - memory.start).ok()?;
            let range = start..contents.range.end;
            Some((address..memory.end, Contents { image: image.clone(), range }))
        };
        let unwind_index = to_end(object.unwind? as u64)?;
        let (start, bytes) = (unwind_index.0.start + 4, &unwind_index.1);
        let (RELATIVE, Some(pointer)) = (*bytes.get(1)?, bytes.get(4..8)) else { return None };
        let pointer = i32::from_le_bytes(pointer.try_into().ok()?);
        let unwind_table = to_end(start.wrapping_add_signed(pointer.into()))?;
        Some(Self { segments, unwind_index, unwind_table })
    }
}

impl Image {
    fn of(object: &LoadedObject) -> Option<Self> {
        let path = match object.kind {
            ObjectKind::Vdso => {
                let start = std::ptr::with_exposed_provenance(object.bias);
                // SAFETY: the kernel maps it readable, from its header at `bias` on, as long as the
                // process exists.
                let bytes = unsafe { std::slice::from_raw_parts(start, object.range.end - object.bias) };
                return Some(Self::Memory(bytes.to_vec()));
            }
            // This works even if the file has been moved or replaced since.
            ObjectKind::Executable => PathBuf::from("/proc/self/exe"),
            // At the path of the object, there may be another file by now. The path of a mapped
            // file that was replaced cannot be opened.
            ObjectKind::Library => mapped::file_in(&object.range).unwrap_or_else(|| object.path.clone()),
        };
        let end = |segment: &Segment| segment.offset.checked_add(segment.memory.len() as u64);
        let length = object.segments.iter().filter_map(end).max()?;
        Mapping::of(&File::open(&path).ok()?, usize::try_from(length).ok()?).map(Self::File)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_file_that_has_replaced_a_library_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let [library, link, copy] = ["library.so", "link.so", "copy.so"].map(|name| folder.join(name));
        let mut compiler = Command::new("cc");
        let source = folder.join("f.c");
        std::fs::write(&source, "int f(void) { return 1; }").unwrap();
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        assert!(compiler.status().unwrap().success());
        std::os::unix::fs::symlink(&library, &link).unwrap();
        let path = std::ffi::CString::new(link.to_str().unwrap()).unwrap();
        // SAFETY: a library without constructors.
        assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
        let object = fastinst::internal::loaded::objects()
            .into_iter()
            .flatten()
            .find(|object| object.path == link)
            .unwrap();
        assert!(Sections::of(&object).is_some());
        std::fs::copy(&library, &copy).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&copy, &link).unwrap();
        assert!(Sections::of(&object).is_some(), "the library is where it was");
        let next = folder.join("next.so");
        std::fs::copy(&library, &next).unwrap();
        std::fs::rename(&next, &library).unwrap();
        assert!(Sections::of(&object).is_none(), "there is only another library at its path");
    }
}
