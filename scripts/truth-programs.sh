#!/usr/bin/env bash
# Fetches larger third-party programs as source packages and builds them with -O2 -g1
# -finstrument-functions, for `cargo bench -p benches --bench truth`.
#
# usage: scripts/truth-programs.sh [NAME...]     NAME: quickjs, luau, zstd, openh264, glslang, nginx (default: all)
#
# The sources come with the crates that tests/third_party/truth/Cargo.toml names; Cargo.lock there
# holds their checksums. The drivers are ours, in tests/programs/. For every NAME there are two
# binaries in target/truth-programs/:
#   NAME          calls the cyg functions of the preloaded library (or glibc's empty ones)
#   NAME.plain    the same sources without -finstrument-functions
# What is up to date is not built again; simultaneous runs wait for each other. The path of
# each first binary goes to stdout. luau is built by clang (CLANGXX, default clang++), the others by
# CC and CXX (default gcc and g++); CARGO_TARGET_DIR is the location of target/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
manifest=$root/tests/third_party/truth/Cargo.toml
programs=$root/tests/programs/truth
target=${CARGO_TARGET_DIR:-$root/target}/truth-programs
cc=${CC:-gcc}
cxx=${CXX:-g++}
clangxx=${CLANGXX:-clang++}
common=(-O2 -g1 -w -pthread)
instrument=(-finstrument-functions)

say() { echo "truth-programs.sh: $*" >&2; }
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

# compile_all COMPILER [FLAGS...] -- SOURCES...: one object per source in $objects, named after the
# source's path, and one without instrumentation in $objects/plain; as many at a time as there are
# processors.
compile_all() {
    local command=() source
    while [[ $1 != -- ]]; do
        command+=("$1")
        shift
    done
    shift
    mkdir -p "$objects/plain"
    for source; do
        printf '%s\0' "$objects" "${command[0]} ${instrument[*]}" "$source" "$objects/plain" "${command[0]}" "$source"
    done |
        # shellcheck disable=SC2016  # the inner shell expands
        xargs -0 -n 3 -P "$(nproc)" bash -c 'name=${*: -1}; name=${name//\//_}; folder=${*: -3:1}; read -ra compiler <<<"${*: -2:1}"
            exec "${compiler[@]}" "${@:1:$#-3}" -c "${*: -1}" -o "$folder/${name%.*}.o"' compile "${command[@]:1}"
}

# link COMPILER NAME [LIBRARIES...]: NAME and NAME.plain.
link() {
    local compiler=$1 name=$2
    shift 2
    "$compiler" -pthread -o "$target/$name.new" "$objects"/*.o "$@"
    "$compiler" -pthread -o "$target/$name.plain.new" "$objects"/plain/*.o "$@"
    mv -f "$target/$name.plain.new" "$target/$name.plain"
    mv -f "$target/$name.new" "$target/$name"
}

# An interpreter in C.
build_quickjs() {
    local source
    source=$(package_source rquickjs-sys)/quickjs
    compile_all "$cc" "${common[@]}" -D_GNU_SOURCE -DNDEBUG -I "$source" -- "$source"/{quickjs,libregexp,libunicode,dtoa}.c \
        "$programs/quickjs_workload.c"
    link "$cc" quickjs -lm
}

# A compiler to byte code and an interpreter in C++ with exceptions, by clang.
build_luau() {
    local source part includes=()
    source=$(package_source luau0-src)/luau
    for part in Ast Bytecode Common Compiler VM; do
        includes+=(-I "$source/$part/include")
    done
    # Instrumented before inlining, clang leaves calls of functions that libstdc++ does not export.
    local instrument=(-finstrument-functions-after-inlining)
    compile_all "$clangxx" "${common[@]}" -std=c++17 "${includes[@]}" -I "$source/VM/src" -- \
        "$source"/{Ast,Bytecode,Common,Compiler,VM}/src/*.cpp "$programs/luau_workload.cpp"
    link "$clangxx" luau
}

# A compressor in C, several threads.
build_zstd() {
    local source
    source=$(package_source zstd-sys)/zstd/lib
    compile_all "$cc" "${common[@]}" -DZSTD_MULTITHREAD -DZSTD_DISABLE_ASM -I "$source" -- \
        "$source"/{common,compress,decompress}/*.c "$programs/zstd_workload.c"
    link "$cc" zstd
}

# A video encoder and decoder in C++, several threads, without assembly.
build_openh264() {
    local source sources part
    source=$(package_source openh264-sys2)/upstream/codec
    # Parts have different headers of the same name.
    local -A headers=([common]= [processing]="processing/interface processing/src/common" [decoder]="decoder/core/inc decoder/plus/inc"
        [encoder]="encoder/core/inc encoder/plus/inc processing/interface")
    for part in "${!headers[@]}"; do
        local includes=(-I "$source/api/wels" -I "$source/common/inc") folder
        for folder in ${headers[$part]}; do
            includes+=(-I "$source/$folder")
        done
        mapfile -t sources < <(find "$source/$part" -name '*.cpp' ! -name '*DllEntry*' | sort)
        compile_all "$cxx" "${common[@]}" -fno-strict-aliasing "${includes[@]}" -- "${sources[@]}"
    done
    compile_all "$cxx" "${common[@]}" -I "$source/api/wels" -- "$programs/openh264_workload.cpp"
    link "$cxx" openh264
}

# A compiler of shaders in C++.
build_glslang() {
    local source sources
    source=$(package_source shaderc-sys)/build/glslang
    mkdir -p "$objects/include/glslang"
    # What its build system generates: the version, and a header with the text of an extension.
    sed 's/@[a-z]*@/0/' "$source/build_info.h.tmpl" >"$objects/include/glslang/build_info.h"
    python3 "$source/gen_extension_headers.py" -i "$source/glslang/ExtensionHeaders" -o "$objects/include/glslang/glsl_intrinsic_header.h"
    mapfile -t sources < <(find "$source/glslang" "$source/SPIRV" -name '*.cpp' ! -path '*/Windows/*' ! -path '*/Web/*' ! -name stub.cpp |
        sort)
    compile_all "$cxx" "${common[@]}" -std=c++17 -DENABLE_HLSL -I "$objects/include" -I "$source" -- "${sources[@]}" \
        "$programs/glslang_workload.cpp"
    link "$cxx" glslang
    ln -sfn "$source/Test" "$target/glslang.shaders"
}

# A server. Its build system writes to the source directory, so this is copied.
build_nginx() {
    local source way
    source=$(package_source nginx-src)/nginx
    for way in nginx nginx.plain; do
        rm -rf "$objects/$way"
        mkdir -p "$objects"
        cp -r "$source" "$objects/$way"
        (
            local flags=("${common[@]}")
            [[ $way == nginx.plain ]] || flags+=("${instrument[@]}")
            cd "$objects/$way"
            auto/configure --with-cc="$cc" --with-cc-opt="${flags[*]}" --without-http_rewrite_module --without-http_gzip_module \
                --without-pcre >configure.log
            make -s -j "$(nproc)" >make.log
            mv -f objs/nginx "$target/$way"
        )
    done
    "$cc" -O2 -pthread -Wall -Wextra "$programs/nginx_load.c" -o "$target/nginx_load"
}

# Everything a program is made from; when this hash is unchanged, the program is up to date.
fingerprint() {
    {
        "$cc" --version
        "$cxx" --version
        "$clangxx" --version
        cat "${BASH_SOURCE[0]}" "$root/tests/third_party/truth/Cargo.lock" "$programs/$1"_*.c*
    } | sha256sum
}

all=(quickjs luau zstd openh264 glslang nginx)
names=("$@")
((${#names[@]})) || names=("${all[@]}")
mkdir -p "$target"
exec 9>"$target/lock"
flock 9
for name in "${names[@]}"; do
    [[ " ${all[*]} " == *" $name "* ]] || die "unknown program '$name' (known: ${all[*]})"
    wanted=$(fingerprint "$name")
    if [[ ! -x $target/$name || ! -x $target/$name.plain || $(cat "$target/$name.stamp" 2>/dev/null) != "$wanted" ]]; then
        say "building $name"
        objects=$target/$name.objects
        rm -rf "$objects" "$target/$name.stamp"
        "build_$name"
        echo "$wanted" >"$target/$name.stamp"
    fi
    echo "$target/$name"
done
