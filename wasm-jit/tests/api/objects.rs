//! Structures, arrays and `i31` of the host.

use wasm_jit::{
    AnyRef, ArrayRef, Engine, Error, ExternRef, FieldType, HeapType, I31, Instance, Module, Mutability,
    RefType, StorageType, Store, StoreLimits, StructRef, Val, ValType,
};

const MUTABLE: fn(StorageType) -> FieldType = |storage| FieldType::new(storage, Mutability::Var);

#[test]
fn structures_have_the_fields_of_their_type() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let constant = FieldType::new(StorageType::Val(ValType::I64), Mutability::Const);
    let any = StorageType::Val(ValType::ANYREF);
    let ty = engine.new_struct_type([MUTABLE(StorageType::I8), constant, MUTABLE(any)]).unwrap();
    assert_eq!(ty.to_string(), "(struct (field (mut i8)) (field i64) (field (mut anyref)))");
    let fields = [Val::I32(0x1ff), Val::I64(-7), I31::wrapping(5).into()];
    let it = StructRef::new(&mut store, &ty, &fields).unwrap();
    assert_eq!(it.ty(&store), ty);
    assert_eq!(it.field(&mut store, 0).unwrap().unwrap_i32(), 0xff, "the lower bits");
    assert_eq!(it.field(&mut store, 1).unwrap().unwrap_i64(), -7);
    let number = it.field(&mut store, 2).unwrap();
    assert_eq!(number.unwrap_any_ref().unwrap().as_i31().unwrap().signed(), 5);
    assert!(it.field(&mut store, 3).is_none());
    it.set_field(&mut store, 2, &it.clone().into()).unwrap();
    let itself = it.field(&mut store, 2).unwrap();
    assert!(itself.unwrap_any_ref().unwrap().same(&it.clone().into()));
    let refused = it.set_field(&mut store, 1, &Val::I64(1));
    assert!(matches!(refused, Err(Error::ConstantField)), "{refused:?}");
    let refused = it.set_field(&mut store, 0, &Val::I64(1));
    assert!(matches!(refused, Err(Error::ValueType(_))), "{refused:?}");
    let refused = it.set_field(&mut store, 9, &Val::I64(1));
    assert!(matches!(refused, Err(Error::OutOfBounds { .. })), "{refused:?}");
    let refused = StructRef::new(&mut store, &ty, &fields[..2]);
    assert!(matches!(refused, Err(Error::ValueCount { .. })), "{refused:?}");
    let mut other = Store::new(&engine, ());
    let refused = StructRef::new(&mut other, &ty, &[Val::I32(0), Val::I64(0), it.into()]);
    assert!(matches!(refused, Err(Error::WrongStore { .. })), "{refused:?}");
}

#[test]
fn arrays_have_their_elements() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let ty = engine.new_array_type(MUTABLE(StorageType::Val(ValType::F64))).unwrap();
    let values = [1.5, -2.0].map(Val::from);
    let few = ArrayRef::from_elements(&mut store, &ty, &values).unwrap();
    let many = ArrayRef::new(&mut store, &ty, &Val::from(0.25), 100_000).unwrap();
    assert_eq!((few.len(&store), many.len(&store)), (2, 100_000));
    assert_eq!(few.get(&mut store, 1).unwrap().unwrap_f64(), -2.0);
    assert_eq!(many.get(&mut store, 99_999).unwrap().unwrap_f64(), 0.25);
    assert!(few.get(&mut store, 2).is_none());
    few.set(&mut store, 0, &Val::from(8.0)).unwrap();
    assert_eq!(few.get(&mut store, 0).unwrap().unwrap_f64(), 8.0);
    assert!(matches!(few.set(&mut store, 2, &values[0]), Err(Error::OutOfBounds { .. })));
    let any = AnyRef::from(few.clone());
    assert!(any.as_struct(&store).is_none() && any.as_array(&store).is_some());
    assert_eq!(any.ty(&store), ty.heap_type());
    assert!(Val::from(few).is_of_type(&store, &ValType::Ref(RefType::ARRAYREF)));
}

#[test]
fn handles_keep_objects_and_what_they_refer_to() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let extern_field = StorageType::Val(ValType::EXTERNREF);
    let any_field = StorageType::Val(ValType::ANYREF);
    let ty = engine.new_struct_type([MUTABLE(extern_field), MUTABLE(any_field)]).unwrap();
    let host = ExternRef::new("kept");
    let inner = StructRef::new(&mut store, &ty, &[host.into(), Val::AnyRef(None)]).unwrap();
    let outer = StructRef::new(&mut store, &ty, &[Val::ExternRef(None), inner.into()]).unwrap();
    for _ in 0..200_000 {
        StructRef::new(&mut store, &ty, &[Val::ExternRef(None), Val::AnyRef(None)]).unwrap();
    }
    store.gc();
    let inner = outer.field(&mut store, 1).unwrap();
    let inner = inner.unwrap_any_ref().unwrap().as_struct(&store).unwrap();
    let host = inner.field(&mut store, 0).unwrap();
    assert_eq!(host.unwrap_extern_ref().unwrap().data().downcast_ref(), Some(&"kept"));
    let array = engine.new_array_type(MUTABLE(StorageType::I8)).unwrap();
    let large = ArrayRef::new(&mut store, &array, &Val::I32(1), 64 << 20).unwrap();
    assert!(store.heap_size() > 64 << 20);
    drop(large);
    store.gc();
    assert!(store.heap_size() < 64 << 20);
}

#[test]
fn the_heap_has_a_limit() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    store.set_limits(StoreLimits::new().heap_size(1 << 20));
    let ty = engine.new_array_type(MUTABLE(StorageType::I8)).unwrap();
    let mut kept = Vec::new();
    let refused = loop {
        match ArrayRef::new(&mut store, &ty, &Val::I32(1), 1000) {
            Ok(array) => kept.push(array),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::StoreLimit { .. }), "{refused:?}");
    assert!(kept.len() > 500, "{}", kept.len());
    kept.clear();
    assert!(ArrayRef::new(&mut store, &ty, &Val::I32(1), 1000).is_ok());
}

#[test]
fn references_cross_the_boundary() {
    let engine = Engine::default();
    let text = r#"(module
        (type $point (struct (field i32)))
        (func (export "make") (param i32) (result (ref $point)) (struct.new $point (local.get 0)))
        (func (export "get") (param (ref null $point)) (result i32) (struct.get $point 0 (local.get 0)))
        (func (export "out") (param anyref) (result externref) (extern.convert_any (local.get 0)))
        (func (export "in") (param externref) (result anyref) (any.convert_extern (local.get 0))))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let mut call = |name: &str, argument: Val| {
        let mut result = [Val::I32(0)];
        let func = instance.get_func(&store, name).unwrap();
        func.call(&mut store, &[argument], &mut result).map(|()| result[0].clone())
    };
    let point = call("make", Val::I32(42)).unwrap();
    assert_eq!(call("get", point.clone()).unwrap().unwrap_i32(), 42);
    // Out and in again, and a value of the host the other way around.
    let outside = call("out", point).unwrap();
    assert!(outside.unwrap_extern_ref().unwrap().data().is::<AnyRef>());
    let inside = call("in", outside).unwrap();
    assert_eq!(call("get", inside).unwrap().unwrap_i32(), 42);
    let host = call("in", ExternRef::new(7_u8).into()).unwrap();
    assert!(host.unwrap_any_ref().unwrap().as_extern().is_some());
    let back = call("out", host.clone()).unwrap();
    assert_eq!(back.unwrap_extern_ref().unwrap().data().downcast_ref(), Some(&7_u8));
    for wrong in [host, I31::wrapping(1).into()] {
        let refused = call("get", wrong);
        assert!(matches!(refused, Err(Error::ValueType(_))), "{refused:?}");
    }
    assert!(call("get", Val::AnyRef(None)).unwrap_err().trap().is_some());
    assert_eq!([I31::wrapping(-1).signed(), I31::wrapping(-1).unsigned() as i32], [-1, 0x7fff_ffff]);
}

#[test]
fn equal_types_of_modules_are_one_type() {
    let engine = Engine::default();
    let module = |text: &str| Module::new(&engine, text).unwrap();
    let export = |module: &Module| module.get_export("g").unwrap().to_string();
    let one =
        module("(module (type $t (struct (field i32))) (global (export \"g\") (ref null $t) (ref.null $t)))");
    let same = module(
        "(module (type (func)) (type $t (struct (field i32))) (global (export \"g\") (ref null $t) (ref.null $t)))",
    );
    let other =
        module("(module (type $t (struct (field i64))) (global (export \"g\") (ref null $t) (ref.null $t)))");
    assert_eq!(export(&one), export(&same));
    assert_ne!(export(&one), export(&other));
    let ty =
        engine.new_struct_type([FieldType::new(StorageType::Val(ValType::I32), Mutability::Const)]).unwrap();
    assert!(export(&one).contains(&HeapType::ConcreteStruct(ty.id()).to_string()));
    assert!(
        !engine
            .is_subtype(&ValType::Ref(RefType::STRUCTREF), &ValType::Ref(RefType::new(true, ty.heap_type())))
    );
    assert!(
        engine.is_subtype(&ValType::Ref(RefType::new(false, ty.heap_type())), &ValType::Ref(RefType::EQREF))
    );
}

#[test]
fn types_of_other_engines_are_refused() {
    let (engine, other) = (Engine::default(), Engine::default());
    let field = |ty| MUTABLE(StorageType::Val(ty));
    // They may have the same id.
    let ours = engine.new_struct_type([field(ValType::I64), field(ValType::I64)]).unwrap();
    let theirs = other.new_struct_type([field(ValType::I32)]).unwrap();
    let mut store = Store::new(&other, ());
    let refused = StructRef::new(&mut store, &ours, &[Val::I64(1), Val::I64(2)]);
    assert!(matches!(refused, Err(Error::InvalidType { .. })), "{refused:?}");
    assert!(StructRef::new(&mut store, &theirs, &[Val::I32(1)]).is_ok());
    let bytes = engine.new_array_type(MUTABLE(StorageType::I8)).unwrap();
    let refused = ArrayRef::new(&mut store, &bytes, &Val::I32(1), 10);
    assert!(matches!(refused, Err(Error::InvalidType { .. })), "{refused:?}");
}
