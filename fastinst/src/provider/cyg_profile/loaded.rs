//! The objects that the dynamic loader has mapped.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A loaded object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadedObject {
    pub(super) path: PathBuf,
    /// The difference between an address in memory and the address in the file.
    pub(super) bias: usize,
    /// Its range of addresses, from the lowest to the highest.
    pub(super) range: Range<usize>,
    /// Its executable segments.
    pub(super) text: Vec<Range<usize>>,
    /// Its readable segments, as far as they are mapped from the file.
    pub(super) segments: Vec<Range<usize>>,
    /// The address of its unwind table, if it has one.
    pub(super) unwind: Option<usize>,
    /// Whether it was loaded with the program, so that it is never unloaded.
    pub(super) stays: bool,
}

/// The numbers of objects that the loader has loaded and unloaded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    loads: u64,
    pub(super) unloads: u64,
}

type Visit<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info) -> c_int;

fn visit(mut visit: impl FnMut(&libc::dl_phdr_info) -> c_int) {
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

/// The current values of the loader's counters.
pub(super) fn counters() -> Counters {
    let mut counters = Counters::default();
    visit(|info| {
        counters = Counters { loads: info.dlpi_adds, unloads: info.dlpi_subs };
        1
    });
    counters
}

/// All loaded objects that have a file.
///
/// The list begins with the objects that were loaded with the program, including the loader itself,
/// and ends with those that were opened later.
pub(super) fn objects() -> Vec<LoadedObject> {
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
    });
    objects[..of_program].iter_mut().for_each(|object| object.stays = true);
    objects
}

/// Runs `act` if this object is loaded, and keeps it loaded meanwhile: the loader makes the call
/// while it holds the lock that it needs for unmapping objects. `act` must call neither the loader
/// nor code of the program.
pub(super) fn while_loaded<R>(wanted: &LoadedObject, act: impl FnOnce() -> R) -> Option<R> {
    let mut act = Some(act);
    let mut result = None;
    visit(|info| {
        let is_wanted = info.dlpi_addr as usize == wanted.bias
            && object(info).is_some_and(|object| LoadedObject { stays: wanted.stays, ..object } == *wanted);
        if is_wanted && let Some(act) = act.take() {
            result = Some(act());
        }
        is_wanted.into()
    });
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

fn object(info: &libc::dl_phdr_info) -> Option<LoadedObject> {
    // SAFETY: the loader's name is a C string or null.
    let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
    let path = match name.to_bytes() {
        b"" => executable()?,
        // The vDSO is not a file.
        name if !name.contains(&b'/') => return None,
        name => PathBuf::from(OsStr::from_bytes(name)),
    };
    // SAFETY: the loader's program headers, in the number that it reports.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr as usize;
    let loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let range_of = |header: &libc::Elf64_Phdr| {
        let start = bias + header.p_vaddr as usize;
        start..start + header.p_memsz as usize
    };
    let range = loads.clone().map(range_of).reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))?;
    let text = loads.filter(|header| header.p_flags & libc::PF_X != 0).map(range_of).collect();
    let filled = |header: &libc::Elf64_Phdr| {
        let start = bias + header.p_vaddr as usize;
        start..start + header.p_filesz as usize
    };
    let readable =
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_R != 0);
    let segments = readable.map(filled).collect();
    let unwind = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    let unwind = unwind.map(|header| bias + header.p_vaddr as usize);
    Some(LoadedObject { path, bias, range, text, segments, unwind, stays: false })
}
