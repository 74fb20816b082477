//! Finds the instrumented functions that an instruction is in.
//!
//! Calls to instrumentation functions are placed before functions are inlined, so the code between
//! an entry and an exit of a function may be anywhere: in its own symbol, inlined into others, or
//! in a part that the compiler has split off. Only the calls define it. The *context* of an
//! instruction is the list of the functions that have been entered and not left when it is
//! executed, outermost first, within its body (a range of code with an entry in the unwind table).
//!
//! # How it is found
//! An entry appends its function to the context, an exit removes it. Entries and exits are nested
//! as the functions are, so each instruction has one context, whichever path leads to it:
//!
//! 1. The first instruction of the body has the empty context if a function begins there, or if
//!    there are no exits of functions that are not entered. Otherwise, the compiler has split the
//!    body off from another one.
//! 2. What is known of an instruction is propagated to its successors.
//! 3. Targets of indirect jumps, and code after them, are not reached that way. Their context is
//!    derived backwards, from the known context of the next instruction.
//! 4. A `ret` has the empty context.
//! 5. An instruction that follows a call and is also the target of a jump gets nothing from the
//!    call, which may never return, unless nothing else is known.
//! 6. No `switch` and no computed `goto` leads to another function: an indirect jump has the
//!    context of its targets. If all indirect jumps that are reached have one context, it is that
//!    of the others as well, as in the loop of an interpreter, where only indirect jumps lead to
//!    others. (A handler of exceptions with a `switch` may be an exception.)
//!
//! A call of an instrumentation function whose function is not known yet, as long as no execution
//! has shown it, has the same destination as the sites of its kind. Its function is unknown until
//! the exit, and what is around it is not.
//!
//! An instruction that gets two different contexts (the compiler has merged code), or none, has an
//! unknown context. The same holds for all instructions of a body if the calls in its file are not
//! where discovery has found them.
//!
//! A body whose sites all belong to the function that begins there needs no such analysis for a
//! frame that is in a call: after the entry, the frame is in that function. (If the function begins
//! elsewhere, it may be inlined into one without probes.) Neither does the only entry in a body,
//! where no function has been entered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use crate::observe::probe_type::ProbeType;
use crate::processor_time;

/// Contexts that lack a new site are recomputed after this time: the functions of some sites are
/// only known once they have been executed, one after the other.
const LIFETIME: Duration = Duration::from_secs(1);

/// The number of a context. The empty one is 0.
pub(super) type Context = u32;

const EMPTY: Context = 0;

/// Maximum number of passes over a body: one for each level of nested jumps against the order of
/// addresses.
const MAX_PASSES: usize = 16;

/// A site, in the body with these addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) address: u64,
    pub(super) body_start: u64,
    pub(super) body_end: u64,
    pub(super) function: u32,
    /// Whether the function begins with the body.
    pub(super) begins_there: bool,
    pub(super) kind: ProbeType,
}

/// Finds a site by its number: there may be a million of them.
pub(super) trait Sites {
    /// The site, once it is known. It stays known if its object is unloaded.
    fn site(&self, number: u32) -> Option<Site>;

    /// Whether the object of a site is loaded, as far as it is known.
    fn is_loaded(&self, number: u32) -> bool;
}

/// A body that a sampled frame was in.
#[derive(Debug, Default)]
struct Body {
    /// `None` if sites were added since.
    shape: Option<Shape>,
    analyzed: Option<Analyzed>,
    /// Its instructions, if it was analyzed more than once: sites may be added to a large body in
    /// every second, and decoding is most of the work.
    code: Option<Code>,
}

/// The facts about a body that need no analysis of its code.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// The end address of the body.
    end: u64,
    /// See [`only_entry`].
    only_entry: Option<Site>,
}

/// The contexts of a body.
#[derive(Debug)]
struct Analyzed {
    ranges: Ranges,
    made: Instant,
    /// Whether sites were added since.
    is_stale: bool,
}

/// The first addresses of ranges with the same context; `None` if it is unknown.
type Ranges = Box<[(u64, Option<Context>)]>;

/// The number of a site, and where its body begins: to look up a site takes much longer than to
/// compare two of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbered {
    body_start: u64,
    number: u32,
}

/// All sites, and the contexts that were computed from them.
#[derive(Debug, Default)]
pub(super) struct Contexts<S> {
    sites: S,
    /// The sites, of which the first `sorted` ones are ordered by body, then by address. The others
    /// were added since.
    numbers: Vec<Numbered>,
    sorted: usize,
    /// The numbers of sites in objects that are not loaded now.
    unloaded: Vec<u32>,
    /// Indexed by the first address of the body.
    bodies: HashMap<u64, Body>,
    chains: Chains,
    /// Results of [`Contexts::at`], by address: most frames are at few of them. Results in a body
    /// are valid until a site is added to it; all are, until an object is loaded or unloaded.
    looked_up: BTreeMap<(u64, FrameState), Option<Context>>,
    /// See [`Contexts::take_learning_time`].
    learning: f64,
    /// See [`Contexts::leave_out`].
    lacks_functions: bool,
}

/// Maximum number of results that are kept.
const MAX_LOOKED_UP: usize = 1 << 15;

/// All contexts: each consists of another context and one more function.
#[derive(Debug, Default)]
struct Chains {
    /// The link of context `i + 1` is at index `i`.
    links: Vec<Link>,
    numbers: HashMap<(Context, u32), Context>,
}

/// A context: a function, and the context around it.
#[derive(Clone, Copy, Debug)]
struct Link {
    outside: Context,
    function: u32,
    /// Whether all functions of the context are known.
    is_known: bool,
}

/// In contexts during the analysis: a function that is not known, which is entered or left by the
/// instruction with this number. Functions' numbers are smaller.
const UNKNOWN: u32 = 1 << 31;

impl Chains {
    fn entered(&mut self, context: Context, function: u32) -> Context {
        let is_known = function < UNKNOWN && self.is_known(context);
        *self.numbers.entry((context, function)).or_insert_with(|| {
            self.links.push(Link { outside: context, function, is_known });
            self.links.len() as Context
        })
    }

    /// The last function of a context; `None` if it is empty.
    fn last(&self, context: Context) -> Option<Link> {
        self.links.get((context as usize).checked_sub(1)?).copied()
    }

    /// The context after the exit of a function; `None` if it is not the context's last function.
    fn left(&self, context: Context, function: u32) -> Option<Context> {
        let last = self.last(context)?;
        may_be_same(last.function, function).then_some(last.outside)
    }

    /// Whether all functions of a context are known.
    fn is_known(&self, context: Context) -> bool {
        self.last(context).is_none_or(|last| last.is_known)
    }

    /// What two contexts of the same instruction say together: a function that is unknown in one
    /// of them may be known in the other. `None` if they are different.
    fn united(&mut self, one: Context, other: Context) -> Option<Context> {
        if one == other {
            return Some(one);
        }
        let (last, other) = (self.last(one)?, self.last(other)?);
        let outside = self.united(last.outside, other.outside)?;
        let function = last.function.min(other.function);
        may_be_same(last.function, other.function).then(|| self.entered(outside, function))
    }
}

/// Whether two functions, each of which may be [`UNKNOWN`], may be the same one.
fn may_be_same(function: u32, other: u32) -> bool {
    function == other || function.max(other) >= UNKNOWN
}

/// Whether a frame is executing its instruction, or waits for a call to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FrameState {
    Executing,
    Calling,
}

impl<S: Sites> Contexts<S> {
    /// Adds the site with this number.
    pub(super) fn add(&mut self, number: u32) {
        let Some(site) = self.sites.site(number) else { return };
        if self.numbers.len() == self.numbers.capacity() {
            // Less than twice as much: there may be a million of them.
            self.numbers.reserve_exact((self.numbers.len() / 4).max(64));
        }
        self.numbers.push(Numbered { body_start: site.body_start, number });
        let [start, end] = [site.body_start, site.body_end.max(site.body_start)];
        let of_body = (start, FrameState::Executing)..(end, FrameState::Executing);
        self.looked_up.extract_if(of_body, |_, _| true).for_each(drop);
        if let Some(known) = self.bodies.get_mut(&site.body_start) {
            known.shape = None;
            known.analyzed.iter_mut().for_each(|analyzed| analyzed.is_stale = true);
        }
    }

    /// Sites of some functions are never added: calls of the instrumentation functions that are not
    /// sites are ignored from now on, because they may be those.
    pub(super) fn leave_out(&mut self) {
        self.lacks_functions = true;
    }

    /// Removes the sites of objects that were unloaded, and brings back those of objects that were
    /// loaded again. `is_mapped` tells whether an object is loaded at an address: what
    /// [`Sites::is_loaded`] returns may be out of date.
    pub(super) fn reload(&mut self, is_mapped: impl Fn(u64) -> bool) {
        let sites = &self.sites;
        let is_loaded = |number: u32| {
            sites.is_loaded(number) && sites.site(number).is_some_and(|site| is_mapped(site.address))
        };
        let back: Vec<u32> = self.unloaded.extract_if(.., |number| is_loaded(*number)).collect();
        let (mut place, mut sorted) = (0, 0);
        let gone = self.numbers.extract_if(.., |site| {
            let stays = is_loaded(site.number);
            sorted += usize::from(stays && place < self.sorted);
            place += 1;
            !stays
        });
        for Numbered { body_start, number } in gone {
            self.bodies.remove(&body_start);
            self.unloaded.push(number);
        }
        self.sorted = sorted;
        self.looked_up.clear();
        back.into_iter().for_each(|number| self.add(number));
    }

    /// The address of a site, which is known once it was added.
    fn address(&self, site: Numbered) -> u64 {
        self.sites.site(site.number).map_or(u64::MAX, |site| site.address)
    }

    /// The number of ordered sites in bodies whose start is before an address.
    fn ordered_until(&self, is_before: impl Fn(u64) -> bool) -> usize {
        self.numbers[..self.sorted].partition_point(|site| is_before(site.body_start))
    }

    /// Inserts the sites that were added since into the ordered ones. Sites are looked up for the
    /// new ones only: they are few, and come often, while functions are called for the first time.
    /// Of several sites at the same address, the newest one is kept.
    fn sort(&mut self) {
        let mut end = self.sorted;
        if end == self.numbers.len() {
            return;
        }
        let begin = processor_time::of_thread();
        let mut new: Vec<_> = self.numbers[end..].iter().map(|site| (self.address(*site), *site)).collect();
        // Stable: the newest of equal ones is the last.
        new.sort_by_key(|(address, site)| (site.body_start, *address));
        // Merges from the back, in place: `numbers[..end]` are ordered ones that were not moved
        // yet, `numbers[free..]` is the finished end of the result.
        let mut free = self.numbers.len();
        let mut last = None;
        for (address, site) in new.into_iter().rev() {
            let key = (site.body_start, address);
            if last.replace(key) == Some(key) {
                continue;
            }
            let is_at = |other: &Numbered| other.body_start == site.body_start;
            let place = self.numbers[..end].partition_point(|other| {
                other.body_start < site.body_start || is_at(other) && self.address(*other) <= address
            });
            free -= end - place;
            self.numbers.copy_within(place..end, free);
            end = place;
            let before = self.numbers[..end].last().filter(|before| is_at(before));
            if before.is_some_and(|before| self.address(*before) == address) {
                self.numbers[end - 1] = site;
            } else {
                free -= 1;
                self.numbers[free] = site;
            }
        }
        // A site that replaced another one at its address left a gap.
        self.numbers.drain(end..free);
        self.sorted = self.numbers.len();
        self.learning += processor_time::of_thread() - begin;
    }

    /// The start of the body that may contain this address.
    fn body_at(&mut self, address: u64) -> Option<u64> {
        self.sort();
        let end = self.ordered_until(|start| start <= address);
        Some(self.numbers[end.checked_sub(1)?].body_start)
    }

    /// The sites of a body, ascending.
    fn sites_of(&self, start: u64) -> Vec<Site> {
        let first = self.ordered_until(|other| other < start);
        let of_body = self.numbers[first..].iter().take_while(|site| site.body_start == start);
        of_body.map_while(|site| self.sites.site(site.number)).collect()
    }

    /// The processor time, in nanoseconds, that was spent since the last call on ordering new sites
    /// and analyzing bodies: most of it soon after a program or a phase of it begins, however many
    /// addresses are looked up.
    pub(super) fn take_learning_time(&mut self) -> f64 {
        std::mem::take(&mut self.learning)
    }

    /// The context at this address; `None` if it is unknown. `code` returns the bytes of a range,
    /// as in the file.
    pub(super) fn at<'a>(
        &mut self,
        address: u64,
        state: FrameState,
        code: impl FnOnce(&Range<u64>) -> Option<&'a [u8]>,
    ) -> Option<Context> {
        if let Some(context) = self.looked_up.get(&(address, state)) {
            return *context;
        }
        let start = self.body_at(address);
        let context = start.map_or(Some(EMPTY), |start| self.look_up(start, address, state, code));
        if !start.is_some_and(|start| self.is_stale(start)) {
            if self.looked_up.len() >= MAX_LOOKED_UP {
                self.looked_up.clear();
            }
            self.looked_up.insert((address, state), context);
        }
        context
    }

    /// The context at this address, if it is in the body at `start`.
    fn look_up<'a>(
        &mut self,
        start: u64,
        address: u64,
        state: FrameState,
        code: impl FnOnce(&Range<u64>) -> Option<&'a [u8]>,
    ) -> Option<Context> {
        let shape = match self.bodies.entry(start).or_default().shape {
            Some(shape) => shape,
            None => self.look_at(start)?,
        };
        if address >= shape.end {
            return Some(EMPTY);
        }
        let analyzed = self.bodies.get(&start).and_then(|body| body.analyzed.as_ref());
        if let Some(entry) = shape.only_entry.filter(|_| analyzed.is_none()) {
            if address == entry.address {
                return Some(EMPTY);
            }
            if state == FrameState::Calling && entry.begins_there {
                let is_in = address > entry.address;
                return Some(if is_in { self.chains.entered(EMPTY, entry.function) } else { EMPTY });
            }
        }
        let is_current = |known: &&Analyzed| !known.is_stale || known.made.elapsed() < LIFETIME;
        let ranges = match analyzed.filter(is_current) {
            Some(analyzed) => &analyzed.ranges,
            None => self.analyze(start..shape.end, code)?,
        };
        let next = ranges.partition_point(|(first, _)| *first <= address);
        ranges.get(next.checked_sub(1)?)?.1
    }

    /// Whether the contexts of the body at this address will be recomputed.
    fn is_stale(&self, start: u64) -> bool {
        let analyzed = self.bodies.get(&start).and_then(|body| body.analyzed.as_ref());
        analyzed.is_some_and(|analyzed| analyzed.is_stale)
    }

    /// Derives the shape of a body from its sites: there may be thousands.
    fn look_at(&mut self, start: u64) -> Option<Shape> {
        let sites = self.sites_of(start);
        let end = sites.iter().map(|site| site.body_end).max()?;
        let shape = Shape { end, only_entry: only_entry(&sites) };
        self.bodies.get_mut(&start)?.shape = Some(shape);
        Some(shape)
    }

    /// Computes the contexts of a body.
    fn analyze<'a>(
        &mut self,
        body: Range<u64>,
        code: impl FnOnce(&Range<u64>) -> Option<&'a [u8]>,
    ) -> Option<&Ranges> {
        let begin = processor_time::of_thread();
        let sites = self.sites_of(body.start);
        let known = self.bodies.get_mut(&body.start)?;
        let decoded = known.code.take().or_else(|| Code::decode(code(&body)?, body.start));
        let has_all = !self.lacks_functions;
        let analysis = decoded.as_ref().and_then(|code| Analysis::new(code, &sites, has_all));
        let ranges = analysis.and_then(|analysis| analysis.run(&mut self.chains));
        known.code = decoded.filter(|_| known.analyzed.is_some());
        let ranges = ranges.unwrap_or_else(|| Box::new([(body.start, None)]));
        let analyzed = Analyzed { ranges, made: Instant::now(), is_stale: false };
        self.learning += processor_time::of_thread() - begin;
        Some(&known.analyzed.insert(analyzed).ranges)
    }

    /// Has contexts that lack a site recomputed when they are needed. Returns the bodies that have
    /// been looked at, for [`Contexts::forget_others`].
    pub(super) fn renew(&mut self) -> HashSet<u64> {
        for body in self.bodies.values_mut() {
            body.analyzed.take_if(|analyzed| analyzed.is_stale);
        }
        self.bodies.keys().copied().collect()
    }

    /// Forgets everything about all other bodies, and what it has cost.
    pub(super) fn forget_others(&mut self, bodies: &HashSet<u64>) {
        self.bodies.retain(|start, _| bodies.contains(start));
        self.looked_up.clear();
        self.learning = 0.0;
    }

    /// The last function of a context.
    pub(super) fn innermost(&self, context: Context) -> Option<u32> {
        self.chains.last(context).map(|last| last.function)
    }

    /// Calls `visit` with the functions of a context, innermost first.
    pub(super) fn functions(&self, mut context: Context, mut visit: impl FnMut(u32)) {
        while let Some(last) = self.chains.last(context) {
            visit(last.function);
            context = last.outside;
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        let of_body = |body: &Body| {
            let ranges = body.analyzed.as_ref().map_or(0, |known| size_of_val::<[_]>(&known.ranges));
            size_of::<(u64, Body)>() + ranges + body.code.as_ref().map_or(0, Code::memory)
        };
        self.numbers.capacity() * size_of::<Numbered>()
            + self.unloaded.capacity() * size_of::<u32>()
            + self.bodies.values().map(of_body).sum::<usize>()
            + self.chains.links.len() * (size_of::<Link>() + size_of::<((Context, u32), Context)>())
            + self.looked_up.len() * size_of::<((u64, FrameState), Option<Context>)>()
    }
}

/// The first site of a body, if it is an entry, the only one, and of the function of all others.
fn only_entry(sites: &[Site]) -> Option<Site> {
    let first = sites.first()?;
    let is_only = first.kind == ProbeType::Entry
        && sites.iter().all(|site| site.function == first.function)
        && of_kind(sites, ProbeType::Entry).count() == 1;
    is_only.then_some(*first)
}

/// The functions of the sites of one kind.
fn of_kind(sites: &[Site], kind: ProbeType) -> impl Iterator<Item = u32> {
    sites.iter().filter(move |site| site.kind == kind).map(|site| site.function)
}

/// What is known of an instruction's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Context(Context),
    /// It has two different contexts.
    Conflict,
}

/// What control does at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    /// The target of a jump inside the body.
    target: Option<u32>,
    next: FallThrough,
    is_return: bool,
    is_indirect_jump: bool,
    /// Whether it is a call or a jump, as the instruction at a site is.
    is_transfer: bool,
}

/// Whether the instruction at the next address is executed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FallThrough {
    Always,
    /// It is, if the call returns.
    AfterCall,
    Never,
}

impl Flow {
    /// Of an instruction whose target, if it has one, is not known yet.
    fn of(kind: FlowControl) -> Self {
        let next = match kind {
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                FallThrough::Always
            }
            FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => FallThrough::AfterCall,
            _ => FallThrough::Never,
        };
        let is_transfer = matches!(
            kind,
            FlowControl::Call
                | FlowControl::IndirectCall
                | FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
        );
        Self {
            target: None,
            next,
            is_return: kind == FlowControl::Return,
            is_indirect_jump: kind == FlowControl::IndirectBranch,
            is_transfer,
        }
    }
}

/// The instructions of a body.
#[derive(Debug)]
struct Code {
    start: u64,
    /// Their offsets from the start, ascending.
    offsets: Box<[u32]>,
    flows: Box<[Flow]>,
    is_target: Box<[bool]>,
    /// The numbers of calls and jumps to other code, and their destinations, or the addresses of
    /// the words that contain them.
    leaving: Box<[(u32, u64)]>,
}

impl Code {
    /// Decodes a body. `None` if its bytes are not instructions.
    fn decode(code: &[u8], start: u64) -> Option<Self> {
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let (mut offsets, mut flows, mut branches) = (Vec::new(), Vec::new(), Vec::new());
        let mut leaving = Vec::new();
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return None;
            }
            let kind = instruction.flow_control();
            if matches!(kind, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
                branches.push((flows.len(), instruction.near_branch_target()));
            }
            let flow = Flow::of(kind);
            if flow.is_transfer {
                let is_indirect = instruction.is_ip_rel_memory_operand();
                let destination = match instruction.near_branch_target() {
                    0 => is_indirect.then(|| instruction.ip_rel_memory_address()),
                    target => Some(target),
                };
                leaving.extend(destination.map(|destination| (flows.len() as u32, destination)));
            }
            offsets.push(u32::try_from(instruction.ip() - start).ok()?);
            flows.push(flow);
        }
        let mut is_target = vec![false; flows.len()];
        for (index, target) in branches {
            if let Some(target) = index_of(&offsets, start, target) {
                flows[index].target = Some(target);
                is_target[target as usize] = true;
            }
        }
        Some(Self {
            start,
            offsets: offsets.into(),
            flows: flows.into(),
            is_target: is_target.into(),
            leaving: leaving.into(),
        })
    }

    fn memory(&self) -> usize {
        size_of_val(&*self.offsets)
            + size_of_val(&*self.flows)
            + size_of_val(&*self.is_target)
            + size_of_val(&*self.leaving)
    }

    /// The calls that have the destinations of these, but are not among them.
    fn like(&self, sites: &[Option<(ProbeType, u32)>]) -> Vec<(usize, ProbeType)> {
        let of_site = |index: u32| sites[index as usize].map(|(kind, _)| kind);
        let leaving = self.leaving.iter().copied();
        let kinds: HashMap<u64, ProbeType> =
            leaving.clone().filter_map(|(index, to)| Some((to, of_site(index)?))).collect();
        let others = leaving.filter(|(index, _)| of_site(*index).is_none());
        others.filter_map(|(index, to)| Some((index as usize, *kinds.get(&to)?))).collect()
    }
}

/// The number of the instruction at this address, given the offsets of all from `start`.
fn index_of(offsets: &[u32], start: u64, address: u64) -> Option<u32> {
    let offset = u32::try_from(address.checked_sub(start)?).ok()?;
    offsets.binary_search(&offset).ok().map(|index| index as u32)
}

/// The analysis of one body.
struct Analysis<'a> {
    code: &'a Code,
    /// The site at each instruction, if there is one, and its function, which may be [`UNKNOWN`].
    sites: Vec<Option<(ProbeType, u32)>>,
    /// Whether control enters at the first instruction, from a call.
    is_called: bool,
    known: Vec<Known>,
    changed: bool,
}

impl<'a> Analysis<'a> {
    /// `None` if the sites, ascending, are not calls or jumps of the code. `has_all` tells whether
    /// the others that call the same functions are sites, too.
    fn new(code: &'a Code, sites: &[Site], has_all: bool) -> Option<Self> {
        let mut by_index = vec![None; code.flows.len()];
        for site in sites {
            let index = index_of(&code.offsets, code.start, site.address)? as usize;
            if !code.flows[index].is_transfer {
                return None;
            }
            by_index[index] = Some((site.kind, site.function));
        }
        if has_all {
            for (index, kind) in code.like(&by_index) {
                by_index[index] = Some((kind, UNKNOWN | index as u32));
            }
        }
        let known = vec![Known::Nothing; code.flows.len()];
        let entered: HashSet<u32> = of_kind(sites, ProbeType::Entry).collect();
        let is_called = sites.iter().any(|site| site.begins_there)
            || of_kind(sites, ProbeType::Exit).all(|function| entered.contains(&function));
        Some(Self { code, sites: by_index, is_called, known, changed: false })
    }

    fn run(mut self, chains: &mut Chains) -> Option<Ranges> {
        if self.is_called {
            *self.known.first_mut()? = Known::Context(EMPTY);
        }
        self.propagate(chains, false, None);
        self.propagate(chains, true, None);
        if let Some(context) = self.of_indirect_jumps() {
            self.propagate(chains, true, Some(context));
        }
        let mut ranges: Vec<(u64, Option<Context>)> = Vec::new();
        for (offset, known) in self.code.offsets.iter().zip(&self.known) {
            let context = match known {
                Known::Context(context) => Some(*context).filter(|context| chains.is_known(*context)),
                Known::Nothing | Known::Conflict => None,
            };
            if ranges.last().is_none_or(|(_, last)| *last != context) {
                ranges.push((self.code.start + u64::from(*offset), context));
            }
        }
        Some(ranges.into_boxed_slice())
    }

    /// Passes over the body until nothing more is learnt. `of_jumps` is the context of indirect
    /// jumps of which nothing is known.
    fn propagate(&mut self, chains: &mut Chains, trusts_calls: bool, of_jumps: Option<Context>) {
        for _ in 0..MAX_PASSES {
            self.changed = false;
            self.forward(chains, trusts_calls);
            self.backward(chains, of_jumps);
            if !self.changed {
                break;
            }
        }
    }

    /// The context of all indirect jumps whose context is known, if it is the same.
    fn of_indirect_jumps(&self) -> Option<Context> {
        let mut known = (0..self.known.len()).filter_map(|index| match self.known[index] {
            Known::Context(context) if self.is_indirect_jump(index) => Some(context),
            _ => None,
        });
        let first = known.next()?;
        known.all(|other| other == first).then_some(first)
    }

    /// Whether it is an indirect jump to code of the program.
    fn is_indirect_jump(&self, index: usize) -> bool {
        self.code.flows[index].is_indirect_jump && self.sites[index].is_none()
    }

    fn learn(&mut self, chains: &mut Chains, index: usize, context: Context) {
        let known = &mut self.known[index];
        let new = match *known {
            Known::Nothing => Known::Context(context),
            Known::Context(other) => chains.united(other, context).map_or(Known::Conflict, Known::Context),
            Known::Conflict => return,
        };
        self.changed |= new != *known;
        *known = new;
    }

    /// Propagates what is known to the successors of each instruction.
    fn forward(&mut self, chains: &mut Chains, trusts_calls: bool) {
        for index in 0..self.code.flows.len() {
            let Known::Context(context) = self.known[index] else { continue };
            let after = match self.sites[index] {
                None => Some(context),
                Some((ProbeType::Entry, function)) => Some(chains.entered(context, function)),
                Some((ProbeType::Exit, function)) => chains.left(context, function),
            };
            let flow = self.code.flows[index];
            // After an exit without an entry: this path is never executed, or not understood.
            let Some(after) = after else { continue };
            if let Some(target) = flow.target {
                self.learn(chains, target as usize, after);
            }
            if index + 1 < self.code.flows.len() {
                let is_passed_on = match flow.next {
                    FallThrough::Always => true,
                    FallThrough::Never => false,
                    FallThrough::AfterCall if self.sites[index].is_some() => true,
                    FallThrough::AfterCall => {
                        !self.code.is_target[index + 1]
                            || trusts_calls && self.known[index + 1] == Known::Nothing
                    }
                };
                if is_passed_on {
                    self.learn(chains, index + 1, after);
                }
            }
        }
    }

    /// Derives contexts from what is known of the successors.
    fn backward(&mut self, chains: &mut Chains, of_jumps: Option<Context>) {
        for index in (0..self.code.flows.len()).rev() {
            match self.known[index] {
                Known::Context(context) if chains.is_known(context) => continue,
                Known::Conflict => continue,
                _ => {}
            }
            let flow = self.code.flows[index];
            let context = |at: Option<usize>| match self.known.get(at?)? {
                Known::Context(context) => Some(*context),
                _ => None,
            };
            let site = self.sites[index];
            let following = context(Some(index + 1));
            let next = match flow.next {
                FallThrough::Never => None,
                FallThrough::AfterCall
                    if site.is_none() && self.code.is_target.get(index + 1) == Some(&true) =>
                {
                    following.filter(|context| Some(*context) == of_jumps)
                }
                _ => following,
            };
            let after = match (flow.is_return, flow.next, site) {
                (true, ..) => Some(EMPTY),
                // A tail call to the instrumentation function: its return is that of the function.
                (_, FallThrough::Never, Some((ProbeType::Exit, _))) => Some(EMPTY),
                _ if self.is_indirect_jump(index) => of_jumps,
                _ => context(flow.target.map(|target| target as usize)).or(next),
            };
            let before = match (after, site) {
                (None, _) => None,
                (Some(after), None) => Some(after),
                (Some(after), Some((ProbeType::Entry, function))) => chains.left(after, function),
                (Some(after), Some((ProbeType::Exit, function))) => Some(chains.entered(after, function)),
            };
            if let Some(before) = before {
                self.learn(chains, index, before);
            }
        }
    }
}

#[cfg(test)]
mod tests;
