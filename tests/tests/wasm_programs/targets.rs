//! The targets of a script on kernels of the benchmarks (one of four; all of them in the long
//! form), and on a real program: the script prints the same report as a module that monitors the
//! program in place, and in the rewritten program. The script that runs in place by itself, and the
//! built-in monitors, have the same counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::{Run, ensure_wasm_jit, is_long, repo_root, run_within};

use super::monitors::{ICEPLL, Reports};
use super::{TIME_LIMIT, engine, programs};

/// The engine counts for all rules.
const COUNTS: &str = "
wasm:opcode:*:before { report unshared var times: u64; times++; }
wasm:opcode:br_if|if:before {
    report unshared var taken_times: u64;
    report unshared var not_taken: u64;
    if (taken) { taken_times++; } else { not_taken++; }
}
wasm:func:entry { report var calls: u64; calls++; }
";

/// The rules are called.
const CALLED: &str = "
report var addresses: map<(bool, log2), u64>;
report var deepest: map<str, u32>;
var depth: u32;
frame var mine: u32;
wasm:opcode:*load*|*store*:before { addresses[(is_write, effective_addr)]++; }
wasm:func:entry { depth++; mine = depth; if (depth > deepest[fname]) { deepest[fname] = depth; } }
wasm:func:exit { depth = mine - 1; }
wasm:opcode:call:after { report var returns: u64; returns++; }
";

/// A program, and how to run it with options of `wasm-jit run`.
struct Program<'a> {
    name: &'a str,
    binary: &'a Path,
    run: &'a dyn Fn(&Path, &[&str]) -> Run,
}

fn wasm_jit(arguments: &[&str]) {
    let done = run_within(Command::new(ensure_wasm_jit()).args(arguments), TIME_LIMIT);
    assert!(done.status.success(), "wasm-jit {arguments:?}: {}", done.stderr);
}

/// The sums of a report's last column, by variable.
fn sums(printed: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for line in printed.lines().skip(1) {
        let (name, _) = line.split_once(',').expect("a name");
        let (_, value) = line.rsplit_once(',').expect("a value");
        *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().expect("a number");
    }
    sums
}

impl Program<'_> {
    /// The values of a script, whose text is the same from both targets.
    #[track_caller]
    fn printed(&self, folder: &Path, script: &str, plain: &Run) -> String {
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let [file, monitor, rewritten] = ["script.mm", "monitor.wasm", "rewritten.wasm"].map(path);
        fs::write(&file, script).expect("the folder can be written");
        wasm_jit(&["whamm", "compile", &file, "-o", &monitor]);
        wasm_jit(&["whamm", "instrument", &file, &self.binary.to_string_lossy(), "-o", &rewritten]);
        let in_place = (self.run)(self.binary, &["--monitors", &monitor]);
        let by_itself = (self.run)(Path::new(&rewritten), &[]);
        for (what, run) in [("in place", &in_place), ("rewritten", &by_itself)] {
            let same = run.status == plain.status && run.stdout == plain.stdout;
            assert!(same, "{}, {what}: {} {}", self.name, run.status, run.stderr);
        }
        let differs = in_place.stderr.lines().zip(by_itself.stderr.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None, "{}: in place, and rewritten", self.name);
        assert!(in_place.stderr == by_itself.stderr, "{}: one report is longer", self.name);
        assert!(in_place.stderr.lines().count() > 10, "{}: {}", self.name, in_place.stderr);
        in_place.stderr
    }

    #[track_caller]
    fn check(&self) {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let plain = (self.run)(self.binary, &[]);
        assert!(plain.status.success(), "{}: {}", self.name, plain.stderr);
        let counts = sums(&self.printed(folder.path(), COUNTS, &plain));
        let file = folder.path().join("script.mm");
        let monitors = format!("{},hotness,branches", file.display());
        let run = (self.run)(self.binary, &["--monitors", &monitors, "--monitor-format", "json"]);
        assert_eq!(run.stdout, plain.stdout, "{}: {}", self.name, run.stderr);
        let reports = Reports::read(&run.stderr);
        let of_script = |table: &str, columns: &[&str]| -> u64 {
            reports.sums("script.mm", table, "offset", columns).values().sum()
        };
        let [times, taken, not_taken, calls] =
            ["times", "taken_times", "not_taken", "calls"].map(|variable| counts[variable]);
        assert_eq!(of_script("by_site", &["times"]), times, "{}", self.name);
        assert_eq!(of_script("by_site_2", &["taken_times", "not_taken"]), taken + not_taken, "{}", self.name);
        assert_eq!(of_script("by_site_3", &["calls"]), calls, "{}", self.name);
        assert_eq!(reports.value("hotness", "instructions"), times, "{}", self.name);
        let of_branches = |column: &str| -> u64 {
            let rows = reports.rows("branches", "by_branch");
            let conditional = rows.filter(|row| matches!(super::monitors::opcode(row), "br_if" | "if"));
            conditional.map(|row| row[column].as_u64().expect("a number")).sum()
        };
        assert_eq!((of_branches("taken"), of_branches("not_taken")), (taken, not_taken), "{}", self.name);
        self.printed(folder.path(), CALLED, &plain);
    }
}

#[test]
fn kernels_are_observed_alike() {
    let sources = repo_root().join("benches/kernels");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut kernels: Vec<PathBuf> = fs::read_dir(&sources)
        .expect("the kernels are there")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .filter(|path| path.file_name().is_some_and(|name| name != "main.c"))
        .collect();
    kernels.sort();
    assert!(kernels.len() > 40, "{kernels:?}");
    // All of them take a minute and a half.
    let every = if is_long() { 1 } else { 4 };
    for source in kernels.into_iter().step_by(every) {
        let name = source.file_stem().expect("a file").to_string_lossy().into_owned();
        let binary = folder.path().join(format!("{name}.wasm"));
        let mut compiler = Command::new(std::env::var("WASM_CC").unwrap_or_else(|_| "clang".into()));
        compiler.args([
            "--target=wasm32-wasi",
            "-O2",
            "-msign-ext",
            "-mbulk-memory",
            "-mnontrapping-fptoint",
        ]);
        compiler.args(["-DARGUMENT=2", "-I"]).arg(&sources).arg(&source);
        compiler.arg(repo_root().join("tests/programs/wasm/one_kernel.c")).arg("-o").arg(&binary);
        let compiled = run_within(&mut compiler, Duration::from_secs(120));
        assert!(compiled.status.success(), "{compiler:?}: {}", compiled.stderr);
        let run = |program: &Path, options: &[&str]| {
            let mut command = Command::new(ensure_wasm_jit());
            run_within(command.arg("run").args(options).arg(program), TIME_LIMIT)
        };
        Program { name: &name, binary: &binary, run: &run }.check();
    }
}

#[test]
fn a_real_program_is_observed_alike() {
    let programs = programs(&[ICEPLL.fetched]);
    let run = |program: &Path, options: &[&str]| {
        let folder = ICEPLL.folder();
        let mut command = Command::new(ensure_wasm_jit());
        command.arg("run").args(options);
        run_within(&mut engine(command, program, &programs, folder.path(), &ICEPLL.step), TIME_LIMIT)
    };
    Program { name: "icepll", binary: &programs.join(ICEPLL.step.program), run: &run }.check();
}
