//! Hot worlds: all programs use the same few files at the same time.
//!
//! There are two or three names, in the root and in one more directory. In each round most calls
//! are about one file and one directory, the *focus*. Programs of one client only look, those of
//! another one change something. A program makes up to three calls without waiting for others.
//! Many of them list attributes, rename, or remove a name and make it again. So clients often ask
//! for what is on its way to another one, and answers come when what they are about has changed.

use super::call::{Call, OpenNumber};
use super::choice::View;
use super::oracle::Known;
use host::SplitMix64;
use types::{FileId, Kind};
use vfs::fs::{OpenFlags, RenameFlags, XattrMode};

/// One seed in this many makes a hot world.
const SEEDS_PER_HOT: u64 = 4;
/// Calls of a round, at most: the oracle tries all their orders.
const CALLS_MAX: u64 = 7;
/// Calls of a program in a round, at most.
const PROGRAM_CALLS_MAX: u64 = 3;
/// Files with a name besides directories, from which on programs make no new ones.
const FILES_MAX: usize = 4;
/// Open files of one client, at most.
const OPENS_MAX: usize = 4;
const BLOCK: u64 = 4096;
/// Of 100 calls of a client that does both, so many only look.
const LOOKS: u64 = 40;

/// What the seed has drawn for a hot world.
pub(super) struct Heat {
    name_count: u64,
    /// A client crashes in one of so many rounds.
    pub(super) rounds_per_crash: u64,
    /// Clients, at least.
    pub(super) clients_min: u64,
    /// There is only one manager.
    pub(super) has_one_manager: bool,
}

/// What most calls of a round are about.
pub(super) struct Focus {
    file: Option<FileId>,
    directory: Option<FileId>,
    name: String,
    /// By client.
    roles: Vec<Role>,
}

/// What the programs of a client do in a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Look,
    Change,
    Both,
}

impl Focus {
    fn role(&self, client: usize) -> Role {
        self.roles.get(client).copied().unwrap_or(Role::Both)
    }

    /// True if the programs of this client may look at files.
    pub(super) fn lets_look(&self, client: usize) -> bool {
        self.role(client) != Role::Change
    }
}

impl Heat {
    /// Draws whether a seed's world is hot, and how.
    pub(super) fn draw(seed: u64) -> Option<Heat> {
        let random = SplitMix64::new(seed ^ 0x4ea7);
        let is_hot = random.chance(1, SEEDS_PER_HOT);
        is_hot.then(|| Heat {
            name_count: 2 + random.below(2),
            rounds_per_crash: [20, 100, 1000][random.below(3) as usize],
            clients_min: 2 + random.below(2),
            has_one_manager: random.chance(1, 2),
        })
    }

    /// How many programs make calls in a round.
    pub(super) fn programs(&self, random: &SplitMix64) -> u64 {
        2 + random.below(3)
    }

    /// Leaves only some clients in most rounds, so that programs of one client meet, too.
    pub(super) fn choose_clients(&self, random: &SplitMix64, living: &mut Vec<usize>) {
        while living.len() > 2 && random.chance(1, 2) {
            living.swap_remove(random.below(living.len() as u64) as usize);
        }
    }

    /// How many calls a program makes in a round in which others make `planned` ones.
    pub(super) fn calls(&self, random: &SplitMix64, planned: u64) -> u64 {
        (1 + random.below(PROGRAM_CALLS_MAX)).min(CALLS_MAX.saturating_sub(planned))
    }

    /// Draws what most calls of a round are about.
    pub(super) fn focus(&self, random: &SplitMix64, all: &[Known], clients: usize) -> Focus {
        let of_kind = |is_directory: bool| {
            let is_wanted = |f: &&Known| f.nlink > 0 && (f.kind == Kind::Directory) == is_directory;
            let files: Vec<FileId> = all.iter().filter(is_wanted).map(|f| f.id).collect();
            files.get(random.below(files.len() as u64) as usize).copied()
        };
        let role = |_| [Role::Look, Role::Change, Role::Both][random.below(3) as usize];
        let roles = (0..clients).map(role).collect();
        Focus { file: of_kind(false), directory: of_kind(true), name: self.name(random), roles }
    }

    fn name(&self, random: &SplitMix64) -> String {
        char::from(b'a' + random.below(self.name_count) as u8).to_string()
    }

    /// The next call of a program of `client` that has just made `last`. `None` if another kind of
    /// call is to be made.
    pub(super) fn call(
        &self,
        random: &SplitMix64,
        client: usize,
        focus: &Focus,
        view: &View,
        last: Option<&Call>,
    ) -> Option<Call> {
        let one_in = |count: u64| random.chance(1, count);
        let rather = |focus: Option<FileId>, from: &[FileId]| match focus.filter(|id| from.contains(id) && !one_in(4)) {
            Some(id) => Some(id),
            None => from.get(random.below(from.len() as u64) as usize).copied(),
        };
        let name = || if one_in(2) { focus.name.clone() } else { self.name(random) };
        let of_kind = |kind: Kind| -> Vec<FileId> {
            view.files.iter().filter(|f| f.kind == kind && f.nlink > 0).map(|f| f.id).collect()
        };
        let (directories, files) = (of_kind(Kind::Directory), of_kind(Kind::File));
        let file = rather(focus.file, &files);
        let opens_of = |is_directory: bool| -> Vec<OpenNumber> {
            let is_wanted = |(_, id): &&(OpenNumber, FileId)| directories.contains(id) == is_directory;
            view.opens.iter().filter(is_wanted).map(|(open, _)| *open).collect()
        };
        let pick_open = |from: Vec<OpenNumber>| from.get(random.below(from.len() as u64) as usize).copied();
        let can_open = view.opens.len() < OPENS_MAX;
        let dir = rather(focus.directory, &directories)?;
        // What was removed or moved comes back.
        match last {
            Some(Call::Unlink { dir, name }) if one_in(2) => {
                return Some(Call::Link { id: file?, dir: *dir, name: name.clone() });
            }
            Some(Call::Rename { dir, name, to_dir, to, flags }) if one_in(2) => {
                let (dir, to_dir, name, to) = (*to_dir, *dir, to.clone(), name.clone());
                return Some(Call::Rename { dir, name, to_dir, to, flags: *flags });
            }
            _ => {}
        }
        let (next, fill) = (view.next_open, 1 + random.below(255) as u8);
        let drawn = match focus.role(client) {
            Role::Look => random.below(LOOKS),
            Role::Change => LOOKS + random.below(100 - LOOKS),
            Role::Both => random.below(100),
        };
        Some(match drawn {
            0..12 => Call::Lookup { dir, name: name() },
            12..22 => Call::Getattr { id: if one_in(2) { dir } else { file? } },
            22..LOOKS => match view.opens.iter().find(|(_, id)| *id == dir) {
                Some((open, _)) => Call::List { open: *open, plus: !one_in(6) },
                None if can_open => Call::OpenDirectory { id: dir, open: next },
                None => Call::CloseDirectory { open: pick_open(opens_of(true))? },
            },
            LOOKS..46 if can_open && files.len() < FILES_MAX => {
                Call::Create { dir, name: name(), mode: 0o600, open: next, append: false }
            }
            46..48 if directories.len() < 2 => Call::MakeDirectory { dir: FileId::ROOT, name: name() },
            48..55 => Call::Unlink { dir, name: name() },
            55..62 => Call::Link { id: file?, dir, name: name() },
            62..76 => {
                let to_dir = if one_in(2) { dir } else { rather(None, &directories)? };
                let flags = RenameFlags { no_replace: false, exchange: one_in(4) };
                Call::Rename { dir, name: name(), to_dir, to: name(), flags }
            }
            76..82 => {
                let (open, offset) = (pick_open(opens_of(false))?, random.below(3) * BLOCK);
                Call::Write { open, offset, fill, len: 1 + random.below(300) as u32 }
            }
            82..85 => Call::Append { open: pick_open(opens_of(false))?, fill, len: 1 + random.below(300) as u32 },
            85..89 => Call::Read { open: pick_open(opens_of(false))?, offset: 0, len: 4 * BLOCK as u32 },
            89..92 => Call::Mode { id: file?, mode: 0o600 + random.below(64) as u32 },
            92..94 => {
                let value = "v".repeat(random.below(30) as usize);
                Call::SetXattr { id: file?, name: "user.a".to_owned(), value, mode: XattrMode::Any }
            }
            94..96 if can_open => {
                let flags = OpenFlags { read: true, write: one_in(2), ..OpenFlags::default() };
                Call::Open { id: file?, open: next, flags }
            }
            _ => return None,
        })
    }
}
