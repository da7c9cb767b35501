//! What a client that roams has done and its home has not heard of yet
//! (docs/roaming.md#operations). Pure.
//!
//! Files are named by the client's ids: one that was made here has no other name before the home
//! has made it too. The bytes of a [`Store`](Operation::Store) are not in the log; they are the
//! cache's when it is sent.

use crate::codec::Wire;
use crate::ranges::Ranges;
use crate::{wire_enum, wire_struct};
use types::codec::{DecodeError, Reader};
use types::{FileId, Kind, Time};

/// Most ranges of a change.
pub const RANGE_COUNT_MAX: usize = 8192;

/// Extended attributes that mean something on one machine only, its home's or a client's.
const MACHINE_XATTRS: [&[u8]; 4] = [b"security.selinux", b"security.ima", b"security.evm", b"system.nfs"];

/// True for an extended attribute that means something on one machine only, and stays there.
pub fn is_of_machine(name: &[u8]) -> bool {
    MACHINE_XATTRS.iter().any(|own| name.starts_with(own))
}

/// True for what can be a name in a directory, however long.
pub fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

/// A directory and a name in it.
pub type Place = (FileId, Vec<u8>);

/// What a new file is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// Its kind.
    pub kind: Kind,
    /// Lower twelve bits, after the umask.
    pub mode: u32,
    /// Owner; only the superuser may give files to others.
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
    /// Device number, for devices.
    pub rdev: u64,
    /// Where it points, for symlinks.
    pub target: Vec<u8>,
    /// When it was made.
    pub when: Time,
}
wire_struct!(Made { kind, mode, uid, gid, rdev, target, when });

/// Attributes that were set; `None` where nothing was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Lower twelve bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub atime: Option<Time>,
    /// Modification time.
    pub mtime: Option<Time>,
}
wire_struct!(Attributes { mode, uid, gid, atime, mtime });

impl Attributes {
    /// What both together set.
    pub fn then(self, later: Attributes) -> Attributes {
        Attributes {
            mode: later.mode.or(self.mode),
            uid: later.uid.or(self.uid),
            gid: later.gid.or(self.gid),
            atime: later.atime.or(self.atime),
            mtime: later.mtime.or(self.mtime),
        }
    }

    /// True if they say who may do what.
    pub fn are_rights(&self) -> bool {
        (self.mode, self.uid, self.gid) != (None, None, None)
    }
}

/// Changed contents of a file: it was cut to `cut` bytes, then given `size`, and then `ranges` were
/// written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The shortest that it was; at most `size`.
    pub cut: u64,
    /// How long it is now.
    pub size: u64,
    /// What was written, below `size`.
    pub ranges: Ranges,
    /// When.
    pub mtime: Time,
}

impl Change {
    /// True if it can be done to a file of at most so many bytes.
    pub fn fits(&self, size_max: u64) -> bool {
        let end = self.ranges.iter().last().map_or(0, |range| range.end);
        self.cut <= self.size && end <= self.size && self.size <= size_max
    }
}

impl Wire for Change {
    fn encode(&self, out: &mut Vec<u8>) {
        self.cut.encode(out);
        self.size.encode(out);
        self.ranges.encode(out);
        self.mtime.encode(out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let change =
            Change { cut: Wire::decode(r)?, size: Wire::decode(r)?, ranges: Wire::decode(r)?, mtime: Wire::decode(r)? };
        if change.ranges.count() > RANGE_COUNT_MAX {
            return Err(DecodeError::Invalid("ranges of a change"));
        }
        Ok(change)
    }
}

impl Change {
    /// All bytes of a file of this size.
    pub fn of_all(size: u64, mtime: Time) -> Change {
        Change { cut: 0, size, ranges: Ranges::of(0..size), mtime }
    }

    /// Whoever has written to very many places says that he has written between them, too, so that
    /// it can be told in one message.
    pub fn bound(&mut self) {
        if self.ranges.count() > RANGE_COUNT_MAX {
            self.ranges.coarsen(RANGE_COUNT_MAX / 2);
        }
    }

    /// All that either of two changes of one file has written or cut, whichever was first; of them,
    /// `self` says how long the file is now.
    pub fn along(mut self, other: &Change) -> Change {
        self.ranges.add_all(&other.ranges);
        self.ranges.cut(self.size);
        Change { cut: self.cut.min(other.cut), ..self }
    }

    /// What both together come to.
    pub fn then(mut self, later: Change) -> Change {
        // Beyond where it was cut, there were zeroes: they are at home too, if it is cut there as
        // well.
        self.ranges.cut(later.cut);
        self.ranges.add_all(&later.ranges);
        self.bound();
        Change { cut: self.cut.min(later.cut), size: later.size, ranges: self.ranges, mtime: later.mtime }
    }
}

/// One operation on the client's files. What must be true for it to be done at home: the places are
/// as it says, and what it changes or removes has the version that the client knew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A file, directory, symlink or node was made at a free place.
    Make {
        /// Where.
        at: Place,
        /// Its id here.
        file: FileId,
        /// What it is like.
        made: Made,
    },
    /// A file got another name at a free place.
    Link {
        /// The file.
        file: FileId,
        /// Where.
        at: Place,
    },
    /// A name was removed.
    Remove {
        /// Where.
        at: Place,
        /// What was there.
        file: FileId,
        /// It was its last name, or it is a directory.
        last: bool,
    },
    /// A name was moved.
    Rename {
        /// What was moved.
        file: FileId,
        /// From where.
        from: Place,
        /// To where.
        to: Place,
        /// What was there, and whether this was its last name, or it is a directory.
        replaced: Option<(FileId, bool)>,
    },
    /// Two names were exchanged.
    Exchange {
        /// What was at the first place.
        file: FileId,
        /// The first place.
        from: Place,
        /// What was at the second.
        other: FileId,
        /// The second place.
        to: Place,
    },
    /// Attributes were set.
    Set {
        /// The file.
        file: FileId,
        /// Which.
        attributes: Attributes,
    },
    /// An extended attribute was set or removed.
    SetXattr {
        /// The file.
        file: FileId,
        /// Its name.
        name: Vec<u8>,
        /// Its value; `None`: it was removed.
        value: Option<Vec<u8>>,
    },
    /// Contents were changed.
    Store {
        /// The file.
        file: FileId,
        /// How.
        change: Change,
    },
    /// A file that was just made begins as the home has another file at that time, of which the
    /// client has only part.
    Copy {
        /// The file.
        file: FileId,
        /// The other one.
        from: FileId,
    },
}
wire_enum!(Operation {
    1 => Make { at, file, made },
    2 => Link { file, at },
    3 => Remove { at, file, last },
    4 => Rename { file, from, to, replaced },
    5 => Exchange { file, from, other, to },
    6 => Set { file, attributes },
    7 => SetXattr { file, name, value },
    8 => Store { file, change },
    9 => Copy { file, from },
});

impl Operation {
    /// The file that it is about; of an exchange the first.
    pub fn file(&self) -> FileId {
        match self {
            Operation::Make { file, .. }
            | Operation::Link { file, .. }
            | Operation::Remove { file, .. }
            | Operation::Rename { file, .. }
            | Operation::Exchange { file, .. }
            | Operation::Set { file, .. }
            | Operation::SetXattr { file, .. }
            | Operation::Store { file, .. }
            | Operation::Copy { file, .. } => *file,
        }
    }

    /// Places that it changes.
    pub fn places(&self) -> Vec<&Place> {
        match self {
            Operation::Make { at, .. } | Operation::Link { at, .. } | Operation::Remove { at, .. } => vec![at],
            Operation::Rename { from, to, .. } | Operation::Exchange { from, to, .. } => vec![from, to],
            Operation::Set { .. } | Operation::SetXattr { .. } | Operation::Store { .. } | Operation::Copy { .. } => {
                Vec::new()
            }
        }
    }

    /// As [`places`](Self::places), to change them.
    pub fn places_mut(&mut self) -> Vec<&mut Place> {
        match self {
            Operation::Make { at, .. } | Operation::Link { at, .. } | Operation::Remove { at, .. } => vec![at],
            Operation::Rename { from, to, .. } | Operation::Exchange { from, to, .. } => vec![from, to],
            Operation::Set { .. } | Operation::SetXattr { .. } | Operation::Store { .. } | Operation::Copy { .. } => {
                Vec::new()
            }
        }
    }

    /// True if nothing is at a place afterwards.
    pub fn vacates(&self, place: &Place) -> bool {
        matches!(self, Operation::Remove { at: from, .. } | Operation::Rename { from, .. } if from == place)
    }

    /// All files that it names in any part.
    pub fn files(&self) -> Vec<FileId> {
        let mut files = vec![self.file()];
        files.extend(self.places().into_iter().map(|(parent, _)| *parent));
        match self {
            Operation::Rename { replaced: Some((file, _)), .. }
            | Operation::Exchange { other: file, .. }
            | Operation::Copy { from: file, .. } => files.push(*file),
            _ => {}
        }
        files
    }

    /// The place that it gives a name that was not there.
    pub fn makes(&self) -> Option<&Place> {
        match self {
            Operation::Make { at, .. } | Operation::Link { at, .. } => Some(at),
            Operation::Rename { to, replaced: None, .. } => Some(to),
            _ => None,
        }
    }

    /// Names files by other ids, all but the one that it makes.
    pub fn rename_files(&mut self, name: impl Fn(FileId) -> FileId) {
        for (parent, _) in self.places_mut() {
            *parent = name(*parent);
        }
        match self {
            Operation::Make { .. } => {}
            Operation::Link { file, .. }
            | Operation::Remove { file, .. }
            | Operation::Set { file, .. }
            | Operation::SetXattr { file, .. }
            | Operation::Store { file, .. } => *file = name(*file),
            Operation::Rename { file, replaced, .. } => {
                *file = name(*file);
                if let Some((gone, _)) = replaced {
                    *gone = name(*gone);
                }
            }
            Operation::Exchange { file, other, .. } | Operation::Copy { file, from: other } => {
                (*file, *other) = (name(*file), name(*other));
            }
        }
    }

    /// Bytes that it takes to tell, roughly.
    pub fn cost(&self) -> u64 {
        const HEADER: u64 = 32;
        let names: usize = self.places().into_iter().map(|(_, name)| name.len() + 8).sum();
        let more = match self {
            Operation::Store { change, .. } => change.ranges.len(),
            Operation::SetXattr { name, value, .. } => (name.len() + value.as_ref().map_or(0, Vec::len)) as u64,
            Operation::Make { made, .. } => made.target.len() as u64,
            _ => 0,
        };
        more.saturating_add(HEADER + names as u64)
    }
}
