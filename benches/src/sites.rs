//! Code with call sites of every shape at every split, to be toggled and timed.

use callpatch::{Clobbers, Shape};
use wordpatch::near::NearBlock;
use wordpatch::{FetchWindow, Split};

/// A call of five bytes, switched off.
pub const E8_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// The bytes of the text at `address`.
///
/// # Safety
/// `N` bytes of text are mapped there, and are not written concurrently.
pub unsafe fn code_at<const N: usize>(address: usize) -> [u8; N] {
    let text = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the caller's obligation.
    std::array::from_fn(|index| unsafe { text.add(index).read_volatile() })
}

/// A kind of call site.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The instruction.
    pub shape: Shape,
    /// The split of the instruction by a boundary of the window.
    pub split: Split,
    /// Registers that it may change while inactive.
    pub clobbers: Clobbers,
    /// The offset of the instruction in the cache line.
    pub offset: usize,
}

impl Case {
    /// Every distinct kind of site under this fetch window.
    pub fn all(window: FetchWindow) -> Vec<Self> {
        let mut cases = Vec::new();
        for shape in [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump] {
            let mut push = |front: usize, clobbers| {
                let offset = if front == 0 { 0 } else { window.bytes() - front };
                cases.push(Self { shape, split: window.split(offset, shape.len()), clobbers, offset });
            };
            push(0, Clobbers::Nothing);
            for front in (1..shape.len()).rev() {
                push(front, Clobbers::Nothing);
                if !shape.is_tail_call() {
                    push(front, Clobbers::CallerSaved);
                }
            }
        }
        cases
    }

    /// The displayed name of the instruction.
    pub fn shape_name(&self) -> &'static str {
        match self.shape {
            Shape::Call => "E8 call",
            Shape::Jump => "E9 jmp",
            Shape::IndirectCall => "FF15 call",
            Shape::IndirectJump => "FF25 jmp",
        }
    }

    /// The displayed split: front and back bytes.
    pub fn split_name(&self) -> String {
        match self.split {
            Split::Inside => "inside".into(),
            Split::Crossing { front } => format!("{front}|{}", self.shape.len() - front),
        }
    }
}

/// A function that executes a call site once.
#[derive(Clone, Copy, Debug)]
pub struct SiteFunction {
    /// The address of the function, which takes and returns nothing.
    pub entry: usize,
    /// The address of the site.
    pub site: usize,
}

/// A loop around a call site.
#[derive(Clone, Copy, Debug)]
pub struct LoopFunction {
    /// The address of the loop: a `fn(iterations, count) -> count`.
    entry: usize,
    /// The address of the site in the loop, if there is one.
    pub site: usize,
}

impl LoopFunction {
    /// Runs the loop, and returns the number of calls of [`Code::counting`].
    pub fn run(&self, iterations: u64) -> u64 {
        // SAFETY: `Code::loop_around` made it a function of this type.
        let function: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(self.entry) };
        function(iterations, 0)
    }
}

/// A block of code and its pointers, while it is generated.
#[derive(Debug)]
pub struct Code {
    block: NearBlock,
    used: usize,
    pointers: usize,
    capacity: usize,
}

/// Each function has three cache lines: the site may start at any offset of the second.
const SLOT: usize = 192;
const LINE: usize = 64;

const SUB_RSP_8: [u8; 4] = [0x48, 0x83, 0xec, 0x08];
const ADD_RSP_8: [u8; 4] = [0x48, 0x83, 0xc4, 0x08];
const DEC_RDI: [u8; 3] = [0x48, 0xff, 0xcf];
const INC_RSI: [u8; 3] = [0x48, 0xff, 0xc6];
const MOV_RAX_RSI: [u8; 3] = [0x48, 0x89, 0xf0];
const JNZ_REL8: u8 = 0x75;
const RET: u8 = 0xc3;

impl Code {
    /// Allocates space for `functions` functions near the address.
    ///
    /// # Panics
    /// If memory cannot be allocated.
    pub fn near(address: usize, functions: usize) -> Self {
        let block = NearBlock::allocate(&(address..address + 1), functions * SLOT, functions * 8);
        let block = block.expect("memory near the text");
        Self { block, used: 0, pointers: 0, capacity: functions }
    }

    fn slot(&mut self) -> usize {
        assert!(self.used < self.capacity, "room for {} functions", self.capacity);
        self.used += 1;
        self.block.code_address() + (self.used - 1) * SLOT
    }

    /// Writes bytes, and returns the address after them.
    fn put(&mut self, address: usize, bytes: &[u8]) -> usize {
        let at = address - self.block.code_address();
        self.block.code_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        address + bytes.len()
    }

    fn pointer_to(&mut self, target: usize) -> usize {
        let place = self.block.data_address() + self.pointers * 8;
        assert!(self.pointers < self.capacity, "room for {} pointers", self.capacity);
        self.pointers += 1;
        // SAFETY: the block's data is mapped writable, and has space for `capacity` aligned
        // pointers.
        unsafe { std::ptr::with_exposed_provenance_mut::<usize>(place).write(target) };
        place
    }

    /// Writes an active site that calls `target`.
    fn put_site(&mut self, address: usize, shape: Shape, target: usize) -> usize {
        let (opcode, operand): (&[u8], usize) = match shape {
            Shape::Call => (&[0xe8], target),
            Shape::Jump => (&[0xe9], target),
            Shape::IndirectCall => (&[0xff, 0x15], self.pointer_to(target)),
            Shape::IndirectJump => (&[0xff, 0x25], self.pointer_to(target)),
        };
        let end = address + shape.len();
        let displacement = operand.wrapping_sub(end) as i32;
        let behind_opcode = self.put(address, opcode);
        self.put(behind_opcode, &displacement.to_le_bytes())
    }

    /// An empty function.
    pub fn empty(&mut self) -> usize {
        let start = self.slot() + LINE;
        self.put(start, &[RET]);
        start
    }

    /// A function that counts its calls, for [`LoopFunction::run`] to return.
    pub fn counting(&mut self) -> usize {
        let start = self.slot() + LINE;
        let end = self.put(start, &INC_RSI);
        self.put(end, &[RET]);
        start
    }

    /// A function that executes a site of this kind, which calls `target`.
    pub fn function_with(&mut self, case: &Case, target: usize) -> SiteFunction {
        let site = self.slot() + LINE + case.offset;
        let end = self.put_site(site, case.shape, target);
        if case.shape.is_tail_call() {
            return SiteFunction { entry: site, site };
        }
        let entry = site - SUB_RSP_8.len();
        self.put(entry, &SUB_RSP_8);
        let end = self.put(end, &ADD_RSP_8);
        self.put(end, &[RET]);
        SiteFunction { entry, site }
    }

    /// A loop around a site of this kind, which calls `target`; without a target, the same loop
    /// without the site. A tail call is in a separate function, which the loop calls.
    ///
    /// ```text
    ///       sub  rsp, 8
    /// head: call target          (the site: `head` is its place in the fetch window)
    ///       dec  rdi
    ///       jnz  head
    ///       mov  rax, rsi
    ///       add  rsp, 8
    ///       ret
    /// ```
    pub fn loop_around(&mut self, case: &Case, target: Option<usize>) -> LoopFunction {
        let site = self.slot() + LINE + case.offset;
        let (head, end) = if case.shape.is_tail_call() {
            match target {
                Some(target) => _ = self.put_site(site, case.shape, target),
                None => _ = self.put(site, &[RET]),
            }
            let head = self.slot() + LINE;
            (head, self.put_site(head, Shape::Call, site))
        } else {
            (site, target.map_or(site, |target| self.put_site(site, case.shape, target)))
        };
        let end = self.put(end, &DEC_RDI);
        let back = head as i64 - (end as i64 + 2);
        let end = self.put(end, &[JNZ_REL8, i8::try_from(back).expect("a short loop") as u8]);
        let end = self.put(end, &MOV_RAX_RSI);
        let end = self.put(end, &ADD_RSP_8);
        self.put(end, &[RET]);
        let entry = head - SUB_RSP_8.len();
        self.put(entry, &SUB_RSP_8);
        LoopFunction { entry, site }
    }

    /// Makes the code executable.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn finish(self) {
        self.block.seal().expect("executable memory");
    }
}

/// Runs a [`SiteFunction`].
pub fn run(function: SiteFunction) {
    // SAFETY: `Code::function_with` made it a function without arguments and result.
    let function: extern "C" fn() = unsafe { std::mem::transmute(function.entry) };
    function();
}
