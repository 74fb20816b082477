//! The scripts of one process: the functions that they observe, and the probes that are on.
//!
//! [`OBSERVER`] is locked by the [`worker`](crate::worker) while it executes rules, by the thread
//! that discovers probes while it matches rules with functions, by threads that attach and detach
//! scripts ([`crate::control`]), and by a thread that forks. Threads of the program do not wait for
//! it in probes. Its holder acquires no other lock.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;
use std::ops::RangeFrom;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastinst::internal;
use fastinst::provider::{self, EarlyCalls, Extent};
use fastinst::service::{self, Descriptors};
use fastinst::{ProbeId, ProbeKind, ProbeMetadata};
use profiler::arguments::{Fetch, Objects, Site, Unavailable};
use profiler::binary::parts::Parts;
use profiler::binary::symbol::{demangle, without_parameters};
use profiler::output::Identity;
use profiler::script::attach::Answer;
use profiler::script::{ScriptFormat, ScriptOptions};
use profiler::session::merged::MergedEntry;
use wasm_jit::printable;
use wasm_jit_whamm::lang::Script;
use wasm_jit_whamm::native::NativeMonitor;
use wordpatch::tsc;

use crate::function::Function;
use crate::gate::Gates;
use crate::missing::Missing;
use crate::output::{self, Unwritten};
use crate::pairing::Calls;
use crate::ring::{self, Thread, Values};
use crate::running::{Origin, Running};
use crate::socket::Socket;
use crate::worker::{self, Clock};
use crate::{control, fetch, fire, switch};

/// A probe that has been announced.
pub(crate) struct Probe {
    id: ProbeId,
    pub(crate) function: u32,
    pub(crate) is_entry: bool,
    /// The lower half of the address of its site.
    pub(crate) site: u32,
    /// The offset of its site in the object.
    place: Site,
    /// How the probe fetches each of the [values](Function::values) of its function, or why it
    /// cannot; `None` for values of the other end of the call.
    pub(crate) fetches: Vec<Option<Result<Fetch, Unavailable>>>,
    /// Whether it is at an exit in a part of its function that was split off; determined if a
    /// script pairs exits with entries.
    pub(crate) is_in_part: bool,
    state: State,
}

impl Probe {
    /// Whether the probe fetches one of these values.
    fn fetches_any(&self, values: RangeFrom<usize>) -> bool {
        self.fetches[values].iter().flatten().any(Result::is_ok)
    }
}

/// The state of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Off,
    /// On: the probe writes events.
    On,
    /// On: the probe writes events with values.
    OnWithValues,
}

/// A thread of the program, with its open calls.
struct Reader {
    block: &'static Thread,
    thread: u32,
    /// The open calls for each script, in the order of the scripts.
    calls: Vec<Calls>,
}

pub(crate) struct Observer {
    pub(crate) options: ScriptOptions,
    pub(crate) identity: Identity,
    pub(crate) written: Option<profiler::output::OwnFile>,
    /// The script of the options, if there is one, comes first.
    scripts: Vec<Running>,
    /// The number of scripts that were ever attached.
    attached: u64,
    pub(crate) functions: Vec<Function>,
    /// The debugging information of objects, kept until no function has been discovered for a
    /// while.
    objects: Objects,
    parts: Parts,
    has_discovered: bool,
    /// The functions by object and offset: a library that is loaded again finds its functions here.
    numbers: HashMap<(&'static CStr, usize), u32>,
    by_address: HashMap<usize, u32>,
    /// The probes by number.
    probes: Vec<Option<Probe>>,
    /// The numbers of probes that could not be switched on.
    refused: BTreeSet<usize>,
    readers: Vec<Reader>,
    clock: Clock,
    missing: Missing,
    gates: Gates,
    /// The sockets that a forked child closes.
    pub(crate) sockets: Vec<Arc<Socket>>,
}

/// A script that has ended, and the recipient of its report.
pub(crate) struct Concluded {
    socket: Arc<Socket>,
    answer: Answer,
}

impl Concluded {
    /// Sends the report, and ends the connection. Blocks while the client does not read, up to its
    /// time limit. The observer must not be locked.
    pub(crate) fn send(&self) {
        control::answer(&self.socket, &self.answer);
        control::end_connection(&self.socket);
    }
}

static OBSERVER: Mutex<Option<Observer>> = Mutex::new(None);

/// Whether this is a forked child that does not have its own text yet.
static TEXT_IS_SHARED: AtomicBool = AtomicBool::new(false);

/// The observer, which exists after [`start`].
pub(crate) fn lock() -> MutexGuard<'static, Option<Observer>> {
    OBSERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to observe this process. Blocks while the loaded objects are inspected.
///
/// # Errors
/// A line for the user: the script cannot be read or compiled, or the system refuses a request.
pub(crate) fn start(options: ScriptOptions) -> Result<(), String> {
    let mut scripts = Vec::new();
    if let Some(path) = &options.script {
        let name = path.display().to_string();
        let source = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
        // Checks the script before the program starts.
        Script::native(&name, &source).map_err(|error| format!("{name} is not a valid script:\n{error}"))?;
        scripts.push(Running::of_options(name, source, options.toggle));
    }
    let identity = Identity {
        pid: std::process::id(),
        executable: std::fs::read_link("/proc/self/exe").unwrap_or_default(),
        run: options.run,
        is_fork_child: false,
    };
    worker::set_output(options.output.as_deref());
    let (listens, is_switched) = (options.control, options.toggle);
    *lock() = Some(Observer {
        options,
        identity,
        written: None,
        scripts,
        attached: 0,
        functions: Vec::new(),
        objects: Objects::default(),
        parts: Parts::default(),
        has_discovered: false,
        numbers: HashMap::new(),
        by_address: HashMap::new(),
        probes: Vec::new(),
        refused: BTreeSet::new(),
        readers: Vec::new(),
        clock: Clock::start(),
        missing: Missing::default(),
        gates: Gates::default(),
        sockets: Vec::new(),
    });
    // Identifies the stream.
    profiler::session::print("");
    ring::begin();
    let failed = |error: fastinst::Error| error.to_string();
    provider::begin(Extent::All).map_err(failed)?;
    fastinst::register_callback(discovered).map_err(failed)?;
    service::start(None, Descriptors::Own).map_err(failed)?;
    worker::start().inspect_err(|_| ring::end())?;
    if is_switched {
        switch::install();
    }
    if listens { control::start() } else { Ok(()) }
}

/// The discovery callback, called for every probe.
fn discovered(probe: &ProbeMetadata<'_>) {
    // Functions whose probes are in groups belong to engines, which may remove them.
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

/// Calls that were made before the probes of their functions were ready, for
/// [`Observer::add_early_calls`]. The observer must not be locked: the provider has its own locks.
pub(crate) fn early_calls() -> (Vec<(usize, EarlyCalls)>, u64) {
    let mut early = Vec::new();
    let unassigned = internal::take_early_calls(|address, calls| early.push((address, calls)));
    (early, unassigned)
}

impl Observer {
    /// In a forked child: creates its own text, without which its probes cannot be switched.
    pub(crate) fn unshare_text(&mut self) {
        // SAFETY: until this succeeds, every store to the text is refused with `SharedWithParent`.
        if TEXT_IS_SHARED.load(Ordering::Acquire) && unsafe { wordpatch::text::unshare() }.is_ok() {
            TEXT_IS_SHARED.store(false, Ordering::Release);
            // Switches off the probes that only the parent's clients needed.
            self.switch_all();
        }
    }

    /// Assigns a probe to its function, and switches it on if a rule needs it.
    fn adopt(&mut self, probe: &ProbeMetadata<'static>, is_entry: bool) {
        self.has_discovered = true;
        let function = self.function(probe);
        let number = probe.id.0 as usize;
        if self.probes.len() <= number {
            self.probes.resize_with(number + 1, || None);
        }
        let site = probe.site_address as u32;
        let in_object = |address: usize| address.wrapping_sub(probe.object_base) as u64;
        let place = Site { function: in_object(probe.function_address), call: in_object(probe.site_address) };
        self.probes[number] = Some(Probe {
            id: probe.id,
            function,
            is_entry,
            site,
            place,
            fetches: Vec::new(),
            is_in_part: false,
            state: State::Off,
        });
        self.find_part(number);
        self.find_values(number);
        self.switch(number);
    }

    /// Determines whether an exit is in a part of its function that was split off.
    fn find_part(&mut self, number: usize) {
        let Some(Some(probe)) = self.probes.get_mut(number) else { return };
        if !probe.is_entry && self.scripts.iter().any(|script| script.pairs_calls) {
            let object = self.functions[probe.function as usize].path();
            probe.is_in_part = self.parts.contain(object, probe.place.call);
        }
    }

    /// Determines how a probe fetches the values that scripts ask for.
    fn find_values(&mut self, number: usize) {
        let Some(Some(probe)) = self.probes.get_mut(number) else { return };
        let function = &self.functions[probe.function as usize];
        let known = probe.fetches.len();
        let (place, is_entry, objects) = (probe.place, probe.is_entry, &mut self.objects);
        let fetches = function.values[known..]
            .iter()
            .map(|value| value.fetch(function.path(), place, is_entry, objects));
        probe.fetches.extend(fetches);
        if !probe.fetches_any(known..) {
            return;
        }
        let list = probe.fetches.iter().map(|fetch| fetch.as_ref()?.as_ref().ok().cloned()).collect();
        if !fetch::set(probe.id, list) {
            for fetch in probe.fetches[known..].iter_mut().flatten() {
                *fetch = Err(Unavailable::TooMany);
            }
        }
    }

    /// Switches a probe on if a script needs it, otherwise off.
    fn switch(&mut self, number: usize) {
        let Some(Some(probe)) = self.probes.get_mut(number) else { return };
        let mut wanting = self.scripts.iter().filter(|script| script.wants(probe));
        let (first, second) = (wanting.next(), wanting.next());
        let is_wanted = ring::is_observing() && first.is_some();
        let owner = match (first, second) {
            (Some(script), None) => script.group(probe).map(|group| (script.number(), group)),
            _ => None,
        };
        self.gates.assign(probe.id, owner);
        let has_values = || {
            probe.fetches_any(0..) && self.scripts.iter().any(|script| script.wants_values(probe.function))
        };
        let state = match is_wanted {
            false => State::Off,
            true if has_values() => State::OnWithValues,
            true => State::On,
        };
        let function = match state {
            _ if state == probe.state => return,
            State::Off => {
                // An error means that the library is gone, or that the text is shared with the
                // parent.
                if fastinst::deactivate(probe.id).is_ok() {
                    probe.state = state;
                }
                return;
            }
            State::On => fire::probe,
            State::OnWithValues => fire::probe_with_values,
        };
        // SAFETY: the function is never unloaded, and complies with the contract of `ProbeFn`: it
        // calls no code of the program.
        if unsafe { fastinst::activate(probe.id, function) }.is_ok() {
            probe.state = state;
            self.refused.remove(&number);
        } else {
            self.refused.insert(number);
        }
    }

    /// Switches on the probes that the scripts need now, and the others off.
    fn switch_all(&mut self) {
        for number in 0..self.probes.len() {
            self.switch(number);
        }
    }

    /// The number of a probe's function. If the function is new, the rules are matched with it.
    fn function(&mut self, probe: &ProbeMetadata<'static>) -> u32 {
        let key = (probe.object_path, probe.function_address.wrapping_sub(probe.object_base));
        if let Some(number) = self.numbers.get(&key) {
            // Its library may be loaded at another address now.
            self.by_address.insert(probe.function_address, *number);
            return *number;
        }
        let number = self.functions.len() as u32;
        let name = demangle(&probe.function_name.to_string_lossy());
        let mut function = Function {
            name: without_parameters(&name).to_owned(),
            object: probe.object_path,
            address: key.1 as u64,
            values: Vec::new(),
        };
        for script in &mut self.scripts {
            script.prepare();
            script.show(number, &mut function, &mut self.objects);
        }
        self.functions.push(function);
        self.numbers.insert(key, number);
        self.by_address.insert(probe.function_address, number);
        number
    }

    /// Attaches a script, which observes from now on. Returns its number, the number of functions
    /// that its rules match, and the number of all functions.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) fn attach(
        &mut self,
        name: String,
        monitor: NativeMonitor,
        format: ScriptFormat,
        socket: Arc<Socket>,
    ) -> Result<(u64, usize, usize), String> {
        if crate::process::is_over() {
            return Err("the process ends".to_owned());
        }
        self.unshare_text();
        self.missing.lost = ring::lost();
        let number = self.attached;
        let origin = Origin::Client { number, format, socket };
        let mut script = Running::of_client(name, origin, monitor, self.missing.clone());
        for (number, function) in self.functions.iter_mut().enumerate() {
            script.show(number as u32, function, &mut self.objects);
        }
        if let Some(reason) = script.failure {
            return Err(reason);
        }
        for number in 0..self.probes.len() {
            self.find_values(number);
        }
        // A script that took too long may have ended the observation.
        ring::begin();
        let matched = script.matched();
        self.attached += 1;
        self.scripts.push(script);
        (0..self.probes.len()).for_each(|number| self.find_part(number));
        self.readers.iter_mut().for_each(|reader| reader.calls.push(Calls::default()));
        self.switch_all();
        // Now all its probes are on.
        self.scripts.last_mut().expect("it was added").begin();
        Ok((number, matched, self.functions.len()))
    }

    /// Switches the script of the options on or off; switching it off writes its report.
    pub(crate) fn toggle(&mut self) -> Unwritten {
        self.unshare_text();
        self.drain(false);
        self.missing.lost = ring::lost();
        let Self { scripts, readers, missing, .. } = self;
        let Some(script) = scripts.first_mut().filter(|script| script.periods.is_some()) else {
            return Unwritten::default();
        };
        let is_on = script.is_on();
        let name = script.name.clone();
        if is_on {
            script.pause(missing, readers.iter_mut().map(|reader| &mut reader.calls[0]));
            self.switch_all();
            let values = self.scripts[0].values();
            let text = output::report(self, &self.scripts[0], values.as_ref()).print(self.options.format);
            let mut unwritten = output::write(self, text);
            unwritten.say(&format!("{name} is switched off"));
            unwritten
        } else {
            script.prepare_to_resume(missing);
            let matched = script.matched();
            // A script that took too long may have ended the observation.
            ring::begin();
            self.switch_all();
            self.scripts[0].resume();
            let functions = self.functions.len();
            let mut unwritten = Unwritten::default();
            unwritten.say(&format!("{name} is switched on: observing {matched} of {functions} functions"));
            unwritten
        }
    }

    /// Ends the observation for a client. `None` if it has ended already.
    pub(crate) fn detach(&mut self, number: u64) -> Option<Concluded> {
        let is_it = |script: &Running| matches!(script.origin, Origin::Client { number: other, .. } if other == number);
        let at = self.scripts.iter().position(is_it)?;
        self.unshare_text();
        self.drain(false);
        self.conclude(at, None)
    }

    /// Ends the observation for all clients whose scripts have failed.
    pub(crate) fn detach_failed(&mut self) -> Vec<Concluded> {
        self.conclude_if(|script| {
            script.failure.as_ref().map(|reason| format!("the script has failed: {}", printable(reason)))
        })
    }

    /// Ends the observation for all clients.
    pub(crate) fn detach_all(&mut self, reason: &str) -> Vec<Concluded> {
        self.conclude_if(|_| Some(reason.to_owned()))
    }

    fn conclude_if(&mut self, reason: impl Fn(&Running) -> Option<String>) -> Vec<Concluded> {
        let mut concluded = Vec::new();
        for at in (0..self.scripts.len()).rev() {
            if matches!(self.scripts[at].origin, Origin::Client { .. })
                && let Some(reason) = reason(&self.scripts[at])
            {
                concluded.extend(self.conclude(at, Some(reason)));
            }
        }
        concluded
    }

    /// Removes the script of a client.
    fn conclude(&mut self, at: usize, reason: Option<String>) -> Option<Concluded> {
        self.missing.lost = ring::lost();
        let values = self.scripts[at].finish();
        let report = output::report(self, &self.scripts[at], values.as_ref());
        let script = self.scripts.remove(at);
        self.readers.iter_mut().for_each(|reader| drop(reader.calls.remove(at)));
        self.switch_all();
        self.gates.free(script.number());
        let Origin::Client { format, socket, .. } = script.origin else { return None };
        Some(Concluded { socket, answer: Answer::Report { text: report.print(format), reason } })
    }

    /// Executes the rules for the events in all rings. With `at_end`, no thread writes any more.
    pub(crate) fn drain(&mut self, at_end: bool) {
        for block in ring::blocks() {
            let thread = block.owner();
            if thread != 0 && !self.readers.iter().any(|reader| std::ptr::eq(reader.block, block)) {
                let calls = self.scripts.iter().map(|_| Calls::default()).collect();
                self.readers.push(Reader { block, thread, calls });
            }
        }
        // The loop ends although threads continue to write.
        let until = if at_end { u64::MAX } else { tsc::now() };
        while let Some((number, next)) = self.next_reader(until, at_end) {
            self.take(number, until.min(next));
        }
    }

    /// The thread with the oldest event that was made until then, and the time of the oldest event
    /// of all others.
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

    /// Executes the rules for events of a thread that were made until then: at least one, and no
    /// more than needed to make room for a waiting thread.
    fn take(&mut self, number: usize, until: u64) {
        let Self { readers, scripts, probes, functions, clock, gates, .. } = self;
        let Reader { block, thread, calls } = &mut readers[number];
        let mut count = 0;
        let mut has_failed = false;
        while count < ring::RING / 4
            && !has_failed
            && let Some(event) = block.event(count)
            && (event.ticks <= until || count == 0)
        {
            // Probes are announced before they are switched on.
            let Some(Some(probe)) = probes.get(event.probe as usize) else {
                count += block.values(count).1;
                continue;
            };
            let (values, slots) = match probe.fetches_any(0..) {
                false => (Values::NONE, 1),
                true => {
                    let (mut values, slots) = block.values(count);
                    functions[probe.function as usize].convert(&mut values);
                    (values, slots)
                }
            };
            count += slots;
            for (script, calls) in scripts.iter_mut().zip(calls.iter_mut()) {
                if let Err(error) = script.observe(&event, &values, probe, *thread, calls, clock) {
                    let name = &functions[probe.function as usize].name;
                    script.failure = Some(format!("a rule for {name}: {error}"));
                    has_failed = true;
                }
            }
        }
        block.advance(count);
        for script in scripts.iter_mut() {
            let number = script.number();
            for (group, until) in std::mem::take(&mut script.pauses) {
                gates.close((number, group), until);
            }
        }
        let finished: BTreeSet<u32> =
            scripts.iter_mut().flat_map(|script| std::mem::take(&mut script.finished)).collect();
        if has_failed {
            self.switch_all();
        } else if !finished.is_empty() {
            let is_of_finished = |probe: &Option<Probe>| {
                probe.as_ref().is_some_and(|probe| finished.contains(&probe.function))
            };
            let probes: Vec<_> =
                (0..self.probes.len()).filter(|at| is_of_finished(&self.probes[*at])).collect();
            probes.into_iter().for_each(|number| self.switch(number));
        }
    }

    /// Removes the threads that have ended, and frees their blocks. Frees debugging information,
    /// which may be large, unless a function has been discovered since the last call.
    pub(crate) fn reclaim(&mut self) {
        if !std::mem::take(&mut self.has_discovered) {
            self.objects = Objects::default();
        }
        let process = std::process::id().cast_signed();
        let Self { readers, scripts, .. } = self;
        readers.retain_mut(|reader| {
            // SAFETY: signal 0 is not sent.
            let result = unsafe { libc::syscall(libc::SYS_tgkill, process, reader.thread.cast_signed(), 0) };
            let is_over = result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            // A slot that an ended thread has reserved but not filled will never be filled.
            let is_done = is_over && reader.block.event(0).is_none() && !reader.block.skip_unfilled(true);
            if is_done {
                for (script, calls) in scripts.iter_mut().zip(&mut reader.calls) {
                    script.thread_ended(reader.thread, calls);
                }
                reader.block.free();
            }
            !is_done
        });
    }

    /// Adds calls for which there are no events.
    pub(crate) fn add_early_calls(&mut self, (early, unassigned): &(Vec<(usize, EarlyCalls)>, u64)) {
        self.missing.unassigned += unassigned;
        for (address, calls) in early {
            self.missing.add(self.by_address.get(address).copied(), calls);
        }
    }

    /// The calls that a script has missed.
    pub(crate) fn missed_by(&self, script: &Running) -> Missing {
        script.missed(&self.missing)
    }

    /// The reason why a value is not known at the probes of a function.
    pub(crate) fn reason_without(&self, function: u32, value: u32) -> String {
        let of_function = self.probes.iter().flatten().filter(|probe| probe.function == function);
        let reasons: BTreeSet<_> = of_function
            .filter_map(|probe| probe.fetches.get(value as usize)?.as_ref()?.as_ref().err())
            .map(ToString::to_string)
            .collect();
        match reasons.len() {
            0 => "it could not be read".to_owned(),
            _ => reasons.into_iter().collect::<Vec<_>>().join("; "),
        }
    }

    /// The number of probes that a script needs and that could not be switched on.
    pub(crate) fn refused_to(&self, script: &Running) -> usize {
        let is_wanted =
            |number: &&usize| self.probes[**number].as_ref().is_some_and(|probe| script.needs(probe));
        self.refused.iter().filter(is_wanted).count()
    }

    /// The functions that fire probes of other functions, which a script observes.
    pub(crate) fn merged_for(&self, script: &Running) -> Vec<MergedEntry> {
        let is_observed = |entry: &MergedEntry| {
            let probe = self.probes.get(entry.probe.0 as usize).and_then(Option::as_ref);
            probe.is_some_and(|probe| script.matches(probe.function))
        };
        MergedEntry::all().into_iter().filter(is_observed).collect()
    }

    /// Writes the report of the options' script, unless there is nothing to observe in this
    /// process.
    pub(crate) fn write(&mut self) -> Unwritten {
        self.missing.lost = ring::lost();
        let is_first = self.identity.pid == self.options.run.pid;
        let Some(script) = self.scripts.first_mut() else { return Unwritten::default() };
        if !matches!(script.origin, Origin::Options { .. }) {
            return Unwritten::default();
        }
        if is_first {
            script.prepare();
        } else if script.matched() == 0 {
            return Unwritten::default();
        }
        let Some(values) = script.finish() else { return Unwritten::default() };
        let text = output::report(self, &self.scripts[0], Some(&values)).print(self.options.format);
        output::write(self, text)
    }

    /// In a forked child: begins again, with the parent's functions, and without its variables and
    /// its clients.
    fn restart(&mut self) {
        self.identity.pid = std::process::id();
        self.identity.is_fork_child = true;
        self.written = None;
        self.readers.clear();
        self.missing = Missing::default();
        self.refused.clear();
        self.gates = Gates::default();
        self.clock = Clock::start();
        let sockets = std::mem::take(&mut self.sockets);
        sockets.iter().for_each(|socket| socket.close_copy());
        self.scripts.retain(|script| matches!(script.origin, Origin::Options { .. }));
        // The remaining references belong to threads that do not exist in this process.
        std::mem::forget(sockets);
        let Self { scripts, functions, objects, .. } = self;
        scripts.iter_mut().for_each(|script| script.restart(functions, objects));
    }
}

/// The observer's part of the work in a forked child.
pub(crate) fn restart_in_child(observer: &mut Option<Observer>) {
    switch::take_request();
    Thread::reset_in_child();
    TEXT_IS_SHARED.store(true, Ordering::Release);
    ring::begin();
    if let Some(observer) = observer {
        observer.restart();
        observer.unshare_text();
    }
}
