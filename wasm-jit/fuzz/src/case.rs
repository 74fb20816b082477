//! A module, its calls and its host, generated from a seed.

use arbitrary::Unstructured;
use wasm_smith::{Config, MemoryOffsetChoices, Module};

use crate::hints;
use crate::imports;
use crate::program::{self, Features, Form};
use crate::random::{Random, mixed};
use crate::record::{Type, Value};

/// Number of calls to each export, each in a new instance.
pub const ROUNDS: u64 = 2;

/// Number of loop iterations and calls that an instance may make.
const BUDGET: u32 = 3000;

/// The kind of case that a seed generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A module of [`program`].
    Program,
    /// A module of wasm-smith.
    Smith,
    /// Bytes that need not be a module.
    Bytes,
}

impl Kind {
    /// The kind of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        match mixed(!seed) % 8 {
            0..=3 => Self::Program,
            4..=6 => Self::Smith,
            _ => Self::Bytes,
        }
    }
}

/// A module with everything that affects its execution.
#[derive(Debug)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// The module.
    pub wasm: Vec<u8>,
    /// The same program for the engine under test, with the legacy form of exceptions, which the
    /// reference engine does not support. `None` if fuel is compared, because the instructions
    /// differ.
    pub legacy: Option<Vec<u8>>,
    /// Whether all NaNs are equal.
    pub same_nans: bool,
}

impl Case {
    /// The case of a seed; `None` if it does not generate a module.
    #[must_use]
    pub fn new(seed: u64, features: Features) -> Option<Self> {
        if Kind::of(seed) == Kind::Program {
            let module = |form| {
                let text = program::text_of(seed, features, form);
                wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
            };
            let legacy = (features.exceptions && !features.fuel && seed.is_multiple_of(2))
                .then(|| module(Form::Legacy));
            let case = Self { seed, wasm: module(Form::Table), legacy, same_nans: true };
            return Some(case.with_hints());
        }
        let mut random = Random::new(mixed(seed));
        let length = 1 << random.choose(&[9, 11, 13, 14]);
        let config = config(&mut random, features);
        let bytes = random.bytes(length);
        let mut module = Module::new(config, &mut Unstructured::new(&bytes)).ok()?;
        module.ensure_termination(BUDGET).ok()?;
        let wasm = module.to_bytes();
        if !imports::can_be_defined(&wasm) {
            return None;
        }
        Some(Self { seed, wasm, legacy: None, same_nans: false }.with_hints())
    }

    /// The case with random branch hints, if its seed is one of the half that has them.
    pub(crate) fn with_hints(mut self) -> Self {
        let mut random = Random::new(mixed(self.seed) ^ 0x6869_6e74);
        if random.one_in(2) {
            for wasm in [Some(&mut self.wasm), self.legacy.as_mut()].into_iter().flatten() {
                *wasm = hints::with_hints(wasm, &mut random);
            }
        }
        self
    }

    /// The part of the case that host functions need.
    #[must_use]
    pub fn host(&self) -> Self {
        Self { wasm: Vec::new(), legacy: None, ..*self }
    }

    /// The arguments of a call to an export.
    #[must_use]
    pub fn arguments(&self, round: u64, name: &str, types: &[Type]) -> Vec<Value> {
        let mut random =
            Random::new(mixed(self.seed ^ mixed(round)) ^ u64::from(crc32fast::hash(name.as_bytes())));
        types.iter().map(|ty| value(&mut random, *ty)).collect()
    }

    /// The result of a host function: depends on the number of the call, and on its arguments.
    #[must_use]
    pub fn host_results(&self, number: usize, arguments: &[Value], types: &[Type]) -> Vec<Value> {
        let mut seed = mixed(self.seed ^ mixed(number as u64));
        for argument in arguments {
            let bits = match *argument {
                Value::I32(value) => u64::from(value as u32),
                Value::I64(value) => value as u64,
                Value::F32(bits) => u64::from(bits),
                Value::F64(bits) => bits,
                Value::V128(bits) => bits as u64 ^ mixed((bits >> 64) as u64),
                Value::Null(_) => 1,
                Value::Func | Value::Exn | Value::Object => 2,
                Value::I31(value) => mixed(u64::from(value as u32)),
                Value::Extern(value) => u64::from(value) + 3,
            };
            seed = mixed(seed ^ bits);
        }
        let mut random = Random::new(seed);
        types.iter().map(|ty| value(&mut random, *ty)).collect()
    }

    /// The initial value of an imported global.
    #[must_use]
    pub fn imported_global(&self, name: &str, ty: Type) -> Value {
        value(&mut Random::new(mixed(self.seed) ^ u64::from(crc32fast::hash(name.as_bytes()))), ty)
    }

    /// The module as text in which expressions are nested.
    #[must_use]
    pub fn nested_text(&self) -> String {
        let mut out = String::new();
        let mut config = wasmprinter::Config::new();
        let printed =
            config.fold_instructions(true).print(&self.wasm, &mut wasmprinter::PrintFmtWrite(&mut out));
        printed.map_or_else(|error| format!(";; {error:#}"), |()| out)
    }

    /// The module as text.
    #[must_use]
    pub fn text(&self) -> String {
        wasmprinter::print_bytes(&self.wasm).unwrap_or_else(|error| format!(";; {error:#}"))
    }
}

/// A random configuration of wasm-smith.
fn config(random: &mut Random, features: Features) -> Config {
    let mut config = Config {
        allow_start_export: true,
        canonicalize_nans: true,
        export_everything: true,
        generate_custom_sections: false,
        simd_enabled: random.one_in(2),
        compact_imports_enabled: false,
        memory_max_size_required: true,
        table_max_size_required: true,
        max_memory32_bytes: 3 * 65536,
        max_memory64_bytes: 3 * 65536,
        max_table_elements: 500,
        max_data_segments: 10,
        max_imports: 12,
        max_tags: 4,
        max_type_size: 100,
        ..Config::default()
    };
    config.exceptions_enabled = features.exceptions && !random.one_in(3);
    config.gc_enabled = features.gc && !random.one_in(4);
    config.threads_enabled = features.threads && random.one_in(2);
    config.bulk_memory_enabled = !random.one_in(5);
    config.reference_types_enabled = config.bulk_memory_enabled && !random.one_in(4);
    config.tail_call_enabled = !random.one_in(3);
    config.multi_value_enabled = !random.one_in(5);
    config.extended_const_enabled = random.one_in(2);
    config.sign_extension_ops_enabled = !random.one_in(4);
    config.saturating_float_to_int_enabled = !random.one_in(4);
    config.disallow_traps = random.one_in(2);
    config.allow_floats = !random.one_in(6);
    // wasm-smith leaves the NaNs of relaxed operators as they are. This crate's generator has those
    // on floats.
    config.relaxed_simd_enabled = config.simd_enabled && random.one_in(3);
    config.allow_floats &= !config.relaxed_simd_enabled;
    config.max_memories = random.choose(&[1, 1, 1, 3]);
    config.max_tables = if config.reference_types_enabled { random.choose(&[1, 4]) } else { 1 };
    config.min_memories = u32::from(!random.one_in(8));
    config.min_funcs = random.choose(&[1, 3, 10]);
    config.max_funcs = config.min_funcs + random.choose(&[1, 5, 20]);
    config.max_instructions = random.choose(&[10, 60, 300, 2000]);
    config.max_nesting_depth = random.choose(&[2, 10, 50]);
    config.max_values = random.choose(&[10, 30]);
    config.max_globals = random.choose(&[2, 20]);
    config.max_imports = random.choose(&[0, 4, 12]);
    config.max_elements = 50;
    config.max_element_segments = 10;
    // Most accesses near the start, where the memory is; some at its end and beyond.
    config.memory_offset_choices =
        if random.one_in(2) { MemoryOffsetChoices(90, 8, 2) } else { MemoryOffsetChoices(60, 30, 10) };
    config.wide_arithmetic_enabled = random.one_in(3);
    config.memory64_enabled = random.one_in(3);
    config.custom_page_sizes_enabled = random.one_in(3);
    config
}

/// A value, with a bias towards special cases.
fn value(random: &mut Random, ty: Type) -> Value {
    match ty {
        Type::I32 => Value::I32(integer(random) as i32),
        Type::I64 => Value::I64(integer(random)),
        Type::F32 => Value::F32((float(random) as f32).to_bits()),
        Type::F64 => Value::F64(float(random).to_bits()),
        Type::V128 => {
            Value::V128(u128::from(integer(random) as u64) << 64 | u128::from(integer(random) as u64))
        }
        Type::Extern if !random.one_in(3) => Value::Extern(random.number() as u32),
        Type::Any if !random.one_in(3) => Value::I31((integer(random) as i32) << 1 >> 1),
        other => other.zero(),
    }
}

fn integer(random: &mut Random) -> i64 {
    const EDGES: [i64; 14] = [
        0,
        1,
        -1,
        2,
        31,
        32,
        63,
        64,
        i32::MAX as i64,
        i32::MIN as i64,
        u32::MAX as i64,
        1 << 32,
        i64::MAX,
        i64::MIN,
    ];
    match random.below(4) {
        0 => random.choose(&EDGES),
        1 => random.choose(&EDGES).wrapping_add(random.below(5) as i64 - 2),
        2 => random.below(70000) as i64,
        _ => random.number() as i64,
    }
}

fn float(random: &mut Random) -> f64 {
    const EDGES: [f64; 16] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -1.5,
        2_147_483_648.0,
        -2_147_483_649.0,
        4_294_967_296.0,
        9_223_372_036_854_775_808.0,
        18_446_744_073_709_551_616.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::MIN_POSITIVE,
        5e-324,
    ];
    match random.below(3) {
        0 => random.choose(&EDGES),
        1 => integer(random) as f64 / 4.0,
        // The only NaN is the canonical one.
        _ => Some(f64::from_bits(random.number())).filter(|float| !float.is_nan()).unwrap_or(f64::NAN),
    }
}
