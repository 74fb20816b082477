//! Structures, arrays and `i31`, as the host creates, reads, writes and keeps them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use wasm_jit::{
    AnyRef, ArrayRef, ArrayType, AsContextMut, Caller, Config, Engine, Error, Extern, ExternRef, ExternType,
    FieldType, Func, Global, GlobalType, HeapType, I31, Instance, Module, Mutability, RefType, StorageType,
    Store, StoreLimits, StructRef, StructType, Val, ValType,
};

use super::{call0, instance};

const CONST: Mutability = Mutability::Const;
const VAR: Mutability = Mutability::Var;
const ANYREF: StorageType = StorageType::Val(ValType::ANYREF);
const I64: StorageType = StorageType::Val(ValType::I64);

fn store() -> Store<()> {
    Store::new(&Engine::default(), ())
}

fn struct_type(store: &Store<()>, fields: &[(StorageType, Mutability)]) -> StructType {
    let fields = fields.iter().map(|(storage, mutability)| FieldType::new(*storage, *mutability));
    store.engine().new_struct_type(fields).unwrap()
}

fn array_type(store: &Store<()>, element: StorageType, mutability: Mutability) -> ArrayType {
    store.engine().new_array_type(FieldType::new(element, mutability)).unwrap()
}

#[test]
fn fields_of_structures_are_read_and_written() {
    let mut store = store();
    let fields = [(StorageType::I8, VAR), (I64, CONST), (StorageType::I16, VAR), (ANYREF, VAR)];
    let ty = struct_type(&store, &fields);
    let values = [Val::I32(-1), Val::I64(1 << 40), Val::I32(0x1_8000), Val::AnyRef(None)];
    let object = StructRef::new(&mut store, &ty, &values).unwrap();
    assert_eq!(object.ty(&store), ty);
    assert_eq!(object.field(&mut store, 0).unwrap().unwrap_i32(), 255, "packed");
    assert_eq!(object.field(&mut store, 1).unwrap().unwrap_i64(), 1 << 40);
    assert_eq!(object.field(&mut store, 2).unwrap().unwrap_i32(), 0x8000);
    assert!(object.field(&mut store, 3).unwrap().unwrap_any_ref().is_none());
    assert!(object.field(&mut store, 4).is_none());

    object.set_field(&mut store, 0, &Val::I32(0x1ff)).unwrap();
    object.set_field(&mut store, 3, &object.clone().into()).unwrap();
    assert_eq!(object.field(&mut store, 0).unwrap().unwrap_i32(), 255);
    assert_eq!(object.field(&mut store, 1).unwrap().unwrap_i64(), 1 << 40, "the other fields stay");
    let own = object.field(&mut store, 3).unwrap().unwrap_any_ref().cloned().unwrap();
    assert!(own.same(&object.clone().into()));
    assert_eq!(own.ty(&store), ty.heap_type());
    assert!(own.as_array(&store).is_none() && own.as_i31().is_none());

    let set = |store: &mut Store<()>, index, value: Val| object.set_field(store, index, &value).unwrap_err();
    assert!(matches!(set(&mut store, 1, Val::I64(1)), Error::ConstantField));
    assert!(matches!(set(&mut store, 0, Val::I64(1)), Error::ValueType(_)));
    assert!(matches!(set(&mut store, 3, Val::FuncRef(None)), Error::ValueType(_)));
    assert!(matches!(set(&mut store, 4, Val::I32(1)), Error::OutOfBounds { offset: 4, size: 4, .. }));
    let few = StructRef::new(&mut store, &ty, &values[1..]).unwrap_err();
    assert!(matches!(few, Error::ValueCount { expected: 4, found: 3, .. }));
    let wrong = StructRef::new(&mut store, &ty, &[const { Val::I64(0) }; 4]).unwrap_err();
    assert!(matches!(wrong, Error::ValueType(_)));
}

#[test]
fn elements_of_arrays_are_read_and_written() {
    let mut store = store();
    let bytes = array_type(&store, StorageType::I8, VAR);
    let array = ArrayRef::new(&mut store, &bytes, &Val::I32(0x1fe), 20_000).unwrap();
    assert_eq!((array.len(&store), array.ty(&store)), (20_000, bytes));
    array.set(&mut store, 19_999, &Val::I32(-128)).unwrap();
    assert_eq!(array.get(&mut store, 19_999).unwrap().unwrap_i32(), 128);
    assert_eq!(array.get(&mut store, 19_998).unwrap().unwrap_i32(), 254);
    assert!(array.get(&mut store, 20_000).is_none());
    let beyond = array.set(&mut store, u32::MAX, &Val::I32(0)).unwrap_err();
    assert!(matches!(beyond, Error::OutOfBounds { offset: 0xffff_ffff, size: 20_000, .. }));

    let vectors = array_type(&store, StorageType::Val(ValType::V128), CONST);
    let array = ArrayRef::from_elements(&mut store, &vectors, &[Val::V128(1 << 100), Val::V128(3)]).unwrap();
    assert_eq!(array.get(&mut store, 0).unwrap().unwrap_v128(), 1 << 100);
    assert_eq!(array.get(&mut store, 1).unwrap().unwrap_v128(), 3);
    assert!(matches!(array.set(&mut store, 0, &Val::V128(0)).unwrap_err(), Error::ConstantField));
    assert!(ArrayRef::from_elements(&mut store, &vectors, &[]).unwrap().is_empty(&store));
    let wrong = ArrayRef::new(&mut store, &vectors, &Val::I32(0), 3).unwrap_err();
    assert!(matches!(wrong, Error::ValueType(_)));
}

#[test]
fn elements_that_are_numbers_are_slices() {
    let mut store = store();
    let units = array_type(&store, StorageType::I16, VAR);
    let array = ArrayRef::new(&mut store, &units, &Val::I32(-2), 3).unwrap();
    assert_eq!(array.elements::<u16, _>(&store), Some(&[0xfffe; 3][..]));
    array.elements_mut::<u16, _>(&mut store).unwrap()[1] = 7;
    assert_eq!(array.get(&mut store, 1).unwrap().unwrap_i32(), 7);
    assert_eq!(array.get(&mut store, 0).unwrap().unwrap_i32(), 0xfffe);
    assert!(array.elements::<u8, _>(&store).is_none() && array.elements::<u32, _>(&store).is_none());
    assert!(array.elements_mut::<f32, _>(&mut store).is_none());

    let constant = array_type(&store, StorageType::Val(ValType::F64), CONST);
    let array = ArrayRef::from_elements(&mut store, &constant, &[Val::from(0.5), Val::from(-1.0)]).unwrap();
    assert_eq!(array.elements(&store), Some(&[0.5, -1.0][..]));
    assert!(array.elements::<u64, _>(&store).is_none());
    assert!(array.elements_mut::<f64, _>(&mut store).is_none(), "constant");
    let empty = ArrayRef::from_elements(&mut store, &units, &[]).unwrap();
    assert_eq!(empty.elements::<u16, _>(&store), Some(&[][..]));

    let references = array_type(&store, ANYREF, VAR);
    let array = ArrayRef::new(&mut store, &references, &Val::AnyRef(None), 1).unwrap();
    assert!(array.elements::<u64, _>(&store).is_none());
    let mut other = Store::new(store.engine(), ());
    assert!(catch_unwind(AssertUnwindSafe(|| empty.elements_mut::<u16, _>(&mut other).is_none())).is_err());
}

#[test]
fn objects_belong_to_their_store() {
    let engine = Engine::default();
    let (mut one, mut other) = (Store::new(&engine, ()), Store::new(&engine, ()));
    let ty = struct_type(&one, &[(ANYREF, VAR)]);
    let object = StructRef::new(&mut one, &ty, &[Val::AnyRef(None)]).unwrap();
    let refused = |error: Error| assert!(matches!(error, Error::WrongStore { .. }), "{error}");
    refused(StructRef::new(&mut other, &ty, &[object.clone().into()]).unwrap_err());
    // Also as the value of the host that stands for it.
    let disguised = AnyRef::from(object.clone()).to_extern();
    let global = GlobalType::new(ValType::EXTERNREF, CONST);
    refused(Global::new(&mut other, global, disguised.into()).unwrap_err());
    assert!(catch_unwind(AssertUnwindSafe(|| object.field(&mut other, 0))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| object.ty(&other))).is_err());
}

/// The type of structures that the global `g` of a module refers to.
fn struct_of_global(engine: &Engine, module: &Module) -> StructType {
    let Some(ExternType::Global(global)) = module.get_export("g") else { panic!("no global") };
    let ValType::Ref(ty) = global.content() else { panic!("not a reference") };
    let HeapType::ConcreteStruct(id) = ty.heap_type() else { panic!("not a structure") };
    engine.struct_type(id).unwrap()
}

/// A module that declares a type of structures, and the type.
fn declared(engine: &Engine, fields: &str) -> (Module, StructType) {
    let text =
        format!(r#"(module (type $t (struct {fields})) (global (export "g") (ref null $t) (ref.null $t)))"#);
    let module = Module::new(engine, text).unwrap();
    let ty = struct_of_global(engine, &module);
    (module, ty)
}

#[test]
fn types_outlive_their_modules_while_a_store_has_objects_of_them() {
    let mut store = store();
    let (module, ty) = declared(&store.engine().clone(), "(field (mut i64)) (field anyref)");
    let object = StructRef::new(&mut store, &ty, &[Val::I64(7), I31::wrapping(5).into()]).unwrap();
    StructRef::new(&mut store, &ty, &[Val::I64(0), Val::AnyRef(None)]).unwrap();
    drop(module);
    // Other types would be where that one was.
    let others: Vec<_> =
        (1..20).map(|count| declared(store.engine(), &"(field i32)".repeat(count))).collect();
    store.gc();
    assert_eq!(object.ty(&store).to_string(), "(struct (field (mut i64)) (field anyref))");
    assert_eq!(object.field(&mut store, 0).unwrap().unwrap_i64(), 7);
    drop(others);
    let engine = store.engine().clone();
    drop(store);
    assert!(engine.struct_type(ty.id()).is_none());
    let mut store = Store::new(&engine, ());
    let unknown = StructRef::new(&mut store, &ty, &[Val::I64(7), Val::AnyRef(None)]).unwrap_err();
    assert!(matches!(unknown, Error::InvalidType { of: "object" }));
}

#[test]
fn types_of_other_engines_are_refused() {
    let (mut store, other) = (store(), store());
    let small = struct_type(&store, &[]);
    let array = array_type(&store, I64, VAR);
    let large = struct_type(&other, &[(I64, VAR); 100]);
    let bytes = array_type(&other, StorageType::I8, VAR);
    assert_ne!(small.id(), large.id());
    assert_ne!(array.id(), bytes.id());
    let values = vec![Val::I64(-1); 100];
    let refused = |error: Error| assert!(matches!(error, Error::InvalidType { of: "object" }), "{error}");
    refused(StructRef::new(&mut store, &large, &values).unwrap_err());
    refused(ArrayRef::from_elements(&mut store, &bytes, &[Val::I32(1)]).unwrap_err());
}

#[test]
fn handles_keep_objects_alive_and_the_heap_shrinks_without_them() {
    let mut store = store();
    let ty = struct_type(&store, &[(I64, VAR), (ANYREF, VAR)]);
    let mut list = StructRef::new(&mut store, &ty, &[Val::I64(0), Val::AnyRef(None)]).unwrap();
    for number in 1..1000 {
        list = StructRef::new(&mut store, &ty, &[Val::I64(number), list.into()]).unwrap();
    }
    let bytes = array_type(&store, StorageType::I8, VAR);
    let large: Vec<_> =
        (0..40).map(|_| ArrayRef::new(&mut store, &bytes, &Val::I32(1), 1 << 20).unwrap()).collect();
    store.gc();
    assert!(store.heap_size() > 40 << 20);
    assert_eq!(large[39].get(&mut store, (1 << 20) - 1).unwrap().unwrap_i32(), 1);
    drop(large);
    store.gc();
    assert!(store.heap_size() < 20 << 20, "{}", store.heap_size());
    let mut sum = 0;
    let mut next = Some(AnyRef::from(list));
    while let Some(object) = next.take().and_then(|any| any.as_struct(&store)) {
        sum += object.field(&mut store, 0).unwrap().unwrap_i64();
        next = object.field(&mut store, 1).unwrap().unwrap_any_ref().cloned();
    }
    assert_eq!(sum, 499_500);
}

#[test]
fn the_heap_is_limited() {
    let (mut store, instance) = instance(
        r#"(module (type $a (array (mut i64))) (type $b (array i8)) (type $s (struct (field anyref)))
            (type $r (array anyref))
            (func (export "large") (result i32) (array.len (array.new_default $a (i32.const 0xf0000000))))
            (func (export "bytes") (result i32) (array.len (array.new_default $b (i32.const -1))))
            (func (export "fits") (result i32) (array.len (array.new_default $b (i32.const 100000))))
            (func (export "chain") (local anyref)
                (loop $again (local.set 0 (struct.new $s (local.get 0))) (br $again)))
            (func (export "arrays") (local anyref)
                (loop $again (local.set 0 (array.new $r (local.get 0) (i32.const 1))) (br $again)))
            (func (export "more arrays") (result i32) (local i32)
                (loop $again
                    (drop (array.new $r (ref.null none) (i32.const 1)))
                    (br_if $again (i32.lt_u (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 100000))))
                (local.get 0))
            (func (export "garbage") (result i32) (local i32)
                (loop $again
                    (drop (struct.new $s (ref.null none)))
                    (br_if $again (i32.lt_u (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 1000000))))
                (local.get 0)))"#,
    );
    store.set_limits(StoreLimits::new().heap_size(1 << 20));
    for name in ["large", "bytes", "chain", "arrays"] {
        let error = match name {
            "chain" | "arrays" => call0::<()>(&mut store, instance, name).unwrap_err(),
            _ => call0::<i32>(&mut store, instance, name).unwrap_err(),
        };
        assert!(matches!(error, Error::StoreLimit { what: "heap memory", .. }), "{name}: {error}");
        assert_eq!(error.reason(), "the store's limit of heap memory is reached");
        assert_eq!(error.backtrace().unwrap().frames().len(), 1, "{name}: {error}");
        assert!(store.heap_size() <= 1 << 20);
        // At once: what the call has left on the stack must not keep its objects alive.
        let (next, count) = if name == "arrays" { ("more arrays", 100_000) } else { ("garbage", 1_000_000) };
        assert_eq!(call0::<i32>(&mut store, instance, next).unwrap(), count, "after {name}");
        assert_eq!(call0::<i32>(&mut store, instance, "fits").unwrap(), 100_000, "after {name}");
    }
    let ty = array_type(&store, StorageType::Val(ValType::V128), VAR);
    let error = ArrayRef::new(&mut store, &ty, &Val::V128(1), u32::MAX).unwrap_err();
    assert!(matches!(&error, Error::StoreLimit { backtrace, .. } if backtrace.is_empty()));
    store.set_limits(StoreLimits::new().heap_size(0));
    store.gc();
    assert!(call0::<i32>(&mut store, instance, "fits").is_err());
}

#[test]
fn integers_and_objects_pass_through_references_of_the_host() {
    let (mut store, instance) = instance(
        r#"(module (type $s (struct (field i32)))
            (func (export "out") (param anyref) (result externref) (extern.convert_any (local.get 0)))
            (func (export "in") (param externref) (result anyref) (any.convert_extern (local.get 0)))
            (func (export "i31") (result externref) (extern.convert_any (ref.i31 (i32.const -5))))
            (func (export "is i31") (param externref) (result i32)
                (ref.test (ref i31) (any.convert_extern (local.get 0))))
            (func (export "new") (result anyref) (struct.new $s (i32.const 77))))"#,
    );
    let get = |store: &mut Store<()>, name, value: Val, result: Val| {
        let func = instance.get_func(&mut *store, name).unwrap();
        let mut results = [result];
        func.call(store, &[value], &mut results).unwrap();
        let [result] = results;
        result
    };
    let made = call0::<Option<AnyRef>>(&mut store, instance, "new").unwrap().unwrap();
    for any in [made.clone(), AnyRef::from(I31::wrapping(-1)), AnyRef::from_extern(ExternRef::new(5_u8))] {
        let outside = get(&mut store, "out", any.clone().into(), Val::ExternRef(None));
        store.gc();
        let inside = get(&mut store, "in", outside.clone(), Val::AnyRef(None));
        assert!(inside.unwrap_any_ref().is_some_and(|inside| inside.same(&any)));
        let other = AnyRef::from_extern(outside.unwrap_extern_ref().unwrap().clone());
        assert!(other.same(&any));
        let is_i31 = get(&mut store, "is i31", outside, Val::I32(0)).unwrap_i32();
        assert_eq!(is_i31 == 1, any.as_i31().is_some());
    }
    let outside = call0::<Option<ExternRef>>(&mut store, instance, "i31").unwrap().unwrap();
    assert_eq!(AnyRef::from_extern(outside).as_i31().map(I31::signed), Some(-5));
}

/// References that compiled code holds in locals and operands while host functions allocate and
/// collect.
#[test]
fn host_functions_may_allocate_and_collect() {
    for always in [false, true] {
        let engine = Engine::new(Config::new().collects_always(always)).unwrap();
        let module = Module::new(
            &engine,
            r#"(module (type $s (struct (field (mut i32)) (field (mut anyref))))
                (import "host" "make" (func $make (param anyref) (result anyref)))
                (import "host" "collect" (func $collect))
                (func (export "run") (result i32) (local $one (ref null $s)) (local $sum i32) (local $left i32)
                    (local.set $left (i32.const 200))
                    (loop $again
                        (local.set $one (struct.new $s (local.get $left) (ref.i31 (i32.const 1))))
                        (struct.new $s (i32.const 3) (local.get $one))
                        (struct.new $s (i32.const 10) (call $make (struct.new $s (i32.const 4) (local.get $one))))
                        (call $collect)
                        (struct.get $s 1)
                        (struct.get $s 1 (ref.cast (ref $s)))
                        (ref.cast (ref $s)) (struct.get $s 0)
                        (local.set $sum (i32.add (local.get $sum)))
                        (struct.get $s 0 (ref.cast (ref $s) (struct.get $s 1)))
                        (local.set $sum (i32.add (local.get $sum)))
                        (local.set $sum (i32.add (local.get $sum) (struct.get $s 0 (local.get $one))))
                        (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                    (local.get $sum)))"#,
        )
        .unwrap();
        let mut store = Store::new(&engine, ());
        // Equal to the module's type, but a group of its own.
        let fields = [StorageType::Val(ValType::I32), ANYREF].map(|storage| FieldType::new(storage, VAR));
        let ty = engine.new_struct_type(fields).unwrap();
        let make = Func::wrap(&mut store, move |mut caller: Caller<'_, ()>, given: Option<AnyRef>| {
            let given = given.and_then(|any| any.as_struct(&caller)).expect("a structure");
            for _ in 0..5 {
                StructRef::new(&mut caller, &ty, &[Val::I32(-1), Val::AnyRef(None)])?;
            }
            let inner = given.field(&mut caller, 1).expect("two fields");
            let its_type = given.ty(&caller);
            let made = StructRef::new(&mut caller, &its_type, &[Val::I32(100), inner])?;
            Ok::<_, Error>(Some(AnyRef::from(made)))
        })
        .unwrap();
        let collect = Func::wrap(&mut store, |mut caller: Caller<'_, ()>| {
            caller.as_context_mut().gc();
        })
        .unwrap();
        let instance = Instance::new(&mut store, &module, &[make.into(), collect.into()]).unwrap();
        // Each time three times the same number.
        assert_eq!(call0::<i32>(&mut store, instance, "run").unwrap(), 3 * 200 * 201 / 2, "{always}");
    }
}

#[test]
fn structures_and_arrays_of_ten_thousand_values() {
    let ints = "(i32.const 7) ".repeat(10_000);
    let text = format!(
        r#"(module (type $s (struct {fields})) (type $a (array v128))
            (func (export "struct") (result i32) (struct.get $s 9999 (struct.new $s {ints})))
            (func (export "array") (result i32)
                (i32x4.extract_lane 3 (array.get $a (array.new_fixed $a 10000 {vectors}) (i32.const 9999)))))"#,
        fields = "(field i32) ".repeat(10_000),
        vectors = "(v128.const i32x4 1 2 3 4) ".repeat(10_000),
    );
    let (mut store, instance) = instance(&text);
    assert_eq!(call0::<i32>(&mut store, instance, "struct").unwrap(), 7);
    assert_eq!(call0::<i32>(&mut store, instance, "array").unwrap(), 4);
}

/// Objects of one module are those of another one, if their types are equal.
#[test]
fn objects_are_exchanged_between_instances() {
    let engine = Engine::default();
    let types = "(rec (type $s (sub (struct (field i32)))) (type $t (sub $s (struct (field i32 i64)))))";
    let makes = format!(
        r#"(module {types} (global (export "g") (mut (ref null $s)) (struct.new $t (i32.const 5) (i64.const 6)))
            (table (export "t") 2 (ref null $s)) (func (export "new") (result (ref $s)) (struct.new $s (i32.const 8))))"#
    );
    let uses = format!(
        r#"(module {types} (import "m" "g" (global $g (mut (ref null $s)))) (import "m" "t" (table $t 2 (ref null $s)))
            (import "m" "new" (func $new (result (ref $s))))
            (func (export "run") (result i64) (table.set $t (i32.const 1) (call $new))
                (i64.add (struct.get $t 1 (ref.cast (ref $t) (global.get $g)))
                    (i64.extend_i32_u (struct.get $s 0 (table.get $t (i32.const 1)))))))"#
    );
    let mut store = Store::new(&engine, ());
    let first = Instance::new(&mut store, &Module::new(&engine, makes).unwrap(), &[]).unwrap();
    let imports: Vec<Extern> =
        ["g", "t", "new"].map(|name| first.get_export(&mut store, name).unwrap()).into();
    let second = Instance::new(&mut store, &Module::new(&engine, &uses).unwrap(), &imports).unwrap();
    store.gc();
    assert_eq!(call0::<i64>(&mut store, second, "run").unwrap(), 14);
    // The same types in groups of their own are others.
    let other = Module::new(
        &engine,
        uses.replace(
            "(rec (type $s (sub (struct (field i32))))",
            "(type $s (sub (struct (field i32)))) (rec",
        ),
    )
    .unwrap();
    assert!(matches!(Instance::new(&mut store, &other, &imports), Err(Error::IncompatibleImport { .. })));
}

#[test]
fn stored_modules_have_their_types_of_objects() {
    let (one, other) = (Engine::default(), Engine::default());
    // Types have other ids there.
    other.new_array_type(FieldType::new(I64, VAR)).unwrap();
    let (module, _) = declared(&one, "(field (mut i64)) (field anyref)");
    let stored = module.serialize().unwrap();
    // SAFETY: made by the same version of the engine.
    let loaded = unsafe { Module::deserialize(&other, &stored) }.unwrap();
    let mut store = Store::new(&other, ());
    Instance::new(&mut store, &loaded, &[]).unwrap();
    assert_eq!(struct_of_global(&other, &loaded).fields().len(), 2);
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
fn instantiation_collects_to_make_room() {
    let engine = Engine::default();
    let garbage = r#"(module (type $a (array (mut i8)))
        (func (export "run") (drop (array.new_default $a (i32.const 900000)))))"#;
    let mut store = Store::new(&engine, ());
    store.set_limits(StoreLimits::new().heap_size(1 << 20));
    let garbage = Instance::new(&mut store, &Module::new(&engine, garbage).unwrap(), &[]).unwrap();
    call0::<()>(&mut store, garbage, "run").unwrap();
    let module = r#"(module (type $a (array (mut i8)))
        (global $g (ref $a) (array.new_default $a (i32.const 300000)))
        (table $t (ref null $a) (elem (array.new_default $a (i32.const 300001))))
        (elem $e (ref $a) (item (array.new_default $a (i32.const 200000))))
        (func (export "run") (result i32) (array.len (global.get $g))))"#;
    let module = Module::new(&engine, module).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    assert_eq!(call0::<i32>(&mut store, instance, "run").unwrap(), 300_000);
    // What the first instance keeps leaves no room for another.
    let error = Instance::new(&mut store, &module, &[]).unwrap_err();
    assert!(matches!(error, Error::StoreLimit { what: "heap memory", .. }), "{error}");
}

/// Less than a quarter of the limit was allocated since the last collection: none is due.
#[test]
fn instantiation_collects_only_when_there_is_no_room() {
    let engine = Engine::default();
    let module = |kept: u32| {
        let text = format!(
            r#"(module (type $a (array (mut i8))) (global $g (ref $a) (array.new_default $a (i32.const {kept})))
                (func (export "run") (drop (array.new_default $a (i32.const 200000)))))"#
        );
        Module::new(&engine, text).unwrap()
    };
    let mut store = Store::new(&engine, ());
    store.set_limits(StoreLimits::new().heap_size(1 << 20));
    let first = Instance::new(&mut store, &module(500_000), &[]).unwrap();
    store.gc();
    call0::<()>(&mut store, first, "run").unwrap();
    Instance::new(&mut store, &module(300_000), &[]).unwrap();
}

#[test]
fn initial_values_are_alive_while_others_are_created() {
    let engine = Engine::new(Config::new().collects_always(true)).unwrap();
    // An array is larger than a line of the heap, whose memory is used again once the array is
    // dead.
    let array = |number: u32| format!("(array.new $a (i32.const {number}) (i32.const 60))");
    let [one, two, three, four, five, six, seven, eight] = [1, 2, 3, 4, 5, 6, 7, 8].map(array);
    let text = format!(
        r#"(module (type $a (array (mut i32))) (type $l (array (mut (ref null $a))))
            (type $s (struct (field $a (ref $a)) (field v128) (field $l (ref $l)) (field $s (ref null $s))))
            (global $s (ref $s) (struct.new $s {one} (v128.const i64x2 7 8) (array.new_fixed $l 2 {two} {three})
                (struct.new $s {four} (v128.const i64x2 9 10) (array.new $l {five} (i32.const 2)) (ref.null $s))))
            (table $t (ref null $a) (elem (item {six}) (item {seven}) (item {eight})))
            (func $is (param $a (ref null $a)) (param i32)
                (if (i32.ne (array.get $a (local.get $a) (i32.const 0)) (local.get 1)) (then unreachable))
                (if (i32.ne (array.get $a (local.get $a) (i32.const 59)) (local.get 1)) (then unreachable)))
            (func $element (param $l (ref $l)) (param i32) (result (ref null $a))
                (array.get $l (local.get $l) (local.get 1)))
            (func (export "check") (local $inner (ref null $s))
                (local.set $inner (struct.get $s $s (global.get $s)))
                (call $is (struct.get $s $a (global.get $s)) (i32.const 1))
                (call $is (call $element (struct.get $s $l (global.get $s)) (i32.const 0)) (i32.const 2))
                (call $is (call $element (struct.get $s $l (global.get $s)) (i32.const 1)) (i32.const 3))
                (call $is (struct.get $s $a (local.get $inner)) (i32.const 4))
                (call $is (call $element (struct.get $s $l (local.get $inner)) (i32.const 1)) (i32.const 5))
                (call $is (table.get $t (i32.const 0)) (i32.const 6))
                (call $is (table.get $t (i32.const 1)) (i32.const 7))
                (call $is (table.get $t (i32.const 2)) (i32.const 8))))"#
    );
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &Module::new(&engine, text).unwrap(), &[]).unwrap();
    call0::<()>(&mut store, instance, "check").unwrap();
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
