//! Toggles and `retarget` in every execution under the paper's memory model: see `wordpatch-model`,
//! and `exploration` of wordpatch.
//!
//! ```text
//! RUSTC_WORKSPACE_WRAPPER=scripts/cfg/model cargo test --release -p callpatch --lib exploration -- --nocapture
//! ```

use wordpatch::{Bytes, FetchModel, FetchWindow, Split, TextRef, patch, wait_for_visibility};
use wordpatch_model::environment::with_window;
use wordpatch_model::explore::Flaw;
use wordpatch_model::{Assumption, Change, Code, Form, Job, Program, Scenario, Violation};

use crate::encoding::{self, Shape};
use crate::retarget::{retarget, retarget_as};
use crate::site::CallSite;
use crate::strategy::{Clobbers, Strategy};
use crate::switch::State;

const SHAPES: [Shape; 4] = [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump];
/// Displacements that differ in every byte.
const TARGETS: [i32; 2] = [0x1122_3344, 0x5566_7788];

/// One site, with the window that its toggles assume.
#[derive(Clone, Copy, Debug)]
struct Place {
    shape: Shape,
    clobbers: Clobbers,
    window: FetchWindow,
    address: usize,
}

impl Place {
    /// The site with this displacement.
    fn site(&self, displacement: i32) -> CallSite {
        let instruction = encoding::active(self.shape, displacement);
        with_window(self.window.bytes(), || {
            // SAFETY: the model's text.
            unsafe {
                let text = TextRef::resolve(self.address, self.shape.len()).expect("the model's text");
                CallSite::new(text, self.shape, instruction, self.clobbers, FetchModel::in_force().window)
                    .expect("a site")
            }
        })
    }

    fn target(&self, displacement: i32) -> usize {
        (self.address + self.shape.len()).wrapping_add_signed(displacement as isize)
    }

    fn has_dead_operand(&self) -> bool {
        matches!(
            Strategy::choose(self.shape, self.window, self.address, self.clobbers),
            Strategy::Skip | Strategy::Load | Strategy::Ret
        )
    }

    /// The complete instruction with this displacement, active or inactive.
    fn whole(&self, displacement: i32, state: State) -> Bytes {
        let site = self.site(displacement);
        let mut whole = site.instruction.to_vec();
        let form = match state {
            State::Active => &site.edit.active,
            State::Inactive => &site.edit.inactive,
        };
        whole[site.edit.offset..site.edit.offset + form.len()].copy_from_slice(form);
        encoding::bytes(&whole)
    }

    /// `activate` or `deactivate` of site `number`.
    fn toggle(&self, number: usize, displacement: i32, to: State) -> Job {
        let from = if to == State::Active { State::Inactive } else { State::Active };
        let [old, new] = [from, to].map(|state| self.whole(displacement, state));
        let place = *self;
        let name = if to == State::Active { "activate" } else { "deactivate" };
        Job::new(name, self.window.bytes(), [Change::new(number, &old, &new)], move || {
            let site = place.site(displacement);
            let toggled = if to == State::Active { site.activate() } else { site.deactivate() };
            vec![toggled.is_ok_and(|toggle| toggle == crate::Toggle::Changed)]
        })
    }

    /// Adds the site with its executors, active. The bytes of the operand that its inactive form
    /// leaves are irrelevant.
    fn add_to(&self, scenario: Scenario, executors: usize) -> Scenario {
        let scenario = scenario.site(self.address, &self.whole(TARGETS[0], State::Active), executors);
        if self.has_dead_operand() {
            scenario.allowing(Form::Front(Code::new(&self.site(TARGETS[0]).edit.inactive)))
        } else {
            scenario
        }
    }

    fn scenario(&self, executors: usize) -> Scenario {
        self.add_to(Scenario::new(self.window.bytes(), boundary(self.window)), executors)
    }

    /// Whether the site crosses a window.
    fn is_cut(&self) -> bool {
        matches!(self.window.split(self.address, self.shape.len()), Split::Crossing { .. })
    }
}

/// `retarget` of these sites, which are active, from one displacement to the other. Afterwards they
/// are inactive, including those that fail.
fn retarget_of(places: &[Place], from: i32, to: i32) -> Job {
    let places = places.to_vec();
    let changes = (0..).zip(&places).flat_map(|(number, place)| {
        let off = place.whole(from, State::Inactive);
        [
            Change::new(number, &place.whole(from, State::Active), &off),
            Change::new(number, &off, &place.whole(to, State::Inactive)),
        ]
    });
    let changes: Vec<Change> = changes.collect();
    Job::new("retarget", places[0].window.bytes(), changes, move || {
        let sites: Vec<(CallSite, usize)> =
            places.iter().map(|place| (place.site(from), place.target(to))).collect();
        // SAFETY: the model's text.
        let results = unsafe { retarget(&sites) };
        results.iter().flat_map(|result| [true, result.is_ok()]).collect()
    })
}

/// `retarget_as` of a site that stays active. If both parts of its operand change, it calls its
/// intermediate target in between.
fn retarget_active(place: &Place, from: i32, to: i32) -> Job {
    let place = *place;
    let [old, new] = [from, to].map(|displacement| place.whole(displacement, State::Active));
    let site = place.site(from);
    let between = site.intermediate_target(place.target(to)).map(|target| {
        let displacement = encoding::displacement(place.shape, place.address, target).expect("in reach");
        place.whole(displacement, State::Active)
    });
    let changes = match between {
        Some(between) => vec![Change::new(0, &old, &between), Change::new(0, &between, &new)],
        None => vec![Change::new(0, &old, &new)],
    };
    let stores = changes.len();
    Job::new("retarget, active", place.window.bytes(), changes, move || {
        // SAFETY: the model's text.
        let mut results = unsafe { retarget_as(&[(place.site(from), place.target(to), State::Active)]) };
        let is_done = results.pop().expect("one site in, one result out").is_ok();
        vec![is_done; stores]
    })
}

fn wait() -> Job {
    Job::new("wait", FetchWindow::Bytes8.bytes(), [], || {
        let _ = wait_for_visibility();
        Vec::new()
    })
}

/// Every kind of site across and next to a boundary, with all windows.
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

const STRADDLER: Place = Place {
    shape: Shape::Call,
    clobbers: Clobbers::CallerSaved,
    window: FetchWindow::Bytes32,
    address: boundary(FetchWindow::Bytes32) - 3,
};

fn is_mixture(flaw: &Flaw<Violation>) -> bool {
    matches!(flaw, Flaw::Violation(Violation::Mixture(_)))
}

#[test]
fn every_site_toggled_with_no_wait() {
    for place in places() {
        let [off, on] = [State::Inactive, State::Active].map(|to| place.toggle(0, TARGETS[0], to));
        let program = Program::new([off.clone(), on.clone(), off, on, wait()]);
        place.scenario(1).patcher(program).holds();
    }
}

#[test]
fn every_site_toggled_by_two_threads() {
    for place in places() {
        let program =
            Program::new([State::Inactive, State::Active].map(|to| place.toggle(0, TARGETS[0], to)));
        place.scenario(1).patcher(program.clone()).patcher(program).holds();
    }
}

/// To another target and back; toggled in between, with no more waits than in `retarget`.
#[test]
fn every_site_retargeted_and_activated_and_back() {
    for place in places() {
        let [one, other] = TARGETS;
        let jobs = [
            retarget_of(&[place], one, other),
            place.toggle(0, other, State::Active),
            retarget_of(&[place], other, one),
            place.toggle(0, one, State::Active),
            wait(),
        ];
        place.scenario(1).patcher(Program::new(jobs)).holds();
    }
}

/// To another target and back, deactivated and activated in between, with no more waits than in
/// `retarget_as`: at any time, one of the allowed calls is made.
#[test]
fn every_site_retargeted_while_it_stays_active() {
    for place in places() {
        let [one, other] = TARGETS;
        let toggles = [State::Inactive, State::Active].map(|to| place.toggle(0, other, to));
        let jobs = [retarget_active(&place, one, other)].into_iter().chain(toggles);
        let jobs = jobs.chain([retarget_active(&place, other, one), wait()]);
        place.scenario(1).patcher(Program::new(jobs)).holds();
    }
}

#[test]
fn first_wait_removed_old_call_runs_with_part_of_the_new_one() {
    let is_in_two_stores = |place: &Place| {
        let [from, to] = TARGETS;
        place.site(from).intermediate_target(place.target(to)).is_some()
    };
    let mut places_in_two_stores = 0;
    for place in places().filter(is_in_two_stores) {
        let scenario = |change: &dyn Fn(Job) -> Job| {
            let [from, to] = TARGETS;
            place.scenario(1).patcher(Program::new([change(retarget_active(&place, from, to))]))
        };
        scenario(&|job| job).holds();
        scenario(&|job| job.without_wait(0)).fails(is_mixture);
        places_in_two_stores += 1;
    }
    assert!(places_in_two_stores > 0);
}

#[test]
fn second_wait_removed_the_next_change_meets_the_old_front() {
    let place = Place { clobbers: Clobbers::Nothing, ..STRADDLER };
    let [one, other] = TARGETS;
    // Differs from both in every byte.
    let third = 0x0908_0706;
    let there = retarget_active(&place, one, other);
    let scenario = |there: Job| {
        let jobs = [there, retarget_active(&place, other, third)];
        place.scenario(1).patcher(Program::new(jobs))
    };
    scenario(there.clone()).holds();
    scenario(there.without_wait(1)).fails(is_mixture);
}

/// Two sites in one batch share its waits, and a word; the second one alone would need no wait.
#[test]
fn a_batch_of_a_straddler_and_its_neighbour() {
    for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
        let straddler = Place { clobbers, ..STRADDLER };
        let places = [straddler, Place { address: straddler.address + 5, ..straddler }];
        let [from, to] = TARGETS;
        let on = (0..).zip(&places).map(|(number, place)| place.toggle(number, to, State::Active));
        let jobs = [retarget_of(&places, from, to)].into_iter().chain(on).chain([wait()]);
        let scenario = places[1].add_to(places[0].scenario(1), 1).patcher(Program::new(jobs));
        scenario.holds();
    }
}

/// A site that was not retargeted keeps its old target, inactive. Both sites are activated
/// immediately, without a wait.
fn refused(place: &Place) -> Scenario {
    let place = *place;
    let [from, to] = TARGETS;
    let [off, on] = [State::Inactive, State::Active].map(|state| [from, to].map(|of| place.whole(of, state)));
    let changes = [
        Change::new(0, &on[0], &off[0]),
        Change::new(0, &off[0], &off[1]),
        Change::new(0, &off[1], &on[1]),
        Change::new(0, &off[0], &on[0]),
    ];
    let job = Job::new("retarget, activate", place.window.bytes(), changes, move || {
        let old = place.site(from);
        // SAFETY: the model's text.
        let mut retargeted = unsafe { retarget(&[(old, place.target(to))]) };
        match retargeted.pop().expect("one site in, one result out") {
            Ok(new) => vec![true, true, new.activate().is_ok(), false],
            Err(_) => vec![true, false, false, old.activate().is_ok()],
        }
    });
    place.scenario(1).patcher(Program::new([job, wait()]).refusable())
}

#[test]
fn retarget_with_a_wait_that_is_refused() {
    places().for_each(|place| refused(&place).holds());
}

/// The other assumptions are those of wordpatch.
#[test]
fn each_assumption_is_needed() {
    for place in cut_operands() {
        refused(&place).without(Assumption::StalenessIsBounded).fails(is_mixture);
    }
}

fn retargeted(place: &Place, change: impl Fn(Job) -> Job) -> Scenario {
    let [from, to] = TARGETS;
    let jobs = [change(retarget_of(&[*place], from, to)), place.toggle(0, to, State::Active)];
    place.scenario(1).patcher(Program::new(jobs))
}

/// Sites whose operand crosses a window, at least in part after the bytes of the inactive form.
fn cut_operands() -> impl Iterator<Item = Place> {
    places().filter(|place| place.has_dead_operand() && place.is_cut())
}

#[test]
fn first_wait_removed_old_call_runs_with_new_operand_bytes() {
    for place in cut_operands() {
        retargeted(&place, |job| job).holds();
        retargeted(&place, |job| job.without_wait(0)).fails(is_mixture);
    }
}

#[test]
fn second_wait_removed_new_call_runs_with_old_operand_bytes() {
    for place in cut_operands() {
        retargeted(&place, |job| job).holds();
        retargeted(&place, |job| job.without_wait(1)).fails(is_mixture);
    }
}

#[test]
fn window_assumed_too_large_a_toggle_tears() {
    let scenario = |assumed| {
        let place = Place { window: assumed, clobbers: Clobbers::Nothing, ..STRADDLER };
        let program = Program::new([place.toggle(0, TARGETS[0], State::Inactive)]);
        let machine = Scenario::new(STRADDLER.window.bytes(), boundary(STRADDLER.window));
        place.add_to(machine, 1).patcher(program)
    };
    scenario(FetchWindow::Bytes32).holds();
    scenario(FetchWindow::Bytes64).fails(is_mixture);
}

/// A toggle does not wait. Therefore other patches of the same instruction must wait first:
/// obligation 4 of `decode`.
#[test]
fn a_patch_of_a_site_right_after_its_toggle() {
    let place = STRADDLER;
    let off = place.whole(TARGETS[0], State::Inactive);
    let mut other = off.to_vec();
    other[4] ^= 0xff;
    let change = Change::new(0, &off, &other);
    let patch = || {
        Job::new("patch", place.window.bytes(), [change], move || {
            // SAFETY: the model's text.
            vec![unsafe { patch(place.address, &change.old, &change.new) }.is_ok()]
        })
    };
    let whole = |bytes: &[u8]| Form::Whole(Code::new(bytes));
    let scenario = |jobs: Vec<Job>| {
        let begin = Scenario::new(place.window.bytes(), boundary(place.window));
        let site =
            begin.site(place.address, &place.whole(TARGETS[0], State::Active), 1).allowing(whole(&off));
        site.patcher(Program::new(jobs))
    };
    let toggle = || place.toggle(0, TARGETS[0], State::Inactive);
    scenario(vec![toggle(), wait(), patch()]).holds();
    scenario(vec![toggle(), patch()]).fails(is_mixture);
}
