//! Random changes of vectors and numbers: by probes in a program, and by the same program with
//! these changes in its code.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{GenericFn, Kind, Location, Place, ProbeSpec};
use wasm_jit::{Instance, Module, Store, Val};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ty {
    I32,
    V128,
}
use Ty::{I32, V128};

/// Locals 0 to 3 are vectors, 4 and 5 numbers. The local 6 counts iterations; 7 and 8 hold an
/// operand while the one below it is changed in the code.
const LOCALS: [Ty; 6] = [V128, V128, V128, V128, I32, I32];

/// Instructions before those of the program: the counter is set, and the loop begins.
const BEFORE: [&str; 3] = ["i32.const 3", "local.set 6", "loop $again"];

/// An instruction, and the operands that it finds in its block.
struct Step {
    text: String,
    stack: Vec<Ty>,
}

/// What instructions take, the top operand last, what they make, and their texts.
const INSTRUCTIONS: [(&[Ty], &[Ty], &[&str]); 10] = [
    (&[], &[V128], &["local.get 0", "local.get 1", "local.get 2", "local.get 3"]),
    (&[], &[V128], &["v128.const i64x2 0 0", "v128.const i64x2 81985529216486895 -7"]),
    (&[], &[I32], &["local.get 4", "local.get 5", "i32.const 0", "i32.const -5"]),
    (
        &[V128, V128],
        &[V128],
        &["i32x4.add", "v128.andnot", "i16x8.mul", "i8x16.swizzle", "i64x2.sub", "i32x4.eq"],
    ),
    (&[I32, I32], &[I32], &["i32.add", "i32.lt_s", "i32.eq", "i32.shl", "i32.mul"]),
    (&[I32], &[V128], &["i32x4.splat", "i8x16.splat"]),
    (&[V128], &[I32], &["i32x4.extract_lane 2", "v128.any_true", "i8x16.bitmask"]),
    (&[V128, V128, I32], &[V128], &["select"]),
    (&[V128, I32], &[V128], &["i32x4.replace_lane 1", "i64x2.shl"]),
    (&[V128], &[V128], &["call $callee"]),
];

/// Adds random instructions; those of a block leave nothing on the stack.
fn generate(random: &mut SmallRng, steps: &mut Vec<Step>, length: usize, depth: u32) {
    let mut stack = Vec::new();
    fn emit(steps: &mut Vec<Step>, stack: &[Ty], text: &str) {
        steps.push(Step { text: text.to_owned(), stack: stack.to_vec() });
    }
    let local = |random: &mut SmallRng, ty| match ty {
        V128 => random.random_range(0..4),
        I32 => random.random_range(4..6),
    };
    for _ in 0..length {
        match (random.random_range(0..15), stack.last().copied()) {
            (number @ 0..10, _) => {
                let (takes, makes, texts) = INSTRUCTIONS[number];
                if stack.ends_with(takes) {
                    emit(steps, &stack, texts[random.random_range(0..texts.len())]);
                    stack.truncate(stack.len() - takes.len());
                    stack.extend(makes);
                }
            }
            (10 | 11, Some(ty)) => {
                emit(steps, &stack, &format!("local.set {}", local(random, ty)));
                stack.pop();
            }
            (12, Some(ty)) => emit(steps, &stack, &format!("local.tee {}", local(random, ty))),
            (13, Some(I32)) if depth > 0 => {
                emit(steps, &stack, "if");
                stack.pop();
                generate(random, steps, length / 3, depth - 1);
                emit(steps, &[], "else");
                generate(random, steps, length / 3, depth - 1);
                emit(steps, &[], "end");
            }
            (14, _) => {
                emit(steps, &stack, ["i32.const 16", "i32.const 33"][random.random_range(0..2)]);
                stack.push(I32);
                emit(steps, &stack, "v128.load");
                stack.pop();
                stack.push(V128);
            }
            _ => {}
        }
    }
    while let Some(ty) = stack.last().copied() {
        emit(steps, &stack, &format!("local.set {}", local(random, ty)));
        stack.pop();
    }
}

fn text(instructions: &[String]) -> String {
    let locals: String = (0..6).map(|local| format!("local.get {local} ")).collect();
    format!(
        "(module (memory 1) (data (i32.const 16) \"0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz\")
            (func $callee (param v128) (result v128) local.get 0 i32.const 3 i32x4.splat i32x4.add)
            (func (export \"run\") (result v128 v128 v128 v128 i32 i32)
                (local v128 v128 v128 v128 i32 i32 i32 v128 i32)
                {} {} local.get 6 i32.const 1 i32.sub local.tee 6 br_if $again end {locals}))",
        BEFORE.join(" "),
        instructions.join("\n")
    )
}

/// The results; none if a load traps, whose address was changed.
fn run(module: &Module) -> Option<Vec<u128>> {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let mut results: Vec<Val> = LOCALS.map(|ty| if ty == V128 { 0_u128.into() } else { 0.into() }).into();
    instance.get_func(&store, "run").unwrap().call(&mut store, &[], &mut results).ok()?;
    let bits = |value: &Val| match value {
        Val::V128(bits) => *bits,
        value => u128::from(value.unwrap_i32().cast_unsigned()),
    };
    Some(results.iter().map(bits).collect())
}

/// A change before an instruction.
#[derive(Clone, Copy, Debug)]
struct Change {
    step: usize,
    what: What,
    ty: Ty,
    value: u128,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Local(u32),
    /// The top operand, or the one below this one.
    Operand(Option<Ty>),
}

impl Change {
    fn random(random: &mut SmallRng, steps: &[Step]) -> Self {
        // Control comes to `else` and `end` in several ways.
        let mut step = random.random_range(0..steps.len());
        while ["else", "end"].contains(&steps[step].text.as_str()) {
            step -= 1;
        }
        let value = if random.random_range(0..4) == 0 { 0 } else { random.random() };
        match &steps[step].stack[..] {
            [.., ty, above] if random.random_range(0..3) == 0 => {
                Self { step, what: What::Operand(Some(*above)), ty: *ty, value }
            }
            [.., ty] if random.random_range(0..2) == 0 => {
                Self { step, what: What::Operand(None), ty: *ty, value }
            }
            _ => {
                let local = random.random_range(0..LOCALS.len());
                Self { step, what: What::Local(local as u32), ty: LOCALS[local], value }
            }
        }
    }

    /// The instructions that make it.
    fn code(self) -> String {
        let value = match self.ty {
            V128 => format!("v128.const i64x2 {} {}", self.value as u64, (self.value >> 64) as u64),
            I32 => format!("i32.const {}", self.value as i32),
        };
        match self.what {
            What::Local(local) => format!("{value} local.set {local}"),
            What::Operand(None) => format!("drop {value}"),
            What::Operand(Some(above)) => {
                let kept = if above == V128 { 7 } else { 8 };
                format!("local.set {kept} drop {value} local.get {kept}")
            }
        }
    }

    /// The probe that makes it.
    fn probe(self, offset: u32) -> ProbeSpec {
        let value = move || if self.ty == V128 { Val::V128(self.value) } else { Val::I32(self.value as i32) };
        let kind = Kind::Generic(GenericFn::new(move |frame| {
            match self.what {
                What::Local(local) => frame.set_local(local, &value())?,
                What::Operand(above) => frame.set_operand(u32::from(above.is_some()), &value())?,
            }
            Ok(())
        }));
        ProbeSpec { location: Location { function: 1, place: Place::Instruction { offset } }, kind }
    }
}

#[test]
fn changes_by_probes_are_those_of_changed_code() {
    let engine = super::engine();
    let mut random = SmallRng::seed_from_u64(15);
    let mut effective = 0;
    for program in 0..300 {
        let mut steps = Vec::new();
        generate(&mut random, &mut steps, 25, 2);
        if steps.is_empty() {
            continue;
        }
        let instructions: Vec<String> = steps.iter().map(|step| step.text.clone()).collect();
        let original = text(&instructions);
        let module = Module::new(&engine, &original).unwrap();
        let body = module.function(1).unwrap().body().unwrap();
        let offsets: Vec<u32> =
            body.instructions().map(|at| (at.offset() - body.range().start) as u32).collect();
        let unchanged = run(&module);
        for _ in 0..3 {
            let mut changes: Vec<Change> =
                (0..random.random_range(1..4)).map(|_| Change::random(&mut random, &steps)).collect();
            // Two changes at one place are made in the order of the probes.
            changes.sort_by_key(|change| change.step);
            let mut changed = instructions.clone();
            for change in changes.iter().rev() {
                changed.insert(change.step, change.code());
            }
            let expected = run(&Module::new(&engine, text(&changed)).unwrap());
            let specs: Vec<_> =
                changes.iter().map(|change| change.probe(offsets[change.step + BEFORE.len()])).collect();
            // Code after a folded condition may have none.
            let Ok(probes) = module.probes(&specs).into_iter().collect::<Result<Vec<_>, _>>() else {
                continue;
            };
            probes.iter().for_each(|probe| probe.activate().unwrap());
            let found = run(&module);
            assert_eq!(found, expected, "program {program}, {changes:?}:\n{original}");
            effective += u32::from(expected != unchanged);
        }
    }
    assert!(effective > 300, "{effective}");
}
