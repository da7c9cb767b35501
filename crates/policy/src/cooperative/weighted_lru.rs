//! Weighted LRU (Dahlin, section 3.1.5): a client discards the block whose loss costs all clients
//! least.
//!
//! The cost of losing a block is the extra time that its next use will take, divided by the time
//! until that use. The time until the next use is estimated as the time since the last one (table
//! 3-1).
//!
//! A client that needs room discards its least recently used duplicate or singlet. Or it sends the
//! singlet to another client, if that client can discard something cheaper for it.

/// How long it takes to get a block from each place, all in the same unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latencies {
    /// From the client's own cache.
    pub local: f64,
    /// From another client's cache.
    pub remote: f64,
    /// From the server's disk.
    pub disk: f64,
}

/// Time since a block was last used, both in the same unit. Zero counts as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ages {
    /// Since the client that has it used it; `None` if that client only keeps it for others.
    pub local: Option<u64>,
    /// Since any client used it.
    pub global: u64,
}

impl Latencies {
    /// The cost of losing a duplicate: its client must get it from another client.
    pub fn of_duplicate(&self, ages: Ages) -> f64 {
        ages.local.map_or(0.0, |age| (self.remote - self.local) / age.max(1) as f64)
    }

    /// The cost of losing a singlet: the next client that wants it must get it from the disk.
    pub fn of_singlet(&self, ages: Ages) -> f64 {
        self.of_duplicate(ages) + (self.disk - self.remote) / ages.global.max(1) as f64
    }
}

/// What a client does to make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replace {
    /// It discards its duplicate.
    DiscardDuplicate,
    /// It discards its singlet.
    DiscardSinglet,
    /// It sends its singlet to another client.
    ForwardSinglet,
}

/// Decides what a client does to make room. `duplicate` and `singlet` are the ages of its least
/// recently used ones. `elsewhere` is what room for the singlet costs another client, zero if that
/// client has some left. `None` if the client has neither a duplicate nor a singlet.
pub fn replaces(
    of: &Latencies,
    duplicate: Option<Ages>,
    singlet: Option<Ages>,
    elsewhere: Option<f64>,
) -> Option<Replace> {
    let discarded = gives_up(of, duplicate, singlet);
    // The singlet's client loses it as it would lose a duplicate.
    let forwarded = singlet.zip(elsewhere).map(|(ages, cost)| of.of_duplicate(ages) + cost);
    match (discarded, forwarded) {
        (Some((cost, _)), Some(forwarded)) if forwarded < cost => Some(Replace::ForwardSinglet),
        (discarded, _) => discarded.map(|(_, what)| what),
    }
}

/// What a client discards for a singlet that another client sends, and the cost. It forwards
/// nothing.
pub fn gives_up(of: &Latencies, duplicate: Option<Ages>, singlet: Option<Ages>) -> Option<(f64, Replace)> {
    let duplicate = duplicate.map(|ages| (of.of_duplicate(ages), Replace::DiscardDuplicate));
    let singlet = singlet.map(|ages| (of.of_singlet(ages), Replace::DiscardSinglet));
    match (duplicate, singlet) {
        (Some(duplicate), Some(singlet)) if singlet.0 < duplicate.0 => Some(singlet),
        (duplicate, singlet) => duplicate.or(singlet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATM: Latencies = Latencies { local: 250.0, remote: 1250.0, disk: 15_850.0 };

    fn used(age: u64) -> Option<Ages> {
        Some(Ages { local: Some(age), global: age })
    }

    #[test]
    fn costs_are_those_of_table_3_1() {
        let ages = Ages { local: Some(100), global: 50 };
        assert_eq!(ATM.of_duplicate(ages), 1000.0 / 100.0);
        assert_eq!(ATM.of_singlet(ages), 1000.0 / 100.0 + 14_600.0 / 50.0);
        // No other client has used it since: the block comes from the disk instead of this cache.
        assert_eq!(ATM.of_singlet(Ages { local: Some(100), global: 100 }), 15_600.0 / 100.0);
        let kept = Ages { local: None, global: 100 };
        assert_eq!((ATM.of_duplicate(kept), ATM.of_singlet(kept)), (0.0, 146.0));
    }

    #[test]
    fn a_singlet_goes_before_a_duplicate_only_if_it_is_much_older() {
        assert_eq!(replaces(&ATM, used(10), used(100), None), Some(Replace::DiscardDuplicate));
        assert_eq!(replaces(&ATM, used(10), used(157), None), Some(Replace::DiscardSinglet));
        assert_eq!(replaces(&ATM, None, used(1), None), Some(Replace::DiscardSinglet));
        assert_eq!(replaces(&ATM, used(1), None, Some(0.0)), Some(Replace::DiscardDuplicate));
        assert_eq!(replaces(&ATM, None, None, Some(0.0)), None);
    }

    #[test]
    fn a_singlet_goes_to_where_what_it_displaces_is_cheaper() {
        let elsewhere = |age| gives_up(&ATM, None, used(age)).map(|(cost, _)| cost);
        // Both clients lose a block that they have used themselves, so it takes more than a
        // slightly older block elsewhere.
        assert_eq!(replaces(&ATM, None, used(1000), elsewhere(1068)), Some(Replace::DiscardSinglet));
        assert_eq!(replaces(&ATM, None, used(1000), elsewhere(1069)), Some(Replace::ForwardSinglet));
        assert_eq!(replaces(&ATM, used(10), used(1000), Some(0.0)), Some(Replace::ForwardSinglet), "there is room");
        assert_eq!(replaces(&ATM, used(1000), used(10), Some(0.0)), Some(Replace::DiscardDuplicate));
    }
}
