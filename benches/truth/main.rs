//! Accuracy and cost of the profiler's figures.
//!
//! Real programs run under the profiler and under an oracle (`oracle.c`) that counts and times
//! every call. The oracle counts in two runs: if they differ, as in programs with several threads,
//! the truth is the range between them. Timing disturbs times, so those of the functions with the
//! largest totals are measured in runs that time one function each, with the calls of
//! instrumentation functions in all others removed; the truth is the range of two such runs,
//! widened by the program's [noise](Known::noise) because no two runs of it take equally long.
//!
//! Costs are CPU times of consecutive runs: the uninstrumented build, all sites off (`tool=none`),
//! and profiled with budgets of 1 and 5 %. If installed, uftrace, perf and callgrind run on the
//! same programs (`--peers`).

mod programs;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use benches::child::Run;
use benches::compiled;
use benches::distribution::Distribution;
use benches::host;
use benches::options::Options;
use benches::preload;
use benches::report::{Cell, Report as Printed, Table};
use benches::truth::report::{Estimate, Latency, Oracle, Range, Report, Row, Truth};
use benches::truth::score::{self, Calls, Share};
use clap::Parser;
use programs::{Built, Competitors, Program};

/// The smallest noise.
const NOISE: f64 = 0.03;
/// The noise, in medians of the difference between two runs: with the range of the two it covers 95
/// % of further runs, if their times have a normal distribution.
const NOISE_IN_DIFFERENCES: f64 = 2.0;
/// Functions whose times are measured one at a time.
const TIMED_INDIVIDUALLY: usize = 12;
/// Minimum number of calls to a function for percentiles.
const CALLS_FOR_PERCENTILES: f64 = 100.0;
/// Number of functions whose ranks are compared.
const TOP: usize = 20;
/// A p90 below this is not compared within 20 %.
const COMPARABLE_NS: f64 = 100.0;
/// Maximum number of rows of a program that are listed as wrong.
const WORST: usize = 5;
/// The programs of a quick run, by default.
const QUICK: [&str; 1] = ["bzip2"];
/// Functions of the application with which start-up is measured, in a full and in a quick run: each
/// has two or more probes.
const STARTUP_FUNCTIONS: [usize; 2] = [9_000, 500];

#[derive(Debug, Parser)]
#[command(about = "Compares the profiler's figures with exact ones, and prints tables.")]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Only these programs (default: all, one in a quick run)
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    programs: Vec<String>,

    /// More options for the profiler, as in FASTINST_OPTIONS
    #[arg(long, value_name = "KEY=VALUE:...", default_value = "")]
    with: String,

    /// Run together with a busy loop on each processor
    #[arg(long)]
    busy: bool,

    /// Compare the figures only, not the costs
    #[arg(long)]
    no_cost: bool,

    /// Measure uftrace, perf and callgrind as well, if they are installed
    #[arg(long)]
    peers: bool,
}

/// Files and settings for running programs.
struct Bench {
    arguments: Arguments,
    library: PathBuf,
    oracle: PathBuf,
    folder: tempfile::TempDir,
}

impl Bench {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One run under the profiler, and its report.
    fn profile(&self, built: &Built, options: &str) -> (Run, Report) {
        let (run, report) = self.try_profile(built, options);
        (run, report.unwrap_or_else(|error| panic!("{error}")))
    }

    fn try_profile(&self, built: &Built, options: &str) -> (Run, Result<Report, String>) {
        let file = self.file("report.json");
        // A file of an earlier run must not be taken for this one's.
        let _ = std::fs::remove_file(&file);
        let mut all = format!("output={}", file.display());
        for more in [options, &self.arguments.with] {
            if !more.is_empty() {
                all = format!("{all}:{more}");
            }
        }
        let library = self.library.to_str().expect("a UTF-8 path");
        let run = built.run(&built.binary, &[], &[("LD_PRELOAD", library), ("FASTINST_OPTIONS", &all)]);
        (run, Report::read(&file))
    }

    /// One run under the oracle.
    fn oracle(&self, built: &Built, variables: &[(&str, &str)]) -> (Run, Oracle) {
        let file = self.file("oracle.json");
        let _ = std::fs::remove_file(&file);
        let preload = [
            ("LD_PRELOAD", self.oracle.to_str().expect("a UTF-8 path")),
            ("ORACLE", file.to_str().expect("a UTF-8 path")),
        ];
        let run = built.run(&built.binary, &[], &[variables, &preload].concat());
        (run, Oracle::read(&file).unwrap_or_else(|error| panic!("{error}")))
    }
}

fn main() {
    let arguments = Arguments::parse();
    let mut report = Printed::new("Are the profiler's figures true, and what do they cost?");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let bench = Bench { library: preload::library(), oracle: build_oracle(folder.path()), folder, arguments };
    let options = &bench.arguments.options;
    let mut all = programs::all(options);
    let known: Vec<_> = all.iter().map(|program| program.name).collect();
    for name in &bench.arguments.programs {
        assert!(known.contains(&name.as_str()), "no program '{name}' (known: {})", known.join(", "));
    }
    let is_wanted = |name: &str| match &bench.arguments.programs[..] {
        // The others take minutes to build.
        [] => !options.is_quick() || QUICK.contains(&name),
        names => names.iter().any(|wanted| wanted == name),
    };
    all.retain(|program| is_wanted(program.name));
    let mut tables = Tables::new(options.runs(5), bench.arguments.busy);
    let mut failed = Vec::new();
    for program in &all {
        options.progress(program.name);
        // A program that fails under the profiler is a result too; those of the others are kept.
        let measured = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let built = program.build();
            compare(&bench, program, &built, &mut tables);
            if !bench.arguments.no_cost {
                cost(&bench, program, &built, &mut tables);
            }
        }));
        if measured.is_err() {
            failed.push(program.name);
        }
    }
    report.push(tables.calls);
    report.push(tables.times);
    report.push(tables.functions);
    report.push(tables.wrong);
    report.push(tables.wrong_times);
    if !bench.arguments.no_cost {
        report.push(tables.cost);
        options.progress("start-up");
        report.push(startup(&bench));
    }
    if bench.arguments.peers {
        report.push(tables.peers);
    }
    options.print(&report);
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}

struct Tables {
    calls: Table,
    times: Table,
    functions: Table,
    wrong: Table,
    wrong_times: Table,
    cost: Table,
    peers: Table,
}

impl Tables {
    fn new(runs: u32, busy: bool) -> Self {
        let load = if busy { ", next to a busy loop on each processor" } else { "" };
        Self {
            calls: Table::new(
                "Numbers of calls",
                format!(
                    "Rows of {runs} profiled runs{load} against exact counts. covered: 95 % intervals that hold the truth, in percent of \
                     the rows that state one; exact wrong: rows that state an exact number, and another one than the truth; sampled: the intervals of the other rows. at least: rows without an upper end, \
                     and how many of them are right. off: rows with an interval whose number is more than twice or less than half the \
                     truth; confident: those that state an error below 50 %. missing: functions that ran and have no row. over: \
                     rows whose total exceeds the time of all threads, in percent."
                ),
                &[
                    "program",
                    "kind",
                    "probes",
                    "functions",
                    "calls",
                    "rows",
                    "covered %",
                    "exact wrong",
                    "sampled",
                    "sampled %",
                    "at least",
                    "right",
                    "off",
                    "confident",
                    "missing",
                    "over %",
                ],
            ),
            times: Table::new(
                "Times of the functions with the largest totals",
                format!(
                    "The same runs against runs that time one function each: its {TIMED_INDIVIDUALLY} functions with the largest totals and at \
                     least {CALLS_FOR_PERCENTILES} calls. Intervals that hold the truth (the range of two runs, widened by the noise: {NOISE_IN_DIFFERENCES} times the median of what \
                     the two differ by, at least {:.0} %), in percent; of functions whose calls take longer than the oracle's two readings \
                     of the clock. off, confident: totals. p90 in 20 %: of those of {COMPARABLE_NS} ns and \
                     more. rank: Spearman's rank correlation of the {TOP} largest totals, median of the runs; totals within 2 % share a rank; \
                     of the oracle: of two runs in which it times every call.",
                    100.0 * NOISE
                ),
                &[
                    "program",
                    "functions",
                    "noise %",
                    "total %",
                    "mean %",
                    "p50 %",
                    "p90 %",
                    "p99 %",
                    "off",
                    "confident",
                    "p90 in 20 %",
                    "rank",
                    "of the oracle",
                ],
            ),
            functions: Table::new(
                "The same function by function",
                "Of the last run; ns. true: timed alone, the mean of two runs. \"below\" means below the clock's resolution.",
                &[
                    "program",
                    "function",
                    "calls",
                    "true calls",
                    "p50",
                    "true p50",
                    "p90",
                    "true p90",
                    "p99",
                    "true p99",
                    "total ms",
                    "true ms",
                ],
            ),
            wrong: Table::new(
                "Numbers of calls whose interval does not contain the true number",
                format!(
                    "Of the last run: rows with an interval of at most 50 % on either side that does not contain the truth, \
                     the worst {WORST} of each program."
                ),
                &["program", "function", "calls", "true calls"],
            ),
            wrong_times: Table::new(
                "Times whose interval does not contain the measured time",
                "Of all runs; ns. The range is that of two runs that time this function alone, widened by the noise.",
                &["program", "run", "function", "figure", "stated", "low", "high", "measured", "to"],
            ),
            cost: Table::new(
                "Cost",
                "CPU seconds, medians of runs in turns. plain: without instrumentation. off: all sites off (tool=none). over off: \
                 profiled against the run with all sites off, in percent; median, and of the fastest runs (best). stated: the cost in \
             the report, median.",
                &[
                    "program",
                    "plain s",
                    "off s",
                    "1% s",
                    "over off %",
                    "best",
                    "stated %",
                    "5% s",
                    "5% over off",
                    "5% best",
                    "5% stated",
                    "startup ms",
                    "memory MB",
                ],
            ),
            peers: Table::new(
                "Other tools",
                "CPU time over the plain build's, as a multiple (callgrind, perf) and over the instrumented program with all sites off (uftrace).",
                &["program", "fastinst", "perf", "uftrace", "callgrind"],
            ),
        }
    }
}

fn build_oracle(folder: &Path) -> PathBuf {
    let library = folder.join("oracle.so");
    let mut command = Command::new(host::compiler());
    command
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(host::repo_root().join("benches/truth/oracle.c"));
    let status = command.status().expect("the C compiler can be started");
    assert!(status.success(), "{command:?}: {status}");
    library
}

/// The truth about a program.
struct Known {
    /// Every call timed: disturbed, but for all functions.
    everything: Oracle,
    /// The correlation of its ranks with those of another such run.
    rank: f64,
    calls: HashMap<u64, Range>,
    /// One function at a time.
    alone: Vec<(u64, [Truth; 2])>,
    /// Where totals have no upper end, because the oracle does not see all calls.
    hides_inlined: bool,
    /// By how much the times of another run may differ from those of two, relatively: from the
    /// differences between the two.
    noise: f64,
}

fn noise(alone: &[(u64, [Truth; 2])]) -> f64 {
    let difference = |(_, [a, b]): &(u64, [Truth; 2])| (a.total - b.total).abs() / a.total.max(b.total);
    let mut differences: Vec<f64> = alone.iter().map(difference).filter(|share| share.is_finite()).collect();
    differences.sort_by(f64::total_cmp);
    let median = differences.get(differences.len() / 2).copied().unwrap_or_default();
    NOISE.max(NOISE_IN_DIFFERENCES * median)
}

fn ask_oracle(bench: &Bench, built: &Built) -> Known {
    let options = &bench.arguments.options;
    let (first, everything) = bench.oracle(built, &[]);
    let sites = bench.file("sites.json");
    std::fs::rename(bench.file("oracle.json"), &sites).expect("a temporary file can be renamed");
    let sites = sites.to_str().expect("a UTF-8 path");
    let (second, counted) = bench.oracle(built, &[("ORACLE_MODE", "count")]);
    assert_eq!(
        String::from_utf8_lossy(&first.output),
        String::from_utf8_lossy(&second.output),
        "two runs print different things"
    );
    assert_eq!(everything.base, counted.base, "the program is mapped at the same address in all runs");
    let calls_of =
        |oracle: &Oracle, address: &u64| oracle.functions.get(address).map_or(0.0, |truth| truth.calls);
    let addresses: BTreeSet<u64> =
        everything.functions.keys().chain(counted.functions.keys()).copied().collect();
    let (_, again) = bench.oracle(built, &[]);
    let rank =
        score::top_of(&everything, TOP, |address| again.functions.get(&address).map(|truth| truth.total));
    let range = |address: &u64| Range::of([calls_of(&everything, address), calls_of(&counted, address)]);
    let calls = addresses.iter().map(|address| (*address, range(address))).collect();

    let mut order: Vec<_> =
        everything.functions.iter().filter(|(_, truth)| truth.timed >= CALLS_FOR_PERCENTILES).collect();
    order.sort_by(|a, b| b.1.total.total_cmp(&a.1.total).then(a.0.cmp(b.0)));
    let largest: Vec<u64> =
        order.iter().take(options.either(TIMED_INDIVIDUALLY, 4)).map(|(address, _)| **address).collect();
    let once = |address: &u64| {
        let link_address = format!("{address:#x}");
        let (_, oracle) = bench.oracle(built, &[("ORACLE_ONLY", &link_address), ("ORACLE_SITES", sites)]);
        oracle.functions.get(address).copied().unwrap_or_default()
    };
    // The two runs of a function are not consecutive: the machine's speed changes within minutes.
    let [first, second] = [(), ()].map(|()| largest.iter().map(once).collect::<Vec<Truth>>());
    let alone: Vec<_> = largest
        .iter()
        .zip(first.into_iter().zip(second))
        .map(|(address, (a, b))| (*address, [a, b]))
        .collect();
    let noise = noise(&alone);
    Known { everything, rank, calls, alone, hides_inlined: built.hides_inlined(), noise }
}

/// Results for totals, means and percentiles of functions that were timed alone.
#[derive(Default)]
struct Times {
    total: Share,
    mean: Share,
    percentiles: [Share; 3],
    off: usize,
    confident: usize,
    near: Share,
    wrong: Vec<Wrong>,
}

/// A figure whose interval does not contain the measured one.
struct Wrong {
    function: String,
    figure: &'static str,
    stated: Estimate,
    measured: Range,
}

type Percentile = (&'static str, fn(&Latency) -> Option<Estimate>, fn(&Truth) -> f64);

const PERCENTILES: [Percentile; 3] = [
    ("p50", |latency| latency.p50, |truth| truth.p50),
    ("p90", |latency| latency.p90, |truth| truth.p90),
    ("p99", |latency| latency.p99, |truth| truth.p99),
];

impl Times {
    fn add(&mut self, report: &Report, known: &Known) {
        for (address, truths) in &known.alone {
            let Some(row) = report.rows.get(address) else { continue };
            let range = |of: fn(&Truth) -> f64| Range::of(truths.iter().map(of)).widened(known.noise);
            let mut total = range(|truth| truth.total);
            if known.hides_inlined {
                total.high = f64::INFINITY;
            }
            let wrong = &mut self.wrong;
            let mut check = |share: &mut Share, figure, stated: Option<Estimate>, measured| {
                score::check(share, stated, measured);
                if let Some(stated) = stated.filter(|stated| !stated.covers(measured)) {
                    wrong.push(Wrong { function: row.name.clone(), figure, stated, measured });
                }
            };
            // The oracle cannot tell how much of shorter calls overlaps with its readings.
            let is_comparable = truths.iter().all(|truth| truth.mean >= known.everything.resolution);
            if is_comparable {
                check(&mut self.total, "total", row.total_ns, total);
            }
            if let Some(estimate) = row.total_ns.filter(|estimate| is_comparable && estimate.high.is_some()) {
                let off = estimate.is_off_by_2(total);
                self.off += usize::from(off);
                self.confident +=
                    usize::from(off && estimate.stated_error().is_some_and(|error| error < 0.5));
            }
            let Some(latency) = row.latency.as_ref().filter(|latency| !latency.below_resolution) else {
                continue;
            };
            if !is_comparable {
                continue;
            }
            check(&mut self.mean, "mean", latency.mean, range(|truth| truth.mean));
            for (share, (name, estimate, truth)) in self.percentiles.iter_mut().zip(PERCENTILES) {
                check(share, name, estimate(latency), range(truth));
            }
            let p90 = Range::of(truths.iter().map(|truth| truth.p90));
            if let Some(estimate) = latency.p90.filter(|_| p90.middle() >= COMPARABLE_NS) {
                self.near.add((estimate.value / p90.middle() - 1.0).abs() <= 0.2);
            }
        }
    }
}

fn percent(share: Share) -> Cell {
    share.percent().map_or("-".into(), Cell::from)
}

fn compare(bench: &Bench, program: &Program, built: &Built, tables: &mut Tables) {
    let options = &bench.arguments.options;
    let known = ask_oracle(bench, built);
    let _competitors = bench.arguments.busy.then(Competitors::start);
    let (mut sum, mut times, mut ranks) = (Calls::default(), Times::default(), Vec::new());
    let mut last = None;
    let mut all_rows = 0;
    for run in 1..=options.runs(5) {
        let (_, report) = bench.profile(built, "");
        let calls = Calls::compare(&report, &known.calls);
        sum.rows += calls.rows;
        sum.coverage.merge(calls.coverage);
        sum.estimated.merge(calls.estimated);
        sum.exact_wrong += calls.exact_wrong;
        sum.at_least.merge(calls.at_least);
        sum.off += calls.off;
        sum.confident += calls.confident;
        sum.missing += calls.missing;
        sum.over += calls.over;
        all_rows += report.rows.len();
        times.add(&report, &known);
        for Wrong { function, figure: name, stated, measured } in times.wrong.drain(..) {
            tables.wrong_times.push(vec![
                program.name.into(),
                u64::from(run).into(),
                function.chars().take(40).collect::<String>().into(),
                name.into(),
                figure(Some(stated)),
                stated.low.into(),
                stated.high.map_or("-".into(), Cell::from),
                measured.low.into(),
                measured.high.into(),
            ]);
        }
        ranks.push(score::top_by_total(&report, &known.everything, TOP));
        last = Some(report);
    }
    let last = last.expect("one run at least");
    let over = Share { hits: sum.over, of: all_rows };
    let calls: f64 = known.calls.values().map(|range| range.middle()).sum();
    tables.calls.push(vec![
        program.name.into(),
        program.what.into(),
        (last.probes as u64).into(),
        known.calls.len().into(),
        (calls as u64).into(),
        sum.rows.into(),
        percent(sum.coverage),
        sum.exact_wrong.into(),
        sum.estimated.of.into(),
        percent(sum.estimated),
        sum.at_least.of.into(),
        sum.at_least.hits.into(),
        sum.off.into(),
        sum.confident.into(),
        sum.missing.into(),
        percent(over),
    ]);
    let [p50, p90, p99] = times.percentiles;
    tables.times.push(vec![
        program.name.into(),
        known.alone.len().into(),
        (100.0 * known.noise).into(),
        percent(times.total),
        percent(times.mean),
        percent(p50),
        percent(p90),
        percent(p99),
        times.off.into(),
        times.confident.into(),
        format!("{} of {}", times.near.hits, times.near.of).into(),
        median(ranks).into(),
        known.rank.into(),
    ]);
    let confident = |row: &Row| row.calls.stated_error().is_some_and(|error| error < 0.5);
    let mut wrong: Vec<_> = known
        .calls
        .iter()
        .filter_map(|(address, &truth)| Some((last.rows.get(address)?, truth)))
        .filter(|(row, truth)| confident(row) && !row.calls.covers(*truth))
        .collect();
    let distance =
        |(row, truth): &(&Row, Range)| (row.calls.value.max(0.5) / truth.middle().max(0.5)).ln().abs();
    wrong.sort_by(|a, b| distance(b).total_cmp(&distance(a)).then_with(|| a.0.name.cmp(&b.0.name)));
    for (row, truth) in wrong.into_iter().take(WORST) {
        let name: String = row.name.chars().take(60).collect();
        tables.wrong.push(vec![
            program.name.into(),
            name.into(),
            figure(Some(row.calls)),
            (truth.middle() as u64).into(),
        ]);
    }
    for (address, truths) in &known.alone {
        let row = last.rows.get(address);
        let mean = |of: fn(&Truth) -> f64| truths.iter().map(of).sum::<f64>() / truths.len() as f64;
        let mut cells: Vec<Cell> = vec![
            program.name.into(),
            row.map_or_else(|| format!("{address:#x}"), |row| row.name.chars().take(40).collect()).into(),
            figure(row.map(|row| row.calls)),
            (mean(|truth| truth.calls) as u64).into(),
        ];
        for (_, estimate, truth) in PERCENTILES {
            let latency = row.and_then(|row| row.latency);
            cells.push(match latency {
                Some(latency) if latency.below_resolution => "below".into(),
                latency => figure(latency.as_ref().and_then(estimate)),
            });
            cells.push(mean(truth).into());
        }
        let total = row.and_then(|row| row.total_ns);
        let ms = |ns: f64| ns / 1e6;
        cells.push(figure(total.map(|total| Estimate {
            value: ms(total.value),
            low: ms(total.low),
            high: total.high.map(ms),
        })));
        cells.push((mean(|truth| truth.total) / 1e6).into());
        tables.functions.push(cells);
    }
}

/// A value and its stated error.
fn figure(estimate: Option<Estimate>) -> Cell {
    let Some(estimate) = estimate else { return "-".into() };
    let value = Cell::from(estimate.value);
    match estimate.stated_error() {
        None => format!(">= {}", Cell::from(estimate.low)).into(),
        Some(0.0) => value.to_string().into(),
        Some(error) => format!("{value} ±{:.0}%", 100.0 * error).into(),
    }
}

fn cost(bench: &Bench, program: &Program, built: &Built, tables: &mut Tables) {
    const BUDGETS: [&str; 2] = ["", "budget=5%"];
    let runs = bench.arguments.options.runs(5);
    let library = bench.library.to_str().expect("a UTF-8 path");
    let off_variables = [("LD_PRELOAD", library), ("FASTINST_OPTIONS", "tool=none")];
    let (mut plain, mut off): (Vec<f64>, Vec<f64>) = Default::default();
    let (mut profiled, mut stated): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    let (mut startup, mut memory): (Vec<f64>, Vec<f64>) = Default::default();
    let mut output = None;
    // The first round loads the files into memory, and is not counted.
    for turn in 0..=runs {
        let mut check = |run: &Run| {
            let expected = output.get_or_insert_with(|| run.output.clone());
            assert_eq!(
                String::from_utf8_lossy(&run.output),
                String::from_utf8_lossy(expected),
                "{}",
                program.name
            );
        };
        if let Some(binary) = &built.plain {
            let run = built.run(binary, &[], &[]);
            check(&run);
            if turn > 0 {
                plain.push(run.cpu_seconds);
            }
        }
        let run = built.run(&built.binary, &[], &off_variables);
        check(&run);
        if turn > 0 {
            off.push(run.cpu_seconds);
        }
        for (index, budget) in BUDGETS.iter().enumerate() {
            let (run, report) = bench.try_profile(built, budget);
            check(&run);
            if let (true, Ok(report)) = (turn > 0, report) {
                profiled[index].push(run.cpu_seconds);
                stated[index].extend(report.stated_cost.map(|share| 100.0 * share));
                startup.extend(report.startup_ns.map(|ns| ns / 1e6));
                memory.extend(report.memory_bytes.map(|bytes| bytes / 1e6));
            }
        }
    }
    let more = |more: f64, than: f64| 100.0 * (more / than - 1.0);
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let middle =
        |values: &[f64]| if values.is_empty() { "-".into() } else { Cell::from(median(values.to_vec())) };
    let mut row: Vec<Cell> = vec![program.name.into(), middle(&plain), middle(&off)];
    for (profiled, stated) in profiled.iter().zip(&stated) {
        if profiled.is_empty() {
            row.extend(["-".into(), "-".into(), "-".into(), "-".into()]);
            continue;
        }
        let ratios = profiled.iter().zip(&off).map(|(profiled, off)| more(*profiled, *off)).collect();
        row.extend([
            middle(profiled),
            median(ratios).into(),
            more(least(profiled), least(&off)).into(),
            middle(stated),
        ]);
    }
    row.extend([middle(&startup), middle(&memory)]);
    tables.cost.push(row);
    if bench.arguments.peers {
        let plain_binary = built.plain.as_ref().unwrap_or(&built.binary);
        let base = if plain.is_empty() { least(&off) } else { least(&plain) };
        let data = bench.file("peer.data");
        let data = data.to_str().expect("a UTF-8 path");
        let callgrind = format!("--callgrind-out-file={data}");
        let peer = |binary: &Path, prefix: &[&str], base: f64| -> Cell {
            if !is_installed(prefix[0]) {
                return "not installed".into();
            }
            (built.run(binary, prefix, &[]).cpu_seconds / base).into()
        };
        tables.peers.push(vec![
            program.name.into(),
            (least(&profiled[0]) / least(&off)).into(),
            peer(plain_binary, &["perf", "record", "-q", "-g", "-o", data], base),
            peer(&built.binary, &["uftrace", "record", "-d", data], least(&off)),
            peer(plain_binary, &["valgrind", "-q", "--tool=callgrind", &callgrind], base),
        ]);
    }
}

fn is_installed(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The cost of start-up with many probes.
fn startup(bench: &Bench) -> Table {
    let mut table = Table::new(
        "Start-up",
        "CPU and wall-clock time of an application that calls each of its functions once, in ms, over that of the same application with \
         nothing preloaded; medians of runs in turns.",
        &["functions", "probes", "off, CPU", "off, wall", "profiled, CPU", "profiled, wall", "stated"],
    );
    let functions = bench.arguments.options.either(STARTUP_FUNCTIONS[0], STARTUP_FUNCTIONS[1]);
    let source = format!(
        "{}\n{} int main(void) {{ run_all(); return 0; }}\n",
        compiled::application(functions),
        compiled::PLAIN
    );
    // None of the functions that run writes to a null pointer.
    let source = source.replace("(0);", "(&value);").replacen(
        "run_all(void) {",
        "run_all(void) {\n    unsigned value = 1;",
        1,
    );
    let binary = compiled::compile(&bench.folder, "application", &source, &["-finstrument-functions"]);
    let file = bench.file("startup.json");
    let profiling = format!("output={}", file.display());
    let run = |options: Option<&str>| {
        let under = options
            .map_or(preload::Under::Nothing, |options| preload::Under::Library(&bench.library, options));
        let run = benches::child::run(preload::command(&binary, &[] as &[&str], under));
        assert!(run.status.success(), "{}", run.status);
        (run.cpu_seconds * 1e3, run.elapsed.as_secs_f64() * 1e3)
    };
    let mut columns: [Vec<f64>; 4] = Default::default();
    let (mut stated, mut probes) = (Vec::new(), 0.0);
    for turn in 0..=bench.arguments.options.either(10, 2) {
        let (nothing, off) = (run(None), run(Some("tool=none")));
        let _ = std::fs::remove_file(&file);
        let profiled = run(Some(&profiling));
        if turn > 0 {
            let figures =
                [off.0 - nothing.0, off.1 - nothing.1, profiled.0 - nothing.0, profiled.1 - nothing.1];
            columns.iter_mut().zip(figures).for_each(|(column, figure)| column.push(figure));
            if let Ok(report) = Report::read(&file) {
                probes = report.probes;
                stated.extend(report.startup_ns.map(|ns| ns / 1e6));
            }
        }
    }
    let mut row: Vec<Cell> = vec![functions.into(), (probes as u64).into()];
    row.extend(columns.map(|column| Cell::from(median(column))));
    row.push(if stated.is_empty() { "-".into() } else { median(stated).into() });
    table.push(row);
    table
}

fn median(values: Vec<f64>) -> f64 {
    Distribution::of(values).median
}
