use super::*;

#[test]
fn a_function_that_was_on_is_exact() {
    let mut strata = Strata::default();
    strata.counted(3, 0.0);
    [10.0, 20.0, 30.0].into_iter().for_each(|ticks| strata.timed(ticks));
    assert_eq!(strata.calls(), Estimate::exact(3.0));
    let times = strata.ticks(0.0).unwrap();
    assert_eq!((times.total, times.mean), (Estimate::exact(60.0), Estimate::exact(20.0)));
}

#[test]
fn a_call_whose_exit_was_missed_took_any_time_between_its_limits() {
    let mut strata = Strata::default();
    strata.counted(4, 0.0);
    [10.0, 20.0, 30.0].into_iter().for_each(|ticks| strata.timed(ticks));
    strata.timed_between(1.0, 100.0, 1000.0);
    let times = strata.ticks(0.0).unwrap();
    assert_eq!(times.total, Estimate { value: 610.0, low: 160.0, high: Some(1060.0) });
    assert_eq!(times.mean, Estimate { value: 152.5, low: 40.0, high: Some(265.0) });
}

#[test]
fn calls_that_took_any_time_leave_no_upper_limit() {
    let mut strata = Strata::default();
    strata.counted(4, 0.0);
    [10.0, 20.0, 30.0].into_iter().for_each(|ticks| strata.timed(ticks));
    strata.took_any_time();
    let Times { total, mean } = strata.ticks(0.0).unwrap();
    assert_eq!((total.value, total.low, total.high), (80.0, 60.0, None));
    assert_eq!((mean.value, mean.high), (20.0, None));
}

#[test]
fn a_gap_holds_everything_from_none_to_all() {
    let mut strata = Strata::default();
    strata.counted(100, 0.0);
    strata.gap(1000.0, 0.1);
    let calls = strata.calls();
    assert_eq!((calls.value, calls.low), (150.0, 100.0));
    assert!((200.0..210.0).contains(&calls.high.unwrap()), "{calls:?}");
}

#[test]
fn one_window_with_most_of_the_calls_leaves_a_wide_interval() {
    let mut strata = Strata::default();
    for number in 0..100 {
        strata.opened(number, 100.0, 1e7);
        strata.closed(if number == 50 { 100 } else { 0 }, 0.0, Systematic::NONE);
    }
    let calls = strata.finished().calls();
    assert_eq!((calls.value, calls.low, calls.high), (10_000.0, 100.0, None));
}

/// A program may have phases that are longer than strata.
#[test]
fn seven_windows_have_no_upper_limit() {
    let with = |windows: u32| {
        let mut strata = Strata::default();
        for number in 0..windows {
            strata.opened(number, 100.0, 1e7);
            strata.closed(100, 0.0, Systematic::NONE);
        }
        strata.finished().calls()
    };
    assert!(with(7).high.is_none() && with(8).high.is_some(), "{:?} {:?}", with(7), with(8));
}

#[test]
fn a_long_stratum_without_calls_leaves_a_wide_interval() {
    let with = |before: u64, calls: u64| {
        let mut strata = Strata::default();
        strata.opened(0, 100.0, 10e6);
        strata.closed(before, 0.0, Systematic::NONE);
        strata.opened(1, 1500.0, 400e6);
        strata.closed(calls, 0.0, Systematic::NONE);
        for number in 2..20 {
            strata.opened(number, 60.0, 10e6);
            strata.closed(40 + u64::from(number % 5), 0.0, Systematic::NONE);
        }
        strata.finished().calls()
    };
    let none = with(0, 0);
    assert!(none.low < 10_000.0 && none.high.is_none(), "{none:?}");
    let as_elsewhere = with(25, 65);
    assert!(as_elsewhere.low > 80_000.0 && as_elsewhere.high.is_some(), "{as_elsewhere:?}");
}

#[test]
fn one_long_call_in_the_first_window_is_no_lower_bound() {
    let mut strata = Strata::default();
    strata.counted(40, 0.0);
    (0..40).for_each(|_| strata.timed(10.0));
    strata.gap(1e5, 1e-4);
    for number in 0..10 {
        strata.opened(number, 1000.0, 1e6);
        strata.closed(1, 0.0, Systematic::NONE);
        strata.timed_in_window(number, 1000.0, if number == 0 { 1e9 } else { 10.0 }, true);
    }
    let total = strata.finished().ticks(0.0).unwrap().total;
    assert_eq!((total.low, total.high), (400.0, None));
}

/// Three windows in which calls take the same time say nothing of the calls in between.
#[test]
fn a_few_windows_have_no_mean() {
    let mean = |windows: u32| {
        let mut strata = Strata::default();
        for number in 0..windows {
            strata.opened(number, 1000.0, 1e7);
            strata.closed(40, 0.0, Systematic::NONE);
            (0..40).for_each(|_| strata.timed_in_window(number, 1000.0, 10.0, true));
        }
        strata.finished().ticks(0.0).unwrap().mean
    };
    assert_eq!(mean(3), Estimate { value: 10.0, low: 0.0, high: None });
    assert_eq!(mean(10), Estimate { value: 10.0, low: 10.0, high: Some(10.0) });
}

/// Some windows contain calls.
#[test]
fn what_many_windows_show_has_a_lower_limit() {
    let calls = |hits: u32| {
        let mut strata = Strata::default();
        for number in 0..16 {
            strata.opened(number, 1000.0, 1e7);
            strata.closed(if number % (16 / hits) == 0 { 40 } else { 0 }, 0.0, Systematic::NONE);
        }
        let calls = strata.finished().calls();
        assert_eq!((calls.value, calls.high.is_some()), (40_000.0 * f64::from(hits), hits > 4), "{hits}");
        calls.low
    };
    assert_eq!((calls(1), calls(2)), (40.0, 80.0), "what was observed");
    assert!((20_000.0..80_000.0).contains(&calls(4)), "{}", calls(4));
    assert!((80_000.0..160_000.0).contains(&calls(8)), "{}", calls(8));
}

#[test]
fn calls_that_were_counted_apart_take_the_mean_of_the_timed_ones() {
    let mut strata = Strata::default();
    for number in 0..10 {
        strata.opened_apart(number, 1000.0, 1e7);
        strata.closed(500, 0.0, Systematic::NONE);
        strata.timed_in_window(number, 2.0, 10.0, true);
        strata.timed_in_window(number, 2.0, 30.0, true);
        strata.timed_in_window(number, 2.0, 9000.0, false);
    }
    let finished = strata.finished();
    assert_eq!((finished.calls().value, finished.ticks(0.0).unwrap().total.value), (5e6, 1e8));
    assert_eq!(finished.ticks(0.0).unwrap().mean.value, 20.0);
    // One in which only rewritten code was timed.
    let mut strata = finished.clone();
    strata.opened_apart(10, 1000.0, 1e7);
    strata.closed(500, 0.0, Systematic::NONE);
    strata.timed_in_window(10, 2.0, 9000.0, false);
    assert_eq!(strata.finished().ticks(0.0).unwrap().total.value, 1e8 + 4.5e9);
    // One in which none was timed: as many calls, with the mean of the others.
    let mut strata = finished;
    strata.opened_apart(10, 1000.0, 1e7);
    strata.closed(500, 0.0, Systematic::NONE);
    let times = strata.finished().ticks(0.0).unwrap();
    assert_eq!((times.total.value, times.mean.value), (1.1e8, 20.0));
}

#[test]
fn a_call_that_ends_late_counts_with_the_weight_of_its_window() {
    let mut strata = Strata::default();
    for number in 0..10 {
        strata.opened(number, 2.0, 1e7);
        strata.closed(1, 0.0, Systematic::NONE);
    }
    strata.timed_in_window(0, 2.0, 500.0, true);
    strata.timed_in_window(9, 2.0, 500.0, true);
    let finished = strata.finished();
    assert_eq!(finished.sampled.ticks, 2000.0);
    assert_eq!(finished.sampled.timed, 4.0);
}

#[test]
fn early_calls_are_exact_unless_some_were_missed() {
    let mut strata = Strata::default();
    strata.counted(5, 1e9);
    strata.interrupted();
    assert_eq!(strata.calls(), Estimate::exact(5.0), "it was not called before");
    strata.counted_early(1);
    assert_eq!(strata.calls().high, None, "the first call of a loop, perhaps");
    strata.counted_early(6);
    let calls = strata.calls();
    assert_eq!((calls.low, calls.high), (12.0, None));
    (0..12).for_each(|_| strata.timed(10.0));
    let total = strata.ticks(0.0).unwrap().total;
    assert_eq!((total.value, total.low, total.high), (120.0, 120.0, None));
}

#[test]
fn calls_that_may_have_been_missed_have_a_time() {
    let mut strata = Strata::default();
    strata.counted(100, 1e9);
    (0..100).for_each(|_| strata.timed(10.0));
    strata.missed(3);
    let total = strata.ticks(0.0).unwrap().total;
    assert_eq!((total.value, total.low, total.high), (1000.0, 1000.0, Some(1060.0)));
}

#[test]
fn a_function_that_was_on_for_nearly_all_of_the_time_has_both_limits() {
    let after = |time: f64| {
        let mut strata = Strata::default();
        strata.counted(1_000_000, time);
        strata.gap(5e6, 1e-3);
        for observation in 0..3 {
            strata.opened(observation, 100.0, 10e6);
            strata.closed(100, 0.0, Systematic::NONE);
        }
        strata.finished().calls()
    };
    let Estimate { value, high, .. } = after(1e9);
    assert!(high.is_some_and(|high| high < 1.05 * value), "{high:?}");
    assert_eq!(after(10e6).high, None, "three windows in 30 of 45 ms");
}

#[test]
fn nothing_is_known_of_the_time_after_an_allowance_before_a_window_has_ended() {
    let mut strata = Strata::default();
    strata.counted(40, 0.3e9);
    strata.gap(1e6, 2e-7);
    assert!(strata.calls().high.is_some(), "a short gap");
    strata.unobserved(15e6, 2e-7);
    let Estimate { low, high, .. } = strata.calls();
    assert_eq!((low >= 40.0, high), (true, None), "{low}");
}

/// Most estimates of such programs are a little too small, and few are much too large.
#[test]
fn upper_limits_hold_the_truth_if_few_windows_contain_many_of_the_calls() {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    let random = &mut SmallRng::seed_from_u64(7);
    // The logarithm of the number of calls in a window has nearly a normal distribution.
    let mut calls = || {
        let normal = (0..12).map(|_| random.random_range(0.0..1.0)).sum::<f64>() - 6.0;
        (100.0 * normal.exp()) as u64
    };
    let truth = 100.0 * 0.5_f64.exp() * 20.0 * 10.0;
    let (mut limited, mut held) = (0, 0);
    for _ in 0..3000 {
        let mut strata = Strata::default();
        for number in 0..20 {
            strata.opened(number, 10.0, 1e6);
            strata.closed(calls(), 0.0, Systematic::NONE);
        }
        if let Some(high) = strata.finished().calls().high {
            limited += 1;
            held += u32::from(high >= truth);
        }
    }
    assert!(limited > 2000, "{limited}");
    // With those of a normal distribution, 88 % do.
    assert!(f64::from(held) > 0.92 * f64::from(limited), "{held} of {limited}");
}
