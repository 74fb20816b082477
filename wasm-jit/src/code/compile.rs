//! Validates and compiles the functions of a module on several threads.
//!
//! # The algorithm
//! 1. Functions that lie next to each other form jobs of some 128 KiB of Wasm. Threads take jobs in
//!    order.
//! 2. A job's functions are validated and compiled into one chunk.
//! 3. Chunks are linked in the order of the jobs, whoever has finished them: a thread that finishes
//!    the chunk whose turn it is links it, and those behind it that wait. The image is therefore
//!    the same whatever the number of threads, and so is the error of a module that has several.
//! 4. A thread that is too far ahead waits, so that only a few chunks are held at any time. Linked
//!    chunks are used again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use wasm_jit_codegen::{Chunk, Compiler, Limit, MAX_GROWTH, ModuleInfo};
use wasmparser::{FuncToValidate, FuncValidatorAllocations, FunctionBody, ValidatorResources};

use super::CodeImage;
use super::link::ImageLinker;

/// Wasm bytes in a job: enough that taking one costs nothing, few enough that the last ones are
/// shared among the threads.
const JOB: u64 = 128 << 10;

/// Finished chunks that may wait for their turn, for each thread.
const WAITING: usize = 4;

/// What a job may have of code in any case, beside [`MAX_GROWTH`] times its bytes of Wasm.
const MIN_CODE: u64 = 16 << 20;

/// The most code that an image can have: a call reaches 2 GiB.
const MAX_CODE_SIZE: usize = (1 << 31) - (1 << 16);

/// What room for code is likely to be enough: so many times the module, and some in any case. Real
/// programs have less than ten bytes of code for one of WebAssembly.
const LIKELY_GROWTH: usize = 12;
const LIKELY_LEAST: usize = 1 << 20;

/// A function and how it is to be validated.
pub(crate) type ToCompile<'a> = (FuncToValidate<ValidatorResources>, FunctionBody<'a>);

/// Why there is no code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompileError {
    /// A function is not valid.
    #[error(transparent)]
    Invalid(#[from] wasmparser::BinaryReaderError),
    /// A valid function that cannot be compiled.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// More code than a call can reach over.
    #[error("the module has more than 2 GiB of machine code")]
    TooMuchCode,
    /// The system refused the addresses for all of the code that there may be, and there is more
    /// than is likely.
    #[error("no addresses for so much machine code")]
    NoAddresses,
    /// The system refused memory for code.
    #[error(transparent)]
    Memory(#[from] wordpatch::Error),
}

/// Compiles all functions that are not imported, in ascending order of their indices. `bytes` is
/// the binary module.
pub(crate) fn compile_all(
    module: Arc<ModuleInfo>,
    bytes: Arc<Vec<u8>>,
    functions: &[ToCompile<'_>],
    threads: usize,
) -> Result<Arc<CodeImage>, CompileError> {
    let jobs = jobs(functions);
    let threads = threads.clamp(1, jobs.len().max(1));
    let line = Line {
        module: &module,
        functions,
        jobs: &jobs,
        next: AtomicUsize::new(0),
        most_waiting: WAITING * threads,
        linking: Mutex::new(Linking {
            linker: ImageLinker::new(MAX_CODE_SIZE, LIKELY_LEAST + LIKELY_GROWTH * bytes.len())?,
            turn: 0,
            waiting: BTreeMap::new(),
            spare: Vec::new(),
            failed: None,
            stopped: false,
        }),
        turned: Condvar::new(),
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that cannot be started leaves its jobs to the others.
            let _ =
                std::thread::Builder::new().name("wasm-compile".into()).spawn_scoped(scope, || line.work());
        }
        line.work();
    });
    let Linking { linker, failed, .. } = line.linking.into_inner().unwrap_or_else(|e| e.into_inner());
    if let Some(failed) = failed {
        return Err(failed);
    }
    let mut used = vec![false; module.types.len()];
    for ty in &module.functions {
        used[*ty as usize] = true;
    }
    linker.finish(module, bytes, &used)
}

/// Neighbouring functions, by number.
fn jobs(functions: &[ToCompile<'_>]) -> Vec<Range<usize>> {
    let mut jobs = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (number, (_, body)) in functions.iter().enumerate() {
        let range = body.range();
        size += range.end - range.start;
        if size >= JOB {
            jobs.push(start..number + 1);
            (start, size) = (number + 1, 0);
        }
    }
    if start < functions.len() {
        jobs.push(start..functions.len());
    }
    jobs
}

/// What the threads share.
struct Line<'a> {
    module: &'a ModuleInfo,
    functions: &'a [ToCompile<'a>],
    jobs: &'a [Range<usize>],
    next: AtomicUsize,
    most_waiting: usize,
    linking: Mutex<Linking>,
    /// A chunk was linked, or the work has stopped.
    turned: Condvar,
}

struct Linking {
    linker: ImageLinker,
    /// The job whose chunk is linked next.
    turn: usize,
    waiting: BTreeMap<usize, Result<Chunk, CompileError>>,
    spare: Vec<Chunk>,
    failed: Option<CompileError>,
    /// After a failure, or a panic of one of the threads.
    stopped: bool,
}

impl Line<'_> {
    fn linking(&self) -> MutexGuard<'_, Linking> {
        self.linking.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What each of the threads does.
    fn work(&self) {
        let _stop = StopOnPanic(self);
        let mut compiler = Compiler::new(self.module);
        let mut allocations = FuncValidatorAllocations::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(number) else { return };
            let mut chunk = self.linking().spare.pop().unwrap_or_default();
            let compiled = self.compile(job, &mut compiler, &mut allocations, &mut chunk);
            if !self.hand_in(number, compiled.map(|()| chunk)) {
                return;
            }
        }
    }

    fn compile(
        &self,
        job: &Range<usize>,
        compiler: &mut Compiler<'_>,
        allocations: &mut FuncValidatorAllocations,
        chunk: &mut Chunk,
    ) -> Result<(), CompileError> {
        let mut wasm = 0;
        for (function, body) in &self.functions[job.clone()] {
            let index = function.index;
            let function = FuncToValidate { resources: function.resources.clone(), ..*function };
            let mut validator = function.into_validator(std::mem::take(allocations));
            validator.validate(body)?;
            *allocations = validator.into_allocations();
            compiler.compile(index, body, chunk)?;
            wasm += body.range().end - body.range().start;
            if chunk.code.len() as u64 > MIN_CODE + u64::from(MAX_GROWTH) * wasm {
                return Err(Limit {
                    function: index,
                    reason: "its code and that of its neighbours are too large",
                }
                .into());
            }
        }
        Ok(())
    }

    /// Links what can be linked, and waits while too much waits. Whether there is more to do.
    fn hand_in(&self, number: usize, compiled: Result<Chunk, CompileError>) -> bool {
        let mut linking = self.linking();
        linking.waiting.insert(number, compiled);
        let before = linking.turn;
        while !linking.stopped {
            let turn = linking.turn;
            let Some(compiled) = linking.waiting.remove(&turn) else { break };
            let bodies = self.functions[self.jobs[turn].clone()].iter().map(|(_, body)| {
                let range = body.range();
                range.start as usize..range.end as usize
            });
            let linked = compiled.and_then(|mut chunk| {
                linking.linker.add(self.module, &chunk, bodies)?;
                chunk.code.clear();
                chunk.calls.clear();
                chunk.functions.clear();
                linking.spare.push(chunk);
                Ok(())
            });
            linking.turn += 1;
            if let Err(failed) = linked {
                linking.failed = Some(failed);
                linking.stopped = true;
            }
        }
        if linking.turn != before {
            self.turned.notify_all();
        }
        // The thread that has the job whose turn it is does not wait here: it has not handed it in.
        while !linking.stopped && linking.waiting.len() > self.most_waiting {
            linking = self.turned.wait(linking).unwrap_or_else(|e| e.into_inner());
        }
        !linking.stopped
    }
}

/// Lets the other threads end when one has panicked; the scope hands the panic on.
struct StopOnPanic<'a>(&'a Line<'a>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.linking().stopped = true;
            self.0.turned.notify_all();
        }
    }
}
