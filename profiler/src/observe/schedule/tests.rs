use super::*;
use crate::observe::function::Entered;
use crate::observe::thread::Thread;
use crate::report::Estimate;

#[test]
fn windows_of_a_server_open_when_the_service_thread_sleeps_again() {
    let mut schedule = Schedule::new();
    assert_eq!(schedule.delays(), DELAY);
    schedule.own = OwnPart::of_waits_in_tests(1000);
    assert_eq!(schedule.delays(), DELAY_IF_IT_WAITS);
}

/// Probes may take twice as long as was measured.
#[test]
fn the_time_of_probes_makes_windows_uncertain() {
    let of = |overhead| error_of_probes(overhead, 100.0, OVERHEAD_ERROR);
    assert_eq!(of(0.0), Systematic::NONE);
    assert_eq!(of(50.0), Systematic { below: 50.0 / 150.0, above: 1.0 });
    // There may have been hardly any other time.
    assert!(of(100.0).above > 8.0 && of(300.0).above == of(100.0).above);
}

/// The first probes of a window take longer, and their readings of the clock see it.
#[test]
fn only_a_part_of_the_time_of_cold_probes_is_uncertain() {
    governor::Governor::new(None, false, 2.0);
    static FUNCTION: std::sync::LazyLock<Function> = std::sync::LazyLock::new(Function::default);
    fire::calibrate(0, &FUNCTION);
    let warm = 40.0 * cost_of_call();
    assert!(warm > 0.0);
    assert_eq!(overhead_error(warm, 40), OVERHEAD_ERROR);
    let cold = overhead_error(10.0 * warm, 40);
    assert!((cold.above - COLD_ERROR / 10.0).abs() < 1e-9, "{cold:?}");
    assert_eq!(cold.below, OVERHEAD_ERROR.below);
}

/// Calls in signal handlers that have interrupted a probe.
#[test]
fn missed_calls_are_added_once_however_often_a_function_is_suspended() {
    governor::Governor::new(None, false, 2.0);
    let index = FUNCTIONS.push_with(|_| Function::default()).expect("there is room");
    let function = FUNCTIONS.get(index).expect("it was added");
    function.reset();
    let mut schedule = Schedule::new();
    schedule.functions.extend((1..=index).map(|address| Measured::new(c"", c"", address)));
    let index = index as u32;
    schedule.begin(index);
    let thread = Thread::current().expect("a thread has memory");
    for _ in 0..10 {
        assert!(matches!(function.enter(index, tsc::now(), thread), Entered::Observed(_)));
    }
    (0..3).for_each(|_| function.lost_entry());
    let calls = |schedule: &Schedule| {
        let observed = schedule.functions[index as usize].observed();
        schedule.strata_now(index, &observed).calls()
    };
    let expected = Estimate::within(10.0, 10.0, 13.0);
    assert_eq!(calls(&schedule), expected);
    for _ in 0..2 {
        schedule.exclude(index);
        assert_eq!(calls(&schedule), expected);
        schedule.include(index);
        assert_eq!(calls(&schedule), expected);
    }
}
