//! What a home knows of files.

use home::volume::{JOURNAL_LEN_MAX, OTHERS, Print, Volume};
use types::{FileId, Kind, Time};

/// The home never forgot files that were gone.
#[test]
fn regression_files_that_are_gone_are_forgotten_when_nobody_can_ask_for_them() {
    let time = Time { sec: 1, nsec: 1 };
    let print = |kind| Print { kind, mode: 0o644, uid: 0, gid: 0, nlink: 1, size: 0, mtime: time, ctime: time };
    let mut volume = Volume::new(0, 7);
    let mut learn = |what: &dyn Fn(&Volume) -> Option<home::volume::Learned>| {
        let learned = what(&volume).expect("something new");
        let id = learned.id;
        volume.learn(learned).expect("sense");
        id
    };
    let root = learn(&|volume| volume.seen(b"root", print(Kind::Directory), None, OTHERS));
    let mut made = |number: usize, is_gone: bool| {
        let identity = format!("file {number}").into_bytes();
        let place = (root, identity.clone());
        let id = learn(&|volume| volume.seen(&identity, print(Kind::File), Some(&place), OTHERS));
        if is_gone {
            learn(&|volume| volume.left(&place));
        }
        id
    };
    let stays = made(0, false);
    let gone: Vec<FileId> = (1..JOURNAL_LEN_MAX + 100).map(|number| made(number, true)).collect();
    let known = gone.iter().filter(|id| volume.file(**id).is_some()).count();
    assert_eq!(known, JOURNAL_LEN_MAX, "as long as a client that knows them may come back");
    assert!(volume.file(root).is_some() && volume.file(stays).is_some());
    assert!(volume.file(gone[0]).is_none() && volume.known(b"file 1").is_none());
    assert!(volume.seen(b"file 1", print(Kind::File), Some(&(root, b"new".to_vec())), OTHERS).unwrap().id > gone[0]);
}
