//! Deliberate defects of protocols and machines: each must be detected, and the same scenario
//! without the defect must hold.

use wordpatch_model::explore::Flaw;
use wordpatch_model::{Code, Handler, Job, Program, Scenario, Stores, Violation};

use super::single::{across, windows};
use super::{CALL, NOP, OTHER_CALL, Straddler, boundary, is_mixture, mixture_of, patch_of, wait};
use crate::FetchWindow;

/// Checks that the sound scenario holds and that the broken one has this flaw.
#[track_caller]
fn check(sound: &Scenario, broken: &Scenario, expected: impl Fn(&Flaw<Violation>) -> bool) {
    sound.holds();
    broken.fails(expected);
}

/// The front of one instruction with the back of another.
fn mixture(front: &[u8], back: &[u8], split: usize) -> impl Fn(&Flaw<Violation>) -> bool + use<> {
    mixture_of(&[&front[..split], &back[split..]].concat())
}

#[test]
fn first_wait_removed_old_front_runs_with_new_back() {
    for front in 1..CALL.len() {
        let site = Straddler { front, ..Straddler::ANY };
        let patch = || site.patch(&CALL, &NOP);
        let scenario = |patch| site.scenario(&CALL, 1).patcher(Program::new([patch]));
        check(&scenario(patch()), &scenario(patch().without_wait(0)), mixture(&CALL, &NOP, front));
    }
}

#[test]
fn second_wait_removed_new_front_runs_with_old_back() {
    for front in 1..CALL.len() {
        let site = Straddler { front, ..Straddler::ANY };
        let patch = || site.patch(&CALL, &NOP);
        let scenario = |patch| site.scenario(&CALL, 1).patcher(Program::new([patch]));
        check(&scenario(patch()), &scenario(patch().without_wait(1)), mixture(&NOP, &CALL, front));
    }
}

/// The first wait also protects against stale bytes of the previous patch.
#[test]
fn patched_back_without_the_first_wait() {
    let site = Straddler::ANY;
    let scenario = |back| site.scenario(&CALL, 1).patcher(Program::new([site.patch(&CALL, &NOP), back]));
    let back = || site.patch(&NOP, &CALL);
    check(&scenario(back()), &scenario(back().without_wait(0)), mixture(&NOP, &CALL, 3));
}

/// A store that crosses a boundary of the true window, but not of the assumed one, tears; other
/// stores do not.
#[test]
fn window_assumed_too_large_a_single_store_tears() {
    for (true_window, assumed) in windows().filter(|(true_window, assumed)| assumed > true_window) {
        for edge in FetchWindow::ALL {
            let scenario = across(true_window, assumed, edge);
            if true_window <= edge && edge < assumed {
                check(&across(true_window, true_window, edge), &scenario, is_mixture);
            } else {
                scenario.holds();
            }
        }
    }
}

/// Two calls five bytes apart share a word; both patchers load it, and each stores it with its own
/// bytes changed.
#[test]
fn neighbours_written_without_care_lose_an_update() {
    let window = FetchWindow::Bytes32;
    let (one, other) = (boundary(window), boundary(window) + 5);
    let scenario = |stores| {
        let patch = |number, address, old: &[u8], new: &[u8]| {
            Program::new([patch_of(window, number, address, old, new)])
        };
        Scenario::new(window.bytes(), boundary(window))
            .storing(stores)
            .site(one, &CALL, 1)
            .site(other, &[0x75, 0x10], 1)
            .patcher(patch(0, one, &CALL, &NOP))
            .patcher(patch(1, other, &[0x75, 0x10], &[0x74, 0x20]))
    };
    check(&scenario(Stores::CompareExchange), &scenario(Stores::WholeWord), |flaw| {
        matches!(flaw, Flaw::Violation(Violation::Unexplained(_)))
    });
}

/// The INT3 is still in the store buffer when the wait begins, so the wait is over too soon.
#[test]
fn plain_stores_and_waits_that_do_not_drain_the_store_buffer() {
    let site = Straddler::ANY;
    let scenario = || {
        let program = Program::new([site.patch(&CALL, &NOP)]);
        site.scenario(&CALL, 1).patcher(program).storing(Stores::Plain)
    };
    check(&scenario(), &scenario().waits_do_not_drain(), is_mixture);
}

/// Plain stores compare nothing: of two patchers that own the site one after the other, the second
/// one overwrites bytes that it has not read.
#[test]
fn plain_stores_of_a_site_that_nobody_owns() {
    let site = Straddler { window: FetchWindow::Bytes8, front: 5 };
    let scenario = |stores| {
        let patch = |new: &[u8]| Program::new([site.patch(&CALL, new)]);
        site.scenario(&CALL, 1).patcher(patch(&NOP)).patcher(patch(&OTHER_CALL)).storing(stores)
    };
    check(&scenario(Stores::CompareExchange), &scenario(Stores::Plain), |flaw| {
        matches!(flaw, Flaw::Violation(Violation::Unexplained(_)))
    });
}

/// A trapped thread finds no owner of the site.
#[test]
fn site_not_owned_its_lock_is_taken_for_a_breakpoint() {
    let site = Straddler::ANY;
    let scenario = |patch| site.scenario(&CALL, 1).patcher(Program::new([patch]));
    let patch = || site.patch(&CALL, &NOP);
    check(&scenario(patch()), &scenario(patch().without_owning()), |flaw| {
        *flaw == Flaw::Violation(Violation::ForeignTrap)
    });
}

/// A store to one side does not compare the other side, which another patch changes at the same
/// time: both succeed, and the result is an instruction that neither has requested.
#[test]
fn site_not_owned_both_sides_are_patched_at_once() {
    let site = Straddler::ANY;
    let front = || site.patch(&CALL, &[0xb8, 0x11, 0x22, 0x33, 0x44]);
    let back = || site.patch(&CALL, &[0xe8, 0x11, 0x22, 0x99, 0x88]);
    let scenario =
        |front, back| site.scenario(&CALL, 0).patcher(Program::new([front])).patcher(Program::new([back]));
    check(&scenario(front(), back()), &scenario(front().without_owning(), back().without_owning()), |flaw| {
        matches!(flaw, Flaw::Violation(Violation::Unexplained(_)))
    });
}

/// With the paper's handler, a thread that executes INT3 depends on the patcher.
#[test]
fn handler_that_spins_is_stopped_by_a_stopped_patcher() {
    let site = Straddler::ANY;
    let scenario = site.scenario(&CALL, 1).patcher(Program::new([site.patch(&CALL, &NOP)]));
    check(&scenario.clone(), &scenario.handler(Handler::Spin), |flaw| *flaw == Flaw::Depends(0));
}

/// The site was free when the handler read its record; then it was acquired and locked.
#[test]
fn handler_that_does_not_count_takings_sees_a_breakpoint_in_the_next_lock() {
    let site = Straddler::ANY;
    let scenario = site.scenario(&CALL, 1).patcher(site.to_and_fro(&CALL, &NOP));
    check(&scenario.clone(), &scenario.handler(Handler::Hasty), |flaw| {
        *flaw == Flaw::Violation(Violation::ForeignTrap)
    });
}

/// `patch` returns before all executors have seen the new instruction; the wait after it ends this.
#[test]
fn no_wait_at_the_end_the_old_instruction_still_runs() {
    let site = Straddler { window: FetchWindow::Bytes8, front: 5 };
    let scenario = |rest: &[Job]| {
        let program = Program::new([&[site.patch(&CALL, &NOP)], rest].concat());
        site.scenario(&CALL, 1).patcher(program).seen_at_the_end()
    };
    check(&scenario(&[wait()]), &scenario(&[]), |flaw| {
        *flaw == Flaw::Violation(Violation::Stale(Code::new(&CALL)))
    });
}

/// A patch that expects other bytes fails, which the model reports.
#[test]
fn old_bytes_that_do_not_stand_there() {
    let site = Straddler::ANY;
    let scenario = |patch| site.scenario(&CALL, 1).patcher(Program::new([patch]));
    check(&scenario(site.patch(&CALL, &OTHER_CALL)), &scenario(site.patch(&NOP, &OTHER_CALL)), |flaw| {
        *flaw == Flaw::Violation(Violation::AllPatchesFailed(0))
    });
}
