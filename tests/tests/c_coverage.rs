//! Every public Rust function of the three crates is in `fastinst.h`, or is listed here with the
//! reason why C does not need it.
//!
//! Every `pub fn` of the crates is reachable from outside (ensured by the lint `unreachable_pub`),
//! so the list is taken from the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tests::repo_root;

/// The C counterpart of a function, or of all functions of a file.
enum InC {
    /// A function of the header.
    Call(&'static str),
    /// Nothing, for this reason.
    Left(&'static str),
}

use InC::{Call, Left};

/// The reason for functions that manage many sites.
const FOR_FASTINST: &str = "for fastinst, which knows when the loader maps and unmaps the text of its sites";

/// Why a function is left out that makes probes.
const FOR_PROVIDERS: &str = "for providers of probes, which are objects of Rust";

/// File, or file and function.
const TABLE: &[(&str, InC)] = &[
    ("wordpatch/src/batch.rs::patch", Call("wordpatch_patch")),
    ("wordpatch/src/batch.rs::patch_all", Call("wordpatch_patch_all")),
    ("wordpatch/src/outstanding.rs::start_patch", Call("wordpatch_start_patch")),
    ("wordpatch/src/outstanding.rs::start_patch_all", Call("wordpatch_start_patch_all")),
    ("wordpatch/src/outstanding.rs::finish_patch", Call("wordpatch_finish_patch")),
    ("wordpatch/src/outstanding.rs::state", Call("wordpatch_outstanding_state")),
    ("wordpatch/src/outstanding.rs::try_finish", Call("wordpatch_try_finish")),
    ("wordpatch/src/outstanding.rs::wait", Call("wordpatch_wait")),
    ("wordpatch/src/outstanding.rs::finish", Call("wordpatch_finish_all")),
    ("wordpatch/src/outstanding.rs::finish_all", Call("wordpatch_finish_all")),
    ("wordpatch/src/outstanding.rs::detach", Call("wordpatch_detach")),
    ("wordpatch/src/finisher.rs::start", Call("wordpatch_start_finisher")),
    ("wordpatch/src/finisher.rs::take_over", Call("wordpatch_take_over")),
    ("wordpatch/src/fetch_model.rs::in_force", Call("wordpatch_fetch_model_in_force")),
    ("wordpatch/src/fetch_model.rs::force", Call("wordpatch_force_fetch_model")),
    ("wordpatch/src/fetch_model.rs::bytes", Left("a window is its size in bytes")),
    ("wordpatch/src/fetch_model.rs::from_bytes", Left("a window is its size in bytes")),
    ("wordpatch/src/fetch_model.rs::split", Left("one division of the address by the window")),
    ("wordpatch/src/calibration/mod.rs::status", Call("wordpatch_calibration_path")),
    ("wordpatch/src/calibration/mod.rs::warning", Call("wordpatch_calibration_warning")),
    ("wordpatch/src/calibration/file.rs", Left("for tmax-probe, which writes calibrations")),
    ("wordpatch/src/calibration/host.rs", Left("for tmax-probe, which writes calibrations")),
    ("wordpatch/src/calibration/location.rs", Left("for tmax-probe, which writes calibrations")),
    ("wordpatch/src/serialize.rs::serialize_all_cores", Call("wordpatch_serialize_all_cores")),
    ("wordpatch/src/serialize.rs::wait_for_visibility", Call("wordpatch_wait_for_visibility")),
    (
        "wordpatch/src/serialize.rs::wait_for_assumed_bound",
        Left("for callpatch, where a wait is refused in the middle of a change"),
    ),
    ("wordpatch/src/trap/threads.rs::check_sigtrap_unblocked", Call("wordpatch_check_sigtrap_unblocked")),
    ("wordpatch/src/trap/threads.rs::with_signals_blocked", Left("pthread_sigmask does it")),
    ("wordpatch/src/text/children.rs::unshare", Call("wordpatch_unshare")),
    ("wordpatch/src/text/children.rs::is_shared_with_parent", Call("wordpatch_is_shared_with_parent")),
    ("wordpatch/src/text/atfork.rs::without_forks", Left("for generated code that is overwritten")),
    ("wordpatch/src/text/atfork.rs::no_forks", Left("for generated code that is overwritten")),
    ("wordpatch/src/text/atfork.rs::forks", Left("for generated code that is overwritten")),
    ("wordpatch/src/text/moves.rs::leave_text_to_children", Left("part of making probes")),
    ("wordpatch/src/text/children.rs::leave_to_children", Left("for generated code that is overwritten")),
    ("wordpatch/src/text/mapping.rs::copied_bytes", Call("wordpatch_copied_bytes")),
    ("wordpatch/src/text/mod.rs::set_access", Call("wordpatch_set_text_access")),
    ("wordpatch/src/text/mod.rs::access", Call("wordpatch_text_access")),
    ("wordpatch/src/text/gone.rs::forget", Call("wordpatch_forget_text")),
    ("wordpatch/src/text/gone.rs::release", Call("wordpatch_release_text")),
    ("wordpatch/src/text/gone.rs::forget_text", Left(SINGLE_STORES)),
    ("wordpatch/src/text/gone.rs::resolve_current", Left(SINGLE_STORES)),
    ("wordpatch/src/text/text_ref.rs::resolve", Left(SINGLE_STORES)),
    ("wordpatch/src/text/text_ref.rs::staying_mapped", Left(SINGLE_STORES)),
    ("wordpatch/src/text/mapping.rs::copied_pages", Left(FOR_FASTINST)),
    ("wordpatch/src/text/mapping.rs::preparing", Left(FOR_FASTINST)),
    ("wordpatch/src/text/gone.rs::revive", Left(FOR_FASTINST)),
    ("wordpatch/src/text/text_ref.rs::address", Left(SINGLE_STORES)),
    ("wordpatch/src/text/text_ref.rs::at", Left(SINGLE_STORES)),
    ("wordpatch/src/text/text_ref.rs::writable_view", Left(SINGLE_STORES)),
    ("wordpatch/src/text/text_ref.rs::read", Left(SINGLE_STORES)),
    ("wordpatch/src/text/stale.rs::is_stale", Left(SINGLE_STORES)),
    ("wordpatch/src/text/text_ref.rs::compare_exchange", Left(SINGLE_STORES)),
    ("wordpatch/src/text/toggle_pair.rs", Left(SINGLE_STORES)),
    ("wordpatch/src/text/atfork.rs::follow", Left("the library calls it when it is loaded")),
    ("wordpatch/src/bytes.rs", Left("a pointer and a length")),
    ("wordpatch/src/near.rs", Left("mmap with MAP_FIXED_NOREPLACE does it")),
    (
        "wordpatch/src/code_memory.rs",
        Left("pages that the program maps can be patched too, at the price of one copy"),
    ),
    ("wordpatch/src/stepwise.rs", Left("for callpatch, whose retargets have waits between their stores")),
    ("wordpatch/src/tsc.rs", Left("__rdtsc does it")),
    ("wordpatch/src/fault.rs", Left("for tests that plant defects")),
    ("callpatch/src/by_address.rs::activate_call", Call("callpatch_activate_call")),
    ("callpatch/src/by_address.rs::deactivate_call", Call("callpatch_deactivate_call")),
    ("callpatch/src/site.rs::decode", Call("callpatch_decode")),
    ("callpatch/src/site.rs::at_nop", Call("callpatch_decode_nop")),
    ("callpatch/src/site.rs::staying_mapped", Left(FOR_FASTINST)),
    ("callpatch/src/site.rs::settle", Left(FOR_FASTINST)),
    ("callpatch/src/site.rs::switch", Left("for tables with many sites; callpatch_site contains it")),
    ("callpatch/src/site.rs::address", Call("callpatch_describe")),
    ("callpatch/src/site.rs::shape", Call("callpatch_describe")),
    ("callpatch/src/site.rs::strategy", Call("callpatch_describe")),
    ("callpatch/src/site.rs::displacement", Call("callpatch_describe")),
    ("callpatch/src/site.rs::target", Call("callpatch_describe")),
    ("callpatch/src/site.rs::activate", Call("callpatch_activate")),
    ("callpatch/src/site.rs::deactivate", Call("callpatch_deactivate")),
    ("callpatch/src/site.rs::is_stale", Call("callpatch_is_stale")),
    ("callpatch/src/site.rs::state", Call("callpatch_state")),
    ("callpatch/src/packed.rs", Left("for tables of very many sites; callpatch_site is all of it")),
    ("callpatch/src/switch.rs", Left("for tables of very many sites; callpatch_site is all of it")),
    ("callpatch/src/retarget.rs::retarget", Call("callpatch_retarget")),
    ("callpatch/src/retarget.rs::retarget_as", Left(FOR_FASTINST)),
    ("callpatch/src/retarget.rs::intermediate_target", Left(FOR_FASTINST)),
    ("callpatch/src/encoding.rs", Left("callpatch_describe returns the shape")),
    ("callpatch/src/strategy.rs", Left("callpatch_describe returns the strategy")),
    ("callpatch/src/stub.rs", Left("three instructions, for providers of probes")),
    ("fastinst/src/registry.rs::activate", Call("fastinst_activate")),
    ("fastinst/src/registry.rs::activate", Call("fastinst_activate_with_caller")),
    ("fastinst/src/registry.rs::deactivate", Call("fastinst_deactivate")),
    ("fastinst/src/registry.rs::activate_all", Call("fastinst_activate_all")),
    ("fastinst/src/registry.rs::deactivate_all", Call("fastinst_deactivate_all")),
    ("fastinst/src/registry.rs::probe_count", Call("fastinst_probe_count")),
    ("fastinst/src/registry.rs::toggle_count", Call("fastinst_toggle_count")),
    ("fastinst/src/registry.rs::with_metadata", Call("fastinst_metadata")),
    (
        "fastinst/src/registry.rs::lasting_metadata",
        Left("the header states which probes' strings live as long as the process"),
    ),
    ("fastinst/src/registry.rs::is_loaded", Left("fastinst_activate tells it")),
    ("fastinst/src/registry.rs::load_count", Left("for caches of what is_loaded tells")),
    ("fastinst/src/probe.rs::new", Left(FOR_PROVIDERS)),
    ("fastinst/src/discovery.rs::begin", Left(FOR_PROVIDERS)),
    ("fastinst/src/loaded.rs", Left("C programs call dl_iterate_phdr themselves")),
    ("fastinst/src/mapped.rs", Left("C programs read /proc/self/maps themselves")),
    ("fastinst/src/group/mod.rs", Left(FOR_PROVIDERS)),
    ("fastinst/src/registry.rs::register_callback", Call("fastinst_register_callback")),
    ("fastinst/src/provider/registered.rs::notes", Call("fastinst_notes")),
    ("fastinst/src/provider/registered.rs::register", Left(FOR_PROVIDERS)),
    (
        "fastinst/src/provider/registered.rs::begin",
        Left("fastinst_register_callback has every site looked for"),
    ),
    ("fastinst/src/provider/registered.rs::memory_bytes", Left("for reports of tools")),
    (
        "fastinst/src/provider/registered.rs::take_early_calls",
        Left("for the profiler; in C, no calls come early"),
    ),
    ("fastinst/src/merged.rs::merged_sites", Left("in C, a probe function gets the function's address")),
    (
        "fastinst/src/provider/registered.rs::has_code",
        Left("for the profiler, which starts nothing without code to observe"),
    ),
    ("fastinst/src/provider/registered.rs::has_generated", Left("for samples of stacks")),
    ("fastinst/src/provider/registered.rs::function_at", Left("for early calls: see take_early_calls")),
    ("fastinst/src/provider/cyg_profile/mod.rs::start", Left("the library registers this provider")),
    (
        "fastinst/src/provider/cyg_profile/arrivals.rs",
        Left("the library's own instrumentation functions call it"),
    ),
    ("fastinst/src/service.rs", Left("fastinst_register_callback starts the service thread")),
    ("fastinst/src/service/descriptors.rs", Left("for threads of a tool; close_range(2) in C")),
    ("fastinst/src/service/threads.rs", Left("for tools that count the threads of the program")),
];

const SINGLE_STORES: &str = "a store without a protocol: callpatch_site is the safe use of it";

/// Functions without a Rust counterpart: error texts, the version, and what Rust does when a value
/// is dropped.
const ONLY_IN_C: [&str; 4] =
    ["fastinst_strerror", "fastinst_version", "callpatch_release", "wordpatch_stop_finisher"];

/// `file::function` of every public function in the folder.
fn public_functions(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            public_functions(&path, into);
            continue;
        }
        let source = fs::read_to_string(&path).expect("a source can be read");
        let file = path.strip_prefix(repo_root()).expect("a file of the workspace").display().to_string();
        for line in source.lines() {
            let line = line.trim_start();
            let Some(declaration) = line.strip_prefix("pub ") else { continue };
            let declaration = declaration.trim_start_matches("const ").trim_start_matches("unsafe ");
            let Some(rest) = declaration.strip_prefix("fn ") else { continue };
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            into.insert(format!("{file}::{name}"));
        }
    }
}

fn is_covered_by(function: &str, key: &str) -> bool {
    function == key || function.split_once("::").is_some_and(|(file, _)| file == key)
}

#[test]
fn every_public_function_is_in_the_header_or_left_out_for_a_reason() {
    let mut functions = BTreeSet::new();
    for name in ["wordpatch", "callpatch", "fastinst"] {
        public_functions(&repo_root().join(name).join("src"), &mut functions);
    }
    assert!(functions.len() > 80, "{functions:?}");
    for function in &functions {
        let covered = TABLE.iter().any(|(key, _)| is_covered_by(function, key));
        assert!(
            covered,
            "{function} is not in C: add it to fastinst.h, or to the table of this test with the reason"
        );
    }
    for (key, in_c) in TABLE {
        assert!(functions.iter().any(|function| is_covered_by(function, key)), "there is no {key}");
        if let Left(reason) = in_c {
            assert!(!reason.is_empty(), "{key}: no reason");
        }
    }
}

#[test]
fn every_function_of_the_header_stands_for_one_in_rust() {
    let header = fs::read_to_string(repo_root().join("fastinst/include/fastinst.h")).expect("the header");
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| line.ends_with(");") && !line.starts_with([' ', 't', '#']))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    let in_table = TABLE.iter().filter_map(|(_, in_c)| match in_c {
        Call(name) => Some(*name),
        Left(_) => None,
    });
    let known: BTreeSet<&str> = in_table.chain(ONLY_IN_C).collect();
    assert_eq!(declared, known);
}
