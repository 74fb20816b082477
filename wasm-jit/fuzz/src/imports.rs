//! Whether the host can define what a module imports.

use wasmparser::{CompositeInnerType, Parser, Payload, TypeRef, ValType};

/// Whether a module imports only functions, globals and tables whose results, values and elements
/// may be null or numbers: the host has no functions or objects of given types.
pub(crate) fn can_be_defined(wasm: &[u8]) -> bool {
    let mut types = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        match payload {
            Ok(Payload::TypeSection(section)) => {
                for group in section.into_iter().map_while(Result::ok) {
                    types.extend(group.into_types().map(|ty| ty.composite_type.inner));
                }
            }
            Ok(Payload::ImportSection(section)) => {
                let mut imports = section.into_imports().map_while(Result::ok);
                return imports.all(|import| match import.ty {
                    TypeRef::Func(ty) | TypeRef::FuncExact(ty) => match types.get(ty as usize) {
                        Some(CompositeInnerType::Func(ty)) => ty.results().iter().all(can_be_null),
                        _ => false,
                    },
                    TypeRef::Global(ty) => can_be_null(&ty.content_type),
                    TypeRef::Table(ty) => ty.element_type.is_nullable(),
                    TypeRef::Memory(_) | TypeRef::Tag(_) => true,
                });
            }
            _ => {}
        }
    }
    true
}

fn can_be_null(ty: &ValType) -> bool {
    !matches!(ty, ValType::Ref(ty) if !ty.is_nullable())
}
