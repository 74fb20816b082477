#!/usr/bin/env bash
# Installs missing packages, and runs every test of the workspace in release mode.
#
# usage: scripts/test.sh [--quick | --build | ARGUMENTS OF cargo test...]
#        scripts/test.sh -p tests --test preload fork         with -p or --workspace
#
# Without arguments, all of them: twenty minutes on two processors, including the time for building
# the product and the real programs that it is tested on (which needs the network or a filled cargo
# cache).
#
# --quick checks the formatting and the lints, and runs the tests that need neither the network nor
# much time: less than three minutes once everything is built. It installs nothing. It skips
# documentation examples, random programs, stress tests, repetitions of tests with other settings,
# and the tests of the package `tests` that profile or run complete programs.
#
# --build only builds what the tests need, as far as they have it in common.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}

# The integration tests that --quick runs.
quick_tests=(
    address_space allocations api asynchronous batch behaviour builtins by_address c_coverage
    calibration calls circles cli code_memory compared_with_node crowded debug debugger
    dropped_code events examples explore few_addresses fork frame_maps golden info jit lang
    lazy_compilation many_modules monitors mprotect patch probe_ids probes processes recordings
    refused replay retarget signals sigtrap_actions sigtrap_chain sigtrap_sent sites spec
    string_memory stub targets text tidy traps waiting wide_arithmetic wide_memories
)

# The tests that stop patches between their steps. Nothing else is built like this.
with_faults() {
    RUSTC_WORKSPACE_WRAPPER=scripts/cfg/fault_injection "$cargo" test --release -p wordpatch "$@" \
        --test finisher --test fork_handlers --test refused --test suspended
}

quick() {
    export CARGO_NET_OFFLINE=true
    "$cargo" fmt --all -- --check
    scripts/wrap.py --check
    "$cargo" clippy --quiet --workspace --all-targets -- -D warnings
    # The same packages as below, so that nothing is built twice.
    "$cargo" test --quiet --release --workspace --no-fail-fast --lib --bins "${quick_tests[@]/#/--test=}" \
        -- --skip=all_of_this_with --skip=random_programs
    with_faults --quiet
    scripts/mutants.sh --check
    echo "test.sh: the quick tests passed in $SECONDS seconds" >&2
}

if [[ ${1:-} == --quick ]]; then
    quick
    exit
fi
scripts/install-packages.sh
if (($#)) && [[ $1 != --build ]]; then
    exec "$cargo" test --release "$@"
fi
# Before the tests, which would build all this without output. The programs at the same time as the
# product: either has long steps that use one processor.
programs() {
    scripts/third-party.sh >/dev/null
    scripts/wasm-c-api.sh >/dev/null
    # One test uses them, and says so if they are missing.
    scripts/whamm-scripts.sh >/dev/null || echo "test.sh: there are no scripts of the crate whamm" >&2
    scripts/lldb.sh >/dev/null
    scripts/wasm-programs.sh >/dev/null
}
programs &
built=0
scripts/build.sh || built=$?
wait $! || built=$?
((built == 0)) || exit "$built"

"$cargo" test --workspace --release --no-run
if [[ ${1:-} == --build ]]; then
    exit
fi
failed=0
# Tests that use it fail if it is missing. Otherwise, they say so and pass.
export REQUIRE_LLDB=1
"$cargo" test --workspace --release --no-fail-fast || failed=$?
with_faults --no-fail-fast || failed=$?
exit "$failed"
