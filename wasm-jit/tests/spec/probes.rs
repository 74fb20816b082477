//! The suite with probes at every instruction and entry of its modules: it must have the same
//! results.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, Once, OnceLock, PoisonError};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::Module;
use wasm_jit::probes::{
    Bound, GlobalProbe, Kind, Location, NativeFn, Place, Probe, ProbeError, ProbeSpec, Values, activate_all,
};

/// The probes of this many modules are kept; those of older ones are dropped while their programs
/// run.
const MODULES: usize = 32;

/// What the modules' probes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All count, and how instructions choose is counted, all the time.
    Count,
    /// All call a function, all the time, with the top operand and the first local where they
    /// exist.
    Native,
    /// Half count and half call a function; a thread switches them at random.
    Toggle,
    /// A global probe of the engine counts all instructions, from before the first module.
    Global,
    /// Functions have places for probes at all instructions. All of these are off, but a probe that
    /// does nothing is on at each exit, so that the functions do not run in their originals.
    Sites,
}

static MODE: LazyLock<Option<Mode>> = LazyLock::new(|| {
    std::env::args().find_map(|argument| {
        Some(match argument.strip_prefix("--probes=")? {
            "count" => Mode::Count,
            "native" => Mode::Native,
            "toggle" => Mode::Toggle,
            "global" => Mode::Global,
            "sites" => Mode::Sites,
            other => panic!("--probes={other}: known are count, native, toggle, global and sites"),
        })
    })
});

/// Whether the functions must have places for probes at all instructions.
pub(crate) fn need_sites() -> bool {
    *MODE == Some(Mode::Sites)
}

static KEPT: Mutex<VecDeque<Vec<Probe>>> = Mutex::new(VecDeque::new());
static GLOBAL: OnceLock<GlobalProbe> = OnceLock::new();
/// The last modules that the global probe observes: their counts end with them.
static KEPT_MODULES: Mutex<VecDeque<Module>> = Mutex::new(VecDeque::new());
static MADE: AtomicU64 = AtomicU64::new(0);
static TOGGLES: AtomicU64 = AtomicU64::new(0);

fn kept() -> MutexGuard<'static, VecDeque<Vec<Probe>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn nothing() {}

extern "C" fn one(value: u64) {
    black_box(value);
}

extern "C" fn two(first: u64, second: u64) {
    black_box(first ^ second);
}

/// A probe that calls a function with this many of its values.
fn native(values: usize) -> Kind {
    // SAFETY: the functions do not unwind, and are part of the program.
    let function = unsafe {
        match values {
            0 => NativeFn::new(nothing as extern "C" fn()),
            1 => NativeFn::new(one as extern "C" fn(u64)),
            _ => NativeFn::new(two as extern "C" fn(u64, u64)),
        }
    };
    let all = [Bound::Operand(0), Bound::Local(0)];
    Kind::Native { function, values: Values::from(&all[..values]) }
}

/// Gives a module its probes.
pub(crate) fn attach(module: &Module) {
    let Some(mode) = *MODE else { return };
    if mode == Mode::Global {
        return count_all(module);
    }
    let mut specs = Vec::new();
    for function in module.functions() {
        let Some(body) = function.body() else { continue };
        if mode == Mode::Sites {
            let location = Location { function: function.index(), place: Place::Exit };
            specs.push(ProbeSpec { location, kind: Kind::Empty });
            continue;
        }
        let mut add = |place| {
            let calls = match mode {
                Mode::Count => false,
                Mode::Native => true,
                Mode::Global | Mode::Sites => unreachable!("it has other probes"),
                Mode::Toggle => specs.len() % 2 == 0,
            };
            let location = Location { function: function.index(), place };
            specs.push(ProbeSpec { location, kind: if calls { native(2) } else { Kind::Count } });
            if mode == Mode::Count {
                specs.push(ProbeSpec { location, kind: Kind::CountBranch });
            }
        };
        add(Place::Entry);
        for instruction in body.instructions() {
            add(Place::Instruction { offset: (instruction.offset() - body.range().start) as u32 });
        }
    }
    let mut probes = Vec::new();
    for values in [1, 0] {
        let mut fewer = Vec::new();
        for (probe, spec) in module.probes(&specs).into_iter().zip(specs) {
            match probe {
                Ok(probe) => probes.push(probe),
                Err(ProbeError::Unreachable { .. } | ProbeError::NoBranch { .. }) => {}
                Err(ProbeError::Value { .. }) => fewer.push(ProbeSpec { kind: native(values), ..spec }),
                Err(error) => panic!("{:?}: {error}", spec.location),
            }
        }
        specs = fewer;
    }
    probes.extend(module.probes(&specs).into_iter().filter_map(Result::ok));
    for on in activate_all(&probes) {
        on.expect("a probe can be switched on");
    }
    MADE.fetch_add(probes.len() as u64, Ordering::Relaxed);
    let mut kept = kept();
    kept.push_back(probes);
    let old = (kept.len() > MODULES).then(|| kept.pop_front());
    drop(kept);
    drop(old);
    if mode == Mode::Toggle {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| drop(std::thread::spawn(toggle)));
    }
}

/// Counts all instructions of the modules of an engine, and keeps the last of them.
fn count_all(module: &Module) {
    let global = GLOBAL.get_or_init(|| {
        let global = module.engine().global_probe(Kind::Count).expect("counters everywhere");
        global.activate().expect("a probe can be switched on");
        global
    });
    if let Some(refused) = global.refused().pop() {
        panic!("{refused:?}");
    }
    let mut kept = KEPT_MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push_back(module.clone());
    let old = (kept.len() > MODULES).then(|| kept.pop_front());
    drop(kept);
    drop(old);
}

/// Switches random probes of those that are kept, of which there are some, until the process ends.
fn toggle() {
    let mut random = SmallRng::seed_from_u64(1);
    loop {
        let kept = kept();
        let probes = &kept[random.random_range(0..kept.len())];
        for _ in 0..100.min(probes.len()) {
            let probe = &probes[random.random_range(0..probes.len())];
            if random.random() { probe.activate() } else { probe.deactivate() }
                .expect("a probe can be switched");
            TOGGLES.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What was done, if there were probes.
pub(crate) fn summary() -> Option<String> {
    let toggles = TOGGLES.load(Ordering::Relaxed);
    Some(match (*MODE)? {
        Mode::Global => {
            let global = GLOBAL.get()?;
            assert!(global.refused().is_empty() && global.count() > 0);
            format!("{} instructions were counted in the last {MODULES} modules", global.count())
        }
        _ => format!("{} probes, {toggles} changes by another thread", MADE.load(Ordering::Relaxed)),
    })
}
