//! Watchpoints.

use wasm_jit_debug::{Expression, Reason, Resume, Stop};

use super::Debugged;

const STORES: &str = r#"(module
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
    debugged.debugger.add_watch(Expression::parse(text).unwrap(), level).unwrap()
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
    // The same value is no change.
    let stop = debugged.go(Resume::Continue);
    assert_eq!(changed(&stop, number), ("7".into(), "-1".into()));
    assert_eq!(stop.depth, 0);
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
    assert!(debugged.debugger.add_watch(parse("$local7"), 0).is_err());
    assert!(debugged.debugger.add_watch(parse("nothing"), 0).is_err());
    assert!(debugged.debugger.add_watch(parse("1"), 5).is_err());
    let other = Debugged::new(STORES);
    assert!(other.debugger.add_watch(parse("$y"), 0).is_err(), "there is no frame");
}
