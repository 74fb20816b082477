//! The locations at which calls and returns are observed.

use std::collections::BTreeSet;
use std::sync::Arc;

use wasm_jit::probes::{Bound, Callback, Kind, Location, NativeFn, Place, ProbeSpec, Shortcut, Values};
use wasm_jit::wasmparser::{ElementItems, ExternalKind, Operator, Parser, Payload, TypeRef};
use wasm_jit::{FunctionInfo, Module};

use super::Shared;
use super::events::Events;
use super::local::with;
use super::steps::Shortcuts;
use crate::builtin::other_functions::Callee;

/// The observed locations of each function.
pub(super) struct Sites {
    chosen: BTreeSet<u32>,
    imported: u32,
    /// Whether tables may contain host functions.
    host_in_tables: bool,
    /// The number of the monitor.
    number: u64,
    events: Events,
    shortcuts: Option<Shortcuts>,
    tail_call_indirect: Callback,
    enter_host_indirect: Callback,
}

impl Sites {
    /// Records the calls of these functions.
    pub(super) fn new(module: &Module, chosen: BTreeSet<u32>, shared: &Arc<Shared>) -> Self {
        let imported = module.functions().filter(|function| function.body().is_none()).count() as u32;
        let number = shared.number;
        let of_chosen = chosen.clone();
        // A function without an entry that is observed.
        let is_host = move |index: u32| index < imported;
        let tail_call_indirect = Callback::with_callee(move |values, called| {
            let callee = Callee::of(called);
            with(number, |local| match callee {
                // The frame is left by the trap.
                Callee::None => {}
                Callee::Other(function) => local.tail_call_host(function, values[0]),
                Callee::Of(function) if is_host(function) => local.tail_call_host(function, values[0]),
                Callee::Of(function) if of_chosen.contains(&function) => local.tail_call(values[0]),
                Callee::Of(_) => local.leave(values[0]),
            });
        });
        let enter_host_indirect = Callback::with_callee(move |values, called| {
            let function = match Callee::of(called) {
                Callee::Other(function) => function,
                Callee::Of(function) if is_host(function) => function,
                _ => return,
            };
            with(number, |local| local.enter_host(function, values[0]));
        });
        Self {
            chosen,
            imported,
            host_in_tables: host_in_tables(module, imported),
            number,
            events: Events::get(),
            shortcuts: Shortcuts::new(shared),
            tail_call_indirect,
            enter_host_indirect,
        }
    }

    /// The probes of a function: none if its calls are not recorded.
    pub(super) fn of(&self, function: &FunctionInfo<'_>) -> Vec<ProbeSpec> {
        let Some(body) = function.body().filter(|_| self.chosen.contains(&function.index())) else {
            return Vec::new();
        };
        let function = function.index();
        let mut specs = Vec::new();
        let start = body.range().start;
        let instructions: Vec<(u32, Operator<'_>)> = body
            .instructions()
            .map(|instruction| ((instruction.offset() - start) as u32, instruction.operator().clone()))
            .collect();
        let mut add = |place, kind| specs.push(ProbeSpec { location: Location { function, place }, kind });
        let events = self.events;
        let with_shortcut = |function: NativeFn, values: &[Bound], shortcut: Option<&Shortcut>| {
            let values: Vec<Bound> =
                std::iter::once(Bound::Const(self.number)).chain(values.iter().copied()).collect();
            let values = Values::from(&values[..]);
            match shortcut {
                Some(shortcut) => Kind::Shortcut { shortcut: shortcut.clone(), function, values },
                None => Kind::Native { function, values },
            }
        };
        let native = |function, values: &[Bound]| with_shortcut(function, values, None);
        let shortcuts = self.shortcuts.as_ref();
        let leave =
            || with_shortcut(events.leave, &[Bound::Frame], shortcuts.map(|shortcuts| &shortcuts.leave));
        let callback = |function: &Callback, values: &[Bound]| Kind::Callback {
            function: function.clone(),
            values: Values::from(values),
        };
        let at = |offset: u32| Place::Instruction { offset };
        let callee = |index: u32| Bound::Const(index.into());
        // A call to the host has ended before the next one begins.
        for offset in self.after_host(&instructions) {
            add(at(offset), native(events.leave_host, &[Bound::Frame]));
        }
        let enter = shortcuts.map(|shortcuts| shortcuts.enter(function));
        add(Place::Entry, with_shortcut(events.enter, &[callee(function), Bound::Frame], enter));
        add(Place::Exit, leave());
        for (offset, operator) in &instructions {
            match operator {
                Operator::ReturnCall { function_index } if self.chosen.contains(function_index) => {
                    add(at(*offset), native(events.tail_call, &[Bound::Frame]));
                }
                Operator::ReturnCall { function_index } if *function_index < self.imported => {
                    add(at(*offset), native(events.tail_call_host, &[callee(*function_index), Bound::Frame]));
                }
                Operator::ReturnCall { .. } => add(at(*offset), leave()),
                Operator::ReturnCallIndirect { .. } | Operator::ReturnCallRef { .. } => {
                    add(at(*offset), callback(&self.tail_call_indirect, &[Bound::Frame]));
                }
                Operator::Call { function_index } if *function_index < self.imported => {
                    add(at(*offset), native(events.enter_host, &[callee(*function_index), Bound::Frame]));
                }
                Operator::CallIndirect { .. } | Operator::CallRef { .. } if self.calls_host(operator) => {
                    add(at(*offset), callback(&self.enter_host_indirect, &[Bound::Frame]));
                }
                _ => {}
            }
        }
        specs
    }

    fn calls_host(&self, operator: &Operator<'_>) -> bool {
        match operator {
            Operator::Call { function_index } => *function_index < self.imported,
            Operator::CallIndirect { .. } => self.host_in_tables,
            // The source of a reference is not known.
            Operator::CallRef { .. } => true,
            _ => false,
        }
    }

    /// The offsets of instructions at which control may continue after a call to the host.
    fn after_host(&self, instructions: &[(u32, Operator<'_>)]) -> BTreeSet<u32> {
        let mut after = BTreeSet::new();
        let mut add = |index: usize| after.extend(instructions.get(index).map(|(offset, _)| *offset));
        let is_handler =
            |operator: &Operator<'_>| matches!(operator, Operator::TryTable { .. } | Operator::Try { .. });
        let has_handlers = instructions.iter().any(|(_, operator)| is_handler(operator));
        let calls = instructions.iter().enumerate().filter(|(_, (_, operator))| self.calls_host(operator));
        let mut has_calls = false;
        for (index, _) in calls {
            has_calls = true;
            add(index + 1);
        }
        if has_calls && has_handlers {
            // Exceptions of the host continue there.
            for (index, (_, operator)) in instructions.iter().enumerate() {
                match operator {
                    Operator::Loop { .. } => add(index),
                    Operator::End | Operator::Catch { .. } | Operator::CatchAll => add(index + 1),
                    _ => {}
                }
            }
        }
        after
    }
}

/// Whether host functions may be in tables: imported functions are, or the host has access to
/// tables.
pub(in crate::builtin) fn host_in_tables(module: &Module, imported: u32) -> bool {
    let is_imported = |operator: &Operator<'_>| matches!(operator, Operator::RefFunc { function_index } if *function_index < imported);
    // The module is valid.
    Parser::new(0).parse_all(module.bytes()).flatten().any(|payload| match payload {
        Payload::ImportSection(imports) => {
            imports.into_imports().flatten().any(|import| matches!(import.ty, TypeRef::Table(_)))
        }
        Payload::ExportSection(exports) => {
            exports.into_iter().flatten().any(|export| export.kind == ExternalKind::Table)
        }
        Payload::ElementSection(elements) => {
            elements.into_iter().flatten().any(|element| match element.items {
                ElementItems::Functions(indices) => {
                    indices.into_iter().flatten().any(|index| index < imported)
                }
                ElementItems::Expressions(_, expressions) => {
                    expressions.into_iter().flatten().any(|expression| {
                        expression.get_operators_reader().into_iter().flatten().any(|o| is_imported(&o))
                    })
                }
            })
        }
        Payload::GlobalSection(globals) => globals.into_iter().flatten().any(|global| {
            global
                .init_expr
                .get_operators_reader()
                .into_iter()
                .flatten()
                .any(|operator| is_imported(&operator))
        }),
        Payload::CodeSectionEntry(body) => {
            let operators = body.get_operators_reader().into_iter().flatten();
            operators.flatten().any(|operator| is_imported(&operator))
        }
        _ => false,
    })
}
