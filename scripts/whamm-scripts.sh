#!/usr/bin/env bash
# Fetches the scripts, programs and libraries with which the crate whamm is tested.
#
# usage: scripts/whamm-scripts.sh
#
# The version and its checksum are in tests/third_party/whamm.sha256. Only this file is fetched: not
# the packages on which the crate depends, since it is not built.
#
# The result is target/third-party/whamm, with the directory `tests` of the crate. What is up to
# date is not fetched again; simultaneous runs wait for each other. The directory goes to stdout.
# CARGO_TARGET_DIR chooses the location of target/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pinned=$root/tests/third_party/whamm.sha256
target=${CARGO_TARGET_DIR:-$root/target}/third-party
folder=$target/whamm

die() { echo "whamm-scripts.sh: $*" >&2; exit 1; }

mkdir -p "$target"
exec 9>"$target/whamm.lock"
flock 9
wanted=$(cat "${BASH_SOURCE[0]}" "$pinned" | sha256sum)
if [[ $(cat "$folder/stamp" 2>/dev/null) != "$wanted" ]]; then
    file=$(awk '{ print $2 }' "$pinned")
    package=${file%.crate}
    # Shows a package, for which cargo stores its file among those that it has fetched.
    (cd "$root" && "${CARGO:-cargo}" info --quiet --locked --registry crates-io "${package%-*}@${package##*-}" >/dev/null) ||
        die "cargo cannot fetch $package"
    archives=("${CARGO_HOME:-$HOME/.cargo}"/registry/cache/*/"$file")
    [[ -f ${archives[0]} ]] || die "cargo has not stored $file"
    work=$(mktemp -d "$target/whamm.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cp "${archives[0]}" "$work/$file"
    (cd "$work" && sha256sum --quiet --check "$pinned") || die "$file is not the pinned one"
    tar -xzf "$work/$file" -C "$work" --strip-components=1 "$package/tests"
    rm -rf "$folder"
    mkdir -p "$folder"
    mv "$work/tests" "$folder"
    echo "$wanted" >"$folder/stamp"
fi
echo "$folder"
