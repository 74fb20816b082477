//! The time until a module can be instantiated, and until it has its first result: compiled in
//! advance, with functions that are compiled when they are first called, or with stored code.
//!
//! A run calls a few functions of generated modules of several sizes. The methods take turns in one
//! process, and the least times count; files are in the page cache. Each module is checked to
//! compute the same with all methods.

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
    let mut loaded = Table::new(
        "Until a module can be instantiated",
        "Milliseconds: of compilation on all processors; of loading from a cache, the module's hash included; of \
         loading a precompiled file, executed in the mapped file or copied (`Config::map_stored_code`). Then the \
         first as a multiple of the cached and of the mapped one, and the processor time of all threads of all but \
         the first, which depends less on what else the machine does. Sizes in MB.",
        &[
            "module",
            "code",
            "compiled",
            "cached",
            "precompiled",
            "copied",
            "of cached",
            "of precompiled",
            "cached, processor",
            "precompiled, processor",
            "copied, processor",
        ],
    );
    let mut first_result = Table::new(
        "Until the first result of a module",
        "Milliseconds until one function of its first instance has returned, of a module that is compiled on all \
         processors, and of one that is validated on all processors, whose functions are compiled when they are \
         called. Then the first as a multiple of the second, and how many functions were called. Sizes in MB.",
        &["module", "compiled", "lazy", "of lazy", "functions", "called"],
    );
    let counts = options.either(&FUNCTIONS[..], &FUNCTIONS[..1]);
    for count in counts {
        options.progress(format!("{count} functions"));
        measure(*count, &options, [&mut loaded, &mut first_result]);
    }
    let mut report = Report::new("How soon does a module run, and one whose code is stored?");
    report.push(loaded);
    report.push(first_result);
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

/// The processor time of the process so far, in milliseconds.
fn processor_time() -> f64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    std::time::Duration::from(time.expect("the clock exists")).as_secs_f64() * 1e3
}

fn measure(functions: usize, options: &Options, [loaded, first_result]: [&mut Table; 2]) {
    let bytes = module(functions);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let cache = Cache::new(folder.path().join("cache"), 1 << 30).expect("the folder is new");
    let compiles = Engine::default();
    let lazy = Engine::new(Config::new().lazy_compilation(true)).expect("the settings are possible");
    let caches = Engine::new(Config::new().cache(cache.clone())).expect("the settings are possible");
    let file = folder.path().join("module.cwasm");
    let compiled = Module::new(&compiles, &bytes).expect("the module is valid");
    std::fs::write(&file, compiled.serialize().expect("it was compiled")).expect("the file can be written");
    let expected = checksum(&compiled);
    let code = compiled.code_size();
    drop(compiled);
    Module::new(&caches, &bytes).expect("the module is valid");
    let copies = Engine::new(Config::new().map_stored_code(false)).expect("the settings are possible");
    let methods: [&dyn Fn() -> Module; 5] = [
        &|| Module::new(&compiles, &bytes).expect("the module is valid"),
        &|| Module::new(&caches, &bytes).expect("the module is valid"),
        &|| Module::new(&lazy, &bytes).expect("the module is valid"),
        // SAFETY: written above, and not changed.
        &|| unsafe { Module::deserialize_file(&compiles, &file) }.expect("the file was just written"),
        // SAFETY: as above.
        &|| unsafe { Module::deserialize_file(&copies, &file) }.expect("the file was just written"),
    ];
    let runs = options.runs(7);
    let mut least = [[f64::INFINITY; 3]; 5];
    let mut called = 0;
    for _ in 0..runs {
        for (method, [least, with_result, processor]) in methods.iter().zip(&mut least) {
            let (start, before) = (Instant::now(), processor_time());
            let milliseconds = || start.elapsed().as_secs_f64() * 1e3;
            let module = method();
            *least = least.min(milliseconds());
            *processor = processor.min(processor_time() - before);
            assert_eq!(checksum(&module), expected);
            *with_result = with_result.min(milliseconds());
            let compiled =
                module.functions().filter(|function| function.body().is_some_and(|it| it.is_compiled()));
            called = compiled.count().min(if called == 0 { usize::MAX } else { called });
        }
    }
    assert_eq!(cache.statistics().hits, u64::from(runs), "the module was stored");
    let megabytes = |size: usize| size as f64 / 1e6;
    let [
        [compiled, eager_result, _],
        [cached, _, cached_processor],
        [_, lazy_result, _],
        [precompiled, _, precompiled_processor],
        [copied, _, copied_processor],
    ] = least;
    first_result.push(vec![
        megabytes(bytes.len()).into(),
        eager_result.into(),
        lazy_result.into(),
        (eager_result / lazy_result).into(),
        functions.into(),
        called.into(),
    ]);
    loaded.push(vec![
        megabytes(bytes.len()).into(),
        megabytes(code).into(),
        compiled.into(),
        cached.into(),
        precompiled.into(),
        copied.into(),
        (compiled / cached).into(),
        (compiled / precompiled).into(),
        cached_processor.into(),
        precompiled_processor.into(),
        copied_processor.into(),
    ]);
}
