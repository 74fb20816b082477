//! Names of probes.
//!
//! The function of a probe need not be in the object of the probe: an inline function of a
//! library's header is inlined in one object, and defined in another ([`super::imports`]). It
//! belongs to the object that defines it, where its offset is the same in every run.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::imports::Imports;
use super::{Instrumented, NAME, Object, State};
use crate::loaded;
use crate::permanent::{ObjectInfo, Probe};

impl State {
    /// The name of a function according to the symbols of the instrumented object that defines it.
    pub(super) fn symbol(&mut self, address: usize) -> Option<&'static CStr> {
        let holder = self.objects.iter_mut().find(|object| object.loaded.range.contains(&address))?;
        let instrumented = holder.instrumented.as_mut()?;
        instrumented.read_names(&holder.loaded);
        instrumented.names.as_ref()?.name(address)
    }

    /// The name by which an instrumented object refers to a function of another one.
    fn imported(&mut self, object: &ObjectInfo, address: usize) -> Option<CString> {
        object.of_functions?;
        let is_user = |instrumented: &Instrumented| std::ptr::eq(instrumented.info.path, object.path);
        let user = self.objects.iter_mut().find(|user| user.instrumented.as_ref().is_some_and(is_user))?;
        let Object { loaded, instrumented: Some(instrumented) } = user else { return None };
        let imports = match &mut instrumented.imports {
            Some(imports) => imports,
            none => {
                // SAFETY: the object is loaded during the call.
                let read = || unsafe { Imports::read(loaded, &instrumented.view) };
                none.insert(loaded::while_loaded(loaded, read)?)
            }
        };
        imports.name(address).map(CStr::to_owned)
    }

    /// The objects of a probe: `user`, which contains it, and the object that defines its function
    /// at this address.
    fn object_of(&mut self, user: &'static ObjectInfo, address: usize) -> &'static ObjectInfo {
        let Some(holder) = self.objects.iter().find(|object| object.loaded.range.contains(&address)) else {
            return user;
        };
        let range = &holder.loaded.range;
        if range.start == user.base {
            return user;
        }
        let path = holder.loaded.path.as_os_str().as_bytes();
        let is_same = |known: &&&ObjectInfo| {
            let of_functions = known.of_functions.filter(|of_functions| of_functions.base == range.start);
            std::ptr::eq(known.path, user.path)
                && of_functions.is_some_and(|of_functions| of_functions.path.to_bytes() == path)
        };
        if let Some(known) = self.inlined_elsewhere.iter().find(is_same) {
            return known;
        }
        let of_functions = match &holder.instrumented {
            Some(instrumented) => instrumented.info,
            None => Box::leak(Box::new(ObjectInfo {
                provider: NAME,
                path: leak(&holder.loaded.path),
                base: range.start,
                of_functions: None,
            })),
        };
        let new: &ObjectInfo = Box::leak(Box::new(ObjectInfo { of_functions: Some(of_functions), ..*user }));
        self.inlined_elsewhere.push(new);
        new
    }

    /// Sets the name of a probe's function, if the function is known, and completes the probe.
    /// Returns whether this call has completed it.
    pub(super) fn name(&mut self, probe: &Probe) -> bool {
        let function = probe.function();
        let address = function.address.load(Ordering::Relaxed);
        if address == 0 || probe.is_discovered() {
            return false;
        }
        // Otherwise another probe of the function was completed before.
        if function.name.load(Ordering::Relaxed).is_null() {
            let object = self.object_of(function.object(), address);
            if !std::ptr::eq(object, function.object()) {
                function.object.store(std::ptr::from_ref(object).cast_mut(), Ordering::Release);
            }
            let key = (std::ptr::from_ref(object).addr(), address);
            let name = self.symbol(address).or_else(|| self.places.get(&key).copied()).unwrap_or_else(|| {
                let name = self.imported(object, address).unwrap_or_else(|| place(object, address));
                let name: &'static CStr = Box::leak(name.into_boxed_c_str());
                self.places.insert(key, name);
                name
            });
            function.name.store(name.as_ptr().cast_mut(), Ordering::Release);
        }
        probe.discover();
        true
    }
}

/// The substitute for the name of a function without a symbol.
fn place(object: &ObjectInfo, address: usize) -> CString {
    let object = object.of_functions.unwrap_or(object);
    let path = object.path.to_string_lossy();
    let file = Path::new(&*path).file_name().unwrap_or_default().to_string_lossy();
    let place = match address.checked_sub(object.base) {
        Some(offset) => format!("[{file}+{offset:#x}]"),
        None => format!("[{address:#x}]"),
    };
    CString::new(place).unwrap_or_default()
}

/// A string that lives as long as the process.
pub(super) fn leak(path: &Path) -> &'static CStr {
    Box::leak(CString::new(path.as_os_str().as_bytes()).unwrap_or_default().into_boxed_c_str())
}
