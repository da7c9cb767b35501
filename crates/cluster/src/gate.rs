//! The door to a manager that is served here. It closes before the manager moves to another node:
//! requests that wait for other clients are sent away, and those that change something end first.

use host::Host;
use manager::api::{Manager, ManagerAdmin};
use manager::planted::{self, Bug};
use manager::server::ManagerServer;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The door to a manager. It opens once, and closes once.
pub(crate) struct Gate {
    manager: Arc<dyn Manager>,
    state: Mutex<GateState>,
    closing: watch::Sender<bool>,
    emptied: Notify,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    inside: usize,
}

/// A request that is inside a manager. It leaves when this is dropped.
pub(crate) struct Inside(Arc<Gate>);

impl Inside {
    /// The manager.
    pub fn manager(&self) -> &dyn Manager {
        &*self.0.manager
    }

    /// Waits until the gate closes: then requests that can be made again must leave.
    pub async fn closing(&self) {
        let mut closing = self.0.closing.subscribe();
        // The sender lives as long as this.
        let _ = closing.wait_for(|closing| *closing).await;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let is_empty = {
            let mut state = self.0.state.lock();
            state.inside -= 1;
            state.inside == 0
        };
        if is_empty {
            self.0.emptied.notify_waiters();
        }
    }
}

impl Gate {
    /// The open door to a manager.
    pub fn new(manager: Arc<dyn Manager>) -> Arc<Gate> {
        let (state, closing) = (Mutex::default(), watch::Sender::new(false));
        Arc::new(Gate { manager, state, closing, emptied: Notify::new() })
    }

    /// Lets a request in; `None` if the gate is closed.
    pub fn enter(self: &Arc<Self>) -> Option<Inside> {
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        state.inside += 1;
        Some(Inside(self.clone()))
    }

    /// Closes the gate. Requests may still be inside.
    pub fn shut(&self) {
        self.state.lock().is_closed = true;
        self.closing.send_replace(true);
    }

    /// Closes the gate, and waits until no request is inside.
    pub async fn close(&self) {
        self.shut();
        loop {
            let emptied = self.emptied.notified();
            if self.state.lock().inside == 0 || planted::is(Bug::MovesBeforeRequestsEnd) {
                return;
            }
            emptied.await;
        }
    }
}

/// How long the last checkpoint may take of a manager that moves. Without it, the next node only
/// has more to read.
const LAST_CHECKPOINT_TIME_MAX: Duration = Duration::from_secs(5);

/// Writes the last checkpoint of a manager that moves, if that can be done soon.
pub(crate) async fn last_checkpoint(host: &Host, server: &ManagerServer) {
    let written = host::timeout(&*host.clock, LAST_CHECKPOINT_TIME_MAX, server.checkpoint().into_future()).await;
    if !matches!(written, Ok(Ok(_))) {
        tracing::warn!(manager = %server.id(), "a manager moves without a last checkpoint");
    }
}
