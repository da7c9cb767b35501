//! Feeley's epochs: global knowledge of all caches, renewed from time to time, which decides where
//! blocks go.
//!
//! A client first gives up blocks that it keeps for others; a client that is sent a block gives up
//! its least recently used one. A block keeps its age when it moves. Clients tell their blocks'
//! ages to one of them, which starts an epoch, and hear the result from it. This is not part of the
//! server's load.

use super::caches::{Caches, Place, SINGLET};
use host::SplitMix64;
use policy::cooperative::epochs::{EPOCH_US_MAX, Epoch, REPLACED_PER_EPOCH};

/// Most blocks whose age is looked at; if there are more, evenly chosen ones.
const SAMPLE_MAX: u64 = 8192;

pub(super) struct Epochs {
    epoch: Option<Epoch>,
    end_us: u64,
    /// Last copies that leave a cache, to another or to none, until the epoch ends.
    left: u64,
    /// The room in all caches.
    room: u64,
}

impl Epochs {
    pub(super) fn new(caches: &Caches) -> Epochs {
        Epochs { epoch: None, end_us: 0, left: 0, room: caches.room() }
    }

    /// The oldest of the blocks that a client keeps for others.
    pub(super) fn first_to_go(caches: &mut Caches, client: u32) -> Option<Place> {
        caches.oldest_of(client, SINGLET + 1)
    }

    /// Handles a last copy that leaves a client's cache. True if another client has it now.
    pub(super) fn forward(
        &mut self,
        caches: &mut Caches,
        from: u32,
        block: u32,
        used: u64,
        now: u64,
        random: &SplitMix64,
    ) -> bool {
        if self.left == 0 || now >= self.end_us {
            self.begin(caches, now);
        }
        self.left -= 1;
        let to = self.epoch.as_ref().and_then(|epoch| epoch.goes(from, now - used, |bound| random.below(bound)));
        let Some(to) = to else { return false };
        if !caches.has_room(to) {
            let Some(oldest) = caches.oldest(to) else { return false };
            caches.remove(oldest);
        }
        caches.insert(to, block, 1, used);
        true
    }

    fn begin(&mut self, caches: &Caches, now: u64) {
        let one_in = self.room.div_ceil(SAMPLE_MAX).max(1);
        let ages = caches.sample(one_in as usize);
        let ages = ages.map(|(used, client)| (used.map_or(u64::MAX, |used| now - used), client)).collect();
        self.left = (self.room / REPLACED_PER_EPOCH).max(1);
        self.end_us = now.saturating_add(EPOCH_US_MAX);
        let of_sample = (self.left / one_in).max(1) as usize;
        self.epoch = Some(Epoch::begin(caches.count(), ages, of_sample));
    }
}
