//! What a node that was declared dead had not synced: what the file system does not have of it is
//! kept aside, and nothing else is.

use crate::rig::*;
use client::unsynced::{Unsynced, UnsyncedPath};
use cluster::aside::Aside;
use cluster::config::client_log;
use cluster::member::Member;
use host::Host;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use storage::api::Fence;
use stripe::{Stripe, StripeError};
use types::{FileId, FsError};
use vfs::fs::{Cred, FileSystem, OpenFlags, RenameFlags, SetAttr};

/// Keeps in memory, with the way to the log.
#[derive(Default)]
struct InMemory(Mutex<(Vec<Unsynced>, Option<Arc<Stripe>>)>);

impl Aside for InMemory {
    fn keep(&self, unsynced: Unsynced) {
        self.0.lock().expect("kept").0.push(unsynced);
    }

    fn settle(&self, through: u64, stripe: Arc<Stripe>) {
        let (kept, way) = &mut *self.0.lock().expect("kept");
        kept.iter_mut().for_each(|unsynced| unsynced.settle(through));
        *way = Some(stripe);
    }
}

/// Files by path, with their contents.
type Files = BTreeMap<String, Vec<u8>>;

const PATHS: [&str; 8] = ["a", "b", "c", "e", "d/a", "d/b", "d/c", "d/e"];

/// The directory of a path, and the name in it.
async fn place<'p>(fs: &dyn FileSystem, path: &'p str) -> Result<(FileId, &'p [u8]), FsError> {
    Ok(match path.split_once('/') {
        Some((directory, name)) => {
            (fs.lookup(&Cred::ROOT, FileId::ROOT, directory.as_bytes()).await?.attr.id, name.as_bytes())
        }
        None => (FileId::ROOT, path.as_bytes()),
    })
}

/// A file system at a member, and the member's machine.
struct At {
    fs: Arc<dyn FileSystem>,
    member: Arc<Member>,
    host: Host,
}

impl At {
    /// A session of the member has ended, with changes that were not synced.
    fn has_lost(&self) -> bool {
        self.member.has_ever_lost()
    }
}

/// Changes one file, or renames it to `to`. Returns the files after it. Fails if the member's
/// session has ended.
async fn change(at: &At, (path, to): (&str, &str), files: &Files) -> Result<Files, FsError> {
    let (fs, host) = (&*at.fs, &at.host);
    let (mut files, dice) = (files.clone(), host.random.next_u64());
    let (parent, name) = place(fs, path).await?;
    let random = |len: u64| (0..1 + dice % len).map(|_| host.random.next_u64() as u8).collect::<Vec<u8>>();
    let id = match fs.lookup(&Cred::ROOT, parent, name).await {
        Ok(entry) => Some(entry.attr.id),
        Err(FsError::NotFound) => None,
        Err(e) => return Err(e),
    };
    if at.has_lost() {
        return Err(FsError::Io);
    }
    assert_eq!(id.is_some(), files.contains_key(path), "{path}");
    match (id, dice >> 32 & 7) {
        (None, _) => {
            let (entry, handle) = fs.create(&Cred::ROOT, parent, name, 0o644, 0, READ_WRITE).await?;
            let contents = random(200_000);
            fs.write(&Cred::ROOT, entry.attr.id, handle, 0, &contents).await?;
            fs.release(entry.attr.id, handle, None).await?;
            files.insert(path.into(), contents);
        }
        (Some(id), 0..=3) => {
            let (added, contents) = (random(100_000), files.entry(path.into()).or_default());
            let offset = host.random.next_u64() % (contents.len() as u64 + 100_000);
            let handle = fs.open(&Cred::ROOT, id, READ_WRITE).await?;
            fs.write(&Cred::ROOT, id, handle, offset, &added).await?;
            fs.release(id, handle, None).await?;
            let (start, end) = (offset as usize, offset as usize + added.len());
            contents.resize(contents.len().max(end), 0);
            contents[start..end].copy_from_slice(&added);
        }
        (Some(id), 4) => {
            let contents = files.entry(path.into()).or_default();
            let size = host.random.next_u64() % (2 * contents.len() as u64 + 1);
            let size = size + u64::from(size == contents.len() as u64);
            fs.setattr(&Cred::ROOT, id, None, SetAttr { size: Some(size), ..Default::default() }).await?;
            contents.resize(size as usize, 0);
        }
        (Some(_), 5) => {
            fs.unlink(&Cred::ROOT, parent, name).await?;
            files.remove(path);
        }
        (Some(_), 6) if path != to => {
            let (to_parent, to_name) = place(fs, to).await?;
            fs.rename(&Cred::ROOT, parent, name, to_parent, to_name, RenameFlags::default()).await?;
            let contents = files.remove(path).unwrap_or_default();
            files.insert(to.into(), contents);
        }
        _ => fs.sync().await?,
    }
    Ok(files)
}

/// Changes files until something fails, or the member's session has ended. Returns the files before
/// that, and those that it was about.
async fn changes(at: At, mut files: Files) -> (Files, [&'static str; 2]) {
    let host = &at.host;
    loop {
        let pick = || PATHS[host.random.next_u64() as usize % PATHS.len()];
        let (path, to) = (pick(), pick());
        match change(&at, (path, to), &files).await {
            Ok(after) if !at.has_lost() => files = after,
            _ => return (files, [path, to]),
        }
        host.clock.sleep(Duration::from_millis(host.random.next_u64() % 300)).await;
    }
}

async fn contents(fs: &dyn FileSystem, path: &str) -> Result<Vec<u8>, FsError> {
    let (parent, name) = place(fs, path).await?;
    let id = fs.lookup(&Cred::ROOT, parent, name).await?.attr.id;
    let handle = fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..Default::default() }).await?;
    let bytes = fs.read(id, handle, 0, 4 << 20).await;
    fs.release(id, handle, None).await?;
    Ok(bytes?.to_vec())
}

/// A file that was kept.
struct Kept {
    bytes: Vec<u8>,
    /// All of its bytes are there.
    is_whole: bool,
}

/// What was kept: the contents of files, and whether names are there. Zeroes are in place of bytes
/// whose segment is not there any more: the cleaner has moved them.
async fn kept(aside: &InMemory) -> (BTreeMap<String, Kept>, BTreeMap<String, bool>) {
    let (all, stripe) = aside.0.lock().expect("kept").clone();
    let text = |path: &UnsyncedPath| {
        assert_eq!(path.from, FileId::ROOT, "all directories are in memory");
        String::from_utf8(path.path.clone()).expect("a name")
    };
    let (mut files, mut names) = (BTreeMap::new(), BTreeMap::new());
    for unsynced in &all {
        names.extend(unsynced.net_names().iter().map(|name| (text(&name.path), name.to.is_some())));
        for file in &unsynced.files {
            let Some(contents) = &file.contents else { continue };
            assert!(contents.is_whole);
            let (mut bytes, mut is_whole) = (vec![0; file.inode.size as usize], true);
            for piece in &contents.pieces {
                let (start, end) = (piece.offset as usize, (piece.offset + piece.len()) as usize);
                let read = match (&piece.bytes, &stripe) {
                    (Ok(bytes), _) => bytes.clone(),
                    (Err(addr), Some(stripe)) => {
                        match stripe.read(addr.segment, addr.offset..addr.offset + addr.len).await {
                            Err(StripeError::SegmentNotFound(_)) => {
                                is_whole = false;
                                continue;
                            }
                            read => read.expect("read"),
                        }
                    }
                    (Err(_), None) => panic!("no way to the log"),
                };
                bytes[start..end].copy_from_slice(&read);
            }
            files.insert(text(file.path.as_ref().expect("a name")), Kept { bytes, is_whole });
        }
    }
    (files, names)
}

/// How often something happened in several runs.
#[derive(Default, Debug)]
struct Seen {
    lost: usize,
    kept: usize,
    made: usize,
    removed: usize,
    stored: usize,
    moved: usize,
    /// It ended its session itself.
    ended: usize,
}

fn what_a_fenced_member_had_not_synced_is_kept(seed: u64, seen: &mut Seen) {
    let rig = Rig::new(seed, super::ROOM);
    let (a, first) = rig.joined("a");
    let (_, second) = rig.joined("b");
    let dice = rig.sim.machine("dice").host();
    let aside = Arc::new(InMemory::default());
    first.member.set_aside(aside.clone());
    rig.sim.block_on(async { first.fs.mkdir(&Cred::ROOT, FileId::ROOT, b"d", 0o755, 0).await }).expect("mkdir");
    rig.sync(&*first.fs).expect("sync");
    // Files of the other one, of which it gets only parts into its memory.
    let mut files = Files::new();
    for path in &PATHS[..3] {
        let contents: Vec<u8> = (0..2_000_000).map(|_| dice.random.next_u64() as u8).collect();
        rig.write(&*second.fs, path, &contents).expect("write");
        files.insert(path.to_string(), contents);
    }
    rig.sync(&*second.fs).expect("sync");
    let at = At { fs: first.fs.clone(), member: first.member.clone(), host: first.machine.host() };
    let working = first.machine.run(changes(at, files));
    rig.sim.run_for(Duration::from_millis(dice.random.next_u64() % 20_000));
    // Sometimes while segments are on their way: they count, but the member is not told.
    let in_flight = || first.member.client().map_or(0, |client| client.status().in_flight_bytes);
    while seed.is_multiple_of(2) && in_flight() == 0 {
        rig.sim.run_for(Duration::from_micros(300));
    }
    rig.sim.run_for(Duration::from_micros(dice.random.next_u64() % 3000));
    // Nothing of it gets through, or it reaches the first node, and too few stores.
    let reaches_first = dice.random.next_u64().is_multiple_of(2);
    if reaches_first {
        rig.way.silence(a, 0..2);
    } else {
        rig.way.cut(a, true);
    }
    // The other one wants its files. So it is declared dead, or ends its session.
    rig.run_for(10);
    rig.sim.block_on(async { second.fs.mkdir(&Cred::ROOT, FileId::ROOT, b"of b", 0o755, 0).await }).expect("mkdir");
    let (files, failed) = rig.sim.block_on(working).expect("up");
    rig.way.cut(a, false);
    rig.way.silence(a, 0..0);
    seen.ended += usize::from(reaches_first);
    rig.sim.block_on(first.member.ready()).expect("ready");
    let (kept, names) = rig.sim.block_on(kept(&aside));
    let is_known = |path: &&str| !failed.contains(path);
    for path in PATHS.into_iter().filter(is_known) {
        let there = match rig.sim.block_on(contents(&*second.fs, path)) {
            Ok(contents) => Some(contents),
            Err(FsError::NotFound) => None,
            Err(e) => panic!("{path}: {e:?}"),
        };
        let (wanted, name) = (files.get(path), names.get(path));
        let is_same_name = wanted.is_some() && !kept.contains_key(path) && wanted == there.as_ref();
        assert!(name.is_none() || !is_same_name, "seed {seed}: {path} is listed, but nothing of it is lost");
        assert!(name.is_none_or(|is_there| *is_there == wanted.is_some()), "seed {seed}: {path} is named otherwise");
        assert!(wanted.is_some() == there.is_some() || name.is_some(), "seed {seed}: {path}: the name is not listed");
        let is_lost = wanted.is_some() && wanted != there.as_ref();
        match kept.get(path) {
            Some(kept) => {
                let is_right = !kept.is_whole || Some(&kept.bytes) == wanted;
                assert!(is_right, "seed {seed}: {path} is kept, but not as it was");
                seen.moved += usize::from(!kept.is_whole);
                assert!(is_lost, "seed {seed}: {path} is kept, but nothing of it is lost");
            }
            None if is_lost => assert!(name == Some(&true), "seed {seed}: {path} is lost and was not kept"),
            None => {}
        }
        seen.lost += usize::from(is_lost);
        seen.kept += usize::from(kept.contains_key(path));
        seen.made += usize::from(name == Some(&true));
        seen.removed += usize::from(name == Some(&false));
    }
    let all = aside.0.lock().expect("kept");
    let pieces = all.0.iter().flat_map(|unsynced| &unsynced.files).flat_map(|file| &file.contents);
    seen.stored += pieces.flat_map(|contents| &contents.pieces).filter(|piece| piece.bytes.is_err()).count();
    assert_eq!(first.member.take_loss(), !all.0.is_empty());
}

#[test]
fn model_what_a_fenced_member_had_not_synced_is_kept_and_nothing_else() {
    let mut seen = Seen::default();
    let count = std::env::var("STARLING_FENCED").map_or(20, |count| count.parse().expect("a number"));
    for seed in 7000..7000 + count {
        what_a_fenced_member_had_not_synced_is_kept(seed, &mut seen);
    }
    let all = [seen.lost, seen.kept, seen.made, seen.removed, seen.ended];
    assert!(all.iter().all(|count| *count > 1) && seen.moved < seen.kept / 8, "{seen:?}");
}

/// It kept what others waited for as long as its process lived.
#[test]
fn regression_a_member_that_reaches_too_few_stores_gives_up_what_others_wait_for() {
    let rig = Rig::new(50, super::ROOM);
    let (a, first) = rig.joined("a");
    let (_, second) = rig.joined("b");
    let aside = Arc::new(InMemory::default());
    first.member.set_aside(aside.clone());
    rig.write(&*first.fs, "synced", b"one").expect("write");
    rig.sync(&*first.fs).expect("sync");
    rig.write(&*first.fs, "removed", b"two").expect("write");
    rig.write(&*first.fs, "lost", b"three").expect("write");
    let fs = first.fs.clone();
    let removed = rig.sim.block_on(async move { fs.unlink(&Cred::ROOT, FileId::ROOT, b"removed").await });
    removed.expect("unlink");
    rig.way.silence(a, 0..3);
    // Nothing ends as long as no other node waits.
    rig.run_for(90);
    assert!(!first.member.has_ever_lost());
    let began = rig.sim.now();
    assert_eq!(rig.read_in_time(&*second.fs, "synced"), Some(Ok(b"one".to_vec())));
    let waited = rig.sim.now() - began;
    assert!(waited < Duration::from_secs(60), "{waited:?}");
    assert_eq!(rig.read_in_time(&*second.fs, "lost"), Some(Err(FsError::NotFound)));
    assert!(first.member.take_loss());
    rig.way.silence(a, 0..0);
    let (files, names) = rig.sim.block_on(kept(&aside));
    assert_eq!(files.keys().collect::<Vec<_>>(), ["lost"]);
    assert_eq!(names, BTreeMap::from([("lost".to_string(), true)]));
    rig.run_for(30);
    rig.write(&*first.fs, "again", b"four").expect("write");
    rig.sync(&*first.fs).expect("sync");
    assert_eq!(rig.read(&*second.fs, "again"), Ok(b"four".to_vec()));
}

/// Another node does not have the changes earlier if this one gives them up.
#[test]
fn a_member_whose_stores_take_nothing_from_any_node_loses_nothing() {
    let rig = Rig::new(51, super::ROOM);
    let (_, first) = rig.joined("a");
    let (_, second) = rig.joined("b");
    rig.write(&*first.fs, "file", b"one").expect("write");
    rig.stores[..2].iter().for_each(|disk| disk.offline(true));
    let fs = second.fs.clone();
    let reads = second.machine.run(async move { read(&*fs, "file").await });
    rig.run_for(90);
    rig.stores[..2].iter().for_each(|disk| disk.offline(false));
    rig.start_first();
    assert_eq!(rig.sim.block_on(reads).expect("up"), Ok(b"one".to_vec()));
    assert!(!first.member.has_ever_lost());
}

/// A leader had died when it had sealed the member's log at one store only, and the next one let
/// the member go on. The member changed nothing any more until its process started again.
#[test]
fn regression_a_member_works_again_after_a_store_has_refused_it() {
    let rig = Rig::new(52, super::ROOM);
    let (a, first) = rig.joined("a");
    let (_, second) = rig.joined("b");
    rig.write(&*first.fs, "synced", b"one").expect("write");
    rig.sync(&*first.fs).expect("sync");
    let log = client_log(a);
    let store = rig.first().core.stores()[0].1.now();
    let seals = rig.sim.block_on(store.seals()).expect("seals");
    let present = seals.into_iter().find(|seal| seal.log == log).expect("a seal");
    let fence = Fence { epoch: present.epoch + 1, through: present.through };
    rig.sim.block_on(store.seal(present.next(fence, Some(1), 7))).expect("seal");
    // Not each segment has a fragment at that store.
    let write = |number| rig.write(&*first.fs, &format!("file-{number}"), b"two").and_then(|_| rig.sync(&*first.fs));
    let refused = (0..20).map(write).find(Result::is_err);
    assert_eq!(refused, Some(Err(FsError::Io)));
    rig.run_for(30);
    assert!(first.member.take_loss());
    rig.write(&*first.fs, "again", b"three").expect("write");
    rig.sync(&*first.fs).expect("sync");
    let found = ["synced", "again"].map(|name| rig.read(&*second.fs, name));
    assert_eq!(found, [Ok(b"one".to_vec()), Ok(b"three".to_vec())]);
}
