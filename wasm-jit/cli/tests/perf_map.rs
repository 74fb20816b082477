//! The map of names for perf, whose path can be predicted by others.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

#[test]
fn a_link_in_place_of_the_map_is_not_followed() {
    let place = TempDir::new().unwrap();
    let other = place.path().join("other");
    fs::write(&other, "contents").unwrap();
    fs::write(place.path().join("app.wat"), r#"(module (func (export "_start")))"#).unwrap();
    // The shell's process becomes that of the command.
    let line = r#"ln -sfn "$PWD/other" /tmp/perf-$$.map && echo $$ && exec "$0" run --perf-map app.wat"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", line, env!("CARGO_BIN_EXE_wasm-jit")]).current_dir(place.path());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let map = format!("/tmp/perf-{}.map", String::from_utf8(output.stdout).unwrap().trim());
    let written = fs::read_to_string(&map).unwrap();
    let is_link = fs::symlink_metadata(&map).unwrap().is_symlink();
    fs::remove_file(map).unwrap();
    assert!(!is_link && written.contains("function[0]"), "{written}");
    assert_eq!(fs::read_to_string(other).unwrap(), "contents");
}
