//! Counters in place of map entries ([`counters`](super::super::counters)).
//!
//! Counters are numbered by a map, whose keys are a key of the counted map and the amount that each
//! event adds, as a 64-bit number, and whose values are the addresses of counters of eight bytes.

use wasm_encoder::{BlockType, Instruction as I, ValType};

use super::super::ast::BinaryOp;
use super::super::ir::{CountedMap, Place, Typed};
use super::super::types::Type;
use super::code::{Code, memarg};
use super::runtime::KEY;

/// The size of a counter in bytes.
const COUNTER: u32 = 8;

impl Code<'_> {
    /// Pushes the address of the counter of a key and amount, which is made if there is none.
    pub(super) fn counter(&mut self, counters: Place, key: &Typed) {
        let entry = self.slot(counters, key, &Type::U32);
        self.raw([I::LocalGet(entry), I::I32Load(memarg(0)), I::I32Eqz]);
        self.open(I::If(BlockType::Empty));
        self.raw([I::LocalGet(entry)]);
        self.int(COUNTER);
        self.call("alloc");
        self.raw([I::I32Store(memarg(0))]);
        self.close();
        self.raw([I::LocalGet(entry), I::I32Load(memarg(0))]);
    }

    /// Adds one to a counter.
    pub(super) fn count(&mut self, counter: &Typed) {
        self.expr(counter);
        self.expr(counter);
        self.raw([I::I64Load(memarg(0)), I::I64Const(1), I::I64Add, I::I64Store(memarg(0))]);
    }

    /// Adds what counters have counted to the map, and sets them to zero.
    pub(super) fn add_counts(&mut self, counted: &CountedMap) {
        let CountedMap { map, counters, key, value } = counted;
        let words = key.components().len() as u32;
        let [entry, left, counter] = [(); 3].map(|()| self.local(ValType::I32));
        for (field, local) in [(0, entry), (12, left)] {
            let counters = self.base(Place::Absolute(*counters));
            self.raw([I::I32Load(memarg(counters + field)), I::LocalSet(local)]);
        }
        self.open(I::Block(BlockType::Empty));
        self.open(I::Loop(BlockType::Empty));
        self.raw([I::LocalGet(left), I::I32Eqz, I::BrIf(1)]);
        self.raw([I::LocalGet(entry), I::I32Load(memarg(8 * words + 8)), I::LocalTee(counter)]);
        self.raw([I::I64Load(memarg(0)), I::I64Eqz, I::I32Eqz]);
        self.open(I::If(BlockType::Empty));
        for word in 0..words {
            self.int(0);
            self.raw([I::LocalGet(entry), I::I64Load(memarg(8 * word)), I::I64Store(memarg(KEY + 8 * word))]);
        }
        let address = self.slot_of_key(Place::Absolute(*map), words, value);
        let scalar = value.scalar().unwrap_or(ValType::I64);
        self.raw([I::LocalGet(address), I::LocalGet(address)]);
        self.load(scalar, 0);
        self.raw([I::LocalGet(counter), I::I64Load(memarg(0))]);
        self.raw([I::LocalGet(entry), I::I64Load(memarg(8 * words)), I::I64Mul]);
        self.cast(&Type::U64, value);
        self.operation(BinaryOp::Add, value);
        self.store(scalar, 0);
        self.raw([I::LocalGet(counter), I::I64Const(0), I::I64Store(memarg(0))]);
        self.close();
        self.raw([I::LocalGet(entry)]);
        self.int(8 * words + 16);
        self.raw([I::I32Add, I::LocalSet(entry), I::LocalGet(left)]);
        self.raw([I::I32Const(1), I::I32Sub, I::LocalSet(left), I::Br(0)]);
        self.close();
        self.close();
    }
}
