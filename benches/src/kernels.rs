//! Compute kernels: one C file each, for native code and for WebAssembly. The kernels in `kernels/`
//! have no vectors; those in `vector_kernels/` have explicit 128-bit vectors.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::host;
use crate::options::Options;

/// A file of a suite.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The file's name, without its end.
    pub name: &'static str,
    /// The kernel's argument in a full run: a tenth of a second of native code.
    pub full: u32,
    /// The kernel's argument in a quick run.
    pub quick: u32,
}

const fn kernel(name: &'static str, full: u32, quick: u32) -> Kernel {
    Kernel { name, full, quick }
}

/// The kernels without vectors, in related groups.
const SCALAR_KERNELS: &[Kernel] = &[
    // Dense and sparse linear algebra.
    kernel("gemm", 600, 20),
    kernel("two_products", 440, 20),
    kernel("cholesky", 1000, 20),
    kernel("lu", 800, 20),
    kernel("gramschmidt", 480, 20),
    kernel("mvt", 1000, 1),
    kernel("conjugate_gradient", 40, 1),
    kernel("spectral_norm", 1400, 20),
    // Stencils.
    kernel("jacobi1d", 50_000, 10),
    kernel("jacobi2d", 1000, 2),
    kernel("seidel2d", 160, 1),
    kernel("heat3d", 500, 2),
    kernel("life", 400, 2),
    // Dynamic programming.
    kernel("edit_distance", 4500, 50),
    kernel("floyd_warshall", 480, 20),
    kernel("knapsack", 4500, 10),
    kernel("nussinov", 920, 40),
    // Hashes and checksums.
    kernel("fnv", 40_000, 10),
    kernel("xxhash", 18_000, 10),
    kernel("siphash", 4500, 2),
    kernel("sha256", 20_000, 10),
    kernel("md5", 40_000, 10),
    kernel("crc32", 2500, 2),
    // Sorting.
    kernel("quicksort", 1_000_000, 1000),
    kernel("heapsort", 600_000, 1000),
    kernel("mergesort", 200_000, 1000),
    kernel("linked_list", 70, 1),
    // String search and other work on text.
    kernel("search_naive", 100, 2),
    kernel("search_horspool", 400, 8),
    kernel("search_kmp", 80, 2),
    kernel("lz", 40, 1),
    kernel("base64", 1000, 1),
    kernel("json", 600, 1),
    // Calls, direct and indirect.
    kernel("fib", 38, 15),
    kernel("tak", 30, 9),
    kernel("ackermann", 350, 1),
    kernel("nqueens", 13, 6),
    kernel("mutual", 200_000, 100),
    kernel("dispatch", 60_000, 10),
    kernel("shapes", 20_000, 10),
    // Interpreting, data structures, bits and numbers.
    kernel("interpreter", 100_000, 500),
    kernel("hash_table", 60, 1),
    kernel("binary_trees", 18, 6),
    kernel("sieve", 120, 1),
    kernel("bits", 6000, 2),
    kernel("bigint", 4500, 50),
    kernel("modpow", 350_000, 100),
    kernel("matrix_power", 1500, 1),
    kernel("fourier", 20, 8),
    // Floating point.
    kernel("mandelbrot", 900, 20),
    kernel("nbody", 1_600_000, 100),
    kernel("spheres", 1400, 20),
    kernel("cosine_transform", 65, 1),
];

/// The kernels with vectors, in related groups.
const VECTOR_KERNELS: &[Kernel] = &[
    // Floating point.
    kernel("dot_product", 100_000, 10),
    kernel("matrix_multiply", 200, 1),
    kernel("fourier", 10_000, 10),
    kernel("sine", 10_000, 10),
    kernel("mandelbrot", 1024, 16),
    kernel("quantize", 20_000, 10),
    // Hashes, checksums and encryption.
    kernel("chacha20", 5000, 2),
    kernel("blake2s", 4000, 2),
    kernel("wide_hash", 40_000, 10),
    kernel("adler32", 20_000, 10),
    // Text.
    kernel("utf8", 5000, 2),
    kernel("json_scan", 5000, 2),
    kernel("base64", 5000, 2),
    kernel("find_byte", 20_000, 10),
    // Signals and images.
    kernel("convolution", 4000, 2),
    kernel("mix", 20_000, 10),
    kernel("blur", 5000, 2),
    kernel("alpha_blend", 20_000, 10),
    kernel("rgb_to_yuv", 20_000, 10),
    // Integers.
    kernel("sort", 500, 1),
    kernel("prefix_sum", 40_000, 10),
    kernel("hamming", 20_000, 10),
];

/// Kernels that are compiled in the same way.
#[derive(Debug)]
pub struct Suite {
    /// The directory of the sources, in `benches/`.
    sources: &'static str,
    /// The directory of the programs, in the target directory.
    programs: &'static str,
    /// The C files, except for `main.c`.
    pub kernels: &'static [Kernel],
    /// Further flags of the native compiler.
    native: &'static [&'static str],
    /// Further flags of the compiler for WebAssembly.
    wasm: &'static [&'static str],
}

/// The WebAssembly code has no vectors, so native code has none either.
pub static SCALAR: Suite = Suite {
    sources: "kernels",
    programs: "wasm-kernels",
    kernels: SCALAR_KERNELS,
    native: &["-fno-tree-vectorize"],
    wasm: &[],
};

/// Both compilers generate the vectors that are in the source, and no others.
pub static VECTOR: Suite = Suite {
    sources: "vector_kernels",
    programs: "wasm-vector-kernels",
    kernels: VECTOR_KERNELS,
    native: &["-fno-tree-vectorize", "-msse4.1"],
    wasm: &["-fno-vectorize", "-fno-slp-vectorize", "-msimd128"],
};

/// Flags for both compilers. WebAssembly has neither `errno` for square roots nor fused
/// multiply-add.
const FLAGS: [&str; 4] = ["-O2", "-fno-math-errno", "-ffp-contract=off", "-Wall"];

/// Features that newer versions of clang enable by default; clang 14 supports but does not enable
/// them.
const WASM: [&str; 5] =
    ["--target=wasm32-wasi", "-msign-ext", "-mbulk-memory", "-mnontrapping-fptoint", "-Wl,--strip-debug"];

/// The compiler for WebAssembly: `WASM_CC`, or `clang`.
fn wasm_compiler() -> String {
    std::env::var("WASM_CC").unwrap_or_else(|_| "clang".into())
}

/// A kernel in both forms.
#[derive(Clone, Debug)]
pub struct Built {
    /// The kernel.
    pub kernel: Kernel,
    /// The native program.
    pub native: PathBuf,
    /// The WASI command.
    pub wasm: PathBuf,
}

/// Which kernels are measured.
#[derive(Debug, Default, clap::Args)]
pub struct Choice {
    /// Only kernels whose names contain this (may be repeated)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

impl Choice {
    fn is_meant(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }
}

impl Suite {
    /// The chosen kernels.
    pub fn chosen(&self, choice: &Choice) -> Vec<Kernel> {
        self.kernels.iter().filter(|kernel| choice.is_meant(kernel.name)).copied().collect()
    }

    /// The same, but in a quick run only every fourth kernel, unless kernels are named.
    pub fn sample(&self, choice: &Choice, options: &Options) -> Vec<Kernel> {
        let step = if options.is_quick() && choice.only.is_empty() { 4 } else { 1 };
        self.chosen(choice).into_iter().step_by(step).collect()
    }

    /// The compilation flags, in one line.
    pub fn compilation(&self) -> String {
        let line = |compiler: String, flags: &[&str]| [&[compiler.as_str()], flags].concat().join(" ");
        let native = line(host::compiler(), &self.native_flags());
        let wasm = line(wasm_compiler(), &self.wasm_flags());
        format!("Native: {native}. WebAssembly: {wasm}.")
    }

    fn native_flags(&self) -> Vec<&'static str> {
        [&FLAGS[..], self.native].concat()
    }

    fn wasm_flags(&self) -> Vec<&'static str> {
        [&FLAGS[..], &WASM, self.wasm].concat()
    }

    /// Compiles kernels into a directory in the target directory.
    ///
    /// # Panics
    /// If that fails, or if the suite's kernels do not match the files in the directory.
    pub fn build(&self, kernels: &[Kernel]) -> Vec<Built> {
        let sources = host::repo_root().join("benches").join(self.sources);
        let named: BTreeSet<String> =
            self.kernels.iter().map(|kernel| format!("{}.c", kernel.name)).collect();
        assert_eq!(named, files(&sources), "the known kernels, and those in {}", sources.display());
        let folder = host::target_dir().join(self.programs);
        let build = |kernel: &Kernel| {
            let source = sources.join(format!("{}.c", kernel.name));
            self.build_one(*kernel, &[source], &folder, &[])
        };
        in_two_halves(kernels, build)
    }

    /// Compiles the chosen programs of a directory outside of this repository: each is a C file, or
    /// a directory of C files, that defines `kernel` of `kernel.h`. The argument of a full run is
    /// such that native code takes a tenth of a second.
    ///
    /// # Panics
    /// If that fails.
    pub fn build_foreign(&self, sources: &Path, choice: &Choice) -> Vec<Built> {
        let folder = host::target_dir().join(self.programs).join("foreign");
        let include = format!("-I{}", sources.display());
        let programs: Vec<(String, Vec<PathBuf>)> =
            programs(sources).into_iter().filter(|(name, _)| choice.is_meant(name)).collect();
        let build = |(name, files): &(String, Vec<PathBuf>)| {
            // A few names, which are used until the end of the process.
            let kernel = Kernel { name: String::leak(name.clone()), full: 1, quick: 1 };
            self.build_one(
                kernel,
                files,
                &folder,
                &[&include, "-w", "-ftls-model=local-exec", "-Wl,-z,stack-size=1048576"],
            )
        };
        in_two_halves(&programs, build)
    }

    fn build_one(&self, kernel: Kernel, sources: &[PathBuf], folder: &Path, more: &[&str]) -> Built {
        fs::create_dir_all(folder).expect("a folder can be made in the target folder");
        let shared = shared_sources();
        let include = format!("-I{}", shared.display());
        let sources = [sources, &[shared.join("main.c")]].concat();
        let native = folder.join(kernel.name);
        let wasm = folder.join(format!("{}.wasm", kernel.name));
        let with = |flags: Vec<&'static str>| [&flags[..], &[&include], more].concat();
        compile(&host::compiler(), &with(self.native_flags()), &sources, &native);
        compile(&wasm_compiler(), &with(self.wasm_flags()), &sources, &wasm);
        Built { kernel, native, wasm }
    }
}

/// Builds programs on two threads.
fn in_two_halves<T: Sync>(programs: &[T], build: impl Fn(&T) -> Built + Sync) -> Vec<Built> {
    let (first, second) = programs.split_at(programs.len() / 2);
    let build_all = |programs: &[T]| programs.iter().map(&build).collect::<Vec<_>>();
    thread::scope(|scope| {
        let first = scope.spawn(|| build_all(first));
        let second = build_all(second);
        [first.join().expect("the kernels can be compiled"), second].concat()
    })
}

/// The programs of a directory: their names and C files.
fn programs(folder: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    let is_source = |path: &PathBuf| path.extension() == Some(OsStr::new("c"));
    let mut programs = BTreeMap::new();
    for path in entries(folder) {
        let files = if path.is_dir() { entries(&path) } else { vec![path.clone()] };
        let files: Vec<PathBuf> = files.into_iter().filter(is_source).collect();
        if let Some(name) = path.file_stem().filter(|_| !files.is_empty()) {
            programs.insert(name.to_string_lossy().into_owned(), files);
        }
    }
    programs
}

/// The checksum that a kernel has printed, and its time in nanoseconds, at least the clock's
/// resolution; `None` for any other output.
pub fn printed(text: &str) -> Option<(String, f64)> {
    let mut words = text.split_whitespace();
    let (checksum, ns, None) = (words.next()?, words.next()?.parse::<f64>().ok()?, words.next()) else {
        return None;
    };
    Some((checksum.to_owned(), ns.max(1.0)))
}

/// Compiles all kernels without vectors into one module, each under its own name: used for a quick
/// run of the compilers.
///
/// # Panics
/// When that fails.
pub fn build_one_module() -> PathBuf {
    let sources = shared_sources();
    let folder = host::target_dir().join(SCALAR.programs);
    fs::create_dir_all(&folder).expect("a folder can be made in the target folder");
    let object = |kernel: &Kernel| {
        let object = folder.join(format!("{}.o", kernel.name));
        let name = format!("-Dkernel={}_kernel", kernel.name);
        let flags = [&FLAGS[..], &WASM[..WASM.len() - 1], &["-c", &name]].concat();
        compile(&wasm_compiler(), &flags, &[sources.join(format!("{}.c", kernel.name))], &object);
        object
    };
    let objects: Vec<PathBuf> = SCALAR.kernels.iter().map(object).collect();
    let module = folder.join("all-kernels.wasm");
    let flags =
        [&WASM[..], &["-mexec-model=reactor", "-Wl,--export-dynamic", "-Wl,--no-gc-sections"]].concat();
    compile(&wasm_compiler(), &flags, &objects, &module);
    module
}

/// The directory of `main.c` and `kernel.h`, which all kernels share.
fn shared_sources() -> PathBuf {
    host::repo_root().join("benches/kernels")
}

/// The C files except for `main.c`.
fn files(folder: &Path) -> BTreeSet<String> {
    let names = entries(folder).into_iter().filter_map(|path| path.file_name().map(OsStr::to_owned));
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".c") && name != "main.c").collect()
}

/// What is in a folder, in a fixed order.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    paths
}

fn compile(compiler: &str, flags: &[&str], sources: &[impl AsRef<OsStr>], output: &Path) {
    let mut command = Command::new(compiler);
    command.args(flags).args(sources).args(["-lm", "-o"]).arg(output);
    let result = command.output();
    let result = result.unwrap_or_else(|error| panic!("{compiler} cannot be started: {error}"));
    let said = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{command:?}: {}\n{said}", result.status);
}
