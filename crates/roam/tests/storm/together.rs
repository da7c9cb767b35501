//! Clients on the same files: everything that was written is somewhere, unless a client that had
//! seen it has dropped it.

use crate::ROOT;
use crate::rig::session::{How, Op, close, find, open_to_write, parent, perform, read_all, read_open};
use crate::weather::{FILE_LEN_MAX, Storm};
use crate::worker::Worker;
use roam::Durability;
use std::collections::BTreeSet;
use types::{Answer, FsError, Kind};
use vfs::FileSystem;
use vfs::fs::{OpenFlags, RenameFlags, SetAttr};
use vfs::mem::MemFs;
use vfs::tree::TreeEntry;

impl Worker {
    pub async fn together(&self) {
        let tag = self.next_tag();
        let (op, own, dawdles) = {
            let mind = self.mind.lock();
            (
                Op::random(&mind.random, "", &tag),
                mind.random.chance(1, 6) && mind.keeps_a_list,
                mind.random.chance(1, 8),
            )
        };
        if own {
            return self.append_line(&tag).await;
        }
        if dawdles {
            let path = op.writes().unwrap_or("/x");
            let done = self.dawdle(path).await;
            return self.say(format!("dawdles with {path}: {done:?}"));
        }
        self.say(format!("{op:.60?} …"));
        let done = match &op {
            Op::Unlink(path) => self.remove(path, None).await,
            Op::Rename(from, to, flags) if *flags == RenameFlags::default() => self.remove(to, Some(from)).await,
            Op::Write(path, how, bytes) => self.write(path, *how, bytes, &tag).await,
            Op::Truncate(path, size) => self.truncate(path, *size).await,
            op => perform(&self.client, op).await,
        };
        self.say(format!("… {done:?}"));
        if done == Err(FsError::Io) {
            self.fail(format!("{op:?} gave {done:?}"));
        }
    }

    /// Removes or replaces a file whose contents are known.
    async fn remove(&self, path: &str, by: Option<&str>) -> Result<(), FsError> {
        let client = &self.client;
        for _ in 0..3 {
            let (dir, name) = parent(client, path).await?;
            let from = match by {
                Some(by) => Some(parent(client, by).await?),
                None => None,
            };
            let seen = match client.lookup(&ROOT, dir, name).await {
                Ok(found) if found.attr.kind == Kind::File => tags(&read_all(client, found.attr.id).await?),
                Ok(_) | Err(FsError::NotFound) => BTreeSet::new(),
                Err(error) => return Err(error),
            };
            // Nothing else happens between this and the answer.
            let logged = || client.look(|replica, _| replica.log().last());
            let before = logged();
            let answer = match from {
                Some((from_dir, from)) => client.rename(&ROOT, from_dir, from, dir, name, RenameFlags::default()),
                None => client.unlink(&ROOT, dir, name),
            };
            if logged() > before {
                self.drop_tags(seen);
                return answer.await;
            }
        }
        Ok(())
    }

    /// Notes that a tag was written and acknowledged.
    fn written(&self, tag: &str, path: &str) {
        let is_durable = self.client.settings().durability == Durability::Always;
        match is_durable {
            true => self.ledger.lock().acked.insert(tag.into(), path.into()),
            false => self.mind.lock().young.insert(tag.into(), path.into()),
        };
    }

    fn drop_tags(&self, seen: BTreeSet<String>) {
        if !seen.is_empty() {
            self.say(format!("drops {seen:?}"));
        }
        self.ledger.lock().dropped.extend(seen);
    }

    async fn write(&self, path: &str, how: How, bytes: &[u8], tag: &str) -> Result<(), FsError> {
        let client = &self.client;
        let (id, handle) = open_to_write(client, path, How::Append).await?;
        let plain = client.open(&ROOT, id, OpenFlags { read: true, write: true, ..OpenFlags::default() }).await;
        let written = async {
            let plain = plain?;
            let written = async {
                // From the first byte on, nothing else changes the file here.
                client.write(&ROOT, id, handle, 0, b".").await?;
                let before = read_open(client, id, handle).await?;
                let mut after = if how == How::Replace { Vec::new() } else { before.clone() };
                let offset = match how {
                    How::At(offset) => offset as usize,
                    How::Append | How::Replace => after.len(),
                };
                after.resize(after.len().max(offset + bytes.len()), 0);
                after[offset..offset + bytes.len()].copy_from_slice(bytes);
                self.drop_tags(&tags(&before) - &tags(&after));
                if how == How::Replace {
                    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                    client.setattr(&ROOT, id, Some(handle), empty).await?;
                }
                client.write(&ROOT, id, plain, offset as u64, bytes).await?;
                let there = read_open(client, id, plain).await?;
                if there != after {
                    self.fail(format!(
                        "{path} has {} bytes {:?} instead of {} {:?}",
                        there.len(),
                        tags(&there),
                        after.len(),
                        tags(&after)
                    ));
                }
                Ok(())
            };
            let written = written.await;
            close(client, id, plain).await?;
            written
        };
        let written = written.await;
        close(client, id, handle).await?;
        written?;
        self.written(tag, path);
        Ok(())
    }

    async fn truncate(&self, path: &str, size: u64) -> Result<(), FsError> {
        let client = &self.client;
        let id = find(client, path).await?;
        let flags = OpenFlags { read: true, write: true, append: true, ..OpenFlags::default() };
        let handle = client.open(&ROOT, id, flags).await?;
        let cut = async {
            client.write(&ROOT, id, handle, 0, b".").await?;
            let mut bytes = read_open(client, id, handle).await?;
            let before = tags(&bytes);
            bytes.truncate(size as usize);
            self.drop_tags(&before - &tags(&bytes));
            client.setattr(&ROOT, id, Some(handle), SetAttr { size: Some(size), ..SetAttr::default() }).await?;
            Ok(())
        };
        let cut = cut.await;
        close(client, id, handle).await?;
        cut
    }

    /// Has a file open for a while, ready to be changed all the time. If it changes the file, no
    /// tag comes or goes.
    async fn dawdle(&self, path: &str) -> Result<(), FsError> {
        let client = &self.client;
        let id = find(client, path).await?;
        let handle = client.open(&ROOT, id, OpenFlags { read: true, write: true, ..OpenFlags::default() }).await?;
        for _ in 0..4 {
            let what = self.mind.lock().random.below(5);
            let done = match what {
                0 => client.will_be_mapped(id, handle).await,
                1 => {
                    // The disk takes no file of this length.
                    let size = SetAttr { size: Some(FILE_LEN_MAX + 1), ..SetAttr::default() };
                    let open = self.mind.lock().random.chance(1, 2).then_some(handle);
                    client.setattr(&ROOT, id, open, size).await.map(drop)
                }
                2 => client.fsync(id, handle, false).await,
                3 => client.write(&ROOT, id, handle, 0, b"").await.map(drop),
                _ => client.append(&ROOT, id, handle, b".").await.map(drop),
            };
            self.say(format!("about to change {path}: {what} {done:?}"));
            self.pause(6000).await;
        }
        close(client, id, handle).await
    }

    /// Adds a line to the client's own list.
    async fn append_line(&self, tag: &str) {
        let client = &self.client;
        let (path, line, known, maybe) = {
            let mind = self.mind.lock();
            (format!("/log-{}", mind.number), format!("line {}\n", &tag[1..]), mind.lines.clone(), mind.line.clone())
        };
        self.say(format!("adds {line:?} …"));
        let done = async {
            if let Some(maybe) = maybe {
                // Finds out whether the last line was written.
                let there = match find(client, &path).await {
                    Ok(id) => read_all(client, id).await?,
                    Err(FsError::NotFound) => Vec::new(),
                    Err(error) => return Err(error),
                };
                if !there.starts_with(known.as_bytes()) {
                    self.fail(format!("{path} has lost lines: {:?}", String::from_utf8_lossy(&there)));
                }
                if there == (known.clone() + &maybe).into_bytes() {
                    self.mind.lock().lines += &maybe;
                } else if there.len() > known.len() {
                    perform(client, &Op::Truncate(path.clone(), known.len() as u64)).await?;
                }
                self.mind.lock().line = None;
            }
            self.mind.lock().line = Some(line.clone());
            perform(client, &Op::Write(path.clone(), How::Append, line.clone().into_bytes())).await?;
            client.sync().await?;
            let mut mind = self.mind.lock();
            mind.line = None;
            mind.lines += &line;
            Ok(())
        };
        let done = done.await;
        self.say(format!("… {done:?}"));
        if done.is_err_and(|error| !matches!(error, FsError::TimedOut | FsError::NoSpace)) {
            self.fail(format!("adding to {path}: {done:?}"));
        }
    }
}

impl Storm {
    /// The tags in files that caches keep: a copy for a conflict may meet another conflict, and its
    /// contents then stay in the cache for the user.
    fn tags_in_caches(&self) -> Result<BTreeSet<String>, String> {
        let mut all = BTreeSet::new();
        for laptop in &self.laptops {
            let (machine, client) = laptop.running.as_ref().ok_or("a client is down")?;
            let disk = laptop.disk.mount(machine);
            let kept: Vec<u64> =
                client.look(|replica, _| replica.conflicts().map(|(_, conflict)| conflict.kept).collect());
            for number in kept.into_iter().filter(|number| *number > 0) {
                let read = async {
                    let file = disk.open(&roam::data_name(number), false).await?;
                    file.read_at(0, file.len().await? as usize).await
                };
                let bytes =
                    self.rig.sim.block_on(read).map_err(|error| format!("what is kept of a conflict: {error}"))?;
                all.extend(tags(&bytes));
            }
        }
        Ok(all)
    }

    pub fn check_tags(&mut self) -> Result<(), String> {
        // All crashes are over: what is there now is durable.
        self.laptops.iter().for_each(|laptop| laptop.mind.lock().is_durable(&mut self.ledger.lock()));
        let mut there = tags_of(&self.rig.fs);
        there.extend(self.tags_in_caches()?);
        let ledger = self.ledger.lock();
        for (tag, path) in &ledger.acked {
            if !there.contains(tag) && !ledger.dropped.contains(tag) {
                return Err(format!("{tag}, written to {path}, is lost"));
            }
        }
        self.outcome.tags = ledger.acked.len() as u64;
        self.outcome.dropped = ledger.dropped.len() as u64;
        for laptop in &self.laptops {
            let mind = laptop.mind.lock();
            let fs = &self.rig.fs;
            let found = self.rig.sim.block_on(async {
                let id = find(fs, &format!("/log-{}", mind.number)).await?;
                read_all(fs, id).await
            });
            let found = match found {
                Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Err(FsError::NotFound) => String::new(),
                Err(error) => return Err(format!("a list: {error}")),
            };
            let fits = match &mind.line {
                None => found == mind.lines,
                Some(_) => found.starts_with(&mind.lines),
            };
            if !fits {
                return Err(format!(
                    "client {} wrote {:?} and {:?}, and there is {found:?}",
                    mind.number, mind.lines, mind.line
                ));
            }
        }
        Ok(())
    }
}

/// The words of the form `<who-number>`.
fn tags(bytes: &[u8]) -> BTreeSet<String> {
    let starts = (0..bytes.len()).filter(|at| bytes[*at] == b'<');
    let words = starts.filter_map(|at| {
        let len = bytes[at..].iter().take(12).position(|byte| *byte == b'>')?;
        String::from_utf8(bytes[at..=at + len].to_vec()).ok()
    });
    words.filter(|word| word.contains('-')).collect()
}

pub fn tags_of(fs: &MemFs) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    // A file in the home's own folder is no version until it is in its place.
    let is_seen = |entry: &&TreeEntry| entry.attr.kind == Kind::File && !entry.path.starts_with(b"/.starling/");
    for entry in fs.dump().iter().filter(is_seen) {
        let read = OpenFlags { read: true, ..OpenFlags::default() };
        let Answer::Now(Ok(handle)) = fs.open(&ROOT, entry.attr.id, read) else { continue };
        if let Answer::Now(Ok(bytes)) = fs.read(entry.attr.id, handle, 0, 1 << 20) {
            all.extend(tags(&bytes));
        }
        drop(fs.release(entry.attr.id, handle, None));
    }
    all
}
