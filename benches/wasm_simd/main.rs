//! Speed of the code that engines generate for explicit 128-bit vectors: the kernels of
//! `vector_kernels/`. See `benches::code_speed`.

use benches::{code_speed, kernels};

fn main() {
    code_speed::run_benchmark(
        "How fast is the code that engines make of vectors in WebAssembly?",
        &kernels::VECTOR,
    );
}
