//! Generated code: written, executed, and patched through the mapping through which it was written.
//! (Dropped code: `dropped_code.rs`.)

mod common;

use common::generated::{PAGE, generate, mappings};
use common::{A, B, RET, call, check_two_forms, mov_eax, while_executing, with_window};
use wordpatch::code_memory::{CodeArena, CodeBuffer};
use wordpatch::{Bytes, Error, FetchWindow, TextRef, patch};

#[test]
fn a_patch_is_stored_through_the_mapping_for_writing() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(61);
    let site = memory.address() + 61;
    assert_eq!(call(site), A);
    let before = mappings(&memory.pages());
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    let place = unsafe {
        patch(site, &mov_eax(A), &mov_eax(B)).unwrap();
        TextRef::resolve(site, 5).unwrap()
    };
    assert_eq!(call(site), B);
    assert_eq!(mappings(&memory.pages()), before, "the mapping was replaced");
    let view = place.writable_view().unwrap();
    assert_ne!(view as usize, site, "the text is written where it is executed");
    // SAFETY: the alias has the site.
    assert_eq!(unsafe { *view.add(1) }, B as u8);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(" rwx"), "{maps}");
}

#[test]
fn a_straddler_is_patched_while_it_is_executed() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(61);
    let site = memory.address() + 61;
    while_executing(&[site], |executor| {
        for round in 0..1000 {
            let (old, new) = if round % 2 == 0 { (A, B) } else { (B, A) };
            // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
            unsafe { patch(site, &mov_eax(old), &mov_eax(new)) }.unwrap();
        }
        executor.wait_for_calls(1);
    });
}

#[test]
fn two_forms_are_exchanged_in_generated_code() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(8);
    check_two_forms(memory.address() + 8);
}

#[test]
fn what_was_not_written_is_int3_and_what_is_too_long_is_refused() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(0);
    let code = memory.code();
    assert_eq!(code.len(), 65);
    assert_eq!(code[6..64], [0xcc; 58]);
    let last = memory.pages().end - 1;
    // SAFETY: mapped readable.
    assert_eq!(unsafe { *(last as *const u8) }, 0xcc);
    assert_eq!(memory.pages().len(), PAGE);

    let mut small = CodeBuffer::new(10).unwrap();
    assert_eq!(small.append(&[RET; PAGE], 16), Some(0));
    assert_eq!(small.append(&[RET], 16), None, "more than there is room for");
    assert_eq!(small.len(), PAGE);
}

#[test]
fn memory_that_the_kernel_refuses_is_an_error() {
    let error = CodeBuffer::new(1 << 60).unwrap_err();
    assert!(matches!(error, Error::CodeMemory { .. }), "{error}");
}

#[test]
fn a_forked_child_patches_its_own_copy() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(0);
    let site = memory.address();
    // SAFETY: the site is one instruction; the child uses nothing that another thread may hold.
    unsafe {
        match libc::fork() {
            0 => {
                let shared =
                    matches!(patch(site, &mov_eax(A), &mov_eax(B)), Err(Error::SharedWithParent { .. }));
                let unshared = wordpatch::text::unshare().is_ok();
                let patched = patch(site, &mov_eax(A), &mov_eax(B)).is_ok();
                libc::_exit(i32::from(!(shared && unshared && patched && call(site) == B)));
            }
            child => {
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                assert_eq!(status, 0);
            }
        }
    }
    assert_eq!(call(site), A);
}

/// Otherwise, a child would write to pages that its parent executes.
#[test]
fn a_forked_child_gives_the_room_after_code_back() {
    let _model = with_window(FetchWindow::Bytes8);
    let mut buffer = CodeBuffer::new(1 << 20).unwrap();
    buffer.append(&[RET], 64).unwrap();
    let (memory, mut room) = buffer.seal_with_room(PAGE).unwrap();
    let pages = memory.pages().end..memory.pages().end + PAGE;
    // SAFETY: the child uses nothing that another thread may hold.
    unsafe {
        match libc::fork() {
            0 => {
                let unshared = wordpatch::text::unshare().is_ok();
                let refused = matches!(room.arena(PAGE), Ok(None)) && room.is_empty();
                // Reading the list of mappings allocates memory, which another thread may be doing.
                let mut in_memory = 0;
                let page = pages.start as *mut libc::c_void;
                let is_unmapped = libc::mincore(page, PAGE, &raw mut in_memory) != 0;
                libc::_exit(i32::from(!(unshared && refused && is_unmapped)));
            }
            child => {
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                assert_eq!(status, 0);
            }
        }
    }
    assert_eq!(room.arena(PAGE).unwrap().unwrap().pages(), pages);
}

/// Two GiB are reserved, of which one page is needed.
#[test]
fn unused_address_space_is_released() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(0);
    // SAFETY: the code stays mapped.
    let view = unsafe { TextRef::resolve(memory.address(), 5) }.unwrap().writable_view().unwrap() as usize;
    let line = mappings(&(view..view + 1)).pop().expect("the view is mapped");
    assert!(line.starts_with(&format!("{view:x}-{:x} ", view + PAGE)), "{line}");
}

#[test]
fn code_is_added_near_running_code() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(61);
    let text = memory.pages();
    let mut arena = CodeArena::near(&text, 3 * PAGE).unwrap();
    for end in [arena.pages().start, arena.pages().end] {
        assert!(end.abs_diff(text.start) < 1 << 31 && end.abs_diff(text.end) < 1 << 31);
    }
    while_executing(&[memory.address() + 61], |executor| {
        let code: Vec<u8> = mov_eax(A).iter().copied().chain([RET]).collect();
        let mut added = Vec::new();
        while arena.room() >= 64 {
            let address = arena.next_address(64);
            assert_eq!(arena.append(&code, 64).unwrap(), address);
            added.push(address);
            assert_eq!(call(address), A);
        }
        assert_eq!(added.len(), 3 * PAGE / 64);
        assert!(added.windows(2).all(|pair| pair[1] - pair[0] == 64));
        executor.wait_for_calls(1);
        // SAFETY: the site is one instruction, inside a window.
        unsafe {
            let [old, new] = [mov_eax(A), mov_eax(B)].map(|form| Bytes::new(&form).unwrap());
            let offset = added[1] - arena.place().address();
            arena.place().compare_exchange(FetchWindow::Bytes8, offset, &old, &new).unwrap();
        }
        assert_eq!(added[..3].iter().map(|at| call(*at)).collect::<Vec<_>>(), [A, B, A]);
    });
    assert!(matches!(arena.append(&[RET; 65], 1), Err(Error::OutOfReach { .. })));
    assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains(" rwx"));
}

#[test]
fn code_that_nobody_executes_is_overwritten() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(61);
    let mut arena = CodeArena::near(&memory.pages(), PAGE).unwrap();
    let function = |value: u32| -> Vec<u8> { mov_eax(value).iter().copied().chain([RET]).collect() };
    let [first, last] = [A, B].map(|value| arena.append(&function(value), 64).unwrap());
    let longer: Vec<u8> = [0x90; 20].into_iter().chain(function(7)).collect();
    // SAFETY: only this thread executes the code, and is not in it.
    unsafe {
        arena.overwrite(first, &function(9)).unwrap();
        arena.overwrite(last, &longer).unwrap();
    }
    assert_eq!([call(first), call(last)], [9, 7]);
    // Later code is appended after the code that is longer now.
    let next = arena.append(&function(A), 8).unwrap();
    assert_eq!(next, last + 32);
    assert_eq!([call(next), call(last)], [A, 7]);
    let end = arena.pages().end;
    for (address, length) in [(next + 8, 1), (arena.pages().start - 1, 1), (next, end - next + 1)] {
        // SAFETY: refused.
        let refused = unsafe { arena.overwrite(address, &vec![RET; length]) };
        assert!(matches!(refused, Err(Error::OutOfReach { .. })), "{refused:?}");
    }
}

#[test]
fn arenas_follow_the_code_in_its_mappings() {
    let _model = with_window(FetchWindow::Bytes8);
    let function: Vec<u8> = mov_eax(A).iter().copied().chain([RET]).collect();
    let sealed = |limit: usize, room: usize| {
        let mut buffer = CodeBuffer::new(limit).unwrap();
        buffer.append(&function, 64).unwrap();
        buffer.seal_with_room(room).unwrap()
    };
    let (memory, mut room) = sealed(1 << 20, 4 * PAGE + 1);
    assert_eq!(room.len(), 5 * PAGE);
    let mut arena = room.arena(PAGE + 1).unwrap().unwrap();
    assert_eq!((memory.pages().len(), memory.pages().end), (PAGE, arena.pages().start));
    assert_eq!((arena.pages().len(), room.len()), (2 * PAGE, 3 * PAGE));
    let lines = mappings(&(memory.pages().start..arena.pages().end + 3 * PAGE));
    assert!(matches!(&*lines, [line] if line.contains(" r-x")), "{lines:?}");
    let address = arena.append(&function, 64).unwrap();
    assert_eq!((address, call(address), call(memory.address())), (arena.pages().start, A, A));
    let patch_both = |to: u32, from: u32| {
        for site in [memory.address(), address] {
            // SAFETY: the site is one instruction, inside a window.
            unsafe { patch(site, &mov_eax(from), &mov_eax(to)) }.unwrap();
        }
    };
    patch_both(B, A);
    assert_eq!((call(address), call(memory.address())), (B, B));
    // Each is unmapped on its own.
    let pages = memory.pages();
    drop(memory);
    assert!(mappings(&pages).is_empty());
    assert_eq!(call(address), B);
    let (pages, next) = (arena.pages(), room.arena(1).unwrap().unwrap());
    assert_eq!((next.pages().start, next.pages().len()), (pages.end, PAGE));
    drop(arena);
    assert!(mappings(&pages).is_empty());
    assert!(room.arena(2 * PAGE + 1).unwrap().is_none());
    let left = next.pages().end..next.pages().end + 2 * PAGE;
    drop(next);
    assert!(!mappings(&left).is_empty());
    drop(room);
    assert!(mappings(&left).is_empty());
    // The limit of the buffer.
    assert_eq!(sealed(2 * PAGE, 5 * PAGE).1.len(), PAGE);
    assert!(sealed(PAGE, PAGE).1.is_empty());
    assert!(sealed(1 << 20, 0).1.is_empty());
}
