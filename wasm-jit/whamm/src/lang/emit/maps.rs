//! Looks up keys in maps, whose layout and functions are those of `runtime.wat`.
//!
//! The first entry with which a key is compared is usually the right one. When a map is read by a
//! key of one word, this comparison is a part of the rule's function, which calls the runtime only
//! if it fails. If the function is short enough and the registers suffice, the engine executes it
//! in place of calling it, up to the point where it makes a call. A key that is looked up again is
//! not searched for a second time.

use std::mem::discriminant;

use wasm_encoder::{BlockType, Instruction as I, ValType};

use super::super::ir::{Kind, Place, Typed};
use super::super::types::Type;
use super::code::{Code, memarg};
use super::runtime::{HASH, KEY};

/// A key that has been looked up in a map: its words, and the address of its value, or 0, in
/// locals.
#[derive(Clone, Debug)]
pub(super) struct Found {
    map: Place,
    key: Typed,
    words: Vec<u32>,
    address: u32,
}

/// The last key that was looked up, as long as another lookup of it would have the same result.
///
/// Adding a key to a map moves the values of others, so nothing is remembered after a call, or
/// another key. What is found in an arm of an `if` is not known after it.
#[derive(Default)]
pub(super) struct Finds {
    last: Option<Found>,
    /// For each open block: what was known when it was opened, and whether that is still known
    /// after it; not any more as soon as an arm forgets or replaces it.
    open: Vec<(Option<Found>, bool)>,
}

impl Finds {
    fn of(&self, map: Place, key: &Typed) -> Option<Found> {
        self.last.clone().filter(|found| found.map == map && found.key == *key)
    }

    fn remember(&mut self, map: Place, key: &Typed, words: Vec<u32>, address: u32) {
        self.last = is_simple(key).then(|| Found { map, key: key.clone(), words, address });
    }

    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// A variable at this place is set.
    pub(super) fn forget_keys_of(&mut self, place: Place) {
        let is_same_storage = |other: Place| discriminant(&other) == discriminant(&place);
        if self.last.as_ref().is_some_and(|found| has_variable(&found.key, &is_same_storage)) {
            self.forget();
        }
    }

    /// Begins a block. Branches come to the end of a block or the beginning of a loop with other
    /// lookups, so nothing is known inside or after it. No branch leads to the end of an `if`.
    pub(super) fn open(&mut self, is_if: bool) {
        if !is_if {
            self.forget();
        }
        self.open.push((self.last.clone(), is_if));
    }

    pub(super) fn otherwise(&mut self) {
        let is_same = self.is_as_before();
        if let Some((before, is_known)) = self.open.last_mut() {
            *is_known &= is_same;
            self.last.clone_from(before);
        }
    }

    pub(super) fn close(&mut self) {
        let is_same = self.is_as_before();
        if !self.open.pop().is_some_and(|(_, is_known)| is_known && is_same) {
            self.forget();
        }
    }

    /// Whether the same is known as before the innermost block.
    fn is_as_before(&self) -> bool {
        let address = |found: &Option<Found>| found.as_ref().map(|found| found.address);
        self.open.last().is_some_and(|(before, _)| address(before) == address(&self.last))
    }
}

/// Whether a key depends on nothing but variables and the values of the event.
fn is_simple(key: &Typed) -> bool {
    let is_simple_itself = matches!(
        key.kind,
        Kind::Const(_)
            | Kind::Variable(..)
            | Kind::Request(_)
            | Kind::Unary(..)
            | Kind::Binary(..)
            | Kind::Cast(_)
    );
    is_simple_itself && key.children().into_iter().all(is_simple)
}

fn has_variable(key: &Typed, is_such: &impl Fn(Place) -> bool) -> bool {
    matches!(key.kind, Kind::Variable(place, _) if is_such(place))
        || key.children().into_iter().any(|child| has_variable(child, is_such))
}

impl Code<'_> {
    /// The address of a key's value, in a local; the key is added if it is missing.
    pub(super) fn slot(&mut self, map: Place, key: &Typed, value: &Type) -> u32 {
        if let Some(Found { words, address, .. }) = self.found.of(map, key) {
            self.raw([I::LocalGet(address), I::I32Eqz]);
            self.open(I::If(BlockType::Empty));
            self.store_key(&words);
            self.call_with_entry("slot", map, words.len() as u32, value);
            self.raw([I::LocalSet(address)]);
            self.close();
            return address;
        }
        let words = self.keep(key);
        self.store_key(&words);
        let address = self.slot_of_key(map, words.len() as u32, value);
        self.found.remember(map, key, words, address);
        address
    }

    /// The same for a key whose words have been stored.
    pub(super) fn slot_of_key(&mut self, map: Place, words: u32, value: &Type) -> u32 {
        let address = self.local(ValType::I32);
        self.call_with_entry("slot", map, words, value);
        self.raw([I::LocalSet(address)]);
        address
    }

    /// The address of a key's value, or 0 if the key is missing, in a local.
    pub(super) fn find(&mut self, map: Place, key: &Typed, value: &Type) -> u32 {
        if let Some(Found { address, .. }) = self.found.of(map, key) {
            return address;
        }
        let words = self.keep(key);
        let address = self.local(ValType::I32);
        if let [word] = words[..] {
            self.compare_first(map, word, value, address);
            self.raw([I::LocalGet(address), I::I32Eqz]);
            self.open(I::If(BlockType::Empty));
        }
        self.store_key(&words);
        self.call_with_entry("find", map, words.len() as u32, value);
        self.raw([I::LocalSet(address)]);
        if words.len() == 1 {
            self.close();
        }
        self.found.remember(map, key, words, address);
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
