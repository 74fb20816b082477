//! The commands of `docs/cheat-sheet.md`, in order, in a directory with the files that it assumes.

use std::env;
use std::fs;
use std::path::Path;

use tests::{bare, ensure_built, repo_root, run};

/// With an argument, the program waits until it is killed.
const NATIVE: &str = "\
#include <unistd.h>
__attribute__((noinline)) int work(int n) { return n * 3; }
int main(int argc, char **argv) {
    volatile int sum = 0;
    for (int n = 0; n < 1000; n++) sum += work(n);
    while (argc > 1) pause();
    (void)argv;
    return 0;
}
";

const WASM: &str = r#"(module
    (memory (export "memory") 1)
    (func $work (export "work") (param i32) (result i32) (i32.mul (local.get 0) (i32.const 3)))
    (func (export "_start") (drop (call $work (i32.const 7)))))"#;

/// The commands of a document: its indented lines.
fn commands(document: &str) -> Vec<&str> {
    document.lines().filter_map(|line| line.strip_prefix("    ")).collect()
}

/// A script that executes the commands. A command in the background is killed in the end.
fn script(commands: &[&str]) -> String {
    let mut script = String::from("trap 'kill $(jobs -p)' EXIT\n");
    for command in commands {
        script += &format!("echo '--- '{}\n{command}\n", shell_quoted(command));
    }
    script
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[test]
fn the_commands_of_the_cheat_sheet_work() {
    let built = ensure_built();
    let document = fs::read_to_string(repo_root().join("docs/cheat-sheet.md")).unwrap();
    let commands = commands(&document);
    assert!(commands.len() >= 17, "{commands:?}");
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("app.c"), NATIVE).unwrap();
    fs::write(place.path().join("app.wat"), WASM).unwrap();
    let path = format!("{}:{}", built.display(), env::var("PATH").unwrap_or_default());
    let mut shell = bare(Path::new("bash"), &["-eu", "-c", &script(&commands)]);
    shell.current_dir(place.path()).env("PATH", path);
    let ran = run(&mut shell);
    assert!(ran.status.success(), "{}\n{}\n{}", ran.status, String::from_utf8_lossy(&ran.stdout), ran.stderr);
    let read = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
    for (file, expected) in [
        ("app.csv", "work"),
        ("work.json", r#""name": "work""#),
        ("calls.json", "work"),
        ("out/hotness.json", "executed"),
    ] {
        assert!(read(file).contains(expected), "{file}: {}", read(file));
    }
    assert!(ran.stderr.contains("1 work"), "{}", ran.stderr);
}
