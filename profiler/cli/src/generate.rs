//! Shell completions and manual pages, generated from the definition of the command line.

use std::fs;
use std::path::PathBuf;

use clap::{Command, Subcommand};
use clap_complete::Shell;

use crate::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Generate {
    /// Print the completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages, NAME.1 for each, into a folder, which is created if necessary
    #[command(hide = true)]
    Man {
        /// The folder, for example ~/.local/share/man/man1
        folder: PathBuf,
    },
}

/// `command` is the complete command line.
pub(crate) fn run(what: &Generate, mut command: Command) -> Result<(), Failure> {
    match what {
        Generate::Completions { shell } => {
            let name = command.get_name().to_owned();
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command, name, &mut script);
            crate::print(&script)?;
        }
        Generate::Man { folder } => {
            let written = fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(with_examples(command), folder));
            written
                .map_err(|error| Failure { code: 1, message: format!("{}: {error}", folder.display()) })?;
        }
    }
    Ok(())
}

/// Manual pages have a section for the text after the help, but none for the examples before it.
fn with_examples(command: Command) -> Command {
    let texts = [command.get_before_help(), command.get_after_help()];
    let texts: Vec<String> = texts.into_iter().flatten().map(ToString::to_string).collect();
    command.after_help(texts.join("\n\n")).mut_subcommands(with_examples)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn there_is_a_page_for_the_command_and_for_each_verb() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let man = Generate::Man { folder: folder.path().join("man1") };
        run(&man, Cli::command()).expect("the folder can be written");
        let page = |name: &str| fs::read_to_string(folder.path().join("man1").join(name)).expect("a page");
        assert!(page("fastinst.1").contains("Examples:"));
        assert!(page("fastinst-report.1").contains(".SH OPTIONS"));
    }

    #[test]
    fn every_shell_has_completions_that_name_the_verbs() {
        use clap::ValueEnum;
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "fastinst", &mut script);
            let script = String::from_utf8(script).expect("UTF-8");
            assert!(script.contains("report"), "{shell}");
        }
    }
}
