//! Admission: how much room the stores have left, and whether a change fits. Pure.
//!
//! Sizes are bytes of the fullest store, with parity and rounding; `share` tells how many of these
//! a payload takes. Live data, and what is owed, are counted in bytes of payload.
//!
//! A change takes room twice: in the client's log, and in the managers' next checkpoint, which
//! writes the index nodes of all changed files and pages of the imap anew. The second part is
//! *owed* until that checkpoint. Nothing can be deleted before a checkpoint, so one must always
//! fit: a change is admitted only if there is room for both parts. A checkpoint frees what it
//! supersedes, and then the next changes fit.
//!
//! The cleaner works on a [`Loan`]: its own reserve and half of the room that writers could have.
//! Its copies, and what it makes the managers owe, stay within the loan. Clients count the loan as
//! taken until it is given back.
//!
//! Each [reserve](Reserves) has an owner, and only the owner uses it. Writes stop first, then
//! changes that free nothing, then removals.
//!
//! Several clients have an account each. A client [claims](SpaceAccount::claim) what it may still
//! take, and is given a [`SpaceShare`] of what is free (see [`shares`](crate::shares)).

use std::collections::{BTreeMap, BTreeSet};

/// Consecutive index numbers that are assumed to share one page of the imap.
const PAGE_FILES: u64 = 64;
/// Bytes that a checkpoint writes for a changed page of the imap and the page above it, at most.
const PAGE_BYTES: u64 = 8 << 10;
/// Bytes of an index node besides attributes, target and extents, at most. Includes the index
/// node's name in its segment.
const NODE_BYTES: u64 = 512;
/// Bytes of an extent in an index node, at most.
const EXTENT_BYTES: u64 = 48;
/// Bytes that a move takes in a log besides the block, at most.
const MOVE_BYTES: u64 = 96;
/// Dead bytes of payload that logs may hold before anything is worth cleaning. Live data never
/// takes this room.
const DEAD_PAYLOAD_BYTES: u64 = 24 << 20;
/// The part of the rest that live data may take, in percent. A log cannot be filled to the brim:
/// the fuller it is, the more each cleaned byte costs.
const LIVE_PERCENT: u64 = 80;

/// Bytes that are kept free on each store, by owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserves {
    /// For the client's log: when a store fails, segments in flight are put again, whole.
    pub log_bytes: u64,
    /// For the managers: what a checkpoint writes besides what is owed (roots, counts of live
    /// bytes), and rounding.
    pub manager_bytes: u64,
    /// For the cleaner: it writes copies before their originals are deleted.
    pub cleaner_bytes: u64,
    /// For changes that neither add nor free anything for good: modes, owners, times.
    pub change_bytes: u64,
    /// For removals.
    pub removal_bytes: u64,
}

impl Reserves {
    /// The reserves of stores of `capacity_bytes`, with `log_bytes` for segments in flight.
    pub fn new(log_bytes: u64, capacity_bytes: u64) -> Reserves {
        Reserves {
            log_bytes,
            // The counts of live bytes are a row for each segment, and the smallest segment takes
            // some KiB.
            manager_bytes: (2 << 20) + capacity_bytes / 256,
            // Room for several moves of any size, each with its index node. If more is free, the
            // cleaner is lent more.
            cleaner_bytes: (capacity_bytes / 12).clamp(4 << 20, 8 << 20),
            change_bytes: 1 << 20,
            removal_bytes: 1 << 20,
        }
    }

    /// The reserves that all clients have in common: those of managers and cleaner. Each client has
    /// the others for itself, out of its own share.
    pub fn common_bytes(&self) -> u64 {
        self.manager_bytes + self.cleaner_bytes
    }

    /// Bytes of each store that a change for this purpose must leave free.
    pub fn kept_from(&self, purpose: Purpose) -> u64 {
        let work = self.log_bytes + self.manager_bytes + self.cleaner_bytes;
        match purpose {
            Purpose::Write => work + self.change_bytes + self.removal_bytes,
            Purpose::Change => work + self.removal_bytes,
            Purpose::Remove => work,
        }
    }
}

/// Payload bytes that may live on the stores. `packed_bytes` is the payload that fits in full
/// segments, and `reserved_bytes` the payload that would fit into what writers must leave free.
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

/// A look at the fullest store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// All managers' checkpoints covered the client's log up to here, before the look.
    pub covered_seq: u64,
    /// [`SpaceAccount::placed_bytes`] before the look.
    pub placed_bytes: u64,
    /// Bytes that were free.
    pub free_bytes: u64,
}

/// What a client may still take at most, by what it was told last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceClaim {
    /// [`SpaceAccount::placed_bytes`] at this moment.
    pub placed_bytes: u64,
    /// The last cut that all managers have applied.
    pub applied_seq: u64,
    /// Bytes of each store that it may place or make the managers owe, besides `placed_bytes`.
    pub store_bytes: u64,
    /// Payload bytes that it may add to what the managers count as live.
    pub live_bytes: u64,
}

/// What a client may take from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceShare {
    /// All managers' checkpoints covered the client's log up to here, before the look at the
    /// stores.
    pub covered_seq: u64,
    /// Free bytes of the fullest store that the client may count on.
    pub free_bytes: u64,
    /// The most that live payload bytes of all clients may grow to.
    pub limit_bytes: u64,
    /// What lives; `None` if the managers could not be asked.
    pub live: Option<LiveShare>,
}

/// The live data of all clients, as one of them sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveShare {
    /// Payload bytes that the managers count as live.
    pub counted_bytes: u64,
    /// Payload bytes that the other clients may add.
    pub others_bytes: u64,
}

/// Bytes that a checkpoint writes for an index node, at most. `extent_count` counts all extents in
/// the changed leaves of its map.
pub fn index_bytes(attribute_bytes: u64, extent_count: u64) -> u64 {
    NODE_BYTES + attribute_bytes + extent_count * EXTENT_BYTES
}

/// Bytes that a checkpoint writes for these files, each with its [`index_bytes`].
pub fn owed_bytes(files: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let (mut pages, mut bytes) = (BTreeSet::new(), 0);
    for (file, index_bytes) in files {
        pages.insert(file / PAGE_FILES);
        bytes += index_bytes;
    }
    bytes + pages.len() as u64 * PAGE_BYTES
}

/// Room that the cleaner was lent, and the part of it that the cleaner has used.
#[derive(Clone, Debug, Default)]
pub struct Loan {
    bytes: u64,
    /// Payload of the copies, in all logs.
    copied_bytes: u64,
    /// Payload that the managers owe for the moves.
    owed_bytes: u64,
    /// Files, leaves and pages whose room was taken already.
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
    /// Its length in bytes.
    pub len: u64,
    /// Bytes of the file's attributes and target.
    pub attribute_bytes: u64,
    /// Number of extents in the leaf.
    pub extent_count: u64,
}

impl Loan {
    /// A loan of `bytes` on each store.
    pub fn new(bytes: u64) -> Loan {
        Loan { bytes, ..Loan::default() }
    }

    /// Takes room for a copy, and for what the managers will owe for it. If the loan has too little
    /// left, takes nothing and returns false.
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

    /// Takes room for further copies of runs that were taken before: `copied_bytes` of `run_count`
    /// runs. If the loan has too little left, takes nothing and returns false.
    pub fn take_again(&mut self, copied_bytes: u64, run_count: u64, share: impl Fn(u64) -> u64) -> bool {
        let copied = self.copied_bytes + copied_bytes + run_count * MOVE_BYTES;
        let fits = share(copied).saturating_add(share(self.owed_bytes)) <= self.bytes;
        if fits {
            self.copied_bytes = copied;
        }
        fits
    }

    /// Takes room for `live_bytes` of a segment, and as much again for the index nodes and pages of
    /// the imap that say where they are. If the loan has too little left, takes nothing and returns
    /// false.
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
    /// Zero once all managers' checkpoints cover the cut.
    owed_bytes: u64,
}

/// A client's account of the stores' room: what is used, what is owed, and what is free.
#[derive(Debug)]
pub struct SpaceAccount {
    reserves: Reserves,
    /// Live payload bytes, never less than the truth.
    used_bytes: u64,
    /// The most that `used_bytes` may grow to, together with `others_bytes`.
    limit_bytes: u64,
    /// Live payload bytes that other clients may add.
    others_bytes: u64,
    /// Bytes that cuts since the start took.
    placed_bytes: u64,
    /// What `placed_bytes` would be if all free bytes were used.
    placed_bytes_max: u64,
    /// Cuts by `seq`. The managers' counts include those up to `applied_seq`.
    cuts: BTreeMap<u64, Cut>,
    applied_seq: u64,
    covered_seq: u64,
    /// Owed for all of `cuts`, without pages.
    owed_cut_bytes: u64,
    /// Owed for changes that are in no cut yet, without pages.
    owed_dirty_bytes: u64,
    /// Owed since before the start.
    owed_before_bytes: u64,
    /// Pages of the imap that are owed, each with the newest cut that it is owed for.
    pages: BTreeMap<u64, u64>,
    /// What the cleaner has beside its reserve.
    lent_bytes: u64,
}

impl SpaceAccount {
    /// An account with managers that owe `owed_bytes` to a checkpoint. Until the first
    /// [look](Self::looked) the stores count as having room for everything.
    pub fn new(reserves: Reserves, limit_bytes: u64, owed_bytes: u64) -> SpaceAccount {
        SpaceAccount {
            reserves,
            used_bytes: 0,
            limit_bytes,
            others_bytes: 0,
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

    /// True if a change fits that makes the next cut `payload_bytes` long. What this one change
    /// will owe is not counted: the managers' reserve has room for it.
    pub fn admits(&self, purpose: Purpose, payload_bytes: u64, share: impl Fn(u64) -> u64) -> bool {
        let live_bytes = self.used_bytes.saturating_add(self.others_bytes).saturating_add(payload_bytes);
        let lives = purpose != Purpose::Write || live_bytes <= self.limit_bytes;
        let taken = self.taken_bytes(payload_bytes, share).saturating_add(self.lent_bytes);
        lives && taken.saturating_add(self.reserves.kept_from(purpose)) <= self.placed_bytes_max
    }

    /// Bytes that are placed, dirty or owed if the next cut is `payload_bytes` long.
    fn taken_bytes(&self, payload_bytes: u64, share: impl Fn(u64) -> u64) -> u64 {
        self.placed_bytes.saturating_add(share(payload_bytes)).saturating_add(share(self.owed_bytes()))
    }

    /// Payload that the next checkpoints will write for all admitted changes, at most.
    pub fn owed_bytes(&self) -> u64 {
        let pages = self.pages.len() as u64 * PAGE_BYTES;
        self.owed_before_bytes + self.owed_dirty_bytes + self.owed_cut_bytes + pages
    }

    /// A file has changed, and a checkpoint will write `index_bytes` more for it. `cut_seq` is the
    /// next cut.
    pub fn owe(&mut self, file: u64, index_bytes: u64, cut_seq: u64) {
        self.owed_dirty_bytes += index_bytes;
        self.pages.insert(file / PAGE_FILES, cut_seq);
    }

    /// Everything dirty went into a cut. `owed_bytes` is what a checkpoint will write for its
    /// files, now that they are known.
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

    /// Forgets cuts that are both applied and covered, and the owed bytes of covered ones.
    fn settle(&mut self) {
        for (_, cut) in self.cuts.range_mut(..=self.covered_seq) {
            self.owed_cut_bytes -= std::mem::take(&mut cut.owed_bytes);
        }
        let done = self.applied_seq.min(self.covered_seq);
        self.cuts = self.cuts.split_off(&(done + 1));
    }

    /// The managers count `live_bytes` as live. Cuts that they have not applied are added.
    pub fn counted(&mut self, live_bytes: u64) {
        self.used_bytes = live_bytes + self.unapplied_bytes(self.applied_seq);
    }

    /// Takes in a look at the stores. What a checkpoint wrote before the look is no longer free, so
    /// it is no longer owed.
    pub fn looked(&mut self, look: Look) {
        self.placed_bytes_max = look.placed_bytes.saturating_add(look.free_bytes);
        if look.covered_seq > self.covered_seq {
            self.covered_seq = look.covered_seq;
            self.owed_before_bytes = 0;
            self.pages.retain(|_, cut_seq| *cut_seq > look.covered_seq);
            self.settle();
        }
    }

    /// Lends the cleaner its reserve, and half of the room that writers could have. `dirty_bytes`
    /// are in no cut yet and stay with the writers. An earlier loan ends.
    pub fn lend(&mut self, dirty_bytes: u64, share: impl Fn(u64) -> u64) -> Loan {
        let reserves = &self.reserves;
        let free = self.placed_bytes_max.saturating_sub(self.taken_bytes(dirty_bytes, share));
        let own = reserves.cleaner_bytes.min(free.saturating_sub(reserves.log_bytes + reserves.manager_bytes));
        self.lent_bytes = free.saturating_sub(reserves.kept_from(Purpose::Write)) / 2;
        Loan::new(own + self.lent_bytes)
    }

    /// Ends the loan. Call it when a checkpoint has written what the cleaner made the managers owe,
    /// and a [look](Self::looked) came after that.
    pub fn give_back(&mut self) {
        self.lent_bytes = 0;
    }

    /// What this client may still take. `dirty_bytes` are in no cut yet, and cuts after
    /// `committed_seq` may be in flight.
    pub fn claim(&self, dirty_bytes: u64, committed_seq: u64, share: impl Fn(u64) -> u64) -> SpaceClaim {
        let placed_bytes = self.placed_bytes(committed_seq, &share);
        // Admitted changes are placed even if less is free by now, and segments in flight may have
        // to be put again.
        let admitted = self.taken_bytes(dirty_bytes, &share).saturating_add(self.lent_bytes);
        let admitted = admitted.saturating_add(self.reserves.log_bytes);
        let most = self.placed_bytes_max.saturating_sub(self.reserves.common_bytes()).max(admitted);
        let unapplied = self.unapplied_bytes(self.applied_seq);
        let counted = self.used_bytes.saturating_add(self.others_bytes);
        let live_bytes = self.limit_bytes.saturating_sub(counted).max(dirty_bytes).saturating_add(unapplied);
        let (applied_seq, store_bytes) = (self.applied_seq, most.saturating_sub(placed_bytes));
        SpaceClaim { placed_bytes, applied_seq, store_bytes, live_bytes }
    }

    /// Takes over a share, which was made after this claim. The managers' count may lack cuts that
    /// they applied since the claim.
    pub fn take(&mut self, claim: &SpaceClaim, share: &SpaceShare) {
        self.limit_bytes = share.limit_bytes;
        if let Some(LiveShare { counted_bytes, others_bytes }) = share.live {
            self.others_bytes = others_bytes;
            self.used_bytes = counted_bytes + self.unapplied_bytes(claim.applied_seq);
        }
        let (covered_seq, placed_bytes) = (share.covered_seq, claim.placed_bytes);
        self.looked(Look { covered_seq, placed_bytes, free_bytes: share.free_bytes });
    }

    /// Payload of cuts that the managers have not applied, if they have applied this one.
    fn unapplied_bytes(&self, applied_seq: u64) -> u64 {
        self.cuts.range(applied_seq + 1..).map(|(_, cut)| cut.payload_bytes).sum()
    }

    /// Bytes that cuts up to `committed_seq` took on the stores, at most. Later cuts may still be
    /// in flight.
    pub fn placed_bytes(&self, committed_seq: u64, share: impl Fn(u64) -> u64) -> u64 {
        let in_flight = self.cuts.range(committed_seq + 1..).map(|(_, cut)| share(cut.payload_bytes)).sum();
        self.placed_bytes.saturating_sub(in_flight)
    }

    /// Live payload bytes, at most.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The most that [`used_bytes`](Self::used_bytes) may grow to.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes of each store that writes leave free.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserves.kept_from(Purpose::Write)
    }
}

#[cfg(test)]
mod tests;
