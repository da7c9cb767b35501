//! A client that sends arbitrary requests gets errors, and nothing that its user may not have. It
//! reads and changes no other user's file, never reaches the home's own directory, and causes no
//! panic.

mod common;

use bytes::Bytes;
use common::*;
use home::export::Export;
use host::{Random, SplitMix64};
use roam_proto::channel::MESSAGE_LEN_MAX;
use roam_proto::codec::Wire;
use roam_proto::delegation::Watch;
use roam_proto::message::{
    Applied, ConflictReason, DATA_LEN_MAX, Outcome, Pushed, Refusal, Reply, Request, Sent, pack, unpack,
};
use roam_proto::operation::{Attributes, Change, Operation, Place};
use roam_proto::ranges::Ranges;
use roam_proto::volume_stamp::{Since, Stamp};
use std::collections::BTreeMap;
use types::{FileId, FsError, Kind, Time};
use vfs::FileSystem;
use vfs::fs::{Cred, OpenFlags, XattrMode};

#[test]
fn names_that_are_none_are_refused() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = mallory.id(root, "mallory");
    let plain = mallory.id(dir, "plain");
    let before = world.tree("nowhere");
    let names =
        [&b""[..], b".", b"..", b"/", b"../bob/diary", b"a/b", b"/etc/passwd", b"a\0b", &[b'x'; 256], &[b'x'; 100_000]];
    for name in names {
        for operation in at_place(&at(dir, name), plain, dir) {
            mallory.refused(operation, b"");
        }
    }
    assert_eq!(world.tree("nowhere"), before);
}

#[test]
fn the_homes_own_directory_is_reached_by_no_name_and_no_id() {
    let world = World::new();
    // The superuser may do everything that can be done at all.
    for (key, uid) in [(1, MALLORY), (2, 0)] {
        let peer = world.client(key, uid);
        let root = world.home.state().volumes[VOLUME].root();
        assert_eq!(peer.ask(Request::Upload { seq: 9999, offset: 0, data: SECRET.into() }), Reply::Done);
        assert!(!peer.list(root).contains_key(OWN));
        assert_eq!(peer.facts(&[root])[0].nlink, 2 + 3, "it does not count as a directory in the root");
        let dir = peer.id(root, "mallory");
        let plain = peer.id(dir, "plain");
        for file in [plain, dir, root] {
            for operation in at_place(&at(root, OWN), file, dir) {
                assert_eq!(peer.outcome(operation, b""), Outcome::Refused(FsError::InvalidArgument));
            }
        }
        let own: Vec<u64> = world.sim.block_on(async {
            let own = world.fs.lookup(&Cred::ROOT, ROOT, OWN).await.expect("it is there").attr.id;
            let listed = world.fs.list(own).await.expect("list");
            listed.iter().map(|(_, entry, _)| entry.attr.id.raw()).chain([own.raw()]).collect()
        });
        assert_eq!(own.len(), 1 + usize::from(key), "what was uploaded is there");
        // By its ids in the file system behind, and by all ids near those that were given out.
        let known: Vec<FileId> = [root, dir, plain].into_iter().chain(peer.list(root).values().map(|f| f.id)).collect();
        for raw in (0..200).chain(own).chain([u64::MAX, 1 << 48 | 1, (1 << 48) - 1]) {
            let id = FileId::new(raw);
            if known.contains(&id) || world.home.state().volumes[VOLUME].file(id).is_some() {
                continue;
            }
            assert_eq!(peer.facts(&[id]), [], "{id}");
            assert!(matches!(
                peer.ask(Request::List { dir: id, after: vec![], known: 0, makes: None }),
                Reply::Failed(_)
            ));
            let read = Request::Read { file: id, contents: 0, offset: 0, len: 100 };
            assert!(matches!(peer.ask(read), Reply::Failed(_)));
            for operation in at_place(&at(id, b"upload-1-9999"), plain, dir) {
                peer.not_done(operation, b"");
            }
            peer.not_done(Operation::Store { file: id, change: changed(0, 3, &[(0, 3)]) }, b"new");
            peer.not_done(Operation::Link { file: id, at: at(dir, b"link") }, b"");
        }
    }
}

#[test]
fn what_a_user_may_not_read_or_change_stays_as_it_is_and_unknown() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let (bob, closed) = (mallory.id(root, "bob"), mallory.id(root, "closed"));
    let dir = mallory.id(root, "mallory");
    let (diary, letter) = (mallory.id(bob, "diary"), mallory.id(bob, "letter"));
    // Another client has made the files in the closed directory known to the home.
    let bobs = world.client(2, BOB);
    let readable = bobs.id(closed, "readable");
    let before = world.tree("nowhere");
    assert_eq!(mallory.read(letter), Reply::Data(SECRET.into()), "for comparison");
    assert_eq!(bobs.read(diary), Reply::Data(SECRET.into()), "for comparison");

    assert_eq!(mallory.read(diary), Reply::Failed(FsError::AccessDenied));
    assert_eq!(mallory.read(readable), Reply::Failed(FsError::AccessDenied));
    assert_eq!(mallory.facts(&[readable]), []);
    let stale = Request::Validate { files: vec![(readable, 0), (readable, 1)] };
    assert_eq!(mallory.ask(stale), Reply::Stale(vec![readable, readable]));
    assert_eq!(
        mallory.ask(Request::List { dir: closed, after: vec![], known: 0, makes: None }),
        Reply::Failed(FsError::AccessDenied)
    );
    for file in [diary, letter, readable, bob, closed, root] {
        for name in [&b"x"[..], b"diary", b"readable"] {
            for operation in
                at_place(&at(bob, name), file, dir).into_iter().chain(at_place(&at(closed, name), file, dir))
            {
                // An operation whose result exists already may count as done.
                if !matches!(operation, Operation::Remove { .. } | Operation::Link { .. }) {
                    mallory.not_done(operation, b"");
                }
            }
        }
        // A store or change that would change nothing does not tell what is there, either.
        for data in [SECRET, b"something else"] {
            let change = changed(0, data.len() as u64, &[(0, data.len() as u64)]);
            mallory.not_done(Operation::Store { file, change }, data);
        }
        for attributes in [
            Attributes { mode: Some(0o777), ..Attributes::default() },
            Attributes { uid: Some(MALLORY), ..Attributes::default() },
            Attributes { gid: Some(MALLORY), ..Attributes::default() },
            Attributes { mtime: Some(Time { sec: 1, nsec: 1 }), ..Attributes::default() },
        ] {
            mallory.refused(Operation::Set { file, attributes }, b"");
        }
        for name in [&b"user.x"[..], b"trusted.x", b"security.capability", b"system.posix_acl_access", b"", b"user.\0"]
        {
            for value in [Some(SECRET.to_vec()), Some(vec![]), Some(vec![0; 100_000])] {
                mallory.not_done(Operation::SetXattr { file, name: name.to_vec(), value }, b"");
            }
        }
    }
    let remove = |place: Place, file| mallory.not_done(Operation::Remove { at: place, file, last: false }, b"");
    remove(at(bob, b"letter"), letter);
    remove(at(closed, b"readable"), readable);
    remove(at(root, b"bob"), bob);
    mallory.not_done(Operation::Rename { file: bob, from: at(root, b"bob"), to: at(dir, b"bob"), replaced: None }, b"");
    assert_eq!(world.tree("nowhere"), before);
}

#[test]
fn that_a_file_contains_the_same_is_told_to_whom_may_read_it() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let dir = mallory.id(world.home.state().volumes[VOLUME].root(), "mallory");
    let first = mallory.ids().raw();
    let source = world.sim.block_on(world.fs.lookup(&Cred::ROOT, ROOT, b"mallory").into_future()).expect("dir").attr.id;
    for (n, mode, there) in [(0, 0o600, false), (1, 0o644, true)] {
        let name = format!("of-bob-{n}");
        world.sim.block_on(file(&world.fs, source, name.as_bytes(), mode, BOB));
        let mine = FileId::new(first + n);
        let make = Operation::Make { at: at(dir, name.as_bytes()), file: mine, made: made(Kind::File, 0o644) };
        let len = SECRET.len() as u64;
        let store = Operation::Store { file: mine, change: changed(0, len, &[(0, len)]) };
        let outcome = match mallory.apply(vec![mallory.sent(make, b""), mallory.sent(store, SECRET)]) {
            Reply::Applied(applied) => applied[0].outcome,
            other => panic!("{other:?}"),
        };
        let real = mallory.id(dir, &name);
        let expected = if there { Outcome::Became(real) } else { Outcome::Conflict(ConflictReason::Taken) };
        assert_eq!(outcome, expected, "{mode:o}");
    }
}

#[test]
fn extended_attributes_are_told_to_whom_may_read_them() {
    let world = World::new();
    let root = world.home.state().volumes[VOLUME].root();
    let names = |peer: &Peer| {
        let bob = peer.id(root, "bob");
        let (told, listed) = (peer.facts(&[peer.id(bob, "diary")]).remove(0), peer.list(bob).remove(&b"diary"[..]));
        assert_eq!(Some(&told), listed.as_ref());
        let names = told.xattrs.into_iter().map(|(name, _)| String::from_utf8(name).expect("text"));
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&world.client(1, MALLORY)), Vec::<String>::new());
    assert_eq!(names(&world.client(2, BOB)), ["user.note"]);
    assert_eq!(names(&world.client(3, 0)).len(), 2);
}

#[test]
fn more_extended_attributes_than_a_message_can_tell_are_left_out() {
    let world = World::new();
    let peer = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = peer.id(root, "mallory");
    let plain = peer.id(dir, "plain");
    let first = peer.ids().raw();
    let others: Vec<FileId> = (0..3).map(|n| FileId::new(first + n)).collect();
    for file in &others {
        let make =
            Operation::Make { at: at(dir, file.to_string().as_bytes()), file: *file, made: made(Kind::File, 0o644) };
        assert_eq!(peer.outcome(make, b""), Outcome::Done);
    }
    for file in others.iter().chain([&plain]) {
        for n in 0..40 {
            let (name, value) = (format!("user.{n}").into_bytes(), Some(vec![n; 60_000]));
            assert_eq!(peer.outcome(Operation::SetXattr { file: *file, name, value }, b""), Outcome::Done);
        }
    }
    assert!(peer.facts(&[plain])[0].to_bytes().len() < MESSAGE_LEN_MAX / 2);
    // A list of facts that no message can hold is refused, not cut short: the client would take
    // missing files for gone.
    assert_eq!(peer.ask(Request::Facts { files: others.clone() }), Reply::Failed(FsError::ArgumentTooBig));
    assert!(matches!(peer.ask(Request::Facts { files: vec![plain; 4000] }), Reply::Facts(known) if known.len() == 1));
    assert_eq!(peer.ask(Request::Facts { files: vec![plain; 5000] }), Reply::Failed(FsError::ArgumentTooBig));
    // Answers to operations are cut short, since the client asks for the rest again.
    let set = |file| Operation::Set {
        file,
        attributes: Attributes { mtime: Some(Time { sec: 7, nsec: 0 }), ..Attributes::default() },
    };
    let mut sent: Vec<Sent> = others.iter().chain([&plain]).map(|file| peer.sent(set(*file), b"")).collect();
    for round in 0.. {
        let Reply::Applied(applied) = peer.apply(sent.clone()) else { panic!() };
        assert!(applied.iter().all(|applied| applied.outcome == Outcome::Done) && !applied.is_empty());
        sent.drain(..applied.len());
        if sent.is_empty() {
            assert!(round > 0);
            break;
        }
    }
}

#[test]
fn a_file_without_a_name_is_told_to_nobody() {
    let world = World::new();
    let (mallory, bobs) = (world.client(1, MALLORY), world.client(2, BOB));
    let root = world.home.state().volumes[VOLUME].root();
    let closed = bobs.id(root, "closed");
    let readable = bobs.id(closed, "readable");
    // It is still open, and another program has removed it.
    world.sim.block_on(async {
        let dir = world.fs.lookup(&Cred::ROOT, ROOT, b"closed").await.expect("there").attr.id;
        let id = world.fs.lookup(&Cred::ROOT, dir, b"readable").await.expect("there").attr.id;
        world.fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..OpenFlags::default() }).await.expect("open");
        world.fs.unlink(&Cred::ROOT, dir, b"readable").await.expect("unlink");
    });
    assert_eq!(
        bobs.outcome(Operation::Remove { at: at(closed, b"readable"), file: readable, last: true }, b""),
        Outcome::Done
    );
    assert_eq!(mallory.facts(&[readable]), []);
    assert_eq!(mallory.read(readable), Reply::Failed(FsError::Stale));
}

#[test]
fn ids_that_are_not_the_clients_own_make_nothing() {
    let world = World::new();
    let (mallory, bobs) = (world.client(1, MALLORY), world.client(2, BOB));
    let root = world.home.state().volumes[VOLUME].root();
    let dir = mallory.id(root, "mallory");
    let letter = mallory.id(mallory.id(root, "bob"), "letter");
    let (mine, theirs) = (mallory.ids(), bobs.ids());
    let other_volume = FileId::new(1 << 48 | mine.raw());
    let before = world.tree("nowhere");
    let others = [0, 1, u64::MAX, theirs.raw(), theirs.raw() + 1, mine.raw() - 1, mine.raw() + (1 << 30)];
    for file in others.map(FileId::new).into_iter().chain([root, dir, letter, other_volume]) {
        for kind in [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo] {
            let make = Operation::Make { at: at(dir, b"new"), file, made: made(kind, 0o644) };
            assert_eq!(mallory.outcome(make, b""), Outcome::Refused(FsError::InvalidArgument), "{file}");
        }
    }
    assert_eq!(world.tree("nowhere"), before);
    assert_eq!(mallory.id(root, "mallory"), dir);
    let make = |name: &[u8]| Operation::Make { at: at(dir, name), file: mine, made: made(Kind::File, 0o644) };
    assert_eq!(mallory.outcome(make(b"new"), b""), Outcome::Done, "for comparison");
    // An id is one file for ever.
    mallory.outcome(make(b"newer"), b"");
    assert_eq!(mallory.id(dir, "new"), mine);
    assert!(!mallory.list(dir).contains_key(&b"newer"[..]));
    // Users cannot make devices, with any mode.
    for (kind, mode) in [(Kind::CharDevice, 0o666), (Kind::BlockDevice, 0o666), (Kind::File, 0o020_666)] {
        let file = FileId::new(mine.raw() + 1);
        mallory.refused(Operation::Make { at: at(dir, b"device"), file, made: made(kind, mode) }, b"");
    }
}

/// Checks that ids that mean other files mean files with ids of their own. Returns how many there
/// are.
fn check_aliases(world: &World) -> usize {
    let state = world.home.state();
    let volume = &state.volumes[VOLUME];
    for (alias, real) in volume.aliases() {
        assert!(volume.file(alias).is_none() && volume.alias(real).is_none() && volume.file(real).is_some());
    }
    volume.aliases().count()
}

#[test]
fn ids_that_mean_what_was_there_already_lead_nowhere_else() {
    let mut world = World::new();
    let before = world.tree("/mallory");
    let (dir, mine, root) = {
        let (mallory, bobs) = (world.client(1, MALLORY), world.client(2, BOB));
        let root = world.home.state().volumes[VOLUME].root();
        let dir = mallory.id(root, "mallory");
        let (bob, closed) = (mallory.id(root, "bob"), mallory.id(root, "closed"));
        let (diary, readable) = (mallory.id(bob, "diary"), bobs.id(closed, "readable"));
        let first = mallory.ids();
        let mine = |n| FileId::new(first.raw() + n);
        let make = |place: Place, file, kind| Operation::Make { at: place, file, made: made(kind, 0o777) };
        let invalid = Outcome::Refused(FsError::InvalidArgument);
        let kind = Kind::Directory;
        assert_eq!(mallory.outcome(make(at(root, b"bob"), mine(0), kind), b""), Outcome::Became(bob));
        assert_eq!(mallory.outcome(make(at(root, b"closed"), mine(1), kind), b""), Outcome::Became(closed));
        // Names that the user may not know are not confirmed.
        let denied = Outcome::Refused(FsError::AccessDenied);
        for name in [&b"readable"[..], b"nothing"] {
            assert_eq!(mallory.outcome(make(at(mine(1), name), mine(2), kind), b""), denied);
        }
        assert_eq!(mallory.facts(&[mine(1)]), mallory.facts(&[closed]));
        assert_eq!(mallory.list(mine(0)), mallory.list(bob));
        assert_eq!(
            mallory.ask(Request::List { dir: mine(1), after: vec![], known: 0, makes: None }),
            Reply::Failed(FsError::AccessDenied)
        );
        for (place, file) in [(mine(0), diary), (mine(1), readable)] {
            for operation in at_place(&at(place, b"x"), file, dir) {
                if !matches!(operation, Operation::Remove { .. }) {
                    mallory.not_done(operation, b"");
                }
            }
        }
        for (file, name) in [(mine(0), &b"bob"[..]), (mine(1), b"closed")] {
            mallory.refused(Operation::Remove { at: at(root, name), file, last: true }, b"");
            let to = at(dir, b"moved");
            mallory.refused(Operation::Rename { file, from: at(root, name), to, replaced: None }, b"");
            // Attributes for the client's own directory are not set on the existing one.
            let attributes = Attributes { mode: Some(0o777), ..Attributes::default() };
            assert_eq!(mallory.outcome(Operation::Set { file, attributes }, b""), Outcome::Done);
            let (name, value) = (b"user.x".to_vec(), Some(vec![7]));
            assert_eq!(mallory.outcome(Operation::SetXattr { file, name, value }, b""), Outcome::Done);
        }
        // The id means one directory for ever.
        assert_eq!(mallory.outcome(make(at(dir, b"new"), mine(0), kind), b""), Outcome::Became(bob));
        assert_eq!(mallory.outcome(make(at(dir, b"new"), mine(0), Kind::File), b""), invalid);
        assert_eq!(
            mallory.outcome(make(at(dir, b"plain"), mine(3), kind), b""),
            Outcome::Conflict(ConflictReason::Taken)
        );
        // Other clients cannot give this id to a file, but may use it for what they may know.
        assert_eq!(bobs.outcome(make(at(bob, b"new"), mine(0), kind), b""), invalid);
        assert_eq!(bobs.outcome(make(at(bob, b"new"), mine(9), kind), b""), invalid);
        assert_eq!(bobs.facts(&[mine(1)])[0].id, closed);
        // An id does not lead to another such id, or into itself.
        assert_eq!(mallory.outcome(make(at(dir, b"sub"), mine(4), kind), b""), Outcome::Done);
        assert_eq!(mallory.outcome(make(at(dir, b"sub"), mine(5), kind), b""), Outcome::Became(mine(4)));
        assert_eq!(mallory.outcome(make(at(mine(5), b"deep"), mine(6), kind), b""), Outcome::Done);
        assert_eq!(mallory.outcome(make(at(mine(5), b"deep"), mine(7), kind), b""), Outcome::Became(mine(6)));
        let into = at(mine(7), b"loop");
        mallory.refused(Operation::Rename { file: mine(5), from: at(dir, b"sub"), to: into, replaced: None }, b"");
        assert_eq!(
            mallory.outcome(make(at(mine(8), b"x"), mine(8), kind), b""),
            Outcome::Conflict(ConflictReason::Gone)
        );
        (dir, first, root)
    };
    assert_eq!(check_aliases(&world), 4);
    same(&world.tree("/mallory"), &before, "at last");
    let known = world.home.state().volumes[VOLUME].clone();
    world.restart();
    assert_eq!(check_aliases(&world), 4);
    assert_eq!(world.home.state().volumes[VOLUME].real(mine), known.real(mine));
    let mallory = world.attach(1);
    assert_eq!(mallory.list(mine), mallory.list(mallory.id(root, "bob")));
    assert_eq!(mallory.list(FileId::new(mine.raw() + 5)), mallory.list(mallory.id(dir, "sub")));
}

/// An operation that was announced, and not done because one before it waits, counted as done when
/// the home started again.
#[test]
fn regression_what_waits_is_not_taken_for_done_by_a_home_that_starts() {
    for uid in [MALLORY, 0] {
        let mut world = World::new();
        {
            let peer = world.client(1, uid);
            let root = world.home.state().volumes[VOLUME].root();
            let first = peer.ids().raw();
            let missing = Change { cut: 0, size: 5, ranges: Ranges::of(0..5), mtime: Time::default() };
            let plain = peer.id(peer.id(root, "mallory"), "plain");
            let mut sent = vec![peer.sent(Operation::Store { file: plain, change: missing }, b"")];
            let places = [at(root, OWN), at(root, b"bob"), at(root, b".."), at(root, b"."), at(root, b"mallory/plain")];
            for (place, n) in places.into_iter().zip(0..) {
                for (file, kind) in [(first + n, Kind::Directory), (first + n, Kind::File), (1 << 40, Kind::Directory)]
                {
                    let file = FileId::new(file);
                    sent.push(peer.sent(Operation::Make { at: place.clone(), file, made: made(kind, 0o777) }, b""));
                }
            }
            assert_eq!(peer.apply(sent), Reply::Failed(FsError::TimedOut));
        }
        let before = world.tree("nowhere");
        world.restart();
        if uid != 0 {
            assert_eq!(world.tree("nowhere"), before);
        }
        let peer = world.attach(1);
        let root = world.home.state().volumes[VOLUME].root();
        assert!(!peer.list(root).contains_key(OWN));
        let own = world.sim.block_on(async {
            let own = world.fs.lookup(&Cred::ROOT, ROOT, OWN).await.expect("it is there").attr.id;
            world.fs.identity(own).await.expect("identity")
        });
        assert_eq!(world.home.state().volumes[VOLUME].known(&own), None);
    }
}

#[test]
fn ids_do_not_run_out_for_others() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let mut ranges = 0;
    while let Reply::Ids(..) = mallory.ask(Request::Ids) {
        ranges += 1;
    }
    assert!(ranges >= 1000);
    world.client(2, BOB).ids();
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = mallory.id(root, "mallory");
    let plain = mallory.id(dir, "plain");
    let before = world.tree("nowhere");
    let most = u64::MAX;
    for change in [
        changed(0, most, &[]),
        changed(0, 1 << 63, &[]),
        changed(most, 3, &[(0, 3)]),
        changed(4, 3, &[(0, 3)]),
        changed(0, 3, &[(0, most)]),
        changed(0, most, &[(0, most)]),
        changed(0, most, &[(most - 3, most)]),
        changed(0, 3, &[(1, 4)]),
        changed(0, 3, &[(3, 6)]),
        changed(0, 10, &[(0, 2)]),
        changed(0, 10, &[(0, 4)]),
    ] {
        mallory.refused(Operation::Store { file: plain, change }, b"new");
    }
    // Bytes that were not uploaded may still come.
    let missing = mallory.sent(Operation::Store { file: plain, change: changed(0, 5, &[(0, 5)]) }, b"");
    assert_eq!(mallory.apply(vec![missing]), Reply::Failed(FsError::TimedOut));
    assert_eq!(world.tree("nowhere"), before);
    let upload = |seq, offset| mallory.ask(Request::Upload { seq, offset, data: b"abc".as_slice().into() });
    for offset in [most, most - 2, most - 3, 1 << 63] {
        assert!(matches!(upload(99, offset), Reply::Failed(_)), "{offset}");
    }
    // Bytes may come in any order, but not in any number of pieces.
    let refused = (0..20_000).find(|n| matches!(upload(99, n * 5), Reply::Failed(_)));
    assert!(refused.is_some(), "no end of pieces");
    assert_eq!((upload(most, 0), upload(0, 0)), (Reply::Done, Reply::Done));
    let contents = mallory.facts(&[plain])[0].contents;
    for offset in [1 << 40, most, most - 1, 1 << 63] {
        let read = Request::Read { file: plain, contents, offset, len: u32::MAX };
        assert!(matches!(mallory.ask(read), Reply::Data(bytes) if bytes.is_empty()));
    }
    let stamps = [Stamp { epoch: 0, seq: most }, Stamp { epoch: most, seq: 0 }];
    for stamp in stamps {
        assert!(matches!(mallory.ask(Request::Since { stamp }), Reply::Since(Since::Reset { .. })));
    }
    for attributes in [
        Attributes { mode: Some(0o10_000), ..Attributes::default() },
        Attributes { mode: Some(u32::MAX), ..Attributes::default() },
        Attributes { uid: Some(u32::MAX), ..Attributes::default() },
        Attributes { gid: Some(u32::MAX), ..Attributes::default() },
    ] {
        mallory.refused(Operation::Set { file: plain, attributes }, b"");
    }
    for sec in [i64::MIN, i64::MAX] {
        let time = Some(Time { sec, nsec: 999_999_999 });
        let attributes = Attributes { atime: time, mtime: time, ..Attributes::default() };
        mallory.outcome(Operation::Set { file: plain, attributes }, b"");
    }
    mallory.list(dir);
}

#[test]
fn an_operation_is_done_once_whatever_the_order_of_numbers() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = mallory.id(root, "mallory");
    let first = mallory.ids();
    let make = |seq, n: u64| Sent {
        seq,
        bases: (0, 0),
        operation: Operation::Make {
            at: at(dir, n.to_string().as_bytes()),
            file: FileId::new(first.raw() + n),
            made: made(Kind::File, 0o644),
        },
        data: Bytes::new(),
    };
    let invalid = Reply::Failed(FsError::InvalidArgument);
    assert_eq!(mallory.apply(vec![make(5, 0), make(5, 1)]), invalid);
    assert_eq!(mallory.apply(vec![make(5, 0), make(4, 1)]), invalid);
    assert_eq!(mallory.list(dir).len(), 1, "nothing was done");
    let outcomes = |reply| match reply {
        Reply::Applied(applied) => applied.iter().map(|a: &Applied| (a.seq, a.outcome)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(outcomes(mallory.apply(vec![make(5, 0), make(6, 1)])), [(5, Outcome::Done), (6, Outcome::Done)]);
    // The number identifies the operation.
    assert_eq!(outcomes(mallory.apply(vec![make(5, 2), make(6, 3)])), [(5, Outcome::Done), (6, Outcome::Done)]);
    assert_eq!(mallory.list(dir).len(), 3);
    assert_eq!(mallory.apply(vec![make(4, 4)]), invalid, "it never was one");
    assert_eq!(outcomes(mallory.apply(vec![make(u64::MAX - 1, 5)])), [(u64::MAX - 1, Outcome::Done)]);
    assert_eq!(outcomes(mallory.apply(vec![make(u64::MAX - 1, 6)])), [(u64::MAX - 1, Outcome::Done)]);
    let all = Request::Apply { acknowledged: u64::MAX, operations: vec![] };
    assert_eq!(mallory.ask(all), Reply::Applied(vec![]));
    assert_eq!(mallory.apply(vec![make(u64::MAX - 1, 7)]), invalid);
    assert_eq!(mallory.list(dir).len(), 4);
    let more = Request::Attach {
        volume: VOLUME.into(),
        incarnation: 8,
        acknowledged: u64::MAX,
        stamp: None,
        newest: FileId::new(0),
        watch: Watch::Nothing,
        attempt: attempt(),
    };
    assert_eq!(mallory.ask(more), Reply::Refused(Refusal::Forgotten));
}

#[test]
fn a_program_that_somebody_else_has_changed_can_do_no_more_than_its_user() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let program = mallory.id(mallory.id(root, "bob"), "program");
    let bytes = b"something of my own";
    let change = changed(0, bytes.len() as u64, &[(0, bytes.len() as u64)]);
    assert_eq!(mallory.outcome(Operation::Store { file: program, change }, bytes), Outcome::Done);
    let tree = world.fs.dump();
    let changed = tree.iter().find(|entry| entry.path == b"/bob/program").expect("it is there");
    assert_eq!((changed.attr.size, changed.xattrs.len()), (bytes.len() as u64, 0), "{changed:?}");
}

#[test]
fn whoever_is_not_attached_is_told_nothing() {
    let world = World::new();
    let stranger = world.connect(9);
    let attach = |volume: &str| Request::Attach {
        volume: volume.into(),
        incarnation: 1,
        acknowledged: 0,
        stamp: None,
        newest: FileId::new(0),
        watch: Watch::Changes,
        attempt: attempt(),
    };
    let detached = Reply::Refused(Refusal::Detached);
    for request in [
        Request::Facts { files: vec![ROOT] },
        Request::List { dir: ROOT, after: vec![], known: 0, makes: None },
        Request::Read { file: ROOT, contents: 0, offset: 0, len: 9 },
        Request::Since { stamp: Stamp { epoch: 0, seq: 0 } },
        Request::Validate { files: vec![(ROOT, 0)] },
        Request::Upload { seq: 1, offset: 0, data: Bytes::new() },
        Request::Apply { acknowledged: 0, operations: vec![] },
        Request::Space,
        Request::Ids,
    ] {
        assert_eq!(stranger.ask(request), detached);
    }
    // A stranger does not learn which volumes there are, either.
    for volume in [VOLUME, "", "../home", "another"] {
        assert_eq!(stranger.ask(attach(volume)), Reply::Refused(Refusal::Stranger));
    }
    for secret in [[0; 16], [255; 16]] {
        assert_eq!(stranger.ask(Request::Enroll { secret }), Reply::Refused(Refusal::Secret));
    }
    world.enroll(1, MALLORY);
    assert_eq!(world.connect(1).ask(attach("another")), Reply::Refused(Refusal::Volume));
    // An invitation expires.
    let now = world.machine.host().clock.wall();
    world.invite([8; 16], MALLORY, Time { sec: now.sec - 1, nsec: 0 });
    assert_eq!(stranger.ask(Request::Enroll { secret: [8; 16] }), Reply::Refused(Refusal::Secret));
    // It lets in one client only.
    assert_eq!(stranger.ask(Request::Enroll { secret: [1; 16] }), Reply::Refused(Refusal::Secret));
}

#[test]
fn what_is_no_request_ends_the_connection() {
    let world = World::new();
    let peer = world.client(1, MALLORY);
    let reply = pack(&Reply::Data(vec![0; 1 << 19].into()));
    for message in [&b""[..], b"\x00", b"\x02", b"\x01\x28\xb5\x2f\xfd", &[0xff; 1000], &[0; 1000], &reply] {
        assert_eq!(peer.try_ask(Bytes::copy_from_slice(message)), None);
    }
    let long = Request::Read { file: ROOT, contents: 0, offset: 0, len: DATA_LEN_MAX as u32 };
    assert!(peer.try_ask(pack(&long)).is_some());
}

#[test]
fn deep_directories_that_are_gone_do_not_keep_a_home_from_starting() {
    let mut world = World::new();
    {
        let peer = world.client(1, 0);
        let root = world.home.state().volumes[VOLUME].root();
        let first = peer.ids().raw();
        let mut dir = root;
        for batch in 0..60 {
            let make = |n: u64| {
                let file = FileId::new(first + n);
                let parent = if n == 0 { dir } else { FileId::new(first + n - 1) };
                peer.sent(Operation::Make { at: at(parent, b"d"), file, made: made(Kind::Directory, 0o755) }, b"")
            };
            let Reply::Applied(applied) = peer.apply((batch * 100..batch * 100 + 100).map(make).collect()) else {
                panic!()
            };
            assert!(applied.iter().all(|applied| applied.outcome == Outcome::Done));
        }
        dir = FileId::new(first + 5999);
        assert!(world.home.state().volumes[VOLUME].file(dir).is_some());
    }
    // While no home runs, everything is moved to a place that no client knows.
    world.machine.crash();
    world.sim.block_on(async {
        let hidden = directory(&world.fs, b"hidden", 0o700, 0).await;
        world.fs.rename(&Cred::ROOT, ROOT, b"d", hidden, b"d", Default::default()).await.expect("rename");
    });
    world.restart();
    let peer = world.attach(1);
    let root = world.home.state().volumes[VOLUME].root();
    assert!(peer.list(root).contains_key(&b"hidden"[..]));
}

#[test]
fn more_changes_than_a_message_can_tell_are_told_nevertheless() {
    let mut world = World::new();
    let root = world.home.state().volumes[VOLUME].root();
    let count = 110_000;
    world.sim.block_on(async {
        let dir = directory(&world.fs, b"many", 0o777, 0).await;
        for n in 0..count {
            let node = vfs::fs::NewNode { kind: Kind::Fifo, mode: 0o644, umask: 0, rdev: 0 };
            world.fs.mknod(&Cred::ROOT, dir, format!("{n}").as_bytes(), node).await.expect("mknod");
        }
    });
    let stamp = {
        let peer = world.client(1, MALLORY);
        let dir = peer.id(root, "many");
        let mut after = Vec::new();
        while let Reply::Listing { entries, more: true, .. } =
            peer.ask(Request::List { dir, after, known: 0, makes: None })
        {
            after = entries.last().expect("some").name.clone();
        }
        world.home.state().volumes[VOLUME].journal().stamp()
    };
    world.machine.crash();
    world.sim.block_on(async {
        let dir = world.fs.lookup(&Cred::ROOT, ROOT, b"many").await.expect("there").attr.id;
        for n in 0..count {
            world.fs.unlink(&Cred::ROOT, dir, format!("{n}").as_bytes()).await.expect("unlink");
        }
    });
    world.restart();
    let peer = world.attach(1);
    let reply = peer.ask(Request::Since { stamp });
    assert!(matches!(reply, Reply::Since(Since::Reset { .. })), "they do not fit");
    assert!(reply.to_bytes().len() < MESSAGE_LEN_MAX);
}

/// Returns an arbitrary operation, with known and unknown numbers and names.
fn anything(random: &SplitMix64, files: &[FileId], dirs: &[FileId]) -> Operation {
    let below = |n: usize| (random.next_u64() % n as u64) as usize;
    let number = || [0, 1, 5, 100, 1 << 20, 1 << 40, 1 << 62, u64::MAX - 1, u64::MAX][below(9)];
    let id = || match below(8) {
        0 => FileId::new(number()),
        1..=2 => dirs[below(dirs.len())],
        _ => files[below(files.len())],
    };
    let place = || {
        let names =
            [&b"a"[..], b"b", b"plain", b"diary", b"letter", b"readable", b"bob", b"closed", OWN, b"..", b"a/b"];
        (if below(5) == 0 { id() } else { dirs[below(dirs.len())] }, names[below(names.len())].to_vec())
    };
    let kinds = [Kind::File, Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::CharDevice];
    let time = || Time { sec: number().cast_signed(), nsec: 0 };
    match below(8) {
        0 => Operation::Make { at: place(), file: id(), made: made(kinds[below(6)], number() as u32 & 0o17777) },
        1 => Operation::Link { file: id(), at: place() },
        2 => Operation::Remove { at: place(), file: id(), last: below(2) == 0 },
        3 => {
            let replaced = (below(2) == 0).then(|| (id(), below(2) == 0));
            Operation::Rename { file: id(), from: place(), to: place(), replaced }
        }
        4 => Operation::Exchange { file: id(), from: place(), other: id(), to: place() },
        5 => {
            let some = |value| (below(2) == 0).then_some(value);
            let (mode, uid, gid) = (some(0o777), some(number() as u32), some(number() as u32));
            let attributes =
                Attributes { mode, uid, gid, atime: (below(2) == 0).then(time), mtime: (below(2) == 0).then(time) };
            Operation::Set { file: id(), attributes }
        }
        6 => {
            let names =
                [&b"user.x"[..], b"trusted.x", b"security.x", b"system.posix_acl_access", b"system.x", b"x", b""];
            let value = (below(3) > 0).then(|| vec![2; below(40)]);
            Operation::SetXattr { file: id(), name: names[below(names.len())].to_vec(), value }
        }
        _ => {
            let mut ranges = Ranges::default();
            (0..below(3)).for_each(|_| {
                let start = number();
                ranges.add(start..start.saturating_add(below(10) as u64));
            });
            Operation::Store { file: id(), change: Change { cut: number(), size: number(), ranges, mtime: time() } }
        }
    }
}

fn same(now: &BTreeMap<String, String>, before: &BTreeMap<String, String>, when: &str) {
    for (path, was) in before {
        assert_eq!(now.get(path), Some(was), "{when}: {path}");
    }
    assert_eq!(now.len(), before.len(), "{when}");
}

#[test]
fn sim_whatever_a_hostile_client_does_others_keep_what_they_have() {
    let (mut done, mut merged) = (0, 0);
    for seed in 0..30 {
        let mut world = World::new();
        let before = world.tree("/mallory");
        let random = SplitMix64::new(seed);
        let (mut files, mut dirs) = (Vec::new(), Vec::new());
        {
            let (mallory, bobs) = (world.client(1, MALLORY), world.client(2, BOB));
            let root = world.home.state().volumes[VOLUME].root();
            dirs.extend([root, mallory.id(root, "mallory"), mallory.id(root, "mallory"), mallory.id(root, "mallory")]);
            for name in ["bob", "closed"] {
                dirs.push(bobs.id(root, name));
                files.extend(bobs.list(bobs.id(root, name)).into_values().filter(|f| f.mode != 0o666).map(|f| f.id));
            }
            let (mine, theirs) = (mallory.ids().raw(), bobs.ids().raw());
            files.extend((mine..mine + 6).chain(theirs..theirs + 2).map(FileId::new));
            files.push(mallory.id(dirs[1], "plain"));
            dirs.extend((mine..mine + 2).map(FileId::new));
            if seed % 2 == 0 {
                // The client's own ids for other users' directories.
                for (name, file) in [&b"bob"[..], b"closed"].into_iter().zip(&dirs[6..]) {
                    let make = Operation::Make { at: at(root, name), file: *file, made: made(Kind::Directory, 0o777) };
                    assert!(matches!(mallory.outcome(make, b""), Outcome::Became(_)));
                }
            }
        }
        for round in 0..4 {
            let mallory = world.attach(1);
            for _ in 0..60 {
                let operation = anything(&random, &files, &dirs);
                let data = match &operation {
                    Operation::Store { change, .. } => vec![7; change.ranges.len().min(100) as usize],
                    _ => Vec::new(),
                };
                let mut sent = mallory.sent(operation, &data);
                sent.bases = (random.next_u64() % 50, u64::MAX);
                if let Reply::Applied(applied) = mallory.apply(vec![sent]) {
                    done += u32::from(applied[0].outcome == Outcome::Done);
                }
                let (file, offset) = (files[random.next_u64() as usize % files.len()], random.next_u64() % 40);
                mallory.ask(Request::Read { file, contents: random.next_u64() % 50, offset, len: 100 });
                for facts in mallory.facts(&files) {
                    assert!(facts.uid == MALLORY || facts.xattrs.is_empty(), "seed {seed}: {facts:?}");
                }
            }
            for message in mallory.pushes.0.lock().drain(..) {
                assert!(unpack::<Pushed>(&message).is_ok());
            }
            drop(mallory);
            same(&world.tree("/mallory"), &before, &format!("seed {seed}, round {round}"));
            merged += check_aliases(&world);
            world.restart();
            same(&world.tree("/mallory"), &before, &format!("seed {seed}, round {round}, started again"));
        }
    }
    assert!(done > 300 && merged > 30, "{done} were done, {merged} merged");
}

/// Only members of the group, and users whom an ACL lets in, hear of changes in a directory that is
/// closed to others.
#[test]
fn regression_a_directory_that_is_open_to_its_group_tells_others_no_ids() {
    let world = World::new();
    let team = world.sim.block_on(async {
        let team = directory(&world.fs, b"team", 0o750, BOB).await;
        file(&world.fs, team, b"plan", 0o644, BOB).await;
        team
    });
    let (mallory, bob, member) = (world.client(1, MALLORY), world.client(2, BOB), world.client(3, BOB));
    let begun = |peer: &Peer<'_>| match peer.ask(attach_request(Watch::Changes)) {
        Reply::Attached { since: Since::Reset { stamp }, .. } => stamp,
        other => panic!("{other:?}"),
    };
    let plan = bob.id(bob.id(ROOT, "team"), "plan");
    let stamps = [&mallory, &member].map(begun);
    let mut mode = 0o600;
    let mut hears =
        |peer: &Peer<'_>, stamp: Stamp| {
            peer.pushes.0.lock().clear();
            mode += 1;
            let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
            assert_eq!(bob.outcome(Operation::Set { file: plan, attributes }, b""), Outcome::Done);
            let told =
                peer.pushes.0.lock().iter().any(
                    |message| matches!(unpack(message), Ok(Pushed::Changed { files, .. }) if files.contains(&plan)),
                );
            let Reply::Since(since) = peer.ask(Request::Since { stamp }) else { panic!("no answer") };
            let answered = matches!(&since, Since::Changed { files, .. } if files.contains(&plan));
            let Reply::Attached { since, .. } = peer.ask(Request::Attach {
                volume: VOLUME.into(),
                incarnation: 7,
                acknowledged: 0,
                stamp: Some(stamp),
                newest: FileId::new(0),
                watch: Watch::Changes,
                attempt: attempt(),
            }) else {
                panic!("not attached")
            };
            let attached = matches!(&since, Since::Changed { files, .. } if files.contains(&plan));
            [told, answered, attached]
        };
    assert_eq!(hears(&mallory, stamps[0]), [false; 3]);
    assert_eq!(hears(&member, stamps[1]), [true; 3]);
    let entries = [(1u16, 7u16, u32::MAX), (2, 5, MALLORY), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)];
    let entry =
        |(tag, may, id): (u16, u16, u32)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat();
    let acl: Vec<u8> = 2u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect();
    let set = world.fs.setxattr(&Cred::ROOT, team, b"system.posix_acl_access", &acl, XattrMode::Any);
    world.sim.block_on(async { set.await }).expect("ACL");
    assert_eq!(hears(&mallory, stamps[0]), [true; 3]);
}
