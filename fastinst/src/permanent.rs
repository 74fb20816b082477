//! Permanent probes: a table that is appended to under the lock of discovery, and read and toggled
//! without locks.

use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use callpatch::{PackedSite, Shape, SiteText, Switch};
use fastinst_sigsafe::Segments;

use crate::discovery::Discovery;
use crate::error::Error;
use crate::probe::{ProbeId, ProbeKind, ProbeMetadata};

/// A permanent probe: a call inserted by a compiler, which was retargeted to one of our stubs.
pub(crate) struct Probe {
    /// The number of the text in which the site was last found, shifted by one; the lowest bit is
    /// [`UNLOADED`], set while its library is not loaded.
    text: AtomicU32,
    /// The offset of the site from the base of its text, the object's lowest address.
    site_offset: u32,
    /// The offset of the data that its stub reads from the same base; negative if the stub is below
    /// the object.
    cell_offset: i32,
    /// The number of the [`SiteFunction`].
    function: u32,
    site: PackedSite,
    pub(crate) kind: ProbeKind,
    /// Whether the user has requested it to be active: the initial state when its library is loaded
    /// again.
    pub(crate) wanted: AtomicBool,
    /// Whether the probe is announced to callbacks, or about to be: its function has a name.
    is_discovered: AtomicBool,
}

const _: () = assert!(size_of::<Probe>() <= 28, "there may be a million of them");

/// The function of a probe, and the code that contains the site: the same for most sites of a
/// function.
pub(crate) struct SiteFunction {
    /// The address of the function; 0 until it is known.
    pub(crate) address: AtomicUsize,
    /// The function's name, a C string that lives as long as the process. Null until discovery has
    /// looked it up.
    pub(crate) name: AtomicPtr<c_char>,
    /// The object of the site and of the function. It lives as long as the process.
    pub(crate) object: AtomicPtr<ObjectInfo>,
    /// The code that contains the site, as offsets from the object's lowest address.
    pub(crate) body: Range<u32>,
}

const _: () = assert!(size_of::<SiteFunction>() <= 32, "there may be a million of them");

/// The parts of a new probe.
pub(crate) struct NewProbe {
    pub(crate) text: SiteText,
    pub(crate) site: PackedSite,
    pub(crate) site_offset: u32,
    pub(crate) cell: &'static Cell,
    /// The number of the [`SiteFunction`].
    pub(crate) function: u32,
    pub(crate) kind: ProbeKind,
}

/// A stub's data: see [`callpatch::stub`].
#[repr(C)]
pub(crate) struct Cell {
    /// The address of the probe function. Written with one atomic store.
    pub(crate) function: AtomicUsize,
    /// The probe's id.
    pub(crate) number: AtomicU32,
    /// For a probe whose function was determined by executing it: first the next one in the list of
    /// those whose discovery is not complete, then its number in [`crate::merged`].
    pub(crate) list: AtomicU32,
}

/// The part of the metadata that the probes of an object share.
#[derive(Debug)]
pub(crate) struct ObjectInfo {
    /// The name of the provider that found them.
    pub(crate) provider: &'static CStr,
    pub(crate) path: &'static CStr,
    pub(crate) base: usize,
    /// The object that defines the functions of these probes, if it is a different one.
    pub(crate) of_functions: Option<&'static ObjectInfo>,
}

pub(crate) static PROBES: Segments<Probe> = Segments::new();

static FUNCTIONS: Segments<SiteFunction> = Segments::new();

/// The texts of probes: one for each mapping of an object, and one more each time that the object
/// is loaded again and its previous text cannot be revived.
static TEXTS: Segments<SiteText, 64, 4096> = Segments::new();

const _: () = assert!(Segments::<Probe>::LIMIT <= ProbeId::FIRST_OF_GROUPS.0 as usize);

/// A bit in [`Probe::text`].
const UNLOADED: u32 = 1;

/// The number of times that a probe was marked as unloaded, or as loaded again.
pub(crate) static LOADS: AtomicU64 = AtomicU64::new(0);

/// The number of texts, the last ones, among which one is looked for that exists already.
const RECENT_TEXTS: usize = 16;

/// The number of a text, with no bit set; `None` if there are too many.
fn number_of(text: &SiteText) -> Option<u32> {
    let recent = (0..TEXTS.len()).rev().take(RECENT_TEXTS);
    let known = recent.into_iter().find(|number| TEXTS.get(*number) == Some(text));
    let number = known.or_else(|| TEXTS.push_with(|_| *text))?;
    Some((number as u32) << 1)
}

/// Bytes of memory of all permanent probes.
pub(crate) fn memory() -> usize {
    PROBES.len() * size_of::<Probe>()
        + FUNCTIONS.len() * size_of::<SiteFunction>()
        + TEXTS.len() * size_of::<SiteText>()
}

impl SiteFunction {
    /// Adds the function of one or more sites, with an address if that is known. Returns its
    /// number.
    pub(crate) fn add(address: usize, object: &'static ObjectInfo, body: Range<u32>) -> Option<u32> {
        let function = Self {
            address: AtomicUsize::new(address),
            name: AtomicPtr::new(std::ptr::null_mut()),
            object: AtomicPtr::new(std::ptr::from_ref(object).cast_mut()),
            body,
        };
        FUNCTIONS.push_with(|_| function).map(|number| number as u32)
    }

    pub(crate) fn object(&self) -> &'static ObjectInfo {
        // SAFETY: never freed, and published with Release.
        unsafe { &*self.object.load(Ordering::Acquire) }
    }
}

/// The site of a probe, as long as its library is loaded.
pub(crate) struct ProbeSite {
    pub(crate) switch: Switch,
    /// The number of the text, which tells whether the library was loaded again since.
    pub(crate) text: u32,
}

/// Lets requests of other threads, which have found a probe's site unloaded or in another state,
/// become visible: a request is a store without a fence, followed by a load of the site.
pub(crate) fn wait_for_requests() {
    if wordpatch::serialize_all_cores().is_err() {
        wordpatch::internal::wait_for_assumed_bound();
    }
}

/// Brings the sites of probes whose libraries have returned into the states that the user has
/// requested, possibly while their sites were not there.
pub(crate) fn start_again(probes: &[&Probe]) {
    if !probes.is_empty() {
        wait_for_requests();
    }
    probes.iter().for_each(|probe| probe.return_to_state());
}

impl Probe {
    /// Adds a probe; `None` if there are too many probes or texts. It is not discovered yet.
    pub(crate) fn add(new: &NewProbe) -> Option<&'static Probe> {
        let text = number_of(&new.text)?;
        let cell = std::ptr::from_ref(new.cell).expose_provenance();
        let cell_offset = cell.wrapping_sub(new.text.base()) as isize;
        let number = PROBES.push_with(|number| {
            new.cell.number.store(number as u32, Ordering::Relaxed);
            Probe {
                text: AtomicU32::new(text),
                site_offset: new.site_offset,
                cell_offset: i32::try_from(cell_offset).expect("stubs are within reach of their object"),
                function: new.function,
                site: new.site,
                kind: new.kind,
                wanted: AtomicBool::new(false),
                is_discovered: AtomicBool::new(false),
            }
        });
        PROBES.get(number?)
    }

    pub(crate) fn id(&self) -> ProbeId {
        ProbeId(self.cell().number.load(Ordering::Relaxed))
    }

    /// The function of the site.
    pub(crate) fn function(&self) -> &'static SiteFunction {
        FUNCTIONS.get(self.function as usize).expect("added before the probe")
    }

    #[inline]
    fn text(&self) -> (&'static SiteText, u32) {
        // Acquire: pairs with the Release that published the text.
        let word = self.text.load(Ordering::Acquire);
        (TEXTS.get((word >> 1) as usize).expect("added before the probe"), word)
    }

    /// The data that the stub reads.
    #[inline]
    pub(crate) fn cell(&self) -> &'static Cell {
        let (text, _) = self.text();
        let address = text.base().wrapping_add_signed(self.cell_offset as isize);
        // SAFETY: the address of the cell that was given to `add`; all texts of a probe have the
        // same base.
        unsafe { &*std::ptr::with_exposed_provenance(address) }
    }

    #[inline]
    fn switch(&self, text: &SiteText) -> Switch {
        // SAFETY: packed with this text, or one that was resolved when the object was loaded again
        // and the site was found in it (`reassign`).
        unsafe { self.site.switch(text, self.site_offset as usize) }
    }

    #[inline]
    pub(crate) fn site(&self) -> Result<ProbeSite, Error> {
        let (text, number) = self.text();
        if number & UNLOADED != 0 {
            return Err(Error::Unloaded { id: self.id() });
        }
        Ok(ProbeSite { switch: self.switch(text), text: number })
    }

    /// The kind of the site's instruction.
    pub(crate) fn shape(&self) -> Shape {
        self.site.shape()
    }

    /// Marks the library of the probe as unloaded.
    pub(crate) fn unload(&self) {
        self.text.fetch_or(UNLOADED, Ordering::Release);
        LOADS.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.text.load(Ordering::Acquire) & UNLOADED == 0
    }

    /// The site from before the library was unloaded.
    pub(crate) fn previous_site(&self) -> Option<Switch> {
        let (text, number) = self.text();
        (number & UNLOADED != 0).then(|| self.switch(text))
    }

    /// The address of the site's instruction.
    pub(crate) fn site_address(&self) -> usize {
        self.text().0.base() + self.site_offset as usize
    }

    /// Whether the site's instruction, which calls the probe's stub, is in the text. Reads the
    /// text, not an alias of it.
    ///
    /// # Safety
    /// The site's instruction is mapped readable.
    pub(crate) unsafe fn is_in_text(&self) -> bool {
        /// Toggles at the same time may be seen partially.
        const LOOKS: usize = 64;
        // SAFETY: the caller's obligation.
        (0..LOOKS).any(|_| unsafe { self.site.is_at(self.site_address()) })
    }

    /// Makes the previous site valid again, after the library was loaded again and the site was
    /// retargeted to the stub: its text was revived. [`start_again`] must follow.
    pub(crate) fn revive(&self) {
        self.text.fetch_and(!UNLOADED, Ordering::Release);
        LOADS.fetch_add(1, Ordering::Release);
    }

    /// As [`Probe::revive`], with another text of the same site. Returns false, and does nothing,
    /// if there are too many texts, or if another instruction is there.
    pub(crate) fn reassign(&self, text: &SiteText, site: PackedSite) -> bool {
        let has_same_site = site == self.site && text.base() == self.text().0.base();
        let Some(number) = number_of(text).filter(|_| has_same_site) else { return false };
        self.text.store(number, Ordering::Release);
        LOADS.fetch_add(1, Ordering::Release);
        true
    }

    /// Moves the site to another text, where the same call is at the same offset.
    #[cfg(test)]
    pub(crate) fn move_in_tests(&self, text: &SiteText) {
        self.text.store(number_of(text).expect("there is room"), Ordering::Release);
    }

    fn return_to_state(&self) {
        if self.function().address.load(Ordering::Relaxed) != 0 {
            self.restore();
        } else if let Ok(site) = self.site() {
            let _ = site.switch.activate();
        }
    }

    /// Brings the code of the site into the state that the user has requested, even while other
    /// threads toggle it.
    pub(crate) fn restore(&self) {
        loop {
            let Ok(site) = self.site() else { return };
            let wanted = self.wanted.load(Ordering::Acquire);
            // An error concerns foreign bytes; the user's next activate or deactivate returns it.
            let _ = if wanted { site.switch.activate() } else { site.switch.deactivate() };
            if self.wanted.load(Ordering::Acquire) == wanted {
                return;
            }
        }
    }

    /// Whether the probe was announced to callbacks, or is about to be.
    #[inline]
    pub(crate) fn is_discovered(&self) -> bool {
        // Acquire: pairs with the Release in `discover`.
        self.is_discovered.load(Ordering::Acquire)
    }

    /// Completes the probe, whose function has a name.
    pub(crate) fn discover(&self) {
        self.is_discovered.store(true, Ordering::Release);
    }

    /// Announces the probe to all callbacks, if its metadata have become complete.
    pub(crate) fn announce(&self, discovery: &Discovery) {
        if let Some(metadata) = self.metadata() {
            discovery.announce(&metadata);
        }
    }

    pub(crate) fn metadata(&self) -> Option<ProbeMetadata<'static>> {
        if !self.is_discovered() {
            return None;
        }
        let function = self.function();
        let object = function.object();
        let address = |offset: u32| object.base + offset as usize;
        let of_function = object.of_functions.unwrap_or(object);
        Some(ProbeMetadata {
            id: self.id(),
            provider: object.provider,
            kind: self.kind,
            // SAFETY: a C string that is never freed, stored before the probe was discovered.
            function_name: unsafe { CStr::from_ptr(function.name.load(Ordering::Acquire)) },
            function_address: function.address.load(Ordering::Relaxed),
            site_address: self.site_address(),
            body_start: address(function.body.start),
            body_end: address(function.body.end),
            object_path: of_function.path,
            object_base: of_function.base,
            module_place: None,
        })
    }
}
