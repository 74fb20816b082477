//! Memories of libraries: strings and bytes that scripts read and write.

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_whamm::lang::{self, Script};
use wasm_jit_whamm::monitor_module::MonitorModule;

use super::engine::{rows_of, rows_without_offset, run};

/// A library with a memory of one page, which it fills and sums up.
const TEXTS: &str = r#"(module (memory (export "memory") 1)
    (data (i32.const 16) "fib") (data (i32.const 32) "main") (data (i32.const 65533) "end")
    (func (export "sum") (param i32 i32) (result i32) (local i32)
        (block $done (loop $next
            (br_if $done (i32.eqz (local.get 1)))
            (local.set 2 (i32.add (local.get 2) (i32.load8_u (local.get 0))))
            (local.set 0 (i32.add (local.get 0) (i32.const 1)))
            (local.set 1 (i32.sub (local.get 1) (i32.const 1)))
            (br $next)))
        (local.get 2)))"#;

/// Another one, so that memories have different numbers.
const OTHER: &str = r#"(module (memory (export "memory") 2)
    (func (export "first") (result i32) (i32.load8_u (i32.const 70000))))"#;

const PROGRAM: &str = r#"(module (func $fib (nop) (nop)) (func $main (nop))
    (func (export "run") (call $main) (call $fib)))"#;

const LIBRARIES: [(&str, &str); 2] = [("texts", TEXTS), ("other", OTHER)];

#[track_caller]
fn check(script: &str, expected: &[&str]) {
    assert_eq!(rows_without_offset(script, &LIBRARIES, PROGRAM), expected, "{script}");
}

#[test]
fn strings_that_are_read_equal_those_of_the_script_and_of_the_program() {
    check(
        "use texts; use other; report var names: map<str, u32>; report var s: str; report var fibs: u32;
        report var last: str = read_str(memid(texts), 65533, 3); report var none: str = read_str(memid(other), 0, 0);
        report var is_none: bool; report var length: u32; report var starts: bool;
        wasm:opcode:nop:before {
            s = read_str(memid(texts), 16, 3); names[s]++; names[fname]++; names[read_str(memid(texts), 32, 4)]++;
            if (s == fname && s == \"fib\") { fibs++; }
            is_none = none == \"\"; length = s.len(); starts = s.starts_with(\"fi\");
        }",
        &[
            "names fib 5",
            "names main 4",
            "s fib",
            "fibs 2",
            "last end",
            "none ",
            "is_none true",
            "length 3",
            "starts true",
        ],
    );
}

/// The only strings are those of the script, and the one that is read.
#[test]
fn strings_of_the_script_equal_those_that_are_read() {
    check(
        "use texts; report var is_same: bool; wasm:begin { is_same = read_str(memid(texts), 16, 3) == \"fib\"; }",
        &["is_same true"],
    );
}

#[test]
fn strings_and_bytes_are_written() {
    let sum = |text: &str| text.bytes().map(u32::from).sum::<u32>();
    check(
        "use other; use texts; report var a: i32; report var b: i32; report var c: i32; var text: str = \"copied\";
        wasm:opcode:nop:before / fname == \"main\" / {
            var to: i32 = 1000;
            write_str(memid(texts), to, fname); a = texts.sum(to, 4);
            memcpy(0, text.addr(), memid(texts), 2000, text.len()); b = texts.sum(2000, 6);
            memcpy(memid(texts), 16, memid(other), 70000, 1); c = other.first();
        }",
        &[&format!("a {}", sum("main")), &format!("b {}", sum("copied")), "c 102"],
    );
}

/// Strings that are read again and again take room once.
#[test]
fn known_strings_take_no_room() {
    let script = "use texts; report var n: u32; report var s: str;
        wasm:opcode:nop:before {
            while (n % 1000000 != 999999) { s = read_str(memid(texts), 16, 1000); n++; if (n % 10000 == 0) { n++; } }
            n++;
        }";
    let libraries = [("texts", wat::parse_str(TEXTS).unwrap())];
    let libraries: Vec<_> = libraries.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    let script = Script::new("test.mm", script.as_bytes(), &libraries).unwrap();
    let program = "(module (func (export \"run\") (nop)))";
    run(script.module(), &LIBRARIES, program, &mut String::new(), |store, attached| {
        let instance = attached.instance(&mut *store);
        // About a gigabyte was read.
        let pages = instance.get_memory(&*store, "memory").unwrap().size(&*store);
        assert!(pages < 10, "{pages}");
    });
}

/// A rule fails that reads or writes beyond the end, or more than there is room for, and the
/// program continues.
#[test]
fn bytes_outside_of_a_memory_end_the_rule() {
    const LARGE: (&str, &str) = ("large", r#"(module (memory (export "memory") 65536))"#);
    for access in [
        "read_str(memid(large), 0, 0xfffffff9);",
        "read_str(memid(large), 16, 0xffffffef);",
        "read_str(memid(texts), 65533, 4);",
        "read_str(memid(texts), 0xffffffff, 2);",
        "write_str(memid(texts), 65533, \"four\");",
        "memcpy(memid(texts), 65536, memid(other), 0, 1);",
        "memcpy(memid(texts), 0, memid(other), 131072, 1);",
        "memcpy(0, 0xfffffff0, memid(other), 0, 16);",
    ] {
        let source = format!(
            "use texts; use other; use large; report var n: u32; wasm:opcode:nop:before {{ n++; if (n == 2) {{ {access} }} n = n + 10; }}"
        );
        let texts = [LIBRARIES[0], LIBRARIES[1], LARGE];
        let libraries = texts.map(|(name, text)| (name, wat::parse_str(text).unwrap()));
        let libraries: Vec<_> = libraries.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        let source = source.replace("n == 2", "n == 12");
        let script = Script::new("test.mm", source.as_bytes(), &libraries).unwrap();
        let engine = Engine::default();
        let of = |(name, text): (&str, &str)| (name.to_owned(), Module::new(&engine, text).unwrap());
        let monitor = Module::from_binary(&engine, script.module()).unwrap();
        let monitor = MonitorModule::new(monitor, texts.map(of).into()).unwrap();
        let module = Module::new(&engine, PROGRAM).unwrap();
        let mut store = Store::new(&engine, ());
        let mut attached = monitor.attach(&mut store, &mut Linker::new(&engine), &module).unwrap();
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
        let error = attached.finish(&mut store).unwrap_err().to_string();
        let reason = match access.contains("large") {
            true => "the script has no memory left",
            false => "bytes outside of a library's memory were read or written",
        };
        assert!(error.contains(reason), "{access}: {error}");
        let instance = attached.instance(&mut store);
        assert_eq!(rows_of(&script.report(&store, instance).unwrap()), ["n     12"], "{access}");
    }
}

#[test]
fn mistakes_are_found() {
    let library = |text: &str| wat::parse_str(text).unwrap();
    let none = library("(module (memory 1))");
    let wide = library("(module (memory (export \"memory\") i64 1))");
    let shared = library("(module (memory (export \"memory\") 1 1 shared))");
    let texts = library(TEXTS);
    let libraries =
        [("none", &none[..]), ("wide", &wide[..]), ("threads", &shared[..]), ("texts", &texts[..])];
    for (statement, message) in [
        ("var s: str = read_str(memid(none), 0, 1);", "`none` has no memory that a script can access"),
        ("var s: str = read_str(memid(wide), 0, 1);", "`wide` has no memory that a script can access"),
        ("var s: str = read_str(memid(threads), 0, 1);", "`threads` has no memory that a script can access"),
        ("var s: str = read_str(memid(absent), 0, 1);", "there is no library `absent`"),
        ("var s: str = read_str(0, 0, 1);", "the memory of a library is expected"),
        ("var s: str = read_str(memid(texts), 1.5, 1);", "expected a `u32`"),
        ("var m: u32 = memid(texts);", "stands for a memory"),
        ("memcpy(0, 0, 0, 0, 1);", "the memory of a library is expected"),
        ("memcpy(memid(texts), 0, 0, 0);", "`memcpy` has 5 parameters"),
        ("memcpy(APP_MEMID, 0, memid(texts), 0, 1);", "the memory of the program, which scripts do not see"),
        ("write_str(memid(texts), 0, 5);", "expected a `str`"),
        ("dup_at(memid(texts), 0);", "`dup_at` is about the memory of the program"),
        ("var n: u32 = mem_size(0);", "`mem_size` is about the memory of the program"),
        ("var n: u32 = opname.addr();", "`addr` of a variable"),
        ("report unshared var s: str = read_str(memid(texts), 0, 1);", "depends on the program's execution"),
        ("dyninstr.remove_probe(probe_id);", "there is no variable or library `dyninstr`"),
        ("var n: i32 = probe_id;", "`probe_id` is not supported"),
    ] {
        let script =
            format!("use none; use wide; use threads; use texts; wasm:opcode:nop:before {{ {statement} }}");
        let error = lang::compile("test.mm", script.as_bytes(), &libraries).unwrap_err().to_string();
        assert!(error.contains(message), "{statement}: {error}");
    }
}

/// `probe_id` and the library for it of the upstream compiler: a place is observed once.
#[test]
fn a_rule_removes_its_probe() {
    let library = [("dyninstr", "(module (func (export \"remove_probe\") (param i32)))")];
    let binary = wat::parse_str(library[0].1).unwrap();
    let source = b"use dyninstr; wasm:opcode:nop:before {
        report var n: u32; n++; if (n == 2) { dyninstr.remove_probe(probe_id); } }";
    let script = Script::new("test.mm", source, &[("dyninstr", &binary)]).unwrap();
    let program = "(module (func $three (nop)) (func (export \"run\") (nop) (call $three) (call $three) (call $three)))";
    run(script.module(), &library, program, &mut String::new(), |store, attached| {
        let instance = attached.instance(&mut *store);
        let rows = rows_of(&script.report(&mut *store, instance).unwrap());
        let values: Vec<_> = rows.iter().map(|row| row.split(' ').next_back().unwrap()).collect();
        assert_eq!(values, ["2", "1"]);
    });
    let error = lang::compile("test.mm", source, &[("dyninstr", &binary)]).unwrap_err().to_string();
    assert!(error.contains("`probe_id` is not supported") && error.contains("@once"), "{error}");
}
