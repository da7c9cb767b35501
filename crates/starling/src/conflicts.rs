//! `starling conflicts`: shows and resolves conflicts.
//!
//! Resolving changes files of the mount, as a user would, so the result goes home like any other
//! change. Before it removes anything, it keeps both versions in the cache, for `undo`.
//!
//! `kept`: the versions that are kept of a conflict; `versions`: comparing and moving versions.

mod kept;
mod versions;

pub use kept::{BASE, CASE};

use crate::attributes::Meant;
use crate::control::{Request, ask};
use crate::hoarding::inside;
use crate::names::{get, shown};
use crate::roaming_status::age;
use crate::usage;
use anyhow::Context;
use kept::{Kept, Version, Versions, What, rename};
use roam::conflict::Deed;
use serde::Deserialize;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use versions::{Kind, Tree, kind, put};

/// How to resolve a conflict.
enum Choice<'a> {
    Mine,
    Theirs,
    Both,
    /// The output of this merge program.
    Merge(&'a str),
}

impl Choice<'_> {
    fn text(&self) -> &'static str {
        match self {
            Choice::Mine => "kept mine",
            Choice::Theirs => "kept theirs",
            Choice::Both => "kept both",
            Choice::Merge(_) => "merged",
        }
    }
}

/// One conflict. Paths are from the mount's root, unless they are [`PathBuf`]s.
struct Conflict {
    number: u64,
    /// The path of the home's version, and of the file in conflict.
    place: Vec<u8>,
    /// The path of this mount's version, if it exists.
    mine: Option<Vec<u8>>,
    /// This mount's version, if it is in the cache only.
    in_cache: Option<PathBuf>,
    base: Option<PathBuf>,
    /// The attributes that were to be set here.
    meant: Option<Meant>,
    /// For a rename to the place: the name here before, and the present name.
    renamed: Option<(Vec<u8>, Option<Vec<u8>>)>,
    /// The folder that keeps its versions when it is resolved.
    kept: PathBuf,
    about: Value,
}

impl Conflict {
    async fn find(mount: &Path, tree: &Tree, number: u64) -> anyhow::Result<Conflict> {
        let (all, kept) = of_volume(mount, number).await?;
        let about = all["conflicts"].as_array().into_iter().flatten().find(|one| one["number"] == number).cloned();
        let about =
            about.ok_or_else(|| usage(format!("there is no conflict {number}: see `starling conflicts list`")))?;
        let place = get(&about, "path").context("the conflict's path")?;
        let mine = match get(&about, "mine") {
            Some(mine) if kind(&tree.at(&mine)?)?.is_some() => Some(mine),
            _ => None,
        };
        let in_cache = |field: &str| get(&about, field).map(|path| PathBuf::from(std::ffi::OsString::from_vec(path)));
        Ok(Conflict {
            number,
            place,
            mine,
            // Contents that the home refused.
            in_cache: in_cache("kept"),
            base: in_cache("base"),
            meant: Option::<Meant>::deserialize(&about["meant"]).context("attributes")?,
            renamed: get(&about, "before").map(|before| (before, get(&about, "now"))),
            kept,
            about,
        })
    }

    /// True if the file at the place was removed here.
    fn is_removed(&self) -> bool {
        self.about["here"] == Deed::Remove.text()
    }

    /// A path for this mount's version if it has none of its own.
    fn beside(&self) -> Vec<u8> {
        [&self.place[..], format!(" (conflict {})", self.number).as_bytes()].concat()
    }

    /// The file with this mount's version, if there is one.
    fn mine(&self, tree: &Tree) -> anyhow::Result<Option<PathBuf>> {
        Ok(match &self.mine {
            Some(mine) => Some(tree.at(mine)?),
            None => self.in_cache.clone(),
        })
    }
}

/// All conflicts of the volume that a path leads to, and the folder that keeps the versions of
/// conflict `number` when it is resolved.
async fn of_volume(path: &Path, number: u64) -> anyhow::Result<(Value, PathBuf)> {
    let all = ask(path, Request::Conflicts { path: inside(path)? }, |_| {}).await?;
    let Some(resolved) = get(&all, "resolved") else {
        return Err(usage(format!(
            "several volumes are mounted at {}: give a path in the volume that has conflict {number}",
            path.display()
        )));
    };
    let kept = Path::new(OsStr::from_bytes(&resolved)).join(number.to_string());
    Ok((all, kept))
}

async fn settle(mount: &Path, number: u64) -> anyhow::Result<()> {
    ask(mount, Request::Settle { path: inside(mount)?, number }, |_| {}).await.map(drop)
}

/// `starling conflicts list`.
pub async fn list(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let all = ask(path, Request::Conflicts { path: inside(path)? }, |_| {}).await?;
    let all = &all["conflicts"];
    if as_json {
        println!("{}", serde_json::to_string_pretty(all)?);
        return Ok(ExitCode::SUCCESS);
    }
    let all = all.as_array().cloned().unwrap_or_default();
    if all.is_empty() {
        println!("no conflicts");
    }
    all.iter().for_each(|one| println!("{}", line(one)));
    Ok(ExitCode::SUCCESS)
}

fn line(one: &Value) -> String {
    let text = |field: &str| one[field].as_str().unwrap_or("?").to_string();
    let path = |field: &str| get(one, field).map(|path| shown(OsStr::from_bytes(&path)));
    let meant = Option::<Meant>::deserialize(&one["meant"]).ok().flatten();
    let mine = path("mine").or_else(|| meant.map(|meant| meant.text()));
    let mine = mine.map(|mine| format!("; this mount's version: {mine}")).unwrap_or_default();
    let before = path("before").map(|before| format!(", {before} before")).unwrap_or_default();
    format!(
        "{:>4}  {}{before}: {} here {} ago, {}{mine}",
        one["number"].as_u64().unwrap_or(0),
        path("path").unwrap_or_default(),
        text("here"),
        age(&one["age_s"]),
        text("why")
    )
}

/// `starling conflicts show`.
pub async fn show(mount: &Path, number: u64) -> anyhow::Result<ExitCode> {
    let tree = Tree::of(mount)?;
    let conflict = Conflict::find(mount, &tree, number).await?;
    println!("{}", line(&conflict.about));
    let place = tree.at(&conflict.place)?;
    if let Some(meant) = &conflict.meant {
        println!("mine    {}", meant.text());
        match meant.now(&place) {
            Ok(now) => println!("theirs  {}", now.text()),
            Err(e) => println!("theirs  ({e:#})"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let at = |path: &Option<PathBuf>| path.as_ref().map_or("(none)".into(), shown);
    let theirs = kind(&place)?.is_some().then(|| place.clone());
    let mine = conflict.mine(&tree)?;
    if let (Some((before, now)), None) = (&conflict.renamed, &mine) {
        let now = now.as_ref().map(|now| tree.at(now)).transpose()?;
        println!("before  {}", shown(tree.at(before)?));
        println!("mine    {}", shown(&place));
        println!("theirs  {}", at(&now));
        if theirs.is_some() {
            println!("in the way of mine is something else: {}", shown(&place));
        }
        return Ok(ExitCode::SUCCESS);
    }
    println!("theirs  {}", at(&theirs));
    println!("mine    {}", at(&mine));
    println!("base    {}", at(&conflict.base));
    for (version, name) in [(&mine, "mine"), (&theirs, "theirs")] {
        if let (Some(version), Some(base)) = (version, &conflict.base) {
            println!("\nwhat {name} has changed:");
            let mut diff = Command::new("diff");
            let said = diff.args(["-u", "--label", "base", "--label", name]).arg(base).arg(version).status();
            said.context("run diff, which shows differences")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `starling conflicts resolve`.
pub async fn resolve(mount: &Path, number: u64, which: Option<&str>, merge: Option<&str>) -> anyhow::Result<ExitCode> {
    let choice = match (which, merge) {
        (Some("mine"), _) => Choice::Mine,
        (Some("theirs"), _) => Choice::Theirs,
        (None, Some(program)) => Choice::Merge(program),
        _ => Choice::Both,
    };
    let tree = Tree::of(mount)?;
    let conflict = Conflict::find(mount, &tree, number).await?;
    let place = tree.at(&conflict.place)?;
    let (is_undoable, stays) = match (&conflict.meant, &conflict.renamed, &choice) {
        (Some(meant), ..) => (set_attributes(&tree, &conflict, meant, &choice)?, String::new()),
        (None, Some((_, now)), Choice::Mine) if conflict.mine(&tree)?.is_none() => {
            (set_name(&tree, &conflict, now.as_deref())?, String::new())
        }
        _ => set_contents(&tree, &conflict, &choice)?,
    };
    settle(mount, number).await?;
    let undo = match is_undoable {
        true => format!("; `starling conflicts undo {} {number}` takes that back", mount.display()),
        false => String::new(),
    };
    println!("{}: {}{stays}{undo}", shown(place), choice.text());
    Ok(ExitCode::SUCCESS)
}

/// Puts the chosen version at the place, and removes this mount's version beside it. Returns
/// whether that can be undone, and a message about anything that stays as it was.
fn set_contents(tree: &Tree, conflict: &Conflict, choice: &Choice) -> anyhow::Result<(bool, String)> {
    // If resolving was interrupted before, `undo` must bring back the state before that.
    let begun = match Kept::open(&conflict.kept, tree)? {
        Some(mut kept) if !matches!(kept.what, What::Contents(_)) => {
            kept.restore()?;
            kept.forget()?;
            None
        }
        Some(kept) if !kept.is_untouched()? => Some(kept),
        _ => None,
    };
    let kept = match (begun, choice) {
        (Some(mut begun), Choice::Both) => {
            begun.restore()?;
            begun.forget()?;
            return Ok((false, String::new()));
        }
        (Some(begun), _) => Some(begun),
        (None, Choice::Both) => {
            keep_both(tree, conflict)?;
            None
        }
        (None, _) => keep_versions(tree, conflict, choice)?,
    };
    // Nothing was removed, so there is nothing to undo.
    let Some(mut kept) = kept else { return Ok((false, String::new())) };
    let version = match choice {
        Choice::Mine => Version::Mine,
        Choice::Theirs | Choice::Both => Version::Theirs,
        Choice::Merge(program) => {
            kept.merge(program)?;
            Version::Merged
        }
    };
    kept.bring(version)?;
    let rights = kept.rights_of_mine().filter(|_| version != Version::Theirs);
    let rights = rights.map(|rights| format!("; its rights stay the home's, without this mount's {rights}"));
    let changed = kept.remove_mine()?.map(|mine| format!("; {} was changed since, and stays", shown(mine)));
    Ok((true, rights.into_iter().chain(changed).collect()))
}

/// Puts a version that is only in the cache at a place where users see it.
fn keep_both(tree: &Tree, conflict: &Conflict) -> anyhow::Result<()> {
    let (None, Some(mine)) = (&conflict.mine, &conflict.in_cache) else { return Ok(()) };
    let place = tree.at(&conflict.place)?;
    let to = if kind(&place)?.is_some() { tree.at(&conflict.beside())? } else { place };
    match kind(&to)? {
        Some(_) => Err(usage(format!("{} is there: move it away first", shown(to)))),
        None => put(mine, &[], &to),
    }
}

/// Keeps both versions, if the choice removes one.
fn keep_versions<'a>(tree: &'a Tree, conflict: &Conflict, choice: &Choice) -> anyhow::Result<Option<Kept<'a>>> {
    let (number, place) = (conflict.number, tree.at(&conflict.place)?);
    let (theirs, mine) = (kind(&place)?, conflict.mine(tree)?);
    let by_hand = |what: &Path, how: &str| usage(format!("{} is a directory: {how}", shown(what)));
    let mine = match (mine, choice) {
        (Some(mine), Choice::Mine | Choice::Merge(_)) if theirs == Some(Kind::Directory) => {
            let how = format!("move it away, then resolve as mine; or move {} and resolve as theirs", shown(mine));
            return Err(by_hand(&place, &how));
        }
        (Some(mine), _) if kind(&mine)? == Some(Kind::Directory) => {
            let how = "move the files that you want to keep, then resolve as both";
            return Err(by_hand(&mine, how));
        }
        (Some(mine), _) => Some((mine, conflict.mine.clone().unwrap_or_else(|| conflict.beside()))),
        (None, Choice::Mine) if conflict.is_removed() => match theirs {
            None => return Ok(None),
            Some(Kind::Directory) => return Err(by_hand(&place, "remove it yourself, then resolve as theirs")),
            Some(_) => None,
        },
        (None, Choice::Mine) => {
            return Err(usage(format!(
                "this mount's version of conflict {number} is gone: it was moved or removed, or never existed; resolve it as theirs"
            )));
        }
        (None, Choice::Merge(_)) => {
            return Err(usage(format!("there is only one version of conflict {number}: nothing to merge")));
        }
        (None, _) => return Ok(None),
    };
    let mine = mine.as_ref().map(|(path, back)| (&**path, back.clone()));
    let is_beside = conflict.mine.is_some();
    let versions = Versions { place: &conflict.place, mine, is_beside, base: conflict.base.as_deref() };
    Kept::make_of(&conflict.kept, tree, versions).map(Some)
}

/// Gives a file that was renamed on both sides its name here.
fn set_name(tree: &Tree, conflict: &Conflict, now: Option<&[u8]>) -> anyhow::Result<bool> {
    let place = tree.at(&conflict.place)?;
    let before = now.ok_or_else(|| usage(format!("{}: the renamed file is gone; resolve as theirs", shown(&place))))?;
    if conflict.place == before {
        return Ok(Kept::open(&conflict.kept, tree)?.is_some());
    }
    let at = tree.at(before)?;
    match kind(&place)?.is_some() && kind(&at)?.is_some() {
        true => Err(usage(format!("{} is there: move it away first, or resolve as theirs", shown(place)))),
        false => {
            Kept::make(&conflict.kept, tree, What::Name { place: conflict.place.clone(), before: before.to_vec() })?;
            rename(&at, &place)?;
            Ok(true)
        }
    }
}

/// Sets the chosen attributes. The file has the home's already.
fn set_attributes(tree: &Tree, conflict: &Conflict, meant: &Meant, choice: &Choice) -> anyhow::Result<bool> {
    let place = tree.at(&conflict.place)?;
    let before = match choice {
        Choice::Mine => Some(meant.now(&place)?),
        Choice::Theirs => None,
        _ => {
            let number = conflict.number;
            return Err(usage(format!("conflict {number} is of attributes: resolve it as mine or theirs")));
        }
    };
    // If resolving was interrupted before, `undo` must bring back the state before that.
    let begun = Kept::open(&conflict.kept, tree)?.map(|kept| kept.what);
    if !matches!(begun, Some(What::Attributes { before: Some(_), .. })) {
        Kept::make(&conflict.kept, tree, What::Attributes { place: conflict.place.clone(), before })?;
    }
    if matches!(choice, Choice::Mine) {
        meant.set(&place)?;
    }
    Ok(true)
}

/// `starling conflicts undo`.
pub async fn undo(mount: &Path, number: u64) -> anyhow::Result<ExitCode> {
    let (tree, (_, folder)) = (Tree::of(mount)?, of_volume(mount, number).await?);
    let kept = Kept::open(&folder, &tree)?;
    let mut kept = kept.ok_or_else(|| usage(format!("nothing was taken away to resolve conflict {number}")))?;
    let done = kept.restore()?;
    let mine = match &kept.what {
        What::Contents(contents) => contents.mine.clone(),
        _ => None,
    };
    let name = mine.and_then(|mine| Some(Path::new(OsStr::from_bytes(&mine)).file_name()?.as_bytes().to_vec()));
    ask(mount, Request::Reopen { path: inside(mount)?, number, mine: name }, |_| {}).await?;
    kept.forget()?;
    println!("{done}; the conflict is there again: resolve it another way");
    Ok(ExitCode::SUCCESS)
}
