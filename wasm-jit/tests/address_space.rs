//! Memories without reserved addresses, and explicit bounds checks.

use std::os::unix::process::CommandExt;
use std::process::Command;

use wasm_jit::{
    BoundsChecks, Config, Engine, Error, Instance, MemoryType, Module, SharedMemory, Store, Trap,
};

fn limit_addresses(command: &mut Command, bytes: u64) {
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            match libc::setrlimit(libc::RLIMIT_AS, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

fn engine(checks: BoundsChecks, harden: bool) -> Engine {
    Engine::new(Config::new().bounds_checks(checks).harden_speculation(harden)).unwrap()
}

#[test]
fn accesses_are_checked_to_the_byte() {
    // Loads and stores of all widths at an index in a register or a constant index, with offsets of
    // all sizes.
    let mut text = String::from("(module (memory (export \"memory\") 1 2)\n");
    let accesses = [
        ("i32.load8_u", 1_u64),
        ("i32.load16_s", 2),
        ("i32.load", 4),
        ("i64.load", 8),
        ("f32.load", 4),
        ("f64.load", 8),
        ("i32.atomic.load8_u", 1),
        ("i32.atomic.rmw.add", 4),
        ("i64.atomic.rmw.or", 8),
        ("i64.atomic.rmw.cmpxchg", 8),
    ];
    let offsets = [0_u64, 8, 65_528, 65_536, 131_064, 0x7fff_fff8, 0xffff_fff8];
    let mut cases = Vec::new();
    for (access, width) in accesses {
        let ty = &access[..3];
        let operands = match access.split('.').next_back() {
            Some("cmpxchg") => format!("({ty}.const 0) ({ty}.const 0)"),
            Some("add" | "or") => format!("({ty}.const 0)"),
            _ => String::new(),
        };
        for offset in offsets {
            let name = format!("{access} {offset}");
            text += &format!(
                r#"(func (export "{name}") (param i32) (drop ({access} offset={offset} (local.get 0) {operands})))"#
            );
            for index in [0_u64, 8, 65_528, 65_536, 0xffff_fff8] {
                let constant = format!("{access} {offset} at {index}");
                text += &format!(
                    r#"(func (export "{constant}") (param i32) (drop ({access} offset={offset} (i32.const {index}) {operands})))"#,
                );
                cases.push((name.clone(), index, offset + index + width));
                cases.push((constant, index, offset + index + width));
            }
            for back in [0_u64, 1] {
                let index = (131_072 + back).checked_sub(offset + width).filter(|index| *index < 1 << 32);
                // Atomic accesses must be aligned.
                if let Some(index) = index.filter(|index| !access.contains("atomic") || index % width == 0) {
                    cases.push((name.clone(), index, offset + index + width));
                }
            }
        }
    }
    text.push(')');
    let bytes = wat::parse_str(&text).unwrap();
    for harden in [false, true] {
        let engine = engine(BoundsChecks::Instructions, harden);
        assert!(engine.checks_bounds());
        let module = Module::new(&engine, &bytes).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        for size in [65_536, 131_072] {
            for (name, index, end) in &cases {
                let access = instance.get_typed_func::<i32, ()>(&mut store, name).unwrap();
                let outcome = access.call(&mut store, *index as u32 as i32).map_err(|error| error.trap());
                let expected = if *end <= size { Ok(()) } else { Err(Some(Trap::MemoryOutOfBounds)) };
                assert_eq!(outcome, expected, "{name}, {index}, {size} bytes, hardened: {harden}");
            }
            let _ = memory.grow(&mut store, 1);
        }
    }
}

const SHARED: &str = r#"(module
    (import "a" "b" (memory 1 2 shared))
    (func (export "load") (param i32) (result i32) (i32.load (local.get 0))))"#;

#[test]
fn code_without_checks_uses_no_memory_without_a_reservation() {
    // The process has an unlimited address space: so the memory has a reservation, and any code can
    // use it.
    let shared = SharedMemory::new(MemoryType::shared(1, 2)).unwrap();
    for checks in [BoundsChecks::Reservation, BoundsChecks::Instructions] {
        let engine = engine(checks, false);
        let module = Module::new(&engine, SHARED).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[shared.clone().into()]).unwrap();
        let load = instance.get_typed_func::<i32, i32>(&mut store, "load").unwrap();
        assert_eq!(load.call(&mut store, 65_532).unwrap(), 0);
        assert_eq!(load.call(&mut store, 65_533).unwrap_err().trap(), Some(Trap::MemoryOutOfBounds));
    }
    // In a small address space the memory has no reservation, and code without checks is refused:
    // tested in a separate process.
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "with_few_addresses_code_without_checks_is_refused"]);
    limit_addresses(&mut command, 4 << 30);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "run by the test above, in a process with a small address space"]
fn with_few_addresses_code_without_checks_is_refused() {
    let memory = SharedMemory::new(MemoryType::shared(1, 2)).unwrap();
    let instantiate = |checks| {
        let engine = engine(checks, false);
        let module = Module::new(&engine, SHARED).unwrap();
        Instance::new(&mut Store::new(&engine, ()), &module, &[memory.clone().into()]).map(drop)
    };
    instantiate(BoundsChecks::Automatic).unwrap();
    instantiate(BoundsChecks::Instructions).unwrap();
    let refused = instantiate(BoundsChecks::Reservation).unwrap_err();
    assert!(
        matches!(refused, Error::Memory { .. }) && refused.to_string().contains("BoundsChecks"),
        "{refused}"
    );
    let own = Module::new(&engine(BoundsChecks::Reservation, false), "(module (memory 1))").unwrap();
    let refused = Instance::new(&mut Store::new(own.engine(), ()), &own, &[]).unwrap_err();
    assert!(
        matches!(refused, Error::Memory { .. }) && refused.to_string().contains("BoundsChecks"),
        "{refused}"
    );
}
