//! Functions of the C library that end the process or replace its program: each writes the report
//! first, then continues to the real function with the same arguments.
//!
//! A forwarder does not know its function's arguments, whose number varies for `execl` and the
//! like:
//!
//! 1. the argument registers are pushed: RDI, RSI, RDX, RCX, R8, R9, and RAX (AL counts vector
//!    arguments). With the return address that is 64 bytes: the stack is aligned for a call;
//! 2. `prepare` is called with the function's number; it returns the real function's address;
//! 3. the registers are popped, followed by a jump to the real function.

use std::arch::naked_asm;
use std::ffi::{CStr, c_void};

use crate::process;

/// The functions in the order of their numbers. The first three end the process.
const NAMES: [&CStr; 11] = [
    c"_exit",
    c"_Exit",
    c"quick_exit",
    c"execve",
    c"execv",
    c"execvp",
    c"execvpe",
    c"execl",
    c"execlp",
    c"execle",
    c"fexecve",
];

/// Number of functions in [`NAMES`] that end the process.
const ENDINGS: usize = 3;

extern "C" fn prepare(number: usize) -> *mut c_void {
    if number < ENDINGS {
        process::at_exit();
    } else {
        process::before_exec();
    }
    // SAFETY: the name is a C string. The next object that defines it is the C library, so the
    // result is not null.
    unsafe { libc::dlsym(libc::RTLD_NEXT, NAMES[number].as_ptr()) }
}

macro_rules! forward {
    ($($number:literal $name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "mov edi, {number}",
                "call {prepare}",
                "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                number = const $number,
                prepare = sym prepare,
            )
        }
    )*};
}

forward! {
    0 _exit
    1 _Exit
    2 quick_exit
    3 execve
    4 execv
    5 execvp
    6 execvpe
    7 execl
    8 execlp
    9 execle
    10 fexecve
}
