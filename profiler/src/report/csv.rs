//! The functions of a report as comma-separated values (RFC 4180, but with line feeds): a header,
//! then a line for each function.
//!
//! An unknown figure, or a missing upper end of an interval, is an empty field.

use super::{Estimate, FunctionReport, Latency, Report, View, estimate};

type Field = fn(&FunctionReport) -> String;

/// The columns that are not estimates, before and after the estimates.
const NAMES: [(&str, Field); 5] = [
    ("name", |function| quoted(&function.name)),
    ("object", |function| quoted(&function.object)),
    ("address", |function| format!("{:#x}", function.address)),
    ("location", |function| quoted(function.location.as_deref().unwrap_or_default())),
    ("samples", |function| function.samples.to_string()),
];
const REST: [(&str, Field); 7] = [
    ("min_ns", |function| latency(function, |latency| tenths(latency.min, f64::floor))),
    ("max_ns", |function| latency(function, |latency| tenths(latency.max, f64::ceil))),
    ("below_resolution", |function| latency(function, |latency| latency.below_resolution.to_string())),
    ("recursive", |function| function.recursive.to_string()),
    ("open_calls", |function| function.open_calls.to_string()),
    ("off_cpu_samples", |function| optional(function.off_cpu.map(|off_cpu| off_cpu.samples))),
    ("off_cpu_ns", |function| optional(function.off_cpu.map(|off_cpu| off_cpu.ns))),
];

type Figure = fn(&FunctionReport) -> Option<Estimate>;

/// The estimates, with three columns each: `calls`, `calls_low`, `calls_high` and so on.
const ESTIMATES: [(&str, Figure); 7] = [
    ("calls", |function| Some(function.calls)),
    ("total_ns", |function| function.total_ns),
    ("self_ns", |function| function.self_ns),
    ("mean_ns", |function| known(function, |latency| latency.mean)),
    ("p50_ns", |function| known(function, |latency| latency.p50)),
    ("p90_ns", |function| known(function, |latency| latency.p90)),
    ("p99_ns", |function| known(function, |latency| latency.p99)),
];

/// The table of the functions selected by `view`.
#[must_use]
pub fn render(report: &Report, view: &View) -> String {
    let mut header: Vec<String> = NAMES.map(|(name, _)| name.to_owned()).to_vec();
    header.extend(
        ESTIMATES.iter().flat_map(|(name, _)| ["", "_low", "_high"].map(|end| format!("{name}{end}"))),
    );
    header.extend(REST.map(|(name, _)| name.to_owned()));
    let mut text = header.join(",") + "\n";
    let functions = view.functions(report);
    for (function, _) in functions.iter().take(view.limit.unwrap_or(usize::MAX)) {
        let mut fields: Vec<String> = NAMES.map(|(_, field)| field(function)).to_vec();
        for (_, figure) in ESTIMATES {
            let figure = figure(function).map(|figure| figure.rounded(10.0));
            let ends = figure.map(|Estimate { value, low, high }| [Some(value), Some(low), high]);
            fields.extend(ends.unwrap_or_default().map(optional));
        }
        fields.extend(REST.map(|(_, field)| field(function)));
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

fn known(function: &FunctionReport, pick: fn(&Latency) -> Estimate) -> Option<Estimate> {
    function.latency_ns.as_ref().and_then(|latency| latency.known(pick(latency)))
}

fn tenths(value: f64, direction: fn(f64) -> f64) -> String {
    estimate::rounded(value, 10.0, direction).to_string()
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

fn latency(function: &FunctionReport, field: impl Fn(&Latency) -> String) -> String {
    function.latency_ns.as_ref().map_or(String::new(), field)
}

fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::SortKey;
    use super::super::model::tests::example;
    use super::*;

    #[test]
    fn a_line_for_each_function() {
        let mut report = example();
        report.functions[4].name = "Tree::insert(int, \"x\")".to_owned();
        report.functions[4].latency_ns.as_mut().unwrap().p99 = Estimate::at_least(900.0);
        report.functions[4].calls = Estimate::at_least(5000.06);
        let view = View { sort: SortKey::Name, limit: Some(3), ..View::default() };
        let expected = "\
name,object,address,location,samples,calls,calls_low,calls_high,total_ns,total_ns_low,total_ns_high,\
self_ns,self_ns_low,self_ns_high,mean_ns,mean_ns_low,mean_ns_high,p50_ns,p50_ns_low,p50_ns_high,\
p90_ns,p90_ns_low,p90_ns_high,p99_ns,p99_ns_low,p99_ns_high,min_ns,max_ns,below_resolution,recursive,open_calls,\
off_cpu_samples,off_cpu_ns
\"Tree::insert(int, \"\"x\"\")\",/opt/app/bin/app,0x401200,,1100,5000,5000,,7500000,0,20000000,12000,12000,,\
1500,749.9,2250,1234,617,1851,2000,1000,3000,,,,900,12000,false,true,0,,
fini,/opt/app/bin/app,0x402200,,0,1,1,1,,,,,,,,,,,,,,,,,,,,,,false,0,,
hash,/usr/lib/libhash.so.1,0x7f0000001120,/src/hash.c:120,12340,12345678,11300000.4,13400000.2,\
1185650000,1100000000,1300000000,1185650000,1100000000,1300000000,96,94.1,98,92.5,90.6,94.4,120,117.6,122.4,\
410,401.8,418.2,81,81250,false,false,0,3,12400000
";
        assert_eq!(render(&report, &view), expected);
        let columns = |line: &str| line.replace("\"Tree::insert(int, \"\"x\"\")\"", "").matches(',').count();
        assert!(expected.lines().all(|line| columns(line) == columns(expected.lines().next().unwrap())));
    }
}
