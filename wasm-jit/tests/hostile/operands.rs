//! Functions with very many operands on the stack.

use std::time::Duration;

use wasm_encoder::{BlockType, InstructionSink};
use wasm_jit::probes::{Kind, Location, Place, ProbeSpec};
use wasm_jit::{Config, Engine, Instance, Module, Store};

use super::{I32, MAX_RATIO, check_linear, check_ratio, one, processor_time, run};

/// Operands that stay on the stack, with other operators between them.
fn operands(count: u32, between: impl Fn(&mut InstructionSink<'_>)) -> Vec<u8> {
    one(&[I32], &[I32], &[(2, I32)], |sink| {
        for _ in 0..count {
            sink.local_get(0);
            between(sink);
        }
        for _ in 1..count {
            sink.i32_add();
        }
    })
}

#[test]
fn a_hundred_thousand_operands_between_calls() {
    let build = |count| {
        operands(count, |sink| {
            sink.call(1);
        })
    };
    assert_eq!(run(&build(100_000), &[2]).unwrap(), [200_000]);
    check_linear(25_000, build);
}

/// The processor time that this takes.
fn time_of(act: impl FnOnce()) -> Duration {
    let start = processor_time();
    act();
    processor_time() - start
}

/// Checks that what is done with a module takes time in proportion to its size.
fn check_linear_with(build: impl Fn(u32) -> Vec<u8>, act: impl Fn(&Module)) {
    let (small, large) = (build(25_000), build(100_000));
    let time = |wasm: &[u8]| {
        let module = Module::new(&Engine::default(), wasm).unwrap();
        time_of(|| act(&module))
    };
    check_ratio(MAX_RATIO, || (time(&small), time(&large)));
}

/// Operands below the topmost one have no part in what a site, a backtrace or a count of
/// instructions depends on.
#[test]
fn probes_and_backtraces_of_a_hundred_thousand_operands() {
    let with_nops = |count| {
        operands(count, |sink| {
            sink.nop();
        })
    };
    check_linear_with(with_nops, |module| {
        let location = Location { function: 0, place: Place::Entry };
        module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap().activate().unwrap();
    });
    let trapping = |count| {
        one(&[I32], &[I32], &[(2, I32)], |sink| {
            for _ in 0..count {
                sink.local_get(0);
            }
            sink.unreachable();
        })
    };
    check_linear_with(trapping, |module| {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        let f = instance.get_typed_func::<i32, i32>(&mut store, "f").unwrap();
        let error = f.call(&mut store, 1).unwrap_err();
        assert!(error.to_string().contains("unreachable"), "{error}");
    });
}

#[test]
fn instructions_are_counted_above_a_hundred_thousand_operands() {
    let mut config = Config::new();
    config.consume_fuel(true);
    let engine = Engine::new(&config).unwrap();
    let build = |count| {
        operands(count, |sink| {
            sink.loop_(BlockType::Empty).end();
        })
    };
    let (small, large) = (build(25_000), build(100_000));
    let time = |wasm: &[u8]| time_of(|| _ = Module::new(&engine, wasm).unwrap());
    check_ratio(MAX_RATIO, || (time(&small), time(&large)));
}

#[test]
fn a_hundred_thousand_operands_between_branches() {
    let build = |count| {
        operands(count, |sink| {
            sink.block(BlockType::Empty).local_get(1).br_if(0).end();
        })
    };
    assert_eq!(run(&build(100_000), &[2]).unwrap(), [200_000]);
    check_linear(25_000, build);
}

#[test]
fn a_hundred_thousand_operands_of_a_local_that_is_written_between_them() {
    let build = |count| {
        operands(count, |sink| {
            sink.local_get(0).i32_const(1).i32_add().local_set(0);
        })
    };
    assert_eq!(run(&build(1000), &[0]).unwrap(), [999 * 1000 / 2]);
    check_linear(25_000, build);
    // Many aliases of the same local, and one write after each.
    check_linear(25_000, |count| {
        one(&[I32], &[I32], &[(1, I32)], |sink| {
            (0..count).for_each(|_| {
                sink.local_get(1);
            });
            (0..count).for_each(|_| {
                sink.local_get(0).local_set(1);
            });
            (1..count).for_each(|_| {
                sink.i32_add();
            });
        })
    });
}

#[test]
fn a_hundred_thousand_operands_between_loops() {
    let build = |count| {
        operands(count, |sink| {
            sink.loop_(BlockType::Empty).local_get(1).br_if(0).end();
        })
    };
    assert_eq!(run(&build(100_000), &[2]).unwrap(), [200_000]);
    check_linear(25_000, build);
}
