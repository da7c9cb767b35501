//! The state of the link to the home, and the signs by which it is judged. Pure.

use roam_proto::channel::Channel;
use roam_proto::message::Company;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// A home whose round trip is shorter than this counts as near.
const NEAR: Duration = Duration::from_millis(15);

/// A near home counts as far when its round trip reaches this. It is twice [`NEAR`], so the state
/// does not flap.
const FAR: Duration = Duration::from_millis(30);

/// On a slow link, operations are held back while a program waited for bytes within this time.
const FETCH_TIME: Duration = Duration::from_secs(10);

/// Once held back, they stay so until no program has waited for bytes for this long.
const REST_TIME: Duration = Duration::from_secs(20);

/// Longest time for which operations are held back. Then the client sends one batch.
const HOLD_TIME_MAX: Duration = Duration::from_secs(120);

/// The state of the link to the home (docs/roaming.md#the-link), best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LinkState {
    /// The home is near. Calls wait until it has seen their operations, if other clients are
    /// attached.
    Connected,
    /// The home is far. Operations go there in the background.
    Weak,
    /// Only fetches use the link, and operations wait. If the user has chosen this state, all of
    /// them wait. Otherwise the link is slow and a program is fetching: operations that a program
    /// waits for still go home, and the others wait for two minutes at most.
    FetchOnly,
    /// The home cannot be reached.
    Disconnected,
}

/// The signs by which the link's state is judged, unless the user has chosen one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signs {
    pub(crate) round_trip: Duration,
    /// Even a very short chunk on its way home makes a fetching program wait for too long (see
    /// `Schedule::is_slow`).
    pub(crate) is_slow: bool,
    /// How long ago a program last waited for bytes.
    pub(crate) fetched_before: Duration,
    /// Operations wait to go home, and no program waits for that.
    pub(crate) may_hold: bool,
}

impl Signs {
    /// The state that the signs call for. On a slow link, fetches go first (Huston and Honeyman,
    /// section 2). The lottery alone does not ensure that: a fetch cannot overtake a chunk that is
    /// on its way. But operations must not wait for ever, since other clients are to see them. So
    /// one batch goes after [`HOLD_TIME_MAX`]. `was`: the state until now; `held_for`: how long
    /// operations have been held back.
    fn state(self, was: LinkState, held_for: Duration) -> LinkState {
        let near = if was == LinkState::Connected { FAR } else { NEAR };
        let pause = if was == LinkState::FetchOnly { REST_TIME } else { FETCH_TIME };
        let holds = self.is_slow && self.may_hold && self.fetched_before < pause && held_for < HOLD_TIME_MAX;
        match holds {
            _ if self.round_trip < near => LinkState::Connected,
            true => LinkState::FetchOnly,
            false => LinkState::Weak,
        }
    }
}

/// A question after a silence that is under way.
#[derive(Clone)]
pub(crate) struct Probe {
    pub(super) since: Duration,
    /// Closed when the question is over.
    pub(super) over: watch::Receiver<()>,
}

/// The connection to the home, and what was heard over it.
pub(crate) struct Link {
    state: LinkState,
    channel: Option<Arc<dyn Channel>>,
    /// The connection over which the home has told of every change since the client attached, even
    /// if it counts as lost meanwhile.
    told_over: Option<Weak<dyn Channel>>,
    /// The connection whose attach answer this client has applied. A stamp pushed before that must
    /// not count: the answer may tell of earlier changes.
    attached_over: Option<Weak<dyn Channel>>,
    /// Whether other clients are attached to the volume, as far as the home has said.
    company: Company,
    /// The home came near some time ago, and this client has not yet told it that it hears of
    /// changes.
    has_come_near: bool,
    /// The last time at which everything that the home had pushed was known to have arrived.
    caught_up: Duration,
    /// When the last connection ended; `None` if it fell silent, or was given up.
    ended_at: Option<Duration>,
    /// The question after a silence that is under way.
    probe: Option<Probe>,
    /// Why the client could not be attached last: the home refused, or another program answered.
    /// `None` if the home was only out of reach.
    turned_away: Option<String>,
    /// Since when operations have been held back because the link is slow and a program fetches.
    held_since: Option<Duration>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            state: LinkState::Disconnected,
            channel: None,
            told_over: None,
            attached_over: None,
            company: Company { number: 0, others: true },
            has_come_near: false,
            caught_up: Duration::ZERO,
            ended_at: None,
            probe: None,
            turned_away: None,
            held_since: None,
        }
    }
}

/// True if the noted connection is this one.
fn is_over(what: &Option<Weak<dyn Channel>>, channel: &Arc<dyn Channel>) -> bool {
    what.as_ref().is_some_and(|over| std::ptr::addr_eq(over.as_ptr(), Arc::as_ptr(channel)))
}

impl Link {
    pub(crate) fn state(&self) -> LinkState {
        self.state
    }

    /// True if the home cannot be asked.
    pub(crate) fn is_offline(&self) -> bool {
        self.state == LinkState::Disconnected
    }

    /// True if the home can be asked, and answers at once.
    pub(crate) fn is_near(&self) -> bool {
        self.state == LinkState::Connected
    }

    pub(crate) fn channel(&self) -> Option<&Arc<dyn Channel>> {
        self.channel.as_ref()
    }

    /// True if the client uses this connection.
    pub(crate) fn is_current(&self, channel: &Arc<dyn Channel>) -> bool {
        self.channel.as_ref().is_some_and(|current| Arc::ptr_eq(current, channel))
    }

    /// The client is about to attach. What it hears before the answer does not count.
    pub(crate) fn begin_to_attach(&mut self) {
        (self.told_over, self.attached_over) = (None, None);
    }

    /// The home has attached the client over a connection. `is_told`: it tells of every change from
    /// now on.
    pub(crate) fn attach(&mut self, channel: &Arc<dyn Channel>, is_told: bool, company: Company, now: Duration) {
        self.told_over = is_told.then(|| Arc::downgrade(channel));
        self.attached_over = Some(Arc::downgrade(channel));
        self.company = company;
        self.resume(channel, now);
    }

    /// A connection works again, and all that the home has pushed over it has arrived.
    pub(crate) fn resume(&mut self, channel: &Arc<dyn Channel>, now: Duration) {
        self.channel = Some(channel.clone());
        self.caught_up = now;
        self.state = LinkState::Weak;
    }

    /// A connection is of no use for now. True if the client used it: it is disconnected now.
    pub(crate) fn lose(&mut self, channel: &Arc<dyn Channel>, now: Duration) -> bool {
        let is_lost = self.is_current(channel);
        if is_lost {
            self.channel = None;
            self.state = LinkState::Disconnected;
            self.ended_at = channel.has_ended().then_some(now);
        }
        is_lost
    }

    /// Takes the connection away, at the client's end.
    pub(crate) fn take_channel(&mut self) -> Option<Arc<dyn Channel>> {
        self.channel.take()
    }

    /// A connection that comes back is not enough: the client has to attach again.
    pub(crate) fn must_attach(&mut self) {
        self.told_over = None;
    }

    /// True if the home tells of every change.
    pub(crate) fn is_told(&self) -> bool {
        self.told_over.is_some()
    }

    /// True if the home has told of every change over this connection since the client attached.
    pub(crate) fn is_told_over(&self, channel: &Arc<dyn Channel>) -> bool {
        is_over(&self.told_over, channel)
    }

    /// True if the client has taken in the attach answer of this connection.
    pub(crate) fn is_attached_over(&self, channel: &Arc<dyn Channel>) -> bool {
        is_over(&self.attached_over, channel)
    }

    /// True if other clients are attached to the volume, as far as the home has said.
    pub(crate) fn has_others(&self) -> bool {
        self.company.others
    }

    /// Takes in whether other clients are attached. False if something newer is known.
    pub(crate) fn take_company(&mut self, company: Company) -> bool {
        let is_newer = company.number > self.company.number;
        if is_newer {
            self.company = company;
        }
        is_newer
    }

    /// True, once, after the home has come near.
    pub(crate) fn take_come_near(&mut self) -> bool {
        std::mem::take(&mut self.has_come_near)
    }

    /// How long ago everything that the home had pushed was last known to have arrived.
    pub(crate) fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.caught_up)
    }

    /// Everything that the home had pushed at this time has arrived.
    pub(crate) fn catch_up(&mut self, then: Duration) {
        self.caught_up = self.caught_up.max(then);
    }

    /// When the last connection ended; `None` if it fell silent, or was given up.
    pub(crate) fn ended_at(&self) -> Option<Duration> {
        self.ended_at
    }

    /// The question after a silence that is under way.
    pub(crate) fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }

    pub(crate) fn set_probe(&mut self, probe: Option<Probe>) {
        self.probe = probe;
    }

    pub(crate) fn turned_away(&self) -> Option<&str> {
        self.turned_away.as_deref()
    }

    pub(crate) fn set_turned_away(&mut self, why: Option<String>) {
        self.turned_away = why;
    }

    /// While operations are held back: how much longer this lasts, at most.
    pub(crate) fn held_back(&self, now: Duration) -> Option<Duration> {
        let since = self.held_since.filter(|_| self.state == LinkState::FetchOnly)?;
        Some((since + HOLD_TIME_MAX).saturating_sub(now))
    }

    /// Notes that some of the waiting operations have gone home.
    pub(crate) fn some_went(&mut self, now: Duration) {
        self.held_since = (self.state == LinkState::FetchOnly).then_some(now);
    }

    /// Judges the link by the signs, unless the user has pinned its state. True if the state has
    /// changed.
    pub(crate) fn judge(&mut self, pinned: Option<LinkState>, signs: Signs, now: Duration) -> bool {
        let was = self.state;
        let held_for = self.held_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.state = pinned.unwrap_or_else(|| signs.state(was, held_for));
        if pinned.is_none() && self.state == LinkState::FetchOnly {
            self.held_since.get_or_insert(now);
        }
        self.has_come_near |= self.state != was && self.state == LinkState::Connected;
        self.state != was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// A slow link on which a program fetches while operations wait.
    const SLOW: Signs =
        Signs { round_trip: Duration::from_millis(200), is_slow: true, fetched_before: Duration::ZERO, may_hold: true };

    fn judged(was: LinkState, signs: Signs) -> LinkState {
        signs.state(was, Duration::ZERO)
    }

    #[test]
    fn operations_wait_on_a_slow_link_while_a_program_fetches() {
        use LinkState::{Connected, FetchOnly, Weak};
        assert_eq!(judged(Weak, SLOW), FetchOnly);
        assert_eq!(judged(Weak, Signs { is_slow: false, ..SLOW }), Weak);
        assert_eq!(judged(Weak, Signs { fetched_before: 15 * SECOND, ..SLOW }), Weak);
        assert_eq!(judged(FetchOnly, Signs { fetched_before: 15 * SECOND, ..SLOW }), FetchOnly);
        assert_eq!(judged(FetchOnly, Signs { fetched_before: 25 * SECOND, ..SLOW }), Weak);
        assert_eq!(judged(Weak, Signs { round_trip: Duration::from_millis(5), ..SLOW }), Connected);
    }

    #[test]
    fn operations_do_not_wait_for_long_nor_while_a_program_waits_for_them() {
        for was in [LinkState::Weak, LinkState::FetchOnly] {
            assert_eq!(SLOW.state(was, HOLD_TIME_MAX), LinkState::Weak);
            assert_eq!(judged(was, Signs { may_hold: false, ..SLOW }), LinkState::Weak);
        }
    }

    #[test]
    fn a_home_is_near_until_it_is_far_and_far_until_it_is_near() {
        let of = |was, ms| judged(was, Signs { round_trip: Duration::from_millis(ms), is_slow: false, ..SLOW });
        assert_eq!(of(LinkState::Connected, 20), LinkState::Connected);
        assert_eq!(of(LinkState::Weak, 20), LinkState::Weak);
        assert_eq!(of(LinkState::Connected, 30), LinkState::Weak);
    }
}
