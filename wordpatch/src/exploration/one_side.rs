//! Patches that change one side of a straddler only, and other patches of the same site: one after
//! the other, and concurrently.

use wordpatch_model::{Program, Scenario};

use super::{CALL, NOP, OTHER_CALL, Straddler, mixture_of, wait};
use crate::FetchWindow;

/// The call with another opcode: at a 3|2 split, a patch of the front only.
const OPCODE: [u8; 5] = [0xb8, 0x11, 0x22, 0x33, 0x44];
/// The call with other last bytes of the operand: a patch of the back only.
const OPERAND: [u8; 5] = [0xe8, 0x11, 0x22, 0x99, 0x88];
/// Both changes.
const OPCODE_AND_OPERAND: [u8; 5] = [0xb8, 0x11, 0x22, 0x99, 0x88];

fn in_a_row(forms: &[[u8; 5]]) -> Scenario {
    let site = Straddler::ANY;
    let row = forms.windows(2).map(|pair| site.patch(&pair[0], &pair[1]));
    site.scenario(&forms[0], 1).patcher(Program::new(row.chain([wait()])))
}

fn at_once(site: &Straddler, one: &[u8], other: &[u8]) -> Scenario {
    let patch = |new: &[u8]| Program::new([site.patch(&CALL, new), wait()]);
    site.scenario(&CALL, 1).patcher(patch(one)).patcher(patch(other))
}

/// Two single stores, one on either side. The wait after the first one prevents that an executor
/// combines one side from before both stores with the other side from after both.
#[test]
fn the_front_then_the_back_patched_in_a_row() {
    in_a_row(&[CALL, OPCODE, OPCODE_AND_OPERAND]).holds();
}

#[test]
fn without_that_wait_an_old_front_runs_with_a_new_back() {
    let site = Straddler::ANY;
    let first = site.patch(&CALL, &OPCODE).without_wait(0);
    let program = Program::new([first, site.patch(&OPCODE, &OPCODE_AND_OPERAND), wait()]);
    site.scenario(&CALL, 1).patcher(program).fails(mixture_of(&OPERAND));
}

#[test]
fn the_back_then_the_front_patched_in_a_row() {
    in_a_row(&[CALL, OPERAND, OPCODE_AND_OPERAND]).holds();
}

/// A patch of the back only owns the site without an out-of-line copy: a thread that has executed
/// the INT3 of the previous patch must not use one.
#[test]
fn both_sides_then_the_back_patched_in_a_row() {
    in_a_row(&[NOP, CALL, OPERAND]).holds();
}

/// As above, with two patchers. The second one fails, but may have owned the site.
#[test]
fn both_sides_and_the_back_patched_at_once() {
    at_once(&Straddler { front: 1, ..Straddler::ANY }, &NOP, &OTHER_CALL).holds();
}

/// The store to the front compares the front only, the store to the back the back only: therefore
/// only one of them owns the site at a time.
#[test]
fn the_front_and_the_back_patched_at_once() {
    at_once(&Straddler::ANY, &OPCODE, &OPERAND).holds();
}

/// The store to the opcode does not compare the other bytes, which the protocol changes at the same
/// time.
#[test]
fn the_opcode_and_the_whole_operand_patched_at_once() {
    at_once(&Straddler::ANY, &OPCODE, &OTHER_CALL).holds();
}

/// Inside a window, the store compares the entire instruction.
#[test]
fn the_opcode_and_the_operand_patched_at_once_inside_a_window() {
    at_once(&Straddler { window: FetchWindow::Bytes32, front: 5 }, &OPCODE, &OPERAND).holds();
}
