//! Patches with a part of an instruction, or with more than one instruction.

use wordpatch_model::{Change, Code, Form, Job, Program, Scenario};

use super::{CALL, NOP, Straddler, boundary, mixture_of, patch_named, wait};
use crate::{FetchWindow, patch};

/// The call with another front; patched by its first three bytes, which are in one window at a 3|2
/// split.
const FRONT: [u8; 5] = [0xe8, 0x99, 0x98, 0x33, 0x44];
/// The call with another back.
const BACK: [u8; 5] = [0xe8, 0x11, 0x22, 0x99, 0x88];
/// Both.
const BOTH: [u8; 5] = [0xe8, 0x99, 0x98, 0x99, 0x88];

/// By the split of the given bytes only, the first patch would be a single store without a wait.
#[test]
fn the_front_named_alone_and_then_the_back() {
    let site = Straddler::ANY;
    let jobs = |first: Job| [first, site.patch(&FRONT, &BOTH), wait()];
    let first = || site.patch_named(&CALL, &FRONT, 3);
    site.scenario(&CALL, 1).patcher(Program::new(jobs(first()))).holds();
    let broken = Program::new(jobs(first().without_wait(0)));
    site.scenario(&CALL, 1).patcher(broken).fails(mixture_of(&BACK));
}

#[test]
fn the_front_named_alone_and_the_back_at_once() {
    let site = Straddler::ANY;
    site.scenario(&CALL, 1)
        .patcher(Program::new([site.patch_named(&CALL, &FRONT, 3), wait()]))
        .patcher(Program::new([site.patch(&CALL, &BACK), wait()]))
        // The first also succeeds after the second: it does not give bytes that the second one
        // changes.
        .allowing(Form::Whole(Code::new(&BOTH)))
        .holds();
}

/// Every number of given bytes at every split, concurrently with a patch of all bytes, and twice in
/// a row.
#[test]
fn every_part_at_every_split() {
    for named in 1..CALL.len() {
        let mut other = CALL;
        other[..named].iter_mut().skip(1).for_each(|byte| *byte ^= 0x88);
        if named == 1 {
            other[0] = 0xb8;
        }
        for front in 1..=CALL.len() {
            let site = Straddler { front, ..Straddler::ANY };
            let there = || site.patch_named(&CALL, &other, named);
            let back = site.patch_named(&other, &CALL, named);
            let row = Program::new([there(), back, wait()]);
            site.scenario(&CALL, 1).patcher(row).holds();
            let one = Program::new([there(), wait()]);
            let both = Program::new([site.patch(&CALL, &NOP), wait()]);
            site.scenario(&CALL, 1).patcher(one).patcher(both).holds();
        }
    }
}

/// `mov rax, imm64` has ten bytes: the last two are never changed, wherever the window ends.
#[test]
fn an_instruction_longer_than_a_patch() {
    let old: [u8; 10] = [0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8];
    let new: [u8; 10] = [0x48, 0xb8, 9, 9, 9, 9, 9, 9, 7, 8];
    for window in [FetchWindow::Bytes8, FetchWindow::Bytes32] {
        for front in 1..10 {
            let site = Straddler { window, front };
            let jobs = [site.patch(&old, &new), site.patch(&new, &old), wait()];
            site.scenario(&old, 1).patcher(Program::new(jobs)).holds();
        }
    }
}

/// `mov al, imm8; mov bl, imm8`: one store of both, each a site with its own executor. If a
/// boundary divides them, the patch is refused and changes nothing.
#[test]
fn two_instructions_in_one_patch() {
    let window = FetchWindow::Bytes8;
    let (old, new): ([u8; 4], [u8; 4]) = ([0xb0, 1, 0xb3, 2], [0xb0, 3, 0xb3, 4]);
    for front in 0..=4 {
        let address = boundary(window) - front;
        let both = |(old, new): ([u8; 4], [u8; 4])| {
            let changes = [Change::new(0, &old[..2], &new[..2]), Change::new(1, &old[2..], &new[2..])];
            Job::new("patch of two instructions", window.bytes(), changes, move || {
                // SAFETY: the model's text.
                vec![unsafe { patch(address, &old, &new) }.is_ok(); 2]
            })
        };
        let scenario = || {
            Scenario::new(window.bytes(), boundary(window)).site(address, &old[..2], 1).site(
                address + 2,
                &old[2..],
                1,
            )
        };
        let is_cut = (1..4).contains(&front);
        let row = Program::new([both((old, new)), both((new, old)), wait()]);
        let alone = scenario().patcher(row);
        let alone = if is_cut { alone.where_all_may_fail() } else { alone };
        // Concurrently with a patch of the second one only.
        let second = patch_named(window, 1, address + 2, (&old[2..], &[0xb3, 9]), 2);
        let at_once = scenario()
            .patcher(Program::new([both((old, new)), wait()]))
            .patcher(Program::new([second, wait()]))
            .where_all_may_fail();
        alone.holds();
        at_once.holds();
    }
}
