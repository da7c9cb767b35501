//! What the stores have left, and for whom. Pure.
//!
//! All of it is in bytes of the fullest store, parity and rounding included (`share` says how much
//! of them a payload takes). Only what lives is counted in bytes of payload.
//!
//! A change takes room twice: in the client's log, and in the managers' next checkpoint, which
//! writes the index nodes of all changed files and pages of the imap anew. The second is *owed*
//! until that checkpoint. Nothing can be deleted before a checkpoint, so one must always fit: a
//! change is admitted only if there is room for both. A checkpoint gives back what it supersedes,
//! and then the next changes fit.
//!
//! The cleaner works on a [`Loan`]: its own reserve and half of what writers could have. Its
//! copies, and what it makes the managers owe, stay within the loan, and clients count the loan as
//! taken until it is given back.
//!
//! Each [reserve](Reserves) has an owner, and nobody uses another's. Writers stop first, then
//! changes that free nothing, then removals.

use std::collections::{BTreeMap, BTreeSet};

/// Consecutive index numbers that are taken to be in one page of the imap, and what that page and
/// the one above it take.
const PAGE_FILES: u64 = 64;
const PAGE_BYTES: u64 = 8 << 10;
/// What an index node takes besides attributes, target and extents, at most; with what names it in
/// its segment.
const NODE_BYTES: u64 = 512;
const EXTENT_BYTES: u64 = 48;
/// What a move takes in the cleaner's log besides the block.
const MOVE_BYTES: u64 = 96;
/// Dead bytes, of payload, that logs may hold before anything is worth cleaning; and the share of
/// the rest that live data may take. A log cannot be filled to the brim: the fuller it is, the more
/// each cleaned byte costs.
const DEAD_PAYLOAD_BYTES: u64 = 24 << 20;
const LIVE_PERCENT: u64 = 80;

/// What is kept free on each store, by owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserves {
    /// The client's log: segments on their way are put again, whole, when a store fails.
    pub log_bytes: u64,
    /// The managers: what a checkpoint writes besides what is owed (roots, counts of live bytes),
    /// and rounding.
    pub manager_bytes: u64,
    /// The cleaner: copies are there before their originals go.
    pub cleaner_bytes: u64,
    /// Changes that neither add nor free anything for good: modes, owners, times.
    pub change_bytes: u64,
    /// Removals.
    pub removal_bytes: u64,
}

impl Reserves {
    /// For stores of `capacity_bytes`, of which `log_bytes` are kept for what is on its way.
    pub fn new(log_bytes: u64, capacity_bytes: u64) -> Reserves {
        Reserves {
            log_bytes,
            // Counts are a row for each segment, and the least segment takes some KiB.
            manager_bytes: (2 << 20) + capacity_bytes / 256,
            // Room for any one move and its index node, several times. Where more is free, the
            // cleaner is lent more.
            cleaner_bytes: (capacity_bytes / 12).clamp(4 << 20, 8 << 20),
            change_bytes: 1 << 20,
            removal_bytes: 1 << 20,
        }
    }

    /// What a change of this kind leaves free.
    pub fn kept_from(&self, purpose: Purpose) -> u64 {
        let work = self.log_bytes + self.manager_bytes + self.cleaner_bytes;
        match purpose {
            Purpose::Write => work + self.change_bytes + self.removal_bytes,
            Purpose::Change => work + self.removal_bytes,
            Purpose::Remove => work,
        }
    }
}

/// Payload that may live where full segments hold `packed_bytes` of it, and `reserved_bytes` where
/// writers leave stores free.
pub fn live_bytes_max(packed_bytes: u64, reserved_bytes: u64) -> u64 {
    packed_bytes.saturating_sub(reserved_bytes.max(DEAD_PAYLOAD_BYTES)) / 100 * LIVE_PERCENT
}

/// What a change is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// It adds something that lives.
    Write,
    /// It neither adds nor frees anything for good.
    Change,
    /// It frees something.
    Remove,
}

/// What was seen of the fullest store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// What all managers' checkpoints covered of the client's log before.
    pub covered_seq: u64,
    /// [`Space::placed_bytes`] before.
    pub placed_bytes: u64,
    /// What was free.
    pub free_bytes: u64,
}

/// What a checkpoint writes of an index node, at most, with all extents in the leaves of its map
/// that have changed.
pub fn index_bytes(attribute_bytes: u64, extent_count: u64) -> u64 {
    NODE_BYTES + attribute_bytes + extent_count * EXTENT_BYTES
}

/// What a checkpoint writes of these files, each with its [`index_bytes`].
pub fn owed_bytes(files: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let (mut pages, mut bytes) = (BTreeSet::new(), 0);
    for (file, index_bytes) in files {
        pages.insert(file / PAGE_FILES);
        bytes += index_bytes;
    }
    bytes + pages.len() as u64 * PAGE_BYTES
}

/// Room that the cleaner was lent, and what it has used of it.
#[derive(Clone, Debug, Default)]
pub struct Loan {
    bytes: u64,
    copied_bytes: u64,
    owed_bytes: u64,
    files: BTreeSet<u64>,
    leaves: BTreeSet<(u64, u64)>,
    pages: BTreeSet<u64>,
}

/// A run that the cleaner wants to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Its file.
    pub file: u64,
    /// Its leaf in the file's map.
    pub leaf: u64,
    /// Its length.
    pub len: u64,
    /// Attributes and target of the file.
    pub attribute_bytes: u64,
    /// Extents in the leaf.
    pub extent_count: u64,
}

impl Loan {
    /// For so many bytes of each store.
    pub fn new(bytes: u64) -> Loan {
        Loan { bytes, ..Loan::default() }
    }

    /// Takes room for a copy, and for what the managers owe for it. False, and nothing taken, if
    /// there is not so much.
    pub fn take(&mut self, moved: Moved, share: impl Fn(u64) -> u64) -> bool {
        let (is_new, page) = (!self.files.contains(&moved.file), moved.file / PAGE_FILES);
        let mut owed = 0;
        if is_new {
            owed += NODE_BYTES + moved.attribute_bytes;
        }
        if !self.leaves.contains(&(moved.file, moved.leaf)) {
            owed += moved.extent_count * EXTENT_BYTES;
        }
        if !self.pages.contains(&page) {
            owed += PAGE_BYTES;
        }
        // A move may split an extent of its leaf in three.
        owed += 2 * EXTENT_BYTES;
        let (copied, owed) = (self.copied_bytes + moved.len + MOVE_BYTES, self.owed_bytes + owed);
        if share(copied).saturating_add(share(owed)) > self.bytes {
            return false;
        }
        (self.copied_bytes, self.owed_bytes) = (copied, owed);
        self.files.insert(moved.file);
        self.leaves.insert((moved.file, moved.leaf));
        self.pages.insert(page);
        true
    }

    /// Takes room for `live_bytes` of a segment, and as much again for the index nodes and pages of
    /// the imap that say where they are. False, and nothing taken, if there is not so much.
    pub fn take_segment(&mut self, live_bytes: u64, share: impl Fn(u64) -> u64) -> bool {
        let owed = self.owed_bytes + 2 * live_bytes;
        let fits = share(self.copied_bytes).saturating_add(share(owed)) <= self.bytes;
        if fits {
            self.owed_bytes = owed;
        }
        fits
    }
}

/// A cut that some manager has not checkpointed.
#[derive(Clone, Copy, Debug)]
struct Cut {
    payload_bytes: u64,
    owed_bytes: u64,
}

/// See the module's header.
#[derive(Debug)]
pub struct Space {
    reserves: Reserves,
    /// Payload that lives, never less than the truth, and what it may grow to.
    used_bytes: u64,
    limit_bytes: u64,
    /// What cuts since the start took.
    placed_bytes: u64,
    /// What `placed_bytes` would be if all that is free were used.
    placed_bytes_max: u64,
    /// By seq; those up to `applied_seq` count as used.
    cuts: BTreeMap<u64, Cut>,
    applied_seq: u64,
    covered_seq: u64,
    /// Owed for `cuts` in all, for what is in no cut yet, and for what was found at the start.
    owed_cut_bytes: u64,
    owed_dirty_bytes: u64,
    owed_before_bytes: u64,
    /// Pages of the imap that are owed, by the cut that they are owed for.
    pages: BTreeMap<u64, u64>,
    /// What the cleaner has beside its reserve.
    lent_bytes: u64,
}

impl Space {
    /// For managers that owe `owed_bytes` to a checkpoint. Until somebody has looked, the stores
    /// have room for everything.
    pub fn new(reserves: Reserves, limit_bytes: u64, owed_bytes: u64) -> Space {
        Space {
            reserves,
            used_bytes: 0,
            limit_bytes,
            placed_bytes: 0,
            placed_bytes_max: u64::MAX,
            cuts: BTreeMap::new(),
            applied_seq: 0,
            covered_seq: 0,
            owed_cut_bytes: 0,
            owed_dirty_bytes: 0,
            owed_before_bytes: owed_bytes,
            pages: BTreeMap::new(),
            lent_bytes: 0,
        }
    }

    /// True if there is room for a change that makes the next cut `payload_bytes` long. The
    /// managers' reserve has room for what this change alone will owe.
    pub fn admits(&self, purpose: Purpose, payload_bytes: u64, share: impl Fn(u64) -> u64) -> bool {
        let lives = purpose != Purpose::Write || self.used_bytes + payload_bytes <= self.limit_bytes;
        let taken = self.taken_bytes(payload_bytes, share).saturating_add(self.lent_bytes);
        lives && taken.saturating_add(self.reserves.kept_from(purpose)) <= self.placed_bytes_max
    }

    /// What is placed, dirty or owed, when the next cut is `payload_bytes` long.
    fn taken_bytes(&self, payload_bytes: u64, share: impl Fn(u64) -> u64) -> u64 {
        self.placed_bytes.saturating_add(share(payload_bytes)).saturating_add(share(self.owed_bytes()))
    }

    /// What the next checkpoints will write for all that was admitted, at most.
    pub fn owed_bytes(&self) -> u64 {
        let pages = self.pages.len() as u64 * PAGE_BYTES;
        self.owed_before_bytes + self.owed_dirty_bytes + self.owed_cut_bytes + pages
    }

    /// A checkpoint will write so much more of a file that has changed. `cut_seq` is the next cut.
    pub fn owe(&mut self, file: u64, index_bytes: u64, cut_seq: u64) {
        self.owed_dirty_bytes += index_bytes;
        self.pages.insert(file / PAGE_FILES, cut_seq);
    }

    /// All that is dirty went into a cut, for whose files a checkpoint writes `owed_bytes`, as is
    /// known by now.
    pub fn cut(&mut self, seq: u64, payload_bytes: u64, owed_bytes: u64, share: impl Fn(u64) -> u64) {
        self.used_bytes += payload_bytes;
        self.placed_bytes += share(payload_bytes);
        self.owed_dirty_bytes = 0;
        self.owed_cut_bytes += owed_bytes;
        self.cuts.insert(seq, Cut { payload_bytes, owed_bytes });
    }

    /// All managers have applied the cuts up to this one.
    pub fn applied(&mut self, seq: u64) {
        self.applied_seq = seq;
        self.settle();
    }

    /// Cuts are remembered until they are applied and covered.
    fn settle(&mut self) {
        for (_, cut) in self.cuts.range_mut(..=self.covered_seq) {
            self.owed_cut_bytes -= std::mem::take(&mut cut.owed_bytes);
        }
        let done = self.applied_seq.min(self.covered_seq);
        self.cuts = self.cuts.split_off(&(done + 1));
    }

    /// The managers count so much as live.
    pub fn counted(&mut self, live_bytes: u64) {
        let unapplied = self.cuts.range(self.applied_seq + 1..).map(|(_, cut)| cut.payload_bytes).sum::<u64>();
        self.used_bytes = live_bytes + unapplied;
    }

    /// Somebody has looked at the stores. What a checkpoint before that has written is not free any
    /// more, and not owed.
    pub fn looked(&mut self, look: Look) {
        self.placed_bytes_max = look.placed_bytes.saturating_add(look.free_bytes);
        if look.covered_seq > self.covered_seq {
            self.covered_seq = look.covered_seq;
            self.owed_before_bytes = 0;
            self.pages.retain(|_, cut_seq| *cut_seq > look.covered_seq);
            self.settle();
        }
    }

    /// Lends the cleaner its reserve, and half of what writers could have beside `dirty_bytes` that
    /// are in no cut yet. An earlier loan ends.
    pub fn lend(&mut self, dirty_bytes: u64, share: impl Fn(u64) -> u64) -> Loan {
        let reserves = &self.reserves;
        let free = self.placed_bytes_max.saturating_sub(self.taken_bytes(dirty_bytes, share));
        let own = reserves.cleaner_bytes.min(free.saturating_sub(reserves.log_bytes + reserves.manager_bytes));
        self.lent_bytes = free.saturating_sub(reserves.kept_from(Purpose::Write)) / 2;
        Loan::new(own + self.lent_bytes)
    }

    /// The loan is over: a checkpoint has written what the cleaner made the managers owe, and
    /// somebody has looked since.
    pub fn give_back(&mut self) {
        self.lent_bytes = 0;
    }

    /// From now on, so much payload may live.
    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// What was put on the stores so far, at most, of which everything up to `committed_seq` is
    /// there.
    pub fn placed_bytes(&self, committed_seq: u64, share: impl Fn(u64) -> u64) -> u64 {
        let in_flight = self.cuts.range(committed_seq + 1..).map(|(_, cut)| share(cut.payload_bytes)).sum();
        self.placed_bytes.saturating_sub(in_flight)
    }

    /// Payload that lives.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// What it may grow to.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What writers leave free.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserves.kept_from(Purpose::Write)
    }
}

#[cfg(test)]
mod tests;
