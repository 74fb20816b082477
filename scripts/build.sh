#!/usr/bin/env bash
# Builds the product and the examples in release mode, with the features that dependencies have when
# the entire workspace is tested. Tests and benchmarks that need a program or a library of the
# workspace call this: if each built its packages alone, most crates would be compiled several
# times, with different features of the same dependencies.
#
# usage: scripts/build.sh [ARGUMENTS OF cargo build...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${CARGO:-cargo}" build --release --workspace --lib --bins --examples "$@"
