//! Functions of WebAssembly that stubs execute themselves, compared with the same functions when
//! they are called.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_encoder::ValType;
use wasm_jit::probes::{
    Bound, Callback, Kind, Location, Place, Probe, ProbeError, ProbeSpec, Scope, WasmFn, activate_all,
};
use wasm_jit::{Error, Instance, Memory, Module, Store, Trap, TypedFunc, Val};

use super::rewrite::Counted;
use super::threads::Ends;
use super::{call_main, engine, location, outcome, programs, seeds, values};

/// How the functions of a monitor are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// By stubs, as far as they can be.
    Inlined,
    /// Called by such stubs, because the monitor has a probe.
    Probed,
    /// Called by other stubs: they begin with a block.
    Called,
}

/// Random functions with parameters of these types, which are integers, in a class that stubs
/// execute for the most part.
struct Body<'r> {
    random: &'r mut SmallRng,
    types: Vec<ValType>,
    text: String,
    /// Whether accesses may be out of bounds.
    traps: bool,
    budget: u32,
}

impl Body<'_> {
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.random_range(0..all.len())]
    }

    fn local(&mut self, ty: ValType) -> Option<usize> {
        let all: Vec<usize> = (0..self.types.len()).filter(|local| self.types[*local] == ty).collect();
        (!all.is_empty()).then(|| self.pick(&all))
    }

    fn constant(&mut self, ty: ValType) -> String {
        let bits = match self.random.random_range(0..6) {
            0 => 0,
            1 => 1 << self.random.random_range(0..63),
            2 => self.random.random(),
            3 => -1_i64,
            _ => self.random.random_range(-100..100),
        };
        match ty {
            ValType::I32 => format!("(i32.const {})", bits as i32),
            _ => format!("(i64.const {bits})"),
        }
    }

    fn name(ty: ValType) -> &'static str {
        if ty == ValType::I32 { "i32" } else { "i64" }
    }

    fn expression(&mut self, ty: ValType, depth: u32) -> String {
        let name = Self::name(ty);
        if depth == 0 || self.random.random_range(0..5) == 0 {
            return match self.local(ty) {
                Some(local) if self.random.random_range(0..4) != 0 => format!("(local.get {local})"),
                _ => self.constant(ty),
            };
        }
        let one = |this: &mut Self| this.expression(ty, depth - 1);
        match self.random.random_range(0..16) {
            0..=4 => {
                let op = self.pick(&["add", "sub", "mul", "and", "or", "xor", "shl", "shr_s", "shr_u"]);
                format!("({name}.{op} {} {})", one(self), one(self))
            }
            5 => {
                let op = self.pick(&["rotl", "rotr", "shl", "shr_s", "shr_u"]);
                format!("({name}.{op} {} ({name}.const {}))", one(self), self.random.random_range(0..70))
            }
            6 => {
                let op = self.pick(&["div_u", "rem_u"]);
                let by = 1_u32 << self.random.random_range(0..32);
                format!("({name}.{op} {} ({name}.const {by}))", one(self))
            }
            7 => {
                let op = self.pick(&["clz", "ctz", "popcnt", "extend8_s", "extend16_s"]);
                format!("({name}.{op} {})", one(self))
            }
            8 => format!("(global.get ${name})"),
            9 | 10 => {
                let place = self.place();
                let op = match ty {
                    ValType::I32 => self.pick(&["load", "load8_u", "load8_s", "load16_u", "load16_s"]),
                    _ => self.pick(&["load", "load8_s", "load16_u", "load32_u", "load32_s"]),
                };
                format!("({name}.{op} {place})")
            }
            11 => {
                let condition = self.expression(ValType::I32, depth - 1);
                format!("(select {} {} {condition})", one(self), one(self))
            }
            12 => {
                let condition = self.expression(ValType::I32, depth - 1);
                format!("(if (result {name}) {condition} (then {}) (else {}))", one(self), one(self))
            }
            13 if ty == ValType::I64 => {
                let op = self.pick(&["extend_i32_u", "extend_i32_s"]);
                format!("(i64.{op} {})", self.expression(ValType::I32, depth - 1))
            }
            13 => format!("(i32.wrap_i64 {})", self.expression(ValType::I64, depth - 1)),
            _ if ty == ValType::I32 => {
                let of = self.pick(&[ValType::I32, ValType::I64]);
                let op =
                    self.pick(&["eq", "ne", "lt_s", "lt_u", "gt_s", "gt_u", "le_s", "le_u", "ge_s", "ge_u"]);
                let (left, right) = (self.expression(of, depth - 1), self.expression(of, depth - 1));
                let eqz = self.random.random_range(0..3) == 0;
                let compared = format!("({}.{op} {left} {right})", Self::name(of));
                if eqz { format!("(i32.eqz {compared})") } else { compared }
            }
            _ => one(self),
        }
    }

    /// An offset, if any, and an address.
    fn place(&mut self) -> String {
        let offset = self.pick(&["", "offset=8", "offset=200"]);
        match self.random.random_range(0..4) {
            0 if self.traps => {
                let at = self.expression(ValType::I32, 1);
                format!("{offset} (i32.add (i32.and {at} (i32.const 15)) (i32.const 65520))")
            }
            1 if self.traps => format!("{offset} (i32.const {})", self.random.random_range(65300..65540)),
            0 | 1 => format!("{offset} (i32.const {})", self.random.random_range(0..1000)),
            _ => {
                let at = self.expression(ValType::I32, 1);
                format!("{offset} (i32.and {at} (i32.const 0x3fff))")
            }
        }
    }

    fn statements(&mut self, depth: u32) {
        for _ in 0..self.random.random_range(1..4) {
            let Some(budget) = self.budget.checked_sub(1) else { return };
            self.budget = budget;
            let ty = self.pick(&[ValType::I32, ValType::I64]);
            let name = Self::name(ty);
            match self.random.random_range(0..8) {
                0 | 1 => {
                    let (place, value) = (self.place(), self.expression(ty, 2));
                    let op = if ty == ValType::I32 {
                        self.pick(&["store", "store8", "store16"])
                    } else {
                        self.pick(&["store", "store8", "store32"])
                    };
                    write!(self.text, "({name}.{op} {place} {value})").unwrap();
                }
                2 => {
                    let (address, by) = (self.random.random_range(0..4000), self.constant(ty));
                    let op = self.pick(&["add", "sub", "xor"]);
                    let at = match self.local(ValType::I32) {
                        Some(local) if self.traps => format!("(local.get {local})"),
                        _ => format!("(i32.const {address})"),
                    };
                    write!(
                        self.text,
                        "({name}.store offset=16 {at} ({name}.{op} ({name}.load offset=16 {at}) {by}))"
                    )
                    .unwrap();
                }
                3 => {
                    let value = match self.random.random_range(0..2) {
                        0 => self.expression(ty, 2),
                        _ => format!("({name}.add (global.get ${name}) {})", self.constant(ty)),
                    };
                    write!(self.text, "(global.set ${name} {value})").unwrap();
                }
                4 | 5 => {
                    if let Some(local) = self.local(ty) {
                        let value = self.expression(ty, 2);
                        let op = self.pick(&["(local.set", "(drop (local.tee"]);
                        let end = if op.starts_with("(drop") { "))" } else { ")" };
                        write!(self.text, "{op} {local} {value}{end}").unwrap();
                    }
                }
                _ if depth < 2 => {
                    let condition = self.expression(ValType::I32, 2);
                    write!(self.text, "(if {condition} (then ").unwrap();
                    if self.random.random_range(0..6) == 0 {
                        self.text += "(call $other)";
                    }
                    self.statements(depth + 1);
                    if self.random.random_range(0..6) == 0 {
                        self.text += "(call $other)";
                    }
                    if self.random.random() {
                        self.text += ") (else ";
                        self.statements(depth + 1);
                    }
                    self.text += "))";
                }
                _ => {}
            }
        }
    }
}

const MONITOR: &str = "(module (memory (export \"memory\") 1)
    (global $i32 (export \"i32\") (mut i32) (i32.const 7))
    (global $i64 (export \"i64\") (mut i64) (i64.const -3))
    (func $other (export \"other\") (global.set $i64 (i64.mul (global.get $i64) (i64.const 5))))";

/// A monitor with random functions, one for each of these lists of types.
fn monitor(signatures: &[Vec<ValType>], random: &mut SmallRng, traps: bool) -> [String; 2] {
    let mut texts = [MONITOR.to_owned(), MONITOR.to_owned()];
    for (number, types) in signatures.iter().enumerate() {
        let mut all = types.clone();
        let locals = [ValType::I32, ValType::I64, ValType::I32];
        all.extend(locals);
        let mut body = Body { random, types: all, text: String::new(), traps, budget: 5 };
        body.statements(0);
        let params = types.iter().fold(String::new(), |text, ty| {
            text + match ty {
                ValType::I32 => " i32",
                ValType::I64 => " i64",
                ValType::F32 => " f32",
                _ => " f64",
            }
        });
        let head = format!("(func (export \"f{number}\") (param{params}) (local i32 i64 i32)");
        write!(texts[0], "{head}{})", body.text).unwrap();
        write!(texts[1], "{head} (block){})", body.text).unwrap();
    }
    texts.map(|text| text + ")")
}

/// What a run leaves behind.
#[derive(Debug, PartialEq)]
struct Left {
    result: Result<i64, String>,
    /// Of a trap: functions and offsets, innermost first.
    backtrace: Vec<(u32, Option<usize>)>,
    memory: Vec<u8>,
    globals: [String; 2],
}

/// Runs a program with probes that call the functions of a monitor; a closure at the entries of
/// functions switches them, always in the same way.
fn run(
    program: &Module,
    text: &str,
    chosen: &[(Counted, Vec<values::Candidate>)],
    how: How,
    seed: u64,
) -> Left {
    let monitor = Module::new(program.engine(), text).unwrap();
    let mut store = Store::new(program.engine(), ());
    let instance = Instance::new(&mut store, &monitor, &[]).unwrap();
    let _probe = (how == How::Probed).then(|| {
        let location = Location { function: 0, place: Place::Entry };
        monitor.probe(ProbeSpec { location, kind: Kind::Empty }).unwrap()
    });
    let specs: Vec<ProbeSpec> = chosen
        .iter()
        .enumerate()
        .map(|(number, (place, values))| {
            let function = instance.get_func(&mut store, &format!("f{number}")).unwrap();
            let bounds: Vec<Bound> = values.iter().map(|value| value.bound).collect();
            let function = WasmFn::new(&store, function).unwrap();
            let kind = Kind::Wasm { function, values: bounds[..].into() };
            ProbeSpec { location: location(program, *place), kind }
        })
        .collect();
    let made = program.probes(&specs).into_iter().filter_map(|probe| match probe {
        Ok(probe) => Some(probe),
        Err(ProbeError::Unreachable { .. }) => None,
        Err(error) => panic!("{error}"),
    });
    let made: Arc<Vec<Probe>> = Arc::new(made.collect());
    activate_all(&*made).into_iter().for_each(|on| on.unwrap());
    let (switched, random) = (made.clone(), Mutex::new(SmallRng::seed_from_u64(seed)));
    let switch = Callback::new(move |_| {
        let mut random = random.lock().unwrap();
        for _ in 0..3 {
            let probe = &switched[random.random_range(0..switched.len())];
            if random.random() { probe.activate() } else { probe.deactivate() }.unwrap();
        }
    });
    let entries: Vec<ProbeSpec> = (0..program.functions().count() as u32)
        .map(|function| ProbeSpec {
            location: Location { function, place: Place::Entry },
            kind: Kind::Callback { function: switch.clone(), values: [].into() },
        })
        .collect();
    let entries: Vec<Probe> = program.probes(&entries).into_iter().map(Result::unwrap).collect();
    if !made.is_empty() {
        activate_all(&entries).into_iter().for_each(|on| on.unwrap());
    }
    let running = Instance::new(&mut store, program, &[]).unwrap();
    let main = running.get_typed_func::<(), i64>(&mut store, "main").unwrap();
    let result = main.call(&mut store, ());
    let mut backtrace = Vec::new();
    if let Err(Error::Trap { backtrace: of_trap, .. }) = &result {
        backtrace.extend(of_trap.frames().iter().map(|frame| (frame.func_index(), frame.func_offset())));
    }
    let memory = instance.get_memory(&mut store, "memory").unwrap().data(&store).to_vec();
    let globals = ["i32", "i64"].map(|name| {
        let value: Val = instance.get_global(&mut store, name).unwrap().get(&mut store);
        format!("{value:?}")
    });
    let result = result.map_err(|error| error.reason());
    Left { result, backtrace, memory, globals }
}

/// Random functions at all places of random programs leave the same behind, whether stubs execute
/// or call them.
#[test]
fn functions_do_the_same_whether_they_are_inlined_or_called() {
    let (mut traps, mut of_monitors) = (0, 0);
    for seed in seeds() {
        let mut random = SmallRng::seed_from_u64(seed);
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let places = values::places(&bytes);
        let mut sorted: Vec<&Counted> = places.keys().collect();
        sorted.sort();
        let mut chosen = Vec::new();
        for place in sorted {
            let count = random.random_range(0..5);
            chosen.push((*place, places[place].choose(count, &mut random)));
        }
        let signatures: Vec<Vec<ValType>> =
            chosen.iter().map(|(_, values)| values.iter().map(|value| value.ty).collect()).collect();
        let [text, with_blocks] = monitor(&signatures, &mut random, seed % 3 == 0);
        let left = |how: How| {
            let text = if how == How::Called { &with_blocks } else { &text };
            // A module of its own each time: the probes of one run are not those of the next.
            let program = Module::from_binary(&engine(), &bytes).unwrap();
            run(&program, text, &chosen, how, seed)
        };
        let (inlined, probed, mut called) = (left(How::Inlined), left(How::Probed), left(How::Called));
        assert_eq!(inlined.backtrace, probed.backtrace, "seed {seed}");
        traps += u32::from(inlined.result.is_err());
        if let Some((function, offset)) = called.backtrace.first_mut()
            && inlined.backtrace.first() != Some(&(*function, *offset))
        {
            // The offset in the monitor is that after the block.
            *offset = offset.map(|offset| offset - 3);
            of_monitors += 1;
        }
        assert!(inlined == probed, "seed {seed}");
        assert!(inlined == called, "seed {seed}: {:?} {:?}", inlined.backtrace, called.backtrace);
    }
    println!("{traps} traps, {of_monitors} in monitors");
    assert!(of_monitors > 1, "{of_monitors}");
}

/// Another thread switches probes whose functions are inlined, while the program runs in their
/// store and in another one.
#[test]
fn programs_are_not_disturbed_by_inlined_functions() {
    for seed in 400..406 {
        let mut random = SmallRng::seed_from_u64(seed);
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let program = Module::from_binary(&engine(), &bytes).unwrap();
        let expected = outcome(&program).0;
        let places = values::places(&bytes);
        let mut chosen = Vec::new();
        for (place, values) in &places {
            chosen.push((*place, values.choose(random.random_range(0..4), &mut random)));
        }
        let signatures: Vec<Vec<ValType>> =
            chosen.iter().map(|(_, values)| values.iter().map(|value| value.ty).collect()).collect();
        let [text, _] = monitor(&signatures, &mut random, false);
        let monitor = Module::new(program.engine(), text).unwrap();
        let mut store = Store::new(program.engine(), ());
        let instance = Instance::new(&mut store, &monitor, &[]).unwrap();
        let specs: Vec<ProbeSpec> = chosen
            .iter()
            .enumerate()
            .map(|(number, (place, values))| {
                let function = instance.get_func(&mut store, &format!("f{number}")).unwrap();
                let bounds: Vec<Bound> = values.iter().map(|value| value.bound).collect();
                let function = WasmFn::new(&store, function).unwrap();
                let kind = Kind::Wasm { function, values: bounds[..].into() };
                ProbeSpec { location: location(&program, *place), kind }
            })
            .collect();
        let probes: Vec<Probe> = program.probes(&specs).into_iter().filter_map(Result::ok).collect();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ends = Ends(&is_over);
                for _ in 0..30 {
                    let running = Instance::new(&mut store, &program, &[]).unwrap();
                    assert_eq!(call_main(&mut store, &running), expected, "seed {seed}");
                }
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    assert_eq!(outcome(&program).0, expected, "seed {seed}, another store");
                }
            });
            while !is_over.load(Ordering::Acquire) {
                let probe = &probes[random.random_range(0..probes.len())];
                if random.random() { probe.activate() } else { probe.deactivate() }.unwrap();
            }
        });
    }
}

const COUNT: &str =
    "(module (memory (export \"memory\") 1) (global $n (export \"n\") (mut i64) (i64.const 0))
    (func (export \"count\") (param i32)
        (global.set $n (i64.add (global.get $n) (i64.const 1)))
        (i64.store (i32.const 8) (i64.add (i64.load (i32.const 8)) (i64.extend_i32_u (local.get 0)))))
    (func (export \"at\") (param i32)
        (i32.store offset=4 (local.get 0) (i32.add (i32.load offset=4 (local.get 0)) (i32.const 1)))))";

const LOOP: &str = "(module (func (export \"run\") (param i32) (loop $next
    (br_if $next (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";

/// A probe at the entry of a function of the monitor fires as often as the function is executed
/// from then on; the scope of a probe holds; what is at one place is executed in order.
#[test]
fn inlined_functions_have_probes_scopes_and_neighbours() {
    let engine = engine();
    let (program, monitor) = (Module::new(&engine, LOOP).unwrap(), Module::new(&engine, COUNT).unwrap());
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &monitor, &[]).unwrap();
    let count = instance.get_func(&mut store, "count").unwrap();
    let function = WasmFn::new(&store, count).unwrap();
    let kind = Kind::Wasm { function, values: [Bound::Local(0)].into() };
    let at = |number: usize| {
        let body = program.function(0).unwrap().body().unwrap();
        let instruction = body.instructions().nth(number).unwrap();
        let offset = (instruction.offset() - body.range().start) as u32;
        Location { function: 0, place: Place::Instruction { offset } }
    };
    let n = |store: &mut Store<()>| {
        instance.get_global(&mut *store, "n").unwrap().get(&mut *store).i64().unwrap()
    };
    let probe = program.probe(ProbeSpec { location: at(5), kind: kind.clone() }).unwrap();
    let counter = program.probe(ProbeSpec { location: at(5), kind: Kind::Count }).unwrap();
    probe.activate().unwrap();
    counter.activate().unwrap();
    let programs = [(); 2].map(|()| Instance::new(&mut store, &program, &[]).unwrap());
    let run = |store: &mut Store<()>, program: &Instance, times: i32| {
        let run = program.get_typed_func::<i32, ()>(&mut *store, "run").unwrap();
        run.call(&mut *store, times).unwrap();
    };
    run(&mut store, &programs[0], 10);
    assert_eq!((n(&mut store), counter.count()), (10, 10));
    let sum = |store: &mut Store<()>| {
        let memory = instance.get_memory(&mut *store, "memory").unwrap();
        u64::from_le_bytes(memory.data(&*store)[8..16].try_into().unwrap())
    };
    assert_eq!(sum(&mut store), 45, "the local is 9 to 0 there");
    // The same function twice at a place, once for one instance only.
    let id = programs[1].id(&store);
    let scoped = ProbeSpec { location: at(5), kind: kind.clone() };
    let scoped = program.scoped_probes(Scope::Instance(id), &[scoped]).pop().unwrap().unwrap();
    scoped.activate().unwrap();
    run(&mut store, &programs[0], 10);
    assert_eq!(n(&mut store), 20);
    run(&mut store, &programs[1], 10);
    assert_eq!(n(&mut store), 40);
    // A probe in the monitor.
    let location = Location { function: 0, place: Place::Entry };
    let inside = monitor.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
    inside.activate().unwrap();
    run(&mut store, &programs[1], 10);
    assert_eq!((n(&mut store), inside.count()), (60, 20));
    assert_eq!(counter.count(), 40);
}

/// A program whose function 0, with one parameter, is observed by a function of a monitor.
struct Observed {
    store: Store<()>,
    /// The program's `run`.
    run: TypedFunc<i32, ()>,
    /// That of the monitor.
    memory: Memory,
    probe: Probe,
}

/// Lets the entry of the program's function 0 call the monitor's function `at` with the parameter.
fn observed(program: &Module, monitor: &Module) -> Observed {
    let mut store = Store::new(program.engine(), ());
    let instance = Instance::new(&mut store, monitor, &[]).unwrap();
    let at = instance.get_func(&mut store, "at").unwrap();
    let function = WasmFn::new(&store, at).unwrap();
    let kind = Kind::Wasm { function, values: [Bound::Local(0)].into() };
    let location = Location { function: 0, place: Place::Entry };
    let probe = program.probe(ProbeSpec { location, kind }).unwrap();
    probe.activate().unwrap();
    let running = Instance::new(&mut store, program, &[]).unwrap();
    let run = running.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    Observed { store, run, memory, probe }
}

/// A trap is that of the function, with its frame and that of the program, also at the very end of
/// the memory, and nothing was changed before.
#[test]
fn traps_are_those_of_the_function() {
    let engine = engine();
    let (program, monitor) = (Module::new(&engine, LOOP).unwrap(), Module::new(&engine, COUNT).unwrap());
    let Observed { mut store, run, memory, probe: _probe } = observed(&program, &monitor);
    for (argument, is_in_bounds) in [(65528, true), (65529, false), (65536, false), (1 << 30, false)] {
        let result = run.call(&mut store, argument);
        if is_in_bounds {
            result.unwrap();
            assert_eq!(memory.data(&store)[65532], 1);
            continue;
        }
        let Err(Error::Trap { trap: Trap::MemoryOutOfBounds, backtrace }) = result else {
            panic!("{result:?}")
        };
        let frames: Vec<_> = backtrace.frames().iter().map(|frame| frame.func_index()).collect();
        assert_eq!(frames, [1, 0]);
    }
    // A memory that grows meanwhile.
    memory.grow(&mut store, 1).unwrap();
    for (argument, is_in_bounds) in [(65529, true), (65536, true), (131_064, true), (131_065, false)] {
        assert_eq!(run.call(&mut store, argument).is_ok(), is_in_bounds, "{argument}");
        if is_in_bounds {
            assert_eq!(memory.data(&store)[argument as usize + 4], 1);
        }
    }
}

/// A register with another value, or after the other arm, has nothing of what was known about it.
#[test]
fn what_is_known_about_values_is_forgotten() {
    let bodies = [
        // Not zero, or the difference is.
        "(if (i32.eqz (local.get 0)) (then (call $other)))
            (local.set 1 (i32.sub (local.get 0) (i32.const 5)))
            (if (local.get 1) (then (i32.store (i32.const 8) (i32.const 1)))
                (else (i32.store (i32.const 8) (i32.const 2))))",
        // The upper half is zero, or not.
        "(if (i64.gt_u (i64.sub (i64.extend_i32_u (local.get 0)) (i64.const 1)) (i64.const 0x100000000))
                (then (i32.store (i32.const 8) (i32.const 1)))
                (else (i32.store (i32.const 8) (i32.const 2))))",
        // Compared with the length in one arm.
        "(if (i32.gt_u (local.get 0) (i32.const 65532)) (then (local.set 1 (i32.const 1)))
                (else (local.set 1 (i32.load (local.get 0)))))
            (i32.store (i32.const 8) (i32.add (local.get 1) (i32.load (local.get 0))))",
        // In a register that an arm uses as well.
        "(local.set 1 (i32.mul (local.get 0) (i32.const 3)))
            (if (i32.and (local.get 0) (i32.const 1))
                (then (local.set 2 (i32.add (i32.mul (local.get 0) (i32.const 7)) (local.get 1))))
                (else (local.set 2 (i32.sub (local.get 1) (i32.mul (local.get 0) (i32.const 9))))))
            (i32.store (i32.const 8) (i32.xor (local.get 1) (local.get 2)))",
    ];
    let engine = engine();
    let program = Module::new(&engine, "(module (func (export \"run\") (param i32)))").unwrap();
    for body in bodies {
        let [inlined, called] = ["", "(block)"].map(|start| {
            let text = format!(
                "(module (memory (export \"memory\") 1) (func $other (i32.store (i32.const 16) (i32.const 3)))
                    (func (export \"at\") (param i32) (local i32 i32) {start} {body}))"
            );
            let monitor = Module::new(&engine, text).unwrap();
            let Observed { mut store, run, memory, probe: _probe } = observed(&program, &monitor);
            [0, 1, 2, 5, 65532, 65533, 1 << 30].map(|argument| {
                let is_trap = run.call(&mut store, argument).is_err();
                (is_trap, memory.data(&store)[..24].to_vec())
            })
        });
        assert_eq!(inlined, called, "{body}");
    }
}

/// An address of 64 bits is passed as an `i32` without its upper half, whose loads and stores would
/// otherwise leave the memory of the monitor.
#[test]
fn addresses_of_64_bits_are_truncated_to_i32() {
    let engine = engine();
    let text = "(module (memory i64 1) (func (export \"run\") (drop (i32.load (i64.const 0x500000010)))))";
    let program = Module::new(&engine, text).unwrap();
    for start in ["", "(block)"] {
        let monitor = format!(
            "(module (memory (export \"memory\") 1) (func (export \"at\") (param i32)
                {start} (i64.store (i32.const 0) (i64.extend_i32_u (local.get 0)))
                (i64.store offset=8 (local.get 0) (i64.const 7))))"
        );
        let monitor = Module::new(&engine, monitor).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &monitor, &[]).unwrap();
        let at = instance.get_func(&mut store, "at").unwrap();
        let function = WasmFn::new(&store, at).unwrap();
        let body = program.function(0).unwrap().body().unwrap();
        let load = body.instructions().nth(1).unwrap();
        let offset = (load.offset() - body.range().start) as u32;
        let location = Location { function: 0, place: Place::Instruction { offset } };
        let kind = Kind::Wasm { function, values: [Bound::Address].into() };
        let probe = program.probe(ProbeSpec { location, kind }).unwrap();
        probe.activate().unwrap();
        let running = Instance::new(&mut store, &program, &[]).unwrap();
        let run = running.get_typed_func::<(), ()>(&mut store, "run").unwrap();
        assert_eq!(run.call(&mut store, ()).unwrap_err().trap(), Some(Trap::MemoryOutOfBounds));
        let data = instance.get_memory(&mut store, "memory").unwrap().data(&store);
        assert_eq!(u64::from_le_bytes(data[..8].try_into().unwrap()), 0x10);
        assert_eq!(data[0x18], 7);
    }
}

/// With other settings of the engine.
pub(crate) fn test_all() {
    functions_do_the_same_whether_they_are_inlined_or_called();
    programs_are_not_disturbed_by_inlined_functions();
    inlined_functions_have_probes_scopes_and_neighbours();
    traps_are_those_of_the_function();
    addresses_of_64_bits_are_truncated_to_i32();
}
