//! The width of help that is aligned by hand.

use clap::Command;

/// The maximum width at which clap prints help, whatever the width of the terminal.
const MAX_WIDTH: usize = 100;

/// The lines of the texts before and after the options, of this command and its subcommands, that
/// are wider than help can be: clap would break them, and their columns with them. Each is preceded
/// by the name of its command.
pub fn wide_lines(command: &Command) -> Vec<String> {
    let texts = [
        command.get_before_help(),
        command.get_before_long_help(),
        command.get_after_help(),
        command.get_after_long_help(),
    ];
    let mut found = Vec::new();
    for text in texts.into_iter().flatten() {
        let text = text.to_string();
        let wide = text.lines().filter(|line| line.chars().count() > MAX_WIDTH);
        found.extend(wide.map(|line| format!("{}: {line}", command.get_name())));
    }
    found.extend(command.get_subcommands().flat_map(wide_lines));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_lines_of_a_command_and_its_subcommands_are_found() {
        let [fits, wide] = [MAX_WIDTH, MAX_WIDTH + 1].map(|width| "\u{3bc}".repeat(width));
        let command = Command::new("outer")
            .before_help(format!("{fits}\n{wide}"))
            .subcommand(Command::new("inner").after_help(wide.clone()));
        assert_eq!(wide_lines(&command), [format!("outer: {wide}"), format!("inner: {wide}")]);
    }
}
