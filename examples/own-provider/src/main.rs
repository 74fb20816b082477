//! A provider of probes: the operations of an interpreter are sites, which a tool counts.
//!
//! Run it with `cargo run --release -p own-provider`.
//!
//! Prints:
//!
//! ```text
//! without probes: 55
//! with probes: 55
//! add     10
//! repeat  10
//! halt    1
//! ```

use std::ffi::CStr;
use std::mem;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use fastinst::group::{Group, ReservedIds, Sites};
use fastinst::provider::{self, Extent, Provider};
use fastinst::{Discovery, Error, ProbeFn, ProbeId, ProbeKind, ProbeMetadata, Toggle};

#[derive(Clone, Copy)]
enum Operation {
    Add,
    Repeat,
    Halt,
}

const NAMES: [&CStr; 3] = [c"add", c"repeat", c"halt"];

/// What each operation calls before it is executed: a [`ProbeFn`], or null.
static CALLED: [AtomicPtr<()>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];

/// The sites: the probe with index `n` is that of the operation `n`.
struct Operations;

impl Operations {
    fn set(index: u32, function: *mut ()) -> Toggle {
        let before = CALLED[index as usize].swap(function, Ordering::AcqRel);
        if before.is_null() == function.is_null() { Toggle::Unchanged } else { Toggle::Changed }
    }
}

impl Sites for Operations {
    unsafe fn activate(&self, index: u32, function: ProbeFn) -> Result<Toggle, Error> {
        Ok(Self::set(index, function as *mut ()))
    }

    fn deactivate(&self, index: u32) -> Result<Toggle, Error> {
        Ok(Self::set(index, null_mut()))
    }

    fn metadata(&self, index: u32, id: ProbeId) -> ProbeMetadata<'_> {
        let mut metadata = ProbeMetadata::new(id, INTERPRETER.name(), ProbeKind::FIRST_OF_PROVIDERS);
        metadata.function_name = NAMES[index as usize];
        metadata
    }
}

/// The provider: its probes exist as soon as somebody asks for them.
struct Interpreter {
    probes: OnceLock<Group>,
}

static INTERPRETER: Interpreter = Interpreter { probes: OnceLock::new() };

impl Provider for Interpreter {
    fn name(&self) -> &'static CStr {
        c"interpreter"
    }

    /// The search is short: the operations are known. Without free ids there are no probes.
    fn begin(&self, discovery: &Discovery, _: Extent) {
        let count = NAMES.len() as u32;
        if self.probes.get().is_some() {
            return;
        }
        let Ok(ids) = ReservedIds::new(count) else { return };
        let group = self.probes.get_or_init(|| ids.with_sites(Operations));
        (0..count).for_each(|index| group.announce(discovery, index));
    }

    /// No operations appear later.
    fn discover(&self, _: &Discovery) -> Option<Instant> {
        None
    }

    fn has_code(&self) -> bool {
        true
    }

    fn notes(&self) -> Vec<String> {
        match self.probes.get() {
            Some(_) => Vec::new(),
            None => vec!["interpreter: its operations have no probes".to_owned()],
        }
    }

    fn memory_bytes(&self) -> usize {
        mem::size_of_val(&CALLED)
    }
}

/// Executes a program: `Add` adds the counter, `Repeat` decrements it and starts again until it is
/// 0.
fn run(program: &[Operation], mut counter: u64) -> u64 {
    let (mut at, mut sum) = (0, 0);
    loop {
        let operation = program[at];
        let called = CALLED[operation as usize].load(Ordering::Acquire);
        if !called.is_null() {
            // SAFETY: only `activate` stores other values than null, and stores a function.
            let called = unsafe { mem::transmute::<*mut (), ProbeFn>(called) };
            let probes = INTERPRETER.probes.get().expect("a probe is on");
            // SAFETY: whoever activated the probe has promised that it may be called here.
            unsafe { called(probes.id(operation as u32), at, 0) };
        }
        at += 1;
        match operation {
            Operation::Add => sum += counter,
            Operation::Repeat => {
                counter -= 1;
                if counter > 0 {
                    at = 0;
                }
            }
            Operation::Halt => return sum,
        }
    }
}

/// The calls that the tool has counted, by probe.
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// The id of the probe whose calls are counted first.
static FIRST: OnceLock<ProbeId> = OnceLock::new();

unsafe extern "C" fn count(id: ProbeId, _: usize, _: usize) {
    if let Some(first) = FIRST.get() {
        COUNTS[(id.0 - first.0) as usize].fetch_add(1, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Error> {
    let program = [Operation::Add, Operation::Repeat, Operation::Halt];
    println!("without probes: {}", run(&program, 10));

    // The tool: it gets probes of any provider.
    let found = Arc::new(Mutex::new(Vec::new()));
    let of_callback = found.clone();
    fastinst::register_callback(move |probe| {
        let name = probe.function_name.to_string_lossy().into_owned();
        of_callback.lock().expect("nothing panics with the lock").push((probe.id, name));
    })?;
    provider::register(&INTERPRETER)?;
    provider::begin(Extent::All)?;

    let found = found.lock().expect("nothing panics with the lock").clone();
    if let Some((first, _)) = found.first() {
        FIRST.get_or_init(|| *first);
    }
    for (id, _) in &found {
        // SAFETY: `count` may be called at any time, by any thread.
        unsafe { fastinst::activate(*id, count)? };
    }
    println!("with probes: {}", run(&program, 10));
    for (id, _) in &found {
        fastinst::deactivate(*id)?;
    }
    run(&program, 10);
    for ((_, name), count) in found.iter().zip(&COUNTS) {
        println!("{name:8}{}", count.load(Ordering::Relaxed));
    }
    Ok(())
}
