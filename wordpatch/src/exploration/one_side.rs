//! Patches that change one side of a straddler only, beside others of the same site: in a row, and
//! at once.

use wordpatch_model::{Program, Scenario};

use super::{CALL, NOP, OTHER_CALL, Straddler, mixture_of, wait};
use crate::FetchWindow;

/// The call with another opcode: at a 3|2 split a patch of the front alone.
const OPCODE: [u8; 5] = [0xb8, 0x11, 0x22, 0x33, 0x44];
/// The call with another end of its operand: a patch of the back alone.
const OPERAND: [u8; 5] = [0xe8, 0x11, 0x22, 0x99, 0x88];
/// Both.
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

/// Two single stores, one on either side. The wait behind the first one keeps an executor that has
/// read one side before both from combining it with the other side after.
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

/// A patch of the back alone owns the site without an out-of-line copy: a thread that met the INT3
/// of the patch before must not look for one.
#[test]
fn both_sides_then_the_back_patched_in_a_row() {
    in_a_row(&[NOP, CALL, OPERAND]).holds();
}

/// The same with two patchers. The second one fails in the end, but may have owned the site.
#[test]
fn both_sides_and_the_back_patched_at_once() {
    at_once(&Straddler { front: 1, ..Straddler::ANY }, &NOP, &OTHER_CALL).holds();
}

/// The store to the front compares only the front, the store to the back only the back: one at a
/// time owns the site.
#[test]
fn the_front_and_the_back_patched_at_once() {
    at_once(&Straddler::ANY, &OPCODE, &OPERAND).holds();
}

/// The store to the opcode does not compare what the protocol makes of the rest meanwhile.
#[test]
fn the_opcode_and_the_whole_operand_patched_at_once() {
    at_once(&Straddler::ANY, &OPCODE, &OTHER_CALL).holds();
}

/// Inside a window the one store compares the whole instruction.
#[test]
fn the_opcode_and_the_operand_patched_at_once_inside_a_window() {
    at_once(&Straddler { window: FetchWindow::Bytes32, front: 5 }, &OPCODE, &OPERAND).holds();
}
