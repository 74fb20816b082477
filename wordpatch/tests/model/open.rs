//! What the search finds wrong with the real protocol and its driver. Each test states what ought to hold; the attribute tells how
//! it fails, and goes when the problem does. A change of the driver has to be followed in `program.rs`, one of the trap handler in
//! `executor.rs`; a change of the protocol shows by itself.

use wordpatch::FetchWindow;

use super::model::program::{Job, Program};
use super::model::scenario::Scenario;
use super::{CALL, NOP, OTHER_CALL, Straddler};

/// The call with another opcode: at a 3|2 split a patch of the front alone.
const OPCODE: [u8; 5] = [0xb8, 0x11, 0x22, 0x33, 0x44];
/// The call with another end of its operand: a patch of the back alone.
const OPERAND: [u8; 5] = [0xe8, 0x11, 0x22, 0x99, 0x88];
/// Both.
const OPCODE_AND_OPERAND: [u8; 5] = [0xb8, 0x11, 0x22, 0x99, 0x88];

fn in_a_row(forms: &[[u8; 5]]) -> Scenario {
    let site = Straddler::ANY;
    let row = forms.windows(2).map(|pair| site.patch(&pair[0], &pair[1]));
    site.scenario(&forms[0], 1).patcher(Program::new(row.chain([Job::wait()])))
}

fn at_once(site: &Straddler, one: &[u8], other: &[u8]) -> Scenario {
    let patch = |new: &[u8]| Program::new([site.patch(&CALL, new), Job::wait()]);
    site.scenario(&CALL, 1).patcher(patch(one)).patcher(patch(other))
}

/// Two single stores, one on either side: an executor that has read one side before both combines it with the other side after.
#[test]
#[should_panic(expected = "Mixture")]
fn the_front_then_the_back_patched_in_a_row() {
    in_a_row(&[CALL, OPCODE, OPCODE_AND_OPERAND]).holds();
}

#[test]
#[should_panic(expected = "Mixture")]
fn the_back_then_the_front_patched_in_a_row() {
    in_a_row(&[CALL, OPERAND, OPCODE_AND_OPERAND]).holds();
}

/// A patch of the back alone owns the site without an out-of-line copy. A thread that met the INT3 of the patch before looks
/// the site up now, and is sent to address 0.
#[test]
#[should_panic(expected = "NoCopy")]
fn both_sides_then_the_back_patched_in_a_row() {
    in_a_row(&[NOP, CALL, OPERAND]).holds();
}

/// The same with two patchers. The second one fails in the end, but it has owned the site.
#[test]
#[should_panic(expected = "NoCopy")]
fn both_sides_and_the_back_patched_at_once() {
    at_once(&Straddler { front: 1, ..Straddler::ANY }, &NOP, &OTHER_CALL).holds();
}

/// The store to the front compares only the front, the store to the back only the back: both succeed, and leave an
/// instruction that nobody asked for.
#[test]
#[should_panic(expected = "Mixture")]
fn the_front_and_the_back_patched_at_once() {
    at_once(&Straddler::ANY, &OPCODE, &OPERAND).holds();
}

/// The store to the opcode does not compare what the protocol has made of the rest meanwhile.
#[test]
#[should_panic(expected = "Mixture")]
fn the_opcode_and_the_whole_operand_patched_at_once() {
    at_once(&Straddler::ANY, &OPCODE, &OTHER_CALL).holds();
}

/// Nor inside a window: a store goes from the first byte to the last one that differs, and compares no further.
#[test]
#[should_panic(expected = "Mixture")]
fn the_opcode_and_the_operand_patched_at_once_inside_a_window() {
    at_once(&Straddler { window: FetchWindow::Bytes32, front: 5 }, &OPCODE, &OPERAND).holds();
}
