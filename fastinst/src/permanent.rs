//! Permanent probes: a table that is appended to under the lock of discovery, and read and toggled
//! without locks.

use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use callpatch::Switch;
use fastinst_sigsafe::Segments;

use crate::discovery::Discovery;
use crate::error::Error;
use crate::probe::{ProbeId, ProbeKind, ProbeMetadata};

/// A permanent probe: a call inserted by a compiler, which was retargeted to one of our stubs.
pub(crate) struct Probe {
    /// The site, tagged with [`UNLOADED`] if its library was unloaded. Old values are never freed:
    /// a thread may be using them.
    pub(crate) site: AtomicPtr<Switch>,
    /// The data that the stub reads.
    pub(crate) cell: &'static Cell,
    /// The address of the probe's function; 0 until it is known.
    pub(crate) function_address: AtomicUsize,
    /// The function's name, a C string that lives as long as the process. Null until discovery has
    /// looked it up; until then, the probe is not announced to callbacks.
    pub(crate) name: AtomicPtr<c_char>,
    /// The object of the site and of the function. It lives as long as the process.
    pub(crate) object: AtomicPtr<ObjectInfo>,
    /// The offset of the site, and of the code that contains it, from the object's lowest address.
    pub(crate) site_offset: u32,
    pub(crate) body: Range<u32>,
    pub(crate) kind: ProbeKind,
    /// Whether the user has requested it to be active: the initial state when its library is loaded
    /// again.
    pub(crate) wanted: AtomicBool,
}

const _: () = assert!(size_of::<Probe>() <= 56, "there may be a million of them");

/// A stub's data: see [`callpatch::stub`].
#[repr(C)]
pub(crate) struct Cell {
    /// The address of the probe function. Written with one atomic store.
    pub(crate) function: AtomicUsize,
    /// The probe's id.
    pub(crate) number: AtomicU32,
    /// The next probe in the list of those whose functions were determined by executing them.
    pub(crate) next_resolved: AtomicU32,
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

const _: () = assert!(Segments::<Probe>::LIMIT <= ProbeId::FIRST_OF_GROUPS.0 as usize);

/// The tag of sites in unloaded libraries. Sites are aligned, so the bit is free.
const UNLOADED: usize = 1;

const _: () = assert!(align_of::<Switch>() > UNLOADED);

impl Probe {
    pub(crate) fn id(&self) -> ProbeId {
        ProbeId(self.cell.number.load(Ordering::Relaxed))
    }

    pub(crate) fn site(&self) -> Result<&'static Switch, Error> {
        // Acquire: pairs with the Release that published the site.
        let site = self.site.load(Ordering::Acquire);
        if site.addr() & UNLOADED != 0 {
            return Err(Error::Unloaded { id: self.id() });
        }
        // SAFETY: leaked, and an untagged pointer is that of the site itself.
        Ok(unsafe { &*site })
    }

    /// Marks the library of the probe as unloaded.
    pub(crate) fn unload(&self) {
        let site = self.site.load(Ordering::Relaxed);
        self.site.store(site.map_addr(|address| address | UNLOADED), Ordering::Release);
    }

    /// The site from before the library was unloaded.
    pub(crate) fn previous_site(&self) -> Option<&'static Switch> {
        let site = self.site.load(Ordering::Acquire);
        let was_unloaded = site.addr() & UNLOADED != 0;
        // SAFETY: leaked.
        was_unloaded.then(|| unsafe { &*site.map_addr(|address| address & !UNLOADED) })
    }

    pub(crate) fn object(&self) -> &'static ObjectInfo {
        // SAFETY: never freed, and published with Release.
        unsafe { &*self.object.load(Ordering::Acquire) }
    }

    /// The address of the site's instruction.
    pub(crate) fn site_address(&self) -> usize {
        self.object().base + self.site_offset as usize
    }

    /// Assigns the new site after the library was loaded again and the site was retargeted to the
    /// stub.
    pub(crate) fn reassign(&self, site: &'static Switch) {
        self.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Release);
        if self.function_address.load(Ordering::Relaxed) == 0 {
            let _ = site.activate();
        } else {
            self.restore();
        }
    }

    /// Brings the code of the site into the state that the user has requested, even while other
    /// threads toggle it.
    pub(crate) fn restore(&self) {
        loop {
            let Ok(site) = self.site() else { return };
            let wanted = self.wanted.load(Ordering::Acquire);
            // An error concerns foreign bytes; the user's next activate or deactivate returns it.
            let _ = if wanted { site.activate() } else { site.deactivate() };
            if self.wanted.load(Ordering::Acquire) == wanted {
                return;
            }
        }
    }

    /// Announces the probe to all callbacks, if its metadata have become complete.
    pub(crate) fn announce(&self, discovery: &Discovery) {
        if let Some(metadata) = self.metadata() {
            discovery.announce(&metadata);
        }
    }

    pub(crate) fn metadata(&self) -> Option<ProbeMetadata<'static>> {
        let name = self.name.load(Ordering::Acquire);
        if name.is_null() {
            return None;
        }
        let object = self.object();
        let address = |offset: u32| object.base + offset as usize;
        let of_function = object.of_functions.unwrap_or(object);
        Some(ProbeMetadata {
            id: self.id(),
            provider: object.provider,
            kind: self.kind,
            // SAFETY: a C string that is never freed, published with Release.
            function_name: unsafe { CStr::from_ptr(name) },
            function_address: self.function_address.load(Ordering::Relaxed),
            site_address: self.site_address(),
            body_start: address(self.body.start),
            body_end: address(self.body.end),
            object_path: of_function.path,
            object_base: of_function.base,
            module_place: None,
        })
    }
}
