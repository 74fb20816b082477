//! The same scenarios with cores that are modelled individually, each of which keeps any versions
//! that it has read: the verdicts must be the same as with one set of versions for all cores.

use wordpatch_model::{Job, Program, Scenario};

use super::{CALL, NOP, OTHER_CALL, Straddler, batch_of, boundary, is_mixture, wait};
use crate::FetchWindow;

const OPCODE: [u8; 5] = [0xb8, 0x11, 0x22, 0x33, 0x44];
const BOTH: [u8; 5] = [0xb8, 0x11, 0x22, 0x99, 0x88];

#[track_caller]
fn both_hold(scenario: &Scenario) {
    scenario.holds();
    scenario.clone().core_by_core().holds();
}

#[track_caller]
fn both_fail(scenario: &Scenario) {
    scenario.fails(is_mixture);
    scenario.clone().core_by_core().fails(is_mixture);
}

#[test]
fn every_split_patched_and_patched_back() {
    for front in 1..=CALL.len() {
        let site = Straddler { front, ..Straddler::ANY };
        for new in [NOP, OTHER_CALL, OPCODE] {
            both_hold(&site.scenario(&CALL, 1).patcher(site.to_and_fro(&CALL, &new)));
        }
    }
}

#[test]
fn two_cores_of_one_site() {
    let site = Straddler::ANY;
    both_hold(&site.scenario(&CALL, 2).patcher(Program::new([site.patch(&CALL, &NOP), wait()])));
    both_hold(&site.scenario(&CALL, 2).patcher(Program::new([site.patch(&CALL, &OPCODE), wait()])));
}

#[test]
fn two_patchers_of_one_site() {
    let site = Straddler::ANY;
    let one = |new: &[u8]| Program::new([site.patch(&CALL, new), wait()]);
    both_hold(&site.scenario(&CALL, 1).patcher(one(&NOP)).patcher(one(&OTHER_CALL)));
}

#[test]
fn two_straddlers_in_one_batch() {
    let window = FetchWindow::Bytes8;
    let places = [boundary(window) - 4, boundary(window) + 4];
    let batch = batch_of(window, &places.map(|place| (place, &CALL[..], &NOP[..])));
    let scenario = Scenario::new(window.bytes(), boundary(window));
    let scenario = places.iter().fold(scenario, |scenario, place| scenario.site(*place, &CALL, 1));
    both_hold(&scenario.patcher(Program::new([batch, wait()])));
}

#[test]
fn without_each_of_the_waits() {
    let site = Straddler::ANY;
    let scenario = |jobs: Vec<Job>| site.scenario(&CALL, 1).patcher(Program::new(jobs));
    both_fail(&scenario(vec![site.patch(&CALL, &NOP).without_wait(0)]));
    both_fail(&scenario(vec![site.patch(&CALL, &NOP).without_wait(1)]));
    both_fail(&scenario(vec![site.patch(&CALL, &NOP), site.patch(&NOP, &CALL).without_wait(0)]));
    both_fail(&scenario(vec![site.patch(&CALL, &OPCODE).without_wait(0), site.patch(&OPCODE, &BOTH)]));
}
