//! The machine and the build to which figures apply.

use std::arch::asm;
use std::fmt;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;
pub use tests::{ensure_built, repo_root, target_dir};
use wordpatch::{FetchModel, tsc};

/// Information without which a figure is meaningless.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// Model, family and number of processors.
    pub cpu: String,
    /// Release of the kernel.
    pub kernel: String,
    /// The C compiler.
    pub compiler: String,
    /// The fetch model in force.
    pub fetch_model: String,
    /// Ticks of the time-stamp counter per nanosecond.
    pub ticks_per_ns: f64,
    /// Clock cycles of a busy core per tick.
    pub cycles_per_tick: f64,
    /// The commit, and the kind of build.
    pub build: String,
    /// When the run began.
    pub date: String,
    /// The load average at that time: other work on the machine disturbs measurements.
    pub load: String,
}

/// The compiler for generated programs: `CC`, or `cc`.
pub fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// The first line of a command's output; empty if it cannot be run.
fn line_of(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or_default().to_string()
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map_or("?", |(_, value)| value.trim())
    };
    let processors = info.lines().filter(|line| line.starts_with("processor")).count();
    let machine = if field("flags").split(' ').any(|flag| flag == "hypervisor") { "virtual" } else { "real" };
    let (model, family, number) = (field("model name"), field("cpu family"), field("model"));
    format!("{model}, family {family} model {number}, {processors} {machine} processors")
}

fn build() -> String {
    let git = |arguments: &[&str]| line_of(Command::new("git").arg("-C").arg(repo_root()).args(arguments));
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changes = if git(&["status", "--porcelain"]).is_empty() { "" } else { " with local changes" };
    format!("commit {commit}{changes}, {}", if cfg!(debug_assertions) { "NOT optimized" } else { "release" })
}

fn fetch_model() -> String {
    let FetchModel { window, t_max, wait, source } = FetchModel::in_force();
    let t_max = t_max.map_or("unknown".into(), |t| format!("{} ticks", t.0));
    format!("window {} bytes, T_max {t_max}, waits by {wait:?}, from {source:?}", window.bytes())
}

fn ticks_per_ns() -> f64 {
    let (ticks, instant) = (tsc::now(), Instant::now());
    while instant.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    tsc::now().wrapping_sub(ticks) as f64 / instant.elapsed().as_nanos() as f64
}

/// Measured with a chain of multiplications, each of which waits three cycles for the previous one,
/// on every processor since 2008.
fn cycles_per_tick() -> f64 {
    const ROUNDS: u64 = 200_000;
    const CYCLES: u64 = 4 * 3;
    let once = || {
        let begin = tsc::now();
        // SAFETY: registers only.
        unsafe {
            asm!(
                "2:",
                "imul {product}, {product}",
                "imul {product}, {product}",
                "imul {product}, {product}",
                "imul {product}, {product}",
                "dec {rounds}",
                "jnz 2b",
                product = inout(reg) 3_u64 => _,
                rounds = inout(reg) ROUNDS => _,
                options(nomem, nostack),
            );
        }
        (ROUNDS * CYCLES) as f64 / tsc::now().wrapping_sub(begin) as f64
    };
    (0..10).map(|_| once()).fold(0.0, f64::max)
}

impl Host {
    /// The current machine.
    pub fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let rounded = |number: f64| (number * 1000.0).round() / 1000.0;
        Self {
            load: read("/proc/loadavg"),
            cpu: cpu(),
            // Without the suffix that the builder of the kernel chose.
            kernel: read("/proc/sys/kernel/osrelease").split('-').next().unwrap_or_default().into(),
            compiler: line_of(Command::new(compiler()).arg("--version")),
            fetch_model: fetch_model(),
            ticks_per_ns: rounded(ticks_per_ns()),
            cycles_per_tick: rounded(cycles_per_tick()),
            build: build(),
            date: line_of(Command::new("date").args(["-u", "+%F %H:%M UTC"])),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cpu          {}", self.cpu)?;
        writeln!(f, "kernel       {}", self.kernel)?;
        writeln!(f, "compiler     {}", self.compiler)?;
        writeln!(f, "fetch model  {}", self.fetch_model)?;
        writeln!(
            f,
            "clock        {} ticks per ns, {} cycles per tick",
            self.ticks_per_ns, self.cycles_per_tick
        )?;
        writeln!(f, "build        {}", self.build)?;
        writeln!(f, "date         {}, load average {}", self.date, self.load)
    }
}
