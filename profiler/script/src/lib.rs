//! `libfastinst_script.so`: runs scripts of the Whamm language inside a native program, for
//! `LD_PRELOAD`. `fastinst run` preloads it in place of `libfastinst.so`, which does not contain a
//! WebAssembly engine and therefore stays small.
//!
//! # Execution of rules
//! Probes do not call rules. A probe writes an event of 32 bytes, with the arguments that rules ask
//! for ([`fetch`]), into a ring of its thread ([`ring`], [`fire`]). One thread of this library, the
//! [`worker`], takes the events, pairs entries and exits ([`pairing`]) and calls the rules'
//! functions, which the engine has compiled ([`observer`]).
//!
//! The alternative, to call the compiled function in the probe, was rejected because a probe fires
//! wherever a compiler has placed a call:
//!
//! - in signal handlers, which may have interrupted a rule: the variables need a lock, which the
//!   interrupted code holds. With the ring, a handler's event is just another entry;
//! - on stacks of any size. Compiled code needs a quarter of a megabyte of free stack, in order to
//!   detect stack exhaustion; a probe here needs a few words, and half a kilobyte if there are
//!   arguments;
//! - in code that is left by `longjmp` or by cancellation of its thread: a rule on its stack would
//!   never end, and its lock would never be released;
//! - in `malloc`, while the loader's lock is held, or in a thread that is ending: a rule may need
//!   memory for a map;
//! - in a thread of the program: a script that loops forever stops the worker, not the program.
//!
//! The variables of a script therefore need no lock on the program's side, no storage per thread
//! unless the script requests it, and no merging of threads' values, which would only be right for
//! sums, not for a maximum or a string.
//!
//! # Scripts
//! One script may observe from the start; its report is written when the process ends. It may be
//! switched by a signal ([`switch`]). Others are attached and detached while the process runs, by
//! clients that get their reports ([`control`]). Each script ([`running`]) has separate variables
//! and open calls, and sees no events from before it was attached. A probe is on while a script
//! needs it.
//!
//! # Completeness and order
//! No event is dropped silently. A thread whose ring is full waits until the worker has made room.
//! It stops waiting if the worker has taken nothing for [`ring::PATIENCE`], or in a process that
//! was made without fork handlers; observation then ends, and the report states the number of
//! missing events. It also names the calls that were made before the probes of their functions
//! existed, for which there are no events.
//!
//! Events of one thread are processed in order, and events of different threads by time stamp as
//! far as they are in the rings at the same time; the worker empties the rings at least every
//! [`worker::PERIOD`].
//!
//! # Processes
//! The report is written when the process exits, calls `_exit` or exec, or returns from `main`
//! ([`process`]). A forked child starts with new variables, and without the scripts of its parent's
//! clients. A signal that ends the process ends it without a report: no handler of this library is
//! installed for such signals.

mod control;
mod fetch;
mod fire;
mod function;
mod gate;
mod missing;
mod observer;
mod output;
mod pairing;
mod process;
mod report;
mod ring;
mod running;
mod socket;
mod stacks;
mod switch;
mod worker;

#[path = "../../preload/src/leaving.rs"]
mod leaving;
#[path = "../../preload/src/provider.rs"]
mod provider;

use fastinst::provider::cyg_profile::CygProfile;
use profiler::process::environment;
use profiler::script::{ScriptOptions, VARIABLE};
use profiler::session;

/// The program's `malloc` may be instrumented, or may have crashed.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destruct;

extern "C" fn construct() {
    // SAFETY: called once, before the library allocates on a second thread.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    let Some(value) = std::env::var_os(VARIABLE) else { return };
    let started =
        ScriptOptions::from_variable(&value).map_err(|error| error.to_string()).and_then(|options| {
            if !provider::is_in_charge() {
                return Err(profiler::error::Error::OwnInstrumentation.to_string());
            }
            fastinst::provider::register(&CygProfile).map_err(|error| error.to_string())?;
            // Programs that the process starts must not mistake reports of this run for those of an
            // earlier one.
            if options.run.pid == std::process::id()
                && let Some(variable) = options.to_variable()
            {
                // SAFETY: in the constructor of a preloaded library, before the program creates
                // threads.
                unsafe { environment::set(VARIABLE, &variable) };
            }
            observer::start(options)
        });
    match started {
        Ok(()) => process::follow(),
        Err(message) => session::say(&message),
    }
}

extern "C" fn destruct() {
    process::at_exit();
}
