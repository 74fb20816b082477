//! [`Table`]: a handle of a table of references.

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;

use super::collect;
use super::store::{AsContext, AsContextMut, Handle, StoreOpaque};
use super::value::Val;
use crate::error::Error;
use crate::linear_memory::system_refuses;
use crate::trap::Trap;
use crate::types::{TableType, ValType};
use crate::vmctx::VmTable;

/// Maximum number of elements of a table (wasmparser's limit for the initial size).
const MAX_ELEMENTS: u64 = 10_000_000;

/// A table of a store. Elements are in the representation of compiled code.
#[derive(Debug)]
pub(crate) struct TableData {
    pub ty: TableType,
    /// What compiled code reads: always the address and length of `elements`.
    pub vm: NonNull<VmTable>,
    elements: Vec<u64>,
}

impl TableData {
    pub(crate) fn new(ty: TableType, initial: u64) -> Result<Self, Error> {
        if ty.maximum().is_some_and(|maximum| ty.minimum() > maximum) {
            return Err(Error::InvalidType { of: "table" });
        }
        if ty.minimum() > MAX_ELEMENTS {
            return Err(Error::TableTooLarge { elements: ty.minimum(), limit: MAX_ELEMENTS });
        }
        let vm = NonNull::from(Box::leak(Box::new(VmTable { elements: std::ptr::null_mut(), length: 0 })));
        let mut table = Self { ty, vm, elements: Vec::new() };
        let made = match initial {
            0 => zeroed(ty.minimum() as usize).map(|elements| table.elements = elements),
            _ => table.extend(ty.minimum(), initial).map(drop),
        };
        made.ok_or_else(|| system_refuses("a table"))?;
        table.publish();
        Ok(table)
    }

    /// Adds elements; returns their previous number. `None` if the limit is exceeded.
    pub(crate) fn grow(&mut self, by: u64, value: u64) -> Option<u64> {
        let new = self.length().checked_add(by)?;
        let maximum = self.ty.maximum().map_or(MAX_ELEMENTS, |maximum| MAX_ELEMENTS.min(maximum));
        if new > maximum { None } else { self.extend(by, value) }
    }

    fn extend(&mut self, by: u64, value: u64) -> Option<u64> {
        let old = self.length();
        self.elements.try_reserve(by as usize).ok()?;
        self.elements.resize((old + by) as usize, value);
        self.publish();
        Some(old)
    }

    /// Publishes the address of the elements to compiled code.
    fn publish(&mut self) {
        let vm = VmTable { elements: self.elements.as_mut_ptr(), length: self.length() };
        // SAFETY: the box is this table's own; compiled code that could read it is not running.
        unsafe { self.vm.write(vm) };
    }

    pub(crate) fn length(&self) -> u64 {
        self.elements.len() as u64
    }

    pub(crate) fn elements(&self) -> &[u64] {
        &self.elements
    }

    /// `length` elements starting at `at`.
    pub(crate) fn range(&self, at: u64, length: u64) -> Result<&[u64], Trap> {
        let end = at.checked_add(length).filter(|end| *end <= self.length()).ok_or(Trap::TableOutOfBounds)?;
        Ok(&self.elements[at as usize..end as usize])
    }

    /// `length` elements starting at `at`, mutable.
    pub(crate) fn range_mut(&mut self, at: u64, length: u64) -> Result<&mut [u64], Trap> {
        let end = at.checked_add(length).filter(|end| *end <= self.length()).ok_or(Trap::TableOutOfBounds)?;
        Ok(&mut self.elements[at as usize..end as usize])
    }

    /// Replaces all elements.
    pub(crate) fn fill(&mut self, value: u64) {
        self.elements.fill(value);
    }

    /// Copies elements within the table; the ranges may overlap.
    pub(crate) fn copy_within(&mut self, to: u64, from: u64, length: u64) -> Result<(), Trap> {
        self.range(from, length)?;
        self.range(to, length)?;
        self.elements.copy_within(from as usize..(from + length) as usize, to as usize);
        Ok(())
    }
}

/// Null elements in memory that the system zeroes on first access: a module may declare many tables
/// that it never uses.
fn zeroed(length: usize) -> Option<Vec<u64>> {
    if length == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<u64>(length).ok()?;
    // SAFETY: the layout is not empty.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    // SAFETY: allocated by the global allocator with this layout, all elements initialized.
    Some(unsafe { Vec::from_raw_parts(memory.cast().as_ptr(), length, length) })
}

impl Drop for TableData {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `new`; tables are dropped with their store.
        drop(unsafe { Box::from_raw(self.vm.as_ptr()) });
    }
}

/// A handle of a table. It must be used with the store that it belongs to; otherwise its methods
/// panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Table(pub(crate) Handle);

impl Table {
    /// A new table, all of whose elements are `init`.
    ///
    /// # Errors
    /// [`Error::TableTooLarge`]; [`Error::InvalidType`] for invalid limits, and for elements that
    /// refer to a type that the engine does not know, or that is of another kind;
    /// [`Error::StoreLimit`], [`Error::Memory`] if there is no memory, [`Error::ValueType`] and
    /// [`Error::WrongStore`] if `init` is of another type or store.
    pub fn new(mut store: impl AsContextMut, ty: TableType, init: Val) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        store.engine.check_known(ValType::Ref(ty.element()), "table")?;
        collect::if_due(store, collect::From::Host, &[]);
        let raw = store.lower(ValType::Ref(ty.element()), &init)? as u64;
        store.create_table(ty, raw).map(|index| Self(Handle::at(store, index)))
    }

    /// The table's type, with the minimum that it was created with.
    pub fn ty(&self, store: impl AsContext) -> TableType {
        self.data(&store.as_context().0.opaque).ty
    }

    /// The table's current number of elements.
    pub fn size(&self, store: impl AsContext) -> u64 {
        self.data(&store.as_context().0.opaque).length()
    }

    /// The element at `index`, or `None` if it is out of bounds.
    pub fn get(&self, mut store: impl AsContextMut, index: u64) -> Option<Val> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        collect::if_due(store, collect::From::Host, &[]);
        let table = self.data(store);
        let (ty, raw) = (table.ty.element(), *table.elements().get(usize::try_from(index).ok()?)?);
        Some(store.lift(ValType::Ref(ty), raw.into()))
    }

    /// Replaces the element at `index`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::ValueType`], or [`Error::WrongStore`] if the value belongs
    /// to another store.
    pub fn set(&self, store: impl AsContextMut, index: u64, value: Val) -> Result<(), Error> {
        self.fill(store, index, value, 1)
    }

    /// Sets `length` elements, starting at `index`, to `value`.
    ///
    /// # Errors
    /// As for [`Table::set`].
    pub fn fill(
        &self,
        mut store: impl AsContextMut,
        index: u64,
        value: Val,
        length: u64,
    ) -> Result<(), Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let (element, size) = (self.data(store).ty.element(), self.data(store).length());
        collect::if_due(store, collect::From::Host, &[]);
        let raw = store.lower(ValType::Ref(element), &value)? as u64;
        let table = self.0.index_in(store);
        let range = store.tables[table].range_mut(index, length);
        range.map_err(|_| Error::OutOfBounds { of: "table", offset: index, length, size })?.fill(raw);
        store.writes.add_elements(*self, index, length);
        Ok(())
    }

    /// Adds `by` elements, all of which are `init`; returns the previous number of elements.
    ///
    /// # Errors
    /// [`Error::Grow`], [`Error::ValueType`], or [`Error::WrongStore`] if the value belongs to
    /// another store.
    pub fn grow(&self, mut store: impl AsContextMut, by: u64, init: Val) -> Result<u64, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let (element, size) = (self.data(store).ty.element(), self.data(store).length());
        collect::if_due(store, collect::From::Host, &[]);
        let raw = store.lower(ValType::Ref(element), &init)? as u64;
        let grown = store.grow_table(self.0.index_in(store) as u32, by, raw);
        if grown.is_some() {
            store.writes.add_elements(*self, size, by);
        }
        grown.ok_or(Error::Grow { of: "table", size, by })
    }

    #[track_caller]
    pub(crate) fn data<'a>(&self, store: &'a StoreOpaque) -> &'a TableData {
        &store.tables[self.0.index_in(store)]
    }

    /// The type for importers: the minimum is the current size.
    pub(crate) fn current_type(&self, store: &StoreOpaque) -> TableType {
        let table = self.data(store);
        table.ty.with_minimum(table.length())
    }
}

impl StoreOpaque {
    /// Returns its index.
    pub(crate) fn create_table(&mut self, ty: TableType, initial: u64) -> Result<u32, Error> {
        if !self.limits.allows_table(ty.minimum()) {
            return Err(Error::limit("table elements"));
        }
        self.tables.push(TableData::new(ty, initial)?);
        Ok(self.tables.len() as u32 - 1)
    }

    /// Adds elements to a table, within the limits; returns their previous number.
    pub(crate) fn grow_table(&mut self, table: u32, by: u64, value: u64) -> Option<u64> {
        let table = &mut self.tables[table as usize];
        let allowed = self.limits.allows_table(table.length().checked_add(by)?);
        if allowed || by == 0 { table.grow(by, value) } else { None }
    }
}
