//! Names of things: files, stores, logs, clients, nodes, managers.

use std::fmt;
use std::str::FromStr;

/// A file's identity: 16 bits volume, 48 bits index number. Never reused; also the inode number
/// that applications see.
///
/// The index number is `slot << SLOT_SHIFT | counter`, so that a range of numbers from one slot is
/// contiguous and its manager is known from the number alone (docs/core.md#manager).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(u64);

/// Number of slots: the manager map assigns each of them to a manager.
pub const SLOT_COUNT: u16 = 1024;
/// Bits of the index number below the slot.
pub const SLOT_SHIFT: u32 = 38;

impl FileId {
    /// The root directory of volume 0, which is also FUSE's root inode.
    pub const ROOT: FileId = FileId(1);

    /// From the number that applications, kernels and disks see.
    pub const fn new(raw: u64) -> Self {
        FileId(raw)
    }
    /// The number itself.
    pub const fn raw(self) -> u64 {
        self.0
    }
    /// The volume this file belongs to.
    pub const fn volume(self) -> u16 {
        (self.0 >> 48) as u16
    }
    /// The index number within the volume.
    pub const fn index(self) -> u64 {
        self.0 & 0xffff_ffff_ffff
    }
    /// The slot that this file belongs to.
    pub const fn slot(self) -> u16 {
        (self.index() >> SLOT_SHIFT) as u16
    }
    /// The file id of a counter value in a slot of a volume.
    pub const fn in_slot(volume: u16, slot: u16, counter: u64) -> Self {
        FileId((volume as u64) << 48 | (slot as u64) << SLOT_SHIFT | counter)
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "f{:x}", self.0)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($raw:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($raw);
        impl $name {
            /// From its number.
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }
            /// Its number.
            pub const fn raw(self) -> $raw {
                self.0
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A storage server of the file system.
    StoreId(u16), "store-"
);
id!(
    /// A log: append-only, written by exactly one writer (a client, a manager or a cleaner).
    LogId(u32), "log-"
);
id!(
    /// A client of the core.
    ClientId(u32), "client-"
);
id!(
    /// A node: one process with a data folder and an identity. The first node of a file system has
    /// number 0.
    NodeId(u16), "node-"
);
id!(
    /// A manager, which serves some of the slots.
    ManagerId(u16), "manager-"
);

/// The identity of one file system; every store and every fragment carries it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FsUuid(pub [u8; 16]);

impl fmt::Display for FsUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

/// A text is not the identity of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoFsUuid;

impl fmt::Display for NoFsUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the identity of a file system")
    }
}

impl std::error::Error for NoFsUuid {}

impl FromStr for FsUuid {
    type Err = NoFsUuid;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<FsUuid, NoFsUuid> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| NoFsUuid)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NoFsUuid)?;
        }
        let uuid = FsUuid(bytes);
        if uuid.to_string() == text { Ok(uuid) } else { Err(NoFsUuid) }
    }
}

impl fmt::Debug for FsUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
