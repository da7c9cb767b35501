//! How the seed chooses the calls of programs: few names and few files, so that clients meet.

use super::call::{Answered, Call, OpenNumber, Seen};
use super::oracle::Known;
use host::SplitMix64;
use std::collections::BTreeSet;
use types::{FileId, Kind};
use vfs::fs::{OpenFlags, RenameFlags, XattrMode};

/// Files besides directories, at most: with more, programs rather remove some.
const FILES_MAX: usize = 8;
const DIRECTORIES_MAX: usize = 5;
/// Open files of one client, at most.
const OPENS_MAX: usize = 5;

/// What a client may use in its next call.
pub struct View<'a> {
    /// The files that there are, of those that an answer to this client has named.
    pub files: &'a [Known],
    /// Its open files that no call of the same round closes.
    pub opens: &'a [(OpenNumber, FileId)],
    /// The number of the next open file.
    pub next_open: OpenNumber,
}

/// Chooses calls.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    /// What chooses.
    pub random: &'a SplitMix64,
    /// Offsets and lengths are near multiples of this, in bytes.
    pub block_size: u64,
    /// Number of names in a directory that programs use.
    pub name_count: u64,
    /// A file that programs rather choose than others.
    pub hot: Option<FileId>,
}

impl Choice<'_> {
    fn one_in(&self, count: u64) -> bool {
        self.random.chance(1, count)
    }

    fn pick<T: Copy>(&self, from: &[T]) -> Option<T> {
        from.get(self.random.below(from.len() as u64) as usize).copied()
    }

    fn pick_file(&self, from: &[FileId]) -> Option<FileId> {
        match self.hot.filter(|hot| from.contains(hot) && !self.one_in(4)) {
            Some(hot) => Some(hot),
            None => self.pick(from),
        }
    }

    fn name(&self) -> String {
        char::from(b'a' + self.random.below(self.name_count) as u8).to_string()
    }

    /// The client's next call.
    pub fn call(&self, view: &View) -> Call {
        for _ in 0..50 {
            if let Some(call) = self.attempt(view) {
                return call;
            }
        }
        Call::Lookup { dir: FileId::ROOT, name: self.name() }
    }

    fn attempt(&self, view: &View) -> Option<Call> {
        let is_open = |id: FileId| view.opens.iter().any(|(_, open)| *open == id);
        let usable = |f: &&Known| f.nlink > 0 || is_open(f.id) || self.one_in(3);
        let of_kind = |kind: Kind| -> Vec<FileId> {
            view.files.iter().filter(usable).filter(|f| f.kind == kind).map(|f| f.id).collect()
        };
        let (directories, files) = (of_kind(Kind::Directory), of_kind(Kind::File));
        let all: Vec<FileId> = view.files.iter().filter(usable).map(|f| f.id).collect();
        let dir = if self.one_in(2) { FileId::ROOT } else { self.pick_file(&directories)? };
        let named = view.files.iter().filter(|f| f.nlink > 0 && f.kind != Kind::Directory);
        let names_left = named.count() < FILES_MAX;
        let open_files: Vec<OpenNumber> =
            view.opens.iter().filter(|(_, id)| !directories.contains(id)).map(|(open, _)| *open).collect();
        let open_directories: Vec<OpenNumber> =
            view.opens.iter().filter(|(_, id)| directories.contains(id)).map(|(open, _)| *open).collect();
        let can_open = view.opens.len() < OPENS_MAX;
        let (name, open) = (self.name(), view.next_open);
        Some(match self.random.below(100) {
            0..14 => Call::Lookup { dir, name },
            // Also of files that are gone: a kernel could show what it remembers of them.
            14..24 => {
                Call::Getattr { id: self.hot.filter(|_| self.one_in(2)).or(self.pick(view.files).map(|f| f.id))? }
            }
            24..32 if can_open && names_left => {
                let mode = 0o600 + self.random.below(64) as u32;
                Call::Create { dir, name, mode, open, append: self.one_in(4) }
            }
            32..35 if directories.len() < DIRECTORIES_MAX => Call::MakeDirectory { dir, name },
            35..37 if names_left => {
                let target = "t".repeat(1 + self.random.below(40) as usize);
                Call::Symlink { dir, name, target }
            }
            37..40 => Call::Link { id: self.pick_file(&all)?, dir, name },
            40..47 => Call::Unlink { dir, name },
            47..50 => Call::RemoveDirectory { dir, name },
            50..57 => {
                let to_dir = if self.one_in(2) { dir } else { self.pick_file(&directories)? };
                let flags = match self.random.below(5) {
                    0 => RenameFlags { no_replace: true, exchange: false },
                    1 => RenameFlags { no_replace: false, exchange: true },
                    _ => RenameFlags::default(),
                };
                Call::Rename { dir, name, to_dir, to: self.name(), flags }
            }
            57..62 if can_open => {
                let write = !self.one_in(3);
                let flags = OpenFlags {
                    read: !write || self.one_in(2),
                    write,
                    append: write && self.one_in(6),
                    truncate: write && self.one_in(6),
                    execute: false,
                };
                Call::Open { id: self.pick_file(&files)?, open, flags }
            }
            62..65 if can_open => Call::OpenDirectory { id: self.pick_file(&directories)?, open },
            65..70 => Call::Read { open: self.pick(&open_files)?, offset: self.offset(), len: 4 * self.len() as u32 },
            70..76 => {
                let (fill, len) = (1 + self.random.below(255) as u8, self.len() as u32);
                Call::Write { open: self.pick(&open_files)?, offset: self.offset(), fill, len }
            }
            76..79 => {
                let (fill, len) = (1 + self.random.below(255) as u8, self.len() as u32);
                Call::Append { open: self.pick(&open_files)?, fill, len }
            }
            79..81 => Call::Truncate { id: self.pick_file(&files)?, size: self.offset() },
            81..82 => Call::TruncateOpen { open: self.pick(&open_files)?, size: self.offset() },
            82..84 => Call::Mode { id: self.pick_file(&all)?, mode: 0o600 + self.random.below(64) as u32 },
            84..86 => {
                let value = "v".repeat(self.random.below(30) as usize);
                let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace][self.random.below(3) as usize];
                let name = if self.one_in(2) { "user.a" } else { "user.b" }.to_owned();
                Call::SetXattr { id: self.pick_file(&all)?, name, value, mode }
            }
            86 => Call::GetXattr { id: self.pick_file(&all)?, name: "user.a".to_owned() },
            87 if self.one_in(2) => Call::RemoveXattr { id: self.pick_file(&all)?, name: "user.a".to_owned() },
            87 => Call::ListXattr { id: self.pick_file(&all)? },
            88 => {
                let links = of_kind(Kind::Symlink);
                Call::ReadLink { id: self.pick_file(&links)? }
            }
            89..93 => Call::List { open: self.pick(&open_directories)?, plus: self.one_in(2) },
            93..97 => match self.pick(view.opens)? {
                (open, id) if directories.contains(&id) => Call::CloseDirectory { open },
                (open, _) => Call::Close { open },
            },
            97..99 => Call::Fsync { open: self.pick(&open_files)? },
            99 => Call::Sync,
            _ => return None,
        })
    }

    fn offset(&self) -> u64 {
        let block = self.random.below(4) * self.block_size;
        match self.random.below(4) {
            0 => 0,
            1 => block,
            2 => block + self.random.below(self.block_size),
            _ => self.random.below(300),
        }
    }

    fn len(&self) -> u64 {
        match self.random.below(4) {
            0 => self.block_size,
            1 => 1 + self.random.below(2 * self.block_size),
            _ => 1 + self.random.below(200),
        }
    }
}

/// The files that an answer names.
pub fn named(answered: &Answered, into: &mut BTreeSet<FileId>) {
    match answered {
        Ok(Seen::Entry(entry) | Seen::Created(entry, _)) => drop(into.insert(entry.attr.id)),
        Ok(Seen::Listed(entries)) => into.extend(entries.iter().map(|entry| entry.id)),
        _ => {}
    }
}
