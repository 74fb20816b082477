//! Modules: decoded, validated, compiled.

mod info;

pub(crate) use info::ModuleInfo;
