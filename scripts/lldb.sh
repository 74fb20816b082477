#!/usr/bin/env bash
# Installs an LLDB that debugs WebAssembly, as a Python package, for the tests of
# `wasm-jit debug --gdb-server`.
#
# usage: scripts/lldb.sh
#
# It is installed in target/lldb/ (220 MB), which nothing else uses; if it exists, nothing is done.
# The path of the command goes to stdout. It needs the shared library of python3 (Debian:
# libpython3-dev). CARGO_TARGET_DIR sets the location of target/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${CARGO_TARGET_DIR:-$root/target}/lldb
version=23.1.0.post2

say() { echo "lldb.sh: $*" >&2; }

mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9

if [[ ! -e $folder/$version ]]; then
    rm -rf "$folder/packages" "$folder/lldb"
    say "installing lldb-for-pwndbg $version"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --target "$folder/packages" "lldb-for-pwndbg==$version" >&2
    cat >"$folder/lldb" <<'COMMAND'
#!/bin/sh
packages=$(dirname "$0")/packages
PYTHONPATH=$packages exec python3 "$packages/bin/lldb" "$@"
COMMAND
    chmod +x "$folder/lldb"
    "$folder/lldb" --version >/dev/null || { say "it does not run"; exit 1; }
    touch "$folder/$version"
fi
echo "$folder/lldb"
