//! What homes need besides the trait: identities that last.

mod rig;

use bytes::Bytes;
use localdir::identity::IDENTITY_LEN_MAX;
use localdir::{LocalDir, WholeFile};
use rig::Rig;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use types::{FileId, FsError, Kind, Time};
use vfs::fs::{Cred, FileSystem};

impl Rig {
    /// The identity of a name, as after a restart: nothing is known of the directory.
    fn identity_anew(&self, name: &str) -> Bytes {
        let anew = LocalDir::open(&self.root).expect("open");
        self.wait(anew.identified(FileId::ROOT, name.as_bytes())).expect("identified").1
    }
}

#[test]
fn identities_are_the_same_after_a_restart_and_wherever_a_file_goes() {
    let rig = Rig::new();
    fs::create_dir(rig.root.join("d")).expect("folder");
    fs::write(rig.root.join("a"), "a").expect("write");
    symlink("nowhere", rig.root.join("link")).expect("symlink");
    for name in ["a", "d", "link", ".", ".."] {
        let (entry, identity) = rig.wait(rig.fs.identified(FileId::ROOT, name.as_bytes())).expect("identified");
        assert!((10..=IDENTITY_LEN_MAX).contains(&identity.len()), "{name}: {} bytes", identity.len());
        assert_eq!(rig.wait(rig.fs.identity(entry.attr.id)), Ok(identity.clone()), "{name}");
        assert_eq!(rig.identity_anew(name), identity, "{name}");
    }
    let (file, before) = rig.wait(rig.fs.identified(FileId::ROOT, b"a")).expect("identified");
    fs::write(rig.root.join("a"), "more").expect("write");
    fs::hard_link(rig.root.join("a"), rig.root.join("d/c")).expect("link");
    fs::rename(rig.root.join("a"), rig.root.join("d/b")).expect("rename");
    let d = rig.find(FileId::ROOT, "d").expect("find");
    for name in [b"b", b"c"] {
        let (entry, identity) = rig.wait(rig.fs.identified(d, name)).expect("identified");
        assert_eq!((entry.attr.id, entry.attr.size, identity), (file.attr.id, 4, before.clone()));
    }
    assert_ne!(rig.wait(rig.fs.identity(d)), Ok(before));
    for (name, why) in [("a", FsError::NotFound), ("", FsError::NotFound), ("d/b", FsError::InvalidArgument)] {
        let refused = rig.wait(rig.fs.identified(FileId::ROOT, name.as_bytes())).map(|_| ());
        assert_eq!(refused, Err(why), "{name}");
    }
    fs::remove_dir_all(rig.root.join("d")).expect("remove");
    assert_eq!(rig.wait(rig.fs.identity(file.attr.id)), Err(FsError::Stale));
}

#[test]
fn a_file_with_the_inode_number_of_another_has_an_identity_of_its_own() {
    let rig = Rig::new();
    let path = rig.root.join("a");
    let mut seen: BTreeMap<u64, Bytes> = BTreeMap::new();
    for _ in 0..2_000 {
        fs::write(&path, "a").expect("write");
        let inode = path.metadata().expect("metadata").ino();
        let identity = rig.identity_anew("a");
        fs::remove_file(&path).expect("remove");
        if let Some(before) = seen.insert(inode, identity.clone()) {
            assert_ne!(before, identity);
            return;
        }
    }
    // Written past the test harness, which hides output.
    let said = writeln!(std::io::stderr(), "not tested: inode numbers are not used again in {}", rig.root.display());
    said.expect("stderr");
}

#[test]
fn identities_differ_between_file_systems() {
    let rig = Rig::new();
    let elsewhere = LocalDir::open(Path::new("/proc")).expect("open");
    let identity = rig.wait(elsewhere.identity(FileId::ROOT)).expect("identity");
    let own = rig.wait(rig.fs.identity(FileId::ROOT)).expect("identity");
    // Volumes come first, and none is the beginning of another.
    assert_ne!(identity[..9], own[..9]);
}

#[test]
fn a_list_is_the_whole_directory_with_attributes_and_identities() {
    let rig = Rig::new();
    fs::create_dir(rig.root.join("d")).expect("folder");
    symlink("nowhere", rig.root.join("link")).expect("symlink");
    // More entries than are read at a time.
    for number in 0..2_000 {
        fs::write(rig.root.join(format!("a file with a long name, number {number}")), "a").expect("write");
    }
    let mut listed = rig.wait(rig.fs.list(FileId::ROOT)).expect("list");
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    let mut names: Vec<Vec<u8>> = fs::read_dir(&rig.root)
        .expect("read")
        .map(|entry| entry.expect("entry").file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    assert_eq!(listed.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>(), names);
    for (name, entry, identity) in listed {
        let found = rig.wait(rig.fs.identified(FileId::ROOT, &name)).expect("identified");
        assert_eq!((found.0.attr, found.1), (entry.attr, identity));
        assert_eq!(rig.wait(rig.fs.getattr(entry.attr.id)).expect("attributes").attr, entry.attr);
        let kind = match &name[..] {
            b"d" => Kind::Directory,
            b"link" => Kind::Symlink,
            _ => Kind::File,
        };
        assert_eq!(entry.attr.kind, kind);
    }
    let d = rig.find(FileId::ROOT, "d").expect("find");
    assert_eq!(rig.wait(rig.fs.list(d)).map(|listed| listed.len()), Ok(0));
    let link = rig.find(FileId::ROOT, "link").expect("find");
    assert_eq!(rig.wait(rig.fs.list(link)).map(|_| ()), Err(FsError::NotADirectory));
    fs::remove_dir(rig.root.join("d")).expect("remove");
    assert_eq!(rig.wait(rig.fs.list(d)).map(|_| ()), Err(FsError::Stale));
}

/// ext4 holds files of at most 16 TiB, other file systems longer ones. A home tells its clients.
#[test]
fn the_longest_file_that_fits_is_found() {
    let longest = |folder: &Path| {
        let dir = tempfile::tempdir_in(folder).expect("temporary folder");
        let local = LocalDir::open(dir.path()).expect("open");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let found = runtime.block_on(local.file_len_max().into_future()).expect("a file without a name");
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0, "nothing is left");
        let file = fs::File::create(dir.path().join("file")).expect("create");
        file.set_len(found).expect("it fits");
        assert!(file.set_len(found + 1).is_err(), "one more byte than {found} fits on {folder:?}");
        found
    };
    longest(Path::new("/dev/shm"));
    longest(&std::env::temp_dir());
}

/// A write by another program, just after the file got its name, was reported as part of the
/// making.
#[test]
fn regression_a_file_that_is_made_whole_is_told_as_it_was_made() {
    const COUNT: u32 = 300;
    let rig = Rig::new();
    let root = fs::metadata(&rig.root).expect("stat");
    let owner = (root.uid(), root.gid());
    let mut otherwise = 0;
    let mtime = Time { sec: 1_600_000_000, nsec: 5 };
    std::thread::scope(|scope| {
        let root = &rig.root;
        let meddler = scope.spawn(move || {
            for number in 0..COUNT {
                let path = root.join(number.to_string());
                while fs::OpenOptions::new().append(true).open(&path).and_then(|mut file| file.write_all(b"!")).is_err()
                {
                }
            }
        });
        for number in 0..COUNT {
            let pieces = vec![(0, Bytes::from_static(b"whole"))];
            let whole = WholeFile { mode: 0o600, owner, times: (mtime, mtime), size: 5, pieces };
            let made = rig.wait(rig.fs.make_whole(&Cred::ROOT, FileId::ROOT, number.to_string().as_bytes(), whole));
            let (entry, _) = made.expect("made");
            otherwise += u32::from((entry.attr.size, entry.attr.mtime) != (5, mtime));
        }
        meddler.join().expect("meddler");
    });
    assert_eq!(otherwise, 0, "of {COUNT}");
}
