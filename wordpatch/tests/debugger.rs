//! A debugger on patched text: it sets and removes breakpoints, stores take effect in the pages
//! that it has copied, and neither undoes the other. Debuggers write as these tests do, through
//! `/proc/PID/mem`, which makes the kernel copy the page for the process.

mod common;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use common::alone::alone;
use common::generated::{PAGE, mappings};
use common::refused::refuse_system_call;
use common::{A, B, INSIDE, RET, STRADDLING, call, functions, mov_eax, with_window};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::wait::{WaitStatus, waitpid};
use wordpatch::text::{self, Form, TogglePair};
use wordpatch::{Bytes, Error, FetchWindow, TextAccess, TextRef, finish_patch, internal, patch, start_patch};

const INT3: u8 = 0xcc;

/// Writes as a debugger does.
fn poke(address: usize, byte: u8) {
    let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
    memory.write_all_at(&[byte], address as u64).expect("a debugger can write text");
}

/// The bytes that are executed.
fn shown(address: usize) -> u8 {
    // SAFETY: text of the test, which stays mapped.
    unsafe { (address as *const u8).read_volatile() }
}

fn forms() -> [Bytes; 2] {
    [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap())
}

/// The toggle pair of a site in text that stays mapped.
fn toggled(site: usize) -> (TextRef, TogglePair) {
    let [a, b] = forms();
    // SAFETY: the tests' text is never unmapped.
    let place = unsafe { TextRef::resolve(site, 5).unwrap().staying_mapped() };
    (place, TogglePair::new(&place, FetchWindow::Bytes8, 0, [&a, &b]))
}

fn exchange(forms: &TogglePair, to: Form) -> Result<bool, Error> {
    // SAFETY: both forms are one instruction, in text that stays mapped.
    unsafe { forms.exchange(to) }
}

fn assert_nothing_is_writable_and_executable(address: usize) {
    let page = address & !(PAGE - 1);
    let lines = mappings(&(page - 64 * PAGE..page + 64 * PAGE));
    assert!(!lines.iter().any(|line| line.contains("rwx")), "{lines:?}");
}

#[test]
fn stores_take_effect_on_a_page_with_a_breakpoint_and_keep_the_breakpoint() {
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(4, INSIDE);
    let (place, forms) = toggled(sites[0]);
    let [a, b] = self::forms();
    exchange(&forms, Form::Second).unwrap();
    assert_eq!(call(sites[0]), B);
    poke(sites[3], INT3);
    for (to, value) in [(Form::First, A), (Form::Second, B), (Form::Second, B), (Form::First, A)] {
        exchange(&forms, to).unwrap();
        assert_eq!((call(sites[0]), shown(sites[3])), (value, INT3));
    }
    // SAFETY: as in `exchange`.
    unsafe { place.compare_exchange(FetchWindow::Bytes8, 0, &a, &b) }.unwrap();
    assert_eq!(call(sites[0]), B);
    // SAFETY: the call checks whether the text is mapped.
    unsafe { TextRef::resolve(sites[0], 5).unwrap().compare_exchange(FetchWindow::Bytes8, 0, &b, &a) }
        .unwrap();
    assert_eq!(call(sites[0]), A);
    poke(sites[3], mov_eax(A)[0]);
    exchange(&forms, Form::Second).unwrap();
    assert_eq!((call(sites[0]), call(sites[3])), (B, A));
    assert_nothing_is_writable_and_executable(sites[0]);
}

#[test]
fn patches_of_any_kind_take_effect_on_a_page_with_a_breakpoint() {
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    for offset in [INSIDE, STRADDLING] {
        let sites = functions(4, offset);
        // SAFETY: also below: the sites are one instruction each, and stay mapped.
        unsafe { patch(sites[0], &mov_eax(A), &mov_eax(B)) }.unwrap();
        poke(sites[3], INT3);
        // SAFETY: as above.
        unsafe { patch(sites[0], &mov_eax(B), &mov_eax(A)) }.unwrap();
        assert_eq!((call(sites[0]), shown(sites[3])), (A, INT3));
        // SAFETY: as above.
        unsafe { start_patch(sites[1], &mov_eax(A), &mov_eax(B)) }.unwrap().detach();
        while !finish_patch(sites[1]).unwrap() {}
        assert_eq!((call(sites[1]), shown(sites[3])), (B, INT3));
        poke(sites[3], mov_eax(A)[0]);
        // SAFETY: as above.
        unsafe { patch(sites[3], &mov_eax(A), &mov_eax(B)) }.unwrap();
        assert_eq!((call(sites[3]), call(sites[0])), (B, A));
    }
}

/// As filters of system calls do, which do not let processes read each other's memory.
#[test]
fn patches_take_effect_on_a_page_with_a_breakpoint_if_process_vm_readv_is_refused() {
    alone("patches_take_effect_on_a_page_with_a_breakpoint_if_process_vm_readv_is_refused", || {
        text::set_access(TextAccess::Private);
        let _model = with_window(FetchWindow::Bytes8);
        for offset in [INSIDE, STRADDLING] {
            let sites = functions(2, offset);
            // SAFETY: also below: the sites are one instruction each, and stay mapped.
            unsafe { patch(sites[0], &mov_eax(A), &mov_eax(B)) }.unwrap();
            poke(sites[1], INT3);
            refuse_system_call(libc::SYS_process_vm_readv, None);
            // SAFETY: as above.
            unsafe { start_patch(sites[0], &mov_eax(B), &mov_eax(A)) }.unwrap().finish().unwrap();
            assert_eq!((call(sites[0]), shown(sites[1])), (A, INT3));
        }
    });
}

#[test]
fn a_breakpoint_on_the_site_itself_is_refused_and_stays() {
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    for offset in [INSIDE, STRADDLING] {
        let site = functions(1, offset)[0];
        // SAFETY: also below: the site is one instruction, and stays mapped.
        unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
        poke(site, INT3);
        // SAFETY: as above.
        let refused = unsafe { patch(site, &mov_eax(B), &mov_eax(A)) };
        assert!(
            matches!(refused, Err(Error::ForeignBreakpoint { address }) if address == site),
            "{refused:?}"
        );
        assert_eq!(shown(site), INT3);
        if offset == INSIDE {
            let [a, b] = forms();
            // SAFETY: as above. Forms that differ in their first byte, where the breakpoint is.
            let place = unsafe { TextRef::resolve(site, 5).unwrap().staying_mapped() };
            let refused = exchange(&TogglePair::new(&place, FetchWindow::Bytes8, 0, [&a, &b]), Form::First);
            let Err(Error::Mismatch { address, found, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!((address, found[0], shown(site)), (site, INT3, INT3));
        }
        // The debugger restores the byte that it has found: the other bytes of the instruction must
        // still be those of the same form.
        poke(site, mov_eax(B)[0]);
        assert_eq!(call(site), B);
        // SAFETY: as above.
        unsafe { patch(site, &mov_eax(B), &mov_eax(A)) }.unwrap();
        assert_eq!(call(site), A);
    }
}

#[test]
fn stores_to_text_that_may_be_unmapped_take_effect_after_it_is_settled() {
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(4, INSIDE);
    let [a, b] = forms();
    // SAFETY: also below: the text stays mapped, although `staying_mapped` is not called.
    let place = unsafe { TextRef::resolve(sites[0], 5) }.unwrap();
    let forms = TogglePair::new(&place, FetchWindow::Bytes8, 0, [&a, &b]);
    let page = sites[0] & !(PAGE - 1);
    let around = page..page + PAGE;
    assert_eq!(text::copied_pages(&around), []);
    poke(sites[3], INT3);
    assert_eq!(text::copied_pages(&around), [page]);
    exchange(&forms, Form::Second).unwrap();
    assert_eq!(call(sites[0]), A, "not settled yet");
    // SAFETY: as above.
    assert!(!unsafe { place.is_stale(5) }, "a copied page is the same text");
    // SAFETY: as above.
    unsafe { forms.settle() }.unwrap();
    assert_eq!((call(sites[0]), shown(sites[3])), (B, INT3));
}

#[test]
fn threads_that_toggle_neighbours_on_a_copied_page_lose_nothing() {
    text::set_access(TextAccess::Private);
    const ROUNDS: usize = 2_000;
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(3, INSIDE);
    poke(sites[2], shown(sites[2]));
    let all = [sites[0], sites[1]].map(|site| toggled(site).1);
    poke(sites[2], INT3);
    std::thread::scope(|scope| {
        // Two threads on one site, one on its neighbour.
        for number in 0..3 {
            let (site, forms) = (sites[number / 2], all[number / 2]);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    exchange(&forms, [Form::First, Form::Second][(round + number) % 2]).unwrap();
                    let value = call(site);
                    assert!(value == A || value == B, "{value:#x}");
                }
            });
        }
    });
    for (site, forms) in sites.iter().zip(&all) {
        for (to, value) in [(Form::Second, B), (Form::First, A)] {
            exchange(forms, to).unwrap();
            assert_eq!(call(*site), value);
        }
    }
    assert_eq!(shown(sites[2]), INT3);
    assert_nothing_is_writable_and_executable(sites[0]);
}

/// Maps a file as the loader does, with `mov eax, A; ret` every 64 bytes.
fn text_of_a_file() -> (File, usize) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut line = [0x90; 64];
    line[..5].copy_from_slice(&mov_eax(A));
    line[5] = RET;
    file.write_all(&line.repeat(2 * PAGE / 64)).unwrap();
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    let length = (2 * PAGE).try_into().unwrap();
    // SAFETY: a new mapping at an address that the kernel chooses. The file exists until the end of
    // the test.
    let start = unsafe { mmap(None, length, protection, MapFlags::MAP_PRIVATE, file.as_fd(), 0) }.unwrap();
    let (file, _) = file.keep().unwrap();
    (file, start.addr().get())
}

/// Calls `act` while a debugger is attached to the calling thread, which it continues whenever it
/// stops.
fn while_traced<R>(act: impl FnOnce() -> R) -> R {
    let (mut attached, mut signal) = std::io::pipe().unwrap();
    // SAFETY: no arguments.
    let thread = unsafe { libc::gettid() };
    // Not by the C library's function: its handlers would take this for a fork of the program.
    // SAFETY: the child makes system calls only.
    let debugger = unsafe { libc::syscall(libc::SYS_fork) } as libc::pid_t;
    if debugger == 0 {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: attaches to the thread, and continues it with its signals until this process is
        // killed.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, thread, null, null) != 0 {
                libc::_exit(1);
            }
            let _ = signal.write_all(b"x");
            loop {
                let mut status = 0;
                if libc::waitpid(thread, &mut status, libc::__WALL) == thread && libc::WIFSTOPPED(status) {
                    libc::ptrace(libc::PTRACE_CONT, thread, null, libc::WSTOPSIG(status) as usize);
                }
            }
        }
    }
    drop(signal);
    assert!(attached.read_exact(&mut [0]).is_ok(), "no debugger can be attached");
    let result = act();
    // SAFETY: ends the child, which detaches it.
    unsafe {
        libc::kill(debugger, libc::SIGKILL);
        libc::waitpid(debugger, std::ptr::null_mut(), 0);
    }
    result
}

#[test]
fn a_breakpoint_set_before_the_first_patch_stays_and_can_be_removed() {
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    let (_file, start) = text_of_a_file();
    let (site, other) = (start + PAGE, start + PAGE + 64);
    poke(other, INT3);
    let (_, forms) = while_traced(|| toggled(site));
    assert_eq!(shown(other), INT3, "the breakpoint was lost");
    // SAFETY: the text is mapped.
    let decoded = unsafe { TextRef::resolve(other, 5).unwrap().read(0, 5) };
    assert_eq!(*decoded, mov_eax(A), "the breakpoint is decoded as code");
    exchange(&forms, Form::Second).unwrap();
    assert_eq!((call(site), shown(other)), (B, INT3));
    poke(other, mov_eax(A)[0]);
    assert_eq!((call(site), call(other)), (B, A));
    exchange(&forms, Form::First).unwrap();
    assert_eq!(call(site), A);
    assert_nothing_is_writable_and_executable(start);
}

/// It is a uprobe's, which the kernel handles only in mappings of the file.
#[test]
fn a_trap_that_no_debugger_has_set_is_not_copied() {
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    let (_file, start) = text_of_a_file();
    let (site, other) = (start + PAGE, start + PAGE + 64);
    poke(other, INT3);
    let (_, forms) = toggled(site);
    exchange(&forms, Form::Second).unwrap();
    assert_eq!((call(site), call(other)), (B, A));
}

/// As a relocation of text or another patcher stores it, before the first patch.
#[test]
fn an_operand_that_happens_to_contain_int3_is_no_trap() {
    const VALUE: u32 = 0x5634_12cc;
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    let (_file, start) = text_of_a_file();
    let (site, other) = (start + PAGE, start + PAGE + 64);
    for (offset, byte) in mov_eax(VALUE).into_iter().enumerate() {
        poke(other + offset, byte);
    }
    let (_, forms) = toggled(site);
    exchange(&forms, Form::Second).unwrap();
    assert_eq!((call(site), call(other)), (B, VALUE));
}

/// A child has the breakpoints of its parent at the time of the fork, until its debugger removes
/// them, and no earlier ones.
#[test]
fn a_forked_child_keeps_the_breakpoints_that_it_was_forked_with() {
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(4, INSIDE);
    let (_, forms) = toggled(sites[0]);
    poke(sites[3], INT3);
    poke(sites[2], INT3);
    poke(sites[2], mov_eax(A)[0]);
    // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            // SAFETY: the child has one thread; also below: it ends the child.
            let unshared = unsafe { text::unshare() }.is_ok();
            let kept = shown(sites[3]) == INT3 && shown(sites[2]) != INT3;
            let works = exchange(&forms, Form::Second).is_ok() && call(sites[0]) == B && call(sites[2]) == A;
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!unshared) | i32::from(!kept) << 1 | i32::from(!works) << 2) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert_eq!((call(sites[0]), shown(sites[3])), (A, INT3));
}

/// The parent removes the INT3 from the shared page, but not from the child's copy.
#[test]
fn a_child_that_is_forked_in_mid_patch_finds_no_int3_in_a_copied_page() {
    text::set_access(TextAccess::Private);
    let _model = with_window(FetchWindow::Bytes8);
    internal::follow_forks();
    let sites = functions(4, STRADDLING);
    // SAFETY: also below: the sites are one instruction each, and stay mapped.
    unsafe { patch(sites[0], &mov_eax(A), &mov_eax(B)) }.unwrap();
    poke(sites[3], INT3);
    // SAFETY: as above.
    let outstanding = unsafe { start_patch(sites[0], &mov_eax(B), &mov_eax(A)) }.unwrap();
    assert_eq!((shown(sites[0]), shown(sites[3])), (INT3, INT3));
    // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let is_old = shown(sites[0]) == mov_eax(B)[0] && call(sites[0]) == B;
            let kept = shown(sites[3]) == INT3;
            // SAFETY: the child has one thread; also below: it ends the child.
            let unshared = unsafe { text::unshare() }.is_ok();
            let stays_old = shown(sites[0]) == mov_eax(B)[0] && call(sites[0]) == B;
            let problems = [is_old, kept, unshared, stays_old].map(|is_right| i32::from(!is_right));
            // SAFETY: as above.
            unsafe { libc::_exit(problems.iter().fold(0, |code, problem| 2 * code + problem)) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    outstanding.finish().unwrap();
    assert_eq!((call(sites[0]), shown(sites[3])), (A, INT3));
}
