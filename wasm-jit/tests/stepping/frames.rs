//! Interrupts at the machine instructions of calls and tail calls, also between instances. Each
//! function has one caller, so the instruction determines the backtrace: its function, which calls
//! it, and their instances.

use std::collections::BTreeSet;

use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec, activate_all};
use wasm_jit::{Config, Engine, Func, Instance, Instruction, Module, ProbeSites, Store, Trap};

use super::stepper::{Stepped, interrupted_after, turn};
use super::stride;

/// Its functions are called by those of the other module.
const CALLEES: &str = r#"(module $callees
    (type $plain (func (result i32)))
    (type $wide (func
        (param i32 i32 i32 i32 i32 i32 i64 i32 f64 f64 f64 f64 f64 f64 f64 f64 f64) (result i32)))
    (memory 1)
    (func $near (result i32) (i32.load8_u (i32.const 5)))
    (func $called (export "called") (result i32)
        (i32.store8 (i32.const 5) (i32.const 1)) (call $near))
    (func $called-wide (export "called-wide") (type $wide) (local.get 7))
    (func $by-reference (type $wide) (local.get 7))
    (func $plain-by-reference (type $plain) (i32.const 1))
    (func $tailed (export "tailed") (result i32) (i32.const 1))
    (func $tailed-wide (export "tailed-wide") (type $wide) (local.get 7))
    (func $comes-back (export "comes-back") (param (ref null $plain)) (result i32)
        (return_call_ref $plain (local.get 0)))
    (func $comes-back-wide (export "comes-back-wide") (param (ref null $wide)) (result i32)
        (return_call_ref $wide WIDE (local.get 0)))
    (global (export "by-reference") (ref null $wide) (ref.func $by-reference))
    (global (export "plain-by-reference") (ref null $plain) (ref.func $plain-by-reference)))"#;

/// Arguments of the type `$wide`, three of which are on the stack.
const WIDE: &str = "
    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
    (i64.const 0) (i32.const 1) (f64.const 0) (f64.const 0) (f64.const 0) (f64.const 0)
    (f64.const 0) (f64.const 0) (f64.const 0) (f64.const 0) (f64.const 0)";

const CALLERS: &str = r#"(module $callers
    (type $plain (func (result i32)))
    (type $wide (func
        (param i32 i32 i32 i32 i32 i32 i64 i32 f64 f64 f64 f64 f64 f64 f64 f64 f64) (result i32)))
    (import "callees" "called" (func $called (type $plain)))
    (import "callees" "called-wide" (func $called-wide (type $wide)))
    (import "callees" "tailed" (func $tailed (type $plain)))
    (import "callees" "tailed-wide" (func $tailed-wide (type $wide)))
    (import "callees" "comes-back" (func $comes-back (param (ref null $plain)) (result i32)))
    (import "callees" "comes-back-wide" (func $comes-back-wide (param (ref null $wide)) (result i32)))
    (import "callees" "by-reference" (global $by-reference (ref null $wide)))
    (import "callees" "plain-by-reference" (global $plain-by-reference (ref null $plain)))
    (import "host" "f" (func $host (result i32)))
    (memory 1)
    (table funcref (elem $indirect $indirect-wide))

    ;; Tail calls in this instance, with and without arguments on the stack.
    (func $plain (type $plain) (i32.const 1))
    (func $to-plain (type $plain) (return_call $plain))
    (func $wide (type $wide) (local.get 7))
    (func $to-wide (type $plain) (return_call $wide WIDE))
    (func $from-wide (type $wide) (return_call $plain-2))
    (func $plain-2 (type $plain) (i32.const 1))
    (func $wider (type $wide) (return_call $wide-2 WIDE))
    (func $wide-2 (type $wide) (local.get 7))
    (func $indirect (type $plain) (i32.const 1))
    (func $to-indirect (type $plain) (return_call_indirect (type $plain) (i32.const 0)))
    (func $indirect-wide (type $wide) (local.get 7))
    (func $to-indirect-wide (type $plain) (return_call_indirect (type $wide) WIDE (i32.const 1)))
    (func $referenced (type $plain) (i32.const 1))
    (func $to-reference (type $plain) (return_call_ref $plain (ref.func $referenced)))
    (elem declare func $referenced $back $back-wide)

    ;; Registers of the caller are saved; tail calls of itself.
    (func $counts (param i32 i32) (result i32)
        (loop $again
            (local.set 1 (i32.add (local.get 1) (call $counted (local.get 0))))
            (br_if $again (i32.lt_s (local.get 1) (i32.const 2))))
        (if (result i32) (local.get 0)
            (then (return_call $counts (i32.sub (local.get 0) (i32.const 1)) (i32.const 0)))
            (else (return_call $plain-3))))
    (func $counted (param i32) (result i32) (i32.add (i32.const 1) (i32.mul (local.get 0) (i32.const 0))))
    (func $plain-3 (type $plain) (i32.const 1))

    ;; Jumps that are no calls.
    (func $branches (param i32) (result i32)
        (loop $again
            (block $a (block $b (block $c
                (br_table $c $b $a $again (local.get 0)))
                (local.set 0 (i32.const 1)) (br $again))
                (local.set 0 (i32.const 2)) (br $again)))
        (if (result i32) (i32.eqz (local.get 0)) (then (i32.const 7)) (else (i32.const 1))))

    ;; Calls and tail calls of other instances, and of the host.
    (func $calls (type $plain)
        (i32.store (i32.const 8) (i32.const 1))
        (i32.add
            (i32.add (i32.sub (call $called) (call $called-wide WIDE)) (i32.load (i32.const 8)))
            (i32.sub (call $host) (call_ref $wide WIDE (global.get $by-reference)))))
    (func $calls-plain (type $plain) (call_ref $plain (global.get $plain-by-reference)))
    (func $to-host (type $plain) (return_call $host))
    (func $to-other (type $plain) (return_call $tailed))
    (func $to-other-wide (type $plain) (return_call $tailed-wide WIDE))
    (func $there-and-back (type $plain) (return_call $comes-back (ref.func $back)))
    (func $back (type $plain) (i32.const 1))
    (func $there-and-back-wide (type $plain) (return_call $comes-back-wide (ref.func $back-wide)))
    (func $back-wide (type $wide) (local.get 7))

    (func $main (export "main") (result i32)
        (local i32)
        (local.set 0 (i32.add (call $to-plain) (call $to-wide)))
        (local.set 0 (i32.add (local.get 0) (call $from-wide WIDE)))
        (local.set 0 (i32.add (local.get 0) (call $wider WIDE)))
        (local.set 0 (i32.add (local.get 0) (call $to-indirect)))
        (local.set 0 (i32.add (local.get 0) (call $to-indirect-wide)))
        (local.set 0 (i32.add (local.get 0) (call $to-reference)))
        (local.set 0 (i32.add (local.get 0) (call $counts (i32.const 2) (i32.const 0))))
        (local.set 0 (i32.add (local.get 0) (call $branches (i32.const 0))))
        (local.set 0 (i32.add (local.get 0) (call $calls)))
        (local.set 0 (i32.add (local.get 0) (call $calls-plain)))
        (local.set 0 (i32.add (local.get 0) (call $to-host)))
        (local.set 0 (i32.add (local.get 0) (call $to-other)))
        (local.set 0 (i32.add (local.get 0) (call $to-other-wide)))
        (local.set 0 (i32.add (local.get 0) (call $there-and-back)))
        (i32.add (local.get 0) (call $there-and-back-wide))))"#;

/// Each call returns 1.
const RESULT: i32 = 16;

/// The functions that call the one with this name, innermost first; their names are unique.
fn callers(name: &str) -> &'static [&'static str] {
    match name {
        "main" => &[],
        "near" => &["called", "calls", "main"],
        "called" | "called-wide" | "by-reference" => &["calls", "main"],
        "plain-by-reference" => &["calls-plain", "main"],
        "counted" => &["counts", "main"],
        _ => &["main"],
    }
}

struct Program {
    callees: Module,
    callers: Module,
    _probes: Vec<Probe>,
}

impl Program {
    fn new(config: &mut Config) -> Self {
        let engine = Engine::new(config).unwrap();
        let module = |text: &str| Module::new(&engine, text.replace("WIDE", WIDE)).unwrap();
        let (callees, callers) = (module(CALLEES), module(CALLERS));
        Self { callees, callers, _probes: Vec::new() }
    }

    /// With counters of each instruction.
    fn with_probes(config: &mut Config) -> Self {
        let mut program = Self::new(config);
        let mut probes = Vec::new();
        for module in [&program.callees, &program.callers] {
            for function in module.functions() {
                let Some(body) = function.body() else { continue };
                let spec = |instruction: Instruction| {
                    let offset = (instruction.offset() - body.range().start) as u32;
                    let location =
                        Location { function: function.index(), place: Place::Instruction { offset } };
                    ProbeSpec { location, kind: Kind::Count }
                };
                let specs: Vec<ProbeSpec> = body.instructions().map(spec).collect();
                probes.extend(module.probes(&specs).into_iter().filter_map(Result::ok));
            }
        }
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
        program._probes = probes;
        program
    }

    /// Runs the program to this step, and compares the backtrace with the function that contains
    /// the instruction there. Returns the name of the function, or `None` if the program has ended.
    fn check(&self, step: usize) -> Option<String> {
        let mut store = Store::new(self.callers.engine(), ());
        let callee = Instance::new(&mut store, &self.callees, &[]).unwrap();
        let host = Func::wrap(&mut store, || 1_i32).unwrap();
        let imports: Vec<_> = self
            .callers
            .imports()
            .map(|import| match import.module() {
                "host" => host.into(),
                _ => callee.get_export(&store, import.name()).unwrap(),
            })
            .collect();
        let caller = Instance::new(&mut store, &self.callers, &imports).unwrap();
        let main = caller.get_typed_func::<(), i32>(&mut store, "main").unwrap();
        let modules = [&self.callees, &self.callers];
        let interrupt = store.interrupt_handle();
        let Stepped { result, stopped_at, .. } =
            interrupted_after(step, &modules, true, interrupt, || main.call(&mut store, ()));
        if stopped_at == 0 {
            assert_eq!(result.unwrap(), RESULT);
            return None;
        }
        let error = result.expect_err("it is interrupted");
        assert_eq!(error.trap(), Some(Trap::Interrupt), "step {step}: {error}");
        let name_in = |module: &Module| {
            let function = module.function_at(stopped_at + 1)?;
            Some(module.function(function)?.name()?.to_owned())
        };
        let name = modules.into_iter().find_map(name_in).expect("in a function of a module");
        let chain: Vec<&str> = [&*name].into_iter().chain(callers(&name).iter().copied()).collect();
        let backtrace = error.backtrace().unwrap_or_else(|| panic!("step {step}: a backtrace"));
        let found: Vec<&str> = backtrace.frames().iter().map(|frame| frame.func_name().unwrap()).collect();
        assert_eq!(found, chain, "step {step}");
        for frame in backtrace.frames() {
            let instance = if frame.module_name() == Some("callees") { &callee } else { &caller };
            assert_eq!(frame.instance(), instance.id(&store), "step {step}: {frame:?} of {found:?}");
        }
        Some(name)
    }

    fn check_everywhere(&self, short: usize) {
        // Functions are compiled that are compiled when they are first called.
        self.check(usize::MAX);
        let names: BTreeSet<String> =
            (0..).step_by(stride(short)).map_while(|step| self.check(step)).collect();
        assert!(names.len() > 10, "{names:?}");
    }
}

#[test]
fn backtraces_are_complete_at_every_instruction() {
    let _turn = turn();
    Program::new(&mut Config::new()).check_everywhere(5);
}

#[test]
fn backtraces_are_complete_in_functions_that_are_compiled_when_they_are_called() {
    let _turn = turn();
    Program::new(Config::new().lazy_compilation(true)).check_everywhere(31);
}

#[test]
fn backtraces_are_complete_in_stubs_and_versions() {
    let _turn = turn();
    for (sites, counter_stubs) in
        [(ProbeSites::None, u32::MAX), (ProbeSites::None, 0), (ProbeSites::All, u32::MAX)]
    {
        let mut config = Config::new();
        config.probe_sites(sites).counter_stubs(counter_stubs);
        Program::with_probes(&mut config).check_everywhere(61);
    }
}
