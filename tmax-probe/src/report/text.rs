//! The results as text.

use std::fmt::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use wordpatch::WaitPolicy;

use crate::costs::Costs;
use crate::estimate::{Count, Findings, SAFETY_FACTOR, TMaxVerdict, WindowVerdict};
use crate::results::{Advice, Results};
use crate::trial::{CACHE_LINE, class};

/// Width of the longest bar.
const BAR: usize = 40;

/// The whole report.
pub fn render(results: &Results) -> String {
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
    writeln!(out, "\nTears by one store, by where the five-byte instruction is cut")?;
    writeln!(out, "{}", boundaries(tears))?;
    writeln!(out, "\nTears under the protocol, by the wait between its stores (logarithmic)")?;
    waits(out, tears)?;
    if let Some(costs) = &results.costs {
        writeln!(out, "\nCosts (median ticks; {:.0} ticks in a microsecond)", costs.ticks_per_us)?;
        self::costs(out, costs)?;
    }
    writeln!(out, "\nWhat this run could not see")?;
    results.blind_spots.iter().try_for_each(|line| writeln!(out, "  - {line}"))
}

fn window(out: &mut String, tears: &Findings) -> fmt::Result {
    match tears.window {
        WindowVerdict::Found(bytes) => {
            let inside = tears.inside(bytes);
            writeln!(out, "fetch window   {bytes} bytes: {} inside it, {}", seen(&inside), bound(&inside))
        }
        WindowVerdict::Blind => writeln!(
            out,
            "fetch window   not found: not even at cache lines was a tear seen, so the run was blind; try again on a quieter \
             machine with two processors or more"
        ),
        WindowVerdict::NothingIsSafe => writeln!(
            out,
            "fetch window   none: code tore inside an aligned quadword, against what vendors promise; do not patch running code \
             on this machine"
        ),
    }
}

fn t_max(out: &mut String, tears: &Findings) -> fmt::Result {
    match tears.t_max {
        TMaxVerdict::Found { last_torn, clean, t_max } => {
            let count = tears.from_wait(clean);
            writeln!(
                out,
                "T_max          {t_max} ticks: the last tear at a wait of {last_torn}; from {clean} on {}, {}; times {SAFETY_FACTOR}",
                seen(&count),
                bound(&count)
            )
        }
        TMaxVerdict::Blind => writeln!(
            out,
            "T_max          not found: no tear was seen at any wait, so the run was blind; waits stay with membarrier"
        ),
        TMaxVerdict::NoBound => {
            writeln!(out, "T_max          not found: the longest waits tore too; waits stay with membarrier")
        }
        TMaxVerdict::NotTried => writeln!(out, "T_max          not tried"),
    }
}

fn advice(out: &mut String, advice: &Advice, costs: &Costs) -> fmt::Result {
    let name = match advice.wait {
        WaitPolicy::TMax => "T_max",
        WaitPolicy::Membarrier | WaitPolicy::Both => "membarrier",
    };
    let other = match (advice.wait, advice.other_ticks) {
        (_, None) => String::new(),
        (WaitPolicy::TMax, Some(ticks)) => format!(", against {ticks} by membarrier while others run"),
        (_, Some(ticks)) => format!(", against {ticks} by T_max"),
    };
    writeln!(out, "wait           by {name}: {} ticks{other}", advice.wait_ticks)?;
    writeln!(
        out,
        "batch          straddlers whenever there are several: two waits cost what the stores of {} sites do ({} ticks each)",
        advice.batch, costs.alias_store
    )
}

/// "0 of 4.1e8 chances".
fn seen(count: &Count) -> String {
    format!("{} of {:.1e} chances", count.tears, count.chances as f64)
}

/// "below 0.0073 per million at 95 %".
fn bound(count: &Count) -> String {
    format!("below {} per million at 95 %", significant(count.per_million_below()))
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
        "toggles",
        "executions",
        "torn",
        "per million",
        "below",
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
        rows.add_row([
            at.boundary.to_string(),
            crosses,
            format!("{:.1e}", count.toggles as f64),
            format!("{:.1e}", count.executions as f64),
            count.tears.to_string(),
            significant(count.per_million()),
            significant(count.per_million_below()),
            if at.calls.toggles == 0 { String::new() } else { format!("{:.1e}", at.calls.toggles as f64) },
            if at.calls.toggles == 0 { String::new() } else { at.calls.tears.to_string() },
        ]);
    }
    right_aligned(rows)
}

fn waits(out: &mut String, tears: &Findings) -> fmt::Result {
    let rates = tears.waits.iter().map(|at| at.count.per_million());
    let highest = rates.clone().fold(0.0, f64::max);
    let lowest = rates.filter(|rate| *rate > 0.0).fold(highest, f64::min) / 2.0;
    for at in &tears.waits {
        let rate = at.count.per_million();
        let share = if rate > 0.0 { (rate / lowest).ln() / (highest / lowest).ln() } else { 0.0 };
        let bar = "█".repeat((share * BAR as f64).ceil() as usize);
        let rate = if rate > 0.0 { significant(rate) } else { "0".into() };
        writeln!(
            out,
            "  {:>5} {bar:<BAR$} {rate:>8} per million ({} of {:.1e})",
            at.wait, at.count.tears, at.count.chances as f64
        )?;
    }
    Ok(())
}

fn costs(out: &mut String, costs: &Costs) -> fmt::Result {
    let mut line = |ticks: u64, what: &str| writeln!(out, "  {ticks:>8}  {what}");
    line(costs.store, "store of a patch, code nobody runs")?;
    line(costs.alias_store, "the same through a second mapping")?;
    line(costs.mprotect_pair, "mprotect to writable and back")?;
    line(costs.int3_round_trip, "INT3 through a SIGTRAP handler and back")?;
    costs.membarrier.iter().try_for_each(|at| {
        line(at.ticks, &format!("membarrier SYNC_CORE, {} other threads running", at.running))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Depth};
    use crate::simulated::Simulated;
    use crate::trial::Machine;

    #[test]
    fn two_digits_are_kept() {
        let numbers = [0.0, 0.000_123_4, 0.0123, 1.26, 12.6, 126.4, 12_345.6].map(significant);
        assert_eq!(numbers, ["0", "0.00012", "0.012", "1.3", "13", "126", "12346"]);
    }

    #[test]
    fn a_report_says_what_was_found_and_how_sure_that_is() {
        let mut machine = Simulated::new(32, 800, 100, 3);
        let specs = [plan::window(Depth::Quick), plan::coarse(Depth::Quick, 32)].concat();
        let trials = specs.iter().map(|spec| machine.run(spec).unwrap()).collect();
        let text = render(&Results::new(trials, None));
        for expected in
            ["fetch window   32 bytes: 0 of", "T_max          ", "at 95 %", "What this run could not see"]
        {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
    }

    #[test]
    fn a_report_of_nothing_says_so() {
        let text = render(&Results::new(Vec::new(), None));
        assert!(text.contains("not found") && text.contains("not tried"), "{text}");
    }
}
