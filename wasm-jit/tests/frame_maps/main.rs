//! Frame maps are right and complete: random programs are single-stepped in parallel with an
//! interpreter of WebAssembly.
//!
//! Before each WebAssembly instruction, every local and operand is read from its location in the
//! [`FrameMap`], and compared with the interpreter's. Then every register that the map does not
//! list as live is overwritten, and so are the flags. The program continues, and must produce the
//! expected results: so the map omits nothing that is live.
//!
//! This process runs only tests of such maps: one of them handles SIGTRAP.

mod hints;
mod interpreter;
mod programs;
mod sites;

use std::arch::asm;
use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering};

use interpreter::{Access, Machine, Step};
use wasm_jit::{Config, Engine, Instance, Module, Store, Val};
use wasm_jit_codegen::objects::ModuleType;
use wasm_jit_codegen::{
    Address, BranchHints, Chunk, Compiler, FrameMap, FrameMaps, LocalPlace, ModuleInfo, OperandPlace, Reg, Ty,
};
use wasmparser::{KnownCustom, Parser, Payload, TypeRef, ValidPayload, Validator, WasmFeatures};

/// Number of random programs.
const PROGRAMS: u64 = 150;

/// The declarations of a module.
fn declarations(bytes: &[u8]) -> ModuleInfo {
    let mut info = ModuleInfo::default();
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.unwrap() {
            Payload::CustomSection(section) => {
                if let KnownCustom::BranchHints(hints) = section.as_known() {
                    info.branch_hints = BranchHints::decode(hints).unwrap();
                }
            }
            Payload::TypeSection(section) => {
                let types = section.into_iter_err_on_gc_types().map(Result::unwrap);
                info.types.extend(types.map(ModuleType::of_function));
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    match import.unwrap().ty {
                        TypeRef::Func(ty) | TypeRef::FuncExact(ty) => {
                            info.functions.push(ty);
                            info.imported_functions += 1;
                        }
                        TypeRef::Table(ty) => {
                            info.tables.push(ty);
                            info.imported_tables += 1;
                        }
                        TypeRef::Memory(ty) => {
                            info.memories.push(ty);
                            info.imported_memories += 1;
                        }
                        TypeRef::Global(ty) => {
                            info.globals.push(ty);
                            info.imported_globals += 1;
                        }
                        TypeRef::Tag(ty) => {
                            info.tags.push(ty.func_type_idx);
                            info.imported_tags += 1;
                        }
                    }
                }
            }
            Payload::TableSection(section) => {
                info.tables.extend(section.into_iter().map(|table| table.unwrap().ty));
            }
            Payload::GlobalSection(section) => {
                info.globals.extend(section.into_iter().map(|global| global.unwrap().ty));
            }
            Payload::TagSection(section) => {
                info.tags.extend(section.into_iter().map(|tag| tag.unwrap().func_type_idx));
            }
            Payload::FunctionSection(section) => {
                info.functions.extend(section.into_iter().map(Result::unwrap))
            }
            Payload::MemorySection(section) => info.memories.extend(section.into_iter().map(Result::unwrap)),
            _ => {}
        }
    }
    info.type_ids = (0..).take(info.types.len()).collect();
    // As engines do by default.
    info.settings.uses_avx512 = Engine::new(Config::new().avx512(true)).is_ok();
    info
}

/// The start and length of each function's code.
fn places(module: &Module) -> Vec<(usize, usize)> {
    let mut map = Vec::new();
    module.write_perf_map(&mut map).unwrap();
    let lines = str::from_utf8(&map).unwrap().lines();
    let number = |text: Option<&str>| usize::from_str_radix(text.unwrap(), 16).unwrap();
    let places = lines.map(|line| {
        let mut fields = line.split(' ');
        (number(fields.next()), number(fields.next()))
    });
    let with_code = module.functions().filter(|function| function.body().is_some());
    places.take(with_code.count()).collect()
}

/// The maps by code address, in the order of their instructions.
fn maps(module: &Module, bytes: &[u8]) -> HashMap<usize, Vec<(u32, FrameMap)>> {
    let info = declarations(bytes);
    let mut compiler = Compiler::new(&info);
    let mut all: HashMap<usize, Vec<(u32, FrameMap)>> = HashMap::new();
    let with_code = module.functions().filter(|function| function.body().is_some());
    for (function, (start, length)) in with_code.zip(places(module)) {
        let range = function.body().unwrap().range();
        let reader = wasmparser::BinaryReader::new(&bytes[range.clone()], range.start as u64);
        let body = wasmparser::FunctionBody::new(reader);
        let (mut chunk, mut maps) = (Chunk::default(), FrameMaps::of(|_| true));
        compiler.compile_observed(function.index(), &body, &mut chunk, &mut maps).unwrap();
        let compiled = &chunk.functions[0];
        assert_eq!((compiled.end - compiled.entry) as usize, length, "the same code as the module's");
        for (position, map) in maps.in_function(compiled) {
            all.entry(start + position.code as usize).or_default().push((position.wasm, map));
        }
    }
    all
}

/// The state of the signal handler.
struct Watcher {
    maps: HashMap<usize, Vec<(u32, FrameMap)>>,
    trace: Vec<Step>,
    /// Number of steps of the trace that were executed.
    executed: usize,
    failure: Option<String>,
    garbage: u64,
}

static WATCHER: AtomicPtr<Watcher> = AtomicPtr::new(std::ptr::null_mut());

/// Called between any two instructions. It may allocate if the thread is in WebAssembly code: then
/// it is not inside the allocator.
extern "C" fn handle(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's pointer; nothing else uses the thread's registers, and the watcher is
    // used only here while the program runs.
    let (context, watcher) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        (context, &mut *WATCHER.load(Ordering::Relaxed))
    };
    watcher.step(&mut Thread { context });
}

/// The registers of the thread before an instruction.
struct Thread<'a> {
    context: &'a mut libc::ucontext_t,
}

const NUMBERED: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Carry, parity, adjust, zero, sign, overflow.
const FLAGS: u64 = 0x8d5;

impl Thread<'_> {
    fn pc(&self) -> usize {
        self.context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    }

    fn general(&mut self, number: u8) -> &mut i64 {
        &mut self.context.uc_mcontext.gregs[NUMBERED[usize::from(number)] as usize]
    }

    fn flags(&mut self) -> &mut i64 {
        &mut self.context.uc_mcontext.gregs[libc::REG_EFL as usize]
    }

    fn vector(&mut self, number: u8) -> &mut [u32; 4] {
        // SAFETY: the kernel saves them for every signal.
        let saved = unsafe { &mut *self.context.uc_mcontext.fpregs };
        &mut saved._xmm[usize::from(number)].element
    }

    fn register(&mut self, reg: Reg) -> u64 {
        if reg.is_float() {
            let [low, high, ..] = *self.vector(reg.number());
            return u64::from(low) | u64::from(high) << 32;
        }
        *self.general(reg.number()) as u64
    }

    /// Reads eight bytes; for a four-byte value the others are arbitrary.
    fn memory(&self, address: u64) -> u64 {
        let place = std::ptr::with_exposed_provenance::<u64>(address as usize);
        // SAFETY: a slot of the frame, or inside the memory, which extends beyond the part that the
        // programs use.
        unsafe { place.read_unaligned() }
    }

    fn slot(&mut self, offset: i32) -> u64 {
        let base = *self.general(5) as u64;
        self.memory(base.wrapping_add_signed(offset.into()))
    }

    fn operand(&mut self, place: OperandPlace, locals: &[u64]) -> u64 {
        match place {
            OperandPlace::Constant(bits) => bits,
            OperandPlace::Vector(_) => unreachable!("the interpreter has no vectors"),
            OperandPlace::Register(reg) => self.register(reg),
            // Already compared.
            OperandPlace::Local(local) => locals[local as usize],
            OperandPlace::Slot(offset) => self.slot(offset),
            OperandPlace::Load(Address { base, index, displacement }) => {
                let base = base.map_or(0, |reg| self.register(reg));
                let index = index.map_or(0, |(reg, by)| self.register(reg) << by);
                self.memory(base.wrapping_add(index).wrapping_add_signed(displacement.into()))
            }
            OperandPlace::Shifted { reg, by } => self.register(reg) << by,
            OperandPlace::Flags(condition) | OperandPlace::Truth(condition) => {
                condition.holds(*self.flags() as u64).into()
            }
        }
    }

    /// Overwrites the registers that are not live in the map.
    fn scramble(&mut self, map: &FrameMap, garbage: u64) {
        let kept = |number: u8, float: bool| {
            map.registers.iter().any(|reg| (reg.number(), reg.is_float()) == (number, float))
        };
        for number in 0..16 {
            // rbx, rsp, rbp, r12 to r15 belong to the frame or to the caller.
            if !matches!(number, 3..=5 | 12..) && !kept(number, false) {
                *self.general(number) = garbage as i64;
            }
            if !kept(number, true) {
                *self.vector(number) = [garbage as u32; 4];
            }
        }
        if !map.flags {
            let flags = *self.flags() as u64;
            *self.flags() = (flags & !FLAGS | garbage & FLAGS) as i64;
        }
    }
}

/// Whether two values of a type are equal. All NaNs are.
fn same(ty: Ty, one: u64, other: u64) -> bool {
    match ty {
        Ty::I32 | Ty::F32 => one as u32 == other as u32,
        Ty::F64 => one == other || f64::from_bits(one).is_nan() && f64::from_bits(other).is_nan(),
        Ty::I64 | Ty::Ref => one == other,
        Ty::V128 => unreachable!("the interpreter has no vectors"),
    }
}

impl Watcher {
    fn step(&mut self, thread: &mut Thread<'_>) {
        let Self { maps, trace, executed, failure, garbage } = self;
        let Some(maps) = maps.get(&thread.pc()) else { return };
        let mut is_first = true;
        for (offset, map) in maps {
            // A branch to this address does not execute the instructions before its target.
            if trace.get(*executed).is_none_or(|step| step.offset != *offset) || failure.is_some() {
                continue;
            }
            *failure = check(map, trace, *executed, thread).err();
            if is_first {
                *garbage = garbage.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ 0x5bd1;
                thread.scramble(map, *garbage);
            }
            is_first = false;
            *executed += 1;
        }
    }
}

/// Compares the values found through the map with the interpreter's step.
fn check(map: &FrameMap, trace: &[Step], at: usize, thread: &mut Thread<'_>) -> Result<(), String> {
    let Step { offset, locals, operands, access, .. } = &trace[at];
    let wrong = |what: String| Err(format!("before {offset:#x}: {what}\n{map:?}"));
    if map.operands.len() != operands.len() {
        return wrong(format!("{} operands, not {}", map.operands.len(), operands.len()));
    }
    for (index, local) in map.locals.iter().enumerate() {
        let expected = locals[index];
        let found = match local.place {
            LocalPlace::Register { reg, slot } => {
                let found = thread.register(reg);
                if let Some(slot) = slot
                    && !same(local.ty, thread.slot(slot), expected)
                {
                    return wrong(format!("local {index}: its slot is not up to date"));
                }
                found
            }
            LocalPlace::Slot(slot) => thread.slot(slot),
            LocalPlace::Zero => 0,
            LocalPlace::Overwritten => match access {
                Some(Access { local, reads: false }) if *local as usize == index => continue,
                other => return wrong(format!("local {index} is overwritten, but next comes {other:?}")),
            },
        };
        if !same(local.ty, found, expected) {
            return wrong(format!("local {index} is {found:#x}, not {expected:#x}"));
        }
    }
    for (height, (operand, expected)) in map.operands.iter().zip(operands).enumerate() {
        let found = thread.operand(operand.place, locals);
        let expected = match operand.place {
            OperandPlace::Truth(_) => u64::from(*expected as u32 != 0),
            _ => *expected,
        };
        if !same(operand.ty, found, expected) {
            return wrong(format!("operand {height} is {found:#x}, not {expected:#x}"));
        }
    }
    Ok(())
}

/// Sets or clears the trap flag, which makes the processor trap after each instruction.
fn single_step(on: bool) {
    const TRAP_FLAG: u64 = 0x100;
    // SAFETY: the handler is installed; the test controls its changes of registers.
    unsafe {
        match on {
            true => asm!("pushfq", "or qword ptr [rsp], {flag}", "popfq", flag = const TRAP_FLAG),
            false => asm!("pushfq", "and qword ptr [rsp], {flag}", "popfq", flag = const !(TRAP_FLAG as i32)),
        }
    }
}

/// Runs the program both ways; returns the number of instructions that were compared.
fn try_program(seed: u64) -> usize {
    let mut text = programs::program(seed);
    if seed.is_multiple_of(3) {
        text = hints::with_hints(&text, seed);
    }
    let bytes = wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let module = Module::from_binary(&Engine::default(), &bytes).unwrap();
    let mut machine = Machine::new(&module);
    let Some(expected) = machine.call(0, &[]) else { return 0 };
    let trace = std::mem::take(&mut machine.trace);
    let mut watcher =
        Watcher { maps: maps(&module, &bytes), trace, executed: 0, failure: None, garbage: seed };

    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let function = instance.get_func(&store, "main").unwrap();
    let mut results = [Val::I64(0)];
    WATCHER.store(&raw mut watcher, Ordering::Relaxed);
    single_step(true);
    let called = function.call(&mut store, &[], &mut results);
    single_step(false);
    WATCHER.store(std::ptr::null_mut(), Ordering::Relaxed);
    if let Some(failure) = watcher.failure {
        panic!("seed {seed}: {failure}\n{text}");
    }
    called.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
    assert_eq!(watcher.executed, watcher.trace.len(), "seed {seed}: the program took another path\n{text}");
    let Val::I64(result) = results[0] else { panic!("{results:?}") };
    assert_eq!([result as u64], expected[..], "seed {seed}\n{text}");
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    assert!(memory.data(&store)[..machine.memory.len()] == machine.memory[..], "seed {seed}: memory\n{text}");
    watcher.executed
}

/// The types of the operands before each reachable instruction, according to validation.
fn validated(bytes: &[u8]) -> HashMap<u32, Vec<Ty>> {
    let mut all = HashMap::new();
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    for payload in Parser::new(0).parse_all(bytes) {
        let ValidPayload::Func(function, body) = validator.payload(&payload.unwrap()).unwrap() else {
            continue;
        };
        let mut validator = function.into_validator(Default::default());
        validator.read_locals(&mut body.get_binary_reader()).unwrap();
        let mut operators = body.get_operators_reader().unwrap();
        while !operators.eof() {
            let (operator, offset) = operators.read_with_offset().unwrap();
            let height = validator.operand_stack_height() as usize;
            let types = (0..height).rev().map(|depth| validator.get_operand_type(depth).flatten());
            let types: Option<Vec<Ty>> = types.map(|ty| ty.map(Ty::from)).collect();
            all.extend(types.map(|types| (offset as u32, types)));
            validator.op(offset, &operator).unwrap();
        }
    }
    all
}

#[test]
fn maps_have_the_operands_that_validation_knows() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut compared = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "wat") {
            continue;
        }
        let bytes = wat::parse_file(&path).unwrap();
        let module = Module::from_binary(&Engine::default(), &bytes).unwrap();
        let expected = validated(&bytes);
        for (offset, map) in maps(&module, &bytes).into_values().flatten() {
            let found: Vec<Ty> = map.operands.iter().map(|operand| operand.ty).collect();
            assert_eq!(Some(&found), expected.get(&offset), "{}: {offset:#x}", path.display());
            compared += 1;
        }
    }
    assert!(compared > 800, "{compared} instructions");
}

#[test]
fn values_are_where_the_maps_say_and_nothing_else_is_live() {
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and nothing else of this
    // process traps.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()), 0);
    }
    let compared: usize = (0..PROGRAMS).map(try_program).sum();
    assert!(compared > 50_000, "{compared} instructions");
}
