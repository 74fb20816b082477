//! Watchpoints.

use wasm_jit::probes::{Bound, Callback, Kind, Location, Place, Probe, ProbeSpec, Values, activate_all};
use wasm_jit::{Engine, Linker, MemoryType, Module, SharedMemory, Store};
use wasm_jit_debug::{Debugger, Error, Event, Expression, Outcome, Reason, Resume, Stop};

use super::Debugged;

pub(super) const STORES: &str = r#"(module
    (import "host" "print" (func $print (param i32)))
    (memory (export "memory") 1)
    (global $g (mut i32) (i32.const 1))
    (func $store (param $at i32) (param $value i32)
        (i32.store (local.get $at) (local.get $value)))
    (func $bump (param $x i32) (result i32) (local $y i32)
        (local.set $y (i32.add (local.get $x) (i32.const 1)))
        (call $store (i32.const 64) (local.get $y))
        (local.set $y (i32.mul (local.get $y) (i32.const 2)))
        (local.get $y))
    (func $main (export "main") (result i32)
        (call $store (i32.const 32) (i32.const 5))
        (call $store (i32.const 30) (i32.const 0x70000))
        (call $store (i32.const 32) (i32.const 7))
        (memory.fill (i32.const 0) (i32.const 255) (i32.const 40))
        (global.set $g (i32.const 1))
        (global.set $g (i32.const 2))
        (call $print (call $bump (i32.const 10)))
        (call $bump (i32.const 20))))"#;

fn watch(debugged: &Debugged, text: &str, level: usize) -> u32 {
    debugged.debugger.add_watch(Expression::parse(text).unwrap(), None, level).unwrap()
}

#[track_caller]
fn changed(stop: &Stop, number: u32) -> (String, String) {
    match &stop.reasons[..] {
        [Reason::Watch { number: of, old: Ok(old), new: Ok(new), .. }] if *of == number => {
            (old.to_string(), new.to_string())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_is_watched_whoever_writes_it() {
    let (mut debugged, _) = Debugged::begin(STORES, "main", &[]);
    let number = watch(&debugged, "i32[32]", 0);
    let stop = debugged.go(Resume::Continue);
    assert_eq!(changed(&stop, number), ("0".into(), "5".into()));
    assert_eq!(debugged.text(&stop), "end", "after the store");
    assert_eq!(stop.depth, 1);
    // A store that overlaps.
    assert_eq!(changed(&debugged.go(Resume::Continue), number), ("5".into(), "7".into()));
    // The same value is not a change.
    let stop = debugged.go(Resume::Continue);
    assert_eq!(changed(&stop, number), ("7".into(), "-1".into()));
    assert_eq!(stop.depth, 0);
    assert_eq!(debugged.finish().text, "42");
}

#[test]
fn hits_of_a_watchpoint_are_ignored() {
    let (mut debugged, _) = Debugged::begin(STORES, "main", &[]);
    let number = watch(&debugged, "i32[32]", 0);
    debugged.debugger.ignore(number, 2).unwrap();
    assert_eq!(changed(&debugged.go(Resume::Continue), number), ("7".into(), "-1".into()));
    let [breakpoint] = &debugged.debugger.breakpoints()[..] else { panic!("one watchpoint") };
    assert_eq!((breakpoint.hits, breakpoint.ignore), (3, 0));
    assert_eq!(debugged.finish().text, "42");
}

#[test]
fn globals_are_watched_from_the_start() {
    let mut debugged = Debugged::new(STORES);
    let number = watch(&debugged, "$g", 0);
    debugged.start(&[]);
    let stop = debugged.stop();
    assert_eq!(changed(&stop, number), ("1".into(), "2".into()));
    debugged.debugger.delete(number).unwrap();
    assert_eq!(debugged.finish().text, "42");
}

#[test]
fn a_local_is_watched_in_its_frame_only() {
    let (mut debugged, _) = Debugged::begin(STORES, "bump", &[]);
    let number = watch(&debugged, "$y", 0);
    assert_eq!(changed(&debugged.go(Resume::Continue), number), ("0".into(), "11".into()));
    assert_eq!(changed(&debugged.go(Resume::Continue), number), ("11".into(), "22".into()));
    let stop = debugged.go(Resume::Continue);
    assert!(
        matches!(&stop.reasons[..], [Reason::OutOfScope { number: of, .. }] if *of == number),
        "{stop:?}"
    );
    assert!(debugged.debugger.breakpoints().is_empty());
    // The second call is not watched.
    assert_eq!(debugged.finish().text, "42");
}

#[test]
fn a_local_of_a_caller_is_watched() {
    let (mut debugged, stop) = Debugged::begin(STORES, "store", &[]);
    assert_eq!(stop.depth, 1);
    debugged.debugger.add_breakpoint("bump", None, true).unwrap();
    debugged.go(Resume::Continue);
    debugged.debugger.add_breakpoint("store", None, true).unwrap();
    debugged.go(Resume::Continue);
    let number = watch(&debugged, "$y", 1);
    let stop = debugged.go(Resume::Continue);
    assert_eq!(changed(&stop, number), ("11".into(), "22".into()));
    assert_eq!(stop.depth, 1);
    debugged.debugger.enable(number, false).unwrap();
    assert_eq!(debugged.finish().text, "42");
}

#[test]
fn what_has_no_value_is_not_watched() {
    let (debugged, _) = Debugged::begin(STORES, "main", &[]);
    let parse = |text| Expression::parse(text).unwrap();
    let first = watch(&debugged, "i32[4]", 0);
    assert!(debugged.debugger.add_watch(parse("$local7"), None, 0).is_err());
    assert!(debugged.debugger.add_watch(parse("nothing"), None, 0).is_err());
    assert!(debugged.debugger.add_watch(parse("i32[0]"), None, 5).is_err());
    let constant = debugged.debugger.add_watch(parse("1 + 2"), None, 0);
    assert!(matches!(constant, Err(Error::Constant { .. })), "{constant:?}");
    assert_eq!(watch(&debugged, "i32[8]", 0), first + 1, "those that failed have no numbers");
    let other = Debugged::new(STORES);
    assert!(other.debugger.add_watch(parse("$y"), None, 0).is_err(), "there is no frame");
}

#[test]
fn conditions_of_watchpoints_are_evaluated_where_the_expression_is() {
    let (mut debugged, _) = Debugged::begin(STORES, "bump", &[]);
    let number = watch(&debugged, "$y", 0);
    let condition = |text| Some(Expression::parse(text).unwrap());
    debugged.debugger.set_condition(number, condition("$y == 22 && $x == 10")).unwrap();
    assert_eq!(changed(&debugged.go(Resume::Continue), number), ("11".into(), "22".into()));
    debugged.debugger.delete(number).unwrap();
    let number = watch(&debugged, "$g", 0);
    debugged.debugger.set_condition(number, condition("$g == 3")).unwrap();
    assert_eq!(debugged.finish().text, "42");
    let (debugged, _) = Debugged::begin(STORES, "main", &[]);
    let number = watch(&debugged, "i32[32]", 0);
    debugged.debugger.set_condition(number, condition("1 / 0")).unwrap();
    let stop = debugged.go(Resume::Continue);
    assert!(matches!(&stop.reasons[..], [Reason::Watch { problem: Some(_), .. }]), "{stop:?}");
}

/// Uses up the memory for stubs by probes of a function.
pub(super) fn use_memory_up(module: &Module, function: u32) -> Vec<Probe> {
    let info = module.function(function).unwrap();
    let body = info.body().unwrap();
    let start = body.range().start;
    let offsets: Vec<u32> = body.instructions().map(|at| (at.offset() - start) as u32).collect();
    let mut all = Vec::new();
    // Large stubs, and small ones for the rest.
    for count in [1000, 0] {
        let values = Values::from(&vec![Bound::Const(u64::MAX / 3); count][..]);
        let kind = Kind::Callback { function: Callback::new(|_| ()), values };
        let location = |offset| Location { function, place: Place::Instruction { offset } };
        let spec = |offset: &u32| ProbeSpec { location: location(*offset), kind: kind.clone() };
        let specs: Vec<ProbeSpec> = offsets.iter().map(spec).collect();
        let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
        assert!(activate_all(&probes).iter().any(Result::is_err), "more probes are needed");
        all.extend(probes);
    }
    all
}

#[test]
fn stops_and_ends_say_what_is_not_watched() {
    let additions = "(local.set 0 (i32.add (local.get 0) (i32.const 1)))".repeat(600);
    let text =
        STORES.replacen("(func $main", &format!("(func $long (param i32) {additions}) (func $main"), 1);
    let begin = |watched| {
        let (debugged, stop) = Debugged::begin(&text, "main", &[]);
        assert_eq!(stop.unwatched, None);
        let (long, main) = (stop.location.function - 1, stop.location.function);
        let probes = use_memory_up(debugged.debugger.code().module(), long);
        let number = watch(&debugged, watched, 0);
        let unwatched = debugged.debugger.unwatched().unwrap();
        assert_eq!(unwatched.functions, [long, main], "those that were probed");
        let line = unwatched.text(debugged.debugger.code());
        let expected = "not watched: long and 1 other function: the stubs of the module's probes";
        assert!(line.starts_with(expected), "{line}");
        (debugged, probes, number, [long, main])
    };
    let (mut debugged, _probes, _, not_watched) = begin("i32[1000]");
    let outcome = debugged.finish();
    assert_eq!((outcome.text.as_str(), outcome.unwatched.unwrap().functions), ("42", not_watched.to_vec()));
    // Once there is memory, functions are watched again.
    let (mut debugged, probes, number, _) = begin("i32[32]");
    drop(probes);
    debugged.debugger.enable(number, false).unwrap();
    assert_eq!(debugged.debugger.unwatched(), None);
    debugged.debugger.enable(number, true).unwrap();
    assert_eq!(debugged.debugger.unwatched(), None);
    assert_eq!(changed(&debugged.go(Resume::Continue), number), ("0".into(), "5".into()));
    debugged.debugger.delete(number).unwrap();
    assert_eq!(debugged.finish().unwatched, None);
}

/// Calls `main` with numbers in two instances that share a memory, in turns; returns the reports of
/// a watchpoint that was set before.
fn in_two_instances(expression: &str) -> Vec<(String, String)> {
    let text = r#"(module (import "host" "memory" (memory 1 1 shared)) (global $g (mut i32) (i32.const 1))
        (func (export "main") (param i32)
            (global.set $g (local.get 0))
            (i32.store (i32.const 64) (local.get 0))))"#;
    let module = Module::new(&Engine::default(), text).unwrap();
    let debugger = Debugger::new(&module);
    let number = debugger.add_watch(Expression::parse(expression).unwrap(), None, 0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut store = Store::new(module.engine(), ());
            let memory = SharedMemory::new(MemoryType::shared(1, 1)).unwrap();
            let mut linker = Linker::new(module.engine());
            linker.define(&store, "host", "memory", memory).unwrap();
            let instances = [(); 2].map(|()| linker.instantiate(&mut store, &module).unwrap());
            for value in 2..6 {
                let main = instances[value as usize % 2].get_typed_func::<i32, ()>(&mut store, "main");
                main.unwrap().call(&mut store, value).unwrap();
            }
            debugger.ended(Outcome::returned(""));
        });
        let mut changes = Vec::new();
        while let Event::Stopped(stop) = debugger.wait() {
            changes.push(changed(&stop, number));
            debugger.resume(Resume::Continue).unwrap();
        }
        changes
    })
}

#[test]
fn globals_are_watched_in_one_instance_and_shared_memories_in_all() {
    let changes = |values: &[(i32, i32)]| -> Vec<_> {
        values.iter().map(|(old, new)| (old.to_string(), new.to_string())).collect()
    };
    assert_eq!(in_two_instances("$g"), changes(&[(1, 2), (2, 4)]));
    assert_eq!(in_two_instances("i32[64]"), changes(&[(0, 2), (2, 3), (3, 4), (4, 5)]));
}
