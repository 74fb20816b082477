//! Modules that are stored with their code and loaded again behave like those that were just
//! compiled; damaged and foreign ones are refused.

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::{
    Config, Engine, Error, FuncType, Instance, Module, PrecompiledError, ProbeSites, Store, ValType,
};

/// Indirect calls of three types, an exception, a vector, a global, memory, a start function,
/// names, a branch hint that changes code, and a trap.
const PROGRAM: &str = r#"(module $program
    (type $unary (func (param i32) (result i32)))
    (type $nullary (func (result i32)))
    (type $none (func))
    (import "host" "twice" (func $twice (type $unary)))
    (tag $tag (param i32))
    (memory 1)
    (data (i32.const 8) "\2a")
    (global $started (mut i32) (i32.const 0))
    (table funcref (elem $twice $next $forty_two $start))
    (func $start (global.set $started (i32.const 1)))
    (start $start)
    (func $next (type $unary) (i32.add (local.get 0) (i32.const 1)))
    (func $forty_two (type $nullary) (i32.load8_u (i32.const 8)))
    (func $call (export "call") (param $callee i32) (param $argument i32) (result i32)
        (local.get $argument)
        (call_indirect (type $unary) (local.get $callee)))
    (func (export "answer") (result i32)
        (call_indirect (type $nullary) (i32.const 2)))
    (func $catch (export "catch") (param i32) (result i32)
        (block $caught (result i32)
            (try_table (catch $tag $caught) (throw $tag (local.get 0)))
            (i32.const -1)))
    (func (export "vector") (result v128) (i32x4.splat (global.get $started)))
    (func $hinted (param i32) (result i32)
        (block (result i32)
            (@metadata.code.branch_hint "\01")
            (br_if 0 (i32.const 7) (local.get 0))
            (drop) (i32.const 8)))
    (func $sum (export "sum") (param $n i32) (result i32) (local $sum i32)
        (loop $again
            (local.set $sum (i32.add (local.get $sum) (local.get $n)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum)))"#;

/// An engine in which all types have other ids than in one without anything.
fn other_engine(config: &Config) -> Engine {
    let engine = Engine::new(config).unwrap();
    for count in 0..300 {
        engine.func_type_id(&FuncType::new(vec![ValType::F64; count], [ValType::F32])).unwrap();
    }
    engine
}

/// The program as another engine has compiled it.
fn loaded(engine: &Engine) -> Module {
    let bytes = Module::new(&other_engine(&Config::new()), PROGRAM).unwrap().serialize().unwrap();
    // SAFETY: just serialized.
    unsafe { Module::deserialize(engine, bytes) }.unwrap()
}

/// Loads what may have been changed, but not with the intention that it is accepted.
fn load(engine: &Engine, bytes: &[u8]) -> Result<Module, PrecompiledError> {
    // SAFETY: it is refused unless it is what was serialized.
    match unsafe { Module::deserialize(engine, bytes) } {
        Ok(module) => Ok(module),
        Err(Error::Precompiled(error)) => Err(error),
        Err(error) => panic!("another error: {error}"),
    }
}

fn instance(module: &Module) -> (Store<()>, Instance) {
    let mut store = Store::new(module.engine(), ());
    let twice = wasm_jit::Func::wrap(&mut store, |value: i32| 2 * value).unwrap();
    let instance = Instance::new(&mut store, module, &[twice.into()]).unwrap();
    (store, instance)
}

/// The results of the program's functions, and what a trap says.
fn behaviour(module: &Module) -> Vec<String> {
    let (mut store, instance) = instance(module);
    let call = instance.get_typed_func::<(i32, i32), i32>(&store, "call").unwrap();
    let mut seen: Vec<_> =
        (0..6).map(|callee| format!("{:?}", call.call(&mut store, (callee, 20)))).collect();
    let answer = instance.get_typed_func::<(), i32>(&store, "answer").unwrap();
    seen.push(format!("{:?}", answer.call(&mut store, ())));
    let catch = instance.get_typed_func::<i32, i32>(&store, "catch").unwrap();
    seen.push(format!("{:?}", catch.call(&mut store, 7)));
    let vector = instance.get_func(&store, "vector").unwrap();
    let mut results = [wasm_jit::Val::I32(0)];
    vector.call(&mut store, &[], &mut results).unwrap();
    seen.push(format!("{results:?}"));
    seen
}

fn objdump(module: &Module) -> String {
    let mut text = Vec::new();
    module.write_objdump(|_, _| true, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn a_loaded_module_behaves_like_the_compiled_one() {
    let engine = Engine::default();
    let (compiled, loaded) = (Module::new(&engine, PROGRAM).unwrap(), loaded(&engine));
    let behaviour_of_compiled = behaviour(&compiled);
    assert_eq!(behaviour_of_compiled[..2], ["Ok(40)", "Ok(21)"]);
    assert!(behaviour_of_compiled[2].contains("BadSignature"), "{}", behaviour_of_compiled[2]);
    assert_eq!(behaviour_of_compiled[6], "Ok(42)");
    assert_eq!(behaviour(&loaded), behaviour_of_compiled);
    assert_eq!(objdump(&loaded), objdump(&compiled));
    assert_eq!(loaded.name(), Some("program"));
    assert_eq!(loaded.bytes(), compiled.bytes());
    let exports = |module: &Module| module.exports().map(|export| format!("{export:?}")).collect::<Vec<_>>();
    assert_eq!(exports(&loaded), exports(&compiled));
}

#[test]
fn a_loaded_module_can_be_serialized_and_loaded_again() {
    let engine = Engine::default();
    let bytes = Module::new(&engine, PROGRAM).unwrap().serialize().unwrap();
    let again = load(&engine, &bytes).unwrap().serialize().unwrap();
    assert!(again == bytes, "the same bytes");
}

#[test]
fn a_module_can_be_loaded_from_a_file() {
    let engine = Engine::default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program.cwasm");
    std::fs::write(&path, Module::new(&engine, PROGRAM).unwrap().serialize().unwrap()).unwrap();
    // SAFETY: just serialized, and not changed.
    let module = unsafe { Module::deserialize_file(&engine, &path) }.unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(behaviour(&module), behaviour(&loaded(&engine)));
    // SAFETY: there is no file.
    let error = unsafe { Module::deserialize_file(&engine, &path) }.unwrap_err();
    assert!(matches!(error, Error::Read { .. }), "{error}");
}

#[test]
fn an_empty_module_can_be_loaded() {
    let engine = Engine::default();
    let bytes = Module::new(&engine, "(module)").unwrap().serialize().unwrap();
    Instance::new(&mut Store::new(&engine, ()), &load(&engine, &bytes).unwrap(), &[]).unwrap();
}

/// Counters at all instructions of the function `sum`, which are on.
fn count_sum(module: &Module) -> Vec<Probe> {
    let sum = module.functions().find(|function| function.name() == Some("sum")).unwrap();
    let body = sum.body().unwrap();
    let spec = |instruction: wasm_jit::Instruction<'_>| {
        let place = Place::Instruction { offset: (instruction.offset() - body.range().start) as u32 };
        ProbeSpec { location: Location { function: sum.index(), place }, kind: Kind::Count }
    };
    let probes: Vec<_> =
        body.instructions().map(|instruction| module.probe(spec(instruction)).unwrap()).collect();
    probes.iter().for_each(|probe| probe.activate().unwrap());
    probes
}

#[test]
fn probes_count_in_a_loaded_module() {
    for sites in [ProbeSites::None, ProbeSites::Functions, ProbeSites::Branches, ProbeSites::All] {
        let mut config = Config::new();
        config.probe_sites(sites);
        let compiled = Module::new(&other_engine(&config), PROGRAM).unwrap();
        let module = load(&Engine::new(&config).unwrap(), &compiled.serialize().unwrap()).unwrap();
        let probes = count_sum(&module);
        let (mut store, instance) = instance(&module);
        let sum = instance.get_typed_func::<i32, i32>(&store, "sum").unwrap();
        assert_eq!(sum.call(&mut store, 10).unwrap(), 55);
        let counts: Vec<u64> = probes.iter().map(Probe::count).collect();
        assert_eq!(counts[1..10], [10; 9], "{sites:?}: in the loop");
        assert_eq!(counts[10..], [1; 3], "{sites:?}: after the loop");
    }
}

#[test]
fn a_module_is_serialized_without_its_probes() {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let before = module.serialize().unwrap();
    let _probes = count_sum(&module);
    assert!(module.serialize().unwrap() == before, "the same bytes");
}

#[test]
fn changes_of_any_byte_are_refused() {
    let engine = Engine::default();
    let mut bytes = Module::new(&engine, PROGRAM).unwrap().serialize().unwrap();
    for at in 0..bytes.len() {
        for change in [1, 0x80, 0xff] {
            bytes[at] ^= change;
            let error = load(&engine, &bytes).err();
            match at {
                0..8 => assert_eq!(error, Some(PrecompiledError::NotPrecompiled), "{at}"),
                8..12 => {
                    assert!(
                        matches!(error, Some(PrecompiledError::Incompatible { what: "format", .. })),
                        "{at}"
                    );
                }
                _ => assert!(matches!(error, Some(PrecompiledError::Damaged { .. })), "{at}: {error:?}"),
            }
            bytes[at] ^= change;
        }
    }
}

#[test]
fn truncated_modules_are_refused() {
    let engine = Engine::default();
    let bytes = Module::new(&engine, PROGRAM).unwrap().serialize().unwrap();
    for length in 0..bytes.len() {
        assert!(load(&engine, &bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
    }
    assert!(load(&engine, &[&bytes[..], b"\0"].concat()).is_err());
}

#[test]
fn random_damage_is_refused() {
    let engine = Engine::default();
    let bytes = Module::new(&engine, PROGRAM).unwrap().serialize().unwrap();
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..5000 {
        let mut damaged = bytes.clone();
        for _ in 0..random.random_range(1..4) {
            let (from, to) = (random.random_range(0..bytes.len()), random.random_range(0..bytes.len()));
            let length = random.random_range(1..200.min(bytes.len() - from.max(to)).max(2));
            match random.random_range(0..4) {
                0 => damaged
                    .iter_mut()
                    .skip(from)
                    .take(length)
                    .for_each(|byte| *byte = random.next_u32() as u8),
                1 => drop(damaged.drain(from.min(damaged.len())..(from + length).min(damaged.len()))),
                2 => damaged.splice(from.min(damaged.len()).., bytes[to..].iter().copied()).for_each(drop),
                _ => {
                    let by = length.min(damaged.len());
                    damaged.rotate_left(by);
                }
            }
        }
        assert!(damaged == bytes || load(&engine, &damaged).is_err());
    }
}

/// The serialized program with this text replaced by one of the same length, and a valid checksum.
fn with_replaced(bytes: &[u8], text: &str, by: &str) -> Vec<u8> {
    assert_eq!(text.len(), by.len());
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    let mut bytes = bytes.to_vec();
    bytes[at..at + by.len()].copy_from_slice(by.as_bytes());
    let length = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    let checksum = crc32fast::hash(&bytes[16..24 + length]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn modules_for_other_versions_and_processors_are_refused() {
    let engine = Engine::default();
    let bytes = Module::new(&engine, PROGRAM).unwrap().serialize().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let error = load(&engine, &with_replaced(&bytes, version, "9.9.9")).unwrap_err();
    assert!(matches!(error, PrecompiledError::Incompatible { what: "version", .. }), "{error}");
    let error = load(&engine, &with_replaced(&bytes, "x86-64-v3", "x86-64-v4")).unwrap_err();
    let expected =
        "the module was precompiled with processor x86-64-v4, which is x86-64-v3 here: compile it again";
    assert_eq!(error.to_string(), expected);
    let error = load(&engine, &with_replaced(&bytes, "fuel", "food")).unwrap_err();
    assert!(matches!(error, PrecompiledError::Incompatible { what: "fuel", .. }), "{error}");
}

#[test]
fn modules_with_other_settings_are_refused() {
    let bytes = Module::new(&Engine::default(), PROGRAM).unwrap().serialize().unwrap();
    #[track_caller]
    fn check(bytes: &[u8], set: impl FnOnce(&mut Config) -> &mut Config, setting: &str) {
        let mut config = Config::new();
        set(&mut config);
        let error = load(&Engine::new(&config).unwrap(), bytes).unwrap_err();
        assert!(error.to_string().contains(setting), "{error}");
    }
    let checks = if Engine::default().checks_bounds() {
        wasm_jit::BoundsChecks::Reservation
    } else {
        wasm_jit::BoundsChecks::Instructions
    };
    check(&bytes, |config| config.bounds_checks(checks), "bounds checks by instructions");
    check(&bytes, |config| config.harden_speculation(true), "hardening of speculation off, which is on here");
    check(&bytes, |config| config.relaxed_simd_deterministic(false), "deterministic relaxed vectors");
    check(&bytes, |config| config.consume_fuel(true), "fuel");
    check(&bytes, |config| config.probe_sites(ProbeSites::All), "probe sites none, which is all here");
    let portable = Engine::new(Config::new().avx512(false)).unwrap();
    let portable = Module::new(&portable, PROGRAM).unwrap().serialize().unwrap();
    check(&portable, |config| config.avx512(false).consume_fuel(true), "fuel");
    match Engine::new(Config::new().avx512(true)) {
        Ok(engine) => {
            let error = load(&engine, &portable).unwrap_err();
            assert!(error.to_string().contains("AVX-512 off, which is on here"), "{error}");
            check(&bytes, |config| config.avx512(false), "AVX-512 on, which is off here");
        }
        Err(error) => println!("skipped: modules with AVX-512: {error}"),
    }
}

#[test]
fn settings_that_do_not_affect_code_may_differ() {
    let bytes = Module::new(&Engine::default(), PROGRAM).unwrap().serialize().unwrap();
    let mut config = Config::new();
    config
        .max_wasm_stack(512 << 10)
        .interrupt_signal(40)
        .counter_stubs(9)
        .compile_threads(std::num::NonZero::<usize>::MIN);
    behaviour(&load(&Engine::new(&config).unwrap(), &bytes).unwrap());
}
