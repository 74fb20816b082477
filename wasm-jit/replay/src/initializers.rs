//! The constant expressions of a module, which give globals, tables and element segments their
//! initial values.

use wasm_jit::wasmparser::{ConstExpr, ElementItems, Payload, TableInit};

use super::error::Error;

/// What an initializer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Global,
    Table,
    ElementSegment,
}

/// Visits each initializer in a section of a module.
pub(crate) fn visit(
    section: Payload<'_>,
    mut visit: impl FnMut(Of, &ConstExpr<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    match section {
        Payload::GlobalSection(globals) => {
            for global in globals {
                visit(Of::Global, &global?.init_expr)?;
            }
        }
        Payload::TableSection(tables) => {
            for table in tables {
                if let TableInit::Expr(initializer) = table?.init {
                    visit(Of::Table, &initializer)?;
                }
            }
        }
        Payload::ElementSection(segments) => {
            for segment in segments {
                let ElementItems::Expressions(_, initializers) = segment?.items else { continue };
                for initializer in initializers {
                    visit(Of::ElementSegment, &initializer?)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}
