//! The repository is as its documents say: imports between crates, links between documents, and a
//! kept corpus for each fuzz target.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names in a folder, which must exist.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// Files below a folder whose names end in `end`, without build output.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in names(folder) {
        let path = folder.join(&name);
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, end));
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
    found
}

/// The crates of the workspace that a manifest needs to run; those needed only for tests do not
/// count.
fn imports(manifest: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
    let lines = manifest.lines().skip_while(|line| line.trim() != "[dependencies]").skip(1);
    let names = lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| all.contains(*name)).map(str::to_owned).collect()
}

/// The table of ARCHITECTURE.md: crates and their imports, in its order.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let document = read(&root().join("ARCHITECTURE.md"));
    let (_, table) = document.split_once("<!-- crates:begin -->").expect("the table begins");
    let (table, _) = table.split_once("<!-- crates:end -->").expect("the table ends");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [name, _, imports] = cells[..] else { panic!("not three cells: {row}") };
        (quoted(name).concat(), quoted(imports).into_iter().collect())
    })
    .collect()
}

#[test]
fn crates_import_what_the_table_says_and_only_from_above() {
    let table = table();
    let all = names(&root().join("crates"));
    assert_eq!(table.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>(), all);
    let mut above = BTreeSet::new();
    for (name, stated) in table {
        let manifest = read(&root().join("crates").join(&name).join("Cargo.toml"));
        assert_eq!(imports(&manifest, &all), stated, "{name}");
        let below: Vec<&String> = stated.difference(&above).collect();
        assert!(below.is_empty(), "{name} imports {below:?}, which stand below it");
        above.insert(name);
    }
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn has_heading(document: &Path, heading: &str) -> bool {
    let text = read(document);
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == heading)
}

/// Link targets in a document that are files, each with its anchor if it has one.
fn links(text: &str) -> Vec<(String, Option<String>)> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let to_files = targets.filter(|target| !target.contains("://") && !target.contains(' '));
    to_files
        .map(|target| match target.split_once('#') {
            Some((file, anchor)) => (file.to_owned(), Some(anchor.to_owned())),
            None => (target.to_owned(), None),
        })
        .collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut count = 0;
    let documents: BTreeMap<PathBuf, String> =
        files(&root(), ".md").into_iter().map(|path| (path.clone(), read(&path))).collect();
    for (path, text) in &documents {
        for (file, heading) in links(text) {
            count += 1;
            let to = if file.is_empty() { path.clone() } else { path.parent().expect("a folder").join(&file) };
            assert!(to.exists(), "{}: there is no {file}", path.display());
            let is_there = heading.as_ref().is_none_or(|heading| has_heading(&to, heading));
            assert!(is_there, "{}: {file} has no heading for {heading:?}", path.display());
        }
    }
    assert!(count > 40, "{count} links were looked at");
}

#[test]
fn documents_that_the_code_cites_are_there() {
    let mut count = 0;
    for path in files(&root().join("crates"), ".rs") {
        let text = read(&path);
        for line in text.lines().filter(|line| line.trim_start().starts_with("//")) {
            for word in line.split([' ', '(', ')', '[', ']', '`', ',', '"', ';']) {
                let word = word.trim_end_matches(['.', ':']);
                let (cited, heading) =
                    word.split_once('#').map_or((word, None), |(file, heading)| (file, Some(heading)));
                if cited.ends_with(".md") && !cited.contains("://") {
                    count += 1;
                    assert!(root().join(cited).exists(), "{}: there is no {cited}", path.display());
                    let is_there = heading.is_none_or(|heading| has_heading(&root().join(cited), heading));
                    assert!(is_there, "{}: {cited} has no heading for {heading:?}", path.display());
                }
            }
        }
    }
    assert!(count > 10, "{count} citations were looked at");
}

/// True if `crate::file::test` names a test, in a file below `src` or `tests`.
fn is_test(path: &str) -> bool {
    let parts: Vec<&str> = path.split("::").collect();
    let [package, file @ .., name] = &parts[..] else { return false };
    let function = format!("fn {name}(");
    let folders = ["src", "tests"].map(|folder| root().join("crates").join(package.replace('_', "-")).join(folder));
    let sources = folders
        .iter()
        .flat_map(|folder| [folder.join(file.join("/") + ".rs"), folder.join(file.join("/")).join("mod.rs")]);
    let texts: Vec<String> = sources.filter_map(|source| fs::read_to_string(source).ok()).collect();
    texts.iter().any(|text| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.windows(2).any(|two| two[0] == "#[test]" && two[1].starts_with(&function))
    })
}

#[test]
fn code_and_tests_of_the_papers_page_are_there() {
    let page = read(&root().join("docs/papers.md"));
    let rows = page.lines().filter(|line| line.starts_with("| ")).filter(|line| line.contains('`'));
    let (mut places, mut tests) = (0, 0);
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [_, _, code, test, _] = cells[..] else { panic!("not five cells: {row}") };
        let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        for place in quoted(code).iter().filter(|place| place.contains('/')) {
            places += 1;
            assert!(root().join("crates").join(place).exists(), "there is no {place}: {row}");
        }
        for test in quoted(test).iter().filter(|test| test.contains("::")) {
            tests += 1;
            assert!(is_test(test), "there is no test {test}: {row}");
        }
    }
    assert!(places > 30 && tests > 20, "{places} places and {tests} tests were looked at");
}

#[test]
fn every_fuzz_target_has_a_corpus() {
    let fuzz = root().join("fuzz");
    let targets: BTreeSet<String> =
        names(&fuzz.join("fuzz_targets")).iter().map(|name| name.trim_end_matches(".rs").to_owned()).collect();
    assert_eq!(targets, names(&fuzz.join("corpus")));
    let manifest = read(&fuzz.join("Cargo.toml"));
    for target in targets {
        assert!(!names(&fuzz.join("corpus").join(&target)).is_empty(), "{target} has kept inputs");
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is in the manifest");
    }
}

/// A file that a document names by its crate, as in `roam/cache/fetch.rs`.
fn is_code_of_a_crate(path: &str) -> Option<bool> {
    let (name, rest) = path.split_once('/').filter(|(_, rest)| rest.ends_with(".rs"))?;
    let folder = root().join("crates").join(name.replace('_', "-"));
    folder.is_dir().then(|| folder.join(rest).is_file() || folder.join("src").join(rest).is_file())
}

#[test]
fn code_that_documents_name_is_there() {
    let mut count = 0;
    for document in files(&root().join("docs"), ".md") {
        for path in read(&document).split('`').skip(1).step_by(2) {
            if let Some(is_there) = is_code_of_a_crate(path.strip_prefix("crates/").unwrap_or(path)) {
                count += 1;
                assert!(is_there, "{} names {path}", document.display());
            }
        }
    }
    assert!(count > 100, "only {count} names were found");
}

/// Widest comment line, in characters with its indent: two files fit beside each other.
const COMMENT_WIDTH: usize = 100;

#[test]
fn comments_fit_the_width() {
    let mut wide = Vec::new();
    for file in files(&root().join("crates"), ".rs").into_iter().chain(files(&root().join("fuzz"), ".rs")) {
        let mut in_code = false;
        for (number, line) in read(&file).lines().enumerate() {
            let comment = line.trim_start();
            let Some(text) = comment.strip_prefix("//") else {
                in_code = false;
                continue;
            };
            in_code ^= text.trim_start_matches(['/', '!', ' ']).starts_with("```");
            let width = line.chars().count();
            if !in_code && width > COMMENT_WIDTH {
                wide.push(format!("{}:{}: {width} wide", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// Crates that act: they touch disks, networks, processes or the clock. All others decide, and act
/// through the traits of `host`.
const ACTING: [&str; 11] =
    ["bench", "consensus", "corpus", "fuse", "host", "link", "linkem", "localdir", "quic", "starling", "storage"];

#[test]
fn crates_that_decide_forbid_effects() {
    let forbidden = read(&root().join("clippy-pure.toml"));
    for name in names(&root().join("crates")) {
        let config = root().join("crates").join(&name).join("clippy.toml");
        let forbids = fs::read_to_string(config).is_ok_and(|config| config == forbidden);
        assert_eq!(forbids, !ACTING.contains(&name.as_str()), "{name}: clippy.toml is clippy-pure.toml, or it acts");
    }
}

/// The code of a file, without comments and without its unit tests.
fn code(file: &Path) -> String {
    let text = read(file);
    let (code, _) = text.split_once("#[cfg(test)]\nmod tests").unwrap_or((&text, ""));
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules of a crate that its code names by a path from the root of the crate, or from the
/// parent module: for each module, by its path.
fn module_imports(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let path_of = |file: &Path| {
        let inner = file.strip_prefix(source).expect("a file of the crate").with_extension("");
        let path = inner.to_string_lossy().replace('/', "::");
        path.strip_suffix("::mod").map(str::to_owned).unwrap_or(path)
    };
    let of_tests = |path: &String| path.split("::").any(|part| part.contains("test"));
    let files: Vec<(String, PathBuf)> = files(source, ".rs")
        .into_iter()
        .map(|file| (path_of(&file), file))
        .filter(|(path, _)| !of_tests(path) && path != "lib" && path != "main")
        .collect();
    let known: BTreeSet<&str> = files.iter().map(|(path, _)| &path[..]).collect();
    let module_of = |parts: &[&str]| {
        let longest = (1..=parts.len()).rev().map(|len| parts[..len].join("::"));
        longest.into_iter().find(|path| known.contains(&path[..]))
    };
    let named = |text: &str, word: &str, before: &[&str]| -> Vec<String> {
        let after = text.match_indices(word).map(|(at, _)| &text[at + word.len()..]);
        let paths = after.map(|rest| {
            let path: String = rest.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
            let parts: Vec<&str> = before.iter().copied().chain(path.split("::").filter(|p| !p.is_empty())).collect();
            module_of(&parts)
        });
        paths.flatten().collect()
    };
    let imports = |(path, file): &(String, PathBuf)| {
        let (text, parts) = (code(file), path.split("::").collect::<Vec<_>>());
        let mut found: BTreeSet<String> = named(&text, "crate::", &[]).into_iter().collect();
        found.extend(named(&text, "super::", &parts[..parts.len() - 1]));
        found.remove(path);
        (path.clone(), found)
    };
    files.iter().map(imports).collect()
}

/// Modules that are one thing in several files: the world runs tasks of its machines, and a machine
/// is a handle on its world; a simulated disk is reached through its mounts only. A client's and a
/// manager's tokens belong to the state that they protect.
const TOGETHER: [&str; 13] = [
    "client::core",
    "client::state",
    "client::tokens",
    "host::sim::disk",
    "host::sim::executor",
    "host::sim::machine",
    "host::sim::mount",
    "manager::api",
    "manager::apply",
    "manager::clients",
    "manager::server",
    "manager::state",
    "manager::token_table",
];

#[test]
fn modules_do_not_import_each_other_in_circles() {
    let mut circles = BTreeSet::new();
    for name in names(&root().join("crates")) {
        let imports = module_imports(&root().join("crates").join(&name).join("src"));
        for module in imports.keys() {
            let mut reached: BTreeSet<&String> = BTreeSet::new();
            let mut todo: Vec<&String> = imports[module].iter().collect();
            while let Some(next) = todo.pop() {
                if reached.insert(next) {
                    todo.extend(imports.get(next).into_iter().flatten());
                }
            }
            if reached.contains(module) {
                circles.insert(format!("{name}::{module}"));
            }
        }
    }
    let together: BTreeSet<String> = TOGETHER.into_iter().map(str::to_owned).collect();
    assert_eq!(circles, together, "modules that import each other, directly or by way of others");
}

#[test]
fn comments_say_something() {
    for file in files(&root().join("crates"), ".rs") {
        for (number, line) in read(&file).lines().enumerate() {
            let comment = line.trim_start().trim_start_matches(['/', '!', ' ']).to_lowercase();
            let is_empty = line.trim_start().starts_with("//") && comment.starts_with("see the module");
            assert!(!is_empty, "{}:{}: a comment says something of its own", file.display(), number + 1);
        }
    }
}

/// Crates that other crates do not build on: programs, studies, and worlds of tests. Their types
/// need not have names of their own.
const ON_TOP: [&str; 7] = ["bench", "corpus", "linkem", "starling", "studies", "trace", "world"];

/// Names that mean two public types, and why.
const SAME_NAMES: [(&str, &str); 1] =
    [("Client", "each half has one: `client::Client` of the core, `roam::Client` of the fringe")];

#[test]
fn a_name_means_one_public_type() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in names(&root().join("crates")) {
        if ON_TOP.contains(&&name[..]) {
            continue;
        }
        for file in files(&root().join("crates").join(&name).join("src"), ".rs") {
            if file.components().any(|part| part.as_os_str().to_string_lossy().contains("test")) {
                continue;
            }
            for line in code(&file).lines() {
                let mut words = line.strip_prefix("pub ").into_iter().flat_map(str::split_whitespace);
                if let Some("struct" | "enum" | "trait" | "type" | "union") = words.next()
                    && let Some(word) = words.next()
                {
                    let word: String = word.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    places.entry(word).or_default().insert(file.display().to_string());
                }
            }
        }
    }
    assert!(places.len() > 300, "only {} public types were found", places.len());
    for (name, reason) in SAME_NAMES {
        let places = places.remove(name).unwrap_or_default();
        assert!(places.len() > 1 && !reason.is_empty(), "{name} means one type: take it out of the list");
    }
    let same: Vec<_> = places.into_iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(same.is_empty(), "give each its noun, or a reason in the list: {same:#?}");
}
