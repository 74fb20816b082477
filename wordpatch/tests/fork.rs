//! Forks while sites are locked: the child continues in the copies, and its own text contains no
//! partial patch.

mod common;

use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::alone::{alone, is_in_child};
use common::children::{check, fail, fork};
use common::{A, B, RET, STRADDLING, call, functions, mov_eax, patches, with_window};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use wordpatch::code_memory::{CodeArena, CodeBuffer};
use wordpatch::internal::{forks, leave_to_children, no_forks};
use wordpatch::text::{copied_bytes, is_shared_with_parent, unshare};
use wordpatch::{
    Bytes, Error, FetchWindow, State, TextRef, finish_patch, patch, patch_all, start_patch, tsc,
};

fn first_byte(site: usize) -> u8 {
    // SAFETY: text of the test, which stays mapped.
    unsafe { *(site as *const u8) }
}

/// The number of pages of a mapping that are in memory.
fn resident_pages(range: &Range<usize>) -> usize {
    let mut pages = vec![0_u8; range.len() / 4096];
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: writes one byte for each page.
    assert_eq!(unsafe { libc::mincore(start, range.len(), pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// A parent leaves its pages to the children that it has forked: they execute the old code, before
/// and after they get pages of their own, and later children the new code. Of an arena, only what
/// was written is copied.
#[test]
fn children_keep_the_pages_that_their_parent_leaves_to_them() {
    let code = |value: u32| [&mov_eax(value)[..], &[RET]].concat();
    let mut buffer = CodeBuffer::new(4096).unwrap();
    buffer.append(&code(A), 8).unwrap();
    let memory = buffer.seal().unwrap();
    let before = copied_bytes();
    let mut arena = CodeArena::near(&memory.pages(), 1 << 30).unwrap();
    assert_eq!(copied_bytes(), before);
    let appended = arena.append(&code(A), 8).unwrap();
    assert_eq!(copied_bytes(), before + 4096);
    let sites = [memory.address(), appended];
    // SAFETY: code of the test, which stays mapped.
    let places = sites.map(|site| unsafe { TextRef::resolve(site, 5) }.unwrap());
    let texts = [memory.pages(), arena.pages()];
    let arena_pages = arena.pages();
    let change = |old: u32, new: u32| {
        let [old, new] = [old, new].map(|value| Bytes::new(&mov_eax(value)).unwrap());
        for place in &places {
            // SAFETY: one instruction, inside an aligned quadword.
            unsafe { place.compare_exchange(FetchWindow::Bytes8, 0, &old, &new) }.unwrap();
        }
    };
    let are = |value: u32| sites.iter().all(|site| call(*site) == value);
    let (mut go_on, mut changed) = std::io::pipe().unwrap();
    let first = move || {
        check(go_on.read_exact(&mut [0]).is_ok(), "the parent has made its change");
        check(are(A), "the code as it was");
        // SAFETY: the child has one thread.
        check(unsafe { leave_to_children(&[]) }.is_err(), "the pages are the parent's");
        // SAFETY: as above.
        check(unsafe { unshare() }.is_ok() && are(A), "its own pages");
        check(resident_pages(&arena_pages) == 1, "only what was written");
        change(A, 7);
        check(are(7), "the child's change");
    };
    fork(first, || {
        let before = forks();
        let no_forks = no_forks();
        // SAFETY: no thread forks; no other thread writes the code.
        unsafe { leave_to_children(&texts) }.unwrap();
        drop(no_forks);
        assert!(are(A) && resident_pages(&arena.pages()) == 1);
        assert_eq!(forks(), before);
        change(A, B);
        assert!(are(B));
        fork(|| check(are(B), "the changed code"), || ());
        changed.write_all(&[0]).unwrap();
    });
    assert!(are(B) && forks() >= 2);
}

/// The tables of the decoder are made when a process decodes its first instruction. The fork may
/// come at any time from then on.
#[test]
fn a_fork_during_the_first_patch_of_a_process_does_not_block_the_child() {
    const PROCESSES: u32 = 24;
    const LONGEST_DELAY: u64 = 1_500_000;
    for _ in 0..PROCESSES {
        alone("a_fork_during_the_first_patch_of_a_process_does_not_block_the_child", || {
            let _model = with_window(FetchWindow::Bytes8);
            let sites = functions(2, STRADDLING);
            let begins = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begins.wait();
                    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
                    unsafe { patch(sites[0], &mov_eax(A), &mov_eax(B)) }.unwrap();
                });
                begins.wait();
                let end = tsc::now() + tsc::now() % LONGEST_DELAY;
                while tsc::now() < end {
                    std::hint::spin_loop();
                }
                let child = || {
                    // SAFETY: the child ends by this signal if it waits.
                    unsafe { libc::alarm(60) };
                    // SAFETY: the child has one thread.
                    check(unsafe { unshare() }.is_ok(), "the child gets its own text");
                    // SAFETY: as above.
                    let patched = unsafe { patch(sites[1], &mov_eax(A), &mov_eax(B)) };
                    check(patched.is_ok() && call(sites[1]) == B, "the child patches");
                };
                fork(child, || {});
            });
        });
        if is_in_child() {
            return;
        }
    }
}

#[test]
fn a_child_forked_during_a_patch_has_the_old_instruction() {
    let _model = with_window(FetchWindow::Bytes8);
    for state in [State::FirstWait, State::SecondWait] {
        let site = functions(1, STRADDLING)[0];
        // SAFETY: the site is one instruction, and SIGTRAP is not blocked here; also below.
        let outstanding = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
        // After a fork, a wait is not over at the first poll.
        while outstanding.state() < state {
            outstanding.try_finish().unwrap();
        }
        let ours = &outstanding;
        let child = move || {
            check(first_byte(site) == 0xcc && call(site) == A, "the child executes the copy");
            check(is_shared_with_parent(), "the text is shared");
            check(matches!(ours.try_finish(), Err(Error::Forked { .. })), "the patch is the parent's");
            // SAFETY: as above.
            let refused = unsafe { patch(site, &mov_eax(A), &mov_eax(7)) };
            check(refused.is_err(), "the parent's text cannot be patched");
            // SAFETY: the child has one thread.
            check(unsafe { unshare() }.is_ok(), "the child gets its own text");
            check(first_byte(site) == mov_eax(A)[0] && call(site) == A, "the old instruction is there");
            check(matches!(ours.try_finish(), Err(Error::Forked { .. })), "the patch is still the parent's");
            check(matches!(finish_patch(site), Err(Error::Forked { .. })), "by address too");
            check(matches!(finish_patch(site), Ok(true)), "it is reported once");
            // SAFETY: as above.
            check(unsafe { patch(site, &mov_eax(A), &mov_eax(7)) }.is_ok(), "the child patches");
            check(call(site) == 7, "the child executes its patch");
        };
        fork(child, || ());
        assert_eq!((first_byte(site), call(site)), (0xcc, A), "the child does not change its parent's text");
        assert_eq!(outstanding.wait(Instant::now() + Duration::from_secs(60)).unwrap(), State::Finished);
        assert_eq!(call(site), B);
    }
}

#[test]
fn a_dropped_handle_and_a_finisher_do_nothing_in_a_child() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    let mut handle = Some(unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap());
    let mut finisher = Some(wordpatch::Finisher::start().unwrap());
    fork(
        || {
            let (Some(handle), Some(finisher)) = (handle.take(), finisher.take()) else { return };
            check(finisher.take_over(&handle).is_err(), "the finisher's thread is the parent's");
            drop(finisher);
            let results = handle.finish_all();
            check(
                matches!(results[..], [Err(Error::Forked { address })] if address == site),
                "it is reported",
            );
            check(first_byte(site) == 0xcc, "nothing was stored");
        },
        || (),
    );
    finisher.as_ref().unwrap().take_over(handle.as_ref().unwrap()).unwrap();
    drop(finisher);
    assert_eq!(handle.unwrap().state(), State::Finished);
    assert_eq!(call(site), B);
}

/// Ends the patching thread, even if an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The parent continues patching while its children execute the shared text, and while they copy
/// it.
#[test]
fn children_of_a_parent_that_keeps_patching() {
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(16, STRADDLING);
    let (a, b) = (mov_eax(A), mov_eax(B));
    let stop = AtomicBool::new(false);
    let rounds = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (old, new) in [(&a, &b), (&b, &a)] {
                    // SAFETY: each site is one instruction, and SIGTRAP is not blocked here.
                    let results = unsafe { patch_all(&patches(&sites, old, new)) };
                    assert!(results.iter().all(Result::is_ok), "{results:?}");
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _stop = Stop(&stop);
        let is_whole = |value| value == A || value == B;
        for _ in 0..60 {
            let child = || {
                for _ in 0..200 {
                    check(sites.iter().all(|site| is_whole(call(*site))), "torn in the shared text");
                }
                // SAFETY: the child has one thread.
                check(unsafe { unshare() }.is_ok(), "the child gets its own text");
                for site in &sites {
                    let value = call(*site);
                    check(first_byte(*site) == a[0] && is_whole(value), "a lock was copied");
                    // SAFETY: as above.
                    let patched = unsafe { patch(*site, &mov_eax(value), &mov_eax(value ^ 1)) };
                    check(patched.is_ok() && call(*site) == value ^ 1, "the child patches");
                }
            };
            let before = rounds.load(Ordering::Relaxed);
            fork(child, || {
                while rounds.load(Ordering::Relaxed) < before + 2 {
                    std::thread::yield_now();
                }
            });
        }
    });
}

/// Copies that the parent makes after the fork, in pages that the child does not have.
#[test]
fn a_child_executes_locked_sites_whose_copies_it_does_not_have() {
    const PATCHES: u32 = 9_000;
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here; also below.
    unsafe { patch(site, &mov_eax(A), &mov_eax(0)) }.unwrap();
    fork(
        || loop {
            match call(site) {
                value if value % 0x1_0001 != 0 => fail("torn"),
                value if value == PATCHES * 0x1_0001 => break,
                _ => {}
            }
        },
        || {
            let start = tsc::now();
            for value in 0..PATCHES {
                // SAFETY: as above.
                unsafe { patch(site, &mov_eax(value * 0x1_0001), &mov_eax((value + 1) * 0x1_0001)) }.unwrap();
            }
            // Two waits each, which include the child. Without them, it executes a mixture in only
            // one run out of ten.
            assert!(tsc::now() - start >= u64::from(PATCHES) * 2 * 50_000);
        },
    );
}

/// Text that the caller has mapped writable: the child has its own copy of it from the start, with
/// the lock in it.
#[test]
fn text_that_a_child_does_not_share_is_rolled_back_before_fork_returns() {
    let _model = with_window(FetchWindow::Bytes8);
    let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
    // SAFETY: a new mapping.
    let page = unsafe { mmap_anonymous(None, 4096.try_into().unwrap(), all, MapFlags::MAP_PRIVATE) }.unwrap();
    let site = page.as_ptr() as usize + STRADDLING;
    for state in [State::FirstWait, State::SecondWait] {
        // SAFETY: the page is not executed yet.
        unsafe {
            std::ptr::copy_nonoverlapping(
                [mov_eax(A).as_slice(), &[RET]].concat().as_ptr(),
                site as *mut u8,
                6,
            )
        };
        // SAFETY: the site is one instruction, and SIGTRAP is not blocked here; also below.
        let outstanding = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
        // After a fork, a wait is not over at the first poll.
        while outstanding.state() < state {
            outstanding.try_finish().unwrap();
        }
        let child = || {
            check(first_byte(site) == mov_eax(A)[0] && call(site) == A, "the old instruction is there");
            // SAFETY: as above.
            let refused = unsafe { patch(site, &mov_eax(A), &mov_eax(7)) };
            check(matches!(refused, Err(Error::SharedWithParent { .. })), "the table is shared");
            // SAFETY: the child has one thread.
            check(unsafe { unshare() }.is_ok(), "the child gets its own table");
            // SAFETY: as above.
            check(
                unsafe { patch(site, &mov_eax(A), &mov_eax(7)) }.is_ok() && call(site) == 7,
                "the child patches",
            );
        };
        fork(child, || ());
        outstanding.finish().unwrap();
        assert_eq!(call(site), B);
    }
}

/// Patched text that was unmapped: a later mapping at its address is ordinary memory of the child.
#[test]
fn unshare_does_not_change_what_was_mapped_over_patched_text() {
    const DATA: u8 = 0x77;
    let _model = with_window(FetchWindow::Bytes8);
    let page = functions(1, 8)[0] & !4095;
    let sites = [page + 8, functions(1, STRADDLING)[0]];
    // SAFETY: each site is one instruction, and SIGTRAP is not blocked here; also below.
    sites.iter().for_each(|site| unsafe { patch(*site, &mov_eax(A), &mov_eax(B)) }.unwrap());
    let fixed = MapFlags::MAP_FIXED | MapFlags::MAP_PRIVATE;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the test owns the page, which is not executed any more.
    let data = unsafe {
        let data =
            mmap_anonymous(Some(page.try_into().unwrap()), 4096.try_into().unwrap(), protection, fixed)
                .unwrap()
                .cast::<[u8; 4096]>();
        data.write([DATA; 4096]);
        data
    };
    let child = || {
        // SAFETY: the child has one thread.
        check(unsafe { unshare() }.is_ok(), "the child gets its own text");
        // SAFETY: mapped above.
        check(unsafe { data.read() } == [DATA; 4096], "data was overwritten by unmapped text");
        // SAFETY: as above.
        check(unsafe { patch(sites[1], &mov_eax(B), &mov_eax(A)) }.is_ok(), "the child patches");
    };
    fork(child, || ());
    assert_eq!(call(sites[1]), B);
}

/// What is mapped where the text was is not known without /proc.
#[test]
fn unshare_fails_if_it_cannot_read_the_mappings() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    let child = || {
        // No descriptor for /proc; text of any size gets memory that needs none.
        let nothing = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        for resource in [libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE] {
            // SAFETY: reads the limit.
            check(unsafe { libc::setrlimit(resource, &nothing) } == 0, "a limit is set");
        }
        // SAFETY: the child has one thread.
        check(matches!(unsafe { unshare() }, Err(Error::MemoryMap { .. })), "the mappings are not known");
        check(is_shared_with_parent() && call(site) == B, "nothing has changed");
    };
    fork(child, || ());
}

/// Memory that the program has mapped shared, as generators of code do that write it through
/// another mapping: a child stays in the parent's text, and executes the sites that its parent has
/// locked.
#[test]
fn text_that_the_program_has_mapped_shared_is_its_parents() {
    alone("text_that_the_program_has_mapped_shared_is_its_parents", shared_by_the_program);
}

fn shared_by_the_program() {
    let _model = with_window(FetchWindow::Bytes8);
    let read_write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping.
    let page = unsafe { mmap_anonymous(None, 4096.try_into().unwrap(), read_write, MapFlags::MAP_SHARED) };
    let page = page.unwrap();
    let [inside, crossing] = [8, STRADDLING + 64].map(|offset| page.addr().get() + offset);
    for site in [inside, crossing] {
        let code = [mov_eax(A).as_slice(), &[RET]].concat();
        // SAFETY: inside the page, which is not executed yet.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), site as *mut u8, code.len()) };
    }
    // SAFETY: the page is not in use yet.
    unsafe { mprotect(page, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC) }.unwrap();
    let own = functions(1, 8)[0];
    let change = |site: usize, from: u32, to: u32| {
        // SAFETY: each site is one instruction, and SIGTRAP is not blocked here; also below.
        unsafe { patch(site, &mov_eax(from), &mov_eax(to)) }
    };
    // The copies of both forms exist before the fork.
    for site in [inside, crossing, own] {
        [(A, B), (B, A), (A, B)].into_iter().for_each(|(from, to)| change(site, from, to).unwrap());
    }
    let (mut go_on, mut locked) = std::io::pipe().unwrap();
    let (mut executed, mut has_executed) = std::io::pipe().unwrap();
    let (change, sites) = (&change, [inside, crossing, own]);
    let child = move || {
        // The parent may have locked the site already.
        let is_refused = |site| {
            matches!(change(site, B, A), Err(Error::SharedWithParent { .. } | Error::Contended { .. }))
        };
        check(sites.iter().all(|site| is_refused(*site)), "the child patches");
        // SAFETY: the child has one thread; also below.
        let refused = unsafe { unshare() };
        let is_of_page =
            matches!(refused, Err(Error::SharedWithParent { address }) if address == page.addr().get());
        check(is_of_page, "the page cannot be separated");
        check(sites.iter().all(|site| is_refused(*site)), "the child patches");
        check(go_on.read_exact(&mut [0]).is_ok(), "the parent has locked the site");
        check(first_byte(crossing) == 0xcc && call(crossing) == B, "the old instruction is executed");
        check(has_executed.write_all(b"x").is_ok(), "the parent waits");
        // SAFETY: as above, and the page is not used any more.
        check(unsafe { munmap(page, 4096) }.is_ok() && unsafe { unshare() }.is_ok(), "nothing is shared");
        check(change(own, B, A).is_ok() && call(own) == A, "the child patches its own text");
    };
    let parent = || {
        // SAFETY: as above.
        let outstanding = unsafe { start_patch(crossing, &mov_eax(B), &mov_eax(A)) }.unwrap();
        locked.write_all(b"x").unwrap();
        assert!(executed.read_exact(&mut [0]).is_ok(), "the child has failed");
        outstanding.finish().unwrap();
        assert_eq!((call(inside), call(crossing), call(own)), (B, A, B));
    };
    fork(child, parent);
}
