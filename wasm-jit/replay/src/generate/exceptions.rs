//! Exceptions between the program and its host in a replay.
//!
//! The function for an import throws what the host threw. What the host got from the program is
//! caught by its replay:
//!
//! ```text
//! block $done
//!   block $another
//!     block $caught                               the values of the exception
//!       try_table (catch $tag $caught) (catch_all $another)
//!         ARGUMENTS, call, is_elsewhere           it has returned
//!       end
//!       unreachable
//!     end
//!     compare the values, br $done
//!   end
//!   is_elsewhere                                  it has thrown another exception
//! end
//! ```
//!
//! With checks, calls that returned or trapped get the handler `(catch_all $another)`. It is
//! omitted if no exception passed between program and host and the program has no tags or uses
//! legacy exceptions, so that the replay needs no engine feature that the program does not.

use wasm_encoder::{BlockType, Catch, InstructionSink};

use super::functions::Functions;
use super::script::{Enter, Outcome};
use super::values::type_of;
use crate::event::Exception;
use crate::value::Value;

impl Functions<'_> {
    /// Throws an exception.
    pub(super) fn throw(&self, code: &mut InstructionSink<'_>, exception: &Exception) {
        exception.values.iter().for_each(|value| self.constant(code, *value));
        code.throw(self.tag(exception));
    }

    /// The index of the exception's tag.
    fn tag(&self, exception: &Exception) -> u32 {
        let own = self.program.tags.len() as u32;
        let added = self.added_tags.iter().position(|(number, _)| *number == exception.tag);
        added.map_or(exception.tag, |added| own + added as u32)
    }

    /// Whether a call to the program needs an exception handler.
    pub(super) fn catches(&self, enter: &Enter) -> bool {
        match enter.outcome {
            Outcome::Threw(_) => true,
            Outcome::Returned(_) | Outcome::Failed => self.notices_exceptions,
            // The trace does not contain what happens next.
            Outcome::Unknown => false,
        }
    }

    /// Calls a function of the program, and catches the exception if it throws one.
    pub(super) fn enter_and_catch(&mut self, code: &mut InstructionSink<'_>, enter: &Enter) {
        let event = enter.end;
        if !self.check {
            code.block(BlockType::Empty).try_table(BlockType::Empty, [Catch::All { label: 0 }]);
            self.call(code, enter);
            let results = self.program.type_of(enter.function).map_or(0, |ty| ty.results().len());
            (0..results).for_each(|_| _ = code.drop());
            code.end().end();
            return;
        }
        code.block(BlockType::Empty).block(BlockType::Empty);
        match &enter.outcome {
            Outcome::Threw(exception) => {
                let (tag, values) = (self.tag(exception), self.block_type(&exception.values));
                code.block(values);
                let catches = [Catch::One { tag, label: 0 }, Catch::All { label: 1 }];
                code.try_table(BlockType::Empty, catches);
                self.call(code, enter);
                self.is_elsewhere(code, event as i32);
                code.end().unreachable().end();
                self.compare_all(code, &exception.values, event);
                code.br(1);
            }
            Outcome::Returned(results) => {
                let ty = self.block_type(results);
                code.try_table(ty, [Catch::All { label: 0 }]);
                self.call(code, enter);
                code.end();
                self.compare_all(code, results, event);
                code.br(1);
            }
            Outcome::Failed | Outcome::Unknown => {
                code.try_table(BlockType::Empty, [Catch::All { label: 0 }]);
                self.call(code, enter);
                self.is_elsewhere(code, event as i32);
                code.end().unreachable();
            }
        }
        code.end();
        self.is_elsewhere(code, event as i32);
        code.end();
    }

    /// The type of a block with these results.
    fn block_type(&mut self, results: &[Value]) -> BlockType {
        match results {
            [] => BlockType::Empty,
            [result] => BlockType::Result(type_of(*result)),
            _ => BlockType::FunctionType(self.function_type([], results.iter().map(|value| type_of(*value)))),
        }
    }
}
