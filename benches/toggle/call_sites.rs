//! Call sites of every shape, split and strategy.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use benches::clock::ticks;
use benches::distribution::Distribution;
use benches::executor::Executor;
use benches::options::Options;
use benches::report::{Table, cells};
use benches::sites::{self, Case, Code, SiteFunction};
use callpatch::{CallSite, State, Toggle};
use wordpatch::serialize_all_cores;

use crate::{CALLS, callee_address, window};

/// Sites of one kind, each in its own cache lines.
const COPIES: usize = 64;

/// Each kind: not executed, and executed by another thread.
pub(crate) fn tables(options: &Options) -> [Table; 2] {
    let columns = [
        "shape",
        "split",
        "strategy",
        "n",
        "on mean",
        "on p10",
        "on median",
        "on p90",
        "off mean",
        "off p10",
        "off median",
        "off p90",
    ];
    let mut quiet = Table::new(
        "CallSite::activate (on) and deactivate (off), not executed",
        format!("Ticks per toggle. Each measurement is a pass over {COPIES} sites of the kind, in cache."),
        &columns,
    );
    let mut executed = Table::new(
        "CallSite::activate (on) and deactivate (off), executed by another thread",
        "Ticks per toggle, each timed on its own, the timer included. Before each, the other thread has run through the site \
         since the last.",
        &columns,
    );
    for case in Case::all(window()) {
        let mut code = Code::near(callee_address(), COPIES);
        let functions: Vec<_> = (0..COPIES).map(|_| code.function_with(&case, callee_address())).collect();
        code.finish();
        let sites: Vec<CallSite> = functions
            .iter()
            // SAFETY: a call in our own text, correct with and without it; from now on only
            // callpatch writes it.
            .map(|function| unsafe { CallSite::decode(function.site, case.clobbers) }.expect("a call site"))
            .collect();
        let strategy = sites[0].strategy();
        let push = |table: &mut Table, on: Vec<f64>, off: Vec<f64>| {
            let [count, on @ ..] = cells(&Distribution::of(on));
            let [_, off @ ..] = cells(&Distribution::of(off));
            let name =
                [case.shape_name().into(), case.split_name().into(), format!("{strategy:?}").into(), count];
            table.push(name.into_iter().chain(on).chain(off).collect());
        };
        let (on, off) = toggled_by_nobody_else(&sites, &functions, options.either(2_000, 50));
        push(&mut quiet, on, off);
        let (on, off) = toggled_while_executed(sites[0], functions[0], options.either(2_000, 50));
        push(&mut executed, on, off);
    }
    [quiet, executed]
}

fn toggled_by_nobody_else(
    sites: &[CallSite],
    functions: &[SiteFunction],
    rounds: usize,
) -> (Vec<f64>, Vec<f64>) {
    let check = |state: State| {
        let before = CALLS.load(Ordering::Relaxed);
        functions.iter().for_each(|function| sites::run(*function));
        let calls = if state == State::Active { functions.len() as u64 } else { 0 };
        assert_eq!(CALLS.load(Ordering::Relaxed) - before, calls, "{:?}", sites[0]);
        assert!(sites.iter().all(|site| site.state().is_ok_and(|found| found == state)));
    };
    let pass = |toggle: fn(&CallSite) -> Result<Toggle, callpatch::Error>| {
        let (time, changed) = ticks(|| {
            sites.iter().filter(|site| matches!(toggle(black_box(site)), Ok(Toggle::Changed))).count()
        });
        assert_eq!(changed, sites.len());
        time / sites.len() as f64
    };
    check(State::Active);
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        off.push(pass(CallSite::deactivate));
        on.push(pass(CallSite::activate));
    }
    check(State::Active);
    pass(CallSite::deactivate);
    check(State::Inactive);
    pass(CallSite::activate);
    (on, off)
}

fn toggled_while_executed(site: CallSite, function: SiteFunction, rounds: usize) -> (Vec<f64>, Vec<f64>) {
    Executor::during(
        || sites::run(function),
        |executor| {
            let timed = |toggle: fn(&CallSite) -> Result<Toggle, callpatch::Error>| {
                executor.has_run();
                let (time, toggle) = ticks(|| toggle(black_box(&site)));
                assert_eq!(toggle.expect("it is toggled"), Toggle::Changed);
                time
            };
            let calls_during_a_run = || {
                serialize_all_cores().expect("membarrier is allowed");
                executor.has_run();
                let before = CALLS.load(Ordering::Relaxed);
                executor.has_run();
                CALLS.load(Ordering::Relaxed) - before
            };
            let (mut on, mut off) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                off.push(timed(CallSite::deactivate));
                on.push(timed(CallSite::activate));
            }
            assert_ne!(calls_during_a_run(), 0, "{site:?} is on");
            timed(CallSite::deactivate);
            assert_eq!(calls_during_a_run(), 0, "{site:?} is off");
            (on, off)
        },
    )
}
