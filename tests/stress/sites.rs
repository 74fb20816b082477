//! Instructions to patch, whose mixtures are distinguishable from all valid forms.
//!
//! ```text
//! value 2k      b8 vv vv vv vv    mov eax, imm32
//! value 2k+1    ba vv vv vv vv    mov edx, imm32
//! ```
//!
//! The four bytes of the operand are equal, and its lowest bit selects the register.

use std::arch::asm;

use wordpatch::near::NearBlock;
use wordpatch::{FetchModel, Patch};

use crate::random::Random;

/// `ret`.
pub(crate) const RET: u8 = 0xc3;

/// Length of a site.
pub(crate) const LENGTH: usize = 5;

/// The value of a site. Not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value(pub(crate) u8);

/// Opcodes of a site's even and odd values.
pub(crate) type Opcodes = [u8; 2];

/// `mov eax` and `mov edx`.
const EAX_EDX: Opcodes = [0xb8, 0xba];

impl Value {
    pub(crate) const FIRST: Self = Self(2);

    /// A different value.
    pub(crate) fn other(self, random: &mut Random) -> Self {
        loop {
            let next = Self(1 + random.below(255) as u8);
            if next != self {
                return next;
            }
        }
    }

    /// The next value, which uses the other register except after the last one.
    pub(crate) fn next(self) -> Self {
        Self(self.0 % u8::MAX + 1)
    }

    /// The instruction.
    pub(crate) fn form(self) -> [u8; LENGTH] {
        self.form_with(EAX_EDX)
    }

    /// The instruction with other opcodes.
    pub(crate) fn form_with(self, opcodes: Opcodes) -> [u8; LENGTH] {
        let Self(value) = self;
        [opcodes[usize::from(value & 1)], value, value, value, value]
    }
}

/// Whether the registers of the even and the odd values, initially zero, hold one value.
pub(crate) fn is_whole(even: u32, odd: u32) -> bool {
    let whole = |register: u32, last_bit| register != 0 && register & 1 == last_bit && is_repeated(register);
    if odd == 0 { whole(even, 0) } else { even == 0 && whole(odd, 1) }
}

/// Whether all four bytes are equal.
pub(crate) fn is_repeated(register: u32) -> bool {
    register.rotate_left(8) == register
}

/// Executes the site once; returns its value unless it was torn. May be called from a signal
/// handler.
pub(crate) fn execute(site: usize) -> Option<Value> {
    let (even, odd): (u32, u32);
    // SAFETY: a site is a move to EAX or EDX, or a mixture of two of them, followed by a return.
    unsafe { asm!("call {}", in(reg) site, inout("eax") 0 => even, inout("edx") 0 => odd) };
    is_whole(even, odd).then_some(Value((even | odd) as u8))
}

/// The current bytes.
pub(crate) fn bytes_at(site: usize) -> [u8; LENGTH] {
    let text = std::ptr::with_exposed_provenance::<u8>(site);
    // SAFETY: callers pass text of this program, which stays mapped.
    std::array::from_fn(|i| unsafe { text.add(i).read_volatile() })
}

/// Whether the site holds this value, unlocked.
pub(crate) fn holds(site: usize, value: Value) -> bool {
    bytes_at(site) == value.form()
}

/// Distance between two sites, and the offset of site `number` in its line: split by the fetch
/// window in force after 1 to 4 bytes, at the end of the line or of an earlier window; every fifth
/// is not split.
pub(crate) fn offset_of(number: usize) -> usize {
    const LINE: usize = 64;
    let window = FetchModel::in_force().window.bytes();
    let end = if number.is_multiple_of(2) { LINE } else { window };
    let within = match number % LENGTH {
        0 => 8,
        front => end - front,
    };
    number * 2 * LINE + within
}

/// `count` sites with [`Value::FIRST`], in text allocated by this program.
pub(crate) fn make(count: usize) -> Vec<usize> {
    let mut code = vec![0; offset_of(count) + 16];
    write(&mut code, count, Value::FIRST);
    let start = text(code.len(), |_| code.clone());
    (0..count).map(|number| start + offset_of(number)).collect()
}

/// Writes sites into memory that is not executed yet.
pub(crate) fn write(code: &mut [u8], count: usize, value: Value) {
    for at in (0..count).map(offset_of) {
        code[at..at + LENGTH].copy_from_slice(&value.form());
        code[at + LENGTH] = RET;
    }
}

/// A sealed block with the code that `code` returns for its address.
pub(crate) fn text(length: usize, code: impl FnOnce(usize) -> Vec<u8>) -> usize {
    let anchor = make as *const () as usize;
    let mut block = NearBlock::allocate(&(anchor..anchor), length, 0).expect("a block of text");
    let code = code(block.code_address());
    block.code_mut()[..code.len()].copy_from_slice(&code);
    block.seal().expect("text can be sealed").code
}

/// A patch with its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) site: usize,
    old: [u8; LENGTH],
    new: [u8; LENGTH],
}

impl Change {
    pub(crate) fn new(site: usize, old: Value, new: Value) -> Self {
        Self { site, old: old.form(), new: new.form() }
    }

    pub(crate) fn patch(&self) -> Patch<'_> {
        Patch { address: self.site, expected: &self.old, replacement: &self.new }
    }
}
