//! The command line.

use std::time::Duration;

use clap::{Parser, ValueEnum};
use wordpatch::FetchWindow;

/// Options of the program.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "stress",
    about = "Patches running code from all sides and looks for torn instructions, lost updates and hangs.",
    after_help = "Each scenario runs in a separate process: a crash is counted as a torn instruction.\n\
        Exit code 0: nothing was found. 1: something was, with a line for each on stderr. 2: wrong arguments.",
    before_help = "Examples:\n  \
        cargo run --release -p tests --bin stress                      every scenario, 2 seconds each\n  \
        cargo run --release -p tests --bin stress -- --long            until 10^9 executions and 10^8 toggles\n  \
        cargo run --release -p tests --bin stress -- --scenario fork --seconds 60 --seed 7\n  \
        cargo run --release -p tests --bin stress -- --scenario paper --t-max 0    shows that tears are found"
)]
pub(crate) struct Options {
    /// Only this scenario (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub(crate) scenario: Vec<String>,

    /// Duration of each scenario
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Ends each scenario earlier, after this many toggles
    #[arg(long, value_name = "N")]
    pub(crate) toggles: Option<u64>,

    /// Rounds of 20 seconds for each scenario, until there were 10^9 executions and 10^8 toggles in
    /// total
    #[arg(long, conflicts_with_all = ["seconds", "toggles"])]
    pub(crate) long: bool,

    /// Seed of random choices; the order of threads is not deterministic
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Forces a T_max, in TSC ticks, and waits for it; if it is too small, straddlers tear
    #[arg(long, value_name = "TICKS")]
    pub(crate) t_max: Option<u32>,

    /// Forces a fetch window, in bytes: 8, 16, 32 or 64; if it is larger than this processor's,
    /// single stores tear
    #[arg(long, value_name = "BYTES", value_parser = window)]
    pub(crate) window: Option<FetchWindow>,

    /// Injects a defect, which must be found
    #[arg(long, value_name = "NAME")]
    pub(crate) defect: Option<Defect>,

    /// How text is made writable
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Text::Private)]
    pub(crate) text: Text,

    /// Runs a debugger that copies pages of the text all the time: one page may then be writable
    /// and executable
    #[arg(long)]
    pub(crate) debugger: bool,

    /// Seconds without progress after which a thread counts as hung
    #[arg(long, value_name = "N", default_value_t = 30.0, value_parser = seconds)]
    pub(crate) patience: f64,

    /// Prints JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// Runs the one scenario in this process: for use with a debugger
    #[arg(long, requires = "scenario")]
    pub(crate) in_process: bool,
}

/// How text is made writable, other than temporarily at the address where it is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Text {
    /// Mapped privately, so that a debugger can write it
    Private,
    /// Mapped shared
    Alias,
}

/// A defect to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Defect {
    /// A thread stores bytes that it loaded earlier
    Overwrite,
    /// A thread writes other instructions byte by byte, and restores them
    Tear,
    /// A patch is started and never finished
    Lock,
    /// A page is mapped writable and executable
    Writable,
    /// A thread stops
    Hang,
    /// Probes are switched off that must count
    Switch,
    /// Modules are kept
    Leak,
}

fn seconds(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|seconds| (0.0..1e6).contains(seconds));
    parsed.ok_or_else(|| "a number of seconds".to_owned())
}

fn window(text: &str) -> Result<FetchWindow, String> {
    let window = text.parse().ok().and_then(FetchWindow::from_bytes);
    window.ok_or_else(|| "8, 16, 32 or 64".to_owned())
}

impl Options {
    /// Duration of each scenario in one round.
    pub(crate) fn time(&self) -> Duration {
        const LONG: Duration = Duration::from_secs(20);
        if self.long { LONG } else { Duration::from_secs_f64(self.seconds) }
    }
}
