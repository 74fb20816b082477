//! Whether functions have the type of an indirect call.

use wasm_jit::Module;
use wasm_jit::wasmparser::{CompositeInnerType, FuncType, Parser, Payload, TypeRef, ValType};

/// The types of a module's functions.
pub(super) struct Signatures {
    /// By type index; `None` for a type that may have other relations than equality.
    types: Vec<Option<FuncType>>,
    /// The type indices of the functions, imports included.
    functions: Vec<u32>,
}

impl Signatures {
    pub(super) fn of(module: &Module) -> Self {
        let (mut types, mut functions) = (Vec::new(), Vec::new());
        for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
            match payload {
                Payload::TypeSection(groups) => {
                    for group in groups.into_iter().flatten() {
                        let is_alone = group.types().len() == 1;
                        types.extend(group.types().map(|ty| match &ty.composite_type.inner {
                            CompositeInnerType::Func(signature)
                                if is_alone && ty.is_final && ty.supertype_idxs.is_empty() =>
                            {
                                let mut all = signature.params().iter().chain(signature.results());
                                all.all(is_plain).then(|| signature.clone())
                            }
                            _ => None,
                        }));
                    }
                }
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports().flatten() {
                        if let TypeRef::Func(ty) | TypeRef::FuncExact(ty) = import.ty {
                            functions.push(ty);
                        }
                    }
                }
                Payload::FunctionSection(indices) => functions.extend(indices.into_iter().flatten()),
                Payload::CodeSectionStart { .. } => break,
                _ => {}
            }
        }
        Self { types, functions }
    }

    /// Whether a function has this type; `None` if that is not known here.
    pub(super) fn is_same(&self, function: u32, ty: u32) -> Option<bool> {
        let own = *self.functions.get(function as usize)?;
        if own == ty {
            return Some(true);
        }
        let [own, wanted] = [own, ty].map(|ty| self.types.get(ty as usize)?.as_ref());
        Some(own? == wanted?)
    }
}

/// Whether equal types are written equally.
fn is_plain(ty: &ValType) -> bool {
    match ty {
        ValType::Ref(reference) => !reference.is_concrete_type_ref(),
        _ => true,
    }
}
