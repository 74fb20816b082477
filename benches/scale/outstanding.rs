//! Number of patches that one thread completes in a second, by the number of outstanding patches.

use benches::clock::ticks;
use benches::distribution::Distribution;
use benches::executor::Executor;
use benches::options::Options;
use benches::report::{Cell, Table, cells};
use benches::sites::{Code, E8_NOP, code_at};
use wordpatch::{
    FetchModel, Outstanding, Patch, State, TMax, WaitPolicy, patch, start_patch, start_patch_all,
};

use crate::method::{STRADDLING, case_of};

/// Straddling calls. A pass patches each of them once.
const SITES: usize = 1000;

/// Patches that are started before the first of them is finished.
const OUTSTANDING: [usize; 4] = [1, 10, 100, SITES];

extern "C" fn callee() {}

/// The sites, and the bytes of each as a call.
struct Sites(Vec<(usize, [u8; 5])>);

impl Sites {
    fn new() -> Self {
        let callee = callee as *const () as usize;
        let mut code = Code::near(callee, SITES);
        let sites: Vec<_> =
            (0..SITES).map(|_| code.function_with(&case_of(STRADDLING), callee).site).collect();
        code.finish();
        // SAFETY: just created, never unmapped, and not written yet.
        Self(sites.into_iter().map(|site| (site, unsafe { code_at(site) })).collect())
    }

    fn patches(&self, to_nop: bool) -> Vec<Patch<'_>> {
        self.0
            .iter()
            .map(|(address, call)| {
                let [expected, replacement]: [&[u8]; 2] =
                    if to_nop { [call, &E8_NOP] } else { [&E8_NOP, call] };
                Patch { address: *address, expected, replacement }
            })
            .collect()
    }

    /// Passes there and back, each of which must change every site; the patches per second of each.
    fn passes(&self, rounds: usize, ticks_per_ns: f64, pass: impl Fn(&[Patch<'_>])) -> Vec<f64> {
        let [off, on] = [true, false].map(|to_nop| self.patches(to_nop));
        let one = |patches: &[Patch<'_>]| {
            let (time, ()) = ticks(|| pass(patches));
            // SAFETY: text that stays mapped; every patch is finished.
            let is_made = |one: &Patch<'_>| unsafe { code_at::<5>(one.address) } == *one.replacement;
            assert!(patches.iter().all(is_made), "every patch is made");
            SITES as f64 / (time / ticks_per_ns) * 1e9
        };
        (0..rounds).flat_map(|_| [one(&off), one(&on)]).collect()
    }
}

fn synchronous(patches: &[Patch<'_>]) {
    for one in patches {
        // SAFETY: instructions of our own text, correct with and without the call; no thread blocks
        // SIGTRAP. Here and below.
        unsafe { patch(one.address, one.expected, one.replacement) }.expect("it is patched");
    }
}

fn is_finished(one: &Outstanding) -> bool {
    one.try_finish().expect("it is furthered") == State::Finished
}

/// Each patch is begun on its own; when as many are outstanding, all are advanced in turns until
/// one is finished: their waits overlap.
fn outstanding(at_once: usize, patches: &[Patch<'_>]) {
    let mut begun = Vec::with_capacity(at_once);
    for one in patches {
        while begun.len() == at_once {
            begun.retain(|one| !is_finished(one));
        }
        // SAFETY: see `synchronous`.
        let one = unsafe { start_patch(one.address, one.expected, one.replacement) };
        begun.push(one.expect("it is begun"));
    }
    while !begun.is_empty() {
        begun.retain(|one| !is_finished(one));
    }
}

/// As many patches are begun as one batch, and finished before the next batch.
fn in_batches(at_once: usize, patches: &[Patch<'_>]) {
    for batch in patches.chunks(at_once) {
        // SAFETY: see `synchronous`.
        let begun = unsafe { start_patch_all(batch) };
        while !is_finished(&begun) {}
        assert!(begun.finish_all().iter().all(Result::is_ok));
    }
}

/// Each kind with each kind of wait, alone and with another thread running.
pub(crate) fn table(options: &Options, ticks_per_ns: f64) -> Table {
    let rounds = options.either(10, 1);
    // Sufficient if no thread executes the sites: the paper's setting in section 8.3.
    let t_max = FetchModel::in_force().t_max.unwrap_or(TMax(3_000));
    let mut table = Table::new(
        "Patches completed in a second by one thread, by how many it has outstanding",
        format!(
            "Thousands. Each measurement is a pass over {SITES} straddlers, CALL to NOP or back, which no thread executes; alone, or while \
             another thread of the process runs. T_max is taken to be {} ticks.",
            t_max.0
        ),
        &["waits by", "kind", "outstanding", "other threads", "n", "mean", "p10", "median", "p90"],
    );
    let sites = Sites::new();
    let before = FetchModel::in_force();
    type Pass = fn(usize, &[Patch<'_>]);
    let kinds: [(&str, Pass, &[usize]); 3] = [
        ("patch, synchronous", |_, patches| synchronous(patches), &[1]),
        ("start_patch", outstanding, &OUTSTANDING),
        ("start_patch_all", in_batches, &OUTSTANDING),
    ];
    for (name, t_max, wait) in
        [("membarrier", None, WaitPolicy::Membarrier), ("T_max", Some(t_max), WaitPolicy::TMax)]
    {
        // SAFETY: the window is the one that was in force; no thread executes the sites, so that no
        // T_max is too short.
        unsafe { FetchModel::force(before.window, t_max, wait) };
        for (kind, pass, numbers) in kinds {
            for at_once in numbers {
                let measure = || sites.passes(rounds, ticks_per_ns, |patches| pass(*at_once, patches));
                for (others, rates) in [(0_u64, measure()), (1, Executor::during(|| (), |_| measure()))] {
                    let thousands = rates.into_iter().map(|rate| rate / 1000.0).collect();
                    let row = [Cell::from(name), kind.into(), (*at_once).into(), others.into()];
                    table.push(row.into_iter().chain(cells(&Distribution::of(thousands))).collect());
                }
            }
        }
    }
    // SAFETY: what was in force before.
    unsafe { FetchModel::force(before.window, before.t_max, before.wait) };
    table
}
