//! N-Chance Forwarding (Dahlin, section 3.1.6).
//!
//! A client evicts the block that it used least recently. If that block is a singlet, the only copy
//! in any cache, the client sends it to another client, chosen at random. A singlet that has moved
//! `n` times without being used is discarded.

/// How many times an unused singlet moves to another client before it is discarded, by default
/// (Dahlin, section 3.3.2.5).
pub const RECIRCULATIONS: u8 = 2;

/// What a client does with a block that leaves its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnEviction {
    /// The client drops the block.
    Discard,
    /// The client sends the block to another client, with this recirculation count.
    Forward(u8),
}

/// Decides about the block that a client used least recently. `recirculated`: how many times it has
/// moved since a client used it; `n`: how many times it may move.
pub fn on_eviction(is_singlet: bool, recirculated: u8, n: u8) -> OnEviction {
    if is_singlet && recirculated < n { OnEviction::Forward(recirculated + 1) } else { OnEviction::Discard }
}

/// What a full client drops for a block that another client sends. It forwards nothing, so that one
/// move never causes another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// The duplicate that the client used least recently.
    OldestDuplicate,
    /// Of its singlets with this recirculation count, the one that it used least recently.
    OldestSinglet(u8),
}

/// Chooses the victim: a duplicate, otherwise a singlet with the fewest chances left. `singlets[i]`
/// is the number of the client's singlets with recirculation count `i`. `None` if the client has
/// neither.
pub fn victim(duplicates: u64, singlets: &[u64]) -> Option<Victim> {
    if duplicates > 0 {
        return Some(Victim::OldestDuplicate);
    }
    singlets.iter().rposition(|count| *count > 0).map(|often| Victim::OldestSinglet(often as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_singlet_has_n_chances_and_a_duplicate_none() {
        assert_eq!(on_eviction(true, 0, 2), OnEviction::Forward(1));
        assert_eq!(on_eviction(true, 1, 2), OnEviction::Forward(2));
        assert_eq!(on_eviction(true, 2, 2), OnEviction::Discard);
        assert_eq!(on_eviction(false, 0, 2), OnEviction::Discard);
        assert_eq!(on_eviction(true, 0, 0), OnEviction::Discard, "greedy");
    }

    #[test]
    fn duplicates_go_first_and_then_what_has_gone_on_most_often() {
        assert_eq!(victim(1, &[5, 5, 5]), Some(Victim::OldestDuplicate));
        assert_eq!(victim(0, &[5, 1, 0]), Some(Victim::OldestSinglet(1)));
        assert_eq!(victim(0, &[5, 0, 0]), Some(Victim::OldestSinglet(0)));
        assert_eq!(victim(0, &[0, 0, 0]), None);
    }
}
