//! The human-readable table: a heading, the notes, and a line per function.
//!
//! There are no colours: the text is the same on a terminal, in a file and in a pipe, except for
//! the number of rows that the caller requests. Names are last, because they may be long.
//!
//! Uncertainty is shown: `12.3k ±4%` is an estimate with half the width of its 95 % confidence
//! interval; `>=10` is a lower and `<=10` an upper bound, used if that half exceeds the
//! value. Latencies below the clock's resolution are shown as `<20ns`; `-` means that nothing is
//! known.

use std::fmt::Write;

use super::columns::{self, Alignment, Column, width};
use super::units::{Certainty, UNKNOWN};
use super::{Cost, Estimate, FunctionReport, Latency, Report, SortKey, names, units};
use crate::binary::symbol::scopes;
use crate::filter::Patterns;

/// Maximum length of the command in the heading.
const MAX_COMMAND_LENGTH: usize = 92;
/// Maximum length of a name.
pub(super) const MAX_NAME_LENGTH: usize = 100;
/// Maximum length of a file name in the column `object`.
const MAX_OBJECT_LENGTH: usize = 20;

/// The maximum number of rows on a terminal, unless the user requests more.
pub const ROWS_ON_A_TERMINAL: usize = 30;

/// Selects the part of a report that is shown.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The order of the functions.
    pub sort: SortKey,
    /// The patterns of the functions to show; all functions if there are no patterns.
    pub filter: Patterns,
    /// The maximum number of functions; `None` for all.
    pub limit: Option<usize>,
    /// How the reader can see the functions that are not shown.
    pub hint: &'static str,
}

impl View {
    /// The functions of a report that match the filter, in order, with their names.
    #[must_use]
    pub fn functions<'a>(&self, report: &'a Report) -> Vec<(&'a FunctionReport, String)> {
        let sorted = report.sorted(self.sort);
        let named = names(&sorted);
        let all = sorted.into_iter().zip(named);
        all.filter(|(function, _)| self.filter.is_empty() || self.filter.match_report(function)).collect()
    }
}

/// The table of a report; ends with a newline.
#[must_use]
pub fn render(report: &Report, view: &View) -> String {
    render_in(report, view, || report.cost.report_ns)
}

/// As [`render`]; `took` returns the processor time for writing the report, which is known when the
/// table has been written.
pub(crate) fn render_in(report: &Report, view: &View, took: impl FnOnce() -> u64) -> String {
    let rows = rows(report, view);
    let cost = Cost { report_ns: took(), ..report.cost };
    heading(report, &cost) + &rows
}

/// What is below the heading.
fn rows(report: &Report, view: &View) -> String {
    let mut text = String::new();
    let functions = view.functions(report);
    if functions.is_empty() {
        let selected = ["only=", "skip="].iter().any(|option| report.settings.contains(option));
        let why = match (report.functions.is_empty(), selected) {
            (true, false) => "was called",
            (true, true) => "that only= and skip= select was called",
            (false, _) => "matches the filter",
        };
        writeln!(text, "no instrumented function {why}").expect("a string takes any text");
        return text;
    }
    let shown = view.limit.unwrap_or(functions.len()).min(functions.len());
    text.push_str(&legend(report, &functions[..shown]));
    if shown > 0 {
        table(&mut text, &functions[..shown], report.thread_time_ns);
    }
    let hint = if view.hint.is_empty() { String::new() } else { format!("; {}", view.hint) };
    match functions.len() - shown {
        0 => Ok(()),
        1 => writeln!(text, "… and 1 more function{hint}"),
        hidden => writeln!(text, "… and {hidden} more functions{hint}"),
    }
    .expect("a string takes any text");
    text
}

/// A summary of the run, in a few lines.
fn heading(report: &Report, spent: &Cost) -> String {
    let Report { pid, probes, samples, .. } = report;
    let command = shortened(&printable(&report.command.join(" ")), MAX_COMMAND_LENGTH);
    let processes = match report.processes {
        0 | 1 => String::new(),
        2 => " and 1 more process".to_owned(),
        more => format!(" and {} more processes", more - 1),
    };
    let duration = units::time(report.duration_ns as f64);
    let mut text = format!("fastinst: {command} (pid {pid}{processes}), {duration}\n");
    let toggles = units::count(report.toggles);
    let rate =
        units::rate(report.toggles, report.duration_ns).map_or(String::new(), |rate| format!(" ({rate})"));
    let (probes, samples) = (units::count(*probes), units::count(*samples));
    let stacks = match report.stacks {
        0 => String::new(),
        stacks => format!("{} stacks sampled, ", units::count(stacks)),
    };
    text.push_str(&format!("{probes} probes, {samples} calls timed, {stacks}{toggles} toggles{rate}"));
    if report.lost_samples > 0 {
        text.push_str(&format!(", {} timed calls lost", units::count(report.lost_samples)));
    }
    text.push('\n');
    text.push_str(&cost(spent, report.processes));
    // The budget is in the line before.
    if let Some((_, others)) =
        report.settings.split_once(':').filter(|(_, others)| *others != "counts=sampled")
    {
        text.push_str(&format!("settings: {}\n", printable(others)));
    }
    for note in &report.notes {
        text.push_str(&format!("note: {}\n", printable(note)));
    }
    text
}

/// The cost of profiling; empty if it was not measured.
fn cost(cost: &Cost, processes: u32) -> String {
    if cost.total_ns() == 0 {
        return String::new();
    }
    let percent = |fraction: f64| format!("{:.2}%", fraction * 100.0);
    let part = match (cost.fraction(), cost.error_of_fraction()) {
        (Some(fraction), Some(error)) if error > 0.0 => {
            format!("{} ±{}", percent(fraction), percent(error))
        }
        (Some(fraction), _) => percent(fraction),
        (None, _) => "nearly all".to_owned(),
    };
    let budget = cost
        .budget
        .map_or("no budget".to_owned(), |budget| format!("budget {}%", (budget * 1e8).round() / 1e6));
    let parts = [
        ("probes", cost.probes_ns),
        ("service", cost.service_ns),
        ("toggles", cost.toggles_ns),
        ("stacks", cost.stacks_ns),
        ("start-up", cost.startup_ns),
        ("report", cost.report_ns),
    ];
    let parts = parts.iter().filter(|(name, ns)| !["stacks", "report"].contains(name) || *ns > 0);
    let parts: Vec<String> = parts.map(|(name, ns)| format!("{name} {}", units::time(*ns as f64))).collect();
    let parts = parts.join(", ");
    let of_all = if processes > 1 { ", the sum of all processes" } else { "" };
    format!(
        "profiling cost {part} processor time, {budget} ({parts}), and {} of memory{of_all}\n",
        units::bytes(cost.memory_bytes)
    )
}

fn legend(report: &Report, functions: &[(&FunctionReport, String)]) -> String {
    let thread_time = units::time(report.thread_time_ns as f64);
    let mut text =
        format!("total includes callees; shares are of the {thread_time} that the program's threads lived; ");
    text.push_str("±, >=, <= and a-b are 95% intervals\n");
    if has_off_cpu(functions) {
        text.push_str("off-cpu: how long timed calls waited for a processor, and how many of them; not part of latencies\n");
    }
    let latencies: [fn(&Latency) -> Estimate; 4] =
        [|latency| latency.mean, |latency| latency.p50, |latency| latency.p90, |latency| latency.p99];
    let has_unknown = |function: &FunctionReport| {
        longest(function) == UNKNOWN || latencies.iter().any(|pick| latency(function, *pick) == UNKNOWN)
    };
    if functions.iter().any(|(function, _)| has_unknown(function)) {
        text.push_str(
            "-: not known: too few calls were timed (a longer run, a larger budget or fewer functions (only=) \
             shows more), none has returned, or the clock does not resolve them\n",
        );
    }
    text + "\n"
}

/// The rows of a table: functions and their names.
type Rows<'a> = [(&'a FunctionReport, String)];

fn has_off_cpu(functions: &Rows<'_>) -> bool {
    functions.iter().any(|(function, _)| function.off_cpu.is_some_and(|off_cpu| off_cpu.samples > 0))
}

fn table(text: &mut String, functions: &Rows<'_>, thread_time_ns: u64) {
    // A cell has a right-aligned part, followed by a left-aligned one.
    let parted = |header, cell: &dyn Fn(&FunctionReport) -> [String; 2]| {
        figures(header, functions.iter().map(|(function, _)| cell(function)).collect())
    };
    let whole = |header, alignment, cell: &dyn Fn(&FunctionReport) -> String| Column {
        header,
        alignment,
        cells: functions.iter().map(|(function, _)| cell(function)).collect(),
    };
    let right = |header, cell: &dyn Fn(&FunctionReport) -> String| whole(header, Alignment::Right, cell);
    let mut columns = vec![
        parted("calls", &|function| with_error(Some(&function.calls), &count)),
        parted("total", &|function| with_error(function.total_ns.as_ref(), &units::time)),
        right("share", &|function| share(function.total_ns.as_ref(), thread_time_ns)),
        parted("self", &|function| with_error(function.self_ns.as_ref(), &units::time)),
        right("share", &|function| share(function.self_ns.as_ref(), thread_time_ns)),
        right("mean", &|function| latency(function, |latency| latency.mean)),
        right("p50", &|function| latency(function, |latency| latency.p50)),
        right("p90", &|function| latency(function, |latency| latency.p90)),
        right("p99", &|function| latency(function, |latency| latency.p99)),
        right("max", &longest),
    ];
    if has_off_cpu(functions) {
        columns.push(right("off-cpu", &|function| match function.off_cpu {
            None => UNKNOWN.to_owned(),
            Some(off_cpu) if off_cpu.samples == 0 => "0".to_owned(),
            Some(off_cpu) => {
                format!("{} ({})", units::time(off_cpu.ns as f64), units::count(off_cpu.samples))
            }
        }));
    }
    if functions.iter().any(|(function, _)| function.object != functions[0].0.object) {
        columns.push(whole("object", Alignment::Left, &|function| {
            shortened(&printable(base_name(&function.object)), MAX_OBJECT_LENGTH)
        }));
    }
    let names: Vec<String> =
        functions.iter().map(|(_, name)| shortened_name(name, MAX_NAME_LENGTH)).collect();
    columns::write(text, &columns, ("function", &names));
}

/// A column of figures and their errors: the figures are right-aligned, the errors left-aligned.
pub(super) fn figures(header: &'static str, parts: Vec<[String; 2]>) -> Column {
    let tail = parts.iter().map(|[_, error]| width(error)).max().unwrap_or(0);
    let cells = parts.into_iter().map(|[value, error]| format!("{value}{error:<tail$}")).collect();
    Column { header, alignment: Alignment::Right, cells }
}

pub(super) fn count(value: f64) -> String {
    units::count(value.round() as u64)
}

/// A figure, with its error if it has one.
pub(super) fn with_error(estimate: Option<&Estimate>, unit: &dyn Fn(f64) -> String) -> [String; 2] {
    let Some(certainty) = estimate.map(Certainty::of) else {
        return [UNKNOWN.to_owned(), String::new()];
    };
    let error = certainty.error();
    [certainty.show(unit), if error.is_empty() { error } else { format!(" {error}") }]
}

/// A share. Its error is that of the time before it. A part does not exceed the whole, although its
/// estimate may.
pub(super) fn share(estimate: Option<&Estimate>, whole: u64) -> String {
    let most = |value: f64| value.min(whole as f64);
    let part = estimate.filter(|_| whole > 0).map(|part| Estimate {
        value: most(part.value),
        low: most(part.low),
        high: part.high.map(most),
    });
    let shown = part.map(|part| Certainty::of(&part).show(|part| units::share(part, whole)));
    shown.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// A figure of the latency, without its interval, which is in the JSON report.
fn latency(function: &FunctionReport, pick: fn(&Latency) -> Estimate) -> String {
    let shown = |latency: &Latency| {
        let known = latency.known(pick(latency))?;
        Some(match Certainty::of(&known) {
            Certainty::Exact(value) | Certainty::About(value, _) | Certainty::AtMost(value)
                if value < latency.resolution =>
            {
                format!("<{}", short_time(latency.resolution))
            }
            Certainty::Between(low, high) if low < latency.resolution => {
                Certainty::AtMost(high).show(units::time)
            }
            certainty => certainty.show(units::time),
        })
    };
    function.latency_ns.as_ref().and_then(shown).unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The longest call. If not every call was timed, there may be longer ones.
fn longest(function: &FunctionReport) -> String {
    let are_all_timed = function.calls.is_exact() && function.samples as f64 >= function.calls.value;
    match &function.latency_ns {
        Some(latency) if !are_all_timed && latency.max >= latency.resolution => {
            Certainty::AtLeast(latency.max).show(units::time)
        }
        Some(_) if !are_all_timed => UNKNOWN.to_owned(),
        _ => latency(function, |latency| Estimate::exact(latency.max)),
    }
}

/// Whole nanoseconds.
fn short_time(nanoseconds: f64) -> String {
    format!("{}ns", nanoseconds.ceil())
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Arguments and symbols are untrusted text: control characters are replaced by `?`.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

/// Shortens a text to at most `most` characters, with `…` in the middle.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let length = width(text);
    if length <= most {
        return text.to_owned();
    }
    let tail = (most - 1) / 2;
    let head = most - 1 - tail;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// Shortens a function's name to at most `most` characters: without its outer scopes, if that
/// suffices, else in the middle.
pub(super) fn shortened_name(name: &str, most: usize) -> String {
    if width(name) <= most {
        return name.to_owned();
    }
    let without_scopes = scopes(name).into_iter().map(|start| &name[start..]).find(|rest| width(rest) < most);
    without_scopes.map_or_else(|| shortened(name, most), |rest| format!("…{rest}"))
}

#[cfg(test)]
mod tests {
    use super::super::OffCpu;
    use super::super::model::tests::example;
    use super::*;

    #[track_caller]
    fn check(report: &Report, view: &View, expected: &str) {
        let text = render(report, view);
        assert_eq!(text, expected, "\n@@BEGIN\n{text}@@END");
    }

    fn limit(rows: usize) -> View {
        View { limit: Some(rows), hint: "--limit 0 shows them", ..View::default() }
    }

    #[test]
    fn a_table_with_every_kind_of_function() {
        check(
            &example(),
            &View::default(),
            "\
fastinst: ./app --size 10 (pid 4242), 2.13s
1204 probes, 13.4k calls timed, 11.3k toggles (5.31k/s)
profiling cost 1.10% ±0.12% processor time, budget 1% (probes 8.00ms, service 5.00ms, toggles 4.00ms, start-up 3.00ms, report 2.00ms), and 2.35MB of memory
total includes callees; shares are of the 2.14s that the program's threads lived; ±, >=, <= and a-b are 95% intervals
off-cpu: how long timed calls waited for a processor, and how many of them; not part of latencies
-: not known: too few calls were timed (a longer run, a larger budget or fewer functions (only=) shows more), none has returned, or the clock does not resolve them

     calls          total   share           self   share    mean     p50       p90       p99       max     off-cpu  object        function
──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     1         2.10s        98.1%     910ms ±12%   42.5%   2.10s   2.10s     2.10s     2.10s     2.10s           0  app           main
 12.3M ±9%     1.19s ±10%   55.4%     1.19s ±10%   55.4%  96.0ns  92.5ns     120ns     410ns  >=81.2us  12.4ms (3)  libhash.so.1  hash
>=5000      <=20.0ms       <=0.9%  >=12.0us          >0%  1.50us  1.23us    2.00us    10.0us  >=12.0us           -  app           Tree::insert
 3.00M ±3%  <=60.0ms       <=2.8%  <=60.0ms       <=2.8%   <20ns   <20ns  <=22.0ns  <=28.0ns  >=25.0ns           -  app           leaf
     1             -            -         -            -       -       -         -         -         -           -  app           fini
",
        );
    }

    #[test]
    fn the_legend_says_what_makes_unknown_figures_known() {
        let mut report = example();
        let unknown = "-: not known: too few calls were timed";
        report.functions.retain(|function| function.name == "hash");
        assert!(!render(&report, &View::default()).contains(unknown));
        let latency = report.functions[0].latency_ns.as_mut().unwrap();
        latency.p50 = Estimate { value: 92.5, low: 0.3, high: None };
        latency.p99 = Estimate::at_least(300.0);
        let text = render(&report, &View::default());
        assert!(text.contains(unknown) && text.contains("  96.0ns    -  120ns  >=300ns  >=81.2us"), "{text}");
    }

    #[test]
    fn a_lower_end_that_the_clock_does_not_resolve_is_not_shown() {
        let mut report = example();
        report.functions.retain(|function| function.name == "hash");
        let latency = report.functions[0].latency_ns.as_mut().unwrap();
        latency.p90 = Estimate::within(30.0, 15.0, 150.0);
        latency.p99 = Estimate::within(50.0, 25.0, 150.0);
        let text = render(&report, &View::default());
        assert!(text.contains("  92.5ns  <=150ns  25.0ns-150ns  >=81.2us"), "{text}");
    }

    #[test]
    fn one_object_and_nobody_preempted() {
        let mut report = example();
        report.functions.remove(0);
        report.processes = 20;
        report.cost.error = 0.0;
        report.cost.budget = None;
        let view = View { sort: SortKey::Calls, ..View::default() };
        check(
            &report,
            &view,
            "\
fastinst: ./app --size 10 (pid 4242 and 19 more processes), 2.13s
1204 probes, 13.4k calls timed, 11.3k toggles (5.31k/s)
profiling cost 1.10% processor time, no budget (probes 8.00ms, service 5.00ms, toggles 4.00ms, start-up 3.00ms, report 2.00ms), and 2.35MB of memory, the sum of all processes
total includes callees; shares are of the 2.14s that the program's threads lived; ±, >=, <= and a-b are 95% intervals
-: not known: too few calls were timed (a longer run, a larger budget or fewer functions (only=) shows more), none has returned, or the clock does not resolve them

     calls     total   share           self   share    mean     p50       p90       p99       max  function
───────────────────────────────────────────────────────────────────────────────────────────────────────────────
 3.00M ±3%  <=60.0ms  <=2.8%  <=60.0ms       <=2.8%   <20ns   <20ns  <=22.0ns  <=28.0ns  >=25.0ns  leaf
>=5000      <=20.0ms  <=0.9%  >=12.0us          >0%  1.50us  1.23us    2.00us    10.0us  >=12.0us  Tree::insert
     1             -       -         -            -       -       -         -         -         -  fini
     1         2.10s   98.1%     910ms ±12%   42.5%   2.10s   2.10s     2.10s     2.10s     2.10s  main
",
        );
    }

    #[test]
    fn the_cost_of_timing_every_call_may_exceed_what_is_left() {
        let mut report = example();
        report.cost.cpu_ns = report.cost.estimated_ns();
        let text = render(&report, &View::default());
        assert!(text.contains("profiling cost nearly all processor time, budget 1% (probes"), "{text}");
    }

    #[test]
    fn the_cost_includes_the_writing_of_the_table() {
        let text = render_in(&example(), &View::default(), || 40_000_000);
        assert!(text.contains("\nprofiling cost 3.00% ±0.12% processor time"), "{text}");
        assert!(text.contains("start-up 3.00ms, report 40.0ms)"), "{text}");
    }

    #[test]
    fn stacks_are_counted_and_cost_something() {
        let mut report = example();
        (report.stacks, report.cost.stacks_ns) = (1204, 5_000_000);
        let text = render(&report, &View::default());
        assert!(text.contains("13.4k calls timed, 1204 stacks sampled, 11.3k toggles"), "{text}");
        assert!(text.contains("toggles 4.00ms, stacks 5.00ms, start-up"), "{text}");
    }

    #[test]
    fn notes_lost_samples_and_a_limit() {
        let report = Report {
            lost_samples: 12,
            notes: vec!["the time stamp counter is not invariant".to_owned(), "two\nlines".to_owned()],
            ..example()
        };
        check(
            &report,
            &limit(1),
            "\
fastinst: ./app --size 10 (pid 4242), 2.13s
1204 probes, 13.4k calls timed, 11.3k toggles (5.31k/s), 12 timed calls lost
profiling cost 1.10% ±0.12% processor time, budget 1% (probes 8.00ms, service 5.00ms, toggles 4.00ms, start-up 3.00ms, report 2.00ms), and 2.35MB of memory
note: the time stamp counter is not invariant
note: two?lines
total includes callees; shares are of the 2.14s that the program's threads lived; ±, >=, <= and a-b are 95% intervals

calls  total  share        self  share   mean    p50    p90    p99    max  function
───────────────────────────────────────────────────────────────────────────────────
    1  2.10s  98.1%  910ms ±12%  42.5%  2.10s  2.10s  2.10s  2.10s  2.10s  main
… and 4 more functions; --limit 0 shows them
",
        );
        let last_line = |rows: usize| render(&report, &limit(rows)).lines().last().map(str::to_owned);
        assert_eq!(last_line(4).as_deref(), Some("… and 1 more function; --limit 0 shows them"));
        assert!(last_line(5).is_some_and(|line| line.ends_with("  fini")));
        let filter = Patterns::parse("filter", "Tree::*,object:libhash*").unwrap();
        let filtered = render(&report, &View { filter, ..View::default() });
        let rows: Vec<&str> = filtered.lines().skip_while(|line| !line.starts_with('─')).skip(1).collect();
        assert!(
            rows.len() == 2 && rows[0].ends_with("  hash") && rows[1].ends_with("  Tree::insert"),
            "{filtered}"
        );
    }

    #[test]
    fn nothing_measured() {
        let mut report =
            Report { functions: Vec::new(), duration_ns: 0, toggles: 0, samples: 0, ..example() };
        report.cost = Cost::default();
        check(
            &report,
            &View::default(),
            "\
fastinst: ./app --size 10 (pid 4242), 0ns
1204 probes, 0 calls timed, 0 toggles
no instrumented function was called
",
        );
        let selected = Report { settings: "budget=1%:only=nosuch".to_owned(), ..report };
        let text = render(&selected, &View::default());
        assert!(
            text.ends_with("\nno instrumented function that only= and skip= select was called\n"),
            "{text}"
        );
        let filter = Patterns::parse("filter", "nothing").unwrap();
        let text = render(&example(), &View { filter, ..View::default() });
        assert!(text.ends_with("\nno instrumented function matches the filter\n"), "{text}");
    }

    #[test]
    fn names_are_short_and_different() {
        let mut report = example();
        let insert = report.functions.pop().unwrap();
        report.functions.truncate(1);
        let of = |name: &str, location: Option<&str>, address| FunctionReport {
            name: name.to_owned(),
            location: location.map(str::to_owned),
            object: "/usr/lib/libhash.so.1".to_owned(),
            address,
            off_cpu: Some(OffCpu { samples: 12_345, ns: 1 }),
            ..insert.clone()
        };
        report.functions.extend([
            of("std::vector<std::pair<int, long>, std::allocator<int> >::push_back(int const&)", None, 1),
            of("init", Some("/src/a.c:12"), 2),
            of("init", Some("/src/b.c:120"), 3),
            of("put(int)", None, 4),
            of("put(long)", None, 5),
            of(&format!("{}end", "a_long_name_".repeat(9)), None, 6),
        ]);
        report.command = vec!["./\u{1b}[31mapp".to_owned(), "x".repeat(300)];
        check(&report, &View::default(), "\
fastinst: ./?[31mapp xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx (pid 4242), 2.13s
1204 probes, 13.4k calls timed, 11.3k toggles (5.31k/s)
profiling cost 1.10% ±0.12% processor time, budget 1% (probes 8.00ms, service 5.00ms, toggles 4.00ms, start-up 3.00ms, report 2.00ms), and 2.35MB of memory
total includes callees; shares are of the 2.14s that the program's threads lived; ±, >=, <= and a-b are 95% intervals
off-cpu: how long timed calls waited for a processor, and how many of them; not part of latencies

     calls          total   share           self  share    mean     p50     p90     p99       max         off-cpu  function
───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
 12.3M ±9%     1.19s ±10%   55.4%     1.19s ±10%  55.4%  96.0ns  92.5ns   120ns   410ns  >=81.2us      12.4ms (3)  hash
>=5000      <=20.0ms       <=0.9%  >=12.0us         >0%  1.50us  1.23us  2.00us  10.0us  >=12.0us  1.00ns (12.3k)  a_long_name_a_long_name_a_long_name_a_long_name_a_…long_name_a_long_name_a_long_name_a_long_name_end
>=5000      <=20.0ms       <=0.9%  >=12.0us         >0%  1.50us  1.23us  2.00us  10.0us  >=12.0us  1.00ns (12.3k)  init (a.c:12)
>=5000      <=20.0ms       <=0.9%  >=12.0us         >0%  1.50us  1.23us  2.00us  10.0us  >=12.0us  1.00ns (12.3k)  init (b.c:120)
>=5000      <=20.0ms       <=0.9%  >=12.0us         >0%  1.50us  1.23us  2.00us  10.0us  >=12.0us  1.00ns (12.3k)  put(int)
>=5000      <=20.0ms       <=0.9%  >=12.0us         >0%  1.50us  1.23us  2.00us  10.0us  >=12.0us  1.00ns (12.3k)  put(long)
>=5000      <=20.0ms       <=0.9%  >=12.0us         >0%  1.50us  1.23us  2.00us  10.0us  >=12.0us  1.00ns (12.3k)  std::vector<…>::push_back
");
    }

    #[test]
    fn the_longest_timed_call_is_a_lower_bound_unless_all_were_timed() {
        let of = |calls, samples, max| {
            let mut function = example().functions.swap_remove(0);
            (function.calls, function.samples) = (calls, samples);
            function.latency_ns.as_mut().unwrap().max = max;
            longest(&function)
        };
        assert_eq!(of(Estimate::exact(9.0), 9, 30.0), "30.0ns");
        assert_eq!(of(Estimate::exact(9.0), 9, 3.0), "<20ns");
        assert_eq!(of(Estimate::exact(9.0), 8, 30.0), ">=30.0ns");
        assert_eq!(of(Estimate::within(9.0, 8.0, 10.0), 9, 30.0), ">=30.0ns");
        assert_eq!(of(Estimate::at_least(9.0), 9, 3.0), "-");
    }

    #[test]
    fn times_below_the_resolution_are_marked() {
        let of = |estimate: Estimate| {
            let mut function = example().functions.swap_remove(0);
            function.latency_ns.as_mut().unwrap().mean = estimate;
            latency(&function, |latency| latency.mean)
        };
        assert_eq!(of(Estimate::exact(0.0)), "<20ns");
        assert_eq!(of(Estimate::within(19.9, 10.0, 30.0)), "<20ns");
        assert_eq!(of(Estimate::within(1.0, 0.0, 19.0)), "<20ns");
        assert_eq!(of(Estimate::within(20.0, 10.0, 30.0)), "20.0ns");
        assert_eq!(of(Estimate::within(1.0, 0.0, 100.0)), "<=100ns");
        assert_eq!(of(Estimate::at_least(1.0)), "-");
    }

    #[test]
    fn long_names_lose_their_outer_scopes() {
        assert_eq!(shortened_name("a::b::size", 10), "a::b::size");
        assert_eq!(shortened_name("a::b::size", 8), "…b::size");
        assert_eq!(shortened_name("a::b::size", 7), "…size");
        assert_eq!(shortened_name("a::b::size", 4), "a:…e");
    }

    #[test]
    fn shortening_counts_characters() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abc…fg");
        assert_eq!(shortened("abcdefg", 5), "ab…fg");
        assert_eq!(shortened("äöüßäöü", 5), "äö…öü");
    }
}
