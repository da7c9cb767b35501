//! Clients on files of their own: each must find the results of its own operations, and nothing
//! else.

use crate::rig::session::{How, Op, find, perform, random_path, read_all};
use crate::trees::{below, differ};
use crate::weather::Storm;
use crate::worker::{Past, Worker};
use roam::Durability;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use types::{FsError, Kind};
use vfs::mem::MemFs;
use vfs::tree::{TreeEntry, walk};

impl Worker {
    pub async fn alone(&self) {
        let tag = self.next_tag();
        let (op, shadow) = {
            let mut mind = self.mind.lock();
            let op = match &mind.unclear {
                Some(path) => Op::Write(path.clone(), How::Replace, tag.into_bytes()),
                None if mind.random.chance(1, 12) => {
                    Op::Read(random_path(&mind.random, &format!("/c{}", 1 - mind.number % 2)))
                }
                None => Op::random(&mind.random, &format!("/c{}", mind.number), &tag),
            };
            mind.pending = Some(op.clone());
            (op, mind.shadow.clone())
        };
        let own = format!("/c{}", self.mind.lock().number);
        let elsewhere = matches!(&op, Op::Read(path) if !path.starts_with(&own));
        self.say(format!("{op:.60?} …"));
        let done = perform(&self.client, &op).await;
        self.say(format!("… {done:?}"));
        if elsewhere {
            self.mind.lock().pending = None;
            return;
        }
        if matches!(done, Err(FsError::TimedOut | FsError::NoSpace)) {
            if matches!(op, Op::Read(_) | Op::List(_) | Op::Unlink(_) | Op::RemoveDir(_))
                && done == Err(FsError::NoSpace)
            {
                self.fail(format!("{op:?} needs no room"));
            }
            return match op.writes().is_some() {
                true => self.find_out().await,
                false => self.mind.lock().pending = None,
            };
        }
        let before = shadow.snapshot();
        let expected = perform(&shadow, &op).await;
        if done != expected {
            self.fail(format!("{op:?} gave {done:?} instead of {expected:?}"));
        }
        let mut mind = self.mind.lock();
        if self.client.settings().durability == Durability::Grouped && done.is_ok() {
            let unclear = mind.unclear.clone();
            mind.past.push(Past { op: op.clone(), before, unclear });
        }
        mind.pending = None;
        if op.writes().is_some() && op.writes() == mind.unclear.as_deref() && done.is_ok() {
            mind.unclear = None;
        }
    }

    /// The contents of a file that was being replaced, if they are mixed: neither the old contents,
    /// nor a beginning of the new ones in which some bytes may be zeroes.
    async fn mixed(&self, path: &str, bytes: &[u8], shadow: &MemFs) -> Option<Vec<u8>> {
        let now = read_all(&self.client, find(&self.client, path).await.ok()?).await.ok()?;
        let old = async { read_all(shadow, find(shadow, path).await?).await };
        let is_old = old.await.is_ok_and(|old| old == now);
        let is_part = now.len() <= bytes.len() && now.iter().zip(bytes).all(|(now, new)| now == new || *now == 0);
        (!is_old && !is_part).then_some(now)
    }

    /// Finds out which operations are there. All are, except perhaps the one that was under way.
    /// After a crash, those before some operation that is not durable are, and perhaps a part of
    /// that one.
    pub async fn find_out(&self) {
        let (shadow, pending, unclear, top, has_lost) = {
            let mind = self.mind.lock();
            let top = format!("/c{}", mind.number);
            (mind.shadow.clone(), mind.pending.clone(), mind.unclear.clone(), top, mind.has_lost)
        };
        let view = loop {
            match walk(&self.client).await {
                Ok(view) => break view,
                Err(FsError::TimedOut | FsError::Stale | FsError::NotFound) if !self.stop.load(Relaxed) => {
                    self.pause(2000).await;
                }
                // The storm ends without an answer, so there is nothing to compare.
                Err(FsError::TimedOut | FsError::Stale | FsError::NotFound) => return,
                Err(error) => return self.fail(format!("looking: {error}")),
            }
        };
        if let (Some(op @ Op::Write(path, How::Replace, bytes)), None, false) = (&pending, &unclear, has_lost)
            && let Some(mixed) = self.mixed(path, bytes, &shadow).await
        {
            return self.fail(format!("after a crash at {op:?}, {path} is {mixed:?}"));
        }
        let past = pending.clone().map(|op| Past { op, before: shadow.snapshot(), unclear: unclear.clone() });
        let mut candidates = Vec::new();
        let mut under_way = |op: &Op, before: &MemFs, unclear: Option<String>| {
            let made = match op {
                Op::Write(path, ..) => Op::Make(path.clone(), 0o644),
                other => other.clone(),
            };
            let unclear = op.writes().map(str::to_string).or(unclear);
            candidates.push((Some(made), before.snapshot(), unclear.clone()));
            candidates.push((None, before.snapshot(), unclear));
        };
        if let Some(op) = &pending {
            under_way(op, &shadow, unclear.clone());
        }
        if has_lost {
            let mind = self.mind.lock();
            mind.past.iter().rev().for_each(|past| under_way(&past.op, &past.before, past.unclear.clone()));
        }
        if pending.is_none() {
            candidates.insert(0, (None, shadow, unclear));
        }
        let mut why = Vec::new();
        for (made, candidate, unclear) in candidates {
            if let Some(made) = made {
                let _ = perform(&candidate, &made).await;
            }
            let tree = candidate.dump();
            let blind = same_file(&tree, unclear.as_deref());
            match differ(&below(&tree, &top), &below(&view, &top), &blind) {
                Some(difference) => why.push(difference),
                None => {
                    let mut mind = self.mind.lock();
                    let there = !blind.is_empty();
                    (mind.shadow, mind.pending, mind.unclear) = (candidate, None, unclear.filter(|_| there));
                    match has_lost {
                        true => (mind.past, mind.has_lost) = (Vec::new(), false),
                        // A later crash may still lose it.
                        false => mind.past.extend(past),
                    }
                    drop(mind);
                    self.say("knows again");
                    return;
                }
            }
        }
        self.fail(format!("after a crash at {pending:?}, none of {why:?}"));
    }
}

impl Storm {
    pub fn check_shadows(&self) -> Result<(), String> {
        let all = self.rig.fs.dump();
        for (number, laptop) in self.laptops.iter().enumerate() {
            let (_, client) = laptop.running.as_ref().ok_or("a client is down")?;
            let conflicts =
                client.look(|replica, _| replica.conflicts().map(|(_, t)| format!("{t:?}")).collect::<Vec<_>>());
            if !conflicts.is_empty() {
                return Err(format!("client {number} has conflicts: {conflicts:?}"));
            }
            let mind = laptop.mind.lock();
            if mind.pending.is_some() || mind.has_lost {
                continue;
            }
            let (shadow, top) = (mind.shadow.dump(), format!("/c{number}"));
            let blind = same_file(&shadow, mind.unclear.as_deref());
            if let Some(difference) = differ(&below(&shadow, &top), &below(&all, &top), &blind) {
                return Err(format!("what client {number} did against the home: {difference}"));
            }
        }
        Ok(())
    }
}

/// All names of the file at a path.
fn same_file(tree: &[TreeEntry], path: Option<&str>) -> BTreeSet<Vec<u8>> {
    let id = tree.iter().find(|entry| Some(&entry.path[..]) == path.map(str::as_bytes)).map(|entry| entry.attr.id);
    let same = tree.iter().filter(|entry| Some(entry.attr.id) == id && entry.attr.kind == Kind::File);
    same.map(|entry| entry.path.clone()).collect()
}
