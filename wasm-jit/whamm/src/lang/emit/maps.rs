//! Looks up keys in maps, whose layout and functions are those of `runtime.wat`.
//!
//! The first entry with which a key is compared is usually the right one. When a map is read by a
//! key of one word, this comparison is a part of the rule's function, which calls the runtime only
//! if it fails. If the function is short enough and the registers suffice, the engine executes it
//! in place of calling it, up to the point where it makes a call.

use wasm_encoder::{BlockType, Instruction as I, ValType};

use super::super::ir::{Place, Typed};
use super::super::types::Type;
use super::code::{Code, memarg};
use super::runtime::{HASH, KEY};

impl Code<'_> {
    /// The address of a key's value, in a new local; the key is added if it is missing.
    pub(super) fn slot(&mut self, map: Place, key: &Typed, value: &Type) -> u32 {
        let key = self.keep(key);
        self.store_key(&key);
        self.slot_of_key(map, key.len() as u32, value)
    }

    /// The same for a key whose words have been stored.
    pub(super) fn slot_of_key(&mut self, map: Place, words: u32, value: &Type) -> u32 {
        let address = self.local(ValType::I32);
        self.call_with_entry("slot", map, words, value);
        self.raw([I::LocalSet(address)]);
        address
    }

    /// The address of a key's value, or 0 if the key is missing, in a new local.
    pub(super) fn find(&mut self, map: Place, key: &Typed, value: &Type) -> u32 {
        let key = self.keep(key);
        let address = self.local(ValType::I32);
        if let [word] = key[..] {
            self.compare_first(map, word, value, address);
            self.raw([I::LocalGet(address), I::I32Eqz]);
            self.open(I::If(BlockType::Empty));
        }
        self.store_key(&key);
        self.call_with_entry("find", map, key.len() as u32, value);
        self.raw([I::LocalSet(address)]);
        if key.len() == 1 {
            self.close();
        }
        address
    }

    /// Sets `address` to that of the value in the first entry with which a key is compared, or to 0
    /// if there is none, or it has another key.
    fn compare_first(&mut self, map: Place, word: u32, value: &Type, address: u32) {
        let entry = self.local(ValType::I32);
        self.int(0);
        self.raw([I::LocalSet(address)]);
        self.field(map, 8);
        self.open(I::If(BlockType::Empty));
        // The slot is the product's highest bits.
        self.word(word);
        self.raw([I::I64Const(HASH), I::I64Mul, I::I64Const(32), I::I64ShrU]);
        self.field(map, 8);
        self.raw([I::I64ExtendI32U, I::I64Mul, I::I64Const(31), I::I64ShrU, I::I32WrapI64]);
        self.raw([I::I32Const(2), I::I32Shl]);
        self.field(map, 4);
        self.raw([I::I32Add, I::I32Load(memarg(0)), I::LocalTee(entry)]);
        self.open(I::If(BlockType::Empty));
        self.raw([I::LocalGet(entry), I::I32Const(1), I::I32Sub]);
        self.int(8 + value.size());
        self.raw([I::I32Mul]);
        self.field(map, 0);
        self.raw([I::I32Add, I::LocalTee(entry), I::I64Load(memarg(0))]);
        self.word(word);
        self.raw([I::I64Eq]);
        self.open(I::If(BlockType::Empty));
        self.raw([I::LocalGet(entry), I::I32Const(8), I::I32Add, I::LocalSet(address)]);
        self.close();
        self.close();
        self.close();
    }

    /// Pushes a field of a map.
    fn field(&mut self, map: Place, field: u32) {
        let offset = self.base(map) + field;
        self.load(ValType::I32, offset);
    }

    /// Pushes a local as a word of a key.
    fn word(&mut self, local: u32) {
        self.raw([I::LocalGet(local)]);
        match self.type_of(local) {
            ValType::F32 => self.raw([I::I32ReinterpretF32, I::I64ExtendI32U]),
            ValType::F64 => self.raw([I::I64ReinterpretF64]),
            ValType::I64 => {}
            _ => self.raw([I::I64ExtendI32U]),
        }
    }

    /// Stores the words of a key where the runtime expects them.
    fn store_key(&mut self, key: &[u32]) {
        for (index, local) in (0..).zip(key) {
            self.int(0);
            self.word(*local);
            self.raw([I::I64Store(memarg(KEY + 8 * index))]);
        }
    }

    /// Calls a function of the runtime with a map, the number of words of the key, and the size of
    /// an entry.
    fn call_with_entry(&mut self, name: &str, map: Place, words: u32, value: &Type) {
        let offset = self.base(map);
        self.int(offset);
        self.raw([I::I32Add]);
        self.int(words);
        self.int(8 * words + value.size());
        self.call(name);
    }
}
