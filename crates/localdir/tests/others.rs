//! Other programs change the directory, too, and nothing that they do leads out of it.

mod rig;

use rig::Rig;
use std::fs;
use std::os::unix::fs::symlink;
use types::{FileId, FsError};
use vfs::fs::{FileSystem, OpenFlags, RenameFlags};

const READ: OpenFlags = OpenFlags { read: true, write: false, append: false, truncate: false, execute: false };

impl Rig {
    fn content(&self, id: FileId) -> Result<Vec<u8>, FsError> {
        let handle = self.wait(self.fs.open(&self.me, id, READ))?;
        let read = self.wait(self.fs.read(id, handle, 0, 100));
        self.wait(self.fs.release(id, handle, None))?;
        read.map(|bytes| bytes.to_vec())
    }
}

#[test]
fn a_file_keeps_its_id_wherever_others_put_it_and_another_file_never_gets_it() {
    let rig = Rig::new();
    fs::create_dir(rig.root.join("d")).expect("folder");
    fs::write(rig.root.join("d/a"), "a").expect("write");
    let d = rig.find(FileId::ROOT, "d").expect("find");
    let a = rig.find(d, "a").expect("find");
    fs::rename(rig.root.join("d"), rig.root.join("e")).expect("rename");
    assert_eq!(rig.content(a), Err(FsError::Stale), "it has no known place");
    assert_eq!(rig.find(FileId::ROOT, "e"), Ok(d));
    assert_eq!(rig.find(d, "a"), Ok(a));
    assert_eq!(rig.content(a), Ok(b"a".to_vec()));

    // The number of a removed inode is soon used again.
    for round in 0..20 {
        fs::remove_file(rig.root.join("e/a")).expect("remove");
        fs::write(rig.root.join("e/a"), "another").expect("write");
        assert_eq!(rig.content(a), Err(FsError::Stale), "round {round}");
        let b = rig.find(d, "a").expect("find");
        assert_ne!(a, b, "round {round}");
        assert_eq!(rig.content(b), Ok(b"another".to_vec()));
    }
}

/// Between a rename and the note of it, the file was looked for at its old name, and was then not
/// known any more.
#[test]
fn regression_files_are_found_while_this_process_renames_them_and_what_is_above_them() {
    const ROUNDS: usize = 3000;
    let rig = Rig::new();
    fs::create_dir_all(rig.root.join("d/e")).expect("folders");
    ["d/a", "d/b", "d/e/c"].iter().for_each(|name| fs::write(rig.root.join(name), name).expect("write"));
    let d = rig.find(FileId::ROOT, "d").expect("find");
    let [a, b, e] = ["a", "b", "e"].map(|name| rig.find(d, name).expect("find"));
    let c = rig.find(e, "c").expect("find");
    let (renaming, me) = (rig.fs.clone(), rig.me.clone());
    let exchange = RenameFlags { no_replace: false, exchange: true };
    let renames = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        for round in 0..ROUNDS {
            let (from, to) = if round % 2 == 0 { ("e", "f") } else { ("f", "e") };
            runtime.block_on(async {
                renaming.rename(&me, d, b"a", d, b"b", exchange).await.expect("exchanged");
                renaming
                    .rename(&me, d, from.as_bytes(), d, to.as_bytes(), RenameFlags::default())
                    .await
                    .expect("moved");
            });
        }
    });
    while !renames.is_finished() {
        for id in [a, b, e, c] {
            assert_eq!(rig.wait(rig.fs.getattr(id)).map(|entry| entry.attr.id), Ok(id));
        }
    }
    renames.join().expect("renamed");
}

#[test]
fn an_open_file_outlives_its_name() {
    let rig = Rig::new();
    fs::write(rig.root.join("a"), "kept").expect("write");
    let a = rig.find(FileId::ROOT, "a").expect("find");
    let handle = rig.wait(rig.fs.open(&rig.me, a, READ)).expect("open");
    fs::remove_file(rig.root.join("a")).expect("remove");
    assert_eq!(rig.wait(rig.fs.read(a, handle, 0, 10)).expect("read"), "kept");
    assert_eq!(rig.wait(rig.fs.getattr(a)).expect("attributes").attr.nlink, 0);
    rig.wait(rig.fs.release(a, handle, None)).expect("release");
    assert_eq!(rig.wait(rig.fs.getattr(a)).map(|_| ()), Err(FsError::Stale));
}

#[test]
fn no_name_and_no_link_leads_out() {
    let rig = Rig::new();
    fs::create_dir(rig.root.join("d")).expect("folder");
    fs::write(rig.root.join("d/a"), "a").expect("write");
    symlink("../out", rig.root.join("link")).expect("symlink");
    symlink("../out/secret", rig.root.join("file")).expect("symlink");
    for name in ["../out", "..//out", "d/../../out", "/etc/passwd", "d/a", "", "a\0b"] {
        let found = rig.find(FileId::ROOT, name);
        assert!(matches!(found, Err(FsError::InvalidArgument | FsError::NotFound)), "{name}: {found:?}");
    }
    assert_eq!(rig.find(FileId::ROOT, ".."), Ok(FileId::ROOT));
    let link = rig.find(FileId::ROOT, "link").expect("find");
    assert_eq!(rig.find(link, "secret"), Err(FsError::NotADirectory));
    assert_eq!(rig.wait(rig.fs.opendir(&rig.me, link)).map(|_| ()), Err(FsError::NotADirectory));
    let file = rig.find(FileId::ROOT, "file").expect("find");
    assert_eq!(rig.content(file), Err(FsError::Loop));

    // A directory that was looked up is replaced by a link to another place with a file of the same
    // name.
    let d = rig.find(FileId::ROOT, "d").expect("find");
    let a = rig.find(d, "a").expect("find");
    fs::write(rig.root.join("../out/a"), "secret").expect("write");
    fs::remove_dir_all(rig.root.join("d")).expect("remove");
    symlink("../out", rig.root.join("d")).expect("symlink");
    assert_eq!(rig.content(a), Err(FsError::Stale));
    assert_eq!(rig.find(d, "a"), Err(FsError::Stale));
    let made = rig.fs.create(&rig.me, d, b"new", 0o644, 0, OpenFlags { write: true, ..READ });
    assert_eq!(rig.wait(made).map(|_| ()), Err(FsError::Stale));
    assert!(!rig.root.join("../out/new").exists());
}
