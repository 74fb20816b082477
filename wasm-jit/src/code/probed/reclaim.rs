//! Frees the stubs of lists, and with them what the probes of these lists refer to.
//!
//! A list's stubs are kept when its probes are switched off, so that switching them on again makes
//! nothing. They are freed, all versions' at once, when
//! 1. no site jumps to them: the site has another form;
//! 2. no thread is in them, or will return to one
//!    ([`Counters::code_in_use`](super::counters::Counters::code_in_use)); the frames that could be
//!    are those of the stores that have an instance of the module;
//! 3. no forked child may be executing them;
//! 4. memory is needed: a multiple of what was in use the last time is in use, and one of the
//!    list's probes has been removed; or the limit is reached, and probes that are off get new
//!    stubs when they are switched on.
//!
//! The table of blocks keeps an entry for the freed block, without a length. Caches that are keyed
//! by return addresses in the stub forget these. A backtrace has no address of a stub, but the
//! instruction's position ([`WasmBacktrace`](crate::WasmBacktrace)). What the list owns (closures)
//! is dropped when the lock of changes has been released, because its destructors may change
//! probes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use wordpatch::text;

use super::stubs::{Form, List, ProbeAction};
use super::{Changes, FunctionState, ProbeState};
use crate::code::CodeImage;

/// The lists that may be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unneeded {
    /// Those with a probe that has been removed.
    Removed,
    /// All whose probes are off.
    Off,
}

/// A list at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListAt {
    pub function: u32,
    pub position: u32,
    pub number: u32,
}

/// A list that no site has, and its stubs.
#[derive(Debug)]
struct Candidate {
    at: ListAt,
    stubs: Vec<Range<usize>>,
}

impl Changes {
    /// Frees the stubs of lists that are not needed and in which no thread is, but not those of the
    /// list `keep`.
    pub(super) fn reclaim(&mut self, image: &Arc<CodeImage>, unneeded: Unneeded, keep: ListAt) {
        let candidates = self.candidates(image, unneeded, keep);
        let numbered = candidates.iter().enumerate();
        let mut stubs: Vec<(&Range<usize>, usize)> =
            numbered.flat_map(|(number, list)| list.stubs.iter().map(move |stub| (stub, number))).collect();
        stubs.sort_unstable_by_key(|(stub, _)| stub.start);
        let pieces: Vec<Range<usize>> = stubs.iter().map(|(stub, _)| (*stub).clone()).collect();
        if pieces.is_empty() {
            return self.stubs.reclaimed();
        }
        let used = text::without_forks(|| {
            // SAFETY: no site jumps to the stubs, whose lists no site has, and a stub ends with a
            // jump.
            unsafe { image.counters.code_in_use(&pieces) }
        });
        // Whoever forked before it answered has been seen here.
        if let Some(used) = used
            && !text::is_shared_with_parent()
            && !text::may_have_children()
        {
            let mut is_used = vec![false; candidates.len()];
            stubs.iter().zip(used).for_each(|((_, list), used)| is_used[*list] |= used);
            let unused = candidates.into_iter().zip(is_used).filter(|(_, is_used)| !is_used);
            let mut freed: Vec<Range<usize>> = Vec::new();
            for (list, _) in unused {
                self.free(image, &list);
                freed.extend(list.stubs);
            }
            forget_continuations(image, freed);
        }
        self.stubs.reclaimed();
    }

    /// The lists that no site has and that are not needed.
    fn candidates(&self, image: &CodeImage, unneeded: Unneeded, keep: ListAt) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let probed = image.probed();
        for function in image.indices() {
            let Some(state) = self.functions.get(function) else { continue };
            let present = present(state, &self.probes);
            for (&position, site) in &state.sites {
                let is_present = |item: &ProbeAction| {
                    let present = present.get(&position);
                    *item == ProbeAction::Count || present.is_some_and(|actions| actions.contains(&item))
                };
                for (number, list) in site.lists() {
                    let at = ListAt { function, position, number };
                    let is_in_use = site.form == Form::List(number) || at == keep || list.is_pinned;
                    let is_needed = || unneeded == Unneeded::Removed && list.items().iter().all(is_present);
                    if !is_in_use && !is_needed() {
                        let starts = list.stubs.iter().filter(|start| **start != 0);
                        let blocks = starts.filter_map(|start| probed.blocks.find(*start));
                        let stubs = blocks.map(|block| block.start..block.end).collect();
                        candidates.push(Candidate { at, stubs });
                    }
                }
            }
        }
        candidates
    }

    /// Frees a list.
    fn free(&mut self, image: &CodeImage, Candidate { at, stubs }: &Candidate) {
        stubs.iter().for_each(|stub| self.stubs.give_back(image, stub.start));
        let list = self.site(at.function, at.position).more_mut().take_list(at.number);
        self.dropped.extend(list);
    }
}

/// Forgets how frames in these stubs become plain.
fn forget_continuations(image: &CodeImage, mut stubs: Vec<Range<usize>>) {
    stubs.sort_unstable_by_key(|stub| stub.start);
    let is_in_stub = |pc: usize| {
        let after = stubs.partition_point(|stub| stub.start <= pc);
        after.checked_sub(1).is_some_and(|at| stubs[at].contains(&pc))
    };
    let mut plain = image.probed().found.plain.lock().unwrap_or_else(|e| e.into_inner());
    plain.retain(|return_address, _| !is_in_stub(*return_address));
}

/// The actions of the probes of a function, by their positions.
fn present<'a>(
    state: &FunctionState,
    probes: &'a [Option<ProbeState>],
) -> HashMap<u32, Vec<&'a ProbeAction>> {
    let mut present: HashMap<u32, Vec<&ProbeAction>> = HashMap::new();
    for probe in state.probes.iter().filter_map(|number| probes[*number].as_ref()) {
        present.entry(probe.position).or_default().push(&probe.what);
    }
    present
}

/// Lists that were freed, and are dropped with the lock of changes released.
pub(super) type Dropped = Vec<List>;
