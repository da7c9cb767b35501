//! Two mounts near their home. After one closes a file, the other can open it. And an ordeal, in
//! which both mounts and a program at the home work in one tree while clients and the home are
//! killed.
//!
//! The ordeal is short here. `STARLING_ORDEAL_SECONDS=3600 cargo test --release -p starling --test
//! near` makes it long.

mod common;
#[path = "common/roaming.rs"]
mod roaming;

use common::{run, starling};
use host::{Random, SplitMix64};
use roaming::{LONG, Two, noise};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A close waits for the other mounts no longer than this (`docs/semantics.md`); on a busy machine
/// it may take longer.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(450);

#[test]
fn what_one_mount_has_closed_the_other_opens() {
    const ROUND_COUNT: usize = 120;
    let two = Two::mount_as(&[]);
    // On a busy machine a home can seem to be far for a while, and then nothing waits for it.
    let are_near = || two.mounts.iter().all(|laptop| laptop.ask(&["status"])["state"] == "connected");
    let mut prompt = 0;
    for round in 0..ROUND_COUNT {
        let were_near = are_near();
        let (from, to) = (&two.mounts[round % 2].mountpoint, &two.mounts[(round + 1) % 2].mountpoint);
        // Short ones are written in memory, long ones in the cache.
        let text = noise(&format!("round {round}"), if round % 5 == 0 { 100_000 } else { 1 + 37 * round });
        let began = Instant::now();
        fs::write(from.join("file"), &text).expect("write");
        fs::write(from.join(format!("new {round}")), &text).expect("write");
        if round > 0 {
            fs::rename(from.join(format!("new {}", round - 1)), from.join("renamed")).expect("rename");
        }
        let is_prompt = began.elapsed() < CLOSE_TIME_MAX;
        let seen = fs::read_to_string(to.join("file")).unwrap_or_default();
        let new = fs::read_to_string(to.join(format!("new {round}"))).unwrap_or_default();
        let has_old = round > 0 && to.join(format!("new {}", round - 1)).exists();
        let has_renamed = round == 0 || to.join("renamed").exists();
        if is_prompt && were_near && are_near() {
            prompt += 1;
            assert!(seen == text && new == text && has_renamed && !has_old, "round {round}");
        } else {
            two.mounts[(round + 1) % 2].wait(LONG, "what was closed", |laptop| {
                let at = |name: String| fs::read_to_string(laptop.mountpoint.join(name)).unwrap_or_default();
                at("file".into()) == text && at(format!("new {round}")) == text
            });
        }
    }
    assert!(prompt > ROUND_COUNT / 2, "only {prompt} of {ROUND_COUNT} rounds were closed in time");
    for laptop in &two.mounts {
        laptop.wait_until_home(LONG);
        assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    }
}

/// A program at home changed a file, and at once moved a directory above it. When the home looked
/// at the file, it did not know where that was, and mounts kept the old contents for ever.
#[test]
fn regression_mounts_see_what_was_changed_and_moved_at_once() {
    let two = Two::mount_as(&[]);
    let at_home = &two.home.exported;
    fs::create_dir_all(at_home.join("0/below")).expect("folders");
    fs::write(at_home.join("0/below/file"), "0").expect("write");
    for round in 0..20 {
        let reads = |place: &str| {
            let text = (round + usize::from(place != "now")).to_string();
            let path = format!("{}/below/file", text);
            for laptop in &two.mounts {
                laptop.wait(LONG, "what was changed", |laptop| {
                    fs::read_to_string(laptop.mountpoint.join(&path)).is_ok_and(|found| found == text)
                });
            }
        };
        reads("now");
        let (now, next) = (round.to_string(), (round + 1).to_string());
        if round % 2 == 1 {
            // The home looks at the directory first, and does not find it.
            let mode = Permissions::from_mode(if round % 4 == 1 { 0o711 } else { 0o755 });
            fs::set_permissions(at_home.join(&now).join("below"), mode).expect("chmod");
        }
        fs::write(at_home.join(&now).join("below/file"), &next).expect("write");
        fs::rename(at_home.join(&now), at_home.join(&next)).expect("rename");
        reads("next");
    }
}

/// A file that only its author writes, and only once.
#[derive(Debug)]
struct Keeper {
    name: String,
    text: String,
    /// It was synced: no crash may cost it.
    is_synced: bool,
}

/// Works in the tree, as one mount or as a program at home.
struct Author {
    name: &'static str,
    root: PathBuf,
    random: SplitMix64,
    keepers: Vec<Keeper>,
    count: u64,
}

/// What an author does next.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Makes a file that is to be kept.
    Keep,
    Write,
    Append,
    /// As editors do it: another file, synced and renamed.
    Replace,
    Remove,
    Rename,
    MakeDir,
    RemoveDir,
    RenameDir,
    Link,
    Symlink,
    SetMode,
    Read,
}

/// All steps, those that are done often more than once.
const STEPS: &[Step] = {
    use Step::*;
    &[
        Keep, Keep, Keep, Keep, Write, Write, Append, Replace, Remove, Rename, MakeDir, RemoveDir, RenameDir, Link,
        Symlink, SetMode, Read,
    ]
};

/// A call that takes longer is told of.
const SLOW: Duration = Duration::from_secs(3);

const FOLDERS: &[&str] = &["d", "e", "d/d", "d/e", "e/d"];

/// What happens when others work in the same tree.
fn is_expected(e: &io::Error) -> bool {
    use ErrorKind::*;
    let of_names = [NotFound, AlreadyExists, DirectoryNotEmpty, NotADirectory, IsADirectory, InvalidInput];
    // A kernel says ELOOP if it has an old place of a directory that others moved
    // (docs/semantics.md). ESTALE and ETIMEDOUT: a file that is not cached, without a home.
    let is_of_names = of_names.contains(&e.kind()) || e.raw_os_error() == Some(libc::ELOOP);
    is_of_names || matches!(e.kind(), StaleNetworkFileHandle | TimedOut)
}

/// What happens when the mount has ended.
fn is_ended(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

impl Author {
    fn subfolder(&self) -> PathBuf {
        self.root.join(FOLDERS[self.random.below(FOLDERS.len() as u64) as usize])
    }

    /// The root, or a folder below.
    fn folder(&self) -> PathBuf {
        if self.random.chance(1, 6) { self.root.clone() } else { self.subfolder() }
    }

    fn shared(&self) -> PathBuf {
        self.folder().join(format!("s{}", self.random.below(6)))
    }

    fn text(&mut self) -> String {
        self.count += 1;
        let len =
            if self.random.chance(1, 10) { 70_000 + self.random.below(200_000) } else { self.random.below(6_000) };
        noise(&format!("{} {}", self.name, self.count), len as usize)
    }

    fn keep(&mut self) -> io::Result<()> {
        let text = self.text();
        let name = format!("{}-{}", self.name, self.count);
        let mut file = OpenOptions::new().write(true).create_new(true).open(self.folder().join(&name))?;
        file.write_all(text.as_bytes())?;
        let is_synced = self.random.chance(1, 2);
        if is_synced {
            file.sync_all()?;
            // An fsync makes durable all that this mount did before.
            self.keepers.iter_mut().for_each(|keeper| keeper.is_synced = true);
        }
        drop(file);
        self.keepers.push(Keeper { name, text, is_synced });
        Ok(())
    }

    fn step(&mut self, what: Step) -> io::Result<()> {
        match what {
            Step::Keep => self.keep(),
            Step::Write => {
                let text = self.text();
                fs::write(self.shared(), text)
            }
            Step::Append => {
                let mut file = OpenOptions::new().append(true).create(true).open(self.shared())?;
                file.write_all(format!("{} was here\n", self.name).as_bytes())
            }
            Step::Replace => {
                let (text, path) = (self.text(), self.shared());
                let beside = path.with_file_name(format!("{}.tmp", self.name));
                let mut file = File::create(&beside)?;
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                fs::rename(beside, path)
            }
            Step::Remove => fs::remove_file(self.shared()),
            Step::Rename => fs::rename(self.shared(), self.shared()),
            Step::MakeDir => fs::create_dir(self.subfolder()),
            Step::RemoveDir => fs::remove_dir(self.subfolder()),
            Step::RenameDir => fs::rename(self.subfolder(), self.subfolder()),
            Step::Link => fs::hard_link(self.shared(), self.shared()),
            Step::Symlink => symlink(format!("to {}", self.count), self.shared()),
            Step::SetMode => {
                let mode = 0o600 + 0o44 * self.random.below(2) as u32;
                fs::set_permissions(self.shared(), Permissions::from_mode(mode))
            }
            Step::Read => fs::read(self.shared()).map(drop),
        }
    }

    /// Does some steps, until its mount ends.
    fn work(&mut self, step_count: usize) {
        for _ in 0..step_count {
            let what = STEPS[self.random.below(STEPS.len() as u64) as usize];
            let began = Instant::now();
            let done = self.step(what);
            if began.elapsed() > SLOW {
                println!("{}: {what:?} took {:.0?}: {done:?}", self.name, began.elapsed());
            }
            match done {
                Err(e) if is_ended(&e) => return,
                Err(e) if !is_expected(&e) => panic!("{}: {what:?}: {e}, after {} texts", self.name, self.count),
                _ => {}
            }
        }
    }
}

/// What a tree has: kind and mode, and contents or target, of each name.
fn snapshot(root: &Path) -> io::Result<BTreeMap<PathBuf, (u32, Vec<u8>)>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let bytes = if metadata.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if metadata.is_symlink() {
                fs::read_link(&path)?.into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path)?
            };
            found.insert(path.strip_prefix(root).expect("below").to_owned(), (metadata.mode(), bytes));
        }
    }
    Ok(found)
}

/// What two trees do not have in common, in a few words.
fn difference(one: &Path, two: &Path) -> Option<String> {
    let (one, two) = match (snapshot(one), snapshot(two)) {
        (Ok(one), Ok(two)) => (one, two),
        (one, two) => return Some(format!("{:?}, {:?}", one.err(), two.err())),
    };
    let paths = one.keys().chain(two.keys()).filter(|path| one.get(*path) != two.get(*path));
    let short = |(mode, bytes): &(u32, Vec<u8>)| {
        format!("{mode:o}, {} bytes, {:?}", bytes.len(), String::from_utf8_lossy(&bytes[..bytes.len().min(20)]))
    };
    let lines: Vec<String> = paths
        .map(|path| format!("{}: {:?} / {:?}", path.display(), one.get(path).map(short), two.get(path).map(short)))
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// What happens to machines while authors work; a client that ends in order does so after that.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    HomeDies,
    HomeEnds,
    ClientDies(usize),
    ClientEnds(usize),
    LinkBreaks(usize),
}

struct Ordeal {
    two: Two,
    random: SplitMix64,
    /// Two mounts and a program at home.
    authors: [Author; 3],
    conflict_count: usize,
    /// Files that were not synced when their mount was killed.
    unsynced_count: usize,
    kept: usize,
}

impl Ordeal {
    fn new(seed: u64) -> Ordeal {
        let two = Two::mount_as(&[]);
        let random = SplitMix64::new(seed);
        let roots = [&two.mounts[0].mountpoint, &two.mounts[1].mountpoint, &two.home.exported].map(Clone::clone);
        let mut roots = roots.into_iter();
        let authors = ["one", "two", "home"].map(|name| Author {
            name,
            root: roots.next().expect("three"),
            random: SplitMix64::new(random.next_u64()),
            keepers: Vec::new(),
            count: 0,
        });
        Ordeal { two, random, authors, conflict_count: 0, unsynced_count: 0, kept: 0 }
    }

    fn fault(&self) -> Fault {
        let mount = self.random.below(2) as usize;
        match self.random.below(8) {
            0 => Fault::None,
            1..3 => Fault::HomeDies,
            3 => Fault::HomeEnds,
            4..6 => Fault::ClientDies(mount),
            6 => Fault::ClientEnds(mount),
            _ => Fault::LinkBreaks(mount),
        }
    }

    /// All work; at some moment a fault happens, and is mended.
    fn round(&mut self) -> Fault {
        let fault = self.fault();
        let step_count = 20 + self.random.below(150) as usize;
        let pauses = [(); 2].map(|()| Duration::from_millis(self.random.below(600)));
        std::thread::scope(|scope| {
            for author in &mut self.authors {
                scope.spawn(move || author.work(step_count));
            }
            std::thread::sleep(pauses[0]);
            match fault {
                Fault::None | Fault::ClientEnds(_) => {}
                Fault::HomeDies => self.two.home.stop(libc::SIGKILL),
                Fault::HomeEnds => self.two.home.stop(libc::SIGTERM),
                Fault::ClientDies(mount) => self.two.mounts[mount].kill(),
                Fault::LinkBreaks(mount) => self.two.mounts[mount].link.off(),
            }
            std::thread::sleep(pauses[1]);
            let begun = Instant::now();
            match fault {
                Fault::HomeDies | Fault::HomeEnds => self.two.home.start(),
                Fault::LinkBreaks(mount) => self.two.mounts[mount].link.on(),
                // It is mounted again when its author has seen that it has ended, and writes
                // nothing below the mount point.
                Fault::None | Fault::ClientDies(_) | Fault::ClientEnds(_) => {}
            }
            if begun.elapsed() > SLOW {
                println!("the home's start took {:.0?}", begun.elapsed());
            }
        });
        match fault {
            Fault::ClientDies(mount) | Fault::ClientEnds(mount) => {
                if let Fault::ClientDies(_) = fault {
                    let keepers = &mut self.authors[mount].keepers;
                    self.unsynced_count += keepers.iter().filter(|keeper| !keeper.is_synced).count();
                    keepers.retain(|keeper| keeper.is_synced);
                }
                if let Fault::ClientEnds(_) = fault {
                    self.two.mounts[mount].stop(libc::SIGTERM);
                }
                // This also removes a dead mount.
                self.two.mounts[mount].mount_again();
            }
            _ => {}
        }
        fault
    }

    /// Everything goes home; conflicts are looked at and settled; then all see the same, and all
    /// that was to be kept.
    fn check(&mut self) {
        let mut in_conflict = String::new();
        for laptop in &self.two.mounts {
            laptop.wait(LONG, "the home is there", |laptop| laptop.state() != "disconnected");
            laptop.wait_until_home(LONG);
            let conflicts = laptop.ask(&["conflicts", "list"]);
            let conflicts = conflicts.as_array().expect("a list");
            self.conflict_count += conflicts.len();
            for conflict in conflicts {
                in_conflict += &conflict.to_string();
                let number = conflict["number"].to_string();
                // A directory of this mount may have files of this mount.
                let mine = conflict["mine"].as_str().map(|mine| laptop.mountpoint.join(mine));
                let version = if mine.is_some_and(|mine| mine.is_dir()) { "both" } else { "theirs" };
                let mut resolve = starling();
                run(resolve.args(["conflicts", "resolve"]).arg(&laptop.mountpoint).args([&number, version]));
            }
            laptop.wait_until_home(LONG);
            assert_eq!(laptop.ask(&["conflicts", "list"]), Value::Array(Vec::new()));
        }
        let at_home = &self.two.home.exported;
        for laptop in &self.two.mounts {
            let deadline = Instant::now() + LONG;
            while let Some(difference) = difference(&laptop.mountpoint, at_home) {
                let name = laptop.mountpoint.display();
                assert!(Instant::now() < deadline, "{name} and home differ after {LONG:?}: {difference}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        let tree = snapshot(at_home).expect("read");
        let by_name: BTreeMap<_, _> = tree.iter().map(|(path, what)| (path.file_name(), (path, what))).collect();
        for author in &mut self.authors {
            for keeper in &author.keepers {
                let found = by_name.get(&Some(keeper.name.as_ref()));
                let is_whole = found.is_some_and(|(_, (_, bytes))| bytes == keeper.text.as_bytes());
                assert!(
                    is_whole || in_conflict.contains(&keeper.name),
                    "{} was to be kept ({}), and {:?} is at home; conflicts: {in_conflict}",
                    keeper.name,
                    if keeper.is_synced { "synced" } else { "closed" },
                    found.map(|(path, (_, bytes))| (path, bytes.len(), keeper.text.len())),
                );
                self.kept += 1;
            }
            // A conflict that was settled has taken this mount's version away; later checks do not
            // hear of it.
            author.keepers.retain(|keeper| !in_conflict.contains(&keeper.name));
            // The tree does not grow for ever.
            if author.keepers.len() > 300 {
                for keeper in author.keepers.drain(..) {
                    if let Some((path, _)) = by_name.get(&Some(keeper.name.as_ref())) {
                        fs::remove_file(author.root.join(path)).expect("remove");
                    }
                }
            }
        }
    }
}

#[test]
fn two_mounts_and_a_program_at_home_end_with_one_tree_though_clients_and_the_home_are_killed() {
    let seconds: Option<u64> = std::env::var("STARLING_ORDEAL_SECONDS").ok().map(|s| s.parse().expect("seconds"));
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a date").as_nanos() as u64;
    println!("seed {seed}");
    let mut ordeal = Ordeal::new(seed);
    let (began, mut rounds, mut faults) = (Instant::now(), 0, 0);
    let goes_on = |rounds| match seconds {
        None => rounds < 8,
        Some(seconds) => began.elapsed() < Duration::from_secs(seconds),
    };
    while goes_on(rounds) {
        rounds += 1;
        let fault = ordeal.round();
        faults += usize::from(!matches!(fault, Fault::None));
        println!("round {rounds}, {:.0?}: {fault:?}", began.elapsed());
        if ordeal.random.chance(1, 2) {
            let begun = Instant::now();
            ordeal.check();
            if begun.elapsed() > SLOW {
                println!("that all see the same took {:.0?}", begun.elapsed());
            }
        }
    }
    ordeal.check();
    let Ordeal { conflict_count, unsynced_count, kept, .. } = ordeal;
    println!("{rounds} rounds: {kept} files kept, {unsynced_count} not synced at a kill, {conflict_count} conflicts");
    assert!(kept > 0 && faults > 0, "{kept} files were kept, through {faults} faults");
}
