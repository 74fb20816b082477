//! Breakpoints: locations, conditions, toggling them while the program runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use wasm_jit::{Engine, Linker, Module, Store, Val};
use wasm_jit_debug::{Debugger, Error, Event, Expression, Reason, Resume};

use super::watches::{STORES, use_memory_up};
use super::{Debugged, is_breakpoint};

const COUNTS: &str = r#"(module
    (memory (export "memory") 1)
    (global $total (mut i32) (i32.const 0))
    (func $add (param $by i32) (result i32)
        (global.set $total (i32.add (global.get $total) (local.get $by)))
        (i32.store (i32.const 16) (global.get $total))
        (global.get $total))
    (func $main (export "main") (param $n i32) (result i32)
        (loop $again
            (drop (call $add (local.get $n)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (global.get $total)))"#;

fn condition(text: &str) -> Option<Expression> {
    Some(Expression::parse(text).unwrap())
}

#[test]
fn a_breakpoint_stops_each_time_until_it_is_deleted() {
    let mut debugged = Debugged::new(COUNTS);
    let number = debugged.debugger.add_breakpoint("add", None, false).unwrap();
    debugged.start(&[Val::I32(5)]);
    for expected in [5, 4] {
        let stop = debugged.stop();
        assert!(is_breakpoint(&stop, number));
        assert_eq!(debugged.value(0, "$by"), expected.to_string());
        assert_eq!(debugged.value(1, "$n"), expected.to_string());
        debugged.debugger.resume(Resume::Continue).unwrap();
    }
    debugged.stop();
    debugged.debugger.delete(number).unwrap();
    assert_eq!(debugged.finish().text, "15");
    assert!(matches!(debugged.debugger.delete(number), Err(Error::NoBreakpoint { number: 1 })));
}

#[test]
fn conditions_are_evaluated_in_the_frame() {
    let mut debugged = Debugged::new(COUNTS);
    let number =
        debugged.debugger.add_breakpoint("add", condition("$local0 == 2 || i32[16] >= 14"), false).unwrap();
    debugged.start(&[Val::I32(5)]);
    debugged.stop();
    assert_eq!(debugged.value(0, "$by"), "2");
    assert_eq!(debugged.value(0, "$total"), "12");
    debugged.go(Resume::Continue);
    assert_eq!(debugged.value(0, "$by"), "1");
    let [breakpoint] = &debugged.debugger.breakpoints()[..] else { panic!() };
    assert_eq!((breakpoint.number, breakpoint.hits), (number, 2));
    assert_eq!(debugged.finish().text, "15");
}

#[test]
fn conditions_with_unknown_names_are_refused() {
    let debugged = Debugged::new(COUNTS);
    let debugger = &debugged.debugger;
    let unknown = |error: Error| {
        let Error::Unknown { name, .. } = error else { panic!("{error}") };
        name
    };
    for (text, name) in [
        ("$by == 1 && $nothing > 2", "$nothing"),
        ("i32[nothing]", "nothing"),
        ("1 ? 2 : $nothing", "$nothing"),
        ("sizeof(struct nothing) == 4", "struct nothing"),
        // A local of another function.
        ("$n == 1", "$n"),
    ] {
        let error = debugger.add_breakpoint("add", condition(text), false).unwrap_err();
        assert_eq!(unknown(error), name);
    }
    assert!(debugger.breakpoints().is_empty());
    let number = debugger.add_breakpoint("add", condition("$by == nan || $by"), false).unwrap();
    assert_eq!(unknown(debugger.set_condition(number, condition("$bye")).unwrap_err()), "$bye");
    assert_eq!(debugger.breakpoints()[0].condition.as_ref().unwrap().text(), "$by == nan || $by");
    // The frame in which a watchpoint's condition is evaluated may be that of any function.
    let watch = Expression::parse("i32[16]").unwrap();
    assert_eq!(unknown(debugger.add_watch(watch, condition("$bye"), 0).unwrap_err()), "$bye");
    assert_eq!(debugger.breakpoints().len(), 1);
    let before = number;
    let number = debugger.add_watch(Expression::parse("i32[16]").unwrap(), None, 0).unwrap();
    assert_eq!(number, before + 1);
    assert_eq!(unknown(debugger.set_condition(number, condition("$bye")).unwrap_err()), "$bye");
    debugger.set_condition(number, condition("$n > $by")).unwrap();
}

#[test]
fn a_condition_without_a_value_stops_and_says_why() {
    let mut debugged = Debugged::new(COUNTS);
    debugged.debugger.add_breakpoint("add", condition("1 / ($by - 4)"), false).unwrap();
    debugged.start(&[Val::I32(4)]);
    let stop = debugged.stop();
    let [wasm_jit_debug::Reason::Breakpoint { problem: Some(problem), .. }] = &stop.reasons[..] else {
        panic!("{stop:?}")
    };
    assert_eq!(problem, "division by zero");
    debugged.debugger.set_condition(1, condition("$by == 1")).unwrap();
    debugged.go(Resume::Continue);
    assert_eq!(debugged.value(0, "$by"), "1");
    assert_eq!(debugged.finish().text, "10");
}

#[test]
fn hits_are_ignored_and_breakpoints_are_switched() {
    let mut debugged = Debugged::new(COUNTS);
    let ignored = debugged.debugger.add_breakpoint("add", None, false).unwrap();
    let off = debugged.debugger.add_breakpoint("add:+3", None, false).unwrap();
    debugged.debugger.ignore(ignored, 3).unwrap();
    debugged.debugger.enable(off, false).unwrap();
    debugged.start(&[Val::I32(6)]);
    let stop = debugged.stop();
    assert!(is_breakpoint(&stop, ignored));
    assert_eq!(debugged.value(0, "$by"), "3");
    debugged.debugger.enable(ignored, false).unwrap();
    debugged.debugger.enable(off, true).unwrap();
    let stop = debugged.go(Resume::Continue);
    assert!(is_breakpoint(&stop, off), "{stop:?}");
    assert_eq!(debugged.finish_all(), "21");
}

impl Debugged {
    /// Deletes all breakpoints, and runs to the end.
    fn finish_all(&mut self) -> String {
        for breakpoint in self.debugger.breakpoints() {
            self.debugger.delete(breakpoint.number).unwrap();
        }
        self.finish().text
    }
}

#[test]
fn places_are_functions_offsets_and_nothing_else() {
    let debugged = Debugged::new(COUNTS);
    let debugger: &Debugger = &debugged.debugger;
    let code = debugger.code();
    let add = code.places("add").unwrap()[0];
    let offset = code.module_offset(add);
    assert_eq!(code.places("0").unwrap(), [add]);
    assert_eq!(code.places(&format!("*{offset:#x}")).unwrap(), [add]);
    assert_eq!(code.text(add), "global.get $total");
    #[track_caller]
    fn fails(code: &wasm_jit_debug::Code, place: &str, expected: &str) {
        assert_eq!(code.places(place).unwrap_err().to_string(), expected);
    }
    fails(code, "other", "there is no function with code `other`");
    fails(code, "7", "there is no function with code `7`");
    fails(
        code,
        &format!("*{}", offset + 1),
        &format!("there is no instruction at {:#x} of the module", offset + 1),
    );
    fails(
        code,
        "*0xffffffffffffffffff",
        "`*0xffffffffffffffffff`: expected FUNCTION, #INDEX, FUNCTION:+OFFSET, *OFFSET or FILE:LINE",
    );
    fails(code, "add:+0", &format!("there is no instruction at {:#x} of the module", offset - 1));
    fails(code, "a.c:3", "there is no source line in a module without debugging information `a.c:3`");
    fails(code, "", "there is no function with code ``");
    assert!(code.places("*18446744073709551615").is_err());
    assert!(code.places("add:+18446744073709551615").is_err());
}

#[test]
fn a_function_that_begins_with_a_loop_is_stopped_once_in_each_call() {
    let mut debugged = Debugged::new(
        r#"(module (func $count (param i32) (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
            (func (export "main") (call $count (i32.const 5)) (call $count (i32.const 3))))"#,
    );
    debugged.debugger.add_breakpoint("count", None, false).unwrap();
    debugged.start(&[]);
    debugged.stop();
    assert_eq!(debugged.value(0, "$local0"), "5");
    debugged.go(Resume::Continue);
    assert_eq!(debugged.value(0, "$local0"), "3");
    debugged.finish();
}

#[test]
fn unreachable_instructions_have_no_breakpoints() {
    let debugged = Debugged::new(r#"(module (func (export "main") (return) (nop)))"#);
    let code = debugged.debugger.code();
    let first = code.module_offset(code.places("main").unwrap()[0]);
    assert!(debugged.debugger.add_breakpoint(&format!("*{}", first + 1), None, false).is_err());
    assert!(debugged.debugger.breakpoints().is_empty());
}

#[test]
fn a_program_runs_on_when_its_debugger_ends() {
    let module = wasm_jit::Module::new(&wasm_jit::Engine::default(), COUNTS).unwrap();
    let debugger = Debugger::new(&module);
    debugger.add_breakpoint("add", None, false).unwrap();
    let program = std::thread::spawn(move || {
        let mut store = wasm_jit::Store::new(module.engine(), ());
        let instance = super::instantiate(&mut store, &module);
        super::call_main(&mut store, &instance, &[Val::I32(4)])
    });
    assert!(matches!(debugger.wait(), wasm_jit_debug::Event::Stopped(_)));
    drop(debugger);
    assert_eq!(program.join().unwrap(), Ok("10".to_owned()));
}

#[test]
fn a_stop_that_has_ended_is_no_event() {
    let mut debugged = Debugged::new(COUNTS);
    let number = debugged.debugger.add_breakpoint("add", None, false).unwrap();
    debugged.start(&[Val::I32(4)]);
    // Like a client that finds the program stopped, and never waits for this stop.
    let stopped = |debugged: &Debugged| {
        while !debugged.debugger.is_stopped() {
            std::thread::yield_now();
        }
    };
    stopped(&debugged);
    let stop = debugged.go(Resume::StepInstruction);
    assert!(matches!(stop.reasons[..], [Reason::Step]), "{stop:?}");
    debugged.debugger.resume(Resume::Continue).unwrap();
    stopped(&debugged);
    debugged.debugger.delete(number).unwrap();
    debugged.debugger.resume(Resume::Continue).unwrap();
    let outcome = debugged.end();
    assert_eq!(outcome.text, "10");
}

#[test]
fn threads_stop_one_after_the_other() {
    let module = wasm_jit::Module::new(&wasm_jit::Engine::default(), COUNTS).unwrap();
    let debugger = Debugger::new(&module);
    debugger.add_breakpoint("add", None, false).unwrap();
    const THREADS: i32 = 4;
    std::thread::scope(|scope| {
        for number in 1..=THREADS {
            let module = &module;
            scope.spawn(move || {
                let mut store = wasm_jit::Store::new(module.engine(), ());
                let instance = super::instantiate(&mut store, module);
                let sum = number * (number + 1) / 2;
                assert_eq!(super::call_main(&mut store, &instance, &[Val::I32(number)]), Ok(sum.to_string()));
            });
        }
        let mut seen = Vec::new();
        for _ in 0..THREADS * (THREADS + 1) / 2 {
            let wasm_jit_debug::Event::Stopped(stop) = debugger.wait() else { panic!() };
            let by =
                debugger.inspect(|stopped| stopped.frame(0).unwrap().local(0).unwrap().unwrap_i32()).unwrap();
            seen.push((stop.thread, by));
            debugger.resume(Resume::Continue).unwrap();
        }
        seen.sort_unstable();
        // Each thread counts down to 1 from its own number.
        let mut counts: Vec<usize> = (1..=THREADS as u32)
            .map(|thread| {
                let of_thread: Vec<i32> =
                    seen.iter().filter(|(of, _)| *of == thread).map(|(_, by)| *by).collect();
                assert_eq!(of_thread, (1..=of_thread.len() as i32).collect::<Vec<_>>());
                of_thread.len()
            })
            .collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 2, 3, 4]);
    });
}

#[test]
fn offsets_in_the_module_are_those_of_one_function() {
    for count in 0..6 {
        let functions = (0..count).map(|index| format!("(func (drop (i32.const {index})))"));
        let debugged = Debugged::new(&format!("(module {})", functions.collect::<String>()));
        let code = debugged.debugger.code();
        for function in 0..count {
            let first = code.first(function).unwrap();
            assert_eq!(code.at(code.module_offset(first)).unwrap(), first);
        }
        for offset in [0, 1000, u64::MAX] {
            assert!(code.at(offset).is_err());
        }
    }
}

fn listing(module: &Module) -> String {
    let mut text = Vec::new();
    module.write_objdump(|_, _| true, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// The first of its locations has another breakpoint, so that only the second one needs memory.
#[test]
fn a_breakpoint_that_cannot_be_enabled_leaves_no_probe() {
    let additions = "(local.set 0 (i32.add (local.get 0) (i32.const 1)))".repeat(600);
    let text =
        STORES.replacen("(func $main", &format!("(func $long (param i32) {additions}) (func $main"), 1);
    let mut debugged = Debugged::new(&text);
    let module = debugged.debugger.code().module().clone();
    let original = listing(&module);
    let locations = ["main", "long"].map(|name| debugged.debugger.code().places(name).unwrap()[0]);
    let other = debugged.debugger.add_breakpoint("main", None, false).unwrap();
    let number = debugged.debugger.add_breakpoint_at("both", locations.to_vec(), None, false).unwrap();
    debugged.debugger.enable(number, false).unwrap();
    let probes = use_memory_up(&module, locations[1].function);
    let error = debugged.debugger.enable(number, true).unwrap_err();
    assert!(matches!(error, Error::Probe(_)), "{error:?}");
    drop(probes);
    debugged.debugger.delete(other).unwrap();
    // The first probe that a thread reaches would end its call.
    debugged.debugger.kill();
    debugged.start_as(&[], false);
    assert_eq!(debugged.end().text, "42");
    assert_eq!(listing(&module), original);
}

#[test]
fn threads_that_wait_for_their_turn_to_stop_are_killed() {
    const THREADS: usize = 4;
    let text = r#"(module (import "host" "come" (func $come))
        (func (export "main") (call $come) (call $last))
        (func $last))"#;
    let module = Module::new(&Engine::default(), text).unwrap();
    let debugger = Arc::new(Debugger::new(&module));
    debugger.add_breakpoint("last", None, false).unwrap();
    let come = Arc::new(AtomicUsize::new(0));
    let (ends, ended) = channel();
    for _ in 0..THREADS {
        let (module, come, ends) = (module.clone(), come.clone(), ends.clone());
        std::thread::spawn(move || {
            let mut store = Store::new(module.engine(), ());
            let mut linker = Linker::new(module.engine());
            let comes = move || _ = come.fetch_add(1, Ordering::Relaxed);
            linker.func_wrap("host", "come", comes).unwrap();
            let instance = linker.instantiate(&mut store, &module).unwrap();
            let main = instance.get_typed_func::<(), ()>(&mut store, "main").unwrap();
            ends.send(main.call(&mut store, ()).map_err(|error| error.reason())).unwrap();
        });
    }
    assert!(matches!(debugger.wait(), Event::Stopped(_)));
    while come.load(Ordering::Relaxed) < THREADS {
        std::thread::yield_now();
    }
    // Most of them have come to the breakpoint by then.
    (0..1000).for_each(|_| std::thread::yield_now());
    debugger.kill();
    for _ in 0..THREADS {
        let end = ended.recv_timeout(Duration::from_secs(20)).expect("it does not stop");
        assert_eq!(end, Err("killed by the debugger".to_owned()));
    }
}
