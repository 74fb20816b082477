//! Probes on every instruction of a module, or of all modules of an engine.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use super::values::{self, Body};
use super::{Bound, Branches, Kind, Location, Place, ProbeError, ValueError, executions, requested};
use crate::code::CodeImage;
use crate::code::forks::{self, Locked};
use crate::code::probed::enter::{self, Enters};
use crate::code::probed::{MakeError, NoProbe, Request};
use crate::code::sections::Sections;
use crate::engine::{Engine, WatchesImages};
use crate::module::Module;

/// A probe on every instruction of a module, or of all modules of an engine, off at first. Dropping
/// it removes it.
///
/// # When it takes effect
/// [`GlobalProbe::activate`] makes the entries of functions lead to a stub, at a cost of one store
/// for each function. The probes of a function are made when it is first entered after that, by the
/// thread that enters it; other threads that enter it wait until then. Functions that do not run
/// therefore cost nothing more. The probes of functions that were probed before, or that have
/// frames, are made at once, and take effect as those of [`Module::probes`] do: in existing frames,
/// at the next iteration of a loop, or when a call returns.
///
/// To find the functions that have frames, each thread that runs a store with an instance of the
/// module is sent the signal of [`Config::interrupt_signal`](crate::Config::interrupt_signal), so
/// that a system call by a host function may fail with `EINTR`. If one of these threads does not
/// respond within 100 ms, because it blocks the signal, is in a host function that runs on a stack
/// of its own, or is not scheduled, the frames that exist are not observed: observation of their
/// functions begins with the next call.
///
/// When the probe is switched off, functions return to their original code. Their probes are kept,
/// and used again when the global probe is switched on.
///
/// # Memory
/// A global probe takes about 200 bytes for each function of the module. In addition, each
/// instruction of functions that were entered takes 950 bytes for [`Kind::Count`], and 2,600 to
/// 2,800 for [`Kind::Callback`] and [`Kind::Generic`], measured as the peak of a process that runs
/// a function of 264,000 instructions, including what is needed only while the probes are made.
/// With hundreds of locals, [`Kind::Generic`] takes about 1,400 more. Stubs of kinds that call
/// functions are [limited](ProbeError::StubMemory). Functions beyond that limit are
/// [refused](GlobalProbe::refused), and tried again whenever the probe is switched on. All of this
/// memory is kept until the module's code is freed.
///
/// # Example
/// ```
/// use wasm_jit::probes::Kind;
/// use wasm_jit::{Engine, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, "(module (func (export \"add\") (param i32 i32) (result i32)
///     (i32.add (local.get 0) (local.get 1))))")?;
/// let instructions = module.global_probe(Kind::Count)?;
/// instructions.activate()?;
/// let mut store = Store::new(&engine, ());
/// let add = Instance::new(&mut store, &module, &[])?.get_typed_func::<(i32, i32), i32>(&mut store, "add")?;
/// add.call(&mut store, (3, 4))?;
/// assert_eq!(instructions.count(), 4, "the end of the function is one, too");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the probe is removed when it is dropped"]
pub struct GlobalProbe(Arc<Global>);

struct Global {
    kind: Kind,
    /// Identifies the probe in images and engines.
    number: u64,
    /// The module, if the probe is for one only: its code is kept alive.
    _image: Option<Arc<CodeImage>>,
    /// The engine, if the probe is for all of its modules.
    engine: Option<Engine>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_active: bool,
    images: Vec<OfImage>,
}

/// The probes in a module.
struct OfImage {
    image: Weak<CodeImage>,
    /// Probes by function, by their numbers.
    functions: HashMap<u32, Vec<usize>>,
    /// The functions that were refused since they were last requested.
    refused: Vec<(u32, ProbeError)>,
}

impl OfImage {
    fn new(image: &Arc<CodeImage>) -> Self {
        Self { image: Arc::downgrade(image), functions: HashMap::new(), refused: Vec::new() }
    }

    /// The image, if it exists, also in `kept`.
    fn image(&self, kept: &mut Kept) -> Option<Arc<CodeImage>> {
        let image = self.image.upgrade()?;
        kept.push(image.clone());
        Some(image)
    }
}

/// Images that a thread uses while it has the lock of the state. Dropped after the lock: if the
/// module was dropped meanwhile, this frees the image, for which the thread takes locks that a
/// forking thread may have, which waits for the lock of the state.
type Kept = Vec<Arc<CodeImage>>;

/// A function whose instructions a global probe does not observe.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RefusedFunction {
    /// The module's name, if it has one.
    pub module: Option<String>,
    /// The function's index, imports included.
    pub function: u32,
    /// Why there are no probes.
    pub error: ProbeError,
}

impl Module {
    /// Makes a probe on every instruction of the module; for [`Kind::CountBranch`], on every
    /// instruction that it can count. Entries and exits of functions are not instructions.
    ///
    /// # Errors
    /// [`ProbeError::GlobalValue`] for values other than [`Bound::Const`], [`Bound::Function`],
    /// [`Bound::Offset`], [`Bound::Frame`], [`Bound::Instance`] and [`Bound::Context`], since not
    /// every instruction has them, and for values that cannot be passed to a parameter of their
    /// type. [`ProbeError::Parameters`]; [`ProbeError::TooManyValues`]; [`ProbeError::OwnModule`].
    pub fn global_probe(&self, kind: Kind) -> Result<GlobalProbe, ProbeError> {
        check(&kind)?;
        if calls_into(&kind, self.code()) {
            return Err(ProbeError::OwnModule);
        }
        let global = Global::new(kind, Some(self.code().clone()), None);
        global.state().images.push(OfImage::new(self.code()));
        Ok(GlobalProbe(global))
    }
}

impl Engine {
    /// Makes a probe on every instruction of all modules of this engine, including those that are
    /// compiled later. The probe does not keep the modules alive.
    ///
    /// If the probe calls a [WebAssembly function](Kind::Wasm), the module of that function is not
    /// probed, since the function would call itself until the stack overflows. For the same reason,
    /// the function must not call functions of other modules.
    ///
    /// # Errors
    /// As [`Module::global_probe`], except for [`ProbeError::OwnModule`].
    pub fn global_probe(&self, kind: Kind) -> Result<GlobalProbe, ProbeError> {
        check(&kind)?;
        let global = Global::new(kind, None, Some(self.clone()));
        let watcher: Arc<dyn WatchesImages> = global.clone();
        for image in self.watch_images(global.number, Arc::downgrade(&watcher)) {
            global.clone().compiled(&image);
        }
        Ok(GlobalProbe(global))
    }
}

/// Whether a probe of this kind calls a function in an image.
fn calls_into(kind: &Kind, image: &CodeImage) -> bool {
    matches!(kind, Kind::Wasm { function, .. } if function.is_in(image))
}

/// Refuses values that not every instruction has, or that the kind cannot have.
fn check(kind: &Kind) -> Result<(), ProbeError> {
    let is_everywhere = |value: &&Bound| {
        use Bound::{Const, Context, Frame, Function, Instance, Offset};
        matches!(value, Const(_) | Function | Offset | Frame | Instance | Context)
    };
    if let Some(value) = kind.values().iter().find(|value| !is_everywhere(value)) {
        return Err(ProbeError::GlobalValue { value: *value, reason: ValueError::NotEverywhere });
    }
    values::check(kind, 0, 0).map_err(|error| match error {
        // The value is wrong in any function.
        ProbeError::Value { value, reason, .. } => ProbeError::GlobalValue { value, reason },
        error => error,
    })
}

impl GlobalProbe {
    /// Switches the probe on; does nothing if it is on.
    ///
    /// # Errors
    /// [`ProbeError::Patch`]: it stays off.
    pub fn activate(&self) -> Result<(), ProbeError> {
        let global = &self.0;
        let mut kept = Kept::new();
        let mut state = global.state();
        if state.is_active {
            return Ok(());
        }
        state.is_active = true;
        state.images.iter_mut().for_each(|of| of.refused.clear());
        for index in 0..state.images.len() {
            let Some(image) = state.images[index].image(&mut kept) else { continue };
            if let Err(error) = global.start(&image, &mut state, index) {
                drop(state);
                let _ = self.deactivate();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Switches the probe off; does nothing if it is off.
    ///
    /// # Errors
    /// [`ProbeError::Patch`]: parts of it may still be on.
    pub fn deactivate(&self) -> Result<(), ProbeError> {
        let mut kept = Kept::new();
        let mut state = self.0.state();
        state.is_active = false;
        let mut result = Ok(());
        for of in &state.images {
            let Some(image) = of.image(&mut kept) else { continue };
            image.stop_waiting(self.0.number);
            for probe in of.functions.values().flatten() {
                if let Err(error) = image.deactivate_probe(*probe, true) {
                    result = Err(error.into());
                }
            }
        }
        result
    }

    /// The number of instructions that were executed while the probe was on, if it
    /// [counts](Kind::Count), or of branches, if it [counts branches](Kind::CountBranch), in
    /// modules whose code has not been freed.
    pub fn count(&self) -> u64 {
        let mut kept = Kept::new();
        let state = self.0.state();
        let mut sum = 0;
        for of in &state.images {
            let Some(image) = of.image(&mut kept) else { continue };
            for probe in of.functions.values().flatten() {
                sum += executions(&image, *probe, &self.0.kind);
            }
        }
        sum
    }

    /// How often each branch of a module went each way while the probe was on, as
    /// [`Probe::branches`](super::Probe::branches), in the order of locations. Only branches in
    /// functions in which the probe has made its probes are included. Empty unless the probe
    /// [counts branches](Kind::CountBranch).
    pub fn branches(&self, module: &Module) -> Vec<(Location, Branches)> {
        let (state, image) = (self.0.state(), module.code());
        let is_it = |of: &&OfImage| std::ptr::eq(of.image.as_ptr(), Arc::as_ptr(image));
        let mut all = Vec::new();
        for (function, probes) in state.images.iter().filter(is_it).flat_map(|of| &of.functions) {
            let branches = |probe: &usize| {
                let location = Location::at(image, *function, image.probe_position(*probe));
                Some((location, Branches::of(image, *probe)?))
            };
            all.extend(probes.iter().filter_map(branches));
        }
        all.sort_by_key(|(location, _)| *location);
        all
    }

    /// The number of functions in which the probe has made its probes, in modules whose code has
    /// not been freed.
    pub fn functions(&self) -> usize {
        let state = self.0.state();
        let alive = state.images.iter().filter(|of| of.image.strong_count() > 0);
        alive.flat_map(|of| of.functions.values()).filter(|probes| !probes.is_empty()).count()
    }

    /// The functions that were refused since the last call or since the probe was switched on, in
    /// modules whose code has not been freed: they need too much memory, or cannot be compiled with
    /// probes. Their instructions are not observed. A caller that relies on complete observation
    /// must call this from time to time, since a function is refused when it is entered. It is
    /// tried again when the probe has been switched off and on.
    pub fn refused(&self) -> Vec<RefusedFunction> {
        let (mut all, mut kept) = (Vec::new(), Kept::new());
        for of in self.0.state().images.iter_mut().filter(|of| !of.refused.is_empty()) {
            let Some(image) = of.image(&mut kept) else { continue };
            let module = Sections::of(&image.bytes).module_name.map(str::to_owned);
            let refused = of.refused.drain(..);
            all.extend(refused.map(|(function, error)| {
                let module = module.clone();
                RefusedFunction { module, function, error }
            }));
        }
        all
    }
}

impl Drop for GlobalProbe {
    fn drop(&mut self) {
        if let Some(engine) = &self.0.engine {
            engine.unwatch_images(self.0.number);
        }
        let mut kept = Kept::new();
        let mut state = self.0.state();
        state.is_active = false;
        for of in std::mem::take(&mut state.images) {
            let Some(image) = of.image(&mut kept) else { continue };
            image.stop_waiting(self.0.number);
            of.functions.into_values().flatten().for_each(|probe| image.remove_probe(probe));
        }
    }
}

impl fmt::Debug for GlobalProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalProbe").field("kind", &self.0.kind).finish_non_exhaustive()
    }
}

impl Global {
    fn new(kind: Kind, image: Option<Arc<CodeImage>>, engine: Option<Engine>) -> Arc<Self> {
        Arc::new(Self { kind, number: enter::new_number(), _image: image, engine, state: Mutex::default() })
    }

    fn state(&self) -> Locked<'_, State> {
        forks::lock(&self.state)
    }

    /// Switches it on in a module.
    fn start(
        self: &Arc<Self>,
        image: &Arc<CodeImage>,
        state: &mut State,
        index: usize,
    ) -> Result<(), ProbeError> {
        let of = &mut state.images[index];
        let mut without_memory = Vec::new();
        for (function, probes) in &of.functions {
            match probes.iter().try_for_each(|probe| image.activate_probe(*probe)) {
                Ok(()) => {}
                Err(MakeError::StubMemory { .. }) => without_memory.push(*function),
                Err(error) => return Err(error.into()),
            }
        }
        // They are tried once more below.
        for probes in without_memory.iter().filter_map(|function| of.functions.remove(function)) {
            probes.into_iter().for_each(|probe| image.remove_probe(probe));
        }
        let who: Arc<dyn Enters> = self.clone();
        let is_done = |function| of.functions.contains_key(&function);
        for function in image.wait_for_entries(self.number, Arc::downgrade(&who), is_done)? {
            self.attach(image, function, state, index);
        }
        // From now on, new frames are observed; those that exist move to code with the probes.
        for function in image.waiting_in_use(self.number) {
            self.attach(image, function, state, index);
            image.stop_waiting_for(self.number, function);
        }
        Ok(())
    }

    /// Makes the probes of a function, on.
    fn attach(&self, image: &Arc<CodeImage>, function: u32, state: &mut State, index: usize) {
        let of = &mut state.images[index];
        if of.functions.contains_key(&function) {
            return;
        }
        match self.probes_in(image, function) {
            Ok(probes) => _ = of.functions.insert(function, probes),
            // It is tried again when this is switched on the next time.
            Err(error) => of.refused.push((function, error)),
        }
    }

    fn probes_in(&self, image: &Arc<CodeImage>, function: u32) -> Result<Vec<usize>, ProbeError> {
        let range = image.body_range(function);
        let mut body = Body::of(image, function);
        let operators = image.body(function).get_operators_reader().into_iter();
        let operators = operators.flat_map(|reader| reader.into_iter_with_offsets()).flatten();
        let mut requests = Vec::new();
        for (_, at) in operators {
            let position = at as u32;
            let location =
                Location { function, place: Place::Instruction { offset: position - range.start } };
            let what = requested(&mut body, &self.kind, location, position)?;
            requests.push(Request { position, what, only: None });
        }
        let (mut made, mut refused) = (Vec::new(), None);
        for (request, probe) in requests.iter().zip(image.make_probes(function, &requests)?) {
            match probe {
                Ok(probe) => made.push(probe),
                // These have none.
                Err(NoProbe::Unreachable | NoProbe::NoChoice) => {}
                Err(other) => refused = Some((other, request.position)),
            }
        }
        let on = match refused {
            Some((refused, position)) => {
                let location = Location::at(image, function, position);
                Err(ProbeError::of_place(refused, location, range, &self.kind))
            }
            None => made.iter().try_for_each(|probe| Ok(image.activate_probe(*probe)?)),
        };
        if let Err(error) = on {
            made.iter().for_each(|probe| image.remove_probe(*probe));
            return Err(error);
        }
        Ok(made)
    }
}

impl Enters for Global {
    /// Its probes fire in the order in which it was activated.
    fn comes_first(&self) -> bool {
        true
    }

    fn entered(&self, image: &Arc<CodeImage>, function: u32) {
        let state = &mut *self.state();
        let is_it = |of: &OfImage| std::ptr::eq(of.image.as_ptr(), Arc::as_ptr(image));
        if state.is_active
            && let Some(index) = state.images.iter().position(is_it)
        {
            self.attach(image, function, state, index);
        }
    }
}

impl WatchesImages for Global {
    fn compiled(self: Arc<Self>, image: &Arc<CodeImage>) {
        if calls_into(&self.kind, image) {
            return;
        }
        let state = &mut *self.state();
        state.images.retain(|of| of.image.strong_count() > 0);
        let is_it = |of: &OfImage| std::ptr::eq(of.image.as_ptr(), Arc::as_ptr(image));
        if state.images.iter().any(is_it) {
            return;
        }
        let index = state.images.len();
        state.images.push(OfImage::new(image));
        if state.is_active
            && let Err(error) = self.start(image, state, index)
        {
            let refused = image.indices().map(|function| (function, error.clone()));
            state.images[index].refused.extend(refused);
        }
    }
}
