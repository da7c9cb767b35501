//! A project in C, always the same, and what users do with it: build it, edit and clean it, and the
//! Andrew benchmark (Howard et al., rewritten): make directories, copy, scan, read, build.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::random::Random;
use super::{Outcome, outcome};

const SOURCES_PER_DIR: u32 = 14;
const HEADERS_PER_UNIT: u32 = 8;
const FUNCTIONS_PER_SOURCE: u32 = 12;

/// The path of a source.
fn source_path(index: u32) -> String {
    format!("src/part-{:02}/source_{index:03}.c", index / SOURCES_PER_DIR)
}

fn header_path(index: u32) -> String {
    format!("include/header_{index:03}.h")
}

/// What a unit includes besides its own source: other sources, and headers.
fn parts_of(unit: u32, sources: u32, units: u32) -> impl Iterator<Item = u32> {
    (unit + units..sources).step_by(units as usize)
}

fn headers_of(unit: u32, headers: u32) -> impl Iterator<Item = u32> {
    (0..HEADERS_PER_UNIT.min(headers)).map(move |n| (unit * HEADERS_PER_UNIT + n) % headers)
}

/// Makes a project: this many sources and headers, and this many of the sources are compiled units.
/// A unit includes each of the others.
pub(super) fn make(dir: &Path, sources: u32, headers: u32, units: u32) -> Result<Outcome> {
    ensure!(
        (1..=sources).contains(&units) && headers > 0,
        "a project has units, and no more than sources, and headers"
    );
    let mut random = Random::new(1985);
    let write = |path: String, text: String| -> Result<()> {
        let path = dir.join(path);
        let parent = path.parent().context("a file in a folder")?;
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    // Writing to a String cannot fail.
    for index in 0..headers {
        let mut text = format!("#ifndef HEADER_{index}\n#define HEADER_{index}\n");
        for field in 0..30 {
            let _ = writeln!(text, "#define VALUE_{index}_{field} {} /* of {field} */", random.below(1 << 30));
        }
        write(header_path(index), text + "#endif\n")?;
    }
    for index in 0..sources {
        let mut text = String::new();
        if index < units {
            headers_of(index, headers).for_each(|header| {
                let _ = writeln!(text, "#include \"{}\"", header_path(header));
            });
            parts_of(index, sources, units).for_each(|part| {
                let _ = writeln!(text, "#include \"{}\"", source_path(part));
            });
        }
        for function in 0..FUNCTIONS_PER_SOURCE {
            let (a, b) = (random.below(1 << 20), random.below(1 << 20));
            let _ = writeln!(
                text,
                "/* Function {function} of source {index}: {a:x}{b:x}. */\nint f_{index}_{function}(int x, int \
                 y)\n{{\n    int sum = {a};\n    for (int i = 0; i < x % 17; i++)\n        sum += i * y ^ \
                 {b};\n    return sum;\n}}\n"
            );
        }
        if index == 0 {
            text += "int main(void)\n{\n    return f_0_0(1, 2) == 3;\n}\n";
        }
        write(source_path(index), text)?;
    }
    write("Makefile".into(), makefile(sources, headers, units))?;
    Ok(outcome([("files", f64::from(sources + headers + 1))]))
}

fn makefile(sources: u32, headers: u32, units: u32) -> String {
    let object = |unit| source_path(unit).replace(".c", ".o");
    let objects: Vec<String> = (0..units).map(object).collect();
    let mut text = format!(
        "OBJECTS = {}\nprogram: $(OBJECTS)\n\tcc -o $@ $(OBJECTS)\n%.o: %.c\n\tcc -c -I. -o $@ $<\nclean:\n\trm -f \
         program $(OBJECTS)\n",
        objects.join(" ")
    );
    for unit in 0..units {
        let needs = headers_of(unit, headers).map(header_path).chain(parts_of(unit, sources, units).map(source_path));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}: {}", object(unit), needs.collect::<Vec<_>>().join(" "));
    }
    text
}

fn run_make(dir: &Path, target: &str) -> Result<()> {
    let mut make = Command::new("make");
    // Without make's built-in rules, which look for files that no project has.
    make.args(["-r", "-s", "-C"]).arg(dir).arg(target).stdout(Stdio::null());
    let status = make.status().context("start make (is it installed?)")?;
    ensure!(status.success(), "make {target}: {status}");
    Ok(())
}

/// Builds a project: `seconds`.
pub(super) fn build(dir: &Path) -> Result<Outcome> {
    let started = Instant::now();
    run_make(dir, "program")?;
    Ok(outcome([("seconds", started.elapsed().as_secs_f64())]))
}

/// Removes what building made: `seconds`.
pub(super) fn clean(dir: &Path) -> Result<Outcome> {
    let started = Instant::now();
    run_make(dir, "clean")?;
    Ok(outcome([("seconds", started.elapsed().as_secs_f64())]))
}

/// Edits a source. The edited file replaces the former one, as with editors.
fn edit(dir: &Path, index: u32, remark: &str) -> Result<()> {
    let path = dir.join(source_path(index));
    let mut text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "/* {remark} */");
    let new = path.with_extension("new");
    fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
    fs::rename(&new, &path).with_context(|| format!("replace {}", path.display()))
}

/// Edits the first sources.
pub(super) fn edit_all(dir: &Path, sources: u32, remark: &str) -> Result<Outcome> {
    (0..sources).try_for_each(|index| edit(dir, index, remark))?;
    Ok(outcome([("files", f64::from(sources))]))
}

/// Edits some sources, builds and cleans, repeatedly: `seconds`.
pub(super) fn session(dir: &Path, rounds: u32, edits: u32) -> Result<Outcome> {
    let started = Instant::now();
    for round in 0..rounds {
        for index in round * edits..(round + 1) * edits {
            edit(dir, index, &format!("Edited in round {round}."))?;
        }
        run_make(dir, "program")?;
        run_make(dir, "clean")?;
    }
    Ok(outcome([("seconds", started.elapsed().as_secs_f64())]))
}

/// The Andrew benchmark: `make_dirs_s`, `copy_s`, `scan_s`, `read_s`, `build_s`, and `seconds` for
/// all of it.
pub(super) fn andrew(source: &Path, target: &Path) -> Result<Outcome> {
    let mut tree = Tree::default();
    tree.find(source, &PathBuf::new())?;
    let started = Instant::now();
    let mut times = vec![started];
    for dir in &tree.folders {
        let path = target.join(dir);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
    }
    times.push(Instant::now());
    for file in &tree.files {
        // Not by a copy within the file system: the benchmark's copy reads and writes.
        let text = fs::read(source.join(file)).with_context(|| format!("read {}", file.display()))?;
        fs::write(target.join(file), text).with_context(|| format!("write {}", file.display()))?;
    }
    times.push(Instant::now());
    let mut seen = Tree::default();
    seen.find(target, &PathBuf::new())?;
    ensure!(seen.files.len() == tree.files.len(), "{} of {} files were found", seen.files.len(), tree.files.len());
    times.push(Instant::now());
    for file in &seen.files {
        fs::read(target.join(file)).with_context(|| format!("read {}", file.display()))?;
    }
    times.push(Instant::now());
    run_make(target, "program")?;
    times.push(Instant::now());
    let names = ["make_dirs_s", "copy_s", "scan_s", "read_s", "build_s"];
    let phases =
        names.iter().zip(times.windows(2)).map(|(name, pair)| ((*name).to_owned(), (pair[1] - pair[0]).as_secs_f64()));
    let mut measured: Outcome = phases.collect();
    measured.insert("seconds".to_owned(), started.elapsed().as_secs_f64());
    Ok(measured)
}

/// Paths below a folder, as it is walked; the folder itself is the first one.
#[derive(Default)]
struct Tree {
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Tree {
    fn find(&mut self, root: &Path, below: &Path) -> Result<()> {
        self.folders.push(below.to_owned());
        let dir = root.join(below);
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let path = below.join(entry.with_context(|| format!("list {}", dir.display()))?.file_name());
            let kind = fs::symlink_metadata(root.join(&path)).with_context(|| format!("stat {}", path.display()))?;
            if kind.is_dir() { self.find(root, &path)? } else { self.files.push(path) }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_and_header_is_used_once_the_project_is_built() {
        let (sources, headers, units) = (357, 103, 168);
        let mut used = vec![false; sources as usize];
        let mut included = vec![false; headers as usize];
        for unit in 0..units {
            used[unit as usize] = true;
            parts_of(unit, sources, units).for_each(|part| used[part as usize] = true);
            headers_of(unit, headers).for_each(|header| included[header as usize] = true);
        }
        assert!(used.iter().chain(&included).all(|used| *used));
    }

    #[test]
    fn project_is_copied_built_edited_and_cleaned() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        make(&source, 5, 2, 3).unwrap();
        let measured = andrew(&source, &target).unwrap();
        assert_eq!(measured.len(), 6);
        assert!(target.join("program").exists());
        clean(&target).unwrap();
        assert!(!target.join("program").exists());
        session(&target, 2, 1).unwrap();
        let text = fs::read_to_string(target.join(source_path(1))).unwrap();
        assert!(text.contains("Edited in round 1"));
        assert!(make(&dir.path().join("x"), 1, 1, 2).is_err());
    }
}
