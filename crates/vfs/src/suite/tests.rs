use super::*;
use crate::mem::{MemFs, TimeSource};
use parking_lot::Mutex;
use std::task::{Context, Poll, Waker};

/// A time source that is a microsecond later at each look.
fn ticking() -> TimeSource {
    let time = Mutex::new(Time { sec: 1_700_000_000, nsec: 0 });
    Arc::new(move || {
        let mut time = time.lock();
        time.nsec += 1000;
        time.sec += i64::from(time.nsec / 1_000_000_000);
        time.nsec %= 1_000_000_000;
        *time
    })
}

/// Runs a check; nothing it awaits may need another task.
fn run(check: Check, block_size: u32) {
    run_on(check, Arc::new(MemFs::with_block_size(ticking(), block_size)));
}

fn run_on(check: Check, fs: Arc<dyn FileSystem>) {
    let mut future = check(fs);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(()) => {}
        Poll::Pending => panic!("waits for ever"),
    }
}

#[test]
fn mem_fs_passes_every_check_at_every_block_size() {
    for (name, check) in all() {
        for block_size in [4096, 65_536, 1 << 20] {
            let result = std::panic::catch_unwind(|| run(check, block_size));
            assert!(result.is_ok(), "{name} fails with blocks of {block_size}");
        }
    }
}

/// The checks that fail if each operation goes to another of these file systems.
fn failing_in_turn(systems: impl Fn() -> Vec<MemFs>, turn: TurnOrder) -> Vec<&'static str> {
    let fails = |check| {
        let clients = systems().into_iter().map(|fs| Arc::new(fs) as Arc<dyn FileSystem>).collect();
        let run = || run_on(check, Arc::new(Turns::new(clients, turn)));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
    };
    all().into_iter().filter(|(_, check)| fails(*check)).map(|(name, _)| name).collect()
}

#[test]
fn turns_of_one_file_system_pass_every_check_and_of_different_ones_hardly_any() {
    let one = || {
        let fs = MemFs::new(ticking());
        vec![fs.clone(), fs.clone(), fs]
    };
    let two = || vec![MemFs::new(ticking()), MemFs::new(ticking())];
    for turn in [TurnOrder::Next, TurnOrder::ChangesApart] {
        assert_eq!(failing_in_turn(one, turn), Vec::<&str>::new(), "{turn:?}");
        assert!(failing_in_turn(two, turn).len() > all().len() * 9 / 10, "{turn:?}");
    }
}

#[test]
fn names_of_checks_differ() {
    let names: std::collections::BTreeSet<_> = all().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), all().len());
}

const PAGE: &str = include_str!("../../../../docs/semantics.md");
/// The folder of all crates.
const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A paragraph of a chapter that is neither promise nor quotation; the page may have none.
struct Stray<'a>(&'a str);

/// The promises of a chapter: each list item, with the tests named in the brackets at its end.
fn promises(chapter: &str) -> Result<Vec<(String, Vec<String>)>, Stray<'_>> {
    let mut items: Vec<String> = Vec::new();
    let mut in_item = false;
    for line in chapter.lines().skip(1) {
        if let Some(start) = line.strip_prefix("- ") {
            items.push(start.to_string());
            in_item = true;
        } else if in_item && line.starts_with("  ") {
            let item = items.last_mut().unwrap();
            item.push(' ');
            item.push_str(line.trim());
        } else if line.is_empty() || line.starts_with("> ") {
            in_item = false;
        } else {
            return Err(Stray(line));
        }
    }
    let tests_of = |item: &str| {
        let named = item.strip_suffix(')').and_then(|item| item.rsplit_once('(')).map_or("", |(_, named)| named);
        let name = |n: &str| Some(n.strip_prefix('`')?.strip_suffix('`')?.to_string());
        named.split(", ").map(name).collect::<Option<_>>().unwrap_or_default()
    };
    Ok(items.into_iter().map(|item| (item.clone(), tests_of(&item))).collect())
}

/// The page's chapters, each from its heading on.
fn chapters() -> Vec<&'static str> {
    PAGE.split("\n## ").skip(1).collect()
}

/// True if a file of a crate has a test of this name.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let function = format!("fn {name}(");
    (0..lines.len()).filter(|&at| lines[at].starts_with(&function)).any(|at| {
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.into_iter().any(|line| *line == "#[test]")
    })
}

/// True if `crate::file::test` names a test.
#[expect(clippy::disallowed_methods, reason = "the test reads sources")]
fn exists(path: &str) -> bool {
    let mut parts: Vec<&str> = path.split("::").collect();
    let name = parts.pop().unwrap();
    let (package, file) = (parts.remove(0).replace('_', "-"), parts.join("/"));
    ["tests", "src"].iter().flat_map(|folder| [format!("{folder}/{file}.rs"), format!("{folder}/{file}/mod.rs")]).any(
        |file| {
            std::fs::read_to_string(format!("{CRATES}/{package}/{file}")).is_ok_and(|source| has_test(&source, name))
        },
    )
}

#[test]
fn every_promise_of_the_semantics_page_names_tests_that_there_are() {
    let checks: Vec<&str> = all().into_iter().map(|(name, _)| name).collect();
    for chapter in chapters() {
        let title = chapter.lines().next().unwrap();
        let promises = promises(chapter)
            .unwrap_or_else(|Stray(line)| panic!("{title}: neither an item of a list nor quoted with >: {line}"));
        assert!(!promises.is_empty(), "{title}: no promise");
        for (text, named) in promises {
            assert!(!named.is_empty(), "{title}: no test behind: {text}");
            for name in named {
                let known = if name.contains("::") { exists(&name) } else { checks.contains(&name.as_str()) };
                assert!(known, "{title}: there is no test {name}, named behind: {text}");
            }
        }
    }
}

#[test]
fn every_check_of_the_suite_is_named_by_the_semantics_page() {
    for (check, _) in all() {
        assert!(PAGE.contains(&format!("`{check}`")), "docs/semantics.md does not name the check {check}");
    }
}

#[test]
fn gaps_of_the_semantics_page_are_found() {
    fn counts(chapter: &str) -> Option<Vec<usize>> {
        Some(promises(chapter).ok()?.into_iter().map(|(_, named)| named.len()).collect())
    }
    let text = "T\n\n- one (`a`)\n- two\n  lines. (`b`, `c::d::e`)\n\n> why\n\n- none\n- (EIO)\n- some (`a`, see b)\n";
    assert_eq!(counts(text), Some(vec![1, 2, 0, 0, 0]));
    for stray in ["prose", "  prose", "* item", "### heading"] {
        assert_eq!(counts(&format!("T\n\n- one (`a`)\n\n{stray}\n")), None, "{stray}");
    }
    assert!(exists("vfs::suite::tests::gaps_of_the_semantics_page_are_found"));
    assert!(exists("striped_log::disk_format::the_header_is_as_documented"), "a crate with a dash");
    for wrong in
        ["vfs::suite::tests::chapters", "vfs::suite::tests::nothing", "vfs::nothing::nothing", "no::such::crate"]
    {
        assert!(!exists(wrong), "{wrong}");
    }
}
