//! A program that calls every function with random arguments. No call may panic, hang, or access
//! anything outside its directory.

use super::errno::Outcome;
use super::testing::{Program, Sandbox};
use super::types::{Abi, rights};

/// Pseudo-random numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Mostly a small descriptor.
    fn fd(&mut self) -> u32 {
        if self.next().is_multiple_of(20) {
            u32::MAX - self.next() as u32 % 3
        } else {
            self.next() as u32 % 12
        }
    }

    /// An address, a length or a count.
    fn word(&mut self) -> u32 {
        match self.next() % 8 {
            0 => u32::MAX - self.next() as u32 % 20,
            1 => Program::SIZE - self.next() as u32 % 20,
            2 => self.next() as u32 % Program::SIZE,
            _ => self.next() as u32 % 40,
        }
    }

    fn flags(&mut self) -> u32 {
        self.next() as u32 % 40
    }

    /// An offset, a size or a time. Small values are small, so that no test file fills a disk.
    fn long(&mut self) -> u64 {
        match self.next() % 6 {
            0 => u64::MAX - self.next() % 3,
            1 => i64::MAX as u64 - self.next() % 3,
            2 => 1 << 62,
            _ => self.next() % 5000,
        }
    }
}

/// A call of a random function.
fn call(sandbox: &Sandbox, n: &mut Numbers) -> Outcome {
    let (wasi, memory) = (&sandbox.wasi, &sandbox.program.memory());
    // Including some meaningful paths and flags, so that files are opened.
    let paths = ["a", "sub", "sub/a", "link", "../secret", ".", "", "/", "sub/../a", "loop"];
    let mut path = || {
        let chosen = paths[n.next() as usize % paths.len()];
        if n.next().is_multiple_of(10) {
            (n.word(), n.word())
        } else {
            sandbox.program.put(2000 + 100 * (n.next() as u32 % 2), chosen)
        }
    };
    let ((one, one_length), (two, two_length)) = (path(), path());
    let abi = if n.next().is_multiple_of(4) { Abi::Unstable } else { Abi::Preview1 };
    let rights = [0, rights::FD_READ, rights::FD_WRITE, rights::ALL][n.next() as usize % 4];
    match n.next() % 44 {
        0 => wasi.args_get(memory, n.word(), n.word()),
        1 => wasi.args_sizes_get(memory, n.word(), n.word()),
        2 => wasi.environ_get(memory, n.word(), n.word()),
        3 => wasi.environ_sizes_get(memory, n.word(), n.word()),
        4 => wasi.clock_res_get(memory, n.flags(), n.word()),
        5 => wasi.clock_time_get(memory, n.flags(), n.long(), n.word()),
        6 => wasi.fd_advise(memory, n.fd(), n.long(), n.long(), n.flags() % 8),
        7 => wasi.fd_allocate(memory, n.fd(), n.long(), n.long()),
        8 if n.next().is_multiple_of(4) => wasi.fd_close(memory, n.fd()),
        9 => wasi.fd_datasync(memory, n.fd()),
        10 => wasi.fd_fdstat_get(memory, n.fd(), n.word()),
        11 => wasi.fd_fdstat_set_flags(memory, n.fd(), n.flags()),
        12 => wasi.fd_fdstat_set_rights(memory, n.fd(), n.long(), n.long()),
        13 => wasi.fd_filestat_get(memory, abi, n.fd(), n.word()),
        14 => wasi.fd_filestat_set_size(memory, n.fd(), n.long()),
        15 => wasi.fd_filestat_set_times(memory, n.fd(), n.long(), n.long(), n.flags()),
        16 => wasi.fd_pread(memory, n.fd(), n.word(), n.word(), n.long(), n.word()),
        17 => wasi.fd_prestat_dir_name(memory, n.fd(), n.word(), n.word()),
        18 => wasi.fd_prestat_get(memory, n.fd(), n.word()),
        19 => wasi.fd_pwrite(memory, n.fd(), n.word(), n.word(), n.long(), n.word()),
        20 => wasi.fd_read(memory, n.fd(), n.word(), n.word(), n.word()),
        21 => wasi.fd_readdir(memory, n.fd(), n.word(), n.word(), n.long(), n.word()),
        22 if n.next().is_multiple_of(4) => wasi.fd_renumber(memory, n.fd(), n.fd()),
        23 => wasi.fd_seek(memory, abi, n.fd(), n.long().cast_signed(), n.flags() % 4, n.word()),
        24 => wasi.fd_sync(memory, n.fd()),
        25 => wasi.fd_tell(memory, n.fd(), n.word()),
        26 => wasi.fd_write(memory, n.fd(), n.word(), n.word(), n.word()),
        27 => wasi.path_create_directory(memory, n.fd(), one, one_length),
        28 => wasi.path_filestat_get(memory, abi, n.fd(), n.flags() % 3, one, one_length, n.word()),
        29 => {
            let (atim, mtim) = (n.long(), n.long());
            wasi.path_filestat_set_times(
                memory,
                n.fd(),
                n.flags() % 3,
                one,
                one_length,
                atim,
                mtim,
                n.flags(),
            )
        }
        30 => wasi.path_link(memory, n.fd(), n.flags() % 3, one, one_length, n.fd(), two, two_length),
        31..=34 => {
            let (lookup, oflags) = (n.flags() % 3, n.flags() % 18);
            wasi.path_open(memory, n.fd(), lookup, one, one_length, oflags, rights, 0, n.flags(), n.word())
        }
        35 => wasi.path_readlink(memory, n.fd(), one, one_length, n.word(), n.word(), n.word()),
        36 => wasi.path_remove_directory(memory, n.fd(), one, one_length),
        37 => wasi.path_rename(memory, n.fd(), one, one_length, n.fd(), two, two_length),
        38 => wasi.path_symlink(memory, one, one_length, n.fd(), two, two_length),
        39 => wasi.path_unlink_file(memory, n.fd(), one, one_length),
        40 => {
            // A clock or descriptor subscription; the remaining fields make it due immediately, or
            // an error.
            sandbox.program.put(4096, [0; 56]);
            sandbox.program.put(4096 + 8, [n.next() as u8 % 4]);
            sandbox.program.put(4096 + 16, n.fd().to_le_bytes());
            wasi.poll_oneoff(memory, (abi, 0), 4096, n.word(), 1, n.word())
        }
        41 => wasi.random_get(memory, n.word(), n.word()),
        42 => wasi.sock_recv(memory, n.fd(), n.word(), n.word(), n.flags(), n.word(), n.word()),
        _ => wasi.sched_yield(memory),
    }
}

#[test]
fn random_calls_do_not_harm_the_host() {
    let mut succeeded = 0;
    for seed in 0..20 {
        let sandbox = Sandbox::new();
        std::os::unix::fs::symlink("../secret", sandbox.host("link")).unwrap();
        std::os::unix::fs::symlink("loop", sandbox.host("loop")).unwrap();
        let numbers = &mut Numbers(seed);
        for _ in 0..2000 {
            succeeded += usize::from(call(&sandbox, numbers).is_ok());
        }
        assert_eq!(std::fs::read(sandbox.host("../secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read_dir(sandbox.host("..")).unwrap().count(), 2, "the outside is as it was");
    }
    assert!(succeeded > 4000, "only {succeeded} calls did what they were asked for");
}
