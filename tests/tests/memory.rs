//! The memory that the profiler states stays small in programs with many functions or many threads.

use std::path::Path;

use tests::Compiler::Gcc;
use tests::{Report, compile, profiled};

/// Runs a program, and passes its report to `figure`.
fn report_of<T>(binary: &Path, options: &str, figure: impl FnOnce(&Report) -> T) -> T {
    let profiled = profiled(binary, &[], options);
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    figure(profiled.report())
}

fn memory(report: &Report) -> f64 {
    report.json["cost"]["memory_bytes"].as_f64().expect("a number")
}

/// With everything from which a sampled function is estimated, it would be more than 600 bytes.
#[test]
fn functions_that_are_called_a_few_times_need_little_memory() {
    let [many, few] = [&["-O1"][..], &["-O1", "-DFEW"]].map(|flags| {
        let binary = compile("fixtures/few_calls.c", flags, Gcc);
        report_of(&binary, "discovery=eager", |report| {
            (memory(report), report.json["probes"].as_f64().expect("a number"))
        })
    });
    let of_probe = (many.0 - few.0) / (many.1 - few.1);
    assert!(many.1 >= 8192.0 && of_probe < 300.0, "{of_probe} bytes per probe: {many:?}, {few:?}");
}

/// A thread whose samples are read soon needs little memory however many they are, and one that has
/// ended needs hardly any.
#[test]
fn threads_need_little_memory_for_their_samples() {
    const THREADS: f64 = 100.0;
    let binary = compile("fixtures/many_threads.c", &["-O1"], Gcc);
    let per_thread = |case: &str| {
        // On a busy machine, samples may not be read soon.
        let sizes = [(); 3].map(|()| {
            let profiled = profiled(&binary, &[case], "counts=exact:stacks=0");
            assert!(profiled.run.status.success(), "{}", profiled.run.stderr);
            memory(profiled.report()) / THREADS / 1e3
        });
        sizes.into_iter().fold(f64::INFINITY, f64::min)
    };
    let [live, ended] = ["live", "ended"].map(per_thread);
    assert!(live < 150.0 && ended < 50.0, "{live} kB, {ended} kB of a thread that has ended");
}

/// Their memory is reused, but only once the service thread has found that they have ended.
#[test]
fn short_lived_threads_reuse_their_memory() {
    let binary = compile("fixtures/short_threads.c", &["-O1"], Gcc);
    // On a busy machine, the service thread may have no processor for a while.
    let mut sizes = [(); 5].map(|()| report_of(&binary, "stacks=0", memory) / 1e6);
    sizes.sort_by(f64::total_cmp);
    assert!(sizes[2] < 8.0, "{sizes:?} MB");
}
