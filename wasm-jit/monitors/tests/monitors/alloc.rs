//! Live memory by call path.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_monitors::{Format, Output, Report, Session};

use super::{Observed, integers, texts};

/// An allocator that never reuses memory, but frees it on request; calloc, realloc and Rust's call
/// it.
const ALLOCATOR: &str = "
    (memory 1) (global $next (mut i32) (i32.const 16))
    (func $malloc (param $size i32) (result i32)
        (if (i32.gt_u (local.get $size) (i32.const 60000)) (then (return (i32.const 0))))
        (global.get $next)
        (global.set $next (i32.add (global.get $next) (i32.add (local.get $size) (i32.const 16)))))
    (func $free (param i32))
    (func $calloc (param i32 i32) (result i32)
        (call $malloc (i32.mul (local.get 0) (local.get 1))))
    (func $realloc (param $old i32) (param $size i32) (result i32) (local $new i32)
        (local.set $new (call $malloc (local.get $size)))
        (if (local.get $new) (then (call $free (local.get $old))))
        (local.get $new))
    (func $_RNvCs1234_7___rustc12___rust_alloc (param i32 i32) (result i32)
        (return_call $malloc (local.get 0)))
    (func $other (param i32) (result i32) (call $malloc (local.get 0)))
    (func $drop_it (param i32) (call $free (local.get 0)))";

fn paths(report: &Report) -> Vec<(String, u64, u64, u64)> {
    let live =
        integers(report, "paths", "live bytes").into_iter().zip(integers(report, "paths", "live blocks"));
    let figures = live.zip(integers(report, "paths", "allocated bytes"));
    let mut all: Vec<_> = texts(report, "paths", "path")
        .into_iter()
        .zip(figures)
        .map(|(path, ((live, blocks), allocated))| (path, live, blocks, allocated))
        .collect();
    all.sort();
    all
}

#[test]
fn live_memory_has_paths() {
    let text = format!(
        "(module {ALLOCATOR}
        (func $keeps (param i32) (drop (call $malloc (local.get 0))))
        (func $frees (param i32) (call $free (call $calloc (i32.const 3) (local.get 0))))
        (func $grows (param i32)
            (drop (call $realloc (call $realloc (i32.const 0) (local.get 0)) (i32.mul (local.get 0) (i32.const 2)))))
        (func (export \"run\") (param i32)
            (call $keeps (local.get 0)) (call $keeps (local.get 0))
            (call $frees (local.get 0))
            (call $grows (local.get 0))
            (drop (call $malloc (i32.const 70000)))
            (drop (call $_RNvCs1234_7___rustc12___rust_alloc (i32.const 5) (i32.const 1)))
            (call $free (i32.const 0)) (call $free (i32.const 12345))))"
    );
    let observed = Observed::by(&text, "alloc");
    observed.call("run", 100).unwrap();
    let report = observed.report("alloc");
    let get = |name| report.get(name).unwrap();
    assert_eq!((get("live bytes"), get("live blocks")), (100 + 100 + 200 + 5, 4));
    assert_eq!(
        (get("peak bytes"), get("allocated bytes")),
        (100 + 100 + 300, 100 + 100 + 300 + 100 + 200 + 5)
    );
    assert_eq!((get("allocations"), get("frees")), (6, 3));
    assert_eq!((get("failed allocations"), get("frees of unknown blocks")), (1, 1));
    let expected = [
        ("run > __rustc::__rust_alloc > malloc", 5, 1, 5),
        ("run > frees > calloc", 0, 0, 300),
        ("run > grows > realloc", 200, 1, 300),
        ("run > keeps > malloc", 200, 2, 200),
    ];
    assert_eq!(
        paths(&report),
        expected.map(|(path, live, blocks, all)| (path.to_owned(), live, blocks, all))
    );
    let folded = report.files().iter().find(|(name, _)| name == "folded").unwrap();
    let folded = String::from_utf8(folded.1.clone()).unwrap();
    assert!(folded.lines().any(|line| line == "run;keeps;malloc 200"), "{folded}");
}

#[test]
fn modules_without_an_allocator_have_an_empty_report() {
    let observed = Observed::by(super::LOOP, "alloc");
    observed.call("run", 1).unwrap();
    let report = observed.report("alloc");
    assert_eq!((report.get("live bytes"), report.get("allocations")), (Some(0), Some(0)));
    assert!(Format::Text.print(&[report]).contains("no function with the name of an allocator's"));
}

#[test]
fn bytes_of_functions_that_are_not_observed_are_those_of_others() {
    let text = format!(
        "(module {ALLOCATOR} (func $keeps (drop (call $malloc (i32.const 3))))
            (func (export \"run\") (param i32) (call $keeps) (drop (call $malloc (local.get 0)))))"
    );
    let observed = Observed::by(&text, "alloc{function=keeps}");
    observed.call("run", 30).unwrap();
    let report = observed.report("alloc");
    let live = texts(&report, "paths", "path").into_iter().zip(integers(&report, "paths", "live bytes"));
    assert_eq!(live.collect::<Vec<_>>(), [("[other functions]".to_owned(), 30), ("keeps".to_owned(), 3)]);
    let folded = report.files().iter().find(|(name, _)| name == "folded").unwrap();
    assert_eq!(String::from_utf8_lossy(&folded.1), "[other functions] 30\nkeeps 3\n");
}

#[test]
fn allocators_are_named_by_options() {
    let text = format!(
        "(module {} (func (export \"run\") (param i32) (call $drop_it (call $other (local.get 0))) (drop (call $other (i32.const 7)))))",
        ALLOCATOR
            .replace("$malloc", "$m")
            .replace("$calloc", "$c")
            .replace("$realloc", "$r")
            .replace("$free", "$f")
            .replace("12___rust_alloc", "12___rust_allox"),
    );
    let observed = Observed::by(&text, "alloc{alloc=other,free=drop_it}");
    observed.call("run", 30).unwrap();
    let report = observed.report("alloc");
    assert_eq!((report.get("live bytes"), report.get("peak bytes")), (Some(7), Some(30)));
    let session = Session::new(&observed.module, Output::none());
    let refused = |request: &str| session.enable(request.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(
        refused("alloc{alloc=there}"),
        "option `alloc`: `there` is not the name of a function of the module"
    );
}

#[test]
fn functions_that_cannot_be_allocators_are_refused() {
    let text = "(module (func (export \"run\") (param i32)) (func $nothing)
        (func $size (param f32) (result i32) (i32.const 8))
        (func $resize (param i32) (result i32) (i32.const 8)))";
    let session = Session::new(&Module::new(&Engine::default(), text).unwrap(), Output::none());
    for (option, function, signature) in [
        ("alloc", "run", "with an integer as its first parameter, the size, and one result, the address"),
        ("alloc", "size", "with an integer as its first parameter, the size, and one result, the address"),
        ("free", "nothing", "with an integer as its first parameter, the address"),
        (
            "realloc",
            "resize",
            "with integers as its first two parameters, the address and the size, and one result, the address",
        ),
    ] {
        let request = format!("alloc{{{option}={function}}}").parse().unwrap();
        let expected = format!(
            "option `{option}`: `{function}` is not the name of a function of the module {signature}"
        );
        assert_eq!(session.enable(request).unwrap_err().to_string(), expected);
    }
    session.enable("alloc{free=run,alloc=resize}".parse().unwrap()).unwrap();
}

#[test]
fn calls_that_a_trap_leaves_have_ended() {
    let text = format!(
        "(module {ALLOCATOR}
        (func $aligned_alloc (param i32 i32) (result i32) (unreachable))
        (func (export \"run\") (param i32)
            (drop (call $malloc (i32.const 3)))
            (if (local.get 0) (then (drop (call $aligned_alloc (i32.const 8) (i32.const 40)))))))"
    );
    let observed = Observed::by(&text, "alloc");
    let mut store = Store::new(observed.module.engine(), ());
    let instance = Instance::new(&mut store, &observed.module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    run.call(&mut store, 1).unwrap_err();
    run.call(&mut store, 0).unwrap();
    assert_eq!(observed.report("alloc").get("live bytes"), Some(6));
}

/// Random requests, of which the host keeps track.
#[test]
fn live_memory_of_random_programs() {
    let text = format!(
        "(module (import \"host\" \"next\" (func $next (result i32))) {ALLOCATOR}
        (func (export \"run\") (local $what i32)
            (loop $again
                (local.set $what (call $next))
                (if (i32.eqz (local.get $what)) (then (return)))
                (if (i32.eq (local.get $what) (i32.const 1)) (then (call $answer (call $malloc (call $next)))))
                (if (i32.eq (local.get $what) (i32.const 2)) (then (call $free (call $next))))
                (if (i32.eq (local.get $what) (i32.const 3)) (then (call $answer (call $realloc (call $next) (call $next)))))
                (br $again))))"
    )
    .replace("(import \"host\" \"next\"", "(import \"host\" \"answer\" (func $answer (param i32))) (import \"host\" \"next\"");
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Session::new(&module, Output::none());
    session.enable("alloc".parse().unwrap()).unwrap();
    #[derive(Default)]
    struct Account {
        live: BTreeMap<i32, i32>,
        queue: Vec<i32>,
        size: i32,
        peak: i64,
        steps: u32,
    }
    let account = Arc::new(Mutex::new((Account::default(), SmallRng::seed_from_u64(7))));
    let mut linker = Linker::<()>::new(module.engine());
    let of_answer = account.clone();
    linker
        .func_wrap("host", "answer", move |address: i32| {
            let (account, _) = &mut *of_answer.lock().unwrap();
            let size = account.size;
            account.live.insert(address, size);
            let sum: i64 = account.live.values().map(|size| i64::from(*size)).sum();
            account.peak = account.peak.max(sum);
        })
        .unwrap();
    let of_next = account.clone();
    linker
        .func_wrap("host", "next", move || -> i32 {
            let (account, random) = &mut *of_next.lock().unwrap();
            if let Some(next) = account.queue.pop() {
                return next;
            }
            account.steps += 1;
            if account.steps > 500 {
                return 0;
            }
            let what = if account.live.is_empty() { 1 } else { random.random_range(1..=3) };
            account.size = random.random_range(1..100);
            let chosen = account.live.keys().nth(random.random_range(0..account.live.len().max(1))).copied();
            match (what, chosen) {
                (2, Some(address)) => {
                    account.live.remove(&address);
                    account.queue.push(address);
                }
                (3, Some(address)) => {
                    account.live.remove(&address);
                    account.queue.extend([account.size, address]);
                }
                _ => account.queue.push(account.size),
            }
            what
        })
        .unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    let report = session.report("alloc").unwrap();
    let (account, _) = &*account.lock().unwrap();
    assert_eq!(report.get("live blocks"), Some(account.live.len() as u64));
    assert_eq!(report.get("live bytes"), Some(account.live.values().map(|size| *size as u64).sum()));
    assert_eq!(report.get("peak bytes"), Some(account.peak as u64));
    assert_eq!(report.get("failed allocations"), None);
    assert!(account.live.len() > 10);
}

/// A garbage collector frees without a call.
#[test]
fn blocks_that_are_allocated_again_were_not_freed_by_calls() {
    let text = "(module
        (func $malloc (param i32) (result i32) (i32.const 64))
        (func (export \"run\") (param i32)
            (drop (call $malloc (local.get 0)))
            (drop (call $malloc (i32.const 20)))
            (drop (call $malloc (i32.const 30)))))";
    let observed = Observed::by(text, "alloc");
    observed.call("run", 10).unwrap();
    let report = observed.report("alloc");
    let get = |name| report.get(name).unwrap();
    assert_eq!((get("live bytes"), get("live blocks"), get("allocated bytes")), (30, 1, 60));
    assert_eq!((get("frees"), get("blocks allocated again")), (0, 2));
    assert_eq!(report.get("frees of unknown blocks"), None);
}

/// `posix_memalign` returns an error, and stores the address. It calls `malloc` itself, as
/// operators of C++ do: these calls count once.
#[test]
fn allocators_that_call_others_count_once() {
    let text = format!(
        "(module {ALLOCATOR}
        (func $posix_memalign (param $place i32) (param i32) (param $size i32) (result i32) (local i32)
            (local.set 3 (call $malloc (local.get $size)))
            (if (i32.eqz (local.get 3)) (then (return (i32.const 48))))
            (i32.store (local.get $place) (local.get 3))
            (i32.const 0))
        (func $_ZnwmSt11align_val_t (param i32 i32) (result i32)
            (drop (call $posix_memalign (i32.const 8) (local.get 1) (local.get 0)))
            (i32.load (i32.const 8)))
        (func $_Znam (param i32) (result i32) (call $malloc (local.get 0)))
        (func $_ZdlPvm (param i32 i32) (call $free (local.get 0)))
        (func (export \"run\") (param i32)
            (drop (call $posix_memalign (i32.const 8) (i32.const 16) (i32.const 30)))
            (call $free (i32.load (i32.const 8)))
            (drop (call $posix_memalign (i32.const 8) (i32.const 16) (i32.const 40)))
            (drop (call $posix_memalign (i32.const 8) (i32.const 16) (i32.const 70000)))
            (call $_ZdlPvm (call $_ZnwmSt11align_val_t (i32.const 7) (i32.const 16)) (i32.const 7))
            (drop (call $_Znam (i32.const 9)))))"
    );
    let observed = Observed::by(&text, "alloc");
    observed.call("run", 0).unwrap();
    let report = observed.report("alloc");
    let get = |name| report.get(name).unwrap();
    assert_eq!((get("live bytes"), get("live blocks")), (40 + 9, 2));
    assert_eq!((get("allocations"), get("frees"), get("allocated bytes")), (4, 2, 30 + 40 + 7 + 9));
    assert_eq!((get("failed allocations"), report.get("frees of unknown blocks")), (1, None));
    let expected = [
        ("run > operator new(unsigned long, std::align_val_t)", 0, 0, 7),
        ("run > operator new[](unsigned long)", 9, 1, 9),
        ("run > posix_memalign", 40, 1, 70),
    ];
    let expected: Vec<_> =
        expected.iter().map(|(path, live, blocks, all)| ((*path).to_owned(), *live, *blocks, *all)).collect();
    assert_eq!(paths(&report), expected);
}

#[test]
fn paths_that_are_left_out_are_counted() {
    let chain: String = (0..20).map(|at| format!("(func $f{at} (call $f{}))", at + 1)).collect();
    let text = format!(
        "(module {ALLOCATOR} {chain} (func $f20 (drop (call $malloc (i32.const 1))))
            (func (export \"run\") (param i32) (call $f0)))"
    );
    let observed = Observed::by(&text, "alloc{contexts=8}");
    observed.call("run", 0).unwrap();
    let report = observed.report("alloc");
    // `run`, 21 others and malloc, of which five have contexts besides the two of every thread.
    assert_eq!(report.get("calls left out"), Some(23 - 6));
    assert_eq!(report.get("live bytes"), Some(1));
}
