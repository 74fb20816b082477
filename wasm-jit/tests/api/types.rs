//! Reference types that mention a type which the engine does not know, or which is of another kind:
//! they are refused wherever a type is given.

use wasm_jit::{
    Engine, Error, FieldType, Func, FuncType, Global, GlobalType, HeapType, Mutability, RefType, StorageType,
    Store, StructRef, Table, TableType, Tag, TagType, Val, ValType,
};

fn field() -> FieldType {
    FieldType::new(StorageType::Val(ValType::I64), Mutability::Var)
}

/// A type of functions, one of structures, and one of arrays.
fn types(engine: &Engine) -> [HeapType; 3] {
    [
        HeapType::ConcreteFunc(engine.func_type_id(&FuncType::new([], [])).unwrap()),
        engine.new_struct_type([field()]).unwrap().heap_type(),
        engine.new_array_type(field()).unwrap().heap_type(),
    ]
}

fn make_global(store: &mut Store<()>, ty: RefType, value: Val) -> Result<Global, Error> {
    Global::new(store, GlobalType::new(ValType::Ref(ty), Mutability::Const), value)
}

fn make_table(store: &mut Store<()>, ty: RefType, value: Val) -> Result<Table, Error> {
    Table::new(store, TableType::new(ty, 1, None), value)
}

/// What can be made of a type, each with the result of making it.
fn make_all(store: &mut Store<()>, ty: RefType) -> Vec<(&'static str, Result<(), Error>)> {
    let engine = store.engine().clone();
    let (null, val) = (Val::null_ref(ty), ValType::Ref(ty));
    let reference = FieldType::new(StorageType::Val(val), Mutability::Var);
    let mut func = |ty: FuncType| Func::new(&mut *store, ty, |_, _, _| Ok(())).map(drop);
    vec![
        ("function", func(FuncType::new([val], []))),
        ("function", func(FuncType::new([], [val]))),
        ("function", engine.func_type_id(&FuncType::new([val], [])).map(drop)),
        ("tag", Tag::new(&mut *store, &TagType::new(FuncType::new([val], []))).map(drop)),
        ("object", engine.new_struct_type([field(), reference]).map(drop)),
        ("object", engine.new_array_type(reference).map(drop)),
        ("global", make_global(store, ty, null.clone()).map(drop)),
        ("table", make_table(store, ty, null).map(drop)),
    ]
}

#[track_caller]
fn assert_refused(store: &mut Store<()>, heap_type: HeapType) {
    let ty = RefType::new(true, heap_type);
    let mut made = make_all(store, ty);
    let of_object = store.engine().new_struct_type([field()]).unwrap();
    let object = Val::from(StructRef::new(&mut *store, &of_object, &[Val::I64(-1)]).unwrap());
    let func = Val::from(Func::new(&mut *store, FuncType::new([], []), |_, _, _| Ok(())).unwrap());
    for value in [&object, &func] {
        made.push(("global", make_global(store, ty, value.clone()).map(drop)));
        made.push(("table", make_table(store, ty, value.clone()).map(drop)));
    }
    made.retain(|(what, made)| !matches!(made, Err(Error::InvalidType { of }) if of == what));
    assert!(made.is_empty(), "{ty:?}: {made:?}");
    for value in [object, func] {
        assert!(!value.is_of_type(&mut *store, &ValType::Ref(ty)), "{value:?} is no {ty:?}");
    }
}

#[test]
fn known_types_are_accepted() {
    let mut store = Store::new(&Engine::default(), ());
    for heap_type in types(store.engine()) {
        for (what, made) in make_all(&mut store, RefType::new(true, heap_type)) {
            assert!(made.is_ok(), "{what} of {heap_type}: {made:?}");
        }
    }
}

#[test]
fn types_of_other_engines_are_unknown() {
    let mut store = Store::new(&Engine::default(), ());
    let own = types(store.engine());
    let alike = Engine::default();
    // If engines counted their types, ids of functions would be those of structures here.
    let shifted = Engine::default();
    shifted.func_type_id(&FuncType::new([ValType::I32], [])).unwrap();
    for foreign in [shifted, alike].iter().flat_map(types) {
        assert_refused(&mut store, foreign);
        for own in own {
            let [foreign, own] = [foreign, own].map(|ty| ValType::Ref(RefType::new(true, ty)));
            assert!(!store.engine().is_subtype(&foreign, &own), "{foreign} {own}");
            assert!(!store.engine().is_subtype(&own, &foreign), "{own} {foreign}");
        }
    }
}

#[test]
fn structures_are_no_arrays() {
    let mut store = Store::new(&Engine::default(), ());
    let [_, of_structs, of_arrays] = types(store.engine());
    let (HeapType::ConcreteStruct(id), HeapType::ConcreteArray(array_id)) = (of_structs, of_arrays) else {
        panic!("{of_structs} {of_arrays}")
    };
    for (own, confused) in
        [(of_structs, HeapType::ConcreteArray(id)), (of_arrays, HeapType::ConcreteStruct(array_id))]
    {
        assert_refused(&mut store, confused);
        let [own, confused] = [own, confused].map(|ty| ValType::Ref(RefType::new(false, ty)));
        assert!(!store.engine().is_subtype(&own, &confused), "{own} {confused}");
        assert!(!store.engine().is_subtype(&confused, &own), "{confused} {own}");
    }
}
