#!/usr/bin/env bash
# Installs, on Debian and similar systems, what is needed besides Rust.
#
# usage: scripts/install-packages.sh [demo | tests]
#
#   demo    what scripts/demo.sh needs: a C compiler
#   tests   what the build, the tests, the demo and the benchmarks need (the default)
#
# Does nothing if everything is installed. Uses apt-get, through sudo if the caller is not root.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "install-packages.sh: $*" >&2; }

# Each line: a command, and the package that contains it.
for_demo='gcc gcc
ld binutils
flock util-linux
od coreutils
xargs findutils
grep grep'
for_tests='g++ g++
clang clang
wasm-ld lld
gdb gdb
python3 python3
npm npm
node nodejs
java default-jre-headless'

purpose=${1:-tests}
case $purpose in
demo) needed=$for_demo ;;
tests) needed=$for_demo$'\n'$for_tests ;;
*) say "usage: scripts/install-packages.sh [demo | tests]"; exit 2 ;;
esac

packages=()
while read -r command package; do
    command -v "$command" >/dev/null || packages+=("$package")
done <<<"$needed"

# Packages without a command: the C library's headers, CA certificates for cargo.
[[ -e /usr/include/stdlib.h ]] || packages+=(libc6-dev)
[[ -e /etc/ssl/certs/ca-certificates.crt ]] || packages+=(ca-certificates)
# The headers for WebAssembly and its compiler's library, pip, a Rust that compiles for WASI
# (Debian's is in /usr/bin, and does not replace the one in the path).
if [[ $purpose == tests ]]; then
    [[ -e /usr/include/wasm32-wasi/stdlib.h ]] || packages+=(wasi-libc)
    [[ -e $(clang --target=wasm32-wasi -print-libgcc-file-name 2>/dev/null) ]] || packages+=(libclang-rt-dev-wasm32)
    python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)
    scripts/wasi-rust.sh >/dev/null || packages+=(rustc cargo libstd-rust-dev-wasm32)
fi

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
