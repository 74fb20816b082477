//! Adversarial modules: whatever a valid module contains, compiling it takes time proportional to
//! its size, and it then runs correctly, or it is refused with a reported limit.
//!
//! Times are not compared with a fixed bound: a module and one four times as large are compiled,
//! and the ratio must not be that of a quadratic pass, 16, in every one of several rounds. Times
//! are processor time of one thread.

mod operands;

use std::num::NonZero;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use wasm_encoder::{
    BlockType, Catch, CodeSection, ConstExpr, DataSection, ElementSection, Elements, ExportKind,
    ExportSection, Function, FunctionSection, GlobalSection, GlobalType, InstructionSink, MemArg,
    MemArgTarget, MemorySection, MemoryType, RefType, TableSection, TableType, TagKind, TagSection, TagType,
    TypeSection, ValType,
};
use wasm_jit::{Config, Engine, Error, Instance, Module, Store, Trap, Val};

const I32: ValType = ValType::I32;
/// Maximum ratio of the times for a module that is four times as large.
const MAX_RATIO: f64 = 10.0;

/// A table of functions, of at least this size.
fn table_of(minimum: u64) -> TableType {
    TableType { element_type: RefType::FUNCREF, minimum, maximum: None, table64: false, shared: false }
}

/// A memory of at least this number of pages.
fn memory_of(minimum: u64) -> MemoryType {
    MemoryType { minimum, maximum: None, memory64: false, shared: false, page_size_log2: None }
}

/// A module being built: function 0 is exported as `f`. It has a memory of one page and a table.
#[derive(Default)]
struct Program {
    types: TypeSection,
    type_count: u32,
    tags: TagSection,
    functions: FunctionSection,
    code: CodeSection,
}

impl Program {
    fn ty(&mut self, params: &[ValType], results: &[ValType]) -> u32 {
        self.types.ty().function(params.iter().copied(), results.iter().copied());
        self.type_count += 1;
        self.type_count - 1
    }

    fn tag(&mut self, func_type_idx: u32) {
        self.tags.tag(TagType { kind: TagKind::Exception, func_type_idx });
    }

    fn function(&mut self, ty: u32, locals: &[(u32, ValType)], body: impl FnOnce(&mut InstructionSink<'_>)) {
        let mut function = Function::new(locals.iter().copied());
        let mut sink = function.instructions();
        body(&mut sink);
        sink.end();
        self.functions.function(ty);
        self.code.function(&function);
    }

    fn finish(self) -> Vec<u8> {
        let mut module = wasm_encoder::Module::new();
        let mut tables = TableSection::new();
        tables.table(table_of(1));
        let mut memories = MemorySection::new();
        memories.memory(memory_of(1));
        let mut exports = ExportSection::new();
        exports.export("f", ExportKind::Func, 0);
        module.section(&self.types).section(&self.functions).section(&tables).section(&memories);
        module.section(&self.tags).section(&exports).section(&self.code);
        module.finish()
    }
}

/// A module of one function from `params` to `results`, of type 0. Type 1 and function 1 have no
/// parameters or results.
fn one(
    params: &[ValType],
    results: &[ValType],
    locals: &[(u32, ValType)],
    body: impl FnOnce(&mut InstructionSink<'_>),
) -> Vec<u8> {
    let mut program = Program::default();
    let ty = program.ty(params, results);
    let nothing = program.ty(&[], &[]);
    program.tag(nothing);
    program.function(ty, locals, body);
    program.function(nothing, &[], |_| {});
    program.finish()
}

fn at_offset(offset: u64) -> MemArg {
    MemArg { offset, align: 0, target: MemArgTarget::Memory(0), ordering: None }
}

fn compile(wasm: &[u8]) -> Result<Module, Error> {
    let mut config = Config::new();
    config.compile_threads(NonZero::<usize>::MIN);
    Module::new(&Engine::new(&config).unwrap(), wasm)
}

/// The time to write the module's listing.
fn listing_time(wasm: &[u8]) -> Duration {
    let module = compile(wasm).unwrap();
    let start = processor_time();
    module.write_objdump(|_, _| true, &mut std::io::sink()).unwrap();
    processor_time() - start
}

/// Calls the export `f` of a module that must be accepted.
#[track_caller]
fn run(wasm: &[u8], params: &[i32]) -> Result<Vec<i32>, Error> {
    let module = compile(wasm).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let f = instance.get_func(&mut store, "f").unwrap();
    let params: Vec<Val> = params.iter().map(|param| Val::I32(*param)).collect();
    let mut results = vec![Val::I32(0); f.ty(&store).results().len()];
    f.call(&mut store, &params, &mut results)?;
    Ok(results.iter().map(|result| result.i32().unwrap()).collect())
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// The time until the module is compiled or refused.
fn time(wasm: &[u8], runs: usize) -> Duration {
    let one = || {
        let start = processor_time();
        let _ = compile(wasm);
        processor_time() - start
    };
    (0..runs).map(|_| one()).min().unwrap()
}

/// Checks that compiling a module four times as large takes about four times as long.
#[track_caller]
fn check_linear(size: u32, build: impl Fn(u32) -> Vec<u8>) {
    let (small, large) = (build(size), build(4 * size));
    check_ratio(MAX_RATIO, || (time(&small, 3), time(&large, 1)));
}

/// Checks that the ratio of two times is below a limit, at least once. A pass that takes too long
/// does so in every measurement; disturbances by other processes do not.
#[track_caller]
fn check_ratio(most: f64, measure: impl Fn() -> (Duration, Duration)) {
    let mut seen = Vec::new();
    for _ in 0..6 {
        let (small, large) = measure();
        let ratio = large.as_secs_f64() / small.as_secs_f64();
        println!("{small:?}, {large:?}: {ratio:.1}");
        if ratio < most {
            return;
        }
        seen.push(ratio);
    }
    panic!("ratios of {seen:.1?}, where less than {most} was expected");
}

#[track_caller]
fn check_limit(wasm: &[u8]) {
    match compile(wasm) {
        Err(Error::Limit { .. }) => {}
        Err(other) => panic!("refused, but: {other}"),
        Ok(module) => panic!("{} bytes of code for {} bytes", module.code_size(), wasm.len()),
    }
}

/// A function with the maximum number of locals, each used repeatedly, with calls.
fn locals_with_calls(accesses: u32) -> Vec<u8> {
    one(&[I32], &[I32], &[(49_999, I32)], |sink| {
        for access in 0..accesses {
            let local = 1 + access * 7919 % 49_999;
            sink.local_get(local).local_get(0).i32_add().local_set(local);
            if access % 16 == 0 {
                sink.call(1);
            }
        }
        sink.i32_const(0);
        for local in 1..50_000 {
            sink.local_get(local).i32_add();
        }
    })
}

#[test]
fn fifty_thousand_locals_with_calls() {
    assert_eq!(run(&locals_with_calls(60_000), &[3]).unwrap(), [180_000]);
    check_linear(50_000, locals_with_calls);
}

#[test]
fn fifty_thousand_locals_in_a_loop() {
    let build = |accesses| {
        one(&[I32], &[I32], &[(49_999, I32)], |sink| {
            sink.loop_(BlockType::Empty);
            for access in 0..accesses {
                let local = 1 + access * 7919 % 49_999;
                sink.local_get(local).i32_const(1).i32_add().local_set(local);
            }
            sink.local_get(0).i32_const(1).i32_sub().local_tee(0).br_if(0).end().local_get(1 + 7919);
        })
    };
    assert_eq!(run(&build(60_000), &[3]).unwrap(), [6]);
    check_linear(50_000, build);
}

/// Nested blocks, with a branch out of all of them, and one out of each.
fn nested_blocks(depth: u32) -> Vec<u8> {
    one(&[I32], &[I32], &[], |sink| {
        for _ in 0..depth {
            sink.block(BlockType::Result(I32));
        }
        sink.i32_const(7).local_get(0).br_if(depth - 1);
        for _ in 0..depth {
            sink.local_get(0).br_if(0).i32_const(1).i32_add().end();
        }
    })
}

#[test]
fn a_hundred_thousand_nested_blocks() {
    let wasm = nested_blocks(100_000);
    assert_eq!(run(&wasm, &[1]).unwrap(), [7]);
    assert_eq!(run(&wasm, &[0]).unwrap(), [100_007]);
    check_linear(50_000, nested_blocks);
}

#[test]
fn a_hundred_thousand_nested_loops() {
    let build = |depth| {
        one(&[I32], &[I32], &[(1, I32)], |sink| {
            for _ in 0..depth {
                sink.loop_(BlockType::Empty).local_get(1).i32_const(1).i32_add().local_set(1);
            }
            for _ in 0..depth {
                sink.local_get(0).br_if(0).end();
            }
            sink.local_get(1);
        })
    };
    assert_eq!(run(&build(100_000), &[0]).unwrap(), [100_000]);
    check_linear(25_000, build);
}

#[test]
fn a_hundred_thousand_nested_ifs() {
    let build = |depth| {
        one(&[I32], &[I32], &[], |sink| {
            for _ in 0..depth {
                sink.local_get(0).if_(BlockType::Result(I32));
            }
            sink.i32_const(1);
            for _ in 0..depth {
                sink.else_().i32_const(2).end();
            }
        })
    };
    assert_eq!(run(&build(100_000), &[1]).unwrap(), [1]);
    assert_eq!(run(&build(100_000), &[0]).unwrap(), [2]);
    check_linear(25_000, build);
}

#[test]
fn a_thousand_loops_in_each_other_with_many_locals() {
    let build = |depth| {
        one(&[I32], &[I32], &[(500, I32)], |sink| {
            for level in 0..depth {
                sink.loop_(BlockType::Empty);
                for access in 0..20 {
                    let local = 1 + (level * 20 + access) % 500;
                    sink.local_get(local).i32_const(1).i32_add().local_set(local);
                }
            }
            for level in 0..depth {
                sink.local_get(1 + level % 500).i32_const(-1).i32_eq().br_if(0).end();
            }
            sink.local_get(1);
        })
    };
    assert_eq!(run(&build(1000), &[0]).unwrap(), [40]);
    check_linear(500, build);
}

/// Nested blocks with a value, and a jump table to each of them, innermost last.
fn table_of_blocks(targets: u32, order: impl Fn(u32) -> u32) -> Vec<u8> {
    one(&[I32], &[I32], &[], |sink| {
        for _ in 0..targets {
            sink.block(BlockType::Result(I32));
        }
        let depths: Vec<u32> = (0..targets).map(order).collect();
        sink.i32_const(5).local_get(0).br_table(depths, 0);
        for _ in 0..targets {
            sink.end().i32_const(1).i32_add();
        }
    })
}

#[test]
fn a_jump_table_with_sixty_thousand_targets() {
    let most = 60_000;
    for order in [|index: u32| index, |index| 59_999 - index] {
        let wasm = table_of_blocks(most, order);
        assert_eq!(run(&wasm, &[17]).unwrap(), [(5 + most - order(17)) as i32]);
        assert_eq!(run(&wasm, &[-1]).unwrap(), [(5 + most) as i32]);
    }
    check_linear(15_000, |targets| table_of_blocks(targets, |index| index));
    check_linear(15_000, |targets| table_of_blocks(targets, |index| targets - 1 - index));
}

#[test]
fn many_jump_tables_to_the_same_blocks() {
    check_linear(250, |tables| {
        one(&[I32], &[I32], &[], |sink| {
            for _ in 0..100 {
                sink.block(BlockType::Result(I32));
            }
            for _ in 0..tables {
                sink.block(BlockType::Empty).i32_const(5).local_get(0).br_table(1..101, 3).end();
            }
            sink.i32_const(1);
            for _ in 0..100 {
                sink.end();
            }
        })
    });
}

#[test]
fn jump_tables_below_many_blocks() {
    check_linear(10_000, |size| {
        one(&[I32], &[], &[], |sink| {
            for _ in 0..size {
                sink.block(BlockType::Empty);
            }
            for _ in 0..size {
                sink.block(BlockType::Empty).local_get(0).br_table([0], size).end();
            }
            for _ in 0..size {
                sink.end();
            }
        })
    });
}

/// Calls from a thousand values to a thousand.
fn wide_calls(calls: u32) -> Vec<u8> {
    let mut program = Program::default();
    let many = vec![I32; 1000];
    let outer = program.ty(&[I32], &[I32]);
    let wide = program.ty(&many, &many);
    program.function(outer, &[], |sink| {
        for value in 0..1000 {
            sink.i32_const(value).local_get(0).i32_add();
        }
        for _ in 0..calls {
            sink.call(1);
        }
        for _ in 1..1000 {
            sink.i32_add();
        }
    });
    program.function(wide, &[], |sink| {
        for value in (0..1000).rev() {
            sink.local_get(value);
        }
    });
    program.finish()
}

#[test]
fn a_thousand_parameters_and_results() {
    assert_eq!(run(&wide_calls(3), &[1]).unwrap(), [999 * 1000 / 2 + 1000]);
    check_linear(10, wide_calls);
    // Each takes two bytes of Wasm, and thousands of bytes of machine code.
    check_limit(&wide_calls(50_000));
}

#[test]
fn branches_with_a_thousand_values_each() {
    let build = |branches| {
        let mut program = Program::default();
        let many = vec![I32; 1000];
        let outer = program.ty(&[I32], &[I32]);
        let block = program.ty(&[], &many);
        program.function(outer, &[], |sink| {
            sink.block(BlockType::FunctionType(block)).i32_const(9);
            (0..1000).for_each(|value| {
                sink.i32_const(value);
            });
            for _ in 0..branches {
                sink.local_get(0).br_if(0);
            }
            sink.br(0).end();
            (1..1000).for_each(|_| {
                sink.i32_add();
            });
        });
        program.finish()
    };
    assert_eq!(run(&build(10), &[1]).unwrap(), [999 * 1000 / 2]);
    assert_eq!(run(&build(10), &[0]).unwrap(), [999 * 1000 / 2]);
    check_limit(&build(50_000));
}

#[test]
fn handlers_with_a_thousand_values_each() {
    let build = |clauses: u32| {
        let mut program = Program::default();
        let many = vec![I32; 1000];
        let outer = program.ty(&[], &[]);
        let wide = program.ty(&many, &[]);
        let block = program.ty(&[], &many);
        program.tag(wide);
        program.function(outer, &[], |sink| {
            sink.block(BlockType::FunctionType(block));
            sink.try_table(BlockType::Empty, (0..clauses).map(|_| Catch::One { tag: 0, label: 0 })).end();
            sink.unreachable().end();
            (0..1000).for_each(|_| {
                sink.drop();
            });
        });
        program.finish()
    };
    assert!(compile(&build(10)).is_ok());
    check_limit(&build(10_000));
}

#[test]
fn jump_tables_with_a_thousand_values_for_each_target() {
    let build = |targets| {
        let mut program = Program::default();
        let many = vec![I32; 1000];
        let outer = program.ty(&[I32], &[I32]);
        let values = program.ty(&[], &many);
        program.function(outer, &[], |sink| {
            for _ in 0..targets {
                // Each label has its values in different slots.
                sink.i32_const(0).block(BlockType::FunctionType(values));
            }
            sink.i32_const(9).call(1).local_get(0).br_table(0..targets, 0);
            for _ in 1..targets {
                sink.end().br(0);
            }
            sink.end();
            for _ in 1..1000 {
                sink.drop();
            }
            sink.return_();
        });
        program.function(values, &[], |sink| {
            for value in 0..1000 {
                sink.i32_const(40 + value);
            }
        });
        program.finish()
    };
    assert_eq!(run(&build(3), &[1]).unwrap(), [40]);
    check_limit(&build(20_000));
}

/// Close to the maximum code size of one function, with operators of all kinds.
fn long_function(steps: u32) -> Vec<u8> {
    one(&[I32], &[I32], &[(4, I32), (2, ValType::F64)], |sink| {
        for step in 0..steps {
            let local = 1 + step % 4;
            sink.local_get(local).local_get(0).i32_const(step as i32).i32_xor().i32_add().local_set(local);
            sink.local_get(0).i32_load(at_offset((step % 1000).into())).local_set(1 + (step + 1) % 4);
            sink.local_get(5).f64_const(f64::from(step).into()).f64_add().local_set(5);
            sink.block(BlockType::Empty).local_get(local).i32_const(77).i32_lt_u().br_if(0);
            sink.local_get(0).i32_const(3).i32_div_s().drop().end();
        }
        sink.local_get(5).i32_trunc_f64_s();
    })
}

#[test]
fn a_function_of_five_megabytes() {
    let steps = 100_000;
    let wasm = long_function(steps);
    assert!(wasm.len() > 5_000_000, "{}", wasm.len());
    let sum = (0..u64::from(steps)).sum::<u64>();
    assert!(i32::try_from(sum).is_err());
    let trap = run(&wasm, &[0]).unwrap_err();
    assert!(matches!(trap, Error::Trap { trap: Trap::IntegerOverflow, .. }), "{trap}");
    assert_eq!(run(&long_function(60_000), &[0]).unwrap(), [(0..60_000_i64).sum::<i64>() as i32]);
    check_linear(10_000, long_function);
}

/// The backtrace looks up the instruction in the function of each of its frames.
#[test]
fn a_trap_below_many_frames_of_a_long_function() {
    let build = |steps| {
        one(&[I32], &[I32], &[(1, I32)], |sink| {
            sink.local_get(0).i32_eqz().if_(BlockType::Empty).unreachable().end();
            for _ in 0..steps {
                sink.local_get(1).local_get(0).i32_xor().local_set(1);
            }
            sink.local_get(0).i32_const(1).i32_sub().call(0);
        })
    };
    let run_time = |wasm: &[u8], depth| {
        let start = processor_time();
        let trap = run(wasm, &[depth]).unwrap_err();
        assert!(matches!(trap, Error::Trap { trap: Trap::UnreachableCodeReached, .. }), "{trap}");
        processor_time() - start
    };
    let wasm = build(50_000);
    // The 256 frames that are kept would take 64 times as long if each of them were looked up
    // separately.
    check_ratio(24.0, || (run_time(&wasm, 3), run_time(&wasm, 3000)));
}

#[test]
fn listings_of_deep_and_of_long_functions() {
    for (build, size) in [(nested_blocks as fn(u32) -> Vec<u8>, 10_000), (long_function, 2500)] {
        check_ratio(MAX_RATIO, || (listing_time(&build(size)), listing_time(&build(4 * size))));
    }
}

#[test]
fn many_try_regions_in_each_other_and_one_after_the_other() {
    let nested = |depth| {
        one(&[I32], &[I32], &[], |sink| {
            sink.block(BlockType::Empty);
            for level in 0..depth {
                // Only the outermost one catches the exception.
                let catch = (level == 0).then_some(Catch::One { tag: 0, label: 0 });
                sink.try_table(BlockType::Empty, catch);
            }
            sink.throw(0);
            for _ in 0..depth {
                sink.end();
            }
            sink.end().i32_const(5);
        })
    };
    assert_eq!(run(&nested(20_000), &[0]).unwrap(), [5]);
    check_linear(20_000, nested);
    let sequence = |count| {
        one(&[I32], &[I32], &[(1, I32)], |sink| {
            for _ in 0..count {
                sink.block(BlockType::Empty).try_table(BlockType::Empty, [Catch::All { label: 0 }]);
                sink.throw(0).end().end().local_get(1).i32_const(1).i32_add().local_set(1);
            }
            sink.local_get(1);
        })
    };
    assert_eq!(run(&sequence(2000), &[0]).unwrap(), [2000]);
    check_linear(20_000, sequence);
    let clauses = |count| {
        one(&[I32], &[I32], &[], |sink| {
            sink.block(BlockType::Empty);
            sink.try_table(BlockType::Empty, (0..count).map(|_| Catch::One { tag: 0, label: 0 }));
            sink.throw(0).end().unreachable().end().i32_const(6);
        })
    };
    assert_eq!(run(&clauses(10_000), &[0]).unwrap(), [6]);
    check_linear(2500, clauses);
}

#[test]
fn many_clauses_of_a_try_of_the_older_form() {
    let build = |count| {
        one(&[I32], &[I32], &[], |sink| {
            sink.try_(BlockType::Result(I32)).call(1).i32_const(4);
            for number in 0..count {
                sink.catch(0).i32_const(number as i32);
            }
            sink.end();
        })
    };
    assert_eq!(run(&build(100_000), &[0]).unwrap(), [4]);
    check_linear(50_000, build);
    check_linear(10_000, |depth| {
        one(&[I32], &[I32], &[], |sink| {
            (0..depth).for_each(|_| {
                sink.try_(BlockType::Empty);
            });
            sink.call(1);
            (0..depth).for_each(|level| {
                sink.delegate(level % 3 % (depth - level));
            });
            sink.i32_const(3);
        })
    });
}

#[test]
fn largest_offsets_trap_and_do_nothing_else() {
    let load = |offset: u64| {
        one(&[I32], &[I32], &[], |sink| {
            for _ in 0..1000 {
                let arg = at_offset(offset);
                sink.local_get(0).i32_load(arg).drop();
                sink.local_get(0).f64_load(arg).drop();
                sink.local_get(0).i32_const(1).i32_store16(arg);
            }
            sink.i32_const(1);
        })
    };
    assert_eq!(run(&load(65_528), &[0]).unwrap(), [1]);
    for (offset, at) in
        [(65_536, 0), (65_530, 0), (0, -1), (0x7fff_ffff, 0), (0x8000_0000, -1), (0xffff_ffff, -1)]
    {
        let trap = run(&load(offset), &[at]).unwrap_err();
        assert!(matches!(trap, Error::Trap { trap: Trap::MemoryOutOfBounds, .. }), "{offset:#x}: {trap}");
    }
}

#[test]
fn code_that_is_never_reached() {
    let build = |count| {
        one(&[I32], &[I32], &[], |sink| {
            sink.unreachable();
            for _ in 0..count {
                sink.block(BlockType::Result(I32)).loop_(BlockType::Empty);
            }
            for _ in 0..count {
                sink.end().i32_add().br(0).i32_mul().end();
            }
        })
    };
    check_linear(50_000, build);
}

#[test]
fn forward_jumps_to_one_label() {
    let build = |count| {
        one(&[I32], &[I32], &[], |sink| {
            sink.block(BlockType::Empty);
            for _ in 0..count {
                sink.local_get(0).br_if(0);
            }
            sink.end().i32_const(1);
        })
    };
    assert_eq!(run(&build(200_000), &[0]).unwrap(), [1]);
    check_linear(50_000, build);
}

#[test]
fn constants_that_are_all_different() {
    check_linear(25_000, |count| {
        one(&[I32], &[I32], &[(1, ValType::F64)], |sink| {
            for number in 0..count {
                sink.local_get(1).f64_const((f64::from(number) + 0.5).into()).f64_mul().local_set(1);
            }
            sink.i32_const(1);
        })
    });
}

/// Each declares, in a few bytes, the maximum number of locals.
#[test]
fn many_functions_with_fifty_thousand_unused_locals() {
    check_linear(2000, |functions| {
        let mut program = Program::default();
        let ty = program.ty(&[], &[]);
        for _ in 0..functions {
            program.function(ty, &[(25_000, I32), (25_000, ValType::F64)], |_| {});
        }
        program.finish()
    });
}

#[test]
fn many_declarations() {
    check_linear(10_000, |count| {
        let mut types = TypeSection::new();
        let mut functions = FunctionSection::new();
        let mut globals = GlobalSection::new();
        let mut exports = ExportSection::new();
        let mut elements = ElementSection::new();
        let mut code = CodeSection::new();
        let mut data = DataSection::new();
        let mut tables = TableSection::new();
        tables.table(table_of(10));
        let mut memories = MemorySection::new();
        memories.memory(memory_of(10));
        for number in 0..count {
            // All types are different.
            let params = (0..16).map(|bit| if number >> bit & 1 == 0 { I32 } else { ValType::I64 });
            types.ty().function(params, []);
            functions.function(number);
            globals
                .global(GlobalType { val_type: I32, mutable: true, shared: false }, &ConstExpr::i32_const(1));
            exports.export(&format!("g{number}"), ExportKind::Global, number);
            elements.active(None, &ConstExpr::i32_const(3), Elements::Functions([number].as_slice().into()));
            data.active(0, &ConstExpr::i32_const(8), [1]);
            let mut function = Function::new([]);
            function.instructions().global_get(number).global_set(count - 1 - number).end();
            code.function(&function);
        }
        let mut module = wasm_encoder::Module::new();
        module.section(&types).section(&functions).section(&tables).section(&memories).section(&globals);
        module.section(&exports).section(&elements).section(&code).section(&data);
        module.finish()
    });
}

/// A program with a part of every kind.
const PROGRAM: &str = r#"(module $program
    (type $binary (func (param i32 i64) (result i64)))
    (import "host" "f" (func $host (param i32) (result f64)))
    (import "host" "memory" (memory $shared 1 3 shared))
    (memory $own 1)
    (table $functions 3 funcref)
    (table $things 1 9 externref)
    (global $count (mut i32) (i32.const 5))
    (global $sum i64 (i64.add (i64.const 3) (i64.mul (i64.const 5) (i64.const -7))))
    (tag $tag (param i32 i64))
    (elem (table $functions) (i32.const 1) func $binary $start)
    (elem $passive funcref (ref.func $host) (ref.null func))
    (data (memory $own) (offset (i32.const 16)) "hello, world")
    (data $bytes "\00\ff\80")
    (export "binary" (func $binary))
    (export "count" (global $count))
    (start $start)
    (func $binary (type $binary)
        (local $float f64)
        (local.set $float (call $host (local.get 0)))
        (block $caught (result i32 i64)
            (try_table (catch $tag $caught)
                (if (i32.lt_s (local.get 0) (i32.const 3))
                    (then (throw $tag (local.get 0) (local.get 1)))
                    (else (i64.store $own offset=70000 (local.get 0) (i64.trunc_f64_s (local.get $float))))))
            (block $out
                (loop $again
                    (br_table $again $out $again $out (i32.and (local.get 0) (i32.const 3)))))
            (memory.init $own $bytes (i32.const 1) (i32.const 0) (i32.const 2))
            (table.init $functions $passive (i32.const 0) (i32.const 0) (i32.const 1))
            (return_call_indirect $functions (type $binary)
                (i32.const 1) (i64.div_s (local.get 1) (global.get $sum)) (global.get $count)))
        (local.set 1)
        (i64.add (i64.extend_i32_u) (local.get 1)))
    (func $start
        (global.set $count (i32.atomic.rmw.add $shared (i32.const 8) (memory.grow $own (i32.const 1))))
        (drop (call $binary (select (i32.const 1) (i32.const 2) (global.get $count)) (i64.const 4)))))"#;

fn below(random: &mut SmallRng, end: usize) -> usize {
    random.random_range(..end)
}

/// The module with a few small changes, or truncated.
fn changed(module: &[u8], random: &mut SmallRng) -> Vec<u8> {
    let mut bytes = module.to_vec();
    for _ in 0..=below(random, 3) {
        let at = below(random, bytes.len());
        match below(random, 6) {
            0 => bytes[at] ^= 1 << below(random, 8),
            1 => bytes[at] = below(random, 256) as u8,
            2 => bytes[at] = [0x00, 0x0b, 0x40, 0x7f, 0x80, 0xff][below(random, 6)],
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, below(random, 256) as u8),
            _ if below(random, 4) == 0 => bytes.truncate(at.max(8)),
            _ => {
                // A number of five bytes: nearly 2^32, or nearly 2^31.
                let number = [0xff, 0xff, 0xff, 0xff, [0x0f, 0x07][below(random, 2)]];
                let end = bytes.len().min(at + 5);
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
        }
    }
    bytes
}

/// If the module loads, names and listings, which are read on demand, are read too. Manually, for
/// longer:
/// `HOSTILE_MODULE=file.wasm HOSTILE_ROUNDS=100000 HOSTILE_SEED=7 cargo test --release -p wasm-jit --test hostile changed`.
#[test]
fn modules_that_were_changed_are_loaded_or_refused() {
    let module = match std::env::var_os("HOSTILE_MODULE") {
        Some(path) => std::fs::read(path).unwrap(),
        None => wat::parse_str(PROGRAM).unwrap(),
    };
    let rounds = std::env::var("HOSTILE_ROUNDS").map_or(3000, |rounds| rounds.parse().unwrap());
    let seed = std::env::var("HOSTILE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = SmallRng::seed_from_u64(seed);
    compile(&module).unwrap();
    let mut loaded = 0;
    for _ in 0..rounds {
        let bytes = changed(&module, &mut random);
        let Ok(module) = compile(&bytes) else { continue };
        loaded += 1;
        if module.code_size() < 100_000 || below(&mut random, 50) == 0 {
            module.write_objdump(|_, _| true, &mut std::io::sink()).unwrap();
            module.write_perf_map(&mut std::io::sink()).unwrap();
            drop(module.show_to_gdb());
        }
    }
    println!("{loaded} of {rounds} loaded");
}
