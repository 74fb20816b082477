//! [`AnyStore`]: a store with data of any type.
//!
//! A recording does not use the data of a store. Everything that it does use is accessed through
//! this trait, so that recordings are compiled once, with this crate, and not in every crate that
//! records and for every type of data.

use wasm_jit::{
    AsContext, ExnRef, Func, FuncId, FuncType, Global, GlobalType, Instance, Memory, MemoryType, Module,
    StoreContextMut, Table, TableType, Tag, TagType, Val, WriteLog,
};

/// All handles must belong to this store.
pub(crate) trait AnyStore {
    fn instances(&self) -> Box<dyn ExactSizeIterator<Item = Instance> + '_>;
    fn module(&self, of: Instance) -> &Module;
    fn memory(&self, of: Instance, index: u32) -> Option<Memory>;
    fn table(&self, of: Instance, index: u32) -> Option<Table>;
    fn global(&self, of: Instance, index: u32) -> Option<Global>;
    fn tag(&self, of: Instance, index: u32) -> Option<Tag>;
    fn func(&self, of: Instance, index: u32) -> Option<Func>;
    fn func_index(&self, of: Instance, func: &Func) -> Option<u32>;
    fn import_index(&self, of: Instance, func: &Func) -> Option<u32>;
    fn tag_index(&self, of: Instance, tag: Tag) -> Option<u32>;
    fn is_data_dropped(&self, of: Instance, segment: u32) -> Option<bool>;
    fn are_elements_dropped(&self, of: Instance, segment: u32) -> Option<bool>;

    fn memory_type(&self, of: Memory) -> MemoryType;
    fn pages(&self, of: Memory) -> u64;
    fn bytes(&self, of: Memory) -> &[u8];

    fn table_type(&self, of: Table) -> TableType;
    fn elements(&self, of: Table) -> u64;
    fn element(&mut self, of: Table, index: u64) -> Option<Val>;

    fn global_type(&self, of: Global) -> GlobalType;
    fn value(&mut self, of: Global) -> Val;

    fn func_id(&self, of: &Func) -> FuncId;
    fn func_type(&self, of: &Func) -> FuncType;
    fn is_func_of_type(&self, func: &Func, ty: &FuncType) -> bool;

    fn fields(&mut self, of: &ExnRef) -> Vec<Val>;
    fn tag_of(&self, exception: &ExnRef) -> Tag;
    fn make_tag(&mut self, ty: &TagType) -> Result<Tag, wasm_jit::Error>;

    fn start_log(&mut self) -> WriteLog;
    fn restart_log(&mut self, log: &mut WriteLog);
    fn fuel(&self) -> Result<u64, wasm_jit::Error>;
}

impl<T: 'static> AnyStore for StoreContextMut<'_, T> {
    fn instances(&self) -> Box<dyn ExactSizeIterator<Item = Instance> + '_> {
        Box::new(Instance::all(self))
    }

    fn module(&self, of: Instance) -> &Module {
        of.module(self)
    }

    fn memory(&self, of: Instance, index: u32) -> Option<Memory> {
        of.memory(self, index)
    }

    fn table(&self, of: Instance, index: u32) -> Option<Table> {
        of.table(self, index)
    }

    fn global(&self, of: Instance, index: u32) -> Option<Global> {
        of.global(self, index)
    }

    fn tag(&self, of: Instance, index: u32) -> Option<Tag> {
        of.tag(self, index)
    }

    fn func(&self, of: Instance, index: u32) -> Option<Func> {
        of.func(self, index)
    }

    fn func_index(&self, of: Instance, func: &Func) -> Option<u32> {
        of.func_index(self, func)
    }

    fn import_index(&self, of: Instance, func: &Func) -> Option<u32> {
        of.import_index(self, func)
    }

    fn tag_index(&self, of: Instance, tag: Tag) -> Option<u32> {
        of.tag_index(self, &tag)
    }

    fn is_data_dropped(&self, of: Instance, segment: u32) -> Option<bool> {
        of.is_data_dropped(self, segment)
    }

    fn are_elements_dropped(&self, of: Instance, segment: u32) -> Option<bool> {
        of.are_elements_dropped(self, segment)
    }

    fn memory_type(&self, of: Memory) -> MemoryType {
        of.ty(self)
    }

    fn pages(&self, of: Memory) -> u64 {
        of.size(self)
    }

    fn bytes(&self, of: Memory) -> &[u8] {
        of.data(self)
    }

    fn table_type(&self, of: Table) -> TableType {
        of.ty(self)
    }

    fn elements(&self, of: Table) -> u64 {
        of.size(self)
    }

    fn element(&mut self, of: Table, index: u64) -> Option<Val> {
        of.get(self, index)
    }

    fn global_type(&self, of: Global) -> GlobalType {
        of.ty(self)
    }

    fn value(&mut self, of: Global) -> Val {
        of.get(self)
    }

    fn func_id(&self, of: &Func) -> FuncId {
        of.id(self)
    }

    fn func_type(&self, of: &Func) -> FuncType {
        of.ty(self)
    }

    fn is_func_of_type(&self, func: &Func, ty: &FuncType) -> bool {
        func.is_of_type(self, ty)
    }

    fn fields(&mut self, of: &ExnRef) -> Vec<Val> {
        of.fields(self)
    }

    fn tag_of(&self, exception: &ExnRef) -> Tag {
        exception.tag(self)
    }

    fn make_tag(&mut self, ty: &TagType) -> Result<Tag, wasm_jit::Error> {
        Tag::new(self, ty)
    }

    fn start_log(&mut self) -> WriteLog {
        WriteLog::start(self)
    }

    fn restart_log(&mut self, log: &mut WriteLog) {
        log.restart(self.as_context());
    }

    fn fuel(&self) -> Result<u64, wasm_jit::Error> {
        self.as_context().get_fuel()
    }
}
