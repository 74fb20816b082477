//! The tracefile format of lcov (geninfo(1)). Counts are 1 or 0.

use std::io::{self, Write};

use super::lines::Lines;

pub(super) fn write(lines: &Lines, out: &mut dyn Write) -> io::Result<()> {
    for (name, file) in &lines.files {
        // A record is one line.
        let name = name.replace(char::is_control, "?");
        writeln!(out, "TN:\nSF:{name}")?;
        for (line, function, _) in &file.functions {
            writeln!(out, "FN:{line},{function}")?;
        }
        for (_, function, is_executed) in &file.functions {
            writeln!(out, "FNDA:{},{function}", u8::from(*is_executed))?;
        }
        let executed = file.functions.iter().filter(|(.., is_executed)| *is_executed).count();
        writeln!(out, "FNF:{}\nFNH:{executed}", file.functions.len())?;
        for (number, branches) in &file.branches {
            for (block, (is_executed, outcomes)) in branches.iter().enumerate() {
                for (outcome, seen) in outcomes.iter().enumerate() {
                    let taken = if *is_executed { if *seen { "1" } else { "0" } } else { "-" };
                    writeln!(out, "BRDA:{number},{block},{outcome},{taken}")?;
                }
            }
        }
        let [seen, all] = file.outcomes();
        writeln!(out, "BRF:{all}\nBRH:{seen}")?;
        for (number, is_covered) in &file.lines {
            writeln!(out, "DA:{number},{}", u8::from(*is_covered))?;
        }
        let [covered, all] = file.covered();
        writeln!(out, "LF:{all}\nLH:{covered}\nend_of_record")?;
    }
    Ok(())
}
