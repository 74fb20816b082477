//! Sites change nothing but the code's length: versions of a function that differ in them have the
//! same frames, and the same calls.

use std::collections::HashMap;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, UsedRegister,
};
use wasm_jit::{Engine, Module};
use wasm_jit_codegen::{
    Chunk, CompiledFunction, Compiler, Counting, ENTRY_LENGTH, FrameMap, Instrumentation, LocalPlace,
    MAX_SHARED, ModuleInfo, Observer, OperandPlace, Placed, Position, Run, SITE_LENGTH, SITE_WINDOW, Sites,
    State, is_control,
};
use wasmparser::{FunctionBody, Operator};

use super::{declarations, hints, programs};

/// The longest NOP that fits a site.
const NOP: [u8; SITE_LENGTH as usize] = [0x0f, 0x1f, 0x44, 0, 0];

/// All that an observer is shown.
#[derive(Default)]
struct Seen {
    instructions: Vec<(u32, Option<FrameMap>)>,
    sites: Vec<(Position, Option<FrameMap>)>,
    transfers: Vec<u32>,
    runs: Vec<Run>,
    /// Transfer points at which `r11` has the address of the counters.
    with_counters: Vec<u32>,
    /// Where jump tables and constants begin.
    data: Option<u32>,
}

impl Observer for Seen {
    fn instruction(&mut self, position: Position, state: &State<'_>) {
        self.instructions.push((position.wasm, state.frame_map()));
    }

    fn moved(&mut self, from: u32, to: u32) {
        assert!(from < to);
    }

    fn more_code(&mut self, position: Position) {
        if position.wasm == Position::DATA {
            self.data.get_or_insert(position.code);
        }
    }

    fn site(&mut self, site: Position, state: &State<'_>) {
        self.sites.push((site, state.frame_map()));
    }

    fn transfer(&mut self, code: u32) {
        self.transfers.push(code);
    }

    fn run(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn counters_at(&mut self, transfer: u32) {
        assert!(self.transfers.contains(&transfer));
        self.with_counters.push(transfer);
    }
}

/// A function compiled with some sites.
struct Version {
    chunk: Chunk,
    seen: Seen,
}

impl Version {
    fn of(info: &ModuleInfo, index: u32, body: &FunctionBody<'_>, sites: &Sites) -> Self {
        let (mut chunk, mut seen) = (Chunk::default(), Seen::default());
        Compiler::new(info)
            .compile_version(index, body, &mut chunk, Instrumentation { sites, counting: None }, &mut seen)
            .unwrap();
        Self { chunk, seen }
    }

    /// A version that counts, the choices of all instructions included.
    fn counting(info: &ModuleInfo, index: u32, body: &FunctionBody<'_>, sites: &Sites) -> Self {
        Self::counting_runs(info, index, body, sites, (None, None))
    }

    /// A version that counts these runs, or all; `counters` is where the counters are, if that is
    /// known.
    fn counting_runs(
        info: &ModuleInfo,
        index: u32,
        body: &FunctionBody<'_>,
        sites: &Sites,
        (counted, counters): (Option<Box<[u32]>>, Option<i32>),
    ) -> Self {
        let (mut chunk, mut seen) = (Chunk::default(), Seen::default());
        let operators = body.get_operators_reader().unwrap().into_iter_with_offsets().map(Result::unwrap);
        let chooses = |operator: &Operator<'_>| {
            matches!(operator, Operator::BrTable { .. } | Operator::Select | Operator::TypedSelect { .. })
        };
        let choices = operators.filter(|(operator, _)| chooses(operator));
        let choices = choices.map(|(_, at)| (at as u32, 5)).collect();
        let counting = Counting { first_cell: 100, choices, runs: None, counted, counters };
        let mut compiler = Compiler::new(info);
        let instrumentation = Instrumentation { sites, counting: Some(&counting) };
        compiler.compile_version(index, body, &mut chunk, instrumentation, &mut seen).unwrap();
        Self { chunk, seen }
    }

    /// How many CALL instructions there are.
    fn calls(&self) -> usize {
        let function = &self.chunk.functions[0];
        let end = self.seen.data.unwrap_or(function.end) as usize;
        let code = &self.chunk.code[function.entry as usize..end];
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let mut calls = 0;
        while decoder.can_decode() {
            let instruction = decoder.decode();
            match instruction.flow_control() {
                FlowControl::Call | FlowControl::IndirectCall => calls += 1,
                // Behind UD2 is a byte that says why.
                _ if instruction.mnemonic() == Mnemonic::Ud2 => {
                    decoder.set_position(decoder.position() + 1).unwrap();
                }
                _ => {}
            }
        }
        calls
    }

    /// The first instruction can become a JMP by one store, and so can what is at a transfer point
    /// become a trap: nothing else has its address.
    fn check_places(&self, has_sites: bool) {
        let function = &self.chunk.functions[0];
        assert!(function.entry % SITE_WINDOW + ENTRY_LENGTH <= SITE_WINDOW);
        let code = &self.chunk.code[function.entry as usize..];
        let push = Decoder::new(64, code, DecoderOptions::NONE).decode();
        assert_eq!(push.mnemonic(), Mnemonic::Push);
        assert!(push.len() >= ENTRY_LENGTH as usize, "{push:?}");
        assert!(self.seen.transfers.is_sorted());
        if has_sites {
            let decoded =
                |at: &u32| Decoder::new(64, &self.chunk.code[*at as usize..], DecoderOptions::NONE).decode();
            assert!(self.seen.transfers.iter().all(|at| decoded(at).mnemonic() == Mnemonic::Nop));
            let at_site = |at: &u32| self.seen.sites.iter().any(|(site, _)| site.code == *at);
            assert!(!self.seen.transfers.iter().any(at_site), "a site at a transfer point");
        }
    }

    /// What has to be the same in all versions.
    fn frame(&self) -> (u32, u32, usize, usize, usize, usize) {
        let function = &self.chunk.functions[0];
        let prologue = function.body - function.entry;
        let catches = function.try_regions.iter().map(|region| region.catches.len()).sum();
        (
            function.frame_size,
            prologue,
            function.try_regions.len(),
            catches,
            self.calls(),
            self.seen.transfers.len(),
        )
    }
}

/// The module offsets of the loops.
fn loops(body: &FunctionBody<'_>) -> Vec<u32> {
    let operators = body.get_operators_reader().unwrap().into_iter_with_offsets().map(Result::unwrap);
    operators
        .filter(|(operator, _)| matches!(operator, Operator::Loop { .. }))
        .map(|(_, at)| at as u32)
        .collect()
}

/// Compares the versions of each function of a module; how many sites there were, and for sites of
/// originals, what [`check_originals`] gives, and for versions that count and have no sites, what
/// [`check_counters_address`] does.
fn compare(module: &Module, bytes: &[u8]) -> (usize, [usize; 2], [usize; 2]) {
    let info = declarations(bytes);
    let (mut count, mut conditional, mut increments) = (0, [0; 2], [0; 2]);
    for function in module.functions().filter(|function| function.body().is_some()) {
        let range = function.body().unwrap().range();
        let reader = wasmparser::BinaryReader::new(&bytes[range.clone()], range.start as u64);
        let body = FunctionBody::new(reader);
        let loops = loops(&body);
        let plain = Version::of(&info, function.index(), &body, &Sites::None);
        let maps: HashMap<u32, &Option<FrameMap>> =
            plain.seen.instructions.iter().map(|(at, map)| (*at, map)).collect();
        assert!(plain.seen.sites.is_empty());
        plain.check_places(false);
        let entry = range.start as u32;
        let first = &plain.seen.instructions[0].1;
        let is_chosen = |at: &u32| at.wrapping_mul(0x9e37_79b9) >> 31 == 0;
        let some: Box<[u32]> = maps
            .keys()
            .copied()
            .filter(is_chosen)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect();
        let mut at_loops: HashMap<u32, Option<FrameMap>> = HashMap::new();
        let settled = some.iter().copied().filter(|at| at % 3 != 0).collect();
        let unsettled = Sites::At { positions: some.clone(), settled: Box::default() };
        let all = [true, false].map(|settled| Sites::All { settled });
        for sites in all.into_iter().chain([unsettled, Sites::At { positions: some, settled }]) {
            let version = Version::of(&info, function.index(), &body, &sites);
            assert_eq!(version.seen.instructions, plain.seen.instructions);
            assert_eq!(version.frame(), plain.frame());
            let reachable = plain.seen.instructions.iter().filter(|(_, map)| map.is_some());
            let expected = reachable.filter(|(at, _)| match &sites {
                Sites::At { positions, .. } => positions.contains(at),
                _ => true,
            });
            let at_ends = if matches!(sites, Sites::All { .. }) { 2 } else { 0 };
            assert_eq!(version.seen.sites.len(), expected.count() + at_ends, "entry and exit");
            version.check_places(true);
            for (Position { code, wasm }, map) in &version.seen.sites {
                assert!(code % SITE_WINDOW + SITE_LENGTH <= SITE_WINDOW, "inside a word");
                assert_eq!(version.chunk.code[*code as usize..][..NOP.len()], NOP);
                if loops.contains(wasm) {
                    // At the label, whose state is no instruction's but the same in all versions.
                    assert_eq!(at_loops.entry(*wasm).or_insert_with(|| map.clone()), map);
                } else if *wasm == entry {
                    assert_eq!(map, first, "the entry is in front of the first instruction");
                } else if *wasm == range.end as u32 {
                    let FrameMap { operands, flags, .. } = map.as_ref().unwrap();
                    assert!(operands.is_empty() && !flags, "the exit has results only");
                } else {
                    assert_eq!(map, maps[wasm], "the state in front of {wasm:#x}");
                }
            }
            count += version.seen.sites.len();
            let counting = Version::counting(&info, function.index(), &body, &sites);
            assert_eq!(counting.seen.instructions, plain.seen.instructions);
            assert_eq!(counting.frame(), plain.frame());
            counting.check_places(true);
            let places = |version: &Version| -> Vec<u32> {
                version.seen.sites.iter().map(|(site, _)| site.wasm).collect()
            };
            assert_eq!(places(&counting), places(&version));
            check_runs(&counting, entry);
            check_counters_address(&counting);
        }
        let counting = Version::counting(&info, function.index(), &body, &Sites::None);
        check_counted_runs(&info, function.index(), &body, &counting);
        check_counters_in_front(&info, function.index(), &body, &counting);
        let found = check_counters_address(&counting);
        increments = [0, 1].map(|at| increments[at] + found[at]);
        check_loops(&info, function.index(), &body, &loops);
        check_plain(&info, function.index(), &body, &plain);
        let version = Version::of(&info, function.index(), &body, &Sites::Branches);
        assert_eq!(version.seen.instructions, plain.seen.instructions);
        assert_eq!(version.frame(), plain.frame());
        version.check_places(true);
        let found = check_originals(&version, &body);
        conditional = [0, 1].map(|at| conditional[at] + found[at]);
    }
    (count, conditional, increments)
}

/// Sites of control instructions in an original: NOPs, which several may share, and jumps. How many
/// conditional jumps directly follow the instruction that sets their flags, and how many there are.
fn check_originals(version: &Version, body: &FunctionBody<'_>) -> [usize; 2] {
    let function = &version.chunk.functions[0];
    let operators = body.get_operators_reader().unwrap().into_iter_with_offsets().map(Result::unwrap);
    let control: HashMap<u32, Operator<'_>> = operators
        .filter(|(operator, _)| is_control(operator))
        .map(|(operator, at)| (at as u32, operator))
        .collect();
    let maps = version.seen.instructions.iter();
    let reachable = maps.filter(|(at, map)| map.is_some() && control.contains_key(at)).count();
    assert_eq!(version.seen.sites.len(), reachable + 1, "and the entry");
    let code = &version.chunk.code[function.entry as usize..];
    let mut decoder = Decoder::with_ip(64, code, function.entry.into(), DecoderOptions::NONE);
    let mut decoded: HashMap<u32, (Instruction, Instruction)> = HashMap::new();
    let mut before = Instruction::default();
    let end = version.seen.data.unwrap_or(function.end);
    while decoder.can_decode() && (decoder.ip() as u32) < end {
        let instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::Ud2 {
            let next = decoder.position() + 1;
            decoder.set_position(next).unwrap();
            decoder.set_ip(u64::from(function.entry) + next as u64);
        }
        decoded.insert(instruction.ip() as u32, (instruction, before));
        before = instruction;
    }
    let (mut fused, mut jumps) = (0, 0);
    for (Position { code, wasm }, _) in &version.seen.sites {
        assert!(code % SITE_WINDOW + SITE_LENGTH <= SITE_WINDOW, "inside a word");
        let (site, before) = &decoded[code];
        let sharing = version.seen.sites.iter().filter(|(site, _)| site.code == *code).count();
        assert!(sharing <= MAX_SHARED as usize);
        match (control.get(wasm), site.flow_control()) {
            (_, FlowControl::Next) => {
                assert_eq!(version.chunk.code[*code as usize..][..NOP.len()], NOP);
            }
            (Some(Operator::Br { .. }), FlowControl::UnconditionalBranch) => {
                assert_eq!((sharing, site.len()), (1, 5));
            }
            (Some(Operator::BrIf { .. } | Operator::If { .. }), FlowControl::ConditionalBranch) => {
                assert_eq!((sharing, site.len()), (1, 6));
                fused += usize::from(before.rflags_modified() != 0);
                jumps += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    [fused, jumps]
}

/// A version that counts some of the runs of another one: the others have no code.
fn check_counted_runs(info: &ModuleInfo, index: u32, body: &FunctionBody<'_>, all: &Version) {
    let starts = all.seen.runs.iter().filter(|run| run.with == run.wasm).map(|run| run.wasm);
    let counted: Box<[u32]> = starts.step_by(2).collect();
    let version = Version::counting_runs(info, index, body, &Sites::None, (Some(counted.clone()), None));
    assert_eq!(version.seen.instructions, all.seen.instructions);
    assert_eq!(version.frame(), all.frame());
    assert_eq!(version.seen.runs.len(), all.seen.runs.len());
    for (run, other) in version.seen.runs.iter().zip(&all.seen.runs) {
        assert_eq!((run.wasm, run.with), (other.wasm, other.with));
        let is_counted = run.with == run.wasm && counted.contains(&run.wasm);
        assert_eq!(run.counted > run.code, is_counted, "{run:x?}");
    }
}

/// A version that knows where the counters are: it counts the same runs, with no other address than
/// that of the context.
fn check_counters_in_front(info: &ModuleInfo, index: u32, body: &FunctionBody<'_>, all: &Version) {
    const FIRST: i32 = -100_000;
    let version = Version::counting_runs(info, index, body, &Sites::None, (None, Some(FIRST)));
    assert_eq!(version.seen.instructions, all.seen.instructions);
    assert_eq!(version.frame(), all.frame());
    assert!(version.seen.with_counters.is_empty());
    let load = [0x4d, 0x8b, 0x5e, 0xf8];
    assert!(!version.chunk.code.windows(4).any(|code| code == load), "mov r11, [r14 - 8]");
    assert_eq!(version.seen.runs.len(), all.seen.runs.len());
    for (cell, (run, other)) in (100..).zip(version.seen.runs.iter().zip(&all.seen.runs)) {
        assert_eq!((run.wasm, run.with), (other.wasm, other.with));
        assert_eq!(run.counted > run.code, other.counted > other.code);
        let code = &version.chunk.code[run.code as usize..run.counted as usize];
        for instruction in &mut Decoder::new(64, code, DecoderOptions::NONE) {
            if instruction.mnemonic() != Mnemonic::Lea {
                let at = (instruction.memory_base(), instruction.memory_displacement64() as i32);
                assert_eq!(at, (Register::R14, FIRST + 8 * cell), "{run:x?}");
            }
        }
    }
}

/// In the plain version, each local and operand is in a slot of its own in front of each
/// instruction, which the other versions do not use for anything else; and nothing is known of
/// registers and flags.
fn check_plain(info: &ModuleInfo, index: u32, body: &FunctionBody<'_>, original: &Version) {
    let CompiledFunction { saved, frame_size, .. } = original.chunk.functions[0];
    let version = Version::of(info, index, body, &Sites::Plain { saved });
    version.check_places(true);
    assert!(version.chunk.functions[0].frame_size >= frame_size);
    let maps: HashMap<u32, &FrameMap> =
        version.seen.instructions.iter().filter_map(|(at, map)| Some((*at, map.as_ref()?))).collect();
    for map in maps.values() {
        assert!(map.registers.is_empty() && !map.flags, "{map:?}");
        let slot_of_local = |local: &Placed<LocalPlace>| match local.place {
            LocalPlace::Slot(slot) => slot,
            other => panic!("{other:?}"),
        };
        let slot_of_operand = |operand: &Placed<OperandPlace>| match operand.place {
            OperandPlace::Slot(slot) => slot,
            other => panic!("{other:?}"),
        };
        let locals = map.locals.iter().map(slot_of_local);
        let slots: Vec<i32> = locals.chain(map.operands.iter().map(slot_of_operand)).collect();
        assert!(slots.is_sorted_by(|a, b| a >= &(b + 8)), "{slots:?}");
        assert!(slots.last().is_none_or(|last| -last <= version.chunk.functions[0].frame_size as i32));
    }
    for (at, map) in &original.seen.instructions {
        let Some(map) = map else { continue };
        let same = maps[at];
        let types = |map: &FrameMap| map.operands.iter().map(|operand| operand.ty).collect::<Vec<_>>();
        assert_eq!((map.locals.len(), types(map)), (same.locals.len(), types(same)), "{at:#x}");
        let slots = map.locals.iter().zip(&same.locals).filter_map(|(local, own)| match local.place {
            LocalPlace::Register { slot: Some(slot), .. } | LocalPlace::Slot(slot) => {
                Some((LocalPlace::Slot(slot), own.place))
            }
            _ => None,
        });
        slots.for_each(|(slot, own)| assert_eq!(slot, own));
    }
}

/// Runs follow each other, the first one at the entry, and a frame that arrives at a transfer point
/// comes to the start of a run that is counted. No frame arrives between two runs that are counted
/// together.
fn check_runs(version: &Version, entry: u32) {
    let Seen { runs, transfers, .. } = &version.seen;
    assert_eq!(runs[0].wasm, entry);
    assert!(runs.is_sorted_by(|a, b| a.wasm <= b.wasm && a.counted <= b.code));
    for run in runs {
        let first = runs.iter().rfind(|first| first.wasm == run.with).expect("there is one");
        if first.wasm == run.wasm {
            assert!(run.code < run.counted);
            continue;
        }
        assert!(run.code == run.counted && first.counted <= run.code && first.with == first.wasm);
        assert!(!transfers.iter().any(|at| first.code <= *at && *at < run.code));
    }
    let runs: Vec<_> = runs.iter().filter(|run| run.with == run.wasm).collect();
    for (at, next) in transfers.iter().zip(transfers.iter().skip(1)) {
        // After the last run, code of calls follows that continues elsewhere.
        let is_hot = *next < runs.last().expect("there is one").code;
        let begins = runs.iter().any(|run| at < &run.code && run.code < *next);
        assert!(begins || !is_hot, "no run between the transfer points at {at:#x} and {next:#x}");
    }
}

/// Wherever a run is counted, `r11` has the address of the counters, on each way through the code.
/// Returns the number of additions, and of those that the address is not loaded for.
fn check_counters_address(version: &Version) -> [usize; 2] {
    let function = &version.chunk.functions[0];
    let end = version.seen.data.unwrap_or(function.end);
    let code = &version.chunk.code[function.entry as usize..end as usize];
    let mut decoder = Decoder::with_ip(64, code, function.entry.into(), DecoderOptions::NONE);
    let mut all: Vec<Instruction> = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        all.push(instruction);
        if instruction.mnemonic() == Mnemonic::Ud2 {
            let next = decoder.position() + 1;
            decoder.set_position(next).unwrap();
            decoder.set_ip(u64::from(function.entry) + next as u64);
        }
    }
    let index: HashMap<u64, usize> = all.iter().enumerate().map(|(at, of)| (of.ip(), at)).collect();
    let is_load = |of: &Instruction| {
        (of.mnemonic(), of.op0_register()) == (Mnemonic::Mov, Register::R11)
            && (of.op1_kind(), of.memory_base()) == (OpKind::Memory, Register::R14)
            && of.memory_displacement64() as i64 == -8
    };
    let mut factory = InstructionInfoFactory::new();
    let mut changes = |of: &Instruction| {
        let writes = |used: &UsedRegister| {
            let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
            used.register().full_register() == Register::R11 && !is_read
        };
        let at_site = version.seen.sites.iter().any(|(site, _)| u64::from(site.code) == of.ip());
        let calls = matches!(of.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        calls || at_site || factory.info(of).used_registers().iter().any(writes)
    };
    // Whether the register has the address before an instruction; unknown where nothing leads.
    let mut known: Vec<Option<bool>> = vec![None; all.len()];
    let mut open: Vec<(usize, bool)> = vec![(0, false)];
    let handlers = function.try_regions.iter().flat_map(|region| region.catches.iter());
    let others = version.seen.transfers.iter().filter(|at| !version.seen.with_counters.contains(at));
    let starts = handlers.map(|catch| catch.handler).chain(others.copied());
    open.extend(starts.filter_map(|at| Some((*index.get(&at.into())?, false))));
    // Where jump tables lead, with as many entries as the index is compared with.
    for (at, of) in all.iter().enumerate() {
        if of.mnemonic() == Mnemonic::Lea && of.is_ip_rel_memory_operand() {
            let compared = all[..at].iter().rev().find(|of| of.mnemonic() == Mnemonic::Cmp).unwrap();
            let table = of.ip_rel_memory_address();
            let entries = version.chunk.code[table as usize..].chunks_exact(4);
            let distances = entries.map(|entry| i32::from_le_bytes(entry.try_into().unwrap()));
            let targets = distances.map(|distance| table.wrapping_add_signed(distance.into()));
            open.extend(targets.take(compared.immediate(1) as usize).map(|to| (index[&to], false)));
        }
    }
    while let Some((at, has)) = open.pop() {
        let joined = has && known[at] != Some(false);
        if known[at] == Some(joined) {
            continue;
        }
        known[at] = Some(joined);
        let of = &all[at];
        let after = is_load(of) || joined && !changes(of);
        let flow = of.flow_control();
        if matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
            // Tail calls are not linked yet.
            open.extend(index.get(&of.near_branch_target()).map(|to| (*to, after)));
        }
        let calls = matches!(flow, FlowControl::Call | FlowControl::IndirectCall);
        let goes_on = calls || matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch);
        if goes_on && at + 1 < all.len() {
            open.push((at + 1, after));
        }
    }
    let (mut additions, mut bare) = (0, 0);
    for (at, of) in all.iter().enumerate() {
        let adds = of.mnemonic() == Mnemonic::Add && of.op0_kind() == OpKind::Memory;
        if adds && of.memory_base() == Register::R11 && of.memory_index() == Register::None {
            additions += 1;
            bare += usize::from(!is_load(&all[at - 1]));
            // Behind a condition that never holds is code that nothing leads to.
            assert_ne!(known[at], Some(false), "at {:#x}", of.ip());
        }
    }
    [additions, bare]
}

/// Whoever branches to a loop comes to its site.
fn check_loops(info: &ModuleInfo, index: u32, body: &FunctionBody<'_>, loops: &[u32]) {
    let sites = Sites::At { positions: loops.into(), settled: Box::default() };
    let version = Version::of(info, index, body, &sites);
    let function = &version.chunk.functions[0];
    let end = version.seen.data.unwrap_or(function.end);
    let code = &version.chunk.code[function.entry as usize..end as usize];
    let mut decoder = Decoder::with_ip(64, code, function.entry.into(), DecoderOptions::NONE);
    let mut backward = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::Ud2 {
            let next = decoder.position() + 1;
            decoder.set_position(next).unwrap();
            decoder.set_ip(u64::from(function.entry) + next as u64);
        }
        let is_jump = matches!(
            instruction.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        if is_jump && instruction.near_branch_target() <= instruction.ip() {
            backward.push(instruction.near_branch_target() as u32);
        }
    }
    for (site, _) in &version.seen.sites {
        let is_past = |target: &u32| (1..=SITE_LENGTH).contains(&target.wrapping_sub(site.code));
        assert!(!backward.iter().any(is_past), "a branch goes past the site of its loop");
    }
}

#[test]
fn sites_change_no_frame() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let (mut sites, mut fused, mut jumps, mut increments) = (0, 0, 0, [0; 2]);
    let mut compare = |bytes: &[u8]| {
        let found = compare(&Module::from_binary(&Engine::default(), bytes).unwrap(), bytes);
        sites += found.0;
        fused += found.1[0];
        jumps += found.1[1];
        increments = [0, 1].map(|at| increments[at] + found.2[at]);
    };
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "wat") {
            compare(&wat::parse_file(&path).unwrap());
        }
    }
    for seed in 0..100 {
        let text = programs::program(seed);
        compare(&wat::parse_str(&text).unwrap());
        compare(&wat::parse_str(hints::with_hints(&text, seed)).unwrap());
    }
    assert!(sites > 10_000, "{sites} sites");
    let [additions, bare] = increments;
    assert!(5 * bare > additions, "{bare} of {additions} increments do not load the address");
    // In front of the others, values are stored or loaded, or the instruction could not be longer.
    assert!(jumps > 300 && 10 * fused > 9 * jumps, "{fused} of {jumps} jumps follow their comparison");
}
