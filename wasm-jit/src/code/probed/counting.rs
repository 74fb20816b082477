//! Counting versions, and the counts of probes.
//!
//! A function with many counting probes ([`has_many`]), or with one that counts choices, gets
//! *counting versions* from then on: each straight-line run that a count depends on adds 1 to its
//! cell when it begins (`wasm_jit_codegen::Counting`). Only probes that do something else have
//! sites. Switching a counter changes no code. If half of the instructions have counters, or in the
//! last counting version that a function may have, all runs are counted.
//!
//! # The count of an instruction
//! It is the sum of three cells, or of four at a branch whose ways were counted: that of its site,
//! to which stubs add in versions that do not count; that which it shares with other instructions
//! of one site in the original; and that of its run, or of the earlier run with which its run is
//! counted ([`Run::with`]). A run is counted when it begins, and with it those that are counted
//! with it. If its frame is left before they end, by a trap or an interrupt, the thread subtracts 1
//! from the site cells of the instructions that will not be executed ([`CodeImage::uncount`]). A
//! call ends a run, so this happens only to the innermost frame, and to frames that wait for a
//! probe function ([`CodeImage::uncount_in_stub`]).
//!
//! All counting versions of a function have the same runs, with the same cells. A plain version may
//! have additional runs, in code that the others never reach.
//!
//! # The count of a probe
//! It is the difference between the count of the probe's instruction and the *base*, which is
//! recorded when the probe is switched on. If that was in the middle of a run which then ended
//! early, the difference may be negative: then the count is 0, and a new base is recorded when it
//! is read.
//!
//! A branch has two counts: that of the run it ends, and that of the run after it, which is
//! executed unless the branch jumps. Only counting versions count both, so what its site has
//! counted elsewhere is not included: threads subtract from a cell of its own instead of the site's
//! ([`Site::uncounting_cell`]). If its probe is switched on between the starts of the two runs, the
//! second count is too large by one. A second count above the first reveals this: it is then
//! clamped to the first, and its base is adjusted when the counts are read, so that later counts
//! are exact.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use wasm_jit_codegen::{Counting, Only, Position, Run};
use wasmparser::{BinaryReader, Operator, OperatorsReader};

use super::blocks::Block;
use super::counters::Counters;
use super::make::Needs;
use super::stubs::{ProbeAction, Site};
use super::version::Observations;
use super::{Changes, FunctionState, Version};
use crate::code::CodeImage;
use crate::vmctx::{COUNTERS, INSTANCE_NUMBER, VmContext};

/// Whether a function has enough counting probes for counting versions: more than `limit`, or, if
/// there are several and there is a limit, on half of its instructions.
pub(super) fn has_many(counters: usize, instructions: usize, limit: u32) -> bool {
    counters > limit as usize || limit < u32::MAX && counters > 1 && 2 * counters >= instructions
}

/// The choice of an instruction between ways to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Choice {
    /// `br_if`, `br_on_null`, `br_on_non_null` and `if`: the next instruction is executed, or not.
    Branch {
        /// Whether the next instruction is executed if the condition holds.
        then_follows: bool,
    },
    /// `select`.
    Select,
    /// `br_table`, with this number of targets, not counting the default.
    Table { targets: u32 },
}

impl Choice {
    /// Number of cells that only this instruction uses.
    pub(super) fn cells(self) -> u32 {
        match self {
            Self::Branch { .. } => 0,
            Self::Select => 2,
            Self::Table { targets } => targets + 1,
        }
    }

    /// Number of counts of a choice.
    pub(super) fn counts(self) -> usize {
        match self {
            Self::Branch { .. } | Self::Select => 2,
            Self::Table { targets } => targets as usize + 1,
        }
    }
}

/// The cells of a function's runs.
#[derive(Debug)]
pub(super) struct RunCells {
    first: u32,
    /// The exit, which is in no run: its site counts.
    exit: u32,
    /// The start of each run in the module; see [`Run::wasm`].
    starts: Box<[u32]>,
    /// The number of the run with which each is counted.
    counted_with: Box<[u32]>,
}

impl RunCells {
    /// The cells of runs, the first of which is at `first`.
    pub(super) fn new(first: u32, exit: u32, runs: &[Run]) -> Self {
        let counted_with = runs.iter().enumerate().map(|(number, run)| {
            // A run without instructions has the position of the next one.
            let earlier = run.with != run.wasm;
            let after = || runs.partition_point(|earlier| earlier.wasm <= run.with);
            if earlier { after().saturating_sub(1) as u32 } else { number as u32 }
        });
        Self {
            first,
            exit,
            starts: runs.iter().map(|run| run.wasm).collect(),
            counted_with: counted_with.collect(),
        }
    }

    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Number of cells: one for each run, and one more for plain versions.
    pub(super) fn count(&self) -> u32 {
        self.starts.len() as u32 + 1
    }

    /// The starts of the runs, for a plain version.
    pub(super) fn starts(&self) -> Box<[u32]> {
        self.starts.clone()
    }

    /// The number of the run that an instruction is in.
    fn number(&self, position: u32) -> usize {
        self.starts.partition_point(|start| *start <= position) - 1
    }

    /// The cell of a run.
    fn cell(&self, number: usize) -> u32 {
        self.first + self.counted_with[number]
    }

    /// The start of the run with which a run is counted.
    fn counted_with(&self, number: usize) -> u32 {
        self.starts[self.counted_with[number] as usize]
    }
}

/// The data of a counting version about its runs. Code offsets are from the version's base.
#[derive(Debug)]
pub(super) struct Runs {
    pub counting: Counting,
    runs: Box<[Run]>,
    /// The start of the code of each place, in code order, including the entry and out-of-line
    /// code.
    pub positions: Box<[Position]>,
    /// The places that can be reached, in order, each with the cell from which threads subtract
    /// there and 1, or 0.
    places: Box<[(u32, AtomicU32)]>,
    /// The instructions before which a load of the previous instruction is pending.
    pending: Box<[u32]>,
    /// The position of the exit.
    exit: u32,
}

impl Runs {
    pub(super) fn new(
        counting: Counting,
        seen: &mut Observations,
        sites: &BTreeMap<u32, Site>,
        exit: u32,
    ) -> Self {
        let runs: Box<[Run]> = std::mem::take(&mut seen.runs).into();
        let entry = Position { code: runs[0].code, wasm: runs[0].wasm };
        let instructions = seen.instructions.iter();
        let code = instructions.clone().map(|(code, wasm, _)| Position { code: *code, wasm: *wasm });
        let mut positions: Vec<Position> =
            std::iter::once(entry).chain(code).chain(seen.more.drain(..)).collect();
        // Stable: of several places at one address, the last one is about to be executed.
        positions.sort_by_key(|position| position.code);
        let reachable = instructions.filter(|(.., reachable)| *reachable).map(|(_, wasm, _)| *wasm);
        let places = std::iter::once(entry.wasm).chain(reachable).map(|wasm| {
            let cell = sites.get(&wasm).map_or(0, |site| site.uncounting_cell() + 1);
            (wasm, AtomicU32::new(cell))
        });
        Self {
            places: places.collect(),
            pending: std::mem::take(&mut seen.pending).into(),
            positions: positions.into(),
            counting,
            runs,
            exit,
        }
    }

    /// Whether the code counts executions of a place.
    pub(super) fn counts(&self, position: u32) -> bool {
        let is_counted = |run: usize| self.counting.counts(self.runs[run].with);
        position != self.exit && self.run_of(position).is_some_and(is_counted)
    }

    /// Whether the code counts the run that begins there, if it is not joined to another.
    pub(super) fn counts_run(&self, start: u32) -> bool {
        self.counting.counts(start)
    }

    /// Records the cell from which threads subtract at a place.
    pub(super) fn set_cell(&self, position: u32, cell: u32) {
        if let Ok(at) = self.places.binary_search_by_key(&position, |(place, _)| *place) {
            self.places[at].1.store(cell + 1, Ordering::Relaxed);
        }
    }

    /// The places of the instructions that a thread has counted but does not execute, because it
    /// leaves its frame at a code offset or in the stub of an instruction, each with the cell of
    /// its site. Whether the instruction there is among those which it executes is `is_executed`:
    /// it is, if it traps.
    fn rest(&self, code: u32, stub: Option<u32>, is_executed: bool) -> impl Iterator<Item = (u32, u32)> {
        let at_instruction = || {
            let after = self.positions.partition_point(|position| position.code <= code);
            let position = self.positions[after.checked_sub(1)?].wasm;
            let run = &self.runs[self.run_of(position)?];
            // Further code of the instruction follows all runs.
            let is_counted = run.counted <= code || self.continues(run);
            Some((position, self.is_pending(position), is_counted))
        };
        let place = stub.map(|position| (position, false, true)).or_else(at_instruction);
        let rest = place.into_iter().flat_map(move |(position, is_pending, is_counted)| {
            let number = self.run_of(position).expect("places are in runs");
            let run = self.runs[number];
            let own = (is_counted && self.counting.counts(run.with))
                .then_some((number, position + u32::from(is_executed && !is_pending)));
            // Runs that the thread has not reached, and that were counted with this one or with an
            // earlier one.
            let is_joined = move |later: &Run| {
                let is_with = later.with < run.wasm || is_counted && later.with <= position;
                is_with && position < later.wasm && self.counting.counts(later.with)
            };
            let later = self.runs.iter().enumerate().skip(number + 1);
            let joined = later.filter(move |(_, later)| !self.continues(later) && is_joined(later));
            own.into_iter().chain(joined.map(|(number, later)| (number, later.wasm)))
        });
        let places = rest.flat_map(move |(run, begin)| {
            let next = self.runs[run + 1..].iter().find(|next| !self.continues(next));
            let end = next.map_or(u32::MAX, |next| next.wasm);
            let from = self.places.partition_point(|(place, _)| *place < begin);
            let to = self.places.partition_point(|(place, _)| *place < end);
            self.places.get(from..to).unwrap_or_default()
        });
        places.filter_map(|(place, cell)| Some((*place, cell.load(Ordering::Relaxed).checked_sub(1)?)))
    }

    /// Whether a run of a plain version is the rest of a run that the other versions count at its
    /// start: they have no label there, since nothing in them branches to it.
    fn continues(&self, run: &Run) -> bool {
        self.counting.runs.as_ref().is_some_and(|starts| starts.binary_search(&run.wasm).is_err())
    }

    fn run_of(&self, position: u32) -> Option<usize> {
        self.runs.partition_point(|run| run.wasm <= position).checked_sub(1)
    }

    fn is_pending(&self, position: u32) -> bool {
        self.pending.binary_search(&position).is_ok()
    }

    /// The cells of the runs, which were allocated for the first counting version.
    pub(super) fn cells(&self) -> RunCells {
        RunCells::new(self.counting.first_cell, self.exit, &self.runs)
    }

    /// Whether a choice is counted.
    pub(super) fn counts_choice(&self, position: u32) -> bool {
        self.counting.choices.binary_search_by_key(&position, |(wasm, _)| *wasm).is_ok()
    }
}

impl CodeImage {
    /// The choice of the instruction at a position, if it makes one.
    pub(super) fn choice(&self, function: u32, position: u32) -> Option<Choice> {
        let end = self.body_range(function).end as usize;
        let code = BinaryReader::new(self.bytes.get(position as usize..end)?, position.into());
        Some(match OperatorsReader::new(code).read().ok()? {
            Operator::BrIf { .. }
            | Operator::BrOnNull { .. }
            | Operator::BrOnNonNull { .. }
            | Operator::BrOnCast { .. }
            | Operator::BrOnCastFail { .. } => Choice::Branch { then_follows: false },
            Operator::If { .. } => Choice::Branch { then_follows: true },
            Operator::Select | Operator::TypedSelect { .. } => Choice::Select,
            Operator::BrTable { targets } => Choice::Table { targets: targets.len() },
            _ => return None,
        })
    }

    /// The choice of the instruction of a probe, if the probe counts how often each way is taken.
    pub(crate) fn probe_choice(&self, number: usize) -> Option<Choice> {
        match self.state().probe(number).what {
            ProbeAction::CountChoice(choice) => Some(choice),
            _ => None,
        }
    }

    /// The position of a probe's place in the module.
    pub(crate) fn probe_position(&self, number: usize) -> u32 {
        self.state().probe(number).position
    }

    /// Subtracts what a thread has counted but will not execute, because it leaves its innermost
    /// frame at this address; `is_executed` says whether the instruction there is executed.
    ///
    /// # Safety
    /// The address must be in the image's code, or in a stub, and `context` that of the function's
    /// instance. Called on the thread that runs the store.
    pub(crate) unsafe fn uncount(&self, pc: usize, context: *const VmContext, is_executed: bool) {
        let Some((block, version)) = self.sited_at(pc) else { return };
        // SAFETY: the caller's obligation.
        unsafe { self.uncount_rest((block, version), pc, context, is_executed) };
    }

    /// Subtracts what was counted but will not be executed by a frame at this address in a version,
    /// or in the stub of an instruction.
    ///
    /// # Safety
    /// `context` must be that of the function's instance; called on the thread that runs the store.
    unsafe fn uncount_rest(
        &self,
        (block, version): (Block, &Version),
        pc: usize,
        context: *const VmContext,
        is_executed: bool,
    ) {
        // SAFETY: the caller's obligation.
        let places = unsafe { version.uncount(pc, block.stub, context, is_executed) };
        if !places.is_empty() {
            // SAFETY: as above; the instance is alive.
            let is_in = |only: Only| unsafe { is_for(only, context) };
            self.state().follow_totals(&self.counters, block.function, &places, is_in);
        }
    }

    /// As [`CodeImage::uncount`], for a frame that waits for a call in the function's code which
    /// returns to this address, and which does not end a run: that for the reason of a failure.
    /// Does nothing in stubs: see [`CodeImage::uncount_in_stub`].
    ///
    /// # Safety
    /// `fp` must be the frame's pointer; called on the thread that runs the store.
    pub(crate) unsafe fn uncount_in_code(&self, return_address: usize, fp: usize) {
        let pc = return_address - 1;
        if let Some((block, version)) = self.sited_at(pc)
            && block.stub.is_none()
        {
            // SAFETY: the caller's obligation; a frame that calls has stored its context.
            unsafe { self.uncount_rest((block, version), pc, context_of(fp), true) };
        }
    }

    /// As [`CodeImage::uncount`], for a frame that is left while a probe function runs: the
    /// call in its stub returns to this address. Does nothing for other calls, which end runs.
    ///
    /// # Safety
    /// `fp` must be the frame's pointer; called on the thread that runs the store.
    pub(crate) unsafe fn uncount_in_stub(&self, return_address: usize, fp: usize) {
        let pc = return_address - 1;
        if let Some((block, version)) = self.sited_at(pc)
            && block.stub.is_some()
        {
            // SAFETY: the caller's obligation; the call follows the instruction that stores the
            // context.
            unsafe { self.uncount_rest((block, version), pc, context_of(fp), true) };
        }
    }
}

/// Where a function's frame has its context, if it has stored it: below the frame pointer.
pub(crate) fn context_slot(fp: usize) -> *mut *const VmContext {
    std::ptr::with_exposed_provenance_mut(fp - 8)
}

/// The counters of an instance.
///
/// # Safety
/// `context` must be that of an instance that is alive.
pub(crate) unsafe fn counters_of(context: *const VmContext) -> *const AtomicU64 {
    // SAFETY: the caller's obligation.
    unsafe { context.byte_offset(COUNTERS as isize).cast::<*const AtomicU64>().read() }
}

/// Whether a probe that is limited to these instances fires in the instance of a context.
///
/// # Safety
/// `context` must be that of an instance that is alive.
unsafe fn is_for(only: Only, context: *const VmContext) -> bool {
    // SAFETY: the caller's obligation.
    unsafe {
        match only {
            Only::Instance(number) => {
                context.byte_offset(INSTANCE_NUMBER as isize).cast::<u64>().read() == number
            }
            Only::Store(number) => (*(*context).store).number == number,
        }
    }
}

/// The context that a function's frame has.
///
/// # Safety
/// `fp` must be the pointer of a frame that has stored it.
pub(crate) unsafe fn context_of(fp: usize) -> *const VmContext {
    // SAFETY: the caller's obligation.
    unsafe { context_slot(fp).read() }
}

impl Version {
    /// Subtracts what was counted but will not be executed by a frame at this address in the code,
    /// or in the stub of an instruction. Returns the places whose counts have become less.
    ///
    /// # Safety
    /// `context` must be that of the function's instance; called on the thread that runs the store.
    unsafe fn uncount(
        &self,
        pc: usize,
        stub: Option<u32>,
        context: *const VmContext,
        is_executed: bool,
    ) -> Vec<u32> {
        let Some(runs) = &self.runs else { return Vec::new() };
        let stub = stub.or_else(|| self.stub_at(pc));
        let rest = runs.rest(pc.wrapping_sub(self.base) as u32, stub, is_executed);
        let subtract = |(place, cell): (u32, u32)| {
            // SAFETY: the instance has counters since there is a version. No other thread writes
            // them.
            let cell = unsafe { &*counters_of(context).add(cell as usize) };
            cell.store(cell.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
            place
        };
        rest.map(subtract).collect()
    }
}

/// A count of a probe.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// The sum of the cells when the probe was switched on.
    base: u64,
    /// The count until the probe was switched off.
    counted: u64,
}

impl Tally {
    pub(super) fn begin(&mut self, total: u64) {
        self.base = total;
    }

    /// The count of all periods in which the probe was on, where `total` is the present sum of the
    /// cells.
    pub(super) fn read(&mut self, total: u64) -> u64 {
        let since = total.wrapping_sub(self.base);
        if (since as i64) < 0 {
            self.base = total;
            return self.counted;
        }
        self.counted.wrapping_add(since)
    }

    /// Records that the probe is switched off with this count.
    pub(super) fn end(&mut self, count: u64) {
        self.counted = count;
    }

    /// Reduces the count by this much, but at most by the count since the probe was switched on.
    fn reduce(&mut self, by: u64) {
        self.base = self.base.wrapping_add(by);
    }

    pub(super) fn counted(&self) -> u64 {
        self.counted
    }
}

/// The cells whose sum is a count; there are none for a count that is always 0.
pub(super) type Cells = [Option<u32>; 4];

impl FunctionState {
    /// The cells of what an instruction has counted.
    pub(super) fn cells(&self, position: u32) -> Cells {
        let runs = self.runs.as_ref().filter(|runs| position != runs.exit);
        let run = runs.map(|runs| runs.cell(runs.number(position)));
        let site = self.sites.get(&position);
        let taken_back = site.and_then(|site| site.more()?.taken_back);
        [site.map(|site| site.cell), run, site.and_then(|site| site.shared), taken_back]
    }

    /// The number of the run after a branch, if it is executed whenever the branch does not jump.
    fn run_after(&self, branch: u32) -> Option<usize> {
        let runs = self.runs.as_ref()?;
        let next = runs.number(branch) + 1;
        // No other way leads to the run after a branch, unless what follows the branch is never
        // executed.
        let after = self.sites.get(&branch)?.more()?.next?;
        (runs.starts.get(next) == Some(&after)).then_some(next)
    }

    /// The starts of the runs that must be counted for what is needed at a place.
    pub(super) fn runs_for(&self, position: u32, needs: &Needs) -> impl Iterator<Item = u32> {
        let is_branch = matches!(needs.choice, Some(Choice::Branch { .. }));
        let runs = self.runs.as_ref().filter(|runs| position != runs.exit);
        let own = runs.filter(|_| needs.counter || is_branch).map(|runs| runs.number(position));
        let after = if is_branch { self.run_after(position) } else { None };
        own.into_iter().chain(after).filter_map(move |number| Some(runs?.counted_with(number)))
    }

    /// The cells of a count of a choice.
    fn cells_of_choice(&self, position: u32, choice: Choice, number: usize) -> Cells {
        match (choice, number) {
            (Choice::Branch { .. }, 0) => {
                let [_, run, _, taken_back] = self.cells(position);
                [None, run, None, taken_back]
            }
            (Choice::Branch { .. }, _) => {
                let cell = |number| Some(self.runs.as_ref()?.cell(number));
                [self.run_after(position).and_then(cell), None, None, None]
            }
            (Choice::Select | Choice::Table { .. }, _) => {
                let choices = self.sites[&position].more().and_then(|more| more.choices);
                [choices.map(|first| first + number as u32), None, None, None]
            }
        }
    }

    /// The cells of a count of a probe.
    pub(super) fn cells_of(&self, position: u32, what: &ProbeAction, number: usize) -> Cells {
        match what {
            ProbeAction::CountChoice(choice) => self.cells_of_choice(position, *choice, number),
            _ => self.cells(position),
        }
    }

    /// The cells of each count of a probe.
    pub(super) fn counts(&self, position: u32, what: &ProbeAction) -> impl Iterator<Item = Cells> {
        (0..what.counts()).map(move |number| self.cells_of(position, what, number))
    }
}

/// The maximum number of readings of the totals of a branch, to find a time at which the second one
/// does not change.
const READINGS: usize = 8;

/// The two totals of a branch at one time. They are exact if the branch is rarely executed, and
/// otherwise as consistent as a few readings can be.
fn at_once(total: impl Fn(usize) -> u64) -> [u64; 2] {
    let mut best = (u64::MAX, [0, 0]);
    for _ in 0..READINGS {
        let (before, executed, after) = (total(1), total(0), total(1));
        let passed = after.wrapping_sub(before);
        if passed < best.0 {
            best = (passed, [executed, before.wrapping_add(passed / 2)]);
        }
        if passed == 0 {
            break;
        }
    }
    best.1
}

impl Changes {
    /// Called after counts of places of a function were taken back in an instance, for which
    /// `is_in` says whether a probe that is limited to some instances fires in it. A counter there
    /// that was switched on in the middle of the run that ended early has a total that is less than
    /// its base now. The base becomes the total at once; otherwise the next execution would not be
    /// counted.
    fn follow_totals(
        &mut self,
        counters: &Counters,
        function: u32,
        places: &[u32],
        is_in: impl Fn(Only) -> bool,
    ) {
        for place in places {
            for number in self.site(function, *place).active.all().to_vec() {
                if self.probe(number).only.is_none_or(&is_in) {
                    self.read_counts(counters, number, |_, _| {});
                }
            }
        }
    }

    /// Begins the counts of a probe that is being switched on, in a time proportional to the number
    /// of instances, of which each has its own counters.
    pub(super) fn begin_counts(&mut self, counters: &Counters, number: usize) {
        let probe = self.probes[number].as_mut().expect("its handle is alive");
        let state = self.functions.get(probe.function).expect("the function is probed");
        let total = |number| counters.read(state.cells_of(probe.position, &probe.what, number), probe.only);
        if let (ProbeAction::CountChoice(Choice::Branch { .. }), [after]) = (&probe.what, &mut *probe.tallies)
        {
            let [executed, follows] = at_once(total);
            probe.tally.begin(executed);
            return after.begin(follows);
        }
        let tallies = std::iter::once(&mut probe.tally).chain(&mut probe.tallies);
        for (number, tally) in tallies.take(probe.what.counts()).enumerate() {
            tally.begin(total(number));
        }
    }

    /// Reads the counts of a probe that is on, in a time proportional to the number of instances.
    pub(super) fn read_counts(
        &mut self,
        counters: &Counters,
        number: usize,
        mut show: impl FnMut(&mut Tally, u64),
    ) {
        let probe = self.probes[number].as_mut().expect("its handle is alive");
        let state = self.functions.get(probe.function).expect("the function is probed");
        let total = |number| counters.read(state.cells_of(probe.position, &probe.what, number), probe.only);
        if let (ProbeAction::CountChoice(Choice::Branch { .. }), [after]) = (&probe.what, &mut *probe.tallies)
        {
            // Running threads count the branch before what follows it. The totals are read in the
            // reverse order, so that such threads do not make the second one larger.
            let follows = after.read(total(1));
            let executed = probe.tally.read(total(0));
            after.reduce(follows.saturating_sub(executed));
            show(&mut probe.tally, executed);
            return show(after, follows.min(executed));
        }
        let tallies = std::iter::once(&mut probe.tally).chain(&mut probe.tallies);
        for (number, tally) in tallies.take(probe.what.counts()).enumerate() {
            let count = tally.read(total(number));
            show(tally, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::probes::{Kind, Location, Place, ProbeSpec, Scope};
    use crate::{Engine, Instance, Module, Store};

    /// A trap reads the counters of the instructions that are not executed, in the stores of the
    /// program, whatever other counters its function has.
    #[test]
    fn traps_read_only_the_counters_of_the_rest_of_their_run() {
        let text = format!(
            "(module (memory 1) (func (export \"f\") (param i32)
                (drop (i32.load (local.get 0))) nop nop (loop {})))",
            "nop ".repeat(100)
        );
        let module = Module::new(&Engine::default(), text).unwrap();
        let body = module.function(0).unwrap().body().unwrap();
        let spec = |offset: usize| ProbeSpec {
            location: Location {
                function: 0,
                place: Place::Instruction { offset: (offset - body.range().start) as u32 },
            },
            kind: Kind::Count,
        };
        let specs: Vec<ProbeSpec> = body.instructions().map(|at| spec(at.offset())).collect();
        let stores = [(); 2].map(|()| Store::new(module.engine(), ()));
        let [mut store, other] = stores;
        let everywhere = module.probes(&specs);
        let elsewhere = module.scoped_probes(Scope::Store(other.id()), &specs);
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, ()>(&mut store, "f").unwrap();
        let reads = || module.code().counters.reads();
        let mut last = None;
        for probes in [everywhere, elsewhere] {
            probes.iter().for_each(|probe| probe.as_ref().unwrap().activate().unwrap());
            let before = reads();
            run.call(&mut store, -1).unwrap_err();
            let read = reads() - before;
            assert!((1..10).contains(&read), "{read}");
            assert_eq!(*last.get_or_insert(read), read);
            std::mem::forget(probes);
        }
    }

    /// The totals of a branch that never jumps, and that other threads execute this often between
    /// two readings.
    fn readings(executed: impl Fn(u64) -> u64) -> impl Fn(usize) -> u64 {
        let (time, total) = (Cell::new(0), Cell::new(1000));
        move |_| {
            time.set(time.get() + 1);
            total.set(total.get() + executed(time.get()));
            total.get()
        }
    }

    #[test]
    fn the_totals_of_a_branch_are_those_of_one_time() {
        assert_eq!(at_once(readings(|_| 0)), [1000, 1000]);
        let [executed, follows] = at_once(readings(|_| 10));
        assert_eq!(executed, follows, "half-way between two readings");
        // A thread is preempted after ten readings.
        let [executed, follows] = at_once(readings(|time| if time < 11 { 500 + time } else { 0 }));
        assert_eq!(executed, follows);
    }

    #[test]
    fn the_reading_with_the_fewest_executions_is_used() {
        let uneven = readings(|time| if (7..=9).contains(&time) { time } else { 10_000 * time });
        let [executed, follows] = at_once(uneven);
        assert!(executed.abs_diff(follows) < 5, "{executed} {follows}");
    }
}
