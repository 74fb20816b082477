//! Probes of functions that call each other by tail calls between instances.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{FrameAccessor, Kind, Location, Place, Probe, ProbeSpec, UnwoundWatch, activate_all};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Error, Instance, Linker, Module, Store, Trap, Val};

use super::engine;
use super::frames::{entry, generic, offset_of};

/// Two modules, whose functions 0 call each other until the first parameter is 0, and then do what
/// is in `end`. The one of the first module is called by its function 1.
struct Program {
    modules: [Module; 2],
    store: Store<()>,
    instance: Instance,
}

const HOP: u32 = 0;
const RUN: u32 = 1;

impl Program {
    fn new(engine: &Engine, end: &str) -> Self {
        let text = |own: u32| {
            format!(
                "(module (type $t (func (param i32 i32) (result i32)))
                (import \"shared\" \"table\" (table 2 funcref))
                (elem (i32.const {own}) $hop)
                (func $hop (type $t)
                    (if (i32.eqz (local.get 0)) (then {end}))
                    (return_call_indirect (type $t)
                        (i32.sub (local.get 0) (i32.const 1)) (i32.add (local.get 1) (i32.const 2))
                        (i32.const {other})))
                (func $run (export \"run\") (param i32) (result i32) (local $x i32)
                    (local.set $x (i32.const 100))
                    (i32.add (call $hop (local.get 0) (i32.const 0)) (i32.mul (local.get $x) (i32.const 3)))))",
                other = 1 - own,
            )
        };
        let modules = [0, 1].map(|own| Module::new(engine, text(own)).unwrap());
        let mut store = Store::new(engine, ());
        let mut linker = Linker::new(engine);
        let table = Module::new(engine, "(module (table (export \"table\") 2 funcref))").unwrap();
        let table = linker.instantiate(&mut store, &table).unwrap();
        linker.instance(&store, "shared", table).unwrap();
        let [instance, _] = [0, 1].map(|own: usize| linker.instantiate(&mut store, &modules[own]).unwrap());
        Self { modules, store, instance }
    }

    fn run(&mut self, hops: i32) -> Result<i32, Error> {
        let run = self.instance.get_typed_func::<i32, i32>(&mut self.store, "run").unwrap();
        run.call(&mut self.store, hops)
    }

    /// Active probes of both modules.
    fn probes(&self, specs: impl Fn(&Module) -> Vec<ProbeSpec>) -> [Vec<Probe>; 2] {
        [0, 1].map(|of: usize| {
            let module = &self.modules[of];
            let probes: Vec<Probe> = module.probes(&specs(module)).into_iter().map(Result::unwrap).collect();
            activate_all(&probes).into_iter().for_each(|on| on.unwrap());
            probes
        })
    }
}

const RETURNS: &str = "(return (i32.add (local.get 1) (i32.const 1)))";

fn is_tail_call(operator: &Operator<'_>) -> bool {
    matches!(operator, Operator::ReturnCallIndirect { .. })
}

/// Entries, exits and tail calls of a chain that is longer than the stack.
#[test]
fn chains_are_counted_exactly() {
    let mut program = Program::new(&engine(), RETURNS);
    let places = |module: &Module| {
        [Place::Entry, Place::Exit, Place::Instruction { offset: offset_of(module, HOP, is_tail_call) }]
    };
    let count = |function, place| ProbeSpec { location: Location { function, place }, kind: Kind::Count };
    let probes = program.probes(|module| {
        let of_hop = places(module).map(|place| count(HOP, place));
        let of_run = [Place::Entry, Place::Exit].map(|place| count(RUN, place));
        of_hop.into_iter().chain(of_run).collect()
    });
    let counts = || [0, 1].map(|of: usize| probes[of].iter().map(Probe::count).collect::<Vec<u64>>());
    let mut expected = [[0; 5], [0; 5]];
    for hops in [0, 1, 2, 1_000_001, 1_000_000] {
        assert_eq!(program.run(hops).unwrap(), 300 + 2 * hops + 1);
        let hops = hops as u64;
        for (of, calls) in [hops / 2 + 1, hops.div_ceil(2)].into_iter().enumerate() {
            let returns = u64::from(hops % 2 == of as u64);
            let [entry, exit, tail, ..] = &mut expected[of];
            *entry += calls;
            *exit += returns;
            *tail += calls - returns;
        }
        expected[0][3] += 1;
        expected[0][4] += 1;
        assert_eq!(counts(), expected, "{hops}");
    }
}

/// In each function of a chain, the frame around it is that of the chain's caller; the frames of
/// the others have gone. The last one changes a local of the caller, which becomes plain.
#[test]
fn the_caller_of_a_chain_is_around_each_of_its_functions() {
    let mut program = Program::new(&engine(), RETURNS);
    let caller: Arc<Mutex<Option<FrameAccessor>>> = Arc::default();
    let gone: Arc<Mutex<Option<FrameAccessor>>> = Arc::default();
    let (of_run, of_hop) = (caller.clone(), caller.clone());
    let enter_run = generic(move |frame| {
        *of_run.lock().unwrap() = Some(frame.accessor()?);
        Ok(())
    });
    let enter_hop = generic(move |frame| {
        assert_eq!(frame.depth(), 1);
        let around = frame.caller()?;
        assert_eq!(around, *of_hop.lock().unwrap());
        if let Some(before) = gone.lock().unwrap().replace(frame.accessor()?) {
            assert!(!before.is_alive(frame));
        }
        let around = around.expect("it was called");
        let known: Vec<Option<u32>> =
            frame.locations().iter().map(|location| location.map(|location| location.function)).collect();
        let is_first = around.instance(frame)? == frame.instance();
        assert_eq!(known, [Some(HOP), is_first.then_some(RUN)]);
        if frame.local(0)?.unwrap_i32() == 0 {
            assert_eq!(around.local(frame, 1)?.unwrap_i32(), 100);
            around.set_local(frame, 1, &Val::I32(200))?;
        }
        Ok(())
    });
    let of_first = program.modules[0].probe(entry(RUN, enter_run)).unwrap();
    of_first.activate().unwrap();
    let _probes = program.probes(|_| vec![entry(HOP, enter_hop.clone())]);
    for hops in [0, 1, 2, 3, 2000] {
        assert_eq!(program.run(hops).unwrap(), 600 + 2 * hops + 1, "{hops}");
        assert!(caller.lock().unwrap().is_some());
    }
}

/// A trap leaves the last frame of a chain and that of its caller.
#[test]
fn only_the_last_frame_of_a_chain_is_left_by_a_trap() {
    let mut program = Program::new(&engine(), "(unreachable)");
    let left: Arc<Mutex<Vec<(usize, u32)>>> = Arc::default();
    let _watches: [UnwoundWatch; 2] = [0, 1].map(|of: usize| {
        let left = left.clone();
        program.modules[of].watch_unwound(move |frame| left.lock().unwrap().push((of, frame.function)))
    });
    for hops in [0, 1, 2, 1_000_000] {
        let error = program.run(hops).unwrap_err();
        assert_eq!(error.trap(), Some(Trap::UnreachableCodeReached));
        assert_eq!(error.backtrace().unwrap().frames().len(), 2);
        let left = std::mem::take(&mut *left.lock().unwrap());
        assert_eq!(left, [(hops as usize % 2, HOP), (0, RUN)], "{hops}");
    }
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    chains_are_counted_exactly();
    the_caller_of_a_chain_is_around_each_of_its_functions();
    only_the_last_frame_of_a_chain_is_left_by_a_trap();
}
