//! `wasm-jit run --monitors=FILE`: monitors that are modules of WebAssembly.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use wasm_jit::{Linker, Module, Store};
use wasm_jit_wasi::{WasiCtx, WasiCtxBuilder};
use wasm_jit_whamm::monitor_module::{Attached, MonitorModule};

use super::Failure;
use super::program::Host;

/// A monitor module, as on the command line: `FILE[+LIBRARY]...`.
#[derive(Clone, Debug)]
pub(super) struct Files {
    monitor: PathBuf,
    libraries: Vec<PathBuf>,
}

impl Files {
    /// `None` if it is the name of a monitor of this program.
    pub(super) fn of(text: &str) -> Option<Self> {
        let is_file =
            |name: &str| [".wasm", ".wat", ".mm"].iter().any(|end| name.ends_with(end)) || name.contains('/');
        if text.contains('{') || !is_file(text) {
            return None;
        }
        let mut files = text.split('+').map(PathBuf::from);
        Some(Self { monitor: files.next()?, libraries: files.collect() })
    }

    fn load(&self, program: &Module) -> Result<MonitorModule, Failure> {
        let load = |file: &Path| super::load(program.engine(), file);
        let library = |file: &PathBuf| {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, load(file)?))
        };
        let libraries = self.libraries.iter().map(library).collect::<Result<_, Failure>>()?;
        let module = match self.monitor.extension().is_some_and(|extension| extension == "mm") {
            true => {
                let binary = super::whamm::compile_script(&self.monitor)?;
                Module::from_binary(program.engine(), &binary)
                    .map_err(|error| Failure::of_file(&self.monitor, error))?
            }
            false => load(&self.monitor)?,
        };
        let monitor = MonitorModule::new(module, libraries);
        let monitor = monitor.map_err(|error| Failure::of_file(&self.monitor, error))?;
        if monitor.rules().len() == 0 {
            let problem = "none of its exports is a rule, so that it would observe nothing";
            return Err(Failure::of_file(&self.monitor, problem));
        }
        Ok(monitor)
    }
}

/// The monitor modules of a program, attached to it in the store of its main thread.
#[derive(Debug, Default)]
pub(super) struct MonitorModules(Vec<(PathBuf, Attached)>);

impl MonitorModules {
    /// Attaches them in order.
    pub(super) fn attach(
        files: &[Files],
        directory: Option<&Path>,
        store: &mut Store<Host>,
        program: &Module,
    ) -> Result<Self, Failure> {
        let spawns = |names: (&str, &str)| names == ("wasi", "thread-spawn");
        if !files.is_empty() && program.imports().any(|import| spawns((import.module(), import.name()))) {
            return Err(Failure::new("a monitor module cannot observe a program that starts threads"));
        }
        let mut attached = Vec::new();
        for files in files {
            let failed = |error: &dyn std::fmt::Display| Failure::of_file(&files.monitor, error);
            let monitor = files.load(program)?;
            store.data_mut().monitors.push(context(&files.monitor, directory)?);
            let number = store.data().monitors.len() - 1;
            let mut linker = Linker::new(program.engine());
            wasm_jit_wasi::add_to_linker(&mut linker, move |host: &mut Host| &mut host.monitors[number])
                .map_err(|error| failed(&error))?;
            let probes = monitor.attach(store, &mut linker, program).map_err(|error| failed(&error))?;
            attached.push((files.monitor.clone(), probes));
        }
        Ok(Self(attached))
    }

    /// Calls their functions of the end.
    pub(super) fn finish(&mut self, store: &mut Store<Host>) {
        for (file, attached) in &mut self.0 {
            if let Err(error) = attached.finish(store) {
                // The program's exit code holds.
                Failure::of_file(file, error).report();
            }
        }
    }
}

/// What a monitor sees of the host: standard output and error. The former is standard error, as for
/// other reports, or a file in the directory of reports. Whamm's library writes to it if this
/// variable is set, otherwise to a file of its own.
fn context(monitor: &Path, directory: Option<&Path>) -> Result<WasiCtx, Failure> {
    let mut builder = WasiCtxBuilder::new();
    builder.inherit_stderr().env("TO_CONSOLE", "true");
    match directory {
        None => builder.stdout(std::io::stderr()),
        Some(directory) => {
            let name = monitor.with_extension("txt");
            let path = directory.join(name.file_name().unwrap_or_default());
            let file = File::create(&path).map_err(|error| Failure::of_file(&path, error))?;
            builder.stdout(BufWriter::new(file))
        }
    };
    Ok(builder.build())
}
