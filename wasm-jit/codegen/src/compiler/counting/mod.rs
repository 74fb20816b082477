//! Counting versions: code that counts its instructions inline.
//!
//! A *straight-line run* (here: run) is a sequence of instructions that are executed one after the
//! other: it ends with a branch or a call, and before a label. At its start, before any code of its
//! first instruction, the code adds 1 to the run's cell, unless nothing depends on this count
//! ([`Counting::counted`]); nothing else counts, and counting needs no jumps. Each instruction of a
//! run has therefore been executed as often as its run was begun, except for those after an
//! instruction that trapped or was interrupted, which the runtime subtracts: [`Observer::run`]
//! reports the code position from which a run has been counted.
//!
//! ```text
//! add qword [r14 + first + cell], 1     if all instances have their counters at `first`, an offset
//!                                       from their contexts
//!
//! mov r11, [r14 + COUNTERS]             otherwise, unless `r11` has this value already
//! add qword [r11 + cell], 1             (`loops.rs`); where flags are needed, as in a stub
//! ```
//!
//! The first form is faster, particularly in short functions that call each other: a processor
//! forwards a value from a store to a load without delay if both have the same base register, and
//! it has not changed in between.
//!
//! A run after a block without loops and calls, which control leaves only at its end, is *joined*:
//! it is executed as often as the run that enters the block, and counted with it (`joins.rs`).
//!
//! A call ends its run, so the frames of callers are never in the middle of a run, or between runs
//! that are counted together; every transfer point is followed by the start of a run, so frames
//! that come from other versions are not either.
//!
//! Counting changes no decision of the compiler: as for sites, frames are the same as in all other
//! versions of the function.
//!
//! The number of times that a `br_if`, `br_on_null` or `br_on_non_null` was not taken is the count
//! of the run after it; the same is true for the first part of an `if`. If a loop follows, a run
//! without instructions precedes its label. Targets of a `br_table` and operands of a `select` have
//! separate cells, for instructions that [`Counting`] names.

pub(super) mod joins;
mod loops;

use wasmparser::Operator;

use self::joins::Joins;
use self::loops::OpenLoop;
use crate::asm::{Alu, Cond, Mem, Reg, Size, Width};
use crate::compiler::abi::{CONTEXT, FLOAT_SCRATCH, SCRATCH};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::sites::is_control;
use crate::compiler::state::Flag;
use crate::compiler::stubs::increment;
use crate::vmctx::COUNTERS;

#[cfg(doc)]
use crate::compiler::Observer;

/// The number of bytes that counting one instruction may add to the code.
pub(crate) const MAX_BYTES: u32 = 96;

/// What a counting version counts, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counting {
    /// The index of the first run's cell among the instance's counters; the cells of the other runs
    /// follow.
    pub first_cell: u32,
    /// Instructions that choose, each a `br_table` or a `select`, by their offsets in the module in
    /// ascending order, with the cell of the first choice. For a `br_table`, the first choice is
    /// the target of index 0, and the last one is the default. For a `select`, the first choice is
    /// a condition of 0.
    pub choices: Box<[(u32, u32)]>,
    /// In a plain version, where the runs of the other versions begin, whose cells its runs use.
    /// Runs that only the plain version has share the cell after them, unless they are joined.
    pub runs: Option<Box<[u32]>>,
    /// The starts of the runs that add to their cells, in ascending order; `None` if all do. A run
    /// that is joined to another one is never among them: it is counted if that one is.
    pub counted: Option<Box<[u32]>>,
    /// The offset of an instance's counters from its context, if it is the same for all instances;
    /// otherwise, the address before the context leads to them ([`COUNTERS`]).
    pub counters: Option<i32>,
}

impl Counting {
    /// Whether a run that is not joined to another one adds to its cell.
    #[must_use]
    pub fn counts(&self, run: u32) -> bool {
        self.counted.as_ref().is_none_or(|counted| counted.binary_search(&run).is_ok())
    }

    /// The number of a run, or `None` if only a plain version has it, and the number of the next
    /// one.
    fn number(&self, next: u32, position: u32) -> (Option<u32>, u32) {
        let Some(runs) = &self.runs else { return (Some(next), next + 1) };
        let after = &runs[next as usize..];
        let next = next + after.partition_point(|start| *start < position) as u32;
        let is_known = runs.get(next as usize) == Some(&position);
        if is_known { (Some(next), next + 1) } else { (None, next) }
    }

    /// The number of the cell that runs share which only a plain version has.
    fn shared(&self) -> u32 {
        self.runs.as_ref().map_or(0, |runs| runs.len() as u32)
    }
}

/// A straight-line run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The offset of the run's first instruction in the module. For a run without instructions, it
    /// is that of the following loop; for the run that begins at the entry, that of the body.
    pub wasm: u32,
    /// The code offset at which the run begins.
    pub code: u32,
    /// The code offset from which the run has been counted.
    pub counted: u32,
    /// The [`wasm`](Self::wasm) of the run with which it is counted: its own, or that of an earlier
    /// one, if this run is joined. The latter is executed as often, except for traps between the
    /// two.
    pub with: u32,
}

/// The compilation of a counting version.
#[derive(Debug)]
pub(crate) struct RunState<'a> {
    pub(crate) counting: &'a Counting,
    /// The number of the next run of the other versions.
    next: u32,
    /// Whether the next instruction begins a run.
    is_over: bool,
    joins: Joins,
    /// The run with which the current one is counted.
    with: u32,
    /// The run with which the next one is counted, if it is joined.
    joined: Option<u32>,
    /// Whether the last run was ended by an instruction after which control may continue.
    after_condition: bool,
    /// What the assembler counted as changes of `r11` when the code loaded the address of the
    /// counters into it, if control has come straight from there.
    pub(crate) loaded: Option<u32>,
    /// The innermost loop, if it has no other loop in it.
    pub(crate) open_loop: Option<OpenLoop>,
}

impl<'a> RunState<'a> {
    pub(crate) fn new(counting: &'a Counting, joins: Joins) -> Self {
        Self {
            counting,
            next: 0,
            is_over: true,
            joins,
            with: 0,
            joined: None,
            after_condition: false,
            loaded: None,
            open_loop: None,
        }
    }
}

/// Whether a straight-line run ends after this instruction, regardless of the next one. Runs also
/// end at labels and after calls: see [`FunctionCompiler::end_run`].
pub(crate) fn ends_run(operator: &Operator<'_>) -> bool {
    let continues = matches!(operator, Operator::Block { .. } | Operator::Loop { .. } | Operator::End);
    is_control(operator) && !continues
}

impl FunctionCompiler<'_> {
    /// The next instruction begins a run: control may come here without having executed the
    /// instructions before it.
    pub(crate) fn end_run(&mut self) {
        self.settle_fuel();
        if let Some(runs) = &mut self.runs {
            runs.is_over = true;
            runs.joined = None;
            runs.loaded = None;
            // A label may follow code after a condition that is never executed.
            runs.after_condition = false;
        }
    }

    /// Ends a run after an operator that is its last.
    pub(crate) fn end_run_after(&mut self, operator: &Operator<'_>) {
        if ends_run(operator) {
            self.settle_fuel();
        }
        if let Some(runs) = &mut self.runs {
            runs.is_over |= ends_run(operator);
            runs.after_condition = matches!(
                operator,
                Operator::BrIf { .. }
                    | Operator::BrOnNull { .. }
                    | Operator::BrOnNonNull { .. }
                    | Operator::BrOnCast { .. }
                    | Operator::BrOnCastFail { .. }
                    | Operator::If { .. }
            );
        }
    }

    /// Begins the run before a loop's label, if one is needed there.
    pub(crate) fn begin_run_before_loop(&mut self) {
        if self.runs.as_ref().is_some_and(|runs| runs.after_condition) {
            self.begin_run(self.instruction.position);
        }
    }

    /// Begins a run before an instruction, or at the entry, if the last one has ended.
    pub(crate) fn begin_run(&mut self, position: u32) {
        let Some(runs) = &mut self.runs else { return };
        if !std::mem::replace(&mut runs.is_over, false) {
            return;
        }
        let (number, next) = runs.counting.number(runs.next, position);
        runs.next = next;
        let code = self.asm.offset();
        let joined = runs.joined.take();
        // A run that only a plain version has is the rest of the one before it in the others, and
        // what follows is counted with that one there.
        if number.is_some() {
            runs.with = joined.unwrap_or(position);
        }
        if joined.is_some() {
            let with = runs.with;
            return self.show_run(Run { wasm: position, code, counted: code, with });
        }
        let number = number.unwrap_or_else(|| runs.counting.shared());
        if !runs.counting.counts(position) {
            return self.show_run(Run { wasm: position, code, counted: code, with: position });
        }
        let cell = 8 * (runs.counting.first_cell + number) as i32;
        let counted = self.increment_run(cell);
        self.flags_hold_since(code);
        self.show_run(Run { wasm: position, code, counted, with: position });
    }

    /// The run that is being executed where the current instruction opens a block, if the block
    /// joins.
    pub(crate) fn joined_run(&self) -> Option<u32> {
        let runs = self.runs.as_ref()?;
        runs.joins.contains(self.instruction.position).then_some(runs.with)
    }

    /// At the end of a block: the next run is counted with this one, if the block joins.
    pub(crate) fn join_run(&mut self, with: Option<u32>) {
        if let Some(runs) = &mut self.runs {
            runs.joined = with;
        }
    }

    /// The first cell of the choices of the current instruction, if they are counted.
    fn choices(&self) -> Option<u32> {
        let choices = &self.runs.as_ref()?.counting.choices;
        let at = choices.binary_search_by_key(&self.instruction.position, |(wasm, _)| *wasm).ok()?;
        Some(choices[at].1)
    }

    /// The base register and the offset of the instance's counters, whose address this loads if
    /// they are elsewhere in each instance.
    fn counters(&mut self) -> (Reg, i32) {
        if let Some(first) = self.first_counter() {
            return (CONTEXT, first);
        }
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, COUNTERS));
        (SCRATCH, 0)
    }

    /// The offset of the counters from the context, if it is known.
    pub(crate) fn first_counter(&self) -> Option<i32> {
        self.runs.as_ref()?.counting.counters
    }

    /// Adds 1 to the quadword at `cell`, an offset in the counters. Returns the offset of the code
    /// that follows the addition. Changes the scratch registers, and the flags unless they are
    /// needed.
    pub(crate) fn increment(&mut self, cell: i32, needs_flags: bool) -> u32 {
        let Some(first) = self.first_counter() else {
            return increment(&mut self.asm, cell, needs_flags);
        };
        let cell = Mem::base(CONTEXT, first + cell);
        if needs_flags {
            self.asm.mov(Width::W64, SCRATCH, cell);
            self.asm.lea(Width::W64, SCRATCH, Mem::base(SCRATCH, 1));
            self.asm.mov_store(Size::B8, cell, SCRATCH);
        } else {
            self.asm.alu_imm(Alu::Add, Width::W64, cell, 1);
        }
        self.asm.offset()
    }

    /// Counts the target of a `br_table` with this many targets, if that was requested: the default
    /// is the last one. Changes `free` and the flags.
    pub(crate) fn count_target(&mut self, index: Reg, targets: usize, free: Reg) {
        let Some(cell) = self.choices() else { return };
        self.asm.mov_imm(free, targets as u64);
        self.asm.alu(Alu::Cmp, Width::W32, index, free);
        self.asm.cmov(Cond::Below, Width::W32, free, index);
        let (base, first) = self.counters();
        self.asm.alu_imm(Alu::Add, Width::W64, Mem::indexed(base, free, 3, first + 8 * cell as i32), 1);
    }

    /// Counts a choice that is known, if that was requested. Preserves the flags.
    pub(crate) fn count_known(&mut self, choice: u32) {
        let Some(cell) = self.choices() else { return };
        let before = self.asm.offset();
        self.increment(8 * (cell + choice) as i32, true);
        self.flags_hold_since(before);
    }

    /// Counts the condition of a `select`, which is in the flags, if that was requested. Preserves
    /// the flags, and all registers except the scratch registers.
    pub(crate) fn count_condition(&mut self, flag: Flag) {
        let Some(cell) = self.choices() else { return };
        let (cond, unordered) = match flag {
            Flag::Int(cond) => (cond, None),
            Flag::NonZero => (Cond::NotEqual, None),
            Flag::FloatEqual => (Cond::Equal, Some(0)),
            Flag::FloatNotEqual => (Cond::NotEqual, Some(1)),
        };
        self.asm.float_from_bits(Width::W64, FLOAT_SCRATCH, Reg::RAX);
        self.asm.setcc(cond, Reg::RAX);
        self.asm.movzx(Size::B1, Reg::RAX, Reg::RAX);
        if let Some(choice) = unordered {
            self.asm.mov_imm(SCRATCH, choice);
            self.asm.cmov(Cond::Parity, Width::W32, Reg::RAX, SCRATCH);
        }
        let (base, first) = self.counters();
        self.asm.lea(Width::W64, SCRATCH, Mem::indexed(base, Reg::RAX, 3, first + 8 * cell as i32));
        self.asm.mov(Width::W64, Reg::RAX, Mem::base(SCRATCH, 0));
        self.asm.lea(Width::W64, Reg::RAX, Mem::base(Reg::RAX, 1));
        self.asm.mov_store(Size::B8, Mem::base(SCRATCH, 0), Reg::RAX);
        self.asm.float_to_bits(Width::W64, Reg::RAX, FLOAT_SCRATCH);
    }
}
