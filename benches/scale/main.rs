//! Costs of rapid toggles for the threads that execute the site.
//!
//! 1. Throughput of executors by the rate of toggles (Figures 11 to 13 of the paper): a call
//!    switched on and off, an active probe that gets another function, a straddler patched through
//!    INT3, and Java's call sites.
//! 2. The balance between the two states, as the executors saw it.
//! 3. Number of patches that one thread completes in a second, by the number of outstanding
//!    patches.
//!
//! Every measurement of a toggled site is compared with the same site left unchanged in each of its
//! states, with the toggling thread in the same busy wait.
mod balance;
mod java;
mod method;
mod outstanding;
mod throughput;
mod turn;

use benches::options::Options;
use benches::pace::Pace;
use benches::report::Report;
use clap::Parser;

use crate::method::ToggleMethod;
use crate::turn::{Measured, Turn};

fn main() {
    let options = Options::parse();
    let mut report = Report::new("What do rapid toggles cost the threads that run through the site?");
    let ticks_per_ns = report.host().ticks_per_ns;
    options.progress("patches that are outstanding");
    report.push(outstanding::table(&options, ticks_per_ns));
    let mut methods = ToggleMethod::all();
    let java = java::CallSites::compiled();
    let mut measured = Vec::new();
    let turns = options.either(5, 1);
    for turn in 0..turns {
        options.progress(format!("executors, turn {} of {turns}", turn + 1));
        for method in &mut methods {
            for_each_pace(&options, &mut measured, method, ticks_per_ns);
        }
        // A virtual machine must be started for each: only every other turn.
        if let (Ok(java), 0) = (&java, turn % 2) {
            options.progress("executors, Java");
            java.measure(&options, &mut measured);
        }
    }
    for method in &methods {
        throughput::assert_both_states_were_seen(&measured, &method.name);
    }
    report.push(throughput::table(&measured));
    report.push(balance::table(&measured));
    report.push(match &java {
        Ok(java) => java.afterwards(),
        Err(reason) => java::absent(reason),
    });
    options.print(&report);
}

/// Numbers of executing threads.
fn executors(options: &Options) -> &'static [usize] {
    options.either(&[1, 2, 4], &[1, 2])
}

/// One turn of one method, after the same site has been measured untoggled.
fn for_each_pace(
    options: &Options,
    measured: &mut Vec<Measured>,
    method: &mut ToggleMethod,
    ticks_per_ns: f64,
) {
    let ms = options.either(150, 20);
    for executors in executors(options) {
        let mut run = |pace, state| turn::run(method, *executors, pace, state, ms, ticks_per_ns);
        let untoggled = [0, 1].map(|state| run(Pace::Never, state));
        let turns = Pace::ALL.map(|pace| (pace, Turn { untoggled, toggled: run(pace, 0) }));
        for (pace, turn) in turns {
            push(measured, &method.name, *executors, pace, turn);
        }
    }
}

/// Adds a turn to the earlier ones of the same case.
fn push(measured: &mut Vec<Measured>, site: &str, executors: usize, pace: Pace, turn: Turn) {
    let same = |earlier: &&mut Measured| {
        earlier.site == site && earlier.executors == executors && earlier.pace == pace
    };
    match measured.iter_mut().find(same) {
        Some(earlier) => earlier.turns.push(turn),
        None => measured.push(Measured { site: site.into(), executors, pace, turns: vec![turn] }),
    }
}
