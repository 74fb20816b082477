//! The tracefile format of lcov (geninfo(1)). Counts are 1 or 0.

use std::fmt::Write;

use super::lines::Lines;

pub(super) fn print(lines: &Lines) -> String {
    let mut out = String::new();
    for (name, file) in &lines.files {
        // A record is one line.
        let name = name.replace(char::is_control, "?");
        let _ = writeln!(out, "TN:\nSF:{name}");
        for (line, function, _) in &file.functions {
            let _ = writeln!(out, "FN:{line},{function}");
        }
        for (_, function, is_executed) in &file.functions {
            let _ = writeln!(out, "FNDA:{},{function}", u8::from(*is_executed));
        }
        let executed = file.functions.iter().filter(|(.., is_executed)| *is_executed).count();
        let _ = writeln!(out, "FNF:{}\nFNH:{executed}", file.functions.len());
        for (number, line) in &file.lines {
            for (block, (is_executed, outcomes)) in line.branches.iter().enumerate() {
                for (outcome, seen) in outcomes.iter().enumerate() {
                    let taken = if *is_executed { if *seen { "1" } else { "0" } } else { "-" };
                    let _ = writeln!(out, "BRDA:{number},{block},{outcome},{taken}");
                }
            }
        }
        let [seen, all] = file.outcomes();
        let _ = writeln!(out, "BRF:{all}\nBRH:{seen}");
        for (number, line) in &file.lines {
            let _ = writeln!(out, "DA:{number},{}", u8::from(line.is_covered));
        }
        let [covered, all] = file.covered();
        let _ = writeln!(out, "LF:{all}\nLH:{covered}\nend_of_record");
    }
    out
}
