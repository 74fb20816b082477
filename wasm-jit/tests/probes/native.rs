//! Probes that call functions, with values of the frame.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{Bound, Callback, Kind, NativeFn, Probe, ProbeError, ProbeSpec, Values};
use wasm_jit::{Module, Val};

use super::behaviour::{TRAPPING, trapping};
use super::rewrite::Counted;
use super::threads::Ends;
use super::{Outcome, engine, location, outcome, programs, seeds, values};

/// What the probe of a place has recorded: of its values, and how often it has fired.
#[derive(Debug, Default)]
struct Record {
    values: AtomicU64,
    count: AtomicU64,
}

impl Record {
    fn values(&self) -> u64 {
        self.values.load(Ordering::Relaxed)
    }

    /// Adds values to the record at an address.
    fn add(record: u64, added: &[u64]) {
        // SAFETY: the probe passes the address of a record, which is leaked.
        let Self { values, count } = unsafe { &*(record as usize as *const Self) };
        let now = added.iter().fold(values.load(Ordering::Relaxed), |now, value| values::add(now, *value));
        values.store(now, Ordering::Relaxed);
        count.fetch_add(1, Ordering::Relaxed);
    }
}

extern "C" fn record1(record: u64, a: u64) {
    Record::add(record, &[a]);
}

extern "C" fn record2(record: u64, a: u64, b: u64) {
    Record::add(record, &[a, b]);
}

extern "C" fn record5(record: u64, a: u64, b: u64, c: u64, d: u64, e: u64) {
    clobber();
    Record::add(record, &[a, b, c, d, e]);
}

/// Changes all registers that the calling convention lets a function change, and the flags.
#[inline(never)]
pub(crate) fn clobber() {
    // SAFETY: declares what it changes.
    unsafe {
        std::arch::asm!(
            "mov eax, -1",
            "mov ecx, eax",
            "mov edx, eax",
            "mov esi, eax",
            "mov edi, eax",
            "mov r8, rax",
            "mov r9, rax",
            "mov r10, rax",
            "mov r11, rax",
            "pcmpeqd xmm0, xmm0",
            "movaps xmm1, xmm0",
            "movaps xmm2, xmm0",
            "movaps xmm3, xmm0",
            "movaps xmm4, xmm0",
            "movaps xmm5, xmm0",
            "movaps xmm6, xmm0",
            "movaps xmm7, xmm0",
            "movaps xmm8, xmm0",
            "movaps xmm9, xmm0",
            "movaps xmm10, xmm0",
            "movaps xmm11, xmm0",
            "movaps xmm12, xmm0",
            "movaps xmm13, xmm0",
            "movaps xmm14, xmm0",
            "movaps xmm15, xmm0",
            "add eax, 1",
            clobber_abi("C"),
        );
    }
}

/// A function for this number of values.
fn recorder(values: usize) -> NativeFn {
    // SAFETY: the functions do not unwind, and are part of the program; records are leaked.
    unsafe {
        match values {
            1 => NativeFn::new(record1 as extern "C" fn(u64, u64)),
            2 => NativeFn::new(record2 as extern "C" fn(u64, u64, u64)),
            _ => NativeFn::new(record5 as extern "C" fn(u64, u64, u64, u64, u64, u64)),
        }
    }
}

/// The same as a closure.
fn recording_closure() -> Callback {
    Callback::new(|values| {
        clobber();
        Record::add(values[0], &values[1..]);
    })
}

/// A probe that records values of a place.
struct Recording {
    place: Counted,
    record: &'static Record,
    probe: Probe,
}

/// Random values for each place of a module that has some, with the probes that record them.
fn record_everywhere(
    module: &Module,
    places: &HashMap<Counted, values::Place>,
    random: &mut SmallRng,
) -> (HashMap<Counted, Vec<values::Candidate>>, Vec<Recording>) {
    let mut sorted: Vec<&Counted> = places.keys().collect();
    sorted.sort();
    let mut chosen = HashMap::new();
    let mut specs = Vec::new();
    for place in sorted {
        let values = places[place].choose([1, 2, 5][random.random_range(0..3)], random);
        if values.is_empty() {
            continue;
        }
        let record: &Record = Box::leak(Box::default());
        let address = Bound::Const(std::ptr::from_ref(record) as u64);
        let bounds: Vec<Bound> =
            std::iter::once(address).chain(values.iter().map(|value| value.bound)).collect();
        let bounds = Values::from(&bounds[..]);
        let kind = match random.random() {
            true => Kind::Native { function: recorder(values.len()), values: bounds },
            false => Kind::Callback { function: recording_closure(), values: bounds },
        };
        specs.push((*place, record, ProbeSpec { location: location(module, *place), kind }));
        chosen.insert(*place, values);
    }
    let all: Vec<ProbeSpec> = specs.iter().map(|(.., spec)| spec.clone()).collect();
    let mut made = Vec::new();
    for (probe, (place, record, _)) in module.probes(&all).into_iter().zip(specs) {
        match probe {
            Ok(probe) => made.push(Recording { place, record, probe }),
            Err(ProbeError::Unreachable { .. }) => {
                chosen.remove(&place);
            }
            Err(error) => panic!("{place:x?}: {error}"),
        }
    }
    (chosen, made)
}

/// What the rewritten module has recorded.
pub(crate) fn reference(
    bytes: &[u8],
    places: &HashMap<Counted, values::Place>,
    chosen: &HashMap<Counted, Vec<values::Candidate>>,
) -> (Outcome, HashMap<Counted, u64>) {
    let (rewritten, all) = values::recording(bytes, places, chosen);
    let module = Module::from_binary(&engine(), &rewritten).unwrap();
    let (outcome, mut store, instance) = outcome(&module);
    let record = |(number, place): (usize, &Counted)| {
        let global = instance.get_global(&mut store, &format!("count {number}")).unwrap();
        let Val::I64(record) = global.get(&mut store) else { panic!("not an i64") };
        (*place, record as u64)
    };
    (outcome, all.iter().enumerate().map(record).collect())
}

/// Compares the records of probes that were active for one run with those of the rewritten module.
fn check(
    bytes: &[u8],
    places: &HashMap<Counted, values::Place>,
    chosen: &HashMap<Counted, Vec<values::Candidate>>,
    module: &Module,
    probes: &[Recording],
) {
    let (expected, records) = reference(bytes, places, chosen);
    assert_eq!(outcome(module).0, expected);
    for Recording { place, record, .. } in probes {
        assert_eq!(record.values(), records[place], "{place:x?} {:?}", chosen[place]);
    }
}

/// A load, or any other instruction, that traps does so before the next probe fires.
#[test]
fn probes_fire_before_traps_and_not_after() {
    for body in TRAPPING {
        if body.contains("call $inner") {
            // How deep the recursion gets depends on the size of the frames.
            continue;
        }
        let bytes = trapping(body);
        for seed in 0..20 {
            let module = Module::from_binary(&engine(), &bytes).unwrap();
            let places = values::places(&bytes);
            let (chosen, probes) = record_everywhere(&module, &places, &mut SmallRng::seed_from_u64(seed));
            for recording in &probes {
                recording.probe.activate().unwrap();
            }
            check(&bytes, &places, &chosen, &module, &probes);
        }
    }
}

fn activate_last(counters: &[(Counted, Probe)]) {
    if let Some((_, counter)) = counters.last() {
        counter.activate().unwrap();
    }
}

/// The probes of a function are made one by one, while those before them are on, and with counters
/// at the same places.
#[test]
fn probes_with_values_are_added_to_versions_that_run() {
    for seed in 0..20 {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let mut random = SmallRng::seed_from_u64(seed);
        let (mut chosen, mut probes, mut counters) = (HashMap::new(), Vec::new(), Vec::new());
        let mut sorted: Vec<&Counted> = places.keys().collect();
        sorted.sort();
        for place in sorted.into_iter().filter(|(_, at)| at.is_none_or(|at| at % 4 == 0)) {
            let one = HashMap::from([(*place, places[place].clone())]);
            let (values, made) = record_everywhere(&module, &one, &mut random);
            let spec = ProbeSpec { location: location(&module, *place), kind: Kind::Count };
            let counter = || module.probe(spec.clone());
            let before = random.random_range(0..2) == 0;
            if before {
                counters.extend(counter().ok().map(|counter| (*place, counter)));
                activate_last(&counters);
            }
            made.iter().for_each(|recording| recording.probe.activate().unwrap());
            if !before {
                counters.extend(counter().ok().map(|counter| (*place, counter)));
                activate_last(&counters);
            }
            probes.extend(made);
            chosen.extend(values);
        }
        check(&bytes, &places, &chosen, &module, &probes);
        for (place, counter) in &counters {
            if let Some(recording) = probes.iter().find(|recording| recording.place == *place) {
                assert_eq!(counter.count(), recording.record.count.load(Ordering::Relaxed));
            }
        }
    }
}

/// Every operand, local and address that a probe gets is that of the program.
#[test]
fn values_are_those_of_the_program() {
    let (mut fired, mut recorded) = (0, HashMap::new());
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let mut random = SmallRng::seed_from_u64(seed);
        let (chosen, probes) = record_everywhere(&module, &places, &mut random);
        let (expected, records) = reference(&bytes, &places, &chosen);
        for recording in &probes {
            recording.probe.activate().unwrap();
        }
        assert_eq!(outcome(&module).0, expected, "seed {seed}");
        for Recording { place, record, .. } in &probes {
            let values = &chosen[place];
            assert_eq!(record.values(), records[place], "seed {seed}: {place:x?} {values:?}");
            let count = record.count.load(Ordering::Relaxed);
            fired += count;
            for value in values {
                *recorded.entry(std::mem::discriminant(&value.bound)).or_insert(0) += count;
            }
        }
    }
    println!("{fired} fired, {recorded:?}");
    assert!(recorded.values().all(|count| *count > 60 * seeds().end), "{recorded:?}");
    assert_eq!(recorded.len(), 3, "operands, locals, addresses");
}

/// Random programs give what they should while their probes are switched by another thread; when it
/// is quiet, the values are right.
#[test]
fn random_programs_are_not_disturbed_by_functions() {
    let mut changes = 0;
    for seed in 200..220 {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let mut random = SmallRng::seed_from_u64(seed);
        let (chosen, probes) = record_everywhere(&module, &places, &mut random);
        let (expected, _) = reference(&bytes, &places, &chosen);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ends = Ends(&is_over);
                for _ in 0..50 {
                    assert_eq!(outcome(&module).0, expected, "seed {seed}");
                }
            });
            while !is_over.load(Ordering::Acquire) {
                let probe = &probes[random.random_range(0..probes.len())].probe;
                if random.random() { probe.activate() } else { probe.deactivate() }.unwrap();
                changes += 1;
            }
        });
        for Recording { record, probe, .. } in &probes {
            probe.activate().unwrap();
            record.values.store(0, Ordering::Relaxed);
        }
        check(&bytes, &places, &chosen, &module, &probes);
    }
    println!("{changes} changes");
    assert!(changes > 1000, "{changes}");
}

/// The tests with counters, for an engine with other settings.
pub(crate) fn test_with_counters() {
    probes_with_values_are_added_to_versions_that_run();
}

/// The other tests, likewise.
pub(crate) fn test_without_counters() {
    probes_fire_before_traps_and_not_after();
    values_are_those_of_the_program();
    random_programs_are_not_disturbed_by_functions();
}
