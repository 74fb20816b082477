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

use super::stubs::{Form, ProbeAction};
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

impl Changes {
    /// Frees the stubs of lists that are not needed and in which no thread is, but not those of the
    /// list `keep`.
    pub(super) fn reclaim(&mut self, image: &Arc<CodeImage>, unneeded: Unneeded, keep: ListAt) {
        let lists = self.unneeded_lists(image, unneeded, keep);
        let mut stubs: Vec<(Range<usize>, usize)> = Vec::new();
        for (number, at) in lists.iter().enumerate() {
            let starts = self.site(at.function, at.position).list(at.number).stubs;
            let blocks = starts.iter().filter_map(|start| image.probed().blocks.find(*start));
            stubs.extend(blocks.map(|block| (block.start..block.end, number)));
        }
        stubs.sort_unstable_by_key(|(stub, _)| stub.start);
        let (stubs, list_of): (Vec<Range<usize>>, Vec<usize>) = stubs.into_iter().unzip();
        if stubs.is_empty() {
            return self.stubs.reclaimed();
        }
        let used = text::without_forks(|| {
            // SAFETY: no site jumps to the stubs, whose lists no site has, and a stub ends with a
            // jump.
            unsafe { image.counters.code_in_use(&stubs) }
        });
        // Whoever forked before it answered has been seen here.
        if let Some(used) = used
            && !text::is_shared_with_parent()
            && !text::may_have_children()
        {
            let mut is_used = vec![false; lists.len()];
            list_of.iter().zip(used).for_each(|(list, used)| is_used[*list] |= used);
            let all = stubs.into_iter().zip(list_of);
            let freed: Vec<Range<usize>> =
                all.filter(|(_, list)| !is_used[*list]).map(|(stub, _)| stub).collect();
            freed.iter().for_each(|stub| self.stubs.give_back(image, stub.start));
            forget_continuations(image, &freed);
            for (at, _) in lists.iter().zip(is_used).filter(|(_, is_used)| !is_used) {
                let list = self.site(at.function, at.position).more_mut().take_list(at.number);
                self.dropped.extend(list);
            }
        }
        self.stubs.reclaimed();
    }

    /// The lists that no site has and that are not needed.
    fn unneeded_lists(&self, image: &CodeImage, unneeded: Unneeded, keep: ListAt) -> Vec<ListAt> {
        let mut lists = Vec::new();
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
                        lists.push(at);
                    }
                }
            }
        }
        lists
    }
}

/// Forgets how frames in these stubs, which are in ascending order, become plain.
fn forget_continuations(image: &CodeImage, stubs: &[Range<usize>]) {
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
