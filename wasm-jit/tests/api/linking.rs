//! Modules, imports, and ownership by stores.

use wasm_jit::{
    AnyRef, Caller, Engine, Error, ExnRef, Extern, ExternRef, ExternType, FieldType, Func, FuncType,
    GlobalType, Instance, Linker, Memory, MemoryType, Module, Mutability, RefType, SharedMemory, StorageType,
    Store, StoreLimits, Table, TableType, Tag, TagType, Trap, Val, ValType,
};

use super::{call0, instance, module};

#[test]
fn an_instance_imports_everything_from_another() {
    let engine = Engine::default();
    let provider = Module::new(
        &engine,
        r#"(module
            (memory (export "memory") 1)
            (table (export "table") 1 funcref)
            (global (export "global") (mut i32) (i32.const 5))
            (func (export "bump") (result i32)
                (global.set 0 (i32.add (global.get 0) (i32.const 1)))
                (i32.store (i32.const 0) (global.get 0))
                (global.get 0)))"#,
    )
    .unwrap();
    let user = Module::new(
        &engine,
        r#"(module
            (import "p" "memory" (memory 1))
            (import "p" "table" (table 1 funcref))
            (import "p" "global" (global $g (mut i32)))
            (import "p" "bump" (func $bump (result i32)))
            (elem (i32.const 0) $bump)
            (func (export "run") (result i32)
                (drop (call $bump))
                (drop (call_indirect (result i32) (i32.const 0)))
                (i32.add (i32.load (i32.const 0)) (global.get $g))))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let provider = linker.instantiate(&mut store, &provider).unwrap();
    linker.instance(&store, "p", provider).unwrap();
    let user = linker.instantiate(&mut store, &user).unwrap();
    assert_eq!(call0::<i32>(&mut store, user, "run").unwrap(), 14);
    assert_eq!(provider.get_global(&store, "global").unwrap().get(&mut store).unwrap_i32(), 7);
}

/// Imported ones first, whether they are exported or not.
#[test]
fn tags_of_an_instance_have_indices() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let ty = TagType::new(FuncType::new([ValType::I32], []));
    let [imported, other] = [(); 2].map(|()| Tag::new(&mut store, &ty).unwrap());
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.define(&store, "h", "e", imported).unwrap();
    let text = r#"(module (import "h" "e" (tag (param i32))) (import "h" "e" (tag (param i32)))
        (tag (param i32)) (tag (export "own") (param i64)))"#;
    let instance = linker.instantiate(&mut store, &Module::new(&engine, text).unwrap()).unwrap();
    let tags: Vec<Tag> = (0..).map_while(|index| instance.tag(&store, index)).collect();
    assert_eq!(tags[..2], [imported; 2]);
    assert_eq!(Some(tags[3]), instance.get_tag(&store, "own"));
    let indices: Vec<_> = tags.iter().map(|tag| instance.tag_index(&store, tag)).collect();
    assert_eq!(indices, [Some(0), Some(0), Some(2), Some(3)]);
    assert_eq!(instance.tag_index(&store, &other), None);
}

#[test]
fn a_closure_is_a_function_of_another_type_that_it_can_serve() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (type $bytes (array (mut i8)))
            (import "host" "first" (func $first (param (ref null $bytes) externref) (result externref)))
            (func (export "run") (param externref) (result externref)
                (call $first (array.new_fixed $bytes 1 (i32.const 7)) (local.get 0)))
            (func (export "null") (result externref) (call $first (ref.null $bytes) (ref.null extern))))"#,
    )
    .unwrap();
    let bytes = engine.new_array_type(FieldType::new(StorageType::I8, Mutability::Var)).unwrap();
    let bytes = ValType::Ref(RefType::new(true, bytes.heap_type()));
    let ty = |param| FuncType::new([param, ValType::EXTERNREF], [ValType::EXTERNREF]);
    let mut linker: Linker<()> = Linker::new(&engine);
    // It takes any object, and never returns null.
    let first = |caller: Caller<'_, ()>, array: Option<AnyRef>, value: Option<ExternRef>| -> ExternRef {
        let array = array.map(|array| array.as_array(&caller).expect("an array"));
        assert_eq!(
            array.map(|array| array.elements::<u8, _>(&caller).expect("bytes")[0]),
            value.as_ref().map(|_| 7)
        );
        value.unwrap_or_else(|| ExternRef::new("null"))
    };
    let error = linker.func_wrap_as("host", "first", ty(ValType::FUNCREF), first).unwrap_err();
    assert!(matches!(error, Error::FuncType(_)), "{error}");
    let error = linker
        .func_wrap_as("host", "first", ty(bytes), |_: Option<AnyRef>, value: ExternRef| value)
        .unwrap_err();
    assert!(matches!(error, Error::FuncType(_)), "an argument may be null: {error}");
    linker.func_wrap_as("host", "first", ty(bytes), first).unwrap();
    assert!(matches!(
        linker.func_wrap_as("host", "first", ty(bytes), first).unwrap_err(),
        Error::DuplicateDefinition { .. }
    ));
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<Option<ExternRef>, Option<ExternRef>>(&mut store, "run").unwrap();
    let value = ExternRef::new(1);
    assert!(run.call(&mut store, Some(value.clone())).unwrap().unwrap().same(&value));
    let null = call0::<Option<ExternRef>>(&mut store, instance, "null").unwrap().unwrap();
    assert_eq!(null.data().downcast_ref(), Some(&"null"));
}

#[test]
fn a_linker_reports_mismatched_imports() {
    let engine = Engine::default();
    let wants =
        |import: &str| Module::new(&engine, format!(r#"(module (import "a" "b" {import}))"#)).unwrap();
    let mut store = Store::new(&engine, ());
    let mut linker: Linker<()> = Linker::new(&engine);
    let unknown = linker.instantiate(&mut store, &wants("(func)")).unwrap_err();
    assert_eq!(unknown.to_string(), "unknown import: `a` `b`");
    linker.func_wrap("a", "b", |_: i32| ()).unwrap();
    let error = linker.instantiate(&mut store, &wants("(func (param i64))")).unwrap_err();
    let Error::IncompatibleImport { types, .. } = &error else { panic!("{error}") };
    assert_eq!(types.expected, ExternType::Func(FuncType::new([ValType::I64], [])));
    assert_eq!(types.found, ExternType::Func(FuncType::new([ValType::I32], [])));
    assert!(linker.instantiate(&mut store, &wants("(memory 1)")).is_err());
    linker.instantiate(&mut store, &wants("(func (param i32))")).unwrap();
    let again = linker.func_wrap("a", "b", || ()).map(drop);
    assert!(matches!(again, Err(Error::DuplicateDefinition { .. })));
    linker.allow_shadowing(true).func_wrap("a", "b", || ()).unwrap();
    linker.instantiate(&mut store, &wants("(func)")).unwrap();
}

#[test]
fn calls_to_unknown_imports_trap() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "seven" (func $seven (result i32)))
            (import "host" "missing" (func $missing (param i64) (result f32)))
            (func $caller (param i32) (result i32)
                (if (local.get 0) (then (drop (call $missing (i64.const 1)))))
                (call $seven))
            (func (export "run") (param i32) (result i32) (call $caller (local.get 0))))"#,
    )
    .unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.func_wrap("host", "seven", || 7).unwrap();
    let mut store = Store::new(&engine, ());
    assert!(matches!(linker.instantiate(&mut store, &module), Err(Error::UnknownImport { .. })));
    linker.define_unknown_imports_as_traps(&module);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, 0).unwrap(), 7);
    let error = run.call(&mut store, 1).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::UnknownFunction));
    assert_eq!(error.backtrace().map(|backtrace| backtrace.frames().len()), Some(2), "{error}");
    let reason = "wasm trap: the program called `host` `missing`, which it imports and which is not defined";
    assert_eq!(error.reason(), reason);
    assert!(error.to_string().contains("caller"), "{error}");
    assert_eq!(run.call(&mut store, 0).unwrap(), 7);

    let other = Module::new(&engine, r#"(module (import "host" "number" (global i32)))"#).unwrap();
    linker.define_unknown_imports_as_traps(&other);
    let refused = linker.instantiate(&mut store, &other);
    assert!(matches!(refused, Err(Error::UnknownImport { .. })), "not a function");
}

#[test]
fn limits_of_imported_memories_and_tables_must_fit() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new(2, Some(4))).unwrap();
    let table =
        Table::new(&mut store, TableType::new(RefType::FUNCREF, 2, Some(4)), Val::FuncRef(None)).unwrap();
    let mut fits = |text: &str, item: Extern| {
        let module = Module::new(&engine, format!(r#"(module (import "a" "b" {text}))"#)).unwrap();
        Instance::new(&mut store, &module, &[item]).is_ok()
    };
    for (text, expected) in [
        ("(memory 2 4)", true),
        ("(memory 1 5)", true),
        ("(memory 1)", true),
        ("(memory 3)", false),
        ("(memory 2 3)", false),
        ("(memory 2 4 shared)", false),
    ] {
        assert_eq!(fits(text, memory.into()), expected, "{text}");
    }
    for (text, expected) in [
        ("(table 2 4 funcref)", true),
        ("(table 0 funcref)", true),
        ("(table 3 funcref)", false),
        ("(table 2 3 funcref)", false),
        ("(table 2 4 externref)", false),
    ] {
        assert_eq!(fits(text, table.into()), expected, "{text}");
    }
}

#[test]
fn a_segment_that_does_not_fit_traps_and_keeps_earlier_writes() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
    let module = Module::new(
        &engine,
        r#"(module (import "a" "b" (memory 1))
            (data (i32.const 0) "first")
            (data (i32.const 65535) "second"))"#,
    )
    .unwrap();
    let error = Instance::new(&mut store, &module, &[memory.into()]).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::MemoryOutOfBounds));
    assert_eq!(&memory.data(&store)[..5], b"first");
    assert_eq!(memory.data(&store)[65_535], 0);
}

#[test]
fn unused_segments_remain_usable_when_another_does_not_fit() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "table" (table 4 funcref))
            (table $own 1 funcref)
            (elem (table 0) (i32.const 0) func $init $one)
            (elem $late (table $own) (i32.const 1) func $one)
            (func $init (table.init 0 $late (i32.const 3) (i32.const 0) (i32.const 1)))
            (func $one (result i32) i32.const 1))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let table =
        Table::new(&mut store, TableType::new(RefType::FUNCREF, 4, None), Val::FuncRef(None)).unwrap();
    let error = Instance::new(&mut store, &module, &[table.into()]).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::TableOutOfBounds));
    let at = |store: &mut Store<()>, index| {
        *table.get(store, index).unwrap().unwrap_func_ref().expect("a function was put there")
    };
    at(&mut store, 0).typed::<(), ()>(&store).unwrap().call(&mut store, ()).unwrap();
    let one = at(&mut store, 3).typed::<(), i32>(&store).unwrap();
    assert_eq!(one.call(&mut store, ()).unwrap(), 1);
}

#[test]
fn instantiations_that_are_refused_leave_nothing_behind() {
    let engine = Engine::default();
    let module =
        Module::new(&engine, "(module (memory 1) (memory 1) (table 1 funcref) (table 9 funcref))").unwrap();
    let mut store = Store::new(&engine, ());
    store.set_limits(StoreLimits::new().table_elements(8));
    // The address space has room for some 16,000 memories.
    for _ in 0..10_000 {
        let error = Instance::new(&mut store, &module, &[]).unwrap_err();
        assert!(matches!(error, Error::StoreLimit { what: "table elements", .. }), "{error}");
    }
}

#[test]
fn stores_modules_and_engines_that_are_dropped_leave_no_mappings() {
    let text = r#"(module
        (import "host" "f" (func $f (param i32)))
        (memory 1)
        (memory 1 2 shared)
        (func (export "run") (call $f (i32.const 1)) (drop (memory.grow (i32.const 1)))))"#;
    let run = || {
        let module = module(text);
        let mut store = Store::new(module.engine(), ());
        let func = Func::wrap(&mut store, |_: i32| ()).unwrap();
        let instance = Instance::new(&mut store, &module, &[func.into()]).unwrap();
        call0::<()>(&mut store, instance, "run").unwrap();
        drop((module, store));
    };
    let is_code_or_memory = |line: &str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
        line.contains("memfd") || address(to) - address(from) > 1 << 32
    };
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| is_code_or_memory(line)).count()
    };
    let before = mappings();
    (0..500).for_each(|_| run());
    // Other tests of this process also create mappings.
    let after = mappings();
    assert!(after < before + 200, "{before} and then {after} mappings of code and memories");
}

#[test]
fn the_start_function_runs_last_and_its_trap_is_the_error() {
    let (mut store, instance) = instance(
        r#"(module
            (memory (export "memory") 1)
            (data (i32.const 0) "\05")
            (func $start (i32.store8 (i32.const 1) (i32.load8_u (i32.const 0))))
            (start $start))"#,
    );
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    assert_eq!(memory.data(&store)[1], 5);
    // In two steps.
    let module = instance.module(&store).clone();
    let instance = Instance::new_unstarted(&mut store, &module, &[]).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    assert_eq!(memory.data(&store)[..2], [5, 0]);
    memory.write(&mut store, 0, &[6]).unwrap();
    instance.start(&mut store).unwrap();
    assert_eq!(memory.data(&store)[1], 6);
    let module = Module::new(store.engine(), "(module (func $start unreachable) (start $start))").unwrap();
    let error = Instance::new(&mut store, &module, &[]).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::UnreachableCodeReached));
}

#[test]
#[should_panic(expected = "another store than its own")]
fn a_handle_of_another_store_is_refused() {
    let engine = Engine::default();
    let mut one = Store::new(&engine, ());
    let other = Store::new(&engine, ());
    let memory = Memory::new(&mut one, MemoryType::new(1, None)).unwrap();
    memory.size(&other);
}

#[test]
fn values_and_imports_of_another_store_are_errors() {
    let (mut store, instance) = instance(r#"(module (func (export "f") (param funcref)))"#);
    let mut other = Store::new(store.engine(), ());
    let stranger = Func::wrap(&mut other, || ()).unwrap();
    let f = instance.get_func(&mut store, "f").unwrap();
    let error = f.call(&mut store, &[stranger.into()], &mut []).unwrap_err();
    assert!(matches!(error, Error::WrongStore { .. }));
    let module = Module::new(store.engine(), r#"(module (import "a" "b" (func)))"#).unwrap();
    assert!(matches!(Instance::new(&mut store, &module, &[stranger.into()]), Err(Error::WrongStore { .. })));
    assert!(matches!(
        Instance::new(&mut store, &module, &[]),
        Err(Error::ImportCount { expected: 1, found: 0 })
    ));
}

#[test]
fn a_module_lists_its_imports_and_exports() {
    let module = module(
        r#"(module
            (import "a" "f" (func (param i32)))
            (import "b" "m" (memory 1 2 shared))
            (table (export "t") 3 externref)
            (global (export "g") (mut i64) (i64.const 0)))"#,
    );
    let imports: Vec<_> = module
        .imports()
        .map(|import| format!("{} {} {}", import.module(), import.name(), import.ty()))
        .collect();
    assert_eq!(imports, ["a f function [i32] -> []", "b m memory of 1 to 2 pages shared"]);
    let exports: Vec<_> =
        module.exports().map(|export| format!("{} {}", export.name(), export.ty())).collect();
    assert_eq!(exports, ["t table of 3 or more externref", "g global mut i64"]);
    assert_eq!(
        module.get_export("g"),
        Some(ExternType::Global(GlobalType::new(ValType::I64, Mutability::Var)))
    );
}

#[test]
fn unsupported_features_are_refused_by_name() {
    let engine = Engine::default();
    let cases = [
        ("(module (type $f (func)) (type (cont $f)))", "stack switching"),
        ("(module (type (shared (struct))))", "shared-everything-threads"),
        ("(module (type $f (func)) (func (param (ref (exact $f)))))", "custom descriptors"),
        ("(component)", "build the program for the target wasm32-wasip1"),
    ];
    for (text, feature) in cases {
        let error = Module::new(&engine, text).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{text}: {error:?}");
        assert!(error.to_string().contains(feature), "{text}: {error}");
    }
}

#[test]
fn invalid_modules_are_refused_with_the_offset() {
    let engine = Engine::default();
    assert!(matches!(Module::new(&engine, "(module (func i32.add))"), Err(Error::Invalid { .. })));
    assert!(matches!(Module::new(&engine, "(module (fun))"), Err(Error::Text { .. })));
    assert!(matches!(Module::new(&engine, b"\0asm\x01\0\0\0\x01"), Err(Error::Invalid { offset: 9, .. })));
    assert!(matches!(Module::from_binary(&engine, b""), Err(Error::Invalid { .. })));
    assert!(matches!(Module::from_file(&engine, "/nonexistent.wasm"), Err(Error::Read { .. })));
}

#[test]
fn modules_and_engines_are_shared_among_threads_and_stores_move() {
    fn check<T: Send + Sync>() {}
    check::<(Engine, Module, SharedMemory, Linker<()>, Func, ExternRef, ExnRef, Error)>();
    check::<Store<()>>();
    let module = module(r#"(module (func (export "f") (result i32) i32.const 3))"#);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut store = Store::new(module.engine(), ());
                let instance = Instance::new(&mut store, &module, &[]).unwrap();
                // A store may move to another thread.
                scope.spawn(move || assert_eq!(call0::<i32>(&mut store, instance, "f").unwrap(), 3));
            });
        }
    });
}
