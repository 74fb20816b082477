//! The script and the program in one process: which functions there are, which probes are on, and
//! what an event means to the script.
//!
//! [`OBSERVER`] is locked by the [`worker`](crate::worker) while it executes rules, by the thread
//! that discovers probes while it matches rules with functions, and by a thread that forks. Threads
//! of the program do not wait for it in probes. Its holder asks for no other lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastinst::provider::{self, EarlyCalls, Extent};
use fastinst::{ProbeId, ProbeKind, ProbeMetadata, service};
use profiler::output::Identity;
use profiler::script::ScriptOptions;
use profiler::symbol::{demangle, without_parameters};
use wasm_jit_whamm::lang::{Script, ScriptReport};
use wasm_jit_whamm::native::{NativeCall, NativeFunction, NativeMonitor, NativePlaces};
use wordpatch::tsc;

use crate::pairing::{Calls, Exit, Open};
use crate::ring::{self, Event, Thread};
use crate::worker::{self, Clock};
use crate::{fire, output};

/// A function of the program.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) object: &'static CStr,
    places: NativePlaces,
    /// Calls that were made before its probes were ready.
    pub(crate) early: u64,
}

impl Function {
    /// Whether a rule matches it.
    pub(crate) fn is_matched(&self) -> bool {
        !(self.places.entry.is_empty() && self.places.exit.is_empty())
    }
}

/// A probe that has been announced.
struct Probe {
    id: ProbeId,
    function: u32,
    is_entry: bool,
    /// The lower half of the address of its site.
    site: u32,
}

/// A thread, with its open calls.
struct Reader {
    block: &'static Thread,
    thread: u32,
    calls: Calls,
}

pub(crate) struct Observer {
    pub(crate) options: ScriptOptions,
    pub(crate) identity: Identity,
    pub(crate) written: Option<std::path::PathBuf>,
    source: Vec<u8>,
    /// Made when the first function is discovered: most processes of a run have none.
    monitor: Option<NativeMonitor>,
    pairs_calls: bool,
    measures_time: bool,
    pub(crate) functions: Vec<Function>,
    /// By object, and offset in it: a library that is loaded again finds its functions here.
    numbers: HashMap<(&'static CStr, usize), u32>,
    by_address: HashMap<usize, u32>,
    /// By number of the probe.
    probes: Vec<Option<Probe>>,
    readers: Vec<Reader>,
    clock: Clock,
    /// Exits for which `duration` and `depth` are not known, by function.
    pub(crate) unpaired: BTreeMap<u32, u64>,
    /// Calls without an event whose functions are not known.
    pub(crate) unassigned: u64,
    /// Functions of which an unknown number of calls has no events, because their probes were not
    /// ready.
    pub(crate) interrupted: BTreeSet<u32>,
    /// Whether there are such functions that are not known.
    pub(crate) has_unknown_interrupted: bool,
    /// Probes that could not be switched on.
    pub(crate) refused: u64,
    /// Why the script observes nothing more.
    pub(crate) failure: Option<String>,
    /// How often the rules of the end were executed: once more for each exec that has failed.
    pub(crate) ends: u32,
}

static OBSERVER: Mutex<Option<Observer>> = Mutex::new(None);

/// Set in a forked child until it has its own text.
static TEXT_IS_SHARED: AtomicBool = AtomicBool::new(false);

/// The observer, which is there after [`start`].
pub(crate) fn lock() -> MutexGuard<'static, Option<Observer>> {
    OBSERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to observe this process. Blocks while the loaded objects are inspected.
///
/// # Errors
/// A line for the user: the script cannot be read or compiled, or the system refuses something.
pub(crate) fn start(options: ScriptOptions) -> Result<(), String> {
    let name = options.script.display().to_string();
    let source = std::fs::read(&options.script).map_err(|error| format!("{name}: {error}"))?;
    // Whether it is valid; the program has not started.
    Script::native(&name, &source).map_err(|error| format!("{name} is not a valid script:\n{error}"))?;
    let identity = Identity {
        pid: std::process::id(),
        executable: std::fs::read_link("/proc/self/exe").unwrap_or_default(),
        run: options.run,
        is_fork_child: false,
    };
    *lock() = Some(Observer {
        options,
        identity,
        written: None,
        source,
        monitor: None,
        pairs_calls: false,
        measures_time: false,
        functions: Vec::new(),
        numbers: HashMap::new(),
        by_address: HashMap::new(),
        probes: Vec::new(),
        readers: Vec::new(),
        clock: Clock::start(),
        unpaired: BTreeMap::new(),
        unassigned: 0,
        interrupted: BTreeSet::new(),
        has_unknown_interrupted: false,
        refused: 0,
        failure: None,
        ends: 0,
    });
    // Identifies the stream.
    profiler::session::print("");
    ring::begin();
    let failed = |error: fastinst::Error| error.to_string();
    provider::begin(Extent::All).map_err(failed)?;
    fastinst::register_callback(discovered).map_err(failed)?;
    service::start(None).map_err(failed)?;
    worker::start().inspect_err(|_| ring::end())
}

/// Called for every probe.
fn discovered(probe: &ProbeMetadata<'_>) {
    // Functions that are removed in groups are those of engines.
    let Some(probe) = fastinst::lasting_metadata(probe.id) else { return };
    let is_entry = match probe.kind {
        ProbeKind::ENTRY => true,
        ProbeKind::EXIT => false,
        _ => return,
    };
    if let Some(observer) = lock().as_mut() {
        observer.adopt(&probe, is_entry);
    }
}

impl Observer {
    fn monitor(&mut self) -> Option<&mut NativeMonitor> {
        if self.monitor.is_none() && self.failure.is_none() {
            let name = self.options.script.display().to_string();
            let script = Script::native(&name, &self.source).map_err(|error| error.to_string());
            let made =
                script.and_then(|script| NativeMonitor::new(script).map_err(|error| error.to_string()));
            match made {
                Ok(monitor) => {
                    self.pairs_calls = monitor.pairs_calls();
                    self.measures_time = monitor.measures_time();
                    self.monitor = Some(monitor);
                }
                Err(error) => self.fail(error),
            }
        }
        self.monitor.as_mut()
    }

    /// Ends the observation, because of this.
    fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
        ring::end();
        self.switch_off();
    }

    fn switch_off(&self) {
        for probe in self.probes.iter().flatten() {
            // An error means that the library is gone.
            let _ = fastinst::deactivate(probe.id);
        }
    }

    /// Assigns a probe to its function, and switches it on if a rule needs it.
    fn adopt(&mut self, probe: &ProbeMetadata<'static>, is_entry: bool) {
        let Some(function) = self.function(probe) else { return };
        let number = probe.id.0 as usize;
        if self.probes.len() <= number {
            self.probes.resize_with(number + 1, || None);
        }
        let site = probe.site_address as u32;
        self.probes[number] = Some(Probe { id: probe.id, function, is_entry, site });
        self.switch_on(number);
    }

    /// Switches a probe on if a rule needs it.
    fn switch_on(&mut self, number: usize) {
        let Some(probe) = &self.probes[number] else { return };
        let NativePlaces { entry, exit } = &self.functions[probe.function as usize].places;
        let of_event = if probe.is_entry { entry } else { exit };
        let is_wanted =
            !of_event.is_empty() || self.pairs_calls && self.functions[probe.function as usize].is_matched();
        if !is_wanted || !ring::is_observing() {
            return;
        }
        // SAFETY: the function is never unloaded, and complies with the contract of `ProbeFn`: it
        // calls no code of the program.
        if unsafe { fastinst::activate(probe.id, fire::probe) }.is_err() {
            self.refused += 1;
        }
    }

    /// The number of a probe's function, with which the rules are matched if it is new.
    fn function(&mut self, probe: &ProbeMetadata<'static>) -> Option<u32> {
        let key = (probe.object_path, probe.function_address.wrapping_sub(probe.object_base));
        if let Some(number) = self.numbers.get(&key) {
            // Its library may be loaded at another address now.
            self.by_address.insert(probe.function_address, *number);
            return Some(*number);
        }
        self.monitor()?;
        let number = self.functions.len() as u32;
        let name = demangle(&probe.function_name.to_string_lossy());
        let function = Function {
            name: without_parameters(&name).to_owned(),
            object: probe.object_path,
            places: NativePlaces::default(),
            early: 0,
        };
        self.functions.push(function);
        self.numbers.insert(key, number);
        self.by_address.insert(probe.function_address, number);
        self.match_rules(number);
        Some(number)
    }

    fn match_rules(&mut self, number: u32) {
        let function = &mut self.functions[number as usize];
        let Some(monitor) = &mut self.monitor else { return };
        let object = function.object.to_string_lossy();
        let matched = monitor.function(NativeFunction { number, name: &function.name, object: &object });
        match matched {
            Ok(places) => function.places = places,
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Executes the rules for the events in all rings. `at_end`, no thread writes any more.
    pub(crate) fn drain(&mut self, at_end: bool) {
        for block in ring::blocks() {
            let thread = block.owner();
            if thread != 0 && !self.readers.iter().any(|reader| std::ptr::eq(reader.block, block)) {
                self.readers.push(Reader { block, thread, calls: Calls::default() });
            }
        }
        // The loop ends although threads go on to write.
        let until = if at_end { u64::MAX } else { tsc::now() };
        while self.failure.is_none()
            && let Some((number, next)) = self.next_reader(until, at_end)
        {
            self.take(number, until.min(next));
        }
    }

    /// The thread with the oldest event that was made until then, and the time of the oldest one of
    /// all others.
    fn next_reader(&self, until: u64, at_end: bool) -> Option<(usize, u64)> {
        let mut first: Option<(usize, u64)> = None;
        let mut second = u64::MAX;
        for (number, reader) in self.readers.iter().enumerate() {
            while reader.block.skip_unfilled(at_end) {}
            let Some(event) = reader.block.event(0).filter(|event| event.ticks <= until) else { continue };
            match first {
                Some((_, ticks)) if event.ticks >= ticks => second = second.min(event.ticks),
                _ => {
                    second = first.map_or(second, |(_, ticks)| ticks);
                    first = Some((number, event.ticks));
                }
            }
        }
        first.map(|(number, _)| (number, second))
    }

    /// Executes the rules for events of a thread that were made until then, at least for one, and
    /// for no more than make room for a thread that waits.
    fn take(&mut self, number: usize, until: u64) {
        let Self { readers, monitor: Some(monitor), probes, functions, unpaired, .. } = self else { return };
        // The rate of the counter takes time to find out.
        let mut clock = self.measures_time.then_some(&mut self.clock);
        let Reader { block, thread, calls } = &mut readers[number];
        let mut count = 0;
        let mut failed = None;
        while count < ring::RING / 4
            && failed.is_none()
            && let Some(event) = block.event(count)
            && (event.ticks <= until || count == 0)
        {
            count += 1;
            // Probes are announced before they are switched on.
            let Some(Some(probe)) = probes.get(event.probe as usize) else { continue };
            let places = &functions[probe.function as usize].places;
            let seen =
                if self.pairs_calls { see(calls, probe, &event, clock.as_deref_mut()) } else { Some((0, 0)) };
            let (depth, duration) = seen.unwrap_or_default();
            let call = NativeCall {
                probe: event.probe,
                thread: *thread,
                ticks: event.ticks,
                nanoseconds: clock.as_mut().map_or(0, |clock| clock.nanoseconds_since_start(event.ticks)),
                depth,
                duration,
            };
            for place in if probe.is_entry { &places.entry } else { &places.exit } {
                if seen.is_none() && monitor.needs_pairs(*place) {
                    *unpaired.entry(probe.function).or_default() += 1;
                } else if let Err(error) = monitor.fire(*place, &call) {
                    failed = Some(format!("a rule for {}: {error}", functions[probe.function as usize].name));
                    break;
                }
            }
        }
        block.advance(count);
        if let Some(reason) = failed {
            self.fail(reason);
        }
    }

    /// Forgets the threads that have ended; their blocks become free.
    pub(crate) fn reclaim(&mut self) {
        let process = std::process::id().cast_signed();
        self.readers.retain(|reader| {
            // SAFETY: signal 0 is not sent.
            let result = unsafe { libc::syscall(libc::SYS_tgkill, process, reader.thread.cast_signed(), 0) };
            let is_over = result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            // What a thread that has ended has not filled stays so.
            let is_done = is_over && reader.block.event(0).is_none() && !reader.block.skip_unfilled(true);
            if is_done {
                reader.block.free();
            }
            !is_done
        });
    }

    /// Adds calls for which there are no events.
    pub(crate) fn add_early_calls(&mut self, early: &[(usize, EarlyCalls)], unassigned: u64) {
        self.unassigned += unassigned;
        for (address, calls) in early {
            match (self.by_address.get(address), calls) {
                (Some(number), EarlyCalls::Counted(calls)) => {
                    self.functions[*number as usize].early += calls;
                }
                (None, EarlyCalls::Counted(calls)) => self.unassigned += calls,
                (number, EarlyCalls::Interrupted) => {
                    self.interrupted.extend(number);
                    self.has_unknown_interrupted |= number.is_none();
                }
            }
        }
    }

    /// The values of the variables, after the rules of the end; none if there is nothing to observe
    /// in this process.
    pub(crate) fn values(&mut self) -> Option<ScriptReport> {
        let is_first = self.identity.pid == self.options.run.pid;
        if is_first {
            self.monitor();
        }
        let monitor = self.monitor.as_mut()?;
        if !is_first && !self.functions.iter().any(Function::is_matched) {
            return None;
        }
        self.ends += 1;
        let ended = monitor.finish();
        let report = monitor.report();
        match (ended, report) {
            (Ok(()), Ok(report)) => Some(report),
            (Err(error), report) => {
                self.failure.get_or_insert(error.to_string());
                report.ok()
            }
            (_, Err(error)) => {
                self.failure.get_or_insert(error.to_string());
                None
            }
        }
    }

    /// Writes the report.
    pub(crate) fn write(&mut self) {
        if let Some(values) = self.values() {
            output::write(self, &values);
        }
    }

    /// In a forked child: begins again, with the parent's functions and without its variables.
    fn restart(&mut self) {
        self.identity.pid = std::process::id();
        self.identity.is_fork_child = true;
        self.written = None;
        self.readers.clear();
        self.unpaired.clear();
        self.unassigned = 0;
        self.interrupted.clear();
        self.has_unknown_interrupted = false;
        self.refused = 0;
        self.clock = Clock::start();
        self.ends = 0;
        if self.monitor.take().is_some() && self.failure.is_none() && self.monitor().is_some() {
            for number in 0..self.functions.len() {
                self.functions[number].early = 0;
                self.match_rules(number as u32);
            }
        }
    }
}

/// What is known about the call of an event: the depth, and at an exit the duration. `None` for an
/// exit without an entry.
fn see(calls: &mut Calls, probe: &Probe, event: &Event, clock: Option<&mut Clock>) -> Option<(u32, u64)> {
    let (function, call_site, stack_pointer) = (probe.function, event.call_site, event.stack_pointer);
    if probe.is_entry {
        let open = Open { function, call_site, stack_pointer, ticks: event.ticks };
        return Some((calls.enter(open), 0));
    }
    // A call in any of its encodings is shorter than this.
    let after_site = event.continues_at.wrapping_sub(probe.site);
    let is_tail = !(1..=8).contains(&after_site);
    let (open, depth) = calls.exit(Exit { function, call_site, stack_pointer, is_tail })?;
    let ticks = event.ticks.saturating_sub(open.ticks);
    Some((depth, clock.map_or(0, |clock| clock.nanoseconds(ticks))))
}

/// In a forked child: the observer's part.
pub(crate) fn restart_in_child(observer: &mut Option<Observer>) {
    Thread::reset_in_child();
    TEXT_IS_SHARED.store(true, Ordering::Release);
    if let Some(observer) = observer {
        observer.restart();
    }
    ring::begin();
    unshare_text();
}

/// In a forked child: gives it its own text, without which its probes cannot be switched.
pub(crate) fn unshare_text() {
    // SAFETY: until this succeeds, every store to the text is refused with `SharedWithParent`.
    if TEXT_IS_SHARED.load(Ordering::Acquire) && unsafe { wordpatch::text::unshare() }.is_ok() {
        TEXT_IS_SHARED.store(false, Ordering::Release);
    }
}
