//! C code that is generated, compiled and loaded for a run.

use std::ffi::{CString, c_void};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::host;

/// Excludes functions of instrumented sources from instrumentation.
pub const PLAIN: &str = "__attribute__((no_instrument_function, noinline))";

/// Compiles `source` with the host's compiler and -O2.
///
/// # Panics
/// When that fails.
pub fn compile(folder: &TempDir, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (input, output) = (folder.path().join(format!("{name}.c")), folder.path().join(name));
    fs::write(&input, source).expect("a temporary file can be written");
    let mut command = Command::new(host::compiler());
    command.args(["-O2", "-w"]).args(flags).arg("-o").arg(&output).arg(&input);
    let status = command.status().expect("the C compiler can be started");
    assert!(status.success(), "{command:?}: {status}");
    output
}

/// A shared library in this process, never unloaded.
#[derive(Clone, Copy, Debug)]
pub struct Library(*mut c_void);

impl Library {
    /// Loads a library.
    ///
    /// # Panics
    /// When the loader refuses.
    pub fn load(path: &Path) -> Self {
        let name = CString::new(path.to_str().expect("a UTF-8 path")).expect("no NUL in a path");
        // SAFETY: the string is valid; the library's constructors are the compiler's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", path.display());
        Self(handle)
    }

    /// The address of a symbol.
    ///
    /// # Panics
    /// When the library has none of this name.
    pub fn address(&self, name: &str) -> usize {
        let symbol = CString::new(name).expect("no NUL in a symbol");
        // SAFETY: the handle belongs to a library that stays loaded, the string is valid.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        assert!(!address.is_null(), "no symbol {name}");
        address as usize
    }

    /// A function without arguments and result.
    pub fn procedure(&self, name: &str) -> extern "C" fn() {
        // SAFETY: the generated sources have functions of this type only, where this is used.
        unsafe { std::mem::transmute(self.address(name)) }
    }

    /// A function that takes a number and returns nothing.
    pub fn procedure_of_number(&self, name: &str) -> extern "C" fn(u64) {
        // SAFETY: as above.
        unsafe { std::mem::transmute(self.address(name)) }
    }
}

/// The source of an application with this many small functions, each of which executes one entry
/// and one exit when `run_all` calls it. They are of several kinds, so that their sites have
/// several shapes and all splits; every other exit is a tail call.
pub fn application(functions: usize) -> String {
    let mut source = String::from("static volatile unsigned sink;\n");
    for number in 0..functions {
        let body = match number % 6 {
            0 => format!("unsigned f{number}(unsigned x) {{ return x * {number}u + 3; }}"),
            1 => format!("void f{number}(unsigned x) {{ sink = x + {number}u; }}"),
            2 => format!("unsigned f{number}(unsigned x, unsigned y) {{ sink = y; return x ^ sink; }}"),
            3 => format!("void f{number}(unsigned *x) {{ sink += {number}u; sink ^= 5; }}"),
            4 => format!(
                "unsigned f{number}(unsigned x) {{ unsigned a[4] = {{x, sink}}; sink = a[x & 3]; return a[1]; }}"
            ),
            _ => format!("void f{number}(void) {{ sink++; }}"),
        };
        source.push_str("__attribute__((noinline)) ");
        source.push_str(&body);
        source.push('\n');
    }
    let _ = writeln!(source, "{PLAIN} void run_all(void) {{");
    for number in 0..functions {
        let arguments = match number % 6 {
            0 | 1 | 4 => "1",
            2 => "1, 2",
            3 => "0",
            _ => "",
        };
        let _ = writeln!(source, "    f{number}({arguments});");
    }
    source.push_str("}\n");
    source
}
