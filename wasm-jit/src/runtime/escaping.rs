//! [`escaping`]: functions that other instances can have references to.

use std::collections::BTreeSet;

use wasmparser::{
    BinaryReaderError, ConstExpr, ElementItems, ExternalKind, Operator, Parser, Payload, TableInit,
};

use crate::module::Module;

/// The functions that other instances can have references to: code can make references only to
/// functions that the module mentions outside of code.
pub(super) fn escaping(module: &Module) -> Result<BTreeSet<u32>, BinaryReaderError> {
    let mut functions = BTreeSet::new();
    for payload in Parser::new(0).parse_all(module.bytes()) {
        match payload? {
            Payload::ExportSection(exports) => {
                for export in exports {
                    let export = export?;
                    if export.kind == ExternalKind::Func {
                        functions.insert(export.index);
                    }
                }
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    if let TableInit::Expr(init) = table?.init {
                        mentioned(&init, &mut functions)?;
                    }
                }
            }
            Payload::GlobalSection(globals) => {
                for global in globals {
                    mentioned(&global?.init_expr, &mut functions)?;
                }
            }
            Payload::ElementSection(segments) => {
                for segment in segments {
                    match segment?.items {
                        ElementItems::Functions(items) => {
                            for function in items {
                                functions.insert(function?);
                            }
                        }
                        ElementItems::Expressions(_, items) => {
                            for item in items {
                                mentioned(&item?, &mut functions)?;
                            }
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Ok(functions)
}

fn mentioned(expression: &ConstExpr<'_>, functions: &mut BTreeSet<u32>) -> Result<(), BinaryReaderError> {
    for operator in expression.get_operators_reader() {
        if let Operator::RefFunc { function_index } = operator? {
            functions.insert(function_index);
        }
    }
    Ok(())
}
