//! One function, from its first operator to its last.
//!
//! # Order of the code
//! ```text
//! prologue      written last, when frame size and saved registers are known, into reserved space
//! body          one pass over the operators
//! epilogue      the only RET
//! cold code     moves of conditional branches, traps, handlers, jump tables
//! ```

use wasmparser::{FuncType, FunctionBody, Operator};

use super::abi::{ArgPlace, ArgPlaces, CALLEE_SAVED, CONTEXT, SCRATCH, stack_bytes};
use super::cached_locals::{Chooser, MAX_REGION_DEPTH, Region};
use super::cold::Cold;
use super::control::Control;
use super::frame::Frame;
use super::observe::{Observer, State};
use super::output::{Chunk, CompiledFunction, DirectCall, Position, TryRegion};
use super::register_file::{Holder, RegisterFile};
use super::runs::{Counting, Run, RunState};
use super::scan::Scan;
use super::sites::{ENTRY_LENGTH, MAX_SHARED, SITE_LENGTH, SITE_WINDOW, SiteKind, Sites};
use super::state::{Constant, Flag, Local, Operand, Place, Val, ZeroFlag};
use super::{Compiler, Limit};
use crate::asm::{Alu, Assembler, Cond, Label, Mem, Precision, Reg, RegClass, Size, Width};
use crate::module::ModuleInfo;
use crate::vmctx::{ACCESSOR_FP, ACCESSOR_NEXT, ACCESSORS, STACK_LIMIT, STORE, TrapCode, VmLayout};

/// Space for the longest prologue.
const PROLOGUE: u32 = 64;
/// Functions start at multiples of this: code inside keeps its alignment if the function is moved
/// or compiled again.
pub(super) const ALIGNMENT: u32 = 32;
/// Frames up to this size fit below the stack limit: they compare `rsp` itself, and leaf functions
/// need no check at all.
const SMALL_FRAME: u32 = 2048;
/// The largest frame.
const MAX_FRAME: u32 = 1 << 28;
/// Maximum code size, as a multiple of the size of the Wasm code. A branch with hundreds of values
/// takes two bytes of Wasm, and far more code; real programs have less than ten bytes of code for
/// one of Wasm.
pub const MAX_GROWTH: u32 = 64;
/// Code size that is always permitted.
const MIN_CODE: u32 = 1 << 20;
/// Size of the area below `rsp` that may be in use (System V ABI, "red zone").
const RED_ZONE: u32 = 128;

/// Allocations that are reused from function to function.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) scan: Scan,
    pub(super) chooser: Chooser,
}

/// The operator after the current one, as far as it affects the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// `local.set` or `local.tee`.
    SetLocal(u32),
    /// Takes a condition: `br_if`, `if`, `select`, `i32.eqz`.
    Condition,
    /// Takes the top operand as the right one of an integer operation, of 64 bits or 32.
    Int {
        width: Width,
    },
    /// `i32.add` or `i64.add`.
    Add {
        width: Width,
    },
    /// Takes the top operand as the right one of a float operation.
    Float {
        precision: Precision,
    },
    Other,
}

pub(super) struct FunctionCompiler<'a> {
    pub(super) module: &'a ModuleInfo,
    pub(super) layout: &'a VmLayout,
    pub(super) asm: Assembler<'a>,
    pub(super) calls: &'a mut Vec<DirectCall>,
    pub(super) scan: &'a Scan,
    chooser: &'a mut Chooser,
    pub(super) index: u32,
    pub(super) ty: &'a FuncType,
    pub(super) locals: Vec<Local>,
    pub(super) stack: Vec<Operand>,
    pub(super) control: Vec<Control<'a>>,
    pub(super) registers: RegisterFile,
    pub(super) frame: Frame,
    pub(super) regions: Vec<Region>,
    pub(super) current_region: usize,
    /// How many loops the code so far has: the index of the next one in the scan.
    pub(super) loops: usize,
    /// Module offset of the current operator.
    pub(super) position: u32,
    pub(super) next: Next,
    pub(super) zero_flag: Option<ZeroFlag>,
    pub(super) reachable: bool,
    /// Blocks that were opened and not closed in skipped code.
    pub(super) skipped_blocks: u32,
    /// Operands below this height are in their slots or constants.
    pub(super) spilled: u32,
    pub(super) cold: Vec<Cold<'a>>,
    /// Approximate size of the moves in cold code.
    pub(super) cold_bytes: u32,
    /// Limit of the code offset, including cold code.
    code_limit: u32,
    pub(super) constants: Vec<Constant>,
    pub(super) epilogue: Label,
    /// After the site of the exit.
    pub(super) leave: Label,
    pub(super) try_regions: Vec<TryRegion>,
    /// The innermost open region.
    pub(super) try_region: Option<u32>,
    /// The observer, if there is one.
    observer: Option<&'a mut (dyn Observer + 'a)>,
    /// The instructions in front of which there is a site.
    pub(super) sites: &'a Sites,
    /// Whether locals are stored to their slots on every way to the exit.
    pub(super) stores_locals: bool,
    /// In a plain version: where the code needs the size of the frame.
    pub(super) frame_sizes: Vec<u32>,
    /// In a counting version.
    pub(super) runs: Option<RunState<'a>>,
    /// Whether the next instruction's site is settled.
    pub(super) next_is_settled: bool,
    /// Whether the load that the current instruction would do has been done.
    pub(super) load_is_done: bool,
    /// Whether the current instruction has stored the value that it overwrites.
    pub(super) old_value_is_stored: bool,
    /// The last site that control instructions may share.
    shared_site: Option<SharedSite>,
    /// Whether the next jump is the site of the current instruction.
    jump_is_site: bool,
}

/// A NOP that is the site of some control instructions.
#[derive(Clone, Copy, Debug)]
struct SharedSite {
    code: u32,
    instructions: u32,
}

impl std::fmt::Debug for FunctionCompiler<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FunctionCompiler")
            .field("index", &self.index)
            .field("position", &self.position)
            .finish()
    }
}

/// Appends a validated function to a chunk.
pub(super) fn compile<'a>(
    compiler: &'a mut Compiler<'_>,
    index: u32,
    body: &'a FunctionBody<'_>,
    chunk: &'a mut Chunk,
    (sites, counting): (&'a Sites, Option<&'a Counting>),
    observer: Option<&'a mut (dyn Observer + 'a)>,
) -> Result<(), Limit> {
    let Compiler { module, layout, scratch } = compiler;
    let Chunk { code, calls, functions } = chunk;
    let malformed = |_| Limit { function: index, reason: "its body cannot be read" };
    let ty = module.function_type(index);
    scratch.scan.function(body, ty.params().len()).map_err(malformed)?;
    // Trailing unused locals are ignored: a few bytes may declare 50,000.
    let used = scratch.scan.accessed.len();
    let mut locals: Vec<Local> = Vec::with_capacity(used);
    let local = |ty| Local { ty, cache_reg: None, reg: None, in_slot: true, aliases: 0 };
    locals.extend(ty.params().iter().map(|param| local((*param).into())));
    for group in body.get_locals_reader().map_err(malformed)? {
        let (count, ty) = group.map_err(malformed)?;
        let count = (count as usize).min(used - locals.len());
        locals.extend(std::iter::repeat_n(local(ty.into()), count));
    }
    while !code.len().is_multiple_of(ALIGNMENT as usize) {
        code.push(0);
    }
    code.resize(code.len() + PROLOGUE as usize, 0);
    let mut asm = Assembler::new(code);
    let (epilogue, leave) = (asm.new_label(), asm.new_label());
    let frame = Frame::new(locals.len() as u32);
    let mut function = FunctionCompiler {
        module,
        layout,
        asm,
        calls,
        scan: &scratch.scan,
        chooser: &mut scratch.chooser,
        index,
        ty,
        locals,
        stack: Vec::new(),
        control: Vec::new(),
        registers: RegisterFile::new(),
        frame,
        regions: vec![Region::none()],
        current_region: 0,
        loops: 0,
        position: 0,
        next: Next::Other,
        zero_flag: None,
        reachable: true,
        skipped_blocks: 0,
        spilled: 0,
        cold: Vec::new(),
        cold_bytes: 0,
        code_limit: u32::MAX,
        constants: Vec::new(),
        epilogue,
        leave,
        try_regions: Vec::new(),
        try_region: None,
        observer,
        sites,
        stores_locals: sites.settles(body.range().end as u32),
        frame_sizes: Vec::new(),
        runs: counting.map(RunState::new),
        next_is_settled: false,
        load_is_done: false,
        old_value_is_stored: false,
        shared_site: None,
        jump_is_site: false,
    };
    let start = function.asm.offset();
    let wasm = (body.range().end - body.range().start) as u32;
    function.code_limit = start
        .saturating_add(wasm.saturating_mul(MAX_GROWTH).saturating_add(MIN_CODE))
        .saturating_add(wasm.saturating_mul(sites.max_bytes_each()))
        .saturating_add(wasm.saturating_mul(counting.map_or(0, |_| super::runs::MAX_BYTES)));
    function.enter();
    function.make_plain();
    function.begin_run(body.range().start as u32);
    function.lay_out_site(body.range().start as u32, SiteKind::Entry);
    let mut reader = body.get_operators_reader().map_err(malformed)?;
    let mut position = reader.original_position() as u32;
    let mut current = Some(reader.read().map_err(malformed)?);
    while let Some(operator) = current {
        let next_position = reader.original_position() as u32;
        let next = if reader.eof() { None } else { Some(reader.read().map_err(malformed)?) };
        function.position = position;
        function.registers.unpin_all();
        let seen = next.as_ref().filter(|_| !function.is_plain());
        function.next = seen.map_or(Next::Other, next_kind);
        function.next_is_settled = sites.settles(next_position);
        function.forget_settled();
        function.show_instruction();
        if function.reachable {
            // The site of a loop is at its label: every iteration comes there.
            if matches!(operator, Operator::Loop { .. }) {
                function.begin_run_before_loop();
            } else {
                function.begin_run(position);
                function.lay_out_site(position, SiteKind::of(&operator));
            }
            function.operator(&operator)?;
            function.end_run_after(&operator);
        } else {
            function.skip(&operator);
        }
        if function.reachable {
            function.make_plain();
        }
        if function.frame.bytes() > MAX_FRAME {
            return Err(Limit { function: index, reason: "its frame is too large" });
        }
        function.check_code_size()?;
        current = next;
        position = next_position;
    }
    functions.push(function.finish(start));
    Ok(())
}

fn next_kind(operator: &Operator<'_>) -> Next {
    use Operator as O;
    match operator {
        O::LocalSet { local_index } | O::LocalTee { local_index } => Next::SetLocal(*local_index),
        O::BrIf { .. } | O::If { .. } | O::Select | O::TypedSelect { .. } | O::I32Eqz => Next::Condition,
        O::I32Add => Next::Add { width: Width::W32 },
        O::I64Add => Next::Add { width: Width::W64 },
        O::I32Sub | O::I32And | O::I32Or | O::I32Xor | O::I32Mul => Next::Int { width: Width::W32 },
        O::I64Sub | O::I64And | O::I64Or | O::I64Xor | O::I64Mul => Next::Int { width: Width::W64 },
        O::I32Eq | O::I32Ne | O::I32LtS | O::I32LtU | O::I32GtS | O::I32GtU => {
            Next::Int { width: Width::W32 }
        }
        O::I32LeS | O::I32LeU | O::I32GeS | O::I32GeU => Next::Int { width: Width::W32 },
        O::I64Eq | O::I64Ne | O::I64LtS | O::I64LtU | O::I64GtS | O::I64GtU => {
            Next::Int { width: Width::W64 }
        }
        O::I64LeS | O::I64LeU | O::I64GeS | O::I64GeU => Next::Int { width: Width::W64 },
        O::F32Add | O::F32Sub | O::F32Mul | O::F32Div => Next::Float { precision: Precision::Single },
        O::F64Add | O::F64Sub | O::F64Mul | O::F64Div => Next::Float { precision: Precision::Double },
        _ => Next::Other,
    }
}

impl<'a> FunctionCompiler<'a> {
    /// Refuses the function if its code exceeds the limit.
    pub(super) fn check_code_size(&self) -> Result<(), Limit> {
        if self.asm.offset().saturating_add(self.cold_bytes) > self.code_limit {
            return Err(Limit { function: self.index, reason: "its code is too large" });
        }
        Ok(())
    }

    /// Reports the code position of the current instruction, and the state before it.
    fn show_instruction(&mut self) {
        if let Some(observer) = self.observer.take() {
            let state = State::of(self);
            observer.instruction(Position { code: self.asm.offset(), wasm: self.position }, &state);
            self.observer = Some(observer);
        }
    }

    /// Lays out the site of a place, if it has one: the current instruction, the entry or the exit.
    pub(super) fn lay_out_site(&mut self, position: u32, kind: SiteKind) {
        if let Some(observer) = self.observer.take() {
            observer.place(position, &State::at(self, kind));
            self.observer = Some(observer);
        }
        if !self.sites.contains(position, kind) {
            return;
        }
        if let Some(site) = self.share_site(kind) {
            return self.show_site(site, position, kind);
        }
        if self.sites.use_code() && self.will_jump(kind) {
            self.jump_is_site = true;
            return;
        }
        let before = self.asm.offset();
        if self.sites.settles(position) && kind != SiteKind::Exit {
            self.settle();
            self.flags_hold_since(before);
        }
        self.align_site();
        let site = self.asm.offset();
        self.asm.nops(SITE_LENGTH);
        self.flags_hold_since(site);
        self.shared_site = (self.sites.use_code() && kind.is_control())
            .then_some(SharedSite { code: site, instructions: 1 });
        self.show_site(site, position, kind);
    }

    fn show_site(&mut self, site: u32, position: u32, kind: SiteKind) {
        if let Some(observer) = self.observer.take() {
            let state = State::at(self, kind);
            observer.site(Position { code: site, wasm: position }, &state);
            self.observer = Some(observer);
        }
    }

    /// The site right in front of here, if the current instruction can share it: whatever comes
    /// here has passed it, and does so once.
    fn share_site(&mut self, kind: SiteKind) -> Option<u32> {
        let is_here = |site: &&mut SharedSite| site.code + SITE_LENGTH == self.asm.offset();
        let site = self.shared_site.as_mut().filter(is_here)?;
        if !kind.is_control() || self.asm.is_bound_here() || site.instructions == MAX_SHARED {
            return None;
        }
        let is_pending = |operand: &Operand| matches!(operand.val, Val::Load(_));
        debug_assert!(!self.stack.iter().any(is_pending), "no load is pending before a control instruction");
        site.instructions += 1;
        Some(site.code)
    }

    /// Whether the current instruction branches by one jump.
    fn will_jump(&self, kind: SiteKind) -> bool {
        match (kind, self.stack.last().map(|operand| operand.val)) {
            (SiteKind::Jump, _) => true,
            (SiteKind::JumpIf, Some(Val::Const(_) | Val::Flag(Flag::FloatEqual | Flag::FloatNotEqual))) => {
                false
            }
            (kind, _) => kind == SiteKind::JumpIf,
        }
    }

    /// Puts the next instruction where five bytes are inside an aligned quadword: where code of the
    /// program is used as sites, by making the last instruction longer, else by a NOP.
    fn align_site(&mut self) {
        let before = self.asm.offset();
        let over = before % SITE_WINDOW;
        if over + SITE_LENGTH <= SITE_WINDOW {
            return;
        }
        let by = SITE_WINDOW - over;
        let is_longer = self.sites.use_code() && self.asm.lengthen_last(by);
        if !is_longer {
            self.asm.nops(by);
        }
        self.flags_hold_since(before);
        let now = self.asm.offset();
        if is_longer && let Some(observer) = &mut self.observer {
            observer.moved(before, now);
        }
    }

    /// JMP or Jcc, which may be the site of the current instruction. What aligns it is part of the
    /// instruction in front of it, so that the processor can fuse the two.
    pub(super) fn jump(&mut self, cond: Option<Cond>, label: Label) {
        if !std::mem::take(&mut self.jump_is_site) {
            return match cond {
                Some(cond) => self.asm.jcc(cond, label),
                None => self.asm.jmp(label),
            };
        }
        self.align_site();
        let site = self.asm.offset();
        match cond {
            Some(cond) => self.asm.long_jcc(cond, label),
            None => self.asm.long_jmp(label),
        }
        if let Some(observer) = self.observer.take() {
            observer.site(Position { code: site, wasm: self.position }, &State::at_jump(self));
            self.observer = Some(observer);
        }
    }

    /// Records that the code since an offset preserves the flags: what the compiler knew of them
    /// there still holds.
    pub(super) fn flags_hold_since(&mut self, before: u32) {
        if let Some(flag) = &mut self.zero_flag
            && flag.at == before
        {
            flag.at = self.asm.offset();
        }
    }

    /// Reports that a run begins.
    pub(super) fn show_run(&mut self, run: Run) {
        if let Some(observer) = &mut self.observer {
            observer.run(run);
        }
    }

    /// Reports the state while the current instruction calls.
    pub(super) fn show_call(&mut self) {
        if let Some(observer) = self.observer.take() {
            observer.call(self.position, &State::of(self));
            self.observer = Some(observer);
        }
    }

    /// Reports that a frame can continue in another version of the function from here.
    pub(super) fn show_transfer(&mut self) {
        self.transfer(1);
    }

    /// Like [`Self::show_transfer`], where a site follows: the NOP between them aligns it.
    pub(super) fn show_transfer_at_site(&mut self) {
        let over = (self.asm.offset() + 1) % SITE_WINDOW;
        let aligns = self.runs.is_none() && over + SITE_LENGTH > SITE_WINDOW;
        self.transfer(if aligns { 1 + SITE_WINDOW - over } else { 1 });
    }

    fn transfer(&mut self, nop: u32) {
        self.end_run();
        let code = self.asm.offset();
        if let Some(observer) = &mut self.observer {
            observer.transfer(code);
        }
        // No branch and no site shares the address with it.
        if *self.sites != Sites::None || self.runs.is_some() {
            self.asm.nops(nop);
        }
    }

    /// Reports additional code of an instruction, outside of the main sequence.
    pub(super) fn show_more(&mut self, code: u32, wasm: u32) {
        if let Some(observer) = &mut self.observer {
            observer.more_code(Position { code, wasm });
        }
    }

    /// Chooses the register-cached locals of a loop, or of the function.
    pub(super) fn choose_region(&mut self, facts: Option<usize>) -> Region {
        if self.is_plain() {
            return Region::none();
        }
        let (accesses, depth) = match facts {
            None => (&self.scan.accesses[..], 0),
            Some(index) => {
                let facts = self.scan.loops[index];
                (&self.scan.accesses[facts.first as usize..facts.end as usize], facts.depth + 1)
            }
        };
        if depth > MAX_REGION_DEPTH {
            return Region { unwritten: 0, ..self.region().clone() };
        }
        let params = if facts.is_none() { self.ty.params() } else { &[] };
        let mut arrivals: Vec<Option<Reg>> = Vec::new();
        let mut places = ArgPlaces::default();
        for param in params {
            arrivals.push(match places.next((*param).into()) {
                ArgPlace::Reg(reg) => Some(reg),
                ArgPlace::Stack(_) => None,
            });
        }
        let arrives = |local: u32| arrivals.get(local as usize).copied().flatten();
        let locals = &self.locals;
        let ty = |local: u32| locals[local as usize].ty;
        self.chooser.choose(accesses, depth, &self.regions[self.current_region], ty, arrives, locals.len())
    }

    /// Emits the function's entry: moves parameters to their locations and initializes locals.
    fn enter(&mut self) {
        let region = self.choose_region(None);
        self.regions[0] = region;
        self.enter_state(0, 0);
        self.push_function_control();
        let params = self.ty.params().len() as u32;
        let mut places = ArgPlaces::default();
        let mut moves = Vec::new();
        for param in 0..params {
            let Local { ty, cache_reg, .. } = self.locals[param as usize];
            let place = places.next(ty);
            let source = match place {
                ArgPlace::Reg(reg) => Place::Reg(reg),
                ArgPlace::Stack(index) => Place::Mem(Mem::base(Reg::RBP, 16 + 8 * index as i32)),
            };
            if let Some(cache_reg) = cache_reg {
                moves.push((ty, cache_reg, source));
                continue;
            }
            let slot = self.frame.local_slot(param);
            self.move_value(ty, Place::Mem(slot), source);
            if let Place::Reg(reg) = source
                && self.region().cached & reg.bit() == 0
                && self.scan.accessed[param as usize]
            {
                self.locals[param as usize].reg = Some(reg);
                self.registers.hold(reg, Holder::Copy(param));
            }
        }
        self.parallel_moves(moves);
        self.zero_locals(params);
    }

    /// Zeroes the locals that are not parameters.
    fn zero_locals(&mut self, params: u32) {
        let count = self.locals.len() as u32;
        let needed: Vec<u32> = (params..count).filter(|local| self.scan.accessed[*local as usize]).collect();
        let mut slots = Vec::new();
        for &local in &needed {
            match self.locals[local as usize].cache_reg {
                Some(cache_reg) if cache_reg.is_float() => self.asm.float_zero(cache_reg),
                Some(cache_reg) => self.asm.zero(cache_reg),
                None => slots.push(local),
            }
        }
        let (Some(&first), Some(&last)) = (slots.first(), slots.last()) else { return };
        if slots.len() <= 3 {
            for local in slots {
                let slot = self.frame.local_slot(local);
                self.asm.mov_store_imm(Size::B8, slot, 0);
            }
            return;
        }
        // From the lowest address, which is the last local's, upwards; excess bytes are written
        // below, to operand slots.
        let stores = (last - first + 1).div_ceil(4);
        let top = self.frame.local_slot(first).disp() + 8;
        let zero = super::state::scratch(RegClass::Sse);
        self.asm.float_zero(zero);
        if stores <= 12 {
            for store in 1..=stores {
                self.asm.wide_store(Mem::base(Reg::RBP, top - 32 * store as i32), zero);
            }
            return;
        }
        self.asm.lea(Width::W64, SCRATCH, Mem::base(Reg::RBP, top - 32 * stores as i32));
        self.asm.mov_imm(Reg::R10, u64::from(stores));
        let again = self.asm.new_label();
        self.asm.bind(again);
        self.asm.wide_store(Mem::base(SCRATCH, 0), zero);
        self.asm.alu_imm(Alu::Add, Width::W64, SCRATCH, 32);
        self.asm.alu_imm(Alu::Sub, Width::W32, Reg::R10, 1);
        self.asm.jcc(Cond::NotEqual, again);
    }

    /// Epilogue, cold code and prologue.
    fn finish(mut self, start: u32) -> CompiledFunction {
        let cached = self.regions.iter().fold(0, |set, region| set | region.cached);
        let callee_saved = CALLEE_SAVED.iter().fold(0, |set, (reg, _)| set | reg.bit());
        let own = if self.scan.has_try { callee_saved } else { cached & callee_saved };
        let saved = self.sites.plain().unwrap_or(own);
        let frame_size = self.frame.size();
        let leaf = !self.frame.makes_calls();
        let moves_rsp = !leaf || frame_size > RED_ZONE || self.is_plain();
        self.asm.bind(self.epilogue);
        let end = self.position;
        let here = self.asm.offset();
        self.show_more(here, end);
        // The position after the last instruction, which is an `end` of one byte.
        self.lay_out_site(end + 1, SiteKind::Exit);
        self.asm.bind(self.leave);
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
                asm.lea(Width::W64, Reg::R10, Mem::base(Reg::RSP, -(frame_size as i32)));
                asm.alu(Alu::Cmp, Width::W64, Reg::R10, Mem::base(SCRATCH, STACK_LIMIT));
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
        let behind_push = start - front.len() as u32;
        if let Some(overflow) = overflow {
            let distance = overflow.wrapping_sub(behind_push + jump_end);
            front[jump_end as usize - 4..jump_end as usize].copy_from_slice(&distance.to_le_bytes());
        }
        self.asm.overwrite(behind_push, &front);
        self.fill_frame_sizes(frame_size);
        let entry = self.write_entry(behind_push);
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
    /// prologue begins at `behind`, where debuggers look for it.
    fn write_entry(&mut self, behind: u32) -> u32 {
        let last = behind - ENTRY_LENGTH;
        let entry = last - (last % SITE_WINDOW).saturating_sub(SITE_WINDOW - ENTRY_LENGTH);
        let mut first = Vec::new();
        Assembler::new(&mut first).long_push(Reg::RBP, behind - entry);
        self.asm.overwrite(entry, &first);
        entry
    }

    /// At the end of the frame: ends its accessor, if it has one, which is then the first of the
    /// store's. Changes the register.
    pub(super) fn end_accessor(&mut self, first: Reg) {
        if !self.sites.end_accessors() {
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
