//! Text that is unmapped while it is patched, and mapped again: pages that are unmapped or
//! replaced, and a library that is closed and reopened. In-flight patches report it, the new
//! mapping is not written, and the next patch finds the new text.
//!
//! The writable alias of unmapped text remains as an empty mapping, the number of which is limited
//! per process. The text is therefore unmapped at most [`CYCLES`] times; then the last one is
//! patched for the rest of the run.

use std::ffi::CString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::thread;

use tests::{Compiler, compile};
use wordpatch::{Error, Finisher, Outstanding, patch_all, start_patch_all, text};

use crate::executor::run_once;
use crate::run::{Kind, Run, Worker};
use crate::sites::{self, Change, LENGTH, Value, bytes_at, holds, offset_of};

const CYCLES: usize = 3_000;
const SITES: usize = 10;

/// Length of the pages, a multiple of the page size.
fn length() -> usize {
    (offset_of(SITES) + 16).next_multiple_of(4096)
}

pub(crate) fn run(run: &Run) {
    let library = compile("fixtures/straddlers.c", &["-shared", "-fPIC"], Compiler::Gcc);
    let library = CString::new(library.as_os_str().as_bytes()).expect("a path");
    thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || map_round(run, number));
        }
        scope.spawn(|| load_round(run, &library));
        scope.spawn(|| crate::defect::inject(run, &sites::make(1)));
    });
}

/// In-flight patches and their expected results.
struct Begun {
    changes: Vec<Change>,
    outstanding: Option<Outstanding>,
}

/// Starts patches of all sites, which hold `from`, and possibly leaves them to the finisher.
fn begin(worker: &mut Worker<'_>, sites: &[usize], from: Value, finisher: &Finisher) -> Begun {
    let to = from.other(&mut worker.random);
    let changes: Vec<Change> =
        worker.random.some_of(sites).into_iter().map(|site| Change::new(site, from, to)).collect();
    let patches: Vec<_> = changes.iter().map(Change::patch).collect();
    // SAFETY: each site is one instruction that may hold any value, and no thread here blocks
    // SIGTRAP. The text may be unmapped.
    let outstanding = unsafe { start_patch_all(&patches) };
    if worker.random.coin() {
        let given = finisher.take_over(&outstanding);
        worker.check(given.is_ok(), Kind::Lost, || format!("{given:?}"));
    } else if worker.random.coin() {
        let furthered = outstanding.try_finish();
        worker.check(furthered.is_ok(), Kind::Lost, || format!("{furthered:?}"));
    }
    Begun { changes, outstanding: Some(outstanding) }
}

impl Begun {
    /// Finishes them after the text was unmapped.
    fn end(mut self, worker: &Worker<'_>) {
        let Some(outstanding) = self.outstanding.take() else { return };
        for (result, change) in outstanding.finish_all().into_iter().zip(&self.changes) {
            worker.check(matches!(result, Ok(()) | Err(Error::TextGone { .. })), Kind::Lost, || {
                format!("{result:?} of unmapped text, at {:#x}", change.site)
            });
        }
        worker.toggled(self.changes.len() as u64);
    }
}

/// Patches sites that hold `from` to another value and back, and executes them.
fn patch_there_and_back(worker: &mut Worker<'_>, sites: &[usize], from: Value) {
    run_once(worker, sites);
    let to = from.other(&mut worker.random);
    for (old, new) in [(from, to), (to, from)] {
        let changes: Vec<Change> = sites.iter().map(|site| Change::new(*site, old, new)).collect();
        let patches: Vec<_> = changes.iter().map(Change::patch).collect();
        // SAFETY: as in `begin`; the text stays mapped during the call.
        for (result, site) in unsafe { patch_all(&patches) }.iter().zip(sites) {
            worker.check(result.is_ok() && holds(*site, new), Kind::Lost, || {
                format!("{result:?} at {site:#x}, {new:?} wanted, {:02x?} found", bytes_at(*site))
            });
        }
        worker.toggled(sites.len() as u64);
        run_once(worker, sites);
    }
}

/// Notifies wordpatch that the text was unmapped, by one of the interfaces; or leaves it to detect
/// that.
fn forget(worker: &mut Worker<'_>, range: &Range<usize>) {
    match worker.random.below(3) {
        0 => text::forget(range),
        // SAFETY: everything that was mapped there has been unmapped.
        1 => unsafe { text::release(range) },
        _ => {}
    }
}

/// The mapping that replaces the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    Data,
    Text(Value),
}

const DATA: u8 = 0x77;

/// Free address space for the pages, with an inaccessible page on either side: adjacent text of
/// another owner would be part of the same mapping, and be unmapped when ours is made writable.
fn reserve() -> usize {
    const PAGE: usize = 4096;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address chosen by the kernel.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), length() + 2 * PAGE, libc::PROT_NONE, kind, -1, 0) };
    assert!(start != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    start as usize + PAGE
}

/// Maps `next` at `address`, which belongs to this thread. Returns the address.
fn map(address: usize, next: Next) -> usize {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let protection = if next == Next::Nothing { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
    let hint = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: replaces a mapping that belongs to this thread and is not executed.
    let start = unsafe { libc::mmap(hint, length(), protection, kind, -1, 0) };
    assert!(start != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    if next == Next::Nothing {
        return start as usize;
    }
    // SAFETY: just mapped writable, and known to no other thread.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), length()) };
    match next {
        Next::Text(value) => {
            sites::write(bytes, SITES, value);
            // SAFETY: the mapping is ours.
            let sealed = unsafe { libc::mprotect(start, length(), libc::PROT_READ | libc::PROT_EXEC) };
            assert_eq!(sealed, 0, "mprotect: {}", std::io::Error::last_os_error());
        }
        Next::Data | Next::Nothing => bytes.fill(DATA),
    }
    start as usize
}

/// Data at the address of patched text.
pub(crate) fn data_over_patched_text(worker: &mut Worker<'_>) -> usize {
    let start = map(reserve(), Next::Text(Value::FIRST));
    let sites: Vec<usize> = (0..SITES).map(|number| start + offset_of(number)).collect();
    patch_there_and_back(worker, &sites, Value::FIRST);
    map(start, Next::Data)
}

/// Whether it is unchanged.
pub(crate) fn is_untouched(data: usize) -> bool {
    // SAFETY: callers pass memory that `map` has mapped as data.
    unsafe { std::slice::from_raw_parts(data as *const u8, length()) }.iter().all(|byte| *byte == DATA)
}

/// Pages at one address that are replaced by other text, data, or nothing.
fn map_round(run: &Run, number: usize) {
    let mut worker = run.worker(format!("mapper {number}"));
    let finisher = Finisher::start().expect("a finisher");
    let mut value = Value::FIRST;
    let mut cycles = 0;
    let start = map(reserve(), Next::Text(value));
    let range = start..start + length();
    let sites: Vec<usize> = (0..SITES).map(|number| start + offset_of(number)).collect();
    while worker.continues() {
        patch_there_and_back(&mut worker, &sites, value);
        if cycles == CYCLES {
            continue;
        }
        cycles += 1;
        let begun = begin(&mut worker, &sites, value, &finisher);
        value = if worker.random.coin() { value.other(&mut worker.random) } else { value };
        let text = Next::Text(value);
        let next = [Next::Nothing, Next::Data, text][worker.random.below(3)];
        map(start, next);
        begun.end(&worker);
        forget(&mut worker, &range);
        check_untouched(&worker, start, next);
        if next != text {
            map(start, text);
        }
    }
}

/// Checks that stores of patches of the previous text did not reach the new mapping.
fn check_untouched(worker: &Worker<'_>, start: usize, next: Next) {
    match next {
        Next::Nothing => {}
        Next::Data => {
            worker.check(is_untouched(start), Kind::Lost, || format!("data at {start:#x} was written"));
        }
        Next::Text(value) => {
            for site in (0..SITES).map(|number| start + offset_of(number)) {
                worker.check(holds(site, value), Kind::Lost, || {
                    format!("new text at {site:#x} was written: {:02x?}", bytes_at(site))
                });
            }
        }
    }
}

/// A library that is opened, patched, and closed in the middle of a patch.
fn load_round(run: &Run, path: &CString) {
    let mut worker = run.worker("loader");
    let finisher = Finisher::start().expect("a finisher");
    let mut cycles = 0;
    while worker.continues() {
        if cycles == CYCLES {
            thread::yield_now();
            continue;
        }
        cycles += 1;
        // SAFETY: the library has no constructors.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "dlopen of {path:?}");
        // SAFETY: the library has this symbol.
        let start = unsafe { libc::dlsym(library, c"straddlers".as_ptr()) } as usize;
        assert_ne!(start, 0, "dlsym");
        // As in the library's source: at every split of a line, and not split by any window.
        let sites: Vec<usize> = (0..LENGTH)
            .map(|number| start + 128 * number + if number == 0 { 8 } else { 64 - number })
            .collect();
        patch_there_and_back(&mut worker, &sites, Value::FIRST);
        let begun = begin(&mut worker, &sites, Value::FIRST, &finisher);
        // SAFETY: the library is not executed.
        let closed = unsafe { libc::dlclose(library) };
        worker.check(closed == 0, Kind::Other, || "dlclose".to_owned());
        begun.end(&worker);
        forget(&mut worker, &(start..start + 128 * LENGTH));
    }
}
