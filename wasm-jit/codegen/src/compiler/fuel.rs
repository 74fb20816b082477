//! Fuel: code that subtracts the cost of its instructions from the store's fuel, and traps if that
//! is not enough.
//!
//! As in counting versions (`counting/`), the instructions of a *straight-line run* are executed
//! one after the other: there is no label between them, and only the last one branches or calls.
//! Before the first one that costs something, the cost of the entire run is subtracted, which is
//! known when the run ends:
//!
//! ```text
//! mov r11, [r14 + STORE]
//! sub qword [r11 + FUEL], cost
//! js out_of_fuel
//! ```
//!
//! The fuel that a program consumes therefore depends only on its instructions, and it traps before
//! the first run that it cannot pay for. Every cycle contains an instruction that costs something:
//! a branch, or a call.
//!
//! Where a comparison is held in the flags, the subtraction preserves them, and does not trap: the
//! next run does. This is never the first run of a loop or of a function.

use wasmparser::Operator;

use super::abi::{CONTEXT, FLOAT_SCRATCH, SCRATCH};
use super::cold::Cold;
use super::function::FunctionCompiler;
use super::state::Val;
use crate::asm::{Alu, Cond, Mem, Reg, Size, Width};
use crate::vmctx::{FUEL, STORE, TrapCode};

/// The number of bytes that charging for one instruction may add to the code.
pub(super) const MAX_BYTES: u32 = 48;

/// Stands for the cost of a run that has not ended: it needs 32 bits.
const UNKNOWN: i32 = i32::MAX;

/// The fuel of the run that is being compiled.
#[derive(Debug)]
pub(super) struct Fuel {
    /// The cost so far.
    cost: u32,
    /// Where the code subtracts the cost; `None` if it does not yet.
    subtraction: Option<Subtraction>,
}

#[derive(Clone, Copy, Debug)]
struct Subtraction {
    /// The offset of the 32 bits.
    at: u32,
    /// Whether the code adds the negated cost instead.
    adds: bool,
}

impl Fuel {
    /// The state at the entry of a function, which costs something even if it is empty.
    pub(super) fn new() -> Self {
        Self { cost: 1, subtraction: None }
    }
}

/// The cost of an instruction: nothing if it is only structure.
fn cost(operator: &Operator<'_>) -> u32 {
    use Operator as O;
    let is_free = matches!(
        operator,
        O::Nop
            | O::Drop
            | O::Block { .. }
            | O::Loop { .. }
            | O::Else
            | O::End
            | O::Return
            | O::Unreachable
            | O::Try { .. }
            | O::Catch { .. }
            | O::CatchAll
            | O::Delegate { .. }
    );
    u32::from(!is_free)
}

impl FunctionCompiler<'_> {
    /// Charges for an instruction, before it.
    pub(super) fn charge(&mut self, operator: &Operator<'_>) {
        self.charge_cost(cost(operator));
    }

    /// Charges for the entry.
    pub(super) fn charge_entry(&mut self) {
        self.charge_cost(0);
    }

    fn charge_cost(&mut self, cost: u32) {
        let Some(fuel) = &mut self.fuel else { return };
        fuel.cost += cost;
        if fuel.cost > 0 && fuel.subtraction.is_none() {
            let subtraction = self.subtract();
            self.fuel = self.fuel.take().map(|fuel| Fuel { subtraction: Some(subtraction), ..fuel });
        }
    }

    fn subtract(&mut self) -> Subtraction {
        let is_flag = |val: Val| matches!(val, Val::Flag(_));
        let fuel = Mem::base(SCRATCH, FUEL);
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
        if self.stack.last().is_some_and(|operand| is_flag(operand.val)) {
            self.asm.float_from_bits(Width::W64, FLOAT_SCRATCH, Reg::RAX);
            self.asm.mov(Width::W64, Reg::RAX, fuel);
            self.asm.lea(Width::W64, Reg::RAX, Mem::base(Reg::RAX, UNKNOWN));
            let at = self.asm.offset() - 4;
            self.asm.mov_store(Size::B8, fuel, Reg::RAX);
            self.asm.float_to_bits(Width::W64, Reg::RAX, FLOAT_SCRATCH);
            return Subtraction { at, adds: true };
        }
        self.asm.alu_imm(Alu::Sub, Width::W64, fuel, UNKNOWN);
        let at = self.asm.offset() - 4;
        let label = self.asm.new_label();
        self.asm.jcc(Cond::Sign, label);
        let position = self.instruction.position;
        self.cold.push(Cold::Trap { label, code: TrapCode::OutOfFuel, position });
        Subtraction { at, adds: false }
    }

    /// The next instruction begins a run: the cost of the last run is known.
    pub(super) fn settle_fuel(&mut self) {
        let Some(fuel) = &mut self.fuel else { return };
        let cost = std::mem::take(&mut fuel.cost);
        if let Some(Subtraction { at, adds }) = fuel.subtraction.take() {
            let cost = cost as i32;
            self.asm.overwrite(at, &if adds { -cost } else { cost }.to_le_bytes());
        }
    }
}
