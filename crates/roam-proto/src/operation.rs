//! The operations of a client: what it did to files and its home is to do, too
//! (docs/roaming.md#operations). Pure.
//!
//! Operations name files by the client's ids. A file that the client made has no other name before
//! the home has made it, too. The log holds no bytes of a [`Store`](Operation::Store): when the
//! client sends the store, it takes the bytes from its cache.

use crate::codec::Wire;
use crate::ranges::Ranges;
use crate::{wire_enum, wire_struct};
use types::codec::{DecodeError, Reader};
use types::{FileId, Kind, Time};

/// Most ranges of a change. The limit bounds the message that describes a store; [`Change::bound`]
/// merges ranges when a change has more.
pub const RANGE_COUNT_MAX: usize = 8192;

/// Extended attributes that mean something on one machine only, its home's or a client's.
const MACHINE_XATTRS: [&[u8]; 4] = [b"security.selinux", b"security.ima", b"security.evm", b"system.nfs"];

/// True for an extended attribute that means something on one machine only, and stays there.
pub fn is_of_machine(name: &[u8]) -> bool {
    MACHINE_XATTRS.iter().any(|own| name.starts_with(own))
}

/// True for a valid name in a directory. The length is not checked.
pub fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

/// A directory and a name in it.
pub type Place = (FileId, Vec<u8>);

/// The attributes of a new file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// Its kind.
    pub kind: Kind,
    /// The lower twelve bits of the mode, after the umask.
    pub mode: u32,
    /// Owner. Only the superuser may give files to other users.
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
    /// Device number, for devices.
    pub rdev: u64,
    /// The target of a symlink; empty for other files.
    pub target: Vec<u8>,
    /// The time of the making.
    pub when: Time,
}
wire_struct!(Made { kind, mode, uid, gid, rdev, target, when });

/// Attributes that were set. `None`: not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// The lower twelve bits of the mode.
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
    /// The effect of `self`, then `later`.
    pub fn then(self, later: Attributes) -> Attributes {
        Attributes {
            mode: later.mode.or(self.mode),
            uid: later.uid.or(self.uid),
            gid: later.gid.or(self.gid),
            atime: later.atime.or(self.atime),
            mtime: later.mtime.or(self.mtime),
        }
    }

    /// True if they change who may do what.
    pub fn are_rights(&self) -> bool {
        (self.mode, self.uid, self.gid) != (None, None, None)
    }
}

/// A change of a file's contents: the file was cut to `cut` bytes, then given `size`, and then
/// `ranges` were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The shortest length that the file had; at most `size`.
    pub cut: u64,
    /// The length of the file after the change.
    pub size: u64,
    /// The ranges that were written, all below `size`.
    pub ranges: Ranges,
    /// The time of the change.
    pub mtime: Time,
}

impl Change {
    /// True if the change is consistent and makes no file longer than `size_max` bytes.
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
    /// A change that writes all bytes of a file of this size.
    pub fn of_all(size: u64, mtime: Time) -> Change {
        Change { cut: 0, size, ranges: Ranges::of(0..size), mtime }
    }

    /// Merges ranges if there are more than [`RANGE_COUNT_MAX`], so that one message can describe
    /// the change. The bytes between merged ranges count as written, too.
    pub fn bound(&mut self) {
        if self.ranges.count() > RANGE_COUNT_MAX {
            self.ranges.coarsen(RANGE_COUNT_MAX / 2);
        }
    }

    /// Merges two changes of one file, done in either order: all that either wrote or cut. `self`
    /// gives the length and the time.
    pub fn along(mut self, other: &Change) -> Change {
        self.ranges.add_all(&other.ranges);
        self.ranges.cut(self.size);
        Change { cut: self.cut.min(other.cut), ..self }
    }

    /// The effect of `self`, then `later`.
    pub fn then(mut self, later: Change) -> Change {
        // Beyond the cut there were zeroes. The home has them too, since it cuts there as well.
        self.ranges.cut(later.cut);
        self.ranges.add_all(&later.ranges);
        self.bound();
        Change { cut: self.cut.min(later.cut), size: later.size, ranges: self.ranges, mtime: later.mtime }
    }
}

/// One operation on the client's files. The home does it if the places are as the operation says,
/// and if what it changes or removes still has the version that the client knew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A file, directory, symlink or node was made at a free place.
    Make {
        /// The place.
        at: Place,
        /// The id that the client gave it.
        file: FileId,
        /// Its attributes.
        made: Made,
    },
    /// A file got another name at a free place.
    Link {
        /// The file.
        file: FileId,
        /// The new name's place.
        at: Place,
    },
    /// A name was removed.
    Remove {
        /// The place.
        at: Place,
        /// What the name meant.
        file: FileId,
        /// It was the last name of the file, or the file is a directory.
        last: bool,
    },
    /// A name was moved.
    Rename {
        /// The file that was moved.
        file: FileId,
        /// The old place.
        from: Place,
        /// The new place.
        to: Place,
        /// What the rename replaced, and whether this was its last name or it is a directory.
        replaced: Option<(FileId, bool)>,
    },
    /// Two names were exchanged.
    Exchange {
        /// The file at the first place before.
        file: FileId,
        /// The first place.
        from: Place,
        /// The file at the second place before.
        other: FileId,
        /// The second place.
        to: Place,
    },
    /// Attributes were set.
    Set {
        /// The file.
        file: FileId,
        /// The attributes.
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
        /// The change.
        change: Change,
    },
    /// A new file begins with the bytes that the home has in another file at that time. The client,
    /// which has only part of that file cached, copied it.
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
    /// The file that the operation is about; of an exchange the first.
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

    /// The places that the operation changes.
    pub fn places(&self) -> Vec<&Place> {
        match self {
            Operation::Make { at, .. } | Operation::Link { at, .. } | Operation::Remove { at, .. } => vec![at],
            Operation::Rename { from, to, .. } | Operation::Exchange { from, to, .. } => vec![from, to],
            Operation::Set { .. } | Operation::SetXattr { .. } | Operation::Store { .. } | Operation::Copy { .. } => {
                Vec::new()
            }
        }
    }

    /// The places that the operation changes, as [`places`](Self::places), mutable.
    pub fn places_mut(&mut self) -> Vec<&mut Place> {
        match self {
            Operation::Make { at, .. } | Operation::Link { at, .. } | Operation::Remove { at, .. } => vec![at],
            Operation::Rename { from, to, .. } | Operation::Exchange { from, to, .. } => vec![from, to],
            Operation::Set { .. } | Operation::SetXattr { .. } | Operation::Store { .. } | Operation::Copy { .. } => {
                Vec::new()
            }
        }
    }

    /// True if the operation leaves nothing at the place.
    pub fn vacates(&self, place: &Place) -> bool {
        matches!(self, Operation::Remove { at: from, .. } | Operation::Rename { from, .. } if from == place)
    }

    /// All files that the operation names in any part.
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

    /// The place where the operation adds a name.
    pub fn makes(&self) -> Option<&Place> {
        match self {
            Operation::Make { at, .. } | Operation::Link { at, .. } => Some(at),
            Operation::Rename { to, replaced: None, .. } => Some(to),
            _ => None,
        }
    }

    /// Replaces the ids of all files but the one that the operation makes.
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

    /// An estimate of the operation's size in a message, contents included, in bytes.
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
