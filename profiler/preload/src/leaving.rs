//! Functions of the C library that end the process or replace its program: each writes the report
//! first, then continues to the real function with the same arguments.
//!
//! A forwarder does not know its function's arguments, whose number varies for `execl` and the
//! like:
//!
//! 1. the argument registers are pushed: RDI, RSI, RDX, RCX, R8, R9, and RAX (AL counts vector
//!    arguments). With the return address that is 64 bytes: the stack is aligned for a call;
//! 2. `prepare` is called with the function's number and the registers; it returns the real
//!    function's address;
//! 3. the registers are popped, followed by a jump to the real function.
//!
//! All of these functions may be called by signal handlers, and in children of `vfork`.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;

use crate::process;

/// What a function does.
#[derive(Clone, Copy)]
enum Effect {
    /// It ends the process.
    Ends,
    /// It executes the program that its arguments name.
    Executes(Program),
    /// It continues in a child, and ends the process in the C library.
    Forks,
}

/// How the arguments of a function name a program.
#[derive(Clone, Copy)]
enum Program {
    /// The first is a path.
    Path,
    /// The first is a path, or a name that is searched for in `PATH`.
    Name,
    /// The first is a descriptor.
    Descriptor,
    /// The first is the descriptor of a directory, the second a path, the fifth has flags.
    Relative,
}

use Effect::{Ends, Executes, Forks};

/// The functions in the order of their numbers.
const FUNCTIONS: [(&CStr, Effect); 13] = [
    (c"_exit", Ends),
    (c"_Exit", Ends),
    (c"quick_exit", Ends),
    (c"execve", Executes(Program::Path)),
    (c"execv", Executes(Program::Path)),
    (c"execvp", Executes(Program::Name)),
    (c"execvpe", Executes(Program::Name)),
    (c"execl", Executes(Program::Path)),
    (c"execlp", Executes(Program::Name)),
    (c"execle", Executes(Program::Path)),
    (c"fexecve", Executes(Program::Descriptor)),
    (c"execveat", Executes(Program::Relative)),
    (c"daemon", Forks),
];

/// The pushed registers, the last one first.
type Registers = [usize; 7];

/// Where some of them are.
const R8: usize = 2;
const RSI: usize = 5;
const RDI: usize = 6;

extern "C" fn prepare(number: usize, registers: &Registers) -> *mut c_void {
    let (name, effect) = FUNCTIONS[number];
    match effect {
        Ends => process::at_exit(),
        // SAFETY: the forwarder pushes the arguments of the function with this number.
        Executes(program) => process::before_exec(|| unsafe { program.may_exist(registers) }),
        // As before exec, the process goes on if the function fails.
        Forks => process::before_exec(|| true),
    }
    // SAFETY: the name is a C string. The next object that defines it is the C library.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // The only one that not every C library has.
    if function.is_null() { execveat_by_system_call as *mut c_void } else { function }
}

/// `execveat` where the C library does not have it: before glibc 2.34.
unsafe extern "C" fn execveat_by_system_call(
    directory: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { libc::syscall(libc::SYS_execveat, directory, path, arguments, environment, flags) as c_int }
}

impl Program {
    /// Whether there may be a program. If not, the function will fail.
    ///
    /// # Safety
    /// The registers contain the arguments of a function that names a program in this way.
    unsafe fn may_exist(self, registers: &Registers) -> bool {
        let descriptor = registers[RDI] as c_int;
        let [first, second] = [RDI, RSI].map(|register| registers[register] as *const c_char);
        match self {
            Program::Path => may_be_program(libc::AT_FDCWD, first, 0),
            // SAFETY: the real function reads the string as well.
            Program::Name => unsafe { may_be_found(first) },
            Program::Descriptor => may_be_program(descriptor, c"".as_ptr(), libc::AT_EMPTY_PATH),
            Program::Relative => may_be_program(descriptor, second, registers[R8] as c_int),
        }
    }
}

/// Whether this may be an executable file. Only the kernel reads the path, and checks it.
fn may_be_program(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    let flags = flags & (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW);
    let mut file = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: memory of the right type.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, file.as_mut_ptr(), flags) };
    if result != 0 {
        // Other errors are those of filters of system calls, and of file systems.
        let is_missing = [
            libc::ENOENT,
            libc::ENOTDIR,
            libc::EACCES,
            libc::ELOOP,
            libc::ENAMETOOLONG,
            libc::EBADF,
            libc::EFAULT,
        ];
        let error = io::Error::last_os_error().raw_os_error();
        return !error.is_some_and(|error| is_missing.contains(&error));
    }
    // SAFETY: the call has succeeded.
    let mode = unsafe { file.assume_init() }.st_mode;
    mode & libc::S_IFMT == libc::S_IFREG && mode & 0o111 != 0
}

/// Whether an executable file may be found by this name. A separate function, because it needs
/// more stack than the others.
///
/// # Safety
/// The name is a C string or null.
#[inline(never)]
unsafe fn may_be_found(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: the caller's obligation.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    if bytes.contains(&b'/') {
        return may_be_program(libc::AT_FDCWD, name, 0);
    }
    // SAFETY: a C string. The real function reads the variable as well.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: the value of a variable is a C string.
    let path = if path.is_null() { c"/bin:/usr/bin" } else { unsafe { CStr::from_ptr(path) } };
    // Signal handlers cannot allocate.
    let mut candidate = [0_u8; libc::PATH_MAX as usize];
    !bytes.is_empty()
        && path.to_bytes().split(|byte| *byte == b':').any(|directory| {
            let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
            let mut length = 0;
            for part in [directory, separator, bytes, b"\0"] {
                let Some(place) = candidate.get_mut(length..length + part.len()) else { return false };
                place.copy_from_slice(part);
                length += part.len();
            }
            may_be_program(libc::AT_FDCWD, candidate.as_ptr().cast(), 0)
        })
}

macro_rules! forward {
    ($($number:literal $name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "mov edi, {number}",
                "mov rsi, rsp",
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
    11 execveat
    12 daemon
}
