//! Clients that make the same directories: there is one of each, with all that any client has put
//! into it.

use crate::rig::session::{How, Op, close, find_as, parent_as, perform_as, read_all_as};
use crate::weather::Storm;
use crate::worker::Worker;
use host::SplitMix64;
use roam::conflict::{Conflict, Deed};
use roam_proto::message::{self, ConflictReason};
use types::{FileId, FsError};
use vfs::FileSystem;
use vfs::fs::{OpenFlags, RenameFlags};

impl Worker {
    pub async fn merging(&self) {
        let tag = self.next_tag();
        let (choice, dir, mine, inside) = {
            let mind = self.mind.lock();
            let ledger = self.ledger.lock();
            let prefix = format!("f{}-", mind.number);
            let mine: Vec<String> =
                ledger.own.keys().filter(|path| name_of(path).starts_with(&prefix)).cloned().collect();
            let mine = (!mine.is_empty()).then(|| mine[mind.random.below(mine.len() as u64) as usize].clone());
            (mind.random.below(16), shared_dir(&mind.random), mine, mind.inside.clone())
        };
        let new = format!("f{}", tag.trim_matches(|c| c == '<' || c == '>'));
        self.say(format!("{choice} in {dir}, of {mine:?}, inside {inside:?}, {new} …"));
        let done = match (choice, mine, inside) {
            (0..=3, ..) => self.make_dirs(&dir).await,
            (4..=6, ..) => match self.make_dirs(&dir).await {
                Ok(()) => self.write_own(&format!("{dir}/{new}"), &tag, None).await,
                Err(error) => Err(error),
            },
            (7, Some(from), _) => match self.make_dirs(&dir).await {
                Ok(()) => self.move_own(&from, Some(&format!("{dir}/{}", name_of(&from)))).await,
                Err(error) => Err(error),
            },
            (8, Some(path), _) => self.move_own(&path, None).await,
            (9, Some(path), _) if !self.is_read_only(&path) => self.write_own(&path, &tag, None).await,
            (10, Some(path), _) => self.read_own(&path).await,
            (11, ..) => match self.make_dirs(&dir).await {
                Ok(()) => self.share(format!("{dir}/link"), |path| Op::MakeSymlink(path, "target".into())).await,
                Err(error) => Err(error),
            },
            (12, ..) => match self.make_dirs(&dir).await {
                Ok(()) => perform_as(&self.cred, &self.client, &Op::SetMode(dir, [0o755, 0o700][tag.len() % 2])).await,
                Err(error) => Err(error),
            },
            (_, _, Some((id, dir))) => self.write_own(&format!("{dir}/{new}"), &tag, Some(id)).await,
            _ => match self.make_dirs(&dir).await {
                Ok(()) => {
                    find_as(&self.cred, &self.client, &dir).await.map(|id| self.mind.lock().inside = Some((id, dir)))
                }
                Err(error) => Err(error),
            },
        };
        self.say(format!("… {done:?}"));
        if done.is_err_and(|error| !matches!(error, FsError::TimedOut | FsError::NoSpace)) {
            self.fail(format!("{choice} gave {done:?}"));
        }
    }

    /// Makes something that other clients make, too.
    async fn share(&self, path: String, op: impl FnOnce(String) -> Op) -> Result<(), FsError> {
        self.ledger.lock().maybe_shared.insert(path.clone());
        match perform_as(&self.cred, &self.client, &op(path.clone())).await {
            Ok(()) | Err(FsError::Exists) => {
                self.ledger.lock().shared.insert(path);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn make_dirs(&self, path: &str) -> Result<(), FsError> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for end in ends {
            self.share(path[..end].to_string(), Op::MakeDir).await?;
        }
        Ok(())
    }

    /// Writes a file that no other client knows. Makes it if it is not there, perhaps in a
    /// directory by its id.
    async fn write_own(&self, path: &str, tag: &str, dir: Option<FileId>) -> Result<(), FsError> {
        let (client, cred) = (&self.client, &self.cred);
        self.doubt(path);
        let known = match dir {
            None => find_as(cred, client, path).await,
            Some(_) => Err(FsError::NotFound),
        };
        match known {
            Ok(_) => perform_as(cred, client, &Op::Write(path.into(), How::Replace, tag.into())).await?,
            Err(FsError::NotFound) => {
                let dir = match dir {
                    Some(dir) => dir,
                    None => parent_as(cred, client, path).await?.0,
                };
                let flags = OpenFlags { write: true, ..OpenFlags::default() };
                // The program that makes a read-only file can write to it.
                let mode = if self.is_read_only(path) { 0o444 } else { 0o644 };
                let (made, handle) = client.create(cred, dir, name_of(path).as_bytes(), mode, 0, flags).await?;
                let written = client.write(cred, made.attr.id, handle, 0, tag.as_bytes()).await;
                close(client, made.attr.id, handle).await?;
                written?;
            }
            Err(error) => return Err(error),
        }
        let mut ledger = self.ledger.lock();
        ledger.doubtful.remove(path);
        ledger.own.insert(path.into(), tag.into());
        Ok(())
    }

    fn is_read_only(&self, path: &str) -> bool {
        self.cred.uid != 0 && path.ends_with(['0', '2', '4', '6', '8'])
    }

    fn doubt(&self, path: &str) -> Option<String> {
        let mut ledger = self.ledger.lock();
        ledger.doubtful.insert(path.into());
        ledger.own.remove(path)
    }

    /// Moves or removes a file that no other client knows.
    async fn move_own(&self, from: &str, to: Option<&str>) -> Result<(), FsError> {
        if to == Some(from) {
            return Ok(());
        }
        let content = self.doubt(from);
        let op = match to {
            None => Op::Unlink(from.into()),
            Some(to) => {
                self.doubt(to);
                Op::Rename(from.into(), to.into(), RenameFlags::default())
            }
        };
        perform_as(&self.cred, &self.client, &op).await?;
        let mut ledger = self.ledger.lock();
        ledger.doubtful.remove(from);
        if let Some(to) = to {
            ledger.doubtful.remove(to);
            ledger.own.extend(content.map(|content| (to.to_string(), content)));
        }
        Ok(())
    }

    async fn read_own(&self, path: &str) -> Result<(), FsError> {
        let expected = self.ledger.lock().own.get(path).cloned();
        let found = read_all_as(&self.cred, &self.client, find_as(&self.cred, &self.client, path).await?).await?;
        if expected.as_deref().map(str::as_bytes) != Some(&found) {
            self.fail(format!("{path} has {:?} instead of {expected:?}", String::from_utf8_lossy(&found)));
        }
        Ok(())
    }
}

impl Storm {
    /// Another program makes a directory that all clients make, and a file of its own in it.
    pub fn outside_merging(&mut self) {
        let runs = self.rig.home.lock().as_ref().is_some_and(|home| home.machine.is_up());
        if runs && self.rig.paced {
            return;
        }
        let (dir, fs) = (shared_dir(&self.random), self.rig.fs.clone());
        let (path, content) = (format!("{dir}/o-{}", self.outside_count), format!("<o-{}>", self.outside_count));
        let ends = dir.match_indices('/').map(|(at, _)| at).skip(1).chain([dir.len()]);
        for end in ends {
            let made = self.rig.sim.block_on(perform_as(&self.user, &fs, &Op::MakeDir(dir[..end].into())));
            assert!(matches!(made, Ok(()) | Err(FsError::Exists)), "{made:?}");
            self.ledger.lock().shared.insert(dir[..end].into());
        }
        let write = Op::Write(path.clone(), How::Replace, content.clone().into());
        self.rig.sim.block_on(perform_as(&self.user, &fs, &write)).expect("another program");
        self.rig.sync();
        self.ledger.lock().own.insert(path.clone(), content);
        self.say(format!("others: {path}"));
        if let Some(home) = &*self.rig.home.lock() {
            home.tree.lose_events();
        }
    }

    /// Checks that everything that was made is there once, in its place, and nothing else is.
    pub fn check_merged(&self) -> Result<(), String> {
        let fs = &self.rig.fs;
        let ledger = self.ledger.lock();
        let known = |path: &str| {
            let shared = ledger.shared.contains(path) || ledger.maybe_shared.contains(path);
            shared || ledger.own.contains_key(path) || ledger.doubtful.contains(path)
        };
        let all = fs.dump();
        let paths = all.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
        let paths: Vec<String> = paths
            .filter(|path| !path.is_empty() && path != "/.starling" && path != "/quiet" && !path.starts_with("/quiet/"))
            .collect();
        if let Some(path) = paths.iter().find(|path| !known(path)) {
            return Err(format!("no client has made {path}"));
        }
        if let Some(path) = ledger.shared.iter().find(|path| !paths.contains(path)) {
            return Err(format!("{path} is not there"));
        }
        for (path, content) in &ledger.own {
            let found = self
                .rig
                .sim
                .block_on(async { read_all_as(&self.user, fs, find_as(&self.user, fs, path).await?).await });
            if found.as_deref() != Ok(content.as_bytes()) {
                return Err(format!("{path} has {found:?} instead of {content:?}"));
            }
        }
        for (number, laptop) in self.laptops.iter().enumerate() {
            let (_, client) = laptop.running.as_ref().ok_or("a client is down")?;
            // Several clients may have changed the mode of a directory.
            let of_modes = |conflict: &Conflict| {
                conflict.deed == Deed::Set && conflict.outcome == message::Outcome::Conflict(ConflictReason::Changed)
            };
            let conflicts = client.look(|replica, _| {
                replica.conflicts().filter(|(_, t)| !of_modes(t)).map(|(_, t)| format!("{t:?}")).collect::<Vec<_>>()
            });
            if !conflicts.is_empty() {
                return Err(format!("client {number} has conflicts: {conflicts:?}"));
            }
        }
        Ok(())
    }
}

fn name_of(path: &str) -> &str {
    crate::rig::session::split(path).1
}

/// A directory that every client may make.
fn shared_dir(random: &SplitMix64) -> String {
    let names = (0..=random.below(3)).map(|_| ["/a", "/a", "/b"][random.below(3) as usize]);
    names.collect()
}
