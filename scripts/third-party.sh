#!/usr/bin/env bash
# Fetches real third-party programs as source packages and builds them with -O2
# -finstrument-functions.
#
# usage: scripts/third-party.sh [NAME...]        NAME: sqlite, lua, bzip2, jsonnet (default: all)
#
# The sources come with the crates that tests/third_party/Cargo.toml names; Cargo.lock there holds
# their checksums. The drivers are ours, in tests/programs/. For every NAME there are two binaries
# in target/third-party/:
#   sqlite_workload, lua, bzip2_workload, jsonnet_workload    call the cyg functions of the preloaded library (or glibc's empty ones)
#   the same with .empty at the end                           carry their own do-nothing cyg functions: the baseline of the benchmarks
# What is up to date is not built again; simultaneous runs wait for each other. The path of
# each first binary goes to stdout. CC and CXX choose the compilers (default gcc and g++),
# CARGO_TARGET_DIR the location of target/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
manifest=$root/tests/third_party/Cargo.toml
programs=$root/tests/programs
target=${CARGO_TARGET_DIR:-$root/target}/third-party
cc=${CC:-gcc}
cxx=${CXX:-g++}
flags=(-O2 -g1 -finstrument-functions -pthread)

say() { echo "third-party.sh: $*" >&2; }
die() { say "$*"; exit 1; }

# The directory of a package's source: fetched by cargo if it is missing, checked against
# Cargo.lock.
package_source() {
    local metadata path
    metadata=$("${CARGO:-cargo}" metadata --quiet --locked --format-version 1 --manifest-path "$manifest")
    path=$(grep -o "\"manifest_path\":\"[^\"]*/$1-[^\"/]*/Cargo.toml\"" <<<"$metadata" | head -n 1 | cut -d '"' -f 4)
    [[ -n $path ]] || die "cargo does not know the package $1"
    dirname "$path"
}

# compile_all FOLDER COMPILER [FLAGS...] -- SOURCES...: one object per source in FOLDER, as many at
# a time as there are processors.
compile_all() {
    local objects=$1 command=("${@:2}") sources=() i
    for ((i = 2; i <= $#; i++)); do
        if [[ ${!i} == -- ]]; then
            command=("${@:2:i-2}")
            sources=("${@:i+1}")
            break
        fi
    done
    mkdir -p "$objects"
    # shellcheck disable=SC2016  # the inner shell expands
    printf '%s\0' "${sources[@]}" |
        xargs -0 -n 1 -P "$(nproc)" bash -c 'source=${!#}; name=${source##*/}; exec "${@:2:$#-2}" -c "$source" -o "$1/${name%.*}.o"' \
            compile "$objects" "${command[@]}"
}

# link OBJECTS COMPILER NAME [LIBRARIES...]: NAME and NAME.empty.
link() {
    local objects=$1 compiler=$2 name=$3
    shift 3
    "$compiler" -pthread -o "$target/$name.new" "$objects"/*.o "$@"
    "$compiler" -pthread -o "$target/$name.empty.new" "$objects"/*.o "$target/empty_cyg.o" "$@"
    mv -f "$target/$name.empty.new" "$target/$name.empty"
    mv -f "$target/$name.new" "$target/$name"
}

build_sqlite() {
    local source objects=$1
    source=$(package_source libsqlite3-sys)/sqlite3
    compile_all "$objects" "$cc" "${flags[@]}" -DSQLITE_THREADSAFE=1 -DSQLITE_OMIT_LOAD_EXTENSION -I "$source" -- \
        "$source/sqlite3.c" "$programs/sqlite_workload.c"
    link "$objects" "$cc" sqlite_workload -lm
}

build_lua() {
    local folders objects=$1
    folders=("$(package_source lua-src)"/lua-5.4.*)
    compile_all "$objects" "$cc" "${flags[@]}" -DLUA_USE_POSIX -I "${folders[0]}" -- "${folders[0]}"/l*.c "$programs/lua_workload.c"
    link "$objects" "$cc" lua -lm
}

build_bzip2() {
    local source objects=$1 part sources=()
    source=$(package_source bzip2-sys)/bzip2-1.0.8
    for part in blocksort bzlib compress crctable decompress huffman randtable; do
        sources+=("$source/$part.c")
    done
    compile_all "$objects" "$cc" "${flags[@]}" -DBZ_NO_STDIO -D_FILE_OFFSET_BITS=64 -I "$source" -- \
        "${sources[@]}" "$programs/bzip2_workload.c"
    link "$objects" "$cc" bzip2_workload
}

build_jsonnet() {
    local source objects=$1 part sources=()
    source=$(package_source jsonnet-sys)/jsonnet
    for part in desugarer formatter lexer libjsonnet parser pass static_analysis string_utils vm; do
        sources+=("$source/core/$part.cpp")
    done
    # The interpreter embeds its standard library as a list of byte values.
    mkdir -p "$objects/include"
    { od -An -v -t u1 -w1 "$source/stdlib/std.jsonnet" | sed 's/$/,/' && echo 0; } >"$objects/include/std.jsonnet.h"
    compile_all "$objects" "$cxx" "${flags[@]}" -std=c++11 -w -I "$objects/include" -I "$source/include" -I "$source/third_party/md5" \
        -I "$source/third_party/json" -- "${sources[@]}" "$source/third_party/md5/md5.cpp" "$programs/jsonnet_workload.cpp"
    link "$objects" "$cxx" jsonnet_workload
}

binary_of() {
    case $1 in
        sqlite | bzip2 | jsonnet) echo "$1_workload" ;;
        lua) echo lua ;;
        *) die "unknown program '$1' (known: sqlite, lua, bzip2, jsonnet)" ;;
    esac
}

# Everything a program is made from; when this hash is unchanged, the program is up to date.
fingerprint() {
    {
        "$cc" --version
        # The others need no C++ compiler.
        [[ $1 != jsonnet ]] || "$cxx" --version
        cat "${BASH_SOURCE[0]}" "$root/tests/third_party/Cargo.lock" "$programs/empty_cyg.c" "$programs/$(binary_of "$1")"*.c*
    } | sha256sum
}

names=("$@")
((${#names[@]})) || names=(sqlite lua bzip2 jsonnet)
mkdir -p "$target"
exec 9>"$target/lock"
flock 9
for name in "${names[@]}"; do
    binary=$(binary_of "$name")
    wanted=$(fingerprint "$name")
    if [[ ! -x $target/$binary || ! -x $target/$binary.empty || $(cat "$target/$name.stamp" 2>/dev/null) != "$wanted" ]]; then
        say "building $name"
        rm -rf "$target/$name.objects" "$target/$name.stamp"
        "$cc" -O2 -c "$programs/empty_cyg.c" -o "$target/empty_cyg.o"
        "build_$name" "$target/$name.objects"
        echo "$wanted" >"$target/$name.stamp"
    fi
    echo "$target/$binary"
done
