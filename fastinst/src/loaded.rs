//! The objects that the dynamic loader has mapped: the executable, its libraries, and the vDSO.
//!
//! All functions call `dl_iterate_phdr(3)`, which blocks while the loader maps or unmaps an object,
//! and blocks the loader during the call. They must not be called by a signal handler. In a child
//! that was forked while another thread was using the loader, that would last for ever; there they
//! return `None`.

mod lock;

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::mapped;

/// An object that the dynamic loader has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedObject {
    /// The path of the object's file, as the loader knows it, or that of the mapping if the loader
    /// has a relative one, which is no longer correct once the program changes its directory; for
    /// the vDSO, which has no file, its name.
    pub path: PathBuf,
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The load bias: an address in memory minus the corresponding address in the file.
    pub bias: usize,
    /// The object's address range in memory, from the lowest to the highest address.
    pub range: Range<usize>,
    /// The addresses in memory of the executable segments.
    pub text: Vec<Range<usize>>,
    /// The readable segments.
    pub segments: Vec<Segment>,
    /// The address in memory of the unwind table (`PT_GNU_EH_FRAME`), if there is one.
    pub unwind: Option<usize>,
    /// Whether the object was loaded with the program, and is therefore never unloaded.
    pub stays: bool,
}

/// The kinds of loaded objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// The program itself.
    Executable,
    /// A shared library, or the loader.
    Library,
    /// The code that the kernel maps into each process, `vdso(7)`.
    Vdso,
}

/// The part of a readable segment that is mapped from the object's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The segment's addresses in memory.
    pub memory: Range<usize>,
    /// The segment's offset in the file, in bytes.
    pub offset: u64,
}

/// The loader's name of the vDSO.
const VDSO: &[u8] = b"linux-vdso.so.1";

/// The numbers of objects that the loader has loaded and unloaded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of objects loaded.
    pub loads: u64,
    /// The number of objects unloaded.
    pub unloads: u64,
}

type Visit<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info) -> c_int;

/// Calls `visit` for each object until it returns another number than 0. `None` if this is a forked
/// child that cannot ask the loader.
fn visit(visit: impl FnMut(&libc::dl_phdr_info) -> c_int) -> Option<()> {
    if !lock::is_followed() {
        follow_forks();
    }
    (!lock::is_lost()).then(|| iterate(visit))
}

/// Finds the loader's lock, so that forked children know whether it is locked.
fn follow_forks() {
    let around = lock::around();
    let mut held = Vec::new();
    iterate(|info| {
        let mut writable = headers(info)
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0)
            .map(|header| addresses(info, header, header.p_memsz));
        let Some(memory) = writable.find(|memory| memory.contains(&around)) else { return 0 };
        // SAFETY: a segment of the loader, which is never unmapped.
        held = unsafe { lock::held_in(around..memory.end) };
        1
    });
    lock::follow(held);
}

/// Whether the calling thread is in a callback of `dl_iterate_phdr(3)`, in which it keeps all
/// threads that use this module waiting.
pub(crate) fn is_locked_by_caller() -> bool {
    lock::is_held_by_caller()
}

/// Whether this is a forked child that cannot ask the loader.
pub(crate) fn is_lost() -> bool {
    lock::is_lost()
}

fn iterate(mut visit: impl FnMut(&libc::dl_phdr_info) -> c_int) {
    unsafe extern "C" fn call(
        info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid `info`, and `visit` points to the closure passed below.
        unsafe { (*visit.cast::<Visit<'_>>())(&*info) }
    }
    let mut visit: Visit<'_> = &mut visit;
    // SAFETY: the callback has the right type, and the closure lives during the call. A panic in it
    // does not unwind into the loader, but aborts, since the callback is `extern "C"`.
    unsafe { libc::dl_iterate_phdr(Some(call), std::ptr::from_mut(&mut visit).cast()) };
}

/// The current values of the loader's counters. `None` in a forked child that cannot ask the
/// loader: nothing is loaded or unloaded there.
#[must_use]
pub fn counters() -> Option<Counters> {
    let mut counters = Counters::default();
    visit(|info| {
        counters = Counters { loads: info.dlpi_adds, unloads: info.dlpi_subs };
        1
    })?;
    Some(counters)
}

/// All objects that are loaded now.
///
/// The list begins with the objects that were loaded with the program, including the loader itself,
/// followed by those that were opened later. `None` in a forked child that cannot ask the loader.
#[must_use]
pub fn objects() -> Option<Vec<LoadedObject>> {
    // SAFETY: reads the auxiliary vector.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) };
    let mut objects: Vec<LoadedObject> = Vec::new();
    let mut of_program = 0;
    visit(|info| {
        if loader != 0 && info.dlpi_addr == loader {
            of_program = objects.len();
        }
        objects.extend(object(info));
        0
    })?;
    objects[..of_program].iter_mut().for_each(|object| object.stays = true);
    Some(objects)
}

/// Runs `act` if this object is loaded, and keeps it loaded during the call: the loader makes the
/// call while it holds the lock that it needs for unmapping objects. `act` must call neither the
/// loader nor code of the program.
///
/// In a forked child that cannot ask the loader, only the objects that were loaded with the program
/// are certain to be loaded: another one may have been half unmapped at the fork.
pub(crate) fn while_loaded<R>(wanted: &LoadedObject, act: impl FnOnce() -> R) -> Option<R> {
    if lock::is_lost() {
        return wanted.stays.then(act);
    }
    let mut act = Some(act);
    let mut result = None;
    visit(|info| {
        let is_wanted = info.dlpi_addr as usize == wanted.bias
            && object(info).is_some_and(|object| LoadedObject { stays: wanted.stays, ..object } == *wanted);
        if is_wanted && let Some(act) = act.take() {
            result = Some(act());
        }
        is_wanted.into()
    })?;
    result
}

/// The file of the executable. It is cached, because the kernel no longer reports it once the main
/// thread has ended.
fn executable() -> Option<PathBuf> {
    static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();
    if EXECUTABLE.get().is_none() {
        let _ = EXECUTABLE.set(std::fs::read_link("/proc/self/exe").ok()?);
    }
    EXECUTABLE.get().cloned()
}

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the loader's program headers, in the number that it reports.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

/// The addresses in memory of the first `size` bytes of a segment.
fn addresses(info: &libc::dl_phdr_info, header: &libc::Elf64_Phdr, size: u64) -> Range<usize> {
    let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
    start..start.saturating_add(size as usize)
}

fn object(info: &libc::dl_phdr_info) -> Option<LoadedObject> {
    // SAFETY: the loader's name is a C string or null.
    let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
    let name = name.to_bytes();
    let (kind, path) = match name {
        b"" => (ObjectKind::Executable, executable()?),
        VDSO => (ObjectKind::Vdso, PathBuf::from(OsStr::from_bytes(name))),
        _ => (ObjectKind::Library, PathBuf::from(OsStr::from_bytes(name))),
    };
    let is_relative = kind == ObjectKind::Library && path.is_relative();
    let headers = headers(info);
    let bias = info.dlpi_addr as usize;
    let loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let in_memory = |header: &libc::Elf64_Phdr| addresses(info, header, header.p_memsz);
    let range = loads.clone().map(in_memory).reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))?;
    let with = |flag| loads.clone().filter(move |header| header.p_flags & flag != 0);
    let path = if is_relative { absolute(&range).unwrap_or(path) } else { path };
    let text = with(libc::PF_X).map(in_memory).collect();
    let segment = |header: &libc::Elf64_Phdr| Segment {
        memory: addresses(info, header, header.p_filesz),
        offset: header.p_offset,
    };
    let segments = with(libc::PF_R).map(segment).collect();
    let unwind = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    let unwind = unwind.map(|header| bias.wrapping_add(header.p_vaddr as usize));
    Some(LoadedObject { path, kind, bias, range, text, segments, unwind, stays: false })
}

/// The path of the file that is mapped at these addresses. It stays the same when the file is
/// removed, as the path of a loaded object does.
fn absolute(range: &Range<usize>) -> Option<PathBuf> {
    let path = mapped::file_in(range)?;
    let bytes = path.as_os_str().as_bytes();
    Some(PathBuf::from(OsStr::from_bytes(bytes.strip_suffix(mapped::DELETED).unwrap_or(bytes))))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::{ObjectKind, objects, while_loaded};

    #[test]
    fn relative_paths_are_those_of_the_mappings() {
        let folder = tempfile::tempdir().expect("a directory");
        let library = folder.path().canonicalize().expect("it exists").join("relative.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&library);
        assert!(compiler.status().expect("a compiler").success());
        let mut here = std::env::current_dir().expect("a directory");
        let mut relative = std::path::PathBuf::new();
        while here.pop() {
            relative.push("..");
        }
        relative.push(library.strip_prefix("/").expect("it is absolute"));
        let name = CString::new(relative.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: a library without constructors, whose name is a C string.
        assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null());
        for is_removed in [false, true] {
            if is_removed {
                std::fs::remove_file(&library).expect("it exists");
            }
            let objects = objects().expect("no fork");
            let object = objects.iter().find(|object| object.path == library).expect("it is loaded");
            assert_eq!(while_loaded(object, || 7), Some(7));
        }
    }

    /// The addresses are those of the process's map.
    #[test]
    fn finds_the_executable_the_vdso_and_the_libraries() {
        let objects = objects().expect("no fork");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the map of this process");
        let of_kind = |kind| objects.iter().filter(move |object| object.kind == kind);
        let executable = of_kind(ObjectKind::Executable).next().expect("an executable");
        let here = finds_the_executable_the_vdso_and_the_libraries as fn() as usize;
        assert!(executable.text.iter().any(|text| text.contains(&here)));
        let vdso = of_kind(ObjectKind::Vdso).next().expect("a vDSO");
        assert!(maps.lines().any(|line| line.starts_with(&format!("{:x}-", vdso.range.start)) && line.ends_with("[vdso]")));
        assert!(of_kind(ObjectKind::Library).count() > 0);
        for object in of_kind(ObjectKind::Library).chain([executable]) {
            let path = object.path.canonicalize().expect("the file of an object");
            let (path, start) = (path.to_str().expect("a path in UTF-8"), object.range.start & !0xfff);
            let is_start = |line: &str| line.starts_with(&format!("{start:x}-")) && line.ends_with(path);
            assert!(maps.lines().any(is_start), "{path} at {start:#x} is not in\n{maps}");
            assert_eq!(object.segments[0].offset, 0, "the first segment has the header of the file");
            assert_eq!(while_loaded(object, || 7), Some(7));
        }
    }
}
