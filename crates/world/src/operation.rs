//! The operations of workers, and how the seed chooses them.
//!
//! Operations name files by short paths over few names, and open files by slot. So an operation
//! means the same on any file system, and often meets files that earlier operations left or that
//! other workers are using.

use host::SplitMix64;
use vfs::fs::{Cred, Fallocate, OpenFlags, RenameFlags, Seek, XattrMode};

/// Open files and directories that a worker can have at once.
pub const SLOT_COUNT: usize = 5;
/// Bytes of one write or copy, at most: fewer than the client makes atomic in a crash, for every
/// geometry.
const DATA_LEN_MAX: u64 = 400 << 10;
/// Users besides the superuser. Each has a group of its own, and [`SHARED_GROUP`].
pub const USER_COUNT: u32 = 2;
const FIRST_USER: u32 = 1000;
const SHARED_GROUP: u32 = 50;
/// Names that most operations choose from.
const COMMON_NAMES: u64 = 6;
/// Those of them that mostly mean directories.
const DIRECTORY_NAMES: u64 = 2;
const DEPTH_MAX: u64 = 3;

/// A path: the numbers of its names.
pub type Path = Vec<u16>;

/// One operation of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Create { path: Path, slot: usize, mode: u32, append: bool },
    Open { path: Path, slot: usize, flags: OpenFlags },
    OpenDirectory { path: Path, slot: usize },
    Close { slot: usize },
    Write { slot: usize, offset: u64, len: u64, fill: u64 },
    Read { slot: usize, offset: u64, len: u32 },
    Allocate { slot: usize, offset: u64, len: u64, mode: Fallocate },
    Seek { slot: usize, offset: u64, whence: Seek },
    Copy { from: usize, offset: u64, to: usize, to_offset: u64, len: u64 },
    Fsync { slot: usize, data_only: bool },
    Truncate { path: Path, size: u64 },
    TruncateOpen { slot: usize, size: u64 },
    Mode { path: Path, mode: u32 },
    Owner { path: Path, uid: Option<u32>, gid: Option<u32> },
    Access { path: Path, mask: u32 },
    MakeNode { path: Path, mode: u32 },
    MakeDirectory { path: Path, mode: u32 },
    Symlink { path: Path, target_len: usize },
    Link { path: Path, to: Path },
    Unlink { path: Path },
    RemoveDirectory { path: Path },
    Rename { path: Path, to: Path, flags: RenameFlags },
    Stat { path: Path },
    ReadLink { path: Path },
    List { path: Path, page: usize },
    SetXattr { path: Path, name: u8, len: usize, mode: XattrMode },
    GetXattr { path: Path, name: u8 },
    RemoveXattr { path: Path, name: u8 },
    ListXattr { path: Path },
    Sync,
}

/// The bytes of a name; every seventh is as long as names can be.
pub fn name(number: u16) -> Vec<u8> {
    let name = format!("n{number}");
    match number % 7 {
        6 => format!("{name}-{}", "x".repeat(vfs::fs::NAME_LEN_MAX - name.len() - 1)).into(),
        _ => name.into(),
    }
}

/// The bytes that a write with this `fill` writes.
pub fn data(fill: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len as usize + 8);
    let mut word = fill | 1;
    while (out.len() as u64) < len {
        out.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(fill | 1);
    }
    out.truncate(len as usize);
    out
}

/// A user: 0 is the superuser, the others are ordinary.
pub fn user(number: u32) -> Cred {
    match number {
        0 => Cred::ROOT,
        _ => {
            let id = FIRST_USER + number;
            Cred { uid: id, gid: id, groups: vec![SHARED_GROUP] }
        }
    }
}

/// Chooses a worker's operations.
pub struct Generator {
    random: SplitMix64,
    block_size: u64,
    /// Write much.
    fill: bool,
    /// The rest of a series of new names in one directory, which makes it split.
    series: Option<(Path, u16, u16)>,
    /// Number of operations that come next and make or open something.
    making: u64,
}

/// Number of operations that make or open something, with which a worker begins.
const MAKING_AT_FIRST: u64 = 8;

impl Generator {
    /// A generator whose choices follow from `seed`; with `fill` it writes so much that space runs
    /// out.
    pub fn new(seed: u64, block_size: u32, fill: bool) -> Self {
        Generator {
            random: SplitMix64::new(seed),
            block_size: block_size.into(),
            fill,
            series: None,
            making: MAKING_AT_FIRST,
        }
    }

    /// A number below `bound`, for the worker's own choices.
    pub fn below(&self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Makes the next operations make or open something: an operation found nothing open.
    pub fn want_open_files(&mut self) {
        self.making = 3;
    }

    /// The user of the next operation.
    pub fn choose_user(&self) -> u32 {
        if self.fill { 0 } else { self.below(u64::from(USER_COUNT) + 1) as u32 }
    }

    /// The next operation.
    pub fn choose(&mut self) -> Operation {
        if let Some((dir, at, end)) = self.series.take() {
            if at + 1 < end {
                self.series = Some((dir.clone(), at + 1, end));
            }
            let path = [&dir[..], &[at]].concat();
            return Operation::MakeNode { path, mode: 0o644 };
        }
        let slot = self.below(SLOT_COUNT as u64) as usize;
        let mut path = self.path();
        if self.fill && !self.one_in(4) {
            let offset = self.below(400) * (DATA_LEN_MAX / self.block_size) * self.block_size;
            return Operation::Write { slot, offset, len: DATA_LEN_MAX, fill: self.below(u64::MAX) };
        }
        let choice = if self.making > 0 { [0, 8, 60, 64][self.below(4) as usize] } else { self.below(110) };
        self.making = self.making.saturating_sub(1);
        match choice {
            0..14 | 60..64 | 70..72 => path = self.path_to(false),
            14..16 | 64..70 | 81..83 => path = self.path_to(true),
            _ => {}
        }
        match choice {
            0..8 => Operation::Create { path, slot, mode: self.file_mode(), append: self.one_in(4) },
            8..14 => Operation::Open { path, slot, flags: self.flags() },
            14..16 => Operation::OpenDirectory { path, slot },
            16..21 => Operation::Close { slot },
            21..36 => {
                let (offset, len, fill) = (self.offset(), self.len(), self.below(u64::MAX));
                Operation::Write { slot, offset, len, fill }
            }
            36..42 => Operation::Read { slot, offset: self.offset(), len: (self.len() * 2) as u32 },
            42..46 => {
                let mode = [
                    Fallocate::Allocate,
                    Fallocate::AllocateKeepSize,
                    Fallocate::PunchHole,
                    Fallocate::PunchHole,
                    Fallocate::ZeroRange,
                    Fallocate::ZeroRangeKeepSize,
                ][self.below(6) as usize];
                Operation::Allocate { slot, offset: self.offset(), len: self.len(), mode }
            }
            46..48 => {
                let whence = if self.one_in(2) { Seek::Data } else { Seek::Hole };
                Operation::Seek { slot, offset: self.offset(), whence }
            }
            48..51 => {
                let to = self.below(SLOT_COUNT as u64) as usize;
                let (offset, to_offset, len) = (self.offset(), self.offset(), self.len());
                Operation::Copy { from: slot, offset, to, to_offset, len }
            }
            51..56 => Operation::Fsync { slot, data_only: self.one_in(2) },
            56..59 => {
                let size = self.offset() + if self.one_in(2) { self.below(9) } else { 0 };
                Operation::Truncate { path, size }
            }
            59..60 => Operation::Mode { path, mode: self.file_mode() },
            60..64 => Operation::MakeNode { path, mode: self.file_mode() },
            64..70 => {
                let mode = [0o755, 0o777, 0o777, 0o1777, 0o700, 0o770][self.below(6) as usize];
                Operation::MakeDirectory { path, mode }
            }
            70..72 => {
                let target_len = if self.one_in(4) { 4000 } else { 1 + self.below(60) as usize };
                Operation::Symlink { path, target_len }
            }
            72..76 => Operation::Link { path, to: self.path() },
            76..81 => Operation::Unlink { path },
            81..83 => Operation::RemoveDirectory { path },
            83..90 => {
                let flags = match self.below(6) {
                    0 => RenameFlags { no_replace: true, exchange: false },
                    1 => RenameFlags { no_replace: false, exchange: true },
                    _ => RenameFlags::default(),
                };
                Operation::Rename { path, to: self.path(), flags }
            }
            90..92 => Operation::Stat { path },
            92..93 => Operation::ReadLink { path },
            93..95 => {
                let path = if self.one_in(2) { Vec::new() } else { path };
                Operation::List { path, page: 1 + self.below(30) as usize }
            }
            95..97 => {
                let mode = [XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace][slot % 4];
                let len = if self.one_in(5) { 5000 } else { self.below(200) as usize };
                Operation::SetXattr { path, name: self.below(3) as u8, len, mode }
            }
            97..98 => Operation::GetXattr { path, name: self.below(3) as u8 },
            98..99 => Operation::RemoveXattr { path, name: self.below(3) as u8 },
            99..100 => Operation::ListXattr { path },
            100..102 => Operation::Sync,
            102..103 => Operation::TruncateOpen { slot, size: self.offset() },
            103..104 => {
                let mode = if self.one_in(2) { 0o2777 } else { 0o700 + self.below(0o100) as u32 };
                Operation::Mode { path, mode }
            }
            104..106 => {
                let ids = [0, FIRST_USER + 1, FIRST_USER + USER_COUNT, SHARED_GROUP];
                let id = |one_in| self.one_in(one_in).then(|| ids[self.below(4) as usize]);
                Operation::Owner { path, uid: id(3), gid: id(2) }
            }
            106..108 => Operation::Access { path, mask: self.below(8) as u32 },
            _ => {
                let first = 10 + 30 * self.below(8) as u16;
                let dir = if self.one_in(2) { Vec::new() } else { vec![self.below(COMMON_NAMES) as u16] };
                self.series = Some((dir, first, first + 5 + self.below(30) as u16));
                Operation::Stat { path }
            }
        }
    }

    /// A mode: often open to all users, sometimes with set-id and sticky bits.
    fn file_mode(&self) -> u32 {
        match self.below(8) {
            0 => self.below(0o10000) as u32,
            1..4 => 0o666,
            _ => 0o600 + self.below(64) as u32,
        }
    }

    fn one_in(&self, count: u64) -> bool {
        self.random.chance(1, count)
    }

    /// A path to anything.
    fn path(&self) -> Path {
        self.path_to(self.one_in(3))
    }

    /// A path that mostly names a directory, or mostly does not: most directories have the first
    /// names.
    fn path_to(&self, directory: bool) -> Path {
        let depth = if self.one_in(2) { 1 } else { 1 + self.below(DEPTH_MAX) };
        let common = |directory| match self.below(10) {
            0 => self.below(COMMON_NAMES),
            _ if directory => self.below(DIRECTORY_NAMES),
            _ => DIRECTORY_NAMES + self.below(COMMON_NAMES - DIRECTORY_NAMES),
        };
        let number = |place| match self.one_in(20) {
            true => 10 + self.below(240) as u16,
            false => common(directory || place < depth) as u16,
        };
        (1..=depth).map(number).collect()
    }

    fn flags(&self) -> OpenFlags {
        let write = !self.one_in(4);
        OpenFlags {
            read: !write || !self.one_in(3),
            write,
            append: write && self.one_in(5),
            truncate: write && self.one_in(5),
            execute: false,
        }
    }

    /// An offset: often at or near a block's edge, sometimes far out.
    fn offset(&self) -> u64 {
        let block = self.below(if self.one_in(3) { 40 } else { 4 }) * self.block_size;
        match self.below(10) {
            0..3 => block,
            3 => block + self.block_size - 1,
            4..7 => self.below(3 * self.block_size),
            7 => 0,
            8 => block + self.below(self.block_size),
            _ if self.one_in(4) => (1 << 40) + block,
            _ => self.below(2 << 20),
        }
    }

    fn len(&self) -> u64 {
        match self.below(10) {
            0..3 => 1 + self.below(200),
            3..6 => 1 + self.below(2 * self.block_size),
            6 => self.block_size,
            7 => self.block_size * (1 + self.below(4)),
            8 => 4096,
            _ => 1 + self.below(DATA_LEN_MAX),
        }
        .min(DATA_LEN_MAX)
    }
}
