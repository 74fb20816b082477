//! One patcher of one site, at every split and with every window.

use wordpatch_model::{Program, Scenario, Stores};

use super::{CALL, NOP, OTHER_CALL, Straddler, boundary, patch_of, wait};
use crate::FetchWindow;

/// Pairs of instructions between which a site is patched back and forth.
const PAIRS: &[(&str, &[u8], &[u8])] = &[
    ("jne to je, another target", &[0x75, 0x10], &[0x74, 0x20]),
    ("add eax to sub eax", &[0x83, 0xc0, 0x01], &[0x83, 0xe8, 0x02]),
    ("add rax to sub rax", &[0x48, 0x83, 0xc0, 0x01], &[0x48, 0x83, 0xe8, 0x02]),
    ("call to nop", &CALL, &NOP),
    ("call to call", &CALL, &OTHER_CALL),
    ("mov eax, another constant", &[0xb8, 0, 0, 0, 0], &[0xb8, 0xff, 0xff, 0xff, 0xff]),
    ("opcode only", &CALL, &[0xb8, 0x11, 0x22, 0x33, 0x44]),
    ("last byte only", &CALL, &[0xe8, 0x11, 0x22, 0x33, 0x99]),
    ("first and last byte", &CALL, &[0xb8, 0x11, 0x22, 0x33, 0x99]),
    ("the middle", &CALL, &[0xe8, 0x11, 0x98, 0x97, 0x44]),
    ("call [rip] to nop", &[0xff, 0x15, 1, 2, 3, 4], &[0x66, 0x0f, 0x1f, 0x44, 0, 0]),
    ("mov rax, another constant", &[0x48, 0xc7, 0xc0, 1, 2, 3, 4], &[0x48, 0xc7, 0xc0, 5, 6, 7, 8]),
    ("nop to mov [rsp+8]", &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], &[0xc7, 0x44, 0x24, 8, 1, 2, 3, 4]),
    ("nothing", &CALL, &CALL),
];

#[test]
fn every_split_of_every_window_patched_and_patched_back() {
    for (_, old, new) in PAIRS {
        for window in FetchWindow::ALL {
            for front in 1..=old.len() {
                let site = Straddler { window, front };
                site.scenario(old, 1).patcher(site.to_and_fro(old, new)).holds();
            }
        }
    }
}

/// One executor may be trapped at any step while the other one runs.
#[test]
fn every_split_with_two_executors() {
    for front in 1..CALL.len() {
        let site = Straddler { front, ..Straddler::ANY };
        site.scenario(&CALL, 2).patcher(site.to_and_fro(&CALL, &NOP)).holds();
    }
}

/// Three forms in turn, without waits between the patches.
#[test]
fn patches_in_a_row_of_both_sides() {
    let site = Straddler::ANY;
    let row = [site.patch(&CALL, &NOP), site.patch(&NOP, &OTHER_CALL), site.patch(&OTHER_CALL, &CALL)];
    site.scenario(&CALL, 1).patcher(Program::new([&row[..], &row, &[wait()]].concat())).holds();
}

/// A patch of one side before or after one of both sides, in either direction, without a wait
/// between them.
#[test]
fn a_patch_of_the_front_next_to_one_of_both_sides() {
    let site = Straddler::ANY;
    let front = [0xb8, 0x11, 0x22, 0x33, 0x44];
    let check = |forms: &[[u8; 5]]| {
        let row = forms.windows(2).map(|pair| site.patch(&pair[0], &pair[1]));
        site.scenario(&forms[0], 1).patcher(Program::new(row.chain([wait()]))).holds();
    };
    check(&[CALL, front, NOP]);
    check(&[NOP, CALL, front]);
    check(&[NOP, CALL, front, NOP, front, CALL]);
}

#[test]
fn one_side_patched_again_and_again() {
    let site = Straddler::ANY;
    for other in [[0xb8, 0x11, 0x22, 0x33, 0x44], [0xe8, 0x11, 0x22, 0x99, 0x88]] {
        let row = [site.patch(&CALL, &other), site.patch(&other, &CALL)];
        let program = Program::new([&row[..], &row, &[wait()]].concat());
        site.scenario(&CALL, 2).patcher(program).holds();
    }
}

/// Assuming a smaller window than the processor has is safe; it only costs INT3s.
#[test]
fn every_window_that_is_assumed_too_small() {
    for (true_window, assumed) in windows().filter(|(true_window, assumed)| assumed <= true_window) {
        for edge in FetchWindow::ALL {
            across(true_window, assumed, edge).holds();
        }
    }
}

/// The protocol needs its waits, but not locked stores: plain stores are sufficient if each wait
/// begins with an empty store buffer.
#[test]
fn plain_stores_whose_waits_drain_the_store_buffer() {
    let site = Straddler::ANY;
    let scenario = site.scenario(&CALL, 1).patcher(site.to_and_fro(&CALL, &NOP));
    scenario.storing(Stores::Plain).holds();
}

/// Every pair of a true and an assumed window.
pub(super) fn windows() -> impl Iterator<Item = (FetchWindow, FetchWindow)> {
    FetchWindow::ALL.into_iter().flat_map(|one| FetchWindow::ALL.map(|other| (one, other)))
}

/// A call patched to a NOP and back, across a boundary of `edge`, by a patcher that assumes the
/// window `assumed`.
pub(super) fn across(true_window: FetchWindow, assumed: FetchWindow, edge: FetchWindow) -> Scenario {
    let address = boundary(edge) - 3;
    let patch = |old: &[u8], new: &[u8]| patch_of(assumed, 0, address, old, new);
    let program = Program::new([patch(&CALL, &NOP), patch(&NOP, &CALL), wait()]);
    Scenario::new(true_window.bytes(), boundary(edge)).site(address, &CALL, 1).patcher(program)
}
