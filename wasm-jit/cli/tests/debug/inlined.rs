//! Frames of calls that the compiler has inlined.

use super::Place;

/// The program: `outer` calls `middle` twice, which calls `inner`, which calls `leaf`; only `outer`
/// and `leaf` are functions of the code.
const PROGRAM: [&str; 3] = ["--invoke", "go", "inlined.wasm"];

impl Place {
    fn inlined(&self) {
        self.compile(&["inlined.c"], &["-O0"], "inlined.wasm");
    }

    /// Checks the answers to commands.
    #[track_caller]
    fn check_inlined(&self, program: &[&str], expected: &[(&str, &str)]) {
        let commands: Vec<&str> = expected.iter().map(|(command, _)| *command).collect();
        let answers = self.answers(&commands, program);
        let found: Vec<(&str, &str)> = commands.into_iter().zip(answers.iter().map(String::as_str)).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn backtraces_have_the_frames_of_inlined_calls() {
    let place = Place::new();
    place.inlined();
    let backtrace = "\
#0   0x leaf (v=12) at inlined.c:2
#1   0x inner (a=6) at inlined.c:5 (inlined)
#2   0x middle (a=5, b=1) at inlined.c:9 (inlined)
#3   0x outer (n=5) at inlined.c:14
#4   0x go (n=5) at inlined.c:18";
    let source = std::fs::read_to_string(place.path("inlined.c")).unwrap();
    let numbered = source.lines().zip(1..=10).map(|(line, number)| format!("{number}\t{line}"));
    let listing = numbered.collect::<Vec<_>>().join("\n");
    let no_variable = |name: &str| format!("there is no variable, local or global `{name}`");
    place.check_inlined(
        &[&PROGRAM[..], &["5"]].concat(),
        &[
            ("break leaf", "Breakpoint 1: 0x leaf at inlined.c:2"),
            ("run", &format!("Breakpoint 1, 0x leaf at inlined.c:2\n{}", listing.lines().nth(1).unwrap())),
            ("backtrace", backtrace),
            ("backtrace 2", &(backtrace.lines().take(2).collect::<Vec<_>>().join("\n") + "\n(3 more)")),
            ("up", "#1   0x inner (a=6) at inlined.c:5 (inlined)\n5\t  return leaf(doubled);"),
            // Each frame has its own variables.
            ("info locals", "a = 6\ndoubled = 12"),
            ("print sum", &no_variable("sum")),
            ("set doubled = 13", ""),
            ("up", "#2   0x middle (a=5, b=1) at inlined.c:9 (inlined)\n9\t  sum += inner(sum);"),
            ("info locals", "a = 5\nb = 1\nsum = 6"),
            ("print a * 100 + b * 10 + sum", "516"),
            ("up", "#3   0x outer (n=5) at inlined.c:14\n14\t  a += middle(n, 1);"),
            ("info locals", "n = 5\na = 100"),
            ("print doubled", &no_variable("doubled")),
            ("up 5", "#4   0x go (n=5) at inlined.c:18\n18\t__attribute__((export_name(\"go\"))) int go(int n) { return outer(n); }"),
            ("up", "this is the outermost frame"),
            ("down 3", "#1   0x inner (a=6) at inlined.c:5 (inlined)\n5\t  return leaf(doubled);"),
            ("print doubled", "13"),
            ("frame 5", "there is no frame 5"),
            ("frame", "#1   0x inner (a=6) at inlined.c:5 (inlined)\n5\t  return leaf(doubled);"),
            ("list", &listing),
        ],
    );
}

#[test]
fn variables_of_inlined_calls_are_known_if_the_compiler_has_removed_them() {
    let place = Place::new();
    place.compile(&["removed.c"], &["-O1"], "removed.wasm");
    let commands = ["break leaf", "run", "up", "info locals", "print removed", "print missing"];
    let answers = place.answers(&commands, &["--invoke", "go", "removed.wasm", "5"]);
    let call = answers[2].lines().next().unwrap();
    let parameters = call.split(['(', ')']).nth(1).unwrap();
    let names: Vec<&str> = parameters.split(", ").map(|one| one.split('=').next().unwrap()).collect();
    assert_eq!(names, ["first", "unused", "last"], "{call}");
    assert!(parameters.contains("unused=?"), "{call}");
    let locals: Vec<&str> = answers[3].lines().collect();
    assert!(locals[0].starts_with("first = ") && locals[1] == "unused = <optimized out>", "{locals:?}");
    assert_eq!(locals[3], "removed = <optimized out>");
    assert_eq!(answers[4], "optimized out");
    assert_eq!(answers[5], "there is no variable, local or global `missing`");
}

#[test]
fn inlined_calls_are_stepped_into_over_and_out_of() {
    let place = Place::new();
    place.inlined();
    let line = |number: usize| {
        let text = std::fs::read_to_string(place.path("inlined.c")).unwrap();
        format!("{number}\t{}", text.lines().nth(number - 1).unwrap())
    };
    let at = |function: &str, number: usize| match function {
        "outer" => format!("0x outer at inlined.c:{number}\n{}", line(number)),
        _ => format!("0x {function} (inlined in outer) at inlined.c:{number}\n{}", line(number)),
    };
    let check = |expected: &[(&str, String)]| {
        let before = [("break outer", "Breakpoint 1: 0x outer at inlined.c:13".to_owned())];
        let run = [("run", format!("Breakpoint 1, {}", at("outer", 13)))];
        let all: Vec<(&str, &str)> = before
            .iter()
            .chain(&run)
            .chain(expected)
            .map(|(command, text)| (*command, text.as_str()))
            .collect();
        place.check_inlined(&[&PROGRAM[..], &["5"]].concat(), &all);
    };
    check(&[("next", at("outer", 14)), ("next", at("outer", 15)), ("next", at("outer", 16))]);
    check(&[
        ("next", at("outer", 14)),
        ("step", at("middle", 8)),
        ("next", at("middle", 9)),
        ("step", at("inner", 4)),
        ("next", at("inner", 5)),
        // The rest of the line of the call.
        ("next", at("middle", 9)),
        ("next", at("middle", 10)),
        ("next", at("outer", 14)),
        ("next", at("outer", 15)),
        // Each statement once.
        ("step", at("middle", 8)),
        ("step", at("middle", 9)),
        ("step", at("inner", 4)),
        ("finish", at("middle", 9)),
        ("finish", at("outer", 15)),
    ]);
    // Of frames further out, too.
    check(&[
        ("tbreak leaf if v == 14", "Temporary breakpoint 2: 0x leaf at inlined.c:2".to_owned()),
        ("continue", format!("Temporary breakpoint 2, 0x leaf at inlined.c:2\n{}", line(2))),
        ("frame 2", format!("#2   0x middle (a=5, b=2) at inlined.c:9 (inlined)\n{}", line(9))),
        ("finish", at("outer", 15)),
        ("reverse-finish", "the program does not go back: only a recorded run can".to_owned()),
    ]);
}

#[test]
fn watched_variables_are_those_of_the_inlined_call() {
    let place = Place::new();
    place.inlined();
    let answers = place.answers(
        &[
            "break inner",
            "run",
            "up",
            "watch sum",
            "up",
            "watch a",
            "delete 1",
            "continue",
            "continue",
            "continue",
        ],
        &[&PROGRAM[..], &["5"]].concat(),
    );
    let breakpoint = "Breakpoint 1: 0x inner (inlined in outer) at inlined.c:4, 0x inner (inlined in outer) at inlined.c:4";
    assert_eq!(answers[0], breakpoint);
    let begins = |at: usize, text: &str| assert!(answers[at].starts_with(text), "{answers:?}");
    // `middle` has a variable `a`, too.
    begins(7, "Watchpoint 2: sum\n  old: 6\n  new: 18\n");
    begins(8, "Watchpoint 2: sum\n  old: 18\n  new: <the inlined call is not active>\n");
    begins(9, "Watchpoint 3: a\n  old: 100\n  new: 118\n");
}

#[test]
fn going_back_steps_over_inlined_calls() {
    let place = Place::new();
    place.inlined();
    let record = [&["record", "-o", "i.trace"], &PROGRAM[..], &["5"]].concat();
    let recorded = place.command(&record).output().unwrap();
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let commands = [
        "break inlined.c:16",
        "run",
        "reverse-next",
        "reverse-next",
        "reverse-next",
        "tbreak inner",
        "continue",
        "reverse-finish",
        "reverse-step",
    ];
    let answers = place.answers(&commands, &["--replay", "i.trace", "inlined.wasm"]);
    let at = |index: usize| answers[index].lines().next().unwrap_or_default();
    assert_eq!(at(2), "0x outer at inlined.c:15", "{answers:?}");
    assert_eq!(at(3), "0x outer at inlined.c:14");
    assert_eq!(at(4), "0x outer at inlined.c:13");
    assert_eq!(at(6), "Temporary breakpoint 2, 0x inner (inlined in outer) at inlined.c:4");
    assert_eq!(at(7), "the call of the frame is inlined: select its caller, or reverse-step");
    assert_eq!(at(8), "0x middle (inlined in outer) at inlined.c:9");
}
