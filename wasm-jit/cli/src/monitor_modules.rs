//! `wasm-jit run --monitors=FILE`: monitors that are WebAssembly modules, in the program's store.
//! If the program starts threads, its fuel is limited, or other processes may toggle the monitors,
//! these have [their own stores](super::shared_monitors).

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use wasm_jit::{Engine, Error, Linker, Module, Store};
use wasm_jit_monitors::{Options, Program, Request};
use wasm_jit_wasi::{WasiCtx, WasiCtxBuilder};
use wasm_jit_whamm::lang::{Script, ScriptReport};
use wasm_jit_whamm::monitor_module::{Attached, MonitorModule, Unfit};

use super::Failure;
use super::host::Host;
use super::script_report;
use super::whamm::{Source, library_name};

/// A monitor module, as on the command line: `FILE[+LIBRARY]...`.
#[derive(Clone, Debug)]
pub(super) struct Files {
    monitor: PathBuf,
    libraries: Vec<PathBuf>,
}

impl Files {
    /// `None` if the request is for a built-in monitor, or has options, which sessions refuse for
    /// files.
    pub(super) fn of(request: &Request) -> Option<Self> {
        if !request.is_file() || request.options != Options::default() {
            return None;
        }
        let mut files = request.name.split('+').map(PathBuf::from);
        Some(Self { monitor: files.next()?, libraries: files.collect() })
    }

    /// The file of the monitor.
    pub(super) fn monitor(&self) -> &Path {
        &self.monitor
    }

    /// The name by which all processes know it.
    pub(super) fn absolute(&self) -> String {
        let all = [&self.monitor].into_iter().chain(&self.libraries);
        // Without a current directory, it stays relative.
        let absolute = all.map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
        absolute.map(|file| file.to_string_lossy().into_owned()).collect::<Vec<_>>().join("+")
    }

    fn script(&self) -> Option<Source> {
        let is_script = self.monitor.extension().is_some_and(|extension| extension == "mm");
        is_script.then(|| Source { script: self.monitor.clone(), libraries: self.libraries.clone() })
    }

    /// Reports the mistakes in a script. Those of one that a session compiles would be failures of
    /// the session.
    pub(super) fn check_script(&self, engine: &Engine) -> Result<(), Failure> {
        self.script().map_or(Ok(()), |script| script.compile_here(engine).map(drop))
    }

    /// The monitor, and the script if it is one.
    pub(super) fn load(&self, program: &Module) -> Result<(MonitorModule, Option<Script>), Failure> {
        let engine = program.engine();
        let failed = |error: &dyn std::fmt::Display| Failure::of_file(&self.monitor, error);
        let (module, script, libraries) = if let Some(source) = self.script() {
            let (script, libraries) = source.compile_here(engine)?;
            let module = Module::from_binary(engine, script.module()).map_err(|error| failed(&error))?;
            (module, Some(script), libraries)
        } else {
            let library = |file: &PathBuf| Ok((library_name(file), super::load(engine, file)?));
            let libraries = self.libraries.iter().map(library).collect::<Result<_, Failure>>()?;
            (super::load(engine, &self.monitor)?, None, libraries)
        };
        let monitor = MonitorModule::new(module, libraries).map_err(|error| failed(&error))?;
        // A script may only act at the beginning and the end, or do nothing.
        if script.is_none() && monitor.rules().len() == 0 {
            return Err(failed(&"none of its exports is a rule, so that it would observe nothing"));
        }
        let narrow = script.iter().flat_map(|script| script.narrow_rules(program));
        super::whamm::report_narrow(&self.monitor, narrow);
        Ok((monitor, script))
    }
}

/// The monitor modules of a program, attached to it in the store of its main thread.
#[derive(Debug, Default)]
pub(super) struct MonitorModules(Vec<Monitor>);

#[derive(Debug)]
struct Monitor {
    file: PathBuf,
    names: Names,
    attached: Attached,
    script: Option<Script>,
}

/// The names of a monitor's reports, which no other monitor has.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The name of a script's report.
    pub(super) report: String,
    /// The name of the file for what a module prints.
    printed: String,
}

impl Names {
    /// The names of the next monitor.
    pub(super) fn of<'a>(file: &Path, others: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let is_used = |of: fn(&Self) -> &str, name: &str| others.clone().any(|other| of(other) == name);
        let report = file.file_name().unwrap_or_default().to_string_lossy();
        let report = script_report::unused(&report, |name| is_used(|other| &other.report, name));
        let printed = file.file_stem().unwrap_or_default().to_string_lossy();
        let printed = script_report::unused(&printed, |name| is_used(|other| &other.printed, name));
        Self { report, printed }
    }
}

/// The results of scripts, by the names of their reports.
#[derive(Debug, Default)]
pub(super) struct Finished(Vec<(String, ScriptReport)>);

impl MonitorModules {
    /// Attaches the monitors in order.
    pub(super) fn attach(
        files: &[Files],
        directory: Option<&Path>,
        store: &mut Store<Host>,
        program: &Module,
    ) -> Result<Self, Failure> {
        let mut attached: Vec<Monitor> = Vec::new();
        for files in files {
            let failed = |error: &dyn std::fmt::Display| Failure::of_file(&files.monitor, error);
            let (monitor, script) = files.load(program)?;
            // A script's report is read from its memory. Its libraries may print.
            let directory = directory.filter(|_| script.is_none());
            let names = Names::of(&files.monitor, attached.iter().map(|other| &other.names));
            store.data_mut().monitors.push(context(&names, directory)?);
            let number = store.data().monitors.len() - 1;
            let mut linker =
                linker(program.engine(), &files.monitor, move |host: &mut Host| &mut host.monitors[number])
                    .map_err(|error| failed(&error))?;
            let probes = monitor.attach(store, &mut linker, program).map_err(|error| failed(&error))?;
            if script.is_none() {
                note_unfit(&files.monitor, probes.unfit());
            }
            attached.push(Monitor { file: files.monitor.clone(), names, attached: probes, script });
        }
        Ok(Self(attached))
    }

    /// The file of the monitor that caused an error, itself or in a function that it called, if one
    /// did.
    pub(super) fn culprit(&self, error: &Error, store: &mut Store<Host>) -> Option<&Path> {
        let frames = error.backtrace()?.frames();
        let is_there = |monitor: &&Monitor| {
            let instance = *monitor.attached.instance(&mut *store);
            let instance = instance.id(&*store);
            frames.iter().any(|frame| frame.instance() == instance)
        };
        self.0.iter().find(is_there).map(|monitor| monitor.file.as_path())
    }

    /// Calls the monitors' functions for the end, and reads the reports of scripts.
    pub(super) fn finish(&mut self, store: &mut Store<Host>) -> Finished {
        let mut finished = Finished::default();
        for Monitor { file, names, attached, script } in &mut self.0 {
            if let Err(error) = attached.finish(store) {
                // The program's exit code stays valid.
                Failure::of_file(file, error).report();
            }
            let instance = attached.instance(&mut *store);
            match script.as_ref().map(|script| script.report(&*store, instance)) {
                // A script that reports by functions of libraries has nothing else to report.
                Some(Ok(report)) if report.variables.is_empty() && report.rules.is_empty() => {}
                Some(Ok(report)) => finished.0.push((names.report.clone(), report)),
                Some(Err(error)) => _ = Failure::of_file(file, error).report(),
                None => {}
            }
        }
        finished
    }
}

impl Finished {
    /// Writes the reports of scripts, as those of other monitors.
    pub(super) fn report(&self, program: &Module, arguments: &super::monitors::Arguments) {
        if self.0.is_empty() {
            return;
        }
        let program = Program::new(program);
        let reports: Vec<_> =
            self.0.iter().map(|(name, report)| script_report::report(name, report, &program)).collect();
        let written = arguments.output().and_then(|output| output.write(&reports).map_err(Failure::new));
        if let Err(failure) = written {
            failure.about("monitors").report();
        }
    }
}

/// A monitor has called `proc_exit`.
#[derive(Debug)]
struct AskedForExit(PathBuf);

impl std::fmt::Display for AskedForExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the monitor {} called `proc_exit`: a monitor cannot end the program", self.0.display())
    }
}

impl std::error::Error for AskedForExit {}

/// What a monitor may import: WASI, except ending the process, which is up to the program.
pub(super) fn linker<T: 'static>(
    engine: &Engine,
    file: &Path,
    context: impl Fn(&mut T) -> &mut WasiCtx + Copy + Send + Sync + 'static,
) -> Result<Linker<T>, Error> {
    let mut linker = Linker::new(engine);
    wasm_jit_wasi::add_to_linker(&mut linker, context)?;
    let file = file.to_owned();
    let exit = move |_: i32| -> Result<(), Error> { Err(Error::host(AskedForExit(file.clone()))) };
    for module in ["wasi_snapshot_preview1", "wasi_unstable"] {
        linker.allow_shadowing(true).func_wrap(module, "proc_exit", exit.clone())?;
    }
    linker.allow_shadowing(false);
    Ok(linker)
}

/// Reports which rules of a monitor module observe nothing because of their types.
pub(super) fn note_unfit(file: &Path, unfit: &[Unfit]) {
    for Unfit { export, places } in unfit {
        let message = format!(
            "`{export}` observes nothing: it matches {places} places, but none with its values in the types of the function's parameters"
        );
        Failure::of_file(file, message).report();
    }
}

/// The host as a monitor sees it: standard output and error. Standard output is standard error, as
/// for other reports, or a file in the directory of reports. Whamm's library writes to it if this
/// variable is set, and otherwise to a separate file.
pub(super) fn context(names: &Names, directory: Option<&Path>) -> Result<WasiCtx, Failure> {
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stderr().env("TO_CONSOLE", "true");
    match directory {
        None => builder.stdout(std::io::stderr()),
        Some(directory) => {
            let path = directory.join(format!("{}.txt", names.printed));
            let file = File::create(&path).map_err(|error| Failure::of_file(&path, error))?;
            builder.stdout(BufWriter::new(file))
        }
    };
    Ok(builder.build())
}
