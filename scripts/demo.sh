#!/usr/bin/env bash
# The demo: builds the profiler, fetches and builds SQLite with -O2 -finstrument-functions, runs a
# workload on it under the profiler, and prints how long each function's calls took.
#
# usage: scripts/demo.sh [ROWS]
# ROWS: size of the workload's main table (default 1000000: some ten seconds)
#
# Needs Rust and a network or a filled cargo cache; installs a C compiler if there is none. The
# workload's own output goes to target/demo/output.txt, the full table and the JSON report to the
# same directory; the first lines of the table go to stdout.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
rows=${1:-1000000}
lines=30

cd "$root"
scripts/install-packages.sh demo
"${CARGO:-cargo}" build --quiet --release -p fastinst-cli -p fastinst-preload
workload=$(scripts/third-party.sh sqlite)

mkdir -p "$target/demo"
rm -f "$target/demo"/*
echo "demo.sh: running ${workload##*/} $rows under fastinst record" >&2
"$target/release/fastinst" record --budget 5% -o "$target/demo/report.json" -- "$workload" "$rows" \
    >"$target/demo/output.txt"
"$target/release/fastinst" report "$target/demo/report.json" >"$target/demo/report.txt"

head -n "$lines" "$target/demo/report.txt"
echo "demo.sh: the first $lines of $(wc -l <"$target/demo/report.txt") lines; all of them are in $target/demo/report.txt" >&2
