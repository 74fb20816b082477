//! The compiler of scripts: which scripts are refused and how, that all modules are valid, and what
//! the functions of a module compute when they are called as by an engine.

mod addresses;
mod behaviour;
mod bounds;
mod callees;
mod counters;
mod engine;
mod features;
mod frames;
mod hostile;
mod libraries;
mod lookups;
mod memories;
mod modes;
mod names;
mod periods;
mod printing;
mod random_programs;
mod refused;
mod script_report;
mod scripts;
mod selection;
mod statements;
mod toggled;
mod upstream;

use wasm_jit_whamm::lang;

/// Compiles a script, and validates the module.
#[track_caller]
fn compile(source: &str) -> Vec<u8> {
    let module = match lang::compile("test.mm", source.as_bytes(), &[]) {
        Ok(module) => module,
        Err(error) => panic!("{error}"),
    };
    let features = wasmparser::WasmFeatures::default();
    if let Err(error) = wasmparser::Validator::new_with_features(features).validate_all(&module) {
        panic!("{error}\n{source}");
    }
    module
}

/// The scripts in the directory `scripts` and in the manual.
#[test]
fn the_scripts_for_users_compile() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut scripts = Vec::new();
    for entry in std::fs::read_dir(root.join("scripts")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "mm") {
            scripts.push(std::fs::read_to_string(path).unwrap());
        }
    }
    assert!(scripts.len() >= 20, "{scripts:?}");
    // Not part of the package.
    for manual in ["../../docs/whamm.md", "../../docs/native-scripts.md"] {
        let manual = std::fs::read_to_string(root.join(manual)).unwrap_or_else(|_| "```whamm\n```".into());
        let blocks = manual.split("```whamm\n").skip(1);
        scripts.extend(blocks.map(|block| block.split("```").next().unwrap().to_owned()));
    }
    let clock = wat::parse_file(root.join("scripts/clock.wat")).unwrap();
    let texts = wat::parse_str(
        "(module (memory (export \"memory\") 1) (func (export \"name_of\") (param i32) (result i32) i32.const 0)
            (func (export \"length\") (result i32) i32.const 4) (func (export \"buffer\") (result i32) i32.const 8))",
    )
    .unwrap();
    let (native, scripts): (Vec<_>, Vec<_>) =
        scripts.into_iter().partition(|script| script.lines().any(|line| line.starts_with("native:")));
    let (changing, scripts): (Vec<_>, Vec<_>) =
        scripts.into_iter().partition(|script| script.contains(":alt "));
    let engine = wasm_jit::Engine::default();
    let program = wasm_jit::Module::new(&engine, "(module)").unwrap();
    for script in changing {
        if let Err(error) = wasm_jit_whamm::rewrite::instrument("test.mm", script.as_bytes(), &program) {
            panic!("{error}");
        }
    }
    for script in scripts {
        let libraries: [(&str, &[u8]); 2] = [("clock", &clock), ("texts", &texts)];
        let compiled = match ["@sample(1ms)", "call_ref"].iter().any(|only_here| script.contains(only_here)) {
            true => lang::Script::new("test.mm", script.as_bytes(), &libraries).map(drop),
            false => lang::compile("test.mm", script.as_bytes(), &libraries).map(drop),
        };
        if let Err(error) = compiled {
            panic!("{error}");
        }
    }
    for script in native {
        if let Err(error) = lang::Script::native("test.mm", script.as_bytes()) {
            panic!("{error}");
        }
    }
}

/// The names of a module's exports, except those for match time.
fn exports(module: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    for payload in wasmparser::Parser::new(0).parse_all(module) {
        if let wasmparser::Payload::ExportSection(section) = payload.unwrap() {
            names.extend(section.into_iter().map(|export| export.unwrap().name.to_owned()));
        }
    }
    names.retain(|name| name.starts_with("wasm:"));
    names
}
