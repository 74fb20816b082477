//! Executions per second, by the rate of toggles.

use benches::pace::Pace;
use benches::report::Table;

use crate::turn::Measured;

/// Asserts that the executors observed both states at some rate.
///
/// # Panics
/// If the executors of a site observed only one state in all measurements.
pub(crate) fn assert_both_states_were_seen(measured: &[Measured], site: &str) {
    let turns = measured.iter().filter(|measured| measured.site == site).flat_map(|measured| &measured.turns);
    let seen =
        turns.fold([0; 2], |seen, turn| [0, 1].map(|state| seen[state] + turn.toggled.executions[state]));
    assert!(seen[0] > 0 && seen[1] > 0, "{site}: executors have seen {seen:?}");
}

/// A row for each site, number of executors and pace; the unchanged site precedes the toggled one.
pub(crate) fn table(measured: &[Measured]) -> Table {
    let mut table = Table::new(
        "Throughput of the executors (paper, Figures 11 to 13)",
        "Medians over the turns; `least` and `most` are the extremes. Toggles: requested, and made per second. M/s: million \
         executions in a second, by all executors. Relative: to the same shares of executions in each state without toggles, by time; \
             and by processor time of the executors, which excludes time in which they are preempted or sleep.",
        &["site", "executors", "asked", "reached/s", "M/s", "relative", "least", "most", "by processor time"],
    );
    for measured in measured {
        let Measured { site, executors, pace, turns } = measured;
        let mut push = |asked: String, reached: f64, throughput: f64, relative: [f64; 4]| {
            let mut row = vec![site.as_str().into(), (*executors).into(), asked.into()];
            row.extend([(reached.round() as u64).into(), (throughput / 1e6).into()]);
            row.extend(relative.map(Into::into));
            table.push(row);
        };
        if *pace == Pace::ALL[0] {
            for (state, name) in ["never: off", "never: on"].into_iter().enumerate() {
                let alone = measured.distribution(|turn| turn.untoggled[state].throughput(*executors));
                push(name.into(), 0.0, alone.median, [1.0; 4]);
            }
        }
        let reached = measured.distribution(|turn| turn.toggled.toggles_per_second());
        let throughput = measured.distribution(|turn| turn.toggled.throughput(*executors));
        let relative = turns.iter().map(|turn| turn.relative());
        let extremes = [relative.clone().fold(f64::MAX, f64::min), relative.fold(f64::MIN, f64::max)];
        let [least, most] = extremes;
        let relative = measured.distribution(|turn| turn.relative()).median;
        let by_processor_time = measured.distribution(|turn| turn.relative_by_processor_time()).median;
        push(pace.name(), reached.median, throughput.median, [relative, least, most, by_processor_time]);
    }
    table
}
