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
    /// How long each step of the last turn took.
    step: Duration,
}

impl Stride {
    /// At most so many, and at least one.
    pub fn new(max: usize) -> Stride {
        Stride { count: 1, max: max.max(1), step: TURN_TIME }
    }

    /// So many steps may be taken at once now.
    pub fn count(&self) -> usize {
        self.count
    }

    /// So many steps are to be taken before the next look at whether to rest, if `lanes` are taken
    /// at once. At the widest stride that is more than one group, if they take no longer than a
    /// group may.
    pub fn turn(&self, lanes: usize) -> usize {
        if self.count < self.max || self.max == 1 {
            return lanes;
        }
        let fitting = TURN_TIME.as_micros() / self.step.as_micros().max(1);
        usize::try_from(fitting).unwrap_or(usize::MAX).clamp(lanes, GROUPS * lanes)
    }

    /// The work has rested: programs are there.
    pub fn rested(&mut self) {
        self.count = 1;
    }

    /// The last turn had so many steps, `lanes` of them at once, and took so long.
    pub fn took(&mut self, steps: usize, lanes: usize, time: Duration) {
        let groups = steps.div_ceil(lanes.max(1)).max(1);
        self.step = time / (steps.max(1) as u32);
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
            stride.took(stride.count(), stride.count(), time);
            stride.count()
        };
        assert_eq!([TURN_TIME / 2; 5].map(&mut next), [2, 4, 8, 12, 12]);
        assert_eq!([TURN_TIME; 5].map(&mut next), [6, 3, 1, 1, 1]);
        assert_eq!(next(Duration::ZERO), 2);
        stride.rested();
        assert_eq!(stride.count(), 1);
    }
    #[test]
    fn turns_are_long_only_at_the_widest_stride_and_while_they_are_short() {
        let mut stride = Stride::new(4);
        let mut turns = Vec::new();
        for _ in 0..4 {
            let lanes = stride.count();
            turns.push(stride.turn(lanes));
            stride.took(stride.turn(lanes), lanes, TURN_TIME / 25);
        }
        assert_eq!(turns, [1, 2, 16, 16]);
        assert_eq!(stride.turn(1), 4, "fewer at once");
        // Each step takes a tenth of the longest turn.
        stride.took(10, 4, TURN_TIME);
        assert_eq!((stride.count(), stride.turn(4)), (4, 10));
        // They fill the turn.
        stride.took(4, 4, TURN_TIME - Duration::from_millis(1));
        assert_eq!((stride.count(), stride.turn(4)), (4, 4));
        stride.took(4, 4, TURN_TIME);
        assert_eq!((stride.count(), stride.turn(2)), (2, 2));
        assert_eq!(Stride::new(1).turn(1), 1);
    }
}
