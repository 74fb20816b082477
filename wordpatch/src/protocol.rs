//! The patch protocol as a value: the stores in their order, and the waits between them.
//!
//! ```text
//! CALL to NOP, window boundary after the third byte (paper, Figure 5)
//!
//!            front    | back
//! old        e8 11 22 | 33 44
//! store      cc 11 22 | 33 44    lock; all bytes of the old front are compared, so one patcher succeeds
//! wait                           partner of the executors' fetch: without it, old front + new back
//! store      cc 11 22 | 44 00    back
//! wait                           without it, new front + old back
//! store      0f 1f 44 | 44 00    front; unlocks
//! ```
//!
//! The bytes are those of the entire instruction, or its first eight if it is longer, even if only
//! some of them change, because fetch combines all of them.
//!
//! An instruction in one window is patched by a single store, which compares all of its old bytes:
//! of several concurrent patches, one wins.
//!
//! An instruction that crosses a window but changes on one side only is patched by a single store
//! and a wait after it. The store compares the bytes on its own side only, so the patch must own
//! the site ([`Protocol::waits`]). Without the wait, a patch of the other side could follow
//! immediately, and a core could run the new bytes of the second patch with the old bytes of the
//! first: an instruction that is neither patch's. (`exploration` finds this, and a stress test
//! found it on real machines.)
//!
//! # What the vendors guarantee, and why there is no third wait
//! AMD guarantees that a store to a naturally aligned quadword is atomic for instruction fetch,
//! whether the executing cores are synchronized or not (APM volume 2, section 7.6.1,
//! "Cross-Modifying Code"); the smallest [`FetchWindow`] is that quadword. Intel guarantees nothing
//! for code that is modified while another core may be executing it without synchronization: the
//! algorithm of the SDM (volume 3, "Handling Self- and Cross-Modifying Code") keeps the other cores
//! from executing the code until it is modified, and has each of them execute a serializing
//! instruction before it executes the new code. For a single store inside a window on Intel
//! processors, the fetch model is therefore an assumption. A calibration can refute it but not
//! prove it.
//!
//! For a locked site, the steps above satisfy the SDM, except for the first and the last store,
//! which executing cores may see without synchronization:
//! * The first store changes one byte, to INT3. A core executes the old instruction or INT3. (No
//!   manual guarantees this for processors other than AMD's; debuggers and Linux rely on it.) When
//!   the first wait ends, every core has executed a serializing instruction since the store, so
//!   from then on none executes the old instruction in place.
//! * The back part is stored while no core gets past the INT3. When the second wait ends, every
//!   core has executed a serializing instruction since that store, so from then on, fetching the
//!   back part yields the new bytes.
//! * After the last store, therefore, a core executes either INT3 or the new instruction, and both
//!   are complete. A core that still has the INT3 traps; the handler finds the site unlocked or the
//!   INT3 gone, and the IRET at its end serializes the core before it fetches the instruction
//!   again. (If the registers allow it, as directly after a SYSCALL, the kernel may return by
//!   SYSRET, which does not: then the core may trap once more.)
//!
//! Therefore a wait after the last store would prevent nothing: even without it, cores execute only
//! the old instruction (in its out-of-line copy), INT3, or the new one. Linux's `text_poke_bp` does
//! synchronize after its third step, for its own bookkeeping: its trap handler searches a vector of
//! the in-flight patches, which must not be reused before the last handler has finished reading it.
//! Here a site's record is never reused for another site, and a late trap is resolved from the
//! record's state, as `Gone` (`site_table.rs`), so no wait is needed for it. A caller that needs
//! every core to be past the old instruction calls
//! [`serialize_all_cores`](crate::serialize_all_cores).
//!
//! (If waits are for T_max, replace "has executed a serializing instruction" by "has discarded what
//! it fetched before", which is measured, not guaranteed.)

use std::ops::Range;

use crate::{Bytes, FetchWindow, MAX_PATCH, Split};

/// The one-byte breakpoint instruction.
pub const INT3: u8 = 0xcc;

/// One step of a patch. Offsets count from the first byte of the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Replace `old` by `new` at `offset`, in one store inside a fetch window.
    Store {
        /// The offset of the first byte of the store.
        offset: usize,
        /// The bytes before the store.
        old: Bytes,
        /// The bytes after it.
        new: Bytes,
    },
    /// Wait until no core executes bytes older than the last store.
    Wait,
}

/// The longest protocol: three stores and the two waits between them.
const MAX_STEPS: usize = 5;

/// The steps of one patch. Does not allocate, because a protocol is made for each patch.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    steps: [Step; MAX_STEPS],
    length: usize,
    kind: Kind,
}

/// The kind of a protocol, which determines its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No steps: the bytes are equal.
    Empty,
    /// One store, inside a window.
    OneStore,
    /// One store on one side of a boundary, and a wait.
    OneSide,
    /// The site is locked, and both sides are stored.
    Locking,
}

/// The part of a patch that has been stored in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Nothing has been stored.
    Nothing,
    /// INT3 has been stored, and is followed by the rest of the old instruction: the old first byte
    /// can be restored.
    Lock,
    /// INT3 and the new back part have been stored: only the front can follow, and nothing can be
    /// undone.
    LockAndBack,
    /// The new instruction has been stored.
    All,
}

impl Protocol {
    /// The steps that turn the instruction `old` at `address` into `new`; none if they are equal.
    /// Both are the entire instruction, or its first eight bytes if it is longer.
    ///
    /// # Panics
    /// If the two differ in length.
    pub(crate) fn new(window: FetchWindow, address: usize, old: &Bytes, new: &Bytes) -> Self {
        assert_eq!(old.len(), new.len());
        let differs = |range: Range<usize>| old[range.clone()] != new[range];
        if !differs(0..old.len()) {
            return Self::of(&[], Kind::Empty);
        }
        let part = |bytes: &[u8]| Bytes::new(bytes).expect("parts of 1 to 8 bytes");
        let store =
            |offset: usize, old: &[u8], new: &[u8]| Step::Store { offset, old: part(old), new: part(new) };
        match window.split(address, old.len()) {
            Split::Inside => Self::of(&[store(0, old, new)], Kind::OneStore),
            Split::Crossing { front } if !differs(front..old.len()) => {
                Self::of(&[store(0, &old[..front], &new[..front]), Step::Wait], Kind::OneSide)
            }
            Split::Crossing { front } if !differs(0..front) => {
                Self::of(&[store(front, &old[front..], &new[front..]), Step::Wait], Kind::OneSide)
            }
            Split::Crossing { front } => {
                let mut locked = [0; MAX_PATCH];
                locked[..front].copy_from_slice(&old[..front]);
                locked[0] = INT3;
                let locked = &locked[..front];
                let steps = [
                    store(0, &old[..front], locked),
                    Step::Wait,
                    store(front, &old[front..], &new[front..]),
                    Step::Wait,
                    store(0, locked, &new[..front]),
                ];
                Self::of(&steps, Kind::Locking)
            }
        }
    }

    fn of(steps: &[Step], kind: Kind) -> Self {
        let mut all = [Step::Wait; MAX_STEPS];
        all[..steps.len()].copy_from_slice(steps);
        Self { steps: all, length: steps.len(), kind }
    }

    /// The steps, in order.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps[..self.length]
    }

    /// Whether the site is locked with INT3 during the patch.
    pub(crate) fn uses_int3(&self) -> bool {
        self.kind == Kind::Locking
    }

    /// Whether the protocol contains a wait, if only at its end. Exactly then, its stores do not
    /// compare the entire instruction, so other patches of the site must be excluded during the
    /// patch.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.kind, Kind::OneSide | Kind::Locking)
    }

    /// The part of the patch that is in the text after its first `made` steps.
    pub(crate) fn stored(&self, made: usize) -> Stored {
        let is_store = |step: &&Step| matches!(step, Step::Store { .. });
        match (self.kind, self.steps()[..made].iter().filter(is_store).count()) {
            (_, 0) => Stored::Nothing,
            (Kind::Locking, 1) => Stored::Lock,
            (Kind::Locking, 2) => Stored::LockAndBack,
            _ => Stored::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: [u8; 5] = [0xe8, 0x11, 0x22, 0x33, 0x44];
    const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

    fn protocol(address: usize, old: &[u8], new: &[u8]) -> Vec<Step> {
        let bytes = |b| Bytes::new(b).unwrap();
        Protocol::new(FetchWindow::Bytes32, address, &bytes(old), &bytes(new)).steps().to_vec()
    }

    fn store(offset: usize, old: &[u8], new: &[u8]) -> Step {
        Step::Store { offset, old: Bytes::new(old).unwrap(), new: Bytes::new(new).unwrap() }
    }

    #[test]
    fn inside_a_window_one_store_of_the_whole_instruction() {
        assert_eq!(protocol(0x1000, &CALL, &CALL), []);
        assert_eq!(protocol(0x1000, &CALL, &NOP), [store(0, &CALL, &NOP)]);
        assert_eq!(protocol(0x101b, &CALL, &NOP), [store(0, &CALL, &NOP)]);
        let retargeted = [0xe8, 0x11, 0x99, 0x33, 0x44];
        assert_eq!(protocol(0x1000, &CALL, &retargeted), [store(0, &CALL, &retargeted)]);
    }

    #[test]
    fn a_straddler_that_changes_on_one_side_only_is_one_store_and_a_wait() {
        let front = [0x0f, 0x1f, 0x22, 0x33, 0x44];
        assert_eq!(protocol(0x101e, &CALL, &front), [store(0, &CALL[..2], &front[..2]), Step::Wait]);
        let back = [0xe8, 0x99, 0x22, 0x33, 0x44];
        assert_eq!(protocol(0x101f, &CALL, &back), [store(1, &CALL[1..], &back[1..]), Step::Wait]);
    }

    #[test]
    fn a_straddler_is_locked_and_written_back_part_first() {
        let expected = [
            store(0, &CALL[..3], &[INT3, 0x11, 0x22]),
            Step::Wait,
            store(3, &CALL[3..], &NOP[3..]),
            Step::Wait,
            store(0, &[INT3, 0x11, 0x22], &NOP[..3]),
        ];
        assert_eq!(protocol(0x101d, &CALL, &NOP), expected);
    }

    #[test]
    fn what_stands_in_the_text_changes_with_the_stores() {
        #[track_caller]
        fn check(address: usize, new: &[u8], expected: &[Stored]) {
            let bytes = |b| Bytes::new(b).unwrap();
            let protocol = Protocol::new(FetchWindow::Bytes32, address, &bytes(&CALL), &bytes(new));
            let stored: Vec<Stored> =
                (0..=protocol.steps().len()).map(|made| protocol.stored(made)).collect();
            assert_eq!(stored, expected);
        }
        use Stored::{All, Lock, LockAndBack, Nothing};
        check(0x1000, &CALL, &[Nothing]);
        check(0x1000, &NOP, &[Nothing, All]);
        check(0x101f, &[0xe8, 0x99, 0x22, 0x33, 0x44], &[Nothing, All, All]);
        check(0x101d, &NOP, &[Nothing, Lock, Lock, LockAndBack, LockAndBack, All]);
    }
}
