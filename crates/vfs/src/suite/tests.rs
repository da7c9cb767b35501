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
