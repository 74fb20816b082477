//! Observations of one function, whose probes exist only in its state.

use std::cell::Cell;

use wordpatch::tsc;

use super::exits::STRAY_EXITS_IN_WINDOW;
use super::*;

/// A thread.
struct Own {
    spent: u64,
    preempted: u64,
    /// The part of it in the probe that is being executed.
    in_probe: u64,
    is_one_of_many: bool,
    /// The window in which the thread has made its last entry.
    window: Cell<Option<WindowNumber>>,
    /// The time that the thread has spent in probes since its first entry in the window, if it made
    /// one.
    since_entry: Cell<Option<u64>>,
}

/// The only thread, with this time in probes, and this time of preemption.
fn own(spent: u64, preempted: u64) -> Own {
    let (window, since_entry) = (Cell::new(None), Cell::new(None));
    Own { spent, preempted, in_probe: 0, is_one_of_many: false, window, since_entry }
}

/// A thread that is preempted for this time in a probe.
fn in_probe(time: u64) -> Own {
    Own { in_probe: time, ..own(0, time) }
}

impl OwnTime for Own {
    fn number(&self) -> usize {
        1 + usize::from(self.is_one_of_many)
    }

    fn spent(&self) -> u64 {
        self.spent
    }

    fn preempted(&self) -> u64 {
        self.preempted
    }

    fn preempted_since(&self, _: u64) -> u64 {
        self.preempted
    }

    fn now(&self, began: u64) -> u64 {
        began + self.in_probe
    }

    fn is_alone(&self) -> bool {
        !self.is_one_of_many
    }

    fn enters_window(&self, window: WindowNumber) {
        self.window.set(Some(window));
        self.since_entry.set(Some(self.since_entry.get().unwrap_or(0)));
    }

    fn spent_since_entry(&self, _: WindowNumber) -> Option<u64> {
        self.since_entry.get()
    }
}

/// A thread that has lost no time.
fn ideal() -> Own {
    own(0, 0)
}

fn enter(function: &Function, now: u64, own: &Own) -> Option<Observed> {
    match function.enter(0, now, own) {
        Entered::Observed(observed) => Some(observed),
        Entered::Early => {
            function.begins_for(own);
            None
        }
        Entered::Not => None,
    }
}

/// A window that opens at 100, placed by an entry at 50.
fn observed(function: &Function, limit: u64, closes: u64) -> u32 {
    function.reset();
    let number = opened(function, limit, closes);
    assert!(enter(function, 50, &ideal()).is_none());
    number
}

fn opened(function: &Function, limit: u64, closes: u64) -> u32 {
    let window = Window { delay: 60, length: Some(closes - 100), limit, weight: 2.0, ..WINDOW };
    function.open(40, &window, |_, _| {}).expect("no thread is busy")
}

#[test]
fn time_in_probes_and_preemption_make_a_window_longer() {
    let function = Function::default();
    observed(&function, 1000, 200);
    assert!(enter(&function, 90, &own(1000, 70)).is_none());
    assert!(enter(&function, 150, &own(1030, 70)).is_some());
    assert!(enter(&function, 349, &own(1150, 70)).is_some(), "its own time is 199");
    assert!(enter(&function, 419, &own(1150, 140)).is_some(), "its own time is 199");
    assert!(enter(&function, 420, &own(1150, 140)).is_none());
    assert!(!function.has_on(ProbeType::Entry));
    assert_eq!(function.counted().overhead, 150);
}

#[test]
fn each_threads_window_is_longer_by_its_own_time_in_probes() {
    let function = Function::default();
    observed(&function, 1000, 200);
    enter(&function, 150, &ideal()).unwrap();
    let [inside, outside] = [(); 2].map(|()| Own { is_one_of_many: true, ..own(0, 0) });
    let is_observed = |now: u64, thread: &Own| matches!(function.enter(0, now, thread), Entered::Observed(_));
    assert!(is_observed(160, &inside) && inside.since_entry.get() == Some(0));
    assert_eq!(inside.window.get(), Some(WindowNumber { function: 0, observation: 1 }));
    inside.since_entry.set(Some(50));
    assert!(is_observed(249, &inside), "its own time is 199");
    assert!(!is_observed(250, &inside));
    assert!(!is_observed(249, &outside), "it made no entry in the window");
    assert!(function.has_on(ProbeType::Entry), "other threads may have spent more");
}

#[test]
fn a_window_lies_in_the_programs_own_time() {
    let place = |at: u64, own: &Own| {
        let function = Function::default();
        function.reset();
        opened(&function, 1000, 150);
        let is_counted = enter(&function, at, own).is_some();
        let [opens, closes] = [&function.opens, &function.closes].map(|time| time.load(Relaxed));
        let is_on = function.has_on(ProbeType::Entry);
        (is_counted, is_on.then_some((opens, closes)))
    };
    // The service thread has begun the window at 40; it opens 60 ticks later, for 50 ticks.
    assert_eq!(place(60, &ideal()), (false, Some((100, 150))));
    assert_eq!(place(120, &ideal()), (true, Some((100, 150))), "the first entry is in it");
    assert_eq!(place(150, &ideal()), (false, None), "over before the first entry: no call, and off");
    assert_eq!(place(150, &own(0, 100)), (false, Some((200, 250))), "preempted in between");
    assert_eq!(place(1150, &own(10, 1000)), (true, Some((1110, 1160))), "preempted, then 100 passed");
    assert_eq!(place(2000, &own(0, 1000)), (false, None), "waited for some of the time");
}

/// The thread knows when the probe began, and learns there that it was preempted in it.
#[test]
fn a_window_that_is_over_ends_in_a_probe_that_was_preempted() {
    let function = Function::default();
    function.reset();
    opened(&function, 1000, 150);
    assert!(matches!(function.enter(0, 160, &in_probe(30)), Entered::Early));
    assert!(!function.has_on(ProbeType::Entry));
}

/// The service thread examines a window when its stratum is over, which may be in the middle of the
/// window: the program is slow if it rarely has a processor.
#[test]
fn a_window_is_unfinished_until_an_entry_ends_it() {
    let function = Function::default();
    function.reset();
    assert!(!function.is_unfinished(true));
    opened(&function, 1000, 200);
    assert!(function.is_unfinished(true) && function.is_unfinished(false), "without an entry");
    assert!(enter(&function, 150, &ideal()).is_some());
    assert!(function.is_unfinished(true));
    assert!(!function.is_unfinished(false), "other threads do not make it longer");
    assert!(enter(&function, 200, &ideal()).is_none());
    assert!(!function.is_unfinished(true));
}

/// The window would be over at once if it were placed after the time at which the probe began.
#[test]
fn preemption_in_the_probe_that_places_a_window_is_not_in_the_window() {
    let function = Function::default();
    function.reset();
    opened(&function, 1000, 150);
    let long = in_probe(2 * MIN_PREEMPTION);
    assert_eq!(function.enter(0, 60, &long), Entered::Early);
    assert_eq!(function.opens.load(Relaxed), 100 + long.in_probe + REFILL);
}

#[test]
fn a_window_does_not_open_while_the_caches_are_filled_after_a_preemption() {
    let long = 2 * MIN_PREEMPTION;
    let place = |at: u64, preempted: u64| {
        let function = Function::default();
        function.reset();
        opened(&function, 1000, 150);
        let is_counted = enter(&function, at, &own(0, preempted)).is_some();
        (is_counted, function.has_on(ProbeType::Entry).then(|| function.opens.load(Relaxed)))
    };
    assert_eq!(place(60 + MIN_PREEMPTION, MIN_PREEMPTION), (false, Some(100 + MIN_PREEMPTION)));
    assert_eq!(place(60 + long, long), (false, Some(100 + long + REFILL)));
    assert_eq!(place(110 + long + REFILL, long), (true, Some(100 + long + REFILL)));
    // The window is at a fixed position in the program's own time, and does not wait for calls.
    assert_eq!(place(150 + long + REFILL, long), (false, None));
    // If the window ends at its limit, its calls represent only themselves.
    let function = Function::default();
    function.reset();
    let window = Window { delay: 60, length: None, limit: 2, weight: 2.0, ..WINDOW };
    function.open(40, &window, |_, _| {}).expect("no thread is busy");
    assert!(enter(&function, 110 + long, &own(0, long)).is_some());
}

#[test]
fn entries_count_from_the_opening_to_the_closing() {
    let function = Function::default();
    let number = observed(&function, 1000, 200);
    assert_eq!(enter(&function, 99, &ideal()), None);
    let first = enter(&function, 100, &ideal()).unwrap();
    assert_eq!((first.observation, first.weight, first.period % 4), (number, 2.0, 1));
    assert!(enter(&function, 199, &ideal()).is_some());
    assert_eq!(function.counted().entries, 2);
    assert_eq!(enter(&function, 200, &ideal()), None);
    assert!(!function.has_on(ProbeType::Entry) && function.has_on(ProbeType::Exit), "two calls are open");
    assert_eq!(enter(&function, 201, &ideal()), None);
    assert_eq!((function.counted().entries, function.counted().exceeded), (2, None));
    function.left(first.period);
    assert!(function.has_on(ProbeType::Exit));
    function.left(first.period);
    assert!(!function.has_on(ProbeType::Exit), "the last one is out");
    function.left(first.period);
    assert_eq!(function.open.load(Relaxed), 0, "one of an earlier period");
}

#[test]
fn an_exit_is_that_of_an_observed_call_only_while_all_entries_are_observed() {
    let function = Function::default();
    let number = observed(&function, 2, 200);
    let belongs = |now| function.observation_of_all(now) == number;
    assert!(!belongs(99), "before the window opens");
    assert!(belongs(100) && belongs(199));
    assert!(!belongs(200), "the window is over, although no entry has noticed");
    assert!(enter(&function, 150, &ideal()).is_some() && belongs(151));
    assert!(enter(&function, 160, &ideal()).is_some());
    assert!(!belongs(161), "the limit is reached");
}

#[test]
fn a_window_ends_with_its_limit_and_says_when() {
    let function = Function::default();
    observed(&function, 3, 1000);
    (0..3).for_each(|at| assert!(enter(&function, 100 + at, &ideal()).is_some()));
    assert_eq!(enter(&function, 103, &ideal()), None);
    let exceeded = Some(Exceeded { at: 102, rate: 1.0 });
    assert_eq!(function.counted(), Counted { entries: 3, exceeded, overhead: 0 });
    assert!(!function.is_listed.load(Relaxed), "it is looked at when its stratum is over");
}

#[test]
fn a_function_uses_its_allowance_up_twice() {
    // What a function may be called depends on the intensity.
    governor::Governor::new(None, false, 2.0);
    // On the list, a function is an element of the table.
    let index = FUNCTIONS.push_with(|_| Function::default()).expect("there is room") as u32;
    let function = FUNCTIONS.get(index as usize).unwrap();
    for begin in [0, 1000] {
        assert!(function.turn_on(begin, 2, 1.0, |_, _| {}));
        (1..3).for_each(|at| {
            let entered = function.enter(index, begin + at, &ideal());
            assert!(matches!(entered, Entered::Observed(_)));
        });
        assert!(function.counted().exceeded.is_some());
        assert!(!function.has_on(ProbeType::Entry));
        assert!(take_exhausted().contains(&index));
    }
}

#[test]
fn a_window_of_a_fixed_number_of_calls_ends_with_the_next() {
    let function = Function::default();
    function.reset();
    let window = Window { delay: 60, length: None, limit: 3, ..WINDOW };
    function.open(40, &window, |_, _| {}).expect("no thread is busy");
    assert!(enter(&function, 50, &ideal()).is_none(), "it opens at 100");
    let entered: Vec<_> = (0..3).map(|at| enter(&function, 1_000_000 + at, &ideal()).unwrap()).collect();
    assert!(function.has_on(ProbeType::Entry));
    assert!(enter(&function, 2_000_000, &ideal()).is_none());
    assert!(!function.has_on(ProbeType::Entry) && function.has_on(ProbeType::Exit));
    entered.iter().for_each(|entry| function.left(entry.period));
    assert!(!function.has_on(ProbeType::Exit));
    assert_eq!((function.counted().entries, function.counted().exceeded), (4, None));
}

#[test]
fn counting_ends_the_window_before() {
    let function = Function::default();
    observed(&function, 1000, 200);
    let open = enter(&function, 150, &ideal()).unwrap();
    assert!(function.stop());
    function.begin_counting(|_| {});
    assert!(enter(&function, 160, &ideal()).is_none(), "calls are counted, not observed");
    (0..5).for_each(|_| function.count());
    function.end_counting();
    assert_eq!(function.calls(), 5);
    function.left(open.period);
    assert!(!function.has_on(ProbeType::Entry) && !function.has_on(ProbeType::Exit));
}

/// If a function takes nanoseconds, hundreds of its calls end before its window opens.
#[test]
fn exits_before_a_window_opens_do_not_end_the_exit_period() {
    let function = Function::default();
    observed(&function, 1000, 1000);
    (0..=STRAY_EXITS_IN_WINDOW).for_each(|_| function.stray_exit(99));
    assert!(function.has_on(ProbeType::Exit));
    assert!(enter(&function, 150, &ideal()).is_some());
}

#[test]
fn too_many_exits_of_other_calls_end_the_exit_period() {
    let function = Function::default();
    observed(&function, 1000, 1000);
    let entry = enter(&function, 150, &ideal()).unwrap();
    assert_eq!(function.exits_seen_until(entry.period), None);
    let before = tsc::now();
    (0..=STRAY_EXITS_IN_WINDOW).for_each(|_| function.stray_exit(150));
    assert!(!function.has_on(ProbeType::Exit));
    let until = function.exits_seen_until(entry.period);
    assert!(until.is_some_and(|until| (before..tsc::now()).contains(&until)), "{until:?}");
    function.left(entry.period);
    let next = opened(&function, 10, 1000);
    assert_eq!(function.open.load(Relaxed), 0, "what was open then is nothing to this period");
    assert_eq!(next, entry.observation + 1);
    assert!(function.has_on(ProbeType::Exit));
}

/// A call that would have ended the exit period of another window represents the calls of those
/// windows.
#[test]
fn a_patient_window_waits_for_calls_that_outlast_others() {
    let function = Function::default();
    let window = Window { length: Some(1000), is_patient: true, ..WINDOW };
    let strays = |at: u64, number: i32| (0..number).for_each(|_| function.stray_exit(at));
    function.open(100, &window, |_, _| {}).unwrap();
    let entry = enter(&function, 150, &ideal()).unwrap();
    enter(&function, 1200, &ideal());
    strays(1500, STRAY_EXITS_IN_WINDOW);
    assert!(!function.is_late(150));
    strays(1501, 1);
    strays(1600, 10 * STRAY_EXITS_IN_WINDOW);
    assert!(function.is_late(150) && function.is_exit_seen(entry.period));
    assert!(!function.is_late(1501), "a thread that was preempted is still in its window");
    // The next window waits for it, too, and its own calls stand for themselves.
    let usual = Window { is_patient: false, ..window };
    function.open(2000, &usual, |_, _| {}).unwrap();
    strays(2500, 10 * STRAY_EXITS_IN_WINDOW);
    assert!(function.is_late(150) && function.is_exit_seen(entry.period));
    assert!(!function.is_late(2100));
    function.left(entry.period);
    // In the next period, all begins again.
    function.end();
    function.open(4000, &usual, |_, _| {}).unwrap();
    assert!(!function.is_late(150) && !function.is_late(4100));
    strays(4500, STRAY_EXITS_IN_WINDOW + 1);
    assert!(!function.has_on(ProbeType::Exit));
}

#[test]
fn calls_that_are_open_keep_the_exit_probes_on_through_the_next_window() {
    let function = Function::default();
    observed(&function, 1000, 200);
    let outer = enter(&function, 150, &ideal()).unwrap();
    enter(&function, 300, &ideal());
    let next = function.open(400, &WINDOW, |_, kind| {
        assert_eq!(kind, ProbeType::Entry, "the exit probes are on");
    });
    assert!(next.is_some());
    assert_eq!(function.exit_period(), outer.period);
}

const WINDOW: Window =
    Window { delay: 0, length: Some(100), limit: 10, weight: 1.0, spent: 0, is_patient: false };

/// Whether the service thread could begin an observation, of any kind.
fn could_begin(function: &Function) -> bool {
    let is_open = function.open(400, &WINDOW, |_, _| {}).is_some();
    let is_on = function.turn_on(400, 10, 1.0, |_, _| {});
    let is_off = function.stop();
    assert_eq!((is_open, is_on), (is_off, is_off));
    is_off
}

/// A thread is preempted when it is about to deactivate probes: here, the service thread runs in
/// the middle of that.
#[test]
fn nothing_begins_while_a_thread_switches_probes_off() {
    let function = Function::default();
    let number = observed(&function, 1000, 200);
    let call = enter(&function, 150, &ideal()).unwrap();
    assert!(function.entry_switch.end(number, || assert!(!could_begin(&function))));
    // The last call of the observation returns.
    function.open.store(0, Relaxed);
    let is_over = || function.is_over(number);
    function.exit_switch.end(call.period, is_over, || {
        assert!(function.open(400, &WINDOW, |_, _| {}).is_none());
        assert!(function.is_busy());
    });
    assert!(could_begin(&function));
}

#[test]
fn a_thread_that_comes_late_does_not_end_the_next_observation() {
    let function = Function::default();
    let number = observed(&function, 1000, 200);
    assert!(enter(&function, 150, &ideal()).is_some());
    assert!(function.turn_on(400, 10, 1.0, |_, _| {}));
    function.close(number);
    assert!(function.has_on(ProbeType::Entry), "it is on");
    let period = function.exit_period();
    function.end_exits(period, || function.is_over(number));
    assert_eq!(function.exit_period(), period);
}

#[test]
fn the_times_of_a_window_that_a_thread_is_about_to_store_are_not_those_of_the_next() {
    let function = Function::default();
    function.reset();
    let number = opened(&function, 1000, 200);
    function.entry_switch.place(number, || assert!(!could_begin(&function)));
    assert!(function.turn_on(400, 10, 1.0, |_, _| {}));
    assert!(enter(&function, 500, &ideal()).is_some());
}
