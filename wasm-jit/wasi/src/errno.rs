//! Failures of a call: an error code for the program, or the end of the program.

use std::io;

/// The result of a WASI call.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// The reason why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The program gets this error code and continues.
    Errno(Errno),
    /// The program passed an address that is not in its memory: it traps.
    OutOfBounds { address: u32, length: u64 },
    /// The program ends itself.
    Exit(wasm_jit::Exit),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Errno(error.into())
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Errno(Errno::of_host(error.raw_os_error()))
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Self::of_host(number),
            // cap-std's error for a path that leads out of its directory.
            None if error.kind() == io::ErrorKind::PermissionDenied => Self::Perm,
            None => Self::of_kind(error.kind()),
        }
    }
}

impl Errno {
    fn of_kind(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::NotFound => Self::Noent,
            io::ErrorKind::AlreadyExists => Self::Exist,
            io::ErrorKind::InvalidInput => Self::Inval,
            io::ErrorKind::BrokenPipe => Self::Pipe,
            io::ErrorKind::Interrupted => Self::Intr,
            io::ErrorKind::WouldBlock => Self::Again,
            io::ErrorKind::Unsupported => Self::Notsup,
            io::ErrorKind::OutOfMemory => Self::Nomem,
            _ => Self::Io,
        }
    }
}

/// Defines the enum in the order of the interface's codes, and the conversion from host errors.
macro_rules! errnos {
    ($($(#[$attribute:meta])* $name:ident $($host:ident)?,)*) => {
        /// An error code of the interface.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        #[allow(dead_code, reason = "the interface's complete list")]
        pub(crate) enum Errno {
            $($(#[$attribute])* $name,)*
        }

        impl Errno {
            fn of_host(number: i32) -> Self {
                match number {
                    $($(libc::$host => Self::$name,)?)*
                    _ => Self::Io,
                }
            }
        }
    };
}

errnos! {
    Success,
    TooBig E2BIG,
    Acces EACCES,
    Addrinuse EADDRINUSE,
    Addrnotavail EADDRNOTAVAIL,
    Afnosupport EAFNOSUPPORT,
    Again EAGAIN,
    Already EALREADY,
    Badf EBADF,
    Badmsg EBADMSG,
    Busy EBUSY,
    Canceled ECANCELED,
    Child ECHILD,
    Connaborted ECONNABORTED,
    Connrefused ECONNREFUSED,
    Connreset ECONNRESET,
    Deadlk EDEADLK,
    Destaddrreq EDESTADDRREQ,
    Dom EDOM,
    Dquot EDQUOT,
    Exist EEXIST,
    Fault EFAULT,
    Fbig EFBIG,
    Hostunreach EHOSTUNREACH,
    Idrm EIDRM,
    Ilseq EILSEQ,
    Inprogress EINPROGRESS,
    Intr EINTR,
    Inval EINVAL,
    Io EIO,
    Isconn EISCONN,
    Isdir EISDIR,
    Loop ELOOP,
    Mfile EMFILE,
    Mlink EMLINK,
    Msgsize EMSGSIZE,
    Multihop EMULTIHOP,
    Nametoolong ENAMETOOLONG,
    Netdown ENETDOWN,
    Netreset ENETRESET,
    Netunreach ENETUNREACH,
    Nfile ENFILE,
    Nobufs ENOBUFS,
    Nodev ENODEV,
    Noent ENOENT,
    Noexec ENOEXEC,
    Nolck ENOLCK,
    Nolink ENOLINK,
    Nomem ENOMEM,
    Nomsg ENOMSG,
    Noprotoopt ENOPROTOOPT,
    Nospc ENOSPC,
    Nosys ENOSYS,
    Notconn ENOTCONN,
    Notdir ENOTDIR,
    Notempty ENOTEMPTY,
    Notrecoverable ENOTRECOVERABLE,
    Notsock ENOTSOCK,
    Notsup ENOTSUP,
    Notty ENOTTY,
    Nxio ENXIO,
    Overflow EOVERFLOW,
    Ownerdead EOWNERDEAD,
    Perm EPERM,
    Pipe EPIPE,
    Proto EPROTO,
    Protonosupport EPROTONOSUPPORT,
    Prototype EPROTOTYPE,
    Range ERANGE,
    Rofs EROFS,
    Spipe ESPIPE,
    Srch ESRCH,
    Stale ESTALE,
    Timedout ETIMEDOUT,
    Txtbsy ETXTBSY,
    Xdev EXDEV,
    Notcapable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_interface() {
        let known = [
            (Errno::Success, 0),
            (Errno::Badf, 8),
            (Errno::Exist, 20),
            (Errno::Inval, 28),
            (Errno::Noent, 44),
            (Errno::Notdir, 54),
            (Errno::Notsup, 58),
            (Errno::Perm, 63),
            (Errno::Spipe, 70),
            (Errno::Notcapable, 76),
        ];
        for (errno, code) in known {
            assert_eq!(errno as u16, code, "{errno:?}");
        }
    }

    #[test]
    fn host_errors_are_translated() {
        #[track_caller]
        fn check(error: io::Error, expected: Errno) {
            assert_eq!(Errno::from(error), expected);
        }
        check(io::Error::from_raw_os_error(libc::ENOENT), Errno::Noent);
        check(io::Error::from_raw_os_error(libc::EPERM), Errno::Perm);
        check(io::Error::from_raw_os_error(libc::EACCES), Errno::Acces);
        check(io::Error::from_raw_os_error(99_999), Errno::Io);
        check(io::ErrorKind::PermissionDenied.into(), Errno::Perm);
        check(io::ErrorKind::InvalidInput.into(), Errno::Inval);
        check(io::ErrorKind::BrokenPipe.into(), Errno::Pipe);
    }
}
