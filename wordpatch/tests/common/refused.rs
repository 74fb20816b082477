//! System calls that a seccomp filter refuses.

/// From now on, this system call fails with EPERM in all threads; always, or with this first
/// argument.
pub fn refuse_system_call(number: libc::c_long, first_argument: Option<libc::c_int>) {
    /// The offset of the first argument in seccomp_data; the system call's number is at offset 0.
    const FIRST_ARGUMENT: u32 = 16;
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let allow = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
    let goes_on_if = |k: u32| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 1,
        jf: 0,
        k,
    };
    let mut filter = vec![load(0), goes_on_if(number as u32), allow];
    if let Some(argument) = first_argument {
        filter.extend([load(FIRST_ARGUMENT), goes_on_if(argument as u32), allow]);
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter is valid during the call; the process belongs to the test.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, all_threads) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, all_threads, &program), 0, "no seccomp here");
    }
}
