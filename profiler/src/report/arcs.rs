//! Callers and callees of a function: the arcs of a report as a table.

use std::collections::HashMap;
use std::fmt::Write;

use super::columns::{self, Alignment, Column};
use super::text::{MAX_NAME_LENGTH, View, count, figures, printable, share, shortened_name, with_error};
use super::units;
use super::{Arc, Caller, Estimate, FunctionRef, FunctionReport, Report, names};
use crate::binary::symbol::{short, without_parameters};
use crate::error::Error;
use crate::filter::Patterns;

/// Maximum number of candidates in an error.
const CANDIDATES: usize = 10;

/// The end of the arcs that is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The functions that call the chosen function.
    Callers,
    /// The functions that the chosen function calls.
    Callees,
}

/// A way to match a function, by its properties and by its name in tables.
type Tier<'a> = dyn Fn(&FunctionReport, &str) -> bool + 'a;

impl Report {
    /// Finds the function that a user names: by its name in tables, by its name with or without
    /// parameters, or by a pattern that only one function matches.
    ///
    /// # Errors
    /// [`Error::UnknownFunction`] if there is no such function, [`Error::AmbiguousFunction`] if
    /// there are several.
    pub fn function(&self, name: &str) -> Result<&FunctionReport, Error> {
        let functions = self.ranked();
        let shown = names(&functions);
        let all = || functions.iter().copied().zip(&shown);
        let pattern = Patterns::parse("function", name).ok();
        let tiers: [&Tier<'_>; 3] = [
            &|function, shown| function.name == name || shown == name,
            &|function, _| without_parameters(&function.name) == name || short(&function.name) == name,
            &|function, _| pattern.as_ref().is_some_and(|pattern| pattern.match_report(function)),
        ];
        for tier in tiers {
            let found: Vec<_> = all().filter(|(function, shown)| tier(function, shown)).collect();
            match found[..] {
                [] => {}
                [(function, _)] => return Ok(function),
                _ => {
                    let candidates = listed(found.iter().map(|(_, shown)| shown.as_str()));
                    return Err(Error::AmbiguousFunction { name: name.to_owned(), candidates });
                }
            }
        }
        let part = name.to_lowercase();
        let similar =
            all().map(|(_, shown)| shown.as_str()).filter(|shown| shown.to_lowercase().contains(&part));
        Err(Error::UnknownFunction { name: name.to_owned(), similar: listed(similar) })
    }
}

/// Names separated by commas, truncated to a maximum.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let mut text = names[..names.len().min(CANDIDATES)].join(", ");
    if names.len() > CANDIDATES {
        let _ = write!(text, " and {} more", names.len() - CANDIDATES);
    }
    text
}

/// The arcs to or from a function, with the names of their other ends in tables, by decreasing
/// time.
pub(super) fn of<'a>(
    report: &'a Report,
    function: &FunctionReport,
    direction: Direction,
) -> Vec<(String, &'a Arc)> {
    let functions = report.ranked();
    let shown = names(&functions);
    let by_key: HashMap<FunctionRef, &String> =
        functions.iter().map(|function| function.key()).zip(&shown).collect();
    let name_of = |key: &FunctionRef| {
        by_key.get(key).map_or_else(|| format!("{:#x}", key.address), |name| (*name).clone())
    };
    let key = function.key();
    let mut arcs: Vec<(String, &Arc)> = report
        .arcs
        .iter()
        .filter_map(|arc| match direction {
            Direction::Callers if arc.callee == key => Some((caller_name(&arc.caller, &name_of), arc)),
            Direction::Callees if arc.caller == Caller::Function(key.clone()) => {
                Some((name_of(&arc.callee), arc))
            }
            _ => None,
        })
        .collect();
    let certain = |estimate: Option<Estimate>| estimate.map_or(-1.0, |estimate| estimate.low);
    arcs.sort_by(|(left_name, left), (right_name, right)| {
        let by_time = certain(right.total_ns).total_cmp(&certain(left.total_ns));
        by_time.then(right.calls.low.total_cmp(&left.calls.low)).then(left_name.cmp(right_name))
    });
    arcs
}

/// The table of the callers or callees of a function, by decreasing time; ends with a newline.
#[must_use]
pub fn render(report: &Report, function: &FunctionReport, direction: Direction, view: &View) -> String {
    let functions = report.ranked();
    let shown = names(&functions);
    let key = function.key();
    let named = functions.iter().zip(&shown).find(|(other, _)| other.key() == key);
    let name = named.map_or_else(|| format!("{:#x}", key.address), |(_, name)| name.clone());
    let arcs = of(report, function, direction);

    let figure = |estimate: Option<&Estimate>, unit| with_error(estimate, unit).concat();
    let calls = figure(Some(&function.calls), &count);
    let total = figure(function.total_ns.as_ref(), &units::time);
    let (ends, header) = match direction {
        Direction::Callers => ("callers of", "caller"),
        Direction::Callees => ("callees of", "callee"),
    };
    let mut text = format!("{ends} {name}: {calls} calls, {total} in all\n");
    if arcs.is_empty() {
        text.push_str("no call was observed\n");
        return text;
    }
    text.push_str("share is of this time; ±, >=, <= and a-b are 95% intervals\n\n");
    let limit = view.limit.unwrap_or(arcs.len()).min(arcs.len());
    let whole = function.total_ns.map_or(0, |total| total.value as u64);
    let arcs_shown = &arcs[..limit];
    let parted = |header, cell: &dyn Fn(&Arc) -> [String; 2]| {
        figures(header, arcs_shown.iter().map(|(_, arc)| cell(arc)).collect())
    };
    let shares = arcs_shown.iter().map(|(_, arc)| share(arc.total_ns.as_ref(), whole)).collect();
    let columns = [
        parted("calls", &|arc| with_error(Some(&arc.calls), &count)),
        parted("total", &|arc| with_error(arc.total_ns.as_ref(), &units::time)),
        Column { header: "share", alignment: Alignment::Right, cells: shares },
    ];
    let names: Vec<String> =
        arcs_shown.iter().map(|(name, _)| shortened_name(name, MAX_NAME_LENGTH)).collect();
    columns::write(&mut text, &columns, (header, &names));
    if limit < arcs.len() {
        let _ = writeln!(text, "… and {} more; {}", arcs.len() - limit, view.hint);
    }
    text
}

fn caller_name(caller: &Caller, name_of: &impl Fn(&FunctionRef) -> String) -> String {
    match caller {
        Caller::Function(key) => name_of(key),
        Caller::Other(name) => printable(name),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::example;
    use super::*;

    #[track_caller]
    fn check(function: &str, direction: Direction, expected: &str) {
        let mut report = example();
        let from_libc = Arc {
            caller: Caller::Other("[libc.so.6]".to_owned()),
            calls: Estimate::within(10.0, 0.0, 50.0),
            total_ns: Some(Estimate::within(1e6, 9e5, 1.2e6)),
            ..report.arcs[0].clone()
        };
        report.arcs.insert(0, from_libc);
        let function = report.function(function).unwrap();
        assert_eq!(render(&report, function, direction, &View::default()), expected);
    }

    #[test]
    fn callers_and_callees_with_their_part_of_the_time() {
        check(
            "hash",
            Direction::Callers,
            "\
callers of hash: 12.3M ±9% calls, 1.19s ±10% in all
share is of this time; ±, >=, <= and a-b are 95% intervals

    calls        total  share  caller
──────────────────────────────────────────
12.3M ±9%   1.19s ±10%   100%  main
 <=50      1.00ms ±20%   0.1%  [libc.so.6]
",
        );
        check(
            "main",
            Direction::Callees,
            "\
callees of main: 1 calls, 2.10s in all
share is of this time; ±, >=, <= and a-b are 95% intervals

    calls       total  share  callee
──────────────────────────────────────────
12.3M ±9%  1.19s ±10%  56.5%  hash
>=100          -           -  Tree::insert
",
        );
        check(
            "leaf",
            Direction::Callers,
            "callers of leaf: 3.00M ±3% calls, <=60.0ms in all\nno call was observed\n",
        );
    }

    #[test]
    fn functions_are_found_by_any_of_their_names() {
        let mut report = example();
        let mut add = |name: &str, address| {
            let function = FunctionReport { name: name.to_owned(), address, ..report.functions[1].clone() };
            report.functions.push(function);
        };
        add("put(int)", 1);
        add("put(long)", 2);
        add("void each<int>(int)", 3);
        let check = |name: &str, expected: Result<&str, &str>| {
            let found = report
                .function(name)
                .map(|function| function.name.as_str())
                .map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{name}");
        };
        check("main", Ok("main"));
        check("Tree::insert", Ok("Tree::insert(int)"));
        check("Tree::insert(int)", Ok("Tree::insert(int)"));
        check("put(long)", Ok("put(long)"));
        check("each<…>", Ok("void each<int>(int)"));
        check("each<int>", Ok("void each<int>(int)"));
        check("Tree*", Ok("Tree::insert(int)"));
        check("object:libhash*", Ok("hash"));
        check("put", Err("`put` is the name of several functions: put(int), put(long); write one of these"));
        check(
            "*in*",
            Err(
                "`*in*` is the name of several functions: main, Tree::insert, fini, put(int), each<…>; write one of these",
            ),
        );
        check("TREE", Err("no function `TREE` is in the report; there is Tree::insert"));
        check("nothing", Err("no function `nothing` is in the report"));
    }
}
