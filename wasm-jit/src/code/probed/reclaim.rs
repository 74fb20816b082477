//! Frees the stubs of lists, and with them what the probes of these lists refer to.
//!
//! A list's stubs are kept when its probes are switched off, so that switching them on again makes
//! nothing. They are freed, all versions' at once, when
//! 1. no site jumps to them: the site has another form;
//! 2. no thread is in them, or will return to one ([`code_in_use`]); the frames that could be are
//!    those of the stores that have an instance of the module;
//! 3. no forked child may be executing them;
//! 4. memory is needed: a multiple of what was in use the last time is in use, and one of the
//!    list's probes has been removed; or the limit is reached, and probes that are off get new stubs
//!    when they are switched on.
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
use crate::trap::code_in_use;

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

/// A list that no site uses, and one of its stubs.
#[derive(Debug)]
struct Stub {
    of: ListAt,
    addresses: Range<usize>,
}

impl Changes {
    /// Frees the stubs of lists that are not needed and in which no thread is, but not those of the
    /// list `keep`.
    pub(super) fn reclaim(&mut self, image: &Arc<CodeImage>, unneeded: Unneeded, keep: ListAt) {
        let mut stubs = self.unneeded_stubs(image, unneeded, keep);
        stubs.sort_unstable_by_key(|stub| stub.addresses.start);
        let pieces: Vec<Range<usize>> = stubs.iter().map(|stub| stub.addresses.clone()).collect();
        let used = image.counters.with_stores(|stores| match pieces.is_empty() {
            true => None,
            // SAFETY: the stores stay as long as they have instances; only they run the image's
            // code. No site jumps to the stubs, whose lists no site has, and a stub ends with a
            // jump.
            false => unsafe { code_in_use(&pieces, stores) },
        });
        // Whoever forked before it answered has been seen here.
        if let Some(used) = used
            && !text::is_shared_with_parent()
            && !text::may_have_children()
        {
            self.free(image, &stubs, &used);
        }
        self.stubs.reclaimed();
    }

    /// The stubs of the lists that no site has and that are not needed.
    fn unneeded_stubs(&self, image: &CodeImage, unneeded: Unneeded, keep: ListAt) -> Vec<Stub> {
        let mut stubs = Vec::new();
        let probed = image.probed();
        for index in image.indices() {
            let Some(state) = self.functions.get(index) else { continue };
            let present = present(state, &self.probes);
            for (position, site) in &state.sites {
                for (number, list) in site.lists() {
                    let of = ListAt { function: index, position: *position, number };
                    let is_present = |item: &ProbeAction| {
                        *item == ProbeAction::Count
                            || present.get(position).is_some_and(|actions| actions.contains(&item))
                    };
                    let is_needed = site.form == Form::List(number)
                        || of == keep
                        || list.is_pinned
                        || unneeded == Unneeded::Removed && list.items().iter().all(is_present);
                    if is_needed {
                        continue;
                    }
                    let starts = list.stubs.iter().filter(|start| **start != 0);
                    let blocks = starts.filter_map(|start| probed.blocks.find(*start));
                    stubs.extend(blocks.map(|block| Stub { of, addresses: block.start..block.end }));
                }
            }
        }
        stubs
    }

    /// Frees the lists of which no stub is in use.
    fn free(&mut self, image: &CodeImage, stubs: &[Stub], used: &[bool]) {
        let mut lists: HashMap<(u32, u32, u32), (bool, Vec<Range<usize>>)> = HashMap::new();
        for (Stub { of, addresses }, is_used) in stubs.iter().zip(used) {
            let list = lists.entry((of.function, of.position, of.number)).or_default();
            list.0 |= is_used;
            list.1.push(addresses.clone());
        }
        lists.retain(|_, (is_used, _)| !*is_used);
        let found = &image.probed().found;
        let mut plain = found.plain.lock().unwrap_or_else(|e| e.into_inner());
        for ((function, position, number), (_, addresses)) in lists {
            let is_in = |pc: usize| addresses.iter().any(|stub| stub.contains(&pc));
            plain.retain(|return_address, _| !is_in(*return_address));
            for stub in addresses {
                image.probed().blocks.clear(stub.start);
                image.shown.version_freed(stub.start);
                self.stubs.free(stub.start, stub.len());
            }
            let site = self.functions.site_mut(function, position).expect("it has the list");
            self.dropped.extend(site.more_mut().take_list(number));
        }
    }
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
