//! Other methods of changing code, and the building blocks of ours.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use benches::clock::{self, ticks};
use benches::executor::Executor;
use benches::options::Options;
use benches::report::Table;
use benches::sites::{self, Case, Code, SiteFunction};
use callpatch::{Shape, Toggle};
use wordpatch::{Split, serialize_all_cores};

use crate::{E8_NOP, callee_address, code_at, window};

/// Each method, with and without another running thread.
pub(crate) fn table(options: &Options) -> Table {
    let count = options.either(5_000, 200);
    let mut table = Table::of_distributions(
        "Peers",
        "Ticks, each timed on its own, the timer's own cost included. Unless stated otherwise, no other thread is running. In all \
             tables, the mean excludes the lowest and the highest hundredth.",
    );
    table.push_distribution("the timer itself", clock::own_cost(count));

    let exchanges = (0..count).map(|_| exchange_in_lines());
    table.push_distribution(
        "locked compare-exchange of data, 64 consecutive lines, each",
        exchanges.collect(),
    );

    let page = CodePage::new();
    let mprotect = (0..count).map(|_| ticks(|| page.make_writable_and_back()).0);
    table.push_distribution("mprotect of a page to writable and back", mprotect.collect());
    let memory = File::options().write(true).open("/proc/self/mem").expect("/proc/self/mem can be opened");
    let pwrite =
        |_| ticks(|| memory.write_all_at(&[0xc3], page.address as u64).expect("text can be written")).0;
    table.push_distribution("pwrite of a byte to /proc/self/mem", (0..count).map(pwrite).collect());

    let membarrier = || ticks(|| serialize_all_cores().expect("membarrier is allowed")).0;
    table.push_distribution("membarrier SYNC_CORE", (0..count).map(|_| membarrier()).collect());
    let mut code = Code::near(callee_address(), 4);
    let sites: Vec<_> = [Split::Inside, Split::Crossing { front: 3 }]
        .into_iter()
        .map(|split| {
            let is_wanted = |case: &Case| case.shape == Shape::Call && case.split == split;
            let case = Case::all(window()).into_iter().find(is_wanted).expect("every split is there");
            code.function_with(&case, callee_address())
        })
        .collect();
    let by_address = code.function_with(&Case::all(window())[0], callee_address());
    code.finish();
    for (site, name) in sites.iter().zip(["inside a window", "of a straddler 3|2"]) {
        table.push_distribution(&format!("wordpatch::patch {name}"), patches(*site, count, || ()));
    }
    let ways = [
        ("callpatch::activate_call, by address", true, Vec::with_capacity(count)),
        ("callpatch::deactivate_call, by address", false, Vec::with_capacity(count)),
    ];
    table_of_calls_by_address(&mut table, by_address, ways, count);

    table.push_distribution(LINE_TRANSFER, line_transfers(count));
    let straddler = sites[1];
    Executor::during(
        || sites::run(straddler),
        |executor| {
            let wait = || executor.has_run();
            let barriers = (0..count).map(|_| {
                wait();
                membarrier()
            });
            table.push_distribution("membarrier SYNC_CORE, another thread running", barriers.collect());
            let name = "wordpatch::patch of a straddler 3|2, executed by another thread";
            table.push_distribution(name, patches(straddler, count / 2, wait));
        },
    );
    table
}

/// A lower bound for any store to code that another processor executes. On a virtual machine it may
/// change from one second to the next, with the placement of the two processors.
pub(crate) const LINE_TRANSFER: &str = "a locked addition to data that another thread has read since";

pub(crate) fn line_transfers(count: usize) -> Vec<f64> {
    static DATA: AtomicU64 = AtomicU64::new(0);
    let read = || _ = black_box(DATA.load(Ordering::Relaxed));
    Executor::during(read, |executor| {
        let add = || ticks(|| DATA.fetch_add(1, Ordering::Relaxed)).0;
        let times = (0..count).map(|_| {
            executor.has_run();
            add()
        });
        times.collect()
    })
}

/// The one instruction that every toggle needs, in cache lines that no other thread uses. The
/// timer's share is small.
fn exchange_in_lines() -> f64 {
    #[repr(align(64))]
    struct Line(AtomicU64);
    static LINES: [Line; 64] = [const { Line(AtomicU64::new(0)) }; 64];
    let exchange = |Line(word): &Line| {
        let old = word.load(Ordering::Relaxed);
        word.compare_exchange(old, old + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let (time, done) = ticks(|| LINES.iter().all(|line| exchange(black_box(line))));
    assert!(done, "no other thread writes");
    time / LINES.len() as f64
}

/// Toggles a call by the paper's section 5: the whole instruction, alternately call and NOP.
fn patches(function: SiteFunction, count: usize, before: impl Fn()) -> Vec<f64> {
    let call = code_at::<5>(function.site);
    let mut forms = [call, E8_NOP];
    let times = (0..count / 2 * 2).map(|_| {
        before();
        let [old, new] = forms;
        forms.swap(0, 1);
        // SAFETY: an instruction in our own text, correct with and without the call; no thread
        // blocks SIGTRAP.
        ticks(|| unsafe { wordpatch::patch(function.site, &old, &new) }.expect("it is patched")).0
    });
    let times = times.collect();
    assert_eq!(code_at::<5>(function.site), call, "an even number of toggles leaves the call");
    times
}

/// The paper's interface, which looks the site up.
fn table_of_calls_by_address(
    table: &mut Table,
    function: SiteFunction,
    mut ways: [(&str, bool, Vec<f64>); 2],
    count: usize,
) {
    let [_, operand @ ..] = code_at::<5>(function.site);
    let offset = i32::from_le_bytes(operand);
    // SAFETY: the site is a call in our own text, correct with and without it; the same holds
    // below.
    unsafe { callpatch::deactivate_call(function.site) }.expect("the first look-up decodes the site");
    for _ in 0..count {
        for (_, activate, times) in &mut ways {
            let (time, toggle) = ticks(|| {
                if *activate {
                    // SAFETY: as above; the operand is the current one.
                    unsafe { callpatch::activate_call(function.site, offset) }
                } else {
                    // SAFETY: as above.
                    unsafe { callpatch::deactivate_call(function.site) }
                }
            });
            assert_eq!(toggle.expect("it is toggled"), Toggle::Changed);
            times.push(time);
        }
    }
    ways.into_iter().for_each(|(name, _, times)| table.push_distribution(name, times));
}

/// A page that is mapped read-execute, never unmapped.
struct CodePage {
    address: usize,
}

const PAGE: usize = 4096;

impl CodePage {
    fn new() -> Self {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address chosen by the kernel.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED, "no memory");
        Self { address: page as usize }
    }

    fn make_writable_and_back(&self) {
        for protection in
            [libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::PROT_READ | libc::PROT_EXEC]
        {
            let page = ptr::with_exposed_provenance_mut(self.address);
            // SAFETY: the page is ours, and not used.
            assert_eq!(unsafe { libc::mprotect(page, PAGE, protection) }, 0, "mprotect is refused");
        }
    }
}
