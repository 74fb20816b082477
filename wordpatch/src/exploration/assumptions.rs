//! The counterexample that exists without each assumption of the model.

use wordpatch_model::explore::Flaw;
use wordpatch_model::{Assumption, Program, Scenario, Violation};

use super::{CALL, NOP, Straddler, wait};

/// The scenario from which assumptions are dropped: an instruction that is patched back and forth,
/// split after `front` bytes.
fn scenario(front: usize) -> Scenario {
    let site = Straddler { front, ..Straddler::ANY };
    site.scenario(&CALL, 2).patcher(site.to_and_fro(&CALL, &NOP))
}

/// The scenario for the assumption, and the flaw that is found without it.
fn expected(dropped: Assumption) -> (Scenario, fn(&Flaw<Violation>) -> bool) {
    fn mixture(flaw: &Flaw<Violation>) -> bool {
        super::is_mixture(flaw)
    }
    let inside = CALL.len();
    match dropped {
        Assumption::StoresAreAtomic | Assumption::FetchedBytesWereStored => (scenario(inside), mixture),
        Assumption::WaitsEndStaleness
        | Assumption::StalenessIsBounded
        | Assumption::WaitsReachEveryCore
        | Assumption::HandlerReturnSerializes
        | Assumption::NoJumpIntoInstruction
        | Assumption::NoForeignStores => (scenario(3), mixture),
        // The record is released before the last store is visible.
        Assumption::StoresKeepOrder => {
            (scenario(3), |flaw| matches!(flaw, Flaw::Violation(Violation::ForeignTrap)))
        }
        Assumption::SigtrapIsDelivered => {
            (scenario(3), |flaw| matches!(flaw, Flaw::Violation(Violation::Killed)))
        }
    }
}

#[test]
fn each_assumption_is_needed() {
    // Only callpatch relies on the bound, and has the test of it.
    let here = |(assumption, ..): &(Assumption, _, _)| *assumption != Assumption::StalenessIsBounded;
    for (assumption, status, source) in Assumption::ALL {
        println!("assumption: {assumption:?} | {status:?} | {source}");
    }
    for (assumption, ..) in Assumption::ALL.into_iter().filter(here) {
        let (scenario, is_expected) = expected(assumption);
        scenario.holds();
        scenario.without(assumption).fails(is_expected);
    }
}

/// T_max bounds the time until all cores see a store: without it, not even a single store is ever
/// seen by all cores.
#[test]
fn without_an_end_of_staleness_a_single_store_is_never_seen() {
    let site = Straddler { front: CALL.len(), ..Straddler::ANY };
    let program = Program::new([site.patch(&CALL, &NOP), wait()]);
    let scenario = site.scenario(&CALL, 1).patcher(program);
    scenario.holds();
    scenario
        .without(Assumption::WaitsEndStaleness)
        .fails(|flaw| matches!(flaw, Flaw::Violation(Violation::Stale(_))));
}
