//! Finds a function by its object and its offset there, or by its address: a library that is loaded
//! again finds its functions here. If another function is at the offset now, the library was built
//! again meanwhile, and counts as another object: `libplugin.so (build 2)`.
//!
//! There may be a million functions, so this is a hash table of their indices alone; the keys are
//! in [`Measured`].

use std::ffi::{CStr, CString};

use crate::observe::measured::Measured;

/// A loaded object. One that was loaded again may have the same path at another address.
#[derive(Debug)]
struct Object {
    path: &'static CStr,
    base: usize,
    /// The first path with this text, or that of a later build.
    first: &'static CStr,
}

/// The functions of a session, except for the one with index 0.
#[derive(Debug, Default)]
pub(super) struct KnownFunctions {
    /// By their addresses, ascending.
    objects: Vec<Object>,
    /// The object that was used last.
    last: usize,
    /// The paths of later builds.
    builds: Vec<&'static CStr>,
    /// Indices of functions, 0 for a free slot; a power of two, of which at least a quarter is
    /// free. A function is in the first slot from that of its hash on that was free.
    slots: Vec<u32>,
    count: usize,
}

/// The place of a key in a table with this number of slots.
fn slot(object: &CStr, offset: usize, slots: usize) -> usize {
    let key = (object.as_ptr().addr() as u64).rotate_left(32) ^ offset as u64;
    // Fibonacci hashing (Knuth, "The Art of Computer Programming", volume 3, section 6.4).
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (slots - 1)
}

impl KnownFunctions {
    /// The path by which functions of this object are found: one for all objects with equal paths.
    pub(super) fn object(&mut self, path: &'static CStr, base: usize) -> &'static CStr {
        // Nearly always the object that was used last.
        let is_same = |known: &Object| std::ptr::eq(known.path, path) && known.base == base;
        if self.objects.get(self.last).is_some_and(is_same) {
            return self.objects[self.last].first;
        }
        if let Some(at) = self.objects.iter().position(is_same) {
            self.last = at;
            return self.objects[at].first;
        }
        let first = self.objects.iter().find(|known| known.path == path).map_or(path, |known| known.first);
        self.last = self.objects.partition_point(|known| known.base <= base);
        self.objects.insert(self.last, Object { path, base, first });
        first
    }

    /// The path by which a function of this object is found, which is loaded at present, and the
    /// function if it is known. A function without a name may be any.
    pub(super) fn function(
        &mut self,
        functions: &[Measured],
        (path, base): (&'static CStr, usize),
        offset: usize,
        name: &CStr,
    ) -> (&'static CStr, Option<u32>) {
        let is_same = |index: u32| {
            let known = functions[index as usize].name();
            known == name || known.is_empty() || name.is_empty()
        };
        let mut object = self.object(path, base);
        for build in 2_u32.. {
            let found = self.find(functions, object, offset);
            if found.is_none_or(is_same) {
                self.objects[self.last].first = object;
                return (object, found);
            }
            object = self.build(path, build);
        }
        unreachable!("there are not so many functions")
    }

    /// The path of a later build.
    fn build(&mut self, path: &CStr, number: u32) -> &'static CStr {
        let text = [path.to_bytes(), format!(" (build {number})").as_bytes()].concat();
        if let Some(known) = self.builds.iter().find(|known| known.to_bytes() == text) {
            return known;
        }
        let text = CString::new(text).expect("a path and a number have no NUL");
        // As long as the functions that it identifies: for the rest of the process.
        let build: &'static CStr = Box::leak(text.into_boxed_c_str());
        self.builds.push(build);
        build
    }

    /// The function at an offset in an object, by its [path](KnownFunctions::object).
    pub(super) fn find(&self, functions: &[Measured], object: &CStr, offset: usize) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let start = slot(object, offset, self.slots.len());
        let from_start = self.slots[start..].iter().chain(&self.slots[..start]);
        from_start.copied().take_while(|index| *index != 0).find(|index| {
            let measured = &functions[*index as usize];
            std::ptr::eq(measured.object(), object) && measured.address == offset
        })
    }

    /// The function that was loaded at this address, most probably.
    pub(super) fn at(&self, functions: &[Measured], address: usize) -> Option<u32> {
        let below = &self.objects[..self.objects.partition_point(|object| object.base <= address)];
        below.iter().rev().find_map(|object| self.find(functions, object.first, address - object.base))
    }

    /// Another number if an address may have become that of a function.
    pub(super) fn size(&self) -> usize {
        self.count + self.objects.len()
    }

    /// Adds a new function. Its object is a [path](KnownFunctions::object) of this table.
    pub(super) fn insert(&mut self, functions: &[Measured], index: u32) {
        self.count += 1;
        if 4 * self.count > 3 * self.slots.len() {
            let larger = vec![0; (2 * self.slots.len()).max(64)];
            let smaller = std::mem::replace(&mut self.slots, larger);
            smaller.into_iter().filter(|index| *index != 0).for_each(|index| self.place(functions, index));
        }
        self.place(functions, index);
    }

    fn place(&mut self, functions: &[Measured], index: u32) {
        let measured = &functions[index as usize];
        let slots = self.slots.len();
        let mut at = slot(measured.object(), measured.address, slots);
        while self.slots[at] != 0 {
            at = (at + 1) & (slots - 1);
        }
        self.slots[at] = index;
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<u32>() + self.objects.capacity() * size_of::<Object>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_objects_with_equal_paths_and_by_addresses() {
        let mut known = KnownFunctions::default();
        let mut functions = vec![Measured::new(c"", c"", 0)];
        let again: &'static CStr = Box::leak(c"/lib/a.so".to_owned().into_boxed_c_str());
        let [a, b] = [(c"/lib/a.so", 0x10_0000), (c"/lib/b.so", 0x20_0000)]
            .map(|(path, base)| known.object(path, base));
        assert_eq!(known.find(&functions, a, 16), None);
        for number in 1..=5000_usize {
            let object = if number % 2 == 0 { a } else { b };
            functions.push(Measured::new(c"f", object, 16 * number));
            known.insert(&functions, number as u32);
        }
        assert!(std::ptr::eq(known.object(again, 0x30_0000), a), "it was loaded again");
        for number in 1..=5000_usize {
            let (object, other) = if number % 2 == 0 { (a, b) } else { (b, a) };
            assert_eq!(known.find(&functions, object, 16 * number), Some(number as u32));
            assert_eq!(known.find(&functions, other, 16 * number), None);
        }
        // At the address of another object's function, if that object were loaded as well.
        functions.push(Measured::new(c"f", a, 0x10_0010));
        known.insert(&functions, 5001);
        assert_eq!(known.at(&functions, 0x10_0020), Some(2));
        assert_eq!(known.at(&functions, 0x20_0010), Some(1));
        assert_eq!(known.at(&functions, 0x30_0020), Some(2));
        assert_eq!(known.at(&functions, 0x10_0001), None);
        assert!(known.memory() < 5000 * 8 + 1000, "{}", known.memory());
    }

    #[test]
    fn a_library_that_was_built_again_is_another_object() {
        let mut known = KnownFunctions::default();
        let mut functions = vec![Measured::new(c"", c"", 0)];
        let mut function = |base: usize, offset: usize, name: &'static CStr| {
            let (object, found) = known.function(&functions, (c"/lib/a.so", base), offset, name);
            let index = found.unwrap_or_else(|| {
                functions.push(Measured::new(name, object, offset));
                known.insert(&functions, functions.len() as u32 - 1);
                functions.len() as u32 - 1
            });
            (index, object)
        };
        assert_eq!(function(0x1000, 16, c"f"), (1, c"/lib/a.so"));
        assert_eq!(function(0x1000, 32, c"g"), (2, c"/lib/a.so"));
        // Loaded again, at another address; the second function has moved.
        assert_eq!(function(0x2000, 16, c"f"), (1, c"/lib/a.so"));
        assert_eq!(function(0x2000, 32, c"h"), (3, c"/lib/a.so (build 2)"));
        assert_eq!(function(0x2000, 16, c"f"), (4, c"/lib/a.so (build 2)"), "from now on");
        assert_eq!(function(0x1000, 32, c"i"), (5, c"/lib/a.so (build 3)"));
        assert_eq!(function(0x2000, 32, c""), (3, c"/lib/a.so (build 2)"), "its name is not known");
        assert_eq!(function(0x3000, 32, c"h"), (3, c"/lib/a.so (build 2)"));
        assert_eq!(known.at(&functions, 0x2020), Some(3));
    }
}
