//! The table that people read: a heading, the notes, and a line per function.
//!
//! No colour and no terminal width: the text is the same on a terminal, in a file and in a pipe. The numbers take the
//! width they need, the names what is left of 120 columns; a longer name loses its middle.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use super::{FunctionReport, Latency, Report, units};

/// Columns that the table should fill at most.
const WIDTH: usize = 120;
/// A name is never made shorter than this, even if the table becomes wider than [`WIDTH`].
const SHORTEST_NAME: usize = 28;
/// Longest file name in the column `object`.
const LONGEST_OBJECT: usize = 20;
/// Spaces between two columns: one from the table's style, the rest as padding.
const GAP: usize = 2;

const HEADER: [&str; 11] =
    ["function", "object", "samples", "calls", "mean", "p50", "p90", "p99", "max", "total", "share"];
/// Columns on the left of the numbers.
const NAMES: usize = 2;

const LINE_UNDER_HEADER: TableStyle = NOTHING.header_separator(LineStyle::none().fill('─').junction('─'));

/// The report as text with at most `limit` functions, those with the longest totals; ends with a newline.
pub fn render(report: &Report, limit: Option<usize>) -> String {
    let mut text = heading(report);
    let functions = report.ranked();
    let shown = limit.unwrap_or(functions.len()).min(functions.len());
    if functions.is_empty() {
        text.push_str("no instrumented function was called\n");
        return text;
    }
    text.push_str("total includes callees; share is of the time that the threads lived\n\n");
    if shown > 0 {
        text.push_str(&table(&functions[..shown], report.thread_time_ns));
    }
    match functions.len() - shown {
        0 => {}
        1 => text.push_str("… and 1 more function\n"),
        hidden => writeln!(text, "… and {hidden} more functions").expect("a string takes any text"),
    }
    text
}

fn heading(report: &Report) -> String {
    let Report { pid, probes, samples, .. } = report;
    let command = shortened(&printable(&report.command.join(" ")), WIDTH - 40);
    let mut text = format!("fastinst: {command} (pid {pid}), {}\n", units::time(report.duration_ns as f64));
    let toggles = units::count(report.toggles);
    let rate =
        units::rate(report.toggles, report.duration_ns).map_or(String::new(), |rate| format!(" ({rate})"));
    let (probes, samples) = (units::count(*probes), units::count(*samples));
    text.push_str(&format!("{probes} probes, {toggles} toggles{rate}, {samples} samples"));
    if report.lost_samples > 0 {
        text.push_str(&format!(", {} more samples lost", units::count(report.lost_samples)));
    }
    text.push('\n');
    for note in &report.notes {
        text.push_str(&format!("note: {}\n", printable(note)));
    }
    text
}

fn table(functions: &[&FunctionReport], thread_time_ns: u64) -> String {
    let errors = functions.iter().map(|function| width(&units::error(function.calls.relative_error()))).max();
    let mut rows: Vec<[String; HEADER.len()]> =
        functions.iter().map(|function| row(function, errors.unwrap_or(0), thread_time_ns)).collect();
    let widest = |column: usize| {
        rows.iter().map(|row| width(&row[column])).max().unwrap_or(0).max(HEADER[column].len())
    };
    let others: usize = (1..HEADER.len()).map(|column| GAP + widest(column)).sum();
    let name_width = WIDTH.saturating_sub(others).max(SHORTEST_NAME);

    let mut table = Table::new();
    table.load_style(LINE_UNDER_HEADER).set_header(HEADER);
    for row in &mut rows {
        row[0] = shortened(&row[0], name_width);
        table.add_row(row.iter());
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding(if index == 0 { (0, 0) } else { (GAP as u16 - 1, 0) });
        column.set_cell_alignment(if index < NAMES { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.trim_fmt() + "\n"
}

/// The cells of a line. The errors of the calls are `error_width` wide, so that the calls themselves are aligned.
fn row(function: &FunctionReport, error_width: usize, thread_time_ns: u64) -> [String; HEADER.len()] {
    let latency = |pick: fn(&Latency) -> f64| {
        function.latency_ns.as_ref().map_or("-".to_owned(), |latency| units::time(pick(latency)))
    };
    let total =
        |text: &dyn Fn(f64) -> String| function.total_ns.map_or("-".to_owned(), |total| text(total.value));
    let calls = units::count(function.calls.value.round() as u64);
    let error = units::error(function.calls.relative_error());
    let object = function.object.rsplit('/').next().unwrap_or_default();
    [
        printable(&function.name),
        shortened(&printable(object), LONGEST_OBJECT),
        units::count(function.samples),
        if error_width == 0 { calls } else { format!("{calls} {error:<error_width$}") },
        latency(|latency| latency.mean.value),
        latency(|latency| latency.p50.value),
        latency(|latency| latency.p90.value),
        latency(|latency| latency.p99.value),
        latency(|latency| latency.max),
        total(&units::time),
        total(&|total| units::share(total.round() as u64, thread_time_ns)),
    ]
}

/// Arguments and symbols are foreign text: what would move the cursor or colour the terminal becomes `?`.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// At most `most` characters, with `…` in place of the middle.
fn shortened(text: &str, most: usize) -> String {
    let length = width(text);
    if length <= most {
        return text.to_owned();
    }
    let tail = (most - 1) / 2;
    let head = most - 1 - tail;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::example;
    use super::*;

    #[track_caller]
    fn check(report: &Report, limit: Option<usize>, expected: &str) {
        let text = render(report, limit);
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn a_table_with_every_kind_of_function() {
        check(
            &example(),
            None,
            "\
fastinst: ./app --size 10 (pid 4242), 2.13s
1204 probes, 11.3k toggles (5.31k/s), 13.4k samples
total includes callees; share is of the time that the threads lived

function           object        samples      calls    mean     p50     p90     p99     max   total  share
──────────────────────────────────────────────────────────────────────────────────────────────────────────
main               app                 1      1       2.10s   2.10s   2.10s   2.10s   2.10s   2.10s  98.1%
hash               libhash.so.1    12.3k  12.3M ±9%  96.0ns  92.5ns   120ns   410ns  81.2us   1.19s  55.4%
Tree::insert(int)  app              1100   5000 ±?   1.50us  1.23us  2.00us  10.0us  12.0us  7.50ms   0.4%
leaf               app               900  3.00M ±3%  9.00ns  8.00ns  11.0ns  14.0ns  25.0ns  30.0ms   1.4%
fini               app                 0      1           -       -       -       -       -       -      -
",
        );
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
            Some(1),
            "\
fastinst: ./app --size 10 (pid 4242), 2.13s
1204 probes, 11.3k toggles (5.31k/s), 13.4k samples, 12 more samples lost
note: the time stamp counter is not invariant
note: two?lines
total includes callees; share is of the time that the threads lived

function  object  samples  calls   mean    p50    p90    p99    max  total  share
─────────────────────────────────────────────────────────────────────────────────
main      app           1      1  2.10s  2.10s  2.10s  2.10s  2.10s  2.10s  98.1%
… and 4 more functions
",
        );
        check(
            &report,
            Some(0),
            "\
fastinst: ./app --size 10 (pid 4242), 2.13s
1204 probes, 11.3k toggles (5.31k/s), 13.4k samples, 12 more samples lost
note: the time stamp counter is not invariant
note: two?lines
total includes callees; share is of the time that the threads lived

… and 5 more functions
",
        );
        check(
            &report,
            Some(3),
            "\
fastinst: ./app --size 10 (pid 4242), 2.13s
1204 probes, 11.3k toggles (5.31k/s), 13.4k samples, 12 more samples lost
note: the time stamp counter is not invariant
note: two?lines
total includes callees; share is of the time that the threads lived

function           object        samples      calls    mean     p50     p90     p99     max   total  share
──────────────────────────────────────────────────────────────────────────────────────────────────────────
main               app                 1      1       2.10s   2.10s   2.10s   2.10s   2.10s   2.10s  98.1%
hash               libhash.so.1    12.3k  12.3M ±9%  96.0ns  92.5ns   120ns   410ns  81.2us   1.19s  55.4%
Tree::insert(int)  app              1100   5000 ±?   1.50us  1.23us  2.00us  10.0us  12.0us  7.50ms   0.4%
… and 2 more functions
",
        );
    }

    #[test]
    fn nothing_measured() {
        let report = Report { functions: Vec::new(), duration_ns: 0, toggles: 0, samples: 0, ..example() };
        check(
            &report,
            None,
            "\
fastinst: ./app --size 10 (pid 4242), 0ns
1204 probes, 0 toggles, 0 samples
no instrumented function was called
",
        );
    }

    #[test]
    fn long_names_lose_their_middle() {
        let mut report = example();
        report.functions.truncate(1);
        report.functions[0].name =
            format!("std::vector<{}>::push_back(Value const&)", "std::pair<int, long>, ".repeat(9));
        report.functions[0].object = "/usr/lib/libverylongnameofalibrary-core.so.12.1".to_owned();
        report.command = vec!["./\u{1b}[31mapp".to_owned(), "x".repeat(300)];
        check(&report, None, "\
fastinst: ./?[31mapp xxxxxxxxxxxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx (pid 4242), 2.13s
1204 probes, 11.3k toggles (5.31k/s), 13.4k samples
total includes callees; share is of the time that the threads lived

function                      object                samples      calls    mean     p50    p90    p99     max  total  share
──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
std::vector<st…Value const&)  libverylon…e.so.12.1    12.3k  12.3M ±9%  96.0ns  92.5ns  120ns  410ns  81.2us  1.19s  55.4%
");
    }

    #[test]
    fn shortening_counts_characters() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abc…fg");
        assert_eq!(shortened("abcdefg", 5), "ab…fg");
        assert_eq!(shortened("äöüßäöü", 5), "äö…öü");
    }
}
