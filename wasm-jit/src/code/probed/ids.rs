//! Probes of fastinst in compiled WebAssembly: ids for places of an image.
//!
//! Ids are allocated in groups of 64 as places are requested ([`fastinst::group`]). The groups
//! belong to the image: when it is freed, their ids are retired. The objects that implement them
//! refer to the image weakly, and hold it only while one of their probes is switched.
//!
//! The probe of an id is one of the probes of its site. It calls the function of the last
//! activation, with the id, the address of the site, and the running instance's context.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use fastinst::group::{Group, ReservedIds, Sites};
use fastinst::{Discovery, Error, ModulePlace, ProbeFn, ProbeId, ProbeKind, ProbeMetadata, Toggle};
use wasm_jit_codegen::{Callee, Value};

use super::{Argument, MakeError, NoProbe, Request, RequestedKind};
use crate::code::sections::Sections;
use crate::code::{CodeImage, forks};

/// The name of the provider.
const PROVIDER: &CStr = c"wasm";
/// Number of ids that are reserved at a time.
const GROUP: u32 = 64;

/// Why there is no id for a place.
#[derive(Debug)]
pub(crate) enum NoId {
    Place(NoProbe),
    Make(MakeError),
    Ids(Error),
}

/// The groups of an image.
#[derive(Debug, Default)]
pub(crate) struct Ids(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    groups: Vec<(Arc<Group>, Arc<Places>)>,
    /// The number of ids of the last group that are in use.
    used: u32,
    by_position: HashMap<u32, ProbeId>,
}

/// The places of a group.
#[derive(Debug)]
struct Places {
    image: Weak<CodeImage>,
    module_name: CString,
    places: [OnceLock<Place>; GROUP as usize],
}

/// The place of an id.
#[derive(Debug)]
struct Place {
    /// The number of the probe at the place.
    probe: usize,
    function_name: CString,
    kind: ProbeKind,
    place: ModulePlace,
    /// Where it is in the module.
    position: u32,
    function_address: usize,
    object_base: usize,
}

impl Places {
    /// The image, and the number of the probe.
    fn probe(&self, index: u32) -> (Option<Arc<CodeImage>>, usize) {
        let place = self.places[index as usize].get().expect("only announced probes are switched");
        (self.image.upgrade(), place.probe)
    }
}

/// Converts the result of a switch of a probe to the form of fastinst.
fn toggled(changed: Result<bool, MakeError>) -> Result<Toggle, Error> {
    match changed {
        Ok(true) => Ok(Toggle::Changed),
        Ok(false) => Ok(Toggle::Unchanged),
        Err(MakeError::Code(error)) => Err(Error::Text(error)),
        Err(MakeError::StubMemory { .. }) => {
            Err(Error::Provider { reason: "the stubs of the module's probes have reached their limit" })
        }
        Err(MakeError::Compile(_) | MakeError::First(_) | MakeError::Counters(_)) => {
            Err(Error::Provider { reason: "the function cannot be compiled with places for probes" })
        }
    }
}

impl Sites for Places {
    unsafe fn activate(&self, index: u32, function: ProbeFn) -> Result<Toggle, Error> {
        match self.probe(index) {
            (Some(image), probe) => toggled(image.activate_call(probe, function as usize)),
            // The image is being freed: its ids are about to be retired.
            (None, _) => Ok(Toggle::Unchanged),
        }
    }

    fn deactivate(&self, index: u32) -> Result<Toggle, Error> {
        match self.probe(index) {
            (Some(image), probe) => toggled(image.deactivate_probe(probe, false)),
            (None, _) => Ok(Toggle::Unchanged),
        }
    }

    fn metadata(&self, index: u32, id: ProbeId) -> ProbeMetadata<'_> {
        let place = self.places[index as usize].get().expect("only announced probes are described");
        let mut metadata = ProbeMetadata::new(id, PROVIDER, place.kind);
        metadata.function_name = &place.function_name;
        metadata.function_address = place.function_address;
        // Otherwise the image is being freed, as above.
        if let Some(image) = self.image.upgrade() {
            let (address, body) = image.site_address(place.place.function_index, place.position);
            metadata.site_address = address;
            (metadata.body_start, metadata.body_end) = body;
        }
        metadata.object_path = &self.module_name;
        metadata.object_base = place.object_base;
        metadata.module_place = Some(place.place);
        metadata
    }
}

/// A name from the module as a C string.
fn text(name: &str) -> CString {
    CString::new(name.replace('\0', "")).expect("without zeros")
}

impl CodeImage {
    /// The id of a place, by its position in the module. A new id is announced.
    pub(crate) fn probe_id(self: &Arc<Self>, function: u32, position: u32) -> Result<ProbeId, NoId> {
        // Before the lock of the ids: a callback may hold this right and ask for other ids.
        let discovery = Discovery::begin().map_err(NoId::Ids)?;
        let mut locked = forks::lock(&self.ids.0);
        let state = &mut *locked;
        if let Some(id) = state.by_position.get(&position) {
            return Ok(*id);
        }
        if state.groups.is_empty() || state.used == GROUP {
            let sections = Sections::of(&self.bytes);
            let places = Arc::new(Places {
                image: Arc::downgrade(self),
                module_name: text(sections.module_name.unwrap_or_default()),
                places: [const { OnceLock::new() }; GROUP as usize],
            });
            let group = ReservedIds::new(GROUP).map_err(NoId::Ids)?.with_sites(places.clone());
            state.groups.push((Arc::new(group), places));
            state.used = 0;
        }
        let (group, places) = state.groups.last().expect("there is one with room");
        let id = group.id(state.used);
        let arguments = [Value::constant(id.0.into()), Value::SITE, Value::CONTEXT];
        let arguments = arguments.into_iter().map(Argument::Known).collect();
        // The probe is switched on only with a function.
        let what = RequestedKind::Call { callee: Callee::Native(0), arguments };
        let made =
            self.make_probes(function, &[Request { position, what, only: None }]).map_err(NoId::Make)?;
        let probe = made.into_iter().next().expect("one for one").map_err(NoId::Place)?;
        let place = self.describe(function, position, probe);
        let number = state.used;
        places.places[number as usize].set(place).expect("the id is new");
        // First: a callback may panic. No other thread finds the id before it is announced, since
        // only one has the right to announce.
        let group = group.clone();
        state.used += 1;
        state.by_position.insert(position, id);
        // A callback may wait for a thread that forks.
        drop(locked);
        group.announce(&discovery, number);
        Ok(id)
    }

    fn describe(&self, function: u32, position: u32, probe: usize) -> Place {
        let info = *self.function(function);
        let offset = position - info.wasm_start;
        let is_entry = offset == 0;
        let is_exit = position == info.wasm_end;
        let name = Sections::of(&self.bytes).function_name(function);
        Place {
            probe,
            function_name: text(&name.unwrap_or_else(|| format!("[function {function}]"))),
            kind: match (is_entry, is_exit) {
                (true, _) => ProbeKind::ENTRY,
                (_, true) => ProbeKind::EXIT,
                _ => ProbeKind::FIRST_OF_PROVIDERS,
            },
            place: ModulePlace {
                function_index: function,
                offset,
                opcode: (!is_entry && !is_exit).then(|| self.opcode(position)),
            },
            position,
            function_address: self.at(info.entry) as usize,
            object_base: self.memory().address(),
        }
    }

    /// The opcode of the instruction at a position; a prefix, if any, is in the upper half.
    fn opcode(&self, position: u32) -> u32 {
        let code = &self.bytes[position as usize..];
        let first = u32::from(code[0]);
        if !(0xfb..=0xfe).contains(&first) {
            return first;
        }
        let rest = wasmparser::BinaryReader::new(&code[1..], 0).read_var_u32().unwrap_or_default();
        first << 16 | rest
    }
}
