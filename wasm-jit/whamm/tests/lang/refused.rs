//! Scripts that are refused: the message, the position, and the rendering.

use wasm_jit_whamm::lang::{self, ProblemKind};

/// The script marks the position of the first problem with `«»`.
#[track_caller]
fn check(marked: &str, kind: ProblemKind, message: &str) {
    let start = marked.find('«').unwrap();
    let end = marked.find('»').unwrap() - '«'.len_utf8();
    let source = marked.replace(['«', '»'], "");
    let error = lang::compile("test.mm", source.as_bytes(), &[]).unwrap_err();
    let problem = &error.problems()[0];
    assert_eq!((problem.kind, problem.span.clone()), (kind, start..end), "{marked}: {error}");
    assert!(problem.message.contains(message), "{marked}: {}", problem.message);
    assert!(error.to_string().contains(message), "{error}");
}

#[test]
fn syntax() {
    use ProblemKind::{Limit, Rule, Syntax, Type, Unsupported};
    check("wasm:opcode:call:before { count++ «}»", Syntax, "expected `;`, found `}`");
    check("var x: i32 = «;»", Syntax, "expected an expression");
    check("var x: «int»;", Type, "unknown type `int`");
    check("var x: linear<«0»>;", Type, "the width of buckets");
    check("var x: linear<«u32»>;", Type, "the width of buckets");
    check("var «if»: i32;", Syntax, "the name of a variable");
    check("wasm:opcode:call:before { «»", Syntax, "the end of the script");
    check("«/*» open", Syntax, "comment does not end");
    check("var s: str = «\"»open", Syntax, "string does not end");
    check("var s: str = \"«\\q»\";", Syntax, "escape");
    check("var x: u64 = «99999999999999999999»;", Syntax, "64 bits");
    check("var x: i32 = 1 «#» 2;", Syntax, "unexpected character");
    check("wasm:opcode:call:before / fid == 1 «{» }", Syntax, "expected `/`");
    check("«a:b:c:d:e» { }", Rule, "provider:package:event:mode");
    check("unshared «shared» var x: i32;", Syntax, "one storage class");
    check("var m: map<i32, «map»<i32, i32>>;", Unsupported, "map of maps");
    check("x «+» 1;", Syntax, "expected `=`");
    check("«@once» var x: i32;", Syntax, "belongs to a rule");
    check("@once «@once» wasm:func:entry { }", Syntax, "a rule has one `@once`");
    check("@sample «wasm»:func:entry { }", Syntax, "expected `(`");
    check("@sample(«x»%) wasm:func:entry { }", Syntax, "expected a percentage");
    check("@sample(1«)» wasm:func:entry { }", Syntax, "expected `%`");
    check("@sample(«0»%) wasm:func:entry { }", Syntax, "more than 0.00000001");
    check("@sample(«0.1»us) wasm:func:entry { }", Syntax, "at least `1us`");
    check("@sample(10 «h») wasm:func:entry { }", Syntax, "`ms` or `s`");
    check("@sample(«3601»s) wasm:func:entry { }", Syntax, "at most an hour");
    check("«@sample(10ms)» wasm:func:entry { }", Unsupported, "tells monitors the time");
    check("@sample(«100.1»%) wasm:func:entry { }", Syntax, "at most 100");
    check("«@once» wasm:begin { }", Unsupported, "rules that match places");
    check("«@sample(1%)» wasm:end { }", Unsupported, "rules that match places");
    check("«@once» wasm:opcode:call:after { }", Unsupported, "not supported with the mode `after`");
    check(&format!("var x: i32 = {}«1»;", "(".repeat(128)), Limit, "levels deep");
}

#[test]
fn type_parameters() {
    use ProblemKind::{Limit, Name, Rule, Syntax, Type};
    check("wasm:opcode:call<T«>»(arg0: T):before { }", Syntax, "expected `:`");
    check("wasm:opcode:call<T: «i32»>(arg0: T):before { }", Type, "there is no class of types `i32`");
    check("wasm:opcode:call<«T»: int>(arg0: i32):before { }", Type, "is not the type of a value");
    check("wasm:opcode:call<«u8»: int>(arg0: u8):before { }", Name, "`u8` is a type");
    check("wasm:opcode:call<T: int>:before«<»U: int>(arg0: T) { }", Rule, "declared once");
    check("wasm:opcode:call<T: int>(arg0: T):before«<»T: int> { }", Rule, "declared once");
    check("wasm:opcode:call<T: int, «T»: int>(arg0: T):before { }", Name, "declared twice");
    check("wasm:opcode:call<A: int, B: int, C: int, «D»: int>(arg0: A):before { }", Limit, "at most 3");
    check("wasm:opcode:call<T: int>(arg0: T):before { } var x: «T»;", Type, "unknown type `T`");
    check(
        "wasm:opcode:drop<T: numeric>(arg0: T):before { var x: T = «arg0 | 1»; }",
        Type,
        "`f32`, where T = f32",
    );
    let distinct = "wasm:opcode:call<T: int, U: int>(arg0: T, arg1: U):before { var x: T = «arg0 + arg1»; }";
    check(distinct, Type, "a `i32` and a `i64`, where T = i32, U = i64");
    check("«wasm:opcode:i32.add<T: float>(arg0: T):before» { }", ProblemKind::Rule, "can never hold");
    check(
        "wasm:opcode:drop<T: int>(«arg0»: T, arg1: T):before { }"
            .replace("«arg0»", "arg0")
            .replace("arg1", "«arg1»")
            .as_str(),
        ProblemKind::Rule,
        "has no `arg1`",
    );
}

#[test]
fn references() {
    use ProblemKind::{Name, Type};
    check(
        "wasm:opcode:call_indirect:before { report var «f»: funcref; }",
        Type,
        "does not outlive the event",
    );
    check(
        "wasm:opcode:call_indirect:before { unshared var «f»: funcref; }",
        Type,
        "does not outlive the event",
    );
    check("frame var «f»: funcref;", Type, "does not outlive the event");
    check("var «f»: map<u32, (u32, funcref)>;", Type, "does not outlive the event");
    check(
        "wasm:opcode:call_indirect:before { var f: funcref; var x: i32 = resolve_funcref(f, «0»); }",
        Type,
        "`table_entry_idx`",
    );
    check(
        "wasm:opcode:call:before { drop_args(); }".replace("drop_args", "«drop_args»").as_str(),
        ProblemKind::Rule,
        "`alt` and `block_alt`",
    );
    check("wasm:opcode:br:before { var x: u32 = «targets»[0]; }", Name, "there is no map `targets`");
    check(
        "wasm:opcode:br_table:before { var x: u32 = «targets»; }",
        ProblemKind::Unsupported,
        "`targets` is not supported",
    );
}

/// The rest of a rule with a problem is skipped, up to the brace that closes it.
#[test]
fn each_problem_of_syntax_is_reported_once() {
    for body in [
        "report var n: u64; n += 1; n++;",
        "if (fid == 1) { n++; } else if (fid == 2) { n++; }",
        "var x: f64 = .5; while (true) { n++; }",
        "report var m: map<u32, u32; m[0]++;",
        "if (fid == 1) { n += 1; } n++;",
        "n = ; n++;",
        "{ n++; }",
    ] {
        let script = format!("var n: u64; wasm:func:entry {{ {body} }}");
        for (script, count) in [(&script, 1), (&format!("{script} fn f() {{ n +; }}"), 2)] {
            let error = lang::compile("test.mm", script.as_bytes(), &[]).unwrap_err();
            assert_eq!(error.problems().len(), count, "{error}");
        }
    }
    // The problem is the brace itself.
    for script in ["wasm:func:entry { var x: u32 = } wasm:func:exit { y }", "fn f( { x } fn g( { y }"] {
        let error = lang::compile("test.mm", script.as_bytes(), &[]).unwrap_err();
        assert_eq!(error.problems().len(), 2, "{error}");
    }
}

#[test]
fn help_names_what_there_is() {
    let check = |script: &str, expected: &str| {
        let error = lang::compile("test.mm", script.as_bytes(), &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("@foo wasm:func:entry { }", "those of rules are `@once`, `@sample(1%)` and `@toggle`");
    check(
        "var n: u32; wasm:func:entry { var t: (u32, str); n = t.1.len(); }",
        "only variables have functions, not the fields of tuples",
    );
    check("var y: u64; wasm:begin { y = ns; }", "`wasm-jit whamm info wasm:begin` lists");
    let error = lang::Script::native("test.mm", b"var y: u64; native:begin { y = ns; }").unwrap_err();
    assert!(error.to_string().contains("`wasm-jit whamm info native:begin` lists"), "{error}");
}

/// They would hide the operands in all rules.
#[test]
fn variables_of_scripts_have_no_names_of_operands() {
    use ProblemKind::Name;
    check("report var «arg0»: u32 = 42; wasm:func:entry { }", Name, "`arg0` is bound by events");
    check("wasm:func:entry { var «local1»: u32; }", Name, "`local1` is bound by events");
    assert!(lang::compile("test.mm", b"report var args: u32; report var arg: u32;", &[]).is_ok());
}

#[test]
fn names_and_rules() {
    use ProblemKind::{Name, Rule, Syntax, Unsupported};
    check("wasm:opcode:call:before { «count»++; }", Name, "no variable `count`");
    check(
        "wasm:opcode:nop|unreachable(«arg0»: i32):before { }",
        Rule,
        "`wasm:opcode:unreachable:before` has no `arg0`",
    );
    check("var x: i32; var «x»: i32;", Name, "declared twice");
    check("fn f() { } fn «f»() { }", Name, "defined twice");
    check("wasm:begin { «f»(); }", Name, "no function `f`");
    check("use «x»;", Name, "no library `x`");
    check("«wasm:opcode:cal:before» { }", Rule, "matches nothing");
    check("«wasm:opcode:call» { }", Rule, "matches nothing");
    check("«jvm:opcode:call:before» { }", Rule, "matches nothing");
    check("«wasm:opcode:call:alt» { }", Unsupported, "the mode `alt`");
    check("«wasm:opcode:block:block_alt» { }", Unsupported, "the mode `block_alt`");
    check("«wasm:opcode:call:block_alt» { }", Rule, "matches nothing");
    check("«wasm:opcode:br:alt» { }", Rule, "matches nothing");
    check("«wasm:opcode:call:entry» { }", Rule, "matches nothing");
    check("«wasm:opcode:br:after» { }", Rule, "matches nothing");
    check("wasm:opcode:i32.add:after { var x: i32 = «arg0»; }", Name, "no variable `arg0`");
    check("wasm:opcode:i32.add:before { var x: i32 = «res0»; }", Name, "no variable `res0`");
    check("wasm:opcode:i32.store:after { var x: i32 = «res0»; }", Name, "no variable `res0`");
    check("wasm:opcode:br_if(«local0»: i32):semantic_after { }", Rule, "no `local0`");
    check("wasm:func:exit(«local0»: i32) { }", Rule, "no `local0`");
    check("wasm:opcode:call(«imm5»: i32):before { }", Rule, "no `imm5`");
    check("«wasm:opcode:i32.add(arg0: i64):before» { }", Rule, "can never hold");
    check("wasm:begin { var x: u32 = «fid»; }", Name, "no variable `fid`");
    check(
        "wasm:opcode:call_indirect:before { var x: str = «target_fn_name»; }",
        Unsupported,
        "not told to monitor modules",
    );
    check("wasm:begin { var x: str = «fname»; }", Name, "`fname`");
    check("wasm:func:entry { var x: bool = fname.«resembles»(\"a\"); }", Name, "no function `resembles`");
    check(
        "var h: map<log2, u64>; wasm:func:entry(local0: i32) { h[«local0»]++; }",
        ProblemKind::Type,
        "expected a `log2`, this is a `i32`",
    );
    check("var s: stack; wasm:begin { var x: u32 = «s as u32»; }", ProblemKind::Type, "cannot be converted");
    check("wasm:opcode:drop(«arg0»: log2):before { }", ProblemKind::Type, "the type of a number");
    check("wasm:func:entry { var x: bool = «fid».len(); }", ProblemKind::Type, "no functions");
    check("wasm:opcode:call:before { «arg0» = 1; }", ProblemKind::Type, "differs from place to place");
    check("wasm:opcode:br_if:before { «arg0» = 1; }", Name, "cannot be changed");
    check("wasm:begin { frame var «start»: u32; }", Name, "belongs to rules");
    check("fn f() { frame var «start»: u32; }", Name, "belongs to rules");
    check("wasm:func:entry { report frame var «start»: u32; }", Name, "cannot be reported");
    check("frame var «m»: map<u32, u32>;", Unsupported, "a map");
    check("frame var n: u32; fn f() { «n» = 1 as u32; }", Name, "no frame here");
    check("frame var n: u32; fn f() -> u32 { return «n»; }", Name, "no frame here");
    check("frame var n: u32; wasm:end { «n»++; }", Name, "no frame here");
    check("unshared var «x»: u32;", Name, "belongs to rules");
    check("wasm:begin { «break;» }", Syntax, "not inside of a loop");
    check("«return;»", Syntax, "not inside of a function or rule");
    check("fn f() { report var «x»: i32; }", Name, "not reported");
}

#[test]
fn types() {
    use ProblemKind::{Limit, Type, Unsupported};
    check("var x: i32 = «true»;", Type, "expected a `i32`, this is a `bool`");
    check("var x: u8 = «256»;", Type, "not in the range");
    check("var x: u8 = «-1»;", Type, "not in the range");
    check("var a: i32; var b: u32; wasm:begin { a = «a + b»; }", Type, "a `i32` and a `u32`");
    check("wasm:opcode:br_if:before { if («arg0») { } }", Type, "a condition is a `bool`");
    check("wasm:opcode:br_if:before / «pc» / { }", Type, "a condition is a `bool`");
    check("var t: (i32, i32); var x: i32 = «t.2»;", Type, "no field 2");
    check("var x: i32; var y: i32 = «x.0»;", Type, "no field 0");
    check("var x: i32; var y: i32 = «x»[0];", Type, "not a map");
    check("var m: map<i32, i32>; var n: map<i32, i32>; wasm:begin { «m» = n; }", Type, "cannot be assigned");
    check("var m: map<i32, i32>; var y: i32 = m[«true»];", Type, "expected a `i32`");
    check("wasm:begin { var «m»: map<i32, i32>; }", Unsupported, "longer than a block");
    check("fn «f»() -> i32 { }", Type, "does not return");
    check("fn «f»(x: bool) -> i32 { if (x) { return 1; } }", Type, "does not return");
    check("fn f() -> i32 { return «true»; }", Type, "expected a `i32`");
    check("fn f(x: i32) { } wasm:begin { «f»(); }", Type, "1 parameter,");
    check(
        "var s: str; wasm:begin { «s + s»; }".replace("«s + s»;", "s = «s + s»;").as_str(),
        Type,
        "no meaning",
    );
    check("var b: bool; wasm:begin { «b»++; }", Type, "a number is expected");
    check(
        "wasm:opcode:br_if:before { unshared var x: u32 = «arg0»; }",
        Type,
        "depends on the program's execution",
    );
    check("wasm:opcode:br_if:before { shared var x: u32 = «pc»; }", Type, "belongs to no place");
    check("wasm:func:entry { frame var x: u32 = «fid»; }", Type, "belongs to no place");
    check("wasm:func:entry { frame var x: u32; } wasm:func:exit { frame var «x»: i32; }", Type, "elsewhere");
    check(
        "var «x»: (i64, (i64, i64, i64, i64, i64, i64, i64, i64), i64, i64, i64, i64, i64, i64, i64, i64);",
        Limit,
        "16 components",
    );
}

#[test]
fn all_problems_are_reported_in_order() {
    let source = "var a: int;\nwasm:begin { b++ }\nvar c: foo;\n";
    let error = lang::compile("test.mm", source.as_bytes(), &[]).unwrap_err();
    let starts: Vec<_> = error.problems().iter().map(|problem| problem.span.start).collect();
    assert_eq!(starts, [7, 29, 38]);
}

#[test]
fn rendering() {
    let source = "// Counts.\nwasm:opcode:br_if:before {\n  if (arg0) { }\n}\n";
    let error = lang::compile("count.mm", source.as_bytes(), &[]).unwrap_err();
    let expected = "\
error: a condition is a `bool`, this is a `u32`
 --> count.mm:3:7
  |
3 |   if (arg0) { }
  |       ^^^^
  |
  = help: compare it, for instance with `!= 0`";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn fields_of_tuples_in_maps_are_read_through_variables() {
    let script = "var m: map<u32, (u32, u32)>; var n: u32; wasm:func:entry { n = m[1].0; }";
    let error = lang::compile("test.mm", script.as_bytes(), &[]).unwrap_err().to_string();
    assert!(error.contains("expected an operator, found `.`"), "{error}");
    assert!(error.contains("help: assign the tuple to a variable, whose fields can be read"), "{error}");
    let script = script.replace("n = m[1].0;", "var t: (u32, u32); t = m[1]; n = t.0;");
    assert!(lang::compile("test.mm", script.as_bytes(), &[]).is_ok());
}

#[test]
fn info_describes_events() {
    let events = lang::info("wasm:opcode:*.load:before").unwrap();
    let names: Vec<_> = events.iter().map(|event| event.event.as_str()).collect();
    let expected = ["i32.atomic", "i64.atomic", "i32", "i64", "f32", "f64", "v128"];
    assert_eq!(names, expected.map(|name| format!("wasm:opcode:{name}.load:before")));
    let bound = |name: &str| {
        let bound = events[2].bound.iter().find(|bound| bound.name == name);
        bound.map(|bound| (bound.ty.as_str(), bound.is_static))
    };
    assert_eq!(bound("effective_addr"), Some(("u32", false)));
    assert_eq!(bound("data_size"), Some(("u32", true)));
    assert_eq!(bound("offset"), Some(("u64", true)));
    assert_eq!(bound("local0"), Some(("by type bound", false)));
    assert_eq!(bound("taken"), None);
    assert!(lang::info("wasm:opcode:nothing:before").is_err());
    // Type bounds are as in a script.
    for (rule, matches) in [
        ("wasm:opcode:*load*(arg0: f32):before", false),
        ("wasm:opcode:*load*(foo: f32):before", false),
        ("wasm:opcode:*(arg0: i32, arg1: i32):before", true),
        ("wasm:func:entry(local0: i64)", true),
    ] {
        assert_eq!(lang::info(rule).is_ok(), matches, "{rule}");
        let script = lang::compile("test.mm", format!("{rule} {{ }}").as_bytes(), &[]);
        assert_eq!(script.is_ok(), matches, "{rule}");
    }
    let events = lang::info("wasm:opcode:*(arg0: i32, arg1: i32):before").unwrap();
    assert!(events.iter().all(|event| event.event != "wasm:opcode:i32.clz:before"));
    assert!(events.iter().any(|event| event.event == "wasm:opcode:i32.add:before"));
    let wide = lang::info("wasm:opcode:i32.load(arg0: u64):before").unwrap().remove(0);
    assert!(wide.bound.iter().any(|bound| bound.name == "arg0" && bound.ty == "u64"));
    assert!(lang::info("wasm:opcode:call:before { }").is_err());
}

#[test]
fn a_byte_order_mark_is_ignored() {
    let script = "\u{feff}report var n: u32; wasm:func:entry { n++; }";
    assert!(lang::compile("test.mm", script.as_bytes(), &[]).is_ok());
}

#[test]
fn examples_of_bounds_are_rules_of_the_same_event() {
    #[track_caller]
    fn check(rule: &str, name: &str, expected: &str) {
        let script = format!("var n: u32; {rule} {{ n = {name}; }}");
        let error = lang::compile("test.mm", script.as_bytes(), &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("give the rule a type bound: `{expected}`")), "{error}");
    }
    check("wasm:func:entry", "local0", "wasm:func:entry(local0: i32)");
    check("wasm:opcode:call:after", "res0", "wasm:opcode:NAME(res0: i32):after");
    check("wasm:opcode:call:before", "arg0", "wasm:opcode:NAME(arg0: i32):before");
}
