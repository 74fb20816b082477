//! A thread forks at any time: see "Forks" in the scenario module of `wordpatch-model`.

use wordpatch_model::explore::Flaw;
use wordpatch_model::{Change, Job, Program, Scenario, Violation};

use super::{CALL, NOP, OTHER_CALL, Straddler, batch_of, boundary, wait};
use crate::{FetchWindow, start_patch};

#[test]
fn while_a_straddler_is_patched_to_and_fro() {
    for front in 1..=CALL.len() {
        let site = Straddler { front, ..Straddler::ANY };
        site.scenario(&CALL, 1).patcher(site.to_and_fro(&CALL, &NOP)).forking().holds();
    }
}

#[test]
fn while_two_patchers_want_one_site() {
    let site = Straddler::ANY;
    let one = |new: &[u8]| Program::new([site.patch(&CALL, new), wait()]);
    let scenario = site.scenario(&CALL, 1).patcher(one(&NOP)).patcher(one(&OTHER_CALL)).forking();
    scenario.holds();
}

#[test]
fn while_waits_are_refused() {
    let site = Straddler::ANY;
    let jobs = [site.patch(&CALL, &NOP), site.patch(&CALL, &OTHER_CALL)];
    site.scenario(&CALL, 1).patcher(Program::new(jobs).refusable()).forking().holds();
}

fn batch() -> Scenario {
    let window = FetchWindow::Bytes8;
    let places = [boundary(window) - 4, boundary(window) + 4];
    let batch =
        |old: &'static [u8], new: &'static [u8]| batch_of(window, &places.map(|place| (place, old, new)));
    let scenario = Scenario::new(window.bytes(), boundary(window));
    let scenario = places.iter().fold(scenario, |scenario, place| scenario.site(*place, &CALL, 1));
    scenario.patcher(Program::new([batch(&CALL, &NOP), batch(&NOP, &CALL)]))
}

#[test]
fn while_a_batch_is_patched() {
    batch().forking().holds();
}

#[test]
fn while_a_patch_is_outstanding() {
    let site = Straddler::ANY;
    let (window, address) = (site.window, site.address());
    let start = |old: [u8; 5], new: [u8; 5]| {
        Job::new("start", window.bytes(), [Change::new(0, &old, &new)], move || {
            // SAFETY: the model's text.
            let started = unsafe { start_patch(address, &old, &new) };
            vec![started.is_ok_and(|patch| patch.finish().is_ok())]
        })
    };
    let program = Program::new([start(CALL, NOP), start(NOP, CALL)]);
    site.scenario(&CALL, 1).patcher(program).forking().holds();
}

/// The fork has recorded that the site is not locked, and copies the text after the INT3 was
/// stored.
#[test]
fn a_fork_in_a_step_takes_an_int3_along() {
    let is_locked = |flaw: &Flaw<Violation>| matches!(flaw, Flaw::Violation(Violation::ForkedMixture(bytes)) if bytes[0] == 0xcc);
    let site = Straddler::ANY;
    let scenario = site.scenario(&CALL, 0).patcher(site.to_and_fro(&CALL, &NOP));
    scenario.clone().forking().holds();
    scenario.forking_in_steps().fails(is_locked);
    batch().forking_in_steps().fails(is_locked);
}
