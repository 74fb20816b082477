//! The patch protocol under the paper's memory model: every interleaving of patchers, store buffers, fetches and stale copies.
//!
//! `cargo test --release -p wordpatch --test model -- --nocapture` prints how many states each scenario has, and the shortest
//! counterexample to each protocol that was broken on purpose.

#[path = "model/concurrent.rs"]
mod concurrent;
#[path = "model/defects.rs"]
mod defects;
#[path = "model/explorer.rs"]
mod explorer;
#[allow(dead_code, reason = "shared with the tests of callpatch, which use the rest")]
#[path = "model/mod.rs"]
mod model;
#[path = "model/one_side.rs"]
mod one_side;

use model::program::{Job, Program, Stores};
use model::scenario::Scenario;
use wordpatch::{Bytes, FetchWindow};

fn bytes(slice: &[u8]) -> Bytes {
    Bytes::new(slice).expect("1 to 8 bytes")
}

/// A boundary of this window that is none of any larger one.
const fn boundary(window: FetchWindow) -> usize {
    0x1000 + window.bytes()
}

const CALL: [u8; 5] = [0xe8, 0x11, 0x22, 0x33, 0x44];
const OTHER_CALL: [u8; 5] = [0xe8, 0x55, 0x66, 0x77, 0x88];
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// What a site is patched to and fro between.
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

/// One site that a boundary cuts behind `front` bytes, its forms, and the window its patchers assume.
struct Straddler {
    window: FetchWindow,
    front: usize,
}

impl Straddler {
    /// A window and a split that tests use which are not about windows or splits.
    const ANY: Self = Self { window: FetchWindow::Bytes32, front: 3 };

    fn address(&self) -> usize {
        boundary(self.window) - self.front
    }

    /// `patch` from one form to the other.
    fn patch(&self, old: &[u8], new: &[u8]) -> Job {
        Job::patch(self.window, 0, self.address(), &bytes(old), &bytes(new))
    }

    /// The site with as many executors.
    fn scenario(&self, initial: &[u8], executors: usize) -> Scenario {
        Scenario::new(self.window, boundary(self.window)).site(self.address(), &bytes(initial), executors)
    }

    /// A patcher that patches, patches back without a wait, and waits at the end.
    fn to_and_fro(&self, old: &[u8], new: &[u8]) -> Program {
        Program::new([self.patch(old, new), self.patch(new, old), Job::wait()])
    }
}

#[test]
fn every_split_of_every_window_patched_and_patched_back() {
    for (name, old, new) in PAIRS {
        let mut counts = Vec::new();
        for window in FetchWindow::ALL {
            for front in 1..old.len() {
                let site = Straddler { window, front };
                counts.push(site.scenario(old, 1).patcher(site.to_and_fro(old, new)).holds());
            }
        }
        println!("{name}: {counts:?} states");
    }
}

#[test]
fn every_split_with_two_executors() {
    for front in 1..CALL.len() {
        let site = Straddler { front, ..Straddler::ANY };
        let states = site.scenario(&CALL, 2).patcher(site.to_and_fro(&CALL, &NOP)).holds();
        println!("{front}|{}: {states} states", CALL.len() - front);
    }
}

/// Through three forms and back to the first, with no wait between the patches.
#[test]
fn patches_in_a_row_of_both_sides() {
    let site = Straddler::ANY;
    let row = [site.patch(&CALL, &NOP), site.patch(&NOP, &OTHER_CALL), site.patch(&OTHER_CALL, &CALL)];
    let states =
        site.scenario(&CALL, 1).patcher(Program::new([&row[..], &row, &[Job::wait()]].concat())).holds();
    println!("{states} states");
}

/// A patch of one side before or after one of both, in either direction, with no wait between.
#[test]
fn a_patch_of_the_front_next_to_one_of_both_sides() {
    let site = Straddler::ANY;
    let front = [0xb8, 0x11, 0x22, 0x33, 0x44];
    let check = |forms: &[[u8; 5]]| {
        let row = forms.windows(2).map(|pair| site.patch(&pair[0], &pair[1]));
        let states = site.scenario(&forms[0], 1).patcher(Program::new(row.chain([Job::wait()]))).holds();
        println!("{states} states");
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
        let program = Program::new([&row[..], &row, &[Job::wait()]].concat());
        println!("{} states", site.scenario(&CALL, 2).patcher(program).holds());
    }
}

/// Assuming a smaller window than the processor has costs INT3, not safety.
#[test]
fn every_window_that_is_assumed_too_small() {
    for (true_window, assumed) in windows().filter(|(true_window, assumed)| assumed <= true_window) {
        for edge in FetchWindow::ALL {
            let states = across(true_window, assumed, edge).holds();
            println!(
                "true {true_window:?}, assumed {assumed:?}, across a boundary of {edge:?}: {states} states"
            );
        }
    }
}

/// The protocol needs its waits, not locked stores: plain ones do, when each wait begins with an empty store buffer.
#[test]
fn plain_stores_whose_waits_drain_the_store_buffer() {
    let site = Straddler::ANY;
    let program = site.to_and_fro(&CALL, &NOP).storing(Stores::Plain);
    println!("{} states", site.scenario(&CALL, 1).patcher(program).holds());
}

/// `membarrier` is refused at the first wait: the lock is taken back, and the next call finds the site as it was.
#[test]
fn the_lock_taken_back_when_the_wait_is_refused() {
    let site = Straddler::ANY;
    let refused = site.patch(&CALL, &NOP).refused_at_the_first_wait();
    let program = Program::new([refused, site.patch(&CALL, &NOP), Job::wait()]);
    println!("{} states", site.scenario(&CALL, 1).patcher(program).holds());
}

/// Every pair of a true and an assumed window.
fn windows() -> impl Iterator<Item = (FetchWindow, FetchWindow)> {
    FetchWindow::ALL.into_iter().flat_map(|one| FetchWindow::ALL.map(|other| (one, other)))
}

/// A call patched to a NOP and back, across a boundary of `edge`, by someone who assumes `assumed`.
fn across(true_window: FetchWindow, assumed: FetchWindow, edge: FetchWindow) -> Scenario {
    let address = boundary(edge) - 3;
    let patch = |old: &[u8], new: &[u8]| Job::patch(assumed, 0, address, &bytes(old), &bytes(new));
    let program = Program::new([patch(&CALL, &NOP), patch(&NOP, &CALL), Job::wait()]);
    Scenario::new(true_window, boundary(edge)).site(address, &bytes(&CALL), 1).patcher(program)
}
