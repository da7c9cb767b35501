//! Which calls of a client a crash may have lost.
//!
//! A crash leaves the effects of the client's calls up to some point. Calls that overlap may have
//! taken effect in any order, so any of them may be the last. What was done before a sync began
//! that was answered is there.

use super::event::Event;

/// What may be left of some calls after a crash of a client, the calls of several rounds: all of
/// the other clients' calls, and some first ones of its own.
pub(super) fn left_of_rounds(done: &[(u64, Event)], client: usize) -> Vec<Vec<(u64, Event)>> {
    let synced = done.iter().filter(|(_, event)| event.has_synced(client)).map(|(round, _)| *round).max();
    let mut rounds: Vec<u64> = done.iter().filter(|(_, e)| e.client == client).map(|(round, _)| *round).collect();
    rounds.dedup();
    let mut out = vec![done.to_vec()];
    for &last in rounds.iter().filter(|round| Some(**round) >= synced) {
        // The last round of which something may be left, and all that came after it at others.
        let of_last: Vec<usize> = (0..done.len()).filter(|&i| done[i].0 == last).collect();
        let events: Vec<&Event> = of_last.iter().map(|&i| &done[i].1).collect();
        for lost in losses(&events, client) {
            let is_kept = |&i: &usize| match of_last.iter().position(|of_last| *of_last == i) {
                Some(at) => !lost.contains(&at),
                None => done[i].0 < last || done[i].1.client != client,
            };
            out.push((0..done.len()).filter(is_kept).map(|i| done[i].clone()).collect());
        }
    }
    out
}

/// What may be left of the calls of one round after a crash of a client.
pub(super) fn left_of_round(events: &[Event], client: usize) -> Vec<Vec<Event>> {
    let left = |lost: Vec<usize>| {
        let kept = events.iter().enumerate().filter(|(i, _)| !lost.contains(i));
        kept.map(|(_, event)| event.clone()).collect()
    };
    losses(&events.iter().collect::<Vec<_>>(), client).into_iter().map(left).collect()
}

/// The sets of a client's calls, by their places in `events`, that its crash may have lost.
fn losses(events: &[&Event], client: usize) -> Vec<Vec<usize>> {
    let own: Vec<usize> = (0..events.len()).filter(|&i| events[i].client == client).collect();
    let chosen = |set: u32| -> Vec<usize> {
        own.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0).map(|(_, i)| *i).collect()
    };
    let may_be_lost = |lost: &Vec<usize>| {
        let is_lost = |i: &usize| lost.contains(i);
        // With a call, all later ones are lost.
        let are_last =
            own.iter().filter(|i| !is_lost(i)).all(|&kept| lost.iter().all(|&i| !events[i].ends_before(events[kept])));
        are_last && !lost.iter().any(|&i| events[i].has_synced(client))
    };
    (0..1u32 << own.len()).map(chosen).filter(may_be_lost).collect()
}
