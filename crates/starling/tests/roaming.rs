//! Mounts that roam, as users see them: real mounts, a home over a real folder, and links that are emulated.

mod common;
#[path = "common/roaming.rs"]
mod roaming;
#[path = "common/xattr.rs"]
mod xattr;

use common::{run, starling, tree};
use linkem::units::Rate;
use linkem::{Direction, Shape};
use roaming::{Home, Laptop};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;
use xattr::{get_xattr, set_xattr};

const LONG: Duration = Duration::from_secs(120);

/// Text that no compression makes much shorter, always the same for the same words.
fn noise(words: &str, len: usize) -> String {
    let mut state = words.bytes().fold(1u64, |state, byte| state.wrapping_mul(0x100_0193) ^ u64::from(byte));
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 33) as u8 % 64)
    };
    (0..len).map(|_| letter()).collect()
}

/// The number of the conflict of a file.
fn number_of(conflicts: &Value, path: &str) -> String {
    let all = conflicts.as_array().expect("a list");
    all.iter().find(|one| one["path"] == path).expect("a conflict")["number"].to_string()
}

/// What `starling conflicts` says, of a mount.
fn conflict(laptop: &Laptop, what: &[&str]) -> String {
    run(starling().arg("conflicts").arg(what[0]).arg(&laptop.mountpoint).args(&what[1..]))
}

/// Reads all of a tree, so that it is cached.
fn warm(root: &Path) {
    tree(root);
}

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
        // What means something on one machine only is nobody's business here, so nobody asks twice.
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
fn status_says_why_a_home_is_not_the_one_that_was_meant() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    warm(&laptop.mountpoint);
    assert_eq!(laptop.ask(&["status"])["turned_away"], Value::Null);
    home.stop(libc::SIGTERM);
    fs::remove_dir_all(below.path().join("home")).expect("remove");
    home.start();
    let why = |laptop: &Laptop| laptop.ask(&["status"])["turned_away"].as_str().unwrap_or_default().to_string();
    laptop.wait(LONG, "another key", |laptop| why(laptop).contains("key"));
    assert!(run(starling().arg("status").arg(&laptop.mountpoint)).contains("turned away   "));
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("file")).expect("read"), "text", "what is cached stays");
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
fn directories_that_two_have_made_are_one_and_whoever_is_inside_goes_on() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let (one, two) = (Laptop::mount(&home, below.path(), "one"), Laptop::mount(&home, below.path(), "two"));
    for (laptop, name) in [(&one, "one"), (&two, "two")] {
        warm(&laptop.mountpoint);
        run(starling().args(["connect", "off"]).arg(&laptop.mountpoint));
        fs::create_dir_all(laptop.mountpoint.join("dir/sub")).expect("mkdir");
        fs::write(laptop.mountpoint.join("dir/sub").join(name), name).expect("write");
    }
    let script = "read line && echo inside >inside && mkdir deeper && cd deeper && echo below >below && cat ../one";
    let mut inside = std::process::Command::new("sh");
    inside.args(["-c", script]).current_dir(two.mountpoint.join("dir/sub"));
    inside.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let inside = inside.spawn().expect("start");
    for laptop in [&one, &two] {
        run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
        laptop.wait_until_home(LONG);
    }
    // Whatever the kernel has to forget, it is told of.
    std::thread::sleep(Duration::from_secs(2));
    std::io::Write::write_all(&mut inside.stdin.as_ref().expect("input"), b"\n").expect("write");
    let said = inside.wait_with_output().expect("end");
    assert!(said.status.success() && said.stdout == b"one", "{said:?}");
    two.wait_until_home(LONG);
    let names = |root: &Path| {
        let all = fs::read_dir(root.join("dir/sub")).expect("list").map(|entry| entry.expect("entry").file_name());
        all.map(|name| name.to_string_lossy().into_owned()).collect::<BTreeSet<_>>()
    };
    let expected = ["deeper", "inside", "one", "two"].map(String::from).into();
    assert_eq!(names(&home.exported), expected);
    assert_eq!(names(&two.mountpoint), expected);
    one.wait(LONG, "what the other has made", |one| names(&one.mountpoint) == expected);
    assert_eq!(fs::read_to_string(one.mountpoint.join("dir/sub/deeper/below")).expect("read"), "below\n");
    assert_eq!(
        fs::read_dir(&home.exported).expect("list").filter(|e| e.as_ref().unwrap().file_name() != ".starling").count(),
        1
    );
    for laptop in [&one, &two] {
        assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    }
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
    // What is not home is kept beyond what the cache may hold.
    assert_eq!(laptop.ask(&["status"])["cache"]["beyond"], 0);
    fs::write(laptop.mountpoint.join("long"), vec![1; 2 << 20]).expect("write");
    let cache = &laptop.ask(&["status"])["cache"];
    assert_eq!((&cache["beyond"], &cache["writers_wait"]), (&((1 << 20) + 4).into(), &false.into()));
    let synced = run(starling().args(["sync", "--home"]).arg(&laptop.mountpoint));
    assert!(synced.contains("everything is home"), "{synced}");
    assert_eq!(fs::read_to_string(home.exported.join("file")).expect("read"), "text");
    // More than fits the cache is still the same when it is read again.
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
    assert!(wrong.contains("choose idle, lottery"), "{wrong}");
}

#[test]
fn attributes_that_two_have_set_are_shown_chosen_and_taken_back() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    for name in ["one", "other"] {
        fs::write(home.exported.join(name), "text").expect("write");
    }
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    warm(&laptop.mountpoint);
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
    let mode = |path: &Path| fs::metadata(path).expect("stat").mode() & 0o7777;
    let (here, there) = (|name: &str| laptop.mountpoint.join(name), |name: &str| home.exported.join(name));
    run(starling().args(["connect", "off", "--now"]).arg(&laptop.mountpoint));
    for name in ["one", "other"] {
        set(&here(name), 0o600);
        set(&there(name), 0o640);
    }
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait_until_home(LONG);
    let all = laptop.ask(&["conflicts", "list"]);
    assert_eq!((all.as_array().map(Vec::len), &all[0]["meant"]["mode"]), (Some(2), &0o600.into()), "{all}");
    let conflicts = |command: &str, words: &[&str]| {
        run(starling().args(["conflicts", command]).arg(&laptop.mountpoint).args(words))
    };
    assert!(conflicts("list", &[]).contains("this one's version: mode 600"));
    laptop.wait(LONG, "what is there now", |_| mode(&here("one")) == 0o640);
    let shown = conflicts("show", &["1"]);
    assert!(shown.contains("mine    mode 600") && shown.contains("theirs  mode 640"), "{shown}");
    let both = common::refused(starling().args(["conflicts", "resolve"]).arg(&laptop.mountpoint).args(["1", "both"]));
    assert!(both.contains("resolve it as mine or theirs"), "{both}");
    let path = |number: usize| all[number - 1]["path"].as_str().expect("a path").to_string();
    for (number, which, chosen, other) in [(1, "mine", 0o600, 0o640), (2, "theirs", 0o640, 0o600)] {
        let (file, text) = (path(number), number.to_string());
        conflicts("resolve", &[&text, which]);
        laptop.wait_until_home(LONG);
        assert_eq!((mode(&here(&file)), mode(&there(&file))), (chosen, chosen));
        conflicts("undo", &[&text]);
        laptop.wait_until_home(LONG);
        assert_eq!((mode(&here(&file)), mode(&there(&file))), (other, other));
    }
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
}

#[test]
fn a_mount_is_known_by_its_volume_and_keeps_its_cache_with_its_user() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    let mountpoint = below.path().join("work");
    let mount = |what: &str| {
        let mut command = starling();
        command.args(["mount", what]).arg(&mountpoint).env("XDG_DATA_HOME", below.path().join("data"));
        command
    };
    let down = || run(starling().arg("down").arg(&mountpoint));
    let address = home.address;
    run(mount(&home.invite(address)).arg("--background"));
    assert_eq!(fs::read_to_string(mountpoint.join("file")).expect("read"), "text");
    down();
    home.stop(libc::SIGTERM);
    run(mount("src").arg("--background"));
    assert_eq!(fs::read_to_string(mountpoint.join("file")).expect("read"), "text");
    down();
    let said = common::refused(mount("photos").arg("--background"));
    assert!(said.contains("photos"), "{said}");
    home.start();

    // Caches are private: to nobody else's, and to none that others look into, is anything written.
    let cache = below.path().join("cache");
    fs::create_dir(&cache).expect("mkdir");
    let invitation = home.invite(address);
    fs::set_permissions(&cache, Permissions::from_mode(0o755)).expect("chmod");
    let said = common::refused(mount(&invitation).arg("--cache").arg(&cache));
    assert!(said.contains("chmod 700"), "{said}");
    fs::set_permissions(&cache, Permissions::from_mode(0o700)).expect("chmod");
    chown(&cache, Some(65_534), None).expect("chown");
    let said = common::refused(mount(&invitation).arg("--cache").arg(&cache));
    assert!(said.contains("another user's (number 65534)"), "{said}");
    assert_eq!(fs::read_dir(&cache).expect("list").count(), 0);
    // Nor was the invitation used up.
    chown(&cache, Some(fs::metadata(below.path()).expect("stat").uid()), None).expect("chown");
    run(mount(&invitation).arg("--background").arg("--cache").arg(&cache));
    down();
}

#[test]
fn several_volumes_are_directories_of_one_mount() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve_more(below.path(), &["music", "photos"]);
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    let names = ["src", "music", "photos"];
    let (here, there) = (|path: &str| laptop.mountpoint.join(path), |path: &str| below.path().join(path));
    let listed = fs::read_dir(&laptop.mountpoint).expect("list").map(|entry| entry.expect("entry").file_name());
    assert_eq!(listed.collect::<BTreeSet<_>>(), names.map(Into::into).into());
    for name in names {
        fs::write(there(name).join("of the home"), name).expect("write");
        laptop.wait(LONG, "what is new at home", |_| here(name).join("of the home").exists());
        fs::create_dir(here(name).join("dir")).expect("mkdir");
        fs::write(here(name).join("dir/file"), name).expect("write");
    }
    laptop.wait_until_home(LONG);
    for name in names {
        assert_eq!(fs::read_to_string(there(name).join("dir/file")).expect("read"), name);
    }
    // Volumes are file systems of their own, and the root only holds them.
    let moved = fs::rename(here("src/dir/file"), here("music/file"));
    assert_eq!(moved.map_err(|e| e.kind()), Err(ErrorKind::CrossesDevices));
    assert_eq!(fs::create_dir(here("new")).map_err(|e| e.kind()), Err(ErrorKind::ReadOnlyFilesystem));
    fs::copy(here("src/dir/file"), here("music/copied")).expect("copy");
    run(starling().args(["hoard", "add"]).arg(here("music/dir")));
    assert_eq!(laptop.ask(&["hoard", "list"])[0]["path"], "music/dir");
    assert_eq!(laptop.ask(&["hoard", "walk"])["complete"], true);
    laptop.wait_until_home(LONG);
    // All of them, or the one that a path leads to.
    laptop.link.off();
    for name in names {
        fs::write(here(name).join("dir/file"), "mine").expect("write");
    }
    let all = laptop.ask(&["pending"]);
    assert_eq!(all.as_array().map(Vec::len), Some(3), "{all}");
    let some = run(starling().args(["pending", "--json"]).arg(here("photos/dir")));
    assert!(some.contains("photos/dir/file") && !some.contains("music"), "{some}");
    let status = laptop.ask(&["status"]);
    assert_eq!(
        (&status["pending"]["operations"], &status["volumes"][2]["pending"]["operations"]),
        (&3.into(), &1.into())
    );
    for name in ["music", "photos"] {
        fs::write(there(name).join("dir/file"), "theirs").expect("write");
    }
    laptop.stop(libc::SIGTERM);
    laptop.mount_again();
    let (here, there) = (|path: &str| laptop.mountpoint.join(path), |path: &str| below.path().join(path));
    assert_eq!(fs::read_to_string(here("photos/dir/file")).expect("read"), "mine");
    laptop.link.on();
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(there("src/dir/file")).expect("read"), "mine");
    let conflicts = laptop.ask(&["conflicts", "list"]);
    let paths: Vec<_> = conflicts.as_array().into_iter().flatten().map(|one| one["path"].as_str()).collect();
    assert_eq!(paths, [Some("music/dir/file"), Some("photos/dir/file")]);
    let number = conflicts[1]["number"].to_string();
    let refused = common::refused(starling().args(["conflicts", "show"]).arg(here("")).arg(&number));
    assert!(refused.contains("several volumes"), "{refused}");
    let conflict = |what: &[&str]| {
        let mut command = starling();
        run(command.args(["conflicts", what[0]]).arg(here("photos")).arg(&number).args(&what[1..]))
    };
    assert!(conflict(&["show"]).contains("+theirs"));
    conflict(&["resolve", "mine"]);
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(there("photos/dir/file")).expect("read"), "mine");
    assert_eq!(fs::read_to_string(there("music/dir/file")).expect("read"), "theirs");
    conflict(&["undo"]);
    assert_eq!(fs::read_to_string(here("photos/dir/file")).expect("read"), "theirs");
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
    // What is read is fetched, and no more.
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

/// Both halves at once: the home's files are on a Starling file system.
#[test]
fn a_home_serves_what_is_on_a_starling_file_system() {
    let below = tempfile::tempdir().expect("folder");
    let core = common::Mounted::up(below.path(), "core", &[]);
    let exported = core.mountpoint.join("exported");
    fs::create_dir(&exported).expect("mkdir");
    std::os::unix::fs::symlink(&exported, below.path().join("src")).expect("symlink");
    let home = Home::serve(below.path());
    let (one, two) = (Laptop::mount(&home, below.path(), "one"), Laptop::mount(&home, below.path(), "two"));
    fs::create_dir(one.mountpoint.join("dir")).expect("mkdir");
    let long: Vec<u8> = (0..3_000_000u32).map(|i| (i / 977) as u8).collect();
    fs::write(one.mountpoint.join("dir/long"), &long).expect("write");
    one.wait_until_home(LONG);
    assert!(fs::read(exported.join("dir/long")).expect("read") == long);
    let long_is_there = |two: &Laptop| fs::read(two.mountpoint.join("dir/long")).is_ok_and(|bytes| bytes == long);
    two.wait(LONG, "what one has written", long_is_there);
    // By another program, on the file system itself.
    fs::write(exported.join("dir/long"), "short").expect("write");
    let short_is_there = |laptop: &Laptop| fs::read(laptop.mountpoint.join("dir/long")).is_ok_and(|b| b == b"short");
    two.wait(LONG, "what another program has written", short_is_there);
    one.link.off();
    fs::write(one.mountpoint.join("dir/away"), "in a tunnel").expect("write");
    fs::rename(one.mountpoint.join("dir"), one.mountpoint.join("renamed")).expect("rename");
    one.link.on();
    one.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(exported.join("renamed/away")).expect("read"), "in a tunnel");
    assert_eq!(one.ask(&["conflicts", "list"]), serde_json::json!([]));
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
    // Without a link nobody knows.
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

/// syncfs(2) does not reach file systems in user space, and says that all is well.
#[test]
fn regression_what_is_home_on_a_starling_file_system_outlives_its_crash() {
    let below = tempfile::tempdir().expect("folder");
    let mut core = common::Mounted::up(below.path(), "core", &[]);
    let exported = core.mountpoint.join("exported");
    fs::create_dir(&exported).expect("mkdir");
    run(starling().arg("sync").arg(&core.mountpoint));
    std::os::unix::fs::symlink(&exported, below.path().join("src")).expect("symlink");
    let mut home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    let long: Vec<u8> = (0..500_000u32).map(|i| (i / 977) as u8).collect();
    for round in 0..3 {
        fs::create_dir(laptop.mountpoint.join(format!("dir{round}"))).expect("mkdir");
        fs::write(laptop.mountpoint.join(format!("dir{round}/long")), &long).expect("write");
        fs::write(laptop.mountpoint.join(format!("dir{round}/short")), "short").expect("write");
    }
    run(starling().args(["sync", "--home"]).arg(&laptop.mountpoint));
    core.kill();
    home.stop(libc::SIGKILL);
    fs::write(laptop.mountpoint.join("dir0/short"), "changed meanwhile").expect("write");
    // Whatever is mounted next has the device number that the file system had.
    let _other = common::Mounted::up(below.path(), "other", &[]);
    core.up_again();
    for round in 0..3 {
        assert!(fs::read(exported.join(format!("dir{round}/long"))).is_ok_and(|bytes| bytes == long), "{round}");
        assert!(fs::read(exported.join(format!("dir{round}/short"))).is_ok_and(|bytes| bytes == b"short"), "{round}");
    }
    // They are the same files in the next mount: what waits goes home, and what is cached is not fetched anew.
    home.start();
    laptop.wait_until_home(LONG);
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    assert_eq!(fs::read_to_string(exported.join("dir0/short")).expect("read"), "changed meanwhile");
    for round in 0..3 {
        let path = laptop.mountpoint.join(format!("dir{round}/long"));
        assert_eq!(get_xattr(&path, "user.starling.state").expect("a state"), b"cached", "{round}");
        assert!(fs::read(path).is_ok_and(|bytes| bytes == long), "{round}");
    }
}

#[test]
fn a_client_that_is_turned_away_keeps_its_work_and_brings_it_home_when_it_is_invited_again() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    let other = Laptop::mount(&home, below.path(), "other");
    warm(&laptop.mountpoint);
    let data = home.data.clone();
    let clients = || {
        let said = run(starling().args(["home", "clients", "--json", "--data"]).arg(&data));
        serde_json::from_str::<Value>(&said).expect("JSON")
    };
    let user = fs::metadata(&data).expect("data").uid();
    let connected = |at: usize| clients()[at]["connected"] == true;
    assert!(connected(0) && connected(1), "{}", clients());
    assert_eq!(clients()[0]["volumes"], serde_json::json!([{ "volume": "src", "user": user }]));
    let turn_away = |number: &str| {
        let mut command = starling();
        command.args(["home", "turn-away", number, "--data"]).arg(&data);
        command.output().expect("start")
    };
    assert!(common::text(&turn_away("9")).contains("there is no client 9"));
    assert!(turn_away("1").status.success());
    assert_eq!((&clients()[0]["turned_away"], &clients()[1]["turned_away"]), (&true.into(), &false.into()));
    assert!(run(starling().args(["home", "clients", "--data"]).arg(&data)).contains("   1  turned away  -  key "));
    // It goes on as if in a tunnel, and its user can know why.
    laptop.wait(LONG, "why", |laptop| laptop.ask(&["status"])["turned_away"].is_string());
    fs::write(laptop.mountpoint.join("new"), "mine").expect("write");
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("file")).expect("read"), "text");
    fs::write(other.mountpoint.join("others"), "theirs").expect("write");
    other.wait_until_home(LONG);
    assert!(!home.exported.join("new").exists() && !laptop.mountpoint.join("others").exists());
    laptop.stop(libc::SIGTERM);
    laptop.mount_again();
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("new")).expect("read"), "mine");
    laptop.stop(libc::SIGTERM);

    let invitation = home.invite(laptop.link.address());
    laptop.mount_by(&invitation);
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(home.exported.join("new")).expect("read"), "mine");
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    assert_eq!(clients()[0]["turned_away"], false);
    warm(&laptop.mountpoint);
    // The same invitation again needs no network, whoever has used it.
    laptop.stop(libc::SIGTERM);
    home.stop(libc::SIGTERM);
    laptop.mount_by(&invitation);
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("others")).expect("read"), "theirs");
    let said = common::refused(starling().args(["home", "clients", "--data"]).arg(&data));
    assert!(said.contains("no home serves from"), "{said}");
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

#[test]
fn invitations_are_for_one_use_and_caches_for_one_home() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let token = home.invite(home.address);
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    laptop.stop(libc::SIGTERM);
    let mount = |what: &str, cache: &Path| {
        let mut command = starling();
        command.arg("mount").arg(what).arg(below.path().join("mnt")).arg("--cache").arg(cache);
        common::refused(&mut command)
    };
    let other = below.path().join("other.cache");
    assert!(mount(&token[..token.len() - 4], &other).contains("invitation"));
    let mut elsewhere = token.clone();
    elsewhere.replace_range(20..21, if &token[20..21] == "a" { "b" } else { "a" });
    assert!(mount(&elsewhere, &other).contains("copy it again"));
    assert!(mount("work", &other).contains("give an invitation"));
    // Somebody uses it up.
    let mut used = starling();
    used.arg("mount").arg(&token).arg(below.path().join("mnt")).arg("--cache").arg(below.path().join("first.cache"));
    let mut used = used.arg("--background").spawn().expect("start");
    assert!(used.wait().expect("wait").success());
    run(starling().arg("down").arg(below.path().join("mnt")));
    assert!(mount(&token, &other).contains("used before"));
    // Another home's invitation does not fit a cache.
    let second = tempfile::tempdir().expect("folder");
    let another = Home::serve(second.path());
    assert!(mount(&another.invite(another.address), &laptop.cache).contains("another home"));
    // What others can look into is no place for a cache.
    let open = below.path().join("open.cache");
    fs::create_dir(&open).expect("mkdir");
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    assert!(mount(&home.invite(home.address), &open).contains("chmod 700"));
}

#[test]
fn conflicts_are_merged_and_that_can_be_undone() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let lines = |first: &str, last: &str| format!("{first}\n{}{last}\n", "between\n".repeat(10));
    fs::write(home.exported.join("poem"), lines("first", "last")).expect("write");
    fs::write(home.exported.join("other"), "other").expect("write");
    fs::write(home.exported.join("saved.txt"), lines("first", "last")).expect("write");
    fs::write(home.exported.join("removed"), "old").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    warm(&laptop.mountpoint);
    run(starling().args(["connect", "off"]).arg(&laptop.mountpoint));
    fs::remove_file(laptop.mountpoint.join("removed")).expect("remove");
    fs::write(home.exported.join("removed"), "theirs").expect("write");
    // As sed -i and many editors do.
    fs::write(laptop.mountpoint.join("sedXYZ"), lines("mine", "last")).expect("write");
    fs::rename(laptop.mountpoint.join("sedXYZ"), laptop.mountpoint.join("saved.txt")).expect("rename");
    fs::write(home.exported.join("saved.txt"), lines("first", "theirs")).expect("write");
    for name in ["poem", "other"] {
        fs::write(laptop.mountpoint.join(name), lines("mine", "last")).expect("write");
        fs::write(home.exported.join(name), lines("first", "theirs")).expect("write");
    }
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait_until_home(LONG);
    let conflicts = laptop.ask(&["conflicts", "list"]);
    let number = |path: &str| number_of(&conflicts, path);
    let conflict = |what: &[&str]| conflict(&laptop, what);
    let read = |name: &str| fs::read_to_string(laptop.mountpoint.join(name));
    assert_eq!(read("saved (conflict).txt").expect("read"), lines("mine", "last"));
    conflict(&["resolve", &number("saved.txt"), "--merge", "diff3 -m"]);
    assert_eq!(read("saved.txt").expect("read"), lines("mine", "theirs"));
    assert!(read("saved (conflict).txt").is_err() && read("sedXYZ").is_err());
    // What was removed here and has changed there goes, or comes back.
    conflict(&["resolve", &number("removed"), "mine"]);
    assert!(read("removed").is_err());
    conflict(&["undo", &number("removed")]);
    assert_eq!(read("removed").expect("read"), "theirs");
    let shown = conflict(&["show", &number("poem")]);
    assert!(shown.contains("+mine") && shown.contains("+theirs"), "{shown}");
    conflict(&["resolve", &number("poem"), "--merge", "diff3 -m"]);
    assert_eq!(read("poem").expect("read"), lines("mine", "theirs"));
    assert!(read("poem (conflict)").is_err());
    conflict(&["undo", &number("poem")]);
    assert_eq!(read("poem").expect("read"), lines("first", "theirs"));
    assert_eq!(read("poem (conflict)").expect("read"), lines("mine", "last"));
    // What cannot be found is not said to be kept.
    let [mine, elsewhere] = ["other (conflict)", "elsewhere"].map(|name| laptop.mountpoint.join(name));
    fs::rename(&mine, &elsewhere).expect("rename");
    let mut refused = starling();
    refused.args(["conflicts", "resolve"]).arg(&laptop.mountpoint).args([&number("other"), "mine"]);
    assert!(!refused.output().expect("run").status.success());
    fs::rename(&elsewhere, &mine).expect("rename");
    conflict(&["resolve", &number("other"), "mine"]);
    assert_eq!(read("other").expect("read"), lines("mine", "last"));
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(home.exported.join("other")).expect("read"), lines("mine", "last"));
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
}

#[test]
fn regression_what_the_home_refused_is_kept_beside_and_not_lost_when_a_choice_is_undone() {
    // SAFETY: it takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("left out: only root can take a file away from whoever has changed it");
        return;
    }
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    home.user = Some("nobody");
    let give = |path: &Path| chown(path, Some(65_534), Some(65_534)).expect("chown");
    give(&home.exported);
    let names = ["first", "second", "third"];
    for name in names {
        fs::write(home.exported.join(name), "theirs").expect("write");
        give(&home.exported.join(name));
    }
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    warm(&laptop.mountpoint);
    run(starling().args(["connect", "off"]).arg(&laptop.mountpoint));
    for name in names {
        fs::write(laptop.mountpoint.join(name), "mine").expect("write");
        let path = home.exported.join(name);
        // Whoever owns a file may always write it.
        chown(&path, Some(0), Some(0)).expect("chown");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("chmod");
    }
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait_until_home(LONG);
    let conflicts = laptop.ask(&["conflicts", "list"]);
    let number = |path: &str| number_of(&conflicts, path);
    let conflict = |what: &[&str]| conflict(&laptop, what);
    let read = |name: &str| fs::read_to_string(laptop.mountpoint.join(name)).ok();
    let beside = |name: &str| read(&format!("{name} (conflict {})", number(name)));
    assert_eq!(names.map(|name| (read(name), beside(name))), names.map(|_| (Some("theirs".into()), None)));
    conflict(&["resolve", &number("first"), "mine"]);
    assert_eq!(read("first").as_deref(), Some("mine"));
    let said = conflict(&["undo", &number("first")]);
    assert!(said.contains("(conflict"), "{said}");
    assert_eq!((read("first").as_deref(), beside("first").as_deref()), (Some("theirs"), Some("mine")));
    conflict(&["resolve", &number("second"), "both"]);
    assert_eq!((read("second").as_deref(), beside("second").as_deref()), (Some("theirs"), Some("mine")));
    conflict(&["resolve", &number("third"), "theirs"]);
    assert_eq!((read("third").as_deref(), beside("third")), (Some("theirs"), None));
    conflict(&["undo", &number("third")]);
    assert_eq!((read("third").as_deref(), beside("third").as_deref()), (Some("theirs"), Some("mine")));
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    laptop.wait_until_home(LONG);
}

#[test]
fn edits_in_a_tunnel_come_home_over_a_bad_link_or_are_conflicts() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    for i in 0..20 {
        let dir = home.exported.join(format!("d{}", i % 4));
        fs::create_dir_all(&dir).expect("mkdir");
        fs::write(dir.join(format!("f{i}")), format!("file {i}\n").repeat(50)).expect("write");
    }
    let (one, two) = (Laptop::mount(&home, below.path(), "one"), Laptop::mount(&home, below.path(), "two"));
    warm(&one.mountpoint);
    warm(&two.mountpoint);
    // Both have 64 kb/s, and two goes into a tunnel. Both edit the same tree meanwhile.
    for laptop in [&one, &two] {
        let slow = Shape { rate: Some(Rate::kbits_per_s(64)), delay: Duration::from_millis(100), ..Shape::default() };
        Direction::BOTH.into_iter().for_each(|direction| laptop.link.set(direction, slow));
    }
    two.link.off();
    let mut edits = BTreeSet::new();
    for (name, laptop) in [("one", &one), ("two", &two)] {
        let at = |path: &str| laptop.mountpoint.join(path);
        let mut write = |path: &str| {
            let text = format!("{path} as {name} wants it\n").repeat(20);
            fs::write(at(path), &text).expect("write");
            edits.insert(text);
        };
        // Files of both, of one of them, and new ones.
        for path in ["d0/f0", "d0/f4", "d1/f1"] {
            write(path);
        }
        write(if name == "one" { "d2/f2" } else { "d2/f6" });
        fs::create_dir(at(&format!("new-{name}"))).expect("mkdir");
        write(&format!("new-{name}/file"));
        write("both");
        // One removes what the other edits, and moves what nobody else touches.
        match name {
            "one" => fs::remove_file(at("d3/f3")).expect("remove"),
            _ => write("d3/f3"),
        }
        let moved = if name == "one" { ("d1/f5", "d1/moved-by-one") } else { ("d1/f9", "d2/moved-by-two") };
        fs::rename(at(moved.0), at(moved.1)).expect("rename");
        // Editors write beside and replace.
        let text = format!("d2/f10 as {name} has edited it\n");
        fs::write(at("d2/f10~"), &text).expect("write");
        fs::rename(at("d2/f10~"), at("d2/f10")).expect("rename");
        edits.insert(text);
        // What takes longer to go home than the link is there at a time.
        for number in 0..3 {
            let text = noise(&format!("{name} {number}"), 20_000);
            fs::write(at(&format!("new-{name}/long-{number}")), &text).expect("write");
            edits.insert(text);
        }
    }
    assert_eq!(fs::read_to_string(two.mountpoint.join("both")).expect("read"), "both as two wants it\n".repeat(20));
    for laptop in [&one, &two] {
        let waiting = laptop.ask(&["pending"]);
        assert!(waiting.as_array().is_some_and(|all| all.len() > 1), "{waiting}");
    }
    // Out of the tunnel, where the link is down for two seconds of every six.
    let (done, stop) = std::sync::mpsc::channel::<()>();
    let links = [one.link.control().clone(), two.link.control().clone()];
    let drops = std::thread::scope(|scope| {
        let dropping = scope.spawn(move || {
            use std::sync::mpsc::RecvTimeoutError::Timeout;
            for drops in 0.. {
                links.iter().for_each(|link| link.on());
                if stop.recv_timeout(Duration::from_secs(4)) != Err(Timeout) {
                    return drops;
                }
                links.iter().for_each(|link| link.off());
                if stop.recv_timeout(Duration::from_secs(2)) != Err(Timeout) {
                    links.iter().for_each(|link| link.on());
                    return drops;
                }
            }
            0
        });
        one.wait_until_home(LONG);
        two.wait_until_home(LONG);
        drop(done);
        dropping.join().expect("dropping")
    });
    assert!(drops >= 2, "all was home before the link was ever lost");
    for laptop in [&one, &two] {
        Direction::BOTH.into_iter().for_each(|direction| laptop.link.set(direction, Shape::default()));
    }
    // Every edit of both is at home, in its place or beside it.
    let at_home: BTreeSet<String> =
        tree(&home.exported).into_values().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect();
    for edit in &edits {
        assert!(at_home.contains(edit), "lost: {edit}");
    }
    // Whoever came second has the conflict.
    let conflicts = [&one, &two].map(|laptop| laptop.ask(&["conflicts", "list"]));
    let all = conflicts.iter().flat_map(|conflicts| conflicts.as_array().expect("a list"));
    let paths: BTreeSet<&str> = all.filter_map(|conflict| conflict["path"].as_str()).collect();
    assert!(paths.is_superset(&["d0/f0", "d0/f4", "d1/f1", "both"].into()), "{conflicts:?}");
    for path in ["d2/moved-by-two", "d1/moved-by-one", "new-one/file", "new-two/file", "d2/f2", "d2/f6"] {
        assert!(home.exported.join(path).exists(), "{path}");
    }
    // Both see what the home has.
    for laptop in [&one, &two] {
        let relative = |root: &Path| -> Vec<_> {
            let inside = |path: &Path| path.strip_prefix(root).expect("inside").to_owned();
            tree(root).into_iter().map(|(path, bytes)| (inside(&path), bytes)).collect()
        };
        let mut at_home = relative(&home.exported);
        at_home.retain(|(path, _)| !path.starts_with(".starling"));
        laptop.wait(LONG, "what is at home", |laptop| relative(&laptop.mountpoint) == at_home);
    }
}
