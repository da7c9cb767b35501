//! Requests of clients, answers of homes, and what homes push. Each is one message of a
//! [`channel`](crate::channel). Both ends agree on the protocol's version when they make the
//! connection.
//!
//! All numbers that tell what is newer are of one kind: a volume's [`Stamp::seq`]. The *version* of
//! a file is the number of its last change. Its *contents* number is that of the last change of
//! what is in it: bytes, or names.

use crate::channel::MESSAGE_LEN_MAX;
use crate::codec::Wire;
use crate::delegation::{Behind, Hold, Kept, Recall, Watch};
use crate::lock::{Lock, Locking};
use crate::operation::Operation;
pub use crate::piece::DATA_LEN_MAX;
use crate::piece::Piece;
use crate::volume_stamp::{Since, Stamp};
use crate::{wire_enum, wire_struct};
use bytes::Bytes;
use types::codec::{DecodeError, Reader};
use types::{Attr, FileId, FsError, Kind, Time};

/// Most bytes of a store that travel in the operation's message. The client uploads longer contents
/// before it sends the operation.
pub const INLINE_LEN_MAX: usize = 16 << 10;
/// Messages of at least this many bytes are compressed, if that makes them shorter.
const COMPRESSED_FROM: usize = 128;
/// The zstd level: the lowest, which is fast enough for a LAN.
const LEVEL: i32 = 1;

/// All that is known of a file except its contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The file's id between client and home.
    pub id: FileId,
    /// The number of the file's last change, of any kind.
    pub version: u64,
    /// The number of the last change of its bytes or names.
    pub contents: u64,
    /// The type of file.
    pub kind: Kind,
    /// The lower twelve bits of the mode.
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
    /// The target of a symlink; empty for other files.
    pub target: Vec<u8>,
    /// Extended attributes, as far as the user may read them, ACLs included.
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
    /// Returns what stat(2) shows of the file.
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

/// The user as whom the home acts for a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Ids of the supplementary groups.
    pub groups: Vec<u32>,
}
wire_struct!(User { uid, gid, groups });

/// An operation on its way home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Its number in the client's log.
    pub seq: u64,
    /// The newest versions that the client knew of the files that the operation is about, when it
    /// did the operation: of the first file, and of the second if there is one.
    pub bases: (u64, u64),
    /// The operation.
    pub operation: Operation,
    /// The bytes of a store, range after range; empty if they were uploaded.
    pub data: Bytes,
}
wire_struct!(Sent { seq, bases, operation, data });

/// Why the home did not do an operation that the client had done for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConflictReason {
    /// Another client or program changed the file since.
    Changed,
    /// Another client or program removed or moved the file, or a directory above it.
    Gone,
    /// Another client or program put something at the place.
    Taken,
    /// Another client or program put something into the directory.
    NotEmpty,
}
wire_enum!(ConflictReason { 1 => Changed, 2 => Gone, 3 => Taken, 4 => NotEmpty });

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The home has done it. It becomes [durable](Request::Durable) later; until then a crash of
    /// the home may undo it.
    Done,
    /// The home did not do it, since others changed something.
    Conflict(ConflictReason),
    /// The home did not do it: its file system refuses it for this user.
    Refused(FsError),
    /// The object that the client made exists already, as this file.
    ///
    /// - For a directory or symlink, the client's id means this file from now on, in every
    ///   operation that names it.
    /// - For a file, this one contains what the client stored in its own, if the store came in the
    ///   same message, and nothing else but attributes. The client's id means nothing then.
    Became(FileId),
    /// The file that the client made exists already, as this empty file, and no store to it came in
    /// the same message. If the client has stored nothing in its own file, the two are one.
    /// Otherwise this is a conflict.
    Empty(FileId),
}
wire_enum!(Outcome { 0 => Done, 1 => Conflict(conflict), 2 => Refused(error), 3 => Became(real), 4 => Empty(real) });

/// How an operation ended, with facts of the files that it names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Its number in the client's log.
    pub seq: u64,
    /// How the operation ended.
    pub outcome: Outcome,
    /// Facts of the files and directories that the operation names.
    pub facts: Vec<Facts>,
}
wire_struct!(Applied { seq, outcome, facts });

/// Why a home does not serve a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The secret of the invitation is unknown, used up, or too old.
    Secret,
    /// The home serves no client with this key.
    Stranger,
    /// There is no volume of this name for this client.
    Volume,
    /// The client has to attach first, or again.
    Detached,
    /// The client knows of an answer or an id that this home has not given, or has forgotten. The
    /// client has to begin its log anew.
    Forgotten,
    /// The home takes no more from this client for now. The client may try again.
    Busy,
}
wire_enum!(Refusal { 1 => Secret, 2 => Stranger, 3 => Volume, 4 => Detached, 5 => Forgotten, 6 => Busy });

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Makes the home serve this client's key.
    Enroll {
        /// The secret of an invitation.
        secret: [u8; 16],
    },
    /// Begins to use a volume.
    Attach {
        /// The volume's name.
        volume: String,
        /// Which log of the client the numbers of operations belong to.
        incarnation: u64,
        /// The client knows how its operations up to this one ended.
        acknowledged: u64,
        /// The stamp at which the client's cache was current.
        stamp: Option<Stamp>,
        /// The greatest id that the client knows of; 0 if it knows none.
        newest: FileId,
        /// What the client wants to be told.
        watch: Watch,
        /// Grows with each attempt to attach. The home ignores an attempt that is not greater than
        /// the last.
        attempt: u64,
    },
    /// Asks what changed since a stamp.
    Since {
        /// The stamp.
        stamp: Stamp,
    },
    /// Asks for facts of files.
    Facts {
        /// The files.
        files: Vec<FileId>,
    },
    /// Asks which files no longer have the given versions.
    Validate {
        /// Files, with the versions that the client knows.
        files: Vec<(FileId, u64)>,
    },
    /// Lists a directory.
    List {
        /// The directory.
        dir: FileId,
        /// Begins after this name; empty begins at the start.
        after: Vec<u8>,
        /// The version of the listing that the client has cached: the number of the directory's
        /// contents; 0 if it has none. The home sends the names only if they have another number.
        known: u64,
        /// A name that the client is likely to make if it does not exist. For clients that work
        /// under delegations.
        makes: Option<Vec<u8>>,
    },
    /// Reads bytes of a file, if it still has the given contents.
    Read {
        /// The file.
        file: FileId,
        /// The number of the contents that the client wants.
        contents: u64,
        /// The offset of the first byte.
        offset: u64,
        /// How many bytes; fewer come at the end of the file.
        len: u32,
    },
    /// Sends part of the bytes of a store that will come. All ranges of the store, one after the
    /// other, are the upload.
    Upload {
        /// The number of the store.
        seq: u64,
        /// The offset of these bytes in the upload.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Does operations, in this order.
    Apply {
        /// The client knows how its operations up to this one ended.
        acknowledged: u64,
        /// The operations.
        operations: Vec<Sent>,
    },
    /// Asks how much the volume can hold.
    Space,
    /// Asks for a new range of ids for files that the client makes.
    Ids,
    /// Asks for facts of files, with a delegation on each file that the answer contains.
    Delegate {
        /// The files.
        files: Vec<FileId>,
        /// The kind of delegation.
        hold: Hold,
    },
    /// Returns delegations. The client has sent home what it did under them, except for what
    /// `behind` announces.
    Returned {
        /// The recalls that this answers.
        recalls: Vec<u64>,
        /// Files on which the client, unasked, keeps at most a read delegation. Files that it was
        /// given again since the first of these recalls are excepted.
        lowered: Vec<FileId>,
        /// A store that is not home yet. Only with a single recall that lets the client keep a read
        /// delegation.
        behind: Option<Behind>,
    },
    /// Tells the home that returning delegations will take long: the client is still sending what
    /// it did under them, and what it did before.
    Returning {
        /// The recalls that this is about.
        recalls: Vec<u64>,
        /// The last operation that has to be home before the client can return these delegations.
        through: u64,
    },
    /// Renews the client's lease.
    Renew,
    /// Returns all delegations, unasked.
    Resign,
    /// Reads small files, whole, if they still have the given contents.
    ReadFiles {
        /// Files, with the numbers of the contents that the client wants.
        files: Vec<(FileId, u64)>,
    },
    /// Makes the home take parts of a store from files that it has, as if the client had uploaded
    /// them.
    Take {
        /// The number of the store.
        seq: u64,
        /// The parts, and where the home has them.
        pieces: Vec<Piece>,
    },
    /// Locks or unlocks. EAGAIN: another owner has the lock. EBUSY: the home has waited for as long
    /// as it may; a client that still waits asks again.
    Lock(Locking),
    /// Asks for the first lock that conflicts with this one.
    TestLock(Lock),
    /// The client has taken in the [changes](Pushed::Changed) that the home pushed, up to this
    /// number. A client near the home sends this. Other clients near the home wait for it when they
    /// close a file.
    Heard {
        /// The [seq](Stamp::seq) of the last stamp.
        seq: u64,
    },
    /// Waits until the client's operations up to this one are durable, as far as the home has
    /// answered them.
    Durable {
        /// The last operation that the client wants to be durable.
        through: u64,
    },
    /// The client knows that it [has company](Pushed::Company), and the home has seen all that the
    /// client did before it knew.
    Joined {
        /// The number of the message that told it.
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

/// A home's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The request is done, and there is nothing more to say.
    Done,
    /// To [`Request::Enroll`]: the home serves this key, for these volumes.
    Enrolled {
        /// The names of the volumes.
        volumes: Vec<String>,
    },
    /// To [`Request::Attach`].
    Attached {
        /// The id of the volume's root.
        root: FileId,
        /// The user as whom the home acts for this client.
        user: User,
        /// What changed since the client's stamp; for a client without a stamp, the newest stamp.
        since: Since,
        /// The last operation of this incarnation that the home has answered; 0 if none.
        heard: u64,
        /// What became of the client's delegations, if it works under delegations.
        kept: Option<Kept>,
        /// The longest file that the exported file system can hold, in bytes.
        file_len_max: u64,
        /// Whether other clients are attached to the volume.
        company: Company,
    },
    /// To [`Request::Since`]: what changed.
    Since(Since),
    /// Facts of those requested files that exist.
    Facts(Vec<Facts>),
    /// The files that have another version, or are gone.
    Stale(Vec<FileId>),
    /// Part of a directory's listing, in the order of names.
    Listing {
        /// Facts of the directory.
        dir: Box<Facts>,
        /// Names, with facts of the files that they mean.
        entries: Vec<NamedFacts>,
        /// The client's cached listing is current, and `entries` is empty.
        same: bool,
        /// More names follow.
        more: bool,
        /// Listed files on which the client got no delegation, if it works under delegations.
        withheld: Vec<FileId>,
        /// A recall with a greater number takes back what this answer gives, even if it overtakes
        /// the answer.
        given: u64,
        /// The answer takes all changes up to this number into account.
        seq: u64,
        /// The delegation that the client has on the directory now, if it works under delegations.
        hold: Hold,
    },
    /// To [`Request::Delegate`]: facts of those files that exist. The client has the delegation on
    /// each of them.
    Delegated {
        /// Facts of the files.
        known: Vec<Facts>,
        /// A recall with a greater number takes back what this answer gives, even if it overtakes
        /// the answer.
        given: u64,
        /// The answer takes all changes up to this number into account.
        seq: u64,
    },
    /// Bytes of a file; fewer than requested only at its end.
    Data(Bytes),
    /// The file has other contents than the client thought.
    Changed,
    /// How operations ended. The list is shorter than the request if the home stopped before the
    /// end.
    Applied(Vec<Applied>),
    /// How much the volume can hold.
    Space {
        /// Bytes that it can hold.
        total: u64,
        /// Bytes that can still be written.
        free: u64,
        /// Files that exist.
        files: u64,
        /// Files that can still be made.
        files_free: u64,
    },
    /// Ids that only this client may use: the first, and how many.
    Ids(FileId, u64),
    /// Whole files. The answer leaves out files that have other contents or that the user may not
    /// read. It ends before the first file that does not fit.
    Files(Vec<(FileId, Bytes)>),
    /// The indices, from 0, of the pieces that the home took. The other pieces are no longer, or
    /// never were, where the client said.
    Taken(Vec<u64>),
    /// A lock that conflicts with the tested one, if there is one.
    InTheWay(Option<Lock>),
    /// The exported file system refuses.
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
    /// Grows with each such message. A message with a smaller number is outdated.
    pub number: u64,
    /// Other clients are attached to the volume.
    pub others: bool,
}
wire_struct!(Company { number, others });

/// A name, with facts of the file that it means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFacts {
    /// The name.
    pub name: Vec<u8>,
    /// Facts of the file.
    pub facts: Facts,
}
wire_struct!(NamedFacts { name, facts });

/// A message that a home pushes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// Other clients or programs changed these files: a break of the client's callbacks on them.
    /// The client has been told of all changes up to the stamp, unless `more` is set.
    Changed {
        /// The files.
        files: Vec<FileId>,
        /// The stamp up to which the changes are told.
        stamp: Stamp,
        /// Further messages will tell of other files that changed up to the stamp.
        more: bool,
    },
    /// The home wants delegations back.
    Recall(Vec<Recall>),
    /// Another client waits for bytes of a store that is [behind](Behind): the client should upload
    /// them first.
    Wanted {
        /// The number of the store.
        seq: u64,
        /// Their offset in the upload.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// The home will neither push nor do anything for this client before it attaches again.
    Detached,
    /// Other clients attach to the volume, or the last of them has left. Clients that attach wait
    /// until this client has [joined](Request::Joined) them.
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

/// Encoded as its place in [`FsError::ALL`], from 1.
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

/// Encodes a message for sending, compressed if that makes it shorter. The first byte tells which.
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

/// Decodes what [`pack`] made.
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
