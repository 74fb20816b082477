//! A look over a function before it is compiled: where its loops are, and which locals they use.
//!
//! One pass over the operators, which takes a small part of the time of compiling. Compiling stays one pass: it only asks
//! here which locals deserve registers when it comes to a loop.
//!
//! Accesses to locals are a list in the order of the code, so that a loop's are a range of it.

use wasmparser::{BinaryReaderError, FunctionBody, Operator};

/// An access to a local, or a call: the local's index, whether it writes, and how many loops it is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access(u32);

const WRITE: u32 = 1 << 31;
/// In place of a local's index, of which a function has 50,000 at most.
const CALL: u32 = 0xffff;

impl Access {
    fn new(what: u32, write: bool, depth: u32) -> Self {
        Self(what | depth.min(255) << 16 | if write { WRITE } else { 0 })
    }

    pub(super) fn is_call(self) -> bool {
        self.0 & 0xffff == CALL
    }

    pub(super) fn local(self) -> u32 {
        self.0 & 0xffff
    }

    pub(super) fn writes(self) -> bool {
        self.0 & WRITE != 0
    }

    /// Loops around it, at most 255.
    pub(super) fn depth(self) -> u32 {
        self.0 >> 16 & 0xff
    }
}

/// A loop of the function, in the order of the code.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopFacts {
    /// Its accesses.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Loops around it.
    pub(super) depth: u32,
    /// Whether no loop is inside.
    pub(super) innermost: bool,
}

/// What the look has found. Kept from function to function for its memory.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) accesses: Vec<Access>,
    pub(super) loops: Vec<LoopFacts>,
    /// Module offset of the last access to each local; 0 for none.
    pub(super) last_access: Vec<u32>,
    /// Whether there is a `try` or `try_table`.
    pub(super) has_try: bool,
}

impl Scan {
    pub(super) fn function(
        &mut self,
        body: &FunctionBody<'_>,
        locals: usize,
    ) -> Result<(), BinaryReaderError> {
        self.accesses.clear();
        self.loops.clear();
        self.last_access.clear();
        self.last_access.resize(locals, 0);
        self.has_try = false;
        // For every open block: the loop that it is, or NONE.
        const NONE: u32 = u32::MAX;
        let mut blocks: Vec<u32> = Vec::new();
        let mut depth = 0;
        let mut reader = body.get_operators_reader()?;
        while !reader.eof() {
            let offset = reader.original_position() as u32;
            match reader.read()? {
                Operator::LocalGet { local_index } => {
                    self.accesses.push(Access::new(local_index, false, depth));
                    self.last_access[local_index as usize] = offset;
                }
                Operator::LocalSet { local_index } | Operator::LocalTee { local_index } => {
                    self.accesses.push(Access::new(local_index, true, depth));
                    self.last_access[local_index as usize] = offset;
                }
                Operator::Loop { .. } => {
                    if let Some(outer) = blocks.iter().rev().find(|block| **block != NONE) {
                        self.loops[*outer as usize].innermost = false;
                    }
                    let first = self.accesses.len() as u32;
                    blocks.push(self.loops.len() as u32);
                    self.loops.push(LoopFacts { first, end: first, depth, innermost: true });
                    depth += 1;
                }
                Operator::Block { .. } | Operator::If { .. } => blocks.push(NONE),
                Operator::Try { .. } | Operator::TryTable { .. } => {
                    self.has_try = true;
                    blocks.push(NONE);
                }
                Operator::End | Operator::Delegate { .. } => {
                    if let Some(closed) = blocks.pop()
                        && closed != NONE
                    {
                        self.loops[closed as usize].end = self.accesses.len() as u32;
                        depth -= 1;
                    }
                }
                Operator::Call { .. }
                | Operator::CallIndirect { .. }
                | Operator::MemoryGrow { .. }
                | Operator::MemoryCopy { .. }
                | Operator::MemoryFill { .. }
                | Operator::MemoryInit { .. }
                | Operator::TableGrow { .. }
                | Operator::TableFill { .. }
                | Operator::TableCopy { .. }
                | Operator::TableInit { .. }
                | Operator::MemoryAtomicNotify { .. }
                | Operator::MemoryAtomicWait32 { .. }
                | Operator::MemoryAtomicWait64 { .. } => self.accesses.push(Access::new(CALL, false, depth)),
                _ => {}
            }
        }
        Ok(())
    }
}
