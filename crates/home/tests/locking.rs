//! Which clients have which locks.

use home::locking::{Locked, LockedFiles};
use roam_proto::lock::{Lock, LockKind, Locking};
use types::{FileId, FsError};

const FILE: FileId = FileId::new(7);

fn lock(owner: u64, exclusive: Option<bool>, start: u64, end: u64) -> Lock {
    Lock { file: FILE, space: LockKind::Posix, owner, pid: 1, exclusive, start, end }
}

fn asks(number: u64, lock: Lock) -> Locking {
    Locking { term: 1, number, over: 0, open: Vec::new(), lock, waits: true, gives_up: 0 }
}

/// The home unlocked the whole range of a request that a client gave up after it was granted, also
/// where the client had a lock before. The client knew nothing of that, and another client got the
/// same lock.
#[test]
fn regression_a_request_that_is_given_up_leaves_what_the_client_had_before() {
    for is_granted_at_once in [true, false] {
        let mut locked = LockedFiles::default();
        assert!(locked.begin(1, 1, &[]) && locked.begin(2, 1, &[]));
        let before = lock(5, Some(true), 0, 9);
        assert_eq!(locked.ask(1, &asks(1, before)), Ok(Locked::Done));
        let wanted = lock(5, Some(true), 0, 29);
        if is_granted_at_once {
            assert_eq!(locked.ask(1, &asks(2, wanted)), Ok(Locked::Done));
        } else {
            assert_eq!(locked.ask(2, &asks(1, lock(6, Some(true), 20, 29))), Ok(Locked::Done));
            assert_eq!(locked.ask(1, &asks(2, wanted)), Ok(Locked::Waits));
            assert_eq!(locked.ask(2, &asks(2, lock(6, None, 20, 29))), Ok(Locked::Done));
        }
        let empty = Locking { gives_up: 2, ..asks(3, lock(5, Some(true), 5, 2)) };
        assert_eq!(locked.ask(1, &empty), Err(FsError::InvalidArgument));
        assert_eq!(locked.ask(1, &Locking { gives_up: 2, ..asks(3, wanted) }), Ok(Locked::Done));
        assert_eq!(locked.test(2, &lock(6, Some(true), 0, 29)), Some(Lock { owner: 0, pid: 0, ..before }));
        let at_once = |number, lock| Locking { waits: false, ..asks(number, lock) };
        assert_eq!(locked.ask(2, &at_once(3, lock(6, Some(true), 9, 9))), Err(FsError::WouldBlock));
        assert_eq!(locked.ask(2, &at_once(4, lock(6, Some(true), 10, 29))), Ok(Locked::Done));
    }
}
