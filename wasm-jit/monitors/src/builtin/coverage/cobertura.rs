//! The XML format of Cobertura (its coverage-04.dtd): a package with a class for each file. It has
//! no time, so that equal reports are equal files.

use std::fmt::Write;

use super::lines::{Line, Lined, Lines};

pub(super) fn print(lines: &Lines) -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\" ?>\n\
         <!DOCTYPE coverage SYSTEM \"http://cobertura.sourceforge.net/xml/coverage-04.dtd\">\n",
    );
    let rates = |covered: [usize; 2], outcomes: [usize; 2]| {
        format!("line-rate=\"{}\" branch-rate=\"{}\" complexity=\"0\"", rate(covered), rate(outcomes))
    };
    let (covered, outcomes) = (lines.covered(), lines.outcomes());
    let all = rates(covered, outcomes);
    let _ = writeln!(
        out,
        "<coverage {all} lines-covered=\"{}\" lines-valid=\"{}\" branches-covered=\"{}\" \
         branches-valid=\"{}\" version=\"{}\" timestamp=\"0\">",
        covered[0],
        covered[1],
        outcomes[0],
        outcomes[1],
        env!("CARGO_PKG_VERSION"),
    );
    let _ =
        writeln!(out, "<sources><source>.</source></sources>\n<packages><package name=\"\" {all}><classes>");
    for (name, file) in &lines.files {
        let name = escaped(name);
        let rates = rates(file.covered(), file.outcomes());
        let _ = writeln!(out, "<class name=\"{name}\" filename=\"{name}\" {rates}>");
        methods(file, &mut out);
        out.push_str("<lines>\n");
        for (number, line) in &file.lines {
            print_line(*number, line, &mut out);
        }
        out.push_str("</lines></class>\n");
    }
    out.push_str("</classes></package></packages>\n</coverage>\n");
    out
}

fn methods(file: &Lined, out: &mut String) {
    out.push_str("<methods>\n");
    for (line, name, is_executed) in &file.functions {
        let hits = u8::from(*is_executed);
        let _ = writeln!(
            out,
            "<method name=\"{}\" signature=\"\" line-rate=\"{hits}\" branch-rate=\"{hits}\" complexity=\"0\">\
             <lines><line number=\"{line}\" hits=\"{hits}\"/></lines></method>",
            escaped(name)
        );
    }
    out.push_str("</methods>\n");
}

fn print_line(number: u32, line: &Line, out: &mut String) {
    let _ = write!(out, "<line number=\"{number}\" hits=\"{}\"", u8::from(line.is_covered));
    let [seen, all] = line.outcomes();
    if let Some(percent) = (seen * 100).checked_div(all) {
        let _ = write!(out, " branch=\"true\" condition-coverage=\"{percent}% ({seen}/{all})\"");
    }
    out.push_str("/>\n");
}

fn rate([covered, all]: [usize; 2]) -> f64 {
    if all == 0 { 1.0 } else { covered as f64 / all as f64 }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no representation of these characters.
            _ if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            _ => out.push(c),
        }
    }
    out
}
