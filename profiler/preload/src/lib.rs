//! `libfastinst.so`: the profiler for `LD_PRELOAD`, and the C interface.
//!
//! This crate has only the parts that must be in a shared library: its constructor and destructor,
//! its allocator, and its exported symbols. In addition to the C interface of `fastinst.h`, these
//! are the functions that instrumented code calls ([`provider`]), and functions of the C library
//! that end a process or change its signal actions ([`leaving`], [`signals`]).
//!
//! The library runs in a foreign process: it has its own allocator, prints only its report and
//! single lines that begin with `fastinst:`, and reads one environment variable.

mod c_interface;
mod leaving;
mod provider;
mod signals;

use fastinst::provider::cyg_profile::CygProfile;
use profiler::error::Error;
use profiler::options::{Options, Output, RunId, Tool, VARIABLE};
use profiler::process::environment;
use profiler::{options, process, session};

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
    // Even if the rest fails, the C interface can be used without the profiler.
    let registered = fastinst::provider::register(&CygProfile).map_err(|source| Error::Start { source });
    let options = registered.and_then(|()| Options::from_variable(std::env::var_os(VARIABLE).as_deref()));
    let started = options.and_then(|options| {
        if options.help {
            options::HELP.lines().for_each(session::say);
            return Ok(());
        }
        if !provider::is_in_charge() {
            return Err(Error::OwnInstrumentation);
        }
        match options.tool {
            Tool::Profiler => start(options),
            Tool::None => c_interface::start(&options),
        }
    });
    if let Err(error) = started {
        session::say(&error.to_string());
    }
}

fn start(mut options: Options) -> Result<(), Error> {
    // `fastinst record` begins a run as well, before it becomes this process.
    let is_own = options.run.is_none_or(|run| run.pid == std::process::id());
    let begins_the_run = is_own && !options.begun;
    if let Output::File { .. } = &options.output {
        // The program may change its directory before the report is written.
        if let Ok(directory) = std::env::current_dir() {
            options.output = options.output.absolute(&directory)?;
        }
    }
    // Programs that the process starts must not mistake reports of this run for those of an earlier
    // one, and do not report for the run.
    if begins_the_run {
        options.run.get_or_insert_with(RunId::begins_here);
        options.begun = true;
        // SAFETY: in the constructor of a preloaded library, before the program creates threads.
        unsafe { environment::set(VARIABLE, &options.to_options_string()) };
    }
    session::start(options)?;
    if begins_the_run {
        session::speak_for_the_run();
    }
    process::follow();
    Ok(())
}

extern "C" fn destruct() {
    process::at_exit();
}
