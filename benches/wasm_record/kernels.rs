//! The kernels as WASI commands, which call their host a few times: they read a clock around each
//! repetition, and print a line.

use std::process::Command;

use benches::distribution::geometric_mean;
use benches::host;
use benches::kernels::{Choice, SCALAR};
use benches::options::Options;
use benches::report::Table;

use super::Turns;

/// Number of times that a kernel executes in one process.
const REPETITIONS: u32 = 3;

/// What recording costs the kernels; and the factor of each.
pub(super) fn costs(options: &Options) -> (Table, Vec<f64>) {
    let mut table = Table::new(
        "Kernels",
        "Seconds of processor time, of all threads of the process, its start and compilation included: least of the \
         turns. Relative to `run`.",
        &["kernel", "run s", "record"],
    );
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let wasm_jit = host::ensure_built().join("wasm-jit");
    let mut ratios = Vec::new();
    for built in SCALAR.build(&SCALAR.sample(&Choice::default(), options)) {
        options.progress(built.kernel.name);
        let size = options.either(built.kernel.full, built.kernel.quick);
        let command = |first: &[&str]| {
            let mut command = Command::new(&wasm_jit);
            command.args(first).arg(&built.wasm).arg(size.to_string()).arg(REPETITIONS.to_string());
            command.current_dir(folder.path());
            command
        };
        let mut turns = Turns::new(built.kernel.name, options);
        turns.run(|| [command(&["run"]), command(&["record", "-o", "trace"])]);
        let [plain, recorded] = turns.processor;
        table.push(vec![built.kernel.name.into(), plain.into(), (recorded / plain).into()]);
        ratios.push(recorded / plain);
    }
    table.push(vec!["geometric mean".into(), "".into(), geometric_mean(ratios.iter().copied()).into()]);
    (table, ratios)
}
