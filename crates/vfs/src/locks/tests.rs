use super::*;
use proptest::prelude::*;

const F: FileId = FileId::new(7);
const G: FileId = FileId::new(8);

fn posix(owner: u128, exclusive: Option<bool>, start: u64, end: u64) -> FileLock {
    FileLock { space: LockSpace::Posix, owner, pid: owner as u32, exclusive, start, end }
}

fn flock(owner: u128, exclusive: Option<bool>) -> FileLock {
    FileLock { space: LockSpace::Flock, owner, pid: 0, exclusive, start: 3, end: 5 }
}

fn ranges(t: &LockTable, owner: u128) -> Vec<(u64, u64, bool)> {
    let held = t.held(F).into_iter().filter(|l| l.owner == owner);
    held.map(|l| (l.start, l.end, l.exclusive == Some(true))).collect()
}

fn granted() -> SetOutcome {
    SetOutcome::default()
}

fn replaces(replaced: &[FileLock]) -> SetOutcome {
    SetOutcome { replaced: replaced.to_vec(), ..granted() }
}

fn waiters(woken: &[Granted]) -> Vec<WaiterId> {
    woken.iter().map(|granted| granted.waiter).collect()
}

#[test]
fn ranges_split_and_merge() {
    let mut t = LockTable::default();
    assert_eq!(t.set(F, &posix(1, Some(true), 0, 99), false), Ok(granted()));
    assert_eq!(t.set(F, &posix(1, Some(false), 40, 59), false), Ok(replaces(&[posix(1, Some(true), 0, 99)])));
    assert_eq!(ranges(&t, 1), [(0, 39, true), (40, 59, false), (60, 99, true)]);
    assert_eq!(t.set(F, &posix(1, None, 50, 69), false), Ok(granted()));
    assert_eq!(ranges(&t, 1), [(0, 39, true), (40, 49, false), (70, 99, true)]);
    let shared = posix(1, Some(false), 40, 49);
    assert_eq!(t.set(F, &posix(1, Some(true), 40, 69), false), Ok(replaces(&[shared])));
    assert_eq!(ranges(&t, 1), [(0, 99, true)], "neighbours merge");
    assert_eq!(t.set(F, &posix(1, None, 0, u64::MAX), false), Ok(granted()));
    assert!(t.is_empty());
}

#[test]
fn conflicts_name_the_first_holder_and_spaces_are_apart() {
    let mut t = LockTable::default();
    let _ = t.set(F, &posix(1, Some(false), 50, 60), false).unwrap();
    let _ = t.set(F, &posix(2, Some(false), 10, u64::MAX), false).unwrap();
    assert_eq!(t.test(F, &posix(3, Some(false), 0, 100)), None, "shared locks agree");
    assert_eq!(t.test(F, &posix(3, Some(true), 0, 100)).unwrap().owner, 2);
    assert_eq!(t.test(F, &posix(2, Some(true), 0, 49)), None, "one's own lock is not in the way");
    assert_eq!(t.set(F, &posix(3, Some(true), u64::MAX, u64::MAX), false), Err(FsError::WouldBlock));
    assert_eq!(t.set(F, &flock(3, Some(true)), false), Ok(granted()));
    assert_eq!(t.test(F, &flock(4, Some(false))).map(|l| (l.start, l.end)), Some((0, u64::MAX)));
    assert_eq!(t.set(F, &posix(3, Some(true), 5, 4), false), Err(FsError::InvalidArgument));
}

#[test]
fn waiters_are_granted_in_order_when_the_lock_goes() {
    let mut t = LockTable::default();
    let _ = t.set(F, &posix(1, Some(true), 0, 9), false).unwrap();
    let a = t.set(F, &posix(2, Some(false), 0, 4), true).unwrap().waits.unwrap();
    let b = t.set(F, &posix(3, Some(true), 4, 4), true).unwrap().waits.unwrap();
    let c = t.set(F, &posix(4, Some(false), 0, 3), true).unwrap().waits.unwrap();
    assert_eq!(waiters(&t.release_owner(F, LockSpace::Posix, 1)), [a, c], "b conflicts with a");
    assert_eq!(waiters(&t.set(F, &posix(2, None, 4, 4), false).unwrap().woken), [b]);
}

#[test]
fn downgrading_lets_readers_in() {
    let mut t = LockTable::default();
    let _ = t.set(F, &posix(1, Some(true), 0, 9), false).unwrap();
    let a = t.set(F, &posix(2, Some(false), 0, 9), true).unwrap().waits.unwrap();
    assert_eq!(waiters(&t.set(F, &posix(1, Some(false), 0, 9), false).unwrap().woken), [a]);
}

#[test]
fn cancelled_waiters_get_nothing_and_give_back_what_they_got() {
    let mut t = LockTable::default();
    let _ = t.set(F, &posix(1, Some(true), 0, 9), false).unwrap();
    let wanted = posix(2, Some(true), 0, 9);
    let a = t.set(F, &wanted, true).unwrap().waits.unwrap();
    assert!(t.cancel(F, a));
    assert_eq!(t.release_owner(F, LockSpace::Posix, 1), []);
    assert!(t.is_empty());

    let _ = t.set(F, &posix(1, Some(true), 0, 9), false).unwrap();
    let a = t.set(F, &wanted, true).unwrap().waits.unwrap();
    let b = t.set(F, &posix(3, Some(true), 0, 9), true).unwrap().waits.unwrap();
    assert_eq!(waiters(&t.release_owner(F, LockSpace::Posix, 1)), [a]);
    assert!(!t.cancel(F, a), "it was granted, although the caller has not learned of it");
    assert_eq!(waiters(&t.take_back(F, &wanted, &[])), [b]);
}

/// The whole range was unlocked, also where the owner had a lock before.
#[test]
fn regression_a_lock_that_is_taken_back_leaves_what_its_owner_had_before() {
    let mut t = LockTable::default();
    let _ = t.set(F, &posix(1, Some(false), 0, 9), false).unwrap();
    let _ = t.set(F, &posix(1, Some(true), 10, 14), false).unwrap();
    let _ = t.set(F, &posix(2, Some(true), 20, 29), false).unwrap();
    let before = t.held(F)[..2].to_vec();
    let wanted = posix(1, Some(true), 5, 24);
    let a = t.set(F, &wanted, true).unwrap().waits.unwrap();
    let woken = t.release_owner(F, LockSpace::Posix, 2);
    assert_eq!(woken, [Granted { waiter: a, replaced: before }]);
    assert_eq!(ranges(&t, 1), [(0, 4, false), (5, 24, true)]);
    let b = t.set(F, &posix(3, Some(true), 24, 24), true).unwrap().waits.unwrap();
    // The owner unlocks some of it meanwhile, by another thread.
    let _ = t.set(F, &posix(1, None, 6, 7), false).unwrap();
    assert_eq!(waiters(&t.take_back(F, &wanted, &woken[0].replaced)), [b]);
    assert_eq!(ranges(&t, 1), [(0, 5, false), (8, 9, false), (10, 14, true)]);
}

#[test]
fn a_lock_that_is_taken_back_does_not_become_stronger_than_others_allow() {
    let mut t = LockTable::default();
    let _ = t.set(F, &posix(1, Some(true), 0, 9), false).unwrap();
    let weaker = posix(1, Some(false), 0, 9);
    let SetOutcome { replaced, .. } = t.set(F, &weaker, false).unwrap();
    let _ = t.set(F, &posix(2, Some(false), 5, 5), false).unwrap();
    assert_eq!(t.take_back(F, &weaker, &replaced), []);
    assert_eq!(ranges(&t, 1), [(0, 9, false)]);
    assert_eq!(ranges(&t, 2), [(5, 5, false)]);
}

#[test]
fn waits_in_a_circle_are_refused_over_files_too() {
    let mut t = LockTable::default();
    let _ = t.set(F, &posix(1, Some(true), 0, 0), false).unwrap();
    let _ = t.set(G, &posix(2, Some(true), 0, 0), false).unwrap();
    let _ = t.set(F, &posix(3, Some(true), 9, 9), false).unwrap();
    assert!(t.set(F, &posix(2, Some(true), 0, 0), true).unwrap().waits.is_some(), "2 waits for 1");
    assert!(t.set(G, &posix(3, Some(true), 0, 0), true).unwrap().waits.is_some(), "3 waits for 2");
    assert_eq!(t.set(F, &posix(1, Some(false), 9, 9), true), Err(FsError::Deadlock), "1 would wait for 3");
    assert_eq!(t.set(F, &posix(1, Some(false), 9, 9), false), Err(FsError::WouldBlock));
}

#[test]
fn flock_conversion_gives_up_the_old_lock_to_wait_but_not_to_be_refused() {
    let mut t = LockTable::default();
    let _ = t.set(F, &flock(1, Some(false)), false).unwrap();
    let _ = t.set(F, &flock(2, Some(false)), false).unwrap();
    assert_eq!(t.set(F, &flock(1, Some(true)), false), Err(FsError::WouldBlock));
    assert_eq!(t.held(F).len(), 2);
    let a = t.set(F, &flock(1, Some(true)), true).unwrap().waits.unwrap();
    assert_eq!(t.held(F).len(), 1, "1 holds nothing while it waits, so both may convert");
    assert!(t.set(F, &flock(2, Some(true)), true).unwrap().waits.is_none());
    assert_eq!(waiters(&t.release_owner(F, LockSpace::Flock, 2)), [a]);
}

#[derive(Clone, Debug)]
struct Step {
    owner: u128,
    exclusive: Option<bool>,
    start: u64,
    end: u64,
    wait: bool,
    taken_back: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(None), Just(Some(false)), Just(Some(true))];
    (0u128..4, kind, 0u64..16, 0u64..16, any::<bool>(), any::<bool>()).prop_map(
        |(owner, exclusive, a, b, wait, taken_back)| Step {
            owner,
            exclusive,
            start: a.min(b),
            end: a.max(b),
            wait,
            taken_back,
        },
    )
}

#[test]
fn owners_that_are_gone_leave_nothing_and_wake_others() {
    let mut t = LockTable::default();
    let other = FileId::new(9);
    assert_eq!(t.set(F, &posix(1, Some(true), 0, 9), false), Ok(granted()));
    assert_eq!(t.set(other, &posix(2, Some(true), 0, 9), false), Ok(granted()));
    let a = t.set(F, &posix(3, Some(true), 0, 9), true).unwrap().waits.unwrap();
    let b = t.set(F, &posix(2, Some(true), 0, 9), true).unwrap().waits.unwrap();
    assert!(a < b);
    assert_eq!(waiters(&t.release_owners(|owner| owner < 3)), [a], "2 does not wait any more");
    assert_eq!(t.all_held(), [(F, posix(3, Some(true), 0, 9))]);
    assert_eq!(t.blockers(F, &posix(1, Some(false), 9, 20)), [posix(3, Some(true), 0, 9)]);
    assert_eq!(t.release_owners(|_| true), []);
    assert!(t.is_empty());
}

#[test]
fn locks_of_which_the_kind_is_not_known_exclude_each_other() {
    let mut t = LockTable::default();
    let mixed = |owner, start, end| FileLock { space: LockSpace::Mixed, ..posix(owner, Some(true), start, end) };
    assert_eq!(t.set(F, &mixed(1, 0, u64::MAX), false), Ok(granted()));
    assert_eq!(t.set(F, &mixed(2, 3, 4), false), Err(FsError::WouldBlock));
    assert_eq!(t.release_owner(F, LockSpace::Mixed, 1), []);
    assert_eq!(t.set(F, &mixed(2, 3, 4), false), Ok(granted()));
    assert_eq!(t.set(F, &mixed(1, 5, 9), false), Ok(granted()), "ranges are kept");
}

proptest! {
    /// Compared with sixteen bytes, each with the owners that hold it.
    #[test]
    fn model_byte_ranges_agree_with_a_map_of_bytes(steps in proptest::collection::vec(step(), 1..60)) {
        let mut t = LockTable::default();
        let mut model = vec![BTreeMap::<u128, bool>::new(); 16];
        let mut waiting = BTreeMap::new();
        for s in steps {
            if waiting.values().any(|l: &FileLock| l.owner == s.owner) {
                continue; // An owner that waits does nothing else.
            }
            let lock = posix(s.owner, s.exclusive, s.start, s.end);
            let free = s.exclusive.is_none_or(|x| {
                model[s.start as usize..=s.end as usize]
                    .iter()
                    .all(|b| b.iter().all(|(&o, &held)| o == s.owner || !(held || x)))
            });
            let place = |model: &mut Vec<BTreeMap<u128, bool>>, l: &FileLock| {
                for b in &mut model[l.start as usize..=l.end as usize] {
                    b.remove(&l.owner);
                    if let Some(x) = l.exclusive {
                        b.insert(l.owner, x);
                    }
                }
            };
            match t.set(F, &lock, s.wait) {
                Ok(SetOutcome { waits: None, woken, replaced }) => {
                    prop_assert!(free);
                    let before = model.clone();
                    place(&mut model, &lock);
                    let mut todo = woken;
                    if s.taken_back && lock.exclusive.is_some() && todo.is_empty() {
                        todo = t.take_back(F, &lock, &replaced);
                        model = before;
                    }
                    for w in todo {
                        let lock = waiting.remove(&w.waiter).unwrap();
                        place(&mut model, &lock);
                    }
                }
                Ok(SetOutcome { waits: Some(w), woken, .. }) => {
                    prop_assert!(!free && s.wait && woken.is_empty());
                    waiting.insert(w, lock);
                }
                Err(FsError::WouldBlock) => prop_assert!(!free && !s.wait),
                Err(e) => {
                    prop_assert_eq!(e, FsError::Deadlock);
                    prop_assert!(!free && s.wait && !waiting.is_empty());
                }
            }
            for (byte, owners) in model.iter().enumerate() {
                let byte = byte as u64;
                let held = t.held(F).into_iter().filter(|l| l.start <= byte && byte <= l.end);
                let held: Vec<_> = held.map(|l| (l.owner, l.exclusive == Some(true))).collect();
                let held_count = held.len();
                let held: BTreeMap<_, _> = held.into_iter().collect();
                prop_assert_eq!(held.len(), held_count, "an owner's locks overlap");
                prop_assert_eq!(&held, owners);
                prop_assert!(!owners.values().any(|&x| x) || owners.len() == 1);
            }
            for l in waiting.values() {
                prop_assert!(t.test(F, l).is_some(), "waits for nothing");
            }
        }
    }
}
