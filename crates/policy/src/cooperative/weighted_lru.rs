//! Weighted LRU (Dahlin, section 3.1.5): what costs everybody least goes, where the cost of losing
//! a block is the time that its next use will take longer, spread over the time until then. Until
//! then it is taken to be as long as it is since the last use (table 3-1).
//!
//! Whoever needs room gives up the duplicate that it used least recently, or the singlet, or sends
//! the singlet to where something cheaper is given up for it.

/// How long a block takes from where it may be, in one unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latencies {
    /// From the client's own cache.
    pub local: f64,
    /// From another client's.
    pub remote: f64,
    /// From the server's disk.
    pub disk: f64,
}

/// How long ago a block was used, in one unit; less than one counts as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ages {
    /// By the client that has it; nothing if that only keeps it for others.
    pub local: Option<u64>,
    /// By anybody.
    pub global: u64,
}

impl Latencies {
    /// What it costs to lose a duplicate: its client has it from another one.
    pub fn of_duplicate(&self, ages: Ages) -> f64 {
        ages.local.map_or(0.0, |age| (self.remote - self.local) / age.max(1) as f64)
    }

    /// What it costs to lose a singlet: whoever wants it next has it from the disk.
    pub fn of_singlet(&self, ages: Ages) -> f64 {
        self.of_duplicate(ages) + (self.disk - self.remote) / ages.global.max(1) as f64
    }
}

/// What is done for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replace {
    /// The duplicate is gone from this cache.
    DiscardDuplicate,
    /// The singlet is gone.
    DiscardSinglet,
    /// Another client gets the singlet.
    ForwardSinglet,
}

/// What a client does for room, whose duplicate and singlet were used so long ago; `elsewhere`:
/// what another client's room for the singlet costs, nought if it has some left. Nothing if the
/// client has neither.
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

/// What a client gives up for a singlet that is sent to it, and what that costs; it sends nothing
/// on.
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
        // Used by nobody since: from the disk instead of from here.
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
        // Both lose what they have used themselves, so that a bit older is not old enough.
        assert_eq!(replaces(&ATM, None, used(1000), elsewhere(1068)), Some(Replace::DiscardSinglet));
        assert_eq!(replaces(&ATM, None, used(1000), elsewhere(1069)), Some(Replace::ForwardSinglet));
        assert_eq!(replaces(&ATM, used(10), used(1000), Some(0.0)), Some(Replace::ForwardSinglet), "there is room");
        assert_eq!(replaces(&ATM, used(1000), used(10), Some(0.0)), Some(Replace::DiscardDuplicate));
    }
}
