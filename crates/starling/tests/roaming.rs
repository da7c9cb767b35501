//! Working far from home, or without a network, as users see it: real mounts, a home over a real
//! folder, and links that are emulated.

mod common;
#[path = "common/roaming.rs"]
mod roaming;
#[path = "common/xattr.rs"]
mod xattr;

use common::{run, starling, tree};
use linkem::units::Rate;
use linkem::{Direction, Shape};
use roaming::{Home, LONG, Laptop, noise, warm};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::time::Duration;
use xattr::{get_xattr, set_xattr};

#[test]
fn what_one_does_the_other_sees() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("old.txt"), "old").expect("write");
    let (one, two) = (Laptop::mount(&home, below.path(), "one"), Laptop::mount(&home, below.path(), "two"));
    assert_eq!(fs::read_to_string(one.mountpoint.join("old.txt")).expect("read"), "old");
    fs::create_dir(one.mountpoint.join("dir")).expect("mkdir");
    fs::write(one.mountpoint.join("dir/new.txt"), "new").expect("write");
    one.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(home.exported.join("dir/new.txt")).expect("read"), "new");
    two.wait(LONG, "what one has made", |two| two.mountpoint.join("dir/new.txt").exists());
    assert_eq!(fs::read_to_string(two.mountpoint.join("dir/new.txt")).expect("read"), "new");
    fs::write(home.exported.join("dir/new.txt"), "newer, by another program").expect("write");
    let newer = |laptop: &Laptop| {
        fs::read_to_string(laptop.mountpoint.join("dir/new.txt")).expect("read") == "newer, by another program"
    };
    one.wait(LONG, "what another program has written", newer);
    two.wait(LONG, "what another program has written", newer);
    assert_eq!(tree(&one.mountpoint).len(), 2);
}

#[test]
fn acls_that_another_sets_replace_those_that_the_kernel_has_kept() {
    const ACL: &str = "system.posix_acl_access";
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "bytes").expect("write");
    let (one, two) = (Laptop::mount(&home, below.path(), "one"), Laptop::mount(&home, below.path(), "two"));
    let file = |laptop: &Laptop| laptop.mountpoint.join("file");
    for laptop in [&one, &two] {
        assert_eq!(get_xattr(&file(laptop), ACL), Err(Some(libc::ENODATA)));
        // Attributes that only one machine understands are not sent, so the kernel does not ask
        // twice.
        assert_eq!(get_xattr(&file(laptop), "security.selinux"), Err(Some(libc::EOPNOTSUPP)));
        assert_eq!(set_xattr(&file(laptop), "security.selinux", b"some:context"), Err(Some(libc::EOPNOTSUPP)));
    }
    for user in [1u32, 2] {
        // The owner may write, this user and the group may read.
        let entries = [(1u16, 6u16, u32::MAX), (2, 4, user), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
        let entry =
            |(tag, may, id): (u16, u16, u32)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat();
        let acl: Vec<u8> = 2u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect();
        assert_eq!(set_xattr(&file(&two), ACL, &acl), Ok(()));
        assert_eq!(get_xattr(&file(&two), ACL).as_ref(), Ok(&acl));
        one.wait(LONG, "the ACL that two has set", |one| get_xattr(&file(one), ACL).as_ref() == Ok(&acl));
    }
}

#[test]
fn under_strong_what_is_written_is_seen_at_once_and_a_lock_is_had_by_one() {
    const CLIENT_COUNT: usize = 3;
    const TURN_COUNT: u64 = 5;
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("counter"), "0").expect("write");
    let laptop = |n: usize| Laptop::mount_as(&home, below.path(), &format!("laptop {n}"), &["--consistency", "strong"]);
    let laptops: Vec<Laptop> = (0..CLIENT_COUNT).map(laptop).collect();
    // Before it is closed.
    let mut written = fs::File::create(laptops[0].mountpoint.join("open")).expect("create");
    for (more, all) in [("first", "first"), (", second", "first, second")] {
        written.write_all(more.as_bytes()).expect("write");
        for laptop in &laptops {
            assert_eq!(fs::read_to_string(laptop.mountpoint.join("open")).expect("read"), all);
        }
    }
    std::thread::scope(|scope| {
        for laptop in &laptops {
            scope.spawn(|| {
                let at = |name: &str| laptop.mountpoint.join(name);
                for _ in 0..TURN_COUNT {
                    while let Err(error) = OpenOptions::new().write(true).create_new(true).open(at("lock")) {
                        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    let count: u64 = fs::read_to_string(at("counter")).expect("read").parse().expect("a number");
                    fs::write(at("counter"), (count + 1).to_string()).expect("write");
                    fs::remove_file(at("lock")).expect("the lock is mine");
                }
            });
        }
    });
    let all = (CLIENT_COUNT as u64 * TURN_COUNT).to_string();
    for laptop in &laptops {
        assert_eq!(fs::read_to_string(laptop.mountpoint.join("counter")).expect("read"), all);
    }
}

#[test]
fn a_mount_needs_no_network_once_it_was_attached() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    fs::write(home.exported.join("cached.txt"), "cached").expect("write");
    fs::write(home.exported.join("other.txt"), "other").expect("write");
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("cached.txt")).expect("read"), "cached");
    laptop.stop(libc::SIGTERM);
    home.stop(libc::SIGTERM);
    laptop.mount_again();
    assert_eq!(laptop.state(), "disconnected");
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("cached.txt")).expect("read"), "cached");
    // It is known to be there, but not what is in it: neither missing nor empty.
    assert_eq!(fs::metadata(laptop.mountpoint.join("other.txt")).expect("stat").len(), 5);
    let error = fs::read(laptop.mountpoint.join("other.txt")).expect_err("not cached");
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
    fs::write(laptop.mountpoint.join("made.txt"), "made without a network").expect("write");
    fs::write(laptop.mountpoint.join("cached.txt"), "changed").expect("write");
    run(starling().arg("sync").arg(&laptop.mountpoint));
    // The battery runs out.
    laptop.stop(libc::SIGKILL);
    laptop.mount_again();
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("made.txt")).expect("read"), "made without a network");
    home.start();
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(home.exported.join("made.txt")).expect("read"), "made without a network");
    assert_eq!(fs::read_to_string(home.exported.join("cached.txt")).expect("read"), "changed");
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("other.txt")).expect("read"), "other");
}

/// Changes made without a network survive a kill of the mount's process: at once if the program
/// waited for durability or if the mount works so, and otherwise after a while.
#[test]
fn what_is_done_is_durable_when_it_is_waited_for_and_soon_after() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    assert_eq!(fs::read_dir(&laptop.mountpoint).expect("list").count(), 0);
    home.stop(libc::SIGTERM);
    let write = |laptop: &Laptop, name: &str| fs::write(laptop.mountpoint.join(name), name).expect("write");
    let killed = |laptop: &mut Laptop, names: &[&str]| {
        laptop.stop(libc::SIGKILL);
        laptop.mount_again();
        for name in names {
            assert_eq!(fs::read_to_string(laptop.mountpoint.join(name)).expect(name), *name);
        }
    };
    write(&laptop, "before");
    fs::create_dir(laptop.mountpoint.join("dir")).expect("mkdir");
    write(&laptop, "synced");
    File::open(laptop.mountpoint.join("synced")).and_then(|file| file.sync_all()).expect("fsync");
    killed(&mut laptop, &["before", "synced"]);
    write(&laptop, "in a directory");
    File::open(laptop.mountpoint.join("dir")).and_then(|dir| dir.sync_all()).expect("fsync");
    killed(&mut laptop, &["in a directory"]);
    write(&laptop, "a while ago");
    std::thread::sleep(4 * roam::COMMIT_TIME_MAX);
    killed(&mut laptop, &["a while ago"]);
    write(&laptop, "unmounted");
    laptop.stop(libc::SIGTERM);
    laptop.mount_again();
    let told = run(starling().args(["set", "--durability", "always"]).arg(&laptop.mountpoint));
    assert!(told.contains("durability always"), "{told}");
    assert_eq!(laptop.ask(&["status"])["durability"], "always");
    write(&laptop, "closed");
    killed(&mut laptop, &["unmounted", "closed"]);
    home.start();
    laptop.wait_until_home(LONG);
    for name in ["before", "synced", "in a directory", "a while ago", "unmounted", "closed"] {
        assert_eq!(fs::read_to_string(home.exported.join(name)).expect(name), name);
    }
}

#[test]
fn what_is_hoarded_is_there_without_a_network() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    fs::create_dir_all(home.exported.join("thesis/figures")).expect("mkdir");
    fs::write(home.exported.join("thesis/text.tex"), "text").expect("write");
    fs::write(home.exported.join("thesis/figures/one.eps"), vec![7; 3_000_000]).expect("write");
    fs::write(home.exported.join("other"), "other").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    let removed = starling().args(["hoard", "remove"]).arg(&laptop.mountpoint).output().expect("start");
    assert!(!removed.status.success() && common::text(&removed).contains("is not hoarded"), "{removed:?}");
    run(starling().args(["hoard", "add", "--priority", "90"]).arg(laptop.mountpoint.join("thesis")));
    let walked = run(starling().args(["hoard", "walk"]).arg(&laptop.mountpoint));
    assert!(walked.contains("you can unplug now"), "{walked}");
    assert_eq!(laptop.ask(&["hoard", "list"]), serde_json::json!([{ "path": "thesis", "priority": 90 }]));
    home.stop(libc::SIGKILL);
    assert_eq!(fs::read(laptop.mountpoint.join("thesis/figures/one.eps")).expect("read"), vec![7; 3_000_000]);
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("thesis/text.tex")).expect("read"), "text");
}

/// `sync --home` right after `connect auto` said that the home cannot be reached.
#[test]
fn regression_connect_waits_a_moment_for_the_home() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    warm(&laptop.mountpoint);
    let connect = |state: &str| run(starling().args(["connect", state]).arg(&laptop.mountpoint));
    for round in 0..5 {
        connect("off");
        fs::write(laptop.mountpoint.join("file"), round.to_string()).expect("write");
        assert!(!connect("auto").contains("does not answer"));
        assert_ne!(laptop.state(), "disconnected");
    }
    run(starling().args(["sync", "--home"]).arg(&laptop.mountpoint));
    assert_eq!(fs::read_to_string(home.exported.join("file")).expect("read"), "4");
    connect("off");
    home.stop(libc::SIGKILL);
    assert!(connect("auto").contains("the home does not answer"));
}

#[test]
fn a_profile_says_what_is_hoarded_and_what_is_gone_need_not_be() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    for dir in ["papers", "music"] {
        fs::create_dir(home.exported.join(dir)).expect("mkdir");
        fs::write(home.exported.join(dir).join("one"), dir).expect("write");
    }
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    let profile = below.path().join("profile");
    let add = || {
        let mut command = starling();
        command.args(["hoard", "add", "--profile"]).arg(&profile).arg("--mount").arg(&laptop.mountpoint);
        command
    };
    fs::write(&profile, "90 papers\n101 music\n").expect("write");
    assert!(common::refused(&mut add()).contains("line 2"));
    assert_eq!(laptop.ask(&["hoard", "list"]), serde_json::json!([]), "all of it, or nothing");
    fs::write(&profile, "# dearest first\n90 /papers\n\n10 music/one\n").expect("write");
    run(&mut add());
    let hoarded = serde_json::json!([{ "path": "music/one", "priority": 10 }, { "path": "papers", "priority": 90 }]);
    assert_eq!(laptop.ask(&["hoard", "list"]), hoarded);
    run(starling().args(["hoard", "walk"]).arg(&laptop.mountpoint));
    fs::remove_dir_all(laptop.mountpoint.join("music")).expect("remove");
    run(starling().args(["hoard", "remove"]).arg(laptop.mountpoint.join("music/one")));
    assert_eq!(laptop.ask(&["hoard", "list"]), serde_json::json!([{ "path": "papers", "priority": 90 }]));
    assert!(run(starling().args(["hoard", "walk"]).arg(&laptop.mountpoint)).contains("you can unplug now"));
}

#[test]
fn absent_unreachable_and_deleted_are_three_answers() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    for dir in ["seen", "unseen"] {
        fs::create_dir(home.exported.join(dir)).expect("mkdir");
        fs::write(home.exported.join(dir).join("file"), noise(dir, 100_000)).expect("write");
    }
    fs::write(home.exported.join("held"), "held").expect("write");
    let laptop = Laptop::mount_as(&home, below.path(), "laptop", &["--unit", "block"]);
    let at = |path: &str| laptop.mountpoint.join(path);
    for entry in fs::read_dir(at("seen")).expect("list") {
        entry.expect("entry").metadata().expect("facts");
    }
    let held = fs::File::open(at("held")).expect("open");
    laptop.link.off();
    run(starling().args(["connect", "off", "--now"]).arg(&laptop.mountpoint));
    let kind = |error: std::io::Error| error.kind();
    assert_eq!(fs::metadata(at("seen/none")).map_err(kind).err(), Some(ErrorKind::NotFound), "absent");
    assert_eq!(fs::read(at("seen/file")).map_err(kind).err(), Some(ErrorKind::TimedOut), "not cached");
    let listed = fs::read_dir(at("unseen")).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    assert_eq!(listed.map_err(kind).err(), Some(ErrorKind::TimedOut), "not cached");
    assert_eq!(fs::metadata(at("unseen/file")).map_err(kind).err(), Some(ErrorKind::TimedOut), "perhaps");
    fs::remove_file(home.exported.join("held")).expect("remove");
    laptop.link.on();
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait(LONG, "what was deleted", |laptop| !laptop.mountpoint.join("held").exists());
    let mut byte = [0];
    let read = std::os::unix::fs::FileExt::read_at(&held, &mut byte, 0).map_err(kind);
    assert_eq!(read, Err(ErrorKind::StaleNetworkFileHandle), "deleted");
    assert_eq!(
        fs::read(at("seen/file")).expect("read"),
        noise("seen", 100_000).as_bytes(),
        "nothing was taken for empty"
    );
}

#[test]
fn an_extended_attribute_says_what_is_cached_of_a_file() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::create_dir(home.exported.join("kept")).expect("mkdir");
    for name in ["kept/file", "read", "not read", "written", "both"] {
        fs::write(home.exported.join(name), "there").expect("write");
    }
    fs::write(home.exported.join("long"), noise("long", 3_000_000)).expect("write");
    let laptop = Laptop::mount_as(&home, below.path(), "laptop", &["--unit", "block"]);
    let at = |name: &str| laptop.mountpoint.join(name);
    let state = |name: &str| {
        let state = get_xattr(&at(name), "user.starling.state").expect("a state");
        String::from_utf8(state).expect("text")
    };
    run(starling().args(["hoard", "add"]).arg(at("kept")));
    run(starling().args(["hoard", "walk"]).arg(&laptop.mountpoint));
    for name in ["read", "written", "both"] {
        fs::read(at(name)).expect("read");
    }
    let mut first = [0; 1000];
    std::io::Read::read_exact(&mut fs::File::open(at("long")).expect("open"), &mut first).expect("read");
    run(starling().args(["connect", "off", "--now"]).arg(&laptop.mountpoint));
    for name in ["written", "both"] {
        fs::write(at(name), "mine").expect("write");
    }
    let names = ["kept/file", "read", "not read", "written", "long"];
    assert_eq!(names.map(state), ["hoarded", "cached", "not cached", "dirty", "partly cached"]);
    fs::write(home.exported.join("both"), "theirs").expect("write");
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait_until_home(LONG);
    assert_eq!(["written", "both"].map(state), ["cached", "in conflict"]);
}

#[test]
fn what_is_fetch_only_reads_and_sends_nothing() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("there"), "there").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    run(starling().args(["connect", "fetch-only"]).arg(&laptop.mountpoint));
    fs::write(laptop.mountpoint.join("mine"), "mine").expect("write");
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("there")).expect("read"), "there");
    std::thread::sleep(Duration::from_secs(3));
    assert!(!home.exported.join("mine").exists());
    let pending = laptop.ask(&["pending"]);
    assert_eq!((&pending[0]["path"], &pending[0]["home_in_s"]), (&"mine".into(), &Value::Null), "{pending}");
    assert_eq!(laptop.ask(&["status"])["state"], "fetch-only");
    let refused = starling().args(["sync", "--home"]).arg(&laptop.mountpoint).output().expect("start");
    assert!(!refused.status.success() && common::text(&refused).contains("connect auto"), "{refused:?}");
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(home.exported.join("mine")).expect("read"), "mine");
}

#[test]
fn what_is_written_goes_home_when_the_user_wants() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    run(starling().args(["set", "--writes", "manual", "--cache-size", "1MiB"]).arg(&laptop.mountpoint));
    fs::write(laptop.mountpoint.join("file"), "text").expect("write");
    std::thread::sleep(Duration::from_millis(500));
    assert!(!home.exported.join("file").exists());
    assert_eq!(laptop.ask(&["pending"]).as_array().map(Vec::len), Some(2));
    // Changes that are not home stay, beyond the size of the cache.
    assert_eq!(laptop.ask(&["status"])["cache"]["beyond"], 0);
    fs::write(laptop.mountpoint.join("long"), vec![1; 2 << 20]).expect("write");
    let cache = &laptop.ask(&["status"])["cache"];
    assert_eq!((&cache["beyond"], &cache["writers_wait"]), (&((1 << 20) + 4).into(), &false.into()));
    let synced = run(starling().args(["sync", "--home"]).arg(&laptop.mountpoint));
    assert!(synced.contains("everything is home"), "{synced}");
    assert_eq!(fs::read_to_string(home.exported.join("file")).expect("read"), "text");
    // Data that do not fit the cache read back the same.
    run(starling().args(["set", "--writes", "through"]).arg(&laptop.mountpoint));
    for i in 0..8u8 {
        fs::write(laptop.mountpoint.join(format!("big{i}")), vec![i; 400_000]).expect("write");
    }
    laptop.wait(LONG, "room was made", |laptop| {
        laptop.ask(&["status"])["cache"]["bytes"].as_u64().is_some_and(|bytes| bytes <= 1 << 20)
    });
    for i in 0..8u8 {
        assert_eq!(fs::read(laptop.mountpoint.join(format!("big{i}"))).expect("read"), vec![i; 400_000]);
    }
    let wrong = common::refused(starling().args(["set", "--writes", "sometimes"]).arg(&laptop.mountpoint));
    assert!(wrong.contains("choose one of: idle, lottery"), "{wrong}");
}

#[test]
fn what_is_open_is_whole_when_the_user_leaves() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let long: Vec<u8> = (0..20_000_000u32).map(|i| (i / 977) as u8).collect();
    for name in ["open", "other"] {
        fs::write(home.exported.join(name), &long).expect("write");
    }
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    // A read fetches only what it needs.
    run(starling().args(["set", "--unit", "block"]).arg(&laptop.mountpoint));
    let mut open = fs::File::open(laptop.mountpoint.join("open")).expect("open");
    let mut first = [0; 10];
    for file in [&mut open, &mut fs::File::open(laptop.mountpoint.join("other")).expect("open")] {
        std::io::Read::read_exact(file, &mut first).expect("read");
    }
    run(starling().args(["set", "--unit", "auto"]).arg(&laptop.mountpoint));
    let said = run(starling().args(["connect", "off", "--now"]).arg(&laptop.mountpoint));
    assert!(said.contains("of 1 files that are open or hoarded") && said.contains("are not cached"), "{said}");
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait(LONG, "connected", |laptop| laptop.ask(&["status"])["state"] == "connected");
    let said = run(starling().args(["connect", "off"]).arg(&laptop.mountpoint));
    assert!(said.ends_with(": off\n"), "{said}");
    assert!(fs::read(laptop.mountpoint.join("open")).expect("read") == long);
    assert!(fs::read(laptop.mountpoint.join("other")).is_err());
}

#[test]
fn what_waits_says_for_how_long_and_for_what() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    // Too far away for what is closed to go home at once.
    let far = Shape { delay: Duration::from_millis(60), ..Shape::default() };
    Direction::BOTH.into_iter().for_each(|direction| laptop.link.set(direction, far));
    let set = |writes: &str| run(starling().args(["set", "--writes", writes]).arg(below.path().join("laptop")));
    set("manual");
    run(starling().args(["connect", "weak"]).arg(&laptop.mountpoint));
    fs::write(laptop.mountpoint.join("file"), noise("file", 50_000)).expect("write");
    let last = |laptop: &Laptop| {
        let pending = laptop.ask(&["pending"]);
        pending.as_array().and_then(|all| all.last().cloned()).unwrap_or_default()
    };
    let waits = last(&laptop);
    assert_eq!((&waits["home_in_s"], &waits["home_within_s"]), (&Value::Null, &Value::Null), "{waits}");
    assert_eq!(waits["waits_for"], "starling sync --home");
    let shown = run(starling().arg("pending").arg(&laptop.mountpoint));
    assert!(shown.contains("waits for `starling sync --home`"), "{shown}");
    set("delayed=1h");
    let waits = last(&laptop);
    let seconds = |field: &str| waits[field].as_u64().unwrap_or(0);
    assert!((3000..3660).contains(&seconds("home_in_s")), "{waits}");
    assert!(seconds("home_within_s") > seconds("home_in_s"), "{waits}");
    // Without a link, no time can be given.
    run(starling().args(["connect", "off", "--now"]).arg(&laptop.mountpoint));
    let waits = last(&laptop);
    assert_eq!((&waits["home_in_s"], &waits["waits_for"]), (&Value::Null, &Value::Null), "{waits}");
    let said = run(starling().arg("down").arg(&laptop.mountpoint));
    assert!(said.contains("changes wait in"), "{said}");
    laptop.mount_again();
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait(LONG, "the home", |laptop| laptop.ask(&["status"])["state"] != "disconnected");
    run(starling().args(["sync", "--home"]).arg(&laptop.mountpoint));
    assert_eq!(laptop.ask(&["pending"]), serde_json::json!([]));
    let said = run(starling().arg("down").arg(&laptop.mountpoint));
    assert!(said.contains("everything is home"), "{said}");
}

#[test]
fn regression_what_is_removed_with_its_directory_waits_under_its_whole_path() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::create_dir_all(home.exported.join("dir/sub")).expect("mkdir");
    fs::write(home.exported.join("dir/sub/file"), "text").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    warm(&laptop.mountpoint);
    run(starling().args(["connect", "off", "--now"]).arg(&laptop.mountpoint));
    fs::remove_dir_all(laptop.mountpoint.join("dir")).expect("remove");
    let pending = laptop.ask(&["pending"]);
    let paths: Vec<_> = pending.as_array().expect("a list").iter().map(|one| one["path"].clone()).collect();
    assert_eq!(paths, ["dir/sub/file", "dir/sub", "dir"]);
}

#[test]
fn what_others_change_is_seen_as_the_user_has_chosen() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "0").expect("write");
    let laptop = Laptop::mount_as(&home, below.path(), "laptop", &["--consistency", "none"]);
    let read = |laptop: &Laptop| fs::read_to_string(laptop.mountpoint.join("file")).expect("read");
    let change = |text: &str| fs::write(home.exported.join("file"), text).expect("write");
    assert_eq!(read(&laptop), "0");
    change("1");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(read(&laptop), "0", "what was seen once stays as it is");
    for (consistency, text) in [("poll=1s", "2"), ("strong", "3"), ("callbacks", "4"), ("poll=2s", "5")] {
        run(starling().args(["set", "--consistency", consistency]).arg(&laptop.mountpoint));
        change(text);
        laptop.wait(LONG, consistency, |laptop| read(laptop) == text);
        assert_eq!(laptop.ask(&["status"])["consistency"], consistency);
    }
}

#[test]
fn what_is_done_over_a_slow_link_goes_home_as_the_user_has_chosen() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    for direction in Direction::BOTH {
        let delay = Duration::from_millis(50);
        laptop.link.set(direction, Shape { rate: Some(Rate::kbits_per_s(256)), delay, ..Shape::default() });
    }
    run(starling().args(["connect", "weak"]).arg(&laptop.mountpoint));
    for (number, writes) in ["idle", "delayed=2s", "preemptive", "lottery", "through"].into_iter().enumerate() {
        run(starling().args(["set", "--writes", writes]).arg(&laptop.mountpoint));
        let name = format!("file{number}");
        fs::write(laptop.mountpoint.join(&name), writes).expect("write");
        let is_home = || fs::read_to_string(home.exported.join(&name)).is_ok_and(|text| text == writes);
        match writes {
            "delayed=2s" => assert!(!is_home(), "it is not old enough"),
            "through" => assert!(is_home(), "it was there before close was answered"),
            _ => {}
        }
        laptop.wait(LONG, writes, |_| is_home());
        laptop.wait_until_home(LONG);
    }
}
