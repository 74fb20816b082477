//! Checks accesses to the memories of libraries: `memcpy`, `read_str`, `write_str`.
//!
//! `memid(library)` stands for the memory of a library that the script uses, and 0 for the script's
//! own memory, in which only strings have addresses. A script does not see the memory of the
//! program.

use wasm_encoder::ValType;

use super::super::ast::{Expr, ExprKind, Ident};
use super::super::diagnostics::{ProblemKind, Span};
use super::super::ir::{Kind, Transfer, Typed};
use super::super::types::Type;
use super::Checker;

/// Functions of the upstream compiler about the memory of the program.
const OF_PROGRAM: [&str; 6] =
    ["active_data_len", "active_data_start", "dup_at", "mem_size", "page_size", "strcmp"];

/// The upstream compiler's name for the memory of the program.
const PROGRAM_MEMORY: &str = "APP_MEMID";

impl Checker<'_> {
    /// Checks a call to a function that accesses a memory. `None` if the name is not one.
    pub(super) fn memory_call(&mut self, name: &Ident, arguments: &[Expr]) -> Option<Option<Typed>> {
        let checked = match name.name.as_str() {
            "memcpy" => self.copy(name, arguments),
            "read_str" => self.read_string(name, arguments),
            "write_str" => self.write_string(name, arguments),
            "memid" => {
                let message = "`memid` stands for a memory in calls of `memcpy`, `read_str` and `write_str`";
                self.problem(ProblemKind::Type, &name.span, message);
                None
            }
            name_of if OF_PROGRAM.contains(&name_of) => {
                self.unseen(&name.name, &name.span);
                None
            }
            _ => return None,
        };
        Some(checked)
    }

    /// Reports that a script does not see the memory of the program.
    fn unseen(&mut self, what: &str, span: &Span) {
        let message = format!("`{what}` is about the memory of the program, which scripts do not see");
        let help = "a rule gets the values that its event binds, such as the operands of loads and stores";
        self.help(ProblemKind::Unsupported, span, message, help);
    }

    /// The number of a memory: none for the script's own.
    fn memory(&mut self, memory: &Expr, may_be_own: bool) -> Option<Option<u32>> {
        match &memory.kind {
            ExprKind::Int(0) if may_be_own => return Some(None),
            ExprKind::Name(name) if name == PROGRAM_MEMORY => {
                self.unseen(PROGRAM_MEMORY, &memory.span);
                return None;
            }
            ExprKind::Call { annotation: None, object: None, name, arguments } if name.name == "memid" => {
                self.check_count(name, 1, arguments.len())?;
                if let ExprKind::Name(library) = &arguments[0].kind {
                    return self.library_memory(library, &arguments[0].span).map(Some);
                }
            }
            _ => {}
        }
        let message = match may_be_own {
            true => "a memory is expected: `memid(LIBRARY)`, or 0 for that of the script",
            false => "the memory of a library is expected: `memid(LIBRARY)`",
        };
        self.problem(ProblemKind::Type, &memory.span, message);
        None
    }

    fn library_memory(&mut self, library: &str, span: &Span) -> Option<u32> {
        if !self.used.iter().any(|used| used == library) {
            let message = format!("there is no library `{library}`");
            let help = format!("a library is named at the beginning: `use {library};`");
            self.help(ProblemKind::Name, span, message, help);
            return None;
        }
        if !self.libraries.has_memory(library) {
            let message = format!("the library `{library}` has no memory that a script can access");
            let help =
                "it exports one by the name `memory`, with 32-bit addresses, pages of 64 KiB, and not shared";
            self.help(ProblemKind::Unsupported, span, message, help);
            return None;
        }
        let memories = &mut self.program.memories;
        let known = memories.iter().position(|known| known == library).unwrap_or_else(|| {
            memories.push(library.to_owned());
            memories.len() - 1
        });
        Some(known as u32)
    }

    /// An address or a length: an integer of 32 bits, of either sign.
    fn word(&mut self, value: &Expr) -> Option<Typed> {
        let checked = self.expr(value, Some(&Type::U32))?;
        let is_word = checked.ty.is_integer() && checked.ty.scalar() == Some(ValType::I32);
        (is_word || self.same_type(&checked, &Type::U32, &value.span)).then_some(checked)
    }

    /// `memcpy(from, source, to, target, length)`
    fn copy(&mut self, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        self.check_count(name, 5, arguments.len())?;
        let from = self.memory(&arguments[0], true)?;
        let to = self.memory(&arguments[2], false)??;
        let operands = [1, 3, 4].map(|index| self.word(&arguments[index]));
        let operands = operands.into_iter().collect::<Option<Vec<_>>>()?;
        Some(Typed::new(Type::UNIT, Kind::Transfer(Transfer::Copy { from, to }, operands)))
    }

    /// `read_str(memory, address, length)`
    fn read_string(&mut self, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        self.check_count(name, 3, arguments.len())?;
        let from = self.memory(&arguments[0], false)??;
        let operands = vec![self.word(&arguments[1])?, self.word(&arguments[2])?];
        Some(Typed::new(Type::Str, Kind::Transfer(Transfer::Read(from), operands)))
    }

    /// `write_str(memory, address, string)`
    fn write_string(&mut self, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        self.check_count(name, 3, arguments.len())?;
        let to = self.memory(&arguments[0], false)??;
        let address = self.word(&arguments[1])?;
        let text = self.expr(&arguments[2], Some(&Type::Str))?;
        if !self.same_type(&text, &Type::Str, &arguments[2].span) {
            return None;
        }
        Some(Typed::new(Type::UNIT, Kind::Transfer(Transfer::Write(to), vec![address, text])))
    }
}
