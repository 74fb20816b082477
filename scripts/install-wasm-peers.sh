#!/usr/bin/env bash
# Installs the engines with which the WebAssembly benchmarks compare wasm-jit: wasmtime (Winch and
# Cranelift) and node (V8's Liftoff).
#
# usage: scripts/install-wasm-peers.sh
#
# The benchmarks run without them, and then report them as missing. wasmtime is built from its
# crate, with only the features that the comparison needs, into cargo's binary directory, which
# takes a few minutes. node comes from the distribution if it is not installed; version 20 is known
# to work.
set -euo pipefail

# The newest version for the Rust version of this workspace.
wasmtime=48.0.8
features=run,compile,cranelift,winch,wat,parallel-compilation,gc,gc-drc,gc-null,threads

say() { echo "install-wasm-peers.sh: $*" >&2; }

if [[ $(wasmtime --version 2>/dev/null) == "wasmtime $wasmtime"* ]]; then
    say "wasmtime $wasmtime is installed"
else
    "${CARGO:-cargo}" install wasmtime-cli --version "$wasmtime" --locked --no-default-features --features "$features"
fi

if command -v node >/dev/null; then
    say "node $(node --version) is installed"
else
    command -v apt-get >/dev/null || { say "there is no apt-get here, install node by hand"; exit 1; }
    as_root=()
    ((EUID == 0)) || as_root=(sudo)
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends nodejs
fi
