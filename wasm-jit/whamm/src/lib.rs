//! Observes programs by scripts in the language Whamm, and by monitors that are themselves
//! WebAssembly modules.
//!
//! A script consists of *rules*: an event, a predicate, and statements that are executed at each
//! occurrence of the event for which the predicate holds. It is compiled to a *monitor module*,
//! whose exported functions are called from the code of the observed program.
//!
//! # Example
//! A script that counts the branches of a program that are taken:
//!
//! ```
//! use wasm_jit::{Engine, Instance, Linker, Module, Store};
//! use wasm_jit_whamm::lang::{ReportedValue, Script, Value};
//! use wasm_jit_whamm::monitor_module::MonitorModule;
//!
//! let engine = Engine::default();
//! let program = Module::new(&engine, r#"(module (func (export "countdown") (param i32)
//!     (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"#)?;
//!
//! // 1. Compile the script.
//! let script = b"report var taken: u32; wasm:opcode:br_if:before / arg0 != 0 / { taken++; }";
//! let script = Script::new("taken.mm", script, &[])?;
//! // 2. Load the monitor module, and attach it to the program.
//! let monitor = MonitorModule::new(Module::from_binary(&engine, script.module())?, Vec::new())?;
//! let mut store = Store::new(&engine, ());
//! let mut attached = monitor.attach(&mut store, &mut Linker::new(&engine), &program)?;
//! // 3. Run the program.
//! let instance = Instance::new(&mut store, &program, &[])?;
//! instance.get_typed_func::<i32, ()>(&mut store, "countdown")?.call(&mut store, 10)?;
//! // 4. Execute the rules for the end, and read the report.
//! attached.finish(&mut store)?;
//! let monitor = attached.instance(&mut store);
//! let report = script.report(&store, monitor)?;
//! assert_eq!(report.variables[0].name, "taken");
//! assert_eq!(report.variables[0].value, ReportedValue::Value(Value::Int(9)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The command `wasm-jit run --monitors=taken.mm app.wasm` does the same for a WASI program.
//!
//! # Modules
//! | module | purpose |
//! | --- | --- |
//! | [`lang`] | the compiler: scripts to monitor modules; problems point into the script |
//! | [`monitor_module`] | monitor modules, from scripts or from any other compiler: the names of their exports, and how they are attached |
//! | [`rewrite`] | instruments a program by rewriting it, so that it runs with its monitor in any engine |
//! | [`native`] | scripts for native programs: evaluates rules; the caller observes functions and their calls |
//!
//! # Cost
//! A monitor's function is called from compiled code, without the host in between, with the values
//! that its rule binds. A function that only adds constants is not called: the engine adds in the
//! program's code ([`monitor_module`] lists the conditions). A rule whose predicate is false at
//! match time costs nothing.
//!
//! # Threads
//! A monitor that is attached to a module belongs to a store, which one thread uses at a time.
//! [`monitor_module::SharedMonitor`] observes a program in several stores and threads.
//!
//! # Errors
//! [`lang::ScriptError`] has the problems of a script, with their positions.
//! [`monitor_module::MonitorError`] says why a module is not a monitor, or cannot be attached.
//! [`rewrite::RewriteError`] names what cannot be rewritten. Invalid scripts and modules never
//! cause a panic.
//!
//! # Limits
//! Rules that change the program (`alt`, `block_alt`) work only in programs that are instrumented
//! by [`rewrite`]; elsewhere they are refused.
//!
//! # Further reading
//! The manual of the language is `docs/whamm.md` in the repository; the directory `scripts` of this
//! crate has scripts to start from. The language is described in "Debugging WebAssembly? Put some
//! Whamm on it!" (OOPSLA 2025).

mod conditions;
mod described;
mod failure;
pub mod lang;
pub mod monitor_module;
pub mod native;
pub mod rewrite;
mod sums;
