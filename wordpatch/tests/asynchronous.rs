//! `start_patch`, `finish_patch`, handles and the finisher.

mod common;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::generated::map_over;
use common::{
    A, B, INSIDE, LONG_T_MAX, RET, STRADDLING, call, functions, mov_eax, patches, text, while_executing,
    with_model, with_window,
};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use wordpatch::{
    Error, FetchWindow, Finisher, Outstanding, State, TMax, WaitPolicy, finish_patch, patch, start_patch,
    start_patch_all, tsc,
};

const FIRST_BYTE_OF_LOCK: u8 = 0xcc;

/// Longer than the test.
const FOR_EVER: TMax = TMax(u32::MAX);
const LONG: Duration = Duration::from_secs(60);

fn first_byte(site: usize) -> u8 {
    // SAFETY: text of the test, which stays mapped.
    unsafe { *(site as *const u8) }
}

fn start(site: usize, old: u32, new: u32) -> Result<Outstanding, Error> {
    // SAFETY: each site is one instruction, and SIGTRAP is not blocked here.
    unsafe { start_patch(site, &mov_eax(old), &mov_eax(new)) }
}

#[test]
fn a_straddler_has_both_waits_of_the_paper() {
    const T_MAX: u32 = 20_000_000;
    let _model = with_model(FetchWindow::Bytes8, Some(TMax(T_MAX)), WaitPolicy::TMax);
    let site = functions(1, STRADDLING)[0];
    let mut before_store = tsc::now();
    let patch = start(site, A, B).unwrap();
    let mut states = vec![patch.state()];
    let mut looks = 0;
    while patch.state() != State::Finished {
        let now = tsc::now();
        let state = patch.try_finish().unwrap();
        looks += 1;
        if states.last() != Some(&state) {
            assert!(tsc::now() - before_store >= u64::from(T_MAX), "{state:?} came too early");
            states.push(state);
            before_store = now;
        }
        if state != State::Finished {
            assert_eq!(first_byte(site), FIRST_BYTE_OF_LOCK);
            assert_eq!(call(site), A, "threads continue in the copy");
        }
    }
    assert_eq!(states, [State::FirstWait, State::SecondWait, State::Finished]);
    assert!(looks > 2, "polling does not wait");
    assert_eq!(call(site), B);
    patch.finish().unwrap();
}

#[test]
fn a_poll_before_the_wait_is_over_changes_nothing_and_does_not_block() {
    let _model = with_model(FetchWindow::Bytes8, Some(FOR_EVER), WaitPolicy::TMax);
    // The machine may stand still for as long as the wait takes.
    let attempt = |site| {
        let before = tsc::now();
        let patch = start(site, A, B).unwrap();
        let polled: Vec<_> =
            (0..100).map(|_| (patch.try_finish().unwrap(), finish_patch(site).unwrap())).collect();
        let deadline = Instant::now() + Duration::from_millis(1);
        let waited = patch.wait(deadline).unwrap();
        let is_late = Instant::now() >= deadline;
        let is_in_time = tsc::now() - before < u64::from(FOR_EVER.0);
        is_in_time.then_some((site, patch, polled, waited, is_late))
    };
    let sites = functions(10, STRADDLING);
    let (site, patch, polled, waited, is_late) = sites.into_iter().find_map(attempt).unwrap();
    assert!(polled.iter().all(|polled| *polled == (State::FirstWait, false)), "{polled:?}");
    assert_eq!(waited, State::FirstWait);
    assert!(is_late, "it has returned before the deadline");
    // Ends the wait, so that the drop does not block.
    drop(_model);
    let _model = with_window(FetchWindow::Bytes8);
    assert_eq!(patch.wait(Instant::now() + LONG).unwrap(), State::Finished);
    assert_eq!(call(site), B);
}

#[test]
fn under_the_membarrier_policy_two_polls_finish_a_patch() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    let patch = start(site, A, B).unwrap();
    assert_eq!(patch.state(), State::FirstWait);
    assert_eq!(patch.try_finish().unwrap(), State::SecondWait);
    assert_eq!(patch.try_finish().unwrap(), State::Finished);
    assert_eq!(call(site), B);
}

#[test]
fn a_single_store_is_finished_from_the_start() {
    let _model = with_model(FetchWindow::Bytes8, Some(FOR_EVER), WaitPolicy::TMax);
    let site = functions(1, INSIDE)[0];
    let patch = start(site, A, B).unwrap();
    assert_eq!(patch.state(), State::Finished);
    assert!(finish_patch(site).unwrap());
    assert_eq!(call(site), B);
    assert!(matches!(start(site, A, B), Err(Error::Mismatch { .. })));
}

/// The first patch begins at the same address as the second, but changes the next instruction only.
#[test]
fn all_patches_of_an_address_are_finished_by_it() {
    const FIRST: [u8; 7] = [0x48, 0xc7, 0xc0, 1, 1, 1, 1];
    const CHANGED: [u8; 7] = [0x49, 0xc7, 0xc3, 1, 1, 1, 9];
    let _model = with_window(FetchWindow::Bytes8);
    let both = |opcode| [&FIRST[..], &[opcode, 2, 2, 2, 2]].concat();
    // mov rax, imm32 across one boundary, mov eax, imm32 across the next one.
    let site = text(7, &[&both(0xb8)[..], &[0xc3]].concat());
    // SAFETY: text of the test, which no thread executes.
    unsafe {
        start_patch(site, &both(0xb8)[..8], &both(0xb9)[..8]).unwrap().detach();
        start_patch(site, &FIRST, &CHANGED).unwrap().detach();
        while !finish_patch(site).unwrap() {}
        patch(site + 7, &both(0xb9)[7..], &both(0xb8)[7..]).unwrap();
        patch(site, &CHANGED, &FIRST).unwrap();
    }
}

#[test]
fn the_papers_interface_by_address() {
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(3, STRADDLING);
    for site in &sites {
        start(*site, A, B).unwrap().detach();
    }
    for site in sites.iter().rev() {
        assert_eq!(first_byte(*site), FIRST_BYTE_OF_LOCK);
        assert!(!finish_patch(*site).unwrap());
        assert!(finish_patch(*site).unwrap());
        assert!(finish_patch(*site).unwrap());
        assert_eq!(call(*site), B);
    }
}

#[test]
fn an_outstanding_site_refuses_other_patches_until_it_is_finished() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    let outstanding = start(site, A, B).unwrap();
    assert!(matches!(start(site, A, B), Err(Error::Contended { .. })));
    // SAFETY: no other thread executes the text.
    assert!(matches!(unsafe { patch(site, &mov_eax(A), &mov_eax(7)) }, Err(Error::Contended { .. })));
    outstanding.finish().unwrap();
    // SAFETY: as above.
    unsafe { patch(site, &mov_eax(B), &mov_eax(A)) }.unwrap();
}

#[test]
fn dropping_a_handle_finishes_the_patch() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    drop(start(site, A, B).unwrap());
    assert_eq!((first_byte(site), call(site)), (mov_eax(B)[0], B));
    let outstanding = start(site, B, A).unwrap();
    outstanding.try_finish().unwrap();
    drop(outstanding);
    assert_eq!(call(site), A);
}

#[test]
fn a_batch_returns_the_result_of_each_patch() {
    let _model = with_window(FetchWindow::Bytes8);
    let mut sites = functions(3, STRADDLING);
    sites.extend(functions(2, INSIDE));
    let (a, b) = (mov_eax(A), mov_eax(B));
    // SAFETY: no other thread executes the text.
    unsafe { patch(sites[1], &a, &mov_eax(7)) }.unwrap();
    // SAFETY: as above.
    let batch = unsafe { start_patch_all(&patches(&sites, &a, &b)) };
    assert_eq!(batch.state(), State::FirstWait);
    assert_eq!(call(sites[3]), B, "a single store is done at once");
    // The entire batch is advanced through any of its addresses.
    assert!(!finish_patch(sites[2]).unwrap());
    assert!(finish_patch(sites[0]).unwrap());
    assert_eq!(batch.state(), State::Finished);
    let results = batch.finish_all();
    assert!(matches!(results[1], Err(Error::Mismatch { address, .. }) if address == sites[1]));
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 4);
    assert_eq!(sites.iter().map(|site| call(*site)).collect::<Vec<_>>(), [B, 7, B, B, B]);
}

#[test]
fn many_outstanding_patches_from_many_threads_while_executing() {
    const THREADS: usize = 3;
    const EACH: usize = 16;
    for (t_max, wait) in [(None, WaitPolicy::Membarrier), (Some(LONG_T_MAX), WaitPolicy::TMax)] {
        let _model = with_model(FetchWindow::Bytes8, t_max, wait);
        let sites = functions(THREADS * EACH, STRADDLING);
        while_executing(&sites, |executor| {
            std::thread::scope(|scope| {
                for mine in sites.chunks(EACH) {
                    scope.spawn(move || {
                        for round in 0..20 {
                            let (old, new) = if round % 2 == 0 { (A, B) } else { (B, A) };
                            let all: Vec<_> =
                                mine.iter().map(|site| start(*site, old, new).unwrap()).collect();
                            for patch in &all {
                                assert_eq!(patch.wait(Instant::now() + LONG).unwrap(), State::Finished);
                            }
                        }
                    });
                }
            });
            executor.wait_for_calls(100);
        });
        assert!(sites.iter().all(|site| call(*site) == A));
    }
}

#[test]
fn a_finisher_finishes_its_patches_and_all_of_them_before_it_ends() {
    for (t_max, wait) in [(None, WaitPolicy::Membarrier), (Some(LONG_T_MAX), WaitPolicy::TMax)] {
        let _model = with_model(FetchWindow::Bytes8, t_max, wait);
        let sites = functions(200, STRADDLING);
        while_executing(&sites, |executor| {
            let finisher = Finisher::start().unwrap();
            let watched = start(sites[0], A, B).unwrap();
            finisher.take_over(&watched).unwrap();
            finisher.take_over(&watched).unwrap();
            // Only the finisher advances it.
            while watched.state() != State::Finished {
                std::thread::yield_now();
            }
            watched.finish().unwrap();
            for site in &sites[1..] {
                finisher.take_over(&start(*site, A, B).unwrap()).unwrap();
            }
            drop(finisher);
            assert!(sites.iter().all(|site| first_byte(*site) == mov_eax(B)[0] && call(*site) == B));
            executor.wait_for_calls(sites.len() as u64 * 2);
            assert!(executor.seen[1].load(Ordering::Relaxed) > 0);
        });
    }
}

/// Maps pages with `mov eax, A; ret` at the end of a cache line.
fn pages_with_a_straddler() -> (std::ptr::NonNull<libc::c_void>, usize) {
    let size = 4096.try_into().unwrap();
    let writable = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, filled before it is sealed.
    unsafe {
        let page = mmap_anonymous(None, size, writable, MapFlags::MAP_PRIVATE).unwrap();
        let site = page.as_ptr() as usize + STRADDLING;
        std::ptr::copy_nonoverlapping([mov_eax(A).as_slice(), &[RET]].concat().as_ptr(), site as *mut u8, 6);
        mprotect(page, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC).unwrap();
        (page, site)
    }
}

#[test]
fn text_that_is_unmapped_while_it_is_patched() {
    let _model = with_window(FetchWindow::Bytes8);
    let (page, site) = pages_with_a_straddler();
    let outstanding = start(site, A, B).unwrap();
    // SAFETY: the page is not executed any more.
    unsafe { munmap(page, 4096) }.unwrap();
    assert_eq!(outstanding.try_finish().unwrap(), State::SecondWait);
    assert!(matches!(outstanding.finish(), Err(Error::TextGone { address }) if address == site));
}

/// Three straddlers in one page; each error is reported by address, once, and not again by the
/// handle.
#[test]
fn errors_of_a_batch_reported_by_address() {
    let _model = with_window(FetchWindow::Bytes8);
    let (page, first) = pages_with_a_straddler();
    let sites = [first, first + 64, first + 128];
    let form = [mov_eax(A).as_slice(), &[RET]].concat();
    // SAFETY: the page is not executed before, nor after it was unmapped.
    let batch = unsafe {
        mprotect(page, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).unwrap();
        sites
            .iter()
            .for_each(|site| std::ptr::copy_nonoverlapping(form.as_ptr(), *site as *mut u8, form.len()));
        mprotect(page, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC).unwrap();
        let batch = start_patch_all(&patches(&sites, &mov_eax(A), &mov_eax(B)));
        munmap(page, 4096).unwrap();
        batch
    };
    assert!(!finish_patch(sites[1]).unwrap());
    for site in [sites[0], sites[2]] {
        assert!(matches!(finish_patch(site), Err(Error::TextGone { address }) if address == site));
        assert!(finish_patch(site).unwrap());
    }
    assert!(matches!(batch.finish_all()[..], [Err(Error::TextGone { address })] if address == sites[1]));
}

#[test]
fn text_that_is_replaced_while_it_is_patched_stays_as_it_is() {
    let _model = with_window(FetchWindow::Bytes8);
    let (page, site) = pages_with_a_straddler();
    start(site, A, B).unwrap().detach();
    let size = 4096.try_into().unwrap();
    let fixed = MapFlags::MAP_FIXED | MapFlags::MAP_PRIVATE;
    let address = (page.as_ptr() as usize).try_into().unwrap();
    // SAFETY: the page is not executed; it contains data from now on.
    unsafe {
        let data =
            mmap_anonymous(Some(address), size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, fixed).unwrap();
        data.cast::<[u8; 4096]>().as_ptr().write([0x77; 4096]);
    }
    assert!(!finish_patch(site).unwrap());
    assert!(matches!(finish_patch(site), Err(Error::TextGone { .. })));
    assert!(finish_patch(site).unwrap(), "it is reported once");
    // SAFETY: mapped above.
    assert!(unsafe { page.cast::<[u8; 4096]>().read() }.iter().all(|byte| *byte == 0x77));
}

/// The text was replaced by the same bytes before the patch, which is detected only after the first
/// store. A single store is repeated; a straddler reports an error at its end, whether it was
/// locked or not.
#[test]
fn text_that_was_replaced_before_it_is_patched() {
    let _model = with_window(FetchWindow::Bytes8);
    let replaced = |offset| {
        let site = functions(1, offset)[0];
        // SAFETY: no other thread executes or maps this page.
        unsafe {
            patch(site, &mov_eax(A), &mov_eax(B)).unwrap();
            map_over(site, &[mov_eax(B).as_slice(), &[RET]].concat());
        }
        site
    };
    let inside = replaced(INSIDE);
    start(inside, B, 7).unwrap().finish().unwrap();
    assert_eq!(call(inside), 7);
    for new in [7, B ^ 0xff00_0000] {
        let site = replaced(STRADDLING);
        let result = start(site, B, new).unwrap().finish();
        assert!(matches!(result, Err(Error::TextGone { address }) if address == site), "{result:?}");
        assert_eq!(call(site), B);
    }
}

/// Other code writes the site although it is locked: the patch reports it, and does not change
/// these bytes.
#[test]
fn a_foreign_store_to_a_locked_site() {
    let _model = with_window(FetchWindow::Bytes8);
    let file = nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::empty()).unwrap();
    nix::unistd::ftruncate(&file, 4096).unwrap();
    let map = |protection| {
        // SAFETY: a new mapping.
        unsafe {
            nix::sys::mman::mmap(None, 4096.try_into().unwrap(), protection, MapFlags::MAP_SHARED, &file, 0)
        }
        .unwrap()
        .as_ptr() as usize
    };
    let (view, code) =
        (map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE), map(ProtFlags::PROT_READ | ProtFlags::PROT_EXEC));
    let site = code + STRADDLING;
    let write = |offset: usize, bytes: &[u8]| {
        // SAFETY: inside the writable alias.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (view + STRADDLING + offset) as *mut u8,
                bytes.len(),
            )
        };
    };
    write(0, &mov_eax(A));
    write(5, &[RET]);
    let outstanding = start(site, A, B).unwrap();
    write(3, &[0x22]);
    assert_eq!(outstanding.try_finish().unwrap(), State::Finished);
    assert!(matches!(outstanding.finish(), Err(Error::Mismatch { .. })));
    // The lock has been removed, and the foreign bytes are still there.
    assert_eq!(call(site), A & 0xff00_ffff | 0x22_0000 | A & 0xff00_0000);
    // SAFETY: no other thread executes the text.
    unsafe { patch(site, &mov_eax(call(site)), &mov_eax(B)) }.unwrap();
}
