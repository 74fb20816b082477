//! The provider for programs compiled with `-finstrument-functions` (gcc and clang).
//!
//! The compiler inserts calls to `__cyg_profile_func_enter(this_fn, call_site)` and `..._exit` at
//! the entry and at every exit of each function. This provider finds these calls in the loaded
//! objects and makes a probe of each:
//!
//! 1. `loaded` lists the loaded objects; `elf` finds an object's pointers to the two
//!    functions; `unwind` finds the starts of its own functions. `index` stores the starts, sorted:
//!    eight bytes for each function.
//! 2. `arrivals`: a call that arrives at the exported `__cyg_profile_func_*` marks its caller's
//!    code in the index.
//! 3. `scan` decodes marked code that contains a call of either function, in every form: CALL and
//!    JMP to a PLT entry, CALL and JMP through the pointer (`-fno-plt`). A call at the very end of
//!    a function is a JMP.
//! 4. `arguments` determines the function of a site, from the code that sets up its first argument.
//!    Inlined functions have sites in the bodies of other functions. `naming` finds the function's
//!    name and object, in the symbols (`names`) or by a relocation (`imports`).
//! 5. `stubs` assigns an id and a stub to each site, and retargets the site to the stub, in the
//!    inactive form. Entries of code that may be executed at the same time stay on and are counted
//!    (`relays`).
//! 6. `resolve`: a site whose function cannot be determined from the code is left on until it is
//!    first executed; its argument is then the function. Entries are counted until the probe is
//!    announced.
//!
//! With [`Extent::All`], all code is marked, so every probe is known after the first discovery.
//! With [`Extent::Executed`], only code that has been executed is scanned, a part at a time; and
//! before the program runs, that of its outermost functions (`outermost`). Calls that were made
//! before their probes were ready are counted:
//! [`take_early_calls`](crate::internal::take_early_calls).
//!
//! A part of a function can be located elsewhere (`.cold`), with sites that do not mark it, because
//! they are tail calls. If marked code branches conditionally to other code, or in any way to a
//! part with such a name, that code is scanned, too.
//!
//! Libraries that are loaded later are found when one of their functions first calls the exported
//! `__cyg_profile_func_*` functions, or by the next discovery of the service thread. Calls for
//! probes of an unloaded library return [`crate::Error::Unloaded`]. When the library is loaded
//! again at the same address, its probes get their old ids back, all at the same time: the code
//! that contained them is marked.
//!
//! Calls through registers (`-mcmodel=large`) are not made probes: they stay unchanged, and
//! [`notes`](crate::provider::notes) reports them.

mod arguments;
mod arrivals;
mod elf;
mod imports;
mod index;
mod names;
mod naming;
mod object;
mod outermost;
mod relays;
mod resolve;
mod scan;
mod stubs;
mod unwind;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use arrivals::arrival;

use crate::discovery::Discovery;
use crate::error::Error;
use crate::loaded::{self, LoadedObject, ObjectKind};
use crate::merged;
use crate::permanent::{self, ObjectInfo, PROBES, Probe};
use crate::processor_time::processor_time;
use crate::provider::{self, EarlyCalls, Extent, KnownFunction, Provider as _};
use arrivals::{ARRIVALS_PENDING, KNOWN, KnownObject, STARTED, TOO_MANY_ARRIVALS};
use index::{Blocks, Index, PriorState};
use names::Names;
use naming::leak;
use object::{Instrumented, Object, Work, is_sparse, starts};
use stubs::Stubs;
use unwind::Table;

/// Interval at which toggles are made to take effect on pages that a debugger has copied, in
/// objects that may be unloaded.
const SETTLE_EVERY: Duration = Duration::from_millis(100);

/// After probes were made lazily, the service thread rests, so that more functions are executed for
/// the first time: for as long as it took, within these bounds. The reason is that each round costs
/// two calls to `membarrier`, regardless of the number of sites. A longer rest costs more than that
/// saves: meanwhile, each call to such a function arrives here (in a compiler with 24,000
/// functions, 3.1 million calls for ten times as long, and 1.4 million for as long). It does not
/// rest before it has spent the time `FREE` in total: the first functions of a program, and all
/// functions of a short run, are measured without delay.
const FREE: Duration = Duration::from_millis(5);
const REST_BOUNDS: [Duration; 2] = [Duration::from_micros(300), Duration::from_millis(20)];

const PAGE: usize = 4096;

/// Time to the next discovery in a forked child whose text is still shared with its parent.
const NOT_YET: Duration = Duration::from_millis(1);

/// Set when a service thread starts: a mark may have been lost with a thread of the parent that
/// does not exist in this process.
static EVERYWHERE: AtomicBool = AtomicBool::new(false);

/// The number of bytes used for all objects by data that are not counted separately.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The code that is scanned for sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scan {
    /// Code that has been executed.
    #[default]
    Lazy,
    /// All code.
    Eager,
}

#[derive(Default)]
struct State {
    scan: Scan,
    /// Whether the first eager scan is in progress, before the program runs.
    is_beginning: bool,
    /// Objects that are loaded now.
    objects: Vec<Object>,
    /// Instrumented objects that were unloaded; they may be loaded again.
    unloaded: Vec<Object>,
    /// The loader's counters of loads and unloads at the last discovery.
    counters: loaded::Counters,
    /// Names of functions that have no symbol in their object, by the addresses of the object's
    /// [`ObjectInfo`] and of the function.
    places: BTreeMap<(usize, usize), &'static CStr>,
    /// The common data of probes whose functions are inlined in one object and defined in another.
    inlined_elsewhere: Vec<&'static ObjectInfo>,
    /// The processor time that was spent on making probes lazily.
    spent: Duration,
    /// The time of the last call to [`State::settle`].
    settled: Option<Instant>,
    /// The end of the service thread's rest, until which no probes are made.
    rests_until: Option<Instant>,
    notes: Vec<String>,
}

/// Used only with the right of [`Discovery`].
static PROVIDER: Mutex<Option<State>> = Mutex::new(None);

fn with_provider<R>(act: impl FnOnce(&mut State) -> R) -> R {
    act(PROVIDER.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_default())
}

/// The provider, to be [registered](crate::provider::register).
#[derive(Clone, Copy, Debug)]
pub struct CygProfile;

/// The name of the provider.
pub const NAME: &CStr = c"cyg_profile";

/// Registers the provider, scans every object that is loaded now, and makes all probes. Blocks for
/// the time of the scan (about a millisecond for 200 KB of instrumented code), and may be called
/// again. Libraries that are loaded later are handled in the same way.
///
/// # Errors
/// [`Error::CalledFromCallback`], [`Error::TooManyProviders`]. Objects that cannot be read are
/// skipped, and reported by [`notes`](crate::provider::notes).
pub fn start() -> Result<(), Error> {
    provider::register(&CygProfile)?;
    CygProfile.begin(&Discovery::begin()?, Extent::All);
    Ok(())
}

impl provider::Provider for CygProfile {
    fn name(&self) -> &'static CStr {
        NAME
    }

    /// With [`Extent::All`], blocks for the time of the scan. Otherwise finds the starts of the
    /// functions (about a microsecond for ten functions), and makes the probes of the outermost
    /// ones (a few milliseconds); the service thread makes those of a function when it has been
    /// executed, within a few milliseconds of the first call.
    fn begin(&self, discovery: &Discovery, extent: Extent) {
        if extent == Extent::All {
            return begin(discovery, Scan::Eager);
        }
        begin(discovery, Scan::Lazy);
        if let Extent::AllUpTo { functions } = extent
            && with_provider(|provider| provider.functions()) <= functions
        {
            return begin(discovery, Scan::Eager);
        }
        with_provider(|provider| provider.make_outermost(discovery));
    }

    fn discover(&self, discovery: &Discovery) -> Option<Instant> {
        discover(discovery)
    }

    fn service_starts(&self) {
        EVERYWHERE.store(true, Ordering::Relaxed);
    }

    fn notes(&self) -> Vec<String> {
        with_provider(|provider| provider.notes())
    }

    fn has_code(&self) -> bool {
        with_provider(|provider| provider.objects.iter().any(|object| object.instrumented.is_some()))
    }

    /// Does not include the memory for writing text, which is a copy of the text of each object
    /// with probes, nor memory that is only used during a discovery.
    fn memory_bytes(&self) -> usize {
        HELD.load(Ordering::Relaxed) + permanent::memory() + arrivals::memory()
    }

    fn take_early_calls(&self, take: &mut dyn FnMut(usize, EarlyCalls)) -> u64 {
        arrivals::take(take)
    }

    fn has_generated(&self, address: usize) -> bool {
        stubs::contain(address)
    }

    fn function_at(&self, address: usize) -> Option<KnownFunction> {
        with_provider(|provider| {
            let mut objects = provider.objects.iter_mut();
            let holder = objects.find(|object| object.loaded.range.contains(&address))?;
            let instrumented = holder.instrumented.as_mut()?;
            instrumented.read_names(&holder.loaded);
            let name = instrumented.names.as_ref()?.name(address)?;
            let ObjectInfo { path, base, .. } = *instrumented.info;
            Some(KnownFunction { name, object_path: path, object_base: base })
        })
    }
}

fn begin(discovery: &Discovery, scan: Scan) {
    STARTED.store(true, Ordering::Relaxed);
    with_provider(|provider| {
        provider.rests_until = None;
        if scan == Scan::Eager && provider.scan == Scan::Lazy {
            provider.scan = Scan::Eager;
            provider.is_beginning = true;
            provider.objects.iter().for_each(Object::mark_everything);
        }
    });
    discover(discovery);
    with_provider(|provider| provider.is_beginning = false);
}

/// Handles the objects that were loaded or unloaded since the last call, and the sites whose
/// functions have become known, and makes probes of the sites in marked code. Returns the time at
/// which it must be called again without a notification, if any.
fn discover(discovery: &Discovery) -> Option<Instant> {
    if !STARTED.load(Ordering::Relaxed) {
        return None;
    }
    with_provider(|provider| {
        let mut resolved = Vec::new();
        resolve::take_resolved(|probe| {
            arrivals::resolved(probe.id(), probe.function().address.load(Ordering::Relaxed));
            merged::watch(probe);
            if provider.name(probe) {
                probe.announce(discovery);
            }
            resolved.push(probe);
        });
        stubs::settle(resolved.into_iter());
        merged::look_up_names(|address| provider.symbol(address));
        provider.settle();
        let now = Instant::now();
        if let Some(until) = provider.rests_until.filter(|until| *until > now) {
            return Some(until);
        }
        provider.rests_until = None;
        if wordpatch::text::is_shared_with_parent() {
            // No site can be toggled yet; the marks stay.
            return ARRIVALS_PENDING.load(Ordering::Relaxed).then(|| now + NOT_YET);
        }
        // Before the marks are taken: any mark that is set from now on notifies again.
        ARRIVALS_PENDING.store(false, Ordering::SeqCst);
        provider.follow_the_loader();
        let blocks = if EVERYWHERE.swap(false, Ordering::Relaxed) { Blocks::All } else { Blocks::Marked };
        let begun = processor_time();
        let mut made = false;
        for at in 0..provider.objects.len() {
            made |= provider.complete(at, blocks, discovery);
        }
        if !made || provider.scan == Scan::Eager {
            return None;
        }
        let time = processor_time().saturating_sub(begun);
        provider.spent += time;
        if provider.spent < FREE {
            return None;
        }
        // Until the end of the rest, arrivals need not wake the service thread.
        ARRIVALS_PENDING.store(true, Ordering::Relaxed);
        provider.rests_until = Some(Instant::now() + time.clamp(REST_BOUNDS[0], REST_BOUNDS[1]));
        provider.rests_until
    })
}

impl State {
    /// The number of functions in the instrumented objects.
    fn functions(&self) -> usize {
        let instrumented = self.objects.iter().filter_map(|object| object.instrumented.as_ref());
        instrumented.map(|instrumented| instrumented.known.index.len()).sum()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        let was_opened = |object: &Object| !object.loaded.stays && object.instrumented.is_some();
        if loaded::is_lost() && self.objects.iter().any(was_opened) {
            notes.push(
                "libraries that were opened before the fork of this process get no further probes: another thread was using the loader then"
                    .to_owned(),
            );
        }
        for object in self.objects.iter().chain(&self.unloaded) {
            let Some(Instrumented { unsupported, known, .. }) = &object.instrumented else { continue };
            let path = object.loaded.path.display();
            if *unsupported > 0 {
                notes.push(format!(
                    "{path}: {unsupported} calls of the instrumentation functions have a form that cannot be switched, and are left unchanged"
                ));
            }
            // If the object was unloaded and loaded again, its sites are not probes yet.
            if known.arrivals.load(Ordering::Relaxed) >= TOO_MANY_ARRIVALS
                && known.alive.load(Ordering::Relaxed)
                && (known.stays || object.is_unchanged())
            {
                notes.push(format!(
                    "{path}: calls of the instrumentation functions through registers (-mcmodel=large) are not profiled"
                ));
            }
        }
        notes
    }

    /// Makes toggles take effect on pages that a debugger has copied, in objects that may be
    /// unloaded. (In others, they take effect immediately.)
    fn settle(&mut self) {
        if self.settled.is_some_and(|at| at.elapsed() < SETTLE_EVERY) {
            return;
        }
        self.settled = Some(Instant::now());
        for object in self.objects.iter().filter(|object| !object.loaded.stays) {
            let Some(instrumented) = &object.instrumented else { continue };
            if instrumented.probes.is_empty() {
                continue;
            }
            loaded::while_loaded(&object.loaded, || {
                let pages: BTreeSet<_> =
                    wordpatch::text::copied_pages(&object.loaded.range).into_iter().collect();
                if pages.is_empty() {
                    return;
                }
                let is_on_one = |probe: &&Probe| {
                    let site = probe.site_address();
                    [site, site + callpatch::Shape::IndirectCall.len() - 1]
                        .iter()
                        .any(|at| pages.contains(&(at & !(PAGE - 1))))
                };
                for site in instrumented.all_probes().filter(is_on_one).filter_map(|probe| probe.site().ok())
                {
                    // An error means that the breakpoint is in these bytes; then the bytes of the
                    // debugger take precedence. SAFETY: the object is loaded during the call. If
                    // another one was loaded at its address, it has no copied pages of ours.
                    let _ = unsafe { site.switch.settle() };
                }
            });
        }
    }

    /// Adds the objects that were loaded, and retires those that were unloaded.
    fn follow_the_loader(&mut self) {
        let Some(counters) = loaded::counters().filter(|counters| *counters != self.counters) else { return };
        let Some(mut objects) = loaded::objects() else { return };
        objects.retain(|object| object.kind != ObjectKind::Vdso);
        if counters.unloads != self.counters.unloads {
            self.retire(&objects);
        }
        self.counters = counters;
        arrivals::FOLLOWED.store(counters.unloads, Ordering::Relaxed);
        for object in objects {
            if !self.objects.iter().any(|known| known.loaded == object) {
                self.add(object);
            }
        }
    }

    /// Retires the objects that are no longer loaded, or that were unloaded and loaded again since.
    fn retire(&mut self, loaded_now: &[LoadedObject]) {
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.objects)
            .into_iter()
            .partition(|object| loaded_now.contains(&object.loaded) && object.is_unchanged());
        self.objects = stay;
        for mut object in go {
            let Some(instrumented) = &mut object.instrumented else { continue };
            instrumented.known.alive.store(false, Ordering::Relaxed);
            for probe in instrumented.all_probes() {
                probe.unload();
            }
            for (function, calls) in instrumented.known.index.reset() {
                arrivals::keep(function, calls, false);
            }
            // SAFETY: the loader has unmapped the object, or has mapped another object, or the same
            // one again, at its address.
            unsafe { wordpatch::text::release(&object.loaded.range) };
            self.unloaded.push(object);
        }
    }

    /// Adds an object.
    fn add(&mut self, loaded: LoadedObject) {
        // A library that was unloaded in the meantime is handled by the next discovery.
        let Some(instrumented) = loaded::while_loaded(&loaded, || self.instrumented(&loaded)) else { return };
        let instrumented = instrumented.unwrap_or_else(|error| {
            self.note(error.to_string());
            None
        });
        let object = Object { loaded, instrumented };
        if self.scan == Scan::Eager {
            object.mark_everything();
        }
        self.objects.push(object);
    }

    fn note(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    /// Examines an object, which stays loaded during the call. Returns `None` if it is not
    /// instrumented.
    fn instrumented(&mut self, loaded: &LoadedObject) -> Result<Option<Instrumented>, Error> {
        // SAFETY: the object is loaded during the call.
        let table = unsafe { Table::of(loaded) };
        // SAFETY: as above.
        let Some(view) = (unsafe { elf::read(loaded, table.is_some()) })? else { return Ok(None) };
        let old = self.unloaded.iter().position(|old| {
            old.loaded == *loaded && old.instrumented.as_ref().is_some_and(|old| old.view.file == view.file)
        });
        let old = old.and_then(|at| self.unloaded.swap_remove(at).instrumented);
        let is_sparse = is_sparse(loaded, &starts(loaded, &view, table.as_ref(), None));
        let read_names = || {
            let names = Names::read(loaded, view.file);
            HELD.fetch_add(names.memory(), Ordering::Relaxed);
            names
        };
        let names = match &old {
            None => is_sparse.then(read_names),
            Some(_) => None,
        };
        let names_now = old.as_ref().and_then(|old| old.names.as_ref()).or(names.as_ref());
        let starts = starts(loaded, &view, table.as_ref(), names_now);
        if let Some(mut old) = old.filter(|old| old.known.index.has_starts(&starts)) {
            old.back = old.all_probes().map(|probe| (probe.site_address(), probe)).collect();
            // Queued before arrivals can do so: the next discovery finds all of them.
            for number in old.back.keys().filter_map(|site| old.known.index.find(*site)) {
                old.known.index.queue(number);
            }
            old.known.arrivals.store(0, Ordering::Relaxed);
            old.unsupported = 0;
            old.known.alive.store(true, Ordering::Release);
            return Ok(Some(old));
        }
        let index = Index::new(loaded.range.start, starts);
        HELD.fetch_add(index.memory(), Ordering::Relaxed);
        let known = KnownObject {
            range: loaded.range.clone(),
            alive: AtomicBool::new(true),
            stays: loaded.stays,
            arrivals: AtomicU32::new(0),
            index,
        };
        let number = KNOWN.push_with(|_| known);
        let Some(known) = number.and_then(|number| KNOWN.get(number)) else {
            return Err(Error::Object { path: loaded.path.clone(), reason: "too many objects".into() });
        };
        let info: &ObjectInfo = Box::leak(Box::new(ObjectInfo {
            provider: NAME,
            path: leak(&loaded.path),
            base: loaded.range.start,
            of_functions: None,
        }));
        Ok(Some(Instrumented {
            info,
            view,
            known,
            names,
            imports: None,
            stubs: Stubs::default(),
            probes: Vec::new(),
            unsupported: 0,
            back: BTreeMap::new(),
        }))
    }

    /// Makes probes of the sites in an object's marked code, and announces them. Returns whether
    /// there were any.
    fn complete(&mut self, at: usize, blocks: Blocks, discovery: &Discovery) -> bool {
        let Some(instrumented) = &self.objects[at].instrumented else { return false };
        let work = Work::new(instrumented.known.index.take_queued(blocks));
        !work.is_over() && self.make(at, work, discovery)
    }

    /// The same for the [outermost functions](outermost) of the program.
    fn make_outermost(&mut self, discovery: &Discovery) {
        if wordpatch::text::is_shared_with_parent() {
            return;
        }
        for at in 0..self.objects.len() {
            if let Some(Instrumented { view, known, .. }) = &self.objects[at].instrumented
                && let Some(main) = view.main.and_then(|main| known.index.find(main))
                && known.index.queue(main) != PriorState::Done
            {
                self.make(at, Work::of_outermost_functions(main), discovery);
            }
        }
    }

    fn make(&mut self, at: usize, mut work: Work, discovery: &Discovery) -> bool {
        // The code of an object that is loaded later may be executed while its probes are made.
        let scan = if self.is_beginning { self.scan } else { Scan::Lazy };
        let Object { loaded, instrumented: Some(instrumented) } = &mut self.objects[at] else { return false };
        // Before the loader's lock is held.
        instrumented.read_names(loaded);
        let loaded = loaded.clone();
        let first = PROBES.len();
        while !work.is_over() {
            let Some(instrumented) = &mut self.objects[at].instrumented else { break };
            let step =
                || wordpatch::internal::preparing(|| instrumented.make_probes(&loaded, &mut work, scan));
            let Some(step) = loaded::while_loaded(&loaded, step) else { break };
            step.refused.iter().for_each(|error| self.note(error.to_string()));
            let new = || step.new.clone().filter_map(|id| PROBES.get(id as usize));
            for probe in new() {
                if self.name(probe) {
                    probe.announce(discovery);
                }
            }
            if scan == Scan::Lazy {
                stubs::settle(new());
            }
        }
        PROBES.len() > first
    }
}
