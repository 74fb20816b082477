//! The list of texts that were made writable: which are kept, forgotten, and released.

mod common;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use common::generated::{PAGE, mappings, pages};
use common::{A, B, INSIDE, STRADDLING, call, functions, mov_eax, with_window};
use nix::sys::mman::munmap;
use wordpatch::text::{self, Form, TogglePair};
use wordpatch::{Bytes, Error, FetchWindow, TextAccess, TextRef, internal, patch, patch_all, start_patch};

/// The address of the writable alias of the text at an address.
fn view(address: usize) -> usize {
    // SAFETY: the tests' text stays mapped during the call.
    unsafe { TextRef::resolve(address, 5) }.unwrap().writable_view().unwrap() as usize
}

fn unmap(address: usize, pages: usize) {
    // SAFETY: pages that the test owns, which are not executed any more.
    unsafe { munmap(NonNull::new(address as *mut libc::c_void).unwrap(), pages * PAGE) }.unwrap();
}

#[test]
fn text_next_to_a_forgotten_range_is_kept() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(2);
    let before = view(start);
    for range in [start - PAGE..start, start + 2 * PAGE..start + 3 * PAGE, start..start] {
        text::forget(&range);
        assert_eq!(view(start), before, "forgot a text that does not overlap {range:x?}");
        // SAFETY: the text is not in the range.
        unsafe { text::release(&range) };
        assert_eq!(view(start), before, "released a text that does not overlap {range:x?}");
    }
    assert_eq!(call(start), A);
}

#[test]
fn text_that_overlaps_a_forgotten_range_is_forgotten() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(2);
    for range in [start - PAGE..start + 1, start + 2 * PAGE - 1..start + 3 * PAGE, start + 7..start + 8] {
        let before = view(start);
        text::forget(&range);
        assert_ne!(view(start), before, "{range:x?}");
    }
}

#[test]
fn released_text_frees_its_memory_and_can_still_be_used() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(2);
    let site = start + PAGE;
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: the text is mapped, then unmapped completely; references to it may still be used.
    unsafe {
        patch(site, &mov_eax(A), &mov_eax(B)).unwrap();
        let place = TextRef::resolve(site, 5).unwrap();
        assert_eq!(place.read(0, 5), b);
        unmap(start, 2);
        text::release(&(site..site + 1));
        assert_eq!(*place.read(0, 5), [0; 5], "the memory was not freed");
        let stored = place.compare_exchange(FetchWindow::Bytes8, 0, &b, &a);
        assert!(matches!(stored, Err(Error::Mismatch { .. })), "{stored:?}");
    }
}

#[test]
fn text_that_ends_before_the_patch_does_is_refused() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(1);
    // SAFETY: the page stays mapped.
    let resolve = |address, length| unsafe { TextRef::resolve(address, length) };
    assert!(resolve(start + PAGE - 5, 5).is_ok());
    assert!(matches!(resolve(usize::MAX, 5), Err(Error::NotMapped { address: usize::MAX })));
    let past_the_end = resolve(start + PAGE - 4, 5);
    assert!(
        matches!(past_the_end, Err(Error::NotMapped { address }) if address == start + PAGE),
        "{past_the_end:?}"
    );
}

/// A store between the reads of text and alias must not be mistaken for another mapping. The thread
/// that toggles runs at full speed, and the comparisons continue until they have found enough
/// changes.
#[test]
fn text_that_is_toggled_is_not_stale() {
    const CHANGES: usize = 50_000;
    if !common::has_two_processors() {
        return;
    }
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, INSIDE)[0];
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: the text stays mapped, and both forms are one instruction.
    let place = unsafe { TextRef::resolve(site, 5) }.unwrap();
    let forms = TogglePair::new(&place, FetchWindow::Bytes8, 0, [&a, &b]);
    let stop = AtomicBool::new(false);
    let is_stale = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                // SAFETY: as above.
                unsafe { forms.exchange([Form::First, Form::Second][round % 2]) }.unwrap();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut last = a;
        let mut changes = 0;
        let is_stale = loop {
            // SAFETY: the text is mapped.
            if unsafe { place.is_stale(5) } {
                break true;
            }
            // SAFETY: as above.
            let now = unsafe { place.read(1, 1) };
            changes += usize::from(now != last);
            last = now;
            if changes >= CHANGES {
                break false;
            }
        };
        stop.store(true, Ordering::Relaxed);
        is_stale
    });
    assert!(!is_stale, "a store was mistaken for another mapping");
}

#[test]
fn unshare_changes_nothing_in_a_process_that_shares_nothing() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(1);
    let before = view(start);
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: no other thread uses the text.
    unsafe {
        patch(start, &mov_eax(A), &mov_eax(B)).unwrap();
        let mapped = mappings(&(start..start + PAGE));
        text::unshare().unwrap();
        assert_eq!(mappings(&(start..start + PAGE)), mapped, "the text was replaced");
        assert_eq!(view(start), before);
        let place = TextRef::resolve(start, 5).unwrap();
        place.compare_exchange(FetchWindow::Bytes8, 0, &b, &a).unwrap();
    }
    assert_eq!(call(start), A);
    assert!(!text::is_shared_with_parent());
}

#[test]
fn the_bytes_that_unshare_would_copy_are_those_of_copied_text() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(3);
    let before = text::copied_bytes();
    view(start);
    assert_eq!(text::copied_bytes(), before + 3 * PAGE);
    text::forget(&(start..start + 1));
    assert_eq!(text::copied_bytes(), before);
}

/// Text that was replaced by text with one different byte.
#[test]
fn text_that_differs_in_its_last_byte_is_stale() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(1);
    // SAFETY: the test owns the page, which stays mapped.
    let place = unsafe { TextRef::resolve(start, 5) }.unwrap();
    let is_stale = || {
        // SAFETY: as above.
        unsafe { place.is_stale(5) }
    };
    assert!(!is_stale());
    let again = common::generated::map_pages(start, 1);
    assert!(!is_stale(), "the same bytes");
    // SAFETY: mapped writable, and not executed.
    unsafe { again.add(4).write(B as u8) };
    assert!(is_stale());
}

#[test]
#[should_panic(expected = "left == right")]
fn forms_of_different_lengths_are_refused() {
    let start = pages(1);
    // SAFETY: the test owns the page, which stays mapped.
    let place = unsafe { TextRef::resolve(start, 5) }.unwrap();
    let [long, short] = [5, 4].map(|length| Bytes::new(&mov_eax(A)[..length]).unwrap());
    TogglePair::new(&place, FetchWindow::Bytes8, 0, [&long, &short]);
}

/// A library is unloaded and loaded again at the same address, a hundred times: references that
/// were resolved the first time stay valid, and neither mappings nor addresses accumulate.
#[test]
fn text_that_is_loaded_again_is_written_through_its_previous_view() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(2);
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: also below: the text is mapped whenever it is executed, and no other thread uses it.
    let first = internal::preparing(|| unsafe { TextRef::resolve(start, 5) }).unwrap();
    let mut views = std::collections::BTreeSet::new();
    for _ in 0..100 {
        // SAFETY: as above.
        unsafe { first.compare_exchange(FetchWindow::Bytes8, 0, &a, &b) }.unwrap();
        assert_eq!(call(start), B);
        unmap(start, 2);
        // SAFETY: as above.
        unsafe { text::release(&(start..start + 2 * PAGE)) };
        // SAFETY: as above.
        assert_eq!(*unsafe { first.read(0, 5) }, [0; 5], "the memory was not freed");
        // SAFETY: the addresses belong to the test.
        unsafe { common::generated::map_over(start, &[&mov_eax(A)[..], &[common::RET]].concat()) };
        // SAFETY: as above.
        unsafe { common::generated::map_over(start + PAGE, &[common::RET]) };
        // SAFETY: as above.
        let now = internal::preparing(|| unsafe { TextRef::resolve(start, 5) }).unwrap();
        let view = now.writable_view().unwrap() as usize;
        views.insert(view);
        // SAFETY: as above.
        assert!(unsafe { internal::revive(&first) });
        assert!(mappings(&(view..view + PAGE)).is_empty(), "the second view is still there");
        // SAFETY: as above.
        assert!(!unsafe { internal::revive(&first) }, "nothing has been released since");
    }
    // Another test may map something at the previous address.
    assert!(views.len() < 50, "addresses accumulate: {}", views.len());
}

/// References to it are in use, and would write to the wrong alias.
#[test]
fn text_in_which_others_have_resolved_places_is_not_revived() {
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(1);
    // SAFETY: also below: the text is mapped whenever it is used, and no other thread uses it.
    let first = internal::preparing(|| unsafe { TextRef::resolve(start, 5) }).unwrap();
    unmap(start, 1);
    // SAFETY: as above.
    unsafe { text::release(&(start..start + PAGE)) };
    // SAFETY: as above.
    unsafe { common::generated::map_over(start, &mov_eax(A)) };
    // A panic ends the preparation, too. This one prints no backtrace, which would map memory.
    let unwind = || internal::preparing(|| std::panic::resume_unwind(Box::new(())));
    assert!(std::panic::catch_unwind(unwind).is_err());
    // SAFETY: as above.
    let now = unsafe { TextRef::resolve(start, 5) }.unwrap();
    // SAFETY: as above.
    assert!(!unsafe { internal::revive(&first) });
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: as above.
    unsafe { now.compare_exchange(FetchWindow::Bytes8, 0, &a, &b) }.unwrap();
    // SAFETY: as above.
    assert_eq!(*unsafe { first.read(0, 5) }, [0; 5]);
}

/// A library is unloaded, another one is loaded at its address, and is patched before the first one
/// is released.
#[test]
fn what_was_resolved_in_text_mapped_since_is_not_released() {
    let _model = with_window(FetchWindow::Bytes8);
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    let function = [&mov_eax(A)[..], &[common::RET]].concat();
    let mut code = [0x90; 96];
    for offset in [0, STRADDLING] {
        code[offset..][..function.len()].copy_from_slice(&function);
    }
    for access in WITH_A_VIEW {
        text::set_access(access);
        let start = pages(1);
        let straddler = start + STRADDLING;
        // SAFETY: also below: the test owns the page, which is mapped whenever it is executed.
        let first = unsafe { TextRef::resolve(start, 5) }.unwrap();
        // SAFETY: as above.
        unsafe {
            first.compare_exchange(FetchWindow::Bytes8, 0, &a, &b).unwrap();
            common::generated::map_over(start, &code);
            patch(start, &mov_eax(A), &mov_eax(B)).unwrap();
        }
        // SAFETY: as above.
        let now = unsafe { TextRef::resolve(start, 5) }.unwrap();
        assert_ne!(now, first, "{access:?}");
        let forms = TogglePair::new(&now, FetchWindow::Bytes8, 0, [&a, &b]);
        // SAFETY: as above; both forms are one instruction, and no thread blocks SIGTRAP.
        let outstanding = unsafe { start_patch(straddler, &mov_eax(A), &mov_eax(B)) }.unwrap();
        // SAFETY: the first text was replaced.
        unsafe { text::release(&(start..start + PAGE)) };
        // SAFETY: as above.
        assert!(unsafe { forms.exchange(Form::First) }.unwrap(), "{access:?}");
        assert_eq!(call(start), A, "{access:?}");
        outstanding.finish().unwrap();
        assert_eq!(call(straddler), B, "{access:?}");
        assert_eq!(views_of(start), 1, "{access:?}");
    }
}

/// The writable aliases of the file that is mapped at `text`.
fn views_of(text: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines: Vec<Vec<&str>> = maps.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
    let number = |digits: &str| usize::from_str_radix(digits, 16).unwrap();
    let holds = |line: &&Vec<&str>| {
        let (start, end) = line[0].split_once('-').unwrap();
        (number(start)..number(end)).contains(&text)
    };
    let file = &lines.iter().find(holds).expect("the text is mapped")[3..5];
    lines.iter().filter(|line| &line[3..5] == file && line[1] == "rw-s").count()
}

const WITH_A_VIEW: [TextAccess; 2] = [TextAccess::Alias, TextAccess::Private];

/// A library is loaded again at its address without a notification that it was unloaded: the first
/// patches go to the alias of the old text. Each must find the new text, even if another thread has
/// just created an alias of it.
#[test]
fn every_patch_of_text_that_was_mapped_again_takes_effect() {
    let _model = with_window(FetchWindow::Bytes8);
    let mut line = [0x90; 64];
    line[..5].copy_from_slice(&mov_eax(A));
    line[5] = common::RET;
    for access in WITH_A_VIEW {
        text::set_access(access);
        let start = pages(1);
        let sites: Vec<usize> = (0..5).map(|number| start + 64 * number).collect();
        for _ in 0..3 {
            // SAFETY: the test owns the page.
            unsafe { common::generated::map_over(start, &line.repeat(sites.len())) };
            for [old, new] in [[A, B], [B, A]] {
                let [before, after] = [mov_eax(old), mov_eax(new)];
                // SAFETY: the text stays mapped, and both forms are one instruction.
                let patched = unsafe { patch_all(&common::patches(&sites, &before, &after)) };
                assert!(patched.iter().all(Result::is_ok), "{access:?}: {patched:?}");
                let shown: Vec<u32> = sites.iter().map(|site| call(*site)).collect();
                assert_eq!(shown, vec![new; sites.len()], "{access:?}");
            }
            assert_eq!(views_of(start), 1, "{access:?}");
        }
    }
}

/// Text that is forgotten too early, or twice: references resolved before and after write to the
/// same text.
#[test]
fn text_that_is_forgotten_while_it_is_mapped_keeps_its_earlier_view() {
    let _model = with_window(FetchWindow::Bytes8);
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    for access in WITH_A_VIEW {
        text::set_access(access);
        let start = pages(2);
        let site = start + PAGE;
        let resolve = || {
            // SAFETY: the test owns the pages, which stay mapped.
            unsafe { TextRef::resolve(site, 5) }.unwrap()
        };
        let early = resolve();
        let to_be_copied = text::copied_bytes();
        text::forget(&(start..start + 2 * PAGE));
        let late = resolve();
        assert_eq!(text::copied_bytes(), to_be_copied, "{access:?}: a child would share the text");
        for (place, value) in [(early, B), (late, A), (early, B), (late, A)] {
            let [old, new] = if value == B { [&a, &b] } else { [&b, &a] };
            // SAFETY: as above; both forms are one instruction.
            unsafe { place.compare_exchange(FetchWindow::Bytes8, 0, old, new) }.unwrap();
            assert_eq!(call(site), value, "{access:?}");
        }
        // SAFETY: as above.
        assert!(!unsafe { early.is_stale(5) } && !unsafe { late.is_stale(5) });
    }
}
