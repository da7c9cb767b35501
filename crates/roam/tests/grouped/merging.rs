//! Directories that several clients have made at one place without a network become one.

use crate::rig::session::{How, Op, XATTR, find, open_to_write, perform, read_all};
use crate::rig::{Network, Rig};
use host::sim::{Machine, SimDisk};
use roam::conflict::Deed;
use roam::{Client, Consistency};
use roam_proto::message::{ConflictReason, Outcome};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::{Cred, DirEntry, FileSystem, RenameFlags, XattrMode};
use vfs::tree::walk;

const ROOT: Cred = Cred::ROOT;
const DELAY: Duration = Duration::from_millis(20);

struct Laptop {
    key: u8,
    client: Client,
    network: Network,
    disk: SimDisk,
    machine: Machine,
}

impl Laptop {
    fn new(rig: &Rig, key: u8) -> Laptop {
        let (client, network, disk, machine) = rig.new_client(key, DELAY);
        rig.sim.block_on(perform(&client, &Op::List(String::new()))).expect("list");
        Laptop { key, client, network, disk, machine }
    }

    fn online(&self, rig: &Rig, online: bool) {
        self.network.up.store(online, Relaxed);
        rig.sim.run_for(Duration::from_secs(60));
    }

    fn done(&self, rig: &Rig, op: Op) {
        rig.sim.block_on(perform(&self.client, &op)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }

    fn write(&self, rig: &Rig, path: &str, text: &str) {
        self.done(rig, Op::Write(path.into(), How::Replace, text.into()));
    }

    fn restart(&mut self, rig: &Rig, power: bool) {
        self.machine.crash();
        if power {
            self.disk.power_loss();
        }
        self.machine = rig.sim.machine(&format!("laptop {}", self.key));
        self.client = rig.client(&self.machine, &self.disk, &self.network);
    }

    fn conflicts(&self) -> Vec<(Deed, Outcome)> {
        self.client.look(|replica, _| replica.conflicts().map(|(_, t)| (t.deed, t.outcome)).collect())
    }
}

fn at_home(rig: &Rig, path: &str) -> Result<String, FsError> {
    let read = rig.sim.block_on(async { read_all(&rig.fs, find(&rig.fs, path).await?).await });
    read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// All paths at home, without the home's own folder.
fn paths(rig: &Rig) -> Vec<String> {
    let all = rig.fs.dump().into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
    all.filter(|path| !path.is_empty() && !path.starts_with("/.starling")).collect()
}

/// Checks that all clients see what is at home, and that nothing waits to go home.
fn check_views(rig: &Rig, laptops: &[&Laptop], when: &str) {
    let mut all = rig.fs.dump();
    all.retain(|entry| entry.path != b"/.starling");
    all[0].attr.nlink -= 1;
    for laptop in laptops {
        assert_eq!(laptop.client.look(|replica, _| replica.log().len()), 0, "{when}");
        let view = rig.sim.block_on(walk(&laptop.client)).expect("walk");
        assert_eq!(vfs::tree::difference(&all, &view), None, "client {}, {when}", laptop.key);
    }
}

/// Two clients that were away made the same directories, each with files of its own in them.
fn apart(rig: &Rig) -> (Laptop, Laptop) {
    let (one, two) = (Laptop::new(rig, 1), Laptop::new(rig, 2));
    for laptop in [&one, &two] {
        laptop.online(rig, false);
        laptop.done(rig, Op::MakeDir("/dir".into()));
        laptop.done(rig, Op::MakeDir("/dir/sub".into()));
        laptop.done(rig, Op::MakeDir(format!("/dir/of-{}", laptop.key)));
        laptop.write(rig, &format!("/dir/file-{}", laptop.key), "in the directory");
        laptop.write(rig, &format!("/dir/sub/file-{}", laptop.key), "below");
    }
    (one, two)
}

const MERGED: [&str; 8] =
    ["/dir", "/dir/file-1", "/dir/file-2", "/dir/of-1", "/dir/of-2", "/dir/sub", "/dir/sub/file-1", "/dir/sub/file-2"];

#[test]
fn directories_that_two_have_made_are_one() {
    let rig = Rig::new(1);
    let (one, two) = apart(&rig);
    one.online(&rig, true);
    two.online(&rig, true);
    assert_eq!(paths(&rig), MERGED);
    assert_eq!((one.conflicts(), two.conflicts()), (vec![], vec![]));
    check_views(&rig, &[&one, &two], "merged");
    // Later writes go to the right files, too.
    two.write(&rig, "/dir/sub/file-1", "by two");
    one.write(&rig, "/dir/file-2", "by one");
    rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(at_home(&rig, "/dir/sub/file-1").as_deref(), Ok("by two"));
    assert_eq!(at_home(&rig, "/dir/file-2").as_deref(), Ok("by one"));
    check_views(&rig, &[&one, &two], "changed");
}

/// Programs that have the directory open, or work in it, go on.
#[test]
fn what_was_open_stays_of_use() {
    let rig = Rig::new(2);
    let (one, two) = apart(&rig);
    let client = two.client.clone();
    let (old, sub, handle) = rig.sim.block_on(async {
        let (old, sub) = (find(&client, "/dir").await.unwrap(), find(&client, "/dir/sub").await.unwrap());
        (old, sub, client.opendir(&ROOT, old).await.unwrap())
    });
    let half = rig.sim.block_on(client.readdir(old, handle, 0, 4, true).into_future()).expect("list");
    one.online(&rig, true);
    two.online(&rig, true);
    assert_eq!(paths(&rig), MERGED);
    rig.sim.block_on(async {
        let real = find(&client, "/dir").await.expect("find");
        assert_ne!(real, old);
        assert_eq!(client.getattr(old).await.expect("stat").attr.id, real);
        assert_eq!(client.lookup(&ROOT, old, b".").await.expect("lookup").attr.id, real);
        assert_eq!(client.lookup(&ROOT, sub, b"..").await.expect("lookup").attr.id, real);
        let rest = client.readdir(old, handle, half.last().unwrap().cookie, 100, true).await.expect("list");
        let names = |entries: &[DirEntry]| entries.iter().map(|e| e.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&half), [&b"."[..], b"..", b"file-2", b"of-2"]);
        assert_eq!(names(&rest), [b"sub"], "the listing is as it was when it began");
        assert_eq!(rest[0].id, find(&client, "/dir/sub").await.expect("find"));
        let again = client.readdir(old, handle, 0, 100, false).await.expect("list");
        assert_eq!(again.len(), 7, "{again:?}");
        assert_eq!((again[0].id, again[1].id), (real, FileId::ROOT));
        client.fsync_dir(old, handle).await.expect("sync");
        client.mkdir(&ROOT, old, b"new", 0o755, 0).await.expect("mkdir");
        client.rename(&ROOT, old, b"new", sub, b"newer", RenameFlags::default()).await.expect("rename");
        let into_itself = client.rename(&ROOT, FileId::ROOT, b"dir", sub, b"dir", RenameFlags::default()).await;
        assert_eq!(into_itself, Err(FsError::InvalidArgument));
        client.symlink(&ROOT, sub, b"link", b"newer").await.expect("symlink");
        client.setxattr(&ROOT, old, XATTR, b"value", XattrMode::Any).await.expect("setxattr");
        assert_eq!(client.getxattr(&ROOT, real, XATTR).await.as_deref(), Ok(&b"value"[..]));
        client.releasedir(old, handle).await.expect("close");
        assert_eq!(client.fsync_dir(old, handle).await, Err(FsError::BadHandle));
    });
    rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(two.conflicts(), []);
    check_views(&rig, &[&one, &two], "changed");
    assert!(paths(&rig).contains(&"/dir/sub/newer".to_string()));
}

/// The client or the home crashes at every step, while the client learns that what it has made is
/// there already.
fn crashes(of_home: bool, make: impl Fn(&Rig) -> (Laptop, Laptop), there: &[&str], (path, text): (&str, &str)) {
    for steps in 0.. {
        let rig = Rig::with_pace(steps, of_home);
        let (one, mut two) = make(&rig);
        one.online(&rig, true);
        let home = rig.home.lock().clone().expect("home").machine;
        let machine = if of_home { &home } else { &two.machine };
        machine.crash_after(steps * if of_home { 3 } else { 1 });
        two.online(&rig, true);
        let crashed = !machine.is_up();
        if crashed {
            if of_home {
                rig.crash_home();
                rig.disk.power_loss();
                rig.start_home();
            } else {
                two.restart(&rig, steps % 2 == 0);
            }
            // Others list the directory before this client asks again.
            one.done(&rig, Op::List("/dir".into()));
            rig.sim.run_for(Duration::from_secs(60));
        } else {
            machine.crash_after(u64::MAX);
        }
        let when = format!("{steps} steps");
        assert_eq!((one.conflicts(), two.conflicts()), (vec![], vec![]), "{when}");
        assert_eq!(paths(&rig), there, "{when}");
        assert_eq!(at_home(&rig, path).as_deref(), Ok(text), "{when}");
        check_views(&rig, &[&one, &two], &when);
        if !crashed {
            assert!(steps > 0, "nothing crashed");
            return;
        }
    }
}

#[test]
fn crash_of_a_client_whose_directories_are_there_already() {
    crashes(false, apart, &MERGED, ("/dir/sub/file-2", "below"));
}

#[test]
fn crash_of_a_home_that_has_a_clients_directories_already() {
    crashes(true, apart, &MERGED, ("/dir/sub/file-2", "below"));
}

/// If an answer was lost, the client asks again and gets the same answer.
#[test]
fn lost_answers_are_told_again() {
    let rig = Rig::new(3);
    let (one, two) = apart(&rig);
    one.online(&rig, true);
    two.network.up.store(true, Relaxed);
    while !paths(&rig).contains(&"/dir/sub/file-2".to_string()) {
        rig.sim.run_for(Duration::from_millis(1));
    }
    two.network.lose_answers.store(true, Relaxed);
    two.online(&rig, true);
    // The directory that this one became has moved meanwhile.
    one.done(&rig, Op::Rename("/dir".into(), "/moved".into(), RenameFlags::default()));
    one.online(&rig, true);
    assert!(two.client.look(|replica, _| replica.log().len()) > 0);
    two.network.lose_answers.store(false, Relaxed);
    two.online(&rig, true);
    let expected: Vec<String> = MERGED.iter().map(|path| path.replacen("/dir", "/moved", 1)).collect();
    assert_eq!(paths(&rig), expected);
    assert_eq!((one.conflicts(), two.conflicts()), (vec![], vec![]));
    check_views(&rig, &[&one, &two], "told again");
}

/// Names below a merged directory may clash, which is a conflict as anywhere. A file in a
/// directory's place is a conflict, too.
#[test]
fn what_clashes_is_a_conflict() {
    let rig = Rig::new(4);
    let (one, two) = apart(&rig);
    for laptop in [&one, &two] {
        laptop.write(&rig, "/dir/both", &format!("by {}", laptop.key));
    }
    one.write(&rig, "/other", "a file");
    two.done(&rig, Op::MakeDir("/other".into()));
    two.write(&rig, "/other/file", "below");
    one.done(&rig, Op::MakeDir("/dir/mixed".into()));
    two.write(&rig, "/dir/mixed", "a file");
    one.online(&rig, true);
    two.online(&rig, true);
    assert_eq!(at_home(&rig, "/dir/both").as_deref(), Ok("by 1"));
    assert_eq!(at_home(&rig, "/dir/both (conflict)").as_deref(), Ok("by 2"));
    assert_eq!(at_home(&rig, "/other").as_deref(), Ok("a file"));
    assert_eq!(at_home(&rig, "/other (conflict)/file").as_deref(), Ok("below"));
    assert_eq!(at_home(&rig, "/dir/mixed (conflict)").as_deref(), Ok("a file"));
    assert_eq!(two.conflicts(), [(Deed::Make, Outcome::Conflict(ConflictReason::Taken)); 3]);
    check_views(&rig, &[&one, &two], "in conflict");
}

/// Modes and attributes are those of the client that was home first. Later ones are changes like
/// any other.
#[test]
fn attributes_of_before_are_not_taken_over() {
    for together in [false, true] {
        let rig = Rig::new(5);
        let (one, two) = apart(&rig);
        one.done(&rig, Op::SetMode("/dir".into(), 0o700));
        if !together {
            // The directory goes home in an earlier message than the operations on it.
            for number in 0..100 {
                two.done(&rig, Op::Make(format!("/dir/more-{number}"), 0o644));
            }
        }
        two.done(&rig, Op::SetMode("/dir".into(), 0o711));
        two.done(&rig, Op::SetXattr("/dir".into(), b"two".to_vec()));
        one.online(&rig, true);
        two.online(&rig, true);
        let dir = || rig.fs.dump().into_iter().find(|entry| entry.path == b"/dir").expect("a directory");
        assert_eq!((dir().attr.mode & 0o777, dir().xattrs.len()), (0o700, 0));
        assert_eq!(two.conflicts(), []);
        check_views(&rig, &[&one, &two], "merged");
        two.done(&rig, Op::SetMode("/dir".into(), 0o755));
        rig.sim.run_for(Duration::from_secs(60));
        assert_eq!((dir().attr.mode & 0o777, two.conflicts()), (0o755, vec![]));
        check_views(&rig, &[&one, &two], "changed");
    }
}

/// Another program has made the directory, and the home had never looked at it.
#[test]
fn directories_of_other_programs_are_merged_too() {
    let rig = Rig::new(6);
    let two = Laptop::new(&rig, 2);
    two.online(&rig, false);
    two.done(&rig, Op::MakeDir("/dir".into()));
    two.write(&rig, "/dir/mine", "mine");
    let fs = rig.fs.clone();
    for op in [Op::MakeDir("/dir".into()), Op::Write("/dir/theirs".into(), How::Replace, b"theirs".to_vec())] {
        rig.sim.block_on(perform(&fs, &op)).expect("another program");
    }
    two.online(&rig, true);
    assert_eq!(paths(&rig), ["/dir", "/dir/mine", "/dir/theirs"]);
    assert_eq!(two.conflicts(), []);
    // From now on the client notices what others do there.
    let tree = rig.home.lock().as_ref().expect("home").tree.clone();
    let op = Op::Write("/dir/mine".into(), How::Replace, b"changed".to_vec());
    rig.sim.block_on(perform(&tree, &op)).expect("another program");
    rig.sim.run_for(Duration::from_secs(5));
    check_views(&rig, &[&two], "merged");
    // The directory is cached, too.
    two.online(&rig, false);
    let names = rig.sim.block_on(async {
        let dir = find(&two.client, "/dir").await.expect("find");
        let handle = two.client.opendir(&ROOT, dir).await.expect("open");
        two.client.readdir(dir, handle, 0, 100, false).await.expect("list").len()
    });
    assert_eq!(names, 4);
}

/// If the other directory is gone when this client comes back, the client's own is made.
#[test]
fn a_directory_that_is_gone_is_made() {
    let rig = Rig::new(7);
    let (one, two) = (Laptop::new(&rig, 1), Laptop::new(&rig, 2));
    two.online(&rig, false);
    two.done(&rig, Op::MakeDir("/dir".into()));
    two.write(&rig, "/dir/file", "mine");
    one.done(&rig, Op::MakeDir("/dir".into()));
    rig.sim.run_for(Duration::from_secs(5));
    one.done(&rig, Op::RemoveDir("/dir".into()));
    one.online(&rig, true);
    two.online(&rig, true);
    assert_eq!(at_home(&rig, "/dir/file").as_deref(), Ok("mine"));
    assert_eq!(two.conflicts(), []);
    check_views(&rig, &[&one, &two], "made");
}

/// A client renames its directory and makes another in its place, after the first has gone home.
#[test]
fn a_directory_that_moved_on_is_one_all_the_same() {
    let rig = Rig::new(8);
    let (one, two) = (Laptop::new(&rig, 1), Laptop::new(&rig, 2));
    for laptop in [&one, &two] {
        laptop.online(&rig, false);
        laptop.done(&rig, Op::MakeDir("/dir".into()));
        laptop.write(&rig, &format!("/dir/file-{}", laptop.key), "text");
    }
    // An operation that may have reached the home stays as it is in the log.
    two.network.lose_requests.store(true, Relaxed);
    two.online(&rig, true);
    two.online(&rig, false);
    two.done(&rig, Op::Rename("/dir".into(), "/moved".into(), RenameFlags::default()));
    two.done(&rig, Op::MakeDir("/dir".into()));
    two.write(&rig, "/dir/again", "again");
    one.online(&rig, true);
    two.network.lose_requests.store(false, Relaxed);
    two.online(&rig, true);
    assert_eq!(paths(&rig), ["/dir", "/dir/again", "/moved", "/moved/file-1", "/moved/file-2"]);
    assert_eq!((one.conflicts(), two.conflicts()), (vec![], vec![]));
    check_views(&rig, &[&one, &two], "moved");
}

/// Two clients that have made the same symlink are not in conflict.
#[test]
fn symlinks_with_the_same_target_are_one() {
    let rig = Rig::new(9);
    let (one, two) = (Laptop::new(&rig, 1), Laptop::new(&rig, 2));
    for laptop in [&one, &two] {
        laptop.online(&rig, false);
        laptop.done(&rig, Op::MakeSymlink("/same".into(), "target".into()));
        laptop.done(&rig, Op::MakeSymlink("/other".into(), format!("target {}", laptop.key)));
    }
    two.done(&rig, Op::Link("/same".into(), "/name".into()));
    one.online(&rig, true);
    two.online(&rig, true);
    assert_eq!(paths(&rig), ["/name", "/other", "/other (conflict)", "/same"]);
    assert_eq!(two.conflicts(), [(Deed::Make, Outcome::Conflict(ConflictReason::Taken))]);
    check_views(&rig, &[&one, &two], "merged");
}

/// A client made a directory again, because an operation before it had failed. The home took it for
/// the directory that the client had moved away.
#[test]
fn regression_a_new_directory_is_not_the_one_that_was_to_be_moved_away() {
    let rig = Rig::new(10);
    let (one, two) = (Laptop::new(&rig, 1), Laptop::new(&rig, 2));
    two.online(&rig, false);
    two.done(&rig, Op::MakeDir("/dir".into()));
    two.done(&rig, Op::Make("/dir/old".into(), 0o644));
    two.done(&rig, Op::MakeDir("/taken".into()));
    two.done(&rig, Op::Rename("/dir".into(), "/taken/moved".into(), RenameFlags::default()));
    two.done(&rig, Op::MakeDir("/dir".into()));
    two.done(&rig, Op::Make("/dir/new".into(), 0o644));
    one.write(&rig, "/taken", "a file");
    one.online(&rig, true);
    two.online(&rig, true);
    let expected =
        ["/dir", "/dir/new", "/taken", "/taken (conflict)", "/taken (conflict)/moved", "/taken (conflict)/moved/old"];
    assert_eq!(paths(&rig), expected);
    assert_eq!(two.conflicts(), [(Deed::Make, Outcome::Conflict(ConflictReason::Taken))]);
    check_views(&rig, &[&one, &two], "moved away");
}

/// A client under delegations sees at once what another client merges into its directory.
#[test]
fn what_is_merged_is_claimed_from_who_works_under_delegations() {
    let rig = Rig::new(11);
    let (one, two) = apart(&rig);
    one.online(&rig, true);
    one.client.set(|settings| settings.consistency = Consistency::Strong);
    rig.sim.run_for(Duration::from_secs(10));
    rig.sim.block_on(walk(&one.client)).expect("walk");
    two.network.up.store(true, Relaxed);
    for _ in 0..400 {
        rig.sim.run_for(Duration::from_millis(70));
        let seen = rig.sim.block_on(walk(&one.client)).expect("walk");
        let seen: Vec<_> = seen.into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect();
        assert_eq!(seen[1..], paths(&rig));
    }
    assert_eq!(paths(&rig), MERGED);
    assert_eq!((one.conflicts(), two.conflicts()), (vec![], vec![]));
    check_views(&rig, &[&one, &two], "merged");
}

/// Two clients without a network have made the same file.
fn both_write(rig: &Rig, texts: [&str; 2]) -> (Laptop, Laptop) {
    let (one, two) = (Laptop::new(rig, 1), Laptop::new(rig, 2));
    for (laptop, text) in [&one, &two].into_iter().zip(texts) {
        laptop.online(rig, false);
        laptop.done(rig, Op::MakeDir("/dir".into()));
        // The client notices that there is no network.
        rig.sim.run_for(Duration::from_secs(60));
        laptop.write(rig, "/dir/file", text);
        laptop.done(rig, Op::SetMode("/dir/file".into(), 0o600 + u32::from(laptop.key)));
    }
    (one, two)
}

#[test]
fn files_with_the_same_contents_are_one() {
    for len in [1, 100_000] {
        let rig = Rig::new(11);
        let text = "x".repeat(len);
        let (one, mut two) = both_write(&rig, [&text, &text]);
        one.online(&rig, true);
        two.online(&rig, true);
        assert_eq!((one.conflicts(), two.conflicts()), (vec![], vec![]), "{len} bytes");
        assert_eq!(paths(&rig), ["/dir", "/dir/file"]);
        check_views(&rig, &[&one, &two], "one");
        let mode = rig.sim.block_on(async { rig.fs.getattr(find(&rig.fs, "/dir/file").await?).await });
        assert_eq!(mode.expect("stat").attr.mode, 0o601, "the mode is that of the client that was home first");
        // Later changes go to the one file.
        two.restart(&rig, true);
        two.online(&rig, true);
        two.write(&rig, "/dir/file", "by two");
        rig.sim.run_for(Duration::from_secs(60));
        assert_eq!(at_home(&rig, "/dir/file").as_deref(), Ok("by two"));
        check_views(&rig, &[&one, &two], "changed");
    }
}

#[test]
fn files_that_differ_or_go_on_are_in_conflict() {
    let taken = (Deed::Make, Outcome::Conflict(ConflictReason::Taken));
    type Go = fn(&Rig, &Laptop);
    let goes_on: [(&str, Go); 4] = [
        ("other", |_, _| {}),
        ("same", |rig, two| two.done(rig, Op::Link("/dir/file".into(), "/dir/link".into()))),
        ("same", |rig, two| two.done(rig, Op::Rename("/dir/file".into(), "/dir/moved".into(), RenameFlags::default()))),
        ("same", |rig, two| {
            let client = &two.client;
            let opened = rig.sim.block_on(async { open_to_write(client, "/dir/file", How::Append).await });
            opened.expect("it stays open");
        }),
    ];
    for ((text, go), when) in goes_on.into_iter().zip(0..) {
        let rig = Rig::new(12);
        let (one, two) = both_write(&rig, [text, "same"]);
        one.online(&rig, true);
        go(&rig, &two);
        two.online(&rig, true);
        let moved = when == 2;
        assert_eq!((one.conflicts(), two.conflicts()), (vec![], if moved { vec![] } else { vec![taken] }), "{when}");
        let beside = if moved { "/dir/moved" } else { "/dir/file (conflict)" };
        assert_eq!(at_home(&rig, beside).as_deref(), Ok("same"), "{when}: {:?}", paths(&rig));
        assert_eq!(at_home(&rig, "/dir/file").as_deref(), Ok(text), "{when}");
    }
}

#[test]
fn crash_of_a_client_or_a_home_that_has_its_file_already() {
    for of_home in [false, true] {
        let make = |rig: &Rig| both_write(rig, ["same", "same"]);
        crashes(of_home, make, &["/dir", "/dir/file"], ("/dir/file", "same"));
    }
}

/// Two clients that have made an empty file have made the same file. If one of them writes to it
/// later, that is no conflict; if it had written before, that is one.
#[test]
fn empty_files_are_one() {
    for writes in ["", "before", "later"] {
        let rig = Rig::new(12);
        let (one, two) = (Laptop::new(&rig, 1), Laptop::new(&rig, 2));
        for laptop in [&one, &two] {
            laptop.online(&rig, false);
            laptop.done(&rig, Op::Make("/empty".into(), [0o640, 0o660][usize::from(laptop.key) - 1]));
        }
        if writes == "before" {
            two.write(&rig, "/empty", "mine");
        }
        one.online(&rig, true);
        two.online(&rig, true);
        if writes == "later" {
            two.write(&rig, "/empty", "mine");
            two.online(&rig, true);
        }
        let expected: &[&str] = if writes == "before" { &["/empty", "/empty (conflict)"] } else { &["/empty"] };
        assert_eq!(paths(&rig), expected, "{writes}");
        let text = at_home(&rig, expected.last().expect("a path"));
        assert_eq!(text.as_deref(), Ok(if writes.is_empty() { "" } else { "mine" }));
        assert_eq!(two.conflicts().len(), expected.len() - 1);
        check_views(&rig, &[&one, &two], writes);
    }
}

/// Otherwise more users could read what the client writes to the file than it was meant for.
#[test]
fn an_empty_file_that_more_may_read_is_another() {
    for (mode, later) in [(0o600, None), (0o644, Some(0o600))] {
        let rig = Rig::new(13);
        let (one, two) = (Laptop::new(&rig, 1), Laptop::new(&rig, 2));
        for (laptop, mode) in [(&one, 0o644), (&two, mode)] {
            laptop.online(&rig, false);
            laptop.done(&rig, Op::Make("/key".into(), mode));
        }
        later.into_iter().for_each(|mode| two.done(&rig, Op::SetMode("/key".into(), mode)));
        one.online(&rig, true);
        two.online(&rig, true);
        assert_eq!(paths(&rig), ["/key", "/key (conflict)"]);
        let mode = rig.sim.block_on(async { rig.fs.getattr(find(&rig.fs, "/key (conflict)").await?).await });
        assert_eq!(mode.expect("stat").attr.mode, 0o600);
    }
}

/// Two clients are in conflict with the same file, and do not know of each other's versions. Each
/// conflict names the place of its own version.
#[test]
fn regression_two_conflicts_about_one_name_have_each_its_version() {
    for name in ["/file".to_string(), format!("/{}", "n".repeat(250))] {
        let rig = Rig::new(14);
        rig.sim.block_on(perform(&rig.fs, &Op::Write(name.clone(), How::Replace, "old".into()))).expect("written");
        rig.sync();
        let (one, two) = (Laptop::new(&rig, 1), Laptop::new(&rig, 2));
        for laptop in [&one, &two] {
            laptop.done(&rig, Op::Read(name.clone()));
            laptop.online(&rig, false);
            laptop.write(&rig, &name, &format!("by {}", laptop.key));
        }
        rig.sim.block_on(perform(&rig.fs, &Op::Write(name.clone(), How::Replace, "theirs".into()))).expect("written");
        rig.sync();
        one.online(&rig, true);
        two.online(&rig, true);
        for laptop in [&one, &two] {
            assert_eq!(laptop.conflicts(), [(Deed::Store, Outcome::Conflict(ConflictReason::Changed))]);
            let mine = laptop.client.look(|replica, _| replica.conflicts().next().and_then(|(_, t)| t.mine.clone()));
            let mine = format!("/{}", String::from_utf8(mine.expect("a place").1).expect("a name"));
            assert_eq!(at_home(&rig, &mine), Ok(format!("by {}", laptop.key)), "{mine}");
        }
        assert_eq!((at_home(&rig, &name).as_deref(), paths(&rig).len()), (Ok("theirs"), 3));
        check_views(&rig, &[&one, &two], "both kept");
    }
}
