//! Which traffic uses a slow link next (Huston and Honeyman, section 5.1;
//! docs/roaming.md#the-link).
//!
//! Small questions that a program waits for go at once. All other traffic goes in chunks. A chunk
//! is what the link carries in about half a second, so that no request waits for much longer. Few
//! chunks are under way at a time: as many as the link holds, and one more. Shorter transfers count
//! as parts of a chunk, and several of them may be under way in its place. A lottery draws the next
//! one only when there is room for it, so what was drawn is never behind a queue of what was drawn
//! before.

pub use crate::connection::forecast::Direction;
use crate::connection::forecast::LossForecast;
use crate::settings::Writes;
use host::Host;
use parking_lot::Mutex;
use policy::lottery::{Lottery, TicketClass as Tickets};
use policy::write_back::{self, CHUNK_TIME};
pub use policy::write_back::{CHUNK_LEN_MAX, TICKETS};
use roam_proto::channel::{Class, Path};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A chunk has this many parts. A shorter transfer counts as some of them, and as one at least.
const PARTS: usize = 16;
/// How many transfers may be under way beside the chunks: short ones, of one part, that a program
/// waits for. They do not wait for their turn.
const BESIDE_COUNT_MAX: usize = 2;
/// Most chunks under way at a time.
const CHUNK_COUNT_MAX: usize = 64;
/// The rate that a link is assumed to have before anything was measured, in bytes per second.
const RATE_AT_FIRST: f64 = 128_000.0;
/// A task that sends chunk after chunk has read its next chunk within this time.
const COME_AGAIN_TIME: Duration = Duration::from_millis(2);
/// For this long after a small question, another is expected.
const ASKED_TIME: Duration = Duration::from_secs(10);
/// The shortest round trip is taken to double in this time, unless a shorter one is seen. On a link
/// in use, round trips always include a queue, so the value has to grow by itself.
const ROUND_TRIP_DOUBLES: Duration = Duration::from_secs(300);
/// At least a transfer's whole time divided by this counts as time on the link, unless even the
/// shortest round trip of the connection took the rest. Otherwise a queue that is taken for a long
/// link would make chunks longer, and longer chunks would make the queue longer.
const ON_THE_LINK_PART: u32 = 2;
/// The weight of a new measurement of the rate.
const WEIGHT: f64 = 0.25;
/// The weight of a measurement that took far longer than a chunk should: requests wait as long
/// until the rate is corrected.
const SLOW_WEIGHT: f64 = 0.75;
/// Only a rate lower than the known one by more than this factor has [`SLOW_WEIGHT`]. A smaller
/// drop may come from traffic in the other direction.
const SLOW_PART: f64 = 4.0;
/// Shorter transfers say nothing about the rate, in bytes.
const MEASURED_LEN_MIN: u64 = 2 << 10;

struct State {
    lottery: Lottery,
    /// Tickets of demand, prefetch and replay while nothing is urgent.
    tickets: [Tickets; 3],
    /// How many tasks wait until something is home, in all volumes that share the link.
    hurried: usize,
    /// Waiting transfers, by class.
    waiting: [VecDeque<Waiting>; 3],
    /// The class that won the last draw, and waits until there is room for its transfer.
    drawn: Option<usize>,
    /// Parts of chunks that are under way.
    under_way: usize,
    /// Transfers that are under way beside them.
    beside: usize,
    /// Bytes per second, up and down.
    rates: [f64; 2],
    /// The shortest round trip of late, without the queue that traffic under way makes.
    round_trip: Duration,
    /// The shortest round trip since the connection was made.
    round_trip_seen: Duration,
    /// When the round trips were last updated.
    looked: Duration,
    /// When a program last waited for the link.
    used: Duration,
    /// When the last small question was asked.
    asked: Duration,
    /// When a program last waited for bytes.
    demanded: Duration,
    forecast: LossForecast,
}

/// A transfer that waits for its turn.
struct Waiting {
    since: Duration,
    parts: usize,
    sender: oneshot::Sender<Permit>,
}

/// The schedule of one link, which all volumes of a mount share.
pub struct Schedule {
    host: Host,
    state: Mutex<State>,
}

/// The right to have a transfer under way, until dropped.
pub struct Permit {
    schedule: Option<Arc<Schedule>>,
    /// The parts of a chunk that it takes; 0: it is beside the chunks.
    parts: usize,
    /// A program waits for it.
    is_demand: bool,
}

fn place(class: Class) -> Option<usize> {
    match class {
        Class::Interactive => None,
        Class::Demand => Some(0),
        Class::Prefetch => Some(1),
        Class::Replay => Some(2),
    }
}

impl Schedule {
    /// A schedule for a link about which nothing is known.
    pub fn new(host: &Host) -> Arc<Schedule> {
        let state = State {
            lottery: Lottery::new(TICKETS.to_vec()),
            tickets: TICKETS,
            hurried: 0,
            waiting: Default::default(),
            drawn: None,
            under_way: 0,
            beside: 0,
            rates: [RATE_AT_FIRST; 2],
            round_trip: Duration::ZERO,
            round_trip_seen: Duration::MAX,
            looked: Duration::ZERO,
            used: Duration::ZERO,
            asked: Duration::ZERO,
            demanded: Duration::ZERO,
            forecast: LossForecast::default(),
        };
        Arc::new(Schedule { host: host.clone(), state: Mutex::new(state) })
    }

    /// Changes the tickets of demand, prefetch and replay.
    pub fn set_tickets(&self, tickets: [Tickets; 3]) {
        let mut state = self.state.lock();
        state.tickets = tickets;
        state.deal();
    }

    /// A task waits until something is home. Until [`calm`](Self::calm), replay is as urgent as
    /// demand.
    pub(crate) fn hurry(&self) {
        let mut state = self.state.lock();
        state.hurried += 1;
        state.deal();
    }

    /// A task no longer waits until something is home.
    pub(crate) fn calm(&self) {
        let mut state = self.state.lock();
        state.hurried -= 1;
        state.deal();
    }

    /// Waits for the right to send or fetch `len` bytes; more than a chunk counts as one chunk.
    /// Small questions need no right.
    pub async fn admit(self: &Arc<Self>, class: Class, direction: Direction, len: u64) -> Permit {
        let now = self.host.clock.now();
        let Some(place) = place(class) else {
            let mut state = self.state.lock();
            (state.used, state.asked) = (now, now);
            return Permit { schedule: None, parts: 0, is_demand: false };
        };
        let turn = {
            let mut state = self.state.lock();
            if class == Class::Demand {
                (state.used, state.demanded) = (now, now);
            }
            let chunk = state.chunk_len(direction);
            let parts = (PARTS as u64 * len.min(chunk)).div_ceil(chunk).max(1) as usize;
            let permit = |parts| Permit { schedule: Some(self.clone()), parts, is_demand: class == Class::Demand };
            if state.has_room(parts, now) && state.waiting.iter().all(VecDeque::is_empty) {
                state.under_way += parts;
                return permit(parts);
            }
            if class == Class::Demand && parts == 1 && state.beside < BESIDE_COUNT_MAX {
                state.beside += 1;
                return permit(0);
            }
            let (sender, turn) = oneshot::channel();
            state.waiting[place].push_back(Waiting { since: now, parts, sender });
            turn
        };
        // If the sender is gone, there are no more draws, and the transfer goes without a right.
        turn.await.unwrap_or(Permit { schedule: None, parts: 0, is_demand: false })
    }

    /// Ends a transfer. Its place is drawn for after a moment, so that the task that had it can
    /// come with its next chunk. Otherwise that task would take part in every other draw only.
    fn done(self: &Arc<Self>, parts: usize, was_demand: bool) {
        let now = self.host.clock.now();
        let waits = {
            let mut state = self.state.lock();
            state.under_way -= parts;
            state.beside -= usize::from(parts == 0);
            if was_demand {
                state.demanded = now;
            }
            !state.waiting.iter().all(VecDeque::is_empty)
        };
        if waits {
            let me = self.clone();
            self.host.tasks.spawn(Box::pin(async move {
                me.host.clock.sleep(COME_AGAIN_TIME).await;
                me.draw();
            }));
        }
    }

    /// Gives room to waiting transfers.
    fn draw(self: &Arc<Self>) {
        let now = self.host.clock.now();
        let mut state = self.state.lock();
        while state.has_room(1, now) {
            // Transfers whose tasks have given up do not take part.
            state.waiting.iter_mut().for_each(|waiting| waiting.retain(|one| !one.sender.is_closed()));
            let waited: Vec<Option<Duration>> =
                state.waiting.iter().map(|waiting| Some(now.saturating_sub(waiting.front()?.since))).collect();
            let drawn = state.drawn.take().filter(|class| waited[*class].is_some());
            let fits = state.waiting.iter().filter_map(VecDeque::front).any(|one| state.has_room(one.parts, now));
            let is_contested = waited.iter().flatten().count() > 1;
            if !fits && !is_contested {
                // Others may come before there is room. A class that has won stays next.
                state.drawn = drawn;
                return;
            }
            let draw = |state: &mut State| state.lottery.draw(&waited, self.host.random.next_u64());
            let Some(class) = drawn.or_else(|| draw(&mut state)) else { return };
            let Some(parts) = state.waiting[class].front().map(|one| one.parts) else { return };
            if !state.has_room(parts, now) {
                state.drawn = Some(class);
                return;
            }
            let Some(one) = state.waiting[class].pop_front() else { return };
            let is_demand = place(Class::Demand) == Some(class);
            match one.sender.send(Permit { schedule: Some(self.clone()), parts, is_demand }) {
                Ok(()) => state.under_way += parts,
                // The permit was never given, so it is not given back.
                Err(mut permit) => permit.schedule = None,
            }
        }
    }

    /// Takes in a measurement: a transfer of `len` bytes took `took` in all, with this permit if it
    /// needed one.
    pub fn measured(&self, turn: Option<&Permit>, direction: Direction, len: u64, took: Duration, path: &Path) {
        let now = self.host.clock.now();
        let mut state = self.state.lock();
        let since = now.saturating_sub(std::mem::replace(&mut state.looked, now));
        let growth = (since.as_secs_f64() / ROUND_TRIP_DOUBLES.as_secs_f64()).min(32.0).exp2();
        state.round_trip = match state.round_trip {
            Duration::ZERO => path.round_trip,
            known => path.round_trip.min(known.mul_f64(growth)),
        };
        state.round_trip_seen = state.round_trip_seen.min(path.round_trip);
        let [on_the_link, at_most] = [state.round_trip, state.round_trip_seen].map(|link| took.saturating_sub(link));
        let on_the_link = on_the_link.max(took / ON_THE_LINK_PART).min(at_most).max(Duration::from_micros(100));
        // Other transfers were under way at the same time. A transfer that was a small part of them
        // says little.
        let parts = turn.filter(|turn| turn.schedule.is_some()).map_or(PARTS, |turn| turn.parts);
        if len >= MEASURED_LEN_MIN && (parts == PARTS || 2 * parts >= state.under_way) {
            let shared = (state.under_way / parts.max(1)).max(1) as f64;
            let rate = len as f64 * shared / on_the_link.as_secs_f64();
            // The mean of the times per byte. So a link that has become slow is known to be slow
            // after a single chunk, whose length is still right for a fast link.
            let known = &mut state.rates[direction as usize];
            let weight = if on_the_link > 2 * CHUNK_TIME && rate < *known / SLOW_PART { SLOW_WEIGHT } else { WEIGHT };
            *known = 1.0 / ((1.0 - weight) / *known + weight / rate);
            state.forecast.measured(now, direction, rate);
        }
    }

    /// Notes that a program waits for bytes that are under way already.
    pub(crate) fn is_wanted(&self) {
        let now = self.host.clock.now();
        let mut state = self.state.lock();
        (state.used, state.demanded) = (now, now);
    }

    /// The rate in bytes per second.
    pub fn rate(&self, direction: Direction) -> f64 {
        self.state.lock().rates[direction as usize]
    }

    /// The longest time until this many requests with this many bytes have gone home one after the
    /// other, while the link stays as it is. There is a bound because a class that has waited for
    /// long enough is next. `None` if replay has no such bound.
    pub fn home_within(&self, requests: u64, bytes: u64) -> Option<Duration> {
        let state = self.state.lock();
        let wait_max = place(Class::Replay).and_then(|replay| state.tickets[replay].wait_max)?;
        let chunks = requests + bytes / state.chunk_len(Direction::Up);
        // A chunk under way comes first, and then the request's own.
        Some((wait_max + 2 * CHUNK_TIME + state.round_trip).saturating_mul(chunks.try_into().unwrap_or(u32::MAX)))
    }

    /// How long a small question takes.
    pub fn round_trip(&self) -> Duration {
        self.state.lock().round_trip
    }

    /// Bytes in a chunk.
    pub fn chunk_len(&self, direction: Direction) -> u64 {
        self.state.lock().chunk_len(direction)
    }

    /// A new connection was made, perhaps over another link.
    pub(crate) fn connected(&self) {
        let mut state = self.state.lock();
        (state.round_trip, state.round_trip_seen) = (Duration::ZERO, Duration::MAX);
    }

    /// The connection was lost, and the user did not ask for that.
    pub(crate) fn lost(&self) {
        let now = self.host.clock.now();
        self.state.lock().forecast.lost(now);
    }

    /// True if the link may soon be lost.
    pub(crate) fn disconnection_is_likely(&self) -> bool {
        let now = self.host.clock.now();
        self.state.lock().forecast.disconnection_is_likely(now)
    }

    /// How long ago a program last waited for bytes.
    pub(crate) fn demanded_before(&self) -> Duration {
        self.host.clock.now().saturating_sub(self.state.lock().demanded)
    }

    /// True if even [`MEASURED_LEN_MIN`] bytes take longer on their way home than a chunk should,
    /// so a program that waits for bytes may wait too long. A slow link counts as fast again only
    /// at twice that rate.
    pub(crate) fn is_slow(&self, was_slow: bool) -> bool {
        let slow = MEASURED_LEN_MIN as f64 / CHUNK_TIME.as_secs_f64();
        self.rate(Direction::Up) < if was_slow { 2.0 * slow } else { slow }
    }

    /// How long ago a program last waited for the link.
    pub fn idle_for(&self) -> Duration {
        self.host.clock.now().saturating_sub(self.state.lock().used)
    }
}

impl State {
    fn deal(&mut self) {
        let tickets = if self.hurried > 0 { Writes::urgent_tickets() } else { self.tickets };
        tickets.into_iter().enumerate().for_each(|(class, tickets)| self.lottery.set(class, tickets));
    }

    fn chunk_len(&self, direction: Direction) -> u64 {
        write_back::chunk_len(self.rates[direction as usize])
    }

    /// True if this many more parts may be under way.
    fn has_room(&self, parts: usize, now: Duration) -> bool {
        self.under_way + parts <= PARTS * self.under_way_max(now)
    }

    /// As many chunks as the link holds, and one. If the link holds a fraction of a chunk more, the
    /// fraction counts as a chunk while no small questions are asked, so that the link is always in
    /// use. While they are, it does not count, since they would wait for one chunk more.
    fn under_way_max(&self, now: Duration) -> usize {
        let held = self.round_trip.as_secs_f64() / CHUNK_TIME.as_secs_f64();
        let held = if now.saturating_sub(self.asked) < ASKED_TIME { held.floor() } else { held.ceil() };
        (held as usize + 1).min(CHUNK_COUNT_MAX)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(schedule) = self.schedule.take() {
            schedule.done(self.parts, self.is_demand);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::sim::Sim;

    /// Sends chunks of one class, one after the other, for ever.
    async fn send(schedule: Arc<Schedule>, class: Class, count: Arc<Mutex<u64>>) {
        loop {
            let _permit = schedule.admit(class, Direction::Up, CHUNK_LEN_MAX).await;
            schedule.host.clock.sleep(Duration::from_millis(500)).await;
            *count.lock() += 1;
        }
    }

    #[test]
    fn a_small_question_has_one_chunk_in_its_way_and_what_is_under_way_does_not_make_the_link_longer() {
        let sim = Sim::new(1);
        let schedule = Schedule::new(&sim.machine("laptop").host());
        let max = || schedule.state.lock().under_way_max(schedule.host.clock.now());
        let measured = |millis| {
            let path = Path { round_trip: Duration::from_millis(millis), ..Path::default() };
            schedule.measured(None, Direction::Up, 1, Duration::ZERO, &path);
        };
        sim.run_for(ASKED_TIME);
        measured(100);
        (0..10).for_each(|_| measured(900));
        assert_eq!(max(), 2);
        drop(sim.block_on(schedule.admit(Class::Interactive, Direction::Up, 0)));
        assert_eq!(max(), 1);
        sim.run_for(ASKED_TIME);
        assert_eq!(max(), 2);
        // A link that is long.
        sim.run_for(5 * ROUND_TRIP_DOUBLES);
        measured(1200);
        assert_eq!(max(), 4);
        drop(sim.block_on(schedule.admit(Class::Interactive, Direction::Up, 0)));
        assert_eq!(max(), 3);
    }

    /// While much goes home, every round trip includes the client's own queue.
    #[test]
    fn regression_chunks_do_not_become_longer_by_the_queue_that_they_make() {
        let sim = Sim::new(2);
        let schedule = Schedule::new(&sim.machine("laptop").host());
        let (rate, link) = (4800.0, Duration::from_millis(100));
        let send = || {
            let on_the_link = Duration::from_secs_f64(schedule.chunk_len(Direction::Up) as f64 / rate);
            sim.run_for(on_the_link + link);
            let path = Path { round_trip: link + on_the_link, ..Path::default() };
            schedule.measured(None, Direction::Up, schedule.chunk_len(Direction::Up), on_the_link + link, &path);
            on_the_link
        };
        let path = Path { round_trip: link, ..Path::default() };
        schedule.measured(None, Direction::Up, 0, link, &path);
        let mut longest = Duration::ZERO;
        for chunk in 0..200 {
            let took = send();
            longest = if chunk < 20 { Duration::ZERO } else { longest.max(took) };
        }
        assert!(longest < CHUNK_TIME * 5 / 4, "{longest:?}");
        // And over hours.
        for _ in 0..20_000 {
            longest = longest.max(send());
        }
        assert!(longest < CHUNK_TIME * 5 / 2, "{longest:?}");
    }

    /// The round trip that was seen is the link's length, and the next connection may be over
    /// another link.
    #[test]
    fn regression_a_long_link_is_not_taken_for_a_slow_one() {
        let sim = Sim::new(2);
        let schedule = Schedule::new(&sim.machine("laptop").host());
        for link in [1, 1500, 10, 3000].map(Duration::from_millis) {
            schedule.connected();
            for _ in 0..200 {
                let len = schedule.chunk_len(Direction::Up);
                let took = link + Duration::from_secs_f64(len as f64 / 125_000.0);
                sim.run_for(took);
                let path = Path { round_trip: link, ..Path::default() };
                schedule.measured(None, Direction::Up, len, took, &path);
            }
            let rate = schedule.rate(Direction::Up);
            assert!((100_000.0..150_000.0).contains(&rate), "{link:?}: {rate}");
        }
    }

    #[test]
    fn what_is_short_goes_beside_others_as_long_as_all_of_it_is_no_longer_than_a_chunk() {
        let sim = Sim::new(1);
        let machine = sim.machine("laptop");
        let schedule = Schedule::new(&machine.host());
        let chunk = schedule.chunk_len(Direction::Down);
        let is_let_in = |class, part: u64| {
            let turn = Box::pin(schedule.admit(class, Direction::Down, chunk / part));
            let soon = host::timeout(&*schedule.host.clock, Duration::from_secs(1), turn);
            sim.block_on(soon).ok()
        };
        drop(sim.block_on(schedule.admit(Class::Interactive, Direction::Down, 0)));
        let half = is_let_in(Class::Prefetch, 2).expect("nothing else is under way");
        let some: Vec<_> = (0..4).map(|_| is_let_in(Class::Replay, 8).expect("half is free")).collect();
        assert!(is_let_in(Class::Prefetch, 16).is_none());
        let beside: Vec<_> = (0..2).map(|_| is_let_in(Class::Demand, 16).expect("short, and waited for")).collect();
        assert!(is_let_in(Class::Demand, 16).is_none());
        drop((half, beside));
        let other = is_let_in(Class::Replay, 4).expect("half is free");
        assert!(is_let_in(Class::Demand, 2).is_none(), "longer than what is free");
        // A long transfer is not overtaken by short ones for ever.
        let long = schedule.clone();
        let done = Arc::new(Mutex::new(false));
        let see = done.clone();
        machine.host().tasks.spawn(Box::pin(async move {
            let _permit = long.admit(Class::Demand, Direction::Down, CHUNK_LEN_MAX).await;
            *see.lock() = true;
        }));
        sim.run_for(Duration::from_secs(1));
        assert!(is_let_in(Class::Replay, 16).is_none(), "others wait");
        assert!(is_let_in(Class::Demand, 16).is_some(), "short, and waited for");
        drop((some, other));
        sim.run_for(Duration::from_secs(1));
        assert!(*done.lock());
    }

    #[test]
    fn regression_one_volume_that_is_calm_does_not_calm_the_others() {
        let sim = Sim::new(1);
        let schedule = Schedule::new(&sim.machine("laptop").host());
        let prefetches = || {
            let mut state = schedule.state.lock();
            let both = [Some(Duration::ZERO), Some(Duration::ZERO), None];
            (0..200u64).any(|n| state.lottery.draw(&both, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) == Some(1))
        };
        assert!(prefetches());
        schedule.hurry();
        schedule.hurry();
        schedule.set_tickets(TICKETS);
        schedule.calm();
        assert!(!prefetches());
        schedule.calm();
        assert!(prefetches());
    }

    #[test]
    fn sim_shares_follow_tickets() {
        for replay in [10, 50, 90] {
            let sim = Sim::new(7);
            let machine = sim.machine("laptop");
            let schedule = Schedule::new(&machine.host());
            let tickets = |tickets| Tickets { tickets, wait_max: None };
            schedule.set_tickets([tickets(100 - replay), tickets(0), tickets(replay)]);
            let counts = [Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0))];
            for (class, count) in [Class::Demand, Class::Replay].into_iter().zip(&counts) {
                for _ in 0..3 {
                    machine.host().tasks.spawn(Box::pin(send(schedule.clone(), class, count.clone())));
                }
            }
            sim.run_for(Duration::from_secs(2000));
            let (demand, sent) = (*counts[0].lock(), *counts[1].lock());
            let share = 100 * sent / (demand + sent);
            assert!(share.abs_diff(u64::from(replay)) <= 5, "{replay} tickets sent {share} of 100");
        }
    }

    /// A task that sends one chunk after the other has its share beside tasks that always wait.
    #[test]
    fn regression_whoever_sends_one_after_the_other_has_his_share() {
        let sim = Sim::new(8);
        let machine = sim.machine("laptop");
        let schedule = Schedule::new(&machine.host());
        let tickets = |tickets| Tickets { tickets, wait_max: None };
        schedule.set_tickets([tickets(60), tickets(0), tickets(30)]);
        let counts = [Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0))];
        for _ in 0..3 {
            machine.host().tasks.spawn(Box::pin(send(schedule.clone(), Class::Demand, counts[0].clone())));
        }
        let (sender, count) = (schedule.clone(), counts[1].clone());
        machine.host().tasks.spawn(Box::pin(async move {
            loop {
                let permit = sender.admit(Class::Replay, Direction::Up, CHUNK_LEN_MAX).await;
                sender.host.clock.sleep(CHUNK_TIME).await;
                drop(permit);
                *count.lock() += 1;
                // It reads the next chunk.
                sender.host.clock.sleep(Duration::from_micros(500)).await;
            }
        }));
        // Small questions keep the number under way at one.
        machine.host().tasks.spawn(Box::pin(async move {
            loop {
                drop(schedule.admit(Class::Interactive, Direction::Up, 0).await);
                schedule.host.clock.sleep(Duration::from_secs(5)).await;
            }
        }));
        sim.run_for(Duration::from_secs(2000));
        let (demand, sent) = (*counts[0].lock(), *counts[1].lock());
        let share = 100 * sent / (demand + sent);
        assert!((30..=36).contains(&share), "{share} of 100");
    }

    #[test]
    fn regression_chunks_are_short_soon_after_a_link_has_become_slow() {
        let sim = Sim::new(9);
        let schedule = Schedule::new(&sim.machine("laptop").host());
        let path = Path { round_trip: Duration::from_millis(100), ..Path::default() };
        let send = |rate: f64| {
            let len = schedule.chunk_len(Direction::Up).max(MEASURED_LEN_MIN);
            schedule.measured(
                None,
                Direction::Up,
                len,
                path.round_trip + Duration::from_secs_f64(len as f64 / rate),
                &path,
            );
        };
        (0..100).for_each(|_| send(1e8));
        assert_eq!(schedule.chunk_len(Direction::Up), CHUNK_LEN_MAX);
        // A modem.
        send(4800.0);
        assert!(schedule.rate(Direction::Up) < 1.5 * 4800.0);
        // And fast again, in a few seconds of many short chunks.
        (0..60).for_each(|_| send(1e8));
        assert_eq!(schedule.chunk_len(Direction::Up), CHUNK_LEN_MAX);
    }

    #[test]
    fn a_link_is_slow_from_some_rate_on_and_fast_again_only_at_twice_that() {
        let sim = Sim::new(4);
        let schedule = Schedule::new(&sim.machine("laptop").host());
        let send = |rate: f64| {
            let took = Duration::from_secs_f64(MEASURED_LEN_MIN as f64 / rate);
            (0..100).for_each(|_| schedule.measured(None, Direction::Up, MEASURED_LEN_MIN, took, &Path::default()));
        };
        for (rate, slow, still_slow) in [(3000.0, true, true), (6000.0, false, true), (10_000.0, false, false)] {
            send(rate);
            assert_eq!((schedule.is_slow(false), schedule.is_slow(true)), (slow, still_slow), "{rate}");
        }
    }

    #[test]
    fn sim_replay_waits_no_longer_than_its_age_allows() {
        let sim = Sim::new(3);
        let machine = sim.machine("laptop");
        let schedule = Schedule::new(&machine.host());
        schedule.set_tickets([TICKETS[0], TICKETS[1], Tickets { tickets: 0, ..TICKETS[2] }]);
        let counts = [Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0))];
        for _ in 0..4 {
            machine.host().tasks.spawn(Box::pin(send(schedule.clone(), Class::Demand, counts[0].clone())));
        }
        machine.host().tasks.spawn(Box::pin(send(schedule.clone(), Class::Replay, counts[1].clone())));
        sim.run_for(Duration::from_secs(40));
        assert!(*counts[1].lock() >= 1);
    }

    #[test]
    fn sim_small_questions_wait_for_nobody_and_those_who_give_up_leave_no_gap() {
        let sim = Sim::new(5);
        let machine = sim.machine("laptop");
        let schedule = Schedule::new(&machine.host());
        sim.block_on(async {
            let first = schedule.admit(Class::Replay, Direction::Up, CHUNK_LEN_MAX).await;
            let mut given_up = Box::pin(schedule.admit(Class::Demand, Direction::Up, CHUNK_LEN_MAX));
            let clock = machine.host().clock;
            assert!(host::timeout(&*clock, Duration::from_secs(1), &mut given_up).await.is_err());
            drop(schedule.admit(Class::Interactive, Direction::Up, 0).await);
            drop(given_up);
            drop(first);
            let _next = schedule.admit(Class::Demand, Direction::Up, CHUNK_LEN_MAX).await;
        });
    }
}
