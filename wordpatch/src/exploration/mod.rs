//! All executions of the drivers under the paper's memory model: patchers, fetches, trapped threads
//! and forks in all orders.
//!
//! The drivers are those of the crate. Its lowest layer (text, site table, clock, waits) uses
//! `wordpatch-model`, whose documentation lists what is modelled and what is assumed.
//!
//! ```text
//! RUSTC_WORKSPACE_WRAPPER=scripts/cfg/model cargo test --release -p wordpatch --lib exploration -- --nocapture
//! ```

mod assumptions;
mod batch;
mod concurrent;
mod cores;
mod defects;
mod forks;
mod one_side;
mod outstanding;
mod parts;
mod refused;
mod single;

use wordpatch_model::explore::Flaw;
use wordpatch_model::{Change, Code, Job, Program, Scenario, Violation};

use crate::{FetchWindow, Patch, patch, patch_all, wait_for_visibility};

const CALL: [u8; 5] = [0xe8, 0x11, 0x22, 0x33, 0x44];
const OTHER_CALL: [u8; 5] = [0xe8, 0x55, 0x66, 0x77, 0x88];
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// A boundary of this window that is not a boundary of any larger one.
const fn boundary(window: FetchWindow) -> usize {
    0x1000 + window.bytes()
}

/// `patch` of site `number` at `address`, with the first `named` bytes of the instruction only.
fn patch_named(
    window: FetchWindow,
    number: usize,
    address: usize,
    (old, new): (&[u8], &[u8]),
    named: usize,
) -> Job {
    let change = Change { named, ..Change::new(number, old, new) };
    Job::new("patch", window.bytes(), [change], move || {
        let Change { old, new, .. } = change;
        // SAFETY: the model's text.
        vec![unsafe { patch(address, &old[..named], &new[..named]) }.is_ok()]
    })
}

/// `patch` of site `number` at `address`, with all bytes of the instruction.
fn patch_of(window: FetchWindow, number: usize, address: usize, old: &[u8], new: &[u8]) -> Job {
    patch_named(window, number, address, (old, new), old.len().min(crate::MAX_PATCH))
}

/// `patch_all` of these patches: address, old and new bytes. The sites are numbered in this order.
fn batch_of(window: FetchWindow, patches: &[(usize, &[u8], &[u8])]) -> Job {
    let addresses: Vec<usize> = patches.iter().map(|(address, ..)| *address).collect();
    let changes: Vec<Change> =
        (0..).zip(patches).map(|(number, (_, old, new))| Change::new(number, old, new)).collect();
    Job::new("patch_all", window.bytes(), changes.clone(), move || {
        let patch = |(address, change): (&usize, &'_ Change)| (*address, *change);
        let named: Vec<(usize, Change)> = addresses.iter().zip(&changes).map(patch).collect();
        let patches: Vec<Patch<'_>> = named
            .iter()
            .map(|(address, Change { old, new, .. })| Patch {
                address: *address,
                expected: old,
                replacement: new,
            })
            .collect();
        // SAFETY: the model's text.
        unsafe { patch_all(&patches) }.iter().map(Result::is_ok).collect()
    })
}

/// `wait_for_visibility`, ignoring whether it is refused.
fn wait() -> Job {
    Job::new("wait", FetchWindow::Bytes8.bytes(), [], || {
        let _ = wait_for_visibility();
        Vec::new()
    })
}

/// A site that a boundary divides after `front` bytes, and the window that its patchers assume.
struct Straddler {
    window: FetchWindow,
    front: usize,
}

impl Straddler {
    /// The window and split for tests that are not about windows or splits.
    const ANY: Self = Self { window: FetchWindow::Bytes32, front: 3 };

    fn address(&self) -> usize {
        boundary(self.window) - self.front
    }

    /// `patch` from one form to the other.
    fn patch(&self, old: &[u8], new: &[u8]) -> Job {
        patch_of(self.window, 0, self.address(), old, new)
    }

    /// As [`Self::patch`], with the first `named` bytes only.
    fn patch_named(&self, old: &[u8], new: &[u8], named: usize) -> Job {
        patch_named(self.window, 0, self.address(), (old, new), named)
    }

    /// The site with this many executors.
    fn scenario(&self, initial: &[u8], executors: usize) -> Scenario {
        Scenario::new(self.window.bytes(), boundary(self.window)).site(self.address(), initial, executors)
    }

    /// A patcher that patches, patches back without a wait, and waits at the end.
    fn to_and_fro(&self, old: &[u8], new: &[u8]) -> Program {
        Program::new([self.patch(old, new), self.patch(new, old), wait()])
    }
}

fn is_mixture(flaw: &Flaw<Violation>) -> bool {
    matches!(flaw, Flaw::Violation(Violation::Mixture(_)))
}

/// Whether a flaw is the execution of this mixture.
fn mixture_of(expected: &[u8]) -> impl Fn(&Flaw<Violation>) -> bool + use<> {
    let expected = Code::new(expected);
    move |flaw| *flaw == Flaw::Violation(Violation::Mixture(expected))
}
