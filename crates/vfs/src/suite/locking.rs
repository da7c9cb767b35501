//! Advisory locks.

use super::*;
use crate::fs::{FileLock, LockSpace};
use std::task::{Context, Poll, Waker};
use types::{Answer, FsError};

fn range(owner: u64, exclusive: Option<bool>, start: u64, end: u64) -> FileLock {
    FileLock { space: LockSpace::Posix, owner: owner.into(), pid: owner as u32 + 1000, exclusive, start, end }
}

fn flock(owner: u64, exclusive: Option<bool>) -> FileLock {
    FileLock { space: LockSpace::Flock, owner: owner.into(), pid: 0, exclusive, start: 0, end: u64::MAX }
}

const SHARED: Option<bool> = Some(false);
const EXCLUSIVE: Option<bool> = Some(true);

/// A request that should wait, as a future.
fn waits(answer: Answer<()>) -> BoxFuture<Result<(), FsError>> {
    match answer {
        Answer::Later(future) => future,
        Answer::Now(result) => panic!("should wait, was {result:?}"),
    }
}

/// Polls the request as far as it can go, with all messages that this takes, and asserts that it
/// still waits.
async fn still_waits(t: &Ctx, future: &mut BoxFuture<Result<(), FsError>>) {
    let (id, h) = t.open_file("\x01pass the time").await;
    for _ in 0..3 {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Pending, "should wait");
        t.put(id, h, 0, b"x").await;
        ok!(t.fsync(id, h, false));
    }
    ok!(t.unlink(&SU, ROOT, b"\x01pass the time"));
    ok!(t.release(id, h, None));
}

pub(super) async fn byte_ranges_conflict(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    ok!(t.setlk(id, h, range(1, EXCLUSIVE, 10, 19), false));
    ok!(t.setlk(id, h, range(2, SHARED, 30, 39), false));
    ok!(t.setlk(id, h, range(3, SHARED, 35, 49), false));
    refuses!(t.setlk(id, h, range(2, SHARED, 0, 10), false), WouldBlock);
    refuses!(t.setlk(id, h, range(2, EXCLUSIVE, 19, 19), false), WouldBlock);
    refuses!(t.setlk(id, h, range(1, EXCLUSIVE, 0, u64::MAX), false), WouldBlock);
    refuses!(t.setlk(id, h, range(2, EXCLUSIVE, 38, 38), false), WouldBlock);
    ok!(t.setlk(id, h, range(2, EXCLUSIVE, 20, 34), false));
    let found = ok!(t.getlk(id, h, range(4, EXCLUSIVE, 0, u64::MAX)));
    assert_eq!(found, Some(range(1, EXCLUSIVE, 10, 19)));
    assert_eq!(ok!(t.getlk(id, h, range(4, SHARED, 36, 60))), None);
    assert_eq!(ok!(t.getlk(id, h, range(1, EXCLUSIVE, 0, 19))), None, "one's own");
    let other = t.file(ROOT, "other", b"").await;
    let ho = ok!(t.open(&SU, other, RW));
    ok!(t.setlk(other, ho, range(2, EXCLUSIVE, 10, 19), false));
    ok!(t.release(id, h, None));
    ok!(t.release(other, ho, None));
}

pub(super) async fn byte_ranges_split_and_merge(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    ok!(t.setlk(id, h, range(1, EXCLUSIVE, 0, 99), false));
    ok!(t.setlk(id, h, range(1, None, 40, 49), false));
    ok!(t.setlk(id, h, range(2, EXCLUSIVE, 40, 49), false));
    assert_eq!(ok!(t.getlk(id, h, range(3, SHARED, 0, 5))), Some(range(1, EXCLUSIVE, 0, 39)));
    assert_eq!(ok!(t.getlk(id, h, range(3, SHARED, 60, 60))), Some(range(1, EXCLUSIVE, 50, 99)));
    ok!(t.setlk(id, h, range(2, None, 0, u64::MAX), false));
    ok!(t.setlk(id, h, range(1, EXCLUSIVE, 40, 49), false));
    assert_eq!(ok!(t.getlk(id, h, range(3, SHARED, 99, 99))), Some(range(1, EXCLUSIVE, 0, 99)));
    ok!(t.setlk(id, h, range(1, SHARED, 50, u64::MAX), false));
    ok!(t.setlk(id, h, range(3, SHARED, 50, 60), false));
    refuses!(t.setlk(id, h, range(3, SHARED, 49, 49), false), WouldBlock);
    ok!(t.setlk(id, h, range(1, None, 0, u64::MAX), false));
    ok!(t.setlk(id, h, range(3, EXCLUSIVE, 0, u64::MAX), false));
    ok!(t.release(id, h, None));
}

pub(super) async fn flock_is_apart_from_byte_ranges(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let h2 = ok!(t.open(&SU, id, READ));
    ok!(t.setlk(id, h, range(1, EXCLUSIVE, 0, u64::MAX), false));
    ok!(t.setlk(id, h, flock(1, SHARED), false));
    ok!(t.setlk(id, h2, flock(2, SHARED), false));
    refuses!(t.setlk(id, h2, flock(2, EXCLUSIVE), false), WouldBlock);
    refuses!(t.setlk(id, h, flock(1, EXCLUSIVE), false), WouldBlock);
    refuses!(t.setlk(id, h, flock(3, EXCLUSIVE), false), WouldBlock);
    ok!(t.setlk(id, h, flock(1, None), false));
    ok!(t.setlk(id, h2, flock(2, EXCLUSIVE), false));
    refuses!(t.setlk(id, h, flock(1, SHARED), false), WouldBlock);
    assert_eq!(ok!(t.getlk(id, h, flock(1, SHARED))).map(|l| (l.owner, l.exclusive)), Some((2, EXCLUSIVE)));
    ok!(t.release(id, h, None));
    ok!(t.release(id, h2, Some(2)));
}

pub(super) async fn waiting_locks_are_granted(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    for lock in [|owner, exclusive| range(owner, exclusive, 5, 9), |owner, exclusive| flock(owner, exclusive)] {
        ok!(t.setlk(id, h, lock(1, EXCLUSIVE), true));
        let mut two = waits(t.setlk(id, h, lock(2, SHARED), true));
        let mut three = waits(t.setlk(id, h, lock(3, SHARED), true));
        let mut four = waits(t.setlk(id, h, lock(4, EXCLUSIVE), true));
        still_waits(&t, &mut two).await;
        still_waits(&t, &mut three).await;
        still_waits(&t, &mut four).await;
        ok!(t.setlk(id, h, lock(1, None), false));
        ok!(two);
        ok!(three);
        still_waits(&t, &mut four).await;
        ok!(t.setlk(id, h, lock(2, None), false));
        still_waits(&t, &mut four).await;
        ok!(t.setlk(id, h, lock(3, None), false));
        ok!(four);
        refuses!(t.setlk(id, h, lock(1, SHARED), false), WouldBlock);
        ok!(t.setlk(id, h, lock(4, None), false));
    }
    ok!(t.release(id, h, None));
}

pub(super) async fn waiting_can_be_given_up(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    ok!(t.setlk(id, h, range(1, EXCLUSIVE, 0, 9), false));
    let mut two = waits(t.setlk(id, h, range(2, EXCLUSIVE, 0, 9), true));
    still_waits(&t, &mut two).await;
    drop(two);
    ok!(t.setlk(id, h, range(1, None, 0, 9), false));
    ok!(t.setlk(id, h, range(3, EXCLUSIVE, 0, 9), true));
    ok!(t.release(id, h, None));
}

pub(super) async fn deadlocks_are_refused(t: Ctx) {
    let (a, ha) = t.open_file("a").await;
    let (b, hb) = t.open_file("b").await;
    ok!(t.setlk(a, ha, range(1, EXCLUSIVE, 0, 0), false));
    ok!(t.setlk(b, hb, range(2, EXCLUSIVE, 0, 0), false));
    ok!(t.setlk(b, hb, range(3, EXCLUSIVE, 5, 5), false));
    let mut one = waits(t.setlk(b, hb, range(1, EXCLUSIVE, 0, 0), true));
    still_waits(&t, &mut one).await;
    let mut two = waits(t.setlk(b, hb, range(2, SHARED, 5, 5), true));
    still_waits(&t, &mut two).await;
    refuses!(t.setlk(a, ha, range(3, SHARED, 0, 0), true), Deadlock);
    refuses!(t.setlk(a, ha, range(3, SHARED, 0, 0), false), WouldBlock);
    ok!(t.setlk(b, hb, range(3, None, 0, u64::MAX), false));
    ok!(two);
    ok!(t.setlk(b, hb, range(2, None, 0, u64::MAX), false));
    ok!(one);
    ok!(t.release(a, ha, None));
    ok!(t.release(b, hb, None));
}

pub(super) async fn closing_drops_locks(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let h2 = ok!(t.open(&SU, id, RW));
    ok!(t.setlk(id, h, range(1, EXCLUSIVE, 0, 9), false));
    ok!(t.setlk(id, h, range(1, SHARED, 20, 29), false));
    ok!(t.setlk(id, h, range(2, EXCLUSIVE, 40, 49), false));
    let waiting = waits(t.setlk(id, h2, range(3, EXCLUSIVE, 0, 29), true));
    ok!(t.flush(id, h, 1));
    ok!(waiting);
    refuses!(t.setlk(id, h, range(3, SHARED, 40, 40), false), WouldBlock);
    ok!(t.setlk(id, h, flock(7, EXCLUSIVE), false));
    let waiting = waits(t.setlk(id, h2, flock(8, SHARED), true));
    ok!(t.release(id, h, Some(7)));
    ok!(waiting);
    ok!(t.release(id, h2, Some(8)));
}

pub(super) async fn locks_refuse_bad_input(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let (reader, writer) = (ok!(t.open(&SU, id, READ)), ok!(t.open(&SU, id, WRITE)));
    refuses!(t.setlk(id, h, range(1, EXCLUSIVE, 5, 4), false), InvalidArgument);
    refuses!(t.getlk(id, h, range(1, EXCLUSIVE, 5, 4)), InvalidArgument);
    refuses!(t.getlk(id, h, range(1, None, 0, 4)), InvalidArgument);
    refuses!(t.setlk(id, reader, range(1, EXCLUSIVE, 0, 4), false), BadHandle);
    refuses!(t.setlk(id, writer, range(1, SHARED, 0, 4), false), BadHandle);
    ok!(t.setlk(id, reader, flock(1, EXCLUSIVE), false));
    ok!(t.setlk(id, h, range(1, None, 0, u64::MAX), false));
    for handle in [h, reader, writer] {
        ok!(t.release(id, handle, Some(1)));
    }
    refuses!(t.setlk(id, h, range(1, SHARED, 0, 4), false), BadHandle);
    refuses!(t.getlk(id, h, range(1, SHARED, 0, 4)), BadHandle);
}
