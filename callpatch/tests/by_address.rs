//! The paper's interface: calls identified by their addresses, in text that may be replaced.

mod common;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use callpatch::{CallSite, Clobbers, Error, Shape, Toggle, activate_call, deactivate_call};
use common::{function, with_model, with_window};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
use nix::sys::wait::{WaitStatus, waitpid};
use wordpatch::{FetchWindow, TMax, TextAccess, WaitPolicy};

#[test]
fn a_call_is_switched_and_retargeted_by_its_address() {
    let _model = with_window(FetchWindow::Bytes8);
    for shape in [Shape::Call, Shape::IndirectCall, Shape::Jump, Shape::IndirectJump] {
        for offset in 0..8 {
            let function = function(shape, offset);
            let operand = |target: usize| target.wrapping_sub(function.site + shape.len()) as i32;
            // SAFETY: text that belongs to the test, correct with and without its call, to either
            // target.
            unsafe {
                assert_eq!(deactivate_call(function.site).unwrap(), Toggle::Changed);
                assert_eq!(deactivate_call(function.site).unwrap(), Toggle::Unchanged);
                assert_eq!(function.run(), [0, 0]);
                assert_eq!(
                    activate_call(function.site, operand(function.targets[0])).unwrap(),
                    Toggle::Changed
                );
                assert_eq!(
                    activate_call(function.site, operand(function.targets[0])).unwrap(),
                    Toggle::Unchanged
                );
                assert_eq!(function.run(), [1, 0]);
                assert_eq!(
                    activate_call(function.site, operand(function.targets[1])).unwrap(),
                    Toggle::Changed
                );
                assert_eq!(function.run(), [0, 1]);
                // The site is kept with its new operand.
                assert_eq!(
                    activate_call(function.site, operand(function.targets[1])).unwrap(),
                    Toggle::Unchanged
                );
            }
        }
    }
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn callee() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// At the start of a quadword, where a NOP can become a call.
const SITE: usize = 8;
const ENTRY: usize = SITE - 4;
const THUNK: usize = 32;
const ACTIVE: [u8; 5] = [0xe8, (THUNK - SITE - 5) as u8, 0, 0, 0];
const INACTIVE: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// The distance of a copy of the function whose site is active.
const SECOND: usize = 64;

/// Maps a page over `place`, or anywhere: `sub rsp, 8`, these bytes, `add rsp, 8; ret`; at
/// [`THUNK`], a jump to `callee`; the same function with an active call and its jump at [`SECOND`].
fn map(place: Option<usize>, site: [u8; 5]) -> usize {
    let flags = MapFlags::MAP_PRIVATE | if place.is_some() { MapFlags::MAP_FIXED } else { MapFlags::empty() };
    let place = place.and_then(NonZeroUsize::new);
    let (length, read_write) = (4096.try_into().unwrap(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let mut code = vec![];
    for (start, site) in [(0, site), (SECOND, ACTIVE)] {
        code.resize(start + ENTRY, 0xcc);
        code.extend([0x48, 0x83, 0xec, 8]);
        code.extend(site);
        code.extend([0x48, 0x83, 0xc4, 8, 0xc3]);
        code.resize(start + THUNK, 0xcc);
        code.extend([0xff, 0x25, 0, 0, 0, 0]);
        code.extend((callee as *const () as usize).to_le_bytes());
    }
    // SAFETY: a new page, replacing one that belongs to the test.
    unsafe {
        let page = mmap_anonymous(place, length, read_write, flags).unwrap();
        std::ptr::copy_nonoverlapping(code.as_ptr(), page.as_ptr().cast(), code.len());
        mprotect(page, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC).unwrap();
        page.as_ptr() as usize
    }
}

fn calls_of(page: usize) -> u32 {
    CALLS.store(0, Ordering::Relaxed);
    // SAFETY: the page holds a function that takes and returns nothing.
    let run: extern "C" fn() = unsafe { std::mem::transmute(page + ENTRY) };
    run();
    CALLS.load(Ordering::Relaxed)
}

/// A library that was unloaded and loaded again at the same address, in all four states: a toggle
/// reaches the current text.
#[test]
fn a_toggle_reaches_text_that_was_mapped_again() {
    let _model = with_window(FetchWindow::Bytes8);
    let offset = ACTIVE[1] as i32;
    for was_active in [true, false] {
        for (is_active, bytes) in [(true, ACTIVE), (false, INACTIVE)] {
            for activate in [true, false] {
                let page = map(None, ACTIVE);
                let site = page + SITE;
                // SAFETY: text that belongs to the test, correct with and without its call.
                unsafe {
                    deactivate_call(site).unwrap();
                    if was_active {
                        activate_call(site, offset).unwrap();
                    }
                    assert_eq!(map(Some(page), bytes), page);
                    let toggled = if activate { activate_call(site, offset) } else { deactivate_call(site) };
                    let what = format!("was {was_active}, is {is_active}, to {activate}: {toggled:?}");
                    if !is_active && !activate {
                        // A NOP is recognized as a call only if its target is known.
                        assert!(
                            matches!(toggled, Ok(Toggle::Unchanged) | Err(Error::NotACall { .. })),
                            "{what}"
                        );
                    } else {
                        let expected =
                            if is_active == activate { Toggle::Unchanged } else { Toggle::Changed };
                        assert_eq!(toggled.unwrap(), expected, "{what}");
                    }
                    assert_eq!(calls_of(page), u32::from(activate), "{what}");
                    wordpatch::text::forget(&(page..page + 4096));
                    nix::sys::mman::munmap(std::ptr::NonNull::new(page as *mut libc::c_void).unwrap(), 4096)
                        .unwrap();
                }
            }
        }
    }
}

/// A page of text is replaced by a copy of the original one while its alias is known. A call that
/// was not used before is the same in both.
#[test]
fn a_site_is_decoded_in_text_that_was_mapped_again() {
    let _model = with_window(FetchWindow::Bytes8);
    let again = |first: [u8; 5], then: [u8; 5]| {
        let page = map(None, first);
        // SAFETY: also below: text that belongs to the test, correct with and without its calls.
        unsafe { deactivate_call(page + SECOND + SITE) }.unwrap();
        assert_eq!(map(Some(page), then), page);
        page
    };
    for access in [TextAccess::Alias, TextAccess::Private] {
        wordpatch::text::set_access(access);
        let page = again(ACTIVE, ACTIVE);
        // SAFETY: as above.
        assert_eq!(unsafe { deactivate_call(page + SITE) }.unwrap(), Toggle::Changed);
        assert_eq!([page, page + SECOND].map(calls_of), [0, 1]);
        let page = again(INACTIVE, INACTIVE);
        // SAFETY: as above.
        assert_eq!(unsafe { activate_call(page + SITE, ACTIVE[1].into()) }.unwrap(), Toggle::Changed);
        assert_eq!(calls_of(page), 1);
        // Different instructions, without the table.
        let page = again(INACTIVE, ACTIVE);
        // SAFETY: as above.
        let site = unsafe { CallSite::decode(page + SITE, Clobbers::Nothing) }.unwrap();
        assert_eq!((site.deactivate().unwrap(), calls_of(page)), (Toggle::Changed, 0));
        let page = again(ACTIVE, INACTIVE);
        // SAFETY: as above.
        let site = unsafe { CallSite::at_nop(page + SITE, page + THUNK) }.unwrap();
        assert_eq!((site.activate().unwrap(), calls_of(page)), (Toggle::Changed, 1));
    }
}

/// Two calls in one text that is mapped again: the text found for the first is kept for the second.
#[test]
fn text_that_was_mapped_again_is_found_once() {
    let _model = with_window(FetchWindow::Bytes8);
    let length = (4 * 4096).try_into().unwrap();
    // SAFETY: a new mapping at an address chosen by the kernel.
    let around =
        unsafe { mmap_anonymous(None, length, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) }.unwrap();
    let pages = [1, 2].map(|number| around.addr().get() + number * 4096);
    let view = || {
        // SAFETY: the page belongs to the test, and stays mapped.
        unsafe { wordpatch::TextRef::resolve(pages[0], 2 * 4096) }.expect("one mapping").writable_view()
    };
    for _ in 0..2 {
        for page in pages {
            map(Some(page), ACTIVE);
        }
        let mut views = Vec::new();
        for page in pages {
            // SAFETY: also below: text that belongs to the test, correct with and without its call.
            assert_eq!(unsafe { deactivate_call(page + SITE) }.unwrap(), Toggle::Changed);
            assert_eq!(calls_of(page), 0);
            views.push(view());
        }
        for page in pages {
            let operand = (THUNK - SITE - 5) as i32;
            // SAFETY: as above.
            assert_eq!(unsafe { activate_call(page + SITE, operand) }.unwrap(), Toggle::Changed);
            assert_eq!(calls_of(page), 1);
            views.push(view());
        }
        assert!(views.iter().all(|view| *view == views[0]), "{views:?}");
    }
}

#[test]
fn an_instruction_that_is_not_a_call_is_refused() {
    let _model = with_window(FetchWindow::Bytes8);
    let page = map(None, [0xb8, 1, 2, 3, 4]);
    // SAFETY: nothing is written.
    unsafe {
        assert!(matches!(deactivate_call(page + SITE), Err(Error::NotACall { .. })));
        assert!(matches!(activate_call(page + SITE, 0), Err(Error::NotACall { .. })));
    }
}

/// A thread is almost always in the middle of a retargeting, which holds the table's lock, when
/// another one forks.
#[test]
fn a_forked_child_finds_no_lock_held() {
    /// Milliseconds.
    const T_MAX: TMax = TMax(10_000_000);
    let _model = with_model(FetchWindow::Bytes8, Some(T_MAX), WaitPolicy::TMax);
    let [busy, other] = [5, 8].map(|offset| function(Shape::Call, offset));
    let operands = busy.targets.map(|target| target.wrapping_sub(busy.site + busy.shape.len()) as i32);
    let (is_busy, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                is_busy.store(round > 0, Ordering::Relaxed);
                // SAFETY: text that belongs to the test, correct with and without its call.
                unsafe { activate_call(busy.site, operands[round % 2]) }.unwrap();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        while !is_busy.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let ended = [(); 3].map(|()| {
            // SAFETY: the child uses only this crate, and ends by `_exit`.
            match unsafe { nix::unistd::fork() }.unwrap() {
                nix::unistd::ForkResult::Child => {
                    nix::unistd::alarm::set(10);
                    // SAFETY: as above. Whether the text is still the parent's does not matter.
                    let _ = unsafe { deactivate_call(other.site) };
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) }
                }
                nix::unistd::ForkResult::Parent { child } => waitpid(child, None).map(|ended| (ended, child)),
            }
        });
        stop.store(true, Ordering::Relaxed);
        for ended in ended {
            let (ended, child) = ended.unwrap();
            assert_eq!(ended, WaitStatus::Exited(child, 0));
        }
    });
}
