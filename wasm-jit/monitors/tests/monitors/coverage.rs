//! Coverage, checked by hand.

use std::process::Command;

use super::{Observed, integers, texts};
use wasm_jit::{Engine, Module};
use wasm_jit_monitors::{Output, Session};

const TEXT: &str = "(module (memory 1)
    (func $unused (drop (i32.const 1)))
    (func $divide (param i32) (result i32) (i32.div_u (i32.const 6) (local.get 0)))
    (func (export \"run\") (param i32)
        (if (i32.gt_s (local.get 0) (i32.const 2))
            (then (drop (call $divide (local.get 0))))
            (else (drop (call $divide (i32.const 0))) nop))))";

fn of_file(session: &Session, name: &str) -> String {
    let report = session.report("coverage").unwrap();
    let (_, contents) = report.files().iter().find(|(file, _)| file == name).unwrap();
    String::from_utf8(contents.clone()).unwrap()
}

#[test]
fn what_was_executed_is_covered() {
    let observed = Observed::by(TEXT, "coverage{branches}");
    observed.call("run", 3).unwrap();
    let report = observed.report("coverage");
    // local.get, i32.const, i32.gt_s, if, local.get, call, drop, else, end; four of $divide.
    assert_eq!(report.get("instructions_covered"), Some(9 + 4));
    // i32.const, call, drop, nop, end; three of $unused.
    assert_eq!(report.get("instructions"), Some(13 + 5 + 3));
    assert_eq!((report.get("outcomes_covered"), report.get("outcomes")), (Some(1), Some(2)));
    assert_eq!((report.get("functions_covered"), report.get("functions")), (Some(2), Some(3)));
    assert_eq!(texts(&report, "by_function", "function"), ["run", "divide", "unused"]);
    assert_eq!(integers(&report, "by_function", "instructions"), [14, 4, 3]);
    assert_eq!(integers(&report, "by_function", "executed"), [9, 4, 0]);
    assert_eq!(integers(&report, "by_function", "blocks"), [4, 1, 1]);
    assert_eq!(integers(&report, "by_function", "blocks executed"), [3, 1, 0]);
    // A trap: neither the end of $divide nor the drop.
    observed.call("run", 0).unwrap_err();
    assert_eq!(observed.report("coverage").get("instructions_covered"), Some(13 + 2));
    assert_eq!(observed.report("coverage").get("outcomes_covered"), Some(2));
}

#[test]
fn traps_cover_what_they_have_come_to() {
    let observed = Observed::by(TEXT, "coverage{branches}");
    observed.call("run", 0).unwrap_err();
    // Four and the if, i32.const, call; three of $divide.
    assert_eq!(observed.report("coverage").get("instructions_covered"), Some(4 + 2 + 3));
}

#[test]
fn coverage_is_complete_or_off() {
    let text = "(module (func (export \"run\") (param i32)
        (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let session = Session::new(&module, Output::none());
    session.enable("coverage{branches}".parse().unwrap()).unwrap();
    let observed = Observed { module, session };
    observed.call("run", 3).unwrap();
    let report = observed.report("coverage");
    assert_eq!(report.get("instructions_covered"), report.get("instructions"));
    assert_eq!(report.get("outcomes_covered"), Some(2));
    // While it is off, nothing is covered.
    let other = Observed::by(TEXT, "coverage{branches}");
    other.session.disable("coverage").unwrap();
    other.call("run", 3).unwrap();
    other.call("run", 0).unwrap_err();
    assert_eq!(other.report("coverage").get("instructions_covered"), Some(0));
    other.session.enable("coverage{branches}".parse().unwrap()).unwrap();
    other.call("run", 3).unwrap();
    assert_eq!(other.report("coverage").get("instructions_covered"), Some(13));
}

#[test]
fn files_have_lines_of_the_text() {
    let observed = Observed::by(TEXT, "coverage{branches}");
    observed.call("run", 3).unwrap();
    let lcov = of_file(&observed.session, "lcov.info");
    assert!(lcov.starts_with("TN:\nSF:coverage.listing.wat\n"), "{lcov}");
    let count = |start: &str| lcov.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((count("FN:"), count("FNDA:1,"), count("FNDA:0,unused")), (3, 2, 1));
    assert_eq!(count("DA:"), 21);
    assert!(lcov.contains("\nLF:21\nLH:13\n"), "{lcov}");
    assert!(lcov.contains(",0,0,1\n") && lcov.contains(",0,1,0\n"), "{lcov}");
    let listing = of_file(&observed.session, "listing.wat");
    let covered =
        lcov.lines().filter_map(|line| line.strip_prefix("DA:")?.strip_suffix(",1")?.parse::<usize>().ok());
    for line in covered {
        assert!(listing.lines().nth(line - 1).unwrap().trim_start().starts_with("1 "), "{line}: {listing}");
    }
    let xml = of_file(&observed.session, "cobertura.xml");
    assert!(
        xml.contains("lines-covered=\"13\" lines-valid=\"21\" branches-covered=\"1\" branches-valid=\"2\"")
    );
    assert!(xml.contains("condition-coverage=\"50% (1/2)\""));
    for tag in ["coverage", "sources", "packages", "package", "classes", "class", "methods", "lines"] {
        let open = xml.matches(&format!("<{tag}>")).count() + xml.matches(&format!("<{tag} ")).count();
        assert_eq!(open, xml.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn files_have_functions_with_empty_bodies() {
    let text = "(module (func $empty) (func $unused) (func $local (local i32))
        (func (export \"run\") (param i32) (call $empty) (call $local)))";
    let observed = Observed::by(text, "coverage");
    observed.call("run", 0).unwrap();
    let lcov = of_file(&observed.session, "lcov.info");
    let listing = of_file(&observed.session, "listing.wat");
    let line =
        |name: &str| 1 + listing.lines().position(|line| line.contains(&format!("(func {name}"))).unwrap();
    for (name, hits) in [("$empty", 1), ("$unused", 0)] {
        let found = format!("FN:{},{}\n", line(name), &name[1..]);
        assert!(lcov.contains(&found), "{found}{lcov}");
        assert!(lcov.contains(&format!("DA:{},{hits}\n", line(name))), "{name}: {lcov}");
    }
    assert!(lcov.contains("\nFNF:4\nFNH:3\n"), "{lcov}");
    assert_eq!(of_file(&observed.session, "cobertura.xml").matches("<method ").count(), 4);
}

#[test]
fn source_lines_are_covered() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/lines.c"), directory.path().join("a"));
    let mut clang = Command::new("clang");
    clang
        .args(["--target=wasm32", "-nostdlib", "-O0", "-g", "-Wl,--no-entry", "-o"])
        .arg(&program)
        .arg(source);
    assert!(clang.status().expect("clang can be started").success());
    let module = Module::from_file(&Engine::default(), program).unwrap();
    let session = Session::new(&module, Output::none());
    session.enable("coverage{branches}".parse().unwrap()).unwrap();
    let observed = Observed { module, session };
    observed.call("run", 3).unwrap();
    let report = observed.report("coverage");
    assert_eq!(texts(&report, "files", "file"), [source]);
    let lcov = of_file(&observed.session, "lcov.info");
    assert!(lcov.starts_with(&format!("TN:\nSF:{source}\n")), "{lcov}");
    for line in [
        "FN:7,run",
        "FNDA:1,run",
        "FNDA:0,unused",
        "DA:4,0",
        "DA:8,1",
        "DA:9,1",
        "DA:10,1",
        "DA:11,0",
        "DA:13,1",
    ] {
        assert!(lcov.lines().any(|found| found == line), "{line}: {lcov}");
    }
    let annotated = of_file(&observed.session, "source.txt");
    for line in
        ["  0     11              sum += unused(i);", "  1     13              sum += 1;", "         2  "]
    {
        assert!(annotated.lines().any(|found| found == line), "{line}: {annotated}");
    }
    assert_eq!(report.get("lines"), Some(lcov.matches("\nDA:").count() as u64));
}

#[test]
fn runs_are_merged() {
    let directory = tempfile::tempdir().unwrap();
    let module = Module::new(&Engine::default(), TEXT).unwrap();
    let session = Session::new(&module, Output::directory(directory.path()).unwrap());
    session.enable("coverage{branches}".parse().unwrap()).unwrap();
    let first = Observed { module: module.clone(), session };
    first.call("run", 3).unwrap();
    first.session.write().unwrap();
    let file = directory.path().join("coverage.json");
    let request = format!("coverage{{branches,merge={}}}", file.display());
    let second = Observed::by(TEXT, &request);
    assert_eq!(second.report("coverage"), {
        let report = first.report("coverage");
        assert_eq!(report.get("instructions_covered"), Some(13));
        report
    });
    second.call("run", 0).unwrap_err();
    assert_eq!(second.report("coverage").get("instructions_covered"), Some(15));
    assert_eq!(second.report("coverage").get("outcomes_covered"), Some(2));

    let refused = |text: &str, request: &str| {
        let session = Session::new(&Module::new(&Engine::default(), text).unwrap(), Output::none());
        session.enable(request.parse().unwrap()).unwrap_err().to_string()
    };
    let error = refused("(module (func))", &request);
    assert!(error.contains("of the same module"), "{error}");
    let error = refused(TEXT, "coverage{merge=/nonexistent}");
    assert!(error.contains("is not a file that can be read"), "{error}");
    first.session.disable("coverage").unwrap();
    first.session.enable("coverage{rows=1}".parse().unwrap()).unwrap();
    first.session.write().unwrap();
    let error = refused(TEXT, &request);
    assert!(error.contains("is not a report with the outcomes of branches"), "{error}");
    Observed::by(TEXT, &request.replace("branches,", ""));
    std::fs::write(&file, "{\"monitor\": \"hotness\"}").unwrap();
    let error = refused(TEXT, &request);
    assert!(error.contains("is not the JSON report of `coverage`"), "{error}");
}

/// Instructions on objects may trap in the middle of a block.
#[test]
fn traps_of_objects_cover_what_they_have_come_to() {
    for (body, executed) in [
        ("(drop (struct.get $s 0 (ref.cast (ref null $s) (local.get 0)))) nop nop", 3),
        ("(drop (array.len (ref.cast (ref null $a) (local.get 0)))) nop nop", 3),
        ("(drop (array.get $a (ref.cast (ref null $a) (local.get 0)) (i32.const 1))) nop nop", 4),
        ("(drop (ref.cast (ref $s) (local.get 0))) nop nop", 2),
        ("(drop (i31.get_s (ref.cast (ref null i31) (local.get 0)))) nop nop", 3),
    ] {
        let text = format!(
            "(module (type $s (struct (field i32))) (type $a (array i32))
                (func $object (param anyref) {body})
                (func (export \"run\") (param i32) (call $object (ref.null any))))"
        );
        let observed = Observed::by(&text, "coverage{function=object}");
        assert!(observed.call("run", 0).is_err(), "{body}");
        assert_eq!(observed.report("coverage").get("instructions_covered"), Some(executed), "{body}");
    }
}
