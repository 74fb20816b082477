//! Giving call sites another target, a batch at a time, with no trap.
//!
//! ```text
//! call that straddles 3|2, from d to n; Load strategy (the others differ in the first byte or two)
//!
//! old        e8 d0 d1 | d2 d3
//! 1 store    b8 d0 d1 | d2 d3    inactive: from here on the operand is dead
//! 2 wait                         without it, a core that still runs the old call combines d and n
//! 3 store    b8 n0 n1 | n2 n3    the operand, one window at a time
//! 4 wait                         without it, a core that runs the new call may combine n and d
//! 5 result   b8 n0 n1 | n2 n3    an inactive site with a new target
//! ```
//!
//! A site inside one window, and a 1|4 site of a RET island, needs one store and no wait. All sites come out inactive.

use std::io;

use wordpatch::{Bytes, wait_for_visibility};

use crate::encoding::{self, Shape};
use crate::error::Error;
use crate::site::CallSite;
use crate::strategy::{Edit, Strategy};

/// Makes each site inactive and leads its operand to a new target: the callee of a direct call, the pointer of an indirect
/// one. Returns for each, in order, the site with its new target, or why it has kept the old one. Blocks for two waits
/// if any site needs them, however many do.
///
/// Not to be called for one site from two threads at once, nor while another thread toggles it.
///
/// # Safety
/// The program must be right when each site calls its new target: a function with the same calling convention, or a
/// pointer to one, for as long as the site can be executed.
pub unsafe fn retarget(sites: &[(CallSite, usize)]) -> Vec<Result<CallSite, Error>> {
    // SAFETY: the caller's obligation.
    let prepare = |(site, target): &(CallSite, usize)| unsafe { prepare(site, *target) };
    let mut results: Vec<_> = sites.iter().map(prepare).collect();
    let dead_operand =
        |result: &Result<CallSite, Error>| result.as_ref().is_ok_and(|new| has_dead_operand(new.strategy));
    if results.iter().any(dead_operand) {
        // Step 2.
        if let Err(first) = wait_for_visibility() {
            return fail_those(results, dead_operand, first);
        }
    }
    // Step 3, or the one store of the sites that need no wait.
    for ((old, _), result) in sites.iter().zip(&mut results) {
        let stored = result.as_ref().map(|new| store_operand(old, new));
        if let Ok(Err(error)) = stored {
            take_operand_back(old, result.as_ref().expect("it was stored"));
            *result = Err(error);
        }
    }
    if results.iter().any(dead_operand) {
        // Step 4.
        if let Err(first) = wait_for_visibility() {
            for ((old, _), result) in sites.iter().zip(&results) {
                result.iter().for_each(|new| take_operand_back(old, new));
            }
            return fail_those(results, dead_operand, first);
        }
    }
    results
}

/// Step 1: the site with its new target; the old one made inactive.
///
/// # Safety
/// The site's text must be mapped.
unsafe fn prepare(site: &CallSite, target: usize) -> Result<CallSite, Error> {
    let address = site.address();
    let displacement =
        encoding::displacement(site.shape, address, target).ok_or(Error::OutOfReach { address, target })?;
    let call = encoding::active(site.shape, displacement);
    // SAFETY: the caller's obligation.
    let new = unsafe { CallSite::new(site.text, site.shape, call, site.clobbers)? };
    site.deactivate()?;
    Ok(new)
}

/// Step 3: writes the operand of `new`.
fn store_operand(old: &CallSite, new: &CallSite) -> Result<(), Error> {
    let stores = operand_stores(new.strategy, new.shape, &old.instruction, &new.instruction, &new.edit);
    for (offset, from, to) in stores {
        // SAFETY: no thread executes these bytes as an operand that matters: the site is inactive, and every core has
        // seen it since. A single byte crosses no window.
        unsafe { new.text.compare_exchange(new.window, offset, &from, &to)? };
    }
    Ok(())
}

/// Undoes step 3, as far as it came. The operand is dead, before and after.
fn take_operand_back(old: &CallSite, new: &CallSite) {
    for (offset, from, to) in
        operand_stores(new.strategy, new.shape, &old.instruction, &new.instruction, &new.edit)
    {
        // SAFETY: as in `store_operand`. A byte that was not stored holds something else than `to`, and is left alone.
        let _ = unsafe { new.text.compare_exchange(new.window, offset, &to, &from) };
    }
}

/// Whether an inactive site still holds its operand, which then does not matter. In the other two strategies' inactive forms it is
/// not there at all.
fn has_dead_operand(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::Skip | Strategy::Load | Strategy::Ret)
}

/// The stores of step 3: offset, byte before, byte after. What the inactive form itself occupies is written by `activate`.
fn operand_stores(
    strategy: Strategy,
    shape: Shape,
    old: &Bytes,
    new: &Bytes,
    edit: &Edit,
) -> impl Iterator<Item = (usize, Bytes, Bytes)> {
    let byte = |of: &Bytes, offset: usize| encoding::bytes(&of[offset..=offset]);
    let first = shape.operand_offset().max(edit.inactive.len());
    let end = if has_dead_operand(strategy) { shape.len() } else { first };
    (first..end).map(move |offset| (offset, byte(old, offset), byte(new, offset)))
}

/// Every site that needed the wait that was refused fails; it is inactive and keeps its target.
fn fail_those(
    mut results: Vec<Result<CallSite, Error>>,
    needed: impl Fn(&Result<CallSite, Error>) -> bool,
    refusal: wordpatch::Error,
) -> Vec<Result<CallSite, Error>> {
    let errno = match &refusal {
        wordpatch::Error::MembarrierRefused { source } => source.raw_os_error(),
        _ => None,
    };
    for result in results.iter_mut().filter(|result| needed(result)) {
        let source = io::Error::from_raw_os_error(errno.unwrap_or_default());
        *result = Err(wordpatch::Error::MembarrierRefused { source }.into());
    }
    results
}

/// Toggles and batches under the paper's memory model, with the real edits: see wordpatch/tests/model.
#[cfg(test)]
mod tests {
    use wordpatch::protocol::Step;
    use wordpatch::{FetchWindow, Split};

    use super::*;
    use crate::model::explore::Flaw;
    use crate::model::program::{Action, Job, Program};
    use crate::model::scenario::{Form, Scenario, Violation};
    use crate::strategy::Clobbers;

    const SHAPES: [Shape; 4] = [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump];
    const TARGETS: [i32; 2] = [0x1122_3344, 0x5566_7788];
    const ISLAND: i32 = -1;

    /// One site with the window its toggles assume.
    #[derive(Clone, Copy, Debug)]
    struct Place {
        shape: Shape,
        clobbers: Clobbers,
        window: FetchWindow,
        address: usize,
    }

    impl Place {
        fn strategy(&self) -> Strategy {
            Strategy::choose(self.shape, self.window, self.address, self.clobbers)
        }

        fn edit(&self, target: i32) -> Edit {
            let active = encoding::active(self.shape, target);
            Edit::new(self.strategy(), self.shape, &active, Some(&encoding::active(self.shape, ISLAND)))
        }

        /// The whole instruction for this target, active or not.
        fn whole(&self, target: i32, active: bool) -> Bytes {
            let Edit { offset, active: on, inactive: off } = self.edit(target);
            let mut whole = encoding::active(self.shape, target).to_vec();
            whole[offset..offset + on.len()].copy_from_slice(if active { &on } else { &off });
            encoding::bytes(&whole)
        }

        /// `activate` or `deactivate` of site `number`.
        fn toggle(&self, number: usize, target: i32, to_active: bool) -> Job {
            let Edit { offset, active, inactive } = self.edit(target);
            let (old, new) = if to_active { (inactive, active) } else { (active, inactive) };
            let change = (number, self.whole(target, !to_active), self.whole(target, to_active));
            let actions = vec![Action::Do(self.address, Step::Store { offset, old, new })];
            Job { changes: vec![change], actions, copy: None }
        }

        /// Adds the site with its executors, active. Whatever its inactive form leaves of the operand does not matter.
        fn add_to(&self, scenario: Scenario, executors: usize) -> Scenario {
            let initial = self.whole(TARGETS[0], true);
            let scenario = scenario.site(self.address, &initial, executors);
            if has_dead_operand(self.strategy()) {
                scenario.allowing(Form::Front(self.edit(TARGETS[0]).inactive))
            } else {
                scenario
            }
        }
    }

    /// `retarget` of these sites, which are active, from one target to the other; or of none.
    fn retarget_job(places: &[Place], from: i32, to: i32) -> Job {
        let steps_1 =
            places.iter().enumerate().flat_map(|(number, place)| place.toggle(number, from, false).actions);
        let steps_3 = places.iter().flat_map(|place| {
            let [old, new] = [from, to].map(|target| encoding::active(place.shape, target));
            let edit = place.edit(to);
            let stores = operand_stores(place.strategy(), place.shape, &old, &new, &edit);
            let step = |(offset, old, new)| Action::Do(place.address, Step::Store { offset, old, new });
            stores.map(step).collect::<Vec<_>>()
        });
        let wait = places.iter().any(|place| has_dead_operand(place.strategy()));
        let waits = || wait.then_some(Action::Do(0, Step::Wait));
        let actions = steps_1.chain(waits()).chain(steps_3).chain(waits()).collect();
        let changes = (0..).zip(places).map(|(number, place)| {
            let after = place.whole(to, false);
            (number, place.whole(from, true), after)
        });
        Job { changes: changes.collect(), actions, copy: None }
    }

    /// Every kind of site across and beside a boundary, with all windows.
    fn places() -> impl Iterator<Item = Place> {
        FetchWindow::ALL.into_iter().flat_map(|window| {
            SHAPES.into_iter().flat_map(move |shape| {
                [Clobbers::Nothing, Clobbers::CallerSaved].into_iter().flat_map(move |clobbers| {
                    (0..=shape.len()).map(move |front| Place {
                        shape,
                        clobbers,
                        window,
                        address: boundary(window) - front,
                    })
                })
            })
        })
    }

    const fn boundary(window: FetchWindow) -> usize {
        0x1000 + window.bytes()
    }

    fn scenario(place: &Place, executors: usize) -> Scenario {
        place.add_to(Scenario::new(place.window, boundary(place.window)), executors)
    }

    const STRADDLER: Place = Place {
        shape: Shape::Call,
        clobbers: Clobbers::CallerSaved,
        window: FetchWindow::Bytes32,
        address: boundary(FetchWindow::Bytes32) - 3,
    };

    #[test]
    fn every_site_toggled_with_no_wait() {
        let mut states = 0;
        for place in places() {
            let [off, on] = [false, true].map(|active| place.toggle(0, TARGETS[0], active));
            let program = Program::new([off.clone(), on.clone(), off, on, Job::wait()]);
            states += scenario(&place, 1).patcher(program).holds();
        }
        println!("{} sites, {states} states", places().count());
    }

    #[test]
    fn every_site_toggled_by_two_threads() {
        let mut states = 0;
        for place in places() {
            let program = Program::new([false, true].map(|active| place.toggle(0, TARGETS[0], active)));
            states += scenario(&place, 1).patcher(program.clone()).patcher(program).holds();
        }
        println!("{} sites, {states} states", places().count());
    }

    /// To another target and back; toggled in between, with no more waits than `retarget` has.
    #[test]
    fn every_site_retargeted_and_activated_and_back() {
        let mut states = 0;
        for place in places() {
            let [one, other] = TARGETS;
            let jobs = [
                retarget_job(&[place], one, other),
                place.toggle(0, other, true),
                retarget_job(&[place], other, one),
                place.toggle(0, one, true),
                Job::wait(),
            ];
            states += scenario(&place, 1).patcher(Program::new(jobs)).holds();
        }
        println!("{} sites, {states} states", places().count());
    }

    /// Two sites in one batch share its waits, and a word; the second one needs none of its own.
    #[test]
    fn a_batch_of_a_straddler_and_its_neighbour() {
        for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
            let straddler = Place { clobbers, ..STRADDLER };
            let places = [straddler, Place { address: straddler.address + 5, ..straddler }];
            let [from, to] = TARGETS;
            let on = (0..).zip(&places).map(|(number, place)| place.toggle(number, to, true));
            let jobs = [retarget_job(&places, from, to)].into_iter().chain(on).chain([Job::wait()]);
            let scenario = places[1].add_to(scenario(&places[0], 1), 1).patcher(Program::new(jobs));
            println!("{} states", scenario.holds());
        }
    }

    #[track_caller]
    fn is_mixture(scenario: &Scenario) {
        scenario.fails(|flaw| matches!(flaw, Flaw::Violation(Violation::Mixture(_))));
    }

    fn retargeted(place: &Place, change: impl Fn(Job) -> Job) -> Scenario {
        let [from, to] = TARGETS;
        let jobs = [change(retarget_job(&[*place], from, to)), place.toggle(0, to, true)];
        scenario(place, 1).patcher(Program::new(jobs))
    }

    /// Sites whose operand lies in two windows, at least in part behind what the inactive form occupies.
    fn cut_operands() -> impl Iterator<Item = Place> {
        places().filter(|place| {
            has_dead_operand(place.strategy())
                && matches!(place.window.split(place.address, place.shape.len()), Split::Crossing { .. })
        })
    }

    #[test]
    fn first_wait_removed_old_call_runs_with_new_operand_bytes() {
        for place in cut_operands() {
            retargeted(&place, |job| job).holds();
            is_mixture(&retargeted(&place, |job| job.without_wait(0)));
        }
    }

    #[test]
    fn second_wait_removed_new_call_runs_with_old_operand_bytes() {
        for place in cut_operands() {
            retargeted(&place, |job| job).holds();
            is_mixture(&retargeted(&place, |job| job.without_wait(1)));
        }
    }

    #[test]
    fn window_assumed_too_large_a_toggle_tears() {
        let scenario = |assumed| {
            let place = Place { window: assumed, clobbers: Clobbers::Nothing, ..STRADDLER };
            let program = Program::new([place.toggle(0, TARGETS[0], false)]);
            let machine = Scenario::new(STRADDLER.window, boundary(STRADDLER.window));
            place.add_to(machine, 1).patcher(program)
        };
        scenario(FetchWindow::Bytes32).holds();
        is_mixture(&scenario(FetchWindow::Bytes64));
    }
}
