#!/usr/bin/env bash
# Installs missing packages, and runs every test of the workspace in release mode.
#
# usage: scripts/test.sh [--quick | ARGUMENTS OF cargo test...]
#        scripts/test.sh -p tests --test preload fork
#
# Without arguments, all of them: a few minutes on two processors, most of it for building the
# product and the real programs that it is tested on (which needs the network or a filled cargo
# cache).
#
# --quick checks the formatting and the lints, and runs the tests that need neither the network nor
# much time: less than three minutes once everything is built. It installs nothing. It skips
# documentation examples, random programs, stress tests, repetitions of tests with other settings,
# and the tests of the package `tests` that profile or run complete programs.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}

# The integration tests that --quick runs, of all packages but wordpatch.
quick_tests=(
    address_space allocations api behaviour builtins by_address c_coverage calls circles cli
    compared_with_node counted crowded debug debugger events examples exceptions explore
    few_addresses frame_maps golden import info javascript jit lang lazy_compilation
    many_modules modules monitor_modules monitors native objects probe_ids probes processes
    random record refused replay retarget rewrite shared signals sites slice spec string_memory stub
    tidy traps waiting wide_arithmetic wide_memories
)

quick() {
    export CARGO_NET_OFFLINE=true
    "$cargo" fmt --all -- --check
    scripts/wrap.py --check
    "$cargo" clippy --quiet --workspace --all-targets -- -D warnings
    # The same packages as below, so that nothing is built twice.
    "$cargo" test --quiet --release --workspace --exclude wordpatch --no-fail-fast --lib --bins "${quick_tests[@]/#/--test=}" \
        -- --skip=all_of_this_with --skip=random_programs
    "$cargo" test --quiet --release -p wordpatch --lib --tests
    scripts/mutants.sh --check
    echo "test.sh: the quick tests passed in $SECONDS seconds" >&2
}

if [[ ${1:-} == --quick ]]; then
    quick
    exit
fi
scripts/install-packages.sh
if (($#)); then
    exec "$cargo" test --release "$@"
fi
# Before the tests, which would build all this without output. The programs at the same time as the
# product: either has long steps that use one processor.
programs() {
    scripts/third-party.sh >/dev/null
    scripts/wasm-c-api.sh >/dev/null
    # One test uses it, and says so if it is missing.
    scripts/lldb.sh >/dev/null || echo "test.sh: there is no LLDB for WebAssembly" >&2
    scripts/wasm-programs.sh >/dev/null
}
programs &
built=0
scripts/build.sh || built=$?
wait $! || built=$?
((built == 0)) || exit "$built"

# wordpatch by itself: its tests have the feature fault-injection, with which everything that
# depends on it would be built a second time.
failed=0
"$cargo" test --workspace --exclude wordpatch --release --no-fail-fast || failed=$?
"$cargo" test -p wordpatch --release --no-fail-fast || failed=$?
exit "$failed"
