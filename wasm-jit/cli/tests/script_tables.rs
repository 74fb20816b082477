//! Tables in the reports of scripts.

use std::fs;
use std::process::Command;

/// A number that is negative in one place is not a count of a histogram.
#[test]
fn all_rows_of_a_table_have_its_columns() {
    const PROGRAM: &str = r#"(module
        (func $plus (param i32))
        (func $minus (param i32))
        (func (export "_start") (call $plus (i32.const 3)) (call $minus (i32.const -2))))"#;
    const SCRIPT: &str = "wasm:func:entry(local0: i32) / fid < 2 / {
        report var sizes: map<log2, i32>;
        sizes[fid] = local0;
    }";
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("app.wat"), PROGRAM).unwrap();
    fs::write(folder.path().join("sizes.mm"), SCRIPT).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
    command.args(["run", "--monitors=sizes.mm", "--monitor-format=csv", "app.wat"]);
    let ran = command.current_dir(folder.path()).output().unwrap();
    let printed = String::from_utf8(ran.stderr).unwrap();
    let rows = printed.lines().skip_while(|line| !line.starts_with("key,value,"));
    let rows: Vec<_> = rows.take_while(|line| !line.is_empty()).collect();
    assert_eq!((ran.status.code(), rows.len()), (Some(0), 3), "{printed}");
    let columns = |row: &str| row.split(',').count();
    assert!(rows.iter().all(|row| columns(row) == columns(rows[0])), "{printed}");
    assert!(!rows[0].contains("share"), "{printed}");
}
