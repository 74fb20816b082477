//! Blocks that are left as often as they are entered: the code after such a block is counted with
//! the code before it, and needs no counter.
//!
//! A block or `if` *joins* if control can leave it only at its end, except by a trap. It therefore
//! contains no branch past its end and no `return`, no call and no `throw`, since exceptions leave
//! it, and no loop or `try`: at their labels, and after calls, those of the runtime included,
//! frames arrive from other versions of the function, which may not have counted the code before
//! the block.
//!
//! This depends on the operators alone, not on what the compiler knows about conditions. It is the
//! same in all versions of a function.

use wasmparser::{BinaryReaderError, FunctionBody, Operator};

use crate::compiler::scan::calls_runtime;

/// The blocks of a function that join, by the position of their first operator, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Joins(Vec<u32>);

/// An open block.
struct Block {
    position: u32,
    /// How many blocks the code so far may leave other than at their ends, counted from this one
    /// outwards.
    leaves: u32,
    /// Whether it is a block or an `if`.
    may_join: bool,
}

impl Joins {
    pub(crate) fn of(body: &FunctionBody<'_>) -> Result<Self, BinaryReaderError> {
        let mut joins = Vec::new();
        let mut blocks: Vec<Block> = Vec::new();
        let mut reader = body.get_operators_reader()?;
        while !reader.eof() {
            let position = reader.original_position() as u32;
            let operator = reader.read()?;
            if let Some(block) = blocks.last_mut() {
                block.leaves = block.leaves.max(leaves(&operator)?);
            }
            let may_join = matches!(operator, Operator::Block { .. } | Operator::If { .. });
            match operator {
                Operator::Block { .. }
                | Operator::If { .. }
                | Operator::Loop { .. }
                | Operator::Try { .. }
                | Operator::TryTable { .. } => blocks.push(Block { position, leaves: 0, may_join }),
                Operator::End | Operator::Delegate { .. } => {
                    // The last one ends the function.
                    let Some(Block { position, leaves, may_join }) = blocks.pop() else { break };
                    if may_join && leaves == 0 {
                        joins.push(position);
                    }
                    if let Some(outer) = blocks.last_mut() {
                        outer.leaves = outer.leaves.max(leaves.saturating_sub(1));
                    }
                }
                _ => {}
            }
        }
        joins.sort_unstable();
        Ok(Self(joins))
    }

    /// Whether the block or `if` at a position joins.
    pub(crate) fn contains(&self, position: u32) -> bool {
        self.0.binary_search(&position).is_ok()
    }
}

/// How many blocks an operator may leave other than at their ends, counted from the innermost one.
fn leaves(operator: &Operator<'_>) -> Result<u32, BinaryReaderError> {
    const ALL: u32 = u32::MAX;
    Ok(match operator {
        Operator::Br { relative_depth }
        | Operator::BrIf { relative_depth }
        | Operator::BrOnNull { relative_depth }
        | Operator::BrOnNonNull { relative_depth }
        | Operator::BrOnCast { relative_depth, .. }
        | Operator::BrOnCastFail { relative_depth, .. } => *relative_depth,
        Operator::BrTable { targets } => {
            targets.targets().try_fold(targets.default(), |most, depth| Ok(most.max(depth?)))?
        }
        _ if may_call_runtime(operator) => ALL,
        Operator::Return
        | Operator::Call { .. }
        | Operator::CallIndirect { .. }
        | Operator::CallRef { .. }
        | Operator::ReturnCall { .. }
        | Operator::ReturnCallIndirect { .. }
        | Operator::ReturnCallRef { .. }
        | Operator::Throw { .. }
        | Operator::ThrowRef
        | Operator::Rethrow { .. }
        | Operator::Loop { .. }
        | Operator::Try { .. }
        | Operator::TryTable { .. } => ALL,
        _ => 0,
    })
}

/// Whether an operator may call a routine of the runtime after which frames of other versions
/// continue (`FunctionCompiler::libcall`). For new objects, this depends on their sizes.
fn may_call_runtime(operator: &Operator<'_>) -> bool {
    calls_runtime(operator)
        || matches!(
            operator,
            Operator::DataDrop { .. }
                | Operator::ElemDrop { .. }
                | Operator::StructNew { .. }
                | Operator::StructNewDefault { .. }
                | Operator::ArrayNewFixed { .. }
        )
}

#[cfg(test)]
mod tests {
    use wasmparser::{Parser, Payload};

    use super::*;

    /// Whether each block and `if` of the function joins, in the order of their starts.
    #[track_caller]
    fn joins(text: &str) -> Vec<bool> {
        let bytes = wat::parse_str(format!(
            "(module (type $large (struct (field i32 i64))) (memory 1) (tag $t) (func $f (param i32))
                (func (param i32 (ref null any)) (local i32) {text}))"
        ));
        let bytes = bytes.unwrap();
        let bodies = Parser::new(0).parse_all(&bytes).filter_map(|payload| match payload.unwrap() {
            Payload::CodeSectionEntry(body) => Some(body),
            _ => None,
        });
        let body = bodies.last().unwrap();
        let joins = Joins::of(&body).unwrap();
        let operators = body.get_operators_reader().unwrap().into_iter_with_offsets().map(Result::unwrap);
        let blocks = operators.filter(|(it, _)| matches!(it, Operator::Block { .. } | Operator::If { .. }));
        blocks.map(|(_, position)| joins.contains(position as u32)).collect()
    }

    #[test]
    fn blocks_that_control_leaves_at_their_ends_join() {
        assert_eq!(joins("(if (local.get 0) (then (nop)) (else (unreachable)))"), [true]);
        assert_eq!(joins("(block (br_if 0 (local.get 0)) (br 0))"), [true]);
        assert_eq!(joins("(block (block (br_table 0 0 (local.get 0))) (br_if 0 (local.get 0)))"), [true; 2]);
        // The branch skips the end of the inner block only.
        assert_eq!(joins("(block (block (br_if 1 (local.get 0))) (block))"), [true, false, true]);
        assert_eq!(joins("(block (block (block (br_table 0 1 (local.get 0)))))"), [true, true, false]);
        assert_eq!(joins("(block (block (drop (br_on_null 1 (local.get 1)))))"), [true, false]);
    }

    #[test]
    fn blocks_with_calls_and_loops_do_not_join() {
        for inner in [
            "(return)",
            "(br 2)",
            "(call $f (local.get 0))",
            "(return_call $f (local.get 0))",
            "(throw $t)",
            "(loop)",
            "(try_table)",
            "(memory.copy (i32.const 0) (i32.const 0) (i32.const 0))",
            "(drop (memory.grow (i32.const 0)))",
            "(drop (struct.new_default $large))",
            "(unreachable) (call $f (local.get 0))",
        ] {
            let text = format!("(block (block {inner})) (block)");
            let expected = [false, false, true];
            assert_eq!(joins(&text.replace("(call $f", "(call 0")), expected, "{inner}");
        }
        // What is before a loop's label or after its end joins.
        assert_eq!(joins("(block (nop)) (loop (block (nop)) (br_if 0 (local.get 0))) (block)"), [true; 3]);
    }
}
