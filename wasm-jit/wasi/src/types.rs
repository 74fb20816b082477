//! The interface's numbers and records, and their layout in the program's memory.

use rustix::fs::Stat;

/// The interface through which a call was made. The older one, `wasi_unstable`, has a narrower link
/// count in `filestat`, an identifier in clock subscriptions, and other numbers for the origins of
/// `fd_seek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abi {
    Unstable,
    Preview1,
}

/// Defines flags, in the interface's order.
macro_rules! bits {
    ($($(#[$attribute:meta])* $module:ident: $type:ident { $($name:ident,)* })*) => {
        $(
            $(#[$attribute])*
            #[allow(dead_code, reason = "the interface's complete list")]
            pub(crate) mod $module {
                #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
                enum Position { $($name,)* }
                $(pub(crate) const $name: $type = 1 << Position::$name as $type;)*
                pub(crate) const ALL: $type = $($name)|*;
            }
        )*
    };
}

bits! {
    /// Rights of a descriptor.
    rights: u64 {
        FD_DATASYNC, FD_READ, FD_SEEK, FD_FDSTAT_SET_FLAGS, FD_SYNC, FD_TELL, FD_WRITE, FD_ADVISE, FD_ALLOCATE,
        PATH_CREATE_DIRECTORY, PATH_CREATE_FILE, PATH_LINK_SOURCE, PATH_LINK_TARGET, PATH_OPEN, FD_READDIR,
        PATH_READLINK, PATH_RENAME_SOURCE, PATH_RENAME_TARGET, PATH_FILESTAT_GET, PATH_FILESTAT_SET_SIZE,
        PATH_FILESTAT_SET_TIMES, FD_FILESTAT_GET, FD_FILESTAT_SET_SIZE, FD_FILESTAT_SET_TIMES, PATH_SYMLINK,
        PATH_REMOVE_DIRECTORY, PATH_UNLINK_FILE, POLL_FD_READWRITE, SOCK_SHUTDOWN, SOCK_ACCEPT,
    }
    /// Flags of a descriptor.
    fdflags: u32 { APPEND, DSYNC, NONBLOCK, RSYNC, SYNC, }
    /// Flags for opening a file.
    oflags: u32 { CREAT, DIRECTORY, EXCL, TRUNC, }
    /// Selects the times to set, and their values.
    fstflags: u32 { ATIM, ATIM_NOW, MTIM, MTIM_NOW, }
    /// Flags for looking up a path.
    lookupflags: u32 { SYMLINK_FOLLOW, }
    /// Flags of a clock subscription.
    subclockflags: u32 { ABSTIME, }
    /// State of a descriptor that is ready.
    eventrwflags: u32 { HANGUP, }
}

/// Rights of directories.
pub(crate) const DIRECTORY_RIGHTS: u64 = {
    use rights::*;
    PATH_CREATE_DIRECTORY
        | PATH_CREATE_FILE
        | PATH_LINK_SOURCE
        | PATH_LINK_TARGET
        | PATH_OPEN
        | FD_READDIR
        | PATH_READLINK
        | PATH_RENAME_SOURCE
        | PATH_RENAME_TARGET
        | PATH_SYMLINK
        | PATH_REMOVE_DIRECTORY
        | PATH_UNLINK_FILE
        | PATH_FILESTAT_GET
        | PATH_FILESTAT_SET_TIMES
        | FD_FILESTAT_GET
        | FD_FILESTAT_SET_TIMES
};

/// Rights inherited by files opened in a directory: all rights of directories and files.
pub(crate) const INHERITED_RIGHTS: u64 = {
    use rights::*;
    DIRECTORY_RIGHTS
        | FD_DATASYNC
        | FD_READ
        | FD_SEEK
        | FD_FDSTAT_SET_FLAGS
        | FD_SYNC
        | FD_TELL
        | FD_WRITE
        | FD_ADVISE
        | FD_ALLOCATE
        | FD_FILESTAT_SET_SIZE
        | POLL_FD_READWRITE
};

/// Types of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Filetype {
    Unknown,
    BlockDevice,
    CharacterDevice,
    Directory,
    RegularFile,
    SocketStream = 6,
    SymbolicLink,
}

impl From<rustix::fs::FileType> for Filetype {
    fn from(host: rustix::fs::FileType) -> Self {
        use rustix::fs::FileType as Host;
        match host {
            Host::RegularFile => Self::RegularFile,
            Host::Directory => Self::Directory,
            Host::Symlink => Self::SymbolicLink,
            Host::CharacterDevice => Self::CharacterDevice,
            Host::BlockDevice => Self::BlockDevice,
            Host::Socket => Self::SocketStream,
            Host::Fifo | Host::Unknown => Self::Unknown,
        }
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filestat {
    pub dev: u64,
    pub ino: u64,
    pub filetype: Filetype,
    pub nlink: u64,
    pub size: u64,
    /// The times of last access, of modification of the data, and of change of the inode, in
    /// nanoseconds since 1970.
    pub atim: u64,
    pub mtim: u64,
    pub ctim: u64,
}

/// Nanoseconds since 1970; 0 for earlier times.
pub(crate) fn timestamp(seconds: i64, nanoseconds: i64) -> u64 {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.cast_unsigned())
}

impl From<Stat> for Filestat {
    fn from(stat: Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            filetype: rustix::fs::FileType::from_raw_mode(stat.st_mode).into(),
            nlink: stat.st_nlink,
            size: stat.st_size.cast_unsigned(),
            atim: timestamp(stat.st_atime, stat.st_atime_nsec as i64),
            mtim: timestamp(stat.st_mtime, stat.st_mtime_nsec as i64),
            ctim: timestamp(stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }
}

/// A record of at most `N` bytes, built field by field.
struct Record<const N: usize>([u8; N]);

impl<const N: usize> Record<N> {
    fn new() -> Self {
        Self([0; N])
    }

    fn put<const M: usize>(mut self, at: usize, field: [u8; M]) -> Self {
        self.0[at..at + M].copy_from_slice(&field);
        self
    }
}

impl Filestat {
    /// The record; the older interface uses its first [`Self::size_in`] bytes.
    pub(crate) fn encode(&self, abi: Abi) -> Vec<u8> {
        let head = Record::<64>::new()
            .put(0, self.dev.to_le_bytes())
            .put(8, self.ino.to_le_bytes())
            .put(16, [self.filetype as u8]);
        let (head, at) = match abi {
            Abi::Unstable => (head.put(20, u32::try_from(self.nlink).unwrap_or(u32::MAX).to_le_bytes()), 24),
            Abi::Preview1 => (head.put(24, self.nlink.to_le_bytes()), 32),
        };
        let whole = head
            .put(at, self.size.to_le_bytes())
            .put(at + 8, self.atim.to_le_bytes())
            .put(at + 16, self.mtim.to_le_bytes())
            .put(at + 24, self.ctim.to_le_bytes());
        whole.0[..at + 32].to_vec()
    }
}

/// Attributes of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fdstat {
    pub filetype: Filetype,
    pub flags: u32,
    pub rights: u64,
    pub inheriting: u64,
}

impl Fdstat {
    pub(crate) fn encode(&self) -> [u8; 24] {
        Record::new()
            .put(0, [self.filetype as u8])
            .put(2, (self.flags as u16).to_le_bytes())
            .put(8, self.rights.to_le_bytes())
            .put(16, self.inheriting.to_le_bytes())
            .0
    }
}

/// The header of a directory entry; its name follows.
pub(crate) fn encode_dirent(next: u64, ino: u64, name_length: u32, filetype: Filetype) -> [u8; 24] {
    Record::new()
        .put(0, next.to_le_bytes())
        .put(8, ino.to_le_bytes())
        .put(16, name_length.to_le_bytes())
        .put(20, [filetype as u8])
        .0
}

/// A subscription of `poll_oneoff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub userdata: u64,
    pub what: Awaited,
}

/// The kinds of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Clock { id: u32, timeout: u64, flags: u32 },
    Read { fd: u32 },
    Write { fd: u32 },
}

impl Awaited {
    /// The number of the event's type.
    fn tag(self) -> u8 {
        match self {
            Self::Clock { .. } => 0,
            Self::Read { .. } => 1,
            Self::Write { .. } => 2,
        }
    }
}

impl Subscription {
    pub(crate) fn size(abi: Abi) -> u32 {
        match abi {
            Abi::Unstable => 56,
            Abi::Preview1 => 48,
        }
    }

    /// `None` if there is no such kind. The record has [`Self::size`] bytes; more may follow.
    pub(crate) fn decode(record: &[u8; 56], abi: Abi) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| record[at + byte]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| record[at + byte]));
        let clock = match abi {
            Abi::Unstable => 24,
            Abi::Preview1 => 16,
        };
        let what = match record[8] {
            0 => Awaited::Clock {
                id: u32_at(clock),
                timeout: u64_at(clock + 8),
                flags: u32_at(clock + 24) & 0xffff,
            },
            1 => Awaited::Read { fd: u32_at(16) },
            2 => Awaited::Write { fd: u32_at(16) },
            _ => return None,
        };
        Some(Self { userdata: u64_at(0), what })
    }
}

/// An event of `poll_oneoff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub subscription: Subscription,
    pub error: super::errno::Errno,
    /// Number of bytes that can be read or written.
    pub bytes: u64,
    pub flags: u32,
}

impl Event {
    pub(crate) const SIZE: u32 = 32;

    pub(crate) fn encode(&self) -> [u8; Self::SIZE as usize] {
        Record::new()
            .put(0, self.subscription.userdata.to_le_bytes())
            .put(8, (self.error as u16).to_le_bytes())
            .put(10, [self.subscription.what.tag()])
            .put(16, self.bytes.to_le_bytes())
            .put(24, (self.flags as u16).to_le_bytes())
            .0
    }
}

#[cfg(test)]
mod tests {
    use super::super::errno::Errno;
    use super::*;

    #[test]
    fn rights_have_the_interfaces_positions() {
        let known = [
            (rights::FD_READ, 1),
            (rights::FD_WRITE, 6),
            (rights::FD_READDIR, 14),
            (rights::SOCK_ACCEPT, 29),
        ];
        for (right, position) in known {
            assert_eq!(right, 1 << position);
        }
        assert_eq!(rights::ALL, (1 << 30) - 1);
        assert_eq!((fdflags::ALL, oflags::ALL, fstflags::ALL), (31, 15, 15));
    }

    #[test]
    fn filestat_has_both_layouts() {
        let stat = Filestat {
            dev: 1,
            ino: 2,
            filetype: Filetype::SymbolicLink,
            nlink: 3,
            size: 4,
            atim: 5,
            mtim: 6,
            ctim: 7,
        };
        let new = stat.encode(Abi::Preview1);
        assert_eq!(new.len(), 64);
        let words: Vec<u64> =
            new.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [1, 2, 7, 3, 4, 5, 6, 7]);
        let old = stat.encode(Abi::Unstable);
        let words: Vec<u64> =
            old.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [1, 2, 7 | 3 << 32, 4, 5, 6, 7]);
    }

    #[test]
    fn subscriptions_have_both_layouts() {
        let mut record = [0; 56];
        record[0] = 9;
        record[16] = 1; // clock 1, or the older identifier
        record[24] = 77; // timeout, or the older clock
        record[40] = 1; // flags, or the older precision
        let clock =
            |id, timeout, flags| Subscription { userdata: 9, what: Awaited::Clock { id, timeout, flags } };
        assert_eq!(Subscription::decode(&record, Abi::Preview1), Some(clock(1, 77, 1)));
        assert_eq!(Subscription::decode(&record, Abi::Unstable), Some(clock(77, 0, 0)));
        record[8] = 2;
        let expected = Subscription { userdata: 9, what: Awaited::Write { fd: 1 } };
        assert_eq!(Subscription::decode(&record, Abi::Preview1), Some(expected));
        assert_eq!(Subscription::decode(&record, Abi::Unstable), Some(expected));
        record[8] = 3;
        assert_eq!(Subscription::decode(&record, Abi::Preview1), None);
    }

    #[test]
    fn an_event_identifies_its_subscription() {
        let subscription = Subscription { userdata: 0x0102, what: Awaited::Read { fd: 0 } };
        let event = Event { subscription, error: Errno::Badf, bytes: 5, flags: eventrwflags::HANGUP };
        let bytes = event.encode();
        assert_eq!(bytes[..16], [2, 1, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..], [5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
