//! Keys that are looked up several times by a rule: it has the same effects as if each were
//! searched for, which is so if the key is computed by a function.

use rand::prelude::*;

use super::behaviour::{Monitor, values};

/// Random statements. Keys are between `«` and `»`.
struct Rule {
    random: StdRng,
    text: String,
    loops: usize,
}

impl Rule {
    fn choose<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.random.random_range(0..all.len())]
    }

    fn lookup(&mut self) -> String {
        let map = self.choose(&["m", "m", "m", "n"]);
        format!("{map}«{}»", self.choose(&["a", "a", "v", "a + 1", "v % 4", "arg0"]))
    }

    fn value(&mut self, depth: usize) -> String {
        match self.random.random_range(0..8) {
            0..=3 => self.lookup(),
            4 => self.choose(&["a", "v", "arg0"]).to_owned(),
            5 if depth > 0 => format!("({} + {})", self.value(depth - 1), self.value(depth - 1)),
            6 if depth > 0 => {
                let condition = self.condition(depth - 1);
                format!("({condition} ? {} : {})", self.value(depth - 1), self.value(depth - 1))
            }
            _ => self.random.random_range(0..5).to_string(),
        }
    }

    fn condition(&mut self, depth: usize) -> String {
        let both = |this: &mut Self, op: &str| {
            format!("({} {op} {})", this.condition(depth - 1), this.condition(depth - 1))
        };
        match self.random.random_range(0..6) {
            0 if depth > 0 => both(self, "&&"),
            1 if depth > 0 => both(self, "||"),
            _ => format!("{} {} {}", self.lookup(), self.choose(&["==", "<", "!="]), self.value(1)),
        }
    }

    fn statements(&mut self, depth: usize) {
        for _ in 0..self.random.random_range(1..5) {
            self.statement(depth);
        }
    }

    fn statement(&mut self, depth: usize) {
        let text = match self.random.random_range(0..11) {
            0..=2 => format!("{} = {};", self.lookup(), self.value(1)),
            3 => format!("{}++;", self.lookup()),
            4 => format!("{} = {} % 40;", self.choose(&["a", "v"]), self.value(1)),
            5 => "sum = sum + change(a);".to_owned(),
            6 => format!("sum = sum + {};", self.value(2)),
            7 | 8 if depth > 0 => {
                let condition = self.condition(1);
                self.text += &format!("if ({condition}) {{");
                self.statements(depth - 1);
                if self.random.random() {
                    self.text += "} else {";
                    self.statements(depth - 1);
                }
                "}".to_owned()
            }
            9 if depth > 0 => {
                let number = self.loops;
                self.loops += 1;
                self.text += &format!("var i{number}: u32; while (i{number} < 3) {{ i{number}++;");
                self.statements(depth - 1);
                let condition = self.condition(0);
                let leave = self.choose(&["break;", "continue;"]);
                self.text += &format!("if ({condition}) {{ {leave} }}");
                self.statements(depth - 1);
                "}".to_owned()
            }
            _ => return,
        };
        self.text += &text;
        self.text.push('\n');
    }
}

const SCRIPT: &str = "report var m: map<u32, u32>; report var n: map<u32, u32>;
    report var sum: u32; report var v: u32;
    fn key(x: u32) -> u32 { return x; }
    fn change(x: u32) -> u32 { m[x + v] = x; m[x * 7 % 50]++; v = (v + 1) % 30; return m[x]; }
    wasm:opcode:call(arg0: u32):before { var a: u32 = arg0;
    ";

fn report(script: &str) -> String {
    let mut monitor = Monitor::new(script);
    for argument in [3, 5, 3, 21, 8, 13, 2, 3, 1, 40] {
        monitor.hit_all("wasm:opcode:call:before", 2, &values(&[("arg0", argument)], 0));
    }
    monitor.report()
}

#[test]
fn keys_are_found_as_if_they_were_searched_for_each_time() {
    let count = if std::env::var_os("LONG_TESTS").is_some() { 3000 } else { 60 };
    for seed in 0..count {
        let mut rule = Rule { random: StdRng::seed_from_u64(seed), text: String::new(), loops: 0 };
        rule.statements(3);
        let text = format!("{SCRIPT}{}}}", rule.text);
        let remembered = text.replace('«', "[").replace('»', "]");
        let searched = text.replace('«', "[key(").replace('»', ")]");
        assert_eq!(report(&remembered), report(&searched), "seed {seed}: {remembered}");
    }
}

/// What must not be remembered: the key has another value, its entry is elsewhere, or it was looked
/// up in one arm only.
#[test]
fn values_that_have_moved_are_found() {
    let script = "report var m: map<u32, u32>; report var sum: u32;
        wasm:opcode:call(arg0: u32):before {
            var a: u32 = arg0; var i: u32;
            if (m[a] == 0) { a++; m[a] = 7; }
            m[1] = 1;
            while (i < 100) { i++; m[2000 + i] = i; }
            m[1] = m[1] + 1;
            if (a > 100 && m[a] == 7) { sum = 1; } else { m[a] = m[a] + 1; }
            sum = sum + m[a] + m[1];
        }";
    let mut monitor = Monitor::new(script);
    monitor.hit_all("wasm:opcode:call:before", 1, &values(&[("arg0", 5)], 0));
    let report = monitor.report();
    let rows: Vec<_> = report.lines().filter(|row| !row.contains(",,,,2")).collect();
    assert_eq!(rows[1..], ["m,\"map<u32, u32>\",,,,6,8", "m,\"map<u32, u32>\",,,,1,2", "sum,u32,,,,,10"]);
}

/// Maps grow in a function that is called, or in one of two arms.
#[test]
fn values_that_have_moved_elsewhere_are_found() {
    let grow = "while (i < 100) { i++; m[2000 + i] = i; }";
    let called = format!(
        "report var m: map<u32, u32>; report var sum: u32;
        fn grow() -> u32 {{ var i: u32; {grow} return 1; }}
        wasm:opcode:call(arg0: u32):before {{ m[1] = 1; sum = sum + grow(); m[1] = 5; }}"
    );
    let in_an_arm = format!(
        "report var m: map<u32, u32>; report var sum: u32;
        wasm:opcode:call(arg0: u32):before {{
            var i: u32;
            m[1] = 1; if (arg0 == 5) {{ {grow} sum = 1; }} else {{ sum = 2; }} m[1] = 5;
        }}"
    );
    for script in [called, in_an_arm] {
        let mut monitor = Monitor::new(&script);
        monitor.hit_all("wasm:opcode:call:before", 1, &values(&[("arg0", 5)], 0));
        let report = monitor.report();
        let rows: Vec<_> = report.lines().filter(|row| !row.contains(",,,,2")).collect();
        assert_eq!(rows[1..], ["m,\"map<u32, u32>\",,,,1,5", "sum,u32,,,,,1"], "{script}");
    }
}

/// Two keys, whose bits differ.
#[test]
fn zeros_of_different_signs_are_different_keys() {
    let script = "report var m: map<f64, u64>;
        wasm:opcode:call(arg0: u32):before { m[0.0] = 1; m[-0.0] = 2; m[0.0] = m[0.0] + 5; }";
    let mut monitor = Monitor::new(script);
    monitor.hit_all("wasm:opcode:call:before", 1, &values(&[("arg0", 5)], 0));
    let report = monitor.report();
    let mut figures: Vec<_> = report.lines().skip(1).filter_map(|row| row.rsplit(',').next()).collect();
    figures.sort_unstable();
    assert_eq!(figures, ["2", "6"], "{report}");
}
