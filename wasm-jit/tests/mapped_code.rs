//! Code that is executed in a mapped file, of a precompiled module or in a cache: what is mapped,
//! probes that make it a copy while it runs, and files that are damaged.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tempfile::TempDir;
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::{Cache, Config, Engine, Error, Instance, Module, PrecompiledError, Store};

/// Calls, a loop, a trap, an exception, and constants in the code.
const PROGRAM: &str = r#"(module $program
    (tag $tag (param i32))
    (table funcref (elem $half))
    (func $half (param f64) (result f64) (f64.mul (local.get 0) (f64.const 0.5)))
    (func $next (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
    (func $sum (export "sum") (param $n i32) (result i32) (local $sum i32)
        (loop $again
            (local.set $sum (i32.add (local.get $sum) (call $next (i32.const 0))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum))
    (func (export "halves") (param i32) (result i32)
        (i32.trunc_f64_s (call_indirect (param f64) (result f64)
            (f64.convert_i32_s (local.get 0)) (i32.const 0))))
    (func $catch (export "catch") (param i32) (result i32)
        (block $caught (result i32)
            (try_table (catch $tag $caught) (throw $tag (local.get 0)))
            (i32.const -1)))
    (func $choose (export "choose") (param i32) (result i32)
        (block $a (block $b (block $c (br_table $a $b $c (local.get 0)))
            (return (i32.const 30))) (return (i32.const 20)))
        (i32.const 10))
    (func $divide (export "divide") (param i32) (result i32)
        (i32.div_u (i32.const 100) (local.get 0))))"#;

/// A precompiled module, and where it is loaded from.
struct Stored {
    dir: TempDir,
}

impl Stored {
    fn new() -> Self {
        let stored = Self { dir: TempDir::new().unwrap() };
        let module = Module::new(&Engine::default(), PROGRAM).unwrap();
        fs::write(stored.file(), module.serialize().unwrap()).unwrap();
        stored
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("program.cwasm")
    }

    fn load(&self, engine: &Engine) -> Result<Module, Error> {
        // SAFETY: just written, and damaged before it is loaded at most.
        unsafe { Module::deserialize_file(engine, self.file()) }
    }

    fn module(&self) -> Module {
        self.load(&Engine::default()).unwrap()
    }
}

fn instance(module: &Module) -> (Store<()>, Instance) {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    (store, instance)
}

fn sum(module: &Module, n: i32) -> i32 {
    let (mut store, instance) = instance(module);
    let sum = instance.get_typed_func::<i32, i32>(&store, "sum").unwrap();
    sum.call(&mut store, n).unwrap()
}

/// The results of all functions, with backtraces of traps.
fn behaviour(module: &Module) -> Vec<String> {
    let (mut store, instance) = instance(module);
    let mut results = Vec::new();
    for name in ["sum", "halves", "catch", "choose", "divide"] {
        let function = instance.get_typed_func::<i32, i32>(&store, name).unwrap();
        for argument in 0..4 {
            results.push(
                match function.call(&mut store, if name == "sum" { argument + 1 } else { argument }) {
                    Ok(result) => format!("{name}: {result}"),
                    Err(error) => format!("{name}: {error}"),
                },
            );
        }
    }
    results
}

fn objdump(module: &Module) -> String {
    let mut text = Vec::new();
    module.write_objdump(|_, _| true, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// The numbers of mappings of files in a folder that are executable, and of the others.
fn mappings(folder: &Path) -> [usize; 2] {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let folder = folder.to_str().unwrap();
    let of_folder = || maps.lines().filter(|line| line.contains(folder));
    let executable = of_folder().filter(|line| line.contains(" r-xs ")).count();
    [executable, of_folder().count() - executable]
}

/// A counter at the label of the loop of `sum`, active.
fn counter(module: &Module) -> Probe {
    let sum = module.functions().find(|function| function.name() == Some("sum")).unwrap();
    let body = sum.body().unwrap();
    let first = body.instructions().nth(1).unwrap();
    let place = Place::Instruction { offset: (first.offset() - body.range().start) as u32 };
    let location = Location { function: sum.index(), place };
    let probe = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
    probe.activate().unwrap();
    probe
}

#[test]
fn code_of_a_file_is_executed_there_until_it_is_probed() {
    let stored = Stored::new();
    let folder = stored.dir.path();
    let compiled = Module::new(&Engine::default(), PROGRAM).unwrap();
    let (expected, listing) = (behaviour(&compiled), objdump(&compiled));
    assert!(expected.iter().any(|line| line.contains("integer divide by zero")), "{expected:?}");
    let module = stored.module();
    assert_eq!(mappings(folder)[0], 1);
    assert_eq!(behaviour(&module), expected);
    assert_eq!(objdump(&module), listing);
    assert_eq!(module.serialize().unwrap(), fs::read(stored.file()).unwrap());
    assert_eq!(mappings(folder)[0], 1, "nothing of this changes code");

    let probe = counter(&module);
    assert_eq!(mappings(folder), [0, 1], "a copy is patched");
    assert_eq!(behaviour(&module), expected);
    assert_eq!(probe.count(), 1 + 2 + 3 + 4);
    assert_eq!(module.serialize().unwrap(), fs::read(stored.file()).unwrap(), "without the probe");
    drop(probe);
    assert_eq!(behaviour(&module), expected);

    // Another module of the same file is not affected.
    let other = stored.module();
    assert_eq!(mappings(folder), [1, 2]);
    assert_eq!(behaviour(&other), expected);
    drop((module, other));
    assert_eq!(mappings(folder), [0, 0], "nothing is left");
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("patched-text"), "as of text whose owner is not known");
}

#[test]
fn code_in_a_cache_is_executed_there_until_it_is_probed() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::new(dir.path().join("cache"), 1 << 20).unwrap();
    let engine = Engine::new(Config::new().cache(cache.clone())).unwrap();
    let compiled = Module::new(&engine, PROGRAM).unwrap();
    assert_eq!(mappings(dir.path()), [0, 0]);
    let module = Module::new(&engine, PROGRAM).unwrap();
    assert_eq!((cache.statistics().hits, mappings(dir.path())), (1, [1, 1]));
    assert_eq!(behaviour(&module), behaviour(&compiled));
    // As when the cache removes it.
    fs::remove_dir_all(cache.folder()).unwrap();
    let probe = counter(&module);
    assert_eq!((sum(&module, 100), probe.count()), (100, 100));
    assert_eq!(behaviour(&module), behaviour(&compiled));
}

#[test]
fn code_is_copied_if_it_is_not_to_be_mapped() {
    let stored = Stored::new();
    let engine = Engine::new(Config::new().map_stored_code(false)).unwrap();
    let module = stored.load(&engine).unwrap();
    assert_eq!(mappings(stored.dir.path()), [0, 1]);
    // Whatever happens to the code in the file.
    let file = File::options().write(true).open(stored.file()).unwrap();
    let code = code_in(&stored.file());
    file.write_all_at(&vec![0; code.len()], code.start as u64).unwrap();
    assert_eq!(sum(&module, 10), 10);
    assert_eq!(behaviour(&module), behaviour(&Module::new(&engine, PROGRAM).unwrap()));
}

/// Where the code is in a file, from its first byte that is not zero: in the second page, since the
/// header is short.
fn code_in(file: &Path) -> Range<usize> {
    let contents = fs::read(file).unwrap();
    let module = contents.windows(8).rposition(|bytes| bytes == b"\0asm\x01\0\0\0").unwrap();
    let is_code = |byte: &u8| *byte != 0;
    let start = 4096 + contents[4096..].iter().position(is_code).unwrap();
    let end = contents[..module].iter().rposition(is_code).unwrap() + 1;
    assert!(start < 8192 && start < end && contents[4095] == 0 && contents[end] == 0);
    start..end
}

#[test]
fn damaged_files_are_refused() {
    let stored = Stored::new();
    let engine = Engine::default();
    let whole = fs::read(stored.file()).unwrap();
    let is_refused = |what: &str| match stored.load(&engine) {
        Err(Error::Precompiled(PrecompiledError::Damaged { .. } | PrecompiledError::NotPrecompiled)) => {}
        other => panic!("{what}: {other:?}"),
    };
    let code = code_in(&stored.file());
    for at in [code.start, code.end - 1, code.start - 1, code.end, 30, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        fs::write(stored.file(), &damaged).unwrap();
        is_refused(&format!("byte {at}"));
    }
    for length in [1, 20, 4096, code.start + 1, code.end, whole.len() - 1] {
        fs::write(stored.file(), &whole[..length]).unwrap();
        is_refused(&format!("{length} bytes"));
    }
    fs::write(stored.file(), [&whole[..], &[0]].concat()).unwrap();
    is_refused("a longer file");
    fs::write(stored.file(), &whole).unwrap();
    assert_eq!(sum(&stored.load(&engine).unwrap(), 10), 10);
    // `File::open` would accept it.
    fs::remove_file(stored.file()).unwrap();
    fs::create_dir(stored.file()).unwrap();
    assert!(matches!(stored.load(&engine), Err(Error::Read { .. })));
}

#[test]
fn damaged_code_in_a_cache_is_compiled_again() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::new(dir.path().join("cache"), 1 << 20).unwrap();
    let engine = Engine::new(Config::new().cache(cache.clone())).unwrap();
    Module::new(&engine, PROGRAM).unwrap();
    let file = fs::read_dir(cache.folder()).unwrap().next().unwrap().unwrap().path();
    let code = code_in(&file);
    for (number, at) in [30, code.start, code.end - 1].into_iter().enumerate() {
        let mut contents = fs::read(&file).unwrap();
        contents[at] ^= 1;
        fs::write(&file, contents).unwrap();
        let module = Module::new(&engine, PROGRAM).unwrap();
        assert_eq!(sum(&module, 10), 10);
        assert_eq!(cache.statistics().rejected, number as u64 + 1, "byte {at}");
    }
}

/// Threads run the code, and call functions of it for the first time, while others make the first
/// probes: each result is right, and what runs after a probe is active is counted.
#[test]
fn code_is_copied_while_threads_execute_it() {
    let stored = Stored::new();
    for _ in 0..50 {
        let module = stored.module();
        let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        let barrier = Barrier::new(4);
        let probes: Vec<Probe> = thread::scope(|scope| {
            let users = [(); 2].map(|()| {
                scope.spawn(|| {
                    barrier.wait();
                    let mut is_right = true;
                    while !ends.load(Ordering::Relaxed) {
                        is_right &= sum(&module, 50) == 50;
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    is_right
                })
            });
            let probers = [(); 2].map(|()| {
                scope.spawn(|| {
                    barrier.wait();
                    let probe = counter(&module);
                    let before = probe.count();
                    assert_eq!(sum(&module, 50), 50);
                    assert!(probe.count() >= before + 50);
                    probe
                })
            });
            let probes = probers.map(|prober| prober.join());
            let until = rounds.load(Ordering::Relaxed) + 2;
            while rounds.load(Ordering::Relaxed) < until {
                thread::yield_now();
            }
            ends.store(true, Ordering::Relaxed);
            assert_eq!(users.map(|user| user.join().unwrap()), [true; 2]);
            probes.map(Result::unwrap).into()
        });
        let before: Vec<u64> = probes.iter().map(Probe::count).collect();
        assert_eq!(sum(&module, 7), 7);
        let after: Vec<u64> = probes.iter().map(Probe::count).collect();
        assert_eq!(after, before.iter().map(|count| count + 7).collect::<Vec<_>>());
    }
}
