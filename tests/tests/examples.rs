//! The examples of the crates: each is built and run as described in its first comment, and prints
//! the output given there.
//!
//! READMEs and guides show some of them verbatim. Their links resolve.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::{bare, ensure_built, ensure_preload, repo_root, run, target_release_dir};

/// Crates with examples. Their READMEs show some of them.
const CRATES: [&str; 4] = ["wordpatch", "callpatch", "fastinst", "wasm-jit"];

/// Crates with examples, whose READMEs refer to them.
const REFERRING: [&str; 6] =
    ["profiler", "wasm-jit/debug", "wasm-jit/hooks", "wasm-jit/replay", "wasm-jit/wasi", "wasm-jit/whamm"];

/// The examples that are programs; `library.c` is loaded by `probes.rs`.
fn examples(extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = CRATES
        .iter()
        .chain(&REFERRING)
        .flat_map(|name| {
            fs::read_dir(repo_root().join(name).join("examples")).expect("every crate has examples")
        })
        .map(|entry| entry.expect("a folder can be read").path())
        .filter(|path| path.extension() == Some(OsStr::new(extension)))
        .filter(|path| path.file_stem() != Some(OsStr::new("library")))
        .collect();
    found.sort();
    found
}

/// Crates that are an example each.
fn example_crates() -> Vec<PathBuf> {
    let folders = fs::read_dir(repo_root().join("examples")).expect("the folder is there");
    folders.map(|folder| folder.expect("a folder can be read").path().join("src/main.rs")).collect()
}

/// The output that the first comment of an example states: the block after "Prints:", without
/// comment markers, and in Rust between fences.
fn promised(source: &str) -> String {
    let comment = |line: &str| {
        let line = line.strip_prefix("//!").or_else(|| line.strip_prefix(" *"))?;
        Some(line.strip_prefix(' ').unwrap_or(line).to_owned())
    };
    let lines: Vec<String> = source.lines().skip_while(|line| *line == "/*").map_while(comment).collect();
    let start = lines.iter().position(|line| line.ends_with("Prints:")).expect("the comment has the output");
    let block = &lines[start + 1..];
    let mut text: Vec<&str> = match block.iter().position(|line| line.starts_with("```")) {
        Some(fence) => {
            block[fence + 1..].iter().map(String::as_str).take_while(|line| *line != "```").collect()
        }
        None => {
            block.iter().map(|line| line.trim()).filter(|line| !line.is_empty() && *line != "/").collect()
        }
    };
    text.push("");
    text.join("\n")
}

#[track_caller]
fn check(example: &Path, command: &mut Command) {
    let source = fs::read_to_string(example).expect("an example can be read");
    let ran = run(command.env("FASTINST_CALIBRATION", "none"));
    let what = example.display();
    assert!(ran.status.success() && ran.stderr.is_empty(), "{what}: {}\n{}", ran.status, ran.stderr);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), promised(&source), "{what}");
}

/// Compiles C without warnings with either compiler, as the example's comment instructs.
fn compile(compiler: &str, source: &Path, flags: &[&str], binary: &Path) {
    let include = repo_root().join("fastinst/include");
    let output = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-std=gnu11", "-I"])
        .arg(include)
        .arg(source)
        .args(flags)
        .arg("-o")
        .arg(binary)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} (scripts/install-packages.sh installs it): {error}"));
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && messages.is_empty(), "{compiler} {}:\n{messages}", source.display());
}

#[test]
fn examples_in_rust_print_the_documented_output() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    ensure_built();

    for example in example_crates() {
        let name = example.ancestors().nth(2).and_then(Path::file_name).expect("a folder has a name");
        check(&example, &mut bare(&target_release_dir().join(name), &[]));
    }

    let library = folder.path().join("library.so");
    let flags = ["-fno-inline", "-shared", "-fPIC", "-finstrument-functions"];
    compile("gcc", &repo_root().join("fastinst/examples/library.c"), &flags, &library);
    let found = examples("rs");
    assert!(found.len() >= 13, "{found:?}");
    for example in found {
        let name = example.file_stem().expect("a file has a name");
        let mut command = bare(&target_release_dir().join("examples").join(name), &[]);
        if name == "probes" {
            command.arg(&library);
        }
        check(&example, &mut command);
    }
}

#[test]
fn examples_in_c_print_the_documented_output() {
    ensure_preload();
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let libraries = target_release_dir().canonicalize().expect("the library was built");
    let libraries = libraries.to_str().expect("a UTF-8 path");
    let path = format!("-Wl,-rpath,{libraries}");
    let flags = ["-pthread", "-finstrument-functions", "-L", libraries, "-lfastinst", &path];
    let found = examples("c");
    assert!(found.len() >= 2, "{found:?}");
    for example in found {
        for compiler in ["gcc", "clang"] {
            let binary = folder.path().join(compiler);
            compile(compiler, &example, &flags, &binary);
            check(&example, bare(&binary, &[]).env("FASTINST_OPTIONS", "tool=none"));
        }
    }
}

/// An example without its first comment.
fn body(source: &str) -> String {
    let is_comment =
        |line: &&str| line.starts_with("//!") || line.starts_with("/*") || line.starts_with(" *");
    let lines: Vec<&str> = source.lines().skip_while(is_comment).collect();
    lines.join("\n").trim().to_owned()
}

/// Every program in a README is one of the crate's examples, which the tests above run.
#[test]
fn readmes_show_the_examples() {
    for name in CRATES {
        let readme =
            fs::read_to_string(repo_root().join(name).join("README.md")).expect("every crate has a README");
        let mut shown = 0;
        for (language, extension) in [("rust", "rs"), ("c", "c")] {
            let known: Vec<String> = examples(extension)
                .iter()
                .map(|path| body(&fs::read_to_string(path).expect("an example can be read")))
                .collect();
            for (_, block) in readme
                .match_indices(&format!("```{language}"))
                .map(|(at, fence)| readme[at..].split_at(fence.len()))
            {
                let (_, block) = block.split_once('\n').expect("a fence ends its line");
                let (program, _) = block.split_once("\n```").expect("a block has an end");
                assert!(
                    known.iter().any(|example| example == program.trim()),
                    "{name}/README.md:\n{program}"
                );
                shown += 1;
            }
        }
        assert!(shown > 0, "{name}/README.md shows no program");
    }
}

/// The first program of a README is the one on the crate's front page, which its documentation
/// tests run.
#[test]
fn readmes_show_the_programs_of_front_pages() {
    for name in ["wasm-jit/hooks", "wasm-jit/debug", "wasm-jit/monitors"] {
        let read = |file: &str| {
            let path = repo_root().join(name).join(file);
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let (readme, front) = (read("README.md"), read("src/lib.rs"));
        let shown = readme.split("```").nth(1).and_then(|block| block.strip_prefix("rust\n"));
        let comment = |line: &str| Some(line.strip_prefix("//!")?.trim_start_matches(' ').to_owned());
        let run = front.lines().skip_while(|line| *line != "//! ```").skip(1);
        let run = run.take_while(|line| *line != "//! ```").filter_map(comment);
        let run: Vec<String> = run.filter(|line| !line.starts_with("# ")).collect();
        let shown: Vec<&str> = shown.expect("a program").lines().map(str::trim_start).collect();
        assert_eq!(shown, run, "{name}/README.md");
    }
}

/// The program in the guide is also an example.
#[test]
fn the_guide_to_wasm_jit_shows_an_example() {
    let guide = fs::read_to_string(repo_root().join("docs/wasm-jit.md")).expect("the guide is there");
    let (_, program) = guide.split_once("```rust\n").expect("a program");
    let (program, _) = program.split_once("\n```").expect("its end");
    let example = repo_root().join("wasm-jit/examples/host_function.rs");
    assert_eq!(body(&fs::read_to_string(example).expect("an example can be read")), program.trim());
}

/// The documents: the files in these directories that end in `.md`.
fn documents() -> Vec<PathBuf> {
    const FOLDERS: [&str; 33] = [
        "",
        "docs",
        "docs/design",
        "examples/own-monitor",
        "examples/own-provider",
        "wordpatch",
        "wordpatch/model",
        "callpatch",
        "fastinst",
        "fastinst/command-line",
        "fastinst/sigsafe",
        "profiler",
        "profiler/cli",
        "profiler/preload",
        "profiler/script",
        "tmax-probe",
        "wasm-jit",
        "wasm-jit/c-api",
        "wasm-jit/cli",
        "wasm-jit/codegen",
        "wasm-jit/debug",
        "wasm-jit/fuzz",
        "wasm-jit/fuzz-wasmtime",
        "wasm-jit/hooks",
        "wasm-jit/js-string",
        "wasm-jit/monitors",
        "wasm-jit/replay",
        "wasm-jit/tests",
        "wasm-jit/wasi",
        "wasm-jit/whamm",
        "benches",
        "tests",
        "scripts/mutants",
    ];
    let mut found: Vec<PathBuf> = FOLDERS
        .iter()
        .flat_map(|folder| fs::read_dir(repo_root().join(folder)).expect("the folder is there"))
        .map(|entry| entry.expect("a folder can be read").path())
        .filter(|path| path.extension() == Some(OsStr::new("md")))
        .collect();
    found.sort();
    assert!(found.len() >= 25, "{found:?}");
    found
}

/// The anchor that Markdown of a hosting service generates for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Lines outside fenced and indented blocks.
fn prose(document: &str) -> Vec<&str> {
    let mut is_fenced = false;
    let is_prose = |line: &&str| {
        is_fenced ^= line.trim_start().starts_with("```");
        !is_fenced && !line.starts_with("    ")
    };
    document.lines().filter(is_prose).collect()
}

/// The first link in `document` that does not resolve.
fn broken_link(document: &Path, text: &str) -> Option<String> {
    let text = prose(text).join("\n");
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let mut relative = links.filter(|link| !link.contains("://"));
    relative
        .find(|link| {
            let (path, section) = link.split_once('#').unwrap_or((link, ""));
            let folder = document.parent().expect("a file has a folder");
            let target = if path.is_empty() { document.to_owned() } else { folder.join(path) };
            if section.is_empty() {
                return !target.exists();
            }
            let Ok(text) = fs::read_to_string(&target) else { return true };
            let mut headings = prose(&text).into_iter().filter(|line| line.starts_with('#'));
            !headings.any(|line| anchor(line.trim_start_matches('#')) == section)
        })
        .map(str::to_owned)
}

/// Every relative link refers to a file, and every link to a section refers to a heading.
#[test]
fn links_of_the_documents_lead_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document can be read");
        assert_eq!(broken_link(&document, &text), None, "{}", document.display());
    }
}

/// The files named in the exercises of CONTRIBUTING exist, except for those that the exercises
/// create.
#[test]
fn the_exercises_name_files_that_exist() {
    const TO_BE_WRITTEN: [&str; 2] = ["profiler/src/report/markdown.rs", "fastinst/src/provider/NAME.rs"];
    let text = fs::read_to_string(repo_root().join("CONTRIBUTING.md")).expect("it is there");
    let is_file = |name: &&str| {
        let known = [".rs", ".toml", ".txt", ".md", ".h", ".py", ".sh"];
        name.contains('/') && !name.contains([' ', '*']) && known.iter().any(|end| name.ends_with(end))
    };
    let named: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_file).collect();
    assert!(named.len() > 25, "{named:?}");
    for name in named {
        let exists = repo_root().join(name).exists();
        assert_eq!(exists, !TO_BE_WRITTEN.contains(&name), "CONTRIBUTING.md: {name}");
    }
}

#[test]
fn broken_links_are_found() {
    let readme = repo_root().join("README.md");
    let check = |text: &str, expected: Option<&str>| {
        assert_eq!(broken_link(&readme, text).as_deref(), expected, "{text}");
    };
    check("[a](ARCHITECTURE.md) [b](docs/limits.md#the-profiled-process)\n", None);
    check("[a](ARCHITECTURE.md) [b](docs/no.md)\n", Some("docs/no.md"));
    check("[a](docs/limits.md#no-such-section)\n", Some("docs/limits.md#no-such-section"));
    check("    [a](docs/no.md)\n```\n[a](docs/no.md)\n```\n# A b\n", None);
    check("# Are the figures true (`truth`)\n[a](https://example.org)\n", None);
}
