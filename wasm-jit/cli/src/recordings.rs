//! Recordings of complete runs, and of calls in the middle of a run, which are requested at its
//! start or by another process.

use std::fs::{self, File, Metadata, OpenOptions};
use std::num::NonZeroU64;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use wasm_jit::{Module, Store};
use wasm_jit_replay::{CallRecorder, Calls, Error, Recorder};

use super::Failure;
use super::host::Host;
use super::output_file::{is_locked, is_special, refuse_inputs};
use super::units;

/// The output of a recording, and the calls to record.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    /// The trace, or the directory of the traces.
    pub(super) output: PathBuf,
    /// Whether each module has its own trace.
    pub(super) each: bool,
    pub(super) calls: FunctionCalls,
}

impl Recorded {
    /// The message if fewer calls were recorded than requested.
    pub(super) fn missing(&self, recorded: u64) -> Option<String> {
        missing(&self.output, recorded, self.calls.calls)
    }

    /// The traces of the preloaded modules.
    fn of_preloads(&self, preloads: &[(String, Module)]) -> Result<Vec<(Recorder, TraceFile)>, Failure> {
        let mut names = vec![PROGRAM];
        for (name, module) in preloads {
            let is_file_name = Path::new(name).file_name().is_some_and(|file| file == name.as_str());
            if !is_file_name || names.contains(&name.as_str()) {
                let message = format!("--each: there cannot be a trace for a module named `{name}`");
                return Err(Failure { code: 2, message });
            }
            names.push(name);
            Recorder::check(module)
                .map_err(|error| Failure::new(format_args!("--preload {name}: {error}")))?;
        }
        fs::create_dir_all(&self.output).map_err(|error| Failure::of_file(&self.output, error))?;
        let recorder = |(name, module): &(String, Module)| record(module, &self.trace(name));
        preloads.iter().map(recorder).collect()
    }

    /// All traces, if each module has one.
    fn traces(&self, preloads: &[(String, Module)]) -> Vec<PathBuf> {
        let names = preloads.iter().map(|(name, _)| name.as_str());
        names.chain([PROGRAM]).map(|name| self.trace(name)).collect()
    }

    /// The trace of a module, if each has one.
    fn trace(&self, name: &str) -> PathBuf {
        self.output.join(format!("{name}.trace"))
    }
}

/// The message if fewer calls were recorded in a trace than requested.
fn missing(trace: &Path, recorded: u64, wanted: NonZeroU64) -> Option<String> {
    let message = || format!("{}: {recorded} of {wanted} calls were recorded", trace.display());
    (recorded < wanted.get()).then(message)
}

/// The name of the program's trace, if each module has one.
const PROGRAM: &str = "program";

/// The calls to record.
#[derive(Clone, Debug, Args)]
pub(super) struct FunctionCalls {
    /// Record only calls to this function (name or index), from its CALLth call on [default: 1]:
    /// the trace begins with the memories, tables and globals that the call finds, and the host
    /// calls the function. Before and after, the program runs at full speed
    #[arg(long, value_name = "FUNCTION[:CALL]")]
    from: Option<String>,

    /// Number of calls to record; recursive calls are part of the outermost one. Changes by the
    /// program between two of the calls become changes by the host
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        requires = "from",
        value_parser = units::from_one::<NonZeroU64>
    )]
    calls: NonZeroU64,
}

impl FunctionCalls {
    /// The calls to record in a module; `None` if the run is recorded completely.
    fn of(&self, module: &Module) -> Result<Option<Calls>, Failure> {
        self.from.as_ref().map(|from| wanted(module, from, self.calls)).transpose()
    }
}

/// The calls of a function, given as `FUNCTION[:CALL]`. A name may have colons.
fn wanted(module: &Module, from: &str, number: NonZeroU64) -> Result<Calls, Failure> {
    let function = |name| super::count::function(module, name);
    if let Some(function) = function(from) {
        return Ok(Calls { function, skipped: 0, number });
    }
    let found = from.rsplit_once(':').and_then(|(name, call)| Some((name, function(name)?, call)));
    let (name, function, call) =
        found.ok_or_else(|| Failure::new(format_args!("there is no function `{from}` with code")))?;
    let first: NonZeroU64 = call.parse().map_err(|_| {
        Failure::new(format_args!("`{call}` is not the number of a call to `{name}`: the first one is 1"))
    })?;
    Ok(Calls { function, skipped: first.get() - 1, number })
}

/// Recorders of a complete run.
#[derive(Clone)]
pub(super) struct Recorders {
    pub(super) program: Recorder,
    /// The recorders of the preloaded modules, if they are recorded.
    pub(super) preloads: Vec<Recorder>,
}

/// Records a run, or calls to a function.
pub(super) enum Recording {
    Run { recorders: Recorders, _traces: Vec<TraceFile> },
    Calls(CallsToFile),
}

/// The file of a trace, which is removed if nothing was recorded and it is new.
pub(super) struct TraceFile {
    path: PathBuf,
    is_new: bool,
}

impl TraceFile {
    /// Opens a file for writing. Another recording to it would end this process by truncating the
    /// file.
    fn create(path: &Path) -> Result<(Self, File), Failure> {
        let is_new = !path.exists();
        let file = create(path)?;
        Ok((Self { path: path.to_owned(), is_new }, file))
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        if self.is_new && self.path.metadata().is_ok_and(|file| file.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Records calls to a file.
pub(super) struct CallsToFile {
    recorder: CallRecorder,
    /// Dropped after the recorder.
    trace: TraceFile,
    /// The number of calls, if it was stated.
    wanted: Option<NonZeroU64>,
}

impl CallsToFile {
    fn start(module: &Module, calls: Calls, trace: &Path) -> Result<Self, Failure> {
        CallRecorder::check(module, calls).map_err(Failure::new)?;
        let (trace, file) = TraceFile::create(trace)?;
        let recorder = CallRecorder::start_to_file::<Host>(module, calls, file).map_err(Failure::new)?;
        Ok(Self { recorder, trace, wanted: Some(calls.number) })
    }

    /// Records calls of all functions.
    fn start_all(module: &Module, calls: Option<NonZeroU64>, trace: &Path) -> Result<Self, Failure> {
        Recorder::check(module).map_err(Failure::new)?;
        let (trace, file) = TraceFile::create(trace)?;
        let recorder = CallRecorder::start_all_to_file::<Host>(module, calls, file).map_err(Failure::new)?;
        Ok(Self { recorder, trace, wanted: calls })
    }

    /// Ends the recording. Returns the number of calls.
    fn stop(&self) -> Result<u64, Error> {
        self.recorder.stop()
    }

    /// As [`Self::stop`], but prints what is wrong with the recording.
    fn finish(&self) {
        let trace = &self.trace.path;
        match self.stop() {
            Ok(calls) => {
                let message = self.wanted.and_then(|wanted| missing(trace, calls, wanted));
                message.into_iter().for_each(|message| _ = Failure::new(message).report());
            }
            Err(error) => _ = Failure::of_file(trace, error).report(),
        }
    }
}

impl Recording {
    /// Records to files, which must not be among the inputs. They are overwritten when there is
    /// something to record.
    pub(super) fn start(
        module: &Module,
        (program, inputs): (&Path, &[&Path]),
        preloads: &[(String, Module)],
        recorded: &Recorded,
    ) -> Result<Self, Failure> {
        let outputs = match recorded.each {
            true => recorded.traces(preloads),
            false => vec![recorded.output.clone()],
        };
        for output in outputs {
            refuse_inputs(&output, inputs.iter().copied())?;
        }
        let about = |failure: Failure| failure.about(program.display());
        if let Some(calls) = recorded.calls.of(module).map_err(about)? {
            return CallsToFile::start(module, calls, &recorded.output).map(Self::Calls).map_err(about);
        }
        Recorder::check(module).map_err(|error| Failure::of_file(program, error))?;
        let (preloads, trace) = match recorded.each {
            true => (recorded.of_preloads(preloads)?, recorded.trace(PROGRAM)),
            false => (Vec::new(), recorded.output.clone()),
        };
        let (program, trace) = record(module, &trace)?;
        let (preloads, mut traces): (Vec<_>, Vec<_>) = preloads.into_iter().unzip();
        traces.push(trace);
        Ok(Self::Run { recorders: Recorders { program, preloads }, _traces: traces })
    }

    /// The recorders of a complete run, which begin when the modules are instantiated.
    pub(super) fn of_run(&self) -> Option<Recorders> {
        match self {
            Self::Run { recorders, .. } => Some(recorders.clone()),
            Self::Calls(_) => None,
        }
    }

    /// Ends the recording after the end of the program. Returns the number of recorded calls, if
    /// calls to a function are recorded.
    pub(super) fn finish(self, store: &mut Store<Host>, program: &Path) -> Result<Option<u64>, Failure> {
        let stopped = match &self {
            Self::Run { recorders: Recorders { program, preloads }, .. } => {
                let mut all = std::iter::once(program).chain(preloads);
                all.try_for_each(|recorder| recorder.stop(&mut *store)).map(|()| None)
            }
            Self::Calls(recorder) => recorder.stop().map(Some),
        };
        stopped.map_err(|error| Failure::of_file(program, error))
    }
}

/// Records a run of a module to a file.
fn record(module: &Module, trace: &Path) -> Result<(Recorder, TraceFile), Failure> {
    let (trace, file) = TraceFile::create(trace)?;
    Ok((Recorder::to_file(module, file).map_err(Failure::new)?, trace))
}

fn create(trace: &Path) -> Result<File, Failure> {
    let is_special = is_special(trace);
    let opened = match is_special {
        true => File::create(trace),
        // A part of the file is mapped, which requires read access.
        false => OpenOptions::new().read(true).write(true).create(true).truncate(false).open(trace),
    };
    let opened = opened.or_else(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => OpenOptions::new().write(true).open(trace),
        _ => Err(error),
    });
    let file = opened.map_err(|error| Failure::of_file(trace, error))?;
    if is_locked(&file) && !is_special {
        return Err(Failure::of_file(trace, "another recording writes to it"));
    }
    Ok(file)
}

/// In a request, the number of calls of a recording that has all calls until it is ended.
const ALL: &str = "all";

/// The request to start a recording: `record CALLS FUNCTION[:CALL] TRACE`, separated by tabs.
/// Without `from`, the function is empty: all functions are recorded, and CALLS may be [`ALL`].
pub(super) fn starting(from: Option<&str>, calls: Option<NonZeroU64>, trace: &Path) -> String {
    let calls = match (calls, from) {
        (Some(calls), _) => calls.to_string(),
        (None, Some(_)) => "1".to_owned(),
        (None, None) => ALL.to_owned(),
    };
    format!("record {calls}\t{}\t{}", from.unwrap_or_default(), trace.display())
}

/// A recording of a running program, which other processes request. When it is dropped, at the end
/// of the program, the recording ends.
pub(super) struct AttachedRecording {
    module: Module,
    /// The files of the modules that run.
    inputs: Vec<PathBuf>,
    current: Mutex<Option<CallsToFile>>,
}

impl AttachedRecording {
    pub(super) fn new(module: &Module, inputs: &[&Path]) -> Self {
        let inputs = inputs.iter().map(|input| input.to_path_buf()).collect();
        Self { module: module.clone(), inputs, current: Mutex::default() }
    }

    /// Answers a request without the word `record`: one [to start](starting) a recording, or
    /// nothing, which ends it and returns the number of calls.
    pub(super) fn answer(&self, request: &str) -> Result<String, String> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let fields: Vec<&str> = request.splitn(3, '\t').collect();
        match fields[..] {
            [""] => {
                let recorder = current.take().ok_or("the program is not recorded")?;
                recorder.stop().map(|calls| format!("calls: {calls}\n")).map_err(|error| error.to_string())
            }
            [calls, from, trace] => {
                if current.as_ref().is_some_and(|calls| !calls.recorder.has_ended()) {
                    return Err("the program is recorded already".to_owned());
                }
                if let Some(ended) = current.take() {
                    ended.finish();
                }
                let is_fifo = |file: Metadata| file.file_type().is_fifo();
                if Path::new(trace).metadata().is_ok_and(is_fifo) {
                    return Err(format!("{trace} is a FIFO, for whose reader the program would wait"));
                }
                let inputs = self.inputs.iter().map(PathBuf::as_path);
                refuse_inputs(trace.as_ref(), inputs).map_err(|failure| failure.message)?;
                let number = || calls.parse::<NonZeroU64>().map_err(|error| format!("{calls}: {error}"));
                let started = match from {
                    "" => {
                        let calls = if calls == ALL { None } else { Some(number()?) };
                        CallsToFile::start_all(&self.module, calls, trace.as_ref())
                    }
                    from => wanted(&self.module, from, number()?)
                        .and_then(|calls| CallsToFile::start(&self.module, calls, trace.as_ref())),
                };
                *current = Some(started.map_err(|failure| failure.message)?);
                Ok(String::new())
            }
            _ => Err("expected CALLS, FUNCTION[:CALL] and TRACE, separated by tabs".to_owned()),
        }
    }
}

impl Drop for AttachedRecording {
    fn drop(&mut self) {
        if let Some(calls) = self.current.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            calls.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use nix::sys::stat::Mode;
    use wasm_jit::Engine;

    use super::*;

    #[test]
    fn requests_state_the_number_of_calls() {
        let request = |from, calls| starting(from, NonZeroU64::new(calls), "app.trace".as_ref());
        assert_eq!(request(None, 0), "record all\t\tapp.trace");
        assert_eq!(request(None, u64::MAX), "record 18446744073709551615\t\tapp.trace");
        assert_eq!(request(Some("f:9"), 0), "record 1\tf:9\tapp.trace");
        assert_eq!(request(Some("f"), 7), "record 7\tf\tapp.trace");
        let folder = tempfile::tempdir().unwrap();
        let module = Module::new(&Engine::default(), r#"(module (func (export "f")))"#).unwrap();
        let trace = folder.path().join("trace");
        for (from, calls, wanted) in [
            (None, None, None),
            (None, NonZeroU64::new(u64::MAX), NonZeroU64::new(u64::MAX)),
            (Some("f"), None, NonZeroU64::new(1)),
        ] {
            let recording = AttachedRecording::new(&module, &[]);
            let request = starting(from, calls, &trace);
            recording.answer(request.strip_prefix("record ").unwrap()).unwrap();
            let current = recording.current.lock().unwrap();
            assert_eq!(current.as_ref().unwrap().wanted, wanted, "{request}");
        }
        let recording = AttachedRecording::new(&module, &[]);
        let error = recording.answer(&format!("all\tf\t{}", trace.display())).unwrap_err();
        assert_eq!(error, "all: invalid digit found in string");
    }

    /// The program would stop until someone reads the pipe, and its end would wait, too.
    #[test]
    fn another_process_cannot_have_the_program_write_to_a_fifo() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        // Without a reader, a program that opens it waits for ever.
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let module = Module::new(&Engine::default(), r#"(module (func (export "f")))"#).unwrap();
        let recording = AttachedRecording::new(&module, &[]);
        let error = recording.answer(&format!("1\tf\t{}", path.display())).unwrap_err();
        assert!(error.ends_with("trace is a FIFO, for whose reader the program would wait"), "{error}");
        drop(reader);
        recording.answer(&format!("1\tf\t{}", folder.path().join("app.trace").display())).unwrap();
    }
}
