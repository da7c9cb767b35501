//! Which class of traffic sends next on a slow link: lottery scheduling with ageing (Huston and
//! Honeyman, section 5.1; docs/roaming.md#the-link).
//!
//! Classes of traffic hold tickets. Whenever the link is free for a chunk, a draw among the classes
//! that have something to send decides. In the long run each class gets its share of tickets, and
//! no class with a ticket starves. But chance alone bounds no wait. Two rules do:
//!
//! - A class whose oldest chunk has waited longer than the class's bound sends next, with or
//!   without tickets. This never happens twice in a row while other classes with tickets wait, so
//!   none of these waits for more than one such chunk.
//! - A class that holds at least half of the tickets of all waiting classes never loses twice in a
//!   row. Its chance in the other draws is lower to make up for that: with a share p of the tickets
//!   it wins them with probability (2p - 1) / p, and so it loses (1 - p) of all draws.

use std::time::Duration;

/// One class of traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TicketClass {
    /// Its tickets. A class without tickets sends only if no class with tickets waits, or if its
    /// chunk has aged.
    pub tickets: u32,
    /// A chunk that has waited this long goes next; `None`: chance alone decides.
    pub wait_max: Option<Duration>,
}

/// Draws which class of traffic sends the next chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lottery {
    classes: Vec<TicketClass>,
    /// The last chunk was sent because it had aged.
    last_had_aged: bool,
    /// The class that held at least half of the tickets in the last draw and lost it.
    lost: Option<usize>,
}

impl Lottery {
    /// A lottery among these classes.
    pub fn new(classes: Vec<TicketClass>) -> Lottery {
        Lottery { classes, last_had_aged: false, lost: None }
    }

    /// Replaces one class. The number of classes stays.
    pub fn set(&mut self, class: usize, to: TicketClass) {
        if let Some(class) = self.classes.get_mut(class) {
            *class = to;
        }
    }

    /// Which class sends the next chunk. `waited[class]` is how long its oldest chunk has waited,
    /// `None` if it has none; `random` is uniform. `None` if no class has anything to send.
    pub fn draw(&mut self, waited: &[Option<Duration>], random: u64) -> Option<usize> {
        let waiting = || self.classes.iter().zip(waited).enumerate().filter(|(_, (_, waited))| waited.is_some());
        let held = || waiting().map(|(i, (class, _))| (i, u64::from(class.tickets)));
        let all: u64 = held().map(|(_, tickets)| tickets).sum();
        let most = held().find(|(_, tickets)| *tickets > 0 && 2 * tickets >= all).map(|(i, _)| i);
        let winner = self.draw_among(waited, random, most);
        self.lost = most.filter(|most| winner.is_some_and(|winner| winner != *most));
        winner
    }

    /// As [`draw`](Self::draw). `most` is the class that holds at least half of the tickets.
    fn draw_among(&mut self, waited: &[Option<Duration>], random: u64, most: Option<usize>) -> Option<usize> {
        let waiting = || self.classes.iter().zip(waited).enumerate().filter_map(|(i, (c, w))| Some((i, *c, (*w)?)));
        let aged = waiting().filter(|(_, class, waited)| class.wait_max.is_some_and(|max| *waited >= max));
        // The one that is furthest beyond its bound.
        let oldest = aged.max_by_key(|(_, class, waited)| waited.saturating_sub(class.wait_max.unwrap_or_default()));
        let others = |but: usize| waiting().any(|(i, class, _)| i != but && class.tickets > 0);
        if let Some((class, ..)) = oldest
            && !(self.last_had_aged && others(class))
        {
            self.last_had_aged = true;
            return Some(class);
        }
        let but = oldest.map(|(class, ..)| class);
        self.last_had_aged = false;
        let held = || waiting().filter(|(i, ..)| Some(*i) != but).map(|(i, class, _)| (i, u64::from(class.tickets)));
        let total: u64 = held().map(|(_, tickets)| tickets).sum();
        if total == 0 {
            // No waiting class has a ticket: they go in the order of classes.
            return waiting().next().map(|(class, ..)| class);
        }
        let most = most.filter(|most| Some(*most) != but);
        if most.is_some() && most == self.lost {
            return most;
        }
        // `most` wins some chunks without a draw, so its chance in a draw is lower.
        let chance =
            |i: usize, tickets: u64| if Some(i) == most { (2 * tickets).saturating_sub(total) } else { tickets };
        let total: u64 = held().map(|(i, tickets)| chance(i, tickets)).sum();
        // The product's upper half is uniform below `total`, as near as makes no difference.
        let mut drawn = ((u128::from(random) * u128::from(total)) >> 64) as u64;
        for (i, tickets) in held() {
            match drawn.checked_sub(chance(i, tickets)) {
                Some(rest) => drawn = rest,
                None => return Some(i),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn lottery(tickets: &[u32]) -> Lottery {
        Lottery::new(tickets.iter().map(|&tickets| TicketClass { tickets, wait_max: None }).collect())
    }

    /// Uniform numbers, the same each time.
    fn numbers() -> impl Iterator<Item = u64> {
        let mut state = 1u64;
        std::iter::from_fn(move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            Some(mixed ^ mixed >> 31)
        })
    }

    #[test]
    fn shares_follow_tickets() {
        // The rows of Huston and Honeyman's Table 1: replay against the rest.
        for replay in [0, 5, 10, 25, 50, 75, 90, 95, 100] {
            let mut lottery = lottery(&[100 - replay, replay]);
            let won = numbers().take(10_000).filter(|n| lottery.draw(&[NOW, NOW], *n) == Some(1)).count();
            let share = won as i64 / 100;
            assert!((share - i64::from(replay)).abs() <= 2, "{replay} tickets won {share} in 100");
        }
    }

    #[test]
    fn whoever_holds_half_of_the_tickets_never_loses_twice_in_a_row() {
        for tickets in [[50, 50, 0], [60, 10, 30], [70, 30, 0], [99, 1, 0]] {
            let (mut lottery, mut lost, mut won) = (lottery(&tickets), false, [0; 3]);
            for random in numbers().take(10_000) {
                let winner = lottery.draw(&[NOW, NOW, NOW], random).expect("somebody");
                assert!(winner == 0 || !lost, "{tickets:?}");
                lost = winner != 0;
                won[winner] += 1;
            }
            for (won, tickets) in won.iter().zip(tickets) {
                assert!((won / 100 - i64::from(tickets)).abs() <= 2, "{won} in 10,000 with {tickets}");
            }
        }
    }

    #[test]
    fn only_those_who_wait_take_part() {
        let mut lottery = lottery(&[8, 3, 1, 0]);
        for random in numbers().take(1000) {
            assert_eq!(lottery.draw(&[None, None, None, None], random), None);
            assert_eq!(lottery.draw(&[None, None, NOW, None], random), Some(2));
            assert_eq!(lottery.draw(&[None, None, None, NOW], random), Some(3), "nobody else wants to");
            assert_ne!(lottery.draw(&[NOW, NOW, NOW, NOW], random), Some(3));
        }
        let mut lottery = Lottery { lost: None, ..lottery };
        assert_eq!(lottery.draw(&[NOW, NOW, NOW, None], u64::MAX), Some(2));
        assert_eq!(lottery.draw(&[NOW, NOW, NOW, None], u64::MAX), Some(0), "it has just lost");
        assert_eq!(lottery.draw(&[NOW, NOW, NOW, None], 0), Some(0));
    }

    #[test]
    fn what_has_aged_goes_next_but_never_twice_in_a_row_while_others_wait() {
        let bound = Duration::from_secs(30);
        let classes =
            vec![TicketClass { tickets: 100, wait_max: None }, TicketClass { tickets: 0, wait_max: Some(bound) }];
        let mut lottery = Lottery::new(classes);
        let aged = Some(bound);
        let drawn: Vec<_> = numbers().take(6).map(|n| lottery.draw(&[NOW, aged], n).unwrap()).collect();
        assert_eq!(drawn, [1, 0, 1, 0, 1, 0]);
        let drawn: Vec<_> = numbers().take(3).map(|n| lottery.draw(&[None, aged], n).unwrap()).collect();
        assert_eq!(drawn, [1, 1, 1]);
        let young = Some(bound - Duration::from_nanos(1));
        assert!(numbers().take(100).all(|n| lottery.draw(&[NOW, young], n) == Some(0)));
        lottery.set(1, TicketClass { tickets: 100, wait_max: None });
        assert!(numbers().take(100).any(|n| lottery.draw(&[NOW, young], n) == Some(1)));
    }
}
