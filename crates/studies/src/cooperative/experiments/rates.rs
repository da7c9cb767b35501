//! Where the thesis's reads of Sprite's trace are served (section 3.3.1), as far as it states that,
//! and what that explains of the difference to ours.

use super::percent;
use crate::cooperative::{Algorithm, Level, Technology};

/// Where reads are served.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rates {
    /// Not from the client's own cache, in percent of all.
    pub misses: f64,
    /// From the disk, in percent of all.
    pub disk: f64,
    /// The part of the reads from others' memory that other clients serve, 0 to 1; the server
    /// serves the rest.
    pub remote: f64,
}

impl Rates {
    /// The rates of reads by [`Level`].
    pub fn of(reads: &[u64; 4]) -> Rates {
        let [local, remote, server, disk] = *reads;
        let all = reads.iter().sum();
        let of_memory = percent(remote, remote + server) / 100.0;
        Rates { misses: percent(all - local, all), disk: percent(disk, all), remote: of_memory }
    }

    /// Mean time of a read from others' memory, in microseconds.
    fn memory_us(&self, times_us: &[f64; 4]) -> f64 {
        self.remote * times_us[Level::Remote as usize] + (1.0 - self.remote) * times_us[Level::Server as usize]
    }

    /// Mean time of a read, in microseconds, given the time from each level.
    pub fn mean_us(&self, times_us: &[f64; 4]) -> f64 {
        let local = (100.0 - self.misses) * times_us[Level::Local as usize];
        let memory = (self.misses - self.disk) * self.memory_us(times_us);
        (local + memory + self.disk * times_us[Level::Disk as usize]) / 100.0
    }

    /// The same, but with as many reads from the disk as give this mean time.
    pub fn that_take(self, mean_us: f64, times_us: &[f64; 4]) -> Rates {
        let (memory_us, local) = (self.memory_us(times_us), (100.0 - self.misses) * times_us[Level::Local as usize]);
        let disk = 100.0 * mean_us - local - self.misses * memory_us;
        Rates { disk: disk / (times_us[Level::Disk as usize] - memory_us), ..self }
    }
}

/// What the thesis states of an algorithm on Sprite's trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stated {
    /// Its usual name.
    pub name: &'static str,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its speed-up over the base case.
    pub speed_up: f64,
    /// See [`Rates::misses`].
    pub misses: f64,
    /// See [`Rates::disk`]; `None` if it is not stated.
    pub disk: Option<f64>,
}

/// The base case on Sprite's trace (figure 3-4).
pub(super) const BASE: Rates = Rates { misses: 22.0, disk: 15.7, remote: 0.0 };

const fn stated(name: &'static str, algorithm: Algorithm, speed_up: f64, misses: f64, disk: Option<f64>) -> Stated {
    Stated { name, algorithm, speed_up, misses, disk }
}

const N_CHANCE: Algorithm = Algorithm::NChance(policy::cooperative::n_chance::RECIRCULATIONS);
const WEIGHTED_LRU: Algorithm = Algorithm::WeightedLru(crate::cooperative::Knowledge::AllHints);

/// Figures 3-3 and 3-4. Direct and greedy miss as often as the base case. Hash "performs like"
/// central, and has own caches of the same size.
pub(super) const SPRITE: [Stated; 6] = [
    stated("direct", Algorithm::Direct, 1.05, 22.0, None),
    stated("greedy", Algorithm::Greedy, 1.22, 22.0, None),
    stated("central", Algorithm::Central, 1.64, 36.0, Some(7.6)),
    stated("hash", Algorithm::Hash, 1.63, 36.0, None),
    stated("weighted-lru", WEIGHTED_LRU, 1.74, 22.0, Some(7.6)),
    stated("n-chance", N_CHANCE, 1.73, 23.0, Some(7.7)),
];

/// Four fifths of the clients' memory moved to the server (section 3.3.5).
pub(super) const MOVED: Stated = stated("memory at the server", Algorithm::Base, 1.66, 36.0, None);

impl Stated {
    /// The statements about an algorithm, by its name.
    pub fn of(name: &str) -> Option<Stated> {
        SPRITE.into_iter().find(|stated| stated.name == name)
    }

    /// Its rates. Reads from others' memory are split between clients and server as ours are. Rates
    /// that the thesis does not state follow from its speed-up.
    pub fn rates(&self, own: &Rates) -> Rates {
        let rates = Rates { misses: self.misses, disk: self.disk.unwrap_or(0.0), remote: own.remote };
        match self.disk {
            Some(_) => rates,
            None => {
                let base_us = BASE.mean_us(&Technology::ATM.times_us(Algorithm::Base));
                rates.that_take(base_us / self.speed_up, &Technology::ATM.times_us(self.algorithm))
            }
        }
    }

    /// Its speed-up with these times.
    pub fn speed_up_with(&self, own: &Rates, technology: &Technology) -> f64 {
        let base_us = BASE.mean_us(&technology.times_us(Algorithm::Base));
        base_us / self.rates(own).mean_us(&technology.times_us(self.algorithm))
    }

    /// Our speed-up with the thesis's rates in place of ours, one after the other, in words. `best`
    /// is the best case on our trace.
    pub fn explained(&self, base: &Rates, own: &Rates, best: &Rates) -> String {
        let (of_base, of_own) = (Technology::ATM.times_us(Algorithm::Base), Technology::ATM.times_us(self.algorithm));
        let theirs = self.rates(own);
        let speed_up = |rates: Rates| BASE.mean_us(&of_base) / rates.mean_us(&of_own);
        let misses = Rates { misses: theirs.misses, ..*own };
        let disk = match self.disk {
            Some(disk) => {
                let all = speed_up(theirs);
                format!("and with their reads from the disk ({disk:.1}%, ours {:.1}%), {all:.2}", own.disk)
            }
            None => {
                let (disk, ours) = (theirs.disk, own.disk);
                format!("the rest is reads from the disk (theirs {disk:.1}%, as their speed-up means, ours {ours:.1}%)")
            }
        };
        format!(
            "With their base case ({:.0}% of reads miss the client's cache, {:.1}% come from the disk; ours {:.0}%, {:.1}%) it would be {:.2}; with their misses ({:.0}%, ours {:.0}%), \
             {:.2}; {disk}. On our trace, the best case reads {:.1}% from the disk.",
            BASE.misses,
            BASE.disk,
            base.misses,
            base.disk,
            speed_up(*own),
            theirs.misses,
            own.misses,
            speed_up(misses),
            best.disk,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stated_of_rates_gives_what_is_stated_of_times() {
        // Table 3-4, figure 3-3, and table 3-3.
        assert!((BASE.mean_us(&Technology::ATM.times_us(Algorithm::Base)) - 2750.0).abs() < 5.0);
        for remote in [0.5, 0.8] {
            for stated in SPRITE {
                let speed_up = stated.speed_up_with(&Rates { remote, ..BASE }, &Technology::ATM);
                assert!((speed_up / stated.speed_up - 1.0).abs() < 0.02, "{stated:?}: {speed_up}");
            }
        }
    }

    #[test]
    fn rates_take_as_long_as_reads() {
        let reads = [700, 100, 50, 150];
        let rates = Rates::of(&reads);
        assert_eq!((rates.misses, rates.disk), (30.0, 15.0));
        for algorithm in Algorithm::ALL {
            let times_us = Technology::ATM.times_us(algorithm);
            let mean_us = crate::cooperative::mean_us(&reads, &times_us).expect("reads");
            assert!((rates.mean_us(&times_us) / mean_us - 1.0).abs() < 1e-12, "{algorithm:?}");
            let found = Rates { disk: 0.0, ..rates }.that_take(mean_us, &times_us);
            assert!((found.disk - 15.0).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn with_all_of_their_rates_ours_is_as_fast_as_theirs() {
        let (base, own) = (Rates::of(&[780, 0, 65, 155]), Rates::of(&[760, 85, 45, 110]));
        let stated = Stated::of("n-chance").expect("stated");
        let why = stated.explained(&base, &own, &own);
        let all = stated.speed_up_with(&own, &Technology::ATM);
        assert!(why.contains(&format!("(7.7%, ours 11.0%), {all:.2}.")) && why.contains("(23%, ours 24%)"), "{why}");
        let why = Stated::of("greedy").expect("stated").explained(&base, &own, &own);
        assert!(why.contains("as their speed-up means, ours 11.0%"), "{why}");
    }
}
