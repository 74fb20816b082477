//! [`Linker`]: resolves the imports of modules by name.

use std::collections::HashMap;
use std::fmt;

use super::caller::Caller;
use super::externs::Extern;
use super::func::Func;
use super::host::HostFunc;
use super::instance::Instance;
use super::instantiate;
use super::store::{AsContext, AsContextMut, StoreInner};
use super::typed::IntoFunc;
use super::value::Val;
use crate::engine::Engine;
use crate::error::{Error, Mismatch};
use crate::module::{Import, Item, Module};
use crate::trap::WasmBacktrace;
use crate::types::{ExternType, FuncType};

/// Definitions of imports, by the two names of each. Host functions belong to no store, so one
/// linker can be used with many stores whose data have type `T`.
pub struct Linker<T: 'static> {
    engine: Engine,
    definitions: HashMap<Box<str>, HashMap<Box<str>, Definition>>,
    allow_shadowing: bool,
    /// The closures of the definitions are for stores with data of this type, which they read and
    /// write: invariant in `T`.
    data: std::marker::PhantomData<fn(T) -> T>,
}

// Whether or not `T` can be cloned.
impl<T: 'static> Clone for Linker<T> {
    fn clone(&self) -> Self {
        let Self { engine, definitions, allow_shadowing, data } = self;
        let (engine, definitions) = (engine.clone(), definitions.clone());
        Self { engine, definitions, allow_shadowing: *allow_shadowing, data: *data }
    }
}

#[derive(Clone, Debug)]
enum Definition {
    Extern(Extern),
    Host(HostFunc),
}

impl<T: 'static> Linker<T> {
    /// A linker without definitions.
    pub fn new(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            definitions: HashMap::new(),
            allow_shadowing: false,
            data: std::marker::PhantomData,
        }
    }

    /// The engine that the linker was created with.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether a definition may replace an earlier one of the same names: by default this is an
    /// error.
    pub fn allow_shadowing(&mut self, allow: bool) -> &mut Self {
        self.allow_shadowing = allow;
        self
    }

    /// Defines a name for an item of a store. Only instances in this store can import it.
    ///
    /// # Errors
    /// [`Error::DuplicateDefinition`]; [`Error::WrongStore`] if the item belongs to another store.
    pub fn define(
        &mut self,
        store: impl AsContext<Data = T>,
        module: &str,
        name: &str,
        item: impl Into<Extern>,
    ) -> Result<&mut Self, Error> {
        let item = item.into();
        if !item.belongs_to(&store.as_context().0.opaque) {
            return Err(Error::WrongStore { what: "definition" });
        }
        self.insert(module, name, Definition::Extern(item))
    }

    /// Defines a host function by a closure with Rust types; see [`Func::wrap`].
    ///
    /// # Errors
    /// [`Error::DuplicateDefinition`].
    pub fn func_wrap<P, R>(
        &mut self,
        module: &str,
        name: &str,
        closure: impl IntoFunc<T, P, R>,
    ) -> Result<&mut Self, Error> {
        self.insert(module, name, Definition::Host(closure.into_host_func()))
    }

    /// Defines a host function by a closure with Rust types, as a function of type `ty`: the
    /// closure must accept the arguments of this type, and its results must be values of the type's
    /// results. In this way, a closure that takes an `Option<AnyRef>` can become a function of
    /// arrays of one type.
    ///
    /// # Errors
    /// [`Error::FuncType`] if the closure is not of such a type; [`Error::DuplicateDefinition`].
    pub fn func_wrap_as<P, R>(
        &mut self,
        module: &str,
        name: &str,
        ty: FuncType,
        closure: impl IntoFunc<T, P, R>,
    ) -> Result<&mut Self, Error> {
        let HostFunc { ty: found, closure } = closure.into_host_func();
        if !self.engine.can_call(&ty, &found) {
            return Err(Error::FuncType(Box::new(Mismatch { expected: ty, found })));
        }
        self.insert(module, name, Definition::Host(HostFunc { ty, closure }))
    }

    /// Defines a host function of any type; see [`Func::new`].
    ///
    /// # Errors
    /// [`Error::DuplicateDefinition`].
    pub fn func_new(
        &mut self,
        module: &str,
        name: &str,
        ty: FuncType,
        closure: impl Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Result<&mut Self, Error> {
        self.insert(module, name, Definition::Host(HostFunc::untyped(ty, closure)))
    }

    /// Defines all exports of an instance, with `module` as the first name.
    ///
    /// # Errors
    /// [`Error::DuplicateDefinition`].
    ///
    /// # Panics
    /// If the instance belongs to another store.
    pub fn instance(
        &mut self,
        store: impl AsContext<Data = T>,
        module: &str,
        instance: Instance,
    ) -> Result<&mut Self, Error> {
        for export in instance.exports(store.as_context()) {
            let name = export.name();
            self.insert(module, name, Definition::Extern(export.into_extern()))?;
        }
        Ok(self)
    }

    /// Defines all functions that the module imports and that are not defined: calls to them trap
    /// ([`Error::UnknownFunction`], which names the import). A module can then run although some of
    /// its imports are missing, if it does not call them. Other unknown imports remain errors at
    /// instantiation.
    pub fn define_unknown_imports_as_traps(&mut self, module: &Module) -> &mut Self {
        for import in module.imports() {
            let (name, ExternType::Func(ty)) = (import.name(), import.ty()) else { continue };
            if self.find(import.module(), name).is_some() {
                continue;
            }
            let names = (import.module().to_owned(), name.to_owned());
            let fails = move |_: Caller<'_, T>, _: &[Val], _: &mut [Val]| {
                let (module, name) = names.clone();
                Err(Error::UnknownFunction { module, name, backtrace: WasmBacktrace::default() })
            };
            let definition = Definition::Host(HostFunc::untyped(ty.clone(), fails));
            self.definitions.entry(import.module().into()).or_default().insert(name.into(), definition);
        }
        self
    }

    /// Makes the definitions of `module` also available under `as_module`.
    ///
    /// # Errors
    /// [`Error::DuplicateDefinition`].
    pub fn alias_module(&mut self, module: &str, as_module: &str) -> Result<&mut Self, Error> {
        for (name, definition) in self.definitions.get(module).cloned().unwrap_or_default() {
            self.insert(as_module, &name, definition)?;
        }
        Ok(self)
    }

    fn insert(&mut self, module: &str, name: &str, definition: Definition) -> Result<&mut Self, Error> {
        let names = self.definitions.entry(module.into()).or_default();
        if names.contains_key(name) && !self.allow_shadowing {
            return Err(Error::DuplicateDefinition { module: module.to_owned(), name: name.to_owned() });
        }
        names.insert(name.into(), definition);
        Ok(self)
    }

    fn find(&self, module: &str, name: &str) -> Option<&Definition> {
        self.definitions.get(module)?.get(name)
    }

    /// The definition with these two names. A host function is created in the store.
    ///
    /// # Errors
    /// As for [`Func::new`], if the definition is a host function.
    pub fn get(
        &self,
        mut store: impl AsContextMut<Data = T>,
        module: &str,
        name: &str,
    ) -> Result<Option<Extern>, Error> {
        Ok(match self.find(module, name) {
            None => None,
            Some(Definition::Extern(item)) => Some(item.clone()),
            Some(Definition::Host(host)) => {
                Some(Extern::Func(host.insert(&mut store.as_context_mut().into_inner().opaque)?))
            }
        })
    }

    /// Instantiates a module with the definitions of its imports.
    ///
    /// # Errors
    /// [`Error::UnknownImport`], and as for [`Instance::new`].
    ///
    /// # Panics
    /// If store and module belong to different engines.
    pub fn instantiate(
        &self,
        mut store: impl AsContextMut<Data = T>,
        module: &Module,
    ) -> Result<Instance, Error> {
        let store = store.as_context_mut().into_inner();
        let mut imports = Vec::with_capacity(module.parsed().imports.len());
        for import in &module.parsed().imports {
            let Some(definition) = self.find(&import.module, &import.name) else {
                let (module, name) = (import.module.to_string(), import.name.to_string());
                return Err(Error::UnknownImport { module, name });
            };
            imports.push(match definition {
                Definition::Extern(item) => item.clone(),
                Definition::Host(host) => Extern::Func(import_host(store, module, import, host)?),
            });
        }
        instantiate::instantiate(store, module, &imports)
    }
}

/// A host function for an import, called through the module's own trampoline for its type.
fn import_host<T: 'static>(
    store: &mut StoreInner<T>,
    module: &Module,
    import: &Import,
    host: &HostFunc,
) -> Result<Func, Error> {
    let expected = module.type_of(import.item);
    let info = module.info();
    match import.item {
        Item::Func(index) if module.function_type(index) == host.ty => {
            let type_index = info.functions[index as usize];
            let type_id = module.type_id(type_index).clone();
            Ok(host.insert_with(&mut store.opaque, type_id, module.code().clone(), type_index))
        }
        _ => Err(Error::IncompatibleImport {
            module: import.module.to_string(),
            name: import.name.to_string(),
            types: Box::new(Mismatch { expected, found: ExternType::Func(host.ty.clone()) }),
        }),
    }
}

impl<T: 'static> fmt::Debug for Linker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linker").field("definitions", &self.definitions).finish_non_exhaustive()
    }
}
