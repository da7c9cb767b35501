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
    let mut future = check(Arc::new(MemFs::with_block_size(ticking(), block_size)));
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

#[test]
fn names_of_checks_differ() {
    let names: std::collections::BTreeSet<_> = all().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), all().len());
}

/// The page's promises: each item of a list with the checks named in the brackets at its end.
fn promises() -> Vec<(String, Vec<String>)> {
    let page = include_str!("../../../../docs/semantics.md");
    let mut items: Vec<String> = Vec::new();
    let mut in_item = false;
    for line in page.lines() {
        if let Some(start) = line.strip_prefix("- ") {
            items.push(start.to_string());
            in_item = true;
        } else if in_item && line.starts_with("  ") {
            let item = items.last_mut().unwrap();
            item.push(' ');
            item.push_str(line.trim());
        } else {
            in_item = false;
        }
    }
    let checks_of = |item: &str| {
        let named = item.strip_suffix(')').and_then(|item| item.rsplit_once('(')).map_or("", |(_, named)| named);
        named.split(", ").filter_map(|n| n.strip_prefix('`')?.strip_suffix('`')).map(str::to_string).collect()
    };
    items.into_iter().map(|item| (item.clone(), checks_of(&item))).collect()
}

#[test]
fn every_promise_of_the_semantics_page_names_a_check_and_every_check_is_named() {
    let promises = promises();
    let checks: Vec<&str> = all().into_iter().map(|(name, _)| name).collect();
    for (text, named) in &promises {
        assert!(!named.is_empty(), "no check behind: {text}");
        for name in named {
            assert!(checks.contains(&name.as_str()), "there is no check {name}, named behind: {text}");
        }
    }
    for check in checks {
        let named = promises.iter().any(|(_, named)| named.iter().any(|n| n == check));
        assert!(named, "docs/semantics.md does not name the check {check}");
    }
}
