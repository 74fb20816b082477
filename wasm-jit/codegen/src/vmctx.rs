//! The contract between compiled code and the runtime: the layout of the memory that both access,
//! and the calling convention.
//!
//! # Registers
//! | register | role |
//! | --- | --- |
//! | `r14` | the running instance's [`VmContext`]; preserved by callees of the same instance |
//! | `r15` | base of its memory 0; preserved likewise |
//! | `rsp`, `rbp` | stack and frame pointer; every frame has one |
//! | `rbx`, `r12`, `r13` | callee-saved |
//! | `r11`, `xmm15` | scratch, not live between two Wasm instructions, except that counting versions keep the address of the counters in `r11` (`compiler/counting/loops.rs`) |
//! | all others | caller-saved |
//!
//! # A call
//! The first integer and reference arguments are in `rdi`, `rsi`, `r8`, `r9`, `rcx` and `rdx`, the
//! first floats and vectors in `xmm0` to `xmm7`; an `i32` is zero-extended to 64 bits, a reference
//! is 64 bits wide. The other arguments are on the stack, eight bytes each, a vector 16, the first
//! at the lowest address, at `[rsp]` when CALL is executed; their total size is rounded up to 16
//! bytes. **The callee removes them** (`ret n`), so that a tail call may have more of them than its
//! caller had. The stack is aligned to 16 bytes at every CALL.
//!
//! The first two integer results are in `rax` and `rdx`, the first two floats or vectors in `xmm0`
//! and `xmm1`. All others are in [`VmStoreContext::results`], the n-th result of the function at
//! index n, where vectors count twice; the caller reads them immediately.
//!
//! A call to a function of the same instance is a direct CALL. All other calls go through a
//! [`VmFuncRef`]: the caller sets `rax` to its own context, `r14` to the callee's, `r15` to
//! `[r14 + MEMORY0]`, calls `[func_ref + 0]`, and restores `r14` from its frame and then `r15`. A
//! host function looks the same: its code is a trampoline, its context a [`VmContext`] head.
//!
//! A tail call to a function of the same instance is a jump, after the frame has been left and the
//! arguments have been moved to where the caller's arguments end. Any other tail call is made by
//! [`Libcall::TailCall`]: the caller's caller may rely on `r14` and `r15`, so they are restored by
//! a *return frame*, which replaces the caller's frame. A tail call by a function that returns to
//! such a frame needs no other one.
//!
//! # A frame
//! ```text
//! [rbp + 16 ...]  arguments on the stack
//! [rbp + 8]       return address
//! [rbp]           the caller's rbp
//! [rbp - 8]       this instance's context
//! [rbp - 16 ...]  rbx, r12, r13, where the function uses them
//! [rbp - 40 ...]  one slot of eight bytes for each local, then for each operand; of 16 bytes in
//!                 functions that use vectors
//! [rsp]           arguments of calls
//! ```
//! From the end of the prologue, `rsp` is `rbp - frame_size`. A stack walk ends at the frame of an
//! entry trampoline: its `rbp` is [`VmStoreContext::activation_fp`].

use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use wasmparser::ValType;

use crate::module::ModuleInfo;

/// Maximum number of results of a function (the limit that wasmparser validates).
pub const MAX_RESULTS: usize = 1000;

/// The quadwords of that many results: a vector has two.
const MAX_RESULT_WORDS: usize = 2 * MAX_RESULTS;

/// State that all instances of a store share with compiled code. It is the head of the runtime's
/// state of a store.
#[repr(C)]
#[derive(Debug)]
pub struct VmStoreContext {
    /// A function whose frame would reach below this address traps.
    pub stack_limit: usize,
    /// The address at which the next object of the heap is allocated. The objects between the start
    /// of the span and this address are complete: compiled code writes an entire object before it
    /// advances this.
    pub heap_next: usize,
    /// The end of the span in which compiled code allocates.
    pub heap_end: usize,
    /// The size of the object for which [`Libcall::MakeRoom`] makes room.
    pub heap_wanted: usize,
    /// Frame pointer of the innermost entry trampoline, or 0.
    pub activation_fp: usize,
    /// Frame pointer of the host trampoline through which the thread left compiled code; set by
    /// that trampoline.
    pub exit_fp: usize,
    /// Program counter at which the thread raised: set by the signal handler, or by the `RAISE`
    /// routine.
    pub raised_pc: usize,
    /// The frame pointer at that point.
    pub raised_fp: usize,
    /// The stack pointer at that point.
    pub raised_sp: usize,
    /// The registers at that point, by their numbers in machine code, if a signal reported them.
    pub raised_registers: [u64; 16],
    /// The address of the memory access that caused the signal.
    pub raised_address: usize,
    /// The signal that was received at that point, or 0.
    pub raised_signal: i32,
    /// An exception that a host function throws, or 0: set before the host function fails, and
    /// reset by the routine that takes it.
    pub thrown: usize,
    /// Results that are not in registers.
    pub results: [u64; MAX_RESULT_WORDS],
    /// Stack pointer of the host trampoline through which the thread left compiled code: the frames
    /// of the activation are between this address and `activation_fp`, whatever stack the host
    /// continues on.
    pub exit_sp: usize,
    /// Distinguishes the stores of the process, including those that have ended.
    pub number: u64,
    /// Requests for an interrupt: there is one if the lower half is not 0. Stubs that call
    /// functions check it after them.
    pub interrupt_requests: *const AtomicU64,
    /// The remaining fuel, in instructions; negative after a trap for lack of fuel. Used only by
    /// code that was compiled to consume fuel.
    pub fuel: i64,
    /// The accessor of the innermost frame that has one, or [`NO_ACCESSOR`].
    pub accessors: *const VmAccessor,
    /// The value for new elements that an array operation of the runtime uses.
    pub element: [u64; 2],
}

/// An accessor of a frame. If it is the first one of its store, the frame's function ends it when
/// it returns. It belongs to the runtime, which clears it when the frame is left in another way.
#[repr(C)]
#[derive(Debug)]
pub struct VmAccessor {
    /// The frame's frame pointer; 0 once the frame has gone.
    pub fp: AtomicUsize,
    /// The accessor of the next frame outwards that has one, or [`NO_ACCESSOR`].
    pub next: AtomicPtr<VmAccessor>,
    /// The frame pointer of the entry trampoline of the frame's activation. Compiled code uses
    /// neither this field nor the next one.
    pub activation_fp: AtomicUsize,
    /// The index of this accessor among those of its store.
    pub index: usize,
}

/// The end of the list of a store's accessors. It is never written, since no frame has the frame
/// pointer 0.
pub static NO_ACCESSOR: VmAccessor = VmAccessor {
    fp: AtomicUsize::new(0),
    next: AtomicPtr::new(std::ptr::null_mut()),
    activation_fp: AtomicUsize::new(0),
    index: usize::MAX,
};

/// Offset of [`VmAccessor::fp`].
pub const ACCESSOR_FP: i32 = offset_of!(VmAccessor, fp) as i32;
/// Offset of [`VmAccessor::next`].
pub const ACCESSOR_NEXT: i32 = offset_of!(VmAccessor, next) as i32;

/// The interrupt requests of a store that cannot be interrupted: always 0.
pub static NO_REQUESTS: AtomicU64 = AtomicU64::new(0);

impl Default for VmStoreContext {
    /// The context of a store in which nothing runs.
    fn default() -> Self {
        Self {
            stack_limit: 0,
            heap_next: 0,
            heap_end: 0,
            heap_wanted: 0,
            activation_fp: 0,
            exit_fp: 0,
            raised_pc: 0,
            raised_fp: 0,
            raised_sp: 0,
            raised_registers: [0; 16],
            raised_address: 0,
            raised_signal: 0,
            thrown: 0,
            results: [0; MAX_RESULT_WORDS],
            exit_sp: 0,
            number: 0,
            interrupt_requests: &raw const NO_REQUESTS,
            fuel: 0,
            accessors: &raw const NO_ACCESSOR,
            element: [0; 2],
        }
    }
}

/// Offset of [`VmStoreContext::stack_limit`].
pub const STACK_LIMIT: i32 = offset_of!(VmStoreContext, stack_limit) as i32;
/// Offset of [`VmStoreContext::activation_fp`].
pub const ACTIVATION_FP: i32 = offset_of!(VmStoreContext, activation_fp) as i32;
/// Offset of [`VmStoreContext::exit_fp`].
pub const EXIT_FP: i32 = offset_of!(VmStoreContext, exit_fp) as i32;
/// Offset of [`VmStoreContext::exit_sp`].
pub const EXIT_SP: i32 = offset_of!(VmStoreContext, exit_sp) as i32;
/// Offset of [`VmStoreContext::results`].
pub const RESULTS: i32 = offset_of!(VmStoreContext, results) as i32;

/// Offset of [`VmStoreContext::number`].
pub const STORE_NUMBER: i32 = offset_of!(VmStoreContext, number) as i32;
/// Offset of [`VmStoreContext::fuel`].
pub const FUEL: i32 = offset_of!(VmStoreContext, fuel) as i32;
/// Offset of [`VmStoreContext::accessors`].
pub const ACCESSORS: i32 = offset_of!(VmStoreContext, accessors) as i32;

/// Offset of [`VmStoreContext::heap_next`].
pub const HEAP_NEXT: i32 = offset_of!(VmStoreContext, heap_next) as i32;
/// Offset of [`VmStoreContext::heap_end`].
pub const HEAP_END: i32 = offset_of!(VmStoreContext, heap_end) as i32;
/// Offset of [`VmStoreContext::heap_wanted`].
pub const HEAP_WANTED: i32 = offset_of!(VmStoreContext, heap_wanted) as i32;
/// Offset of [`VmStoreContext::element`].
pub const ELEMENT: i32 = offset_of!(VmStoreContext, element) as i32;

/// Offset of [`VmStoreContext::interrupt_requests`].
pub const INTERRUPT_REQUESTS: i32 = offset_of!(VmStoreContext, interrupt_requests) as i32;
/// The byte after a UD2 that a stub executes if an interrupt is requested. Execution continues
/// after it if the request has been withdrawn.
pub const INTERRUPT_CHECK: u8 = 0xff;

/// The head of the structure that `r14` points to. For an instance, the parts placed by
/// [`VmLayout`] follow; a host function has only the head.
#[repr(C)]
#[derive(Debug)]
pub struct VmContext {
    /// The state that the instances of the store share.
    pub store: *mut VmStoreContext,
    /// Base of memory 0; arbitrary if there is none. It never moves.
    pub memory0: *mut u8,
    /// The addresses of the routines, in the order of [`Libcall`].
    pub libcalls: *const usize,
    /// A reference to each function of the module, imports first.
    pub func_refs: *mut VmFuncRef,
    /// Owned by the runtime: the instance, or the host function.
    pub owner: *mut (),
    /// The kind of `owner`, for the runtime: 0 for an instance, 1 for a host function.
    pub is_host: usize,
}

/// Offset from the context, before which it lies, of the address of the instance's counters:
/// quadwords that stubs and counting versions add to. It is not read before there is one of them.
pub const COUNTERS: i32 = -8;
/// Offset of a quadword before the context, in which versions with sites keep an operand that would
/// otherwise be in no register or slot, from a site until its instruction has been executed.
pub const SETTLED: i32 = -16;
/// Offset of the instance's number before the context: 64 bits that are unique in the process, even
/// after the instance has ended.
pub const INSTANCE_NUMBER: i32 = -24;
/// Offset of the address of the store's cursors before the context: for each recorder, the address
/// of the next record in its buffer for this store. It is initially that of [`NO_CURSORS`]; a stub
/// that finds no room there calls the runtime, which sets it.
pub const CURSORS: i32 = -32;
/// The number of bytes before the context in which these quadwords are.
pub const IN_FRONT: usize = 32;
/// The size of a buffer for records in bytes, and its alignment. A cursor that is a multiple of
/// this means that there is no room for a record.
pub const BUFFER_BYTES: usize = 16 << 10;
/// The number of recorders that a process can have at a time. The stubs of this many recorders take
/// more memory than a module may keep for removed probes, so recorders of removed probes end before
/// the limit is reached.
pub const MAX_RECORDERS: usize = 8192;
/// The cursors of stores without buffers.
pub static NO_CURSORS: [AtomicUsize; MAX_RECORDERS] = [const { AtomicUsize::new(0) }; MAX_RECORDERS];
/// Offset of [`VmContext::store`].
pub const STORE: i32 = offset_of!(VmContext, store) as i32;
/// Offset of [`VmContext::memory0`].
pub const MEMORY0: i32 = offset_of!(VmContext, memory0) as i32;
/// Offset of [`VmContext::libcalls`].
pub const LIBCALLS: i32 = offset_of!(VmContext, libcalls) as i32;
/// Offset of [`VmContext::func_refs`].
pub const FUNC_REFS: i32 = offset_of!(VmContext, func_refs) as i32;
/// Size of a [`VmContext`].
pub const HEAD: u32 = size_of::<VmContext>() as u32;

/// A function as a value: tables and `ref.func` hold its address. Null is address 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VmFuncRef {
    /// The address that a call jumps to.
    pub code: *const u8,
    /// The callee's context.
    pub context: *mut VmContext,
    /// The function's type.
    pub ty: *const VmType,
    /// The function's index in the module of its context, or 0 for a host function.
    pub index: u64,
}

/// Offset of [`VmFuncRef::code`].
pub const FUNC_REF_CODE: i32 = offset_of!(VmFuncRef, code) as i32;
/// Offset of [`VmFuncRef::context`].
pub const FUNC_REF_CONTEXT: i32 = offset_of!(VmFuncRef, context) as i32;
/// Offset of [`VmFuncRef::ty`].
pub const FUNC_REF_TYPE: i32 = offset_of!(VmFuncRef, ty) as i32;
/// Size of a [`VmFuncRef`].
pub const FUNC_REF_SIZE: i32 = size_of::<VmFuncRef>() as i32;
const _: () = assert!(FUNC_REF_SIZE == 32);

/// A function type or object type that the engine knows. The first quadword of an object of the
/// heap is the address of its type. Equal types, whichever module they come from, have one
/// `VmType`. It lives as long as something uses the type.
#[repr(C)]
#[derive(Debug)]
pub struct VmType {
    /// The types that this one is a subtype of, each at the index of its depth, and the type itself
    /// at its own depth; null beyond that. A type is therefore `T`, or a subtype of `T`, exactly if
    /// the entry at the depth of `T` is `T`.
    pub ancestors: [*const Self; NEAR_ANCESTORS],
    /// The entries at greater depths, up to that of the type itself.
    pub far_ancestors: *const *const Self,
    /// The number of types that this one is a subtype of, other than itself.
    pub depth: u32,
    /// What the type describes.
    pub kind: VmKind,
    /// The engine-wide id of the type.
    pub id: u32,
}

impl VmType {
    /// Whether this type is `of`, or a subtype of it.
    pub fn is(&self, of: &Self) -> bool {
        let (depth, of) = (of.depth as usize, std::ptr::from_ref(of));
        match self.ancestors.get(depth) {
            Some(ancestor) => *ancestor == of,
            // SAFETY: a type has the entries up to its own depth, and owns them.
            None if depth <= self.depth as usize => unsafe {
                *self.far_ancestors.add(depth - NEAR_ANCESTORS) == of
            },
            None => false,
        }
    }
}

/// The number of ancestors that can be read without comparing the depth of the type.
pub const NEAR_ANCESTORS: usize = 8;

/// What a type describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum VmKind {
    /// Functions.
    Func,
    /// Structures.
    Struct,
    /// Arrays.
    Array,
}

/// Offset of [`VmType::far_ancestors`].
pub const TYPE_FAR_ANCESTORS: i32 = offset_of!(VmType, far_ancestors) as i32;
/// Offset of [`VmType::depth`].
pub const TYPE_DEPTH: i32 = offset_of!(VmType, depth) as i32;
/// Offset of [`VmType::kind`].
pub const TYPE_KIND: i32 = offset_of!(VmType, kind) as i32;

/// A memory as an instance sees it. The base never moves. For code that does not check bounds, the
/// full range that an access can name is reserved (8 GiB for the index and the offset, and a
/// guard).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VmMemory {
    /// The address of the memory's first byte.
    pub base: *mut u8,
    /// The address of the memory's length in bytes, a multiple of its page size.
    pub length: *const AtomicU64,
}

/// Offset of [`VmMemory::base`].
pub const MEMORY_BASE: i32 = offset_of!(VmMemory, base) as i32;
/// Offset of [`VmMemory::length`].
pub const MEMORY_LENGTH: i32 = offset_of!(VmMemory, length) as i32;

/// A table; an instance has its address. An element is a reference of eight bytes: the address of a
/// [`VmFuncRef`], an `externref` or an `exnref` as the runtime represents them; null is 0.
#[repr(C)]
#[derive(Debug)]
pub struct VmTable {
    /// The address of the table's first element.
    pub elements: *mut u64,
    /// The number of elements.
    pub length: u64,
}

/// Offset of [`VmTable::elements`].
pub const TABLE_ELEMENTS: i32 = offset_of!(VmTable, elements) as i32;
/// Offset of [`VmTable::length`].
pub const TABLE_LENGTH: i32 = offset_of!(VmTable, length) as i32;

/// An exception: an `exnref` is its address.
#[repr(C)]
#[derive(Debug)]
pub struct VmException {
    /// The identity of the exception's tag: the value at [`VmLayout::tag`] for that tag.
    pub tag: usize,
    /// The number of quadwords in `values`.
    pub count: u64,
    /// The values, eight bytes each, a vector 16.
    pub values: [u64; 0],
}

/// Offset of [`VmException::values`].
pub const EXCEPTION_VALUES: i32 = offset_of!(VmException, values) as i32;

/// Offsets from `r14` of the parts of an instance that follow the head of its context.
#[derive(Clone, Debug)]
pub struct VmLayout {
    memories: u32,
    tables: u32,
    globals: u32,
    /// Bytes of a global: 16 if one of the module's is a vector.
    global_size: u32,
    tags: u32,
    types: u32,
    /// The size of the context, with its head, in bytes.
    pub size: u32,
}

impl VmLayout {
    /// The layout of the instances of a module.
    pub fn new(module: &ModuleInfo) -> Self {
        let memories = HEAD;
        let tables = memories + 16 * module.memories.len() as u32;
        let globals = tables + 8 * module.tables.len() as u32;
        let has_vector = module.globals.iter().any(|global| global.content_type == ValType::V128);
        let global_size = if has_vector { 16 } else { 8 };
        let tags = globals + global_size * module.globals.len() as u32;
        let types = tags + 8 * module.tags.len() as u32;
        let size = types + 8 * module.types.len() as u32;
        Self { memories, tables, globals, global_size, tags, types, size }
    }

    /// The offset of a memory's [`VmMemory`].
    pub fn memory(&self, index: u32) -> i32 {
        (self.memories + 16 * index) as i32
    }

    /// The offset of the address of a table's [`VmTable`].
    pub fn table(&self, index: u32) -> i32 {
        (self.tables + 8 * index) as i32
    }

    /// The offset of a global: for an imported one, of the address of its value; for one that the
    /// module defines, of the value itself (eight bytes, an `i32` or `f32` in the lower four, the
    /// upper four zero; a vector has 16 bytes).
    pub fn global(&self, index: u32) -> i32 {
        (self.globals + self.global_size * index) as i32
    }

    /// The offset of the identity of a tag: a number other than 0 that is the same for this tag in
    /// every instance of the store that has it.
    pub fn tag(&self, index: u32) -> i32 {
        (self.tags + 8 * index) as i32
    }

    /// The offset of the address of the [`VmType`] of a type of the module.
    pub fn ty(&self, index: u32) -> i32 {
        (self.types + 8 * index) as i32
    }
}

/// The result of a fallible libcall, in `rax` and `rdx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The return value.
    pub value: u64,
    /// 0, or 1 if the libcall failed: then the reason is recorded in the store, and compiled code
    /// calls [`Libcall::Raise`].
    pub failed: u64,
}

/// Routines of the runtime that compiled code calls through the table in its context.
///
/// Unless stated otherwise, they are `extern "sysv64"` functions of 64-bit integers (an `i32` is
/// zero-extended). The first argument is the context, `two(a, b)` is `a | b << 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Libcall {
    /// `(context, memory, pages) -> Answer`: the old size in pages, or `u32::MAX` (`u64::MAX` for a
    /// 64-bit memory).
    MemoryGrow,
    /// `(context, two(to_memory, from_memory), to, from, length) -> Answer`
    MemoryCopy,
    /// `(context, memory, to, byte, length) -> Answer`
    MemoryFill,
    /// `(context, two(memory, segment), to, from, length) -> Answer`
    MemoryInit,
    /// `(context, segment)`
    DataDrop,
    /// `(context, table, value, elements) -> Answer`: the old size, or `u32::MAX` (`u64::MAX` for a
    /// 64-bit table).
    TableGrow,
    /// `(context, table, at, value, length) -> Answer`
    TableFill,
    /// `(context, two(to_table, from_table), to, from, length) -> Answer`
    TableCopy,
    /// `(context, two(table, segment), to, from, length) -> Answer`
    TableInit,
    /// `(context, segment)`
    ElemDrop,
    /// `(context, memory, address, expected, timeout in ns or negative) -> Answer`: the address
    /// includes the offset; it may be beyond the memory, and misaligned.
    AtomicWait32,
    /// As `AtomicWait32`, for 64 bits.
    AtomicWait64,
    /// `(context, memory, address, count) -> Answer`
    AtomicNotify,
    /// `(context, tag index, values: *const u64) -> u64`: the address of a new [`VmException`], or
    /// 0 if it cannot be allocated: the reason is recorded in the store, and is reported by the
    /// trap that throwing 0 causes.
    NewException,
    /// `(context, type index) -> Answer`: the address of a new structure, all fields of which are 0
    /// or null.
    StructNew,
    /// `(context, type index, length) -> Answer`: the address of a new array, whose elements are
    /// [`VmStoreContext::element`].
    ArrayNew,
    /// `(context, two(type index, segment), from, length) -> Answer`: the address of a new array,
    /// with elements from a data segment.
    ArrayNewData,
    /// As `ArrayNewData`, from an element segment.
    ArrayNewElem,
    /// `(context, type index, array, at, length) -> Answer`: the elements become
    /// [`VmStoreContext::element`].
    ArrayFill,
    /// `(context, to_array, to, from_array, from) -> Answer`: the length is in
    /// [`VmStoreContext::element`]. Both arrays have the types of the instruction.
    ArrayCopy,
    /// `(context, two(type index, segment), array, at, from) -> Answer`: from a data segment; the
    /// length is in [`VmStoreContext::element`].
    ArrayInitData,
    /// As `ArrayInitData`, from an element segment.
    ArrayInitElem,
    /// Not a function of the C convention: makes room for an object of
    /// [`VmStoreContext::heap_wanted`] bytes at [`VmStoreContext::heap_next`]. Preserves all
    /// registers except `r11`, which becomes 0, or 1 if there is no room: then the reason is
    /// recorded in the store, and compiled code calls `Raise`.
    MakeRoom,
    /// Not a function of the C convention: `rdi` is an exception (or 0, which traps: null
    /// reference). Continues at its handler, or leaves the activation. The frame is `rbp`, the
    /// program counter is the return address. Never returns.
    Throw,
    /// With the convention of `Throw`: leaves the activation for the reason that a failed libcall
    /// has recorded. Never returns.
    Raise,
    /// With the convention of `Throw`: acts as `Raise` or `Throw`, depending on the host function's
    /// failure. Called by host trampolines only.
    RaiseFromHost,
    /// `(context, function index) -> Continue`: compiles a function that is called for the first
    /// time. The address is 0 if that failed: then the reason is recorded in the store. Called only
    /// by entries of such functions.
    CompileFunction,
    /// Not a function of the C convention: the end of a tail call to a function of another instance
    /// or to a host function. It is jumped to with the address of the callee's [`VmFuncRef`] in
    /// `r10`, the size of its arguments on the stack, at `[rsp]`, in `rax`, and that of the
    /// caller's in `r11`. `rbp` and `r14` are the caller's, whose callee-saved registers have been
    /// restored.
    TailCall,
}

/// The number of libcalls.
pub const LIBCALLS_COUNT: usize = Libcall::TailCall as usize + 1;

/// Reasons for explicit traps of compiled code: the byte after UD2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TrapCode {
    /// `unreachable` was executed.
    Unreachable,
    /// The frame would reach below the stack limit.
    StackOverflow,
    /// A table operation reached beyond the table.
    TableOutOfBounds,
    /// `call_indirect`: index out of bounds.
    UndefinedElement,
    /// `call_indirect` to a null element.
    UninitializedElement,
    /// `call_indirect` to a function of another type.
    IndirectCallType,
    /// A reference that must not be null is null.
    NullReference,
    /// A float is too large for the integer type.
    IntegerOverflow,
    /// NaN was converted to an integer.
    InvalidConversion,
    /// An atomic access at an address that its width does not divide.
    UnalignedAtomic,
    /// A constant divisor is zero.
    IntegerDivisionByZero,
    /// An access reached beyond the memory.
    MemoryOutOfBounds,
    /// The fuel does not suffice for the next instructions.
    OutOfFuel,
    /// `ref.cast`: the reference is of another type.
    CastFailure,
    /// An access reached beyond the array.
    ArrayOutOfBounds,
}

impl TrapCode {
    /// All codes, by their numbers.
    pub const ALL: [Self; 15] = [
        Self::Unreachable,
        Self::StackOverflow,
        Self::TableOutOfBounds,
        Self::UndefinedElement,
        Self::UninitializedElement,
        Self::IndirectCallType,
        Self::NullReference,
        Self::IntegerOverflow,
        Self::InvalidConversion,
        Self::UnalignedAtomic,
        Self::IntegerDivisionByZero,
        Self::MemoryOutOfBounds,
        Self::OutOfFuel,
        Self::CastFailure,
        Self::ArrayOutOfBounds,
    ];
}

// Traps that the hardware detects, without checks in compiled code:
// - SIGSEGV at FUNC_REF_CONTEXT: a null reference was called by `call_ref`, which reads the context
//   first. At another address below FUNC_REF_SIZE: a null element was called by `call_indirect`,
//   which reads the type first. Elsewhere: memory out of bounds.
// - SIGFPE (DIV and IDIV): division by zero if the divisor is zero, else integer overflow.
// - SIGILL (UD2): the byte after it is a TrapCode.
