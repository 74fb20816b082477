//! The functions against V8: a program calls them with random strings, surrogates without a partner
//! included, and with indices around the bounds; node does the same with its own strings, by the
//! definitions of the proposal, and must get the same results.
//!
//! Node 20 has no `wasm:js-string`, and reads an older encoding of garbage collection.

mod support;

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{FUNCTIONS, Program, units_of};
use wasm_jit::{ExternRef, Val};
use wasm_jit_js_string::JsString;

/// Reads steps, and prints the result of each.
const IN_NODE: &str = r#"
const trap = () => { throw "trap"; };
const isString = (value) => value !== null && typeof value === "string";
const functions = {
  cast: (s) => isString(s) ? s : trap(),
  test: (s) => isString(s) ? 1 : 0,
  fromCharCodeArray: (array, start, end) => {
    start >>>= 0; end >>>= 0;
    if (array === null || start > end || end > array.length) trap();
    let result = "";
    for (let i = start; i < end; i++) result += String.fromCharCode(array[i]);
    return result;
  },
  intoCharCodeArray: (s, array, start) => {
    start >>>= 0;
    if (array === null || !isString(s) || start + s.length > array.length) trap();
    for (let i = 0; i < s.length; i++) array[start + i] = s.charCodeAt(i);
    return s.length;
  },
  fromCharCode: (code) => String.fromCharCode(code >>> 0),
  fromCodePoint: (point) => {
    point >>>= 0;
    if (point > 0x10ffff) trap();
    return String.fromCodePoint(point);
  },
  charCodeAt: (s, index) => {
    index >>>= 0;
    if (!isString(s) || index >= s.length) trap();
    return s.charCodeAt(index);
  },
  codePointAt: (s, index) => {
    index >>>= 0;
    if (!isString(s) || index >= s.length) trap();
    return s.codePointAt(index);
  },
  length: (s) => isString(s) ? s.length : trap(),
  concat: (a, b) => isString(a) && isString(b) ? a.concat(b) : trap(),
  substring: (s, start, end) => {
    start >>>= 0; end >>>= 0;
    if (!isString(s)) trap();
    if (start > end || start > s.length) return "";
    return s.substring(start, end);
  },
  equals: (a, b) => {
    if (a !== null && !isString(a) || b !== null && !isString(b)) trap();
    return a === b ? 1 : 0;
  },
  compare: (a, b) => {
    if (!isString(a) || !isString(b)) trap();
    return a === b ? 0 : a < b ? -1 : 1;
  },
};
const strings = [];
const results = JSON.parse(require("fs").readFileSync(0)).map(([name, ...args]) => {
  const arrays = [];
  const values = args.map((arg) => {
    if (arg === null || typeof arg === "number") return arg;
    if ("string" in arg) return strings[arg.string];
    if ("other" in arg) return { other: 1 };
    arrays.push(Uint16Array.from(arg.array));
    return arrays[0];
  });
  let result;
  try {
    result = functions[name](...values);
  } catch (error) {
    if (error !== "trap") throw error;
    return "trap";
  }
  if (typeof result === "string") {
    strings.push(result);
    result = Array.from({ length: result.length }, (_, index) => result.charCodeAt(index));
  }
  return [result, ...arrays.map((array) => Array.from(array))];
});
console.log(JSON.stringify(results));
"#;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// A code unit: every second one is a surrogate.
    fn unit(&mut self) -> u16 {
        let any = self.next() as u16;
        self.choose(&[
            any,
            0xd800 | any & 0x3ff,
            0xdc00 | any & 0x3ff,
            0x61 | any & 1,
            any,
            0xd800,
            0xdc00,
            0xffff,
        ])
    }

    fn units(&mut self) -> Vec<u16> {
        (0..self.below(6)).map(|_| self.unit()).collect()
    }

    /// An index, near the bounds of a sequence of this length as a rule.
    fn index(&mut self, length: usize) -> i32 {
        let length = length as i32;
        let any = self.next() as i32;
        let within = (any as u32 % (length as u32 + 1)) as i32;
        self.choose(&[within, within, within, 0, length - 1, length, length + 1, -1, i32::MIN, any])
    }

    /// A number for a code unit or code point.
    fn code(&mut self) -> i32 {
        let any = self.next() as i32;
        let unit = self.unit().into();
        self.choose(&[unit, unit, any & 0x1f_ffff, 0x1_0000, 0x10_ffff, 0x11_0000, -1, any])
    }
}

/// The strings that the steps have made, and the results of all steps.
#[derive(Default)]
struct Run {
    strings: Vec<JsString>,
    steps: Vec<Value>,
    results: Vec<Value>,
}

impl Run {
    /// One of the last strings, null or another value: for node and for the program, with the
    /// string's length.
    fn string(&self, random: &mut Random) -> (Value, Val, usize) {
        match random.below(20) {
            0 => (Value::Null, Val::ExternRef(None), 0),
            1 => (json!({ "other": 1 }), ExternRef::new(1).into(), 0),
            _ => {
                let recent = self.strings.len().min(16);
                let index = self.strings.len() - 1 - random.below(recent);
                let string = &self.strings[index];
                (json!({ "string": index }), string.clone().into(), string.units().len())
            }
        }
    }

    /// A call of a random function, or of `fromCharCodeArray` as long as there are no strings.
    fn step(&mut self, program: &mut Program, random: &mut Random) {
        let (name, params, _) =
            if self.strings.is_empty() { FUNCTIONS[2] } else { random.choose(&FUNCTIONS) };
        let (mut step, mut arguments, mut array) = (vec![json!(name)], Vec::new(), None);
        let mut length = 0;
        for param in params {
            let (shown, value) = match *param {
                "externref" => {
                    let (shown, value, units) = self.string(random);
                    length = length.max(units);
                    (shown, value)
                }
                "i32" => {
                    let number = match name {
                        "fromCharCode" | "fromCodePoint" => random.code(),
                        _ => random.index(length),
                    };
                    (json!(number), Val::I32(number))
                }
                _ if random.below(20) == 0 => (Value::Null, Val::AnyRef(None)),
                _ => {
                    // As a rule, a string fits into it.
                    let mut units = random.units();
                    units.resize(units.len() + length, 7);
                    let handle = program.array(&units);
                    length = units.len();
                    array = Some(handle.clone());
                    (json!({ "array": units }), handle.into())
                }
            };
            step.push(shown);
            arguments.push(value);
        }
        // Doubling does not go on for ever.
        if name == "concat" && length > 64 {
            return;
        }
        let result = match program.call(name, &arguments) {
            Err(error) => {
                assert!(error.trap().is_some(), "{name}: {error}");
                json!("trap")
            }
            Ok(result) => {
                let mut shown = vec![match &result {
                    Val::I32(number) => json!(number),
                    string => {
                        let units = units_of(string);
                        self.strings.push(units.as_slice().into());
                        json!(units)
                    }
                }];
                shown.extend(array.map(|array| json!(program.units(&array))));
                Value::Array(shown)
            }
        };
        self.steps.push(step.into());
        self.results.push(result);
    }
}

/// The results of the same steps in node.
fn in_node(steps: &[Value]) -> Vec<Value> {
    let mut command = Command::new("node");
    command.args(["-e", IN_NODE]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("node is installed: scripts/install-packages.sh");
    let mut input = child.stdin.take().expect("it is piped");
    input.write_all(&serde_json::to_vec(steps).expect("JSON")).expect("node reads all of it");
    drop(input);
    let output = child.wait_with_output().expect("node ends");
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).expect("node prints the results")
}

#[test]
fn random_calls_have_the_same_results() {
    let mut random = Random(20_240_917);
    let mut program = Program::new();
    let mut run = Run::default();
    while run.steps.len() < 20_000 {
        run.step(&mut program, &mut random);
    }
    let theirs = in_node(&run.steps);
    assert_eq!(run.results.len(), theirs.len());
    for ((step, ours), theirs) in run.steps.iter().zip(&run.results).zip(&theirs) {
        assert_eq!(ours, theirs, "{step}");
    }
    // The comparison is of something: every function has had results and, if it can trap, has
    // trapped.
    for (name, ..) in FUNCTIONS {
        let of_name = || run.steps.iter().zip(&run.results).filter(|(step, _)| step[0] == name);
        let trapped = of_name().filter(|(_, result)| *result == "trap").count();
        let traps = !["test", "fromCharCode"].contains(&name);
        assert_eq!(trapped > 10, traps, "{name}: {trapped} traps");
        assert!(of_name().count() > trapped + 100, "{name}: {trapped} traps of {}", of_name().count());
    }
}
