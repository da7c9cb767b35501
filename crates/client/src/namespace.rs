//! Names: lookup, making, linking, removing, renaming and listing, as attempts (see `state`).
//!
//! Every change touches directories and inodes in memory. It is atomic because one cut takes all of
//! it.

use crate::core::Core;
use crate::inode::Inode;
use crate::state::{Attempt, ClientState, INODE_DELTA_BYTES, Miss, Stop, in_directory};
use crate::touched;
use bytes::Bytes;
use manager::InodeRecord;
use manager::planted::{self, Bug};
use policy::space::Purpose;
use std::sync::Arc;
use std::time::Duration;
use types::{Attr, FileId, FsError, Kind};
use vfs::fs::{
    Cred, DirEntry, Entry, Handle, LINK_COUNT_MAX, NAME_LEN_MAX, NewNode, OpenFlags, RenameFlags, SYMLINK_LEN_MAX,
};
use vfs::perm::{self, Subject};
use vfs::{acl, perm::EXECUTE, perm::READ, perm::WRITE};

/// Bytes of payload that the next cut needs for a change of one name, at most: a bucket, its split
/// and two inodes.
const NAME_CHANGE_BYTES: u64 = 3 * 8192;

/// Number of orphans removed by one cut: their deltas fit into the smallest segment.
const REMOVALS_PER_CUT: usize = 2048;

/// What the permission rules need of an inode.
pub(crate) fn subject(inode: &Inode) -> Subject<'_> {
    let r = &inode.record;
    let acl = inode.xattrs.get(acl::XATTR_ACCESS).map(|v| &v[..]);
    Subject { mode: r.mode, uid: r.uid, gid: r.gid, kind: r.kind, acl }
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        [] => Err(FsError::NotFound),
        n if n.len() > NAME_LEN_MAX => Err(FsError::NameTooLong),
        n if n.contains(&0) || n.contains(&b'/') => Err(FsError::InvalidArgument),
        _ => Ok(()),
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Properties of a new node.
pub(crate) struct Making<'a> {
    pub kind: Kind,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u64,
    pub target: Option<&'a [u8]>,
}

impl Core {
    pub(crate) fn entry(&self, attr: Attr) -> Entry {
        Entry::new(attr, self.valid())
    }

    /// How long an answer under a token may be kept.
    pub(crate) fn valid(&self) -> Duration {
        let lease = self.config.lease;
        self.rest_of_lease().map_or(lease, |rest| rest.min(lease))
    }

    pub(crate) fn attr(&self, inode: &Inode) -> Attr {
        inode.record.attr(self.config.block_size)
    }

    /// A live directory that `cred` may search.
    fn searchable<'s>(&self, s: &'s mut ClientState, cred: &Cred, id: FileId) -> Attempt<&'s mut Inode> {
        let dir = s.directory(id)?;
        perm::check(cred, &subject(dir), EXECUTE)?;
        Ok(dir)
    }

    pub(crate) fn try_lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Attempt<Entry> {
        let s = &mut *self.begin();
        check_name(name)?;
        let dir = self.searchable(s, cred, parent)?;
        let (id, kind) = match name {
            b"." => (parent, Kind::Directory),
            b".." => (dir.record.parent, Kind::Directory),
            _ => s.find(parent, name)?.ok_or(FsError::NotFound)?,
        };
        match kind {
            Kind::File => self.glance(s, id),
            _ => Ok(self.entry(self.attr(s.inode(id)?))),
        }
    }

    pub(crate) fn try_find(&self, parent: FileId, name: &[u8]) -> Attempt<Option<FileId>> {
        let s = &mut *self.begin();
        Ok(s.find(parent, name)?.map(|(id, _)| id))
    }

    pub(crate) fn try_getattr(&self, id: FileId) -> Attempt<Entry> {
        let s = &mut *self.begin();
        self.glance(s, id)
    }

    /// Attributes that only a program will look at: by a token, or as another client has just told
    /// them that changes the file.
    fn glance(&self, s: &mut ClientState, id: FileId) -> Attempt<Entry> {
        match s.inode(id) {
            Ok(inode) => Ok(self.entry(self.attr(inode))),
            Err(Stop::Miss(Miss::Token(..))) => match touched::seen(id) {
                Some(seen) if seen.grant_count == s.tokens.grant_count() => {
                    let attr = seen.inode.attr(self.config.block_size);
                    match planted::is(Bug::GlimpseIsKept) {
                        true => Ok(self.entry(attr)),
                        // The name is under the directory's token.
                        false => Ok(Entry { valid: Duration::ZERO, ..self.entry(attr) }),
                    }
                }
                _ => Err(Stop::Miss(Miss::Glimpse(id))),
            },
            Err(stop) => Err(stop),
        }
    }

    /// The size of a file, under a token.
    pub(crate) fn try_size(&self, id: FileId) -> Attempt<u64> {
        let s = &mut *self.begin();
        Ok(s.inode(id)?.record.size)
    }

    /// Checks that `cred` may add `name` to `parent`, that the name is free, and that everything
    /// that the insert needs is in memory.
    fn ready_to_add(&self, s: &mut ClientState, cred: &Cred, parent: FileId, name: &[u8]) -> Attempt<()> {
        check_name(name)?;
        let dir = self.searchable(s, cred, parent)?;
        if is_dots(name) {
            return Err(FsError::Exists.into());
        }
        if dir.record.nlink == 0 {
            return Err(FsError::NotFound.into());
        }
        if s.find(parent, name)?.is_some() {
            return Err(FsError::Exists.into());
        }
        let dir = s.directory(parent)?;
        perm::may_create(cred, &subject(dir))?;
        self.ready_to_insert(dir, name)
    }

    /// Checks that everything that inserting `name` needs is in memory.
    fn ready_to_insert(&self, dir: &Inode, name: &[u8]) -> Attempt<()> {
        let id = dir.record.id;
        if dir.known_until != u64::MAX {
            return Err(Stop::Miss(Miss::Map(id)));
        }
        let directory = dir.directory.as_ref().ok_or(FsError::NotADirectory)?;
        directory.can_insert(&dir.record.shape, name).map_err(in_directory(id))
    }

    /// Inserts or replaces a name. The caller has checked everything.
    fn put_name(&self, s: &mut ClientState, parent: FileId, name: &[u8], id: FileId, kind: Kind) -> Attempt<()> {
        let now = self.wall();
        let dir = s.directory(parent)?;
        let directory = dir.directory.as_mut().ok_or(FsError::NotADirectory)?;
        let before = directory.find(&dir.record.shape, name).map_err(in_directory(parent))?.map(|entry| entry.id);
        let dirtied = directory.insert(&mut dir.record.shape, name, id, kind).map_err(in_directory(parent))?;
        s.note_name(parent, name, before, Some((id, kind)));
        self.touch_directory(s, parent, dirtied, now);
        Ok(())
    }

    /// Removes a name. The caller has checked everything.
    fn take_name(&self, s: &mut ClientState, parent: FileId, name: &[u8]) -> Attempt<()> {
        let now = self.wall();
        let dir = s.directory(parent)?;
        let directory = dir.directory.as_mut().ok_or(FsError::NotADirectory)?;
        let taken = directory.remove(&mut dir.record.shape, name).map_err(in_directory(parent))?;
        s.note_name(parent, name, taken.as_ref().map(|(entry, _)| entry.id), None);
        self.touch_directory(s, parent, taken.map_or(0, |t| t.1), now);
        Ok(())
    }

    fn touch_directory(&self, s: &mut ClientState, id: FileId, dirtied: u64, now: types::Time) {
        if let Some(dir) = s.inodes.get_mut(&id) {
            dir.record.mtime = now;
            dir.record.ctime = now;
            dir.record.size = dir.record.shape.entry_bytes;
            dir.pending.record = true;
        }
        s.mark(id, dirtied, self.host.clock.now());
    }

    /// Changes the link count and ctime of an inode.
    fn relink(&self, s: &mut ClientState, id: FileId, change: i32) {
        let now = self.wall();
        if let Some(inode) = s.inodes.get_mut(&id) {
            inode.record.nlink = inode.record.nlink.saturating_add_signed(change);
            inode.record.ctime = now;
            inode.pending.record = true;
        }
        s.mark(id, 0, self.host.clock.now());
    }

    pub(crate) fn make(
        self: &Arc<Self>,
        s: &mut ClientState,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new: Making,
    ) -> Attempt<FileId> {
        self.ready_to_add(s, cred, parent, name)?;
        let target_len = new.target.map_or(0, <[u8]>::len);
        match new.target {
            Some([]) => return Err(FsError::NotFound.into()),
            Some(target) if target.contains(&0) => return Err(FsError::InvalidArgument.into()),
            _ => {}
        }
        if target_len > SYMLINK_LEN_MAX {
            return Err(FsError::NameTooLong.into());
        }
        let dir = s.directory(parent)?;
        let default = dir.xattrs.get(acl::XATTR_DEFAULT).map(|v| &v[..]);
        let start = perm::new_node_mode(cred, &subject(dir), default, new.kind, new.mode, new.umask)?;
        let acl_len = start.access_acl.iter().chain(&start.default_acl).map(|a| a.len() + 64).sum::<usize>();
        let need = (target_len + acl_len) as u64;
        s.writable(parent)?;
        self.admit(s, NAME_CHANGE_BYTES + need, Purpose::Write)?;
        let id = self.number(s)?;
        self.make_room(s);
        let now = self.wall();
        let is_dir = new.kind == Kind::Directory;
        let shape = match is_dir {
            true => manager::DirectoryShape { buckets: 1, hash_key: self.host.random.next_u64(), ..Default::default() },
            false => Default::default(),
        };
        let record = InodeRecord {
            id,
            kind: new.kind,
            mode: start.mode,
            nlink: if is_dir { 2 } else { 1 },
            uid: cred.uid,
            gid: start.gid,
            rdev: new.rdev,
            size: target_len as u64,
            stored_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            parent: if is_dir { parent } else { FileId::new(0) },
            shape,
        };
        let mut inode = Inode::fresh(record, self.config.block_size);
        inode.pending.record = true;
        inode.target = new.target.map(Bytes::copy_from_slice);
        inode.pending.target = inode.target.is_some();
        let acls = [(acl::XATTR_ACCESS, start.access_acl), (acl::XATTR_DEFAULT, start.default_acl)];
        for (key, value) in acls.into_iter().filter_map(|(k, v)| v.map(|v| (k, v))) {
            inode.xattrs.insert(key.to_vec(), value.into());
            inode.pending.xattrs.insert(key.to_vec());
        }
        s.inodes.insert(id, inode);
        s.hand.push_back(id);
        s.mark(id, need, self.host.clock.now());
        self.put_name(s, parent, name, id, new.kind)?;
        if is_dir {
            self.relink(s, parent, 1);
        }
        Ok(id)
    }

    pub(crate) fn try_make(self: &Arc<Self>, cred: &Cred, parent: FileId, name: &[u8], new: Making) -> Attempt<Entry> {
        let s = &mut *self.begin();
        let id = self.make(s, cred, parent, name, new)?;
        Ok(self.entry(self.attr(s.inode(id)?)))
    }

    pub(crate) fn try_mknod(
        self: &Arc<Self>,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        node: NewNode,
    ) -> Attempt<Entry> {
        match node.kind {
            Kind::Directory | Kind::Symlink => return Err(FsError::InvalidArgument.into()),
            Kind::CharDevice | Kind::BlockDevice if cred.uid != 0 => return Err(FsError::NotPermitted.into()),
            _ => {}
        }
        let rdev = if matches!(node.kind, Kind::CharDevice | Kind::BlockDevice) { node.rdev } else { 0 };
        let new = Making { kind: node.kind, mode: node.mode, umask: node.umask, rdev, target: None };
        self.try_make(cred, parent, name, new)
    }

    pub(crate) fn try_create(
        self: &Arc<Self>,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        (mode, umask): (u32, u32),
        flags: OpenFlags,
    ) -> Attempt<(Entry, Handle)> {
        let s = &mut *self.begin();
        let id = self.make(s, cred, parent, name, Making { kind: Kind::File, mode, umask, rdev: 0, target: None })?;
        let handle = s.open(id, flags);
        Ok((self.entry(self.attr(s.inode(id)?)), handle))
    }

    pub(crate) fn try_link(&self, cred: &Cred, id: FileId, parent: FileId, name: &[u8]) -> Attempt<Entry> {
        let s = &mut *self.begin();
        let record = s.inode(id)?.record;
        self.ready_to_add(s, cred, parent, name)?;
        match record {
            r if r.kind == Kind::Directory => return Err(FsError::NotPermitted.into()),
            r if r.nlink == 0 => return Err(FsError::NotFound.into()),
            r if r.nlink >= LINK_COUNT_MAX => return Err(FsError::TooManyLinks.into()),
            _ => {}
        }
        s.writable(parent)?;
        s.writable(id)?;
        self.admit(s, NAME_CHANGE_BYTES, Purpose::Write)?;
        self.put_name(s, parent, name, id, record.kind)?;
        self.relink(s, id, 1);
        Ok(self.entry(self.attr(s.inode(id)?)))
    }

    /// The inode behind a name, after checking that `cred` may remove the name.
    fn ready_to_take(&self, s: &mut ClientState, cred: &Cred, parent: FileId, name: &[u8]) -> Attempt<InodeRecord> {
        check_name(name)?;
        self.searchable(s, cred, parent)?;
        let (id, _) = s.find(parent, name)?.ok_or(FsError::NotFound)?;
        let record = s.inode(id)?.record;
        let dir = s.directory(parent)?;
        perm::may_delete(cred, &subject(dir), record.uid)?;
        if dir.known_until != u64::MAX {
            return Err(Stop::Miss(Miss::Map(parent)));
        }
        Ok(record)
    }

    pub(crate) fn try_unlink(self: &Arc<Self>, cred: &Cred, parent: FileId, name: &[u8]) -> Attempt<()> {
        let s = &mut *self.begin();
        if is_dots(name) {
            return Err(FsError::IsADirectory.into());
        }
        let victim = self.ready_to_take(s, cred, parent, name)?;
        if victim.kind == Kind::Directory {
            return Err(FsError::IsADirectory.into());
        }
        s.writable(parent)?;
        if !planted::is(Bug::UnlinkUnderRead) {
            s.writable(victim.id)?;
        }
        self.admit(s, NAME_CHANGE_BYTES, Purpose::Remove)?;
        self.take_name(s, parent, name)?;
        self.relink(s, victim.id, -1);
        self.lost_a_name(s, victim.id);
        Ok(())
    }

    pub(crate) fn try_rmdir(self: &Arc<Self>, cred: &Cred, parent: FileId, name: &[u8]) -> Attempt<()> {
        let s = &mut *self.begin();
        match name {
            b"." => return Err(FsError::InvalidArgument.into()),
            b".." => return Err(FsError::NotEmpty.into()),
            _ => {}
        }
        let victim = self.ready_to_take(s, cred, parent, name)?;
        if victim.kind != Kind::Directory {
            return Err(FsError::NotADirectory.into());
        }
        if victim.shape.entries > 0 {
            return Err(FsError::NotEmpty.into());
        }
        s.writable(parent)?;
        s.writable(victim.id)?;
        self.admit(s, NAME_CHANGE_BYTES, Purpose::Remove)?;
        self.kernel_may_end(parent, name, Some(victim.id))?;
        self.take_name(s, parent, name)?;
        self.relink(s, parent, -1);
        self.drop_directory(s, victim.id);
        Ok(())
    }

    /// Asks whether the kernel means this directory with a name that ends: see
    /// [`Kernel::may_end`](vfs::kernel::Kernel::may_end). The caller holds the tokens and has
    /// checked everything else.
    fn kernel_may_end(&self, parent: FileId, name: &[u8], directory: Option<FileId>) -> Attempt<()> {
        let agrees = self.kernel.get().is_none_or(|kernel| kernel.may_end(parent, name, directory));
        if agrees { Ok(()) } else { Err(FsError::Stale.into()) }
    }

    /// Drops the links of a directory that has lost its name.
    fn drop_directory(self: &Arc<Self>, s: &mut ClientState, id: FileId) {
        self.relink(s, id, -2);
        self.lost_a_name(s, id);
    }

    /// Removes a file that has no name and is not open here, or leaves it to a client where it is
    /// open.
    fn lost_a_name(self: &Arc<Self>, s: &mut ClientState, id: FileId) {
        if !s.opens.contains_key(&id) {
            self.abandoned(s, id);
        }
    }

    /// True if `id` is `of` or below it. Loads the chain of parents.
    fn is_within(&self, s: &mut ClientState, mut id: FileId, of: FileId) -> Attempt<bool> {
        loop {
            if id == of {
                return Ok(true);
            }
            let parent = s.directory(id)?.record.parent;
            if id == FileId::ROOT || parent == id {
                return Ok(false);
            }
            id = parent;
        }
    }

    pub(crate) fn try_rename(
        self: &Arc<Self>,
        cred: &Cred,
        (from_dir, from): (FileId, &[u8]),
        (to_dir, to): (FileId, &[u8]),
        flags: RenameFlags,
    ) -> Attempt<()> {
        let s = &mut *self.begin();
        if flags.no_replace && flags.exchange {
            return Err(FsError::InvalidArgument.into());
        }
        check_name(from)?;
        check_name(to)?;
        self.searchable(s, cred, from_dir)?;
        self.searchable(s, cred, to_dir)?;
        if is_dots(from) || is_dots(to) {
            return Err(if flags.no_replace { FsError::Exists } else { FsError::Busy }.into());
        }
        let (id, kind) = s.find(from_dir, from)?.ok_or(FsError::NotFound)?;
        // Also before its parents are looked at: they may be gone, too.
        if s.directory(to_dir)?.record.nlink == 0 {
            return Err(FsError::NotFound.into());
        }
        let target = s.find(to_dir, to)?;
        match target {
            Some(_) if flags.no_replace => return Err(FsError::Exists.into()),
            None if flags.exchange => return Err(FsError::NotFound.into()),
            _ => {}
        }
        let is_dir = kind == Kind::Directory;
        if is_dir && self.is_within(s, to_dir, id)? {
            return Err(FsError::InvalidArgument.into());
        }
        if let Some((target, Kind::Directory)) = target
            && self.is_within(s, from_dir, target)?
        {
            return Err(if flags.exchange { FsError::InvalidArgument } else { FsError::NotEmpty }.into());
        }
        if target.is_some_and(|(target, _)| target == id) {
            // Two names of a file, which the kernel may still take for directories, or one name.
            let may_end = || self.kernel_may_end(to_dir, to, is_dir.then_some(id));
            return if flags.exchange { Ok(()) } else { may_end() };
        }
        let source = self.ready_to_take(s, cred, from_dir, from)?;
        let victim = match target {
            Some(_) => Some(self.ready_to_take(s, cred, to_dir, to)?),
            None => {
                perm::may_create(cred, &subject(s.directory(to_dir)?))?;
                None
            }
        };
        let replaced = victim.filter(|_| !flags.exchange);
        match replaced.map(|r| r.kind == Kind::Directory) {
            Some(false) if is_dir => return Err(FsError::NotADirectory.into()),
            Some(true) if !is_dir => return Err(FsError::IsADirectory.into()),
            _ => {}
        }
        if from_dir != to_dir {
            let moves_up = |r: &InodeRecord| r.kind == Kind::Directory;
            for moved in [Some(source), victim.filter(|_| flags.exchange)].into_iter().flatten().filter(moves_up) {
                perm::check(cred, &subject(s.inode(moved.id)?), WRITE)?;
            }
        }
        if is_dir && replaced.is_some_and(|r| r.shape.entries > 0) {
            return Err(FsError::NotEmpty.into());
        }
        self.ready_to_insert(s.directory(to_dir)?, to)?;
        self.ready_to_insert(s.directory(from_dir)?, from)?;
        let to_dir_changes = if planted::is(Bug::RenameTargetUnderRead) { from_dir } else { to_dir };
        for changed in [from_dir, to_dir_changes, id].into_iter().chain(victim.map(|v| v.id)) {
            s.writable(changed)?;
        }
        self.admit(s, 2 * NAME_CHANGE_BYTES, Purpose::Write)?;
        if !flags.exchange {
            let ended = replaced.filter(|r| r.kind == Kind::Directory).map(|r| r.id);
            self.kernel_may_end(to_dir, to, ended)?;
        }

        self.put_name(s, to_dir, to, id, kind)?;
        match &victim {
            Some(v) if flags.exchange => self.put_name(s, from_dir, from, v.id, v.kind)?,
            _ => self.take_name(s, from_dir, from)?,
        }
        self.relink(s, id, 0);
        if from_dir != to_dir && is_dir {
            self.move_directory(s, id, from_dir, to_dir);
        }
        if let Some(v) = victim {
            let victim_is_dir = v.kind == Kind::Directory;
            if flags.exchange {
                self.relink(s, v.id, 0);
                if from_dir != to_dir && victim_is_dir {
                    self.move_directory(s, v.id, to_dir, from_dir);
                }
            } else if victim_is_dir {
                self.relink(s, to_dir, -1);
                self.drop_directory(s, v.id);
            } else {
                self.relink(s, v.id, -1);
                self.lost_a_name(s, v.id);
            }
        }
        Ok(())
    }

    fn move_directory(&self, s: &mut ClientState, id: FileId, from: FileId, to: FileId) {
        if let Some(inode) = s.inodes.get_mut(&id) {
            inode.record.parent = to;
        }
        self.relink(s, from, -1);
        self.relink(s, to, 1);
    }

    pub(crate) fn try_opendir(&self, cred: &Cred, id: FileId) -> Attempt<Handle> {
        let s = &mut *self.begin();
        let dir = s.directory(id)?;
        perm::check(cred, &subject(dir), READ)?;
        Ok(s.open(id, OpenFlags { read: true, ..Default::default() }))
    }

    /// With `load`, the attempt stops for attributes that are not in memory. This is done once: an
    /// inode that is gone by then is listed without attributes.
    pub(crate) fn try_readdir(
        &self,
        id: FileId,
        handle: Handle,
        cookie: u64,
        count_max: usize,
        plus: bool,
        load: bool,
    ) -> Attempt<Vec<DirEntry>> {
        let s = &mut *self.begin();
        s.directory_handle(id, handle)?;
        self.access_time(s, id);
        let dir = s.directory(id)?;
        let mut out = Vec::new();
        if dir.record.nlink > 0 {
            let dots: [(u64, &[u8], FileId); 2] = [(1, b".", id), (2, b"..", dir.record.parent)];
            for (at, name, id) in dots.into_iter().filter(|d| d.0 > cookie) {
                out.push(DirEntry { name: name.to_vec(), id, kind: Kind::Directory, cookie: at, attr: None });
            }
        }
        out.truncate(count_max);
        let room = count_max - out.len();
        let directory = dir.directory.as_ref().ok_or(FsError::NotADirectory)?;
        if dir.record.shape.entries > 0 && room > 0 {
            let listed = match directory.list(&dir.record.shape, cookie, room) {
                Ok(listed) => listed,
                Err(_) if !out.is_empty() => Vec::new(),
                Err(stop) => return Err(in_directory(id)(stop)),
            };
            out.extend(listed.into_iter().map(|e| DirEntry {
                name: e.name.into(),
                id: e.id,
                kind: e.kind,
                cookie: e.cookie,
                attr: None,
            }));
        }
        if plus {
            let missing: Vec<FileId> = out.iter().map(|e| e.id).filter(|id| s.readable(*id).is_none()).collect();
            if load && !missing.is_empty() {
                return Err(Stop::Miss(Miss::Attributes(missing)));
            }
            for e in &mut out {
                e.attr = s.readable(e.id).map(|inode| self.attr(inode));
            }
        }
        Ok(out)
    }

    /// Makes the root directory of a new file system.
    pub(crate) fn make_root(&self, mode: u32, uid: u32, gid: u32) {
        let now = self.wall();
        let hash_key = self.host.random.next_u64();
        let record = InodeRecord {
            id: FileId::ROOT,
            kind: Kind::Directory,
            mode,
            nlink: 2,
            uid,
            gid,
            rdev: 0,
            size: 0,
            stored_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            parent: FileId::ROOT,
            shape: manager::DirectoryShape { buckets: 1, hash_key, ..Default::default() },
        };
        let s = &mut *self.begin();
        let mut inode = Inode::fresh(record, self.config.block_size);
        inode.pending.record = true;
        s.inodes.insert(FileId::ROOT, inode);
        s.mark(FileId::ROOT, 0, self.host.clock.now());
    }

    /// Removes files that had lost their last name before a crash, and lost their last handle by
    /// it.
    pub(crate) async fn remove_orphans(self: &Arc<Self>) -> Result<u64, FsError> {
        let mut count = 0;
        for manager in self.managers.each() {
            let orphans = manager.orphans().await.map_err(|_| FsError::Io)?;
            for some in orphans.chunks(REMOVALS_PER_CUT) {
                count += some.len() as u64;
                self.commit().await?;
                let s = &mut *self.begin();
                some.iter().for_each(|file| s.space.owe(file.raw(), 0, s.last_cut + 1));
                s.removals.extend(some);
                s.dirty_bytes += some.len() as u64 * INODE_DELTA_BYTES;
                s.dirty_since.get_or_insert(self.host.clock.now());
            }
        }
        Ok(count)
    }
}
