//! The program whose instructions get probes. Also used by `benches/wasmtime`.

use std::fmt::Write;

/// Instructions of a function, all of them in its loop.
pub(crate) const INSTRUCTIONS: usize = 200;

/// A module of this many functions, each exported by its number, with a loop that is executed once
/// and has some [`INSTRUCTIONS`].
pub(crate) fn module_text(functions: usize) -> String {
    let mut text = String::from("(module (memory 1)\n");
    for function in 0..functions {
        // Writing to a String cannot fail.
        let _ = write!(text, "(func (export \"{function}\") (param $n i32) (result i32) (loop $again ");
        for number in 0..INSTRUCTIONS / 8 {
            let (offset, factor) = (number * 4, function % 1000 + 3);
            let _ = writeln!(
                text,
                "(local.set $n (i32.xor (i32.load offset={offset} (i32.const 0)) (i32.mul (local.get $n) (i32.const {factor}))))"
            );
        }
        text += "(br_if $again (i32.and (local.get $n) (i32.const 0)))) (local.get $n))\n";
    }
    text.push(')');
    text
}
