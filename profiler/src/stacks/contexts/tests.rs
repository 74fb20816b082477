use std::collections::HashSet;
use std::ops::Range;

use iced_x86::{Code, Encoder, Instruction, Register};

use super::*;

/// An instruction of a body; targets are indices of instructions.
#[derive(Clone, Copy)]
enum Op {
    /// Any instruction that continues with the next one.
    Plain,
    Enter(u32),
    Exit(u32),
    /// The same with functions that are not known yet.
    EnterAny,
    ExitAny,
    /// A jump to the instrumentation function, instead of a call and a return.
    ExitAndReturn(u32),
    /// The same, through a pointer.
    ExitByPointer(u32),
    Call,
    JumpIf(usize),
    Jump(usize),
    /// A jump through a table.
    Switch,
    Return,
}

use Op::{
    Call, Enter, EnterAny, Exit, ExitAndReturn, ExitAny, ExitByPointer, Jump, JumpIf, Plain, Return, Switch,
};

const START: u64 = 0x40_0000;
/// Addresses outside of all bodies: of any function, and of the instrumentation functions.
const ELSEWHERE: u64 = 0x50_0000;
const ON_ENTRY: u64 = 0x50_1000;
const ON_EXIT: u64 = 0x50_2000;

/// The instruction, with the address of its target.
fn instruction(op: Op, address_of: impl Fn(usize) -> u64) -> Instruction {
    let branch = |code, target| Instruction::with_branch(code, target).unwrap();
    match op {
        Plain => Instruction::with(Code::Nopd),
        Enter(_) | EnterAny => branch(Code::Call_rel32_64, ON_ENTRY),
        Exit(_) | ExitAny => branch(Code::Call_rel32_64, ON_EXIT),
        Call => branch(Code::Call_rel32_64, ELSEWHERE),
        ExitAndReturn(_) => branch(Code::Jmp_rel32_64, ON_EXIT),
        JumpIf(target) => branch(Code::Jne_rel32_64, address_of(target)),
        Jump(target) => branch(Code::Jmp_rel32_64, address_of(target)),
        Switch | ExitByPointer(_) => Instruction::with1(Code::Jmp_rm64, Register::RAX).unwrap(),
        Return => Instruction::with(Code::Retnq),
    }
}

/// The code, and the addresses of its instructions.
fn assembled(ops: &[Op]) -> (Vec<u8>, Vec<u64>) {
    let encode = |op: Op, at: u64, addresses: &[u64]| {
        let mut encoder = Encoder::new(64);
        let address_of = |index: usize| addresses.get(index).copied().unwrap_or(START);
        encoder.encode(&instruction(op, address_of), at).unwrap();
        encoder.take_buffer()
    };
    let mut addresses = Vec::new();
    let mut end = START;
    for op in ops {
        addresses.push(end);
        // Lengths do not depend on targets.
        end += encode(*op, end, &[]).len() as u64;
    }
    let code = ops.iter().zip(&addresses).flat_map(|(op, at)| encode(*op, *at, &addresses)).collect();
    (code, addresses)
}

/// Sites, and the numbers of those whose objects are not loaded.
#[derive(Default)]
struct Known {
    sites: Vec<Site>,
    unloaded: HashSet<u32>,
}

impl Sites for Known {
    fn site(&self, number: u32) -> Option<Site> {
        self.sites.get(number as usize).copied()
    }

    fn is_loaded(&self, number: u32) -> bool {
        !self.unloaded.contains(&number)
    }
}

fn add(
    contexts: &mut Contexts<Known>,
    address: u64,
    kind: ProbeType,
    function: u32,
    body: Range<u64>,
) -> u32 {
    let number = contexts.sites.sites.len() as u32;
    contexts.sites.sites.push(Site {
        address,
        body_start: body.start,
        body_end: body.end,
        function,
        begins_there: false,
        kind,
    });
    contexts.add(number);
    number
}

fn contexts_of(ops: &[Op], code: &[u8], addresses: &[u64]) -> Contexts<Known> {
    let mut contexts = Contexts::default();
    let end = START + code.len() as u64;
    for (op, address) in ops.iter().zip(addresses) {
        let (kind, function) = match op {
            Enter(function) => (ProbeType::Entry, *function),
            Exit(function) | ExitAndReturn(function) | ExitByPointer(function) => {
                (ProbeType::Exit, *function)
            }
            _ => continue,
        };
        add(&mut contexts, *address, kind, function, START..end);
    }
    contexts
}

/// The function of all sites begins with its body.
fn begin_there(contexts: &mut Contexts<Known>) {
    contexts.sites.sites.iter_mut().for_each(|site| site.begins_there = true);
}

/// Checks the functions at each instruction, outermost first; `None` if they are not known.
#[track_caller]
fn check(body: &[(Op, Option<&[u32]>)]) {
    check_in(body, |_| {});
}

#[track_caller]
fn check_in(body: &[(Op, Option<&[u32]>)], prepare: impl Fn(&mut Contexts<Known>)) {
    let ops: Vec<Op> = body.iter().map(|(op, _)| *op).collect();
    let (code, addresses) = assembled(&ops);
    let mut contexts = contexts_of(&ops, &code, &addresses);
    prepare(&mut contexts);
    for (index, ((_, expected), address)) in body.iter().zip(&addresses).enumerate() {
        let context = contexts.at(*address, FrameState::Executing, |_| Some(&code));
        let mut found = Vec::new();
        if let Some(context) = context {
            contexts.functions(context, |function| found.insert(0, function));
        }
        assert_eq!(context.map(|_| &found[..]), *expected, "instruction {index}");
    }
}

#[test]
fn inlined_function_inside_another() {
    check(&[
        (Plain, Some(&[])),
        (Enter(1), Some(&[])),
        (Plain, Some(&[1])),
        (Enter(2), Some(&[1])),
        (Call, Some(&[1, 2])),
        (Exit(2), Some(&[1, 2])),
        (Plain, Some(&[1])),
        (ExitAndReturn(1), Some(&[1])),
    ]);
}

/// One of two ways out of a function has not been executed yet.
#[test]
fn an_exit_of_an_unknown_function_is_that_of_the_last_one() {
    check(&[
        (Enter(1), Some(&[])),
        (Enter(2), Some(&[1])),
        (JumpIf(5), Some(&[1, 2])),
        (ExitAny, Some(&[1, 2])),
        (Jump(6), Some(&[1])),
        (Exit(2), Some(&[1, 2])),
        (Call, Some(&[1])),
        (ExitAndReturn(1), Some(&[1])),
    ]);
}

#[test]
fn what_is_around_an_unknown_function_is_known() {
    check(&[
        (Enter(1), Some(&[])),
        (EnterAny, Some(&[1])),
        (Call, None),
        (Enter(2), None),
        (Exit(2), None),
        (ExitAny, None),
        (Call, Some(&[1])),
        (EnterAny, Some(&[1])),
        (JumpIf(11), None),
        (ExitAny, None),
        (Jump(12), Some(&[1])),
        (ExitAny, None),
        (Call, Some(&[1])),
        // It is never left.
        (Plain, Some(&[1])),
    ]);
}

/// Its entry was executed before there were probes, and its exit since.
#[test]
fn the_exit_of_an_unknown_function_may_be_known() {
    check_in(
        &[
            (Enter(1), Some(&[])),
            (EnterAny, Some(&[1])),
            (Call, Some(&[1, 2])),
            (Exit(2), Some(&[1, 2])),
            (Call, Some(&[1])),
            (Exit(1), Some(&[1])),
            (Return, Some(&[])),
        ],
        begin_there,
    );
    // A case of a switch: its context follows from that of the code after it.
    check_in(
        &[
            (Enter(1), Some(&[])),
            (Switch, Some(&[1])),
            (EnterAny, Some(&[1])),
            (Jump(6), Some(&[1, 2])),
            (Call, Some(&[1, 2])),
            (Jump(6), Some(&[1, 2])),
            (Exit(2), Some(&[1, 2])),
            (Exit(1), Some(&[1])),
            (Return, Some(&[])),
        ],
        begin_there,
    );
}

/// The functions of the other calls are not selected.
#[test]
fn calls_for_functions_that_are_left_out_are_ignored() {
    let ops = [EnterAny, Enter(1), Call, Exit(1), Call, ExitAny, Return];
    let (code, addresses) = assembled(&ops);
    let mut contexts = contexts_of(&ops, &code, &addresses);
    contexts.leave_out();
    let found = addresses.iter().map(|address| {
        let context = contexts.at(*address, FrameState::Executing, |_| Some(&code));
        context.map(|context| contexts.innermost(context))
    });
    assert_eq!(found.collect::<Vec<_>>(), [None, None, Some(1), Some(1), None, None, None].map(Some));
}

#[test]
fn loop_and_two_returns() {
    check(&[
        (Enter(1), Some(&[])),
        (Enter(2), Some(&[1])),
        (JumpIf(8), Some(&[1, 2])),
        (Exit(2), Some(&[1, 2])),
        (JumpIf(1), Some(&[1])),
        (Exit(1), Some(&[1])),
        (Plain, Some(&[])),
        (Return, Some(&[])),
        (Exit(2), Some(&[1, 2])),
        (Exit(1), Some(&[1])),
        (Return, Some(&[])),
    ]);
}

/// The cases are only reached through a table: the code after them shows their context.
#[test]
fn cases_of_a_switch_by_what_follows_them() {
    check(&[
        (Enter(1), Some(&[])),
        (Enter(2), Some(&[1])),
        (Switch, Some(&[1, 2])),
        (Plain, Some(&[1, 2])),
        (Enter(3), Some(&[1, 2])),
        (Call, Some(&[1, 2, 3])),
        (Exit(3), Some(&[1, 2, 3])),
        (Jump(10), Some(&[1, 2])),
        (Exit(2), Some(&[1, 2])),
        (ExitAndReturn(1), Some(&[1])),
        (Exit(2), Some(&[1, 2])),
        (Exit(1), Some(&[1])),
        (Return, Some(&[])),
    ]);
}

/// The call does not return; the code after it belongs to the beginning of the function.
#[test]
fn code_after_a_call_that_does_not_return() {
    check(&[
        (Enter(1), Some(&[])),
        (JumpIf(4), Some(&[1])),
        (Enter(2), Some(&[1])),
        (Call, Some(&[1, 2])),
        (Exit(1), Some(&[1])),
        (Return, Some(&[])),
    ]);
}

/// A call that returns, before a point to which others jump, is the only way to the rest.
#[test]
fn code_after_a_call_that_returns() {
    check(&[
        (Enter(1), Some(&[])),
        (Call, Some(&[1])),
        (Plain, Some(&[1])),
        (Switch, Some(&[1])),
        (JumpIf(2), Some(&[1])),
        (Switch, Some(&[1])),
    ]);
}

/// The loop of an interpreter: each instruction of the program jumps to the next one. One calls
/// before a point to which others jump.
#[test]
fn code_between_indirect_jumps() {
    check(&[
        (Enter(1), Some(&[])),
        (Switch, Some(&[1])),
        (Enter(2), Some(&[1])),
        (Plain, Some(&[1, 2])),
        (Exit(2), Some(&[1, 2])),
        (Plain, Some(&[1])),
        (Switch, Some(&[1])),
        (Call, Some(&[1])),
        (Plain, Some(&[1])),
        (JumpIf(8), Some(&[1])),
        (Switch, Some(&[1])),
        (Exit(1), Some(&[1])),
        (Return, Some(&[])),
    ]);
}

/// Two `switch` statements, in a function and in one that is inlined into it, each with code that
/// only indirect jumps reach.
#[test]
fn code_between_indirect_jumps_of_several_functions() {
    check(&[
        (Enter(1), Some(&[])),
        (JumpIf(3), Some(&[1])),
        (Switch, Some(&[1])),
        (Enter(2), Some(&[1])),
        (Switch, Some(&[1, 2])),
        (Plain, None),
        (Switch, None),
        (Exit(1), Some(&[1])),
        (Return, Some(&[])),
    ]);
}

/// An exit by a jump through a pointer is no `switch`.
#[test]
fn exits_by_indirect_jumps_are_no_switches() {
    check(&[
        (Enter(1), Some(&[])),
        (Enter(2), Some(&[1])),
        (JumpIf(4), Some(&[1, 2])),
        (Switch, Some(&[1, 2])),
        (Exit(2), Some(&[1, 2])),
        (ExitByPointer(1), Some(&[1])),
        (Plain, Some(&[1, 2])),
        (Switch, Some(&[1, 2])),
    ]);
}

/// A part without an entry begins inside the function that it leaves.
#[test]
fn part_that_was_split_off() {
    check(&[
        (Plain, Some(&[1])),
        (Enter(2), Some(&[1])),
        (Exit(2), Some(&[1, 2])),
        (Exit(1), Some(&[1])),
        (Return, Some(&[])),
    ]);
}

#[test]
fn code_that_was_merged_is_unknown() {
    check(&[
        (Enter(1), Some(&[])),
        (JumpIf(4), Some(&[1])),
        (Enter(2), Some(&[1])),
        (Jump(4), Some(&[1, 2])),
        (Plain, None),
        (Switch, None),
    ]);
}

#[test]
fn frame_that_has_called_needs_no_code_if_its_body_has_one_function() {
    let ops = [Plain, Enter(7), Call, Exit(7), Return];
    let (code, addresses) = assembled(&ops);
    let mut contexts = contexts_of(&ops, &code, &addresses);
    begin_there(&mut contexts);
    let mut functions = Vec::new();
    let context = contexts.at(addresses[2], FrameState::Calling, |_| panic!("code is not needed"));
    contexts.functions(context.unwrap(), |function| functions.push(function));
    assert_eq!(functions, [7]);
    assert_eq!(contexts.at(addresses[0], FrameState::Calling, |_| None), Some(EMPTY));
    assert_eq!(contexts.at(ELSEWHERE, FrameState::Executing, |_| None), Some(EMPTY));
}

/// A function without probes, into which one with probes is inlined.
#[test]
fn a_function_that_begins_elsewhere_is_left_at_its_exit() {
    let ops = [Call, Enter(7), Call, Exit(7), Call, Return];
    let (code, addresses) = assembled(&ops);
    let mut contexts = contexts_of(&ops, &code, &addresses);
    assert_eq!(contexts.at(addresses[1], FrameState::Executing, |_| panic!("no code")), Some(EMPTY));
    let in_calls = [0, 2, 4].map(|call| contexts.at(addresses[call], FrameState::Calling, |_| Some(&code)));
    let inside = in_calls[1].unwrap();
    assert_eq!(contexts.innermost(inside), Some(7));
    assert_eq!(in_calls, [Some(EMPTY), Some(inside), Some(EMPTY)]);
}

/// What was found in a body is not used when some of its sites are gone.
#[test]
fn a_body_without_some_of_its_sites_is_analyzed_again() {
    let ops = [Enter(1), Enter(2), Call, Exit(2), Exit(1), Return];
    let (code, addresses) = assembled(&ops);
    let mut contexts = contexts_of(&ops, &code, &addresses);
    begin_there(&mut contexts);
    let functions = |contexts: &mut Contexts<Known>| {
        let context = contexts.at(addresses[2], FrameState::Calling, |_| Some(&code)).unwrap();
        let mut functions = Vec::new();
        contexts.functions(context, |function| functions.push(function));
        functions
    };
    assert_eq!(functions(&mut contexts), [2, 1]);
    contexts.sites.unloaded = HashSet::from([1, 2]);
    contexts.reload(|_| true);
    assert_eq!(functions(&mut contexts), [1]);
}

/// A library is unloaded, another one is loaded in its place, and then the first one again.
#[test]
fn sites_are_those_of_the_objects_that_are_loaded() {
    let ops = [Enter(1), Call, Exit(1), Return];
    let (code, addresses) = assembled(&ops);
    let mut contexts = contexts_of(&ops, &code, &addresses);
    begin_there(&mut contexts);
    let check = |contexts: &mut Contexts<Known>, expected: &[u32]| {
        let mut functions = Vec::new();
        let context = contexts.at(addresses[1], FrameState::Calling, |_| None);
        context.into_iter().for_each(|context| contexts.functions(context, |found| functions.push(found)));
        assert_eq!(functions, expected);
    };
    check(&mut contexts, &[1]);
    // Its probes are not marked yet.
    contexts.reload(|_| false);
    check(&mut contexts, &[]);
    contexts.sites.unloaded.extend([0, 1]);
    let body = START..START + code.len() as u64;
    add(&mut contexts, addresses[0], ProbeType::Entry, 2, body.clone());
    add(&mut contexts, addresses[2], ProbeType::Exit, 2, body);
    begin_there(&mut contexts);
    contexts.reload(|_| true);
    check(&mut contexts, &[2]);
    contexts.sites.unloaded = HashSet::from([2, 3]);
    contexts.reload(|_| true);
    check(&mut contexts, &[1]);
    contexts.sites.unloaded.clear();
    assert_eq!((contexts.numbers.len(), contexts.unloaded.len()), (2, 2));
}

/// The file was replaced: other code is at the sites.
#[test]
fn sites_that_the_file_does_not_have_make_a_body_unknown() {
    let ops = [Enter(7), Plain, Exit(7), Return];
    let (code, addresses) = assembled(&ops);
    let (other, _) = assembled(&[Plain; 12]);
    for file in [Some(&other[..]), Some(&code[1..]), None] {
        let mut contexts = contexts_of(&ops, &code, &addresses);
        assert_eq!(contexts.at(addresses[1], FrameState::Executing, |_| file), None);
    }
}

/// Results are kept only as long as no site is added to their body.
#[test]
fn a_site_that_is_added_changes_what_was_looked_up() {
    let ops = [Enter(1), Enter(2), Call, Exit(2), Exit(1), Return];
    let (code, addresses) = assembled(&ops);
    let first = [Enter(1), Plain, Call, Plain, Exit(1), Return];
    let mut contexts = contexts_of(&first, &code, &addresses);
    begin_there(&mut contexts);
    let functions = |contexts: &mut Contexts<Known>| {
        let context = contexts.at(addresses[2], FrameState::Calling, |_| Some(&code)).unwrap();
        let mut functions = Vec::new();
        contexts.functions(context, |function| functions.push(function));
        functions
    };
    assert_eq!(functions(&mut contexts), [1]);
    let body = START..START + code.len() as u64;
    add(&mut contexts, addresses[1], ProbeType::Entry, 2, body.clone());
    add(&mut contexts, addresses[3], ProbeType::Exit, 2, body);
    assert_eq!(functions(&mut contexts), [2, 1]);
}

#[test]
fn a_site_changes_only_what_was_looked_up_in_its_body() {
    let ops = [Enter(1), Call, Exit(1), Return];
    let (code, addresses) = assembled(&ops);
    let mut contexts = contexts_of(&ops, &code, &addresses);
    let end = START + code.len() as u64;
    for address in [START - 1, addresses[1], end, end + 1] {
        contexts.at(address, FrameState::Calling, |_| None);
    }
    add(&mut contexts, end + 8, ProbeType::Entry, 2, end..end + 16);
    let known = |contexts: &Contexts<Known>| -> Vec<u64> {
        contexts.looked_up.keys().map(|(address, _)| *address).collect()
    };
    assert_eq!(known(&contexts), [START - 1, addresses[1]]);
    // Part of a body that ends before it begins.
    let before = START - 1;
    add(&mut contexts, START, ProbeType::Entry, 3, START..before);
    assert_eq!(known(&contexts), [START - 1, addresses[1]]);
}

/// Large bodies get new sites again and again.
#[test]
fn a_body_that_is_analyzed_again_is_decoded_twice_at_most() {
    let ops = [Enter(1), Enter(2), Enter(3), Plain, Exit(3), Exit(2), Exit(1), Return];
    let (code, addresses) = assembled(&ops);
    let mut contexts =
        contexts_of(&[Enter(1), Plain, Plain, Plain, Plain, Plain, Exit(1), Return], &code, &addresses);
    contexts.leave_out();
    let body = START..START + code.len() as u64;
    let mut decoded = 0;
    let mut found = Vec::new();
    for function in 1..=3 {
        if function > 1 {
            let place = function as usize - 1;
            add(&mut contexts, addresses[place], ProbeType::Entry, function, body.clone());
            add(&mut contexts, addresses[7 - place], ProbeType::Exit, function, body.clone());
            let analyzed = contexts.bodies.get_mut(&START).and_then(|body| body.analyzed.as_mut());
            analyzed.unwrap().made -= LIFETIME;
        }
        let take_code = |_: &Range<u64>| {
            decoded += 1;
            Some(&code[..])
        };
        let context = contexts.at(addresses[3], FrameState::Executing, take_code).unwrap();
        contexts.functions(context, |function| found.push(function));
    }
    assert_eq!((found, decoded), (vec![1, 2, 1, 3, 2, 1], 2));
    assert!(contexts.take_learning_time() > 0.0 && contexts.take_learning_time() == 0.0);
    let analyzed = contexts.bodies.get_mut(&START).and_then(|body| body.analyzed.as_mut()).unwrap();
    (analyzed.is_stale, analyzed.made) = (true, analyzed.made - LIFETIME);
    contexts.at(addresses[2], FrameState::Executing, |_| None);
    assert!(contexts.take_learning_time() > 0.0, "without new sites");
}

/// Results of an analysis that lacks a site are not kept for longer than the analysis.
#[test]
fn results_of_an_old_analysis_are_not_kept() {
    let ops = [Enter(1), Enter(2), Plain, Exit(2), Exit(1), Return];
    let (code, addresses) = assembled(&ops);
    let mut contexts = contexts_of(&[Enter(1), Plain, Plain, Plain, Exit(1), Return], &code, &addresses);
    contexts.leave_out();
    let innermost = |contexts: &mut Contexts<Known>| {
        let context = contexts.at(addresses[2], FrameState::Executing, |_| Some(&code)).unwrap();
        let mut functions = Vec::new();
        contexts.functions(context, |function| functions.push(function));
        functions[0]
    };
    assert_eq!(innermost(&mut contexts), 1);
    let body = START..START + code.len() as u64;
    add(&mut contexts, addresses[1], ProbeType::Entry, 2, body.clone());
    add(&mut contexts, addresses[3], ProbeType::Exit, 2, body);
    // The context according to the previous analysis.
    assert_eq!(innermost(&mut contexts), 1);
    let analyzed = contexts.bodies.get_mut(&START).and_then(|body| body.analyzed.as_mut()).unwrap();
    analyzed.made -= LIFETIME;
    assert_eq!(innermost(&mut contexts), 2);
}

/// Sites come in any order, some at addresses of others that are gone.
#[test]
fn sites_are_ordered_as_they_come_and_the_newest_is_kept() {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    for seed in 0..50 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut contexts = Contexts::<Known>::default();
        let mut expected = std::collections::BTreeMap::new();
        for _ in 0..random.random_range(1..20) {
            for _ in 0..random.random_range(0..20) {
                let body = START + 0x100 * random.random_range(0..10);
                let address = body + random.random_range(0..8);
                let number = add(&mut contexts, address, ProbeType::Entry, 1, body..body + 0x100);
                expected.insert((body, address), number);
            }
            contexts.sort();
            assert!(contexts.numbers.iter().map(|site| &site.number).eq(expected.values()), "seed {seed}");
            if random.random_bool(0.2) {
                let gone = START + 0x300..START + 0x600;
                expected.retain(|(_, address), _| !gone.contains(address));
                contexts.reload(|address| !gone.contains(&address));
                assert!(
                    contexts.numbers.iter().map(|site| &site.number).eq(expected.values()),
                    "seed {seed}"
                );
            }
        }
    }
}
