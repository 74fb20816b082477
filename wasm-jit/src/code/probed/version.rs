//! A version of a function: its code with sites, followed by their stubs.
//!
//! ```text
//! entry   prologue
//! body    code, with a site before chosen instructions: NOP of five bytes, or JMP to its stub
//! end     stubs, each of which jumps back to the end of its site
//! ```
//!
//! The first code of a function, its *original*, is treated as a version without sites, or with
//! those of the engine's settings. In an original, a jump of the program may be a site, whose stub
//! executes the jump; and several instructions may share a site and its stub. Their shared counter
//! counts whenever one of them is to be counted.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use wasm_jit_codegen::{
    AtSite, Catch, CompiledFunction, CounterStub, Counting, ENTRY_LENGTH, Instrumentation, Limit, Located,
    NoValue, Observer, Position, Run, SITE_LENGTH, SITE_OFF, SiteJump, SiteState, Sites, State, Ty, Value,
    Wanted, counter_stub, move_last, site_jump,
};
use wordpatch::Bytes;

use super::blocks::{Arenas, Block, Blocks};
use super::counting::Runs;
use super::stubs::{Form, Site};
use super::{MakeError, is_plain};
use crate::code::{CodeImage, ObserveError, TryRegion, add_regions};

/// The values at places, by position.
pub(super) type LocatedAt = BTreeMap<u32, Option<Arc<Located>>>;

/// The observations of a compilation.
#[derive(Debug, Default)]
pub(super) struct Observations {
    /// Each instruction: where its code begins, its position, and whether it can be reached.
    pub instructions: Vec<(u32, u32, bool)>,
    pub sites: Vec<(Position, AtSite)>,
    /// Transfer points, in ascending order.
    pub(super) points: Vec<u32>,
    /// The transfer points at which `r11` has the address of the counters, in ascending order:
    /// each is the label of a loop without another one in it.
    pub(super) with_counters: Vec<u32>,
    /// The values that are requested, by position.
    pub wanted: BTreeMap<u32, Vec<Wanted>>,
    /// The state at these positions, and where the values are, in the same order.
    pub found: BTreeMap<u32, (SiteState, Vec<Result<ValueAtSite, NoValue>>)>,
    /// The values at these positions, which generic probes ask for.
    pub located: LocatedAt,
    /// The values at the place that was found last, which share memory with those at the next one.
    pub last_located: Option<Arc<Located>>,
    /// In a counting version.
    pub runs: Vec<Run>,
    /// Code of instructions outside of the main sequence.
    pub more: Vec<Position>,
    /// The instructions whose code performs the load of the previous one.
    pub pending: Vec<u32>,
}

/// A value at a site.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueAtSite {
    pub value: Value,
    /// The type, if the value is an operand.
    pub operand: Option<Ty>,
}

impl Observations {
    /// The instruction after another one, if it can be reached.
    pub(super) fn next(&self, position: u32) -> Option<u32> {
        let after = self.instructions.partition_point(|(_, at, _)| *at <= position);
        self.instructions.get(after).filter(|(.., reachable)| *reachable).map(|(_, next, _)| *next)
    }
}

impl Observer for Observations {
    fn instruction(&mut self, position: Position, state: &State<'_>) {
        self.instructions.push((position.code, position.wasm, state.is_reachable()));
        if state.has_pending_load() {
            self.pending.push(position.wasm);
        }
    }

    fn moved(&mut self, from: u32, to: u32) {
        move_last(self.instructions.iter_mut().map(|(code, ..)| code), from, to);
    }

    fn more_code(&mut self, position: Position) {
        self.more.push(position);
    }

    fn site(&mut self, site: Position, state: &State<'_>) {
        self.sites.push((site, state.at_site()));
    }

    fn place(&mut self, wasm: u32, state: &State<'_>) {
        if let Some(wanted) = self.wanted.get(&wasm) {
            let found = |wanted: &Wanted| {
                let operand = match wanted {
                    Wanted::Operand(depth) => state.operand_type(*depth),
                    Wanted::Local(_) | Wanted::Result(_) => None,
                };
                Ok(ValueAtSite { value: state.value(*wanted)?, operand })
            };
            self.found.insert(wasm, (state.site_state(), wanted.iter().map(found).collect()));
        }
        if let Some(located) = self.located.get_mut(&wasm) {
            let new = Arc::new(state.located(self.last_located.as_deref()));
            self.last_located = Some(new.clone());
            *located = Some(new);
        }
    }

    fn transfer(&mut self, code: u32) {
        self.points.push(code);
    }

    fn run(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn counters_at(&mut self, transfer: u32) {
        self.with_counters.push(transfer);
    }
}

/// A site in a version. Offsets are from the version's base.
#[derive(Clone, Copy, Debug)]
pub(super) struct SitePlace {
    /// The offset of the instruction in the module.
    pub position: u32,
    pub code: u32,
    /// Whether all values have a location at the site, so that a stub finds them.
    pub(super) settled: bool,
    /// The offset of its stub, and the offset of the jump back in there.
    pub(super) stub: u32,
    pub(super) back: u32,
    /// The bytes of the site while it has no probe.
    off: [u8; SITE_LENGTH as usize],
}

impl SitePlace {
    /// The bytes of the site while it has no probe.
    pub(super) fn off(&self) -> Bytes {
        Bytes::new(&self.off).expect("five bytes")
    }
}

/// Whether a stub finds all values at a site of a function. At the entry and the exit, there are no
/// operands and no pending loads, so nothing needs to be settled.
pub(super) fn is_settled(image: &CodeImage, function: u32, sites: &Sites, position: u32) -> bool {
    let Range { start, end } = image.body_range(function);
    position == start || position == end || sites.settles(position)
}

/// The stubs of counters, for all sites of a version: places, whose stubs are given as offsets in
/// the code to which they were appended, each with the rel32 of its jump back.
pub(super) struct CounterStubs(Vec<(SitePlace, CounterStub, Option<SiteJump>)>);

impl CounterStubs {
    /// Appends them to `code`. `code_at` gives the code of sites that are jumps.
    pub(super) fn append(
        image: &CodeImage,
        (function, sites): (u32, &Sites),
        seen: &Observations,
        counters: &BTreeMap<u32, Site>,
        code_at: impl Fn(u32) -> [u8; SiteJump::MAX_LENGTH],
        code: &mut Vec<u8>,
    ) -> Self {
        let mut places = Vec::with_capacity(seen.sites.len());
        for sharing in seen.sites.chunk_by(|(a, _), (b, _)| a.code == b.code) {
            let [(at, first), others @ ..] = sharing else { unreachable!("no chunk is empty") };
            let mut state = first.clone();
            others.iter().for_each(|(_, other)| state.join(other));
            let site = counters.get(&at.wasm).expect("each site has a counter");
            let cell = if others.is_empty() { site.cell } else { site.shared.expect("known before") };
            let (mut jump, mut off) = (None, SITE_OFF);
            if state.is_jump() {
                let bytes = code_at(at.code);
                jump = Some(SiteJump::decode(bytes).expect("the compiler's jump"));
                off.copy_from_slice(&bytes[..SITE_LENGTH as usize]);
            }
            let stub = counter_stub(8 * cell as i32, &state, jump.as_ref(), code);
            for (Position { code, wasm: position }, _) in sharing {
                let settled = is_settled(image, function, sites, *position);
                let (position, code, back) = (*position, *code, stub.back);
                places.push((SitePlace { position, code, settled, stub: stub.start, back, off }, stub, jump));
            }
        }
        Self(places)
    }

    /// Makes them jump back. Relative to the version, its sites are at `moved` from where they were
    /// compiled, and `code` is at `offset`, both modulo 2^32.
    pub(super) fn link(self, moved: u32, offset: u32, code: &mut [u8]) -> Box<[SitePlace]> {
        let link = |(place, parts, jump): (SitePlace, CounterStub, Option<SiteJump>)| {
            let site = place.code.wrapping_add(moved);
            let mut link = |rel32: u32, target: u32| {
                let distance = target.wrapping_sub(offset.wrapping_add(rel32 + 4));
                code[rel32 as usize..][..4].copy_from_slice(&distance.to_le_bytes());
            };
            match jump {
                None => link(parts.rel32, site + SITE_LENGTH),
                Some(SiteJump { length, displacement, .. }) => {
                    let target = (site + length).wrapping_add_signed(displacement);
                    link(parts.taken.unwrap_or(parts.rel32), target);
                    if parts.taken.is_some() {
                        link(parts.rel32, site + length);
                    }
                }
            }
            let [stub, back] = [place.stub, place.back].map(|at| offset.wrapping_add(at));
            SitePlace { code: site, stub, back, ..place }
        };
        self.0.into_iter().map(link).collect()
    }
}

/// JMP from one address to another.
pub(super) fn jump(from: usize, to: usize) -> Bytes {
    Bytes::new(&site_jump(from, to)).expect("five bytes")
}

impl Version {
    /// The instrumentation with which the version was compiled.
    pub(super) fn instrumentation(&self) -> Instrumentation<'_> {
        Instrumentation { sites: &self.sites, counting: self.runs.as_ref().map(|runs| &runs.counting) }
    }

    /// Whether the version's code counts executions of a place.
    pub(super) fn counts(&self, position: u32) -> bool {
        self.runs.as_ref().is_some_and(|runs| runs.counts(position))
    }

    /// The bytes of a site of this version in one of its forms. `others` is the form that the other
    /// instructions at a shared site need.
    pub(super) fn bytes(&self, place: &SitePlace, form: Form, site: &Site, others: Form) -> Bytes {
        let at = self.at(place.code);
        let bytes = |form| match form {
            Form::Empty => jump(at, self.stub_address(place.back)),
            Form::Count => jump(at, self.stub_address(place.stub)),
            Form::Off | Form::List(_) => place.off(),
        };
        match form {
            Form::List(list) if site.list(list).stubs[self.number] != 0 => {
                jump(at, site.list(list).stubs[self.number])
            }
            _ => bytes(self.without_calls(place, form, site).and(others)),
        }
    }

    /// The remaining form if the version has no stub of the list, or is a counting version.
    fn without_calls(&self, place: &SitePlace, form: Form, site: &Site) -> Form {
        match form {
            Form::List(list) => self.without_calls(place, site.list(list).without_calls(), site),
            Form::Count if self.counts(place.position) => Form::Off,
            _ => form,
        }
    }

    /// The action that the other instructions at a shared site need; `site` gives the state of a
    /// site.
    pub(super) fn others<'a>(&self, place: &SitePlace, site: impl Fn(u32) -> &'a Site) -> Form {
        if self.number != 0 {
            return Form::Off;
        }
        let first = self.places.partition_point(|other| other.position < place.position);
        let shares = |other: &&SitePlace| other.code == place.code;
        let before = self.places[..first].iter().rev().take_while(shares);
        let after = self.places[first..].iter().skip(1).take_while(shares);
        before.chain(after).fold(Form::Off, |form, other| {
            let site = site(other.position);
            form.and(self.without_calls(other, site.form, site))
        })
    }
}

/// A version of a function, which never moves or changes except by patches.
#[derive(Debug)]
pub(crate) struct Version {
    /// 0 is the original.
    pub(super) number: usize,
    /// The address that offsets are relative to.
    pub(super) base: usize,
    /// The memory that was found for it ([`Arenas::for_version`]); none for an original.
    pub(super) memory: Range<usize>,
    pub entry: u32,
    /// The instruction at the entry, unless it leads to the original's.
    pub(super) first: Bytes,
    pub body: u32,
    /// The end of the function; stubs follow.
    pub(super) end: u32,
    /// The end of the stubs.
    pub(super) stubs_end: u32,
    pub frame_size: u32,
    /// The sites with which it was compiled.
    pub(super) sites: Sites,
    /// In a counting version.
    pub(super) runs: Option<Box<Runs>>,
    /// Transfer points, in ascending order.
    pub(super) points: Box<[u32]>,
    /// Those at which `r11` has the address of the counters.
    with_counters: Box<[u32]>,
    /// The bytes at the transfer points while there is no trap.
    pub(super) first_bytes: Box<[u8]>,
    /// In ascending order of positions, of code and of stubs.
    pub(super) places: Box<[SitePlace]>,
    regions: Box<[TryRegion]>,
    catches: Box<[Catch]>,
}

impl Version {
    /// The original of a function, which must be the current version.
    pub(super) fn original(
        image: &CodeImage,
        function: u32,
        compiled: &CompiledFunction,
        seen: &Observations,
    ) -> Self {
        let first = image.function(function);
        let points: Box<[u32]> =
            seen.points.iter().map(|point| point - compiled.entry + first.entry).collect();
        let byte = |offset: &u32| {
            // SAFETY: in the image's code.
            unsafe { image.at(*offset).read_volatile() }
        };
        let entry: [u8; ENTRY_LENGTH as usize] = std::array::from_fn(|at| byte(&(first.entry + at as u32)));
        Self {
            number: 0,
            base: image.memory().address(),
            memory: 0..0,
            entry: first.entry,
            first: Bytes::new(&entry).expect("five bytes"),
            body: first.body,
            end: first.end,
            stubs_end: first.end,
            frame_size: first.frame_size,
            sites: image.module.settings.sites.into(),
            runs: None,
            with_counters: Box::default(),
            first_bytes: points.iter().map(byte).collect(),
            points,
            places: Box::default(),
            regions: Box::default(),
            catches: Box::default(),
        }
    }

    /// Compiles a function with sites, which are off, and writes the code to an arena. Nothing
    /// leads to it yet. Unless it is a plain version, its frames must be like those of the
    /// original. Also returns the places that `seen` requests.
    pub(super) fn with_sites(
        image: &Arc<CodeImage>,
        (function, number): (u32, usize),
        (sites, counting): (Sites, Option<Counting>),
        original: Option<(&CompiledFunction, &Observations)>,
        site: &BTreeMap<u32, Site>,
        (arenas, blocks): (&mut Arenas, &Blocks),
        mut seen: Observations,
    ) -> Result<(Self, LocatedAt), MakeError> {
        let (chunk, compiled) = image.compile_again(
            function,
            Instrumentation { sites: &sites, counting: counting.as_ref() },
            &mut seen,
        )?;
        if original.is_some_and(|original| !are_alike(original, (&compiled, &seen))) {
            return Err(ObserveError::Differs { function }.into());
        }
        let mut code = chunk.code;
        code.truncate(compiled.end as usize);
        let no_jump = |_| unreachable!("jumps of originals only are sites");
        let stubs = CounterStubs::append(image, (function, &sites), &seen, site, no_jump, &mut code);
        let memory = arenas.for_version(image, blocks, code.len())?;
        let base = memory.start;
        let relative = |code: &mut Vec<u8>, at: u32, target: usize| {
            let distance = target.wrapping_sub(base + at as usize + 4) as u32;
            code[at as usize..][..4].copy_from_slice(&distance.to_le_bytes());
        };
        for call in &chunk.calls {
            let calls_itself = call.function == function && !is_plain(number);
            let own = base + compiled.entry as usize;
            let target = if calls_itself { own } else { image.entry(call.function) as usize };
            relative(&mut code, call.at, target);
        }
        let places = stubs.link(0, 0, &mut code);
        arenas.write(&memory, &code)?;
        let (mut regions, mut catches) = (Vec::new(), Vec::new());
        add_regions(0, &compiled, &mut regions, &mut catches);
        let runs = counting
            .map(|counting| Box::new(Runs::new(counting, &mut seen, site, image.body_range(function).end)));
        let version = Self {
            number,
            base,
            memory,
            entry: compiled.entry,
            first: Bytes::new(&code[compiled.entry as usize..][..ENTRY_LENGTH as usize]).expect("five bytes"),
            body: compiled.body,
            end: compiled.end,
            stubs_end: code.len() as u32,
            frame_size: compiled.frame_size,
            first_bytes: seen.points.iter().map(|point| code[*point as usize]).collect(),
            points: seen.points.into(),
            with_counters: seen.with_counters.into(),
            sites,
            runs,
            places,
            regions: regions.into(),
            catches: catches.into(),
        };
        Ok((version, seen.located))
    }

    /// Whether frames of other versions must become plain before they continue here.
    pub(super) fn is_plain(&self) -> bool {
        is_plain(self.number)
    }

    /// Whether frames that return from it end their accessors.
    pub(in crate::code) fn ends_accessors(&self) -> bool {
        self.sites.end_accessors()
    }

    /// The address at which an offset is executed.
    pub(super) fn at(&self, offset: u32) -> usize {
        self.base + offset as usize
    }

    /// The address of an offset that belongs to a stub: stubs of an original may lie below it.
    pub(super) fn stub_address(&self, offset: u32) -> usize {
        self.base.wrapping_add_signed(offset as i32 as isize)
    }

    /// The block of a version with sites.
    pub(super) fn block(&self, function: u32) -> Block {
        let end = self.at(self.stubs_end);
        Block { start: self.base, end, function, version: self.number, stub: None, uninterrupted: [0; 2] }
    }

    /// The number of the transfer point at the address; of several, the last.
    pub(super) fn point_at(&self, pc: usize) -> Option<usize> {
        let offset = u32::try_from(pc.checked_sub(self.base)?).ok()?;
        let point = self.points.partition_point(|point| *point <= offset).checked_sub(1)?;
        (self.points[point] == offset).then_some(point)
    }

    /// The number of the transfer point behind the call that returns to the address. A loop may
    /// begin there as well.
    pub(super) fn call_returning_to(&self, address: usize) -> Option<usize> {
        let offset = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let point = self.points.partition_point(|point| *point < offset);
        (self.points.get(point) == Some(&offset)).then_some(point)
    }

    /// The address of a transfer point.
    pub(super) fn point(&self, number: usize) -> usize {
        self.at(self.points[number])
    }

    /// Whether a frame that arrives at a transfer point needs the address of its instance's
    /// counters in `r11`. Its context is in `r14` there.
    pub(super) fn has_counters_at(&self, point: usize) -> bool {
        self.with_counters.binary_search(&self.points[point]).is_ok()
    }

    /// The position of the instruction whose stub the address is in.
    pub(super) fn stub_at(&self, pc: usize) -> Option<u32> {
        let offset = pc.wrapping_sub(self.base) as u32;
        if offset < self.end {
            return None;
        }
        let after = self.places.partition_point(|place| place.stub <= offset);
        Some(self.places[after.checked_sub(1)?].position)
    }

    /// The site before the instruction at a position.
    pub(super) fn place(&self, position: u32) -> Option<&SitePlace> {
        let number = self.places.binary_search_by_key(&position, |place| place.position).ok()?;
        Some(&self.places[number])
    }

    /// As [`CodeImage::catches`].
    pub(in crate::code) fn tables(&self) -> (&[TryRegion], &[Catch]) {
        (&self.regions, &self.catches)
    }

    pub(in crate::code) fn base(&self) -> usize {
        self.base
    }
}

/// Whether two versions of a function have the same frames, so that a frame of one can continue in
/// the other.
fn are_alike(a: (&CompiledFunction, &Observations), b: (&CompiledFunction, &Observations)) -> bool {
    let facts = |(compiled, seen): (&CompiledFunction, &Observations)| {
        let prologue = compiled.body - compiled.entry;
        let catches = compiled.try_regions.iter().map(|region| region.catches.len()).collect::<Vec<_>>();
        (compiled.frame_size, prologue, catches, seen.points.len(), seen.instructions.len())
    };
    facts(a) == facts(b)
}

impl From<Limit> for MakeError {
    fn from(limit: Limit) -> Self {
        Self::Compile(limit.into())
    }
}
