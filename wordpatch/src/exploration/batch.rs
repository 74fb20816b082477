//! `patch_all`: straddlers and single stores in one batch, which share their waits.

use wordpatch_model::{Program, Scenario};

use super::{CALL, NOP, OTHER_CALL, Straddler, batch_of, boundary, patch_of, wait};
use crate::FetchWindow;

/// A straddler, and a neighbour on either side that shares a word with it.
const PLACES: [usize; 3] = [PLACE, PLACE - 5, PLACE + 5];
const PLACE: usize = boundary(WINDOW) - 3;
const WINDOW: FetchWindow = FetchWindow::Bytes32;

fn scenario(places: &[usize]) -> Scenario {
    let begin = Scenario::new(WINDOW.bytes(), boundary(WINDOW));
    places.iter().fold(begin, |scenario, place| scenario.site(*place, &CALL, 1))
}

fn batch(places: &[usize], old: &[u8], new: &[u8]) -> wordpatch_model::Job {
    let patches: Vec<(usize, &[u8], &[u8])> = places.iter().map(|place| (*place, old, new)).collect();
    batch_of(WINDOW, &patches)
}

#[test]
fn a_straddler_and_both_its_neighbours_in_one_batch_and_back() {
    let jobs = [batch(&PLACES, &CALL, &NOP), batch(&PLACES, &NOP, &CALL), wait()];
    scenario(&PLACES).patcher(Program::new(jobs)).holds();
}

/// With windows of eight bytes, two straddlers can be adjacent.
#[test]
fn two_straddlers_in_one_batch() {
    let window = FetchWindow::Bytes8;
    let places = [boundary(window) - 4, boundary(window) + 4];
    let patches =
        |old: &'static [u8], new: &'static [u8]| batch_of(window, &places.map(|place| (place, old, new)));
    let scenario = Scenario::new(window.bytes(), boundary(window));
    let scenario = places.iter().fold(scenario, |scenario, place| scenario.site(*place, &CALL, 1));
    let jobs = [patches(&CALL, &NOP), patches(&NOP, &OTHER_CALL), wait()];
    scenario.patcher(Program::new(jobs)).holds();
}

/// A straddler that changes on one side only is finished after the first wait, one that changes on
/// both sides after the second.
#[test]
fn straddlers_with_one_store_and_with_three_in_one_batch() {
    let window = FetchWindow::Bytes8;
    let (one, other) = (boundary(window) - 4, boundary(window) + 4);
    let front = [0xb8, 0x11, 0x22, 0x33, 0x44];
    let both = [0xb8, 0x11, 0x22, 0x33, 0x99];
    let jobs = [
        batch_of(window, &[(one, &CALL, &front), (other, &CALL, &NOP)]),
        patch_of(window, 0, one, &front, &both),
        wait(),
    ];
    let scenario = Scenario::new(window.bytes(), boundary(window)).site(one, &CALL, 1).site(other, &CALL, 1);
    scenario.patcher(Program::new(jobs)).holds();
}

/// Either the batch or the other patcher acquires the common site.
#[test]
fn a_batch_against_a_single_patch_of_one_of_its_sites() {
    let places = [PLACE, PLACE + 5];
    for (number, place) in places.into_iter().enumerate() {
        scenario(&places)
            .patcher(Program::new([batch(&places, &CALL, &NOP), wait()]))
            .patcher(Program::new([patch_of(WINDOW, number, place, &CALL, &OTHER_CALL), wait()]))
            .holds();
    }
}

#[test]
fn two_batches_of_the_same_sites() {
    let places = [PLACE, PLACE + 5];
    scenario(&places)
        .patcher(Program::new([batch(&places, &CALL, &NOP), wait()]))
        .patcher(Program::new([batch(&places, &CALL, &OTHER_CALL), wait()]))
        .holds();
}

/// A patch that is refused does not affect the others.
#[test]
fn a_batch_with_a_patch_of_other_bytes_than_stand_there() {
    let batch = batch_of(WINDOW, &[(PLACE, &OTHER_CALL, &NOP), (PLACE + 5, &CALL, &NOP)]);
    let scenario = scenario(&[PLACE, PLACE + 5]).patcher(Program::new([batch, wait()])).where_all_may_fail();
    scenario.holds();
}

/// The text is read one byte at a time, while the other patcher stores.
#[test]
fn text_that_changes_while_it_is_read() {
    let site = Straddler::ANY;
    let programs = [site.to_and_fro(&CALL, &NOP), Program::new([site.patch(&CALL, &OTHER_CALL), wait()])];
    let scenario = site.scenario(&CALL, 1).reading_bytes();
    programs.into_iter().fold(scenario, Scenario::patcher).holds();
}
