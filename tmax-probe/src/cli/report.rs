//! `tmax-probe report`: the report of an earlier run.

use std::path::PathBuf;

use crate::report::{plot, text};
use crate::results::Results;
use clap::Args;

use super::calibrate::plot_path;
use super::{Failure, print};

/// Print the report of a run that was stored by --output
#[derive(Debug, Args)]
pub(super) struct Report {
    /// The results of tmax-probe, in JSON
    file: PathBuf,

    /// Plot the figures of the run
    #[arg(long, value_name = "FILE.svg|png", value_parser = plot_path)]
    plot: Option<PathBuf>,
}

pub(super) fn run(arguments: &Report) -> Result<u8, Failure> {
    let results = Results::read(&arguments.file)?;
    if let Some(path) = &arguments.plot {
        plot::draw(&results, path)?;
    }
    print(&text::render(&results))?;
    Ok(0)
}
