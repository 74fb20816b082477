//! Monitor modules and scripts that have their own stores: for programs that start threads, if
//! monitors are toggled while the program runs, and if the fuel of its store is limited.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use wasm_jit::{Module, Store};
use wasm_jit_monitors::{Error, Monitor, Program, Report, Session, Setup};
use wasm_jit_wasi::WasiCtx;
use wasm_jit_whamm::lang::Script;
use wasm_jit_whamm::monitor_module::{MonitorError, SharedMonitor};

use super::Failure;
use super::monitor_modules::{Files, Names, context, linker, note_unfit};
use super::script_report;

/// Whether a program may start threads.
pub(super) fn starts_threads(program: &Module) -> bool {
    program.imports().any(|import| (import.module(), import.name()) == ("wasi", "thread-spawn"))
}

/// The monitors that were started, to call their functions for the end.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedMonitors(Arc<Mutex<Vec<Arc<Shared>>>>);

#[derive(Debug)]
struct Shared {
    files: Files,
    names: Names,
    monitor: SharedMonitor<WasiCtx>,
    script: Option<Script>,
}

/// What a session owns.
struct Handle(Arc<Shared>);

impl SharedMonitors {
    /// A session that starts files of this program, too.
    pub(super) fn in_session(&self, session: Session, directory: Option<&Path>) -> Session {
        let (all, directory) = (self.clone(), directory.map(Path::to_owned));
        session.with_others(move |name, setup| {
            let files = Files::of(&name.parse().ok()?)?;
            let mut all = all.0.lock().unwrap_or_else(PoisonError::into_inner);
            let names = Names::of(files.monitor(), all.iter().map(|other| &other.names));
            let opened = Shared::open(files, names, directory.as_deref(), setup).map(Arc::new);
            Some(match opened {
                Ok(shared) => {
                    all.push(shared.clone());
                    Ok(Box::new(Handle(shared)))
                }
                Err(reason) => Err(Error::Other { name: name.to_owned(), reason }),
            })
        })
    }

    /// Calls the monitors' functions for the end.
    pub(super) fn finish(&self) {
        for shared in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            if let Err(error) = shared.monitor.finish() {
                // The program's exit code stays valid.
                Failure::of_file(shared.files.monitor(), error).report();
            }
        }
    }
}

impl Shared {
    fn open(files: Files, names: Names, directory: Option<&Path>, setup: &Setup<'_>) -> Result<Self, String> {
        let without_file = |failure: Failure| {
            let file = format!("{}: ", files.monitor().display());
            failure.message.strip_prefix(&file).unwrap_or(&failure.message).to_owned()
        };
        let (module, script) = files.load(setup.module).map_err(without_file)?;
        // A script's report is read from its memory. Its libraries may print.
        let directory = directory.filter(|_| script.is_none());
        let context = context(&names, directory).map_err(without_file)?;
        let engine = setup.module.engine();
        let mut linker = linker(engine, files.monitor(), |context: &mut WasiCtx| context)
            .map_err(|error| error.to_string())?;
        let mut store = Store::new(engine, context);
        // Only the program's fuel is limited.
        match store.set_fuel(u64::MAX) {
            Ok(()) | Err(wasm_jit::Error::NoFuel) => {}
            Err(error) => return Err(error.to_string()),
        }
        let shared = module.share(store, &mut linker, setup.module);
        let monitor = shared.map_err(|error| error.to_string())?;
        if script.is_none() {
            note_unfit(files.monitor(), monitor.unfit());
        }
        Ok(Self { files, names, monitor, script })
    }

    fn error(&self, error: &MonitorError) -> Error {
        Error::Other { name: self.files.monitor().display().to_string(), reason: error.to_string() }
    }
}

impl Monitor for Handle {
    fn activate(&self) -> Result<(), Error> {
        self.0.monitor.activate().map_err(|error| self.0.error(&error))
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.monitor.deactivate().map_err(|error| self.0.error(&error))
    }

    fn report_name(&self) -> Option<&str> {
        Some(&self.0.names.report)
    }

    /// A module, or a script that reports by functions of libraries, prints its report when the
    /// program ends.
    fn has_report(&self) -> bool {
        self.0.script.as_ref().is_some_and(Script::has_report)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let Some(script) = &self.0.script else { return };
        let found = self.0.monitor.read(|store, instance| script.report(&*store, instance));
        match found {
            Ok(found) => script_report::fill(report, &found, self.0.monitor.failure().as_ref(), program),
            Err(error) => report.text(format!("{error}\n")),
        }
    }
}
