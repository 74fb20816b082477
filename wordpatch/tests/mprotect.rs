//! Batches, outstanding patches and forks if text is made writable during each store.

mod common;

use common::{
    A, B, INSIDE, STRADDLING, call, check_two_forms, functions, mov_eax, patches, while_executing,
    with_window,
};
use nix::sys::wait::{WaitStatus, waitpid};
use wordpatch::text::{Form, TogglePair, set_access, unshare};
use wordpatch::{
    Bytes, Error, FetchWindow, Finisher, State, TextAccess, TextRef, patch, patch_all, start_patch,
};

/// Whether the page of an address is mapped writable.
fn is_writable(address: usize) -> bool {
    let page = address & !4095;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_page = |line: &&str| {
        let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).unwrap();
        let number = |digits| usize::from_str_radix(digits, 16).unwrap();
        (number(start)..number(end)).contains(&page)
    };
    maps.lines().find(of_page).is_some_and(|line| line.split(' ').nth(1).is_some_and(|it| it.contains('w')))
}

#[test]
fn batches_and_outstanding_patches_while_executing() {
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    let sites = [functions(10, STRADDLING), functions(10, INSIDE)].concat();
    let (a, b) = (mov_eax(A), mov_eax(B));
    while_executing(&sites, |executor| {
        for _ in 0..20 {
            // SAFETY: each site is one instruction, and SIGTRAP is not blocked here.
            let results = unsafe { patch_all(&patches(&sites, &a, &b)) };
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            executor.wait_for_calls(20);
            let finisher = Finisher::start().unwrap();
            for site in &sites {
                // SAFETY: as above.
                finisher.take_over(&unsafe { start_patch(*site, &b, &a) }.unwrap()).unwrap();
            }
        }
    });
    assert!(sites.iter().all(|site| call(*site) == A));
}

#[test]
fn a_child_forked_during_a_patch_has_the_old_instruction() {
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here; also below.
    let outstanding = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    // After a test of this process has forked, a wait is not over at the first poll.
    while outstanding.state() < State::SecondWait {
        outstanding.try_finish().unwrap();
    }
    // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let is_old = || call(site) == A;
            // SAFETY: as above; the child has one thread.
            let holds = is_old()
                && unsafe { unshare() }.is_ok()
                && is_old()
                && unsafe { patch(site, &mov_eax(A), &mov_eax(7)) }.is_ok()
                && call(site) == 7;
            // SAFETY: ends the child.
            unsafe { libc::_exit(if holds { 0 } else { 1 }) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    outstanding.finish().unwrap();
    assert_eq!(call(site), B);
}

#[test]
fn two_forms_are_exchanged_and_nothing_else() {
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    check_two_forms(functions(1, INSIDE)[0]);
}

/// One thread at a time makes the page writable for a store and read-only afterwards.
#[test]
fn threads_that_patch_one_page_do_not_remove_each_others_access() {
    const ROUNDS: usize = 20_000;
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(2, INSIDE);
    assert_eq!(sites[0] / 4096, sites[1] / 4096, "sites of one page");
    std::thread::scope(|scope| {
        for site in &sites {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let (old, new) = if round % 2 == 0 { (A, B) } else { (B, A) };
                    // SAFETY: the text is not executed.
                    unsafe { patch(*site, &mov_eax(old), &mov_eax(new)) }.unwrap();
                }
            });
        }
    });
    let page = sites[0] & !4095;
    let maps = common::generated::mappings(&(page..page + 4096));
    assert!(maps.iter().all(|line| line.contains(" r-x")), "{maps:?}");
}

/// The thread that has made the page writable does not exist in the child, which must not wait for
/// it, and has no page that is writable and executable.
#[test]
fn a_child_that_is_forked_while_a_page_is_writable_can_patch() {
    const FORKS: usize = 200;
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    let (busy, site) = (functions(1, INSIDE)[0], functions(1, INSIDE)[0]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let forms = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: the text stays mapped.
    let busy = unsafe { TextRef::resolve(busy, 5) }.unwrap();
    let statuses = std::thread::scope(|scope| {
        // With few other steps, so that the page is writable most of the time.
        scope.spawn(|| {
            while !stop.load(relaxed) {
                for (old, new) in [(0, 1), (1, 0)] {
                    // SAFETY: this text is not executed.
                    unsafe { busy.compare_exchange(FetchWindow::Bytes8, 0, &forms[old], &forms[new]) }
                        .unwrap();
                }
            }
        });
        let fork = |_| {
            // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
            match unsafe { nix::unistd::fork() }.unwrap() {
                nix::unistd::ForkResult::Child => {
                    let is_protected = !is_writable(busy.address());
                    // SAFETY: as above; the site is one instruction.
                    let is_patched =
                        unsafe { unshare().is_ok() && patch(site, &mov_eax(A), &mov_eax(B)).is_ok() }
                            && call(site) == B;
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(i32::from(!(is_protected && is_patched))) }
                }
                nix::unistd::ForkResult::Parent { child } => {
                    (waitpid(child, None), WaitStatus::Exited(child, 0))
                }
            }
        };
        let statuses: Vec<_> = (0..FORKS).map(fork).collect();
        stop.store(true, relaxed);
        statuses
    });
    for (status, expected) in statuses {
        assert_eq!(status, Ok(expected));
    }
}

/// Text of a file that may not be written, which the kernel does not make writable. The next patch
/// of other text must succeed.
#[test]
fn a_page_that_cannot_be_made_writable_does_not_block_others() {
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, INSIDE)[0];
    let file =
        nix::sys::memfd::memfd_create(c"sealed", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING).unwrap();
    let code = [mov_eax(A).as_slice(), &[common::RET], &[0xcc; 4090]].concat();
    nix::unistd::write(&file, &code).unwrap();
    let seal = nix::fcntl::FcntlArg::F_ADD_SEALS(nix::fcntl::SealFlag::F_SEAL_WRITE);
    nix::fcntl::fcntl(&file, seal).unwrap();
    let (protection, flags) = (
        nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_EXEC,
        nix::sys::mman::MapFlags::MAP_SHARED,
    );
    // SAFETY: a new mapping at an address that the kernel chooses.
    let mapping =
        unsafe { nix::sys::mman::mmap(None, 4096.try_into().unwrap(), protection, flags, &file, 0) }.unwrap();
    let sealed = mapping.as_ptr() as usize;
    // SAFETY: the text is not executed during the call.
    unsafe {
        let refused = patch(sealed, &mov_eax(A), &mov_eax(B));
        assert!(matches!(refused, Err(wordpatch::Error::ProtectRefused { .. })), "{refused:?}");
        patch(site, &mov_eax(A), &mov_eax(B)).unwrap();
    }
    assert_eq!((call(sealed), call(site)), (A, B));
    // Children of other tests patch nothing while it is mapped.
    // SAFETY: the test's own mapping, which is not executed any more.
    unsafe { nix::sys::mman::munmap(mapping, 4096) }.unwrap();
}

/// A library was unloaded, and its probes are not known to be gone yet: data at its address must
/// stay writable.
#[test]
fn data_that_is_mapped_where_text_was_is_left_alone() {
    set_access(TextAccess::Mprotect);
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, INSIDE)[0];
    let page = site & !4095;
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: the text is mapped.
    let place = unsafe { TextRef::resolve(site, 5) }.unwrap();
    let forms = TogglePair::new(&place, FetchWindow::Bytes8, 0, [&a, &b]);
    let data = page as *mut libc::c_void;
    // SAFETY: replaces a page of the test by another one, which it owns.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        assert_eq!(libc::mmap(data, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0), data);
        let stored = place.compare_exchange(FetchWindow::Bytes8, 0, &a, &b);
        assert!(matches!(stored, Err(Error::Mismatch { .. })), "{stored:?}");
        let toggled = forms.exchange(Form::Second);
        assert!(matches!(toggled, Err(Error::Mismatch { .. })), "{toggled:?}");
        // Otherwise this is a fault.
        (site as *mut u8).write_volatile(1);
        assert_eq!(libc::munmap(data, 4096), 0);
        let stored = place.compare_exchange(FetchWindow::Bytes8, 0, &a, &b);
        assert!(matches!(stored, Err(Error::NotMapped { address }) if address == site), "{stored:?}");
    }
    // The next patch is not blocked.
    let site = functions(1, INSIDE)[0];
    // SAFETY: the text is not executed during the call.
    unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
}
