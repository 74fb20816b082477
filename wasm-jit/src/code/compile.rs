//! Validates and compiles the functions of a module on several threads.
//!
//! # The algorithm
//! 1. Neighbouring functions form jobs of about 128 KiB of Wasm. Threads take jobs in order.
//! 2. A job's functions are validated and compiled into one chunk.
//! 3. Chunks are linked in the order of the jobs, independently of which thread finishes them: a
//!    thread that finishes the next chunk in order links it, and all consecutive chunks that are
//!    waiting. The image therefore does not depend on the number of threads, nor does the reported
//!    error of a module that has several.
//! 4. A thread that is too far ahead waits, so that only a few chunks are held at any time. Linked
//!    chunks are reused.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;
use wasm_jit_codegen::{Chunk, Compiler, Limit, MAX_GROWTH, ModuleInfo};
use wasmparser::{
    BinaryReaderError, FuncToValidate, FuncValidatorAllocations, FunctionBody, ValidatorResources,
};

use super::CodeImage;
use super::error::CompileError;
use super::link::{ImageLinker, LazySizes};

/// Wasm bytes in a job: large enough that taking a job costs nothing, small enough that the last
/// jobs are distributed over the threads.
const JOB: u64 = 128 << 10;

/// The number of finished chunks per thread that may wait to be linked.
const WAITING: usize = 4;

/// Code size that is permitted for every job, in addition to [`MAX_GROWTH`] times its bytes of
/// Wasm.
const MIN_CODE: u64 = 16 << 20;

/// Maximum code size of an image: the range of a call is 2 GiB.
const MAX_CODE_SIZE: usize = (1 << 31) - (1 << 16);

/// Code size that is likely to be enough, as a multiple of the module's size, plus a constant. Real
/// programs have less than ten bytes of machine code for each byte of WebAssembly.
const LIKELY_GROWTH: usize = 12;
const LIKELY_MIN: usize = 1 << 20;

/// A function and its validator.
pub(crate) type ToCompile<'a> = (FuncToValidate<ValidatorResources>, FunctionBody<'a>);

/// Compiles all functions that are not imported, which are given in ascending order of their
/// indices. `bytes` is the binary module.
pub(crate) fn compile_all(
    module: Arc<ModuleInfo>,
    bytes: Bytes,
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
        max_waiting: WAITING * threads,
        linking: Mutex::new(Linking {
            linker: ImageLinker::new(MAX_CODE_SIZE, LIKELY_MIN + LIKELY_GROWTH * bytes.len())?,
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
            // If a thread cannot be started, the others do its jobs.
            let _ =
                std::thread::Builder::new().name("wasm-compile".into()).spawn_scoped(scope, || line.work());
        }
        line.work();
    });
    let Linking { linker, failed, .. } = line.linking.into_inner().unwrap_or_else(|e| e.into_inner());
    if let Some(failed) = failed {
        return Err(failed);
    }
    let used = used_types(&module);
    linker.finish(module, bytes, &used)
}

/// For each type, whether a function has it.
fn used_types(module: &ModuleInfo) -> Vec<bool> {
    let mut used = vec![false; module.types.len()];
    for ty in &module.functions {
        used[*ty as usize] = true;
    }
    used
}

/// Validates all functions that are not imported, and makes an image in which each is compiled when
/// it is first called.
pub(crate) fn compile_lazily(
    module: Arc<ModuleInfo>,
    bytes: Bytes,
    functions: &[ToCompile<'_>],
    threads: usize,
) -> Result<Arc<CodeImage>, CompileError> {
    validate(functions, threads)?;
    let used = used_types(&module);
    let linker = ImageLinker::new(MAX_CODE_SIZE, LIKELY_MIN + LIKELY_GROWTH * bytes.len())?;
    let bodies = functions.iter().map(|(_, body)| body.range().start as u32..body.range().end as u32);
    let wasm = functions.iter().map(|(_, body)| body.range().end - body.range().start).sum::<u64>() as usize;
    let sizes = LazySizes {
        most: MIN_CODE as usize + MAX_GROWTH as usize * wasm,
        likely: LIKELY_MIN + LIKELY_GROWTH * wasm,
    };
    linker.finish_lazily(module, bytes, bodies, sizes, &used)
}

/// Validates functions on several threads. Returns the first error in the order of the functions.
fn validate(functions: &[ToCompile<'_>], threads: usize) -> Result<(), CompileError> {
    let jobs = jobs(functions);
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, BinaryReaderError)>> = Mutex::new(None);
    let failed_job = || failed.lock().unwrap_or_else(|e| e.into_inner());
    let work = || {
        let mut allocations = FuncValidatorAllocations::default();
        // Jobs are taken in order: those before one that fails are completed by the threads that
        // took them.
        while failed_job().is_none()
            && let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(job) = jobs.get(number)
        {
            if let Err(error) = validate_job(&functions[job.clone()], &mut allocations) {
                let mut failed = failed_job();
                if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                    *failed = Some((number, error));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, jobs.len().max(1)) {
            // If a thread cannot be started, the others do its jobs.
            let _ = std::thread::Builder::new().name("wasm-validate".into()).spawn_scoped(scope, work);
        }
        work();
    });
    match failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some((_, error)) => Err(error.into()),
        None => Ok(()),
    }
}

fn validate_job(
    functions: &[ToCompile<'_>],
    allocations: &mut FuncValidatorAllocations,
) -> Result<(), BinaryReaderError> {
    for (function, body) in functions {
        let function = FuncToValidate { resources: function.resources.clone(), ..*function };
        let mut validator = function.into_validator(std::mem::take(allocations));
        validator.validate(body)?;
        *allocations = validator.into_allocations();
    }
    Ok(())
}

/// Jobs of neighbouring functions, as ranges.
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

/// State that the threads share.
struct Line<'a> {
    module: &'a ModuleInfo,
    functions: &'a [ToCompile<'a>],
    jobs: &'a [Range<usize>],
    next: AtomicUsize,
    max_waiting: usize,
    linking: Mutex<Linking>,
    /// Notified when a chunk was linked, or the work has stopped.
    turned: Condvar,
}

struct Linking {
    linker: ImageLinker,
    /// The job whose chunk is linked next.
    turn: usize,
    waiting: BTreeMap<usize, Result<Chunk, CompileError>>,
    spare: Vec<Chunk>,
    failed: Option<CompileError>,
    /// Set after a failure, or a panic of one of the threads.
    stopped: bool,
}

impl Line<'_> {
    fn linking(&self) -> MutexGuard<'_, Linking> {
        self.linking.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The work of each thread.
    fn work(&self) {
        let _stop = StopOnPanic(self);
        let mut compiler = Compiler::new(self.module);
        let mut allocations = FuncValidatorAllocations::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(number) else { return };
            let mut chunk = self.linking().spare.pop().unwrap_or_default();
            let compiled = self.compile(job, &mut compiler, &mut allocations, &mut chunk);
            if !self.submit(number, compiled.map(|()| chunk)) {
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
            compiler.validate_and_compile(&mut validator, body, chunk)?;
            *allocations = validator.into_allocations();
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

    /// Submits a chunk, links all chunks that can be linked, and waits while too many are waiting.
    /// Returns whether there is more to do.
    fn submit(&self, number: usize, compiled: Result<Chunk, CompileError>) -> bool {
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
        // The thread with the next job in order does not wait here: it has not submitted it yet.
        while !linking.stopped && linking.waiting.len() > self.max_waiting {
            linking = self.turned.wait(linking).unwrap_or_else(|e| e.into_inner());
        }
        !linking.stopped
    }
}

/// Stops the other threads after a panic; the scope propagates the panic.
struct StopOnPanic<'a>(&'a Line<'a>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.linking().stopped = true;
            self.0.turned.notify_all();
        }
    }
}
