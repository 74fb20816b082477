//! [`refuse`]: refuses objects that remain between two calls by the host.
//!
//! Events have the contents of memories, tables and globals, but not of objects. If a trace begins
//! with the state of an instance, or leaves out a part of its run, as snapshots and slices do,
//! objects in a replay would have the contents that initializers gave them.

use wasm_jit::wasmparser::{ConstExpr, Operator, Parser};
use wasm_jit::{AnyRef, Instance, Mutability, Val};

use super::any_store::AnyStore;
use super::error::{Error, unsupported};
use super::initializers::{self, Of};

/// Refuses an instance with objects in constant globals, or made by the initializers of its tables
/// and element segments. Objects in mutable globals, and in tables that the program changes, are
/// found when their values are recorded.
pub(crate) fn refuse(store: &mut dyn AnyStore, instance: Instance) -> Result<(), Error> {
    for index in 0.. {
        let Some(global) = store.global(instance, index) else { break };
        let is_constant = store.global_type(global).mutability() == Mutability::Const;
        if is_constant && is_object(&store.value(global)) {
            return Err(unsupported(format!("global {index}, an object that the program may have changed")));
        }
    }
    let module = store.module(instance);
    for payload in Parser::new(0).parse_all(module.bytes()) {
        initializers::visit(payload?, |of, initializer| match of {
            // Their values were looked at.
            Of::Global => Ok(()),
            Of::Table => refuse_initializer(initializer, "a table"),
            Of::ElementSegment => refuse_initializer(initializer, "an element segment"),
        })?;
    }
    Ok(())
}

fn is_object(value: &Val) -> bool {
    match value {
        Val::AnyRef(Some(value)) => value.as_i31().is_none(),
        Val::ExternRef(Some(value)) => value.data().is::<AnyRef>(),
        _ => false,
    }
}

fn refuse_initializer(initializer: &ConstExpr<'_>, of: &str) -> Result<(), Error> {
    for operator in initializer.get_operators_reader() {
        if matches!(
            operator?,
            Operator::StructNew { .. }
                | Operator::StructNewDefault { .. }
                | Operator::ArrayNew { .. }
                | Operator::ArrayNewDefault { .. }
                | Operator::ArrayNewFixed { .. }
        ) {
            return Err(unsupported(format!("{of} with objects, which the program may have changed")));
        }
    }
    Ok(())
}
