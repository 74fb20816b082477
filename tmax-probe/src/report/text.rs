//! The results as text.

use std::fmt::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use wordpatch::WaitPolicy;

use crate::boundary::{CACHE_LINE, class};
use crate::costs::Costs;
use crate::estimate::{
    CONFIDENCE, Count, Findings, MIN_TORN_TRIALS, SAFETY_FACTOR, TMaxVerdict, WindowVerdict,
};
use crate::results::{Advice, Results};

/// Width of the longest bar.
const BAR: usize = 40;

/// Renders the complete report.
pub(crate) fn render(results: &Results) -> String {
    let mut text = String::new();
    write(&mut text, results).expect("a string takes all");
    text
}

fn write(out: &mut String, results: &Results) -> fmt::Result {
    let Results { host, tears, .. } = results;
    if results.simulated {
        writeln!(out, "a simulated machine")?;
    } else {
        writeln!(
            out,
            "{} (family {} model {} stepping {}, microcode {}), hypervisor {}, Linux {}",
            results.cpu,
            host.cpu_family,
            host.cpu_model,
            host.cpu_stepping,
            host.microcode,
            host.hypervisor,
            host.kernel
        )?;
    }
    writeln!(out)?;
    window(out, tears)?;
    t_max(out, tears)?;
    if let (Some(advice), Some(costs)) = (&results.advice, &results.costs) {
        self::advice(out, advice, costs)?;
    }
    writeln!(
        out,
        "\nTrials that tore by one store, by where the five-byte instruction is cut (bounds at {} %)",
        CONFIDENCE * 100.0
    )?;
    writeln!(out, "{}", boundaries(tears))?;
    waits(out, tears)?;
    if let Some(costs) = &results.costs {
        writeln!(out, "\nCosts (median ticks; {:.0} ticks in a microsecond)", costs.ticks_per_us)?;
        self::costs(out, costs)?;
    }
    writeln!(out, "\nWhat this run could not see")?;
    results.blind_spots.iter().try_for_each(|line| writeln!(out, "  - {line}"))
}

fn window(out: &mut String, tears: &Findings) -> fmt::Result {
    write!(out, "fetch window   ")?;
    match tears.window {
        WindowVerdict::Known { bytes } => {
            let (border, inside) = (tears.class(bytes), tears.weakest_inside(bytes));
            write!(out, "{bytes} bytes: at its border {} tore", of_trials(&border))?;
            if inside.trials > 0 {
                write!(out, "; inside it {}", of_trials(&inside))?;
                write!(out, ", {} at most", percent(inside.share_at_most()))?;
            }
            writeln!(out)
        }
        WindowVerdict::Blind => writeln!(
            out,
            "not known: no tear was seen, not even across cache lines. Try again on a quieter machine with two processors or more; \
             until then 8 bytes are assumed"
        ),
        WindowVerdict::NoControl => writeln!(
            out,
            "not known: there were tears across cache lines only, so tears inside a line might not have been \
             detected; 8 bytes are still assumed"
        ),
        WindowVerdict::TooWeak { control, control_at_least, class, class_at_most } => writeln!(
            out,
            "not known: {} of trials or more tear at {control} bytes, but up to {} may tear at {class}, which is not significantly less. \
             Try again on a quieter machine, or without --quick; until then 8 bytes are assumed",
            percent(control_at_least),
            percent(class_at_most)
        ),
        WindowVerdict::NothingIsSafe => writeln!(
            out,
            "none: code tore inside an aligned quadword, where AMD guarantees that it does not and where no Intel was ever \
             observed to; do not patch running code on this machine"
        ),
    }
}

fn t_max(out: &mut String, tears: &Findings) -> fmt::Result {
    write!(out, "T_max          ")?;
    match tears.t_max {
        TMaxVerdict::Known { last_torn, clean, t_max, share_below, at_most } => writeln!(
            out,
            "{t_max} ticks: the longest wait that tore was {last_torn} ({} of trials just below it); from {clean} on none of {} trials, \
             {} at most; times {SAFETY_FACTOR}",
            percent(share_below),
            tears.from_wait(clean).trials,
            percent(at_most)
        ),
        TMaxVerdict::FewTears { torn_trials, .. } => writeln!(
            out,
            "not known: {torn_trials} trials tore, and {MIN_TORN_TRIALS} are needed to find where tears end; waits use membarrier"
        ),
        TMaxVerdict::TooWeak { clean, share_below, at_most } => writeln!(
            out,
            "not known: none tore at waits of {clean} and more, but up to {} may tear, which is not significantly less than the {} at \
             shorter waits; waits use membarrier",
            percent(at_most),
            percent(share_below)
        ),
        TMaxVerdict::NoBound => {
            writeln!(out, "not known: trials with the longest waits tore too; waits use membarrier")
        }
        TMaxVerdict::NotTried => writeln!(out, "not tried"),
    }
}

fn advice(out: &mut String, advice: &Advice, costs: &Costs) -> fmt::Result {
    let name = match advice.wait {
        WaitPolicy::TMax => "T_max",
        WaitPolicy::Membarrier | WaitPolicy::Both => "membarrier",
    };
    let other = match (advice.wait, advice.other_ticks) {
        (_, None) => String::new(),
        (WaitPolicy::TMax, Some(ticks)) => format!(", against {ticks} by membarrier"),
        (_, Some(ticks)) => format!(", against {ticks} by T_max"),
    };
    writeln!(out, "wait           by {name}: {} ticks in the worst case{other}", advice.wait_ticks)?;
    writeln!(
        out,
        "batch          two waits cost as much as the stores of {} sites ({} ticks each)",
        advice.batch, costs.alias_store
    )
}

/// "12 of 40 trials".
fn of_trials(count: &Count) -> String {
    format!("{} of {} trials", count.torn_trials, count.trials)
}

/// A share of 0 to 1, as "3.8 %".
fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0))
}

/// Two significant digits.
fn significant(number: f64) -> String {
    if number == 0.0 {
        return "0".into();
    }
    let digits = (1 - number.abs().log10().floor() as i32).max(0) as usize;
    format!("{number:.digits$}")
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    table
}

fn right_aligned(mut table: Table) -> String {
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table.trim_fmt()
}

fn boundaries(tears: &Findings) -> String {
    let mut rows = table(&[
        "bytes into the line",
        "crosses",
        "trials",
        "torn",
        "share",
        "at most",
        "toggles",
        "executions",
        "torn executions",
        "calls",
        "crashed",
    ]);
    for at in &tears.boundaries {
        let crosses = match class(at.boundary) {
            4 => "nothing".to_owned(),
            CACHE_LINE => "a cache line".to_owned(),
            class => class.to_string(),
        };
        let count = &at.mixtures;
        let calls = |number: u64| if at.calls.trials == 0 { String::new() } else { number.to_string() };
        rows.add_row([
            at.boundary.to_string(),
            crosses,
            count.trials.to_string(),
            count.torn_trials.to_string(),
            percent(count.torn_share()),
            percent(count.share_at_most()),
            format!("{:.1e}", count.toggles as f64),
            format!("{:.1e}", count.executions as f64),
            count.tears.to_string(),
            calls(at.calls.trials),
            calls(at.calls.torn_trials),
        ]);
    }
    right_aligned(rows)
}

fn waits(out: &mut String, tears: &Findings) -> fmt::Result {
    if tears.waits.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nTrials that tore under the protocol, by the wait between its stores in ticks (logarithmic)"
    )?;
    let shares = tears.waits.iter().map(|at| at.count.torn_share());
    let highest = shares.clone().fold(0.0, f64::max);
    let lowest = shares.filter(|share| *share > 0.0).fold(highest, f64::min) / 2.0;
    for at in &tears.waits {
        let share = at.count.torn_share();
        let length = if share > 0.0 { (share / lowest).ln() / (highest / lowest).ln() } else { 0.0 };
        let bar = "█".repeat((length * BAR as f64).ceil() as usize);
        writeln!(
            out,
            "  {:>5} {bar:<BAR$} {:>7}  {} of {} trials, at most {}",
            at.wait,
            percent(share),
            at.count.torn_trials,
            at.count.trials,
            percent(at.count.share_at_most())
        )?;
    }
    Ok(())
}

fn costs(out: &mut String, costs: &Costs) -> fmt::Result {
    let mut line = |ticks: u64, what: &str| writeln!(out, "  {ticks:>8}  {what}");
    line(costs.store, "store of a patch, code not executed")?;
    line(costs.alias_store, "the same through a second mapping")?;
    line(costs.mprotect_pair, "mprotect to writable and back")?;
    line(costs.int3_round_trip, "INT3 through a SIGTRAP handler and back")?;
    costs.membarrier.iter().try_for_each(|at| {
        let percentiles = format!("90 %: {}, 99 %: {}", at.p90, at.p99);
        line(at.p50, &format!("membarrier SYNC_CORE, {} other threads running ({percentiles})", at.running))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Depth;
    use crate::simulated::Simulated;
    use crate::survey::{Unobserved, survey};

    #[test]
    fn two_digits_are_kept() {
        let numbers = [0.0, 0.000_123_4, 0.0123, 1.26, 12.6, 126.4, 12_345.6].map(significant);
        assert_eq!(numbers, ["0", "0.00012", "0.012", "1.3", "13", "126", "12346"]);
    }

    #[test]
    fn a_report_says_what_was_found_and_how_sure_that_is() {
        let trials = survey(&mut Simulated::new(32, 800, 3), Depth::Standard, &mut Unobserved).unwrap();
        let text = render(&Results::new(trials, None));
        for expected in [
            "fetch window   32 bytes: at its border",
            "inside it 0 of 600 trials, 0.76 % at most",
            "T_max          ",
            "bounds at 99 %",
            "What this run could not see",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
    }

    #[test]
    fn a_report_without_trials() {
        let text = render(&Results::new(Vec::new(), None));
        assert!(text.contains("not known") && text.contains("not tried"), "{text}");
    }
}
