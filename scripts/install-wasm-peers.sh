#!/usr/bin/env bash
# Installs what the WebAssembly benchmarks compare wasm-jit with: wasmtime (Winch and Cranelift) and
# node (V8's Liftoff).
#
# usage: scripts/install-wasm-peers.sh
#
# The benchmarks run without them, and then name them as missing. wasmtime comes from its crate,
# with what the comparison needs and no more, into cargo's folder of programs; building it takes
# some minutes. node comes from the distribution when there is none; what is known to work is
# version 20.
set -euo pipefail

# The newest for the Rust version of this workspace.
wasmtime=48.0.8
features=run,compile,cranelift,winch,wat,parallel-compilation,gc,gc-drc,gc-null,threads

say() { echo "install-wasm-peers.sh: $*" >&2; }

if [[ $(wasmtime --version 2>/dev/null) == "wasmtime $wasmtime"* ]]; then
    say "wasmtime $wasmtime is there"
else
    "${CARGO:-cargo}" install wasmtime-cli --version "$wasmtime" --locked --no-default-features --features "$features"
fi

if command -v node >/dev/null; then
    say "node $(node --version) is there"
else
    command -v apt-get >/dev/null || { say "there is no apt-get here, install node by hand"; exit 1; }
    as_root=()
    ((EUID == 0)) || as_root=(sudo)
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends nodejs
fi
