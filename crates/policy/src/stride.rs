//! How many steps of work that can wait are taken at once.

use std::time::Duration;

/// How long the steps that are taken at once may take. If they take longer, fewer come next: over a
/// slow network, stores must still answer programs in time.
const TURN_TIME: Duration = Duration::from_millis(250);

/// How many steps are taken at once: one at first and after each rest, and twice as many each time
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

    /// So many steps are to be taken now.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The work has rested: programs are there.
    pub fn rested(&mut self) {
        self.count = 1;
    }

    /// The last steps took so long.
    pub fn took(&mut self, time: Duration) {
        self.count = match time < TURN_TIME {
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
            stride.took(time);
            stride.count()
        };
        assert_eq!([TURN_TIME / 2; 5].map(&mut next), [2, 4, 8, 12, 12]);
        assert_eq!([TURN_TIME; 5].map(&mut next), [6, 3, 1, 1, 1]);
        assert_eq!(next(Duration::ZERO), 2);
        stride.rested();
        assert_eq!(stride.count(), 1);
    }
}
