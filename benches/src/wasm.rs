//! WebAssembly engines to compare, and native code.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host;
use crate::report::Table;

/// A compiler of programs to machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The C compiler, without WebAssembly
    Native,
    /// The engine of this workspace
    WasmJit,
    /// The same, hardened against speculation
    WasmJitHardened,
    /// The same, with bounds checks by instructions
    WasmJitChecked,
    /// The same, with both
    WasmJitCheckedHardened,
    /// The same, with fuel
    WasmJitFuel,
    /// V8's baseline compiler, in node
    Liftoff,
    /// wasmtime's baseline compiler
    Winch,
    /// wasmtime's optimizing compiler, with optimization disabled
    CraneliftO0,
    /// wasmtime's optimizing compiler
    Cranelift,
}

impl Engine {
    /// All of them, in the order of the columns.
    pub const ALL: [Self; 6] =
        [Self::Native, Self::WasmJit, Self::Liftoff, Self::Winch, Self::CraneliftO0, Self::Cranelift];

    /// wasm-jit with settings, which are measured only on request.
    pub const SETTINGS: [Self; 4] =
        [Self::WasmJitHardened, Self::WasmJitChecked, Self::WasmJitCheckedHardened, Self::WasmJitFuel];

    /// The displayed name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::WasmJit => "wasm-jit",
            Self::WasmJitHardened => "hardened",
            Self::WasmJitChecked => "checked",
            Self::WasmJitCheckedHardened => "checked, hardened",
            Self::WasmJitFuel => "fuel",
            Self::Liftoff => "Liftoff",
            Self::Winch => "Winch",
            Self::CraneliftO0 => "Cranelift -O0",
            Self::Cranelift => "Cranelift",
        }
    }

    /// The program, and its options to use only this compiler, and to compile everything in
    /// advance.
    fn program(self) -> (PathBuf, &'static [&'static str]) {
        match self {
            Self::Native => (host::compiler().into(), &[]),
            Self::WasmJit => (wasm_jit(), &[]),
            Self::WasmJitHardened => (wasm_jit(), &["--harden-speculation"]),
            Self::WasmJitChecked => (wasm_jit(), &["--bounds-checks"]),
            Self::WasmJitCheckedHardened => (wasm_jit(), &["--bounds-checks", "--harden-speculation"]),
            Self::WasmJitFuel => (wasm_jit(), &["--fuel", "1000000000000000000"]),
            Self::Liftoff => (
                "node".into(),
                &["--no-warnings", "--allow-natives-syntax", "--liftoff-only", "--no-wasm-lazy-compilation"],
            ),
            Self::Winch => ("wasmtime".into(), &["-C", "compiler=winch"]),
            Self::CraneliftO0 => ("wasmtime".into(), &["-C", "compiler=cranelift", "-O", "opt-level=0"]),
            Self::Cranelift => ("wasmtime".into(), &["-C", "compiler=cranelift", "-O", "opt-level=2"]),
        }
    }

    fn is_ours(self) -> bool {
        self == Self::WasmJit || Self::SETTINGS.contains(&self)
    }

    /// Its version and its options; or the reason why it cannot be used. wasm-jit is built first.
    ///
    /// # Panics
    /// When the build fails; cargo's own messages are on standard error.
    fn found(self) -> Result<String, String> {
        if self.is_ours() {
            host::ensure_built();
        }
        let (program, options) = self.program();
        let output = Command::new(&program).arg("--version").output();
        let output =
            output.map_err(|error| format!("missing: {} cannot be started: {error}", program.display()))?;
        if !output.status.success() {
            return Err(format!("missing: {} --version: {}", program.display(), output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default();
        let name = if self == Self::Liftoff { "node " } else { "" };
        Ok(format!("{name}{version} {}", options.join(" ")).trim_end().to_string())
    }

    /// Runs a WASI command, or the native program.
    pub fn run(self, file: &Path, arguments: &[String]) -> Command {
        let (program, options) = self.program();
        let mut command = match self {
            Self::Native => Command::new(file),
            Self::Liftoff => {
                let mut command = Command::new(program);
                command.args(options).arg(node_script()).arg("run").arg(file);
                command
            }
            _ => {
                let mut command = Command::new(program);
                command.arg("run").args(options).arg(file);
                command
            }
        };
        command.args(arguments);
        command
    }

    /// Compiles a module on one thread, into `output` if the engine writes files; `None` if it does
    /// not read modules.
    pub fn compile(self, module: &Path, output: &Path) -> Option<Command> {
        let (program, options) = self.program();
        let mut command = Command::new(program);
        match self {
            Self::Native
            | Self::WasmJitHardened
            | Self::WasmJitChecked
            | Self::WasmJitCheckedHardened
            | Self::WasmJitFuel => return None,
            Self::WasmJit => command.args(["compile", "--stats", "--json", "--threads", "1"]).arg(module),
            Self::Liftoff => {
                command.args(options).arg("--single-threaded").arg(node_script()).arg("compile").arg(module)
            }
            Self::Winch | Self::CraneliftO0 | Self::Cranelift => command
                .arg("compile")
                .args(options)
                .args(["-C", "parallel-compilation=n"])
                .arg(module)
                .arg("-o")
                .arg(output),
        };
        Some(command)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The engines of `wanted` that are available, and a table with the state of each. `note` is put
/// above it.
///
/// # Panics
/// If wasm-jit is wanted and cannot be built or started. Other engines may be missing.
pub fn find(wanted: impl Iterator<Item = Engine>, note: String) -> (Vec<Engine>, Table) {
    let mut table = Table::new("Engines", note, &["engine", "version and options"]);
    let mut here = Vec::new();
    for engine in wanted {
        let found = engine.found();
        if found.is_ok() {
            here.push(engine);
        }
        assert!(!engine.is_ours() || found.is_ok(), "wasm-jit: {found:?}");
        table.push(vec![engine.name().into(), found.unwrap_or_else(|missing| missing).into()]);
    }
    (here, table)
}

fn wasm_jit() -> PathBuf {
    host::target_dir().join("release/wasm-jit")
}

fn node_script() -> PathBuf {
    host::repo_root().join("benches/wasm/run_in_node.cjs")
}
