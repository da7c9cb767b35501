//! A model of the algorithms, without any optimisation and without the policies' code: caches are
//! unordered lists that are searched for everything.

use super::*;
use crate::cooperative::blocks::{Access, Deal};
use host::Random;

#[derive(Clone, Copy)]
struct Copied {
    block: u32,
    used: u64,
    /// How often it was forwarded since its client used it.
    sent: u8,
    /// Whether its client knows it as the last copy, or as one of several.
    last: Option<bool>,
    /// When it reached its client.
    came: u64,
}

type Cache = Vec<Copied>;

struct Model {
    of: Parameters,
    rooms: Vec<usize>,
    local: Vec<Cache>,
    server: Cache,
    common: Vec<Cache>,
    common_rooms: Vec<usize>,
    /// When any client used a block.
    used: [u64; 64],
    told: Vec<f64>,
    hints: Vec<(f64, usize)>,
    epoch: Option<(u64, Vec<usize>)>,
    epoch_end: u64,
    epoch_left: usize,
    random: SplitMix64,
    now: u64,
    counts: bool,
    writes: bool,
    out: Outcome,
}

pub fn run(blocks: &Blocks, of: &Parameters, conditions: &Conditions) -> Outcome {
    let clients = blocks.clients() as usize;
    let mut rooms = vec![of.client_blocks as usize; clients];
    rooms.iter_mut().zip(&conditions.rooms).for_each(|(room, own)| *room = *own as usize);
    let part = |room: &usize| (*room as f64 * 0.8).round() as usize;
    let (own, common_rooms) = match of.algorithm {
        Algorithm::Direct => (rooms.clone(), rooms.clone()),
        Algorithm::Central => {
            (rooms.iter().map(|room| room - part(room)).collect(), vec![rooms.iter().map(part).sum()])
        }
        Algorithm::Hash => (rooms.iter().map(|room| room - part(room)).collect(), rooms.iter().map(part).collect()),
        Algorithm::Best => (rooms.clone(), vec![rooms.iter().sum()]),
        _ => (rooms.clone(), vec![]),
    };
    let mut model = Model {
        of: *of,
        rooms: own,
        local: vec![Vec::new(); clients],
        server: Vec::new(),
        common: vec![Vec::new(); common_rooms.len()],
        common_rooms,
        used: [0; 64],
        told: vec![0.0; clients],
        hints: (0..clients).map(|client| (0.0, usize::from(client == 0))).collect(),
        epoch: None,
        epoch_end: 0,
        epoch_left: 0,
        random: SplitMix64::new(of.seed),
        now: 0,
        counts: false,
        writes: false,
        out: Outcome { reads: [0; 4], clients: vec![[0; 4]; clients], load: Load::default(), forwarded: 0 },
    };
    let mut done = 0;
    for Access { now, client, block, deal } in blocks.accesses() {
        model.now = now;
        model.counts = done >= of.warm_up;
        model.writes = deal == Deal::Write;
        match deal {
            Deal::Read => model.read(client as usize, block),
            Deal::Write => model.write(client as usize, block),
            Deal::Forget => {
                model.invalidate(None, block);
                model.server.retain(|copy| copy.block != block);
            }
        }
        done += u64::from(deal != Deal::Forget);
    }
    model.out
}

fn oldest(cache: &[Copied], is: impl Fn(&Copied) -> bool) -> Option<Copied> {
    cache.iter().copied().filter(is).min_by_key(|copy| copy.used)
}

fn drop_block(cache: &mut Cache, block: u32) -> bool {
    let before = cache.len();
    cache.retain(|copy| copy.block != block);
    cache.len() < before
}

/// Moves a block to the newest place; true if it was there.
fn touch(cache: &mut Cache, block: u32, now: u64) -> bool {
    let found = cache.iter_mut().find(|copy| copy.block == block);
    found.map(|copy| (copy.used, copy.sent) = (now, 0)).is_some()
}

/// Puts a block into an LRU list with this much room, as the newest; returns the one that had to
/// go.
fn push(cache: &mut Cache, room: usize, block: u32, now: u64) -> Option<u32> {
    if room == 0 {
        return Some(block);
    }
    if touch(cache, block, now) {
        return None;
    }
    let gone = if cache.len() == room { oldest(cache, |_| true).map(|copy| copy.block) } else { None };
    cache.retain(|copy| Some(copy.block) != gone);
    cache.push(Copied { block, used: now, sent: 0, last: None, came: now });
    gone
}

impl Model {
    fn load(&mut self, kind: fn(&mut Load) -> &mut u64, units: u64) {
        if self.counts {
            *kind(&mut self.out.load) += units;
        }
    }

    /// Load that belongs to no read, but that reads or writes cause.
    fn extra(&mut self, units: u64) {
        match self.writes {
            true => self.load(|load| &mut load.writes, units),
            false => self.load(|load| &mut load.other, units),
        }
    }

    fn copies(&self, block: u32) -> usize {
        self.local.iter().flatten().filter(|copy| copy.block == block).count()
    }

    fn home(&self, block: u32) -> usize {
        (SplitMix64::new(block.into()).next_u64() % self.local.len() as u64) as usize
    }

    fn invalidate(&mut self, but: Option<usize>, block: u32) {
        let mut stale = 0;
        for client in 0..self.local.len() {
            stale += u64::from(Some(client) != but && drop_block(&mut self.local[client], block));
        }
        for (cache, at) in self.common.iter_mut().zip(0..) {
            let is_writers = Some(at) == but && matches!(self.of.algorithm, Algorithm::Direct | Algorithm::Hash);
            stale += u64::from(drop_block(cache, block) && !is_writers);
        }
        if but.is_some() {
            self.extra(stale);
        }
    }

    fn write(&mut self, client: usize, block: u32) {
        self.invalidate(Some(client), block);
        self.used[block as usize] = self.now;
        if !touch(&mut self.local[client], block, self.now) {
            self.keep(client, block);
        }
        if !touch(&mut self.server, block, self.now) {
            self.store(block);
        }
        self.talk(client);
    }

    fn read(&mut self, client: usize, block: u32) {
        let level = self.find(client, block);
        self.used[block as usize] = self.now;
        if level != Level::Local {
            self.keep(client, block);
            self.talk(client);
        }
        if self.counts {
            self.out.reads[level as usize] += 1;
            self.out.clients[client][level as usize] += 1;
        }
        let past_server = matches!(self.of.algorithm, Algorithm::Direct | Algorithm::Hash);
        match level {
            // A request, and the block: two for its data, and one for it as a message. From the
            // disk: two more.
            Level::Disk => self.load(|load| &mut load.disk, 1 + 2 + 3),
            Level::Server => self.load(|load| &mut load.server, 1 + 3),
            Level::Remote if !past_server => self.load(|load| &mut load.remote, 2),
            _ => {}
        }
    }

    fn find(&mut self, client: usize, block: u32) -> Level {
        let now = self.now;
        if touch(&mut self.local[client], block, now) {
            return Level::Local;
        }
        match self.of.algorithm {
            Algorithm::Direct if drop_block(&mut self.common[client], block) => return Level::Remote,
            Algorithm::Hash => {
                let home = self.home(block);
                if touch(&mut self.common[home], block, now) {
                    return Level::Remote;
                }
            }
            _ => {}
        }
        if touch(&mut self.server, block, now) {
            return Level::Server;
        }
        let is_remote = match self.of.algorithm {
            Algorithm::Base | Algorithm::Direct | Algorithm::Hash => false,
            Algorithm::Central | Algorithm::Best => touch(&mut self.common[0], block, now),
            _ => self.served(block),
        };
        if is_remote {
            return Level::Remote;
        }
        self.store(block);
        Level::Disk
    }

    /// True if a client has the block; the one that got it last serves it.
    fn served(&mut self, block: u32) -> bool {
        let came = |client: usize| self.local[client].iter().find(|copy| copy.block == block).map(|copy| copy.came);
        let Some(client) = (0..self.local.len()).filter(|c| came(*c).is_some()).max_by_key(|c| came(*c)) else {
            return false;
        };
        let cache = &mut self.local[client];
        if let Some(copy) = cache.iter_mut().find(|copy| copy.block == block) {
            copy.last = Some(false);
        }
        cache.retain(|copy| copy.block != block || copy.sent == 0);
        true
    }

    fn store(&mut self, block: u32) {
        let Some(gone) = push(&mut self.server, self.of.server_blocks as usize, block, self.now) else { return };
        let cache = match self.of.algorithm {
            Algorithm::Central | Algorithm::Best => 0,
            Algorithm::Hash => self.home(gone),
            _ => return,
        };
        if self.common_rooms[cache] > 0 {
            self.extra(3);
            push(&mut self.common[cache], self.common_rooms[cache], gone, self.now);
        }
    }

    fn keep(&mut self, client: usize, block: u32) {
        if self.rooms[client] == 0 {
            return;
        }
        if self.local[client].len() == self.rooms[client] {
            match self.of.algorithm {
                Algorithm::WeightedLru(_) => self.weigh(client),
                _ => self.evict(client),
            }
        }
        let copy = Copied { block, used: self.now, sent: 0, last: None, came: self.now };
        self.local[client].push(copy);
    }

    fn evict(&mut self, client: usize) {
        let cache = &self.local[client];
        let kept = oldest(cache, |copy| copy.sent > 0 && self.copies(copy.block) == 1);
        let lru = oldest(cache, |_| true);
        let gone = if self.of.algorithm == Algorithm::Epochs { kept.or(lru) } else { lru }.expect("it is full");
        let is_last = self.copies(gone.block) == 1;
        drop_block(&mut self.local[client], gone.block);
        let forwards = match self.of.algorithm {
            Algorithm::Direct => {
                push(&mut self.common[client], self.common_rooms[client], gone.block, self.now);
                return;
            }
            Algorithm::NChance(0) => return,
            Algorithm::NChance(n) => gone.sent < n,
            Algorithm::TwoChoices => gone.sent == 0,
            Algorithm::Epochs => true,
            _ => return,
        };
        if gone.sent == 0 {
            self.extra(2);
        }
        if !is_last || !forwards {
            return;
        }
        match self.of.algorithm {
            Algorithm::Epochs => self.by_epoch(client, gone),
            Algorithm::NChance(_) => {
                let to = self.draw(client);
                self.send(to, gone);
            }
            _ => {
                let (one, other) = (self.draw(client), self.draw(client));
                let idle = |client: usize| match self.local[client].len() < self.rooms[client] {
                    true => 0,
                    false => oldest(&self.local[client], |_| true).map_or(self.now, |copy| copy.used) + 1,
                };
                let to = if idle(other) < idle(one) { other } else { one };
                self.send(to, gone);
            }
        }
    }

    fn draw(&self, but: usize) -> usize {
        let count = self.local.len();
        (but + 1 + self.random.below(count as u64 - 1) as usize) % count
    }

    fn send(&mut self, to: usize, gone: Copied) {
        let cache = &self.local[to];
        if cache.len() >= self.rooms[to] {
            let duplicate = oldest(cache, |copy| self.copies(copy.block) > 1);
            let most = cache.iter().map(|copy| copy.sent).max();
            let Some(out) = duplicate.or(oldest(cache, |copy| Some(copy.sent) == most)) else { return };
            drop_block(&mut self.local[to], out.block);
        }
        self.out.forwarded += u64::from(self.counts);
        self.local[to].push(Copied { used: self.now, sent: gone.sent + 1, came: self.now, ..gone });
    }

    fn by_epoch(&mut self, from: usize, gone: Copied) {
        let room: usize = self.rooms.iter().sum();
        if self.epoch_left == 0 || self.now >= self.epoch_end {
            let mut ages = Vec::new();
            for (client, cache) in self.local.iter().enumerate() {
                ages.extend(cache.iter().map(|copy| (self.now - copy.used, client)));
                ages.extend(vec![(u64::MAX, client); self.rooms[client] - cache.len()]);
            }
            ages.sort();
            ages.reverse();
            self.epoch_left = (room / 16).max(1);
            self.epoch_end = self.now + 10_000_000;
            ages.truncate(self.epoch_left);
            let youngest = ages.last().map_or(0, |(age, _)| *age);
            let mut whose: Vec<usize> = ages.into_iter().map(|(_, client)| client).collect();
            whose.sort();
            self.epoch = Some((youngest, whose));
        }
        self.epoch_left -= 1;
        let (youngest, whose) = self.epoch.clone().expect("begun");
        let others: Vec<usize> = whose.into_iter().filter(|client| *client != from).collect();
        if self.now - gone.used >= youngest || others.is_empty() {
            return;
        }
        let to = others[self.random.below(others.len() as u64) as usize];
        if self.local[to].len() >= self.rooms[to] {
            let Some(out) = oldest(&self.local[to], |_| true) else { return };
            drop_block(&mut self.local[to], out.block);
        }
        self.local[to].push(Copied { sent: 1, came: self.now, ..gone });
        self.out.forwarded += u64::from(self.counts);
    }

    // Weighted LRU.

    fn knowledge(&self) -> Knowledge {
        match self.of.algorithm {
            Algorithm::WeightedLru(knowledge) => knowledge,
            _ => Knowledge::Global,
        }
    }

    /// The cost of losing it: 1000 µs if its client used it, and 14,600 if no other client has it.
    fn price(&self, copy: &Copied, is_last: bool) -> f64 {
        let local = if copy.sent == 0 { 1000.0 / (self.now - copy.used).max(1) as f64 } else { 0.0 };
        let global = 14_600.0 / (self.now - self.used[copy.block as usize]).max(1) as f64;
        if is_last { local + global } else { local }
    }

    fn two(&mut self, client: usize) -> (Option<Copied>, Option<Copied>) {
        let knows = self.knowledge() == Knowledge::Global;
        loop {
            let cache = &self.local[client];
            let is_last = |copy: &Copied| if knows { Some(self.copies(copy.block) == 1) } else { copy.last };
            let duplicate = oldest(cache, |copy| is_last(copy) == Some(false));
            let singlets =
                [true, false].map(|own| oldest(cache, |copy| is_last(copy) == Some(true) && (copy.sent == 0) == own));
            let unknown = oldest(cache, |copy| is_last(copy).is_none());
            let first = singlets.iter().flatten().map(|copy| copy.used).min();
            match unknown {
                Some(unknown)
                    if duplicate.is_none_or(|copy| copy.used > unknown.used)
                        || first.is_none_or(|used| used > unknown.used) =>
                {
                    let answer = self.copies(unknown.block) == 1;
                    self.extra(2);
                    let found = self.local[client].iter_mut().find(|copy| copy.block == unknown.block);
                    found.expect("it is there").last = Some(answer);
                }
                _ => {
                    let mut singlets: Vec<Copied> = singlets.into_iter().flatten().collect();
                    singlets.sort_by(|one, other| self.price(one, true).total_cmp(&self.price(other, true)));
                    return (duplicate, singlets.first().copied());
                }
            }
        }
    }

    /// The price of a place in a client's cache, and what is lost for it.
    fn place(&mut self, client: usize) -> (f64, Option<u32>) {
        if self.local[client].len() < self.rooms[client] {
            return (0.0, None);
        }
        let (duplicate, singlet) = self.two(client);
        let of_duplicate = duplicate.map(|copy| (self.price(&copy, false), Some(copy.block)));
        let of_singlet = singlet.map(|copy| (self.price(&copy, true), Some(copy.block)));
        let both = of_duplicate.into_iter().chain(of_singlet);
        both.reduce(|one, other| if other.0 < one.0 { other } else { one }).unwrap_or((f64::INFINITY, None))
    }

    fn weigh(&mut self, client: usize) {
        let (duplicate, singlet) = self.two(client);
        if self.knowledge() == Knowledge::Global {
            self.extra(2);
        }
        let mut options = Vec::new();
        options.extend(duplicate.map(|copy| (self.price(&copy, false), copy.block, None)));
        options.extend(singlet.map(|copy| (self.price(&copy, true), copy.block, None)));
        if let Some(singlet) = singlet {
            let (price, to) = match self.knowledge() {
                Knowledge::AllHints => self.hints[client],
                _ => {
                    let mut best = (f64::INFINITY, usize::MAX);
                    for other in (0..self.local.len()).filter(|other| *other != client) {
                        let (price, _) = self.place(other);
                        if price < best.0 {
                            best = (price, other);
                        }
                    }
                    best
                }
            };
            options.push((self.price(&singlet, false) + price, singlet.block, Some(to)));
        }
        let (_, block, to) =
            options.into_iter().reduce(|one, other| if other.0 < one.0 { other } else { one }).expect("one");
        drop_block(&mut self.local[client], block);
        let Some(to) = to else { return };
        if self.local[to].iter().any(|copy| copy.block == block) {
            return;
        }
        let (_, out) = self.place(to);
        out.map(|block| drop_block(&mut self.local[to], block));
        if self.local[to].len() < self.rooms[to] {
            let last = Some(true);
            self.local[to].push(Copied { block, used: self.used[block as usize], sent: 1, last, came: self.now });
            self.out.forwarded += u64::from(self.counts);
        }
        self.told[to] = self.place(to).0;
    }

    fn talk(&mut self, client: usize) {
        if self.of.algorithm != Algorithm::WeightedLru(Knowledge::AllHints) {
            return;
        }
        self.told[client] = self.place(client).0;
        let mut best = (f64::INFINITY, usize::from(client == 0));
        for (other, price) in self.told.iter().enumerate().filter(|(other, _)| *other != client) {
            if *price < best.0 {
                best = (*price, other);
            }
        }
        self.hints[client] = best;
    }
}
