//! Golden tests: small programs in `golden/*.wat`, with their machine code in `.golden` files next
//! to them. A program whose first line says `--sites` is listed with a probe at each instruction
//! and entry.
//!
//! After a change of the compiler, `BLESS=1 cargo test -p wasm-jit --test golden` rewrites the
//! files; review the difference.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use wasm_jit::probes::{Kind, Location, Place, ProbeSpec};
use wasm_jit::{BoundsChecks, Config, Engine, Error, Module};

/// The code of a module as text, compiled by this number of threads. A first line such as
/// `;; --bounds-checks` names settings of the engine.
fn listing(module: impl AsRef<[u8]>, threads: usize) -> Result<String, Error> {
    let first = String::from_utf8_lossy(module.as_ref()).lines().next().unwrap_or_default().to_owned();
    let has = |setting: &str| first.starts_with(";;") && first.contains(setting);
    let mut config = Config::new();
    config.compile_threads(NonZero::new(threads).unwrap()).harden_speculation(has("--harden-speculation"));
    config.bounds_checks(match has("--bounds-checks") {
        true => BoundsChecks::Instructions,
        false => BoundsChecks::Reservation,
    });
    // The same on all processors.
    config.avx512(false);
    // Counters have sites, however many they are.
    config.counter_stubs(u32::MAX);
    let module = Module::new(&Engine::new(&config)?, module)?;
    let mut text = Vec::new();
    if has("--sites") {
        let _probes = module.probes(&everywhere(&module));
        module.write_objdump_with_sites(|_, _| true, &mut text).unwrap();
    } else {
        module.write_objdump(|_, _| true, &mut text).unwrap();
    }
    Ok(String::from_utf8(text).unwrap())
}

/// A probe for each place.
fn everywhere(module: &Module) -> Vec<ProbeSpec> {
    let places = module.functions().filter_map(|function| Some((function.index(), function.body()?)));
    let places = places.flat_map(|(function, body)| {
        let start = body.range().start;
        let offset = move |at: usize| Place::Instruction { offset: (at - start) as u32 };
        let instructions: Vec<Place> = body.instructions().map(|at| offset(at.offset())).collect();
        let places = [Place::Entry].into_iter().chain(instructions);
        places.map(move |place| Location { function, place })
    });
    places.map(|location| ProbeSpec { location, kind: Kind::Count }).collect()
}

/// The files in the folder with this extension, or without it.
fn files(extension: &str, has: bool) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|other| other == extension) == has);
    paths.sort();
    paths
}

/// The first difference of two texts, with a few lines of context.
fn difference(expected: &str, found: &str) -> String {
    let (expected, found): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let at = expected.iter().zip(&found).take_while(|(expected, found)| expected == found).count();
    let part =
        |lines: &[&str]| lines[at.saturating_sub(6).min(lines.len())..(at + 6).min(lines.len())].join("\n");
    format!("line {}:\n{}\n--- is now:\n{}", at + 1, part(&expected), part(&found))
}

#[test]
fn code_is_as_recorded() {
    let bless = std::env::var_os("BLESS").is_some();
    let programs = files("wat", true);
    assert!(programs.len() >= 20, "{programs:?}");
    let mut changed = Vec::new();
    for path in &programs {
        let found =
            listing(fs::read(path).unwrap(), 1).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let golden = path.with_extension("golden");
        if bless {
            fs::write(&golden, found).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if found != expected {
            changed.push(format!("{}, {}", golden.display(), difference(&expected, &found)));
        }
    }
    let of_programs: Vec<PathBuf> = programs.iter().map(|path| path.with_extension("golden")).collect();
    assert_eq!(files("wat", false), of_programs, "every listing has its program");
    assert!(changed.is_empty(), "run with BLESS=1 if this is intended:\n{}", changed.join("\n\n"));
}

/// Enough functions, with calls in both directions, that every thread gets several jobs.
#[test]
fn code_is_the_same_whatever_the_number_of_threads() {
    let functions = 8000;
    let mut text = String::from("(module (memory 1)\n");
    for function in 0..functions {
        let (other, offset) = ((function * 7919 + 13) % functions, function % 4096);
        text += &format!(
            "(func $f{function} (param i32 f64) (result f64) (local i32)
                (loop $again
                    (local.set 2 (i32.add (local.get 2) (i32.load offset={offset} (local.get 0))))
                    (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const {function})))))
                (block $a (block $b (br_table $a $b (local.get 2))) (return (f64.const {function}.5)))
                (f64.add (call $f{other} (local.get 2) (local.get 1)) (f64.const {offset})))\n"
        );
    }
    text.push(')');
    let module = wat::parse_str(&text).unwrap();
    assert!(module.len() > 4 * (128 << 10), "{} bytes are less than four jobs", module.len());
    let one = listing(&module, 1).unwrap();
    for threads in [2, 3] {
        let other = listing(&module, threads).unwrap();
        assert!(one == other, "{threads} threads, {}", difference(&one, &other));
    }
}
