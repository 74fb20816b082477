//! Instantiation of modules.
//!
//! 1. *Link*: every import is matched with the supplied item, which must have a compatible type.
//! 2. *Allocate*: the module's own memories, tables, globals and tags are added to the store, all
//!    or none; the context is filled in.
//! 3. *Initialize*: globals in order, then elements of tables whose initial value is not null, then
//!    the values of element segments; then active element segments are copied to their tables,
//!    active data segments to their memories. A segment that does not fit traps; earlier writes
//!    remain.
//! 4. *Start*: the start function is called ([`start`]).

use std::io;
use std::ptr::NonNull;

use super::activation;
use super::collect::From;
use super::externs::Extern;
use super::func::Func;
use super::global::GlobalData;
use super::instance::{ContextBlock, ElementValues, Instance, InstanceData};
use super::libcalls;
use super::memory::Memory;
use super::objects::Room;
use super::observe::WriteAnnouncer;
use super::redirect;
use super::store::{Handle, StoreInner, StoreOpaque};
use super::table::Table;
use super::tag::{Tag, TagData};
use crate::code::probed::counters::{Joining, StoreRef};
use crate::error::{Error, Mismatch};
use crate::linear_memory;
use crate::module::{ConstExpr, ConstSource, Elements, Module, NewElements, SegmentMode};
use crate::trap;
use crate::types::{GlobalType, MemoryType, TableType};
use crate::vmctx::{VmContext, VmFuncRef, VmLayout, VmMemory, VmTable, VmType};

/// All steps.
pub(crate) fn instantiate<T: 'static>(
    store: &mut StoreInner<T>,
    module: &Module,
    imports: &[Extern],
) -> Result<Instance, Error> {
    let instance = instantiate_unstarted(store, module, imports)?;
    start(store, instance)?;
    Ok(instance)
}

/// All steps but the last.
pub(crate) fn instantiate_unstarted<T: 'static>(
    store: &mut StoreInner<T>,
    module: &Module,
    imports: &[Extern],
) -> Result<Instance, Error> {
    let opaque = &mut store.opaque;
    assert!(opaque.engine.same(module.engine()), "a module was instantiated in a store of another engine");
    opaque.limits.check_instances(opaque.instances.len())?;
    check_imports(opaque, module, imports)?;
    let before = opaque.sizes();
    let data = match allocate(opaque, module, imports) {
        Ok(data) => data,
        Err(error) => {
            opaque.shrink_to(before);
            return Err(error);
        }
    };
    opaque.instances.push(data);
    let instance = Instance(Handle::at(opaque, opaque.instances.len() as u32 - 1));
    // SAFETY: just created; the store keeps it alive.
    unsafe { fill_context(opaque, data) };
    if store.observers.is_some() {
        redirect::extend(store)?;
    }
    initialize(&mut store.opaque, data)?;
    Ok(instance)
}

/// Calls the start function of an instance, if its module has one. If that is a host function, the
/// instance is its caller.
pub(crate) fn start<T: 'static>(store: &mut StoreInner<T>, instance: Instance) -> Result<(), Error> {
    let opaque = &mut store.opaque;
    let inner = instance.inner(opaque);
    let Some(start) = inner.module.parsed().start else { return Ok(()) };
    let func = Func::at(opaque, inner.func_ref(start));
    let data = opaque.instances[instance.0.index_in(opaque)];
    // SAFETY: instance and function belong to this store; a start function has neither parameters
    // nor results.
    unsafe { activation::invoke_from(store, func, Some(data), [].as_mut_ptr()) }
}

fn check_imports(store: &StoreOpaque, module: &Module, imports: &[Extern]) -> Result<(), Error> {
    let wanted = &module.parsed().imports;
    if wanted.len() != imports.len() {
        return Err(Error::ImportCount { expected: wanted.len(), found: imports.len() });
    }
    for (import, given) in wanted.iter().zip(imports) {
        if !given.belongs_to(store) {
            return Err(Error::WrongStore { what: "definition of an import" });
        }
        if !given.matches(store, module, import.item) {
            let types = Mismatch { expected: module.type_of(import.item), found: given.current_type(store) };
            return Err(Error::IncompatibleImport {
                module: import.module.to_string(),
                name: import.name.to_string(),
                types: Box::new(types),
            });
        }
    }
    Ok(())
}

/// Creates the instance and its items, not initialized yet.
fn allocate(
    store: &mut StoreOpaque,
    module: &Module,
    imports: &[Extern],
) -> Result<NonNull<InstanceData>, Error> {
    let info = module.info();
    let (mut memories, mut tables, mut globals, mut tags) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut func_refs = Vec::with_capacity(info.functions.len());
    for import in imports {
        match import {
            // SAFETY: functions live as long as their store, and do not change.
            Extern::Func(func) => func_refs.push(unsafe { *func.vm() }),
            Extern::Memory(memory) => memories.push(memory.0.index_in(store) as u32),
            Extern::SharedMemory(memory) => memories.push(store.add_memory(memory.0.clone())),
            Extern::Table(table) => tables.push(table.0.index_in(store) as u32),
            Extern::Global(global) => globals.push(global.0.index_in(store) as u32),
            Extern::Tag(tag) => tags.push(tag.0.index_in(store) as u32),
        }
    }
    let has_reservation = |index: &u32| store.memories[*index as usize].is_reserved();
    let fits = |(number, index)| info.checks_bounds(number) || has_reservation(index);
    if !(0..).zip(&memories).all(fits) {
        return Err(linear_memory::not_reserved(io::ErrorKind::OutOfMemory.into()));
    }
    for ty in &info.memories[memories.len()..] {
        memories.push(store.create_memory(MemoryType::of(*ty))?);
    }
    for ty in &info.tables[tables.len()..] {
        tables.push(store.create_table(TableType::of(*ty, info), 0)?);
    }
    let layout = VmLayout::new(info);
    let number = store.id.number();
    let of_store = StoreRef { number, state: store.area.cast(), code_in_use: trap::code_in_use };
    let no_counters = |source| Error::memory("the counters of probes", source);
    let mut joining = Joining::of(module.code());
    let block = joining.make(|counters| ContextBlock::new(&layout, counters));
    let mut block = block.map_err(no_counters)?;
    // SAFETY: the instance has this and the block, and drops this first; the store's state is the
    // head of its area, which it frees after its instances.
    let counting = unsafe { joining.join(of_store, block.counters()) }.map_err(no_counters)?;
    block.set_number(counting.instance().number());
    for (number, ty) in info.globals.iter().enumerate().skip(globals.len()) {
        let cell = block.at(layout.global(number as u32));
        globals.push(store.add_global(GlobalData::of_instance(GlobalType::of(*ty, info), cell)));
    }
    for ty in &info.tags[tags.len()..] {
        // A tag has no results.
        let words = module.func_type(*ty).value_words();
        let (type_id, values) = (module.type_id(*ty), words as u32);
        tags.push(store.add_tag(TagData { type_id: type_id.clone(), values }));
    }
    let context = block.context();
    for index in info.imported_functions..info.functions.len() as u32 {
        let ty = &raw const module.object_type(info.functions[index as usize]).vm;
        func_refs.push(VmFuncRef { code: module.code().entry(index), context, ty, index: index.into() });
    }
    let parsed = module.parsed();
    let elements =
        parsed.elements.iter().map(|segment| ElementValues { ty: segment.ty, values: Box::default() });
    let instance = InstanceData {
        module: module.clone(),
        counting,
        block,
        func_refs: NonNull::from(Box::leak(func_refs.into_boxed_slice())),
        memories: memories.into(),
        tables: tables.into(),
        globals: globals.into(),
        tags: tags.into(),
        dropped_data: vec![false; parsed.data.len()].into(),
        elements: elements.collect(),
    };
    Ok(NonNull::from(Box::leak(Box::new(instance))))
}

/// Writes the fields that compiled code reads.
///
/// # Safety
/// The instance belongs to the store, and nothing else uses it.
unsafe fn fill_context(store: &StoreOpaque, instance: NonNull<InstanceData>) {
    // SAFETY: the caller's obligation.
    let data = unsafe { instance.as_ref() };
    let (block, info) = (&data.block, data.module.info());
    let layout = VmLayout::new(info);
    let memory = |index: &u32| {
        let memory = &store.memories[*index as usize];
        VmMemory { base: memory.base(), length: memory.length_cell() }
    };
    let head = VmContext {
        store: store.vm(),
        memory0: data.memories.first().map_or(std::ptr::null_mut(), |index| memory(index).base),
        libcalls: libcalls::table(),
        func_refs: data.func_refs.as_ptr().cast(),
        owner: instance.as_ptr().cast(),
        is_host: 0,
    };
    // SAFETY: `at` returns addresses in the block, which the instance owns; they are aligned as in
    // the layout.
    unsafe {
        block.at::<VmContext>(0).write(head);
        for (number, index) in data.memories.iter().enumerate() {
            block.at::<VmMemory>(layout.memory(number as u32)).write(memory(index));
        }
        for (number, index) in data.tables.iter().enumerate() {
            let vm: NonNull<VmTable> = store.tables[*index as usize].vm;
            block.at::<NonNull<VmTable>>(layout.table(number as u32)).write(vm);
        }
        for (number, index) in data.globals.iter().take(info.imported_globals as usize).enumerate() {
            let cell: NonNull<u64> = store.globals[*index as usize].cell;
            block.at::<NonNull<u64>>(layout.global(number as u32)).write(cell);
        }
        for (number, index) in data.tags.iter().enumerate() {
            let identity = Tag(Handle::at(store, *index)).identity(store);
            block.at::<usize>(layout.tag(number as u32)).write(identity);
        }
        for number in 0..info.types.len() as u32 {
            block.at::<*const VmType>(layout.ty(number)).write(&raw const data.module.object_type(number).vm);
        }
    }
}

/// The values to which constant expressions of an instance refer.
struct Source<'a> {
    store: &'a mut StoreOpaque,
    instance: NonNull<InstanceData>,
}

impl Source<'_> {
    fn instance(&self) -> &InstanceData {
        // SAFETY: instances live as long as their store, and nothing writes this one during the
        // borrow.
        unsafe { self.instance.as_ref() }
    }

    /// The value of an expression.
    fn evaluate(&mut self, expr: &ConstExpr) -> Result<u128, Error> {
        expr.evaluate(self)
    }
}

impl ConstSource for Source<'_> {
    fn global(&self, index: u32) -> u128 {
        self.store.globals[self.instance().globals[index as usize] as usize].raw()
    }

    fn func(&self, index: u32) -> u64 {
        self.instance().func_ref(index).as_ptr().expose_provenance() as u64
    }

    fn fields(&self, ty: u32) -> usize {
        self.instance().module.info().struct_layout(ty).fields.len()
    }

    fn new_struct(&mut self, ty: u32, fields: &[u128], stack: &[u128]) -> Result<u64, Error> {
        let module = self.instance().module.clone();
        let room = Room { from: From::Host, values: stack };
        let object = self.store.new_struct(module.object_type(ty), room)?;
        for (field, value) in module.info().struct_layout(ty).fields.iter().zip(fields) {
            // SAFETY: the structure has this field, and validation says that the value is of its
            // type.
            unsafe { object.write(field.offset as usize, field.storage.bytes(), *value) };
        }
        Ok(object.address() as u64)
    }

    fn new_array(&mut self, ty: u32, elements: NewElements<'_>, stack: &[u128]) -> Result<u64, Error> {
        let module = self.instance().module.clone();
        let length = match elements {
            NewElements::Same(_, length) => length,
            NewElements::Values(values) => values.len() as u32,
        };
        let room = Room { from: From::Host, values: stack };
        let array = self.store.new_array(module.object_type(ty), length, room)?;
        let bytes = module.info().array_element(ty).bytes();
        let put = |at: u32, count: u32, value: u128| {
            // SAFETY: the array has these elements, and validation says that the values are of
            // their type.
            unsafe { array.fill(at, count, bytes, value) };
        };
        match elements {
            NewElements::Same(value, length) => put(0, length, value),
            NewElements::Values(values) => (0..).zip(values).for_each(|(at, value)| put(at, 1, *value)),
        }
        Ok(array.address() as u64)
    }
}

/// Initializes the items of an instance. A value is stored in its item before the next expression
/// is evaluated, which may collect.
fn initialize(store: &mut StoreOpaque, mut instance: NonNull<InstanceData>) -> Result<(), Error> {
    // The module is shared, so that it can be read while the instance is written.
    // SAFETY: instances live as long as their store, and nothing runs in this one yet.
    let module = unsafe { instance.as_ref() }.module.clone();
    let parsed = module.parsed();
    for (number, expr) in parsed.globals.iter().enumerate() {
        let value = Source { store, instance }.evaluate(expr)?;
        // SAFETY: as above.
        let global = unsafe { instance.as_ref() }.globals[module.info().imported_globals as usize + number];
        store.globals[global as usize].set_raw(value);
    }
    let own_tables = parsed.tables.iter().zip(module.info().imported_tables..);
    for (init, number) in own_tables {
        if let Some(init) = init {
            let value = Source { store, instance }.evaluate(init)? as u64;
            // SAFETY: as above.
            let table = unsafe { instance.as_ref() }.tables[number as usize];
            store.tables[table as usize].fill(value);
        }
    }
    // If a segment does not fit, functions that are already in an imported table may still use the
    // remaining segments.
    for (number, segment) in parsed.elements.iter().enumerate() {
        if !matches!(segment.mode, SegmentMode::Declared) {
            let mut source = Source { store, instance };
            match &segment.items {
                Elements::Functions(functions) => {
                    let values = functions.iter().map(|index| source.func(*index)).collect();
                    // SAFETY: as above; nothing borrows the instance here.
                    unsafe { instance.as_mut() }.elements[number].values = values;
                }
                Elements::Expressions(expressions) => {
                    // SAFETY: as above.
                    unsafe { instance.as_mut() }.elements[number].values = vec![0; expressions.len()].into();
                    for (at, expr) in expressions.iter().enumerate() {
                        let value = source.evaluate(expr)? as u64;
                        // SAFETY: as above.
                        unsafe { instance.as_mut() }.elements[number].values[at] = value;
                    }
                }
            }
        }
    }
    for (number, segment) in parsed.elements.iter().enumerate() {
        if let SegmentMode::Active { target, offset } = &segment.mode {
            let at = Source { store, instance }.evaluate(offset)? as u64;
            // SAFETY: as above; nothing else borrows the instance here.
            let instance = unsafe { instance.as_mut() };
            let (table, values) = (instance.tables[*target as usize], &mut instance.elements[number].values);
            let length = values.len() as u64;
            store.tables[table as usize].range_mut(at, length)?.copy_from_slice(values);
            *values = Box::default();
            // The table may be imported by another instance, which is recorded.
            store.writes.add_elements(Table(Handle::at(store, table)), at, length);
        }
    }
    for (number, segment) in parsed.data.iter().enumerate() {
        if let SegmentMode::Active { target, offset } = &segment.mode {
            let at = Source { store, instance }.evaluate(offset)? as u64;
            // SAFETY: as above.
            let memory = unsafe { instance.as_ref() }.memories[*target as usize];
            let bytes = &module.bytes()[segment.range.clone()];
            // As for the table.
            WriteAnnouncer::of(store, Memory(Handle::at(store, memory))).write(at as usize, bytes.len());
            libcalls::write_memory(&store.memories[memory as usize], at, bytes)?;
            // SAFETY: as above; nothing borrows the instance here.
            unsafe { instance.as_mut() }.dropped_data[number] = true;
        }
    }
    Ok(())
}
