#!/usr/bin/env bash
# Installs, on Debian or a system like it, what the build, the tests, the demo and the benchmarks need besides Rust.
#
# usage: scripts/install-packages.sh
#
# Does nothing when everything is there. Uses apt-get, through sudo when the caller is not root.
set -euo pipefail

say() { echo "install-packages.sh: $*" >&2; }

# Each line: a command, and the package that brings it.
needed='gcc gcc
g++ g++
clang clang
wasm-ld lld
ld binutils
wasm-ld lld
flock util-linux
od coreutils
xargs findutils
grep grep'

packages=()
while read -r command package; do
    command -v "$command" >/dev/null || packages+=("$package")
done <<<"$needed"

# The C library's headers, those for WebAssembly and its compiler's library, and CA certificates (for cargo) bring no command.
[[ -e /usr/include/stdlib.h ]] || packages+=(libc6-dev)
[[ -e /usr/include/wasm32-wasi/stdlib.h ]] || packages+=(wasi-libc)
compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/wasi/*builtins*' >/dev/null || packages+=(libclang-rt-dev-wasm32)
[[ -e /etc/ssl/certs/ca-certificates.crt ]] || packages+=(ca-certificates)

# Nor do the C library and the compiler's runtime library for WebAssembly.
[[ -e /usr/include/wasm32-wasi ]] || packages+=(wasi-libc)
[[ -e $(clang --target=wasm32-wasi -print-libgcc-file-name 2>/dev/null) ]] || packages+=(libclang-rt-dev-wasm32)

if ((${#packages[@]})); then
    command -v apt-get >/dev/null || { say "missing: ${packages[*]}; there is no apt-get here, install them by hand"; exit 1; }
    as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || { say "missing: ${packages[*]}; run this script as root"; exit 1; }
        as_root=(sudo)
    fi
    say "installing ${packages[*]}"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update --quiet=2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends "${packages[@]}"
fi

command -v cargo >/dev/null || { say "Rust is missing: see https://rustup.rs"; exit 1; }
