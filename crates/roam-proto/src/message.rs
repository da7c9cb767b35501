//! Requests of clients that roam, answers of homes, and what homes push. Each is one message of a
//! [`channel`](crate::channel); the protocol's version is agreed upon when the connection is made.
//!
//! All numbers that tell what is newer are of one kind: a volume's [`Stamp::seq`]. A file's
//! *version* is that of its last change, its *contents* that of the last change of what is in it
//! (bytes, or names).

use crate::channel::MESSAGE_LEN_MAX;
use crate::codec::Wire;
use crate::delegation::{Behind, Hold, Kept, Recall, Watch};
use crate::journal::{Since, Stamp};
use crate::lock::{Lock, Locking};
use crate::operation::Operation;
use crate::piece::Piece;
use crate::{wire_enum, wire_struct};
use bytes::Bytes;
use types::codec::{DecodeError, Reader};
use types::{Attr, FileId, FsError, Kind, Time};

/// Most bytes of contents in one message.
pub const DATA_LEN_MAX: usize = MESSAGE_LEN_MAX / 2;
/// Most bytes of an operation's contents that travel with it; more is uploaded before.
pub const INLINE_LEN_MAX: usize = 16 << 10;
/// Messages from this length on are compressed if that makes them shorter.
const COMPRESSED_FROM: usize = 128;
/// Level of compression: fast enough for a LAN.
const LEVEL: i32 = 1;

/// All that is known of a file but its contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// What it is called between client and home.
    pub id: FileId,
    /// When anything of it changed last.
    pub version: u64,
    /// When what is in it changed last.
    pub contents: u64,
    /// Type.
    pub kind: Kind,
    /// Lower twelve bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner, as the home has it.
    pub uid: u32,
    /// Group, as the home has it.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Units of 512 bytes really stored.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Where it points, for symlinks.
    pub target: Vec<u8>,
    /// Extended attributes: users' own, and ACLs.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}
wire_struct!(Facts {
    id,
    version,
    contents,
    kind,
    mode,
    nlink,
    uid,
    gid,
    rdev,
    size,
    blocks,
    atime,
    mtime,
    ctime,
    crtime,
    target,
    xattrs
});

impl Facts {
    /// What stat(2) shows of it.
    pub fn attr(&self) -> Attr {
        Attr {
            id: self.id,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            block_size: 4096,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: self.crtime,
        }
    }
}

/// As whom the home does what a client asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}
wire_struct!(User { uid, gid, groups });

/// An operation on its way home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Its number in the client's log.
    pub seq: u64,
    /// The newest version of what it changes that the client knew when it was done, of the files
    /// that it is about: the first, and the second if there is one.
    pub bases: (u64, u64),
    /// What was done.
    pub operation: Operation,
    /// Of a store: what was written, range after range, unless it was uploaded.
    pub data: Bytes,
}
wire_struct!(Sent { seq, bases, operation, data });

/// Why an operation was not done, which the client had done for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conflict {
    /// Somebody else has changed the file since.
    Changed,
    /// Somebody else has removed or moved the file, or a directory it was in.
    Gone,
    /// Somebody else has put something at the place.
    Taken,
    /// Somebody else has put something into the directory.
    NotEmpty,
}
wire_enum!(Conflict { 1 => Changed, 2 => Gone, 3 => Taken, 4 => NotEmpty });

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done. It is [durable](Request::Durable) later, and until then a crash of the home may
    /// undo it.
    Done,
    /// Not done, since others did something.
    Conflict(Conflict),
    /// Not done: the home's file system refuses it for this user.
    Refused(FsError),
    /// What was made is there already, as this file: whatever names what was made means that. Of a
    /// file: this one contains what was stored in it, if that came with the same message and
    /// nothing but attributes beside it; what names what was made means nothing.
    Became(FileId),
    /// What was made is there already, as this file, which is empty; nothing that was stored in it
    /// came with the same message. Whoever has stored nothing has made this one; otherwise
    /// something else is there.
    Empty(FileId),
}
wire_enum!(Outcome { 0 => Done, 1 => Conflict(conflict), 2 => Refused(error), 3 => Became(real), 4 => Empty(real) });

/// How an operation ended, and what is there now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Its number in the client's log.
    pub seq: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What is known now of the files and directories that it names.
    pub facts: Vec<Facts>,
}
wire_struct!(Applied { seq, outcome, facts });

/// Why a home does not serve a client at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The secret was used before, is too old, or never was one.
    Secret,
    /// The client's key belongs to nobody.
    Stranger,
    /// No volume of this name, for this client.
    Volume,
    /// It attached to nothing yet.
    Detached,
    /// It knows of more than the client remembers: the client is a copy of an older self.
    Forgotten,
    /// The home takes no more for now.
    Busy,
}
wire_enum!(Refusal { 1 => Secret, 2 => Stranger, 3 => Volume, 4 => Detached, 5 => Forgotten, 6 => Busy });

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Makes this client's key one that the home serves.
    Enroll {
        /// What an invitation said.
        secret: [u8; 16],
    },
    /// Begins to use a volume.
    Attach {
        /// Its name.
        volume: String,
        /// Which log the client's numbers are of.
        incarnation: u64,
        /// Up to here the client knows how each of its operations ended.
        acknowledged: u64,
        /// What it was current at.
        stamp: Option<Stamp>,
        /// The greatest of the ids that it knows of; 0: it knows of none.
        newest: FileId,
        /// What it wants to be told.
        watch: Watch,
        /// Grows with each time that the client asks for this: what comes after a later one, or
        /// again, counts for nothing.
        attempt: u64,
    },
    /// What changed since.
    Since {
        /// This.
        stamp: Stamp,
    },
    /// Facts of files.
    Facts {
        /// Which.
        files: Vec<FileId>,
    },
    /// Which files have another version than this.
    Validate {
        /// Files with the versions known of them.
        files: Vec<(FileId, u64)>,
    },
    /// What is in a directory.
    List {
        /// Which.
        dir: FileId,
        /// Go on after this name; empty: from the start.
        after: Vec<u8>,
        /// The client knows the names as of when the contents had this number, and needs them only
        /// if they have another; 0: it knows none.
        known: u64,
        /// If this name is not there, the client, which works under delegations, is likely to make
        /// it.
        makes: Option<Vec<u8>>,
    },
    /// Bytes of a file, if its contents are still those.
    Read {
        /// Which.
        file: FileId,
        /// Of when its contents are.
        contents: u64,
        /// From here.
        offset: u64,
        /// So many, or up to the end.
        len: u32,
    },
    /// Bytes that a store will write: part of all its ranges, one after the other.
    Upload {
        /// The store's number.
        seq: u64,
        /// Where this belongs in all of it.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Does operations, in this order.
    Apply {
        /// Up to here the client knows how each of its operations ended.
        acknowledged: u64,
        /// The operations.
        operations: Vec<Sent>,
    },
    /// How much the volume can hold.
    Space,
    /// A new range of ids for files that the client makes.
    Ids,
    /// Facts of files, with a delegation on each that the answer tells of.
    Delegate {
        /// Which.
        files: Vec<FileId>,
        /// For what.
        hold: Hold,
    },
    /// Delegations are returned: what was done under them was sent before, but for what is said to
    /// be behind.
    Returned {
        /// To which recalls.
        recalls: Vec<u64>,
        /// Files on which the client, unasked, keeps no more than a read delegation, if it was
        /// given none since the first of these recalls.
        lowered: Vec<FileId>,
        /// What is not home yet, if the client may go on reading, and this is about one recall.
        behind: Option<Behind>,
    },
    /// What was done under delegations that are recalled is on its way, with all that was done
    /// before: it takes long.
    Returning {
        /// To which recalls.
        recalls: Vec<u64>,
        /// The last operation that has to be home before these delegations can be returned.
        through: u64,
    },
    /// The client is still there.
    Renew,
    /// The client returns all delegations, unasked.
    Resign,
    /// Small files, whole, if their contents are still those.
    ReadFiles {
        /// Files with when their contents are of.
        files: Vec<(FileId, u64)>,
    },
    /// Takes parts of what a store will write from files that have them, as if they were uploaded.
    Take {
        /// The store's number.
        seq: u64,
        /// Which, and where they are.
        pieces: Vec<Piece>,
    },
    /// Locks, or unlocks. EAGAIN: others have it. EBUSY: later perhaps; whoever waits asks again.
    Lock(Locking),
    /// The first lock that stands in the way of this one.
    TestLock(Lock),
    /// The client has taken in what the home [told](Pushed::Changed) of others' changes, up to this
    /// one. A client that is near says so, and others near the home wait for it when they close.
    Heard {
        /// The [seq](Stamp::seq) of the last stamp.
        seq: u64,
    },
    /// Waits until the client's operations are durable up to this one, as far as the home has
    /// answered them.
    Durable {
        /// The last one.
        through: u64,
    },
    /// The client knows that it [has company](Pushed::Company), and the home has seen all that it
    /// did before.
    Joined {
        /// What the home told it.
        number: u64,
    },
}
wire_enum!(Request {
    1 => Enroll { secret },
    2 => Attach { volume, incarnation, acknowledged, stamp, newest, watch, attempt },
    3 => Since { stamp },
    4 => Facts { files },
    5 => Validate { files },
    6 => List { dir, after, known, makes },
    7 => Read { file, contents, offset, len },
    8 => Upload { seq, offset, data },
    9 => Apply { acknowledged, operations },
    10 => Space,
    11 => Ids,
    12 => Delegate { files, hold },
    13 => Returned { recalls, lowered, behind },
    14 => Renew,
    15 => Resign,
    16 => ReadFiles { files },
    17 => Take { seq, pieces },
    18 => Returning { recalls, through },
    19 => Lock(locking),
    20 => TestLock(lock),
    21 => Joined { number },
    22 => Durable { through },
    23 => Heard { seq },
});

/// What a home answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Done; nothing more to say.
    Done,
    /// To enrolment: it serves this key, for these volumes.
    Enrolled {
        /// Their names.
        volumes: Vec<String>,
    },
    /// To attaching.
    Attached {
        /// The volume's root.
        root: FileId,
        /// As whom it does what this client asks.
        user: User,
        /// What changed since the stamp, or the newest stamp.
        since: Since,
        /// The last operation of this incarnation that it has answered; 0: none.
        heard: u64,
        /// What became of its delegations, if it works under such.
        kept: Option<Kept>,
        /// Bytes of the longest file that the file system behind can hold.
        file_len_max: u64,
        /// Whether other clients are attached to the volume.
        company: Company,
    },
    /// What changed.
    Since(Since),
    /// Facts of those files asked for that there are.
    Facts(Vec<Facts>),
    /// Those that have another version, or are gone.
    Stale(Vec<FileId>),
    /// What is in a directory, in the order of names.
    Listing {
        /// Facts of it.
        dir: Box<Facts>,
        /// Its names, and facts of what they mean.
        entries: Vec<NamedFacts>,
        /// The names are as the client knows them, and not repeated.
        same: bool,
        /// There are more.
        more: bool,
        /// Of those that are told of, a client that works under delegations has no delegation on
        /// these.
        withheld: Vec<FileId>,
        /// Of those that it has, those are returned that were recalled with a greater number.
        given: u64,
        /// All changes up to this one are taken into account.
        seq: u64,
        /// What a client that works under delegations has of the directory now.
        hold: Hold,
    },
    /// To a claim of delegations: facts of those files that there are, each of them delegated now.
    Delegated {
        /// What is known of them.
        known: Vec<Facts>,
        /// Those are returned that were recalled with a greater number.
        given: u64,
        /// All changes up to this one are taken into account.
        seq: u64,
    },
    /// Bytes of a file; shorter than asked only at its end.
    Data(Bytes),
    /// The contents are not what the client thought.
    Changed,
    /// How operations ended; shorter than what was sent if the home stopped before the end.
    Applied(Vec<Applied>),
    /// How much the volume can hold.
    Space {
        /// Bytes it can hold.
        total: u64,
        /// Bytes that can still be written.
        free: u64,
        /// Files there are.
        files: u64,
        /// Files that can still be made.
        files_free: u64,
    },
    /// Ids that are this client's alone: the first, and how many.
    Ids(FileId, u64),
    /// Files as they are. Those are left out whose contents are other ones, that cannot be read,
    /// and all after the first that does not fit.
    Files(Vec<(FileId, Bytes)>),
    /// Which of the pieces, counted from 0, were taken. The others are not, or no more, where they
    /// were said to be.
    Taken(Vec<u64>),
    /// A lock that stands in the way, if there is one.
    InTheWay(Option<Lock>),
    /// The file system refuses.
    Failed(FsError),
    /// The home refuses.
    Refused(Refusal),
}
wire_enum!(Reply {
    0 => Done,
    1 => Enrolled { volumes },
    2 => Attached { root, user, since, heard, kept, file_len_max, company },
    3 => Since(since),
    4 => Facts(facts),
    5 => Stale(files),
    6 => Listing { dir, entries, same, more, withheld, given, seq, hold },
    7 => Data(bytes),
    8 => Changed,
    9 => Applied(applied),
    10 => Space { total, free, files, files_free },
    11 => Ids(first, count),
    12 => Failed(error),
    13 => Refused(refusal),
    14 => Delegated { known, given, seq },
    15 => Files(files),
    16 => Taken(pieces),
    17 => InTheWay(lock),
});

/// Whether a client is alone with a volume. If it is, no other client can miss what it has closed
/// and not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Company {
    /// Counts what the home says of this: what has a smaller number is of before.
    pub number: u64,
    /// Other clients are attached to the volume.
    pub others: bool,
}
wire_struct!(Company { number, others });

/// A name, and what it means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFacts {
    /// The name.
    pub name: Vec<u8>,
    /// What it means.
    pub facts: Facts,
}
wire_struct!(NamedFacts { name, facts });

/// What a home pushes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// Others changed these files: a break of the callbacks on them. All changes up to the stamp
    /// have been told of, unless there is more.
    Changed {
        /// The files.
        files: Vec<FileId>,
        /// Up to when.
        stamp: Stamp,
        /// Further messages tell of other files that changed up to then.
        more: bool,
    },
    /// The home wants delegations back.
    Recall(Vec<Recall>),
    /// Somebody waits for bytes of a store that is behind: they are to be uploaded before others.
    Wanted {
        /// The store's number.
        seq: u64,
        /// Where they are in all that it uploads.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Nothing will be told any more, nor done, before the client attaches again.
    Detached,
    /// Other clients attach to the volume, or the last of them has left. If others do, they wait
    /// until the client has [joined](Request::Joined) them.
    Company(Company),
}
wire_enum!(Pushed {
    1 => Changed { files, stamp, more },
    2 => Recall(recalls),
    3 => Wanted { seq, offset, len },
    4 => Detached,
    5 => Company(company),
});

impl<T: Wire> Wire for Box<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        T::encode(self, out);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        T::decode(r).map(Box::new)
    }
}

/// As its place in [`FsError::ALL`], from 1.
impl Wire for FsError {
    fn encode(&self, out: &mut Vec<u8>) {
        let at = FsError::ALL.iter().position(|error| error == self).map_or(0, |at| at + 1);
        out.push(at as u8);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = usize::from(r.u8("error")?);
        at.checked_sub(1).and_then(|at| FsError::ALL.get(at)).copied().ok_or(DecodeError::Invalid("error"))
    }
}

/// A message as it is sent: compressed if that makes it shorter.
pub fn pack(message: &impl Wire) -> Bytes {
    let plain = message.to_bytes();
    if plain.len() >= COMPRESSED_FROM
        && let Ok(mut packed) = zstd::bulk::compress(&plain, LEVEL)
        && packed.len() < plain.len()
    {
        packed.insert(0, 1);
        return packed.into();
    }
    [&[0], &plain[..]].concat().into()
}

/// Reads what [`pack`] made.
pub fn unpack<T: Wire>(bytes: &[u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        Some((0, plain)) => T::from_bytes(plain),
        Some((1, packed)) => {
            let plain = zstd::bulk::decompress(packed, MESSAGE_LEN_MAX);
            T::from_bytes(&plain.map_err(|_| DecodeError::Invalid("compressed message"))?)
        }
        _ => Err(DecodeError::Invalid("message")),
    }
}
