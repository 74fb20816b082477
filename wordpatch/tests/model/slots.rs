//! How the trap handler finds out whose an INT3 is: the slots of `trap.rs`, one load or store at a time.
//!
//! The other scenarios give each site a slot of its own, and let the handler search it in one go. Here the slots are shared, as
//! they are in the crate: the first free one is taken, so a slot that is given back goes to whoever comes next. Patchers take turns at
//! two sites, while a thread that has executed an INT3 of site 1 goes through the handler.
//!
//! This follows the code by hand, since the table is private to the crate. A patcher takes a slot under a mutex (copy, site,
//! counter, in this order), stores INT3, unlocks, gives the slot back. The handler reads the counter; of each slot the site, and if
//! that is the one, the copy and the site again; then the byte; then the counter.

use super::model::explore::{Exploration, Flaw, Model, Transitions, explore};

/// A site, counted from 1; 0 is none. A copy has the number of the site it was made for.
type Site = u8;

/// The site at which the thread traps.
const TRAPPED_AT: Site = 1;

/// What the handler compares before it trusts a copy.
#[derive(Clone, Copy, PartialEq)]
enum Recheck {
    /// That the slot is still, or again, this site's.
    Site,
    /// Besides, that no slot was taken since the search began.
    SiteAndCounter,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq)]
enum Wrong {
    /// The thread goes on in the copy of another site's instruction.
    CopyOfSite(Site),
    /// The INT3 was taken for somebody else's.
    Foreign,
}

struct Slots {
    /// The sites that each patcher patches, in order.
    patchers: Vec<Vec<Site>>,
    recheck: Recheck,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Slot {
    site: Site,
    copy: Site,
}

/// How far a patcher is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Patcher {
    /// The patch it is at.
    patch: usize,
    /// How many of the steps of [`Slots::patch`] it has made.
    step: u8,
    slot: usize,
}

/// How far the handler is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Handler {
    Executing,
    Trapped,
    Searching { counter: u8, slot: usize },
    SiteRead { counter: u8, slot: usize },
    CopyRead { counter: u8, slot: usize, copy: Site },
    SiteReadAgain { counter: u8, copy: Site },
    NotFound { counter: u8 },
    Int3Read { counter: u8 },
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    slots: [Slot; 2],
    /// How often a slot was taken.
    counter: u8,
    /// Where INT3 stands, by site number.
    int3: [bool; 3],
    /// Whether an INT3 has stood at the site where the thread may still execute it.
    was_locked: bool,
    /// The patcher that holds the mutex.
    taking: Option<usize>,
    patchers: Vec<Patcher>,
    handler: Handler,
}

impl Slots {
    fn patch(&self, state: &State, me: usize, out: &mut Transitions<State, Wrong>) {
        let Patcher { patch, step, slot } = state.patchers[me];
        let Some(site) = self.patchers[me].get(patch).copied() else { return };
        let mut next = state.clone();
        next.patchers[me].step += 1;
        let what = match step {
            0 => {
                // The mutex; another owner of the site would end the patch.
                if state.taking.is_some() {
                    return;
                }
                if state.slots.iter().any(|slot| slot.site == site) {
                    next.patchers[me] = Patcher { patch: patch + 1, ..Patcher::default() };
                    out.push(format_args!("patcher {me} finds site {site} owned"), Ok(next));
                    return;
                }
                next.taking = Some(me);
                next.patchers[me].slot =
                    state.slots.iter().position(|slot| slot.site == 0).expect("a free slot");
                "finds a free slot"
            }
            1 => {
                next.slots[slot].copy = site;
                "stores the copy"
            }
            2 => {
                next.slots[slot].site = site;
                "stores the site"
            }
            3 => {
                next.counter += 1;
                next.taking = None;
                "counts"
            }
            4 => {
                next.int3[usize::from(site)] = true;
                next.was_locked |= site == TRAPPED_AT;
                "stores INT3"
            }
            5 => {
                next.int3[usize::from(site)] = false;
                "unlocks"
            }
            _ => {
                next.slots[slot].site = 0;
                next.patchers[me] = Patcher { patch: patch + 1, ..Patcher::default() };
                "gives the slot back"
            }
        };
        out.push(format_args!("patcher {me} at site {site} {what} (slot {slot})"), Ok(next));
    }

    fn handle(&self, state: &State, out: &mut Transitions<State, Wrong>) {
        let again = Ok(Handler::Trapped);
        let (what, next) = match state.handler {
            Handler::Done => return,
            Handler::Executing if !state.was_locked => return,
            Handler::Executing => ("executes INT3", Ok(Handler::Trapped)),
            Handler::Trapped => {
                ("reads the counter", Ok(Handler::Searching { counter: state.counter, slot: 0 }))
            }
            Handler::Searching { counter, slot } => {
                let next = match state.slots.get(slot) {
                    Some(found) if found.site == TRAPPED_AT => Handler::SiteRead { counter, slot },
                    Some(_) => Handler::Searching { counter, slot: slot + 1 },
                    None => Handler::NotFound { counter },
                };
                ("reads the site of the next slot", Ok(next))
            }
            Handler::SiteRead { counter, slot } => {
                ("reads the copy", Ok(Handler::CopyRead { counter, slot, copy: state.slots[slot].copy }))
            }
            Handler::CopyRead { counter, slot, copy } => {
                let same = state.slots[slot].site == TRAPPED_AT;
                (
                    "reads the site again",
                    if same { Ok(Handler::SiteReadAgain { counter, copy }) } else { again },
                )
            }
            Handler::SiteReadAgain { counter, .. }
                if self.recheck == Recheck::SiteAndCounter && state.counter != counter =>
            {
                ("reads the counter again, which has changed", again)
            }
            Handler::SiteReadAgain { copy, .. } => {
                let is_right = copy == TRAPPED_AT;
                (
                    "goes on in the copy",
                    if is_right { Ok(Handler::Done) } else { Err(Wrong::CopyOfSite(copy)) },
                )
            }
            Handler::NotFound { counter } => {
                let gone = !state.int3[usize::from(TRAPPED_AT)];
                ("reads the byte", Ok(if gone { Handler::Done } else { Handler::Int3Read { counter } }))
            }
            Handler::Int3Read { counter } => (
                "reads the counter again",
                if state.counter != counter { again } else { Err(Wrong::Foreign) },
            ),
        };
        let next = next.map(|handler| State { handler, ..state.clone() });
        let arrives = next.as_ref().is_ok_and(|next| next.handler == Handler::Done);
        out.push_by(0, arrives, format_args!("the thread {what}"), next);
    }
}

impl Model for Slots {
    type State = State;
    type Violation = Wrong;

    fn initial(&self) -> State {
        State {
            slots: [Slot::default(); 2],
            counter: 0,
            int3: [false; 3],
            was_locked: false,
            taking: None,
            patchers: vec![Patcher::default(); self.patchers.len()],
            handler: Handler::Executing,
        }
    }

    fn transitions(&self, state: &State, out: &mut Transitions<State, Wrong>) {
        (0..self.patchers.len()).for_each(|me| self.patch(state, me, out));
        self.handle(state, out);
    }

    fn judge(&self, _: &State) -> Option<Wrong> {
        None
    }

    fn is_end(&self, state: &State) -> bool {
        (self.patchers.iter().zip(&state.patchers)).all(|(sites, patcher)| patcher.patch == sites.len())
    }

    /// The trapped thread is independent, but only once it has trapped: nobody waits for that here.
    fn independent(&self) -> usize {
        0
    }
}

/// Runs every order of these patches; returns what is wrong.
fn search(patchers: &[&[Site]], recheck: Recheck) -> Option<Flaw<Wrong>> {
    let patchers = patchers.iter().map(|sites| sites.to_vec()).collect();
    let Exploration { states, counterexample } = explore(&Slots { patchers, recheck });
    println!("{states} states");
    if let Some(counterexample) = &counterexample {
        println!("{counterexample}");
    }
    counterexample.map(|counterexample| counterexample.flaw)
}

/// One site patched again and again: its slot is always its own.
#[test]
fn a_thread_trapped_at_the_only_site_finds_its_copy() {
    assert_eq!(search(&[&[1, 1, 1]], Recheck::Site), None);
    assert_eq!(search(&[&[1, 1], &[1, 1]], Recheck::Site), None);
}

/// Site 1 is patched, site 2, and site 1 again, all in one slot, while the handler stands between its three loads.
#[test]
fn a_slot_that_goes_round_between_two_sites() {
    for patchers in [&[&[1_u8, 2, 1, 2][..]][..], &[&[1, 1], &[2, 2]], &[&[1, 2, 1], &[2, 1]]] {
        assert_eq!(search(patchers, Recheck::SiteAndCounter), None);
    }
}

/// The same, as the crate does it. What ought to hold does not: the attribute goes when the problem does.
#[test]
#[should_panic(expected = "CopyOfSite(2)")]
fn a_slot_that_goes_round_between_two_sites_and_is_trusted() {
    assert_eq!(search(&[&[1, 2, 1]], Recheck::Site), None);
}
