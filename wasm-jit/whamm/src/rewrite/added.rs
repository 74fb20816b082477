//! Functions and globals that belong neither to the program nor to the monitor: they print, and
//! make the report.

use wasm_encoder::{BlockType, Function, Instruction as I, MemArg, MemArgTarget, ValType};
use wasm_jit::Val;

use super::merge::Numbers;

/// The name of the exported function that makes the report.
pub(super) const REPORT: &str = "whamm:report";

/// The number of the first frame. Later frames, and frames of callees, have smaller numbers.
const FIRST_FRAME: i64 = i64::MAX;

/// The numbers of functions: 0 is the one that prints.
const MAKE_REPORT: u32 = 1;
const START: u32 = 2;

/// The numbers of globals: the number of the last frame; whether there was a report; and the
/// address of the page of the program's memory from which reports are printed, or 0.
pub(super) const FRAME: u32 = 0;
const REPORTED: u32 = 1;
const PAGE: u32 = 2;

/// The offset of the printed bytes in that page; the arguments of `fd_write` are before them.
const BYTES: i32 = 16;

/// Standard error: the program's output is unchanged.
const DESCRIPTOR: i32 = 2;

/// The WASI error number for a memory that does not grow.
const NO_MEMORY: i32 = 48;

pub(super) struct Added {
    pub(super) numbers: Numbers,
    /// The program's memory that WASI reads.
    pub(super) memory: Option<u32>,
    pub(super) start: Option<Entry>,
}

/// The entry point of the program: the report is made when this function returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) function: u32,
    /// The number of its type, and of its parameters.
    pub(super) ty: u32,
    pub(super) parameters: u32,
}

/// The function that makes the report.
pub(super) fn report(numbers: Numbers) -> u32 {
    numbers.added(MAKE_REPORT)
}

/// The function that is exported in place of the entry point, if the program has one.
pub(super) fn start(numbers: Numbers) -> u32 {
    numbers.added(START)
}

/// A function's parameters, results and body.
type Typed = (Vec<ValType>, Vec<ValType>, Function);

/// The rules of the end: their functions, with arguments.
type Last<'a> = [(u32, &'a [Val])];

fn at(memory: u32, offset: u64) -> MemArg {
    MemArg { offset, align: 2, target: MemArgTarget::Memory(memory), ordering: None }
}

impl Added {
    /// Initial values of the globals, in order.
    pub(super) fn globals(&self) -> [Val; 3] {
        [Val::I64(FIRST_FRAME), Val::I32(0), Val::I32(0)]
    }

    /// The function that calls the entry point, then makes the report.
    pub(super) fn start_function(&self) -> Function {
        let mut function = Function::new([]);
        if let Some(Entry { function: entry, parameters, .. }) = self.start {
            (0..parameters).for_each(|parameter| _ = function.instruction(&I::LocalGet(parameter)));
            function.instruction(&I::Call(entry)).instruction(&I::Call(report(self.numbers)));
        }
        function.instruction(&I::End);
        function
    }

    /// The other functions, in order.
    pub(super) fn functions(&self, last: &Last<'_>) -> Vec<Typed> {
        let print = match self.memory {
            Some(memory) => self.print_from(memory),
            None => self.print(),
        };
        let i32s = |count| vec![ValType::I32; count];
        vec![(i32s(4), i32s(1), print), (Vec::new(), Vec::new(), self.make_report(last))]
    }

    /// Prints from the monitor's memory, which is the exported one.
    fn print(&self) -> Function {
        let mut function = Function::new([]);
        function.instruction(&I::I32Const(DESCRIPTOR));
        (1..4).for_each(|parameter| _ = function.instruction(&I::LocalGet(parameter)));
        function.instruction(&I::Call(self.numbers.write())).instruction(&I::End);
        function
    }

    /// Copies the bytes to a page of the program's memory, and prints them from there. The monitor
    /// passes one vector of at most 8,192 bytes.
    fn print_from(&self, memory: u32) -> Function {
        let monitor = self.numbers.memory;
        let page = self.numbers.added_global(PAGE);
        let mut function = Function::new([]);
        let code = [
            I::GlobalGet(page),
            I::I32Eqz,
            I::If(BlockType::Empty),
            // The local of the second parameter is still needed; that of the first one is free.
            I::I32Const(1),
            I::MemoryGrow(memory),
            I::LocalTee(0),
            I::I32Const(-1),
            I::I32Eq,
            I::If(BlockType::Empty),
            I::I32Const(NO_MEMORY),
            I::Return,
            I::End,
            I::LocalGet(0),
            I::I32Const(16),
            I::I32Shl,
            I::GlobalSet(page),
            I::End,
            I::GlobalGet(page),
            I::I32Const(BYTES),
            I::I32Add,
            I::LocalGet(1),
            I::I32Load(at(monitor, 0)),
            I::LocalGet(1),
            I::I32Load(at(monitor, 4)),
            I::MemoryCopy { src_mem: monitor, dst_mem: memory },
            I::GlobalGet(page),
            I::GlobalGet(page),
            I::I32Const(BYTES),
            I::I32Add,
            I::I32Store(at(memory, 0)),
            I::GlobalGet(page),
            I::LocalGet(1),
            I::I32Load(at(monitor, 4)),
            I::I32Store(at(memory, 4)),
            I::I32Const(DESCRIPTOR),
            I::GlobalGet(page),
            I::I32Const(1),
            I::GlobalGet(page),
            I::I32Const(8),
            I::I32Add,
            I::Call(self.numbers.write()),
            I::LocalGet(3),
            I::GlobalGet(page),
            I::I32Load(at(memory, 8)),
            I::I32Store(at(monitor, 0)),
            I::End,
        ];
        code.iter().for_each(|instruction| _ = function.instruction(instruction));
        function
    }

    /// Calls the rules of the end, once.
    fn make_report(&self, last: &Last<'_>) -> Function {
        let reported = self.numbers.added_global(REPORTED);
        let mut function = Function::new([]);
        for instruction in [
            I::GlobalGet(reported),
            I::If(BlockType::Empty),
            I::Return,
            I::End,
            I::I32Const(1),
            I::GlobalSet(reported),
        ] {
            function.instruction(&instruction);
        }
        for (rule, arguments) in last {
            for argument in *arguments {
                function.instruction(&match argument {
                    Val::I32(value) => I::I32Const(*value),
                    Val::I64(value) => I::I64Const(*value),
                    Val::F32(bits) => I::F32Const(f32::from_bits(*bits).into()),
                    Val::F64(bits) => I::F64Const(f64::from_bits(*bits).into()),
                    _ => unreachable!("only numbers pass the checks of loading"),
                });
            }
            function.instruction(&I::Call(*rule));
        }
        function.instruction(&I::End);
        function
    }
}
