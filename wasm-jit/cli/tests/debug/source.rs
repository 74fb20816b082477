//! Programs in C and C++: what names denote, values of all kinds of types, completion.

use std::process::Command;

use super::{Place, attachable, program};

impl Place {
    /// Compiles sources of these tests.
    pub(super) fn compile(&self, sources: &[&str], options: &[&str], output: &str) {
        for source in sources {
            let from = format!("{}/tests/debug/{source}", env!("CARGO_MANIFEST_DIR"));
            std::fs::copy(from, self.path(source)).unwrap();
        }
        let clang = Command::new("clang")
            .args(["--target=wasm32", "-g", "-nostdlib", "-mbulk-memory", "-Wno-main", "-Wl,--no-entry"])
            .args(options)
            .args(sources)
            .args(["-o", output])
            .current_dir(self.dir.path())
            .output()
            .expect("clang can be started");
        assert!(clang.status.success(), "{}", String::from_utf8_lossy(&clang.stderr));
    }

    fn values(&self) {
        self.compile(&["values.cpp", "other.cpp"], &["-O0"], "values.wasm");
    }

    /// The answers to commands, without offsets in the module.
    pub(super) fn answers(&self, commands: &[&str], program: &[&str]) -> Vec<String> {
        let arguments: Vec<&str> =
            ["debug"].into_iter().chain(commands.iter().flat_map(|command| ["--command", command])).collect();
        let output = self.command(&[&arguments[..], program].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let directory = format!("{}/", std::fs::canonicalize(self.dir.path()).unwrap().display());
        let hide = |word: &str| if word.starts_with("0x") { "0x".to_owned() } else { word.to_owned() };
        let line =
            |line: &str| line.replace(&directory, "").split(' ').map(hide).collect::<Vec<_>>().join(" ");
        let answers = text.split("(wasm-jit) ").skip(1);
        let answers = answers.map(|answer| answer.split_once('\n').map_or("", |(_, rest)| rest).trim_end());
        answers.map(|answer| answer.lines().map(line).collect::<Vec<_>>().join("\n")).collect()
    }

    /// Checks the answers to commands after others, in `values.cpp`.
    #[track_caller]
    fn check(&self, before: &[&str], expected: &[(&str, &str)]) {
        let commands: Vec<&str> =
            before.iter().copied().chain(expected.iter().map(|(command, _)| *command)).collect();
        let answers = self.answers(&commands, &["--invoke", "go", "values.wasm", "4"]);
        let found: Vec<(&str, &str)> =
            commands.iter().copied().zip(answers.iter().map(String::as_str)).skip(before.len()).collect();
        assert_eq!(found, expected, "{answers:?}");
    }
}

#[test]
fn static_variables_are_those_in_scope() {
    let place = Place::new();
    place.values();
    let common = [
        ("print ns::x", "10"),
        ("print ::ns::x", "10"),
        ("print ns::Der::st + Der::st + st", "63"),
        ("print counter::calls", "3"),
        ("print other::calls", "1000"),
        ("print ::calls", "50"),
    ];
    // The file's own, but not that of a function.
    place.check(
        &["break main", "run"],
        &[&common[..], &[("print hidden", "1"), ("print calls", "50")]].concat(),
    );
    place.check(&["break counter", "run"], &[("print calls", "3"), ("print hidden", "1"), ("print x", "10")]);
    let other = [("print calls", "1000"), ("print hidden", "2"), ("print ns::x", "10")];
    place.check(&["break other", "run"], &other);
    // In the scope of a frame, and hidden by a local.
    place.check(
        &["break ns::use", "run", "set calls = 7"],
        &[("print calls", "7"), ("print ::calls", "50"), ("print x", "10"), ("print st", "21")],
    );
    place.check(
        &["break other", "run", "up"],
        &[
            ("print hidden", "1"),
            ("print calls", "50"),
            ("print none::x", "there is no variable, local or global `none::x`"),
        ],
    );
    place.check(&["break counter if calls == 3 && hidden == 1", "run"], &[("print calls", "3")]);
    let unknown = "there is no variable, local or global `own`";
    place.check(&["break main", "run"], &[("break counter if own == 1", unknown)]);
}

#[test]
fn bit_fields_are_read_and_changed() {
    let place = Place::new();
    place.values();
    place.check(
        &["break values.cpp:24", "run"],
        &[
            ("print f", "{a = 5, b = -3, wide = 549755813888}"),
            ("print f.a + f.b", "2"),
            ("set f.b = 7", ""),
            ("set f.wide = 1099511627775", ""),
            ("print f", "{a = 5, b = 7, wide = 1099511627775}"),
            ("set f.a = 6", ""),
            ("print f", "{a = 6, b = 7, wide = 1099511627775}"),
            ("set f.a = 8", "8 is no value for this type"),
            ("print &f.a", "a bit-field has no address"),
            ("print sizeof(f.b)", "a bit-field has no size in bytes"),
            ("print sizeof(f)", "8"),
        ],
    );
}

#[test]
fn pointers_and_arrays_have_their_types() {
    let place = Place::new();
    place.values();
    place.check(
        &["break values.cpp:25", "run", "next"],
        &[
            ("print *(p + 1)", "{first = 3, second = 4}"),
            ("print *(1 + p) == *p", "a structure is no operand: name its members"),
            ("print (p + 2)->second", "6"),
            ("print p[2].first - p[0].first", "4"),
            ("print &pairs[2] - p", "2"),
            ("print p - &pairs[2]", "-2"),
            ("print pairs + 1 == p + 1", "1"),
            ("print p + 1 - 1 == p", "1"),
            ("print &p->second - &p->second", "0"),
            ("print p - &p->second", "pointers to different types"),
            ("print grid", "{{1, 2, 3}, {4, 5, 6}}"),
            ("print grid[1]", "{4, 5, 6}"),
            ("print grid[1][2]", "6"),
            ("print *grid[1] + **grid", "5"),
            ("print *(grid + 1)", "{4, 5, 6}"),
            ("print sizeof(grid) + 100 * sizeof(grid[0]) + 10000 * sizeof(grid[0][0])", "41224"),
            ("set grid[1][0] = 40", ""),
            ("print grid", "{{1, 2, 3}, {40, 5, 6}}"),
            ("print *(int *) &pairs[1]", "3"),
            ("print ((struct Pair *) (void *) p)[1]", "{first = 3, second = 4}"),
            ("print ((ns::Der *) &der)->base", "7"),
            ("print *(unsigned char *) p", "1 '\\001'"),
            ("print (unsigned char) -1 + (char) 200", "199"),
            ("print (int) 2.9 - (float) 1", "1.0"),
            ("print (hidden) - 1", "0"),
            ("print (int) p - 1 == (unsigned) p - 1", "1"),
            ("print (Pair) p", "only scalars and pointers can be cast"),
            ("print (none *) p", "there is no type of the source `none`"),
            ("print p * 2 == p", "0"),
            ("print p + f", "a structure is no operand: name its members"),
        ],
    );
}

#[test]
fn of_large_values_the_first_elements_are_shown() {
    let place = Place::new();
    place.values();
    let answers =
        place.answers(&["break main", "run", "print wide"], &["--invoke", "go", "values.wasm", "4"]);
    // Six rows and thirteen elements: rows count, too.
    assert_eq!(answers[2].matches('0').count(), 6 * 30 + 13, "{answers:?}");
    assert!(answers[2].ends_with("0, ...}, ...}"), "{answers:?}");
}

#[test]
fn references_and_structures_by_value_are_those_of_the_source() {
    let place = Place::new();
    place.values();
    place.check(
        &["break sum", "run"],
        &[
            ("info locals", "p = {first = 1, second = 2}\nr = 4\nc = {first = 3, second = 4}"),
            ("print p.second + c.second", "6"),
            ("set p.second = 20", ""),
            ("set r = 40", ""),
            ("print p", "{first = 1, second = 20}"),
            (
                "up",
                "#1   0x main (argc=4, argv=0x0) at values.cpp:28\n28\t  long long s = sum(*p, ref, pairs[1]);",
            ),
            ("print r + ref", "80"),
            ("print &ref == &r", "1"),
            ("print pairs[0]", "{first = 1, second = 2}"),
            ("print der", "{{base = 7}, own = 8}"),
            ("print der.base + der.own", "15"),
        ],
    );
}

#[test]
fn references_and_slices_of_rust_are_shown_as_their_targets() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/wasi-rust.sh");
    let tools = Command::new(script).output().unwrap();
    let tools = String::from_utf8(tools.stdout).unwrap();
    let [_, rustc, target] = tools.lines().collect::<Vec<_>>()[..] else {
        eprintln!("there is no Rust for WASI: not tested");
        return;
    };
    let place = Place::new();
    std::fs::write(place.path("references.rs"), include_str!("references.rs")).unwrap();
    let compiled = Command::new(rustc)
        .args(["--target", target, "-g", "-C", "panic=abort", "--crate-type", "cdylib"])
        .args(["-C", "link-arg=--no-entry", "-C", "link-self-contained=no", "references.rs"])
        .current_dir(place.dir.path())
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let expected = [
        ("print p", "{x = 1, y = 2}"),
        ("print q", "{x = 3, y = 4}"),
        ("print p.x + (*p).y", "3"),
        ("print n + *n", "8"),
        ("print name", "\"abc\""),
        ("print numbers", "{10, 20, 30}"),
        ("print numbers[2]", "30"),
        ("print TOTAL + references::TOTAL", "10"),
        ("complete print p.", "print p.x\nprint p.y"),
        ("set n = 70", ""),
        ("print n", "70"),
    ];
    let commands: Vec<&str> =
        ["break add", "run"].into_iter().chain(expected.iter().map(|(command, _)| *command)).collect();
    let answers = place.answers(&commands, &["--invoke", "go", "references.wasm", "4"]);
    assert!(answers[0].starts_with("Breakpoint 1: 0x references::add at "), "{answers:?}");
    assert_eq!(answers[2..], expected.map(|(_, answer)| answer));
}

#[test]
fn structures_in_several_locals_are_shown() {
    let place = Place::new();
    place.compile(&["pieces.c"], &["-O1"], "pieces.wasm");
    let commands = ["break pieces", "run", "print t", "print t.b", "set t.b = 3"];
    let answers = place.answers(&commands, &["--invoke", "main", "pieces.wasm", "4"]);
    assert_eq!(answers[2..], ["{a = 4, b = 5}", "5", "the value is computed, so it cannot be changed"]);
}

#[test]
fn breakpoints_are_at_all_code_of_a_function() {
    let place = Place::new();
    place.values();
    let index_and_line = |text: &str| {
        format!("`{text}` is not unique: #{text} is the function with this index, FILE:{text} a line")
    };
    place.check(
        &[],
        &[
            ("break main", "Breakpoint 1: 0x main at values.cpp:22"),
            (
                "break twice",
                "Breakpoint 2: 0x twice (inlined in main) at values.cpp:15, 0x twice (inlined in main) at values.cpp:15",
            ),
            ("break removed", "`removed` has no code: it was removed by the linker, or by the compiler"),
            ("break missing", "there is no function with code `missing`"),
            ("break 3", &index_and_line("3")),
            ("break missing.c:3", "there is no source file `missing.c`"),
            ("break values.cpp:3000", "there is no code of the source line `values.cpp:3000`"),
            ("break use", "Breakpoint 3: 0x ns::use() at values.cpp:10"),
            ("run", "Breakpoint 1, 0x main at values.cpp:22\n22\t  Flags f = { 5, -3, 1ull << 39 };"),
            ("backtrace 1", "#0   0x main (argc=4, argv=0x0) at values.cpp:22\n(1 more)"),
        ],
    );
    // The copies that are inlined, each with its own values.
    let line = std::fs::read_to_string(place.path("values.cpp")).unwrap().lines().nth(14).unwrap().to_owned();
    let stopped = format!("Breakpoint 1, 0x twice (inlined in main) at values.cpp:15\n15\t{line}");
    place.check(&["break twice", "run"], &[("print v", "4"), ("continue", &stopped), ("print v", "5")]);
    // A function by its index.
    let answers =
        place.answers(&["info functions sum", "info functions go"], &["--invoke", "go", "values.wasm", "4"]);
    let index = answers[0].split(' ').next().unwrap();
    let commands =
        [format!("break #{index}"), format!("break func[{index}]"), format!("break function[{index}]")];
    let expected =
        |number: u32| format!("Breakpoint {number}: 0x sum(Pair, int&, Pair const&) at values.cpp:18");
    let commands: Vec<(&str, String)> =
        commands.iter().map(String::as_str).zip((1..).map(expected)).collect();
    place.check(&[], &commands.iter().map(|(command, text)| (*command, text.as_str())).collect::<Vec<_>>());
    let text = program(&place, "(module (func (export \"main\") (nop)))");
    let answers =
        place.answers(&["break 0", "break #0", "break #1", "break x.c:1"], &["--invoke", "main", text]);
    assert!(
        answers[0].starts_with("Breakpoint 1: 0x main") && answers[1].starts_with("Breakpoint 2: 0x main")
    );
    assert_eq!(answers[2], "there is no function with code `#1`");
    assert_eq!(answers[3], "there is no source line in a module without debugging information `x.c:1`");
}

#[test]
fn the_main_function_has_its_name_whatever_the_linker_calls_it() {
    let place = Place::new();
    std::fs::write(
        place.path("main.c"),
        "int main(void) { return 7; }\n__attribute__((export_name(\"go\"))) int go(void) { return main(); }\n",
    )
    .unwrap();
    let clang = ["--target=wasm32", "-g", "-nostdlib", "-Wl,--no-entry", "main.c", "-o", "main.wasm"];
    assert!(Command::new("clang").args(clang).current_dir(place.dir.path()).status().unwrap().success());
    let answers = place.answers(
        &["break main", "run", "backtrace", "tbreak __original_main"],
        &["--invoke", "go", "main.wasm"],
    );
    assert_eq!(answers[0], "Breakpoint 1: 0x main at main.c:1", "{answers:?}");
    assert_eq!(answers[2], "#0   0x main () at main.c:1\n#1   0x go () at main.c:2", "{answers:?}");
}

#[test]
fn a_watched_name_is_that_of_its_frame() {
    let place = Place::new();
    place.values();
    // A static variable has the same name.
    let answers = place.answers(
        &[
            "break ns::use",
            "run",
            "delete",
            "watch calls",
            "continue",
            "continue",
            "info breakpoints",
            "continue",
        ],
        &["--invoke", "go", "values.wasm", "4"],
    );
    assert!(answers[4].contains("new: 10\n"), "{answers:?}");
    assert!(answers[5].starts_with("Watchpoint 2 is deleted: the frame of calls has ended\n"), "{answers:?}");
    assert_eq!(answers[5].matches("ended").count(), 1);
    assert_eq!(
        (answers[6].as_str(), answers[7].lines().next()),
        ("no breakpoints", Some("1128")),
        "{answers:?}"
    );
    // A static variable of a function is watched after its frame has ended, too.
    let answers = place.answers(
        &["break counter", "run", "delete", "watch calls if calls == 4", "continue", "continue"],
        &["--invoke", "go", "values.wasm", "4"],
    );
    assert!(answers[4].starts_with("Watchpoint 2: calls\n  old: 3\n  new: 4\n"), "{answers:?}");
    assert!(answers[5].starts_with("1128\n"), "{answers:?}");
    // Likewise the names in its condition, which is given at once or later.
    for condition in
        [&["watch other::calls if calls == 50"][..], &["watch other::calls", "condition 2 calls == 50"]]
    {
        let commands = [&["break main", "run", "delete"], condition, &["continue"]].concat();
        let answers = place.answers(&commands, &["--invoke", "go", "values.wasm", "4"]);
        let stop = answers.last().unwrap();
        assert!(stop.starts_with("Watchpoint 2: other::calls\n  old: 1000\n  new: 1001\n"), "{answers:?}");
    }
}

#[test]
fn floats_of_128_bits_are_read_and_changed() {
    let place = Place::new();
    place.values();
    place.check(
        &["break main", "run"],
        &[
            ("print quad", "1.5"),
            ("print quad * 2 + 1", "4.0"),
            ("print quad > 1 && quad < 2 ? quad : 0", "1.5"),
            ("print tenth", "0.1"),
            ("set quad = 2.5", ""),
            ("print quad", "2.5"),
            ("set quad = tenth", ""),
            ("print quad == tenth", "1"),
            ("set quad = 9007199254740993", ""),
            ("print quad", "9007199254740993.0"),
            ("print (long double) 1", "1.0"),
            ("print (long long) quad", "9007199254740992"),
            ("print sizeof(quad)", "16"),
        ],
    );
}

#[test]
fn problems_of_conditions_are_reported_once() {
    let place = Place::new();
    place.values();
    let problem = "The condition of breakpoint 1 has no value: division by zero";
    let commands =
        ["break twice if 1 / (v - v)", "run", "continue", "kill", "condition 1 v / 0", "run", "continue"];
    let answers = place.answers(&commands, &["--invoke", "go", "values.wasm", "4"]);
    let reported: Vec<bool> = answers.iter().map(|answer| answer.contains(problem)).collect();
    assert_eq!(reported, [false, true, false, false, false, true, false], "{answers:?}");
    assert!(
        answers[2].starts_with("Breakpoint 1, 0x twice (inlined in main) at"),
        "it stops nevertheless: {answers:?}"
    );
    place.check(
        &["break other"],
        &[
            ("break other if $local99 == 1", "the function has no local 99"),
            ("condition 1 $local0 + $local99", "the function has no local 99"),
            ("watch i32[1024] if $local999", "no function has a local 999"),
        ],
    );
}

#[test]
fn lines_are_completed() {
    let place = Place::new();
    place.values();
    place.check(
        &["break sum", "run"],
        &[
            ("complete rev", "reverse-continue \nreverse-finish \nreverse-next \nreverse-nexti \nreverse-step \nreverse-stepi"),
            ("complete break cou", "break counter"),
            ("complete break ns::", "break ns::use"),
            ("complete tbreak us", "tbreak use"),
            ("complete list val", "list values.cpp:"),
            ("complete break other if hid", "break other if hidden"),
            ("complete print p.", "print p.first\nprint p.second"),
            ("complete print 1 + c.f", "print 1 + c.first"),
            ("complete print Der::", "print Der::st"),
            ("complete print gr", "print grid"),
            ("complete disassemble mai", "disassemble main"),
            ("complete info t", "info threads"),
            ("complete catch o", "catch off\ncatch on"),
            ("complete delete ", "delete 1"),
            ("complete condition 1 p.s", "condition 1 p.second"),
            ("complete help ign", "help ignore"),
            ("complete run x", ""),
            ("complete nothing x", ""),
            ("complete print ((gr", "print ((grid"),
            ("complete print nothing.", ""),
            ("complete print (.", ""),
            ("up", "#1   0x main (argc=4, argv=0x0) at values.cpp:28\n28\t  long long s = sum(*p, ref, pairs[1]);"),
            ("complete print der.", "print der.base\nprint der.own"),
            ("complete print pairs[1].s", "print pairs[1].second"),
            ("complete print p->f", "print p->first"),
            ("complete set arg", "set argc\nset argv"),
        ],
    );
    // Before it runs.
    place.check(&[], &[("complete print ns::", "print ns::Der::st\nprint ns::x"), ("complete print p.", "")]);
}

#[test]
fn attached_debuggers_complete_names() {
    let place = Place::new();
    let (mut program, _, address) = attachable(&place, &["--invoke", "main", "loops.wat"]);
    let port = address.rsplit(':').next().unwrap();
    let mut debugger = super::terminal::Terminal::start(&place, &["debug", "--connect", port]);
    debugger.expect("Paused");
    debugger.expect("(wasm-jit) ");
    debugger.send("tbr\ttur\t\r");
    debugger.expect("Temporary breakpoint 1: ");
    debugger.expect("(wasm-jit) ");
    debugger.send("print $cou\t\r");
    debugger.expect("print $count");
    debugger.expect("(wasm-jit) ");
    debugger.send("quit\r");
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn watchpoints_of_a_run_that_was_killed_begin_anew() {
    let place = Place::new();
    place.points();
    let recorded =
        place.command(&["record", "-o", "p.trace", "--invoke", "main", "points.wasm", "3"]).output().unwrap();
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    for program in [&["--replay", "p.trace", "points.wasm"][..], &["--invoke", "main", "points.wasm", "3"]] {
        let commands = [
            "break add",
            "run",
            "watch total",
            "delete 1",
            "continue",
            "continue",
            "kill",
            "run",
            "print total",
        ];
        let answers = place.answers(&commands, program);
        for at in [4, 7] {
            assert!(answers[at].starts_with("Watchpoint 2: total\n  old: 5\n  new: 8\n"), "{answers:?}");
        }
        assert_eq!(answers[8], "8");
    }
}

/// The rows of a function's declaration begin before its first instruction.
#[test]
fn lines_of_declarations_are_places() {
    let place = Place::new();
    place.points();
    let commands = ["break points.c:5", "run", "list points.c:5", "list 2,3", "list 3,2", "list 0,2"];
    let answers = place.answers(&commands, &["--invoke", "main", "points.wasm", "2"]);
    assert_eq!(answers[0], "Breakpoint 1: 0x add at points.c:6", "{answers:?}");
    assert!(answers[2].starts_with("1\tstruct point") && answers[2].lines().count() == 10, "{answers:?}");
    assert_eq!(answers[3].lines().map(|line| &line[..2]).collect::<Vec<_>>(), ["2\t", "3\t"], "{answers:?}");
    assert_eq!(answers[4..], ["`3,2` are no lines FIRST,LAST", "`0,2` are no lines FIRST,LAST"]);
}

#[test]
fn pointers_characters_and_locals_are_shown_as_by_gdb() {
    let place = Place::new();
    place.points();
    let commands = [
        "break points.c:19",
        "run",
        "print a.next",
        "print name",
        "print *name",
        "print name[0] + 1",
        "print &total",
        "print a == b",
        "print a != a",
        "print !a",
        "info locals",
    ];
    let answers = place.answers(&commands, &["--invoke", "main", "points.wasm", "2"]);
    assert_eq!(
        answers[2..8],
        ["0x", "0x \"one\"", "111 'o'", "112", "0x", "a structure is no operand: name its members"],
        "{answers:?}"
    );
    assert_eq!(answers[8], answers[7]);
    let names: Vec<&str> = answers[10].lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["n", "b", "a", "name", "way", "first", "second"], "{answers:?}");
}
