//! Conflicts, as users see them: real mounts, a home over a real folder, and emulated links.

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
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

/// The number of the conflict of a file.
fn number_of(conflicts: &Value, path: &str) -> String {
    let all = conflicts.as_array().expect("a list");
    all.iter().find(|one| one["path"] == path).expect("a conflict")["number"].to_string()
}

/// Runs `starling conflicts` on a mount.
fn conflict(laptop: &Laptop, what: &[&str]) -> String {
    run(starling().arg("conflicts").arg(what[0]).arg(&laptop.mountpoint).args(&what[1..]))
}

/// Does something while the mount is offline, and waits until it is home.
fn apart(laptop: &Laptop, change: impl FnOnce()) {
    warm(&laptop.mountpoint);
    run(starling().args(["connect", "off", "--now"]).arg(&laptop.mountpoint));
    change();
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait_until_home(LONG);
}

/// Everything in a folder, as text.
fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("list")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name != ".starling")
        .collect();
    names.sort();
    names
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
    // The kernel is told to forget every change.
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
    assert!(conflicts("list", &[]).contains("this mount's version: mode 600"));
    laptop.wait(LONG, "what is there now", |_| mode(&here("one")) == 0o640);
    let shown = conflicts("show", &["1"]);
    assert!(shown.contains("mine    mode 600") && shown.contains("theirs  mode 640"), "{shown}");
    let both = common::refused(starling().args(["conflicts", "resolve"]).arg(&laptop.mountpoint).args(["1", "both"]));
    assert!(both.contains("resolve it as mine or theirs"), "{both}");
    let path = |number: usize| all[number - 1]["path"].as_str().expect("a path").to_string();
    for (number, which, chosen) in [(1, "mine", 0o600), (2, "theirs", 0o640)] {
        let (file, text) = (path(number), number.to_string());
        conflicts("resolve", &[&text, which]);
        laptop.wait_until_home(LONG);
        assert_eq!((mode(&here(&file)), mode(&there(&file))), (chosen, chosen));
        conflicts("undo", &[&text]);
        laptop.wait_until_home(LONG);
        assert_eq!((mode(&here(&file)), mode(&there(&file))), (0o640, 0o640));
        assert!(conflicts("list", &[]).contains(&format!("{file}: attributes set here")));
        conflicts("resolve", &[&text, "mine"]);
        laptop.wait_until_home(LONG);
        assert_eq!((mode(&here(&file)), mode(&there(&file))), (0o600, 0o600));
    }
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
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
    // A file that was removed here and changed there is removed, or comes back.
    conflict(&["resolve", &number("removed"), "mine"]);
    assert!(read("removed").is_err());
    conflict(&["undo", &number("removed")]);
    assert_eq!(read("removed").expect("read"), "theirs");
    conflict(&["resolve", &number("removed"), "theirs"]);
    let shown = conflict(&["show", &number("poem")]);
    assert!(shown.contains("+mine") && shown.contains("+theirs"), "{shown}");
    conflict(&["resolve", &number("poem"), "--merge", "diff3 -m"]);
    assert_eq!(read("poem").expect("read"), lines("mine", "theirs"));
    assert!(read("poem (conflict)").is_err());
    conflict(&["undo", &number("poem")]);
    assert_eq!(read("poem").expect("read"), lines("first", "theirs"));
    assert_eq!(read("poem (conflict)").expect("read"), lines("mine", "last"));
    conflict(&["resolve", &number("poem"), "both"]);
    // If a version cannot be found, the command does not claim that it is kept.
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
        // The owner of a file may always write it.
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
    conflict(&["resolve", &number("first"), "both"]);
    conflict(&["resolve", &number("second"), "both"]);
    assert_eq!((read("second").as_deref(), beside("second").as_deref()), (Some("theirs"), Some("mine")));
    conflict(&["resolve", &number("third"), "theirs"]);
    assert_eq!((read("third").as_deref(), beside("third")), (Some("theirs"), None));
    conflict(&["undo", &number("third")]);
    assert_eq!((read("third").as_deref(), beside("third").as_deref()), (Some("theirs"), Some("mine")));
    conflict(&["resolve", &number("third"), "theirs"]);
    assert_eq!((read("third").as_deref(), beside("third")), (Some("theirs"), None));
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
    // Both have 64 kb/s, and `two` goes into a tunnel. Both edit the same tree meanwhile.
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
        // One removes files that the other edits, and moves files that only it uses.
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
        // Files that take longer to go home than the link stays up.
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
    // The client that came second has the conflict.
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

#[test]
fn regression_resolving_replaces_what_is_in_a_file_and_leaves_it_the_file_that_it_was() {
    // SAFETY: it takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("left out: only root can give files away");
        return;
    }
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let names = ["one", "other"];
    for path in names.map(|name| home.exported.join(name)) {
        fs::write(&path, "first\n\n\nlast\n").expect("write");
        fs::set_permissions(&path, Permissions::from_mode(0o751)).expect("chmod");
        chown(&path, Some(1000), Some(1001)).expect("chown");
        assert!(xattr::set_xattr(&path, "user.tag", b"tagged").is_ok());
    }
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    apart(&laptop, || {
        for name in names {
            fs::write(laptop.mountpoint.join(name), "mine\n\n\nlast\n").expect("write");
            fs::write(home.exported.join(name), "first\n\n\ntheirs\n").expect("write");
        }
    });
    let conflicts = laptop.ask(&["conflicts", "list"]);
    let about = |name: &str| {
        [&home.exported, &laptop.mountpoint].map(|root| {
            let (path, text) = (root.join(name), fs::read_to_string(root.join(name)).expect("read"));
            let meta = fs::metadata(&path).expect("stat");
            (
                text,
                meta.uid(),
                meta.gid(),
                meta.mode() & 0o7777,
                xattr::get_xattr(&path, "user.tag").expect("attribute"),
            )
        })
    };
    let as_it_was = |text: &str| [(); 2].map(|()| (text.to_string(), 1000, 1001, 0o751, b"tagged".to_vec()));
    for (name, how, resolved) in
        [("one", &["mine"][..], "mine\n\n\nlast\n"), ("other", &["--merge", "diff3 -m"], "mine\n\n\ntheirs\n")]
    {
        let (number, mine) = (number_of(&conflicts, name), format!("{name} (conflict)"));
        assert_eq!(about(&mine), as_it_was("mine\n\n\nlast\n"), "{mine}");
        conflict(&laptop, &[&["resolve", &number], how].concat());
        laptop.wait_until_home(LONG);
        assert_eq!(about(name), as_it_was(resolved), "{name}");
        assert!(!home.exported.join(&mine).exists());
        conflict(&laptop, &["undo", &number]);
        laptop.wait_until_home(LONG);
        assert_eq!(about(name), as_it_was("first\n\n\ntheirs\n"), "{name}");
        assert_eq!(about(&mine), as_it_was("mine\n\n\nlast\n"), "{mine}");
    }
}

#[test]
fn regression_names_of_one_file_stay_names_of_one_file_when_a_conflict_is_resolved() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    apart(&laptop, || {
        fs::write(laptop.mountpoint.join("file"), "mine").expect("write");
        fs::hard_link(laptop.mountpoint.join("file"), laptop.mountpoint.join("another")).expect("link");
        fs::write(home.exported.join("file"), "theirs").expect("write");
    });
    let conflicts = laptop.ask(&["conflicts", "list"]);
    let number = number_of(&conflicts, "file");
    for (what, text) in [(&["resolve", &number, "mine"][..], "mine"), (&["undo", &number], "theirs")] {
        conflict(&laptop, what);
        laptop.wait_until_home(LONG);
        for path in
            [&home.exported, &laptop.mountpoint].iter().flat_map(|root| ["file", "another"].map(|n| root.join(n)))
        {
            let links = fs::metadata(&path).expect("stat").nlink();
            assert_eq!((&*fs::read_to_string(&path).expect("read"), links), (text, 2), "{}", path.display());
        }
    }
}

#[test]
fn regression_a_conflict_is_there_again_when_its_resolution_is_undone() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let lines = |first: &str, last: &str| format!("{first}\n{}{last}\n", "between\n".repeat(10));
    fs::write(home.exported.join("poem"), lines("first", "last")).expect("write");
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    apart(&laptop, || {
        fs::write(laptop.mountpoint.join("poem"), lines("mine", "last")).expect("write");
        fs::write(home.exported.join("poem"), lines("first", "theirs")).expect("write");
    });
    // Properties that are not in conflict are the home's, and the command says which of this
    // mount's are lost.
    fs::set_permissions(laptop.mountpoint.join("poem"), Permissions::from_mode(0o600)).expect("chmod");
    laptop.wait_until_home(LONG);
    let listed = |laptop: &Laptop| {
        let all = laptop.ask(&["conflicts", "list"]);
        ["number", "path", "here", "why", "mine"].map(|field| all[0][field].clone())
    };
    let before = listed(&laptop);
    for how in ["theirs", "mine"] {
        let said = conflict(&laptop, &["resolve", "1", how]);
        assert_eq!(said.contains("without this mount's mode 644"), how == "mine", "{said}");
        assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
        conflict(&laptop, &["undo", "1"]);
        assert_eq!(listed(&laptop), before);
        let again = common::refused(starling().args(["conflicts", "undo"]).arg(&laptop.mountpoint).arg("1"));
        assert!(again.contains("nothing was taken away"), "{again}");
    }
    // It is lasting.
    laptop.wait_until_home(LONG);
    laptop.stop(libc::SIGKILL);
    laptop.mount_again();
    assert_eq!(listed(&laptop), before);
    let shown = conflict(&laptop, &["show", "1"]);
    assert!(shown.contains("+mine") && shown.contains("+theirs"), "{shown}");
    conflict(&laptop, &["resolve", "1", "--merge", "diff3 -m"]);
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("poem")).expect("read"), lines("mine", "theirs"));
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    // Changes made since are not undone.
    fs::write(laptop.mountpoint.join("poem"), "new").expect("write");
    let refused = common::refused(starling().args(["conflicts", "undo"]).arg(&laptop.mountpoint).arg("1"));
    assert!(refused.contains("was changed since"), "{refused}");
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("poem")).expect("read"), "new");
}

#[test]
fn regression_whatever_names_are_made_of_conflicts_are_resolved_and_undone_in_their_place() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let names = [OsStr::from_bytes(b"line\nx"), OsStr::from_bytes(b"caf\xe9.txt"), OsStr::from_bytes(b"\x1b[31mred")];
    names.iter().for_each(|name| fs::write(home.exported.join(name), "old").expect("write"));
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    apart(&laptop, || {
        for name in names {
            fs::write(laptop.mountpoint.join(name), "mine").expect("write");
            fs::write(home.exported.join(name), "theirs").expect("write");
        }
    });
    let all = laptop.ask(&["conflicts", "list"]);
    let paths = names.map(OsStr::to_string_lossy);
    let numbers = [0, 1, 2].map(|at| number_of(&all, &paths[at]));
    let listed = conflict(&laptop, &["list"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!([r"line\nx:", r"caf\xe9.txt:", r"\u{1b}[31mred:"].iter().all(|name| listed.contains(name)), "{listed}");
    let elsewhere = tempfile::tempdir().expect("folder");
    let conflict = |what: &[&str]| {
        run(starling().current_dir(&elsewhere).arg("conflicts").arg(what[0]).arg(&laptop.mountpoint).args(&what[1..]))
    };
    let read = |name: &OsStr| fs::read_to_string(laptop.mountpoint.join(name)).expect("read");
    laptop.wait(LONG, "both versions are listed", |_| names_in(&laptop.mountpoint).len() == 6);
    let before = names_in(&laptop.mountpoint);
    for how in ["theirs", "mine"] {
        for (name, number) in names.iter().zip(&numbers) {
            conflict(&["resolve", number, how]);
            assert_eq!((read(name), names_in(&laptop.mountpoint).len()), (how.to_string(), 5), "{name:?}");
            conflict(&["undo", number]);
            assert_eq!((read(name), names_in(&laptop.mountpoint)), ("theirs".to_string(), before.clone()), "{name:?}");
        }
    }
    for (name, number) in names.iter().zip(&numbers) {
        conflict(&["resolve", number, "mine"]);
        assert_eq!(read(name), "mine", "{name:?}");
    }
    laptop.wait_until_home(LONG);
    assert_eq!((names_in(&laptop.mountpoint).len(), names_in(elsewhere.path()).len()), (3, 0));
    assert_eq!(names_in(&home.exported).len(), 3);
}

#[test]
fn regression_a_link_that_is_in_the_way_is_replaced_and_not_followed() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let outside = below.path().join("outside");
    fs::write(&outside, "outside").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    apart(&laptop, || {
        fs::write(laptop.mountpoint.join("new"), "mine").expect("write");
        symlink(&outside, home.exported.join("new")).expect("link");
    });
    let is_link = || fs::read_link(laptop.mountpoint.join("new")).ok().is_some_and(|target| target == outside);
    laptop.wait(LONG, "the link", |_| is_link());
    conflict(&laptop, &["resolve", "1", "mine"]);
    assert!(!is_link());
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("new")).expect("read"), "mine");
    conflict(&laptop, &["undo", "1"]);
    assert!(is_link());
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("new (conflict)")).expect("read"), "mine");
    assert_eq!(fs::read_to_string(&outside).expect("read"), "outside");
}

#[test]
fn regression_names_that_two_have_given_a_file_are_chosen_from() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    fs::create_dir(home.exported.join("dir")).expect("mkdir");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    apart(&laptop, || {
        for name in ["file", "dir"] {
            let to = |root: &Path, whose: &str| fs::rename(root.join(name), root.join(format!("{name} of {whose}")));
            to(&laptop.mountpoint, "mine").expect("rename");
            to(&home.exported, "theirs").expect("rename");
        }
    });
    let names = ["file", "dir"].map(|name| ["theirs", "mine"].map(|whose| format!("{name} of {whose}")));
    let are = |whose: usize| {
        let names = names.clone().map(|both| both[whose].clone());
        laptop.wait(LONG, "one name of each", |laptop| {
            names_in(&laptop.mountpoint) == [&names[1][..], &names[0]]
                && names_in(&home.exported) == names_in(&laptop.mountpoint)
        });
    };
    are(0);
    let conflicts = laptop.ask(&["conflicts", "list"]);
    for (name, [theirs, mine]) in ["file", "dir"].iter().zip(&names) {
        let number = number_of(&conflicts, mine);
        let shown = conflict(&laptop, &["show", &number]);
        let line = |what: &str, name: &str| format!("{what}{}\n", laptop.mountpoint.join(name).display());
        for line in [line("before  ", name), line("mine    ", mine), line("theirs  ", theirs)] {
            assert!(shown.contains(&line), "{shown}");
        }
    }
    let numbers = names.clone().map(|[_, mine]| number_of(&conflicts, &mine));
    numbers.iter().for_each(|number| drop(conflict(&laptop, &["resolve", number, "mine"])));
    are(1);
    numbers.iter().for_each(|number| drop(conflict(&laptop, &["undo", number])));
    are(0);
    assert_eq!(laptop.ask(&["conflicts", "list"]).as_array().map(Vec::len), Some(2));
    numbers.iter().for_each(|number| drop(conflict(&laptop, &["resolve", number, "theirs"])));
    are(0);
}

#[test]
fn regression_a_file_gives_way_to_a_directory_and_what_is_to_be_done_by_hand_is_said() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    apart(&laptop, || {
        fs::write(laptop.mountpoint.join("new"), "mine").expect("write");
        fs::create_dir(home.exported.join("new")).expect("mkdir");
    });
    let (place, mine) = (laptop.mountpoint.join("new"), laptop.mountpoint.join("new (conflict)"));
    laptop.wait(LONG, "the directory", |_| place.is_dir());
    for how in [&["mine"][..], &["--merge", "diff3 -m"]] {
        let said =
            common::refused(starling().args(["conflicts", "resolve"]).arg(&laptop.mountpoint).arg("1").args(how));
        assert!(said.contains("is a directory: move it away"), "{said}");
    }
    conflict(&laptop, &["resolve", "1", "theirs"]);
    assert!(place.is_dir() && !mine.exists());
    conflict(&laptop, &["undo", "1"]);
    assert_eq!(fs::read_to_string(&mine).expect("read"), "mine");
    fs::remove_dir(&place).expect("remove");
    conflict(&laptop, &["resolve", "1", "mine"]);
    assert_eq!((fs::read_to_string(&place).expect("read"), mine.exists()), ("mine".to_string(), false));
}

#[test]
fn regression_a_resolution_that_was_cut_short_goes_on_with_what_was_kept() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "old").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    apart(&laptop, || {
        fs::write(laptop.mountpoint.join("file"), "mine, in all its length").expect("write");
        fs::write(home.exported.join("file"), "theirs").expect("write");
    });
    let [place, mine] = ["file", "file (conflict)"].map(|name| laptop.mountpoint.join(name));
    let read = |path: &Path| fs::read_to_string(path).ok();
    let about = laptop.cache.join("resolved/src/1/kept.json");
    for how in ["mine", "theirs", "undo"] {
        conflict(&laptop, &["resolve", "1", "mine"]);
        let mut kept: Value = serde_json::from_slice(&fs::read(&about).expect("read")).expect("JSON");
        kept["what"]["contents"]["is_whole"] = false.into();
        let case = fs::read(about.with_file_name("trouble")).expect("read");
        conflict(&laptop, &["undo", "1"]);
        // As if the machine had gone down while the file was being written.
        for (name, text) in [("mine", "mine, in all its length"), ("theirs", "theirs")] {
            fs::write(about.with_file_name(name), text).expect("write");
        }
        fs::write(about.with_file_name("trouble"), case).expect("write");
        fs::write(&about, kept.to_string()).expect("write");
        fs::write(&place, "mine, in").expect("write");
        match how {
            "undo" => drop(conflict(&laptop, &["undo", "1"])),
            how => {
                conflict(&laptop, &["resolve", "1", how]);
                let chosen = if how == "mine" { "mine, in all its length" } else { "theirs" };
                assert_eq!((read(&place).as_deref(), read(&mine)), (Some(chosen), None));
                conflict(&laptop, &["undo", "1"]);
            }
        }
        assert_eq!(read(&place).as_deref(), Some("theirs"));
        assert_eq!(read(&mine).as_deref(), Some("mine, in all its length"));
    }
    laptop.wait_until_home(LONG);
    assert_eq!(names_in(&home.exported), ["file", "file (conflict)"]);
}
