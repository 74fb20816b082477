//! The cost of a patch of many sites, per site: each wait is paid once.

use std::sync::atomic::{AtomicU64, Ordering};

use benches::clock::ticks;
use benches::executor::Executor;
use benches::options::Options;
use benches::report::Table;
use benches::sites::{Case, Code};
use callpatch::{CallSite, Clobbers, Shape, Toggle};
use wordpatch::{
    FetchModel, Finisher, Outstanding, Patch, Split, State, TMax, WaitPolicy, patch, patch_all, start_patch,
    start_patch_all,
};

use crate::{E8_NOP, callee_address, code_at, window};

/// Sites in a batch.
const SITES: usize = 1000;

/// Batch sizes.
const SIZES: [usize; 4] = [1, 10, 100, SITES];

/// This machine's T_max if it is calibrated, else the paper's for a machine with one socket:
/// sufficient if no thread executes the sites.
fn t_max() -> TMax {
    FetchModel::in_force().t_max.unwrap_or(TMax(600))
}

struct Sites {
    addresses: Vec<usize>,
    calls: Vec<[u8; 5]>,
}

impl Sites {
    fn new(split: Split) -> Self {
        let is_wanted = |case: &Case| {
            case.shape == Shape::Call && case.split == split && case.clobbers == Clobbers::Nothing
        };
        let case = Case::all(window()).into_iter().find(is_wanted).expect("every split is there");
        let mut code = Code::near(callee_address(), SITES);
        let addresses: Vec<_> =
            (0..SITES).map(|_| code.function_with(&case, callee_address()).site).collect();
        code.finish();
        let calls = addresses.iter().map(|site| code_at(*site)).collect();
        Self { addresses, calls }
    }

    fn patches(&self, to_nop: bool) -> Vec<Patch<'_>> {
        let forms = self.addresses.iter().zip(&self.calls);
        forms
            .map(|(address, call)| {
                let (expected, replacement): (&[u8], &[u8]) =
                    if to_nop { (call, &E8_NOP) } else { (&E8_NOP, call) };
                Patch { address: *address, expected, replacement }
            })
            .collect()
    }

    /// Passes there and back; the ticks per site of each.
    fn passes(&self, rounds: usize, pass: impl Fn(&[Patch<'_>])) -> Vec<f64> {
        let (off, on) = (self.patches(true), self.patches(false));
        let times = (0..2 * rounds).map(|round| ticks(|| pass(if round % 2 == 0 { &off } else { &on })).0);
        let times = times.map(|time| time / SITES as f64).collect();
        assert!(self.addresses.iter().zip(&self.calls).all(|(site, call)| code_at::<5>(*site) == *call));
        times
    }
}

fn one_by_one(patches: &[Patch<'_>]) {
    for one in patches {
        // SAFETY: instructions in our own text, correct with and without the call; no thread blocks
        // SIGTRAP. The same holds below.
        unsafe { patch(one.address, one.expected, one.replacement) }.expect("it is patched");
    }
}

fn in_batches(size: usize, patches: &[Patch<'_>]) {
    for batch in patches.chunks(size) {
        // SAFETY: see `one_by_one`.
        assert!(unsafe { patch_all(batch) }.iter().all(Result::is_ok));
    }
}

fn as_a_batch(patches: &[Patch<'_>]) {
    in_batches(SITES, patches);
}

fn start(one: &Patch<'_>) -> Outstanding {
    // SAFETY: see `one_by_one`.
    unsafe { start_patch(one.address, one.expected, one.replacement) }.expect("it is begun")
}

fn outstanding(patches: &[Patch<'_>]) {
    let all: Vec<Outstanding> = patches.iter().map(start).collect();
    for one in &all {
        while one.try_finish().expect("it is furthered") != State::Finished {}
    }
}

fn outstanding_as_a_batch(patches: &[Patch<'_>]) {
    // SAFETY: see `one_by_one`.
    let all = unsafe { start_patch_all(patches) };
    while all.try_finish().expect("it is furthered") != State::Finished {}
    assert!(all.finish_all().iter().all(Result::is_ok));
}

fn by_finisher(finisher: &Finisher, patches: &[Patch<'_>]) {
    let all: Vec<Outstanding> = patches.iter().map(start).collect();
    all.iter().for_each(|one| finisher.take_over(one).expect("it is taken over"));
    for one in &all {
        while one.state() != State::Finished {
            std::thread::yield_now();
        }
    }
}

/// Each method, with membarrier and with T_max.
pub(crate) fn table(options: &Options) -> Table {
    let rounds = options.either(50, 5);
    let mut table = Table::of_distributions(
        "Batches",
        format!(
            "Ticks per site. Each measurement is a pass over {SITES} sites, CALL to NOP or back, which no thread executes. T_max is taken \
             to be {} ticks.",
            t_max().0
        ),
    );
    let single = Sites::new(Split::Inside);
    let straddling = Sites::new(Split::Crossing { front: 3 });
    table.push_distribution("patch, single stores one by one", single.passes(rounds, one_by_one));
    table.push_distribution("patch_all, single stores", single.passes(rounds, as_a_batch));
    let finisher = Finisher::start().expect("a thread");
    let (before, vendors) = (FetchModel::in_force(), FetchModel::VENDOR_GUARANTEE);
    let policies = [("membarrier", None, WaitPolicy::Membarrier), ("T_max", Some(t_max()), WaitPolicy::TMax)];
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let other = || _ = RUNS.fetch_add(1, Ordering::Relaxed);
    for (name, t_max, wait) in policies {
        // SAFETY: the vendors' window; no thread executes the sites, so that no T_max is too short.
        unsafe { FetchModel::force(vendors.window, t_max, wait) };
        let mut push = |what: &str, times| table.push_distribution(&format!("{what}, by {name}"), times);
        for size in SIZES {
            let pass = |all: &[Patch<'_>]| in_batches(size, all);
            push(&format!("straddlers, {size} at once"), straddling.passes(rounds, pass));
            let while_running = Executor::during(other, |_| straddling.passes(rounds.min(10), pass));
            push(&format!("straddlers, {size} at once, another thread running"), while_running);
        }
        push("start_patch all, then finish all", straddling.passes(rounds, outstanding));
        push("start_patch_all, then finish", straddling.passes(rounds, outstanding_as_a_batch));
        push(
            "start_patch all, by the finisher",
            straddling.passes(rounds, |all| by_finisher(&finisher, all)),
        );
    }
    // SAFETY: what was in force before.
    unsafe { FetchModel::force(before.window, before.t_max, before.wait) };
    let sites: Vec<CallSite> = straddling
        .addresses
        .iter()
        // SAFETY: a call in our own text, correct with and without it; from now on only callpatch
        // writes it.
        .map(|site| unsafe { CallSite::decode(*site, Clobbers::Nothing) }.expect("a call site"))
        .collect();
    let toggle = |on: bool| {
        let toggle = |site: &CallSite| if on { site.activate() } else { site.deactivate() };
        let (time, ()) = ticks(|| {
            assert!(sites.iter().all(|site| matches!(toggle(site), Ok(Toggle::Changed))));
        });
        time / SITES as f64
    };
    let toggles = (0..2 * rounds).map(|round| toggle(round % 2 == 1)).collect();
    table.push_distribution("CallSite toggles of the same straddlers", toggles);
    table
}
