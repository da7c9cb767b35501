//! Listing directories.

use super::*;
use crate::fs::DirEntry;
use std::collections::{BTreeMap, BTreeSet};
use types::Kind;

/// All entries after `cookie`, fetched `count` at a time.
async fn list(t: &Ctx, dir: FileId, handle: Handle, mut cookie: u64, count: usize, plus: bool) -> Vec<DirEntry> {
    let mut all = Vec::new();
    loop {
        let batch = ok!(t.readdir(dir, handle, cookie, count, plus));
        assert!(batch.len() <= count, "at most as many as were asked for");
        let Some(last) = batch.last() else { return all };
        cookie = last.cookie;
        all.extend(batch);
    }
}

pub(super) async fn listing_has_each_name_once(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    let mut expected = BTreeMap::new();
    for i in 0..300 {
        let name = format!("name-{i}");
        let (id, kind) = match i % 3 {
            0 => (t.dir(dir, &name, 0o700).await, Kind::Directory),
            1 => (t.file(dir, &name, b"xy").await, Kind::File),
            _ => (ok!(t.symlink(&SU, dir, name.as_bytes(), b"t")).attr.id, Kind::Symlink),
        };
        expected.insert(name.into_bytes(), (id, kind));
    }
    ok!(t.rename(&SU, dir, b"name-4", dir, b"name-7", Default::default()));
    if let Some(moved) = expected.remove(&b"name-4"[..]) {
        expected.insert(b"name-7".to_vec(), moved);
    }
    let handle = ok!(t.opendir(&SU, dir));
    for (count, plus) in [(1, false), (7, true), (10_000, true)] {
        let listed = list(&t, dir, handle, 0, count, plus).await;
        let dots: Vec<_> = listed[..2].iter().map(|e| (&e.name[..], e.id, e.cookie, e.kind)).collect();
        assert_eq!(dots, [(&b"."[..], dir, 1, Kind::Directory), (b"..", ROOT, 2, Kind::Directory)]);
        assert_eq!(listed.len(), expected.len() + 2);
        let found: BTreeMap<_, _> = listed[2..].iter().map(|e| (e.name.clone(), (e.id, e.kind))).collect();
        assert_eq!(found, expected);
        for e in &listed[2..] {
            if let Some(attr) = e.attr {
                assert!(plus);
                assert_eq!(attr, t.attr(e.id).await);
            }
        }
    }
    ok!(t.releasedir(dir, handle));
}

pub(super) async fn listing_goes_on_at_any_cookie(t: Ctx) {
    for i in 0..50 {
        t.file(ROOT, &format!("f{i}"), b"").await;
    }
    let handle = ok!(t.opendir(&SU, ROOT));
    let all = list(&t, ROOT, handle, 0, 1000, false).await;
    let cookies: BTreeSet<u64> = all.iter().map(|e| e.cookie).collect();
    assert_eq!(cookies.len(), all.len(), "cookies differ");
    let other = ok!(t.opendir(&SU, ROOT));
    for (i, e) in all.iter().enumerate() {
        let rest = list(&t, ROOT, other, e.cookie, 13, false).await;
        assert_eq!(rest, all[i + 1..], "after {:?}", e.name);
    }
    // The entry that a cookie came from may be gone.
    for e in &all[2..] {
        ok!(t.unlink(&SU, ROOT, &e.name));
        let next = ok!(t.readdir(ROOT, handle, e.cookie, 1, false));
        let rest = all.iter().skip_while(|x| x.cookie != e.cookie).nth(1);
        assert_eq!(next.first().map(|n| &n.name), rest.map(|n| &n.name));
    }
    ok!(t.releasedir(ROOT, handle));
    ok!(t.releasedir(ROOT, other));
}

pub(super) async fn listing_is_stable_under_changes(t: Ctx) {
    const KEPT: usize = 3000;
    let dir = t.dir(ROOT, "dir", 0o755).await;
    for i in 0..KEPT {
        ok!(t.mkdir(&SU, dir, format!("kept-{i}").as_bytes(), 0o755, 0));
        if i % 4 == 0 {
            ok!(t.mkdir(&SU, dir, format!("gone-{i}").as_bytes(), 0o755, 0));
        }
    }
    let handle = ok!(t.opendir(&SU, dir));
    let (mut cookie, mut round) = (0, 0);
    let mut seen = BTreeMap::<Vec<u8>, usize>::new();
    loop {
        let batch = ok!(t.readdir(dir, handle, cookie, 64, false));
        let Some(last) = batch.last() else { break };
        cookie = last.cookie;
        for e in batch {
            *seen.entry(e.name).or_default() += 1;
        }
        // Between two parts of the listing: many new names, some removed, names that come and go,
        // and renames. The changes stop in the end, because a listing in the order of creation
        // would never end.
        for i in 0..if round < 30 { 40 } else { 0 } {
            ok!(t.mkdir(&SU, dir, format!("new-{round}-{i}").as_bytes(), 0o755, 0));
        }
        for i in (round * 80..(round + 1) * 80).filter(|i| i % 4 == 0 && *i < KEPT) {
            ok!(t.rmdir(&SU, dir, format!("gone-{i}").as_bytes()));
        }
        ok!(t.mkdir(&SU, dir, b"blink", 0o755, 0));
        ok!(t.rename(&SU, dir, b"blink", dir, b"blinked", Default::default()));
        ok!(t.rmdir(&SU, dir, b"blinked"));
        round += 1;
        assert!(round < 1000, "the listing does not end");
    }
    for i in 0..KEPT {
        let name = format!("kept-{i}");
        assert_eq!(seen.get(name.as_bytes()), Some(&1), "{name}");
    }
    assert!(!seen.contains_key(&b"blink"[..]) && !seen.contains_key(&b"blinked"[..]));
    let twice = seen.iter().find(|(_, n)| **n > 1);
    assert_eq!(twice, None, "no name is listed twice");
    ok!(t.releasedir(dir, handle));
}

pub(super) async fn listing_of_handles_only(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    let file = t.file(ROOT, "file", b"").await;
    refuses!(t.opendir(&SU, file), NotADirectory);
    refuses!(t.opendir(&user(9), t.dir(ROOT, "secret", 0o311).await), AccessDenied);
    let handle = ok!(t.opendir(&SU, dir));
    refuses!(t.readdir(ROOT, handle, 0, 10, false), BadHandle);
    refuses!(t.readdir(dir, Handle(u64::MAX), 0, 10, false), BadHandle);
    ok!(t.fsync_dir(dir, handle));
    refuses!(t.fsync_dir(ROOT, handle), BadHandle);
    ok!(t.releasedir(dir, handle));
    refuses!(t.readdir(dir, handle, 0, 10, false), BadHandle);
    refuses!(t.releasedir(dir, handle), BadHandle);
    refuses!(t.fsync_dir(dir, handle), BadHandle);
}
