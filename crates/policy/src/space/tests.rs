//! Tests of [`SpaceAccount`] against a model of a store.

use super::*;
use proptest::prelude::*;

const CAPACITY: u64 = 48 << 20;
const LIMIT: u64 = 20 << 20;
const SEGMENT: u64 = 1 << 20;
/// What a checkpoint writes for one file.
const INDEX_BYTES: u64 = 20 << 10;

/// A store, the logs on it, and a client that asks [`SpaceAccount`].
struct Model {
    space: SpaceAccount,
    files: BTreeMap<u64, u64>,
    dirty: BTreeMap<u64, bool>,
    dirty_bytes: u64,
    next_file: u64,
    seq: u64,
    covered_seq: u64,
    /// Bytes in client segments, live or dead.
    client_bytes: u64,
    /// Live index bytes of each file.
    index: BTreeMap<u64, u64>,
    dead_index_bytes: u64,
    /// What the cleaner uses: its whole loan.
    lent_bytes: u64,
    unchecked: BTreeMap<u64, u64>,
}

fn share(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

impl Model {
    fn new() -> Model {
        let mut space = SpaceAccount::new(Reserves::new(4 << 20, CAPACITY), LIMIT, 0);
        space.looked(Look { covered_seq: 0, placed_bytes: 0, free_bytes: CAPACITY });
        Model {
            space,
            files: BTreeMap::new(),
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
            next_file: 1,
            seq: 0,
            covered_seq: 0,
            client_bytes: 0,
            index: BTreeMap::new(),
            dead_index_bytes: 0,
            lent_bytes: 0,
            unchecked: BTreeMap::new(),
        }
    }

    fn taken(&self) -> u64 {
        self.client_bytes + self.index.values().sum::<u64>() + self.dead_index_bytes + self.lent_bytes
    }

    fn admit(&mut self, purpose: Purpose, need: u64) -> bool {
        for round in 0.. {
            if self.space.admits(purpose, self.dirty_bytes + need, share) {
                break;
            }
            if round == 2 {
                return false;
            }
            self.tidy();
        }
        if self.dirty_bytes + need > SEGMENT {
            self.cut();
        }
        true
    }

    fn mark(&mut self, file: u64, bytes: u64, lives: bool) {
        self.dirty_bytes += bytes;
        self.dirty.insert(file, lives);
        self.space.owe(file, if lives { INDEX_BYTES } else { 0 }, self.seq + 1);
    }

    fn write(&mut self, len: u64) -> bool {
        let admitted = self.admit(Purpose::Write, len + 320);
        if admitted {
            let file = self.next_file;
            self.next_file += 97;
            self.files.insert(file, len);
            self.mark(file, len + 320, true);
        }
        admitted
    }

    fn file(&self, pick: usize) -> Option<u64> {
        self.files.keys().nth(pick % self.files.len().max(1)).copied()
    }

    fn change(&mut self, pick: usize) -> bool {
        let Some(file) = self.file(pick) else { return true };
        let admitted = self.admit(Purpose::Change, 320);
        if admitted {
            self.mark(file, 320, true);
        }
        admitted
    }

    fn remove(&mut self, pick: usize) -> bool {
        let Some(file) = self.file(pick) else { return true };
        let admitted = self.admit(Purpose::Remove, 320);
        if admitted {
            self.files.remove(&file);
            self.mark(file, 320, false);
        }
        admitted
    }

    fn cut(&mut self) {
        if self.dirty_bytes > 0 {
            self.seq += 1;
            let bytes = std::mem::take(&mut self.dirty_bytes);
            let owed = self.dirty.values().filter(|lives| **lives).count() as u64 * INDEX_BYTES;
            self.space.cut(self.seq, bytes, owed, share);
            self.client_bytes += share(bytes);
            for (file, lives) in std::mem::take(&mut self.dirty) {
                self.unchecked.insert(file, if lives { INDEX_BYTES } else { 0 });
            }
            self.space.applied(self.seq);
            assert!(self.taken() <= CAPACITY, "a segment does not fit");
        }
    }

    /// The cleaner borrows, and uses the whole loan until the next round.
    fn borrow(&mut self) {
        if self.lent_bytes == 0 {
            self.look();
            self.lent_bytes = self.space.lend(self.dirty_bytes, share).bytes;
            assert!(self.lent_bytes >= self.space.reserves.cleaner_bytes, "the cleaner's reserve was used by others");
        }
    }

    fn look(&mut self) {
        let placed_bytes = self.space.placed_bytes(self.seq, share);
        // A look also sees the copies that the cleaner made on its present loan.
        let free_bytes = CAPACITY - self.taken();
        let covered_seq = self.covered_seq;
        self.space.looked(Look { covered_seq, placed_bytes, free_bytes });
    }

    /// Writes a checkpoint, which must fit, and deletes what it supersedes.
    fn tidy(&mut self) {
        self.cut();
        let pages = self.unchecked.keys().map(|file| file / PAGE_FILES).collect::<BTreeSet<_>>();
        let written = self.unchecked.values().sum::<u64>() + pages.len() as u64 * PAGE_BYTES;
        assert!(self.taken() + written <= CAPACITY, "a checkpoint of {written} does not fit beside {}", self.taken());
        for (file, bytes) in std::mem::take(&mut self.unchecked) {
            let before = if bytes > 0 { self.index.insert(file, bytes) } else { self.index.remove(&file) };
            self.dead_index_bytes += before.unwrap_or(0);
        }
        // The cleaner frees most dead bytes, but not all.
        self.dead_index_bytes /= 8;
        self.client_bytes = self.files.values().map(|len| len + len / 8).sum();
        self.space.counted(self.files.values().sum::<u64>() + self.index.values().sum::<u64>());
        self.lent_bytes = 0;
        self.covered_seq = self.seq;
        self.look();
        self.space.give_back();
    }
}

proptest! {
    /// In any order of events, segments and checkpoints fit, and removals work and give space back.
    #[test]
    fn model_removing_always_works_and_gives_space_back(
        deeds in prop::collection::vec((0u8..22, any::<usize>()), 1..400), len in 1u64..400_000,
    ) {
        let mut model = Model::new();
        for (deed, pick) in deeds {
            match deed {
                0..=9 => { model.write(len); }
                // A program makes many changes before anything else happens.
                10..=12 => { (0..pick % 500).for_each(|n| { model.change(pick / 2 + n); }); }
                13 | 14 => prop_assert!(model.remove(pick), "not removed"),
                15..=17 => model.cut(),
                18 | 19 => model.borrow(),
                _ => model.tidy(),
            }
        }
        while model.write(len) {}
        while !model.files.is_empty() {
            for n in 0..50 {
                model.change(n * 7);
            }
            prop_assert!(model.remove(3), "not removed, {} left", model.files.len());
        }
        model.tidy();
        prop_assert!(model.write(len), "nothing was given back");
    }
}

#[test]
fn purposes_stop_one_after_the_other() {
    let reserves = Reserves::new(10 << 20, 48 << 20);
    let kept = [Purpose::Write, Purpose::Change, Purpose::Remove].map(|purpose| reserves.kept_from(purpose) >> 20);
    assert_eq!(kept, [18, 17, 16]);
}

#[test]
fn what_is_owed_is_not_free_until_a_look_after_the_checkpoint() {
    let mut space = SpaceAccount::new(Reserves::new(0, 0), u64::MAX, 1000);
    space.looked(Look { covered_seq: 0, placed_bytes: 0, free_bytes: 100 << 20 });
    space.owe(1, 500, 1);
    space.owe(2, 500, 1);
    assert_eq!(space.owed_bytes(), 2000 + PAGE_BYTES);
    space.cut(1, 100, 1000, share);
    space.applied(1);
    space.owe(1, 700, 2);
    assert_eq!(space.owed_bytes(), 2700 + PAGE_BYTES);
    space.looked(Look { covered_seq: 1, placed_bytes: 100, free_bytes: 99 << 20 });
    assert_eq!(space.owed_bytes(), 700 + PAGE_BYTES, "the page is owed again for the next cut");
    assert!(!space.admits(Purpose::Remove, 96 << 20, share));
    assert!(space.admits(Purpose::Remove, 90 << 20, share));
}

#[test]
fn a_loan_has_room_for_what_moving_makes_the_managers_owe() {
    let moved = |file, leaf| Moved { file, leaf, len: 4096, attribute_bytes: 1000, extent_count: 100 };
    let of_file = NODE_BYTES + 1000 + PAGE_BYTES;
    let of_leaf = 100 * EXTENT_BYTES;
    let of_move = 4096 + MOVE_BYTES + 2 * EXTENT_BYTES;
    let mut loan = Loan::new(of_file + 2 * of_leaf + 3 * of_move);
    let exact = |bytes| bytes;
    assert!(loan.take(moved(1, 0), exact));
    assert!(loan.take(moved(1, 1), exact));
    assert!(!loan.take(moved(2, 1), exact), "another file");
    assert!(loan.take(moved(1, 1), exact), "a leaf is written once");
    assert!(!loan.take(moved(1, 1), exact));
    assert!(!loan.take_segment(1, exact));
}

#[test]
fn what_is_lent_is_not_there_for_others_until_it_is_given_back() {
    let reserves = Reserves::new(0, 0);
    let mut space = SpaceAccount::new(reserves, u64::MAX, 0);
    let spare = 40 << 20;
    space.looked(Look { covered_seq: 0, placed_bytes: 0, free_bytes: reserves.kept_from(Purpose::Write) + spare });
    assert!(space.admits(Purpose::Write, spare, share));
    assert_eq!(space.lend(0, share).bytes, reserves.cleaner_bytes + spare / 2);
    assert!(space.admits(Purpose::Write, spare / 2, share));
    assert!(!space.admits(Purpose::Write, spare / 2 + 4096, share));
    space.give_back();
    assert!(space.admits(Purpose::Write, spare, share));
    space.looked(Look { covered_seq: 0, placed_bytes: 0, free_bytes: reserves.log_bytes + reserves.manager_bytes });
    assert_eq!(space.lend(0, share).bytes, 0, "nobody uses another's reserve");
}

#[test]
fn a_claim_covers_what_is_admitted_even_if_the_share_shrinks() {
    let exact = |bytes| bytes;
    let reserves = Reserves::new(50, 0);
    let common = reserves.common_bytes();
    let share = |free, others_bytes| SpaceShare {
        covered_seq: 0,
        free_bytes: common + free,
        limit_bytes: 1000,
        live: Some(LiveShare { counted_bytes: 100, others_bytes }),
    };
    let mut space = SpaceAccount::new(reserves, 0, 0);
    space.take(&SpaceClaim::default(), &share(5 << 20, 300));
    let claim = space.claim(0, 0, exact);
    assert_eq!((claim.placed_bytes, claim.store_bytes, claim.live_bytes), (0, 5 << 20, 600));
    assert!(space.admits(Purpose::Write, 600, exact) && !space.admits(Purpose::Write, 601, exact));
    space.cut(1, 400, 5000, exact);
    let claim = space.claim(30, 0, exact);
    assert_eq!((claim.store_bytes, claim.live_bytes), (5 << 20, 600), "nothing is placed for sure");
    let claim = space.claim(30, 1, exact);
    assert_eq!((claim.placed_bytes, claim.store_bytes), (400, (5 << 20) - 400));
    // Others get nearly everything.
    space.take(&claim, &share(0, 890));
    let claim = space.claim(30, 1, exact);
    assert_eq!((claim.placed_bytes, claim.store_bytes, claim.live_bytes), (400, 30 + 5000 + 50, 30 + 400));
    assert!(!space.admits(Purpose::Write, 1, exact));
    space.applied(1);
    assert_eq!(space.claim(30, 1, exact).live_bytes, 30, "the managers count the cut from now on");
    space.take(&claim, &share(0, 890));
    assert_eq!(space.used_bytes(), 500, "the count was made when the cut may not have been applied");
    space.take(&space.claim(30, 1, exact), &share(0, 890));
    assert_eq!(space.used_bytes(), 100);
}
