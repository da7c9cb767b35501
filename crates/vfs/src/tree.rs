//! A whole tree as a sorted list, to compare two file systems or two moments of one.

use crate::fs::{Cred, FileSystem, OpenFlags, Seek};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use types::{Attr, FileId, FsError, Kind};

/// Entries asked for per readdir.
const READDIR_COUNT: usize = 1024;
/// Bytes asked for per read.
const READ_BYTES: u32 = 1 << 20;

/// One name of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeEntry {
    /// Path from the root: empty for the root itself, otherwise `/a/b`.
    pub path: Vec<u8>,
    /// The first path of the same file; it tells hard links from copies.
    pub first_path: Vec<u8>,
    /// Its attributes.
    pub attr: Attr,
    /// Hash of its contents, independent of their layout in blocks and holes; see [`ContentHash`].
    pub content: u64,
    /// Target, of symlinks.
    pub target: Option<Vec<u8>>,
    /// All extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The part of a [`TreeEntry`] that two implementations must agree on: no file ids, times, blocks,
/// or sizes of directories.
pub type TreeFacts<'a> = (
    (&'a [u8], &'a [u8], Kind, u32),
    (u32, u32, u32, u64),
    (u64, u64, Option<&'a [u8]>, &'a BTreeMap<Vec<u8>, Vec<u8>>),
);

impl TreeEntry {
    /// (path, first path, kind, mode), (nlink, uid, gid, rdev), (size, content, target, xattrs).
    pub fn facts(&self) -> TreeFacts<'_> {
        let a = &self.attr;
        let size = if a.kind == Kind::Directory { 0 } else { a.size };
        (
            (&self.path, &self.first_path, a.kind, a.mode),
            (a.nlink, a.uid, a.gid, a.rdev),
            (size, self.content, self.target.as_deref(), &self.xattrs),
        )
    }
}

/// The first difference in facts between two trees, in words; `None` if they agree.
pub fn difference(left: &[TreeEntry], right: &[TreeEntry]) -> Option<String> {
    let by_path = |t: &[TreeEntry]| t.iter().map(|e| (e.path.clone(), e.clone())).collect::<BTreeMap<_, _>>();
    let (left, right) = (by_path(left), by_path(right));
    for path in left.keys().chain(right.keys()) {
        let shown = String::from_utf8_lossy(path);
        match (left.get(path), right.get(path)) {
            (Some(_), None) => return Some(format!("{shown:?} is only in the left tree")),
            (None, _) => return Some(format!("{shown:?} is only in the right tree")),
            (Some(l), Some(r)) if l.facts() != r.facts() => {
                return Some(format!("{shown:?} differs: {:?} against {:?}", l.facts(), r.facts()));
            }
            _ => {}
        }
    }
    None
}

/// Hashes sparse contents: zeroes count as holes. Data must be added in the order of offsets, in
/// pieces that start, and except for the last end, on multiples of 4 KiB.
#[derive(Default)]
pub struct ContentHash(DefaultHasher);

const PAGE: usize = 4096;

impl ContentHash {
    /// Adds the bytes at `offset`, a multiple of 4 KiB.
    pub fn add(&mut self, offset: u64, data: &[u8]) {
        for (i, page) in data.chunks(PAGE).enumerate() {
            // Most pages of sparse files are holes. This look is many times as fast as the next.
            if page == &[0; PAGE][..page.len()] {
                continue;
            }
            if let Some(last) = page.iter().rposition(|&b| b != 0) {
                (offset + (i * PAGE) as u64, &page[..=last]).hash(&mut self.0);
            }
        }
    }

    /// The hash.
    pub fn finish(self) -> u64 {
        self.0.finish()
    }
}

/// Lists the whole tree of `fs` as the superuser, in the order of paths. Reading it may change
/// access times.
pub async fn walk(fs: &dyn FileSystem) -> Result<Vec<TreeEntry>, FsError> {
    let root = Cred::ROOT;
    let mut todo = vec![(Vec::new(), FileId::ROOT)];
    let mut first_paths = BTreeMap::new();
    let mut out = Vec::new();
    while let Some((path, id)) = todo.pop() {
        let attr = fs.getattr(id).await?.attr;
        let mut content = 0;
        let mut target = None;
        match attr.kind {
            Kind::File => content = hash_file(fs, &attr).await?,
            Kind::Symlink => target = Some(fs.readlink(id).await?.to_vec()),
            Kind::Directory => {
                let mut names = list(fs, id).await?;
                names.sort_by(|a, b| b.cmp(a));
                todo.extend(names.into_iter().map(|(n, id)| ([&path[..], b"/", &n].concat(), id)));
            }
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {}
        }
        if attr.kind != Kind::File {
            content = ContentHash::default().finish();
        }
        let mut xattrs = BTreeMap::new();
        for name in fs.listxattr(&root, id).await? {
            let value = fs.getxattr(&root, id, &name).await?.to_vec();
            xattrs.insert(name, value);
        }
        let first_path = first_paths.entry(id).or_insert_with(|| path.clone()).clone();
        out.push(TreeEntry { path, first_path, attr, content, target, xattrs });
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(out)
}

async fn list(fs: &dyn FileSystem, id: FileId) -> Result<Vec<(Vec<u8>, FileId)>, FsError> {
    let handle = fs.opendir(&Cred::ROOT, id).await?;
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let batch = fs.readdir(id, handle, cookie, READDIR_COUNT, false).await?;
        let Some(last) = batch.last() else { break };
        cookie = last.cookie;
        names.extend(batch.into_iter().filter(|e| e.name != b"." && e.name != b"..").map(|e| (e.name, e.id)));
    }
    fs.releasedir(id, handle).await?;
    Ok(names)
}

/// Reads data only and skips holes, so that sparse files of any size can be listed.
async fn hash_file(fs: &dyn FileSystem, attr: &Attr) -> Result<u64, FsError> {
    let id = attr.id;
    let handle = fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..OpenFlags::default() }).await?;
    let mut hash = ContentHash::default();
    let mut at = 0;
    while at < attr.size {
        at = match fs.lseek(id, handle, at, Seek::Data).await {
            Ok(data) => data / PAGE as u64 * PAGE as u64,
            Err(FsError::NoSuchAddress) => break,
            Err(e) => return Err(e),
        };
        let data = fs.read(id, handle, at, READ_BYTES).await?;
        if data.is_empty() {
            break;
        }
        hash.add(at, &data);
        at += u64::from(READ_BYTES);
    }
    fs.release(id, handle, None).await?;
    Ok(hash.finish())
}
