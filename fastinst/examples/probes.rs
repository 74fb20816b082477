//! Discovers the probes of a C library, and counts the calls to one of its functions.
//!
//! Run by
//!
//! ```sh
//! gcc -O2 -fno-inline -shared -fPIC -finstrument-functions fastinst/examples/library.c -o target/library.so
//! cargo run --release -p fastinst --example probes -- target/library.so
//! ```
//!
//! Prints:
//!
//! ```text
//! probe 0: entry of is_even
//! probe 1: exit of is_even
//! probe 2: entry of collatz
//! probe 3: exit of collatz
//! collatz(27) takes 111 steps; is_even was called 111 times
//! collatz(27) takes 111 steps; is_even was called 0 times
//! ```

use std::error::Error;
use std::ffi::{CString, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use fastinst::provider::cyg_profile;
use fastinst::{ProbeId, ProbeKind, ProbeMetadata};

static CALLS: AtomicU32 = AtomicU32::new(0);
static PROBES: Mutex<Vec<ProbeMetadata<'static>>> = Mutex::new(Vec::new());

/// The function that the active probe calls, on any thread that executes the probe.
unsafe extern "C" fn count(_id: ProbeId, _return_address: usize, _function: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Loads the library, and returns its function `collatz`.
fn load(path: &str) -> Result<extern "C" fn(c_int) -> c_int, Box<dyn Error>> {
    let path = CString::new(path)?;
    // SAFETY: the strings end with NUL; the library has no constructors.
    let function = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        if library.is_null() { library } else { libc::dlsym(library, c"collatz".as_ptr()) }
    };
    if function.is_null() {
        return Err(format!("{path:?} is not a library with a function collatz").into());
    }
    // SAFETY: `int collatz(int)` in library.c, which is never unloaded.
    Ok(unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn(c_int) -> c_int>(function) })
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: probes LIBRARY")?;
    let collatz = load(&path)?;

    // Makes a probe, which is off, of each instrumentation call in the loaded objects.
    cyg_profile::start()?;
    fastinst::register_callback(|probe| {
        PROBES.lock().expect("no panic").extend(fastinst::lasting_metadata(probe.id));
    })?;
    let probes = PROBES.lock().expect("no panic").clone();
    for probe in &probes {
        let place = if probe.kind == ProbeKind::ENTRY { "entry" } else { "exit" };
        println!("probe {}: {place} of {}", probe.id.0, probe.function_name.to_str()?);
    }

    let is_entry =
        |probe: &&ProbeMetadata<'_>| probe.kind == ProbeKind::ENTRY && probe.function_name == c"is_even";
    let id = probes.iter().find(is_entry).ok_or("is_even has no probe")?.id;
    // SAFETY: `count` lives as long as the program, and calls no instrumented code.
    unsafe { fastinst::activate(id, count)? };
    let steps = collatz(27);
    println!(
        "collatz(27) takes {steps} steps; is_even was called {} times",
        CALLS.swap(0, Ordering::Relaxed)
    );

    // One store; from now on, the call is skipped.
    fastinst::deactivate(id)?;
    let steps = collatz(27);
    println!(
        "collatz(27) takes {steps} steps; is_even was called {} times",
        CALLS.swap(0, Ordering::Relaxed)
    );
    Ok(())
}
