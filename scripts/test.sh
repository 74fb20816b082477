#!/usr/bin/env bash
# Installs what is missing, and runs every test of the workspace in release mode.
#
# usage: scripts/test.sh [ARGUMENTS OF cargo test...]        scripts/test.sh -p tests --test preload fork
#
# Without arguments, all of them: some minutes on two processors, most of it for building the product and the real programs
# that it is tried on (which needs the network or a filled cargo cache).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/install-packages.sh
cargo=${CARGO:-cargo}
if (($#)); then
    exec "$cargo" test --release "$@"
fi
# Before the tests, which would build all this in silence.
"$cargo" build --release
scripts/third-party.sh >/dev/null
scripts/wasm-programs.sh >/dev/null
exec "$cargo" test --workspace --release --no-fail-fast
