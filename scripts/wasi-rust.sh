#!/usr/bin/env bash
# Finds a Rust that compiles for WASI: the caller's, when that target was added to it, else
# Debian's.
#
# usage: scripts/wasi-rust.sh
#
# Prints the paths of its cargo and of its rustc and the target's name, a line each. Exit code 1:
# there is none.
set -euo pipefail

for folder in "" /usr/bin/; do
    # In some versions of Rust the target has the one name, in others the other.
    for target in wasm32-wasip1 wasm32-wasi; do
        libraries=$("${folder}rustc" --print target-libdir --target "$target" 2>/dev/null) || continue
        if [[ -d $libraries ]] && command -v "${folder}cargo" "${folder}rustc"; then
            echo "$target"
            exit
        fi
    done
done
exit 1
