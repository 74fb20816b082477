//! The settings of the processor for floating-point numbers while compiled code runs.
//!
//! MXCSR belongs to the thread, and the host may have changed it: code that was compiled with
//! `-ffast-math` sets numbers that are nearly zero to zero, `fesetround` changes the rounding mode,
//! `feenableexcept` makes divisions by zero raise SIGFPE. The results of WebAssembly depend on none
//! of these (core specification, section 4.3.3), so the default is in force while it runs, and in
//! the host functions that it calls.

use std::arch::asm;

/// Rounds to nearest, keeps subnormal numbers, raises no signals.
const DEFAULT: u32 = 0x1f80;

/// The bits that record what has happened since they were cleared, and have no influence.
const FLAGS: u32 = 0x3f;

fn read() -> u32 {
    let mut value = 0_u32;
    // SAFETY: stores the register in the variable.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
    value
}

/// # Safety
/// The rounding mode and the other settings must be those that the code expects which is executed
/// next.
unsafe fn write(value: u32) {
    // SAFETY: the reserved bits are zero, since the value is `DEFAULT` or was read; the rest is the
    // caller's obligation.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags)) };
}

/// While this exists, the thread has the default settings.
pub(super) struct DefaultSettings {
    /// The thread's own, if they are different.
    own: Option<u32>,
}

impl DefaultSettings {
    pub(super) fn begin() -> Self {
        let now = read();
        let own = (now & !FLAGS != DEFAULT).then_some(now);
        if own.is_some() {
            // SAFETY: Rust and compiled code expect the default.
            unsafe { write(DEFAULT) };
        }
        Self { own }
    }
}

impl Drop for DefaultSettings {
    fn drop(&mut self) {
        if let Some(own) = self.own {
            // SAFETY: the settings that the caller had.
            unsafe { write(own) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Instance, Module, Store};

    /// Flush to zero and denormals are zero; rounding towards zero; divisions by zero raise a
    /// signal.
    #[test]
    fn the_settings_of_the_host_have_no_influence_and_are_kept() {
        let engine = Engine::default();
        let text = r#"(module
            (func (export "mul") (param f64 f64) (result f64) (f64.mul (local.get 0) (local.get 1)))
            (func (export "div") (param f64 f64) (result f64) (f64.div (local.get 0) (local.get 1)))
            (func (export "trap") (param f64 f64) (result f64) unreachable))"#;
        let module = Module::new(&engine, text).expect("it is valid");
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).expect("it has no imports");
        let [mul, div, trap] = ["mul", "div", "trap"].map(|name| {
            instance.get_typed_func::<(f64, f64), f64>(&mut store, name).expect("it is exported")
        });
        for settings in [DEFAULT | 0x8040, DEFAULT | 0x6000, DEFAULT & !0x200] {
            // SAFETY: nothing but the calls is computed until the settings are restored.
            unsafe { write(settings) };
            let product = mul.call(&mut store, (1e-308, 1e-5));
            let third = div.call(&mut store, (2.0, 3.0));
            let infinite = div.call(&mut store, (1.0, 0.0));
            let trapped = trap.call(&mut store, (1.0, 0.0)).is_err();
            let after = read();
            // SAFETY: those that the test had.
            unsafe { write(DEFAULT) };
            let bits = [product, third, infinite].map(|result| result.expect("it returns").to_bits());
            // Integers, because the compiler may compute with the default settings.
            assert_eq!(bits, [0x0000_0004_b669_5433, 0x3fe5_5555_5555_5555, 0x7ff0_0000_0000_0000]);
            assert!(trapped);
            assert_eq!(after & !FLAGS, settings, "{settings:x}");
        }
    }
}
