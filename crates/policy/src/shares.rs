//! Divides free room among clients that use it at the same time. Pure.
//!
//! The keeper of the room offers each client a part. A client may use what it was offered until it
//! takes over a newer offer, and the keeper does not see when it uses it. So the keeper remembers
//! the most that each client may still use: by its last report, or by an offer that it may have
//! taken over since. It never offers what others may use. So all clients together never use more
//! than what is free:
//!
//! - A report says what the client may use at most, by the offer that it has in force. A client
//!   never takes over an offer that is older than its last report. What it used after that report
//!   counts against the offer.
//! - The keeper measures what is free after the newest report, so what a client has used before its
//!   report is not free any more. What it uses between report and measurement counts twice.
//!
//! A client's part shrinks only at its next report, so others have all that is free when a new
//! client comes. As long as parts are ample, something is therefore left for the next client.
//! Otherwise its first offers are small, and it waits for the others' reports.

use std::collections::BTreeMap;

/// What clients may still use, in bytes.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    /// A part of so many bytes is ample: more than what a client uses between two reports.
    ample: u64,
    /// The most that each client may use, by its number.
    held: BTreeMap<u64, u64>,
    /// Clients that are gone, with the number of checkpoints that had begun by then. What they made
    /// others owe is used only by a later checkpoint.
    gone: Vec<Gone>,
    checkpoint_count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Gone {
    held: u64,
    checkpoint_count: u64,
}

impl Shares {
    /// No clients yet. A client gets at most half of what no other one may use, so that the next
    /// client finds something at once; or `ample` bytes if that is more.
    pub fn new(ample: u64) -> Shares {
        Shares { ample, ..Shares::default() }
    }

    /// A client says that it may still use `held` bytes at most. A new client reports 0.
    pub fn report(&mut self, client: u64, held: u64) {
        self.held.insert(client, held);
    }

    /// The part of `free` bytes that a client may use from now on, in place of what it has: an
    /// equal one, or less if that is ample or others may still use more than theirs. The client
    /// must have reported.
    pub fn offer(&mut self, client: u64, free: u64) -> u64 {
        let others = self.held.iter().filter(|(other, _)| **other != client).map(|(_, held)| *held);
        let taken = others.chain(self.gone.iter().map(|gone| gone.held)).fold(0, u64::saturating_add);
        let left = free.saturating_sub(taken);
        let part = (free / self.held.len().max(1) as u64).min((left / 2).max(self.ample)).min(left);
        if let Some(held) = self.held.get_mut(&client) {
            *held = part.max(*held);
        }
        part
    }

    /// A client is gone, and writes no more. What it may have used stays set aside until a
    /// checkpoint has written what it made others owe.
    pub fn leave(&mut self, client: u64) {
        if let Some(held) = self.held.remove(&client) {
            self.gone.push(Gone { held, checkpoint_count: self.checkpoint_count });
        }
    }

    /// A checkpoint begins. Returns its number.
    pub fn checkpoint_begins(&mut self) -> u64 {
        self.checkpoint_count += 1;
        self.checkpoint_count
    }

    /// The checkpoint with this number is durable.
    pub fn checkpoint_ended(&mut self, number: u64) {
        self.gone.retain(|gone| gone.checkpoint_count >= number);
    }

    /// True if a client has reported and is not gone.
    pub fn knows(&self, client: u64) -> bool {
        self.held.contains_key(&client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A client as it is in truth.
    #[derive(Clone, Copy, Default)]
    struct Truth {
        /// What it may use by the offer in force.
        right: u64,
        /// What it has admitted and not used. It uses this even if the right shrinks.
        admitted: u64,
        /// An offer on its way.
        offer: Option<u64>,
    }

    impl Truth {
        fn most(&self) -> u64 {
            self.right.max(self.admitted)
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        /// A client reports and is offered a part.
        Ask(u64),
        /// The offer comes, or is lost for good.
        Take(u64, bool),
        Admit(u64, u64),
        Use(u64, u64),
        Free(u64),
        Leave(u64),
        Checkpoint,
    }

    fn event() -> impl Strategy<Value = Event> {
        let client = || 0u64..4;
        prop_oneof![
            4 => client().prop_map(Event::Ask),
            4 => (client(), any::<bool>()).prop_map(|(client, comes)| Event::Take(client, comes)),
            4 => (client(), 0u64..400).prop_map(|(client, bytes)| Event::Admit(client, bytes)),
            4 => (client(), 0u64..400).prop_map(|(client, bytes)| Event::Use(client, bytes)),
            1 => (0u64..300).prop_map(Event::Free),
            1 => client().prop_map(Event::Leave),
            1 => Just(Event::Checkpoint),
        ]
    }

    proptest! {
        #[test]
        fn prop_all_clients_together_never_use_more_than_what_is_free(
            ample in 0u64..1200,
            events in proptest::collection::vec(event(), 1..200),
        ) {
            let (mut shares, mut free, mut owed) = (Shares::new(ample), 1000u64, 0);
            let mut clients: BTreeMap<u64, Truth> = BTreeMap::new();
            for event in events {
                match event {
                    Event::Ask(client) => {
                        let truth = clients.entry(client).or_default();
                        truth.offer = None;
                        shares.report(client, truth.most());
                        truth.offer = Some(shares.offer(client, free));
                    }
                    Event::Take(client, comes) => {
                        if let Some(truth) = clients.get_mut(&client)
                            && let Some(offer) = truth.offer.take()
                            && comes
                        {
                            truth.right = offer;
                        }
                    }
                    Event::Admit(client, bytes) => {
                        if let Some(truth) = clients.get_mut(&client) {
                            let room = truth.right.saturating_sub(truth.admitted);
                            truth.admitted += bytes.min(room);
                        }
                    }
                    Event::Use(client, bytes) => {
                        if let Some(truth) = clients.get_mut(&client) {
                            let used = bytes.min(truth.admitted);
                            prop_assert!(used <= free);
                            free -= used;
                            truth.admitted -= used;
                            truth.right = truth.right.saturating_sub(used);
                            truth.offer = truth.offer.map(|offer| offer.saturating_sub(used));
                        }
                    }
                    Event::Free(bytes) => free += bytes,
                    Event::Leave(client) => {
                        owed += clients.remove(&client).map_or(0, |truth| truth.admitted);
                        shares.leave(client);
                    }
                    Event::Checkpoint => {
                        let number = shares.checkpoint_begins();
                        prop_assert!(owed <= free);
                        free -= std::mem::take(&mut owed);
                        shares.checkpoint_ended(number);
                    }
                }
                let most = clients.values().map(Truth::most).sum::<u64>() + owed;
                prop_assert!(most <= free, "{most} of {free}");
            }
        }
    }

    #[test]
    fn everything_can_be_used_and_parts_become_equal() {
        let mut shares = Shares::new(900);
        shares.report(1, 0);
        assert_eq!(shares.offer(1, 900), 900, "the only client");
        shares.report(2, 0);
        assert_eq!(shares.offer(2, 900), 0, "the first client has it all until it reports");
        shares.report(1, 900);
        assert_eq!(shares.offer(1, 900), 450);
        shares.report(2, 0);
        assert_eq!(shares.offer(2, 900), 0, "it may not have taken over the smaller part");
        shares.report(1, 450);
        shares.offer(1, 900);
        shares.report(2, 0);
        assert_eq!(shares.offer(2, 900), 450);
        shares.leave(1);
        shares.report(2, 450);
        assert_eq!(shares.offer(2, 900), 450, "a checkpoint may still need the rest");
        let number = shares.checkpoint_begins();
        shares.checkpoint_ended(number);
        assert_eq!((shares.offer(2, 900), shares.knows(1), shares.knows(2)), (900, false, true));
    }

    #[test]
    fn regression_a_new_client_waits_for_no_report_while_there_is_ample_room() {
        let mut shares = Shares::new(100);
        for client in 1..=6 {
            shares.report(client, 0);
            assert!(shares.offer(client, 9000) >= 100, "client {client} found nothing");
        }
        let mut last = Shares::new(100);
        last.report(1, 0);
        assert_eq!(last.offer(1, 90), 90, "the last bytes can be used");
    }
}
