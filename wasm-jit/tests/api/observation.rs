//! Observers of calls between the host and WebAssembly.

use std::sync::{Arc, Mutex};

use wasm_jit::{
    AsContextMut, CallObserver, Caller, Config, Engine, Error, Func, Global, GlobalType, Instance, Linker,
    Module, Mutability, RefType, Store, StoreContextMut, Table, TableType, Val, ValType,
};

/// Writes a line for each event; `refused` is an argument that it does not let through.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    refused: Option<i32>,
}

impl Log {
    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }

    fn left(&self, what: &str, results: Result<&[Val], &Error>) {
        match results {
            Ok(results) => self.add(format!("{what} {:?}", numbers(results))),
            Err(error) => self.add(format!("{what}: {}", error.to_string().lines().next().unwrap())),
        }
    }
}

fn numbers(values: &[Val]) -> Vec<i32> {
    values.iter().map(Val::unwrap_i32).collect()
}

impl CallObserver<Option<Instance>> for Log {
    fn enter(
        &self,
        _: StoreContextMut<'_, Option<Instance>>,
        _: &Func,
        arguments: &[Val],
    ) -> Result<(), Error> {
        self.add(format!("enter {:?}", numbers(arguments)));
        Ok(())
    }

    fn leave(
        &self,
        _: StoreContextMut<'_, Option<Instance>>,
        _: &Func,
        results: Result<&[Val], &Error>,
    ) -> Result<(), Error> {
        self.left("leave", results);
        Ok(())
    }

    fn enter_host(
        &self,
        caller: Caller<'_, Option<Instance>>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), Error> {
        assert_eq!(caller.instance(), *caller.data(), "the calling instance");
        let import = caller.instance().and_then(|instance| instance.import_index(&caller, func));
        self.add(format!("host {} {:?}", import.unwrap(), numbers(arguments)));
        match self.refused == Some(numbers(arguments)[0]) {
            true => Err(Error::host("refused")),
            false => Ok(()),
        }
    }

    fn leave_host(
        &self,
        _: Caller<'_, Option<Instance>>,
        _: &Func,
        results: Result<&[Val], &Error>,
    ) -> Result<(), Error> {
        self.left("returns", results);
        Ok(())
    }
}

/// Each export calls one of two host functions in another way; `g` fails for 0, and calls back for
/// 9.
const PROGRAM: &str = r#"(module
    (type $t (func (param i32) (result i32)))
    (import "h" "f" (func $f (type $t)))
    (import "h" "g" (func $g (type $t)))
    (table 1 funcref)
    (elem (i32.const 0) func $g)
    (func (export "direct") (type $t) (call $f (local.get 0)))
    (func (export "indirect") (type $t) (call_indirect (type $t) (local.get 0) (i32.const 0)))
    (func (export "tail") (type $t) (return_call $g (local.get 0)))
    (func (export "reference") (type $t) (call_ref $t (local.get 0) (ref.func $f)))
    (elem declare func $f))"#;

fn running() -> (Store<Option<Instance>>, Instance) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut linker: Linker<Option<Instance>> = Linker::new(&engine);
    linker.func_wrap("h", "f", |value: i32| value + 1).unwrap();
    let g = |mut caller: Caller<'_, Option<Instance>>, value: i32| -> Result<i32, Error> {
        match value {
            0 => Err(Error::host("the host fails")),
            9 => {
                let direct = caller.data().unwrap().get_typed_func::<i32, i32>(&caller, "direct")?;
                direct.call(&mut caller, 90)
            }
            value => Ok(value * 2),
        }
    };
    linker.func_wrap("h", "g", g).unwrap();
    let mut store = Store::new(&engine, None);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    *store.data_mut() = Some(instance);
    (store, instance)
}

fn call(
    store: &mut Store<Option<Instance>>,
    instance: Instance,
    name: &str,
    value: i32,
) -> Result<i32, Error> {
    instance.get_typed_func::<i32, i32>(&*store, name).unwrap().call(store, value)
}

#[test]
fn calls_in_both_directions_are_observed() {
    let (mut store, instance) = running();
    let log = Log::default();
    call(&mut store, instance, "direct", 1).unwrap();
    let observer = store.observe_calls(Arc::new(log.clone())).unwrap();
    assert!(store.as_context_mut().is_observed());
    for (name, value, expected) in [
        ("direct", 3, &["enter [3]", "host 0 [3]", "returns [4]", "leave [4]"][..]),
        ("indirect", 4, &["enter [4]", "host 1 [4]", "returns [8]", "leave [8]"]),
        ("tail", 5, &["enter [5]", "host 1 [5]", "returns [10]", "leave [10]"]),
        ("reference", 6, &["enter [6]", "host 0 [6]", "returns [7]", "leave [7]"]),
        ("indirect", 0, &["enter [0]", "host 1 [0]", "returns: the host fails", "leave: the host fails"]),
        (
            "tail",
            9,
            &[
                "enter [9]",
                "host 1 [9]",
                "enter [90]",
                "host 0 [90]",
                "returns [91]",
                "leave [91]",
                "returns [91]",
                "leave [91]",
            ],
        ),
    ] {
        assert_eq!(call(&mut store, instance, name, value).is_ok(), value > 0);
        assert_eq!(log.take(), expected, "{name} {value}");
    }
    store.remove_observer(observer);
    assert!(!store.as_context_mut().is_observed());
    assert_eq!(call(&mut store, instance, "indirect", 4).unwrap(), 8);
    assert_eq!(log.take(), [""; 0]);
}

#[test]
fn an_observer_refuses_a_call_of_the_host() {
    let (mut store, instance) = running();
    let log = Log { refused: Some(3), ..Log::default() };
    store.observe_calls(Arc::new(log.clone())).unwrap();
    let error = call(&mut store, instance, "direct", 3).unwrap_err();
    assert!(error.to_string().starts_with("refused"), "{error}");
    assert_eq!(log.take(), ["enter [3]", "host 0 [3]", "leave: refused"]);
    assert_eq!(call(&mut store, instance, "direct", 4).unwrap(), 5);
}

/// Each sees a call inside of those that were added before it, and what those after it make of it.
#[test]
fn several_observers_see_the_same_calls() {
    let (mut store, instance) = running();
    let lines = Log::default();
    let named = |name, refused| Named { name, log: Log { refused, ..lines.clone() } };
    store.observe_calls(Arc::new(named("a", None))).unwrap();
    let second = store.observe_calls(Arc::new(named("b", Some(3)))).unwrap();
    store.observe_calls(Arc::new(named("c", None))).unwrap();
    call(&mut store, instance, "indirect", 4).unwrap();
    let all = ["a enter", "b enter", "c enter", "a host", "b host", "c host"];
    let ends = ["c returns", "b returns", "a returns", "c leave", "b leave", "a leave"];
    assert_eq!(lines.take(), [all, ends].concat());
    call(&mut store, instance, "direct", 3).unwrap_err();
    let refused = [
        "a enter",
        "b enter",
        "c enter",
        "a host",
        "b host",
        "a refused",
        "c refused",
        "b refused",
        "a refused",
    ];
    assert_eq!(lines.take(), refused);
    store.remove_observer(second);
    store.remove_observer(second);
    call(&mut store, instance, "direct", 3).unwrap();
    let rest = ["a enter", "c enter", "a host", "c host", "c returns", "a returns", "c leave", "a leave"];
    assert_eq!(lines.take(), rest);
}

/// Writes its name and what happens.
struct Named {
    name: &'static str,
    log: Log,
}

impl Named {
    fn left(&self, what: &str, results: Result<&[Val], &Error>) -> Result<(), Error> {
        self.log.add(format!("{} {}", self.name, if results.is_ok() { what } else { "refused" }));
        Ok(())
    }
}

impl CallObserver<Option<Instance>> for Named {
    fn enter(&self, _: StoreContextMut<'_, Option<Instance>>, _: &Func, _: &[Val]) -> Result<(), Error> {
        self.log.add(format!("{} enter", self.name));
        Ok(())
    }

    fn leave(
        &self,
        _: StoreContextMut<'_, Option<Instance>>,
        _: &Func,
        results: Result<&[Val], &Error>,
    ) -> Result<(), Error> {
        self.left("leave", results)
    }

    fn enter_host(&self, _: Caller<'_, Option<Instance>>, _: &Func, arguments: &[Val]) -> Result<(), Error> {
        self.log.add(format!("{} host", self.name));
        match self.log.refused == Some(numbers(arguments)[0]) {
            true => Err(Error::host("refused")),
            false => Ok(()),
        }
    }

    fn leave_host(
        &self,
        _: Caller<'_, Option<Instance>>,
        _: &Func,
        results: Result<&[Val], &Error>,
    ) -> Result<(), Error> {
        self.left("returns", results)
    }
}

/// Calls the imports that are functions of another instance, in each way.
const IMPORTER: &str = r#"(module
    (type $t (func (param i32) (result i32)))
    (import "a" "direct" (func $direct (type $t)))
    (import "a" "tail" (func $tail (type $t)))
    (export "again" (func $direct))
    (table 1 funcref)
    (elem (i32.const 0) func $tail)
    (func (export "calls") (type $t) (call $direct (local.get 0)))
    (func (export "indirectly") (type $t) (call_indirect (type $t) (local.get 0) (i32.const 0)))
    (func (export "tails") (type $t) (return_call $tail (local.get 0)))
    (func (export "references") (type $t) (call_ref $t (local.get 0) (ref.func $direct)))
    (elem declare func $direct))"#;

/// Two observers, which both instances have: the same calls as by a function of the host.
#[test]
fn calls_between_instances_go_through_the_host_while_they_are_observed() {
    let (mut store, instance) = running();
    let module = Module::new(store.engine(), IMPORTER).unwrap();
    let exports = |store: &Store<Option<Instance>>, names: [&str; 2], of: Instance| {
        names.map(|name| of.get_func(store, name).unwrap().into())
    };
    let imports = exports(&store, ["direct", "tail"], instance);
    let first = Instance::new(&mut store, &module, &imports).unwrap();
    let lines = Log::default();
    let calls = |store: &mut Store<Option<Instance>>, name, of: Instance| {
        assert_eq!(
            call(store, of, name, 2).unwrap(),
            if name == "tails" || name == "indirectly" { 4 } else { 3 }
        );
        lines.take()
    };
    for round in 0..2 {
        let [one, two] =
            [0; 2].map(|_| store.observe_calls(Arc::new(HostCalls(lines.clone(), caller_of))).unwrap());
        store.remove_observer(two);
        // One that is made meanwhile, and imports a function that the first one imports.
        let imports = exports(&store, ["again", "tails"], first);
        let second = Instance::new(&mut store, &module, &imports).unwrap();
        let number = |instance: Instance| format!("{instance:?}");
        for (of, name, depth) in [
            (first, "calls", 2),
            (first, "indirectly", 2),
            (first, "tails", 2),
            (first, "references", 2),
            (second, "calls", 2),
            (second, "tails", 3),
        ] {
            let found = calls(&mut store, name, of);
            let inner = if depth == 3 { vec![first, instance] } else { vec![instance] };
            let callers: Vec<_> = [of].into_iter().chain(inner).map(number).collect();
            assert_eq!(found, callers, "{name}, round {round}");
        }
        store.remove_observer(one);
        for (of, name) in [(first, "calls"), (first, "tails"), (first, "references"), (second, "calls")] {
            assert_eq!(calls(&mut store, name, of), [""; 0], "{name}, round {round}");
        }
        // Also where the importer has not been redirected.
        assert!(!first.func(&store, 0).unwrap().is_host(&store));
        assert!(!second.func(&store, 0).unwrap().is_host(&store));
    }
}

/// Writes something of each call of the host.
struct HostCalls<F>(Log, F);

impl<F> CallObserver<Option<Instance>> for HostCalls<F>
where
    F: Fn(&Caller<'_, Option<Instance>>, &Func) -> String + Send + Sync,
{
    fn enter(&self, _: StoreContextMut<'_, Option<Instance>>, _: &Func, _: &[Val]) -> Result<(), Error> {
        Ok(())
    }

    fn leave(
        &self,
        _: StoreContextMut<'_, Option<Instance>>,
        _: &Func,
        _: Result<&[Val], &Error>,
    ) -> Result<(), Error> {
        Ok(())
    }

    fn enter_host(&self, caller: Caller<'_, Option<Instance>>, func: &Func, _: &[Val]) -> Result<(), Error> {
        self.0.add((self.1)(&caller, func));
        Ok(())
    }
}

/// The instance that calls an import of its own.
fn caller_of(caller: &Caller<'_, Option<Instance>>, func: &Func) -> String {
    let instance = caller.instance().unwrap();
    assert!(instance.import_index(caller, func).is_some());
    format!("{instance:?}")
}

/// Two instances of it call each other, and themselves, through the table that they share.
const REFERENCES: &str = r#"(module
    (type $t (func (param i32) (result i32)))
    (type $many (func (param i32 i64 i64 i64 i64 i64 i64 f64) (result i64 f64 i32)))
    (import "h" "table" (table $all 8 funcref))
    (import "h" "base" (global $base i32))
    (func $next (type $t)
        (if (i32.eqz (local.get 0)) (then (return (global.get $base))))
        (return_call_indirect $all (type $t) (i32.sub (local.get 0) (i32.const 1)) (global.get $base)))
    (func $many (type $many)
        (i64.sub (local.get 6) (local.get 5)) (f64.mul (local.get 7) (f64.const 2)) (global.get $base))
    (func $trap (type $t) (unreachable))
    (elem $own func $next $many $trap)
    (func (export "begin") (table.init $all $own (global.get $base) (i32.const 0) (i32.const 3)))
    (func (export "call") (param $n i32) (param $at i32) (result i32)
        (call_indirect $all (type $t) (local.get $n) (local.get $at)))
    (func (export "reference") (param $n i32) (param $at i32) (result i32)
        (call_ref $t (local.get $n) (ref.cast (ref $t) (table.get $all (local.get $at)))))
    (func (export "tail") (param $n i32) (param $at i32) (result i32)
        (return_call_indirect $all (type $t) (local.get $n) (local.get $at)))
    (func (export "many") (param $n i32) (param $at i32) (result i32) (local $f f64) (local $i i32)
        (call_indirect $all (type $many) (local.get $n) (i64.const 1) (i64.const 2) (i64.const 3)
            (i64.const 4) (i64.const 50) (i64.const 90) (f64.const 4)
            (i32.add (local.get $at) (i32.const 1)))
        (local.set $i) (local.set $f)
        (i32.add (i32.add (i32.wrap_i64) (i32.trunc_f64_s (local.get $f))) (local.get $i))))"#;

/// Calls within an instance do not go through the host, however deep tail calls are.
#[test]
fn calls_through_references_are_observed_between_instances_only() {
    for lazy in [false, true] {
        let engine = Engine::new(Config::new().lazy_compilation(lazy)).unwrap();
        let module = Module::new(&engine, REFERENCES).unwrap();
        let mut store = Store::new(&engine, None);
        let table = TableType::new(RefType::FUNCREF, 8, None);
        let table = Table::new(&mut store, table, Val::FuncRef(None)).unwrap();
        let [one, two] = [0, 4].map(|base| {
            let ty = GlobalType::new(ValType::I32, Mutability::Const);
            let base = Global::new(&mut store, ty, Val::I32(base)).unwrap();
            let instance = Instance::new(&mut store, &module, &[table.into(), base.into()]).unwrap();
            instance.get_typed_func::<(), ()>(&store, "begin").unwrap().call(&mut store, ()).unwrap();
            instance
        });
        let log = Log::default();
        for is_observed in [true, false, true] {
            // The function of another instance that an instance calls.
            let callee = move |caller: &Caller<'_, Option<Instance>>, func: &Func| {
                assert_eq!(caller.instance().unwrap().func_index(caller, func), None);
                let found = [one, two].into_iter().find_map(|of| Some((of, of.func_index(caller, func)?)));
                let (instance, function) = found.unwrap();
                format!("{instance:?} {function}")
            };
            let functions = Arc::new(HostCalls(log.clone(), callee));
            let observer = is_observed.then(|| store.observe_calls(functions).unwrap());
            let mut check = |of: Instance, name: &str, n: i32, at: i32, expected: Option<i32>| {
                let func = of.get_typed_func::<(i32, i32), i32>(&store, name).unwrap();
                assert_eq!(func.call(&mut store, (n, at)).ok(), expected, "{name}");
                log.take()
            };
            let of = |instance: Instance, function: u32| vec![format!("{instance:?} {function}")];
            for name in ["call", "reference", "tail"] {
                assert_eq!(check(one, name, 100_000, 0, Some(0)), [""; 0], "{name}");
                assert_eq!(check(two, name, 100_000, 4, Some(4)), [""; 0], "{name}");
                let found = [check(one, name, 1000, 4, Some(4)), check(two, name, 1000, 0, Some(0))];
                let expected = [of(two, 0), of(one, 0)];
                assert_eq!(found, if is_observed { expected } else { Default::default() }, "{name}");
                assert_eq!(check(one, name, 1, 2, None), [""; 0]);
                let found = check(one, name, 1, 6, None);
                assert_eq!(found, if is_observed { of(two, 2) } else { Vec::new() }, "{name}");
            }
            assert_eq!(check(one, "many", 5, 0, Some(40 + 8)), [""; 0]);
            let found = check(one, "many", 5, 4, Some(40 + 8 + 4));
            assert_eq!(found, if is_observed { of(two, 1) } else { Vec::new() });
            // Whoever has the reference: it is one function.
            for at in [0, 1, 4, 5] {
                let Some(Val::FuncRef(Some(func))) = table.get(&mut store, at) else { panic!("{at}") };
                let [owner, other] = if at < 4 { [one, two] } else { [two, one] };
                assert_eq!(owner.func_index(&store, &func), Some(at as u32 % 4));
                assert_eq!(
                    (other.func_index(&store, &func), other.import_index(&store, &func)),
                    (None, None)
                );
                assert_eq!(func.id(&store), owner.func(&store, at as u32 % 4).unwrap().id(&store));
                assert!(!func.is_host(&store));
            }
            observer.iter().for_each(|observer| store.remove_observer(*observer));
        }
    }
}

/// An exception and a trap pass through two instances, which are observed.
#[test]
fn exceptions_and_traps_pass_through_instances_that_are_observed() {
    let engine = Engine::default();
    let library = r#"(module (tag $e (export "e") (param i32))
        (func (export "f") (param i32) (result i32)
            (if (i32.eqz (local.get 0)) (then (unreachable)))
            (throw $e (local.get 0))))"#;
    let middle = r#"(module (import "a" "f" (func $f (param i32) (result i32)))
        (func (export "f") (param i32) (result i32) (i32.add (call $f (local.get 0)) (i32.const 1))))"#;
    let catching = r#"(module (import "a" "f" (func $f (param i32) (result i32))) (import "a" "e" (tag $e (param i32)))
        (func (export "f") (param i32) (result i32)
            (block $caught (result i32) (try_table (result i32) (catch $e $caught) (call $f (local.get 0))))))"#;
    let mut store = Store::new(&engine, None);
    let make = |store: &mut Store<Option<Instance>>, text: &str, imports: &[wasm_jit::Extern]| {
        Instance::new(store, &Module::new(&engine, text).unwrap(), imports).unwrap()
    };
    let library = make(&mut store, library, &[]);
    let tag = library.get_export(&store, "e").unwrap();
    let f = library.get_export(&store, "f").unwrap();
    let middle = make(&mut store, middle, &[f]);
    let f = middle.get_export(&store, "f").unwrap();
    let outer = make(&mut store, catching, &[f, tag]);
    for is_observed in [false, true, false] {
        let lines = Log::default();
        let observer =
            is_observed.then(|| store.observe_calls(Arc::new(HostCalls(lines.clone(), caller_of))).unwrap());
        assert_eq!(call(&mut store, outer, "f", 7).unwrap(), 7);
        let trap = call(&mut store, outer, "f", 0).unwrap_err();
        assert_eq!(trap.trap(), Some(wasm_jit::Trap::UnreachableCodeReached), "{trap}");
        assert!(matches!(call(&mut store, middle, "f", 5).unwrap_err(), Error::Exception { .. }));
        assert_eq!(lines.take().len(), if is_observed { 5 } else { 0 });
        observer.into_iter().for_each(|observer| store.remove_observer(observer));
    }
}

#[test]
fn segments_are_dropped_by_tools() {
    let engine = Engine::default();
    let text = r#"(module (memory 1) (table 1 funcref) (func $f)
        (data (i32.const 0) "a") (data $passive "b") (elem (i32.const 0) $f) (elem $later func $f)
        (func (export "run")
            (memory.init $passive (i32.const 0) (i32.const 0) (i32.const 1))
            (table.init $later (i32.const 0) (i32.const 0) (i32.const 1))))"#;
    let module = Module::new(&engine, text).unwrap();
    for drops_data in [false, true] {
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let states = |store: &Store<()>| {
            let data = [0, 1, 2].map(|segment| instance.is_data_dropped(store, segment));
            (data, [0, 1, 2].map(|segment| instance.are_elements_dropped(store, segment)))
        };
        let initial = [Some(true), Some(false), None];
        assert_eq!(states(&store), (initial, initial));
        let run = instance.get_typed_func::<(), ()>(&store, "run").unwrap();
        run.call(&mut store, ()).unwrap();
        let dropped = [Some(true), Some(true), None];
        if drops_data {
            instance.drop_data(&mut store, 1);
            assert_eq!(states(&store), (dropped, initial));
        } else {
            instance.drop_elements(&mut store, 1);
            assert_eq!(states(&store), (initial, dropped));
        }
        run.call(&mut store, ()).unwrap_err();
        instance.drop_data(&mut store, 2);
        instance.drop_elements(&mut store, 2);
    }
}
