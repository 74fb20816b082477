//! Text that is larger than the process may make a file (`ulimit -f`): the kernel ends a process
//! that exceeds this limit.

mod common;

use common::alone::alone;
use common::{A, B, INSIDE, STRADDLING, call, functions, mov_eax, with_window};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::wait::{WaitStatus, waitpid};
use wordpatch::text::{forget, is_shared_with_parent, unshare};
use wordpatch::{FetchWindow, patch};

/// Patches the sites in a forked child, which must not change them in this process.
fn patch_in_child(sites: &[usize], old: u32, new: u32) {
    // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let (old, new_code) = (mov_eax(old), mov_eax(new));
            // SAFETY: the child has one thread; each site is one instruction.
            let holds = is_shared_with_parent()
                && unsafe { patch(sites[0], &old, &new_code) }.is_err()
                && unsafe { unshare() }.is_ok()
                && sites.iter().all(|site| unsafe { patch(*site, &old, &new_code) }.is_ok())
                && sites.iter().all(|site| call(*site) == new);
            // SAFETY: ends the child.
            unsafe { libc::_exit(if holds { 0 } else { 1 }) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert!(sites.iter().all(|site| call(*site) == old));
}

#[test]
fn text_beyond_the_limit_of_file_sizes_is_patched() {
    alone("text_beyond_the_limit_of_file_sizes_is_patched", || {
        let _model = with_window(FetchWindow::Bytes8);
        setrlimit(Resource::RLIMIT_FSIZE, 0, 0).unwrap();
        let sites = [functions(1, STRADDLING), functions(1, INSIDE)].concat();
        for site in &sites {
            // SAFETY: each site is one instruction that no other thread executes.
            unsafe { patch(*site, &mov_eax(A), &mov_eax(B)) }.unwrap();
            assert_eq!(call(*site), B);
        }
        patch_in_child(&sites, B, 7);
        // Text that is found again is known to be shared with children.
        sites.iter().for_each(|site| forget(&(*site..site + 1)));
        for site in &sites {
            // SAFETY: as above.
            unsafe { patch(*site, &mov_eax(B), &mov_eax(A)) }.unwrap();
        }
        patch_in_child(&sites, A, B);
    });
}
