//! How long it takes until a module can be instantiated: compiled, or with code that is stored.
//!
//! Generated modules of several sizes. The three ways take turns in one process, and the least
//! times count; files are in the page cache. Each module is checked to compute the same in all
//! ways.

use std::fmt::Write;
use std::time::Instant;

use benches::options::Options;
use benches::report::{Report, Table};
use clap::Parser;
use wasm_jit::{Cache, Config, Engine, Instance, Module, Store};

/// Functions of each, of 400 bytes on average: 0.1, 1.3, 16 and 66 MB.
const FUNCTIONS: [usize; 4] = [250, 3_250, 40_000, 165_000];

fn main() {
    let options = Options::parse();
    let mut table = Table::new(
        "Until a module can be instantiated",
        "Milliseconds: of compilation on all processors; of loading from a cache, the module's hash included; of \
         loading a precompiled file. Then the first as a multiple of the others. Sizes in MB.",
        &["module", "code", "compiled", "cached", "precompiled", "of cached", "of precompiled"],
    );
    let counts = options.either(&FUNCTIONS[..], &FUNCTIONS[..1]);
    for count in counts {
        options.progress(format!("{count} functions"));
        measure(*count, &options, &mut table);
    }
    let mut report = Report::new("How soon does a module run whose code is stored?");
    report.push(table);
    options.print(&report);
}

/// A module of functions that call each other, directly and through a table, use memory, and
/// branch. `checksum` calls the first ones.
fn module(functions: usize) -> Vec<u8> {
    let mut text = format!(
        "(module (type $unary (func (param i32) (result i32))) (memory 1) (table {functions} funcref)
         (elem (i32.const 0) func"
    );
    for number in 0..functions {
        write!(text, " {number}").expect("a string can be written");
    }
    text.push(')');
    for number in 0..functions {
        write!(text, "(func (type $unary) (local i32 i64 f64)").expect("a string can be written");
        for step in 0..10 {
            let constant = number * 31 + step * 1_000_003;
            write!(
                text,
                "(local.set 1 (i32.add (local.get 0) (i32.mul (local.get 1) (i32.const {constant}))))
                 (i64.store offset={step} (i32.and (local.get 1) (i32.const 0xfff)) (local.get 2))
                 (if (i32.lt_u (local.get 1) (local.get 0))
                    (then (local.set 2 (i64.add (local.get 2) (i64.extend_i32_u (local.get 1))))))"
            )
            .expect("a string can be written");
        }
        let (direct, indirect) = ((number + 1) % functions, number * 7919 % functions);
        write!(
            text,
            "(if (i32.eqz (local.get 0)) (then (return (i32.wrap_i64 (local.get 2)))))
             (i32.add (call {direct} (i32.shr_u (local.get 0) (i32.const 4)))
                (call_indirect (type $unary) (i32.shr_u (local.get 1) (i32.const 30)) (i32.const {indirect}))))"
        )
        .expect("a string can be written");
    }
    text.push_str("(func (export \"checksum\") (result i32) (call 0 (i32.const 99))))");
    wat::parse_str(text).expect("the text is a module")
}

/// What its function returns, or why it traps.
fn checksum(module: &Module) -> String {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).expect("the module imports nothing");
    let checksum = instance.get_typed_func::<(), i32>(&store, "checksum").expect("it is exported");
    format!("{:?}", checksum.call(&mut store, ()))
}

fn measure(functions: usize, options: &Options, table: &mut Table) {
    let bytes = module(functions);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let cache = Cache::new(folder.path().join("cache"), 1 << 30).expect("the folder is new");
    let compiles = Engine::default();
    let caches = Engine::new(Config::new().cache(cache.clone())).expect("the settings are possible");
    let file = folder.path().join("module.cwasm");
    let compiled = Module::new(&compiles, &bytes).expect("the module is valid");
    std::fs::write(&file, compiled.serialize().expect("it was compiled")).expect("the file can be written");
    let expected = checksum(&compiled);
    let code = compiled.code_size();
    drop(compiled);
    Module::new(&caches, &bytes).expect("the module is valid");
    let ways: [&dyn Fn() -> Module; 3] = [
        &|| Module::new(&compiles, &bytes).expect("the module is valid"),
        &|| Module::new(&caches, &bytes).expect("the module is valid"),
        // SAFETY: written above, and not changed.
        &|| unsafe { Module::deserialize_file(&compiles, &file) }.expect("the file was just written"),
    ];
    let runs = options.runs(7);
    let mut least = [f64::INFINITY; 3];
    for _ in 0..runs {
        for (way, least) in ways.iter().zip(&mut least) {
            let start = Instant::now();
            let module = way();
            *least = least.min(start.elapsed().as_secs_f64() * 1e3);
            assert_eq!(checksum(&module), expected);
        }
    }
    assert_eq!(cache.statistics().hits, u64::from(runs), "the module was stored");
    let megabytes = |size: usize| size as f64 / 1e6;
    let [compiled, cached, precompiled] = least;
    table.push(vec![
        megabytes(bytes.len()).into(),
        megabytes(code).into(),
        compiled.into(),
        cached.into(),
        precompiled.into(),
        (compiled / cached).into(),
        (compiled / precompiled).into(),
    ]);
}
