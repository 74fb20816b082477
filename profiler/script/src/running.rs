//! A script that observes: its rules, the functions that they match, and the state of observation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use profiler::arguments::{Objects, Unavailable};
use profiler::script::ScriptFormat;
use wasm_jit_whamm::lang::{Script, ScriptReport};
use wasm_jit_whamm::native::{
    NativeCall, NativeFrame, NativeFunction, NativeMonitor, NativePlaces, NativeValue,
};
use wordpatch::tsc;

use crate::function::Function;
use crate::missing::Missing;
use crate::observer::Probe;
use crate::pairing::{Calls, Entered, Exit, Open};
use crate::ring::{Event, Values};
use crate::socket::Socket;
use crate::stacks::{self, Stacks};
use crate::worker::Clock;

/// The recipient of a script's report.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The user who started the process with this script, whose text is here.
    Options { source: Vec<u8> },
    /// A client process that has attached the script.
    Client { number: u64, format: ScriptFormat, socket: Arc<Socket> },
}

/// The number of times that a signal has switched a script on, and the time for which it has
/// observed.
#[derive(Debug, Default)]
pub(crate) struct Periods {
    pub(crate) count: u32,
    finished: Duration,
    current: Option<Instant>,
}

impl Periods {
    /// The time, including the current period.
    pub(crate) fn duration(&self) -> Duration {
        self.finished + self.current.map_or(Duration::ZERO, |start| start.elapsed())
    }
}

/// The functions that do not have an argument or result.
#[derive(Debug, Default)]
pub(crate) struct Misfits {
    /// Whether another function has it.
    pub(crate) is_found: bool,
    /// The number of functions that do not have it.
    pub(crate) count: u64,
    /// The last of these functions.
    last: Option<u32>,
    /// The reasons for the first few of them.
    pub(crate) reasons: Vec<String>,
}

impl Misfits {
    const SHOWN: usize = 3;

    fn add(&mut self, function: u32, found: Option<u32>, reason: impl FnOnce() -> Option<String>) {
        self.is_found |= found.is_some();
        // Several rules may ask for the same value.
        if found.is_none() && self.last.replace(function) != Some(function) {
            self.count += 1;
            if self.reasons.len() < Self::SHOWN {
                self.reasons.extend(reason());
            }
        }
    }
}

/// A script that observes.
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    /// The monitor of the options' script is created when the first function is discovered: most
    /// processes of a run discover none.
    monitor: Option<NativeMonitor>,
    pub(crate) pairs_calls: bool,
    asks_for_nesting: bool,
    measures_time: bool,
    /// The stacks of its events, if it asks for stacks.
    pub(crate) stacks: Option<Stacks>,
    /// The places that its rules match, by number of the function, without those at which a rule
    /// has finished.
    places: Vec<NativePlaces>,
    /// Whether rules match a function, or have matched it, by number of the function.
    matched: Vec<bool>,
    /// Functions with rules that have finished, whose probes may no longer be needed.
    pub(crate) finished: BTreeSet<u32>,
    /// The reasons why arguments and results that rules ask for are not known, by object.
    pub(crate) unknown: BTreeSet<(String, String)>,
    /// The arguments and results that rules ask for, each with the functions that such a rule
    /// accepts by their names and that do not have it.
    pub(crate) misfits: BTreeMap<NativeValue, Misfits>,
    /// The numbers of events that rules did not get because a value was not known, by function and
    /// number of the value.
    pub(crate) without_value: BTreeMap<(u32, u32), u64>,
    /// The time-stamp counter at the start of the script's time.
    start: u64,
    /// The time-stamp counter when the script began to observe. Earlier events are ignored: they
    /// were written when only some of its probes were on. The maximum while it is off.
    began: u64,
    /// The missing calls that do not concern this script: they were missing when it began, or were
    /// made while it was off.
    before: Missing,
    /// While the script is off: the calls that were missing when it was switched off.
    off_since: Option<Missing>,
    /// The state of switching, if a signal switches the script.
    pub(crate) periods: Option<Periods>,
    /// The numbers of exits whose entries are not known, by function.
    pub(crate) unpaired: BTreeMap<u32, u64>,
    /// The numbers of calls that have ended without an exit, by function, for functions with rules
    /// for exits, if the script pairs entries with exits.
    pub(crate) without_exit: BTreeMap<u32, u64>,
    /// Groups of rules that have acted, with the time stamps from which they act again.
    pub(crate) pauses: Vec<(u32, u64)>,
    /// The reason why the script has stopped observing.
    pub(crate) failure: Option<String>,
    /// The number of times that the rules of the end were executed: each exec that has failed adds
    /// one.
    pub(crate) ends: u32,
}

impl Running {
    fn new(name: String, origin: Origin) -> Self {
        Self {
            name,
            origin,
            monitor: None,
            pairs_calls: false,
            asks_for_nesting: false,
            measures_time: false,
            stacks: None,
            places: Vec::new(),
            matched: Vec::new(),
            finished: BTreeSet::new(),
            unknown: BTreeSet::new(),
            misfits: BTreeMap::new(),
            without_value: BTreeMap::new(),
            start: tsc::now(),
            began: tsc::now(),
            before: Missing::default(),
            off_since: None,
            periods: None,
            unpaired: BTreeMap::new(),
            without_exit: BTreeMap::new(),
            pauses: Vec::new(),
            failure: None,
            ends: 0,
        }
    }

    /// Creates the script of the options, which is off at first if a signal switches it.
    pub(crate) fn of_options(name: String, source: Vec<u8>, is_switched: bool) -> Self {
        let script = Self::new(name, Origin::Options { source });
        match is_switched {
            true => Self {
                began: u64::MAX,
                off_since: Some(Missing::default()),
                periods: Some(Periods::default()),
                ..script
            },
            false => script,
        }
    }

    /// Creates a script of a client. The caller passes all functions to it, and then calls
    /// [`begin`](Self::begin).
    pub(crate) fn of_client(name: String, origin: Origin, monitor: NativeMonitor, before: Missing) -> Self {
        let mut script = Self { before, began: u64::MAX, ..Self::new(name, origin) };
        script.use_monitor(monitor);
        script
    }

    /// Begins observation, and the script's time.
    pub(crate) fn begin(&mut self) {
        self.start = tsc::now();
        self.began = self.start;
    }

    pub(crate) fn is_on(&self) -> bool {
        self.off_since.is_none()
    }

    /// Requests its probes, before a signal switches it on. Calls that are missing up to now do not
    /// concern it.
    pub(crate) fn prepare_to_resume(&mut self, missing: &Missing) {
        if let Some(off_since) = self.off_since.take() {
            self.before.extend(missing.since(&off_since));
        }
    }

    /// Begins observation when all its probes are on.
    pub(crate) fn resume(&mut self) {
        self.began = tsc::now();
        if let Some(periods) = &mut self.periods {
            periods.count += 1;
            periods.current = Some(Instant::now());
        }
    }

    /// Ends observation when a signal switches it off. `calls` are those of all threads: their ends
    /// will not be seen.
    pub(crate) fn pause<'c>(&mut self, missing: &Missing, calls: impl Iterator<Item = &'c mut Calls>) {
        self.began = u64::MAX;
        self.off_since = Some(missing.clone());
        if let Some(periods) = &mut self.periods {
            periods.finished = periods.duration();
            periods.current = None;
        }
        calls.for_each(|calls| self.end_calls(calls));
    }

    /// Ends the open calls of a thread.
    fn end_calls(&mut self, calls: &mut Calls) {
        calls.clear();
        if let Some(monitor) = &mut self.monitor {
            calls.take_ended().for_each(|frame| monitor.end_frame(frame));
        }
    }

    /// The calls that the script has missed, given the calls that are missing now.
    pub(crate) fn missed(&self, missing: &Missing) -> Missing {
        self.off_since.as_ref().unwrap_or(missing).since(&self.before)
    }

    fn use_monitor(&mut self, monitor: NativeMonitor) {
        self.pairs_calls = monitor.pairs_calls();
        self.asks_for_nesting = monitor.asks_for_nesting();
        self.measures_time = monitor.measures_time();
        self.stacks = monitor.tells_stacks().then(Stacks::default);
        self.monitor = Some(monitor);
    }

    /// Creates the monitor if there is none yet.
    pub(crate) fn prepare(&mut self) {
        let Origin::Options { source } = &self.origin else { return };
        if self.monitor.is_some() || self.failure.is_some() {
            return;
        }
        let script = Script::native(&self.name, source).map_err(|error| error.to_string());
        match script.and_then(|script| NativeMonitor::new(script).map_err(|error| error.to_string())) {
            Ok(monitor) => self.use_monitor(monitor),
            Err(error) => self.failure = Some(error),
        }
    }

    /// Matches the rules with a function. Functions are passed in the order of their numbers, or
    /// again with the same number.
    pub(crate) fn show(&mut self, number: u32, function: &mut Function, objects: &mut Objects) {
        if self.places.len() <= number as usize {
            self.places.resize_with(number as usize + 1, NativePlaces::default);
            self.matched.resize(number as usize + 1, false);
        }
        let Some(monitor) = self.monitor.as_mut().filter(|_| self.failure.is_none()) else { return };
        let object = function.object.to_string_lossy();
        let name = function.name.clone();
        let mut unknown: Option<Unavailable> = None;
        let places =
            monitor.function(NativeFunction { number, name: &name, object: &object }, &mut |wanted| {
                match function.value(wanted, objects) {
                    Ok(found) => {
                        // The same for rules that use the value and for others.
                        let asked = NativeValue { is_used: true, ..wanted.clone() };
                        let misfits = self.misfits.entry(asked).or_default();
                        misfits.add(number, found, || function.misfit(wanted, objects));
                        found
                    }
                    Err(reason) => {
                        unknown = Some(reason);
                        None
                    }
                }
            });
        match places {
            Ok(places) => {
                self.matched[number as usize] = !(places.entry.is_empty() && places.exit.is_empty());
                self.places[number as usize] = places;
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
        self.unknown.extend(unknown.map(|reason| (object.into_owned(), reason.to_string())));
    }

    /// Whether the script needs arguments of a function, or its result.
    pub(crate) fn wants_values(&self, function: u32) -> bool {
        let Some(monitor) = self.monitor.as_ref().filter(|_| self.failure.is_none()) else { return false };
        let Some(NativePlaces { entry, exit }) = self.places.get(function as usize) else { return false };
        entry.iter().chain(exit).any(|place| monitor.values(*place).next().is_some())
    }

    /// Whether a rule matches a function.
    pub(crate) fn matches(&self, function: u32) -> bool {
        self.matched.get(function as usize).is_some_and(|matched| *matched)
    }

    /// The number of functions that rules match.
    pub(crate) fn matched(&self) -> usize {
        self.matched.iter().filter(|matched| **matched).count()
    }

    /// Whether the script needs the events of a probe now.
    pub(crate) fn wants(&self, probe: &Probe) -> bool {
        self.is_on() && self.needs(probe)
    }

    /// Whether the script needs the events of a probe while it is on.
    pub(crate) fn needs(&self, probe: &Probe) -> bool {
        let Some(NativePlaces { entry, exit }) = self.places.get(probe.function as usize) else {
            return false;
        };
        let of_event = if probe.is_entry { entry } else { exit };
        let has_rules = !(entry.is_empty() && exit.is_empty());
        // The depth and the stack of other calls include those of functions whose rules have
        // finished.
        let is_paired =
            self.pairs_calls && (has_rules || self.asks_for_nesting && self.matches(probe.function));
        self.failure.is_none() && (!of_event.is_empty() || is_paired)
    }

    /// The script's number among the scripts of clients.
    pub(crate) fn number(&self) -> Option<u64> {
        match self.origin {
            Origin::Options { .. } => None,
            Origin::Client { number, .. } => Some(number),
        }
    }

    /// The group of the rules for which the script needs a probe, if it needs the probe for these
    /// only.
    pub(crate) fn group(&self, probe: &Probe) -> Option<u32> {
        if self.pairs_calls {
            return None;
        }
        let (monitor, places) = (self.monitor.as_ref()?, self.places.get(probe.function as usize)?);
        let places = if probe.is_entry { &places.entry } else { &places.exit };
        let group = monitor.group(*places.first()?)?;
        places.iter().all(|place| monitor.group(*place) == Some(group)).then_some(group)
    }

    /// Executes the rules for an event of a thread.
    ///
    /// # Errors
    /// The reason why a statement failed.
    pub(crate) fn observe(
        &mut self,
        event: &Event,
        values: &Values,
        probe: &Probe,
        thread: u32,
        calls: &mut Calls,
        clock: &mut Clock,
    ) -> Result<(), wasm_jit::Error> {
        if self.failure.is_some() || event.ticks < self.began || !self.matches(probe.function) {
            return Ok(());
        }
        let Self {
            monitor: Some(monitor),
            places,
            unpaired,
            without_exit,
            without_value,
            stacks,
            finished,
            pauses,
            ..
        } = self
        else {
            return Ok(());
        };
        // Measuring the rate of the counter takes time.
        let mut clock = self.measures_time.then_some(clock);
        let seen = match self.pairs_calls {
            true => see(calls, stacks.as_mut(), probe, event, values, clock.as_deref_mut()),
            false => Some(OfPair { values: *values, ..OfPair::default() }),
        };
        calls.take_ended().for_each(|frame| monitor.end_frame(frame));
        // Other functions have no rules that miss the exit.
        let has_exits = |function: &u32| !places[*function as usize].exit.is_empty();
        for function in calls.take_left().filter(has_exits) {
            *without_exit.entry(function).or_default() += 1;
        }
        let places = &mut places[probe.function as usize];
        let OfPair { depth, duration, stack, values, frame, is_open } =
            seen.unwrap_or(OfPair { values: *values, ..OfPair::default() });
        let mut call = NativeCall {
            probe: event.probe,
            thread,
            ticks: event.ticks,
            nanoseconds: clock
                .as_deref_mut()
                .map_or(0, |clock| clock.nanoseconds_between(self.start, event.ticks)),
            depth,
            duration,
            stack,
            values: &values.values,
            frame,
        };
        let mut without = 0_u32;
        for place in if probe.is_entry { &places.entry } else { &places.exit } {
            if seen.is_none() && monitor.needs_pairs(*place) {
                *unpaired.entry(probe.function).or_default() += 1;
            } else if let Some(number) = monitor.values(*place).find(|number| values.get(*number).is_none()) {
                without |= 1 << number;
            } else {
                if call.frame.is_none() && monitor.uses_frame(*place) {
                    call.frame = Some(monitor.new_frame()?);
                }
                monitor.fire(*place, &call)?;
            }
        }
        match call.frame {
            Some(frame) if is_open => calls.set_frame(frame),
            Some(frame) => monitor.end_frame(frame),
            None => {}
        }
        if let Some(clock) = clock {
            let until = |(group, due)| (group, self.start.saturating_add(clock.ticks(due)));
            pauses.extend(monitor.take_pauses().into_iter().map(until));
        }
        let done = monitor.take_finished();
        if !done.is_empty() {
            let of_event = if probe.is_entry { &mut places.entry } else { &mut places.exit };
            of_event.retain(|place| !done.contains(place));
            finished.insert(probe.function);
        }
        // Several rules may ask for the same value.
        for number in (0..u32::BITS).filter(|number| without & 1 << number != 0) {
            *without_value.entry((probe.function, number)).or_default() += 1;
        }
        Ok(())
    }

    /// Ends the open calls of a thread of the program that has ended.
    pub(crate) fn thread_ended(&mut self, thread: u32, calls: &mut Calls) {
        self.end_calls(calls);
        if let Some(monitor) = &mut self.monitor {
            monitor.thread_ended(thread);
        }
    }

    /// The values of the variables, after the rules of the end. `None` if they cannot be read.
    pub(crate) fn finish(&mut self) -> Option<ScriptReport> {
        let monitor = self.monitor.as_mut()?;
        self.ends += 1;
        let ended = monitor.finish();
        let report = monitor.report();
        if let Some(error) = ended.as_ref().err().or(report.as_ref().err()) {
            self.failure.get_or_insert(error.to_string());
        }
        report.ok()
    }

    /// The current values of the variables. `None` if they cannot be read.
    pub(crate) fn values(&self) -> Option<ScriptReport> {
        self.monitor.as_ref()?.report().ok()
    }

    /// In a forked child: begins again, with the known functions; the script is off if it was.
    pub(crate) fn restart(&mut self, functions: &mut [Function], objects: &mut Objects) {
        let Origin::Options { source } = &mut self.origin else { return };
        let (name, source) = (std::mem::take(&mut self.name), std::mem::take(source));
        let mut again = Self::of_options(name, source, self.periods.is_some());
        if self.periods.is_some() && self.is_on() {
            again.prepare_to_resume(&Missing::default());
            again.resume();
        }
        again.failure = self.failure.take();
        if self.monitor.is_some() {
            again.prepare();
            for (number, function) in functions.iter_mut().enumerate() {
                again.show(number as u32, function, objects);
            }
        }
        *self = again;
    }
}

/// The facts about an event that are known once it is paired with its call.
#[derive(Clone, Copy, Debug, Default)]
struct OfPair {
    depth: u32,
    /// The duration of the call, at an exit.
    duration: u64,
    /// The stack, if the script asks for stacks.
    stack: u32,
    /// The arguments of the call, and at an exit also its result.
    values: Values,
    /// The call's frame variables at an exit, if rules have used some.
    frame: Option<NativeFrame>,
    /// Whether the exit of the call will be recognized, at an entry.
    is_open: bool,
}

/// Pairs an event with its call. `None` for an exit without an entry.
fn see(
    calls: &mut Calls,
    stacks: Option<&mut Stacks>,
    probe: &Probe,
    event: &Event,
    values: &Values,
    clock: Option<&mut Clock>,
) -> Option<OfPair> {
    let (function, call_site, stack_pointer) = (probe.function, event.call_site, event.stack_pointer);
    if probe.is_entry {
        let open = Open {
            function,
            call_site,
            stack_pointer,
            ticks: event.ticks,
            stack: stacks::EMPTY,
            frame: None,
        };
        let Entered { depth, stack, is_open } = calls.enter(open, values, stacks);
        return Some(OfPair { depth, stack, values: *values, is_open, ..OfPair::default() });
    }
    // Calls in all encodings are shorter than this.
    let after_site = event.continues_at.wrapping_sub(probe.site);
    let is_tail = !(1..=8).contains(&after_site);
    let (open, depth, arguments) =
        calls.exit(Exit { function, call_site, stack_pointer, is_tail, is_in_part: probe.is_in_part })?;
    let ticks = event.ticks.saturating_sub(open.ticks);
    let duration = clock.map_or(0, |clock| clock.nanoseconds(ticks));
    let (stack, frame) = (open.stack, open.frame);
    Some(OfPair { depth, duration, stack, values: arguments.with(values), frame, is_open: false })
}
