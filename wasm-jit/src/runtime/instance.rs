//! [`Instance`], and the memory of an instance that compiled code accesses.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

use super::activation::Entry;
use super::externs::{Export, Extern};
use super::func::Func;
use super::global::Global;
use super::instantiate;
use super::memory::{Memory, SharedMemory};
use super::store::{AsContext, AsContextMut, Handle, StoreOpaque};
use super::table::Table;
use super::tag::Tag;
use super::typed::{TypedFunc, WasmParams, WasmResults};
use crate::code::probed::counters::{Counting, InstanceId, Mapped, Slot};
use crate::error::Error;
use crate::module::{Item, Module};
use crate::types::RefType;
use crate::vmctx::{
    COUNTERS, CURSORS, IN_FRONT, INSTANCE_NUMBER, NO_CURSORS, VmContext, VmFuncRef, VmLayout,
};

/// The block of memory that `r14` points to: a [`VmContext`] followed by the parts placed by
/// [`VmLayout`].
#[derive(Debug)]
pub(crate) struct ContextBlock {
    start: NonNull<u8>,
    size: usize,
    /// Its memory, unless it was allocated.
    mapped: Option<Mapped>,
}

const _: () = assert!(IN_FRONT >= -CURSORS as usize);

impl ContextBlock {
    /// `counters` is the number of bytes of counters that are in the same memory, before what is in
    /// front of the context.
    pub(crate) fn new(layout: &VmLayout, counters: usize) -> io::Result<Self> {
        let size = layout.size as usize;
        let mapped = if counters == 0 { None } else { Some(Mapped::new(counters + IN_FRONT + size)?) };
        let memory = mapped.as_ref().map_or_else(|| Self::allocate(size), Mapped::start);
        // SAFETY: within the block.
        let start = unsafe { memory.add(counters + IN_FRONT) };
        // SAFETY: before the context, within the block.
        unsafe { start.byte_offset(CURSORS as isize).cast().write(NO_CURSORS.as_ptr()) };
        Ok(Self { start, size, mapped })
    }

    fn allocate(size: usize) -> NonNull<u8> {
        let memory = Self::layout(size);
        // SAFETY: a context has a head, so the size is not 0.
        let start = unsafe { alloc_zeroed(memory) };
        NonNull::new(start).unwrap_or_else(|| std::alloc::handle_alloc_error(memory))
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(IN_FRONT + size, 16).expect("a module has at most some million items")
    }

    /// Where compiled code reads the address of the instance's counters.
    pub(crate) fn counters(&self) -> NonNull<Slot> {
        // SAFETY: before the context, within the block, and zero at first.
        unsafe { self.start.byte_offset(COUNTERS as isize) }.cast()
    }

    /// Tells compiled code the number of the instance.
    pub(crate) fn set_number(&mut self, number: u64) {
        // SAFETY: before the context, within the block; no code runs yet.
        unsafe { self.start.byte_offset(INSTANCE_NUMBER as isize).cast::<u64>().write(number) };
    }

    pub(crate) fn context(&self) -> *mut VmContext {
        self.start.as_ptr().cast()
    }

    /// The part at an offset that [`VmLayout`] returned.
    pub(crate) fn at<T>(&self, offset: i32) -> NonNull<T> {
        let offset = offset as usize;
        assert!(offset + size_of::<T>() <= self.size);
        // SAFETY: within the block.
        unsafe { self.start.add(offset) }.cast()
    }
}

impl Drop for ContextBlock {
    fn drop(&mut self) {
        if self.mapped.is_none() {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr().sub(IN_FRONT), Self::layout(self.size)) };
        }
    }
}

/// An instance of a store. The lists map the indices of its items in the module to their indices in
/// the store's vectors.
#[derive(Debug)]
pub(crate) struct InstanceData {
    pub module: Module,
    /// Dropped before the context, which has the address of its counters.
    pub counting: Counting,
    pub block: ContextBlock,
    /// A reference to each function, imports first. Compiled code holds their addresses.
    pub func_refs: NonNull<[VmFuncRef]>,
    pub memories: Box<[u32]>,
    pub tables: Box<[u32]>,
    pub globals: Box<[u32]>,
    pub tags: Box<[u32]>,
    /// Data segments that are empty: they were used or dropped.
    pub dropped_data: Box<[bool]>,
    /// The element segments; those that were used or dropped are empty.
    pub elements: Box<[ElementValues]>,
}

/// The values of an element segment.
#[derive(Debug)]
pub(crate) struct ElementValues {
    pub ty: RefType,
    pub values: Box<[u64]>,
}

impl InstanceData {
    pub(crate) fn func_ref(&self, index: u32) -> NonNull<VmFuncRef> {
        assert!((index as usize) < self.func_refs.len());
        // SAFETY: within the slice.
        unsafe { self.func_refs.cast::<VmFuncRef>().add(index as usize) }
    }

    /// The code that enters a function of the module.
    pub(crate) fn entry_trampoline(&self, function: u32) -> Entry {
        let image = self.module.code();
        let type_index = image.module.functions[function as usize];
        let code =
            image.entry_trampoline(type_index).expect("the image has trampolines for all its functions");
        // SAFETY: the code of an entry trampoline is such a function as long as the image lives;
        // the instance holds its module.
        unsafe { std::mem::transmute::<*const u8, Entry>(code) }
    }

    /// The item of this instance that corresponds to an item of the module.
    pub(crate) fn item(&self, store: &StoreOpaque, item: Item) -> Extern {
        match item {
            Item::Func(index) => Extern::Func(Func::at(store, self.func_ref(index))),
            Item::Table(index) => Extern::Table(Table(Handle::at(store, self.tables[index as usize]))),
            Item::Memory(index) => Extern::of_memory(store, self.memories[index as usize]),
            Item::Global(index) => Extern::Global(Global(Handle::at(store, self.globals[index as usize]))),
            Item::Tag(index) => Extern::Tag(Tag(Handle::at(store, self.tags[index as usize]))),
        }
    }

    /// The elements of segments of types for which `kind` returns true.
    pub(crate) fn collected_elements(&self, kind: impl Fn(RefType) -> bool) -> impl Iterator<Item = u64> {
        self.elements
            .iter()
            .filter(move |segment| kind(segment.ty))
            .flat_map(|segment| segment.values.iter().copied())
    }

    /// The bytes of a data segment.
    pub(crate) fn data(&self, segment: u32) -> &[u8] {
        let segment = segment as usize;
        match self.dropped_data[segment] {
            true => &[],
            false => &self.module.bytes()[self.module.parsed().data[segment].range.clone()],
        }
    }
}

impl Drop for InstanceData {
    fn drop(&mut self) {
        // SAFETY: leaked from a box when the instance was created; an instance is dropped with its
        // store.
        drop(unsafe { Box::from_raw(self.func_refs.as_ptr()) });
    }
}

/// A handle of an instance of a module. It must be used with the store that it belongs to;
/// otherwise its methods panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instance(pub(crate) Handle);

impl Instance {
    /// Instantiates a module: resolves the imports, initializes memories and tables, and calls the
    /// start function.
    ///
    /// # Errors
    /// [`Error::ImportCount`], [`Error::IncompatibleImport`] and [`Error::WrongStore`] concern the
    /// imports; [`Error::Memory`] and [`Error::StoreLimit`] the resources that it needs. After a
    /// trap, in the start function or because a segment does not fit, earlier writes remain.
    ///
    /// # Panics
    /// If store and module belong to different engines, or a host function panics.
    pub fn new(mut store: impl AsContextMut, module: &Module, imports: &[Extern]) -> Result<Self, Error> {
        instantiate::instantiate(store.as_context_mut().into_inner(), module, imports)
    }

    /// As [`Instance::new`], but the start function is not called: [`Instance::start`] must call it
    /// before the instance is used. A recorder or a debugger can be attached in between.
    ///
    /// # Errors
    /// As for [`Instance::new`], except for errors of the start function.
    ///
    /// # Panics
    /// As for [`Instance::new`].
    pub fn new_unstarted(
        mut store: impl AsContextMut,
        module: &Module,
        imports: &[Extern],
    ) -> Result<Self, Error> {
        instantiate::instantiate_unstarted(store.as_context_mut().into_inner(), module, imports)
    }

    /// Calls the start function, if the module has one: for an instance that was made by
    /// [`Instance::new_unstarted`], since [`Instance::new`] does this itself.
    ///
    /// # Errors
    /// A trap, an uncaught exception, or an error of a host function.
    ///
    /// # Panics
    /// If the instance belongs to another store, or a host function panics.
    pub fn start(&self, mut store: impl AsContextMut) -> Result<(), Error> {
        instantiate::start(store.as_context_mut().into_inner(), *self)
    }

    /// All instances of a store, in the order in which they were made.
    pub fn all<'a, T: 'static>(
        store: impl Into<super::StoreContext<'a, T>>,
    ) -> impl ExactSizeIterator<Item = Self> + 'a {
        let store = &store.into().0.opaque;
        (0..store.instances.len() as u32).map(|index| Self(Handle::at(store, index)))
    }

    /// The module that was instantiated.
    pub fn module<'a, T: 'static>(&self, store: impl Into<super::StoreContext<'a, T>>) -> &'a Module {
        &self.inner(&store.into().0.opaque).module
    }

    /// The export of this name, or `None` if there is none.
    pub fn get_export(&self, store: impl AsContext, name: &str) -> Option<Extern> {
        let store = &store.as_context().0.opaque;
        let instance = self.inner(store);
        instance.module.export(name).map(|item| instance.item(store, item))
    }

    /// All exports, in module order.
    pub fn exports<'a, T: 'static>(
        &self,
        store: impl Into<super::StoreContext<'a, T>>,
    ) -> impl ExactSizeIterator<Item = Export<'a>> + 'a {
        let store = &store.into().0.opaque;
        let instance = self.inner(store);
        let exports = instance.module.parsed().exports.iter();
        exports.map(move |(name, item)| Export { name, item: instance.item(store, *item) })
    }

    /// The exported function of this name, or `None` if there is none.
    pub fn get_func(&self, store: impl AsContext, name: &str) -> Option<Func> {
        self.get_export(store, name)?.into_func()
    }

    /// The exported function of this name, with arguments and results of Rust types.
    ///
    /// # Errors
    /// [`Error::UnknownExport`], and [`Error::FuncType`] if the function has another type.
    pub fn get_typed_func<P: WasmParams, R: WasmResults>(
        &self,
        store: impl AsContext,
        name: &str,
    ) -> Result<TypedFunc<P, R>, Error> {
        let func = self.get_func(&store, name);
        func.ok_or_else(|| Error::UnknownExport { kind: "function", name: name.to_owned() })?.typed(store)
    }

    /// The instance's identity, for [probes](crate::probes::Scope) that concern only this instance.
    pub fn id(&self, store: impl AsContext) -> InstanceId {
        self.id_in(&store.as_context().0.opaque)
    }

    pub(crate) fn id_in(&self, store: &StoreOpaque) -> InstanceId {
        self.inner(store).counting.instance()
    }

    /// The exported memory of this name, or `None` if there is none, or it is shared.
    pub fn get_memory(&self, store: impl AsContext, name: &str) -> Option<Memory> {
        self.get_export(store, name)?.into_memory()
    }

    /// The exported shared memory of this name, or `None` if there is none.
    pub fn get_shared_memory(&self, store: impl AsContext, name: &str) -> Option<SharedMemory> {
        self.get_export(store, name)?.into_shared_memory()
    }

    /// A memory by its index in the module, imports first, whether it is exported or not; `None` if
    /// there is none, or it is shared. For tools that know the module's contents.
    pub fn memory(&self, store: impl AsContext, index: u32) -> Option<Memory> {
        let store = &store.as_context().0.opaque;
        Extern::of_memory(store, *self.inner(store).memories.get(index as usize)?).into_memory()
    }

    /// A global by its index in the module, imports first, whether it is exported or not; `None` if
    /// there is none. For tools that know the module's contents.
    pub fn global(&self, store: impl AsContext, index: u32) -> Option<Global> {
        let store = &store.as_context().0.opaque;
        self.inner(store).globals.get(index as usize).map(|at| Global(Handle::at(store, *at)))
    }

    /// A table by its index in the module, imports first, whether it is exported or not; `None` if
    /// there is none. For tools that know the module's contents.
    pub fn table(&self, store: impl AsContext, index: u32) -> Option<Table> {
        let store = &store.as_context().0.opaque;
        self.inner(store).tables.get(index as usize).map(|at| Table(Handle::at(store, *at)))
    }

    /// A function by its index in the module, imports first, whether it is exported or not; `None`
    /// if there is none. For tools that know the module's contents.
    pub fn func(&self, store: impl AsContext, index: u32) -> Option<Func> {
        let store = &store.as_context().0.opaque;
        let instance = self.inner(store);
        ((index as usize) < instance.func_refs.len()).then(|| Func::at(store, instance.func_ref(index)))
    }

    /// The index in the module of a function that the instance defines; `None` for any other
    /// function.
    pub fn func_index(&self, store: impl AsContext, func: &Func) -> Option<u32> {
        let store = &store.as_context().0.opaque;
        if !func.belongs_to(store) {
            return None;
        }
        let vm = func.direct(store);
        (vm.context == self.inner(store).block.context()).then_some(vm.index as u32)
    }

    /// The index of the first import that is this function; `None` if none is. While calls of the
    /// store are observed, a function of another instance that is imported twice counts as two
    /// functions, if they are called as imports.
    pub fn import_index(&self, store: impl AsContext, func: &Func) -> Option<u32> {
        let store = &store.as_context().0.opaque;
        if !func.belongs_to(store) {
            return None;
        }
        let instance = self.inner(store);
        let imports = 0..instance.module.code().module.imported_functions;
        let find = |what: &dyn Fn(Func) -> (*mut VmContext, u64)| {
            let wanted = what(*func);
            imports.clone().find(|import| what(Func::at(store, instance.func_ref(*import))) == wanted)
        };
        let contents = |func: Func| {
            // SAFETY: functions live as long as their store, which is borrowed.
            let VmFuncRef { context, index, .. } = unsafe { *func.vm() };
            (context, index)
        };
        let direct = |func: Func| {
            let VmFuncRef { context, index, .. } = func.direct(store);
            (context, index)
        };
        find(&contents).or_else(|| find(&direct))
    }

    /// A tag by its index in the module, imports first, whether it is exported or not; `None` if
    /// there is none. For tools that know the module's contents.
    pub fn tag(&self, store: impl AsContext, index: u32) -> Option<Tag> {
        let store = &store.as_context().0.opaque;
        self.inner(store).tags.get(index as usize).map(|at| Tag(Handle::at(store, *at)))
    }

    /// The index in the module of a tag: the first one, if the instance imports the tag more than
    /// once; `None` if the instance does not have the tag.
    pub fn tag_index(&self, store: impl AsContext, tag: &Tag) -> Option<u32> {
        let store = &store.as_context().0.opaque;
        let found = self.inner(store).tags.iter().position(|at| Tag(Handle::at(store, *at)) == *tag);
        found.map(|index| index as u32)
    }

    /// Whether a data segment, by its index in the module, is empty now, because it was copied to a
    /// memory when the instance was made, or because the program has dropped it; `None` if there is
    /// no such segment.
    pub fn is_data_dropped(&self, store: impl AsContext, segment: u32) -> Option<bool> {
        self.inner(&store.as_context().0.opaque).dropped_data.get(segment as usize).copied()
    }

    /// Drops a data segment, by its index in the module, as `data.drop` does; nothing happens if
    /// there is none.
    pub fn drop_data(&self, mut store: impl AsContextMut, segment: u32) {
        let instance = self.inner_mut(&mut store.as_context_mut().into_inner().opaque);
        if let Some(is_dropped) = instance.dropped_data.get_mut(segment as usize) {
            *is_dropped = true;
        }
    }

    /// Whether an element segment, by its index in the module, is empty now: see
    /// [`Instance::is_data_dropped`].
    pub fn are_elements_dropped(&self, store: impl AsContext, segment: u32) -> Option<bool> {
        let instance = self.inner(&store.as_context().0.opaque);
        instance.elements.get(segment as usize).map(|segment| segment.values.is_empty())
    }

    /// Drops an element segment, by its index in the module, as `elem.drop` does; nothing happens
    /// if there is none.
    pub fn drop_elements(&self, mut store: impl AsContextMut, segment: u32) {
        let instance = self.inner_mut(&mut store.as_context_mut().into_inner().opaque);
        if let Some(segment) = instance.elements.get_mut(segment as usize) {
            segment.values = Box::default();
        }
    }

    /// The exported table of this name, or `None` if there is none.
    pub fn get_table(&self, store: impl AsContext, name: &str) -> Option<Table> {
        self.get_export(store, name)?.into_table()
    }

    /// The exported global of this name, or `None` if there is none.
    pub fn get_global(&self, store: impl AsContext, name: &str) -> Option<Global> {
        self.get_export(store, name)?.into_global()
    }

    /// The exported tag of this name, or `None` if there is none.
    pub fn get_tag(&self, store: impl AsContext, name: &str) -> Option<Tag> {
        self.get_export(store, name)?.into_tag()
    }

    /// The instance of a store with this data.
    pub(crate) fn of(store: &StoreOpaque, data: NonNull<InstanceData>) -> Self {
        let index = store.instances.iter().position(|instance| *instance == data);
        Self(Handle::at(store, index.expect("instances stay in their store") as u32))
    }

    #[track_caller]
    fn inner_mut<'a>(&self, store: &'a mut StoreOpaque) -> &'a mut InstanceData {
        let index = self.0.index_in(store);
        // SAFETY: as in `inner`; the store is borrowed exclusively.
        unsafe { store.instances[index].as_mut() }
    }

    #[track_caller]
    pub(crate) fn inner<'a>(&self, store: &'a StoreOpaque) -> &'a InstanceData {
        // SAFETY: instances live as long as their store. They are mutated only while the store is
        // borrowed exclusively.
        unsafe { store.instances[self.0.index_in(store)].as_ref() }
    }
}
