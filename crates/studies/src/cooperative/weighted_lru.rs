//! The knowledge of Weighted LRU (Dahlin, section 3.1.5): the block that each client would give up,
//! and the cost of that; as it is, or as clients and server believe.
//!
//! The thesis leaves some points open. Here, a block that was sent to a client, and that the client
//! never used, costs that client nothing to lose. It keeps its age when it moves, and a client that
//! asks for it takes it over. A client that gets a block says what the next one would cost it, and
//! the server hears that with the sender's request.
//!
//! To make room, a client with global knowledge has asked the server once about all blocks that it
//! weighs, and all other clients what a block would cost them (3.1.5.1). The server's load, which
//! section 3.3.1 shows only for both hints, includes that one question; questions between clients
//! are not part of it. In all cases a client tells the server about a block that it gave up, and
//! where it went, with its request for the next one.

use super::Knowledge;
use super::caches::{Caches, DUPLICATE, Place, SINGLET, UNKNOWN};
use policy::cooperative::weighted_lru::{Ages, Latencies, Replace, gives_up, replaces};

/// The kind of singlets that another client sent.
const KEPT: u8 = SINGLET + 1;

pub(super) struct Weighted {
    knowledge: Knowledge,
    latencies: Latencies,
    /// By block, when any client used it last.
    used: Vec<u64>,
    /// What the server knows of the cost of a block to each client.
    told: Vec<f64>,
    /// What each client knows of that: the least cost, and its client.
    hints: Vec<Option<(f64, u32)>>,
    /// How often clients asked the server whether a block is the last copy.
    asked: u64,
}

/// The blocks that a client would give up.
struct Candidates {
    duplicate: Option<Place>,
    singlet: Option<Place>,
}

impl Weighted {
    pub(super) fn new(knowledge: Knowledge, clients: u32, blocks: u32, times_us: &[f64; 4]) -> Weighted {
        let [local, remote, _, disk] = *times_us;
        let (count, latencies) = (clients as usize, Latencies { local, remote, disk });
        // All clients have room before any reports.
        let (told, hints) =
            (vec![0.0; count], (0..clients).map(|client| (clients > 1).then(|| (0.0, u32::from(client == 0)))));
        Weighted { knowledge, latencies, used: vec![0; blocks as usize], told, hints: hints.collect(), asked: 0 }
    }

    /// True if clients use what they believe of their own blocks.
    pub(super) fn believes(&self) -> bool {
        self.knowledge != Knowledge::Global
    }

    /// Records that a client uses a block.
    pub(super) fn used(&mut self, block: u32, now: u64) {
        self.used[block as usize] = now;
    }

    fn ages(&self, caches: &Caches, place: Option<Place>, now: u64) -> Option<Ages> {
        let place = place?;
        let local = (caches.recirculated(place) == 0).then(|| now - caches.used(place));
        Some(Ages { local, global: now - self.used[caches.block_of(place) as usize] })
    }

    /// The duplicate and the singlet that cost a client least. Asks the server about each candidate
    /// until it is certain.
    fn candidates(&mut self, caches: &mut Caches, client: u32, now: u64) -> Candidates {
        while let Some(unknown) = caches.oldest_of(client, UNKNOWN) {
            let used = caches.used(unknown);
            let singlets = [SINGLET, KEPT].map(|kind| caches.oldest_of(client, kind));
            let older = |place: Option<Place>| place.is_some_and(|place| caches.used(place) < used);
            let is_known = singlets.into_iter().any(older);
            let duplicate = caches.oldest_of(client, DUPLICATE);
            if is_known && duplicate.is_some_and(|place| caches.used(place) < used) {
                break;
            }
            self.asked += 1;
            let is_singlet = caches.copies(caches.block_of(unknown)) == 1;
            caches.believe(unknown, is_singlet);
        }
        let [own, kept] = [SINGLET, KEPT].map(|kind| caches.oldest_of(client, kind));
        let cost = |place| self.ages(caches, place, now).map(|ages| self.latencies.of_singlet(ages));
        let singlet = match (cost(own), cost(kept)) {
            (Some(of_own), Some(of_kept)) if of_kept < of_own => kept,
            _ => own.or(kept),
        };
        Candidates { duplicate: caches.oldest_of(client, DUPLICATE), singlet }
    }

    /// The cost to a client of a block that is sent to it, and the block that it gives up for it;
    /// `None` if it has room. Infinite if it has no cache.
    fn cost(&mut self, caches: &mut Caches, client: u32, now: u64) -> (f64, Option<Place>) {
        if caches.has_room(client) {
            return (0.0, None);
        }
        let Candidates { duplicate, singlet } = self.candidates(caches, client, now);
        let (of_duplicate, of_singlet) = (self.ages(caches, duplicate, now), self.ages(caches, singlet, now));
        match gives_up(&self.latencies, of_duplicate, of_singlet) {
            Some((cost, Replace::DiscardDuplicate)) => (cost, duplicate),
            Some((cost, _)) => (cost, singlet),
            None => (f64::INFINITY, None),
        }
    }

    /// Where a client's singlet is sent on to, and what it costs there.
    fn elsewhere(&mut self, caches: &mut Caches, client: u32, now: u64) -> Option<(f64, u32)> {
        if self.knowledge == Knowledge::AllHints {
            return self.hints[client as usize];
        }
        let others = (0..self.told.len() as u32).filter(|other| *other != client);
        others.map(|other| (self.cost(caches, other, now).0, other)).reduce(least)
    }

    /// Makes room in a full cache: gives up a block, or sends one to another client. Returns how
    /// often the server was asked, and whether another client has the block now.
    pub(super) fn make_room(&mut self, caches: &mut Caches, client: u32, now: u64) -> (u64, bool) {
        let asked = self.asked;
        let Candidates { duplicate, singlet } = self.candidates(caches, client, now);
        if self.knowledge == Knowledge::Global {
            self.asked += 1;
        }
        let elsewhere = singlet.and_then(|_| self.elsewhere(caches, client, now));
        let (of_duplicate, of_singlet) = (self.ages(caches, duplicate, now), self.ages(caches, singlet, now));
        let cost = elsewhere.map(|(cost, _)| cost);
        let forwarded = match (replaces(&self.latencies, of_duplicate, of_singlet, cost), elsewhere, singlet) {
            (Some(Replace::ForwardSinglet), Some((_, to)), Some(singlet)) => {
                let (block, _) = caches.remove(singlet);
                self.forward(caches, to, block, now)
            }
            (Some(Replace::DiscardDuplicate), ..) => {
                duplicate.map(|place| caches.remove(place));
                false
            }
            _ => {
                singlet.map(|place| caches.remove(place));
                false
            }
        };
        (self.asked - asked, forwarded)
    }

    /// Sends a block to a client; true if the client has it now.
    fn forward(&mut self, caches: &mut Caches, to: u32, block: u32, now: u64) -> bool {
        // The block was not a singlet, although its client believed so.
        if caches.find(to, block).is_some() {
            return false;
        }
        let (_, gives_up) = self.cost(caches, to, now);
        gives_up.map(|place| caches.remove(place));
        let has_room = caches.has_room(to);
        if has_room {
            caches.insert(to, block, 1, self.used[block as usize]);
        }
        self.told[to as usize] = self.cost(caches, to, now).0;
        has_room
    }

    /// Exchanges the hints that go with every message to the server and its answer. Returns how
    /// often the server was asked about a block.
    pub(super) fn tell_server(&mut self, caches: &mut Caches, client: u32, now: u64) -> u64 {
        if self.knowledge != Knowledge::AllHints {
            return 0;
        }
        let asked = self.asked;
        self.told[client as usize] = self.cost(caches, client, now).0;
        let others = self.told.iter().copied().zip(0..).filter(|(_, other)| *other != client);
        self.hints[client as usize] = others.reduce(least);
        self.asked - asked
    }
}

/// The lesser of two costs; the first if they are equal.
fn least(one: (f64, u32), other: (f64, u32)) -> (f64, u32) {
    if other.0 < one.0 { other } else { one }
}
