//! The machine code of a module, to see whether it was changed.

use std::fs::File;
use std::os::unix::fs::FileExt;

use wasm_jit::Module;

/// The machine code of a module's functions as they were first compiled: a function that has probes
/// begins with a jump.
pub(crate) fn code(module: &Module) -> Vec<u8> {
    let mut map = Vec::new();
    module.write_perf_map(&mut map).unwrap();
    let map = String::from_utf8(map).unwrap();
    let memory = File::open("/proc/self/mem").unwrap();
    let is_first = |line: &&str| !line.ends_with(" [probed]") && !line.ends_with(" [stub]");
    let functions = map.lines().filter(is_first).map(|line| {
        let number = |at| u64::from_str_radix(line.split(' ').nth(at).unwrap(), 16).unwrap();
        let mut bytes = vec![0; number(1) as usize];
        memory.read_exact_at(&mut bytes, number(0)).unwrap();
        bytes
    });
    functions.collect::<Vec<_>>().concat()
}
