#!/usr/bin/env bash
# Finds a Rust toolchain that compiles for WASI: the user's, if that target was added to it, else
# Debian's.
#
# usage: scripts/wasi-rust.sh
#
# Prints the paths of its cargo and of its rustc and the target's name, one per line. Exit code 1:
# none was found.
set -euo pipefail

for folder in "" /usr/bin/; do
    # The target's name depends on the version of Rust.
    for target in wasm32-wasip1 wasm32-wasi; do
        libraries=$("${folder}rustc" --print target-libdir --target "$target" 2>/dev/null) || continue
        if [[ -d $libraries ]] && command -v "${folder}cargo" "${folder}rustc"; then
            echo "$target"
            exit
        fi
    done
done
exit 1
