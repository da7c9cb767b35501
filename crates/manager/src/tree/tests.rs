//! A tree against a sorted map, with records in memory, pages that come and go, and restarts.

use super::*;
use host::SplitMix64;
use std::collections::{BTreeMap, BTreeSet};
use types::codec::Reader;
use types::{FileId, LogId, SegmentId};

type Sut = Tree<SegmentId, u64>;

/// A log of records, in memory.
#[derive(Default)]
struct Log {
    records: BTreeMap<BlockAddr, Vec<u8>>,
    /// The records that a tree needs.
    live: BTreeSet<BlockAddr>,
    next: u64,
    written_bytes: usize,
}

impl Log {
    fn load(&self, tree: &mut Sut, missing: &Unloaded) {
        assert!(self.live.contains(&missing.home), "a record that was freed is asked for");
        tree.install(Table::DataUsage, missing, &self.records[&missing.home]).unwrap();
    }

    fn get(&self, tree: &mut Sut, key: SegmentId) -> Option<u64> {
        loop {
            match tree.get(key) {
                Ok(value) => return value,
                Err(missing) => self.load(tree, &missing),
            }
        }
    }

    /// Edits a clone and writes it, as checkpoints do.
    fn checkpoint(&mut self, tree: &Sut, changes: &[(SegmentId, Option<u64>)]) -> Sut {
        let mut tree = tree.clone();
        let freed = loop {
            match tree.edit(changes, |_, _, change| *change) {
                Ok(freed) => break freed,
                Err(missing) => missing.iter().for_each(|missing| self.load(&mut tree, missing)),
            }
        };
        self.write(&mut tree, freed);
        tree
    }

    fn write(&mut self, tree: &mut Sut, freed: Vec<BlockAddr>) {
        for level in 0..tree.height() {
            for link in tree.unwritten(level) {
                let (_, record) = link.encode(Table::DataUsage, level);
                let segment = SegmentId { log: LogId::new(9), epoch: 1, seq: self.next };
                let home = BlockAddr { segment, offset: 0, len: record.len() as u32 };
                self.next += 1;
                self.written_bytes += record.len();
                self.records.insert(home, record);
                assert!(self.live.insert(home));
                link.set_home(home);
            }
        }
        for home in freed {
            assert!(self.live.remove(&home), "{home:?} freed twice");
        }
    }

    fn rows(&self, tree: &Sut) -> BTreeMap<SegmentId, u64> {
        let (mut rows, mut from, mut tree) = (BTreeMap::new(), None, tree.clone());
        loop {
            match tree.stretch(from) {
                Ok(stretch) => {
                    rows.extend(stretch.rows.iter().copied());
                    match stretch.next {
                        Some(next) => from = Some(next),
                        None => return rows,
                    }
                }
                Err(missing) => self.load(&mut tree, &missing),
            }
        }
    }

    /// The homes of all pages below the top.
    fn homes(&self, tree: &Sut) -> BTreeSet<BlockAddr> {
        let (mut all, mut tree) = (BTreeSet::new(), tree.clone());
        for level in (0..tree.height()).rev() {
            let (homes, unloaded) = tree.homes(level);
            let count = all.len() + homes.len();
            all.extend(homes);
            assert_eq!(all.len(), count, "two links to one record");
            unloaded.iter().filter(|u| u.level > 0).for_each(|missing| self.load(&mut tree, missing));
        }
        all
    }
}

fn key(n: u64) -> SegmentId {
    SegmentId { log: LogId::new((n % 3) as u32), epoch: (n % 2) as u32, seq: n }
}

fn again(tree: &Sut) -> Sut {
    let mut bytes = Vec::new();
    tree.encode(&mut bytes);
    Tree::decode(&mut Reader::new(&bytes), tree.rows_max).unwrap()
}

#[test]
fn model_random_edits_loads_and_restarts() {
    for seed in 0..300 {
        let random = SplitMix64::new(seed);
        let rows_max = 4 + random.below(30) as usize;
        let (mut log, mut tree, mut model) = (Log::default(), Sut::new(rows_max), BTreeMap::new());
        for _ in 0..60 {
            let mut changes = BTreeMap::new();
            let (count, around) = (random.below(40), random.below(1000));
            let removes = random.below(4);
            for _ in 0..count {
                let key = key((around + random.below(60)) % 1000);
                let value = (random.below(4) > removes).then(|| 1 + random.below(1 << 40));
                changes.insert(key, value);
            }
            for (&key, &value) in &changes {
                match value {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove(&key)),
                }
            }
            tree = log.checkpoint(&tree, &changes.into_iter().collect::<Vec<_>>());
            match random.below(6) {
                0 => tree = again(&tree),
                1 => tree.trim(random.below(4) as usize, 1000),
                2 if tree.height() > 0 => {
                    let level = random.below(tree.height().into()) as u8;
                    let (homes, unloaded) = tree.homes(level);
                    let Some(page) = unloaded.first() else { continue };
                    assert!(homes.contains(&page.home) || page.level > level);
                    let mut moved = tree.clone();
                    let freed = loop {
                        match moved.rewrite(page) {
                            Ok(freed) => break freed,
                            Err(missing) => log.load(&mut moved, &missing),
                        }
                    };
                    assert!(freed.contains(&page.home));
                    log.write(&mut moved, freed);
                    tree = moved;
                }
                _ => {}
            }
            let some = key(random.below(1000));
            assert_eq!(log.get(&mut tree, some), model.get(&some).copied(), "seed {seed}");
            assert_eq!(log.rows(&tree), model, "seed {seed}");
            assert_eq!(log.homes(&tree), log.live, "seed {seed}: what is counted is not what is there");
            assert!(tree.top.len() <= rows_max, "seed {seed}: {} rows in the top", tree.top.len());
        }
        let all: Vec<_> = model.keys().map(|&key| (key, None)).collect();
        tree = log.checkpoint(&tree, &all);
        assert_eq!((tree.height(), tree.top.len(), log.live.len()), (0, 0, 0), "seed {seed}: empty again");
    }
}

#[test]
fn a_small_change_writes_one_page_per_level() {
    for count in [1_000, 10_000, 100_000] {
        let (mut log, tree) = (Log::default(), Sut::new(PAGE_ROWS_MAX));
        let all: Vec<_> =
            (0..count).map(|seq| (SegmentId { log: LogId::new(1), epoch: 1, seq }, Some(1 << 19))).collect();
        let tree = log.checkpoint(&tree, &all);
        log.written_bytes = 0;
        let before = log.next;
        let change = (all[count as usize / 2].0, Some(7));
        let tree = log.checkpoint(&again(&tree), &[change]);
        assert_eq!(log.next - before, tree.height().into());
        println!("{count} rows: {} levels, {} bytes", tree.height(), log.written_bytes);
        assert!(log.written_bytes <= usize::from(tree.height()) * PAGE_ROWS_MAX * 32);
    }
}

#[test]
fn leaves_beyond_the_bound_leave_memory() {
    let (mut log, tree) = (Log::default(), Sut::new(8));
    let all: Vec<_> = (0..1000).map(|n| (key(n), Some(1 + n))).collect::<BTreeMap<_, _>>().into_iter().collect();
    let mut tree = log.checkpoint(&tree, &all);
    assert!(tree.homes(0).1.is_empty(), "all was just written");
    let leaves = tree.homes(0).0.len();
    tree.trim(5, usize::MAX);
    assert_eq!(tree.homes(0).1.len(), leaves - 5);
    for (key, value) in all {
        assert_eq!(log.get(&mut tree, key), value);
        tree.trim(5, 1);
        assert!(tree.homes(0).1.len() >= leaves - 5);
    }
}

#[test]
fn rotten_tops_and_pages_are_refused() {
    let mut bytes = Vec::new();
    let mut tree = Tree::<FileId, ()>::new(8);
    tree.edit(&[(FileId::new(7), true)], |_, _, &is| is.then_some(())).unwrap();
    tree.encode(&mut bytes);
    let mut reader = Reader::new(&bytes);
    assert_eq!(Tree::<FileId, ()>::decode(&mut reader, 8).unwrap().get(FileId::new(7)), Ok(Some(())));
    assert!(reader.is_empty());
    let random = SplitMix64::new(1);
    for _ in 0..2000 {
        let noise: Vec<u8> = (0..random.below(200)).map(|_| random.below(256) as u8).collect();
        let _ = Tree::<SegmentId, u64>::decode(&mut Reader::new(&noise), 8);
        let _ = Tree::<FileId, BlockAddr>::decode(&mut Reader::new(&noise), 8);
        for table in [Table::Imap, Table::DataUsage, Table::OwnUsage, Table::Orphans] {
            let _ = page_again(&noise, table, (noise.len() % 3) as u8);
        }
    }
    let high: Vec<u8> = [vec![LEVEL_COUNT_MAX + 1], vec![0; 40]].concat();
    assert!(Tree::<FileId, ()>::decode(&mut Reader::new(&high), 8).is_err());
}
