//! How many steps of work that can wait are taken at once.

use std::time::Duration;

/// How long the steps that are taken at once may take. If they take longer, fewer come next: over a
/// slow network, stores must still answer programs in time.
const TURN_TIME: Duration = Duration::from_millis(250);
/// At its longest, a turn has so many times the steps that are taken at once. As one ends, the next
/// begins, so no store waits for the slowest of a group.
const GROUPS: usize = 4;

/// How many steps are taken at once: one at first and after each rest, and twice as many each turn
/// until they take too long.
#[derive(Clone, Debug)]
pub struct Stride {
    count: usize,
    max: usize,
}

impl Stride {
    /// At most so many, and at least one.
    pub fn new(max: usize) -> Stride {
        Stride { count: 1, max: max.max(1) }
    }

    /// So many steps are to be taken at once now.
    pub fn count(&self) -> usize {
        self.count
    }

    /// So many steps are to be taken before the next look at whether to rest.
    pub fn turn(&self) -> usize {
        if self.count > 1 && self.count == self.max { GROUPS * self.count } else { self.count }
    }

    /// The work has rested: programs are there.
    pub fn rested(&mut self) {
        self.count = 1;
    }

    /// The last turn had so many steps and took so long.
    pub fn took(&mut self, steps: usize, time: Duration) {
        let groups = steps.div_ceil(self.count).max(1);
        self.count = match time / (groups as u32) < TURN_TIME {
            true => (2 * self.count).min(self.max),
            false => (self.count / 2).max(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_grow_while_they_are_short_and_begin_anew_after_a_rest() {
        let mut stride = Stride::new(12);
        let mut next = |time| {
            stride.took(stride.count(), time);
            stride.count()
        };
        assert_eq!([TURN_TIME / 2; 5].map(&mut next), [2, 4, 8, 12, 12]);
        assert_eq!([TURN_TIME; 5].map(&mut next), [6, 3, 1, 1, 1]);
        assert_eq!(next(Duration::ZERO), 2);
        stride.rested();
        assert_eq!(stride.count(), 1);
    }
    #[test]
    fn turns_are_long_only_at_the_widest_stride() {
        let mut stride = Stride::new(4);
        let mut turns = Vec::new();
        for _ in 0..4 {
            turns.push(stride.turn());
            stride.took(stride.turn(), TURN_TIME / 2);
        }
        assert_eq!(turns, [1, 2, 16, 16]);
        // A group of such a turn may take as long as a short turn.
        stride.took(16, 4 * TURN_TIME - Duration::from_millis(4));
        assert_eq!(stride.count(), 4);
        stride.took(16, 4 * TURN_TIME);
        assert_eq!((stride.count(), stride.turn()), (2, 2));
        assert_eq!(Stride::new(1).turn(), 1);
    }
}
