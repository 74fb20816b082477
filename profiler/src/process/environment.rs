//! Changes the environment of the programs that this process starts.

use std::env;
use std::ffi::{CStr, CString, c_char};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Sets a variable, also for a program that has functions of its own in place of the C library's,
/// which do nothing before it has begun: bash defines `setenv`, and takes its variables from the
/// environment at its start.
///
/// # Safety
/// No other thread accesses the environment. The program has not begun.
pub unsafe fn set(name: &str, value: &str) {
    let (start, entry) = (format!("{name}="), format!("{name}={value}"));
    let Ok(entry) = CString::new(entry) else { return };
    // SAFETY: an array of C strings that ends with a null pointer, which nobody changes meanwhile.
    unsafe {
        let mut place = environ;
        while !place.is_null() && !(*place).is_null() {
            if CStr::from_ptr(*place).to_bytes().starts_with(start.as_bytes()) {
                // It belongs to the environment from now on.
                *place = entry.into_raw();
                return;
            }
            place = place.add(1);
        }
        env::set_var(name, value);
    }
}
