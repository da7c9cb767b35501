//! Two real mounts race under `--consistency strong`, as `docs/semantics.md` promises.

mod common;
#[path = "common/roaming.rs"]
mod roaming;

use roaming::{LONG, Two};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

fn strong() -> Two {
    Two::mount_as(&["--consistency", "strong"])
}

impl Two {
    /// Runs the same at both mounts at once.
    fn race(&self, run: impl Fn(usize, &Path) + Sync) {
        std::thread::scope(|scope| {
            for (number, mount) in self.mounts.iter().enumerate() {
                let run = &run;
                scope.spawn(move || run(number, &mount.mountpoint));
            }
        });
    }

    /// Both mounts and the home have the same bytes.
    fn agree(&self, name: &str) -> Vec<u8> {
        let [one, two] = &self.mounts;
        let seen = fs::read(one.mountpoint.join(name)).expect("read");
        assert_eq!(fs::read(two.mountpoint.join(name)).expect("read"), seen, "{name}");
        assert_eq!(fs::read(self.home.exported.join(name)).expect("read"), seen, "{name} at home");
        seen
    }
}

#[test]
fn regression_no_append_is_lost() {
    const RECORD_COUNT: usize = 40;
    let two = strong();
    for round in 0..3 {
        let name = format!("log {round}");
        fs::write(two.mounts[0].mountpoint.join(&name), "").expect("write");
        two.race(|number, mountpoint| {
            for record in 0..RECORD_COUNT {
                let mut file = OpenOptions::new().append(true).open(mountpoint.join(&name)).expect("open");
                // In one write(2), as a shell's `>>` does.
                file.write_all(format!("{number} {record}\n").as_bytes()).expect("append");
            }
        });
        let text = String::from_utf8(two.agree(&name)).expect("text");
        let lines: BTreeSet<&str> = text.lines().collect();
        assert_eq!((lines.len(), text.lines().count()), (2 * RECORD_COUNT, 2 * RECORD_COUNT), "{text}");
        for number in 0..2 {
            let own = text.lines().filter_map(|line| line.strip_prefix(&format!("{number} ")));
            let own: Vec<usize> = own.map(|record| record.parse().expect("a number")).collect();
            assert!(own.is_sorted(), "records of one mount are in its order: {own:?}");
        }
    }
}

#[test]
fn of_two_who_make_a_name_one_has_made_it() {
    const NAME_COUNT: usize = 15;
    let two = strong();
    let made = [(); 2].map(|()| std::sync::Mutex::new(BTreeSet::new()));
    two.race(|number, mountpoint| {
        for name in 0..NAME_COUNT {
            let path = mountpoint.join(format!("made {name}"));
            match OpenOptions::new().write(true).create_new(true).open(path) {
                Ok(mut file) => {
                    write!(file, "{number}").expect("write");
                    made[number].lock().expect("lock").insert(name);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}"),
            }
        }
    });
    let [one, other] = made.each_ref().map(|made| made.lock().expect("lock").clone());
    assert_eq!(one.intersection(&other).count(), 0, "{one:?} {other:?}");
    assert_eq!(one.len() + other.len(), NAME_COUNT);
    for name in 0..NAME_COUNT {
        let by = usize::from(other.contains(&name)).to_string();
        assert_eq!(two.agree(&format!("made {name}")), by.as_bytes());
    }
}

#[test]
fn of_two_who_rename_a_file_one_has_renamed_it() {
    const FILE_COUNT: usize = 15;
    let two = strong();
    for file in 0..FILE_COUNT {
        fs::write(two.mounts[0].mountpoint.join(format!("file {file}")), format!("{file}")).expect("write");
    }
    let moved = std::sync::Mutex::new(Vec::new());
    two.race(|number, mountpoint| {
        for file in 0..FILE_COUNT {
            let to = mountpoint.join(format!("moved {file} by {number}"));
            match fs::rename(mountpoint.join(format!("file {file}")), to) {
                Ok(()) => moved.lock().expect("lock").push((file, number)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
            }
        }
    });
    let mut moved = moved.into_inner().expect("lock");
    moved.sort_unstable();
    let files: Vec<usize> = moved.iter().map(|(file, _)| *file).collect();
    assert_eq!(files, (0..FILE_COUNT).collect::<Vec<_>>(), "each was moved once");
    let names: BTreeSet<String> = moved.iter().map(|(file, number)| format!("moved {file} by {number}")).collect();
    for mount in &two.mounts {
        assert_eq!(listed(&mount.mountpoint), names);
    }
    for (file, number) in moved {
        assert_eq!(two.agree(&format!("moved {file} by {number}")), file.to_string().as_bytes());
    }
}

fn listed(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("list").map(|entry| entry.expect("entry").file_name());
    entries.map(|name| name.into_string().expect("text")).collect()
}

#[test]
fn blocks_that_two_write_in_turn_are_all_there() {
    const BLOCK_COUNT: u64 = 40;
    const BLOCK_LEN: usize = 4096;
    let two = strong();
    fs::write(two.mounts[0].mountpoint.join("blocks"), "").expect("write");
    two.race(|number, mountpoint| {
        let file = File::options().write(true).open(mountpoint.join("blocks")).expect("open");
        for block in (number as u64..BLOCK_COUNT).step_by(2) {
            file.write_all_at(&[block as u8 + 1; BLOCK_LEN], block * BLOCK_LEN as u64).expect("write");
        }
    });
    let bytes = two.agree("blocks");
    assert_eq!(bytes.len(), BLOCK_COUNT as usize * BLOCK_LEN);
    for (block, bytes) in bytes.chunks(BLOCK_LEN).enumerate() {
        assert!(bytes.iter().all(|byte| usize::from(*byte) == block + 1), "block {block}");
    }
}

#[test]
fn what_one_cuts_and_another_writes_is_as_if_one_had_waited_for_the_other() {
    const ROUND_COUNT: usize = 10;
    let two = strong();
    for round in 0..ROUND_COUNT {
        let name = format!("cut {round}");
        fs::write(two.mounts[0].mountpoint.join(&name), [b'a'; 3000]).expect("write");
        two.race(|number, mountpoint| {
            let file = File::options().write(true).open(mountpoint.join(&name)).expect("open");
            match number {
                0 => file.set_len(0).expect("cut"),
                _ => file.write_all_at(&[b'b'; 1000], 2000).expect("write"),
            }
        });
        let bytes = two.agree(&name);
        let cut_last = bytes.is_empty();
        let written_last = bytes.len() == 3000
            && bytes[..2000].iter().all(|byte| *byte == 0)
            && bytes[2000..].iter().all(|byte| *byte == b'b');
        assert!(cut_last || written_last, "{} bytes: {bytes:?}", bytes.len());
    }
}

/// Adds one to a counter in a file; no other process does meanwhile.
fn count(file: &File) {
    let mut text = [0; 8];
    let len = file.read_at(&mut text, 0).expect("read");
    let count: u64 = str::from_utf8(&text[..len]).expect("text").parse().expect("a number");
    file.write_all_at((count + 1).to_string().as_bytes(), 0).expect("write");
}

/// fcntl(2) locks of all of a file.
fn lock_range(file: &File, kind: libc::c_int) {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    let wanted = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the descriptor is open, and the lock outlives the call.
    let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const wanted) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn counters_under_locks_of_either_kind_count_everything() {
    const COUNT: u64 = 20;
    let two = strong();
    for name in ["flock", "fcntl"] {
        fs::write(two.mounts[0].mountpoint.join(name), "0").expect("write");
        two.race(|_, mountpoint| {
            let open = || File::options().read(true).write(true).open(mountpoint.join(name)).expect("open");
            let file = open();
            for turn in 0..COUNT {
                match name {
                    "flock" => file.lock().expect("lock"),
                    _ => lock_range(&file, libc::F_WRLCK),
                }
                count(&file);
                match name {
                    "flock" => file.unlock().expect("unlock"),
                    // Closing any descriptor of the file unlocks all of it.
                    _ if turn % 2 == 0 => drop(open()),
                    _ => lock_range(&file, libc::F_UNLCK),
                }
            }
        });
        assert_eq!(two.agree(name), (2 * COUNT).to_string().as_bytes(), "{name}");
    }
}

/// Runs flock(1), which runs something that does not end with the lock.
fn holder(file: &Path) -> Child {
    Command::new("flock").arg("--no-fork").arg(file).args(["sleep", "1000"]).spawn().expect("flock")
}

fn is_locked(file: &Path) -> bool {
    let status = Command::new("flock").arg("--nonblock").arg(file).arg("true").status().expect("flock");
    !status.success()
}

#[test]
fn locks_end_with_their_processes_and_waits_with_a_kill() {
    let two = strong();
    let [here, there] = two.mounts.each_ref().map(|mount| mount.mountpoint.join("lock"));
    fs::write(&here, "").expect("write");
    let kill = |mut child: Child| {
        child.kill().expect("killed");
        child.wait().expect("ended");
    };
    let has = holder(&here);
    two.mounts[1].wait(LONG, "the other's lock", |_| is_locked(&there));
    let waits = holder(&there);
    std::thread::sleep(Duration::from_millis(300));
    kill(waits);
    kill(has);
    // The kernel does not wait for the answer when it tells of a file's last close: that of
    // `is_locked` too.
    two.mounts[1].wait(LONG, "the end of the other's lock", |_| !is_locked(&there));
    two.mounts[0].wait(LONG, "the end of both locks", |_| !is_locked(&here));
}

/// Once a call has made or removed a name, the other mount's listings show it.
#[test]
fn listings_have_what_was_made_and_not_what_was_removed() {
    const ROUND_COUNT: usize = 10;
    let two = strong();
    let [one, other] = &two.mounts;
    for round in 0..ROUND_COUNT {
        let (maker, reader) = if round % 2 == 0 { (one, other) } else { (other, one) };
        fs::write(maker.mountpoint.join(format!("name {round}")), "").expect("write");
        let names = listed(&reader.mountpoint);
        assert!(names.contains(&format!("name {round}")), "round {round}: {names:?}");
        fs::remove_file(reader.mountpoint.join(format!("name {round}"))).expect("remove");
        assert_eq!(listed(&maker.mountpoint), BTreeSet::new(), "round {round}");
    }
}
