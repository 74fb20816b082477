//! Objects: the intervals of their code, and the probes that are made of the sites in marked
//! intervals.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::arrivals::{self, KnownObject};
use super::imports::Imports;
use super::index::{Index, PriorState};
use super::names::Names;
use super::scan::{self, FoundSites, Scanner};
use super::stubs::{RestoreExtent, Stubs};
use super::unwind::Table;
use super::{HELD, Scan, elf, outermost};
use crate::error::Error;
use crate::loaded::{self, LoadedObject};
use crate::permanent::{ObjectInfo, PROBES, Probe, ProbeSite};

/// Number of sites of which probes are made at a time. With more, more sites share the two waits of
/// their retargeting; with fewer, the loader's lock is held for a shorter time, and less memory is
/// needed.
const SITES_AT_ONCE: usize = 1024;

/// An object that was examined.
pub(super) struct Object {
    pub(super) loaded: LoadedObject,
    /// `None` for an object that is not instrumented.
    pub(super) instrumented: Option<Instrumented>,
}

/// The data about an instrumented object.
pub(super) struct Instrumented {
    pub(super) info: &'static ObjectInfo,
    pub(super) view: elf::View,
    pub(super) known: &'static KnownObject,
    /// Read when first needed.
    pub(super) names: Option<Names>,
    /// Read when first needed.
    pub(super) imports: Option<Imports>,
    pub(super) stubs: Stubs,
    /// The ids of its probes.
    pub(super) probes: Vec<Range<u32>>,
    /// The number of calls in forms that cannot be sites.
    pub(super) unsupported: usize,
    /// For an object that was loaded again: its probes by the addresses of their sites.
    pub(super) back: BTreeMap<usize, &'static Probe>,
}

impl Object {
    /// Marks all its code.
    pub(super) fn mark_everything(&self) {
        if let Some(instrumented) = &self.instrumented {
            let index = &instrumented.known.index;
            (0..index.len()).for_each(|number| _ = index.queue(number));
        }
    }

    /// Whether the object is loaded, and its text contains our patches, so that it was not unloaded
    /// and loaded again.
    pub(super) fn is_unchanged(&self) -> bool {
        /// The number of probes that are examined. One is not sufficient if only one of its bytes
        /// is patched, which may be the same in the new text.
        const EXAMINED: usize = 8;
        let Some(instrumented) = &self.instrumented else {
            return loaded::while_loaded(&self.loaded, || true).unwrap_or(false);
        };
        let examined =
            || instrumented.all_probes().filter_map(|probe| Some((probe, probe.site().ok()?))).take(EXAMINED);
        // SAFETY: the object is loaded here and stays loaded during the call; the site is inside
        // its text.
        let is_stale = |(probe, site): (&'static Probe, ProbeSite)| unsafe {
            site.switch.is_stale(probe.site_address(), callpatch::Shape::Call.len())
        };
        // Text that is written where it is executed cannot be compared with an alias, but new text
        // has the compiler's calls at all sites. A single site may hold the bytes of another tool.
        // SAFETY: as above.
        let is_elsewhere = |(probe, _): (&'static Probe, ProbeSite)| unsafe { !probe.is_in_text() };
        let is_new =
            || examined().any(is_stale) || examined().next().is_some() && examined().all(is_elsewhere);
        let has_same_starts = || {
            // SAFETY: the object is loaded during the call.
            let table = unsafe { Table::of(&self.loaded) };
            let names = instrumented.names.as_ref();
            let starts = starts(&self.loaded, &instrumented.view, table.as_ref(), names);
            instrumented.known.index.has_starts(&starts)
        };
        let is_unchanged = || !is_new() && has_same_starts();
        loaded::while_loaded(&self.loaded, is_unchanged).unwrap_or(false)
    }
}

impl Instrumented {
    pub(super) fn all_probes(&self) -> impl Iterator<Item = &'static Probe> + use<'_> {
        self.probes.iter().cloned().flatten().filter_map(|id| PROBES.get(id as usize))
    }

    pub(super) fn read_names(&mut self, loaded: &LoadedObject) {
        if self.names.is_none() {
            let names = Names::read(loaded, self.view.file);
            HELD.fetch_add(names.memory(), Ordering::Relaxed);
            self.names = Some(names);
        }
    }

    /// Makes probes of the sites in some of the remaining intervals. The object stays loaded during
    /// the call.
    pub(super) fn make_probes(&mut self, loaded: &LoadedObject, work: &mut Work, scan: Scan) -> Step {
        let Self { info, view, known, names, imports: _, stubs, probes, unsupported, back } = self;
        let empty = Names::default();
        let names = names.as_ref().unwrap_or(&empty);
        // SAFETY: the object is loaded during the call.
        let table = unsafe { Table::of(loaded) };
        let mut scanner = Scanner::new(loaded, view);
        let mut found = FoundSites::default();
        let first = work.done;
        // The probes of an object that was loaded again are restored in one step.
        while !work.is_over() && (found.sites.len() < SITES_AT_ONCE || !back.is_empty()) {
            let number = work.intervals[work.done];
            for body in bodies(&known.index, number, loaded, view, table.as_ref(), names) {
                if scanner.is_of_interest(&body) || work.referenced_up_to > 0 && scanner.is_code(&body) {
                    scanner.scan(&body, &mut found);
                }
            }
            for branch in found.branches.drain(..) {
                let other = known.index.find(branch.target).filter(|other| *other != number);
                let is_part = |other: &usize| {
                    branch.is_conditional || names.name(known.index.start(*other)).is_some_and(is_cold)
                };
                if let Some(other) = other.filter(is_part)
                    && known.index.queue(other) == PriorState::Unmarked
                {
                    work.intervals.push(other);
                }
            }
            for target in found.references.drain(..) {
                if work.intervals.len() < work.referenced_up_to
                    && let Some(other) = known.index.find(target)
                    && known.index.start(other) == target
                    && known.index.queue(other) == PriorState::Unmarked
                {
                    work.intervals.push(other);
                }
            }
            work.done += 1;
        }
        *unsupported += found.unsupported;
        drop(scanner);
        let memory = stubs.memory();
        let previous_probe = |site: &scan::Site| {
            let old = back.get(&site.address).copied()?;
            (old.kind == site.kind && old.shape() == site.shape).then_some(old)
        };
        let sites = std::mem::take(&mut found.sites).into_iter().map(|site| (previous_probe(&site), site));
        let (mut returning, mut new) = (Vec::new(), Vec::new());
        for (probe, site) in sites {
            match probe {
                Some(probe) => returning.push((site, probe)),
                None => new.push(site),
            }
        }
        let mut step = Step { new: 0..0, refused: Vec::new() };
        // Comes first because it may move the text's writable view.
        if !returning.is_empty() {
            let probes = if returning.len() == back.len() { RestoreExtent::All } else { RestoreExtent::Some };
            let made = stubs.restore(loaded, &returning, probes);
            step.refused.extend(made.refused);
            back.retain(|_, probe| probe.site().is_err());
        }
        match stubs.make(loaded, info, &new, scan) {
            Ok(made) => {
                step.refused.extend(made.refused);
                step.new = made.new;
            }
            Err(error) => step.refused.push(error),
        }
        for number in &work.intervals[first..work.done] {
            arrivals::keep(known.index.start(*number), known.index.finish(*number).into(), true);
        }
        HELD.fetch_add(stubs.memory() - memory, Ordering::Relaxed);
        match probes.last_mut() {
            Some(last) if last.end == step.new.start => last.end = step.new.end,
            _ if step.new.is_empty() => {}
            _ => probes.push(step.new.clone()),
        }
        step
    }
}

/// The marked intervals of one object that are being scanned.
pub(super) struct Work {
    /// In the order in which they are scanned; intervals that are reached from others by branches
    /// are appended.
    intervals: Vec<usize>,
    /// The number of intervals that are done.
    done: usize,
    /// Functions to which the code refers are appended, too, up to this number of intervals.
    referenced_up_to: usize,
}

impl Work {
    pub(super) fn new(intervals: Vec<usize>) -> Self {
        Self { intervals, done: 0, referenced_up_to: 0 }
    }

    /// Starts with one interval, which is queued.
    pub(super) fn of_outermost_functions(main: usize) -> Self {
        Self { intervals: vec![main], done: 0, referenced_up_to: outermost::LIMIT }
    }

    pub(super) fn is_over(&self) -> bool {
        self.done == self.intervals.len()
    }
}

/// The results of a step of the work.
pub(super) struct Step {
    pub(super) new: Range<u32>,
    pub(super) refused: Vec<Error>,
}

/// The bodies that start in an interval: one from the unwind table, or from the file, and, in the
/// rest of the interval, those of symbols, for code that was compiled without an unwind table.
fn bodies(
    index: &Index,
    number: usize,
    loaded: &LoadedObject,
    view: &elf::View,
    table: Option<&Table<'_>>,
    names: &Names,
) -> Vec<Range<usize>> {
    let start = index.start(number);
    let text_end = loaded.text.iter().find(|text| text.contains(&start)).map_or(start, |text| text.end);
    let end = index.end(number).unwrap_or(text_end).min(text_end);
    let end_of_first = match table {
        Some(table) => table.end_of(start),
        None => {
            let at = view.functions.binary_search_by_key(&start, |function| function.start).ok();
            at.map(|at| view.functions[at].end)
        }
    };
    let mut bodies = Vec::new();
    // With overlapping entries, the same site would be decoded twice.
    let first = start..end_of_first.unwrap_or(start).min(end);
    let rest = first.end..end;
    bodies.extend((!first.is_empty()).then_some(first));
    bodies.extend(names.functions_in(&rest).map(|body| body.start..body.end.min(end)));
    bodies
}

/// Whether this is the name of a part of a function that the compiler has placed elsewhere because
/// it is rarely executed.
fn is_cold(name: &CStr) -> bool {
    name.to_bytes().windows(5).any(|part| part == b".cold")
}

/// The starts of the intervals of an object's index: those of its functions, and those of its text
/// segments, so that all text belongs to some interval. `names` are used only if much of the text
/// is not in an unwind table.
pub(super) fn starts(
    loaded: &LoadedObject,
    view: &elf::View,
    table: Option<&Table<'_>>,
    names: Option<&Names>,
) -> Vec<u32> {
    let from_table = table.into_iter().flat_map(Table::starts);
    let from_file = view.functions.iter().map(|function| function.start);
    let texts = loaded.text.iter().map(|text| text.start);
    let is_text = |start: &usize| loaded.text.iter().any(|text| text.contains(start));
    let offset = |start: usize| u32::try_from(start - loaded.range.start).ok();
    let ascending = |mut starts: Vec<u32>| {
        starts.sort_unstable();
        starts.dedup();
        starts
    };
    let all = from_table.chain(from_file).filter(is_text).chain(texts);
    let mut starts = ascending(all.filter_map(offset).collect());
    if let Some(names) = names
        && is_sparse(loaded, &starts)
    {
        let symbols = names.functions_in(&loaded.range).map(|function| function.start).filter(is_text);
        starts.extend(symbols.filter_map(offset));
        starts = ascending(starts);
    }
    starts
}

/// Whether so few functions are known that most of the text may belong to functions that are not in
/// an unwind table.
pub(super) fn is_sparse(loaded: &LoadedObject, starts: &[u32]) -> bool {
    /// A typical function has some hundred bytes.
    const LARGE: usize = 1024;
    loaded.text.iter().map(|text| text.len()).sum::<usize>() > starts.len() * LARGE
}
