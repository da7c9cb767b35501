//! What a home knows of files.

use home::volume::{JOURNAL_LEN_MAX, OTHERS, Print, Reach, Volume};
use roam_proto::message::User;
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

/// A member of the group reached files of a directory whose mode is closed to the group and open to
/// others.
#[test]
fn regression_a_mode_that_is_closed_to_a_group_is_closed_to_its_members() {
    let time = Time { sec: 1, nsec: 1 };
    let reach_of = |mode, user: &User| {
        let print = |kind| Print { kind, mode, uid: 1, gid: 2, nlink: 1, size: 0, mtime: time, ctime: time };
        let mut volume = Volume::new(0, 7);
        let root = volume.seen(b"root", print(Kind::Directory), None, OTHERS).expect("new");
        let place = (root.id, b"file".to_vec());
        volume.learn(root).expect("sense");
        let file = volume.seen(b"file", print(Kind::File), Some(&place), OTHERS).expect("new");
        let id = file.id;
        volume.learn(file).expect("sense");
        volume.reach(user, id)
    };
    let user = |uid, gid, groups: &[u32]| User { uid, gid, groups: groups.to_vec() };
    let of_group = [user(3, 2, &[]), user(3, 4, &[2])];
    for member in &of_group {
        assert_eq!([0o701, 0o710, 0o711, 0o700].map(|mode| reach_of(mode, member)), {
            use Reach::{Likely, No};
            [No, Likely, Likely, No]
        });
    }
    let other = user(3, 4, &[]);
    assert_eq!([0o701, 0o710, 0o711, 0o700].map(|mode| reach_of(mode, &other)), {
        use Reach::{Likely, No, Unsure};
        [Likely, Unsure, Likely, No]
    });
    for open in [user(1, 2, &[]), user(0, 0, &[])] {
        assert_eq!(reach_of(0o001, &open), Reach::Likely);
    }
}
