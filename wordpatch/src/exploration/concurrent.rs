//! Concurrent patchers of one site, and of neighbours that share a word.

use wordpatch_model::{Program, Scenario};

use super::{CALL, NOP, OTHER_CALL, Straddler, boundary, patch_of, wait};
use crate::FetchWindow;

/// Differs from the call in every byte, so that all steps of the protocol are needed at every
/// split.
const LOAD: [u8; 5] = [0xb8, 0x55, 0x66, 0x77, 0x88];

#[test]
fn of_two_patchers_of_one_site_one_succeeds() {
    for front in 1..CALL.len() {
        let site = Straddler { front, ..Straddler::ANY };
        let one = |new: &[u8]| Program::new([site.patch(&CALL, new), wait()]);
        site.scenario(&CALL, 1).patcher(one(&NOP)).patcher(one(&LOAD)).holds();
    }
}

#[test]
fn two_patchers_of_one_site_and_two_executors() {
    let site = Straddler::ANY;
    let one = |new: &[u8]| Program::new([site.patch(&CALL, new), wait()]);
    site.scenario(&CALL, 2).patcher(one(&NOP)).patcher(one(&OTHER_CALL)).holds();
}

#[test]
fn of_three_patchers_of_one_site_one_succeeds() {
    let site = Straddler::ANY;
    let one = |new: &[u8]| Program::new([site.patch(&CALL, new)]);
    let programs = [one(&NOP), one(&OTHER_CALL), one(&LOAD)];
    programs.into_iter().fold(site.scenario(&CALL, 1), Scenario::patcher).holds();
}

#[test]
fn two_patchers_of_one_site_there_and_back() {
    let site = Straddler::ANY;
    let programs = [site.to_and_fro(&CALL, &NOP), site.to_and_fro(&CALL, &OTHER_CALL)];
    programs.into_iter().fold(site.scenario(&CALL, 1), Scenario::patcher).holds();
}

/// One patcher expects the bytes that the other one stores.
#[test]
fn a_patcher_follows_another() {
    let site = Straddler::ANY;
    let programs = [
        Program::new([site.patch(&CALL, &NOP), wait()]),
        Program::new([site.patch(&NOP, &OTHER_CALL), site.patch(&CALL, &OTHER_CALL), wait()]),
    ];
    programs.into_iter().fold(site.scenario(&CALL, 1), Scenario::patcher).holds();
}

/// A patch of the opcode only is one store, which compares the first byte and fails while that byte
/// is INT3.
#[test]
fn a_single_store_against_the_protocol() {
    let site = Straddler::ANY;
    let opcode = [0xb8, 0x11, 0x22, 0x33, 0x44];
    let programs =
        [Program::new([site.patch(&CALL, &opcode), wait()]), Program::new([site.patch(&CALL, &NOP), wait()])];
    programs.into_iter().fold(site.scenario(&CALL, 1), Scenario::patcher).holds();
}

/// The fetch model is changed between the two calls: one thread locks the site, the other one makes
/// a single store.
#[test]
fn patchers_that_assume_different_windows() {
    let site = Straddler { window: FetchWindow::Bytes8, front: 3 };
    let patch = |window, new: &[u8]| patch_of(window, 0, site.address(), &CALL, new);
    let programs = [
        Program::new([patch(FetchWindow::Bytes8, &NOP), wait()]),
        Program::new([patch(FetchWindow::Bytes32, &OTHER_CALL), wait()]),
    ];
    let scenario = Scenario::new(FetchWindow::Bytes32.bytes(), boundary(site.window));
    let scenario = scenario.site(site.address(), &CALL, 1);
    programs.into_iter().fold(scenario, Scenario::patcher).holds();
}

/// Three calls in a row, the middle one a straddler: each shares a word with the next.
#[test]
fn neighbours_patched_at_once() {
    let window = FetchWindow::Bytes32;
    let straddler = boundary(window) - 3;
    let patch = |number, address, old: &[u8], new: &[u8]| patch_of(window, number, address, old, new);
    for neighbour in [straddler - 5, straddler + 5] {
        let scenario = Scenario::new(window.bytes(), boundary(window))
            .site(straddler, &CALL, 1)
            .site(neighbour, &CALL, 1)
            .patcher(Program::new([patch(0, straddler, &CALL, &NOP), wait()]))
            .patcher(Program::new([
                patch(1, neighbour, &CALL, &NOP),
                patch(1, neighbour, &NOP, &CALL),
                wait(),
            ]));
        scenario.holds();
    }
}

/// Two straddlers cannot overlap, but a straddler and both its neighbours can be patched at once.
#[test]
fn a_straddler_and_both_its_neighbours() {
    let window = FetchWindow::Bytes32;
    let straddler = boundary(window) - 3;
    let mut scenario = Scenario::new(window.bytes(), boundary(window));
    for (number, address) in [straddler, straddler - 5, straddler + 5].into_iter().enumerate() {
        let patch = patch_of(window, number, address, &CALL, &NOP);
        scenario = scenario.site(address, &CALL, 1).patcher(Program::new([patch]));
    }
    scenario.holds();
}
