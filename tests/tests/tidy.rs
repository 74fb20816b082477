//! The invariants of ARCHITECTURE.md that can be checked in the source, for every tracked file.
//!
//! Each rule is a function of one file, and is tested on an injected violation. Comments, string
//! literals and the code of unit tests do not count. Exceptions are listed with their reason; one
//! that is no longer needed fails as well.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use tests::repo_root;

/// Maximum length of a source file, in lines.
const MAX_LENGTH: usize = 900;

/// The crates of this workspace that each crate may depend on.
const LAYERS: &[(&str, &[&str])] = &[
    ("wordpatch", &[]),
    ("callpatch", &["wordpatch"]),
    ("fastinst/sigsafe", &[]),
    ("fastinst", &["fastinst-sigsafe", "wordpatch", "callpatch"]),
    ("fastinst/command-line", &[]),
    ("tmax-probe", &["wordpatch", "fastinst-command-line"]),
    ("profiler", &["fastinst-sigsafe", "wordpatch", "fastinst"]),
    ("profiler/cli", &["profiler", "fastinst-command-line", "wasm-jit-whamm"]),
    ("profiler/preload", &["fastinst-sigsafe", "wordpatch", "callpatch", "fastinst", "profiler"]),
    (
        "profiler/script",
        &["fastinst-sigsafe", "wordpatch", "fastinst", "profiler", "wasm-jit", "wasm-jit-whamm"],
    ),
    ("wasm-jit/codegen", &[]),
    ("wasm-jit", &["fastinst-sigsafe", "wordpatch", "fastinst", "wasm-jit-codegen"]),
    ("wasm-jit/c-api", &["wasm-jit"]),
    ("wasm-jit/wasi", &["wasm-jit"]),
    ("wasm-jit/js-string", &["wasm-jit"]),
    ("wasm-jit/hooks", &["wasm-jit"]),
    ("wasm-jit/monitors", &["wordpatch", "profiler", "wasm-jit", "wasm-jit-hooks"]),
    ("wasm-jit/debug", &["wasm-jit", "wasm-jit-hooks"]),
    ("wasm-jit/whamm", &["wasm-jit", "wasm-jit-hooks"]),
    ("wasm-jit/replay", &["wasm-jit", "wasm-jit-hooks"]),
    (
        "wasm-jit/cli",
        &[
            "fastinst-command-line",
            "wasm-jit",
            "wasm-jit-wasi",
            "wasm-jit-js-string",
            "wasm-jit-debug",
            "wasm-jit-monitors",
            "wasm-jit-replay",
            "wasm-jit-whamm",
        ],
    ),
];

/// A directory or file of a crate, and the ones that it may import with `crate::`.
type Imports = (&'static str, &'static [&'static str]);

/// The imports by source directory of a crate. The crate's root may import all.
const MODULES: &[(&str, &[Imports])] = &[
    (
        "wasm-jit/codegen/src/",
        &[
            ("asm", &[]),
            ("objects", &[]),
            ("module", &["objects"]),
            ("vmctx", &["module"]),
            ("compiler", &["asm", "objects", "module", "vmctx"]),
        ],
    ),
    (
        // All of them may import `vmctx`, which belongs to the crate below.
        "wasm-jit/src/",
        &[
            ("types", &["vmctx"]),
            ("object_type", &["types", "vmctx"]),
            ("parallel", &[]),
            ("trap_kind", &["vmctx"]),
            ("code", &["types", "parallel", "trap_kind", "vmctx"]),
            ("objdump", &["code", "vmctx"]),
            ("trap", &["code", "trap_kind", "vmctx"]),
            ("store_id", &[]),
            ("exn_ref", &["store_id"]),
            ("error", &["types", "code", "trap", "exn_ref"]),
            ("linear_memory", &["types", "error"]),
            ("cache", &["error"]),
            ("engine", &["types", "object_type", "cache", "code", "trap", "error", "linear_memory", "vmctx"]),
            ("module", &["types", "object_type", "parallel", "cache", "code", "objdump", "error", "engine"]),
            (
                "probes",
                &["types", "store_id", "code", "engine", "trap", "error", "module", "runtime", "vmctx"],
            ),
            ("symbols", &["code", "trap", "module"]),
            (
                "runtime",
                &[
                    "types",
                    "object_type",
                    "store_id",
                    "exn_ref",
                    "code",
                    "trap",
                    "error",
                    "linear_memory",
                    "engine",
                    "module",
                    "vmctx",
                ],
            ),
        ],
    ),
];

/// Names that only wordpatch may use: writing text, changing its protection, SIGTRAP, membarrier.
const WORDPATCH_ONLY: &[&str] =
    &["mprotect", "PROT_EXEC", "memfd_create", "SYS_membarrier", "SIGTRAP", "SA_NODEFER"];

/// First bytes of CALL, JMP and RET, and of the long NOP.
const CALL_BYTES: &[&str] = &["0xe8", "0xe9", "0xeb", "0xc3", "0xc2", "0x0f1f", "0x1f"];

/// First bytes of other instructions: prefixes, escapes and moves. Checked in wasm-jit only, which
/// generates machine code.
const MACHINE_CODE: &[&str] = &[
    "0x0f", "0x40", "0x41", "0x48", "0x49", "0x66", "0x89", "0x8b", "0x8d", "0x90", "0xc4", "0xc5", "0xf0",
    "0xf2", "0xf3",
];

const INT3_BYTES: &[&str] = &["0xcc"];

const ENVIRONMENT: &[&str] =
    &["var", "var_os", "vars", "vars_os", "set_var", "remove_var", "getenv", "environ"];

const PRINTING: &[&str] = &["print!", "println!", "eprint!", "eprintln!", "dbg!"];

/// A file, the exception, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "profiler/src/process/mod.rs",
        "SIGTRAP",
        "a trap that ends the program is reported like any fatal signal",
    ),
    ("profiler/preload/src/signals.rs", "SA_NODEFER", "the program asks for it, by sysv_signal"),
    ("tmax-probe/src/costs.rs", "SIGTRAP", "measures the cost of a trap, with its own handler meanwhile"),
    ("tmax-probe/src/kernel/child.rs", "SIGTRAP", "how a trial's process ends that executes torn code"),
    ("wasm-jit/debug/src/gdb.rs", "SIGTRAP", "the number of a stop in GDB's protocol; no signal is sent"),
    ("wasm-jit/src/engine.rs", "SIGTRAP", "refused as the signal for interrupts, since it is wordpatch's"),
    ("wasm-jit/src/trap/signals.rs", "SIGTRAP", "stays deliverable while another signal is handled"),
    (
        "wasm-jit/src/linear_memory.rs",
        "mprotect",
        "makes pages of a memory accessible, which are data and never text",
    ),
];

/// A tracked file.
struct File {
    path: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The crate's directory, for Rust code that is part of the product.
    fn layer(&self) -> Option<&'static str> {
        let inside =
            |folder: &&str| self.path.strip_prefix(*folder).is_some_and(|rest| rest.starts_with("/src/"));
        let is_product = self.is_rust() && !self.is_unit_tests();
        LAYERS.iter().map(|(folder, _)| *folder).find(inside).filter(|_| is_product)
    }

    /// Whether it is a module of tests, by its name.
    fn is_unit_tests(&self) -> bool {
        const MODULES: [&str; 5] =
            ["/tests.rs", "/tests/", "_in_tests.rs", "/src/exploration", "/src/interleavings/"];
        MODULES.iter().any(|module| self.path.contains(module))
    }

    /// The lines without comments, literals and unit tests, with their numbers.
    fn code(&self) -> Vec<(usize, String)> {
        let text = without_comments_and_strings(&self.text);
        let lines = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
        lines.map(|(number, line)| (number + 1, line.to_owned())).collect()
    }

    /// Occurrences of these words in the code: the first line of each.
    fn finds(&self, words: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        for word in words {
            let line = self.code().into_iter().find(|(_, line)| has_word(line, word));
            found.extend(line.map(|(number, _)| format!("{}:{number}: {word}", self.path)));
        }
        found
    }
}

fn is_part_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part_of_word) && !after.is_some_and(is_part_of_word)
    })
}

/// Rust source with comments and the contents of string literals blanked; line numbers are
/// preserved.
fn without_comments_and_strings(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_word = out.chars().next_back().is_some_and(is_part_of_word);
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            end_of_string(rest)
        } else if first == 'r' && !after_word && rest[1..].trim_start_matches('#').starts_with('"') {
            let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
            let end = format!("\"{}", "#".repeat(hashes));
            let start = 2 + hashes;
            rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with(r"'\") {
            rest[3..].find('\'').map_or(rest.len(), |at| at + 4)
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        out.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
        out.push(' ');
        rest = &rest[skipped..];
    }
    out
}

/// The end of the string literal with which `text` starts.
fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

type Rule = fn(&File) -> Vec<String>;

/// Every rule, by name.
const RULES: &[(&str, Rule)] = &[
    ("only wordpatch writes text, changes its protection, owns SIGTRAP, issues membarrier", only_wordpatch),
    ("the bytes of CALL, JMP, NOP and RET are spelled in callpatch/src/encoding.rs only", call_bytes),
    ("Wasm machine code is spelled in wasm-jit/codegen/src/asm only", machine_code),
    ("the byte of INT3 is spelled in wordpatch/src/protocol.rs only", int3_byte),
    ("exported symbols are in profiler/preload, profiler/script and wasm-jit/c-api only", exported_symbols),
    (
        "the environment is read by commands, by the preload's constructor, and for the calibration's place",
        environment,
    ),
    ("libraries do not print", printing),
    ("a crate imports only from the layers below it", layers),
    ("modules of a crate import only from those below them", modules),
    ("no file is too long", lengths),
    ("nothing is left undone", unfinished_work),
    ("no package registry is named by its host", registry_hosts),
];

fn only_wordpatch(file: &File) -> Vec<String> {
    match file.layer() {
        None | Some("wordpatch") => Vec::new(),
        Some(_) => file.finds(WORDPATCH_ONLY),
    }
}

fn call_bytes(file: &File) -> Vec<String> {
    let allowed = file.layer().is_none_or(is_of_wasm_jit) || file.path == "callpatch/src/encoding.rs";
    let allowed = allowed || is_excepted(file, "CALL_BYTES");
    if allowed { Vec::new() } else { file.finds(CALL_BYTES) }
}

/// Whether the layer is one of the WebAssembly engine.
fn is_of_wasm_jit(layer: &str) -> bool {
    layer.split('/').next() == Some("wasm-jit")
}

fn machine_code(file: &File) -> Vec<String> {
    if !file.layer().is_some_and(is_of_wasm_jit) || file.path.starts_with("wasm-jit/codegen/src/asm/") {
        return Vec::new();
    }
    file.finds(&[CALL_BYTES, MACHINE_CODE].concat())
}

fn int3_byte(file: &File) -> Vec<String> {
    let allowed = file.layer().is_none() || file.path == "wordpatch/src/protocol.rs";
    if allowed { Vec::new() } else { file.finds(INT3_BYTES) }
}

fn exported_symbols(file: &File) -> Vec<String> {
    match file.layer() {
        None | Some("profiler/preload" | "profiler/script" | "wasm-jit/c-api") => Vec::new(),
        Some(_) => file.finds(&["no_mangle", "export_name"]),
    }
}

/// Whether the file belongs to a program's command line.
fn is_command(file: &File) -> bool {
    ["profiler/cli/src/", "tmax-probe/src/main.rs", "tmax-probe/src/cli/", "wasm-jit/cli/src/"]
        .iter()
        .any(|place| file.path.starts_with(place))
}

fn environment(file: &File) -> Vec<String> {
    const PLACES: &[&str] = &[
        "profiler/preload/src/lib.rs",
        // The path of programs, for `execvp`.
        "profiler/preload/src/leaving.rs",
        "profiler/script/src/lib.rs",
        // For the constructors of the preloads.
        "profiler/src/process/environment.rs",
        "wordpatch/src/calibration/location.rs",
    ];
    if file.layer().is_none() || is_command(file) || PLACES.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let reads = |line: &str| {
        ENVIRONMENT
            .iter()
            .any(|name| line.contains(&format!("env::{name}(")) || line.contains(&format!("libc::{name}")))
            || has_word(line, "use std::env")
    };
    let found = file.code().into_iter().find(|(_, line)| reads(line));
    found.map(|(number, _)| format!("{}:{number}: the environment", file.path)).into_iter().collect()
}

fn printing(file: &File) -> Vec<String> {
    if file.layer().is_none() || is_command(file) { Vec::new() } else { file.finds(PRINTING) }
}

fn layers(file: &File) -> Vec<String> {
    let Some(folder) = file.path.strip_suffix("/Cargo.toml") else { return Vec::new() };
    let Some((_, below)) = LAYERS.iter().find(|(layer, _)| *layer == folder) else { return Vec::new() };
    let own = [
        "wordpatch",
        "callpatch",
        "fastinst",
        "fastinst-sigsafe",
        "fastinst-command-line",
        "wordpatch-model",
        "profiler",
        "fastinst-cli",
        "fastinst-preload",
        "fastinst-script",
        "tmax-probe",
        "wasm-jit",
        "wasm-jit-codegen",
        "wasm-jit-wasi",
        "wasm-jit-js-string",
        "wasm-jit-hooks",
        "wasm-jit-monitors",
        "wasm-jit-debug",
        "wasm-jit-replay",
        "wasm-jit-whamm",
        "wasm-jit-cli",
        "wasm-jit-c-api",
        "wasm-jit-fuzz",
        "own-monitor",
        "own-provider",
        "benches",
        "tests",
    ];
    let section = file.text.split_once("[dependencies]").map_or("", |(_, after)| after);
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
    names
        .filter(|name| own.contains(name) && !below.contains(name))
        .map(|name| format!("{}: {name}", file.path))
        .collect()
}

fn modules(file: &File) -> Vec<String> {
    let in_crate = |(folder, _): &&(&str, _)| file.path.starts_with(folder);
    let Some((folder, modules)) = MODULES.iter().find(in_crate).filter(|_| file.layer().is_some()) else {
        return Vec::new();
    };
    let own = file.path[folder.len()..].split(['/', '.']).next().unwrap_or_default();
    let Some((_, allowed)) = modules.iter().find(|(name, _)| *name == own) else { return Vec::new() };
    let mut found = Vec::new();
    for (number, line) in file.code() {
        for (_, path) in line.match_indices("crate::").map(|(at, path)| (at, &line[at + path.len()..])) {
            let name = path.split(|c| !is_part_of_word(c)).next().unwrap_or_default();
            let is_known = modules.iter().any(|(module, _)| *module == name) || name == "vmctx";
            // Items of the crate's root are imported by their own module, or several at once.
            if name != own && (!is_known || !allowed.contains(&name)) {
                found.push(format!("{}:{number}: crate::{name}", file.path));
            }
        }
    }
    found
}

fn lengths(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    let is_source = [".rs", ".c", ".cpp", ".h", ".sh", ".md"].iter().any(|end| file.path.ends_with(end));
    if is_source && lines > MAX_LENGTH { vec![format!("{}: {lines} lines", file.path)] } else { Vec::new() }
}

fn unfinished_work(file: &File) -> Vec<String> {
    // In two halves, so that this file passes too.
    let words = [("TO", "DO"), ("FIX", "ME"), ("X", "XX"), ("unimplemen", "ted!"), ("to", "do!")];
    let mut found = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        for (front, back) in words {
            let word = format!("{front}{back}");
            if has_word(line, &word) {
                found.push(format!("{}:{number}: {word}", file.path));
            }
        }
    }
    found
}

/// The hosts of packages are configured in cargo, pip, npm and apt.
fn registry_hosts(file: &File) -> Vec<String> {
    // In two halves, so that this file passes too.
    let hosts = [
        ("crates.", "io"),
        ("py", "pi"),
        ("npm", "js"),
        ("debian", ".org"),
        ("ubuntu", ".com"),
        ("python", "hosted"),
        ("proxy.", "golang"),
        ("docs.", "rs"),
    ];
    let mut found = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        let line = line.to_lowercase();
        for (front, back) in hosts {
            let host = format!("{front}{back}");
            if line.contains(&host) {
                found.push(format!("{}:{number}: {host}", file.path));
            }
        }
    }
    found
}

fn is_excepted(file: &File, what: &str) -> bool {
    EXCEPTIONS.iter().any(|(path, word, _)| *path == file.path && *word == what)
}

/// Violations of a rule, without the exceptions.
fn violations(rule: Rule, file: &File) -> Vec<String> {
    let mut found = rule(file);
    found.retain(|offence| {
        !EXCEPTIONS
            .iter()
            .any(|(path, word, _)| *path == file.path && offence.rsplit(": ").next() == Some(word))
    });
    found
}

/// All tracked text files.
fn tracked() -> Vec<File> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(repo_root())
        .output()
        .expect("git can be started");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let paths = String::from_utf8(output.stdout).expect("UTF-8 names");
    let paths: BTreeSet<&str> = paths.split_terminator('\0').collect();
    let read = |path: &str| fs::read_to_string(repo_root().join(path)).ok();
    let files: Vec<File> = paths
        .into_iter()
        .filter(|path| !path.ends_with("Cargo.lock"))
        .filter_map(|path| Some(File { path: path.to_owned(), text: read(path)? }))
        .collect();
    assert!(files.iter().filter(|file| file.layer().is_some()).count() > 40, "only {} files", files.len());
    files
}

#[test]
fn the_tree_keeps_every_rule() {
    let files = tracked();
    let mut broken = Vec::new();
    for (name, rule) in RULES {
        let found: Vec<String> = files.iter().flat_map(|file| violations(*rule, file)).collect();
        if !found.is_empty() {
            broken.push(format!("{name}:\n  {}", found.join("\n  ")));
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn every_exception_is_needed() {
    let files = tracked();
    for (path, what, reason) in EXCEPTIONS {
        let file =
            files.iter().find(|file| file.path == *path).unwrap_or_else(|| panic!("there is no {path}"));
        let words = if *what == "CALL_BYTES" { CALL_BYTES } else { std::slice::from_ref(what) };
        assert!(!file.finds(words).is_empty(), "{path}: {what} is not there any more ({reason})");
    }
}

#[test]
fn every_rule_finds_an_injected_violation() {
    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        let broken =
            |(name, rule): &(&'static str, Rule)| (!violations(*rule, &file).is_empty()).then_some(*name);
        let broken: Vec<_> = RULES.iter().filter_map(broken).collect();
        let expected: Vec<_> = RULES
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| expected.iter().any(|part| name.contains(part)))
            .collect();
        assert_eq!(broken, expected, "{path}: {text}");
    }
    let product = "fastinst/src/registry.rs";
    check(product, "fn f() { g(0x08, 0xe80, b\"x\") }", &[]);
    check(product, "libc::mprotect(page, 1, 7);", &["only wordpatch"]);
    check(product, "syscall(libc::SYS_membarrier)", &["only wordpatch"]);
    check(product, "sigaction(libc::SIGTRAP)", &["only wordpatch"]);
    check("wordpatch/src/text/alias.rs", "memfd_create(c\"x\")", &[]);
    check("tests/tests/calls.rs", "libc::mprotect(); [0xe8, 0xcc]", &[]);
    check(product, "const CALL: u8 = 0xe8;", &["bytes of CALL"]);
    check("callpatch/src/stub.rs", "[0x0f, 0x1f, 0x44]", &["bytes of CALL"]);
    check("callpatch/src/encoding.rs", "[0x0f, 0x1f, 0x44, 0xe8]", &[]);
    check("wasm-jit/codegen/src/asm/label.rs", "[0xe8, 0xe9, 0x48, 0x0f, 0x1f]", &[]);
    check(
        "wasm-jit/codegen/src/compiler/operators/calls.rs",
        "self.asm.bytes(&[0xe8, 0, 0, 0, 0]);",
        &["Wasm machine code"],
    );
    check(
        "wasm-jit/codegen/src/compiler/operators/int.rs",
        "self.asm.bytes(&[0x48, 0x99]);",
        &["Wasm machine code"],
    );
    check("wasm-jit/codegen/src/asm/int.rs", "let breakpoint = 0xcc;", &["INT3"]);
    check("wasm-jit/src/code/tests.rs", "const RET: u8 = 0xc3;", &[]);
    check("wasm-jit/src/trap/tests/kit.rs", "libc::mprotect(page, 1, 7); [0x48, 0xc3]", &[]);
    check("wasm-jit/src/runtime/memory.rs", "libc::mprotect(page, 1, 3);", &["only wordpatch"]);
    check("wasm-jit/fuzz/src/main.rs", "println!(); [0xe8]", &[]);
    check("wasm-jit/wasi/src/builder.rs", "std::env::var(name)", &["environment"]);
    check("wasm-jit/cli/src/run.rs", "println!(); std::env::var_os(name)", &[]);
    check("callpatch/src/stub.rs", "let filler = [0xcc; 16];", &["INT3"]);
    check(product, "#[unsafe(no_mangle)]", &["exported symbols"]);
    check("profiler/preload/src/provider.rs", "#[unsafe(no_mangle)]", &[]);
    check("profiler/src/session/write.rs", "std::env::var_os(VARIABLE)", &["environment"]);
    check("profiler/cli/src/record.rs", "std::env::var_os(VARIABLE)", &[]);
    check("profiler/preload/src/lib.rs", "std::env::var_os(VARIABLE)", &[]);
    check(product, "println!();", &["print"]);
    check(product, "printer.print(bytes);", &[]);
    check("profiler/cli/src/report.rs", "eprintln!();", &[]);
    check("wordpatch/Cargo.toml", "[dependencies]\nlibc = \"1\"\ncallpatch.workspace = true\n", &["layers"]);
    check("wasm-jit/Cargo.toml", "[dependencies]\nfastinst.workspace = true\n", &[]);
    check("wasm-jit/Cargo.toml", "[dependencies]\nprofiler.workspace = true\n", &["layers"]);
    check("wasm-jit/Cargo.toml", "[dependencies]\nwasm-jit-wasi.workspace = true\n", &["layers"]);
    check("wasm-jit/codegen/Cargo.toml", "[dependencies]\nwordpatch.workspace = true\n", &["layers"]);
    check("wasm-jit/wasi/Cargo.toml", "[dependencies]\nwasm-jit-codegen.workspace = true\n", &["layers"]);
    check("wasm-jit/cli/Cargo.toml", "[dependencies]\nwasm-jit-wasi.workspace = true\n", &[]);
    check("fastinst/Cargo.toml", "[dependencies]\nwasm-jit.workspace = true\n", &["layers"]);
    check("profiler/Cargo.toml", "[dependencies]\nfastinst.workspace = true\n", &[]);
    check("wordpatch/Cargo.toml", "[dependencies]\nfastinst-sigsafe.workspace = true\n", &["layers"]);
    check("fastinst/sigsafe/Cargo.toml", "[dependencies]\nwordpatch.workspace = true\n", &["layers"]);
    check("fastinst/sigsafe/src/futex.rs", "fn f() { println!() }", &["print"]);
    check("wordpatch/Cargo.toml", "[dev-dependencies]\ncallpatch.workspace = true\n", &[]);
    check("wasm-jit/codegen/src/asm/int.rs", "use crate::vmctx::TrapCode;", &["modules"]);
    check("wasm-jit/codegen/src/compiler/operators/int.rs", "use crate::vmctx::TrapCode;", &[]);
    check("wasm-jit/src/trap/unwind.rs", "fn f(e: crate::error::Error) {}", &["modules"]);
    check("wasm-jit/src/code/link.rs", "use crate::{Store, Engine};", &["modules"]);
    check("wasm-jit/src/error.rs", "use crate::runtime::ExnRef;", &["modules"]);
    check("wasm-jit/src/lib.rs", "use crate::runtime::Func;", &[]);
    check("README.md", &"line\n".repeat(MAX_LENGTH + 1), &["too long"]);
    check("README.md", &"line\n".repeat(MAX_LENGTH), &[]);
    for undone in ["TO DO", "FIX ME", "X XX", "unimplemen ted!()", "to do!()"] {
        check("scripts/demo.sh", &format!("# {}\n", undone.replace(' ', "")), &["undone"]);
    }
    check("scripts/demo.sh", "mktemp /tmp/XXXXXX", &[]);
    for host in ["crates. io", "Py PI", "registry.npm js", "deb.debian .org", "https://docs. rs/region"] {
        check("tests/README.md", &format!("from {}\n", host.replace(' ', "")), &["registry"]);
    }
    check("README.md", "On a fresh Debian, cargo and npm fetch the packages.\n", &[]);
    // Cases that do not count.
    check(
        product,
        "// 0xe8, libc::mprotect\n/* 0xcc\n 0xcc */ f(\"0xe8 \\\" mprotect\", r#\"0xcc \" \"#);",
        &[],
    );
    check(product, "let quote = '\"'; let next = '\\''; mprotect();", &["only wordpatch"]);
    check(product, "fn f() {}\n\n#[cfg(test)]\nmod tests { const CALL: u8 = 0xe8; }", &[]);
}
