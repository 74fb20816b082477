//! Behaviour if the kernel refuses `membarrier`. The only test of its process: the filter is
//! permanent.

mod common;

use callpatch::{CallSite, Clobbers, Error, Shape, State, retarget};
use common::{functions, with_window};
use wordpatch::FetchWindow;

/// From now on, `membarrier` fails with EPERM on every thread.
fn refuse_membarrier() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let is_membarrier = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: libc::SYS_membarrier as u32,
    };
    let mut filter = [
        // The system call's number is the first word of seccomp_data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_membarrier,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter is valid for the call; the process belongs to the test.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program),
            0,
            "no seccomp here"
        );
    }
}

#[test]
fn sites_that_need_a_wait_keep_their_target_and_the_others_are_led() {
    let _model = with_window(FetchWindow::Bytes8);
    refuse_membarrier();
    let functions = functions(&[(Shape::Call, 5), (Shape::Call, 8), (Shape::Jump, 8)]);
    // SAFETY: text that belongs to the test, correct with and without its calls, to either target.
    let (sites, results) = unsafe {
        let site =
            |f: &common::Function| (CallSite::decode(f.site, Clobbers::CallerSaved).unwrap(), f.targets[1]);
        let sites: Vec<_> = functions.iter().map(site).collect();
        let results = retarget(&sites);
        (sites, results)
    };
    for number in [0, 2] {
        let is_refused = matches!(&results[number], Err(Error::Text(wordpatch::Error::MembarrierRefused { source })) if source.raw_os_error() == Some(libc::EPERM));
        assert!(is_refused, "{:?}", results[number]);
        let (old, _) = sites[number];
        assert_eq!((old.state().unwrap(), functions[number].run()), (State::Inactive, [0, 0]));
        old.activate().unwrap();
        assert_eq!(functions[number].run(), [1, 0], "a site that was refused has kept its target");
    }
    // Inside a window, the inactive form does not contain the operand: no wait is needed.
    results[1].as_ref().unwrap().activate().unwrap();
    assert_eq!(functions[1].run(), [0, 1]);

    // If a wait is refused, nothing is stored, and a foreign byte in its place is not detected.
    let (old, target) = sites[0];
    let byte = functions[0].write(4, 0x77);
    // SAFETY: as above.
    let refused = unsafe { retarget(&[(old, target)]) }.pop().unwrap();
    assert!(matches!(refused, Err(Error::Text(wordpatch::Error::MembarrierRefused { .. }))), "{refused:?}");
    functions[0].write(4, byte);
}
