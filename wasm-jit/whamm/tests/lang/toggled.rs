//! Rules whose probes are on only while their predicates can hold.

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_whamm::lang::{ReportedValue, Script, Value};
use wasm_jit_whamm::monitor_module::MonitorModule;

use super::engine::check_program;

/// Calls `$off`, `$work`, `$on`, `$work` twice, `$off`, and `$work`, in which a loop has four
/// iterations.
const PROGRAM: &str = r#"(module (memory 2)
    (func $on) (func $off)
    (func $work (local $i i32)
        (loop $next
            (i32.store (local.get $i) (i32.load (local.get $i)))
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 4)))))
    (func (export "run")
        (call $off) (call $work) (call $on) (call $work) (call $work) (call $off) (call $work)))"#;

const CLOCK: &str = r#"(module (global $n (mut i32) (i32.const 0))
    (func (export "tick") (result i32)
        (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n))
    (func (export "ticks") (result i32) (global.get $n)))"#;

/// The number of calls to the function of a rule about loads that calls `clock.tick`, and the final
/// value of `n`; in the program's store, then in a separate one.
fn ticks(rules: &str) -> [(i64, i64); 2] {
    ticks_of(PROGRAM, rules)
}

fn ticks_of(program: &str, rules: &str) -> [(i64, i64); 2] {
    let script = format!(
        "use clock; report var ticks: i32; report var n: i32; {rules} wasm:end {{ ticks = clock.ticks(); }}"
    );
    let library = wat::parse_str(CLOCK).unwrap();
    let script = Script::new("test.mm", script.as_bytes(), &[("clock", &library)]).unwrap();
    let engine = Engine::default();
    let program = Module::new(&engine, program).unwrap();
    let monitor = || {
        let libraries = vec![("clock".to_owned(), Module::new(&engine, CLOCK).unwrap())];
        MonitorModule::new(Module::from_binary(&engine, script.module()).unwrap(), libraries).unwrap()
    };
    let run = |store: &mut Store<()>| {
        let instance = Instance::new(&mut *store, &program, &[]).unwrap();
        instance.get_typed_func::<(), ()>(&mut *store, "run").unwrap().call(store, ()).unwrap();
    };
    let values = |report: wasm_jit_whamm::lang::ScriptReport| {
        let value = |index: usize| match report.variables[index].value {
            ReportedValue::Value(Value::Int(value)) => value as i64,
            ref other => panic!("{other:?}"),
        };
        (value(0), value(1))
    };
    let mut store = Store::new(&engine, ());
    let mut attached = monitor().attach(&mut store, &mut Linker::new(&engine), &program).unwrap();
    run(&mut store);
    attached.finish(&mut store).unwrap();
    let instance = attached.instance(&mut store);
    let here = values(script.report(&store, instance).unwrap());
    drop(attached);
    let shared = monitor().share(Store::new(&engine, ()), &mut Linker::new(&engine), &program).unwrap();
    shared.activate().unwrap();
    run(&mut Store::new(&engine, ()));
    shared.finish().unwrap();
    let report = shared.read(|store, instance| script.report(&*store, instance)).unwrap();
    [here, values(report)]
}

const SWITCHED: &str = r#"var on: bool = true;
    wasm:func:entry / fname == "on" / { on = true; }
    wasm:func:entry / fname == "off" / { on = false; }"#;

#[test]
fn rules_are_called_only_while_their_condition_holds() {
    // Eight events while it is on.
    let rule = "wasm:opcode:i32.load:before / clock.tick() > 0 && on / { n++; }";
    assert_eq!(ticks(&format!("{SWITCHED} {rule}")), [(8, 8); 2]);
    // On at first, and off for good after the third one.
    let rule = "wasm:opcode:i32.load:before / clock.tick() > 0 && n < 3 / { n++; }";
    assert_eq!(ticks(rule), [(3, 3); 2]);
}

#[test]
fn variables_that_change_often_switch_nothing_unless_the_script_says_so() {
    let rule = "wasm:opcode:i32.load:before / clock.tick() > 0 && on / { n++; }";
    let stores = |body: &str| format!("var on: bool; wasm:opcode:i32.store:before {{ {body} }} ");
    assert_eq!(ticks(&format!("{}{rule}", stores("on = !on;"))), [(16, 8); 2]);
    assert_eq!(ticks(&format!("{}@toggle {rule}", stores("on = !on;"))), [(8, 8); 2]);
    // In a function of the script.
    let function = "fn change() { on = !on; } ";
    assert_eq!(ticks(&format!("{function}{}@toggle {rule}", stores("change();"))), [(8, 8); 2]);
}

/// A condition that changes all the time is eventually checked instead.
#[test]
fn switching_does_not_take_the_program_s_time() {
    let program = PROGRAM.replace("(i32.const 4)", "(i32.const 60000)");
    let rules = "var on: bool; wasm:opcode:i32.store:before { on = !on; }
        @toggle wasm:opcode:i32.load:before / clock.tick() > 0 && on / { n++; }";
    for (ticks, n) in ticks_of(&program, rules) {
        // Of 240,000 loads, half occur while it is on.
        assert!(n == 120_000 && ticks > 180_000, "{ticks} {n}");
    }
}

/// At the same place, a rule may switch another one in the middle of an event.
#[test]
fn rules_of_one_place_are_called_in_their_order() {
    let rules = "var on: bool;
        wasm:opcode:i32.load:before { on = !on; }
        @toggle wasm:opcode:i32.load:before / clock.tick() > 0 && on / { n++; }";
    assert_eq!(ticks(rules), [(16, 8); 2]);
    // Two rules of one group; the first one switches it off.
    let rules = "var left: u32 = 5;
        @toggle wasm:opcode:i32.load:before / clock.tick() > 0 && left > 0 / { left = left - 1; }
        @toggle wasm:opcode:i32.load:before / left > 0 / { n++; }";
    assert_eq!(ticks(rules), [(5, 4); 2]);
}

#[test]
fn what_is_observed_is_the_same_everywhere() {
    let event = "wasm:opcode:i32.load:before";
    check_program(
        &format!(
            "{SWITCHED} wasm:opcode:i32.load(arg0: i32):before / on && arg0 > 1 / {{ report var n: u32; n++; }}"
        ),
        PROGRAM,
        &[&format!("n {event} 2 4")],
    );
    let phases = "report var loads: u32; report var early: u32; var phase: i32 = 1 - 2;
        wasm:func:entry / fname == \"work\" / { phase++; }
        wasm:opcode:i32.load:before / phase == 2 || phase == 0 / { loads++; }
        wasm:opcode:i32.store:before / phase < 1 / { early++; }
        @toggle wasm:opcode:br_if:before / phase > 1 / { report var taken: u32; taken++; }";
    check_program(phases, PROGRAM, &["loads 8", "early 4", "taken wasm:opcode:br_if:before 2 8"]);
}
