//! Support shared by the tests: building the product and the fixture programs, running a program
//! with a time limit, reading reports.
//!
//! A test of the preload has four steps: [`compile`] a fixture, [`run`] it without the preload, run
//! it [`profiled`], compare the two [`Run`]s and inspect the [`Report`]s. The format of every
//! report is checked ([`Report::check`]) when it is read.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, process, thread};

use serde_json::Value;

/// Compiles the program of the guide to the Rust crates.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rust-api.md")]
mod rust_api {}

/// Compiles and runs the programs of the guide to embedding the WebAssembly engine.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embedding.md")]
mod embedding {}

/// Time after which a fixture counts as hung. On an idle machine, all of them end within three
/// seconds.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Whether tests run in their long form: with `LONG_TESTS=1` in the environment.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("LONG_TESTS").is_some()
}

/// The root directory of the workspace.
#[must_use]
pub fn repo_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace").to_path_buf()
}

/// Cargo's target directory.
#[must_use]
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo_root().join("target"), PathBuf::from)
}

/// The directory of `libfastinst.so` and `fastinst`.
#[must_use]
pub fn target_release_dir() -> PathBuf {
    target_dir().join("release")
}

/// Builds the product once per process, and returns the path of `libfastinst.so`.
///
/// # Panics
/// If the build fails; cargo's own messages are on stderr.
pub fn ensure_preload() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| ensure_built().join("libfastinst.so"))
}

/// Builds the product once per process, and returns the path of `wasm-jit`.
///
/// # Panics
/// As [`ensure_preload`].
pub fn ensure_wasm_jit() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| ensure_built().join("wasm-jit"))
}

/// Builds all programs, libraries and examples once per process, except those of wordpatch, and
/// returns their directory.
///
/// # Panics
/// As [`ensure_preload`].
pub fn ensure_built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let script = repo_root().join("scripts/build.sh");
        let mut command = Command::new(script);
        let status = command.args(["--quiet", "--target-dir"]).arg(target_dir()).status();
        let status = status.expect("the script can be started");
        assert!(status.success(), "the release build failed: {status}");
        target_release_dir()
    })
}

/// The output of `readelf` for the dynamic section of a library.
pub fn dynamic_tags(library: &Path) -> String {
    let output = Command::new("readelf").arg("-dW").arg(library).output().expect("readelf is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The version of the workspace in the form used by the C headers.
pub fn version_number() -> u32 {
    let parts = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse::<u32>().expect("a number"));
    parts.fold(0, |number, part| 1_000 * number + part)
}

/// A compiler family. C++ sources are compiled by its C++ driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compiler {
    /// gcc and g++.
    Gcc,
    /// clang and clang++.
    Clang,
}

impl Compiler {
    fn command(self, source: &Path) -> &'static str {
        match (self, source.extension() == Some(OsStr::new("cpp"))) {
            (Compiler::Gcc, false) => "gcc",
            (Compiler::Gcc, true) => "g++",
            (Compiler::Clang, false) => "clang",
            (Compiler::Clang, true) => "clang++",
        }
    }
}

/// The flags of every fixture; [`compile`] adds those of its caller.
const FIXTURE_FLAGS: [&str; 6] =
    ["-finstrument-functions", "-pthread", "-g1", "-D_GNU_SOURCE", "-Wall", "-Wextra"];

/// Compiles and links one source file of `tests/` with -finstrument-functions, and returns the
/// binary in `target/fixtures/`.
///
/// The binary's name contains a hash of the compiler, the flags, the source and the headers in its
/// directory; an existing binary is not rebuilt.
///
/// # Panics
/// If the compiler refuses the source or reports a warning: fixtures have none.
#[must_use]
pub fn compile(source: &str, flags: &[&str], compiler: Compiler) -> PathBuf {
    let source = repo_root().join("tests").join(source);
    let command = compiler.command(&source);
    let mut hasher = DefaultHasher::new();
    (command, FIXTURE_FLAGS, flags).hash(&mut hasher);
    fs::read(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display())).hash(&mut hasher);
    for header in headers_of(&source) {
        fs::read(header).expect("a header can be read").hash(&mut hasher);
    }
    let folder = target_dir().join("fixtures");
    let stem = source.file_stem().expect("a source has a name").to_string_lossy();
    let binary = folder.join(format!("{stem}-{command}-{:016x}", hasher.finish()));
    if binary.exists() {
        return binary;
    }
    // Written under another name first: tests in other threads and processes may need the same
    // binary.
    static ATTEMPT: AtomicU32 = AtomicU32::new(0);
    let unfinished =
        folder.join(format!("{stem}-{}-{}.new", process::id(), ATTEMPT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&folder).expect("target/fixtures can be made");
    let output = Command::new(command)
        .args(FIXTURE_FLAGS)
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&unfinished)
        .output()
        .unwrap_or_else(|error| panic!("{command} (scripts/install-packages.sh installs it): {error}"));
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && messages.is_empty(),
        "{command} {flags:?} {}:\n{messages}",
        source.display()
    );
    fs::rename(&unfinished, &binary).expect("a binary can be renamed");
    binary
}

fn headers_of(source: &Path) -> BTreeSet<PathBuf> {
    let folder = source.parent().expect("a source is in a folder");
    let entries = fs::read_dir(folder)
        .expect("the folder can be read")
        .map(|entry| entry.expect("an entry can be read").path());
    entries.filter(|path| path.extension() == Some(OsStr::new("h"))).collect()
}

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Run {
    /// The process id of the program.
    pub pid: u32,
    /// The program's standard output.
    pub stdout: Vec<u8>,
    /// The program's standard error.
    pub stderr: String,
    /// The program's exit status.
    pub status: ExitStatus,
}

impl Run {
    /// Lines on stderr that the library wrote: each starts with `fastinst: `.
    pub fn own_lines(&self) -> impl Iterator<Item = &str> {
        self.stderr.lines().filter(|line| line.starts_with("fastinst: "))
    }

    /// Asserts that this run had the same standard output as `other`, byte for byte, and the same
    /// exit status.
    ///
    /// # Panics
    /// If they differ; `what` names the run in the message, with the position of the first
    /// difference.
    pub fn assert_same(&self, other: &Run, what: &str) {
        assert_eq!(self.status, other.status, "{what}: ended differently; stderr:\n{}", self.stderr);
        if self.stdout != other.stdout {
            let at =
                self.stdout.iter().zip(&other.stdout).take_while(|(ours, theirs)| ours == theirs).count();
            let around = |bytes: &[u8]| {
                String::from_utf8_lossy(
                    &bytes[at.saturating_sub(40).min(bytes.len())..(at + 40).min(bytes.len())],
                )
                .into_owned()
            };
            panic!(
                "{what}: stdout differs from byte {at} on: {:?} instead of {:?}; stderr:\n{}",
                around(&self.stdout),
                around(&other.stdout),
                self.stderr
            );
        }
    }
}

/// Runs a command with empty input until it ends, for at most [`TIME_LIMIT`].
///
/// # Panics
/// If the command cannot be started or does not end in time: it is killed with its process group,
/// and the message contains its output and the states of its threads.
pub fn run(command: &mut Command) -> Run {
    run_within(command, TIME_LIMIT)
}

/// As [`run`], with another time limit.
///
/// # Panics
/// As [`run`].
pub fn run_within(command: &mut Command, limit: Duration) -> Run {
    // Files rather than pipes: a grandchild that keeps them open cannot delay us.
    let (mut stdout, mut stderr) = (temporary_file(), temporary_file());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("a file can be cloned"))
        .stderr(stderr.try_clone().expect("a file can be cloned"))
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = child.id();
    let (sender, ended) = mpsc::channel();
    let waiter = thread::spawn(move || sender.send(child.wait()));
    let Ok(status) = ended.recv_timeout(limit) else {
        let threads = threads_of(pid);
        // SAFETY: kill has no effect on memory; the group is that of our own child, which has not
        // been waited for.
        unsafe { libc::kill(-pid.cast_signed(), libc::SIGKILL) };
        let _ = waiter.join();
        panic!(
            "{command:?} did not end in {limit:?}\nthreads:\n{threads}stdout:\n{}\nstderr:\n{}",
            String::from_utf8_lossy(&content(&mut stdout)),
            String::from_utf8_lossy(&content(&mut stderr))
        );
    };
    Run {
        pid,
        stdout: content(&mut stdout),
        stderr: String::from_utf8_lossy(&content(&mut stderr)).into_owned(),
        status: status.expect("a child can be waited for"),
    }
}

fn temporary_file() -> File {
    tempfile::tempfile().expect("a temporary file can be made")
}

fn content(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file can be read");
    bytes
}

/// Name, state and system call of each thread of a process, to diagnose a deadlock.
fn threads_of(pid: u32) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let part = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let status = part("status");
        let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("State: unknown");
        let _ = writeln!(text, "  {} {} syscall {}", part("comm").trim(), state, part("syscall").trim());
    }
    text
}

/// One report file in the JSON format, version 3, with demangled names.
#[derive(Debug)]
pub struct Report {
    /// The name of the file, without its directory.
    pub file_name: String,
    /// The contents of the file.
    pub json: Value,
}

impl Report {
    /// Reads and checks a report.
    ///
    /// # Panics
    /// If the file is missing or malformed.
    #[must_use]
    pub fn read(path: &Path) -> Report {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut json: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}:\n{text}", path.display()));
        for function in json["functions"].as_array_mut().into_iter().flatten() {
            let name = function["name"].as_str().map(profiler::binary::symbol::demangle);
            function["name"] = name.into();
        }
        let report =
            Report { file_name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(), json };
        report.check();
        report
    }

    /// Asserts properties of every report: the fields of version 3, valid types, ordered intervals
    /// and quantiles.
    ///
    /// # Panics
    /// If a property does not hold.
    pub fn check(&self) {
        let number = |value: &Value, key: &str| {
            value[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{}: {key} is not a number in {value}", self.file_name))
        };
        assert_eq!(self.json["version"], 3, "{}", self.file_name);
        assert!(!self.json["command"].is_null(), "{}: no command", self.file_name);
        for key in ["pid", "processes", "duration_ns", "thread_time_ns", "probes", "toggles", "samples"] {
            assert!(number(&self.json, key) >= 0.0, "{}: {key} is negative", self.file_name);
        }
        for function in self.functions() {
            assert!(
                function["name"].is_string() && function["object"].is_string(),
                "{}: {function}",
                self.file_name
            );
            assert!(!function["address"].is_null(), "{}: no address in {function}", self.file_name);
            let estimate = |estimate: &Value| {
                let (value, low) = (number(estimate, "value"), number(estimate, "low"));
                let high = if estimate["high"].is_null() { f64::INFINITY } else { number(estimate, "high") };
                assert!(
                    0.0 <= low && low <= value && value <= high,
                    "{}: {estimate} in {function}",
                    self.file_name
                );
                value
            };
            let calls = estimate(&function["calls"]);
            ["total_ns", "self_ns"].iter().filter(|key| !function[*key].is_null()).for_each(|key| {
                estimate(&function[key]);
            });
            if number(function, "samples") == 0.0 {
                continue;
            }
            assert!(calls >= number(function, "samples"), "{}: {function}", self.file_name);
            let latency = &function["latency_ns"];
            let [min, max] = ["min", "max"].map(|key| number(latency, key));
            // Null if nothing is known.
            let known = |key: &str| (!latency[key].is_null()).then(|| estimate(&latency[key]));
            let quantiles = ["p50", "p90", "p99"].into_iter().filter_map(known);
            let sorted: Vec<f64> = [min].into_iter().chain(quantiles).chain([max]).collect();
            // Lower bounds are rounded down, other figures to the nearest tenth.
            let is_sorted = sorted.is_sorted_by(|one, next| *one <= next + 0.1 + 1e-6);
            assert!(is_sorted, "{}: quantiles out of order in {function}", self.file_name);
            let mean = known("mean");
            assert!(
                mean.is_none_or(|mean| min <= mean + 0.1 + 1e-6 && mean <= max),
                "{}: mean out of range in {function}",
                self.file_name
            );
        }
        for arc in self.json["arcs"].as_array().unwrap_or_else(|| panic!("{}: no arcs", self.file_name)) {
            let named = |end: &str| arc[end]["name"].is_string();
            assert!(named("caller") && named("callee"), "{}: {arc}", self.file_name);
        }
    }

    /// The entries of the report's function table.
    pub fn functions(&self) -> impl Iterator<Item = &Value> {
        self.json["functions"].as_array().unwrap_or_else(|| panic!("{}: no functions", self.file_name)).iter()
    }

    /// The entry of a function, by its demangled name without parameters. If several functions have
    /// this name (the same static function in two objects), the one with the most samples.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<&Value> {
        self.functions()
            .filter(|function| base_name(function) == name)
            .max_by_key(|function| function["samples"].as_u64())
    }

    /// The number of samples of a function; 0 if it is not in the report.
    #[must_use]
    pub fn samples(&self, name: &str) -> u64 {
        self.function(name).and_then(|function| function["samples"].as_u64()).unwrap_or(0)
    }

    /// A quantile (`min`, `p50` ...) or the mean of a function's latency, in ns; for an estimate,
    /// its value. `None` if nothing is known of it.
    ///
    /// # Panics
    /// If the report has no latency of this function.
    #[must_use]
    pub fn latency_ns(&self, name: &str, key: &str) -> Option<f64> {
        let latency = self.function(name).map(|function| &function["latency_ns"]);
        let latency = latency.filter(|latency| latency.is_object());
        let latency = latency.unwrap_or_else(|| panic!("{}: no latency of {name}", self.file_name));
        latency[key].as_f64().or(latency[key]["value"].as_f64())
    }
}

/// A demangled name without its parameters: `(anonymous namespace)::f(int)` becomes
/// `(anonymous namespace)::f`.
fn base_name(function: &Value) -> &str {
    const ANONYMOUS: &str = "(anonymous namespace)";
    let name = function["name"].as_str().unwrap_or_default();
    let after = if name.starts_with(ANONYMOUS) { ANONYMOUS.len() } else { 0 };
    name[after..].find('(').map_or(name, |length| &name[..after + length])
}

/// A profiled run and the reports of all its processes.
#[derive(Debug)]
pub struct Profiled {
    /// The result of the program itself.
    pub run: Run,
    /// The reports of the process and of its children, by file name.
    pub reports: Vec<Report>,
}

impl Profiled {
    /// The report of the process that was started, by its process id. Its file has the plain name
    /// unless a child, which does not know its parent's report, was faster.
    ///
    /// # Panics
    /// If there is no such report.
    #[must_use]
    pub fn report(&self) -> &Report {
        self.reports.iter().find(|report| report.json["pid"] == self.run.pid).unwrap_or_else(|| {
            let others: Vec<&str> = self.reports.iter().map(|report| report.file_name.as_str()).collect();
            let Run { pid, status, stderr, .. } = &self.run;
            panic!("no report of process {pid} ({status}) among {others:?}; stderr:\n{stderr}")
        })
    }

    /// The reports in which a function has samples.
    pub fn with_samples_of(&self, name: &str) -> impl Iterator<Item = &Report> {
        self.reports.iter().filter(move |report| report.samples(name) > 0)
    }
}

/// A command that runs a binary with no variables of the profiler in its environment.
#[must_use]
pub fn bare(binary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(args).env_remove("LD_PRELOAD").env_remove("FASTINST_OPTIONS");
    command
}

/// A command that runs a binary under the preload, with this value of `FASTINST_OPTIONS`.
#[must_use]
pub fn preloaded(binary: &Path, args: &[&str], options: &str) -> Command {
    let mut command = bare(binary, args);
    command.env("LD_PRELOAD", ensure_preload()).env("FASTINST_OPTIONS", options);
    command
}

/// Runs a binary under the preload with JSON output, and reads the reports of its process and of
/// all its children. `options` are further options, or empty.
///
/// # Panics
/// If the program hangs, or a report is malformed.
#[must_use]
pub fn profiled(binary: &Path, args: &[&str], options: &str) -> Profiled {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let output = format!("output={}", folder.path().join("report.json").display());
    let options = if options.is_empty() { output } else { format!("{output}:{options}") };
    let run = run(&mut preloaded(binary, args, &options));
    Profiled { run, reports: reports_in(folder.path()) }
}

/// All reports in a directory, by file name.
///
/// # Panics
/// If a report is malformed.
#[must_use]
pub fn reports_in(folder: &Path) -> Vec<Report> {
    let entries = fs::read_dir(folder)
        .expect("the folder can be read")
        .map(|entry| entry.expect("an entry can be read").path());
    let mut reports: Vec<Report> = entries
        .filter(|path| path.extension() == Some(OsStr::new("json")))
        .map(|path| Report::read(&path))
        .collect();
    reports.sort_by(|left, right| left.file_name.cmp(&right.file_name));
    reports
}

/// Processes that use as much processor time as they can get, until they are dropped.
#[derive(Debug)]
pub struct Competitors(Vec<Child>);

impl Competitors {
    /// Starts this many processes, after everything that tests need was built.
    ///
    /// # Panics
    /// If a build fails, or a process cannot be started.
    #[must_use]
    pub fn start(number: usize) -> Self {
        ensure_built();
        let spin = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh can be run");
        Self((0..number).map(spin).collect())
    }
}

impl Drop for Competitors {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A process that has ended by itself is waited for as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Loads the library `fixtures/plugin_a.c` into this process, permanently, and returns its function
/// that runs all its functions the given number of times.
///
/// # Panics
/// If the library cannot be compiled or loaded.
#[must_use]
pub fn load_plugin() -> extern "C" fn(u32) -> u32 {
    let library = compile("fixtures/plugin_a.c", &["-O1", "-shared", "-fPIC"], Compiler::Gcc);
    let name = CString::new(library.to_str().expect("a UTF-8 path")).expect("no NUL");
    // SAFETY: the strings are valid; the library has this function.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "{name:?} cannot be loaded");
        let run = libc::dlsym(handle, c"plugin_run".as_ptr());
        assert!(!run.is_null(), "no plugin_run");
        std::mem::transmute(run)
    }
}
