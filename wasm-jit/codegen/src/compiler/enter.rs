//! The start of a function's body: which locals its outermost region caches in registers, and moves
//! of the parameters to their locations.

use super::abi::{ArgPlace, ArgPlaces, SCRATCH, Ty};
use super::cached_locals::{MAX_REGION_DEPTH, Part, Region};
use super::function::FunctionCompiler;
use super::register_file::Holder;
use super::scan::LoopFacts;
use super::state::{Local, Place};
use crate::asm::{Alu, Cond, Mem, Reg, RegClass, Size, Width};

impl FunctionCompiler<'_> {
    /// Chooses the register-cached locals of a loop, or of the function.
    pub(super) fn choose_region(&mut self, facts: Option<usize>) -> Region {
        if self.is_plain() {
            return Region::none();
        }
        let part = match facts {
            None => Part { accesses: &self.scan.accesses, depth: 0, blocks: self.scan.blocks },
            Some(index) => {
                let LoopFacts { first, end, depth, blocks, .. } = self.scan.loops[index];
                let accesses = &self.scan.accesses[first as usize..end as usize];
                Part { accesses, depth: depth + 1, blocks }
            }
        };
        if part.depth > MAX_REGION_DEPTH {
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
        self.chooser.choose(part, self.regions.current(), ty, arrives, locals.len())
    }

    /// Emits the function's entry: moves parameters to their locations and initializes locals.
    pub(super) fn enter(&mut self) {
        let region = self.choose_region(None);
        self.regions.set_outermost(region);
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
        let slot_bytes = self.frame.slot_bytes();
        if slots.len() <= 3 {
            for local in slots {
                let slot = self.frame.local_slot(local);
                match self.locals[local as usize].ty {
                    Ty::V128 => self.move_value(Ty::V128, Place::Mem(slot), Place::Const(0)),
                    _ => self.asm.mov_store_imm(Size::B8, slot, 0),
                }
            }
            return;
        }
        // From the lowest address, which is the last local's, upwards; excess bytes are written
        // below, to operand slots.
        let stores = (slot_bytes * (last - first + 1)).div_ceil(32);
        let top = self.frame.local_slot(first).disp() + slot_bytes as i32;
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
}
