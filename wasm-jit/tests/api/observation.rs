//! Observers of calls between the host and WebAssembly.

use std::sync::{Arc, Mutex};

use wasm_jit::{
    AsContextMut, CallObserver, Caller, Engine, Error, Func, Instance, Linker, Module, Store,
    StoreContextMut, Val,
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
    store.observe_calls(Some(Arc::new(log.clone())));
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
    store.observe_calls(None);
    assert!(!store.as_context_mut().is_observed());
    assert_eq!(call(&mut store, instance, "indirect", 4).unwrap(), 8);
    assert_eq!(log.take(), [""; 0]);
}

#[test]
fn an_observer_refuses_a_call_of_the_host() {
    let (mut store, instance) = running();
    let log = Log { refused: Some(3), ..Log::default() };
    store.observe_calls(Some(Arc::new(log.clone())));
    let error = call(&mut store, instance, "direct", 3).unwrap_err();
    assert!(error.to_string().starts_with("refused"), "{error}");
    assert_eq!(log.take(), ["enter [3]", "host 0 [3]", "leave: refused"]);
    assert_eq!(call(&mut store, instance, "direct", 4).unwrap(), 5);
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
