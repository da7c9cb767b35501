//! One algorithm on one trace: where reads find their blocks, and what happens to blocks that leave
//! a cache.
//!
//! With N-Chance Forwarding, a client asks the server once for each block of its own that it gives
//! up. When it receives a block, it knows which of its blocks are duplicates without asking. The
//! thesis has hints there, as with Weighted LRU, and does not say when they are renewed (3.1.6).

use super::blocks::{Access, Deal};
use super::caches::{Caches, Kinds};
use super::epochs::Epochs;
use super::weighted_lru::Weighted;
use super::{Algorithm, Blocks, Conditions, Knowledge, Level, Load, Outcome, Parameters};
use host::{Random, SplitMix64};
use policy::cooperative::greedy;
use policy::cooperative::n_chance::{OnEviction, on_eviction};
use policy::cooperative::two_choices::{Load as Busy, second_is_better};

const MESSAGE: u64 = 1;
const BLOCK: u64 = 3;
const DISK: u64 = 2;

pub(crate) struct Simulation {
    of: Parameters,
    /// The caches that clients manage for themselves.
    local: Caches,
    server: Caches,
    /// The caches that are managed for others: one for each client, or one for all.
    common: Caches,
    clients: u32,
    random: SplitMix64,
    /// The time; each access advances it.
    pub(crate) now: u64,
    /// True while events count.
    counts: bool,
    /// True while a write causes the events.
    is_write: bool,
    weighted: Option<Weighted>,
    epochs: Option<Epochs>,
    outcome: Outcome,
}

/// Simulates one algorithm under the thesis's conditions.
pub fn simulate(blocks: &Blocks, parameters: &Parameters) -> Outcome {
    simulate_under(blocks, parameters, &Conditions::default())
}

/// Simulates one algorithm.
pub fn simulate_under(blocks: &Blocks, parameters: &Parameters, conditions: &Conditions) -> Outcome {
    let mut simulation = Simulation::new(blocks.clients(), blocks.count(), parameters, conditions);
    let mut count = 0;
    for Access { now, client, block, deal } in blocks.accesses() {
        simulation.now = now;
        simulation.counts = count >= parameters.warm_up;
        count += u64::from(deal != Deal::Forget);
        match deal {
            Deal::Read => simulation.read(client, block),
            Deal::Write => simulation.write(client, block),
            Deal::Forget => simulation.forget(block, None),
        }
    }
    simulation.outcome
}

impl Simulation {
    /// Empty caches of this many clients, for blocks with numbers below `blocks`.
    pub(crate) fn new(clients: u32, blocks: u32, of: &Parameters, conditions: &Conditions) -> Simulation {
        let rooms = (0..clients).map(|client| *conditions.rooms.get(client as usize).unwrap_or(&of.client_blocks));
        let shared = |room: u32| (f64::from(room) * conditions.common_part).round() as u32;
        let sum = |rooms: &mut dyn Iterator<Item = u32>| rooms.fold(0u32, u32::saturating_add);
        let one = |room: u32| Caches::new([room], Kinds::True);
        let all = |kinds| Caches::new(rooms.clone(), kinds);
        let own = || Caches::new(rooms.clone().map(|room| room - shared(room)), Kinds::True);
        let (local, common) = match of.algorithm {
            Algorithm::Direct => {
                let remote = rooms.clone().map(|room| conditions.remote_blocks.unwrap_or(room));
                (all(Kinds::True), Caches::new(remote, Kinds::True))
            }
            Algorithm::Central => (own(), one(sum(&mut rooms.clone().map(shared)))),
            Algorithm::Hash => (own(), Caches::new(rooms.clone().map(shared), Kinds::True)),
            Algorithm::Best => (all(Kinds::True), one(sum(&mut rooms.clone()))),
            Algorithm::WeightedLru(Knowledge::SingletHints | Knowledge::AllHints) => (all(Kinds::Believed), one(0)),
            _ => (all(Kinds::True), one(0)),
        };
        let weighted = match of.algorithm {
            Algorithm::WeightedLru(knowledge) => {
                Some(Weighted::new(knowledge, clients, blocks, &conditions.technology.times_us(of.algorithm)))
            }
            _ => None,
        };
        let epochs = (of.algorithm == Algorithm::Epochs).then(|| Epochs::new(&local));
        let clients_reads = vec![[0; 4]; clients as usize];
        let outcome = Outcome { reads: [0; 4], clients: clients_reads, load: Load::default(), forwarded: 0 };
        let (server, random) = (one(of.server_blocks), SplitMix64::new(of.seed));
        let (now, counts, is_write, of) = (0, false, false, *of);
        Simulation { of, local, server, common, clients, random, now, counts, is_write, weighted, epochs, outcome }
    }

    /// True if a client caches the block.
    pub(crate) fn has(&self, block: u32) -> bool {
        self.local.copies(block) > 0
    }

    /// A client reads a block.
    pub(crate) fn read(&mut self, client: u32, block: u32) {
        self.is_write = false;
        let level = self.look(client, block);
        self.weighted.iter_mut().for_each(|weighted| weighted.used(block, self.now));
        if level != Level::Local {
            self.keep(client, block);
            self.tell_server(client);
        }
        if !self.counts {
            return;
        }
        self.outcome.reads[level as usize] += 1;
        self.outcome.clients[client as usize][level as usize] += 1;
        let load = &mut self.outcome.load;
        match (level, self.of.algorithm) {
            (Level::Local, _) | (Level::Remote, Algorithm::Direct | Algorithm::Hash) => {}
            (Level::Remote, _) => load.remote += 2 * MESSAGE,
            (Level::Server, _) => load.server += MESSAGE + BLOCK,
            (Level::Disk, _) => load.disk += MESSAGE + DISK + BLOCK,
        }
    }

    /// Looks for a block, and returns where it is found first.
    fn look(&mut self, client: u32, block: u32) -> Level {
        if let Some(place) = self.local.find(client, block) {
            self.local.touch(place, self.now);
            return Level::Local;
        }
        if self.of.algorithm == Algorithm::Direct
            && let Some(place) = self.common.find(client, block)
        {
            // The caller puts it into the client's own cache.
            self.common.remove(place);
            return Level::Remote;
        }
        if self.of.algorithm == Algorithm::Hash && self.touch_common(self.part_of(block), block) {
            return Level::Remote;
        }
        if let Some(place) = self.server.find(0, block) {
            self.server.touch(place, self.now);
            return Level::Server;
        }
        let is_remote = match self.of.algorithm {
            Algorithm::Greedy
            | Algorithm::NChance(_)
            | Algorithm::WeightedLru(_)
            | Algorithm::TwoChoices
            | Algorithm::Epochs => self.serve(block),
            Algorithm::Central | Algorithm::Best => self.touch_common(0, block),
            Algorithm::Base | Algorithm::Direct | Algorithm::Hash => false,
        };
        match is_remote {
            true => Level::Remote,
            false => {
                self.keep_at_server(block);
                Level::Disk
            }
        }
    }

    /// True if a client has the block, and sends it. A copy that is only kept for others is given
    /// up when it is sent.
    fn serve(&mut self, block: u32) -> bool {
        let Some(place) = self.local.first(block) else { return false };
        if self.local.recirculated(place) > 0 {
            self.local.remove(place);
        } else if self.weighted.as_ref().is_some_and(Weighted::believes) {
            self.local.believe(place, false);
        }
        true
    }

    fn touch_common(&mut self, cache: u32, block: u32) -> bool {
        let place = self.common.find(cache, block);
        place.into_iter().for_each(|place| self.common.touch(place, self.now));
        place.is_some()
    }

    /// The client whose part of the common cache a block belongs to.
    fn part_of(&self, block: u32) -> u32 {
        (SplitMix64::new(block.into()).next_u64() % u64::from(self.clients)) as u32
    }

    /// Keeps a block from the disk in the server's memory. A block that leaves that memory goes to
    /// the common cache.
    fn keep_at_server(&mut self, block: u32) {
        let leaves = match self.server.is_nothing(0) {
            true => Some(block),
            false => {
                let leaves = match self.server.has_room(0) {
                    true => None,
                    false => self.server.oldest(0).map(|place| self.server.remove(place).0),
                };
                self.server.insert(0, block, 0, self.now);
                leaves
            }
        };
        let Some(leaves) = leaves else { return };
        let cache = match self.of.algorithm {
            Algorithm::Central | Algorithm::Best => 0,
            Algorithm::Hash => self.part_of(leaves),
            _ => return,
        };
        if self.keep_common(cache, leaves) {
            self.charge(BLOCK);
        }
    }

    /// Adds to the server's load, beside the cost of serving a read.
    fn charge(&mut self, units: u64) {
        let load = &mut self.outcome.load;
        *(if self.is_write { &mut load.writes } else { &mut load.other }) += if self.counts { units } else { 0 };
    }

    /// Puts a block into the common cache; true if it was sent there.
    fn keep_common(&mut self, cache: u32, block: u32) -> bool {
        if self.touch_common(cache, block) || self.common.is_nothing(cache) {
            return false;
        }
        if !self.common.has_room(cache)
            && let Some(oldest) = self.common.oldest(cache)
        {
            self.common.remove(oldest);
        }
        self.common.insert(cache, block, 0, self.now);
        true
    }

    /// Puts a block into a client's cache.
    fn keep(&mut self, client: u32, block: u32) {
        if self.local.is_nothing(client) {
            return;
        }
        if !self.local.has_room(client) {
            self.make_room(client);
        }
        self.local.insert(client, block, 0, self.now);
    }

    /// Makes room: a client gives up a block.
    fn make_room(&mut self, client: u32) {
        if let Some(weighted) = &mut self.weighted {
            let (asked, forwarded) = weighted.make_room(&mut self.local, client, self.now);
            self.charge(asked * 2 * MESSAGE);
            self.outcome.forwarded += u64::from(forwarded && self.counts);
            return;
        }
        let first = self.epochs.is_some().then(|| Epochs::first_to_go(&mut self.local, client)).flatten();
        let Some(place) = first.or_else(|| self.local.oldest(client)) else { return };
        let block = self.local.block_of(place);
        let is_singlet = self.local.copies(block) == 1;
        let used = self.local.used(place);
        let (_, recirculated) = self.local.remove(place);
        let n = match self.of.algorithm {
            Algorithm::Direct => {
                self.keep_common(client, block);
                return;
            }
            Algorithm::Greedy => greedy::RECIRCULATIONS,
            Algorithm::NChance(n) => n,
            Algorithm::TwoChoices => 1,
            Algorithm::Epochs => u8::MAX,
            _ => return,
        };
        if n == 0 || self.clients < 2 {
            // Blocks do not go on, so no question is asked.
            return;
        }
        if recirculated == 0 {
            // A client that has used the block asks whether it is the last copy; a block that was
            // sent to it is.
            self.charge(2 * MESSAGE);
        }
        let OnEviction::Forward(recirculated) = on_eviction(is_singlet, recirculated, n) else { return };
        if let Some(epochs) = &mut self.epochs {
            let forwarded = epochs.forward(&mut self.local, client, block, used, self.now, &self.random);
            self.outcome.forwarded += u64::from(forwarded && self.counts);
            return;
        }
        let mut to = self.other(client);
        if self.of.algorithm == Algorithm::TwoChoices {
            let second = self.other(client);
            if second_is_better(self.busy(to), self.busy(second)) {
                to = second;
            }
        }
        self.forward(to, block, recirculated);
    }

    /// Another client, each with the same chance.
    fn other(&self, client: u32) -> u32 {
        (client + 1 + self.random.below(u64::from(self.clients) - 1) as u32) % self.clients
    }

    fn busy(&mut self, client: u32) -> Busy {
        match self.local.has_room(client) {
            true => Busy::Room,
            false => Busy::Full(self.local.oldest(client).map_or(0, |oldest| self.now - self.local.used(oldest))),
        }
    }

    fn forward(&mut self, client: u32, block: u32, recirculated: u8) {
        if !self.local.has_room(client) {
            let Some(victim) = self.local.victim(client) else { return };
            self.local.remove(victim);
        }
        self.outcome.forwarded += u64::from(self.counts);
        self.local.insert(client, block, recirculated, self.now);
    }

    /// A client writes a block.
    pub(crate) fn write(&mut self, client: u32, block: u32) {
        self.is_write = true;
        self.forget(block, Some(client));
        self.weighted.iter_mut().for_each(|weighted| weighted.used(block, self.now));
        match self.local.find(client, block) {
            Some(place) => self.local.touch(place, self.now),
            None => self.keep(client, block),
        }
        // The write goes through to the server.
        match self.server.find(0, block) {
            Some(place) => self.server.touch(place, self.now),
            None => self.keep_at_server(block),
        }
        self.tell_server(client);
    }

    /// Exchanges the hints that go with every message to the server and its answer.
    fn tell_server(&mut self, client: u32) {
        if let Some(weighted) = &mut self.weighted {
            let asked = weighted.tell_server(&mut self.local, client, self.now);
            self.charge(asked * 2 * MESSAGE);
        }
    }

    /// Removes the block from all caches, except those of `but`, which wrote it, and the server's.
    /// If the block was deleted, from all.
    pub(crate) fn forget(&mut self, block: u32, but: Option<u32>) {
        let mut told = 0;
        while let Some(place) = self.local.place_but(block, but) {
            self.local.remove(place);
            told += 1;
        }
        // The writer itself updates what it has elsewhere, and what it keeps for others.
        let is_of_clients = matches!(self.of.algorithm, Algorithm::Direct | Algorithm::Hash);
        while let Some(place) = self.common.place_but(block, None) {
            told += u64::from(!is_of_clients || Some(self.common.cache_of(place)) != but);
            self.common.remove(place);
        }
        if but.is_some() {
            self.charge(told * MESSAGE);
        } else if let Some(place) = self.server.find(0, block) {
            self.server.remove(place);
        }
    }
}
