//! Java's call sites, which are designed to have their targets changed while threads call through
//! them: the peer of Figure 13.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use benches::distribution::Distribution;
use benches::host;
use benches::options::Options;
use benches::pace::Pace;
use benches::report::Table;

use crate::turn::{Measured, Run, Turn};
use crate::{executors, push};

/// The compiled program, and its additional results.
pub(crate) struct CallSites {
    folder: PathBuf,
    /// Site, executors, pace, and throughput after the toggles have ended, relative to that before
    /// they began.
    afterwards: RefCell<Vec<(&'static str, usize, Pace, f64)>>,
}

/// The program's name of each kind, and the displayed one.
const SITES: [(&str, &str); 2] =
    [("mutable", "Java MutableCallSite, syncAll"), ("volatile", "Java VolatileCallSite")];

impl CallSites {
    /// Compiles the program into the target directory; an error if there is no JDK.
    pub(crate) fn compiled() -> Result<Self, String> {
        let folder = host::target_dir().join("java");
        let source = host::repo_root().join("benches/scale/CallSites.java");
        let mut compiler = Command::new("javac");
        let compiled = compiler.arg("-d").arg(&folder).arg(source).output();
        let compiled = compiled.map_err(|error| format!("javac cannot be started: {error}"))?;
        if !compiled.status.success() {
            return Err(format!("javac fails: {}", String::from_utf8_lossy(&compiled.stderr)));
        }
        let found = Command::new("java").arg("-version").stderr(Stdio::null()).status();
        match found {
            Ok(status) if status.success() => Ok(Self { folder, afterwards: RefCell::default() }),
            Ok(status) => Err(format!("java -version: {status}")),
            Err(error) => Err(format!("java cannot be started: {error}")),
        }
    }

    /// One turn. A new virtual machine for each measurement: code that was toggled often enough is
    /// never compiled again.
    pub(crate) fn measure(&self, options: &Options, measured: &mut Vec<Measured>) {
        let paces = options.either(&Pace::ALL[..], &[Pace::ALL[0], Pace::Unlimited]);
        for (kind, site) in SITES {
            for executors in options.either(executors(options), &[1]) {
                for pace in paces {
                    let [off, on, toggled, after] =
                        self.run(kind, *executors, *pace, options.either(150, 50));
                    for (state, alone) in [&off, &on].into_iter().enumerate() {
                        assert_eq!(alone.executions[1 - state], 0, "{site} is left alone in state {state}");
                    }
                    let relative = after.throughput(*executors) / on.throughput(*executors);
                    self.afterwards.borrow_mut().push((site, *executors, *pace, relative));
                    push(measured, site, *executors, *pace, Turn { untoggled: [off, on], toggled });
                }
            }
        }
    }

    /// Off, on, toggled, and left alone again.
    fn run(&self, kind: &str, executors: usize, pace: Pace, ms: u64) -> [Run; 4] {
        let interval = pace.interval(1.0).expect("a pace");
        let mut command = Command::new("java");
        command.arg("-cp").arg(&self.folder).arg(format!("-Dsite={kind}")).arg("CallSites");
        command.args([executors.to_string(), interval.to_string(), ms.to_string()]);
        let output = command.stderr(Stdio::inherit()).output().expect("java has been started before");
        assert!(output.status.success(), "{command:?}: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let runs: Vec<Run> = text.lines().map(parsed).collect();
        runs.try_into().unwrap_or_else(|_| panic!("expected four lines, got:{text}"))
    }

    /// Whether throughput recovers.
    pub(crate) fn afterwards(&self) -> Table {
        let mut table = Table::new(
            "Java's call sites once the toggles have ended",
            "Throughput a tenth of a second later, relative to that before they began; medians over the turns.",
            &["site", "executors", "toggled at", "relative"],
        );
        let mut rest = self.afterwards.borrow().clone();
        while let Some((site, executors, pace, _)) = rest.first().copied() {
            let is_same = |row: &(&str, usize, Pace, f64)| (row.0, row.1, row.2) == (site, executors, pace);
            let relative = rest.iter().filter(|row| is_same(row)).map(|row| row.3).collect();
            rest.retain(|row| !is_same(row));
            let relative = Distribution::of(relative).median;
            table.push(vec![site.into(), executors.into(), pace.name().into(), relative.into()]);
        }
        table
    }
}

/// Parses a line of the program's output.
fn parsed(line: &str) -> Run {
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
    let [off, on, ns, processor_ns, toggles, elapsed_ns] = numbers[..] else {
        panic!("expected six numbers, got:{line}")
    };
    let [ns, processor_ns, elapsed_ns] = [ns, processor_ns, elapsed_ns].map(|ns| ns as f64);
    Run { executions: [off, on], ns, processor_ns, toggles, elapsed_ns }
}

/// The table if nothing could be measured.
pub(crate) fn absent(reason: &str) -> Table {
    let mut table = Table::new("Java's call sites", "Not measured: no JDK was found.", &["reason"]);
    table.push(vec![reason.trim().into()]);
    table
}
