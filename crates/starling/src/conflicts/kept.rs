//! What is kept of a conflict that is resolved, so that this can be taken back: the folder
//! `resolved/VOLUME/NUMBER/` of the cache.
//!
//! [`ABOUT`] says what was done. Where contents were in conflict, `mine`, `theirs`, `base` and
//! `merged` are versions: one that is not there stands for nothing, a directory for any directory.
//! `trouble` is the conflict itself, as the process that serves the mount knows it.
//!
//! Must survive a crash at any point: [`ABOUT`] is written when both versions are durable, before
//! anything is taken away. A file's contents are replaced within it, which is not one step, so that
//! part of a version may be in its place after a crash; [`ABOUT`] says so before. Whoever resolves
//! or undoes then goes on with what is kept. What somebody else has put in the place since is not
//! replaced.

use super::versions::{Kind, Tree, is_same, keep, kind, put};
use crate::attributes::Meant;
use crate::names::shown;
use crate::{private, usage};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ABOUT: &str = "kept.json";
/// Version of what [`ABOUT`] has.
const FORMAT: u16 = 1;
/// What both versions were made of.
pub const BASE: &str = "base";
/// What the process that serves the mount knows of the conflict.
pub const TROUBLE: &str = "trouble";

/// A version of what is in a place.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// This mount's.
    Mine,
    /// The home's.
    Theirs,
    /// What was made of both.
    Merged,
}

impl Version {
    fn name(self) -> &'static str {
        match self {
            Version::Mine => "mine",
            Version::Theirs => "theirs",
            Version::Merged => "merged",
        }
    }
}

/// What was in conflict, and what was done about it. Paths are from the mount's root.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// What a file contains, or whether it is there.
    Contents(Contents),
    /// Attributes of a file.
    Attributes {
        /// The file.
        place: Vec<u8>,
        /// What they were before this mount's were set, if these were.
        before: Option<Meant>,
    },
    /// A name.
    Name {
        /// As this mount wants it.
        place: Vec<u8>,
        /// As it was at home.
        before: Vec<u8>,
    },
}

/// See [`What::Contents`].
#[derive(Serialize, Deserialize, Debug)]
pub struct Contents {
    /// Of the home's version.
    pub place: Vec<u8>,
    /// Where this mount's version was, or where it is put when it is brought back, if there is one.
    pub mine: Option<Vec<u8>>,
    /// What the files of both were like.
    mine_like: Vec<Meant>,
    theirs_like: Vec<Meant>,
    /// What is in the place,
    has: Version,
    /// and whether it is all there.
    is_whole: bool,
}

#[derive(Serialize, Deserialize)]
struct About {
    format: u16,
    what: What,
}

/// What is kept of a conflict.
pub struct Kept<'a> {
    folder: PathBuf,
    tree: &'a Tree,
    pub what: What,
}

impl<'a> Kept<'a> {
    /// What is kept in a folder, if anything is.
    pub fn open(folder: &Path, tree: &'a Tree) -> anyhow::Result<Option<Kept<'a>>> {
        let path = folder.join(ABOUT);
        let about: About = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| shown(&path))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| shown(&path)),
        };
        if about.format != FORMAT {
            return Err(usage(format!("{} is of another version of starling: use that one", shown(&path))));
        }
        Ok(Some(Kept { folder: folder.to_owned(), tree, what: about.what }))
    }

    /// Keeps what needs no versions.
    pub fn make(folder: &Path, tree: &'a Tree, what: What) -> anyhow::Result<Kept<'a>> {
        private::make(folder)?;
        let kept = Kept { folder: folder.to_owned(), tree, what };
        kept.save()?;
        // Its own name is new, too, as may be those of the folders above.
        kept.folder.ancestors().skip(1).take(3).try_for_each(private::sync)?;
        Ok(kept)
    }

    fn save(&self) -> anyhow::Result<()> {
        let what = serde_json::to_value(&self.what)?;
        let about = serde_json::to_vec_pretty(&serde_json::json!({ "format": FORMAT, "what": what }))?;
        Ok(private::put(&self.folder, ABOUT, &about)?)
    }

    /// Forgets what was kept, but for what both versions were made of, for whoever resolves the
    /// conflict again.
    pub fn forget(self) -> anyhow::Result<()> {
        forget(&self.folder)
    }
}

fn forget(folder: &Path) -> anyhow::Result<()> {
    let all = [Version::Mine, Version::Theirs, Version::Merged].map(Version::name);
    // Without the first, nothing is kept.
    for name in [ABOUT, TROUBLE].into_iter().chain(all) {
        let path = folder.join(name);
        let removed = match kind(&path)? {
            None => Ok(()),
            Some(Kind::Directory) => std::fs::remove_dir(&path),
            Some(_) => std::fs::remove_file(&path),
        };
        removed.with_context(|| shown(&path))?;
        if name == ABOUT {
            private::sync(folder)?;
        }
    }
    Ok(())
}

/// Versions of contents that are in conflict, as files.
pub struct Versions<'a> {
    pub place: &'a [u8],
    /// The file with this mount's, if there is one, and where that is when it was brought back.
    pub mine: Option<(&'a Path, Vec<u8>)>,
    /// That file is in the mount, and like users see it.
    pub is_beside: bool,
    pub base: Option<&'a Path>,
}

impl<'a> Kept<'a> {
    /// Keeps all versions, in place of what was kept there before.
    pub fn make_of(folder: &Path, tree: &'a Tree, versions: Versions<'_>) -> anyhow::Result<Kept<'a>> {
        let Versions { place, mine, is_beside, base } = versions;
        private::make(folder)?;
        forget(folder)?;
        let theirs = tree.at(place)?;
        let like = |path: &Path| match kind(path)? {
            None => Ok(Vec::new()),
            Some(_) => Meant::all_of(path),
        };
        let mut contents = Contents {
            place: place.to_vec(),
            mine: None,
            mine_like: Vec::new(),
            theirs_like: like(&theirs)?,
            has: Version::Theirs,
            is_whole: true,
        };
        keep(&theirs, &folder.join(Version::Theirs.name()))?;
        if let Some((mine, back)) = mine {
            contents.mine = Some(back);
            contents.mine_like = if is_beside { like(mine)? } else { Vec::new() };
            keep(mine, &folder.join(Version::Mine.name()))?;
        }
        let known = folder.join(BASE);
        if let Some(base) = base.filter(|base| *base != known) {
            keep(base, &known)?;
        }
        Kept::make(folder, tree, What::Contents(contents))
    }

    fn contents(&mut self) -> anyhow::Result<&mut Contents> {
        match &mut self.what {
            What::Contents(contents) => Ok(contents),
            _ => Err(anyhow::anyhow!("{} is of something else than contents", shown(&self.folder))),
        }
    }

    fn version(&self, version: Version) -> PathBuf {
        self.folder.join(version.name())
    }

    /// True if nothing has come of it yet, as far as this can be told, and it can be begun anew.
    pub fn is_untouched(&self) -> anyhow::Result<bool> {
        let What::Contents(Contents { mine, has: Version::Theirs, is_whole: true, .. }) = &self.what else {
            return Ok(false);
        };
        match mine {
            Some(mine) => Ok(kind(&self.tree.at(mine)?)?.is_some()),
            None => Ok(true),
        }
    }

    /// Makes the place have a version, unless it was given that before, or somebody has changed
    /// what is there.
    pub fn bring(&mut self, version: Version) -> anyhow::Result<()> {
        let (tree, wanted) = (self.tree, self.version(version));
        let (has, is_whole) = (self.contents()?.has, self.contents()?.is_whole);
        if (has, is_whole) == (version, true) {
            return Ok(());
        }
        let place = tree.at(&self.contents()?.place)?;
        if !is_same(&wanted, &place)? {
            if is_whole && kind(&place)?.is_some() && !is_same(&self.version(has), &place)? {
                return Err(usage(format!(
                    "{} was changed since: move it, or a copy of it, away first",
                    shown(&place)
                )));
            }
            self.say(version, false)?;
            let like = match version {
                Version::Mine => self.contents()?.mine_like.clone(),
                _ => self.contents()?.theirs_like.clone(),
            };
            put(&wanted, &like, &place)?;
        }
        self.say(version, true)
    }

    fn say(&mut self, has: Version, is_whole: bool) -> anyhow::Result<()> {
        let contents = self.contents()?;
        (contents.has, contents.is_whole) = (has, is_whole);
        self.save()
    }

    /// Rights of this mount's version that the file in the place, which stays what it is, has not.
    pub fn rights_of_mine(&self) -> Option<String> {
        let What::Contents(Contents { mine_like, theirs_like, .. }) = &self.what else { return None };
        let rights = mine_like.first()?.rights_unlike(theirs_like.first()?);
        Some(rights).filter(|rights| !rights.is_empty())
    }

    /// Removes this mount's version from where it is, if it is there. Gives the place if that was
    /// changed since, and stays.
    pub fn remove_mine(&mut self) -> anyhow::Result<Option<PathBuf>> {
        let tree = self.tree;
        let Some(mine) = self.contents()?.mine.clone() else { return Ok(None) };
        let mine = tree.at(&mine)?;
        if kind(&mine)?.is_none() {
            return Ok(None);
        }
        if !is_same(&mine, &self.version(Version::Mine))? {
            return Ok(Some(mine));
        }
        std::fs::remove_file(&mine).with_context(|| format!("remove {}", shown(&mine)))?;
        Ok(None)
    }

    /// Makes both places have what they had. Says what was done.
    pub fn restore(&mut self) -> anyhow::Result<String> {
        match &self.what {
            What::Contents(_) => self.restore_contents(),
            What::Attributes { place, before: Some(before) } => {
                let place = self.tree.at(place)?;
                before.set(&place)?;
                Ok(format!("{} has now {}", shown(&place), before.text()))
            }
            What::Attributes { place, before: None } => Ok(format!("{} stays as it is", shown(self.tree.at(place)?))),
            What::Name { place, before } => {
                let (place, before) = (self.tree.at(place)?, self.tree.at(before)?);
                rename(&place, &before)?;
                Ok(format!("{} is {} again", shown(&place), shown(&before)))
            }
        }
    }

    fn restore_contents(&mut self) -> anyhow::Result<String> {
        let tree = self.tree;
        let (place, mine) = (tree.at(&self.contents()?.place)?, self.contents()?.mine.clone());
        let mine = mine.map(|mine| tree.at(&mine)).transpose()?;
        if let Some(mine) = &mine
            && !is_same(mine, &self.version(Version::Mine))?
        {
            if kind(mine)?.is_some() {
                return Err(usage(format!("{} is there: move it away first", shown(mine))));
            }
            put(&self.version(Version::Mine), &self.contents()?.mine_like, mine)?;
        }
        let is_there = kind(&self.version(Version::Theirs))?.is_some();
        self.bring(Version::Theirs)?;
        let here = mine.map(|mine| format!("{} has this mount's version", shown(mine)));
        let there = is_there.then(|| format!("{} is as it was at home", shown(&place)));
        Ok([there, here].into_iter().flatten().collect::<Vec<_>>().join(", and "))
    }

    /// Has a program make one of both versions.
    pub fn merge(&self, program: &str) -> anyhow::Result<()> {
        let [mine, theirs, base] =
            [Version::Mine.name(), Version::Theirs.name(), BASE].map(|name| self.folder.join(name));
        if kind(&base)?.is_none() {
            return Err(usage("what both versions were made of is not known: merge them by hand"));
        }
        for version in [&mine, &theirs] {
            if kind(version)? != Some(Kind::File) {
                return Err(usage("there are no two files to merge: resolve it as mine or theirs"));
            }
        }
        let mut words = program.split_whitespace();
        let name = words.next().ok_or_else(|| usage("--merge: name a program"))?;
        let output = self.folder.join("merging");
        let to = std::fs::File::create(&output)?;
        let mut command = Command::new(name);
        command.args(words).args([&mine, &base, &theirs]).stdin(Stdio::null()).stdout(to.try_clone()?);
        let status = command.status().map_err(|e| usage(format!("--merge {name}: {e}")))?;
        if !status.success() {
            return Err(usage(format!(
                "{name} could not merge them ({status}): both are as they were; merge them by hand"
            )));
        }
        to.sync_all()?;
        std::fs::rename(&output, self.version(Version::Merged))?;
        Ok(private::sync(&self.folder)?)
    }
}

/// Gives what is at a place another name, unless it has that already.
pub fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    match (kind(from)?, kind(to)?) {
        (Some(_), None) => std::fs::rename(from, to).with_context(|| format!("{} to {}", shown(from), shown(to))),
        (None, Some(_)) => Ok(()),
        (None, None) => Err(usage(format!("{} is not there: it was moved or removed", shown(from)))),
        (Some(_), Some(_)) => Err(usage(format!("{} is there: move it away first", shown(to)))),
    }
}
