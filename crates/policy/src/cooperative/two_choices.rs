//! Two choices (Dahlin, section 3.1.7, after Adler and others): a client asks two others, chosen at
//! random, and sends the singlet to the less busy one.

/// What a client answers when it is asked whether it can take a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// It has room.
    Room,
    /// It has no room. The time since it used its least recently used block.
    Full(u64),
}

/// True if the second of two clients should get the block: it has room and the first has none, or
/// its oldest block is older.
pub fn second_is_better(first: Load, second: Load) -> bool {
    match (first, second) {
        (Load::Full(first), Load::Full(second)) => second > first,
        (first, second) => first != Load::Room && second == Load::Room,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_the_less_busy_one_is_second_is_better() {
        assert!(second_is_better(Load::Full(5), Load::Room) && second_is_better(Load::Full(5), Load::Full(6)));
        assert!(!second_is_better(Load::Full(6), Load::Full(5)) && !second_is_better(Load::Full(5), Load::Full(5)));
        assert!(!second_is_better(Load::Room, Load::Room) && !second_is_better(Load::Room, Load::Full(u64::MAX)));
    }
}
