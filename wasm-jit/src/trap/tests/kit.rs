//! Hand-assembled functions, with the frames and the convention of [`vmctx`](crate::vmctx), and a
//! store to run them in.

use std::arch::naked_asm;
use std::mem::offset_of;
use std::sync::Arc;

use bytes::Bytes;
use iced_x86::BlockEncoderOptions;
use iced_x86::code_asm::*;
use wasm_jit_codegen::{Catch, Chunk, CompiledFunction, DirectCall, ModuleInfo, TryRegion};

use crate::code::{CodeImage, link::ImageLinker};
use crate::trap::{DEFAULT_SIGNAL, ExecutionState, Raised, enter, routine};
use crate::vmctx::{
    ACTIVATION_FP, EXIT_FP, INSTANCE_NUMBER, LIBCALLS, LIBCALLS_COUNT, Libcall, MEMORY0, STORE, VmContext,
    VmException, VmLayout, VmMemory,
};

pub(super) const FRAME: u32 = 64;
/// The identities of the two tags of the kit's module.
pub(super) const TAGS: [usize; 2] = [101, 102];

/// A function being assembled: the kit adds a prologue before and an epilogue after the test's
/// code.
pub(super) struct Function {
    pub asm: CodeAssembler,
    calls: Vec<(CodeLabel, u32)>,
    regions: Vec<Try>,
    handlers: Vec<CodeLabel>,
}

/// A try region between two labels, its catches with their handlers' numbers.
struct Try {
    start: CodeLabel,
    end: CodeLabel,
    parent: Option<u32>,
    catches: Vec<(Option<u32>, usize)>,
}

impl Function {
    /// CALL of another function.
    pub(super) fn call(&mut self, function: u32) {
        self.asm.call(0x10_0000).unwrap();
        let mut after = self.asm.create_label();
        self.asm.set_label(&mut after).unwrap();
        self.asm.zero_bytes().unwrap();
        self.calls.push((after, function));
    }

    /// CALL of a libcall.
    pub(super) fn libcall(&mut self, libcall: Libcall) {
        self.asm.mov(rax, qword_ptr(r14 + LIBCALLS)).unwrap();
        self.asm.call(qword_ptr(rax + 8 * libcall as i32)).unwrap();
    }

    /// CALL of the function with this context, as in compiled code.
    pub(super) fn call_host(&mut self, host: &HostFunction) {
        let asm = &mut self.asm;
        asm.mov(rax, r14).unwrap();
        asm.mov(r14, host as *const HostFunction as u64).unwrap();
        asm.mov(rcx, host_trampoline as *const () as u64).unwrap();
        asm.call(rcx).unwrap();
        asm.mov(r14, qword_ptr(rbp - 8)).unwrap();
        asm.mov(r15, qword_ptr(r14 + MEMORY0)).unwrap();
    }

    pub(super) fn label(&mut self) -> CodeLabel {
        let mut label = self.asm.create_label();
        self.asm.set_label(&mut label).unwrap();
        self.asm.zero_bytes().unwrap();
        label
    }

    /// Starts the next handler; they are numbered from 0.
    pub(super) fn handler(&mut self) {
        let label = self.label();
        self.handlers.push(label);
    }

    /// Puts `body` into a try region. Control continues after it.
    pub(super) fn try_region(
        &mut self,
        parent: Option<u32>,
        catches: &[(Option<u32>, usize)],
        body: impl FnOnce(&mut Self),
    ) {
        let start = self.label();
        let number = self.regions.len();
        self.regions.push(Try { start, end: start, parent, catches: catches.to_vec() });
        body(self);
        self.regions[number].end = self.label();
    }
}

/// Adds a test's code to a function.
pub(super) type Build<'a> = &'a dyn Fn(&mut Function);

/// Assembles functions, starting with index 0, into one image.
pub(super) fn image(functions: &[Build<'_>]) -> Arc<CodeImage> {
    let functions: Vec<_> = functions.iter().map(|build| (true, *build)).collect();
    image_of(&functions)
}

/// As above, for functions with or without a frame.
pub(super) fn image_of(functions: &[(bool, Build<'_>)]) -> Arc<CodeImage> {
    let mut chunk = Chunk::default();
    for (index, (with_frame, build)) in (0..).zip(functions) {
        append(&mut chunk, index, *with_frame, build);
    }
    let mut linker = ImageLinker::new(1 << 20, 1 << 20).unwrap();
    let module = module();
    linker.add(&module, &chunk, functions.iter().map(|_| 0..0)).unwrap();
    linker.finish(Arc::new(module), Bytes::new(), &[]).unwrap()
}

fn module() -> ModuleInfo {
    let memory = wasmparser::MemoryType {
        memory64: false,
        shared: false,
        initial: 1,
        maximum: None,
        page_size_log2: None,
    };
    ModuleInfo { tags: vec![0; TAGS.len()], memories: vec![memory], ..ModuleInfo::default() }
}

fn append(chunk: &mut Chunk, index: u32, with_frame: bool, build: Build<'_>) {
    let asm = CodeAssembler::new(64).unwrap();
    let mut function = Function { asm, calls: Vec::new(), regions: Vec::new(), handlers: Vec::new() };
    let asm = &mut function.asm;
    if with_frame {
        asm.push(rbp).unwrap();
        asm.mov(rbp, rsp).unwrap();
        asm.sub(rsp, FRAME as i32).unwrap();
        asm.mov(qword_ptr(rbp - 8), r14).unwrap();
    }
    let mut body = function.label();
    build(&mut function);
    if !with_frame {
        body = function.label();
    }
    function.asm.leave().unwrap();
    function.asm.ret().unwrap();
    let assembled =
        function.asm.assemble_options(0, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS).unwrap();
    let base = chunk.code.len() as u32;
    let offset = |label: &CodeLabel| base + assembled.label_ip(label).unwrap() as u32;
    chunk.calls.extend(
        function
            .calls
            .iter()
            .map(|(after, function)| DirectCall { at: offset(after) - 4, function: *function }),
    );
    let region = |region: &Try| TryRegion {
        start: offset(&region.start),
        end: offset(&region.end),
        parent: region.parent,
        catches: region
            .catches
            .iter()
            .map(|(tag, handler)| Catch { tag: *tag, handler: offset(&function.handlers[*handler]) })
            .collect(),
    };
    let compiled = CompiledFunction {
        index,
        entry: base,
        body: offset(&body),
        end: base + assembled.inner.code_buffer.len() as u32,
        frame_size: FRAME,
        saved: 0,
        try_regions: function.regions.iter().map(region).collect(),
    };
    chunk.code.extend(&assembled.inner.code_buffer);
    chunk.functions.push(compiled);
}

/// An instance of the kit's module: its context, and a page of memory followed by an inaccessible
/// range.
pub(super) struct Instance {
    context: Box<[u64]>,
    pub store: *mut ExecutionState,
    libcalls: Box<[usize; LIBCALLS_COUNT]>,
    memory: *mut libc::c_void,
}

const RESERVED: usize = 1 << 34;

/// Quadwords before a context: the instance's number is among them.
const IN_FRONT: usize = 4;
const _: () = assert!(8 * IN_FRONT as i32 >= -INSTANCE_NUMBER);

/// The number of every instance.
pub(super) const NUMBER: u64 = 7;

impl Instance {
    pub(super) fn new() -> Self {
        let layout = VmLayout::new(&module());
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                RESERVED,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let mut libcalls = Box::new([0; LIBCALLS_COUNT]);
        for libcall in [Libcall::Throw, Libcall::Raise, Libcall::RaiseFromHost] {
            libcalls[libcall as usize] = routine(libcall).unwrap();
        }
        let context = vec![0; IN_FRONT + layout.size as usize / 8].into_boxed_slice();
        let mut instance = Self {
            context,
            store: Box::into_raw(Box::new(ExecutionState::new(DEFAULT_SIGNAL))),
            libcalls,
            memory,
        };
        let context = instance.context();
        // SAFETY: of the size of the layout, and owned by the instance.
        unsafe {
            context.write(head(instance.store, &instance.libcalls, memory.cast(), 0));
            context.byte_offset(INSTANCE_NUMBER as isize).cast::<u64>().write(NUMBER);
            let memory = VmMemory { base: memory.cast(), length: std::ptr::null() };
            context.byte_offset(layout.memory(0) as isize).cast::<VmMemory>().write(memory);
            for (index, identity) in (0..).zip(TAGS) {
                context.byte_offset(layout.tag(index) as isize).cast::<usize>().write(identity);
            }
        }
        instance
    }

    pub(super) fn context(&mut self) -> *mut VmContext {
        self.context[IN_FRONT..].as_mut_ptr().cast()
    }

    pub(super) fn host(&self, function: HostCode) -> Box<HostFunction> {
        Box::new(HostFunction { head: head(self.store, &self.libcalls, self.memory.cast(), 1), function })
    }

    /// Calls a function of the image; returns its `rax`.
    pub(super) fn run(&mut self, image: &CodeImage, function: u32) -> Result<u64, Raised> {
        let context = self.context();
        // SAFETY: the image's functions follow the convention, and the store is the instance's.
        unsafe { run(context, image.entry(function)) }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: both are the instance's own.
        unsafe {
            libc::munmap(self.memory, RESERVED);
            drop(Box::from_raw(self.store));
        }
    }
}

fn head(
    store: *mut ExecutionState,
    libcalls: &[usize; LIBCALLS_COUNT],
    memory0: *mut u8,
    is_host: usize,
) -> VmContext {
    VmContext {
        store: store.cast(),
        memory0,
        libcalls: libcalls.as_ptr(),
        func_refs: std::ptr::null_mut(),
        owner: std::ptr::null_mut(),
        is_host,
    }
}

/// # Safety
/// `code` must be a function of the context's instance.
pub(super) unsafe fn run(context: *mut VmContext, code: *const u8) -> Result<u64, Raised> {
    let mut value = 0;
    // SAFETY: the caller's obligation.
    unsafe { enter(ExecutionState::of(context), || entry_trampoline(context, code, &mut value))? };
    Ok(value)
}

pub(super) type HostCode =
    extern "sysv64" fn(host: *mut VmContext, caller: *mut VmContext, values: *mut u64) -> u64;

#[repr(C)]
pub(super) struct HostFunction {
    head: VmContext,
    function: HostCode,
}

/// An exception with no values.
pub(super) fn exception(tag: usize) -> Box<VmException> {
    Box::new(VmException { tag: TAGS[tag], count: 0, values: [] })
}

/// Enters a function without arguments; stores its `rax` into `value`.
#[unsafe(naked)]
unsafe extern "sysv64" fn entry_trampoline(context: *mut VmContext, code: *const u8, value: *mut u64) -> u64 {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdx",
        "mov r14, rdi",
        "mov rax, [r14 + {store}]",
        "mov [rax + {activation_fp}], rbp",
        "mov r15, [r14 + {memory0}]",
        "call rsi",
        "mov rdx, [rbp - 48]",
        "mov [rdx], rax",
        "xor eax, eax",
        "lea rsp, [rbp - 40]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        store = const STORE,
        activation_fp = const ACTIVATION_FP,
        memory0 = const MEMORY0,
    )
}

/// Calls a host function without arguments.
#[unsafe(naked)]
unsafe extern "sysv64" fn host_trampoline() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov rcx, [r14 + {store}]",
        "mov [rcx + {exit_fp}], rbp",
        "mov rdi, r14",
        "mov rsi, rax",
        "call [r14 + {function}]",
        "test rax, rax",
        "jnz 2f",
        "pop rbp",
        "ret",
        "2:",
        "mov rcx, [r14 + {libcalls}]",
        "call [rcx + {raise}]",
        store = const STORE,
        exit_fp = const EXIT_FP,
        function = const offset_of!(HostFunction, function),
        libcalls = const LIBCALLS,
        raise = const 8 * Libcall::RaiseFromHost as i32,
    )
}
