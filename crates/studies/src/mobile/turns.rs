//! What uses the link next, whenever it is free: a fetch that the user waits for, or what goes home
//! (Froese and Bunt, section 4.6).

use policy::lottery::{Lottery, TicketClass};
use policy::write_back::Terms;
use std::time::Duration;

/// What happens to a transfer home when the user begins to wait for the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    /// It completes what it has begun.
    Ends,
    /// It stops, and goes on another time.
    Stops,
    /// The paper's lottery: fetches hold the first of these tickets, and what goes home the second.
    /// Draws are independent. Fetches hold their tickets even while none waits, so that what goes
    /// home must win against no other. A draw takes place when a transfer has ended, and again
    /// whenever the link was idle for the policy's time.
    Draws([u32; 2]),
    /// The product's: lots are drawn for each piece, and only among those who wait.
    DrawsAmongWaiting([TicketClass; 2]),
}

/// What waits for the link, which is free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// How long the user has waited for a fetch.
    pub demand: Option<Duration>,
    /// How long the oldest change has waited; `None` if all is home.
    pub oldest: Option<Duration>,
    /// How long its turn could have come.
    pub turn: Duration,
    /// Part of it has gone: the rest need not wait.
    pub is_begun: bool,
    /// How long the link has been idle.
    pub idle_for: Duration,
    /// The link has become free just now.
    pub has_ended: bool,
}

/// What is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// The fetch.
    Fetch,
    /// The oldest change.
    Send,
    /// Nothing for this time, unless something comes.
    Wait(Duration),
    /// Nothing until something comes.
    Nobody,
}

/// Decides what uses the link next.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    terms: Option<Terms>,
    sharing: Sharing,
    /// The product's lottery.
    lottery: Lottery,
}

impl Turns {
    /// Turns with these terms; without any, nothing goes home.
    pub fn new(terms: Option<Terms>, sharing: Sharing) -> Turns {
        let classes = match sharing {
            Sharing::DrawsAmongWaiting(classes) => classes.to_vec(),
            Sharing::Ends | Sharing::Stops | Sharing::Draws(_) => Vec::new(),
        };
        Turns { terms, sharing, lottery: Lottery::new(classes) }
    }

    /// True if a transfer home stops for a fetch that comes now.
    pub fn stops(&self) -> bool {
        self.sharing == Sharing::Stops
    }

    /// What is next. `random` gives uniform numbers.
    pub fn next(&mut self, waiting: &Waiting, random: impl FnOnce() -> u64) -> Turn {
        let nobody = if waiting.demand.is_some() { Turn::Fetch } else { Turn::Nobody };
        let (Some(terms), Some(oldest)) = (self.terms, waiting.oldest) else { return nobody };
        let may_go = waiting.is_begun || (matches!(self.sharing, Sharing::Draws(_)) && waiting.has_ended);
        let wait = if may_go { Duration::ZERO } else { terms.wait(oldest, waiting.idle_for) };
        match (self.sharing, waiting.demand) {
            (_, None) if !wait.is_zero() => Turn::Wait(wait),
            (_, Some(_)) if !wait.is_zero() => Turn::Fetch,
            (Sharing::Ends | Sharing::Stops, Some(_)) => Turn::Fetch,
            (Sharing::Draws(tickets), demand) => match demand {
                _ if writes_win(tickets, random()) => Turn::Send,
                Some(_) => Turn::Fetch,
                None => Turn::Wait(terms.idle),
            },
            (Sharing::DrawsAmongWaiting(_), Some(demand)) => {
                match self.lottery.draw(&[Some(demand), Some(waiting.turn)], random()) {
                    Some(1) => Turn::Send,
                    _ => Turn::Fetch,
                }
            }
            (_, None) => Turn::Send,
        }
    }
}

/// True if what goes home wins with these tickets and this uniform number.
fn writes_win([reads, writes]: [u32; 2], random: u64) -> bool {
    let all = u128::from(reads) + u128::from(writes);
    (u128::from(random) * all) >> 64 >= u128::from(reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::{Random, SplitMix64};
    use policy::write_back::DELAY;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn what_was_done_first_goes_when_its_terms_are_met_and_nobody_waits() {
        let terms = Terms { age: seconds(900), idle: seconds(1), age_max: None };
        let mut turns = Turns::new(Some(terms), Sharing::Ends);
        let mut next = |demand, oldest, idle_for| {
            turns.next(&Waiting { demand, oldest, idle_for, ..Waiting::default() }, || panic!("nothing is drawn"))
        };
        let now = Some(Duration::ZERO);
        assert_eq!(next(None, None, seconds(9)), Turn::Nobody);
        assert_eq!(next(now, None, seconds(9)), Turn::Fetch);
        assert_eq!(next(None, Some(seconds(100)), seconds(9)), Turn::Wait(seconds(800)));
        assert_eq!(next(None, Some(seconds(1000)), Duration::ZERO), Turn::Wait(seconds(1)));
        assert_eq!(next(None, Some(seconds(1000)), seconds(9)), Turn::Send);
        assert_eq!(next(now, Some(seconds(1000)), seconds(9)), Turn::Fetch);
        let (mut never, oldest) = (Turns::new(None, Sharing::Ends), Some(seconds(1 << 30)));
        let waiting = Waiting { oldest, idle_for: seconds(1 << 30), is_begun: true, ..Waiting::default() };
        assert_eq!(never.next(&waiting, || 0), Turn::Nobody);
    }

    #[test]
    fn what_is_begun_goes_on_without_terms() {
        let mut turns = Turns::new(Some(Terms::delayed(DELAY)), Sharing::Ends);
        let waiting = Waiting { oldest: Some(Duration::ZERO), is_begun: true, ..Waiting::default() };
        assert_eq!(turns.next(&waiting, || 0), Turn::Send);
    }

    #[test]
    fn lots_are_drawn_among_those_who_wait_or_always() {
        let now = Some(Duration::ZERO);
        let alone = Waiting { oldest: now, idle_for: seconds(1), ..Waiting::default() };
        let classes = [11, 1].map(|tickets| TicketClass { tickets, wait_max: None });
        let mut turns = Turns::new(Some(Terms::AT_ONCE), Sharing::DrawsAmongWaiting(classes));
        assert_eq!(turns.next(&alone, || panic!("nothing is drawn")), Turn::Send);
        assert_eq!(turns.next(&Waiting { demand: now, ..alone }, || u64::MAX), Turn::Send);
        assert_eq!(turns.next(&Waiting { demand: now, ..alone }, || 0), Turn::Fetch);
        let terms = Terms { idle: seconds(1), ..Terms::AT_ONCE };
        let mut turns = Turns::new(Some(terms), Sharing::Draws([11, 1]));
        assert_eq!(turns.next(&alone, || 0), Turn::Wait(seconds(1)));
        assert_eq!(turns.next(&alone, || u64::MAX), Turn::Send);
        // A fetch that finds the link free need not draw, unless it has become free just now.
        let came = Waiting { demand: now, idle_for: Duration::ZERO, ..alone };
        assert_eq!(turns.next(&came, || panic!("nothing is drawn")), Turn::Fetch);
        assert_eq!(turns.next(&Waiting { has_ended: true, ..came }, || 0), Turn::Fetch);
        assert_eq!(turns.next(&Waiting { has_ended: true, ..came }, || u64::MAX), Turn::Send);
    }

    #[test]
    fn in_the_papers_lottery_writes_win_again_as_often_as_they_win() {
        let terms = Terms { idle: seconds(1), ..Terms::AT_ONCE };
        let (mut turns, random) = (Turns::new(Some(terms), Sharing::Draws([11, 1])), SplitMix64::new(1));
        let now = Some(Duration::ZERO);
        let waiting = Waiting { demand: now, oldest: now, has_ended: true, ..Waiting::default() };
        let won: Vec<bool> = (0..144_000).map(|_| turns.next(&waiting, || random.next_u64()) == Turn::Send).collect();
        let once = won.iter().filter(|won| **won).count();
        let twice = won.windows(2).filter(|two| two[0] && two[1]).count();
        assert!(once.abs_diff(12_000) < 400 && twice.abs_diff(1000) < 120, "{once} {twice}");
    }
}
