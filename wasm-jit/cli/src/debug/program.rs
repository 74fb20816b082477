//! Runs of the program that is debugged.

use std::sync::Arc;

use wasm_jit::{Error, Module};
use wasm_jit_debug::{Debugger, Outcome};
use wasm_jit_monitors::Request;

use crate::Failure;
use crate::execution::{self, Run, Stop};
use crate::monitors::Monitors;
use crate::program::{self, Program};

/// Starts the program, any number of times.
#[derive(Debug)]
pub(super) struct Launcher {
    arguments: Arc<Run>,
    module: Module,
    debugger: Arc<Debugger>,
    monitors: Monitors,
}

impl Launcher {
    pub(super) fn new(
        arguments: Run,
        module: Module,
        debugger: Arc<Debugger>,
        requests: Vec<Request>,
    ) -> Result<Self, Failure> {
        let monitors = Monitors::start(&module, &arguments.monitors, requests)?;
        Ok(Self { arguments: Arc::new(arguments), module, debugger, monitors })
    }

    /// The exported function that is called first, if it is known.
    pub(super) fn first_function(&self) -> Option<&str> {
        let names = ["main", "__main_argc_argv", "__original_main", "__main_void", "_start"];
        let is_there = |name: &&&str| self.debugger.code().function(name).is_ok();
        let main = || names.iter().find(is_there).copied();
        self.arguments.invoke.as_deref().or_else(main)
    }

    /// Starts the program on a thread, which tells the debugger how it has ended.
    pub(super) fn start(&self) -> Result<(), Failure> {
        self.debugger.begin();
        let (arguments, module) = (self.arguments.clone(), self.module.clone());
        let (debugger, monitors) = (self.debugger.clone(), self.monitors.clone());
        let run = move || {
            let outcome = run(&arguments, module, &monitors, &debugger);
            monitors.write();
            debugger.ended(outcome);
        };
        program::with_stack(self.arguments.max_stack, run).map(|_| ())
    }
}

fn run(arguments: &Run, module: Module, monitors: &Monitors, debugger: &Arc<Debugger>) -> Outcome {
    let done = || -> Result<(), Stop> {
        let wasi = execution::wasi_context(arguments).map_err(Stop::Failure)?;
        let of_thread = |error: &Error| match execution::ended(error) {
            Ok(code) => code,
            Err(failure) => failure.report(),
        };
        let imported = (wasi, arguments.imports(module.engine()).map_err(Stop::Failure)?);
        let program = Program::new(module, imported, monitors.clone(), None, arguments.limits(), of_thread)?;
        let mut store = program.store()?;
        debugger.add_thread(store.interrupt_handle());
        let instance = program.instantiate(&mut store)?;
        execution::execute(arguments, &mut store, &instance)
    };
    execution::outcome(&done())
}
