//! The XML format of Cobertura (its coverage-04.dtd): a package with a class for each file. It has
//! no time, so that equal reports are equal files.

use std::io::{self, Write};

use super::lines::{self, Lined, Lines};

pub(super) fn write(lines: &Lines, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(
        b"<?xml version=\"1.0\" ?>\n\
          <!DOCTYPE coverage SYSTEM \"http://cobertura.sourceforge.net/xml/coverage-04.dtd\">\n",
    )?;
    let rates = |covered: [usize; 2], outcomes: [usize; 2]| {
        format!("line-rate=\"{}\" branch-rate=\"{}\" complexity=\"0\"", rate(covered), rate(outcomes))
    };
    let (covered, outcomes) = (lines.covered(), lines.outcomes());
    let all = rates(covered, outcomes);
    writeln!(
        out,
        "<coverage {all} lines-covered=\"{}\" lines-valid=\"{}\" branches-covered=\"{}\" \
         branches-valid=\"{}\" version=\"{}\" timestamp=\"0\">",
        covered[0],
        covered[1],
        outcomes[0],
        outcomes[1],
        env!("CARGO_PKG_VERSION"),
    )?;
    writeln!(out, "<sources><source>.</source></sources>\n<packages><package name=\"\" {all}><classes>")?;
    for (name, file) in &lines.files {
        let name = escaped(name);
        let rates = rates(file.covered(), file.outcomes());
        writeln!(out, "<class name=\"{name}\" filename=\"{name}\" {rates}>")?;
        write_methods(file, out)?;
        out.write_all(b"<lines>\n")?;
        for (number, is_covered) in &file.lines {
            let branches = file.branches.get(number).map_or(&[][..], |branches| branches);
            write_line(*number, *is_covered, lines::outcomes(branches), out)?;
        }
        out.write_all(b"</lines></class>\n")?;
    }
    out.write_all(b"</classes></package></packages>\n</coverage>\n")
}

fn write_methods(file: &Lined, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"<methods>\n")?;
    for (line, name, is_executed) in &file.functions {
        let hits = u8::from(*is_executed);
        writeln!(
            out,
            "<method name=\"{}\" signature=\"\" line-rate=\"{hits}\" branch-rate=\"{hits}\" complexity=\"0\">\
             <lines><line number=\"{line}\" hits=\"{hits}\"/></lines></method>",
            escaped(name)
        )?;
    }
    out.write_all(b"</methods>\n")
}

fn write_line(number: u32, is_covered: bool, [seen, all]: [usize; 2], out: &mut dyn Write) -> io::Result<()> {
    write!(out, "<line number=\"{number}\" hits=\"{}\"", u8::from(is_covered))?;
    if let Some(percent) = (seen * 100).checked_div(all) {
        write!(out, " branch=\"true\" condition-coverage=\"{percent}% ({seen}/{all})\"")?;
    }
    out.write_all(b"/>\n")
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
