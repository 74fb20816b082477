//! Speed of the code that engines generate for the same WebAssembly: the kernels of `kernels/`,
//! which have no vectors. See `benches::code_speed`.

use benches::{code_speed, kernels};

fn main() {
    code_speed::run_benchmark(
        "How fast is the code that engines make of the same WebAssembly?",
        &kernels::SCALAR,
    );
}
