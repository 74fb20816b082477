//! Memories and tables of 64 bits, and pages of one byte.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{Bound, Callback, Kind, Location, Place, ProbeSpec};
use wasm_jit::{
    BoundsChecks, Config, Engine, Error, ExternType, Instance, Linker, Memory, MemoryType, Module, RefType,
    SharedMemory, Store, StoreLimits, Table, TableType, Trap, Val,
};

/// Engines with all settings that affect accesses.
fn engines() -> Vec<Engine> {
    let mut engines = Vec::new();
    for checks in [BoundsChecks::Reservation, BoundsChecks::Instructions] {
        for harden in [false, true] {
            engines
                .push(Engine::new(Config::new().bounds_checks(checks).harden_speculation(harden)).unwrap());
        }
    }
    engines
}

/// An instance in a store of its own.
fn instance(engine: &Engine, text: &str) -> (Store<()>, Instance) {
    let module = Module::new(engine, text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut store = Store::new(engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (store, instance)
}

fn call(store: &mut Store<()>, instance: Instance, name: &str, arguments: &[Val]) -> Result<Val, Trap> {
    let mut results = [Val::I32(0)];
    let func = instance.get_func(&mut *store, name).unwrap();
    match func.call(&mut *store, arguments, &mut results) {
        Ok(()) => Ok(results[0].clone()),
        Err(error) => Err(error.trap().unwrap_or_else(|| panic!("{name}: {error}"))),
    }
}

/// Accesses with their widths, most of them to the second memory too: what takes no other operand,
/// and what takes a number of this type once or twice.
const ACCESSES: [(&str, u64, &str); 15] = [
    ("i32.load8_u", 1, ""),
    ("i64.load16_s", 2, ""),
    ("i32.load", 4, ""),
    ("i64.load", 8, ""),
    ("f64.load", 8, ""),
    ("v128.load", 16, ""),
    ("v128.load32_splat", 4, ""),
    ("i64.atomic.load8_u", 1, ""),
    ("i32.atomic.rmw.add", 4, "(i32.const 0)"),
    ("i64.atomic.rmw.or", 8, "(i64.const 0)"),
    ("i64.atomic.rmw.cmpxchg", 8, "(i64.const 0) (i64.const 0)"),
    ("i64.atomic.rmw16.xchg_u", 2, "(i64.const 0)"),
    ("memory.atomic.notify", 4, "(i32.const 0)"),
    ("memory.atomic.wait32", 4, "(i32.const 1) (i64.const 0)"),
    ("memory.atomic.wait64", 8, "(i64.const 1) (i64.const 0)"),
];

const OFFSETS: [u64; 9] =
    [0, 8, 65_528, 0x7fff_fff8, 0xffff_fff8, 1 << 32, 1 << 63, u64::MAX - 15, u64::MAX - 7];
const INDICES: [u64; 8] = [0, 8, 65_520, 65_536, 1 << 32, 1 << 63, u64::MAX - 15, u64::MAX - 7];

/// Declarations of two memories of two pages of 64 KiB and their functions, and how an index is
/// passed.
fn accesses_of(memories: &str, pages_of_one_byte: bool) -> (String, Vec<(String, u64, u128, u64)>) {
    let mut text = format!("(module {memories}\n");
    let mut cases = Vec::new();
    for (access, width, operands) in ACCESSES {
        for memory in ["", " $other"] {
            for offset in OFFSETS {
                let at = format!("{memory} offset={offset}");
                let name = format!("{access}{at}");
                text += &format!(
                    "(func (export \"{name}\") (param i64) (drop ({access}{at} (local.get 0) {operands})))\n"
                );
                let end = |index: u64| u128::from(index) + u128::from(offset) + u128::from(width);
                for index in INDICES {
                    let constant = format!("{name} at {index}");
                    text += &format!(
                        "(func (export \"{constant}\") (param i64) (drop ({access}{at} (i64.const {index}) {operands})))\n"
                    );
                    cases.push((name.clone(), index, end(index), width));
                    cases.push((constant, index, end(index), width));
                }
                // The last access inside, and the first one that is not.
                let size = if pages_of_one_byte { 131_000 } else { 131_072 };
                let step = if access.contains("atomic") { width } else { 1 };
                if let Some(last) = (size - width).checked_sub(offset) {
                    cases.push((name.clone(), last, end(last), width));
                    cases.push((name.clone(), last + step, end(last + step), width));
                }
            }
        }
    }
    text.push(')');
    (text, cases)
}

#[test]
fn accesses_are_checked_to_the_byte_and_do_not_wrap() {
    let large = "(memory i64 2 4 shared) (memory $other i64 2 4 shared)";
    let small = "(memory i64 131000 200000 shared (pagesize 1)) (memory $other i64 131000 200000 shared (pagesize 1))";
    for (memories, size, of_one_byte) in [(large, 131_072, false), (small, 131_000, true)] {
        let (text, cases) = accesses_of(memories, of_one_byte);
        let bytes = wat::parse_str(&text).unwrap();
        for engine in engines() {
            let module = Module::new(&engine, &bytes).unwrap();
            let mut store = Store::new(&engine, ());
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            for (name, index, end, width) in &cases {
                let access = instance.get_typed_func::<i64, ()>(&mut store, name).unwrap();
                let outcome = access.call(&mut store, *index as i64).map_err(|error| error.trap());
                let is_aligned =
                    !name.contains("atomic") || (end - u128::from(*width)) % u128::from(*width) == 0;
                match (*end <= size, is_aligned) {
                    (true, true) => assert_eq!(outcome, Ok(()), "{name}, {index}"),
                    (false, true) => {
                        assert_eq!(outcome, Err(Some(Trap::MemoryOutOfBounds)), "{name}, {index}")
                    }
                    // Both are wrong, or the alignment alone.
                    (_, false) => assert!(outcome.is_err(), "{name}, {index}"),
                }
            }
        }
    }
}

#[test]
fn stores_beyond_the_memory_change_nothing() {
    let text = r#"(module (memory (export "memory") i64 1)
        (func (export "near") (param i64) (result i32)
            (i64.store offset=8 (local.get 0) (i64.const -1)) (i32.const 0))
        (func (export "far") (param i64) (result i32)
            (i64.store offset=0xfffffffffffffff8 (local.get 0) (i64.const -1)) (i32.const 0))
        (func (export "vector") (param i64) (result i32)
            (v128.store offset=0x90000000 (local.get 0) (v128.const i64x2 -1 -1)) (i32.const 0)))"#;
    for engine in engines() {
        let (mut store, instance) = instance(&engine, text);
        for (name, offset) in [("near", 8), ("far", u64::MAX - 7), ("vector", 0x9000_0000)] {
            // The sum modulo 2^64 is an address in the memory.
            for wrapped in [0_u64, 8, 16, 64] {
                let index = wrapped.wrapping_sub(offset);
                if index >= 65_536 {
                    let outcome = call(&mut store, instance, name, &[Val::I64(index as i64)]);
                    assert_eq!(outcome.unwrap_err(), Trap::MemoryOutOfBounds, "{name}, {index:#x}");
                }
            }
        }
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        assert!(memory.data(&store).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn sizes_have_64_bits_and_growth_ends_at_the_maximum() {
    let text = r#"(module (memory (export "memory") i64 1 3) (table i64 2 4 funcref)
        (func (export "size") (result i64) (memory.size))
        (func (export "grow") (param i64) (result i64) (memory.grow (local.get 0)))
        (func (export "table size") (result i64) (table.size))
        (func (export "table grow") (param i64) (result i64) (table.grow (ref.null func) (local.get 0))))"#;
    for engine in engines() {
        let (mut store, instance) = instance(&engine, text);
        let mut call = |name: &str, arguments: &[i64]| {
            let arguments: Vec<Val> = arguments.iter().map(|value| Val::I64(*value)).collect();
            let Ok(Val::I64(value)) = call(&mut store, instance, name, &arguments) else { panic!("{name}") };
            value
        };
        assert_eq!((call("size", &[]), call("grow", &[1]), call("size", &[])), (1, 1, 2));
        for refused in [2, 1 << 32, 1 << 48, i64::MAX, -1, -2] {
            assert_eq!(call("grow", &[refused]), -1, "{refused}");
            assert_eq!(call("table grow", &[if refused == 2 { 3 } else { refused }]), -1, "{refused}");
        }
        assert_eq!((call("grow", &[1]), call("grow", &[0]), call("size", &[])), (2, 3, 3));
        assert_eq!((call("table grow", &[2]), call("table size", &[])), (2, 4));
    }
}

#[test]
fn indices_of_tables_are_not_cut_off() {
    let text = r#"(module (table $t i64 2 funcref) (type $f (func (result i32)))
        (elem (table $t) (i64.const 0) func $seven)
        (func $seven (type $f) (i32.const 7))
        (func (export "call") (param i64) (result i32) (call_indirect $t (type $f) (local.get 0)))
        (func (export "get") (param i64) (result i32) (ref.is_null (table.get $t (local.get 0))))
        (func (export "set") (param i64) (result i32) (table.set $t (local.get 0) (ref.null func)) (i32.const 0))
        (func (export "fill") (param i64) (result i32)
            (table.fill $t (local.get 0) (ref.null func) (i64.const 1)) (i32.const 0)))"#;
    for engine in engines() {
        let (mut store, instance) = instance(&engine, text);
        let mut call = |name: &str, index: i64| call(&mut store, instance, name, &[Val::I64(index)]);
        assert!(matches!(call("call", 0), Ok(Val::I32(7))));
        assert!(matches!(call("get", 1), Ok(Val::I32(1))));
        for index in [2, 1 << 32, 1 << 61, i64::MIN, -1] {
            assert_eq!(call("call", index).unwrap_err(), Trap::UndefinedElement, "{index}");
            for name in ["get", "set", "fill"] {
                assert_eq!(call(name, index).unwrap_err(), Trap::TableOutOfBounds, "{name} {index}");
            }
        }
    }
}

#[test]
fn a_memory_of_64_bits_uses_addresses_beyond_4_gib() {
    let text = r#"(module (memory i64 65538)
        (func (export "store") (param i64 i64) (result i64)
            (i64.store offset=0x10000000 (local.get 0) (local.get 1))
            (i64.load (i64.add (local.get 0) (i64.const 0x10000000)))))"#;
    // Only pages that are written take memory.
    for engine in engines() {
        let (mut store, instance) = instance(&engine, text);
        for index in [0xf000_0000_u64, 0xf000_fff0, 0xf001_fff8] {
            let arguments = [Val::I64(index as i64), Val::I64(!index as i64)];
            let outcome = call(&mut store, instance, "store", &arguments);
            assert!(matches!(outcome, Ok(Val::I64(value)) if value == !index as i64), "{index:#x}");
        }
        let beyond = [Val::I64(0xf001_fff9), Val::I64(0)];
        assert_eq!(call(&mut store, instance, "store", &beyond).unwrap_err(), Trap::MemoryOutOfBounds);
    }
}

#[test]
fn pages_of_one_byte() {
    let text = r#"(module (memory (export "memory") 10 10000 (pagesize 1)) (data (i32.const 7) "abc")
        (func (export "size") (result i32) (memory.size))
        (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
        (func (export "load") (param i32) (result i32) (i32.load8_u (local.get 0)))
        (func (export "store") (param i32) (result i32) (i32.store8 (local.get 0) (i32.const 255)) (i32.const 0)))"#;
    for engine in engines() {
        let (mut store, instance) = instance(&engine, text);
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let base = memory.data_ptr(&store);
        assert_eq!((memory.size(&store), memory.data(&store)), (10, &b"\0\0\0\0\0\0\0abc"[..]));
        assert!(memory.write(&mut store, 10, &[1]).is_err());
        let mut of_i32 = |name: &str, argument: i32| {
            let arguments = [Val::I32(argument)];
            call(&mut store, instance, name, &arguments[..usize::from(name != "size")])
        };
        let is = |outcome: Result<Val, Trap>, expected: i32| matches!(outcome, Ok(Val::I32(value)) if value == expected);
        assert!(is(of_i32("load", 9), i32::from(b'c')));
        assert_eq!(of_i32("load", 10).unwrap_err(), Trap::MemoryOutOfBounds);
        assert_eq!(of_i32("store", 10).unwrap_err(), Trap::MemoryOutOfBounds);
        // Into the next page of the system, byte by byte at its end.
        assert!(is(of_i32("grow", 4085), 10) && is(of_i32("grow", 1), 4095) && is(of_i32("grow", 1), 4096));
        for at in [10, 4095, 4096] {
            assert!(is(of_i32("load", at), 0), "{at} is zero");
            assert!(is(of_i32("store", at), 0));
        }
        assert_eq!(of_i32("load", 4097).unwrap_err(), Trap::MemoryOutOfBounds);
        assert!(
            is(of_i32("grow", 5904), -1) && is(of_i32("grow", 5903), 4097) && is(of_i32("size", 0), 10_000)
        );
        assert!(is(of_i32("load", 4096), 255));
        assert_eq!((memory.data_ptr(&store), memory.data(&store).len()), (base, 10_000));
    }
}

#[test]
fn a_memory_of_32_bits_beside_one_of_64() {
    let text = r#"(module (memory i64 1) (memory $narrow 1) (memory $bytes 100 (pagesize 1))
        (func (export "narrow") (param i32) (result i32) (i32.load8_u $narrow (local.get 0)))
        (func (export "bytes") (param i32) (result i32) (i32.load8_u $bytes (local.get 0))))"#;
    for engine in engines() {
        let (mut store, instance) = instance(&engine, text);
        for (name, size) in [("narrow", 65_536), ("bytes", 100)] {
            assert!(call(&mut store, instance, name, &[Val::I32(size - 1)]).is_ok());
            for index in [size, 1 << 20, -1] {
                let outcome = call(&mut store, instance, name, &[Val::I32(index)]);
                assert_eq!(outcome.unwrap_err(), Trap::MemoryOutOfBounds, "{name}, {index}");
            }
        }
    }
}

#[test]
fn bytes_are_copied_between_memories_of_different_addresses() {
    let text = r#"(module
        (memory $narrow (export "narrow") 1) (memory $wide (export "wide") i64 1)
        (memory $bytes (export "bytes") 100 (pagesize 1))
        (data $d "0123456789")
        (func (export "copy") (param i64) (result i32)
            (memory.init $wide $d (local.get 0) (i32.const 0) (i32.const 10))
            (memory.copy $narrow $wide (i32.const 2) (local.get 0) (i32.const 8))
            (memory.copy $bytes $narrow (i32.const 95) (i32.const 2) (i32.const 5))
            (memory.copy $wide $wide (i64.const 1) (local.get 0) (i64.const 3))
            (memory.fill $wide (i64.const 20) (i32.const 65) (i64.const 2))
            (i32.const 0)))"#;
    for engine in engines() {
        let (mut store, instance) = instance(&engine, text);
        assert!(call(&mut store, instance, "copy", &[Val::I64(65_526)]).is_ok());
        let [narrow, wide, bytes] =
            ["narrow", "wide", "bytes"].map(|name| instance.get_memory(&mut store, name).unwrap());
        assert_eq!(narrow.data(&store)[..11], *b"\0\x0001234567\0");
        assert_eq!(bytes.data(&store)[94..], *b"\x0001234");
        assert_eq!(wide.data(&store)[..4], *b"\x00012");
        assert_eq!(wide.data(&store)[19..23], *b"\0AA\0");
        for index in [65_527, 1 << 32, -1] {
            let outcome = call(&mut store, instance, "copy", &[Val::I64(index)]);
            assert_eq!(outcome.unwrap_err(), Trap::MemoryOutOfBounds, "{index}");
        }
    }
}

#[test]
fn memories_and_tables_of_another_kind_cannot_be_imported() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let memories = [
        ("1 2", MemoryType::new(1, Some(2))),
        ("i64 1 2", MemoryType::new64(1, Some(2))),
        ("1 2 (pagesize 1)", MemoryType::new(1, Some(2)).with_pages_of_one_byte()),
        ("i64 1 2 (pagesize 1)", MemoryType::new64(1, Some(2)).with_pages_of_one_byte()),
        ("1 2 shared", MemoryType::shared(1, 2)),
        ("i64 1 2 shared", MemoryType::shared64(1, 2)),
    ];
    for (wanted, wanted_type) in memories {
        let module = Module::new(&engine, format!(r#"(module (import "a" "b" (memory {wanted})))"#)).unwrap();
        let ExternType::Memory(ty) = *module.imports().next().unwrap().ty() else { panic!() };
        assert_eq!(ty, wanted_type);
        for (found, ty) in memories {
            let given: wasm_jit::Extern = match ty.is_shared() {
                true => SharedMemory::new(ty).unwrap().into(),
                false => Memory::new(&mut store, ty).unwrap().into(),
            };
            let outcome = Instance::new(&mut store, &module, &[given]);
            match outcome {
                Ok(_) => assert_eq!(found, wanted),
                Err(Error::IncompatibleImport { .. }) => assert_ne!(found, wanted),
                Err(other) => panic!("{other}"),
            }
        }
    }
    let module = Module::new(&engine, r#"(module (import "a" "b" (table i64 1 2 funcref)))"#).unwrap();
    for (ty, fits) in [
        (TableType::new(RefType::FUNCREF, 1, Some(2)), false),
        (TableType::new64(RefType::FUNCREF, 1, Some(2)), true),
    ] {
        let table = Table::new(&mut store, ty, Val::FuncRef(None)).unwrap();
        assert_eq!(Instance::new(&mut store, &module, &[table.into()]).is_ok(), fits);
    }
}

#[test]
fn types_are_described() {
    let described = [
        (MemoryType::new(1, None), "1 or more pages"),
        (MemoryType::shared(1, 2), "1 to 2 pages shared"),
        (MemoryType::new64(1 << 40, None), "1099511627776 or more pages with addresses of 64 bits"),
        (MemoryType::new(5, Some(6)).with_pages_of_one_byte(), "5 to 6 pages of one byte"),
    ];
    for (ty, text) in described {
        assert_eq!(ty.to_string(), text);
    }
    assert_eq!(
        TableType::new64(RefType::FUNCREF, 1, None).to_string(),
        "1 or more funcref with indices of 64 bits"
    );
    assert_eq!((described[0].0.page_size(), described[3].0.page_size()), (65_536, 1));
}

#[test]
fn impossible_sizes_are_errors() {
    for engine in engines() {
        let mut store = Store::new(&engine, ());
        for memory in ["i64 0x1000000000000", "i64 0xffffffffffff", "i64 0xffffffffffffffff (pagesize 1)"] {
            let module = Module::new(&engine, format!("(module (memory {memory}))")).unwrap();
            let error = Instance::new(&mut store, &module, &[]).unwrap_err();
            assert!(matches!(error, Error::Memory { .. }), "{memory}: {error}");
        }
        for table in ["i64 0x100000000 funcref", "i64 0xffffffffffffffff funcref"] {
            let module = Module::new(&engine, format!("(module (table {table}))")).unwrap();
            let error = Instance::new(&mut store, &module, &[]).unwrap_err();
            assert!(matches!(error, Error::TableTooLarge { .. }), "{table}: {error}");
        }
        store.set_limits(StoreLimits::new().memory_size(1 << 20));
        let module = Module::new(&engine, "(module (memory i64 0x1000000000000))").unwrap();
        let error = Instance::new(&mut store, &module, &[]).unwrap_err();
        assert!(matches!(error, Error::StoreLimit { .. }), "{error}");
        for ty in [
            MemoryType::new64(2, Some(1)),
            MemoryType::new64(0, Some((1 << 48) + 1)),
            MemoryType::new(0, Some(65_537)),
        ] {
            assert!(matches!(Memory::new(&mut store, ty), Err(Error::InvalidType { .. })), "{ty}");
        }
    }
}

#[test]
fn a_memory_grows_as_far_as_its_reservation() {
    // Without a maximum, 64 GiB are reserved where the system permits that.
    let engine = Engine::new(Config::new().bounds_checks(BoundsChecks::Reservation)).unwrap();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new64(1, None)).unwrap();
    assert!(matches!(memory.grow(&mut store, 1 << 20), Err(Error::Grow { .. })), "64 GiB and a page");
    let base = memory.data_ptr(&store);
    assert_eq!(memory.grow(&mut store, 3).unwrap(), 1);
    assert_eq!((memory.data_ptr(&store), memory.size(&store)), (base, 4));
}

#[test]
fn probes_get_whole_addresses() {
    let text = r#"(module (memory i64 1)
        (func (export "load") (param i64) (result i32) (i32.load offset=0x100000000 (local.get 0))))"#;
    for engine in engines() {
        let module = Module::new(&engine, text).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let function = Callback::new({
            let seen = seen.clone();
            move |values: &[u64]| seen.lock().unwrap().push(values[0])
        });
        let body = module.functions().next().unwrap().body().unwrap();
        let load = body.instructions().nth(1).unwrap().offset() - body.range().start;
        let place = Place::Instruction { offset: load as u32 };
        let kind = Kind::Callback { function, values: [Bound::Address].into() };
        let probes = module.probes(&[ProbeSpec { location: Location { function: 0, place }, kind }]);
        probes[0].as_ref().unwrap().activate().unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Linker::new(&engine).instantiate(&mut store, &module).unwrap();
        for index in [5_i64, 1 << 40, -1] {
            assert_eq!(
                call(&mut store, instance, "load", &[Val::I64(index)]).unwrap_err(),
                Trap::MemoryOutOfBounds
            );
        }
        let expected = [5, 1 << 40, u64::MAX].map(|index: u64| index.wrapping_add(1 << 32));
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
