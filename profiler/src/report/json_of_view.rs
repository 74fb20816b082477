//! The JSON form of a part of a report: the functions that a view selects, or the callers or
//! callees of one function.

use std::collections::HashMap;

use serde::Serialize;

use super::arcs::{self, Direction};
use super::json::{WrittenArc, by_key, lines, written, written_arc};
use super::text::View;
use super::{FunctionReport, Report};

/// As [`to_string`](super::json::to_string), with the functions that a view selects, in its order,
/// and the arcs to them.
pub fn render(report: &Report, view: &View) -> String {
    let mut functions = view.functions(report);
    functions.truncate(view.limit.unwrap_or(usize::MAX));
    let functions: Vec<_> = functions.into_iter().map(|(function, _)| function).collect();
    let mut selected = written(report, &report.run);
    let rank: HashMap<_, _> =
        functions.iter().enumerate().map(|(rank, function)| (function.key(), rank)).collect();
    let rank = |arc: &WrittenArc<'_>| rank.get(arc.callee_key).copied();
    selected.arcs.retain(|arc| rank(arc).is_some());
    // Stable: the arcs of a function stay in their order.
    selected.arcs.sort_by_key(rank);
    selected.functions = functions;
    lines(&selected, report.functions.len() + report.arcs.len())
}

/// The callers or callees of a function: the function, and the arcs from or to it, by decreasing
/// time.
pub fn render_arcs(report: &Report, function: &FunctionReport, direction: Direction, view: &View) -> String {
    #[derive(Serialize)]
    struct Of<'a> {
        function: &'a FunctionReport,
        #[serde(skip_serializing_if = "Option::is_none")]
        callers: Option<Vec<WrittenArc<'a>>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        callees: Option<Vec<WrittenArc<'a>>>,
    }
    let functions = report.ranked();
    let names = by_key(&functions);
    let chosen = arcs::of(report, function, direction);
    let shown = view.limit.unwrap_or(usize::MAX).min(chosen.len());
    let written: Vec<_> = chosen[..shown].iter().map(|(_, arc)| written_arc(arc, &names)).collect();
    let (callers, callees) = match direction {
        Direction::Callers => (Some(written), None),
        Direction::Callees => (None, Some(written)),
    };
    lines(&Of { function, callers, callees }, shown + 1)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::model::tests::example;
    use super::super::{SortKey, json};
    use super::*;
    use crate::filter::Patterns;

    #[test]
    fn a_view_selects_functions_and_the_arcs_to_them() {
        let report = example();
        let of = |view: &View| -> Value { serde_json::from_str(&render(&report, view)).unwrap() };
        let names = |value: &Value, of: &str| -> Vec<String> {
            let rows = value[of].as_array().unwrap();
            let name = |row: &Value| row.get("callee").unwrap_or(row)["name"].as_str().unwrap().to_owned();
            rows.iter().map(name).collect()
        };
        assert_eq!(render(&report, &View::default()), json::to_string(&report));
        let filter = Patterns::parse("filter", "hash,main").unwrap();
        let of_two = View { filter, sort: SortKey::Name, ..View::default() };
        let found = of(&of_two);
        assert_eq!(names(&found, "functions"), ["hash", "main"]);
        assert!(names(&found, "arcs").iter().all(|name| ["hash", "main"].contains(&name.as_str())));
        let found = of(&View { limit: Some(1), ..of_two });
        assert_eq!(names(&found, "functions"), ["hash"]);
        assert_eq!(names(&found, "arcs"), ["hash"]);
        assert_eq!(found["probes"], report.probes, "figures of the run stay those of the run");
    }

    #[test]
    fn callers_and_callees_are_written_as_arcs() {
        let report = example();
        let of = |name: &str, direction, limit| -> Value {
            let view = View { limit, ..View::default() };
            let function = report.function(name).unwrap();
            serde_json::from_str(&render_arcs(&report, function, direction, &view)).unwrap()
        };
        let callers = of("hash", Direction::Callers, None);
        assert_eq!(callers["function"]["name"], "hash");
        assert_eq!(callers["callers"][0]["caller"]["name"], "main");
        assert!(callers["callers"][0]["calls"]["low"].is_u64());
        assert_eq!(callers.get("callees"), None);
        let callees = of("main", Direction::Callees, Some(1));
        assert_eq!(callees["callees"].as_array().unwrap().len(), 1);
        assert_eq!(callees["callees"][0]["callee"]["name"], "hash");
        assert_eq!(of("leaf", Direction::Callers, None)["callers"], serde_json::json!([]));
    }
}
