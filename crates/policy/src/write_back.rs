//! When what was done here goes home over a slow link, and who uses the link next (Froese and Bunt, section 4.6; Huston and Honeyman, section 4.1).
//!
//! - [`Terms`]: for how long something waits before it may go.
//! - [`Turns`]: whenever the link is free, whether it goes then, or what somebody waits for does.
//!
//! The paper's policies are these: *Idle*, after the link was idle for a moment; *Delayed*, when it has also waited for some time; *Preemptive*, the same, and it stops for
//! whatever somebody waits for; *Lottery*, when it wins. The product has all of them, and draws lots wherever two want the link.

use crate::lottery::{Class, Lottery};
use std::time::Duration;

/// The link counts as idle when nobody has waited for it for so long.
pub const IDLE_TIME: Duration = Duration::from_secs(1);
/// What waits for an idle link goes after so long although the link is used.
pub const IDLE_WAIT_MAX: Duration = Duration::from_secs(300);
/// What is to wait waits for so long, where nothing else is said.
pub const DELAY: Duration = Duration::from_secs(15 * 60);

/// What is drawn for what somebody waits for, for what is fetched ahead, and for what goes home. What goes home is never left behind for good.
pub const TICKETS: [Class; 3] = [
    Class { tickets: 60, wait_max: None },
    Class { tickets: 10, wait_max: Some(Duration::from_secs(120)) },
    Class { tickets: 30, wait_max: Some(Duration::from_secs(30)) },
];

/// A chunk, for which lots are drawn, takes so long on its way, at most.
pub const CHUNK_TIME: Duration = Duration::from_millis(500);
/// It is made to take this part of that: the rate is not known better, and small questions wait for it.
const CHUNK_PART: f64 = 0.875;
/// Shortest chunk, in bytes.
pub const CHUNK_LEN_MIN: u64 = 1 << 10;
/// Longest chunk, in bytes.
pub const CHUNK_LEN_MAX: u64 = 256 << 10;

/// How many bytes make a chunk on a link that carries so many a second.
pub fn chunk_len(bytes_per_second: f64) -> u64 {
    let len = bytes_per_second * CHUNK_TIME.as_secs_f64() * CHUNK_PART;
    (len as u64).clamp(CHUNK_LEN_MIN, CHUNK_LEN_MAX)
}

/// For how long something waits before it may go home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// For so long,
    pub age: Duration,
    /// and until nobody has used the link for so long;
    pub idle: Duration,
    /// or else for so long, whatever the link does.
    pub age_max: Option<Duration>,
}

impl Terms {
    /// It need not wait.
    pub const AT_ONCE: Terms = Terms::delayed(Duration::ZERO);
    /// Until the link is idle, though not for ever.
    pub const WHEN_IDLE: Terms = Terms { age: Duration::ZERO, idle: IDLE_TIME, age_max: Some(IDLE_WAIT_MAX) };

    /// For so long, whatever the link does.
    pub const fn delayed(age: Duration) -> Terms {
        Terms { age, idle: Duration::ZERO, age_max: None }
    }

    /// How long what goes now has waited at least, if nobody has used the link for `idle_for`. Nothing: nothing goes.
    pub fn age_now(&self, idle_for: Duration) -> Option<Duration> {
        let at_most = |age: Duration| self.age_max.map_or(age, |most| most.min(age));
        if idle_for >= self.idle { Some(at_most(self.age)) } else { self.age_max }
    }

    /// How much longer something waits that has waited for so long, if nobody uses the link meanwhile.
    pub fn wait(&self, waited: Duration, idle_for: Duration) -> Duration {
        let wait = self.age.saturating_sub(waited).max(self.idle.saturating_sub(idle_for));
        self.age_max.map_or(wait, |most| wait.min(most.saturating_sub(waited)))
    }
}

/// What becomes of what goes home when somebody waits for the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// It ends what it has begun.
    Ends,
    /// It stops, and goes on another time.
    Stops,
    /// Lots are drawn for each piece.
    Draws {
        /// What whoever waits for something holds, and what goes home does.
        tickets: [Class; 2],
        /// Those who wait for something hold theirs also while nobody does, as in the paper: what goes home then has to win against nobody. It is drawn when something
        /// has ended, and again whenever the link was idle for as long as the terms say.
        always: bool,
    },
}

/// Who wants the link, which is free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    /// For how long somebody has waited for something.
    pub demand: Option<Duration>,
    /// For how long what was done first has waited since it was done; nothing: all is home.
    pub oldest: Option<Duration>,
    /// For how long its turn could have come.
    pub turn: Duration,
    /// Some of it has gone: the rest need not wait.
    pub is_begun: bool,
    /// For how long nobody has used the link.
    pub idle_for: Duration,
    /// The link has become free just now.
    pub has_ended: bool,
}

/// Who is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// What somebody waits for.
    Fetch,
    /// What was done first.
    Send,
    /// Nobody for so long, unless somebody comes.
    Wait(Duration),
    /// Nobody, until somebody comes.
    Nobody,
}

/// Who uses the link next. See the module's header.
#[derive(Clone, Debug)]
pub struct Turns {
    terms: Option<Terms>,
    sharing: Sharing,
    lottery: Lottery,
}

impl Turns {
    /// With these terms; without any, nothing goes home.
    pub fn new(terms: Option<Terms>, sharing: Sharing) -> Turns {
        let classes = match sharing {
            Sharing::Draws { tickets, .. } => tickets.to_vec(),
            Sharing::Ends | Sharing::Stops => Vec::new(),
        };
        Turns { terms, sharing, lottery: Lottery::new(classes) }
    }

    /// True if what is on its way home stops for somebody who comes now.
    pub fn stops(&self) -> bool {
        self.sharing == Sharing::Stops
    }

    /// Who is next. `random` gives uniform numbers.
    pub fn next(&mut self, waiting: &Waiting, random: impl FnOnce() -> u64) -> Turn {
        let nobody = if waiting.demand.is_some() { Turn::Fetch } else { Turn::Nobody };
        let (Some(terms), Some(oldest)) = (self.terms, waiting.oldest) else { return nobody };
        let always = matches!(self.sharing, Sharing::Draws { always: true, .. });
        let may_go = waiting.is_begun || (always && waiting.has_ended);
        let wait = if may_go { Duration::ZERO } else { terms.wait(oldest, waiting.idle_for) };
        match (self.sharing, waiting.demand) {
            (_, None) if !wait.is_zero() => Turn::Wait(wait),
            (_, Some(_)) if !wait.is_zero() => Turn::Fetch,
            (Sharing::Ends | Sharing::Stops, Some(_)) => Turn::Fetch,
            (Sharing::Draws { always: true, .. }, None) => {
                match self.lottery.draw(&[Some(Duration::ZERO), Some(waiting.turn)], random()) {
                    Some(1) => Turn::Send,
                    _ => Turn::Wait(terms.idle),
                }
            }
            (Sharing::Draws { .. }, Some(demand)) => {
                match self.lottery.draw(&[Some(demand), Some(waiting.turn)], random()) {
                    Some(1) => Turn::Send,
                    _ => Turn::Fetch,
                }
            }
            (_, None) => Turn::Send,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn terms_say_from_which_age_on_something_goes() {
        assert_eq!(Terms::AT_ONCE.age_now(Duration::ZERO), Some(Duration::ZERO));
        assert_eq!(Terms::delayed(DELAY).age_now(Duration::ZERO), Some(DELAY));
        assert_eq!(Terms::WHEN_IDLE.age_now(IDLE_TIME), Some(Duration::ZERO));
        assert_eq!(Terms::WHEN_IDLE.age_now(Duration::ZERO), Some(IDLE_WAIT_MAX));
        let for_ever = Terms { age_max: None, ..Terms::WHEN_IDLE };
        assert_eq!(for_ever.age_now(IDLE_TIME - Duration::from_nanos(1)), None);
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
        let tickets = [11, 1].map(|tickets| Class { tickets, wait_max: None });
        let now = Some(Duration::ZERO);
        let alone = Waiting { oldest: now, idle_for: seconds(1), ..Waiting::default() };
        let mut turns = Turns::new(Some(Terms::AT_ONCE), Sharing::Draws { tickets, always: false });
        assert_eq!(turns.next(&alone, || panic!("nothing is drawn")), Turn::Send);
        assert_eq!(turns.next(&Waiting { demand: now, ..alone }, || u64::MAX), Turn::Send);
        assert_eq!(turns.next(&Waiting { demand: now, ..alone }, || 0), Turn::Fetch);
        let terms = Terms { idle: seconds(1), ..Terms::AT_ONCE };
        let mut turns = Turns::new(Some(terms), Sharing::Draws { tickets, always: true });
        assert_eq!(turns.next(&alone, || 0), Turn::Wait(seconds(1)));
        assert_eq!(turns.next(&alone, || u64::MAX), Turn::Send);
        // Whoever comes to a link that is free need not draw, unless it has become free just now.
        let came = Waiting { demand: now, idle_for: Duration::ZERO, ..alone };
        assert_eq!(turns.next(&came, || panic!("nothing is drawn")), Turn::Fetch);
        assert_eq!(turns.next(&Waiting { has_ended: true, ..came }, || 0), Turn::Fetch);
        assert_eq!(turns.next(&Waiting { has_ended: true, ..came }, || u64::MAX), Turn::Send);
    }

    proptest! {
        /// What waits may go after exactly as long as it is said to wait.
        #[test]
        fn prop_the_wait_ends_when_the_age_is_reached(
            (age, idle, waited, idle_for) in (0u64..50, 0u64..50, 0u64..80, 0u64..80),
            age_max in proptest::option::of(0u64..60),
        ) {
            let terms = Terms { age: seconds(age), idle: seconds(idle), age_max: age_max.map(seconds) };
            let may_go = |later: u64| {
                terms.age_now(seconds(idle_for + later)).is_some_and(|least| seconds(waited + later) >= least)
            };
            let wait = terms.wait(seconds(waited), seconds(idle_for)).as_secs();
            prop_assert!(may_go(wait));
            prop_assert!(wait == 0 || !may_go(wait - 1));
        }
    }
}
