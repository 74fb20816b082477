//! Shell completions and manual pages, generated from the definition of the command line.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Command, Subcommand};
use clap_complete::Shell;

/// Subcommands for installing a command.
#[derive(Debug, Subcommand)]
pub enum Generate {
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages, NAME.1 for each, into a directory, which is created if necessary
    Man {
        /// The directory, for example ~/.local/share/man/man1
        directory: PathBuf,
    },
}

/// The error that a file or standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {error}")]
pub struct GenerateError {
    place: String,
    #[source]
    error: io::Error,
}

impl Generate {
    /// Executes the subcommand; `command` is the complete command line.
    ///
    /// # Errors
    /// A file or standard output cannot be written.
    pub fn run(&self, mut command: Command) -> Result<(), GenerateError> {
        match self {
            Self::Completions { shell } => {
                let script = completions(*shell, &mut command);
                crate::print(|out| out.write_all(&script))
                    .map_err(|error| GenerateError { place: "standard output".to_owned(), error })
            }
            Self::Man { directory } => write_pages(command, directory)
                .map_err(|error| GenerateError { place: directory.display().to_string(), error }),
        }
    }
}

fn completions(shell: Shell, command: &mut Command) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, command, name, &mut script);
    script
}

fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(with_examples(command), directory)
}

/// Manual pages have a section for the text after the help, but none for the examples before it, so
/// these are moved.
fn with_examples(command: Command) -> Command {
    let texts = [command.get_before_help(), command.get_after_help()];
    let texts: Vec<String> = texts.into_iter().flatten().map(ToString::to_string).collect();
    command.after_help(texts.join("\n\n")).mut_subcommands(with_examples)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn command() -> Command {
        let verb = Command::new("measure").before_help("Examples:\n  tool measure a").arg(clap::arg!(<FILE>));
        Command::new("tool").before_help("Examples:\n  tool").subcommand(verb)
    }

    #[test]
    fn there_is_a_page_with_examples_for_the_command_and_for_each_subcommand() {
        let folder = tempfile::tempdir().unwrap();
        let man = Generate::Man { directory: folder.path().join("share/man1") };
        man.run(command()).unwrap();
        for name in ["tool.1", "tool-measure.1"] {
            let page = fs::read_to_string(folder.path().join("share/man1").join(name)).unwrap();
            assert!(page.contains("Examples:"), "{name}");
        }
    }

    #[test]
    fn the_help_lists_them() {
        let help = Generate::augment_subcommands(command()).render_help().to_string();
        assert!(help.contains("completions") && help.contains("Write the manual pages"), "{help}");
    }

    #[test]
    fn every_shell_has_completions_that_name_the_subcommands() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(*shell, &mut command())).unwrap();
            assert!(script.contains("measure"), "{shell}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Generate::Man { directory: file.path().join("man1") }.run(command()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{}/man1: ", file.path().display())), "{error}");
    }
}
