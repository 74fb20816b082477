//! Sites change nothing but the code's length: versions of a function that differ in them have the
//! same frames, and the same calls.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use wasm_jit::{Engine, Module};
use wasm_jit_codegen::{
    Chunk, Compiler, Counting, ENTRY_LENGTH, FrameMap, ModuleInfo, Observer, Position, Run, SITE_LENGTH,
    SITE_WINDOW, Sites, State,
};
use wasmparser::{FunctionBody, Operator};

use super::{declarations, programs};

/// The longest NOP that fits a site.
const NOP: [u8; SITE_LENGTH as usize] = [0x0f, 0x1f, 0x44, 0, 0];

/// All that an observer is shown.
#[derive(Default)]
struct Seen {
    instructions: Vec<(u32, Option<FrameMap>)>,
    sites: Vec<(Position, Option<FrameMap>)>,
    transfers: Vec<u32>,
    runs: Vec<Run>,
    /// Where jump tables and constants begin.
    data: Option<u32>,
}

impl Observer for Seen {
    fn instruction(&mut self, position: Position, state: &State<'_>) {
        self.instructions.push((position.wasm, state.frame_map()));
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
}

/// A function compiled with some sites.
struct Version {
    chunk: Chunk,
    seen: Seen,
}

impl Version {
    fn of(info: &ModuleInfo, index: u32, body: &FunctionBody<'_>, sites: &Sites) -> Self {
        let (mut chunk, mut seen) = (Chunk::default(), Seen::default());
        Compiler::new(info).compile_with_sites(index, body, &mut chunk, sites, &mut seen).unwrap();
        Self { chunk, seen }
    }

    /// A version that counts, the choices of all instructions included.
    fn counting(info: &ModuleInfo, index: u32, body: &FunctionBody<'_>, sites: &Sites) -> Self {
        let (mut chunk, mut seen) = (Chunk::default(), Seen::default());
        let operators = body.get_operators_reader().unwrap().into_iter_with_offsets().map(Result::unwrap);
        let chooses = |operator: &Operator<'_>| {
            matches!(operator, Operator::BrTable { .. } | Operator::Select | Operator::TypedSelect { .. })
        };
        let choices = operators.filter(|(operator, _)| chooses(operator));
        let choices = choices.map(|(_, at)| (at as u32, 5)).collect();
        let counting = Counting { first_cell: 100, choices };
        let mut compiler = Compiler::new(info);
        compiler.compile_counting(index, body, &mut chunk, (sites, &counting), &mut seen).unwrap();
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
            assert!(self.seen.transfers.iter().all(|at| self.chunk.code[*at as usize] == 0x90));
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

/// Compares the versions of each function of a module; how many sites there were.
fn compare(module: &Module, bytes: &[u8]) -> usize {
    let info = declarations(bytes);
    let mut count = 0;
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
                    let FrameMap { locals, operands, flags, .. } = map.as_ref().unwrap();
                    assert!(locals.is_empty() && operands.is_empty() && !flags, "the exit has results only");
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
        }
        check_loops(&info, function.index(), &body, &loops);
    }
    count
}

/// Runs follow each other, the first one at the entry, and a frame that arrives at a transfer point
/// comes to the start of a run.
fn check_runs(version: &Version, entry: u32) {
    let Seen { runs, transfers, .. } = &version.seen;
    assert_eq!(runs[0].wasm, entry);
    assert!(runs.is_sorted_by(|a, b| a.wasm <= b.wasm && a.counted <= b.code));
    assert!(runs.iter().all(|run| run.code < run.counted));
    for (at, next) in transfers.iter().zip(transfers.iter().skip(1)) {
        // After the last run, code of calls follows that continues elsewhere.
        let is_hot = *next < runs.last().expect("there is one").code;
        let begins = runs.iter().any(|run| at < &run.code && run.code < *next);
        assert!(begins || !is_hot, "no run between the transfer points at {at:#x} and {next:#x}");
    }
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
            let behind = decoder.position() + 1;
            decoder.set_position(behind).unwrap();
            decoder.set_ip(u64::from(function.entry) + behind as u64);
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
    let mut sites = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "wat") {
            let bytes = wat::parse_file(&path).unwrap();
            sites += compare(&Module::from_binary(&Engine::default(), &bytes).unwrap(), &bytes);
        }
    }
    for seed in 0..100 {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        sites += compare(&Module::from_binary(&Engine::default(), &bytes).unwrap(), &bytes);
    }
    assert!(sites > 10_000, "{sites} sites");
}
