//! Decoding and toggling of sites that are not executed concurrently: changes, refusals, reports.

mod common;

use callpatch::{CallSite, Clobbers, Error, Shape, State, Strategy, Toggle};
use common::{SHAPES, force, function, functions, with_window};
use wordpatch::{Bytes, FetchWindow, TextRef, WaitPolicy};

fn decode(address: usize, clobbers: Clobbers) -> Result<CallSite, Error> {
    // SAFETY: text that belongs to the test, correct with and without its calls.
    unsafe { CallSite::decode(address, clobbers) }
}

#[test]
fn every_shape_at_every_offset_is_switched_off_and_on() {
    let _model = with_window(FetchWindow::Bytes8);
    for window in FetchWindow::ALL {
        force(window, None, WaitPolicy::Membarrier);
        for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
            let places: Vec<_> =
                SHAPES.iter().flat_map(|shape| (0..64).map(|offset| (*shape, offset))).collect();
            for function in functions(&places) {
                let site = decode(function.site, clobbers).unwrap();
                let before = function.bytes();
                assert_eq!((site.shape(), site.target()), (function.shape, function.targets[0]), "{site:?}");
                assert_eq!((site.state().unwrap(), function.run()), (State::Active, [1, 0]), "{site:?}");
                assert_eq!(site.activate().unwrap(), Toggle::Unchanged);
                for toggle in [Toggle::Changed, Toggle::Unchanged] {
                    assert_eq!(site.deactivate().unwrap(), toggle, "{site:?}");
                    assert_eq!(
                        (site.state().unwrap(), function.run()),
                        (State::Inactive, [0, 0]),
                        "{site:?}"
                    );
                }
                assert_eq!(site.activate().unwrap(), Toggle::Changed);
                assert_eq!((site.state().unwrap(), function.run()), (State::Active, [1, 0]), "{site:?}");
                assert_eq!(function.bytes(), before, "{site:?}");
            }
        }
    }
}

/// Registers that an inactive site preserves, unless it may change EAX and EDX.
#[test]
fn an_inactive_call_changes_no_more_than_it_may() {
    let _model = with_window(FetchWindow::Bytes8);
    for (clobbers, strategies) in [
        (Clobbers::Nothing, &[Strategy::Nop, Strategy::Skip, Strategy::RetIsland, Strategy::Ret][..]),
        (Clobbers::CallerSaved, &[Strategy::Nop, Strategy::Load, Strategy::Ret]),
    ] {
        let places: Vec<_> = SHAPES.iter().flat_map(|shape| (0..8).map(|offset| (*shape, offset))).collect();
        let mut met = std::collections::HashSet::new();
        for function in functions(&places) {
            let site = decode(function.site, clobbers).unwrap();
            met.insert(site.strategy());
            site.deactivate().unwrap();
            let (eax, edx): (u32, u32);
            // SAFETY: an inactive site changes at most EAX and EDX; a tail call's returns, and the
            // others are followed by an addition to RSP and a return, as their functions begin with
            // a subtraction.
            unsafe {
                let entry = if function.shape.is_tail_call() { function.site } else { function.site - 4 };
                std::arch::asm!("call {}", in(reg) entry, inout("eax") 1 => eax, inout("edx") 2 => edx, clobber_abi("C"));
            }
            if clobbers == Clobbers::Nothing || site.strategy() != Strategy::Load {
                assert_eq!((eax, edx), (1, 2), "{site:?}");
            }
        }
        assert_eq!(met, strategies.iter().copied().collect());
    }
}

#[test]
fn an_instruction_that_is_not_a_call_is_refused_and_not_changed() {
    let _model = with_window(FetchWindow::Bytes8);
    let function = function(Shape::Call, 8);
    for (offset, byte) in [(0, 0xb8), (0, 0x67), (0, 0xcc), (0, 0xc3), (0, 0x06)] {
        let old = function.write(offset, byte);
        let before = function.bytes();
        let refused = decode(function.site, Clobbers::Nothing);
        assert!(
            matches!(refused, Err(Error::NotACall { address, .. }) if address == function.site),
            "{refused:?}"
        );
        assert_eq!(function.bytes(), before);
        function.write(offset, old);
    }
    assert_eq!(function.run(), [1, 0]);
}

#[test]
fn foreign_bytes_are_reported_and_not_changed() {
    let _model = with_window(FetchWindow::Bytes8);
    let function = function(Shape::Call, 8);
    let site = decode(function.site, Clobbers::Nothing).unwrap();
    let old = function.write(4, 0x77);
    let before = function.bytes();
    let is_foreign = |error: Error| matches!(error, Error::Foreign { address, found, .. } if address == function.site && *found == *before);
    assert!(is_foreign(site.activate().unwrap_err()));
    assert!(is_foreign(site.deactivate().unwrap_err()));
    assert!(is_foreign(site.state().unwrap_err()));
    assert_eq!(function.bytes(), before);
    function.write(4, old);
    assert_eq!(site.deactivate().unwrap(), Toggle::Changed);
}

const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

#[test]
fn a_nop_becomes_a_call_inside_a_window_and_is_refused_across_one() {
    let _model = with_window(FetchWindow::Bytes8);
    for offset in 0..8 {
        let function = function(Shape::Call, offset);
        NOP.iter().enumerate().for_each(|(i, byte)| _ = function.write(i, *byte));
        // SAFETY: text that belongs to the test, correct with and without the call.
        let site = unsafe { CallSite::at_nop(function.site, function.targets[1]) };
        assert_eq!(function.bytes(), NOP, "nothing is written");
        if offset <= 3 {
            let site = site.unwrap();
            assert_eq!((site.state().unwrap(), function.run()), (State::Inactive, [0, 0]));
            assert_eq!(site.activate().unwrap(), Toggle::Changed);
            assert_eq!(function.run(), [0, 1]);
        } else {
            let is_refused =
                matches!(site, Err(Error::StraddlingNop { address }) if address == function.site);
            assert!(is_refused, "offset {offset}: {site:?}");
        }
    }
}

#[test]
fn at_nop_wants_a_nop_and_a_target_within_reach() {
    let _model = with_window(FetchWindow::Bytes8);
    let function = function(Shape::Call, 0);
    // SAFETY: nothing is written.
    let at_nop = |target| unsafe { CallSite::at_nop(function.site, target) };
    assert!(matches!(at_nop(function.targets[1]), Err(Error::NotACall { .. })));
    NOP.iter().enumerate().for_each(|(i, byte)| _ = function.write(i, *byte));
    let next = function.site + 5;
    assert_eq!(at_nop(next + i32::MAX as usize).unwrap().displacement(), i32::MAX);
    assert_eq!(at_nop(next - (1 << 31)).unwrap().displacement(), i32::MIN);
    for target in [next + (1 << 31), next - (1 << 31) - 1] {
        let refused = at_nop(target);
        assert!(
            matches!(refused, Err(Error::OutOfReach { address, target: to }) if address == function.site && to == target)
        );
    }
}

/// A call in the last bytes of its mapping: the bytes after it must not be read.
#[test]
fn a_call_at_the_end_of_its_mapping_is_decoded() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
    let _model = with_window(FetchWindow::Bytes8);
    let read_write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new pages, of which the second is made inaccessible.
    unsafe {
        let pages =
            mmap_anonymous(None, 8192.try_into().unwrap(), read_write, MapFlags::MAP_PRIVATE).unwrap();
        let start = pages.as_ptr() as usize;
        std::ptr::copy_nonoverlapping([0xe8_u8, 0, 0, 0, 0].as_ptr(), (start + 4091) as *mut u8, 5);
        mprotect(pages, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC).unwrap();
        mprotect(pages.byte_add(4096), 4096, ProtFlags::PROT_NONE).unwrap();
        let site = decode(start + 4091, Clobbers::Nothing).unwrap();
        assert_eq!(site.target(), start + 4096);
        assert_eq!(site.deactivate().unwrap(), Toggle::Changed);
    }
}

/// A call whose operand continues in the next page.
#[test]
fn a_call_across_pages_is_decoded() {
    let _model = with_window(FetchWindow::Bytes8);
    let functions = functions(&[(Shape::IndirectCall, 0); 40]);
    let end_of_page = functions[1].site.next_multiple_of(4096);
    let before = functions.iter().rev().find(|function| function.site < end_of_page).unwrap();
    // This function is no longer executed: its last bytes become the call.
    let site = end_of_page - 3;
    assert_eq!(before.site, end_of_page - 128);
    // SAFETY: text that belongs to the test.
    let text = unsafe { TextRef::resolve(site, 8) }.unwrap();
    for (offset, byte) in [0xff, 0x15, 1, 2, 3, 4].into_iter().enumerate() {
        // SAFETY: as above.
        unsafe {
            let old = text.read(offset, 1);
            text.compare_exchange(FetchWindow::Bytes8, offset, &old, &Bytes::new(&[byte]).unwrap()).unwrap();
        }
    }
    let site = decode(site, Clobbers::Nothing).unwrap();
    assert_eq!((site.shape(), site.displacement()), (Shape::IndirectCall, 0x0403_0201));
}
