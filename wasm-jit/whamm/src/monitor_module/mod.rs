//! Monitor modules: WebAssembly modules that observe other modules.
//!
//! A monitor module is an ordinary module, except that the names of some of its exported functions
//! are rules. A rule says at which places of a program the function is called, and with which
//! values. This is the engine interface of [Whamm], as its compiler emits it in version 2.0.1
//! (`whamm instr --wei`); the grammar below describes those modules, and restates the documentation
//! of that version (`docs/src/devs/emit/wei.md`).
//!
//! A [`MonitorModule`] is loaded once, and [attached](MonitorModule::attach) to a module in a
//! store. Its functions are called by [probes](wasm_jit::probes::Kind::Wasm): from the program's
//! code, with values from the locations where that code keeps them, without the host in between.
//! The monitor has its own memories and globals. It sees only what its rules bind of the program.
//!
//! # Functions that count
//! A function that only adds constants to numbers of the monitor (`memory[k] += c`, or a global) is
//! not called: the engine counts for it, which takes one addition for a straight-line run of
//! instructions, and adds what it has counted before anything reads the numbers. The address may
//! depend on bound constants, and on whether the condition of a `br_if`, `if` or `select` (`arg0`)
//! is 0, whether the reference of a `br_on_null` or `br_on_non_null` (`ref0`) is null, or on the
//! index of a `br_table` with less than 64 targets. The number must be an i32 or i64 in a global or
//! memory that the monitor does not import. If a function that must be called may use the same
//! memory or global, all functions that use it are called. A rule that binds other operands, or
//! locals, is also called; probes [execute](wasm_jit::probes::WasmFn) short functions in place of
//! calling them. [`Attached::instance`] and [`Attached::finish`] bring the numbers up to date;
//! [`Attached::counters`] returns the number of places where the engine counts, and
//! [`MonitorModule::always_call`] disables counting.
//!
//! # Names of exports
//! Spaces between the parts mean nothing. Names that do not begin with `wasm:` are not rules.
//!
//! ```text
//! rule       = event [ "/" call "/" ] [ parameters ]
//! event      = "wasm:opcode:" pattern { "|" pattern } [ ":" mode ]
//!            | "wasm:func:" ( "entry" | "exit" | "known" )
//!            | "wasm:block:" ( "start" | "end" )
//!            | "wasm:begin" [ ":" ] | "wasm:end" [ ":" ] | "wasm:exit"
//! parameters = "(" [ parameter { "," parameter } [ "," ] ] ")"
//! parameter  = call | value
//! call       = "$" name [ parameters ]
//! mode       = "before" | "after" | "semantic_after" | "entry" | "exit"
//! ```
//!
//! A pattern is the name of an instruction as in the text format, in which `*` stands for any
//! characters, and `?` for one.
//!
//! # Events
//! | event | the function is called |
//! | --- | --- |
//! | `wasm:opcode:` | before the instruction, or as the mode says |
//! | `wasm:func:entry` | when a call begins |
//! | `wasm:func:exit` | when a call returns with its results, but not when it ends by a tail call, trap or exception |
//! | `wasm:func:known` | never; the predicate, for each function of the program, including imported ones (an extension) |
//! | `wasm:block:start` | before the first instruction of a basic block |
//! | `wasm:block:end` | before the last instruction of a basic block |
//! | `wasm:begin` | once, when the monitor is attached |
//! | `wasm:end`, then `wasm:exit` | once, by [`Attached::finish`] |
//!
//! Before one instruction, the rules of blocks come first, then those of opcodes, each in the order
//! of the exports. A branch to the end of a block continues after its `end`: see
//! [`wasm_jit::probes`].
//!
//! # Modes
//! Modes other than `before` are an extension of this engine. The function is called
//!
//! * `after` the instruction: when control reaches the point between it and the next one,
//! * `semantic_after` it: wherever control continues, including the targets of branches and the end
//!   of the call; for a block, where control continues after its end,
//! * at the `entry` of a block: before its first instruction,
//! * at the `exit` of a block: where control continues after its end.
//!
//! Control may reach the same point from elsewhere: the next instruction may be a loop, which is
//! also executed by branches to it; or other branches may have the same target. The value
//! `guard_MODE` is then a number other than zero, which no other instruction has, so that a monitor
//! can note before the instruction that it begins. Without this value, the function is called in
//! those cases as well.
//!
//! # Values
//! The function of a rule, and each function that is called at match time, has a parameter for
//! each value, of a type that fits. A rule's function has no results.
//!
//! | value | type | meaning |
//! | --- | --- | --- |
//! | `argN` | of the operand | the operand number N, counted from the top of the stack |
//! | `refN` | i64 | the operand number N, which is a reference: 0 if it is null, else another number |
//! | `resN` | of the result | with the mode `after`: the result number N, counted from the top of the stack |
//! | `localN` | of the local | a parameter or local of the program's function |
//! | `frame` | i64 | identifies the call among those that the thread has at the time |
//! | `pc` | integer | the offset of the instruction in the function's body, in bytes; at the exit, its length |
//! | `opidx` | integer | the number of instructions before it in the function |
//! | `fid` | integer | the index of the function |
//! | `groupN` | integer | N: the number of the [group](#groups-of-probes) that the rule's probes belong to |
//! | `probe` | integer | the number of the probe, for [`wasm_jit:probe`](#probes-that-are-switched-off) |
//! | `at_func_end` | integer | 1 at the last `end` of the function |
//! | `immN` | of the constant, or integer | an immediate of the instruction, in the order of the binary format; of a `br_table`, a target |
//! | `offset`, `align`, `memory` | integer | of an access to memory; the second as an exponent of two |
//! | `num_targets`, `default_target` | integer | of a `br_table`, the first without the default one |
//! | `targets` | string | of a `br_table`: each target, and the default as the last, as four characters that are `@` plus six bits, the lowest bits first |
//! | `instr_count` | integer | at the end of a block, the number of its instructions |
//! | `fname`, `opname` | string | the name of the function in the name section, or an empty one, and that of an import; of the instruction |
//! | `target_fn_name`, `target_imp_module`, `target_fn_type` | string | of a `call` or `return_call`: the name of the function, as imported if it is; the module of the import; `import` or `local` |
//! | `guard_MODE` | integer | see above |
//! | `callee` | integer | always 0; before indirect calls: declares that the rule calls the function [`callee`](#callees-and-the-time) |
//! | `$NAME(..)` | of the result | the result of another exported function at match time |
//!
//! An integer is an i32 or an i64. A string is two i32, address and length, in the memory that the
//! monitor exports as `whamm_buffer`, at the value of its global `whamm_buffer:start`; it is cut
//! at the number of bytes in its global `whamm_buffer:max`. It is overwritten with the next one.
//!
//! # Probes that are switched off
//! A monitor may import the function `off`, with a parameter of the type i32 and no result, from
//! the module `wasm_jit:probe`. It permanently switches off the probe with this number, from the
//! next event at its place on; other threads may still call the function of the rule once. This is
//! also an extension of this engine.
//!
//! # Groups of probes
//! A monitor may import the function `switch` from the same module, with two parameters of the type
//! i32: the number of a group, and 1 to switch its probes on, or 0 to switch them off. The group's
//! rules are those with a value `groupN`. They are off until they are switched on, but the engine
//! may leave them on: where rules of no group or another one act at the same place, and if
//! switching takes more than a twentieth of the time. Their functions must therefore check for
//! themselves whether there is anything to do. This extension is for predicates on variables that
//! seldom change.
//!
//! # Callees and the time
//! From the same module, a monitor may import the functions
//!
//! * `callee`, whose result is an i32: before an indirect call (`call_indirect`, `call_ref`, and
//!   their tail calls), in a rule with the value `callee`, the index of the function that is about
//!   to be called; -1 if there is none, and -2 if the program has no index for it,
//! * `now`, whose result is an i64: the time in nanoseconds since any fixed start,
//! * `failed`, with three parameters of the type i32: reports that a rule of a
//!   [script](crate::lang::Script) has failed, with a number for the reason, and the address and
//!   length of the rule's name in the memory that the monitor exports, or zeros. In a monitor that
//!   is [attached](MonitorModule::attach), all probes are switched off, and the function returns;
//!   otherwise the call to the monitor's function ends,
//! * `pause`, with a group and a time as parameters, an i32 and an i64: switches the group's probes
//!   off, and on again at this time.
//!
//! # Match time
//! When a monitor is attached, each place of the program where the event occurs is a match if it
//! has the operands and locals of the rule in the types of its function's parameters. First the
//! predicate between the slashes is called: if its result, an i32, is 0, there is no probe. Then
//! the calls among the parameters are made, from left to right, once. Their results become
//! constants in the code of the probe. Only static values can be passed: not `argN`, `refN`,
//! `localN` or `frame`. Strings can be passed only to functions that are called at match time.
//!
//! A place that does not have an immediate that the rule wants, or has it in another type, is not a
//! match for it either. In this way, types choose among instructions; a rule without any match left
//! is [unfit](Attached::unfit). A call that exceeds [the time
//! limit](MonitorModule::with_call_limit) is ended, and the monitor is refused.
//!
//! Calls at match time are made in the order of the program's functions and their instructions;
//! unreachable code matches, too, but has no probe.
//!
//! # Example
//! ```
//! use wasm_jit::{Engine, Instance, Linker, Module, Store};
//! use wasm_jit_whamm::monitor_module::MonitorModule;
//!
//! let engine = Engine::default();
//! let monitor = MonitorModule::new(Module::new(&engine, r#"(module
//!     (global $largest (export "largest") (mut i32) (i32.const 0))
//!     (func (export "wasm:func:entry (local0)") (param i32)
//!         (if (i32.gt_u (local.get 0) (global.get $largest))
//!             (then (global.set $largest (local.get 0))))))"#)?, Vec::new())?;
//! let module = Module::new(&engine, "(module (func $count (export \"count\") (param i32)
//!     (if (local.get 0) (then (call $count (i32.sub (local.get 0) (i32.const 1)))))))")?;
//! let mut store = Store::new(&engine, ());
//! let mut attached = monitor.attach(&mut store, &mut Linker::new(&engine), &module)?;
//! let program = Instance::new(&mut store, &module, &[])?;
//! program.get_typed_func::<i32, ()>(&mut store, "count")?.call(&mut store, 7)?;
//! attached.finish(&mut store)?;
//! let largest = attached.instance(&mut store).get_global(&mut store, "largest").expect("it is exported");
//! assert_eq!(largest.get(&mut store).i32(), Some(7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [Whamm]: https://doi.org/10.1145/3763124

mod attach;
mod blame;
mod clock;
mod contents;
mod counted;
mod encodings;
mod error;
mod evaluate;
mod instructions;
mod load;
mod made;
mod matching;
mod modes;
mod names;
mod numbers;
mod operands;
mod reach;
mod rules;
mod shared;
mod strings;
mod time_limit;

pub(crate) use self::encodings::encodings;
pub(crate) use self::instructions::of_proposals;
pub(crate) use attach::Matched;
pub use attach::{Attached, Unfit};
pub use clock::{Alarm, Clock};
pub(crate) use counted::RuleMatch;
pub use error::{MonitorError, NameError, SignatureError};
pub use load::MonitorModule;
pub(crate) use made::{CALLEE, FAILED, NOW, OFF, PAUSE, PROBES, SWITCH};
pub(crate) use names::{Call, Event, OfCall, Parameter, Replaced, Replacement, Rule, Static, parse_native};
pub(crate) use operands::results as results_of;
pub use shared::SharedMonitor;
pub(crate) use strings::Buffer;
