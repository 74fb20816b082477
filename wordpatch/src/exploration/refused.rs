//! Waits that the kernel refuses, from any wait on.

use wordpatch_model::{Program, Scenario};

use super::{CALL, NOP, OTHER_CALL, Straddler, batch_of, boundary, wait};
use crate::FetchWindow;

/// If the first wait is refused, the lock is removed; if the second is, the site stays locked and
/// the old instruction is executed.
#[test]
fn a_straddler_patched_and_patched_again() {
    for front in 1..CALL.len() {
        let site = Straddler { front, ..Straddler::ANY };
        let jobs = [site.patch(&CALL, &NOP), site.patch(&CALL, &OTHER_CALL), site.patch(&NOP, &CALL), wait()];
        site.scenario(&CALL, 2).patcher(Program::new(jobs).refusable()).holds();
    }
}

/// The patch is complete and keeps the site: no other patch may follow, since no wait has ended.
#[test]
fn one_side_patched_and_then_the_other() {
    let site = Straddler::ANY;
    let (front, both) = ([0xb8, 0x11, 0x22, 0x33, 0x44], [0xb8, 0x11, 0x22, 0x99, 0x88]);
    let jobs = [site.patch(&CALL, &front), site.patch(&front, &both), site.patch(&both, &CALL), wait()];
    site.scenario(&CALL, 1).patcher(Program::new(jobs).refusable()).holds();
}

#[test]
fn one_patcher_is_refused_and_another_one_waits() {
    let site = Straddler::ANY;
    let scenario = site
        .scenario(&CALL, 1)
        .patcher(Program::new([site.patch(&CALL, &NOP), wait()]).refusable())
        .patcher(Program::new([site.patch(&CALL, &OTHER_CALL), wait()]));
    scenario.holds();
}

#[test]
fn a_batch_with_every_kind_of_patch() {
    let window = FetchWindow::Bytes8;
    let places = [boundary(window) - 4, boundary(window) + 4, boundary(window) + 9];
    let front = [0xb8, 0x11, 0x22, 0x33, 0x44];
    let patches: [(usize, &[u8], &[u8]); 3] =
        [(places[0], &CALL, &front), (places[1], &CALL, &NOP), (places[2], &CALL[..1], &[0xb8])];
    let batch = batch_of(window, &patches[..2]);
    let begin = Scenario::new(window.bytes(), boundary(window));
    let scenario = places[..2].iter().fold(begin, |scenario, place| scenario.site(*place, &CALL, 1));
    scenario.patcher(Program::new([batch, wait()]).refusable()).holds();
}
