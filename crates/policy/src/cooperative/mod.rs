//! What becomes of a block that leaves a client's cache, where clients serve each other from their caches (Dahlin, section 3.1).
//!
//! *N-Chance Forwarding* (3.1.6): a client gives up what it used least recently. If that is a singlet, which no other client has, another client, chosen at random,
//! gets it, unless it went on like that `n` times since somebody used it. Greedy Forwarding is `n` = 0.
//!
//! [`weighted`], [`epoch`] and [`better`] are others' ways to find a place for it.

pub mod epoch;
pub mod weighted;

/// How often a block goes on to another client before it is given up, where nothing else is said (Dahlin, section 3.3.2.5).
pub const RECIRCULATIONS: u8 = 2;

/// What a client does with a block that it needs the room of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// It is gone, from this cache.
    Discard,
    /// Another client gets it, with this recirculation count.
    Forward(u8),
}

/// What becomes of the block that a client used least recently, which has gone on `recirculated` times since it was used; `n`: how often it may.
pub fn leaving(is_singlet: bool, recirculated: u8, n: u8) -> Leaving {
    match is_singlet && recirculated < n {
        true => Leaving::Forward(recirculated + 1),
        false => Leaving::Discard,
    }
}

/// What a client that is sent a block, and has no room, gives up for it. It forwards nothing, so that no block makes another move that makes another move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Yields {
    /// The duplicate that it used least recently.
    OldestDuplicate,
    /// Of its singlets that went on this often, the one that it used least recently.
    OldestSinglet(u8),
}

/// What to give up: a duplicate, or else a singlet with the fewest recirculations left. `singlets` has how many of the client's singlets went on so often, by that. Nothing if
/// there is neither.
pub fn yields(duplicates: u64, singlets: &[u64]) -> Option<Yields> {
    match duplicates {
        0 => singlets.iter().rposition(|count| *count > 0).map(|often| Yields::OldestSinglet(often as u8)),
        _ => Some(Yields::OldestDuplicate),
    }
}

/// What a client that is asked says of itself, before a block is sent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// It has room.
    Room,
    /// It has none, and so long ago it used what it used least recently.
    Full(u64),
}

/// Which of two clients that were chosen at random gets a block: the less busy one (Dahlin, section 3.1.7, after Adler and others). True: the second.
pub fn better(first: Load, second: Load) -> bool {
    match (first, second) {
        (Load::Full(first), Load::Full(second)) => second > first,
        (first, second) => first != Load::Room && second == Load::Room,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_singlet_has_n_chances_and_a_duplicate_none() {
        assert_eq!(leaving(true, 0, 2), Leaving::Forward(1));
        assert_eq!(leaving(true, 1, 2), Leaving::Forward(2));
        assert_eq!(leaving(true, 2, 2), Leaving::Discard);
        assert_eq!(leaving(false, 0, 2), Leaving::Discard);
        assert_eq!(leaving(true, 0, 0), Leaving::Discard, "greedy");
    }

    #[test]
    fn duplicates_go_first_and_then_what_has_gone_on_most_often() {
        assert_eq!(yields(1, &[5, 5, 5]), Some(Yields::OldestDuplicate));
        assert_eq!(yields(0, &[5, 1, 0]), Some(Yields::OldestSinglet(1)));
        assert_eq!(yields(0, &[5, 0, 0]), Some(Yields::OldestSinglet(0)));
        assert_eq!(yields(0, &[0, 0, 0]), None);
    }

    #[test]
    fn of_two_the_less_busy_one_is_better() {
        assert!(better(Load::Full(5), Load::Room) && better(Load::Full(5), Load::Full(6)));
        assert!(!better(Load::Full(6), Load::Full(5)) && !better(Load::Full(5), Load::Full(5)));
        assert!(!better(Load::Room, Load::Room) && !better(Load::Room, Load::Full(u64::MAX)));
    }
}
