//! Places of modules as probes of fastinst: ids, discovery, metadata, and their end.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use fastinst::{Error, ModulePlace, ProbeId, ProbeKind};
use wasm_jit::probes::{Bound, Kind, Location, NativeFn, Place, ProbeError, ProbeSpec};
use wasm_jit::{Config, Engine, Instance, Module, ProbeSites, Store};

/// All settings for places in originals.
const ALL_SITES: [ProbeSites; 4] =
    [ProbeSites::None, ProbeSites::Functions, ProbeSites::Branches, ProbeSites::All];

fn engine(sites: ProbeSites) -> Engine {
    Engine::new(Config::new().probe_sites(sites)).unwrap()
}

/// The module's name is that of the test.
fn module(engine: &Engine, name: &str) -> Module {
    let text = format!(
        "(module ${name} (memory 1)
            (func $double (export \"run\") (param i32) (result i32)
                (memory.fill (i32.const 0) (i32.const 0) (i32.const 0))
                (i32.add (local.get 0) (local.get 0))))"
    );
    Module::new(engine, text).unwrap()
}

fn run(module: &Module, argument: i32) -> i32 {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    run.call(&mut store, argument).unwrap()
}

/// The offsets of the function's instructions.
fn offsets(module: &Module) -> Vec<u32> {
    let body = module.function(0).unwrap().body().unwrap();
    body.instructions().map(|at| (at.offset() - body.range().start) as u32).collect()
}

fn at(offset: u32) -> Location {
    Location { function: 0, place: Place::Instruction { offset } }
}

const ENTRY: Location = Location { function: 0, place: Place::Entry };

/// The first probe at another place may compile the function again.
#[test]
fn metadata_have_the_address_in_the_most_recent_version() {
    static FIRED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn fire(_: ProbeId, site: usize, _: usize) {
        FIRED.store(site as u64, Ordering::Relaxed);
    }
    for sites in ALL_SITES {
        let module = module(&engine(sites), "versions");
        let offsets = offsets(&module);
        let id = module.probe_id(at(offsets[4])).unwrap();
        // SAFETY: `fire` is never unloaded, and only stores.
        unsafe { fastinst::activate(id, fire) }.unwrap();
        for offset in [4, 6, 3, 0].map(|place| offsets[place]) {
            let other = module.probe(ProbeSpec { location: at(offset), kind: Kind::Empty }).unwrap();
            other.activate().unwrap();
            assert_eq!(run(&module, 21), 42);
            let (site, body) =
                fastinst::with_metadata(id, |probe| (probe.site_address, probe.body_start..probe.body_end))
                    .unwrap();
            assert_eq!(FIRED.load(Ordering::Relaxed), site as u64, "{sites:?}, {offset}");
            assert!(body.contains(&site), "{sites:?}, {offset}: {site:#x} in {body:x?}");
        }
    }
}

#[test]
fn a_callback_that_panics_does_not_disturb_later_ids() {
    static PANICS: AtomicBool = AtomicBool::new(true);
    fastinst::register_callback(|probe| {
        if probe.object_path == c"panics" && PANICS.swap(false, Ordering::Relaxed) {
            panic!("the callback fails");
        }
    })
    .unwrap();
    let module = module(&engine(ProbeSites::None), "panics");
    let offsets = offsets(&module);
    let ask = |place: usize| module.probe_id(at(offsets[place])).unwrap();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask(4))).unwrap_err();
    let (id, other) = (ask(4), ask(6));
    assert_ne!(id, other);
    assert_eq!(ask(4), id);
    assert!(fastinst::with_metadata(id, |probe| probe.module_place).unwrap().is_some());
}

/// No lock is held meanwhile that a fork waits for.
#[test]
fn a_callback_may_wait_for_a_thread_that_forks() {
    static FORKS: AtomicU32 = AtomicU32::new(0);
    fastinst::register_callback(|probe| {
        if probe.object_path == c"forks" {
            let (sender, receiver) = mpsc::channel();
            let forks = move || {
                // SAFETY: the child ends at once.
                match unsafe { libc::fork() } {
                    // SAFETY: as above.
                    0 => unsafe { libc::_exit(0) },
                    child => {
                        // SAFETY: the child is ours.
                        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
                        sender.send(()).unwrap();
                    }
                }
            };
            std::thread::spawn(forks);
            // Otherwise the test would hang.
            let has_forked = receiver.recv_timeout(Duration::from_secs(60)).is_ok();
            FORKS.fetch_add(u32::from(has_forked), Ordering::Relaxed);
        }
    })
    .unwrap();
    let module = module(&engine(ProbeSites::None), "forks");
    module.probe_id(ENTRY).unwrap();
    module.probe_id(at(offsets(&module)[4])).unwrap();
    assert_eq!(FORKS.load(Ordering::Relaxed), 2);
}

#[test]
fn a_place_is_a_probe_of_fastinst() {
    type Found = (ProbeId, ProbeKind, String, Option<ModulePlace>);
    static FOUND: Mutex<Vec<Found>> = Mutex::new(Vec::new());
    static FIRED: Mutex<Vec<(u32, usize, usize)>> = Mutex::new(Vec::new());
    extern "C" fn fire(id: ProbeId, site: usize, context: usize) {
        FIRED.lock().unwrap().push((id.0, site, context));
    }
    extern "C" fn fire_too(_: ProbeId, _: usize, _: usize) {
        FIRED.lock().unwrap().push((1, 1, 1));
    }
    extern "C" fn native(number: u64) {
        FIRED.lock().unwrap().push((number as u32, 0, 0));
    }
    fastinst::register_callback(|probe| {
        if probe.object_path == c"place" {
            assert_eq!(probe.provider, c"wasm");
            let name = probe.function_name.to_str().unwrap().to_owned();
            FOUND.lock().unwrap().push((probe.id, probe.kind, name, probe.module_place));
        }
    })
    .unwrap();
    for sites in ALL_SITES {
        FOUND.lock().unwrap().clear();
        let module = module(&engine(sites), "place");
        let offsets = offsets(&module);
        let fill = module.probe_id(at(offsets[3])).unwrap();
        let entry = module.probe_id(ENTRY).unwrap();
        assert_eq!(module.probe_id(at(offsets[3])).unwrap(), fill);
        let place = |offset, opcode| Some(ModulePlace { function_index: 0, offset, opcode });
        let name = || "double".to_owned();
        assert_eq!(
            *FOUND.lock().unwrap(),
            [
                (fill, ProbeKind::FIRST_OF_PROVIDERS, name(), place(offsets[3], Some(0xfc_000b))),
                (entry, ProbeKind::ENTRY, name(), place(0, None)),
            ]
        );
        // SAFETY: the functions do not unwind, and are part of the program.
        let function = unsafe { NativeFn::new(native as extern "C" fn(u64)) };
        let kind = Kind::Native { function, values: [Bound::Const(7)].into() };
        let other = module.probe(ProbeSpec { location: ENTRY, kind }).unwrap();
        let fired = || {
            assert_eq!(run(&module, 21), 42);
            std::mem::take(&mut *FIRED.lock().unwrap())
        };
        let numbers = || fired().into_iter().map(|(number, ..)| number).collect::<Vec<_>>();
        assert!(fired().is_empty());
        // SAFETY: as above.
        let activate = |id, function| unsafe { fastinst::activate(id, function) };
        other.activate().unwrap();
        activate(entry, fire).unwrap();
        activate(fill, fire).unwrap();
        let all = fired();
        assert_eq!(all.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [7, entry.0, fill.0]);
        assert_eq!(all[1].2, all[2].2, "one instance");
        fastinst::with_metadata(entry, |probe| {
            assert!((probe.body_start..probe.body_end).contains(&all[1].1), "the site is in the code");
            assert_eq!(probe.site_address, all[1].1);
        })
        .unwrap();
        // Only the function changes, not the order.
        activate(entry, fire_too).unwrap();
        other.deactivate().unwrap();
        other.activate().unwrap();
        assert_eq!(numbers(), [1, 7, fill.0]);
        fastinst::deactivate(entry).unwrap();
        fastinst::deactivate(entry).unwrap();
        assert_eq!(numbers(), [7, fill.0]);
        fastinst::deactivate(fill).unwrap();
        drop(other);
        assert!(fired().is_empty());
        assert!(matches!(module.probe_id(at(0)), Err(ProbeError::NoInstruction { .. })));
        assert!(matches!(
            module.probe_id(Location { function: 5, ..ENTRY }),
            Err(ProbeError::NoFunction { function: 5 })
        ));
        activate(fill, fire).unwrap();
        drop(module);
        for id in [fill, entry] {
            assert!(matches!(activate(id, fire), Err(Error::Retired { .. })));
            assert!(matches!(fastinst::deactivate(id), Err(Error::Retired { .. })));
            assert!(matches!(fastinst::with_metadata(id, |_| ()), Err(Error::Retired { .. })));
        }
    }
}

extern "C" fn nothing(_: ProbeId, _: usize, _: usize) {}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Modules come and go, while another thread switches their probes: ids end with them, and nothing
/// is left.
#[test]
fn ids_end_with_their_module() {
    const MODULES: u32 = 10_000;
    static LAST: AtomicU32 = AtomicU32::new(0);
    static SWITCHED: AtomicU64 = AtomicU64::new(0);
    let engines = ALL_SITES.map(engine);
    let is_over = AtomicBool::new(false);
    let round = |number: u32| {
        let module = module(&engines[number as usize / 16 % 4], "leaves");
        let ids: Vec<ProbeId> =
            offsets(&module).into_iter().take(2).map(|offset| module.probe_id(at(offset)).unwrap()).collect();
        LAST.store(ids[1].0, Ordering::Release);
        // SAFETY: the function does nothing.
        unsafe { fastinst::activate(ids[0], nothing) }.unwrap();
        if number.is_multiple_of(16) {
            assert_eq!(run(&module, 4), 8);
        }
        drop(module);
        ids
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                let id = ProbeId(LAST.load(Ordering::Acquire));
                // SAFETY: as above.
                let on = unsafe { fastinst::activate(id, nothing) };
                for result in [on, fastinst::deactivate(id)] {
                    match result {
                        Ok(()) => drop(SWITCHED.fetch_add(1, Ordering::Relaxed)),
                        Err(Error::Retired { .. } | Error::UnknownProbe { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        (0..MODULES / 4).for_each(|number| drop(round(number)));
        let before = resident_kib();
        for number in MODULES / 4..MODULES {
            let ids = round(number);
            if number.is_multiple_of(16) {
                // The other thread may still hold the module: this ends.
                while !matches!(fastinst::deactivate(ids[0]), Err(Error::Retired { .. })) {
                    std::thread::yield_now();
                }
            }
        }
        let after = resident_kib();
        is_over.store(true, Ordering::Release);
        assert!(after < before + 8192, "{before} KiB after {} modules, {after} KiB at the end", MODULES / 4);
    });
    println!("{} switched", SWITCHED.load(Ordering::Relaxed));
    assert!(SWITCHED.load(Ordering::Relaxed) > 0);
}
