//! The figures of monitors on random programs, and on some with all ways to call and to leave
//! functions, equal those of events that rewritten programs log by themselves.

#[path = "../../../hooks/tests/events/rewrite.rs"]
#[allow(dead_code)]
mod rewrite;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rewrite::{Event, EventKind};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_monitors::{Cell, Output, Report, Session};

use super::programs;

type Log = Arc<Mutex<Vec<Event>>>;

/// The results of a run: that of `main`, and the sum of the memory.
type Outcome = (Result<i64, String>, u64);

/// Runs a module whose first import logs.
fn run(module: &Module, log: &Log) -> Outcome {
    let mut linker = Linker::new(module.engine());
    let log = log.clone();
    let import = move |packed: i32, a: i64, b: i64| log.lock().unwrap().push(rewrite::unpacked(packed, a, b));
    linker.func_wrap("log", "log", import).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, module).unwrap();
    let main = instance.get_typed_func::<(), i64>(&mut store, "main").unwrap();
    let result = main.call(&mut store, ()).map_err(|error| error.reason());
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let sum = memory.data(&store).iter().fold(0_u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
    (result, sum)
}

/// Counts by function, offset in its body, and another number.
type Counts = BTreeMap<(u32, u32, u64), u64>;

/// A program, and its true behaviour.
struct Truth {
    module: Module,
    text: String,
    outcome: Outcome,
    /// How often control reached each instruction.
    instructions: Counts,
    /// By operand.
    branches: Counts,
    calls: Counts,
    /// The number of entries of each function.
    entries: BTreeMap<u32, u64>,
    /// By address.
    accesses: Counts,
    /// Addresses and sizes, in order. Loads that trap are not included.
    stream: Vec<(u64, u64)>,
}

impl Truth {
    fn of(text: String) -> Self {
        let engine = Engine::default();
        let bytes = wat::parse_str(&text).unwrap();
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let log = Log::default();
        let outcome = run(&module, &log);
        let events = |what: EventKind| {
            log.lock().unwrap().clear();
            let rewritten = Module::from_binary(&engine, &rewrite::rewrite(&bytes, what)).unwrap();
            assert_eq!(run(&rewritten, &log), outcome, "{what:?} {text}");
            let mut events = std::mem::take(&mut *log.lock().unwrap());
            events.retain(|event| event.0 != rewrite::CAUGHT);
            events
        };
        let count = |events: &[Event], number: fn(&Event) -> u64| {
            let mut counts = Counts::new();
            for event in events {
                *counts.entry((event.1, event.2, number(event))).or_default() += 1;
            }
            counts
        };
        let mut entries = BTreeMap::new();
        for event in events(EventKind::Functions).iter().filter(|event| event.0 == rewrite::ENTRY) {
            *entries.entry(event.1).or_default() += 1;
        }
        let accesses = events(EventKind::Memory);
        let mut truth = Self {
            instructions: count(&events(EventKind::Each), |_| 0),
            branches: count(&events(EventKind::Branches), |event| event.3),
            calls: count(&events(EventKind::Calls), |_| 0),
            entries,
            accesses: count(&accesses, |event| event.3),
            stream: Vec::new(),
            module,
            text,
            outcome,
        };
        let size = |event: &Event| match wasm_jit_hooks::accesses(&truth.operator(event.1, event.2))[0].size {
            wasm_jit::probes::Bound::Const(size) => size,
            other => panic!("{other:?}"),
        };
        truth.stream = accesses.iter().map(|event| (event.3, size(event))).collect();
        truth
    }

    /// Runs the program with these monitors.
    fn reports(&self, monitors: &[&str]) -> Vec<Report> {
        let session = Session::new(&self.module, Output::none());
        for monitor in monitors {
            session.enable(monitor.parse().unwrap()).unwrap();
        }
        assert_eq!(run(&self.module, &Log::default()), self.outcome, "{monitors:?} {}", self.text);
        session.reports()
    }

    /// The operators of a function, by their offsets in its body.
    fn operators(&self, function: u32) -> BTreeMap<u32, Operator<'_>> {
        let Some(body) = self.module.function(function).and_then(|function| function.body()) else {
            return BTreeMap::new();
        };
        let start = body.range().start;
        let each = body.instructions();
        each.map(|instruction| ((instruction.offset() - start) as u32, instruction.operator().clone()))
            .collect()
    }

    fn operator(&self, function: u32, offset: u32) -> Operator<'_> {
        self.operators(function)[&offset].clone()
    }

    /// The offset in the module of an instruction.
    fn position(&self, function: u32, offset: u32) -> u64 {
        let body = self.module.function(function).unwrap().body().unwrap();
        body.range().start as u64 + u64::from(offset)
    }

    /// The sums of counts by position in the module, except for 0.
    fn by_position(
        &self,
        counts: &Counts,
        is_wanted: impl Fn(&(u32, u32, u64)) -> bool,
    ) -> BTreeMap<u64, u64> {
        let mut sums = BTreeMap::new();
        for (key, count) in counts.iter().filter(|(key, _)| is_wanted(key)) {
            *sums.entry(self.position(key.0, key.1)).or_default() += count;
        }
        sums
    }

    /// Whether the branch was taken, with this operand.
    fn is_taken(&self, (function, offset, operand): &(u32, u32, u64)) -> bool {
        match self.operator(*function, *offset) {
            Operator::BrTable { targets } => *operand < u64::from(targets.len()),
            _ => *operand != 0,
        }
    }
}

/// Two columns of a table as a map; rows with 0 are omitted.
fn columns(report: &Report, table: &str, key: &str, value: &str) -> BTreeMap<u64, u64> {
    let number = |cell: &Cell| match cell {
        Cell::Int(value) => *value as u64,
        Cell::Hex(value) => *value,
        other => panic!("{other:?}"),
    };
    let table = report.get_table(table).unwrap();
    let rows = table.column(key).map(number).zip(table.column(value).map(number));
    rows.filter(|(_, value)| *value != 0).collect()
}

/// Checks all monitors that count against the true behaviour of a program.
fn check(truth: &Truth) -> usize {
    let cache = "cache{level=256:2:16,level=512:4:32}";
    let monitors = [
        "hotness",
        "coverage{branches}",
        "branches",
        "loops",
        "blocks",
        "icount",
        "imix",
        "opcodes",
        "calls",
        "globals{values}",
        "memory",
        cache,
    ];
    let names = monitors.map(|monitor| monitor.split('{').next().unwrap());
    let alone: Vec<Report> = monitors.iter().flat_map(|name| truth.reports(&[name])).collect();
    // In another order, too, and all of them together.
    let all = truth.reports(&monitors);
    assert!(alone == all, "all at once give the figures of each: {}", truth.text);
    let mut reversed = truth.reports(&monitors.iter().rev().copied().collect::<Vec<_>>());
    reversed.reverse();
    assert!(alone == reversed, "{}", truth.text);
    let report = |name: &str| &alone[names.iter().position(|known| *known == name).unwrap()];
    let context = &truth.text;

    let instructions = truth.by_position(&truth.instructions, |_| true);
    let total = instructions.values().sum::<u64>();
    assert_eq!(columns(report("hotness"), "by_instruction", "offset", "times"), instructions, "{context}");
    for name in ["hotness", "icount", "imix", "opcodes"] {
        assert_eq!(report(name).get("instructions"), Some(total), "{name} {context}");
    }

    // Coverage equals hotness above zero.
    let mut covered = BTreeMap::new();
    let executed = report("coverage").get_table("executed").unwrap();
    for row in executed.rows() {
        let [Cell::Int(function), Cell::Int(from), Cell::Int(to)] = row[..] else { panic!("{row:?}") };
        for (offset, _) in truth.operators(function as u32).range(from as u32..=to as u32) {
            covered.insert(truth.position(function as u32, *offset), ());
        }
    }
    assert!(covered.keys().eq(instructions.keys()), "{covered:?} {instructions:?} {context}");
    assert_eq!(report("coverage").get("instructions_covered"), Some(covered.len() as u64));
    assert_eq!(outcomes_of(truth, report("coverage")), outcomes_seen(truth), "{context}");

    let executed = truth.by_position(&truth.branches, |_| true);
    assert_eq!(columns(report("branches"), "by_branch", "offset", "times"), executed, "{context}");
    let taken = truth.by_position(&truth.branches, |branch| truth.is_taken(branch));
    assert_eq!(columns(report("branches"), "by_branch", "offset", "taken"), taken, "{context}");

    let is_loop = |key: &(u32, u32, u64)| matches!(truth.operator(key.0, key.1), Operator::Loop { .. });
    let iterations = truth.by_position(&truth.instructions, is_loop);
    assert_eq!(columns(report("loops"), "by_loop", "offset", "iterations"), iterations, "{context}");
    assert_eq!(columns(report("loops"), "by_loop", "offset", "entered"), entered(truth), "{context}");

    for (from, times) in columns(report("blocks"), "by_block", "from", "times") {
        assert_eq!(instructions.get(&from), Some(&times), "{context}");
    }
    let of_blocks = columns(report("blocks"), "by_block", "from", "to");
    let in_blocks = |at: &u64| of_blocks.range(..=at).next_back().is_some_and(|(_, to)| at <= to);
    assert!(instructions.keys().all(in_blocks), "{context}");

    let calls = truth.by_position(&truth.calls, |_| true);
    let mut made: BTreeMap<u64, u64> = BTreeMap::new();
    let sites = report("calls").get_table("sites").unwrap();
    for (calls, offset) in sites.column("calls").zip(sites.column("offset")) {
        let (Cell::Int(calls), Cell::Hex(offset)) = (calls, offset) else { panic!("{calls:?}") };
        *made.entry(*offset).or_default() += *calls as u64;
    }
    assert_eq!(made, calls, "{context}");
    assert_eq!(report("calls").get("by_host"), Some(1), "{context}");
    let functions = report("calls").get_table("functions").unwrap();
    let named = functions.column("called").zip(functions.column("function"));
    let symbols = truth.module.symbols();
    let by_name: BTreeMap<String, u64> =
        truth.entries.iter().map(|(function, count)| (symbols.function(*function), *count)).collect();
    let mut called = BTreeMap::new();
    for (count, name) in named {
        let (Cell::Int(count), Cell::Text(name)) = (count, name) else { panic!("{name:?}") };
        if !matches!(&**name, "none (trap)" | "log") {
            called.insert(name.to_string(), *count as u64);
        }
    }
    assert_eq!(called, by_name, "{context}");

    if truth.outcome.0.is_ok() {
        let accesses = truth.by_position(&truth.accesses, |_| true);
        assert_eq!(columns(report("memory"), "by_instruction", "offset", "accesses"), accesses, "{context}");
        for (number, misses) in (1..).zip(misses(&truth.stream, &[(8, 2, 16), (4, 4, 32)])) {
            assert_eq!(report("cache").get(&format!("misses_{number}")), Some(misses), "{context}");
        }
    }
    instructions.len()
}

/// The misses of each level of a cache with this number of sets, ways, and bytes in a line: a line
/// is present if, since its last use, fewer other lines of its set were used than there are ways.
fn misses(stream: &[(u64, u64)], levels: &[(u64, usize, u64)]) -> Vec<u64> {
    let mut used: Vec<Vec<u64>> = vec![Vec::new(); levels.len()];
    let mut misses = vec![0; levels.len()];
    for (address, size) in stream {
        let mut missed = vec![false; levels.len()];
        for line in address / levels[0].2..=(address + size - 1) / levels[0].2 {
            let address = line * levels[0].2;
            for (level, (sets, ways, bytes)) in levels.iter().enumerate() {
                let line = address / bytes;
                let of_set = used[level].iter().rev().filter(|other| *other % sets == line % sets);
                let since: std::collections::BTreeSet<_> =
                    of_set.clone().take_while(|other| **other != line).collect();
                let is_hit = since.len() < *ways && of_set.clone().any(|other| *other == line);
                used[level].push(line);
                if is_hit {
                    break;
                }
                missed[level] = true;
            }
        }
        misses.iter_mut().zip(missed).for_each(|(misses, missed)| *misses += u64::from(missed));
    }
    misses
}

/// All pairs of a branch and a point where it has continued.
fn outcomes_seen(truth: &Truth) -> Vec<(u32, u32, u32)> {
    let mut seen = Vec::new();
    for (function, offset, operand) in truth.branches.keys() {
        let body = truth.module.function(*function).unwrap().body().unwrap();
        let flow = wasm_jit_hooks::Flow::of(body);
        let index = flow.instructions.iter().position(|(at, _)| at == offset).unwrap();
        let successors = &flow.successors[index];
        let way = match flow.instructions[index].1 {
            Operator::BrIf { .. } | Operator::If { .. } => usize::from(*operand == 0),
            Operator::BrTable { .. } => (*operand).min(successors.len() as u64 - 1) as usize,
            _ => continue,
        };
        let mut targets = successors.clone();
        if let Operator::BrTable { .. } = flow.instructions[index].1 {
            targets.sort_unstable();
            targets.dedup();
            if targets.len() < 2 {
                continue;
            }
            let way = targets.binary_search(&successors[way]).unwrap();
            seen.push((*function, *offset, way as u32));
        } else {
            seen.push((*function, *offset, way as u32));
        }
    }
    seen.sort_unstable();
    seen.dedup();
    seen
}

fn outcomes_of(truth: &Truth, coverage: &Report) -> Vec<(u32, u32, u32)> {
    let table = coverage.get_table("outcomes_seen").unwrap();
    let row = |row: &Vec<Cell>| {
        let [Cell::Int(function), Cell::Int(branch), Cell::Int(outcome)] = row[..] else { panic!("{row:?}") };
        (function as u32, branch as u32, outcome as u32)
    };
    let mut seen: Vec<_> = table.rows().iter().map(row).collect();
    seen.sort_unstable();
    assert_eq!(coverage.get("outcomes_covered"), Some(seen.len() as u64), "{}", truth.text);
    seen
}

/// How often each loop was entered other than by a branch to it.
fn entered(truth: &Truth) -> BTreeMap<u64, u64> {
    let mut entered = BTreeMap::new();
    for ((function, offset, _), iterations) in &truth.instructions {
        let flow = wasm_jit_hooks::Flow::of(truth.module.function(*function).unwrap().body().unwrap());
        let index = flow.instructions.iter().position(|(at, _)| at == offset).unwrap();
        if !matches!(flow.instructions[index].1, Operator::Loop { .. }) {
            continue;
        }
        let mut repeated = 0;
        for (from, successors) in flow.successors.iter().enumerate().skip(index + 1) {
            let at = flow.instructions[from].0;
            match flow.instructions[from].1 {
                _ if !successors.contains(&index) => {}
                Operator::Br { .. } => {
                    repeated += truth.instructions.get(&(*function, at, 0)).copied().unwrap_or(0);
                }
                _ => {
                    for ((.., operand), count) in
                        truth.branches.range((*function, at, 0)..=(*function, at, u64::MAX))
                    {
                        let way = match flow.instructions[from].1 {
                            Operator::BrIf { .. } => usize::from(*operand == 0),
                            _ => (*operand).min(successors.len() as u64 - 1) as usize,
                        };
                        if successors[way] == index {
                            repeated += count;
                        }
                    }
                }
            }
        }
        entered.insert(truth.position(*function, *offset), iterations - repeated);
    }
    entered
}

#[test]
fn figures_of_random_programs() {
    let mut instructions = 0;
    for seed in 0..40 {
        let text = programs::program(seed).replacen("(module ", &format!("(module {}", rewrite::IMPORT), 1);
        instructions += check(&Truth::of(text));
    }
    assert!(instructions > 10_000, "{instructions}");
}

#[test]
fn figures_with_tail_calls_exceptions_and_traps() {
    const CALLS: &str = include_str!("../../../hooks/tests/events/calls.wat");
    for end in [
        "",
        "(drop (call $deep (i32.const 1)))",
        "(drop (call_indirect (type $unary) (i32.const 1) (i32.const 3)))",
        "(drop (call_indirect (type $unary) (i32.const 1) (i32.const 77)))",
        "(drop (call $wide (i32.const -1)))",
        "(drop (i32.div_u (i32.const 1) (i32.sub (i32.const 5) (i32.wrap_i64 (call $down (i32.const 2))))))",
        "(drop (i32.rem_s (local.get $n) (i32.wrap_i64 (i64.sub (local.get $sum) (local.get $sum)))))",
        "(drop (i64.trunc_f64_s (f64.const 1e300)))",
        "(drop (i32.trunc_f32_u (f32.div (f32.const 0) (f32.const 0))))",
        "(i32.store (i32.const 65533) (local.get $n)) (drop (i32.const 1))",
        "(drop (memory.grow (i32.const 70000))) (drop (i32.load (i32.const 65536)))",
        "(memory.fill (i32.const 65530) (i32.const 1) (i32.const 10)) (drop (i32.const 1))",
        "(drop (call_indirect (type $unary) (i32.const 1) (i32.const 2)))",
        "unreachable",
    ] {
        let text = format!("(module {} {})", rewrite::IMPORT, CALLS.replace("LAST", end));
        let instructions = check(&Truth::of(text));
        assert!(instructions > 100, "{end}");
    }
}
