//! `starling conflicts`: settling what two have changed at the same time.
//!
//! Everything is done to the files of the mount, as a user would, so that it goes home like any other change. Before anything is taken away, both
//! versions are copied to `resolved/VOLUME/NUMBER/` in the cache, where `undo` finds them.

use crate::attributes::Meant;
use crate::control::{Request, ask};
use crate::hoarding::{inside, mount_of};
use crate::private;
use crate::roaming::age;
use crate::usage;
use anyhow::Context;
use roam::conflict::Deed;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What is kept of a conflict that was resolved.
const MINE: &str = "mine";
const THEIRS: &str = "theirs";
/// Attributes that bring back what was, as JSON.
const ATTRIBUTES: &str = "attributes";
/// Where both were, a line each: the home's, and this mount's.
const PLACES: &str = "places";

/// One conflict, with paths that lead to its versions.
struct Conflict {
    place: PathBuf,
    mine: Option<PathBuf>,
    /// Mine is a file of the mount.
    is_beside: bool,
    base: Option<PathBuf>,
    /// Attributes that were to be set.
    meant: Option<Meant>,
    /// Where its versions are kept when it is resolved.
    kept: PathBuf,
    about: Value,
}

async fn find(mount: &Path, number: u64) -> anyhow::Result<Conflict> {
    let (root, _) = mount_of(mount)?;
    let (all, kept) = of_volume(mount, number).await?;
    let about = all["conflicts"].as_array().into_iter().flatten().find(|one| one["number"] == number).cloned();
    let about = about.ok_or_else(|| usage(format!("there is no conflict {number}: see `starling conflicts list`")))?;
    let path = |field: &str| about[field].as_str().map(|path| root.join(path));
    let base = about["base"].as_str().map(PathBuf::from);
    let place = path("path").context("the conflict's path")?;
    let mine = match path("mine") {
        Some(mine) if seen(&mine)? => Some(mine),
        _ => None,
    };
    // What the home refused is in the cache only.
    let mine = mine.or_else(|| about["kept"].as_str().map(PathBuf::from));
    let is_beside = about["mine"].is_string();
    let meant = Option::<Meant>::deserialize(&about["meant"]).context("attributes")?;
    Ok(Conflict { place, mine, is_beside, base, meant, kept, about })
}

/// All conflicts of the volume that a path leads to, and where versions of this one are kept when it is resolved.
async fn of_volume(path: &Path, number: u64) -> anyhow::Result<(Value, PathBuf)> {
    let all = ask(path, Request::Conflicts { path: inside(path)? }, |_| {}).await?;
    let Some(resolved) = all["resolved"].as_str() else {
        return Err(usage(format!(
            "several volumes are mounted at {}: give a path in the one whose conflict {number} is meant",
            path.display()
        )));
    };
    let kept = Path::new(resolved).join(number.to_string());
    Ok((all, kept))
}

/// True if there is something, false if there is nothing. What cannot be looked at now may be there.
fn seen(path: &Path) -> anyhow::Result<bool> {
    let looked = path.try_exists();
    looked.with_context(|| format!("{} cannot be seen now: nothing was done; try again later", path.display()))
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
    let meant = Option::<Meant>::deserialize(&one["meant"]).ok().flatten();
    let mine = one["mine"].as_str().map(str::to_string).or_else(|| meant.map(|meant| meant.text()));
    let mine = mine.map(|mine| format!("; this one's version: {mine}")).unwrap_or_default();
    format!(
        "{:>4}  {}: {} here {} ago, {}{mine}",
        one["number"].as_u64().unwrap_or(0),
        text("path"),
        text("here"),
        age(&one["age_s"]),
        text("why")
    )
}

/// `starling conflicts show`.
pub async fn show(mount: &Path, number: u64) -> anyhow::Result<ExitCode> {
    let conflict = find(mount, number).await?;
    println!("{}", line(&conflict.about));
    if let Some(meant) = &conflict.meant {
        println!("mine    {}", meant.text());
        match meant.now(&conflict.place) {
            Ok(now) => println!("theirs  {}", now.text()),
            Err(e) => println!("theirs  ({e:#})"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let shown = |path: &Option<PathBuf>| path.as_ref().map_or("(none)".into(), |path| path.display().to_string());
    println!("theirs  {}", conflict.place.display());
    println!("mine    {}", shown(&conflict.mine));
    println!("base    {}", shown(&conflict.base));
    let versions = [(&conflict.mine, "mine"), (&conflict.place.exists().then(|| conflict.place.clone()), "theirs")];
    for (version, name) in versions {
        if let (Some(version), Some(base)) = (version, &conflict.base) {
            println!("\nwhat {name} has changed:");
            let mut diff = Command::new("diff");
            let said = diff.args(["-u", "--label", "base", "--label", name]).arg(base).arg(version).status();
            said.context("run diff, which shows differences")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies a file, with its mode, durably.
fn keep(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(std::fs::File::open(to)?.sync_all()?)
}

/// Where versions were, when all of them are copied: from then on they can be brought back.
fn keep_places(kept: &Path, [theirs, mine]: [&Path; 2]) -> anyhow::Result<()> {
    let places = [theirs.as_os_str().as_encoded_bytes(), b"\n", mine.as_os_str().as_encoded_bytes()].concat();
    private::put(kept, PLACES, &places)?;
    // Its own name is new, too, as may be those of the folders above.
    Ok(kept.ancestors().skip(1).take(3).try_for_each(private::sync)?)
}

/// Where a version goes that has no place of its own.
fn beside(place: &Path, number: u64) -> PathBuf {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(format!(" (conflict {number})"));
    place.with_file_name(name)
}

/// Puts contents in a file's place, whole.
fn put(from: &Path, place: &Path) -> anyhow::Result<()> {
    let mut beside = place.as_os_str().to_owned();
    beside.push(".starling-new");
    keep(from, Path::new(&beside))?;
    std::fs::rename(&beside, place).with_context(|| format!("replace {}", place.display()))
}

/// `starling conflicts resolve`.
pub async fn resolve(mount: &Path, number: u64, which: Option<&str>, merge: Option<&str>) -> anyhow::Result<ExitCode> {
    let conflict = find(mount, number).await?;
    if let Some(meant) = conflict.meant.clone() {
        return resolve_attributes(mount, number, &conflict, &meant, which).await;
    }
    if which == Some("mine") && conflict.about["here"] == Deed::Remove.text() {
        return remove_theirs(mount, number, &conflict).await;
    }
    let Conflict { place, mine, is_beside, base, kept, .. } = conflict;
    let theirs = seen(&place)?;
    if which == Some("mine") && mine.is_none() {
        return Err(usage(format!(
            "this one's version of conflict {number} is not there: it was moved or removed, or there never was one; resolve it as theirs"
        )));
    }
    // Where nothing is taken away, nothing can be brought back.
    let mut undo = String::new();
    match (&mine, which) {
        (None, _) if merge.is_some() => {
            return Err(usage(format!("there is only one version of conflict {number}: nothing to merge")));
        }
        (None, _) => {}
        (Some(_), Some("both")) if is_beside => {}
        (Some(mine), Some("both")) => {
            let to = if theirs { beside(&place, number) } else { place.clone() };
            if theirs && seen(&to)? {
                return Err(usage(format!("{} is there: move it away first", to.display())));
            }
            put(mine, &to)?;
        }
        (Some(mine), _) => {
            if mine.is_dir() || place.is_dir() {
                return Err(usage(
                    "these are directories: move what is wanted from one to the other, then resolve it as both",
                ));
            }
            private::make(&kept)?;
            let taken = match merge {
                Some(program) => {
                    let before = kept.join(THEIRS);
                    let theirs = if before.exists() { &before } else { &place };
                    Some(merged(program, mine, base.as_deref(), theirs, &kept)?)
                }
                None => (which == Some("mine")).then(|| mine.clone()),
            };
            // If this was cut short before, what was then is what undoing brings back.
            if !kept.join(PLACES).exists() {
                keep(mine, &kept.join(MINE))?;
                if theirs {
                    keep(&place, &kept.join(THEIRS))?;
                }
                let back = if is_beside { mine.clone() } else { beside(&place, number) };
                keep_places(&kept, [&place, &back])?;
            }
            if let Some(taken) = taken {
                put(&taken, &place)?;
            }
            undo = format!("; `starling conflicts undo {} {number}` brings both back", mount.display());
            if is_beside {
                std::fs::remove_file(mine).with_context(|| format!("remove {}", mine.display()))?;
            }
        }
    }
    ask(mount, Request::Settle { path: inside(mount)?, number }, |_| {}).await?;
    let how = which.map_or("merged".to_string(), |which| format!("kept {which}"));
    println!("{}: {how}{undo}", place.display());
    Ok(ExitCode::SUCCESS)
}

/// The same of a file that was removed here: what the home has in its place goes, too.
async fn remove_theirs(mount: &Path, number: u64, conflict: &Conflict) -> anyhow::Result<ExitCode> {
    let Conflict { place, kept, .. } = conflict;
    let mut undo = String::new();
    if seen(place)? {
        if place.is_dir() {
            return Err(usage(format!(
                "{} is a directory: remove what is not wanted, then resolve it as theirs",
                place.display()
            )));
        }
        if !kept.join(PLACES).exists() {
            private::make(kept)?;
            keep(place, &kept.join(THEIRS))?;
            keep_places(kept, [place, Path::new("")])?;
        }
        std::fs::remove_file(place).with_context(|| format!("remove {}", place.display()))?;
        undo = format!("; `starling conflicts undo {} {number}` brings it back", mount.display());
    }
    ask(mount, Request::Settle { path: inside(mount)?, number }, |_| {}).await?;
    println!("{}: removed{undo}", place.display());
    Ok(ExitCode::SUCCESS)
}

/// The same of a conflict of attributes: theirs are those that the file has.
async fn resolve_attributes(
    mount: &Path,
    number: u64,
    conflict: &Conflict,
    meant: &Meant,
    which: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let Conflict { place, kept, .. } = conflict;
    let back = match which {
        Some("mine") => meant.now(place)?,
        Some("theirs") => meant.clone(),
        _ => return Err(usage(format!("conflict {number} is of attributes: resolve it as mine or theirs"))),
    };
    private::make(kept)?;
    private::put(kept, PLACES, place.as_os_str().as_encoded_bytes())?;
    // If this was cut short before, what was then is what undoing brings back.
    if !kept.join(ATTRIBUTES).exists() {
        private::put(kept, ATTRIBUTES, &serde_json::to_vec(&back)?)?;
    }
    kept.ancestors().skip(1).take(3).try_for_each(private::sync)?;
    if which == Some("mine") {
        meant.set(place)?;
    }
    ask(mount, Request::Settle { path: inside(mount)?, number }, |_| {}).await?;
    let (place, mount) = (place.display(), mount.display());
    println!("{place}: kept {}; `starling conflicts undo {mount} {number}` sets the others", which.unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

/// What a program makes of three versions.
fn merged(program: &str, mine: &Path, base: Option<&Path>, theirs: &Path, kept: &Path) -> anyhow::Result<PathBuf> {
    let base = base.ok_or_else(|| usage("what both versions were made of is not known: merge them by hand"))?;
    let mut words = program.split_whitespace();
    let name = words.next().ok_or_else(|| usage("--merge: name a program"))?;
    let output = kept.join("merged");
    let to = std::fs::File::create(&output)?;
    let mut command = Command::new(name);
    command.args(words).arg(mine).arg(base).arg(theirs).stdin(Stdio::null()).stdout(to);
    let status = command.status().map_err(|e| usage(format!("--merge {name}: {e}")))?;
    if !status.success() {
        return Err(usage(format!(
            "{name} could not merge them ({status}): both are as they were; merge them by hand"
        )));
    }
    Ok(output)
}

/// `starling conflicts undo`.
pub async fn undo(mount: &Path, number: u64) -> anyhow::Result<ExitCode> {
    let (_, kept) = of_volume(mount, number).await?;
    let places = std::fs::read(kept.join(PLACES))
        .map_err(|_| usage(format!("nothing was taken away to resolve conflict {number}")))?;
    let mut places = places.split(|byte| *byte == b'\n').map(|path| {
        use std::os::unix::ffi::OsStrExt;
        PathBuf::from(std::ffi::OsStr::from_bytes(path))
    });
    let place = places.next().context("a path")?;
    if let Ok(attributes) = std::fs::read(kept.join(ATTRIBUTES)) {
        let back: Meant = serde_json::from_slice(&attributes).context("attributes")?;
        back.set(&place)?;
        std::fs::remove_dir_all(&kept).with_context(|| format!("remove {}", kept.display()))?;
        println!("{} has now {}", place.display(), back.text());
        return Ok(ExitCode::SUCCESS);
    }
    let mine = places.next().context("a path")?;
    if !kept.join(MINE).exists() {
        if seen(&place)? {
            return Err(usage(format!("{} is there: move it away first", place.display())));
        }
        put(&kept.join(THEIRS), &place)?;
        std::fs::remove_dir_all(&kept).with_context(|| format!("remove {}", kept.display()))?;
        println!("{} is as it was at home", place.display());
        return Ok(ExitCode::SUCCESS);
    }
    // Where both are one place, the version of this mount had none.
    let mine = if mine == place { beside(&place, number) } else { mine };
    if seen(&mine)? {
        return Err(usage(format!("{} is there: move it away first", mine.display())));
    }
    put(&kept.join(MINE), &mine)?;
    let theirs = kept.join(THEIRS).exists();
    if theirs {
        put(&kept.join(THEIRS), &place)?;
    }
    std::fs::remove_dir_all(&kept).with_context(|| format!("remove {}", kept.display()))?;
    let here = mine.display();
    match theirs {
        true => println!("{} is as it was at home, and {here} has this mount's version", place.display()),
        false => println!("{here} has this mount's version, {} stays as it is", place.display()),
    }
    Ok(ExitCode::SUCCESS)
}
