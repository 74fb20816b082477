#!/usr/bin/env bash
# Fetches the header and the examples of the WebAssembly C API, which are in two crates.
#
# usage: scripts/wasm-c-api.sh
#
# wasm.h is in the crate wasmtime-c-api-impl, the examples with their modules in the crate
# wasmer-c-api. The names of their files and their checksums are in
# tests/third_party/wasm-c-api.sha256. Only these two files are fetched: not the packages on which
# they depend, since they are not built.
#
# The results are target/third-party/wasm-c-api/include/wasm.h and .../example/. What is up to date
# is not fetched again; simultaneous runs wait for each other. The directory goes to stdout.
# CARGO_TARGET_DIR chooses the location of target/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pinned=$root/tests/third_party/wasm-c-api.sha256
target=${CARGO_TARGET_DIR:-$root/target}/third-party
folder=$target/wasm-c-api

die() { echo "wasm-c-api.sh: $*" >&2; exit 1; }

# crate NAME PATH...: fetches a crate, and unpacks files or directories of it into $work.
crate() {
    local name=$1 file version archives
    shift
    file=$(awk '{ print $2 }' "$pinned" | grep "^$name-[0-9]") || die "no version of $name is pinned"
    version=${file#"$name-"}
    version=${version%.crate}
    # Shows a package, for which cargo stores its file among those that it has fetched.
    (cd "$root" && "${CARGO:-cargo}" info --quiet --locked --registry crates-io "$name@$version" >/dev/null)
    archives=("${CARGO_HOME:-$HOME/.cargo}"/registry/cache/*/"$file")
    [[ -f ${archives[0]} ]] || die "cargo has not stored $file"
    cp "${archives[0]}" "$work/$file"
    (cd "$work" && grep "  $file\$" "$pinned" | sha256sum --quiet --check -) || die "$file is not the pinned one"
    tar -xzf "$work/$file" -C "$work" --strip-components=1 "${@/#/"$name-$version/"}"
}

mkdir -p "$target"
exec 9>"$target/wasm-c-api.lock"
flock 9
wanted=$(cat "${BASH_SOURCE[0]}" "$pinned" | sha256sum)
if [[ $(cat "$folder/stamp" 2>/dev/null) != "$wanted" ]]; then
    work=$(mktemp -d "$target/wasm-c-api.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    crate wasmtime-c-api-impl include/wasm.h
    crate wasmer-c-api tests/wasm-c-api/example
    rm -rf "$folder"
    mkdir -p "$folder"
    mv "$work/include" "$work/tests/wasm-c-api/example" "$folder"
    echo "$wanted" >"$folder/stamp"
fi
echo "$folder"
