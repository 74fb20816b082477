//! [`CallArcs`]: the interface of WasmProf.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use wasm_jit::{Error as WasmError, ExternType, ImportType, Linker, Module, ValType};

use super::{ArcData, State};
use crate::builtin::clock::Clock;
use crate::lock::lock;
use crate::{Program, Session};

/// The results of the monitor `profile`, for use while the program runs: the interface of WasmProf
/// (section 5.1.4 of the thesis) for a host. [`CallArcs::define`] makes it available to programs.
///
/// Functions are numbered by index, imports included, plus 1; 0 is the host itself.
///
/// ```
/// use wasm_jit::{Engine, Instance, Module, Store};
/// use wasm_jit_monitors::{CallArcs, Output, Session};
///
/// let module = Module::new(&Engine::default(), "(module (func $leaf) (func (export \"run\") (call $leaf)))")?;
/// let session = Session::new(&module, Output::none());
/// session.enable("profile".parse()?)?;
/// let arcs = CallArcs::of(&session).expect("the monitor has started");
/// let mut store = Store::new(module.engine(), ());
/// let run = Instance::new(&mut store, &module, &[])?.get_typed_func::<(), ()>(&mut store, "run")?;
/// run.call(&mut store, ())?;
/// assert_eq!(session.report("profile")?.get("calls"), Some(2));
/// arcs.clear_results();
/// arcs.add_arc_data(0, 1, 10.0, 2.5);
/// assert_eq!(session.report("profile")?.get("calls"), Some(10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CallArcs(Arc<State>);

impl CallArcs {
    pub(super) fn new(state: Arc<State>) -> Self {
        Self(state)
    }

    /// The calls that the monitor `profile` of a session has observed; `None` if it was not
    /// started.
    pub fn of(session: &Session) -> Option<Self> {
        session.interface("profile")
    }

    /// The time in milliseconds since an unspecified moment.
    pub fn get_time(&self) -> f64 {
        time()
    }

    /// Discards all calls and times so far, both measured and given ones.
    pub fn clear_results(&self) {
        lock(&self.0.given).clear();
        self.0.contexts.clear();
    }

    /// Adds calls from the function `source` to the function `destination`, and their time in
    /// milliseconds, to those that were given before. They are added to the measured calls.
    pub fn add_arc_data(&self, source: u32, destination: u32, calls: f64, time: f64) {
        let mut given = lock(&self.0.given);
        let arc = given.entry((source, destination)).or_default();
        arc.calls = arc.calls.saturating_add(calls as u64);
        arc.time += positive(time);
    }

    /// Replaces the calls from `source` to `destination` that were given before.
    pub fn set_arc_data(&self, source: u32, destination: u32, calls: f64, time: f64) {
        let arc = ArcData { calls: calls as u64, time: positive(time) };
        lock(&self.0.given).insert((source, destination), arc);
    }

    /// The current call graph and flat profile, as text.
    pub fn results(&self) -> String {
        let graph = self.0.graph(&Program::new(&self.0.module));
        format!("Call graph:\n{}\nFlat profile:\n{}", graph.call_graph(self.0.rows), graph.flat(self.0.rows))
    }

    /// Prints the current results to standard error, or to the file `profile.printed.txt` of the
    /// session's directory.
    pub fn print_results(&self) {
        let results = self.results();
        let mut stream = lock(&self.0.stream);
        // The program is not told that its results cannot be written.
        let _ = stream.write_all(results.as_bytes()).and_then(|()| stream.flush());
    }

    /// Defines `getTime`, `clearResults`, `addArcData`, `setArcData` and `printResults` in the
    /// module `prof` of a linker, for programs that import them. Their types are those of the
    /// thesis's appendix A, where the number of calls is an i32. It is an f64, as in the thesis's
    /// text, if the observed module imports the function so.
    ///
    /// # Errors
    /// As [`Linker::func_wrap`].
    pub fn define<T: 'static>(&self, linker: &mut Linker<T>) -> Result<(), WasmError> {
        let arcs = self.clone();
        define(linker, &self.0.module, move || Some(arcs.clone()))
    }

    /// As [`Self::define`], for the monitor `profile` of a session, which may be started later or
    /// again. While there is none, the functions do nothing, and `getTime` returns the time.
    ///
    /// # Errors
    /// As [`Linker::func_wrap`].
    pub fn define_for<T: 'static>(session: &Arc<Session>, linker: &mut Linker<T>) -> Result<(), WasmError> {
        let of_calls = Arc::downgrade(session);
        define(linker, session.module(), move || Self::of(&*of_calls.upgrade()?))
    }
}

/// Defines the functions, which act on what `arcs` returns.
fn define<T: 'static>(
    linker: &mut Linker<T>,
    module: &Module,
    arcs: impl Fn() -> Option<CallArcs> + Clone + Send + Sync + 'static,
) -> Result<(), WasmError> {
    linker.func_wrap("prof", "getTime", time)?;
    let on_arcs = |function: fn(&CallArcs)| {
        let arcs = arcs.clone();
        move || arcs().iter().for_each(function)
    };
    linker.func_wrap("prof", "clearResults", on_arcs(CallArcs::clear_results))?;
    linker.func_wrap("prof", "printResults", on_arcs(CallArcs::print_results))?;
    let on_arc = |function: fn(&CallArcs, u32, u32, f64, f64)| {
        let arcs = arcs.clone();
        move |source: i32, destination: i32, calls: f64, time: f64| {
            if let Some(arcs) = arcs() {
                function(&arcs, source as u32, destination as u32, calls, time);
            }
        }
    };
    define_arc_function(linker, module, "addArcData", on_arc(CallArcs::add_arc_data))?;
    define_arc_function(linker, module, "setArcData", on_arc(CallArcs::set_arc_data))
}

/// The time in milliseconds since an unspecified moment.
fn time() -> f64 {
    Clock::get().elapsed().as_secs_f64() * 1e3
}

impl fmt::Debug for CallArcs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallArcs").finish_non_exhaustive()
    }
}

/// Defines a function with the type with which the module imports it.
fn define_arc_function<T: 'static>(
    linker: &mut Linker<T>,
    module: &Module,
    name: &str,
    function: impl Fn(i32, i32, f64, f64) + Send + Sync + 'static,
) -> Result<(), WasmError> {
    let is_it = |import: &ImportType<'_>| (import.module(), import.name()) == ("prof", name);
    let counts_in_floats = module.imports().find(is_it).is_some_and(|import| match import.ty() {
        ExternType::Func(ty) => ty.params().nth(2) == Some(ValType::F64),
        _ => false,
    });
    if counts_in_floats {
        linker.func_wrap("prof", name, function)?;
    } else {
        let of_integers = move |source: i32, destination: i32, calls: i32, time: f64| {
            function(source, destination, f64::from(calls as u32), time);
        };
        linker.func_wrap("prof", name, of_integers)?;
    }
    Ok(())
}

fn positive(time: f64) -> f64 {
    if time > 0.0 { time } else { 0.0 }
}
