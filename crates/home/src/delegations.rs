//! Which clients have which delegations (docs/roaming.md#delegations; Zhao and Figueiredo, section
//! 4.3). Pure.
//!
//! A client that wants something of files makes a claim. A claim is met when no other client has,
//! or uses, what it excludes. Until then, what stands in its way is recalled. Claims are met in
//! their order, so each is met some time. Only claims of operations that clients send home go
//! first, since the other claims wait for these operations. A client that was not heard of for a
//! [`LEASE`] has no delegations any more.
//!
//! After a restart, the home does not know what clients hold. Some clients may hold something. A
//! client that attaches again may still believe that, until it has the home's answer. So until each
//! of them is known to have this answer, or its lease has ended, the home meets only claims for
//! what their clients are known to hold already.
//!
//! Invariants: at no time do two clients with running leases have delegations that exclude each
//! other. While a claim is met, no other client uses what it excludes.

use roam_proto::delegation::{Hold, LEASE, Recall};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;
use types::FileId;

/// Most delegations of a client. Beyond it, the home recalls those that it gave first.
pub const HELD_COUNT_MAX: usize = 1 << 17;
/// How long a client may take to answer a recall without sending anything that has to be home
/// first. After that, it does not do its part.
const RECALL_TIME_MAX: Duration = LEASE;
/// How long a client may take to answer a recall in any case.
const RECALL_TIME_END: Duration = Duration::from_secs(600);
/// How often a waiting claim looks again.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What a client wants.
struct Claim {
    client: u32,
    wants: Vec<(FileId, Hold)>,
    /// Other claims wait for it, so it does not wait behind them.
    urgent: bool,
    /// It was met, and its use goes on.
    met: bool,
}

struct Recalled {
    recall: Recall,
    begun: Duration,
    /// The last operation that the client said has to be home before it can return the delegation;
    /// 0: it has said nothing.
    through: u64,
    /// When something new of these operations last came.
    progressed: Duration,
}

/// A client's delegation on a file.
struct Given {
    hold: Hold,
    /// When it was first given, as a number that grows.
    number: u64,
    /// The number of the last answer that gave it; 0: the client made the file itself.
    told: u64,
}

#[derive(Default)]
struct Held {
    files: HashMap<FileId, Given>,
    /// The files, by the number of when each was first given.
    order: BTreeMap<u64, FileId>,
    /// When the client's lease ends.
    until: Duration,
}

/// The state of a claim.
#[derive(Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is met.
    Met,
    /// It is not met yet.
    Waits {
        /// Recalls to send, by client.
        recalls: BTreeMap<u32, Vec<Recall>>,
        /// When to look again at the latest.
        until: Duration,
    },
}

/// All delegations of a volume, with the claims and recalls on them.
pub struct Delegations {
    held: HashMap<u32, Held>,
    /// The holders of each file.
    holders: HashMap<FileId, BTreeMap<u32, Hold>>,
    claims: BTreeMap<u64, Claim>,
    /// The numbers of the claims on each file.
    claimed: HashMap<FileId, BTreeSet<u64>>,
    /// Outstanding recalls, by client and number.
    recalls: HashMap<u32, BTreeMap<u64, Recalled>>,
    /// The files that each client was asked to return.
    recalled: HashSet<(u32, FileId)>,
    next: u64,
    /// Clients that may hold something from an earlier run, and until when.
    unknown: (BTreeSet<u32>, Duration),
}

impl Delegations {
    /// Makes the delegations of a new run. The `unknown` clients held something when the last run
    /// ended.
    pub fn new(unknown: BTreeSet<u32>, now: Duration) -> Delegations {
        Delegations {
            held: HashMap::new(),
            holders: HashMap::new(),
            claims: BTreeMap::new(),
            claimed: HashMap::new(),
            recalls: HashMap::new(),
            recalled: HashSet::new(),
            next: 1,
            unknown: (unknown, now + LEASE),
        }
    }

    /// Renews the lease of a client, which knows what it holds.
    pub fn renew(&mut self, client: u32, now: Duration) {
        self.unknown.0.remove(&client);
        if let Some(held) = self.held.get_mut(&client) {
            held.until = now + LEASE;
        }
    }

    /// True if a client is known to work under delegations.
    pub fn knows(&self, client: u32) -> bool {
        self.held.contains_key(&client)
    }

    /// True if other clients work under delegations, or may do so.
    pub fn has_others(&self, client: u32) -> bool {
        self.held.keys().chain(&self.unknown.0).any(|other| *other != client)
    }

    /// Begins a client's work under delegations.
    ///
    /// The client keeps write delegations on the files that it has `changed`, if it has them, or
    /// may have got them from an earlier run. It has no other delegations. If it `believes` that it
    /// still has what the earlier run gave it, no other client gets that before the client is heard
    /// of again or its lease ends.
    pub fn join(&mut self, client: u32, changed: &[FileId], believes: bool, now: Duration) {
        let kept = self.has_kept(client, now);
        let had = |file: &FileId| kept && self.holds(client, *file, Hold::Write);
        let returning = self.unknown.0.contains(&client) && now < self.unknown.1;
        let keeps: Vec<FileId> = changed.iter().copied().filter(|file| returning || had(file)).collect();
        self.leave(client);
        if returning && believes {
            self.unknown.0.insert(client);
        }
        self.held.insert(client, Held { until: now + LEASE, ..Held::default() });
        for file in keeps {
            if self.in_the_way(client, file, Hold::Write).is_empty() {
                self.give(client, file, Hold::Write, 0);
            }
        }
    }

    /// True if a client has a delegation on a file.
    pub fn has(&self, client: u32, file: FileId) -> bool {
        self.holds(client, file, Hold::Read)
    }

    /// True if a client has everything that it was given and has not returned.
    pub fn has_kept(&self, client: u32, now: Duration) -> bool {
        self.held.get(&client).is_some_and(|held| now < held.until) && !self.is_overdue(client, now)
    }

    /// True if the lease of a client has ended.
    pub fn has_lapsed(&self, client: u32, now: Duration) -> bool {
        self.held.get(&client).is_none_or(|held| now >= held.until)
    }

    /// True if a client that may have something has not been heard of since the home began.
    pub fn awaits(&self, client: u32, now: Duration) -> bool {
        self.unknown.0.contains(&client) && now < self.unknown.1
    }

    /// True if other clients may have something that this run does not know.
    pub fn awaits_others(&self, client: u32, now: Duration) -> bool {
        now < self.unknown.1 && self.unknown.0.iter().any(|other| *other != client)
    }

    /// True if a client does not do its part, and may still think that it has what it was given.
    /// Other clients cannot have that before its lease has ended.
    pub fn is_barred(&self, client: u32, now: Duration) -> bool {
        self.held.get(&client).is_some_and(|held| now < held.until) && self.is_overdue(client, now)
    }

    /// Drops everything that a client has.
    pub fn leave(&mut self, client: u32) {
        self.unknown.0.remove(&client);
        for file in self.held.remove(&client).into_iter().flat_map(|held| held.files.into_keys()) {
            self.let_go(file, client);
        }
        for given in self.recalls.remove(&client).into_iter().flat_map(BTreeMap::into_values) {
            self.recalled.remove(&(client, given.recall.file));
        }
    }

    /// Returns the recalls that a client has not answered.
    pub fn outstanding(&self, client: u32) -> Vec<Recall> {
        self.recalls_of(client).map(|given| given.recall).collect()
    }

    /// True if a client does not do its part. It is to be told that it has nothing, and others wait
    /// until its lease ends.
    pub fn is_overdue(&self, client: u32, now: Duration) -> bool {
        self.recalls_of(client)
            .any(|given| now >= given.progressed + RECALL_TIME_MAX || now >= given.begun + RECALL_TIME_END)
    }

    fn recalls_of(&self, client: u32) -> impl Iterator<Item = &Recalled> {
        self.recalls.get(&client).into_iter().flat_map(BTreeMap::values)
    }

    /// A client says that it is sending its operations up to `through`, so that it can answer these
    /// recalls. Only the first time counts: what it does later is not needed.
    pub fn returning(&mut self, client: u32, recalls: &[u64], through: u64) {
        let Some(own) = self.recalls.get_mut(&client) else { return };
        for number in recalls {
            if let Some(given) = own.get_mut(number).filter(|given| given.through == 0) {
                given.through = through;
            }
        }
    }

    /// A client has sent something new of an operation. That keeps alive the recalls for which the
    /// operation has to be home.
    pub fn progress(&mut self, client: u32, seq: u64, now: Duration) {
        let own = self.recalls.get_mut(&client).into_iter().flat_map(BTreeMap::values_mut);
        own.filter(|given| seq <= given.through).for_each(|given| given.progressed = now);
    }

    /// A client has answered a recall.
    pub fn returned(&mut self, client: u32, number: u64) {
        let given = self.recalls.get_mut(&client).and_then(|recalls| recalls.remove(&number));
        let Some(Recalled { recall: Recall { file, keep, .. }, .. }) = given else { return };
        self.recalled.remove(&(client, file));
        let Some(held) = self.held.get_mut(&client) else { return };
        if keep {
            if let Some(given) = held.files.get_mut(&file) {
                given.hold = Hold::Read;
                self.holders.entry(file).or_default().insert(client, Hold::Read);
            }
        } else if let Some(given) = held.files.remove(&file) {
            held.order.remove(&given.number);
            self.let_go(file, client);
        }
    }

    /// A client says, as it answers recalls, that it keeps at most a read delegation on a file. An
    /// answer that gave it more since the first of these recalls counts instead.
    pub fn lower(&mut self, client: u32, file: FileId, recalls: &[u64]) {
        let own = self.recalls.get(&client);
        let Some(first) = recalls.iter().filter(|recall| own.is_some_and(|own| own.contains_key(recall))).min() else {
            return;
        };
        let Some(given) = self.held.get_mut(&client).and_then(|held| held.files.get_mut(&file)) else { return };
        if given.told < *first {
            given.hold = Hold::Read;
            self.holders.entry(file).or_default().insert(client, Hold::Read);
        }
    }

    /// Returns a new number. All later recalls have greater numbers, all earlier ones smaller
    /// numbers.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Makes a claim. Returns its number.
    pub fn claim(&mut self, client: u32, wants: Vec<(FileId, Hold)>, urgent: bool) -> u64 {
        self.enter(Claim { client, wants, urgent, met: false })
    }

    /// Turns a claim to read a file into one to change it, unless another client waits to change
    /// it. Then it becomes a claim to read the file after that client. Returns the new claim's
    /// number, and whether it is one to change.
    pub fn claim_more(&mut self, number: u64, file: FileId) -> (u64, bool) {
        let client = self.claims.get(&number).map_or(0, |claim| claim.client);
        let more = !self.claims_on(file, client).any(|(_, claim, hold)| hold == Hold::Write && !claim.met);
        (self.claim_instead(number, file, if more { Hold::Write } else { Hold::Read }), more)
    }

    /// Replaces a claim by another on a file, which comes after all present claims. Returns its
    /// number.
    pub fn claim_instead(&mut self, number: u64, file: FileId, hold: Hold) -> u64 {
        let client = self.claims.get(&number).map_or(0, |claim| claim.client);
        self.end(number, &BTreeSet::new());
        self.claim(client, vec![(file, hold)], false)
    }

    fn enter(&mut self, claim: Claim) -> u64 {
        self.next += 1;
        for (file, _) in &claim.wants {
            self.claimed.entry(*file).or_default().insert(self.next);
        }
        self.claims.insert(self.next, claim);
        self.next
    }

    /// Returns the claims of other clients on a file, with their numbers and what they want of it.
    fn claims_on(&self, file: FileId, client: u32) -> impl Iterator<Item = (u64, &Claim, Hold)> {
        let numbers = self.claimed.get(&file).into_iter().flatten();
        let claims = numbers.filter_map(|number| Some((*number, self.claims.get(number)?)));
        let others = claims.filter(move |(_, claim)| claim.client != client);
        others.filter_map(move |(number, claim)| {
            let holds = claim.wants.iter().filter(|(theirs, _)| *theirs == file).map(|(_, hold)| *hold);
            Some((number, claim, holds.max()?))
        })
    }

    /// Makes a met claim for a client that holds a file to change it. Others may read the file, but
    /// not change it, until the claim ends.
    pub fn claim_held(&mut self, client: u32, file: FileId) -> u64 {
        self.enter(Claim { client, wants: vec![(file, Hold::Read)], urgent: false, met: true })
    }

    /// Does what can be done about a claim, and returns its state.
    pub fn settle(&mut self, number: u64, now: Duration) -> Settled {
        let Some(Claim { client, wants, urgent, met }) = self.claims.get(&number) else { return Settled::Met };
        let (client, wants, urgent, met) = (*client, wants.clone(), *urgent, *met);
        if met {
            return Settled::Met;
        }
        let (mut recalls, mut until, mut waits) = (BTreeMap::<u32, Vec<Recall>>::new(), now + LOOK_PERIOD, false);
        if !self.unknown.0.is_empty() && now >= self.unknown.1 {
            self.unknown.0.clear();
        }
        for (file, want) in wants {
            let is_recalled = self.is_recalled(client, file);
            if self.holds(client, file, want) && (urgent || !is_recalled) {
                continue;
            }
            let goes_first = |(other, claim, hold): (u64, &Claim, Hold)| {
                (claim.met || (!urgent && other < number)) && hold.excludes(want)
            };
            let claimed = self.claims_on(file, client).any(goes_first);
            if claimed || (is_recalled && !urgent) || !self.unknown.0.is_empty() {
                waits = true;
                continue;
            }
            for (holder, held) in self.in_the_way(client, file, want) {
                let lease = self.held.get(&holder).map_or(Duration::ZERO, |held| held.until);
                if now >= lease {
                    self.leave(holder);
                    continue;
                }
                (waits, until) = (true, until.min(lease));
                if !self.is_recalled(holder, file) {
                    let recall = self.recall(holder, file, held, want == Hold::Read, now);
                    recalls.entry(holder).or_default().push(recall);
                }
            }
        }
        if waits {
            return Settled::Waits { recalls, until };
        }
        if let Some(claim) = self.claims.get_mut(&number) {
            claim.met = true;
        }
        Settled::Met
    }

    /// Ends a claim. If it was met, the client holds those of its files that are in `keeps` from
    /// now on.
    pub fn end(&mut self, number: u64, keeps: &BTreeSet<FileId>) {
        let told = self.number();
        self.end_with(number, keeps, told);
    }

    /// Ends a claim, as [`end`](Self::end) does, for files that the client has made itself.
    pub fn end_making(&mut self, number: u64, makes: &BTreeSet<FileId>) {
        self.end_with(number, makes, 0);
    }

    fn end_with(&mut self, number: u64, keeps: &BTreeSet<FileId>, told: u64) {
        let Some(Claim { client, wants, met, .. }) = self.claims.remove(&number) else { return };
        for (file, _) in &wants {
            if let Some(numbers) = self.claimed.get_mut(file) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.claimed.remove(file);
                }
            }
        }
        if met && self.held.contains_key(&client) {
            for (file, hold) in wants.into_iter().filter(|(file, _)| keeps.contains(file)) {
                self.give(client, file, hold, told);
            }
        }
    }

    /// Gives a client a read delegation if no other client has, or waits for, what that excludes.
    /// False if not.
    pub fn give_if_free(&mut self, client: u32, file: FileId) -> bool {
        if !self.held.contains_key(&client) {
            return false;
        }
        if self.is_recalled(client, file) {
            return false;
        }
        if self.holds(client, file, Hold::Read) {
            return true;
        }
        let claimed = self.claims_on(file, client).any(|(_, _, hold)| hold == Hold::Write);
        let free = !claimed && self.unknown.0.is_empty() && self.in_the_way(client, file, Hold::Read).is_empty();
        if free {
            let told = self.number();
            self.give(client, file, Hold::Read, told);
        }
        free
    }

    /// Recalls the delegations that a client has too many of.
    pub fn trim(&mut self, client: u32, now: Duration) -> Vec<Recall> {
        let Some(held) = self.held.get(&client) else { return Vec::new() };
        let returning = self.recalls.get(&client).map_or(0, BTreeMap::len);
        let too_many = held.files.len().saturating_sub(HELD_COUNT_MAX + returning);
        let first = held.order.values().filter(|file| !self.is_recalled(client, **file)).take(too_many);
        let first: Vec<_> = first.filter_map(|file| Some((*file, held.files.get(file)?.hold))).collect();
        first.into_iter().map(|(file, hold)| self.recall(client, file, hold, false, now)).collect()
    }

    fn is_recalled(&self, client: u32, file: FileId) -> bool {
        self.recalled.contains(&(client, file))
    }

    fn recall(&mut self, client: u32, file: FileId, held: Hold, keep: bool, now: Duration) -> Recall {
        self.next += 1;
        let recall = Recall { number: self.next, file, held, keep };
        let given = Recalled { recall, begun: now, through: 0, progressed: now };
        self.recalls.entry(client).or_default().insert(self.next, given);
        self.recalled.insert((client, file));
        recall
    }

    fn holds(&self, client: u32, file: FileId, want: Hold) -> bool {
        self.holders.get(&file).and_then(|holders| holders.get(&client)).is_some_and(|held| *held >= want)
    }

    fn in_the_way(&self, client: u32, file: FileId, want: Hold) -> Vec<(u32, Hold)> {
        let holders = self.holders.get(&file).into_iter().flatten();
        let others = holders.filter(|(holder, held)| **holder != client && held.excludes(want));
        others.map(|(holder, held)| (*holder, *held)).collect()
    }

    fn give(&mut self, client: u32, file: FileId, hold: Hold, told: u64) {
        let number = self.number();
        let Some(held) = self.held.get_mut(&client) else { return };
        let given = held.files.entry(file).or_insert_with(|| {
            held.order.insert(number, file);
            Given { hold, number, told }
        });
        (given.hold, given.told) = (hold.max(given.hold), told.max(given.told));
        self.holders.entry(file).or_default().insert(client, given.hold);
    }

    fn let_go(&mut self, file: FileId, client: u32) {
        if let Some(holders) = self.holders.get_mut(&file) {
            holders.remove(&client);
            if holders.is_empty() {
                self.holders.remove(&file);
            }
        }
    }
}
