//! Monitor modules and scripts in each of their targets: in place, in separate stores, in rewritten
//! programs, and in native programs.

mod alternatives;
mod counted;
mod failures;
mod many_rules;
mod monitor_modules;
mod native;
mod operands;
#[path = "../lang/printing.rs"]
mod printing;
#[path = "../../../tests/frame_maps/programs.rs"]
mod programs;
mod random_scripts;
mod replaced;
mod rewrite;
mod shared;
#[path = "../lang/statements.rs"]
mod statements;
