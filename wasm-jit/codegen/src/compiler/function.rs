//! One function, from its first operator to its last.
//!
//! # Order of the code
//! ```text
//! prologue      written last, when frame size and saved registers are known, into reserved space
//! body          one pass over the operators
//! epilogue      the only RET
//! cold code     moves of conditional branches, traps, handlers, jump tables
//! ```

use wasmparser::{
    BinaryReaderError, FuncType, FuncValidator, FunctionBody, Operator, ValType, ValidatorResources,
};

use super::abi::{CALLEE_SAVED, CONTEXT, SCRATCH, stack_bytes};
use super::cached_locals::{Chooser, Regions};
use super::cold::ColdCode;
use super::control_stack::ControlStack;
use super::counting::RunState;
use super::counting::joins::Joins;
use super::decode::{Operators, decode};
use super::edges::Move;
use super::frame::Frame;
use super::fuel::Fuel;
use super::instruction::{Instruction, Next};
use super::observe::Observer;
use super::operators::exceptions::TryRegions;
use super::output::{Chunk, CompiledFunction, DirectCall};
use super::register_file::RegisterFile;
use super::scan::Scan;
use super::sites::layout::SiteLayout;
use super::sites::{ENTRY_LENGTH, SITE_WINDOW, SiteKind, Sites};
use super::state::{Local, SmallBytes, Vectors, ZeroFlag};
use super::value_stack::ValueStack;
use super::{Compiler, Instrumentation, Limit, validate};
use crate::asm::{Alu, Assembler, Cond, Label, Labels, Mem, Reg, Size, Width};
use crate::module::{FunctionHints, ModuleInfo};
use crate::vmctx::{ACCESSOR_FP, ACCESSOR_NEXT, ACCESSORS, STACK_LIMIT, STORE, TrapCode, VmLayout};

/// Space for the longest prologue.
const PROLOGUE: u32 = 64;
/// Functions start at multiples of this: code inside keeps its alignment if the function is moved
/// or compiled again.
pub(super) const ALIGNMENT: u32 = 32;
/// Frames up to this size fit below the stack limit: they compare `rsp` itself, and leaf functions
/// need no check at all.
const SMALL_FRAME: u32 = 2048;
/// Maximum code size, as a multiple of the size of the Wasm code. A branch with hundreds of values
/// takes two bytes of Wasm, and far more code; real programs have less than ten bytes of code for
/// each byte of Wasm.
pub const MAX_GROWTH: u32 = 64;
/// Code size that is always permitted.
const MIN_CODE: u32 = 1 << 20;
/// Size of the area below `rsp` that may be in use (System V ABI, "red zone").
const RED_ZONE: u32 = 128;

/// Allocations that are reused from function to function.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    scan: Scan,
    chooser: Chooser,
    locals: Vec<Local>,
    stack: ValueStack,
    regions: Regions,
    labels: Labels,
}

/// The compiler's state at one point of a function's code: see [the parts](super#the-state).
pub(super) struct FunctionCompiler<'a> {
    // What is compiled.
    pub(super) module: &'a ModuleInfo,
    pub(super) layout: &'a VmLayout,
    pub(super) index: u32,
    pub(super) ty: &'a FuncType,
    pub(super) scan: &'a Scan,
    pub(super) hints: FunctionHints<'a>,
    // What is produced.
    pub(super) asm: Assembler<'a>,
    pub(super) cold: ColdCode<'a>,
    pub(super) calls: &'a mut Vec<DirectCall>,
    pub(super) try_regions: TryRegions,
    pub(super) exit: Exit,
    /// Limit of the code offset, including cold code.
    code_limit: u32,
    // Where the values are.
    pub(super) stack: ValueStack,
    pub(super) locals: Vec<Local>,
    pub(super) registers: RegisterFile,
    pub(super) regions: Regions,
    pub(super) chooser: &'a mut Chooser,
    /// An allocation for the moves of the next edge.
    pub(super) spare_moves: Vec<Move>,
    pub(super) frame: Frame,
    pub(super) vectors: Vectors,
    pub(super) small_bytes: Option<SmallBytes>,
    /// The number of labels so far.
    pub(super) labels: u32,
    /// A number of accesses to locals in the scan that come before the next instruction: not
    /// necessarily all of them.
    pub(super) past_accesses: usize,
    /// Whether register-cached locals may be only in their slots: after a call.
    pub(super) may_be_unloaded: bool,
    pub(super) zero_flag: Option<ZeroFlag>,
    // Where the code is.
    pub(super) control: ControlStack<'a>,
    pub(super) instruction: Instruction,
    // What versions with probes need.
    pub(super) sites: SiteLayout<'a>,
    pub(super) observer: Option<&'a mut (dyn Observer + 'a)>,
    /// Whether any instruction has a site, is counted, charged for, or observed.
    is_instrumented: bool,
    /// The offset of the last transfer point.
    pub(super) last_transfer: u32,
    /// In a plain version, where the code needs the size of the frame.
    pub(super) frame_sizes: Vec<u32>,
    /// The state of a counting version.
    pub(super) runs: Option<RunState<'a>>,
    /// The state of code that consumes fuel.
    pub(super) fuel: Option<Fuel>,
}

/// How a function ends.
#[derive(Debug)]
pub(super) struct Exit {
    pub(super) epilogue: Label,
    /// Whether locals are stored to their slots on every path to the end.
    pub(super) stores_locals: bool,
    /// Whether something jumps to the end.
    pub(super) is_target: bool,
}

impl std::fmt::Debug for FunctionCompiler<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FunctionCompiler")
            .field("index", &self.index)
            .field("position", &self.instruction.position)
            .finish()
    }
}

/// Scans a valid function, and records its operators.
pub(super) fn scan<'b>(
    compiler: &mut Compiler<'_>,
    index: u32,
    body: &FunctionBody<'b>,
) -> Result<Operators<'b>, Limit> {
    let Compiler { module, vector_types, scratch, record, .. } = compiler;
    let params = module.function_type(index).params().len();
    let hints = hints(module, index, body);
    let mut record = Operators::begin(record, length(body));
    let scanned = scratch.scan.function(body, &mut record, params, hints, module, vector_types);
    scanned.map_err(|_| malformed(index))?;
    Ok(record)
}

/// Validates and scans a function, and records its operators.
pub(super) fn validate_and_scan<'b>(
    compiler: &mut Compiler<'_>,
    validator: &mut FuncValidator<ValidatorResources>,
    body: &FunctionBody<'b>,
) -> Result<Operators<'b>, BinaryReaderError> {
    let Compiler { module, vector_types, scratch, record, .. } = compiler;
    let index = validator.index();
    let params = module.function_type(index).params().len();
    let hints = hints(module, index, body);
    let mut record = Operators::begin(record, length(body));
    let mut scanner = scratch.scan.begin(&mut record, params, hints, module, vector_types);
    validate::validate_and_scan(validator, body, &mut scanner)?;
    Ok(record)
}

/// The length of a body, in bytes.
pub(super) fn length(body: &FunctionBody<'_>) -> u64 {
    body.range().end - body.range().start
}

fn hints<'m>(module: &'m ModuleInfo, index: u32, body: &FunctionBody<'_>) -> FunctionHints<'m> {
    module.branch_hints.of(index, body.range().start as u32)
}

/// A body that was valid before cannot be read.
fn malformed(function: u32) -> Limit {
    Limit { function, reason: "its body cannot be read" }
}

/// Appends a valid function, which has just been scanned, to a chunk. The record is the scan's.
pub(super) fn compile<'a>(
    compiler: &'a mut Compiler<'_>,
    index: u32,
    body: &'a FunctionBody<'_>,
    record: &Operators<'_>,
    chunk: &'a mut Chunk,
    Instrumentation { sites, counting }: Instrumentation<'a>,
    observer: Option<&'a mut (dyn Observer + 'a)>,
) -> Result<(), Limit> {
    let Compiler { module, layout, scratch, .. } = compiler;
    let Scratch { scan, chooser, locals, stack, regions, labels } = scratch;
    let Chunk { code, calls, functions } = chunk;
    let malformed = |_| malformed(index);
    let ty = module.function_type(index);
    let hints = hints(module, index, body);
    let mut has_vectors = scan.has_vectors || has_vector(ty);
    // Trailing unused locals are ignored: a few bytes may declare 50,000.
    let used = scan.accessed.len();
    locals.clear();
    let local = |ty| Local { ty, cache_reg: None, reg: None, in_slot: true, aliases: 0, constant: None };
    locals.extend(ty.params().iter().map(|param| local((*param).into())));
    for group in body.get_locals_reader().map_err(malformed)? {
        let (count, ty) = group.map_err(malformed)?;
        has_vectors |= ty == ValType::V128;
        let count = (count as usize).min(used - locals.len());
        locals.extend(std::iter::repeat_n(local(ty.into()), count));
    }
    while !code.len().is_multiple_of(ALIGNMENT as usize) {
        code.push(0);
    }
    code.resize(code.len() + PROLOGUE as usize, 0);
    let mut asm = Assembler::with_labels(code, std::mem::take(labels));
    let runs = match counting {
        Some(counting) => Some(RunState::new(counting, Joins::of(body).map_err(malformed)?)),
        None => None,
    };
    let exit = Exit {
        epilogue: asm.new_label(),
        stores_locals: sites.settles(body.range().end as u32),
        is_target: false,
    };
    let frame = Frame::new(locals.len() as u32, has_vectors);
    let mut function = FunctionCompiler {
        module,
        layout,
        index,
        ty,
        scan,
        hints,
        asm,
        cold: ColdCode::default(),
        calls,
        try_regions: TryRegions::default(),
        exit,
        code_limit: u32::MAX,
        stack: std::mem::take(stack),
        locals: std::mem::take(locals),
        registers: RegisterFile::new(),
        regions: std::mem::take(regions),
        chooser,
        spare_moves: Vec::new(),
        frame,
        vectors: Vectors::default(),
        small_bytes: None,
        labels: 0,
        past_accesses: 0,
        may_be_unloaded: false,
        zero_flag: None,
        control: ControlStack::new(),
        instruction: Instruction::new(0, Next::Other),
        sites: SiteLayout::new(sites),
        is_instrumented: observer.is_some()
            || counting.is_some()
            || module.settings.uses_fuel
            || !matches!(sites, Sites::None | Sites::Functions),
        observer,
        frame_sizes: Vec::new(),
        runs,
        fuel: module.settings.uses_fuel.then(Fuel::new),
        last_transfer: u32::MAX,
    };
    function.stack.begin();
    function.regions.begin();
    let start = function.asm.offset();
    let wasm = length(body) as u32;
    function.code_limit = start
        .saturating_add(wasm.saturating_mul(MAX_GROWTH).saturating_add(MIN_CODE))
        .saturating_add(wasm.saturating_mul(sites.max_bytes_each()))
        .saturating_add(wasm.saturating_mul(counting.map_or(0, |_| super::counting::MAX_BYTES)))
        .saturating_add(wasm.saturating_mul(if module.settings.uses_fuel {
            super::fuel::MAX_BYTES
        } else {
            0
        }));
    let mut reader = body.get_operators_reader().map_err(malformed)?;
    let mut position = reader.original_position() as u32;
    // What traps before the first instruction is done traps there.
    function.instruction.position = position;
    function.enter();
    function.make_plain();
    // A run is counted before its fuel is charged: what traps because there is no fuel has counted
    // the run, and subtracts the rest of it.
    function.begin_run(body.range().start as u32);
    function.charge_entry();
    function.lay_out_site(body.range().start as u32, SiteKind::Entry);
    let end = (body.range().end as u32, Next::Other);
    if let Some(operators) = record.operators() {
        for (index, current) in operators.iter().enumerate() {
            let next = operators.get(index + 1).map_or(end, |next| (next.position, next.kind));
            function.step(current.position, &current.operator, next)?;
        }
    } else {
        let mut operators = (Operator::Nop, Operator::Nop);
        let (mut current, mut next) = (&mut operators.0, &mut operators.1);
        decode(&mut reader, current).map_err(malformed)?;
        while !reader.eof() {
            let next_position = reader.original_position() as u32;
            let kind = decode(&mut reader, next).map_err(malformed)?;
            function.step(position, current, (next_position, kind))?;
            std::mem::swap(&mut current, &mut next);
            position = next_position;
        }
        function.step(position, current, end)?;
    }
    functions.push(function.finish(start));
    (*locals, *stack, *regions) = (function.locals, function.stack, function.regions);
    *labels = function.asm.into_labels();
    Ok(())
}

/// Whether a parameter or result is a vector.
pub(super) fn has_vector(ty: &FuncType) -> bool {
    ty.params().iter().chain(ty.results()).any(|ty| *ty == ValType::V128)
}

impl<'a> FunctionCompiler<'a> {
    /// Compiles the operator at this position, whose next one is at the other position, and of this
    /// kind.
    #[inline(always)]
    fn step(
        &mut self,
        position: u32,
        operator: &Operator<'_>,
        (next_position, kind): (u32, Next),
    ) -> Result<(), Limit> {
        self.instruction = Instruction::new(position, kind);
        self.registers.unpin_all();
        if self.is_instrumented {
            self.instrumented(operator, next_position)?;
        } else if self.control.reachable {
            self.operator(operator)?;
        } else {
            self.skip(operator);
        }
        if self.frame.is_too_large() {
            return Err(Limit { function: self.index, reason: "its frame is too large" });
        }
        self.check_code_size()
    }

    /// Compiles the current instruction, with what observes it. The next one is at this position.
    fn instrumented(&mut self, operator: &Operator<'_>, next_position: u32) -> Result<(), Limit> {
        if self.is_plain() {
            self.instruction.next = Next::Other;
        }
        self.instruction.next_is_settled = self.sites.wanted.settles(next_position);
        self.forget_settled();
        self.show_instruction();
        if self.control.reachable {
            let position = self.instruction.position;
            // The site of a loop is at its label, which every iteration reaches.
            if matches!(operator, Operator::Loop { .. }) {
                self.charge(operator);
                self.begin_run_before_loop();
            } else {
                self.begin_run(position);
                self.charge(operator);
                self.lay_out_site(position, SiteKind::of(operator));
            }
            self.operator(operator)?;
            self.end_run_after(operator);
        } else {
            self.skip(operator);
        }
        if self.control.reachable {
            self.make_plain();
        }
        Ok(())
    }

    /// Refuses the function if its code exceeds the limit.
    pub(super) fn check_code_size(&self) -> Result<(), Limit> {
        if self.asm.offset().saturating_add(self.cold.bytes()) > self.code_limit {
            return Err(Limit { function: self.index, reason: "its code is too large" });
        }
        Ok(())
    }

    /// Epilogue, cold code and prologue.
    fn finish(&mut self, start: u32) -> CompiledFunction {
        self.settle_fuel();
        let cached = self.regions.all_cached();
        let callee_saved = CALLEE_SAVED.iter().fold(0, |set, (reg, _)| set | reg.bit());
        let own = if self.scan.has_try { callee_saved } else { cached & callee_saved };
        let saved = self.sites.wanted.plain().unwrap_or(own);
        let frame_size = self.frame.size();
        let leaf = !self.frame.makes_calls();
        let moves_rsp = !leaf || frame_size > RED_ZONE || self.is_plain();
        if self.exit.is_target {
            self.leave_transfer_point();
        }
        self.asm.bind(self.exit.epilogue);
        let end = self.instruction.position;
        let here = self.asm.offset();
        self.show_more(here, end);
        // The position after the last instruction, which is an `end` of one byte.
        self.lay_out_site(end + 1, SiteKind::Exit);
        self.end_accessor(Reg::R10);
        self.restore(saved);
        if moves_rsp {
            // Not LEAVE: `rsp` then does not depend on `rbp`, which the callee has just loaded.
            self.asm.alu_imm(Alu::Add, Width::W64, Reg::RSP, frame_size as i32);
        }
        self.asm.pop(Reg::RBP);
        self.asm.ret(stack_bytes(self.ty) as u16);
        self.emit_cold(saved, frame_size);
        let checks_stack = !leaf || frame_size > SMALL_FRAME;
        let overflow = checks_stack.then(|| {
            let here = self.asm.offset();
            self.show_more(here, end);
            self.asm.ud2(TrapCode::StackOverflow as u8);
            here
        });
        self.emit_constants();

        let mut front = Vec::new();
        let mut asm = Assembler::new(&mut front);
        asm.mov(Width::W64, Reg::RBP, Reg::RSP);
        if overflow.is_some() {
            asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
            if frame_size <= SMALL_FRAME {
                asm.alu(Alu::Cmp, Width::W64, Reg::RSP, Mem::base(SCRATCH, STACK_LIMIT));
            } else {
                // The limit is raised, because the stack pointer minus the size could be negative.
                asm.mov(Width::W64, Reg::R10, Mem::base(SCRATCH, STACK_LIMIT));
                asm.alu_imm(Alu::Add, Width::W64, Reg::R10, frame_size as i32);
                asm.alu(Alu::Cmp, Width::W64, Reg::RSP, Reg::R10);
            }
            asm.jcc_to_link(Cond::Below);
        }
        let jump_end = front.len() as u32;
        let mut asm = Assembler::new(&mut front);
        if moves_rsp {
            asm.alu_imm(Alu::Sub, Width::W64, Reg::RSP, frame_size as i32);
        }
        if !leaf {
            asm.mov_store(Size::B8, Mem::base(Reg::RBP, -8), CONTEXT);
        }
        for (reg, slot) in CALLEE_SAVED {
            if saved & reg.bit() != 0 {
                asm.mov_store(Size::B8, Mem::base(Reg::RBP, slot), reg);
            }
        }
        let after_push = start - front.len() as u32;
        if let Some(overflow) = overflow {
            let distance = overflow.wrapping_sub(after_push + jump_end);
            front[jump_end as usize - 4..jump_end as usize].copy_from_slice(&distance.to_le_bytes());
        }
        self.asm.overwrite(after_push, &front);
        self.fill_frame_sizes(frame_size);
        let entry = self.write_entry(after_push);
        CompiledFunction {
            index: self.index,
            entry,
            body: start,
            end: self.asm.offset(),
            frame_size,
            saved,
            try_regions: std::mem::take(&mut self.try_regions).into_boxed_slice(),
        }
    }

    /// Writes the first instruction, which a patch may turn into a jump: PUSH of `rbp`, with enough
    /// ignored prefixes for the five bytes of a JMP inside an aligned quadword. The rest of the
    /// prologue begins at `rest`, where debuggers look for it.
    fn write_entry(&mut self, rest: u32) -> u32 {
        let last = rest - ENTRY_LENGTH;
        let entry = last - (last % SITE_WINDOW).saturating_sub(SITE_WINDOW - ENTRY_LENGTH);
        let mut first = Vec::new();
        Assembler::new(&mut first).long_push(Reg::RBP, rest - entry);
        self.asm.overwrite(entry, &first);
        entry
    }

    /// At the end of the frame, ends its accessor, if it has one, which is then the first one of
    /// the store. Changes the register.
    pub(super) fn end_accessor(&mut self, first: Reg) {
        if !self.sites.wanted.end_accessors() {
            return;
        }
        let done = self.asm.new_label();
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
        self.asm.mov(Width::W64, first, Mem::base(SCRATCH, ACCESSORS));
        self.asm.alu(Alu::Cmp, Width::W64, Reg::RBP, Mem::base(first, ACCESSOR_FP));
        self.asm.jcc(Cond::NotEqual, done);
        self.asm.mov_store_imm(Size::B8, Mem::base(first, ACCESSOR_FP), 0);
        self.asm.mov(Width::W64, first, Mem::base(first, ACCESSOR_NEXT));
        self.asm.mov_store(Size::B8, Mem::base(SCRATCH, ACCESSORS), first);
        self.asm.bind(done);
    }

    /// Restores the caller's registers.
    pub(super) fn restore(&mut self, saved: u32) {
        for (reg, slot) in CALLEE_SAVED {
            if saved & reg.bit() != 0 {
                self.asm.mov(Width::W64, reg, Mem::base(Reg::RBP, slot));
            }
        }
    }
}
