//! `patch_all`: many sites, two waits.

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{
    A, B, INSIDE, LONG_T_MAX, RET, STRADDLING, call, functions, mov_eax, patches, text, while_executing,
    with_model, with_window,
};
use wordpatch::{Error, FetchWindow, Patch, TMax, WaitPolicy, patch, patch_all, tsc};

#[track_caller]
fn all_done(results: &[Result<(), Error>]) {
    if let Some((number, Err(error))) = results.iter().enumerate().find(|(_, result)| result.is_err()) {
        panic!("patch {number}: {error}");
    }
}

#[test]
fn thousands_of_straddlers_in_one_batch() {
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(5_000, STRADDLING);
    let (a, b) = (mov_eax(A), mov_eax(B));
    // SAFETY: the text is not executed.
    unsafe {
        all_done(&patch_all(&patches(&sites, &a, &b)));
        assert!(sites.iter().all(|site| call(*site) == B));
        all_done(&patch_all(&patches(&sites, &b, &a)));
    }
    assert!(sites.iter().all(|site| call(*site) == A));
}

#[test]
fn straddlers_and_single_stores_mixed_while_executing() {
    for model in [
        (None, WaitPolicy::Membarrier),
        (Some(LONG_T_MAX), WaitPolicy::TMax),
        (Some(LONG_T_MAX), WaitPolicy::Both),
    ] {
        let _model = with_model(FetchWindow::Bytes8, model.0, model.1);
        let mut sites = functions(20, STRADDLING);
        sites.extend(functions(20, INSIDE));
        sites.extend(functions(20, 63));
        let (a, b) = (mov_eax(A), mov_eax(B));
        while_executing(&sites, |executor| {
            for round in 0..200 {
                let (old, new) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
                // SAFETY: each site is one instruction, and SIGTRAP is not blocked here.
                all_done(&unsafe { patch_all(&patches(&sites, old, new)) });
                if round < 4 {
                    executor.wait_for_calls(2 * sites.len() as u64);
                }
            }
            assert!(executor.seen.iter().all(|count| count.load(Ordering::Relaxed) > 0));
        });
    }
}

/// With a T_max that is long enough to measure: two waits, regardless of the number of sites, and
/// none without a straddler.
#[test]
fn all_patches_of_a_batch_share_the_waits() {
    // Long, because the thread may have to wait for a processor meanwhile.
    const T_MAX: u32 = 200_000_000;
    let _model = with_model(FetchWindow::Bytes8, Some(TMax(T_MAX)), WaitPolicy::TMax);
    let (a, b) = (mov_eax(A), mov_eax(B));
    let waits = |sites: &[usize]| {
        let start = tsc::now();
        // SAFETY: the text is not executed.
        all_done(&unsafe { patch_all(&patches(sites, &a, &b)) });
        (tsc::now() - start) / u64::from(T_MAX)
    };
    let of_many = waits(&functions(100, STRADDLING));
    assert!((2..20).contains(&of_many), "{of_many}");
    assert!(waits(&functions(1, STRADDLING)) >= 2);
    // The thread may have to wait for a processor.
    let of_none = (0..3).map(|_| waits(&functions(100, INSIDE))).min();
    assert!(of_none < Some(2), "{of_none:?}");
}

#[test]
fn a_failing_site_is_unchanged_and_does_not_affect_the_others() {
    let _model = with_window(FetchWindow::Bytes8);
    let sites = functions(4, STRADDLING);
    let inside = functions(2, INSIDE);
    let foreign = text(STRADDLING, &[mov_eax(7).as_slice(), &[RET]].concat());
    // At a window's end, so that it must be locked: `syscall` cannot be moved.
    let kernel = text(63, &[0x0f, 0x05, RET]);
    let breakpoint = text(STRADDLING, &[0xcc, 0x11, 0x11, 0x11, 0x11, RET]);
    let (a, b) = (mov_eax(A), mov_eax(B));
    let to_b = |address| Patch { address, expected: &a, replacement: &b };
    let syscall = Patch { address: kernel, expected: &[0x0f, 0x05], replacement: &[0x89, 0xc0] };
    let split = Patch { address: sites[3], expected: &a, replacement: &[0x90; 5] };
    let batch = [
        to_b(sites[0]),
        to_b(foreign),
        to_b(inside[0]),
        to_b(8),
        to_b(sites[1]),
        syscall,
        to_b(breakpoint),
        to_b(sites[0]),
        to_b(inside[0]),
        split,
        to_b(sites[2] + 1),
        Patch { address: inside[1], expected: &a, replacement: &[] },
        to_b(sites[2]),
    ];
    // SAFETY: the text is not executed.
    let results = unsafe { patch_all(&batch) };
    let names: Vec<String> = results
        .iter()
        .map(|result| match result {
            Ok(()) => "done".to_owned(),
            Err(error) => format!("{error:?}").split([' ', '{']).next().unwrap_or_default().to_owned(),
        })
        .collect();
    let expected = [
        "done",
        "Mismatch",
        "done",
        "NotMapped",
        "done",
        "Immovable",
        "ForeignBreakpoint",
        "Overlap",
        "Overlap",
        "LayoutChanged",
        "Mismatch",
        "Length",
        "Overlap",
    ];
    assert_eq!(names, expected);
    for (site, value) in [
        (sites[0], B),
        (sites[1], B),
        (sites[2], A),
        (sites[3], A),
        (inside[0], B),
        (inside[1], A),
        (foreign, 7),
    ] {
        assert_eq!(call(site), value);
    }
    // SAFETY: the block is mapped.
    assert_eq!(unsafe { *(kernel as *const [u8; 3]) }, [0x0f, 0x05, RET]);
    // All sites are released: each can be patched now.
    // SAFETY: the text is not executed.
    unsafe {
        patch(sites[2], &a, &b).unwrap();
        patch(sites[0], &b, &a).unwrap();
        patch(foreign, &mov_eax(7), &a).unwrap();
    }
}

/// In each round, all threads patch the same sites: one of them succeeds for each site, and the
/// errors of the others are those of concurrent patches.
#[test]
fn rivals_for_the_same_sites_one_succeeds_in_each_round() {
    const THREADS: usize = 3;
    const ROUNDS: u32 = 200;
    let _model = with_window(FetchWindow::Bytes8);
    let sites = [functions(8, STRADDLING), functions(2, INSIDE)].concat();
    for site in &sites {
        // SAFETY: the text is not executed yet.
        unsafe { patch(*site, &mov_eax(A), &mov_eax(0)) }.unwrap();
    }
    let round = Barrier::new(THREADS);
    let successes: Vec<AtomicU32> = sites.iter().map(|_| AtomicU32::new(0)).collect();
    let rival = || {
        for number in 0..ROUNDS {
            let (old, new) = (mov_eax(number * 0x0101_0101), mov_eax((number + 1) * 0x0101_0101));
            round.wait();
            // SAFETY: each site is one instruction, and SIGTRAP is not blocked here.
            let results = unsafe { patch_all(&patches(&sites, &old, &new)) };
            for (result, count) in results.iter().zip(&successes) {
                match result {
                    Ok(()) => _ = count.fetch_add(1, Ordering::Relaxed),
                    Err(Error::Contended { .. } | Error::Mismatch { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            round.wait();
            let done = successes.iter().all(|count| count.load(Ordering::Relaxed) == number + 1);
            assert!(done, "round {number}: {successes:?}");
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(rival)));
    assert!(sites.iter().all(|site| call(*site) == ROUNDS * 0x0101_0101));
}

/// Two instructions `mov al, 1; mov bl, 2`, in one window and with a boundary between them.
#[test]
fn several_instructions_change_in_one_store_or_not_at_all() {
    let _model = with_window(FetchWindow::Bytes8);
    const CODE: [u8; 5] = [0xb0, 1, 0xb3, 2, RET];
    let bytes = |site: usize| {
        // SAFETY: the blocks stay mapped.
        unsafe { *(site as *const [u8; 5]) }
    };
    // SAFETY: the text is not executed.
    unsafe {
        let inside = text(8, &CODE);
        patch(inside, &CODE, &[0xb0, 3, 0xb3, 4, RET]).unwrap();
        assert_eq!(bytes(inside), [0xb0, 3, 0xb3, 4, RET]);

        let cut = text(62, &CODE);
        let error = patch(cut, &CODE, &[0xb0, 3, 0xb3, 4, RET]).unwrap_err();
        assert!(matches!(error, Error::SeveralInstructions { address } if address == cut), "{error:?}");
        assert_eq!(bytes(cut), CODE);
        // Only the second changes; it is in one window.
        patch(cut, &CODE, &[0xb0, 1, 0xb3, 4, RET]).unwrap();
        assert_eq!(bytes(cut), [0xb0, 1, 0xb3, 4, RET]);

        // The second changes and crosses the boundary itself: it is locked at its first byte.
        let second_is_cut = text(61, &CODE);
        patch(second_is_cut, &CODE, &[0xb0, 1, 0xb7, 9, RET]).unwrap();
        assert_eq!(bytes(second_is_cut), [0xb0, 1, 0xb7, 9, RET]);
    }
}
