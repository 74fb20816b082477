//! Adversarial scripts: each is compiled or refused, and never causes a panic.

use std::fmt::Write;

use rand::prelude::*;
use wasm_jit_whamm::lang::{self, ProblemKind};

use super::{compile, exports};

#[track_caller]
fn refused(source: &[u8], kind: ProblemKind) {
    let error = lang::compile("test.mm", source, &[]).unwrap_err();
    assert_eq!(error.problems()[0].kind, kind, "{}", error.problems()[0].message);
    assert!(!error.to_string().is_empty());
}

#[test]
fn deep_nesting() {
    use ProblemKind::{Limit, Syntax};
    let many = 100_000;
    refused(format!("var x: i32 = {};", "(".repeat(many)).as_bytes(), Limit);
    refused(format!("var x: bool = {}true;", "!".repeat(many)).as_bytes(), Limit);
    refused(format!("var x: i32 = 1{};", " + 1".repeat(many)).as_bytes(), Limit);
    refused(format!("var x: i32 = 1{};", " as i32".repeat(many)).as_bytes(), Limit);
    refused(format!("var x: i32 = {}1;", "true ? 1 : ".repeat(many)).as_bytes(), Limit);
    refused(format!("wasm:begin {{ {} }}", "if (true) {".repeat(many)).as_bytes(), Limit);
    refused(format!("var x: {}", "(".repeat(many)).as_bytes(), Limit);
    refused(format!("var x: {}", "map<i32, ".repeat(many)).as_bytes(), Limit);
    refused("/*".repeat(many).as_bytes(), Syntax);
    // Long, but not deep.
    compile(&format!(
        "var x: i32; wasm:begin {{ if (x == 1) {{ }} {} }}",
        "elif (x == 2) { x++; }".repeat(100)
    ));
    compile(&format!("var x: i32; wasm:begin {{ {} }}", "x++;".repeat(many)));
    compile(&format!("var x: i32 = 1{};", " + 1".repeat(200)));
}

#[test]
fn long_chains_of_alternatives() {
    refused_or_compiled(&format!(
        "var x: i32; wasm:begin {{ if (x == 1) {{ }} {} }}",
        "elif (x == 2) { x++; }".repeat(100_000)
    ));
}

fn refused_or_compiled(source: &str) {
    if let Err(error) = lang::compile("test.mm", source.as_bytes(), &[]) {
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn ten_thousand_rules() {
    let mut source = "report var n: u32;\n".to_owned();
    for number in 0..10_000 {
        let _ = writeln!(source, "wasm:opcode:*:before / fid == {number} / {{ n = n + {number}; }}");
    }
    assert_eq!(exports(&compile(&source)).len(), 10_001);
    let counters = "wasm:opcode:call:before { report var n: u32; n++; }\n".repeat(10_000);
    assert_eq!(exports(&compile(&counters)).len(), 10_001);
    // One export with a function that calls each.
    let same = format!("var n: u32;\n{}", "wasm:opcode:*:before { n++; }\n".repeat(10_000));
    assert_eq!(exports(&compile(&same)).len(), 1);
    // Instruction names are known: one kind of event for each rule, in any order.
    let mut selective = String::new();
    for number in 0..400 {
        let _ = writeln!(
            selective,
            "wasm:opcode:*:before / fid == {number} && opname == \"i32.add\" / {{ report unshared var n: u32; n++; }}
            wasm:opcode:*:before / category_name == \"load\" && opname == \"i32.load\" && fid == {number} /
                {{ report unshared var n: u32; n++; }}"
        );
    }
    assert_eq!(exports(&compile(&selective)).len(), 801);
    let wide = "wasm:opcode:*:before { report var n: u32; n++; }\n".repeat(10_000);
    refused(wide.as_bytes(), ProblemKind::Limit);
}

#[test]
fn text_that_is_none() {
    refused(b"var x: i32;\nvar \xff: i32;", ProblemKind::Syntax);
    refused(b"\xf0\x9f", ProblemKind::Syntax);
    refused("var x: i32 = é;".as_bytes(), ProblemKind::Syntax);
    refused("var x: str = \"\\é\";".as_bytes(), ProblemKind::Syntax);
    assert!(exports(&compile("")).is_empty());
    assert!(exports(&compile("// nothing")).is_empty());
    refused(&vec![b' '; (16 << 20) + 1], ProblemKind::Limit);
}

#[test]
fn large_numbers() {
    refused(b"var t: (i32, i32); var x: i32 = t.99999999999999999999;", ProblemKind::Limit);
    refused(b"var x: u64 = 0xfffffffffffffffff;", ProblemKind::Syntax);
    refused(b"wasm:opcode:call(local99999999999: i32):before { }", ProblemKind::Rule);
    compile("var x: u64 = 0xffffffffffffffff * 0xffffffffffffffff; var y: f64 = 1e999;");
    compile("var x: i32 = 1 << 99; var y: i32 = -2147483648 / -1; var z: i64 = -9223372036854775808 % -1;");
    compile("var x: i32 = 1 / 0;");
}

/// Random pieces of the language, in random order, and valid scripts with modified bytes.
#[test]
fn random_scripts() {
    const PIECES: [&str; 61] = [
        "wasm",
        ":",
        "opcode",
        "call",
        "*",
        "before",
        "{",
        "}",
        "(",
        ")",
        "/",
        "var",
        "x",
        "y",
        "i32",
        "u8",
        "bool",
        "=",
        "==",
        "1",
        "0x7f",
        "1.5",
        "\"s\"",
        "+",
        "-",
        "++",
        ";",
        "if",
        "else",
        "elif",
        "while",
        "report",
        "unshared",
        "shared",
        "map",
        "<",
        ">",
        ",",
        "fn",
        "->",
        "return",
        "as",
        "?",
        "arg0",
        ".0",
        "wasm:begin {",
        "wasm:func:entry {",
        "wasm:opcode:i32.load:after {",
        "frame",
        "after",
        "semantic_after",
        "entry",
        "use",
        "lib",
        "lib.f(",
        "@static",
        "@init",
        "fname",
        "target_fn_name",
        "res0",
        ".contains(",
    ];
    const SCRIPT: &str = "report var m: map<(u32, bool), i64>; fn f(a: i32) -> i32 { return a * 2 + 1; }\n\
        wasm:opcode:*load*|br_if:before / fid == 3 || pc > 7 && at_func_end / { report unshared var n: u32 = pc;\n\
        n++; if (n > 3) { m[(fid, true)] = m[(fid, true)] + 1; } elif (f(2) == 5) { m[(n, false)]++; } }\n\
        wasm:func:exit { shared var last: u32; last = fid; while (last > 10) { last = last / 2; break; } }\n\
        use lib; frame var t: (i64, str) = (5, \"a\"); var names: map<str, i32>;\n\
        wasm:opcode:call(res0: i32):after / fname.contains(\"main\") && @static lib.f(pc) == 1 / { @init lib.g();\n\
        names[target_fn_name] = res0 + lib.f(2); t.0 = t.0 + (@static lib.f(fid) as i64); if (t.1 == fname) { m[(fid, true)]--; } }\n\
        wasm:opcode:br*:semantic_after { frame var t: (i64, str); t.1 = opname; }\n";
    let library =
        "(module (func (export \"f\") (param i32) (result i32) (local.get 0)) (func (export \"g\")))";
    let library = wat::parse_str(library).unwrap();
    let compile = |source: &str| lang::compile("test.mm", source.as_bytes(), &[("lib", &library)]);
    compile(SCRIPT).unwrap();
    let mut random = StdRng::seed_from_u64(14);
    for _ in 0..20_000 {
        let source = match random.random_bool(0.5) {
            true => {
                let pieces = (0..random.random_range(1..40)).map(|_| *PIECES.choose(&mut random).unwrap());
                pieces.collect::<Vec<_>>().join(" ")
            }
            false => {
                let mut bytes = SCRIPT.as_bytes().to_vec();
                for _ in 0..random.random_range(1..4) {
                    let at = random.random_range(0..bytes.len());
                    match random.random_range(0..3) {
                        0 => drop(bytes.remove(at)),
                        1 => bytes[at] = random.random_range(32..127),
                        _ => {
                            let from = random.random_range(0..bytes.len());
                            let piece = bytes[from..(from + 8).min(bytes.len())].to_vec();
                            bytes.splice(at..at, piece);
                        }
                    }
                }
                String::from_utf8(bytes).unwrap()
            }
        };
        match compile(&source) {
            Ok(module) => {
                if let Err(error) = wasmparser::Validator::new().validate_all(&module) {
                    panic!("{error}\n{source}");
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
