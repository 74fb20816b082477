//! The provider for programs compiled with `-finstrument-functions` (gcc and clang).
//!
//! The compiler calls `__cyg_profile_func_enter(this_fn, call_site)` and `..._exit` at the entry and at every exit of
//! each function. This provider finds these calls in the loaded objects and makes each a probe:
//!
//! 1. `loaded`: which objects are loaded; `elf`: where an object's pointers to the two functions are, and where its own
//!    functions start and end (from its unwind tables).
//! 2. `scan`: decodes each function that holds a call of either, in every shape: CALL and JMP to a PLT entry, CALL and
//!    JMP through the pointer (`-fno-plt`); an exit that is the last thing a function does is a JMP.
//! 3. `arguments`: which function a site belongs to, from the code that sets its first argument up. Inlined
//!    functions have sites in other functions' bodies.
//! 4. `stubs`: gives each site an id and a stub of its own, and leads the site there, switched off.
//! 5. `resolve`: a site whose function the code does not tell is left on until it is first executed, when its argument
//!    tells.
//!
//! Libraries loaded later are found when one of their functions first arrives at the exported `__cyg_profile_func_*`
//! functions, or at the service thread's next look. Sites of an unloaded library answer [`crate::Error::Unloaded`]; when it is loaded
//! again at the same address, its probes get their old ids back.
//!
//! Calls through registers (`-mcmodel=large`) are not probes: they are left as they are, and [`notes`] says so.

mod arguments;
mod elf;
mod loaded;
mod resolve;
mod scan;
mod stubs;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::discovery::Discovery;
use crate::error::Error;
use crate::probe::ProbeId;
use crate::registry::{CStrBox, PROBES, Probe};
use crate::segments::Segments;
use crate::service;
use loaded::LoadedObject;

/// Where an instrumented object is or was, for the exported functions to know whether an arrival is news.
///
/// Taken by another object when its own is unloaded. Who reads it in that moment may take an arrival for news that is none, or
/// count it for the other object.
struct KnownRange {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Whether the object is loaded now.
    alive: AtomicBool,
    /// Calls from there that still arrive at the exported functions.
    arrivals: AtomicU32,
}

/// How many arrivals from an object whose sites are probes tell that it makes calls in other forms. Fewer may be threads that
/// were on their way when the sites were led elsewhere.
const TOO_MANY_ARRIVALS: u32 = 100;

static KNOWN: Segments<KnownRange> = Segments::new();

impl KnownRange {
    /// An entry for an object that is loaded now: one whose object was unloaded, or a new one.
    fn take(range: &Range<usize>) -> Option<&'static Self> {
        let free = KNOWN.iter().find(|known| !known.alive.load(Ordering::Relaxed));
        if let Some(known) = free {
            known.start.store(range.start, Ordering::Relaxed);
            known.end.store(range.end, Ordering::Relaxed);
            known.arrivals.store(0, Ordering::Relaxed);
            known.alive.store(true, Ordering::Release);
            return Some(known);
        }
        let known = |_| Self {
            start: AtomicUsize::new(range.start),
            end: AtomicUsize::new(range.end),
            alive: AtomicBool::new(true),
            arrivals: AtomicU32::new(0),
        };
        KNOWN.push_with(known).and_then(|index| KNOWN.get(index))
    }

    fn has(&self, address: usize) -> bool {
        self.alive.load(Ordering::Acquire)
            && self.start.load(Ordering::Relaxed) <= address
            && address < self.end.load(Ordering::Relaxed)
    }
}

/// To be called by the exported `__cyg_profile_func_enter` and `..._exit` with their first argument: by sites that are no
/// probes, or not yet. Safe at any time in a process, in any context: atomics, and at most one system call.
pub fn arrival(this_fn: usize) {
    if !STARTED.load(Ordering::Relaxed) {
        return;
    }
    if let Some(known) = KNOWN.iter().find(|known| known.has(this_fn)) {
        // Stops counting, so that threads do not fight for the counter's cache line.
        if known.arrivals.load(Ordering::Relaxed) < TOO_MANY_ARRIVALS {
            known.arrivals.fetch_add(1, Ordering::Relaxed);
        }
    } else if !NEWS_PENDING.swap(true, Ordering::Relaxed) {
        service::notify();
    }
}

/// Set by [`start`]; before, arrivals are no news, since everything is looked at then.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Set from an arrival that was news until the service thread looks.
static NEWS_PENDING: AtomicBool = AtomicBool::new(false);

/// An object that was looked at.
struct Object {
    loaded: LoadedObject,
    /// Its probes by site address; empty for an object that is not instrumented.
    probes: BTreeMap<usize, ProbeId>,
    symbols: elf::Symbols,
    known: Option<&'static KnownRange>,
}

#[derive(Default)]
struct Provider {
    /// Objects that are loaded now.
    objects: Vec<Object>,
    /// Instrumented objects that were unloaded; they may come back.
    unloaded: Vec<Object>,
    /// The loader's counters of loads and unloads at the last look.
    counters: loaded::Counters,
    notes: Vec<String>,
    /// When [`Provider::settle`] was called last.
    settled: Option<Instant>,
}

const PAGE: usize = 4096;

/// Only used under the right of [`Discovery`].
static PROVIDER: Mutex<Option<Provider>> = Mutex::new(None);

fn with_provider<R>(act: impl FnOnce(&mut Provider) -> R) -> R {
    act(PROVIDER.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_default())
}

/// Looks at every object that is loaded now. Blocks for the time of the scan (about a millisecond for 200 KB of
/// instrumented code), and may be called again.
///
/// # Errors
/// [`Error::CalledFromCallback`]. An object that cannot be read is passed over; [`notes`] tells.
pub fn start() -> Result<(), Error> {
    let discovery = Discovery::begin()?;
    STARTED.store(true, Ordering::Relaxed);
    discover(&discovery);
    Ok(())
}

/// What could not be made probes, one line for each reason and object.
pub fn notes() -> Vec<String> {
    with_provider(|provider| {
        let mut notes = provider.notes.clone();
        let arrives = |object: &&Object| {
            object.known.is_some_and(|known| known.arrivals.load(Ordering::Relaxed) >= TOO_MANY_ARRIVALS)
        };
        notes.extend(provider.objects.iter().filter(arrives).map(|object| {
            format!(
                "{}: calls of the instrumentation functions through registers (-mcmodel=large) are not profiled",
                object.loaded.path.display()
            )
        }));
        notes
    })
}

/// Looks for objects that came or went since the last look, and for sites whose function is known now.
pub(crate) fn discover(discovery: &Discovery) {
    NEWS_PENDING.store(false, Ordering::Relaxed);
    if !STARTED.load(Ordering::Relaxed) {
        return;
    }
    with_provider(|provider| {
        resolve::take_resolved(|probe| {
            if provider.name(probe) {
                discovery.announce(probe);
            }
        });
        provider.settle();
        let counters = loaded::counters();
        if counters == provider.counters {
            return;
        }
        let objects = loaded::objects();
        if counters.unloads != provider.counters.unloads {
            provider.retire(&objects);
        }
        provider.counters = counters;
        for object in objects {
            if !provider.objects.iter().any(|known| known.loaded == object) {
                // A library that has gone since is the next look's business.
                let add = || wordpatch::text::preparing(|| provider.add(object.clone()));
                let new = loaded::while_loaded(&object, add).unwrap_or_default();
                new.iter()
                    .filter_map(|id| PROBES.get(id.0 as usize))
                    .for_each(|probe| discovery.announce(probe));
            }
        }
    });
}

impl Provider {
    /// In objects that may be unloaded, makes toggles show on pages that a debugger has copied. (In the others, they do at once.)
    fn settle(&mut self) {
        const PERIOD: Duration = Duration::from_millis(100);
        if self.settled.is_some_and(|at| at.elapsed() < PERIOD) {
            return;
        }
        self.settled = Some(Instant::now());
        for object in self.objects.iter().filter(|object| !object.loaded.stays && !object.probes.is_empty()) {
            loaded::while_loaded(&object.loaded, || {
                let pages = wordpatch::text::copied_pages(&object.loaded.range);
                let probes = pages.into_iter().flat_map(|page| object.probes.range(page..page + PAGE));
                for site in probes.filter_map(|(_, id)| PROBES.get(id.0 as usize)?.site().ok()) {
                    // A refusal: the breakpoint stands in the very bytes. The debugger's look at them is what matters.
                    // SAFETY: the object is loaded meanwhile. One that was loaded anew at this place has no copied pages of ours.
                    let _ = unsafe { site.settle() };
                }
            });
        }
    }

    /// Takes out the objects that are no longer loaded, or were unloaded and loaded again meanwhile.
    fn retire(&mut self, loaded_now: &[LoadedObject]) {
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.objects)
            .into_iter()
            .partition(|object| loaded_now.contains(&object.loaded) && object.is_as_it_was());
        self.objects = stay;
        for mut object in go {
            // Of others, nobody here has made the text writable.
            let Some(known) = object.known.take() else { continue };
            known.alive.store(false, Ordering::Relaxed);
            for id in object.probes.values() {
                if let Some(probe) = PROBES.get(id.0 as usize) {
                    probe.unload();
                }
            }
            // SAFETY: the loader has unmapped the object, or mapped another, or the same anew, in its place.
            unsafe { wordpatch::text::release(&object.loaded.range) };
            if !object.probes.is_empty() {
                self.unloaded.push(object);
            }
        }
    }

    /// Makes probes of an object's sites. Returns those that are to be announced.
    fn add(&mut self, loaded: LoadedObject) -> Vec<ProbeId> {
        match self.probes_of(&loaded) {
            Ok(Some((object, new))) => {
                self.objects.push(object);
                new.into_iter()
                    .filter(|id| PROBES.get(id.0 as usize).is_some_and(|probe| self.name(probe)))
                    .collect()
            }
            outcome => {
                if let Err(error) = outcome {
                    self.note(error.to_string());
                }
                self.objects.push(Object::without_probes(loaded));
                Vec::new()
            }
        }
    }

    fn note(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    /// The object with its probes, and the ids that are new; nothing for an object that is not instrumented.
    fn probes_of(&mut self, loaded: &LoadedObject) -> Result<Option<(Object, Vec<ProbeId>)>, Error> {
        let Some(file) = elf::read(loaded)? else { return Ok(None) };
        let found = scan::scan(loaded, &file);
        if found.unsupported > 0 {
            self.note(format!(
                "{}: {} calls of the instrumentation functions are in no form that can be switched and are left as they are",
                loaded.path.display(),
                found.unsupported
            ));
        }
        let mut object =
            Object { loaded: loaded.clone(), probes: BTreeMap::new(), symbols: file.symbols, known: None };
        let addresses = || found.sites.iter().map(|site| site.address);
        let back = self
            .unloaded
            .iter()
            .position(|old| old.loaded == *loaded && old.probes.keys().copied().eq(addresses()));
        let (probes, new) = match back {
            _ if found.sites.is_empty() => (BTreeMap::new(), Vec::new()),
            Some(index) => {
                let probes = self.unloaded.swap_remove(index).probes;
                stubs::attach(&found.sites, &probes)?;
                (probes, Vec::new())
            }
            None => {
                let made = stubs::make(loaded, &found.sites)?;
                made.refused.iter().for_each(|error| self.note(error.to_string()));
                let ids = made.probes.values().copied().collect();
                (made.probes, ids)
            }
        };
        object.probes = probes;
        object.known = KnownRange::take(&loaded.range);
        Ok(Some((object, new)))
    }

    /// Gives a probe whose function is known its name. Returns whether it has one now and had none before.
    fn name(&self, probe: &Probe) -> bool {
        let address = probe.function_address.load(Ordering::Relaxed);
        if address == 0 || !probe.name.load(Ordering::Relaxed).is_null() {
            return false;
        }
        let symbol = self
            .objects
            .iter()
            .find_map(|object| object.symbols.name(address.wrapping_sub(object.loaded.bias)));
        let name = symbol.map_or_else(|| self.place(probe, address), <[u8]>::to_vec);
        let name = Box::leak(CString::new(name).unwrap_or_default().into_boxed_c_str());
        probe.name.store(Box::leak(Box::new(CStrBox(name))), Ordering::Release);
        true
    }

    /// What stands for the name of a function without a symbol.
    fn place(&self, probe: &Probe, address: usize) -> Vec<u8> {
        let path = PathBuf::from(probe.object_path.to_string_lossy().into_owned());
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        format!("[{file}+{:#x}]", address.wrapping_sub(probe.object_base)).into_bytes()
    }
}

impl Object {
    fn without_probes(loaded: LoadedObject) -> Self {
        Self { loaded, probes: BTreeMap::new(), symbols: elf::Symbols::default(), known: None }
    }

    /// Whether it is loaded, and its text is what we made of it: it was not unloaded and loaded again.
    fn is_as_it_was(&self) -> bool {
        let is_stale = |id: &ProbeId| {
            let site = PROBES.get(id.0 as usize).map(Probe::site);
            // SAFETY: the object is loaded here, and stays so meanwhile; the site is inside its text.
            matches!(site, Some(Ok(site)) if unsafe { site.is_stale() })
        };
        loaded::while_loaded(&self.loaded, || !self.probes.values().any(is_stale)).unwrap_or(false)
    }
}

/// A string that lives as long as the process.
fn leak(path: &std::path::Path) -> &'static CStr {
    use std::os::unix::ffi::OsStrExt;
    Box::leak(CString::new(path.as_os_str().as_bytes()).unwrap_or_default().into_boxed_c_str())
}

/// A cell for a probe function, in the data pages of a stub block.
fn cell(address: usize) -> &'static AtomicUsize {
    // SAFETY: the pages are mapped read-write and zeroed for the life of the process, and the cell is aligned.
    unsafe { AtomicUsize::from_ptr(std::ptr::with_exposed_provenance_mut(address)) }
}

/// An empty name: not discovered yet.
fn no_name() -> AtomicPtr<CStrBox> {
    AtomicPtr::new(std::ptr::null_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_an_object_that_was_unloaded_is_taken_by_the_next() {
        let before = KNOWN.len();
        for round in 0..100 {
            let start = 1 << 20 | round << 12;
            let known = KnownRange::take(&(start..start + 10)).unwrap();
            assert!(
                known.has(start) && known.has(start + 9) && !known.has(start + 10) && !known.has(start - 1)
            );
            assert_eq!(known.arrivals.swap(1, Ordering::Relaxed), 0);
            known.alive.store(false, Ordering::Relaxed);
            assert!(!known.has(start));
        }
        assert!(KNOWN.len() <= before + 1, "{} entries more", KNOWN.len() - before);
    }
}
