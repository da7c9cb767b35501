//! Clients' caches with N-Chance Forwarding, as far as a cleaner asks for them: is a block in any of them? What becomes of blocks is `policy::cooperative`'s decision.
//!
//! Each cache has its blocks in the order of use, by kind: duplicates, and singlets by how often they went on.

use host::SplitMix64;
use policy::cooperative::{Leaving, RECIRCULATIONS, Yields, leaving, yields};
use std::collections::BTreeMap;

/// Kinds of blocks: duplicates, and singlets that went on 0 to so many times.
const KINDS: usize = RECIRCULATIONS as usize + 2;

/// A block in a cache.
#[derive(Clone, Copy)]
struct Held {
    client: u32,
    /// When it was used or came, by which it is found.
    used: u64,
    recirculated: u8,
}

/// See the module's header.
pub struct Caches {
    room: usize,
    /// By client and kind, from use to block.
    kinds: Vec<[BTreeMap<u64, u32>; KINDS]>,
    /// By block.
    copies: Vec<Vec<Held>>,
    clock: u64,
    random: SplitMix64,
}

impl Caches {
    /// Empty ones with room for so many blocks each; none is none.
    pub fn new(clients: u32, room: u32, blocks: usize, seed: u64) -> Caches {
        let kinds = (0..clients).map(|_| std::array::from_fn(|_| BTreeMap::new())).collect();
        let (copies, random) = (vec![Vec::new(); blocks], SplitMix64::new(seed));
        Caches { room: room as usize, kinds, copies, clock: 0, random }
    }

    /// True if some client has it.
    pub fn has(&self, block: u32) -> bool {
        !self.copies[block as usize].is_empty()
    }

    /// A client reads it.
    pub fn read(&mut self, client: u32, block: u32) {
        if self.remove(client, block).is_none()
            && let [Held { client: other, recirculated: 1.., .. }] = self.copies[block as usize][..]
        {
            // Who only has it for others gives it up.
            self.remove(other, block);
        }
        self.keep(client, block);
    }

    /// A client writes it.
    pub fn write(&mut self, client: u32, block: u32) {
        self.forget(block);
        self.keep(client, block);
    }

    /// It is gone.
    pub fn forget(&mut self, block: u32) {
        while let Some(Held { client, .. }) = self.copies[block as usize].last().copied() {
            self.remove(client, block);
        }
    }

    fn len(&self, client: u32) -> usize {
        self.kinds[client as usize].iter().map(BTreeMap::len).sum()
    }

    fn keep(&mut self, client: u32, block: u32) {
        if self.room == 0 {
            return;
        }
        if self.len(client) >= self.room {
            self.leave(client);
        }
        self.insert(client, block, 0);
    }

    /// A client gives up what it used least recently, and another one may get it.
    fn leave(&mut self, client: u32) {
        let oldest = self.kinds[client as usize].iter().filter_map(BTreeMap::first_key_value).min();
        let Some((_, &block)) = oldest else { return };
        let is_singlet = self.copies[block as usize].len() == 1;
        let clients = self.kinds.len() as u32;
        let Some(recirculated) = self.remove(client, block) else { return };
        if let Leaving::Forward(recirculated) = leaving(is_singlet, recirculated, RECIRCULATIONS)
            && clients > 1
        {
            let other = (client + 1 + self.random.below(u64::from(clients) - 1) as u32) % clients;
            if self.len(other) >= self.room {
                self.make_way(other);
            }
            self.insert(other, block, recirculated);
        }
    }

    fn make_way(&mut self, client: u32) {
        let [duplicates, singlets @ ..] = &self.kinds[client as usize];
        let counts: [u64; KINDS - 1] = std::array::from_fn(|often| singlets[often].len() as u64);
        let kind = match yields(duplicates.len() as u64, &counts) {
            Some(Yields::OldestDuplicate) => duplicates,
            Some(Yields::OldestSinglet(often)) => &singlets[often as usize],
            None => return,
        };
        if let Some((_, &block)) = kind.first_key_value() {
            self.remove(client, block);
        }
    }

    fn insert(&mut self, client: u32, block: u32, recirculated: u8) {
        self.clock += 1;
        let copy = Held { client, used: self.clock, recirculated };
        if let [alone] = self.copies[block as usize][..] {
            // It is a duplicate from now on.
            self.kind(&alone, true).remove(&alone.used);
            self.kind(&alone, false).insert(alone.used, block);
        }
        let is_singlet = self.copies[block as usize].is_empty();
        self.kind(&copy, is_singlet).insert(copy.used, block);
        self.copies[block as usize].push(copy);
    }

    /// Gives how often it went on, if it was there.
    fn remove(&mut self, client: u32, block: u32) -> Option<u8> {
        let at = self.copies[block as usize].iter().position(|copy| copy.client == client)?;
        let copy = self.copies[block as usize].remove(at);
        let was_singlet = self.copies[block as usize].is_empty();
        self.kind(&copy, was_singlet).remove(&copy.used);
        if let [alone] = self.copies[block as usize][..] {
            // It is the last one from now on.
            self.kind(&alone, false).remove(&alone.used);
            self.kind(&alone, true).insert(alone.used, block);
        }
        Some(copy.recirculated)
    }

    /// Where a client has a copy of a block that only it has, or not only it.
    fn kind(&mut self, copy: &Held, is_singlet: bool) -> &mut BTreeMap<u64, u32> {
        let kind = if is_singlet { usize::from(copy.recirculated) + 1 } else { 0 };
        &mut self.kinds[copy.client as usize][kind]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which clients have it.
    fn holders(caches: &Caches, block: u32) -> Vec<u32> {
        caches.copies[block as usize].iter().map(|copy| copy.client).collect()
    }

    #[test]
    fn a_singlet_goes_on_twice_and_is_gone_then() {
        let mut caches = Caches::new(2, 1, 10, 1);
        caches.read(0, 7);
        // It goes to the other client, who has room, and back in the place of what the first one has.
        caches.read(0, 8);
        assert_eq!((holders(&caches, 7), holders(&caches, 8)), (vec![1], vec![0]));
        caches.read(1, 9);
        assert_eq!((holders(&caches, 7), holders(&caches, 9)), (vec![0], vec![1]));
        caches.read(0, 5);
        assert_eq!((holders(&caches, 7), holders(&caches, 9), holders(&caches, 5)), (vec![], vec![1], vec![0]));
    }

    #[test]
    fn a_duplicate_does_not_go_on_and_what_only_went_on_is_given_up_to_who_reads_it() {
        let mut caches = Caches::new(2, 2, 10, 1);
        caches.read(0, 7);
        caches.read(1, 7);
        assert_eq!(holders(&caches, 7), [0, 1]);
        caches.read(0, 1);
        caches.read(0, 2);
        assert_eq!((holders(&caches, 7), caches.len(1)), (vec![1], 1));
        caches.read(0, 3);
        assert_eq!(holders(&caches, 1), [1], "a singlet");
        caches.read(0, 1);
        assert_eq!(holders(&caches, 1), [0]);
    }

    #[test]
    fn what_is_written_or_gone_is_nowhere_else() {
        let mut caches = Caches::new(3, 4, 10, 1);
        (0..3).for_each(|client| caches.read(client, 5));
        caches.write(1, 5);
        assert_eq!(holders(&caches, 5), [1]);
        caches.forget(5);
        assert!(!caches.has(5));
    }

    #[test]
    fn prop_caches_are_never_fuller_than_they_can_be_and_kinds_are_right() {
        let (random, mut caches) = (SplitMix64::new(3), Caches::new(4, 5, 40, 1));
        for _ in 0..20_000 {
            let (client, block) = (random.below(4) as u32, random.below(40) as u32);
            match random.below(10) {
                0 => caches.forget(block),
                1..4 => caches.write(client, block),
                _ => caches.read(client, block),
            }
            for client in 0..4 {
                assert!(caches.len(client) <= 5);
                for (kind, blocks) in caches.kinds[client as usize].iter().enumerate() {
                    for block in blocks.values() {
                        let copies = &caches.copies[*block as usize];
                        let of = copies.iter().find(|copy| copy.client == client).expect("there");
                        let is = if copies.len() == 1 { usize::from(of.recirculated) + 1 } else { 0 };
                        assert_eq!(kind, is);
                    }
                }
            }
            let all: usize = (0..4).map(|client| caches.len(client)).sum();
            assert_eq!(all, caches.copies.iter().map(Vec::len).sum::<usize>());
        }
    }
}
