//! `patch` on real text, while another thread executes it.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::generated::map_over;
use common::{A, B, RET, call, check_two_forms, mov_eax, text, with_window};
use nix::sys::mman::{MapFlags, ProtFlags};
use wordpatch::{Error, FetchWindow, patch};

/// `mov eax, imm32; ret` at `offset`, patched back and forth while a thread calls it: each call
/// returns one of the two values.
fn patch_while_executing(offset: usize, rounds: usize) {
    let mut code = mov_eax(A).to_vec();
    code.push(0xc3);
    let site = text(offset, &code);
    let (stop, calls, seen_b) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match call(site) {
                    A => {}
                    B => _ = seen_b.fetch_add(1, Ordering::Relaxed),
                    torn => panic!("offset {offset}: torn value {torn:#x}"),
                }
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        while calls.load(Ordering::Relaxed) == 0 {
            std::hint::spin_loop();
        }
        for round in 0..rounds {
            let (old, new) = if round % 2 == 0 { (A, B) } else { (B, A) };
            // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
            unsafe { patch(site, &mov_eax(old), &mov_eax(new)) }.unwrap();
        }
        // Each state is kept until the other thread has called it.
        // SAFETY: as above.
        unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
        let before = seen_b.load(Ordering::Relaxed);
        while seen_b.load(Ordering::Relaxed) == before {
            std::hint::spin_loop();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn straddler_while_executing() {
    let _model = with_window(FetchWindow::Bytes8);
    for offset in 59..64 {
        patch_while_executing(offset, 2_000);
    }
}

#[test]
fn inside_a_quadword_while_executing() {
    let _model = with_window(FetchWindow::Bytes8);
    for offset in 56..60 {
        patch_while_executing(offset, 200_000);
    }
}

#[test]
fn neighbours_five_bytes_apart_lose_no_update() {
    let _model = with_window(FetchWindow::Bytes64);
    let (a, b) = (mov_eax(A), mov_eax(B));
    let site = text(1, &[a, a, a].concat());
    std::thread::scope(|scope| {
        for neighbour in 0..3 {
            scope.spawn(move || {
                for round in 0..100_000 {
                    let (old, new) = if round % 2 == 0 { (a, b) } else { (b, a) };
                    // SAFETY: the text is not executed.
                    unsafe { patch(site + 5 * neighbour, &old, &new) }.expect("an update was lost");
                }
            });
        }
    });
}

#[test]
fn contending_patchers_of_a_straddler_one_succeeds_at_a_time() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = text(61, &[mov_eax(0).as_slice(), &[0xc3]].concat());
    let successes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let value = call(site);
                    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
                    match unsafe { patch(site, &mov_eax(value), &mov_eax(value.wrapping_add(0x0101_0101))) } {
                        Ok(()) => _ = successes.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Contended { .. } | Error::Mismatch { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let successes = successes.into_inner();
    assert!(successes > 0);
    assert_eq!(call(site), (successes as u32).wrapping_mul(0x0101_0101), "each success is one addition");
}

#[test]
fn unexpected_bytes_and_changed_layouts_are_refused() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = text(0, &[mov_eax(A).as_slice(), &[0xc3, 0xcc]].concat());
    let check = |address, old: &[u8], new: &[u8], expected: &str| {
        // SAFETY: the text is not executed.
        let error = unsafe { patch(address, old, new) }.unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{error:?}, not {expected}");
        assert_eq!(call(site), A, "a refused patch changed the text");
    };
    check(site, &mov_eax(B), &mov_eax(A), "Mismatch");
    check(site, &[], &[], "Length");
    check(site, &[0xb8], &[0xb8, 1], "Length");
    check(site, &[0xb8], &[0x90], "LayoutChanged");
    check(site, &[0xb8, 0x11, 0x11, 0x11, 0x11, 0xc3], &[0x90, 0x0f, 0x1f, 0x40, 0, 0xc3], "LayoutChanged");
    check(site, &[0xb8], &[0x06], "Undecodable");
    check(site + 6, &[0x90], &[0xc3], "ForeignBreakpoint");
    check(8, &[0x90], &[0xc3], "NotMapped");
    let data = Box::new([0x90_u8; 16]);
    check(data.as_ptr() as usize, &[0x90], &[0xc3], "NotExecutable");
}

#[test]
fn an_operand_that_looks_like_int3_is_no_breakpoint() {
    let _model = with_window(FetchWindow::Bytes8);
    // Two instructions, with the byte in the operand of the first, or as the second.
    for (code, expected) in
        [([0xb0, 0xcc, 0xb3, 2, 0xc3], "Mismatch"), ([0xb0, 1, 0xcc, 2, 0xc3], "ForeignBreakpoint")]
    {
        let site = text(0, &code);
        // SAFETY: the text is not executed.
        let error = unsafe { patch(site, &[0xb0, 1, 0xb3, 2], &[0xb0, 3, 0xb3, 4]) }.unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{error:?}, not {expected}");
    }
}

/// With other bytes than those of the last patch, and with the same bytes: the latter is detected
/// only after the store.
#[test]
fn text_that_was_replaced_at_the_same_address_is_detected() {
    let _model = with_window(FetchWindow::Bytes8);
    for (offset, mapped) in [(0, A), (0, B), (61, A), (61, B)] {
        let site = text(offset, &[mov_eax(A).as_slice(), &[RET]].concat());
        // SAFETY: no other thread executes or maps this page.
        unsafe {
            patch(site, &mov_eax(A), &mov_eax(B)).unwrap();
            map_over(site, &[mov_eax(mapped).as_slice(), &[RET]].concat());
            patch(site, &mov_eax(mapped), &mov_eax(7)).unwrap();
        }
        assert_eq!(call(site), 7, "at {offset}");
    }
}

#[test]
fn text_of_a_memory_file_that_the_caller_mapped_twice_keeps_its_other_view() {
    let _model = with_window(FetchWindow::Bytes8);
    let file = nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::empty()).unwrap();
    nix::unistd::ftruncate(&file, 4096).unwrap();
    let map = |protection| {
        // SAFETY: a new mapping.
        unsafe {
            nix::sys::mman::mmap(None, 4096.try_into().unwrap(), protection, MapFlags::MAP_SHARED, &file, 0)
        }
        .unwrap()
        .cast::<u8>()
    };
    let view = map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let code = map(ProtFlags::PROT_READ | ProtFlags::PROT_EXEC);
    // SAFETY: the views are mapped; the code is one instruction and a return.
    unsafe {
        std::ptr::copy_nonoverlapping(mov_eax(A).as_ptr(), view.as_ptr(), 5);
        *view.as_ptr().add(5) = 0xc3;
        patch(code.as_ptr() as usize, &mov_eax(A), &mov_eax(B)).unwrap();
        assert_eq!(*view.as_ptr().add(1), 0xee);
    }
    assert_eq!(call(code.as_ptr() as usize), B);
}

#[test]
fn no_mapping_is_writable_and_executable() {
    let _model = with_window(FetchWindow::Bytes8);
    patch_while_executing(61, 200);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(" rwx"), "{maps}");
}

#[test]
fn two_forms_are_exchanged_and_nothing_else() {
    let _model = with_window(FetchWindow::Bytes8);
    // At every offset in a quadword.
    for offset in 8..12 {
        let site = text(offset, &[mov_eax(A).as_slice(), &[0xc3]].concat());
        check_two_forms(site);
    }
}
