//! How many messages a home has pushed, asked and answered in datagrams.
//!
//! QUIC does not send lost datagrams again. So each try is a small question of its own, and the
//! home answers the first that arrives after a silence. On a stream, the question would have to
//! wait until QUIC knows that its first packet was lost. Datagrams also take none of the streams
//! that a home allows, even if it is out of reach for hours.

use crate::stream::Close;
use quinn::Connection;
use roam_proto::channel::Lost;
use roam_proto::codec::Wire;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The answer to a question: the question's number, and how many messages the home had pushed by
/// then.
pub(crate) type Answer = (u64, u64);

/// Sends question `number`. The question waits while the congestion window is full. If the link was
/// lost in the middle of a transfer, QUIC's own tries, fewer and fewer, have to find out that it is
/// back. Fails with `Lost` if the question can never be sent.
pub(crate) fn ask(connection: &Connection, number: u64) -> Result<(), Lost> {
    connection.send_datagram(number.to_bytes().into()).map_err(|error| {
        tracing::debug!(%error, "cannot ask the home how much it has pushed");
        Lost
    })
}

/// Takes in answers until the connection ends, and keeps the one to the latest question. An answer
/// to a question that was not `asked` closes the connection.
pub(crate) async fn hear(connection: Connection, asked: Arc<AtomicU64>, latest: watch::Sender<Answer>) {
    while let Ok(datagram) = connection.read_datagram().await {
        let answer = Answer::from_bytes(&datagram).ok().filter(|(number, _)| *number <= asked.load(Ordering::Relaxed));
        let Some(answer) = answer else { return Close::Refused.close(&connection) };
        latest.send_if_modified(|known| {
            let is_newer = known.0 < answer.0;
            if is_newer {
                *known = answer;
            }
            is_newer
        });
    }
}

/// Answers questions until the connection ends.
pub(crate) async fn answer(connection: Connection, pushed: Arc<AtomicU64>) {
    while let Ok(question) = connection.read_datagram().await {
        let Ok(number) = u64::from_bytes(&question) else { return Close::Refused.close(&connection) };
        let answer: Answer = (number, pushed.load(Ordering::Relaxed));
        if let Err(error) = connection.send_datagram(answer.to_bytes().into()) {
            tracing::debug!(%error, "cannot tell the client how much was pushed");
        }
    }
}
