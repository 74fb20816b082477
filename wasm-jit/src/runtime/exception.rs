//! Exceptions, as objects and as handles.
//!
//! An `exnref` is the address of a [`VmException`], whose memory the store owns until the collector
//! finds no reference to it (`collect`). A handle that the host has, [`ExnRef`], keeps it alive,
//! too.

use std::collections::TryReserveError;
use std::io;
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::Arc;

use super::collect;
use super::roots::Roots;
use super::store::{AsContext, AsContextMut, StoreOpaque};
use super::tag::Tag;
use super::value::{Val, read_words};
use crate::error::Error;
use crate::exn_ref::ExnRef;
use crate::types::ValType;
use crate::vmctx::VmException;

const HEAD_WORDS: usize = size_of::<VmException>() / 8;

impl ExnRef {
    /// An exception of this tag that carries these values, as if it had been thrown.
    ///
    /// # Errors
    /// [`Error::ValueCount`], [`Error::ValueType`] and [`Error::WrongStore`], if the values do not
    /// match the tag; [`Error::StoreLimit`].
    ///
    /// # Panics
    /// If the tag belongs to another store.
    pub fn new(mut store: impl AsContextMut, tag: &Tag, fields: &[Val]) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let ty = tag.type_in(store);
        collect::if_due(store, collect::From::Host, &[]);
        let mut values = Vec::new();
        store.lower_all("fields", fields, ty.params(), &mut values)?;
        let address = store.create_exception(collect::From::Host, tag.identity(store), &values)?;
        Ok(store.root_exception(address))
    }

    /// The tag of the exception.
    ///
    /// # Panics
    /// If the exception belongs to another store; so does [`fields`](Self::fields).
    pub fn tag(&self, store: impl AsContext) -> Tag {
        let store = &store.as_context().0.opaque;
        // SAFETY: the handle keeps the exception alive, and its values do not change.
        let identity = unsafe { (*self.object(store)).tag };
        Tag::from_identity(store, identity)
    }

    /// The values that the exception carries.
    pub fn fields(&self, mut store: impl AsContextMut) -> Vec<Val> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        collect::if_due(store, collect::From::Host, &[]);
        let object = self.object(store);
        // SAFETY: as in `tag`; the values of the tag's parameters follow the head.
        let values = unsafe {
            std::slice::from_raw_parts((&raw const (*object).values).cast::<u64>(), (*object).count as usize)
                .to_vec()
        };
        // SAFETY: as in `tag`.
        let tag = Tag::from_identity(store, unsafe { (*object).tag });
        let ty = tag.type_in(store);
        let mut words = values.as_slice();
        let mut field = |ty: ValType| {
            let (value, rest) = words.split_at(ty.words());
            words = rest;
            // SAFETY: it has as many words as the type.
            store.lift(ty, unsafe { read_words(ty, value.as_ptr()) })
        };
        ty.params().map(&mut field).collect()
    }

    /// Whether both are the same exception. Two that carry equal values are not.
    pub fn same(&self, other: &Self) -> bool {
        (self.store, self.address) == (other.store, other.address)
    }

    #[track_caller]
    fn object(&self, store: &StoreOpaque) -> *const VmException {
        store.check(self.store);
        self.address as *const VmException
    }

    /// The lowered value, if the exception belongs to this store.
    pub(crate) fn lower(&self, store: &StoreOpaque) -> Result<u64, Error> {
        if self.store == store.id {
            Ok(self.address as u64)
        } else {
            Err(Error::WrongStore { what: "exception" })
        }
    }
}

impl StoreOpaque {
    /// Allocates an exception, within the limits; returns its address. Nothing keeps it alive
    /// beyond the next collection.
    pub(crate) fn create_exception(
        &mut self,
        from: collect::From,
        tag: usize,
        values: &[u64],
    ) -> Result<usize, Error> {
        let size = 8 * (HEAD_WORDS + values.len()) as u64;
        if !self.limits.allows_exceptions(self.exceptions.bytes + size) {
            collect::collect(self, from, values);
            if !self.limits.allows_exceptions(self.exceptions.bytes + size) {
                return Err(Error::limit("exceptions"));
            }
        }
        if let Ok(address) = self.exceptions.allocate(tag, values) {
            return Ok(address);
        }
        collect::collect(self, from, values);
        let allocated = self.exceptions.allocate(tag, values);
        allocated.map_err(|_| Error::memory("an exception", io::ErrorKind::OutOfMemory))
    }

    /// A handle of the exception at this address, which must be alive.
    pub(crate) fn root_exception(&mut self, address: usize) -> ExnRef {
        let root = Arc::new(());
        self.exceptions.roots.add(address, &root);
        ExnRef { store: self.id, address, _root: root }
    }
}

/// The exceptions of a store.
#[derive(Debug, Default)]
pub(crate) struct Exceptions {
    objects: Vec<Object>,
    /// Total size of the objects.
    bytes: u64,
    /// Their total size after the last collection.
    pub(super) retained: u64,
    /// The exceptions for which the host has handles.
    roots: Roots,
}

/// The memory of an exception: words that begin with a [`VmException`].
#[derive(Debug)]
struct Object(NonNull<[u64]>);

impl Object {
    fn address(&self) -> usize {
        self.0.addr().get()
    }

    fn bytes(&self) -> u64 {
        8 * self.0.len() as u64
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `allocate`; an object is dropped only when nothing refers to
        // it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Exceptions {
    /// Total size of the exceptions.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Numbers of exceptions and of handles.
    pub(crate) fn len(&self) -> usize {
        self.objects.len() + self.roots.len()
    }

    /// Total size of those that were allocated since the last collection.
    pub(super) fn fresh(&self) -> u64 {
        self.bytes - self.retained
    }

    fn allocate(&mut self, tag: usize, values: &[u64]) -> Result<usize, TryReserveError> {
        let mut words = Vec::new();
        words.try_reserve_exact(HEAD_WORDS + values.len())?;
        self.objects.try_reserve(1)?;
        words.extend([tag as u64, values.len() as u64]);
        words.extend_from_slice(values);
        let object = Object(NonNull::from(Box::leak(words.into_boxed_slice())));
        let address = object.address();
        self.bytes += object.bytes();
        self.objects.push(object);
        Ok(address)
    }

    /// Removes dropped handles, sorts the exceptions by address, and returns the addresses of those
    /// that have handles.
    pub(crate) fn prepare(&mut self) -> Vec<u64> {
        self.objects.sort_unstable_by_key(Object::address);
        self.roots.addresses().collect()
    }

    /// The number of exceptions, which is that of their marks.
    pub(crate) fn places(&self) -> usize {
        self.objects.len()
    }

    /// The position in the list of the exception whose address this word is, if it is one. To be
    /// called after [`Exceptions::prepare`].
    pub(crate) fn place(&self, word: u64) -> Option<usize> {
        // Most words are far from the addresses of all exceptions.
        let (first, last) = (self.objects.first()?, self.objects.last()?);
        if !(first.address()..=last.address()).contains(&(word as usize)) {
            return None;
        }
        self.objects.binary_search_by_key(&(word as usize), Object::address).ok()
    }

    /// The words of the exception at this position in the list.
    pub(crate) fn words(&self, place: usize) -> &[u64] {
        // SAFETY: the object lives as long as it is in the list, and does not change.
        unsafe { self.objects[place].0.as_ref() }
    }

    /// Frees the exceptions that are not marked.
    pub(crate) fn sweep(&mut self, marked: &[bool]) {
        let mut marks = marked.iter();
        self.objects.retain(|_| *marks.next().expect("a mark for each place"));
        self.bytes = self.objects.iter().map(Object::bytes).sum();
        self.retained = self.bytes;
    }
}

const _: () = assert!(HEAD_WORDS == 2, "the tag and the count");
