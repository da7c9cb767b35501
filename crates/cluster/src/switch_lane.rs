//! A lane whose other end can change: the way to a manager that moves between nodes.

use link::{LinkError, Message, OrderedLane};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;
use types::BoxFuture;

/// A lane that leads to one node after the other. Each change of it is a new connection to its
/// user, who then sends again what has no answer. It has one user. Clones are the same lane.
#[derive(Clone, Default)]
pub struct SwitchLane(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Counts changes of the other end.
    turn: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// `None`: it leads nowhere.
    lane: Option<Arc<dyn OrderedLane>>,
    /// The newest connection: its number here, and in `lane`, if `lane` has one.
    current: Option<(u64, u64)>,
    /// The greatest number that a connection had here.
    last: u64,
}

impl SwitchLane {
    /// A lane that leads nowhere.
    pub fn new() -> SwitchLane {
        SwitchLane::default()
    }

    /// Leads to another node from now on, or nowhere. What was sent and has no answer is lost.
    pub fn set(&self, lane: Option<Arc<dyn OrderedLane>>) {
        let mut state = self.0.state.lock();
        (state.lane, state.current) = (lane, None);
        self.0.turn.send_modify(|turn| *turn += 1);
    }

    /// True if a connection is up.
    pub fn is_up(&self) -> bool {
        self.connection().is_some()
    }
}

impl OrderedLane for SwitchLane {
    fn connection(&self) -> Option<u64> {
        let state = self.0.state.lock();
        let (number, below) = state.current?;
        (state.lane.as_ref()?.connection() == Some(below)).then_some(number)
    }

    fn next_connection(&self, after: u64) -> BoxFuture<u64> {
        let shared = self.0.clone();
        Box::pin(async move {
            let mut turns = shared.turn.subscribe();
            loop {
                let turn = *turns.borrow_and_update();
                let (lane, seen) = {
                    let state = shared.state.lock();
                    if let Some((number, _)) = state.current.filter(|(number, _)| *number > after) {
                        return number;
                    }
                    (state.lane.clone(), state.current.map_or(0, |(_, below)| below))
                };
                // The sender lives as long as this.
                let changed = turns.changed();
                let Some(lane) = lane else {
                    let _ = changed.await;
                    continue;
                };
                if let host::Either::Left(below) = host::first(lane.next_connection(seen), changed).await {
                    let mut state = shared.state.lock();
                    if *shared.turn.borrow() == turn {
                        state.last = state.last.max(after) + 1;
                        state.current = Some((state.last, below));
                        return state.last;
                    }
                }
            }
        })
    }

    fn ask_in(&self, connection: u64, kind: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
        // Sent under the lock, so that nothing is sent after the other end has changed.
        let state = self.0.state.lock();
        match (&state.lane, state.current) {
            (Some(lane), Some((number, below))) if number == connection => lane.ask_in(below, kind, message),
            _ => Box::pin(std::future::ready(Err(LinkError::Down))),
        }
    }
}
